// Counts its ticks, over all leaders of its role.

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "job_plugin.h"

static unsigned long long ticks;

static void say(const char *line) {
    // The strings are lent to the host for the call.
    job_plugin_string_t context, message;
    job_plugin_string_set(&context, "{{name}}");
    job_plugin_string_set(&message, line);
    wasi_logging_logging_log(WASI_LOGGING_LOGGING_LEVEL_INFO, &context, &message);
}

// What an earlier leader left, which is not terminated.
static bool read_count(const job_plugin_list_u8_t *data) {
    char text[24], *end;
    if (data->len == 0 || data->len >= sizeof text) return false;
    memcpy(text, data->ptr, data->len);
    text[data->len] = '\0';
    ticks = strtoull(text, &end, 10);
    return *end == '\0';
}

// Leadership begins; `handoff` is NULL where no earlier leader left anything. False, with an error, gives the role up.
bool exports_tenure_plugin_job_elected(exports_tenure_plugin_job_handoff_t *handoff, job_plugin_string_t *error) {
    // What the host passes is ours to free.
    bool understood = handoff == NULL || read_count(&handoff->data);
    if (handoff != NULL) exports_tenure_plugin_job_handoff_free(handoff);
    if (!understood) {
        // What is returned is copied: the bindings free it.
        job_plugin_string_dup(error, "the hand-off is not a number");
        return false;
    }
    char line[80];
    snprintf(line, sizeof line, "elected in term %llu, after %llu ticks",
             (unsigned long long)tenure_plugin_leadership_term(), ticks);
    say(line);
    return true;
}

// One piece of work, and when the next one is wanted.
bool exports_tenure_plugin_job_tick(exports_tenure_plugin_job_next_t *next, job_plugin_string_t *error) {
    (void)error;
    job_plugin_string_t key;
    job_plugin_option_string_t message;
    wasi_config_store_error_t failure;
    job_plugin_string_set(&key, "message");
    char line[200];
    if (wasi_config_store_get(&key, &message, &failure) && message.is_some) {
        snprintf(line, sizeof line, "%.*s %llu", (int)message.val.len, (char *)message.val.ptr, ++ticks);
        job_plugin_option_string_free(&message);
    } else {
        snprintf(line, sizeof line, "tick %llu", ++ticks);
    }
    say(line);
    next->tag = EXPORTS_TENURE_PLUGIN_JOB_NEXT_AFTER;
    next->val.after = 1000;
    return true;
}

// Leadership ends. True, with bytes, hands these to the next leader.
bool exports_tenure_plugin_job_demoted(exports_tenure_plugin_job_reason_t *reason, job_plugin_list_u8_t *handoff) {
    // A fresh instance after a crash has counted nothing.
    bool crashed = reason->tag == EXPORTS_TENURE_PLUGIN_JOB_REASON_CRASHED;
    exports_tenure_plugin_job_reason_free(reason);
    say("demoted");
    if (crashed) return false;
    char *text = NULL;
    int length = asprintf(&text, "%llu", ticks);
    if (length < 0) return false;
    handoff->ptr = (uint8_t *)text;
    handoff->len = (size_t)length;
    return true;
}

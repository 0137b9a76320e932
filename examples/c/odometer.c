// Counts for how many seconds a role has been led, over all its leaders: the count travels in the hand-off. Two hosts that
// counted at once would count twice.

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "job_plugin.h"

enum { TICK_MS = 1000, LINE = 160 };

static unsigned long long seconds;

static void say(const char *line) {
    // The strings are lent to the host for the call.
    job_plugin_string_t context, message;
    job_plugin_string_set(&context, "odometer");
    job_plugin_string_set(&message, line);
    wasi_logging_logging_log(WASI_LOGGING_LOGGING_LEVEL_INFO, &context, &message);
}

// What an earlier leader left, which is not terminated.
static bool read_count(const job_plugin_list_u8_t *data) {
    char text[24], *end;
    if (data->len == 0 || data->len >= sizeof text) return false;
    memcpy(text, data->ptr, data->len);
    text[data->len] = '\0';
    seconds = strtoull(text, &end, 10);
    return *end == '\0';
}

bool exports_tenure_plugin_job_elected(exports_tenure_plugin_job_handoff_t *handoff, job_plugin_string_t *error) {
    seconds = 0;
    // What the host passes is ours to free.
    bool understood = handoff == NULL || read_count(&handoff->data);
    if (handoff != NULL) exports_tenure_plugin_job_handoff_free(handoff);
    if (!understood) {
        // What is returned is copied: the bindings free it.
        job_plugin_string_dup(error, "the hand-off is not a number");
        return false;
    }
    char line[LINE];
    snprintf(line, sizeof line, "elected: led for %llu s so far", seconds);
    say(line);
    return true;
}

bool exports_tenure_plugin_job_tick(exports_tenure_plugin_job_next_t *next, job_plugin_string_t *error) {
    (void)error;
    char line[LINE];
    snprintf(line, sizeof line, "led for %llu s, in term %llu", ++seconds,
             (unsigned long long)tenure_plugin_leadership_term());
    say(line);
    next->tag = EXPORTS_TENURE_PLUGIN_JOB_NEXT_AFTER;
    next->val.after = TICK_MS;
    return true;
}

bool exports_tenure_plugin_job_demoted(exports_tenure_plugin_job_reason_t *reason, job_plugin_list_u8_t *handoff) {
    // A fresh instance after a crash has counted nothing.
    bool crashed = reason->tag == EXPORTS_TENURE_PLUGIN_JOB_REASON_CRASHED;
    exports_tenure_plugin_job_reason_free(reason);
    char line[LINE];
    snprintf(line, sizeof line, "demoted after %llu s", seconds);
    say(line);
    if (crashed) return false;
    char *text = NULL;
    int length = asprintf(&text, "%llu", seconds);
    if (length < 0) return false;
    handoff->ptr = (uint8_t *)text;
    handoff->len = (size_t)length;
    return true;
}

// Counts its ticks, over all leaders of its role.

import leadership from "tenure:plugin/leadership@0.1.0";
import config from "wasi:config/store@0.2.0-rc.1";
import logging from "wasi:logging/logging@0.1.0-draft";

const log = (message) => logging.log("info", "{{name}}", message);

// Set in `elected`: what runs when the module is loaded runs when the component is built.
let message = "tick";
let ticks = 0;

export const job = {
  elected(handoff) {
    message = config.get("message") ?? "tick";
    ticks = handoff ? Number(String.fromCharCode(...handoff.data)) : 0;
    if (!Number.isSafeInteger(ticks)) {
      throw new Error("the hand-off is not a number");
    }
    log(`elected in term ${leadership.term()}, after ${ticks} ticks`);
  },

  tick() {
    ticks += 1;
    log(`${message} ${ticks}`);
    return { tag: "after", val: 1000 };
  },

  demoted(reason) {
    log(`demoted: ${reason.tag}`);
    return reason.tag === "crashed" ? null : Uint8Array.from(String(ticks), (digit) => digit.charCodeAt(0));
  },
};

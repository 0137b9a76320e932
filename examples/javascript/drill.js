// Draws one of some targets at random, again and again, never the same twice in a row: for a drill in which one machine,
// service or zone is to be taken away. Exactly one host may draw.

import leadership from "tenure:plugin/leadership@0.1.0";
import config from "wasi:config/store@0.2.0-rc.1";
import logging from "wasi:logging/logging@0.1.0-draft";
import random from "wasi:random/random@0.2.0";

const log = (message) => logging.log("info", "drill", message);

let targets = [];
let everyMs = 60000;
let last = null;

// Not Math.random(): its state was fixed when the component was built, and every instance draws the same.
function draw(choices) {
  const [a, b, c, d] = random.getRandomBytes(4);
  return choices[(((a << 24) | (b << 16) | (c << 8) | d) >>> 0) % choices.length];
}

// QuickJS has no TextEncoder.
const toBytes = (text) => Uint8Array.from(unescape(encodeURIComponent(text)), (letter) => letter.charCodeAt(0));
const toText = (bytes) => decodeURIComponent(escape(String.fromCharCode(...bytes)));

export const job = {
  elected(handoff) {
    targets = (config.get("targets") ?? "").split(",").map((name) => name.trim()).filter(Boolean);
    if (targets.length < 2) {
      throw new Error("set `targets`: two or more names, with commas between them");
    }
    everyMs = Number(config.get("every_ms") ?? everyMs);
    if (!Number.isInteger(everyMs) || everyMs < 1 || everyMs > 0xffffffff) {
      throw new Error("the setting `every_ms` should be a whole number of milliseconds");
    }
    last = handoff && toText(handoff.data);
    log(`elected: ${targets.length} targets, the last was ${last ?? "none"}`);
  },

  tick() {
    last = draw(targets.filter((target) => target !== last));
    log(`drew ${last} in term ${leadership.term()}`);
    return { tag: "after", val: everyMs };
  },

  demoted(reason) {
    log(`demoted: ${reason.tag}`);
    return last === null ? null : toBytes(last);
  },
};

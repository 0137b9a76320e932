"""Counts its ticks, over all leaders of its role."""

from componentize_py_types import Err
from wit_world import exports
from wit_world.exports.job import Next_After, Reason_Crashed
from wit_world.imports import leadership, logging, store


def log(message):
    logging.log(logging.Level.INFO, "{{name}}", message)


class Counter:
    """What lives as long as a term."""

    def __init__(self, ticks):
        self.message = store.get("message") or "tick"
        self.ticks = ticks

    def tick(self):
        self.ticks += 1
        log(f"{self.message} {self.ticks}")


# Each call from the host gets a `Job` of its own: what is to last longer is kept here.
counter = None


class Job(exports.Job):
    def elected(self, handoff):
        global counter
        if handoff and not handoff.data.isdigit():
            # An ordinary failure. Any other exception is a crash, whose traceback goes to the log.
            raise Err("the hand-off is not a number")
        counter = Counter(int(handoff.data) if handoff else 0)
        log(f"elected in term {leadership.term()}, after {counter.ticks} ticks")

    def tick(self):
        counter.tick()
        return Next_After(1000)

    def demoted(self, reason):
        log(f"demoted: {reason}")
        if counter is None or isinstance(reason, Reason_Crashed):
            return None
        return str(counter.ticks).encode()

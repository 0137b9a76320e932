"""Keeps the newest files of a folder and removes the rest: log files, exports, backups.

Work for one host only: two of them would race for the same files, and would each count what the other removes.
"""

from pathlib import Path

from componentize_py_types import Err
from wit_world import exports
from wit_world.exports.job import Next_After, Reason_Crashed
from wit_world.imports import leadership, logging, store

FOLDER = Path("/data")


def log(message):
    logging.log(logging.Level.INFO, "retention", message)


def setting(key, default):
    text = store.get(key)
    try:
        return default if text is None else type(default)(text)
    except ValueError:
        # What is raised as `Err` is an ordinary error to the host. Anything else that is raised is a crash of the plugin.
        raise Err(f"the setting `{key}` is {text!r}, and should be like {default!r}")


class Retention:
    """What lives as long as a term."""

    def __init__(self, removed):
        self.pattern = setting("pattern", "*")
        self.keep = setting("keep", 5)
        self.every_ms = setting("every_ms", 60_000)
        self.removed = removed

    def run(self):
        files = [file for file in FOLDER.glob(self.pattern) if file.is_file()]
        files.sort(key=lambda file: file.stat().st_mtime, reverse=True)
        for file in files[self.keep :]:
            file.unlink()
            self.removed += 1
            log(f"removed {file.name} in term {leadership.term()}")


# Each call from the host gets a `Job` of its own: what is to last longer is kept here.
retention = None


class Job(exports.Job):
    def elected(self, handoff):
        global retention
        if not FOLDER.is_dir():
            raise Err(f'no {FOLDER}: grant it with dirs = [{{ host = "…", guest = "{FOLDER}", write = true }}]')
        retention = Retention(int(handoff.data) if handoff else 0)
        log(f"elected: keeps {retention.keep} files; {retention.removed} removed so far")

    def tick(self):
        retention.run()
        return Next_After(retention.every_ms)

    def demoted(self, reason):
        log(f"demoted: {reason}")
        if retention is None or isinstance(reason, Reason_Crashed):
            return None
        return str(retention.removed).encode()

-- One row a role: the lease and everything that belongs to it.
CREATE TABLE IF NOT EXISTS lease (
    role         TEXT PRIMARY KEY,
    claim        TEXT,              -- the claim's UUID; NULL where no lease is held
    term         INTEGER NOT NULL,  -- the last term given out
    ends         INTEGER NOT NULL,  -- CLOCK_BOOTTIME, in nanoseconds
    boot         TEXT    NOT NULL,  -- the boot that `ends` belongs to
    released     INTEGER NOT NULL,
    instance     TEXT    NOT NULL,
    admin        TEXT    NOT NULL,
    digest       TEXT    NOT NULL,
    protocol     INTEGER NOT NULL,
    handoff      BLOB,
    handoff_term INTEGER
) STRICT, WITHOUT ROWID;

-- What happened, for people and for the stand-bys: they read on from the last row that they have seen.
CREATE TABLE IF NOT EXISTS history (
    id       INTEGER PRIMARY KEY AUTOINCREMENT,
    role     TEXT    NOT NULL,
    event    TEXT    NOT NULL,      -- elected, released
    term     INTEGER NOT NULL,
    claim    TEXT    NOT NULL,
    instance TEXT    NOT NULL
) STRICT;

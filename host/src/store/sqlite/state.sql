-- One row a key of a role's fenced state.
CREATE TABLE IF NOT EXISTS state (
    id    INTEGER PRIMARY KEY AUTOINCREMENT,  -- where a listing goes on
    role  TEXT NOT NULL,
    key   TEXT NOT NULL,
    value BLOB NOT NULL,
    UNIQUE (role, key)
) STRICT;

-- What the keys and values of each role take, without the host's own.
CREATE TABLE IF NOT EXISTS state_size (
    role  TEXT PRIMARY KEY,
    keys  INTEGER NOT NULL,
    bytes INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

//! The roles' fenced state in a SQLite file, on a connection and a thread of its own.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use async_trait::async_trait;
use rusqlite::{Connection, OptionalExtension, Transaction, params};
use tenure_core::Instant;

use super::file::{begin, explain, run, this_boot};
use super::worker::Worker;
use crate::clock;
use crate::state::{self, Fence, RESERVED, StateError, StateOp, StateReply, StateStore};

/// How long opening may wait for another process that is opening the file too.
const OPEN_WITHIN: Duration = Duration::from_secs(5);
/// The most keys of one answer.
const PAGE: usize = 100;

type Outcome<T> = Result<T, StateError>;

/// The state of the roles of one file.
pub struct SqliteState {
    worker: Worker<StateFile>,
}

/// What an operation is compared with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FencedBy {
    /// The leases in the same file, in the same transaction.
    Leases,
    /// Nothing: the caller has an instance that always leads.
    Caller,
}

impl SqliteState {
    /// The state in the file `path`, which is opened, and made where it is missing, when it is first used.
    ///
    /// # Errors
    ///
    /// Where no thread can be started.
    pub fn new(path: &Path, fenced_by: FencedBy) -> anyhow::Result<Self> {
        let file = StateFile { path: path.to_owned(), fenced_by, open: None };
        Ok(Self { worker: Worker::start("sqlite-state", file)? })
    }
}

#[async_trait]
impl StateStore for SqliteState {
    async fn run(&self, fence: &Fence, op: &StateOp, within: Duration) -> Result<StateReply, StateError> {
        let (fence, op) = (fence.clone(), op.clone());
        self.worker.run(within, move |file| file.run(&fence, &op, within)).await?
    }
}

struct StateFile {
    path: PathBuf,
    fenced_by: FencedBy,
    open: Option<Open>,
}

struct Open {
    connection: Connection,
    boot: String,
}

impl StateFile {
    fn run(&mut self, fence: &Fence, op: &StateOp, within: Duration) -> Outcome<StateReply> {
        let open = match &mut self.open {
            Some(open) => open,
            closed => closed.insert(open(&self.path).map_err(|error| StateError::Unavailable(format!("{error:#}")))?),
        };
        // Less than `within`, so that whoever asked is still there to be told what was waited for.
        open.connection.busy_timeout(within * 3 / 4).map_err(|error| refusal(&error))?;
        // What was changed must survive a power cut.
        let transaction = begin(&mut open.connection, "full")?;
        if self.fenced_by == FencedBy::Leases && !holds(&transaction, &open.boot, fence)? {
            return Err(StateError::Fenced { term: fence.term });
        }
        let reply = carry_out(&transaction, fence.role.as_str(), op)?;
        transaction.commit().map_err(|error| refusal(&error))?;
        Ok(reply)
    }
}

fn open(path: &Path) -> anyhow::Result<Open> {
    let at = || format!("cannot use the SQLite file {}", path.display());
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).with_context(at)?;
    }
    let connection = Connection::open(path).with_context(at)?;
    connection.busy_timeout(OPEN_WITHIN).with_context(at)?;
    connection.pragma_update(None, "journal_mode", "wal").with_context(at)?;
    connection.execute_batch(include_str!("state.sql")).with_context(at)?;
    Ok(Open { connection, boot: this_boot()? })
}

/// Whether the claim holds the lease, in this term.
fn holds(transaction: &Transaction<'_>, boot: &str, fence: &Fence) -> Outcome<bool> {
    let held = transaction
        .prepare_cached("SELECT ends FROM lease WHERE role = ?1 AND claim = ?2 AND term = ?3 AND boot = ?4")
        .and_then(|mut statement| {
            let key = params![fence.role.as_str(), fence.claim.to_string(), fence.term, boot];
            statement.query_row(key, |row| row.get::<_, u64>(0)).optional()
        });
    Ok(held.map_err(|error| refusal(&error))?.is_some_and(|ends| Instant::from_nanos(ends) > clock::now()))
}

fn carry_out(transaction: &Transaction<'_>, role: &str, op: &StateOp) -> Outcome<StateReply> {
    match op {
        StateOp::Get(keys) => {
            let values = keys.iter().map(|key| value(transaction, role, key));
            values.collect::<Outcome<_>>().map(StateReply::Values)
        }
        StateOp::Exists(key) => Ok(StateReply::Found(size(transaction, role, key)?.is_some())),
        StateOp::Keys(after) => page(transaction, role, after.unwrap_or(0)),
        StateOp::Set(entries) => set(transaction, role, entries).map(|()| StateReply::Done),
        StateOp::Delete(keys) => {
            for key in keys {
                if let Some(size) = size(transaction, role, key)? {
                    run(transaction, "DELETE FROM state WHERE role = ?1 AND key = ?2", params![role, key])?;
                    count(transaction, role, key, (-1, -size))?;
                }
            }
            Ok(StateReply::Done)
        }
        StateOp::Increment { key, delta } => {
            let present = value(transaction, role, key)?;
            let number = match &present {
                Some(text) => std::str::from_utf8(text).ok().and_then(|text| text.parse::<i64>().ok()),
                None => Some(0),
            };
            let sum = number.and_then(|number| number.checked_add_unsigned(*delta)).filter(|sum| *sum >= 0);
            let sum = sum.ok_or_else(|| state::no_number(key))?;
            set(transaction, role, &BTreeMap::from([(key.clone(), sum.to_string().into_bytes())]))?;
            Ok(StateReply::Number(sum.unsigned_abs()))
        }
    }
}

fn value(transaction: &Transaction<'_>, role: &str, key: &str) -> Outcome<Option<Vec<u8>>> {
    let found = transaction
        .prepare_cached("SELECT value FROM state WHERE role = ?1 AND key = ?2")
        .and_then(|mut statement| statement.query_row(params![role, key], |row| row.get(0)).optional());
    found.map_err(|error| refusal(&error))
}

/// How many bytes a key takes, with its value; none where it is missing.
fn size(transaction: &Transaction<'_>, role: &str, key: &str) -> Outcome<Option<i64>> {
    let found = transaction
        .prepare_cached("SELECT length(value) FROM state WHERE role = ?1 AND key = ?2")
        .and_then(|mut statement| statement.query_row(params![role, key], |row| row.get::<_, i64>(0)).optional());
    Ok(found.map_err(|error| refusal(&error))?.map(|value| length(key) + value))
}

fn page(transaction: &Transaction<'_>, role: &str, after: u64) -> Outcome<StateReply> {
    let rows = transaction
        .prepare_cached("SELECT id, key FROM state WHERE role = ?1 AND id > ?2 ORDER BY id LIMIT ?3")
        .and_then(|mut statement| {
            let after = i64::try_from(after).unwrap_or(i64::MAX);
            let rows = statement.query_map(params![role, after, PAGE], |row| Ok((row.get(0)?, row.get(1)?)))?;
            rows.collect::<rusqlite::Result<Vec<(u64, String)>>>()
        });
    let rows = rows.map_err(|error| refusal(&error))?;
    let cursor = rows.last().filter(|_| rows.len() == PAGE).map(|(id, _)| *id);
    Ok(StateReply::Keys { keys: rows.into_iter().map(|(_, key)| key).collect(), cursor })
}

fn set(transaction: &Transaction<'_>, role: &str, entries: &BTreeMap<String, Vec<u8>>) -> Outcome<()> {
    for (key, value) in entries {
        let before = size(transaction, role, key)?;
        run(
            transaction,
            "INSERT INTO state (role, key, value) VALUES (?1, ?2, ?3)
             ON CONFLICT (role, key) DO UPDATE SET value = ?3",
            params![role, key, value],
        )?;
        let after = length(key) + i64::try_from(value.len()).unwrap_or(i64::MAX);
        count(transaction, role, key, (i64::from(before.is_none()), after - before.unwrap_or(0)))?;
    }
    // Whoever drops the transaction undoes it.
    let (keys, bytes) = transaction
        .query_row("SELECT keys, bytes FROM state_size WHERE role = ?1", [role], |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()
        .map_err(|error| refusal(&error))?
        .unwrap_or((0, 0));
    if keys > state::MAX_KEYS {
        return Err(state::too_many_keys(keys));
    }
    if bytes > state::MAX_BYTES {
        return Err(state::too_large(bytes));
    }
    Ok(())
}

/// Adds to the count of keys and bytes. The host's own keys count towards nothing.
fn count(transaction: &Transaction<'_>, role: &str, key: &str, (keys, bytes): (i64, i64)) -> Outcome<()> {
    if key.starts_with(RESERVED) {
        return Ok(());
    }
    Ok(run(
        transaction,
        "INSERT INTO state_size (role, keys, bytes) VALUES (?1, ?2, ?3)
         ON CONFLICT (role) DO UPDATE SET keys = keys + ?2, bytes = bytes + ?3",
        params![role, keys, bytes],
    )?)
}

fn length(key: &str) -> i64 {
    i64::try_from(key.len()).unwrap_or(i64::MAX)
}

fn refusal(error: &rusqlite::Error) -> StateError {
    explain(error).into()
}

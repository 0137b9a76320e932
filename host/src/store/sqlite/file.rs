//! The file itself: what each request does to it, on the thread that may block.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use rusqlite::{Connection, OptionalExtension, Transaction, TransactionBehavior, params};
use tenure_core::{ClaimId, ClaimReply, Handoff, Instant, Lasts, Refusal, RefusalReason, ReleaseReply, RenewReply};
use uuid::Uuid;

use super::super::{ClaimAsk, Claimed, Condition, HandoffChange, ReleaseAsk, RenewAsk, StoreError, StoreEvent};
use crate::clock;
use crate::config::RoleName;

/// The version of the tables. A row with a newer one is left alone.
const PROTOCOL: u32 = 1;
/// How many rows of history are kept, about.
const KEPT_HISTORY: i64 = 10_000;
/// How long opening may wait for another process that is opening the file too.
const OPEN_WITHIN: Duration = Duration::from_secs(5);

type Outcome<T> = Result<T, StoreError>;

pub(super) struct LeaseFile {
    connection: Connection,
    boot: String,
    /// The last row of history that was handed on.
    last_event: i64,
    /// SQLite's counter of other processes' commits.
    data_version: i64,
}

/// A row of `lease`.
struct Row {
    claim: Option<ClaimId>,
    term: u64,
    ends: Instant,
    boot: String,
    released: bool,
    protocol: u32,
    handoff: Option<Handoff>,
}

impl LeaseFile {
    pub(super) fn open(path: &Path) -> anyhow::Result<Self> {
        let at = || format!("cannot use the SQLite file {}", path.display());
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).with_context(at)?;
        }
        let connection = Connection::open(path).with_context(at)?;
        connection.busy_timeout(OPEN_WITHIN).with_context(at)?;
        connection.pragma_update(None, "journal_mode", "wal").with_context(at)?;
        connection.execute_batch(include_str!("schema.sql")).with_context(at)?;
        let last_event =
            connection.query_row("SELECT ifnull(max(id), 0) FROM history", [], |row| row.get(0)).with_context(at)?;
        Ok(Self { connection, boot: this_boot()?, last_event, data_version: 0 })
    }

    /// How long the next request may wait for another process's transaction: less than `within`, so that whoever asked is
    /// still there to be told what it waited for.
    pub(super) fn wait_at_most(&self, within: Duration) -> Outcome<()> {
        self.connection.busy_timeout(within * 3 / 4).map_err(|error| explain(&error))
    }

    pub(super) fn claim(&mut self, asks: &[ClaimAsk]) -> Outcome<Vec<Outcome<Claimed>>> {
        // A term that was given out must survive a power cut; everything else ends with the boot anyway.
        let transaction = begin(&mut self.connection, "full")?;
        let replies = asks.iter().map(|ask| claim(&transaction, &self.boot, ask)).collect();
        transaction.commit().map_err(|error| explain(&error))?;
        Ok(replies)
    }

    pub(super) fn renew(&mut self, asks: &[RenewAsk]) -> Outcome<Vec<Outcome<RenewReply>>> {
        let transaction = begin(&mut self.connection, "normal")?;
        let replies = asks
            .iter()
            .map(|ask| {
                let now = clock::now();
                let changed = transaction.execute(
                    "UPDATE lease SET ends = ?1 WHERE role = ?2 AND claim = ?3 AND boot = ?4 AND ends > ?5",
                    params![nanos(now.plus(ask.ttl)), ask.role.as_str(), ask.claim.to_string(), self.boot, nanos(now)],
                );
                let changed = changed.map_err(|error| explain(&error))?;
                Ok(if changed == 1 { RenewReply::Renewed } else { RenewReply::NotYours })
            })
            .collect();
        transaction.commit().map_err(|error| explain(&error))?;
        Ok(replies)
    }

    pub(super) fn release(&mut self, asks: &[ReleaseAsk]) -> Outcome<Vec<Outcome<ReleaseReply>>> {
        let transaction = begin(&mut self.connection, "normal")?;
        let replies = asks.iter().map(|ask| release(&transaction, &self.boot, ask)).collect();
        transaction.commit().map_err(|error| explain(&error))?;
        Ok(replies)
    }

    pub(super) fn settle_handoff(&mut self, role: &RoleName, claim: ClaimId) -> Outcome<()> {
        let settled = self.connection.execute(
            "UPDATE lease SET handoff = NULL, handoff_term = NULL
             WHERE role = ?1 AND claim = ?2 AND boot = ?3 AND ends > ?4",
            params![role.as_str(), claim.to_string(), self.boot, nanos(clock::now())],
        );
        settled.map(drop).map_err(|error| explain(&error))
    }

    /// Whether another process has changed the file since this was asked last.
    pub(super) fn changed_elsewhere(&mut self) -> bool {
        let version = self.connection.pragma_query_value(None, "data_version", |row| row.get(0));
        // A file that can't be read is found out by the next request.
        version.is_ok_and(|version| std::mem::replace(&mut self.data_version, version) != version)
    }

    /// What has happened since this was asked last.
    pub(super) fn new_events(&mut self) -> Vec<StoreEvent> {
        let mut events = Vec::new();
        let read = self
            .connection
            .prepare_cached("SELECT id, role, event, term, claim FROM history WHERE id > ?1 ORDER BY id")
            .and_then(|mut statement| {
                let mut rows = statement.query([self.last_event])?;
                while let Some(row) = rows.next()? {
                    self.last_event = row.get(0)?;
                    events.extend(event(row)?);
                }
                Ok(())
            });
        if let Err(problem) = read {
            tracing::debug!(%problem, "the history can't be read: hand-overs wait for the next look");
        }
        events
    }
}

/// None where the row is not one of ours.
fn event(row: &rusqlite::Row<'_>) -> rusqlite::Result<Option<StoreEvent>> {
    let (role, event, claim): (String, String, String) = (row.get(1)?, row.get(2)?, row.get(4)?);
    let term = row.get(3)?;
    let (Ok(role), Ok(claim)) = (RoleName::new(&role), Uuid::parse_str(&claim)) else { return Ok(None) };
    Ok(match event.as_str() {
        "elected" => Some(StoreEvent::Elected { role, term, claim: ClaimId(claim) }),
        "released" => Some(StoreEvent::Released { role, term }),
        _ => None,
    })
}

/// What tells this boot of the machine from every other.
pub(super) fn this_boot() -> anyhow::Result<String> {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").context("cannot read this boot's id")?;
    Ok(boot.trim().to_owned())
}

/// A transaction that has the file's write lock from its beginning.
pub(super) fn begin<'c>(connection: &'c mut Connection, synchronous: &str) -> Outcome<Transaction<'c>> {
    connection.pragma_update(None, "synchronous", synchronous).map_err(|error| explain(&error))?;
    connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(|error| explain(&error))
}

fn claim(transaction: &Transaction<'_>, boot: &str, ask: &ClaimAsk) -> Outcome<Claimed> {
    let now = clock::now();
    let row = read(transaction, &ask.role)?;
    let term = row.as_ref().map_or(0, |row| row.term);
    let refused =
        |reason, left| Ok(Claimed { reply: ClaimReply::Refused(Refusal { reason, term, left }), handoff: None });
    if let Some(row) = &row {
        if row.protocol > PROTOCOL {
            return Err(StoreError::Refused {
                condition: Condition::NewerProtocol,
                detail: format!(
                    "role {} is kept by a newer Tenure (protocol {}, this one has {PROTOCOL}): leaving it alone; update this host",
                    ask.role, row.protocol
                ),
            });
        }
        let runs = row.boot == boot && row.ends > now;
        match row.claim {
            Some(by) if runs && by == ask.claim => {
                let ends = nanos(now.plus(ask.ttl));
                run(transaction, "UPDATE lease SET ends = ?1 WHERE role = ?2", params![ends, ask.role.as_str()])?;
                return Ok(granted(term, row.handoff.clone()));
            }
            Some(by) if runs => return refused(RefusalReason::Held { by }, row.ends.since(now)),
            None if runs && !row.released => return refused(RefusalReason::Vanished, row.ends.since(now)),
            _ => {}
        }
    }
    if term < ask.seen_term {
        // From here on it looks like a lease that vanished, and is waited out by everybody.
        let lifted = Written { claim: None, term: ask.seen_term, ends: now.plus(ask.ttl) };
        write(transaction, boot, ask, &lifted)?;
        return refused(RefusalReason::Behind, ask.ttl);
    }
    let term = term + 1;
    write(transaction, boot, ask, &Written { claim: Some(ask.claim), term, ends: now.plus(ask.ttl) })?;
    log(transaction, &ask.role, "elected", term, ask.claim, &ask.holder.instance)?;
    Ok(granted(term, row.and_then(|row| row.handoff)))
}

fn granted(term: u64, handoff: Option<Handoff>) -> Claimed {
    Claimed { reply: ClaimReply::Granted { term, lasts: Lasts::Ttl }, handoff }
}

fn release(transaction: &Transaction<'_>, boot: &str, ask: &ReleaseAsk) -> Outcome<ReleaseReply> {
    let Some(row) = read(transaction, &ask.role)? else { return Ok(ReleaseReply::NotYours) };
    if row.claim != Some(ask.claim) || row.boot != boot || row.ends <= clock::now() {
        return Ok(ReleaseReply::NotYours);
    }
    let role = ask.role.as_str();
    run(transaction, "UPDATE lease SET claim = NULL, released = 1 WHERE role = ?1", params![role])?;
    let change = "UPDATE lease SET handoff = ?1, handoff_term = ?2 WHERE role = ?3";
    match &ask.handoff {
        HandoffChange::Keep => {}
        HandoffChange::Clear => run(transaction, change, params![None::<Vec<u8>>, None::<u64>, role])?,
        HandoffChange::Put(Handoff { term, data }) => run(transaction, change, params![data, term, role])?,
    }
    log(transaction, &ask.role, "released", row.term, ask.claim, "")?;
    Ok(ReleaseReply::Released)
}

fn read(transaction: &Transaction<'_>, role: &RoleName) -> Outcome<Option<Row>> {
    let mut statement = transaction
        .prepare_cached(
            "SELECT claim, term, ends, boot, released, protocol, handoff, handoff_term FROM lease WHERE role = ?1",
        )
        .map_err(|error| explain(&error))?;
    let row = statement.query_row([role.as_str()], |row| {
        let claim: Option<String> = row.get(0)?;
        let (handoff, handoff_term): (Option<Vec<u8>>, Option<u64>) = (row.get(6)?, row.get(7)?);
        Ok(Row {
            claim: claim.and_then(|claim| Uuid::parse_str(&claim).ok()).map(ClaimId),
            term: row.get(1)?,
            ends: Instant::from_nanos(row.get(2)?),
            boot: row.get(3)?,
            released: row.get(4)?,
            protocol: row.get(5)?,
            handoff: handoff.zip(handoff_term).map(|(data, term)| Handoff { term, data }),
        })
    });
    row.optional().map_err(|error| explain(&error))
}

struct Written {
    claim: Option<ClaimId>,
    term: u64,
    ends: Instant,
}

/// Writes who holds the lease from now on. The hand-off stays as it is.
fn write(transaction: &Transaction<'_>, boot: &str, ask: &ClaimAsk, written: &Written) -> Outcome<()> {
    run(
        transaction,
        "INSERT INTO lease (role, claim, term, ends, boot, released, instance, admin, digest, protocol)
         VALUES (?1, ?2, ?3, ?4, ?5, 0, ?6, ?7, ?8, ?9)
         ON CONFLICT (role) DO UPDATE SET claim = ?2, term = ?3, ends = ?4, boot = ?5, released = 0, instance = ?6,
             admin = ?7, digest = ?8, protocol = ?9",
        params![
            ask.role.as_str(),
            written.claim.map(|claim| claim.to_string()),
            written.term,
            nanos(written.ends),
            boot,
            ask.holder.instance,
            ask.holder.admin,
            ask.holder.digest,
            PROTOCOL,
        ],
    )
}

fn log(
    transaction: &Transaction<'_>,
    role: &RoleName,
    event: &str,
    term: u64,
    claim: ClaimId,
    instance: &str,
) -> Outcome<()> {
    run(
        transaction,
        "INSERT INTO history (role, event, term, claim, instance) VALUES (?1, ?2, ?3, ?4, ?5)",
        params![role.as_str(), event, term, claim.to_string(), instance],
    )?;
    let oldest = transaction.last_insert_rowid() - KEPT_HISTORY;
    run(transaction, "DELETE FROM history WHERE id < ?1", params![oldest])
}

pub(super) fn run(transaction: &Transaction<'_>, sql: &str, values: impl rusqlite::Params) -> Outcome<()> {
    let ran = transaction.prepare_cached(sql).and_then(|mut statement| statement.execute(values));
    ran.map(drop).map_err(|error| explain(&error))
}

/// SQLite's integers are signed. The boot clock reaches their end after 292 years.
fn nanos(at: Instant) -> i64 {
    i64::try_from(at.as_nanos()).unwrap_or(i64::MAX)
}

/// What an error means, and what to do about it.
pub(super) fn explain(error: &rusqlite::Error) -> StoreError {
    use rusqlite::ErrorCode;
    let (condition, advice) = match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
            (Condition::Busy, "another process holds its write lock: look who has the file open")
        }
        Some(ErrorCode::ReadOnly | ErrorCode::PermissionDenied | ErrorCode::CannotOpen) => {
            (Condition::ReadOnly, "let this user write the file and its folder")
        }
        Some(ErrorCode::DiskFull) => (Condition::OutOfMemory, "the disk is full: free some of it"),
        Some(ErrorCode::NotADatabase | ErrorCode::DatabaseCorrupt) => {
            (Condition::WrongType, "it is no SQLite database, or a broken one: move it away")
        }
        _ => (Condition::Other, "the words are SQLite's own"),
    };
    StoreError::Refused { condition, detail: format!("the SQLite file refuses: {error}; {advice}") }
}

//! Leases in Redis (6.2 and later) or Valkey.
//!
//! All keys of a role share the hash tag `{ROLE}`, so that they live on one node of a cluster. Every change is one Lua
//! script in a file of its own, run by its digest, and loaded again when the server has forgotten it.

mod conditions;
mod link;
mod server;
mod state;

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use async_trait::async_trait;
use redis::{ConnectionInfo, FromRedisValue, IntoConnectionInfo, Value};
use tenure_core::{ClaimId, ClaimReply, Handoff, Lasts, Refusal, RefusalReason, ReleaseReply, RenewReply};
use tokio::sync::broadcast;
use uuid::Uuid;

use self::server::{Lua, Server};
use self::state::RedisState;
use super::{ClaimAsk, Claimed, Condition, HandoffChange, ReleaseAsk, RenewAsk, Store, StoreError, StoreEvent};
use crate::config::RoleName;
use crate::state::StateStore;

/// The version of the keys' layout. An instance that finds a newer one leaves the role alone.
const PROTOCOL: u32 = 1;
/// How many events a watcher may fall behind.
const EVENTS: usize = 4_096;

/// Leases in one Redis server.
pub struct RedisStore {
    server: Server,
    state: Arc<RedisState>,
    described: String,
    channel: String,
    events: broadcast::Sender<StoreEvent>,
    claim: Lua,
    renew: Lua,
    release: Lua,
    settle: Lua,
}

impl RedisStore {
    /// A store at `url` (`redis://`, `rediss://` or `unix://`) with keys that start with `prefix`. Connects when first
    /// used.
    ///
    /// # Errors
    ///
    /// Where the URL is not one.
    pub fn new(url: &str, prefix: &str) -> anyhow::Result<Self> {
        // The URL itself may hold a password, and stays out of the words.
        let info: ConnectionInfo = url.into_connection_info().context("not a Redis URL")?;
        let described = format!("redis at {}", info.addr());
        let channel = format!("{prefix}:events");
        let events = broadcast::Sender::new(EVENTS);
        Ok(Self {
            // A connection of its own: a plugin that writes megabytes must not hold up a renewal.
            state: Arc::new(RedisState::new(info.clone(), prefix)?),
            server: Server::new(info, prefix, Some((channel.clone(), events.clone())))?,
            described,
            channel,
            events,
            claim: Lua::new(include_str!("redis/claim.lua")),
            renew: Lua::new(include_str!("redis/renew.lua")),
            release: Lua::new(include_str!("redis/release.lua")),
            settle: Lua::new(include_str!("redis/settle.lua")),
        })
    }
}

/// Whole milliseconds, rounded up: a lease must not be shorter in the store than the instance trusts.
fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

#[async_trait]
impl Store for RedisStore {
    fn describe(&self) -> String {
        self.described.clone()
    }

    async fn claim(&self, asks: &[ClaimAsk], within: Duration) -> Vec<Result<Claimed, StoreError>> {
        let calls = asks.iter().map(|ask| {
            let keys = ["lease", "term", "holder", "handoff", "history"].map(|what| self.server.key(&ask.role, what));
            let mut call = self.claim.call(&keys);
            call.arg(ask.claim.to_string()).arg(ms(ask.ttl)).arg(ask.seen_term);
            call.arg(&ask.holder.instance).arg(&ask.holder.admin).arg(&ask.holder.digest);
            call.arg(&self.channel).arg(ask.role.as_str()).arg(PROTOCOL);
            (&ask.role, call)
        });
        let replies = self.server.run(&self.claim, calls.collect(), within).await;
        asks.iter().zip(replies).map(|(ask, reply)| self.claimed(ask, &reply?)).collect()
    }

    async fn renew(&self, asks: &[RenewAsk], within: Duration) -> Vec<Result<RenewReply, StoreError>> {
        let calls = asks.iter().map(|ask| {
            let keys = ["lease", "holder"].map(|what| self.server.key(&ask.role, what));
            let mut call = self.renew.call(&keys);
            call.arg(ask.claim.to_string()).arg(ms(ask.ttl));
            (&ask.role, call)
        });
        let replies = self.server.run(&self.renew, calls.collect(), within).await;
        replies.into_iter().map(|reply| done(&reply?, RenewReply::Renewed, RenewReply::NotYours)).collect()
    }

    async fn release(&self, asks: &[ReleaseAsk], within: Duration) -> Vec<Result<ReleaseReply, StoreError>> {
        let calls = asks.iter().map(|ask| {
            let keys = ["lease", "holder", "handoff", "history"].map(|what| self.server.key(&ask.role, what));
            let mut call = self.release.call(&keys);
            call.arg(ask.claim.to_string()).arg(&self.channel).arg(ask.role.as_str());
            match &ask.handoff {
                HandoffChange::Keep => call.arg("keep"),
                HandoffChange::Clear => call.arg("clear"),
                HandoffChange::Put(handoff) => call.arg("put").arg(write_handoff(handoff)),
            };
            (&ask.role, call)
        });
        let replies = self.server.run(&self.release, calls.collect(), within).await;
        replies.into_iter().map(|reply| done(&reply?, ReleaseReply::Released, ReleaseReply::NotYours)).collect()
    }

    async fn settle_handoff(&self, role: &RoleName, claim: ClaimId, within: Duration) -> Result<(), StoreError> {
        let keys = ["lease", "handoff"].map(|what| self.server.key(role, what));
        let mut call = self.settle.call(&keys);
        call.arg(claim.to_string());
        self.server
            .run(&self.settle, vec![(role, call)], within)
            .await
            .into_iter()
            .try_for_each(|reply| reply.map(drop))
    }

    fn watch(&self) -> broadcast::Receiver<StoreEvent> {
        self.events.subscribe()
    }

    fn state(&self) -> Arc<dyn StateStore> {
        self.state.clone()
    }
}

impl RedisStore {
    /// What `claim.lua` returned.
    fn claimed(&self, ask: &ClaimAsk, value: &Value) -> Result<Claimed, StoreError> {
        let Value::Array(fields) = value else { return Err(unexpected(value)) };
        let text = |at: usize| fields.get(at).and_then(|field| String::from_redis_value_ref(field).ok());
        let number = |at: usize| fields.get(at).and_then(|field| u64::from_redis_value_ref(field).ok());
        let refused = |reason| {
            let (term, left) = (number(1).ok_or_else(|| unexpected(value))?, number(2).unwrap_or(0));
            let refusal = Refusal { reason, term, left: Duration::from_millis(left) };
            Ok(Claimed { reply: ClaimReply::Refused(refusal), handoff: None })
        };
        let lease = self.server.key(&ask.role, "lease");
        match text(0).as_deref() {
            Some("granted") => {
                let term = number(1).ok_or_else(|| unexpected(value))?;
                let handoff = match fields.get(2) {
                    Some(Value::BulkString(bytes)) => read_handoff(bytes),
                    _ => None,
                };
                Ok(Claimed { reply: ClaimReply::Granted { term, lasts: Lasts::Ttl }, handoff })
            }
            Some("held") => {
                let by = text(3).and_then(|by| Uuid::parse_str(&by).ok()).ok_or_else(|| StoreError::Refused {
                    condition: Condition::WrongType,
                    detail: format!("the lease key {lease} holds no claim: something else wrote it; DEL it, or set another store.prefix"),
                })?;
                refused(RefusalReason::Held { by: ClaimId(by) })
            }
            Some("vanished") => refused(RefusalReason::Vanished),
            Some("behind") => refused(RefusalReason::Behind),
            Some("no-expiry") => Err(StoreError::Refused {
                condition: Condition::NoExpiry,
                detail: format!("the lease key {lease} never runs out: something other than Tenure wrote it; DEL it"),
            }),
            Some("newer") => Err(StoreError::Refused {
                condition: Condition::NewerProtocol,
                detail: format!(
                    "role {} is kept by a newer Tenure (protocol {}, this one has {PROTOCOL}): leaving it alone; update this host",
                    ask.role,
                    text(1).unwrap_or_default()
                ),
            }),
            _ => Err(unexpected(value)),
        }
    }
}

/// What a script returned that says with 1 or 0 whether the claim held the lease, and so whether it was done.
fn done<R>(value: &Value, held: R, not_yours: R) -> Result<R, StoreError> {
    match value {
        Value::Int(1) => Ok(held),
        Value::Int(_) => Ok(not_yours),
        other => Err(unexpected(other)),
    }
}

fn unexpected(value: &Value) -> StoreError {
    StoreError::Refused {
        condition: Condition::Other,
        detail: format!("the store gave an answer that none of our scripts gives: {value:?}"),
    }
}

/// One string: the term in decimal, a space, and the plugin's bytes.
fn write_handoff(handoff: &Handoff) -> Vec<u8> {
    let mut bytes = format!("{} ", handoff.term).into_bytes();
    bytes.extend_from_slice(&handoff.data);
    bytes
}

/// None where it is not one of ours: then there is nothing to hand over.
fn read_handoff(bytes: &[u8]) -> Option<Handoff> {
    let space = bytes.iter().position(|byte| *byte == b' ')?;
    let term = std::str::from_utf8(&bytes[..space]).ok()?.parse().ok()?;
    Some(Handoff { term, data: bytes[space + 1..].to_vec() })
}

/// `elected ROLE TERM CLAIM` or `released ROLE TERM`; none where it is something else.
fn parse_event(message: &[u8]) -> Option<StoreEvent> {
    let mut words = std::str::from_utf8(message).ok()?.split(' ');
    let (event, role, term) = (words.next()?, RoleName::new(words.next()?).ok()?, words.next()?.parse().ok()?);
    match event {
        "elected" => Some(StoreEvent::Elected { role, term, claim: ClaimId(Uuid::parse_str(words.next()?).ok()?) }),
        "released" => Some(StoreEvent::Released { role, term }),
        _ => None,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn a_handoff_survives_the_store() {
        let handoff = Handoff { term: 41, data: b"a b \xff".to_vec() };
        assert_eq!(read_handoff(&write_handoff(&handoff)), Some(handoff));
        assert_eq!(read_handoff(b"not ours"), None);
    }

    #[test]
    fn events_are_read_and_nonsense_is_not() {
        let role = RoleName::new("sweeper").expect("a name");
        assert_eq!(parse_event(b"released sweeper 7"), Some(StoreEvent::Released { role, term: 7 }));
        for nonsense in ["", "released", "released sweeper", "elected sweeper 7 me", "released Sweeper 7", "\u{0}"] {
            assert_eq!(parse_event(nonsense.as_bytes()), None, "{nonsense}");
        }
    }

    #[test]
    fn a_password_is_not_described() {
        let store = RedisStore::new("redis://:secret@localhost:6379/2", "tenure").expect("a URL");
        assert_eq!(store.describe(), "redis at localhost:6379");
    }
}

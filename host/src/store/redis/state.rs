//! The roles' fenced state: one hash a role, which only the holder of the lease can change.

use std::time::Duration;

use async_trait::async_trait;
use redis::{ConnectionInfo, FromRedisValue, RedisError, Value};

use super::server::{Lua, Server};
use super::unexpected;
use crate::state::{self, Fence, StateError, StateOp, StateReply, StateStore};

pub(super) struct RedisState {
    server: Server,
    script: Lua,
}

impl RedisState {
    pub(super) fn new(info: ConnectionInfo, prefix: &str) -> Result<Self, RedisError> {
        Ok(Self { server: Server::new(info, prefix, None)?, script: Lua::new(include_str!("state.lua")) })
    }
}

#[async_trait]
impl StateStore for RedisState {
    async fn run(&self, fence: &Fence, op: &StateOp, within: Duration) -> Result<StateReply, StateError> {
        let keys = ["lease", "term", "state"].map(|what| self.server.key(&fence.role, what));
        let mut call = self.script.call(&keys);
        call.arg(fence.claim.to_string()).arg(fence.term).arg(state::MAX_KEYS).arg(state::MAX_BYTES);
        match op {
            StateOp::Get(keys) => call.arg("get").arg(keys),
            StateOp::Exists(key) => call.arg("exists").arg(key),
            StateOp::Keys(cursor) => call.arg("keys").arg(cursor.unwrap_or(0)),
            StateOp::Set(entries) => {
                call.arg("set");
                entries.iter().fold(&mut call, |call, (key, value)| call.arg(key).arg(value))
            }
            StateOp::Delete(keys) => call.arg("delete").arg(keys),
            StateOp::Increment { key, delta } => call.arg("increment").arg(key).arg(delta),
        };
        let replies = self.server.run(&self.script, vec![(&fence.role, call)], within).await;
        let value = replies.into_iter().next().unwrap_or(Ok(Value::Nil))?;
        read(fence, op, value)
    }
}

/// What `state.lua` returned.
fn read(fence: &Fence, op: &StateOp, value: Value) -> Result<StateReply, StateError> {
    let Value::Array(mut fields) = value else { return Err(unexpected(&value).into()) };
    let rest = fields.split_off(1.min(fields.len()));
    let kind = fields.first().and_then(|kind| String::from_redis_value_ref(kind).ok()).unwrap_or_default();
    let number = || rest.first().and_then(|number| u64::from_redis_value_ref(number).ok());
    match (kind.as_str(), op) {
        ("fenced", _) => Err(StateError::Fenced { term: fence.term }),
        ("too-many", _) => Err(state::too_many_keys(number().unwrap_or(0))),
        ("too-large", _) => Err(state::too_large(number().unwrap_or(0))),
        ("no-number", StateOp::Increment { key, .. }) => Err(state::no_number(key)),
        ("done", _) => Ok(StateReply::Done),
        ("found", _) => Ok(StateReply::Found(number() == Some(1))),
        ("sum", _) => number().map(StateReply::Number).ok_or_else(|| unexpected(&Value::Array(rest)).into()),
        ("values", _) => {
            let bytes = |value| match value {
                Value::BulkString(bytes) => Some(bytes),
                _ => None,
            };
            Ok(StateReply::Values(rest.into_iter().map(bytes).collect()))
        }
        ("keys", _) => {
            let cursor = number().filter(|cursor| *cursor != 0);
            let keys = rest.iter().skip(1).filter_map(|key| String::from_redis_value_ref(key).ok()).collect();
            Ok(StateReply::Keys { keys, cursor })
        }
        _ => Err(unexpected(&Value::Array(rest)).into()),
    }
}

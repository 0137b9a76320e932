//! Scripts on the server, over one connection: run by their digests, and loaded again when the server has forgotten them.

use std::time::Duration;

use redis::{Cmd, ConnectionInfo, Pipeline, RedisError, Script, Value};
use tokio::sync::broadcast;

use super::link::Link;
use super::{StoreError, StoreEvent, conditions};
use crate::clock;
use crate::config::RoleName;

pub(super) struct Server {
    link: Link,
    prefix: String,
}

/// A script, and the digest that the server knows it by.
pub(super) struct Lua {
    source: &'static str,
    digest: String,
}

impl Lua {
    pub(super) fn new(source: &'static str) -> Self {
        Self { source, digest: Script::new(source).get_hash().to_owned() }
    }

    /// `EVALSHA`, to which the arguments are added.
    pub(super) fn call(&self, keys: &[String]) -> Cmd {
        let mut command = redis::cmd("EVALSHA");
        command.arg(&self.digest).arg(keys.len()).arg(keys);
        command
    }
}

impl Server {
    /// The server at `info`, with keys that start with `prefix`. Connects when first used; what is published on the
    /// channel of `events` is handed on there.
    pub(super) fn new(
        info: ConnectionInfo,
        prefix: &str,
        events: Option<(String, broadcast::Sender<StoreEvent>)>,
    ) -> Result<Self, RedisError> {
        Ok(Self { link: Link::new(info, events)?, prefix: prefix.to_owned() })
    }

    /// The key of a role that holds `what`.
    pub(super) fn key(&self, role: &RoleName, what: &str) -> String {
        format!("{}:{{{role}}}:{what}", self.prefix)
    }

    /// Runs one script for each of `calls`, in one round trip, and in one more for those that the server had forgotten.
    pub(super) async fn run(
        &self,
        script: &Lua,
        calls: Vec<(&RoleName, Cmd)>,
        within: Duration,
    ) -> Vec<Result<Value, StoreError>> {
        let (mut roles, mut pipeline) = (Vec::with_capacity(calls.len()), Pipeline::with_capacity(calls.len()));
        for (role, call) in calls {
            roles.push(role);
            pipeline.add_command(call);
        }
        let began = clock::now();
        let values = match self.link.send(&pipeline, within).await {
            Ok(values) => values,
            Err(error) => return vec![Err(error); roles.len()],
        };
        let (mut replies, mut forgotten) = (Vec::with_capacity(roles.len()), Vec::new());
        for (at, (value, role)) in values.into_iter().zip(&roles).enumerate() {
            let reply = value.extract_error();
            if is_forgotten(&reply) {
                forgotten.push(at);
            }
            replies.push(reply.map_err(|error| self.refusal(&error, role)));
        }
        if !forgotten.is_empty() {
            let left = within.saturating_sub(clock::now().since(began));
            let commands: Vec<&Cmd> = pipeline.cmd_iter().collect();
            let again = forgotten.iter().map(|at| (roles[*at], commands[*at].clone())).collect();
            for (at, reply) in forgotten.into_iter().zip(self.load_and_run(script, again, left).await) {
                replies[at] = reply;
            }
        }
        replies
    }

    /// Runs calls of a script that the server has forgotten.
    async fn load_and_run(
        &self,
        script: &Lua,
        calls: Vec<(&RoleName, Cmd)>,
        within: Duration,
    ) -> Vec<Result<Value, StoreError>> {
        let (mut roles, mut pipeline) = (Vec::with_capacity(calls.len()), Pipeline::with_capacity(calls.len() + 1));
        pipeline.add_command(redis::cmd("SCRIPT").arg("LOAD").arg(script.source).to_owned());
        for (role, call) in calls {
            roles.push(role);
            pipeline.add_command(call);
        }
        let mut values = match self.link.send(&pipeline, within).await {
            Ok(values) => values.into_iter().map(Value::extract_error),
            Err(error) => return vec![Err(error); roles.len()],
        };
        // Why it can't be loaded is the cause; that it is missing is what follows.
        let loaded = values.next().transpose();
        let replies = roles.into_iter().zip(values).map(|(role, reply)| {
            let reply = loaded.as_ref().map_err(RedisError::clone).and(reply);
            reply.map_err(|error| self.refusal(&error, role))
        });
        replies.collect()
    }

    fn refusal(&self, error: &RedisError, role: &RoleName) -> StoreError {
        conditions::of_server(error, &self.key(role, "*"))
    }
}

fn is_forgotten(reply: &Result<Value, RedisError>) -> bool {
    use redis::{ErrorKind, ServerErrorKind};
    matches!(reply, Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript))
}

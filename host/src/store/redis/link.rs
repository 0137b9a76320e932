//! A connection to the server: requests, and what it pushes.
//!
//! A connection on which a request timed out or broke is dropped, and the next request connects anew: on a network that
//! swallows packets, a connection can look alive for a quarter of an hour.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, ConnectionInfo, ErrorKind, Pipeline, ProtocolVersion, PushInfo,
    PushKind, RedisError, Value,
};
use tenure_core::Instant;
use tokio::sync::broadcast;

use super::{StoreError, StoreEvent, conditions, parse_event};
use crate::{clock, words};

/// After a failed connect, requests fail with its error for this long: so that a thousand roles do not hammer a dead
/// server with a thousand connects.
const RECONNECT_PAUSE: Duration = Duration::from_millis(50);

pub(super) struct Link {
    client: Client,
    /// The channel that is listened to, and where its events go.
    events: Option<(String, broadcast::Sender<StoreEvent>)>,
    /// Never held across a wait: a request that has timed out drops its connection at once, whoever is connecting anew.
    open: Mutex<Option<Open>>,
    /// Held by the one request that connects.
    connecting: tokio::sync::Mutex<Connecting>,
}

#[derive(Default)]
struct Connecting {
    /// Counts connections, so that a failure drops the one that it happened on and not its successor.
    generation: u64,
    failed: Option<(Instant, StoreError)>,
}

#[derive(Clone)]
struct Open {
    connection: MultiplexedConnection,
    generation: u64,
}

impl Link {
    /// A link that connects when first used.
    pub(super) fn new(
        info: ConnectionInfo,
        events: Option<(String, broadcast::Sender<StoreEvent>)>,
    ) -> Result<Self, RedisError> {
        // Pushes on the connection that the requests use need protocol 3.
        let settings = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
        let client = Client::open(info.set_redis_settings(settings))?;
        Ok(Self { client, events, open: Mutex::default(), connecting: tokio::sync::Mutex::default() })
    }

    /// Sends all commands at once, and returns one value for each, which may be an error of the server's.
    pub(super) async fn send(&self, commands: &Pipeline, within: Duration) -> Result<Vec<Value>, StoreError> {
        let mut generation = None;
        let sent = tokio::time::timeout(within, async {
            let mut open = self.open().await?;
            generation = Some(open.generation);
            open.connection
                .send_packed_commands(commands, 0, commands.len())
                .await
                .map_err(|error| conditions::of_connection(&error))
        });
        let outcome = match sent.await {
            Ok(outcome) => outcome,
            Err(_) if generation.is_none() => Err(self.not_connected(within)),
            Err(_) => Err(StoreError::TimedOut(within)),
        };
        if let (Err(_), Some(generation)) = (&outcome, generation) {
            self.present().take_if(|open| open.generation == generation);
        }
        outcome
    }

    /// The store was not even connected to in time.
    fn not_connected(&self, within: Duration) -> StoreError {
        let perhaps = match self.client.get_connection_info().addr() {
            ConnectionAddr::TcpTls { .. } => "stopped, cut off, or speaks no TLS on this port",
            _ => "stopped or cut off",
        };
        StoreError::Unreachable(format!("no connection within {}: it is {perhaps}", words::duration(within)))
    }

    fn present(&self) -> MutexGuard<'_, Option<Open>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The present connection, or a new one.
    async fn open(&self) -> Result<Open, StoreError> {
        if let Some(open) = self.present().clone() {
            return Ok(open);
        }
        let mut connecting = self.connecting.lock().await;
        // Whoever held this lock until now may have connected.
        if let Some(open) = self.present().clone() {
            return Ok(open);
        }
        if let Some((at, error)) = &connecting.failed
            && clock::now() < at.plus(RECONNECT_PAUSE)
        {
            return Err(error.clone());
        }
        match self.connect().await {
            Ok(connection) => {
                connecting.failed = None;
                connecting.generation += 1;
                let open = Open { connection, generation: connecting.generation };
                *self.present() = Some(open.clone());
                Ok(open)
            }
            Err(error) => {
                let error = conditions::of_connection(&error);
                connecting.failed = Some((clock::now(), error.clone()));
                Err(error)
            }
        }
    }

    async fn connect(&self) -> Result<MultiplexedConnection, RedisError> {
        // Whoever asks bounds the time: here are no time-outs of the library's own.
        let config = AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
        let Some((channel, events)) = self.events.clone() else {
            return self.client.get_multiplexed_async_connection_with_config(&config).await;
        };
        let push = move |push: PushInfo| {
            if push.kind == PushKind::Message
                && let [_, Value::BulkString(message)] = push.data.as_slice()
                && let Some(event) = parse_event(message)
            {
                // Without a watcher there is nobody to tell.
                let _ = events.send(event);
            }
            Ok::<(), std::convert::Infallible>(())
        };
        let config = config.set_push_sender(push);
        let mut connection = self.client.get_multiplexed_async_connection_with_config(&config).await?;
        match connection.subscribe(&channel).await {
            // Without the channel the instance leads and follows all the same, only slower.
            Err(error) if error.kind() == ErrorKind::Server(redis::ServerErrorKind::NoPerm) => {
                tracing::warn!(%channel, "no permission to subscribe: hand-overs wait for the next look");
            }
            other => other?,
        }
        Ok(connection)
    }
}

//! What a server's errors mean for a lease, and what to do about them.

use redis::{ErrorKind, RedisError, ServerErrorKind};

use super::super::{Condition, StoreError};

/// An error of the connection, or of setting it up.
pub(super) fn of_connection(error: &RedisError) -> StoreError {
    match error.kind() {
        ErrorKind::AuthenticationFailed => refused(Condition::Auth, error),
        ErrorKind::RESP3NotSupported => StoreError::Refused {
            condition: Condition::Other,
            detail: format!(
                "the server does not speak protocol 3 ({error}): Tenure needs Redis 6.2 or later, or Valkey"
            ),
        },
        ErrorKind::Server(_) => of_server(error),
        _ => StoreError::Unreachable(with_causes(error)),
    }
}

/// An error that the server answered with.
pub(super) fn of_server(error: &RedisError) -> StoreError {
    let condition = match error.kind() {
        ErrorKind::Server(kind) => match kind {
            ServerErrorKind::ReadOnly => Condition::ReadOnly,
            ServerErrorKind::NoPerm => Condition::NoPermission,
            ServerErrorKind::BusyLoading | ServerErrorKind::MasterDown => Condition::Loading,
            ServerErrorKind::Moved
            | ServerErrorKind::Ask
            | ServerErrorKind::CrossSlot
            | ServerErrorKind::ClusterDown => Condition::Moved,
            _ => by_code(error),
        },
        ErrorKind::AuthenticationFailed => Condition::Auth,
        _ => by_code(error),
    };
    refused(condition, error)
}

fn by_code(error: &RedisError) -> Condition {
    match error.code() {
        Some("OOM") => Condition::OutOfMemory,
        Some("BUSY") => Condition::Busy,
        Some("WRONGTYPE") => Condition::WrongType,
        Some("NOAUTH" | "WRONGPASS") => Condition::Auth,
        Some("NOREPLICAS" | "MISCONF") => Condition::ReadOnly,
        _ => Condition::Other,
    }
}

fn refused(condition: Condition, error: &RedisError) -> StoreError {
    let advice = match condition {
        Condition::WrongType => {
            "a key of this role has a type that Tenure never writes: look with TYPE, and DEL it or set another store.prefix"
        }
        Condition::OutOfMemory => "the server is at `maxmemory` and evicts nothing: raise it, or free memory",
        Condition::ReadOnly => {
            "the server takes no writes: point store.url at the primary, or look at its disk and replicas"
        }
        Condition::NoPermission => {
            "let this user run EVALSHA, SCRIPT LOAD and the commands in host/src/store/redis/*.lua on the keys of store.prefix"
        }
        Condition::Auth => "check the user and password in store.url",
        Condition::Busy => "another client's script blocks the server: SCRIPT KILL ends one that has not written yet",
        Condition::Loading => "the server is still loading its data: wait",
        Condition::Moved => {
            "the server is a cluster node that does not hold this key: point store.url at the one that does"
        }
        Condition::NoExpiry | Condition::NewerProtocol | Condition::Other => "the words are the server's own",
    };
    StoreError::Refused { condition, detail: format!("the store refuses: {error}; {advice}") }
}

/// An error and what is behind it: "connection refused" stands in the last cause.
fn with_causes(error: &RedisError) -> String {
    let mut words = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        let more = error.to_string();
        if !words.contains(&more) {
            words.push_str(": ");
            words.push_str(&more);
        }
        cause = error.source();
    }
    words
}

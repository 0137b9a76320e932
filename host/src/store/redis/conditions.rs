//! What a server's errors mean for a lease, and what to do about them.

use redis::{ErrorKind, RedisError};

use super::super::{Condition, StoreError};

/// An error of the connection, or of setting it up.
pub(super) fn of_connection(error: &RedisError) -> StoreError {
    match error.kind() {
        ErrorKind::AuthenticationFailed => refused(Condition::Auth, error, ""),
        ErrorKind::RESP3NotSupported => StoreError::Refused {
            condition: Condition::Other,
            detail: format!(
                "the server does not speak protocol 3 ({error}): Tenure needs Redis 6.2 or later, or Valkey"
            ),
        },
        ErrorKind::Server(_) | ErrorKind::Extension => of_server(error, "of store.prefix"),
        _ => StoreError::Unreachable(with_causes(error)),
    }
}

/// An error that the server answered with, to a script that works on `keys`.
pub(super) fn of_server(error: &RedisError, keys: &str) -> StoreError {
    let condition = error.code().and_then(by_code).or_else(|| error.detail().and_then(in_a_script));
    refused(condition.unwrap_or(Condition::Other), error, keys)
}

fn by_code(code: &str) -> Option<Condition> {
    Some(match code {
        "OOM" => Condition::OutOfMemory,
        "BUSY" => Condition::Busy,
        "WRONGTYPE" => Condition::WrongType,
        "NOAUTH" | "WRONGPASS" => Condition::Auth,
        "NOPERM" => Condition::NoPermission,
        "READONLY" | "NOREPLICAS" | "MISCONF" => Condition::ReadOnly,
        "LOADING" | "MASTERDOWN" => Condition::Loading,
        "MOVED" | "ASK" | "CROSSSLOT" | "CLUSTERDOWN" => Condition::Moved,
        _ => return None,
    })
}

/// What a command in a script was refused for, where the code is only `ERR`: a missing permission in every version, and
/// anything before Redis 7: `Error running script (call to …): … -OOM command not allowed`.
fn in_a_script(detail: &str) -> Option<Condition> {
    if detail.contains("The user executing the script can't") || detail.contains("ACL failure in script") {
        return Some(Condition::NoPermission);
    }
    let words = detail.strip_prefix("Error running script")?;
    words.split_whitespace().find_map(|word| by_code(word.trim_start_matches('-')))
}

fn refused(condition: Condition, error: &RedisError, keys: &str) -> StoreError {
    let advice = match condition {
        Condition::WrongType => {
            let words = format!(
                "Tenure never writes such a value: look with TYPE at the keys {keys}, and DEL the one that is not ours, or set another store.prefix"
            );
            return StoreError::Refused { condition, detail: format!("the store refuses: {error}; {words}") };
        }
        Condition::OutOfMemory => "the server is at `maxmemory` and evicts nothing: raise it, or free memory",
        Condition::ReadOnly => {
            "the server takes no writes: point store.url at the primary, or look at its disk and replicas"
        }
        Condition::NoPermission => {
            "let this user run EVALSHA, SCRIPT LOAD and what our scripts use (GET, SET, DEL, hashes, streams) on all keys of store.prefix"
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_inside_a_script_of_redis_6_is_known_for_what_it_is() {
        for (words, condition) in [
            ("-OOM command not allowed when used memory > 'maxmemory'.", Some(Condition::OutOfMemory)),
            ("-READONLY You can't write against a read only replica.", Some(Condition::ReadOnly)),
            ("WRONGTYPE Operation against a key holding the wrong kind of value", Some(Condition::WrongType)),
            ("attempt to index a nil value", None),
        ] {
            let detail = format!("Error running script (call to f_0): @user_script:1: @user_script: 1: {words}");
            assert_eq!(in_a_script(&detail), condition, "{words}");
        }
        assert_eq!(in_a_script("OOM in somebody else's words"), None);
    }
}

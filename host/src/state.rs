//! The second wall: state that outlives the leader and that only the present term can change.
//!
//! A plugin asks through [`FencedState`], which takes a permit from the gate first. The store then checks lease and term in
//! the same atomic step as the change: an instance that was paused for an hour after its permit changes nothing.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tenure_core::ClaimId;

use crate::clock;
use crate::config::RoleName;
use crate::gate::Gate;
use crate::words;

/// Keys that begin so are the host's own. A plugin can neither read nor write them, and they count towards no limit.
pub const RESERVED: &str = "tenure/";
/// The most bytes of one key.
pub const MAX_KEY: usize = 512;
/// The most bytes of one value.
pub const MAX_VALUE: usize = 1 << 20;
/// The most keys that one operation names.
pub const MAX_BATCH: usize = 1_000;
/// The most keys of one role.
pub const MAX_KEYS: u64 = 10_000;
/// The most bytes of one role, keys and values together.
pub const MAX_BYTES: u64 = 16 << 20;

/// Who asks: what the store compares with the lease that it holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fence {
    /// Whose state.
    pub role: RoleName,
    /// The claim that must hold the lease.
    pub claim: ClaimId,
    /// The term that must be the present one.
    pub term: u64,
}

/// One operation on a role's state. All of it is done, or nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StateOp {
    /// The values of some keys.
    Get(Vec<String>),
    /// Whether there is a key.
    Exists(String),
    /// Some keys: from the beginning, or from where the last answer's cursor points.
    Keys(Option<u64>),
    /// Gives keys values.
    Set(BTreeMap<String, Vec<u8>>),
    /// Removes keys.
    Delete(Vec<String>),
    /// Adds to the decimal number at a key, which counts as 0 where it is missing.
    Increment {
        /// The key.
        key: String,
        /// What is added.
        delta: u64,
    },
}

/// The answer to a [`StateOp`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StateReply {
    /// It was changed.
    Done,
    /// One for each key asked for; none where it is missing.
    Values(Vec<Option<Vec<u8>>>),
    /// Whether the key is there.
    Found(bool),
    /// Some keys, and where to go on.
    Keys {
        /// The keys; one may come twice where keys are added meanwhile.
        keys: Vec<String>,
        /// None where these were the last.
        cursor: Option<u64>,
    },
    /// The sum.
    Number(u64),
}

/// Why an operation was not done.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StateError {
    /// The term is over. Nothing was changed, and nothing will be.
    #[error("fenced: term {term} is over")]
    Fenced {
        /// The term that asked.
        term: u64,
    },
    /// A limit, or a value of another kind. Nothing was changed.
    #[error("refused: {0}")]
    Refused(String),
    /// The store did not answer, or can't. A change may or may not have been made.
    #[error("unavailable: {0}")]
    Unavailable(String),
}

/// Where the roles' state is kept.
#[async_trait]
pub trait StateStore: Send + Sync + 'static {
    /// Does `op` where the fence holds, in one atomic step, and answers within `within`.
    async fn run(&self, fence: &Fence, op: &StateOp, within: Duration) -> Result<StateReply, StateError>;
}

/// The state of one role, for one term: gate and fence in front of the store.
#[derive(Clone)]
pub struct FencedState {
    store: Arc<dyn StateStore>,
    fence: Fence,
    gate: Arc<Gate>,
    /// The longest that the store may take, where the trust lasts longer.
    timeout: Duration,
}

impl FencedState {
    /// The state of `fence.role`, for as long as `gate` is open.
    #[must_use]
    pub fn new(store: Arc<dyn StateStore>, fence: Fence, gate: Arc<Gate>, timeout: Duration) -> Self {
        Self { store, fence, gate, timeout }
    }

    /// Does `op` for the plugin, which may not touch the host's own keys.
    ///
    /// # Errors
    ///
    /// See [`StateError`].
    pub async fn run(&self, op: &StateOp) -> Result<StateReply, StateError> {
        check(op)?;
        match self.run_own(op).await? {
            StateReply::Keys { mut keys, cursor } => {
                keys.retain(|key| !key.starts_with(RESERVED));
                Ok(StateReply::Keys { keys, cursor })
            }
            reply => Ok(reply),
        }
    }

    /// Does `op` for the host itself.
    ///
    /// # Errors
    ///
    /// See [`StateError`].
    pub async fn run_own(&self, op: &StateOp) -> Result<StateReply, StateError> {
        let permit = self.gate.permit().map_err(|refused| StateError::Fenced { term: refused.term })?;
        let within = self.timeout.min(permit.until.since(clock::now()));
        self.store.run(&self.fence, op, within).await
    }
}

/// The limits that can be told without the store.
fn check(op: &StateOp) -> Result<(), StateError> {
    let refused = |words: String| Err(StateError::Refused(words));
    let keys: Vec<&String> = match op {
        StateOp::Get(keys) | StateOp::Delete(keys) => keys.iter().collect(),
        StateOp::Exists(key) | StateOp::Increment { key, .. } => vec![key],
        StateOp::Set(entries) => entries.keys().collect(),
        StateOp::Keys(_) => Vec::new(),
    };
    if keys.len() > MAX_BATCH {
        return refused(format!("{} keys in one step, the limit is {MAX_BATCH}", keys.len()));
    }
    for key in keys {
        if key.is_empty() || key.len() > MAX_KEY {
            return refused(format!("a key of {} bytes, allowed are 1 to {MAX_KEY}", key.len()));
        }
        if key.starts_with(RESERVED) {
            return refused(format!("keys that begin with `{RESERVED}` are the host's own"));
        }
    }
    match op {
        StateOp::Set(entries) => {
            for (key, value) in entries {
                if value.len() > MAX_VALUE {
                    let (size, limit) = (words::bytes(value.len() as u64), words::bytes(MAX_VALUE as u64));
                    return refused(format!("the value of {key:?} has {size}, the limit is {limit}"));
                }
            }
        }
        StateOp::Increment { delta, .. } if i64::try_from(*delta).is_err() => {
            return refused(format!("an increment by {delta}, the limit is {}", i64::MAX));
        }
        _ => {}
    }
    Ok(())
}

/// More keys than a role may have.
#[must_use]
pub fn too_many_keys(keys: u64) -> StateError {
    StateError::Refused(format!("state keys: the role would have {keys} keys, the limit is {MAX_KEYS}; delete some"))
}

/// More bytes than a role may have.
#[must_use]
pub fn too_large(bytes: u64) -> StateError {
    let (size, limit) = (words::bytes(bytes), words::bytes(MAX_BYTES));
    StateError::Refused(format!("state size: the role would have {size}, the limit is {limit}; delete something"))
}

/// An increment of something that is no number, or past the largest one.
#[must_use]
pub fn no_number(key: &str) -> StateError {
    let limit = i64::MAX;
    StateError::Refused(format!("the value of {key:?} is no whole number, or the sum is above {limit}"))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use tenure_core::Instant;
    use uuid::Uuid;

    use super::*;

    /// Answers everything, and would change anything.
    struct Willing;

    #[async_trait]
    impl StateStore for Willing {
        async fn run(&self, _: &Fence, op: &StateOp, _: Duration) -> Result<StateReply, StateError> {
            Ok(match op {
                StateOp::Keys(_) => {
                    StateReply::Keys { keys: vec!["a".to_owned(), "tenure/slot".to_owned()], cursor: None }
                }
                _ => StateReply::Done,
            })
        }
    }

    fn state() -> (FencedState, Arc<Gate>) {
        let gate = Arc::new(Gate::new(7, Instant::NEVER));
        let fence = Fence { role: RoleName::new("test").unwrap(), claim: ClaimId(Uuid::nil()), term: 7 };
        (FencedState::new(Arc::new(Willing), fence, gate.clone(), Duration::from_secs(1)), gate)
    }

    fn set(key: &str, value: Vec<u8>) -> StateOp {
        StateOp::Set(BTreeMap::from([(key.to_owned(), value)]))
    }

    #[tokio::test]
    async fn a_closed_gate_asks_no_store() {
        let (state, gate) = state();
        assert_eq!(state.run(&set("a", vec![1])).await, Ok(StateReply::Done));
        gate.close();
        assert_eq!(state.run(&set("a", vec![1])).await, Err(StateError::Fenced { term: 7 }));
        assert_eq!(state.run_own(&set("a", vec![1])).await, Err(StateError::Fenced { term: 7 }));
    }

    #[tokio::test]
    async fn the_hosts_own_keys_are_its_own() {
        let (state, _) = state();
        let own = "tenure/slot";
        for op in [set(own, vec![]), StateOp::Get(vec![own.to_owned()]), StateOp::Delete(vec![own.to_owned()])] {
            assert!(state.run(&op).await.unwrap_err().to_string().contains("the host's own"), "{op:?}");
        }
        assert_eq!(state.run_own(&set(own, vec![])).await, Ok(StateReply::Done));
        let keys = state.run(&StateOp::Keys(None)).await;
        assert_eq!(keys, Ok(StateReply::Keys { keys: vec!["a".to_owned()], cursor: None }));
    }

    #[tokio::test]
    async fn limits_name_themselves() {
        let (state, _) = state();
        let many = (0..=MAX_BATCH).map(|key| key.to_string()).collect();
        for (op, words) in [
            (set("", vec![]), "a key of 0 bytes, allowed are 1 to 512"),
            (set(&"k".repeat(513), vec![]), "a key of 513 bytes"),
            (set("a", vec![0; MAX_VALUE + 1]), "the limit is 1 MiB"),
            (StateOp::Get(many), "1001 keys in one step, the limit is 1000"),
            (StateOp::Increment { key: "a".to_owned(), delta: u64::MAX }, "the limit is 9223372036854775807"),
        ] {
            let error = state.run(&op).await.unwrap_err();
            assert!(error.to_string().starts_with("refused: ") && error.to_string().contains(words), "{error}");
        }
    }
}

//! What every store promises, asked of each of them; and what only one of them can be asked.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs, reason = "a test fails by panicking")]

mod cases;
mod redis;
mod sqlite;
mod state;

use std::sync::Arc;
use std::time::{Duration, Instant};

use system_tests::PATIENCE;
use tenure::config::RoleName;
use tenure::state::{Fence, StateError, StateOp, StateReply};
use tenure::store::{ClaimAsk, Claimed, Condition, HandoffChange, HolderInfo, ReleaseAsk, RenewAsk, Store, StoreError};
use tenure_core::{ClaimId, ClaimReply, RefusalReason, ReleaseReply, RenewReply};
use uuid::Uuid;

/// Longer than any answer takes that comes at all.
const WITHIN: Duration = Duration::from_secs(10);
/// A lease that does not run out while a test runs.
const LONG: Duration = Duration::from_secs(600);
/// A lease that a test waits out.
const SHORT: Duration = Duration::from_millis(200);

/// Two instances' handles on one store, and whatever keeps it alive.
struct Pair {
    one: Arc<dyn Store>,
    other: Arc<dyn Store>,
    _alive: Box<dyn std::any::Any>,
}

fn role() -> RoleName {
    RoleName::new("sweeper").unwrap()
}

fn fresh() -> ClaimId {
    ClaimId(Uuid::new_v4())
}

fn claim_ask(role: &RoleName, claim: ClaimId, ttl: Duration, seen_term: u64) -> ClaimAsk {
    let holder =
        HolderInfo { instance: "web-1".to_owned(), admin: "127.0.0.1:7400".to_owned(), digest: "ab12".to_owned() };
    ClaimAsk { role: role.clone(), claim, ttl, seen_term, holder }
}

fn only<T>(mut replies: Vec<T>) -> T {
    assert_eq!(replies.len(), 1, "one ask, one reply");
    replies.remove(0)
}

async fn try_claim(store: &dyn Store, claim: ClaimId, ttl: Duration, seen_term: u64) -> Result<Claimed, StoreError> {
    only(store.claim(&[claim_ask(&role(), claim, ttl, seen_term)], WITHIN).await)
}

async fn claim(store: &dyn Store, claim: ClaimId, ttl: Duration) -> Claimed {
    try_claim(store, claim, ttl, 0).await.expect("an answer to a claim")
}

async fn try_renew(store: &dyn Store, claim: ClaimId, ttl: Duration) -> Result<RenewReply, StoreError> {
    only(store.renew(&[RenewAsk { role: role(), claim, ttl }], WITHIN).await)
}

async fn renew(store: &dyn Store, claim: ClaimId, ttl: Duration) -> RenewReply {
    try_renew(store, claim, ttl).await.expect("an answer to a renewal")
}

async fn release(store: &dyn Store, claim: ClaimId, handoff: HandoffChange) -> ReleaseReply {
    only(store.release(&[ReleaseAsk { role: role(), claim, handoff }], WITHIN).await).expect("an answer to a release")
}

/// The term of a granted claim.
fn term(claimed: &Claimed) -> u64 {
    match claimed.reply {
        ClaimReply::Granted { term, .. } => term,
        ClaimReply::Refused(refusal) => panic!("refused: {refusal:?}"),
    }
}

/// Why a claim was refused, the term, and what is left to wait.
fn refusal(claimed: &Claimed) -> (RefusalReason, u64, Duration) {
    match claimed.reply {
        ClaimReply::Refused(refusal) => (refusal.reason, refusal.term, refusal.left),
        ClaimReply::Granted { term, .. } => panic!("granted, with term {term}"),
    }
}

/// The condition of a refused request, and its words.
fn condition<T: std::fmt::Debug>(reply: Result<T, StoreError>) -> (Condition, String) {
    match reply {
        Err(StoreError::Refused { condition, detail }) => (condition, detail),
        other => panic!("not refused: {other:?}"),
    }
}

/// Claims until it is granted.
async fn claim_in_time(store: &dyn Store, ttl: Duration, seen_term: u64) -> (ClaimId, Claimed) {
    let (began, id) = (Instant::now(), fresh());
    loop {
        let claimed = try_claim(store, id, ttl, seen_term).await.expect("an answer to a claim");
        if matches!(claimed.reply, ClaimReply::Granted { .. }) {
            return (id, claimed);
        }
        assert!(began.elapsed() < PATIENCE, "never granted: {claimed:?}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Renews until the store answers again.
async fn renew_in_time(store: &dyn Store, claim: ClaimId) {
    let began = Instant::now();
    while try_renew(store, claim, LONG).await != Ok(RenewReply::Renewed) {
        assert!(began.elapsed() < PATIENCE, "the store never answered again");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// The fence of the present term.
fn fence(claim: ClaimId, claimed: &Claimed) -> Fence {
    Fence { role: role(), claim, term: term(claimed) }
}

async fn change(store: &dyn Store, fence: &Fence, op: StateOp) -> Result<StateReply, StateError> {
    store.state().run(fence, &op, WITHIN).await
}

fn set(key: &str, value: &str) -> StateOp {
    StateOp::Set([(key.to_owned(), value.as_bytes().to_vec())].into())
}

async fn value(store: &dyn Store, fence: &Fence, key: &str) -> Option<String> {
    let reply = change(store, fence, StateOp::Get(vec![key.to_owned()])).await;
    let Ok(StateReply::Values(mut values)) = reply else { panic!("no values: {reply:?}") };
    values.remove(0).map(|value| String::from_utf8(value).unwrap())
}

//! The suite. Each case gets two handles on one empty store.

use std::collections::BTreeSet;
use std::path::Path;

use system_tests::redis::RedisServer;
use tempfile::TempDir;
use tenure::store::redis::RedisStore;
use tenure::store::sqlite::{FencedBy, SqliteState, SqliteStore};
use tenure::store::standalone::StandaloneStore;
use tenure::store::{MAX_HANDOFF, StoreEvent};
use tenure_core::{Handoff, Lasts};
use tokio::sync::broadcast::Receiver;

use super::state::*;
use super::*;

fn redis() -> Pair {
    let server = RedisServer::start();
    let open = || Arc::new(RedisStore::new(&server.url(), "tenure").unwrap());
    Pair { one: open(), other: open(), _alive: Box::new(server) }
}

fn sqlite() -> Pair {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("made/by/open/leases.sqlite");
    let open = |path: &Path| Arc::new(SqliteStore::open(path).unwrap());
    Pair { one: open(&path), other: open(&path), _alive: Box::new(folder) }
}

/// There is one instance, so both handles are the same.
fn standalone() -> Pair {
    let folder = TempDir::new().unwrap();
    let store = Arc::new(StandaloneStore::new(Arc::new(
        SqliteState::new(&folder.path().join("state.sqlite"), FencedBy::Caller).unwrap(),
    )));
    Pair { one: store.clone(), other: store, _alive: Box::new(folder) }
}

/// Makes a test of each case for each store.
macro_rules! conformance {
    ($($store:ident: [$($case:ident),* $(,)?])*) => {
        $(mod $store {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                super::$case(&super::$store()).await;
            })*
        })*
    };
}

conformance! {
    redis: [
        state_is_kept, many_keys_in_one_step, numbers_add_up, keys_are_listed, a_term_that_is_over_changes_nothing,
        state_outlives_the_leader, limits_of_state_are_kept,
        a_free_lease_is_granted, a_held_lease_is_refused, a_repeated_claim_is_granted_again, one_of_many_rivals_wins,
        terms_rise, only_the_claim_releases, a_release_is_final, roles_do_not_meddle, a_handoff_is_kept_until_settled,
        a_release_changes_the_handoff_as_told, only_the_claim_settles, a_handoff_may_be_large,
        batches_are_answered_in_their_order, an_empty_batch_has_no_replies, watchers_are_told,
        a_repeated_claim_lasts_a_full_ttl, renewals_do_not_add_up, a_lease_runs_out, what_ran_out_settles_nothing,
        lost_data_is_waited_out, a_held_lease_is_no_lost_data,
    ]
    sqlite: [
        state_is_kept, many_keys_in_one_step, numbers_add_up, keys_are_listed, a_term_that_is_over_changes_nothing,
        state_outlives_the_leader, limits_of_state_are_kept,
        a_free_lease_is_granted, a_held_lease_is_refused, a_repeated_claim_is_granted_again, one_of_many_rivals_wins,
        terms_rise, only_the_claim_releases, a_release_is_final, roles_do_not_meddle, a_handoff_is_kept_until_settled,
        a_release_changes_the_handoff_as_told, only_the_claim_settles, a_handoff_may_be_large,
        batches_are_answered_in_their_order, an_empty_batch_has_no_replies, watchers_are_told,
        a_repeated_claim_lasts_a_full_ttl, renewals_do_not_add_up, a_lease_runs_out, what_ran_out_settles_nothing,
        lost_data_is_waited_out, a_held_lease_is_no_lost_data,
    ]
    // Without a second instance nothing runs out and nothing is lost.
    standalone: [
        state_is_kept, many_keys_in_one_step, numbers_add_up, keys_are_listed, a_term_that_is_over_changes_nothing,
        state_outlives_the_leader, limits_of_state_are_kept,
        a_free_lease_is_granted, a_held_lease_is_refused, a_repeated_claim_is_granted_again, one_of_many_rivals_wins,
        terms_rise, only_the_claim_releases, a_release_is_final, roles_do_not_meddle, a_handoff_is_kept_until_settled,
        a_release_changes_the_handoff_as_told, only_the_claim_settles, a_handoff_may_be_large,
        batches_are_answered_in_their_order, an_empty_batch_has_no_replies, watchers_are_told,
        a_lease_lasts_for_ever,
    ]
}

async fn a_free_lease_is_granted(pair: &Pair) {
    let claimed = claim(&*pair.one, fresh(), LONG).await;
    assert_eq!((term(&claimed), claimed.handoff), (1, None));
}

async fn a_held_lease_is_refused(pair: &Pair) {
    let holder = fresh();
    claim(&*pair.one, holder, LONG).await;
    let (reason, term, left) = refusal(&claim(&*pair.other, fresh(), LONG).await);
    assert_eq!((reason, term), (RefusalReason::Held { by: holder }, 1));
    assert!(left <= LONG, "{left:?} left of {LONG:?}");
}

async fn a_repeated_claim_is_granted_again(pair: &Pair) {
    let holder = fresh();
    let first = claim(&*pair.one, holder, LONG).await;
    assert_eq!(claim(&*pair.one, holder, LONG).await, first);
    // The instance may have heard of its own term meanwhile.
    assert_eq!(try_claim(&*pair.one, holder, LONG, 1).await, Ok(first));
    assert_eq!(renew(&*pair.one, holder, LONG).await, RenewReply::Renewed);
}

async fn one_of_many_rivals_wins(pair: &Pair) {
    let rivals: Vec<_> = (0..40)
        .map(|number| {
            let store = if number % 2 == 0 { pair.one.clone() } else { pair.other.clone() };
            tokio::spawn(async move { claim(&*store, fresh(), LONG).await })
        })
        .collect();
    let mut granted = 0;
    for rival in rivals {
        granted += usize::from(matches!(rival.await.unwrap().reply, ClaimReply::Granted { .. }));
    }
    assert_eq!(granted, 1);
}

async fn terms_rise(pair: &Pair) {
    for expected in 1..=5 {
        let (store, holder) = (if expected % 2 == 0 { &pair.one } else { &pair.other }, fresh());
        assert_eq!(term(&claim(&**store, holder, LONG).await), expected);
        assert_eq!(release(&**store, holder, HandoffChange::Keep).await, ReleaseReply::Released);
    }
}

async fn only_the_claim_releases(pair: &Pair) {
    let holder = fresh();
    claim(&*pair.one, holder, LONG).await;
    let left = HandoffChange::Put(Handoff { term: 9, data: b"not ours".to_vec() });
    assert_eq!(release(&*pair.other, fresh(), left).await, ReleaseReply::NotYours);
    assert_eq!(renew(&*pair.other, fresh(), LONG).await, RenewReply::NotYours);
    assert_eq!(renew(&*pair.one, holder, LONG).await, RenewReply::Renewed);
    assert_eq!(claim(&*pair.one, holder, LONG).await.handoff, None);
}

async fn a_release_is_final(pair: &Pair) {
    let holder = fresh();
    claim(&*pair.one, holder, LONG).await;
    assert_eq!(release(&*pair.one, holder, HandoffChange::Keep).await, ReleaseReply::Released);
    assert_eq!(renew(&*pair.one, holder, LONG).await, RenewReply::NotYours);
    assert_eq!(release(&*pair.one, holder, HandoffChange::Keep).await, ReleaseReply::NotYours);
    assert_eq!(term(&claim(&*pair.other, fresh(), LONG).await), 2);
}

async fn roles_do_not_meddle(pair: &Pair) {
    let (holder, other_role) = (fresh(), RoleName::new("sweeper.2").unwrap());
    claim(&*pair.one, holder, LONG).await;
    let claimed = only(pair.other.claim(&[claim_ask(&other_role, fresh(), LONG, 0)], WITHIN).await).unwrap();
    assert_eq!(term(&claimed), 1);
    let elsewhere = RenewAsk { role: other_role, claim: holder, ttl: LONG };
    assert_eq!(only(pair.one.renew(&[elsewhere], WITHIN).await), Ok(RenewReply::NotYours));
}

/// Puts a hand-off into an empty store.
async fn hand_over(pair: &Pair, handoff: &Handoff) {
    let holder = fresh();
    claim(&*pair.one, holder, LONG).await;
    assert_eq!(release(&*pair.one, holder, HandoffChange::Put(handoff.clone())).await, ReleaseReply::Released);
}

async fn a_handoff_is_kept_until_settled(pair: &Pair) {
    let handoff = Handoff { term: 1, data: b"1 2 \0\xff\n".to_vec() };
    hand_over(pair, &handoff).await;
    let failed = fresh();
    assert_eq!(claim(&*pair.other, failed, LONG).await.handoff.as_ref(), Some(&handoff));
    release(&*pair.other, failed, HandoffChange::Keep).await;
    let holder = fresh();
    assert_eq!(claim(&*pair.one, holder, LONG).await.handoff, Some(handoff));
    pair.one.settle_handoff(&role(), holder, WITHIN).await.unwrap();
    assert_eq!(claim(&*pair.one, holder, LONG).await.handoff, None);
}

async fn a_release_changes_the_handoff_as_told(pair: &Pair) {
    hand_over(pair, &Handoff { term: 1, data: b"old".to_vec() }).await;
    let new = Handoff { term: 2, data: Vec::new() };
    let holder = fresh();
    claim(&*pair.one, holder, LONG).await;
    release(&*pair.one, holder, HandoffChange::Put(new.clone())).await;
    let holder = fresh();
    assert_eq!(claim(&*pair.one, holder, LONG).await.handoff, Some(new));
    release(&*pair.one, holder, HandoffChange::Clear).await;
    assert_eq!(claim(&*pair.one, fresh(), LONG).await.handoff, None);
}

async fn only_the_claim_settles(pair: &Pair) {
    let handoff = Handoff { term: 1, data: b"kept".to_vec() };
    hand_over(pair, &handoff).await;
    let holder = fresh();
    claim(&*pair.one, holder, LONG).await;
    pair.other.settle_handoff(&role(), fresh(), WITHIN).await.unwrap();
    assert_eq!(claim(&*pair.one, holder, LONG).await.handoff, Some(handoff));
}

async fn a_handoff_may_be_large(pair: &Pair) {
    let data = (0..MAX_HANDOFF).map(|at| u8::try_from(at % 251).unwrap()).collect();
    let handoff = Handoff { term: 1, data };
    hand_over(pair, &handoff).await;
    assert!(claim(&*pair.other, fresh(), LONG).await.handoff == Some(handoff), "the bytes have changed");
}

async fn batches_are_answered_in_their_order(pair: &Pair) {
    let roles: Vec<_> = (0..300).map(|number| RoleName::new(&format!("r{number}")).unwrap()).collect();
    let claims: Vec<_> = roles.iter().map(|_| fresh()).collect();
    // Every third is another's already.
    let taken: Vec<_> = roles.iter().step_by(3).map(|role| claim_ask(role, fresh(), LONG, 0)).collect();
    assert!(pair.other.claim(&taken, WITHIN).await.iter().all(Result::is_ok));

    let asks: Vec<_> = roles.iter().zip(&claims).map(|(role, claim)| claim_ask(role, *claim, LONG, 0)).collect();
    let replies = pair.one.claim(&asks, WITHIN).await;
    assert_eq!(replies.len(), asks.len());
    for (at, reply) in replies.into_iter().enumerate() {
        match reply.unwrap().reply {
            ClaimReply::Granted { .. } => assert_ne!(at % 3, 0),
            ClaimReply::Refused(refusal) => {
                assert_eq!(at % 3, 0);
                assert_eq!(refusal.reason, RefusalReason::Held { by: taken[at / 3].claim });
            }
        }
    }
    let asks: Vec<_> = roles
        .iter()
        .zip(&claims)
        .map(|(role, claim)| RenewAsk { role: role.clone(), claim: *claim, ttl: LONG })
        .collect();
    for (at, reply) in pair.one.renew(&asks, WITHIN).await.into_iter().enumerate() {
        assert_eq!(reply, Ok(if at % 3 == 0 { RenewReply::NotYours } else { RenewReply::Renewed }));
    }
    let asks: Vec<_> = roles
        .iter()
        .zip(&claims)
        .map(|(role, claim)| ReleaseAsk { role: role.clone(), claim: *claim, handoff: HandoffChange::Keep })
        .collect();
    for (at, reply) in pair.one.release(&asks, WITHIN).await.into_iter().enumerate() {
        assert_eq!(reply, Ok(if at % 3 == 0 { ReleaseReply::NotYours } else { ReleaseReply::Released }));
    }
}

async fn an_empty_batch_has_no_replies(pair: &Pair) {
    assert!(pair.one.claim(&[], WITHIN).await.is_empty());
    assert!(pair.one.renew(&[], WITHIN).await.is_empty());
    assert!(pair.one.release(&[], WITHIN).await.is_empty());
}

/// The next event, and how long it took.
async fn next(events: &mut Receiver<StoreEvent>) -> (StoreEvent, Duration) {
    let began = Instant::now();
    let event = tokio::time::timeout(PATIENCE, events.recv()).await.expect("an event in time").unwrap();
    (event, began.elapsed())
}

async fn watchers_are_told(pair: &Pair) {
    let mut events = pair.other.watch();
    // An instance that watches has asked for the lease before, and so is connected.
    let (first, other_role) = (fresh(), RoleName::new("another").unwrap());
    only(pair.other.claim(&[claim_ask(&other_role, first, LONG, 0)], WITHIN).await).unwrap();
    let (event, _) = next(&mut events).await;
    assert_eq!(event, StoreEvent::Elected { role: other_role, term: 1, claim: first });

    let mut fastest = Duration::MAX;
    for term in 1..=10 {
        let holder = fresh();
        claim(&*pair.one, holder, LONG).await;
        assert_eq!(next(&mut events).await.0, StoreEvent::Elected { role: role(), term, claim: holder });
        release(&*pair.one, holder, HandoffChange::Keep).await;
        let (event, took) = next(&mut events).await;
        assert_eq!(event, StoreEvent::Released { role: role(), term });
        fastest = fastest.min(took);
    }
    // Not each of them: other tests run on this machine too.
    assert!(fastest < Duration::from_millis(20), "the fastest release was noticed after {fastest:?}");
}

async fn a_repeated_claim_lasts_a_full_ttl(pair: &Pair) {
    let holder = fresh();
    claim(&*pair.one, holder, LONG / 10).await;
    claim(&*pair.one, holder, LONG).await;
    let (_, _, left) = refusal(&claim(&*pair.other, fresh(), LONG).await);
    assert!(left > LONG / 2, "{left:?} left of {LONG:?}");
}

async fn renewals_do_not_add_up(pair: &Pair) {
    let holder = fresh();
    claim(&*pair.one, holder, LONG).await;
    for _ in 0..100 {
        assert_eq!(renew(&*pair.one, holder, LONG).await, RenewReply::Renewed);
    }
    let (_, _, left) = refusal(&claim(&*pair.other, fresh(), LONG).await);
    assert!(left <= LONG, "{left:?} left of {LONG:?}");
    // From now, not from the old end: a shorter one is shorter.
    renew(&*pair.one, holder, LONG / 10).await;
    let (_, _, left) = refusal(&claim(&*pair.other, fresh(), LONG).await);
    assert!(left <= LONG / 10, "{left:?} left of {:?}", LONG / 10);
}

async fn a_lease_runs_out(pair: &Pair) {
    let (began, late) = (Instant::now(), fresh());
    claim(&*pair.one, late, SHORT).await;
    let (holder, claimed) = claim_in_time(&*pair.other, LONG, 0).await;
    assert!(began.elapsed() >= SHORT, "granted {:?} after a claim for {SHORT:?}", began.elapsed());
    assert_eq!(term(&claimed), 2);
    assert_eq!(renew(&*pair.one, late, LONG).await, RenewReply::NotYours);
    let left = HandoffChange::Put(Handoff { term: 1, data: b"too late".to_vec() });
    assert_eq!(release(&*pair.one, late, left).await, ReleaseReply::NotYours);
    assert_eq!(claim(&*pair.other, holder, LONG).await, claimed);
}

async fn what_ran_out_settles_nothing(pair: &Pair) {
    let handoff = Handoff { term: 1, data: b"kept".to_vec() };
    hand_over(pair, &handoff).await;
    let late = fresh();
    claim(&*pair.one, late, SHORT).await;
    // Nobody has claimed it since.
    tokio::time::sleep(SHORT + Duration::from_millis(10)).await;
    assert_eq!(renew(&*pair.one, late, LONG).await, RenewReply::NotYours);
    pair.one.settle_handoff(&role(), late, WITHIN).await.unwrap();
    assert_eq!(claim(&*pair.other, fresh(), LONG).await.handoff, Some(handoff));
}

async fn lost_data_is_waited_out(pair: &Pair) {
    let began = Instant::now();
    let reply = try_claim(&*pair.one, fresh(), SHORT, 7).await.unwrap();
    assert_eq!(refusal(&reply), (RefusalReason::Behind, 0, SHORT));
    // By everybody, also by those who have seen nothing.
    let (reason, term_now, left) = refusal(&claim(&*pair.other, fresh(), SHORT).await);
    assert_eq!((reason, term_now), (RefusalReason::Vanished, 7));
    assert!(left <= SHORT, "{left:?} left of {SHORT:?}");
    let (_, claimed) = claim_in_time(&*pair.other, LONG, 0).await;
    assert!(began.elapsed() >= SHORT, "granted {:?} after the loss was noticed", began.elapsed());
    assert_eq!(term(&claimed), 8);
}

async fn a_held_lease_is_no_lost_data(pair: &Pair) {
    let holder = fresh();
    claim(&*pair.one, holder, LONG).await;
    let reply = try_claim(&*pair.other, fresh(), LONG, 7).await.unwrap();
    assert_eq!(refusal(&reply).0, RefusalReason::Held { by: holder });
    // When it is free again, the counter is still below.
    release(&*pair.one, holder, HandoffChange::Keep).await;
    let reply = try_claim(&*pair.other, fresh(), LONG, 7).await.unwrap();
    assert_eq!(refusal(&reply), (RefusalReason::Behind, 1, LONG));
}

async fn a_lease_lasts_for_ever(pair: &Pair) {
    let claimed = claim(&*pair.one, fresh(), Duration::from_nanos(1)).await;
    assert_eq!(claimed.reply, ClaimReply::Granted { term: 1, lasts: Lasts::Forever });
    assert!(matches!(claim(&*pair.one, fresh(), LONG).await.reply, ClaimReply::Refused(_)));
}

#[test]
fn the_stores_are_described() {
    let seen: BTreeSet<_> = [redis(), sqlite(), standalone()].iter().map(|pair| pair.one.describe()).collect();
    assert_eq!(seen.len(), 3, "{seen:?}");
}

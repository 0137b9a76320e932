//! What every store promises of the roles' fenced state. Run by the suite in `cases`.

use std::collections::{BTreeMap, BTreeSet};

use tenure::state::{MAX_BYTES, MAX_KEYS, MAX_VALUE};

use super::*;

/// A leader, and its fence.
async fn lead(pair: &Pair) -> Fence {
    let holder = fresh();
    let claimed = claim(&*pair.one, holder, LONG).await;
    fence(holder, &claimed)
}

fn key(name: &str) -> String {
    name.to_owned()
}

pub(super) async fn state_is_kept(pair: &Pair) {
    let fence = lead(pair).await;
    assert_eq!(value(&*pair.one, &fence, "a").await, None);
    assert_eq!(change(&*pair.one, &fence, set("a", "1")).await, Ok(StateReply::Done));
    assert_eq!(change(&*pair.one, &fence, set("a", "")).await, Ok(StateReply::Done));
    assert_eq!(value(&*pair.one, &fence, "a").await, Some(String::new()), "an empty value is a value");
    assert_eq!(change(&*pair.one, &fence, StateOp::Exists(key("a"))).await, Ok(StateReply::Found(true)));
    assert_eq!(change(&*pair.one, &fence, StateOp::Delete(vec![key("a"), key("b")])).await, Ok(StateReply::Done));
    assert_eq!(change(&*pair.one, &fence, StateOp::Exists(key("a"))).await, Ok(StateReply::Found(false)));
    let bytes: Vec<u8> = (0..=255).collect();
    change(&*pair.one, &fence, StateOp::Set([(key("b\n\"ö"), bytes.clone())].into())).await.unwrap();
    let read = change(&*pair.one, &fence, StateOp::Get(vec![key("b\n\"ö")])).await;
    assert_eq!(read, Ok(StateReply::Values(vec![Some(bytes)])));
}

pub(super) async fn many_keys_in_one_step(pair: &Pair) {
    let fence = lead(pair).await;
    let entries: BTreeMap<String, Vec<u8>> = (0..1000).map(|at| (format!("k{at}"), vec![7; at])).collect();
    assert_eq!(change(&*pair.one, &fence, StateOp::Set(entries.clone())).await, Ok(StateReply::Done));
    let keys: Vec<String> = entries.keys().cloned().chain([key("missing")]).collect();
    let Ok(StateReply::Values(values)) = change(&*pair.one, &fence, StateOp::Get(keys.clone())).await else { panic!() };
    assert_eq!(values.len(), 1001);
    assert!(values.iter().zip(entries.values()).all(|(found, set)| found.as_ref() == Some(set)));
    assert_eq!(values[1000], None);
    assert_eq!(change(&*pair.one, &fence, StateOp::Delete(keys)).await, Ok(StateReply::Done));
    assert_eq!(listed(pair, &fence).await, BTreeSet::new());
}

pub(super) async fn numbers_add_up(pair: &Pair) {
    let fence = lead(pair).await;
    let add = |name: &str, delta| StateOp::Increment { key: key(name), delta };
    assert_eq!(change(&*pair.one, &fence, add("n", 5)).await, Ok(StateReply::Number(5)));
    assert_eq!(change(&*pair.one, &fence, add("n", 0)).await, Ok(StateReply::Number(5)));
    assert_eq!(value(&*pair.one, &fence, "n").await.as_deref(), Some("5"));
    change(&*pair.one, &fence, set("n", "9007199254740993")).await.unwrap();
    assert_eq!(change(&*pair.one, &fence, add("n", 2)).await, Ok(StateReply::Number(9_007_199_254_740_995)));
    let most = u64::try_from(i64::MAX).unwrap();
    for (value_before, delta) in [("ten", 1), ("-5", 1), ("9223372036854775807", 1), ("1", most)] {
        change(&*pair.one, &fence, set("n", value_before)).await.unwrap();
        let refused = change(&*pair.one, &fence, add("n", delta)).await;
        assert!(
            matches!(&refused, Err(StateError::Refused(words)) if words.contains("no whole number")),
            "{refused:?}"
        );
        assert_eq!(value(&*pair.one, &fence, "n").await.as_deref(), Some(value_before), "nothing was changed");
    }
}

async fn listed(pair: &Pair, fence: &Fence) -> BTreeSet<String> {
    let (mut all, mut cursor) = (BTreeSet::new(), None);
    loop {
        let reply = change(&*pair.one, fence, StateOp::Keys(cursor)).await;
        let Ok(StateReply::Keys { keys, cursor: next }) = reply else { panic!("no keys: {reply:?}") };
        all.extend(keys.into_iter().filter(|key| !key.starts_with("tenure/")));
        cursor = next;
        if cursor.is_none() {
            return all;
        }
    }
}

pub(super) async fn keys_are_listed(pair: &Pair) {
    let fence = lead(pair).await;
    assert_eq!(listed(pair, &fence).await, BTreeSet::new());
    let names: BTreeSet<String> = (0..700).map(|at| format!("key/{at}")).collect();
    let entries = names.iter().map(|name| (name.clone(), b"v".to_vec())).collect();
    change(&*pair.one, &fence, StateOp::Set(entries)).await.unwrap();
    assert_eq!(listed(pair, &fence).await, names);
}

pub(super) async fn a_term_that_is_over_changes_nothing(pair: &Pair) {
    let old = lead(pair).await;
    change(&*pair.one, &old, set("a", "old")).await.unwrap();
    release(&*pair.one, old.claim, HandoffChange::Keep).await;
    let fenced = Err(StateError::Fenced { term: old.term });
    let all = [
        set("a", "late"),
        StateOp::Delete(vec![key("a")]),
        StateOp::Increment { key: key("n"), delta: 1 },
        StateOp::Get(vec![key("a")]),
        StateOp::Exists(key("a")),
        StateOp::Keys(None),
    ];
    for op in &all {
        assert_eq!(change(&*pair.one, &old, op.clone()).await, fenced, "released: {op:?}");
    }
    let holder = fresh();
    let new = fence(holder, &claim(&*pair.other, holder, LONG).await);
    for op in &all {
        assert_eq!(change(&*pair.one, &old, op.clone()).await, fenced, "another leads: {op:?}");
        let forged = Fence { term: old.term, ..new.clone() };
        assert_eq!(change(&*pair.one, &forged, op.clone()).await, fenced, "the claim alone is not enough: {op:?}");
        let forged = Fence { claim: old.claim, ..new.clone() };
        let refused = change(&*pair.one, &forged, op.clone()).await;
        assert_eq!(refused, Err(StateError::Fenced { term: new.term }), "nor is the term: {op:?}");
    }
    assert_eq!(value(&*pair.other, &new, "a").await.as_deref(), Some("old"));
}

pub(super) async fn state_outlives_the_leader(pair: &Pair) {
    let old = lead(pair).await;
    change(&*pair.one, &old, set("a", "kept")).await.unwrap();
    release(&*pair.one, old.claim, HandoffChange::Clear).await;
    let holder = fresh();
    let new = fence(holder, &claim(&*pair.other, holder, LONG).await);
    assert_eq!(value(&*pair.other, &new, "a").await.as_deref(), Some("kept"));
}

pub(super) async fn limits_of_state_are_kept(pair: &Pair) {
    let fence = lead(pair).await;
    let large = |at: u64| StateOp::Set([(format!("large/{at:02}"), vec![b'x'; MAX_VALUE - 8])].into());
    let fitting = MAX_BYTES / MAX_VALUE as u64;
    for at in 0..fitting {
        assert_eq!(change(&*pair.one, &fence, large(at)).await, Ok(StateReply::Done), "{at}");
    }
    let refused = change(&*pair.one, &fence, set("one", "more")).await;
    assert!(matches!(&refused, Err(StateError::Refused(words)) if words.starts_with("state size: ")), "{refused:?}");
    assert_eq!(change(&*pair.one, &fence, large(0)).await, Ok(StateReply::Done), "what is replaced makes room");
    // The host's own keys count towards nothing.
    assert_eq!(change(&*pair.one, &fence, set("tenure/slot", "12345")).await, Ok(StateReply::Done));
    let all = (0..fitting).map(|at| format!("large/{at:02}")).collect();
    change(&*pair.one, &fence, StateOp::Delete(all)).await.unwrap();

    for thousand in 0..MAX_KEYS / 1000 {
        let entries = (0..1000).map(|at| (format!("k{thousand}/{at}"), Vec::new())).collect();
        assert_eq!(change(&*pair.one, &fence, StateOp::Set(entries)).await, Ok(StateReply::Done), "{thousand}");
    }
    for op in [set("one", "more"), StateOp::Increment { key: key("one"), delta: 1 }] {
        let refused = change(&*pair.one, &fence, op).await;
        let words = format!("state keys: the role would have {} keys", MAX_KEYS + 1);
        assert!(matches!(&refused, Err(StateError::Refused(said)) if said.starts_with(&words)), "{refused:?}");
    }
    change(&*pair.one, &fence, StateOp::Delete(vec![key("k0/0")])).await.unwrap();
    assert_eq!(change(&*pair.one, &fence, set("one", "more")).await, Ok(StateReply::Done));
}

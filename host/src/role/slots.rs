//! The slots of one role in one term: which is next, and the record of those that were fired, in the fenced state.

use std::sync::Arc;

use tracing::info;

use crate::clock;
use crate::config::RoleName;
use crate::schedule::{Delivery, Due, Schedule, Slot};
use crate::state::{FencedState, StateError, StateOp, StateReply};

/// Where the last slot that was dealt with is recorded: fired, or passed before there was a schedule.
const RECORD: &str = "tenure/slot";

pub(super) struct Slots {
    role: RoleName,
    schedule: Arc<Schedule>,
    state: FencedState,
    /// What the record says; none before it was read in this term.
    last: Option<Slot>,
}

impl Slots {
    pub(super) fn new(role: RoleName, schedule: Arc<Schedule>, state: FencedState) -> Self {
        Self { role, schedule, state, last: None }
    }

    /// The next slot. None: there is none any more.
    pub(super) async fn next(&mut self) -> Result<Option<Due>, StateError> {
        let now = Slot::at(clock::wall());
        let last = match self.last {
            Some(last) => last,
            None => self.read(now).await?,
        };
        self.last = Some(last);
        let due = self.schedule.next(self.role.as_str(), last, now.0);
        if let Some(Due { slot, at }) = due
            && at <= now.0
        {
            info!(role = %self.role, %slot, "catching up: the slot passed without a tick");
        }
        Ok(due)
    }

    /// To be called before the tick of a slot.
    pub(super) async fn begin(&mut self, slot: Slot) -> Result<(), StateError> {
        match self.schedule.delivery {
            Delivery::AtMostOnce => self.record(slot).await,
            Delivery::AtLeastOnce => Ok(()),
        }
    }

    /// To be called after the tick of a slot that did not fail.
    pub(super) async fn end(&mut self, slot: Slot) -> Result<(), StateError> {
        match self.schedule.delivery {
            Delivery::AtMostOnce => Ok(()),
            Delivery::AtLeastOnce => self.record(slot).await,
        }
    }

    /// The record; where there is none, slots begin now.
    async fn read(&mut self, now: Slot) -> Result<Slot, StateError> {
        let reply = self.state.run_own(&StateOp::Get(vec![RECORD.to_owned()])).await?;
        let recorded = match reply {
            StateReply::Values(values) => values.into_iter().next().flatten(),
            _ => None,
        };
        match recorded.and_then(|text| std::str::from_utf8(&text).ok()?.parse().ok()) {
            Some(slot) => Ok(Slot(slot)),
            None => {
                self.record(now).await?;
                Ok(now)
            }
        }
    }

    async fn record(&mut self, slot: Slot) -> Result<(), StateError> {
        let entry = (RECORD.to_owned(), slot.0.to_string().into_bytes());
        self.state.run_own(&StateOp::Set([entry].into())).await?;
        self.last = Some(slot);
        Ok(())
    }
}

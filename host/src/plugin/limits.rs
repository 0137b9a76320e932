//! What one instance may take from the machine, and how a refusal gets its name into the error.

use wasmtime::component::{ResourceTable, ResourceTableError};
use wasmtime::{Error, ResourceLimiter, Result};

use crate::words;

/// The most elements over all tables of one instance: each is a pointer on the host.
const MAX_TABLE_ELEMENTS: usize = 1_000_000;
/// The most core instances that one component may be made of: language toolchains need about ten.
const MAX_INSTANCES: usize = 64;
/// The most tables of one instance.
const MAX_TABLES: usize = 64;
/// The most memories of one instance.
const MAX_MEMORIES: usize = 16;

/// The most handles (streams, pollables, requests) that one instance may hold at a time: each is an object on the host.
pub(super) const MAX_HANDLES: usize = 10_000;
/// The most that a guest may pass in one call, in bytes of the host's memory: the host copies it before it looks at it.
pub(super) const MAX_PASSED: usize = 8 << 20;

/// The most bytes of one set of HTTP headers.
pub(super) const MAX_HEADERS: usize = 64 << 10;

/// A table for the handles of one instance.
pub(super) fn handle_table() -> ResourceTable {
    let mut table = ResourceTable::new();
    table.set_max_capacity(MAX_HANDLES);
    table
}

/// Something that was refused inside a host function, in words that begin with the limit's name.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct Refused(pub(super) String);

/// What a host function, or wasmtime itself, refused because of a limit, in words that begin with its name.
pub(super) fn refused(error: &Error) -> Option<String> {
    if let Some(Refused(words)) = error.downcast_ref() {
        return Some(words.clone());
    }
    if matches!(error.downcast_ref(), Some(ResourceTableError::Full)) {
        return Some(format!("handles: the plugin holds {MAX_HANDLES}, which is the limit; drop what is not needed"));
    }
    // The others have no types, only words.
    let cause = error.root_cause().to_string();
    Some(if cause.contains("store handle limit exceeded") {
        format!("handles: the plugin holds {MAX_HANDLES}, which is the limit; drop what is not needed")
    } else if cause.contains("fuel allocated for hostcalls has been exhausted") {
        let most = words::bytes(MAX_PASSED as u64);
        format!("bytes passed: the plugin passed more than {most} in one call, which is the limit; pass it in parts")
    } else if cause == "total size of fields exceeds limit" || cause == "too many fields in the field map" {
        format!("headers: {cause}, which is {}; send fewer or shorter ones", words::bytes(MAX_HEADERS as u64))
    } else if cause.starts_with("requested len ") {
        format!("random bytes: {cause}; ask for fewer in one call")
    } else if let Some(cause) = cause.strip_prefix("resource limit exceeded: ") {
        format!("{cause}, the limits are {MAX_INSTANCES} instances, {MAX_TABLES} tables and {MAX_MEMORIES} memories")
    } else {
        return None;
    })
}

/// The limits of one instance, and what was refused.
#[derive(Debug)]
pub(super) struct Limits {
    memory: u64,
    memory_taken: u64,
    table_elements_taken: usize,
    refusal: Option<String>,
}

impl Limits {
    pub(super) fn new(memory: u64) -> Self {
        Self { memory, memory_taken: 0, table_elements_taken: 0, refusal: None }
    }

    /// The last refusal in words, if there was one: a guest that is refused memory usually panics next.
    pub(super) fn take_refusal(&mut self) -> Option<String> {
        self.refusal.take()
    }
}

impl ResourceLimiter for Limits {
    fn memory_growing(&mut self, current: usize, desired: usize, _maximum: Option<usize>) -> Result<bool> {
        let more = desired.saturating_sub(current) as u64;
        let wanted = self.memory_taken.saturating_add(more);
        if wanted > self.memory {
            self.refusal = Some(format!(
                "memory: the plugin asked for {}, its limit is {}; raise `memory` in its role",
                words::bytes(wanted),
                words::bytes(self.memory)
            ));
            return Ok(false);
        }
        self.memory_taken = wanted;
        Ok(true)
    }

    fn table_growing(&mut self, current: usize, desired: usize, _maximum: Option<usize>) -> Result<bool> {
        let wanted = self.table_elements_taken.saturating_add(desired.saturating_sub(current));
        if wanted > MAX_TABLE_ELEMENTS {
            self.refusal =
                Some(format!("tables: the plugin asked for {wanted} elements, the limit is {MAX_TABLE_ELEMENTS}"));
            return Ok(false);
        }
        self.table_elements_taken = wanted;
        Ok(true)
    }

    fn instances(&self) -> usize {
        MAX_INSTANCES
    }

    fn tables(&self) -> usize {
        MAX_TABLES
    }

    fn memories(&self) -> usize {
        MAX_MEMORIES
    }
}

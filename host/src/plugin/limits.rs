//! What one instance may take from the machine, and how a refusal gets its name into the error.

use wasmtime::{ResourceLimiter, Result};

use crate::words;

/// The most elements over all tables of one instance: each is a pointer on the host.
const MAX_TABLE_ELEMENTS: usize = 1_000_000;
/// The most core instances that one component may be made of: language toolchains need about ten.
const MAX_INSTANCES: usize = 64;
/// The most tables of one instance.
const MAX_TABLES: usize = 64;
/// The most memories of one instance.
const MAX_MEMORIES: usize = 16;

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

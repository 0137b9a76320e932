//! Leader-only work that never outlives its lease: the host.
//!
//! Calls go one way: core ← gate, store, plugin, audit ← role ← supervisor ← main. See ARCHITECTURE.md.

pub mod audit;
pub mod author;
pub mod check;
pub mod clock;
pub mod config;
pub mod gate;
pub mod grants;
pub mod images;
pub mod logging;
pub mod plugin;
pub mod role;
pub mod schedule;
pub mod state;
pub mod store;
pub mod supervisor;
pub mod words;

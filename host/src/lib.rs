//! Leader-only work that never outlives its lease: the host.

pub mod clock;
pub mod config;
pub mod gate;
pub mod plugin;
pub mod store;
pub mod words;

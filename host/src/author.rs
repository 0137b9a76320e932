//! `tenure plugin`: for people who write plugins.

pub mod inspect;
pub mod new;
pub mod run;

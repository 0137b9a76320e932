//! A job that never gets as far as being one: its module's start function loops.

#[cfg(target_family = "wasm")]
use std::hint::black_box;

use tenure_guest::{Error, Handoff, Job, Next};

struct Never;

impl Job for Never {
    fn elected(_: Option<Handoff>) -> Result<Self, Error> {
        Ok(Self)
    }

    fn tick(&mut self) -> Result<Next, Error> {
        Ok(Next::Done)
    }
}

#[cfg(target_family = "wasm")]
extern "C" fn spin() {
    while black_box(true) {}
}

/// Constructors run while the component is instantiated, before any export is called.
#[cfg(target_family = "wasm")]
#[used]
#[allow(unsafe_code, reason = "the only way to get a function into the start function of a Rust module")]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn() = spin;

tenure_guest::export!(Never);

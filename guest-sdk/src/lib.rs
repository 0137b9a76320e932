//! Write a Tenure job in Rust: work that only one instance may do.
//!
//! A job is a type. It is made when this host is elected, ticked while it leads, and consumed when that ends:
//!
//! ```
//! use std::time::Duration;
//! use tenure_guest::{Error, Handoff, Job, Next, Reason, leadership, settings};
//!
//! struct Sweeper {
//!     bucket: String,
//!     swept: u64,
//! }
//!
//! impl Job for Sweeper {
//!     fn elected(_: Option<Handoff>) -> Result<Self, Error> {
//!         let bucket = settings::get("bucket").ok_or("set `bucket`: which bucket to sweep")?;
//!         log::info!("sweeping {bucket} in term {}", leadership::term());
//!         Ok(Self { bucket, swept: 0 })
//!     }
//!
//!     fn tick(&mut self) -> Result<Next, Error> {
//!         self.swept += 1;
//!         log::info!("swept {} {} times", self.bucket, self.swept);
//!         Ok(Next::after(Duration::from_secs(1)))
//!     }
//!
//!     fn demoted(self, reason: Reason) -> Option<Vec<u8>> {
//!         log::info!("stopping: {reason:?}");
//!         None
//!     }
//! }
//!
//! tenure_guest::export!(Sweeper);
//! ```
//!
//! Build it as a `cdylib` for `wasm32-wasip2` (or `wasm32-unknown-unknown`), and name the file in the host's TOML.
//!
//! A tick is short: between ticks the job costs nothing and can be stopped at once. The macros of the `log` crate write
//! to the host's log.

pub mod http;
mod job;
pub mod leadership;
mod logger;
pub mod settings;
pub mod state;

pub use job::{Handoff, Job, Next, Reason};

/// Why a job could not do what it was asked: any error, by `?`, or any text, by `.into()`.
pub type Error = Box<dyn std::error::Error>;

#[doc(hidden)]
pub mod bindings {
    #![allow(missing_docs, unsafe_code, clippy::all, clippy::pedantic)]
    wit_bindgen::generate!({
        path: "wit",
        world: "job-plugin-with-grants",
        generate_all,
        pub_export_macro: true,
        default_bindings_module: "tenure_guest::bindings",
    });
}

#[doc(hidden)]
pub use job::Exported;

/// Makes a type that implements [`Job`] what the plugin exports. Once a crate.
#[macro_export]
macro_rules! export {
    ($job:ty) => {
        const _: () = {
            ::std::thread_local! {
                static JOB: ::std::cell::RefCell<::std::option::Option<$job>> = const { ::std::cell::RefCell::new(None) };
            }

            struct Plugin;

            impl $crate::Exported for Plugin {
                type Job = $job;

                fn with<T>(work: impl FnOnce(&mut ::std::option::Option<$job>) -> T) -> T {
                    JOB.with_borrow_mut(work)
                }
            }

            $crate::bindings::export!(Plugin with_types_in $crate::bindings);
        };
    };
}

//! The `log` crate's macros, written to the host's log.

use std::sync::Once;

use log::{Level, LevelFilter, Log, Metadata, Record};

use crate::bindings::wasi::logging::logging;

struct HostLog;

impl Log for HostLog {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        let level = match record.level() {
            Level::Trace => logging::Level::Trace,
            Level::Debug => logging::Level::Debug,
            Level::Info => logging::Level::Info,
            Level::Warn => logging::Level::Warn,
            Level::Error => logging::Level::Error,
        };
        logging::log(level, record.target(), &record.args().to_string());
    }

    fn flush(&self) {}
}

/// Makes the host's log the logger, and where panics are written. Does so once.
pub(crate) fn set_up() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // Another logger is a plugin author's own choice.
        if log::set_logger(&HostLog).is_ok() {
            log::set_max_level(LevelFilter::Trace);
        }
        // Where there is an operating system, panics are written to standard error, which the host reads too.
        #[cfg(all(target_family = "wasm", target_os = "unknown"))]
        std::panic::set_hook(Box::new(|panic| {
            logging::log(logging::Level::Critical, "panic", &panic.to_string());
        }));
    });
}

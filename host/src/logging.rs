//! The log: text for a person at a terminal, JSON elsewhere.

use std::io::{self, IsTerminal};

use tracing_subscriber::EnvFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// What the compiler of plugins says at `trace` is of no use here, and takes it minutes: only where it is asked for by name.
const QUIET: &str = "cranelift_codegen=info,cranelift_frontend=info,regalloc2=info,wasmtime_internal_cranelift=info";

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// Text on a terminal, JSON elsewhere.
    Auto,
    /// One line of text.
    Text,
    /// One JSON object a line.
    Json,
}

/// Writes the log to standard error from now on. `level` is a level such as `info`, or a filter such as
/// `info,plugin=debug`, where `plugin` is what plugins write.
///
/// # Errors
///
/// Where `level` is not one.
pub fn set_up(format: LogFormat, level: &str) -> anyhow::Result<()> {
    let filter = EnvFilter::builder()
        .parse(format!("{QUIET},{level}"))
        .map_err(|error| anyhow::anyhow!("--log-level \"{level}\": {error}; write a level such as info or debug"))?;
    let terminal = io::stderr().is_terminal();
    let registry = tracing_subscriber::registry().with(filter);
    let layer = tracing_subscriber::fmt::layer().with_writer(io::stderr);
    match format {
        LogFormat::Json => registry.with(layer.json().flatten_event(true).with_target(true)).init(),
        LogFormat::Auto if !terminal => registry.with(layer.json().flatten_event(true)).init(),
        LogFormat::Auto | LogFormat::Text => registry.with(layer.with_ansi(terminal).with_target(false)).init(),
    }
    Ok(())
}

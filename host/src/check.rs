//! `tenure check`: what can be known without a store, and how a demotion will go, for a person to look at.

use std::fmt::Write;
use std::time::Duration;

use tenure_core::Timing;

use crate::config::{Config, RoleConfig, StoreConfig};
use crate::grants::{Grants, Variable};
use crate::images::Images;
use crate::plugin::engine::Inspection;
use crate::plugin::{Image, Kind};
use crate::store::Store;
use crate::store::redis::RedisStore;
use crate::words;

/// How many characters stand for one ttl.
const BAR: usize = 60;
/// The first characters of a digest tell plugins apart well enough.
const SHORT_DIGEST: usize = 12;

/// A report on a configuration whose plugins are loaded.
#[must_use]
pub fn report(config: &Config, images: &Images) -> String {
    let fuel_per_ms = images.fuel_per_ms();
    let mut text = String::new();
    let store = match &config.store {
        StoreConfig::Standalone => "none: this instance always leads".to_owned(),
        StoreConfig::Redis { url, prefix } => match RedisStore::new(url, prefix) {
            // Its own words, since the URL may hold a password.
            Ok(store) => format!("{}, keys `{prefix}:…`", store.describe()),
            Err(error) => format!("{error:#}"),
        },
        StoreConfig::Sqlite { path } => format!("SQLite, {}", path.display()),
    };
    let _ = writeln!(text, "instance  {}", config.instance);
    let _ = writeln!(text, "store     {store}");
    let _ = writeln!(text, "machine   burns {} of fuel in a millisecond", count(fuel_per_ms));
    for role in &config.roles {
        if let Some(image) = images.of(&role.name) {
            text.push('\n');
            describe_role(&mut text, role, image.as_ref());
            match config.store {
                StoreConfig::Standalone => {
                    text.push_str(
                        "  No store: the lease never ends. A demotion comes with a signal, and takes at most\n",
                    );
                    let _ = writeln!(text, "  {}.", words::duration(role.timing.drain()));
                }
                StoreConfig::Redis { .. } | StoreConfig::Sqlite { .. } => timeline(&mut text, &role.timing),
            }
            fuel(&mut text, role, fuel_per_ms);
        }
    }
    let roles = config.roles.len();
    let _ = writeln!(text, "\n{roles} {}, no problems", if roles == 1 { "role" } else { "roles" });
    text
}

fn describe_role(text: &mut String, role: &RoleConfig, image: &dyn Image) {
    let kind = match image.kind() {
        Kind::Job => "a job",
        Kind::Command => "a command",
    };
    let digest = &image.digest()[..SHORT_DIGEST.min(image.digest().len())];
    let _ = writeln!(text, "role {}: {kind}, {} (sha256 {digest}…)", role.name, role.plugin.display());
    let width = image.imports().iter().map(String::len).max().unwrap_or(0);
    for (at, import) in image.imports().iter().enumerate() {
        let head = if at == 0 { "imports" } else { "" };
        let _ = writeln!(text, "  {head:<9} {import:<width$}  {}", Inspection::given_by(import));
    }
    for (at, grant) in grants(&role.grants).iter().enumerate() {
        let head = if at == 0 { "granted" } else { "" };
        let _ = writeln!(text, "  {head:<9} {grant}");
    }
}

/// What a role grants, a line each. Of a secret only where it comes from.
fn grants(grants: &Grants) -> Vec<String> {
    let mut lines = Vec::new();
    if grants.keyvalue {
        lines.push("keyvalue: the role's state".to_owned());
    }
    lines.extend(grants.http.iter().map(|origin| format!("http: {origin}")));
    lines.extend(grants.env.iter().map(|variable| match variable {
        Variable::OfHost(name) => format!("env: {name}, as the host has it"),
        Variable::Set(name, value) => format!("env: {name}={value}"),
    }));
    lines.extend(grants.secrets.iter().map(|(key, source)| format!("secret: {key}, from {source}")));
    lines.extend(grants.dirs.iter().map(|dir| {
        let may = if dir.write { "read and write" } else { "read" };
        format!("dir: {} is {} for the plugin, to {may}", dir.host.display(), dir.guest)
    }));
    lines
}

/// The longest silence of the store that a leader lives through, as a bar and as a table.
fn timeline(text: &mut String, timing: &Timing) {
    let trust = timing.ttl().saturating_sub(timing.skew());
    let step_down = trust.saturating_sub(timing.drain());
    let demoted = step_down + timing.grace();
    let cut_off = trust.saturating_sub(timing.kill_margin());
    let column = |at: Duration| {
        // A ttl is never zero, and the share never above one.
        (at.as_secs_f64() / timing.ttl().as_secs_f64() * BAR as f64).round() as usize
    };
    let mut bar = "=".repeat(column(step_down));
    bar.extend(std::iter::repeat_n('g', column(demoted).saturating_sub(bar.len())));
    bar.extend(std::iter::repeat_n('d', column(cut_off).saturating_sub(bar.len())));
    bar.extend(std::iter::repeat_n('.', BAR.saturating_sub(bar.len())));
    let _ = writeln!(text, "  After the last renewal that was answered, counted from when it was asked:");
    let _ = writeln!(text, "  [{bar}]  = leads  g grace  d demoted  . over");
    let retry = timing.renew_every() + timing.request_timeout();
    for (at, what) in [
        (timing.renew_every(), "renew"),
        (retry, "no answer: renew again at once, then with back-off"),
        (step_down, "step down: notice to stop; a running tick may finish"),
        (demoted, "`demoted` is called, at the latest"),
        (cut_off, "whatever still runs is cut off"),
        (trust, "trust ends: the gate refuses everything"),
        (timing.ttl(), "the lease runs out in the store: another instance may lead"),
    ] {
        let _ = writeln!(text, "  {:>10}  {what}", words::duration(at));
    }
}

fn fuel(text: &mut String, role: &RoleConfig, fuel_per_ms: u64) {
    let (fuel, within) = (role.stop_fuel, role.timing.within());
    let takes =
        Duration::from_micros(u64::try_from(u128::from(fuel) * 1000 / u128::from(fuel_per_ms)).unwrap_or(u64::MAX));
    let ends = if takes < within { "the fuel ends first" } else { "the time ends first" };
    let _ = writeln!(
        text,
        "  `demoted` has {} and {} of fuel, which last {} on this machine: {ends}.",
        words::duration(within),
        count(fuel),
        words::duration(takes),
    );
}

/// A large number in thousands: `100 million`.
fn count(number: u64) -> String {
    match number {
        0..10_000 => number.to_string(),
        10_000..1_000_000 => format!("{} thousand", number / 1_000),
        _ => format!("{:.1} million", number as f64 / 1e6).replace(".0 ", " "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tenure_core::TimingInput;

    #[test]
    fn the_timeline_of_the_defaults() {
        let timing = Timing::new(&TimingInput::default()).expect("the defaults are valid");
        let mut text = String::new();
        timeline(&mut text, &timing);
        let expected = "  After the last renewal that was answered, counted from when it was asked:
  [=====================================================ggdddd.]  = leads  g grace  d demoted  . over
        10 s  renew
        15 s  no answer: renew again at once, then with back-off
      26.6 s  step down: notice to stop; a running tick may finish
      27.6 s  `demoted` is called, at the latest
      29.6 s  whatever still runs is cut off
      29.7 s  trust ends: the gate refuses everything
        30 s  the lease runs out in the store: another instance may lead
";
        assert_eq!(text, expected);
    }
}

//! One role's table.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use jiff::tz::TimeZone;
use tenure_core::{Timing, TimingError, TimingInput};

use super::RoleName;
use super::grants::read_grants;
use super::section::Section;
use crate::grants::Grants;
use crate::schedule::{Cadence, CatchUp, Delivery, MAX_JITTER, Schedule};
use crate::words;

/// The fuel of `demoted`, where the file does not say.
pub(super) const STOP_FUEL: u64 = 100_000_000;
/// How long a tick may take, where the file does not say.
const TICK_TIMEOUT: Duration = Duration::from_secs(30);
/// A plugin's memory, where the file does not say.
pub(super) const MEMORY: u64 = 64 << 20;
/// The least and the most memory that a plugin may be given.
const MEMORY_BOUNDS: (u64, u64) = (1 << 20, 4 << 30);
/// How many missed slots are made up for, where the file does not say.
const CATCH_UP_MAX: u32 = 100;
/// The most: each is looked for one by one.
const MOST_CATCH_UP: u64 = 1_000;
/// The most failures in a row that a file may ask for.
const MOST_FAILURES: u64 = 1_000_000;

/// One `[role.NAME]`.
#[derive(Debug, Clone)]
pub struct RoleConfig {
    /// The role.
    pub name: RoleName,
    /// The plugin file.
    pub plugin: PathBuf,
    /// The digest that the file must have, in hexadecimal; absent: any.
    pub sha256: Option<String>,
    /// When ticks are.
    pub pace: Pace,
    /// The longest that `elected` or one tick of a job may take.
    pub tick_timeout: Duration,
    /// `wasi:config`.
    pub settings: BTreeMap<String, String>,
    /// The most memory that the plugin may have, in bytes.
    pub memory: u64,
    /// What else it is given.
    pub grants: Grants,
    /// What happens when it fails.
    pub on_failure: OnFailure,
    /// The fuel of `demoted`.
    pub stop_fuel: u64,
    /// The lease and the stop budget.
    pub timing: Timing,
}

/// When a role's ticks are.
#[derive(Debug, Clone)]
pub enum Pace {
    /// As the plugin's own `next` says.
    Plugin,
    /// From the start of one tick to the start of the next.
    Every(Duration),
    /// By the wall clock, each slot once.
    Slots(Arc<Schedule>),
}

/// `on_failure`: what happens when a plugin fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OnFailure {
    /// After so many failures in a row the role is given up, so that another instance gets its chance.
    pub give_up_after: u32,
    /// The wait after the first failure; it doubles with each further one in a row.
    pub back_off: Duration,
    /// The longest wait.
    pub max_back_off: Duration,
}

impl Default for OnFailure {
    fn default() -> Self {
        Self { give_up_after: 5, back_off: Duration::from_millis(100), max_back_off: Duration::from_secs(10) }
    }
}

impl OnFailure {
    /// The wait after so many failures in a row.
    #[must_use]
    pub fn back_off(&self, failures: u32) -> Duration {
        let doublings = failures.saturating_sub(1).min(16);
        self.back_off.saturating_mul(1 << doublings).min(self.max_back_off)
    }
}

/// What a role has where its own table says nothing.
#[derive(Clone)]
pub(super) struct Defaults {
    pub(super) timing: TimingInput,
    pub(super) stop_fuel: u64,
}

pub(super) fn read_lease(section: &Section<'_>, timing: &mut TimingInput) {
    let given = TimingInput {
        ttl: section.duration("ttl"),
        renew_every: section.duration("renew_every"),
        request_timeout: section.duration("request_timeout"),
        skew: section.duration("skew"),
        ..TimingInput::default()
    };
    if given.ttl.is_some() {
        // What was written for another ttl does not fit this one: the rest follows from it anew.
        (timing.renew_every, timing.request_timeout, timing.skew) = (None, None, None);
    }
    timing.ttl = given.ttl.or(timing.ttl);
    timing.renew_every = given.renew_every.or(timing.renew_every);
    timing.request_timeout = given.request_timeout.or(timing.request_timeout);
    timing.skew = given.skew.or(timing.skew);
}

pub(super) fn read_stop(section: &Section<'_>, defaults: &mut Defaults) {
    let timing = &mut defaults.timing;
    timing.grace = section.duration("grace").or(timing.grace);
    timing.within = section.duration("within").or(timing.within);
    defaults.stop_fuel = section.count("fuel").unwrap_or(defaults.stop_fuel);
}

/// A role; none where its table has a mistake that was reported. An error is one of `shared`, for the caller to report.
pub(super) fn read_role(
    name: &str,
    section: Section<'_>,
    folder: &Path,
    shared: &Defaults,
) -> Result<Option<RoleConfig>, TimingError> {
    let name = RoleName::new(name).map_err(|rule| section.problem_here(rule)).ok();
    let plugin = read_plugin(&section, folder);
    let sha256 = read_sha256(&section);
    let mut own = shared.clone();
    if let Some(section) = section.table("lease") {
        read_lease(&section, &mut own.timing);
        section.finish();
    }
    if let Some(section) = section.table("stop") {
        read_stop(&section, &mut own);
        section.finish();
    }
    let pace = read_pace(&section);
    let tick_timeout = section.positive_duration("tick_timeout").unwrap_or(TICK_TIMEOUT);
    let settings = section.table("settings").map(|settings| settings.texts()).unwrap_or_default();
    let memory = section.size("memory", MEMORY_BOUNDS).unwrap_or(MEMORY);
    own.timing.memory = memory;
    let grants = section.table("grants").map(|grants| read_grants(grants, folder)).unwrap_or_default();
    let settings: BTreeMap<_, _> = settings.into_iter().collect();
    if let Some(both) = grants.secrets.keys().find(|key| settings.contains_key(*key)) {
        section.problem_here(format_args!(
            "`{both}` is a setting and a secret; the plugin reads both by the key: rename one"
        ));
    }
    let on_failure =
        section.table("on_failure").map(|section| read_on_failure(section, &mut own.timing)).unwrap_or_default();
    let timing = match Timing::new(&own.timing) {
        Ok(timing) => Some(timing),
        Err(error) if own.timing == shared.timing => {
            section.finish();
            return Err(error);
        }
        Err(error) => {
            section.problem_here(error);
            None
        }
    };
    section.finish();
    let (Some(name), Some(plugin), Some(timing)) = (name, plugin, timing) else { return Ok(None) };
    let stop_fuel = own.stop_fuel;
    Ok(Some(RoleConfig {
        name,
        plugin,
        sha256,
        pace,
        tick_timeout,
        settings,
        memory,
        grants,
        on_failure,
        stop_fuel,
        timing,
    }))
}

fn read_plugin(section: &Section<'_>, folder: &Path) -> Option<PathBuf> {
    let plugin = match section.string("plugin", "a file such as \"plugins/sweeper.wasm\"") {
        Some(("", at)) => {
            section.problem(at, "plugin", "is empty; name a .wasm file");
            None
        }
        Some((plugin, _)) => Some(folder.join(plugin)),
        None => None,
    };
    if !section.has("plugin") {
        section.problem(section.at, "plugin", "is missing; name a .wasm file");
    }
    plugin
}

fn read_sha256(section: &Section<'_>) -> Option<String> {
    let (text, at) = section.string("sha256", "the 64 hexadecimal digits that `sha256sum` prints")?;
    if text.len() != 64 || !text.chars().all(|c| c.is_ascii_hexdigit()) {
        section.problem(at, "sha256", "is no digest; write the 64 hexadecimal digits that `sha256sum` prints");
    }
    Some(text.to_ascii_lowercase())
}

fn read_pace(section: &Section<'_>) -> Pace {
    let every = section.positive_duration("every");
    let cron = section.string("cron", "a pattern such as \"*/5 * * * *\"");
    let zone = section.string("timezone", "a time zone such as \"Europe/Berlin\"");
    let jitter = section.duration("jitter");
    let delivery =
        section.choice("delivery", &[("at-most-once", Delivery::AtMostOnce), ("at-least-once", Delivery::AtLeastOnce)]);
    let catch_up =
        section.choice("catch_up", &[("none", CatchUp::None), ("last", CatchUp::Last), ("all", CatchUp::All(0))]);
    let most = section.count_up_to("catch_up_max", MOST_CATCH_UP).and_then(|most| u32::try_from(most).ok());
    if let (Some(_), Some((_, at))) = (&every, &cron) {
        section.problem(*at, "cron", "stands beside `every`; write one of them");
    }
    if let (Some((_, at)), None) = (&zone, &cron) {
        section.problem(*at, "timezone", "is for `cron`, which is missing; write it, or remove this");
    }
    if let Some(jitter) = jitter.filter(|jitter| *jitter > MAX_JITTER) {
        let at = section.at_key("jitter");
        section.problem(
            at,
            "jitter",
            format_args!("{jitter:?} is too long; write at most {}", words::duration(MAX_JITTER)),
        );
    }
    let by_the_clock = ["jitter", "delivery", "catch_up", "catch_up_max"].into_iter().find(|key| section.has(key));
    let cadence = match (cron, every, by_the_clock) {
        (Some((pattern, at)), _, _) => match Cadence::cron(pattern, read_zone(section, zone)) {
            Ok(cadence) => cadence,
            Err(error) => {
                section.problem(at, "cron", format_args!("{pattern:?} is no pattern ({error}); write five fields, or six with seconds, such as \"*/5 * * * *\""));
                return Pace::Plugin;
            }
        },
        (None, Some(every), Some(_)) if every.as_millis() == 0 || every.subsec_nanos() % 1_000_000 != 0 => {
            section.problem(
                section.at_key("every"),
                "every",
                "has slots in whole milliseconds; write at least \"1ms\"",
            );
            return Pace::Plugin;
        }
        (None, Some(every), Some(_)) => Cadence::Every(every),
        (None, Some(every), None) => return Pace::Every(every),
        (None, None, Some(key)) => {
            section.problem(section.at_key(key), key, "is for a schedule; write `every` or `cron`, or remove this");
            return Pace::Plugin;
        }
        (None, None, None) => return Pace::Plugin,
    };
    let delivery = delivery.unwrap_or(Delivery::AtMostOnce);
    let catch_up = catch_up.unwrap_or(match delivery {
        Delivery::AtMostOnce => CatchUp::Last,
        // Whoever wants no slot lost wants none skipped.
        Delivery::AtLeastOnce => CatchUp::All(0),
    });
    let catch_up = match catch_up {
        CatchUp::All(_) => CatchUp::All(most.unwrap_or(CATCH_UP_MAX)),
        other => {
            if most.is_some() {
                let at = section.at_key("catch_up_max");
                section.problem(at, "catch_up_max", "is for catch_up = \"all\"; write that, or remove this");
            }
            other
        }
    };
    Pace::Slots(Arc::new(Schedule { cadence, jitter: jitter.unwrap_or_default(), delivery, catch_up }))
}

fn read_zone(section: &Section<'_>, zone: Option<(&str, usize)>) -> TimeZone {
    let Some((name, at)) = zone else { return TimeZone::UTC };
    TimeZone::get(name).unwrap_or_else(|_| {
        section.problem(
            at,
            "timezone",
            format_args!("{name:?} is not known; write a name such as \"Europe/Berlin\", or leave it out for UTC"),
        );
        TimeZone::UTC
    })
}

fn read_on_failure(section: Section<'_>, timing: &mut TimingInput) -> OnFailure {
    let default = OnFailure::default();
    timing.cool_down = section.positive_duration("cool_down");
    let give_up_after = section.count_up_to("give_up_after", MOST_FAILURES).and_then(|count| u32::try_from(count).ok());
    let back_off = section.positive_duration("back_off").unwrap_or(default.back_off);
    let max_back_off = section.positive_duration("max_back_off").unwrap_or(default.max_back_off.max(back_off));
    if max_back_off < back_off {
        section.problem(section.at_key("max_back_off"), "max_back_off", "is below back_off; raise it");
    }
    section.finish();
    OnFailure { give_up_after: give_up_after.unwrap_or(default.give_up_after), back_off, max_back_off }
}

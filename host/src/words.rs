//! How numbers are written for people.

use std::time::Duration;

/// A duration with at most three digits and one unit: `1.5 s`, `20 ms`, `3 min`.
#[must_use]
pub fn duration(value: Duration) -> String {
    let seconds = value.as_secs_f64();
    let (number, unit) = match seconds {
        s if s >= 3600.0 => (s / 3600.0, "h"),
        s if s >= 120.0 => (s / 60.0, "min"),
        s if s >= 1.0 || s == 0.0 => (s, "s"),
        s if s >= 1e-3 => (s * 1e3, "ms"),
        s => (s * 1e6, "µs"),
    };
    let digits = if number >= 100.0 {
        0
    } else if number >= 10.0 {
        1
    } else {
        2
    };
    let text = format!("{number:.digits$}");
    let text = if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    format!("{text} {unit}")
}

/// A size in bytes with one unit: `64 MiB`, `1.5 KiB`.
#[must_use]
pub fn bytes(value: u64) -> String {
    const UNITS: [&str; 4] = ["bytes", "KiB", "MiB", "GiB"];
    let mut number = value as f64;
    let mut unit = 0;
    while number >= 1024.0 && unit + 1 < UNITS.len() {
        number /= 1024.0;
        unit += 1;
    }
    let text = if number.fract() == 0.0 { format!("{number:.0}") } else { format!("{number:.1}") };
    format!("{text} {}", UNITS[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_fit_the_size() {
        let written =
            [0, 850, 20_000, 1_500_000, 30_000_000, 600_000_000].map(|us| duration(Duration::from_micros(us)));
        assert_eq!(written, ["0 s", "850 µs", "20 ms", "1.5 s", "30 s", "10 min"]);
    }

    #[test]
    fn sizes_are_in_powers_of_two() {
        assert_eq!([512, 1536, 64 << 20].map(bytes), ["512 bytes", "1.5 KiB", "64 MiB"]);
    }
}

//! A job that does what its settings say, right or wrong: `elected`, `tick` and `demoted` each name a deed (see [`deed`]).
//!
//! `from_tick = N` lets the first N - 1 ticks be good; `after_ms` is the wait between ticks; `ms` is how long `deaf` works.
//! Every instance counts its ticks, says `count N` at each, and hands the count over.

use std::hint::black_box;
use std::thread;
use std::time::{Duration, Instant};

use tenure_guest::{Error, Handoff, Job, Next, Reason, leadership, settings};

struct Rogue {
    count: u64,
    ticks: u64,
    from_tick: u64,
    after: Duration,
}

impl Job for Rogue {
    fn elected(handoff: Option<Handoff>) -> Result<Self, Error> {
        let count = handoff.map_or(Ok(0), |handoff| String::from_utf8_lossy(&handoff.data).parse())?;
        log::info!("elected with {count}");
        deed("elected")?;
        Ok(Self {
            count,
            ticks: 0,
            from_tick: settings::parse("from_tick")?.unwrap_or(1),
            after: Duration::from_millis(settings::parse("after_ms")?.unwrap_or(10)),
        })
    }

    fn tick(&mut self) -> Result<Next, Error> {
        self.ticks += 1;
        self.count += 1;
        log::info!("count {}", self.count);
        if self.ticks >= self.from_tick && deed("tick")? {
            return Ok(Next::Done);
        }
        Ok(Next::after(self.after))
    }

    fn demoted(self, reason: Reason) -> Option<Vec<u8>> {
        log::info!("demoted with {}: {reason:?}", self.count);
        // There is nobody to tell: what it says goes to the log like everything else.
        if let Err(error) = deed("demoted") {
            log::error!("{error}");
        }
        Some(self.count.to_string().into_bytes())
    }

    fn clean_up(reason: Reason) -> Option<Vec<u8>> {
        log::info!("cleaning up: {reason:?}");
        None
    }
}

/// Does what the setting `when` says. True where there is nothing more to do.
#[allow(clippy::panic, reason = "what the tests ask for")]
fn deed(when: &str) -> Result<bool, Error> {
    match settings::get(when).as_deref().unwrap_or("ok") {
        "ok" => {}
        "done" => return Ok(true),
        "error" => return Err("the rogue says no".into()),
        "panic" => panic!("the rogue panics on purpose"),
        "trap" => std::process::abort(),
        "resign" => leadership::resign(),
        "spin" => spin(|| true),
        "sleep" => thread::sleep(Duration::from_secs(3600)),
        "recurse" => {
            black_box(recurse(1));
        }
        "grow" => grow(),
        "fill" => fill(),
        "flood" => (0..100_000).for_each(|line| println!("flood {line}")),
        "log" => (0..100_000).for_each(|line| log::info!("flood {line}")),
        "endless line" => (0..10_000).for_each(|_| print!("{}", "-".repeat(1_000))),
        "hoard" => loop {
            std::mem::forget(leadership::notice());
        },
        "deaf" => {
            let end = Instant::now() + Duration::from_millis(settings::parse("ms")?.unwrap_or(1000));
            spin(|| Instant::now() < end);
        }
        "attentive" => leadership::notice().block(),
        other => return Err(format!("the rogue does not know the deed `{other}`").into()),
    }
    Ok(false)
}

fn spin(mut go_on: impl FnMut() -> bool) {
    let mut number = 1_u64;
    while black_box(go_on()) {
        number = black_box(number.wrapping_mul(3));
    }
}

fn recurse(depth: u64) -> u64 {
    if depth == 0 { 0 } else { recurse(black_box(depth + 1)) + black_box(depth) }
}

/// Nothing can interrupt the one instruction that each round is.
fn fill() {
    let (mut block, mut round) = (vec![0_u8; 60 << 20], 0_u8);
    spin(|| {
        round = round.wrapping_add(1);
        black_box(&mut block).fill(round);
        true
    });
}

fn grow() {
    let mut blocks = Vec::new();
    loop {
        blocks.push(black_box(vec![1_u8; 1 << 20]));
    }
}

tenure_guest::export!(Rogue);

//! A program that knows nothing of Tenure: it works in a loop, and ends when its standard input does.

use std::env;

use wasip2::cli::stdin::get_stdin;
use wasip2::clocks::monotonic_clock;
use wasip2::io::poll::poll;

const SECOND: u64 = 1_000_000_000;

fn main() {
    let role = env::var("TENURE_ROLE").unwrap_or_else(|_| "nobody".to_owned());
    let term = env::var("TENURE_TERM").unwrap_or_else(|_| "0".to_owned());
    let input = get_stdin();
    let end_of_input = input.subscribe();
    for round in 1_u64.. {
        println!("{role} polls, round {round} of term {term}");
        let a_second = monotonic_clock::subscribe_duration(SECOND);
        if poll(&[&end_of_input, &a_second]).contains(&0) {
            break;
        }
    }
    println!("{role} was told to stop, and does");
}

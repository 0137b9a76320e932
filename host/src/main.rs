//! The command line.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use tenure::config::Config;
use tenure::images::Images;
use tenure::logging::{self, LogFormat};
use tenure::{check, supervisor};

/// Leader-only work that never outlives its lease.
#[derive(Parser)]
#[command(version, about)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
    /// How log lines look.
    #[arg(long, value_enum, default_value = "auto", global = true)]
    log_format: LogFormat,
    /// What is logged: a level, or a filter such as `info,plugin=debug`.
    #[arg(long, default_value = "info", env = "TENURE_LOG", global = true)]
    log_level: String,
}

#[derive(Subcommand)]
enum Command {
    /// Run the roles of a file, each for as long as this instance holds its lease.
    ///
    /// The first SIGTERM or SIGINT stops every plugin in order and releases the leases; a second one exits at once.
    Run {
        /// The configuration, in TOML.
        file: PathBuf,
    },
    /// Find everything that is wrong with a file that can be known without its store, and show how a demotion goes.
    Check {
        /// The configuration, in TOML.
        file: PathBuf,
    },
}

/// A stop that was asked for.
const CLEAN: u8 = 0;
/// Something failed.
const FAILURE: u8 = 1;
/// The configuration, or the command line, is wrong.
const CONFIGURATION: u8 = 2;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let _log = match logging::set_up(arguments.log_format, &arguments.log_level) {
        Ok(log) => log,
        Err(error) => return fail(CONFIGURATION, [format!("{error:#}")]),
    };
    match arguments.command {
        Command::Run { file } => match load(&file) {
            Ok((config, images)) => match supervisor::run(config, images) {
                Ok(()) => CLEAN.into(),
                Err(error) => fail(FAILURE, [format!("{error:#}")]),
            },
            Err(problems) => fail(CONFIGURATION, problems),
        },
        Command::Check { file } => match load(&file) {
            Ok((config, images)) => {
                // Who closed the pipe has seen enough.
                let _ = std::io::stdout().write_all(check::report(&config, &images).as_bytes());
                CLEAN.into()
            }
            Err(problems) => fail(CONFIGURATION, problems),
        },
    }
}

/// Reads a configuration and loads its plugins; everything that is wrong with either, not only the first.
fn load(file: &Path) -> Result<(Config, Images), Vec<String>> {
    let load_plugins = |config: &Config| {
        Images::load(config).map_err(|problems| {
            problems.into_iter().map(|problem| format!("{}: {problem}", file.display())).collect::<Vec<_>>()
        })
    };
    match Config::read(file) {
        Ok(config) => load_plugins(&config).map(|images| (config, images)),
        Err(errors) => {
            let mut problems = errors.lines().to_vec();
            problems.extend(errors.rest().and_then(|rest| load_plugins(rest).err()).into_iter().flatten());
            Err(problems)
        }
    }
}

fn fail(code: u8, problems: impl IntoIterator<Item = String>) -> ExitCode {
    let mut stderr = std::io::stderr();
    for problem in problems {
        let _ = writeln!(stderr, "tenure: {problem}");
    }
    code.into()
}

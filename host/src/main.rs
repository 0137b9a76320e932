//! The command line.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use tenure::author::{inspect, new, run};
use tenure::config::Config;
use tenure::images::Images;
use tenure::logging::{self, LogFormat};
use tenure::{check, supervisor};
use tokio::sync::watch;

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
    /// Write plugins: begin one, look into it, and run it without a store.
    #[command(subcommand)]
    Plugin(PluginCommand),
}

#[derive(Subcommand)]
enum PluginCommand {
    /// Say what a plugin file is, which interfaces it imports and exports, and which grants it needs.
    Inspect {
        /// The plugin file.
        file: PathBuf,
    },
    /// Run one plugin without a store and without a configuration: it is elected at once, and Ctrl-C demotes it.
    Run(run::Options),
    /// Make a folder with a project for a new plugin, which builds with `make`.
    New {
        /// The folder to make, and the plugin's name.
        name: String,
        /// What to write it in.
        #[arg(long, value_enum)]
        lang: new::Language,
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
            Ok((config, images)) => end(start(config, images)),
            Err(problems) => fail(CONFIGURATION, problems),
        },
        Command::Check { file } => match load(&file) {
            Ok((config, images)) => print(&check::report(&config, &images)),
            Err(problems) => fail(CONFIGURATION, problems),
        },
        Command::Plugin(PluginCommand::Inspect { file }) => match inspect::report(&file) {
            Ok(report) => print(&report),
            Err(error) => fail(CONFIGURATION, [format!("{error:#}")]),
        },
        Command::Plugin(PluginCommand::Run(options)) => match run::run(&options) {
            Ok(outcome) => end(outcome),
            Err(problems) => fail(CONFIGURATION, problems),
        },
        Command::Plugin(PluginCommand::New { name, lang }) => match new::create(Path::new(""), &name, lang) {
            Ok(_) => print(&new::what_next(&name)),
            Err(error) => fail(FAILURE, [format!("{error:#}")]),
        },
    }
}

/// Runs until a signal stops it: nobody else asks.
fn start(config: Config, images: Images) -> anyhow::Result<()> {
    let store = supervisor::open_store(&config)?;
    let (_nobody, asked) = watch::channel(false);
    supervisor::run(config, images, store, asked).map(drop)
}

fn end(outcome: anyhow::Result<()>) -> ExitCode {
    match outcome {
        Ok(()) => CLEAN.into(),
        Err(error) => fail(FAILURE, [format!("{error:#}")]),
    }
}

fn print(text: &str) -> ExitCode {
    // Who closed the pipe has seen enough.
    let _ = std::io::stdout().write_all(text.as_bytes());
    CLEAN.into()
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

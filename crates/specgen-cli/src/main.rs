//! The `specgen` command: exact speculative decoding on your own machine.
#![forbid(unsafe_code)]

mod args;
mod batch;
mod bench;
mod chat;
mod flags;
mod generate;
mod input;
mod inspect;
mod interrupt;
mod list;
mod load;
mod output;
mod page;
mod progress;
mod prompt;
mod pull;
mod samples;
mod score;
mod tokens;
mod trace;
mod verify;

use std::process::ExitCode;

use anyhow::Result;
use args::{Cli, Command, UsageError};
use clap::Parser;
use output::{ClosedOutput, chain, note};

/// The program's table of contents.
fn run(cli: &Cli) -> Result<ExitCode> {
    interrupt::install()?;
    choose_isa()?;
    match &cli.command {
        Command::Generate(args) => generate::run(args),
        Command::Chat(args) => chat::run(args),
        Command::Pull(args) => pull::run(args),
        Command::List(args) => list::run(args),
        Command::Inspect(args) => inspect::run(args),
        Command::Batch(args) => batch::run(args),
        Command::Score(args) => score::run(args),
        Command::Bench(args) => bench::run(args),
        Command::Verify(args) => verify::run(args),
    }
}

/// The instruction set of the CPU kernels, where the user wants another than the best. Results are the same
/// with any.
fn choose_isa() -> Result<()> {
    let Some(wanted) = std::env::var_os("SPECGEN_CPU") else { return Ok(()) };
    let wanted = wanted.to_string_lossy();
    if wanted.is_empty() {
        return Ok(());
    }
    specgen::device::choose_cpu_isa(&wanted)
        .map_err(|error| UsageError(format!("SPECGEN_CPU: {error}")).into())
}

fn main() -> ExitCode {
    match run(&Cli::parse()) {
        Ok(code) => code,
        // Whoever read our output has had enough, as `head` has.
        Err(error) if error.is::<ClosedOutput>() => ExitCode::SUCCESS,
        Err(error) => {
            note(format_args!("specgen: error: {}", chain(&error)));
            ExitCode::from(if is_usage(&error) { 2 } else { 1 })
        }
    }
}

/// Whether the command line is to blame, be it seen at once or only with the model at hand.
fn is_usage(error: &anyhow::Error) -> bool {
    let is_parameter = |error: &specgen::Error| matches!(error, specgen::Error::Parameter { .. });
    error.is::<UsageError>() || error.downcast_ref().is_some_and(is_parameter)
}

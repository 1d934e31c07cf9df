//! The `specgen` command: exact speculative decoding on your own machine.
#![forbid(unsafe_code)]

mod args;
mod chat;
mod flags;
mod generate;
mod input;
mod inspect;
mod interrupt;
mod list;
mod load;
mod output;
mod progress;
mod prompt;
mod pull;

use std::process::ExitCode;

use anyhow::Result;
use args::{Cli, Command, UsageError};
use clap::Parser;
use output::{ClosedOutput, chain, note};

/// The program's table of contents.
fn run(cli: &Cli) -> Result<ExitCode> {
    interrupt::install()?;
    match &cli.command {
        Command::Generate(args) => generate::run(args),
        Command::Chat(args) => chat::run(args),
        Command::Pull(args) => pull::run(args),
        Command::List(args) => list::run(args),
        Command::Inspect(args) => inspect::run(args),
    }
}

fn main() -> ExitCode {
    match run(&Cli::parse()) {
        Ok(code) => code,
        // Whoever read our output has had enough, as `head` has.
        Err(error) if error.is::<ClosedOutput>() => ExitCode::SUCCESS,
        Err(error) => {
            note(format_args!("specgen: error: {}", chain(&error)));
            ExitCode::from(if error.is::<UsageError>() { 2 } else { 1 })
        }
    }
}

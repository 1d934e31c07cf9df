//! `specgen pull`: models onto this machine, and a check of those that are there.

use std::process::ExitCode;

use anyhow::Result;

use crate::{
    args::PullArgs,
    output::{chain, counted, note, print},
    progress,
};

pub(crate) fn run(args: &PullArgs) -> Result<ExitCode> {
    let store = args.store()?;
    let progress = progress::reporter(args.quiet);
    let mut failed = 0;
    for name in &args.names {
        match store.pull(name, &*progress) {
            Ok(files) => {
                for path in &files.weights {
                    print(&format!("{}\n", path.display()))?;
                }
            }
            // The others can still be had.
            Err(error) if args.names.len() > 1 => {
                note(format_args!("specgen: error: {}", chain(&error.into())));
                failed += 1;
            }
            Err(error) => return Err(error.into()),
        }
    }
    match failed {
        0 => Ok(ExitCode::SUCCESS),
        _ => anyhow::bail!("{} of {} not fetched", failed, counted(args.names.len(), "model")),
    }
}

//! Ctrl-C: ends the answer while there is one, the program otherwise.

use std::{
    process::ExitCode,
    sync::atomic::{AtomicU8, Ordering},
};

use anyhow::{Context, Result};

/// What a shell expects of a program that Ctrl-C ended: 128 + SIGINT.
const INTERRUPTED: u8 = 130;

const IDLE: u8 = 0;
const ANSWERING: u8 = 1;
const STOPPING: u8 = 2;

static STATE: AtomicU8 = AtomicU8::new(IDLE);

/// The exit code of a run that was interrupted.
pub(crate) fn exit_code() -> ExitCode {
    ExitCode::from(INTERRUPTED)
}

/// Starts to listen.
///
/// # Errors
/// Where the system has no more handlers to give.
pub(crate) fn install() -> Result<()> {
    ctrlc::set_handler(|| {
        let stop = STATE.compare_exchange(ANSWERING, STOPPING, Ordering::Relaxed, Ordering::Relaxed);
        // Nothing to end but the program, or the answer takes too long to notice.
        if stop.is_err() {
            std::process::exit(INTERRUPTED.into());
        }
    })
    .context("Ctrl-C cannot be listened to")
}

/// While this lives, the first Ctrl-C is for the answer.
pub(crate) struct Answering(());

impl Answering {
    /// An answer begins.
    pub(crate) fn begin() -> Self {
        STATE.store(ANSWERING, Ordering::Relaxed);
        Self(())
    }

    /// Whether it should end.
    pub(crate) fn is_interrupted(&self) -> bool {
        STATE.load(Ordering::Relaxed) == STOPPING
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        STATE.store(IDLE, Ordering::Relaxed);
    }
}

//! Ctrl-C: ends the answer while there is one; otherwise the program, unless a person is in a conversation with it.

use std::{
    process::ExitCode,
    sync::atomic::{AtomicBool, AtomicU8, Ordering},
};

use anyhow::{Context, Result};

use crate::output::note;

/// What a shell expects of a program that Ctrl-C ended: 128 + SIGINT.
const INTERRUPTED: u8 = 130;

/// Told where Ctrl-C has nothing to stop.
pub(crate) const HOW_TO_LEAVE: &str = "Ctrl-D or /quit leaves";
/// Told where it has to be patient.
const STOPPING: &str = "the answer stops after this pass; Ctrl-C once more ends the program";

/// There is no answer to stop.
const NO_ANSWER: u8 = u8::MAX;

/// How often Ctrl-C came during this answer.
static PRESSES: AtomicU8 = AtomicU8::new(NO_ANSWER);
static IN_CONVERSATION: AtomicBool = AtomicBool::new(false);

/// The exit code of a run that was interrupted.
pub(crate) fn exit_code() -> ExitCode {
    ExitCode::from(INTERRUPTED)
}

/// What one more Ctrl-C means.
#[derive(Debug, PartialEq, Eq)]
enum Meaning {
    StopAnswer,
    Tell(&'static str),
    EndProgram,
}

/// `presses`: how often it came before during this answer, `None` where there is none.
fn meaning(in_conversation: bool, presses: Option<u8>) -> Meaning {
    match (in_conversation, presses) {
        (_, Some(0)) => Meaning::StopAnswer,
        (true, Some(1)) => Meaning::Tell(STOPPING),
        (true, None) => Meaning::Tell(HOW_TO_LEAVE),
        // Nothing to end but the program, or the answer takes too long to notice.
        _ => Meaning::EndProgram,
    }
}

/// Starts to listen.
///
/// # Errors
/// Where the system has no more handlers to give.
pub(crate) fn install() -> Result<()> {
    ctrlc::set_handler(|| {
        let count =
            |presses: u8| (presses != NO_ANSWER).then(|| presses.saturating_add(1).min(NO_ANSWER - 1));
        let presses = PRESSES.fetch_update(Ordering::Relaxed, Ordering::Relaxed, count).ok();
        match meaning(IN_CONVERSATION.load(Ordering::Relaxed), presses) {
            Meaning::StopAnswer => {}
            Meaning::Tell(text) => note(format_args!("\n{text}")),
            Meaning::EndProgram => std::process::exit(INTERRUPTED.into()),
        }
    })
    .context("Ctrl-C cannot be listened to")
}

/// While this lives, Ctrl-C without an answer to stop ends nothing.
pub(crate) struct Conversation(());

impl Conversation {
    /// A conversation begins.
    pub(crate) fn begin() -> Self {
        IN_CONVERSATION.store(true, Ordering::Relaxed);
        Self(())
    }
}

impl Drop for Conversation {
    fn drop(&mut self) {
        IN_CONVERSATION.store(false, Ordering::Relaxed);
    }
}

/// While this lives, the first Ctrl-C is for the answer.
pub(crate) struct Answering(());

impl Answering {
    /// An answer begins.
    pub(crate) fn begin() -> Self {
        PRESSES.store(0, Ordering::Relaxed);
        Self(())
    }

    /// Whether it should end.
    pub(crate) fn is_interrupted(&self) -> bool {
        PRESSES.load(Ordering::Relaxed) > 0
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        PRESSES.store(NO_ANSWER, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_is_for_the_answer_and_a_conversation_is_not_lost_by_impatience() {
        let told = Meaning::Tell;
        for (in_conversation, presses, wanted) in [
            (false, None, Meaning::EndProgram),
            (false, Some(0), Meaning::StopAnswer),
            (false, Some(1), Meaning::EndProgram),
            (true, None, told(HOW_TO_LEAVE)),
            (true, Some(0), Meaning::StopAnswer),
            (true, Some(1), told(STOPPING)),
            (true, Some(2), Meaning::EndProgram),
        ] {
            assert_eq!(meaning(in_conversation, presses), wanted, "{in_conversation} {presses:?}");
        }
    }
}

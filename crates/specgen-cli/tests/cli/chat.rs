//! `chat` over a pipe: one line a turn.

use crate::{Run, real_model, run, specgen};

fn chat(words: &[&str], lines: &str) -> Option<Run> {
    let model = real_model()?;
    Some(run(specgen(&["chat", "-m", model, "--greedy", "-n", "16"]).args(words).write_stdin(lines)))
}

#[test]
fn two_turns_and_a_reset() {
    let Some(found) =
        chat(&[], "My name is Ada.\nWhat is my name?\n/stats\n/reset\n/stats\nMy name is Ada.\n")
    else {
        return;
    };
    let stderr = found.stderr.clone();
    let text = found.ok();
    assert!(!text.contains('>'), "no prompt where nobody types: {text}");
    assert!(
        stderr.contains("\n2 turns, context ") && stderr.contains("a new conversation\nno answer yet\n"),
        "{stderr}"
    );
    let alone = chat(&[], "My name is Ada.\n").unwrap().ok();
    assert!(!alone.trim().is_empty());
    assert!(
        text.starts_with(&alone) && text.ends_with(&alone),
        "the first turn and the one after /reset: {text}"
    );
    assert!(text.len() > 2 * alone.len(), "the second turn answers too: {text}");
}

#[test]
fn the_second_turn_hears_the_first() {
    let Some(with) = chat(&[], "Remember the word tangerine.\nWhich word?\n") else { return };
    let without = chat(&[], "Which word?\n").unwrap().ok();
    let with = with.ok();
    let first = chat(&[], "Remember the word tangerine.\n").unwrap().ok();
    assert_ne!(with.strip_prefix(&first), Some(without.as_str()));
}

#[test]
fn commands() {
    let Some(found) =
        chat(&[], "/help\n/frobnicate\n/quit now\n/system Be brief.\n/system\n\n/quit\nnever said\n")
    else {
        return;
    };
    let stderr = found.stderr.clone();
    assert_eq!(found.ok(), "");
    for wanted in [
        "/reset        forget",
        "unknown command /frobnicate; /help lists them",
        "/quit         leave, as /exit and Ctrl-D do",
        "/quit stands alone; `now` is too much",
        "system message set\nno system message\n",
    ] {
        assert!(stderr.contains(wanted), "{wanted} in {stderr}");
    }
}

#[test]
fn a_full_context_and_a_bad_line_are_told_and_survived() {
    let long = "This line is said to fill a context that was made very small on purpose. ".repeat(4);
    let mut lines = b"b\xFFd\n".to_vec();
    lines.extend(format!("{long}\n/reset\nHi!\n").into_bytes());
    let Some(model) = real_model() else { return };
    let words = ["chat", "-m", model, "--greedy", "-n", "8", "--context", "60"];
    let found = run(specgen(&words).write_stdin(lines));
    assert!(
        found.stderr.contains("specgen: error: line 1 on stdin is not UTF-8: byte 1"),
        "{}",
        found.stderr
    );
    assert!(found.stderr.contains("but the context holds 60; /reset starts a new one"), "{}", found.stderr);
    assert!(!found.stdout.trim().is_empty(), "the turn after both is answered");
    assert_eq!(found.code, Some(1), "a script hears that a turn failed");
}

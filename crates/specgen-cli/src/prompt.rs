//! Where a prompt comes from: the command line or stdin.

use std::io::{IsTerminal, Read};

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use specgen::{Prompt, chat::Message};

use crate::args::UsageError;

/// What a text starts from, as files of prompts and of requests say it.
#[derive(Debug)]
pub(crate) enum Start {
    Text(String),
    Messages(Vec<Message>),
}

impl Start {
    pub(crate) fn prompt(&self) -> Prompt<'_> {
        match self {
            Self::Text(text) => Prompt::Text(text),
            Self::Messages(messages) => Prompt::Messages(messages),
        }
    }
}

/// A message in such a file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Turn {
    role: String,
    content: String,
}

impl From<Turn> for Message {
    fn from(turn: Turn) -> Self {
        Self::new(&turn.role, &turn.content)
    }
}

/// More text than any context holds; what is longer is no prompt, and may never end.
pub(crate) const MAX_PROMPT_BYTES: u64 = 64 << 20;

/// The prompt, from `argument` or stdin. From stdin the last line end is dropped, as it is the shell's, unless the
/// text is to be taken as it is.
///
/// # Errors
/// A [`UsageError`] where there is no prompt or an empty one; text that is not UTF-8.
pub(crate) fn read(argument: Option<&str>, as_it_is: bool) -> Result<String> {
    let prompt = match argument {
        Some("-") => read_stdin(as_it_is)?,
        Some(prompt) => prompt.to_owned(),
        None if std::io::stdin().is_terminal() => {
            let message = "no prompt; give one, as in `specgen generate \"Why is the sky blue?\"`, or `-` to read stdin";
            bail!(UsageError(message.into()));
        }
        None => read_stdin(as_it_is)?,
    };
    if prompt.is_empty() {
        bail!(UsageError("the prompt is empty; give at least one character".into()));
    }
    Ok(prompt)
}

fn read_stdin(as_it_is: bool) -> Result<String> {
    let mut bytes = Vec::new();
    let num_read = std::io::stdin().take(MAX_PROMPT_BYTES + 1).read_to_end(&mut bytes).context("stdin")?;
    if num_read as u64 > MAX_PROMPT_BYTES {
        bail!("the prompt on stdin is longer than {} MiB, which no context holds", MAX_PROMPT_BYTES >> 20);
    }
    let mut text = utf8(bytes).map_err(|at| not_utf8("the prompt on stdin", at))?;
    if !as_it_is {
        drop_line_end(&mut text);
    }
    Ok(text)
}

/// The text of a file, or of stdin where that is `-`, as it is and however long.
///
/// # Errors
/// A file that cannot be read; text that is not UTF-8.
pub(crate) fn read_file(file: &str) -> Result<String> {
    let mut bytes = Vec::new();
    let (name, read) = match file {
        "-" => ("stdin", std::io::stdin().read_to_end(&mut bytes)),
        file => (file, std::fs::File::open(file).and_then(|mut file| file.read_to_end(&mut bytes))),
    };
    read.with_context(|| name.to_owned())?;
    utf8(bytes).map_err(|at| not_utf8(name, at))
}

/// The error for bytes that are no text.
pub(crate) fn not_utf8(what: &str, at: usize) -> anyhow::Error {
    anyhow::anyhow!(
        "{what} is not UTF-8: byte {at} (counted from 0) begins no character; convert it first (iconv)"
    )
}

/// The text, or the offset of the first byte that is none.
pub(crate) fn utf8(bytes: Vec<u8>) -> std::result::Result<String, usize> {
    String::from_utf8(bytes).map_err(|error| error.utf8_error().valid_up_to())
}

/// Drops one line end.
pub(crate) fn drop_line_end(text: &mut String) {
    if text.ends_with('\n') {
        text.pop();
        if text.ends_with('\r') {
            text.pop();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_end_is_dropped() {
        for (text, wanted) in
            [("a\n", "a"), ("a\r\n", "a"), ("a\n\n", "a\n"), ("a", "a"), ("a\r", "a\r"), ("", "")]
        {
            let mut dropped = text.to_owned();
            drop_line_end(&mut dropped);
            assert_eq!(dropped, wanted, "{text:?}");
        }
    }

    #[test]
    fn the_first_bad_byte_is_named() {
        assert_eq!(utf8(b"ab\xC3\xA9\xFFc".to_vec()), Err(4));
        assert_eq!(utf8(b"ab\xC3".to_vec()), Err(2));
        assert_eq!(utf8("é".into()), Ok("é".into()));
    }
}

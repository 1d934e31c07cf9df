//! The lines of a chat: typed at a prompt with history, or from a pipe.

use std::{
    io::{BufRead, IsTerminal, Read},
    path::PathBuf,
};

use anyhow::{Context, Result, bail};
use rustyline::{Behavior, Config, DefaultEditor, error::ReadlineError};

use crate::{
    output::note,
    prompt::{MAX_PROMPT_BYTES, drop_line_end, not_utf8, utf8},
};

const PROMPT: &str = "> ";

/// Where lines come from.
pub(crate) enum Input {
    /// A person: a prompt, line editing, and a history kept in this file.
    Terminal { editor: Box<DefaultEditor>, history: PathBuf },
    /// A program: lines as they are.
    Pipe { line: usize },
}

/// A line, or why there is none.
pub(crate) enum Line {
    Text(String),
    /// A line that is no text; the next may be.
    Bad(anyhow::Error),
    /// Ctrl-C at the prompt.
    Interrupted,
    End,
}

impl Input {
    /// A prompt with the history kept in the file `history` where stdin is a terminal, lines as they are elsewhere.
    ///
    /// # Errors
    /// A terminal that cannot be used.
    pub(crate) fn open(history: PathBuf) -> Result<Self> {
        if !std::io::stdin().is_terminal() {
            return Ok(Self::Pipe { line: 0 });
        }
        // The prompt must not end in a file that stdout goes to.
        let behavior = if std::io::stdout().is_terminal() { Behavior::Stdio } else { Behavior::PreferTerm };
        let config = Config::builder().behavior(behavior).auto_add_history(true).build();
        let mut editor = Box::new(DefaultEditor::with_config(config).context("the terminal cannot be used")?);
        // There is none the first time.
        let _ = editor.load_history(&history);
        Ok(Self::Terminal { editor, history })
    }

    pub(crate) fn is_terminal(&self) -> bool {
        matches!(self, Self::Terminal { .. })
    }

    /// The next line.
    ///
    /// # Errors
    /// A terminal or pipe that fails.
    pub(crate) fn next_line(&mut self) -> Result<Line> {
        match self {
            Self::Terminal { editor, .. } => match editor.readline(PROMPT) {
                Ok(text) => Ok(Line::Text(text)),
                Err(ReadlineError::Eof) => Ok(Line::End),
                Err(ReadlineError::Interrupted) => Ok(Line::Interrupted),
                Err(ReadlineError::Io(error)) if error.kind() == std::io::ErrorKind::InvalidData => {
                    Ok(Line::Bad(anyhow::anyhow!("the line is not UTF-8; it was not sent")))
                }
                Err(error) => Err(error).context("the terminal cannot be read"),
            },
            Self::Pipe { line } => {
                *line += 1;
                read_line(&mut std::io::stdin().lock(), *line)
            }
        }
    }

    /// Keeps the history for the next time.
    pub(crate) fn close(self) {
        if let Self::Terminal { mut editor, history } = self {
            let folder = history.parent().map_or(Ok(()), std::fs::create_dir_all);
            let saved = folder.map_err(ReadlineError::from).and_then(|()| editor.save_history(&history));
            if let Err(error) = saved {
                note(format_args!("the history was not kept: {}: {error}", history.display()));
            }
        }
    }
}

fn read_line(input: &mut impl BufRead, number: usize) -> Result<Line> {
    let mut bytes = Vec::new();
    let num_read = input.take(MAX_PROMPT_BYTES + 1).read_until(b'\n', &mut bytes).context("stdin")?;
    if num_read as u64 > MAX_PROMPT_BYTES {
        bail!("line {number} on stdin is longer than {} MiB, which no context holds", MAX_PROMPT_BYTES >> 20);
    }
    Ok(match utf8(bytes) {
        _ if num_read == 0 => Line::End,
        Ok(mut text) => {
            drop_line_end(&mut text);
            Line::Text(text)
        }
        Err(at) => Line::Bad(not_utf8(&format!("line {number} on stdin"), at)),
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn lines_of_a_pipe() {
        let mut input = &b"one\r\n\nb\xFFd\nlast"[..];
        let mut next = || match read_line(&mut input, 3).unwrap() {
            Line::Text(text) => text,
            Line::Bad(error) => error.to_string(),
            Line::Interrupted | Line::End => "end".into(),
        };
        assert_eq!((next(), next()), ("one".into(), String::new()));
        let bad = next();
        assert!(bad.starts_with("line 3 on stdin is not UTF-8: byte 1"), "{bad}");
        assert_eq!((next(), next()), ("last".into(), "end".into()));
    }
}

//! The prompts of a bench: one JSON object a line.

use std::{num::NonZeroUsize, path::Path};

use anyhow::{Context, Result, anyhow, bail};
use serde::Deserialize;
use specgen::{Prompt, chat::Message};

use crate::prompt::{Start, Turn};

/// What is measured where the user names no file: edits, retrieval, code, talk, JSON, translation.
const BUILT_IN: &str = include_str!("../../prompts/prompts.jsonl");

/// One prompt.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    id: String,
    #[serde(default)]
    category: Option<String>,
    #[serde(default)]
    messages: Vec<Turn>,
    /// Text as it is, instead of messages.
    #[serde(default)]
    prompt: Option<String>,
    #[serde(default)]
    max_tokens: Option<NonZeroUsize>,
}

/// What a text starts from, and of what kind it is.
#[derive(Debug)]
pub(crate) struct BenchPrompt {
    pub(crate) id: String,
    pub(crate) category: String,
    pub(crate) max_tokens: Option<usize>,
    start: Start,
}

impl BenchPrompt {
    pub(crate) fn prompt(&self) -> Prompt<'_> {
        self.start.prompt()
    }
}

/// The prompts of `file`, or the built-in ones; of the `wanted` categories only, if any are named.
///
/// # Errors
/// A file that cannot be read, a line that is no prompt, a category without prompts.
pub(crate) fn read(file: Option<&Path>, wanted: &[String]) -> Result<Vec<BenchPrompt>> {
    let (name, text) = match file {
        Some(file) => {
            let name = file.display().to_string();
            (name.clone(), std::fs::read_to_string(file).with_context(|| name)?)
        }
        None => ("the built-in prompts".to_owned(), BUILT_IN.to_owned()),
    };
    let mut prompts = parse(&name, &text)?;
    for category in wanted {
        if !prompts.iter().any(|prompt| prompt.category == *category) {
            let known = categories(&prompts).join(", ");
            bail!("{name}: no prompt of category `{category}`; there are {known}");
        }
    }
    prompts.retain(|prompt| wanted.is_empty() || wanted.contains(&prompt.category));
    Ok(prompts)
}

/// The categories of `prompts`, each once, in their order.
pub(crate) fn categories(prompts: &[BenchPrompt]) -> Vec<&str> {
    let mut categories: Vec<&str> = Vec::new();
    for prompt in prompts {
        if !categories.contains(&prompt.category.as_str()) {
            categories.push(&prompt.category);
        }
    }
    categories
}

fn parse(name: &str, text: &str) -> Result<Vec<BenchPrompt>> {
    // Editors on Windows put a byte-order mark before a text.
    let lines =
        text.trim_start_matches('\u{feff}').lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let prompts: Vec<_> = lines
        .map(|(i, line)| {
            let at = || format!("{name}, line {}", i + 1);
            let line: Line = serde_json::from_str(line).map_err(|error| anyhow!("{}: {error}", at()))?;
            let start = match (line.prompt, line.messages.is_empty()) {
                (Some(text), true) if text.is_empty() => bail!("{}: the prompt is empty", at()),
                (Some(text), true) => Start::Text(text),
                (None, false) => Start::Messages(line.messages.into_iter().map(Message::from).collect()),
                _ => bail!("{}: a prompt has either `messages` or `prompt`", at()),
            };
            let category = line.category.unwrap_or_else(|| "all".into());
            Ok(BenchPrompt {
                id: line.id,
                category,
                max_tokens: line.max_tokens.map(NonZeroUsize::get),
                start,
            })
        })
        .collect::<Result<_>>()?;
    if prompts.is_empty() {
        bail!("{name}: no prompts; wanted a JSON object a line, with `id` and `messages`");
    }
    Ok(prompts)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_built_in_prompts_are_there_by_category() {
        let all = read(None, &[]).unwrap();
        assert_eq!(all.len(), 18);
        let edits = read(None, &["code_edit".into()]).unwrap();
        assert_eq!(edits.len(), 3);
        assert!(matches!(edits[0].prompt(), Prompt::Messages(messages) if messages.len() == 1));
        let error = read(None, &["poems".into()]).unwrap_err().to_string();
        assert!(error.contains("`poems`") && error.contains("code_edit, code"), "{error}");
    }

    #[test]
    fn a_line_that_is_no_prompt_is_named() {
        for (text, wanted) in [
            ("", "no prompts"),
            ("{\"id\": \"a\", \"prompt\": \"x\"}\nnothing", "p.jsonl, line 2: expected"),
            ("{\"id\": \"a\"}", "line 1: a prompt has either"),
            ("\n{\"id\": \"a\", \"prompt\": \"\"}", "p.jsonl, line 2: the prompt is empty"),
            (
                "{\"id\": \"a\", \"prompt\": \"x\", \"max_tokens\": 0}",
                "line 1: invalid value: integer `0`, expected a nonzero",
            ),
            ("{\"id\": \"a\", \"prompt\": \"x\", \"tokens\": 3}", "unknown field `tokens`"),
        ] {
            let error = parse("p.jsonl", text).unwrap_err().to_string();
            assert!(error.contains(wanted), "{error}");
        }
        assert_eq!(parse("p.jsonl", "\u{feff}{\"id\": \"a\", \"prompt\": \"x\"}\r\n").unwrap().len(), 1);
    }
}

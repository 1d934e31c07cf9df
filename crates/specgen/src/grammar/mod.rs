//! Grammars: what a text may be, as a JSON schema, a regular expression or a Lark grammar.
//!
//! A [`Grammar`] is text until an engine compiles it for its tokens, once; every sequence then keeps its own
//! place in it. At each position, drafted ones included, tokens that the grammar does not allow after the
//! tokens before are banned, and those that end a text are banned where the grammar does not end. What is
//! left keeps its proportions: any spelling in tokens of an allowed text is allowed. A text that `max_tokens`
//! or a stop string ends is cut where it stands.

#[cfg(not(feature = "grammar"))]
mod absent;
#[cfg(feature = "grammar")]
mod compiled;
mod schema;
mod walk;

use std::{fmt, sync::Arc};

use serde_json::Value;

use crate::{Error, Result};

#[cfg(not(feature = "grammar"))]
use absent as compiled;

pub use compiled::Vocabulary;
pub(crate) use walk::Walk;

/// What a text may be. Cloning shares.
///
/// ```
/// use specgen::{SamplingParams, grammar::Grammar};
///
/// let grammar = Grammar::regex("(yes|no)");
/// let params = SamplingParams { grammar: Some(grammar), ..SamplingParams::default() };
/// ```
#[derive(Clone)]
pub struct Grammar {
    language: Language,
    text: Arc<str>,
    name: Option<Arc<str>>,
    /// Where every text begins, for the tokens it was compiled for.
    start: Option<Arc<Start>>,
}

/// A compiled grammar.
struct Start {
    vocabulary: Vocabulary,
    place: compiled::Place,
}

/// What a grammar is written in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Language {
    JsonSchema,
    Regex,
    Lark,
}

impl Language {
    /// What errors call the parameter.
    fn parameter(self) -> &'static str {
        match self {
            Self::JsonSchema => "json_schema",
            Self::Regex => "regex",
            Self::Lark => "grammar",
        }
    }
}

impl Grammar {
    /// Texts that are JSON and fit a JSON schema. White space between tokens is the model's choice, unless
    /// the schema has `"x-guidance": {"whitespace_flexible": false}`; the other options there are
    /// llguidance's too. A keyword that is not supported is an error when it is compiled.
    pub fn json_schema(schema: impl AsRef<str>) -> Self {
        Self::new(Language::JsonSchema, schema.as_ref())
    }

    /// Texts that match a regular expression from their first to their last character (the syntax of the
    /// `regex` crate, without anchors and word boundaries).
    pub fn regex(regex: impl AsRef<str>) -> Self {
        Self::new(Language::Regex, regex.as_ref())
    }

    /// Texts of a context-free grammar in llguidance's dialect of Lark: `start: "a" | "(" start ")"`.
    pub fn lark(grammar: impl AsRef<str>) -> Self {
        Self::new(Language::Lark, grammar.as_ref())
    }

    fn new(language: Language, text: &str) -> Self {
        // Editors on Windows put a byte-order mark before a file; in a regular expression it is a character.
        let text = if language == Language::Regex { text } else { text.trim_start_matches('\u{feff}') };
        Self { language, text: text.into(), name: None, start: None }
    }

    /// The same with a name for errors: the file it came from.
    #[must_use]
    pub fn named(self, name: impl AsRef<str>) -> Self {
        Self { name: Some(name.as_ref().into()), ..self }
    }

    /// The grammar's text.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The same, compiled for the tokens of `vocabulary`; at once where it already is. An engine with a
    /// tokenizer sees to this itself.
    ///
    /// # Errors
    /// [`Error::Parameter`] that says where and what is wrong; [`Error::Unsupported`] in a build without
    /// grammars.
    pub fn compile(&self, vocabulary: &Vocabulary) -> Result<Self> {
        if self.start.as_ref().is_some_and(|start| start.vocabulary.is(vocabulary)) {
            return Ok(self.clone());
        }
        self.check()?;
        let place = vocabulary.compile(self.language, &self.text).map_err(|problem| self.error(&problem))?;
        let start = Start { vocabulary: vocabulary.clone(), place };
        Ok(Self { start: Some(Arc::new(start)), ..self.clone() })
    }

    /// What can be told without tokens.
    ///
    /// # Errors
    /// [`Error::Parameter`].
    pub(crate) fn check(&self) -> Result<()> {
        if self.text.trim().is_empty() {
            return Err(self.error("is empty; it would allow nothing"));
        }
        match self.language {
            Language::JsonSchema => match serde_json::from_str(&self.text) {
                Ok(schema @ (Value::Object(_) | Value::Bool(_))) => match schema::ignored_keyword(&schema) {
                    None => Ok(()),
                    Some(path) => Err(self.error(&format!(
                        "has a keyword that is not supported, at {path}; correct it or leave it out, or have such \
                         ignored by \"x-guidance\": {{\"lenient\": true}}"
                    ))),
                },
                Ok(_) => {
                    Err(self.error("is no JSON schema; an object is wanted, such as {\"type\": \"object\"}"))
                }
                Err(error) => Err(self.error(&format!("is not JSON: {error}"))),
            },
            Language::Lark if self.text.contains("::=") => {
                let wanted = "is GBNF or BNF (`::=`); Lark is wanted: `start: \"yes\" | \"no\"`";
                Err(self.error(wanted))
            }
            Language::Lark | Language::Regex => Ok(()),
        }
    }

    /// `problem` is one line, or is made one.
    fn error(&self, problem: &str) -> Error {
        let name = self.name.iter().map(|name| format!("{name}:"));
        let words = name.chain(problem.split_whitespace().map(str::to_owned));
        Error::parameter(self.language.parameter(), words.collect::<Vec<_>>().join(" "))
    }
}

/// Two grammars are equal if their language and text are.
impl PartialEq for Grammar {
    fn eq(&self, other: &Self) -> bool {
        (self.language, &self.text) == (other.language, &other.text)
    }
}

impl fmt::Debug for Grammar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Grammar").field(&self.language).field(&self.text).finish()
    }
}

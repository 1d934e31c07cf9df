//! The options that say what a text may be: clap type, turned into the library's grammar.

use std::path::{Path, PathBuf};

use clap::Args;
use specgen::grammar::Grammar;

use super::UsageError;

#[derive(Debug, Args)]
#[command(next_help_heading = "Grammar")]
#[group(id = "constraint", multiple = false)]
pub(crate) struct GrammarArgs {
    /// Say JSON that fits this schema: a file, or the schema itself
    #[arg(long, value_name = "FILE|SCHEMA")]
    json_schema: Option<String>,
    /// Say a text that matches this regular expression as a whole
    #[arg(long, value_name = "RE", allow_hyphen_values = true)]
    regex: Option<String>,
    /// Say a text of the Lark grammar in this file
    #[arg(long, value_name = "FILE")]
    grammar: Option<PathBuf>,
}

impl GrammarArgs {
    /// The grammar that is asked for, if any; whether it compiles is told by the model's tokens.
    pub(super) fn grammar(&self) -> Result<Option<Grammar>, UsageError> {
        let read = |path: &Path, option: &str| {
            let text = std::fs::read_to_string(path);
            text.map_err(|error| UsageError(format!("{option} {}: {error}", path.display())))
        };
        if let Some(schema) = &self.json_schema {
            // `true` and `false` are schemas too; a file of such a name has a path, `./true`.
            if schema.trim_start().starts_with('{') || matches!(schema.trim(), "true" | "false") {
                return Ok(Some(Grammar::json_schema(schema)));
            }
            return Ok(Some(Grammar::json_schema(read(Path::new(schema), "--json-schema")?).named(schema)));
        }
        if let Some(path) = &self.grammar {
            let grammar = Grammar::lark(read(path, "--grammar")?);
            return Ok(Some(grammar.named(path.to_string_lossy())));
        }
        Ok(self.regex.as_ref().map(Grammar::regex))
    }
}

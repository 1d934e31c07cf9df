//! `generate --trace`: every round of a text, as lines of JSON or as a page.

mod page;

use std::{path::Path, time::Duration};

use anyhow::{Context, Result};
use serde::Serialize;
use specgen::{Engine, Generation, RoundRecord};

use crate::{
    output::{JsonStats, write},
    tokens::JsonText,
};

/// A text whose rounds were recorded.
pub(crate) struct Traced<'a, 's> {
    pub(crate) engine: &'a Engine,
    /// Who drafts, as the user would write it.
    pub(crate) draft: &'a str,
    pub(crate) generation: &'a Generation<'s>,
    /// Why it ended: a finish reason, `interrupted` or `error`.
    pub(crate) ending: &'a str,
}

/// A round as a line.
#[derive(Serialize)]
struct Line<'a> {
    /// From 1.
    round: usize,
    /// Who was asked for a draft, if anybody.
    source: Option<&'a str>,
    /// For how many tokens at most.
    k: usize,
    drafted: Vec<Drafted>,
    accepted: usize,
    committed: Vec<JsonText>,
    draft_ms: f64,
    verify_ms: f64,
    other_ms: f64,
}

/// A drafted token.
#[derive(Serialize)]
struct Drafted {
    #[serde(flatten)]
    token: JsonText,
    /// Who guessed it.
    source: &'static str,
    /// Its place in the draft, from 1.
    position: usize,
    accepted: bool,
}

/// The last line.
#[derive(Serialize)]
struct Totals<'a> {
    model: &'a str,
    draft: &'a str,
    plan: String,
    seed: u64,
    verify: &'a str,
    finish_reason: &'a str,
    stats: JsonStats<'a>,
}

impl<'a> Traced<'a, '_> {
    /// Writes the trace: a page to a file of that name, lines to any other.
    ///
    /// # Errors
    /// A file that cannot be written, by name.
    pub(crate) fn write(&self, file: &Path) -> Result<()> {
        let is_page = file.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("html"));
        write(file, &if is_page { page::page(self)? } else { self.lines()? })
    }

    fn lines(&self) -> Result<String> {
        let mut lines = String::new();
        for (i, record) in self.generation.records().iter().enumerate() {
            lines += &serde_json::to_string(&self.line(i, record)).context("JSON")?;
            lines.push('\n');
        }
        let totals = serde_json::json!({ "totals": self.totals() });
        Ok(format!("{lines}{totals}\n"))
    }

    fn line(&self, index: usize, record: &RoundRecord) -> Line<'a> {
        let told = |&id: &u32| JsonText::new(self.engine.tokenizer(), id);
        let depth = |i: usize| std::iter::successors(record.parents[i], |&i| record.parents[i]).count();
        let drafted = |(i, id): (usize, &u32)| Drafted {
            token: told(id),
            source: record.sources[i].name(),
            position: depth(i) + 1,
            accepted: record.path.contains(&i),
        };
        let round = &record.round;
        Line {
            round: index + 1,
            source: (record.k > 0).then_some(self.draft),
            k: record.k,
            drafted: record.drafted.iter().enumerate().map(drafted).collect(),
            accepted: round.num_accepted,
            committed: record.committed.iter().map(told).collect(),
            draft_ms: millis(round.draft),
            verify_ms: millis(round.verify),
            other_ms: millis(round.other),
        }
    }

    fn totals(&self) -> Totals<'_> {
        Totals {
            model: self.engine.name(),
            draft: self.draft,
            plan: self.engine.plan().to_string(),
            seed: self.generation.seed(),
            verify: self.generation.verification().name(),
            finish_reason: self.ending,
            stats: JsonStats::from(self.generation.stats()),
        }
    }
}

/// To a thousandth: beyond is noise.
fn millis(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e6).round() / 1e3
}

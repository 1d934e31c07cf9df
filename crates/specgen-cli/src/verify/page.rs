//! A proof as a page with charts: one file, nothing to fetch.

use anyhow::Result;
use serde::Serialize;
use specgen::Engine;
use specgen_proof::outcomes::Outcome;

use super::{
    Verified,
    text::{p_value, quoted},
};
use crate::page::{Page, short};

/// Cells drawn of each test; the others are counted.
const MAX_BARS: usize = 12;
/// Characters of a label that fit.
const LABEL: usize = 20;

const TEMPLATE: &str = include_str!("page.html");

/// A test of next tokens as it is drawn.
#[derive(Serialize)]
struct Chart<'a> {
    holds: bool,
    /// The p-value in words.
    p: String,
    /// The longest bar.
    most: f64,
    bars: Vec<Bar>,
    hidden: usize,
    #[serde(flatten)]
    outcome: &'a Outcome,
}

#[derive(Serialize)]
struct Bar {
    label: String,
    /// As much of it as fits.
    short: String,
    expected: f64,
    /// What chance makes of it 19 times of 20.
    spread: f64,
    observed: usize,
}

pub(super) fn page(verified: &Verified<'_>, engine: &Engine) -> Result<String> {
    let report = verified.report;
    let charts: Vec<Chart<'_>> =
        report.outcomes.iter().map(|outcome| chart(outcome, verified, engine)).collect();
    let acceptance_holds: Vec<bool> =
        report.acceptance.iter().map(|check| report.acceptance_holds(check)).collect();
    let identity_holds: Vec<bool> = report.identity.iter().map(|check| check.holds()).collect();
    let rules_hold: Vec<bool> = report.rules.iter().map(|check| check.holds()).collect();
    Page::new(TEMPLATE)?.with_number_filter("p_value", p_value).render(minijinja::context! {
        v => verified, charts, acceptance_holds, identity_holds, rules_hold,
        vocabulary_holds => verified.vocabulary.holds(),
    })
}

fn chart<'a>(outcome: &'a Outcome, verified: &Verified<'_>, engine: &Engine) -> Chart<'a> {
    let samples = outcome.samples as f64;
    let bars: Vec<Bar> = outcome
        .cells
        .iter()
        .take(MAX_BARS)
        .map(|cell| {
            let missing = outcome.len > cell.tokens.len();
            let label = match (cell.tokens.is_empty(), missing) {
                (true, _) => "all others".to_owned(),
                (false, true) => quoted(&cell.tokens, engine) + " …",
                (false, false) => quoted(&cell.tokens, engine),
            };
            let p = cell.expected / samples;
            let spread = 1.96 * (samples * p * (1.0 - p)).max(0.0).sqrt();
            Bar {
                short: short(&label, LABEL),
                label,
                expected: cell.expected,
                spread,
                observed: cell.observed,
            }
        })
        .collect();
    Chart {
        holds: verified.report.outcome_holds(outcome),
        p: p_value(outcome.test.p_value),
        most: bars.iter().map(|bar| (bar.expected + bar.spread).max(bar.observed as f64)).fold(1.0, f64::max),
        hidden: outcome.cells.len() - bars.len(),
        bars,
        outcome,
    }
}

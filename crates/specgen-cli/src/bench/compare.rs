//! `specgen bench --compare`: what changed between two benches, and what of it is more than their runs differ anyway.

use std::{collections::BTreeMap, fmt::Write as _, path::Path, process::ExitCode};

use anyhow::{Context, Result, anyhow, bail};
use serde::Serialize;
use serde_json::Value;

use super::{
    median, over,
    result::{BenchResult, Row, Text},
    rounded,
};
use crate::output::{print, print_json};

pub(super) fn run(before: &Path, after: &Path, json: bool) -> Result<ExitCode> {
    let (a, b) = (read(before)?, read(after)?);
    if a.len() != b.len() {
        bail!("{} has {} targets and {} {}", before.display(), a.len(), after.display(), b.len());
    }
    let comparisons: Vec<_> = a.iter().zip(&b).map(|(a, b)| Comparison::new(a, b)).collect();
    if json {
        print_json(&comparisons)?;
    } else {
        print(&comparisons.iter().map(Comparison::text).collect::<Vec<_>>().join("\n"))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The results in `file`, one for each target.
fn read(file: &Path) -> Result<Vec<BenchResult>> {
    let name = file.display();
    let text = std::fs::read_to_string(file).with_context(|| name.to_string())?;
    let results: Vec<BenchResult> = serde_json::Deserializer::from_str(text.trim_start_matches('\u{feff}'))
        .into_iter::<BenchResult>()
        .collect::<serde_json::Result<_>>()
        .map_err(|error| anyhow!("{name}: not what `specgen bench --json` writes of texts: {error}"))?;
    match results.is_empty() {
        true => bail!("{name}: empty; the output of `specgen bench --json` is wanted"),
        false => Ok(results),
    }
}

/// Two results of one target.
#[derive(Debug, Serialize)]
struct Comparison {
    model: String,
    /// What else differs: machine, settings, what was measured at all.
    differences: Vec<String>,
    rows: Vec<Compared>,
}

/// One contestant on one category.
#[derive(Debug, Serialize)]
struct Compared {
    category: String,
    draft: String,
    tokens_per_second: Change,
    speed_up: Change,
}

/// A figure before and after.
#[derive(Debug, Serialize)]
struct Change {
    before: f64,
    after: f64,
    /// After over before: the median over prompts that both have, else of the figures themselves.
    ratio: f64,
    verdict: Verdict,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Verdict {
    /// Beyond the spread of the runs.
    More,
    Less,
    /// The runs differ as much among themselves.
    WithinSpread,
    /// No prompt in common, or a single run of each, has no spread.
    Unknown,
}

/// The values of one prompt, by repetition.
type ByPrompt<'a> = BTreeMap<&'a str, Vec<f64>>;

impl Comparison {
    fn new(before: &BenchResult, after: &BenchResult) -> Self {
        let mut differences = differences(before, after);
        let mut rows = Vec::new();
        let same = |a: &Row, b: &Row| a.category == b.category && a.draft == b.draft;
        let missing = |row: &Row, when: &str| format!("only {when}: {} with {}", row.category, row.draft);
        for a in &before.categories {
            match after.categories.iter().find(|b| same(a, b)) {
                Some(b) => rows.push(compared((before, a), (after, b))),
                None => differences.push(missing(a, "before")),
            }
        }
        for b in &after.categories {
            if !before.categories.iter().any(|a| same(a, b)) {
                differences.push(missing(b, "after"));
            }
        }
        Self { model: after.model.clone(), differences, rows }
    }

    fn text(&self) -> String {
        let mut text = format!("{}: after against before\n", self.model);
        for difference in &self.differences {
            let _ = writeln!(text, "  {difference}");
        }
        let width = |name: fn(&Compared) -> &str, least| {
            self.rows.iter().map(|row| name(row).chars().count()).max().unwrap_or(0).max(least)
        };
        let (first, second) = (width(|row| &row.category, 11), width(|row| &row.draft, 10));
        let _ = writeln!(
            text,
            "{:<first$} {:<second$}  tok/s before   after  ratio  {:<13}  speed-up before  after  ratio",
            "category", "draft", ""
        );
        for row in &self.rows {
            let (rate, up) = (&row.tokens_per_second, &row.speed_up);
            let line = format!(
                "{:<first$} {:<second$}  {:12.1} {:7.1} {:6.2}  {:<13}  {:15.2} {:6.2} {:6.2}  {}",
                row.category,
                row.draft,
                rate.before,
                rate.after,
                rate.ratio,
                rate.verdict.word(["faster", "slower"]),
                up.before,
                up.after,
                up.ratio,
                up.verdict.word(["more", "less"]),
            );
            let _ = writeln!(text, "{}", line.trim_end());
        }
        if self.rows.iter().any(|row| row.tokens_per_second.verdict == Verdict::Unknown) {
            text += "?: the spread is not known; it takes the same prompts and two rounds or more (--reps) of each\n";
        }
        text
    }
}

impl Verdict {
    fn word(self, [more, less]: [&'static str; 2]) -> &'static str {
        match self {
            Self::More => more,
            Self::Less => less,
            Self::WithinSpread => "within spread",
            Self::Unknown => "?",
        }
    }
}

/// What differs of two results beside their figures, so that these may not be comparable.
fn differences(before: &BenchResult, after: &BenchResult) -> Vec<String> {
    let fields = |result: &BenchResult| {
        let BenchResult { engine, version, build, model, machine, settings, .. } = result;
        let top = [("engine", engine), ("version", version), ("build", build), ("model", model)];
        let mut fields: Vec<(String, Value)> =
            top.map(|(name, value)| (name.to_owned(), value.clone().into())).into();
        for part in [serde_json::to_value(machine), serde_json::to_value(settings)] {
            // Plain structs of numbers and text: there is always an object.
            fields.extend(part.ok().and_then(|part| part.as_object().cloned()).into_iter().flatten());
        }
        fields
    };
    let pairs = fields(before).into_iter().zip(fields(after));
    let differing = pairs.filter(|((_, a), (_, b))| a != b);
    differing.map(|((name, a), (_, b))| format!("{name} differs: {a} before, {b} after")).collect()
}

fn compared((before, a): (&BenchResult, &Row), (after, b): (&BenchResult, &Row)) -> Compared {
    let (rates_before, rates_after) = (rates(&before.texts, a), rates(&after.texts, b));
    let (ups_before, ups_after) = (speed_ups(before, a), speed_ups(after, b));
    Compared {
        category: a.category.clone(),
        draft: a.draft.clone(),
        tokens_per_second: change(a.tokens_per_second, b.tokens_per_second, &rates_before, &rates_after),
        speed_up: change(a.speed_up, b.speed_up, &ups_before, &ups_after),
    }
}

fn rates<'a>(texts: &'a [Text], row: &Row) -> ByPrompt<'a> {
    let mut rates = ByPrompt::new();
    for text in texts.iter().filter(|text| text.category == row.category && text.draft == row.draft) {
        rates.entry(&text.prompt).or_default().push(text.tokens_per_second);
    }
    rates
}

/// Rates over plain decoding's of the same round.
fn speed_ups<'a>(result: &'a BenchResult, row: &Row) -> ByPrompt<'a> {
    let here: Vec<&Text> = result.texts.iter().filter(|text| text.category == row.category).collect();
    let mut ups = ByPrompt::new();
    for text in here.iter().filter(|text| text.draft == row.draft) {
        let is_its_plain = |plain: &&&Text| {
            plain.draft == "none" && plain.prompt == text.prompt && plain.round == text.round
        };
        if let Some(plain) = here.iter().find(is_its_plain) {
            let up = over(text.tokens_per_second, plain.tokens_per_second);
            ups.entry(&text.prompt).or_default().push(up);
        }
    }
    ups
}

/// A change is beyond the spread of the runs where, over prompts, even the slowest of the faster side's repetitions is
/// before the fastest of the other's (the medians over prompts of these ratios).
fn change(before: f64, after: f64, runs_before: &ByPrompt<'_>, runs_after: &ByPrompt<'_>) -> Change {
    let both: Vec<_> =
        runs_before.iter().filter_map(|(prompt, a)| Some((a, runs_after.get(prompt)?))).collect();
    let least = |values: &[f64]| values.iter().copied().fold(f64::INFINITY, f64::min);
    let most = |values: &[f64]| values.iter().copied().fold(0.0, f64::max);
    let over_prompts =
        |ratio: &dyn Fn(&[f64], &[f64]) -> f64| median(both.iter().map(|(a, b)| ratio(a, b)).collect());
    let ratio = match both.is_empty() {
        true => over(after, before),
        false => over_prompts(&|a, b| over(median(b.to_vec()), median(a.to_vec()))),
    };
    let has_spread = !both.is_empty() && both.iter().all(|(a, b)| a.len().min(b.len()) > 1);
    let (low, high) =
        (over_prompts(&|a, b| over(least(b), most(a))), over_prompts(&|a, b| over(most(b), least(a))));
    let verdict = match (has_spread, low > 1.0, high < 1.0) {
        (false, ..) => Verdict::Unknown,
        (_, true, _) => Verdict::More,
        (.., true) => Verdict::Less,
        _ => Verdict::WithinSpread,
    };
    Change { before, after, ratio: rounded(ratio), verdict }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::result::tests::example;

    #[test]
    fn what_changed_is_told_by_category_and_draft() {
        let (before, mut after) = (example(), example());
        after.machine.cpu = Some("Another".into());
        after.settings.temperature = 0.5;
        after.categories.retain(|row| (row.category.as_str(), row.draft.as_str()) != ("<talk>", "ngram"));
        for text in after.texts.iter_mut().filter(|text| text.draft == "ngram") {
            text.tokens_per_second *= 2.0;
        }
        let comparison = Comparison::new(&before, &after);
        let differences = comparison.differences.join("\n");
        assert_eq!(
            differences,
            "cpu differs: \"A CPU\" before, \"Another\" after\n\
             temperature differs: 0.0 before, 0.5 after\n\
             only before: <talk> with ngram"
        );
        let verdicts: Vec<_> =
            comparison.rows.iter().map(|row| (&*row.draft, row.tokens_per_second.verdict)).collect();
        let same = ("none", Verdict::WithinSpread);
        assert_eq!(verdicts, [same, ("ngram", Verdict::More), same]);
        assert_eq!(
            (comparison.rows[1].speed_up.ratio, comparison.rows[1].speed_up.verdict),
            (2.0, Verdict::More)
        );
        let text = comparison.text();
        assert!(text.contains("faster") && text.contains("within spread") && !text.contains('?'), "{text}");
    }

    fn change_of(before: &[&[f64]], after: &[&[f64]]) -> Change {
        const NAMES: [&str; 3] = ["a", "b", "c"];
        let by_prompt = |runs: &[&[f64]]| -> ByPrompt<'static> {
            NAMES.into_iter().zip(runs.iter().map(|runs| runs.to_vec())).collect()
        };
        change(10.0, 20.0, &by_prompt(before), &by_prompt(after))
    }

    #[test]
    fn a_change_is_told_where_runs_do_not_overlap() {
        let faster = change_of(&[&[10.0, 11.0], &[50.0, 51.0]], &[&[12.0, 13.0], &[61.0, 60.0]]);
        assert_eq!(
            (faster.verdict, faster.ratio),
            (Verdict::More, rounded((12.5 / 10.5 + 60.5 / 50.5) / 2.0))
        );
        let slower = change_of(&[&[12.0, 13.0]], &[&[10.0, 11.0]]);
        assert_eq!(slower.verdict, Verdict::Less);
        let same = change_of(&[&[10.0, 12.0, 14.0]], &[&[13.0, 15.0, 17.0]]);
        assert_eq!(same.verdict, Verdict::WithinSpread);
        // Prompts differ among themselves by far more, which is no spread of runs.
        let apart = change_of(&[&[10.0, 11.0], &[500.0, 510.0]], &[&[12.0, 13.0], &[600.0, 610.0]]);
        assert_eq!(apart.verdict, Verdict::More);
    }

    #[test]
    fn without_runs_to_compare_no_verdict_is_given() {
        let once = change_of(&[&[10.0]], &[&[12.0]]);
        assert_eq!((once.verdict, once.ratio), (Verdict::Unknown, 1.2));
        let nothing = change_of(&[], &[&[12.0, 13.0]]);
        assert_eq!((nothing.verdict, nothing.ratio), (Verdict::Unknown, 2.0));
        assert_eq!(change_of(&[&[0.0, 0.0]], &[&[0.0, 0.0]]).ratio, 0.0);
    }
}

//! What a bench of texts found, as tables.

use std::fmt::Write as _;

use super::result::{BenchResult, Row};

/// Positions in a draft that are shown; JSON and page have all.
const MAX_POSITIONS: usize = 8;

pub(super) fn text(result: &BenchResult) -> String {
    let settings = &result.settings;
    let mut text = format!(
        "{}: {}, k = {}, {} prompts, {} rounds, {}\n",
        result.model,
        result.sampling(),
        settings.plans.join(", "),
        settings.num_prompts,
        settings.rounds,
        result.machine.isa,
    );
    if let Some(bound) = &result.bound {
        let _ = writeln!(
            text,
            "a plain read of the target's {:.1} MB takes {:.2} ms: {:.1} tok/s at most without speculation",
            bound.bytes_per_pass as f64 * 1e-6,
            bound.read_ms,
            bound.tokens_per_second
        );
    }
    let width = |name: fn(&Row) -> &str, least| {
        result.categories.iter().map(|row| name(row).chars().count()).max().unwrap_or(0).max(least)
    };
    let (first, second) = (width(|row| &row.category, 11), width(|row| &row.draft, 10));
    let names = |row: &Row| format!("{:<first$} {:<second$}", row.category, row.draft);
    let _ = writeln!(
        text,
        "{:<first$} {:<second$}   tok/s  (from   to)  speed-up  worst  predicted  accepted  tok/round  draft  verify  other  first token  same text",
        "category", "draft"
    );
    for row in &result.categories {
        let _ = writeln!(text, "{} {}", names(row), speeds(row));
    }
    let _ = writeln!(
        text,
        "\n{:<first$} {:<second$}  ms a token: p50    p95    p99  ms a round: p50    p95    p99  accepted of drafted at 1, 2, 3, …",
        "category", "draft"
    );
    for row in &result.categories {
        let _ = writeln!(text, "{} {}", names(row), rounds(row).trim_end());
    }
    text
}

fn speeds(row: &Row) -> String {
    let accepted = match row.has_drafted() {
        true => format!("{:.0} %", 100.0 * row.acceptance_rate),
        false => "-".into(),
    };
    let [draft, verify, other] = row.shares();
    format!(
        "{:7.1} {:6.1} {:6.1} {:8.2} {:6.2} {:10.2} {accepted:>9} {:10.2} {draft:4.0} % {verify:5.0} % {other:4.0} % {:9.0} ms {:>6} of {}",
        row.tokens_per_second,
        row.slowest,
        row.fastest,
        row.speed_up,
        row.worst_speed_up,
        row.predicted_speed_up,
        row.tokens_per_round,
        row.first_token_ms,
        row.identical_texts,
        row.texts,
    )
}

fn rounds(row: &Row) -> String {
    let (token, round) = (row.token_ms, row.round_ms);
    let shown = row.acceptance_by_position.iter().take(MAX_POSITIONS);
    let mut positions: Vec<String> = shown.map(|share| format!("{:3.0} %", 100.0 * share)).collect();
    if row.acceptance_by_position.len() > MAX_POSITIONS {
        positions.push("…".into());
    }
    format!(
        "{:16.1} {:6.1} {:6.1} {:16.1} {:6.1} {:6.1}  {}",
        token.p50,
        token.p95,
        token.p99,
        round.p50,
        round.p95,
        round.p99,
        positions.join(" ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::result::tests::example;

    #[test]
    fn figures_stand_below_their_names() {
        let text = text(&example());
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 13, "{text}");
        assert_eq!(lines[0], "a <model>: greedy, k = 2, 2 prompts, 2 rounds, avx2");
        assert!(
            lines[1].ends_with("100.0 MB takes 10.00 ms: 100.0 tok/s at most without speculation"),
            "{text}"
        );
        for (heading, rows) in [(2, 3..7), (8, 9..13)] {
            let end = |line: &str, what: &str| line.find(what).map(|at| at + what.len());
            let (name, figure) = if heading == 2 { ("speed-up", "2.00") } else { ("p99", "30.0") };
            assert_eq!(end(lines[heading], name), end(lines[rows.start + 1], figure), "{text}");
        }
        assert!(lines[10].ends_with(" 33.0   75 %  50 %"), "{text}");
    }
}

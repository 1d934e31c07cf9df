//! What benches of texts found, as a page with charts: one file, nothing to fetch.

use anyhow::Result;
use serde::Serialize;

use super::result::{BenchResult, Row};
use crate::page::Page;

const TEMPLATE: &str = include_str!("page.html");

/// A result as it is drawn.
#[derive(Serialize)]
struct Drawn<'a> {
    r: &'a BenchResult,
    sampling: String,
    /// Plain decoding first; a contestant's place is its colour.
    names: Vec<&'a str>,
    groups: Vec<Group<'a>>,
    /// The ends of the scales.
    most_speed_up: f64,
    most_ms: f64,
}

#[derive(Serialize)]
struct Group<'a> {
    category: &'a str,
    rows: Vec<DrawnRow<'a>>,
    /// The longest draft.
    positions: usize,
}

#[derive(Serialize)]
struct DrawnRow<'a> {
    /// Drafting, verification, the rest, in percent.
    shares: [f64; 3],
    #[serde(flatten)]
    row: &'a Row,
}

pub(super) fn page(results: &[BenchResult]) -> Result<String> {
    let results: Vec<Drawn<'_>> = results.iter().map(drawn).collect();
    Page::new(TEMPLATE)?.render(minijinja::context! { results })
}

fn drawn(result: &BenchResult) -> Drawn<'_> {
    let most = |figure: fn(&Row) -> f64, least| result.categories.iter().map(figure).fold(least, f64::max);
    Drawn {
        r: result,
        sampling: result.sampling(),
        names: result.by_category().next().unwrap_or_default().iter().map(|row| &*row.draft).collect(),
        groups: result.by_category().map(group).collect(),
        // There is always something beyond the line at 1.
        most_speed_up: most(|row| row.speed_up.max(row.predicted_speed_up), 1.25),
        most_ms: most(|row| row.token_ms.p99, f64::MIN_POSITIVE),
    }
}

fn group(rows: &[Row]) -> Group<'_> {
    Group {
        category: &rows[0].category,
        positions: rows.iter().map(|row| row.acceptance_by_position.len()).max().unwrap_or(0),
        rows: rows.iter().map(|row| DrawnRow { shares: row.shares(), row }).collect(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::bench::result::tests::example;

    #[test]
    fn a_page_has_every_chart_and_escapes_names() {
        let (one, mut plain) = (example(), example());
        plain.categories.retain(|row| row.draft == "none");
        let page = page(&[one, plain]).unwrap();
        assert!(page.contains("a &lt;model&gt;") && page.contains("&lt;talk&gt;"), "{page}");
        assert!(!page.contains("<talk>") && !page.contains("<model>") && !page.contains("http"));
        for (title, count) in [("Speed-up over", 1), ("Where the time goes", 2), ("Time of a token", 2)] {
            assert_eq!(page.matches(title).count(), count, "{title}");
        }
        assert!(page.contains("ngram: 30 of 40 (75 %)"), "{page}");
    }
}

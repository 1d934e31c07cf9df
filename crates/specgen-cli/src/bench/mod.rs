//! `specgen bench`: what speculation brings on texts, and with `--kernels` the passes it lives on.

mod passes;
pub(crate) mod prompts;
mod report;
mod texts;

use std::{process::ExitCode, time::Duration};

use anyhow::Result;
use serde_json::{Value, json};

use crate::args::BenchArgs;

pub(crate) fn run(args: &BenchArgs) -> Result<ExitCode> {
    if args.kernels { passes::run(args) } else { texts::run(args) }
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

fn ratio(a: Duration, b: Duration) -> f64 {
    a.as_secs_f64() / b.as_secs_f64()
}

/// To a thousandth: beyond is noise.
fn rounded(x: f64) -> Value {
    json!((x * 1e3).round() / 1e3)
}

/// The middle value; 0 of none.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => 0.0,
        n if n % 2 == 1 => values[n / 2],
        n => (values[n / 2 - 1] + values[n / 2]) / 2.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(median(vec![]), 0.0);
        assert_eq!(median(vec![3.0, 1.0, 9.0]), 3.0);
        assert_eq!(median(vec![4.0, 1.0, 2.0, 9.0]), 3.0);
    }
}

//! `specgen bench`: what speculation brings on texts, and with `--kernels` the passes it lives on.

mod compare;
mod figures;
mod page;
mod passes;
pub(crate) mod prompts;
mod report;
mod result;
mod texts;

use std::{process::ExitCode, time::Duration};

use anyhow::Result;

use crate::args::BenchArgs;

pub(crate) fn run(args: &BenchArgs) -> Result<ExitCode> {
    match &args.compare[..] {
        [before, after] => compare::run(before, after, args.json),
        _ if args.kernels => passes::run(args),
        _ => texts::run(args),
    }
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

fn ratio(a: Duration, b: Duration) -> f64 {
    a.as_secs_f64() / b.as_secs_f64()
}

/// `a` in units of `b`; 0 where there is nothing to divide by.
fn over(a: f64, b: f64) -> f64 {
    if b > 0.0 { a / b } else { 0.0 }
}

/// To a thousandth: beyond is noise.
fn rounded(x: f64) -> f64 {
    (x * 1e3).round() / 1e3
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

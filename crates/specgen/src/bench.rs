//! What a pass costs: the number of rows that speculation gets for the price of one is all that it lives on.

use std::time::{Duration, Instant};

use crate::{
    cache::KvCache,
    error::Result,
    model::{Batch, Model, Output, PROMPT_CHUNK, Rows, Slice},
};

/// Tokens in the cache before every pass.
pub const CONTEXT: usize = 64;
/// Up to so many rows all have logits, as a verification needs them; above, none, as in a prompt.
pub const VERIFY_ROWS: usize = 32;

/// Passes of one number of rows.
#[derive(Clone, Debug)]
pub struct PassTime {
    /// Rows.
    pub rows: usize,
    /// Median over the repetitions.
    pub median: Duration,
    /// The fastest.
    pub best: Duration,
    /// By kind of operation, in the median of passes; empty unless the model was loaded with clocks.
    pub ops: Vec<(&'static str, Duration)>,
}

/// Times passes of `rows` rows over `model`, `reps` of each after one to warm up, with 64 tokens in the
/// cache. `tick` is called before each number of rows.
///
/// # Errors
/// A failing model, or a context too short for the rows.
pub fn pass_times(
    model: &dyn Model,
    rows: &[usize],
    reps: usize,
    mut tick: impl FnMut(usize),
) -> Result<Vec<PassTime>> {
    let mut passes = Passes::new(model)?;
    let mut times = Vec::with_capacity(rows.len());
    for &rows in rows {
        tick(rows);
        let mut all = Vec::with_capacity(reps);
        for _ in 0..=reps.max(1) {
            model.op_times();
            all.push((passes.time(rows)?, model.op_times()));
        }
        all.remove(0); // to warm up
        all.sort_by_key(|(time, _)| *time);
        let best = all[0].0;
        let (median, ops) = all.swap_remove(all.len() / 2);
        times.push(PassTime { rows, median, best, ops });
    }
    Ok(times)
}

/// Passes behind a short context.
pub(crate) struct Passes<'a> {
    model: &'a dyn Model,
    cache: KvCache,
    out: Output,
    context: usize,
    num_timed: usize,
}

impl<'a> Passes<'a> {
    /// Behind 64 tokens, or fewer where the model's context is short.
    pub(crate) fn new(model: &'a dyn Model) -> Result<Self> {
        let context = CONTEXT.min(model.info().context_len.saturating_sub(PROMPT_CHUNK)).max(1);
        let (cache, out) = (model.new_cache(), Output::new());
        let mut passes = Self { model, cache, out, context, num_timed: 0 };
        passes.feed(0, context)?;
        Ok(passes)
    }

    /// The most rows a pass can have.
    pub(crate) fn room(&self) -> usize {
        self.model.info().context_len - self.context
    }

    /// The time of a pass of `rows` rows.
    pub(crate) fn time(&mut self, rows: usize) -> Result<Duration> {
        self.cache.truncate(self.context);
        // Other tokens each time, so that nothing is found where it was left.
        self.num_timed += 1;
        let start = Instant::now();
        self.feed(7 * self.num_timed, rows)?;
        Ok(start.elapsed())
    }

    fn feed(&mut self, first: usize, rows: usize) -> Result<()> {
        let vocab_size = self.model.info().vocab_size;
        let tokens: Vec<u32> = (first..first + rows).map(|i| ((100 + i) % vocab_size) as u32).collect();
        let wanted = if rows <= VERIFY_ROWS { Rows::All } else { Rows::None };
        for chunk in tokens.chunks(PROMPT_CHUNK) {
            let slice = Slice { cache: &mut self.cache, tokens: chunk, rows: wanted, tree: None };
            self.model.forward(&mut Batch { slices: vec![slice], taps: &[] }, &mut self.out)?;
        }
        Ok(())
    }
}

/// The time it takes to read the weights a pass reads and do nothing with them: the median of `reps`.
pub fn read_time(model: &dyn Model, reps: usize) -> Duration {
    let mut times: Vec<_> = (0..reps.max(1))
        .map(|_| {
            let start = Instant::now();
            model.read_weights();
            start.elapsed()
        })
        .collect();
    times.sort();
    times[times.len() / 2]
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::model::ToyModel;

    #[test]
    fn every_number_of_rows_is_timed() {
        let model = ToyModel::new(50, 7, 8.0);
        let mut seen = Vec::new();
        let times = pass_times(&model, &[1, 40, 300], 3, |rows| seen.push(rows)).unwrap();
        assert_eq!(seen, [1, 40, 300]);
        assert_eq!(times.iter().map(|t| t.rows).collect::<Vec<_>>(), seen);
        assert!(times.iter().all(|t| t.best <= t.median && t.best > Duration::ZERO));
    }
}

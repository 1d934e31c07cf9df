//! `Samples`: several texts of one prompt, in the same passes.

use std::collections::VecDeque;

use crate::{
    error::{Error, Result},
    rng::sample_seed,
    round::Rounds,
    sequence::{FinishReason, Memory, Piece, Sequence},
};

/// Texts being generated side by side: an iterator over their pieces as they come, each with the number of its sample.
///
/// What fails for one sample ends that one, and the others go on; what fails for all ends all, and is told as the error
/// of the first that was not done.
pub struct Samples<'s> {
    home: &'s mut Option<Memory>,
    /// The first alone until the prompt was fed; none once dropped.
    sequences: Vec<Sequence>,
    num_samples: usize,
    rounds: Rounds,
    has_failed: Vec<bool>,
    errors: VecDeque<(usize, Error)>,
}

impl<'s> Samples<'s> {
    pub(crate) fn new(
        home: &'s mut Option<Memory>,
        first: Sequence,
        num_samples: usize,
        rounds: Rounds,
    ) -> Self {
        let has_failed = vec![false; num_samples];
        Self { home, sequences: vec![first], num_samples, rounds, has_failed, errors: VecDeque::new() }
    }

    /// The samples, once the prompt was fed; before that the first alone.
    pub fn sequences(&self) -> &[Sequence] {
        &self.sequences
    }

    /// The prompt's ids.
    pub fn prompt_tokens(&self) -> &[u32] {
        let first = &self.sequences[0];
        &first.tokens()[..first.stats().prompt_tokens]
    }

    /// Whether nothing more will come of sample `index`.
    pub fn is_done(&self, index: usize) -> bool {
        self.has_failed[index] || self.sequences.get(index).is_some_and(|s| s.finish_reason().is_some())
    }

    /// Why sample `index` ended; `None` while it goes on, and if it failed.
    pub fn finish_reason(&self, index: usize) -> Option<FinishReason> {
        self.sequences.get(index)?.finish_reason()
    }

    /// Feeds the next chunk of the prompt and returns whether more is left; with the last, the samples part. Iterating
    /// does all of it by itself; this is for callers that want to stop in between.
    ///
    /// # Errors
    /// A failing target or draft.
    pub fn prefill(&mut self) -> Result<bool> {
        if self.sequences.len() == self.num_samples && self.sequences[0].stats().rounds > 0 {
            return Ok(false);
        }
        let first = &mut self.sequences[0];
        if first.wants_prompt() && self.rounds.prefill(first)? {
            return Ok(true);
        }
        let seed = first.seed();
        while self.sequences.len() < self.num_samples {
            let seed = sample_seed(seed, self.sequences.len());
            let mut sample = self.sequences[0].fork(seed)?;
            // A draft that could not be forked takes the prompt in anew.
            while sample.wants_prompt() && self.rounds.prefill(&mut sample)? {}
            self.sequences.push(sample);
        }
        Ok(false)
    }

    fn advance(&mut self) -> Option<(usize, Result<Piece>)> {
        loop {
            let piece = |(i, sequence): (usize, &mut Sequence)| Some((i, Ok(sequence.next_piece()?)));
            if let Some(piece) = self.sequences.iter_mut().enumerate().find_map(piece) {
                return Some(piece);
            }
            if let Some((i, error)) = self.errors.pop_front() {
                return Some((i, Err(error)));
            }
            if self.has_failed.iter().all(|&failed| failed) {
                return None;
            }
            if let Err(error) = self.step()? {
                let first = self.has_failed.iter().position(|&failed| !failed)?;
                self.has_failed.fill(true);
                return Some((first, Err(error)));
            }
        }
    }

    /// A round for all that go on; `None` where none does.
    fn step(&mut self) -> Option<Result<()>> {
        loop {
            match self.prefill() {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => return Some(Err(error)),
            }
        }
        let live = |(i, sequence): &(usize, &mut Sequence)| {
            !self.has_failed[*i] && sequence.finish_reason().is_none()
        };
        let (indices, mut live): (Vec<usize>, Vec<&mut Sequence>) =
            self.sequences.iter_mut().enumerate().filter(live).unzip();
        if live.is_empty() {
            return None;
        }
        let results = match self.rounds.step(&mut live) {
            Ok(results) => results,
            Err(error) => return Some(Err(error)),
        };
        for (i, result) in indices.into_iter().zip(results) {
            if let Err(error) = result {
                self.has_failed[i] = true;
                self.errors.push_back((i, error));
            }
        }
        Some(Ok(()))
    }
}

impl Iterator for Samples<'_> {
    type Item = (usize, Result<Piece>);

    fn next(&mut self) -> Option<Self::Item> {
        self.advance()
    }
}

impl Drop for Samples<'_> {
    /// The caches of the first go back to the session.
    fn drop(&mut self) {
        *self.home = Some(self.sequences.swap_remove(0).into_memory());
    }
}

//! The loop: draft, score, verify, commit. All of speculative decoding, and of plain decoding (`NoDraft`, or k = 0);
//! for one sequence and for many at once.

use std::{sync::Arc, time::Instant};

use crate::{
    draft::{Committed, Draft, DraftRequest, Drafter},
    error::{Error, Result},
    model::{Batch, Model, Output, Rows, Slice},
    sequence::Sequence,
    verify::{Verdict, rejection},
};

/// A target and its drafter, with the buffers of their passes.
pub struct Rounds {
    target: Arc<dyn Model>,
    drafter: Arc<dyn Drafter>,
    num_draft_tokens: usize,
    prefill_chunk: usize,
    output: Output,
}

impl Rounds {
    /// Rounds of at most `num_draft_tokens` drafted tokens; a prompt is fed in chunks of `prefill_chunk` tokens.
    pub fn new(
        target: Arc<dyn Model>,
        drafter: Arc<dyn Drafter>,
        num_draft_tokens: usize,
        prefill_chunk: usize,
    ) -> Self {
        Self { target, drafter, num_draft_tokens, prefill_chunk: prefill_chunk.max(1), output: Output::new() }
    }

    /// Feeds the next chunk of a sequence's prompt to the target, all but its last token in all; that one is pending.
    /// Returns whether more is to be fed.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a sequence of another engine; a failing target. The sequence can try again.
    pub fn prefill(&mut self, sequence: &mut Sequence) -> Result<bool> {
        self.check_owner(sequence)?;
        let start = Instant::now();
        let cached = sequence.memory.cache.retain_prefix(&sequence.tokens);
        if sequence.stats.prefill.is_zero() {
            sequence.stats.reused_tokens = cached;
        }
        let unseen = &sequence.tokens[cached..sequence.tokens.len() - 1];
        let chunk = &unseen[..unseen.len().min(self.prefill_chunk)];
        if !chunk.is_empty() {
            let slice =
                Slice { cache: &mut sequence.memory.cache, tokens: chunk, rows: Rows::None, tree: None };
            self.target.forward(&mut Batch { slices: vec![slice], taps: &[] }, &mut self.output)?;
        }
        sequence.stats.prefill += start.elapsed();
        Ok(unseen.len() > chunk.len())
    }

    /// Runs one round for every sequence and commits 1 to k + 1 tokens to each.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a sequence that has ended, was not prefilled or is another engine's, and for a drafter that breaks its
    /// contract; a failing model; NaN logits, or parameters that ban every token. The sequences stay as they were, and
    /// the round can be tried again.
    pub fn step(&mut self, sequences: &mut [&mut Sequence]) -> Result<()> {
        for sequence in sequences.iter() {
            self.check_owner(sequence)?;
            sequence.check_ready()?;
        }

        // 1. Draft: guess up to k tokens, keeping the q each one was drawn from.
        let start = Instant::now();
        let drafts = self.draft(sequences)?;
        let drafted = Instant::now();

        // 2. Score: one target pass over every pending token and the draft behind it.
        self.score(sequences, &drafts)?;
        let scored = Instant::now();

        // 3. Verify: keep the longest prefix the target would have said, then one token of its own.
        let mut verdicts = Vec::with_capacity(drafts.len());
        for (row, (sequence, draft)) in sequences.iter_mut().zip(&drafts).enumerate() {
            verdicts.push(self.verify(row, sequence, draft));
        }
        let verdicts = match verdicts.into_iter().collect::<Result<Vec<_>>>() {
            Ok(verdicts) => verdicts,
            Err(error) => {
                sequences.iter_mut().for_each(|s| s.memory.cache.truncate(s.tokens.len() - 1));
                return Err(error);
            }
        };

        // 4. Commit. Keys and values of what was rejected leave the caches with it.
        for ((sequence, draft), verdict) in sequences.iter_mut().zip(&drafts).zip(&verdicts) {
            let kept = sequence.commit(draft, verdict);
            let committed = Committed {
                tokens: &sequence.tokens,
                num_new: kept.num_new,
                num_drafted: draft.len(),
                num_accepted: kept.num_accepted,
            };
            self.drafter.observe(sequence.memory.draft_state.as_mut(), &committed);
            // A batch shares its passes: each sequence is told the whole time it waited.
            sequence.stats.draft += drafted - start;
            sequence.stats.verify += scored - drafted;
            sequence.stats.other += scored.elapsed();
        }
        Ok(())
    }

    fn check_owner(&self, sequence: &Sequence) -> Result<()> {
        if !sequence.memory.is_of(&self.target, &self.drafter) {
            let message = "a sequence was given to the rounds of another engine";
            return Err(Error::InvalidArgument(message.into()));
        }
        Ok(())
    }

    fn draft(&self, sequences: &mut [&mut Sequence]) -> Result<Vec<Draft>> {
        let mut requests: Vec<_> = sequences
            .iter_mut()
            .map(|sequence| {
                let (k, noise) = (self.num_draft_tokens.min(sequence.draft_room()), sequence.draft_noise());
                let Sequence { tokens, memory, sampler, history, limits, .. } = &mut **sequence;
                DraftRequest {
                    state: memory.draft_state.as_mut(),
                    tokens,
                    k,
                    sampler,
                    history,
                    noise,
                    end_ids: &limits.end_ids,
                }
            })
            .collect();
        if requests.iter().all(|request| request.k == 0) {
            return Ok(vec![Draft::default(); requests.len()]);
        }
        let wanted: Vec<usize> = requests.iter().map(|request| request.k).collect();
        let drafts = self.drafter.draft(&mut requests)?;
        self.check_drafts(&wanted, &drafts)?;
        Ok(drafts)
    }

    /// A drafter may be anybody's: what would break the round is refused, naming it.
    fn check_drafts(&self, wanted: &[usize], drafts: &[Draft]) -> Result<()> {
        let broken = |what: String| Err(Error::InvalidArgument(format!("the drafter returned {what}")));
        if drafts.len() != wanted.len() {
            return broken(format!("{} drafts for {} requests", drafts.len(), wanted.len()));
        }
        let vocab_size = self.target.info().vocab_size;
        for (draft, &k) in drafts.iter().zip(wanted) {
            if draft.len() > k {
                return broken(format!("{} tokens where at most {k} were wanted", draft.len()));
            }
            if let Some(id) = draft.tokens.iter().find(|&&id| id as usize >= vocab_size) {
                return broken(format!("token {id}, which the target's {vocab_size} ids do not have"));
            }
        }
        Ok(())
    }

    /// Feeds each sequence's pending token and draft; `output` then holds one row per draft token, and one after.
    fn score(&mut self, sequences: &mut [&mut Sequence], drafts: &[Draft]) -> Result<()> {
        let fed = |(sequence, draft): (&&mut Sequence, &Draft)| {
            let pending = &sequence.tokens[sequence.tokens.len() - 1..];
            [pending, &draft.tokens].concat()
        };
        let fed: Vec<Vec<u32>> = sequences.iter().zip(drafts).map(fed).collect();
        let mut slices = Vec::with_capacity(fed.len());
        for (sequence, tokens) in sequences.iter_mut().zip(&fed) {
            slices.push(Slice { cache: &mut sequence.memory.cache, tokens, rows: Rows::All, tree: None });
        }
        self.target.forward(&mut Batch { slices, taps: &[] }, &mut self.output)
    }

    /// Row `i` of `p` depends on the text and the first `i` draft tokens; it is computed only if they all stand.
    fn verify(&self, slice: usize, sequence: &mut Sequence, draft: &Draft) -> Result<Verdict> {
        let mut noise = sequence.verify_noise();
        let (sampler, history) = (&sequence.sampler, &mut sequence.history);
        let committed = history.num_output();
        let p = |i: usize| {
            if i > 0 {
                history.push(draft.tokens[i - 1]);
            }
            sampler.distribution(self.output.logits(slice, i), history)
        };
        let verdict = rejection(draft, p, &mut noise);
        sequence.history.truncate_output(committed);
        verdict
    }
}

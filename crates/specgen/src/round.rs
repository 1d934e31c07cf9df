//! The loop: draft, score, verify, commit. All of speculative decoding, and of plain decoding (`NoDraft`, or k = 0);
//! for one sequence and for many at once.

use std::{sync::Arc, time::Instant};

use crate::{
    draft::{Budget, Committed, Draft, DraftRequest, Drafter},
    error::{Error, Result},
    model::{Batch, Model, Output, Rows, Slice, Tree, feed_prompt},
    plan::{Outlook, RoundTimes},
    score::feed_scored,
    sequence::{Memory, Sequence, Verified},
    verify::{Verification, block, coupled, matched, recursive, rejection},
};

/// A target and its drafter, with the buffers of their passes.
pub struct Rounds {
    target: Arc<dyn Model>,
    drafter: Arc<dyn Drafter>,
    prefill_chunk: usize,
    /// What the sequences feed in a round, one behind the other.
    fed: Vec<u32>,
    output: Output,
}

impl Rounds {
    /// Rounds that draft as much as each sequence's pace says; a prompt is fed in chunks of `prefill_chunk` tokens.
    pub fn new(target: Arc<dyn Model>, drafter: Arc<dyn Drafter>, prefill_chunk: usize) -> Self {
        let prefill_chunk = prefill_chunk.max(1);
        Self { target, drafter, prefill_chunk, fed: Vec::new(), output: Output::new() }
    }

    /// Feeds the next chunk of a sequence's prompt to the target, and to a drafter that wants it: all but the prompt's
    /// last token in all; that one is pending. Returns whether more is to be fed.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a sequence of another engine; a failing model. The sequence can try again.
    pub fn prefill(&mut self, sequence: &mut Sequence) -> Result<bool> {
        self.check_owner(sequence)?;
        let start = Instant::now();
        let wants_draft = sequence.draft_room() > 0 && sequence.pace.wants_prompt(sequence.tokens.len());
        let scored = sequence.scored_rows();
        let Sequence { tokens, memory: Memory { cache, draft_state, .. }, stats, .. } = sequence;
        if scored.is_some() {
            // Every row is asked, those of a prefix that an earlier text left here too.
            cache.truncate(sequence.prompt_logprobs.len());
        }
        let cached = cache.retain_prefix(tokens);
        if stats.prefill.is_zero() {
            stats.reused_tokens = cached;
        }
        let mut more = match scored {
            Some(rows) => {
                let found = feed_scored(&*self.target, cache, tokens, rows, &mut self.output)?;
                sequence.prompt_logprobs.extend(found);
                cache.len() + 1 < tokens.len()
            }
            None => feed_prompt(&*self.target, cache, tokens, self.prefill_chunk, &mut self.output)?,
        };
        if wants_draft {
            more |= self.drafter.prefill(draft_state.as_mut(), tokens, self.prefill_chunk)?;
        }
        stats.prefill += start.elapsed();
        Ok(more)
    }

    /// Runs one round for every sequence and commits 1 to k + 1 tokens to each, k as its pace decides. What fails
    /// for one sequence only (NaN logits, parameters that ban every token, a draft that is not honest) is its own
    /// result, and its neighbours go on.
    /// Where the target fails behind drafted tokens that stand, those are committed, as plain decoding would have said
    /// them, and the failure is the next round's.
    ///
    /// # Errors
    /// What fails for all: [`Error::InvalidArgument`] for a sequence that has ended, was not prefilled or is another
    /// engine's, and for a drafter that breaks its contract; a failing model. A sequence that failed, alone or with all,
    /// stays as it was and can try again.
    pub fn step(&mut self, sequences: &mut [&mut Sequence]) -> Result<Vec<Result<()>>> {
        for sequence in sequences.iter() {
            self.check_owner(sequence)?;
            sequence.check_ready()?;
        }

        // 1. Draft: guess up to k tokens, keeping the q each one was drawn from.
        let start = Instant::now();
        let mut drafts = self.draft(sequences)?;
        drop_what_does_not_pay(sequences, &mut drafts);
        let drafted = Instant::now();

        // 2. Score: one target pass over every pending token and the draft behind it.
        self.score(sequences, &drafts)?;
        let scored = Instant::now();

        let rows = drafts.iter().map(|draft| 1 + draft.as_ref().map_or(0, Draft::len)).sum();
        let times = RoundTimes { draft: drafted - start, verify: scored - drafted, rows };
        let mut results = Vec::with_capacity(drafts.len());
        for (slice, (sequence, draft)) in sequences.iter_mut().zip(drafts).enumerate() {
            let before = sequence.tokens.len();
            let verified = draft.and_then(|draft| {
                // 3. Verify: keep the longest path the target would have said, then one token of its own.
                let verified = self.verify(slice, sequence, &draft)?;
                // 4. Commit, token by token, up to the first that ends the text.
                self.commit(slice, sequence, &draft, &verified, times);
                Ok(verified)
            });
            results.push(roll_back(sequence, before, verified));
        }
        // A batch shares its passes: each sequence is told the whole time it waited.
        for (sequence, result) in sequences.iter_mut().zip(&results) {
            sequence.took([times.draft, times.verify, scored.elapsed()], result.is_ok());
        }
        Ok(results)
    }

    fn check_owner(&self, sequence: &Sequence) -> Result<()> {
        if !sequence.memory.is_of(&self.target, &self.drafter) {
            let message = "a sequence was given to the rounds of another engine";
            return Err(Error::InvalidArgument(message.into()));
        }
        Ok(())
    }

    fn draft(&self, sequences: &mut [&mut Sequence]) -> Result<Vec<Result<Draft>>> {
        let num_texts = sequences.len();
        let knows_trees = self.target.knows_trees();
        let mut requests: Vec<_> = sequences
            .iter_mut()
            .map(|sequence| {
                let (room, noise, branches) =
                    (sequence.draft_room(), sequence.draft_noise(), knows_trees && sequence.may_branch());
                let Sequence { tokens, memory, sampler, history, limits, pace, asked, .. } = &mut **sequence;
                let k = pace.begin(Outlook { room, text_len: tokens.len(), num_texts }).min(room);
                *asked = k;
                DraftRequest {
                    state: memory.draft_state.as_mut(),
                    tokens,
                    k,
                    sampler,
                    history,
                    noise,
                    end_ids: &limits.end_ids,
                    branches,
                    budget: Budget::new(pace.as_mut()),
                }
            })
            .collect();
        if requests.iter().all(|request| request.k == 0) {
            return Ok(requests.iter().map(|_| Ok(Draft::default())).collect());
        }
        let wanted: Vec<usize> = requests.iter().map(|request| request.k).collect();
        let drafts = self.drafter.draft(&mut requests)?;
        self.check_drafts(&wanted, &drafts)?;
        Ok(drafts)
    }

    /// A drafter may be anybody's: what would break the round is refused, naming it.
    fn check_drafts(&self, wanted: &[usize], drafts: &[Result<Draft>]) -> Result<()> {
        let broken = |what: String| Err(Error::InvalidArgument(format!("the drafter returned {what}")));
        if drafts.len() != wanted.len() {
            return broken(format!("{} drafts for {} requests", drafts.len(), wanted.len()));
        }
        let vocab_size = self.target.info().vocab_size;
        for (draft, &k) in drafts.iter().zip(wanted) {
            let Ok(draft) = draft else { continue };
            if draft.len() > k {
                return broken(format!("{} tokens where at most {k} were wanted", draft.len()));
            }
            if let Some(id) = draft.tokens.iter().find(|&&id| id as usize >= vocab_size) {
                return broken(format!("token {id}, which the target's {vocab_size} ids do not have"));
            }
        }
        Ok(())
    }

    /// Feeds each sequence's pending token and draft; `output` then holds one row per draft token, and one after. Where
    /// drafting failed, the pending token is fed alone: a row that costs next to nothing keeps slices and sequences in
    /// step.
    fn score(&mut self, sequences: &mut [&mut Sequence], drafts: &[Result<Draft>]) -> Result<()> {
        self.fed.clear();
        for (sequence, draft) in sequences.iter().zip(drafts) {
            self.fed.extend(sequence.tokens.last());
            self.fed.extend(draft.iter().flat_map(|draft| &draft.tokens));
        }
        let trees = trees(drafts)?;
        let mut fed = &self.fed[..];
        let mut slices = Vec::with_capacity(drafts.len());
        for (i, (sequence, draft)) in sequences.iter_mut().zip(drafts).enumerate() {
            let (tokens, rest) = fed.split_at(1 + draft.as_ref().map_or(0, Draft::len));
            fed = rest;
            let (cache, tree) = (&mut sequence.memory.cache, trees.get(i).and_then(Option::as_ref));
            slices.push(Slice { cache, tokens, rows: Rows::All, tree });
        }
        self.target.forward(&mut Batch { slices, taps: &[] }, &mut self.output)
    }

    /// Row 0 of `p` depends on the text, row `i + 1` on draft token `i` and those that lead to it too; it is computed only if
    /// the rule asks for it. A rule hands on a failure of `p` only where every token before that row stands.
    fn verify(&self, slice: usize, sequence: &mut Sequence, draft: &Draft) -> Result<Verified> {
        let (mut own, mut shared) = (sequence.own_noise(), sequence.shared_noise());
        let (verification, sampler) = (sequence.verification(), &sequence.sampler);
        let history = &mut sequence.history;
        let committed = history.num_output();
        let (mut stands, mut has_failed) = (Vec::new(), false);
        let p = |node: usize| {
            if let Some(token) = node.checked_sub(1) {
                let parent = draft.parent(token).map_or(0, |parent| parent + 1);
                sampler.push(history, draft.tokens[token], self.output.logits(slice, parent));
                stands.push(token);
            }
            let p = sampler.distribution(self.output.logits(slice, node), history);
            has_failed = p.is_err();
            p
        };
        let is_chain = draft.parents.is_none();
        let verdict: Result<Verified> = match verification {
            Verification::Rejection if is_chain => rejection(draft, p, &mut own).map(Into::into),
            Verification::Block if is_chain => block(draft, p, &mut own).map(Into::into),
            Verification::Coupled if is_chain => coupled(draft, p, &mut shared).map(Into::into),
            Verification::Rejection | Verification::Block => recursive(draft, p, &mut own).map(Into::into),
            Verification::Coupled => matched(draft, p, &mut shared).map(Into::into),
        };
        sequence.history.truncate_output(committed);
        match verdict {
            // What stands before the row that failed is said; the failure is the next round's.
            Err(_) if has_failed && !stands.is_empty() => {
                Ok(Verified { path: stands, ..Verified::default() })
            }
            verdict => verdict,
        }
    }

    fn commit(
        &self,
        slice: usize,
        sequence: &mut Sequence,
        draft: &Draft,
        verified: &Verified,
        times: RoundTimes,
    ) {
        let kept = sequence.commit(draft, verified, |i| self.output.logits(slice, i));
        let committed = Committed {
            tokens: &sequence.tokens,
            num_new: kept.num_new,
            num_drafted: draft.len(),
            num_accepted: kept.num_accepted,
        };
        self.drafter.observe(sequence.memory.draft_state.as_mut(), &committed);
        sequence.learn(draft, kept, times);
    }
}

/// The trees of drafts that are no chains; nothing where all are.
fn trees(drafts: &[Result<Draft>]) -> Result<Vec<Option<Tree>>> {
    let links =
        |draft: &Result<Draft>| draft.as_ref().ok().and_then(|draft| draft.parents.as_deref().map(tree));
    if drafts.iter().all(|draft| draft.as_ref().is_ok_and(|draft| draft.parents.is_none())) {
        return Ok(Vec::new());
    }
    drafts.iter().map(|draft| links(draft).transpose()).collect()
}

fn tree(parents: &[u32]) -> Result<Tree> {
    Tree::new(&[&[0], parents].concat())
}

/// Keys and values of what was not committed leave the cache, and the pending token stays out of it. `before`: tokens of the
/// text before the round.
fn roll_back(sequence: &mut Sequence, before: usize, verified: Result<Verified>) -> Result<()> {
    let (base, len) = (before - 1, sequence.tokens.len() - 1);
    let cache = &mut sequence.memory.cache;
    match verified {
        Ok(Verified { path, .. }) if !path.iter().enumerate().all(|(i, &token)| i == token) => {
            let rows = std::iter::once(0).chain(path.iter().map(|&token| token + 1));
            cache.compact(base, &rows.take(len - base).collect::<Vec<_>>())
        }
        other => {
            cache.truncate(len);
            other.map(drop)
        }
    }
}

/// Only guesses are dropped: what was drawn for a ratio test stays, whatever a pace would have.
fn drop_what_does_not_pay(sequences: &mut [&mut Sequence], drafts: &mut [Result<Draft>]) {
    for (sequence, draft) in sequences.iter_mut().zip(drafts) {
        if let Ok(draft) = draft
            && !draft.is_empty()
        {
            let least = draft.len() - draft.num_droppable();
            draft.truncate(sequence.pace.keep(draft, least).max(least));
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::time::Duration;

    use super::*;
    use crate::{
        Engine, SamplingParams,
        draft::ModelDrafter,
        model::ToyModel,
        rng::{STREAMS_READ, Stream},
        stats::Round,
    };

    /// Noise shared by draft and target would bend a ratio test, so the rules must not meet in any stream.
    #[test]
    fn ratio_tests_and_coupled_sampling_share_no_stream() {
        let own = [Stream::Accept, Stream::Residual, Stream::Draft].map(|stream| stream as u32);
        for (verify, streams) in [
            (Verification::Rejection, &own[..]),
            (Verification::Block, &own),
            (Verification::Coupled, &[Stream::Coupled as u32]),
        ] {
            let other = Arc::new(ModelDrafter::new(Arc::new(ToyModel::new(12, 2, 6.0)), 12));
            let engine = Engine::from_parts(Arc::new(ToyModel::new(12, 1, 6.0)), other, 3, &[]);
            let params = SamplingParams { verify: Some(verify), seed: Some(1), ..SamplingParams::default() };
            STREAMS_READ.take();
            let mut session = engine.session(params).unwrap();
            session.generate(&[1u32, 2][..], 100).unwrap().for_each(|piece| drop(piece.unwrap()));
            assert_eq!(STREAMS_READ.take().into_iter().collect::<Vec<_>>(), streams, "{verify}");
        }
    }

    /// Rounds add up to the text and to the counts, and are kept in full only where somebody asked for them.
    #[test]
    fn recorded_rounds_are_the_text() {
        let drafter = Arc::new(ModelDrafter::new(Arc::new(ToyModel::new(12, 2, 6.0)), 12));
        let engine = Engine::from_parts(Arc::new(ToyModel::new(12, 1, 6.0)), drafter, 3, &[]);
        for is_recorded in [true, false] {
            let mut session = engine.session(SamplingParams::greedy()).unwrap();
            let mut generation = session.generate(&[1u32, 2][..], 50).unwrap();
            if is_recorded {
                generation.record_rounds();
            }
            generation.by_ref().for_each(|piece| drop(piece.unwrap()));
            let (stats, records) = (generation.stats(), generation.records());
            assert_eq!(stats.by_round.len(), stats.rounds);
            assert_eq!(stats.by_round.iter().map(Round::time).sum::<Duration>(), stats.decode());
            if !is_recorded {
                assert!(records.is_empty());
                continue;
            }
            let text: Vec<u32> = records.iter().flat_map(|record| record.committed.clone()).collect();
            assert_eq!(text, generation.tokens());
            for (record, round) in records.iter().zip(&stats.by_round) {
                assert_eq!(record.round, *round);
                assert!(record.drafted.len() <= record.k && record.k <= 3);
                let stands = round.num_accepted;
                assert_eq!(record.drafted[..stands], record.committed[..stands]);
                assert_eq!(record.committed.len(), round.num_new);
            }
        }
    }
}

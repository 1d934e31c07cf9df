//! `Sequence`: one text on its way: its tokens, caches and counters, and the walk that commits a round token by token.

use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant},
};

use crate::{
    cache::KvCache,
    draft::{Draft, DraftState, Drafter},
    error::{Error, Result},
    model::Model,
    plan::{Outcome, Pace, RoundTimes},
    rng::{CoupledNoise, Noise, RoundNoise},
    sampling::{History, Sampler, SamplingParams, TokenLogprobs},
    score::ScoredRows,
    stats::{Round, Stats},
    text::TextOutput,
    verify::{Descent, DraftNoise, Source, Verdict, Verification},
};

/// Why a text ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// The model said an end-of-generation token.
    Eos,
    /// A stop string appeared.
    Stop,
    /// `max_tokens` or the context is full.
    Length,
}

impl FinishReason {
    /// `eos`, `stop` or `length`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Eos => "eos",
            Self::Stop => "stop",
            Self::Length => "length",
        }
    }
}

/// A token, and the text it made safe to show (often one word, sometimes nothing).
#[derive(Clone, Debug, PartialEq)]
pub struct Piece {
    /// The token's id.
    pub id: u32,
    /// Whole characters only; never part of a stop string.
    pub text: String,
    /// Its log-probabilities, where [`SamplingParams::logprobs`] asks for them.
    pub logprobs: Option<TokenLogprobs>,
}

impl std::fmt::Display for Piece {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

/// What survives from one text of a conversation to the next: the caches, and whose they are.
pub struct Memory {
    pub(crate) cache: KvCache,
    pub(crate) draft_state: Box<dyn DraftState>,
    target: Arc<dyn Model>,
    drafter: Arc<dyn Drafter>,
}

impl Memory {
    /// Empty caches for a text of this pair.
    pub(crate) fn new(target: &Arc<dyn Model>, drafter: &Arc<dyn Drafter>) -> Self {
        Self {
            cache: target.new_cache(),
            draft_state: drafter.new_state(),
            target: target.clone(),
            drafter: drafter.clone(),
        }
    }

    /// Caches of a text that begins as this one does.
    fn fork(&mut self) -> Result<Self> {
        Ok(Self {
            cache: self.cache.fork()?,
            draft_state: self.drafter.fork_state(self.draft_state.as_mut())?,
            target: self.target.clone(),
            drafter: self.drafter.clone(),
        })
    }

    /// Whether this very pair made the caches: no other can read them.
    pub(crate) fn is_of(&self, target: &Arc<dyn Model>, drafter: &Arc<dyn Drafter>) -> bool {
        Arc::ptr_eq(&self.target, target) && Arc::ptr_eq(&self.drafter, drafter)
    }
}

/// What a sequence is to become.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// Token ids to start from, at least one.
    pub prompt: &'a [u32],
    /// How tokens are chosen.
    pub params: &'a SamplingParams,
    /// Tokens to generate at most.
    pub max_tokens: usize,
    /// Strings that end the text before them.
    pub stops: &'a [String],
    /// Go on past end-of-generation tokens.
    pub ignore_eos: bool,
}

/// What a text lives on: its caches, and how much of it is drafted.
pub(crate) struct Means {
    pub(crate) memory: Memory,
    pub(crate) pace: Box<dyn Pace>,
}

/// Where a text ends.
#[derive(Clone)]
pub(crate) struct Limits {
    /// Tokens to generate at most.
    pub(crate) max_tokens: usize,
    /// Tokens prompt and output may have together.
    pub(crate) context_len: usize,
    /// Ids that end it.
    pub(crate) end_ids: Vec<u32>,
}

/// What may be said after a round: drafted tokens that stand, and one of the target's own, unless it failed there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Verified {
    /// Tokens of the draft, by index: each the next one's parent.
    pub(crate) path: Vec<usize>,
    pub(crate) next_token: Option<u32>,
    pub(crate) residual_underflow: bool,
}

impl From<Verdict> for Verified {
    fn from(Verdict { num_accepted, next_token, residual_underflow }: Verdict) -> Self {
        Self { path: (0..num_accepted).collect(), next_token: Some(next_token), residual_underflow }
    }
}

impl From<Descent> for Verified {
    fn from(Descent { path, next_token, residual_underflow }: Descent) -> Self {
        Self { path, next_token: Some(next_token), residual_underflow }
    }
}

/// What a round left behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kept {
    /// Tokens added.
    pub(crate) num_new: usize,
    /// How many of them had been drafted.
    pub(crate) num_accepted: usize,
}

/// A round in full: what was asked for, guessed and said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoundRecord {
    /// Tokens the drafter was asked for at most.
    pub k: usize,
    /// What it drafted and the target scored; where the text ended inside it, what lies behind the end too.
    pub drafted: Vec<u32>,
    /// Who guessed each of these tokens.
    pub sources: Vec<Source>,
    /// The one that each would follow, by index; `None`: the text.
    pub parents: Vec<Option<usize>>,
    /// Those that stand, by index.
    pub path: Vec<usize>,
    /// What the round added to the text.
    pub committed: Vec<u32>,
    /// Its counts and times, as in [`Stats::by_round`].
    pub round: Round,
}

/// One text on its way.
pub struct Sequence {
    pub(crate) tokens: Vec<u32>,
    pub(crate) memory: Memory,
    pub(crate) sampler: Sampler,
    pub(crate) history: History,
    pub(crate) stats: Stats,
    pub(crate) limits: Limits,
    /// Of the prompt's tokens but the first, as far as it was fed, where they are wanted.
    pub(crate) prompt_logprobs: Vec<TokenLogprobs>,
    pub(crate) pace: Box<dyn Pace>,
    /// Tokens wanted of the drafter in the round that goes on.
    pub(crate) asked: usize,
    /// The rounds in full, where somebody asked for them.
    records: Option<Vec<RoundRecord>>,
    noise: Noise,
    verification: Verification,
    round: u32,
    start: Instant,
    text: Option<TextOutput>,
    pieces: VecDeque<Piece>,
    finish: Option<FinishReason>,
}

impl Sequence {
    /// A sequence after `prompt`, of which the memory may hold a prefix. Without `text`, pieces carry ids only.
    pub(crate) fn new(
        prompt: &[u32],
        Means { memory, pace }: Means,
        sampler: Sampler,
        limits: Limits,
        text: Option<TextOutput>,
    ) -> Self {
        let mut sequence = Self {
            tokens: prompt.to_vec(),
            memory,
            history: History::new(prompt),
            noise: Noise::new(sampler.seed()),
            verification: sampler.params().verification(),
            sampler,
            stats: Stats { prompt_tokens: prompt.len(), ..Stats::default() },
            limits,
            prompt_logprobs: Vec::new(),
            pace,
            asked: 0,
            records: None,
            round: 0,
            start: Instant::now(),
            text,
            pieces: VecDeque::new(),
            finish: None,
        };
        sequence.check_length();
        sequence
    }

    /// The same text so far, to go on with another seed. What the caches hold is not computed again, and on the CPU not
    /// even copied. From a text without output, the fork is what a request with that seed and this verification gives.
    ///
    /// # Errors
    /// Where the device gives no memory.
    pub fn fork(&mut self, seed: u64) -> Result<Self> {
        let memory = self.memory.fork()?;
        let sampler = self.sampler.reseeded(seed);
        let reused_tokens = memory.cache.len().min(self.stats.prompt_tokens);
        Ok(Self {
            tokens: self.tokens.clone(),
            noise: Noise::new(seed),
            memory,
            sampler,
            history: self.history.clone(),
            stats: Stats { reused_tokens, prefill: Duration::ZERO, ..self.stats.clone() },
            limits: self.limits.clone(),
            pace: self.pace.fork(),
            asked: self.asked,
            records: self.records.clone(),
            prompt_logprobs: self.prompt_logprobs.clone(),
            verification: self.verification,
            round: self.round,
            start: self.start,
            text: self.text.clone(),
            pieces: self.pieces.clone(),
            finish: self.finish,
        })
    }

    /// Whether a round can begin: text to continue, and a cache that holds all of it but the pending token.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] saying what is amiss.
    pub(crate) fn check_ready(&self) -> Result<()> {
        let problem = match self.finish {
            Some(_) => "a sequence that has ended was given to a round",
            None if self.memory.cache.tokens() != &self.tokens[..self.tokens.len() - 1] => {
                "a sequence was given to a round before its prompt was fed"
            }
            None => return Ok(()),
        };
        Err(Error::InvalidArgument(problem.into()))
    }

    /// The caches, for a text that continues this one.
    pub fn into_memory(self) -> Memory {
        self.memory
    }

    /// The seed its randomness comes from: the same seed, verification, prompt and settings give the same text.
    pub fn seed(&self) -> u64 {
        self.noise.seed()
    }

    /// How its drafts are verified.
    pub fn verification(&self) -> Verification {
        self.verification
    }

    /// Prompt and output. The last token is pending: committed, not yet fed to the target.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// The output so far.
    pub fn output(&self) -> &[u32] {
        self.history.output()
    }

    /// Why it ended, once it has.
    pub fn finish_reason(&self) -> Option<FinishReason> {
        self.finish
    }

    /// The log-probabilities of the prompt's tokens but the first, once it was fed, where
    /// [`SamplingParams::prompt_logprobs`] asks for them.
    pub fn prompt_logprobs(&self) -> &[TokenLogprobs] {
        &self.prompt_logprobs
    }

    /// What to ask of the prompt's rows while it is fed; `None`: nothing.
    pub(crate) fn scored_rows(&self) -> Option<ScoredRows> {
        let num_top = self.sampler.params().prompt_logprobs.filter(|_| self.round == 0)?;
        Some(ScoredRows { vocab_size: self.sampler.vocab_size(), num_top, from: 1 })
    }

    /// Whether its prompt is to be fed before anything else.
    pub(crate) fn wants_prompt(&self) -> bool {
        self.round == 0 && (self.finish.is_none() || self.sampler.params().prompt_logprobs.is_some())
    }

    /// Counts and times so far.
    pub fn stats(&self) -> &Stats {
        &self.stats
    }

    /// Keeps every round from now on in full, for [`Sequence::records`]; else only their counts and times are kept.
    pub fn record_rounds(&mut self) {
        self.records.get_or_insert_default();
    }

    /// The rounds since [`Sequence::record_rounds`] was called.
    pub fn records(&self) -> &[RoundRecord] {
        self.records.as_deref().unwrap_or_default()
    }

    /// The oldest piece not yet taken.
    pub fn next_piece(&mut self) -> Option<Piece> {
        self.pieces.pop_front()
    }

    /// The most tokens worth drafting: the round adds one of its own, and no token may be drafted that could not be
    /// kept.
    pub(crate) fn draft_room(&self) -> usize {
        let of_output = self.limits.max_tokens - self.history.num_output();
        let of_context = self.limits.context_len - self.tokens.len();
        of_output.min(of_context).saturating_sub(1)
    }

    /// Tells the drafter what the output is expected to be; nothing, where that is empty. Returns whether it makes use of it.
    pub fn expect(&mut self, prediction: &[u32]) -> bool {
        let Memory { drafter, draft_state, .. } = &mut self.memory;
        drafter.expect(draft_state.as_mut(), prediction)
    }

    /// Whether its drafts may be trees: a chain that is judged as a whole has no branches.
    pub(crate) fn may_branch(&self) -> bool {
        self.verification != Verification::Block || self.sampler.is_greedy()
    }

    /// What a ratio test of this round draws with.
    pub(crate) fn own_noise(&self) -> RoundNoise {
        RoundNoise::verify(self.noise, self.history.num_output() as u64, self.round)
    }

    /// What draft and target both draw with where they are coupled.
    pub(crate) fn shared_noise(&self) -> CoupledNoise {
        CoupledNoise::new(self.noise, self.history.num_output() as u64)
    }

    /// What this round's draft draws with.
    pub(crate) fn draft_noise(&self) -> DraftNoise {
        match self.verification {
            Verification::Rejection | Verification::Block => {
                DraftNoise::Own(RoundNoise::draft(self.noise, self.history.num_output() as u64, self.round))
            }
            Verification::Coupled => DraftNoise::Shared(self.shared_noise()),
        }
    }

    /// Commits a round: walks over the accepted tokens and the one after them in the order plain decoding would have
    /// said them, and ends at the first that ends the text. Text and counters end at that token too. `logits` are the
    /// target's rows: the first behind the pending token, the others behind the draft's tokens.
    pub(crate) fn commit<'a>(
        &mut self,
        draft: &Draft,
        verified: &Verified,
        logits: impl Fn(usize) -> &'a [f32],
    ) -> Kept {
        let before = self.tokens.len();
        let rows = std::iter::once(0).chain(verified.path.iter().map(|&token| token + 1));
        let accepted = verified.path.iter().map(|&token| draft.tokens[token]);
        for (row, id) in rows.zip(accepted.chain(verified.next_token)) {
            self.push(id, logits(row));
            if self.finish.is_some() {
                break;
            }
        }
        let num_new = self.tokens.len() - before;
        let num_accepted = verified.path.len().min(num_new);
        // What lies behind the end of a text was never up for acceptance.
        let depth = draft.tip().map_or(0, |tip| draft.depth(tip) + 1);
        self.stats.alternatives += draft.len() - depth;
        let num_drafted = if self.finish.is_some() { depth.min(num_new) } else { depth };
        self.stats.record_round(num_drafted, num_accepted, num_new);
        if self.round == 0 {
            self.stats.time_to_first_token = self.start.elapsed();
        }
        self.stats.residual_underflows += usize::from(verified.residual_underflow);
        self.stats.broken_drafts += usize::from(draft.broken);
        self.round += 1;
        if let Some(records) = &mut self.records {
            records.push(RoundRecord {
                k: self.asked,
                drafted: draft.tokens.clone(),
                sources: draft.signals().map(|signal| signal.source).collect(),
                parents: (0..draft.len()).map(|i| draft.parent(i)).collect(),
                path: verified.path[..num_accepted].to_vec(),
                committed: self.tokens[before..].to_vec(),
                round: Round::default(),
            });
        }
        Kept { num_new, num_accepted }
    }

    /// Adds what a round took, be it one that was committed or one that failed.
    pub(crate) fn took(&mut self, times: [Duration; 3], is_committed: bool) {
        let round = self.stats.record_times(times, is_committed);
        let record = self.records.as_mut().and_then(|records| records.last_mut());
        if let (Some(round), Some(record)) = (round, record) {
            record.round = *round;
        }
    }

    /// Tells the pace what came of its round.
    pub(crate) fn learn(&mut self, draft: &Draft, kept: Kept, times: RoundTimes) {
        let new = &self.tokens[self.tokens.len() - kept.num_new..];
        self.pace.observe(&Outcome { draft, new, num_accepted: kept.num_accepted, times });
        self.stats.plan = self.pace.stats();
    }

    fn push(&mut self, id: u32, logits: &[f32]) {
        let logprobs = self.sampler.logprobs(logits, &self.history, id);
        self.tokens.push(id);
        self.sampler.push(&mut self.history, id, logits);
        let mut piece = Piece { id, text: String::new(), logprobs };
        let ended = self.limits.end_ids.contains(&id);
        if let Some(text) = &mut self.text {
            let pushed = text.push(id);
            piece.text = pushed.text;
            if pushed.stopped {
                self.finish = Some(FinishReason::Stop);
            }
        }
        if self.finish.is_none() && ended {
            self.finish = Some(FinishReason::Eos);
        }
        self.check_length();
        if let (Some(text), Some(FinishReason::Eos | FinishReason::Length)) = (&mut self.text, self.finish) {
            piece.text += &text.finish();
        }
        self.pieces.push_back(piece);
    }

    /// A stop at the very last token is a stop: length is asked last.
    fn check_length(&mut self) {
        let full = self.history.num_output() >= self.limits.max_tokens
            || self.tokens.len() >= self.limits.context_len;
        if self.finish.is_none() && full {
            self.finish = Some(FinishReason::Length);
        }
    }
}

//! `Session`: one conversation with an engine. Its caches live from text to text, so what a prompt shares with the
//! text before is not computed again.

use crate::{
    chat::{Message, RenderOptions},
    engine::Engine,
    error::{Error, Result},
    round::Rounds,
    samples::Samples,
    sampling::{Sampler, SamplingParams, TokenLogprobs},
    sequence::{FinishReason, Memory, Piece, Request, RoundRecord, Sequence},
    stats::Stats,
    verify::Verification,
};

/// What a text starts from.
#[derive(Clone, Debug, PartialEq)]
pub enum Prompt<'a> {
    /// Text as it is, no chat template; special tokens in it are parsed. The beginning-of-sequence token is put
    /// before it where the model wants one.
    Text(&'a str),
    /// Token ids as they are.
    Ids(&'a [u32]),
    /// A conversation, through the model's chat template. Special tokens in the rendered text are parsed, those a
    /// message contains included: escape what strangers wrote.
    Messages(&'a [Message]),
}

impl<'a> From<&'a str> for Prompt<'a> {
    fn from(text: &'a str) -> Self {
        Self::Text(text)
    }
}

impl<'a> From<&'a String> for Prompt<'a> {
    fn from(text: &'a String) -> Self {
        Self::Text(text)
    }
}

impl<'a> From<&'a [u32]> for Prompt<'a> {
    fn from(ids: &'a [u32]) -> Self {
        Self::Ids(ids)
    }
}

impl<'a> From<&'a [Message]> for Prompt<'a> {
    fn from(messages: &'a [Message]) -> Self {
        Self::Messages(messages)
    }
}

/// One conversation.
pub struct Session {
    engine: Engine,
    params: SamplingParams,
    stops: Vec<String>,
    ignore_eos: bool,
    prediction: Vec<u32>,
    /// `None` before the first text, and while a generation has the caches.
    memory: Option<Memory>,
}

impl Session {
    pub(crate) fn new(engine: Engine, params: SamplingParams) -> Result<Self> {
        // Text is spelled once, not for every generation.
        let params = engine.spelled(&params)?.into_owned();
        Sampler::new(&params, engine.vocab_size())?;
        Ok(Self {
            engine,
            params,
            stops: Vec::new(),
            ignore_eos: false,
            prediction: Vec::new(),
            memory: None,
        })
    }

    /// Ends texts before the first of these strings. The string itself is not part of the text.
    #[must_use]
    pub fn with_stops(mut self, stops: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.stops = stops.into_iter().map(Into::into).collect();
        self
    }

    /// Goes on past end-of-generation tokens, for measurements of a fixed length.
    #[must_use]
    pub fn with_ignore_eos(mut self, ignore: bool) -> Self {
        self.ignore_eos = ignore;
        self
    }

    /// What the texts are expected to be, as far as known: a file before an edit, an answer to a like question. What of it
    /// comes true is said sooner; no text is another for it.
    ///
    /// # Errors
    /// A prediction of text where the engine has no tokenizer; [`Error::Unsupported`] for a draft that makes no use of one.
    pub fn with_prediction<'p>(mut self, prediction: impl Into<Prompt<'p>>) -> Result<Self> {
        self.prediction = match prediction.into() {
            Prompt::Text(text) => self.engine.need_tokenizer()?.encode(text, false)?,
            other => self.encode(&other)?,
        };
        let mut state = self.engine.drafter().new_state();
        if !self.engine.drafter().expect(state.as_mut(), &self.prediction) {
            let problem =
                "a prediction is of use only where guesses draft, as `suffix`, `auto` or `suffix+MODEL` do";
            return Err(Error::Unsupported(problem.into()));
        }
        Ok(self)
    }

    /// The sampling parameters, phrases as token ids.
    pub fn params(&self) -> &SamplingParams {
        &self.params
    }

    /// The engine it belongs to.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Forgets the text before; the next prompt is computed whole.
    pub fn reset(&mut self) {
        self.memory = None;
    }

    /// Generates up to `max_tokens` tokens after `prompt`, piece by piece as they are decided. Dropping the iterator
    /// cancels it. Without a seed in the parameters one is drawn; [`Generation::seed`] tells it.
    ///
    /// # Errors
    /// An empty prompt, one longer than the context, a chat prompt for a model without a template.
    pub fn generate<'p>(
        &mut self,
        prompt: impl Into<Prompt<'p>>,
        max_tokens: usize,
    ) -> Result<Generation<'_>> {
        let sequence = self.start(&prompt.into(), max_tokens)?;
        let rounds = self.engine.rounds();
        Ok(Generation { home: &mut self.memory, sequence: Some(sequence), rounds, failed: false })
    }

    fn start(&mut self, prompt: &Prompt<'_>, max_tokens: usize) -> Result<Sequence> {
        let prompt = self.encode(prompt)?;
        let request = Request {
            prompt: &prompt,
            params: &self.params,
            max_tokens,
            stops: &self.stops,
            ignore_eos: self.ignore_eos,
        };
        let mut sequence = self.engine.start(&request, &mut self.memory)?;
        sequence.expect(&self.prediction);
        Ok(sequence)
    }

    /// Generates `num_samples` texts of one prompt, all in the same passes: the prompt is fed once, and on the CPU its
    /// keys and values are kept once. The first is what [`Session::generate`] gives; each has its own seed
    /// ([`sample_seed`](crate::rng::sample_seed)) and is what a request with that seed and the same verification gives; under a
    /// ratio test only where the draft has not learned from other texts meanwhile.
    ///
    /// # Errors
    /// As [`Session::generate`]; [`Error::Parameter`] for no samples, for more than the engine has memory planned for
    /// ([`EngineBuilder::num_sequences`](crate::EngineBuilder::num_sequences)), and for more than one at temperature 0.
    pub fn generate_many<'p>(
        &mut self,
        prompt: impl Into<Prompt<'p>>,
        max_tokens: usize,
        num_samples: usize,
    ) -> Result<Samples<'_>> {
        let refuse = |problem: String| Err(Error::parameter("num_samples", problem));
        let planned = self.engine.num_sequences();
        match num_samples {
            0 => return refuse("is 0, but must be at least 1".into()),
            n if n > 1 && self.params.temperature == 0.0 => {
                return refuse(format!(
                    "is {n}, but at temperature 0 all would be the same text; raise the temperature"
                ));
            }
            n if n > planned => {
                return refuse(format!(
                    "is {n}, but the engine has memory planned for {planned} at once (EngineBuilder::num_sequences)"
                ));
            }
            _ => {}
        }
        let first = self.start(&prompt.into(), max_tokens)?;
        let rounds = self.engine.rounds();
        Ok(Samples::new(&mut self.memory, first, num_samples, rounds))
    }

    /// The token ids of a prompt, as [`Session::generate`] would feed them.
    ///
    /// # Errors
    /// A prompt of text where the engine has no tokenizer, of messages where the model has no chat template.
    pub fn encode(&self, prompt: &Prompt<'_>) -> Result<Vec<u32>> {
        let (tokenizer, text) = match prompt {
            Prompt::Ids(ids) => return Ok(ids.to_vec()),
            Prompt::Text(text) => (self.engine.need_tokenizer()?, (*text).to_owned()),
            Prompt::Messages(messages) => {
                let template = self.engine.need_chat_template()?;
                let options = RenderOptions { add_generation_prompt: true, ..RenderOptions::default() };
                (self.engine.need_tokenizer()?, template.render(messages, &options)?)
            }
        };
        let mut ids = tokenizer.encode(&text, true)?;
        // A template may write the token itself; twice is a known way to worse answers.
        if let Some(bos) = tokenizer.bos().filter(|_| tokenizer.adds_bos())
            && ids.first() != Some(&bos)
        {
            ids.insert(0, bos);
        }
        Ok(ids)
    }
}

/// A text being generated: an iterator over its pieces.
pub struct Generation<'s> {
    home: &'s mut Option<Memory>,
    /// `Some` until dropped.
    sequence: Option<Sequence>,
    rounds: Rounds,
    failed: bool,
}

impl Generation<'_> {
    fn sequence(&self) -> &Sequence {
        self.sequence.as_ref().expect("the sequence leaves in drop only")
    }

    /// The seed its randomness comes from, drawn or given: with [`Generation::verification`] and the same prompt and
    /// settings it gives the same text; where that is [`Verification::Coupled`], with any draft.
    pub fn seed(&self) -> u64 {
        self.sequence().seed()
    }

    /// How drafts are verified, as asked for or by default.
    pub fn verification(&self) -> Verification {
        self.sequence().verification()
    }

    /// Whether tokens are drawn at random.
    pub fn is_random(&self) -> bool {
        self.sequence().sampler.params().temperature > 0.0
    }

    /// The prompt's ids.
    pub fn prompt_tokens(&self) -> &[u32] {
        let sequence = self.sequence();
        &sequence.tokens()[..sequence.stats().prompt_tokens]
    }

    /// The log-probabilities of the prompt's tokens but the first, once it was fed, where
    /// [`SamplingParams::prompt_logprobs`] asks for them.
    pub fn prompt_logprobs(&self) -> &[TokenLogprobs] {
        self.sequence().prompt_logprobs()
    }

    /// The ids generated so far.
    pub fn tokens(&self) -> &[u32] {
        self.sequence().output()
    }

    /// Why it ended; `None` while it goes on.
    pub fn finish_reason(&self) -> Option<FinishReason> {
        self.sequence().finish_reason()
    }

    /// Counts and times so far.
    pub fn stats(&self) -> &Stats {
        self.sequence().stats()
    }

    /// Keeps every round from now on in full, for [`Generation::records`]; else only their counts and times are kept.
    pub fn record_rounds(&mut self) {
        self.sequence.as_mut().expect("the sequence leaves in drop only").record_rounds();
    }

    /// The rounds since [`Generation::record_rounds`] was called: what was drafted in each, and what became of it.
    pub fn records(&self) -> &[RoundRecord] {
        self.sequence().records()
    }

    /// Feeds the next chunk of the prompt and returns whether more is left. Iterating feeds all of it by itself; this is
    /// for callers that want to stop in between.
    ///
    /// # Errors
    /// A failing target.
    pub fn prefill(&mut self) -> Result<bool> {
        let sequence = self.sequence.as_mut().expect("the sequence leaves in drop only");
        if sequence.wants_prompt() { self.rounds.prefill(sequence) } else { Ok(false) }
    }

    /// Runs until a piece is there, the text has ended, or something failed.
    fn advance(&mut self) -> Result<Option<Piece>> {
        let sequence = self.sequence.as_mut().expect("the sequence leaves in drop only");
        loop {
            if let Some(piece) = sequence.next_piece() {
                return Ok(Some(piece));
            }
            while sequence.wants_prompt() && self.rounds.prefill(sequence)? {}
            if sequence.finish_reason().is_some() {
                return Ok(None);
            }
            self.rounds.step(&mut [&mut *sequence])?.into_iter().collect::<Result<()>>()?;
        }
    }
}

impl Iterator for Generation<'_> {
    type Item = Result<Piece>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed {
            return None;
        }
        let piece = self.advance();
        self.failed = piece.is_err();
        piece.transpose()
    }
}

impl Drop for Generation<'_> {
    /// The caches go back to the session, holding exactly the text that was committed.
    fn drop(&mut self) {
        *self.home = self.sequence.take().map(Sequence::into_memory);
    }
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session")
            .field("params", &self.params)
            .field("stops", &self.stops)
            .finish_non_exhaustive()
    }
}

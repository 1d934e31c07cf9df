//! Scoring: how likely the target finds a text that is already there.

use std::{collections::VecDeque, iter::Sum, sync::Arc};

use crate::{
    cache::KvCache,
    engine::Engine,
    error::{Error, Result},
    model::{Batch, Model, Output, PROMPT_CHUNK, Rows, Slice},
    sampling::TokenLogprobs,
};

/// Rows of logits computed in one pass: most of a prompt's speed, in a quarter of the memory that a chunk of one would take.
pub(crate) const SCORE_CHUNK: usize = 32;

/// How a text is scored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScoreOptions {
    /// How many of the most likely tokens are listed for each of the text.
    pub num_top: usize,
    /// Texts longer than the context are scored in windows of it, each ending this many tokens after the one before; a
    /// token then sees at least the context less the stride before it. `None` refuses such texts.
    pub stride: Option<usize>,
}

/// The likelihood of a text. Its first token, before which there is nothing, is not scored.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Score {
    /// Tokens scored.
    pub num_tokens: usize,
    /// The sum of their log-probabilities, natural logarithms.
    pub total_logprob: f64,
}

impl Score {
    /// Adds the next token.
    pub fn add(&mut self, token: &TokenLogprobs) {
        self.num_tokens += 1;
        self.total_logprob += f64::from(token.logprob);
    }

    /// The mean negative log-likelihood of a token, in nats.
    pub fn mean_nll(&self) -> f64 {
        -self.total_logprob / self.num_tokens as f64
    }

    /// `exp(mean_nll)`.
    pub fn perplexity(&self) -> f64 {
        self.mean_nll().exp()
    }

    /// Bits per byte of a text whose scored tokens stand for `num_bytes` bytes.
    pub fn bits_per_byte(&self, num_bytes: usize) -> f64 {
        -self.total_logprob / std::f64::consts::LN_2 / num_bytes as f64
    }
}

impl Sum<TokenLogprobs> for Score {
    fn sum<I: Iterator<Item = TokenLogprobs>>(tokens: I) -> Self {
        let mut score = Self::default();
        tokens.for_each(|token| score.add(&token));
        score
    }
}

impl Engine {
    /// Scores `tokens` with the target: the raw log-probabilities of each but the first, in order. On the CPU they have
    /// the bits that generating the same tokens gives. Memory is that of one sequence and a few rows of logits.
    ///
    /// Windows after the first begin with the beginning-of-sequence token where the text does.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use specgen::{Engine, Result, Score, ScoreOptions, draft::NoDraft, model::ToyModel};
    /// # let engine = Engine::from_parts(Arc::new(ToyModel::new(50, 7, 8.0)), Arc::new(NoDraft), 0, &[]);
    /// let score: Score = engine.score(&[1, 2, 3], &ScoreOptions::default())?.sum::<Result<_>>()?;
    /// assert!(score.num_tokens == 2 && score.perplexity() > 1.0);
    /// # Ok::<(), specgen::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for fewer than two tokens, a stride out of its range, or a text longer than the
    /// context without one. Then, of the tokens: [`Error::NanLogits`] with the place in the text (or in its window) as
    /// its step; a failing model.
    pub fn score<'t>(&self, tokens: &'t [u32], options: &ScoreOptions) -> Result<Scoring<'t>> {
        let bos = self.tokenizer().filter(|tokenizer| tokenizer.adds_bos()).and_then(|t| t.bos());
        let bos = bos.filter(|bos| tokens.first() == Some(bos));
        let windows = windows(tokens.len(), self.context_len(), options.stride, bos.is_some())?;
        Ok(Scoring {
            tokens,
            bos,
            num_windows: windows.len(),
            windows: windows.into(),
            text: Vec::new(),
            from: 0,
            model: self.target().clone(),
            vocab_size: self.vocab_size(),
            num_top: options.num_top,
            cache: self.target().new_cache(),
            output: Output::new(),
            found: VecDeque::new(),
            failed: false,
        })
    }
}

/// A text being scored: an iterator over its tokens but the first.
pub struct Scoring<'t> {
    tokens: &'t [u32],
    bos: Option<u32>,
    num_windows: usize,
    /// Those to come.
    windows: VecDeque<Window>,
    /// The window at hand, and its first token to be scored.
    text: Vec<u32>,
    from: usize,
    model: Arc<dyn Model>,
    vocab_size: usize,
    num_top: usize,
    cache: KvCache,
    output: Output,
    found: VecDeque<TokenLogprobs>,
    failed: bool,
}

impl Scoring<'_> {
    /// Windows the text is scored in; 1 where the context holds all of it.
    pub fn num_windows(&self) -> usize {
        self.num_windows
    }

    fn advance(&mut self) -> Result<Option<TokenLogprobs>> {
        while self.found.is_empty() {
            if self.cache.len() + 1 >= self.text.len() {
                let Some(Window { start, scored, end }) = self.windows.pop_front() else { return Ok(None) };
                let bos = self.bos.filter(|_| start > 0);
                self.text = bos.into_iter().chain(self.tokens[start..end].iter().copied()).collect();
                self.from = self.text.len() - (end - scored);
                self.cache.truncate(0);
            }
            let rows = ScoredRows { vocab_size: self.vocab_size, num_top: self.num_top, from: self.from };
            let found = feed_scored(&*self.model, &mut self.cache, &self.text, rows, &mut self.output)?;
            self.found.extend(found);
        }
        Ok(self.found.pop_front())
    }
}

impl Iterator for Scoring<'_> {
    type Item = Result<TokenLogprobs>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed {
            return None;
        }
        let token = self.advance();
        self.failed = token.is_err();
        token.transpose()
    }
}

/// What is asked of the rows of a text.
#[derive(Clone, Copy)]
pub(crate) struct ScoredRows {
    /// Ids that may be said.
    pub(crate) vocab_size: usize,
    /// As [`ScoreOptions::num_top`].
    pub(crate) num_top: usize,
    /// The first token to be scored, at least 1.
    pub(crate) from: usize,
}

/// Feeds the next chunk of `text`, of which `cache` holds the beginning, up to all but its last token, and returns the
/// log-probabilities that its rows tell. What a token gets depends on no chunk.
pub(crate) fn feed_scored(
    model: &dyn Model,
    cache: &mut KvCache,
    text: &[u32],
    rows: ScoredRows,
    output: &mut Output,
) -> Result<Vec<TokenLogprobs>> {
    let ScoredRows { vocab_size, num_top, from } = rows;
    // Row i tells of token i + 1, and the last token's row of none.
    let (start, last) = (cache.len(), text.len() - 1);
    let (end, rows) = match start < from - 1 {
        true => ((from - 1).min(start + PROMPT_CHUNK), Rows::None),
        false => (last.min(start + SCORE_CHUNK), Rows::All),
    };
    if start >= end {
        return Ok(Vec::new());
    }
    let slice = Slice { cache, tokens: &text[start..end], rows, tree: None };
    model.forward(&mut Batch { slices: vec![slice], taps: &[] }, output)?;
    let of = |row| {
        let (index, logits) = (start + row + 1, output.logits(0, row));
        TokenLogprobs::raw(&logits[..vocab_size.min(logits.len())], text[index], num_top, index)
    };
    let found: Result<_> = (0..output.num_rows(0)).map(of).collect();
    if found.is_err() {
        cache.truncate(start);
    }
    found
}

/// Tokens `start..end` are fed, `scored..end` scored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Window {
    start: usize,
    scored: usize,
    end: usize,
}

/// The windows of a text of `len` tokens; with `leads`, a token of its own comes before each but the first.
fn windows(len: usize, context_len: usize, stride: Option<usize>, leads: bool) -> Result<Vec<Window>> {
    let refuse = |message: String| Err(Error::InvalidArgument(message));
    if len < 2 {
        return refuse(format!(
            "the text has {len} token{}, but the first is not scored: at least 2 are wanted",
            if len == 1 { "" } else { "s" }
        ));
    }
    // What a window after the first holds of the text.
    let room = context_len - usize::from(leads);
    let most = room.saturating_sub(1);
    if let Some(stride) = stride
        && !(1..=most).contains(&stride)
    {
        return refuse(format!(
            "a stride of {stride} tokens; wanted 1 to {most}, less than the context holds"
        ));
    }
    let mut windows = vec![Window { start: 0, scored: 1, end: len.min(context_len) }];
    while let Some(&Window { end, .. }) = windows.last().filter(|last| last.end < len) {
        let Some(stride) = stride else {
            return refuse(format!(
                "the text has {len} tokens, but the context holds {context_len}; \
                 raise the context length, or score it in windows (a stride)"
            ));
        };
        windows.push(Window { start: end + stride - room, scored: end, end: len.min(end + stride) });
    }
    Ok(windows)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn windows_score_every_token_but_the_first_once() {
        for (len, context_len, leads) in
            (2..40).flat_map(|len| (3..12).flat_map(move |c| [false, true].map(|leads| (len, c, leads))))
        {
            for stride in 1..context_len - usize::from(leads) {
                let windows = windows(len, context_len, Some(stride), leads).unwrap();
                let scored: Vec<usize> = windows.iter().flat_map(|w| w.scored..w.end).collect();
                assert_eq!(scored, (1..len).collect::<Vec<_>>());
                for (i, window) in windows.iter().enumerate() {
                    let own = usize::from(leads && i > 0);
                    assert!(window.end - window.start + own <= context_len, "{window:?}");
                    assert_eq!(window.start > 0, i > 0, "{window:?}");
                    let seen = window.scored - window.start + own;
                    assert!(i == 0 || seen >= context_len - stride, "{window:?}");
                }
            }
        }
    }

    #[test]
    fn what_cannot_be_scored_is_refused_with_its_numbers() {
        let refused = |len, stride| windows(len, 8, stride, false).unwrap_err().to_string();
        assert!(refused(9, None).contains("9 tokens, but the context holds 8"));
        assert!(refused(1, None).contains("1 token, but"));
        assert!(refused(9, Some(8)).contains("a stride of 8 tokens; wanted 1 to 7"));
        assert!(refused(9, Some(0)).contains("a stride of 0"));
        assert_eq!(windows(8, 8, None, true).unwrap().len(), 1);
        assert!(windows(9, 8, Some(7), true).is_err(), "one place is the leading token's");
    }

    #[test]
    fn a_score_is_summed_over_its_tokens() {
        let token = |logprob| TokenLogprobs { logprob, ..TokenLogprobs::default() };
        let score: Score = [token(-1.0), token(-3.0)].into_iter().sum();
        assert_eq!((score.num_tokens, score.total_logprob, score.mean_nll()), (2, -4.0, 2.0));
        assert_eq!((score.perplexity(), score.bits_per_byte(4)), (2f64.exp(), 1.0 / std::f64::consts::LN_2));
    }
}

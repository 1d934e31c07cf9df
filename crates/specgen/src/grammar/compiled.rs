//! The one file that knows llguidance: grammars compiled for a vocabulary, places in them, and masks.

use std::sync::Arc;

use llguidance::{
    Matcher, ParserFactory,
    api::TopLevelGrammar,
    panic_utils::catch_unwind,
    toktrie::{ApproximateTokEnv, INVALID_TOKEN, InferenceCapabilities, SimpleVob, TokRxInfo, TokTrie},
};

use super::Language;
use crate::{Error, Result, tokenizer::Tokenizer};

/// The tokens that grammars are compiled for. Cloning shares.
#[derive(Clone)]
pub struct Vocabulary(Arc<Inner>);

struct Inner {
    factory: ParserFactory,
    end_ids: Vec<u32>,
    /// How the model would spell a text; without it, by the longest tokens.
    tokenizer: Option<Tokenizer>,
}

impl Vocabulary {
    /// From the bytes each id stands for, empty where it is no text, and the ids that end a text, which are
    /// none. An engine with a tokenizer makes its own.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for an end id beyond the tokens, and for tokens that no vocabulary has.
    pub fn new(tokens: &[Vec<u8>], end_ids: &[u32]) -> Result<Self> {
        Self::with(tokens.to_vec(), end_ids, None)
    }

    /// The text tokens of a tokenizer: all but control tokens.
    pub(crate) fn of(tokenizer: &Tokenizer) -> Result<Self> {
        let bytes = |id| if tokenizer.is_special(id) { None } else { tokenizer.token_bytes(id) };
        let tokens = (0..tokenizer.vocab_size() as u32).map(|id| bytes(id).unwrap_or_default()).collect();
        Self::with(tokens, tokenizer.end_of_generation(), Some(tokenizer.clone()))
    }

    fn with(mut tokens: Vec<Vec<u8>>, end_ids: &[u32], tokenizer: Option<Tokenizer>) -> Result<Self> {
        let broken =
            |problem: String| Error::InvalidArgument(format!("the vocabulary of a grammar {problem}"));
        for &id in end_ids {
            let token = tokens.get_mut(id as usize);
            token.ok_or_else(|| broken(format!("has no token {id}, which is to end a text")))?.clear();
        }
        // No text has this byte, and llguidance marks special tokens with it.
        tokens.iter_mut().filter(|token| token.contains(&TokTrie::SPECIAL_TOKEN_MARKER)).for_each(Vec::clear);
        // Whatever a file claims its tokens are, it gets an error, not a panic.
        let made = catch_unwind(std::panic::AssertUnwindSafe(|| {
            let trie = TokTrie::from(&TokRxInfo::new(tokens.len() as u32, INVALID_TOKEN), &tokens);
            let trie = if end_ids.is_empty() { trie } else { trie.with_eos_tokens(end_ids) };
            // Not canonical: any spelling of an allowed text is allowed, as in plain sampling.
            let env = Arc::new(ApproximateTokEnv::new(trie));
            let slices = llguidance::earley::SlicedBiasComputer::general_slices();
            let mut factory = ParserFactory::new(&(env as _), InferenceCapabilities::default(), &slices)?;
            factory.quiet().limits_mut().verbose_errors = false;
            Ok(factory)
        }));
        let factory = made.map_err(|error| broken(format!("is unusable: {}", first_line(&error))))?;
        Ok(Self(Arc::new(Inner { factory, end_ids: end_ids.to_vec(), tokenizer })))
    }

    /// Whether both are the same one.
    pub(super) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Where texts of a grammar begin, or what is wrong with it.
    pub(super) fn compile(&self, language: Language, text: &str) -> Result<Place, String> {
        let grammar = match language {
            Language::JsonSchema => TopLevelGrammar::from_json_schema(
                serde_json::from_str(text).map_err(|error| error.to_string())?,
            ),
            Language::Regex => TopLevelGrammar::from_regex(text),
            Language::Lark => TopLevelGrammar::from_lark(text.to_owned()),
        };
        let told = |error| match language {
            Language::Regex => of_regex(&first_line(&error)),
            Language::JsonSchema | Language::Lark => first_line(&error),
        };
        let parser = self.0.factory.create_parser(grammar).map_err(told)?;
        let mut place = Place { matcher: Matcher::new(Ok(parser)), vocabulary: self.clone() };
        // A grammar without a text is told now, not at the first token.
        place.mask()?;
        Ok(place)
    }

    /// How the model would most likely spell `bytes`.
    pub(super) fn spell(&self, bytes: &[u8]) -> Vec<u32> {
        let text = std::str::from_utf8(bytes).ok();
        let spelled = self.0.tokenizer.as_ref().zip(text);
        let spelled = spelled.and_then(|(tokenizer, text)| tokenizer.encode_within(text, false).ok());
        spelled.unwrap_or_else(|| self.trie().greedy_tokenize(bytes))
    }

    /// The token that most likely ends a text.
    pub(super) fn end(&self) -> Option<u32> {
        let named = self.0.tokenizer.as_ref().and_then(Tokenizer::eos);
        named.filter(|id| self.0.end_ids.contains(id)).or(self.0.end_ids.first().copied())
    }

    /// Whether token `longer` begins with all of token `id`, and has more.
    pub(super) fn goes_on(&self, id: u32, longer: u32) -> bool {
        let (short, long) = (self.trie().token(id), self.trie().token(longer));
        long.len() > short.len() && long.starts_with(short)
    }

    fn trie(&self) -> &TokTrie {
        self.0.factory.tok_env().tok_trie()
    }
}

impl std::fmt::Debug for Vocabulary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Vocabulary").field("len", &self.trie().vocab_size()).finish_non_exhaustive()
    }
}

/// Where a text stands in its grammar. A clone is a fork: what one of them does, the other does not see.
#[derive(Clone)]
pub(super) struct Place {
    matcher: Matcher,
    vocabulary: Vocabulary,
}

impl Place {
    /// The same place with nothing shared: for a sequence of its own, on whatever thread.
    pub(super) fn own(&self) -> Self {
        Self { matcher: self.matcher.deep_clone(), vocabulary: self.vocabulary.clone() }
    }

    /// Goes on by one token. After an error the place is lost.
    pub(super) fn step(&mut self, id: u32) -> Result<(), String> {
        if self.must_end() && self.vocabulary.0.end_ids.contains(&id) {
            return Ok(());
        }
        self.matcher.consume_token(id).map_err(|error| first_line(&error))
    }

    /// Whether nothing may follow but the end.
    pub(super) fn must_end(&self) -> bool {
        self.matcher.is_stopped() && !self.matcher.is_error()
    }

    /// Which tokens may follow.
    pub(super) fn mask(&mut self) -> Result<Mask, String> {
        self.matcher.compute_mask_or_eos().map(Mask).map_err(|error| first_line(&error))
    }

    /// The bytes that must follow, whatever else does.
    pub(super) fn forced_bytes(&self) -> Vec<u8> {
        if self.matcher.is_stopped() { Vec::new() } else { self.matcher.clone().compute_ff_bytes() }
    }
}

/// Which tokens may follow, one bit each.
pub(super) struct Mask(SimpleVob);

impl Mask {
    pub(super) fn allows(&self, id: u32) -> bool {
        self.0.as_slice().get(id as usize / 32).is_some_and(|word| word >> (id % 32) & 1 == 1)
    }

    /// The tokens that may, ascending.
    pub(super) fn ids(&self) -> impl Iterator<Item = u32> + '_ {
        self.0.iter()
    }

    /// Bans all others.
    pub(super) fn apply(&self, logits: &mut [f32]) {
        let words = self.0.as_slice().iter().copied().chain(std::iter::repeat(0));
        for (logits, word) in logits.chunks_mut(32).zip(words) {
            match word {
                u32::MAX => {}
                0 => logits.fill(f32::NEG_INFINITY),
                _ => {
                    let banned = (0..).zip(logits).filter(|(bit, _)| word >> bit & 1 == 0);
                    banned.for_each(|(_, logit)| *logit = f32::NEG_INFINITY);
                }
            }
        }
    }
}

/// What is wrong with a regular expression, without the grammar that llguidance wraps it in, which nobody wrote.
fn of_regex(problem: &str) -> String {
    let verdict = problem.lines().find_map(|line| line.strip_prefix("error: "));
    let line = verdict.unwrap_or_else(|| problem.lines().next().unwrap_or_default());
    line.split_once("(in regex): ").map_or(line, |(_, problem)| problem).to_owned()
}

/// What llguidance says, without the state it may append.
fn first_line(error: &impl ToString) -> String {
    let text = error.to_string();
    let end = text.find("\n<").unwrap_or(text.len());
    match &text[..end] {
        "NoExtensionBias" => "no token of this vocabulary may follow".to_owned(),
        text => text.to_owned(),
    }
}

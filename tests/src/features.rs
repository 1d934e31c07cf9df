//! Every feature of the sampler by name, for suites that ask the same of all.

use specgen::{
    SamplingParams,
    grammar::{Grammar, Vocabulary},
    sampling::{Dry, History, LogitsProcessor, Mirostat, Xtc},
};

/// A feature: its name, and parameters with it and little else. They fit a vocabulary of four or more.
pub struct Feature {
    /// For messages.
    pub name: &'static str,
    /// Temperature 1 and a seed; else off.
    pub params: SamplingParams,
    /// Whether it looks at the text before a token, so that it must see a draft position's own.
    pub looks_back: bool,
}

/// All of them, and all at once.
pub fn all() -> Vec<Feature> {
    let off = SamplingParams { temperature: 1.0, seed: Some(5), ..SamplingParams::greedy() };
    let dry = Dry { allowed_length: 1, sequence_breakers: vec![vec![2, 2].into()], ..Dry::default() };
    let everything = SamplingParams {
        temperature: 0.8,
        top_n_sigma: 2.5,
        top_k: 7,
        top_p: 0.97,
        typical_p: 0.97,
        min_p: 0.02,
        xtc: Some(Xtc { probability: 0.4, threshold: 0.3 }),
        mirostat: Some(Mirostat { tau: 1.5, eta: 0.3 }),
        repetition_penalty: 1.2,
        presence_penalty: 0.3,
        frequency_penalty: 0.2,
        penalty_last_n: 4,
        dry: Some(dry.clone()),
        logit_bias: vec![(1, 0.5)],
        processors: vec![Shy.into()],
        bad_words: vec![vec![1, 3].into()],
        no_repeat_ngram: 4,
        min_tokens: 4,
        grammar: Some(in_threes()),
        ..off.clone()
    };
    let at_once = [
        ("top-n-sigma", false, SamplingParams { top_n_sigma: 1.0, ..off.clone() }),
        ("typical-p", false, SamplingParams { typical_p: 0.6, ..off.clone() }),
        ("XTC", true, SamplingParams { xtc: Some(Xtc { probability: 0.5, threshold: 0.1 }), ..off.clone() }),
        ("mirostat", true, SamplingParams { mirostat: Some(Mirostat { tau: 1.0, eta: 0.7 }), ..off.clone() }),
        (
            "penalties",
            true,
            SamplingParams {
                repetition_penalty: 1.3,
                presence_penalty: 0.4,
                frequency_penalty: 0.6,
                ..off.clone()
            },
        ),
        (
            "penalties in a window",
            true,
            SamplingParams {
                repetition_penalty: 1.5,
                frequency_penalty: 0.6,
                penalty_last_n: 2,
                ..off.clone()
            },
        ),
        ("DRY", true, SamplingParams { dry: Some(dry), ..off.clone() }),
        ("n-grams", true, SamplingParams { no_repeat_ngram: 2, ..off.clone() }),
        (
            "bad words",
            true,
            SamplingParams { bad_words: vec![vec![1, 2].into(), vec![3, 3].into()], ..off.clone() },
        ),
        ("min tokens", true, SamplingParams { min_tokens: 4, ..off.clone() }),
        ("processor", true, SamplingParams { processors: vec![Shy.into()], ..off.clone() }),
        ("grammar", true, SamplingParams { grammar: Some(in_threes()), ..off }),
        ("everything", true, everything),
    ];
    at_once.into_iter().map(|(name, looks_back, params)| Feature { name, params, looks_back }).collect()
}

/// Any text, but in every three tokens the first is not 0, the second not 2 and the third not 1. No end: whatever ends a
/// text is a token like another to it.
fn in_threes() -> Grammar {
    let digits: Vec<Vec<u8>> = (b'0'..b'p').map(|byte| vec![byte]).collect();
    let vocabulary = Vocabulary::new(&digits, &[]).expect("these are tokens");
    Grammar::regex("([^0][^2][^1])*").compile(&vocabulary).expect("this is a regular expression")
}

/// Lowers the logit of whatever was said two tokens before, and more the longer the text.
struct Shy;

impl LogitsProcessor for Shy {
    fn name(&self) -> &str {
        "shy"
    }

    fn process(&self, logits: &mut [f32], history: &History) {
        let tokens = history.tokens();
        if let [.., before, _] = tokens
            && let Some(logit) = logits.get_mut(*before as usize)
        {
            *logit -= 0.1 * tokens.len() as f32;
        }
    }
}

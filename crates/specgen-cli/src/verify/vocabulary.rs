//! Whether target and draft mean the same by a token, and the tokenizer by a text.

use anyhow::Result;
use serde::Serialize;
use specgen::{Engine, draft::DraftVocab};

/// Words, code, accents, other scripts, a character of several code points, white space.
const TEXTS: [&str; 6] = [
    "The quick brown fox jumps over the lazy dog.",
    "fn main() {\n    println!(\"{:>8.3}\", 1e-3_f64);\n}\n",
    "Größe, façade, naïve, œuvre, 3 ½ °C",
    "速度は同じ言葉をもっと早く、مرحبا, Привет",
    "👩‍🚀 and 🇪🇺",
    "a  b\t\tc\n\n   d",
];

/// What a comparison found.
#[derive(Serialize)]
pub(super) struct Vocabulary {
    /// Ids the target can say.
    pub(super) target_ids: usize,
    /// Tokens that a draft model has too; nothing where no model drafts.
    pub(super) shared_ids: Option<usize>,
    /// How far a draft of another vocabulary covers the target's.
    pub(super) coverage: Option<String>,
    /// Texts that were made tokens and text again.
    pub(super) texts: usize,
    /// Those of them that came back as they were.
    pub(super) kept: usize,
}

impl Vocabulary {
    pub(super) fn of(engine: &Engine) -> Result<Self> {
        let tokenizer = engine.tokenizer();
        let draft = engine.drafter().vocab();
        let mut kept = 0;
        for text in TEXTS {
            if let Some(tokenizer) = tokenizer {
                kept +=
                    usize::from(tokenizer.decode_from_start(&tokenizer.encode(text, false)?, false) == text);
            }
        }
        Ok(Self {
            target_ids: engine.vocab_size(),
            shared_ids: draft.map(DraftVocab::num_shared),
            coverage: draft.and_then(DraftVocab::coverage).map(|coverage| coverage.to_string()),
            texts: TEXTS.len(),
            kept,
        })
    }

    /// A tokenizer that normalises text is within its rights; what a draft shares with the target is known to be the same.
    pub(super) fn holds(&self) -> bool {
        self.shared_ids != Some(0)
    }
}

//! Whether target and draft mean the same by a token, and the tokenizer by a text.

use anyhow::Result;
use serde::Serialize;
use specgen::{DraftSource, OpenModel, Overrides, draft::DraftVocab, models::NoProgress};

use crate::{args::VerifyArgs, load::Loaded};

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
    pub(super) fn of(loaded: &Loaded, args: &VerifyArgs) -> Result<Self> {
        let engine = &loaded.engine;
        let tokenizer = engine.tokenizer();
        let source = DraftSource::from(loaded.draft.as_str());
        let files = source.resolve(&loaded.store, &NoProgress)?;
        let draft = match (files, tokenizer) {
            _ if matches!(source, DraftSource::Copy(_)) => Some(DraftVocab::Shared(engine.vocab_size())),
            (Some(files), Some(tokenizer)) => {
                // As the engine opened it.
                let tokenizer_pre = args.model.run.files.overrides().tokenizer_pre;
                let draft = OpenModel::open(&files, &Overrides { tokenizer_pre, ..Overrides::default() })?;
                Some(DraftVocab::between(tokenizer, &draft.tokenizer)?)
            }
            _ => None,
        };
        let mut kept = 0;
        for text in TEXTS {
            if let Some(tokenizer) = tokenizer {
                kept +=
                    usize::from(tokenizer.decode_from_start(&tokenizer.encode(text, false)?, false) == text);
            }
        }
        Ok(Self {
            target_ids: engine.vocab_size(),
            shared_ids: draft.as_ref().map(DraftVocab::num_shared),
            coverage: draft.and_then(|vocab| vocab.coverage()).map(|coverage| coverage.to_string()),
            texts: TEXTS.len(),
            kept,
        })
    }

    /// A tokenizer that normalises text is within its rights; what a draft shares with the target is known to be the same.
    pub(super) fn holds(&self) -> bool {
        self.shared_ids != Some(0)
    }
}

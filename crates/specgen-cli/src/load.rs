//! From the model options of the command line to a loaded engine.

use anyhow::Result;
use specgen::{
    DEFAULT_MODEL, DraftSource, Engine, EngineBuilder,
    models::{Progress, Store},
};

use crate::args::{ModelArgs, RunArgs};

/// How a user says that nobody drafts.
const NO_DRAFT: &str = "none";

/// An engine, and what it was made of.
pub(crate) struct Loaded {
    pub(crate) engine: Engine,
    pub(crate) store: Store,
    /// Who drafts, as the user would write it.
    pub(crate) draft: String,
}

impl ModelArgs {
    /// Loads target and draft for so many texts at once, fetching what is missing.
    ///
    /// # Errors
    /// Those of the library.
    pub(crate) fn load(&self, num_sequences: usize, progress: &dyn Progress) -> Result<Loaded> {
        let store = self.run.files.store()?;
        let target = self.target.as_deref().unwrap_or(DEFAULT_MODEL);
        let draft = self.draft_of(target, &store, progress)?;
        let builder = Engine::builder(target)
            .draft(DraftSource::from(draft.as_str()))
            .num_draft_tokens(self.num_draft_tokens)
            .num_sequences(num_sequences)
            .store(store.options().clone());
        let engine = self.run.on(builder).build_with(progress)?;
        // What was asked for has been checked, but with nothing to draft nobody does.
        let draft = if self.num_draft_tokens == 0 { NO_DRAFT.into() } else { draft };
        Ok(Loaded { engine, store, draft })
    }

    /// The draft asked for, else the one recommended for the target; with nothing to draft, none.
    fn draft_of(&self, target: &str, store: &Store, progress: &dyn Progress) -> Result<String> {
        Ok(match &self.draft {
            Some(draft) => draft.clone(),
            None if self.num_draft_tokens == 0 => NO_DRAFT.into(),
            None => store.resolve(target, progress)?.recommended_draft.unwrap_or_else(|| "ngram".into()),
        })
    }
}

impl RunArgs {
    /// `builder` with what these options say.
    pub(crate) fn on(&self, builder: EngineBuilder) -> EngineBuilder {
        let mut builder = builder.device(self.device).threads(self.threads).overrides(self.files.overrides());
        if let Some(context) = self.context {
            builder = builder.context_len(context);
        }
        if let Some(kv_type) = self.kv.kind {
            builder = builder.kv_type(kv_type);
        }
        builder
    }
}

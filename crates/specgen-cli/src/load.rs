//! From the model options of the command line to a loaded engine.

use anyhow::{Context as _, Result};
use specgen::{
    DEFAULT_MODEL, DraftSource, Engine, EngineBuilder, Plan,
    models::{Progress, Store},
};

use crate::{
    args::{DraftHead, ModelArgs, RunArgs},
    prompt,
};

/// An engine, and what it was made of.
pub(crate) struct Loaded {
    pub(crate) engine: Engine,
    pub(crate) store: Store,
    /// Who drafts, as the user would write it.
    pub(crate) draft: String,
}

impl ModelArgs {
    /// Loads target and draft (the one asked for, else the one recommended for the target), fetching what is missing.
    ///
    /// # Errors
    /// Those of the library; a fixed length with a rule to choose it by.
    pub(crate) fn load(&self, num_sequences: usize, progress: &dyn Progress) -> Result<Loaded> {
        self.load_by(self.plan.plan()?, num_sequences, progress)
    }

    /// As [`ModelArgs::load`], with lengths of drafts by `plan`.
    ///
    /// # Errors
    /// Those of the library.
    pub(crate) fn load_by(
        &self,
        plan: Plan,
        num_sequences: usize,
        progress: &dyn Progress,
    ) -> Result<Loaded> {
        let store = self.run.files.store()?;
        let target = self.target.as_deref().unwrap_or(DEFAULT_MODEL);
        let drafts = !matches!(plan, Plan::Fixed(0));
        let draft = match self.draft.as_deref() {
            Some(draft) => DraftSource::from(draft),
            None if drafts => DraftSource::Auto,
            None => DraftSource::None,
        };
        let mut builder = Engine::builder(target)
            .draft(draft)
            .plan(plan)
            .num_sequences(num_sequences)
            .adapt(self.adapt)
            .store(store.options().clone());
        if let Some(DraftHead(num_tokens)) = self.draft_head {
            builder = builder.draft_head(num_tokens);
        }
        // Read before anything is loaded, which takes longer.
        let corpus: Vec<String> =
            self.draft_corpus.iter().map(|file| prompt::read_file(file)).collect::<Result<_>>()?;
        let engine = self.run.on(builder).build_with(progress)?;
        for (text, file) in corpus.iter().zip(&self.draft_corpus) {
            engine.remember(text).with_context(|| format!("--draft-corpus {file}"))?;
        }
        // What was asked for has been checked, but with nothing to draft nobody does.
        let draft = if drafts { engine.draft_source() } else { &DraftSource::None }.to_string();
        Ok(Loaded { engine, store, draft })
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

//! From the model options of the command line to a loaded engine.

use anyhow::Result;
use specgen::{
    DEFAULT_MODEL, DraftSource, Engine,
    models::{Progress, Store},
};

use crate::args::ModelArgs;

/// An engine, and what it was made of.
pub(crate) struct Loaded {
    pub(crate) engine: Engine,
    pub(crate) store: Store,
    /// Who drafts, as the user would write it.
    pub(crate) draft: String,
}

impl ModelArgs {
    /// Loads target and draft, fetching what is missing.
    ///
    /// # Errors
    /// Those of the library.
    pub(crate) fn load(&self, progress: &dyn Progress) -> Result<Loaded> {
        let store = self.files.store()?;
        let target = self.target.as_deref().unwrap_or(DEFAULT_MODEL);
        let draft = self.draft_of(target, &store);
        let mut builder = Engine::builder(target)
            .draft(DraftSource::from(draft.as_str()))
            .num_draft_tokens(self.num_draft_tokens)
            .device(self.device)
            .threads(self.threads)
            .store(store.options().clone())
            .overrides(self.files.overrides());
        if let Some(context) = self.context {
            builder = builder.context_len(context);
        }
        let engine = builder.build_with(progress)?;
        Ok(Loaded { engine, store, draft })
    }

    /// The draft asked for, else the one recommended for the target. With nothing to draft none is loaded.
    fn draft_of(&self, target: &str, store: &Store) -> String {
        if self.num_draft_tokens == 0 {
            return "none".into();
        }
        let recommended = || {
            let is_target = |name: &String| name.eq_ignore_ascii_case(target);
            let entries = store.list().into_iter();
            let mut known =
                entries.filter(|entry| is_target(&entry.name) || entry.aliases.iter().any(is_target));
            known.next()?.recommended_draft
        };
        self.draft.clone().or_else(recommended).unwrap_or_else(|| "ngram".into())
    }
}

//! The three real models the suites run on, fetched on first use.

use specgen::{
    Engine, EngineBuilder, Error,
    models::{ModelFiles, NoProgress, Store, StoreOptions},
};

/// Names of the models, smallest first, with the files of reference values in `tests/golden/`.
pub const MODELS: [(&str, &str); 3] = [
    ("smollm2-135m-instruct", "smollm2-135m-instruct-q4_1"),
    ("gemma-3-270m", "gemma-3-270m-q4_k_m"),
    ("qwen2.5-coder-1.5b-instruct", "qwen2.5-coder-1.5b-instruct-q4_k_m"),
];

/// Says that a test was skipped, past the harness, which hides what passing tests print.
pub fn skipped(reason: &dyn std::fmt::Display) {
    use std::io::Write;
    // Where even that fails there is nobody to tell.
    let _ = writeln!(std::io::stderr(), "skipped: {reason}");
}

/// The model's files; `None`, with the reason printed, only where no source of it answers.
pub fn files(name: &str) -> Option<ModelFiles> {
    let store = Store::new(StoreOptions::from_env().expect("a usable environment"));
    match store.resolve(name, &NoProgress) {
        Ok(files) => Some(files),
        Err(error @ Error::Fetch { .. }) => {
            skipped(&error);
            None
        }
        Err(error) => panic!("{name}: {error}"),
    }
}

/// An engine description over the model, or `None` as [`files`].
pub fn engine(name: &str) -> Option<EngineBuilder> {
    let files = files(name)?;
    Some(Engine::builder(files.weights[0].display().to_string()))
}

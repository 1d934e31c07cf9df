//! The manifests in the repository's `models/` folder, built into the library.

use std::path::Path;
use std::sync::LazyLock;

use super::manifest::Manifest;

macro_rules! shipped {
    ($($file:literal),* $(,)?) => {
        /// File name and text of each, in the order lists show them.
        const TEXTS: &[(&str, &str)] = &[$(($file, include_str!(concat!("../../../../models/", $file)))),*];
    };
}

shipped!["smollm2-135m-instruct.toml", "gemma-3-270m.toml", "qwen2.5-coder-1.5b-instruct.toml",];

static MANIFESTS: LazyLock<Vec<Manifest>> = LazyLock::new(|| {
    let parse = |(file, text): &(&str, &str)| {
        Manifest::parse(text, Path::new(file)).expect("a test reads every manifest that is built in")
    };
    TEXTS.iter().map(parse).collect()
});

/// Every manifest that comes with the library.
pub(super) fn manifests() -> &'static [Manifest] {
    &MANIFESTS
}

//! The manifests in this crate's `models/` folder, built into the library.

use std::path::Path;
use std::sync::LazyLock;

use super::manifest::Manifest;

macro_rules! shipped {
    ($($file:literal),* $(,)?) => {
        /// File name and text of each, in the order lists show them.
        const TEXTS: &[(&str, &str)] = &[$(($file, include_str!(concat!("../../models/", $file)))),*];
    };
}

shipped![
    "smollm2-135m-instruct.toml",
    "smollm2-360m-instruct.toml",
    "smollm2-1.7b-instruct.toml",
    "gemma-3-270m.toml",
    "gemma-3-270m-it.toml",
    "gemma-3-1b-it.toml",
    "gemma-3-4b-it.toml",
    "gemma-3-12b-it.toml",
    "gemma-3-27b-it.toml",
    "qwen3-0.6b.toml",
    "qwen3-1.7b.toml",
    "qwen3-4b.toml",
    "qwen3-8b.toml",
    "qwen3-14b.toml",
    "qwen3-32b.toml",
    "qwen2.5-0.5b-instruct.toml",
    "qwen2.5-1.5b-instruct.toml",
    "qwen2.5-3b-instruct.toml",
    "qwen2.5-7b-instruct.toml",
    "qwen2.5-14b-instruct.toml",
    "qwen2.5-32b-instruct.toml",
    "qwen2.5-72b-instruct.toml",
    "qwen2.5-coder-0.5b-instruct.toml",
    "qwen2.5-coder-1.5b-instruct.toml",
    "qwen2.5-coder-7b-instruct.toml",
    "qwen2.5-coder-14b-instruct.toml",
    "qwen2.5-coder-32b-instruct.toml",
    "llama-3.2-1b-instruct.toml",
    "llama-3.2-3b-instruct.toml",
    "llama-3.1-8b-instruct.toml",
    "llama-3.1-70b-instruct.toml",
];

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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;

    #[test]
    fn every_manifest_is_good_and_none_is_forgotten() {
        let parsed: Vec<Manifest> =
            TEXTS.iter().map(|(file, text)| Manifest::parse(text, Path::new(file)).unwrap()).collect();
        for ((file, _), manifest) in TEXTS.iter().zip(&parsed) {
            assert_eq!(*file, format!("{}.toml", manifest.name));
        }
        let built_in: BTreeSet<String> = TEXTS.iter().map(|(file, _)| (*file).to_owned()).collect();
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("models");
        let on_disk =
            std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
        assert_eq!(built_in, on_disk.filter(|name| name.ends_with(".toml")).collect());
    }

    #[test]
    fn names_and_files_are_unique() {
        let mut owners = BTreeMap::new();
        for manifest in manifests() {
            let names = std::iter::once(&manifest.name).chain(&manifest.aliases);
            let files = manifest.files.iter().map(|file| &file.name);
            for word in names.chain(files) {
                let earlier = owners.insert(word, &manifest.name);
                assert_eq!(earlier, None, "{word} of {}", manifest.name);
            }
        }
    }

    /// Where a pair of other vocabularies was measured to pay, too.
    #[test]
    fn drafts_are_smaller_models_of_the_same_family() {
        for manifest in manifests() {
            let draft = manifest.recommended_draft.as_deref().unwrap();
            if draft == "suffix" {
                continue;
            }
            let draft = manifests().iter().find(|other| other.name == draft).expect(draft);
            assert!(draft.architecture == manifest.architecture || manifest.tested, "{}", manifest.name);
            assert!(draft.size().unwrap().0 * 2 < manifest.size().unwrap().0, "{}", manifest.name);
        }
    }

    #[test]
    fn what_was_tested_is_pinned() {
        for file in manifests().iter().filter(|manifest| manifest.tested).flat_map(|manifest| &manifest.files)
        {
            assert!(file.sha256.is_some() && file.size.is_some(), "{}", file.name);
        }
        assert_eq!(manifests()[0].name, "smollm2-135m-instruct");
    }
}

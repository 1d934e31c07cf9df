//! Models by name: manifests, sources, the local store.

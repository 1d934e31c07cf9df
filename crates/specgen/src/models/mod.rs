//! Models by name: manifests, sources, the local store.
//!
//! A [`Store`] turns a *reference* into files on this machine, fetching what is missing:
//!
//! 1. a path to a file or folder that exists (it wins over every name),
//! 2. the name or an alias of a manifest: `smollm2-135m-instruct` ([`Store::list`] has them all),
//! 3. a repository of the hub: `org/name`, `org/name@revision`, `org/name:file.gguf`, `org/name:Q8_0`.
//!
//! A file appears under its final name only whole and checked; a fetch that is cut off goes on where it
//! stopped. Fetching needs the feature `hub`; without it local paths and files already in the store open.
//!
//! ```no_run
//! use specgen::models::{NoProgress, Store, StoreOptions};
//!
//! let store = Store::new(StoreOptions::from_env()?);
//! let files = store.resolve("smollm2-135m-instruct", &NoProgress)?;
//! assert_eq!(files.weights.len(), 1);
//! # Ok::<(), specgen::Error>(())
//! ```

#[cfg(feature = "hub")]
mod fetch;
#[cfg(feature = "hub")]
mod http;
#[cfg(feature = "hub")]
mod hub;
// Without fetching, only the place of a file matters.
#[cfg_attr(not(feature = "hub"), allow(dead_code))]
mod item;
mod local;
#[cfg(feature = "hub")]
mod lock;
mod manifest;
mod options;
#[cfg(feature = "hub")]
mod part;
#[cfg(feature = "hub")]
mod pip;
mod progress;
mod reference;
#[cfg(feature = "hub")]
mod select;
mod shipped;
mod store;

pub use local::ModelFiles;
pub use manifest::{Manifest, ManifestFile, Source};
pub use options::{Proxies, StoreOptions};
pub use progress::{NoProgress, Progress};
pub use store::{ListEntry, Store};

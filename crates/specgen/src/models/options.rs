//! Where models are kept and how they are fetched; the one place that reads the environment.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::{Error, Result};

/// The hub asked when nothing else is said.
const DEFAULT_ENDPOINT: &str = "https://huggingface.co";

/// How a [`Store`](super::Store) keeps and fetches models.
#[derive(Clone)]
#[non_exhaustive]
pub struct StoreOptions {
    /// The folder that holds `models/` (by name), `hub/` (by repository) and `manifests/` (the user's own).
    pub root: PathBuf,
    /// Never use the network; a missing file is an error that says how to get it.
    pub offline: bool,
    /// The hub's address, without a trailing slash.
    pub hf_endpoint: String,
    /// Sent to the hub, and to no other host.
    pub hf_token: Option<String>,
    /// The proxies for downloads; pip reads its own settings.
    pub proxies: Proxies,
    /// Commands that run pip, tried in order, each a program and its first arguments.
    pub pip_commands: Vec<Vec<String>>,
    /// How long a connection may take to open.
    pub connect_timeout: Duration,
    /// How long a connection may stay silent.
    pub stall_timeout: Duration,
    /// How often a download that makes no progress is tried again.
    pub retries: u32,
    /// The pause before the first retry; it doubles with each.
    pub retry_pause: Duration,
}

/// Proxy addresses as the usual environment variables give them.
#[derive(Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Proxies {
    /// For `https` addresses (`HTTPS_PROXY`).
    pub https: Option<String>,
    /// For `http` addresses (`HTTP_PROXY`).
    pub http: Option<String>,
    /// For either, where the one above is not set (`ALL_PROXY`).
    pub all: Option<String>,
    /// Hosts reached directly, separated by commas (`NO_PROXY`).
    pub no_proxy: Option<String>,
}

// By hand, so that no token and no proxy password ends in a log.
impl std::fmt::Debug for StoreOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StoreOptions")
            .field("root", &self.root)
            .field("offline", &self.offline)
            .field("hf_endpoint", &self.hf_endpoint)
            .field("hf_token", &self.hf_token.as_ref().map(|_| "set"))
            .field("proxies", &self.proxies)
            .field("pip_commands", &self.pip_commands)
            .finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Proxies {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let set = |proxy: &Option<String>| proxy.as_ref().map(|_| "set");
        f.debug_struct("Proxies")
            .field("https", &set(&self.https))
            .field("http", &set(&self.http))
            .field("all", &set(&self.all))
            .field("no_proxy", &self.no_proxy)
            .finish()
    }
}

impl StoreOptions {
    /// The defaults, with everything kept under `root`; reads no environment.
    pub fn at(root: impl Into<PathBuf>) -> Self {
        let pip = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect::<Vec<_>>();
        let mut pip_commands = vec![pip(&["python3", "-m", "pip"]), pip(&["python", "-m", "pip"])];
        if cfg!(windows) {
            pip_commands.push(pip(&["py", "-m", "pip"]));
        }
        pip_commands.extend([pip(&["pip3"]), pip(&["pip"])]);
        Self {
            root: root.into(),
            offline: false,
            hf_endpoint: DEFAULT_ENDPOINT.to_owned(),
            hf_token: None,
            proxies: Proxies::default(),
            pip_commands,
            connect_timeout: Duration::from_secs(15),
            stall_timeout: Duration::from_secs(60),
            retries: 4,
            retry_pause: Duration::from_secs(1),
        }
    }

    /// The options the environment asks for.
    ///
    /// | variable | meaning |
    /// |---|---|
    /// | `SPECGEN_HOME` | the folder models are kept in; by default `specgen` in the user's cache folder |
    /// | `SPECGEN_OFFLINE`, `HF_HUB_OFFLINE` | `1`: never use the network |
    /// | `HF_ENDPOINT` | another hub, a mirror for instance |
    /// | `HF_TOKEN` | the hub's access token; else the file `HF_TOKEN_PATH`, `$HF_HOME/token` or `~/.cache/huggingface/token` |
    /// | `HTTPS_PROXY`, `HTTP_PROXY`, `ALL_PROXY`, `NO_PROXY` | proxies, in either case |
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if there is neither a home folder nor `SPECGEN_HOME`, or if the endpoint is no address.
    pub fn from_env() -> Result<Self> {
        Self::from_variables(&|name| std::env::var(name).ok(), std::env::home_dir().as_deref())
    }

    fn from_variables(get: &dyn Fn(&str) -> Option<String>, home: Option<&Path>) -> Result<Self> {
        let var =
            |name: &str| get(name).map(|value| value.trim().to_owned()).filter(|value| !value.is_empty());
        let proxy = |name: &str| var(name).or_else(|| var(&name.to_lowercase()));
        let root = match var("SPECGEN_HOME") {
            Some(root) => PathBuf::from(root),
            None => cache_folder(&var, home)
                .ok_or_else(|| {
                    Error::InvalidArgument(
                        "no home folder is known to keep models in; set SPECGEN_HOME to a folder".to_owned(),
                    )
                })?
                .join("specgen"),
        };
        let mut options = Self::at(root);
        options.offline = ["SPECGEN_OFFLINE", "HF_HUB_OFFLINE"].iter().any(|name| {
            var(name)
                .is_some_and(|value| !matches!(value.to_lowercase().as_str(), "0" | "false" | "no" | "off"))
        });
        if let Some(endpoint) = var("HF_ENDPOINT") {
            if !endpoint.starts_with("http://") && !endpoint.starts_with("https://") {
                return Err(Error::InvalidArgument(format!(
                    "HF_ENDPOINT is `{endpoint}`; an address like {DEFAULT_ENDPOINT} is wanted"
                )));
            }
            options.hf_endpoint = endpoint.trim_end_matches('/').to_owned();
        }
        options.hf_token = var("HF_TOKEN").or_else(|| {
            let path = match (var("HF_TOKEN_PATH"), var("HF_HOME")) {
                (Some(path), _) => PathBuf::from(path),
                (None, Some(hf_home)) => Path::new(&hf_home).join("token"),
                (None, None) => home?.join(".cache").join("huggingface").join("token"),
            };
            let token = std::fs::read_to_string(path).ok()?;
            Some(token.trim().to_owned()).filter(|token| !token.is_empty())
        });
        options.proxies = Proxies {
            https: proxy("HTTPS_PROXY"),
            http: proxy("HTTP_PROXY"),
            all: proxy("ALL_PROXY"),
            no_proxy: proxy("NO_PROXY"),
        };
        Ok(options)
    }
}

/// The folder this system keeps a user's caches in.
fn cache_folder(var: &dyn Fn(&str) -> Option<String>, home: Option<&Path>) -> Option<PathBuf> {
    if cfg!(windows) {
        return var("LOCALAPPDATA").map(PathBuf::from).or_else(|| Some(home?.join("AppData").join("Local")));
    }
    if cfg!(target_os = "macos") {
        return Some(home?.join("Library").join("Caches"));
    }
    // The XDG base directory specification has relative paths ignored.
    let xdg = var("XDG_CACHE_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    xdg.or_else(|| Some(home?.join(".cache")))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn options(vars: &[(&str, &str)], home: Option<&Path>) -> Result<StoreOptions> {
        let get = |name: &str| vars.iter().find(|(n, _)| *n == name).map(|(_, value)| (*value).to_owned());
        StoreOptions::from_variables(&get, home)
    }

    #[test]
    fn the_root_follows_the_environment() {
        let home = Path::new("/home/me");
        assert_eq!(
            options(&[("SPECGEN_HOME", "/big/disk")], Some(home)).unwrap().root,
            Path::new("/big/disk")
        );
        if cfg!(target_os = "linux") {
            let xdg = [("XDG_CACHE_HOME", "/xdg")];
            assert_eq!(options(&xdg, Some(home)).unwrap().root, Path::new("/xdg/specgen"));
            let relative = [("XDG_CACHE_HOME", "xdg")];
            assert_eq!(options(&relative, Some(home)).unwrap().root, Path::new("/home/me/.cache/specgen"));
            let error = options(&[], None).unwrap_err().to_string();
            assert!(error.contains("SPECGEN_HOME"), "{error}");
        }
    }

    #[test]
    fn offline_endpoint_and_proxies() {
        let home = Some(Path::new("/home/me"));
        for (value, offline) in [("1", true), ("TRUE", true), ("0", false), ("off", false), ("", false)] {
            assert_eq!(options(&[("HF_HUB_OFFLINE", value)], home).unwrap().offline, offline, "{value}");
            assert_eq!(options(&[("SPECGEN_OFFLINE", value)], home).unwrap().offline, offline, "{value}");
        }
        let made =
            options(&[("HF_ENDPOINT", "https://mirror.example/"), ("https_proxy", "http://p:1")], home)
                .unwrap();
        assert_eq!(made.hf_endpoint, "https://mirror.example");
        assert_eq!(made.proxies.https.as_deref(), Some("http://p:1"));
        assert!(options(&[("HF_ENDPOINT", "mirror.example")], home).is_err());
    }

    #[test]
    fn the_token_comes_from_the_variable_or_a_file_and_is_never_printed() {
        let home = tempfile::tempdir().unwrap();
        let folder = home.path().join(".cache/huggingface");
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("token"), "hf_from_file\n").unwrap();
        let made = options(&[], Some(home.path())).unwrap();
        assert_eq!(made.hf_token.as_deref(), Some("hf_from_file"));
        let made = options(&[("HF_TOKEN", "hf_secret")], Some(home.path())).unwrap();
        assert_eq!(made.hf_token.as_deref(), Some("hf_secret"));
        assert!(!format!("{made:?}").contains("hf_secret"));
    }
}

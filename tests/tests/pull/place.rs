//! A store in a temporary folder, and what a fetch reports.

use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

use specgen::models::{ModelFiles, NoProgress, Progress, Store, StoreOptions};
use specgen::{Error, Result};

use crate::server::{SHA256, SIZE, Server, content};

pub(crate) struct Place {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) options: StoreOptions,
}

impl Place {
    /// An empty store with short waits, and `sources` for its one model, `tiny`.
    pub(crate) fn new(sources: &str) -> Self {
        Self::with_file(&format!("size = {SIZE}\nsha256 = \"{SHA256}\"\nsources = [{sources}]"))
    }

    pub(crate) fn with_file(file: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut options = StoreOptions::at(dir.path().join("root"));
        options.connect_timeout = Duration::from_secs(60);
        // Long, for machines that are busy; the test of a silent server has its own.
        options.stall_timeout = Duration::from_secs(60);
        options.retries = 2;
        options.retry_pause = Duration::from_millis(10);
        options.pip_commands = vec![vec!["no-such-program-as-pip".to_owned()]];
        let place = Self { dir, options };
        let manifest = format!(
            "name = \"tiny\"\ndescription = \"d\"\nlicence = \"MIT\"\narchitecture = \"llama\"\n\
             parameters = \"1\"\nformat = \"GGUF\"\ntested = false\n[[files]]\nname = \"tiny.gguf\"\n{file}\n"
        );
        std::fs::create_dir_all(place.options.root.join("manifests")).unwrap();
        std::fs::write(place.options.root.join("manifests/tiny.toml"), manifest).unwrap();
        place
    }

    pub(crate) fn store(&self) -> Store {
        Store::new(self.options.clone())
    }

    pub(crate) fn resolve(&self) -> Result<ModelFiles> {
        self.store().resolve("tiny", &NoProgress)
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.options.root.join("models/tiny.gguf")
    }

    /// The file is there, whole, and nothing else but its checksum.
    pub(crate) fn assert_whole(&self) {
        assert!(std::fs::read(self.path()).unwrap() == content(), "the content differs");
        assert_eq!(names(&self.options.root.join("models")), ["tiny.gguf", "tiny.gguf.sha256"]);
        let stamp = std::fs::read_to_string(self.path().with_extension("gguf.sha256")).unwrap();
        assert_eq!(stamp, format!("{SHA256}  tiny.gguf\n"));
    }

    /// The error's attempts, each one line; the final file must not exist.
    pub(crate) fn attempts(&self) -> Vec<String> {
        let error = self.resolve().unwrap_err();
        assert!(!self.path().exists(), "a failed fetch left a file");
        let Error::Fetch { attempts, .. } = error else { panic!("{error}") };
        assert!(attempts.iter().all(|line| !line.contains('\n')), "{attempts:?}");
        attempts
    }

    pub(crate) fn one_attempt(&self) -> String {
        let [one] = self.attempts().try_into().unwrap();
        one
    }
}

pub(crate) fn names(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = entries.collect();
    names.sort();
    names
}

pub(crate) fn url_source(server: &Server) -> String {
    format!("{{ url = \"{}\" }}", server.url("/x.gguf"))
}

#[derive(Default)]
pub(crate) struct Heard {
    pub(crate) starts: Mutex<Vec<(Option<u64>, u64)>>,
    pub(crate) bytes: Mutex<u64>,
    pub(crate) messages: Mutex<Vec<String>>,
}

impl Heard {
    /// Whether a message had `word` in it.
    pub(crate) fn heard(&self, word: &str) -> bool {
        self.messages.lock().unwrap().iter().any(|message| message.contains(word))
    }
}

impl Progress for Heard {
    fn start(&self, _what: &str, total: Option<u64>, already: u64) {
        self.starts.lock().unwrap().push((total, already));
        *self.bytes.lock().unwrap() = already;
    }
    fn advance(&self, bytes: u64) {
        *self.bytes.lock().unwrap() += bytes;
    }
    fn message(&self, text: &str) {
        self.messages.lock().unwrap().push(text.to_owned());
    }
    fn finish(&self) {}
}

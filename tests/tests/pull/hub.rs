//! Repositories of a hub: listing, choice, pinning, tokens, checksums.

use specgen::models::NoProgress;

use crate::place::{Heard, Place};
use crate::server::{Reply, SHA256, SIZE, Server, content};

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// A hub with one repository, `org/name`, whose large files are on another host.
fn hub(files: &'static [&'static str]) -> (Server, Server) {
    let storage = Server::start(|request, _| Reply::file(request));
    let address = storage.address.clone();
    let server = Server::start(move |request, _| {
        if request.path.starts_with("/api/models/org/name/revision/") {
            let siblings: Vec<String> =
                files.iter().map(|file| format!("{{\"rfilename\": \"{file}\"}}")).collect();
            return Reply::new(
                200,
                format!("{{\"sha\": \"{COMMIT}\", \"siblings\": [{}]}}", siblings.join(", ")),
            );
        }
        match request.path.strip_prefix(&format!("/org/name/resolve/{COMMIT}/")) {
            Some(file) if file.ends_with(".json") => Reply::new(200, "{}"),
            Some(file) => Reply::new(302, "")
                .header("location", format!("http://{address}/{file}?signed"))
                .header("x-linked-etag", format!("\"{SHA256}\""))
                .header("x-linked-size", SIZE.to_string()),
            None => Reply::new(401, ""),
        }
    });
    (server, storage)
}

fn hub_place(server: &Server) -> Place {
    let mut place = Place::new("{ url = \"http://127.0.0.1:1/\" }");
    place.options.hf_endpoint = server.url("");
    place.options.hf_token = Some("hf_secret".to_owned());
    place
}

#[test]
fn a_repository_is_fetched_pinned_and_opened_offline() {
    let (server, storage) =
        hub(&["README.md", "config.json", "model.safetensors", "tokenizer.json", "../evil.gguf"]);
    let mut place = hub_place(&server);
    let heard = Heard::default();
    let files = place.store().resolve("org/name", &heard).unwrap();
    let file = format!("fetching model.safetensors from hub org/name@{COMMIT}:model.safetensors");
    assert!(heard.heard(&format!("{file} at {}", server.url(""))), "{:?}", heard.messages);
    let dir = place.options.root.join("hub/org--name").join(COMMIT);
    assert_eq!((files.name.as_str(), &files.dir), ("org/name", &dir));
    assert_eq!(files.weights, [dir.join("model.safetensors")]);
    assert_eq!(files.config, Some(dir.join("config.json")));
    assert_eq!(files.tokenizer, Some(dir.join("tokenizer.json")));
    assert!(std::fs::read(&files.weights[0]).unwrap() == content());
    // The token goes to the hub and never to where it sends us.
    assert!(server.requests().iter().all(|request| request.headers["authorization"] == "Bearer hf_secret"));
    assert!(storage.requests().iter().all(|request| !request.headers.contains_key("authorization")));
    assert_eq!(storage.requests().len(), 1);

    let asked = server.requests().len();
    assert_eq!(place.store().resolve("org/name", &NoProgress).unwrap(), files);
    assert_eq!(place.store().resolve(&format!("org/name@{COMMIT}"), &NoProgress).unwrap(), files);
    place.options.offline = true;
    assert_eq!(place.store().resolve("org/name", &NoProgress).unwrap(), files);
    assert_eq!(server.requests().len(), asked, "a repository that is here opens without the network");
    place.options.offline = false;
    place.store().pull("org/name", &NoProgress).unwrap();
    assert_eq!(server.requests().len(), asked + 1, "pull asks what the branch is now");
    assert!(place.store().remove("org/name").unwrap() > SIZE as u64);
    assert!(!place.options.root.join("hub/org--name").exists());
}

#[test]
fn a_file_of_a_repository_is_chosen() {
    let (server, _storage) = hub(&["x-Q2_K.gguf", "x-Q3_K.gguf", "deep/x-BF16.gguf"]);
    let place = hub_place(&server);
    let dir = place.options.root.join("hub/org--name").join(COMMIT);
    let error = place.store().resolve("org/name", &NoProgress).unwrap_err().to_string();
    assert!(error.contains(":x-Q2_K.gguf, :x-Q3_K.gguf"), "{error}");
    let files = place.store().resolve("org/name:q3_k", &NoProgress).unwrap();
    assert_eq!(files.weights, [dir.join("x-Q3_K.gguf")]);
    let files = place.store().resolve("org/name@v1:deep/x-BF16.gguf", &NoProgress).unwrap();
    assert_eq!(files.weights, [dir.join("deep/x-BF16.gguf")]);
}

#[test]
fn the_hubs_own_checksum_counts() {
    let bad = Server::start(|request, _| match request.path.as_str() {
        "/o/r/resolve/main/t.gguf" => {
            Reply::new(302, "").header("location", "/blob").header("x-linked-etag", format!("\"{SHA256}\""))
        }
        _ => Reply::new(200, vec![7; SIZE]),
    });
    let source = "{ hub = { repo = \"o/r\", file = \"t.gguf\" } }";
    // No checksum of our own: what arrives must be what the hub announced.
    let mut place = Place::with_file(&format!("sources = [{source}]"));
    place.options.hf_endpoint = bad.url("");
    assert!(place.one_attempt().contains(&format!("{SHA256} is wanted")));
    // Another one of our own: refused before a byte is fetched.
    let other = SHA256.replace('a', "b");
    let mut place = Place::with_file(&format!("sha256 = \"{other}\"\nsources = [{source}]"));
    place.options.hf_endpoint = bad.url("");
    assert!(place.one_attempt().contains(&format!("it offers sha256 {SHA256}")));
}

#[test]
fn a_repository_that_is_not_there() {
    let (server, _storage) = hub(&[]);
    let mut place = hub_place(&server);
    let error = place.store().resolve("org/other", &NoProgress).unwrap_err().to_string();
    assert!(error.contains("HF_TOKEN") && error.contains("no such file or folder"), "{error}");
    let error = place.store().resolve("org/name", &NoProgress).unwrap_err().to_string();
    assert!(error.contains("neither safetensors nor GGUF"), "{error}");
    let html = Server::start(|_, _| Reply::new(200, "<html>portal</html>"));
    place.options.hf_endpoint = html.url("");
    let error = place.store().resolve("org/third", &NoProgress).unwrap_err().to_string();
    assert!(error.contains("not the listing of a repository"), "{error}");
    assert!(!place.options.root.join("hub").exists(), "a failed question leaves nothing");
}

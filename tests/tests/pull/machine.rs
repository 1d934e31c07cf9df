//! This machine's own part: no network, two at once, a folder in the way, names and lists.

use std::sync::Arc;
use std::time::{Duration, Instant};

use specgen::Error;
use specgen::models::NoProgress;

use crate::place::{Heard, Place, names, url_source};
use crate::server::{Reply, SHA256, SIZE, Server, content};

#[test]
fn offline_asks_nobody_and_says_how_to_go_on() {
    let server = Server::start(|request, _| Reply::file(request));
    let mut place = Place::new(&url_source(&server));
    place.options.offline = true;
    let why = place.one_attempt();
    assert!(
        why.contains("is not there; pull tiny with the network on")
            && why.contains(place.path().to_str().unwrap()),
        "{why}"
    );
    let error = place.store().resolve("org/name", &NoProgress).unwrap_err().to_string();
    assert!(error.contains("offline") && error.contains("pull org/name with the network on"), "{error}");
    assert!(server.requests().is_empty());
    place.options.offline = false;
    place.resolve().unwrap();
    place.options.offline = true;
    place.resolve().unwrap();
    place.store().pull("tiny", &NoProgress).unwrap();
    assert_eq!(server.requests().len(), 1);
}

#[test]
fn damage_is_told_offline_too() {
    let server = Server::start(|request, _| Reply::file(request));
    let mut place = Place::new(&url_source(&server));
    place.resolve().unwrap();
    place.options.offline = true;
    let mut damaged = content();
    damaged[1000] ^= 1;
    std::fs::write(place.path(), damaged).unwrap();
    let error = place.store().pull("tiny", &NoProgress).unwrap_err().to_string();
    assert!(error.contains("tiny.gguf is damaged: its sha256 is ") && !error.contains('\n'), "{error}");
    assert!(error.contains(&format!("{SHA256} is wanted; pull tiny with the network on")), "{error}");
    std::fs::write(place.path(), "short").unwrap();
    for error in [place.resolve().unwrap_err(), place.store().pull("tiny", &NoProgress).unwrap_err()] {
        let error = error.to_string();
        assert!(error.contains("is damaged: it has 5 bytes, 300000 are wanted"), "{error}");
    }
    assert_eq!(server.requests().len(), 1);
}

#[test]
fn two_at_once_fetch_once() {
    let heard = Arc::new(Heard::default());
    let listener = heard.clone();
    // The first holds the lock until the second has said that it waits, or for long enough to fail the test.
    let server = Server::start(move |request, _| {
        let started = Instant::now();
        while !listener.heard("waiting") && started.elapsed() < Duration::from_secs(20) {
            std::thread::sleep(Duration::from_millis(10));
        }
        Reply::file(request)
    });
    let place = Place::new(&url_source(&server));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            // Stores of their own, as two processes have.
            scope.spawn(|| place.store().resolve("tiny", &*heard).unwrap());
        }
    });
    place.assert_whole();
    assert_eq!(server.requests().len(), 1);
    let messages = heard.messages.lock().unwrap();
    let fetching = format!("fetching tiny.gguf from {}", server.url("/x.gguf"));
    assert!(messages.len() == 2 && messages.contains(&fetching), "{messages:?}");
}

#[test]
fn a_cache_that_cannot_be_written_is_named() {
    let server = Server::start(|request, _| Reply::file(request));
    let place = Place::new(&url_source(&server));
    // A file where the folder should be: refused to every user, root included.
    std::fs::write(place.options.root.join("models"), "in the way").unwrap();
    let error = place.resolve().unwrap_err();
    let Error::Io { path, .. } = &error else { panic!("{error}") };
    assert!(path.starts_with(place.options.root.join("models")), "{error}");
    assert!(server.requests().is_empty());
}

#[test]
fn unknown_names_and_broken_manifests_say_so() {
    let place = Place::new("{ url = \"http://127.0.0.1:1/\" }");
    let error = place.store().resolve("tinny", &NoProgress).unwrap_err().to_string();
    assert!(error.contains("did you mean tiny?"), "{error}");
    std::fs::write(place.options.root.join("manifests/bad.toml"), "name = \"bad\"\nlicense = \"MIT\"\n")
        .unwrap();
    let error = place.store().resolve("bad", &NoProgress).unwrap_err().to_string();
    assert!(error.contains("bad.toml") && error.contains("license"), "{error}");
    let list = place.store().list();
    let bad = list.iter().find(|entry| entry.name == "bad").unwrap();
    assert!(bad.problem.as_ref().is_some_and(|problem| problem.contains("license")));
    let tiny = list.iter().find(|entry| entry.name == "tiny").unwrap();
    assert_eq!(
        (tiny.size, tiny.size_is_exact, tiny.present, tiny.tested),
        (Some(SIZE as u64), true, false, false)
    );
}

#[test]
fn removing_frees_what_was_fetched() {
    let server = Server::start(|request, _| Reply::file(request));
    let place = Place::new(&url_source(&server));
    place.resolve().unwrap();
    assert!(place.store().list().iter().any(|entry| entry.name == "tiny" && entry.present));
    let freed = place.store().remove("tiny").unwrap();
    assert!(freed >= SIZE as u64);
    assert!(names(&place.options.root.join("models")).is_empty());
    assert_eq!(place.store().remove("tiny").unwrap(), 0);
    let error = place.store().remove(place.dir.path().to_str().unwrap()).unwrap_err();
    assert!(matches!(error, Error::InvalidArgument(_)), "{error}");
}

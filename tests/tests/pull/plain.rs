//! Plain addresses: whole, cut off, wrong, silent.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use specgen::models::NoProgress;

use crate::place::{Heard, Place, names, url_source};
use crate::server::{Reply, SHA256, SIZE, STALL, Server, content};

#[test]
fn a_file_is_fetched_once_and_reported() {
    let server = Server::start(|request, _| Reply::file(request));
    let place = Place::new(&url_source(&server));
    let heard = Heard::default();
    let files = place.store().resolve("TINY", &heard).unwrap();
    assert_eq!((files.name.as_str(), &files.weights), ("tiny", &vec![place.path()]));
    place.assert_whole();
    assert_eq!(*heard.starts.lock().unwrap(), [(Some(SIZE as u64), 0)]);
    assert_eq!(*heard.bytes.lock().unwrap(), SIZE as u64);
    place.resolve().unwrap();
    place.store().pull("tiny", &NoProgress).unwrap();
    assert_eq!(server.requests().len(), 1, "what is there is not fetched again");
}

#[test]
fn what_is_damaged_is_fetched_again() {
    let server = Server::start(|request, _| Reply::file(request));
    let place = Place::new(&url_source(&server));
    place.resolve().unwrap();
    std::fs::write(place.path(), "short").unwrap();
    place.resolve().unwrap();
    place.assert_whole();
    let mut damaged = content();
    damaged[1000] ^= 1;
    std::fs::write(place.path(), damaged).unwrap();
    place.resolve().unwrap();
    assert_eq!(server.requests().len(), 2, "the right size is trusted");
    let heard = Heard::default();
    place.store().pull("tiny", &heard).unwrap();
    place.assert_whole();
    assert!(heard.messages.lock().unwrap()[0].contains("is damaged: its sha256 is "));
}

#[test]
fn a_download_that_breaks_off_goes_on_within_a_call() {
    let server = Server::start(|request, before| {
        let reply = Reply::file(request);
        if before < 4 { Reply { cut: Some(50_000), ..reply } } else { reply }
    });
    let place = Place::new(&url_source(&server));
    place.resolve().unwrap();
    place.assert_whole();
    let ranges: Vec<Option<String>> =
        server.requests().iter().map(|request| request.headers.get("range").cloned()).collect();
    // Four failures, more than the two retries: each brought something new.
    let wanted =
        [None, Some("bytes=50000-"), Some("bytes=100000-"), Some("bytes=150000-"), Some("bytes=200000-")];
    assert_eq!(ranges, wanted.map(|range| range.map(str::to_owned)));
    assert!(server.requests()[1..].iter().all(|request| request.headers["if-range"] == "\"v1\""));
}

#[test]
fn a_download_that_breaks_off_goes_on_in_the_next_call() {
    let server = Server::start(|request, before| {
        let reply = Reply::file(request);
        if before == 0 { Reply { cut: Some(100_000), ..reply } } else { reply }
    });
    let mut place = Place::new(&url_source(&server));
    place.options.retries = 0;
    let why = place.one_attempt();
    assert!(why.contains("broke off after 100000 of 300000 bytes"), "{why}");
    let heard = Heard::default();
    place.store().resolve("tiny", &heard).unwrap();
    place.assert_whole();
    assert_eq!(heard.starts.lock().unwrap()[0], (Some(SIZE as u64), 100_000));
    assert_eq!(*heard.bytes.lock().unwrap(), SIZE as u64);
    assert_eq!(server.requests()[1].headers["range"], "bytes=100000-");
}

#[test]
fn a_server_without_ranges_or_with_new_content_starts_over() {
    for etag in ["\"v1\"", "\"v0\""] {
        let server = Server::start(move |request, before| {
            let mut request = request.clone();
            if before == 0 {
                let junk = Reply { body: vec![7; SIZE], ..Reply::new(200, "") };
                return Reply { length: Some(SIZE), cut: Some(1000), ..junk }.header("etag", etag);
            }
            if etag == "\"v1\"" {
                request.headers.remove("range");
            }
            Reply::file(&request)
        });
        let place = Place::new(&url_source(&server));
        let heard = Heard::default();
        place.store().resolve("tiny", &heard).unwrap();
        place.assert_whole();
        assert_eq!(server.requests().len(), 2);
        assert_eq!(*heard.bytes.lock().unwrap(), SIZE as u64);
    }
}

#[test]
fn a_part_that_is_longer_than_the_file_starts_over() {
    let server = Server::start(|request, before| {
        let junk = Reply { body: vec![7; 10], ..Reply::new(200, "") };
        let longer = Reply { length: Some(SIZE), cut: Some(10), ..junk }.header("etag", "\"v1\"");
        match before {
            0 => longer,
            1 => Reply::new(416, "").header("content-range", "bytes */5"),
            _ => Reply::file(request),
        }
    });
    let place = Place::new(&url_source(&server));
    place.resolve().unwrap();
    place.assert_whole();
    assert!(!server.requests()[2].headers.contains_key("range"));
}

#[test]
fn wrong_bytes_leave_nothing() {
    let server = Server::start(|_, _| Reply::new(200, vec![7; SIZE]));
    let place = Place::new(&url_source(&server));
    let why = place.one_attempt();
    assert!(why.contains("sha256") && why.contains(SHA256), "{why}");
    assert_eq!(names(&place.options.root.join("models")), Vec::<String>::new());
}

#[test]
fn a_wrong_size_is_refused_before_the_download() {
    let server = Server::start(|_, _| Reply::new(200, vec![7; 10]));
    let place = Place::new(&url_source(&server));
    assert!(place.one_attempt().contains("it offers 10 bytes, 300000 are wanted"));
    // Without a length, the bytes are counted as they come, and none beyond the file is kept.
    let server = Server::start(|_, _| Reply { length: None, ..Reply::new(200, vec![7; 3 * SIZE]) });
    let place = Place::new(&url_source(&server));
    assert!(place.one_attempt().contains("more than the 300000 bytes"));
    let part = place.path().with_extension("gguf.part");
    assert!(std::fs::metadata(part).unwrap().len() <= SIZE as u64);
    let server = Server::start(|_, _| Reply { length: None, ..Reply::new(200, vec![7; 10]) });
    let place = Place::new(&url_source(&server));
    assert!(place.one_attempt().contains("broke off after 10 of 300000 bytes"));
}

#[test]
fn a_body_without_an_end_is_cut_where_the_size_is_only_guessed() {
    let server = Server::start(|_, _| Reply { length: None, ..Reply::new(200, vec![7; SIZE]) });
    let source = url_source(&server);
    let place =
        Place::with_file(&format!("approximate_size = 1000\nsha256 = \"{SHA256}\"\nsources = [{source}]"));
    assert!(place.one_attempt().contains("more than the 2000 bytes"));
    let part = place.path().with_extension("gguf.part");
    assert!(std::fs::metadata(part).map_or(0, |part| part.len()) <= 2000);
}

#[test]
fn a_short_body_is_no_file() {
    let server = Server::start(|_, _| Reply { length: Some(SIZE), ..Reply::new(200, vec![7; 10]) });
    let place = Place::new(&url_source(&server));
    assert!(place.one_attempt().contains("broke off after 10 of 300000 bytes"));
    assert_eq!(server.requests().len(), 3, "no new bytes, so only the retries");
    // A server that announces no length ends a body by closing: whole or not, the client has to know.
    let server = Server::start(|request, before| {
        let reply = Reply { length: None, ..Reply::file(request) };
        if before == 0 { Reply { cut: Some(1000), ..reply } } else { reply }
    });
    let place = Place::new(&url_source(&server));
    place.resolve().unwrap();
    place.assert_whole();
    assert_eq!(server.requests()[1].headers["range"], "bytes=1000-");
}

#[test]
fn a_stalled_server_is_left() {
    let server = Server::start(|_, _| Reply { stall: Some(10), ..Reply::new(200, content()) });
    let silent = Server::start(|_, _| {
        std::thread::sleep(STALL);
        Reply::new(200, "")
    });
    let mut place = Place::new(&format!("{}, {}", url_source(&server), url_source(&silent)));
    place.options.retries = 1;
    place.options.stall_timeout = Duration::from_millis(300);
    let started = Instant::now();
    let attempts = place.attempts();
    // Either server would stay silent for longer.
    assert!(started.elapsed() < STALL, "{:?}", started.elapsed());
    assert!(attempts[0].contains("sent nothing for too long"), "{attempts:?}");
    assert!(attempts[1].contains("no answer in time"), "{attempts:?}");
}

#[test]
fn each_source_is_tried_and_each_reason_told() {
    let server = Server::start(|request, _| match request.path.as_str() {
        "/401" => Reply::new(401, "<html>"),
        "/403" => Reply::new(403, ""),
        "/404" => Reply::new(404, ""),
        "/418" => Reply::new(418, ""),
        "/500" => Reply::new(500, ""),
        "/loop" => Reply::new(302, "").header("location", "/loop"),
        "/nowhere" => Reply::new(302, "").header("location", "ftp://x/y"),
        _ => Reply::file(request),
    });
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let paths = ["/401", "/403", "/404", "/418", "/500", "/loop", "/nowhere"];
    let mut sources: Vec<String> =
        paths.iter().map(|path| format!("{{ url = \"{}\" }}", server.url(path))).collect();
    sources.push(format!("{{ url = \"http://{closed}/x\" }}"));
    let place = Place::new(&sources.join(", "));
    let attempts = place.attempts();
    let reasons = [
        "HF_TOKEN",
        "HF_TOKEN",
        "no such file",
        "answered 418",
        "500",
        "redirects more than",
        "no address",
        "refused",
    ];
    assert_eq!(attempts.len(), reasons.len());
    for (attempt, reason) in attempts.iter().zip(reasons) {
        assert!(attempt.contains(reason), "{reason}: {attempt}");
    }
    let asked = |path: &str| server.requests().iter().filter(|request| request.path == path).count();
    assert_eq!((asked("/500"), asked("/404")), (3, 1), "only what may pass is tried again");
    assert!(names(&place.options.root.join("models")).is_empty(), "an empty part is left");

    sources.push(url_source(&server));
    let place = Place::new(&sources.join(", "));
    place.resolve().unwrap();
    place.assert_whole();
}

#[test]
fn a_failing_source_does_not_spoil_the_part_of_another() {
    let server = Server::start(|request, before| match (request.path.as_str(), before) {
        ("/404", _) => Reply::new(404, ""),
        (_, 0) => Reply { cut: Some(100_000), ..Reply::file(request) },
        _ => Reply::file(request),
    });
    let mut place = Place::new(&format!("{}, {{ url = \"{}\" }}", url_source(&server), server.url("/404")));
    place.options.retries = 0;
    assert_eq!(place.attempts().len(), 2);
    place.resolve().unwrap();
    place.assert_whole();
    assert_eq!(server.requests()[2].headers["range"], "bytes=100000-");
}

#[test]
fn a_passing_trouble_is_waited_out() {
    let server = Server::start(|request, before| match before {
        0 => Reply::new(503, "").header("retry-after", "0"),
        1 => Reply::new(429, ""),
        _ => Reply::file(request),
    });
    let place = Place::new(&url_source(&server));
    place.resolve().unwrap();
    place.assert_whole();
}

#[test]
fn a_host_nobody_knows_is_not_waited_for() {
    // The name is reserved: it resolves nowhere (RFC 6761, 6.4).
    let mut place = Place::new("{ url = \"http://no-such-host.invalid/x.gguf\" }");
    place.options.retry_pause = Duration::from_secs(3600);
    let why = place.one_attempt();
    assert!(why.contains("no-such-host.invalid") && why.contains("network"), "{why}");
}

//! A web server on this machine that does as a test tells it: cuts, stalls, redirects, lies.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

pub(crate) const SIZE: usize = 300_000;
pub(crate) const SHA256: &str = "10e5ea249ba15cf9da0925b29f6caca069e088f63eec3521e5560c1a0394058a";

/// How long a silent server keeps a connection open.
pub(crate) const STALL: Duration = Duration::from_secs(40);

/// The file every test fetches.
pub(crate) fn content() -> Vec<u8> {
    (0..SIZE as u64).map(|i| (((i * 2_654_435_761) & 0xffff_ffff) >> 13) as u8).collect()
}

/// A request's path and its headers, names in lower case.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub(crate) path: String,
    pub(crate) headers: BTreeMap<String, String>,
}

/// An answer, and where it goes wrong.
#[derive(Clone)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(&'static str, String)>,
    pub(crate) body: Vec<u8>,
    /// Sent as the length in place of the body's own; `None` leaves the header out.
    pub(crate) length: Option<usize>,
    /// The connection closes after so many bytes of the body.
    pub(crate) cut: Option<usize>,
    /// The server falls silent after so many bytes of the body.
    pub(crate) stall: Option<usize>,
}

impl Reply {
    pub(crate) fn new(status: u16, body: impl Into<Vec<u8>>) -> Self {
        let body = body.into();
        Self { status, headers: Vec::new(), length: Some(body.len()), body, cut: None, stall: None }
    }

    pub(crate) fn header(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }

    /// The content as a server with an etag gives it, ranges honoured.
    pub(crate) fn file(request: &Request) -> Self {
        let content = content();
        let fresh = request.headers.get("if-range").is_none_or(|etag| etag == "\"v1\"");
        let start = request
            .headers
            .get("range")
            .and_then(|range| range.strip_prefix("bytes=")?.strip_suffix('-')?.parse::<usize>().ok());
        let reply = match start {
            Some(start) if fresh && start >= SIZE => {
                Self::new(416, "").header("content-range", format!("bytes */{SIZE}"))
            }
            Some(start) if fresh => Self::new(206, &content[start..])
                .header("content-range", format!("bytes {start}-{}/{SIZE}", SIZE - 1)),
            _ => Self::new(200, content),
        };
        reply.header("etag", "\"v1\"")
    }
}

pub(crate) struct Server {
    pub(crate) address: String,
    pub(crate) requests: Arc<Mutex<Vec<Request>>>,
}

impl Server {
    /// Answers with `handler`, which also hears how many requests came before.
    pub(crate) fn start(handler: impl Fn(&Request, usize) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let requests = Arc::new(Mutex::new(Vec::new()));
        let (log, handler) = (requests.clone(), Arc::new(handler));
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (log, handler) = (log.clone(), handler.clone());
                // A client that goes away in the middle is part of the tests.
                std::thread::spawn(move || drop(answer(stream.unwrap(), &log, &*handler)));
            }
        });
        Self { address, requests }
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub(crate) fn requests(&self) -> Vec<Request> {
        self.requests.lock().unwrap().clone()
    }
}

pub(crate) fn answer(
    stream: TcpStream,
    log: &Mutex<Vec<Request>>,
    handler: &(dyn Fn(&Request, usize) -> Reply + Send + Sync),
) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream.try_clone()?).lines();
    let first = lines.next().unwrap_or_else(|| Ok(String::new()))?;
    let Some(path) = first.split(' ').nth(1) else { return Ok(()) };
    let mut request = Request { path: path.to_owned(), headers: BTreeMap::new() };
    for line in lines {
        let line = line?;
        let Some((name, value)) = line.split_once(": ") else { break };
        request.headers.insert(name.to_lowercase(), value.to_owned());
    }
    let before = {
        let mut log = log.lock().unwrap();
        log.push(request.clone());
        log.len() - 1
    };
    let reply = handler(&request, before);
    let mut stream = stream;
    write!(stream, "HTTP/1.1 {} Some Reason\r\nconnection: close\r\n", reply.status)?;
    if let Some(length) = reply.length {
        write!(stream, "content-length: {length}\r\n")?;
    }
    for (name, value) in &reply.headers {
        write!(stream, "{name}: {value}\r\n")?;
    }
    write!(stream, "\r\n")?;
    let end = reply.cut.or(reply.stall).unwrap_or(reply.body.len());
    stream.write_all(&reply.body[..end])?;
    stream.flush()?;
    if reply.stall.is_some() {
        std::thread::sleep(STALL);
    }
    Ok(())
}

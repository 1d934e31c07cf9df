//! Downloads over HTTP that go on where they stopped.
//!
//! One downloader of our own serves the hub and plain addresses alike. The crate hf-hub would serve the
//! first only, keeps its own cache layout and has no way to check a hash, go on within a file across
//! processes or report a stalled server; what is left of the hub's protocol is one listing and one header.

use std::io::Read;
use std::time::Duration;

use ureq::Agent;
use ureq::http::{Response, Uri};
use ureq::tls::{RootCerts, TlsConfig};
use ureq::{Body, Proxy};

use super::fetch::{Failure, Transfer};
use super::item::Item;
use super::manifest::is_sha256;
use super::options::StoreOptions;
use super::part::{BLOCK, Part};

/// Redirects followed before giving up.
const MAX_REDIRECTS: usize = 10;
/// The longest pause a server may ask for before a retry.
const MAX_PAUSE: Duration = Duration::from_secs(30);

/// A connection pool and the rules for using it.
pub(super) struct Client {
    http: Agent,
    https: Agent,
    retries: u32,
    pause: Duration,
}

/// Why one request failed.
enum Trouble {
    /// Trying again may help.
    Passing { why: String, pause: Option<Duration> },
    /// The host cannot be reached at all: worth waiting for in the middle of a file, where the network has
    /// worked a moment ago, but not before its first byte, where it is likely to be off.
    Unreachable(String),
    /// Trying again will not.
    Lasting(Failure),
}

impl From<crate::Error> for Trouble {
    fn from(error: crate::Error) -> Self {
        Self::Lasting(error.into())
    }
}

/// A final response and what the redirects on the way said about the file.
struct Answer {
    response: Response<Body>,
    /// `x-linked-etag` of the hub: the SHA-256 of a large file.
    sha256: Option<String>,
    /// `x-linked-size` of the hub, in bytes.
    size: Option<u64>,
}

impl Client {
    pub(super) fn new(options: &StoreOptions) -> Result<Self, Failure> {
        let proxies = &options.proxies;
        let agent = |proxy: &Option<String>| -> Result<Agent, Failure> {
            let proxy = proxy.as_ref().or(proxies.all.as_ref());
            let proxy = proxy.map(|proxy| parse_proxy(proxy, proxies.no_proxy.as_deref())).transpose()?;
            let config = Agent::config_builder()
                .http_status_as_error(false)
                // Followed here, so that the token stays with its host and the hub's headers are seen.
                .max_redirects(0)
                .max_redirects_will_error(false)
                .user_agent(concat!("specgen/", env!("CARGO_PKG_VERSION")))
                .accept_encoding("identity")
                .proxy(proxy)
                .tls_config(TlsConfig::builder().root_certs(RootCerts::PlatformVerifier).build())
                .timeout_resolve(Some(options.connect_timeout))
                .timeout_connect(Some(options.connect_timeout))
                .timeout_recv_response(Some(options.stall_timeout))
                .timeout_per_read(Some(options.stall_timeout))
                .timeout_per_write(Some(options.stall_timeout))
                .build();
            Ok(config.new_agent())
        };
        Ok(Self {
            http: agent(&proxies.http)?,
            https: agent(&proxies.https)?,
            retries: options.retries,
            pause: options.retry_pause,
        })
    }

    /// The body of a small text answer, at most `limit` bytes.
    pub(super) fn get_text(&self, url: &str, token: Option<&str>, limit: u64) -> Result<String, Failure> {
        self.with_retries(&mut || 0, &|_| (), || {
            let answer = self.get(url, token, &[])?;
            match answer.response.status().as_u16() {
                200 => {}
                _ => return Err(refused(&answer.response, token.is_some())),
            }
            let mut text = String::new();
            let mut body = answer.response.into_body().into_reader().take(limit + 1);
            body.read_to_string(&mut text)
                .map_err(|e| Trouble::passing(format!("the answer broke off: {e}")))?;
            if text.len() as u64 > limit {
                return Err(Trouble::lasting(format!("the answer is longer than {limit} bytes")));
            }
            Ok(text)
        })
    }

    /// Brings `part` to the whole of `url`; returns the SHA-256 the server announced, if it did.
    ///
    /// A `token` goes to the host of `url` only. A download that is cut off goes on within this call as long
    /// as each try brings new bytes, and across calls by what `part` holds of the same source.
    pub(super) fn download(
        &self,
        transfer: &Transfer<'_>,
        url: &str,
        token: Option<&str>,
        part: &mut Part,
    ) -> Result<Option<String>, Failure> {
        let part = std::cell::RefCell::new(part);
        self.with_retries(&mut || part.borrow().len(), &|text| transfer.progress.message(text), || {
            self.download_once(transfer, url, token, &mut part.borrow_mut())
        })
    }

    fn download_once(
        &self,
        transfer: &Transfer<'_>,
        url: &str,
        token: Option<&str>,
        part: &mut Part,
    ) -> Result<Option<String>, Trouble> {
        let &Transfer { item, label, progress, .. } = transfer;
        let offset = part.len();
        // Whole already, by the known size; the caller checks the content.
        if offset > 0 && item.size == Some(offset) {
            return Ok(None);
        }
        let mut headers = Vec::new();
        // Without a validator only a known checksum can tell that the rest belongs to the same content.
        let validator = part.state().etag.clone();
        let resume = offset > 0 && (validator.is_some() || item.sha256.is_some());
        if resume {
            headers.push(("range", format!("bytes={offset}-")));
            headers.extend(validator.map(|etag| ("if-range", etag)));
        }
        let answer = self.get(url, token, &headers)?;
        let announced = answer.sha256.clone();
        if let (Some(wanted), Some(offered)) = (&item.sha256, &announced)
            && wanted != offered
        {
            return Err(Trouble::lasting(format!("it offers sha256 {offered}, {wanted} is wanted")));
        }
        let response = answer.response;
        let length = number(&response, "content-length");
        let total = match response.status().as_u16() {
            200 => {
                let total = length.or(answer.size).or(item.size);
                check_size(total, item)?;
                part.begin(label, strong_etag(&response))?;
                if offset > 0 {
                    progress.start(&item.file_name(), total, 0);
                }
                total
            }
            206 if resume => {
                let range = header(&response, "content-range").unwrap_or_default();
                let Some((start, total)) = parse_content_range(range) else {
                    return Err(Trouble::lasting(format!("its content-range is `{range}`")));
                };
                if start != offset {
                    return Err(Trouble::lasting(format!(
                        "it sent bytes from {start} where {offset} was asked for"
                    )));
                }
                let total = total.or(answer.size).or(length.map(|length| offset + length)).or(item.size);
                check_size(total, item)?;
                total
            }
            // Nothing after what is here: whole, or longer than the file is now.
            416 if resume => {
                let total =
                    header(&response, "content-range").and_then(|range| range.strip_prefix("bytes */"));
                if total.and_then(|total| total.parse().ok()) == Some(offset) {
                    return Ok(announced);
                }
                part.begin(label, None)?;
                progress.start(&item.file_name(), item.size.or(item.approximate_size), 0);
                return Err(Trouble::passing("it has changed since; starting over".to_owned()));
            }
            _ => return Err(refused(&response, token.is_some())),
        };
        let most = total.unwrap_or_else(|| item.max_len());
        let mut body = response.into_body().into_reader();
        let mut block = vec![0; BLOCK];
        loop {
            let read = body.read(&mut block).map_err(|e| {
                let of = total.map_or(String::new(), |total| format!(" of {total}"));
                Trouble::passing(format!("it broke off after {}{of} bytes: {}", part.len(), reason(&e)))
            })?;
            if read == 0 {
                break;
            }
            // Checked before writing: a server that never ends must not fill the disk.
            if part.len() + read as u64 > most {
                return Err(Trouble::lasting(format!("it sends more than the {most} bytes of the file")));
            }
            part.write(&block[..read])?;
            progress.advance(read as u64);
        }
        match total {
            Some(total) if part.len() < total => {
                Err(Trouble::passing(format!("it broke off after {} of {total} bytes", part.len())))
            }
            _ => Ok(announced),
        }
    }

    /// Sends a GET and follows redirects.
    fn get(&self, url: &str, token: Option<&str>, headers: &[(&str, String)]) -> Result<Answer, Trouble> {
        let mut uri: Uri =
            url.parse().map_err(|e| Trouble::lasting(format!("`{url}` is no address: {e}")))?;
        let mut token = token;
        let (mut sha256, mut size) = (None, None);
        for _ in 0..=MAX_REDIRECTS {
            let agent = if uri.scheme_str() == Some("https") { &self.https } else { &self.http };
            let mut request = agent.get(uri.clone());
            for (name, value) in headers {
                request = request.header(*name, value);
            }
            if let Some(token) = token {
                request = request.header("authorization", format!("Bearer {token}"));
            }
            let response = request.call().map_err(|e| trouble(&e, &uri))?;
            let linked = header(&response, "x-linked-etag").map(|etag| etag.trim_matches('"').to_owned());
            sha256 = sha256.or(linked.filter(|etag| is_sha256(etag)));
            size = size.or(number(&response, "x-linked-size"));
            if !matches!(response.status().as_u16(), 301 | 302 | 303 | 307 | 308) {
                return Ok(Answer { response, sha256, size });
            }
            let location = header(&response, "location").unwrap_or_default();
            let next = join(&uri, location).ok_or_else(|| {
                Trouble::lasting(format!("it redirects to `{location}`, which is no address"))
            })?;
            if uri.scheme_str() == Some("https") && next.scheme_str() != Some("https") {
                return Err(Trouble::lasting("it redirects from https to plain http".to_owned()));
            }
            if next.scheme() != uri.scheme() || next.authority() != uri.authority() {
                token = None;
            }
            uri = next;
        }
        Err(Trouble::lasting(format!("it redirects more than {MAX_REDIRECTS} times")))
    }

    /// Runs `attempt` until it succeeds, fails for good, or has failed `retries` times on end without new bytes.
    fn with_retries<T>(
        &self,
        len: &mut dyn FnMut() -> u64,
        tell: &dyn Fn(&str),
        mut attempt: impl FnMut() -> Result<T, Trouble>,
    ) -> Result<T, Failure> {
        let mut failures = 0;
        let start = len();
        let mut reached = start;
        loop {
            let (why, asked) = match attempt() {
                Ok(value) => return Ok(value),
                Err(Trouble::Lasting(failure)) => return Err(failure),
                Err(Trouble::Unreachable(why)) if len() == start => return Err(Failure::Source(why)),
                Err(Trouble::Unreachable(why)) => (why, None),
                Err(Trouble::Passing { why, pause }) => (why, pause),
            };
            if len() > reached {
                failures = 0;
            }
            reached = len();
            if failures == self.retries {
                return Err(Failure::Source(why));
            }
            let pause = asked.unwrap_or(self.pause * 2_u32.pow(failures.min(6))).min(MAX_PAUSE);
            failures += 1;
            tell(&format!("{why}; trying again"));
            std::thread::sleep(pause);
        }
    }
}

impl Trouble {
    fn passing(why: String) -> Self {
        Self::Passing { why, pause: None }
    }

    fn lasting(why: String) -> Self {
        Self::Lasting(Failure::Source(why))
    }
}

/// What a status other than success means.
fn refused(response: &Response<Body>, with_token: bool) -> Trouble {
    let status = response.status();
    match status.as_u16() {
        // The hub says 401 for repositories that do not exist, too.
        401 | 403 if with_token => Trouble::lasting(format!(
            "{status}: HF_TOKEN gives no access; accept the model's licence on the hub, or check the name"
        )),
        401 | 403 => Trouble::lasting(format!(
            "{status}: private, gated or not there; check the name, accept the model's licence on the hub and set HF_TOKEN"
        )),
        404 | 410 => Trouble::lasting(format!("{status}: there is no such file")),
        408 | 429 | 500..=599 => {
            let seconds = header(response, "retry-after").and_then(|value| value.trim().parse().ok());
            Trouble::Passing { why: status.to_string(), pause: seconds.map(Duration::from_secs) }
        }
        _ => Trouble::lasting(format!("it answered {status}")),
    }
}

/// What an error before any response means.
fn trouble(error: &ureq::Error, uri: &Uri) -> Trouble {
    let host = uri.authority().map_or("", |authority| authority.as_str());
    let host = host.rsplit('@').next().unwrap_or(host);
    match error {
        ureq::Error::HostNotFound => Trouble::Unreachable(format!("{host}: no such host, or no network")),
        ureq::Error::Io(e) if is_unreachable(e) => {
            Trouble::Unreachable(format!("{host} cannot be reached, is the network on? ({e})"))
        }
        ureq::Error::Io(e) => Trouble::passing(format!("{host}: {}", reason(e))),
        ureq::Error::Timeout(_) => Trouble::passing(format!("{host}: no answer in time")),
        ureq::Error::ConnectionFailed | ureq::Error::Protocol(_) => {
            Trouble::passing(format!("{host}: {error}"))
        }
        other => Trouble::lasting(format!("{host}: {other}")),
    }
}

/// Whether there is no way to the host, or no telling where it is.
fn is_unreachable(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{HostUnreachable, NetworkDown, NetworkUnreachable};
    // A failed look-up has no kind of its own; the standard library words it like this on every system.
    matches!(error.kind(), HostUnreachable | NetworkDown | NetworkUnreachable)
        || error.to_string().contains("failed to lookup address")
}

/// An error of reading, without the layers around it.
fn reason(error: &std::io::Error) -> String {
    match error.get_ref().and_then(|inner| inner.downcast_ref::<ureq::Error>()) {
        Some(ureq::Error::Timeout(_)) => "it sent nothing for too long".to_owned(),
        _ if error.kind() == std::io::ErrorKind::TimedOut => "it sent nothing for too long".to_owned(),
        _ => error.to_string(),
    }
}

fn check_size(total: Option<u64>, item: &Item) -> Result<(), Trouble> {
    match (total, item.size) {
        (Some(total), Some(size)) if total != size => {
            Err(Trouble::lasting(format!("it offers {total} bytes, {size} are wanted")))
        }
        _ => Ok(()),
    }
}

fn header<'a>(response: &'a Response<Body>, name: &str) -> Option<&'a str> {
    response.headers().get(name)?.to_str().ok()
}

fn number(response: &Response<Body>, name: &str) -> Option<u64> {
    header(response, name)?.trim().parse().ok()
}

/// The validator fit for `if-range`: weak ones do not promise the same bytes (RFC 9110, 13.1.5).
fn strong_etag(response: &Response<Body>) -> Option<String> {
    header(response, "etag").filter(|etag| etag.starts_with('"')).map(str::to_owned)
}

/// Start and total of `bytes 5-9/10`; the total may be `*`.
fn parse_content_range(text: &str) -> Option<(u64, Option<u64>)> {
    let (range, total) = text.strip_prefix("bytes ")?.split_once('/')?;
    let start = range.split_once('-')?.0.parse().ok()?;
    if total == "*" { Some((start, None)) } else { Some((start, Some(total.parse().ok()?))) }
}

/// The address `location` means when `base` redirects to it (RFC 3986, 5.2, without dot segments).
fn join(base: &Uri, location: &str) -> Option<Uri> {
    let (scheme, authority) = (base.scheme_str()?, base.authority()?.as_str());
    let location = location.split('#').next()?;
    let text = if location.contains("://") {
        location.to_owned()
    } else if location.starts_with("//") {
        format!("{scheme}:{location}")
    } else if location.starts_with('/') {
        format!("{scheme}://{authority}{location}")
    } else if location.is_empty() {
        return None;
    } else {
        let folder = base.path().rsplit_once('/').map_or("", |(folder, _)| folder);
        format!("{scheme}://{authority}{folder}/{location}")
    };
    let uri: Uri = text.parse().ok()?;
    (matches!(uri.scheme_str(), Some("http" | "https")) && uri.authority().is_some()).then_some(uri)
}

/// A proxy from its address, with the hosts that go around it.
fn parse_proxy(proxy: &str, no_proxy: Option<&str>) -> Result<Proxy, Failure> {
    // Without the address itself, which may hold a password.
    let bad = |e: ureq::Error| Failure::Source(format!("the proxy's address cannot be used: {e}"));
    let plain = Proxy::new(proxy).map_err(bad)?;
    let Some(no_proxy) = no_proxy else { return Ok(plain) };
    let mut builder = Proxy::builder(plain.protocol()).host(plain.host()).port(plain.port());
    if let Some(username) = plain.username() {
        builder = builder.username(username);
    }
    if let Some(password) = plain.password() {
        builder = builder.password(password);
    }
    for host in no_proxy.split(',').map(str::trim).filter(|host| !host.is_empty()) {
        builder = builder.no_proxy(host);
    }
    builder.build().map_err(bad)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn redirects_are_joined() {
        let base: Uri = "https://hub.co/a/b?x=1".parse().unwrap();
        let joined = |location: &str| join(&base, location).map(|uri| uri.to_string());
        assert_eq!(joined("https://cdn.co/x?y#z").as_deref(), Some("https://cdn.co/x?y"));
        assert_eq!(joined("//cdn.co/x").as_deref(), Some("https://cdn.co/x"));
        assert_eq!(joined("/api/x").as_deref(), Some("https://hub.co/api/x"));
        assert_eq!(joined("c").as_deref(), Some("https://hub.co/a/c"));
        for bad in ["", "ftp://x/y", "http://", "::"] {
            assert!(bad == "::" || joined(bad).is_none(), "{bad}");
        }
    }

    #[test]
    fn content_ranges() {
        assert_eq!(parse_content_range("bytes 5-9/10"), Some((5, Some(10))));
        assert_eq!(parse_content_range("bytes 5-9/*"), Some((5, None)));
        for bad in ["", "bytes", "bytes */10", "items 5-9/10", "bytes 5-9/x"] {
            assert_eq!(parse_content_range(bad), None, "{bad}");
        }
    }

    #[test]
    fn proxies_and_the_hosts_around_them() {
        let proxy =
            parse_proxy("http://me:pass@proxy.example:3128", Some("localhost, .corp.example")).ok().unwrap();
        assert_eq!((proxy.host(), proxy.port(), proxy.password()), ("proxy.example", 3128, Some("pass")));
        assert!(proxy.is_no_proxy(&"http://localhost/x".parse().unwrap()));
        assert!(proxy.is_no_proxy(&"https://a.corp.example/x".parse().unwrap()));
        assert!(!proxy.is_no_proxy(&"https://hub.co/x".parse().unwrap()));
        let Err(Failure::Source(why)) = parse_proxy("http://me:secret@", None) else { panic!("no host") };
        assert!(!why.contains("secret"), "{why}");
    }
}

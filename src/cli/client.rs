//! A small synchronous client of the HTTP API, over that of the library ([`client`](crate::client)).
//!
//! One request at a time, each with an end ([`ANSWER_WITHIN`]). Nothing is sent twice; whoever runs the command decides
//! that. What failed is told with what to do about it.

use std::fmt::Display;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use reqwest::Method;
use reqwest::header::HeaderMap;
use serde_json::Value;
use serde_json::value::RawValue;
use url::Url;

use super::{Failure, Problem};
use crate::client::ClientError;
pub(super) use crate::client::call::Body;
use crate::client::call::{self, Call, Service, parse_address};
use crate::limits::IDEMPOTENCY_KEY_CHARS_MAX;

/// How long a request may take from connect to the last byte of the answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);
/// How long an answer that comes in pieces may take as a whole.
const STREAM_WITHIN: Duration = Duration::from_secs(24 * 3600);

/// Where the service is.
#[derive(clap::Args, Debug)]
pub(super) struct Server {
    /// The service's address
    #[arg(
        long,
        global = true,
        env = "DUETIME_URL",
        display_order = 1000,
        hide_env_values = true,
        value_name = "URL",
        default_value = "http://127.0.0.1:7420",
        value_parser = parse_address
    )]
    url: Url,
}

impl Server {
    /// The service that says so of itself in its data directory's lock.
    pub(super) fn at(address: SocketAddr) -> Self {
        let ip = match address.ip() {
            // It listens everywhere, so here too.
            IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
            IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
            ip => ip,
        };
        let address = SocketAddr::new(ip, address.port());
        let url = Url::parse(&format!("http://{address}"));
        Self {
            url: url.expect("an address makes a URL"),
        }
    }
}

/// Checks an `--idempotency-key` as far as a header can carry it.
pub(super) fn parse_idempotency_key(text: &str) -> Result<String, String> {
    let fits = (1..=IDEMPOTENCY_KEY_CHARS_MAX).contains(&text.len());
    if fits && text.bytes().all(|b| b.is_ascii_graphic()) {
        Ok(text.to_owned())
    } else {
        Err(format!(
            "1 to {IDEMPOTENCY_KEY_CHARS_MAX} visible ASCII characters"
        ))
    }
}

/// Checks that an argument is JSON and keeps it as it was written, so that no number loses a digit.
pub(super) fn parse_json(text: &str) -> Result<Box<RawValue>, String> {
    serde_json::from_str(text).map_err(|error| format!("not JSON: {error}"))
}

/// One request.
#[derive(Debug)]
pub(super) struct Request {
    what: String,
    call: Call,
}

impl Request {
    fn new(method: Method, what: impl Into<String>, path: Vec<String>) -> Self {
        Self {
            what: what.into(),
            call: Call::new(method, path, ANSWER_WITHIN),
        }
    }

    /// Reads what `path` (below `/v1`, segment by segment) names. `what` completes "cannot …".
    pub(super) fn get(what: impl Into<String>, path: Vec<String>) -> Self {
        Self::new(Method::GET, what, path)
    }

    pub(super) fn post(what: impl Into<String>, path: Vec<String>, body: &Body) -> Self {
        let mut request = Self::new(Method::POST, what, path);
        request.call.body = Some(body.bytes());
        request
    }

    pub(super) fn put(what: impl Into<String>, path: Vec<String>, body: &RawValue) -> Self {
        let mut request = Self::new(Method::PUT, what, path);
        request.call.body = Some(body.get().to_owned().into());
        request
    }

    pub(super) fn delete(what: impl Into<String>, path: Vec<String>) -> Self {
        Self::new(Method::DELETE, what, path)
    }

    /// Sends a text that is no JSON.
    pub(super) fn post_text(
        what: impl Into<String>,
        path: Vec<String>,
        content_type: &'static str,
        text: String,
    ) -> Self {
        let mut request = Self::new(Method::POST, what, path);
        request.call.body = Some(text.into());
        request.call.content_type = content_type;
        request
    }

    pub(super) fn query(mut self, pairs: Vec<(String, String)>) -> Self {
        self.call.query = pairs;
        self
    }

    pub(super) fn admin_token(mut self, token: &str) -> Self {
        self.call.admin_token = Some(token.to_owned());
        self
    }

    pub(super) fn idempotency_key(mut self, key: Option<String>) -> Self {
        self.call.idempotency_key = key;
        self
    }
}

/// What the service answered when it did what it was asked.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: u16,
    /// The request was answered before: this is the same answer again.
    pub(super) replayed: bool,
    /// The body as sent; `{}` when there was none.
    pub(super) text: String,
    /// The body, parsed.
    pub(super) value: Value,
}

impl Answer {
    fn read(answer: call::Answer) -> Result<Self, ClientError> {
        let value = answer.read()?;
        Ok(Self {
            status: answer.status,
            replayed: answer.replayed,
            text: answer.text,
            value,
        })
    }
}

/// A connection to one service.
pub(super) struct Client {
    service: Service,
    runtime: tokio::runtime::Runtime,
}

impl Client {
    pub(super) fn new(server: &Server) -> Result<Self, Failure> {
        let cannot =
            |error: &dyn Display| Failure::new(format!("cannot set up the HTTP client: {error}"));
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| cannot(&error))?;
        let agent = concat!("duetime-cli/", env!("CARGO_PKG_VERSION"));
        let service = Service::at(server.url.clone(), agent);
        Ok(Self {
            service: service.map_err(|error| Failure::new(error.to_string()))?,
            runtime,
        })
    }

    /// Sends a request and waits for its answer.
    pub(super) fn send(&self, request: Request) -> Result<Answer, Failure> {
        let answered = self.runtime.block_on(self.service.send(&request.call));
        answered
            .and_then(Answer::read)
            .map_err(|error| told(&request.what, error))
    }

    /// Sends a request whose answer is of any length, and hands on each piece of it as it comes; the answer's headers.
    /// Whoever answers has as long for each as for a whole answer otherwise.
    pub(super) fn stream(
        &self,
        request: Request,
        take: &mut dyn FnMut(&[u8]) -> Result<(), Failure>,
    ) -> Result<HeaderMap, Failure> {
        let Request { what, mut call } = request;
        let cut_off = || {
            Failure::new(format!("cannot {what}: the answer was cut off"))
                .then("the service's log says why; ask again")
        };
        call.within = STREAM_WITHIN;
        self.runtime.block_on(async {
            let begun = tokio::time::timeout(ANSWER_WITHIN, self.service.begin(&call)).await;
            let mut response = match begun {
                Ok(begun) => begun.map_err(|error| told(&what, error))?,
                Err(_) => return Err(cut_off()),
            };
            if !response.status().is_success() {
                let answer = self.service.rest(&call, response).await;
                return answer
                    .map(|_| HeaderMap::new())
                    .map_err(|error| told(&what, error));
            }
            let headers = response.headers().clone();
            loop {
                match tokio::time::timeout(ANSWER_WITHIN, response.chunk()).await {
                    Ok(Ok(Some(piece))) => take(&piece)?,
                    Ok(Ok(None)) => return Ok(headers),
                    Ok(Err(_)) | Err(_) => return Err(cut_off()),
                }
            }
        })
    }

    /// Where it asks, without a password.
    pub(super) fn shown_address(&self) -> String {
        self.service.shown_address()
    }
}

/// What could not be done, and what to do about it.
fn told(what: &str, error: ClientError) -> Failure {
    let failure = Failure::new(format!("cannot {what}: {error}"));
    match error {
        ClientError::DotName => failure
            .then("find the task's id with `duetime task list --topic … --key …` and use that"),
        ClientError::Unreachable { .. } => failure.then(
            "is the service running? start it with `duetime serve`, or give its address with --url",
        ),
        ClientError::TimedOut { .. } | ClientError::Broken { .. } => {
            failure.then("a change may have been made all the same: look before you ask again")
        }
        ClientError::TooLarge => failure.then("ask for smaller pages with --limit"),
        ClientError::Redirected { .. } => {
            failure.then("redirects are not followed: give the service's own address with --url")
        }
        ClientError::NotDuetime { .. } => failure.then("does --url name the right address?"),
        ClientError::Refused {
            status,
            code,
            retry_after,
            body,
            ..
        } => {
            let failure = match what_next(status, &code, retry_after) {
                Some(next) => failure.then(next),
                None => failure,
            };
            let value = serde_json::from_str(&body).unwrap_or_default();
            failure.because(Problem { text: body, value })
        }
        _ => failure,
    }
}

fn what_next(status: u16, code: &str, retry_after: Option<Duration>) -> Option<String> {
    let advice = match (status, code) {
        (404, _) => "see what there is with `duetime task list` or `duetime topic list`",
        (409, "exists") => {
            "say what to do about the living one with --on-existing return, replace, extend or keep_later"
        }
        (409, "illegal_state") => "see how it came to this with `duetime task log`",
        (409, "stale_token") => "the attempt has a newer owner; nothing was changed",
        (422, "idempotency_mismatch") => "use another --idempotency-key for another request",
        (400 | 422, _) => "correct what is named above; `--help` shows an example",
        (429 | 503, _) => {
            return Some(match retry_after {
                Some(wait) => format!("try again in {} s", wait.as_secs()),
                None => String::from("try again later"),
            });
        }
        (507, _) => "make room on the disk that holds the service's data",
        _ => return None,
    };
    Some(advice.into())
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::super::tests::{duetime, refused};
    use super::*;
    use crate::client::scripted::Service;

    const GET: [&str; 3] = ["task", "get", "0192f0c1-2345-7abc-8def-0123456789ab"];

    fn get_from(url: &str, more: &[&str]) -> (u8, String, String) {
        duetime(&[&GET[..], &["--url", url], more].concat())
    }

    #[test]
    fn a_service_that_is_not_there_is_named_with_what_to_do() {
        let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", closed.local_addr().unwrap());
        drop(closed);
        let (code, out, err) = get_from(&url, &[]);
        assert_eq!((code, out.as_str()), (1, ""));
        assert!(err.contains(&format!("cannot connect to {url}: ")), "{err}");
        assert!(
            err.contains("refused") && err.contains("duetime serve"),
            "{err}"
        );
        let (_, _, err) = get_from(&url, &["--json"]);
        let told: Value = serde_json::from_str(&err).unwrap();
        assert!(told["title"].as_str().unwrap().contains("cannot connect"));
    }

    #[test]
    fn a_password_in_the_address_is_not_repeated() {
        let (_, _, err) = get_from("http://zoe:secret@127.0.0.1:1", &[]);
        assert!(
            err.contains("127.0.0.1:1") && !err.contains("secret") && !err.contains("zoe"),
            "{err}"
        );
    }

    #[test]
    fn a_refusal_tells_detail_and_fields_and_what_next() {
        let problem = r#"{"type":"about:blank","title":"not valid","status":422,"detail":"the task is not valid","code":"invalid",
            "errors":[{"pointer":"/delay","code":"invalid_duration","detail":"`soon` is no ISO 8601 duration\u001b[2J"}]}"#;
        let head = "422 Unprocessable\r\ncontent-type: application/problem+json";
        let service = Service::answering(&[(head, problem), (head, problem)]);
        let (code, out, err) = get_from(&service.url, &[]);
        assert_eq!((code, out.as_str()), (1, ""));
        assert_eq!(
            err,
            "error: cannot get task 0192f0c1-2345-7abc-8def-0123456789ab: the task is not valid (422 invalid)\n  \
             /delay: `soon` is no ISO 8601 duration\\u{1b}[2J\n  correct what is named above; `--help` shows an example\n"
        );
        let (code, _, err) = get_from(&service.url, &["--json"]);
        assert_eq!((code, err.trim_end()), (1, problem));
    }

    #[test]
    fn advice_fits_the_refusal() {
        for (status, code, header, words) in [
            ("404 Not Found", "not_found", "", "duetime task list"),
            ("409 Conflict", "illegal_state", "", "duetime task log"),
            ("409 Conflict", "exists", "", "--on-existing"),
            (
                "503 Busy",
                "starting",
                "\r\nretry-after: 7",
                "try again in 7 s",
            ),
            ("507 Full", "storage_full", "", "make room"),
        ] {
            let body = format!(r#"{{"detail":"no","code":"{code}"}}"#);
            let service = Service::answering(&[(&format!("{status}{header}"), &body)]);
            let (exit, _, err) = get_from(&service.url, &[]);
            assert_eq!(exit, 1);
            assert!(err.contains(words) && err.contains(code), "{err}");
        }
    }

    #[test]
    fn something_else_at_the_address_is_not_taken_for_the_service() {
        let service = Service::answering(&[
            ("200 OK", "<html>\u{1b}hello"),
            ("302 Found\r\nlocation: http://elsewhere/", ""),
            ("500 Oops", "[]"),
            ("404 Not Found", ""),
        ]);
        let (code, out, err) = get_from(&service.url, &["--json"]);
        assert_eq!((code, out.as_str()), (1, ""));
        assert!(err.contains("<html>"), "{err}");
        let (code, _, err) = get_from(&service.url, &[]);
        assert!(
            code == 1 && err.contains("redirect to http://elsewhere/"),
            "{err}"
        );
        let (code, _, err) = get_from(&service.url, &[]);
        assert!(code == 1 && err.contains("does --url name"), "{err}");
        assert!(
            get_from(&service.url, &[])
                .2
                .contains("404 and none of a duetime service: nothing")
        );
    }

    #[test]
    fn an_answer_that_breaks_off_is_a_failure() {
        let service = Service::answering(&[("200 OK\r\ncontent-length: 9999", "{")]);
        let (code, out, err) = get_from(&service.url, &[]);
        assert_eq!((code, out.as_str()), (1, ""));
        assert!(err.contains("broke"), "{err}");
    }

    #[test]
    fn the_address_is_taken_before_and_after_the_verb_and_checked() {
        let service = Service::answering(&[("200 OK", "{}"), ("200 OK", "{}")]);
        assert_eq!(
            duetime(&["task", "--url", &service.url, "get", GET[2]]).0,
            0
        );
        assert_eq!(get_from(&format!("{}/", service.url), &[]).0, 0);
        for _ in 0..2 {
            assert_eq!(service.asked().line, format!("GET /v1/tasks/{}", GET[2]));
        }
        for wrong in ["ftp://host", "host", "http://", "http://h/?a=b"] {
            let (code, told) = refused(&[&GET[..], &["--url", wrong]].concat());
            assert!(code == 2 && told.contains("--url"), "{wrong}: {told}");
        }
        assert!(refused(&["task", "get", "--help"]).1.contains("--url"));
    }
}

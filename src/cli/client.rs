//! A small synchronous client of the HTTP API.
//!
//! One request at a time, each with an end ([`ANSWER_WITHIN`]). It follows no redirect and asks no proxy: what
//! answers is the service at `--url` or nobody. Nothing is sent twice; whoever runs the command decides that.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use reqwest::Method;
use reqwest::header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderValue, LOCATION, RETRY_AFTER};
use reqwest::redirect::Policy;
use serde::Serialize;
use serde_json::Value;
use serde_json::value::{RawValue, to_raw_value};
use url::Url;

use super::{Failure, Problem, render};
use crate::causes::causes;
use crate::limits::IDEMPOTENCY_KEY_CHARS_MAX;

/// How long a request may take from connect to the last byte of the answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);
/// How long an answer that comes in pieces may take as a whole.
const STREAM_WITHIN: Duration = Duration::from_secs(24 * 3600);
/// How long connecting may take.
const CONNECT_WITHIN: Duration = Duration::from_secs(10);
/// Largest answer taken in, in bytes: a full page of the largest tasks.
const ANSWER_BYTES_MAX: usize = 512 * 1024 * 1024;

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
        value_parser = parse_base
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

fn parse_base(text: &str) -> Result<Url, String> {
    let url = Url::parse(text)
        .map_err(|error| format!("{error}; an address looks like http://127.0.0.1:7420"))?;
    match url.scheme() {
        "http" | "https" if url.query().is_none() && url.fragment().is_none() => Ok(url),
        _ => Err("an address looks like http://127.0.0.1:7420".into()),
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

/// The JSON object that a request carries; flags that were not given leave no trace in it.
#[derive(Serialize, Debug, Default)]
#[serde(transparent)]
pub(super) struct Body(BTreeMap<&'static str, Box<RawValue>>);

impl Body {
    pub(super) fn with(mut self, name: &'static str, value: &Option<impl Serialize>) -> Self {
        if let Some(value) = value {
            let raw = to_raw_value(value).expect("text, numbers and JSON have a JSON form");
            self.0.insert(name, raw);
        }
        self
    }
}

/// One request.
#[derive(Debug)]
pub(super) struct Request {
    what: String,
    method: Method,
    path: Vec<String>,
    query: Vec<(String, String)>,
    body: Option<String>,
    content_type: &'static str,
    idempotency_key: Option<String>,
    admin_token: Option<String>,
}

impl Request {
    fn new(method: Method, what: impl Into<String>, path: Vec<String>) -> Self {
        Self {
            what: what.into(),
            method,
            path,
            query: Vec::new(),
            body: None,
            content_type: "application/json",
            idempotency_key: None,
            admin_token: None,
        }
    }

    /// Reads what `path` (below `/v1`, segment by segment) names. `what` completes "cannot …".
    pub(super) fn get(what: impl Into<String>, path: Vec<String>) -> Self {
        Self::new(Method::GET, what, path)
    }

    pub(super) fn post(what: impl Into<String>, path: Vec<String>, body: &Body) -> Self {
        let mut request = Self::new(Method::POST, what, path);
        request.body =
            Some(serde_json::to_string(body).expect("a map of JSON texts has a JSON form"));
        request
    }

    pub(super) fn put(what: impl Into<String>, path: Vec<String>, body: &RawValue) -> Self {
        let mut request = Self::new(Method::PUT, what, path);
        request.body = Some(body.get().to_owned());
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
        request.body = Some(text);
        request.content_type = content_type;
        request
    }

    pub(super) fn query(mut self, pairs: Vec<(String, String)>) -> Self {
        self.query = pairs;
        self
    }

    pub(super) fn admin_token(mut self, token: &str) -> Self {
        self.admin_token = Some(token.to_owned());
        self
    }

    pub(super) fn idempotency_key(mut self, key: Option<String>) -> Self {
        self.idempotency_key = key;
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

/// An answer of any status, before it is judged.
struct Received {
    status: u16,
    replayed: bool,
    retry_after: Option<String>,
    location: Option<String>,
    body: Vec<u8>,
}

impl Received {
    /// All of an answer.
    async fn of(
        what: &str,
        mut response: reqwest::Response,
    ) -> Result<Result<Self, Failure>, reqwest::Error> {
        let header = |name| {
            let value: Option<&HeaderValue> = response.headers().get(name);
            value
                .and_then(|value| value.to_str().ok())
                .map(str::to_owned)
        };
        let mut received = Self {
            status: response.status().as_u16(),
            replayed: response.headers().contains_key("idempotency-replayed"),
            retry_after: header(RETRY_AFTER),
            location: header(LOCATION),
            body: Vec::new(),
        };
        while let Some(chunk) = response.chunk().await? {
            if received.body.len() + chunk.len() > ANSWER_BYTES_MAX {
                return Ok(Err(Failure::new(format!(
                    "cannot {what}: the answer is over 512 MiB"
                ))
                .then("ask for smaller pages with --limit")));
            }
            received.body.extend_from_slice(&chunk);
        }
        Ok(Ok(received))
    }
}

/// A connection to one service.
pub(super) struct Client {
    base: Url,
    http: reqwest::Client,
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
        // Fails only when a provider is there already, which is as good.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut http = reqwest::Client::builder()
            .timeout(ANSWER_WITHIN)
            .connect_timeout(CONNECT_WITHIN)
            .redirect(Policy::none())
            .no_proxy()
            .referer(false)
            .user_agent(concat!("duetime-cli/", env!("CARGO_PKG_VERSION")));
        if server.url.scheme() == "http" {
            // Without TLS the machine's certificates need not be there, nor be loaded.
            http = http.tls_certs_only([]);
        }
        Ok(Self {
            base: server.url.clone(),
            http: http.build().map_err(|error| cannot(&error))?,
            runtime,
        })
    }

    /// Sends a request and waits for its answer.
    pub(super) fn send(&self, request: Request) -> Result<Answer, Failure> {
        let url = self.address(&request)?;
        let received = self
            .runtime
            .block_on(self.exchange(&request, url))
            .map_err(|error| self.unanswered(&request.what, error))?;
        judge(&request.what, received?)
    }

    /// Sends a request whose answer is of any length, and hands on each piece of it as it comes; the answer's headers.
    /// Whoever answers has as long for each as for a whole answer otherwise.
    pub(super) fn stream(
        &self,
        request: Request,
        take: &mut dyn FnMut(&[u8]) -> Result<(), Failure>,
    ) -> Result<HeaderMap, Failure> {
        let url = self.address(&request)?;
        let cut_off = || {
            Failure::new(format!("cannot {}: the answer was cut off", request.what))
                .then("the service's log says why; ask again")
        };
        let call = self.call(&request, url).timeout(STREAM_WITHIN);
        self.runtime.block_on(async {
            let answered = tokio::time::timeout(ANSWER_WITHIN, call.send()).await;
            let mut response = match answered {
                Ok(Ok(response)) => response,
                Ok(Err(error)) => return Err(self.unanswered(&request.what, error)),
                Err(_) => return Err(cut_off()),
            };
            if !response.status().is_success() {
                let received = Received::of(&request.what, response).await;
                let received = received.map_err(|error| self.unanswered(&request.what, error))?;
                return judge(&request.what, received?).map(|_| HeaderMap::new());
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

    fn address(&self, request: &Request) -> Result<Url, Failure> {
        // A URL path can't carry these: every parser on the way takes them for "here" and "one up".
        if request
            .path
            .iter()
            .any(|segment| matches!(segment.as_str(), "." | ".."))
        {
            return Err(Failure::new(format!(
                "cannot {}: a URL cannot hold the name `.` or `..`",
                request.what
            ))
            .then("find the task's id with `duetime task list --topic … --key …` and use that"));
        }
        let mut url = self.base.clone();
        url.path_segments_mut()
            .expect("an http address has a path")
            .pop_if_empty()
            .push("v1")
            .extend(&request.path);
        if !request.query.is_empty() {
            url.query_pairs_mut().extend_pairs(&request.query);
        }
        Ok(url)
    }

    fn call(&self, request: &Request, url: Url) -> reqwest::RequestBuilder {
        let mut call = self
            .http
            .request(request.method.clone(), url)
            .header(ACCEPT, "application/json");
        if let Some(body) = &request.body {
            call = call
                .header(CONTENT_TYPE, request.content_type)
                .body(body.clone());
        }
        if let Some(key) = &request.idempotency_key {
            call = call.header("idempotency-key", key);
        }
        if let Some(token) = &request.admin_token {
            call = call.header("duetime-admin-token", token);
        }
        call
    }

    async fn exchange(
        &self,
        request: &Request,
        url: Url,
    ) -> Result<Result<Received, Failure>, reqwest::Error> {
        let response = self.call(request, url).send().await?;
        Received::of(&request.what, response).await
    }

    /// Where it asks. An address may carry a password; a message must not.
    pub(super) fn shown_address(&self) -> String {
        let mut base = self.base.clone();
        // Neither call fails on an http address.
        let _ = base.set_password(None).and_then(|()| base.set_username(""));
        base.as_str().trim_end_matches('/').to_owned()
    }

    fn unanswered(&self, what: &str, error: reqwest::Error) -> Failure {
        let base = self.shown_address();
        // The outermost text would repeat the address.
        let cause = causes(&error).skip(1).last();
        let cause = cause.map_or_else(|| "no answer".to_owned(), ToString::to_string);
        if error.is_connect() {
            return Failure::new(format!("cannot {what}: cannot connect to {base}: {cause}"))
                .then("is the service running? start it with `duetime serve`, or give its address with --url");
        }
        let told = if error.is_timeout() {
            format!(
                "cannot {what}: {base} did not answer within {} s",
                ANSWER_WITHIN.as_secs()
            )
        } else {
            format!("cannot {what}: the connection to {base} broke: {cause}")
        };
        Failure::new(told)
            .then("a change may have been made all the same: look before you ask again")
    }
}

/// Tells a done request from a refused one, and the service from something else at its address.
fn judge(what: &str, received: Received) -> Result<Answer, Failure> {
    let status = received.status;
    let mut text = String::from_utf8_lossy(&received.body).into_owned();
    if text.trim().is_empty() {
        text = String::from("{}");
    }
    let value: Result<Value, _> = serde_json::from_str(&text);
    match value {
        Ok(value) if (200..300).contains(&status) => Ok(Answer {
            status,
            replayed: received.replayed,
            text,
            value,
        }),
        Ok(value)
            if status >= 400 && (value["detail"].is_string() || value["title"].is_string()) =>
        {
            let code = value["code"].as_str().unwrap_or_default();
            let detail = value["detail"]
                .as_str()
                .or(value["title"].as_str())
                .unwrap_or_default();
            let told = format!(
                "cannot {what}: {detail} ({})",
                format!("{status} {code}").trim_end()
            );
            let next = what_next(status, code, received.retry_after.as_deref());
            let mut failure = Failure::new(told);
            if let Some(next) = next {
                failure = failure.then(next);
            }
            Err(failure.because(Problem { text, value }))
        }
        _ if (300..400).contains(&status) => {
            let to = received.location.unwrap_or_else(|| "elsewhere".into());
            Err(Failure::new(format!(
                "cannot {what}: the answer was {status}, a redirect to {to}"
            ))
            .then("redirects are not followed: give the service's own address with --url"))
        }
        _ => {
            let start: String = match received.body.as_slice() {
                [] => String::from("nothing"),
                _ => text.chars().take(100).collect(),
            };
            Err(Failure::new(format!(
                "cannot {what}: the answer was {status} and none of a duetime service: {}",
                render::plain(&start)
            ))
            .then("does --url name the right address?"))
        }
    }
}

fn what_next(status: u16, code: &str, retry_after: Option<&str>) -> Option<String> {
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
            return Some(
                match retry_after.and_then(|text| text.parse::<u64>().ok()) {
                    Some(seconds) => format!("try again in {seconds} s"),
                    None => String::from("try again later"),
                },
            );
        }
        (507, _) => "make room on the disk that holds the service's data",
        _ => return None,
    };
    Some(advice.into())
}

/// A service that answers by script, for tests of everything above it.
#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test fails by panicking")]
pub(super) mod scripted {
    use std::io::{BufRead, BufReader, Read, Write};
    use std::net::TcpListener;
    use std::sync::mpsc::{Receiver, channel};
    use std::thread;
    use std::time::Duration;

    use serde_json::Value;

    /// What the service was asked.
    pub(in crate::cli) struct Asked {
        /// Method and target, such as `GET /v1/tasks`.
        pub(in crate::cli) line: String,
        /// Headers in lower case, one a line.
        pub(in crate::cli) headers: String,
        pub(in crate::cli) body: Value,
    }

    pub(in crate::cli) struct Service {
        pub(in crate::cli) url: String,
        asked: Receiver<Asked>,
    }

    impl Service {
        /// A service that gives these answers (head after `HTTP/1.1 `, body), one a connection, and then is gone.
        pub(in crate::cli) fn answering(answers: &[(&str, &str)]) -> Self {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let url = format!("http://{}", listener.local_addr().unwrap());
            let (tell, asked) = channel();
            let answers: Vec<_> = answers
                .iter()
                .map(|(h, b)| (h.to_string(), b.to_string()))
                .collect();
            thread::spawn(move || {
                for (head, body) in answers {
                    let (stream, _) = listener.accept().unwrap();
                    stream
                        .set_read_timeout(Some(Duration::from_secs(10)))
                        .unwrap();
                    let mut reader = BufReader::new(&stream);
                    let (mut line, mut headers, mut length) = (String::new(), String::new(), 0);
                    reader.read_line(&mut line).unwrap();
                    loop {
                        let mut header = String::new();
                        reader.read_line(&mut header).unwrap();
                        if header.trim().is_empty() {
                            break;
                        }
                        let header = header.to_ascii_lowercase();
                        if let Some(value) = header.strip_prefix("content-length:") {
                            length = value.trim().parse().unwrap();
                        }
                        headers.push_str(&header);
                    }
                    let mut sent = vec![0; length];
                    reader.read_exact(&mut sent).unwrap();
                    let answer = format!(
                        "HTTP/1.1 {head}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
                        body.len()
                    );
                    (&stream).write_all(answer.as_bytes()).unwrap();
                    let line = line.trim_end().trim_end_matches(" HTTP/1.1").to_owned();
                    let body = serde_json::from_slice(&sent).unwrap_or_default();
                    let _ = tell.send(Asked {
                        line,
                        headers,
                        body,
                    });
                }
            });
            Self { url, asked }
        }

        /// The next request that came in.
        pub(in crate::cli) fn asked(&self) -> Asked {
            self.asked.recv_timeout(Duration::from_secs(10)).unwrap()
        }
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::super::tests::{duetime, refused};
    use super::scripted::Service;
    use super::*;

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

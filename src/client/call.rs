//! One call of a service's HTTP API, and what comes back.
//!
//! A call follows no redirect and asks no proxy: what answers is the service at the address or nobody. Each has an end.
//! Nothing is sent twice here: whether that is safe is known above.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use reqwest::header::{ACCEPT, CONTENT_TYPE, HeaderName, LOCATION, RETRY_AFTER};
use reqwest::redirect::Policy;
use reqwest::{Method, Response};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_json::value::{RawValue, to_raw_value};
use url::Url;

use crate::causes::causes;
use crate::client::error::ClientError;

/// How long connecting may take.
const CONNECT_WITHIN: Duration = Duration::from_secs(10);
/// How long a connection is kept with nothing on it: less than the service keeps it.
const IDLE_KEPT: Duration = Duration::from_secs(20);
/// Largest answer taken in, in bytes: a full page of the largest tasks.
const ANSWER_BYTES_MAX: usize = 512 * 1024 * 1024;
/// How much of an answer that is not the service's is told, in characters.
const EXCERPT_CHARS_MAX: usize = 100;

/// Reads a service's address.
///
/// # Errors
/// Why it is none.
pub(crate) fn parse_address(text: &str) -> Result<Url, String> {
    let url = Url::parse(text)
        .map_err(|error| format!("{error}; an address looks like http://127.0.0.1:7420"))?;
    match url.scheme() {
        "http" | "https" if url.query().is_none() && url.fragment().is_none() => Ok(url),
        _ => Err("an address looks like http://127.0.0.1:7420".into()),
    }
}

/// The JSON object that a call carries; what is not given leaves no trace in it.
#[derive(Serialize, Debug, Default)]
#[serde(transparent)]
pub(crate) struct Body(BTreeMap<&'static str, Box<RawValue>>);

impl Body {
    pub(crate) fn with(mut self, name: &'static str, value: &Option<impl Serialize>) -> Self {
        if let Some(value) = value {
            let raw = to_raw_value(value).expect("text, numbers and JSON have a JSON form");
            self.0.insert(name, raw);
        }
        self
    }

    /// As it is sent.
    pub(crate) fn bytes(&self) -> Bytes {
        let text = serde_json::to_vec(self).expect("a map of JSON texts has a JSON form");
        Bytes::from(text)
    }
}

/// What is asked.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) method: Method,
    /// Below `/v1`, segment by segment.
    pub(crate) path: Vec<String>,
    pub(crate) query: Vec<(String, String)>,
    pub(crate) body: Option<Bytes>,
    pub(crate) content_type: &'static str,
    pub(crate) idempotency_key: Option<String>,
    pub(crate) admin_token: Option<String>,
    /// From connect to the last byte of the answer.
    pub(crate) within: Duration,
}

impl Call {
    pub(crate) fn new(method: Method, path: Vec<String>, within: Duration) -> Self {
        Self {
            method,
            path,
            query: Vec::new(),
            body: None,
            content_type: "application/json",
            idempotency_key: None,
            admin_token: None,
            within,
        }
    }

    pub(crate) fn post(path: &[&str], body: Bytes, within: Duration) -> Self {
        let path = path.iter().map(|segment| (*segment).to_owned()).collect();
        Self {
            body: Some(body),
            ..Self::new(Method::POST, path, within)
        }
    }
}

/// What the service answered when it did what it was asked.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    /// The request was answered before: this is the same answer again.
    pub(crate) replayed: bool,
    /// The body as sent; `{}` when there was none.
    pub(crate) text: String,
}

impl Answer {
    /// The body, read.
    pub(crate) fn read<T: DeserializeOwned>(&self) -> Result<T, ClientError> {
        serde_json::from_str(&self.text).map_err(|_| not_duetime(self.status, &self.text))
    }
}

/// A service, and the connections to it. Clones share them.
#[derive(Clone)]
pub(crate) struct Service {
    address: Url,
    http: reqwest::Client,
}

impl fmt::Debug for Service {
    /// Without the password that an address may carry.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Service")
            .field(&self.shown_address())
            .finish()
    }
}

impl Service {
    /// The one at this address, for a client that calls itself `agent`.
    pub(crate) fn at(address: Url, agent: &str) -> Result<Self, ClientError> {
        // Fails only when a provider is there already, which is as good.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut http = reqwest::Client::builder()
            .connect_timeout(CONNECT_WITHIN)
            .pool_idle_timeout(IDLE_KEPT)
            .redirect(Policy::none())
            .no_proxy()
            .referer(false)
            .user_agent(agent);
        if address.scheme() == "http" {
            // Without TLS the machine's certificates need not be there, nor be loaded.
            http = http.tls_certs_only([]);
        }
        let http = http
            .build()
            .map_err(|error| ClientError::SetUp(error.to_string()))?;
        Ok(Self { address, http })
    }

    /// Sends a call and waits for all of its answer.
    pub(crate) async fn send(&self, call: &Call) -> Result<Answer, ClientError> {
        let response = self.begin(call).await?;
        self.rest(call, response).await
    }

    /// Sends a call and waits for the head of its answer, whatever that says.
    pub(crate) async fn begin(&self, call: &Call) -> Result<Response, ClientError> {
        let mut request = self
            .http
            .request(call.method.clone(), self.url_of(call)?)
            .timeout(call.within)
            .header(ACCEPT, "application/json");
        if let Some(body) = &call.body {
            request = request
                .header(CONTENT_TYPE, call.content_type)
                .body(body.clone());
        }
        if let Some(key) = &call.idempotency_key {
            request = request.header("idempotency-key", key);
        }
        if let Some(token) = &call.admin_token {
            request = request.header("duetime-admin-token", token);
        }
        let sent = request.send().await;
        sent.map_err(|error| self.unanswered(call, &error))
    }

    /// The rest of an answer that has begun; a refusal is an error.
    pub(crate) async fn rest(
        &self,
        call: &Call,
        mut response: Response,
    ) -> Result<Answer, ClientError> {
        let header = |name: HeaderName| {
            let value = response.headers().get(name)?;
            value.to_str().ok().map(str::to_owned)
        };
        let (retry_after, location) = (header(RETRY_AFTER), header(LOCATION));
        let replayed = response.headers().contains_key("idempotency-replayed");
        let status = response.status().as_u16();
        let mut body = BytesMut::new();
        let broke = |error| self.unanswered(call, &error);
        while let Some(piece) = response.chunk().await.map_err(broke)? {
            if body.len() + piece.len() > ANSWER_BYTES_MAX {
                return Err(ClientError::TooLarge);
            }
            body.extend_from_slice(&piece);
        }
        let text = String::from_utf8_lossy(&body).into_owned();
        match status {
            200..300 if text.trim().is_empty() => Ok(Answer {
                status,
                replayed,
                text: "{}".to_owned(),
            }),
            200..300 => Ok(Answer {
                status,
                replayed,
                text,
            }),
            300..400 => Err(ClientError::Redirected {
                status,
                to: location.unwrap_or_else(|| "elsewhere".to_owned()),
            }),
            _ => Err(refusal(status, text, retry_after.as_deref())),
        }
    }

    fn url_of(&self, call: &Call) -> Result<Url, ClientError> {
        // A URL path can't carry these: every parser on the way takes them for "here" and "one up".
        if call
            .path
            .iter()
            .any(|segment| matches!(segment.as_str(), "." | ".."))
        {
            return Err(ClientError::DotName);
        }
        let mut url = self.address.clone();
        url.path_segments_mut()
            .expect("an http address has a path")
            .pop_if_empty()
            .push("v1")
            .extend(&call.path);
        if !call.query.is_empty() {
            url.query_pairs_mut().extend_pairs(&call.query);
        }
        Ok(url)
    }

    /// Where it is. An address may carry a password; a message must not.
    pub(crate) fn shown_address(&self) -> String {
        let mut address = self.address.clone();
        // Neither call fails on an http address.
        let _ = address
            .set_password(None)
            .and_then(|()| address.set_username(""));
        address.as_str().trim_end_matches('/').to_owned()
    }

    fn unanswered(&self, call: &Call, error: &reqwest::Error) -> ClientError {
        let service = self.shown_address();
        // The outermost text would repeat the address.
        let cause = causes(error).skip(1).last();
        let cause = cause.map_or_else(|| "no answer".to_owned(), ToString::to_string);
        if error.is_connect() {
            ClientError::Unreachable { service, cause }
        } else if error.is_timeout() {
            let within = call.within;
            ClientError::TimedOut { service, within }
        } else {
            ClientError::Broken { service, cause }
        }
    }
}

/// Tells a refusal of the service from the words of something else at its address.
fn refusal(status: u16, text: String, retry_after: Option<&str>) -> ClientError {
    let problem: Value = serde_json::from_str(&text).unwrap_or_default();
    let field = |name: &str| problem[name].as_str().map(str::to_owned);
    let Some(detail) = field("detail").or_else(|| field("title")) else {
        return not_duetime(status, &text);
    };
    let seconds = retry_after.and_then(|text| text.parse().ok());
    ClientError::Refused {
        status,
        code: field("code").unwrap_or_default(),
        detail,
        retry_after: seconds.map(Duration::from_secs),
        body: text,
    }
}

fn not_duetime(status: u16, text: &str) -> ClientError {
    let start = match text.trim() {
        "" => "nothing".to_owned(),
        _ => text.chars().take(EXCERPT_CHARS_MAX).collect(),
    };
    ClientError::NotDuetime { status, start }
}

//! HTTP push: sends one request per attempt and turns what comes back into an outcome.
//!
//! The request is finished when it gets here: body, signature and protocol headers are in it. What is left
//! is to send it to a place we may reach, to hear no more of the answer than we can use, and to stop in time:
//!
//! ```text
//!  RunAttempt ─ past its deadline? ─ cancelled? ─ blocked? ─▶ connect ─▶ send ─▶ head ─▶ body ≤ 64 KiB
//!                  GivenBack         Cancelled    Failed      └──────────── one future ─────────────┘
//!                                                     deadline or cancel drops it: the connection closes
//! ```
//!
//! | what happened                     | outcome                                                      |
//! |-----------------------------------|--------------------------------------------------------------|
//! | an expected status (2xx)          | `Succeeded`; the body is the result if it is JSON            |
//! | the same, body over 64 KiB        | `Succeeded` without the result, and the connection is closed |
//! | the same, but `success_if` is false | `condition_false`; `condition_error` if it has no value   |
//! | 202, and `complete_by` in its body or its task | `Accepted`: it is completed later              |
//! | a question of a poll: `failed_if` holds | `failed_if`, not retryable                             |
//! | the same, but `done_if` does not hold   | `NotYet`                                               |
//! | 3xx                               | `redirect`                                                   |
//! | any other status                  | `http_<status>`; 410 is not retryable                        |
//! | no address, no connection, no TLS | `dns`, `connect`, `tls`                                      |
//! | an address pushes may not reach   | `blocked_address`, not retryable                             |
//! | no HTTP, or closed midway         | `protocol`                                                   |
//!
//! A deadline that has passed while the whole process stood still cuts nothing off at once: the answer may lie in the socket,
//! and is read for a second more.
//!
//! TLS goes by the machine's root certificates, and by those of a file beside them. The client follows no redirects, uses no proxy, unpacks nothing and repeats nothing: an attempt is one
//! request. Cost: one spawned task and one socket per attempt, no thread; idle connections for 4 s.
//! Limits: HTTP/1.1 only; of an answer's head up to 400 KiB are read. How many attempts run at once is for the caller to
//! bound.

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::error::Error as StdError;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use actix::{Actor, ActorContext, Addr, AsyncContext, Context, Handler, Message};
use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use reqwest::header::{HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use reqwest::{
    Certificate, Client, ClientBuilder, Method, Request, Response, StatusCode, redirect, retry,
};
use serde_json::Value as Json;
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;
use url::Url;

use super::deadline::Deadlines;
use super::egress::{Blocked, EgressPolicy, PermittedAddresses};
use super::{ExecutorError, OwedReport, RunAttempt, Work};
use crate::causes::{causes, chain};
use crate::clock::{Clock, DurationMs, MonoMs, WallMs};
use crate::failpoints;
use crate::ids::{AttemptToken, TaskId};
use crate::limits::{
    COMPLETE_BY_MS, HEADER_BYTES_MAX, JSON_DEPTH_MAX, NOTE_BYTES_MAX, RESULT_BYTES_MAX,
};
use crate::rule::expr::{ANSWER, Expr, Fault};
use crate::task::duration::parse;
use crate::task::outcome::{FAILED_IF, Failure, Outcome};
use crate::watchdog::{ChildContext, DeathNotice, KillSwitch, NamedArbiter, Pulse};

/// How long an idle connection is kept. Many receivers close theirs after 5 s, and a request that crosses
/// such a close is lost.
const IDLE_KEPT: Duration = Duration::from_secs(4);
/// Longest wait for a connection, when the attempt has more time than that.
const CONNECT_WAIT_MAX: Duration = Duration::from_secs(10);
/// Longest time that a target is left alone because it asked for it.
const RETRY_AFTER_MAX: DurationMs = DurationMs::secs(3600);
/// How much of a refusing answer goes into the failure's message, in characters.
const EXCERPT_CHARS_MAX: usize = 200;
/// Shortest part of a header value that is looked for in an answer, in bytes.
const SECRET_BYTES_MIN: usize = 8;
/// A time limit that is met so late was slept through by the whole process.
pub(super) const AWAY: DurationMs = DurationMs::secs(1);
/// How long an answer is then still read for.
pub(super) const CATCH_UP_MAX: Duration = Duration::from_secs(1);
/// How often the actor shows that it lives.
const BEAT: Duration = Duration::from_millis(250);

/// A finished HTTP request.
#[derive(Clone)]
pub struct HttpCall {
    /// The method.
    pub method: Method,
    /// Where to: `http` or `https`.
    pub url: Url,
    /// Each is sent as it stands here. May be secret.
    pub headers: HeaderMap,
    /// The body.
    pub body: Bytes,
    /// The status codes that mean success. Empty: any 2xx.
    pub expect_status: Vec<u16>,
    /// What must be true of an answer with such a status: an expression over [`ANSWER`].
    pub success_if: Option<String>,
    /// A 202 without a time of its own means that the work is completed within this.
    pub complete_by: Option<DurationMs>,
    /// It asks for something, and its answer says whether that is so.
    pub question: Option<Conditions>,
}

/// What the answers to a question mean: expressions over [`ANSWER`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conditions {
    /// True of an answer that is the one waited for.
    pub done_if: String,
    /// True of an answer after which there is nothing to wait for.
    pub failed_if: Option<String>,
}

impl fmt::Debug for HttpCall {
    /// Without path, query, headers and body: they may be secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let host = self.url.host_str().unwrap_or_default();
        write!(f, "HttpCall({} {host}, {} B)", self.method, self.body.len())
    }
}

/// Whom pushes may reach, whom they trust, and how many may come at a time.
#[derive(Clone, Debug)]
pub struct PushOptions {
    /// Which addresses may be reached.
    pub egress: EgressPolicy,
    /// A PEM file with root certificates that are trusted beside the machine's.
    pub root_certificates: Option<PathBuf>,
    /// Most messages that wait in the actor's mailbox: as many as attempts may run, so that all can be started at one instant.
    pub mailbox_max: usize,
}

/// Runs HTTP attempts. Clones share the connections.
#[derive(Clone)]
pub struct HttpPush {
    io: Handle,
    parts: Arc<Parts>,
}

struct Parts {
    client: Client,
    clock: Clock,
    deadlines: Deadlines,
    egress: EgressPolicy,
    mailbox_max: usize,
}

impl HttpPush {
    /// An executor whose requests run on `io`. It needs a multi-thread runtime with timers and I/O:
    /// connections must not die with the arbiter that an attempt came from.
    ///
    /// # Errors
    /// When the root certificates can't be read, or the machine gives no client.
    pub fn new(io: Handle, clock: Clock, options: &PushOptions) -> Result<Self, ExecutorError> {
        let parts = Parts {
            client: client(options)?,
            deadlines: Deadlines::new(clock.clone()),
            clock,
            egress: options.egress,
            mailbox_max: options.mailbox_max,
        };
        Ok(Self {
            io,
            parts: Arc::new(parts),
        })
    }

    /// Takes an attempt, and the report that is owed for it, and returns at once.
    fn begin(&self, attempt: RunAttempt, owed: OwedReport) {
        let parts = Arc::clone(&self.parts);
        self.io.spawn(async move { parts.run(attempt, owed).await });
    }
}

/// The mailbox in front of [`HttpPush`].
///
/// What waits in it goes on if the actor hangs: who takes the report that is owed for an attempt has the attempt, and
/// all reports lie beside the mailbox, where they are taken back when the actor is told to leave.
pub struct HttpPushActor {
    push: HttpPush,
    waiting: Waiting,
    pulse: Arc<Pulse>,
    _thread: NamedArbiter,
    death: DeathNotice,
}

/// Reports that are owed for attempts in the mailbox.
#[derive(Clone, Default)]
struct Waiting(Arc<Mutex<HashMap<(TaskId, AttemptToken), OwedReport>>>);

impl Waiting {
    /// Puts the reports that are owed there.
    fn put(&self, pushes: Vec<(RunAttempt, OwedReport)>) -> Vec<RunAttempt> {
        let mut waiting = self.0.lock();
        let keep = |(attempt, owed): (RunAttempt, OwedReport)| {
            waiting.insert(attempt.which(), owed);
            attempt
        };
        pushes.into_iter().map(keep).collect()
    }

    /// What of these is there still.
    fn take(&self, which: impl Iterator<Item = (TaskId, AttemptToken)>) -> Vec<Option<OwedReport>> {
        let mut waiting = self.0.lock();
        which.map(|which| waiting.remove(&which)).collect()
    }

    /// Gives all of them back.
    fn give_back(&self) {
        let waiting = std::mem::take(&mut *self.0.lock());
        drop(waiting);
    }
}

/// The way to an [`HttpPushActor`].
#[derive(Clone)]
pub struct PushDoor {
    actor: Addr<HttpPushActor>,
    waiting: Waiting,
    kill: KillSwitch,
}

impl PushDoor {
    /// Whether there is an actor behind it.
    pub fn takes(&self) -> bool {
        self.actor.connected() && !self.kill.is_thrown()
    }

    /// Hands attempts over and returns at once. What the actor does not take is given back.
    pub fn run(&self, pushes: Vec<(RunAttempt, OwedReport)>) {
        let which: Vec<_> = pushes.iter().map(|(attempt, _)| attempt.which()).collect();
        let attempts = self.waiting.put(pushes);
        // Looked at after they were put there, so that they are given back here or by who throws the switch.
        if self.actor.try_send(RunPushes(attempts)).is_err() || self.kill.is_thrown() {
            drop(self.waiting.take(which.into_iter()));
        }
    }
}

/// Attempts whose reports wait beside the mailbox.
struct RunPushes(Vec<RunAttempt>);

impl Message for RunPushes {
    type Result = ();
}

/// Leave, so that the watchdog starts a successor.
struct Leave;

impl Message for Leave {
    type Result = ();
}

impl HttpPushActor {
    /// Starts an actor that runs what it is sent on `push`, on `thread`, which ends with it.
    pub fn start_on(push: HttpPush, child: ChildContext, thread: NamedArbiter) -> PushDoor {
        let (waiting, kill, on) = (Waiting::default(), child.kill.clone(), thread.handle());
        let actor = Self {
            push,
            waiting: waiting.clone(),
            pulse: child.pulse,
            _thread: thread,
            death: child.death,
        };
        let actor = Self::start_in_arbiter(&on, move |_| actor);
        kill.on_throw({
            let (actor, waiting) = (actor.clone(), waiting.clone());
            move || {
                actor.do_send(Leave);
                waiting.give_back();
            }
        });
        PushDoor {
            actor,
            waiting,
            kill,
        }
    }

    fn leave(&mut self, why: String, ctx: &mut Context<Self>) {
        self.death.last_words(why);
        ctx.stop();
    }
}

impl Drop for HttpPushActor {
    fn drop(&mut self) {
        self.waiting.give_back();
    }
}

impl Actor for HttpPushActor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        ctx.set_mailbox_capacity(self.push.parts.mailbox_max);
        ctx.run_interval(BEAT, |actor, _| {
            actor.pulse.beat(actor.push.parts.clock.now().mono);
        });
        if let Err(error) = failpoints::reach("push::started") {
            self.leave(error.to_string(), ctx);
        }
    }

    fn stopped(&mut self, _: &mut Self::Context) {
        if let Err(error) = failpoints::reach("push::stopped") {
            self.death.last_words(error.to_string());
        }
    }
}

impl Handler<Leave> for HttpPushActor {
    type Result = ();

    fn handle(&mut self, _: Leave, ctx: &mut Self::Context) {
        self.leave("asked to leave".to_owned(), ctx);
    }
}

impl Handler<RunPushes> for HttpPushActor {
    type Result = ();

    fn handle(&mut self, RunPushes(attempts): RunPushes, ctx: &mut Self::Context) {
        let reached = self
            .death
            .words()
            .hear(|| failpoints::reach("push::handler"));
        if let Err(error) = reached {
            return self.leave(error.to_string(), ctx);
        }
        let owed = self.waiting.take(attempts.iter().map(RunAttempt::which));
        for (attempt, owed) in attempts.into_iter().zip(owed) {
            // What was given back meanwhile is somebody else's.
            if let Some(owed) = owed {
                self.push.begin(attempt, owed);
            }
        }
    }
}

impl Parts {
    async fn run(&self, attempt: RunAttempt, mut owed: OwedReport) {
        if failpoints::reach("push::future").is_err() {
            return;
        }
        let Work::Http(call) = attempt.work else {
            // Only pushes are sent here; anything else is given back.
            return;
        };
        if let Err(outcome) = self.admit(&attempt.cancel, attempt.deadline, &call) {
            return owed.settle(outcome);
        }
        owed.start();
        let outcome = self.push(&call, &attempt.cancel, attempt.deadline).await;
        owed.settle(outcome);
    }

    /// The first that is ready wins, in this order; the others are dropped before the report goes out.
    async fn push(&self, call: &HttpCall, cancel: &CancellationToken, deadline: MonoMs) -> Outcome {
        let mut exchange = pin!(self.exchange(call));
        tokio::select! {
            biased;
            outcome = &mut exchange => return outcome,
            () = cancel.cancelled() => return Outcome::Cancelled,
            () = self.deadlines.reached(deadline) => {}
        }
        if self.clock.now().mono.since(deadline) < AWAY {
            return Outcome::TimedOut;
        }
        // The process stood still, and the answer may lie there, come in time and not read yet.
        tokio::select! {
            biased;
            outcome = exchange => outcome,
            () = cancel.cancelled() => Outcome::Cancelled,
            () = tokio::time::sleep(CATCH_UP_MAX) => Outcome::TimedOut,
        }
    }

    /// Whether the request may be sent at all; if not, what becomes of the attempt.
    fn admit(
        &self,
        cancel: &CancellationToken,
        deadline: MonoMs,
        call: &HttpCall,
    ) -> Result<(), Outcome> {
        if cancel.is_cancelled() {
            return Err(Outcome::Cancelled);
        }
        if self.clock.now().mono >= deadline {
            return Err(Outcome::GivenBack);
        }
        self.egress
            .check_literal(&call.url)
            .map_err(|blocked| Outcome::Failed(blocked_address(&blocked)))
    }

    async fn exchange(&self, call: &HttpCall) -> Outcome {
        match self.send(call).await {
            Ok(outcome) => outcome,
            Err(failure) => Outcome::Failed(failure),
        }
    }

    async fn send(&self, call: &HttpCall) -> Result<Outcome, Failure> {
        let mut request = Request::new(call.method.clone(), call.url.clone());
        *request.headers_mut() = call.headers.clone();
        *request.body_mut() = Some(call.body.clone().into());
        let mut response = self.client.execute(request).await.map_err(broken)?;
        let status = response.status();
        let retry_after = retry_after(response.headers(), self.clock.now().wall);
        if call.expects(status) {
            let body = match read(&mut response).await {
                Body::Whole(body) => Some(body),
                Body::TooLarge(_) => None,
                Body::Broken(_, error) => return Err(broken(error)),
            };
            let answer = (status, response.headers(), body.as_ref());
            let later = |failure| Failure {
                retry_after,
                ..failure
            };
            if let Some(complete_by) = call.taken_on(status, body.as_ref())? {
                return Ok(Outcome::Accepted { complete_by });
            }
            call.check(answer).map_err(later)?;
            if !call.is_answered(answer).map_err(later)? {
                let answer = call.told(status, body.as_ref());
                return Ok(Outcome::NotYet { answer });
            }
            return Ok(Outcome::Succeeded {
                result_dropped: body.is_none(),
                result: body.and_then(as_json),
            });
        }
        let failure = if status.is_redirection() {
            failure(
                "redirect",
                format!("{}; redirects are not followed", status.as_u16()),
            )
        } else {
            // What matters is the status: a body that breaks off takes nothing away from it.
            let body = match read(&mut response).await {
                Body::Whole(body) | Body::TooLarge(body) | Body::Broken(body, _) => body,
            };
            let message = format!("{} {}", status.as_u16(), excerpt(&body, &call.headers));
            failure(&format!("http_{}", status.as_u16()), message)
        };
        Err(Failure {
            retryable: status != StatusCode::GONE,
            retry_after,
            ..failure
        })
    }
}

impl HttpCall {
    fn expects(&self, status: StatusCode) -> bool {
        if self.expect_status.is_empty() {
            status.is_success()
        } else {
            self.expect_status.contains(&status.as_u16())
        }
    }

    /// By when the work is completed that this answer says was taken on; `None` if it says no such thing.
    fn taken_on(
        &self,
        status: StatusCode,
        body: Option<&Bytes>,
    ) -> Result<Option<DurationMs>, Failure> {
        if status != StatusCode::ACCEPTED || self.question.is_some() {
            return Ok(None);
        }
        let body = body.and_then(|body| json_of(body.trim_ascii()));
        let said = body.as_ref().and_then(|body| body.get("complete_by"));
        let Some(said) = said.filter(|said| !said.is_null()) else {
            return Ok(self.complete_by);
        };
        let length = said.as_str().and_then(|text| parse(text).ok());
        let length = length.filter(|length| COMPLETE_BY_MS.contains(&length.0));
        // It is not done, and nobody knows when it will be.
        let unclear = || Failure {
            in_doubt: true,
            ..failure(
                "protocol",
                "complete_by of the answer is no duration from PT0.001S to P30D".to_owned(),
            )
        };
        length.map(Some).ok_or_else(unclear)
    }

    /// Whether `success_if` is true of an answer.
    fn check(&self, answer @ (status, _, body): Given<'_>) -> Result<(), Failure> {
        match &self.success_if {
            Some(source) if !self.holds("success_if", source, answer)? => {
                let message = format!("success_if is false: {}", self.told(status, body));
                Err(failure("condition_false", message))
            }
            _ => Ok(()),
        }
    }

    /// Whether an answer is the one that is waited for: always, unless it is asked for one.
    fn is_answered(&self, answer @ (status, _, body): Given<'_>) -> Result<bool, Failure> {
        let Some(Conditions { done_if, failed_if }) = &self.question else {
            return Ok(true);
        };
        if let Some(source) = failed_if
            && self.holds("failed_if", source, answer)?
        {
            let message = format!("failed_if is true: {}", self.told(status, body));
            return Err(Failure {
                retryable: false,
                ..failure(FAILED_IF, message)
            });
        }
        self.holds("done_if", done_if, answer)
    }

    /// An answer in short, for people.
    fn told(&self, status: StatusCode, body: Option<&Bytes>) -> String {
        let body = excerpt(body.map_or(b"", |body| body), &self.headers);
        format!("{} {body}", status.as_u16())
    }

    /// Whether an expression is true of an answer.
    fn holds(
        &self,
        name: &str,
        source: &str,
        (status, headers, body): Given<'_>,
    ) -> Result<bool, Failure> {
        // It was read when it was given; only a version with another language could refuse it now.
        let expr = Expr::shared(source, ANSWER).map_err(|flaw| Failure {
            retryable: false,
            ..failure("condition_error", format!("{name}: {flaw}"))
        })?;
        let holds = expr.holds(|name| match (name, body) {
            ("status", _) => Ok(status.as_u16().into()),
            ("headers", _) => Ok(headers_as_json(headers)),
            (_, Some(body)) => Ok(body_as_json(body)),
            (name, None) => Err(Fault::TooLarge {
                name: name.to_owned(),
            }),
        });
        // It may have been done: the receiver's answer is not one that the condition can judge.
        holds.map_err(|fault| {
            let fault = excerpt(fault.to_string().as_bytes(), &self.headers);
            Failure {
                in_doubt: true,
                ..failure("condition_error", format!("{name}: {fault}"))
            }
        })
    }
}

/// An answer: its body is `None` when it was too large.
type Given<'a> = (StatusCode, &'a HeaderMap, Option<&'a Bytes>);

/// Headers as an object of texts; one that stands there more than once is joined by commas.
fn headers_as_json(headers: &HeaderMap) -> Json {
    let text = |name: &HeaderName| {
        let values = headers.get_all(name).into_iter();
        let values: Vec<_> = values
            .map(|value| String::from_utf8_lossy(value.as_bytes()))
            .collect();
        values.join(", ")
    };
    let fields = headers.keys();
    fields
        .map(|name| (name.as_str().to_owned(), text(name).into()))
        .collect::<serde_json::Map<_, _>>()
        .into()
}

/// A body's JSON; else its text, and nothing if it is empty.
fn body_as_json(body: &Bytes) -> Json {
    let text = body.trim_ascii();
    if text.is_empty() {
        return Json::Null;
    }
    json_of(text).unwrap_or_else(|| String::from_utf8_lossy(text).into())
}

fn client(options: &PushOptions) -> Result<Client, ExecutorError> {
    // An error says that a provider is installed already, which is as good.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let trusted = match &options.root_certificates {
        None => Vec::new(),
        Some(path) => certificates(path).map_err(|source| ExecutorError::RootCertificates {
            path: path.clone(),
            source,
        })?,
    };
    let client = |builder: ClientBuilder| {
        builder
            .http1_only()
            .no_proxy()
            .redirect(redirect::Policy::none())
            .retry(retry::never())
            .referer(false)
            .no_gzip()
            .no_brotli()
            .no_zstd()
            .no_deflate()
            .tcp_nodelay(true)
            .connect_timeout(CONNECT_WAIT_MAX)
            .pool_idle_timeout(IDLE_KEPT)
            .dns_resolver(Arc::new(PermittedAddresses(options.egress)))
            .build()
    };
    // A machine without root certificates can push over plain HTTP all the same, and to whom the file says: all else
    // fails with `tls`.
    client(Client::builder().tls_certs_merge(trusted.clone()))
        .or_else(|error| {
            tracing::warn!(error = %chain(&error), "no usable root certificates of the machine, https targets will fail");
            client(Client::builder().tls_certs_only(trusted))
        })
        .map_err(ExecutorError::HttpClient)
}

/// The certificates of a PEM file; one at least.
fn certificates(path: &Path) -> io::Result<Vec<Certificate>> {
    let odd = |why: String| io::Error::new(io::ErrorKind::InvalidData, why);
    let found = Certificate::from_pem_bundle(&std::fs::read(path)?);
    let found = found.map_err(|error| odd(chain(&error).to_string()))?;
    match found.is_empty() {
        true => Err(odd("there is no certificate in it".to_owned())),
        false => Ok(found),
    }
}

/// A task's own headers, as they are sent.
///
/// # Errors
/// When one of them can't be; its value is not told.
pub fn header_map(pairs: &[(String, String)]) -> Result<HeaderMap, Failure> {
    // With room for those that every push has.
    let mut headers = HeaderMap::with_capacity(pairs.len() + 8);
    for (name, value) in pairs {
        let (Ok(name), Ok(value)) = (
            HeaderName::from_bytes(name.as_bytes()),
            HeaderValue::from_str(value),
        ) else {
            let message = format!("the header {name:?} cannot be sent");
            return Err(Failure {
                retryable: false,
                ..failure("protocol", message)
            });
        };
        headers.append(name, value);
    }
    Ok(headers)
}

/// What could be read of an answer's body, never more than a result may have.
enum Body {
    Whole(Bytes),
    TooLarge(Bytes),
    Broken(Bytes, reqwest::Error),
}

/// Reads the body up to the limit. When it goes on beyond that, dropping `response` closes the connection.
async fn read(response: &mut Response) -> Body {
    let mut body = BytesMut::new();
    loop {
        match response.chunk().await {
            Ok(Some(chunk)) => {
                let room = RESULT_BYTES_MAX - body.len();
                body.extend_from_slice(&chunk[..chunk.len().min(room)]);
                if chunk.len() > room {
                    return Body::TooLarge(body.freeze());
                }
            }
            Ok(None) => return Body::Whole(body.freeze()),
            Err(error) => return Body::Broken(body.freeze(), error),
        }
    }
}

/// `body` without the white space around it, if it is JSON that we can keep.
pub(super) fn as_json(body: Bytes) -> Option<Bytes> {
    let text = body.trim_ascii();
    json_of(text).map(|_| body.slice_ref(text))
}

/// The value of a text that is JSON we can keep: a full parse also refuses lone surrogates and numbers out of range.
fn json_of(text: &[u8]) -> Option<Json> {
    if depth(text) > JSON_DEPTH_MAX {
        return None;
    }
    serde_json::from_slice(text).ok()
}

/// How deep arrays and objects are nested in `json`. Means nothing for a text that is not JSON.
fn depth(json: &[u8]) -> usize {
    let (mut depth, mut deepest) = (0_usize, 0);
    let (mut in_string, mut escaped) = (false, false);
    for byte in json {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = in_string,
            b'"' => in_string = !in_string,
            b'[' | b'{' if !in_string => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            b']' | b'}' if !in_string => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    deepest
}

/// The `Retry-After` of an answer that came at `now`: a number of seconds or an HTTP date.
fn retry_after(headers: &HeaderMap, now: WallMs) -> Option<DurationMs> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    let asked = if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        DurationMs(text.parse::<u64>().unwrap_or(u64::MAX).saturating_mul(1000))
    } else {
        // The HTTP date is the form of mail's date with the zone `GMT`.
        let date = jiff::fmt::rfc2822::DateTimeParser::new()
            .parse_timestamp(text)
            .ok()?;
        WallMs(date.as_millisecond()).since(now)
    };
    Some(asked.min(RETRY_AFTER_MAX))
}

/// The beginning of a refusing answer, without what a careless receiver echoes of our headers.
fn excerpt(body: &[u8], headers: &HeaderMap) -> String {
    // Long enough that a header value within the excerpt is never seen cut in two.
    let seen = &body[..body.len().min(4 * EXCERPT_CHARS_MAX + HEADER_BYTES_MAX)];
    let values = headers.values();
    let values = values.filter_map(|value| std::str::from_utf8(value.as_bytes()).ok());
    let text = without_secrets(String::from_utf8_lossy(seen).into_owned(), values);
    text.chars().take(EXCERPT_CHARS_MAX).collect()
}

/// `text` without these values.
pub(super) fn without_secrets<'a>(
    mut text: String,
    values: impl Iterator<Item = &'a str>,
) -> String {
    for value in values {
        // First as a whole, then the token of `Bearer <token>`.
        for secret in std::iter::once(value).chain(value.split_whitespace()) {
            if secret.len() >= SECRET_BYTES_MIN && text.contains(secret) {
                text = text.replace(secret, "***");
            }
        }
    }
    text
}

/// The failure behind an exchange that broke off.
fn broken(error: reqwest::Error) -> Failure {
    let error = error.without_url();
    if let Some(blocked) = causes(&error).find_map(|cause| cause.downcast_ref::<Blocked>()) {
        return blocked_address(blocked);
    }
    let by_tls = |cause: &(dyn StdError + 'static)| {
        let cut = |io: &io::Error| error.is_connect() && io.kind() == io::ErrorKind::UnexpectedEof;
        cause.is::<rustls::Error>() || cause.downcast_ref().is_some_and(cut)
    };
    let code = if error.is_dns() {
        "dns"
    } else if causes(&error).any(by_tls) {
        "tls"
    } else if error.is_connect() {
        "connect"
    } else {
        "protocol"
    };
    Failure {
        // From here on the request may have been read, whatever became of the answer.
        in_doubt: code == "protocol",
        ..failure(code, chain(&error))
    }
}

fn blocked_address(blocked: &Blocked) -> Failure {
    Failure {
        retryable: false,
        ..failure(
            "blocked_address",
            format!("{blocked}; [push] allow_private = true allows it"),
        )
    }
}

/// A retryable failure. The message is made fit for keeping.
pub(super) fn failure(code: &str, message: String) -> Failure {
    let visible = |c: char| if c.is_control() { ' ' } else { c };
    let mut message: String = message.trim().chars().map(visible).collect();
    message.truncate(message.floor_char_boundary(NOTE_BYTES_MAX));
    Failure {
        code: code.to_owned(),
        message,
        retryable: true,
        retry_after: None,
        in_doubt: false,
    }
}

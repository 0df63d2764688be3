//! What is done when a task is due, in and out. An HTTP action is checked here once and for all: whoever sends it
//! later need not ask again whether a header could break out of its line.

use serde::Serialize;
use url::Url;
use utoipa::ToSchema;

use crate::clock::DurationMs;
use crate::limits;
use crate::rule::expr::{self, Expr};
use crate::task::spec::{OnNoAnswer, Poll, Verify};
use crate::task::{Action, CommandAction, HttpAction};
use crate::wire::decode::{NO_FIELDS, Node, Object, Shape, word_of};
use crate::wire::task_out::Map;
use crate::wire::time::Length;

const KINDS: &[&str] = &[
    "http",
    "pull",
    "handler",
    "command",
    "poll",
    "complete_only",
    "none",
];
const ACTION: Shape = Shape {
    fields: KINDS,
    not_built: &[],
};
const HTTP: Shape = Shape {
    fields: &[
        "url",
        "method",
        "headers",
        "expect_status",
        "success_if",
        "complete_by",
    ],
    not_built: &[],
};
const QUESTION: Shape = Shape {
    fields: &["url", "method", "headers", "expect_status", "success_if"],
    not_built: &[],
};
const POLL: Shape = Shape {
    fields: &["http", "every", "for", "done_if", "failed_if"],
    not_built: &[],
};
const VERIFY: Shape = Shape {
    fields: &["http", "done_if", "failed_if", "on_no_answer"],
    not_built: &[],
};
const ON_NO_ANSWER: [(&str, OnNoAnswer); 3] = [
    ("retry", OnNoAnswer::Retry),
    ("hold", OnNoAnswer::Hold),
    ("dead", OnNoAnswer::Dead),
];
/// From one question to the next, unless it is said.
const POLL_EVERY: DurationMs = DurationMs::secs(10);
const HANDLER: Shape = Shape {
    fields: &["name"],
    not_built: &[],
};

const COMMAND: Shape = Shape {
    fields: &["program", "args", "env", "cwd"],
    not_built: &[],
};

const METHODS: [(&str, &str); 6] = [
    ("POST", "POST"),
    ("GET", "GET"),
    ("PUT", "PUT"),
    ("PATCH", "PATCH"),
    ("DELETE", "DELETE"),
    ("HEAD", "HEAD"),
];
/// Most statuses that mean success.
const STATUSES_MAX: usize = 64;
/// Longest name of a handler, in bytes.
const HANDLER_NAME_BYTES_MAX: usize = 128;

/// Names of environment variables that are not a task's to set, begin with this.
const ENV_PREFIX_NOT_THEIRS: &str = "DUETIME_";

/// Headers of a connection, of the message's framing, and those that we send.
const HEADERS_NOT_THEIRS: [&str; 13] = [
    "connection",
    "keep-alive",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "http2-settings",
    "host",
    "content-length",
    "expect",
    "traceparent",
    "tracestate",
    "user-agent",
];
const HEADER_PREFIXES_NOT_THEIRS: [&str; 3] = ["proxy-", "webhook-", "duetime-"];

/// Reads an action: exactly one kind.
pub(super) fn action(node: Node<'_, '_>) -> Option<Action> {
    let body = node.object(&ACTION)?;
    let kind = body.one_of(KINDS)?;
    body.required(kind, |node| match kind {
        "http" => http(node).map(Action::Http),
        "poll" => poll(node).map(|poll| Action::Poll(Box::new(poll))),
        "complete_only" => node.object(&NO_FIELDS).map(|_| Action::CompleteOnly),
        "handler" => {
            let handler = node.object(&HANDLER)?;
            let name = handler.required("name", |node| node.line(HANDLER_NAME_BYTES_MAX))?;
            Some(Action::Handler {
                name: name.into_owned(),
            })
        }
        "command" => command(node).map(Action::Command),
        "pull" => node.object(&NO_FIELDS).map(|_| Action::Pull),
        _ => node.object(&NO_FIELDS).map(|_| Action::None),
    })
}

fn poll(node: Node<'_, '_>) -> Option<Poll> {
    let body = node.object(&POLL)?;
    let http = body.required("http", question);
    let every = body.optional("every", |node| node.length(limits::POLL_EVERY_MS));
    let within = body.optional("for", |node| node.length(1..=limits::MAX_DELAY.0));
    let done_if = body.required("done_if", condition);
    let failed_if = body.optional("failed_if", condition);
    Some(Poll {
        http: http?,
        every: every.unwrap_or(POLL_EVERY),
        within,
        done_if: done_if?,
        failed_if,
    })
}

/// Reads what is asked when nobody knows whether it was done.
pub(super) fn verify(node: Node<'_, '_>) -> Option<Box<Verify>> {
    let body = node.object(&VERIFY)?;
    let http = body.required("http", question);
    let done_if = body.required("done_if", condition);
    let failed_if = body.optional("failed_if", condition);
    let on_no_answer = body.optional("on_no_answer", |node| node.word(&ON_NO_ANSWER));
    Some(Box::new(Verify {
        http: http?,
        done_if: done_if?,
        failed_if,
        on_no_answer: on_no_answer.unwrap_or_default(),
    }))
}

/// Reads a request that asks for something, which is not to do something.
pub(super) fn question(node: Node<'_, '_>) -> Option<HttpAction> {
    request(&node.object(&QUESTION)?, "GET")
}

/// Reads a request that tells something.
pub(super) fn report(node: Node<'_, '_>) -> Option<HttpAction> {
    request(&node.object(&QUESTION)?, "POST")
}

fn http(node: Node<'_, '_>) -> Option<HttpAction> {
    let body = node.object(&HTTP)?;
    let complete_by = body.optional("complete_by", |node| node.length(limits::COMPLETE_BY_MS));
    Some(HttpAction {
        complete_by,
        ..request(&body, "POST")?
    })
}

/// What every request has; `method` is that of one which names none.
fn request(body: &Object<'_, '_>, method: &str) -> Option<HttpAction> {
    let url = body.required("url", url);
    let method = body
        .optional("method", |node| node.word(&METHODS))
        .unwrap_or(method);
    let headers = body.optional("headers", headers).unwrap_or_default();
    let expect_status = body.optional("expect_status", |node| {
        node.list(STATUSES_MAX, |node| {
            node.whole(200..=599).map(|status| status as u16)
        })
    });
    let success_if = body.optional("success_if", condition);
    Some(HttpAction {
        url: url?,
        method: method.to_owned(),
        headers,
        expect_status: expect_status.unwrap_or_default(),
        success_if,
        complete_by: None,
    })
}

fn command(node: Node<'_, '_>) -> Option<CommandAction> {
    let body = node.object(&COMMAND)?;
    let program = body.required("program", |node| {
        let program = node.line(limits::PATH_BYTES_MAX)?;
        let absolute = program.starts_with('/') && !program.split('/').any(|step| step == "..");
        if !absolute && program.contains('/') {
            let detail = "must be an absolute path without `..`, or a bare name";
            return node.refuse("invalid_path", detail);
        }
        Some(program.into_owned())
    });
    let args = body.optional("args", |node| {
        let args = node.list(limits::COMMAND_ARGS_MAX, |node| node.text_without_nul())?;
        let bytes = args.iter().map(String::len).sum();
        within(node, bytes, limits::COMMAND_BYTES_MAX)?;
        Some(args)
    });
    let env = body.optional("env", |node| {
        let env = node.entries(limits::COMMAND_ENV_MAX, |name, node| {
            if let Some(flaw) = env_name_flaw(name) {
                return node.refuse("invalid_name", flaw);
            }
            Some((name.to_owned(), node.text_without_nul()?))
        })?;
        let bytes = env.iter().map(|(name, value)| name.len() + value.len());
        within(node, bytes.sum(), limits::COMMAND_BYTES_MAX)?;
        Some(env)
    });
    let cwd = body.optional("cwd", |node| {
        let cwd = node.line(limits::PATH_BYTES_MAX)?;
        if !cwd.starts_with('/') || cwd.split('/').any(|step| step == "..") {
            return node.refuse("invalid_path", "must be an absolute path without `..`");
        }
        Some(cwd.into_owned())
    });
    Some(CommandAction {
        program: program?,
        args: args.unwrap_or_default(),
        env: env.unwrap_or_default(),
        cwd,
    })
}

fn within(node: Node<'_, '_>, bytes: usize, bytes_max: usize) -> Option<()> {
    if bytes > bytes_max {
        let detail = format!("are {bytes} bytes long in all, at most {bytes_max} are allowed");
        return node.refuse("too_long", detail);
    }
    Some(())
}

fn env_name_flaw(name: &str) -> Option<&'static str> {
    let is_letter = |byte: u8| byte.is_ascii_alphabetic() || byte == b'_';
    let mut bytes = name.bytes();
    let is_name = bytes.next().is_some_and(is_letter)
        && bytes.all(|byte| is_letter(byte) || byte.is_ascii_digit());
    if !is_name {
        Some("is no name of a variable: letters, digits and _ only, and no digit first")
    } else if name.starts_with(ENV_PREFIX_NOT_THEIRS) {
        Some("must not be given: names that begin with DUETIME_ are set by us")
    } else {
        None
    }
}

/// An expression over an answer, as it was written.
pub(super) fn condition(node: Node<'_, '_>) -> Option<String> {
    expression(node, expr::ANSWER)
}

/// An expression that may use these names, as it was written.
pub(super) fn expression(node: Node<'_, '_>, names: expr::Names) -> Option<String> {
    let source = node.text()?;
    match Expr::shared(&source, names) {
        Ok(_) => Some(source.into_owned()),
        Err(flaw) => node.refuse("invalid_expression", flaw.to_string()),
    }
}

/// A URL as it was written, without its fragment, which is never sent.
fn url(node: Node<'_, '_>) -> Option<String> {
    let text = node.text()?;
    let (sent, _) = text.split_once('#').unwrap_or((&text, ""));
    match url_flaw(sent) {
        None => Some(sent.to_owned()),
        Some(flaw) => node.refuse("invalid_url", flaw),
    }
}

/// What is wrong with a URL. The parser is a browser's, which repairs what it can (`http:///x`, `http:\\x`, line
/// breaks); what would be repaired is refused, so that nobody's mistake becomes somebody's request.
fn url_flaw(url: &str) -> Option<String> {
    if url.len() > limits::URL_BYTES_MAX {
        return Some(format!(
            "is {} bytes long, at most {} are allowed",
            url.len(),
            limits::URL_BYTES_MAX
        ));
    }
    let (scheme, rest) = url.split_once("://").unwrap_or_default();
    if !scheme.eq_ignore_ascii_case("http") && !scheme.eq_ignore_ascii_case("https") {
        return Some("must begin with http:// or https://".to_owned());
    }
    if url
        .chars()
        .any(|c| c.is_control() || c.is_whitespace() || c == '\\')
    {
        return Some("must not contain spaces, control characters or backslashes".to_owned());
    }
    let authority = rest.split(['/', '?']).next().unwrap_or_default();
    if authority.is_empty() || authority.starts_with(':') {
        return Some("must name a host".to_owned());
    }
    if authority.contains('@') {
        return Some("must not carry a user name or password; send a header instead".to_owned());
    }
    match Url::parse(url) {
        Ok(parsed) if parsed.port() == Some(0) => Some("must not name port 0".to_owned()),
        Ok(parsed) if parsed.host_str().is_none_or(str::is_empty) => {
            Some("must name a host".to_owned())
        }
        Ok(_) => None,
        Err(error) => Some(format!("is not a URL: {error}")),
    }
}

fn headers(node: Node<'_, '_>) -> Option<Vec<(String, String)>> {
    let mut names: Vec<String> = Vec::new();
    let mut bytes = 0;
    let headers = node.entries(limits::HEADERS_MAX, |name, node| {
        let value = header_value(node)?;
        if let Some(flaw) = header_name_flaw(name) {
            return node.refuse("invalid_header", flaw);
        }
        let lower = name.to_ascii_lowercase();
        if names.contains(&lower) {
            return node.refuse("duplicate_field", "stands there twice, in other letters");
        }
        names.push(lower);
        bytes += name.len() + value.len();
        Some((name.to_owned(), value))
    })?;
    if bytes > limits::HEADER_BYTES_MAX {
        let detail = format!(
            "are {bytes} bytes long in all, at most {} are allowed",
            limits::HEADER_BYTES_MAX
        );
        return node.refuse("too_long", detail);
    }
    Some(headers)
}

fn header_name_flaw(name: &str) -> Option<&'static str> {
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    let is_name = |known: &&str| name.eq_ignore_ascii_case(known);
    let begins_with = |prefix: &&str| {
        let begin = name.as_bytes().get(..prefix.len());
        begin.is_some_and(|begin| begin.eq_ignore_ascii_case(prefix.as_bytes()))
    };
    if name.is_empty() || !name.bytes().all(is_token) {
        Some("is no header name: letters, digits and -_.!#$%&'*+^`|~ only")
    } else if HEADERS_NOT_THEIRS.iter().any(is_name) {
        Some("must not be given: it belongs to the connection, or is sent by us")
    } else if HEADER_PREFIXES_NOT_THEIRS.iter().any(begins_with) {
        Some(
            "must not be given: names that begin with proxy-, webhook- or duetime- are not yours to send",
        )
    } else {
        None
    }
}

fn header_value(node: Node<'_, '_>) -> Option<String> {
    let value = node.text()?;
    if value
        .bytes()
        .any(|byte| byte.is_ascii_control() && byte != b'\t')
    {
        return node.refuse(
            "control_character",
            "must not contain line breaks or other control characters",
        );
    }
    Some(value.into_owned())
}

/// What is done when a task is due: exactly one kind.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Action)]
#[serde(rename_all = "snake_case")]
pub enum ActionBody<'a> {
    /// Push to a URL.
    Http(HttpBody<'a>),
    /// Wait for an outside worker to lease it.
    Pull {},
    /// Run a handler of the embedding process.
    Handler {
        /// The name it was registered under.
        #[schema(value_type = String)]
        name: &'a str,
    },
    /// Run a program on the service's machine, where its configuration allows it.
    Command(CommandBody<'a>),
    /// Ask an outside system every so often, until a condition over its answer holds.
    Poll(PollBody<'a>),
    /// Wait for somebody outside to complete it, or to fail it; `timeouts.total` from the due time on is the end.
    CompleteOnly {},
    /// End as succeeded when due.
    None {},
}

/// A program that is run in a process group of its own. It gets the attempt as JSON on standard input, as a push does,
/// and what it is about in `DUETIME_…` variables. Exit code 0 is success, and what it wrote to standard output becomes
/// `result`: JSON as it is, anything else as a text; more than 64 KiB are left out, with a flag. Any other code is the
/// failure `exit_<code>`, a signal `signal_<number>`, with the end of what it wrote to standard error. When the
/// attempt's time is up it gets SIGTERM, and after the grace SIGKILL, as does all that it has started. Nothing of it is
/// left when the attempt is over.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = CommandAction)]
pub struct CommandBody<'a> {
    /// An absolute path, or a bare name that is looked for in the service's `PATH`.
    #[schema(value_type = String, example = "/opt/shop/bin/close-order", max_length = 4096)]
    program: &'a str,
    /// Its arguments: at most 128, and 16 KiB in all. No shell reads them.
    #[schema(value_type = Vec<String>, required = false, max_items = 128)]
    args: &'a [String],
    /// Environment variables: at most 64, and 16 KiB in all; names that begin with `DUETIME_` are ours.
    #[schema(value_type = std::collections::HashMap<String, String>, required = false)]
    env: Map<'a, String>,
    /// The directory to run in, absolute. Default `/`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, nullable = false, max_length = 4096, example = "/srv/shop")]
    cwd: Option<&'a str>,
}

/// Asked again and again. An answer that says "not yet" uses no attempt; an answer that fails, or has a status that is not
/// expected, uses one. When the time is over it is asked once more, and then it is dead.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Poll)]
pub struct PollBody<'a> {
    /// The question. Its method is `GET` unless it says otherwise, and then it has no body; it takes no `complete_by`.
    http: HttpBody<'a>,
    /// From one answer to the next question: 0.1 s to a day. Default `PT10S`.
    #[schema(required = false)]
    every: Length,
    /// From the due time to the last question. Without it `timeouts.total` counts, else `PT5M`.
    #[serde(rename = "for", skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    within: Option<Length>,
    /// What is true of the answer that ends it, which is its `result`: a CEL expression as in `success_if`.
    #[schema(value_type = String, max_length = 1024, example = "body.status == \"done\"")]
    done_if: &'a str,
    /// What is true of an answer that ends it as failed; asked first.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, nullable = false, max_length = 1024)]
    failed_if: Option<&'a str>,
}

/// Asked before anything is tried again whose outcome is not known: after a timeout, a lost lease, a crash. Perhaps it was
/// done, and only the answer was lost. Uses no attempt.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Verify)]
pub struct VerifyBody<'a> {
    /// The question. Its method is `GET` unless it says otherwise, and then it has no body; it takes no `complete_by`.
    http: HttpBody<'a>,
    /// What is true of an answer that says that it was done, which is then its `result`: a CEL expression as in
    /// `success_if`.
    #[schema(value_type = String, max_length = 1024, example = "body.closed")]
    done_if: &'a str,
    /// What is true of an answer that says that it failed for good; asked first. Any other answer says that it was not
    /// done, and it is tried again.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, nullable = false, max_length = 1024)]
    failed_if: Option<&'a str>,
    /// When there is no answer: `retry` (default; what may be attempted only once is dead), `hold` (paused for a person) or
    /// `dead`.
    #[schema(value_type = String, required = false)]
    on_no_answer: &'static str,
}

impl<'a> From<&'a Verify> for VerifyBody<'a> {
    fn from(verify: &'a Verify) -> Self {
        Self {
            http: (&verify.http).into(),
            done_if: &verify.done_if,
            failed_if: verify.failed_if.as_deref(),
            on_no_answer: word_of(&ON_NO_ANSWER, &verify.on_no_answer),
        }
    }
}

/// An HTTP request to a receiver.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = HttpAction)]
pub struct HttpBody<'a> {
    /// `http` or `https`, with a host, without user name and password.
    #[schema(value_type = String, example = "http://127.0.0.1:9000/close", max_length = 2048)]
    url: &'a str,
    /// `POST`, `GET`, `PUT`, `PATCH`, `DELETE` or `HEAD`.
    #[schema(value_type = String, default = "POST", required = false)]
    method: &'a str,
    /// At most 32, and 8 KiB in all.
    #[schema(value_type = std::collections::HashMap<String, String>, required = false)]
    headers: Map<'a, String>,
    /// Statuses that mean success; empty means 200 to 299.
    #[schema(value_type = Vec<u16>, required = false)]
    expect_status: &'a [u16],
    /// What must be true of an answer with such a status, else the attempt has failed (`condition_false`; without a
    /// value: `condition_error`): a CEL expression without loops over `status` (a number), `headers` (texts by
    /// lower-case name) and `body` (its JSON, or its text), each at most 8 KiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, nullable = false, max_length = 1024, example = "body.paid == true")]
    success_if: Option<&'a str>,
    /// The receiver may answer 202 and complete later: the body then has a `complete_url`, good for this attempt, once.
    /// It has so much time unless its answer has a `complete_by` of its own; then the attempt has timed out.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    complete_by: Option<Length>,
}

impl<'a> From<&'a HttpAction> for HttpBody<'a> {
    fn from(http: &'a HttpAction) -> Self {
        Self {
            url: &http.url,
            method: &http.method,
            headers: Map(&http.headers, String::as_str),
            expect_status: &http.expect_status,
            success_if: http.success_if.as_deref(),
            complete_by: http.complete_by.map(Length),
        }
    }
}

impl<'a> From<&'a Action> for ActionBody<'a> {
    fn from(action: &'a Action) -> Self {
        match action {
            Action::Http(http) => Self::Http(http.into()),
            Action::Poll(poll) => Self::Poll(PollBody {
                http: (&poll.http).into(),
                every: Length(poll.every),
                within: poll.within.map(Length),
                done_if: &poll.done_if,
                failed_if: poll.failed_if.as_deref(),
            }),
            Action::CompleteOnly => Self::CompleteOnly {},
            Action::Pull => Self::Pull {},
            Action::Handler { name } => Self::Handler { name },
            Action::Command(command) => Self::Command(CommandBody {
                program: &command.program,
                args: &command.args,
                env: Map(&command.env, String::as_str),
                cwd: command.cwd.as_deref(),
            }),
            Action::None => Self::None {},
        }
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test may")]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::wire::decode::decode;
    use crate::wire::tests::{properties, refused};

    fn http_with(field: &str, value: Value) -> Result<Action, crate::wire::problem::Problem> {
        let mut http = json!({"url": "http://127.0.0.1:9/x"});
        http[field] = value;
        decode(json!({ "http": http }).to_string().as_bytes(), action)
    }

    fn refusal(field: &str, value: Value) -> Vec<(String, &'static str)> {
        refused(http_with(field, value))
    }

    #[test]
    fn every_kind_is_read_and_shown_as_it_would_be_given() {
        let full = json!({"http": {"url": "https://a.example:8443/b?c=d", "method": "PUT",
            "headers": {"x-shop": "a\tü", "authorization": "Bearer x"}, "expect_status": [200, 404],
            "success_if": "status == 404 || body.ok"}});
        for json in [
            full,
            json!({"http": {"url": "http://a/b", "method": "POST", "headers": {}, "expect_status": [],
                "complete_by": "PT10M"}}),
            json!({"pull": {}}),
            json!({"poll": {"http": {"url": "http://a/b", "method": "GET", "headers": {}, "expect_status": []},
                "every": "PT0.5S", "for": "PT1H", "done_if": "body.ok", "failed_if": "status == 204"}}),
            json!({"complete_only": {}}),
            json!({"handler": {"name": "close"}}),
            json!({"command": {"program": "/bin/sh", "args": ["-c", "a\nb"], "env": {"REGION": "eu"}, "cwd": "/srv"}}),
            json!({"command": {"program": "rsync", "args": [], "env": {}}}),
            json!({"none": {}}),
        ] {
            let action = decode(json.to_string().as_bytes(), action).unwrap();
            assert_eq!(
                serde_json::to_value(ActionBody::from(&action)).unwrap(),
                json
            );
        }
        let Action::Http(short) = http_with("headers", json!(null)).unwrap() else {
            panic!("it is a push");
        };
        assert_eq!(
            (
                short.method.as_str(),
                short.headers.len(),
                short.expect_status.len()
            ),
            ("POST", 0, 0)
        );
    }

    #[test]
    fn no_kind_two_kinds_and_unknown_kinds_are_refused() {
        for (json, pointer, code) in [
            (json!({}), "", "missing"),
            (json!({"fax": {}}), "/fax", "unknown_field"),
            (json!({"none": {}, "pull": {}}), "/none", "conflict"),
            (json!({"none": null}), "", "missing"),
            (json!({"none": {"x": 1}}), "/none/x", "unknown_field"),
            (json!({"handler": {}}), "/handler/name", "missing"),
            (
                json!({"complete_only": {"x": 1}}),
                "/complete_only/x",
                "unknown_field",
            ),
            (json!({"http": {}}), "/http/url", "missing"),
        ] {
            let read = decode(json.to_string().as_bytes(), action);
            assert_eq!(refused(read), [(pointer.to_owned(), code)], "{json}");
        }
    }

    #[test]
    fn a_poll_needs_a_question_and_what_is_waited_for_and_has_the_usual_pace() {
        let read = |poll: Value| decode(json!({ "poll": poll }).to_string().as_bytes(), action);
        let http = json!({"url": "http://a/b"});
        let Action::Poll(short) = read(json!({"http": http, "done_if": "body.ok"})).unwrap() else {
            panic!("it is a poll");
        };
        assert_eq!((short.every, short.within), (DurationMs::secs(10), None));
        assert_eq!((short.http.method.as_str(), short.failed_if), ("GET", None));
        for (poll, wrong) in [
            (
                json!({}),
                vec![("/poll/http", "missing"), ("/poll/done_if", "missing")],
            ),
            (
                json!({"http": http, "done_if": "this is not (CEL", "failed_if": "nobody.knows"}),
                vec![
                    ("/poll/done_if", "invalid_expression"),
                    ("/poll/failed_if", "invalid_expression"),
                ],
            ),
            (
                json!({"http": http, "done_if": "body.ok", "every": "PT0S"}),
                vec![("/poll/every", "out_of_range")],
            ),
            (
                json!({"http": {"url": "http://a/b", "complete_by": "PT1M"}, "done_if": "body.ok"}),
                vec![("/poll/http/complete_by", "unknown_field")],
            ),
        ] {
            let wrong: Vec<_> = wrong
                .into_iter()
                .map(|(at, code)| (at.to_owned(), code))
                .collect();
            assert_eq!(refused(read(poll.clone())), wrong, "{poll}");
        }
    }

    #[test]
    fn a_command_is_a_path_or_a_name_and_sets_no_variable_of_ours() {
        let with = |field: &str, value: Value| {
            let mut command = json!({"program": "/bin/true"});
            command[field] = value;
            let json = json!({ "command": command }).to_string();
            refused(decode(json.as_bytes(), action))
        };
        let many = |n: usize| json!(vec!["x"; n]);
        for (field, value, place, code) in [
            ("program", json!(null), "/program", "missing"),
            ("program", json!(""), "/program", "empty"),
            ("program", json!("bin/sh"), "/program", "invalid_path"),
            ("program", json!("./sh"), "/program", "invalid_path"),
            (
                "program",
                json!("/opt/jobs/../../bin/sh"),
                "/program",
                "invalid_path",
            ),
            ("program", json!("a\u{0}"), "/program", "control_character"),
            ("args", json!("x"), "/args", "wrong_type"),
            ("args", json!([7]), "/args/0", "wrong_type"),
            ("args", json!(["a\u{0}b"]), "/args/0", "control_character"),
            ("args", many(129), "/args", "too_many"),
            (
                "args",
                json!(["x".repeat(16 * 1024 + 1)]),
                "/args",
                "too_long",
            ),
            ("env", json!({"1A": "x"}), "/env/1A", "invalid_name"),
            ("env", json!({"": "x"}), "/env/", "invalid_name"),
            ("env", json!({"A=B": "x"}), "/env/A=B", "invalid_name"),
            (
                "env",
                json!({"DUETIME_TOKEN": "1"}),
                "/env/DUETIME_TOKEN",
                "invalid_name",
            ),
            ("env", json!({"A": "\u{0}"}), "/env/A", "control_character"),
            ("env", json!({"A": 1}), "/env/A", "wrong_type"),
            (
                "env",
                json!({"A": "x".repeat(16 * 1024)}),
                "/env",
                "too_long",
            ),
            ("cwd", json!("srv"), "/cwd", "invalid_path"),
            ("cwd", json!("/srv/../etc"), "/cwd", "invalid_path"),
            ("shell", json!(true), "/shell", "unknown_field"),
        ] {
            let expected = vec![(format!("/command{place}"), code)];
            assert_eq!(with(field, value.clone()), expected, "{field}: {value}");
        }
        let full = json!({"command": {"program": "true", "args": many(128)}});
        assert!(decode(full.to_string().as_bytes(), action).is_ok());
    }

    #[test]
    fn a_condition_that_can_not_be_read_is_refused_with_its_place() {
        let refused = http_with("success_if", json!("status == 200 && boby.ok")).unwrap_err();
        let detail = serde_json::to_value(&refused).unwrap()["errors"][0]["detail"].clone();
        assert_eq!(
            detail,
            "at character 18: there is no name `boby`; there are status, headers, body"
        );
        for value in [
            json!("body.ok ="),
            json!(""),
            json!("x".repeat(1025)),
            json!("1"),
        ] {
            assert_eq!(
                refusal("success_if", value),
                [("/http/success_if".to_owned(), "invalid_expression")]
            );
        }
        let (pointer, code) = ("/http/success_if".to_owned(), "wrong_type");
        assert_eq!(refusal("success_if", json!(true)), [(pointer, code)]);
    }

    #[test]
    fn a_url_is_http_names_a_host_and_carries_no_credentials() {
        let long = format!("http://a/{}", "x".repeat(2048));
        for url in [
            "http:///x",
            "file:///etc/passwd",
            "not a url",
            "",
            "ftp://127.0.0.1/x",
            "javascript:alert(1)",
            "http://",
            "http:x",
            "http:/x/y",
            "http://:80/",
            "http://a:0/",
            "http://a:99999/",
            "http://u:p@a/",
            "http://@a/",
            "http://a/\nb",
            "http://a/ b",
            " http://a/",
            "http:\\\\a\\b",
            "http://a\\@b/",
            "http://[::1/",
            "http://?x",
            "http://#x",
            "//a/b",
            long.as_str(),
        ] {
            assert_eq!(
                refusal("url", json!(url)),
                [("/http/url".to_owned(), "invalid_url")],
                "{url:?}"
            );
        }
        assert_eq!(
            refusal("url", json!(7)),
            [("/http/url".to_owned(), "wrong_type")]
        );
        for (given, kept) in [
            ("http://127.0.0.1:9/x", "http://127.0.0.1:9/x"),
            ("HTTPS://Shop.Example", "HTTPS://Shop.Example"),
            ("http://[::1]:80/a?b=c@d#part", "http://[::1]:80/a?b=c@d"),
            ("http://bücher.example/ü", "http://bücher.example/ü"),
        ] {
            let Ok(Action::Http(http)) = http_with("url", json!(given)) else {
                panic!("{given} is refused");
            };
            assert_eq!(http.url, kept);
        }
    }

    #[test]
    fn headers_can_not_break_out_of_their_line_nor_be_ours() {
        let long_value = "v".repeat(9 * 1024);
        for (name, value, code) in [
            ("x-a", "b\r\nx-evil: 1", "control_character"),
            ("x-a", "b\nc", "control_character"),
            ("x-a", "b\0c", "control_character"),
            ("x-a", "b\u{7f}", "control_character"),
            ("x a", "b", "invalid_header"),
            ("", "b", "invalid_header"),
            ("x-ü", "b", "invalid_header"),
            ("x:a", "b", "invalid_header"),
            ("connection", "close", "invalid_header"),
            ("Transfer-Encoding", "chunked", "invalid_header"),
            ("content-length", "3", "invalid_header"),
            ("HOST", "evil", "invalid_header"),
            ("webhook-signature", "v1,x", "invalid_header"),
            ("Duetime-Attempt", "1", "invalid_header"),
            ("proxy-authorization", "x", "invalid_header"),
            ("user-agent", "x", "invalid_header"),
            ("traceparent", "x", "invalid_header"),
        ] {
            let pointer = format!("/http/headers/{name}");
            assert_eq!(
                refusal("headers", json!({ name: value })),
                [(pointer, code)],
                "{name:?}: {value:?}"
            );
        }
        for (headers, pointer, code) in [
            (json!({"x-a": 1}), "/http/headers/x-a", "wrong_type"),
            (json!({"a/b": "c"}), "/http/headers/a~1b", "invalid_header"),
            (
                json!({"X-A": "1", "x-a": "2"}),
                "/http/headers/x-a",
                "duplicate_field",
            ),
            (json!({"x-a": long_value}), "/http/headers", "too_long"),
            (json!([]), "/http/headers", "wrong_type"),
        ] {
            assert_eq!(refusal("headers", headers), [(pointer.to_owned(), code)]);
        }
        let many = |n: usize| {
            (0..n)
                .map(|i| (format!("x-{i}"), json!("v")))
                .collect::<serde_json::Map<_, _>>()
        };
        assert_eq!(
            refusal("headers", many(33).into()),
            [("/http/headers".to_owned(), "too_many")]
        );
        assert!(http_with("headers", many(32).into()).is_ok());
    }

    #[test]
    fn methods_and_statuses_are_those_of_http() {
        for (field, value, pointer, code) in [
            ("method", json!("post"), "/http/method", "unknown_value"),
            ("method", json!("CONNECT"), "/http/method", "unknown_value"),
            (
                "expect_status",
                json!([200, 99]),
                "/http/expect_status/1",
                "out_of_range",
            ),
            (
                "expect_status",
                json!(["2xx"]),
                "/http/expect_status/0",
                "wrong_type",
            ),
        ] {
            assert_eq!(refusal(field, value), [(pointer.to_owned(), code)]);
        }
    }

    #[test]
    fn the_documented_fields_are_those_that_are_read() {
        assert_eq!(properties::<HttpBody<'_>>(), HTTP.fields);
        assert_eq!(properties::<PollBody<'_>>(), POLL.fields);
        assert_eq!(properties::<VerifyBody<'_>>(), VERIFY.fields);
        assert_eq!(properties::<CommandBody<'_>>(), COMMAND.fields);
    }
}

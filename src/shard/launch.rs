//! From an attempt that starts now to the order its executor gets: the body and headers of `HTTP push, on the
//! wire`, and the attempt's deadline.

use std::fmt::Write as _;

use bytes::Bytes;
use reqwest::Method;
use reqwest::header::{CONTENT_TYPE, HeaderName, HeaderValue, USER_AGENT};
use serde::Serialize;
use serde_json::value::RawValue;
use tokio_util::sync::CancellationToken;
use url::Url;
use uuid::Uuid;

use crate::clock::Now;
use crate::executor::http_push::header_map;
use crate::executor::{CommandCall, Conditions, HandlerCall, HttpCall, RunAttempt, Work};
use crate::shard::completion::Completions;
use crate::shard::core::Launch;
use crate::task::guard::{Guard, GuardQuestion};
use crate::task::model::WaitingFor;
use crate::task::outcome::Failure;
use crate::task::spec::{Action, HttpAction, RawJson, StageName};

/// What a receiver gets as JSON.
#[derive(Serialize)]
struct PushBody<'a> {
    id: Uuid,
    topic: &'a str,
    key: Option<&'a str>,
    stage: Option<&'a str>,
    attempt: u32,
    token: u64,
    generation: u32,
    due_at: String,
    payload: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    checkpoint: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    complete_url: Option<String>,
}

/// The order for an executor.
pub fn attempt_of(
    launch: Launch,
    completions: &Completions,
    now: Now,
    cancel: CancellationToken,
) -> RunAttempt {
    let of_http = |action: &HttpAction, question: Option<Conditions>| {
        let url = completions.url_of(launch.task, launch.token);
        let url = url.filter(|_| action.complete_by.is_some());
        match http_call(&launch, action, url, now) {
            Ok(call) => Work::Http(HttpCall { question, ..call }),
            Err(failure) => Work::Unfit(failure),
        }
    };
    let action = action_of(&launch);
    let work = match (action, &launch.spec.verify) {
        _ if launch.question == Some(WaitingFor::Guard) => {
            match launch.spec.guard_at(launch.stage) {
                Some(Guard::Asks(question)) => of_http(&question.http, Some(conditions(question))),
                Some(Guard::If(_)) | None => unfit("its guard asks nothing"),
            }
        }
        (_, Some(verify)) if launch.question == Some(WaitingFor::Verify) => of_http(
            &verify.http,
            Some(Conditions {
                done_if: verify.done_if.clone(),
                failed_if: verify.failed_if.clone(),
            }),
        ),
        (Action::Http(action), _) => of_http(action, None),
        (Action::Poll(poll), _) => of_http(
            &poll.http,
            Some(Conditions {
                done_if: poll.done_if.clone(),
                failed_if: poll.failed_if.clone(),
            }),
        ),
        (Action::Handler { name }, _) => Work::Handler(HandlerCall {
            handler: name.clone(),
            topic: launch.topic.clone(),
            key: launch.key.clone(),
            generation: launch.generation,
            stage: stage_of(&launch).cloned(),
            attempt: launch.attempt,
            due_at: launch.due_at,
            payload: launch.spec.payload.clone(),
            checkpoint: launch.checkpoint.clone(),
            heartbeat: launch.spec.timeouts.heartbeat,
        }),
        (Action::Command(action), _) => Work::Command(CommandCall {
            action: action.clone(),
            variables: variables(&launch, now),
            input: body_of(&launch, None),
        }),
        (Action::Pull | Action::CompleteOnly | Action::None, _) => {
            unfit("this action is not run by an executor")
        }
    };
    RunAttempt {
        task: launch.task,
        token: launch.token,
        deadline: now.mono.after(launch.time_left),
        grace: launch.spec.timeouts.grace,
        cancel,
        work,
    }
}

/// What the answers to a guard's question mean, as those of any question.
fn conditions(question: &GuardQuestion) -> Conditions {
    Conditions {
        done_if: question
            .fire_if
            .clone()
            .unwrap_or_else(|| "true".to_owned()),
        failed_if: question.cancel_if.clone(),
    }
}

fn unfit(why: &str) -> Work {
    Work::Unfit(unreadable(why))
}

fn unreadable(why: &str) -> Failure {
    Failure {
        code: "protocol".to_owned(),
        message: why.to_owned(),
        retryable: false,
        retry_after: None,
        in_doubt: false,
    }
}

/// What a receiver, or a command on its standard input, is told of the attempt. A callback tells of another task, and
/// of nothing else.
fn body_of<'a>(launch: &'a Launch, complete_url: Option<String>) -> Bytes {
    if let (Some(_), Some(told)) = (launch.spec.callback_of, &launch.spec.payload) {
        return told.0.clone();
    }
    let raw = |json: &'a Option<RawJson>| -> Option<&'a RawValue> {
        serde_json::from_str(json.as_ref()?.as_str()).ok()
    };
    let body = PushBody {
        id: launch.task.uuid(),
        topic: launch.topic.as_str(),
        key: launch.key.as_ref().map(|key| key.as_str()),
        stage: stage_of(launch).map(StageName::as_str),
        attempt: launch.attempt.0,
        token: launch.token.0,
        generation: launch.generation,
        due_at: launch.due_at.to_string(),
        payload: raw(&launch.spec.payload),
        checkpoint: raw(&launch.checkpoint),
        complete_url,
    };
    // A struct of texts and numbers always becomes JSON.
    Bytes::from(serde_json::to_vec(&body).unwrap_or_default())
}

/// The same, but for the payload, as a command finds it in its environment.
fn variables(launch: &Launch, now: Now) -> Vec<(&'static str, String)> {
    let deadline = now.wall.after(launch.time_left);
    let mut variables = vec![
        ("DUETIME_TASK_ID", launch.task.to_string()),
        ("DUETIME_TOPIC", launch.topic.to_string()),
        ("DUETIME_ATTEMPT", launch.attempt.0.to_string()),
        ("DUETIME_TOKEN", launch.token.0.to_string()),
        ("DUETIME_GENERATION", launch.generation.to_string()),
        ("DUETIME_DUE_AT", launch.due_at.to_string()),
        ("DUETIME_DEADLINE", deadline.to_string()),
    ];
    let key = launch.key.as_ref();
    variables.extend(key.map(|key| ("DUETIME_KEY", key.to_string())));
    let stage = stage_of(launch);
    variables.extend(stage.map(|stage| ("DUETIME_STAGE", stage.to_string())));
    variables
}

fn http_call(
    launch: &Launch,
    action: &HttpAction,
    complete_url: Option<String>,
    now: Now,
) -> Result<HttpCall, Failure> {
    // What only asks for something has no body.
    let body = match action.method.as_str() {
        "GET" | "HEAD" if launch.question.is_some() || action_of(launch).poll().is_some() => {
            Bytes::new()
        }
        _ => body_of(launch, complete_url),
    };
    let mut headers = header_map(&action.headers)?;
    // All of these are printable ASCII.
    let mut set = |name: &'static str, value: String| {
        if let Ok(value) = HeaderValue::try_from(value) {
            headers.append(HeaderName::from_static(name), value);
        }
    };
    set("webhook-id", webhook_id(launch));
    set("webhook-timestamp", now.wall.0.div_euclid(1000).to_string());
    set("duetime-attempt", launch.attempt.0.to_string());
    set(
        "duetime-deadline",
        now.wall.after(launch.time_left).to_string(),
    );
    set("traceparent", traceparent(launch));
    headers.append(USER_AGENT, OUR_NAME);
    if !body.is_empty() && !headers.contains_key(CONTENT_TYPE) {
        headers.append(CONTENT_TYPE, JSON);
    }
    let method = Method::from_bytes(action.method.as_bytes());
    Ok(HttpCall {
        method: method.map_err(|_| unreadable("the method of this task can't be read"))?,
        url: Url::parse(&action.url)
            .map_err(|_| unreadable("the URL of this task can't be read"))?,
        headers,
        body,
        expect_status: action.expect_status.clone(),
        success_if: action.success_if.clone(),
        complete_by: action.complete_by,
        question: None,
    })
}

const JSON: HeaderValue = HeaderValue::from_static("application/json");
const OUR_NAME: HeaderValue =
    HeaderValue::from_static(concat!("duetime/", env!("CARGO_PKG_VERSION")));

fn stage_of(launch: &Launch) -> Option<&StageName> {
    let stage = launch.spec.stage_at(launch.stage);
    stage.map(|stage| &stage.name)
}

fn action_of(launch: &Launch) -> &Action {
    launch.spec.action_of(launch.stage, launch.escalated)
}

/// The same for every attempt of a generation and stage; the question of its guard has its own. The stage's place stays empty for a task without stages; one
/// that was escalated does something else there, and says so. What a header, or a reader of such ids, might take amiss
/// is written as in a URL.
fn webhook_id(launch: &Launch) -> String {
    let mut id = format!("{}.{}.", launch.task, launch.generation);
    for byte in stage_of(launch).map_or("", StageName::as_str).bytes() {
        if byte.is_ascii_alphanumeric() || b"-_".contains(&byte) {
            id.push(char::from(byte));
        } else {
            let _ = write!(id, "%{byte:02X}");
        }
    }
    if let Some(clock) = launch.escalated {
        let _ = write!(id, "~{}", clock.name());
    }
    // Else a receiver that drops repeats would take what fires for the question.
    if launch.question == Some(WaitingFor::Guard) {
        id.push_str("~guard");
    }
    id
}

/// W3C trace context: the task is the trace, each attempt a span of it.
fn traceparent(launch: &Launch) -> String {
    let span = launch.token.0
        ^ u64::from(launch.attempt.0).rotate_left(32)
        ^ launch.task.uuid().as_u128() as u64;
    format!(
        "00-{:032x}-{:016x}-01",
        launch.task.uuid().as_u128(),
        span.max(1)
    )
}

//! Who is told how a task has ended, in and out, and how that stands.

use serde::Serialize;
use utoipa::ToSchema;
use uuid::Uuid;

use crate::task::spec::OnEnd;
use crate::task::{State, Task};
use crate::wire::action::{self, HttpBody};
use crate::wire::decode::{Node, Shape};
use crate::wire::retry::{self, RetryBody};
use crate::wire::task_out::LastOutcomeOut;
use crate::wire::time::Time;

const ON_END: Shape = Shape {
    fields: &["http", "retry"],
    not_built: &[],
};

/// Reads who is told.
pub(super) fn on_end(node: Node<'_, '_>) -> Option<Box<OnEnd>> {
    let body = node.object(&ON_END)?;
    let http = body.required("http", action::report);
    let retry = body.optional("retry", retry::policy);
    Some(Box::new(OnEnd { http: http?, retry }))
}

/// Told how the task has ended, each time it ends. A task of its own does that, of the topic `<topic>.on_end`: with
/// retries, attempts and a log, given up as a dead letter, replayed like one. The body is the ended task: `id`, `topic`,
/// `key`, `state`, `generation`, `stage`, `attempts`, `dead_reason`, `last_outcome`, `result`, `due_at`, `created_at`,
/// `ended_at`, `by`, `why`, `tags`. The header `webhook-id` is the same for each attempt to tell of the same end.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = OnEnd)]
pub struct OnEndBody<'a> {
    /// What is sent. It takes no `complete_by`.
    http: HttpBody<'a>,
    /// Default: that of the topic `<topic>.on_end`, else a ladder of 1, 5, 10 and 30 minutes with 11 attempts.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    retry: Option<RetryBody<'a>>,
}

impl<'a> From<&'a OnEnd> for OnEndBody<'a> {
    fn from(OnEnd { http, retry }: &'a OnEnd) -> Self {
        Self {
            http: http.into(),
            retry: retry.as_ref().map(RetryBody::from),
        }
    }
}

/// How it stands with telling that a task has ended.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Callback)]
pub struct CallbackOut<'a> {
    /// The task that tells of it.
    task: Uuid,
    /// Its state: `succeeded` when it has arrived, `dead` when that was given up.
    #[schema(value_type = String)]
    state: &'static str,
    /// How often it was tried.
    attempts: u32,
    /// When it is tried next.
    next_attempt_at: Option<Time>,
    /// How the latest attempt ended.
    last_outcome: Option<LastOutcomeOut<'a>>,
}

impl<'a> From<&'a Task> for CallbackOut<'a> {
    fn from(callback: &'a Task) -> Self {
        let waits = matches!(callback.state, State::Pending | State::Retrying);
        Self {
            task: callback.id.uuid(),
            state: callback.state.name(),
            attempts: callback.attempts,
            next_attempt_at: waits.then_some(Time(callback.next.at)),
            last_outcome: callback.last_outcome.as_ref().map(LastOutcomeOut::from),
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

    fn read(json: &Value) -> Result<Box<OnEnd>, crate::wire::problem::Problem> {
        decode(json.to_string().as_bytes(), on_end)
    }

    #[test]
    fn it_is_shown_as_it_would_be_given() {
        let http = json!({"url": "https://a.example/b", "method": "PUT", "headers": {"x-shop": "a"},
            "expect_status": [204], "success_if": "status == 204"});
        for json in [
            json!({ "http": http }),
            json!({"http": http, "retry": {"fixed": "PT1S", "jitter": 0.0, "max_attempts": 3}}),
        ] {
            let on_end = read(&json).unwrap();
            let shown = serde_json::to_value(OnEndBody::from(&*on_end)).unwrap();
            assert_eq!(shown, json);
        }
        let short = read(&json!({"http": {"url": "http://a/b"}})).unwrap();
        assert_eq!(short.http.method, "POST");
    }

    #[test]
    fn what_it_can_not_be_is_refused_at_its_place() {
        for (json, pointer, code) in [
            (json!({}), "/http", "missing"),
            (json!("x"), "", "wrong_type"),
            (json!({"handler": {}}), "/handler", "unknown_field"),
            (
                json!({"http": {"url": "http://a/", "complete_by": "PT1M"}}),
                "/http/complete_by",
                "unknown_field",
            ),
            (
                json!({"http": {"url": "ftp://a/"}}),
                "/http/url",
                "invalid_url",
            ),
        ] {
            let first = refused(read(&json)).remove(0);
            assert_eq!(first, (pointer.to_owned(), code), "{json}");
        }
    }

    #[test]
    fn the_documented_fields_are_those_that_are_read() {
        assert_eq!(properties::<OnEndBody<'_>>(), ON_END.fields);
    }
}

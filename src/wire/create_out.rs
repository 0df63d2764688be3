//! A create as a client sends it: what [`task_in`](crate::wire::task_in) reads.

use serde::Serialize;
use serde_json::value::RawValue;

use crate::task::spec::{RawJson, TaskKey};
use crate::task::{NewTask, When};
use crate::wire::action::{ActionBody, VerifyBody};
use crate::wire::before_fire::GuardBody;
use crate::wire::clocks::TimeoutsBody;
use crate::wire::decode::word_of;
use crate::wire::on_end::OnEndBody;
use crate::wire::retry::RetryBody;
use crate::wire::stages::{self, StageBody};
use crate::wire::task_in::{CLASS, DELIVERY, ON_EXISTING};
use crate::wire::task_out::Map;
use crate::wire::time::{Length, Time};

/// JSON to be embedded as it came.
///
/// # Errors
/// When it is none.
pub fn raw(json: &RawJson) -> Result<&RawValue, serde_json::Error> {
    serde_json::from_str(json.as_str())
}

/// Body of `POST /v1/tasks`. What is not given is null, which is the same as absent.
#[derive(Debug, Serialize)]
pub struct CreateOut<'a> {
    topic: &'a str,
    key: Option<&'a str>,
    due_at: Option<Time>,
    delay: Option<Length>,
    payload: Option<&'a RawValue>,
    action: Option<ActionBody<'a>>,
    stages: Option<Vec<StageBody<'a>>>,
    verify: Option<VerifyBody<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    guard: Option<GuardBody<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    on_end: Option<OnEndBody<'a>>,
    retry: Option<RetryBody<'a>>,
    timeouts: TimeoutsBody<'a>,
    delivery: Option<&'static str>,
    class: Option<&'static str>,
    on_existing: Option<&'static str>,
    max_lateness: Option<Length>,
    tags: Map<'a, String>,
    facts: Option<&'a RawValue>,
}

impl<'a> CreateOut<'a> {
    /// Of a new task.
    ///
    /// # Errors
    /// When its payload or its facts are no JSON.
    pub fn new(new: &'a NewTask) -> Result<Self, serde_json::Error> {
        // All fields are named here, so that none that is added to it is left behind.
        let NewTask {
            topic,
            key,
            when,
            action,
            stages,
            payload,
            verify,
            guard,
            on_end,
            retry,
            timeouts,
            delivery,
            class,
            on_existing,
            max_lateness,
            tags,
            facts,
        } = new;
        // Stages have times of their own.
        let (due_at, delay) = match when.filter(|_| stages.is_none()) {
            Some(When::At(at) | When::Missed(at)) => (Some(Time(at)), None),
            Some(When::After(length)) => (None, Some(Length(length))),
            None => (None, None),
        };
        Ok(Self {
            topic: topic.as_str(),
            key: key.as_ref().map(TaskKey::as_str),
            due_at,
            delay,
            payload: payload.as_ref().map(raw).transpose()?,
            action: action.as_ref().map(ActionBody::from),
            stages: stages::shown(stages.as_ref()),
            verify: verify.as_deref().map(VerifyBody::from),
            guard: guard.as_ref().map(GuardBody::from),
            on_end: on_end.as_deref().map(OnEndBody::from),
            retry: retry.as_ref().map(RetryBody::from),
            timeouts: TimeoutsBody::from(timeouts),
            delivery: delivery.map(|delivery| word_of(&DELIVERY, &delivery)),
            class: class.map(|class| word_of(&CLASS, &class)),
            on_existing: on_existing.map(|then| word_of(&ON_EXISTING, &then)),
            max_lateness: max_lateness.map(Length),
            tags: Map(tags, String::as_str),
            facts: facts.as_ref().map(raw).transpose()?,
        })
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test may")]
mod tests {
    use super::*;
    use crate::task::TopicName;
    use crate::wire::task_in::create;
    use crate::wire::tests::WIDE;

    #[test]
    fn what_is_written_is_read_back_unchanged() {
        let topic = || TopicName::parse("orders").unwrap();
        let full = br#"{
            "topic": "order.unpaid", "key": "order-42", "delay": "PT30M", "payload": {"order_id": 1.50},
            "action": {"http": {"url": "http://127.0.0.1:9000/close", "method": "PUT", "headers": {"x-shop": "a"},
                "expect_status": [204], "success_if": "status == 204"}},
            "retry": {"exponential": {"base": "PT1S", "factor": 3, "cap": "PT1H", "jitter": 0.2}, "max_attempts": 10,
                "on": {"http_4xx": "dead"}},
            "timeouts": {"attempt": "PT10S", "total": "PT2H", "queue": {"after": "PT5M", "then": {"escalate": {"pull": {}}}}},
            "verify": {"http": {"url": "http://127.0.0.1:9000/state"}, "done_if": "body.closed", "on_no_answer": "hold"},
            "guard": {"http": {"url": "http://127.0.0.1:9000/paid"}, "fire_if": "!body.paid", "extend_by": "PT1M"},
            "on_end": {"http": {"url": "http://127.0.0.1:9000/ended"}, "retry": {"fixed": "PT5S"}},
            "delivery": "at_most_once", "class": "core", "on_existing": "keep_later",
            "max_lateness": "PT1M", "tags": {"region": "eu"}, "facts": {"vip": true}
        }"#;
        let dated =
            br#"{"topic": "t", "due_at": "2027-06-01T12:00:00.250Z", "action": {"none": {}},
            "retry": {"ladder": ["PT1S", "PT2S"], "max_attempts": 3}}"#;
        let staged =
            br#"{"topic": "t", "stages": [{"name": "a", "after": "PT1H", "if": "key == null", "guard": {"if": "false"}},
            {"name": "b", "after_previous": "PT1S", "action": {"none": {}}}]}"#;
        let all = [
            NewTask::new(topic()),
            create(staged, &WIDE).unwrap(),
            create(full, &WIDE).unwrap(),
            create(dated, &WIDE).unwrap(),
        ];
        for new in all {
            let text = serde_json::to_vec(&CreateOut::new(&new).unwrap()).unwrap();
            assert_eq!(create(&text, &WIDE), Ok(new));
        }
        let mut broken = NewTask::new(topic());
        broken.payload = Some(RawJson::from("{".to_owned()));
        assert!(CreateOut::new(&broken).is_err());
    }
}

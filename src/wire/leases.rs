//! Pull workers: `POST /v1/leases`, what a worker says of its lease, and the answers.

use serde::Serialize;
use serde_json::value::RawValue;
use utoipa::ToSchema;

use crate::clock::{DurationMs, WallMs};
use crate::ids::AttemptToken;
use crate::limits;
use crate::shard::query::TaskView;
use crate::task::TopicName;
use crate::task::history::ErrorNote;
use crate::task::retry::DELAY_MAX;
use crate::task::spec::RawJson;
use crate::wire::decode::{Node, Shape, decode};
use crate::wire::due::{self, InLimits};
use crate::wire::problem::Problem;
use crate::wire::task_in::topic_name;
use crate::wire::task_out::{TaskOut, embedded};
use crate::wire::time::{Length, Time};
use crate::wire::verbs::{self, ErrorBody};

/// Length of a lease that names none.
const LEASE_DEFAULT: DurationMs = DurationMs::secs(30);

const LEASE: Shape = Shape {
    fields: &["topics", "max", "wait_ms", "lease", "worker"],
    not_built: &[],
};
const HEARTBEAT: Shape = Shape {
    fields: &["token", "checkpoint"],
    not_built: &[],
};
const COMPLETE: Shape = Shape {
    fields: &["token", "result"],
    not_built: &[],
};
const FAIL: Shape = Shape {
    fields: &["token", "error", "retryable", "retry_after"],
    not_built: &[],
};
const SNOOZE: Shape = Shape {
    fields: &["token", "delay"],
    not_built: &[],
};

/// A worker asks for work.
#[derive(Clone, PartialEq, Debug)]
pub struct LeaseAsk {
    /// From these topics, at least one, none twice.
    pub topics: Vec<TopicName>,
    /// At most this many tasks.
    pub max: usize,
    /// How long to wait when there is none.
    pub wait: DurationMs,
    /// For how long each is lent.
    pub lease: DurationMs,
    /// Who asks; empty when the worker has no name.
    pub worker: String,
}

/// Reads the body of `POST /v1/leases`.
///
/// # Errors
/// 400, 422.
pub fn lease(bytes: &[u8]) -> Result<LeaseAsk, Problem> {
    decode(bytes, |node| {
        let body = node.object(&LEASE)?;
        let topics = body.required("topics", |node| {
            let mut topics = node.list(limits::LEASE_TOPICS_MAX, topic_name)?;
            topics.sort();
            topics.dedup();
            if topics.is_empty() {
                return node.refuse("empty", "must name at least one topic");
            }
            Some(topics)
        });
        let max = body.optional("max", |node| node.whole(1..=limits::LEASE_ITEMS_MAX as u64));
        let wait_ms = body.optional("wait_ms", |node| node.whole(0..=limits::LEASE_WAIT_MS_MAX));
        let lease = body.optional("lease", |node| node.length(limits::LEASE_MS));
        let worker = body.optional("worker", |node| node.line(limits::NOTE_BYTES_MAX));
        Some(LeaseAsk {
            topics: topics?,
            max: max.unwrap_or(1) as usize,
            wait: DurationMs(wait_ms.unwrap_or(0)),
            lease: lease.unwrap_or(LEASE_DEFAULT),
            worker: worker.unwrap_or_default().into_owned(),
        })
    })
}

/// What a worker says of a task that it has leased.
#[derive(Clone, PartialEq, Debug)]
pub struct LeaseReport {
    /// The attempt it works on.
    pub token: AttemptToken,
    /// What it says.
    pub says: Says,
}

/// See [`LeaseReport`].
#[derive(Clone, PartialEq, Debug)]
pub enum Says {
    /// Still at it.
    Heartbeat {
        /// How far it has got.
        checkpoint: Option<RawJson>,
    },
    /// Done.
    Complete {
        /// What it gave.
        result: Option<RawJson>,
    },
    /// Not done.
    Fail {
        /// What was wrong.
        error: ErrorNote,
        /// Whether another attempt may help.
        retryable: bool,
        /// Not sooner than after this.
        retry_after: Option<DurationMs>,
    },
    /// Later, please; uses no attempt.
    Snooze {
        /// How much later.
        delay: DurationMs,
    },
}

/// The verbs of a lease, as they stand in a path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(missing_docs, reason = "each is the verb of that name")]
pub enum LeaseVerb {
    Heartbeat,
    Complete,
    Fail,
    Snooze,
}

impl LeaseVerb {
    /// The verb with that name in a path.
    pub fn parse(word: &str) -> Option<Self> {
        match word {
            "heartbeat" => Some(Self::Heartbeat),
            "complete" => Some(Self::Complete),
            "fail" => Some(Self::Fail),
            "snooze" => Some(Self::Snooze),
            _ => None,
        }
    }

    fn shape(self) -> &'static Shape {
        match self {
            Self::Heartbeat => &HEARTBEAT,
            Self::Complete => &COMPLETE,
            Self::Fail => &FAIL,
            Self::Snooze => &SNOOZE,
        }
    }

    /// Reads the verb's body.
    ///
    /// # Errors
    /// 400, 422.
    pub fn decode(self, bytes: &[u8], limits: &InLimits) -> Result<LeaseReport, Problem> {
        decode(bytes, |node| {
            let body = node.object(self.shape())?;
            let token = body.required("token", verbs::token);
            let says = match self {
                Self::Heartbeat => Says::Heartbeat {
                    checkpoint: body.optional("checkpoint", checkpoint),
                },
                Self::Complete => Says::Complete {
                    result: body.optional("result", verbs::result),
                },
                Self::Fail => {
                    let error = body.required("error", verbs::error);
                    let retryable = body.optional("retryable", |node| node.flag());
                    let retry_after =
                        body.optional("retry_after", |node| node.length(0..=DELAY_MAX.0));
                    Says::Fail {
                        error: error?,
                        retryable: retryable.unwrap_or(true),
                        retry_after,
                    }
                }
                Self::Snooze => Says::Snooze {
                    delay: body.required("delay", |node| due::delay(node, limits))?,
                },
            };
            Some(LeaseReport {
                token: token?,
                says,
            })
        })
    }
}

/// How far the work has got.
pub(super) fn checkpoint(node: Node<'_, '_>) -> Option<RawJson> {
    node.raw(limits::CHECKPOINT_BYTES_MAX)
}

/// Body of `POST /v1/leases`.
#[derive(Debug, ToSchema)]
pub struct LeaseTasks {
    /// 1 to 100 topics to take work from.
    pub topics: Vec<String>,
    /// At most this many tasks.
    #[schema(minimum = 1, maximum = 1000, default = 1)]
    pub max: Option<u32>,
    /// How long to wait when there is none, in milliseconds.
    #[schema(minimum = 0, maximum = 60000, default = 0)]
    pub wait_ms: Option<u32>,
    /// For how long each task is lent: 0.1 s to a day. Default `PT30S`.
    pub lease: Option<Length>,
    /// The worker's name.
    pub worker: Option<String>,
}

/// Body of a lease's `heartbeat`.
#[derive(Debug, ToSchema)]
pub struct HeartbeatLease {
    /// From the lease.
    pub token: u64,
    /// How far the work has got: any JSON of at most 16 KiB. It is on the disk when the answer comes, shown on the task, and
    /// handed to the next attempt. Without it the one before stands.
    pub checkpoint: Option<serde_json::Value>,
}

/// Body of a lease's `complete`.
#[derive(Debug, ToSchema)]
pub struct CompleteLease {
    /// From the lease.
    pub token: u64,
    /// What the work gave: any JSON of at most 64 KiB.
    pub result: Option<serde_json::Value>,
}

/// Body of a lease's `fail`.
#[derive(Debug, ToSchema)]
pub struct FailLease {
    /// From the lease.
    pub token: u64,
    /// What was wrong.
    pub error: ErrorBody,
    /// Whether another attempt may help.
    #[schema(default = true)]
    pub retryable: Option<bool>,
    /// The next attempt not sooner than after this.
    pub retry_after: Option<Length>,
}

/// Body of a lease's `snooze`.
#[derive(Debug, ToSchema)]
pub struct SnoozeLease {
    /// From the lease.
    pub token: u64,
    /// How much later.
    pub delay: Length,
}

/// One task lent to a worker.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = LeasedTask)]
pub struct LeasedOut<'a> {
    task: TaskOut<'a>,
    /// Number of the attempt.
    attempt: u32,
    /// Its fencing number, for all that is said of it.
    token: u64,
    /// When the lease ends, unless a heartbeat renews it.
    expires_at: Time,
    /// For how long it is lent, and is again with each heartbeat: less than was asked for if the task's clocks say so.
    lease: Length,
    /// How far an attempt before this one had got; left out when none has said so.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = serde_json::Value, required = false)]
    checkpoint: Option<&'a RawValue>,
}

impl<'a> LeasedOut<'a> {
    /// A task that has just been leased.
    pub fn new(view: &'a TaskView, expires_at: WallMs) -> Self {
        let lease = view.task.live.as_ref().and_then(|live| live.lease);
        Self {
            task: view.into(),
            attempt: view.task.attempt.0,
            token: view.task.token.0,
            expires_at: Time(expires_at),
            lease: Length(lease.unwrap_or_default()),
            checkpoint: embedded(view.task.checkpoint.as_ref()),
        }
    }
}

/// The answer to `POST /v1/leases`.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = LeasedTasks)]
pub struct LeasesOut<'a> {
    /// Empty when nothing was due by the end of the wait.
    pub items: Vec<LeasedOut<'a>>,
}

/// The answer to a heartbeat.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Heartbeat)]
pub struct HeartbeatOut {
    /// When the lease ends now; null when the task was cancelled.
    pub expires_at: Option<Time>,
    /// The task was cancelled: stop.
    pub cancelled: bool,
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test may")]
mod tests {
    use super::*;
    use crate::wire::tests::{WIDE, properties, refused};

    #[test]
    fn a_lease_has_defaults_for_all_but_its_topics() {
        let ask = lease(br#"{"topics": ["b", "a", "b"]}"#).unwrap();
        let topics: Vec<&str> = ask.topics.iter().map(TopicName::as_str).collect();
        assert_eq!(topics, ["a", "b"]);
        assert_eq!(
            (ask.max, ask.wait, ask.lease),
            (1, DurationMs(0), DurationMs::secs(30))
        );
        let full = br#"{"topics": ["a"], "max": 1000, "wait_ms": 60000, "lease": "PT0.1S", "worker": "w1"}"#;
        let ask = lease(full).unwrap();
        assert_eq!(
            (ask.max, ask.wait, ask.lease),
            (1000, DurationMs(60_000), DurationMs(100))
        );
        assert_eq!(ask.worker, "w1");
    }

    #[test]
    fn a_lease_has_bounds() {
        for (body, pointer, code) in [
            (r#"{}"#, "/topics", "missing"),
            (r#"{"topics": []}"#, "/topics", "empty"),
            (r#"{"topics": ["a", ""]}"#, "/topics/1", "empty"),
            (r#"{"topics": "a"}"#, "/topics", "wrong_type"),
            (r#"{"topics": ["a"], "max": 1001}"#, "/max", "out_of_range"),
            (
                r#"{"topics": ["a"], "wait_ms": 60001}"#,
                "/wait_ms",
                "out_of_range",
            ),
            (
                r#"{"topics": ["a"], "lease": "PT0.05S"}"#,
                "/lease",
                "out_of_range",
            ),
            (
                r#"{"topics": ["a"], "worker": "a\nb"}"#,
                "/worker",
                "control_character",
            ),
            (
                r#"{"topics": ["a"], "topic": "b"}"#,
                "/topic",
                "unknown_field",
            ),
        ] {
            assert_eq!(
                refused(lease(body.as_bytes())),
                [(pointer.to_owned(), code)],
                "{body}"
            );
        }
        let topics = vec!["\"a\""; 101].join(",");
        let body = format!(r#"{{"topics": [{topics}]}}"#);
        assert_eq!(
            refused(lease(body.as_bytes())),
            [("/topics".to_owned(), "too_many")]
        );
    }

    #[test]
    fn what_a_worker_says_is_read() {
        let read = |verb, body: &str| {
            LeaseVerb::parse(verb)
                .unwrap()
                .decode(body.as_bytes(), &WIDE)
        };
        let says = |verb, body| read(verb, body).unwrap().says;
        assert_eq!(
            read("heartbeat", r#"{"token": 17}"#).unwrap().token,
            AttemptToken(17)
        );
        for (body, checkpoint) in [
            (r#"{"token": 17}"#, None),
            (
                r#"{"token": 17, "checkpoint": {"page": 7}}"#,
                Some(r#"{"page": 7}"#),
            ),
        ] {
            let checkpoint = checkpoint.map(|text| RawJson::from(text.to_owned()));
            assert_eq!(says("heartbeat", body), Says::Heartbeat { checkpoint });
        }
        let result = Some(RawJson::from("\"A\"".to_owned()));
        assert_eq!(
            says("complete", r#"{"token": 17, "result": "A"}"#),
            Says::Complete { result }
        );
        let error = ErrorNote {
            code: "x".into(),
            message: "y".into(),
        };
        assert_eq!(
            says(
                "fail",
                r#"{"token": 1, "error": {"code": "x", "message": "y"}}"#
            ),
            Says::Fail {
                error: error.clone(),
                retryable: true,
                retry_after: None
            }
        );
        assert_eq!(
            says(
                "fail",
                r#"{"token": 1, "error": {"code": "x", "message": "y"}, "retryable": false, "retry_after": "PT5S"}"#
            ),
            Says::Fail {
                error,
                retryable: false,
                retry_after: Some(DurationMs::secs(5))
            }
        );
        assert_eq!(
            says("snooze", r#"{"token": 1, "delay": "PT0.3S"}"#),
            Says::Snooze {
                delay: DurationMs(300)
            }
        );
        for (verb, body, pointer, code) in [
            ("heartbeat", "{}", "/token", "missing"),
            (
                "heartbeat",
                r#"{"token": 1, "checkpiont": {}}"#,
                "/checkpiont",
                "unknown_field",
            ),
            ("heartbeat", r#"{"token": -1}"#, "/token", "out_of_range"),
            ("snooze", r#"{"token": 1}"#, "/delay", "missing"),
            ("fail", r#"{"token": 1}"#, "/error", "missing"),
            (
                "complete",
                r#"{"token": 1, "results": 1}"#,
                "/results",
                "unknown_field",
            ),
        ] {
            assert_eq!(
                refused(read(verb, body)),
                [(pointer.to_owned(), code)],
                "{verb} {body}"
            );
        }
    }

    #[test]
    fn the_documented_fields_are_those_that_are_read() {
        assert_eq!(properties::<LeaseTasks>(), LEASE.fields);
        assert_eq!(properties::<HeartbeatLease>(), HEARTBEAT.fields);
        assert_eq!(properties::<CompleteLease>(), COMPLETE.fields);
        assert_eq!(properties::<FailLease>(), FAIL.fields);
        assert_eq!(properties::<SnoozeLease>(), SNOOZE.fields);
    }
}

//! Tasks as a service shows them. Fields that are not named here are passed over, so that a newer service can be read.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde::de::{DeserializeOwned, Error};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::{RawValue, to_raw_value};
use tokio_util::sync::CancellationToken;

use crate::client::not_done::NotDone;
use crate::client::saying::Saying;
use crate::clock::{DurationMs, WallMs};
use crate::ids::{AttemptToken, TaskId};
use crate::limits;
use crate::shard::query::Slim;
use crate::task::spec::{Delivery, RawJson};
use crate::task::{State, TaskKey, TopicName, duration};
use crate::wire::{task_in, time};

/// A task, as its service has shown it.
#[derive(Clone, Debug, Deserialize)]
#[non_exhaustive]
pub struct RemoteTask {
    /// Its id.
    #[serde(deserialize_with = "one")]
    pub id: TaskId,
    /// Business line and kind of timeout.
    #[serde(deserialize_with = "one")]
    pub topic: TopicName,
    /// The caller's own id inside the topic.
    #[serde(default, deserialize_with = "maybe")]
    pub key: Option<TaskKey>,
    /// Where it stands.
    #[serde(deserialize_with = "one")]
    pub state: State,
    /// When it is, or was, due.
    #[serde(deserialize_with = "one")]
    pub due_at: WallMs,
    /// When its next attempt is made, while it waits for one.
    #[serde(default, deserialize_with = "maybe")]
    pub next_attempt_at: Option<WallMs>,
    /// Grows with each replay and replace, from 1.
    pub generation: u32,
    /// Attempts of this generation.
    pub attempts: u32,
    /// Handed to the action, as JSON; as a type: [`payload_as`](Self::payload_as).
    #[serde(default, deserialize_with = "json")]
    pub payload: Option<RawJson>,
    /// How far an attempt before this one had got, as JSON; as a type: [`checkpoint_as`](Self::checkpoint_as).
    #[serde(default, deserialize_with = "json")]
    pub checkpoint: Option<RawJson>,
    /// What the work gave back, as JSON.
    #[serde(default, deserialize_with = "json")]
    pub result: Option<RawJson>,
    /// How the latest attempt ended.
    #[serde(default)]
    pub last_outcome: Option<LastOutcome>,
    /// Why it is dead, such as `attempts_used_up`.
    #[serde(default)]
    pub dead_reason: Option<String>,
    /// How often it may run when its outcome is not known.
    #[serde(deserialize_with = "one")]
    pub delivery: Delivery,
    /// The caller's own marks.
    #[serde(default)]
    pub tags: BTreeMap<String, String>,
    /// When it was created.
    #[serde(deserialize_with = "one")]
    pub created_at: WallMs,
    /// When it ended.
    #[serde(default, deserialize_with = "maybe")]
    pub ended_at: Option<WallMs>,
}

impl RemoteTask {
    /// The payload as a type of the caller's own; a task without one counts as JSON's `null`.
    ///
    /// # Errors
    /// `payload`, for good, with the field that does not fit and why: another attempt would read the same.
    pub fn payload_as<T: DeserializeOwned>(&self) -> Result<T, NotDone> {
        RawJson::read_as(self.payload.as_ref(), "payload")
            .map_err(|why| NotDone::for_good("payload", why))
    }

    /// How far an attempt before this one had got; `None` when none has said so.
    ///
    /// # Errors
    /// `checkpoint`, for good, with the field that does not fit and why.
    pub fn checkpoint_as<T: DeserializeOwned>(&self) -> Result<Option<T>, NotDone> {
        RawJson::read_as(self.checkpoint.as_ref(), "checkpoint")
            .map_err(|why| NotDone::for_good("checkpoint", why))
    }
}

/// How an attempt ended.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[non_exhaustive]
pub struct LastOutcome {
    /// `succeeded`, `failed`, `timeout`, `lease_expired`, …
    pub outcome: String,
    /// Of a failure.
    #[serde(default)]
    pub error: Option<FailureSeen>,
}

/// A failure, as it is kept.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[non_exhaustive]
pub struct FailureSeen {
    /// Stable code.
    pub code: String,
    /// What happened.
    pub message: String,
}

/// Why work is told to stop.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Cut {
    /// The service could not be reached for the length of the lease. The task may be somebody else's by now, or still
    /// be ours: an answer is still sent, and counts if it is.
    LeaseUnsure,
    /// The worker is being stopped, and its grace is over.
    WorkerStops,
    /// The lease is over: the attempt has ended otherwise, and the task may run elsewhere.
    LeaseLost,
    /// The task was cancelled.
    TaskCancelled,
}

/// Tells the work that it should stop, and why.
#[derive(Clone, Debug, Default)]
pub(super) struct Cord {
    pub(super) token: CancellationToken,
    /// The attempt is somebody else's, or nobody's.
    pub(super) over: CancellationToken,
    why: Arc<Mutex<Option<Cut>>>,
}

impl Cord {
    /// The first reason counts, until a surer one comes.
    pub(super) fn cut(&self, why: Cut) {
        let mut known = self.why.lock();
        *known = (*known).max(Some(why));
        drop(known);
        self.token.cancel();
        if matches!(why, Cut::LeaseLost | Cut::TaskCancelled) {
            self.over.cancel();
        }
    }

    pub(super) fn why(&self) -> Option<Cut> {
        *self.why.lock()
    }
}

/// A task that is leased to this worker; it has all fields of the [`RemoteTask`].
#[derive(Clone, Debug)]
pub struct LeasedTask {
    pub(super) task: RemoteTask,
    /// Number of the attempt, over all generations.
    pub attempt: u32,
    /// The attempt's fencing number: it grows, so a store that the work writes to can refuse older ones.
    pub token: AttemptToken,
    /// Cancelled when the work should stop; [`cut`](Self::cut) says why.
    pub cancel: CancellationToken,
    pub(super) cord: Cord,
    pub(super) saying: Saying,
    /// For how long it is lent, if that is not what was asked for.
    pub(super) lease: Option<Duration>,
}

impl LeasedTask {
    /// Says how far the work has got, in any JSON of at most 16 KiB: shown on the task, and the `checkpoint` of the next
    /// attempt. It may be said as often as one likes: the latest is told once a second, and before it is told that the
    /// work was not done.
    ///
    /// # Errors
    /// `checkpoint`, for good, when it is too large or can't be written as JSON.
    pub fn progress(&self, so_far: &impl Serialize) -> Result<(), NotDone> {
        let bad = |why: String| NotDone::for_good("checkpoint", why);
        let raw = to_raw_value(so_far).map_err(|error| bad(error.to_string()))?;
        let (is, max) = (raw.get().len(), limits::CHECKPOINT_BYTES_MAX);
        if is > max {
            return Err(bad(format!(
                "is {is} bytes long, at most {max} are allowed"
            )));
        }
        self.saying.say(raw);
        Ok(())
    }

    /// Why the work should stop, if it should.
    pub fn cut(&self) -> Option<Cut> {
        self.cord.why()
    }
}

impl Deref for LeasedTask {
    type Target = RemoteTask;

    fn deref(&self) -> &RemoteTask {
        &self.task
    }
}

/// The answer to a lease.
#[derive(Deserialize)]
pub(super) struct Leases {
    pub(super) items: Vec<LeaseItem>,
}

#[derive(Deserialize)]
pub(super) struct LeaseItem {
    task: RemoteTask,
    attempt: u32,
    token: u64,
    #[serde(default)]
    lease: Option<String>,
}

impl LeaseItem {
    pub(super) fn lent(self) -> LeasedTask {
        let cord = Cord::default();
        let lease = self
            .lease
            .as_deref()
            .and_then(|text| duration::parse(text).ok());
        LeasedTask {
            task: self.task,
            attempt: self.attempt,
            token: AttemptToken(self.token),
            cancel: cord.token.clone(),
            cord,
            saying: Saying::default(),
            lease: lease.map(DurationMs::to_std),
        }
    }
}

/// The answer to a heartbeat.
#[derive(Deserialize)]
pub(super) struct Beat {
    pub(super) cancelled: bool,
}

/// The answer to a verb.
#[derive(Deserialize)]
pub(super) struct Answered {
    #[serde(default, deserialize_with = "maybe")]
    id: Option<TaskId>,
    #[serde(deserialize_with = "one")]
    state: State,
    #[serde(default, deserialize_with = "maybe")]
    due_at: Option<WallMs>,
    #[serde(default)]
    generation: u32,
    #[serde(default, deserialize_with = "maybe")]
    updated_at: Option<WallMs>,
}

impl Answered {
    /// The task; none when a cancel met none.
    pub(super) fn slim(self) -> Option<Slim> {
        Some(Slim {
            id: self.id?,
            state: self.state,
            due_at: self.due_at?,
            generation: self.generation,
            updated_at: self.updated_at?,
        })
    }
}

/// What stands on the wire as a text.
trait Word: Sized {
    fn read(text: &str) -> Option<Self>;
}

macro_rules! words {
    ($($Type:ty: |$text:ident| $read:expr;)*) => {$(
        impl Word for $Type {
            fn read($text: &str) -> Option<Self> {
                $read
            }
        }
    )*};
}
words! {
    TaskId: |text| text.parse().ok();
    TopicName: |text| Self::parse(text).ok();
    TaskKey: |text| Self::parse(text).ok();
    State: |text| Self::parse(text);
    WallMs: |text| time::parse(text, None).ok();
    Delivery: |text| task_in::delivery(text);
}

fn one<'de, T: Word, D: Deserializer<'de>>(from: D) -> Result<T, D::Error> {
    let text = Cow::<str>::deserialize(from)?;
    T::read(&text).ok_or_else(|| D::Error::custom(format_args!("{text:?} is not understood")))
}

fn maybe<'de, T: Word, D: Deserializer<'de>>(from: D) -> Result<Option<T>, D::Error> {
    let Some(text) = Option::<Cow<'_, str>>::deserialize(from)? else {
        return Ok(None);
    };
    let read = T::read(&text);
    read.map(Some)
        .ok_or_else(|| D::Error::custom(format_args!("{text:?} is not understood")))
}

fn json<'de, D: Deserializer<'de>>(from: D) -> Result<Option<RawJson>, D::Error> {
    let raw = Option::<Box<RawValue>>::deserialize(from)?;
    Ok(raw.map(|raw| RawJson::from(String::from(Box::<str>::from(raw)))))
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test may")]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::ids::ShardId;
    use crate::shard::query::TaskView;
    use crate::testing::arbitrary::golden_task;
    use crate::wire::task_out::TaskOut;

    #[test]
    fn what_the_service_shows_is_read() {
        let task = golden_task();
        let view = TaskView {
            task: Arc::new(task.clone()),
            blocked_by: None,
            callback: None,
            shard: ShardId(3),
            remaining_ms: 0,
        };
        let text = serde_json::to_string(&TaskOut::from(&view)).unwrap();
        let read: RemoteTask = serde_json::from_str(&text).unwrap();
        assert_eq!(
            (read.id, &read.topic, &read.key, read.state),
            (task.id, &task.topic, &task.key, task.state)
        );
        assert_eq!(
            (read.due_at, read.created_at, read.ended_at),
            (task.due.at, task.created_at, task.ended_at)
        );
        assert_eq!(
            (&read.payload, &read.result, read.delivery),
            (&task.spec.payload, &task.result, task.spec.delivery)
        );
        assert_eq!(
            read.tags.into_iter().collect::<Vec<_>>(),
            task.spec.tags.clone()
        );
        assert_eq!(
            read.last_outcome.map(|last| last.outcome).as_deref(),
            task.last_outcome.as_ref().map(|last| last.outcome)
        );
    }

    #[test]
    fn numbers_of_a_payload_keep_their_digits_and_a_wrong_one_is_named() {
        let task = |payload: &str| -> RemoteTask {
            let mut task = json!({
                "id": "01a22c30-5b1e-7569-bcfc-d56bb2597131", "topic": "t", "state": "running", "generation": 1,
                "attempts": 1, "delivery": "at_least_once", "due_at": "2026-12-01T10:30:00.000Z",
                "created_at": "2026-12-01T10:30:00.000Z", "of_a_newer_service": [],
            })
            .to_string();
            task.insert_str(1, &format!(r#""payload": {payload},"#));
            serde_json::from_str(&task).unwrap()
        };
        let digits = "123456789012345678901234567890.10";
        assert_eq!(task(digits).payload.unwrap().as_str(), digits);
        assert_eq!(task("null").payload, None);

        #[derive(Deserialize, Debug)]
        struct Order {
            #[expect(dead_code, reason = "only its name is needed")]
            number: u64,
        }
        let wrong = task(r#"{"number": "seven"}"#).payload_as::<Order>();
        let NotDone::Failed {
            code,
            message,
            retryable,
            ..
        } = wrong.unwrap_err()
        else {
            panic!("it is a failure");
        };
        assert_eq!((code.as_str(), retryable), ("payload", false));
        assert!(message.starts_with("payload.number: "), "{message}");
    }

    #[test]
    fn the_surest_reason_to_stop_is_the_one_that_is_told() {
        let cord = Cord::default();
        assert_eq!((cord.why(), cord.token.is_cancelled()), (None, false));
        cord.cut(Cut::LeaseUnsure);
        assert!(!cord.over.is_cancelled(), "it may still be ours");
        cord.cut(Cut::TaskCancelled);
        cord.cut(Cut::WorkerStops);
        assert_eq!(
            (
                cord.why(),
                cord.token.is_cancelled(),
                cord.over.is_cancelled()
            ),
            (Some(Cut::TaskCancelled), true, true)
        );
    }
}

//! Late answers: what is said of an attempt that is not the present one any more.
//!
//! ```text
//!  attempt 1 ──▶ lease runs out ──▶ attempt 2 ──▶ succeeded
//!      └────────── "done" ─────────────────▶ ?        the work was done, perhaps twice
//! ```
//!
//! Such an answer changes nothing by itself: the token keeps it out. It still says something that nobody else knows, so
//! it is kept, and the topic's [`LatePolicy`] says what follows from it.
//!
//! Not every refused answer is late. One that repeats what was taken in already (a report that is sent again because
//! nobody heard that it had arrived) says nothing new, and a token that was never given out belongs to no attempt. What
//! only says that nothing is known (a time-out, a cut-off, an attempt that was handed back) is no answer.

use bytes::Bytes;

use crate::clock::WallMs;
use crate::ids::{AttemptNumber, AttemptToken, TaskId};
use crate::limits;
use crate::task::event::Event;
use crate::task::history::{AttemptRecord, ErrorNote};
use crate::task::model::{State, Task};
use crate::task::outcome::Outcome;
use crate::task::spec::{Action, RawJson, TaskKey, TopicName};

/// What a topic does about late answers. All of them are kept.
#[derive(Clone, Debug, PartialEq, Default)]
pub enum LatePolicy {
    /// They change nothing.
    #[default]
    Refuse,
    /// A success ends its task, if that has not ended and is still in the generation that the attempt was made in.
    AcceptIfUnfinished,
    /// They change nothing, but for each attempt that succeeded too late this is run once.
    Compensate(Compensation),
}

/// What takes back the work of an attempt that succeeded too late: a task of its own.
#[derive(Clone, Debug, PartialEq)]
pub struct Compensation {
    /// The topic that it is created in.
    pub topic: TopicName,
    /// What it does; `None` is what tasks of that topic do.
    pub action: Option<Action>,
}

/// What became of a late answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Treatment {
    /// It changed nothing.
    Refused,
    /// It ended its task.
    Accepted,
    /// It changed nothing, and this task takes back what was done.
    Compensated(TaskId),
}

impl Treatment {
    /// Its stable name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Refused => "refused",
            Self::Accepted => "accepted",
            Self::Compensated(_) => "compensated",
        }
    }
}

/// A late answer as it is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LateAnswer {
    /// The task.
    pub task: TaskId,
    /// Of the task.
    pub topic: TopicName,
    /// Of the task.
    pub key: Option<TaskKey>,
    /// The attempt's number; `None` if it is so long ago that only its token is known.
    pub attempt: Option<AttemptNumber>,
    /// The generation it belonged to, if it is known.
    pub generation: Option<u32>,
    /// The attempt's fencing number.
    pub token: AttemptToken,
    /// What is said: an [`Outcome`]'s name, `succeeded` or `failed`.
    pub outcome: &'static str,
    /// Of a failure.
    pub error: Option<ErrorNote>,
    /// Of a success, at most [`limits::RESULT_BYTES_MAX`].
    pub result: Option<RawJson>,
    /// It had a larger result.
    pub result_dropped: bool,
    /// Who said it: `worker`, `executor`, `api`.
    pub by: String,
    /// The worker that had held the attempt.
    pub worker: Option<String>,
    /// When it came.
    pub at: WallMs,
    /// How its attempt had ended before, if that is known.
    pub ended_as: Option<&'static str>,
    /// The state that its task was in.
    pub state: State,
    /// What became of it.
    pub treatment: Treatment,
}

/// What an answer says of the work.
struct Said {
    outcome: &'static str,
    error: Option<ErrorNote>,
    result: Option<Bytes>,
    result_dropped: bool,
}

impl Said {
    fn of(outcome: &Outcome) -> Option<Self> {
        let (result, result_dropped) = match outcome {
            Outcome::Succeeded {
                result,
                result_dropped,
            } => (result.clone(), *result_dropped),
            Outcome::Failed(_) => (None, false),
            Outcome::NotYet { .. }
            | Outcome::Accepted { .. }
            | Outcome::TimedOut
            | Outcome::LeaseExpired
            | Outcome::Silent
            | Outcome::Snoozed
            | Outcome::Cancelled
            | Outcome::GivenBack
            | Outcome::Unknown => return None,
        };
        Some(Self {
            outcome: outcome.name(),
            error: ErrorNote::of(outcome),
            result,
            result_dropped,
        })
    }

    /// The attempt that an event answers for, and what is said of it.
    fn in_event(event: &Event) -> Option<(AttemptToken, Self)> {
        match event {
            Event::Finished { token, outcome, .. } | Event::Answered { token, outcome } => {
                Some((*token, Self::of(outcome)?))
            }
            Event::Complete {
                result,
                token: Some(token),
            } => {
                let said = Self {
                    outcome: SUCCEEDED,
                    error: None,
                    result: result.as_ref().map(|json| json.0.clone()),
                    result_dropped: false,
                };
                Some((*token, said))
            }
            _ => None,
        }
    }

    /// Whether the attempt has said so before.
    fn repeats(&self, record: &AttemptRecord, task: &Task) -> bool {
        let result = task.result.as_ref().map(|json| &json.0);
        record.outcome == self.outcome
            && record.error == self.error
            && (self.outcome != SUCCEEDED || result == self.result.as_ref())
    }
}

const SUCCEEDED: &str = "succeeded";

impl LateAnswer {
    /// What `event` says of an attempt of `task` that is over; `None` if it is no answer, is not late, repeats what
    /// was said in time, or names no attempt that ever was.
    pub fn of(task: &Task, event: &Event, by: &str, at: WallMs) -> Option<Self> {
        let (token, said) = Said::in_event(event)?;
        let is_present = task.state.is_in_flight() && task.token == token;
        let never_was = token == AttemptToken::default() || token > task.token;
        if is_present || never_was {
            return None;
        }
        let records = &task.attempts_log.kept;
        let record = records.iter().rev().find(|record| record.token == token);
        if record.is_some_and(|record| said.repeats(record, task)) {
            return None;
        }
        // All attempts are there, and this is none: a question about the task had that token.
        if record.is_none() && records.len() == task.attempts_log.total as usize {
            return None;
        }
        // Copied: a slice would keep the whole request in memory.
        let result = said
            .result
            .as_ref()
            .filter(|json| json.len() <= limits::RESULT_BYTES_MAX)
            .map(|json| RawJson(Bytes::copy_from_slice(json)));
        Some(Self {
            task: task.id,
            topic: task.topic.clone(),
            key: task.key.clone(),
            attempt: record.map(|record| record.attempt),
            generation: record.map(|record| record.generation),
            token,
            outcome: said.outcome,
            error: said.error,
            result_dropped: said.result_dropped || said.result.is_some() != result.is_some(),
            result,
            by: by.to_owned(),
            worker: record.and_then(|record| record.worker.clone()),
            at,
            ended_as: record.map(|record| record.outcome),
            state: task.state,
            treatment: Treatment::Refused,
        })
    }

    /// Whether it says that the work was done.
    pub fn is_success(&self) -> bool {
        self.outcome == SUCCEEDED
    }

    /// Whether it says that the work was done, and its task does not know: of an attempt that had succeeded before, it
    /// tells nothing that was to be taken back.
    pub fn succeeded_too_late(&self) -> bool {
        self.is_success() && self.ended_as != Some(SUCCEEDED)
    }

    /// Whether it could still end its task, or its present stage: what another generation or stage was asked for is
    /// not what this attempt has done.
    pub fn can_finish(&self, task: &Task) -> bool {
        let mut records = task.attempts_log.kept.iter().rev();
        let record = records.find(|record| record.token == self.token);
        let stage = task.stage().map(|stage| &stage.name);
        let is_of_stage = record.is_some_and(|record| record.stage.as_ref() == stage);
        self.is_success()
            && !task.state.is_ended()
            && is_of_stage
            && self.generation == Some(task.generation)
    }

    /// The event that lets it end its task.
    pub fn accepted(&self) -> Event {
        Event::AcceptedLate {
            attempt: self.attempt.unwrap_or_default(),
            outcome: Outcome::Succeeded {
                result: self.result.as_ref().map(|json| json.0.clone()),
                result_dropped: self.result_dropped,
            },
        }
    }

    /// Why it came too late, and what became of it, for a person.
    pub fn why(&self) -> String {
        let attempt = match self.attempt {
            Some(attempt) => format!("of attempt {}", attempt.0),
            None => format!("with the old token {}", self.token.0),
        };
        let over = match self.ended_as {
            Some("lease_expired") => "whose lease had run out".to_owned(),
            Some(ended_as) => format!("which had ended as {ended_as}"),
            None => "which had ended long before".to_owned(),
        };
        let became = match self.treatment {
            Treatment::Refused => "refused".to_owned(),
            Treatment::Accepted => "accepted".to_owned(),
            Treatment::Compensated(task) => format!("refused, and compensated by {task}"),
        };
        format!(
            "late answer {attempt}, {over}: {}, {became}; the task was {}",
            self.outcome, self.state
        )
    }

    /// About what it takes in memory.
    pub fn bytes(&self) -> usize {
        let texts = [
            self.topic.as_str().len(),
            self.key.as_ref().map_or(0, |key| key.as_str().len()),
            self.result.as_ref().map_or(0, |json| json.0.len()),
            self.worker.as_ref().map_or(0, String::len),
            self.error
                .as_ref()
                .map_or(0, |error| error.code.len() + error.message.len()),
        ];
        size_of::<Self>() + texts.iter().sum::<usize>()
    }
}

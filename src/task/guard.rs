//! Guards: what decides, shortly before a task fires, whether it does.
//!
//! ```text
//!  pending ── GUARD_AHEAD before its due time ──▶ question ── fire ─────▶ pending ── due ──▶ its action
//!     ▲                                             │ │ └──── cancel ───▶ cancelled
//!     └───────── later, by extend_by ───────────────┘ └────── no answer ▶ on_no_answer: asked again, held, fires
//! ```
//!
//! There are two kinds. A condition over the task is evaluated by its shard when it comes due. A question is asked ahead,
//! so that the answer is there when the time comes; it uses no attempt, and is asked once for each due time: whatever
//! moves that, or lets the task go on after a pause, has it asked anew, and an answer to an older question changes
//! nothing. While it is to be asked the task waits for [`WaitingFor::Guard`], and its `next` is the question's instant.
//!
//! The guard of a task decides for the task, that of a stage for the stage: where the one has it cancelled, the other has
//! it passed over.
//!
//! Limits: a question has [`GUARD_TIME_MAX`]; an answer is good for [`GUARD_KEEPS`]; one that nobody answers is asked at
//! most [`GUARD_QUESTIONS_MAX`] times in a row. What was escalated, or has begun, is not asked about any more.
//!
//! [`GUARD_TIME_MAX`]: crate::limits::GUARD_TIME_MAX

use crate::clock::{DurationMs, Now};
use crate::limits::{GUARD_AHEAD, GUARD_KEEPS, GUARD_QUESTIONS_MAX};
use crate::task::model::{State, Task, WaitingFor};
use crate::task::spec::{HttpAction, TaskSpec};

/// What decides whether a task, or a stage, fires.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Guard {
    /// It fires if this is true when it is due: an expression over the task.
    If(String),
    /// Somebody is asked ahead of the due time.
    Asks(Box<GuardQuestion>),
}

/// A question about a task that is to fire. The conditions are expressions over the answer: `cancel_if` is looked at
/// first, and one of the two is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuardQuestion {
    /// The question.
    pub http: HttpAction,
    /// What is true of an answer that lets it fire; `None`: whatever is not `cancel_if`.
    pub fire_if: Option<String>,
    /// What is true of an answer that calls it off; `None`: whatever is not `fire_if`, unless that makes it later.
    pub cancel_if: Option<String>,
    /// How much later it is due when the answer is neither.
    pub extend_by: Option<DurationMs>,
    /// When there is no answer.
    pub on_no_answer: OnSilence,
}

/// What follows when a guard does not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum OnSilence {
    /// It is asked again, a few times, and then held.
    #[default]
    Retry,
    /// The task fires at its due time.
    Fire,
    /// The task is paused for a person.
    Hold,
}

impl Guard {
    /// What its shard evaluates itself.
    pub fn condition(&self) -> Option<&String> {
        match self {
            Self::If(condition) => Some(condition),
            Self::Asks(_) => None,
        }
    }

    /// About how many bytes it takes to write it down.
    pub fn weight(&self) -> usize {
        match self {
            Self::If(condition) => condition.len(),
            Self::Asks(question) => {
                let texts = [&question.fire_if, &question.cancel_if];
                let texts: usize = texts.into_iter().flatten().map(String::len).sum();
                let headers = question.http.headers.iter();
                let headers = headers.map(|(name, value)| name.len() + value.len());
                texts + question.http.url.len() + headers.sum::<usize>()
            }
        }
    }
}

/// How long until it is asked again, after so many questions in a row that nobody answered; `None`: not any more.
pub fn ask_again_after(unanswered: u32) -> Option<DurationMs> {
    let doubled = 1_000_u64 << unanswered.saturating_sub(1).min(5);
    (unanswered < GUARD_QUESTIONS_MAX).then_some(DurationMs(doubled.min(30_000)))
}

impl TaskSpec {
    /// The guard of the stage at this place: its own, else the task's.
    pub fn guard_at(&self, place: Option<u8>) -> Option<&Guard> {
        let own = self.stage_at(place).and_then(|stage| stage.guard.as_ref());
        own.or(self.guard.as_ref())
    }
}

impl Task {
    /// The guard of what fires next.
    pub fn guard(&self) -> Option<&Guard> {
        self.spec.guard_at(self.stage_place())
    }

    /// Whether that is its stage's own.
    pub fn is_guarded_by_stage(&self) -> bool {
        self.stage().is_some_and(|stage| stage.guard.is_some())
    }

    /// What its guard asks, if it asks anything.
    pub fn guard_question(&self) -> Option<&GuardQuestion> {
        match self.guard()? {
            Guard::Asks(question) => Some(question),
            Guard::If(_) => None,
        }
    }

    /// Whether what is next, or is out, is the question of its guard.
    pub fn asks_guard(&self) -> bool {
        self.waiting_for == Some(WaitingFor::Guard)
    }

    /// Whether it waits to fire for the first time, so that its guard has a say. What was snoozed has begun, though it has
    /// used no attempt: its next one is not made at its due time.
    pub fn has_yet_to_fire(&self) -> bool {
        let has_begun = self.attempts > 0 || self.next != self.due || self.escalated.is_some();
        self.state == State::Pending && !has_begun
    }

    /// Whether its guard has let it fire so long ago that it is to be asked again.
    pub fn is_let_fire_long_ago(&self, now: Now) -> bool {
        self.has_yet_to_fire()
            && !self.asks_guard()
            && self.guard_question().is_some()
            && now.wall.since(self.updated_at) > GUARD_KEEPS
    }

    /// Its guard is asked before anything else, if it has one that asks.
    pub fn ask_guard_first(&mut self) {
        if self.has_yet_to_fire() && self.guard_question().is_some() {
            self.waiting_for = Some(WaitingFor::Guard);
            self.next = self.due.moved_by(-(GUARD_AHEAD.0 as i64));
            // Its time counts from the due time that is yet to come.
            self.first_due = None;
            self.unanswered = 0;
        }
    }

    /// The question of its guard is dropped, or answered.
    pub fn leave_guard(&mut self) {
        if self.state.is_in_flight() {
            self.state = State::Pending;
            self.live = None;
        }
        self.waiting_for = None;
        self.next = self.due;
        self.unanswered = 0;
    }

    /// When it fires next: the question of its guard is asked before that.
    pub fn fires_next(&self) -> crate::task::model::Due {
        match self.asks_guard() {
            true => self.due,
            false => self.next,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_does_not_answer_is_asked_again_ever_more_rarely_and_not_for_ever() {
        let waits: Vec<_> = (1..)
            .map_while(ask_again_after)
            .map(|wait| wait.0)
            .collect();
        assert_eq!(
            waits,
            [
                1_000, 2_000, 4_000, 8_000, 16_000, 30_000, 30_000, 30_000, 30_000
            ]
        );
        assert_eq!(waits.len() + 1, GUARD_QUESTIONS_MAX as usize);
    }
}

//! What the one transition function promises, told three ways.
//!
//! - `verbs`: which event is taken in which state, as one table;
//! - `policies`, `stages`, `times`, `clocks`: what follows from it, as sentences;
//! - `laws`: what holds after any events at any times, as properties.

#![expect(
    clippy::unwrap_used,
    reason = "a test may stop at what it did not expect"
)]

mod clocks;
mod guard;
mod laws;
mod policies;
mod polls;
mod stages;
mod times;
mod verbs;
mod verify;

use super::*;
use crate::clock::{Clock, MonoMs, SteadyMs, WallMs};
use crate::ids::{AttemptNumber, AttemptToken};
use crate::task::clocks::{TaskClock, Then};
use crate::task::guard::OnSilence;
use crate::task::history::ErrorNote;
use crate::task::outcome::Failure;
use crate::task::retry::{Backoff, OnFailure, RetryPolicy};
use crate::task::spec::{OnNoAnswer, RawJson};
use crate::testing::fixtures::{
    START, TaskFixture, asking, at, failed, failure, minutes, succeeded, task,
};

/// One task and its clock. Whatever is refused, or said to change nothing, is checked to have changed nothing.
struct Life {
    task: Task,
    clock: Clock,
    random: f64,
}

impl Life {
    fn of(fixture: TaskFixture) -> Self {
        let clock = Clock::by_hand(START);
        Self {
            task: fixture.build(clock.now()),
            clock,
            random: 0.0,
        }
    }

    fn now(&self) -> Now {
        self.clock.now()
    }

    fn apply(&mut self, event: Event) -> Result<Applied, Refusal> {
        let before = self.task.clone();
        let ctx = Context {
            now: self.clock.now(),
            retention: Retention::default(),
            random: self.random,
            by: "test",
        };
        let shown = format!("{event:?}");
        let done = apply(&mut self.task, event, &ctx);
        if matches!(done, Err(_) | Ok(Applied::Unchanged)) {
            assert_eq!(self.task, before, "{shown} gave {done:?}");
        }
        done
    }

    /// An event that must be taken.
    fn must(&mut self, event: Event) -> Applied {
        self.apply(event).unwrap()
    }

    /// The same, while a life is being set up.
    fn then(mut self, event: Event) -> Self {
        self.must(event);
        self
    }

    /// Time goes by, on all clocks.
    fn wait(&mut self, length: DurationMs) {
        self.clock.advance(length);
    }

    /// The attempt that is out ends so.
    fn answer(&mut self, outcome: Outcome) -> Applied {
        let token = self.task.token;
        self.must(finished(token, outcome))
    }

    /// One attempt of a push, from its due time to its end.
    fn attempt(&mut self, outcome: Outcome) {
        self.must(due());
        self.must(Event::Started);
        self.answer(outcome);
    }

    /// How long until its next attempt.
    fn left(&self) -> DurationMs {
        self.task.next.remaining(self.now())
    }

    fn dead_of(&self) -> Option<DeadReason> {
        assert_eq!(
            self.task.state == State::Dead,
            self.task.dead_reason.is_some()
        );
        self.task.dead_reason
    }

    fn last_outcome(&self) -> &'static str {
        self.task.last_outcome.as_ref().unwrap().outcome
    }
}

fn due() -> Event {
    Event::Due {
        report_by: MonoMs(34_000),
    }
}

fn leased() -> Event {
    Event::Leased {
        worker: "w1".to_owned(),
        lease: DurationMs::secs(30),
    }
}

fn heartbeat(token: AttemptToken) -> Event {
    let checkpoint = None;
    Event::Heartbeat { token, checkpoint }
}

fn finished(token: AttemptToken, outcome: Outcome) -> Event {
    Event::Finished {
        token,
        outcome,
        started_at: None,
    }
}

fn cancel() -> Event {
    Event::Cancel {
        reason: "paid".to_owned(),
    }
}

fn fail() -> Event {
    Event::Fail {
        error: ErrorNote {
            code: "no_stock".to_owned(),
            message: "nothing left".to_owned(),
        },
    }
}

fn complete(token: Option<AttemptToken>) -> Event {
    Event::Complete {
        result: Some(RawJson::from("{\"paid\":true}".to_owned())),
        token,
    }
}

fn pause(clock: PauseClock) -> Event {
    Event::Pause { clock }
}

fn reschedule(due: Due) -> Event {
    Event::Reschedule {
        due: NewDue::To(due),
    }
}

fn extend(length: DurationMs) -> Event {
    Event::Reschedule {
        due: NewDue::ExtendBy(length),
    }
}

fn resolve(succeeded: bool) -> Event {
    Event::Resolve {
        succeeded,
        note: "the bank says so".to_owned(),
    }
}

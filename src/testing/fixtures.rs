//! Fixtures: defaults, plus the one thing that matters.
//!
//! A test says what it is about and nothing else, so that a reader sees at once what the result hangs on:
//!
//! ```text
//!  task().topic("orders").due_in_minutes(30).build(at(0))      all else is what a task is by default
//!  task().push().at_most_once().build(at(0))
//! ```
//!
//! Time starts at [`START`] and is counted in milliseconds from there, the same on all clocks: [`at`].

use std::sync::Arc;

use crate::clock::{DurationMs, MonoMs, Now, SteadyMs, WallMs};
use crate::ids::{Slot, TaskId};
use crate::task::clocks::{TaskClock, Then, Thens};
use crate::task::guard::{Guard, GuardQuestion, OnSilence};
use crate::task::model::Task;
use crate::task::new_task::When;
use crate::task::outcome::{Failure, Outcome};
use crate::task::retry::{Backoff, RetryPolicy};
use crate::task::spec::{
    Action, Delivery, HttpAction, OnEnd, OnNoAnswer, Poll, RawJson, StageName, TaskKey, TaskSpec,
    TopicName, Verify,
};
use crate::task::stage::{Stage, Stages, Starts};

/// When tests begin: 2026-11-30T00:53:20Z.
pub const START: WallMs = WallMs(1_796_000_000_000);

/// `ms` milliseconds into a test in which no clock was ever stepped.
pub fn at(ms: i64) -> Now {
    let wall = START.0.saturating_add(ms);
    Now {
        wall: WallMs(wall),
        mono: MonoMs(ms),
        steady: SteadyMs(wall),
    }
}

/// `count` minutes.
pub const fn minutes(count: u64) -> DurationMs {
    DurationMs::secs(count * 60)
}

/// A task of the topic `order.unpaid` without a key, due now, for workers to lease.
pub fn task() -> TaskFixture {
    TaskFixture {
        topic: TopicName::parse("order.unpaid").expect("a good name"),
        key: None,
        when: When::After(DurationMs(0)),
        spec: TaskSpec::default(),
    }
}

/// A task in the making; see [`task`].
#[derive(Clone, Debug)]
#[must_use]
pub struct TaskFixture {
    topic: TopicName,
    key: Option<TaskKey>,
    when: When,
    spec: TaskSpec,
}

impl TaskFixture {
    /// Of this topic.
    pub fn topic(mut self, name: &str) -> Self {
        self.topic = TopicName::parse(name).expect("a good name");
        self
    }

    /// With this key.
    pub fn key(mut self, key: &str) -> Self {
        self.key = Some(TaskKey::parse(key).expect("a good key"));
        self
    }

    /// Due in so many minutes.
    pub fn due_in_minutes(self, count: u64) -> Self {
        self.due_in(minutes(count))
    }

    /// Due after this length of time.
    pub fn due_in(mut self, length: DurationMs) -> Self {
        self.when = When::After(length);
        self
    }

    /// Due at this instant of the wall clock.
    pub fn due_at(mut self, instant: WallMs) -> Self {
        self.when = When::At(instant);
        self
    }

    /// With this action.
    pub fn action(mut self, action: Action) -> Self {
        self.spec.action = action;
        self
    }

    /// With a push to a receiver on this machine.
    pub fn push(self) -> Self {
        self.push_to("http://127.0.0.1:9000/close")
    }

    /// With a push to this URL.
    pub fn push_to(self, url: &str) -> Self {
        self.action(Action::Http(HttpAction {
            url: url.to_owned(),
            method: "POST".to_owned(),
            headers: Vec::new(),
            expect_status: Vec::new(),
            success_if: None,
            complete_by: None,
        }))
    }

    /// With one more stage, which does what the task does.
    pub fn stage(self, name: &str, starts: Starts) -> Self {
        self.stage_if(name, starts, None, None)
    }

    /// With one more stage, which has a condition or an action of its own.
    pub fn stage_if(
        mut self,
        name: &str,
        starts: Starts,
        condition: Option<&str>,
        action: Option<Action>,
    ) -> Self {
        let mut stages: Vec<Stage> = self
            .spec
            .stages
            .iter()
            .flat_map(Stages::iter)
            .cloned()
            .collect();
        stages.push(Stage {
            name: StageName::parse(name).expect("a good name"),
            starts,
            condition: condition.map(str::to_owned),
            guard: None,
            action,
        });
        let stages = Stages::new(stages).expect("stages in order");
        self.when = When::After(stages.first_after());
        self.spec.stages = Some(stages);
        self
    }

    /// With these facts.
    pub fn facts(mut self, facts: &serde_json::Value) -> Self {
        self.spec.facts = Some(RawJson::from(facts.to_string()));
        self
    }

    /// With a poll of a system on this machine, so often and for so long.
    pub fn poll(self, every: DurationMs, within: DurationMs) -> Self {
        let Action::Http(http) = self.clone().push().spec.action else {
            return self;
        };
        self.action(Action::Poll(Box::new(Poll {
            http,
            every,
            within: Some(within),
            done_if: "body.done".to_owned(),
            failed_if: None,
        })))
    }

    /// With somebody on this machine who is asked whether it was done.
    pub fn verified(self, on_no_answer: OnNoAnswer) -> Self {
        let Action::Http(http) = self.clone().push().spec.action else {
            return self;
        };
        let mut fixture = self;
        fixture.spec.verify = Some(Box::new(Verify {
            http,
            done_if: "body.done".to_owned(),
            failed_if: None,
            on_no_answer,
        }));
        fixture
    }

    /// Which fires only if this is true of it when it is due.
    pub fn guarded_if(self, condition: &str) -> Self {
        self.guarded_by(Guard::If(condition.to_owned()))
    }

    /// With somebody on this machine who is asked before it fires, and may make it so much later.
    pub fn guarded(self, extend_by: Option<DurationMs>, on_no_answer: OnSilence) -> Self {
        self.guarded_by(asking(extend_by, on_no_answer))
    }

    /// With this guard.
    pub fn guarded_by(mut self, guard: Guard) -> Self {
        self.spec.guard = Some(guard);
        self
    }

    /// With this guard for its last stage.
    pub fn stage_guarded(mut self, guard: Guard) -> Self {
        let stages = self.spec.stages.iter().flat_map(Stages::iter);
        let mut stages: Vec<Stage> = stages.cloned().collect();
        if let Some(last) = stages.last_mut() {
            last.guard = Some(guard);
        }
        self.spec.stages = Some(Stages::new(stages).expect("stages in order"));
        self
    }

    /// With somebody on this machine who is told how it has ended.
    pub fn called_back(mut self) -> Self {
        let Action::Http(http) = self.clone().push().spec.action else {
            return self;
        };
        self.spec.on_end = Some(Box::new(OnEnd { http, retry: None }));
        self
    }

    /// Never to be attempted again while its outcome is unknown.
    pub fn at_most_once(mut self) -> Self {
        self.spec.delivery = Delivery::AtMostOnce;
        self
    }

    /// With this retry policy.
    pub fn retry(mut self, policy: RetryPolicy) -> Self {
        self.spec.retry = policy;
        self
    }

    /// With this wait between attempts.
    pub fn retry_after(mut self, wait: DurationMs) -> Self {
        self.spec.retry.backoff = Backoff::Fixed(wait);
        self
    }

    /// With at most so many attempts.
    pub fn max_attempts(mut self, count: u32) -> Self {
        self.spec.retry.max_attempts = count;
        self
    }

    /// With this time for all attempts together.
    pub fn total(mut self, length: DurationMs) -> Self {
        self.spec.timeouts.total = Some(length);
        self
    }

    /// With this length of a clock, if one is given, and with what follows when it runs out.
    pub fn clock(
        mut self,
        clock: TaskClock,
        length: Option<DurationMs>,
        then: Option<Then>,
    ) -> Self {
        let timeouts = &mut self.spec.timeouts;
        match (clock, length) {
            (TaskClock::Queue, Some(_)) => timeouts.queue = length,
            (TaskClock::Attempt, Some(length)) => timeouts.attempt = length,
            (TaskClock::Heartbeat, Some(_)) => timeouts.heartbeat = length,
            (TaskClock::Total, Some(_)) => timeouts.total = length,
            (_, None) => {}
        }
        let mut thens = std::mem::take(&mut timeouts.then.0);
        thens.extend(then.map(|then| (clock, then)));
        timeouts.then = Thens::new(thens);
        self
    }

    /// With an end after so many lost leases.
    pub fn max_lost_leases(mut self, count: Option<u32>) -> Self {
        self.spec.retry.max_lost_leases = count;
        self
    }

    /// What was asked for.
    pub fn spec(&self) -> Arc<TaskSpec> {
        Arc::new(self.spec.clone())
    }

    /// The task, created at `now`.
    pub fn build(self, now: Now) -> Task {
        let slot = self.key.as_ref().map_or_else(Slot::random, |key| {
            Slot::of_key(self.topic.as_str(), key.as_str())
        });
        let id = TaskId::new(slot, now.wall);
        let due = self.when.due(now);
        Task::new(
            id,
            self.topic,
            self.key,
            Arc::new(self.spec),
            due,
            now,
            "test",
        )
    }
}

/// A guard on this machine that is asked.
pub fn asking(extend_by: Option<DurationMs>, on_no_answer: OnSilence) -> Guard {
    Guard::Asks(Box::new(GuardQuestion {
        http: HttpAction {
            url: "http://127.0.0.1:9003/may-it".to_owned(),
            method: "GET".to_owned(),
            headers: Vec::new(),
            expect_status: Vec::new(),
            success_if: None,
            complete_by: None,
        },
        fire_if: Some("body.fire".to_owned()),
        cancel_if: Some("body.cancel".to_owned()),
        extend_by,
        on_no_answer,
    }))
}

/// An attempt that did the work, without a result.
pub fn succeeded() -> Outcome {
    Outcome::Succeeded {
        result: None,
        result_dropped: false,
    }
}

/// An attempt that failed with this code, for which another attempt may help.
pub fn failed(code: &str) -> Outcome {
    Outcome::Failed(failure(code))
}

/// The failure behind [`failed`], for tests that change one thing about it.
pub fn failure(code: &str) -> Failure {
    Failure {
        code: code.to_owned(),
        message: format!("the receiver said {code}"),
        retryable: true,
        retry_after: None,
        // As the push executor says it of a connection that broke.
        in_doubt: code == "protocol",
    }
}

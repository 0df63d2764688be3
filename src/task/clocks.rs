//! The clocks of a task, and what follows when one of them runs out.
//!
//! ```text
//!  due ──── queue ────▶ start ──────────── attempt ───────────▶ cut off ── grace ──▶ hard stop
//!   │                     └ heartbeat ┴ heartbeat ┴ heartbeat ┘
//!   └──────────────────────────── total, over all attempts ─────────────────────────────▶
//! ```
//!
//! | clock       | runs                                                      | then, if nothing is said |
//! |-------------|-----------------------------------------------------------|--------------------------|
//! | `queue`     | while it is due and waits for a slot or a worker          | dead                     |
//! | `attempt`   | while an attempt is out; of a leased one it is the lease  | by the retry policy      |
//! | `heartbeat` | from one sign of life to the next: of a worker, a handler, | by the retry policy     |
//! |             | a receiver that took the work on                          |                          |
//! | `total`     | from the first due time on, over all attempts             | dead                     |
//!
//! What may be said instead ([`Then`]): to try again, to give up, only to tell of it and to let it go on, or to
//! **escalate**: the task goes on with another action, at once and with a budget of its own, and does so once. The
//! clocks run on over that action; one that runs out there and would escalate again gives up instead.
//!
//! Polls have a time of their own, and no queue clock. A topic that is held stops the queue clock, as limits of ours use
//! no attempts; it begins anew when the topic goes on, and at a start of the service.

use crate::clock::{DurationMs, MonoMs, Now, SteadyMs};
use crate::limits;
use crate::task::model::{DeadReason, State, Task};
use crate::task::outcome::Outcome;
use crate::task::retry::OnFailure;
use crate::task::spec::{Action, TaskSpec};
use crate::task::topic::PartialTimeouts;

/// One of a task's clocks. Grace has no `then`: what follows it is the hard stop.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum TaskClock {
    /// One attempt.
    Attempt,
    /// Between two signs of life.
    Heartbeat,
    /// From coming due to a start.
    Queue,
    /// All attempts.
    Total,
}

impl TaskClock {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Attempt, Self::Heartbeat, Self::Queue, Self::Total];

    /// Its word.
    pub fn name(self) -> &'static str {
        match self {
            Self::Queue => "queue",
            Self::Attempt => "attempt",
            Self::Heartbeat => "heartbeat",
            Self::Total => "total",
        }
    }
}

/// What follows when a clock has run out.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Then {
    /// Another attempt, if any is left. Of `queue` and `total`, where there may have been none, it counts as one.
    Retry,
    /// The task is given up.
    Dead,
    /// It is told of, and goes on.
    Alert,
    /// It goes on with this action.
    Escalate(Box<Action>),
}

/// What follows, for the clocks of which that was said; each stands here once at most, in their order.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Thens(pub Vec<(TaskClock, Then)>);

impl Thens {
    /// These, in order.
    pub fn new(mut thens: Vec<(TaskClock, Then)>) -> Self {
        thens.sort_by_key(|(clock, _)| *clock);
        Self(thens)
    }

    /// Of this clock.
    pub fn of(&self, clock: TaskClock) -> Option<&Then> {
        let mut all = self.0.iter();
        all.find_map(|(of, then)| (*of == clock).then_some(then))
    }

    /// The actions that tasks go on with.
    pub fn escalations(&self) -> impl Iterator<Item = (TaskClock, &Action)> {
        self.0.iter().filter_map(|(clock, then)| match then {
            Then::Escalate(action) => Some((*clock, &**action)),
            _ => None,
        })
    }
}

impl PartialTimeouts {
    /// Whether this clock's length is among them.
    pub fn has(&self, clock: TaskClock) -> bool {
        match clock {
            TaskClock::Queue => self.queue.is_some(),
            TaskClock::Attempt => self.attempt.is_some(),
            TaskClock::Heartbeat => self.heartbeat.is_some(),
            TaskClock::Total => self.total.is_some(),
        }
    }

    /// What is said of its own clocks; of those on which it is silent, what stands under it.
    pub(super) fn thens_over(&self, under: Thens) -> Thens {
        let mut thens = under.0;
        thens.retain(|(clock, _)| !self.has(*clock));
        thens.extend(self.then.0.iter().cloned());
        Thens::new(thens)
    }
}

/// Some of a task's clocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ClockSet(pub u8);

impl ClockSet {
    /// Whether this one is among them.
    pub fn has(self, clock: TaskClock) -> bool {
        self.0 >> clock as u8 & 1 != 0
    }

    /// The same with this one.
    #[must_use]
    pub fn with(self, clock: TaskClock) -> Self {
        Self(self.0 | 1 << clock as u8)
    }
}

/// What a failure leads to after all that is said of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Follow {
    /// Another attempt, if any is left.
    Retry,
    /// No further attempt.
    Dead(DeadReason),
    /// Paused for a person.
    Park,
    /// Another action.
    Escalate(TaskClock),
}

impl TaskSpec {
    /// What is done in the stage at this place, or after this clock has run out.
    pub fn action_of(&self, stage: Option<u8>, escalated: Option<TaskClock>) -> &Action {
        let instead = match escalated.and_then(|clock| self.timeouts.then.of(clock)) {
            Some(Then::Escalate(action)) => Some(&**action),
            _ => None,
        };
        instead.unwrap_or_else(|| self.action_at(stage))
    }

    fn only_tells(&self, clock: TaskClock) -> bool {
        self.timeouts.then.of(clock) == Some(&Then::Alert)
    }
}

impl Task {
    /// What is done when it is due: what it has gone on with, else what its present stage does, if it has stages.
    pub fn action(&self) -> &Action {
        self.spec.action_of(self.stage_place(), self.escalated)
    }

    /// What follows when this clock has run out; `None` is what follows by itself.
    pub fn then(&self, clock: TaskClock) -> Option<&Then> {
        self.spec.timeouts.then.of(clock)
    }

    /// What an attempt that has ended so leads to.
    pub(super) fn follow(&self, outcome: &Outcome) -> Follow {
        let timeouts = &self.spec.timeouts;
        let clock = match outcome {
            Outcome::TimedOut => Some(TaskClock::Attempt),
            Outcome::Silent => Some(TaskClock::Heartbeat),
            Outcome::LeaseExpired if timeouts.heartbeat.is_some() => Some(TaskClock::Heartbeat),
            Outcome::LeaseExpired => Some(TaskClock::Attempt),
            _ => None,
        };
        let retry = &self.spec.retry;
        let leases_max = retry.max_lost_leases.unwrap_or(u32::MAX);
        let follow = match clock.and_then(|clock| Some((clock, self.then(clock)?))) {
            Some((_, Then::Retry)) => Follow::Retry,
            Some((_, Then::Dead)) => Follow::Dead(DeadReason::TimedOut),
            Some((clock, Then::Escalate(_))) if self.escalated.is_none() => Follow::Escalate(clock),
            Some((_, Then::Escalate(_))) => Follow::Dead(DeadReason::TimedOut),
            Some((_, Then::Alert)) | None => match retry.on_outcome(outcome) {
                OnFailure::Retry => Follow::Retry,
                OnFailure::Dead => Follow::Dead(DeadReason::Refused),
                OnFailure::Park => Follow::Park,
            },
        };
        match (outcome, follow) {
            (Outcome::LeaseExpired, Follow::Retry) if self.lost_leases >= leases_max => {
                Follow::Dead(DeadReason::LeaseExpired)
            }
            _ => follow,
        }
    }

    /// How long one attempt may take. One whose clock only tells of it has the longest that there is.
    pub fn attempt_limit(&self) -> DurationMs {
        match self.spec.only_tells(TaskClock::Attempt) {
            true => DurationMs(*limits::ATTEMPT_TIMEOUT_MS.end()),
            false => self.spec.timeouts.attempt,
        }
    }

    /// For how long it is lent: to the next sign of life at most.
    pub(super) fn lease_within(&self, lease: DurationMs) -> DurationMs {
        let timeouts = &self.spec.timeouts;
        let beat = timeouts.heartbeat;
        let beat = beat.filter(|_| !self.spec.only_tells(TaskClock::Heartbeat));
        beat.map_or(lease, |beat| beat.min(lease))
    }

    /// The attempt is under way: its clocks begin. A lease ends by itself.
    pub(super) fn begin_clocks(&mut self, now: Now) {
        let tells = self.spec.only_tells(TaskClock::Attempt) && !self.is_asked_about();
        let after = self.spec.timeouts.attempt;
        if let Some(live) = &mut self.live {
            live.alert_at = tells.then(|| now.mono.after(after));
        }
        self.note_sign_of_life(now);
    }

    /// Whoever has the attempt is alive.
    pub(super) fn note_sign_of_life(&mut self, now: Now) {
        let is_handler = matches!(self.action(), Action::Handler { .. });
        let tells = self.spec.only_tells(TaskClock::Heartbeat);
        let within = self
            .spec
            .timeouts
            .heartbeat
            .filter(|_| !self.is_asked_about());
        if let Some(live) = &mut self.live {
            let is_watched = match live.lease {
                Some(_) => tells,
                None => is_handler,
            };
            let within = within.filter(|_| is_watched);
            live.beat_by = within.map(|within| now.mono.after(within));
        }
    }

    /// When something is to be looked at while an attempt is out: that it counts as lost, or one of its clocks.
    pub fn looked_at(&self) -> Option<MonoMs> {
        let live = self.live.as_ref()?;
        let clocks = [live.beat_by, live.alert_at].into_iter().flatten();
        clocks.chain([live.report_by]).min()
    }

    /// The clock of the attempt that is out that has run out before the attempt counts as lost.
    pub fn ran_out(&self, now: Now) -> Option<TaskClock> {
        let live = self.live.as_ref()?;
        let is_over = |at: Option<MonoMs>| at.is_some_and(|at| at <= now.mono);
        let silent = is_over(live.beat_by).then_some(TaskClock::Heartbeat);
        silent.or(is_over(live.alert_at).then_some(TaskClock::Attempt))
    }

    /// It waits in line from here on.
    pub fn come_into_line(&mut self, since: SteadyMs) {
        if self.spec.timeouts.queue.is_some() {
            self.in_line = Some((self.next, since));
        }
    }

    /// Until when it may wait in line; `None` when that does not matter, or has been told of.
    pub fn queue_until(&self) -> Option<SteadyMs> {
        let length = self.spec.timeouts.queue?;
        let (next, since) = self.in_line?;
        let waits = matches!(self.state, State::Pending | State::Retrying);
        let waits = waits && !self.is_asked_about() && self.stands_in_line();
        let counts = waits && next == self.next && !self.alerted.has(TaskClock::Queue);
        counts.then(|| since.after(length))
    }

    /// Whether a worker or a slot is what it waits for when it is due.
    fn stands_in_line(&self) -> bool {
        match self.action() {
            Action::Pull | Action::Http(_) | Action::Handler { .. } | Action::Command(_) => true,
            Action::Poll(_) | Action::CompleteOnly | Action::None => false,
        }
    }

    /// When it is to be told that its total time is over, if that is all that follows.
    pub fn total_alert_at(&self) -> Option<SteadyMs> {
        let length = self.spec.timeouts.total?;
        let counts = self.spec.only_tells(TaskClock::Total)
            && !self.alerted.has(TaskClock::Total)
            && !self.state.is_ended();
        counts.then(|| Some(self.first_due?.after(length)))?
    }

    /// The length after which all attempts together are over, if that is an end.
    pub(super) fn total_that_ends(&self) -> Option<DurationMs> {
        let total = self.spec.timeouts.total;
        total.filter(|_| !self.spec.only_tells(TaskClock::Total))
    }

    /// Whether a clock runs while it waits in line, of which nothing is stored.
    pub fn counts_in_line(&self) -> bool {
        self.total_until().is_some()
            || self.total_alert_at().is_some()
            || self.queue_until().is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::spec::Timeouts;

    #[test]
    fn a_tasks_own_clock_comes_with_its_own_then_and_the_others_are_the_topics() {
        let topic = PartialTimeouts {
            queue: Some(DurationMs(5)),
            total: Some(DurationMs(9)),
            then: Thens(vec![
                (TaskClock::Queue, Then::Alert),
                (TaskClock::Total, Then::Alert),
            ]),
            ..PartialTimeouts::default()
        };
        let own = PartialTimeouts {
            total: Some(DurationMs(7)),
            heartbeat: Some(DurationMs(1)),
            then: Thens(vec![(TaskClock::Heartbeat, Then::Dead)]),
            ..PartialTimeouts::default()
        };
        let both = own.over(topic.over(Timeouts::default()));
        let lengths = [both.queue, both.total, both.heartbeat];
        assert_eq!(
            lengths.map(|length| length.map(|ms| ms.0)),
            [Some(5), Some(7), Some(1)]
        );
        let thens = TaskClock::ALL.map(|clock| both.then.of(clock));
        assert_eq!(thens, [None, Some(&Then::Dead), Some(&Then::Alert), None]);
    }

    #[test]
    fn a_set_has_what_was_put_in() {
        for clock in TaskClock::ALL {
            let set = ClockSet::default().with(clock);
            assert_eq!(
                TaskClock::ALL.map(|other| set.has(other)),
                TaskClock::ALL.map(|other| other == clock)
            );
        }
    }
}

//! The task itself: one promise to act, where it stands, and what has happened to it.

use std::fmt;
use std::sync::Arc;

use crate::clock::{DurationMs, MonoMs, Now, SteadyMs, WallMs};
use crate::ids::{AttemptNumber, AttemptToken, TaskId};
use crate::limits;
use crate::task::clocks::{ClockSet, TaskClock};
use crate::task::guard::Guard;
use crate::task::history::{AttemptRecord, Change, ErrorNote, Latest};
use crate::task::spec::{HostId, POLL_FOR, RawJson, TaskKey, TaskSpec, TopicName};
use crate::task::stage::{AtStage, Stages};

/// Where a task stands.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum State {
    /// Waits for its due time, or is due and waits for its turn or for a worker.
    Pending,
    /// Written as handed to an executor; nothing may have started yet.
    Dispatched,
    /// An attempt runs.
    Running,
    /// Waits for its next attempt.
    Retrying,
    /// Held by a person.
    Paused,
    /// Done.
    Succeeded,
    /// Given up; for a person to replay, settle or discard.
    Dead,
    /// Called off.
    Cancelled,
}

impl State {
    /// All states, in the order of a task's life.
    pub const ALL: [Self; 8] = [
        Self::Pending,
        Self::Dispatched,
        Self::Running,
        Self::Retrying,
        Self::Paused,
        Self::Succeeded,
        Self::Dead,
        Self::Cancelled,
    ];

    /// The state's word.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Dispatched => "dispatched",
            Self::Running => "running",
            Self::Retrying => "retrying",
            Self::Paused => "paused",
            Self::Succeeded => "succeeded",
            Self::Dead => "dead",
            Self::Cancelled => "cancelled",
        }
    }

    /// The state with that word.
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.name() == word)
    }

    /// Whether only `replay`, `resolve` and `discard` can change it.
    pub fn is_ended(self) -> bool {
        matches!(self, Self::Succeeded | Self::Dead | Self::Cancelled)
    }

    /// Whether an attempt is out.
    pub fn is_in_flight(self) -> bool {
        matches!(self, Self::Dispatched | Self::Running)
    }

    /// Its place in [`State::ALL`].
    pub fn index(self) -> usize {
        self as usize
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Which clock a due time follows.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Lane {
    /// The wall clock: an instant was asked for.
    Wall,
    /// Steady time: a length was asked for.
    Steady,
}

/// A due time: what is shown, and the instant on its lane's clock that fires it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Due {
    /// As shown, sorted by and sent.
    pub at: WallMs,
    /// The clock it follows.
    pub lane: Lane,
    /// Milliseconds of that clock.
    pub fire_ms: i64,
}

impl Due {
    /// Due at an instant of the wall clock; an instant in the past means now.
    pub fn at(at: WallMs, now: Now) -> Self {
        let at = at.max(now.wall);
        Self {
            at,
            lane: Lane::Wall,
            fire_ms: at.0,
        }
    }

    /// Due at an instant of the wall clock, also at one that has passed.
    pub fn missed(at: WallMs) -> Self {
        Self {
            at,
            lane: Lane::Wall,
            fire_ms: at.0,
        }
    }

    /// Due when `length` of steady time has passed.
    pub fn after(length: DurationMs, now: Now) -> Self {
        Self {
            at: now.wall.after(length),
            lane: Lane::Steady,
            fire_ms: now.steady.after(length).0,
        }
    }

    /// The same due time; one that has passed means now.
    pub fn no_earlier_than(self, now: Now) -> Self {
        let late = now.wall.since(self.at);
        let late = i64::try_from(late.0).unwrap_or(i64::MAX);
        self.moved_by(late)
    }

    /// The same due time, so many milliseconds later, or earlier.
    pub fn moved_by(self, ms: i64) -> Self {
        Self {
            at: WallMs(self.at.0.saturating_add(ms)),
            lane: self.lane,
            fire_ms: self.fire_ms.saturating_add(ms),
        }
    }

    /// The same due time, `length` later.
    pub fn later_by(self, length: DurationMs) -> Self {
        Self {
            at: self.at.after(length),
            lane: self.lane,
            fire_ms: WallMs(self.fire_ms).after(length).0,
        }
    }

    /// Milliseconds of its lane's clock.
    pub fn clock_ms(self, now: Now) -> i64 {
        match self.lane {
            Lane::Wall => now.wall.0,
            Lane::Steady => now.steady.0,
        }
    }

    /// How long until it fires; zero when it is reached.
    pub fn remaining(self, now: Now) -> DurationMs {
        WallMs(self.fire_ms).since(WallMs(self.clock_ms(now)))
    }

    /// Whether its time has come.
    pub fn is_reached(self, now: Now) -> bool {
        self.clock_ms(now) >= self.fire_ms
    }
}

/// Which kind of `retrying` it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WaitingFor {
    /// An attempt failed.
    Retry,
    /// A worker asked for the task later.
    Snooze,
    /// What is asked for is not so yet.
    Poll,
    /// It is asked whether it was done. Also while the question is out.
    Verify,
    /// Its guard is asked whether it is to fire. While it is pending, and while the question is out.
    Guard,
}

impl WaitingFor {
    /// The word in the API.
    pub fn name(self) -> &'static str {
        match self {
            Self::Retry => "retry",
            Self::Snooze => "snooze",
            Self::Poll => "poll",
            Self::Verify => "verify",
            Self::Guard => "guard",
        }
    }
}

/// Why a task is dead.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DeadReason {
    /// The last allowed attempt failed or timed out.
    AttemptsUsedUp,
    /// The last allowed attempt's lease ran out.
    LeaseExpired,
    /// The total time over all attempts is over.
    TotalTime,
    /// The target, a worker or the caller said no for good.
    Refused,
    /// Nobody knows whether the work was done.
    OutcomeUnknown,
    /// A clock ran out of which was said that this is the end.
    TimedOut,
}

impl DeadReason {
    /// All reasons.
    pub const ALL: [Self; 6] = [
        Self::AttemptsUsedUp,
        Self::LeaseExpired,
        Self::TotalTime,
        Self::Refused,
        Self::OutcomeUnknown,
        Self::TimedOut,
    ];

    /// The word in the API.
    pub fn name(self) -> &'static str {
        match self {
            Self::AttemptsUsedUp => "attempts_used_up",
            Self::LeaseExpired => "lease_expired",
            Self::TotalTime => "total_time",
            Self::Refused => "refused",
            Self::OutcomeUnknown => "outcome_unknown",
            Self::TimedOut => "timed_out",
        }
    }
}

/// What a pause does to the time left.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum PauseClock {
    /// The due time stays; it may pass meanwhile.
    #[default]
    Keep,
    /// The time left is kept, and counts on from the resume.
    Freeze,
}

/// A pause in force.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pause {
    /// What it does to the time left.
    pub clock: PauseClock,
    /// Steady time from which time left is kept: the pause's start, or a later reschedule.
    pub since: SteadyMs,
}

/// An attempt that is out.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LiveAttempt {
    /// When it started; `None` while it only is dispatched.
    pub started_at: Option<WallMs>,
    /// The worker that holds it.
    pub worker: Option<String>,
    /// For how long it is in other hands: those of a worker, or of a receiver that will complete it later. A heartbeat
    /// renews it by this length.
    pub lease: Option<DurationMs>,
    /// Without an answer by then it counts as lost. Not stored: a start begins it anew.
    pub report_by: MonoMs,
    /// Without a sign of life by then its heartbeat clock has run out. Not stored either.
    pub beat_by: Option<MonoMs>,
    /// When it is to be told that it takes longer than its attempt clock says. Not stored either.
    pub alert_at: Option<MonoMs>,
}

/// How the latest attempt ended, in short.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LastOutcome {
    /// An outcome's name, or why the task ended without one (`total_time`).
    pub outcome: &'static str,
    /// Its failure, if it was one.
    pub error: Option<ErrorNote>,
}

/// One promise to act.
#[derive(Clone, PartialEq, Debug)]
pub struct Task {
    /// Its id, which carries its slot.
    pub id: TaskId,
    /// Its topic.
    pub topic: TopicName,
    /// The caller's own id inside the topic.
    pub key: Option<TaskKey>,
    /// What was asked for.
    pub spec: Arc<TaskSpec>,
    /// Where it stands.
    pub state: State,
    /// Grows with each replay and replace, from 1.
    pub generation: u32,
    /// Where it stands among its stages, if it has any. What follows is that of its present stage.
    pub at_stage: Option<AtStage>,
    /// When it was, or will be, due.
    pub due: Due,
    /// When its next attempt is made, or its guard is asked: its due time, later a retry's.
    pub next: Due,
    /// Steady time at which it began to wait for that: an older freeze of its topic does not concern it.
    pub waiting_since: SteadyMs,
    /// When this generation, in its present stage, first came due; its total time counts from here.
    pub first_due: Option<SteadyMs>,
    /// When it was created.
    pub created_at: WallMs,
    /// When it last changed.
    pub updated_at: WallMs,
    /// When it ended.
    pub ended_at: Option<WallMs>,
    /// The clock by which it was escalated; it goes on with that one's action.
    pub escalated: Option<TaskClock>,
    /// Clocks of this generation and stage that have run out and were told of.
    pub alerted: ClockSet,
    /// Since when it waits in line, for which of its times. Not stored: a start begins it anew.
    pub in_line: Option<(Due, SteadyMs)>,
    /// When its record may go.
    pub expires: Option<SteadyMs>,
    /// Attempts of this generation, in its present stage, that count.
    pub attempts: u32,
    /// Leases that were lost among them.
    pub lost_leases: u32,
    /// How far the work had got when its latest attempt last said so, for the next one. Of this generation and stage.
    pub checkpoint: Option<RawJson>,
    /// Number of the latest attempt, over all generations.
    pub attempt: AttemptNumber,
    /// Fencing number of the latest attempt.
    pub token: AttemptToken,
    /// The attempt that is out, while dispatched or running.
    pub live: Option<LiveAttempt>,
    /// While paused.
    pub pause: Option<Pause>,
    /// While retrying, and while a question about it is to be asked, or out.
    pub waiting_for: Option<WaitingFor>,
    /// Questions of its guard in a row that nobody has answered.
    pub unanswered: u32,
    /// When dead.
    pub dead_reason: Option<DeadReason>,
    /// How the latest attempt ended.
    pub last_outcome: Option<LastOutcome>,
    /// What the work gave back; in a staged task, that of the last stage that has ended.
    pub result: Option<RawJson>,
    /// There was a result, larger than may be kept.
    pub result_dropped: bool,
    /// How late the latest attempt started, in milliseconds.
    pub lateness_ms: Option<i64>,
    /// The topic's latest thaw that this task has been through (see `ShardCore::thaw`).
    pub thaw: u32,
    /// Hashes of the latest requests that changed it and may be sent again, newest last.
    pub requests: Vec<u64>,
    /// Its latest attempts.
    pub attempts_log: Latest<AttemptRecord>,
    /// Its latest changes of state.
    pub changes: Latest<Change>,
}

impl Task {
    /// A new pending task. `by` is who created it.
    pub fn new(
        id: TaskId,
        topic: TopicName,
        key: Option<TaskKey>,
        spec: Arc<TaskSpec>,
        due: Due,
        now: Now,
        by: &str,
    ) -> Self {
        let created_at = spec.rule.as_ref().map_or(now.wall, |rule| rule.at);
        let mut changes = Latest::default();
        changes.push(Change {
            at: now.wall,
            from: None,
            to: State::Pending,
            by: by.to_owned(),
            why: "created".to_owned(),
        });
        let mut task = Self {
            id,
            topic,
            key,
            at_stage: AtStage::first(&spec, now),
            spec,
            state: State::Pending,
            generation: 1,
            due,
            next: due,
            waiting_since: now.steady,
            first_due: None,
            created_at,
            updated_at: now.wall,
            ended_at: None,
            expires: None,
            escalated: None,
            alerted: ClockSet::default(),
            in_line: None,
            attempts: 0,
            lost_leases: 0,
            checkpoint: None,
            attempt: AttemptNumber(0),
            token: AttemptToken(0),
            live: None,
            pause: None,
            waiting_for: None,
            unanswered: 0,
            dead_reason: None,
            last_outcome: None,
            result: None,
            result_dropped: false,
            lateness_ms: None,
            thaw: 0,
            requests: Vec::new(),
            attempts_log: Latest::default(),
            changes,
        };
        task.ask_guard_first();
        task
    }

    /// How long all attempts together may take, from the first due time: for a poll that is what its last question
    /// waits for.
    pub fn total(&self) -> Option<DurationMs> {
        let total = self.total_that_ends();
        match self.action().poll() {
            Some(poll) => match (poll.within, total) {
                (Some(within), Some(total)) => Some(within.min(total)),
                (within, total) => within.or(total).or(Some(POLL_FOR)),
            },
            None => total,
        }
    }

    /// When all attempts together must be over; `None` without such a limit or before the first due time.
    pub fn total_until(&self) -> Option<SteadyMs> {
        Some(self.first_due?.after(self.total()?))
    }

    /// Whether an attempt is out that an executor of ours works on, or is about to.
    pub fn runs_here(&self) -> bool {
        let live = self.live.as_ref();
        self.starts_here() && live.is_some_and(|live| live.lease.is_none())
    }

    /// Whether what it waits for, or what is out, is the question whether it was done.
    pub fn verifies(&self) -> bool {
        self.waiting_for == Some(WaitingFor::Verify)
    }

    /// The question about the task that it waits for, or that is out: it is no attempt.
    pub fn question(&self) -> Option<WaitingFor> {
        let is_question =
            |waits: &WaitingFor| matches!(waits, WaitingFor::Verify | WaitingFor::Guard);
        self.waiting_for.filter(is_question)
    }

    /// Whether there is one.
    pub fn is_asked_about(&self) -> bool {
        self.question().is_some()
    }

    /// Whether an executor of ours starts what is next, so that a start must be written before.
    pub fn starts_here(&self) -> bool {
        self.is_asked_about() || self.action().is_dispatched()
    }

    /// Whether somebody is to be told when it ends.
    pub fn calls_back(&self) -> bool {
        self.spec.on_end.is_some()
    }

    /// Whom what is next goes to, if it is a request.
    pub fn host(&self) -> Option<HostId> {
        match (self.question(), &self.spec.verify, self.guard_question()) {
            (Some(WaitingFor::Verify), Some(verify), _) => Some(verify.http.host()),
            (Some(WaitingFor::Guard), _, Some(question)) => Some(question.http.host()),
            _ => self.action().host(),
        }
    }

    /// Whether the next question of this poll, or the one that is out, is its last: it is asked when the time is over.
    pub fn asks_last(&self) -> bool {
        self.action().poll().is_some()
            && self.next.lane == Lane::Steady
            && self
                .total_until()
                .is_some_and(|until| self.next.fire_ms >= until.0)
    }

    /// Notes that a request changed it, so that the same one, sent again, does not change it twice.
    pub fn note_request(&mut self, request: u64) {
        if self.requests.len() >= limits::REQUESTS_KEPT {
            self.requests.remove(0);
        }
        self.requests.push(request);
    }

    /// About how many bytes it takes to write it down.
    pub fn weight(&self) -> usize {
        let json = |json: &Option<RawJson>| json.as_ref().map_or(0, |json| json.0.len());
        let history = self.attempts_log.kept.len() + self.changes.kept.len();
        let spec = &self.spec;
        let stages = spec.stages.as_ref().map_or(0, Stages::weight);
        let texts = json(&spec.payload) + json(&spec.facts) + json(&self.result);
        let texts = texts + json(&self.checkpoint) + 256 * spec.timeouts.then.0.len();
        let texts = texts + spec.guard.as_ref().map_or(0, Guard::weight);
        512 + texts + stages + 128 * history
    }

    /// Whether this generation may have another attempt.
    pub fn has_attempts_left(&self) -> bool {
        self.attempts < self.spec.retry.max_attempts.min(limits::ATTEMPTS_MAX)
    }
}

//! One schedule on its way: a step at a time. Each step ends with at most one change of its position, which is stored
//! before the next.

use std::fmt;

use xxhash_rust::xxh3::xxh3_128;

use crate::clock::{DurationMs, WallMs};
use crate::engine::error::EngineError;
use crate::engine::handle::{Duetime, Origin};
use crate::engine::schedules::{Position, Reply};
use crate::rule::Schedule;
use crate::rule::book::Kept;
use crate::rule::schedule::{CatchUp, Overlap};
use crate::shard::messages::{Target, VerbRefused};
use crate::shard::query::TaskView;
use crate::task::event::Event;
use crate::task::model::{PauseClock, State};
use crate::task::new_task::{NewTask, When};
use crate::task::spec::{ResourceName, TaskKey, TopicName};

/// How long before an occurrence is due the next one is stored, and the overlap is looked at: longer than a commit
/// takes, shorter than anybody minds.
const AHEAD: DurationMs = DurationMs(60);
/// How long before it is due an occurrence is held whose predecessor is not over: it can't begin beside that one then, even
/// if a slow disk keeps this part from deciding in time.
const HELD_AHEAD: DurationMs = DurationMs(500);
/// Who makes the tasks, as their logs say.
const BY: &str = "schedule";

/// Where the tasks of occurrences are, and the time: the engine, or a play of one.
pub(in crate::engine) trait Tasks {
    /// What time it is.
    fn time(&self) -> WallMs;
    /// Makes a task; again, it finds the one that it made.
    async fn make(&self, new: NewTask, origin: Origin, by: &str) -> Result<(), EngineError>;
    /// Looks at one.
    async fn look(&self, target: Target) -> Result<Option<TaskView>, EngineError>;
    /// Has a verb happen to one.
    async fn tell(&self, target: Target, event: Event, by: &str) -> Result<(), EngineError>;
}

impl Tasks for Duetime {
    fn time(&self) -> WallMs {
        self.now().wall
    }

    async fn make(&self, new: NewTask, origin: Origin, by: &str) -> Result<(), EngineError> {
        self.create_from(new, Some(origin), by).await.map(drop)
    }

    async fn look(&self, target: Target) -> Result<Option<TaskView>, EngineError> {
        self.get(target).await
    }

    async fn tell(&self, target: Target, event: Event, by: &str) -> Result<(), EngineError> {
        self.verb(target, event, by).await.map(drop)
    }
}

/// See the module's header.
pub(in crate::engine) struct Course {
    pub name: ResourceName,
    pub position: Position,
    /// The position is not stored yet.
    pub is_dirty: bool,
    /// When to look again.
    pub wake: Wake,
    /// Those who wait until it is settled.
    pub replies: Vec<Reply>,
}

/// When a schedule is to be looked at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::engine) enum Wake {
    /// It can go on.
    Now,
    /// Something is to end first; by no clock that may step.
    Soon,
    /// Then.
    At(WallMs),
    /// When it is changed.
    Never,
}

impl Wake {
    /// Whether a step may bring it on.
    pub fn has_come(self, now: WallMs) -> bool {
        match self {
            Self::Now | Self::Soon => true,
            Self::At(at) => at <= now,
            Self::Never => false,
        }
    }
}

/// What is known of an occurrence's task.
enum Seen {
    /// It ended, or there is none.
    Over,
    /// Its time has not come, or nobody has taken it yet.
    Waiting {
        /// Its time has not come.
        is_ahead: bool,
    },
    /// It is paused.
    Held,
    /// It has been started.
    Started,
}

impl Course {
    /// One that is stored.
    pub fn at(name: ResourceName, position: Position) -> Self {
        Self {
            name,
            position,
            is_dirty: false,
            wake: Wake::Now,
            replies: Vec::new(),
        }
    }

    /// One that begins.
    pub fn new(name: ResourceName, position: Position) -> Self {
        Self {
            is_dirty: true,
            ..Self::at(name, position)
        }
    }

    /// Something has changed.
    pub fn look_now(&mut self) {
        self.wake = Wake::Now;
    }

    /// Goes on from now, as a course of its own.
    pub fn resume(&mut self, kept: &Kept<Schedule>, now: WallMs) {
        let stored_ms = self.position.stored_ms;
        self.position = Position {
            // Still to be called off, if the pause has not got there.
            stored_ms,
            version: 0,
            runs: self.position.runs,
            ran_ms: self.position.ran_ms,
            topic: self.position.topic.clone(),
            ..Position::begun(kept, now, false)
        };
    }

    /// Whether it stands where its schedule and the wishes want it.
    pub fn is_settled(&self) -> bool {
        !self.is_dirty && (!self.position.is_paused || self.wake == Wake::Never)
    }

    /// One step; leaves the time of the next in `wake`.
    pub async fn step(
        &mut self,
        tasks: &impl Tasks,
        kept: &Kept<Schedule>,
        at_start: bool,
    ) -> Result<(), EngineError> {
        let now = tasks.time();
        let is_another = self.position.version != kept.version;
        if is_another || self.position.is_paused {
            if self.call_off_what_is_ahead(tasks).await? {
                self.change(|position| position.stored_ms = None);
            } else if is_another {
                self.begin(kept, now);
            } else {
                self.wake = Wake::Never;
            }
            return Ok(());
        }
        match self.position.stored_ms.map(WallMs) {
            None => self.store_next(tasks, kept, now, at_start).await,
            Some(at) => self.let_go(tasks, kept, at, now, at_start).await,
        }
    }

    /// Cancels what has not come due: the stored occurrence, and the latest that was let go if that was in the last
    /// moments before its time. Whether there was anything.
    async fn call_off_what_is_ahead(&mut self, tasks: &impl Tasks) -> Result<bool, EngineError> {
        const WHY: &str = "its schedule was changed or is held";
        let stored = self.position.stored_ms.map(WallMs);
        if let Some(at) = stored {
            self.call_off(tasks, at, WHY).await?;
        }
        if let Some(at) = self.position.ran_ms.map(WallMs)
            && let Seen::Waiting { is_ahead: true } = self.look(tasks, at).await?
        {
            self.call_off(tasks, at, WHY).await?;
            self.change(|position| position.runs = position.runs.saturating_sub(1));
            return Ok(true);
        }
        Ok(stored.is_some())
    }

    /// The schedule is new, or another one than before.
    fn begin(&mut self, kept: &Kept<Schedule>, now: WallMs) {
        let was_resumed = self.position.version == 0;
        let position = match was_resumed {
            true => Position {
                version: kept.version,
                topic: kept.meaning.topic.as_str().to_owned(),
                ..self.position.clone()
            },
            false => Position::begun(kept, kept.changed_at.min(now), self.position.is_paused),
        };
        self.change(|it| *it = position);
    }

    /// There is none ahead: stores the next one, or deals with those that were missed.
    async fn store_next(
        &mut self,
        tasks: &impl Tasks,
        kept: &Kept<Schedule>,
        now: WallMs,
        at_start: bool,
    ) -> Result<(), EngineError> {
        let schedule = &kept.meaning;
        let last = WallMs(self.position.last_ms);
        let next = schedule.next(last, kept.changed_at);
        let Some(next) = next.filter(|_| self.has_runs_left(schedule, 0)) else {
            self.wake = Wake::Never;
            return Ok(());
        };
        if next > now {
            self.make(tasks, schedule, next, false).await?;
            self.change(|position| position.stored_ms = Some(next.0));
            return Ok(());
        }
        // It was missed.
        let latest = schedule.latest(last, now, kept.changed_at).unwrap_or(next);
        let chosen = match schedule.catch_up {
            CatchUp::None => None,
            CatchUp::Latest => Some(latest),
            CatchUp::All => Some(next),
        };
        if at_start && chosen != Some(next) {
            // A crash may have come between its task and its position.
            self.call_off(tasks, next, "it was missed").await?;
        }
        let Some(chosen) = chosen else {
            self.change(|position| position.last_ms = latest.0);
            return Ok(());
        };
        // One after the other, in their order.
        if let Some(ran) = self.position.ran_ms.map(WallMs) {
            let is_its_turn = match self.look(tasks, ran).await? {
                Seen::Over => true,
                Seen::Waiting { .. } | Seen::Held => false,
                Seen::Started => schedule.overlap == Overlap::Allow,
            };
            if !is_its_turn {
                self.wake = Wake::Soon;
                return Ok(());
            }
        }
        self.make(tasks, schedule, chosen, true).await?;
        self.change(|position| {
            position.last_ms = chosen.0;
            position.ran_ms = Some(chosen.0);
            position.runs += 1;
        });
        Ok(())
    }

    /// One is stored: when its time comes, stores the next one and lets it go, unless it is to be left out or to wait.
    async fn let_go(
        &mut self,
        tasks: &impl Tasks,
        kept: &Kept<Schedule>,
        at: WallMs,
        now: WallMs,
        at_start: bool,
    ) -> Result<(), EngineError> {
        let schedule = &kept.meaning;
        let due = schedule.due(self.name.as_str(), at);
        let time = WallMs(due.0.saturating_sub_unsigned(AHEAD.0));
        if time > now {
            let hold = WallMs(due.0.saturating_sub_unsigned(HELD_AHEAD.0));
            self.wake = Wake::At(match schedule.overlap {
                Overlap::Allow => time,
                _ if hold > now => hold,
                _ if self.has_free_way(tasks).await? || self.hold(tasks, at).await? => time,
                // It is held in the next step.
                _ => return Ok(()),
            });
            return Ok(());
        }
        let next = schedule.next(at, kept.changed_at);
        if at_start && due <= now {
            let is_latest = next.is_none_or(|next| next > now);
            let is_dropped = match schedule.catch_up {
                CatchUp::None => true,
                CatchUp::Latest => !is_latest,
                CatchUp::All => false,
            };
            // What had been started before the start is no matter of catching up.
            let is_there = matches!(
                self.look(tasks, at).await?,
                Seen::Waiting { .. } | Seen::Held
            );
            if is_dropped && is_there {
                return self.leave_out(tasks, at, "it was missed").await;
            }
        }
        if schedule.overlap != Overlap::Allow
            && !self.has_free_way(tasks).await?
            && matches!(
                self.look(tasks, at).await?,
                Seen::Waiting { .. } | Seen::Held
            )
        {
            let waits = schedule.overlap == Overlap::Queue
                || (at_start && schedule.catch_up == CatchUp::All);
            if !waits {
                return self
                    .leave_out(tasks, at, "the one before it had not ended")
                    .await;
            }
            if self.hold(tasks, at).await? {
                self.wake = Wake::Soon;
            }
            return Ok(());
        }
        let ahead = next.filter(|next| *next > now && self.has_runs_left(schedule, 1));
        if let Some(next) = ahead {
            self.make(tasks, schedule, next, false).await?;
        }
        if self.position.is_held {
            self.tell(tasks, at, Event::Resume).await?;
        }
        self.change(|position| {
            position.last_ms = at.0;
            position.ran_ms = Some(at.0);
            position.runs += 1;
            position.is_held = false;
            position.stored_ms = ahead.map(|next| next.0);
        });
        Ok(())
    }

    /// Whether the one before is over, or there was none.
    async fn has_free_way(&self, tasks: &impl Tasks) -> Result<bool, EngineError> {
        match self.position.ran_ms.map(WallMs) {
            Some(ran) => Ok(matches!(self.look(tasks, ran).await?, Seen::Over)),
            None => Ok(true),
        }
    }

    /// Pauses the task of an occurrence. That it is held is stored first: what a crash leaves paused is let go after it.
    /// Whether it is paused now.
    async fn hold(&mut self, tasks: &impl Tasks, at: WallMs) -> Result<bool, EngineError> {
        if !self.position.is_held {
            self.change(|position| position.is_held = true);
            return Ok(false);
        }
        if matches!(self.look(tasks, at).await?, Seen::Waiting { .. }) {
            let clock = PauseClock::Keep;
            self.tell(tasks, at, Event::Pause { clock }).await?;
        }
        Ok(true)
    }

    async fn leave_out(
        &mut self,
        tasks: &impl Tasks,
        at: WallMs,
        why: &str,
    ) -> Result<(), EngineError> {
        self.call_off(tasks, at, why).await?;
        self.change(|position| {
            position.last_ms = at.0;
            position.is_held = false;
            position.stored_ms = None;
        });
        Ok(())
    }

    fn has_runs_left(&self, schedule: &Schedule, more: u64) -> bool {
        let most = schedule.count.unwrap_or(u64::MAX);
        self.position.runs.saturating_add(more) < most
    }

    fn change(&mut self, change: impl FnOnce(&mut Position)) {
        change(&mut self.position);
        self.is_dirty = true;
        self.look_now();
    }

    // ---------------------------------------------------------------- tasks

    /// Makes the task of an occurrence; again, it finds the one that it made.
    async fn make(
        &self,
        tasks: &impl Tasks,
        schedule: &Schedule,
        at: WallMs,
        was_missed: bool,
    ) -> Result<(), EngineError> {
        let due = schedule.due(self.name.as_str(), at);
        let when = match was_missed {
            true => When::Missed(due),
            false => When::At(due),
        };
        let since_ms = self.position.since_ms;
        let which = format!("schedule\0{}\0{since_ms}\0{}", self.name, at.0);
        let origin = Origin {
            key: xxh3_128(which.as_bytes()),
            first_at: at,
        };
        let new = task_of(&self.name, schedule, at, Some(when));
        tasks.make(new, origin, BY).await
    }

    fn target(&self, at: WallMs) -> Option<Target> {
        let topic = TopicName::parse(&self.position.topic).ok()?;
        Some(Target::Key(topic, key_of(&self.name, at)))
    }

    async fn look(&self, tasks: &impl Tasks, at: WallMs) -> Result<Seen, EngineError> {
        let Some(target) = self.target(at) else {
            return Ok(Seen::Over);
        };
        let view: Option<TaskView> = match tasks.look(target).await {
            Err(EngineError::Refused(_)) => None,
            looked => looked?,
        };
        Ok(match view.map(|view| view.task) {
            None => Seen::Over,
            Some(task) if task.state.is_ended() => Seen::Over,
            Some(task) if task.state == State::Paused && task.attempts == 0 => Seen::Held,
            // An attempt may be handed out a little ahead; it begins at its time.
            Some(task)
                if matches!(task.state, State::Pending | State::Dispatched)
                    && task.due.at > tasks.time() =>
            {
                Seen::Waiting { is_ahead: true }
            }
            Some(task) if task.attempts > 0 || task.state == State::Retrying => Seen::Started,
            Some(_) => Seen::Waiting { is_ahead: false },
        })
    }

    /// Cancels the task of an occurrence that has not been started.
    async fn call_off(&self, tasks: &impl Tasks, at: WallMs, why: &str) -> Result<(), EngineError> {
        match self.look(tasks, at).await? {
            Seen::Waiting { .. } | Seen::Held => {
                let reason = why.to_owned();
                self.tell(tasks, at, Event::Cancel { reason }).await
            }
            Seen::Over | Seen::Started => Ok(()),
        }
    }

    /// Has a verb happen to the task of an occurrence. That its state does not allow it, or that it is gone, is as good.
    async fn tell(&self, tasks: &impl Tasks, at: WallMs, event: Event) -> Result<(), EngineError> {
        let Some(target) = self.target(at) else {
            return Ok(());
        };
        match tasks.tell(target, event, BY).await {
            Ok(()) | Err(EngineError::Refused(VerbRefused::NotFound | VerbRefused::Refused(_))) => {
                Ok(())
            }
            Err(error) => Err(error),
        }
    }
}

impl fmt::Debug for Course {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Course({}, {:?})", self.name, self.position)
    }
}

/// `<schedule>@<time>`.
fn key_of(name: &ResourceName, at: WallMs) -> TaskKey {
    TaskKey::parse(&format!("{name}@{at}")).expect("a name and a time are no longer than a key")
}

/// The task of an occurrence.
pub(super) fn task_of(
    name: &ResourceName,
    schedule: &Schedule,
    at: WallMs,
    when: Option<When>,
) -> NewTask {
    NewTask {
        key: Some(key_of(name, at)),
        when,
        action: schedule.action.clone(),
        payload: schedule.payload.clone(),
        ..NewTask::new(schedule.topic.clone())
    }
}

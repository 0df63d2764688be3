//! A shard that is only played through ([`shard::play`](crate::shard::play)): it tells all that happens to its tasks, in
//! order, and nothing looks after it, for there is nothing to be lost.

use std::sync::Arc;

use crate::clock::{Now, WallMs};
use crate::ids::TaskId;
use crate::shard::core::ShardCore;
use crate::task::event::Event;
use crate::task::model::{DeadReason, State, Task, WaitingFor};
use crate::task::spec::{TaskKey, TaskSpec, TopicName};

/// Where a task stands, in short.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// Its state.
    pub state: State,
    /// The place of its present stage.
    pub stage: Option<u8>,
    /// Attempts that count, in this stage.
    pub attempts: u32,
    /// When its next attempt is made.
    pub next_at: WallMs,
    /// Which kind of `retrying` it is.
    pub waiting_for: Option<WaitingFor>,
    /// When dead.
    pub dead_reason: Option<DeadReason>,
}

impl Moment {
    fn of(task: &Task) -> Self {
        Self {
            state: task.state,
            stage: task.stage_place(),
            attempts: task.attempts,
            next_at: task.next.at,
            waiting_for: task.waiting_for,
            dead_reason: task.dead_reason,
        }
    }
}

/// One thing that has happened to a task.
#[derive(Clone, Debug)]
pub struct Happened {
    /// When.
    pub at: WallMs,
    /// To which.
    pub task: TaskId,
    /// Its topic.
    pub topic: TopicName,
    /// Its key.
    pub key: Option<TaskKey>,
    /// What it carries.
    pub spec: Arc<TaskSpec>,
    /// What: [`Event::verb`].
    pub verb: &'static str,
    /// The place of the stage that it is about.
    pub stage: Option<u8>,
    /// Why, if somebody gave a reason.
    pub why: Option<String>,
    /// Before.
    pub from: Moment,
    /// After.
    pub to: Moment,
}

/// What has to be known of an event before it happens.
pub(super) struct Watched {
    verb: &'static str,
    stage: Option<u8>,
    why: Option<String>,
    from: Moment,
}

impl ShardCore {
    /// From here on it is only played through. Chance follows from `seed`.
    pub fn play(&mut self, seed: u64) {
        self.random = seed ^ u64::from(self.id.0).rotate_right(16);
        self.happened = Some(Vec::new());
    }

    pub(super) fn is_played(&self) -> bool {
        self.happened.is_some()
    }

    /// What has happened since this was asked last.
    pub fn take_happened(&mut self) -> Vec<Happened> {
        self.happened
            .as_mut()
            .map(std::mem::take)
            .unwrap_or_default()
    }

    /// Bytes of the records that it holds in memory.
    pub fn recent_bytes(&self) -> u64 {
        self.table.shelf().counts().recent_bytes
    }

    pub(super) fn begin_watching(&self, id: TaskId, event: &Event) -> Option<Watched> {
        self.happened.as_ref()?;
        let task = &self.table.awake(id)?.task;
        let stage = match event {
            Event::StagePassedOver { place, .. } | Event::StageTookOver { place } => Some(*place),
            _ => task.stage_place(),
        };
        let why = match event {
            Event::Cancel { reason } => Some(reason.clone()),
            _ => None,
        };
        let (verb, from) = (event.verb(), Moment::of(task));
        Some(Watched {
            verb,
            stage,
            why,
            from,
        })
    }

    pub(super) fn end_watching(&mut self, id: TaskId, watched: Option<Watched>, now: Now) {
        let (Some(happened), Some(watched)) = (&mut self.happened, watched) else {
            return;
        };
        let Some(task) = self.table.awake(id).map(|entry| &entry.task) else {
            return;
        };
        happened.push(Happened {
            at: now.wall,
            task: id,
            topic: task.topic.clone(),
            key: task.key.clone(),
            spec: Arc::clone(&task.spec),
            verb: watched.verb,
            stage: watched.stage,
            why: watched.why,
            from: watched.from,
            to: Moment::of(task),
        });
    }
}

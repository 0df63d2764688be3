//! Stages of tasks coming: which one it is now, and whether its condition lets it run.

use serde_json::{Value as Json, json};

use crate::clock::Now;
use crate::ids::TaskId;
use crate::limits::ARM_AHEAD;
use crate::rule::expr::{self, Expr, Fault};
use crate::shard::core::ShardCore;
use crate::task::event::Event;
use crate::task::guard::Guard;
use crate::task::history::ErrorNote;
use crate::task::model::{State, Task};
use crate::task::spec::TaskKey;
use crate::task::stage::Stage;

/// So much cost of conditions counts as a byte that a step writes: of the most costly ones 64 fit in a step, which takes
/// 200 ms at worst, and of usual ones hundreds.
pub(super) const COST_PER_BYTE: usize = 8;

impl ShardCore {
    /// Lets a later stage of a task take over if its time has come, or passes over it if its condition is not true.
    /// Whether it came to either; the alarms are then those of what the task has become.
    pub(super) fn take_over(&mut self, id: TaskId, now: Now) -> bool {
        let later = |task: &Task| task.takes_over().filter(|(_, due)| due.is_reached(now));
        let task = self.table.wake(id).map(|entry| &*entry.task);
        let place = task.and_then(later).map(|(place, _)| place);
        place.is_some_and(|place| {
            let runs = Event::StageTookOver { place };
            self.let_come(id, place, Some(runs), now)
        })
    }

    /// Passes over the stage of a task that has come, if its condition is not true. Whether it did.
    pub(super) fn pass_over(&mut self, id: TaskId, now: Now) -> bool {
        let task = self.table.wake(id).map(|entry| &*entry.task);
        // What was tried already had come before that; while its guard is asked its time is still to come.
        let task = task.filter(|task| {
            task.state == State::Pending && task.attempts == 0 && !task.asks_guard()
        });
        let place = task.and_then(Task::stage_place);
        place.is_some_and(|place| self.let_come(id, place, None, now))
    }

    /// A stage comes: what happens to its task if it is to run, or that it is passed over. Whether anything did.
    fn let_come(&mut self, id: TaskId, place: u8, runs: Option<Event>, now: Now) -> bool {
        let Some(task) = self.table.awake(id).map(|entry| &*entry.task) else {
            return false;
        };
        let Some(stage) = task.spec.stage_at(Some(place)) else {
            return false;
        };
        let passed = |error| Some(Event::StagePassedOver { place, error });
        let (holds, cost) = condition_holds(stage, task, now);
        // Many of them share a step as its bytes are shared.
        self.note_bytes(cost / COST_PER_BYTE);
        let event = match holds {
            Ok(true) => runs,
            Ok(false) => passed(None),
            Err(fault) => passed(Some(ErrorNote {
                code: "condition_error".to_owned(),
                message: fault.to_string(),
            })),
        };
        let done = event.and_then(|event| self.change(id, event, "shard", now));
        matches!(done, Some(Ok(_)))
    }
}

/// Whether a stage of a task is to run, and what it may have cost to know: its condition, and that of its guard.
fn condition_holds(stage: &Stage, task: &Task, now: Now) -> (Result<bool, Fault>, usize) {
    let guard = stage.guard.as_ref().and_then(Guard::condition);
    let conditions = stage.condition.iter().chain(guard);
    conditions.fold((Ok(true), 0), |(so_far, cost), condition| match so_far {
        Ok(true) => {
            let (holds, more) = holds(condition, task, now);
            (holds, cost + more)
        }
        so_far => (so_far, cost),
    })
}

/// Whether a condition is true of a task, and what it may have cost to know.
pub(super) fn holds(condition: &str, task: &Task, now: Now) -> (Result<bool, Fault>, usize) {
    match Expr::shared(condition, expr::TASK) {
        Ok(expr) => (expr.holds(|name| Ok(input(name, task, now))), expr.cost()),
        // It was checked when the task was created, or imported.
        Err(flaw) => (Err(Fault::Failed(flaw.to_string())), 0),
    }
}

/// What an expression over a task reads under a name.
fn input(name: &str, task: &Task, now: Now) -> Json {
    let spec = &task.spec;
    match name {
        "facts" => {
            let facts = spec.facts.as_ref();
            let facts = facts.and_then(|facts| serde_json::from_str(facts.as_str()).ok());
            facts.unwrap_or_else(|| json!({}))
        }
        "topic" => json!(task.topic.as_str()),
        "key" => json!(task.key.as_ref().map(TaskKey::as_str)),
        "tags" => spec.tags.iter().cloned().collect(),
        "created_at" => json!(task.created_at.0),
        // A push is looked at a little ahead of its instant.
        "now" => json!(
            now.wall
                .0
                .max(task.next.at.min(now.wall.after(ARM_AHEAD)).0)
        ),
        _ => Json::Null,
    }
}

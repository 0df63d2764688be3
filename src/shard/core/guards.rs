//! Guards of tasks that come due: conditions are evaluated here, questions are handed out like attempts.

use crate::clock::Now;
use crate::ids::TaskId;
use crate::shard::core::ShardCore;
use crate::shard::core::stages::{COST_PER_BYTE, holds};
use crate::task::event::Event;
use crate::task::guard::Guard;
use crate::task::history::ErrorNote;
use crate::task::model::{State, Task};
use crate::task::outcome::{FAILED_IF, Outcome};

/// What the questions of guards have come to since the shard's start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GuardCounts {
    /// Answers that let a task fire.
    pub fire: u64,
    /// Answers that call it off by `cancel_if`.
    pub cancel: u64,
    /// Answers that are neither.
    pub neither: u64,
    /// Questions that nobody answered.
    pub none: u64,
    /// Tasks that were held for a person, because nobody did.
    pub held: u64,
}

/// What an answer to a guard's question says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    Fire,
    Cancel,
    Neither,
    None,
}

/// The answer to the guard's question that this event brings, if it does.
pub(super) fn answer_in(event: &Event, task: &Task) -> Option<Answer> {
    if !task.asks_guard() || !task.state.is_in_flight() {
        return None;
    }
    match event {
        Event::Overdue { token } if *token == task.token => Some(Answer::None),
        Event::Finished { token, outcome, .. } if *token == task.token => match outcome {
            Outcome::Succeeded { .. } => Some(Answer::Fire),
            Outcome::NotYet { .. } => Some(Answer::Neither),
            Outcome::Failed(failure) if failure.code == FAILED_IF => Some(Answer::Cancel),
            Outcome::Failed(_) | Outcome::TimedOut => Some(Answer::None),
            _ => None,
        },
        _ => None,
    }
}

impl ShardCore {
    /// Whether a task that comes due is kept from it by its guard: the condition is not true, or the answer is too old.
    pub(super) fn is_barred(&mut self, id: TaskId, is_held: bool, now: Now) -> bool {
        let task = self.table.awake(id).map(|entry| &*entry.task);
        let Some(task) = task.filter(|task| task.has_yet_to_fire() && !task.asks_guard()) else {
            return false;
        };
        let event = match task.guard() {
            // That of a stage was looked at when the stage came.
            Some(Guard::If(condition)) if !task.is_guarded_by_stage() => {
                let (holds, cost) = holds(condition, task, now);
                self.note_bytes(cost / COST_PER_BYTE);
                match holds {
                    Ok(true) => None,
                    Ok(false) => Some(Event::Barred { error: None }),
                    Err(fault) => Some(Event::Barred {
                        error: Some(ErrorNote {
                            code: "condition_error".to_owned(),
                            message: fault.to_string(),
                        }),
                    }),
                }
            }
            Some(Guard::Asks(_)) if !is_held && task.is_let_fire_long_ago(now) => {
                Some(Event::AnswerOutdated)
            }
            _ => None,
        };
        let done = event.and_then(|event| self.change(id, event, "shard", now));
        matches!(done, Some(Ok(_)))
    }

    /// Counts an answer that a task has got; it may have been held for it.
    pub(super) fn note_guard(&mut self, id: TaskId, answer: Option<Answer>) {
        let Some(answer) = answer else { return };
        let counts = &mut self.guards;
        match answer {
            Answer::Fire => counts.fire += 1,
            Answer::Cancel => counts.cancel += 1,
            Answer::Neither => counts.neither += 1,
            Answer::None => counts.none += 1,
        }
        let task = self.table.awake(id).map(|entry| &entry.task);
        if let Some(task) = task.filter(|task| task.state == State::Paused) {
            self.guards.held += 1;
            let topic = &task.topic;
            tracing::warn!(shard = %self.id, task = %id, %topic, "a task is held for a person: its guard does not answer");
        }
    }
}

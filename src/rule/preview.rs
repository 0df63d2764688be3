//! What a rule would make of the tasks that are stored: counted one by one, before anything is changed.
//!
//! Each task that goes by the rule and waits is asked about as [`again`] would do it, and comes under exactly one of
//! *moves*, *ends*, *unchanged* and *failed*; of those that move, some are due at once.

use crate::clock::{DurationMs, Now, WallMs};
use crate::ids::TaskId;
use crate::rule::again::{Again, again, is_open};
use crate::rule::book::RuleBook;
use crate::task::model::Task;
use crate::task::spec::{ResourceName, TaskKey, TopicName};

/// Most tasks of a sample.
pub const SAMPLE_MAX: usize = 20;

/// What would become of the stored tasks of a rule.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Preview {
    /// Tasks that were looked at, of whatever rule.
    pub looked_at: u64,
    /// About so many there are that wait.
    pub of: u64,
    /// Those among them that go by the rule.
    pub tasks: u64,
    /// Get another due time, or other stages.
    pub moves: u64,
    /// Of these: wait for a later time now, and would be due at once.
    pub due_at_once: u64,
    /// Are not needed any more.
    pub ends: u64,
    /// Stay as they are.
    pub unchanged: u64,
    /// Of these the rule says nothing; they would stay as they are.
    pub failed: u64,
    /// The first ones that move or end.
    pub sample: Vec<Change>,
    /// The first ones of which it says nothing, and why.
    pub faults: Vec<(TaskId, String)>,
}

/// What would become of one task.
#[derive(Clone, PartialEq, Debug)]
pub struct Change {
    /// Which.
    pub id: TaskId,
    /// Its topic.
    pub topic: TopicName,
    /// Its key.
    pub key: Option<TaskKey>,
    /// When it is due.
    pub from: WallMs,
    /// When it would be due; `None`: it would end.
    pub to: Option<WallMs>,
}

impl Preview {
    /// Looks at a task, if it goes by the rule of that name.
    pub fn look(
        &mut self,
        name: &ResourceName,
        task: &Task,
        book: &RuleBook,
        now: Now,
        max_delay: DurationMs,
    ) {
        let goes_by = task
            .spec
            .rule
            .as_ref()
            .is_some_and(|rule| rule.name == *name);
        if !goes_by || !is_open(task) {
            return;
        }
        self.tasks += 1;
        let to = match again(task, &task.spec, book, now, max_delay) {
            Ok(Some(Again::Skip { .. })) => {
                self.ends += 1;
                None
            }
            Ok(Some(Again::Stands(stand)))
                if stand.due.is_some() || stand.stages != task.spec.stages =>
            {
                self.moves += 1;
                let to = stand.due.map_or(task.due.at, |due| due.at);
                self.due_at_once += u64::from(to <= now.wall && task.due.at > now.wall);
                Some(to)
            }
            Ok(_) => {
                self.unchanged += 1;
                return;
            }
            Err(failed) => {
                self.failed += 1;
                if self.faults.len() < SAMPLE_MAX {
                    self.faults.push((task.id, failed.to_string()));
                }
                return;
            }
        };
        if self.sample.len() < SAMPLE_MAX {
            self.sample.push(Change {
                id: task.id,
                topic: task.topic.clone(),
                key: task.key.clone(),
                from: task.due.at,
                to,
            });
        }
    }
}

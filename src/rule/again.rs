//! A stored task whose rule is asked again: its facts, the rule or a calendar are others than when it was created.
//!
//! | the task | becomes of it |
//! |---|---|
//! | has not begun | what a create at its time of creation would have made of it: other stages, one due time, or none |
//! | is beyond its first stage | what has come stays; each stage still to come is that which the rule gives under its name |
//! | needs no timeout any more | is called off |
//!
//! A stage that the rule does not name any more stays, and one that is new to it does not come in: who has been promised a
//! step gets it, and nothing that was over is done again.

use crate::clock::{DurationMs, Now, SteadyMs, WallMs};
use crate::rule::book::{RuleBook, RuleFailed};
use crate::rule::model::{Asked, Given, RuleFault};
use crate::rule::staged;
use crate::task::model::{Due, Lane, State, Task};
use crate::task::new_task::{NewTask, When};
use crate::task::spec::{RuleRef, TaskSpec};
use crate::task::stage::{AtStage, Stages};

/// What a rule says of a task that it is asked about again.
#[derive(Clone, PartialEq, Debug)]
pub enum Again {
    /// It is not needed any more.
    Skip {
        /// In words.
        reason: String,
    },
    /// It stands so.
    Stands(Box<Stand>),
}

/// How a task stands by its rule.
#[derive(Clone, PartialEq, Debug)]
pub struct Stand {
    /// The version that says so.
    pub rule: RuleRef,
    /// When it is due; `None`: as it is.
    pub due: Option<Due>,
    /// Its stages.
    pub stages: Option<Stages>,
    /// Where it stands among them.
    pub at_stage: Option<AtStage>,
}

/// Whether a task is one whose rule may be asked again: it waits for its time.
pub fn is_open(task: &Task) -> bool {
    let waits = matches!(task.state, State::Pending | State::Paused) || task.asks_guard();
    task.spec.rule.is_some() && waits
}

/// What the rule of a task says of it now, if it has this content. `None`: it goes by no rule.
///
/// # Errors
/// When the rule gives nothing, or something that is too far ahead.
pub fn again(
    task: &Task,
    spec: &TaskSpec,
    book: &RuleBook,
    now: Now,
    max_delay: DurationMs,
) -> Result<Option<Again>, RuleFailed> {
    let Some(rule) = &spec.rule else {
        return Ok(None);
    };
    let asked = NewTask {
        key: task.key.clone(),
        tags: spec.tags.clone(),
        facts: spec.facts.clone(),
        ..NewTask::new(task.topic.clone())
    };
    let (given, version) =
        book.due(&rule.name, &Asked::again(&asked, task.created_at, now.wall))?;
    let failed = |fault| RuleFailed {
        name: rule.name.clone(),
        version,
        fault,
    };
    let bounded = |at: WallMs| match at > now.wall.after(max_delay) {
        true => Err(failed(RuleFault::TooFar(max_delay))),
        false => Ok(at),
    };
    let mut stand = Stand {
        rule: RuleRef {
            version,
            ..rule.clone()
        },
        due: None,
        stages: spec.stages.clone(),
        at_stage: task.at_stage,
    };
    match given {
        Given::Skip => {
            let reason = rule.skip_reason();
            return Ok(Some(Again::Skip { reason }));
        }
        // What it has begun as stages it ends so.
        Given::Due(_) if task.has_begun_stages() => {}
        Given::Due(when) => {
            let at = match when {
                When::After(length) => task.created_at.after(length),
                When::At(at) | When::Missed(at) => at,
            };
            stand.due = other_than(task, Due::at(bounded(at)?, now), now);
            (stand.stages, stand.at_stage) = (None, None);
        }
        Given::Staged(stages) => {
            bounded(task.created_at.after(staged::latest(&stages)))?;
            match &stand.stages {
                Some(there) if task.has_begun_stages() => {
                    let mixed = there.with_those_to_come(task, &stages);
                    stand.stages = Some(mixed.map_err(|flaw| failed(RuleFault::Stages(flaw)))?);
                }
                _ => {
                    let from = task
                        .at_stage
                        .map_or_else(|| created(task, now), |at| at.from);
                    let due = from.later_by(stages.first_after());
                    stand.due = other_than(task, due.no_earlier_than(now), now);
                    stand.at_stage = Some(AtStage {
                        place: 0,
                        passed: 0,
                        died: None,
                        from,
                    });
                    stand.stages = Some(stages);
                }
            }
        }
    }
    Ok(Some(Again::Stands(Box::new(stand))))
}

/// A due time that is another than a task has: what is due already is due now by any past one.
fn other_than(task: &Task, due: Due, now: Now) -> Option<Due> {
    let is_same = due.at.max(now.wall) == task.due.at.max(now.wall);
    (!is_same).then_some(due)
}

/// The creation of a task, in steady time.
fn created(task: &Task, now: Now) -> Due {
    let ago = now.wall.since(task.created_at);
    let SteadyMs(steady) = now.steady;
    Due {
        at: task.created_at,
        lane: Lane::Steady,
        fire_ms: steady.saturating_sub(i64::try_from(ago.0).unwrap_or(i64::MAX)),
    }
}

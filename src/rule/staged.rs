//! Rules that give stages: a ladder of steps, each with its time and action, in one task.
//!
//! ```text
//!  dispatch   after 1 h                          a length, as a create would say it
//!  remind     working_hours: 4 in calendar shop  worked out when the task is created
//!  cancel     timestamp(facts.pay_by)            the same, by an expression
//! ```
//!
//! What is worked out is told to the task as a length from its creation, so that it is staged like any other: nothing
//! behind this module knows where its stages came from. A time that has passed already is the creation's.

use std::sync::Arc;

use crate::clock::DurationMs;
use crate::limits;
use crate::rule::expr::{Expr, TASK, TimeExpr};
use crate::rule::model::{Asked, Calendars, Excluding, RuleFault};
use crate::task::guard::Guard;
use crate::task::spec::{RawJson, ResourceName};
use crate::task::stage::{Stage, Stages, StagesError, Starts};

/// The time of a stage that has to be worked out.
#[derive(Clone, Debug)]
pub enum StageTime {
    /// When an expression says.
    Due(Arc<TimeExpr>),
    /// By a calendar.
    Excluding(Excluding),
}

/// The stages that a rule gives.
#[derive(Clone, Debug)]
pub struct Staged {
    stages: Stages,
    /// Those of them whose times have to be worked out, by their places.
    times: Vec<(usize, StageTime)>,
}

impl Staged {
    /// Stages of which some have a time that stands in the place of what they say themselves.
    ///
    /// # Errors
    /// When they can't be those of a task, whatever their times.
    pub fn new(stages: Vec<(Stage, Option<StageTime>)>) -> Result<Self, StagesError> {
        let (stages, times): (Vec<_>, Vec<_>) = stages.into_iter().unzip();
        let times = times.into_iter().enumerate();
        Ok(Self {
            stages: Stages::new(stages)?,
            times: times
                .filter_map(|(place, time)| Some((place, time?)))
                .collect(),
        })
    }

    /// What stages do, and what they are called, as they were given.
    pub fn stages(&self) -> &Stages {
        &self.stages
    }

    pub(super) fn give(
        &self,
        asked: &Asked<'_>,
        calendars: &impl Calendars,
    ) -> Result<Stages, RuleFault> {
        if let Some(flaw) = facts_flaw(Some(&self.stages), None, asked.task.facts.as_ref()) {
            return Err(RuleFault::Facts(flaw));
        }
        if self.times.is_empty() {
            return Ok(self.stages.clone());
        }
        let mut stages: Vec<Stage> = self.stages.iter().cloned().collect();
        for (place, time) in &self.times {
            let at = match time {
                StageTime::Due(expr) => asked.at(expr)?,
                StageTime::Excluding(excluding) => excluding.give(asked, calendars)?,
            };
            stages[*place].starts = Starts::After(at.since(asked.created_at));
        }
        Stages::new(stages).map_err(RuleFault::Stages)
    }

    pub(super) fn calendars(&self) -> impl Iterator<Item = &ResourceName> {
        self.times.iter().filter_map(|(_, time)| match time {
            StageTime::Due(_) => None,
            StageTime::Excluding(excluding) => Some(&excluding.calendar),
        })
    }
}

/// The latest time of stages that counts from the creation.
pub fn latest(stages: &Stages) -> DurationMs {
    let lengths = stages.iter().filter_map(|stage| match stage.starts {
        Starts::After(length) => Some(length),
        Starts::AfterPrevious(_) => None,
    });
    lengths.max().unwrap_or_default()
}

/// Why these facts can't stand beside what a shard evaluates itself, stages and guards: a condition could never read them.
pub fn facts_flaw(
    stages: Option<&Stages>,
    guard: Option<&Guard>,
    facts: Option<&RawJson>,
) -> Option<String> {
    let is = facts?.0.len();
    let reads =
        |condition: &str| Expr::shared(condition, TASK).is_ok_and(|expr| expr.reads("facts"));
    let of_stages = stages.into_iter().flat_map(Stages::iter);
    let of_stages = of_stages.flat_map(|stage| {
        let condition = stage.condition.as_ref();
        condition
            .into_iter()
            .chain(stage.guard.as_ref().and_then(Guard::condition))
    });
    let mut conditions = of_stages.chain(guard.and_then(Guard::condition));
    let is_too_long = is > limits::EXPR_INPUT_BYTES_MAX && conditions.any(|it| reads(it));
    is_too_long.then(|| {
        format!(
            "is {is} bytes long, at most {} are allowed where the `if` of a stage or a guard reads them",
            limits::EXPR_INPUT_BYTES_MAX
        )
    })
}

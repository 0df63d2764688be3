//! Stages: steps of one task, each with a time, an action and attempts of its own.
//!
//! ```text
//!  created     dispatch, after 1 h           cancel, after 2 h
//!     ├──────────────┼── ✗ ── retry ── retry ──┤ ✗ ── retry ── ✓     succeeded
//!     │              │                         └ takes over: what is left of dispatch is dropped
//!     └ their times count from here            └ a budget of its own
//! ```
//!
//! What the stages are stands in the task's spec and never changes ([`Stages`]); where the task stands among them is a
//! part of its state ([`AtStage`]). All else of a task is that of its present stage: its due time, its attempts, the
//! attempt that is out. So what knows nothing of stages (executors, leases, retries) need not know of them.
//!
//! A stage comes in one of two ways:
//!
//! - **The one before it is over**, with success or without. It begins to wait for its time, which may have passed.
//! - **It takes over**: its time, counted from the creation, has come, and an earlier one is still at work, or has not
//!   begun yet. One whose time counts from the end of the stage before never takes over.
//!
//! One whose condition is not true when it comes is passed over: it takes over from nothing, and has no say in how the
//! task ends. That is said by the last stage that was not passed over; where none was left, by nothing: it succeeded.
//!
//! Times are lengths, so all of them follow steady time, whatever a reschedule has made of the present stage's.

use std::sync::Arc;

use crate::clock::{DurationMs, Now, SteadyMs};
use crate::limits;
use crate::task::guard::Guard;
use crate::task::model::{DeadReason, Due, Lane, Task};
use crate::task::spec::{Action, StageName, TaskSpec};

/// When a stage comes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Starts {
    /// So long after the task was created.
    After(DurationMs),
    /// So long after the stage before it is over.
    AfterPrevious(DurationMs),
}

/// One step of a staged task.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stage {
    /// Its name, unique in its task.
    pub name: StageName,
    /// When it comes.
    pub starts: Starts,
    /// What must be true then: an expression over the task. Else it is passed over.
    pub condition: Option<String>,
    /// What decides whether it fires; `None`: what does for the task.
    pub guard: Option<Guard>,
    /// What is done; `None`: what the task does.
    pub action: Option<Action>,
}

impl Stage {
    /// Whether it may be the next behind these.
    ///
    /// # Errors
    /// When it has the name of one of them, comes no later, or counts from one where there is none.
    pub fn may_follow(&self, earlier: &[Self]) -> Result<(), StagesError> {
        let place = earlier.len();
        if earlier.iter().any(|earlier| earlier.name == self.name) {
            return Err(StagesError::SameName { place });
        }
        let latest = earlier.iter().rev().find_map(|stage| match stage.starts {
            Starts::After(length) => Some(length),
            Starts::AfterPrevious(_) => None,
        });
        match (self.starts, latest) {
            (Starts::After(length), Some(latest)) if length <= latest => {
                Err(StagesError::OutOfOrder { place })
            }
            (Starts::AfterPrevious(_), None) => Err(StagesError::NothingBefore),
            _ => Ok(()),
        }
    }
}

/// The stages of a task, in order: 1 to 32, named once each, later ones later.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stages(Arc<[Stage]>);

/// Why stages can't be those of a task.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StagesError {
    /// There is none.
    #[error("must name at least one stage")]
    None,
    /// There are too many.
    #[error("are {0}, at most {max} are allowed", max = limits::STAGES_MAX)]
    TooMany(usize),
    /// One has the name of an earlier one.
    #[error("stage {place} has a name that an earlier stage has")]
    SameName {
        /// Which, from 0.
        place: usize,
    },
    /// The first one counts from the end of a stage before it.
    #[error("there is no stage before the first: give it `after`")]
    NothingBefore,
    /// One does not come later than one before it.
    #[error("stage {place} must come later than the stages before it, whose times are in order")]
    OutOfOrder {
        /// Which, from 0.
        place: usize,
    },
}

impl Stages {
    /// Takes stages that can be those of a task.
    ///
    /// # Errors
    /// With what is wrong with them.
    pub fn new(stages: Vec<Stage>) -> Result<Self, StagesError> {
        if stages.len() > limits::STAGES_MAX {
            return Err(StagesError::TooMany(stages.len()));
        }
        if stages.is_empty() {
            return Err(StagesError::None);
        }
        for (place, stage) in stages.iter().enumerate() {
            stage.may_follow(&stages[..place])?;
        }
        Ok(Self(stages.into()))
    }

    /// When the first one comes, counted from the creation.
    pub fn first_after(&self) -> DurationMs {
        match self.0[0].starts {
            Starts::After(length) | Starts::AfterPrevious(length) => length,
        }
    }

    /// All of them.
    pub fn iter(&self) -> std::slice::Iter<'_, Stage> {
        self.0.iter()
    }

    /// These, but for those that are still to come in a task: of them those that are given under their names.
    ///
    /// # Errors
    /// When one would come no later than one before it.
    pub fn with_those_to_come(&self, task: &Task, given: &Self) -> Result<Self, StagesError> {
        let stages = (0..).zip(self.iter()).map(|(place, there)| {
            let named = || given.iter().find(|stage| stage.name == there.name);
            let stage = if task.has_to_come(place) {
                named()
            } else {
                None
            };
            stage.unwrap_or(there).clone()
        });
        Self::new(stages.collect())
    }

    /// About how many bytes it takes to write them down.
    pub fn weight(&self) -> usize {
        let pairs = |pairs: &[(String, String)]| -> usize {
            pairs
                .iter()
                .map(|(name, value)| name.len() + value.len())
                .sum()
        };
        let action = |action: &Option<Action>| match action {
            Some(Action::Http(http)) => http.url.len() + pairs(&http.headers),
            Some(Action::Poll(poll)) => poll.http.url.len() + pairs(&poll.http.headers),
            Some(Action::Command(command)) => {
                command.args.iter().map(String::len).sum::<usize>() + pairs(&command.env)
            }
            Some(Action::Pull | Action::CompleteOnly | Action::Handler { .. } | Action::None)
            | None => 0,
        };
        let stages = self.0.iter();
        stages.map(|stage| 128 + action(&stage.action)).sum()
    }
}

/// Where a staged task stands among its stages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AtStage {
    /// The present stage, from 0: the one that is waited for, or at work, or was the last.
    pub place: u8,
    /// Later ones that were passed over at their time while the present one went on: the bit of each is set.
    pub passed: u32,
    /// The latest stage that was given up with none after it that has run, and why.
    pub died: Option<(u8, DeadReason)>,
    /// What the stages' times count from, in steady time: the task's creation, later by what stood still meanwhile and
    /// moved by reschedules.
    pub from: Due,
}

impl AtStage {
    /// At the first stage of a task that begins now.
    pub fn first(spec: &TaskSpec, now: Now) -> Option<Self> {
        let mut from = Due::after(DurationMs(0), now);
        // What a rule has counted from is what is shown.
        if let Some(rule) = &spec.rule {
            from.at = rule.at;
        }
        spec.stages.as_ref().map(|_| Self {
            place: 0,
            passed: 0,
            died: None,
            from,
        })
    }

    /// Whether a later stage was passed over already.
    fn has_passed(&self, place: u8) -> bool {
        self.passed >> place & 1 != 0
    }
}

impl TaskSpec {
    /// The stage at this place; `None` in a task without stages.
    pub fn stage_at(&self, place: Option<u8>) -> Option<&Stage> {
        self.stages.as_ref()?.0.get(usize::from(place?))
    }

    /// What is done in the stage at this place.
    pub fn action_at(&self, place: Option<u8>) -> &Action {
        let own = self.stage_at(place).and_then(|stage| stage.action.as_ref());
        own.unwrap_or(&self.action)
    }
}

impl Task {
    /// The present stage; `None` in a task without stages.
    pub fn stage(&self) -> Option<&Stage> {
        self.spec.stage_at(self.stage_place())
    }

    /// Its place.
    pub fn stage_place(&self) -> Option<u8> {
        Some(self.at_stage?.place)
    }

    /// Whether it has come further among its stages than to wait for the first.
    pub fn has_begun_stages(&self) -> bool {
        self.at_stage
            .is_some_and(|at| at.place > 0 || at.passed != 0 || self.attempts > 0)
    }

    /// The stages still to come, with their places.
    fn stages_to_come(&self) -> impl Iterator<Item = (u8, &Stage)> {
        let stages = self.spec.stages.iter().flat_map(Stages::iter);
        let at = self.at_stage;
        (0..).zip(stages).filter(move |(place, _)| {
            at.is_some_and(|at| *place > at.place && !at.has_passed(*place))
        })
    }

    /// Whether the stage at this place is still to come.
    pub fn has_to_come(&self, place: u8) -> bool {
        self.stages_to_come().any(|(later, _)| later == place)
    }

    /// The stage that follows when the present one is over, and when it is due then.
    pub fn next_stage(&self, now: Now) -> Option<(u8, Due)> {
        let (place, stage) = self.stages_to_come().next()?;
        let due = match stage.starts {
            Starts::After(length) => self.at_stage?.from.later_by(length),
            Starts::AfterPrevious(length) => Due::after(length, now),
        };
        Some((place, due))
    }

    /// The stage that takes over at its time, even from a present one that is not over, and that time.
    pub fn takes_over(&self) -> Option<(u8, Due)> {
        let from = self.at_stage?.from;
        self.stages_to_come()
            .find_map(|(place, stage)| match stage.starts {
                Starts::After(length) => Some((place, from.later_by(length))),
                Starts::AfterPrevious(_) => None,
            })
    }

    /// Until when it goes on as it is, if nothing else happens: to the end of its total time, or to the time of the
    /// stage that takes over. A poll that is asked for the last time ends by the answer.
    pub fn until(&self) -> Option<SteadyMs> {
        let total = self.total_until().filter(|_| !self.asks_last());
        let clocks = total.into_iter().chain(self.total_alert_at());
        clocks.chain(self.taken_over_at()).min()
    }

    /// The same while it waits for its next attempt: what is due before another stage takes over is looked at then.
    pub fn until_while_waiting(&self) -> Option<SteadyMs> {
        let comes_first = |at: &SteadyMs| self.next.lane == Lane::Wall || self.next.fire_ms > at.0;
        let total = self.total_until().filter(|_| !self.asks_last());
        let clocks = total.into_iter().chain(self.total_alert_at());
        clocks.chain(self.taken_over_at().filter(comes_first)).min()
    }

    fn taken_over_at(&self) -> Option<SteadyMs> {
        self.takes_over().map(|(_, due)| SteadyMs(due.fire_ms))
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test may")]
mod tests {
    use super::*;

    fn stages(list: &[(&str, Starts)]) -> Result<Stages, StagesError> {
        let stage = |(name, starts): &(&str, Starts)| Stage {
            name: StageName::parse(name).unwrap(),
            starts: *starts,
            condition: None,
            guard: None,
            action: None,
        };
        Stages::new(list.iter().map(stage).collect())
    }

    fn after(secs: u64) -> Starts {
        Starts::After(DurationMs::secs(secs))
    }

    fn after_previous(secs: u64) -> Starts {
        Starts::AfterPrevious(DurationMs::secs(secs))
    }

    #[test]
    fn times_from_the_creation_rise_and_those_between_them_may_be_any() {
        let good = [
            ("a", after(0)),
            ("b", after_previous(100)),
            ("c", after(5)),
            ("d", after_previous(0)),
        ];
        assert_eq!(stages(&good).unwrap().iter().count(), 4);
        for (list, error) in [
            (vec![], StagesError::None),
            (vec![("a", after_previous(1))], StagesError::NothingBefore),
            (
                vec![("a", after(1)), ("a", after(2))],
                StagesError::SameName { place: 1 },
            ),
            (
                vec![("a", after(2)), ("b", after_previous(1)), ("c", after(2))],
                StagesError::OutOfOrder { place: 2 },
            ),
        ] {
            assert_eq!(stages(&list), Err(error));
        }
    }

    #[test]
    fn there_are_as_many_stages_as_a_mask_has_bits() {
        let many = |count: usize| {
            let stage = |n| Stage {
                name: StageName::parse(&format!("s{n}")).unwrap(),
                starts: after(n),
                condition: None,
                guard: None,
                action: None,
            };
            Stages::new((0..count as u64).map(stage).collect())
        };
        assert!(many(32).is_ok());
        assert_eq!(many(33), Err(StagesError::TooMany(33)));
        assert_eq!(limits::STAGES_MAX, u32::BITS as usize);
    }
}

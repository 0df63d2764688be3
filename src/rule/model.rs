//! Rules: when is a task due that does not say it?
//!
//! A rule is a plan that reads a task as it is asked for, and gives an instant, a length, stages, or that no task is
//! needed:
//!
//! ```text
//!  fixed         created_at + 30 min                        or an expression
//!  staged        after 1 h, after 2 h                       see `rule/staged`
//!  conditional   the first case that holds has a plan       VIP orders wait longer
//!  excluding     working time, or moved out of closed time  2 working days by 18:00
//! ```
//!
//! Plans stand in one another: a case may have a plan that is staged, and a stage one that excludes holidays. Nothing is guessed: where a fact is missing,
//! or is not what the plan needs, there is a [`RuleFault`] that names it, unless the rule says what is due then.
//!
//! Invariant: the same rule, facts and instant give the same due time; no clock is read, and nothing is remembered. A
//! plan of fixed length costs nothing, an expression about a microsecond.

use std::cell::OnceCell;
use std::sync::Arc;

use serde_json::Value as Json;

use crate::clock::{DurationMs, WallMs};
use crate::rule::Calendar;
use crate::rule::calendar::{NeverOpen, Shift, WorkingTime};
use crate::rule::expr::{Expr, Fault, TimeExpr};
use crate::rule::staged::Staged;
use crate::task::duration;
use crate::task::new_task::{NewTask, When};
use crate::task::spec::{Action, RawJson, ResourceName, TaskKey};
use crate::task::stage::{Stages, StagesError};

/// How due times are computed.
#[derive(Clone, Debug)]
pub struct Rule {
    /// Whether the plan is in force; if it is not, only the default is.
    pub is_enabled: bool,
    /// The way.
    pub plan: Plan,
    /// What is due when the plan comes to nothing: a fact is missing, or no case holds. `None`: nothing is, and that is
    /// told.
    pub default: Option<Plan>,
}

/// One way.
#[derive(Clone, Debug)]
pub enum Plan {
    /// So long after the task was created.
    After(DurationMs),
    /// When an expression says.
    Due(Arc<TimeExpr>),
    /// No task is needed.
    Skip,
    /// The first case that holds.
    Conditional {
        /// In order.
        cases: Vec<Case>,
        /// If none holds.
        otherwise: Option<Box<Plan>>,
    },
    /// By a calendar.
    Excluding(Excluding),
    /// Several times, each with what is done then.
    Staged(Staged),
}

/// A plan for those tasks of which a condition holds.
#[derive(Clone, Debug)]
pub struct Case {
    /// The condition.
    pub condition: Arc<Expr>,
    /// The plan.
    pub plan: Plan,
}

/// A plan that leaves out closed time.
#[derive(Clone, Debug)]
pub struct Excluding {
    /// Whose hours count.
    pub calendar: ResourceName,
    /// Counted from here; `None` is when the task was created.
    pub from: Option<Arc<TimeExpr>>,
    /// What is counted.
    pub how: How,
}

/// How closed time is left out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum How {
    /// So much working time.
    Working(WorkingTime),
    /// A length, and what becomes of it when it ends in closed time.
    Shifted(DurationMs, Shift),
}

/// What a rule gives.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Given {
    /// The task is due then.
    Due(When),
    /// The task has these stages.
    Staged(Stages),
    /// No task is needed.
    Skip,
}

/// Why a rule gives nothing.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RuleFault {
    /// An expression has no value.
    #[error("`{source_text}`: {fault}")]
    Expr {
        /// What it reads.
        source_text: String,
        /// Why.
        fault: Fault,
    },
    /// There is no such rule.
    #[error("there is no such rule")]
    NoRule,
    /// It is put out of force.
    #[error("is disabled, and has no `default`")]
    Disabled,
    /// It is due later than a task may be.
    #[error("gives a due time more than {} ahead, which is the limit", duration::format(*.0))]
    TooFar(DurationMs),
    /// No case holds, and there is no `else`.
    #[error("no case holds, and there is no `else`")]
    NoCase,
    /// Stages whose times were worked out can't be those of a task.
    #[error("its stages {0}")]
    Stages(StagesError),
    /// The facts can't be read by its stages.
    #[error("facts {0}")]
    Facts(String),
    /// There is no calendar of that name.
    #[error("there is no calendar {0}")]
    NoCalendar(ResourceName),
    /// The calendar is closed.
    #[error("calendar {0} has not so much open time in twelve years")]
    NeverOpen(ResourceName),
}

/// A task as a rule sees it.
pub struct Asked<'a> {
    /// What is asked for.
    pub task: &'a NewTask,
    /// When it is created.
    pub created_at: WallMs,
    /// When it is asked.
    pub now: WallMs,
    facts: OnceCell<Json>,
}

impl<'a> Asked<'a> {
    /// A task that is created now.
    pub fn new(task: &'a NewTask, now: WallMs) -> Self {
        Self::again(task, now, now)
    }

    /// A task that was created earlier, and is looked at again.
    pub fn again(task: &'a NewTask, created_at: WallMs, now: WallMs) -> Self {
        Self {
            task,
            created_at,
            now,
            facts: OnceCell::new(),
        }
    }

    /// One of the names of [`TASK`](crate::rule::expr::TASK).
    fn input(&self, name: &str) -> Result<Json, Fault> {
        let task = self.task;
        Ok(match name {
            "facts" => self
                .facts
                .get_or_init(|| facts_of(task.facts.as_ref()))
                .clone(),
            "topic" => task.topic.as_str().into(),
            "key" => task.key.as_ref().map(TaskKey::as_str).into(),
            "tags" => task.tags.iter().cloned().collect(),
            "created_at" => self.created_at.0.into(),
            "now" => self.now.0.into(),
            _ => return Err(Fault::Failed(format!("{name} is not known"))),
        })
    }

    pub(super) fn holds(&self, condition: &Expr) -> Result<bool, RuleFault> {
        condition
            .holds(|name| self.input(name))
            .map_err(|fault| RuleFault::Expr {
                source_text: condition.source().to_owned(),
                fault,
            })
    }

    pub(super) fn at(&self, expr: &TimeExpr) -> Result<WallMs, RuleFault> {
        expr.at(|name| self.input(name))
            .map_err(|fault| RuleFault::Expr {
                source_text: expr.source().to_owned(),
                fault,
            })
    }
}

/// Facts that were taken in are JSON; none are an empty object, so that a missing one is told by its name.
fn facts_of(facts: Option<&RawJson>) -> Json {
    let facts = facts.and_then(|facts| serde_json::from_str(facts.as_str()).ok());
    facts.unwrap_or_else(|| Json::Object(serde_json::Map::new()))
}

/// Where calendars are looked up.
pub trait Calendars {
    /// The calendar of that name.
    fn calendar(&self, name: &ResourceName) -> Option<&Calendar>;
}

impl Rule {
    /// When the task is due.
    ///
    /// # Errors
    /// When neither the plan nor the default gives anything; with what the plan came to.
    pub fn give(&self, asked: &Asked<'_>, calendars: &impl Calendars) -> Result<Given, RuleFault> {
        let given = match self.is_enabled {
            true => self.plan.give(asked, calendars),
            false => Err(RuleFault::Disabled),
        };
        match (&self.default, given) {
            (Some(default), Err(fault)) => default.give(asked, calendars).map_err(|_| fault),
            (_, given) => given,
        }
    }

    /// What its stages do, and where that stands in its body, as a JSON pointer.
    pub fn actions(&self) -> Vec<(String, &Action)> {
        let mut actions = Vec::new();
        self.plan.actions("", &mut actions);
        if let Some(default) = &self.default {
            default.actions("/default", &mut actions);
        }
        actions
    }

    /// The calendars that it needs.
    pub fn calendars(&self) -> Vec<ResourceName> {
        let mut names = Vec::new();
        for plan in std::iter::once(&self.plan).chain(&self.default) {
            plan.calendars(&mut names);
        }
        names
    }
}

impl Plan {
    fn give(&self, asked: &Asked<'_>, calendars: &impl Calendars) -> Result<Given, RuleFault> {
        match self {
            Self::After(length) => Ok(Given::Due(When::After(*length))),
            Self::Due(expr) => Ok(Given::Due(When::At(asked.at(expr)?))),
            Self::Skip => Ok(Given::Skip),
            Self::Conditional { cases, otherwise } => {
                for case in cases {
                    if asked.holds(&case.condition)? {
                        return case.plan.give(asked, calendars);
                    }
                }
                let plan = otherwise.as_ref().ok_or(RuleFault::NoCase)?;
                plan.give(asked, calendars)
            }
            Self::Excluding(excluding) => {
                let at = excluding.give(asked, calendars)?;
                Ok(Given::Due(When::At(at)))
            }
            Self::Staged(staged) => staged.give(asked, calendars).map(Given::Staged),
        }
    }

    /// What stages do, with where that stands in what stands `at`.
    fn actions<'a>(&'a self, at: &str, actions: &mut Vec<(String, &'a Action)>) {
        match self {
            Self::After(_) | Self::Due(_) | Self::Skip | Self::Excluding(_) => {}
            Self::Conditional { cases, otherwise } => {
                for (place, case) in cases.iter().enumerate() {
                    let at = format!("{at}/conditional/cases/{place}");
                    case.plan.actions(&at, actions);
                }
                if let Some(plan) = otherwise {
                    plan.actions(&format!("{at}/conditional/else"), actions);
                }
            }
            Self::Staged(staged) => {
                for (place, stage) in staged.stages().iter().enumerate() {
                    let at = format!("{at}/staged/stages/{place}/action");
                    actions.extend(stage.action.iter().map(|action| (at.clone(), action)));
                }
            }
        }
    }

    fn calendars(&self, names: &mut Vec<ResourceName>) {
        match self {
            Self::After(_) | Self::Due(_) | Self::Skip => {}
            Self::Excluding(excluding) => names.push(excluding.calendar.clone()),
            Self::Staged(staged) => names.extend(staged.calendars().cloned()),
            Self::Conditional { cases, otherwise } => {
                cases.iter().for_each(|case| case.plan.calendars(names));
                otherwise.iter().for_each(|plan| plan.calendars(names));
            }
        }
    }
}

impl Excluding {
    pub(super) fn give(
        &self,
        asked: &Asked<'_>,
        calendars: &impl Calendars,
    ) -> Result<WallMs, RuleFault> {
        let name = &self.calendar;
        let calendar = calendars.calendar(name);
        let calendar = calendar.ok_or_else(|| RuleFault::NoCalendar(name.clone()))?;
        let from = match &self.from {
            Some(expr) => asked.at(expr)?,
            None => asked.created_at,
        };
        let due = match self.how {
            How::Working(length) => calendar.due(from, length),
            How::Shifted(length, shift) => calendar.shifted(from, length, shift),
        };
        due.map_err(|NeverOpen| RuleFault::NeverOpen(name.clone()))
    }
}

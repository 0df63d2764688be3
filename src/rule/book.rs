//! All that rules are made of, at one moment: each kind of resource by name. Never changed, only replaced, so whoever
//! holds one works by the same versions throughout.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::clock::WallMs;
use crate::rule::model::{Asked, Calendars, Given, RuleFault};
use crate::rule::{Calendar, Rollout, Rule, Schedule};
use crate::task::spec::ResourceName;

/// A resource as it stands: what it says, and how it was said.
#[derive(Clone, PartialEq, Debug)]
pub struct Kept<T> {
    /// What the body says.
    pub meaning: T,
    /// The body of the latest PUT, JSON as it came.
    pub body: String,
    /// Grows with each PUT, also over a delete.
    pub version: u64,
    /// When that was.
    pub changed_at: WallMs,
}

/// All of one kind, by name.
pub type Named<T> = BTreeMap<ResourceName, Arc<Kept<T>>>;

/// See the module's header.
#[derive(Clone, Default, Debug)]
pub struct RuleBook {
    /// When people work.
    pub calendars: Named<Calendar>,
    /// What repeats.
    pub schedules: Named<Schedule>,
    /// When tasks are due that do not say it.
    pub rules: Named<Rule>,
    /// Who gets a rule's latest version, by the rule's name.
    pub rollouts: Named<Rollout>,
}

/// A rule that could give no due time, or none for now.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("rule {name}, version {version}: {fault}")]
pub struct RuleFailed {
    /// Its name.
    pub name: ResourceName,
    /// The version that was asked; 0 when there is no such rule.
    pub version: u64,
    /// Why.
    pub fault: RuleFault,
}

impl RuleBook {
    /// The rollout of a rule's present version.
    pub fn rollout(&self, name: &ResourceName, version: u64) -> Option<&Arc<Kept<Rollout>>> {
        let rollout = self.rollouts.get(name);
        rollout.filter(|rollout| rollout.meaning.version == version)
    }

    /// When a task is due by a rule, and by which version of it.
    ///
    /// # Errors
    /// When there is no such rule, or it gives nothing.
    pub fn due(&self, name: &ResourceName, asked: &Asked<'_>) -> Result<(Given, u64), RuleFailed> {
        let failed = |version, fault| RuleFailed {
            name: name.clone(),
            version,
            fault,
        };
        let kept = self.rules.get(name);
        let kept = kept.ok_or_else(|| failed(0, RuleFault::NoRule))?;
        let rollout = self.rollout(name, kept.version);
        let (rule, version) = match rollout.map(|rollout| &rollout.meaning) {
            Some(rollout) if !rollout.reach.takes(name, asked) => {
                (&rollout.base, rollout.base_version)
            }
            _ => (&kept.meaning, kept.version),
        };
        let given = rule
            .give(asked, self)
            .map_err(|fault| failed(version, fault))?;
        Ok((given, version))
    }
}

impl Calendars for RuleBook {
    fn calendar(&self, name: &ResourceName) -> Option<&Calendar> {
        self.calendars.get(name).map(|kept| &kept.meaning)
    }
}

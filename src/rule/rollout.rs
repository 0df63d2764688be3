//! Gray release: a rule's latest version for some tasks, the one before for all others.
//!
//! ```text
//!  hash(rule, topic, key) in % < 10   ──▶ latest          the same keys each time, and no others when it is widened
//!  an allowed key, or a condition     ──▶ latest
//!  else                               ──▶ the one before
//! ```

use std::collections::BTreeSet;
use std::sync::Arc;

use xxhash_rust::xxh3::xxh3_64;

use crate::clock::WallMs;
use crate::rule::expr::Expr;
use crate::rule::model::{Asked, Rule};
use crate::task::spec::{ResourceName, TaskKey};

/// Parts that keys are dealt into: a hundredth of a percent each.
pub const PARTS: u64 = 10_000;

/// A version that is rolled out, and what all others get.
#[derive(Clone, Debug)]
pub struct Rollout {
    /// The version that is rolled out. A later one ends the rollout.
    pub version: u64,
    /// The number of the version before.
    pub base_version: u64,
    /// The version before.
    pub base: Rule,
    /// Who gets it.
    pub reach: Reach,
}

/// Who gets the latest version. What is named adds up, within topics and times.
#[derive(Clone, Debug, Default)]
pub struct Reach {
    /// So many of 10 000 parts of the keys.
    pub parts: u64,
    /// These keys, whatever their part.
    pub keys: BTreeSet<TaskKey>,
    /// Those of which this holds; one without a value does not.
    pub condition: Option<Arc<Expr>>,
    /// Only in topics whose names begin so.
    pub topic_prefix: Option<String>,
    /// Only from then on.
    pub from: Option<WallMs>,
    /// Only until then; afterwards all get the version before.
    pub until: Option<WallMs>,
}

impl Reach {
    /// Whether a task gets the version that is rolled out.
    pub fn takes(&self, name: &ResourceName, asked: &Asked<'_>) -> bool {
        let (task, now) = (asked.task, asked.now);
        let is_now =
            self.from.is_none_or(|from| from <= now) && self.until.is_none_or(|until| now < until);
        let topic = task.topic.as_str();
        let prefix = self.topic_prefix.as_deref().unwrap_or_default();
        if !is_now || !topic.starts_with(prefix) {
            return false;
        }
        let holds = |condition: &Arc<Expr>| asked.holds(condition).unwrap_or(false);
        task.key.as_ref().is_some_and(|key| self.keys.contains(key))
            || part_of(name, topic, task.key.as_ref()) < self.parts
            || self.condition.as_ref().is_some_and(holds)
    }
}

/// The part that a key is in. All tasks of a topic without keys are in one part, so that they keep together.
fn part_of(name: &ResourceName, topic: &str, key: Option<&TaskKey>) -> u64 {
    let key = key.map_or("", TaskKey::as_str);
    // Names have no control characters.
    let text = [name.as_str(), topic, key].join("\0");
    xxh3_64(text.as_bytes()) % PARTS
}

//! How many creates went by which version of a rule, since the start: what a rollout is widened by.

use std::collections::BTreeMap;

use parking_lot::Mutex;

use crate::rule::book::RuleBook;
use crate::task::spec::ResourceName;

/// So many versions of a rule are counted, the latest ones.
const VERSIONS_MAX: usize = 16;

/// By rule and version. Bounded by the rules that there are.
#[derive(Debug, Default)]
pub(super) struct RuleCounts(Mutex<BTreeMap<ResourceName, BTreeMap<u64, u64>>>);

impl RuleCounts {
    /// One more create went by this version.
    pub fn count(&self, name: &ResourceName, version: u64, book: &RuleBook) {
        let mut rules = self.0.lock();
        if let Some(count) = rules.get_mut(name).and_then(|of| of.get_mut(&version)) {
            *count += 1;
            return;
        }
        // Rarely: what is gone is forgotten with the next version that is new.
        rules.retain(|name, _| book.rules.contains_key(name));
        let versions = rules.entry(name.clone()).or_default();
        versions.insert(version, 1);
        if versions.len() > VERSIONS_MAX {
            versions.pop_first();
        }
    }

    /// The versions of a rule by which creates went, the latest first, and how many.
    pub fn of(&self, name: &ResourceName) -> Vec<(u64, u64)> {
        let rules = self.0.lock();
        let versions = rules.get(name).into_iter().flatten().rev();
        versions
            .map(|(version, count)| (*version, *count))
            .collect()
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test may")]
mod tests {
    use super::*;

    #[test]
    fn the_latest_versions_are_counted_and_rules_that_are_gone_are_forgotten() {
        let (counts, book) = (RuleCounts::default(), RuleBook::default());
        let name = |name: &str| ResourceName::parse(name).unwrap();
        for version in 1..=20 {
            counts.count(&name("a"), version, &book);
            counts.count(&name("a"), version, &book);
        }
        // No rule is in the book, so each new version forgets the others.
        assert_eq!(counts.of(&name("a")), [(20, 2)]);
        assert_eq!(counts.of(&name("b")), []);
    }
}

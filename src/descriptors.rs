//! Descriptors: how many files and sockets this process may have open, and who may have how many of them.
//!
//! The store must always get one: a shard that can't open its next journal file stops. So some are kept, and pushes and
//! the API's connections share the rest:
//!
//! ```text
//!  limit  |kept| pushes: one each, two thirds at most | connections: two each ... |
//! ```

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Kept for the store, for questions of polls and the rest; half of them if there are so few.
const KEPT: usize = 2_048;

/// How many this process may have, once its limit is raised as far as the system lets it; `None` when it does not say.
pub fn allowed() -> Option<usize> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).ok()?;
    let raised = setrlimit(Resource::RLIMIT_NOFILE, hard, hard);
    let limit = raised.map_or(soft, |()| hard);
    Some(usize::try_from(limit).unwrap_or(usize::MAX))
}

/// What is wanted of them, or given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shares {
    /// Pushes that run at a time.
    pub pushes: usize,
    /// Connections of the API. Each has a second descriptor, by which it is shut down when nothing happens on it.
    pub connections: usize,
}

impl Shares {
    /// As much of these as so many descriptors give.
    #[must_use]
    pub fn of(self, descriptors: usize) -> Self {
        let room = descriptors - KEPT.min(descriptors / 2);
        let pushes = self.pushes.min(room / 3 * 2);
        let connections = self.connections.min((room - pushes) / 2).max(1);
        Self {
            pushes,
            connections,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_get_what_they_want_where_there_is_enough_and_neither_gets_all() {
        let wanted = Shares {
            pushes: 10_000,
            connections: 25_000,
        };
        let given = |descriptors| {
            let Shares {
                pushes,
                connections,
            } = wanted.of(descriptors);
            (pushes, connections)
        };
        assert_eq!(given(1_000_000), (10_000, 25_000));
        assert_eq!(given(20_000), (10_000, 3_976));
        assert_eq!(given(4_096), (1_364, 342));
        assert_eq!(given(16), (4, 2));
        for descriptors in 0..5_000 {
            let (pushes, connections) = given(descriptors);
            let left = descriptors.saturating_sub(pushes + 2 * connections);
            assert!(
                left >= KEPT.min(descriptors / 2) || descriptors < 8,
                "{descriptors}"
            );
        }
    }
}

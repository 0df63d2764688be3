//! When to start a child that died again, and when to give up. Pure arithmetic over the times of its deaths.
//!
//! ```text
//!   deaths within the window    0   1      2       3       4     …   restarts_max
//!   pause before the restart    0  first  2·first  4·first  8·first …  → Park
//!                                   (never above backoff_max)
//! ```
//!
//! The first restart comes at once, since most deaths happen once. What keeps dying waits longer each time and
//! is parked in the end: visible, alarmed, its tasks safe in the store. A child that stays up for a window
//! starts with a clean sheet.
//!
//! What dies because of something outside, such as a full disk, is not parked for it: it would stay down when that is
//! over. It is tried at a steady pace, and nothing of it is counted.

use std::collections::VecDeque;

use crate::clock::{DurationMs, MonoMs};

/// The pause after a death that is excused: short, since what excuses it may end at any moment, and long enough that
/// trying costs nothing.
pub const EXCUSED_PAUSE: DurationMs = DurationMs::secs(1);

/// How often, and how fast, a child is started again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RestartPolicy {
    /// The time over which restarts are counted. Longer than all pauses together, or nothing is ever parked.
    pub window: DurationMs,
    /// Most restarts within the window; the next death parks the child.
    pub restarts_max: u32,
    /// The pause before the second restart within the window; it doubles from there. There is none before the first.
    pub backoff_first: DurationMs,
    /// The longest pause.
    pub backoff_max: DurationMs,
}

impl Default for RestartPolicy {
    /// 20 restarts in 15 minutes, after 0, 0.1, 0.2, 0.4 … 30 s: about six minutes of trying, which outlasts a
    /// full disk that somebody clears.
    fn default() -> Self {
        Self {
            window: DurationMs::secs(15 * 60),
            restarts_max: 20,
            backoff_first: DurationMs(100),
            backoff_max: DurationMs::secs(30),
        }
    }
}

impl RestartPolicy {
    /// The pause before a restart that `earlier` others preceded within the window.
    pub fn backoff(&self, earlier: u32) -> DurationMs {
        let Some(doublings) = earlier.checked_sub(1) else {
            return DurationMs(0);
        };
        let factor = 2_u64.saturating_pow(doublings);
        DurationMs(self.backoff_first.0.saturating_mul(factor)).min(self.backoff_max)
    }
}

/// What to do about a death.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NextStart {
    /// Start it again after this pause.
    RestartAfter(DurationMs),
    /// It failed too often: leave it down until a person asks for it.
    Park,
}

/// The restarts of one child that still count.
#[derive(Clone, Debug)]
pub struct RestartHistory {
    policy: RestartPolicy,
    restarts: VecDeque<MonoMs>,
}

impl RestartHistory {
    /// A clean sheet.
    pub fn new(policy: RestartPolicy) -> Self {
        Self {
            policy,
            restarts: VecDeque::new(),
        }
    }

    /// Decides about a death at `now`, and remembers the restart it grants.
    pub fn next(&mut self, now: MonoMs) -> NextStart {
        let window = self.policy.window;
        self.restarts.retain(|at| now.since(*at) < window);
        let earlier = u32::try_from(self.restarts.len()).unwrap_or(u32::MAX);
        if earlier >= self.policy.restarts_max {
            return NextStart::Park;
        }
        self.restarts.push_back(now);
        NextStart::RestartAfter(self.policy.backoff(earlier))
    }

    /// Forgets everything: a person asked for a fresh start.
    pub fn clear(&mut self) {
        self.restarts.clear();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::NextStart::{Park, RestartAfter};
    use super::*;

    const POLICY: RestartPolicy = RestartPolicy {
        window: DurationMs(60_000),
        restarts_max: 5,
        backoff_first: DurationMs(100),
        backoff_max: DurationMs(300),
    };

    #[test]
    fn pauses_double_up_to_the_longest_and_then_the_child_is_parked() {
        let mut history = RestartHistory::new(POLICY);
        for pause in [0, 100, 200, 300, 300] {
            assert_eq!(history.next(MonoMs(7)), RestartAfter(DurationMs(pause)));
        }
        assert_eq!(history.next(MonoMs(7)), Park);
        assert_eq!(history.next(MonoMs(60_006)), Park);
    }

    #[test]
    fn a_child_that_stays_up_for_a_window_starts_with_a_clean_sheet() {
        let mut history = RestartHistory::new(POLICY);
        for _ in 0..6 {
            history.next(MonoMs(7));
        }
        assert_eq!(history.next(MonoMs(60_007)), RestartAfter(DurationMs(0)));
        assert_eq!(history.next(MonoMs(60_008)), RestartAfter(DurationMs(100)));
    }

    #[test]
    fn a_person_can_wipe_the_sheet() {
        let mut history = RestartHistory::new(RestartPolicy {
            restarts_max: 0,
            ..POLICY
        });
        assert_eq!(history.next(MonoMs(0)), Park);
        let mut history = RestartHistory::new(POLICY);
        while history.next(MonoMs(0)) != Park {}
        history.clear();
        assert_eq!(history.next(MonoMs(0)), RestartAfter(DurationMs(0)));
    }

    #[test]
    fn by_default_trying_goes_on_for_minutes_and_ends_within_the_window() {
        let policy = RestartPolicy::default();
        let pauses = (0..policy.restarts_max).map(|n| policy.backoff(n).0);
        let total = DurationMs(pauses.sum());
        assert!(
            total > DurationMs::secs(300) && total < policy.window,
            "{total:?}"
        );
    }

    proptest! {
        #[test]
        fn pauses_never_shrink_pass_the_longest_or_overflow(
            first: u64, longest: u64, earlier: u32,
        ) {
            let policy = RestartPolicy {
                backoff_first: DurationMs(first),
                backoff_max: DurationMs(longest),
                ..POLICY
            };
            let (one, next) = (policy.backoff(earlier), policy.backoff(earlier.saturating_add(1)));
            prop_assert!(one <= next && next <= policy.backoff_max);
            prop_assert_eq!(policy.backoff(0), DurationMs(0));
            prop_assert_eq!(policy.backoff(1), DurationMs(first.min(longest)));
        }

        #[test]
        fn no_window_ever_holds_more_restarts_than_allowed(
            gaps in prop::collection::vec(0_u64..40_000, 1..60),
        ) {
            let mut history = RestartHistory::new(POLICY);
            let mut now = MonoMs(0);
            let mut granted: Vec<MonoMs> = Vec::new();
            for gap in gaps {
                now = now.after(DurationMs(gap));
                if history.next(now) != Park {
                    granted.push(now);
                }
                let recent = granted.iter().filter(|at| now.since(**at) < POLICY.window);
                prop_assert!(recent.count() <= POLICY.restarts_max as usize);
            }
        }
    }
}

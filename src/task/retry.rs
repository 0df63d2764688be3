//! How long to wait before the next attempt.
//!
//! ```text
//!  ladder       1 min  5 min  10 min  30 min  30 min …      the last step repeats
//!  fixed        10 s   10 s   10 s …
//!  exponential  1 s    2 s    4 s … up to a cap
//! ```
//!
//! Jitter only lengthens a wait, by at most that share of it, so nothing comes back sooner than was asked for.
//! All arithmetic saturates at the cap: an overflow can't turn a long wait into none.

use crate::clock::DurationMs;
use crate::task::outcome::Outcome;

/// Longest wait between two attempts: a year.
pub const DELAY_MAX: DurationMs = DurationMs::secs(366 * 24 * 3600);

/// The shape of the waits.
#[derive(Clone, Debug, PartialEq)]
pub enum Backoff {
    /// One wait per step; the last repeats. Never empty.
    Ladder(Vec<DurationMs>),
    /// Always the same.
    Fixed(DurationMs),
    /// `base`, `base × factor`, … at most `cap`.
    Exponential {
        /// The first wait.
        base: DurationMs,
        /// At least 1.
        factor: f64,
        /// The longest wait.
        cap: DurationMs,
    },
}

/// What a kind of failure leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnFailure {
    /// Another attempt, if any is left.
    Retry,
    /// No further attempt.
    Dead,
    /// Paused for a person.
    Park,
}

/// When a task is tried again, and how often.
#[derive(Clone, Debug, PartialEq)]
pub struct RetryPolicy {
    /// The waits.
    pub backoff: Backoff,
    /// Share of a wait by which it may be longer, 0 to 1.
    pub jitter: f64,
    /// Attempts of one generation, the first included.
    pub max_attempts: u32,
    /// So many lost leases of one generation are the end, even if attempts are left.
    pub max_lost_leases: Option<u32>,
    /// By failure code (`http_503`, `exit_7`, `timeout`) or group (`http_5xx`, `exit`, `signal`).
    pub on: Vec<(String, OnFailure)>,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        let minutes = [1, 5, 10, 30];
        Self {
            backoff: Backoff::Ladder(minutes.map(|m| DurationMs::secs(m * 60)).to_vec()),
            jitter: 0.0,
            max_attempts: 11,
            max_lost_leases: None,
            on: Vec::new(),
        }
    }
}

impl RetryPolicy {
    /// The wait after attempt number `attempts` (from 1) has failed; `random` is from 0 to 1.
    pub fn delay_after(&self, attempts: u32, random: f64) -> DurationMs {
        let nth = attempts.saturating_sub(1);
        let plain = match &self.backoff {
            Backoff::Ladder(steps) => {
                let last = steps.len().saturating_sub(1);
                steps
                    .get((nth as usize).min(last))
                    .copied()
                    .unwrap_or_default()
            }
            Backoff::Fixed(delay) => *delay,
            Backoff::Exponential { base, factor, cap } => {
                let grown = base.0 as f64 * factor.powi(i32::try_from(nth).unwrap_or(i32::MAX));
                // The cast saturates: an infinite wait is cut to the cap, and nothing times infinity is nothing.
                DurationMs(grown.round() as u64).min(*cap)
            }
        };
        let longer = plain.0 as f64 * self.jitter.clamp(0.0, 1.0) * random.clamp(0.0, 1.0);
        DurationMs(plain.0.saturating_add(longer as u64)).min(DELAY_MAX)
    }

    /// What this outcome leads to: the exact code, else its group, else the outcome's own word.
    pub fn on_outcome(&self, outcome: &Outcome) -> OnFailure {
        let (code, retryable) = match outcome {
            Outcome::Failed(failure) => (failure.code.as_str(), failure.retryable),
            other => (other.name(), true),
        };
        // A redirect is a failure by its status, whichever of them it was.
        let code_of_status = if code == "redirect" { "http_3" } else { code };
        let status = code_of_status.strip_prefix("http_");
        let digit = status.and_then(|status| status.chars().next());
        let group = match code.split_once('_') {
            Some((group @ ("exit" | "signal"), number)) if number.parse::<u8>().is_ok() => {
                Some(group.to_owned())
            }
            _ => digit.map(|digit| format!("http_{digit}xx")),
        };
        let rule = |name: &str| {
            self.on
                .iter()
                .find(|(on, _)| on == name)
                .map(|(_, then)| *then)
        };
        rule(code)
            .or_else(|| group.as_deref().and_then(rule))
            .unwrap_or(if retryable {
                OnFailure::Retry
            } else {
                OnFailure::Dead
            })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::task::outcome::Failure;

    fn exponential(base: u64, factor: f64, cap: u64) -> RetryPolicy {
        RetryPolicy {
            backoff: Backoff::Exponential {
                base: DurationMs(base),
                factor,
                cap: DurationMs(cap),
            },
            ..RetryPolicy::default()
        }
    }

    #[test]
    fn the_default_ladder_waits_1_5_10_30_30_minutes() {
        let policy = RetryPolicy::default();
        let mut sum = 0;
        let cumulative: Vec<u64> = (1..=10)
            .map(|n| {
                sum += policy.delay_after(n, 0.9).0 / 60_000;
                sum
            })
            .collect();
        assert_eq!(cumulative, [1, 6, 16, 46, 76, 106, 136, 166, 196, 226]);
    }

    #[test]
    fn exponential_waits_stop_at_the_cap_and_never_overflow() {
        let policy = exponential(100, 2.0, 1000);
        let waits: Vec<u64> = (1..=6).map(|n| policy.delay_after(n, 0.0).0).collect();
        assert_eq!(waits, [100, 200, 400, 800, 1000, 1000]);
        let policy = exponential(1000, 2.0, 3_600_000);
        assert_eq!(policy.delay_after(12, 0.0).0, 2_048_000);
        for n in 13..=10_000 {
            assert_eq!(policy.delay_after(n, 0.0).0, 3_600_000, "attempt {n}");
        }
    }

    #[test]
    fn a_wait_of_nothing_stays_nothing_and_a_slow_growth_reaches_its_cap() {
        assert_eq!(exponential(0, 2.0, 3_600_000).delay_after(10_000, 0.0).0, 0);
        assert_eq!(
            exponential(1000, 1.001, 3_600_000)
                .delay_after(10_000, 0.0)
                .0,
            3_600_000
        );
    }

    #[test]
    fn a_group_rules_its_codes_unless_the_code_has_a_rule_of_its_own() {
        let policy = RetryPolicy {
            on: vec![
                ("http_4xx".into(), OnFailure::Dead),
                ("http_429".into(), OnFailure::Retry),
                ("timeout".into(), OnFailure::Park),
            ],
            ..RetryPolicy::default()
        };
        let failed = |code: &str| {
            Outcome::Failed(Failure {
                code: code.into(),
                message: String::new(),
                retryable: true,
                retry_after: None,
                in_doubt: false,
            })
        };
        assert_eq!(policy.on_outcome(&failed("http_404")), OnFailure::Dead);
        assert_eq!(policy.on_outcome(&failed("http_429")), OnFailure::Retry);
        assert_eq!(policy.on_outcome(&failed("http_503")), OnFailure::Retry);
        assert_eq!(policy.on_outcome(&Outcome::TimedOut), OnFailure::Park);
    }

    #[test]
    fn any_exit_code_and_any_signal_of_a_command_has_a_group() {
        let policy = RetryPolicy {
            on: vec![
                ("exit".into(), OnFailure::Dead),
                ("exit_75".into(), OnFailure::Retry),
                ("signal".into(), OnFailure::Park),
            ],
            ..RetryPolicy::default()
        };
        let then = |code: &str| {
            policy.on_outcome(&Outcome::Failed(Failure {
                code: code.into(),
                message: String::new(),
                retryable: true,
                retry_after: None,
                in_doubt: false,
            }))
        };
        assert_eq!(then("exit_1"), OnFailure::Dead);
        assert_eq!(then("exit_75"), OnFailure::Retry);
        assert_eq!(then("signal_11"), OnFailure::Park);
        for other in ["exit_strategy", "exit_", "signal", "spawn"] {
            assert_ne!(then(other), OnFailure::Dead, "{other}");
        }
    }

    proptest! {
        #[test]
        fn jitter_lengthens_a_wait_by_at_most_its_share(n in 1u32..20_000, random in 0.0f64..=1.0, jitter in 0.0f64..=1.0) {
            let plain = exponential(250, 1.7, 60_000).delay_after(n, random).0;
            let with = RetryPolicy { jitter, ..exponential(250, 1.7, 60_000) }.delay_after(n, random).0;
            prop_assert!(with >= plain);
            prop_assert!(with as f64 <= plain as f64 * (1.0 + jitter) + 1.0);
        }

        #[test]
        fn waits_never_shrink(base in 0u64..u64::MAX / 2, factor in 1.0f64..1000.0, cap in 0u64..u64::MAX / 2, n in 1u32..10_000) {
            let policy = exponential(base, factor, cap);
            prop_assert!(policy.delay_after(n, 0.0) <= policy.delay_after(n + 1, 0.0));
        }
    }
}

//! Is it alive? A pure function of one pulse reading, the time and the bounds.
//!
//! ```text
//!   last heard of ──────── late ─────────────── stuck ──────────►  silence
//!                   Live    │        Late         │     Stuck
//! ```
//!
//! Silence counts from the last beat; for a declared wait from the end of that wait, so nobody is suspected
//! while it does what it said. A declared wait is itself bounded: a child can't excuse itself for ever.
//! An idle child is held to the same bounds as a busy one, since children beat on their ticks.

use crate::clock::{DurationMs, MonoMs};

use super::pulse::{Phase, PulseReading};

/// How long a child may be silent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bounds {
    /// Silence beyond this is [`Verdict::Late`].
    pub late: DurationMs,
    /// Silence beyond this is [`Verdict::Stuck`].
    pub stuck: DurationMs,
    /// The longest wait that a child can declare; what it declares beyond does not count.
    pub wait_max: DurationMs,
}

impl Default for Bounds {
    /// Children beat at least once a second, so two missed beats are late and five are stuck. A wait of half a minute
    /// is what a bad disk may take.
    fn default() -> Self {
        Self {
            late: DurationMs(2_000),
            stuck: DurationMs(5_000),
            wait_max: DurationMs(30_000),
        }
    }
}

/// What a pulse says about its child.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Verdict {
    /// Heard of within the bound.
    Live,
    /// Silent for longer than it should be.
    Late,
    /// Silent for so long that it will not come back by itself.
    Stuck,
}

impl Verdict {
    /// The verdict's stable name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Live => "live",
            Self::Late => "late",
            Self::Stuck => "stuck",
        }
    }
}

/// Judges one reading.
pub fn verdict(reading: PulseReading, now: MonoMs, bounds: Bounds) -> Verdict {
    let heard = match reading.phase {
        Phase::Idle | Phase::Busy => reading.beat,
        Phase::Waiting { until } => until
            .min(reading.beat.after(bounds.wait_max))
            .max(reading.beat),
    };
    let silence = now.since(heard);
    if silence > bounds.stuck {
        Verdict::Stuck
    } else if silence > bounds.late {
        Verdict::Late
    } else {
        Verdict::Live
    }
}

#[cfg(test)]
mod tests {
    use super::Verdict::{Late, Live, Stuck};
    use super::*;

    const BOUNDS: Bounds = Bounds {
        late: DurationMs(100),
        stuck: DurationMs(300),
        wait_max: DurationMs(10_000),
    };

    #[test]
    fn silence_is_judged_by_beat_phase_and_bounds() {
        let until = |ms| Phase::Waiting { until: MonoMs(ms) };
        let table = [
            // phase, last beat, now → verdict
            (Phase::Idle, 1_000, 1_000, Live),
            (Phase::Idle, 1_000, 1_100, Live),
            (Phase::Idle, 1_000, 1_101, Late),
            (Phase::Busy, 1_000, 1_300, Late),
            (Phase::Busy, 1_000, 1_301, Stuck),
            // a clock read before the beat was
            (Phase::Busy, 1_000, 990, Live),
            // a declared wait, its end, and past it
            (until(5_000), 1_000, 4_999, Live),
            (until(5_000), 1_000, 5_100, Live),
            (until(5_000), 1_000, 5_101, Late),
            (until(5_000), 1_000, 5_301, Stuck),
            // a wait that had ended before the last beat
            (until(500), 1_000, 1_050, Live),
            (until(500), 1_000, 1_301, Stuck),
            // a wait without end is cut off
            (until(i64::MAX), 1_000, 11_100, Live),
            (until(i64::MAX), 1_000, 11_301, Stuck),
        ];
        for (phase, beat, now, expected) in table {
            let beat = MonoMs(beat);
            let found = verdict(PulseReading { beat, phase }, MonoMs(now), BOUNDS);
            assert_eq!(found, expected, "{phase:?}, beat {beat:?}, now {now}");
        }
    }

    #[test]
    fn silence_that_nobody_listened_to_is_forgiven() {
        let reading = PulseReading {
            beat: MonoMs(0),
            phase: Phase::Busy,
        };
        let away_until = MonoMs(9_000);
        let now = away_until.after(DurationMs(50));
        assert_eq!(verdict(reading, now, BOUNDS), Stuck);
        assert_eq!(verdict(reading.forgiven(away_until), now, BOUNDS), Live);
        let later = away_until.after(DurationMs(301));
        assert_eq!(verdict(reading.forgiven(away_until), later, BOUNDS), Stuck);
    }

    proptest::proptest! {
        #[test]
        fn time_alone_never_makes_a_verdict_milder(
            beat: i64, until: i64, now: i64, more in 0..i64::MAX,
        ) {
            let phase = Phase::Waiting { until: MonoMs(until) };
            let reading = PulseReading { beat: MonoMs(beat), phase };
            let before = verdict(reading, MonoMs(now), BOUNDS);
            let after = verdict(reading, MonoMs(now.saturating_add(more)), BOUNDS);
            proptest::prop_assert!(before <= after);
        }
    }
}

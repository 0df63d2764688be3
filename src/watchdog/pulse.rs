//! A child's pulse: two atomics that it writes and anybody may read.
//!
//! ```text
//!   child                          reader (watchdog, readiness)
//!   busy(now)    ──► beat, phase ──►  read() → PulseReading { beat, phase }
//! ```
//!
//! To beat costs two plain stores: no lock, no message, nothing that a suspect could hold. The child says what
//! it is about to do: `Idle` (it will beat on its next tick), `Busy` (inside a message) or `Waiting` until an
//! instant that it names beforehand. What follows from that is [`liveness`](super::liveness)' affair.

use std::sync::atomic::{AtomicI64, Ordering};

use crate::clock::MonoMs;

/// What a child last said it was doing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    /// Between messages; it beats again on its next tick.
    Idle,
    /// Inside a message.
    Busy,
    /// Waits for something outside, and said so beforehand.
    Waiting {
        /// When it will be heard of again at the latest.
        until: MonoMs,
    },
}

impl Phase {
    /// The phase's stable name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Busy => "busy",
            Self::Waiting { .. } => "waiting",
        }
    }
}

/// One reading of a [`Pulse`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PulseReading {
    /// When the child was last heard of.
    pub beat: MonoMs,
    /// What it was doing then.
    pub phase: Phase,
}

impl PulseReading {
    /// The same reading, with silence before `since` forgiven: nobody was listening then.
    pub fn forgiven(self, since: MonoMs) -> Self {
        Self {
            beat: self.beat.max(since),
            ..self
        }
    }
}

/// The pulse itself. One writer (the child), any number of readers.
#[derive(Debug)]
pub struct Pulse {
    beat: AtomicI64,
    /// `IDLE`, `BUSY`, or the instant until which the child waits.
    phase: AtomicI64,
}

const IDLE: i64 = i64::MIN;
const BUSY: i64 = i64::MIN + 1;

impl Pulse {
    /// The pulse of a child that begins, idle, at `now`.
    pub fn new(now: MonoMs) -> Self {
        Self {
            beat: AtomicI64::new(now.0),
            phase: AtomicI64::new(IDLE),
        }
    }

    /// "I am here"; the phase stays. For ticks and long loops.
    pub fn beat(&self, now: MonoMs) {
        self.beat.store(now.0, Ordering::Release);
    }

    /// A message begins.
    pub fn busy(&self, now: MonoMs) {
        self.enter(now, BUSY);
    }

    /// The message is done.
    pub fn idle(&self, now: MonoMs) {
        self.enter(now, IDLE);
    }

    /// A wait begins that ends by `until` at the latest.
    pub fn waiting(&self, now: MonoMs, until: MonoMs) {
        self.enter(now, until.0.max(BUSY + 1));
    }

    /// A wait begins whose end nobody knows, such as one for a disk: as long as a wait may be
    /// ([`Bounds::wait_max`](super::Bounds)).
    pub fn waiting_long(&self, now: MonoMs) {
        self.waiting(now, MonoMs(i64::MAX));
    }

    /// What the pulse shows. May tear between beat and phase, but only to a beat newer than the phase, so a
    /// child never looks more silent than it is.
    pub fn read(&self) -> PulseReading {
        let phase = match self.phase.load(Ordering::Acquire) {
            IDLE => Phase::Idle,
            BUSY => Phase::Busy,
            until => Phase::Waiting {
                until: MonoMs(until),
            },
        };
        PulseReading {
            beat: MonoMs(self.beat.load(Ordering::Acquire)),
            phase,
        }
    }

    fn enter(&self, now: MonoMs, phase: i64) {
        // Beat before phase; `read` loads them the other way round.
        self.beat(now);
        self.phase.store(phase, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reading_shows_the_last_beat_and_phase() {
        let pulse = Pulse::new(MonoMs(5));
        let shows = |beat, phase| {
            let beat = MonoMs(beat);
            assert_eq!(pulse.read(), PulseReading { beat, phase });
        };
        shows(5, Phase::Idle);
        pulse.busy(MonoMs(7));
        shows(7, Phase::Busy);
        pulse.beat(MonoMs(8));
        shows(8, Phase::Busy);
        let until = MonoMs(500);
        pulse.waiting(MonoMs(9), until);
        shows(9, Phase::Waiting { until });
        pulse.idle(MonoMs(10));
        shows(10, Phase::Idle);
    }

    #[test]
    fn an_absurd_wait_is_still_a_wait() {
        let pulse = Pulse::new(MonoMs(0));
        pulse.waiting(MonoMs(1), MonoMs(i64::MIN));
        assert_eq!(pulse.read().phase.name(), "waiting");
    }
}

//! Time is an argument. This is the one module that reads clocks; everything else is given a [`Now`].
//!
//! Three kinds of milliseconds, three types, and no conversion between them:
//!
//! ```text
//!  WallMs    what calendars and people mean; may step back and forth     due_at
//!  SteadyMs  never goes back: max(wall, last steady + monotonic passed)  delay, retry, snooze, total
//!  MonoMs    since this process started; never steps                     leases, time limits, grace
//! ```
//!
//! A forward step of the wall clock carries steady time along (what is due by then fires, once); a backward
//! step does not (what was asked for as a length still takes that length). The largest steady time is stored
//! with every commit and raised again at start ([`Clock::raise_steady`]), so a restart does not turn it back.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use jiff::Timestamp;
use jiff::tz::Offset;
use parking_lot::Mutex;

/// What is shown of an instant: from the year 0 to the last second that the calendar library takes.
pub(crate) const SHOWN_MS: std::ops::RangeInclusive<i64> =
    -62_167_219_200_000..=253_402_207_200_000;

/// Wall-clock milliseconds since 1970-01-01T00:00:00Z.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct WallMs(pub i64);

/// Monotonic milliseconds since this process started.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct MonoMs(pub i64);

/// Steady milliseconds: wall-clock milliseconds that never go back.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct SteadyMs(pub i64);

impl fmt::Display for WallMs {
    /// RFC 3339 in UTC with milliseconds: `2026-12-01T10:30:00.000Z`. Instants beyond the years that can be
    /// written so show as the last one that can. Written out by hand: it stands in every answer, many times.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown_ms = self.0.clamp(*SHOWN_MS.start(), *SHOWN_MS.end());
        let at = Timestamp::from_millisecond(shown_ms).unwrap_or(Timestamp::UNIX_EPOCH);
        let civil = Offset::UTC.to_datetime(at);
        let mut text = *b"0000-00-00T00:00:00.000Z";
        let mut put = |end: usize, mut number: i32| {
            let mut at = end;
            while number > 0 {
                at -= 1;
                text[at] += (number % 10) as u8;
                number /= 10;
            }
        };
        put(4, civil.year().into());
        put(7, civil.month().into());
        put(10, civil.day().into());
        put(13, civil.hour().into());
        put(16, civil.minute().into());
        put(19, civil.second().into());
        put(23, civil.subsec_nanosecond() / 1_000_000);
        f.write_str(std::str::from_utf8(&text).expect("digits and marks are ASCII"))
    }
}

/// A length of time in milliseconds, never negative.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct DurationMs(pub u64);

impl DurationMs {
    /// `seconds` as milliseconds.
    pub const fn secs(seconds: u64) -> Self {
        Self(seconds * 1000)
    }

    /// The length as the standard library's type.
    pub fn to_std(self) -> Duration {
        Duration::from_millis(self.0)
    }

    fn signed(self) -> i64 {
        i64::try_from(self.0).unwrap_or(i64::MAX)
    }
}

macro_rules! instants {
    ($($name:ident),*) => {$(
        impl $name {
            /// The instant `length` later; stops at the end of time instead of wrapping.
            pub fn after(self, length: DurationMs) -> Self {
                Self(self.0.saturating_add(length.signed()))
            }

            /// How long it is from `earlier` to here; zero when `earlier` is later.
            pub fn since(self, earlier: Self) -> DurationMs {
                DurationMs(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
            }
        }
    )*};
}
instants!(WallMs, MonoMs, SteadyMs);

/// One reading of all three clocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Now {
    /// The wall clock.
    pub wall: WallMs,
    /// The monotonic clock.
    pub mono: MonoMs,
    /// Steady time.
    pub steady: SteadyMs,
}

/// Where time comes from: the machine, or a test's own hand. Clones share the same clock.
#[derive(Clone)]
pub struct Clock {
    source: Source,
    steady: Arc<Mutex<Steady>>,
}

#[derive(Clone)]
enum Source {
    Machine { started: Instant },
    Hand(Arc<Hand>),
}

/// In nanoseconds: with milliseconds, each rounded down on its own, steady time could run up to one ahead of the
/// wall clock, and what was asked for as a length would fire that much early.
struct Steady {
    last_ns: i128,
    at_mono_ns: i128,
}

const NS_PER_MS: i128 = 1_000_000;

fn whole_ms(ns: i128) -> i64 {
    i64::try_from(ns.div_euclid(NS_PER_MS)).unwrap_or(if ns < 0 { i64::MIN } else { i64::MAX })
}

struct Hand {
    time: Mutex<(WallMs, MonoMs)>,
    on_move: Mutex<Vec<Box<dyn Fn() + Send>>>,
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.source {
            Source::Machine { .. } => f.write_str("Clock(machine)"),
            Source::Hand(_) => f.write_str("Clock(by hand)"),
        }
    }
}

impl Clock {
    /// The machine's clocks.
    pub fn machine() -> Self {
        Self::over(Source::Machine {
            started: Instant::now(),
        })
    }

    /// A clock that stands still until a test moves it.
    pub fn by_hand(wall: WallMs) -> Self {
        Self::over(Source::Hand(Arc::new(Hand {
            time: Mutex::new((wall, MonoMs(0))),
            on_move: Mutex::new(Vec::new()),
        })))
    }

    fn over(source: Source) -> Self {
        let steady = Steady {
            last_ns: i128::MIN / 2,
            at_mono_ns: 0,
        };
        Self {
            source,
            steady: Arc::new(Mutex::new(steady)),
        }
    }

    /// Reads all clocks at once.
    pub fn now(&self) -> Now {
        let (wall_ns, mono_ns) = match &self.source {
            Source::Machine { started } => {
                let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH);
                let wall_ns = since_epoch.map_or(0, |d| d.as_nanos() as i128);
                (wall_ns, started.elapsed().as_nanos() as i128)
            }
            Source::Hand(hand) => {
                let (wall, mono) = *hand.time.lock();
                (
                    i128::from(wall.0) * NS_PER_MS,
                    i128::from(mono.0) * NS_PER_MS,
                )
            }
        };
        let mut steady = self.steady.lock();
        let passed = (mono_ns - steady.at_mono_ns).max(0);
        steady.last_ns = (steady.last_ns + passed).max(wall_ns);
        steady.at_mono_ns = steady.at_mono_ns.max(mono_ns);
        Now {
            wall: WallMs(whole_ms(wall_ns)),
            mono: MonoMs(whole_ms(mono_ns)),
            steady: SteadyMs(whole_ms(steady.last_ns)),
        }
    }

    /// Makes steady time at least `mark`, the high-water mark that a store kept.
    pub fn raise_steady(&self, mark: SteadyMs) {
        self.now();
        let mut steady = self.steady.lock();
        steady.last_ns = steady.last_ns.max(i128::from(mark.0) * NS_PER_MS);
    }

    /// Lets `length` pass on a test's clock. Nothing happens on the machine's.
    pub fn advance(&self, length: DurationMs) {
        self.turn(|(wall, mono)| (wall.after(length), mono.after(length)));
    }

    /// Steps the wall clock of a test's clock by `ms`, forth or back; the monotonic clock stays.
    pub fn step_wall(&self, ms: i64) {
        self.turn(|(wall, mono)| (WallMs(wall.0.saturating_add(ms)), mono));
    }

    /// Calls `f` after each move of a test's clock, so that sleepers look again.
    pub fn on_move(&self, f: impl Fn() + Send + 'static) {
        if let Source::Hand(hand) = &self.source {
            hand.on_move.lock().push(Box::new(f));
        }
    }

    /// Whether time passes by itself.
    pub fn runs_by_itself(&self) -> bool {
        matches!(self.source, Source::Machine { .. })
    }

    fn turn(&self, f: impl FnOnce((WallMs, MonoMs)) -> (WallMs, MonoMs)) {
        if let Source::Hand(hand) = &self.source {
            {
                let mut time = hand.time.lock();
                *time = f(*time);
            }
            self.now();
            for call in hand.on_move.lock().iter() {
                call();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steady_time_follows_a_forward_step_and_ignores_a_backward_one() {
        let clock = Clock::by_hand(WallMs(1_000_000));
        assert_eq!(clock.now().steady, SteadyMs(1_000_000));
        clock.step_wall(3_600_000);
        assert_eq!(clock.now().steady, SteadyMs(4_600_000));
        clock.step_wall(-3_600_000);
        assert_eq!(clock.now().wall, WallMs(1_000_000));
        assert_eq!(clock.now().steady, SteadyMs(4_600_000));
        clock.advance(DurationMs(250));
        assert_eq!(clock.now().steady, SteadyMs(4_600_250));
    }

    #[test]
    fn a_stored_mark_holds_steady_time_up_after_a_restart() {
        let clock = Clock::by_hand(WallMs(5_000));
        clock.raise_steady(SteadyMs(9_000));
        clock.advance(DurationMs(100));
        assert_eq!(clock.now().steady, SteadyMs(9_100));
        clock.raise_steady(SteadyMs(1));
        assert_eq!(clock.now().steady, SteadyMs(9_100));
    }

    #[test]
    fn an_instant_is_shown_in_utc_with_milliseconds() {
        assert_eq!(WallMs(0).to_string(), "1970-01-01T00:00:00.000Z");
        assert_eq!(
            WallMs(1_800_909_083_647).to_string(),
            "2027-01-25T20:31:23.647Z"
        );
        assert!(WallMs(i64::MAX).to_string().starts_with("9999-12-30"));
    }

    #[test]
    fn lengths_never_wrap() {
        assert_eq!(WallMs(5).after(DurationMs(u64::MAX)), WallMs(i64::MAX));
        assert_eq!(WallMs(5).since(WallMs(9)), DurationMs(0));
        assert_eq!(WallMs(i64::MIN).since(WallMs(i64::MAX)), DurationMs(0));
    }

    #[test]
    fn steady_time_never_runs_ahead_of_a_wall_clock_that_does_not_step() {
        let clock = Clock::machine();
        for _ in 0..200_000 {
            let now = clock.now();
            assert!(now.steady.0 <= now.wall.0, "{now:?}");
        }
    }

    #[test]
    fn the_machine_clock_never_runs_backwards_in_steady_time() {
        let clock = Clock::machine();
        let mut last = clock.now();
        for _ in 0..10_000 {
            let now = clock.now();
            assert!(now.steady >= last.steady && now.mono >= last.mono);
            last = now;
        }
    }
}

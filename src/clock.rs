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

    /// The standard library's type in milliseconds; what is finer is rounded up, so that nothing is early.
    pub fn at_least(length: Duration) -> Self {
        let millis = length.as_nanos().div_ceil(1_000_000);
        Self(u64::try_from(millis).unwrap_or(u64::MAX))
    }

    /// A length of the standard library's type, less what is under a millisecond.
    pub fn of(length: Duration) -> Self {
        Self(u64::try_from(length.as_millis()).unwrap_or(u64::MAX))
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

/// What is remembered of the latest reading, in nanoseconds.
///
/// Steady time is the wall clock plus a lead, which is nothing until the wall clock steps back. Two clocks can't be
/// read at the same instant, so a difference below [`STEP_NS`] is not taken for a step: else a thread that is
/// interrupted between the two readings would push steady time ahead for good, and lengths would end early.
struct Steady {
    wall_ns: i128,
    mono_ns: i128,
    lead_ns: i128,
    last_ns: i128,
    steps: ClockSteps,
}

/// How often the wall clock has stepped, as far as it was looked at.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ClockSteps {
    /// Forth.
    pub forward: u64,
    /// Back.
    pub backward: u64,
}

/// From here on a difference between the clocks is a step of the wall clock.
const STEP_NS: i128 = 5 * NS_PER_MS;
/// Readings of both clocks that lie further apart are taken again.
const APART_NS: i128 = NS_PER_MS / 2;
/// So often at most.
const READINGS_MAX: usize = 10;
const NS_PER_MS: i128 = 1_000_000;

fn whole_ms(ns: i128) -> i64 {
    i64::try_from(ns.div_euclid(NS_PER_MS)).unwrap_or(if ns < 0 { i64::MIN } else { i64::MAX })
}

impl Source {
    /// Wall and monotonic time in nanoseconds, read as nearly at once as can be had.
    fn read(&self) -> (i128, i128) {
        match self {
            Self::Machine { started } => {
                let mut read = (0, 0);
                for _ in 0..READINGS_MAX {
                    let before_ns = started.elapsed().as_nanos() as i128;
                    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH);
                    let after_ns = started.elapsed().as_nanos() as i128;
                    read = (since_epoch.map_or(0, |d| d.as_nanos() as i128), before_ns);
                    if after_ns - before_ns < APART_NS {
                        break;
                    }
                }
                read
            }
            Self::Hand(hand) => {
                let (wall, mono) = *hand.time.lock();
                (
                    i128::from(wall.0) * NS_PER_MS,
                    i128::from(mono.0) * NS_PER_MS,
                )
            }
        }
    }
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
            wall_ns: 0,
            mono_ns: 0,
            lead_ns: 0,
            last_ns: i128::MIN,
            steps: ClockSteps::default(),
        };
        Self {
            source,
            steady: Arc::new(Mutex::new(steady)),
        }
    }

    /// Reads all clocks at once.
    pub fn now(&self) -> Now {
        let (now, step_ns) = self.read();
        if step_ns != 0 {
            // Not under the lock: a log that blocks must not stop every other thread's time.
            let direction = if step_ns > 0 { "forward" } else { "back" };
            let step_ms = (step_ns.unsigned_abs() / NS_PER_MS.unsigned_abs()) as u64;
            tracing::warn!(step_ms, direction, "the wall clock stepped");
        }
        now
    }

    /// Reads all clocks, and by how much the wall clock has stepped since the reading before.
    fn read(&self) -> (Now, i128) {
        let mut steady = self.steady.lock();
        let (wall_ns, mono_ns) = self.source.read();
        let mut step_ns = 0;
        if steady.last_ns > i128::MIN {
            let expected_ns = steady.wall_ns + (mono_ns - steady.mono_ns);
            let difference_ns = wall_ns - expected_ns;
            if difference_ns.abs() >= STEP_NS {
                step_ns = difference_ns;
                steady.lead_ns = (steady.lead_ns - step_ns).max(0);
                steady.steps.forward += u64::from(step_ns > 0);
                steady.steps.backward += u64::from(step_ns < 0);
            }
        }
        steady.wall_ns = wall_ns;
        steady.mono_ns = mono_ns;
        steady.last_ns = steady.last_ns.max(wall_ns + steady.lead_ns);
        let now = Now {
            wall: WallMs(whole_ms(wall_ns)),
            mono: MonoMs(whole_ms(mono_ns)),
            steady: SteadyMs(whole_ms(steady.last_ns)),
        };
        (now, step_ns)
    }

    /// Makes steady time at least `mark`, the high-water mark that a store kept: the wall clock may have stepped
    /// back while nobody looked.
    pub fn raise_steady(&self, mark: SteadyMs) {
        self.now();
        let mut steady = self.steady.lock();
        let missing_ns = i128::from(mark.0) * NS_PER_MS - steady.last_ns;
        if missing_ns >= STEP_NS {
            steady.lead_ns += missing_ns;
            steady.last_ns += missing_ns;
        }
    }

    /// Microseconds of the monotonic clock, and microseconds into the wall clock's present millisecond: for sleeping
    /// to the edge of a millisecond, and nothing else.
    pub fn edge_us(&self) -> (i64, i64) {
        let (wall_ns, mono_ns) = self.source.read();
        let whole_us = |ns: i128| i64::try_from(ns / 1000).unwrap_or(i64::MAX);
        (whole_us(mono_ns), whole_us(wall_ns.rem_euclid(NS_PER_MS)))
    }

    /// How often the wall clock has stepped.
    pub fn steps(&self) -> ClockSteps {
        self.steady.lock().steps
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
    fn steps_of_the_wall_clock_are_counted_and_small_differences_are_none() {
        let clock = Clock::by_hand(WallMs(1_000_000));
        clock.now();
        clock.step_wall(4);
        clock.step_wall(-4);
        clock.advance(DurationMs(86_400_000));
        assert_eq!(clock.steps(), ClockSteps::default());
        clock.step_wall(5_000);
        clock.step_wall(-9_000);
        clock.step_wall(1_000);
        let steps = ClockSteps {
            forward: 2,
            backward: 1,
        };
        assert_eq!(clock.steps(), steps);
        // 9 s back, 1 s forth: steady time is 8 s ahead of the wall clock.
        let now = clock.now();
        assert_eq!(now.steady.0 - now.wall.0, 8_000);
    }

    #[test]
    fn a_stored_mark_holds_steady_time_up_after_a_restart() {
        let clock = Clock::by_hand(WallMs(5_000));
        clock.raise_steady(SteadyMs(9_000));
        assert_eq!(clock.now().steady, SteadyMs(9_000));
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
        std::thread::scope(|threads| {
            // More threads than cores, so that readings are interrupted.
            for _ in 0..8 {
                threads.spawn(|| {
                    for _ in 0..20_000 {
                        let now = clock.now();
                        // A reading before may have been of a later microsecond, never of a later millisecond's end.
                        assert!(now.steady.0 - now.wall.0 <= 0, "{now:?}");
                    }
                });
            }
        });
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

//! Supervision: somebody notices when a part of the house dies, and starts it again from its store.
//!
//! actix alone does not: its `Supervisor` goes down with the actor that panics, later messages vanish without a
//! word, and there is no limit to restarts (`tests/actix_facts.rs` pins all this). So every long-lived actor is
//! a **child** of one watchdog:
//!
//! ```text
//!              start(ChildContext) on a thread of its own
//!          ┌─────────────────────────────────────────────►┌──────────┐
//!  ┌──────────────┐      pulse (atomics, 50 ms) ◄─────────│ child g1 │  on its own arbiter
//!  │ WatchdogActor│      kill switch, stop hook ─────────►│          │
//!  └──────────────┘◄───── death notice (drop guard) ──────└──────────┘
//!     │  │   └ Starting → Running ─ dies → at once, or BackingOff → Starting g2 … → Parked
//!     │  └ own pulse, which readiness checks
//!     ▼
//!   Board ◄── HTTP, readiness, metrics: read without asking the actor
//! ```
//!
//! - **One path.** A restart drops the child and builds it again from its store, exactly like a cold start.
//! - **Noticing.** A child that ends is heard through its [`DeathNotice`]; one that hangs shows in its
//!   [`Pulse`], by a pure [`verdict`](liveness::verdict).
//! - **One incarnation at a time.** The next start begins when the last one's start has returned *and* its death
//!   notice was dropped, or when it was declared dead. Words from older generations change nothing.
//! - **What hangs is replaced.** Kill switch, stop message, arbiter stop; then its thread is left to itself, fenced, and
//!   a successor starts. How far that goes: [`Supervision`].
//! - **Patience with an end.** [`RestartPolicy`]: the first restart at once, then longer pauses, then `Parked`.
//!   Without an end only while something outside excuses the child ([`ChildSpec::excused_while`]).
//! - **The watchdog waits for nobody.** It is alone on its thread, reads atomics, gets messages, and runs no
//!   child's code but a stop hook that only sends.
//!
//! Cost: per child and thread two atomic loads each 50 ms. Limits: a thread that hangs can't be ended, only left
//! behind; a watchdog that hangs or dies is not replaced, but readiness tells. Invariants: this module knows no other
//! actor of the house; `pulse`, `threads`, `liveness`, `restart`, `office` and `death_notice` know no actix.
//!
//! An actor of your own, supervised: it beats, leaves when it is told to, and keeps what it was handed to its end.
//!
//! ```
//! use std::sync::Arc;
//! use std::time::Duration;
//!
//! use actix::{Actor, ActorContext, AsyncContext, Context, Handler, Message};
//! use duetime::supervision::{ChildContext, ChildSpec, NamedArbiter, Office, StartFault, Watchdog};
//! use duetime::{Clock, DurationMs};
//!
//! /// Adds up what a meter says.
//! struct Meter {
//!     sum: i64,
//!     clock: Clock,
//!     _thread: NamedArbiter,
//!     child: ChildContext,
//! }
//!
//! impl Actor for Meter {
//!     type Context = Context<Self>;
//!
//!     fn started(&mut self, ctx: &mut Context<Self>) {
//!         let me = ctx.address();
//!         self.child.kill.on_throw(move || me.do_send(Leave));
//!         ctx.run_interval(Duration::from_millis(250), |meter, _| {
//!             meter.child.pulse.beat(meter.clock.now().mono);
//!         });
//!     }
//! }
//!
//! #[derive(Message)]
//! #[rtype(result = "()")]
//! struct Leave;
//!
//! impl Handler<Leave> for Meter {
//!     type Result = ();
//!
//!     fn handle(&mut self, _: Leave, ctx: &mut Context<Self>) {
//!         ctx.stop();
//!     }
//! }
//!
//! #[derive(Message)]
//! #[rtype(result = "()")]
//! struct Reading(i64);
//!
//! impl Handler<Reading> for Meter {
//!     type Result = ();
//!
//!     fn handle(&mut self, reading: Reading, _: &mut Context<Self>) {
//!         assert!(reading.0 >= 0, "a meter does not run backwards");
//!         self.sum += reading.0;
//!     }
//! }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let clock = Clock::machine();
//! let meter = Arc::new(Office::default());
//! let spec = ChildSpec::new("meter", {
//!     let (clock, meter) = (clock.clone(), Arc::clone(&meter));
//!     move |child: ChildContext| {
//!         let generation = child.generation;
//!         let thread = child.arbiter("meter").map_err(StartFault::new)?;
//!         let (clock, on) = (clock.clone(), thread.handle());
//!         let actor = Meter::start_in_arbiter(&on, move |_| Meter {
//!             sum: 0,
//!             clock,
//!             _thread: thread,
//!             child,
//!         });
//!         meter.take(generation, actor);
//!         Ok(())
//!     }
//! });
//! let watchdog = Watchdog::start(clock, vec![spec]);
//! watchdog.wait_all_running(DurationMs::secs(10), None)?;
//!
//! // It panics; whoever asks the office from now on finds its successor.
//! meter.who().expect("it runs").do_send(Reading(-1));
//! watchdog.board().wait_until(DurationMs::secs(10), |children| {
//!     children[0].restarts == 1 && children[0].is_running()
//! });
//! let child = watchdog.board().child("meter").expect("it is the only one");
//! let fault = child.last_fault.expect("it is kept");
//! assert!(fault.contains("panicked"), "{fault}");
//! # Ok(())
//! # }
//! ```

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use actix::{Actor, Addr, AsyncContext};
use parking_lot::{Condvar, Mutex};

use crate::clock::{Clock, DurationMs};

use actor::{Child, Look, Restart, Shutdown, WatchdogActor};

mod actor;
mod child;
mod death_notice;
mod ladder;
pub mod liveness;
mod office;
mod pulse;
mod restart;
mod threads;

pub use child::{
    ChildContext, ChildId, ChildSpec, ChildState, ChildStatus, Excused, Generation, KillSwitch,
    NamedArbiter, PulseStatus, StartChild, StartFault, named_arbiter,
};
pub use death_notice::{Death, DeathCause, DeathNotice, LastWords};
pub use ladder::{LastRung, Supervision};
pub use liveness::{Bounds, Verdict};
pub use office::Office;
pub use pulse::{Phase, Pulse, PulseReading};
pub use restart::{NextStart, RestartHistory, RestartPolicy};
pub use threads::{ThreadPulse, Threads};

/// The watchdog as the engine holds it. Dropping it ends the watchdog, not the children.
pub struct Watchdog {
    board: Arc<Board>,
    addr: Addr<WatchdogActor>,
    _arbiter: NamedArbiter,
}

/// No child has this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no child is named {0}")]
pub struct UnknownChild(pub String);

/// Some children are not up.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "not running: {}{}",
    .children.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
    if *.is_watched { "" } else { "; and the watchdog, which starts them, does not answer" }
)]
pub struct NotRunning {
    /// Those that are not.
    pub children: Vec<ChildStatus>,
    /// Whether their watchdog gives signs of life.
    pub is_watched: bool,
}

/// How often who waits for children looks whether their watchdog is still there.
const LOOK_EVERY: DurationMs = DurationMs(100);

impl Watchdog {
    /// Starts the watchdog on its own thread, and all children, each on its own; waits for none of them. What hangs is
    /// replaced as [`Supervision`] says by default.
    ///
    /// # Panics
    /// When two children share a name, or the machine gives no thread.
    pub fn start(clock: Clock, children: Vec<ChildSpec>) -> Self {
        Self::start_with(clock, children, Supervision::default())
    }

    /// The same, with what is done about children that hang.
    ///
    /// # Panics
    /// As [`Watchdog::start`].
    pub fn start_with(clock: Clock, children: Vec<ChildSpec>, supervision: Supervision) -> Self {
        for (n, child) in children.iter().enumerate() {
            let taken = children[..n].iter().any(|other| other.name == child.name);
            assert!(!taken, "two children are named {}", child.name);
        }
        let now = clock.now().mono;
        let children: Vec<Child> = children
            .into_iter()
            .enumerate()
            .map(|(n, spec)| Child::new(ChildId(n), spec, now))
            .collect();
        let board = Arc::new(Board {
            children: Mutex::new(children.iter().map(|child| child.status.clone()).collect()),
            changed: Condvar::new(),
            watchdog_pulse: Pulse::new(now),
            shut_down: AtomicBool::new(false),
        });
        let arbiter = named_arbiter("watchdog").expect("the machine has a thread for the watchdog");
        let addr = WatchdogActor::start_in_arbiter(&arbiter.handle(), {
            let (clock, board) = (clock.clone(), board.clone());
            move |ctx| WatchdogActor::new(clock, board, children, supervision, ctx.address())
        });
        // A test's clock passes no time by itself: look again whenever it is moved.
        let look = addr.clone();
        clock.on_move(move || look.do_send(Look));
        Self {
            board,
            addr,
            _arbiter: arbiter,
        }
    }

    /// What is shown of the children. Cheap to clone and to read.
    pub fn board(&self) -> &Arc<Board> {
        &self.board
    }

    /// Blocks this thread until all children run, or one is parked, or `longest` has passed, or the watchdog itself was
    /// silent for `silence_max` (`None`: that is not looked at). Both are counted in looks, so that a process that was
    /// stopped meanwhile has missed nothing.
    ///
    /// # Errors
    /// The children that do not run.
    pub fn wait_all_running(
        &self,
        longest: DurationMs,
        silence_max: Option<DurationMs>,
    ) -> Result<(), NotRunning> {
        let (mut heard, mut silent) = (self.board.watchdog_pulse().beat, DurationMs(0));
        let mut waited = DurationMs(0);
        let is_settled = |children: &[ChildStatus]| {
            children.iter().all(ChildStatus::is_running)
                || children.iter().any(ChildStatus::is_parked)
        };
        let is_watched = loop {
            if self.board.wait_until(LOOK_EVERY, is_settled) || waited >= longest {
                break true;
            }
            waited.0 += LOOK_EVERY.0;
            let beat = self.board.watchdog_pulse().beat;
            silent.0 = if beat == heard {
                silent.0 + LOOK_EVERY.0
            } else {
                0
            };
            heard = beat;
            if silence_max.is_some_and(|max| silent > max) {
                break false;
            }
        };
        let mut children = self.board.children();
        children.retain(|child| !child.is_running());
        match children.is_empty() {
            true => Ok(()),
            false => Err(NotRunning {
                children,
                is_watched,
            }),
        }
    }

    /// Asks a running child to leave, so that it is started again; starts one that backs off or is parked now.
    /// What a person asks for is no fault: it counts towards no limit, and wipes what counted before.
    ///
    /// # Errors
    /// When no child has this name.
    pub fn restart(&self, name: &str) -> Result<(), UnknownChild> {
        let children = self.board.children.lock();
        let place = children.iter().position(|child| child.name == name);
        let child = place
            .map(ChildId)
            .ok_or_else(|| UnknownChild(name.to_owned()))?;
        self.addr.do_send(Restart(child));
        Ok(())
    }

    /// All children are asked to leave, one that was still starting when it is up, and none is started from here on,
    /// even if the watchdog hangs now and wakes later. A child that shows as `Stopped` then has left nothing open, nor
    /// has what it was started from; only what is in quarantine may have.
    pub fn shutdown(&self) {
        self.board.shut_down.store(true, Ordering::Release);
        self.addr.do_send(Shutdown);
    }
}

/// What is shown of all children, written by the watchdog and read by anybody.
pub struct Board {
    children: Mutex<Vec<ChildStatus>>,
    changed: Condvar,
    watchdog_pulse: Pulse,
    /// Nothing is started any more.
    shut_down: AtomicBool,
}

impl Board {
    /// All children, in the order they were given. At most one round (50 ms) old.
    pub fn children(&self) -> Vec<ChildStatus> {
        self.children.lock().clone()
    }

    /// One child by its name.
    pub fn child(&self, name: &str) -> Option<ChildStatus> {
        let children = self.children.lock();
        children.iter().find(|child| child.name == name).cloned()
    }

    /// The watchdog's own pulse: it beats each round, so judge it like any child's.
    pub fn watchdog_pulse(&self) -> PulseReading {
        self.watchdog_pulse.read()
    }

    /// Blocks this thread until `done` holds for the children or `timeout` has passed; says whether it holds.
    pub fn wait_until(
        &self,
        timeout: DurationMs,
        mut done: impl FnMut(&[ChildStatus]) -> bool,
    ) -> bool {
        let mut children = self.children.lock();
        self.changed
            .wait_while_for(&mut children, |seen| !done(seen), timeout.to_std());
        done(&children)
    }
}

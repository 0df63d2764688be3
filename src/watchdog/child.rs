//! What a child is to the watchdog: how it is started, what it is handed, how it is asked to leave, and what
//! is shown of it. Which actor it is, the watchdog neither knows nor asks.
//!
//! ```text
//!   ChildSpec ── start(ChildContext) ──►  the child's actor, on a NamedArbiter of its own
//!                  ├ pulse    it writes   ├ holds the arbiter: the thread goes with the actor
//!                  ├ threads  it names    └ holds the death notice, as its last field
//!                  ├ kill     it checks
//!                  └ death    it drops
//! ```

use std::fmt;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};

use actix::{ArbiterHandle, System};
use parking_lot::Mutex;

use crate::clock::{DurationMs, MonoMs};

use super::death_notice::DeathNotice;
use super::liveness::Verdict;
use super::pulse::{Phase, Pulse};
use super::restart::RestartPolicy;
use super::threads::Threads;

/// A child's place in the watchdog's list.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ChildId(pub usize);

/// Incarnation of a child: 1 at first, one more at each start. Shown as `g2`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Generation(pub u64);

impl fmt::Display for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "g{}", self.0)
    }
}

/// Why a child could not be started; says what was being done.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{words}")]
pub struct StartFault {
    words: String,
    kind: FaultKind,
}

/// What another start would meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FaultKind {
    /// Perhaps it fares better.
    Passing,
    /// The same.
    ForGood,
    /// The same, as long as a zombie holds what it needs.
    Held,
}

impl StartFault {
    /// A fault as text: `opening the store: no such directory`.
    pub fn new(fault: impl fmt::Display) -> Self {
        Self {
            words: fault.to_string(),
            kind: FaultKind::Passing,
        }
    }

    /// A fault that another start would meet again: the child is parked at once, until a person has mended it.
    pub fn for_good(fault: impl fmt::Display) -> Self {
        Self {
            kind: FaultKind::ForGood,
            ..Self::new(fault)
        }
    }

    /// What the child needs is held by a predecessor that was given up for dead. That one may let go of it yet; if it
    /// does not within a few starts, nothing but the end of the process frees it.
    pub fn held(fault: impl fmt::Display) -> Self {
        Self {
            kind: FaultKind::Held,
            ..Self::new(fault)
        }
    }

    pub(super) fn kind(&self) -> FaultKind {
        self.kind
    }
}

/// Starts one incarnation of a child.
///
/// Runs on a thread of its own and may take its time: recovery happens here. `Ok` means the child is up and
/// keeps the context's death notice. Before `Err` everything that was begun must be dropped.
pub type StartChild = dyn Fn(ChildContext) -> Result<(), StartFault> + Send + Sync;

/// Says whether deaths count just now.
pub type Excused = dyn Fn() -> bool + Send;

/// How one child is started, and started again.
pub struct ChildSpec {
    /// Unique among the children: `shard-00`.
    pub name: String,
    /// Starts it, from nothing or from its store: one path for both.
    pub start: Box<StartChild>,
    /// How often, and how fast, it is started again.
    pub restart: RestartPolicy,
    /// Whether something outside the child explains a death just now.
    pub excused: Box<Excused>,
    /// Whether its start is heavy, so that not all such are to start at once.
    pub in_turn: bool,
}

impl ChildSpec {
    /// A child under the default restart policy.
    pub fn new(
        name: impl Into<String>,
        start: impl Fn(ChildContext) -> Result<(), StartFault> + Send + Sync + 'static,
    ) -> Self {
        Self {
            name: name.into(),
            start: Box::new(start),
            restart: RestartPolicy::default(),
            excused: Box::new(|| false),
            in_turn: false,
        }
    }

    /// Its start is heavy: of all such children only [a few](super::Supervision::starts_max) start at a time.
    #[must_use]
    pub fn in_turn(mut self) -> Self {
        self.in_turn = true;
        self
    }

    /// Its deaths are not held against it while `excused` holds: a full disk is no fault of a child's that writes to
    /// it. Such a child is started again at a steady pace for as long as it takes, and is never parked for it.
    /// `excused` runs on the watchdog's thread and does nothing but look at what is known already.
    #[must_use]
    pub fn excused_while(mut self, excused: impl Fn() -> bool + Send + 'static) -> Self {
        self.excused = Box::new(excused);
        self
    }
}

/// What one incarnation of a child is handed at its start.
pub struct ChildContext {
    /// Which incarnation it is.
    pub generation: Generation,
    /// Beat it at least once a second, and say before a longer wait. A start that takes long beats it as it goes.
    pub pulse: Arc<Pulse>,
    /// Name the threads here that work for it beside its own.
    pub threads: Threads,
    /// Keep it as the actor's last field. A child that lets go of it counts as dead.
    pub death: DeathNotice,
    /// Check it between messages and in long loops, and before anything that others see.
    pub kill: KillSwitch,
    pub(super) arbiter: Arc<Mutex<Option<System>>>,
}

impl ChildContext {
    /// A context that nobody watches, for tests of children.
    #[cfg(test)]
    pub(crate) fn unwatched(pulse: Arc<Pulse>, death: DeathNotice) -> Self {
        Self {
            generation: Generation(1),
            pulse,
            threads: Threads::default(),
            death,
            kill: KillSwitch::new(),
            arbiter: Arc::default(),
        }
    }

    /// Starts the thread that the child lives on, and hands it over: the watchdog stops it if the child hangs.
    ///
    /// # Errors
    /// When the machine gives no thread or no event loop for it.
    pub fn arbiter(&self, name: &str) -> io::Result<NamedArbiter> {
        let arbiter = named_arbiter(name)?;
        *self.arbiter.lock() = Some(arbiter.system.clone());
        Ok(arbiter)
    }
}

/// Asks one incarnation of a child to leave. Once thrown, it stays thrown. Clones share the switch.
///
/// It is the incarnation's fence as well: whoever is told something by it, or acts for it, checks first whether it
/// still [counts](Self::is_thrown).
#[derive(Clone, Default)]
pub struct KillSwitch {
    shared: Arc<Switch>,
}

#[derive(Default)]
struct Switch {
    thrown: AtomicBool,
    hook: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl KillSwitch {
    /// A switch nobody has thrown yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether the child is to leave. One atomic load.
    pub fn is_thrown(&self) -> bool {
        self.shared.thrown.load(Ordering::Acquire)
    }

    /// Throws the switch and calls the stop hook, on this thread, the first time.
    pub fn throw(&self) {
        // Under the hook's lock, so that a hook registered meanwhile is not missed.
        let hook = {
            let mut hook = self.shared.hook.lock();
            self.shared.thrown.store(true, Ordering::Release);
            hook.take()
        };
        if let Some(hook) = hook {
            hook();
        }
    }

    /// Registers this incarnation's stop hook, for a child that sleeps between messages; called at once when
    /// the switch has been thrown already. A hook does nothing but send (`addr.do_send(Leave)`): it runs on the
    /// watchdog's thread. A second hook replaces the first.
    pub fn on_throw(&self, hook: impl FnOnce() + Send + 'static) {
        let mut slot = self.shared.hook.lock();
        if self.is_thrown() {
            drop(slot);
            hook();
        } else {
            *slot = Some(Box::new(hook));
        }
    }
}

/// Where a child stands.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ChildState {
    /// Its start is under way.
    Starting,
    /// It is up.
    Running,
    /// It died and is started again at `until`.
    BackingOff {
        /// When.
        until: MonoMs,
    },
    /// It stays down until a person asks for it: it died too often, another start would be no better, or what it needs
    /// only a new process frees.
    Parked {
        /// Why, for a person.
        reason: String,
    },
    /// It stays down, since [`Watchdog::shutdown`](super::Watchdog::shutdown): it has ended after that, or was down
    /// then.
    Stopped,
}

impl ChildState {
    /// The state's stable name.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Running => "running",
            Self::BackingOff { .. } => "backing_off",
            Self::Parked { .. } => "parked",
            Self::Stopped => "stopped",
        }
    }
}

/// What the pulse of a running child shows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PulseStatus {
    /// What the child last said it was doing.
    pub phase: Phase,
    /// How long ago that was.
    pub age: DurationMs,
    /// What follows from it.
    pub verdict: Verdict,
}

/// What is shown of one child.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ChildStatus {
    /// Its name.
    pub name: String,
    /// Its newest incarnation.
    pub generation: Generation,
    /// Where it stands.
    pub state: ChildState,
    /// Since when it stands there.
    pub since: MonoMs,
    /// Its pulse; `None` unless it is running.
    pub pulse: Option<PulseStatus>,
    /// How often it was started again since the process began.
    pub restarts: u64,
    /// How many of its incarnations were given up and have not ended.
    pub quarantined: usize,
    /// Why it last died or failed to start.
    pub last_fault: Option<String>,
}

impl ChildStatus {
    /// Whether the child is up.
    pub fn is_running(&self) -> bool {
        self.state == ChildState::Running
    }

    /// Whether the child stays down until a person asks for it.
    pub fn is_parked(&self) -> bool {
        matches!(self.state, ChildState::Parked { .. })
    }
}

impl fmt::Display for ChildStatus {
    /// One line for a person: `shard-03 g7 parked (opening the store: disk full)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.name, self.generation, self.state.name())?;
        match &self.last_fault {
            Some(fault) => write!(f, " ({fault})"),
            None => Ok(()),
        }
    }
}

/// A thread with an actix event loop, named for what it does. Dropping it asks the loop to end.
///
/// Give it to the actor that lives on it, so that the thread goes with the actor. Unlike an
/// [`actix::Arbiter`] it can be made on any thread, and its name is the thread's own from the start (panic
/// messages and the system's tools show it; Linux keeps 15 bytes). It does so by being an actix system of its
/// own: `System::current().stop()` ends this thread only.
pub struct NamedArbiter {
    system: System,
}

/// Starts a [`NamedArbiter`].
///
/// # Errors
/// When the machine gives no thread or no event loop for it.
pub fn named_arbiter(name: &str) -> io::Result<NamedArbiter> {
    let (ready, is_ready) = mpsc::sync_channel(1);
    std::thread::Builder::new()
        .name(name.to_owned())
        .spawn(move || {
            let runner = System::new();
            // When nobody waits any more there is nobody to run for.
            if ready.send(System::current()).is_ok() {
                // Its error is an exit code, which nobody sets.
                let _ = runner.run();
            }
        })?;
    let system = is_ready
        .recv()
        .map_err(|_| io::Error::other(format!("no event loop for thread {name}")))?;
    Ok(NamedArbiter { system })
}

impl NamedArbiter {
    /// Where to start the actor: `MyActor::start_in_arbiter(&arbiter.handle(), …)`. To end the thread, drop
    /// the `NamedArbiter`; the handle's own `stop` does not.
    pub fn handle(&self) -> ArbiterHandle {
        self.system.arbiter().clone()
    }
}

impl Drop for NamedArbiter {
    fn drop(&mut self) {
        self.system.stop();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::time::Duration;

    use super::*;

    const SOON: Duration = Duration::from_secs(10);

    #[test]
    fn a_stop_hook_is_called_once_whether_it_comes_before_or_after_the_throw() {
        for early in [true, false] {
            let calls = Arc::new(AtomicUsize::new(0));
            let switch = KillSwitch::new();
            let seen = calls.clone();
            let register = || {
                switch.on_throw(move || {
                    seen.fetch_add(1, Ordering::Relaxed);
                });
            };
            if early {
                register();
                assert!(!switch.is_thrown() && calls.load(Ordering::Relaxed) == 0);
                switch.throw();
            } else {
                switch.throw();
                register();
            }
            switch.clone().throw();
            assert!(switch.is_thrown());
            assert_eq!(calls.load(Ordering::Relaxed), 1, "early: {early}");
        }
    }

    #[test]
    fn a_named_arbiter_needs_no_system_and_ends_when_it_is_dropped() {
        assert!(System::try_current().is_none());
        let arbiter = named_arbiter("shard-07").expect("a thread");
        let (tell, hear) = mpsc::channel();
        // Held by the event loop, so dropped with it.
        struct UntilTheEnd(mpsc::Sender<String>);
        impl Drop for UntilTheEnd {
            fn drop(&mut self) {
                let _ = self.0.send("ended".into());
            }
        }
        let guard = UntilTheEnd(tell.clone());
        arbiter.handle().spawn(async move {
            let name = std::thread::current().name().unwrap_or("").to_owned();
            let _ = tell.send(name);
            std::future::pending::<()>().await;
            drop(guard);
        });
        assert_eq!(hear.recv_timeout(SOON).as_deref(), Ok("shard-07"));
        drop(arbiter);
        assert_eq!(hear.recv_timeout(SOON).as_deref(), Ok("ended"));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn the_system_shows_a_thread_under_its_name_cut_to_15_bytes() {
        for (name, shown) in [
            ("shard-00", "shard-00"),
            ("a-rather-long-name", "a-rather-long-n"),
        ] {
            let arbiter = named_arbiter(name).expect("a thread");
            let (tell, hear) = mpsc::channel();
            arbiter.handle().spawn_fn(move || {
                let _ = tell.send(std::fs::read_to_string("/proc/thread-self/comm").ok());
            });
            let comm = hear.recv_timeout(SOON).expect("an answer").expect("a name");
            assert_eq!(comm.trim_end(), shown);
        }
    }
}

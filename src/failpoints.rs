//! Places where a test can break the program: just before, between and just after the steps that make something
//! durable. Think of them as light switches in a corridor: in a house that is lived in they are not even wired.
//!
//! Only a build with the feature `failpoints` has them; in any other, [`reach`] is an `Ok(())` that the compiler
//! removes, and `FAILPOINTS` is an environment variable like any other.
//!
//! ```text
//! FAILPOINTS="journal::written=200*off->return(kill);fold::synced=1*return(error)" duetime serve
//!             └ name           └ passes 200 times, then this
//! ```
//!
//! A name is one of [`POINTS`]. Its actions are the `fail` crate's, joined by `->`, each with `p%` (how often) or
//! `n*` (how many times, then the next) before it:
//!
//! | action | what happens there |
//! |---|---|
//! | `return(kill)` | the process dies of SIGKILL, like in a crash: nothing is closed, flushed or told |
//! | `return(late)` | the same 50 ms later, so that whoever does not wait for this step is caught at it |
//! | `return(error)` | the step fails with an I/O error |
//! | `return(full)` | the step fails with "no space left on device" |
//! | `panic` | the thread panics |
//! | `pause` | the thread is blocked until the point is set to something else |
//! | `return(livelock)` | the thread spins, without yielding, until the point is set to something else |
//! | `sleep(ms)` | the thread is slow |
//! | `off` | nothing |
//!
//! A name with a thread behind it, `journal::written@journal-01`, is that point on that thread only: so one shard is hit,
//! and the others go on.
//!
//! `FAILPOINTS` is read when the first point is reached. One that is wrong panics there, so that nobody takes a
//! misspelt experiment for a passed one. A test in the same process calls `set`, and asks with `reached` whether what it
//! has set was met at all: a fault that never struck proves nothing.
//!
//! It knows nothing of what it interrupts, and imports nothing of ours.

use std::io;

/// Every failpoint, and where it stands. "Before" and "after" are about what is durable if the process dies there.
pub const POINTS: &[(&str, &str)] = &[
    ("journal::write", "before a frame is written"),
    (
        "journal::written",
        "after it is written, before it is synced",
    ),
    (
        "journal::synced",
        "after it is synced, before anybody is told",
    ),
    ("journal::create", "before a segment is created"),
    (
        "journal::created",
        "after a segment is created, before its opening is written",
    ),
    (
        "journal::enter",
        "after an opening is synced, before its segment's name is",
    ),
    ("journal::remove", "before a segment is removed"),
    ("journal::removed", "after a segment is removed"),
    (
        "fold::chunk",
        "before a chunk of a checkpoint is written to sled",
    ),
    (
        "fold::chunks_written",
        "after all chunks, before the checkpoint's key",
    ),
    (
        "fold::checkpoint_written",
        "after the checkpoint's key, before sled is synced",
    ),
    (
        "fold::synced",
        "after sled is synced, before segments of the journal are dropped",
    ),
    ("fold::dropped", "after segments of the journal are dropped"),
    ("shard::start", "before a shard's store is opened"),
    ("shard::started", "when a shard's actor begins"),
    (
        "shard::handler",
        "when it has been told the time, or of a commit, before it works on that",
    ),
    (
        "shard::future",
        "before a batch is committed, on the thread that does it",
    ),
    ("shard::read", "before a shard reads a chunk"),
    ("shard::stopped", "when a shard's actor ends"),
    ("scheduler::started", "when the scheduler begins"),
    ("scheduler::handler", "before it tells shards the time"),
    ("scheduler::future", "after it has slept"),
    ("scheduler::stopped", "when it ends"),
    ("schedules::round", "before schedules take their next steps"),
    ("bulk::round", "before bulk jobs take their next steps"),
    ("push::started", "when the actor of HTTP pushes begins"),
    (
        "push::handler",
        "when it has taken an attempt from its mailbox",
    ),
    ("push::future", "before a push is begun"),
    ("push::stopped", "when it ends"),
    ("registry::handler", "before the registry changes anything"),
    ("watchdog::started", "when the watchdog begins"),
    (
        "watchdog::handler",
        "before it notes what it was told of a child",
    ),
    ("watchdog::future", "before a round"),
    ("watchdog::stopped", "when it ends"),
];

/// Does here what the test has asked for, which is nothing unless it has.
///
/// # Errors
/// The injected one.
#[cfg(feature = "failpoints")]
pub fn reach(name: &'static str) -> io::Result<()> {
    armed::reach(name)
}

/// Nothing: this build has no failpoints.
///
/// # Errors
/// None.
#[cfg(not(feature = "failpoints"))]
#[inline]
pub fn reach(_name: &'static str) -> io::Result<()> {
    Ok(())
}

#[cfg(feature = "failpoints")]
pub use armed::{reached, set};

#[cfg(feature = "failpoints")]
mod armed {
    use std::collections::HashMap;
    use std::io;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::{LazyLock, Once};
    use std::time::Duration;

    use nix::errno::Errno;
    use nix::sys::signal::{Signal, raise};
    use parking_lot::Mutex;

    use super::POINTS;

    /// How long a late death is awaited.
    const LATE: Duration = Duration::from_millis(50);

    /// How often each point was reached since it was set.
    static REACHED: LazyLock<Mutex<HashMap<String, u64>>> = LazyLock::new(Mutex::default);

    /// Whether a point of one thread was ever set.
    static ON_THREADS: AtomicBool = AtomicBool::new(false);

    /// Sets what happens at a point from now on, in this process.
    ///
    /// # Errors
    /// There is no such point, or no such action; says which.
    pub fn set(name: &str, actions: &str) -> Result<(), String> {
        let point = name.split_once('@').map_or(name, |(point, _)| point);
        if !POINTS.iter().any(|(known, _)| *known == point) {
            return Err(format!("there is no failpoint {name}"));
        }
        ON_THREADS.fetch_or(point != name, Ordering::SeqCst);
        REACHED.lock().insert(name.to_owned(), 0);
        fail::cfg(name, actions).map_err(|error| format!("failpoint {name}: {error}"))
    }

    /// How often a point was reached since it was last set, whatever was done there; counted as it is reached, so whoever
    /// is held there is counted.
    pub fn reached(name: &str) -> u64 {
        REACHED.lock().get(name).copied().unwrap_or_default()
    }

    pub(super) fn reach(name: &'static str) -> io::Result<()> {
        debug_assert!(
            POINTS.iter().any(|(known, _)| *known == name),
            "{name} is not in the list"
        );
        static ENVIRONMENT: Once = Once::new();
        ENVIRONMENT.call_once(|| {
            let wanted = std::env::var("FAILPOINTS").unwrap_or_default();
            for (name, actions) in wanted.split(';').filter_map(|point| point.split_once('=')) {
                let done = set(name.trim(), actions);
                done.expect("FAILPOINTS names points and actions");
                tracing::warn!(name, actions, "failpoint set");
            }
        });
        if ON_THREADS.load(Ordering::SeqCst)
            && let Some(thread) = std::thread::current().name()
        {
            meet(&format!("{name}@{thread}"))?;
        }
        meet(name)
    }

    fn meet(name: &str) -> io::Result<()> {
        if let Some(count) = REACHED.lock().get_mut(name) {
            *count += 1;
        }
        fail::fail_point!(name, |action| act(name, action.as_deref()));
        Ok(())
    }

    /// Keeps a core busy for as long as the point says so.
    fn spin(name: &str) {
        let is_told = |(point, actions): &(String, String)| {
            point == name && actions.contains("return(livelock)")
        };
        while fail::list().iter().any(is_told) {
            for _ in 0..100_000 {
                std::hint::spin_loop();
            }
        }
    }

    fn die() -> ! {
        let told = raise(Signal::SIGKILL);
        unreachable!("nobody outlives SIGKILL: {told:?}")
    }

    fn act(name: &str, action: Option<&str>) -> io::Result<()> {
        match action {
            Some("kill") => die(),
            Some("late") => {
                std::thread::sleep(LATE);
                die()
            }
            Some("livelock") => {
                spin(name);
                Ok(())
            }
            Some("error") => Err(io::Error::other(format!("injected at {name}"))),
            Some("full") => Err(Errno::ENOSPC.into()),
            other => panic!(
                "failpoint {name}: return({}) is no action",
                other.unwrap_or_default()
            ),
        }
    }
}

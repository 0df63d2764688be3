//! What is done about a child that hangs, rung by rung, and the list of those that were given up.
//!
//! ```text
//!  verdict: Stuck
//!    │ 1  kill switch          seen by code that looks: between messages, in long loops
//!    │ 2  stop message         seen by an actor whose thread takes messages
//!    │ 3  arbiter stop         seen by a thread that comes back to its event loop
//!    ▼ grace (5 ms)
//!    4  quarantine             declared dead, fenced and not joined; a successor starts at once
//!    ▼ too many zombies, or one that holds what its successor needs
//!    5  last rung              what the owner of the process has said: leave it, or park the child
//! ```
//!
//! The grace is short because giving up costs little: who was only slow leaves when it looks, and its zombie is struck
//! off the list. A thread can't be ended from outside, and what it holds can't be taken from it; so a child says in its
//! [`StartFault::held`](super::StartFault::held) that a zombie stands in its way, and is tried again
//! [`Supervision::held_max`] times, since the zombie may wake. Only leaving the process helps after that, and that is
//! not for a library to do: it calls [`Supervision::last_rung`], and if that returns, parks the child.
//!
//! What is no reason: a disk that is slow. A wait for it is declared, for up to [`Bounds::wait_max`]; together with
//! [`Bounds::stuck`] that is 35 s, which a sync takes only on a disk that is as good as dead.

use std::fmt;
use std::sync::Arc;

use crate::clock::{DurationMs, MonoMs};

use super::child::{ChildId, Generation};
use super::liveness::Bounds;
use super::threads::Threads;

/// Called on the watchdog's thread, with the reason, when nothing that is done inside the process helps.
pub type LastRung = dyn Fn(&str) + Send + Sync;

/// How a watchdog judges its children, and how far it goes.
#[derive(Clone)]
pub struct Supervision {
    /// How long a child that runs may be silent; `None` never judges: for a clock that a test moves while nobody beats.
    pub bounds: Option<Bounds>,
    /// A start that has not beaten its pulse for so long is stuck. One that beats takes as long as it takes.
    pub start_silence_max: DurationMs,
    /// From the verdict to quarantine.
    pub grace: DurationMs,
    /// Most starts at a time of children that [take turns](super::ChildSpec::in_turn).
    pub starts_max: usize,
    /// Most zombies; one more is too many.
    pub quarantine_max: usize,
    /// So many starts in a row may find what they need held by a zombie.
    pub held_max: u32,
    /// What is done in the end. If it returns, the child is parked.
    pub last_rung: Arc<LastRung>,
}

impl Default for Supervision {
    /// As many starts at a time as there are cores; 8 zombies; 3 tries. In the end the child is parked: a library
    /// leaves its embedder's process alone.
    fn default() -> Self {
        Self {
            bounds: Some(Bounds::default()),
            start_silence_max: DurationMs::secs(300),
            grace: DurationMs(5),
            starts_max: std::thread::available_parallelism().map_or(1, usize::from),
            quarantine_max: 8,
            held_max: 3,
            last_rung: Arc::new(|_| {}),
        }
    }
}

impl fmt::Debug for Supervision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Supervision")
            .field("bounds", &self.bounds)
            .field("start_silence_max", &self.start_silence_max)
            .field("grace", &self.grace)
            .field("starts_max", &self.starts_max)
            .field("quarantine_max", &self.quarantine_max)
            .field("held_max", &self.held_max)
            .finish_non_exhaustive()
    }
}

impl Supervision {
    /// The bounds of a child: while it starts, only its silence counts.
    pub(super) fn bounds_of(&self, is_starting: bool) -> Option<Bounds> {
        let start = Bounds {
            late: self.start_silence_max,
            stuck: self.start_silence_max,
            wait_max: DurationMs(0),
        };
        self.bounds
            .map(|running| if is_starting { start } else { running })
    }
}

/// An incarnation that counts as dead and of which something may still be there.
pub(super) struct Zombie {
    pub child: ChildId,
    pub generation: Generation,
    /// Its start has not returned.
    pub starts: bool,
    /// Its death notice was not dropped.
    pub lives: bool,
    pub threads: Threads,
    /// A thread that outlives its child by an instant is none yet.
    pub counts_from: MonoMs,
    pub counts: bool,
}

impl Zombie {
    pub(super) fn has_ended(&self) -> bool {
        !self.starts && !self.lives && self.threads.have_ended()
    }
}

//! The threads that one incarnation of a child keeps beside its own.
//!
//! An actor that answers is not alive if the thread that syncs for it hangs in the disk. So a child tells of each
//! such thread, which then has a pulse of its own; the child is as well as the worst of them. And a thread that is
//! still there when its child is gone is not forgotten: it is held to be a zombie until it ends.
//!
//! ```text
//!  child ── threads.watch("journal-00") ──▶ ThreadPulse ── moves onto the thread: beats there, drops with it
//! ```

use std::ops::Deref;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use crate::clock::MonoMs;

use super::pulse::{Pulse, PulseReading};

/// Which threads there are. Clones share the list.
#[derive(Clone, Default)]
pub struct Threads {
    /// Locked to add and to read, never while anything is waited for.
    known: Arc<Mutex<Vec<Known>>>,
}

/// A thread's name, and its pulse while it lives.
type Known = (String, Weak<Pulse>);

/// The pulse of one thread, kept by the thread for as long as it lives.
pub struct ThreadPulse(Arc<Pulse>);

impl Deref for ThreadPulse {
    type Target = Pulse;

    fn deref(&self) -> &Pulse {
        &self.0
    }
}

impl Threads {
    /// From here on a thread of that name is watched, until what this returns is dropped.
    pub fn watch(&self, name: impl Into<String>, now: MonoMs) -> ThreadPulse {
        let pulse = Arc::new(Pulse::new(now));
        let mut known = self.known.lock();
        known.retain(|(_, pulse)| pulse.strong_count() > 0);
        known.push((name.into(), Arc::downgrade(&pulse)));
        ThreadPulse(pulse)
    }

    /// The pulses of those that live.
    pub(super) fn readings(&self) -> Vec<(String, PulseReading)> {
        let known = self.known.lock();
        let alive = known
            .iter()
            .filter_map(|(name, pulse)| Some((name, pulse.upgrade()?)));
        alive
            .map(|(name, pulse)| (name.clone(), pulse.read()))
            .collect()
    }

    /// Whether none is left.
    pub(super) fn have_ended(&self) -> bool {
        let known = self.known.lock();
        known.iter().all(|(_, pulse)| pulse.strong_count() == 0)
    }
}

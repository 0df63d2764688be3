//! When each shard next needs a tick: written by shards, read by the scheduler. Times are microseconds of the
//! monotonic clock, so that the scheduler can sleep to the very edge of a millisecond.

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

use tokio::sync::Notify;

use crate::ids::ShardId;

/// One wake-up time per shard, and a bell for a time that comes before the one that is slept to.
///
/// A shard writes its time and then reads until when the scheduler sleeps; the scheduler writes until when it sleeps
/// and then reads the shards' times. All four are in one order (`SeqCst`), so that at least one of the two sees the
/// other's; with anything weaker both could miss it, and a task would start up to a second late.
#[derive(Debug)]
pub struct WakeBoard {
    at: Vec<AtomicI64>,
    sleeping_until: AtomicI64,
    bell: Notify,
    is_closed: AtomicBool,
}

impl WakeBoard {
    /// A board on which every shard wants a tick at once.
    pub fn new(shards: u16) -> Self {
        Self {
            at: (0..shards).map(|_| AtomicI64::new(i64::MIN)).collect(),
            sleeping_until: AtomicI64::new(i64::MAX),
            bell: Notify::new(),
            is_closed: AtomicBool::new(false),
        }
    }

    /// A shard says when it next needs a tick.
    pub fn set(&self, shard: ShardId, at_us: i64) {
        self.at[usize::from(shard.0)].store(at_us, Ordering::SeqCst);
        if at_us < self.sleeping_until.load(Ordering::SeqCst) {
            self.bell.notify_one();
        }
    }

    /// Takes a shard's time if it has come; the shard says a new one after the tick.
    pub fn take_due(&self, shard: ShardId, now_us: i64) -> bool {
        let slot = &self.at[usize::from(shard.0)];
        let at = slot.load(Ordering::SeqCst);
        at <= now_us
            && slot
                .compare_exchange(at, i64::MAX, Ordering::SeqCst, Ordering::SeqCst)
                .is_ok()
    }

    /// The earliest time that any shard wants.
    pub fn earliest_us(&self) -> i64 {
        let times = self.at.iter().map(|at| at.load(Ordering::SeqCst));
        times.min().unwrap_or(i64::MAX)
    }

    /// The scheduler says until when it sleeps; an earlier time set from here on rings the bell.
    pub fn sleep_until(&self, at_us: i64) {
        self.sleeping_until.store(at_us, Ordering::SeqCst);
    }

    /// Nothing comes due in any shard until it is opened: at a start, what was missed may have to be dropped first.
    pub fn close(&self) {
        self.is_closed.store(true, Ordering::SeqCst);
    }

    /// From here on tasks come due.
    pub fn open(&self) {
        self.is_closed.store(false, Ordering::SeqCst);
        for at in &self.at {
            at.store(i64::MIN, Ordering::SeqCst);
        }
        self.ring();
    }

    /// Whether tasks come due.
    pub fn is_open(&self) -> bool {
        !self.is_closed.load(Ordering::SeqCst)
    }

    /// Rings the bell.
    pub fn ring(&self) {
        self.bell.notify_one();
    }

    /// Waits for the bell.
    pub async fn rung(&self) {
        self.bell.notified().await;
    }

    /// Which shards there are.
    pub fn shards(&self) -> impl Iterator<Item = ShardId> + use<> {
        (0..self.at.len() as u16).map(ShardId)
    }
}

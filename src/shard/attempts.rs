//! The attempts of a shard that run. They outlive the owner that started them: an executor works on, and whoever owns
//! the shard when the answer comes takes it.
//!
//! ```text
//!  owner of epoch 7 ── begin ──▶ ┌──────────────┐ ◀── take over ── owner of epoch 8: these run, with these tokens
//!     (refused from here on)     │ task, token, │
//!                                │ cancel, when │ ──▶ an executor
//!                                └──────────────┘
//! ```
//!
//! An attempt is entered before it is handed to an executor, and struck off once its end is committed. A new owner's
//! first word closes the list to the one before: what is not entered by then never starts. It may have run in an earlier
//! process, though, so of what is in flight and not entered nothing is known.

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use crate::clock::Now;
use crate::ids::{AttemptToken, ById, ShardEpoch, TaskId};
use crate::panics::contained;

/// The list. One per shard and process.
#[derive(Debug, Default)]
pub struct Attempts(Mutex<List>);

#[derive(Debug, Default)]
struct List {
    owner: ShardEpoch,
    running: ById<Entered>,
}

#[derive(Debug)]
struct Entered {
    token: AttemptToken,
    cancel: CancellationToken,
    started: Now,
}

impl Entered {
    /// Wakes whoever listens, so it is never done under the list's lock: what they do then is their own business.
    fn stop(&self) {
        if let Err(words) = contained(|| self.cancel.cancel()) {
            tracing::error!(
                words,
                "who was told that an attempt is to stop has panicked"
            );
        }
    }
}

/// The attempts that run: their tokens, and when they started.
pub type Running = ById<(AttemptToken, Now)>;

impl Attempts {
    /// A new owner: what older ones begin from here on is refused. What runs.
    pub fn take_over(&self, epoch: ShardEpoch) -> Running {
        let mut list = self.0.lock();
        list.owner = list.owner.max(epoch);
        let running = list.running.iter();
        let running = running.map(|(task, entered)| (*task, (entered.token, entered.started)));
        running.collect()
    }

    /// Enters an attempt that an executor is about to get; what cancels it. `None`: the shard has another owner.
    pub fn begin(
        &self,
        epoch: ShardEpoch,
        task: TaskId,
        token: AttemptToken,
        now: Now,
    ) -> Option<CancellationToken> {
        let mut list = self.0.lock();
        if list.owner != epoch {
            return None;
        }
        let cancel = CancellationToken::new();
        let entered = Entered {
            token,
            cancel: cancel.clone(),
            started: now,
        };
        list.running.insert(task, entered);
        Some(cancel)
    }

    /// The attempt of this task has ended.
    pub fn end(&self, epoch: ShardEpoch, task: TaskId) {
        let mut list = self.0.lock();
        if list.owner == epoch {
            list.running.remove(&task);
        }
    }

    /// The attempt of this task is to stop.
    pub fn stop(&self, epoch: ShardEpoch, task: TaskId) {
        let stopped = {
            let mut list = self.0.lock();
            let is_owner = list.owner == epoch;
            is_owner.then(|| list.running.remove(&task)).flatten()
        };
        stopped.iter().for_each(Entered::stop);
    }

    /// Stops all attempts but those that the owner takes for its tasks' present ones.
    pub fn keep(&self, epoch: ShardEpoch, is_present: impl Fn(TaskId, AttemptToken) -> bool) {
        let stopped: Vec<_> = {
            let mut list = self.0.lock();
            if list.owner != epoch {
                return;
            }
            let past = list
                .running
                .extract_if(|task, it| !is_present(*task, it.token));
            past.collect()
        };
        stopped.iter().for_each(|(_, entered)| entered.stop());
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test that can't go on should stop")]
mod tests {
    use std::pin::pin;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::task::{Context, Wake, Waker};

    use super::*;
    use crate::clock::WallMs;
    use crate::ids::Slot;
    use crate::testing::fixtures::at;

    fn id(n: u64) -> TaskId {
        TaskId::with_tail(Slot::of_hash(n), WallMs(1_000), n)
    }

    #[test]
    fn a_new_owner_finds_what_runs_and_the_old_one_begins_ends_and_stops_nothing_more() {
        let attempts = Attempts::default();
        let (old, new) = (ShardEpoch(1), ShardEpoch(2));
        assert!(attempts.take_over(old).is_empty());
        let begin = |epoch, n| attempts.begin(epoch, id(n), AttemptToken(n), at(n as i64));
        let (first, second, third) = (begin(old, 1).unwrap(), begin(old, 2), begin(old, 3));
        attempts.end(old, id(2));
        let mut found: Vec<_> = attempts.take_over(new).into_iter().collect();
        found.sort_unstable_by_key(|(task, _)| *task);
        let mut expected = vec![
            (id(1), (AttemptToken(1), at(1))),
            (id(3), (AttemptToken(3), at(3))),
        ];
        expected.sort_unstable_by_key(|(task, _)| *task);
        assert_eq!(found, expected);

        assert!(begin(old, 4).is_none());
        attempts.stop(old, id(1));
        attempts.keep(old, |_, _| false);
        assert!(!first.is_cancelled());
        attempts.keep(new, |task, token| (task, token) == (id(1), AttemptToken(1)));
        assert!(!first.is_cancelled() && third.unwrap().is_cancelled());
        attempts.stop(new, id(1));
        assert!(first.is_cancelled() && !second.unwrap().is_cancelled());
    }

    /// Counts how often he was woken while the list was free, and panics.
    struct Listener(Arc<Attempts>, AtomicU64);

    impl Wake for Listener {
        fn wake(self: Arc<Self>) {
            self.1
                .fetch_add(self.0.0.try_lock().is_some().into(), Ordering::SeqCst);
            panic!("a listener's panic");
        }
    }

    #[test]
    fn who_is_told_that_an_attempt_is_to_stop_finds_the_list_free_and_may_panic() {
        let attempts = Arc::new(Attempts::default());
        let owner = ShardEpoch(1);
        attempts.take_over(owner);
        let listener = Arc::new(Listener(Arc::clone(&attempts), AtomicU64::new(0)));
        let waker = Waker::from(Arc::clone(&listener));
        let begin = |n| {
            attempts
                .begin(owner, id(n), AttemptToken(n), at(1))
                .unwrap()
        };
        let (first, second) = (begin(1), begin(2));
        let mut all = [pin!(first.cancelled()), pin!(second.cancelled())];
        for cancelled in &mut all {
            let polled = cancelled.as_mut().poll(&mut Context::from_waker(&waker));
            assert!(polled.is_pending());
        }
        attempts.stop(owner, id(1));
        attempts.keep(owner, |_, _| false);
        assert!(first.is_cancelled() && second.is_cancelled());
        assert_eq!(listener.1.load(Ordering::SeqCst), 2);
        assert!(attempts.take_over(owner).is_empty());
    }
}

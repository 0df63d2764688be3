//! Forecast: how many tasks come due when, as far as that is known without reading them.
//!
//! ```text
//!  in memory   each record tells its time
//!  in a chunk  the chunk tells its first and its last, and how many of its records live: they are spread evenly
//! ```
//!
//! So it costs what the look for a list page costs, whatever is stored, and is exact but for chunks that reach over several
//! buckets: those hold no more than 128 tasks each.

use crate::clock::{DurationMs, Now, WallMs};
use crate::limits::ARM_AHEAD;
use crate::shard::core::ShardCore;
use crate::shard::messages::Question;
use crate::store::chunk::Class;
use crate::task::model::State;

/// How many tasks come due in each of some buckets.
#[derive(Clone, Copy, Debug)]
pub struct Foresee {
    /// Where the first begins.
    pub from: WallMs,
    /// How wide each is.
    pub width: DurationMs,
    /// How many there are.
    pub count: usize,
}

/// Tasks that wait, by when they are due.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Foreseen {
    /// Due already: for a worker, a slot, or until their topic goes on.
    pub due: u64,
    /// By bucket.
    pub buckets: Vec<u64>,
    /// Behind the last.
    pub later: u64,
}

impl Foreseen {
    /// Adds those of another shard, of the same buckets.
    pub fn add(&mut self, more: &Self) {
        self.due += more.due;
        self.later += more.later;
        self.buckets
            .resize(self.buckets.len().max(more.buckets.len()), 0);
        for (sum, more) in self.buckets.iter_mut().zip(&more.buckets) {
            *sum += more;
        }
    }

    fn count(&mut self, ask: &Foresee, now_ms: i64, at_ms: i64) {
        if at_ms <= now_ms {
            self.due += 1;
            return;
        }
        let width = ask.width.0.max(1) as i64;
        let place = at_ms.saturating_sub(ask.from.0).max(0) / width;
        let bucket = usize::try_from(place).ok();
        match bucket.and_then(|place| self.buckets.get_mut(place)) {
            Some(bucket) => *bucket += 1,
            None => self.later += 1,
        }
    }

    /// So many between two instants, one at each end.
    fn spread(&mut self, ask: &Foresee, now_ms: i64, (first, last): (i64, i64), count: u32) {
        let gaps = i128::from(count.max(2) - 1);
        let length = i128::from(last) - i128::from(first);
        for nth in 0..count {
            let at = i128::from(first) + length * i128::from(nth) / gaps;
            self.count(ask, now_ms, i64::try_from(at).unwrap_or(last));
        }
    }
}

impl Question for Foresee {
    type Answer = Foreseen;

    fn put(self, core: &mut ShardCore, now: Now) -> Foreseen {
        let mut foreseen = Foreseen {
            buckets: vec![0; self.count],
            ..Foreseen::default()
        };
        // What follows steady time is shown by the wall clock.
        let ahead = now.steady.0 - now.wall.0;
        let shown = |class: Class, wake_ms: i64| match class {
            Class::Steady => wake_ms.saturating_sub(ahead),
            _ => wake_ms,
        };
        let in_memory = core.table.pick_in_memory(|entry| {
            let at_ms = match entry.state {
                State::Pending => entry.due_ms,
                _ => shown(entry.class, entry.wake_ms),
            };
            entry.class.waits().then_some(at_ms)
        });
        for at_ms in in_memory {
            foreseen.count(&self, now.wall.0, at_ms);
        }
        for (_, chunk) in core.table.shelf().chunks() {
            if chunk.class.waits() {
                let wakes = (
                    shown(chunk.class, chunk.wake_ms.0),
                    shown(chunk.class, chunk.wake_ms.1),
                );
                // Who waits for a first attempt is looked at a moment before it is due.
                let is_first = |due: i64, wake: i64| due.abs_diff(wake) <= ARM_AHEAD.0;
                let due = chunk.due_ms;
                let span = match is_first(due.0, wakes.0) && is_first(due.1, wakes.1) {
                    true => due,
                    false => wakes,
                };
                foreseen.spread(&self, now.wall.0, span, chunk.live());
            }
        }
        foreseen
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ASK: Foresee = Foresee {
        from: WallMs(60_000),
        width: DurationMs(60_000),
        count: 3,
    };

    #[test]
    fn a_chunks_tasks_are_spread_over_its_time_and_none_is_lost() {
        let mut foreseen = Foreseen {
            buckets: vec![0; 3],
            ..Foreseen::default()
        };
        foreseen.spread(&ASK, 90_000, (60_000, 360_000), 6);
        // At 60, 120, 180, 240, 300 and 360 s; it is 90 s.
        assert_eq!((foreseen.due, foreseen.later), (1, 3));
        assert_eq!(foreseen.buckets, [0, 1, 1]);
        foreseen.spread(&ASK, 90_000, (100_000, 100_000), 128);
        assert_eq!(foreseen.buckets, [128, 1, 1]);
        foreseen.spread(&ASK, 90_000, (200_000, 200_000), 1);
        foreseen.spread(&ASK, 90_000, (200_000, 200_000), 0);
        assert_eq!(foreseen.buckets, [128, 1, 2]);
    }

    #[test]
    fn shards_add_up() {
        let one = |due, buckets: &[u64], later| Foreseen {
            due,
            buckets: buckets.to_vec(),
            later,
        };
        let mut sum = one(1, &[], 2);
        sum.add(&one(3, &[4, 5], 6));
        assert_eq!(sum, one(4, &[4, 5], 8));
    }
}

//! A hierarchical wheel: coarse, unsorted piles far away, a strict line close by.
//!
//! ```text
//!        now
//!   ┄┄┄┄┄ ▼ ─────────────────────────────────────────────────────────────▶ time
//!   [near]│[s][s][s]│[ min ][ min ][ min ]│[  hour  ][  hour  ]│[   day   ]
//!   sorted│       hash sets, no order inside; only buckets with entries exist
//!                      ◀── opened into finer buckets as now arrives at them,
//!                          or at once when a crowd gathers in one
//! ```
//!
//! - An entry goes into the bucket that covers its time; if none does, into a new one, as coarse as it can be
//!   while lying wholly ahead of now and free of other buckets; if not even a second does, into the near part.
//! - A bucket is **opened**, its entries moved to finer buckets or the near part, when now reaches its start.
//! - It is also opened when a crowd of [`CROWD`] entries has gathered in it. So no single step, be it a
//!   hash set's growth or an opening at the top of a busy hour, moves many more than that: about 0.5 ms.
//! - Correctness rests on two facts only: buckets never overlap, and nothing is popped past the start of the
//!   first bucket. Where an entry stands is a matter of cost.
//!
//! **Why hash sets.** `remove` must answer exactly and the same entry must count once: a `Vec` with lazy
//! deletion can do neither without a second set beside it, a hash set does both at O(1), and keeps no order
//! that most entries, cancelled before they are due, never need. A time in a bucket is a 32-bit offset from
//! its start, so an entry of a 17-byte key takes 24 bytes, not 32.
//!
//! **Cost.** `insert` and `remove` are O(1) in a bucket, after a look-up among the buckets (at most one per
//! second that has entries), and O(log n) in the near part. An entry is moved at most once per level, mostly
//! fewer. `advance` costs what it pops and opens; ranges without entries cost nothing, however long. With two
//! million entries of a 17-byte key, spread over a millisecond or a year: 41–53 bytes each, all in all.
//!
//! **Limits.** Entries whose second is past or present, and crowds in one second, stand in one ordered set.
//! The wheel is no faster than one `BTreeSet` of everything at a million entries, and takes as much memory:
//! `insert` and `remove` cost the same within a third (0.4 µs), popping 1.3 times as much for entries two
//! hours away, and 3 times for ten days (0.25 µs). What it adds is counts per bucket without a visit to each
//! entry ([`Wheel::forecast`]). `benches/wheel.rs` measures the two side by side.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fmt::Debug;
use std::hash::Hash;

use super::bucket::{BucketId, Level};

/// A bucket with this many entries is opened ahead of its time: what a hash table of 4096 places holds.
const CROWD: usize = 3584;

/// Entries by due time, for one clock. Shape and cost: see the head of this file and [`crate::wheel`].
///
/// An entry is a pair of a time and a key; the same pair twice is one entry, the same key at two times is two.
/// To move a key, `remove` it at its old time and `insert` it at the new one.
#[derive(Clone, Debug)]
pub struct Wheel<K> {
    /// The latest time given; may step back. Only a hint for where to put entries.
    now_ms: i64,
    near: BTreeSet<(i64, K)>,
    /// By start. They never overlap and are never empty.
    buckets: BTreeMap<i64, Bucket<K>>,
    len: usize,
    crowd: usize,
}

#[derive(Clone, Debug)]
struct Bucket<K> {
    id: BucketId,
    /// Milliseconds from the bucket's start, and key.
    entries: HashSet<(u32, K)>,
}

impl<K: Copy + Ord + Hash + Debug> Wheel<K> {
    /// An empty wheel whose now is `start_ms`.
    pub fn new(start_ms: i64) -> Self {
        Self {
            now_ms: start_ms,
            near: BTreeSet::new(),
            buckets: BTreeMap::new(),
            len: 0,
            crowd: CROWD,
        }
    }

    /// Puts `k` in at `at_ms`, any time at all; what is past is due at the next [`advance`](Self::advance).
    /// An entry that is already there stays as it is.
    pub fn insert(&mut self, at_ms: i64, k: K) {
        if self.near.contains(&(at_ms, k)) {
            return;
        }
        let Some(home) = self.home(at_ms, Some(Level::Day)) else {
            self.near.insert((at_ms, k));
            self.len += 1;
            return;
        };
        let bucket = self.bucket_mut(home);
        if bucket.entries.insert((offset_ms(home, at_ms), k)) {
            let gathered = bucket.entries.len();
            self.len += 1;
            if gathered >= self.crowd {
                self.open(home.start_ms());
            }
        }
    }

    /// Takes `k` at `at_ms` out; false if there is no such entry.
    pub fn remove(&mut self, at_ms: i64, k: K) -> bool {
        let removed = self.remove_from_bucket(at_ms, k) || self.near.remove(&(at_ms, k));
        self.len -= usize::from(removed);
        removed
    }

    fn remove_from_bucket(&mut self, at_ms: i64, k: K) -> bool {
        let Some((_, bucket)) = self.buckets.range_mut(..=at_ms).next_back() else {
            return false;
        };
        let id = bucket.id;
        if !id.contains(at_ms) || !bucket.entries.remove(&(offset_ms(id, at_ms), k)) {
            return false;
        }
        let (left, room) = (bucket.entries.len(), bucket.entries.capacity());
        if left == 0 {
            self.buckets.remove(&id.start_ms());
        } else if left < room / 8 {
            // Most timeouts are cancelled: give their room back, rarely enough to cost nothing.
            bucket.entries.shrink_to(left * 2);
        }
        true
    }

    /// When to call [`advance`](Self::advance) next; none if the wheel is empty.
    ///
    /// The time of the first entry if that stands in the near part, else a lower bound of it: the start of the
    /// bucket it lies in. Nothing is ever due before this time, so a scheduler may sleep to it. Advancing to it
    /// either pops an entry or opens the bucket, after which the answer is a later one: at most one such call
    /// per level until an entry is due. (With a `max` that was reached it is not later, and says: call again.)
    pub fn next_due_ms(&self) -> Option<i64> {
        let due_ms = self.near.first().map(|(at_ms, _)| *at_ms);
        let edge_ms = self.edge_ms();
        due_ms
            .zip(edge_ms)
            .map(|(due_ms, edge_ms)| due_ms.min(edge_ms))
            .or(due_ms)
            .or(edge_ms)
    }

    /// It is now `to_ms`: appends to `out` the entries due by then, in order of time and key, at most `max`.
    /// The rest stays for the next call.
    ///
    /// An entry is popped once, by the first call with `to_ms` at or after its time (that has room for it), and
    /// never by one before. Time may jump far ahead, or step back, which pops only what is due even so.
    pub fn advance(&mut self, to_ms: i64, max: usize, out: &mut Vec<(i64, K)>) {
        self.now_ms = to_ms;
        let full = out.len().saturating_add(max);
        loop {
            let edge_ms = self.edge_ms();
            let is_due =
                |at_ms: i64| at_ms <= to_ms && edge_ms.is_none_or(|edge_ms| at_ms < edge_ms);
            loop {
                if out.len() == full {
                    return;
                }
                match self.near.first() {
                    Some((at_ms, _)) if is_due(*at_ms) => {
                        out.extend(self.near.pop_first());
                        self.len -= 1;
                    }
                    _ => break,
                }
            }
            match edge_ms {
                Some(edge_ms) if edge_ms <= to_ms => self.open(edge_ms),
                _ => return,
            }
        }
    }

    /// How many entries there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// How many entries lie in each bucket of `level`, in order of time, without the empty ones. Exact, whatever
    /// the buckets inside; counts the near part and the buckets coarser than `level` one by one.
    pub fn forecast(&self, level: Level) -> Vec<(BucketId, usize)> {
        let mut counts: BTreeMap<BucketId, usize> = BTreeMap::new();
        let mut count =
            |at_ms: i64, n: usize| *counts.entry(BucketId::of(level, at_ms)).or_default() += n;
        for (at_ms, _) in &self.near {
            count(*at_ms, 1);
        }
        for Bucket { id, entries } in self.buckets.values() {
            if id.level() >= level {
                count(id.start_ms(), entries.len());
            } else {
                for (offset_ms, _) in entries {
                    count(id.start_ms() + i64::from(*offset_ms), 1);
                }
            }
        }
        counts.into_iter().collect()
    }

    /// Start of the first bucket: up to here the near part is the whole truth.
    fn edge_ms(&self) -> Option<i64> {
        self.buckets
            .first_key_value()
            .map(|(start_ms, _)| *start_ms)
    }

    /// The bucket in which an entry at `at_ms` belongs, no coarser than `coarsest`, whether it exists yet or not.
    /// None is the near part.
    fn home(&self, at_ms: i64, coarsest: Option<Level>) -> Option<BucketId> {
        let before = self
            .buckets
            .range(..=at_ms)
            .next_back()
            .map(|(_, bucket)| bucket.id);
        if let Some(id) = before.filter(|id| id.contains(at_ms)) {
            return Some(id);
        }
        let after_ms = self
            .buckets
            .range(at_ms..)
            .next()
            .map(|(start_ms, _)| *start_ms);
        let is_free = |id: BucketId| {
            id.start_ms() > self.now_ms
                && before.is_none_or(|before| before.last_ms() < id.start_ms())
                && after_ms.is_none_or(|after_ms| id.last_ms() < after_ms)
        };
        std::iter::successors(coarsest, |level| level.finer())
            .map(|level| BucketId::of(level, at_ms))
            .find(|id| is_free(*id))
    }

    fn bucket_mut(&mut self, id: BucketId) -> &mut Bucket<K> {
        self.buckets.entry(id.start_ms()).or_insert_with(|| Bucket {
            id,
            entries: HashSet::new(),
        })
    }

    /// Moves what is in the bucket that starts at `start_ms` to finer buckets or the near part.
    fn open(&mut self, start_ms: i64) {
        let Some(Bucket { id, entries }) = self.buckets.remove(&start_ms) else {
            return;
        };
        for (offset_ms, k) in entries {
            let at_ms = start_ms + i64::from(offset_ms);
            match self.home(at_ms, id.level().finer()) {
                Some(home) => {
                    // A child that is a crowd by itself is opened by the next insert, not in this step.
                    let entry = (self::offset_ms(home, at_ms), k);
                    self.bucket_mut(home).entries.insert(entry);
                }
                None => {
                    self.near.insert((at_ms, k));
                }
            }
        }
    }
}

/// Milliseconds from the bucket's start to `at_ms`, which lies in it; a day's fit well into 32 bits.
fn offset_ms(id: BucketId, at_ms: i64) -> u32 {
    u32::try_from(at_ms - id.start_ms()).expect("a time lies in its own bucket")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    const SECOND: i64 = 1_000;
    const MINUTE: i64 = 60 * SECOND;
    const HOUR: i64 = 60 * MINUTE;
    const DAY: i64 = 24 * HOUR;
    const YEAR: i64 = 365 * DAY;
    /// 2026-12-01T10:30:00Z.
    const START: i64 = 1_796_121_000_000;

    fn popped<K: Copy + Ord + Hash + Debug>(
        wheel: &mut Wheel<K>,
        to_ms: i64,
        max: usize,
    ) -> Vec<(i64, K)> {
        let mut out = Vec::new();
        wheel.advance(to_ms, max, &mut out);
        out
    }

    fn all_at<K: Copy + Ord + Hash + Debug>(wheel: &mut Wheel<K>, to_ms: i64) -> Vec<(i64, K)> {
        popped(wheel, to_ms, usize::MAX)
    }

    #[test]
    fn an_entry_is_popped_at_its_millisecond_and_not_before() {
        for ahead in [0, 1, 999, SECOND, MINUTE - 1, MINUTE, HOUR, DAY, YEAR + 1] {
            let mut wheel = Wheel::new(START);
            wheel.insert(START + ahead, 'a');
            assert_eq!(all_at(&mut wheel, START + ahead - 1), []);
            assert_eq!(all_at(&mut wheel, START + ahead), [(START + ahead, 'a')]);
            assert_eq!(all_at(&mut wheel, START + ahead), []);
            assert!(wheel.is_empty());
        }
    }

    #[test]
    fn what_is_past_is_due_at_the_next_advance() {
        let mut wheel = Wheel::new(START);
        wheel.insert(START - YEAR, 'a');
        assert_eq!(wheel.next_due_ms(), Some(START - YEAR));
        assert_eq!(all_at(&mut wheel, START), [(START - YEAR, 'a')]);
    }

    #[test]
    fn the_same_entry_twice_is_one_and_the_same_key_at_two_times_is_two() {
        for at_ms in [START, START + 5, START + DAY] {
            let mut wheel = Wheel::new(START);
            wheel.insert(at_ms, 'a');
            wheel.insert(at_ms, 'a');
            assert_eq!(wheel.len(), 1);
            wheel.insert(at_ms + HOUR, 'a');
            assert_eq!(wheel.len(), 2);
            assert!(wheel.remove(at_ms, 'a'));
            assert!(!wheel.remove(at_ms, 'a'));
            assert_eq!(all_at(&mut wheel, i64::MAX), [(at_ms + HOUR, 'a')]);
        }
    }

    #[test]
    fn entries_leave_in_order_of_time_and_then_key_and_the_rest_waits_behind_max() {
        let mut wheel = Wheel::new(START);
        for (ahead, k) in [(HOUR, 'c'), (DAY, 'd'), (HOUR, 'a'), (HOUR, 'b'), (1, 'z')] {
            wheel.insert(START + ahead, k);
        }
        let to_ms = START + 2 * DAY;
        assert_eq!(popped(&mut wheel, to_ms, 0), []);
        assert_eq!(
            popped(&mut wheel, to_ms, 2),
            [(START + 1, 'z'), (START + HOUR, 'a')]
        );
        assert!(wheel.next_due_ms().is_some_and(|due_ms| due_ms <= to_ms));
        assert_eq!(
            popped(&mut wheel, to_ms, 9),
            [(START + HOUR, 'b'), (START + HOUR, 'c'), (START + DAY, 'd')]
        );
    }

    #[test]
    fn a_scheduler_that_sleeps_to_the_next_due_time_wakes_few_times_and_never_late() {
        let mut wheel = Wheel::new(START);
        let at_ms = START + 400 * DAY + 7 * HOUR + 13 * MINUTE + 21 * SECOND + 345;
        wheel.insert(at_ms, 'a');
        let mut wakes = Vec::new();
        while let Some(due_ms) = wheel.next_due_ms() {
            let out = all_at(&mut wheel, due_ms);
            assert_eq!(out.is_empty(), due_ms < at_ms);
            wakes.push(due_ms);
        }
        assert!(wakes.is_sorted() && wakes.len() <= 5, "{wakes:?}");
        assert_eq!(wakes.last(), Some(&at_ms));
    }

    #[test]
    fn what_is_due_within_the_present_second_is_known_to_the_millisecond() {
        let mut wheel = Wheel::new(0);
        assert_eq!(all_at(&mut wheel, START), []);
        wheel.insert(START + 5, 'a');
        wheel.insert(START + HOUR, 'b');
        assert_eq!(wheel.next_due_ms(), Some(START + 5));
    }

    #[test]
    fn a_clock_that_steps_back_pops_nothing_early_and_loses_nothing() {
        let mut wheel = Wheel::new(START);
        wheel.insert(START + HOUR, 'a');
        assert_eq!(all_at(&mut wheel, START + HOUR - 1), []);
        assert_eq!(all_at(&mut wheel, START - YEAR), []);
        wheel.insert(START - DAY, 'b');
        wheel.insert(START + HOUR, 'c');
        assert_eq!(all_at(&mut wheel, START - DAY - 1), []);
        assert_eq!(all_at(&mut wheel, START), [(START - DAY, 'b')]);
        let rest = [(START + HOUR, 'a'), (START + HOUR, 'c')];
        assert_eq!(all_at(&mut wheel, START + HOUR), rest);
    }

    #[test]
    fn an_empty_range_is_jumped_over_however_long_it_is() {
        // Stepping through these years second by second would not end while anyone waits.
        let mut wheel = Wheel::new(0);
        for year in 0..100_000 {
            wheel.insert(year * YEAR, year);
            assert_eq!(all_at(&mut wheel, year * YEAR), [(year * YEAR, year)]);
        }
        assert_eq!(all_at(&mut wheel, i64::MAX), []);
    }

    #[test]
    fn the_ends_of_time_are_times_like_others() {
        let mut wheel = Wheel::new(i64::MIN);
        let ends = [i64::MIN, i64::MIN + 1, -1, 0, i64::MAX - 1, i64::MAX];
        for at_ms in ends {
            wheel.insert(at_ms, 'a');
        }
        for at_ms in ends {
            assert_eq!(
                wheel.next_due_ms().map(|due_ms| due_ms <= at_ms),
                Some(true)
            );
            assert_eq!(all_at(&mut wheel, at_ms), [(at_ms, 'a')]);
        }
        wheel.insert(i64::MAX, 'b');
        assert!(wheel.remove(i64::MAX, 'b') && wheel.is_empty());
    }

    #[test]
    fn no_bucket_outgrows_a_crowd_and_none_stays_when_empty() {
        let mut wheel = Wheel::new(START);
        let at_ms = |k: i64| START + DAY + k * 7919 % (2 * HOUR);
        for k in 0..100_000 {
            wheel.insert(at_ms(k), k);
        }
        let largest = wheel
            .buckets
            .values()
            .map(|bucket| bucket.entries.len())
            .max();
        assert!(largest < Some(CROWD), "{largest:?}");
        for k in 0..100_000 {
            assert!(wheel.remove(at_ms(k), k));
        }
        assert!(wheel.is_empty() && wheel.buckets.is_empty() && wheel.near.is_empty());
    }

    #[test]
    fn a_crowd_in_one_millisecond_is_popped_whole_and_in_order() {
        let mut wheel = Wheel::new(START);
        for k in (0..20_000).rev() {
            wheel.insert(START + HOUR, k);
        }
        assert_eq!(all_at(&mut wheel, START + HOUR - 1), []);
        let expected: Vec<_> = (0..20_000).map(|k| (START + HOUR, k)).collect();
        assert_eq!(all_at(&mut wheel, START + HOUR), expected);
    }

    #[test]
    fn a_bucket_gives_room_back_when_most_of_it_is_cancelled() {
        let mut wheel = Wheel::new(START);
        for k in 0..3_000 {
            wheel.insert(START + 2 * DAY, k);
        }
        for k in 0..2_990 {
            wheel.remove(START + 2 * DAY, k);
        }
        let room: usize = wheel
            .buckets
            .values()
            .map(|bucket| bucket.entries.capacity())
            .sum();
        assert!(room < 300, "{room} places for 10 entries");
    }

    #[test]
    fn an_entry_of_a_kind_and_a_task_id_takes_24_bytes() {
        assert_eq!(size_of::<(u32, (u8, [u8; 16]))>(), 24);
    }

    /// What a caller can do. Times and positions are drawn so that most steps hit something.
    #[derive(Clone, Debug)]
    enum Step {
        Insert(i64, u8),
        Remove(i64, u8),
        RemoveNth(usize),
        MoveNth(usize, i64),
        Advance(i64, usize),
        AdvanceBy(i64, usize),
        AdvanceToNext,
    }

    /// Times crowd at the edges of buckets, at the ends of time, and around the start.
    fn time() -> impl Strategy<Value = i64> {
        let width = prop_oneof![Just(1), Just(SECOND), Just(MINUTE), Just(HOUR), Just(DAY)];
        let edges = prop_oneof![3 => 0_i64..3, 1 => -3_i64..70];
        let by_an_edge = (width, edges, -1_i64..=1).prop_map(|(width, n, off)| {
            BucketId::of(Level::Day, START).start_ms() + 10 * HOUR + n * width + off
        });
        prop_oneof![
            12 => by_an_edge,
            1 => (-2_i64..=2).prop_map(|off| off),
            1 => (0_i64..2).prop_map(|off| i64::MAX - off),
            1 => (0_i64..2).prop_map(|off| i64::MIN + off),
            1 => any::<i64>(),
        ]
    }

    fn step() -> impl Strategy<Value = Step> {
        let max = || prop_oneof![0_usize..4, Just(usize::MAX)];
        let length = prop_oneof![0_i64..3, 0..3 * SECOND, 0..2 * HOUR, -DAY..0, 0..3 * DAY];
        prop_oneof![
            8 => (time(), 0_u8..4).prop_map(|(at_ms, k)| Step::Insert(at_ms, k)),
            1 => (time(), 0_u8..4).prop_map(|(at_ms, k)| Step::Remove(at_ms, k)),
            2 => any::<usize>().prop_map(Step::RemoveNth),
            3 => (any::<usize>(), time()).prop_map(|(n, at_ms)| Step::MoveNth(n, at_ms)),
            1 => (time(), max()).prop_map(|(to_ms, max)| Step::Advance(to_ms, max)),
            3 => (length, max()).prop_map(|(by_ms, max)| Step::AdvanceBy(by_ms, max)),
            1 => Just(Step::AdvanceToNext),
        ]
    }

    /// The wheel beside the plainest thing that could be right.
    struct Pair {
        wheel: Wheel<u8>,
        model: BTreeSet<(i64, u8)>,
        now_ms: i64,
    }

    impl Pair {
        fn insert(&mut self, at_ms: i64, k: u8) {
            self.wheel.insert(at_ms, k);
            self.model.insert((at_ms, k));
        }

        fn remove(&mut self, at_ms: i64, k: u8) {
            assert_eq!(self.wheel.remove(at_ms, k), self.model.remove(&(at_ms, k)));
        }

        fn nth(&self, n: usize) -> Option<(i64, u8)> {
            self.model
                .iter()
                .nth(n.checked_rem(self.model.len())?)
                .copied()
        }

        fn advance(&mut self, to_ms: i64, max: usize) {
            self.now_ms = to_ms;
            let due = self.model.iter().take_while(|(at_ms, _)| *at_ms <= to_ms);
            let expected: Vec<_> = due.take(max).copied().collect();
            for entry in &expected {
                self.model.remove(entry);
            }
            assert_eq!(popped(&mut self.wheel, to_ms, max), expected);
            if expected.len() < max {
                assert!(self.wheel.next_due_ms().is_none_or(|due_ms| due_ms > to_ms));
            }
        }

        fn take(&mut self, step: Step) {
            match step {
                Step::Insert(at_ms, k) => self.insert(at_ms, k),
                Step::Remove(at_ms, k) => self.remove(at_ms, k),
                Step::RemoveNth(n) => {
                    if let Some((at_ms, k)) = self.nth(n) {
                        self.remove(at_ms, k);
                    }
                }
                Step::MoveNth(n, to_ms) => {
                    if let Some((at_ms, k)) = self.nth(n) {
                        self.remove(at_ms, k);
                        self.insert(to_ms, k);
                    }
                }
                Step::Advance(to_ms, max) => self.advance(to_ms, max),
                Step::AdvanceBy(by_ms, max) => self.advance(self.now_ms.saturating_add(by_ms), max),
                Step::AdvanceToNext => {
                    if let Some(due_ms) = self.wheel.next_due_ms() {
                        self.advance(due_ms, usize::MAX);
                    }
                }
            }
        }

        fn check(&self) {
            let Self { wheel, model, .. } = self;
            assert_eq!(wheel.len(), model.len());
            assert_eq!(wheel.is_empty(), model.is_empty());
            let first_ms = model.first().map(|(at_ms, _)| *at_ms);
            let due_ms = wheel.next_due_ms();
            assert_eq!(due_ms.is_some(), first_ms.is_some());
            assert!(due_ms <= first_ms, "{due_ms:?} is after {first_ms:?}");
            let mut last_ms = None;
            for (start_ms, bucket) in &wheel.buckets {
                assert_eq!(*start_ms, bucket.id.start_ms());
                assert!(last_ms < Some(*start_ms) && !bucket.entries.is_empty());
                last_ms = Some(bucket.id.last_ms());
            }
        }

        fn check_forecast(&self) {
            for level in Level::ALL {
                let mut expected = BTreeMap::new();
                for (at_ms, _) in &self.model {
                    *expected.entry(BucketId::of(level, *at_ms)).or_insert(0) += 1;
                }
                assert_eq!(self.wheel.forecast(level), Vec::from_iter(expected));
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]

        #[test]
        fn any_order_of_calls_answers_like_a_plain_ordered_set(
            start_ms in time(),
            crowd in prop_oneof![Just(1_usize), Just(2), Just(4), Just(CROWD)],
            steps in prop::collection::vec(step(), 1..80),
        ) {
            let wheel = Wheel { crowd, ..Wheel::new(start_ms) };
            let mut pair = Pair { wheel, model: BTreeSet::new(), now_ms: start_ms };
            for step in steps {
                pair.take(step);
                pair.check();
            }
            pair.check_forecast();
            pair.advance(i64::MAX, usize::MAX);
            pair.check();
        }

        #[test]
        fn sleeping_to_each_next_due_time_ends_and_finds_every_entry_on_time(
            entries in prop::collection::btree_set((time(), 0_u8..4), 0..40),
        ) {
            let mut wheel = Wheel::new(START);
            for (at_ms, k) in &entries {
                wheel.insert(*at_ms, *k);
            }
            let (mut found, mut wakes) = (Vec::new(), 0);
            while let Some(due_ms) = wheel.next_due_ms() {
                wakes += 1;
                let before = found.len();
                wheel.advance(due_ms, usize::MAX, &mut found);
                prop_assert!(found[before..].iter().all(|(at_ms, _)| *at_ms == due_ms));
                prop_assert!(wakes <= 5 * entries.len());
            }
            prop_assert_eq!(found, Vec::from_iter(entries));
        }
    }
}

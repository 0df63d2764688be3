//! Small measures that cost nothing to keep: quantiles of a stream and rates of the last minute.

use crate::clock::MonoMs;

/// Quantiles of non-negative milliseconds, within 1/16 of the value, in 1 KiB.
///
/// Values fall into buckets that are exact up to 16 ms and then grow by a sixteenth; a quantile is read off the
/// cumulative count, so adding is one increment and merging is an addition.
#[derive(Clone, Debug, Default)]
pub struct Quantiles {
    counts: Vec<u64>,
    total: u64,
    max: u64,
}

const SUB: u64 = 16;
const BUCKETS: usize = 16 * 40;

fn bucket_of(value: u64) -> usize {
    if value < SUB {
        return value as usize;
    }
    let exponent = 63 - u64::from(value.leading_zeros());
    let within = (value >> (exponent - 4)) & (SUB - 1);
    (((exponent - 3) * SUB + within) as usize).min(BUCKETS - 1)
}

fn upper_edge(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    if bucket < SUB {
        return bucket;
    }
    let (exponent, within) = (bucket / SUB + 3, bucket % SUB);
    ((SUB + within + 1) << (exponent - 4)) - 1
}

impl Quantiles {
    /// Adds one value; negative ones count as 0.
    pub fn add(&mut self, value_ms: i64) {
        let value = u64::try_from(value_ms).unwrap_or(0);
        let bucket = bucket_of(value);
        if self.counts.len() <= bucket {
            self.counts.resize(bucket + 1, 0);
        }
        self.counts[bucket] += 1;
        self.total += 1;
        self.max = self.max.max(value);
    }

    /// Adds all values of another.
    pub fn merge(&mut self, other: &Self) {
        if self.counts.len() < other.counts.len() {
            self.counts.resize(other.counts.len(), 0);
        }
        for (mine, theirs) in self.counts.iter_mut().zip(&other.counts) {
            *mine += theirs;
        }
        self.total += other.total;
        self.max = self.max.max(other.max);
    }

    /// What was added since an earlier state of the same quantiles; its largest value within a sixteenth.
    pub fn since(&self, before: &Self) -> Self {
        let mut counts = self.counts.clone();
        for (mine, earlier) in counts.iter_mut().zip(&before.counts) {
            *mine = mine.saturating_sub(*earlier);
        }
        let highest = counts.iter().rposition(|count| *count > 0);
        Self {
            total: counts.iter().sum(),
            max: highest.map_or(0, |bucket| upper_edge(bucket).min(self.max)),
            counts,
        }
    }

    /// The value below which the share `q` (0 to 1) of all values lies; `None` when there are none.
    pub fn quantile(&self, q: f64) -> Option<u64> {
        let wanted = ((self.total as f64) * q.clamp(0.0, 1.0)).ceil().max(1.0) as u64;
        let mut seen = 0;
        for (bucket, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= wanted && self.total > 0 {
                return Some(upper_edge(bucket).min(self.max));
            }
        }
        None
    }

    /// The largest value; `None` when there are none.
    pub fn max(&self) -> Option<u64> {
        (self.total > 0).then_some(self.max)
    }

    /// How many values there are.
    pub fn total(&self) -> u64 {
        self.total
    }
}

/// How many per second, over the last minute.
#[derive(Clone, Debug)]
pub struct Rate {
    seconds: [u32; 60],
    at: i64,
    since: i64,
}

impl Rate {
    /// A rate that begins now.
    pub fn new(now: MonoMs) -> Self {
        let second = now.0 / 1000;
        Self {
            seconds: [0; 60],
            at: second,
            since: second,
        }
    }

    fn roll(&mut self, now: MonoMs) {
        let second = now.0 / 1000;
        while self.at < second {
            if second - self.at > 60 {
                self.at = second - 60;
            }
            self.at += 1;
            self.seconds[(self.at % 60) as usize] = 0;
        }
    }

    /// Counts `n` more.
    pub fn add(&mut self, n: u32, now: MonoMs) {
        self.roll(now);
        let slot = &mut self.seconds[(self.at % 60) as usize];
        *slot = slot.saturating_add(n);
    }

    /// Per second, over the last minute or since the beginning if that is shorter.
    pub fn per_second(&mut self, now: MonoMs) -> f64 {
        self.roll(now);
        let sum: u64 = self.seconds.iter().map(|n| u64::from(*n)).sum();
        let span = (self.at - self.since + 1).clamp(1, 60);
        sum as f64 / span as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_came_since_leaves_out_what_was_there() {
        let mut quantiles = Quantiles::default();
        [3, 900].into_iter().for_each(|ms| quantiles.add(ms));
        let before = quantiles.clone();
        assert_eq!(quantiles.since(&before).quantile(1.0), None);
        [5, 7].into_iter().for_each(|ms| quantiles.add(ms));
        let since = quantiles.since(&before);
        assert_eq!((since.total(), since.max()), (2, Some(7)));
        assert_eq!(since.quantile(0.5), Some(5));
    }

    #[test]
    fn quantiles_are_within_a_sixteenth() {
        let mut quantiles = Quantiles::default();
        assert_eq!(quantiles.quantile(0.5), None);
        for value in 0..=10_000 {
            quantiles.add(value);
        }
        for (q, right) in [(0.5, 5_000.0), (0.99, 9_900.0), (1.0, 10_000.0)] {
            let got = quantiles.quantile(q).expect("there are values") as f64;
            assert!((got - right).abs() <= right / 16.0 + 1.0, "q{q}: {got}");
        }
        assert_eq!(quantiles.max(), Some(10_000));
    }

    #[test]
    fn each_bucket_holds_its_own_edge_and_huge_values_fall_into_the_last() {
        for value in (0..2_000).chain([1 << 20, (1 << 30) + 12_345]) {
            let edge = upper_edge(bucket_of(value));
            assert!(
                edge >= value && edge - value <= value / 16 + 1,
                "{value} → {edge}"
            );
        }
        assert!(bucket_of(u64::MAX) < BUCKETS);
    }

    #[test]
    fn a_rate_forgets_what_is_older_than_a_minute() {
        let mut rate = Rate::new(MonoMs(0));
        rate.add(600, MonoMs(500));
        assert!((rate.per_second(MonoMs(59_000)) - 10.0).abs() < 0.01);
        assert!(rate.per_second(MonoMs(3_600_000)) < 0.01);
    }
}

//! How memory, disk and lateness went over the run, and what that says.
//!
//! What a shard commits is gathered up to 12 MiB and then folded, and on the disk a fold writes before it removes: both
//! go like a saw. A straight line through a saw depends on where it is cut off, so it is bounded generously, and the
//! highest teeth are compared beside it. The bound is a tenth and 32 MiB. What would grow if nothing were ever given
//! back, in a third of half an hour at 1 160 tasks a second, is 130 MB of disk and 45 MB of index.

use std::time::Duration;

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use serde_json::{Value, json};

use crate::metrics::Quantiles;

/// Largest lateness at the 99th of 100.
pub(super) const LATE_P99_MAX_MS: u64 = 5;
/// Of what is there: by how much it may seem to grow.
const GROWTH_SHARE: f64 = 0.1;
/// And beside that, in bytes: a tooth of the saw.
const GROWTH_BYTES: f64 = (32 << 20) as f64;
/// Most rows of the table for people.
const ROWS: usize = 15;
const MIB: f64 = (1 << 20) as f64;

/// The process at one moment.
#[derive(Clone, Debug)]
pub(super) struct Sample {
    pub(super) at: Duration,
    pub(super) memory_bytes: u64,
    pub(super) disk_bytes: u64,
    /// Live and kept.
    pub(super) tasks: u64,
    /// Of what was due since the sample before.
    pub(super) late: Quantiles,
}

impl Sample {
    fn late_ms(&self, q: f64) -> u64 {
        self.late.quantile(q).unwrap_or(0)
    }

    pub(super) fn words(&self) -> String {
        format!(
            "s: {:.0} MiB of memory, {:.0} MiB of disk, {} tasks, p99 {} ms late",
            self.memory_bytes as f64 / MIB,
            self.disk_bytes as f64 / MIB,
            self.tasks,
            self.late_ms(0.99)
        )
    }
}

/// All samples, in order.
#[derive(Clone, Debug, Default)]
pub(super) struct Course(pub(super) Vec<Sample>);

impl Course {
    pub(super) fn memory(&self) -> Level {
        self.level(|sample| sample.memory_bytes)
    }

    pub(super) fn disk(&self) -> Level {
        self.level(|sample| sample.disk_bytes)
    }

    fn level(&self, of: impl Fn(&Sample) -> u64) -> Level {
        let points = self.0.iter();
        let points = points.map(|sample| (sample.at.as_secs_f64(), of(sample) as f64));
        Level::of(&points.collect::<Vec<_>>())
    }

    /// For people: some of the samples.
    pub(super) fn table(&self) -> String {
        let mut table = Table::new();
        table
            .load_style(presets::NOTHING)
            .set_content_arrangement(ContentArrangement::Disabled)
            .set_header([
                "minute",
                "memory MiB",
                "disk MiB",
                "tasks",
                "late p50",
                "p99",
                "max ms",
            ]);
        for sample in self.0.iter().step_by(self.0.len().div_ceil(ROWS).max(1)) {
            table.add_row([
                format!("{:.1}", sample.at.as_secs_f64() / 60.0),
                format!("{:.1}", sample.memory_bytes as f64 / MIB),
                format!("{:.1}", sample.disk_bytes as f64 / MIB),
                sample.tasks.to_string(),
                sample.late_ms(0.5).to_string(),
                sample.late_ms(0.99).to_string(),
                sample.late_ms(1.0).to_string(),
            ]);
        }
        for column in table.column_iter_mut() {
            column.set_cell_alignment(CellAlignment::Right);
        }
        table.trim_fmt()
    }

    pub(super) fn json(&self) -> Value {
        let samples = self.0.iter().map(|sample| {
            json!({
                "at_s": (sample.at.as_secs_f64() * 1000.0).round() / 1000.0,
                "memory_bytes": sample.memory_bytes,
                "disk_bytes": sample.disk_bytes,
                "tasks": sample.tasks,
                "started": sample.late.total(),
                "late_p50_ms": sample.late_ms(0.5),
                "late_p99_ms": sample.late_ms(0.99),
                "late_max_ms": sample.late_ms(1.0),
            })
        });
        samples.collect()
    }
}

/// How something went that should stay level, in bytes.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Level {
    /// The highest of the middle third.
    pub(super) middle: f64,
    /// The highest of the last third.
    pub(super) last: f64,
    /// Of the straight line that fits the second half best.
    slope_per_s: f64,
    /// How long the second half is.
    half_s: f64,
}

impl Level {
    /// Of points (second, bytes), in order.
    fn of(points: &[(f64, f64)]) -> Self {
        let end = points.last().map_or(0.0, |(at, _)| *at);
        let highest = |from: f64, to: f64| {
            let within = points
                .iter()
                .filter(|(at, _)| *at > from * end && *at <= to * end);
            within.fold(0.0, |highest: f64, (_, bytes)| highest.max(*bytes))
        };
        let half: Vec<_> = points
            .iter()
            .filter(|(at, _)| *at >= end / 2.0)
            .copied()
            .collect();
        Self {
            middle: highest(1.0 / 3.0, 2.0 / 3.0),
            last: highest(2.0 / 3.0, 1.0),
            slope_per_s: slope(&half),
            half_s: end / 2.0,
        }
    }

    /// By how much it may seem to grow, in bytes.
    fn growth_max(&self) -> f64 {
        self.middle * GROWTH_SHARE + GROWTH_BYTES
    }

    pub(super) fn slope_per_min(&self) -> f64 {
        self.slope_per_s * 60.0
    }

    pub(super) fn slope_max_per_min(&self) -> f64 {
        self.growth_max() / self.half_s.max(1.0) * 60.0
    }

    pub(super) fn is_flat(&self) -> bool {
        let higher = self.last - self.middle;
        higher <= self.growth_max() && self.slope_per_min() <= self.slope_max_per_min()
    }

    pub(super) fn verdict(&self) -> &'static str {
        match self.is_flat() {
            true => "flat",
            false => "GROWS",
        }
    }
}

/// Of the line with the least squares.
fn slope(points: &[(f64, f64)]) -> f64 {
    let count = points.len().max(1) as f64;
    let mean = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / count;
    let (x, y) = (mean(|point| point.0), mean(|point| point.1));
    let along: f64 = points
        .iter()
        .map(|point| (point.0 - x) * (point.1 - y))
        .sum();
    let spread: f64 = points.iter().map(|point| (point.0 - x).powi(2)).sum();
    match spread > 0.0 {
        true => along / spread,
        false => 0.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Half an hour, a point each ten seconds.
    fn level(bytes: impl Fn(f64) -> f64) -> Level {
        let points = (1..=180).map(|n| f64::from(n) * 10.0);
        Level::of(&points.map(|at| (at, bytes(at))).collect::<Vec<_>>())
    }

    #[test]
    fn a_saw_is_flat_wherever_it_is_cut_off() {
        for period in [90.0, 170.0, 230.0, 410.0] {
            let saw = level(|at| 200.0 * MIB + 64.0 * MIB * (at % period) / period);
            assert_eq!(saw.verdict(), "flat", "{period}: {saw:?}");
        }
    }

    #[test]
    fn what_comes_to_a_balance_in_the_first_third_is_flat() {
        let filled = level(|at| 300.0 * MIB * (at / 400.0).min(1.0));
        assert_eq!(filled.verdict(), "flat", "{filled:?}");
        assert_eq!(filled.slope_per_min(), 0.0);
    }

    #[test]
    fn a_leak_shows_under_the_saw() {
        // An index entry of 64 bytes that stays behind of each task that comes; a quarter of the records on the disk.
        for per_s in [64.0 * 1160.0, 220.0 * 1160.0 / 4.0] {
            let leak = level(|at| 60.0 * MIB + per_s * at + 32.0 * MIB * (at % 130.0) / 130.0);
            assert_eq!(leak.verdict(), "GROWS", "{leak:?}");
        }
    }

    #[test]
    fn no_samples_are_no_reason_to_panic() {
        assert!(Course::default().memory().is_flat());
        assert_eq!(Course::default().json(), json!([]));
    }
}

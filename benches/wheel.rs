//! The wheel beside one `BTreeSet`, which is the plainest thing that gives the same answers.
//!
//! A million entries over two hours, as on a shard full of order timeouts: put in, taken out in another order
//! (most orders are paid), and popped second by second.

use std::collections::BTreeSet;
use std::hint::black_box;
use std::time::Duration;

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use duetime::wheel::Wheel;

const ENTRIES: u64 = 1_000_000;
const SECONDS: i64 = 2 * 60 * 60;
/// 2026-12-01T10:30:00Z.
const START_MS: i64 = 1_796_121_000_000;

type Plain = BTreeSet<(i64, u128)>;

/// Numbers without order, the same in every run.
fn scattered(n: u64) -> u64 {
    let n = (n ^ (n >> 31)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (n ^ (n >> 29)).wrapping_mul(0xD6E8_FEB8_6659_FD93)
}

fn entries() -> Vec<(i64, u128)> {
    let entry = |n: u64| {
        let ahead_ms = scattered(n) % (SECONDS as u64 * 1_000);
        (
            START_MS + 1 + ahead_ms as i64,
            u128::from(scattered(n + ENTRIES)) << 64 | u128::from(n),
        )
    };
    (0..ENTRIES).map(entry).collect()
}

fn full_wheel(entries: &[(i64, u128)]) -> Wheel<u128> {
    let mut wheel = Wheel::new(START_MS);
    for (at_ms, k) in entries {
        wheel.insert(*at_ms, *k);
    }
    wheel
}

fn full_set(entries: &[(i64, u128)]) -> Plain {
    let mut set = Plain::new();
    for entry in entries {
        set.insert(*entry);
    }
    set
}

fn a_million_over_two_hours(c: &mut Criterion) {
    let entries = entries();
    let mut in_another_order = entries.clone();
    in_another_order.sort_by_key(|(_, k)| *k);
    let each_second = || (1..=SECONDS + 1).map(|second| START_MS + second * 1_000);

    let mut group = c.benchmark_group("wheel");
    group
        .throughput(Throughput::Elements(ENTRIES))
        .sample_size(10)
        .warm_up_time(Duration::from_secs(1))
        .measurement_time(Duration::from_secs(5));

    group.bench_function("insert/wheel", |b| {
        b.iter_with_large_drop(|| full_wheel(black_box(&entries)));
    });
    group.bench_function("insert/btreeset", |b| {
        b.iter_with_large_drop(|| full_set(black_box(&entries)));
    });

    group.bench_function("remove/wheel", |b| {
        let remove_all = |mut wheel: Wheel<u128>| {
            for (at_ms, k) in &in_another_order {
                assert!(wheel.remove(*at_ms, *k));
            }
            wheel
        };
        b.iter_batched(|| full_wheel(&entries), remove_all, BatchSize::PerIteration);
    });
    group.bench_function("remove/btreeset", |b| {
        let remove_all = |mut set: Plain| {
            for entry in &in_another_order {
                assert!(set.remove(entry));
            }
            set
        };
        b.iter_batched(|| full_set(&entries), remove_all, BatchSize::PerIteration);
    });

    group.bench_function("advance/wheel", |b| {
        let pop_all = |mut wheel: Wheel<u128>| {
            let mut out = Vec::with_capacity(entries.len());
            for to_ms in each_second() {
                wheel.advance(to_ms, usize::MAX, &mut out);
            }
            assert_eq!(out.len(), entries.len());
            out
        };
        b.iter_batched(|| full_wheel(&entries), pop_all, BatchSize::PerIteration);
    });
    group.bench_function("advance/btreeset", |b| {
        let pop_all = |mut set: Plain| {
            let mut out = Vec::with_capacity(entries.len());
            for to_ms in each_second() {
                while set.first().is_some_and(|(at_ms, _)| *at_ms <= to_ms) {
                    out.extend(set.pop_first());
                }
            }
            assert_eq!(out.len(), entries.len());
            out
        };
        b.iter_batched(|| full_set(&entries), pop_all, BatchSize::PerIteration);
    });
    group.finish();
}

criterion_group!(benches, a_million_over_two_hours);
criterion_main!(benches);

//! What it costs to read a create: one line of a batch, with the general parser's reading of the same line as the
//! measure. `RawValue` is the least that a check of the grammar can cost there, `Value` what a tree of it does.

use std::hint::black_box;

use bytes::Bytes;
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use duetime::clock::{DurationMs, WallMs};
use duetime::wire::batch::Unread;
use duetime::wire::{InLimits, task_in};
use serde_json::Value;
use serde_json::value::RawValue;

const LIMITS: InLimits = InLimits {
    max_delay: DurationMs::secs(3660 * 24 * 3600),
    now: WallMs(1_796_000_000_000),
};

/// What callers send, from the plain to the full.
const LINES: [(&str, &str); 3] = [
    (
        "mark",
        r#"{"topic":"order.unpaid","key":"order-00000042","delay":"PT87654S","payload":{"order_id":42,"pad":"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"},"action":{"none":{}}}"#,
    ),
    (
        "push",
        r#"{"topic":"order.unpaid","key":"order-00000042","due_at":"2026-12-24T10:00:00Z","payload":{"order_id":42,"customer":"c-17","amount_cents":129900},"action":{"http":{"url":"http://127.0.0.1:9000/close"}}}"#,
    ),
    (
        "full",
        r#"{"topic": "order.unpaid", "key": "order-42", "delay": "PT30M", "payload": {"note": "caf\u00e9 \"here\"", "lines": [1, 2.5, true, null]}, "action": {"http": {"url": "http://127.0.0.1:9000/close", "method": "POST", "headers": {"x-shop": "a"}}}, "retry": {"ladder": ["PT1M", "PT5M", "PT10M", "PT30M"], "max_attempts": 10}, "timeouts": {"attempt": "PT10S", "grace": "PT2S", "total": "PT2H"}, "delivery": "at_least_once", "class": "core", "on_existing": "return", "max_lateness": "PT1M", "tags": {"region": "eu"}, "facts": {"vip": true}}"#,
    ),
];

/// Operations of one batch.
const OPS: usize = 1000;

fn decode(c: &mut Criterion) {
    for (name, line) in LINES {
        let mut group = c.benchmark_group(format!("decode/{name}"));
        group.throughput(Throughput::Bytes(line.len() as u64));
        group.bench_function("create", |b| {
            b.iter(|| task_in::create(black_box(line.as_bytes()), &LIMITS).expect("it is good"));
        });
        group.bench_function("peer: RawValue", |b| {
            b.iter(|| {
                serde_json::from_slice::<&RawValue>(black_box(line.as_bytes())).expect("JSON")
            });
        });
        group.bench_function("peer: Value", |b| {
            b.iter(|| serde_json::from_slice::<Value>(black_box(line.as_bytes())).expect("JSON"));
        });
        group.finish();
    }

    let cancels: Vec<String> = (0..OPS)
        .map(|n| {
            format!(
                r#"{{"cancel":{{"topic":"order.unpaid","key":"order-{n:08}","reason":"paid"}}}}"#
            )
        })
        .collect();
    let body = Bytes::from(format!(r#"{{"ops":[{}]}}"#, cancels.join(",")));
    let read_all = |body: &Bytes| {
        let unread = Unread::ops(body.clone()).expect("a list");
        unread.read_ops(&LIMITS).filter(Result::is_ok).count()
    };
    let mut group = c.benchmark_group("decode/cancel by key");
    group.throughput(Throughput::Elements(OPS as u64));
    group.bench_function("ops", |b| {
        b.iter(|| assert_eq!(read_all(black_box(&body)), OPS));
    });
    group.bench_function("peer: Value", |b| {
        b.iter(|| serde_json::from_slice::<Value>(black_box(&body)).expect("JSON"));
    });
    group.finish();
}

criterion_group!(benches, decode);
criterion_main!(benches);

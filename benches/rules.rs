//! What it costs to ask a rule when a task is due, with the same decision written out in Rust as the measure: what reading
//! the facts costs anyway.
//!
//! To be reached: a fixed rule ≤ 2 µs, a typical conditional one ≤ 20 µs.

use std::hint::black_box;
use std::sync::Arc;

use criterion::{Criterion, criterion_group, criterion_main};
use duetime::clock::{DurationMs, WallMs};
use duetime::rule::book::{Kept, RuleBook};
use duetime::rule::model::Asked;
use duetime::task::spec::{RawJson, ResourceName};
use duetime::wire::{InLimits, rule};
use duetime::{NewTask, TopicName};
use serde_json::Value;

const NOW: WallMs = WallMs(1_796_000_000_000);
const LIMITS: InLimits = InLimits {
    max_delay: DurationMs::secs(3660 * 24 * 3600),
    now: NOW,
};
const FACTS: &str =
    r#"{"vip": false, "total": 129900, "region": "eu", "paid_at": "2026-12-01T10:00:00Z"}"#;

/// Rules from the plain to the full.
const RULES: [(&str, &str); 4] = [
    ("fixed", r#"{"fixed": {"after": "PT30M"}}"#),
    (
        "conditional",
        r#"{"conditional": {"cases": [
            {"if": "has(facts.vip) && facts.vip", "after": "PT45M"},
            {"if": "facts.total > 100000 && facts.region == 'eu'", "after": "PT1H"}], "else": {"after": "PT30M"}}}"#,
    ),
    (
        "computed",
        r#"{"fixed": {"due": "timestamp(facts.paid_at) + duration('1h')"}}"#,
    ),
    (
        "staged",
        r#"{"staged": {"stages": [
            {"name": "dispatch", "after": "PT1H", "action": {"http": {"url": "http://127.0.0.1:9000/dispatch"}}},
            {"name": "cancel", "after": "PT2H", "action": {"http": {"url": "http://127.0.0.1:9000/cancel"}}}]}}"#,
    ),
];

/// The conditional rule as a program of its own.
fn bare(facts: &str) -> Option<u64> {
    let facts: Value = serde_json::from_str(facts).ok()?;
    let is_vip = facts["vip"].as_bool().unwrap_or_default();
    let is_large = facts["total"].as_i64()? > 100_000 && facts["region"] == "eu";
    Some(if is_vip {
        2_700_000
    } else if is_large {
        3_600_000
    } else {
        1_800_000
    })
}

fn rules(c: &mut Criterion) {
    let mut group = c.benchmark_group("rules");
    let topic = TopicName::parse("order.unpaid").expect("a good name");
    let task = NewTask {
        facts: Some(RawJson::from(FACTS.to_owned())),
        ..NewTask::new(topic)
    };
    let name = ResourceName::parse("r").expect("a good name");
    for (what, body) in RULES {
        let kept = Kept {
            meaning: rule::rule(body.as_bytes(), &LIMITS).expect("a good rule"),
            body: body.to_owned(),
            version: 1,
            changed_at: NOW,
        };
        let mut book = RuleBook::default();
        book.rules.insert(name.clone(), Arc::new(kept));
        group.bench_function(what, |b| {
            b.iter(|| book.due(&name, &Asked::new(black_box(&task), NOW)).is_ok());
        });
    }
    group.bench_function("bare", |b| b.iter(|| bare(black_box(FACTS))));
    group.finish();
}

criterion_group!(benches, rules);
criterion_main!(benches);

//! What it costs to turn a task into bytes and back: the create path's hot spot, with recovery's beside it.

use std::hint::black_box;
use std::sync::Arc;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use duetime::clock::{DurationMs, MonoMs, Now, SteadyMs, WallMs};
use duetime::ids::{Slot, TaskId};
use duetime::store::codec::{Batch, Change, decode_task};
use duetime::task::spec::{HttpAction, RawJson, TaskKey, TopicName};
use duetime::task::{Action, Due, Task, TaskSpec};

/// A keyed push with 60 bytes of payload: 251 bytes when encoded.
fn typical_task() -> Task {
    let wall = WallMs(1_796_000_000_000);
    let now = Now {
        wall,
        mono: MonoMs(0),
        steady: SteadyMs(wall.0),
    };
    let spec = TaskSpec {
        action: Action::Http(HttpAction {
            url: "http://127.0.0.1:9000/close".into(),
            method: "POST".into(),
            headers: Vec::new(),
            expect_status: Vec::new(),
            success_if: None,
            complete_by: None,
        }),
        payload: Some(RawJson::from(
            r#"{"order_id":42,"customer":"c-17","amount_cents":129900}"#.to_owned(),
        )),
        ..TaskSpec::default()
    };
    Task::new(
        TaskId::with_tail(Slot::of_hash(7), wall, 7),
        TopicName::parse("order.unpaid").expect("a good name"),
        TaskKey::parse("order-00000042").ok(),
        Arc::new(spec),
        Due::after(DurationMs::secs(1800), now),
        now,
        "api",
    )
}

fn codec(c: &mut Criterion) {
    let task = typical_task();
    let mut batch = Batch::new(SteadyMs(0));
    batch.put_task(&task);
    let Some((_, Change::Put(value))) = batch.changes().next() else {
        panic!("the task was put");
    };

    let mut group = c.benchmark_group("codec");
    group.throughput(Throughput::Bytes(value.len() as u64));
    group.bench_function("encode a task, as one of a batch of 1000", |b| {
        let mut batch = Batch::new(SteadyMs(0));
        b.iter(|| {
            if batch.len() == 1000 {
                batch = Batch::new(SteadyMs(0));
            }
            batch.put_task(black_box(&task));
        });
    });
    group.bench_function("decode a task", |b| {
        b.iter(|| decode_task(task.id, black_box(&value)).expect("it is whole"));
    });
    group.finish();
}

criterion_group!(benches, codec);
criterion_main!(benches);

//! How fast a shard commits, beside the rate of the bare disk in the same run: the same bytes, one append and one
//! `sync_data` each.
//!
//! `store` is the local store without folding; `sustained` also folds everything into chunks, over at least three
//! folds. Rates are tasks per second.

use std::fs::File;
use std::io::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use duetime::clock::{DurationMs, MonoMs, Now, SteadyMs, WallMs};
use duetime::ids::{ShardId, Slot, TaskId};
use duetime::store::chunk::{Entry, Fold, Marks, Memtable, Recent};
use duetime::store::codec::{Batch, Change};
use duetime::store::local::{LocalHome, LocalOptions, LocalStore};
use duetime::store::{Begun, ShardStore, Tended};
use duetime::task::spec::{HttpAction, RawJson, TaskKey, TopicName};
use duetime::task::{Action, Due, Task, TaskSpec};

/// Batches of `tasks` tasks, all different.
struct Batches {
    tasks: u64,
    next: u64,
    topic: TopicName,
    spec: Arc<TaskSpec>,
}

impl Batches {
    fn of(tasks: u64) -> Self {
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
        Self {
            tasks,
            next: 0,
            topic: TopicName::parse("order.unpaid").expect("a good name"),
            spec: Arc::new(spec),
        }
    }

    fn batch(&mut self) -> Batch {
        self.batch_of(|_| {})
    }

    fn batch_of(&mut self, mut see: impl FnMut(&Task)) -> Batch {
        let mut batch = Batch::new(SteadyMs(0));
        for n in self.next..self.next + self.tasks {
            let wall = WallMs(1_796_000_000_000 + (n / 100) as i64);
            let now = Now {
                wall,
                mono: MonoMs(0),
                steady: SteadyMs(wall.0),
            };
            let id = TaskId::with_tail(
                Slot::of_hash(n.wrapping_mul(0x9E37_79B9_7F4A_7C15)),
                wall,
                n,
            );
            let key = TaskKey::parse(&format!("order-{n:08}")).ok();
            let due = Due::after(DurationMs::secs(1800), now);
            let task = Task::new(
                id,
                self.topic.clone(),
                key,
                self.spec.clone(),
                due,
                now,
                "api",
            );
            batch.put_task(&task);
            see(&task);
        }
        self.next += self.tasks;
        batch
    }
}

fn begin(home: &LocalHome) -> (LocalStore, Begun) {
    let mut store = home.store(ShardId(0));
    let begun = store.begin().expect("a new store begins");
    store
        .recover(&mut |_| {})
        .expect("there is nothing to read");
    (store, begun)
}

fn commit_all(iterations: u64, tasks: u64) -> Duration {
    let data = tempfile::tempdir().expect("a directory");
    let home = LocalHome::new(data.path(), LocalOptions::default());
    let (mut store, begun) = begin(&home);
    let mut batches = Batches::of(tasks);
    let mut spent = Duration::ZERO;
    for _ in 0..iterations {
        let batch = batches.batch();
        let start = Instant::now();
        store
            .commit(begun.epoch, &batch)
            .expect("the disk takes it");
        spent += start.elapsed();
    }
    spent
}

fn append_all(iterations: u64, tasks: u64) -> Duration {
    let mut file: File = tempfile::tempfile().expect("a file");
    let mut batches = Batches::of(tasks);
    let mut spent = Duration::ZERO;
    for _ in 0..iterations {
        let batch = batches.batch();
        let start = Instant::now();
        file.write_all(batch.encode())
            .and_then(|()| file.sync_data())
            .expect("the disk takes it");
        spent += start.elapsed();
    }
    spent
}

const SUSTAINED_TASKS: u64 = 100_000;
const TABLE_TASKS: usize = 25_000;

fn commit_and_fold(iterations: u64) -> Duration {
    let mut spent = Duration::ZERO;
    for _ in 0..iterations {
        let data = tempfile::tempdir().expect("a directory");
        let home = LocalHome::new(data.path(), LocalOptions::default());
        let (mut store, begun) = begin(&home);
        let mut batches = Batches::of(1000);
        let mut table = Memtable::default();
        let mut is_folding = false;
        let mut tend = |store: &mut LocalStore, table: &mut Memtable, bytes_min, tasks_max| {
            if !is_folding && table.tasks.len() > tasks_max {
                let fold = Fold {
                    table: Arc::new(std::mem::take(table)),
                    marks: Marks::Changed(Vec::new()),
                    drop: Vec::new(),
                };
                store.fold(begun.epoch, fold).expect("one fold at a time");
                is_folding = true;
            }
            let tended = store
                .tend(begun.epoch, bytes_min)
                .expect("the disk takes it");
            is_folding = matches!(tended, Tended::More);
            is_folding
        };
        for _ in 0..SUSTAINED_TASKS / 1000 {
            let mut entries = Vec::new();
            let mut batch = batches.batch_of(|task| entries.push(Entry::of(task, begun.seed)));
            let start = Instant::now();
            store
                .commit(begun.epoch, &batch)
                .expect("the disk takes it");
            for (entry, (_, change)) in entries.into_iter().zip(batch.changes()) {
                if let Change::Put(value) = change {
                    table.tasks.insert(entry.id, Recent { entry, value });
                }
            }
            tend(&mut store, &mut table, 2 * batch.bytes(), TABLE_TASKS);
            spent += start.elapsed();
        }
        let start = Instant::now();
        while tend(&mut store, &mut table, 0, 0) || !table.tasks.is_empty() {}
        spent += start.elapsed();
    }
    spent
}

fn commit(c: &mut Criterion) {
    let mut group = c.benchmark_group("commit");
    group
        .sample_size(10)
        .measurement_time(Duration::from_secs(3));
    for tasks in [1, 10, 100, 1000, 5000] {
        group.throughput(Throughput::Elements(tasks));
        group.bench_with_input(BenchmarkId::new("store", tasks), &tasks, |b, tasks| {
            b.iter_custom(|iterations| commit_all(iterations, *tasks));
        });
        group.bench_with_input(
            BenchmarkId::new("append and sync", tasks),
            &tasks,
            |b, tasks| {
                b.iter_custom(|iterations| append_all(iterations, *tasks));
            },
        );
    }
    group.throughput(Throughput::Elements(SUSTAINED_TASKS));
    group.bench_function("sustained, batches of 1000", |b| {
        b.iter_custom(commit_and_fold)
    });
    group.finish();
}

criterion_group!(benches, commit);
criterion_main!(benches);

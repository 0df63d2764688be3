//! What supervision costs, and how soon a part that fails serves again.
//!
//! - *Pulse*: what a child pays for a sign of life, beside the same under a lock; and what the watchdog pays for one
//!   look at it, beside the reading of a clock.
//! - *Fan-out*: the scheduler tells 1 000 shards the time, each on a thread of its own, until the last of them has said
//!   when it wants to hear it next; beside 1 000 bare threads that are woken through a channel each. An attempt is armed
//!   20 ms ahead of its instant: so long may it take.
//! - *From fault to serving*: a shard with 10 000 pending tasks panics; until a create that falls on it is committed
//!   again. Beside it a start of the whole engine over the same tasks. 50 ms is the limit.
//! - *From verdict to serving*: a shard whose thread hangs, from when that is seen until its replacement runs, and until
//!   that has committed a create. 50 ms is the limit. With a million pending tasks it is a second, and only measured when
//!   it is asked for:
//!
//! ```sh
//! cargo bench --features failpoints --bench supervision -- "a million pending"
//! ```

#![expect(clippy::print_stdout, reason = "a bench says what it measured")]

use std::hint::black_box;
use std::panic::{set_hook, take_hook};
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use actix::{Actor, Addr, Context, Handler, Message};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use duetime::clock::Clock;
use duetime::failpoints::set;
use duetime::ids::ShardId;
use duetime::shard::wakes::WakeBoard;
use duetime::supervision::liveness::verdict;
use duetime::supervision::{
    Bounds, ChildStatus, NamedArbiter, Pulse, Supervision, Verdict, named_arbiter,
};
use duetime::{
    Action, BatchOp, Builder, Created, Duetime, DurationMs, NewTask, OpDone, TopicName, Wants,
};
use parking_lot::{Condvar, Mutex};
use tokio::runtime::Runtime;

const SHARDS: u16 = 1_000;
const PENDING: usize = 10_000;
const PANICS: usize = 50;
const POINT: &str = "shard::handler@shard-00";
/// Longest wait for anything.
const SOON: Duration = Duration::from_secs(30);

fn pulses(c: &mut Criterion) {
    let clock = Clock::machine();
    let pulse = Pulse::new(clock.now().mono);
    let locked = Mutex::new((clock.now().mono, false));
    let mut group = c.benchmark_group("pulse");
    group.bench_function("a message: busy, then idle", |b| {
        let now = clock.now().mono;
        b.iter(|| {
            pulse.busy(black_box(now));
            pulse.idle(black_box(now));
        });
    });
    group.bench_function("the same under a lock", |b| {
        let now = clock.now().mono;
        b.iter(|| {
            *locked.lock() = (black_box(now), true);
            *locked.lock() = (black_box(now), false);
        });
    });
    group.bench_function("reading and verdict", |b| {
        let (now, bounds) = (clock.now().mono, Bounds::default());
        b.iter(|| verdict(black_box(&pulse).read(), black_box(now), bounds));
    });
    group.bench_function("the clock", |b| b.iter(|| black_box(clock.now()).mono));
    group.finish();
}

/// How many have been told, and a bell for when those are all.
#[derive(Default)]
struct Told {
    count: Mutex<u16>,
    all: Condvar,
}

impl Told {
    fn one(&self) {
        let mut count = self.count.lock();
        *count += 1;
        if *count == SHARDS {
            self.all.notify_one();
        }
    }

    fn wait_for_all(&self) {
        let mut count = self.count.lock();
        while *count < SHARDS {
            let waited = self.all.wait_for(&mut count, SOON);
            assert!(!waited.timed_out(), "{count} of {SHARDS}");
        }
        *count = 0;
    }
}

/// Stands for a shard that has nothing else to do.
struct Idle {
    shard: ShardId,
    wakes: Arc<WakeBoard>,
    told: Arc<Told>,
    _thread: NamedArbiter,
}

struct Tick;

impl Message for Tick {
    type Result = ();
}

impl Actor for Idle {
    type Context = Context<Self>;
}

impl Handler<Tick> for Idle {
    type Result = ();

    fn handle(&mut self, _: Tick, _: &mut Context<Self>) {
        self.wakes.set(self.shard, i64::MAX - 1);
        self.told.one();
    }
}

fn fan_out(c: &mut Criterion) {
    let (wakes, told) = (Arc::new(WakeBoard::new(SHARDS)), Arc::<Told>::default());
    // As between two rounds of the scheduler.
    wakes.sleep_until(i64::MAX);
    let shards: Vec<Addr<Idle>> = wakes
        .shards()
        .map(|shard| {
            let thread = named_arbiter(&format!("shard-{}", shard.0)).expect("there are threads");
            let (on, wakes, told) = (thread.handle(), Arc::clone(&wakes), Arc::clone(&told));
            Idle::start_in_arbiter(&on, move |_| Idle {
                shard,
                wakes,
                told,
                _thread: thread,
            })
        })
        .collect();
    let mut group = c.benchmark_group("fan-out to 1000");
    group
        .throughput(Throughput::Elements(u64::from(SHARDS)))
        .sample_size(20);
    group.bench_function("a round when nobody is due", |b| {
        wakes
            .shards()
            .for_each(|shard| wakes.set(shard, i64::MAX - 1));
        b.iter(|| {
            let due = wakes
                .shards()
                .filter(|shard| wakes.take_due(*shard, black_box(0)));
            (due.count(), wakes.earliest_us())
        });
    });
    group.bench_function("shards", |b| {
        b.iter(|| {
            wakes.shards().for_each(|shard| wakes.set(shard, i64::MIN));
            for shard in wakes.shards().filter(|shard| wakes.take_due(*shard, 0)) {
                shards[usize::from(shard.0)]
                    .try_send(Tick)
                    .expect("it has room");
            }
            told.wait_for_all();
        });
    });
    drop(shards);
    let threads: Vec<(mpsc::Sender<()>, JoinHandle<()>)> = (0..SHARDS)
        .map(|_| {
            let (wake, woken) = mpsc::channel();
            let told = Arc::clone(&told);
            let thread = std::thread::spawn(move || woken.iter().for_each(|()| told.one()));
            (wake, thread)
        })
        .collect();
    group.bench_function("bare threads", |b| {
        b.iter(|| {
            for (wake, _) in &threads {
                wake.send(()).expect("it listens");
            }
            told.wait_for_all();
        });
    });
    for (wake, thread) in threads {
        drop(wake);
        thread.join().expect("it does not panic");
    }
    group.finish();
}

fn task() -> NewTask {
    let topic = TopicName::parse("bench").expect("a name");
    NewTask::new(topic)
        .action(Action::None)
        .after(Duration::from_secs(24 * 3600))
}

fn builder(data: &Path) -> Builder {
    Duetime::builder().data_dir(data).shards(1)
}

async fn engine(data: &Path) -> Duetime {
    builder(data).start().await.expect("it starts")
}

/// So many tasks, pending.
async fn fill(engine: &Duetime, count: usize) {
    for part in (0..count).step_by(10_000) {
        let creates = (part..count.min(part + 10_000)).map(|_| BatchOp::Create(Box::new(task())));
        for done in engine.batch(creates, None, Wants::Slim, "bench").await {
            let is_new = matches!(done, Ok(OpDone::Created(Created::New(_))));
            assert!(is_new, "{done:?}");
        }
    }
}

fn shard(engine: &Duetime) -> ChildStatus {
    let mut children = engine.children().into_iter();
    let found = children.find(|child| child.name == "shard-00");
    found.expect("it is there")
}

/// Creates until one is committed; the time from the first.
async fn until_it_serves(engine: &Duetime) -> Duration {
    let began = Instant::now();
    while !matches!(engine.create(task(), "bench").await, Ok(Created::New(_))) {
        assert!(
            began.elapsed() < SOON,
            "it serves again: {:?}",
            shard(engine)
        );
        tokio::time::sleep(Duration::from_micros(200)).await;
    }
    began.elapsed()
}

/// Looks at the shard until it is so.
async fn until(engine: &Duetime, is_so: impl Fn(&ChildStatus) -> bool) {
    let began = Instant::now();
    while !is_so(&shard(engine)) {
        assert!(began.elapsed() < SOON, "{:?}", shard(engine));
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// One panic, in the middle of a create.
async fn fault(engine: &Duetime) -> Duration {
    let before = shard(engine).restarts;
    set(POINT, "1*panic").expect("it is in the list");
    let down = until_it_serves(engine).await;
    until(engine, |child| child.restarts != before).await;
    // So that this one does not count when the next is judged.
    let restarts = shard(engine).restarts;
    engine.restart_part("shard-00").expect("it is known");
    until(engine, |child| {
        child.is_running() && child.restarts > restarts
    })
    .await;
    until_it_serves(engine).await;
    down
}

fn fault_to_serving(c: &mut Criterion) {
    let usual = take_hook();
    set_hook(Box::new(move |panic| {
        if !panic.to_string().contains("failpoint") {
            usual(panic);
        }
    }));
    let runtime = Runtime::new().expect("there are threads");
    let data = tempfile::tempdir().expect("a directory");
    let house = runtime.block_on(async {
        let engine = engine(data.path()).await;
        fill(&engine, PENDING).await;
        engine
    });
    let mut group = c.benchmark_group("from fault to serving");
    group.sample_size(10);
    let mut downs = Vec::new();
    group.bench_function("a panic of a shard with 10000 pending", |b| {
        b.iter_custom(|times| {
            let all: Vec<Duration> = (0..times)
                .map(|_| runtime.block_on(fault(&house)))
                .collect();
            let sum = all.iter().sum();
            downs.extend(all);
            sum
        });
    });
    let is_meant = !downs.is_empty();
    while is_meant && downs.len() < PANICS {
        downs.push(runtime.block_on(fault(&house)));
    }
    runtime.block_on(house.shutdown());
    group.bench_function("a start of the engine", |b| {
        b.iter_custom(|times| {
            let start = |_| {
                runtime.block_on(async {
                    let began = Instant::now();
                    let engine = engine(data.path()).await;
                    until_it_serves(&engine).await;
                    let took = began.elapsed();
                    engine.shutdown().await;
                    took
                })
            };
            (0..times).map(start).sum()
        });
    });
    group.finish();
    if is_meant {
        tell(&format!("{} panics", downs.len()), downs);
    }
}

/// p50, p99 and the worst.
fn tell(what: &str, mut all: Vec<Duration>) {
    all.sort_unstable();
    let at = |percent: usize| all[(all.len() * percent).div_ceil(100) - 1];
    println!(
        "{what}: p50 {:?}, p99 {:?}, at most {:?}",
        at(50),
        at(99),
        at(100)
    );
}

/// One thread that hangs: from the verdict until the replacement runs, and until it serves.
async fn hang(engine: &Duetime) -> (Duration, Duration) {
    let before = shard(engine).restarts;
    set(POINT, "1*pause").expect("it is in the list");
    let waits = tokio::spawn({
        let engine = engine.clone();
        async move { engine.create(task(), "bench").await }
    });
    let mut verdict = None;
    let began = Instant::now();
    let replaced = loop {
        let now = shard(engine);
        let is_stuck = now
            .pulse
            .is_some_and(|pulse| pulse.verdict == Verdict::Stuck);
        if is_stuck || now.quarantined > 0 {
            verdict.get_or_insert_with(Instant::now);
        }
        if let Some(at) = verdict
            && now.is_running()
            && now.restarts > before
        {
            break at.elapsed();
        }
        assert!(began.elapsed() < SOON, "{now:?}");
        tokio::time::sleep(Duration::from_micros(200)).await;
    };
    let serves = replaced + until_it_serves(engine).await;
    set(POINT, "off").expect("it is in the list");
    drop(waits.await.expect("no panic"));
    until(engine, |child| child.quarantined == 0).await;
    // So that this one does not count when the next is judged.
    let restarts = shard(engine).restarts;
    engine.restart_part("shard-00").expect("it is known");
    until(engine, |child| {
        child.is_running() && child.restarts > restarts
    })
    .await;
    until_it_serves(engine).await;
    (replaced, serves)
}

/// Without criterion, which would have each of them take minutes.
fn verdict_to_serving(_: &mut Criterion) {
    const SIZES: [(&str, usize, usize, bool); 2] = [
        ("ten thousand pending", PENDING, 50, false),
        ("a million pending", 1_000_000, 20, true),
    ];
    let group = "from verdict to serving";
    let filter = std::env::args().skip(1).find(|it| !it.starts_with('-'));
    for (name, pending, times, only_if_asked) in SIZES {
        let full = format!("{group}/{name}");
        let is_meant = filter
            .as_ref()
            .map_or(!only_if_asked, |it| full.contains(it));
        if !is_meant {
            continue;
        }
        let runtime = Runtime::new().expect("there are threads");
        let data = tempfile::tempdir().expect("a directory");
        let supervision = Supervision {
            bounds: Some(Bounds {
                late: DurationMs(250),
                stuck: DurationMs(500),
                ..Bounds::default()
            }),
            ..Supervision::default()
        };
        let engine = builder(data.path()).supervision(supervision).start();
        let engine = runtime.block_on(engine).expect("it starts");
        runtime.block_on(fill(&engine, pending));
        let took: Vec<_> = (0..times)
            .map(|_| runtime.block_on(hang(&engine)))
            .collect();
        tell(
            &format!("{full}: replaced"),
            took.iter().map(|it| it.0).collect(),
        );
        tell(
            &format!("{full}: serves"),
            took.iter().map(|it| it.1).collect(),
        );
        runtime.block_on(engine.shutdown());
    }
}

criterion_group!(
    benches,
    pulses,
    fan_out,
    fault_to_serving,
    verdict_to_serving
);
criterion_main!(benches);

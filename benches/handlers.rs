//! What it costs to run a handler, from the order to the report: 20 000 at a time, each over at its first poll, and
//! each that waits once. Beside them the plainest way, a spawned task and a timer for each on a shared runtime, which
//! one handler per core that blocks its thread brings to a stand; and our own with two such handlers stuck in it.

use std::collections::HashMap;
use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use duetime::clock::{Clock, DurationMs, Now, WallMs};
use duetime::executor::handler::{Handler, HandlerCall, HandlerLimits, Handlers, handler};
use duetime::executor::{AttemptReport, OwedReport, ReportSink, RunAttempt, Work};
use duetime::ids::{AttemptNumber, AttemptToken, Slot, TaskId};
use duetime::task::outcome::Outcome;
use duetime::task::spec::TopicName;
use parking_lot::{Condvar, Mutex};
use tokio_util::sync::CancellationToken;

const CALLS: u64 = 20_000;

/// Counts reports, and tells when they are all there.
#[derive(Default)]
struct Counter {
    count: Mutex<u64>,
    all: Condvar,
}

impl Counter {
    fn wait_for_all(&self) {
        let mut count = self.count.lock();
        while *count < CALLS {
            let waited = self.all.wait_for(&mut count, Duration::from_secs(60));
            assert!(!waited.timed_out(), "{count} of {CALLS}");
        }
        *count = 0;
    }
}

impl ReportSink for Counter {
    fn started(&self, _: TaskId, _: AttemptToken, _: Now) {}

    fn ended(&self, report: AttemptReport) {
        black_box(report);
        let mut count = self.count.lock();
        *count += 1;
        if *count == CALLS {
            self.all.notify_one();
        }
    }
}

fn attempt(n: u64, handler: &str, topic: &TopicName, clock: &Clock) -> RunAttempt {
    RunAttempt {
        task: TaskId::with_tail(Slot::of_hash(n), WallMs(1), n),
        token: AttemptToken(n),
        deadline: clock.now().mono.after(DurationMs::secs(3600)),
        grace: DurationMs::secs(2),
        cancel: CancellationToken::new(),
        work: Work::Handler(HandlerCall {
            handler: handler.to_owned(),
            topic: topic.clone(),
            key: None,
            generation: 1,
            stage: None,
            attempt: AttemptNumber(1),
            due_at: WallMs(0),
            payload: None,
            checkpoint: None,
            heartbeat: None,
        }),
    }
}

fn handlers(clock: &Clock) -> Handlers {
    let once = handler(async |_| Ok(None));
    let twice = handler(async |_| {
        tokio::task::yield_now().await;
        Ok(None)
    });
    let stuck = handler(async |_| {
        // For as long as the measurement may take.
        std::thread::sleep(Duration::from_secs(600));
        Ok(None)
    });
    let by_name: [(&str, Handler); 3] = [("once", once), ("twice", twice), ("stuck", stuck)];
    let by_name = by_name.map(|(name, handler)| (name.to_owned(), handler));
    Handlers::new(
        HashMap::from(by_name),
        HandlerLimits::default(),
        clock.clone(),
    )
    .expect("there are threads")
}

fn runs(c: &mut Criterion) {
    let mut group = c.benchmark_group("handlers");
    group
        .throughput(Throughput::Elements(CALLS))
        .sample_size(20);
    let (clock, counter) = (Clock::machine(), Arc::new(Counter::default()));
    let sink: Arc<dyn ReportSink> = counter.clone();
    let topic = TopicName::parse("bench").expect("a name");
    let run_all = |handlers: &Handlers, name: &str| {
        for n in 0..CALLS {
            handlers.run(attempt(n, name, &topic, &clock), &sink);
        }
        counter.wait_for_all();
    };

    let own = handlers(&clock);
    for name in ["once", "twice"] {
        group.bench_function(format!("seats, {name}"), |b| {
            b.iter(|| run_all(&own, name));
        });
    }
    let silent: Arc<dyn ReportSink> = Arc::new(Counter::default());
    for n in 0..2 {
        own.run(attempt(n, "stuck", &topic, &clock), &silent);
    }
    group.bench_function("seats, once, two of them stuck", |b| {
        b.iter(|| run_all(&own, "once"));
    });

    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("there are threads");
    group.bench_function("spawned with a timer, once", |b| {
        b.iter(|| {
            for n in 0..CALLS {
                let attempt = attempt(n, "once", &topic, &clock);
                let mut owed = OwedReport::new(&attempt, sink.clone(), clock.clone());
                let soft = attempt.cancel.child_token();
                owed.start();
                runtime.spawn(async move {
                    let cancel = attempt.cancel.clone();
                    let running = tokio::spawn(async move { black_box((attempt, soft)) });
                    tokio::select! {
                        ended = running => drop(black_box(ended)),
                        () = cancel.cancelled() => {}
                        () = tokio::time::sleep(Duration::from_secs(3600)) => {}
                    }
                    owed.settle(Outcome::TimedOut);
                });
            }
            counter.wait_for_all();
        });
    });
    group.finish();
}

criterion_group!(benches, runs);
criterion_main!(benches);

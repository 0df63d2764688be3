//! Where tasks are kept, seen from outside: what is read when, what a start finds again, and what is left on the disk.
//!
//! The figures are those of `/v1/shards`. `DUETIME_SHELF_TASKS=200000` makes the last test as large as the promise.

#[expect(dead_code, reason = "each file of tests uses its part")]
mod support;

use std::path::Path;
use std::time::{Duration, Instant};

use duetime::shard::shelf::{ChunkReads, ShelfOptions};
use duetime::shard::table::TableOptions;
use duetime::task::topic::TopicSettings;
use duetime::task::transition::Retention;
use duetime::{
    Action, BatchOp, Clock, Duetime, DurationMs, Event, NewTask, OpDone, State, Target, TaskKey,
    TopicName, WallMs, Wants,
};
use serde_json::json;

use support::SOON;

const START: WallMs = WallMs(1_796_000_000_000);

fn topic() -> TopicName {
    TopicName::parse("shelf").expect("a name")
}

fn key(number: usize) -> String {
    format!("order-{number}")
}

fn target(number: usize) -> Target {
    Target::Key(topic(), TaskKey::parse(&key(number)).expect("a key"))
}

/// An engine on a clock of ours that folds whenever 64 KiB are committed.
async fn engine(data: &Path, clock: &Clock) -> Duetime {
    let table = TableOptions {
        look_ahead: DurationMs::secs(10),
        shelf: ShelfOptions {
            fold_bytes: 64 * 1024,
        },
    };
    let builder = Duetime::builder().data_dir(data).table(table);
    builder
        .clock(clock.clone())
        .start()
        .await
        .expect("it starts")
}

/// Files of the first shard's journal.
fn journal_files(data: &Path) -> usize {
    let files = std::fs::read_dir(data.join("shards/000/journal"));
    files.expect("it is there").count()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shard_that_was_started_many_times_folds_so_that_no_start_reads_ever_more_files() {
    // More than a start reads without a fold of its own; 32 of them.
    const STARTS: u64 = 36;
    let data = tempfile::tempdir().expect("a directory");
    let engine = Duetime::builder().data_dir(data.path()).shards(1);
    let engine = engine.start().await.expect("it starts");
    let new = NewTask::new(topic()).after(Duration::from_secs(86_400));
    let created = engine.create(new, "test").await;
    created.expect("it is made");
    let end = Instant::now() + SOON;
    let shard = || {
        let mut children = engine.children().into_iter();
        children
            .find(|child| child.name == "shard-00")
            .expect("it is there")
    };
    let mut most = 0;
    for restarts in 1..=STARTS {
        engine.restart_part("shard-00").expect("it is known");
        while !(shard().is_running() && shard().restarts == restarts) {
            assert!(Instant::now() < end, "{:?}", shard());
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        most = most.max(journal_files(data.path()));
    }
    assert!(most > 30, "each start begins a file, {most} at most");
    while journal_files(data.path()) > STARTS as usize - 30 {
        assert!(Instant::now() < end, "{} files", journal_files(data.path()));
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(count(&engine, State::Pending).await, 1);
    engine.shutdown().await;
}

/// What all shards have read from their chunks, how many chunks they hold, and how much is in none yet.
async fn figures(engine: &Duetime) -> (ChunkReads, u64, u64) {
    let (mut reads, mut chunks, mut recent) = (ChunkReads::default(), 0, 0);
    for counts in engine.counts().await.expect("all shards answer") {
        let shelf = counts.shelf;
        reads.task += shelf.reads.task;
        reads.list += shelf.reads.list;
        reads.ahead += shelf.reads.ahead;
        reads.moved += shelf.reads.moved;
        chunks += shelf.chunks;
        recent += shelf.recent_bytes;
    }
    (reads, chunks, recent)
}

async fn count(engine: &Duetime, state: State) -> u64 {
    let (topics, _) = engine.topic_counts().await.expect("all shards answer");
    topics
        .get(&topic())
        .map_or(0, |counts| counts.states[state.index()])
}

/// Looks again and again until it is so.
async fn until<F: Future<Output = bool>>(what: &str, mut is_so: impl FnMut() -> F) {
    let end = Instant::now() + SOON;
    while !is_so().await {
        assert!(Instant::now() < end, "{what} takes too long");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Creates tasks of action `none`, due after these lengths.
async fn create(engine: &Duetime, delays: impl Iterator<Item = Duration>) -> usize {
    let tasks = delays.enumerate().map(|(number, delay)| {
        NewTask::new(topic())
            .action(Action::None)
            .after(delay)
            .key(&key(number))
            .expect("a key")
            .payload(&json!({"number": number, "text": "x".repeat(60)}))
    });
    let ops: Vec<BatchOp> = tasks.map(|task| BatchOp::Create(Box::new(task))).collect();
    let count = ops.len();
    for done in engine.batch(ops, None, Wants::Slim, "test").await {
        assert!(matches!(done, Ok(OpDone::Created(_))), "{done:?}");
    }
    count
}

/// Lets time pass until all that is committed is in chunks.
async fn put_away(engine: &Duetime, clock: &Clock) {
    // What was committed lately is folded after five minutes at the latest.
    clock.advance(DurationMs::secs(301));
    until("a fold", || async { figures(engine).await.2 == 0 }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tasks_in_chunks_are_cancelled_by_key_without_a_record_being_read() {
    let data = tempfile::tempdir().expect("a directory");
    let clock = Clock::by_hand(START);
    let service = engine(data.path(), &clock).await;
    let far = |number: usize| Duration::from_secs(86_400 + number as u64);
    let made = create(&service, (0..5_000).map(far)).await;
    put_away(&service, &clock).await;
    let (before, chunks, _) = figures(&service).await;
    assert!(chunks >= 40, "5 000 tasks stand in {chunks} chunks");

    let cancel = |number| {
        let reason = "paid".to_owned();
        BatchOp::Verb(target(number), Event::Cancel { reason })
    };
    let ops = (0..made)
        .filter(|number| number % 2 == 0)
        .map(cancel)
        .collect::<Vec<_>>();
    for done in service.batch(ops, None, Wants::Slim, "test").await {
        let Ok(OpDone::Verb(Ok(done))) = done else {
            panic!("{done:?}");
        };
        assert_eq!(done.view.slim().state, State::Cancelled);
    }
    let (after, ..) = figures(&service).await;
    assert_eq!(after, before, "chunks read for 2 500 cancels");
    assert_eq!(count(&service, State::Cancelled).await, 2_500);

    // Also when the cancels themselves have been folded, and after a restart, they hold; and what was called off can
    // still be looked at.
    for round in 0..3 {
        let service = match round {
            0 => service.clone(),
            _ => engine(data.path(), &clock).await,
        };
        if round == 1 {
            put_away(&service, &clock).await;
        }
        assert_eq!(
            count(&service, State::Cancelled).await,
            2_500,
            "round {round}"
        );
        assert_eq!(
            count(&service, State::Pending).await,
            2_500,
            "round {round}"
        );
        for number in [0, 1, 2, 2_498, 2_499, 4_998, 4_999] {
            let view = service.get(target(number)).await.expect("an answer");
            let task = view.expect("the task is there").task;
            let expected = match number % 2 {
                0 => State::Cancelled,
                _ => State::Pending,
            };
            assert_eq!(task.state, expected, "{number} in round {round}");
            let payload = task.spec.payload.as_ref().expect("a payload");
            assert!(payload.as_str().contains(&format!("\"number\":{number},")));
        }
        service.shutdown().await;
    }

    // Their day comes: only the others end as succeeded.
    let service = engine(data.path(), &clock).await;
    clock.advance(DurationMs::secs(86_400 + 5_000));
    until("the end of all", || async {
        count(&service, State::Pending).await == 0
    })
    .await;
    assert_eq!(count(&service, State::Succeeded).await, 2_500);
    assert_eq!(count(&service, State::Cancelled).await, 2_500);
    service.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_comes_due_was_read_ahead_and_nothing_is_read_then() {
    let data = tempfile::tempdir().expect("a directory");
    let clock = Clock::by_hand(START);
    let service = engine(data.path(), &clock).await;
    // All due within one second, in an hour; and as many a week later, which nobody should look at.
    let soon = (0..4_000).map(|number| Duration::from_millis(3_600_000 + number % 1_000));
    let late = (0..4_000).map(|number| Duration::from_secs(7 * 86_400 + number));
    let made = create(&service, soon.chain(late)).await;
    put_away(&service, &clock).await;
    let (before, chunks, _) = figures(&service).await;
    assert!(chunks >= 60, "8 000 tasks stand in {chunks} chunks");

    clock.advance(DurationMs::secs(3_600 - 301 - 5));
    let ahead = async || figures(&service).await.0.ahead - before.ahead;
    until("the look-ahead", || async {
        ahead().await >= 2 * 4_000 / 128
    })
    .await;
    // All chunks of that second are opened by the next steps; then no more are.
    let opened = std::cell::Cell::new(0);
    until("the end of the look-ahead", || async {
        let now = ahead().await;
        opened.replace(now) == now
    })
    .await;
    let (read, ..) = figures(&service).await;
    assert!(
        read.ahead - before.ahead <= chunks + 16,
        "{} reads for one half of {chunks} chunks, an index and a body each",
        read.ahead - before.ahead
    );

    clock.advance(DurationMs::secs(7));
    until("the end of the first half", || async {
        count(&service, State::Succeeded).await == 4_000
    })
    .await;
    let (mut after, ..) = figures(&service).await;
    // What of each shard stood in one chunk with tasks of a week later leaves that chunk almost empty, and what is left in
    // it is moved: upkeep, that no due task waits for.
    let moved = after.moved - read.moved;
    let shards = service.shards().await.len() as u64;
    assert!(moved <= shards, "{moved} chunks were tidied");
    after.moved = read.moved;
    assert_eq!(after, read, "reads after the look-ahead");
    assert_eq!(count(&service, State::Pending).await, made as u64 - 4_000);
    service.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_has_expired_leaves_the_disk_and_one_task_in_a_year_stays() {
    let tasks: usize = std::env::var("DUETIME_SHELF_TASKS")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(20_000);
    let data = tempfile::tempdir().expect("a directory");
    let service = Duetime::builder()
        .data_dir(data.path())
        .start()
        .await
        .expect("it starts");
    let second = DurationMs::secs(1);
    let settings = TopicSettings {
        retention: Retention {
            succeeded: second,
            cancelled: second,
            dead: second,
        },
        ..TopicSettings::default()
    };
    let put = service
        .put_topic(topic(), "{}".to_owned(), settings, "test")
        .await;
    put.expect("the topic is declared");
    let in_a_year = NewTask::new(topic()).key("a year").expect("a key");
    let in_a_year = in_a_year.after(Duration::from_secs(365 * 86_400));
    service
        .create(in_a_year, "test")
        .await
        .expect("it is created");

    let mut left = tasks;
    while left > 0 {
        let some = left.min(2_000);
        left -= some;
        let task = |_| {
            let payload = json!("x".repeat(1_024));
            let task = NewTask::new(topic())
                .after(Duration::from_secs(3_600))
                .payload(&payload);
            BatchOp::Create(Box::new(task))
        };
        let made = service
            .batch(
                (0..some).map(task).collect::<Vec<_>>(),
                None,
                Wants::Slim,
                "test",
            )
            .await;
        let complete = |done: Result<OpDone, _>| {
            let Ok(OpDone::Created(duetime::Created::New(view))) = done else {
                panic!("{done:?}");
            };
            let event = Event::Complete {
                result: None,
                token: None,
            };
            BatchOp::Verb(Target::Id(view.id()), event)
        };
        let ops: Vec<BatchOp> = made.into_iter().map(complete).collect();
        for done in service.batch(ops, None, Wants::Slim, "test").await {
            assert!(matches!(done, Ok(OpDone::Verb(Ok(_)))), "{done:?}");
        }
    }
    until("the end of the retention", || async {
        count(&service, State::Succeeded).await == 0
    })
    .await;
    assert_eq!(count(&service, State::Pending).await, 1);
    // Two seconds after the last fold what is dead is worth another.
    until("tidying", || async { figures(&service).await.1 <= 2 * 64 }).await;
    service.shutdown().await;
    drop(service);

    let bytes = support::bytes_of(data.path());
    assert!(bytes <= 64 << 20, "the directory is {} MiB", bytes >> 20);
    support::assert_no_blobs(data.path());
    let begun = Instant::now();
    let service = Duetime::builder()
        .data_dir(data.path())
        .start()
        .await
        .expect("it starts");
    assert!(
        begun.elapsed() <= Duration::from_secs(5),
        "{:?}",
        begun.elapsed()
    );
    assert_eq!(count(&service, State::Pending).await, 1);
    service.shutdown().await;
}

//! What the engine does when a part of it gives no answer.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use tempfile::TempDir;
use tokio::time::Instant;

use crate::clock::DurationMs;
use crate::engine::handle::{BatchOp, Duetime, LeaseAsk};
use crate::engine::registry::RegistryError;
use crate::engine::{Builder, EngineError, StartError};
use crate::ids::{ShardId, TaskId};
use crate::shard::create::Created;
use crate::shard::messages::{OpDone, Target, Wants};
use crate::shard::router::NoAnswer;
use crate::task::event::Event;
use crate::task::history::ErrorNote;
use crate::task::model::PauseClock;
use crate::task::new_task::NewTask;
use crate::task::spec::TopicName;
use crate::task::topic::Topic;

/// Longest wait for what must come.
const SOON: Duration = Duration::from_secs(20);
const SHARD: ShardId = ShardId(1);

fn topic() -> TopicName {
    TopicName::parse("orders").expect("a name")
}

fn of_two_shards(data: &TempDir) -> Builder {
    Duetime::builder().data_dir(data.path()).shards(2)
}

async fn started() -> (Duetime, TempDir) {
    let data = tempfile::tempdir().expect("a directory");
    let engine = of_two_shards(&data).start().await.expect("it starts");
    (engine, data)
}

/// Looks until it is so.
async fn until(what: &str, is_so: impl Fn() -> bool) {
    let end = Instant::now() + SOON;
    while !is_so() {
        assert!(Instant::now() < end, "never: {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

fn orders(engine: &Duetime) -> Arc<Topic> {
    Arc::clone(engine.book().get(&topic()))
}

async fn dead_task(engine: &Duetime) -> TaskId {
    let new = NewTask::new(topic()).after(Duration::from_secs(600));
    let created = engine.create(new, "test").await;
    let Ok(Created::New(view)) = created else {
        panic!("{created:?}")
    };
    let target = Target::Id(view.task.id);
    let error = ErrorNote {
        code: "lost".to_owned(),
        message: String::new(),
    };
    let fail = Event::Fail { error };
    engine.verb(target, fail, "test").await.expect("it fails");
    view.task.id
}

/// What this process has open there.
#[cfg(target_os = "linux")]
fn open_files_of(data: &TempDir) -> Vec<std::path::PathBuf> {
    let open = std::fs::read_dir("/proc/self/fd").expect("the system tells");
    let open = open.filter_map(|file| std::fs::read_link(file.ok()?.path()).ok());
    open.filter(|file| file.starts_with(data.path())).collect()
}

#[tokio::test]
async fn a_start_that_fails_leaves_nothing_running_and_the_directory_to_the_next() {
    let (engine, data) = started().await;
    engine.shutdown().await;
    drop(engine);
    // That the journal is gone no other start would mend: it is not tried again and again.
    let journal = data.path().join("shards/000/journal");
    let aside = data.path().join("aside");
    std::fs::rename(&journal, &aside).expect("it is moved away");
    let failed = of_two_shards(&data).start().await;
    let why = failed.expect_err("a shard does not come up").to_string();
    assert!(why.contains("shard-00 g1 parked"), "{why}");
    #[cfg(target_os = "linux")]
    assert_eq!(open_files_of(&data), Vec::<std::path::PathBuf>::new());
    std::fs::remove_dir_all(&journal).expect("a new one was made");
    std::fs::rename(&aside, &journal).expect("it is moved back");
    let engine = of_two_shards(&data).start().await;
    let engine = engine.expect("the other parts have let go of theirs");
    for child in engine.children() {
        assert_eq!(child.restarts, 0, "{child}");
    }
    engine.shutdown().await;
}

#[tokio::test]
async fn a_thaw_that_not_all_shards_heard_of_is_finished_when_they_are_back() {
    let (engine, _data) = started().await;
    let paused = engine
        .pause_topic(topic(), PauseClock::Freeze, "test")
        .await;
    paused.expect("it is held");
    engine.parts.router.close(SHARD);
    let resumed = engine.resume_topic(topic(), "test").await;
    let down = |error| matches!(error, EngineError::NoAnswer(NoAnswer::Down(SHARD)));
    assert!(resumed.is_err_and(down));
    assert!(orders(&engine).is_held(), "until all have moved its tasks");
    engine.restart_shard(SHARD).expect("there is one");
    until("it goes on", || !orders(&engine).is_held()).await;
    engine.shutdown().await;
}

#[tokio::test]
async fn a_thaw_that_was_cut_off_goes_on_at_the_next_start() {
    let (engine, data) = started().await;
    let paused = engine
        .pause_topic(topic(), PauseClock::Freeze, "test")
        .await;
    paused.expect("it is held");
    engine.parts.router.close(SHARD);
    let resumed = engine.resume_topic(topic(), "test").await;
    resumed.expect_err("a shard is down");
    engine.shutdown().await;
    let engine = of_two_shards(&data).start().await.expect("it starts");
    until("it goes on", || !orders(&engine).is_held()).await;
    engine.shutdown().await;
}

#[tokio::test]
async fn a_caller_who_hangs_up_leaves_no_topic_half_changed() {
    let (engine, _data) = started().await;
    let pause = engine.pause_topic(topic(), PauseClock::Freeze, "test");
    assert!(pause.now_or_never().is_none());
    until("it is held", || orders(&engine).is_held()).await;
    let resume = engine.resume_topic(topic(), "test");
    assert!(resume.now_or_never().is_none());
    // The shards have been through the thaw: that is the last step.
    until("it goes on", || !orders(&engine).is_held()).await;
    engine.shutdown().await;
}

#[tokio::test]
async fn no_more_wait_for_the_registry_than_it_has_room_for() {
    let (engine, _data) = started().await;
    let room = Arc::clone(&engine.parts.registry_room);
    let all = u32::try_from(room.available_permits()).expect("few");
    let taken = room.try_acquire_many_owned(all).expect("all of it");
    let paused = engine.pause_topic(topic(), PauseClock::Keep, "test").await;
    let overloaded = |error| matches!(error, EngineError::Registry(RegistryError::Overloaded));
    assert!(paused.is_err_and(overloaded));
    drop(taken);
    let paused = engine.pause_topic(topic(), PauseClock::Keep, "test").await;
    paused.expect("there is room again");
    engine.shutdown().await;
}

#[tokio::test]
async fn what_is_done_is_answered_so_even_if_its_audit_line_can_not_be_written() {
    let (engine, _data) = started().await;
    let (one, other) = (dead_task(&engine).await, dead_task(&engine).await);
    engine.parts.registry.empty();
    let done = engine.verb(Target::Id(one), Event::Discard, "test").await;
    assert_eq!(done.expect("it is done").view.id(), one);
    let ops = vec![BatchOp::Verb(Target::Id(other), Event::Replay)];
    let done = engine.batch(ops, None, Wants::Whole, "test").await;
    assert!(matches!(done[..], [Ok(OpDone::Verb(Ok(_)))]), "{done:?}");
    engine.shutdown().await;
}

#[tokio::test]
async fn a_ring_is_passed_on_when_the_shards_give_no_answer() {
    let (engine, _data) = started().await;
    let worker = || {
        let engine = engine.clone();
        tokio::spawn(async move {
            let ask = LeaseAsk {
                topics: vec![topic()],
                max: 1,
                lease: DurationMs::secs(30),
                wait: DurationMs::secs(600),
                worker: "worker".to_owned(),
            };
            engine.lease(ask).await.map(|leases| leases.len())
        })
    };
    let workers = [worker(), worker()];
    // In line, and told that there is nothing: the next answer they get is that of the ring.
    until("both wait", || engine.waiting_workers() == 2).await;
    engine
        .counts()
        .await
        .expect("all questions before are answered");
    for shard in engine.parts.router.shards() {
        engine.parts.router.close(shard);
    }
    engine.parts.desk.wake(&topic(), 1);
    for worker in workers {
        let left = tokio::time::timeout(SOON, worker).await;
        let leases = left.expect("the ring reached it").expect("no panic");
        assert!(matches!(
            leases,
            Err(EngineError::NoAnswer(NoAnswer::Down(_)))
        ));
    }
    engine.shutdown().await;
}

#[tokio::test]
async fn a_stop_does_not_wait_for_ever_for_a_shard_that_takes_no_questions() {
    let (engine, _data) = started().await;
    let filled = engine.parts.router.fill(SHARD);
    let until = Instant::now() + Duration::from_millis(50);
    let drained = tokio::time::timeout(SOON, engine.drain(false, until)).await;
    assert_eq!(drained.expect("an end"), 0);
    drop(filled);
    engine.shutdown().await;
}

#[tokio::test]
async fn copies_of_the_journals_without_backups_are_refused_before_anything_is_made() {
    let home = tempfile::tempdir().expect("a directory");
    let (data, copies) = (home.path().join("data"), home.path().join("copies"));
    let builder = Duetime::builder().data_dir(&data).journal_copies(&copies);
    let refused = builder.start().await.expect_err("no backups are planned");
    assert!(
        matches!(refused, StartError::CopiesWithoutBackups),
        "{refused}"
    );
    assert!(!data.exists() && !copies.exists());
}

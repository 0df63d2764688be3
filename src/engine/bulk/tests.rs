#![expect(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod jobs;

use tempfile::TempDir;
use tokio::time::Instant;

use super::*;
use crate::clock::{Clock, DurationMs, WallMs};
use crate::engine::handle::BatchOp;
use crate::ids::TaskId;
use crate::limits;
use crate::shard::create::Created;
use crate::shard::messages::{OpDone, Target, Wants};
use crate::task::event::{Event, NewDue};
use crate::task::history::ErrorNote;
use crate::task::model::{Due, PauseClock, State, Task};
use crate::task::new_task::NewTask;
use crate::task::spec::{RawJson, ResourceName, TaskKey, TopicName};
use crate::wire::due::InLimits;
use crate::wire::rule::rule;
use crate::wire::topic::settings;

/// Longest wait for what must come.
const SOON: Duration = Duration::from_secs(20);
const START: WallMs = WallMs(1_796_000_000_000);

/// An engine of two shards on a clock that is moved by hand.
struct Center {
    engine: Duetime,
    clock: Clock,
    data: TempDir,
}

impl Center {
    async fn start() -> Self {
        let clock = Clock::by_hand(START);
        Self::over(tempfile::tempdir().unwrap(), clock).await
    }

    async fn over(data: TempDir, clock: Clock) -> Self {
        let builder = Duetime::builder().data_dir(data.path()).shards(2);
        let builder = builder.clock(clock.clone()).grace(DurationMs(0));
        let engine = builder.start().await.unwrap();
        Self {
            engine,
            clock,
            data,
        }
    }

    /// As after an orderly stop and a start.
    async fn restarted(self) -> Self {
        self.engine.shutdown().await;
        let Self {
            engine,
            clock,
            data,
        } = self;
        drop(engine);
        Self::over(data, clock).await
    }

    /// So many tasks of a topic, due from in an hour on, a second apart.
    async fn tasks(&self, topic: &str, count: u64) -> Vec<TaskId> {
        let topic = TopicName::parse(topic).unwrap();
        let new = |n: u64| {
            let new = NewTask::new(topic.clone())
                .key(&format!("k{n:05}"))
                .unwrap();
            BatchOp::Create(Box::new(new.after(Duration::from_secs(3600 + n))))
        };
        let ops: Vec<BatchOp> = (0..count).map(new).collect();
        let done = self.engine.batch(ops, None, Wants::Slim, "test").await;
        let id = |done| match done {
            Ok(OpDone::Created(Created::New(shown))) => shown.id(),
            other => panic!("{other:?}"),
        };
        done.into_iter().map(id).collect()
    }

    async fn task(&self, id: TaskId) -> Task {
        let view = self.engine.get(Target::Id(id)).await.unwrap();
        Task::clone(&view.unwrap().task)
    }

    async fn in_state(&self, ids: &[TaskId], state: State) -> usize {
        let mut found = 0;
        for id in ids {
            found += usize::from(self.task(*id).await.state == state);
        }
        found
    }

    async fn event(&self, id: TaskId, event: Event) {
        let done = self.engine.verb(Target::Id(id), event, "test").await;
        done.unwrap();
    }

    fn limits(&self) -> InLimits {
        InLimits {
            max_delay: self.engine.max_delay(),
            now: self.engine.now().wall,
        }
    }

    async fn begin(&self, body: &str) -> BulkId {
        let ask = BulkAsk::read(body.as_bytes(), &self.limits()).unwrap();
        self.engine.begin_bulk(ask, None, "test").await.unwrap().id
    }

    async fn wish(&self, id: BulkId, verb: BulkVerb) -> Result<Arc<BulkJob>, EngineError> {
        self.engine.bulk_verb(id, verb, "test").await
    }

    /// Waits until the job stands so.
    async fn until(&self, id: BulkId, is_so: impl Fn(&BulkJob) -> bool) -> Arc<BulkJob> {
        let end = Instant::now() + SOON;
        loop {
            let job = self.engine.bulk_job(id).unwrap();
            if is_so(&job) {
                return job;
            }
            assert!(Instant::now() < end, "never: {:?}", job.progress);
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    /// Waits until it has ended, while time passes.
    async fn ended_in_time(&self, id: BulkId) -> Arc<BulkJob> {
        let is_over = |job: &BulkJob| {
            self.clock.advance(DurationMs(250));
            job.progress.state.has_ended()
        };
        self.until(id, is_over).await
    }

    async fn ended(&self, id: BulkId) -> Arc<BulkJob> {
        self.until(id, |job| job.progress.state.has_ended()).await
    }
}

fn done(job: &BulkJob) -> u64 {
    job.progress.counts.done
}

#[tokio::test(flavor = "multi_thread")]
async fn all_that_match_are_cancelled_and_nothing_else_and_the_logs_say_by_whom() {
    let center = Center::start().await;
    let (ids, others) = (center.tasks("a", 700).await, center.tasks("b", 10).await);
    center
        .event(
            ids[0],
            Event::Pause {
                clock: PauseClock::Keep,
            },
        )
        .await;
    let id = center
        .begin(r#"{"action": "cancel", "filter": {"topic": "a"}, "args": {"reason": "sold out"}, "rate": 2000}"#)
        .await;
    // Its rate is that of a clock that stands.
    let held = center.until(id, |job| done(job) > 0).await;
    assert!(done(&held) <= 500, "{:?}", held.progress);
    let job = center.ended_in_time(id).await;
    let counts = &job.progress.counts;
    assert_eq!((counts.matched, counts.done, counts.failed), (700, 700, 0));
    assert_eq!(job.progress.state, BulkState::Done);
    assert_eq!(center.in_state(&ids, State::Cancelled).await, 700);
    assert_eq!(center.in_state(&others, State::Pending).await, 10);
    let task = center.task(ids[7]).await;
    let latest = task.changes.kept.last().unwrap();
    assert_eq!(
        (latest.by.clone(), latest.why.as_str()),
        (job.hand(), "cancelled: sold out")
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dry_run_counts_and_names_and_changes_nothing() {
    let center = Center::start().await;
    let ids = center.tasks("a", 50).await;
    center
        .event(
            ids[0],
            Event::Cancel {
                reason: String::new(),
            },
        )
        .await;
    let all = r#"{"action": "pause", "filter": {"topic": "a", "state": ["pending", "cancelled"]}, "dry_run": true}"#;
    let id = center.begin(all).await;
    let job = center.ended(id).await;
    let counts = &job.progress.counts;
    assert_eq!((counts.matched, counts.done), (50, 49));
    assert_eq!(counts.refused.get("illegal_state"), Some(&1));
    assert_eq!(job.progress.sample.len(), 20);
    assert_eq!(center.in_state(&ids, State::Pending).await, 49);
    let refused = center.wish(id, BulkVerb::Undo).await;
    assert!(matches!(
        refused,
        Err(EngineError::Bulk(BulkRefused::NotUndoable(_)))
    ));
}

async fn put_rule(center: &Center, name: &str, body: &str) {
    let limits = center.limits();
    let meaning = rule(body.as_bytes(), &limits).unwrap();
    let name = ResourceName::parse(name).unwrap();
    let put = center
        .engine
        .put_resource(name, body.to_owned(), meaning, "test");
    put.await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn tasks_are_moved_to_where_their_rule_puts_them_now_and_back() {
    let center = Center::start().await;
    let by_vip = |short: &str| {
        format!(
            r#"{{"conditional": {{"cases": [{{"if": "facts.vip", "after": "PT9H"}}, {{"if": "facts.gone", "skip": true}}],
                "else": {{"after": "{short}"}}}}}}"#
        )
    };
    put_rule(&center, "unpaid", &by_vip("PT2H")).await;
    let body = r#"{"rule": "unpaid"}"#;
    let topic = TopicName::parse("ruled").unwrap();
    let defaults = settings(body.as_bytes(), &center.limits()).unwrap();
    center
        .engine
        .put_topic(topic.clone(), body.to_owned(), defaults, "test")
        .await
        .unwrap();
    let mut ids = Vec::new();
    for facts in [
        r#"{"vip": true, "gone": false}"#,
        r#"{"vip": false, "gone": false}"#,
    ] {
        for _ in 0..40 {
            let mut new = NewTask::new(topic.clone());
            new.facts = Some(RawJson::from(facts.to_owned()));
            let made = center.engine.create(new, "test").await.unwrap();
            let Created::New(view) = made else {
                panic!("{made:?}")
            };
            ids.push(view.task.id);
        }
    }
    put_rule(&center, "unpaid", &by_vip("PT5H")).await;
    let ask = r#"{"action": "recompute", "filter": {"rule": "unpaid"}, "rate": 100000"#;
    let dry = center.begin(&format!("{ask}, \"dry_run\": true}}")).await;
    let dry = center.ended_in_time(dry).await;
    assert_eq!((dry.progress.counts.matched, done(&dry)), (40, 40));
    let id = center.begin(&format!("{ask}}}")).await;
    let job = center.ended_in_time(id).await;
    assert_eq!((job.progress.counts.matched, done(&job)), (40, 40));
    for (ids, hours) in [(&ids[..40], 9), (&ids[40..], 5)] {
        for id in ids {
            let task = center.task(*id).await;
            assert_eq!(task.due.at, START.after(DurationMs::secs(3600 * hours)));
        }
    }
    assert_eq!(
        center
            .task(ids[40])
            .await
            .spec
            .rule
            .as_ref()
            .unwrap()
            .version,
        2
    );
    // One is moved by hand since.
    let due = Due::at(START.after(DurationMs::secs(3600 * 7)), center.engine.now());
    let by_hand = Event::Reschedule {
        due: NewDue::To(due),
    };
    center.event(ids[41], by_hand).await;
    center.wish(id, BulkVerb::Undo).await.unwrap();
    let undone = center.ended_in_time(id).await;
    let counts = &undone.progress.counts;
    assert_eq!((counts.undone, counts.kept), (39, 1));
    for (id, hours) in [(ids[0], 9), (ids[40], 2), (ids[41], 7)] {
        let due = center.task(id).await.due.at;
        assert_eq!(due, START.after(DurationMs::secs(3600 * hours)));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_step_of_several_pages_is_done_and_taken_back_as_a_whole() {
    let center = Center::start().await;
    let ids = center.tasks("a", 2_000).await;
    let id = center
        .begin(r#"{"action": "pause", "filter": {"topic": "a"}, "rate": 100000}"#)
        .await;
    let job = center.ended_in_time(id).await;
    assert_eq!((done(&job), job.progress.pages), (2_000, 3));
    assert_eq!(center.in_state(&ids, State::Paused).await, 2_000);
    let center = center.restarted().await;
    center.wish(id, BulkVerb::Undo).await.unwrap();
    let undone = center.ended_in_time(id).await;
    assert_eq!(undone.progress.counts.undone, 2_000);
    assert_eq!(center.in_state(&ids, State::Pending).await, 2_000);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_rate_is_kept_by_the_clock() {
    let center = Center::start().await;
    center.tasks("a", 100).await;
    let id = center
        .begin(r#"{"action": "pause", "filter": {"topic": "a"}, "rate": 20}"#)
        .await;
    for tick in 0..40_u64 {
        // A step has up to five tasks, and the next comes when these have had their time.
        let job = center.until(id, |job| done(job) > tick).await;
        assert!(done(&job) <= tick + 5, "{} after {tick} ticks", done(&job));
        center.clock.advance(DurationMs(50));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn held_stopped_and_taken_back() {
    let center = Center::start().await;
    let ids = center.tasks("a", 60).await;
    let id = center
        .begin(r#"{"action": "pause", "filter": {"topic": "a"}, "rate": 40}"#)
        .await;
    center.until(id, |job| done(job) > 0).await;
    let held = center.wish(id, BulkVerb::Pause).await.unwrap();
    assert_eq!(held.progress.state, BulkState::Paused);
    center.clock.advance(DurationMs::secs(60));
    let held = center.wish(id, BulkVerb::Pause).await.unwrap();
    let so_far = done(&held);
    assert!(so_far < 60, "nothing goes on while it is held");
    center.wish(id, BulkVerb::Resume).await.unwrap();
    center.until(id, |job| done(job) > so_far).await;
    let stopped = center.wish(id, BulkVerb::Stop).await.unwrap();
    assert!(stopped.progress.ended_ms.is_some());
    let refused = center.wish(id, BulkVerb::Resume).await;
    assert!(matches!(
        refused,
        Err(EngineError::Bulk(BulkRefused::IllegalState { .. }))
    ));
    let paused = center.in_state(&ids, State::Paused).await;
    assert_eq!(paused as u64, done(&stopped));

    // Somebody else has touched one of them since.
    center.event(ids[0], Event::Resume).await;
    center
        .event(
            ids[0],
            Event::Pause {
                clock: PauseClock::Keep,
            },
        )
        .await;
    center.wish(id, BulkVerb::Undo).await.unwrap();
    let undone = center.ended_in_time(id).await;
    let counts = &undone.progress.counts;
    assert_eq!((counts.undone, counts.kept), (done(&undone) - 1, 1));
    assert_eq!(center.in_state(&ids, State::Paused).await, 1);
    assert_eq!(center.task(ids[0]).await.state, State::Paused);
}

#[tokio::test(flavor = "multi_thread")]
async fn tasks_that_move_ahead_are_moved_once_and_come_back_to_their_due_times() {
    let center = Center::start().await;
    let ids = center.tasks("a", 300).await;
    let mut before = Vec::new();
    for id in &ids {
        before.push(center.task(*id).await.due.at);
    }
    // Each lands before tasks that are still to come.
    let body = r#"{"action": "reschedule", "filter": {"topic": "a"}, "args": {"extend_by": "PT2M"}, "rate": 400}"#;
    let id = center.begin(body).await;
    let job = center.ended_in_time(id).await;
    assert_eq!((job.progress.counts.matched, done(&job)), (300, 300));
    for (id, before) in ids.iter().zip(&before) {
        let due = center.task(*id).await.due.at;
        assert_eq!(due, before.after(DurationMs::secs(120)));
    }
    center.wish(id, BulkVerb::Undo).await.unwrap();
    let job = center.ended_in_time(id).await;
    assert_eq!(job.progress.state, BulkState::Undone);
    assert_eq!(job.progress.counts.undone, 300);
    for (id, before) in ids.iter().zip(&before) {
        assert_eq!(center.task(*id).await.due.at, *before);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_that_was_created_after_the_job_began_is_none_of_its_business() {
    let center = Center::start().await;
    center.tasks("a", 30).await;
    let id = center
        .begin(r#"{"action": "cancel", "filter": {"topic": "a"}, "rate": 4}"#)
        .await;
    center.until(id, |job| done(job) > 0).await;
    center.clock.advance(DurationMs(2));
    let new = NewTask::new(TopicName::parse("a").unwrap()).after(Duration::from_secs(9_999));
    let Ok(Created::New(new)) = center.engine.create(new, "test").await else {
        panic!("it was not created")
    };
    center.ended_in_time(id).await;
    assert_eq!(center.task(new.task.id).await.state, State::Pending);
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_restart_a_job_goes_on_where_it_was() {
    let center = Center::start().await;
    let ids = center.tasks("a", 40).await;
    let id = center
        .begin(r#"{"action": "cancel", "filter": {"topic": "a"}, "rate": 8}"#)
        .await;
    center.until(id, |job| done(job) > 0).await;
    let center = center.restarted().await;
    let job = center.ended_in_time(id).await;
    assert_eq!((job.progress.counts.matched, done(&job)), (40, 40));
    assert_eq!(center.in_state(&ids, State::Cancelled).await, 40);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_part_is_restarted_in_the_midst_and_nothing_is_done_twice() {
    let center = Center::start().await;
    let ids = center.tasks("a", 40).await;
    let body = r#"{"action": "reschedule", "filter": {"topic": "a"}, "args": {"extend_by": "PT1H"}, "rate": 8}"#;
    let id = center.begin(body).await;
    center.until(id, |job| done(job) > 0).await;
    center.engine.restart_part("bulk").unwrap();
    let job = center.ended_in_time(id).await;
    assert_eq!(done(&job), 40);
    for (n, id) in ids.iter().enumerate() {
        let task = center.task(*id).await;
        assert_eq!(task.due.at, START.after(DurationMs::secs(7200 + n as u64)));
        assert_eq!(task.changes.total, 2, "created and moved");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_letters_are_replayed_each_once_and_others_of_the_topic_are_left_alone() {
    let center = Center::start().await;
    let ids = center.tasks("a", 80).await;
    for id in &ids[..60] {
        let error = ErrorNote {
            code: "gone".to_owned(),
            message: String::new(),
        };
        center.event(*id, Event::Fail { error }).await;
    }
    // The key of one is live again.
    let topic = TopicName::parse("a").unwrap();
    let again = NewTask::new(topic.clone()).key("k00003").unwrap();
    let again = again.after(Duration::from_secs(99));
    center.engine.create(again, "test").await.unwrap();
    let id = center
        .begin(r#"{"action": "replay", "filter": {"topic": "a"}, "rate": 100000}"#)
        .await;
    let job = center.ended(id).await;
    let counts = &job.progress.counts;
    assert_eq!((counts.matched, counts.done), (60, 59));
    assert_eq!(counts.refused.get("exists"), Some(&1));
    assert_eq!(center.task(ids[3]).await.state, State::Dead);
    assert_eq!(center.task(ids[4]).await.generation, 2);
    assert_eq!(center.task(ids[70]).await.generation, 1);
    let key = Target::Key(topic, TaskKey::parse("k00004").unwrap());
    assert!(center.engine.get(key).await.unwrap().is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn no_more_than_a_few_jobs_are_under_way_or_kept() {
    let center = Center::start().await;
    let body = r#"{"action": "cancel", "filter": {"topic": "nobody"}}"#;
    let mut first = None;
    for _ in 0..=limits::BULK_ENDED_MAX {
        let id = center.begin(body).await;
        center.ended(id).await;
        first.get_or_insert(id);
        center.clock.advance(DurationMs(1));
    }
    let end = Instant::now() + SOON;
    while center.engine.bulk_job(first.unwrap()).is_ok() {
        assert!(Instant::now() < end, "the oldest is forgotten");
        center.engine.parts.bulk.ring();
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    assert_eq!(center.engine.bulk_jobs().len(), limits::BULK_ENDED_MAX);
    center.tasks("a", 50).await;
    let slow = r#"{"action": "pause", "filter": {"topic": "a"}, "rate": 1}"#;
    for _ in 0..limits::BULK_LIVE_MAX {
        center.begin(slow).await;
    }
    let ask = BulkAsk::read(
        slow.as_bytes(),
        &InLimits {
            max_delay: DurationMs(1),
            now: START,
        },
    );
    let refused = center.engine.begin_bulk(ask.unwrap(), None, "test").await;
    assert!(matches!(
        refused,
        Err(EngineError::Bulk(BulkRefused::TooMany))
    ));
}

//! Parts that fail and hang: noticed, replaced, and without any effect once they are. A process of its own: what is set
//! here hits every engine in it, so the tests take turns.

#![cfg(feature = "failpoints")]

#[expect(dead_code, reason = "each file of tests uses its part")]
mod support;

use std::collections::HashMap;
use std::path::Path;
use std::time::Duration;

use duetime::failpoints::set;
use duetime::ids::ShardId;
use duetime::shard::shelf::ShelfOptions;
use duetime::shard::table::TableOptions;
use duetime::store::local::LocalOptions;
use duetime::supervision::{Bounds, ChildStatus, Supervision};
use duetime::{
    Action, Backoff, Created, Duetime, DurationMs, EngineError, HandlerTask, HttpAction, NewTask,
    RetryPolicy, State, Target, Task, TaskId, TopicName,
};
use serde_json::json;
use tokio::sync::{Mutex, MutexGuard};
use tokio::task::JoinHandle;

use support::receiver::{Receiver, assert_sound, status};
use support::service::Service;
use support::{LATE_MS_MAX, SOON};

/// A part that is silent for so long hangs: shorter than by default, and longer than a busy machine takes.
const SILENCE: DurationMs = DurationMs(1_500);
/// So does a wait for the disk.
const DISK_WAIT: DurationMs = DurationMs(1_000);
/// From a fault to its being noticed and mended: both of them, and what a busy machine adds. Counted in looks, so that
/// time in which the whole process stands still is nobody's fault.
const LOOKS_MAX: usize = 4_000;
const LOOK_EVERY: Duration = Duration::from_millis(5);
const HIT: ShardId = ShardId(0);

/// One engine at a time.
async fn my_turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::const_new(());
    TURN.lock().await
}

fn at(point: &str, action: &str) {
    set(point, action).unwrap_or_else(|why| panic!("{why}"));
}

type Create = JoinHandle<Result<Created, EngineError>>;

/// An engine of three shards, and somebody who is called.
struct House {
    engine: Duetime,
    receiver: Receiver,
    url: String,
    /// Tasks that were acknowledged.
    made: Vec<TaskId>,
}

impl House {
    async fn on(data: &Path) -> Self {
        let supervision = Supervision {
            bounds: Some(Bounds {
                late: DurationMs(SILENCE.0 / 2),
                stuck: SILENCE,
                wait_max: DISK_WAIT,
            }),
            held_max: 1_000,
            ..Supervision::default()
        };
        let engine = Duetime::builder()
            .data_dir(data)
            .shards(3)
            .table(TableOptions {
                shelf: ShelfOptions {
                    fold_bytes: 8 * 1024,
                },
                ..TableOptions::default()
            })
            .store(LocalOptions {
                take_over: Duration::from_millis(300),
                ..LocalOptions::default()
            })
            .supervision(supervision)
            .handler("works", |_: HandlerTask| async { Ok(None) });
        let receiver = Receiver::start();
        let url = receiver.on("/push", &[status(200)]);
        Self {
            engine: engine.start().await.expect("it starts"),
            receiver,
            url,
            made: Vec::new(),
        }
    }

    fn child(&self, name: &str) -> ChildStatus {
        let mut children = self.engine.children().into_iter();
        let found = children.find(|child| child.name == name);
        found.expect("a part of this name")
    }

    /// Waits until a part is as it should be.
    async fn wait_for(
        &self,
        what: &str,
        name: &str,
        wanted: impl Fn(&ChildStatus) -> bool,
    ) -> ChildStatus {
        for _ in 0..LOOKS_MAX {
            let child = self.child(name);
            if wanted(&child) {
                return child;
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
        panic!("{what}: in the end {:?}", self.child(name));
    }

    fn handled(&self, after: Duration) -> NewTask {
        let action = Action::Handler {
            name: "works".to_owned(),
        };
        new_task(action).after(after)
    }

    fn pushed(&self) -> NewTask {
        new_task(Action::Http(HttpAction {
            method: "POST".to_owned(),
            url: self.url.clone(),
            headers: Vec::new(),
            expect_status: Vec::new(),
            success_if: None,
        }))
    }

    /// Hands in a create; it may be answered late, or never.
    fn hand_in(&self, new: NewTask) -> Create {
        let engine = self.engine.clone();
        tokio::spawn(async move { engine.create(new, "test").await })
    }

    /// Hands in some of each kind, over all shards.
    fn hand_in_some(&self) -> Vec<Create> {
        let kinds = (0..12_u64).map(|n| match n % 4 {
            0 => self.pushed(),
            n => self.handled(Duration::from_millis(n * 100)),
        });
        kinds.map(|new| self.hand_in(new)).collect()
    }

    /// What was acknowledged is remembered; nobody waits for ever for an answer.
    async fn take_answers(&mut self, creates: Vec<Create>) {
        for create in creates {
            match create.await.expect("no panic") {
                Ok(Created::New(view)) => self.made.push(view.task.id),
                Err(EngineError::NoAnswer(_)) => {}
                other => panic!("{other:?}"),
            }
        }
    }

    /// Waits until `enough`, while some of each kind are handed in again and again.
    async fn under_traffic(&mut self, what: &str, enough: impl Fn(&Self) -> Option<()>) {
        let mut creates = Vec::new();
        for look in 0..LOOKS_MAX {
            if look % 50 == 0 {
                creates.extend(self.hand_in_some());
            }
            if enough(self).is_some() {
                return self.take_answers(creates).await;
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
        panic!("{what}: in the end {:?}", self.engine.children());
    }

    async fn look(&self, id: TaskId) -> Option<Task> {
        match self.engine.get(Target::Id(id)).await {
            Ok(view) => Some(Task::clone(
                &view.expect("what was acknowledged is there").task,
            )),
            Err(EngineError::NoAnswer(_)) => None,
            Err(other) => panic!("{other}"),
        }
    }

    /// All that was acknowledged is done, once.
    async fn all_succeed(&self, what: &str) {
        for id in &self.made {
            let mut task = None;
            for _ in 0..LOOKS_MAX {
                task = self.look(*id).await;
                if task.as_ref().map(|task| task.state) == Some(State::Succeeded) {
                    break;
                }
                tokio::time::sleep(LOOK_EVERY).await;
            }
            let state = task.as_ref().map(|task| task.state);
            assert_eq!(state, Some(State::Succeeded), "{what}: {task:?}");
            let task = self.look(*id).await.expect("it is up");
            let attempts = task.attempts_log.kept.iter();
            let successes = attempts.filter(|attempt| attempt.outcome == "succeeded");
            assert_eq!(successes.count(), 1, "{what}: {task:?}");
        }
        assert_sound(&self.receiver.hits("/push"), &HashMap::new());
    }

    async fn no_zombies(&self, name: &str) {
        self.wait_for("its zombies end", name, |child| child.quarantined == 0)
            .await;
    }
}

fn new_task(action: Action) -> NewTask {
    NewTask::new(TopicName::parse("supervised").expect("a name"))
        .action(action)
        .retry(RetryPolicy {
            backoff: Backoff::Fixed(DurationMs(50)),
            max_attempts: 20,
            ..RetryPolicy::default()
        })
}

// ---------------------------------------------------------------- a shard that hangs

#[tokio::test(flavor = "multi_thread")]
async fn a_shard_whose_thread_hangs_is_replaced_and_when_it_wakes_nothing_it_does_counts() {
    let _turn = my_turn().await;
    let data = tempfile::tempdir().expect("a directory");
    let mut house = House::on(data.path()).await;
    // In the sync; and before the frame is written, which it then writes past its successor's seal.
    for point in ["journal::written@journal-00", "journal::write@journal-00"] {
        let (before, refused) = (
            house.child("shard-00"),
            house.engine.zombie_writes_refused()[0],
        );
        let epoch = house.engine.shards().await[0].epoch;
        at(point, "1*pause");
        let creates = house.hand_in_some();
        let child = house
            .wait_for(point, "shard-00", |child| {
                child.is_running() && child.generation > before.generation
            })
            .await;
        assert_eq!(child.restarts, before.restarts + 1, "{point}");
        assert_eq!(child.quarantined, 1, "{point}");
        let fault = child.last_fault.expect("it is told");
        assert!(fault.contains("journal-00 was silent"), "{fault}");
        // Whoever waited for the one that hung was told; and its successor serves.
        house.take_answers(creates).await;
        let creates = house.hand_in_some();
        house.take_answers(creates).await;
        house.all_succeed(point).await;
        let counted = house.engine.zombie_writes_refused()[0];
        assert_eq!(counted, refused, "it sleeps");
        at(point, "off");
        house.no_zombies("shard-00").await;
        let counted = house.engine.zombie_writes_refused()[0];
        assert_eq!(counted, refused + 1, "{point}");
        let child = house.child("shard-00");
        assert_eq!(child.restarts, before.restarts + 1, "{point}");
        assert!(house.engine.shards().await[0].epoch > epoch);
    }
    // The other shards have noticed nothing.
    for id in &house.made {
        let view = house.engine.get(Target::Id(*id)).await;
        let view = view.expect("an answer").expect("it is there");
        if view.shard != HIT {
            let late = view.task.lateness_ms.unwrap_or_default();
            assert!(late <= LATE_MS_MAX, "{late} ms late");
        }
    }
    for name in ["shard-01", "shard-02", "scheduler", "http-push", "registry"] {
        assert_eq!(house.child(name).restarts, 0, "{name}");
    }
    house.engine.shutdown().await;
    let house = House {
        made: house.made.clone(),
        ..House::on(data.path()).await
    };
    house.all_succeed("after a start").await;
    house.engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shard_that_hangs_in_its_database_is_down_until_it_wakes_and_the_others_go_on() {
    let _turn = my_turn().await;
    let data = tempfile::tempdir().expect("a directory");
    let mut house = House::on(data.path()).await;
    let point = "fold::chunk@journal-00";
    at(point, "1*pause");
    let mut creates = Vec::new();
    let large = |house: &House| {
        let pad = json!({"pad": "x".repeat(2_000)});
        house.hand_in(house.handled(Duration::from_millis(200)).payload(&pad))
    };
    creates.extend((0..60).map(|_| large(&house)));
    let held = |child: &ChildStatus| {
        let fault = child.last_fault.as_deref().unwrap_or_default();
        !child.is_running() && fault.contains("still holds it")
    };
    let child = house.wait_for(point, "shard-00", held).await;
    assert_eq!(child.quarantined, 1);
    assert!(!house.engine.readiness().is_ready());
    house.take_answers(creates).await;
    let others = house.made.len();
    let creates = house.hand_in_some();
    house.take_answers(creates).await;
    assert!(house.made.len() > others, "the other shards take tasks");
    at(point, "off");
    house
        .wait_for("it wakes", "shard-00", ChildStatus::is_running)
        .await;
    house.no_zombies("shard-00").await;
    assert_eq!(house.engine.zombie_writes_refused()[0], 1);
    let creates = house.hand_in_some();
    house.take_answers(creates).await;
    house.all_succeed("in the end").await;
    house.engine.shutdown().await;
    support::assert_no_blobs(data.path());
}

#[test]
fn a_shard_that_hangs_in_its_database_for_good_ends_the_process_and_the_next_start_is_clean() {
    let mut service = Service::with(&[
        ("FAILPOINTS", "fold::chunk@journal-00=1*pause"),
        ("DUETIME_STORE__CHECKPOINT_BYTES", "64KiB"),
        ("DUETIME_SUPERVISION__SILENCE", "PT1S"),
        ("DUETIME_SUPERVISION__DISK_WAIT", "PT1S"),
        ("DUETIME_SHARDS__COUNT", "2"),
    ]);
    let mut made = Vec::new();
    let pad = "x".repeat(8_000);
    let is_hung = |service: &Service| {
        let actors = service.get("/v1/actors").must(200);
        let items = actors["items"].as_array().cloned().unwrap_or_default();
        let mut hit = items.into_iter().filter(|item| item["name"] == "shard-00");
        hit.next().is_some_and(|item| item["quarantined"] == 1)
    };
    support::until("it is in quarantine", SOON, || {
        if made.len() < 200 {
            let body = json!({"topic": "t", "delay": "P1D", "payload": {"pad": pad},
                              "action": {"none": {}}});
            let reply = service.post("/v1/tasks", &body);
            match reply.status {
                201 => made.push(reply.json()["id"].clone()),
                status => assert_eq!(status, 503, "{}", reply.text()),
            }
        }
        is_hung(&service).then_some(())
    });
    let metrics = service.get("/metrics").text();
    let gauge = "duetime_part_quarantined{name=\"shard-00\"} 1";
    assert!(metrics.contains(gauge), "{metrics}");
    assert_eq!(service.get("/readyz").status, 503);
    let status = support::until("it leaves", Duration::from_secs(40), || service.is_gone());
    assert_eq!(status.code(), Some(75), "{}", service.log());
    assert!(service.log().contains("start the service again"));
    service.set("FAILPOINTS", "");
    service.start_again();
    for id in &made {
        assert_eq!(service.task(id)["state"], "pending");
    }
    let (status, _) = service.terminate();
    assert_eq!(status.code(), Some(0));
}

// ---------------------------------------------------------------- the matrix

/// What is done at a point, once.
const FAULTS: [(&str, &str); 5] = [
    ("panic", "1*panic"),
    ("error", "1*return(error)"),
    ("block", "1*pause"),
    ("livelock", "1*return(livelock)"),
    ("slow", "1*sleep(300)"),
];

/// Parts, the prefix of their points, and the threads that are hit.
const PARTS: [(&str, &str, &str, &str); 3] = [
    ("shard-00", "shard", "@shard-00", "@journal-00"),
    ("scheduler", "scheduler", "", ""),
    ("http-push", "push", "", ""),
];

/// How often a part is started anew for a fault at that point, beyond what was asked for.
fn restarts_for(part: &str, place: &str, fault: &str) -> u64 {
    match (part, place, fault) {
        // It is slow, and that is all.
        (_, _, "slow") => 0,
        // A push runs beside its actor: it ends its attempt, or holds it up, and nobody else.
        ("http-push", "future", _) => 0,
        // It was about to end anyway: only that it does is left to be seen to.
        (_, "stopped", _) => 0,
        _ => 1,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_fault_in_each_place_of_each_part_is_noticed_and_followed_by_one_restart() {
    let _turn = my_turn().await;
    let data = tempfile::tempdir().expect("a directory");
    let mut house = House::on(data.path()).await;
    for place in ["started", "handler", "future", "stopped"] {
        for (fault, action) in FAULTS {
            let what = format!("{fault} in {place}");
            let asked = u64::from(matches!(place, "started" | "stopped"));
            let epoch = house.engine.shards().await[0].epoch;
            let points: Vec<_> = PARTS
                .iter()
                .map(|(part, prefix, own, beside)| {
                    let thread = if place == "future" { beside } else { own };
                    let wanted = asked + restarts_for(part, place, fault);
                    let wanted = house.child(part).restarts + wanted;
                    (*part, format!("{prefix}::{place}{thread}"), wanted)
                })
                .collect();
            for (_, point, _) in &points {
                at(point, action);
            }
            if asked == 1 {
                for (part, ..) in PARTS {
                    house.engine.restart_part(part).expect("it is known");
                }
            }
            house
                .under_traffic(&what, |house| {
                    let through = |(part, _, wanted): &(&str, String, u64)| {
                        let child = house.child(part);
                        child.is_running() && child.restarts >= *wanted
                    };
                    points.iter().all(through).then_some(())
                })
                .await;
            let creates = house.hand_in_some();
            house.take_answers(creates).await;
            for (_, point, _) in &points {
                at(point, "off");
            }
            for (part, point, wanted) in &points {
                house.no_zombies(part).await;
                let child = house.child(part);
                assert!(child.is_running(), "{fault} at {point}: {child:?}");
                assert_eq!(child.restarts, *wanted, "{fault} at {point}: {child:?}");
            }
            let later = house.engine.shards().await[0].epoch;
            let shard = asked + restarts_for("shard-00", place, fault);
            assert_eq!(later.0, epoch.0 + shard, "{what}");
            house.all_succeed(&what).await;
            house.made.clear();
        }
    }
    for name in ["shard-01", "shard-02", "registry"] {
        assert_eq!(house.child(name).restarts, 0, "{name}");
    }
    house.engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watchdog_that_hangs_or_dies_makes_readiness_red_and_all_else_goes_on() {
    let _turn = my_turn().await;
    let data = tempfile::tempdir().expect("a directory");
    let mut house = House::on(data.path()).await;
    let is_silent = |house: &House| {
        let problems = house.engine.readiness().problems;
        problems.iter().any(|problem| problem.contains("watchdog"))
    };
    let silence = async |house: &House, wanted: bool| {
        for _ in 0..LOOKS_MAX {
            if is_silent(house) == wanted {
                return;
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
        panic!("silent in the end: {}", !wanted);
    };
    // What `started` and `stopped` could spoil is the process's own start and end.
    for (place, asked) in [("handler", 1), ("future", 0)] {
        for (fault, action) in FAULTS {
            // From a panic it does not come back: last of all.
            if fault == "panic" {
                continue;
            }
            let point = format!("watchdog::{place}");
            let wanted = house.child("shard-01").restarts + asked;
            at(&point, action);
            if asked == 1 {
                house.engine.restart_part("shard-01").expect("it is known");
            }
            let hangs = matches!(fault, "block" | "livelock");
            if hangs {
                silence(&house, true).await;
            }
            let creates = house.hand_in_some();
            house.take_answers(creates).await;
            if asked == 0 {
                house.all_succeed(&point).await;
            }
            at(&point, "off");
            silence(&house, false).await;
            let through = |child: &ChildStatus| child.is_running() && child.restarts == wanted;
            house.wait_for(&point, "shard-01", through).await;
            house.all_succeed(&point).await;
        }
    }
    at("watchdog::future", "1*panic");
    silence(&house, true).await;
    let creates = house.hand_in_some();
    house.take_answers(creates).await;
    house.all_succeed("without a watchdog").await;
    for name in ["shard-00", "shard-02", "scheduler", "http-push", "registry"] {
        assert_eq!(house.child(name).restarts, 0, "{name}");
    }
    house.engine.shutdown().await;
}

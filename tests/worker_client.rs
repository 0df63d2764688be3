//! The library's own worker against the real service: nothing is lost, nothing runs twice, and it learns in time what it
//! should no longer do.

#[expect(dead_code, reason = "each file of tests uses its part")]
mod support;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use duetime::client::{Client, Cut, LeasedTask, NewWorker, NotDone, Worker};
use duetime::{NewTask, OnExisting, State, Target, TaskKey, TopicName};
use futures_util::FutureExt;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{Notify, Semaphore};

use support::service::{Service, Shared};
use support::{SOON, fixed, until};

static SHARED: Shared = Shared::new();

/// Longest wait for many tasks, or over a restart.
const LATER: Duration = Duration::from_secs(60);

fn runtime() -> Runtime {
    let runtime = Builder::new_multi_thread()
        .worker_threads(4)
        .enable_all()
        .build();
    runtime.expect("threads")
}

fn client(api: &Service) -> Client {
    Client::new(&format!("http://{}", api.address)).expect("an address")
}

fn topic(name: &str) -> TopicName {
    TopicName::parse(name).expect("a name")
}

/// One that is soon stopped: it does not wait long at the service.
fn worker(api: &Service, name: &str) -> NewWorker {
    let worker = client(api).worker([topic(name)]);
    worker.poll(Duration::from_millis(500))
}

/// Creates so many tasks; their ids.
fn tasks(api: &Service, topic: &str, count: usize) -> Vec<Value> {
    let task = |n| json!({"topic": topic, "key": format!("k{n}"), "retry": fixed(0, 50)});
    let items: Vec<Value> = (0..count).map(task).collect();
    let made = api.made_many(&items);
    made.iter().map(|task| task["id"].clone()).collect()
}

/// How often the work of each key was begun.
#[derive(Clone, Default)]
struct Runs(Arc<Mutex<HashMap<String, usize>>>);

impl Runs {
    fn begun(&self, task: &LeasedTask) {
        let key = task.key.as_ref().expect("a key").to_string();
        *self.0.lock().entry(key).or_default() += 1;
    }

    fn count(&self) -> usize {
        self.0.lock().values().sum()
    }

    fn twice(&self) -> Vec<String> {
        let runs = self.0.lock();
        let twice = runs.iter().filter(|(_, count)| **count > 1);
        twice.map(|(key, _)| key.clone()).collect()
    }
}

fn all_succeeded(api: &Service, ids: &[Value]) {
    for id in ids {
        let task = api.wait_state(id, "succeeded");
        assert_eq!(task["attempts"], 1, "{task}");
    }
}

#[test]
fn a_worker_does_two_hundred_tasks_eight_at_a_time_and_each_once() {
    let (api, runtime) = (SHARED.service(), runtime());
    let _on = runtime.enter();
    let ids = tasks(&api, "many", 200);
    let (runs, now, most) = (
        Runs::default(),
        Arc::new(AtomicUsize::new(0)),
        Arc::new(AtomicUsize::new(0)),
    );
    let (all_in, eight) = (Arc::new(Notify::new()), Arc::new(Semaphore::new(0)));
    let work = {
        let (runs, now, most, eight) = (runs.clone(), now.clone(), most.clone(), eight.clone());
        let all_in = all_in.clone();
        move |task: LeasedTask| {
            let (runs, now, most, eight) = (runs.clone(), now.clone(), most.clone(), eight.clone());
            let all_in = all_in.clone();
            async move {
                runs.begun(&task);
                let running = now.fetch_add(1, Ordering::SeqCst) + 1;
                most.fetch_max(running, Ordering::SeqCst);
                if running == 8 {
                    all_in.notify_one();
                }
                // Nobody leaves before eight have come once.
                let _through = eight.acquire().await.expect("it stays open");
                now.fetch_sub(1, Ordering::SeqCst);
                Ok(json!({"key": task.key.as_ref().map(|key| key.to_string())}))
            }
        }
    };
    let worker = worker(&api, "many").at_once(8).start(work);
    runtime
        .block_on(async { tokio::time::timeout(SOON, all_in.notified()).await })
        .expect("eight run at a time");
    eight.add_permits(200);
    until("all are done", LATER, || {
        (worker.counts().completed == 200).then_some(())
    });
    let counts = runtime.block_on(worker.stop(SOON));
    assert_eq!(
        (counts.leased, counts.lost, counts.untold),
        (200, 0, 0),
        "{counts:?}"
    );
    assert_eq!(most.load(Ordering::SeqCst), 8);
    assert_eq!((runs.count(), runs.twice()), (200, vec![]));
    all_succeeded(&api, &ids);
    assert_eq!(api.task(&ids[7])["result"], json!({"key": "k7"}));
}

#[test]
fn what_the_work_says_becomes_of_its_task() {
    let (api, runtime) = (SHARED.service(), runtime());
    let _on = runtime.enter();
    let ids = tasks(&api, "said", 4);
    let worker = worker(&api, "said")
        .at_once(4)
        .start(|task: LeasedTask| async move {
            match task.key.as_ref().map(TaskKey::as_str) {
                Some("k0") => Err(NotDone::for_good("gone", "no such order")),
                Some("k1") => {
                    Err(NotDone::failed("busy", "later").not_before(Duration::from_secs(7200)))
                }
                Some("k2") => Err(NotDone::snooze(Duration::from_secs(3600))),
                _ if task.attempt == 1 => panic!("the shop burns"),
                _ => Ok(task.attempt),
            }
        });
    let dead = api.wait_state(&ids[0], "dead");
    assert_eq!(dead["last_outcome"]["error"]["code"], "gone");
    let failed = api.wait_state(&ids[1], "retrying");
    assert_eq!(
        (&failed["waiting_for"], &failed["attempts"]),
        (&json!("retry"), &json!(1))
    );
    let snoozed = api.wait_state(&ids[2], "retrying");
    assert_eq!(
        (&snoozed["waiting_for"], &snoozed["attempts"]),
        (&json!("snooze"), &json!(0))
    );
    assert_eq!(api.wait_state(&ids[3], "succeeded")["result"], 2);
    let first = api.attempts(&ids[3]).remove(0);
    assert_eq!(
        first["error"],
        json!({"code": "panic", "message": "the shop burns"})
    );
    runtime.block_on(worker.stop(SOON));
}

/// Starts a worker whose work waits to be told to stop: tells that it was begun, and then why it should stop.
fn told_to_stop(worker: NewWorker) -> (Worker, Receiver<Option<Cut>>) {
    let (tell, told) = channel();
    let work = move |task: LeasedTask| {
        let tell = tell.clone();
        let _ = tell.send(None);
        async move {
            task.cancel.cancelled().await;
            let _ = tell.send(task.cut());
            Err::<(), _>(NotDone::failed("cut_short", "told to stop"))
        }
    };
    (worker.start(work), told)
}

#[test]
fn the_token_fires_when_its_task_is_cancelled() {
    let (api, runtime) = (SHARED.service(), runtime());
    let _on = runtime.enter();
    let id = tasks(&api, "called-off", 1).remove(0);
    let worker = worker(&api, "called-off").lease(Duration::from_millis(600));
    let (worker, told) = told_to_stop(worker);
    told.recv_timeout(SOON).expect("it is begun");
    assert_eq!(api.verb("cancel", &id, &json!({})).status, 202);
    let cut = told.recv_timeout(SOON).expect("it is told to stop");
    assert_eq!(cut, Some(Cut::TaskCancelled));
    let counts = runtime.block_on(worker.stop(SOON));
    assert_eq!((counts.failed, counts.lost), (0, 0), "nobody asks any more");
    assert_eq!(api.task(&id)["state"], "cancelled");
}

#[test]
fn a_heartbeat_finds_that_the_attempt_has_ended_otherwise() {
    let (api, runtime) = (SHARED.service(), runtime());
    let _on = runtime.enter();
    let id = tasks(&api, "ended", 1).remove(0);
    let worker = worker(&api, "ended").lease(Duration::from_millis(600));
    let (worker, told) = told_to_stop(worker);
    told.recv_timeout(SOON).expect("it is begun");
    api.verb("complete", &id, &json!({"result": "by hand"}))
        .must(200);
    let cut = told.recv_timeout(SOON).expect("it is told to stop");
    assert_eq!(cut, Some(Cut::LeaseLost));
    runtime.block_on(worker.stop(SOON));
    assert_eq!(api.task(&id)["result"], "by hand");
}

#[test]
fn a_worker_that_was_stuck_loses_its_lease_and_its_late_answer_changes_nothing() {
    let api = SHARED.service();
    // One thread: work that blocks it keeps the heartbeats back.
    let runtime = Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("a thread");
    let _on = runtime.enter();
    let id = tasks(&api, "stuck", 1).remove(0);
    let (seen, stuck) = (api.clone(), id.clone());
    let worker = worker(&api, "stuck")
        .lease(Duration::from_millis(300))
        .start(move |task: LeasedTask| {
            let (api, id) = (seen.clone(), stuck.clone());
            async move {
                if task.attempt > 1 {
                    return Ok("second");
                }
                until("the lease is over", SOON, || {
                    let ended = api.attempts(&id);
                    (ended[0]["outcome"] == "lease_expired").then_some(())
                });
                Ok("first")
            }
        });
    let done = api.wait_state(&id, "succeeded");
    assert_eq!(
        (&done["result"], &done["attempts"]),
        (&json!("second"), &json!(2))
    );
    let counts = runtime.block_on(worker.stop(SOON));
    assert_eq!((counts.completed, counts.lost), (1, 1));
    let id = id.as_str().expect("an id");
    let late = api.get(&format!("/v1/tasks/{id}/late-answers")).must(200);
    assert_eq!(late["items"][0]["result"], "first");
}

#[test]
fn a_stop_waits_for_what_runs_and_loses_nothing() {
    let (api, runtime) = (SHARED.service(), runtime());
    let _on = runtime.enter();
    let ids = tasks(&api, "stopped", 40);
    let (runs, gate) = (Runs::default(), Arc::new(Semaphore::new(0)));
    let (tell, begun) = channel();
    let work = {
        let (runs, gate) = (runs.clone(), gate.clone());
        move |task: LeasedTask| {
            let (gate, tell) = (gate.clone(), tell.clone());
            runs.begun(&task);
            let _ = tell.send(());
            async move {
                let _through = gate.acquire().await;
                Ok(())
            }
        }
    };
    let first = worker(&api, "stopped").at_once(4).start(work.clone());
    for _ in 0..4 {
        begun.recv_timeout(SOON).expect("four are begun");
    }
    let mut stopping = Box::pin(first.stop(SOON));
    assert!((&mut stopping).now_or_never().is_none(), "it waits");
    gate.add_permits(100);
    let counts = runtime.block_on(stopping);
    assert_eq!((counts.leased, counts.completed), (4, 4));
    let states = api.list("topic=stopped&limit=100");
    let running = states.iter().filter(|task| task["state"] == "running");
    assert_eq!(running.count(), 0, "nothing is left leased");

    let second = worker(&api, "stopped").at_once(4).start(work);
    all_succeeded(&api, &ids);
    runtime.block_on(second.stop(SOON));
    assert_eq!((runs.count(), runs.twice()), (40, vec![]));
}

#[test]
fn what_still_comes_after_a_stop_is_given_back_and_has_used_no_attempt() {
    let (api, runtime) = (Service::start(), runtime());
    let _on = runtime.enter();
    let first = worker(&api, "crossing")
        .poll(Duration::from_secs(30))
        .start(|_| async { Ok("too late") });
    until("it waits at the service", SOON, || {
        let stats = api.get("/v1/stats").must(200);
        (stats["totals"]["waiting_workers"] == 1).then_some(())
    });
    let mut stopping = Box::pin(first.stop(SOON));
    assert!(
        (&mut stopping).now_or_never().is_none(),
        "a task may be on its way"
    );
    let id = tasks(&api, "crossing", 1).remove(0);
    let counts = runtime.block_on(stopping);
    assert_eq!((counts.leased, counts.snoozed), (1, 1));
    assert_eq!(api.task(&id)["attempts"], 0);
    let second = worker(&api, "crossing").start(|_| async { Ok("by the next") });
    let done = api.wait_state(&id, "succeeded");
    assert_eq!(
        (&done["result"], &done["attempts"]),
        (&json!("by the next"), &json!(1))
    );
    runtime.block_on(second.stop(SOON));
}

#[test]
fn what_does_not_end_in_the_grace_is_given_back_unless_it_must_not_run_twice() {
    let (api, runtime) = (SHARED.service(), runtime());
    let _on = runtime.enter();
    let once = json!({"topic": "hangs", "key": "once", "delivery": "at_most_once"});
    let (id, once) = (tasks(&api, "hangs", 1).remove(0), api.made(&once));
    let (tell, told) = channel();
    let hangs = move |task: LeasedTask| {
        let tell = tell.clone();
        let _ = tell.send(None);
        async move {
            task.cancel.cancelled().await;
            let _ = tell.send(task.cut());
            std::future::pending::<Result<(), NotDone>>().await
        }
    };
    let first = worker(&api, "hangs")
        .at_once(2)
        .wind_down(Duration::from_millis(200))
        .start(hangs);
    for _ in 0..2 {
        told.recv_timeout(SOON).expect("both are begun");
    }
    let begun = Instant::now();
    let counts = runtime.block_on(first.stop(Duration::ZERO));
    assert!(
        begun.elapsed() < Duration::from_secs(8),
        "{:?}",
        begun.elapsed()
    );
    assert_eq!(told.recv_timeout(SOON), Ok(Some(Cut::WorkerStops)));
    assert_eq!((counts.leased, counts.snoozed), (2, 1));
    let back = api.task(&id);
    assert_eq!(
        (&back["state"], &back["waiting_for"], &back["attempts"]),
        (&json!("retrying"), &json!("snooze"), &json!(0))
    );
    assert_eq!(
        api.task(&once["id"])["state"],
        "running",
        "nobody knows how far it got"
    );

    let second = worker(&api, "hangs").start(|_| async { Ok("by the next") });
    assert_eq!(api.wait_state(&id, "succeeded")["result"], "by the next");
    runtime.block_on(second.stop(SOON));
}

#[test]
fn a_service_that_is_killed_and_started_again_is_worked_on_as_if_nothing_had_been() {
    let mut api = Service::start();
    let runtime = runtime();
    let _on = runtime.enter();
    let ids = tasks(&api, "restart", 100);
    let (runs, gate) = (Runs::default(), Arc::new(Semaphore::new(20)));
    let work = {
        let (runs, gate) = (runs.clone(), gate.clone());
        move |task: LeasedTask| {
            let gate = gate.clone();
            runs.begun(&task);
            async move {
                gate.acquire().await.expect("it stays open").forget();
                Ok(())
            }
        }
    };
    // Longer than the restart: what is leased stays so.
    let lease = Duration::from_secs(20);
    let worker = worker(&api, "restart").at_once(8).lease(lease).start(work);
    until("some are done and eight are held", SOON, || {
        (worker.counts().completed == 20 && runs.count() == 28).then_some(())
    });
    api.kill();
    // These end while nobody can be told.
    gate.add_permits(4);
    api.start_again();
    gate.add_permits(100);
    until("all are done", LATER, || {
        let told = worker.counts();
        (told.completed + told.lost == 100).then_some(())
    });
    all_succeeded(&api, &ids);
    // Once more, while it waits at the service.
    api.kill_and_start();
    let last = api.made(&json!({"topic": "restart", "key": "last"}));
    api.wait_state(&last["id"], "succeeded");
    let counts = runtime.block_on(worker.stop(SOON));
    assert_eq!(counts.untold, 0, "{counts:?}");
    assert_eq!((runs.count(), runs.twice()), (101, vec![]));
}

#[test]
fn one_task_is_created_once_and_moved_through_its_verbs() {
    let (api, runtime) = (SHARED.service(), runtime());
    let client = client(&api);
    let new = NewTask::new(topic("verbs")).key("one").expect("a key");
    let new = new
        .after(Duration::from_secs(3600))
        .payload(&json!({"n": 1}));
    let target = Target::Key(topic("verbs"), TaskKey::parse("one").expect("a key"));
    runtime.block_on(async {
        let created = client.create(&new).await.expect("it is created");
        assert!(created.is_new && created.task.state == State::Pending);
        let by_id = Target::Id(created.task.id);
        assert!(
            !client.create(&new).await.expect("an answer").is_new,
            "another call"
        );
        let rejected = client
            .create(&new.clone().on_existing(OnExisting::Reject))
            .await;
        assert_eq!(rejected.expect_err("it exists").code(), Some("exists"));
        let other = NewTask::new(topic("verbs")).after(Duration::from_secs(3600));
        let first = client.create_once("mine-1", &other).await.expect("created");
        let again = client.create_once("mine-1", &other).await.expect("created");
        assert_eq!(first.task.id, again.task.id);

        let state = |changed: duetime::client::Changed| changed.task.expect("a task").state;
        let paused = client.pause(&by_id).await.expect("an answer");
        assert_eq!(state(paused), State::Paused);
        assert_eq!(
            state(client.resume(&target).await.expect("an answer")),
            State::Pending
        );
        let moved = client.reschedule(&target, Duration::from_secs(60)).await;
        assert!(moved.expect("an answer").task.expect("a task").due_at < created.task.due_at);
        client.run_now(&target).await.expect("an answer");
        let dead = client
            .fail(&target, "no", "by hand")
            .await
            .expect("an answer");
        assert_eq!(state(dead), State::Dead);
        let seen = client
            .get(&by_id)
            .await
            .expect("an answer")
            .expect("a task");
        let error = seen
            .last_outcome
            .and_then(|last| last.error)
            .expect("a failure");
        assert_eq!(
            (error.code.as_str(), error.message.as_str()),
            ("no", "by hand")
        );
        assert_eq!(
            state(client.replay(&by_id).await.expect("an answer")),
            State::Pending
        );
        let done = client.complete(&by_id, Some(&json!({"by": "hand"}))).await;
        assert_eq!(state(done.expect("an answer")), State::Succeeded);
        let refused = client.replay(&by_id).await.expect_err("it has ended well");
        assert_eq!(refused.code(), Some("illegal_state"));
        let seen = client
            .get(&target)
            .await
            .expect("an answer")
            .expect("a task");
        assert_eq!(seen.result.expect("a result").as_str(), r#"{"by":"hand"}"#);
        assert_eq!(seen.generation, 2);

        let early = TaskKey::parse("early").expect("a key");
        let ahead = client.cancel_ahead(topic("verbs"), early, "paid", Duration::from_secs(60));
        assert_eq!(ahead.await.expect("an answer").task, None);
        let late = NewTask::new(topic("verbs")).key("early").expect("a key");
        let created = client.create(&late).await.expect("an answer");
        assert_eq!(created.task.state, State::Cancelled);
    });
}

#[test]
fn what_work_says_of_its_progress_is_shown_and_given_to_the_next_attempt() {
    let (api, runtime) = (SHARED.service(), runtime());
    let _on = runtime.enter();
    let id = tasks(&api, "progress", 1).remove(0);
    let go_on = Arc::new(Semaphore::new(0));
    let work = {
        let go_on = Arc::clone(&go_on);
        move |task: LeasedTask| {
            let go_on = Arc::clone(&go_on);
            async move {
                if let Some(page) = task.checkpoint_as::<u32>()? {
                    return Ok(json!({"began_at": page}));
                }
                for page in 1..=7 {
                    task.progress(&page)?;
                }
                let _ = go_on.acquire().await;
                task.progress(&8)?;
                Err(NotDone::failed("busy", "not today"))
            }
        }
    };
    let worker = worker(&api, "progress").start(work);
    until("it is shown", SOON, || {
        (api.task(&id)["checkpoint"] == 7).then_some(())
    });
    go_on.add_permits(1);
    let done = api.wait_state(&id, "succeeded");
    assert_eq!(
        (&done["result"], &done["attempts"]),
        (&json!({"began_at": 8}), &json!(2))
    );
    runtime.block_on(worker.stop(SOON));
}

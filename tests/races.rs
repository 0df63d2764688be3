//! Several ends of one task at the same instant, on a whole engine with its threads: of ten thousand each time, none ends
//! twice and none is left over.
//!
//! Whoever is told that it was them is the one by whom the task has ended; all others are told that it was not. The same is
//! tried inside a shard, one step after the other, in `shard/core/tests/races.rs`.
#![expect(clippy::print_stdout, reason = "figures are for whoever looks")]

#[expect(dead_code, reason = "each file of tests uses its part")]
mod support;

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use actix_web::{App, HttpResponse, HttpServer, web};
use bytes::Bytes;
use futures_util::future::join_all;
use serde_json::{Value, json};
use tempfile::TempDir;

use duetime::task::Outcome;
use duetime::{
    Action, BatchOp, Builder, Created, Duetime, DurationMs, EngineError, Event, HttpAction,
    LeaseAsk, NewTask, OpDone, Poll, Shown, State, Target, Task, TaskId, TopicName, VerbDone,
    Wants,
};
use support::engine::fixed;
use support::{Random, SOON};

const TRIALS: usize = 10_000;
/// So many are asked for at a time.
const AT_A_TIME: usize = 500;

async fn engine(with: impl FnOnce(Builder) -> Builder) -> (TempDir, Duetime) {
    let data = tempfile::tempdir().expect("a directory");
    let builder = with(Duetime::builder().data_dir(data.path()));
    (data, builder.start().await.expect("it starts"))
}

fn new_task() -> NewTask {
    NewTask::new(TopicName::parse("race").expect("a name")).retry(fixed(1, 1))
}

/// Creates a task for each trial.
async fn made(engine: &Duetime, new: impl Fn(usize) -> NewTask + Send) -> Vec<TaskId> {
    let mut ids = Vec::with_capacity(TRIALS);
    for first in (0..TRIALS).step_by(AT_A_TIME) {
        let ops = (first..first + AT_A_TIME).map(|n| BatchOp::Create(Box::new(new(n))));
        let ops: Vec<_> = ops.collect();
        for done in engine.batch(ops, None, Wants::Whole, "test").await {
            let Ok(OpDone::Created(Created::New(Shown::Whole(view)))) = done else {
                panic!("{done:?}")
            };
            ids.push(view.task.id);
        }
    }
    ids
}

/// All tasks once each has ended.
async fn ended(engine: &Duetime, ids: &[TaskId]) -> Vec<Task> {
    let end = Instant::now() + 3 * SOON;
    let mut tasks = Vec::with_capacity(ids.len());
    for ids in ids.chunks(AT_A_TIME) {
        let looked = ids.iter().map(|id| async move {
            loop {
                let view = engine.get(Target::Id(*id)).await.expect("an answer");
                let task = Task::clone(&view.expect("it is there").task);
                if task.state.is_ended() {
                    return task;
                }
                assert!(Instant::now() < end, "{id} is still {}", task.state);
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        });
        tasks.extend(join_all(looked).await);
    }
    tasks
}

/// What must be true of each task whatever has ended it: it has ended once, and nothing is out.
fn assert_ended_once(task: &Task) {
    let ends = task
        .changes
        .kept
        .iter()
        .filter(|change| change.to.is_ended());
    assert_eq!(ends.count(), 1, "{task:#?}");
    assert!(task.live.is_none() && task.ended_at.is_some(), "{task:#?}");
}

/// Somebody who does something at an instant, on whichever thread.
fn at<T: Send + 'static>(
    instant: Instant,
    what: impl Future<Output = T> + Send + 'static,
) -> tokio::task::JoinHandle<T> {
    tokio::spawn(async move {
        tokio::time::sleep_until(instant.into()).await;
        what.await
    })
}

/// Whether it was them; anything but a plain yes or no is a fault.
fn counted<T: std::fmt::Debug>(answer: Result<T, EngineError>) -> bool {
    match answer {
        Ok(_) => true,
        Err(EngineError::Refused(_)) => false,
        Err(other) => panic!("{other}"),
    }
}

/// Whether it was a cancel: of a task that is done already it says that it is done.
fn has_cancelled(answer: Result<VerbDone, EngineError>) -> bool {
    let done = answer.expect("an answer");
    let view = done.view.whole().expect("the whole task");
    view.task.state == State::Cancelled
}

/// Each of them must have happened, else nothing was raced.
fn assert_all_won(wins: &BTreeMap<&str, usize>, names: &[&str]) {
    println!("{wins:?}");
    assert_eq!(wins.values().sum::<usize>(), TRIALS);
    for name in names {
        assert!(
            wins.get(name).is_some_and(|wins| *wins > TRIALS / 1000),
            "{name}: {wins:?}"
        );
    }
}

fn done_by(who: &str) -> Outcome {
    Outcome::Succeeded {
        result: Some(Bytes::from(json!({"by": who}).to_string())),
        result_dropped: false,
    }
}

fn ended_by(task: &Task) -> Option<String> {
    let result: Value = serde_json::from_str(task.result.as_ref()?.as_str()).expect("JSON");
    Some(result["by"].as_str().expect("a name").to_owned())
}

/// Leases all, and gives each to `race` with the instant at which its lease was asked for.
async fn lease_all<T>(
    engine: &Duetime,
    lease: DurationMs,
    mut race: impl FnMut(duetime::Lease, Instant) -> T,
) -> Vec<T> {
    let mut races = Vec::with_capacity(TRIALS);
    while races.len() < TRIALS {
        let ask = LeaseAsk {
            topics: vec![TopicName::parse("race").expect("a name")],
            max: AT_A_TIME,
            lease,
            wait: DurationMs::secs(10),
            worker: "w".to_owned(),
        };
        let asked = Instant::now();
        let leases = engine.lease(ask).await.expect("leases");
        assert!(!leases.is_empty(), "{} were leased", races.len());
        races.extend(leases.into_iter().map(|lease| race(lease, asked)));
    }
    races
}

#[tokio::test(flavor = "multi_thread")]
async fn a_completion_counts_or_the_lease_is_lost_and_never_both_or_neither() {
    const LEASE: DurationMs = DurationMs(300);
    let (_data, engine) = engine(|builder| builder).await;
    let ids = made(&engine, |_| new_task()).await;
    let mut random = Random::new(1);
    let races = lease_all(&engine, LEASE, |lease, asked| {
        // From well before its end to well after it.
        let instant = asked + Duration::from_micros(200_000 + random.below(200_000));
        let (engine, id) = (engine.clone(), lease.view.task.id);
        let finish = Event::Finished {
            token: lease.token,
            outcome: done_by("worker"),
            started_at: None,
        };
        at(instant, async move {
            (
                id,
                counted(engine.finish_attempt(id, finish, "worker w").await),
            )
        })
    });
    let answers = join_all(races.await).await;
    let told: BTreeMap<_, _> = answers
        .into_iter()
        .map(|told| told.expect("no panic"))
        .collect();
    assert_eq!(told.len(), TRIALS, "each was leased once");
    let mut wins = BTreeMap::new();
    for task in ended(&engine, &ids).await {
        assert_ended_once(&task);
        let outcome = task.attempts_log.kept[0].outcome;
        let seen = (task.state, outcome, task.attempts_log.total);
        match told[&task.id] {
            true => assert_eq!(seen, (State::Succeeded, "succeeded", 1)),
            false => assert_eq!(seen, (State::Dead, "lease_expired", 1)),
        }
        *wins.entry(outcome).or_default() += 1;
    }
    assert_all_won(&wins, &["succeeded", "lease_expired"]);
    engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_a_cancel_a_worker_and_somebody_outside_exactly_one_ends_the_task() {
    let (_data, engine) = engine(|builder| builder).await;
    let ids = made(&engine, |_| new_task()).await;
    let mut random = Random::new(2);
    let races = lease_all(&engine, DurationMs::secs(600), |lease, _| {
        let (id, token) = (lease.view.task.id, lease.token);
        let finish = Event::Finished {
            token,
            outcome: done_by("worker"),
            started_at: None,
        };
        let complete = Event::Complete {
            result: Some(json!({"by": "outside"}).to_string().into()),
            token: None,
        };
        let mut soon = || Instant::now() + Duration::from_micros(random.below(2_000));
        let (worker, outside, cancel) = (engine.clone(), engine.clone(), engine.clone());
        let ends = [
            at(soon(), async move {
                counted(worker.finish_attempt(id, finish, "worker w").await)
            }),
            at(soon(), async move {
                counted(outside.verb(Target::Id(id), complete, "test").await)
            }),
            at(soon(), async move {
                has_cancelled(cancel.cancel(Target::Id(id), "no more").await)
            }),
        ];
        async move {
            let told = join_all(ends).await.into_iter();
            (
                id,
                told.map(|told| told.expect("no panic")).collect::<Vec<_>>(),
            )
        }
    });
    let told: BTreeMap<_, _> = join_all(races.await).await.into_iter().collect();
    let mut wins = BTreeMap::new();
    for task in ended(&engine, &ids).await {
        assert_ended_once(&task);
        let by = ended_by(&task);
        let winner = match (task.state, by.as_deref()) {
            (State::Succeeded, Some("worker")) => ("worker", [true, false, false]),
            (State::Succeeded, Some("outside")) => ("outside", [false, true, false]),
            (State::Cancelled, None) => ("cancel", [false, false, true]),
            other => panic!("{other:?}"),
        };
        assert_eq!(told[&task.id], winner.1, "{} of {task:#?}", winner.0);
        *wins.entry(winner.0).or_default() += 1;
    }
    assert_all_won(&wins, &["worker", "outside", "cancel"]);
    engine.shutdown().await;
}

/// How long a poll is asked for.
const ASKED_FOR: DurationMs = DurationMs(80);

/// Somebody who is asked about all tasks: the first question of each is answered after as many milliseconds as its URL
/// says, with yes; the last one at once, as its URL says.
struct Asked {
    address: std::net::SocketAddr,
    server: actix_web::dev::ServerHandle,
}

impl Asked {
    fn start() -> Self {
        let questions: Arc<Vec<AtomicU8>> =
            Arc::new((0..TRIALS).map(|_| AtomicU8::new(0)).collect());
        let answer = move |path: web::Path<(usize, u64, bool)>| {
            let questions = Arc::clone(&questions);
            async move {
                let (n, delay_ms, last) = path.into_inner();
                let (by, done) = match questions[n].fetch_add(1, Ordering::AcqRel) {
                    0 => ("answer", true),
                    _ => ("last answer", last),
                };
                if by == "answer" {
                    tokio::time::sleep(Duration::from_millis(delay_ms)).await;
                }
                HttpResponse::Ok().json(json!({"by": by, "done": done}))
            }
        };
        let (tell, hear) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            actix_web::rt::System::new().block_on(async {
                let app =
                    move || App::new().route("/{n}/{delay}/{last}", web::get().to(answer.clone()));
                let server = HttpServer::new(app)
                    .workers(1)
                    .backlog(4096)
                    .disable_signals();
                let server = server.bind("127.0.0.1:0").expect("a free port");
                let address = server.addrs()[0];
                let server = server.run();
                tell.send((address, server.handle()))
                    .expect("the test waits");
                server.await.expect("it serves");
            });
        });
        let (address, server) = hear.recv_timeout(SOON).expect("it starts");
        Self { address, server }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn of_a_polls_answer_a_callback_and_the_end_of_its_time_exactly_one_ends_the_task() {
    let asked = Asked::start();
    let (_data, engine) = engine(|builder| builder.questions_max(2_048).per_host_max(2_048)).await;
    let mut random = Random::new(3);
    // Around the end of its time, each; some hundred come due at a time.
    let spread = 2 * ASKED_FOR.0;
    let seeds: Vec<_> = (0..TRIALS)
        .map(|_| {
            (
                random.below(spread),
                random.below(spread),
                random.below(2) == 0,
            )
        })
        .collect();
    let begin = (
        engine.now().wall.after(DurationMs::secs(4)),
        Instant::now() + Duration::from_secs(4),
    );
    let due_ms = |n: usize| n as u64 * 8_000 / TRIALS as u64;
    let ids = made(&engine, |n| {
        let (delay, _, last) = seeds[n];
        let poll = Poll {
            http: HttpAction {
                url: format!("http://{}/{n}/{delay}/{last}", asked.address),
                method: "GET".into(),
                headers: vec![],
                expect_status: vec![],
                success_if: None,
                complete_by: None,
            },
            every: DurationMs::secs(60),
            within: Some(ASKED_FOR),
            done_if: "body.done".to_owned(),
            failed_if: None,
        };
        let due = begin.0.after(DurationMs(due_ms(n)));
        new_task().at(due).action(Action::Poll(Box::new(poll)))
    });
    let ids = ids.await;
    assert!(Instant::now() < begin.1, "they were made too slowly");
    let races = ids.iter().enumerate().map(|(n, id)| {
        let (engine, id) = (engine.clone(), *id);
        let complete = Event::Complete {
            result: Some(json!({"by": "callback"}).to_string().into()),
            token: None,
        };
        let instant = begin.1 + Duration::from_millis(due_ms(n) + seeds[n].1);
        at(instant, async move {
            counted(engine.verb(Target::Id(id), complete, "test").await)
        })
    });
    let told = join_all(races.collect::<Vec<_>>()).await;
    let mut wins = BTreeMap::new();
    for (task, told) in ended(&engine, &ids).await.iter().zip(told) {
        assert_ended_once(task);
        let by = ended_by(task);
        let winner = match (task.state, by.as_deref()) {
            (State::Succeeded, Some("answer")) => "answer",
            (State::Succeeded, Some("last answer")) => "last answer",
            (State::Succeeded, Some("callback")) => "callback",
            (State::Dead, None) => "end of time",
            other => panic!("{other:?}"),
        };
        assert_eq!(told.expect("no panic"), winner == "callback", "{task:#?}");
        *wins.entry(winner).or_default() += 1;
    }
    assert_all_won(&wins, &["answer", "last answer", "callback", "end of time"]);
    engine.shutdown().await;
    asked.server.stop(false).await;
}

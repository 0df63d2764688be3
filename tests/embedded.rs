//! The engine inside another program: engines side by side, the program's own clock, and the API in its own web
//! server. Handlers have a file of their own.

#[expect(dead_code, reason = "each file of tests uses its part")]
mod support;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use actix_web::http::StatusCode;
use actix_web::{App, HttpResponse, test as web_test, web};
use duetime::{
    BatchOp, Clock, Created, Duetime, DurationMs, EngineError, HandlerTask, NewTask, OpDone, State,
    Target, TaskId, WallMs, Wants,
};
use serde_json::{Value, json};
use tokio::sync::mpsc::{self, UnboundedReceiver};

use support::engine::{ended, heard, look, made, task_for};
use support::{Random, ms};

// ---------------------------------------------------------------- engines and directories

#[tokio::test(flavor = "multi_thread")]
async fn two_engines_in_one_process_do_not_meet() {
    let (one, other) = (
        tempfile::tempdir().expect("a directory"),
        tempfile::tempdir().expect("a directory"),
    );
    let (tell, mut hear) = mpsc::unbounded_channel();
    let start = async |data: &Path, name: &'static str| {
        let tell = tell.clone();
        let on_call = move |task: HandlerTask| {
            let tell = tell.clone();
            async move {
                let _ = tell.send((name, task.id));
                Ok(None)
            }
        };
        Duetime::builder()
            .data_dir(data)
            .handler("tell", on_call)
            .start()
            .await
    };
    let first = start(one.path(), "first").await.expect("it starts");
    let second = start(other.path(), "second")
        .await
        .expect("it starts beside the first");
    let third = start(one.path(), "third").await;
    assert!(
        third.is_err_and(|error| error.to_string().contains("in use")),
        "one engine per directory"
    );

    let key = |new: NewTask| new.key("same").expect("a key");
    let in_first = made(&first, key(task_for("tell"))).await.id;
    assert_eq!(heard(&mut hear).await, ("first", in_first));
    let in_second = made(&second, key(task_for("tell"))).await.id;
    assert_eq!(heard(&mut hear).await, ("second", in_second));
    assert!(
        second
            .get(Target::Id(in_first))
            .await
            .expect("an answer")
            .is_none()
    );

    first.shutdown().await;
    let refused = first.create(task_for("tell"), "test").await;
    assert!(
        matches!(refused, Err(EngineError::ShuttingDown)),
        "{refused:?}"
    );
    let more = made(&second, task_for("tell")).await.id;
    assert_eq!(
        heard(&mut hear).await,
        ("second", more),
        "the other goes on"
    );
    second.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_was_shut_down_goes_on_where_it_was() {
    let data = tempfile::tempdir().expect("a directory");
    let calls = Arc::new(AtomicUsize::new(0));
    let start = async || {
        let calls = Arc::clone(&calls);
        let count = move |_| {
            calls.fetch_add(1, Ordering::Relaxed);
            async { Ok(None) }
        };
        Duetime::builder()
            .data_dir(data.path())
            .handler("count", count)
            .start()
            .await
            .expect("it starts")
    };
    let engine = start().await;
    let ops: Vec<BatchOp> = (0..200)
        .map(|n| {
            task_for("count")
                .key(&format!("k{n}"))
                .expect("a key")
                .after(Duration::from_millis(300))
        })
        .map(|new| BatchOp::Create(Box::new(new)))
        .collect();
    let mut ids = Vec::new();
    for done in engine.batch(ops, None, Wants::Whole, "test").await {
        let Ok(OpDone::Created(Created::New(view))) = done else {
            panic!("{done:?}")
        };
        ids.push(view.id());
    }
    engine.shutdown().await;
    drop(engine);
    let engine = start().await;
    for id in ids {
        let task = ended(&engine, id, State::Succeeded).await;
        assert_eq!(task.attempts, 1);
    }
    assert_eq!(calls.load(Ordering::Relaxed), 200, "each once");
    engine.shutdown().await;
}

// ---------------------------------------------------------------- the program's own clock

fn new_year() -> WallMs {
    WallMs(ms(&json!("2027-01-01T00:00:00.000Z")))
}

/// An engine on that clock whose handler says which task came at what time.
async fn on_clock(data: &Path, clock: &Clock) -> (Duetime, UnboundedReceiver<(TaskId, WallMs)>) {
    let (tell, hear) = mpsc::unbounded_channel();
    let on_call = {
        let clock = clock.clone();
        move |task: HandlerTask| {
            let (tell, at) = (tell.clone(), clock.now().wall);
            async move {
                let _ = tell.send((task.id, at));
                Ok(None)
            }
        }
    };
    let engine = Duetime::builder()
        .data_dir(data)
        .clock(clock.clone())
        .handler("tell", on_call);
    (engine.start().await.expect("it starts"), hear)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_own_clock_drives_due_times_and_nothing_is_early() {
    let data = tempfile::tempdir().expect("a directory");
    let (clock, mut random) = (Clock::by_hand(new_year()), Random::new(7));
    let (engine, mut hear) = on_clock(data.path(), &clock).await;
    let mut waiting = Vec::new();
    for _ in 0..200 {
        let delay = Duration::from_millis(1 + random.below(20_000));
        let task = made(&engine, task_for("tell").after(delay)).await;
        waiting.push((task.due.at, task.id));
    }
    waiting.sort_unstable();
    while !waiting.is_empty() {
        // Real time passes, too, and must not matter.
        clock.advance(DurationMs(1 + random.below(1500)));
        let now = clock.now().wall;
        let due = waiting.partition_point(|(at, _)| *at <= now);
        let mut due: Vec<TaskId> = waiting.drain(..due).map(|(_, id)| id).collect();
        while !due.is_empty() {
            let (id, at) = heard(&mut hear).await;
            let place = due.iter().position(|waits| *waits == id);
            due.remove(place.unwrap_or_else(|| panic!("{id} came early, or twice, at {at}")));
            assert_eq!(at, now);
            ended(&engine, id, State::Succeeded).await;
        }
    }
    engine.shutdown().await;
    assert!(hear.try_recv().is_err(), "each once");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stepped_wall_clock_moves_times_but_not_lengths() {
    let data = tempfile::tempdir().expect("a directory");
    let clock = Clock::by_hand(new_year());
    let (engine, mut hear) = on_clock(data.path(), &clock).await;
    let at = |ms| task_for("tell").at(WallMs(new_year().0 + ms));
    let length = made(&engine, task_for("tell").after(Duration::from_secs(10)))
        .await
        .id;
    let time = made(&engine, at(10_000)).await.id;
    // An hour back: what was asked for as a length still takes ten seconds, the time is an hour and ten off.
    clock.step_wall(-3_600_000);
    clock.advance(DurationMs(9_999));
    let witness = made(&engine, task_for("tell")).await.id;
    assert_eq!(
        heard(&mut hear).await.0,
        witness,
        "the others are not due yet"
    );
    clock.advance(DurationMs(1));
    assert_eq!(heard(&mut hear).await.0, length);
    ended(&engine, length, State::Succeeded).await;
    // Forth again: the time has come, once, and what comes next is an hour away.
    clock.step_wall(3_600_000);
    assert_eq!(heard(&mut hear).await.0, time);
    ended(&engine, time, State::Succeeded).await;
    let later = made(&engine, at(3_700_000)).await.id;
    clock.step_wall(3_600_000);
    let witness = made(&engine, task_for("tell")).await.id;
    assert_eq!(heard(&mut hear).await.0, witness);
    assert_eq!(look(&engine, later).await.state, State::Pending);
    clock.step_wall(90_000);
    assert_eq!(heard(&mut hear).await.0, later);
    engine.shutdown().await;
    assert!(hear.try_recv().is_err(), "each once");
}

// ---------------------------------------------------------------- the API in one's own web server

#[actix_web::test]
async fn the_api_can_be_mounted_beside_the_programs_own_routes() {
    let data = tempfile::tempdir().expect("a directory");
    let engine = Duetime::builder()
        .data_dir(data.path())
        .start()
        .await
        .expect("it starts");
    let routes = duetime::http::configure(engine.clone(), duetime::http::HttpOptions::default());
    let own = web::get().to(async || HttpResponse::Ok().body("own"));
    let app = web_test::init_service(App::new().route("/own", own).configure(routes)).await;

    let request = web_test::TestRequest::get().uri("/own").to_request();
    assert_eq!(web_test::call_and_read_body(&app, request).await, "own");
    let body = json!({"topic": "mounted", "key": "a", "delay": "PT1H", "action": {"none": {}}});
    let request = web_test::TestRequest::post()
        .uri("/v1/tasks")
        .set_json(&body)
        .to_request();
    let response = web_test::call_service(&app, request).await;
    assert_eq!(response.status(), StatusCode::CREATED);
    let task: Value = web_test::read_body_json(response).await;
    // The routes and the program speak of the same tasks.
    let id: TaskId = task["id"]
        .as_str()
        .and_then(|id| id.parse().ok())
        .expect("an id");
    assert_eq!(look(&engine, id).await.state, State::Pending);
    engine
        .cancel(Target::Id(id), "paid")
        .await
        .expect("it can be cancelled");
    let request = web_test::TestRequest::get()
        .uri("/v1/topics/mounted/keys/a")
        .to_request();
    let shown: Value = web_test::call_and_read_body_json(&app, request).await;
    assert_eq!(shown["state"], "cancelled");

    for (uri, status) in [
        ("/v1/nowhere", 404),
        ("/readyz", 200),
        ("/openapi.json", 200),
    ] {
        let request = web_test::TestRequest::get().uri(uri).to_request();
        assert_eq!(
            web_test::call_service(&app, request)
                .await
                .status()
                .as_u16(),
            status,
            "{uri}"
        );
    }
    engine.shutdown().await;
    let request = web_test::TestRequest::post()
        .uri("/v1/tasks")
        .set_json(&body)
        .to_request();
    let response = web_test::call_service(&app, request).await;
    assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert!(response.headers().contains_key("retry-after"));
}

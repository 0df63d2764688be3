//! Handlers of the embedding process: what they are given, and what becomes of everybody else when one of them blocks
//! its thread, panics, or does not come back.

#[expect(dead_code, reason = "each file of tests uses its part")]
mod support;

use std::panic::panic_any;
use std::sync::Arc;
use std::time::{Duration, Instant};

use actix_web::{App, test as web_test};
use duetime::executor::handler::SeatsStatus;
use duetime::http::HttpOptions;
use duetime::{
    Action, Clock, Duetime, DurationMs, HandlerError, HandlerTask, HttpAction, NewTask, State,
    Target, TopicName, WallMs,
};
use parking_lot::{Condvar, Mutex};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::mpsc::{self, UnboundedSender};
use tokio_util::sync::CancellationToken;

use support::SOON;
use support::engine::{ended, fixed, heard, limits, look, made, task_for};
use support::receiver::{Receiver, status};

/// Speaks when it is dropped.
struct Last(
    UnboundedSender<(&'static str, CancellationToken)>,
    CancellationToken,
);

impl Drop for Last {
    fn drop(&mut self) {
        let _ = self.0.send(("cut off", self.1.clone()));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handler_gets_its_task_and_what_it_gives_back_is_kept() {
    let data = tempfile::tempdir().expect("a directory");
    let double = |task: HandlerTask| async move {
        let text = task.payload.as_ref().map_or("null", |json| json.as_str());
        let payload: Value = serde_json::from_str(text).expect("JSON");
        let number = payload["n"].as_u64();
        let number = number.ok_or_else(|| HandlerError::for_good("no_number", "there is no n"))?;
        Ok(Some(
            json!({"twice": number * 2, "attempt": task.attempt.0, "key": task.key.map(|key| key.to_string())}),
        ))
    };
    let engine = Duetime::builder()
        .data_dir(data.path())
        .handler("double", double)
        .start()
        .await
        .expect("it starts");
    let new = task_for("double")
        .key("a")
        .expect("a key")
        .payload(&json!({"n": 21}));
    let task = ended(&engine, made(&engine, new).await.id, State::Succeeded).await;
    let result: Value =
        serde_json::from_str(task.result.expect("a result").as_str()).expect("JSON");
    assert_eq!(result, json!({"twice": 42, "attempt": 1, "key": "a"}));

    let wrong = made(&engine, task_for("double").retry(fixed(0, 5))).await;
    let dead = ended(&engine, wrong.id, State::Dead).await;
    let error = dead
        .last_outcome
        .and_then(|last| last.error)
        .expect("its error");
    assert_eq!((dead.attempts, error.code.as_str()), (1, "no_number"));

    let unknown = made(&engine, task_for("nobody").retry(fixed(0, 2))).await;
    let dead = ended(&engine, unknown.id, State::Dead).await;
    let error = dead
        .last_outcome
        .and_then(|last| last.error)
        .expect("its error");
    assert!(
        error.code == "no_handler" && error.message.contains("nobody"),
        "{error:?}"
    );
    engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handler_is_told_when_its_time_is_up_and_cut_off_after_the_grace() {
    let data = tempfile::tempdir().expect("a directory");
    let clock = Clock::by_hand(WallMs(0));
    let (tell, mut hear) = mpsc::unbounded_channel();
    let polite = {
        let tell = tell.clone();
        move |task: HandlerTask| {
            let tell = tell.clone();
            async move {
                let _ = tell.send(("begun", task.cancel.clone()));
                task.cancel.cancelled().await;
                let _ = tell.send(("told", task.cancel));
                // Too late: its time was up.
                Ok(Some(json!("done")))
            }
        }
    };
    let stubborn = move |task: HandlerTask| {
        let tell = tell.clone();
        async move {
            let _ = tell.send(("begun", task.cancel.clone()));
            let _last = Last(tell, task.cancel);
            std::future::pending::<()>().await;
            Ok(None)
        }
    };
    let builder = Duetime::builder()
        .data_dir(data.path())
        .clock(clock.clone())
        .handler("polite", polite)
        .handler("stubborn", stubborn);
    let engine = builder.start().await.expect("it starts");
    for (name, last_word) in [("polite", "told"), ("stubborn", "cut off")] {
        let mut new = task_for(name).retry(fixed(0, 1));
        new.timeouts = limits(200, 300);
        let id = made(&engine, new).await.id;
        let (word, told) = heard(&mut hear).await;
        assert_eq!(word, "begun");
        clock.advance(DurationMs(199));
        assert!(!told.is_cancelled() && hear.is_empty(), "{name}");
        clock.advance(DurationMs(1));
        told.cancelled().await;
        if name == "stubborn" {
            clock.advance(DurationMs(299));
            assert!(hear.is_empty(), "its grace runs");
            clock.advance(DurationMs(1));
        }
        assert_eq!(heard(&mut hear).await.0, last_word);
        let dead = ended(&engine, id, State::Dead).await;
        assert_eq!(
            dead.last_outcome.map(|last| last.outcome),
            Some("timeout"),
            "{name}"
        );
        assert!(dead.result.is_none(), "{name}");
    }
    engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_reaches_the_handler_that_runs() {
    let data = tempfile::tempdir().expect("a directory");
    let (tell, mut hear) = mpsc::unbounded_channel();
    let wait = move |task: HandlerTask| {
        let tell = tell.clone();
        async move {
            let _ = tell.send("begun");
            task.cancel.cancelled().await;
            let _ = tell.send("told");
            Ok(Some(json!("done all the same")))
        }
    };
    let engine = Duetime::builder()
        .data_dir(data.path())
        .handler("wait", wait)
        .start()
        .await
        .expect("it starts");
    let id = made(&engine, task_for("wait")).await.id;
    assert_eq!(heard(&mut hear).await, "begun");
    let done = engine
        .cancel(Target::Id(id), "paid")
        .await
        .expect("it can be cancelled");
    assert!(done.stopping && done.view.slim().state == State::Cancelled);
    assert_eq!(heard(&mut hear).await, "told");
    engine.shutdown().await;
    assert!(hear.try_recv().is_err(), "no second attempt");
    let engine = Duetime::builder()
        .data_dir(data.path())
        .start()
        .await
        .expect("it starts again");
    let task = look(&engine, id).await;
    assert!(
        task.state == State::Cancelled && task.result.is_none(),
        "its result can't win"
    );
}

// ---------------------------------------------------------------- handlers that do not come back

/// What handlers block on until the test opens it.
#[derive(Clone, Default)]
struct Gate(Arc<(Mutex<bool>, Condvar)>);

impl Gate {
    /// Blocks the thread.
    fn block(&self) {
        let (open, opened) = &*self.0;
        let (mut open, end) = (open.lock(), Instant::now() + 10 * SOON);
        while !*open {
            assert!(!opened.wait_until(&mut open, end).timed_out());
        }
    }

    fn open(&self) {
        *self.0.0.lock() = true;
        self.0.1.notify_all();
    }
}

/// Waits until the threads of both kinds of handler are like this.
async fn until_seats(engine: &Duetime, what: &str, so: impl Fn(&SeatsStatus) -> bool) {
    let end = Instant::now() + SOON;
    loop {
        let seats = engine.handler_seats();
        if seats.iter().all(|(_, seats)| so(seats)) {
            return;
        }
        assert!(Instant::now() < end, "not {what}: {seats:?}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

fn push_to(url: &str) -> NewTask {
    let topic = TopicName::parse("pushed").expect("a name");
    NewTask::new(topic).action(Action::Http(HttpAction {
        url: url.to_owned(),
        method: "POST".to_owned(),
        headers: Vec::new(),
        expect_status: Vec::new(),
        success_if: None,
        complete_by: None,
    }))
}

#[actix_web::test]
async fn four_handlers_that_block_their_threads_for_120_s_delay_no_handler_no_push_and_not_the_api()
{
    let data = tempfile::tempdir().expect("a directory");
    let (clock, gate) = (Clock::by_hand(WallMs(0)), Gate::default());
    let receiver = Receiver::start();
    let url = receiver.on("/hook", &[status(200)]);
    let (tell, mut begun) = mpsc::unbounded_channel();
    let held = gate.clone();
    let block = move |task: HandlerTask| {
        let _ = tell.send((task.id, task.cancel));
        held.block();
        Ok(Some(json!("too late")))
    };
    let engine = Duetime::builder()
        .data_dir(data.path())
        .clock(clock.clone())
        .handler("blocks", {
            let block = block.clone();
            move |task| {
                let block = block.clone();
                async move { block(task) }
            }
        })
        .blocking_handler("blocks its own", block)
        .handler("good", async |_| Ok(None))
        .blocking_handler("good on its own", |_| Ok(None));
    let engine = engine.start().await.expect("it starts");
    let routes = duetime::http::configure(engine.clone(), HttpOptions::default());
    let app = web_test::init_service(App::new().configure(routes)).await;
    let get = async |uri: &str| {
        let request = web_test::TestRequest::get().uri(uri).to_request();
        let answer = web_test::call_and_read_body(&app, request);
        let answer = tokio::time::timeout(SOON, answer).await;
        String::from_utf8(answer.expect("an answer in time").to_vec()).expect("text")
    };
    let all_others_go_on = async |round: usize| {
        let mut ids = Vec::new();
        for name in ["good", "good on its own"].repeat(50) {
            ids.push(made(&engine, task_for(name)).await.id);
        }
        ids.push(made(&engine, push_to(&url)).await.id);
        for id in ids {
            let done = ended(&engine, id, State::Succeeded).await;
            assert_eq!(done.attempts, 1);
        }
        assert_eq!(receiver.hits("/hook").len(), round);
        assert!(get("/readyz").await.contains(r#""status":"ready""#));
    };

    let mut stuck = Vec::new();
    for name in ["blocks", "blocks its own"].repeat(2) {
        let mut new = task_for(name).retry(fixed(0, 1));
        new.timeouts = limits(30_000, 2_000);
        made(&engine, new).await;
        stuck.push(heard(&mut begun).await);
    }
    // Their time is not up yet, and no clock runs: nothing but the threads' own number helps.
    all_others_go_on(1).await;
    until_seats(&engine, "held", |seats| seats.held == 2).await;
    assert!(stuck.iter().all(|(_, cancel)| !cancel.is_cancelled()));

    clock.advance(DurationMs::secs(30));
    for (_, cancel) in &stuck {
        let told = tokio::time::timeout(SOON, cancel.cancelled()).await;
        told.expect("it is told that its time is up");
    }
    clock.advance(DurationMs::secs(2));
    for (id, _) in &stuck {
        let dead = ended(&engine, *id, State::Dead).await;
        assert_eq!(dead.last_outcome.map(|last| last.outcome), Some("timeout"));
    }
    until_seats(&engine, "abandoned", |seats| seats.abandoned.len() == 2).await;
    all_others_go_on(2).await;
    let actors: Value = serde_json::from_str(&get("/v1/actors").await).expect("JSON");
    for kind in ["async", "blocking"] {
        let seats = &actors["handlers"][kind];
        assert_eq!(seats["since_start"]["abandoned"], 2, "{seats}");
        let shown = seats["abandoned"].as_array().expect("a list");
        let is_stuck = |call: &Value| stuck.iter().any(|(id, _)| call["task"] == id.to_string());
        assert!(shown.len() == 2 && shown.iter().all(is_stuck), "{seats}");
        let line = format!(r#"duetime_handler_threads_abandoned{{kind="{kind}"}} 2"#);
        assert!(get("/metrics").await.contains(&line), "{line}");
    }

    clock.advance(DurationMs::secs(88));
    all_others_go_on(3).await;
    gate.open();
    until_seats(&engine, "back", |seats| {
        seats.abandoned.is_empty() && seats.late_since_start == 2
    })
    .await;
    for (id, _) in &stuck {
        let dead = look(&engine, *id).await;
        assert!(dead.state == State::Dead && dead.attempts == 1 && dead.result.is_none());
    }
    all_others_go_on(4).await;
    engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn there_are_no_more_threads_than_the_limit_and_what_finds_none_uses_no_attempt() {
    let data = tempfile::tempdir().expect("a directory");
    let (clock, gate) = (Clock::by_hand(WallMs(0)), Gate::default());
    let (tell, mut begun) = mpsc::unbounded_channel();
    let blocks = {
        let gate = gate.clone();
        move |task: HandlerTask| {
            let _ = tell.send(task.cancel);
            gate.block();
            Ok(None)
        }
    };
    let engine = Duetime::builder()
        .data_dir(data.path())
        .clock(clock.clone())
        .blocking_handler("blocks", blocks)
        .blocking_max(1)
        .stand_ins_max(1)
        .start()
        .await
        .expect("it starts");
    for lost in 1..=2 {
        let mut new = task_for("blocks").retry(fixed(0, 1));
        new.timeouts = limits(1_000, 1_000);
        let id = made(&engine, new).await.id;
        let cancel = heard(&mut begun).await;
        clock.advance(DurationMs::secs(1));
        cancel.cancelled().await;
        clock.advance(DurationMs::secs(1));
        ended(&engine, id, State::Dead).await;
        until_seats(&engine, "lost", |seats| seats.abandoned.len() == lost).await;
    }
    let [(_, seats)] = &engine.handler_seats()[..] else {
        panic!("one kind of handler");
    };
    assert_eq!((seats.threads, seats.threads_max), (2, 2));
    let readiness = engine.readiness();
    assert!(
        readiness.is_ready() && readiness.warnings[0].contains("2 threads of blocking handlers")
    );

    let waits = made(&engine, task_for("blocks").retry(fixed(0, 1)))
        .await
        .id;
    let at_the_door = async {
        loop {
            let view = engine.get(Target::Id(waits)).await.expect("an answer");
            let view = view.expect("the task is there");
            if view.blocked_by == Some("executor_full") {
                break view.task;
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    let at_the_door = tokio::time::timeout(SOON, at_the_door).await;
    let waiting = at_the_door.expect("it waits for a thread");
    assert_eq!((waiting.state, waiting.attempts), (State::Pending, 0));
    let seats = &engine.handler_seats()[0].1;
    assert_eq!(seats.given_back_since_start, 0, "it was not handed out");
    assert!(begun.try_recv().is_err(), "it was not begun");
    gate.open();
    until_seats(&engine, "back", |seats| seats.abandoned.is_empty()).await;
    assert!(engine.readiness().warnings.is_empty());
    clock.advance(DurationMs::secs(1));
    let done = ended(&engine, waits, State::Succeeded).await;
    assert_eq!(done.attempts, 1);
    engine.shutdown().await;
}

// ---------------------------------------------------------------- handlers that panic

/// Panics when it goes, as a careless destructor does.
struct Careless;

impl Drop for Careless {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            panic!("from a destructor");
        }
    }
}

/// A payload of a panic that panics when it is dropped, with such a payload again.
struct Spiteful;

impl Drop for Spiteful {
    fn drop(&mut self) {
        panic_any(Spiteful);
    }
}

#[actix_web::test]
async fn case_42_a_panic_fails_its_attempt_with_its_message_and_all_others_go_on() {
    let data = tempfile::tempdir().expect("a directory");
    let engine = Duetime::builder()
        .data_dir(data.path())
        .handler("good", async |_| Ok(None))
        .handler("words", async |task| {
            panic!("attempt {} is too much", task.attempt.0)
        })
        .handler("number", async |_| panic_any(7))
        .handler("destructor", async |_| {
            let _careless = Careless;
            Ok(None)
        })
        .handler("spiteful", async |_| panic_any(Spiteful))
        .blocking_handler("blocking", |_| panic!("on its own thread"));
    let engine = engine.start().await.expect("it starts");
    let routes = duetime::http::configure(engine.clone(), HttpOptions::default());
    let app = web_test::init_service(App::new().configure(routes)).await;
    let answers = async |uri: &str| {
        let request = web_test::TestRequest::get().uri(uri).to_request();
        let response = web_test::call_service(&app, request).await;
        assert_eq!(response.status().as_u16(), 200, "{uri}");
        let body = web_test::read_body(response).await;
        String::from_utf8(body.to_vec()).expect("text")
    };
    let mut good = Vec::new();
    let mut bad = Vec::new();
    for (name, words) in [
        ("words", "attempt 3 is too much"),
        ("number", "no text"),
        ("destructor", "from a destructor"),
        ("spiteful", "no text"),
        ("blocking", "on its own thread"),
    ] {
        for _ in 0..25 {
            good.push(made(&engine, task_for("good")).await.id);
        }
        let id = made(&engine, task_for(name).retry(fixed(5, 3))).await.id;
        bad.push((name, words, id));
        answers("/readyz").await;
    }
    good.push(made(&engine, task_for("good")).await.id);
    for (name, words, id) in bad {
        let dead = ended(&engine, id, State::Dead).await;
        assert_eq!(dead.attempts, 3, "{name}");
        let error = dead
            .last_outcome
            .and_then(|last| last.error)
            .expect("its error");
        assert_eq!(error.code, "panic", "{name}");
        assert!(error.message.contains(words), "{name}: {}", error.message);
        assert_eq!(dead.attempts_log.kept.len(), 3, "{name}");
        answers("/readyz").await;
    }
    for id in good {
        ended(&engine, id, State::Succeeded).await;
    }
    assert!(
        engine.children().iter().all(|child| child.restarts == 0),
        "no part of ours was touched"
    );
    let metrics = answers("/metrics").await;
    for line in [
        r#"duetime_handler_panics_total{kind="async"} 12"#,
        r#"duetime_handler_panics_total{kind="blocking"} 3"#,
    ] {
        assert!(metrics.contains(line), "{line} is not in {metrics}");
    }
    engine.shutdown().await;
}

// ---------------------------------------------------------------- what handlers read

#[tokio::test(flavor = "multi_thread")]
async fn a_payload_is_read_as_a_type_and_the_error_names_the_field_that_does_not_fit() {
    #[derive(Deserialize)]
    struct Order {
        customer: Customer,
    }
    #[derive(Deserialize)]
    struct Customer {
        number: u64,
    }
    let data = tempfile::tempdir().expect("a directory");
    let read = async |task: HandlerTask| {
        let order: Order = task.payload_as()?;
        let before = task.remaining();
        task.clock.advance(DurationMs::secs(4));
        let left = [before, task.remaining()].map(|left| left.as_secs());
        Ok(Some(json!({"number": order.customer.number, "left": left})))
    };
    let engine = Duetime::builder()
        .data_dir(data.path())
        .clock(Clock::by_hand(WallMs(0)))
        .handler("read", read)
        .start()
        .await
        .expect("it starts");
    let mut fits = task_for("read").payload(&json!({"customer": {"number": 7}}));
    fits.timeouts = limits(10_000, 1_000);
    let done = ended(&engine, made(&engine, fits).await.id, State::Succeeded).await;
    let result: Value = serde_json::from_str(done.result.expect("one").as_str()).expect("JSON");
    assert_eq!(result, json!({"number": 7, "left": [10, 6]}));

    let wrong = task_for("read").payload(&json!({"customer": {"number": "seven"}}));
    let dead = ended(&engine, made(&engine, wrong).await.id, State::Dead).await;
    assert_eq!(dead.attempts, 1, "another attempt would read the same");
    let error = dead.last_outcome.and_then(|last| last.error);
    let error = error.expect("its error");
    assert_eq!(error.code, "payload");
    assert!(
        error
            .message
            .contains("payload.customer.number: invalid type"),
        "{}",
        error.message
    );
    engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_handler_says_of_its_progress_is_seen_while_it_runs_and_is_there_for_the_next_attempt()
 {
    let data = tempfile::tempdir().expect("a directory");
    let go_on = Arc::new(tokio::sync::Semaphore::new(0));
    let reads = {
        let go_on = Arc::clone(&go_on);
        move |task: HandlerTask| {
            let go_on = Arc::clone(&go_on);
            async move {
                if let Some(page) = task.checkpoint_as::<u32>()? {
                    return Ok(Some(json!({"began_at": page})));
                }
                task.progress(&7)?;
                let _ = go_on.acquire().await;
                // Not told any more before the attempt is over.
                task.progress(&8)?;
                Err(HandlerError::new("busy", "not today"))
            }
        }
    };
    let engine = Duetime::builder()
        .data_dir(data.path())
        .handler("reads", reads)
        .start()
        .await
        .expect("it starts");
    let id = made(&engine, task_for("reads").retry(fixed(0, 2))).await.id;
    let end = Instant::now() + SOON;
    loop {
        let task = look(&engine, id).await;
        if let Some(checkpoint) = task.checkpoint {
            assert_eq!((checkpoint.as_str(), task.state), ("7", State::Running));
            break;
        }
        assert!(Instant::now() < end, "nothing was heard of it");
        tokio::task::yield_now().await;
    }
    go_on.add_permits(1);
    let task = ended(&engine, id, State::Succeeded).await;
    let result = task.result.expect("a result");
    assert_eq!(result.as_str(), r#"{"began_at":8}"#);
    engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handler_that_is_silent_for_too_long_is_told_to_stop_and_tried_again() {
    let data = tempfile::tempdir().expect("a directory");
    let silent = |task: HandlerTask| async move {
        if task.attempt.0 == 1 {
            task.cancel.cancelled().await;
            return Err(HandlerError::new("cut", "it was told to stop"));
        }
        task.is_at_work();
        Ok(None)
    };
    let engine = Duetime::builder()
        .data_dir(data.path())
        .handler("silent", silent)
        .start()
        .await
        .expect("it starts");
    let mut new = task_for("silent").retry(fixed(0, 2));
    new.timeouts.heartbeat = Some(DurationMs(200));
    let task = ended(&engine, made(&engine, new).await.id, State::Succeeded).await;
    let outcomes: Vec<_> = task.attempts_log.kept.iter().map(|it| it.outcome).collect();
    assert_eq!(outcomes, ["heartbeat_lost", "succeeded"]);
    engine.shutdown().await;
}

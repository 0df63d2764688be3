//! The client against a service that answers by script.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::timeout;

use super::scripted::{Asked, Service as Scripted};
use super::*;
use crate::task::TopicName;

const SOON: Duration = Duration::from_secs(20);
const ID: &str = "01a22c30-5b1e-7569-bcfc-d56bb2597131";
const BUSY: (&str, &str) = (
    "503 Busy\r\nretry-after: 0",
    r#"{"detail": "wait", "code": "overloaded"}"#,
);
const CUT_OFF: (&str, &str) = ("201 Created\r\ncontent-length: 9999", "{");
const STALE: (&str, &str) = (
    "409 Conflict",
    r#"{"detail": "over", "code": "stale_token"}"#,
);
const TOLD: (&str, &str) = ("200 OK", "{}");

fn topic() -> TopicName {
    TopicName::parse("orders").expect("a name")
}

fn task(delivery: &str) -> Value {
    json!({
        "id": ID, "topic": "orders", "key": "k", "state": "running", "generation": 1, "attempts": 1,
        "due_at": "2026-12-01T10:30:00.000Z", "created_at": "2026-12-01T10:30:00.000Z", "delivery": delivery,
    })
}

fn leased(delivery: &str) -> String {
    json!({"items": [{"task": task(delivery), "attempt": 1, "token": 17}]}).to_string()
}

fn client(service: &Scripted) -> Client {
    Client::new(&service.url).expect("an address")
}

fn header(asked: &Asked, name: &str) -> Option<String> {
    let lines = asked.headers.lines();
    let found = lines.filter_map(|line| line.split_once(": "));
    let mut found = found.filter(|(known, _)| *known == name);
    found.next().map(|(_, value)| value.trim().to_owned())
}

fn refused(status: u16, code: &str) -> (String, String) {
    (
        format!("{status} No"),
        json!({"detail": "no", "code": code}).to_string(),
    )
}

#[tokio::test]
async fn a_create_that_was_not_answered_is_sent_again_as_the_same() {
    let made = task("at_least_once").to_string();
    let service = Scripted::answering(&[BUSY, CUT_OFF, ("201 Created", &made)]);
    let created = client(&service).create(&NewTask::new(topic())).await;
    let created = created.expect("it is created");
    assert!(created.is_new && created.task.id.to_string() == ID);
    let sent = [service.asked(), service.asked(), service.asked()];
    let keys = sent
        .each_ref()
        .map(|asked| header(asked, "idempotency-key").expect("a key"));
    assert!(keys.iter().all(|key| *key == keys[0]) && !keys[0].is_empty());
    assert!(
        sent.iter()
            .all(|asked| asked.line == "POST /v1/tasks" && asked.body["topic"] == "orders")
    );
}

#[tokio::test]
async fn two_creates_have_two_keys_and_the_caller_may_have_its_own() {
    let made = task("at_least_once").to_string();
    let service = Scripted::answering(&[("200 OK", made.as_str()); 3]);
    let (client, new) = (client(&service), NewTask::new(topic()));
    for _ in 0..2 {
        let created = client.create(&new).await.expect("an answer");
        assert!(!created.is_new);
    }
    client.create_once("mine", &new).await.expect("an answer");
    let keys = [service.asked(), service.asked(), service.asked()]
        .map(|asked| header(&asked, "idempotency-key").expect("a key"));
    assert!(keys[0] != keys[1] && keys[2] == "mine", "{keys:?}");
}

#[tokio::test]
async fn a_refusal_is_told_at_once_and_patience_has_an_end() {
    let (status, body) = refused(422, "invalid");
    let service = Scripted::answering(&[(&status, &body), BUSY]);
    let client = client(&service);
    let error = client
        .create(&NewTask::new(topic()))
        .await
        .expect_err("it is refused");
    assert_eq!(error.code(), Some("invalid"));
    assert_eq!(error.to_string(), "no (422 invalid)");
    let hurried = client.clone().patience(Duration::ZERO);
    let error = hurried
        .create(&NewTask::new(topic()))
        .await
        .expect_err("it is refused");
    assert_eq!(error.code(), Some("overloaded"));
    // Nobody is there any more.
    let error = hurried.get(&Target::Id(ID.parse().expect("an id"))).await;
    assert!(
        matches!(error, Err(ClientError::Unreachable { .. })),
        "{error:?}"
    );
}

#[tokio::test]
async fn a_verb_names_its_task_by_id_or_by_topic_and_key() {
    let slim = json!({
        "id": ID, "state": "cancelled", "due_at": "2026-12-01T10:30:00.000Z", "generation": 1,
        "updated_at": "2026-12-01T10:30:00.000Z",
    })
    .to_string();
    let tombstone = json!({"id": null, "state": "cancelled", "topic": "orders", "key": "a/b"});
    let service = Scripted::answering(&[
        ("202 Accepted", &slim),
        ("200 OK", &tombstone.to_string()),
        ("404 Not Found", r#"{"detail": "no", "code": "not_found"}"#),
    ]);
    let client = client(&service);
    let id = Target::Id(ID.parse().expect("an id"));
    let cancelled = client.cancel(&id, "paid").await.expect("an answer");
    assert!(cancelled.stopping && cancelled.task.is_some_and(|task| task.generation == 1));
    let asked = service.asked();
    assert_eq!(asked.line, format!("POST /v1/tasks/{ID}/cancel"));
    assert_eq!(asked.body, json!({"reason": "paid"}));
    assert!(header(&asked, "idempotency-key").is_some());

    let key = TaskKey::parse("a/b").expect("a key");
    let ahead = client.cancel_ahead(topic(), key.clone(), "paid", Duration::from_secs(600));
    assert_eq!(ahead.await.expect("an answer").task, None);
    let asked = service.asked();
    assert_eq!(asked.line, "POST /v1/topics/orders/keys/a%2Fb/cancel");
    assert_eq!(asked.body["tombstone_for"], "PT10M");

    let none = client.get(&Target::Key(topic(), key)).await;
    assert!(none.expect("an answer").is_none());
    let dots = Target::Key(topic(), TaskKey::parse("..").expect("a key"));
    assert_eq!(
        client.get(&dots).await.expect_err("no URL"),
        ClientError::DotName
    );
}

#[test]
fn a_password_in_the_address_is_not_shown() {
    let client = Client::new("http://zoe:secret@127.0.0.1:1/").expect("an address");
    let shown = format!("{client:?}");
    assert!(
        shown.contains("127.0.0.1:1") && !shown.contains("secret"),
        "{shown}"
    );
}

#[test]
fn what_is_no_address_is_refused() {
    for wrong in ["ftp://host", "host", "http://", "http://h/?a=b"] {
        let refused = Client::new(wrong);
        assert!(matches!(refused, Err(ClientError::Address(_))), "{wrong}");
    }
}

/// What a worker says first of its only task, and what it has counted when the service is gone.
async fn said_of<T: serde::Serialize + Send + 'static>(
    delivery: &str,
    answers: &[(&str, &str)],
    work: impl Fn(LeasedTask) -> Result<T, NotDone> + Send + Sync + 'static,
) -> (Vec<Asked>, WorkerCounts) {
    let lease = leased(delivery);
    let mut script = vec![("200 OK", lease.as_str())];
    script.extend_from_slice(answers);
    let service = Scripted::answering(&script);
    let worker = client(&service)
        .worker([topic()])
        .name("w1")
        .start(move |task| {
            let done = work(task);
            async move { done }
        });
    let asked: Vec<_> = tokio::task::spawn_blocking(move || {
        (0..service.answers).map(|_| service.asked()).collect()
    })
    .await
    .expect("it is asked");
    let counts = timeout(SOON, worker.stop(SOON)).await.expect("it stops");
    (asked, counts)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_asks_for_as_many_as_it_has_seats_and_says_what_came_of_it() {
    let (asked, counts) = said_of("at_least_once", &[TOLD], |task| {
        Ok(json!({"key": task.key.as_ref().map(|key| key.to_string())}))
    })
    .await;
    assert_eq!(asked[0].line, "POST /v1/leases");
    let ask =
        json!({"topics": ["orders"], "max": 1, "wait_ms": 5000, "lease": "PT30S", "worker": "w1"});
    assert_eq!(asked[0].body, ask);
    assert_eq!(asked[1].line, format!("POST /v1/leases/{ID}/complete"));
    assert_eq!(asked[1].body, json!({"token": 17, "result": {"key": "k"}}));
    assert_eq!((counts.leased, counts.completed), (1, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_panic_is_a_failure_with_its_message_and_for_good_where_twice_is_too_often() {
    for (delivery, retryable) in [("at_least_once", true), ("at_most_once", false)] {
        let (asked, counts) = said_of(delivery, &[TOLD], |_| -> Result<(), NotDone> {
            panic!("the shop burns")
        })
        .await;
        assert_eq!(asked[1].line, format!("POST /v1/leases/{ID}/fail"));
        let body = json!({
            "token": 17, "error": {"code": "panic", "message": "the shop burns"}, "retryable": retryable,
        });
        assert_eq!(asked[1].body, body);
        assert_eq!(counts.failed, 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_is_repeated_until_the_service_has_heard_it() {
    let (asked, counts) = said_of("at_least_once", &[BUSY, CUT_OFF, TOLD], |_| {
        Err::<(), _>(NotDone::snooze(Duration::from_secs(60)))
    })
    .await;
    for asked in &asked[1..] {
        assert_eq!(asked.line, format!("POST /v1/leases/{ID}/snooze"));
        assert_eq!(asked.body, json!({"token": 17, "delay": "PT1M"}));
    }
    assert_eq!((counts.snoozed, counts.untold), (1, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_comes_too_late_is_counted_as_lost() {
    let (_, counts) = said_of("at_least_once", &[STALE], |_| Ok(())).await;
    assert_eq!((counts.completed, counts.lost), (0, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_the_service_does_not_take_becomes_a_failure_that_says_so() {
    let (status, body) = refused(422, "invalid");
    let (asked, counts) = said_of("at_least_once", &[(&status, &body), TOLD], |_| Ok(7)).await;
    assert_eq!(asked[2].line, format!("POST /v1/leases/{ID}/fail"));
    let error = json!({"code": "answer_refused", "message": "no (422 invalid)"});
    assert_eq!(
        (&asked[2].body["error"], &asked[2].body["retryable"]),
        (&error, &json!(false))
    );
    assert_eq!((counts.completed, counts.failed), (0, 1));
}

/// A worker with a lease of 0.3 s whose heartbeats get this answer: why its work is told to stop.
async fn cut_by(answers: &[(&str, &str)]) -> (Cut, Worker) {
    let lease = leased("at_least_once");
    let mut script = vec![("200 OK", lease.as_str())];
    script.extend_from_slice(answers);
    let service = Scripted::answering(&script);
    let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
    let worker = client(&service)
        .worker([topic()])
        .lease(Duration::from_millis(300))
        .start(move |task: LeasedTask| {
            let tell = tell.clone();
            async move {
                task.cancel.cancelled().await;
                let _ = tell.send(task.cut());
                Err::<(), _>(NotDone::failed("cut_short", "told to stop"))
            }
        });
    let cut = timeout(SOON, told.recv()).await.expect("it is told");
    (cut.flatten().expect("a reason"), worker)
}

#[tokio::test(flavor = "multi_thread")]
async fn work_is_told_that_its_task_was_cancelled_or_its_lease_is_lost_and_says_nothing_more() {
    let renewed = r#"{"expires_at": "2026-12-01T10:30:00.000Z", "cancelled": false}"#;
    let cancelled = r#"{"expires_at": null, "cancelled": true}"#;
    for (heartbeats, why) in [
        (
            [("200 OK", renewed), ("200 OK", cancelled)],
            Cut::TaskCancelled,
        ),
        ([BUSY, STALE], Cut::LeaseLost),
    ] {
        let (cut, worker) = cut_by(&heartbeats).await;
        assert_eq!(cut, why);
        let counts = timeout(SOON, worker.stop(SOON)).await.expect("it stops");
        assert_eq!((counts.leased, counts.failed, counts.untold), (1, 0, 0));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn work_is_told_when_the_service_is_away_for_as_long_as_the_lease() {
    let (cut, _worker) = cut_by(&[]).await;
    assert_eq!(cut, Cut::LeaseUnsure);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_gets_no_tasks_says_why_until_it_does() {
    let (status, body) = refused(422, "invalid");
    let service = Scripted::answering(&[(&status, &body)]);
    let worker = client(&service).worker([]).start(|_| async { Ok(()) });
    let refused = async {
        loop {
            match worker.trouble() {
                Some(ClientError::Refused { code, .. }) => break code,
                _ => tokio::task::yield_now().await,
            }
        }
    };
    let code = timeout(SOON, refused).await.expect("it is told");
    assert_eq!(code, "invalid");
    timeout(SOON, worker.stop(SOON)).await.expect("it stops");
    let idle = Scripted::answering(&[BUSY, ("200 OK", r#"{"items": []}"#), STALE]);
    let worker = client(&idle).worker([topic()]).start(|_| async { Ok(()) });
    let asked = tokio::task::spawn_blocking(move || [idle.asked(), idle.asked(), idle.asked()]);
    asked.await.expect("it asks again");
    let is_stale = async {
        while worker.trouble().and_then(|error| error.status()) != Some(409) {
            tokio::task::yield_now().await;
        }
    };
    timeout(SOON, is_stale).await.expect("the latest is told");
}

//! `Idempotency-Key`: a request that is sent again gets the answer of the first time.
//!
//! The key is noted, durably, before the work begins; ids of what a create makes follow from key and time of that
//! note. So a re-send after a crash, wherever it came, finds its own tasks instead of making new ones. All of it
//! (noting the key, the work, keeping the answer) runs apart from the connection: a client that hangs up leaves
//! neither the work half done nor its key marked as being worked on, and nor does a panic.

use std::panic::AssertUnwindSafe;

use actix_web::HttpRequest;
use actix_web::web::Data;
use bytes::Bytes;
use futures_util::FutureExt;
use serde::Deserialize;
use xxhash_rust::xxh3::xxh3_128;

use crate::engine::Duetime;
use crate::engine::handle::Origin;
use crate::http::Api;
use crate::http::answer::{Answer, problem_of};
use crate::http::body::idempotency_key;
use crate::http::tasks::location_of;
use crate::shard::notes::Resent;
use crate::wire::problem::{Code, Problem};

/// Does `work` once per `Idempotency-Key`; without one, each time.
///
/// # Errors
/// 422 for a key that came with another request, 409 while the first is being worked on.
pub async fn once<W, F>(
    api: &Data<Api>,
    req: &HttpRequest,
    body: &Bytes,
    work: W,
) -> Result<Answer, Problem>
where
    W: FnOnce(Option<Origin>) -> F + Send + 'static,
    F: Future<Output = Result<Answer, Problem>> + Send + 'static,
{
    let Some(key) = idempotency_key(req)? else {
        return work(None).await;
    };
    let mut request = format!("{} {}\n", req.method(), req.uri()).into_bytes();
    request.extend_from_slice(body);
    once_per_key(&api.engine, &key, request, work).await
}

async fn once_per_key<W, F>(
    engine: &Duetime,
    key: &str,
    request: Vec<u8>,
    work: W,
) -> Result<Answer, Problem>
where
    W: FnOnce(Option<Origin>) -> F + Send + 'static,
    F: Future<Output = Result<Answer, Problem>> + Send + 'static,
{
    let key = xxh3_128(key.as_bytes());
    let apart = engine.clone();
    let all = engine.apart(async move {
        let first_at = match apart.ask_resent(key, &request).await? {
            Resent::Do { first_at } => first_at,
            Resent::Answered { status, body } => return Ok(Ok(again(status, body))),
            Resent::Mismatch => {
                let detail = "this Idempotency-Key came with another request before; use a new key for a new request";
                return Ok(Err(Problem::new(Code::IdempotencyMismatch, detail)));
            }
            Resent::InProgress => {
                let detail = "the first request with this Idempotency-Key is still being worked on";
                return Ok(Err(Problem::new(Code::InProgress, detail).retry_after_s(1)));
            }
        };
        let working = async { work(Some(Origin { key, first_at })).await };
        let answer = match AssertUnwindSafe(working).catch_unwind().await {
            Ok(done) => done.unwrap_or_else(Answer::from),
            // The panic itself is in the log, by the process's hook.
            Err(_) => {
                Problem::new(Code::Internal, "a defect of the service; it is in its log").into()
            }
        };
        // None is kept from 500 on: what was done is found again by its ids, and what was not is tried anew.
        let status = match answer.is_passing {
            true => answer.status.max(500),
            false => answer.status,
        };
        apart.keep_answer(key, status, answer.body.clone()).await;
        Ok(Ok(answer))
    });
    all.await.map_err(|error| problem_of(&error))?
}

/// A kept answer. Only status and body are kept: the rest follows from them.
fn again(status: u16, body: Bytes) -> Answer {
    #[derive(Deserialize)]
    struct Made<'a> {
        id: &'a str,
    }
    let id_in = |body| {
        serde_json::from_slice::<Made<'_>>(body)
            .ok()?
            .id
            .parse()
            .ok()
    };
    let location = match status {
        201 => id_in(&body).map(location_of),
        _ => None,
    };
    Answer {
        status,
        body,
        location,
        retry_after_s: None,
        replayed: true,
        is_passing: false,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;
    use tokio::sync::oneshot;

    use super::*;

    const SOON: Duration = Duration::from_secs(20);

    async fn engine(data: &tempfile::TempDir) -> Duetime {
        let builder = Duetime::builder().data_dir(data.path()).shards(2);
        builder.start().await.expect("it starts")
    }

    async fn ask<W, F>(engine: &Duetime, work: W) -> Result<Answer, Problem>
    where
        W: FnOnce(Option<Origin>) -> F + Send + 'static,
        F: Future<Output = Result<Answer, Problem>> + Send + 'static,
    {
        once_per_key(engine, "key", b"POST /\n{}".to_vec(), work).await
    }

    #[tokio::test]
    async fn a_client_that_hangs_up_leaves_the_work_to_be_done_and_its_answer_to_be_found() {
        let data = tempfile::tempdir().expect("a directory");
        let engine = engine(&data).await;
        let (tell, mut told) = oneshot::channel::<()>();
        let first = ask(&engine, |_| async move {
            drop(tell);
            Ok(Answer::json(200, &json!({"done": true})))
        });
        // It is begun, and then dropped before it can have got anywhere.
        assert!(first.now_or_never().is_none());
        let _ = tokio::time::timeout(SOON, &mut told)
            .await
            .expect("the work is done");
        let again = async {
            loop {
                let nothing = |_| async { Ok(Answer::json(500, &json!({}))) };
                match ask(&engine, nothing).await {
                    Err(problem) => assert_eq!(problem.code, Code::InProgress),
                    Ok(answer) => return answer,
                }
            }
        };
        let answer = tokio::time::timeout(SOON, again).await.expect("an answer");
        assert_eq!((answer.status, answer.replayed), (200, true));
        engine.shutdown().await;
    }

    #[tokio::test]
    async fn after_a_panic_the_request_can_be_sent_again() {
        let data = tempfile::tempdir().expect("a directory");
        let engine = engine(&data).await;
        let broken = |_| async { std::panic::resume_unwind(Box::new("broken")) };
        let answer = ask(&engine, broken).await.expect("an answer");
        assert_eq!((answer.status, answer.replayed), (500, false));
        let works = |_| async { Ok(Answer::json(200, &json!({}))) };
        let answer = ask(&engine, works).await.expect("an answer");
        assert_eq!((answer.status, answer.replayed), (200, false));
        engine.shutdown().await;
    }

    #[tokio::test]
    async fn a_batch_of_which_a_part_may_fare_better_is_worked_on_again() {
        let data = tempfile::tempdir().expect("a directory");
        let engine = engine(&data).await;
        let part = |_| async {
            let answer = Answer::json(200, &json!({"items": [{"status": 201}, {"status": 507}]}));
            Ok(Answer {
                is_passing: true,
                ..answer
            })
        };
        let answer = ask(&engine, part).await.expect("an answer");
        assert_eq!((answer.status, answer.replayed), (200, false));
        let whole = |_| async { Ok(Answer::json(200, &json!({"items": []}))) };
        for replayed in [false, true] {
            let answer = ask(&engine, whole).await.expect("an answer");
            assert_eq!((answer.status, answer.replayed), (200, replayed));
            assert_eq!(answer.body, Bytes::from_static(b"{\"items\":[]}"));
        }
        engine.shutdown().await;
    }

    #[test]
    fn a_create_that_is_answered_again_says_again_where_its_task_is() {
        let id: crate::ids::TaskId = "01a22c30-5b1e-7569-bcfc-d56bb2597131"
            .parse()
            .expect("an id");
        let body = Bytes::from(json!({"id": id.to_string(), "state": "pending"}).to_string());
        let location = |status| again(status, body.clone()).location;
        assert_eq!(location(201), Some(format!("/v1/tasks/{id}")));
        assert_eq!(location(200), None);
    }
}

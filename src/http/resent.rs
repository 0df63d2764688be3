//! `Idempotency-Key`: a request that is sent again gets the answer of the first time.
//!
//! The key is noted, durably, before the work begins; ids of what a create makes follow from key and time of that
//! note. So a re-send after a crash, wherever it came, finds its own tasks instead of making new ones. The work
//! runs apart from the connection: a client that hangs up does not leave it half done.

use std::sync::Arc;

use actix_web::HttpRequest;
use actix_web::web::Data;
use bytes::Bytes;
use xxhash_rust::xxh3::xxh3_128;

use crate::engine::handle::Origin;
use crate::http::Api;
use crate::http::answer::{Answer, problem_of};
use crate::http::body::idempotency_key;
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
    W: FnOnce(Option<Origin>) -> F + 'static,
    F: Future<Output = Result<Answer, Problem>> + 'static,
{
    let Some(key) = idempotency_key(req)? else {
        return work(None).await;
    };
    let key = xxh3_128(key.as_bytes());
    let mut request = format!("{} {}\n", req.method(), req.uri()).into_bytes();
    request.extend_from_slice(body);
    let api = Arc::clone(api);
    let origin = match api
        .engine
        .ask_resent(key, &request)
        .await
        .map_err(|error| problem_of(&error))?
    {
        Resent::Do { first_at } => Origin { key, first_at },
        Resent::Answered { status, body } => return Ok(again(status, body)),
        Resent::Mismatch => {
            let detail = "this Idempotency-Key came with another request before; use a new key for a new request";
            return Err(Problem::new(Code::IdempotencyMismatch, detail));
        }
        Resent::InProgress => {
            let detail = "the first request with this Idempotency-Key is still being worked on";
            return Err(Problem::new(Code::InProgress, detail).retry_after_s(1));
        }
    };
    apart(async move {
        let answer = work(Some(origin)).await.unwrap_or_else(Answer::from);
        let kept = api
            .engine
            .keep_answer(key, answer.status, answer.body.clone())
            .await;
        if let Err(error) = kept {
            // The work is done; a re-send will find it by its ids.
            tracing::warn!(%error, "the answer for an Idempotency-Key was not kept");
        }
        Ok(answer)
    })
    .await
}

fn again(status: u16, body: Bytes) -> Answer {
    Answer {
        status,
        body,
        location: None,
        retry_after_s: None,
        replayed: true,
    }
}

/// Runs on its own, so that it ends even if the connection does not wait for it.
async fn apart<F>(work: F) -> Result<Answer, Problem>
where
    F: Future<Output = Result<Answer, Problem>> + 'static,
{
    actix_web::rt::spawn(work).await.unwrap_or_else(|_| {
        Err(Problem::new(
            Code::Internal,
            "a defect of the service; it is in its log",
        ))
    })
}

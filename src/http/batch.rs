//! Many at once: creates, and mixed operations. Each item gets what it would have been answered on its own.

use actix_web::web::{Data, Payload};
use actix_web::{HttpRequest, HttpResponse};
use bytes::Bytes;

use crate::engine::EngineError;
use crate::engine::handle::BatchOp;
use crate::http::answer::{Answer, problem_of, refusal};
use crate::http::body::{self, Kind};
use crate::http::resent::once;
use crate::http::verbs::event_of;
use crate::http::{Api, BY, query, respond};
use crate::limits;
use crate::shard::create::Created;
use crate::shard::messages::{OpDone, VerbRefused};
use crate::wire;
use crate::wire::batch::{BatchOut, ItemOut, Items, Op};
use crate::wire::problem::{Code, Problem};

/// How much of each task is answered.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Detail {
    Whole,
    Ids,
}

fn detail(req: &HttpRequest) -> Result<Detail, Problem> {
    match query(req, &["return"])?
        .first()
        .map(|(_, value)| value.as_str())
    {
        None | Some("task") => Ok(Detail::Whole),
        Some("ids") => Ok(Detail::Ids),
        Some(_) => Err(Problem::of_field(
            "/return",
            "unknown_word",
            "must be `ids` or `task`, or left out",
        )),
    }
}

/// Creates up to 10 000 tasks. Each item has a result of its own, in order.
#[utoipa::path(post, path = "/v1/tasks/batch", tag = "tasks",
    params(("return" = Option<String>, Query, description = "`ids`: answer only ids"),
           ("Idempotency-Key" = Option<String>, Header, description = "the same key and body again gets the same tasks")),
    request_body(content(
        (wire::batch::CreateBatch = "application/json"),
        (String = "application/x-ndjson"))),
    responses(
    (status = 200, description = "one result per item, in order", body = BatchOut),
    (status = 413, description = "the body is too large", body = wire::problem::ProblemBody, content_type = "application/problem+json"),
    (status = 422, description = "more than 10 000 items, or no list of items", body = wire::problem::ProblemBody, content_type = "application/problem+json")))]
pub async fn create_many(req: HttpRequest, payload: Payload, api: Data<Api>) -> HttpResponse {
    respond(async {
        let detail = detail(&req)?;
        let body = body::read(&req, payload, limits::BATCH_BYTES_MAX, api.body_timeout).await?;
        let limits = api.in_limits();
        let items = match body::kind(&req, &body)? {
            Kind::Json => wire::batch::creates(&body, &limits)?,
            Kind::Ndjson => wire::batch::creates_by_line(&body, &limits)?,
        };
        let ops = items
            .into_iter()
            .map(|item| item.map(|new| BatchOp::Create(Box::new(new))))
            .collect();
        apply(&req, &api, &body, ops, detail).await
    })
    .await
}

/// Applies up to 10 000 operations, in order for each task. Each has a result of its own.
#[utoipa::path(post, path = "/v1/batch", tag = "tasks",
    params(("return" = Option<String>, Query, description = "`ids`: answer only ids"),
           ("Idempotency-Key" = Option<String>, Header, description = "the same key and body again gets the same tasks")),
    request_body = wire::batch::OpBatch,
    responses(
    (status = 200, description = "one result per operation, in order", body = BatchOut),
    (status = 413, description = "the body is too large", body = wire::problem::ProblemBody, content_type = "application/problem+json"),
    (status = 422, description = "more than 10 000 operations, or no list of them", body = wire::problem::ProblemBody, content_type = "application/problem+json")))]
pub async fn run(req: HttpRequest, payload: Payload, api: Data<Api>) -> HttpResponse {
    respond(async {
        let detail = detail(&req)?;
        let body = body::read(&req, payload, limits::BATCH_BYTES_MAX, api.body_timeout).await?;
        if body::kind(&req, &body)? == Kind::Ndjson {
            let detail = "lines of JSON are taken by /v1/tasks/batch alone; send `content-type: application/json`";
            return Err(Problem::new(Code::UnsupportedMediaType, detail));
        }
        let now = api.engine.now();
        let op = |op| match op {
            Op::Create(new) => BatchOp::Create(new),
            Op::Verb(target, verb) => BatchOp::Verb(target, event_of(verb, now)),
        };
        let ops = wire::batch::ops(&body, &api.in_limits())?;
        let ops = ops.into_iter().map(|item| item.map(op)).collect();
        apply(&req, &api, &body, ops, detail).await
    })
    .await
}

async fn apply(
    req: &HttpRequest,
    api: &Data<Api>,
    body: &Bytes,
    ops: Items<BatchOp>,
    detail: Detail,
) -> Result<Answer, Problem> {
    let engine = api.engine.clone();
    once(api, req, body, move |origin| async move {
        let mut refused = Vec::new();
        let mut good = Vec::with_capacity(ops.len());
        for op in ops {
            match op {
                Ok(op) => {
                    good.push(op);
                    refused.push(None);
                }
                Err(problem) => refused.push(Some(problem)),
            }
        }
        let mut done = engine.batch(good, origin, BY).await.into_iter();
        // Each place holds its refusal or what was done, so that the answer can borrow from both.
        let results: Vec<Result<OpDone, Problem>> = refused
            .into_iter()
            .map(|refused| match refused {
                Some(problem) => Err(problem),
                None => settled(done.next()),
            })
            .collect();
        let items = results
            .iter()
            .map(|result| item_of(result, detail))
            .collect();
        Ok(Answer::json(200, &BatchOut { items }))
    })
    .await
}

/// What was done, or why it was not.
fn settled(done: Option<Result<OpDone, EngineError>>) -> Result<OpDone, Problem> {
    match done {
        Some(Ok(OpDone::Created(Created::Exists(id)))) => Err(refusal(&VerbRefused::Exists(id))),
        Some(Ok(OpDone::Created(Created::Refused(refused)))) => {
            Err(refusal(&VerbRefused::Refused(refused)))
        }
        Some(Ok(OpDone::Verb(Err(refused)))) => Err(refusal(&refused)),
        Some(Ok(done)) => Ok(done),
        Some(Err(error)) => Err(problem_of(&error)),
        None => Err(Problem::new(
            Code::Internal,
            "the batch gave fewer results than operations",
        )),
    }
}

fn item_of(result: &Result<OpDone, Problem>, detail: Detail) -> ItemOut<'_> {
    let (status, view) = match result {
        Err(problem) => return ItemOut::error(problem),
        Ok(OpDone::Created(Created::New(view))) => (201, view),
        Ok(OpDone::Created(Created::Existing(view) | Created::Cancelled(view))) => (200, view),
        Ok(OpDone::Verb(Ok(done))) => {
            let status = if done.stopping { 202 } else { 200 };
            return match detail {
                Detail::Ids => ItemOut::id(status, done.view.id()),
                Detail::Whole => ItemOut::slim(status, done.view.slim()),
            };
        }
        // `settled` made problems of these.
        Ok(OpDone::Created(Created::Exists(_) | Created::Refused(_)) | OpDone::Verb(Err(_))) => {
            return ItemOut::bare(409);
        }
    };
    match detail {
        Detail::Ids => ItemOut::id(status, view.task.id),
        Detail::Whole => ItemOut::whole(status, view),
    }
}

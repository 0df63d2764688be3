//! Many at once: creates, and mixed operations. Each item gets what it would have been answered on its own.

use actix_web::web::{Data, Payload};
use actix_web::{HttpRequest, HttpResponse};

use crate::engine::batch::breathe;
use crate::engine::handle::{BatchOp, Origin};
use crate::engine::{Duetime, EngineError};
use crate::http::answer::{Answer, is_passing_status, problem_of, refusal, unwritable};
use crate::http::body::{self, Kind};
use crate::http::resent::once;
use crate::http::verbs::event_of;
use crate::http::{Api, BY, query, respond};
use crate::limits;
use crate::shard::create::Created;
use crate::shard::messages::{OpDone, VerbRefused, Wants};
use crate::wire;
use crate::wire::batch::{Op, Unread};
use crate::wire::batch_out::{BatchBody, BatchOut, ItemOut};
use crate::wire::problem::{Code, Problem};

/// How much of each task is answered.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Detail {
    Whole,
    Ids,
}

impl Detail {
    /// About as long is an item of the answer.
    fn item_bytes(self) -> usize {
        match self {
            Self::Whole => 512,
            Self::Ids => 64,
        }
    }
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
    (status = 200, description = "one result per item, in order", body = BatchBody),
    (status = 413, description = "the body is too large", body = wire::problem::ProblemBody, content_type = "application/problem+json"),
    (status = 422, description = "more than 10 000 items, or no list of items", body = wire::problem::ProblemBody, content_type = "application/problem+json")))]
pub async fn create_many(req: HttpRequest, payload: Payload, api: Data<Api>) -> HttpResponse {
    respond(async {
        let detail = detail(&req)?;
        let body = body::read(&req, payload, limits::BATCH_BYTES_MAX, api.body_timeout).await?;
        let unread = match body::kind(&req, &body)? {
            Kind::Json => Unread::items(body.clone())?,
            Kind::Ndjson => Unread::lines(body.clone())?,
        };
        let (engine, limits) = (api.engine.clone(), api.in_limits());
        once(&api, &req, &body, move |origin| async move {
            let news = unread.read_creates(&limits);
            let ops = news.map(|new| new.map(|new| BatchOp::Create(Box::new(new))));
            apply(&engine, ops, origin, detail).await
        })
        .await
    })
    .await
}

/// Applies up to 10 000 operations, in order for each task. Each has a result of its own.
#[utoipa::path(post, path = "/v1/batch", tag = "tasks",
    params(("return" = Option<String>, Query, description = "`ids`: answer only ids"),
           ("Idempotency-Key" = Option<String>, Header, description = "the same key and body again gets the same tasks")),
    request_body = wire::batch::OpBatch,
    responses(
    (status = 200, description = "one result per operation, in order", body = BatchBody),
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
        let unread = Unread::ops(body.clone())?;
        let (engine, limits) = (api.engine.clone(), api.in_limits());
        once(&api, &req, &body, move |origin| async move {
            let now = engine.now();
            let op = |op| match op {
                Op::Create(new) => BatchOp::Create(new),
                Op::Verb(target, verb) => BatchOp::Verb(target, event_of(verb, now)),
            };
            let ops = unread.read_ops(&limits).map(|read| read.map(op));
            apply(&engine, ops, origin, detail).await
        })
        .await
    })
    .await
}

/// Has the good operations done, and answers for all of them in order.
async fn apply(
    engine: &Duetime,
    ops: impl Iterator<Item = Result<BatchOp, Problem>> + Send,
    origin: Option<Origin>,
    detail: Detail,
) -> Result<Answer, Problem> {
    let mut refused = Vec::new();
    let good = ops
        .enumerate()
        .filter_map(|(place, op)| op.map_err(|problem| refused.push((place, problem))).ok());
    let wants = match detail {
        Detail::Whole => Wants::Whole,
        Detail::Ids => Wants::Slim,
    };
    let done = engine.batch(good, origin, wants, BY).await;
    let count = refused.len() + done.len();
    let (mut refused, mut done) = (refused.into_iter().peekable(), done.into_iter());
    let mut out = BatchOut::new(count, detail.item_bytes());
    let mut is_passing = false;
    for place in 0..count {
        let result = match refused.next_if(|(refused, _)| *refused == place) {
            Some((_, problem)) => Err(problem),
            None => settled(done.next()),
        };
        is_passing |= matches!(&result, Err(problem) if is_passing_status(problem.status()));
        out.push(&item_of(&result, detail)).map_err(unwritable)?;
        breathe(place).await;
    }
    Ok(Answer {
        is_passing,
        ..Answer::of_bytes(200, out.finish())
    })
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
    match view.whole() {
        Some(view) if detail == Detail::Whole => ItemOut::whole(status, view),
        _ => ItemOut::id(status, view.id()),
    }
}

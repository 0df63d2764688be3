//! Bulk jobs: one verb for many tasks.

use actix_web::web::{self, Data, Path, Payload, ServiceConfig};
use actix_web::{HttpRequest, HttpResponse};
use serde::Serialize;
use serde_json::value::RawValue;
use utoipa::ToSchema;

use crate::clock::WallMs;
use crate::engine::bulk::job::{BulkCounts, Sample};
use crate::engine::bulk::{BulkId, BulkJob, BulkRefused, BulkVerb};
use crate::http::answer::{Answer, problem_of};
use crate::http::resent::once;
use crate::http::{Api, BY, at, query, respond};
use crate::wire::bulk::{BulkAsk, CreateBulk};
use crate::wire::problem::{Problem, ProblemBody};
use crate::wire::time::Time;
use crate::wire::verbs::nothing;

/// Mounts the routes.
pub(super) fn mount(config: &mut ServiceConfig) {
    config
        .service(
            at("/v1/bulk")
                .route(web::get().to(list))
                .route(web::post().to(begin)),
        )
        .service(at("/v1/bulk/{id}").route(web::get().to(get)))
        .service(at("/v1/bulk/{id}/pause").route(web::post().to(pause)))
        .service(at("/v1/bulk/{id}/resume").route(web::post().to(resume)))
        .service(at("/v1/bulk/{id}/stop").route(web::post().to(stop)))
        .service(at("/v1/bulk/{id}/undo").route(web::post().to(undo)));
}

/// A bulk job, as it is answered.
#[derive(Debug, Serialize, ToSchema)]
pub struct BulkOut<'a> {
    /// Its id.
    #[schema(value_type = String)]
    id: String,
    /// `running`, `paused`, `done`, `stopped`, `undoing` or `undone`.
    state: &'static str,
    /// What is done to each task.
    action: &'static str,
    /// What it was asked, as it came.
    #[schema(value_type = Object)]
    asked: Box<RawValue>,
    /// Tasks per second, at most.
    rate: u32,
    /// Nothing is done; `done` counts the tasks that it would be done to.
    dry_run: bool,
    /// Who asked for it.
    by: &'a str,
    /// When it began. Newer tasks are none of its business.
    begun_at: Time,
    /// When it ended, if it has.
    ended_at: Option<Time>,
    /// Whether `undo` can take back what it did.
    can_undo: bool,
    /// What became of the tasks: `looked_at` records; `matched` tasks that the filter takes in; of these `done`,
    /// `refused` by code, and `failed`, which can't be read; of those done `undone`, and `kept`, because somebody has
    /// changed them since.
    #[schema(value_type = Object)]
    counts: &'a BulkCounts,
    /// Up to 20 tasks: those that did not let it be done, with the code; of a dry run also those that would.
    #[schema(value_type = Vec<Object>)]
    sample: &'a [Sample],
}

impl<'a> From<&'a BulkJob> for BulkOut<'a> {
    fn from(job: &'a BulkJob) -> Self {
        let progress = &job.progress;
        Self {
            id: job.id.to_string(),
            state: progress.state.name(),
            action: job.ask.action.word(),
            asked: RawValue::from_string(job.ask.body.clone()).unwrap_or_default(),
            rate: job.ask.rate,
            dry_run: job.ask.dry_run,
            by: &job.by,
            begun_at: Time(WallMs(progress.begun_ms)),
            ended_at: progress.ended_ms.map(|at| Time(WallMs(at))),
            can_undo: job.keeps_pages(),
            counts: &progress.counts,
            sample: &progress.sample,
        }
    }
}

fn answer(status: u16, job: &BulkJob) -> Answer {
    Answer::json(status, &BulkOut::from(job))
}

/// The id in a path. What is no id names no job.
fn named(id: &str) -> Result<BulkId, Problem> {
    let unknown = |_| problem_of(&BulkRefused::Unknown(id.to_owned()).into());
    id.parse().map_err(unknown)
}

/// Begins a bulk job: one verb for every task that the filter takes in, in the background, at a rate. The tasks that
/// match when the job comes to them, and are no newer than it, are changed, each once.
#[utoipa::path(post, path = "/v1/bulk", tag = "bulk", operation_id = "begin_bulk", request_body = CreateBulk,
    params(("Idempotency-Key" = Option<String>, Header, description = "the same key and body again gets the same job, for 24 h")),
    responses(
    (status = 202, description = "stored and on its way, also with `dry_run`", body = BulkOut<'static>),
    (status = 422, description = "not valid; `empty_filter`: the filter would take in everything", body = ProblemBody, content_type = "application/problem+json"),
    (status = 429, description = "16 are under way (`too_many_requests`)", body = ProblemBody, content_type = "application/problem+json")))]
pub async fn begin(req: HttpRequest, payload: Payload, api: Data<Api>) -> HttpResponse {
    respond(async {
        query(&req, &[])?;
        let body = api.json(&req, payload).await?;
        let ask = BulkAsk::read(&body, &api.in_limits())?;
        let engine = api.engine.clone();
        once(&api, &req, &body, move |origin| async move {
            let job = engine.begin_bulk(ask, origin, BY).await;
            Ok(answer(202, &*job.map_err(|error| problem_of(&error))?))
        })
        .await
    })
    .await
}

/// The bulk jobs that are kept, the latest first: those under way (at most 16), and the latest 20 that ended in the
/// last 7 days.
#[utoipa::path(get, path = "/v1/bulk", tag = "bulk", operation_id = "list_bulk", responses(
    (status = 200, description = "`{items, next_cursor}`; all fit on one page", body = Object)))]
pub async fn list(req: HttpRequest, api: Data<Api>) -> HttpResponse {
    #[derive(Serialize)]
    struct Page<'a> {
        items: Vec<BulkOut<'a>>,
        next_cursor: Option<String>,
    }
    respond(async {
        query(&req, &[])?;
        let jobs = api.engine.bulk_jobs();
        let items = jobs.iter().map(|job| BulkOut::from(&**job)).collect();
        let next_cursor = None;
        Ok(Answer::json(200, &Page { items, next_cursor }))
    })
    .await
}

/// How far a bulk job is.
#[utoipa::path(get, path = "/v1/bulk/{id}", tag = "bulk", operation_id = "get_bulk", params(("id" = String, Path, description = "its id")), responses(
    (status = 200, description = "the job", body = BulkOut<'static>),
    (status = 404, description = "there is none", body = ProblemBody, content_type = "application/problem+json")))]
pub async fn get(req: HttpRequest, api: Data<Api>, id: Path<String>) -> HttpResponse {
    respond(async {
        query(&req, &[])?;
        let job = api.engine.bulk_job(named(&id)?);
        Ok(answer(200, &*job.map_err(|error| problem_of(&error))?))
    })
    .await
}

macro_rules! verbs {
    ($($name:ident, $Verb:ident, $path:literal, $operation:literal, $what:literal;)*) => {$(
        #[doc = $what]
        #[utoipa::path(post, path = $path, tag = "bulk", operation_id = $operation, params(("id" = String, Path, description = "its id")), responses(
            (status = 200, description = "the job as it is now", body = BulkOut<'static>),
            (status = 404, description = "there is none", body = ProblemBody, content_type = "application/problem+json"),
            (status = 409, description = "`illegal_state`: names the state; `not_undoable`: says why", body = ProblemBody, content_type = "application/problem+json")))]
        pub async fn $name(req: HttpRequest, payload: Payload, api: Data<Api>, id: Path<String>) -> HttpResponse {
            run(req, payload, api, id, BulkVerb::$Verb).await
        }
    )*};
}
verbs! {
    pause, Pause, "/v1/bulk/{id}/pause", "pause_bulk", "Holds a bulk job after the tasks that it has in hand.";
    resume, Resume, "/v1/bulk/{id}/resume", "resume_bulk", "Lets a bulk job that is held go on.";
    stop, Stop, "/v1/bulk/{id}/stop", "stop_bulk", "Ends a bulk job after the tasks that it has in hand. What it did stays.";
    undo, Undo, "/v1/bulk/{id}/undo", "undo_bulk", "Takes back what a pause, resume or reschedule did, at the job's rate; tasks that somebody else has changed since are left as they are. A due time that has passed meanwhile means now.";
}

async fn run(
    req: HttpRequest,
    payload: Payload,
    api: Data<Api>,
    id: Path<String>,
    verb: BulkVerb,
) -> HttpResponse {
    respond(async {
        query(&req, &[])?;
        let body = api.json(&req, payload).await?;
        nothing(&body)?;
        let id = named(&id)?;
        let engine = api.engine.clone();
        once(&api, &req, &body, move |_| async move {
            let job = engine.bulk_verb(id, verb, BY).await;
            Ok(answer(200, &*job.map_err(|error| problem_of(&error))?))
        })
        .await
    })
    .await
}

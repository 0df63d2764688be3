//! The workers there are, by the names that they give themselves.

use actix_web::HttpRequest;
use actix_web::HttpResponse;
use actix_web::web::Data;
use serde::Serialize;
use utoipa::ToSchema;
use uuid::Uuid;

use crate::engine::workers::{HeldTask, WorkerView};
use crate::http::answer::{Answer, problem_of};
use crate::http::{Api, resources, respond};
use crate::task::TopicName;
use crate::wire::problem::ProblemBody;
use crate::wire::time::Time;

/// A worker.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Worker)]
pub struct WorkerOut<'a> {
    /// Its name; empty for all that have none.
    #[schema(value_type = String)]
    name: &'a str,
    /// What it asked for last.
    #[schema(value_type = Vec<String>)]
    topics: Vec<&'a str>,
    /// When it was first heard of since the start.
    since: Time,
    /// When it was last heard of.
    last_seen_at: Time,
    /// How many of its questions for tasks wait now.
    waiting: u32,
    /// How many tasks it holds now.
    leases: u64,
    /// Some of them.
    tasks: Vec<HeldOut>,
    /// How many it has leased since the start.
    leased: u64,
    /// Of them, done.
    completed: u64,
    /// Of them, failed by its word.
    failed: u64,
    /// Of them, lost: the lease ran out, or the task's time.
    lost: u64,
}

/// A task in a worker's hands.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = HeldTask)]
pub struct HeldOut {
    id: Uuid,
    /// Since when.
    since: Time,
}

impl From<&HeldTask> for HeldOut {
    fn from(held: &HeldTask) -> Self {
        Self {
            id: held.id.uuid(),
            since: Time(held.since),
        }
    }
}

impl<'a> From<&'a WorkerView> for WorkerOut<'a> {
    fn from(worker: &'a WorkerView) -> Self {
        let counts = worker.counts;
        Self {
            name: &worker.name,
            topics: worker.topics.iter().map(TopicName::as_str).collect(),
            since: Time(worker.since),
            last_seen_at: Time(worker.last_seen),
            waiting: worker.waiting,
            leases: counts.leases,
            tasks: worker.held.iter().map(HeldOut::from).collect(),
            leased: counts.leased,
            completed: counts.completed,
            failed: counts.failed,
            lost: counts.lost,
        }
    }
}

/// A list of workers.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Workers)]
pub struct WorkersOut<'a> {
    /// By name.
    items: Vec<WorkerOut<'a>>,
    /// Where the next page begins; null on the last.
    next_cursor: Option<String>,
}

/// Who leases tasks: what it asks for and holds, since when, and what became of it. Counts are since the start; who was
/// not heard of for a day, and holds nothing, is not listed.
#[utoipa::path(get, path = "/v1/workers", tag = "operate", operation_id = "list_workers",
    params(("limit" = Option<u16>, Query, description = "most of one page; default 100"), ("cursor" = Option<String>, Query, description = "the `next_cursor` of the page before")),
    responses((status = 200, description = "a page of them", body = WorkersOut),
    (status = 503, description = "a shard is being restarted", body = ProblemBody, content_type = "application/problem+json")))]
pub async fn list(req: HttpRequest, api: Data<Api>) -> HttpResponse {
    respond(async {
        let (limit, after) = resources::page(&req)?;
        let workers = api.engine.workers().await;
        let workers = workers.map_err(|error| problem_of(&error))?;
        // Who has no name comes first.
        let is_behind =
            |worker: &&WorkerView| after.as_ref().is_none_or(|after| worker.name > *after);
        let mut rest: Vec<_> = workers.iter().filter(is_behind).collect();
        let more = rest.len() > limit;
        rest.truncate(limit);
        let last = rest.last().filter(|_| more);
        let next_cursor = last.map(|worker| worker.name.clone());
        let items = rest.into_iter().map(WorkerOut::from).collect();
        Ok(Answer::json(200, &WorkersOut { items, next_cursor }))
    })
    .await
}

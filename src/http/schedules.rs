//! Schedules: what repeats.

use actix_web::web::{self, Data, Path, Payload, ServiceConfig};
use actix_web::{HttpRequest, HttpResponse};
use serde_json::value::RawValue;

use crate::clock::WallMs;
use crate::engine::registry::kind::Kind;
use crate::http::answer::{Answer, problem_of};
use crate::http::resent::once;
use crate::http::resources::{self, Shown, VersionOut, named, raw};
use crate::http::tasks::answer_created;
use crate::http::{Api, BY, at, query, respond};
use crate::rule::Schedule;
use crate::rule::book::Kept;
use crate::task::spec::ResourceName;
use crate::wire;
use crate::wire::problem::ProblemBody;
use crate::wire::schedule::{Progress, ScheduleOut};
use crate::wire::task_out::TaskOut;

/// Mounts the routes.
pub(super) fn mount(config: &mut ServiceConfig) {
    config
        .service(at("/v1/schedules").route(web::get().to(list)))
        .service(
            at("/v1/schedules/{name}")
                .route(web::get().to(get))
                .route(web::put().to(put))
                .route(web::delete().to(delete)),
        )
        .service(at("/v1/schedules/{name}/versions").route(web::get().to(versions)))
        .service(at("/v1/schedules/{name}/preview").route(web::get().to(preview)))
        .service(at("/v1/schedules/{name}/pause").route(web::post().to(pause)))
        .service(at("/v1/schedules/{name}/resume").route(web::post().to(resume)))
        .service(at("/v1/schedules/{name}/run-now").route(web::post().to(run_now)));
}

impl Shown for Schedule {
    fn shown(
        api: &Api,
        name: &ResourceName,
        kept: &Kept<Self>,
    ) -> serde_json::Result<Box<RawValue>> {
        let progress = progress(api, name, kept);
        raw(&ScheduleOut::new(
            name,
            kept.version,
            &kept.meaning,
            progress,
        ))
    }
}

/// How far it is; what was put a moment ago may not have been looked at yet.
fn progress(api: &Api, name: &ResourceName, kept: &Kept<Schedule>) -> Progress {
    let position = api.engine.schedule_position(name);
    let is_paused = position.as_ref().is_some_and(|position| position.is_paused);
    let present = position.filter(|position| position.version == kept.version);
    let (runs, last, stored) = present.as_ref().map_or((0, None, None), |position| {
        (position.runs, position.ran_ms, position.stored_ms)
    });
    let has_ended = kept.meaning.count.is_some_and(|count| runs >= count);
    let now = api.engine.now().wall;
    let next = match stored {
        _ if is_paused || has_ended => None,
        Some(stored) => Some(WallMs(stored)),
        None => kept.meaning.next(now, kept.changed_at),
    };
    Progress {
        is_paused,
        next,
        last: last.map(WallMs),
        runs,
    }
}

/// All schedules, by name.
#[utoipa::path(get, path = "/v1/schedules", tag = "schedules", operation_id = "list_schedules",
    params(("limit" = Option<u16>, Query, description = "most of one page; default 100"), ("cursor" = Option<String>, Query, description = "the `next_cursor` of the page before")),
    responses((status = 200, description = "a page of them", body = Object)))]
pub async fn list(req: HttpRequest, api: Data<Api>) -> HttpResponse {
    respond(async { resources::list::<Schedule>(&req, &api) }).await
}

/// A schedule, and how far it is.
#[utoipa::path(get, path = "/v1/schedules/{name}", tag = "schedules", operation_id = "get_schedule", params(("name" = String, Path, description = "its name")), responses(
    (status = 200, description = "the schedule", body = ScheduleOut),
    (status = 404, description = "there is none", body = ProblemBody, content_type = "application/problem+json")))]
pub async fn get(req: HttpRequest, api: Data<Api>, name: Path<String>) -> HttpResponse {
    respond(async { resources::get::<Schedule>(&req, &api, &name) }).await
}

/// Puts a schedule in the place of what has its name. It begins anew: the occurrence that was stored is called off.
#[utoipa::path(put, path = "/v1/schedules/{name}", tag = "schedules", operation_id = "put_schedule", params(("name" = String, Path, description = "its name")),
    request_body = wire::schedule::PutSchedule, responses(
    (status = 200, description = "replaced", body = ScheduleOut),
    (status = 201, description = "new", body = ScheduleOut),
    (status = 422, description = "the body is not valid, or it never fires (`never_fires`)", body = ProblemBody, content_type = "application/problem+json")))]
pub async fn put(
    req: HttpRequest,
    payload: Payload,
    api: Data<Api>,
    name: Path<String>,
) -> HttpResponse {
    respond(async { resources::put::<Schedule>(&req, payload, &api, &name).await }).await
}

/// Takes a schedule away, and calls off its next occurrence. One that runs goes on.
#[utoipa::path(delete, path = "/v1/schedules/{name}", tag = "schedules", operation_id = "delete_schedule", params(("name" = String, Path, description = "its name")), responses(
    (status = 200, description = "gone", body = Object),
    (status = 404, description = "there is none", body = ProblemBody, content_type = "application/problem+json")))]
pub async fn delete(req: HttpRequest, api: Data<Api>, name: Path<String>) -> HttpResponse {
    respond(async {
        query(&req, &[])?;
        let name = named(Kind::Schedule, &name)?;
        let engine = api.engine.clone();
        let gone = name.clone();
        // It is done to its end even if nobody waits for it.
        let deleted = api
            .engine
            .apart(async move { engine.delete_schedule(gone, BY).await });
        deleted.await.map_err(|error| problem_of(&error))?;
        Ok(resources::deleted_answer(&name))
    })
    .await
}

/// The versions that are kept of a schedule, the latest first.
#[utoipa::path(get, path = "/v1/schedules/{name}/versions", tag = "schedules", operation_id = "list_schedule_versions", params(("name" = String, Path, description = "its name")), responses(
    (status = 200, description = "`{items}`", body = [VersionOut<'static>]),
    (status = 404, description = "there is none", body = ProblemBody, content_type = "application/problem+json")))]
pub async fn versions(req: HttpRequest, api: Data<Api>, name: Path<String>) -> HttpResponse {
    respond(async { resources::versions::<Schedule>(&req, &api, &name).await }).await
}

/// The next times of a schedule, within its start and end; nothing is created.
#[utoipa::path(get, path = "/v1/schedules/{name}/preview", tag = "schedules", operation_id = "preview_schedule",
    params(("name" = String, Path, description = "its name"), ("after" = Option<String>, Query, description = "strictly after this time; default now"), ("count" = Option<u16>, Query, description = "how many; default 10")),
    responses(
    (status = 200, description = "times strictly after `after`; none when it has ended", body = wire::cron::Times),
    (status = 404, description = "there is none", body = ProblemBody, content_type = "application/problem+json")))]
pub async fn preview(req: HttpRequest, api: Data<Api>, name: Path<String>) -> HttpResponse {
    respond(async {
        let query = query(&req, &["after", "count"])?;
        let name = named(Kind::Schedule, &name)?;
        let kept = api.engine.resource::<Schedule>(&name);
        let kept = kept.map_err(|error| problem_of(&error))?;
        let now = api.engine.now().wall;
        let times = wire::schedule::preview(&kept.meaning, kept.changed_at, &query, now)?;
        Ok(Answer::json(200, &times))
    })
    .await
}

/// Holds a schedule: its next occurrence is called off, and none is made until it is resumed.
#[utoipa::path(post, path = "/v1/schedules/{name}/pause", tag = "schedules", operation_id = "pause_schedule", params(("name" = String, Path, description = "its name")), responses(
    (status = 200, description = "held", body = ScheduleOut),
    (status = 404, description = "there is none", body = ProblemBody, content_type = "application/problem+json")))]
pub async fn pause(
    req: HttpRequest,
    payload: Payload,
    api: Data<Api>,
    name: Path<String>,
) -> HttpResponse {
    hold(req, payload, api, name, true).await
}

/// Lets a schedule go on with its next occurrence; those that passed while it was held are gone.
#[utoipa::path(post, path = "/v1/schedules/{name}/resume", tag = "schedules", operation_id = "resume_schedule", params(("name" = String, Path, description = "its name")), responses(
    (status = 200, description = "goes on", body = ScheduleOut),
    (status = 404, description = "there is none", body = ProblemBody, content_type = "application/problem+json")))]
pub async fn resume(
    req: HttpRequest,
    payload: Payload,
    api: Data<Api>,
    name: Path<String>,
) -> HttpResponse {
    hold(req, payload, api, name, false).await
}

async fn hold(
    req: HttpRequest,
    payload: Payload,
    api: Data<Api>,
    name: Path<String>,
    pause: bool,
) -> HttpResponse {
    respond(async {
        query(&req, &[])?;
        let name = named(Kind::Schedule, &name)?;
        let body = api.json(&req, payload).await?;
        wire::verbs::nothing(&body)?;
        let apart = api.clone();
        once(&api, &req, &body, move |_| async move {
            let engine = &apart.engine;
            let done = match pause {
                true => engine.pause_schedule(name.clone(), BY).await,
                false => engine.resume_schedule(name.clone(), BY).await,
            };
            let kept = done.and_then(|()| engine.resource::<Schedule>(&name));
            let kept = kept.map_err(|error| problem_of(&error))?;
            resources::answer(200, &apart, &name, &*kept)
        })
        .await
    })
    .await
}

/// Makes an occurrence now, beside all others, also of a schedule that is held. Answers its task.
#[utoipa::path(post, path = "/v1/schedules/{name}/run-now", tag = "schedules", operation_id = "run_schedule_now", params(("name" = String, Path, description = "its name")), responses(
    (status = 201, description = "its task", body = TaskOut),
    (status = 404, description = "there is none", body = ProblemBody, content_type = "application/problem+json")))]
pub async fn run_now(
    req: HttpRequest,
    payload: Payload,
    api: Data<Api>,
    name: Path<String>,
) -> HttpResponse {
    respond(async {
        query(&req, &[])?;
        let name = named(Kind::Schedule, &name)?;
        let body = api.json(&req, payload).await?;
        wire::verbs::nothing(&body)?;
        let engine = api.engine.clone();
        once(&api, &req, &body, move |origin| async move {
            let created = engine.run_schedule_now(&name, origin, BY).await;
            answer_created(&created.map_err(|error| problem_of(&error))?)
        })
        .await
    })
    .await
}

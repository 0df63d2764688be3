//! The OpenAPI 3.1 document, made from the routes' own declarations, and the page that shows it.

use actix_web::web::ServiceConfig;
use actix_web::{HttpRequest, HttpResponse};
use utoipa::OpenApi;

use crate::http::{
    amend, batch, bulk, calendars, completion, forecast, late, leases, metrics, ops, query,
    respond, rules, schedules, simulate, store, tasks, topics, verbs, workers,
};

/// The document's source.
#[derive(OpenApi)]
#[openapi(
    info(
        title = "duetime",
        description = "A durable timeout center. It is told what must happen and when, and makes it happen on time, once, through crashes.\n\nErrors are problem details (RFC 9457) with a stable `code`. Times are RFC 3339 with offset in, UTC with milliseconds out; lengths are ISO 8601 durations."
    ),
    tags(
        (name = "tasks", description = "Create, look at, change"),
        (name = "bulk", description = "One verb for many tasks"),
        (name = "workers", description = "Lease due tasks and answer for them"),
        (name = "topics", description = "Defaults and pauses of a business line"),
        (name = "schedules", description = "What repeats, and when people work"),
        (name = "operate", description = "How the service is")
    ),
    paths(
        tasks::list, tasks::create, tasks::get, tasks::get_by_key, tasks::attempts, tasks::log, tasks::attempts_by_key, tasks::log_by_key,
        late::of_task, late::by_key, late::list,
        amend::amend, amend::amend_by_key, batch::create_many, batch::run,
        verbs::cancel, verbs::pause, verbs::resume, verbs::reschedule, verbs::run_now, verbs::complete, verbs::fail,
        verbs::replay, verbs::resolve, verbs::discard,
        verbs::cancel_by_key, verbs::pause_by_key, verbs::resume_by_key, verbs::reschedule_by_key,
        verbs::run_now_by_key, verbs::complete_by_key, verbs::fail_by_key, verbs::replay_by_key,
        verbs::resolve_by_key, verbs::discard_by_key,
        leases::lease, leases::heartbeat, leases::complete, leases::fail, leases::snooze, completion::complete,
        bulk::begin, bulk::list, bulk::get, bulk::pause, bulk::resume, bulk::stop, bulk::undo,
        topics::list, topics::get, topics::put, topics::delete, topics::pause, topics::resume,
        calendars::list, calendars::get, calendars::put, calendars::delete, calendars::versions, calendars::import,
        rules::list, rules::get, rules::put, rules::delete, rules::versions, rules::rollout, rules::rollback,
        rules::diff, rules::preview, rules::enable, rules::disable,
        schedules::list, schedules::get, schedules::put, schedules::delete, schedules::versions, schedules::preview,
        schedules::pause, schedules::resume, schedules::run_now,
        ops::preview_cron, simulate::simulate, forecast::forecast,
        ops::preview_retry, ops::stats, ops::shards, ops::restart_shard, store::backup, store::backup_status, store::export, store::export_status, ops::actors, workers::list, ops::livez, ops::readyz,
        metrics::metrics
    )
)]
pub struct Document;

/// Serves the document.
pub async fn document(req: HttpRequest) -> HttpResponse {
    if let Err(problem) = query(&req, &[]) {
        return respond(async { Err(problem) }).await;
    }
    HttpResponse::Ok().json(Document::openapi())
}

/// Mounts the page at `/docs`; all that it loads comes with this binary.
#[cfg(feature = "api-page")]
pub fn page(config: &mut ServiceConfig) {
    use utoipa_swagger_ui::SwaggerUi;

    let to_page = actix_web::web::redirect("/docs", "/docs/");
    config.service(to_page);
    config.service(
        SwaggerUi::new("/docs/{_:.*}").config(utoipa_swagger_ui::Config::new(["/openapi.json"])),
    );
}

/// Built without the page.
#[cfg(not(feature = "api-page"))]
pub fn page(_: &mut ServiceConfig) {}

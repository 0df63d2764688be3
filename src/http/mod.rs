//! The HTTP API: it translates, it never decides.
//!
//! ```text
//!  request ─▶ guard (panics, marks) ─▶ body (size, time, kind) ─▶ wire (JSON → domain) ─▶ engine
//!                                                                                        │
//!  response ◀─ answer (problem details) ◀──────────────── wire (domain → JSON) ◀─────────┘
//! ```
//!
//! [`configure`] mounts all routes into any actix-web `App`; [`server`] is the service's own. Routes are declared
//! once, in `openapi`, which is also where the OpenAPI document comes from.

pub mod amend;
mod answer;
mod batch;
mod body;
mod bulk;
mod calendars;
mod completion;
mod connections;
mod forecast;
mod guard;
mod late;
mod leases;
mod metrics;
mod openapi;
mod ops;
mod resent;
mod resources;
mod rules;
mod schedules;
pub mod server;
mod simulate;
mod store;
mod tasks;
mod topics;
mod verbs;
mod workers;

use std::sync::Arc;
use std::time::Duration;

use actix_web::middleware::from_fn;
use actix_web::web::{self, Data, Payload, ServiceConfig};
use actix_web::{HttpRequest, HttpResponse, Resource};
use bytes::Bytes;

use crate::clock::DurationMs;
use crate::engine::Duetime;
use crate::http::answer::Answer;
use crate::http::guard::AnswerCounts;
use crate::limits;
use crate::wire::problem::{Code, Problem};

/// Who acts when a request says nothing else.
const BY: &str = "api";

/// What the routes need beside the engine.
#[derive(Clone, Debug)]
pub struct HttpOptions {
    /// Longest time that a body may take.
    pub body_timeout: DurationMs,
}

impl Default for HttpOptions {
    fn default() -> Self {
        Self {
            body_timeout: DurationMs::secs(30),
        }
    }
}

/// What every route has at hand.
#[derive(Debug)]
pub struct Api {
    engine: Duetime,
    body_timeout: Duration,
    answers: AnswerCounts,
}

/// Mounts the API into an actix-web `App`:
///
/// ```no_run
/// # async fn run(engine: duetime::Duetime) -> std::io::Result<()> {
/// use actix_web::{App, HttpServer};
///
/// let routes = duetime::http::configure(engine, Default::default());
/// HttpServer::new(move || App::new().configure(routes.clone()))
///     .h1_allow_half_closed(false) // no task is leased to a worker that hung up
///     .bind("127.0.0.1:7420")?
///     .run()
///     .await
/// # }
/// ```
pub fn configure(
    engine: Duetime,
    options: HttpOptions,
) -> impl FnOnce(&mut ServiceConfig) + Clone + Send + 'static {
    let api = Data::from(Arc::new(Api {
        engine,
        body_timeout: options.body_timeout.to_std(),
        answers: AnswerCounts::default(),
    }));
    move |config: &mut ServiceConfig| {
        let scope = web::scope("")
            .app_data(api.clone())
            .wrap(from_fn(guard::around))
            .configure(routes)
            .default_service(web::route().to(guard::no_route));
        config.app_data(api).service(scope);
    }
}

fn at(path: &str) -> Resource {
    web::resource(path)
}

/// Every route. Fixed paths come before those with a name in their place.
fn routes(config: &mut ServiceConfig) {
    config
        .service(
            at("/v1/tasks")
                .route(web::get().to(tasks::list))
                .route(web::post().to(tasks::create)),
        )
        .service(at("/v1/tasks/batch").route(web::post().to(batch::create_many)))
        .service(at("/v1/batch").route(web::post().to(batch::run)))
        .service(
            at("/v1/tasks/{id}")
                .route(web::get().to(tasks::get))
                .route(web::patch().to(amend::amend)),
        )
        .service(at("/v1/tasks/{id}/attempts").route(web::get().to(tasks::attempts)))
        .service(at("/v1/tasks/{id}/log").route(web::get().to(tasks::log)))
        .service(at("/v1/tasks/{id}/late-answers").route(web::get().to(late::of_task)))
        .service(at("/v1/late-answers").route(web::get().to(late::list)))
        .configure(verbs::mount)
        .configure(bulk::mount)
        .configure(calendars::mount)
        .configure(rules::mount)
        .configure(schedules::mount)
        .service(at("/v1/topics").route(web::get().to(topics::list)))
        .service(
            at("/v1/topics/{name}")
                .route(web::get().to(topics::get))
                .route(web::put().to(topics::put))
                .route(web::delete().to(topics::delete)),
        )
        .service(at("/v1/topics/{name}/pause").route(web::post().to(topics::pause)))
        .service(at("/v1/topics/{name}/resume").route(web::post().to(topics::resume)))
        .service(
            at("/v1/topics/{topic}/keys/{key}")
                .route(web::get().to(tasks::get_by_key))
                .route(web::patch().to(amend::amend_by_key)),
        )
        .service(
            at("/v1/topics/{topic}/keys/{key}/attempts")
                .route(web::get().to(tasks::attempts_by_key)),
        )
        .service(at("/v1/topics/{topic}/keys/{key}/log").route(web::get().to(tasks::log_by_key)))
        .service(
            at("/v1/topics/{topic}/keys/{key}/late-answers").route(web::get().to(late::by_key)),
        )
        .service(at("/v1/leases").route(web::post().to(leases::lease)))
        .configure(leases::mount)
        .service(at("/v1/complete/{secret}").route(web::post().to(completion::complete)))
        .service(at("/v1/preview/cron").route(web::post().to(ops::preview_cron)))
        .service(at("/v1/preview/retry").route(web::post().to(ops::preview_retry)))
        .service(at("/v1/simulate").route(web::post().to(simulate::simulate)))
        .service(at("/v1/forecast").route(web::get().to(forecast::forecast)))
        .service(at("/v1/stats").route(web::get().to(ops::stats)))
        .service(at("/v1/shards").route(web::get().to(ops::shards)))
        .service(at("/v1/shards/{shard}/restart").route(web::post().to(ops::restart_shard)))
        .service(
            at("/v1/store/backup")
                .route(web::get().to(store::backup_status))
                .route(web::post().to(store::backup)),
        )
        .service(at("/v1/store/export").route(web::get().to(store::export)))
        .service(at("/v1/store/export/{number}").route(web::get().to(store::export_status)))
        .service(at("/v1/workers").route(web::get().to(workers::list)))
        .service(at("/v1/actors").route(web::get().to(ops::actors)))
        .service(
            at("/livez")
                .route(web::get().to(ops::livez))
                .route(web::head().to(ops::livez)),
        )
        .service(
            at("/readyz")
                .route(web::get().to(ops::readyz))
                .route(web::head().to(ops::readyz)),
        )
        .service(at("/metrics").route(web::get().to(metrics::metrics)))
        .service(at("/openapi.json").route(web::get().to(openapi::document)));
    openapi::page(config);
}

/// Runs a route: its problem becomes its response.
async fn respond(answer: impl Future<Output = Result<Answer, Problem>>) -> HttpResponse {
    answer.await.unwrap_or_else(Answer::from).respond()
}

impl Api {
    /// A JSON body of the usual size.
    async fn json(&self, req: &HttpRequest, payload: Payload) -> Result<Bytes, Problem> {
        let body = body::read(req, payload, limits::BODY_BYTES_MAX, self.body_timeout).await?;
        match body::kind(req, &body)? {
            body::Kind::Json => Ok(body),
            body::Kind::Ndjson => Err(Problem::new(
                Code::UnsupportedMediaType,
                "lines of JSON are taken by /v1/tasks/batch alone; send `content-type: application/json`",
            )),
        }
    }
}

/// A query of which only some parameters are known.
fn query(req: &HttpRequest, known: &[&str]) -> Result<Vec<(String, String)>, Problem> {
    let pairs: Vec<(String, String)> = url::form_urlencoded::parse(req.query_string().as_bytes())
        .into_owned()
        .collect();
    match pairs
        .iter()
        .find(|(name, _)| !known.contains(&name.as_str()))
    {
        Some((name, _)) => {
            let taken = if known.is_empty() {
                "none is".to_owned()
            } else {
                known.join(", ")
            };
            let detail = format!("is not a parameter here; taken: {taken}");
            Err(Problem::of_field(
                format!("/{name}"),
                "unknown_parameter",
                detail,
            ))
        }
        None => Ok(pairs),
    }
}

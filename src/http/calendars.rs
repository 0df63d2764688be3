//! Calendars: when people work.

use actix_web::web::{self, Data, Path, Payload, ServiceConfig};
use actix_web::{HttpRequest, HttpResponse};
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use crate::engine::registry::kind::Kind;
use crate::http::answer::{Answer, problem_of, unwritable};
use crate::http::body;
use crate::http::resent::once;
use crate::http::resources::{self, Shown, VersionOut, named, raw};
use crate::http::{Api, BY, at, query, respond};
use crate::limits;
use crate::rule::Calendar;
use crate::rule::book::Kept;
use crate::rule::local::timestamp;
use crate::task::spec::ResourceName;
use crate::wire;
use crate::wire::calendar::CalendarOut;
use crate::wire::problem::{Code, Problem, ProblemBody};

/// Mounts the routes.
pub(super) fn mount(config: &mut ServiceConfig) {
    config
        .service(at("/v1/calendars").route(web::get().to(list)))
        .service(
            at("/v1/calendars/{name}")
                .route(web::get().to(get))
                .route(web::put().to(put))
                .route(web::delete().to(delete)),
        )
        .service(at("/v1/calendars/{name}/versions").route(web::get().to(versions)))
        .service(at("/v1/calendars/{name}/import").route(web::post().to(import)));
}

impl Shown for Calendar {
    fn shown(_: &Api, name: &ResourceName, kept: &Kept<Self>) -> serde_json::Result<Box<RawValue>> {
        raw(&CalendarOut::new(name, kept))
    }
}

/// All calendars, by name.
#[utoipa::path(get, path = "/v1/calendars", tag = "schedules", operation_id = "list_calendars",
    params(("limit" = Option<u16>, Query, description = "most of one page; default 100"), ("cursor" = Option<String>, Query, description = "the `next_cursor` of the page before")),
    responses((status = 200, description = "a page of them", body = Object)))]
pub async fn list(req: HttpRequest, api: Data<Api>) -> HttpResponse {
    respond(async { resources::list::<Calendar>(&req, &api) }).await
}

/// A calendar.
#[utoipa::path(get, path = "/v1/calendars/{name}", tag = "schedules", operation_id = "get_calendar", params(("name" = String, Path, description = "its name")), responses(
    (status = 200, description = "the calendar", body = CalendarOut),
    (status = 404, description = "there is none", body = ProblemBody, content_type = "application/problem+json")))]
pub async fn get(req: HttpRequest, api: Data<Api>, name: Path<String>) -> HttpResponse {
    respond(async { resources::get::<Calendar>(&req, &api, &name) }).await
}

/// Puts a calendar in the place of what has its name. Answers it with `used_by`: the `rules` that count by it, and the
/// `topics` that go by these, each with the number of its `tasks` that have not ended. Their due times stay as they are;
/// `recompute` has, for each rule, the body of the `POST /v1/bulk` that works them out anew.
#[utoipa::path(put, path = "/v1/calendars/{name}", tag = "schedules", operation_id = "put_calendar", params(("name" = String, Path, description = "its name")),
    request_body = wire::calendar::CalendarBody, responses(
    (status = 200, description = "replaced", body = CalendarOut),
    (status = 201, description = "new", body = CalendarOut),
    (status = 422, description = "the body is not valid", body = ProblemBody, content_type = "application/problem+json")))]
pub async fn put(
    req: HttpRequest,
    payload: Payload,
    api: Data<Api>,
    name: Path<String>,
) -> HttpResponse {
    respond(async {
        let answer = resources::put::<Calendar>(&req, payload, &api, &name).await?;
        with_users(&api, &name, answer).await
    })
    .await
}

/// What goes by a calendar that was put: their due times stay as they are until they are worked out anew.
async fn with_users(api: &Api, name: &str, answer: Answer) -> Result<Answer, Problem> {
    let found = api.engine.calendar_use(&named(Kind::Calendar, name)?).await;
    let topics = found.topics.iter();
    let topics = topics.map(|(topic, tasks)| json!({"topic": topic.as_str(), "tasks": tasks}));
    let topics: Vec<Value> = topics.collect();
    let rules: Vec<&str> = found.rules.iter().map(ResourceName::as_str).collect();
    let told = serde_json::from_slice(&answer.body);
    let mut told: Map<String, Value> = told.map_err(unwritable)?;
    told.insert(
        "used_by".to_owned(),
        json!({"rules": rules, "topics": topics}),
    );
    let recompute = rules.iter();
    let recompute = recompute.map(|rule| json!({"action": "recompute", "filter": {"rule": rule}}));
    told.insert("recompute".to_owned(), recompute.collect());
    Ok(Answer::json(answer.status, &told))
}

/// Takes a calendar away. Refused while something needs it.
#[utoipa::path(delete, path = "/v1/calendars/{name}", tag = "schedules", operation_id = "delete_calendar", params(("name" = String, Path, description = "its name")), responses(
    (status = 200, description = "gone", body = Object),
    (status = 404, description = "there is none", body = ProblemBody, content_type = "application/problem+json"),
    (status = 409, description = "in use (`in_use`); says by what", body = ProblemBody, content_type = "application/problem+json")))]
pub async fn delete(req: HttpRequest, api: Data<Api>, name: Path<String>) -> HttpResponse {
    respond(async { resources::delete::<Calendar>(&req, &api, &name).await }).await
}

/// The versions that are kept of a calendar, the latest first.
#[utoipa::path(get, path = "/v1/calendars/{name}/versions", tag = "schedules", operation_id = "list_calendar_versions", params(("name" = String, Path, description = "its name")), responses(
    (status = 200, description = "`{items}`", body = [VersionOut<'static>]),
    (status = 404, description = "there is none", body = ProblemBody, content_type = "application/problem+json")))]
pub async fn versions(req: HttpRequest, api: Data<Api>, name: Path<String>) -> HttpResponse {
    respond(async { resources::versions::<Calendar>(&req, &api, &name).await }).await
}

/// Adds the holidays of an iCalendar file to a calendar: events of whole days from this year on, those that come each
/// year for eleven years. Answers the calendar with `imported` (days that are new) and `skipped` (events left out).
#[utoipa::path(post, path = "/v1/calendars/{name}/import", tag = "schedules", operation_id = "import_holidays",
    params(("name" = String, Path, description = "its name"), ("Idempotency-Key" = Option<String>, Header, description = "the same key again gets the same answer")),
    request_body(content = String, content_type = "text/calendar"), responses(
    (status = 200, description = "the calendar, `imported`, `skipped`", body = Object),
    (status = 400, description = "no iCalendar file", body = ProblemBody, content_type = "application/problem+json"),
    (status = 404, description = "there is no such calendar", body = ProblemBody, content_type = "application/problem+json")))]
pub async fn import(
    req: HttpRequest,
    payload: Payload,
    api: Data<Api>,
    name: Path<String>,
) -> HttpResponse {
    respond(async {
        query(&req, &[])?;
        let name = named(Kind::Calendar, &name)?;
        let file = body::read(&req, payload, limits::BODY_BYTES_MAX, api.body_timeout).await?;
        if !body::is(&req, "text/calendar") {
            let detail = "an iCalendar file is taken; send it as `content-type: text/calendar`";
            return Err(Problem::new(Code::UnsupportedMediaType, detail));
        }
        let (bytes, apart) = (file.clone(), api.clone());
        once(&api, &req, &file, move |_| async move {
            let engine = &apart.engine;
            let kept = engine.resource::<Calendar>(&name);
            let kept = kept.map_err(|error| problem_of(&error))?;
            let zone = &kept.meaning.zone;
            let this_year = timestamp(engine.now().wall).map(|now| zone.to_datetime(now).year());
            let found = wire::ics::holidays(&bytes, this_year.unwrap_or_default())?;
            let new = found.days.difference(&kept.meaning.holidays).count();
            let (meaning, text) = wire::calendar::with_holidays(&kept.meaning, &found.days)?;
            let put = engine.put_resource(name.clone(), text, meaning, BY).await;
            let put = put.map_err(|error| problem_of(&error))?;
            let told = json!({
                "calendar": CalendarOut::new(&name, &put.kept), "imported": new, "skipped": found.skipped,
            });
            Ok(Answer::json(200, &told))
        })
        .await
    })
    .await
}

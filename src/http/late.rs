//! Late answers: of one task, and of all.

use actix_web::web::{Data, Path};
use actix_web::{HttpRequest, HttpResponse};

use crate::http::answer::{Answer, problem_of};
use crate::http::tasks::{target_of_id, target_of_key};
use crate::http::{Api, respond};
use crate::shard::late::LateAsk;
use crate::shard::messages::Target;
use crate::wire::late::{LateOf, LateOfParams, LatePageOut, LateParams, ask};
use crate::wire::problem::{Problem, ProblemBody};

async fn page(api: &Api, ask: LateAsk) -> Result<Answer, Problem> {
    let page = api.engine.late_answers(ask).await;
    let page = page.map_err(|error| problem_of(&error))?;
    Ok(Answer::json(200, &LatePageOut::from(&page)))
}

async fn of_one(req: HttpRequest, api: Data<Api>, target: Result<Target, Problem>) -> HttpResponse {
    respond(async {
        let mut ask = ask(req.query_string(), LateOf::One)?;
        ask.filter.task = Some(api.find(target?).await?.task.id);
        page(&api, ask).await
    })
    .await
}

/// What was said of the task's attempts when they were over, the newest first.
#[utoipa::path(get, path = "/v1/tasks/{id}/late-answers", tag = "tasks", params(("id" = String, Path, description = "the task's id"), LateParams), responses(
    (status = 200, description = "a page; `next_cursor` is null at the end", body = LatePageOut),
    (status = 404, description = "no such task", body = ProblemBody, content_type = "application/problem+json"),
    (status = 422, description = "a parameter is not valid", body = ProblemBody, content_type = "application/problem+json")))]
pub async fn of_task(req: HttpRequest, api: Data<Api>, id: Path<String>) -> HttpResponse {
    of_one(req, api, target_of_id(&id)).await
}

/// The same, of the live task of a key, else of the one that ended last.
#[utoipa::path(get, path = "/v1/topics/{topic}/keys/{key}/late-answers", tag = "tasks",
    params(("topic" = String, Path, description = "the topic"), ("key" = String, Path, description = "the key"), LateParams), responses(
    (status = 200, description = "a page; `next_cursor` is null at the end", body = LatePageOut),
    (status = 404, description = "no such task", body = ProblemBody, content_type = "application/problem+json"),
    (status = 422, description = "a parameter is not valid", body = ProblemBody, content_type = "application/problem+json")))]
pub async fn by_key(
    req: HttpRequest,
    api: Data<Api>,
    names: Path<(String, String)>,
) -> HttpResponse {
    of_one(req, api, target_of_key(&names.0, &names.1)).await
}

/// Late answers of all tasks, the newest first. They are kept as long as their tasks; of each task the latest 20.
#[utoipa::path(get, path = "/v1/late-answers", tag = "tasks", operation_id = "list_late_answers", params(LateOfParams, LateParams), responses(
    (status = 200, description = "a page; `next_cursor` is null at the end", body = LatePageOut),
    (status = 422, description = "a parameter is not valid", body = ProblemBody, content_type = "application/problem+json")))]
pub async fn list(req: HttpRequest, api: Data<Api>) -> HttpResponse {
    respond(async { page(&api, ask(req.query_string(), LateOf::All)?).await }).await
}

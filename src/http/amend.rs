//! PATCH of a task: other facts, tags, payload.

use actix_web::web::{Data, Path, Payload};
use actix_web::{HttpRequest, HttpResponse};

use crate::http::answer::problem_of;
use crate::http::tasks::{target_of_id, target_of_key};
use crate::http::verbs::{answer_done, detail};
use crate::http::{Api, BY, respond};
use crate::shard::messages::Target;
use crate::wire;
use crate::wire::amend::AmendTask;
use crate::wire::problem::{Problem, ProblemBody};
use crate::wire::task_out::SlimOut;
use crate::wire::verbs::VerbName;

async fn run(
    req: HttpRequest,
    payload: Payload,
    api: Data<Api>,
    target: Result<Target, Problem>,
) -> HttpResponse {
    respond(async {
        let target = target?;
        let detail = detail(&req, VerbName::Reschedule)?;
        let body = api.json(&req, payload).await?;
        let amendment = wire::amend::amendment(&body)?;
        let done = api.engine.amend(target, &amendment, BY, detail.wants());
        let done = done.await.map_err(|error| problem_of(&error))?;
        Ok(answer_done(&done, detail))
    })
    .await
}

/// Changes a task's facts, tags or payload, before it runs. Its rule is asked again, and may move it.
#[utoipa::path(patch, path = "/v1/tasks/{id}", tag = "tasks", operation_id = "amend_task",
    params(("id" = String, Path, description = "the task's id"), ("return" = Option<String>, Query, description = "`task`: answer the whole task")),
    request_body = AmendTask, responses(
    (status = 200, description = "done; the task in short", body = SlimOut),
    (status = 404, description = "no such task", body = ProblemBody, content_type = "application/problem+json"),
    (status = 409, description = "`illegal_state`: names the state", body = ProblemBody, content_type = "application/problem+json"),
    (status = 422, description = "the body is not valid, or the rule gives no due time", body = ProblemBody, content_type = "application/problem+json")))]
pub async fn amend(
    req: HttpRequest,
    payload: Payload,
    api: Data<Api>,
    id: Path<String>,
) -> HttpResponse {
    run(req, payload, api, target_of_id(&id)).await
}

/// The same for the live task of a key.
#[utoipa::path(patch, path = "/v1/topics/{topic}/keys/{key}", tag = "tasks", operation_id = "amend_task_by_key",
    params(("topic" = String, Path, description = "the topic"), ("key" = String, Path, description = "the key"), ("return" = Option<String>, Query, description = "`task`: answer the whole task")),
    request_body = AmendTask, responses(
    (status = 200, description = "done; the task in short", body = SlimOut),
    (status = 404, description = "no such task", body = ProblemBody, content_type = "application/problem+json"),
    (status = 409, description = "`illegal_state`: names the state", body = ProblemBody, content_type = "application/problem+json"),
    (status = 422, description = "the body is not valid, or the rule gives no due time", body = ProblemBody, content_type = "application/problem+json")))]
pub async fn amend_by_key(
    req: HttpRequest,
    payload: Payload,
    api: Data<Api>,
    names: Path<(String, String)>,
) -> HttpResponse {
    run(req, payload, api, target_of_key(&names.0, &names.1)).await
}

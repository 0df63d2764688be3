//! The URL by which a receiver completes later what it took on.

use actix_web::web::{Data, Path, Payload};
use actix_web::{HttpRequest, HttpResponse};

use crate::http::answer::{Answer, problem_of};
use crate::http::leases::kept;
use crate::http::resent::once;
use crate::http::{Api, query, respond};
use crate::task::event::Event;
use crate::wire;
use crate::wire::completion::Told;
use crate::wire::problem::{Code, Problem};
use crate::wire::task_out::SlimOut;

/// Says what became of an attempt, by the `complete_url` of its request: done, failed, or still at work.
///
/// It counts once: when the attempt is over, for whatever reason, the answer is 409 and changes nothing.
#[utoipa::path(post, path = "/v1/complete/{secret}", tag = "workers", operation_id = "complete_later",
    params(("secret" = String, Path, description = "the end of the request's `complete_url`")),
    request_body = wire::completion::CompleteLater, responses(
    (status = 200, description = "taken; of a heartbeat: by when it is to be completed now", body = SlimOut),
    (status = 404, description = "this URL was not made here", body = wire::problem::ProblemBody, content_type = "application/problem+json"),
    (status = 409, description = "`stale_token`: the attempt is over; nothing has changed", body = wire::problem::ProblemBody, content_type = "application/problem+json"),
    (status = 422, description = "the body is not valid", body = wire::problem::ProblemBody, content_type = "application/problem+json")))]
pub async fn complete(
    req: HttpRequest,
    payload: Payload,
    api: Data<Api>,
    secret: Path<String>,
) -> HttpResponse {
    respond(async {
        query(&req, &[])?;
        let engine = api.engine.clone();
        let (task, token) = engine
            .completed_by(&secret)
            .ok_or_else(|| Problem::new(Code::NotFound, "no attempt is completed by this URL"))?;
        let body = api.json(&req, payload).await?;
        let told = wire::completion::told(&body)?;
        once(&api, &req, &body, move |origin| async move {
            let outcome = match told {
                Told::Heartbeat { checkpoint } => {
                    return kept(engine.heartbeat(task, token, checkpoint).await);
                }
                Told::Over(outcome) => outcome,
            };
            let event = Event::Answered { token, outcome };
            let view = engine.finish_attempt_from(task, event, origin, "receiver");
            let view = view.await.map_err(|error| problem_of(&error))?;
            Ok(Answer::json(200, &SlimOut::from(&*view.task)))
        })
        .await
    })
    .await
}

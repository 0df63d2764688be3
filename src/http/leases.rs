//! Pull workers: leases, and what a worker says of them.

use actix_web::web::{self, Data, Path, Payload, ServiceConfig};
use actix_web::{HttpRequest, HttpResponse};

use crate::engine::EngineError;
use crate::engine::handle::LeaseAsk;
use crate::http::answer::{Answer, problem_of};
use crate::http::resent::once;
use crate::http::tasks::task_id;
use crate::http::{Api, at, query, respond};
use crate::shard::messages::VerbRefused;
use crate::task::event::{Event, Refusal};
use crate::task::outcome::{Failure, Outcome};
use crate::wire;
use crate::wire::leases::{HeartbeatOut, LeaseReport, LeaseVerb, LeasedOut, LeasesOut, Says};
use crate::wire::problem::Problem;
use crate::wire::task_out::SlimOut;
use crate::wire::time::Time;

/// Leases due tasks; waits up to `wait_ms` for the first.
#[utoipa::path(post, path = "/v1/leases", tag = "workers", request_body = wire::leases::LeaseTasks, responses(
    (status = 200, description = "leased tasks; none when the wait is over", body = LeasesOut),
    (status = 422, description = "the body is not valid", body = wire::problem::ProblemBody, content_type = "application/problem+json")))]
pub async fn lease(req: HttpRequest, payload: Payload, api: Data<Api>) -> HttpResponse {
    respond(async {
        query(&req, &[])?;
        let body = api.json(&req, payload).await?;
        let ask = wire::leases::lease(&body)?;
        let ask = LeaseAsk {
            topics: ask.topics,
            max: ask.max,
            lease: ask.lease,
            wait: ask.wait,
            worker: ask.worker,
        };
        let engine = api.engine.clone();
        once(&api, &req, &body, move |_| async move {
            let leases = engine
                .lease(ask)
                .await
                .map_err(|error| problem_of(&error))?;
            let items = leases
                .iter()
                .map(|lease| LeasedOut::new(&lease.view, lease.expires_at))
                .collect();
            Ok(Answer::json(200, &LeasesOut { items }))
        })
        .await
    })
    .await
}

async fn answer(
    req: HttpRequest,
    payload: Payload,
    api: Data<Api>,
    id: Path<String>,
    verb: LeaseVerb,
) -> HttpResponse {
    respond(async {
        query(&req, &[])?;
        let task = task_id(&id)?;
        let body = api.json(&req, payload).await?;
        let LeaseReport { token, says } = verb.decode(&body, &api.in_limits())?;
        let engine = api.engine.clone();
        once(&api, &req, &body, move |origin| async move {
            let finished = |outcome| Event::Finished {
                token,
                outcome,
                started_at: None,
            };
            let event = match says {
                Says::Heartbeat { checkpoint } => {
                    return kept(engine.heartbeat(task, token, checkpoint).await);
                }
                Says::Complete { result } => finished(Outcome::Succeeded {
                    result: result.map(|json| json.0),
                    result_dropped: false,
                }),
                Says::Fail {
                    error,
                    retryable,
                    retry_after,
                } => finished(Outcome::Failed(Failure {
                    code: error.code,
                    message: error.message,
                    retryable,
                    retry_after,
                    in_doubt: false,
                })),
                Says::Snooze { delay } => Event::Snoozed { token, delay },
            };
            let view = engine
                .finish_attempt_from(task, event, origin, "worker")
                .await;
            Ok(Answer::json(
                200,
                &SlimOut::from(&*view.map_err(|error| problem_of(&error))?.task),
            ))
        })
        .await
    })
    .await
}

/// A worker whose task was cancelled learns it kindly, so that it can stop.
pub(super) fn kept(renewed: Result<crate::clock::WallMs, EngineError>) -> Result<Answer, Problem> {
    let told = match renewed {
        Ok(expires_at) => HeartbeatOut {
            expires_at: Some(Time(expires_at)),
            cancelled: false,
        },
        Err(EngineError::Refused(VerbRefused::Refused(Refusal::StaleToken {
            cancelled: true,
            ..
        }))) => HeartbeatOut {
            expires_at: None,
            cancelled: true,
        },
        Err(error) => return Err(problem_of(&error)),
    };
    Ok(Answer::json(200, &told))
}

/// Each verb is declared once: its route, and what the OpenAPI document says of it.
macro_rules! declare {
    ($($Verb:ident: $name:ident, $path:literal, $Body:ty, $Answer:ty, $what:literal;)*) => {$(
        #[doc = $what]
        #[utoipa::path(post, path = concat!("/v1/leases/{task_id}/", $path), tag = "workers", operation_id = concat!("lease_", $path),
            params(("task_id" = String, Path, description = "the leased task")), request_body = $Body, responses(
            (status = 200, description = "taken", body = $Answer),
            (status = 404, description = "no such task", body = wire::problem::ProblemBody, content_type = "application/problem+json"),
            (status = 409, description = "`stale_token`: the lease is over; nothing has changed", body = wire::problem::ProblemBody, content_type = "application/problem+json"),
            (status = 422, description = "the body is not valid", body = wire::problem::ProblemBody, content_type = "application/problem+json")))]
        pub async fn $name(req: HttpRequest, payload: Payload, api: Data<Api>, task_id: Path<String>) -> HttpResponse {
            answer(req, payload, api, task_id, LeaseVerb::$Verb).await
        }
    )*

        /// Mounts all verbs.
        pub fn mount(config: &mut ServiceConfig) {
            $(config.service(at(concat!("/v1/leases/{task_id}/", $path)).route(web::post().to($name)));)*
        }
    };
}
declare! {
    Heartbeat: heartbeat, "heartbeat", wire::leases::HeartbeatLease, HeartbeatOut, "Renews the lease by its length; says whether the task was cancelled.";
    Complete: complete, "complete", wire::leases::CompleteLease, SlimOut, "The work is done.";
    Fail: fail, "fail", wire::leases::FailLease, SlimOut, "The work failed.";
    Snooze: snooze, "snooze", wire::leases::SnoozeLease, SlimOut, "Later, please; uses no attempt.";
}

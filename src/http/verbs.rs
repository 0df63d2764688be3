//! Verbs on one task, by id and by key.

use actix_web::web::{self, Data, Path, Payload, ServiceConfig};
use actix_web::{HttpRequest, HttpResponse};
use serde_json::json;

use crate::clock::Now;
use crate::http::answer::{Answer, problem_of};
use crate::http::resent::once;
use crate::http::tasks::{target_of_id, target_of_key};
use crate::http::{Api, BY, at, query, respond};
use crate::shard::messages::{Target, VerbDone, Wants};
use crate::task::event::{Event, NewDue};
use crate::wire::problem::Problem;
use crate::wire::task_out::{CompletedOut, SlimOut, TaskOut};
use crate::wire::time::Time;
use crate::wire::verbs::{NewTime, Verb, VerbName};

/// What a verb means for a task, now.
pub(super) fn event_of(verb: Verb, now: Now) -> Event {
    match verb {
        Verb::Cancel { reason, .. } => Event::Cancel {
            reason: reason.unwrap_or_default(),
        },
        Verb::Pause { clock } => Event::Pause { clock },
        Verb::Resume => Event::Resume,
        Verb::Reschedule(NewTime::To(when)) => Event::Reschedule {
            due: NewDue::To(when.due(now)),
        },
        Verb::Reschedule(NewTime::ExtendBy(length)) => Event::Reschedule {
            due: NewDue::ExtendBy(length),
        },
        Verb::RunNow => Event::RunNow,
        Verb::Complete { result, token } => Event::Complete { result, token },
        Verb::Fail { error } => Event::Fail { error },
        Verb::Replay => Event::Replay,
        Verb::Resolve { succeeded, note } => Event::Resolve { succeeded, note },
        Verb::Discard => Event::Discard,
    }
}

/// How much of the task is answered.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Detail {
    Whole,
    Slim,
    /// In short, with the result that has just been given.
    Completed,
}

impl Detail {
    pub(super) fn wants(self) -> Wants {
        match self {
            Self::Slim => Wants::Slim,
            Self::Whole | Self::Completed => Wants::Whole,
        }
    }
}

/// `?return=task` asks for the whole task.
pub(super) fn detail(req: &HttpRequest, name: VerbName) -> Result<Detail, Problem> {
    match query(req, &["return"])?
        .first()
        .map(|(_, value)| value.as_str())
    {
        None if name == VerbName::Complete => Ok(Detail::Completed),
        None => Ok(Detail::Slim),
        Some("task") => Ok(Detail::Whole),
        Some(_) => Err(Problem::of_field(
            "/return",
            "unknown_word",
            "must be `task`, or left out",
        )),
    }
}

pub(super) fn answer_done(done: &VerbDone, detail: Detail) -> Answer {
    let status = if done.stopping { 202 } else { 200 };
    match detail {
        Detail::Slim => Answer::json(status, &SlimOut::from(done.view.slim())),
        Detail::Whole | Detail::Completed => match done.view.whole() {
            Some(view) if detail == Detail::Whole => Answer::json(status, &TaskOut::from(view)),
            Some(view) => Answer::json(status, &CompletedOut::from(&*view.task)),
            None => Answer::json(status, &SlimOut::from(done.view.slim())),
        },
    }
}

async fn run(
    req: HttpRequest,
    payload: Payload,
    api: Data<Api>,
    target: Result<Target, Problem>,
    name: VerbName,
) -> HttpResponse {
    respond(async {
        let target = target?;
        let detail = detail(&req, name)?;
        let body = api.json(&req, payload).await?;
        let verb = name.decode(&body, &api.in_limits())?;
        let engine = api.engine.clone();
        once(&api, &req, &body, move |origin| async move {
            if let Verb::Cancel {
                reason,
                tombstone_for: Some(length),
            } = verb
            {
                let Target::Key(topic, key) = target else {
                    let detail = "only goes with a cancel by topic and key";
                    return Err(Problem::of_field("/tombstone_for", "conflict", detail));
                };
                let (reason, until) = (reason.unwrap_or_default(), engine.now().wall.after(length));
                let names = json!({"topic": topic.as_str(), "key": key.as_str()});
                let done = engine.cancel_ahead(topic, key, &reason, length, BY, detail.wants()).await;
                return Ok(match done.map_err(|error| problem_of(&error))? {
                    Some(done) => answer_done(&done, detail),
                    None => Answer::json(200, &json!({
                        "id": null, "state": "cancelled", "topic": names["topic"], "key": names["key"],
                        "tombstone_until": Time(until),
                    })),
                });
            }
            let event = event_of(verb, engine.now());
            let done = engine.verb_from(target, event, origin, BY, detail.wants()).await.map_err(|error| problem_of(&error))?;
            Ok(answer_done(&done, detail))
        })
        .await
    })
    .await
}

/// Each verb is declared once: its two routes, and what the OpenAPI document says of them.
macro_rules! declare {
    ($($Verb:ident: $name:ident, $by_key:ident, $path:literal, $Body:ty, $what:literal;)*) => {$(
        #[doc = $what]
        #[utoipa::path(post, path = concat!("/v1/tasks/{id}/", $path), tag = "tasks", operation_id = stringify!($name),
            params(("id" = String, Path, description = "the task's id"),
                   ("return" = Option<String>, Query, description = "`task`: answer the whole task"),
                   ("Idempotency-Key" = Option<String>, Header, description = "the same key and body again gets the same answer")),
            request_body = $Body, responses(
            (status = 200, description = "done; the task in short", body = SlimOut),
            (status = 202, description = "done; an attempt that runs is being stopped", body = SlimOut),
            (status = 404, description = "no such task", body = crate::wire::problem::ProblemBody, content_type = "application/problem+json"),
            (status = 409, description = "`illegal_state`: names the state", body = crate::wire::problem::ProblemBody, content_type = "application/problem+json"),
            (status = 422, description = "the body is not valid", body = crate::wire::problem::ProblemBody, content_type = "application/problem+json")))]
        pub async fn $name(req: HttpRequest, payload: Payload, api: Data<Api>, id: Path<String>) -> HttpResponse {
            run(req, payload, api, target_of_id(&id), VerbName::$Verb).await
        }

        #[doc = $what]
        #[utoipa::path(post, path = concat!("/v1/topics/{topic}/keys/{key}/", $path), tag = "tasks", operation_id = stringify!($by_key),
            params(("topic" = String, Path, description = "the topic"), ("key" = String, Path, description = "the key"),
                   ("return" = Option<String>, Query, description = "`task`: answer the whole task"),
                   ("Idempotency-Key" = Option<String>, Header, description = "the same key and body again gets the same answer")),
            request_body = $Body, responses(
            (status = 200, description = "done; the task in short", body = SlimOut),
            (status = 202, description = "done; an attempt that runs is being stopped", body = SlimOut),
            (status = 404, description = "no such task", body = crate::wire::problem::ProblemBody, content_type = "application/problem+json"),
            (status = 409, description = "`illegal_state`: names the state", body = crate::wire::problem::ProblemBody, content_type = "application/problem+json"),
            (status = 422, description = "the body is not valid", body = crate::wire::problem::ProblemBody, content_type = "application/problem+json")))]
        pub async fn $by_key(
            req: HttpRequest,
            payload: Payload,
            api: Data<Api>,
            names: Path<(String, String)>,
        ) -> HttpResponse {
            run(req, payload, api, target_of_key(&names.0, &names.1), VerbName::$Verb).await
        }
    )*

        /// Mounts all verbs.
        pub fn mount(config: &mut ServiceConfig) {
            $(
                config.service(at(concat!("/v1/tasks/{id}/", $path)).route(web::post().to($name)));
                config.service(at(concat!("/v1/topics/{topic}/keys/{key}/", $path)).route(web::post().to($by_key)));
            )*
        }
    };
}
declare! {
    Cancel: cancel, cancel_by_key, "cancel", crate::wire::verbs::CancelTask, "Calls the task off; a running attempt is stopped and its result can't win.";
    Pause: pause, pause_by_key, "pause", crate::wire::verbs::PauseTask, "Holds the task.";
    Resume: resume, resume_by_key, "resume", crate::wire::verbs::NoBody, "Lets a paused task go on.";
    Reschedule: reschedule, reschedule_by_key, "reschedule", crate::wire::verbs::RescheduleTask, "Moves the due time.";
    RunNow: run_now, run_now_by_key, "run-now", crate::wire::verbs::NoBody, "Makes the task due now.";
    Complete: complete, complete_by_key, "complete", crate::wire::verbs::CompleteTask, "Ends the task as succeeded, from outside.";
    Fail: fail, fail_by_key, "fail", crate::wire::verbs::FailTask, "Ends the task as dead, from outside.";
    Replay: replay, replay_by_key, "replay", crate::wire::verbs::NoBody, "Runs a dead task again: a new generation with a fresh budget.";
    Resolve: resolve, resolve_by_key, "resolve", crate::wire::verbs::ResolveTask, "Settles a dead task whose outcome a person knows.";
    Discard: discard, discard_by_key, "discard", crate::wire::verbs::NoBody, "Drops the record of a dead task; the audit keeps a line.";
}

//! Creating tasks, looking at one, listing many.

use actix_web::web::{Data, Path, Payload};
use actix_web::{HttpRequest, HttpResponse};

use crate::http::answer::{Answer, problem_of, refusal};
use crate::http::resent::once;
use crate::http::{Api, BY, query, respond};
use crate::ids::{NotATaskId, TaskId};
use crate::shard::create::Created;
use crate::shard::messages::{Target, VerbRefused};
use crate::shard::query::{PageAsk, TaskView};
use crate::task::spec::{TaskKey, TopicName};
use crate::wire::due::InLimits;
use crate::wire::list::{ListAsk, ListParams};
use crate::wire::problem::{Code, Problem};
use crate::wire::task_in;
use crate::wire::task_out::{AttemptsOut, LogOut, PageOut, TaskOut};

impl Api {
    /// What is checked against when a task comes in.
    pub(super) fn in_limits(&self) -> InLimits {
        InLimits {
            max_delay: self.engine.max_delay(),
            now: self.engine.now().wall,
        }
    }

    pub(super) async fn find(&self, target: Target) -> Result<TaskView, Problem> {
        let found = self
            .engine
            .get(target)
            .await
            .map_err(|error| problem_of(&error))?;
        found.ok_or_else(|| refusal(&VerbRefused::NotFound))
    }
}

/// The id in a path. What is no id names no task.
pub(super) fn task_id(id: &str) -> Result<TaskId, Problem> {
    id.parse().map_err(|error: NotATaskId| {
        Problem::new(Code::NotFound, format!("there is no task {id:?}: {error}"))
    })
}

/// The task that an id in a path names.
pub(super) fn target_of_id(id: &str) -> Result<Target, Problem> {
    task_id(id).map(Target::Id)
}

/// The task that topic and key in a path name.
pub(super) fn target_of_key(topic: &str, key: &str) -> Result<Target, Problem> {
    let wrong = |what: &str, error| {
        Problem::of_field(format!("/{what}"), "invalid_name", format!("{error}"))
    };
    let topic = TopicName::parse(topic).map_err(|error| wrong("topic", error))?;
    let key = TaskKey::parse(key).map_err(|error| wrong("key", error))?;
    Ok(Target::Key(topic, key))
}

/// Where a task is.
pub(super) fn location_of(id: TaskId) -> String {
    format!("/v1/tasks/{id}")
}

/// What became of a create, as it is answered.
pub(super) fn answer_created(created: &Created) -> Result<Answer, Problem> {
    match created {
        Created::New(view) => {
            let answer = Answer::json(201, &TaskOut::from(&**view));
            Ok(Answer {
                location: Some(location_of(view.task.id)),
                ..answer
            })
        }
        Created::Existing(view) | Created::Cancelled(view) => {
            Ok(Answer::json(200, &TaskOut::from(&**view)))
        }
        Created::Exists(id) => Err(refusal(&VerbRefused::Exists(*id))),
        Created::Refused(refused) => Err(refusal(&VerbRefused::Refused(refused.clone()))),
    }
}

/// Creates a task. 201 means it is on the disk.
#[utoipa::path(post, path = "/v1/tasks", tag = "tasks", operation_id = "create_task", request_body = task_in::CreateTask,
    params(("Idempotency-Key" = Option<String>, Header, description = "the same key and body again gets the same answer, for 24 h")),
    responses(
    (status = 201, description = "created, written and synced", body = TaskOut),
    (status = 200, description = "a live task has the key: that one, after what `on_existing` says", body = TaskOut),
    (status = 400, description = "not JSON", body = crate::wire::problem::ProblemBody, content_type = "application/problem+json"),
    (status = 409, description = "`exists`, or `illegal_state`", body = crate::wire::problem::ProblemBody, content_type = "application/problem+json"),
    (status = 413, description = "the body is too large", body = crate::wire::problem::ProblemBody, content_type = "application/problem+json"),
    (status = 422, description = "not valid: names each field", body = crate::wire::problem::ProblemBody, content_type = "application/problem+json"),
    (status = 503, description = "overloaded, or the shard is being restarted", body = crate::wire::problem::ProblemBody, content_type = "application/problem+json"),
    (status = 507, description = "the disk is full: only what is there can end", body = crate::wire::problem::ProblemBody, content_type = "application/problem+json")))]
pub async fn create(req: HttpRequest, payload: Payload, api: Data<Api>) -> HttpResponse {
    respond(async {
        query(&req, &[])?;
        let body = api.json(&req, payload).await?;
        let new = task_in::create(&body, &api.in_limits())?;
        let engine = api.engine.clone();
        once(&api, &req, &body, move |origin| async move {
            let created = engine.create_from(new, origin, BY).await;
            answer_created(&created.map_err(|error| problem_of(&error))?)
        })
        .await
    })
    .await
}

/// Looks at one task and shows of it what was asked for.
async fn show(
    req: HttpRequest,
    api: Data<Api>,
    target: Result<Target, Problem>,
    shape: impl FnOnce(&TaskView) -> Answer,
) -> HttpResponse {
    respond(async {
        query(&req, &[])?;
        Ok(shape(&api.find(target?).await?))
    })
    .await
}

fn whole(view: &TaskView) -> Answer {
    Answer::json(200, &TaskOut::from(view))
}

fn its_attempts(view: &TaskView) -> Answer {
    Answer::json(200, &AttemptsOut::from(&*view.task))
}

async fn its_log(
    req: HttpRequest,
    api: Data<Api>,
    target: Result<Target, Problem>,
) -> HttpResponse {
    respond(async {
        query(&req, &[])?;
        let found = api.engine.get_with_late(target?).await;
        let found = found.map_err(|error| problem_of(&error))?;
        let (view, late) = found.ok_or_else(|| refusal(&VerbRefused::NotFound))?;
        Ok(Answer::json(200, &LogOut::new(&view.task, &late)))
    })
    .await
}

/// The whole task.
#[utoipa::path(get, path = "/v1/tasks/{id}", tag = "tasks", operation_id = "get_task", params(("id" = String, Path, description = "the task's id")), responses(
    (status = 200, description = "the task", body = TaskOut),
    (status = 404, description = "no such task", body = crate::wire::problem::ProblemBody, content_type = "application/problem+json")))]
pub async fn get(req: HttpRequest, api: Data<Api>, id: Path<String>) -> HttpResponse {
    show(req, api, target_of_id(&id), whole).await
}

/// The live task of a key, else the one that ended last.
#[utoipa::path(get, path = "/v1/topics/{topic}/keys/{key}", tag = "tasks",
    params(("topic" = String, Path, description = "the topic"), ("key" = String, Path, description = "the key")), responses(
    (status = 200, description = "the task", body = TaskOut),
    (status = 404, description = "no such task", body = crate::wire::problem::ProblemBody, content_type = "application/problem+json")))]
pub async fn get_by_key(
    req: HttpRequest,
    api: Data<Api>,
    names: Path<(String, String)>,
) -> HttpResponse {
    show(req, api, target_of_key(&names.0, &names.1), whole).await
}

/// The latest attempts of a task, and how many there were.
#[utoipa::path(get, path = "/v1/tasks/{id}/attempts", tag = "tasks", params(("id" = String, Path, description = "the task's id")), responses(
    (status = 200, description = "its attempts, oldest first", body = AttemptsOut),
    (status = 404, description = "no such task", body = crate::wire::problem::ProblemBody, content_type = "application/problem+json")))]
pub async fn attempts(req: HttpRequest, api: Data<Api>, id: Path<String>) -> HttpResponse {
    show(req, api, target_of_id(&id), its_attempts).await
}

/// The same, of the live task of a key, else of the one that ended last.
#[utoipa::path(get, path = "/v1/topics/{topic}/keys/{key}/attempts", tag = "tasks",
    params(("topic" = String, Path, description = "the topic"), ("key" = String, Path, description = "the key")), responses(
    (status = 200, description = "its attempts, oldest first", body = AttemptsOut),
    (status = 404, description = "no such task", body = crate::wire::problem::ProblemBody, content_type = "application/problem+json")))]
pub async fn attempts_by_key(
    req: HttpRequest,
    api: Data<Api>,
    names: Path<(String, String)>,
) -> HttpResponse {
    show(req, api, target_of_key(&names.0, &names.1), its_attempts).await
}

/// The latest changes of the live task of a key, else of the one that ended last.
#[utoipa::path(get, path = "/v1/topics/{topic}/keys/{key}/log", tag = "tasks",
    params(("topic" = String, Path, description = "the topic"), ("key" = String, Path, description = "the key")), responses(
    (status = 200, description = "its changes, oldest first", body = LogOut),
    (status = 404, description = "no such task", body = crate::wire::problem::ProblemBody, content_type = "application/problem+json")))]
pub async fn log_by_key(
    req: HttpRequest,
    api: Data<Api>,
    names: Path<(String, String)>,
) -> HttpResponse {
    its_log(req, api, target_of_key(&names.0, &names.1)).await
}

/// The latest changes of a task: when, from, to, by whom, why.
#[utoipa::path(get, path = "/v1/tasks/{id}/log", tag = "tasks", params(("id" = String, Path, description = "the task's id")), responses(
    (status = 200, description = "its changes, oldest first", body = LogOut),
    (status = 404, description = "no such task", body = crate::wire::problem::ProblemBody, content_type = "application/problem+json")))]
pub async fn log(req: HttpRequest, api: Data<Api>, id: Path<String>) -> HttpResponse {
    its_log(req, api, target_of_id(&id)).await
}

/// Tasks that a filter admits, a page at a time.
#[utoipa::path(get, path = "/v1/tasks", tag = "tasks", operation_id = "list_tasks", params(ListParams), responses(
    (status = 200, description = "a page; `next_cursor` is null at the end", body = PageOut),
    (status = 422, description = "a parameter is not valid", body = crate::wire::problem::ProblemBody, content_type = "application/problem+json")))]
pub async fn list(req: HttpRequest, api: Data<Api>) -> HttpResponse {
    respond(async {
        let asked = ListAsk::parse(req.query_string())?;
        let ask = PageAsk {
            filter: asked.filter.clone(),
            order: asked.order,
            after: asked.after,
            limit: asked.limit,
            ..PageAsk::default()
        };
        let (views, next) = api
            .engine
            .list(ask)
            .await
            .map_err(|error| problem_of(&error))?;
        let items: Vec<TaskOut> = views.iter().map(TaskOut::from).collect();
        let next_cursor = next.map(|place| asked.cursor(place));
        Ok(Answer::json(200, &PageOut { items, next_cursor }))
    })
    .await
}

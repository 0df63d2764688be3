//! Topics: their settings, and holding one as a whole.

use actix_web::web::{Data, Path, Payload};
use actix_web::{HttpRequest, HttpResponse};

use crate::engine::EngineError;
use crate::engine::registry::RegistryError;
use crate::http::answer::{Answer, problem_of};
use crate::http::resent::once;
use crate::http::resources;
use crate::http::{Api, BY, query, respond};
use crate::task::spec::TopicName;
use crate::wire;
use crate::wire::problem::Problem;
use crate::wire::topic::{TopicOut, TopicsOut};

fn named(name: &str) -> Result<TopicName, Problem> {
    TopicName::parse(name)
        .map_err(|error| Problem::of_field("/topic", "invalid_name", error.to_string()))
}

/// All declared topics, by name.
#[utoipa::path(get, path = "/v1/topics", tag = "topics", operation_id = "list_topics",
    params(("limit" = Option<u16>, Query, description = "most of one page; default 100"), ("cursor" = Option<String>, Query, description = "the `next_cursor` of the page before")),
    responses((status = 200, description = "a page of them", body = TopicsOut)))]
pub async fn list(req: HttpRequest, api: Data<Api>) -> HttpResponse {
    respond(async {
        let (limit, after) = resources::page(&req)?;
        let after = after.unwrap_or_default();
        let book = api.engine.book();
        let mut topics: Vec<_> = book
            .iter()
            .filter(|(name, _)| name.as_str() > after.as_str())
            .collect();
        topics.sort_unstable_by_key(|(name, _)| *name);
        let more = topics.len() > limit;
        topics.truncate(limit);
        let last = topics.last().filter(|_| more);
        let next_cursor = last.map(|(name, _)| name.to_string());
        let items = topics
            .into_iter()
            .map(|(name, topic)| TopicOut::new(name, topic))
            .collect();
        Ok(Answer::json(200, &TopicsOut { items, next_cursor }))
    })
    .await
}

/// A declared topic.
#[utoipa::path(get, path = "/v1/topics/{name}", tag = "topics", operation_id = "get_topic", params(("name" = String, Path, description = "the topic")), responses(
    (status = 200, description = "the topic", body = TopicOut),
    (status = 404, description = "never declared", body = wire::problem::ProblemBody, content_type = "application/problem+json")))]
pub async fn get(req: HttpRequest, api: Data<Api>, name: Path<String>) -> HttpResponse {
    respond(async {
        query(&req, &[])?;
        let name = named(&name)?;
        let book = api.engine.book();
        if !book.is_known(&name) {
            return Err(problem_of(&EngineError::Registry(
                RegistryError::UnknownTopic(name),
            )));
        }
        Ok(Answer::json(200, &TopicOut::new(&name, book.get(&name))))
    })
    .await
}

/// Declares a topic or replaces its settings; in force for the next create.
#[utoipa::path(put, path = "/v1/topics/{name}", tag = "topics", operation_id = "put_topic", params(("name" = String, Path, description = "the topic")),
    request_body = wire::topic::PutTopic, responses(
    (status = 200, description = "replaced", body = TopicOut),
    (status = 201, description = "declared", body = TopicOut),
    (status = 422, description = "the body is not valid", body = wire::problem::ProblemBody, content_type = "application/problem+json")))]
pub async fn put(
    req: HttpRequest,
    payload: Payload,
    api: Data<Api>,
    name: Path<String>,
) -> HttpResponse {
    respond(async {
        query(&req, &[])?;
        let name = named(&name)?;
        let body = api.json(&req, payload).await?;
        let settings = wire::topic::settings(&body, &api.in_limits())?;
        let text = String::from_utf8_lossy(&body).into_owned();
        let topic = api.engine.put_topic(name.clone(), text, settings, BY).await;
        let topic = topic.map_err(|error| problem_of(&error))?;
        let status = if topic.version == 1 { 201 } else { 200 };
        Ok(Answer::json(status, &TopicOut::new(&name, &topic)))
    })
    .await
}

/// Forgets a topic's settings. Refused while it is in use: paused, thawing, or with tasks that have not ended.
#[utoipa::path(delete, path = "/v1/topics/{name}", tag = "topics", operation_id = "delete_topic", params(("name" = String, Path, description = "the topic")), responses(
    (status = 200, description = "forgotten", body = Object),
    (status = 404, description = "never declared", body = wire::problem::ProblemBody, content_type = "application/problem+json"),
    (status = 409, description = "in use; says by what", body = wire::problem::ProblemBody, content_type = "application/problem+json")))]
pub async fn delete(req: HttpRequest, api: Data<Api>, name: Path<String>) -> HttpResponse {
    respond(async {
        query(&req, &[])?;
        let name = named(&name)?;
        let deleted = api.engine.delete_topic(name.clone(), BY).await;
        deleted.map_err(|error| problem_of(&error))?;
        Ok(Answer::json(
            200,
            &serde_json::json!({"name": name.as_str(), "deleted": true}),
        ))
    })
    .await
}

/// Holds all tasks of a topic: nothing of it starts once this is answered.
#[utoipa::path(post, path = "/v1/topics/{name}/pause", tag = "topics", operation_id = "pause_topic", params(("name" = String, Path, description = "the topic")),
    request_body = wire::verbs::PauseTask, responses((status = 200, description = "held", body = TopicOut)))]
pub async fn pause(
    req: HttpRequest,
    payload: Payload,
    api: Data<Api>,
    name: Path<String>,
) -> HttpResponse {
    respond(async {
        query(&req, &[])?;
        let name = named(&name)?;
        let body = api.json(&req, payload).await?;
        let clock = wire::verbs::topic_pause(&body)?;
        let engine = api.engine.clone();
        once(&api, &req, &body, move |_| async move {
            let topic = engine.pause_topic(name.clone(), clock, BY).await;
            let topic = topic.map_err(|error| problem_of(&error))?;
            Ok(Answer::json(200, &TopicOut::new(&name, &topic)))
        })
        .await
    })
    .await
}

/// Lets a topic go on; after a frozen pause its tasks have the time left that they had.
#[utoipa::path(post, path = "/v1/topics/{name}/resume", tag = "topics", operation_id = "resume_topic", params(("name" = String, Path, description = "the topic")),
    responses((status = 200, description = "goes on", body = TopicOut)))]
pub async fn resume(
    req: HttpRequest,
    payload: Payload,
    api: Data<Api>,
    name: Path<String>,
) -> HttpResponse {
    respond(async {
        query(&req, &[])?;
        let name = named(&name)?;
        let body = api.json(&req, payload).await?;
        wire::verbs::nothing(&body)?;
        let engine = api.engine.clone();
        once(&api, &req, &body, move |_| async move {
            let topic = engine.resume_topic(name.clone(), BY).await;
            let topic = topic.map_err(|error| problem_of(&error))?;
            Ok(Answer::json(200, &TopicOut::new(&name, &topic)))
        })
        .await
    })
    .await
}

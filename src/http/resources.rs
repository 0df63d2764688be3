//! What resources of all kinds have in common: list, get, put, delete, older versions. Each kind's own file names its
//! routes and shows what one is like.

use actix_web::HttpRequest;
use actix_web::web::{Data, Payload};
use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};
use utoipa::ToSchema;

use crate::clock::WallMs;
use crate::engine::registry::Version;
use crate::engine::registry::kind::{Kind, Resource};
use crate::http::answer::{Answer, problem_of, unwritable};
use crate::http::{Api, BY, query};
use crate::limits;
use crate::rule::book::Kept;
use crate::task::spec::ResourceName;
use crate::wire::problem::Problem;
use crate::wire::time::Time;

/// A kind as it is shown.
pub(super) trait Shown: Resource {
    /// One of them.
    fn shown(
        api: &Api,
        name: &ResourceName,
        kept: &Kept<Self>,
    ) -> serde_json::Result<Box<RawValue>>;
}

/// One older version, or the present one.
#[derive(Serialize, ToSchema)]
#[schema(as = ResourceVersion)]
pub(super) struct VersionOut<'a> {
    /// Its number.
    version: u64,
    /// When it was put.
    changed_at: Time,
    /// By whom.
    #[schema(value_type = String)]
    by: &'a str,
    /// What was put.
    #[schema(value_type = Object)]
    body: &'a RawValue,
}

#[derive(Serialize)]
struct Items<T> {
    items: Vec<T>,
    next_cursor: Option<String>,
}

/// The name in the path.
pub(super) fn named(kind: Kind, name: &str) -> Result<ResourceName, Problem> {
    ResourceName::parse(name)
        .map_err(|error| Problem::of_field(format!("/{kind}"), "invalid_name", error.to_string()))
}

/// One, shown with a status.
pub(super) fn answer<R: Shown>(
    status: u16,
    api: &Api,
    name: &ResourceName,
    kept: &Kept<R>,
) -> Result<Answer, Problem> {
    let shown = R::shown(api, name, kept).map_err(unwritable)?;
    Ok(Answer::json(status, &shown))
}

/// Which page of a list by name: so many, after this name.
pub(super) fn page(req: &HttpRequest) -> Result<(usize, Option<String>), Problem> {
    let query = query(req, &["limit", "cursor"])?;
    let find = |wanted: &str| query.iter().find(|(name, _)| name == wanted);
    let limit = match find("limit") {
        None => 100,
        Some((_, text)) => {
            let range = 1..=limits::PAGE_ITEMS_MAX;
            let limit = text.parse().ok().filter(|limit| range.contains(limit));
            limit.ok_or_else(|| {
                let detail = format!("must be a whole number from 1 to {}", range.end());
                Problem::of_field("/limit", "out_of_range", detail)
            })?
        }
    };
    // A cursor is the last name of the page before.
    let after = find("cursor").map(|(_, cursor)| cursor.clone());
    Ok((limit, after))
}

/// A page of all, by name.
pub(super) fn list<R: Shown>(req: &HttpRequest, api: &Api) -> Result<Answer, Problem> {
    let (limit, after) = page(req)?;
    let after = after.unwrap_or_default();
    let after = after.as_str();
    let book = api.engine.rules();
    let mut rest = R::all(&book)
        .range::<str, _>((std::ops::Bound::Excluded(after), std::ops::Bound::Unbounded));
    let page: Vec<_> = rest.by_ref().take(limit).collect();
    let next_cursor = rest
        .next()
        .and(page.last())
        .map(|(name, _)| name.to_string());
    let items = page
        .into_iter()
        .map(|(name, kept)| R::shown(api, name, kept));
    let items = items
        .collect::<serde_json::Result<_>>()
        .map_err(unwritable)?;
    Ok(Answer::json(200, &Items { items, next_cursor }))
}

/// One by its name.
pub(super) fn get<R: Shown>(req: &HttpRequest, api: &Api, name: &str) -> Result<Answer, Problem> {
    query(req, &[])?;
    let name = named(R::KIND, name)?;
    let kept = api.engine.resource::<R>(&name);
    answer(200, api, &name, &*kept.map_err(|error| problem_of(&error))?)
}

/// Puts one in the place of what has its name.
pub(super) async fn put<R: Shown>(
    req: &HttpRequest,
    payload: Payload,
    api: &Data<Api>,
    name: &str,
) -> Result<Answer, Problem> {
    query(req, &[])?;
    let name = named(R::KIND, name)?;
    let body = api.json(req, payload).await?;
    let meaning = R::read(&body, &api.in_limits())?;
    let text = String::from_utf8_lossy(&body).into_owned();
    let put = api.engine.put_resource(name.clone(), text, meaning, BY);
    let put = put.await.map_err(|error| problem_of(&error))?;
    answer(if put.is_new { 201 } else { 200 }, api, &name, &*put.kept)
}

/// Takes one away.
pub(super) async fn delete<R: Shown>(
    req: &HttpRequest,
    api: &Data<Api>,
    name: &str,
) -> Result<Answer, Problem> {
    query(req, &[])?;
    let name = named(R::KIND, name)?;
    let deleted = api.engine.delete_resource::<R>(name.clone(), BY).await;
    deleted.map_err(|error| problem_of(&error))?;
    Ok(deleted_answer(&name))
}

/// What a delete answers.
pub(super) fn deleted_answer(name: &ResourceName) -> Answer {
    let told = serde_json::json!({"name": name.as_str(), "deleted": true});
    Answer::json(200, &told)
}

/// The versions that are kept, the latest first.
pub(super) async fn versions<R: Shown>(
    req: &HttpRequest,
    api: &Data<Api>,
    name: &str,
) -> Result<Answer, Problem> {
    query(req, &[])?;
    let name = named(R::KIND, name)?;
    // Of one that was never put, or was deleted, there is nothing to see.
    let there = api.engine.resource::<R>(&name);
    there.map_err(|error| problem_of(&error))?;
    let versions = api.engine.versions::<R>(name).await;
    let versions = versions.map_err(|error| problem_of(&error))?;
    let items = versions.iter().map(|it: &Version| VersionOut {
        version: it.version,
        changed_at: Time(WallMs(it.at_ms)),
        by: &it.by,
        body: &it.body,
    });
    let (items, next_cursor) = (items.collect::<Vec<_>>(), None);
    Ok(Answer::json(200, &Items { items, next_cursor }))
}

/// A value as it is written.
pub(super) fn raw(value: &impl Serialize) -> serde_json::Result<Box<RawValue>> {
    to_raw_value(value)
}

//! Rules: when tasks are due that do not say it. Put, rolled out to some, rolled back.

use std::sync::Arc;

use actix_web::web::{self, Data, Path, Payload, ServiceConfig};
use actix_web::{HttpRequest, HttpResponse};
use serde_json::value::RawValue;

use crate::engine::registry::Version;
use crate::engine::registry::kind::Kind;
use crate::http::answer::{Answer, problem_of};
use crate::http::resent::once;
use crate::http::resources::{self, Shown, VersionOut, named, raw};
use crate::http::{Api, BY, at, query, respond};
use crate::rule::book::Kept;
use crate::rule::{Rollout, Rule};
use crate::task::spec::ResourceName;
use crate::wire;
use crate::wire::diff::{DiffOut, differences};
use crate::wire::preview::{PreviewBody, PreviewOut};
use crate::wire::problem::{Code, Problem, ProblemBody};
use crate::wire::rule::RuleOut;

/// Mounts the routes.
pub(super) fn mount(config: &mut ServiceConfig) {
    config
        .service(at("/v1/rules").route(web::get().to(list)))
        .service(
            at("/v1/rules/{name}")
                .route(web::get().to(get))
                .route(web::put().to(put))
                .route(web::delete().to(delete)),
        )
        .service(at("/v1/rules/{name}/versions").route(web::get().to(versions)))
        .service(at("/v1/rules/{name}/versions/{version}/diff").route(web::get().to(diff)))
        .service(at("/v1/rules/{name}/preview").route(web::post().to(preview)))
        .service(at("/v1/rules/{name}/enable").route(web::post().to(enable)))
        .service(at("/v1/rules/{name}/disable").route(web::post().to(disable)))
        .service(at("/v1/rules/{name}/rollout").route(web::post().to(rollout)))
        .service(at("/v1/rules/{name}/rollback").route(web::post().to(rollback)));
}

impl Shown for Rule {
    fn shown(
        api: &Api,
        name: &ResourceName,
        kept: &Kept<Self>,
    ) -> serde_json::Result<Box<RawValue>> {
        let book = api.engine.rules();
        let rollout = book.rollout(name, kept.version);
        let creates = api.engine.rule_counts(name);
        raw(&RuleOut::new(
            name,
            kept,
            rollout.map(Arc::as_ref),
            creates,
        )?)
    }
}

/// All rules, by name.
#[utoipa::path(get, path = "/v1/rules", tag = "rules", operation_id = "list_rules",
    params(("limit" = Option<u16>, Query, description = "most of one page; default 100"), ("cursor" = Option<String>, Query, description = "the `next_cursor` of the page before")),
    responses((status = 200, description = "a page of them", body = Object)))]
pub async fn list(req: HttpRequest, api: Data<Api>) -> HttpResponse {
    respond(async { resources::list::<Rule>(&req, &api) }).await
}

/// A rule.
#[utoipa::path(get, path = "/v1/rules/{name}", tag = "rules", operation_id = "get_rule", params(("name" = String, Path, description = "its name")), responses(
    (status = 200, description = "the rule", body = RuleOut<'static>),
    (status = 404, description = "there is none", body = ProblemBody, content_type = "application/problem+json")))]
pub async fn get(req: HttpRequest, api: Data<Api>, name: Path<String>) -> HttpResponse {
    respond(async { resources::get::<Rule>(&req, &api, &name) }).await
}

/// Puts a rule in the place of what has its name: a new version, in force for all from the next create on. A rollout of
/// the version before ends.
#[utoipa::path(put, path = "/v1/rules/{name}", tag = "rules", operation_id = "put_rule", params(("name" = String, Path, description = "its name")),
    request_body = wire::rule::RuleBody, responses(
    (status = 200, description = "replaced", body = RuleOut<'static>),
    (status = 201, description = "new", body = RuleOut<'static>),
    (status = 422, description = "the body is not valid, or needs a calendar that is not there", body = ProblemBody, content_type = "application/problem+json")))]
pub async fn put(
    req: HttpRequest,
    payload: Payload,
    api: Data<Api>,
    name: Path<String>,
) -> HttpResponse {
    respond(async { resources::put::<Rule>(&req, payload, &api, &name).await }).await
}

/// Takes a rule away. Refused while a topic needs it.
#[utoipa::path(delete, path = "/v1/rules/{name}", tag = "rules", operation_id = "delete_rule", params(("name" = String, Path, description = "its name")), responses(
    (status = 200, description = "gone", body = Object),
    (status = 404, description = "there is none", body = ProblemBody, content_type = "application/problem+json"),
    (status = 409, description = "in use (`in_use`); says by what", body = ProblemBody, content_type = "application/problem+json")))]
pub async fn delete(req: HttpRequest, api: Data<Api>, name: Path<String>) -> HttpResponse {
    respond(async {
        let answer = resources::delete::<Rule>(&req, &api, &name).await?;
        let name = named(Kind::Rule, &name)?;
        // Of a rule that is gone it says nothing any more.
        if api.engine.rules().rollouts.contains_key(&name) {
            let gone = api.engine.delete_resource::<Rollout>(name, BY).await;
            gone.map_err(|error| problem_of(&error))?;
        }
        Ok(answer)
    })
    .await
}

/// The versions that are kept of a rule, the latest first.
#[utoipa::path(get, path = "/v1/rules/{name}/versions", tag = "rules", operation_id = "list_rule_versions", params(("name" = String, Path, description = "its name")), responses(
    (status = 200, description = "`{items}`", body = [VersionOut<'static>]),
    (status = 404, description = "there is none", body = ProblemBody, content_type = "application/problem+json")))]
pub async fn versions(req: HttpRequest, api: Data<Api>, name: Path<String>) -> HttpResponse {
    respond(async { resources::versions::<Rule>(&req, &api, &name).await }).await
}

/// What is different between two versions that are kept: from that in the path to another, unless it is said the latest.
#[utoipa::path(get, path = "/v1/rules/{name}/versions/{version}/diff", tag = "rules", operation_id = "diff_rule_versions",
    params(("name" = String, Path, description = "its name"), ("version" = u64, Path, description = "the one version"), ("to" = Option<u64>, Query, description = "the other; default: the latest")), responses(
    (status = 200, description = "each place that is different", body = DiffOut),
    (status = 404, description = "there is no such rule", body = ProblemBody, content_type = "application/problem+json"),
    (status = 422, description = "a version that is not kept", body = ProblemBody, content_type = "application/problem+json")))]
pub async fn diff(req: HttpRequest, api: Data<Api>, at: Path<(String, String)>) -> HttpResponse {
    respond(async {
        let query = query(&req, &["to"])?;
        let name = named(Kind::Rule, &at.0)?;
        let failed = |error| problem_of(&error);
        let kept = api.engine.resource::<Rule>(&name).map_err(failed)?;
        let versions = api.engine.versions::<Rule>(name).await.map_err(failed)?;
        let to = query.iter().find(|(name, _)| name == "to");
        let to = match to {
            Some((_, text)) => kept_version(&versions, "/to", text)?,
            None => kept_version(&versions, "/to", &kept.version.to_string())?,
        };
        let from = kept_version(&versions, "/version", &at.1)?;
        let body = |version: &Version| {
            serde_json::from_str(version.body.get()).map_err(crate::http::answer::unwritable)
        };
        let changes = differences(&body(from)?, &body(to)?);
        let (from, to) = (from.version, to.version);
        Ok(Answer::json(200, &DiffOut { from, to, changes }))
    })
    .await
}

/// The version of that number, if it is kept.
fn kept_version<'v>(
    versions: &'v [Version],
    pointer: &str,
    text: &str,
) -> Result<&'v Version, Problem> {
    let found = versions.iter().find(|it| it.version.to_string() == text);
    found.ok_or_else(|| {
        let kept: Vec<_> = versions.iter().map(|it| it.version.to_string()).collect();
        let detail = format!("is not kept; there are {}", kept.join(", "));
        Problem::of_field(pointer, "unknown_version", detail)
    })
}

/// What a rule would make of the stored tasks that go by it, if it had this content and were in force for all of them.
/// Nothing is changed. Looks for at most 4 s, and says how far it has come.
#[utoipa::path(post, path = "/v1/rules/{name}/preview", tag = "rules", operation_id = "preview_rule", params(("name" = String, Path, description = "its name")),
    request_body = PreviewBody, responses(
    (status = 200, description = "how many would move, be due at once, end, stay; some of them", body = PreviewOut<'static>),
    (status = 404, description = "there is no such rule", body = ProblemBody, content_type = "application/problem+json"),
    (status = 422, description = "the body is not valid, or needs a calendar that is not there", body = ProblemBody, content_type = "application/problem+json"),
    (status = 429, description = "others are looking already (`too_many_requests`)", body = ProblemBody, content_type = "application/problem+json")))]
pub async fn preview(
    req: HttpRequest,
    payload: Payload,
    api: Data<Api>,
    name: Path<String>,
) -> HttpResponse {
    respond(async {
        query(&req, &[])?;
        let name = named(Kind::Rule, &name)?;
        let body = api.json(&req, payload).await?;
        let (candidate, filter) = wire::preview::preview(&body, &api.in_limits())?;
        let preview = api.engine.preview_rule(&name, candidate, filter).await;
        let preview = preview.map_err(|error| problem_of(&error))?;
        Ok(Answer::json(200, &PreviewOut::from(&preview)))
    })
    .await
}

/// Puts a rule in force again: a new version, for all.
#[utoipa::path(post, path = "/v1/rules/{name}/enable", tag = "rules", operation_id = "enable_rule", params(("name" = String, Path, description = "its name")), responses(
    (status = 200, description = "the rule", body = RuleOut<'static>),
    (status = 404, description = "there is none", body = ProblemBody, content_type = "application/problem+json")))]
pub async fn enable(req: HttpRequest, api: Data<Api>, name: Path<String>) -> HttpResponse {
    respond(async { set_enabled(&req, &api, &name, true).await }).await
}

/// Puts a rule out of force, in a new version: it gives its `default`, and without one a create is refused that needs it.
#[utoipa::path(post, path = "/v1/rules/{name}/disable", tag = "rules", operation_id = "disable_rule", params(("name" = String, Path, description = "its name")), responses(
    (status = 200, description = "the rule", body = RuleOut<'static>),
    (status = 404, description = "there is none", body = ProblemBody, content_type = "application/problem+json")))]
pub async fn disable(req: HttpRequest, api: Data<Api>, name: Path<String>) -> HttpResponse {
    respond(async { set_enabled(&req, &api, &name, false).await }).await
}

/// The same again changes nothing, so it may be sent again.
async fn set_enabled(
    req: &HttpRequest,
    api: &Api,
    name: &str,
    is_enabled: bool,
) -> Result<Answer, Problem> {
    query(req, &[])?;
    let name = named(Kind::Rule, name)?;
    let failed = |error| problem_of(&error);
    let kept = api.engine.resource::<Rule>(&name).map_err(failed)?;
    if kept.meaning.is_enabled == is_enabled {
        return resources::answer(200, api, &name, &*kept);
    }
    let text = wire::rule::enabled(&kept.body, is_enabled);
    let text = text.map_err(crate::http::answer::unwritable)?;
    let meaning = wire::rule::rule(text.as_bytes(), &api.in_limits())?;
    let put = api
        .engine
        .put_resource(name.clone(), text, meaning, BY)
        .await;
    resources::answer(200, api, &name, &*put.map_err(failed)?.kept)
}

/// Says who gets the latest version; all others get the one before. Again, to widen or narrow it; `{"percent": 100}` for
/// all.
#[utoipa::path(post, path = "/v1/rules/{name}/rollout", tag = "rules", operation_id = "roll_out_rule",
    params(("name" = String, Path, description = "its name"), ("Idempotency-Key" = Option<String>, Header, description = "the same key again gets the same answer")),
    request_body = wire::rule::RolloutBody, responses(
    (status = 200, description = "the rule, with its `rollout`", body = RuleOut<'static>),
    (status = 404, description = "there is none", body = ProblemBody, content_type = "application/problem+json"),
    (status = 409, description = "there is no version before (`no_version_before`)", body = ProblemBody, content_type = "application/problem+json"),
    (status = 422, description = "the body is not valid", body = ProblemBody, content_type = "application/problem+json")))]
pub async fn rollout(
    req: HttpRequest,
    payload: Payload,
    api: Data<Api>,
    name: Path<String>,
) -> HttpResponse {
    respond(async {
        query(&req, &[])?;
        let name = named(Kind::Rule, &name)?;
        let body = api.json(&req, payload).await?;
        let (bytes, apart) = (body.clone(), api.clone());
        once(&api, &req, &body, move |_| async move {
            wire::rule::reach(&bytes)?;
            let reach = serde_json::from_slice(&bytes);
            let reach: &RawValue = reach.map_err(crate::http::answer::unwritable)?;
            let engine = &apart.engine;
            let failed = |error| problem_of(&error);
            let kept = engine.resource::<Rule>(&name).map_err(failed)?;
            let versions = engine
                .versions::<Rule>(name.clone())
                .await
                .map_err(failed)?;
            let goes_on = engine.rules();
            let goes_on = goes_on.rollout(&name, kept.version);
            let base = goes_on.map(|rollout| rollout.meaning.base_version);
            let is_base = |it: &&Version| match base {
                Some(base) => it.version == base,
                None => it.version < kept.version,
            };
            let base = versions.iter().find(is_base).ok_or_else(|| {
                let detail = format!(
                    "rule {name} has no version before {}, which all get",
                    kept.version
                );
                Problem::new(Code::NoVersionBefore, detail)
            })?;
            let text = wire::rule::stored_rollout(kept.version, base.version, &base.body, reach)?;
            let meaning = wire::rule::rollout(text.as_bytes(), &apart.in_limits())?;
            let put = engine.put_resource(name.clone(), text, meaning, BY).await;
            put.map_err(failed)?;
            resources::answer(200, &apart, &name, &*kept)
        })
        .await
    })
    .await
}

/// Puts an older version again, as the latest one, in force for all.
#[utoipa::path(post, path = "/v1/rules/{name}/rollback", tag = "rules", operation_id = "roll_back_rule",
    params(("name" = String, Path, description = "its name"), ("Idempotency-Key" = Option<String>, Header, description = "the same key again gets the same answer")),
    request_body = wire::rule::RollbackBody, responses(
    (status = 200, description = "the rule, in a new version with the old content", body = RuleOut<'static>),
    (status = 404, description = "there is none", body = ProblemBody, content_type = "application/problem+json"),
    (status = 422, description = "that version is not kept", body = ProblemBody, content_type = "application/problem+json")))]
pub async fn rollback(
    req: HttpRequest,
    payload: Payload,
    api: Data<Api>,
    name: Path<String>,
) -> HttpResponse {
    respond(async {
        query(&req, &[])?;
        let name = named(Kind::Rule, &name)?;
        let body = api.json(&req, payload).await?;
        let (bytes, apart) = (body.clone(), api.clone());
        once(&api, &req, &body, move |_| async move {
            let wanted = wire::rule::rollback(&bytes)?;
            let engine = &apart.engine;
            let failed = |error| problem_of(&error);
            engine.resource::<Rule>(&name).map_err(failed)?;
            let versions = engine
                .versions::<Rule>(name.clone())
                .await
                .map_err(failed)?;
            let version = kept_version(&versions, "/version", &wanted.to_string())?;
            let text = version.body.get().to_owned();
            let meaning = wire::rule::rule(text.as_bytes(), &apart.in_limits())?;
            let put = engine.put_resource(name.clone(), text, meaning, BY).await;
            resources::answer(200, &apart, &name, &*put.map_err(failed)?.kept)
        })
        .await
    })
    .await
}

//! The store as a whole: backups and exports, asked for by who can read the data directory's lock.
//!
//! The token in that file and an address of this machine are both needed. `duetime store backup` and `duetime store export` do all
//! of it.

use std::io;
use std::path::PathBuf;

use actix_web::web::{Data, Path, Payload};
use actix_web::{HttpRequest, HttpResponse};
use bytes::Bytes;
use futures_util::stream;
use serde::Serialize;
use utoipa::ToSchema;

use crate::engine::backup::{BackupRefused, BackupStatus};
use crate::engine::export::{Export, ExportRefused, ExportStatus};
use crate::http::answer::{Answer, problem_of};
use crate::http::resent::once;
use crate::http::{Api, BY, query, respond};
use crate::wire;
use crate::wire::problem::{Code, Problem};
use crate::wire::time::Time;

/// The header that carries the token.
const TOKEN: &str = "duetime-admin-token";
/// The header that says which export it is.
const EXPORT: &str = "duetime-export";

/// How far a backup is.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Backup)]
pub struct BackupOut {
    /// `running`, `done` or `failed`.
    #[schema(value_type = String)]
    state: &'static str,
    /// The directory, once it is done.
    to: String,
    begun_at: Time,
    ended_at: Option<Time>,
    /// Tasks copied.
    tasks: u64,
    /// Tasks to copy, as far as is known.
    tasks_total: u64,
    /// How long its files are, once it is done.
    bytes: Option<u64>,
    /// Why it failed.
    problem: Option<String>,
}

impl From<BackupStatus> for BackupOut {
    fn from(status: BackupStatus) -> Self {
        let (ended_at, made) = status.ended.unzip();
        let (state, bytes, problem) = match made {
            None => ("running", None, None),
            Some(Ok(manifest)) => ("done", Some(manifest.bytes()), None),
            Some(Err(why)) => ("failed", None, Some(why)),
        };
        Self {
            state,
            to: status.to.display().to_string(),
            begun_at: Time(status.begun_at),
            ended_at: ended_at.map(Time),
            tasks: status.tasks,
            tasks_total: status.tasks_total,
            bytes,
            problem,
        }
    }
}

/// How an export went.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Export)]
pub struct ExportOut {
    /// Which, counted from the service's start.
    number: u64,
    /// `running`, `done` or `failed`.
    #[schema(value_type = String)]
    state: &'static str,
    /// Tasks given out.
    tasks: u64,
    /// How many places did not read back: what they hold is not among the lines.
    left_out: u64,
    /// The first hundred of them.
    places: Vec<PlaceOut>,
    /// Why it failed.
    problem: Option<String>,
}

/// Something that does not read back.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = DamagedPlace)]
pub struct PlaceOut {
    /// File and offset, key or chunk.
    place: String,
    /// What is wrong with it.
    why: String,
}

impl From<ExportStatus> for ExportOut {
    fn from(status: ExportStatus) -> Self {
        let (state, problem) = match status.ended {
            None => ("running", None),
            Some(Ok(())) => ("done", None),
            Some(Err(why)) => ("failed", Some(why)),
        };
        let places = status.places.into_iter().map(|fault| PlaceOut {
            place: fault.place,
            why: fault.why,
        });
        Self {
            number: status.number,
            state,
            tasks: status.tasks,
            left_out: status.left_out,
            places: places.collect(),
            problem,
        }
    }
}

/// Only for who can read the data directory's lock, on this machine.
fn admit(req: &HttpRequest, api: &Api) -> Result<(), Problem> {
    let own = req.app_config().local_addr().ip();
    let is_here = req
        .peer_addr()
        .is_some_and(|peer| peer.ip().to_canonical().is_loopback() || peer.ip() == own);
    let token = req.headers().get(TOKEN);
    let has_token = token.is_some_and(|token| api.engine.is_admin_token(token.as_bytes()));
    match is_here && has_token {
        true => Ok(()),
        false => Err(Problem::new(
            Code::Forbidden,
            format!(
                "this is for who has the data directory: send the token of its LOCK file as `{TOKEN}`, from this machine"
            ),
        )),
    }
}

/// Begins a backup of all tasks, topics and audit lines while the service runs. It is written aside, read back, and then
/// has its name.
#[utoipa::path(post, path = "/v1/store/backup", tag = "operate", operation_id = "begin_backup",
    params(("duetime-admin-token" = String, Header, description = "the token in the data directory's LOCK file"),
           ("Idempotency-Key" = Option<String>, Header, description = "the same key again gets the same answer")),
    request_body = wire::verbs::BackupTo, responses(
    (status = 202, description = "it is being made; GET tells how far it is", body = BackupOut),
    (status = 403, description = "without the token, or from elsewhere", body = wire::problem::ProblemBody, content_type = "application/problem+json"),
    (status = 409, description = "one is being made, or something is there", body = wire::problem::ProblemBody, content_type = "application/problem+json"),
    (status = 422, description = "no absolute path", body = wire::problem::ProblemBody, content_type = "application/problem+json")))]
pub async fn backup(req: HttpRequest, payload: Payload, api: Data<Api>) -> HttpResponse {
    respond(async {
        query(&req, &[])?;
        admit(&req, &api)?;
        let body = api.json(&req, payload).await?;
        let to = PathBuf::from(wire::verbs::backup_to(&body)?);
        let engine = api.engine.clone();
        once(&api, &req, &body, move |_| async move {
            let target = to.display().to_string();
            let status = engine.begin_backup(to).map_err(|refused| match refused {
                BackupRefused::InProgress(_) => {
                    Problem::new(Code::InProgress, refused.to_string()).retry_after_s(5)
                }
                BackupRefused::Exists(_) => Problem::new(Code::Exists, refused.to_string()),
                BackupRefused::Thread(_) => Problem::new(Code::Internal, refused.to_string()),
                BackupRefused::Engine(error) => problem_of(&error),
            })?;
            if let Err(error) = engine.audit(BY, "store.backup", &target, "").await {
                tracing::error!(%error, target, "audit line of a backup not written");
            }
            Ok(Answer::json(202, &BackupOut::from(status)))
        })
        .await
    })
    .await
}

/// The backup that is being made, else the last one since the start.
#[utoipa::path(get, path = "/v1/store/backup", tag = "operate", operation_id = "backup_status",
    params(("duetime-admin-token" = String, Header, description = "the token in the data directory's LOCK file")),
    responses(
    (status = 200, description = "how far it is", body = BackupOut),
    (status = 403, description = "without the token, or from elsewhere", body = wire::problem::ProblemBody, content_type = "application/problem+json"),
    (status = 404, description = "none was made since the start", body = wire::problem::ProblemBody, content_type = "application/problem+json")))]
pub async fn backup_status(req: HttpRequest, api: Data<Api>) -> HttpResponse {
    respond(async {
        query(&req, &[])?;
        admit(&req, &api)?;
        let status = api.engine.backup_status();
        let none = || Problem::new(Code::NotFound, "no backup was made since the start");
        Ok(Answer::json(
            200,
            &BackupOut::from(status.ok_or_else(none)?),
        ))
    })
    .await
}

/// Each task as one line of JSON, with its log and attempts, and each late answer, as all were when the request came. One
/// that is cut off was not ended: the connection breaks then. What was left out `GET /v1/store/export/{number}` tells,
/// with the number in the header `duetime-export`; the log names each place.
#[utoipa::path(get, path = "/v1/store/export", tag = "operate", operation_id = "export",
    params(("duetime-admin-token" = String, Header, description = "the token in the data directory's LOCK file"),
           ("skip_damaged" = Option<bool>, Query, description = "leave out what does not read back")),
    responses(
    (status = 200, description = "lines of JSON, in no order", body = String, content_type = "application/x-ndjson"),
    (status = 403, description = "without the token, or from elsewhere", body = wire::problem::ProblemBody, content_type = "application/problem+json"),
    (status = 409, description = "another is being made", body = wire::problem::ProblemBody, content_type = "application/problem+json"),
    (status = 503, description = "a shard is being restarted", body = wire::problem::ProblemBody, content_type = "application/problem+json")))]
pub async fn export(req: HttpRequest, api: Data<Api>) -> HttpResponse {
    let begun = async {
        let pairs = query(&req, &["skip_damaged"])?;
        admit(&req, &api)?;
        let skip_damaged = match pairs.last().map(|(_, value)| value.as_str()) {
            None | Some("false") => false,
            Some("true") => true,
            Some(_) => {
                let detail = "is true or false";
                return Err(Problem::of_field("/skip_damaged", "invalid", detail));
            }
        };
        let begun = api.engine.export(skip_damaged).await;
        let export = begun.map_err(|refused| match refused {
            ExportRefused::InProgress => {
                Problem::new(Code::InProgress, refused.to_string()).retry_after_s(5)
            }
            ExportRefused::NoSnapshot(_) => {
                Problem::new(Code::ShardUnavailable, refused.to_string()).retry_after_s(1)
            }
            ExportRefused::Thread(_) => Problem::new(Code::Internal, refused.to_string()),
            ExportRefused::Engine(error) => problem_of(&error),
        })?;
        if let Err(error) = api.engine.audit(BY, "store.export", "", "").await {
            tracing::error!(%error, "audit line of an export not written");
        }
        Ok(export)
    };
    match begun.await {
        Ok(export) => HttpResponse::Ok()
            .insert_header((EXPORT, export.number.to_string()))
            .content_type("application/x-ndjson")
            .streaming(stream::unfold(export, next_lines)),
        Err(problem) => Answer::from(problem).respond(),
    }
}

/// How an export goes, or went: how many tasks, and what was left out because it does not read back. Of the latest.
#[utoipa::path(get, path = "/v1/store/export/{number}", tag = "operate", operation_id = "export_status",
    params(("number" = u64, Path, description = "the export's `duetime-export`"),
           ("duetime-admin-token" = String, Header, description = "the token in the data directory's LOCK file")),
    responses(
    (status = 200, description = "how it goes", body = ExportOut),
    (status = 403, description = "without the token, or from elsewhere", body = wire::problem::ProblemBody, content_type = "application/problem+json"),
    (status = 404, description = "another was begun since, or none of this number", body = wire::problem::ProblemBody, content_type = "application/problem+json")))]
pub async fn export_status(req: HttpRequest, number: Path<String>, api: Data<Api>) -> HttpResponse {
    respond(async {
        query(&req, &[])?;
        admit(&req, &api)?;
        let status = api.engine.export_status();
        let status = status.filter(|status| status.number.to_string() == *number);
        let none = || Problem::new(Code::NotFound, "the latest export has another number");
        Ok(Answer::json(
            200,
            &ExportOut::from(status.ok_or_else(none)?),
        ))
    })
    .await
}

async fn next_lines(mut export: Export) -> Option<(Result<Bytes, io::Error>, Export)> {
    let lines = export.next().await?;
    let lines = lines.map(Bytes::from).map_err(io::Error::other);
    Some((lines, export))
}

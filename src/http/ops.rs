//! How the service is: probes, counts, shards, parts; and the preview of a retry policy.

use actix_web::web::{Data, Path, Payload};
use actix_web::{HttpRequest, HttpResponse};
use serde_json::{Map, Value, json};

use crate::engine::status::ShardStatus;
use crate::executor::handler::{SeatsStatus, Stuck};
use crate::http::answer::{Answer, problem_of};
use crate::http::resent::once;
use crate::http::{Api, BY, query, respond};
use crate::ids::ShardId;
use crate::shard::messages::{ShardCounts, TopicCounts};
use crate::shard::table::Totals;
use crate::task::State;
use crate::task::duration;
use crate::watchdog::{ChildState, ChildStatus};
use crate::wire;
use crate::wire::problem::{Code, Problem};

/// The process serves.
#[utoipa::path(get, path = "/livez", tag = "operate", responses((status = 200, description = "the process serves", body = Object)))]
pub async fn livez(api: Data<Api>) -> HttpResponse {
    let up = duration::format(api.engine.up_for());
    HttpResponse::Ok()
        .json(json!({"status": "ok", "up_for": up, "version": env!("CARGO_PKG_VERSION")}))
}

/// The service can be used: every part is up and the watchdog watches. With warnings it can be used in part: on a full
/// disk, say, for everything but creating.
#[utoipa::path(get, path = "/readyz", tag = "operate", responses(
    (status = 200, description = "every part is up", body = Object),
    (status = 503, description = "some part is not; says which", body = Object)))]
pub async fn readyz(api: Data<Api>) -> HttpResponse {
    let readiness = api.engine.readiness();
    let status = if readiness.is_ready() {
        "ready"
    } else {
        "not_ready"
    };
    let body =
        json!({"status": status, "problems": readiness.problems, "warnings": readiness.warnings});
    if readiness.is_ready() {
        HttpResponse::Ok().json(body)
    } else {
        HttpResponse::ServiceUnavailable().json(body)
    }
}

/// Counts per topic and state, rates of the last minute, lateness.
#[utoipa::path(get, path = "/v1/stats", tag = "operate", responses(
    (status = 200, description = "counts, rates and lateness, per topic and in all", body = Object),
    (status = 503, description = "a shard is being restarted", body = wire::problem::ProblemBody, content_type = "application/problem+json")))]
pub async fn stats(req: HttpRequest, api: Data<Api>) -> HttpResponse {
    respond(async {
        query(&req, &[])?;
        let (topics, gone) = api
            .engine
            .topic_counts()
            .await
            .map_err(|error| problem_of(&error))?;
        let mut totals = TopicCounts {
            totals: gone,
            ..TopicCounts::default()
        };
        let mut rows = Vec::with_capacity(topics.len());
        for (name, counts) in &topics {
            let mut row = counts_of(counts);
            row.insert("topic".to_owned(), json!(name.as_str()));
            rows.push(Value::Object(row));
            add(&mut totals, counts);
        }
        let mut totals = counts_of(&totals);
        totals.insert(
            "waiting_workers".to_owned(),
            json!(api.engine.waiting_workers()),
        );
        Ok(Answer::json(
            200,
            &json!({"topics": rows, "totals": totals}),
        ))
    })
    .await
}

pub(super) fn add(sum: &mut TopicCounts, more: &TopicCounts) {
    for (sum, more) in sum.states.iter_mut().zip(more.states) {
        *sum += more;
    }
    sum.lateness.merge(&more.lateness);
    sum.created_per_s += more.created_per_s;
    sum.started_per_s += more.started_per_s;
    sum.ended_per_s += more.ended_per_s;
    sum.totals += more.totals;
}

fn counts_of(counts: &TopicCounts) -> Map<String, Value> {
    let states: Map<String, Value> = State::ALL
        .iter()
        .map(|state| (state.name().to_owned(), json!(counts.states[state.index()])))
        .collect();
    let lateness = &counts.lateness;
    let round = |rate: f64| (rate * 100.0).round() / 100.0;
    let Totals {
        created,
        started,
        succeeded,
        dead,
        cancelled,
        late_refused,
        late_accepted,
        late_compensated,
    } = counts.totals;
    let row = json!({
        "states": states,
        "per_second": {
            "created": round(counts.created_per_s),
            "started": round(counts.started_per_s),
            "ended": round(counts.ended_per_s),
        },
        "since_start": {
            "created": created,
            "started": started,
            "ended": {"succeeded": succeeded, "dead": dead, "cancelled": cancelled},
            "late_answers": {
                "refused": late_refused, "accepted": late_accepted, "compensated": late_compensated,
            },
        },
        "lateness_ms": {
            "p50": lateness.quantile(0.5), "p99": lateness.quantile(0.99), "max": lateness.max(),
        },
    });
    match row {
        Value::Object(row) => row,
        _ => Map::new(),
    }
}

/// All shards: epoch, state, counts.
#[utoipa::path(get, path = "/v1/shards", tag = "operate", responses((status = 200, description = "all shards", body = Object)))]
pub async fn shards(req: HttpRequest, api: Data<Api>) -> HttpResponse {
    respond(async {
        query(&req, &[])?;
        let shards = api.engine.shards().await;
        let items: Vec<Value> = shards.iter().map(shard_of).collect();
        Ok(Answer::json(200, &json!({"items": items})))
    })
    .await
}

fn shard_of(shard: &ShardStatus) -> Value {
    json!({
        "shard": shard.shard.0,
        "epoch": shard.epoch.0,
        "state": shard.child.as_ref().map(|child| child.state.name()),
        "tasks": shard.counts.as_ref().map(|counts| counts.tasks),
        "in_flight": shard.counts.as_ref().map(|counts| counts.in_flight),
        "store": shard.counts.as_ref().map(store_of),
        "restarts": shard.child.as_ref().map(|child| child.restarts),
        "quarantined": shard.child.as_ref().map(|child| child.quarantined),
        "zombie_writes_refused": shard.zombie_writes_refused,
        "last_fault": shard.child.as_ref().and_then(|child| child.last_fault.clone()),
    })
}

/// What a shard's store holds.
fn store_of(counts: &ShardCounts) -> Value {
    let shelf = &counts.shelf;
    json!({
        "chunks": shelf.chunks,
        "chunk_bytes": shelf.chunk_bytes,
        "dead_records": shelf.dead,
        "journal_bytes": shelf.recent_bytes,
        "index_bytes": counts.index_bytes,
        "folds": shelf.folds,
        "records_damaged": shelf.damaged,
        "chunks_read": {
            "task": shelf.reads.task, "list": shelf.reads.list,
            "ahead": shelf.reads.ahead, "move": shelf.reads.moved,
        },
        "damaged": counts.damaged,
        "audit": {
            "rounds": counts.audit.rounds, "looked_at": counts.audit.looked_at,
            "wrong": counts.audit.wrong, "mended": counts.audit.mended,
        },
        "rescue": {
            "sweeps": counts.rescue.sweeps, "looked_at": counts.rescue.looked_at,
            "moved": counts.rescue.moved, "failed": counts.rescue.failed,
            "alerts": counts.rescue.alerts, "given_up": counts.rescue.given_up,
            "no_progress_ms": counts.rescue.no_progress_ms,
        },
        "guards": {
            "fire": counts.guards.fire, "cancel": counts.guards.cancel, "neither": counts.guards.neither,
            "none": counts.guards.none, "held": counts.guards.held,
        },
    })
}

/// Starts a shard anew from its store.
#[utoipa::path(post, path = "/v1/shards/{shard}/restart", tag = "operate",
    params(("shard" = u16, Path, description = "the shard's number"),
           ("Idempotency-Key" = Option<String>, Header, description = "the same key again gets the same answer")),
    responses(
    (status = 202, description = "the shard leaves and is started anew", body = Object),
    (status = 404, description = "no such shard", body = wire::problem::ProblemBody, content_type = "application/problem+json")))]
pub async fn restart_shard(
    req: HttpRequest,
    payload: Payload,
    api: Data<Api>,
    shard: Path<String>,
) -> HttpResponse {
    respond(async {
        query(&req, &[])?;
        let body = api.json(&req, payload).await?;
        wire::verbs::nothing(&body)?;
        let unknown = |_| Problem::new(Code::NotFound, format!("there is no shard {shard}"));
        let shard = shard.parse().map(ShardId).map_err(unknown)?;
        let engine = api.engine.clone();
        once(&api, &req, &body, move |_| async move {
            engine
                .restart_shard(shard)
                .map_err(|error| problem_of(&error))?;
            let number = shard.0.to_string();
            if let Err(error) = engine.audit(BY, "shard.restart", &number, "").await {
                // It is done, and is not undone by this.
                tracing::error!(%error, %shard, "audit line of a shard's restart not written");
            }
            let told = json!({"shard": shard.0, "state": "restarting"});
            Ok(Answer::json(202, &told))
        })
        .await
    })
    .await
}

/// All supervised parts: generation, pulse, verdict, restarts, and how many of their threads hang in quarantine; and the
/// threads that handlers of this process run on.
#[utoipa::path(get, path = "/v1/actors", tag = "operate", responses((status = 200, description = "all supervised parts", body = Object)))]
pub async fn actors(req: HttpRequest, api: Data<Api>) -> HttpResponse {
    respond(async {
        query(&req, &[])?;
        let items: Vec<Value> = api.engine.children().iter().map(child_of).collect();
        let handlers = api.engine.handler_seats().into_iter();
        let handlers: Map<String, Value> = handlers
            .map(|(kind, seats)| (kind.to_owned(), seats_of(&seats)))
            .collect();
        Ok(Answer::json(
            200,
            &json!({"items": items, "handlers": handlers}),
        ))
    })
    .await
}

fn child_of(child: &ChildStatus) -> Value {
    json!({
        "name": child.name,
        "generation": child.generation.0,
        "state": child.state.name(),
        "reason": match &child.state {
            ChildState::Parked { reason } => Some(reason),
            _ => None,
        },
        "pulse": child.pulse.map(|pulse| json!({"phase": pulse.phase.name(), "age_ms": pulse.age.0})),
        "verdict": child.pulse.map(|pulse| pulse.verdict.name()),
        "restarts": child.restarts,
        "quarantined": child.quarantined,
        "last_fault": child.last_fault,
    })
}

fn seats_of(seats: &SeatsStatus) -> Value {
    let stuck = |call: &Stuck| json!({"handler": call.handler, "task": call.task.to_string()});
    json!({
        "threads": seats.threads,
        "threads_max": seats.threads_max,
        "busy": seats.busy,
        "held": seats.held,
        "queued": seats.queued,
        "calls": seats.calls,
        "abandoned": seats.abandoned.iter().map(stuck).collect::<Vec<_>>(),
        "since_start": {
            "abandoned": seats.abandoned_since_start,
            "late_returns": seats.late_since_start,
            "panics": seats.panics_since_start,
            "given_back": seats.given_back_since_start,
        },
    })
}

/// The waits of a retry policy, without creating anything.
#[utoipa::path(post, path = "/v1/preview/retry", tag = "operate", request_body = wire::retry::PreviewRetry, responses(
    (status = 200, description = "the wait after each attempt", body = wire::retry::RetryDelays),
    (status = 422, description = "not a retry policy", body = wire::problem::ProblemBody, content_type = "application/problem+json")))]
pub async fn preview_retry(req: HttpRequest, payload: Payload, api: Data<Api>) -> HttpResponse {
    respond(async {
        query(&req, &[])?;
        let body = api.json(&req, payload).await?;
        Ok(Answer::json(200, &wire::retry::preview(&body)?))
    })
    .await
}

/// The next times of a cron pattern by a zone's clocks, without creating anything.
#[utoipa::path(post, path = "/v1/preview/cron", tag = "schedules", request_body = wire::cron::PreviewCron, responses(
    (status = 200, description = "times strictly after `after`", body = wire::cron::Times),
    (status = 422, description = "not a pattern, or one that never fires (`never_fires`)", body = wire::problem::ProblemBody, content_type = "application/problem+json")))]
pub async fn preview_cron(req: HttpRequest, payload: Payload, api: Data<Api>) -> HttpResponse {
    respond(async {
        query(&req, &[])?;
        let body = api.json(&req, payload).await?;
        let limits = api.in_limits();
        // Rare patterns take milliseconds, and many of them at once would hold up other requests.
        let times = actix_web::web::block(move || wire::cron::preview(&body, &limits)).await;
        let times = times.map_err(|_| Problem::new(Code::Internal, "the preview was cut off"))?;
        Ok(Answer::json(200, &times?))
    })
    .await
}

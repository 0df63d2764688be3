//! Metrics in Prometheus' form, made anew at each scrape from the same counts that `/v1/stats` shows.

use std::sync::atomic::AtomicU64;

use actix_web::HttpResponse;
use actix_web::http::header::CONTENT_TYPE;
use actix_web::web::Data;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::executor::command::CommandCounts;
use crate::executor::handler::SeatsStatus;
use crate::http::Api;
use crate::http::answer::Answer;
use crate::http::ops::add;
use crate::shard::messages::{ShardCounts, TopicCounts};
use crate::task::{State, callback};
use crate::wire::problem::{Code, Problem};

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Counters and gauges in Prometheus' form.
#[utoipa::path(get, path = "/metrics", tag = "operate", responses((status = 200, description = "metrics in Prometheus' text form", body = String, content_type = "application/openmetrics-text")))]
pub async fn metrics(api: Data<Api>) -> HttpResponse {
    let mut page = Page(Registry::with_prefix("duetime"));
    let engine = &api.engine;
    page.gauge(
        "up_seconds",
        "Time since the start",
        "",
        [("", engine.up_for().0 as f64 / 1000.0)],
    );
    // While a shard is being restarted the counts of tasks are left out rather than shown too small.
    if let Ok((topics, gone)) = engine.topic_counts().await {
        let mut sum = TopicCounts {
            totals: gone,
            ..TopicCounts::default()
        };
        topics.values().for_each(|counts| add(&mut sum, counts));
        let by_state = State::ALL.map(|state| (state.name(), sum.states[state.index()] as f64));
        page.gauge("tasks", "Tasks by state", "state", by_state);
        let mut callbacks = [0; State::ALL.len()];
        for (_, counts) in topics.iter().filter(|(name, _)| callback::is_topic(name)) {
            let add = |(sum, count): (&mut u64, &u64)| *sum += count;
            callbacks.iter_mut().zip(&counts.states).for_each(add);
        }
        let by_state = State::ALL.map(|state| (state.name(), callbacks[state.index()] as f64));
        page.gauge(
            "callbacks",
            "Of them, those that tell how others have ended, by state",
            "state",
            by_state,
        );
        page.counter(
            "tasks_created",
            "Tasks created since the start",
            "",
            [("", sum.totals.created)],
        );
        page.counter(
            "attempts_started",
            "Attempts started since the start",
            "",
            [("", sum.totals.started)],
        );
        let ended = [
            ("succeeded", sum.totals.succeeded),
            ("dead", sum.totals.dead),
            ("cancelled", sum.totals.cancelled),
        ];
        page.counter(
            "tasks_ended",
            "Tasks ended since the start, by final state",
            "state",
            ended,
        );
        let late = [
            ("refused", sum.totals.late_refused),
            ("accepted", sum.totals.late_accepted),
            ("compensated", sum.totals.late_compensated),
        ];
        page.counter(
            "late_answers",
            "Answers for attempts that were over, by what became of them",
            "treatment",
            late,
        );
        let quantile = |q: f64| sum.lateness.quantile(q).unwrap_or(0) as f64;
        let lateness = [
            ("0.5", quantile(0.5)),
            ("0.99", quantile(0.99)),
            ("1", quantile(1.0)),
        ];
        page.gauge(
            "lateness_ms",
            "How late attempts started",
            "quantile",
            lateness,
        );
    }
    if let Ok(shards) = engine.counts().await {
        store_metrics(&mut page, &shards);
    }
    let children = engine.children();
    let running = children
        .iter()
        .map(|child| (child.name.as_str(), f64::from(u8::from(child.is_running()))));
    page.gauge(
        "part_running",
        "Supervised parts: 1 if running",
        "name",
        running,
    );
    let restarts = children
        .iter()
        .map(|child| (child.name.as_str(), child.restarts));
    page.counter(
        "part_restarts",
        "Restarts of supervised parts",
        "name",
        restarts,
    );
    let quarantined = children
        .iter()
        .map(|child| (child.name.as_str(), child.quarantined as f64));
    page.gauge(
        "part_quarantined",
        "Threads of supervised parts that were given up and have not ended",
        "name",
        quarantined,
    );
    let ages = children
        .iter()
        .filter_map(|child| Some((child.name.as_str(), child.pulse?.age.0 as f64 / 1000.0)));
    page.gauge(
        "part_pulse_age_seconds",
        "Time since supervised parts were last heard of",
        "name",
        ages,
    );
    let refused = engine.zombie_writes_refused();
    let shards: Vec<String> = (0..refused.len()).map(|shard| shard.to_string()).collect();
    page.counter(
        "zombie_writes_refused",
        "Writes of owners whose epoch was over",
        "shard",
        shards.iter().map(String::as_str).zip(refused),
    );
    let disk = engine.disk();
    if let Some(free) = disk.free_bytes {
        page.gauge(
            "disk_free_bytes",
            "Free space of the data directory's disk",
            "",
            [("", free as f64)],
        );
    }
    page.gauge(
        "disk_reserve_bytes",
        "Free space that is kept for what is there to end",
        "",
        [("", disk.reserve_bytes as f64)],
    );
    page.gauge(
        "disk_upkeep_bytes",
        "Free space that is kept beside it for the journals to be folded",
        "",
        [("", disk.upkeep_bytes as f64)],
    );
    if let Some(last_good_at) = engine.plan_status().and_then(|plan| plan.last_good_at) {
        let age = engine.now().wall.since(last_good_at);
        page.gauge(
            "backup_age_seconds",
            "Time since the last good backup by plan was begun",
            "",
            [("", age.0 as f64 / 1000.0)],
        );
    }
    if let Some(copies) = engine.copy_status() {
        // Nobody knows how far behind they are while nothing was copied: the process before may have copied nothing too.
        if let Some(behind) = copies.behind {
            page.gauge(
                "journal_copy_behind_seconds",
                "What was committed before is in the second directory; absent while nothing was copied since the start",
                "",
                [("", behind.0 as f64 / 1000.0)],
            );
        }
        page.counter(
            "journal_copy_gaps",
            "Times that something was folded before it was copied; the next backup begins behind it",
            "",
            [("", copies.gaps)],
        );
    }
    let steps = engine.clock_steps();
    let steps = [("forward", steps.forward), ("backward", steps.backward)];
    page.counter("clock_steps", "Steps of the wall clock", "direction", steps);
    let answers = [("2xx", 2), ("3xx", 3), ("4xx", 4), ("5xx", 5)];
    let answers = answers.map(|(status, class)| (status, api.answers.of_class(class)));
    page.counter(
        "http_answers",
        "HTTP answers, by class of status",
        "status",
        answers,
    );
    page.counter(
        "http_panics",
        "Requests whose handler panicked",
        "",
        [("", api.answers.panics())],
    );
    page.gauge(
        "waiting_workers",
        "Workers that wait for tasks",
        "",
        [("", engine.waiting_workers() as f64)],
    );

    handler_metrics(&mut page, &engine.handler_seats());
    command_metrics(&mut page, &engine.commands());

    let mut text = String::new();
    match encode(&mut text, &page.0) {
        Ok(()) => HttpResponse::Ok()
            .insert_header((CONTENT_TYPE, OPEN_METRICS))
            .body(text),
        Err(_) => Answer::from(Problem::new(
            Code::Internal,
            "the metrics could not be written",
        ))
        .respond(),
    }
}

/// Programs that are run as actions.
fn command_metrics(page: &mut Page, commands: &CommandCounts) {
    page.gauge(
        "command_running",
        "Commands that run",
        "",
        [("", commands.running as f64)],
    );
    page.counter(
        "command_started",
        "Commands whose program was started",
        "",
        [("", commands.started)],
    );
    let ended = [
        ("succeeded", commands.succeeded),
        ("failed", commands.failed),
        ("timeout", commands.timed_out),
        ("cancelled", commands.cancelled),
    ];
    page.counter(
        "command_ended",
        "Attempts of commands that are over, also of those that could not be started, by outcome",
        "outcome",
        ended,
    );
}

/// The threads that handlers of the embedding process run on.
fn handler_metrics(page: &mut Page, seats: &[(&'static str, SeatsStatus)]) {
    if seats.is_empty() {
        return;
    }
    let mut gauge = |name, help, of: fn(&SeatsStatus) -> usize| {
        let rows = seats.iter().map(|(kind, seats)| (*kind, of(seats) as f64));
        page.gauge(name, help, "kind", rows);
    };
    gauge("handler_threads", "Threads of handlers", |seats| {
        seats.threads
    });
    gauge(
        "handler_threads_held",
        "Threads that handlers did not give back within 20 ms",
        |seats| seats.held,
    );
    gauge(
        "handler_threads_abandoned",
        "Threads of handlers whose attempt is over, and that have not come back",
        |seats| seats.abandoned.len(),
    );
    gauge(
        "handler_calls",
        "Handlers that run, and calls that wait for a thread",
        |seats| seats.calls,
    );
    let mut counter = |name, help, of: fn(&SeatsStatus) -> u64| {
        let rows = seats.iter().map(|(kind, seats)| (*kind, of(seats)));
        page.counter(name, help, "kind", rows);
    };
    counter("handler_panics", "Handlers that panicked", |seats| {
        seats.panics_since_start
    });
    counter(
        "handler_abandoned",
        "Threads that were abandoned to their handlers",
        |seats| seats.abandoned_since_start,
    );
    counter(
        "handler_late_returns",
        "Handlers that came back after their attempt was over",
        |seats| seats.late_since_start,
    );
    counter(
        "handler_given_back",
        "Attempts that no thread was there for",
        |seats| seats.given_back_since_start,
    );
}

/// What the stores of all shards hold, and read.
fn store_metrics(page: &mut Page, shards: &[ShardCounts]) {
    let sum = |of: fn(&ShardCounts) -> u64| shards.iter().map(of).sum::<u64>();
    let gauges = [
        ("store_chunks", "Chunks", sum(|shard| shard.shelf.chunks)),
        (
            "store_chunk_bytes",
            "Bytes of their bodies",
            sum(|shard| shard.shelf.chunk_bytes),
        ),
        (
            "store_dead_records",
            "Records of chunks that nothing needs any more",
            sum(|shard| shard.shelf.dead),
        ),
        (
            "store_recent_bytes",
            "What was committed and is not in chunks yet",
            sum(|shard| shard.shelf.recent_bytes),
        ),
        (
            "store_index_bytes",
            "The index over all tasks",
            sum(|shard| shard.index_bytes as u64),
        ),
    ];
    for (name, help, value) in gauges {
        page.gauge(name, help, "", [("", value as f64)]);
    }
    page.counter(
        "store_folds",
        "Folds since the start",
        "",
        [("", sum(|shard| shard.shelf.folds))],
    );
    page.counter(
        "store_records_damaged",
        "Records that did not read back since the start",
        "",
        [(
            "",
            sum(|shard| shard.shelf.damaged + shard.damaged.len() as u64),
        )],
    );
    let audited = [
        ("looked_at", sum(|shard| shard.audit.looked_at)),
        ("wrong", sum(|shard| shard.audit.wrong)),
        ("mended", sum(|shard| shard.audit.mended)),
    ];
    page.counter(
        "audit_tasks",
        "Tasks that the auditor has looked at, found wrong and mended",
        "result",
        audited,
    );
    let rescued = [
        ("looked_at", sum(|shard| shard.rescue.looked_at)),
        ("moved", sum(|shard| shard.rescue.moved)),
        ("failed", sum(|shard| shard.rescue.failed)),
        ("alerts", sum(|shard| shard.rescue.alerts)),
    ];
    page.counter(
        "rescue_tasks",
        "Attempts and due tasks that rescue sweeps have looked at, moved on, failed to, and told of",
        "result",
        rescued,
    );
    page.counter(
        "polls_given_up",
        "Polls whose time was over, and which were given up after they had been asked once more",
        "",
        [("", sum(|shard| shard.rescue.given_up))],
    );
    let guards = [
        ("fire", sum(|shard| shard.guards.fire)),
        ("cancel", sum(|shard| shard.guards.cancel)),
        ("neither", sum(|shard| shard.guards.neither)),
        ("none", sum(|shard| shard.guards.none)),
    ];
    page.counter(
        "guards_asked",
        "Questions of guards, by what was answered",
        "answer",
        guards,
    );
    page.counter(
        "guards_held",
        "Tasks that are held for a person because their guards did not answer",
        "",
        [("", sum(|shard| shard.guards.held))],
    );
    page.gauge(
        "no_progress_seconds",
        "Longest time that a shard has had due tasks and free slots, and started nothing",
        "",
        [(
            "",
            shards
                .iter()
                .map(|shard| shard.rescue.no_progress_ms)
                .max()
                .unwrap_or(0) as f64
                / 1000.0,
        )],
    );
    let reads = [
        ("task", sum(|shard| shard.shelf.reads.task)),
        ("list", sum(|shard| shard.shelf.reads.list)),
        ("ahead", sum(|shard| shard.shelf.reads.ahead)),
        ("move", sum(|shard| shard.shelf.reads.moved)),
    ];
    page.counter(
        "store_chunks_read",
        "Chunks read from the store, by reason",
        "for",
        reads,
    );
}

type Labels = Vec<(String, String)>;

/// A registry for one scrape.
struct Page(Registry);

fn labels(name: &str, value: &str) -> Labels {
    if name.is_empty() {
        Vec::new()
    } else {
        vec![(name.to_owned(), value.to_owned())]
    }
}

impl Page {
    fn gauge<'a>(
        &mut self,
        name: &str,
        help: &str,
        label: &str,
        rows: impl IntoIterator<Item = (&'a str, f64)>,
    ) {
        let family = Family::<Labels, Gauge<f64, AtomicU64>>::default();
        for (value, number) in rows {
            family.get_or_create(&labels(label, value)).set(number);
        }
        self.0.register(name, help, family);
    }

    fn counter<'a>(
        &mut self,
        name: &str,
        help: &str,
        label: &str,
        rows: impl IntoIterator<Item = (&'a str, u64)>,
    ) {
        let family = Family::<Labels, Counter>::default();
        for (value, number) in rows {
            family.get_or_create(&labels(label, value)).inc_by(number);
        }
        self.0.register(name, help, family);
    }
}

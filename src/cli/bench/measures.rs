//! What is measured, one function each. All load is of tasks like those of a shop: a topic, a key, a due time, a
//! small payload, about 190 bytes of JSON.

use std::cell::{Cell, RefCell};
use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use futures_util::future::try_join_all;
use serde::Deserialize;
use serde_json::Value;

use super::Measure;
use super::load::{Answer, Connection, Load, append, expect, load, once, post, quantile};
use super::machine;
use super::report::{Figure, Line, Unit};
use super::site::Site;
use crate::cli::Failure;
use crate::clock::{Clock, DurationMs, WallMs};

/// Connections of the single requests.
const CONNECTIONS: usize = 64;
/// Connections of the batches.
const BATCH_CONNECTIONS: usize = 4;
/// Items of a batch.
const BATCH: usize = 10_000;
/// Tasks in one commit of the disk's own limit.
const TASKS_A_SYNC: usize = 1000;
/// Starts a second, when lateness is measured.
const STARTS_PER_S: usize = 500;
/// Longest wait for what is due to have happened.
const DRAIN_MAX: Duration = Duration::from_secs(60);
/// How often the service is asked whether all have ended.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// The first order's number; all have as many digits.
const ORDER_IDS_FROM: usize = 100_000_000;
const JSON: &str = "application/json";
const NDJSON: &str = "application/x-ndjson";
const NEVER_SOON: &str = r#""delay":"P1D""#;
const NOTHING: &str = r#"{"none":{}}"#;

const OTHER_PROCESS: &str = "the service is another process";
const OTHER_MACHINE: &str =
    "the service cannot reach a receiver on this machine's loopback address";

/// How much of each.
#[derive(Clone, Debug)]
pub(super) struct Scale {
    disk_for: Duration,
    create_for: Duration,
    peer_for: Duration,
    batch: usize,
    cancel: usize,
    ended: usize,
    push: usize,
    lateness_for: Duration,
    pending: usize,
}

impl Scale {
    pub(super) fn usual(pending: u64) -> Self {
        Self {
            disk_for: Duration::from_millis(1500),
            create_for: Duration::from_secs(5),
            peer_for: Duration::from_secs(3),
            batch: 300_000,
            cancel: 100_000,
            ended: 100_000,
            push: 30_000,
            lateness_for: Duration::from_secs(10),
            pending: usize::try_from(pending).unwrap_or(usize::MAX),
        }
    }

    pub(super) fn quick(pending: u64) -> Self {
        Self {
            disk_for: Duration::from_millis(300),
            create_for: Duration::from_millis(1500),
            peer_for: Duration::from_secs(1),
            batch: 80_000,
            cancel: 30_000,
            ended: 40_000,
            push: 8_000,
            lateness_for: Duration::from_secs(3),
            ..Self::usual(pending)
        }
    }
}

/// A run: the place, the sizes, and what is known so far.
pub(super) struct Bench {
    site: Site,
    scale: Scale,
    clock: Clock,
    /// Tells this run's keys from those of another one on the same service.
    run: u32,
    /// How far the service's wall clock is ahead of ours, in milliseconds; once known.
    ahead_ms: Option<i64>,
    disk_tasks_per_s: Option<f64>,
    create_per_s: Option<f64>,
    batch_per_s: Option<f64>,
}

impl Bench {
    pub(super) fn new(site: Site, scale: Scale) -> Self {
        let clock = Clock::machine();
        Self {
            site,
            scale,
            run: clock.now().wall.0 as u32,
            clock,
            ahead_ms: None,
            disk_tasks_per_s: None,
            create_per_s: None,
            batch_per_s: None,
        }
    }

    pub(super) async fn close(self) -> Result<(), Failure> {
        self.site.close().await
    }

    /// Measures one thing.
    ///
    /// # Errors
    /// When anything was not answered as expected.
    pub(super) async fn take(&mut self, measure: Measure) -> Result<Vec<Line>, Failure> {
        match measure {
            Measure::Disk => self.disk(),
            Measure::Create => self.create().await,
            Measure::Batch => self.batch().await,
            Measure::Cancel => self.cancel().await,
            Measure::Ended => self.ended().await,
            Measure::Push => self.push().await,
            Measure::Lateness => self.lateness().await,
            Measure::Pending => self.pending().await,
        }
    }

    // ---------------------------------------------------------------- tasks

    fn key(&self, n: usize) -> String {
        format!("{:08x}-{n:08}", self.run)
    }

    /// A task as it is sent. All of one topic are equally long.
    fn task(&self, body: &mut Vec<u8>, topic: &str, n: usize, due: &str, action: &str) {
        let (key, order_id) = (self.key(n), ORDER_IDS_FROM + n);
        append(
            body,
            format_args!(
                r#"{{"topic":"bench.{topic}","key":"{key}",{due},"payload":{{"order_id":{order_id},"note":"{:.<60}"}},"action":{action}}}"#,
                ""
            ),
        );
    }

    fn task_bytes(&self) -> usize {
        let mut body = Vec::new();
        self.task(&mut body, "create", 0, NEVER_SOON, NOTHING);
        body.len()
    }

    /// One batch of creates: items `from` to `to`, each due as `due` says.
    fn creates(
        &self,
        topic: &str,
        (from, to): (usize, usize),
        due: &dyn Fn(usize) -> String,
        action: &str,
    ) -> Vec<u8> {
        let mut body = Vec::new();
        for n in from..to {
            self.task(&mut body, topic, n, &due(n), action);
            body.push(b'\n');
        }
        body
    }

    /// Creates tasks in batches, and checks that each was made. Bodies are made while it runs, so the rate
    /// means nothing; memory stays that of a few bodies.
    async fn fill(
        &self,
        topic: &str,
        count: usize,
        due: &dyn Fn(usize) -> String,
        action: &str,
    ) -> Result<(), Failure> {
        let made = Cell::new(0);
        let next = |request: &mut Vec<u8>| {
            let from = made.get();
            let to = count.min(from + BATCH);
            made.set(to);
            let body = self.creates(topic, (from, to), due, action);
            post(request, "/v1/tasks/batch?return=ids", NDJSON, &body);
            from < to
        };
        let take = |answer: Answer<'_>| all_of(answer.body, 201).and_then(|()| expect(200)(answer));
        load(self.site.address, BATCH_CONNECTIONS, next, take)
            .await
            .map(drop)
    }

    /// Sends prebuilt bodies over the connections of batches, and checks the items' statuses afterwards.
    async fn flood(
        &self,
        path: &str,
        kind: &str,
        bodies: Vec<Vec<u8>>,
        status: u16,
    ) -> Result<Load, Failure> {
        let (bodies, answers) = (RefCell::new(bodies), RefCell::new(Vec::new()));
        let next = |request: &mut Vec<u8>| match bodies.borrow_mut().pop() {
            Some(body) => {
                post(request, path, kind, &body);
                true
            }
            None => false,
        };
        let take = |answer: Answer<'_>| {
            answers.borrow_mut().push(answer.body.to_vec());
            expect(200)(answer)
        };
        let flooded = load(self.site.address, BATCH_CONNECTIONS, next, take).await?;
        for answer in answers.into_inner() {
            all_of(&answer, status)?;
        }
        Ok(flooded)
    }

    // ---------------------------------------------------------------- measures

    fn disk(&mut self) -> Result<Vec<Line>, Failure> {
        let Some(data) = self.site.data() else {
            return Ok(vec![Line::NotMeasured(OTHER_PROCESS)]);
        };
        let bytes = self.task_bytes();
        let failed = |error| {
            Failure::new(format!(
                "cannot append to a file in {}: {error}",
                data.display()
            ))
        };
        let single = append_rate(&data, bytes, self.scale.disk_for).map_err(failed)?;
        let many = append_rate(&data, bytes * TASKS_A_SYNC, self.scale.disk_for).map_err(failed)?;
        let tasks = many * TASKS_A_SYNC as f64;
        self.disk_tasks_per_s = Some(tasks);
        Ok(vec![
            figure(
                "disk_syncs_per_s",
                format!("disk: append + fdatasync of one task ({bytes} B)"),
                single,
            ),
            figure(
                "disk_tasks_per_s",
                format!("disk: tasks, {TASKS_A_SYNC} to a fdatasync"),
                tasks,
            ),
        ])
    }

    async fn create(&mut self) -> Result<Vec<Line>, Failure> {
        let service = self
            .singles(self.site.address, self.scale.create_for)
            .await?;
        let peer = self
            .singles(self.site.peer.address, self.scale.peer_for)
            .await?;
        let rate = service.per_second(1);
        self.create_per_s = Some(rate);
        let beside = "an actix-web route that reads the same body and answers 201";
        let latency = |name, what: &str, q| {
            let (value, beside) = (service.latency_ms(q), peer.latency_ms(q));
            Line::Figure(
                Figure::new(name, what, value, Unit::Millis).beside("the same route", Some(beside)),
            )
        };
        let create = Figure::new(
            "create_per_s",
            "create, single, 64 connections",
            rate,
            Unit::PerSecond,
        );
        Ok(vec![
            Line::Figure(create.beside(beside, Some(peer.per_second(1)))),
            latency("create_p50_ms", "  answered after, p50", 0.5),
            latency("create_p99_ms", "  answered after, p99", 0.99),
        ])
    }

    /// Single creates for a while.
    async fn singles(&self, to: std::net::SocketAddr, length: Duration) -> Result<Load, Failure> {
        let (n, until) = (Cell::new(0), Instant::now() + length);
        let body = RefCell::new(Vec::new());
        let next = |request: &mut Vec<u8>| {
            let mut body = body.borrow_mut();
            body.clear();
            self.task(
                &mut body,
                "create",
                n.replace(n.get() + 1),
                NEVER_SOON,
                NOTHING,
            );
            post(request, "/v1/tasks", JSON, &body);
            Instant::now() < until
        };
        load(to, CONNECTIONS, next, expect(201)).await
    }

    async fn batch(&mut self) -> Result<Vec<Line>, Failure> {
        let never = |_| NEVER_SOON.to_owned();
        let parts = parts(self.scale.batch);
        let bodies = parts
            .map(|part| self.creates("batch", part, &never, NOTHING))
            .collect();
        let flooded = self
            .flood("/v1/tasks/batch?return=ids", NDJSON, bodies, 201)
            .await?;
        let rate = flooded.per_second(BATCH);
        self.batch_per_s = Some(rate);
        let what = "create, batches of 10 000, 4 connections";
        let figure = Figure::new("batch_per_s", what, rate, Unit::PerSecond);
        let beside =
            format!("append + fdatasync of the same bytes, {TASKS_A_SYNC} tasks to a sync");
        Ok(vec![Line::Figure(
            figure.beside(beside, self.disk_tasks_per_s),
        )])
    }

    async fn cancel(&mut self) -> Result<Vec<Line>, Failure> {
        let count = self.scale.cancel;
        self.fill("cancel", 2 * count, &|_| NEVER_SOON.to_owned(), NOTHING)
            .await?;
        let n = Cell::new(0);
        let next = |request: &mut Vec<u8>| {
            let key = self.key(n.replace(n.get() + 1));
            post(
                request,
                &format!("/v1/topics/bench.cancel/keys/{key}/cancel"),
                JSON,
                b"{}",
            );
            n.get() <= count
        };
        let single = load(self.site.address, CONNECTIONS, next, expect(200))
            .await?
            .per_second(1);
        let bodies = parts(count).map(|(from, to)| {
            let mut body = br#"{"ops":["#.to_vec();
            for n in from..to {
                let comma = if n > from { "," } else { "" };
                let key = self.key(count + n);
                append(
                    &mut body,
                    format_args!(r#"{comma}{{"cancel":{{"topic":"bench.cancel","key":"{key}"}}}}"#),
                );
            }
            body.extend_from_slice(b"]}");
            body
        });
        let batches = self
            .flood("/v1/batch?return=ids", JSON, bodies.collect(), 200)
            .await?;
        let single = Figure::new(
            "cancel_per_s",
            "cancel by key, single, 64 connections",
            single,
            Unit::PerSecond,
        );
        let rate = batches.per_second(BATCH);
        let many = Figure::new(
            "cancel_batch_per_s",
            "cancel by key, batches of 10 000",
            rate,
            Unit::PerSecond,
        );
        Ok(vec![
            Line::Figure(single.beside("create, single", self.create_per_s)),
            Line::Figure(many.beside("create, in batches", self.batch_per_s)),
        ])
    }

    async fn ended(&mut self) -> Result<Vec<Line>, Failure> {
        let count = self.scale.ended;
        let before = self.succeeded("bench.ended").await?;
        let due = self.fill_due("ended", count, NOTHING).await?;
        let ended_at = self.all_succeeded("bench.ended", before + count).await?;
        let rate = count as f64 / ended_at.saturating_duration_since(due).as_secs_f64();
        let what = format!("ended, action `none`, {count} due at once");
        Ok(vec![figure("ended_per_s", what, rate)])
    }

    async fn push(&mut self) -> Result<Vec<Line>, Failure> {
        if !self.site.reaches_receiver() {
            return Ok(vec![Line::NotMeasured(OTHER_MACHINE)]);
        }
        let count = self.scale.push;
        let peer = self.bare_pushes(count).await?;
        let before = self.succeeded("bench.push").await?;
        self.site.peer.received.expect(count);
        let due = self.fill_due("push", count, &self.push_to("count")).await?;
        let last = self.site.peer.received.complete(DRAIN_MAX).await?;
        let rate = count as f64 / last.saturating_duration_since(due).as_secs_f64();
        // Each is answered for, too, and came once.
        self.all_succeeded("bench.push", before + count).await?;
        let received = self.site.peer.received.count();
        if received != count {
            return Err(Failure::new(format!(
                "{count} pushes were due and {received} came"
            )));
        }
        let what = format!("HTTP push, {count} due at once");
        let figure = Figure::new("push_per_s", what, rate, Unit::PerSecond);
        let beside = format!(
            "the same HTTP client without duetime, {} at a time",
            self.site.pushes
        );
        Ok(vec![Line::Figure(figure.beside(beside, Some(peer)))])
    }

    fn push_to(&self, route: &str) -> String {
        format!(
            r#"{{"http":{{"url":"http://{}/{route}"}}}}"#,
            self.site.peer.address
        )
    }

    /// The executor's HTTP client, alone: as many requests, as large as a push, as many at a time.
    async fn bare_pushes(&self, count: usize) -> Result<f64, Failure> {
        let failed = |error: &dyn std::fmt::Display| {
            Failure::new(format!("a request to the receiver failed: {error}"))
        };
        // Fails only when a provider is there already, which is as good.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = reqwest::Client::builder()
            .http1_only()
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .retry(reqwest::retry::never())
            .referer(false)
            .tcp_nodelay(true)
            .tls_certs_only([])
            .build()
            .map_err(|error| failed(&error))?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(machine::cores().clamp(2, 8))
            .enable_all()
            .build()
            .map_err(|error| failed(&error))?;
        let url = format!("http://{}/count", self.site.peer.address);
        let body = bytes::Bytes::from(vec![b'.'; self.task_bytes() + 150]);
        self.site.peer.received.expect(count);
        let start = Instant::now();
        let each = count.div_ceil(self.site.pushes);
        let senders = (0..self.site.pushes).map(|n| {
            let (client, url, body) = (client.clone(), url.clone(), body.clone());
            let share = each.min(count.saturating_sub(n * each));
            runtime.spawn(async move {
                for _ in 0..share {
                    let call = client
                        .post(&url)
                        .header("content-type", JSON)
                        .body(body.clone());
                    call.send().await?.error_for_status()?.bytes().await?;
                }
                Ok::<_, reqwest::Error>(())
            })
        });
        let sent = tokio::time::timeout(DRAIN_MAX, try_join_all(senders)).await;
        let took = start.elapsed();
        drop(client);
        // A runtime must not be waited for on another one.
        runtime.shutdown_background();
        for sender in sent
            .map_err(|error| failed(&error))?
            .map_err(|error| failed(&error))?
        {
            sender.map_err(|error| failed(&error))?;
        }
        Ok(count as f64 / took.as_secs_f64())
    }

    async fn lateness(&mut self) -> Result<Vec<Line>, Failure> {
        if !self.site.reaches_receiver() {
            return Ok(vec![Line::NotMeasured(OTHER_MACHINE)]);
        }
        let count = self.scale.lateness_for.as_millis() as usize * STARTS_PER_S / 1000;
        let first = self.service_now().await?.after(DurationMs::secs(1));
        let due = |n: usize| due_at(WallMs(first.0 + (n * 1000 / STARTS_PER_S) as i64));
        self.site.peer.received.expect(count);
        self.fill("lateness", count, &due, &self.push_to("late"))
            .await?;
        self.site
            .peer
            .received
            .complete(self.scale.lateness_for + DRAIN_MAX)
            .await?;
        let late_us = self.site.peer.received.late_us();
        let early = late_us.iter().filter(|us| **us < 0).count();
        if early > 0 {
            return Err(Failure::new(format!(
                "{early} of {count} pushes came before their due time"
            )));
        }
        let ms = |q| quantile(&late_us, q).map_or(0.0, |us| us as f64 / 1000.0);
        let what =
            |q: &str| format!("late at {STARTS_PER_S} starts/s, as the receiver sees it, {q}");
        let line =
            |name, q: &str, value| Line::Figure(Figure::new(name, what(q), value, Unit::Millis));
        Ok(vec![
            line("late_p50_ms", "p50", ms(0.5)),
            line("late_p99_ms", "p99", ms(0.99)),
            line("late_max_ms", "max", ms(1.0)),
        ])
    }

    async fn pending(&mut self) -> Result<Vec<Line>, Failure> {
        let Some(data) = self.site.data() else {
            return Ok(vec![Line::NotMeasured(OTHER_PROCESS)]);
        };
        let never = |_| NEVER_SOON.to_owned();
        // What is taken once, by threads, buffers and caches, is not to be counted for each task.
        self.fill("warm", BATCH_CONNECTIONS * BATCH, &never, NOTHING)
            .await?;
        let unknown = || Failure::new("cannot read this process's memory from /proc/self/status");
        let (memory, disk) = (
            machine::resident_bytes().ok_or_else(unknown)?,
            settled_bytes(&data).await,
        );
        let count = self.scale.pending;
        self.fill("pending", count, &never, NOTHING).await?;
        let (memory_after, disk_after) = (
            machine::resident_bytes().ok_or_else(unknown)?,
            settled_bytes(&data).await,
        );
        let each = |before: u64, after: u64| after.saturating_sub(before) as f64 / count as f64;
        let what = |of: &str| format!("{of} for each of {count} pending tasks");
        let memory = Figure::new(
            "pending_memory_bytes",
            what("memory"),
            each(memory, memory_after),
            Unit::Bytes,
        );
        let disk = Figure::new(
            "pending_disk_bytes",
            what("disk"),
            each(disk, disk_after),
            Unit::Bytes,
        );
        let raw = self.task_bytes() as f64;
        Ok(vec![
            Line::Figure(memory.beside("the task as it is sent", Some(raw))),
            Line::Figure(disk.beside("the task as it is sent", Some(raw))),
        ])
    }

    // ---------------------------------------------------------------- time and counts

    /// Creates tasks that are all due at one instant; the instant, on our own clock.
    async fn fill_due(
        &mut self,
        topic: &str,
        count: usize,
        action: &str,
    ) -> Result<Instant, Failure> {
        // The slowest rate seen so far, and three times the time that follows from it: an instant that comes before
        // the last task is created is no use.
        let begun = Instant::now();
        self.fill(
            &format!("pilot.{topic}"),
            BATCH,
            &|_| NEVER_SOON.to_owned(),
            NOTHING,
        )
        .await?;
        let pilot = BATCH as f64 / begun.elapsed().as_secs_f64();
        let slowest = self.batch_per_s.map_or(pilot, |known| known.min(pilot));
        let lead = Duration::from_secs_f64(1.0 + 3.0 * count as f64 / slowest);
        let now = self.service_now().await?;
        let due = Instant::now() + lead;
        let at = now.after(DurationMs(
            u64::try_from(lead.as_millis()).unwrap_or(u64::MAX),
        ));
        self.fill(topic, count, &|_| due_at(at), action).await?;
        if Instant::now() > due {
            return Err(Failure::new(format!(
                "creating {count} tasks took longer than the {lead:.1?} planned for it"
            ))
            .then("the machine is busier than a moment ago: measure again"));
        }
        Ok(due)
    }

    /// What the service's wall clock shows.
    async fn service_now(&mut self) -> Result<WallMs, Failure> {
        let here = self.clock.now().wall;
        if self.site.data().is_some() {
            return Ok(here);
        }
        if self.ahead_ms.is_none() {
            let (mut body, mut request) = (Vec::new(), Vec::new());
            self.task(&mut body, "clock", 0, NEVER_SOON, NOTHING);
            post(&mut request, "/v1/tasks", JSON, &body);
            let answer = once(self.site.address, &request, 201).await?;
            let task: Value = serde_json::from_slice(&answer).unwrap_or_default();
            let there = task["created_at"]
                .as_str()
                .and_then(|at| at.parse::<jiff::Timestamp>().ok());
            let there =
                there.ok_or_else(|| Failure::new("the service's task has no `created_at`"))?;
            // Half of the way there and back.
            let middle = (here.0 + self.clock.now().wall.0) / 2;
            self.ahead_ms = Some(there.as_millisecond() - middle);
        }
        Ok(WallMs(
            self.clock.now().wall.0 + self.ahead_ms.unwrap_or_default(),
        ))
    }

    /// How many tasks of a topic have succeeded.
    async fn succeeded(&self, topic: &str) -> Result<usize, Failure> {
        once(self.site.address, STATS, 200)
            .await
            .and_then(|body| succeeded_in(&body, topic))
    }

    /// Waits until so many tasks of a topic have succeeded; when that was seen.
    async fn all_succeeded(&self, topic: &str, wanted: usize) -> Result<Instant, Failure> {
        let broken = |error: std::io::Error| {
            Failure::new(format!("the service's counts can't be read: {error}"))
        };
        let mut connection = Connection::open(self.site.address).await.map_err(broken)?;
        let mut until = None;
        loop {
            let answer = connection.exchange(STATS).await.map_err(broken)?;
            let count = succeeded_in(answer.body, topic)?;
            let now = Instant::now();
            if count >= wanted {
                return Ok(now);
            }
            if now > *until.get_or_insert(now + DRAIN_MAX) {
                return Err(Failure::new(format!(
                    "only {count} of {wanted} tasks of {topic} ended within {DRAIN_MAX:?}"
                )));
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }
}

const STATS: &[u8] = b"GET /v1/stats HTTP/1.1\r\nhost: bench\r\n\r\n";

fn succeeded_in(stats: &[u8], topic: &str) -> Result<usize, Failure> {
    let stats: Value = serde_json::from_slice(stats)
        .map_err(|error| Failure::new(format!("/v1/stats: {error}")))?;
    let rows = stats["topics"].as_array().into_iter().flatten();
    let row = rows.into_iter().find(|row| row["topic"] == topic);
    let count = row
        .and_then(|row| row["states"]["succeeded"].as_u64())
        .unwrap_or(0);
    Ok(usize::try_from(count).unwrap_or(usize::MAX))
}

fn figure(name: &'static str, what: String, per_second: f64) -> Line {
    Line::Figure(Figure::new(name, what, per_second, Unit::PerSecond))
}

fn due_at(at: WallMs) -> String {
    format!(r#""due_at":"{at}""#)
}

/// Ranges of at most a batch that make up `count`.
fn parts(count: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..count)
        .step_by(BATCH)
        .map(move |from| (from, count.min(from + BATCH)))
}

/// The answer to a batch, as far as it is checked.
#[derive(Deserialize)]
struct Items {
    items: Vec<Item>,
}

#[derive(Deserialize)]
struct Item {
    status: u16,
}

fn all_of(answer: &[u8], status: u16) -> Result<(), Failure> {
    let parsed: Result<Items, _> = serde_json::from_slice(answer);
    let odd = match &parsed {
        Ok(answer) => answer
            .items
            .iter()
            .filter(|item| item.status != status)
            .count(),
        Err(_) => 1,
    };
    if odd == 0 {
        return Ok(());
    }
    let excerpt: String = String::from_utf8_lossy(answer).chars().take(300).collect();
    Err(Failure::new(format!(
        "{odd} items of a batch were not answered with {status}: {excerpt}"
    )))
}

/// Appends and syncs for a while; how often a second.
fn append_rate(directory: &Path, bytes: usize, length: Duration) -> std::io::Result<f64> {
    let path = directory.join("append");
    let mut file = OpenOptions::new()
        .create_new(true)
        .append(true)
        .open(&path)?;
    let block = vec![b'x'; bytes];
    let (start, mut count) = (Instant::now(), 0_u32);
    while start.elapsed() < length {
        file.write_all(&block)?;
        file.sync_data()?;
        count += 1;
    }
    let took = start.elapsed();
    std::fs::remove_file(&path)?;
    Ok(f64::from(count) / took.as_secs_f64())
}

/// What a directory takes on the disk once that has stood still for a moment; else as it is after two seconds.
async fn settled_bytes(directory: &Path) -> u64 {
    let mut bytes = machine::disk_bytes(directory);
    for _ in 0..8 {
        tokio::time::sleep(Duration::from_millis(250)).await;
        let before = std::mem::replace(&mut bytes, machine::disk_bytes(directory));
        if before == bytes {
            break;
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_make_up_the_whole() {
        let parts: Vec<_> = parts(2 * BATCH + 5).collect();
        assert_eq!(
            parts,
            [(0, BATCH), (BATCH, 2 * BATCH), (2 * BATCH, 2 * BATCH + 5)]
        );
    }

    #[test]
    fn an_item_with_another_status_is_an_error_that_shows_it() {
        assert!(
            all_of(
                br#"{"items":[{"status":201,"id":"x"},{"status":201}]}"#,
                201
            )
            .is_ok()
        );
        let odd = all_of(br#"{"items":[{"status":201},{"status":503}]}"#, 201)
            .map_err(|error| format!("{error:?}"));
        assert!(odd.is_err_and(|text| text.contains("1 items") && text.contains("503")));
        assert!(all_of(b"", 201).is_err());
    }

    #[test]
    fn the_count_of_a_topic_that_is_not_there_is_0() {
        let stats = br#"{"topics":[{"topic":"a","states":{"succeeded":7}}]}"#;
        assert_eq!(succeeded_in(stats, "a").ok(), Some(7));
        assert_eq!(succeeded_in(stats, "b").ok(), Some(0));
        assert!(succeeded_in(b"no", "a").is_err());
    }
}

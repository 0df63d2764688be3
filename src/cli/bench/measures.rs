//! What is measured, one function each; of the actions in `actions`. Every figure is made here from something that was counted or timed.

use std::cell::{Cell, RefCell};
use std::fs::OpenOptions;
use std::io::Write as _;
use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use super::Measure;
use super::load::{Load, append, expect, load, post};
use super::machine;
use super::report::{Figure, Line, Unit};
use super::site::Site;
use super::traffic::{BATCH, JSON, NDJSON, NEVER_SOON, NOTHING, Traffic, parts};
use crate::cli::Failure;

/// Connections of the single requests.
const CONNECTIONS: usize = 64;
/// Tasks in one commit of the disk's own limit.
const TASKS_A_SYNC: usize = 1000;

pub(super) const OTHER_PROCESS: &str = "the service is another process";

/// How much of each.
#[derive(Clone, Debug)]
pub(super) struct Scale {
    disk_for: Duration,
    create_for: Duration,
    peer_for: Duration,
    batch: usize,
    cancel: usize,
    ended: usize,
    pub(super) handler: usize,
    pub(super) pull: usize,
    pub(super) push: usize,
    pub(super) lateness_for: Duration,
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
            handler: 100_000,
            pull: 30_000,
            push: 30_000,
            lateness_for: Duration::from_secs(10),
            pending: usize::try_from(pending).unwrap_or(usize::MAX),
        }
    }

    pub(super) fn quick(pending: u64) -> Self {
        Self {
            disk_for: Duration::from_millis(300),
            create_for: Duration::from_millis(1200),
            peer_for: Duration::from_secs(1),
            batch: 80_000,
            cancel: 30_000,
            ended: 40_000,
            handler: 40_000,
            pull: 10_000,
            push: 8_000,
            lateness_for: Duration::from_secs(2),
            ..Self::usual(pending)
        }
    }

    /// So many of each action.
    pub(super) fn of_actions(tasks: usize) -> Self {
        let quick = Self::quick(0);
        Self {
            handler: tasks,
            pull: tasks,
            push: tasks,
            // Ten seconds for as many as are usual.
            lateness_for: Duration::from_millis((tasks as u64 / 3).clamp(1_000, 10_000)),
            ..quick
        }
    }
}

/// A run: the place, the sizes, and what is known so far.
pub(super) struct Bench {
    pub(super) site: Site,
    pub(super) scale: Scale,
    pub(super) traffic: Traffic,
    disk_tasks_per_s: Option<f64>,
    create_per_s: Option<f64>,
    pub(super) batch_per_s: Option<f64>,
    pub(super) bare_per_s: Option<f64>,
}

impl Bench {
    pub(super) fn new(site: Site, scale: Scale) -> Self {
        Self {
            traffic: Traffic::new(site.address, site.data().is_some()),
            site,
            scale,
            disk_tasks_per_s: None,
            create_per_s: None,
            batch_per_s: None,
            bare_per_s: None,
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
            Measure::Handler => self.handler().await,
            Measure::Pull => self.pull().await,
            Measure::Push => self.push().await,
            Measure::Lateness => self.lateness().await,
            Measure::Pending => self.pending().await,
        }
    }

    fn disk(&mut self) -> Result<Vec<Line>, Failure> {
        let bytes = self.traffic.task_bytes();
        let (single, tasks) = (self.append_rate(bytes)?, self.tasks_synced()?);
        let (Some(single), Some(tasks)) = (single, tasks) else {
            return Ok(vec![Line::NotMeasured(OTHER_PROCESS)]);
        };
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

    /// How often a second so many bytes can be appended and synced where the data is; unknown for a service that
    /// is elsewhere.
    fn append_rate(&self, bytes: usize) -> Result<Option<f64>, Failure> {
        let Some(data) = self.site.data() else {
            return Ok(None);
        };
        let rate = append_rate(&data, bytes, self.scale.disk_for);
        rate.map(Some).map_err(|error| {
            Failure::new(format!(
                "cannot append to a file in {}: {error}",
                data.display()
            ))
        })
    }

    /// The disk's limit for tasks in large commits, so far: another program may have slowed the disk down before.
    fn tasks_synced(&mut self) -> Result<Option<f64>, Failure> {
        let commits = self.append_rate(self.traffic.task_bytes() * TASKS_A_SYNC)?;
        let tasks = commits.map(|commits| commits * TASKS_A_SYNC as f64);
        self.disk_tasks_per_s = match (self.disk_tasks_per_s, tasks) {
            (Some(before), Some(now)) => Some(before.max(now)),
            (before, now) => before.or(now),
        };
        Ok(self.disk_tasks_per_s)
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
    async fn singles(&self, to: SocketAddr, length: Duration) -> Result<Load, Failure> {
        let (n, until) = (Cell::new(0), Instant::now() + length);
        let body = RefCell::new(Vec::new());
        let next = |request: &mut Vec<u8>| {
            let mut body = body.borrow_mut();
            body.clear();
            self.traffic.task(
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
            .map(|part| self.traffic.creates("batch", part, &never, NOTHING))
            .collect();
        let flooded = self
            .traffic
            .flood("/v1/tasks/batch?return=ids", NDJSON, bodies, 201)
            .await?;
        let rate = flooded.per_second(BATCH);
        self.batch_per_s = Some(rate);
        let limit = self.tasks_synced()?;
        let what = "create, batches of 10 000, 4 connections";
        let figure = Figure::new("batch_per_s", what, rate, Unit::PerSecond);
        let beside =
            format!("append + fdatasync of the same bytes, {TASKS_A_SYNC} tasks to a sync");
        Ok(vec![Line::Figure(figure.beside(beside, limit))])
    }

    async fn cancel(&mut self) -> Result<Vec<Line>, Failure> {
        let count = self.scale.cancel;
        self.traffic
            .fill("cancel", 2 * count, &|_| NEVER_SOON.to_owned(), NOTHING)
            .await?;
        let n = Cell::new(0);
        let next = |request: &mut Vec<u8>| {
            let key = self.traffic.key(n.replace(n.get() + 1));
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
                let key = self.traffic.key(count + n);
                append(
                    &mut body,
                    format_args!(r#"{comma}{{"cancel":{{"topic":"bench.cancel","key":"{key}"}}}}"#),
                );
            }
            body.extend_from_slice(b"]}");
            body
        });
        let batches = self
            .traffic
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
        let before = self.traffic.succeeded("bench.ended").await?;
        let due = self
            .traffic
            .fill_due("ended", count, NOTHING, self.batch_per_s)
            .await?;
        let ended_at = self
            .traffic
            .all_succeeded("bench.ended", before + count)
            .await?;
        let rate = count as f64 / ended_at.saturating_duration_since(due).as_secs_f64();
        let what = format!("ended, action `none`, {count} due at once");
        Ok(vec![figure("ended_per_s", what, rate)])
    }

    async fn pending(&mut self) -> Result<Vec<Line>, Failure> {
        let Some(data) = self.site.data() else {
            return Ok(vec![Line::NotMeasured(OTHER_PROCESS)]);
        };
        let never = |_| NEVER_SOON.to_owned();
        // What is taken once, by threads, buffers and caches, is not to be counted for each task.
        self.traffic.warm_up().await?;
        let unknown = || Failure::new("cannot read this process's memory from /proc/self/status");
        let (memory, disk) = (
            machine::resident_bytes().ok_or_else(unknown)?,
            settled_bytes(&data).await,
        );
        let count = self.scale.pending;
        self.traffic.fill("pending", count, &never, NOTHING).await?;
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
        let raw = self.traffic.task_bytes() as f64;
        Ok(vec![
            Line::Figure(memory.beside("the task as it is sent", Some(raw))),
            Line::Figure(disk.beside("the task as it is sent", Some(raw))),
        ])
    }
}

pub(super) fn figure(name: &'static str, what: String, per_second: f64) -> Line {
    Line::Figure(Figure::new(name, what, per_second, Unit::PerSecond))
}

/// Appends and syncs for a while; how often a second.
pub(super) fn append_rate(
    directory: &Path,
    bytes: usize,
    length: Duration,
) -> std::io::Result<f64> {
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

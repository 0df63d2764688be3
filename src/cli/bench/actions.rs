//! Starts a second, by action: handlers, workers that pull, HTTP pushes; and how late pushes are.
//!
//! ```text
//!   tasks ─ due ─▶ service ─┬─▶ handler of its process
//!                           ├─▶ 4 workers: lease 100, complete 100, …
//!                           └─▶ HTTP push ───────┐
//!   the same HTTP client, alone ─────────────────┴▶ receiver     their peer, in the same run
//! ```
//!
//! All are due at one instant, or have been when workers begin. Each is answered for on the disk before its rate counts.

use std::cell::Cell;
use std::time::{Duration, Instant};

use futures_util::future::try_join_all;
use serde::Deserialize;

use super::load::{Answer, Connection, append, expect, post, quantile};
use super::machine;
use super::measures::{Bench, OTHER_PROCESS};
use super::report::{Figure, Line, Unit};
use super::site::HANDLER;
use super::traffic::{DRAIN_MAX, JSON, all_of, due_at};
use crate::cli::Failure;
use crate::clock::{DurationMs, WallMs};

/// Starts a second, when lateness is measured.
const STARTS_PER_S: usize = 500;
/// Pushes to one host at a time, unless the service is told otherwise.
const PER_HOST: usize = 256;
/// Of pushes, and of the bare client beside them.
const ROUNDS: usize = 3;
/// Workers that pull, and tasks of one lease.
const WORKERS: usize = 4;
const LEASED: usize = 100;

const OTHER_MACHINE: &str =
    "the service cannot reach a receiver on this machine's loopback address";
const BARE: &str = "the same HTTP client without duetime, to the same receiver";

/// What a worker gets.
#[derive(Deserialize)]
struct Leases {
    items: Vec<Leased>,
}

#[derive(Deserialize)]
struct Leased {
    task: LeasedTask,
    token: u64,
}

#[derive(Deserialize)]
struct LeasedTask {
    id: String,
}

impl Bench {
    pub(super) async fn handler(&mut self) -> Result<Vec<Line>, Failure> {
        if self.site.data().is_none() {
            return Ok(vec![Line::NotMeasured(OTHER_PROCESS)]);
        }
        let bare = self.bare_per_s().await?;
        let count = self.scale.handler;
        let before = self.traffic.succeeded("bench.handler").await?;
        let action = format!(r#"{{"handler":{{"name":"{HANDLER}"}}}}"#);
        let due = self
            .traffic
            .fill_due("handler", count, &action, self.batch_per_s)
            .await?;
        let ended_at = self
            .traffic
            .all_succeeded("bench.handler", before + count)
            .await?;
        let rate = count as f64 / ended_at.saturating_duration_since(due).as_secs_f64();
        let what = format!("handler, {count} due at once, all ended");
        let figure = Figure::new("handler_per_s", what, rate, Unit::PerSecond);
        Ok(vec![Line::Figure(figure.beside(BARE, Some(bare)))])
    }

    pub(super) async fn pull(&mut self) -> Result<Vec<Line>, Failure> {
        let bare = self.bare_per_s().await?;
        let count = self.scale.pull;
        let before = self.traffic.succeeded("bench.pull").await?;
        let now = self.traffic.service_now().await?;
        self.traffic
            .fill("pull", count, &|_| due_at(now), r#"{"pull":{}}"#)
            .await?;
        let begun = Instant::now();
        let left = Cell::new(count);
        let workers = (0..WORKERS).map(|_| self.work(&left));
        let worked = tokio::time::timeout(DRAIN_MAX, try_join_all(workers)).await;
        worked.map_err(|_| {
            let left = left.get();
            Failure::new(format!(
                "{left} of {count} tasks were not pulled within {DRAIN_MAX:?}"
            ))
        })??;
        let rate = count as f64 / begun.elapsed().as_secs_f64();
        self.traffic
            .all_succeeded("bench.pull", before + count)
            .await?;
        let what = format!("pull, {WORKERS} workers, {LEASED} a lease, {count} completed");
        let figure = Figure::new("pull_per_s", what, rate, Unit::PerSecond);
        Ok(vec![Line::Figure(figure.beside(BARE, Some(bare)))])
    }

    /// A worker: leases and completes until none are left.
    async fn work(&self, left: &Cell<usize>) -> Result<(), Failure> {
        let broken = |error| Failure::new(format!("a worker's connection broke: {error}"));
        let mut connection = Connection::open(self.site.address).await.map_err(broken)?;
        let (mut request, mut body) = (Vec::new(), Vec::new());
        let ask = format!(
            r#"{{"topics":["bench.pull"],"max":{LEASED},"wait_ms":100,"lease":"PT1M","worker":"bench"}}"#
        );
        while left.get() > 0 {
            post(&mut request, "/v1/leases", JSON, ask.as_bytes());
            let answer = connection.exchange(&request).await.map_err(broken)?;
            let leases: Leases = serde_json::from_slice(answer.body)
                .map_err(|error| Failure::new(format!("{} for a lease: {error}", answer.status)))?;
            if leases.items.is_empty() {
                continue;
            }
            body.clear();
            for (n, Leased { task, token }) in leases.items.iter().enumerate() {
                let begin = if n == 0 { r#"{"ops":["# } else { "," };
                let id = &task.id;
                append(
                    &mut body,
                    format_args!(r#"{begin}{{"complete":{{"id":"{id}","token":{token}}}}}"#),
                );
            }
            body.extend_from_slice(b"]}");
            post(&mut request, "/v1/batch?return=ids", JSON, &body);
            let answer: Answer<'_> = connection.exchange(&request).await.map_err(broken)?;
            all_of(answer.body, 200)?;
            expect(200)(answer)?;
            left.set(left.get().saturating_sub(leases.items.len()));
        }
        Ok(())
    }

    /// In rounds, each beside the bare client: a machine is not as fast at one moment as at another.
    pub(super) async fn push(&mut self) -> Result<Vec<Line>, Failure> {
        if !self.site.reaches_receiver() {
            return Ok(vec![Line::NotMeasured(OTHER_MACHINE)]);
        }
        let each = self.scale.push.div_ceil(ROUNDS);
        let (mut bare, mut took) = ([Duration::ZERO; 2], Duration::ZERO);
        for round in 1..=ROUNDS {
            for (sum, at_a_time) in bare.iter_mut().zip(self.at_a_time()) {
                *sum += self.bare_pushes(each, at_a_time).await?;
            }
            took += self.pushes(&format!("push.{round}"), each).await?;
        }
        let count = each * ROUNDS;
        let per_s = |took: Duration| count as f64 / took.as_secs_f64();
        let bare = per_s(bare[0].min(bare[1]));
        let what = format!("HTTP push, {count} in {ROUNDS} rounds, each due at once");
        let figure = Figure::new("push_per_s", what, per_s(took), Unit::PerSecond);
        Ok(vec![Line::Figure(figure.beside(BARE, Some(bare)))])
    }

    /// How long so many pushes take that are due at one instant.
    async fn pushes(&mut self, name: &str, count: usize) -> Result<Duration, Failure> {
        let topic = format!("bench.{name}");
        let before = self.traffic.succeeded(&topic).await?;
        self.site.peer.received.expect(count);
        let due = self
            .traffic
            .fill_due(name, count, &self.push_to("count"), self.batch_per_s)
            .await?;
        let last = self.site.peer.received.complete(DRAIN_MAX).await?;
        // Each is answered for, too, and came once.
        self.traffic.all_succeeded(&topic, before + count).await?;
        let received = self.site.peer.received.count();
        if received != count {
            return Err(Failure::new(format!(
                "{count} pushes were due and {received} came"
            )));
        }
        Ok(last.saturating_duration_since(due))
    }

    fn push_to(&self, route: &str) -> String {
        format!(
            r#"{{"http":{{"url":"http://{}/{route}"}}}}"#,
            self.site.peer.address
        )
    }

    /// Requests at a time of the bare client: as many as may run to one host, and as pushes may run. The better one counts.
    fn at_a_time(&self) -> [usize; 2] {
        [PER_HOST.min(self.site.pushes), self.site.pushes]
    }

    /// What the executor's HTTP client does alone, measured once.
    async fn bare_per_s(&mut self) -> Result<f64, Failure> {
        if let Some(known) = self.bare_per_s {
            return Ok(known);
        }
        let count = self.scale.push;
        let [few, many] = self.at_a_time();
        let few = self.bare_pushes(count, few).await?;
        let many = self.bare_pushes(count, many).await?;
        let rate = count as f64 / few.min(many).as_secs_f64();
        Ok(*self.bare_per_s.insert(rate))
    }

    /// How long the same requests take, as large as a push, so many at a time.
    async fn bare_pushes(&self, count: usize, at_a_time: usize) -> Result<Duration, Failure> {
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
        let body = bytes::Bytes::from(vec![b'.'; self.traffic.task_bytes() + 150]);
        self.site.peer.received.expect(count);
        let start = Instant::now();
        let each = count.div_ceil(at_a_time);
        let senders = (0..at_a_time).map(|n| {
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
        Ok(took)
    }

    pub(super) async fn lateness(&mut self) -> Result<Vec<Line>, Failure> {
        if !self.site.reaches_receiver() {
            return Ok(vec![Line::NotMeasured(OTHER_MACHINE)]);
        }
        let count = self.scale.lateness_for.as_millis() as usize * STARTS_PER_S / 1000;
        let first = self.traffic.service_now().await?.after(DurationMs::secs(1));
        let due = |n: usize| due_at(WallMs(first.0 + (n * 1000 / STARTS_PER_S) as i64));
        self.site.peer.received.expect(count);
        self.traffic
            .fill("lateness", count, &due, &self.push_to("late"))
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
}

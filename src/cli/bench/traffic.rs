//! The tasks that a load is made of, and how they get to the service: singly, in batches, all due at one instant.
//!
//! All are like those of a shop: a topic, a key, a due time, a small payload, about 190 bytes of JSON. Every answer
//! is checked, those of batches item by item.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use serde::Deserialize;
use serde_json::Value;

use super::load::{Answer, Connection, Load, append, expect, load, once, post};
use crate::cli::Failure;
use crate::clock::{Clock, DurationMs, WallMs};

/// Connections of the batches.
const BATCH_CONNECTIONS: usize = 4;
/// Items of a batch.
pub(super) const BATCH: usize = 10_000;
/// Longest wait for what is due to have happened.
pub(super) const DRAIN_MAX: Duration = Duration::from_secs(60);
/// How often the service is asked whether all have ended.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// The first order's number; all have as many digits.
const ORDER_IDS_FROM: usize = 100_000_000;
pub(super) const JSON: &str = "application/json";
pub(super) const NDJSON: &str = "application/x-ndjson";
/// Due so late that it does not matter.
pub(super) const NEVER_SOON: &str = r#""delay":"P1D""#;
/// The action that ends when due.
pub(super) const NOTHING: &str = r#"{"none":{}}"#;

/// The way to the service.
pub(super) struct Traffic {
    to: SocketAddr,
    clock: Clock,
    /// Tells this run's keys from those of another one on the same service.
    run: u32,
    /// How far the service's wall clock is ahead of ours, in milliseconds; once known.
    ahead_ms: Option<i64>,
}

impl Traffic {
    /// To a service that goes by this process's clock, or by one of its own.
    pub(super) fn new(to: SocketAddr, same_clock: bool) -> Self {
        let clock = Clock::machine();
        Self {
            to,
            run: clock.now().wall.0 as u32,
            clock,
            ahead_ms: same_clock.then_some(0),
        }
    }

    /// Four batches of tasks, so that all that is taken once is taken.
    pub(super) async fn warm_up(&self) -> Result<(), Failure> {
        self.fill(
            "warm",
            BATCH_CONNECTIONS * BATCH,
            &|_| NEVER_SOON.to_owned(),
            NOTHING,
        )
        .await
    }

    pub(super) fn key(&self, n: usize) -> String {
        format!("{:08x}-{n:08}", self.run)
    }

    /// A task as it is sent. All of one topic are equally long.
    pub(super) fn task(&self, body: &mut Vec<u8>, topic: &str, n: usize, due: &str, action: &str) {
        let (key, order_id) = (self.key(n), ORDER_IDS_FROM + n);
        append(
            body,
            format_args!(
                r#"{{"topic":"bench.{topic}","key":"{key}",{due},"payload":{{"order_id":{order_id},"note":"{:.<60}"}},"action":{action}}}"#,
                ""
            ),
        );
    }

    pub(super) fn task_bytes(&self) -> usize {
        let mut body = Vec::new();
        self.task(&mut body, "create", 0, NEVER_SOON, NOTHING);
        body.len()
    }

    /// One batch of creates: items `from` to `to`, each due as `due` says.
    pub(super) fn creates(
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
    pub(super) async fn fill(
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
        load(self.to, BATCH_CONNECTIONS, next, take).await.map(drop)
    }

    /// Sends prebuilt bodies over the connections of batches, and checks the items' statuses afterwards.
    pub(super) async fn flood(
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
        let flooded = load(self.to, BATCH_CONNECTIONS, next, take).await?;
        for answer in answers.into_inner() {
            all_of(&answer, status)?;
        }
        Ok(flooded)
    }

    /// Creates tasks that are all due at one instant; the instant, on our own clock.
    pub(super) async fn fill_due(
        &mut self,
        topic: &str,
        count: usize,
        action: &str,
        known_per_s: Option<f64>,
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
        let slowest = known_per_s.map_or(pilot, |known| known.min(pilot));
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
    pub(super) async fn service_now(&mut self) -> Result<WallMs, Failure> {
        let here = self.clock.now().wall;
        if self.ahead_ms.is_none() {
            let (mut body, mut request) = (Vec::new(), Vec::new());
            self.task(&mut body, "clock", 0, NEVER_SOON, NOTHING);
            post(&mut request, "/v1/tasks", JSON, &body);
            let answer = once(self.to, &request, 201).await?;
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
    pub(super) async fn succeeded(&self, topic: &str) -> Result<usize, Failure> {
        once(self.to, STATS, 200)
            .await
            .and_then(|body| succeeded_in(&body, topic))
    }

    /// Waits until so many tasks of a topic have succeeded; when that was seen.
    pub(super) async fn all_succeeded(
        &self,
        topic: &str,
        wanted: usize,
    ) -> Result<Instant, Failure> {
        let broken = |error: std::io::Error| {
            Failure::new(format!("the service's counts can't be read: {error}"))
        };
        let mut connection = Connection::open(self.to).await.map_err(broken)?;
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

pub(super) fn due_at(at: WallMs) -> String {
    format!(r#""due_at":"{at}""#)
}

/// Ranges of at most a batch that make up `count`.
pub(super) fn parts(count: usize) -> impl Iterator<Item = (usize, usize)> {
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

pub(super) fn all_of(answer: &[u8], status: u16) -> Result<(), Failure> {
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

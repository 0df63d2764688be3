//! The load of the day: orders that come at an even rate, of which most are paid, and cancelled, before they are due.
//!
//! Each connection has its share of the orders and sends, at their instants, whatever comes next: a create, or the
//! cancel of an order that it created before. A connection whose answers are slow falls behind, catches up, and shows in
//! the rate at the end.

use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use futures_util::future::try_join_all;

use super::super::load::{Answer, Connection, expect, once, post};
use super::super::site::{Site, cannot};
use super::super::traffic::{JSON, NOTHING, Traffic};
use crate::cli::Failure;
use crate::clock::DurationMs;
use crate::task::duration;

/// Connections over which orders come.
const CONNECTIONS: usize = 16;
const TOPIC: &str = "day";
/// Longest wait for one answer.
const ANSWER_MAX: Duration = Duration::from_secs(30);

/// The load, fitted to how long it lasts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    pub(super) length: Duration,
    /// Creates a second.
    pub(super) rate: u32,
    /// Orders are due after this at least, and this at most.
    pub(super) delay_min: Duration,
    pub(super) delay_max: Duration,
    /// How long an ended task is kept.
    pub(super) retention: Duration,
}

/// What becomes of an order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fate {
    Cancelled,
    Ended,
    Pushed,
}

impl Plan {
    /// The longest delay and the retention together are a sixth of the run: what comes and what goes are in balance before
    /// the first third is over.
    pub(super) fn of(length: Duration, rate: u32) -> Self {
        let at_least = |least: u64, share: Duration| share.max(Duration::from_millis(least));
        Self {
            length,
            rate,
            delay_min: at_least(500, length / 60),
            delay_max: at_least(1_000, length / 15),
            retention: at_least(1_000, length / 10),
        }
    }

    fn orders(&self) -> usize {
        (self.length.as_secs_f64() * f64::from(self.rate)) as usize
    }

    /// When an order comes, counted from the begin.
    fn comes_at(&self, n: usize) -> Duration {
        Duration::from_secs_f64(n as f64 / f64::from(self.rate))
    }

    /// In no order between the shortest and the longest.
    fn delay(&self, n: usize) -> Duration {
        let part = (n as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40;
        let spread = self.delay_max - self.delay_min;
        self.delay_min + spread.mul_f64(part as f64 / f64::from(1 << 24))
    }

    fn fate(n: usize) -> Fate {
        match n % 5 {
            0..3 => Fate::Cancelled,
            3 => Fate::Ended,
            _ => Fate::Pushed,
        }
    }

    /// Whether an order is to be pushed, if it is not cancelled before; of those to be cancelled every other one.
    fn is_push(n: usize) -> bool {
        match Self::fate(n) {
            Fate::Cancelled => n.is_multiple_of(2),
            Fate::Ended => false,
            Fate::Pushed => true,
        }
    }

    /// Puts the topic, with its retention.
    pub(super) async fn declare(&self, to: SocketAddr) -> Result<(), Failure> {
        let kept = as_text(self.retention);
        let body = format!(
            r#"{{"retention":{{"succeeded":"{kept}","cancelled":"{kept}","dead":"P1D"}}}}"#
        );
        let request = format!(
            "PUT /v1/topics/bench.{TOPIC} HTTP/1.1\r\nhost: bench\r\ncontent-type: {JSON}\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        once(to, request.as_bytes(), 201).await.map(drop)
    }
}

/// As the API takes it.
fn as_text(length: Duration) -> String {
    duration::format(DurationMs::of(length))
}

/// What was asked of the service, and answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Done {
    pub(super) created: u64,
    /// Those that may not fire any more.
    pub(super) cancelled: u64,
    /// Cancels that found their task ended.
    pub(super) overtaken: u64,
    /// Pushes that have to come.
    pub(super) to_be_pushed: u64,
    /// From the begin to the last create.
    pub(super) took: Duration,
}

/// Sends the whole load, from `begun` on.
///
/// # Errors
/// When a connection breaks, hangs, or an answer is not one that can be.
pub(super) async fn shop(site: &Site, plan: Plan, begun: Instant) -> Result<Done, Failure> {
    let traffic = Traffic::new(site.address, true);
    let push = format!(
        r#"{{"http":{{"url":"http://{}/count"}}}}"#,
        site.peer.address
    );
    site.peer.received.expect(usize::MAX);
    let done = RefCell::new(Done::default());
    let shoppers = (0..CONNECTIONS).map(|first| {
        Shopper {
            plan,
            begun,
            traffic: &traffic,
            push: &push,
            done: &done,
        }
        .run(site.address, first)
    });
    try_join_all(shoppers).await?;
    Ok(done.into_inner())
}

/// One connection's share.
struct Shopper<'a> {
    plan: Plan,
    begun: Instant,
    traffic: &'a Traffic,
    /// The action that pushes.
    push: &'a str,
    done: &'a RefCell<Done>,
}

impl Shopper<'_> {
    async fn run(self, to: SocketAddr, first: usize) -> Result<(), Failure> {
        let opened = Connection::open(to).await;
        let mut connection = opened.map_err(|error| cannot("connect to the service", &error))?;
        let mut orders = (first..self.plan.orders()).step_by(CONNECTIONS).peekable();
        // As many as are cancelled within the longest delay.
        let mut cancels = BinaryHeap::new();
        let mut request = Vec::new();
        loop {
            let next = orders.peek().map(|n| self.plan.comes_at(*n));
            let cancel = cancels.peek().map(|Reverse((at, _))| *at);
            let Some(at) = next.into_iter().chain(cancel).min() else {
                return Ok(());
            };
            tokio::time::sleep_until((self.begun + at).into()).await;
            if cancel == Some(at) {
                let Some(Reverse((_, n))) = cancels.pop() else {
                    continue;
                };
                self.write_cancel(&mut request, n);
                let answer = exchange(&mut connection, &request).await?;
                self.cancelled(n, answer)?;
            } else if let Some(n) = orders.next() {
                self.write_create(&mut request, n);
                expect(201)(exchange(&mut connection, &request).await?)?;
                self.created(n);
                if Plan::fate(n) == Fate::Cancelled {
                    cancels.push(Reverse((at + self.plan.delay(n) / 2, n)));
                }
            }
        }
    }

    fn write_create(&self, request: &mut Vec<u8>, n: usize) {
        let due = format!(r#""delay":"{}""#, as_text(self.plan.delay(n)));
        let action = match Plan::is_push(n) {
            true => self.push,
            false => NOTHING,
        };
        let mut body = Vec::with_capacity(256);
        self.traffic.task(&mut body, TOPIC, n, &due, action);
        post(request, "/v1/tasks", JSON, &body);
    }

    fn write_cancel(&self, request: &mut Vec<u8>, n: usize) {
        let key = self.traffic.key(n);
        let path = format!("/v1/topics/bench.{TOPIC}/keys/{key}/cancel");
        post(request, &path, JSON, b"{}");
    }

    fn created(&self, n: usize) {
        let mut done = self.done.borrow_mut();
        done.created += 1;
        done.took = done.took.max(self.begun.elapsed());
        done.to_be_pushed += u64::from(Plan::fate(n) == Fate::Pushed);
    }

    /// A machine that stood still for longer than half of a delay has let a task fire that was to be cancelled.
    fn cancelled(&self, n: usize, answer: Answer<'_>) -> Result<(), Failure> {
        let mut done = self.done.borrow_mut();
        match answer.status {
            200 | 202 => done.cancelled += 1,
            404 | 409 => {
                done.overtaken += 1;
                done.to_be_pushed += u64::from(Plan::is_push(n));
            }
            _ => expect(200)(answer)?,
        }
        Ok(())
    }
}

async fn exchange<'a>(
    connection: &'a mut Connection,
    request: &[u8],
) -> Result<Answer<'a>, Failure> {
    match tokio::time::timeout(ANSWER_MAX, connection.exchange(request)).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(error)) => Err(cannot("reach the service", &error)),
        Err(_) => Err(Failure::new(format!(
            "the service did not answer within {ANSWER_MAX:?}"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_of_five_are_cancelled_and_the_rest_is_half_pushed() {
        let fates = (0..1000).map(Plan::fate);
        let of = |fate| fates.clone().filter(|each| *each == fate).count();
        assert_eq!(
            (of(Fate::Cancelled), of(Fate::Ended), of(Fate::Pushed)),
            (600, 200, 200)
        );
    }

    #[test]
    fn delays_spread_over_their_range_and_balance_comes_in_the_first_third() {
        let plan = Plan::of(Duration::from_secs(1800), 1160);
        let delays: Vec<_> = (0..10_000).map(|n| plan.delay(n)).collect();
        let (least, most) = (delays.iter().min(), delays.iter().max());
        assert!(least >= Some(&plan.delay_min) && least < Some(&(plan.delay_min * 11 / 10)));
        assert!(most < Some(&plan.delay_max) && most > Some(&(plan.delay_max * 9 / 10)));
        assert!(plan.delay_max + plan.retention < plan.length / 5);
        assert_eq!(plan.orders(), 2_088_000);
    }
}

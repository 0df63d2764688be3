//! `duetime demo`: ten seconds in a small shop, told line by line, that show what a timeout center is for.
//!
//! ```text
//!  placed ──── 3 s ────▶ not paid: the shop is told to close the order (HTTP push)
//!     └─ paid ─▶ the timeout is cancelled by the order's own key, and nothing fires
//! ```
//!
//! A shop that answers 500 is asked again, a customer may have the clock stopped, one of the service's shards
//! loses its memory on the way, and a worker asks for a courier until one accepts. Engine, shop and worker live in this
//! process, on a temporary directory and a free loopback port.
//!
//! The demo **checks itself**: it knows what it was promised and compares that with what the shop saw. Whatever
//! fired early, twice, not at all, or after it was cancelled makes it fail.

mod ending;
mod shop;

use std::io::{self, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use parking_lot::Mutex;
use serde_json::json;

use self::ending::{Ending, Row};
use self::shop::{Shop, Teller, open};
use super::Failure;
use crate::clock::{Clock, DurationMs, SteadyMs};
use crate::engine::Duetime;
use crate::engine::handle::LeaseAsk;
use crate::engine::status::ShardStatus;
use crate::ids::ShardId;
use crate::shard::create::Created;
use crate::shard::messages::Target;
use crate::shard::query::TaskView;
use crate::task::event::Event;
use crate::task::model::{PauseClock, State};
use crate::task::new_task::NewTask;
use crate::task::outcome::Outcome;
use crate::task::retry::{Backoff, RetryPolicy};
use crate::task::spec::{Action, HttpAction, TaskKey, TopicName};

const UNPAID: &str = "order.unpaid";
const COURIER: &str = "order.courier";
/// How long a customer has to pay.
const PAY_WITHIN: Duration = Duration::from_secs(3);
/// The story is written in beats: so many to a payment timeout, 100 ms each.
const BEATS_TO_PAY: u32 = 30;
/// Beats between a shop's failure and the next attempt.
const RETRY_BEATS: u32 = 4;
/// Beats until the courier is asked for, and between two questions.
const COURIER_BEATS: (u32, u32) = (10, 5);
/// The beat at which a shard loses its memory.
const CRASH_AT: u32 = 19;
/// After so long something hangs.
const OVER_AFTER: Duration = Duration::from_secs(11);

/// What becomes of each order, the first one first. Times are beats.
const ORDERS: [Fate; 12] = [
    Fate::Unpaid,
    Fate::Paid { at: 13 },
    Fate::ShopFails,
    Fate::Paid { at: 15 },
    Fate::Unpaid,
    Fate::Paid { at: 17 },
    Fate::Held {
        from: 18,
        until: 27,
    },
    Fate::Paid { at: 21 },
    Fate::ShopFails,
    Fate::Paid { at: 23 },
    Fate::Unpaid,
    Fate::Paid { at: 25 },
];

/// See tasks fire, retry and be cancelled, on a service of its own.
#[derive(clap::Args, Debug)]
pub struct Args {}

/// Plays the story, and says whether all was as promised.
///
/// # Errors
/// When the service can't be started, or did not keep a promise.
pub fn run(_: Args, json: bool) -> Result<(), Failure> {
    let sink: Box<dyn Write + Send> = if json {
        Box::new(io::sink())
    } else {
        Box::new(io::stdout())
    };
    let ending = tell(PAY_WITHIN, sink)?;
    let text = if json {
        format!("{:#}\n", ending.json())
    } else {
        format!("\n{}\n", ending.text())
    };
    io::stdout()
        .write_all(text.as_bytes())
        .map_err(Failure::of_output)?;
    ending.verdict()
}

fn tell(pay_within: Duration, sink: Box<dyn Write + Send>) -> Result<Ending, Failure> {
    actix_web::rt::System::new().block_on(async {
        tokio::select! {
            told = tokio::time::timeout(OVER_AFTER, Story::tell(pay_within, sink)) => {
                told.unwrap_or_else(|_| Err(Failure::new("the story did not come to its end in time")))
            }
            _ = tokio::signal::ctrl_c() => Err(Failure::new("stopped by ctrl-c")),
        }
    })
}

/// What becomes of an order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fate {
    /// Nobody pays.
    Unpaid,
    /// Nobody pays, and the shop fails when it is first told.
    ShopFails,
    /// Paid in time.
    Paid { at: u32 },
    /// The customer gets more time: the clock stands still in between.
    Held { from: u32, until: u32 },
    /// A worker asks for a courier: not yet, then yes.
    Courier,
}

impl Fate {
    /// How often the order's timeout is to fire.
    fn fires(self) -> usize {
        match self {
            Self::Paid { .. } => 0,
            Self::Unpaid | Self::Held { .. } => 1,
            Self::ShopFails | Self::Courier => 2,
        }
    }

    fn ends_as(self) -> State {
        match self {
            Self::Paid { .. } => State::Cancelled,
            _ => State::Succeeded,
        }
    }

    fn words(self) -> &'static str {
        match self {
            Self::Unpaid => "not paid: closed",
            Self::ShopFails => "not paid; the shop failed once, then closed it",
            Self::Paid { .. } => "paid in time: timeout cancelled",
            Self::Held { .. } => "clock stopped for a while; not paid: closed",
            Self::Courier => "courier asked for twice, then found",
        }
    }
}

/// One thing that the demo does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    Place(usize),
    Pay(usize),
    Hold(usize),
    GoOn(usize),
    Crash,
}

/// The steps and their beats, in order.
fn script() -> Vec<(u32, Step)> {
    let mut steps = vec![(CRASH_AT, Step::Crash)];
    for (beat, (order, fate)) in (0..).zip(ORDERS.iter().enumerate()) {
        steps.push((beat, Step::Place(order)));
        match *fate {
            Fate::Paid { at } => steps.push((at, Step::Pay(order))),
            Fate::Held { from, until } => {
                steps.extend([(from, Step::Hold(order)), (until, Step::GoOn(order))]);
            }
            Fate::Unpaid | Fate::ShopFails | Fate::Courier => {}
        }
    }
    steps.sort_by_key(|(beat, _)| *beat);
    steps
}

fn name(order: usize) -> String {
    format!("order-{}", order + 1)
}

fn topic(name: &str) -> TopicName {
    TopicName::parse(name).expect("the demo's topics are names")
}

fn target(topic_name: &str, order: usize) -> Target {
    let key = TaskKey::parse(&name(order)).expect("the demo's keys are keys");
    Target::Key(topic(topic_name), key)
}

fn cannot<E: std::fmt::Display>(what: impl std::fmt::Display) -> impl FnOnce(E) -> Failure {
    move |error| Failure::new(format!("cannot {what}: {error}"))
}

/// The story while it is told.
#[derive(Clone)]
struct Story {
    engine: Duetime,
    teller: Arc<Teller>,
    beat: Duration,
    close_at: String,
}

impl Story {
    async fn tell(pay_within: Duration, sink: Box<dyn Write + Send>) -> Result<Ending, Failure> {
        let data = tempfile::tempdir().map_err(cannot("make a temporary directory"))?;
        let clock = Clock::machine();
        let beat = pay_within / BEATS_TO_PAY;
        let builder = Duetime::builder()
            .data_dir(data.path())
            .clock(clock.clone());
        let engine = builder.start().await.map_err(cannot("start the service"))?;
        let teller = Arc::new(Teller::new(sink));
        let began = clock.now().steady;
        let shop = Arc::new(Shop {
            clock,
            teller: Arc::clone(&teller),
            retry_in: beat * RETRY_BEATS,
            calls: Mutex::default(),
        });
        let (address, shop_server) = open(Arc::clone(&shop)).map_err(cannot("open the shop"))?;
        let story = Self {
            engine,
            teller,
            beat,
            close_at: format!("http://{address}/close"),
        };
        let found_at = story.play().await?;
        let calls = shop.calls.lock().clone();
        let rows = story.rows(began, &calls, &found_at).await?;
        story.engine.shutdown().await;
        shop_server.stop(false).await;
        Ok(Ending { rows })
    }

    /// All steps at their beats; then waits for the last timeouts. When the worker held the courier's task.
    async fn play(&self) -> Result<Vec<SteadyMs>, Failure> {
        let seconds = (self.beat * BEATS_TO_PAY).as_secs_f64();
        self.teller.line(&format!(
            "a shop opens: an order is closed after {seconds} s unless it is paid"
        ));
        let courier = actix_web::rt::spawn(self.clone().find_courier());
        let start = tokio::time::Instant::now();
        for (beat, step) in script() {
            tokio::time::sleep_until(start + self.beat * beat).await;
            self.take(step).await?;
            self.teller.check()?;
        }
        let found_at = courier
            .await
            .map_err(cannot("join the courier's worker"))??;
        while self
            .views()
            .await?
            .iter()
            .any(|(_, view)| !view.task.state.is_ended())
        {
            self.teller.check()?;
            tokio::time::sleep(self.beat).await;
        }
        Ok(found_at)
    }

    async fn take(&self, step: Step) -> Result<(), Failure> {
        match step {
            Step::Place(order) => self.place(order).await,
            Step::Pay(order) => {
                let cancelled = self.engine.cancel(target(UNPAID, order), "paid").await;
                cancelled.map_err(cannot(format!("cancel the timeout of {}", name(order))))?;
                self.teller.line(&format!(
                    "{} is paid: its timeout is cancelled",
                    name(order)
                ));
                Ok(())
            }
            Step::Hold(order) => {
                let clock = PauseClock::Freeze;
                self.verb(order, Event::Pause { clock }).await?;
                self.teller.line(&format!(
                    "{} asks for more time: its clock is stopped",
                    name(order)
                ));
                Ok(())
            }
            Step::GoOn(order) => {
                self.verb(order, Event::Resume).await?;
                self.teller.line(&format!(
                    "{} goes on with the time it had left",
                    name(order)
                ));
                Ok(())
            }
            Step::Crash => self.crash().await,
        }
    }

    async fn verb(&self, order: usize, event: Event) -> Result<(), Failure> {
        let what = format!("{} {}", event.verb(), name(order));
        let done = self.engine.verb(target(UNPAID, order), event, "demo").await;
        done.map(drop).map_err(cannot(what))
    }

    async fn place(&self, order: usize) -> Result<(), Failure> {
        let close = Action::Http(HttpAction {
            url: self.close_at.clone(),
            method: "POST".to_owned(),
            headers: Vec::new(),
            expect_status: Vec::new(),
            success_if: None,
            complete_by: None,
        });
        let again = RetryPolicy {
            backoff: Backoff::Fixed(millis(self.beat * RETRY_BEATS)),
            max_attempts: 3,
            ..RetryPolicy::default()
        };
        self.create(UNPAID, order, BEATS_TO_PAY, close, again)
            .await?;
        self.teller.line(&format!("{} is placed", name(order)));
        if order == 0 {
            let (first, _) = COURIER_BEATS;
            self.create(COURIER, order, first, Action::Pull, RetryPolicy::default())
                .await?;
            let wait = (self.beat * first).as_secs_f64();
            self.teller.line(&format!(
                "{} wants a courier: a worker is to ask for one in {wait} s",
                name(order)
            ));
        }
        Ok(())
    }

    async fn create(
        &self,
        topic_name: &str,
        order: usize,
        beats: u32,
        action: Action,
        retry: RetryPolicy,
    ) -> Result<(), Failure> {
        let new = NewTask::new(topic(topic_name))
            .key(&name(order))
            .expect("the demo's keys are keys")
            .after(self.beat * beats)
            .action(action)
            .payload(&json!({"order": order + 1}))
            .retry(retry);
        match self
            .engine
            .create(new, "demo")
            .await
            .map_err(cannot(format!("place {}", name(order))))?
        {
            Created::New(_) => Ok(()),
            other => Err(Failure::new(format!(
                "{} is there already: {other:?}",
                name(order)
            ))),
        }
    }

    /// Throws one shard away with all that it has in memory, and waits until the watchdog has it back.
    async fn crash(&self) -> Result<(), Failure> {
        let shard = ShardId(0);
        let before = self.engine.shards().await;
        let shards = before.len();
        let epoch = before
            .into_iter()
            .find(|status| status.shard == shard)
            .map(|status| status.epoch);
        let down_at = Instant::now();
        self.engine
            .restart_shard(shard)
            .map_err(cannot("crash a shard"))?;
        let back = |status: &ShardStatus| {
            status.shard == shard && Some(status.epoch) > epoch && status.counts.is_some()
        };
        while !self.engine.shards().await.iter().any(back) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let ms = down_at.elapsed().as_millis();
        self.teller.line(&format!(
            "one of the service's {shards} shards loses its memory: back from the disk after {ms} ms, with every order"
        ));
        Ok(())
    }

    /// The worker: leases the courier's task, asks for a courier, is told "not yet" once.
    async fn find_courier(self) -> Result<Vec<SteadyMs>, Failure> {
        let mut held_at = Vec::new();
        while held_at.len() < Fate::Courier.fires() {
            let ask = LeaseAsk {
                topics: vec![topic(COURIER)],
                max: 1,
                lease: DurationMs::secs(5),
                wait: millis(OVER_AFTER),
                worker: "courier-desk".to_owned(),
            };
            let leases = self
                .engine
                .lease(ask)
                .await
                .map_err(cannot("lease the courier's task"))?;
            let Some(lease) = leases.into_iter().next() else {
                return Err(Failure::new(
                    "the courier's task was never handed to its worker",
                ));
            };
            held_at.push(self.engine.now().steady);
            let (token, last) = (lease.token, held_at.len() == Fate::Courier.fires());
            let event = if last {
                self.teller.line("worker: a courier has accepted; done");
                let result = Some(Bytes::from_static(br#"{"courier":"c-17"}"#));
                let outcome = Outcome::Succeeded {
                    result,
                    result_dropped: false,
                };
                Event::Finished {
                    token,
                    outcome,
                    started_at: None,
                }
            } else {
                let wait = self.beat * COURIER_BEATS.1;
                self.teller.line(&format!(
                    "worker: no courier yet; asks again in {:.1} s",
                    wait.as_secs_f64()
                ));
                Event::Snoozed {
                    token,
                    delay: millis(wait),
                }
            };
            let answered = self
                .engine
                .finish_attempt(lease.view.task.id, event, "worker courier-desk")
                .await;
            answered.map_err(cannot("answer for the courier's task"))?;
        }
        Ok(held_at)
    }

    async fn views(&self) -> Result<Vec<(Fate, TaskView)>, Failure> {
        let mut views = Vec::new();
        let orders = (0..).zip(ORDERS).map(|(order, fate)| (UNPAID, order, fate));
        for (topic_name, order, fate) in orders.chain([(COURIER, 0, Fate::Courier)]) {
            let found = self.engine.get(target(topic_name, order)).await;
            let found = found.map_err(cannot(format!("look at {}", name(order))))?;
            let view = found.ok_or_else(|| Failure::new(format!("{} is lost", name(order))))?;
            views.push((fate, view));
        }
        Ok(views)
    }

    async fn rows(
        &self,
        began: SteadyMs,
        calls: &[(String, SteadyMs)],
        found_at: &[SteadyMs],
    ) -> Result<Vec<Row>, Failure> {
        let row = |(fate, view): (Fate, TaskView)| {
            let task = view.task;
            let order = task
                .key
                .as_ref()
                .map(|key| key.as_str().to_owned())
                .unwrap_or_default();
            let fired: Vec<i64> = match fate {
                Fate::Courier => found_at.iter().map(|at| at.0 - began.0).collect(),
                _ => calls
                    .iter()
                    .filter(|(key, _)| *key == order)
                    .map(|(_, at)| at.0 - began.0)
                    .collect(),
            };
            Row {
                order: if fate == Fate::Courier {
                    format!("{order}'s courier")
                } else {
                    order
                },
                fate,
                due_ms: task.due.fire_ms - began.0,
                fired_ms: fired,
                attempts: task.attempt.0,
                state: task.state,
            }
        };
        Ok(self.views().await?.into_iter().map(row).collect())
    }
}

fn millis(length: Duration) -> DurationMs {
    DurationMs(u64::try_from(length.as_millis()).unwrap_or(u64::MAX))
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    /// What was written, for the test to look at.
    #[derive(Clone, Default)]
    struct Written(Arc<Mutex<Vec<u8>>>);

    impl Write for Written {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn the_whole_story_ends_as_promised() {
        let written = Written::default();
        let ending = tell(Duration::from_millis(900), Box::new(written.clone())).unwrap();
        assert_eq!(ending.problems(), Vec::<String>::new());
        assert_eq!((ending.fired(), ending.count(State::Cancelled)), (7, 6));
        let told = String::from_utf8(written.0.lock().clone()).unwrap();
        for words in [
            "order-2 is paid: its timeout is cancelled",
            "back from the disk",
            "order-3 is closed, at attempt 2",
        ] {
            assert!(told.contains(words), "{words} in {told}");
        }
        assert!(!told.contains('\u{1b}'), "no escape codes");
    }

    #[test]
    fn every_order_is_placed_before_anything_else_happens_to_it() {
        let steps = script();
        for (order, _) in ORDERS.iter().enumerate() {
            let placed = steps
                .iter()
                .position(|(_, step)| *step == Step::Place(order))
                .unwrap();
            let next = steps
                .iter()
                .position(|(_, step)| matches!(step, Step::Pay(n) | Step::Hold(n) | Step::GoOn(n) if *n == order));
            assert!(next.is_none_or(|next| next > placed));
        }
    }
}

//! The tasks that the engine is loaded with, and how they get there: orders of a shop, about 190 bytes of JSON each,
//! in batches, several batches at a time so that no shard waits for the next one to be made.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use indicatif::ProgressBar;
use parking_lot::Mutex;
use tokio::task::JoinSet;

use super::super::traffic;
use crate::cli::Failure;
use crate::clock::WallMs;
use crate::engine::Duetime;
use crate::engine::handle::BatchOp;
use crate::shard::create::Created;
use crate::shard::messages::{OpDone, Target, Wants};
use crate::task::event::Event;
use crate::task::spec::{Action, RawJson, TaskKey, TopicName};
use crate::task::{NewTask, When};

/// Batches that are made, or wait for their answer, at a time.
pub(super) const BATCHES_AT_ONCE: usize = 4;
/// Longest wait for the answer to one of them.
const ANSWER_MAX: Duration = Duration::from_secs(60);
/// The first order's number; all have as many digits.
const ORDER_IDS_FROM: usize = 100_000_000;

/// A topic of the run.
pub(super) fn topic(name: &str) -> TopicName {
    TopicName::parse(&format!("bench.{name}")).expect("a short name without odd characters")
}

/// Tasks of one topic, numbered.
#[derive(Clone, Debug)]
pub(super) struct Orders {
    pub(super) topic: TopicName,
    pub(super) action: Action,
}

impl Orders {
    pub(super) fn of(name: &str, action: Action) -> Self {
        Self {
            topic: topic(name),
            action,
        }
    }

    pub(super) fn key(n: usize) -> TaskKey {
        TaskKey::parse(&format!("order-{n:011}")).expect("a short key")
    }

    pub(super) fn payload(n: usize) -> RawJson {
        let order_id = ORDER_IDS_FROM + n;
        RawJson::from(format!(r#"{{"order_id":{order_id},"note":"{:.<60}"}}"#, ""))
    }

    /// The creation of one.
    pub(super) fn create(&self, n: usize, when: When) -> BatchOp {
        let mut new = NewTask::new(self.topic.clone()).action(self.action.clone());
        new.key = Some(Self::key(n));
        new.payload = Some(Self::payload(n));
        new.when = Some(when);
        BatchOp::Create(Box::new(new))
    }

    /// The cancel of one, by its key.
    pub(super) fn cancel(&self, n: usize) -> BatchOp {
        let reason = "paid".to_owned();
        let target = Target::Key(self.topic.clone(), Self::key(n));
        BatchOp::Verb(target, Event::Cancel { reason })
    }

    /// How long one is as it is sent over HTTP.
    pub(super) fn sent_bytes(&self) -> usize {
        let (topic, key) = (self.topic.as_str(), Self::key(0));
        let (key, payload) = (key.as_str(), Self::payload(0));
        let (due, payload) = (traffic::due_at(WallMs(0)), payload.as_str());
        let action = traffic::NOTHING;
        let sent = format!(
            r#"{{"topic":"{topic}","key":"{key}",{due},"payload":{payload},"action":{action}}}"#
        );
        sent.len()
    }
}

/// When how many operations had been answered.
#[derive(Debug)]
pub(super) struct Course {
    begun: Instant,
    answered: Vec<(usize, Instant)>,
}

impl Course {
    /// Operations a second, from the answer to the `from`th on until that to the `to`th.
    pub(super) fn per_second(&self, from: usize, to: usize) -> f64 {
        let ((from, begun), (to, ended)) = (self.reached(from), self.reached(to));
        (to - from) as f64 / (ended - begun).as_secs_f64().max(1e-6)
    }

    fn reached(&self, count: usize) -> (usize, Instant) {
        let start = (0, self.begun);
        let answered = std::iter::once(&start).chain(&self.answered);
        let reached = answered.clone().find(|(so_far, _)| *so_far >= count);
        *reached.or(answered.last()).unwrap_or(&start)
    }
}

/// Applies operations 0 to `count`, `batch` at a time, and checks that each was done.
pub(super) async fn apply<F>(
    engine: &Duetime,
    (count, batch): (usize, usize),
    bar: &ProgressBar,
    op: F,
) -> Result<Course, Failure>
where
    F: Fn(usize) -> BatchOp + Clone + Send + 'static,
{
    let next = Arc::new(AtomicUsize::new(0));
    let answered = Arc::new(Mutex::new(Vec::new()));
    let begun = Instant::now();
    // Dropped, it ends its tasks.
    let mut producers = JoinSet::new();
    for _ in 0..BATCHES_AT_ONCE {
        let (engine, op, bar) = (engine.clone(), op.clone(), bar.clone());
        let (next, answered) = (Arc::clone(&next), Arc::clone(&answered));
        producers.spawn(async move {
            loop {
                let from = next.fetch_add(batch, Ordering::Relaxed);
                let to = count.min(from + batch);
                if from >= to {
                    return Ok(());
                }
                let op = op.clone();
                let asked = engine.batch((from..to).map(op), None, Wants::Slim, "bench");
                let answers = tokio::time::timeout(ANSWER_MAX, asked).await;
                let answers = answers.map_err(|_| {
                    Failure::new(format!("a batch had no answer within {ANSWER_MAX:?}"))
                })?;
                for answer in answers {
                    let done = matches!(
                        answer,
                        Ok(OpDone::Created(Created::New(_)) | OpDone::Verb(Ok(_)))
                    );
                    if !done {
                        return Err(Failure::new(format!("an operation failed: {answer:?}")));
                    }
                }
                let mut answered = answered.lock();
                let so_far = answered.last().map_or(0, |(so_far, _)| *so_far) + (to - from);
                answered.push((so_far, Instant::now()));
                bar.set_message(format!("{so_far} of {count}"));
            }
        });
    }
    while let Some(ended) = producers.join_next().await {
        ended.map_err(|error| Failure::new(format!("the load broke off: {error}")))??;
    }
    let answered = std::mem::take(&mut *answered.lock());
    Ok(Course { begun, answered })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_those_of_whole_batches_between_two_answers() {
        let begun = Instant::now();
        let at = |ms| begun + Duration::from_millis(ms);
        let answered = vec![(100, at(100)), (200, at(200)), (300, at(1200))];
        let course = Course { begun, answered };
        for (from, to, rate) in [
            (0, 300, 250.0),
            (0, 100, 1000.0),
            (0, 101, 1000.0),
            (200, 300, 100.0),
        ] {
            let found = course.per_second(from, to);
            assert!((found - rate).abs() < 0.01, "{from} to {to}: {found}");
        }
    }

    #[test]
    fn all_orders_of_a_topic_are_equally_long() {
        let orders = Orders::of("x", Action::None);
        assert!(
            (150..250).contains(&orders.sent_bytes()),
            "{}",
            orders.sent_bytes()
        );
        let length = |n| Orders::payload(n).as_str().len() + Orders::key(n).as_str().len();
        assert_eq!(length(0), length(19_999_999));
    }
}

//! Shards played through on a virtual clock: what would fire, and when, if nobody meddled.
//!
//! ```text
//!  tasks as they are ─▶ cores like the service's own ─▶ what happened ─▶ Tally
//!                         ▲   no store, no executor │
//!         virtual time ───┘   ends as assumed  ◀────┘ started
//! ```
//!
//! Nothing is decided here: due times, retries, stages, slots and pauses are those of [`ShardCore`], by the same code and
//! in the same number of shards as in the service. What is left out is the world: no record is stored, nothing is sent,
//! each attempt ends as [`Assumptions`] say, guards let everything fire, and time jumps from one alarm to the next. So a play is the same each time
//! for the same tasks, book, beginning and seed.
//!
//! It costs a few microseconds a change, and about 1 KiB of memory for a task that waits.

mod ask;
mod tally;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;

use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::clock::{DurationMs, Now};
use crate::ids::{AttemptToken, Slot, SlotMap, TaskId};
use crate::shard::attempts::Running;
use crate::shard::core::{CoreOptions, Effect, ShardCore};
use crate::shard::messages::{FinishAttempt, LeaseTasks, Question};
use crate::store::codec::{Change, encode_task};
use crate::store::{RecordKey, StoreError, Stored};
use crate::task::event::Event;
use crate::task::model::{State, Task, WaitingFor};
use crate::task::outcome::{Failure, Outcome};
use crate::task::spec::{Action, TopicName};
use crate::task::topic::TopicBook;

pub use ask::{Assumption, Assumptions, Ends, Until, WhatIf};
pub use tally::{
    Bucket, CutOff, NotCreated, Peak, Peaks, Played, PlayedCounts, PlayedEvent, Tally, What,
};

/// A worker that is never heard of again has a lease of at least this.
const LEASE: DurationMs = DurationMs::secs(30);
/// By so much a lease outlasts the work of a worker that sends heartbeats.
const LEASE_LEFT: DurationMs = DurationMs::secs(60);

/// An attempt that is out, and how it will end.
#[derive(Debug)]
struct Out {
    task: TaskId,
    token: AttemptToken,
    outcome: Outcome,
}

/// See the module's header.
#[derive(Debug)]
pub struct Play {
    slots: SlotMap,
    cores: Vec<ShardCore>,
    start: Now,
    /// Milliseconds since the start.
    passed_ms: i64,
    assume: Assumptions,
    seed: u64,
    /// By when they end, and in which order they began.
    out: BTreeMap<(i64, u64), Out>,
    begun: u64,
    /// What it has come to.
    pub tally: Tally,
}

impl Play {
    /// Empty shards, at `start`.
    pub fn new(
        shards: u16,
        options: &CoreOptions,
        book: &Arc<TopicBook>,
        start: Now,
        (assume, seed): (Assumptions, u64),
        tally: Tally,
    ) -> Self {
        let slots = SlotMap::new(shards);
        let core = |shard| {
            let mut core = ShardCore::new(shard, options.clone(), Arc::clone(book), start);
            core.play(seed);
            core
        };
        let cores = (0..slots.shards()).map(|n| core(crate::ids::ShardId(n)));
        Self {
            cores: cores.collect(),
            slots,
            start,
            passed_ms: 0,
            assume,
            seed,
            out: BTreeMap::new(),
            begun: 0,
            tally,
        }
    }

    /// The virtual time.
    pub fn now(&self) -> Now {
        self.at(self.passed_ms)
    }

    fn at(&self, passed_ms: i64) -> Now {
        let length = DurationMs(passed_ms.max(0).unsigned_abs());
        Now {
            wall: self.start.wall.after(length),
            mono: self.start.mono.after(length),
            steady: self.start.steady.after(length),
        }
    }

    /// Takes in stored tasks, as a start of their shard would: attempts that are out go on.
    ///
    /// # Errors
    /// When a task does not read back as it was written.
    pub fn recover(&mut self, tasks: Vec<Task>) -> Result<(), StoreError> {
        let now = self.now();
        let mut running = vec![Running::default(); self.cores.len()];
        let mut in_flight = Vec::new();
        for task in tasks {
            let shard = self.shard_of(task.id.slot());
            self.tally.note_stored(task.id);
            if task.state.is_in_flight()
                && (task.state == State::Running || task.next.is_reached(now))
            {
                running[shard].insert(task.id, (task.token, now));
                in_flight.push((shard, task.id));
            }
            let (key, task) = (RecordKey::Task(task.id), light(task));
            let change = Change::Put(encode_task(&task));
            self.cores[shard].recover(Stored::Change(key, change), now)?;
        }
        for (core, running) in self.cores.iter_mut().zip(&running) {
            core.end_recovery(running, now);
            core.take_happened();
        }
        for (shard, id) in in_flight {
            let Some(view) = self.cores[shard].view_of(id, now) else {
                continue;
            };
            let task = &view.task;
            if task.state == State::Running {
                self.tally.note_running();
                let asks = asks(task.question(), task.action());
                let limit = task.spec.timeouts.attempt;
                let is_leased = task.live.as_ref().is_some_and(|live| live.lease.is_some());
                let limit = (!is_leased).then_some(limit);
                self.begin(id, task.token, &task.topic, asks, limit);
            }
        }
        Ok(())
    }

    fn shard_of(&self, slot: Slot) -> usize {
        usize::from(self.slots.shard_of(slot).0)
    }

    /// Asks the shard that owns a slot, and lets happen what follows from it.
    pub fn ask<Q: Question>(&mut self, slot: Slot, question: Q) -> Q::Answer {
        let (shard, now) = (self.shard_of(slot), self.now());
        let answer = question.put(&mut self.cores[shard], now);
        self.settle(shard);
        answer
    }

    /// When something happens next, in milliseconds since the start; `None` if nothing does.
    pub fn next_ms(&self) -> Option<i64> {
        let now = self.now();
        let cores = self.cores.iter().filter_map(|core| core.next_in_ms(now));
        let next = cores.min().map(|left| self.passed_ms + left.max(0));
        let out = self.out.first_key_value().map(|((ends_ms, _), _)| *ends_ms);
        next.into_iter().chain(out).min()
    }

    /// Lets time pass to so many milliseconds since the start, and what is due then happen.
    pub fn run_to(&mut self, passed_ms: i64) {
        self.passed_ms = self.passed_ms.max(passed_ms);
        while let Some(first) = self.out.first_entry()
            && first.key().0 <= self.passed_ms
        {
            let out = first.remove();
            self.end(out);
        }
        let now = self.now();
        for shard in 0..self.cores.len() {
            if self.cores[shard]
                .next_in_ms(now)
                .is_some_and(|left| left <= 0)
            {
                self.settle(shard);
            }
        }
    }

    /// Bytes of tasks in memory.
    pub fn bytes(&self) -> u64 {
        self.cores.iter().map(ShardCore::recent_bytes).sum()
    }

    /// Takes a step of a shard and performs what follows from it. If there is more to do at once, [`Play::next_ms`] says
    /// so: whoever plays looks in between whether it is to go on.
    fn settle(&mut self, shard: usize) {
        let now = self.now();
        self.launch(shard, now);
        let mut leases = true;
        while std::mem::take(&mut leases) {
            let core = &mut self.cores[shard];
            core.advance(now);
            // What is to be written is as good as written.
            for effect in core.close(now).effects {
                match effect {
                    Effect::Arm(armed) => self.cores[shard].arm(armed),
                    Effect::Ready(topic, count) => {
                        self.lease(shard, &topic, count, now);
                        leases = true;
                    }
                    Effect::Stop(_) | Effect::Over(_) => {}
                }
            }
        }
        self.launch(shard, now);
        for happened in self.cores[shard].take_happened() {
            self.tally.take(&happened);
        }
    }

    fn launch(&mut self, shard: usize, now: Now) {
        for launch in self.cores[shard].launch(now) {
            let asks = asks(launch.question, launch.spec.action_at(launch.stage));
            let (topic, limit) = (&launch.topic, Some(launch.time_left));
            self.begin(launch.task, launch.token, topic, asks, limit);
        }
    }

    /// Workers of a topic take what is there.
    fn lease(&mut self, shard: usize, topic: &TopicName, max: usize, now: Now) {
        let assumed = self.assume.of(topic);
        let takes = assumed.takes.0;
        let lease = match assumed.ends {
            Ends::TimeOut => takes.saturating_add(1_000).max(LEASE.0),
            Ends::Succeed | Ends::Fail => takes.saturating_add(LEASE_LEFT.0),
        };
        let question = LeaseTasks {
            topics: [topic.clone()].into(),
            max,
            lease: DurationMs(lease),
            worker: "what-if".to_owned(),
        };
        for lease in question.put(&mut self.cores[shard], now) {
            self.begin(lease.view.task.id, lease.token, topic, None, None);
        }
    }

    /// An attempt is out; `limit` is how long it may take, if anybody but a lease says so.
    fn begin(
        &mut self,
        task: TaskId,
        token: AttemptToken,
        topic: &TopicName,
        asks: Option<WaitingFor>,
        limit: Option<DurationMs>,
    ) {
        let assumed = self.assume.of(topic);
        // Guards let everything fire, at once.
        let is_guard = asks == Some(WaitingFor::Guard);
        let takes = match is_guard {
            true => DurationMs(0),
            false => assumed.takes,
        };
        let ends = match !is_guard && chance(self.seed, task, token) < assumed.share {
            true => assumed.ends,
            false => Ends::Succeed,
        };
        let outcome = match ends {
            Ends::Succeed => Outcome::Succeeded {
                result: None,
                result_dropped: false,
            },
            Ends::Fail if asks.is_some() => Outcome::NotYet {
                answer: String::new(),
            },
            Ends::Fail => Outcome::Failed(Failure {
                code: assumed.code.clone(),
                message: "assumed".to_owned(),
                retryable: true,
                retry_after: None,
                in_doubt: false,
            }),
            Ends::TimeOut => Outcome::TimedOut,
        };
        let (takes, outcome) = match limit {
            Some(limit) if ends == Ends::TimeOut || takes >= limit => (limit, Outcome::TimedOut),
            // The lease ends by itself.
            None if ends == Ends::TimeOut => return,
            _ => (takes, outcome),
        };
        let takes_ms = i64::try_from(takes.0).unwrap_or(i64::MAX);
        let ends_ms = self.passed_ms.saturating_add(takes_ms);
        let out = Out {
            task,
            token,
            outcome,
        };
        self.out.insert((ends_ms, self.begun), out);
        self.begun += 1;
    }

    fn end(&mut self, out: Out) {
        let (slot, now) = (out.task.slot(), self.now());
        let shard = self.shard_of(slot);
        // It may have been stopped, or have run out of its time.
        if !self.cores[shard].is_present(out.task, out.token) {
            return;
        }
        let event = Event::Finished {
            token: out.token,
            outcome: out.outcome,
            started_at: None,
        };
        let (task, by) = (out.task, "executor".to_owned());
        let finish = FinishAttempt { task, event, by };
        // Present, so that it can't be refused.
        let _ = finish.put(&mut self.cores[shard], now);
        self.settle(shard);
    }
}

/// What is asked, if it is a question and no work.
fn asks(question: Option<WaitingFor>, action: &Action) -> Option<WaitingFor> {
    question.or(action.poll().map(|_| WaitingFor::Poll))
}

/// From 0 to 1, always the same for the same attempt.
fn chance(seed: u64, task: TaskId, token: AttemptToken) -> f64 {
    let mut name = [0; 24];
    name[..16].copy_from_slice(&task.to_bytes());
    name[16..].copy_from_slice(&token.0.to_be_bytes());
    (xxh3_64_with_seed(&name, seed) >> 11) as f64 / (1_u64 << 53) as f64
}

/// A task without what nothing that happens by itself depends on.
fn light(mut task: Task) -> Task {
    if task.spec.payload.is_some() {
        Arc::make_mut(&mut task.spec).payload = None;
    }
    task.result = None;
    task.attempts_log.kept.clear();
    let changes = &mut task.changes.kept;
    changes.drain(..changes.len().saturating_sub(1));
    task
}

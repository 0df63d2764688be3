//! The scheduler: it sleeps to the earliest time that any shard wants, and then tells it the time.
//!
//! It does not tick in a loop of its own: shards say when they next need it ([`WakeBoard`]), and a bell wakes it
//! when a shard wants an earlier time than the one it sleeps to. No sleep is longer than a second, so a step of
//! the wall clock is noticed within one.

mod pacer;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use actix::{
    Actor, ActorContext, ActorFutureExt, AsyncContext, Context, Handler, Message, WrapFuture,
};

use crate::clock::Clock;
use crate::failpoints;
use crate::scheduler::pacer::Pacer;
use crate::shard::router::ShardRouter;
use crate::shard::wakes::WakeBoard;
use crate::watchdog::{ChildContext, DeathNotice, KillSwitch, LastWords, NamedArbiter, Pulse};

/// Longest sleep, in microseconds.
const SLEEP_US_MAX: i64 = 1_000_000;
/// When a shard could not take a tick, it is tried again after this many microseconds.
const RETRY_US: i64 = 5_000;

/// Fans ticks to shards.
pub struct SchedulerActor {
    pacing: Pacing,
    _thread: NamedArbiter,
    death: DeathNotice,
}

#[derive(Clone)]
struct Pacing {
    clock: Clock,
    wakes: Arc<WakeBoard>,
    router: Arc<ShardRouter>,
    pulse: Arc<Pulse>,
    kill: KillSwitch,
}

/// Leave, so that the watchdog starts a successor.
struct Leave;

impl Message for Leave {
    type Result = ();
}

impl SchedulerActor {
    /// The actor, to be started on `thread`, which ends with it.
    pub fn new(
        clock: Clock,
        wakes: Arc<WakeBoard>,
        router: Arc<ShardRouter>,
        child: ChildContext,
        thread: NamedArbiter,
    ) -> Self {
        Self {
            pacing: Pacing {
                clock,
                wakes,
                router,
                pulse: child.pulse,
                kill: child.kill,
            },
            _thread: thread,
            death: child.death,
        }
    }

    fn leave(&mut self, why: String, ctx: &mut Context<Self>) {
        self.death.last_words(why);
        ctx.stop();
    }
}

impl Actor for SchedulerActor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Context<Self>) {
        let me = ctx.address();
        self.pacing.kill.on_throw(move || me.do_send(Leave));
        if let Err(error) = failpoints::reach("scheduler::started") {
            return self.leave(error.to_string(), ctx);
        }
        let (pacing, wakes) = (self.pacing.clone(), Arc::clone(&self.pacing.wakes));
        match Pacer::start(move || wakes.ring()) {
            Ok(pacer) => {
                let words = self.death.words();
                // It ends only by a fault, or when it is fenced.
                let run = async move { pacing.run(pacer, words).await };
                ctx.spawn(run.into_actor(self).map(|ended, actor, ctx| {
                    let fault = ended.err().map(|error| error.to_string());
                    actor.leave(fault.unwrap_or_else(|| "asked to leave".to_owned()), ctx);
                }));
            }
            Err(error) => self.leave(format!("start the pacer: {error}"), ctx),
        }
    }

    fn stopped(&mut self, _: &mut Context<Self>) {
        if let Err(error) = failpoints::reach("scheduler::stopped") {
            self.death.last_words(error.to_string());
        }
    }
}

impl Handler<Leave> for SchedulerActor {
    type Result = ();

    fn handle(&mut self, _: Leave, ctx: &mut Context<Self>) {
        self.leave("asked to leave".to_owned(), ctx);
    }
}

impl Pacing {
    /// Ends when it is told to leave. A zombie that wakes touches nothing: neither ticks nor the board.
    async fn run(self, pacer: Pacer, words: LastWords) -> io::Result<()> {
        let mut everyone = false;
        while !self.kill.is_thrown() {
            let wait_us = words.hear(|| self.round(everyone))?;
            if wait_us == 0 {
                tokio::task::yield_now().await;
            } else {
                pacer.ring_after(Duration::from_micros(wait_us));
                self.wakes.rung().await;
            }
            words.hear(|| failpoints::reach("scheduler::future"))?;
            if !self.kill.is_thrown() {
                self.wakes.sleep_until(i64::MIN);
            }
            // A test moved its clock: shards that follow the wall clock want to know.
            everyone = !self.clock.runs_by_itself();
        }
        Ok(())
    }

    /// Tells the time to whom it concerns; for how long there is nothing to do then, in microseconds.
    fn round(&self, everyone: bool) -> io::Result<u64> {
        let (now_us, _) = self.clock.edge_us();
        self.pulse.beat(self.clock.now().mono);
        failpoints::reach("scheduler::handler")?;
        if self.kill.is_thrown() {
            return Ok(0);
        }
        for shard in self.wakes.shards() {
            let is_due = self.wakes.take_due(shard, now_us) || everyone;
            if is_due && !self.router.tick(shard) && self.router.is_up(shard) {
                self.wakes.set(shard, now_us + RETRY_US);
            }
        }
        let until_us = self.wakes.earliest_us().min(now_us + SLEEP_US_MAX);
        self.wakes.sleep_until(until_us);
        // A shard that set an earlier time before it could see this one is not missed.
        let until_us = until_us.min(self.wakes.earliest_us());
        Ok(left_us(until_us, self.clock.edge_us().0))
    }
}

/// How long it is until then; nothing when that is over, which a shard that wants a tick at once says with the earliest
/// time there is.
fn left_us(until_us: i64, now_us: i64) -> u64 {
    u64::try_from(until_us.saturating_sub(now_us)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shard_that_wants_a_tick_at_once_is_not_slept_over() {
        assert_eq!(left_us(i64::MIN, 7), 0);
        assert_eq!(left_us(5, 7), 0);
        assert_eq!(left_us(9, 7), 2);
    }
}

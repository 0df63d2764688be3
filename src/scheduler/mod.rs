//! The scheduler: it sleeps to the earliest time that any shard wants, and then tells it the time.
//!
//! It does not tick in a loop of its own: shards say when they next need it ([`WakeBoard`]), and a bell wakes it
//! when a shard wants an earlier time than the one it sleeps to. No sleep is longer than a second, so a step of
//! the wall clock is noticed within one.

use std::sync::Arc;
use std::time::Duration;

use actix::{Actor, ActorContext, AsyncContext, Context, Handler, Message, WrapFuture};

use crate::clock::{Clock, MonoMs};
use crate::shard::router::ShardRouter;
use crate::shard::wakes::WakeBoard;
use crate::watchdog::{ChildContext, DeathNotice, KillSwitch, NamedArbiter, Pulse};

/// Longest sleep, in milliseconds.
const SLEEP_MS_MAX: i64 = 1_000;
/// When a shard could not take a tick, it is tried again after this many milliseconds.
const RETRY_MS: i64 = 5;

/// Fans ticks to shards.
pub struct SchedulerActor {
    pacing: Pacing,
    kill: KillSwitch,
    _thread: NamedArbiter,
    _death: DeathNotice,
}

#[derive(Clone)]
struct Pacing {
    clock: Clock,
    wakes: Arc<WakeBoard>,
    router: Arc<ShardRouter>,
    pulse: Arc<Pulse>,
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
            },
            kill: child.kill,
            _thread: thread,
            _death: child.death,
        }
    }
}

impl Actor for SchedulerActor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Context<Self>) {
        let me = ctx.address();
        self.kill.on_throw(move || me.do_send(Leave));
        let pacing = self.pacing.clone();
        ctx.spawn(async move { pacing.run().await }.into_actor(self));
    }
}

impl Handler<Leave> for SchedulerActor {
    type Result = ();

    fn handle(&mut self, _: Leave, ctx: &mut Context<Self>) {
        ctx.stop();
    }
}

impl Pacing {
    async fn run(self) {
        let mut everyone = false;
        loop {
            let now = self.clock.now().mono;
            self.pulse.beat(now);
            for shard in self.wakes.shards() {
                let due = self.wakes.take_due(shard, now);
                let taken = !(due || everyone) || self.router.tick(shard);
                if !taken && self.router.is_up(shard) {
                    self.wakes.set(shard, MonoMs(now.0 + RETRY_MS));
                }
            }
            let until = self.wakes.earliest().min(MonoMs(now.0 + SLEEP_MS_MAX));
            self.wakes.sleep_until(until);
            // A shard that set an earlier time before it could see this one is not missed.
            let until = until.min(self.wakes.earliest());
            let wait = u64::try_from(until.0.saturating_sub(self.clock.now().mono.0)).unwrap_or(0);
            let rang = wait > 0
                && tokio::select! {
                    () = tokio::time::sleep(Duration::from_millis(wait)) => false,
                    () = self.wakes.rung() => true,
                };
            self.wakes.sleep_until(MonoMs(i64::MIN));
            // A test moved its clock: shards that follow the wall clock want to know.
            everyone = rang && !self.clock.runs_by_itself();
            if wait == 0 {
                tokio::task::yield_now().await;
            }
        }
    }
}

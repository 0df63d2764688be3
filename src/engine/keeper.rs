//! A part of the engine that keeps something going: one future, alone on its thread, as a child of the watchdog.
//!
//! ```text
//!   work ── runs until the kill switch is thrown, or it can't go on ──▶ says why ──▶ the actor leaves with these words
//!   pulse ── beats between two steps of the work: a step that blocks the thread counts as hung
//! ```

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use actix::{
    Actor, ActorContext, ActorFutureExt, AsyncContext, Context, Handler, Message, WrapFuture,
};

use crate::clock::Clock;
use crate::watchdog::{
    ChildContext, ChildSpec, DeathNotice, KillSwitch, LastWords, NamedArbiter, Pulse, StartFault,
};

/// How often the actor shows that it lives.
const BEAT: Duration = Duration::from_millis(250);

/// What a keeper does; ends with why it left.
type Work = Pin<Box<dyn Future<Output = String>>>;
type Begin = dyn Fn(KillSwitch, LastWords) -> Work + Send + Sync;

/// The child of this name that does this work, from its beginning after each restart.
pub(super) fn keeper<W>(
    name: &'static str,
    clock: &Clock,
    work: impl Fn(KillSwitch, LastWords) -> W + Send + Sync + 'static,
) -> ChildSpec
where
    W: Future<Output = String> + 'static,
{
    let begin: Arc<Begin> = Arc::new(move |kill, words| Box::pin(work(kill, words)));
    let clock = clock.clone();
    ChildSpec::new(name, move |child| {
        let thread = child.arbiter(name).map_err(StartFault::new)?;
        let (clock, begin, on) = (clock.clone(), Arc::clone(&begin), thread.handle());
        Keeper::start_in_arbiter(&on, move |_| Keeper::new(begin, clock, child, thread));
        Ok(())
    })
}

struct Keeper {
    begin: Arc<Begin>,
    pulse: Arc<Pulse>,
    kill: KillSwitch,
    clock: Clock,
    _thread: NamedArbiter,
    death: DeathNotice,
}

/// Leave, so that the watchdog starts a successor.
struct Leave;

impl Message for Leave {
    type Result = ();
}

impl Keeper {
    fn new(begin: Arc<Begin>, clock: Clock, child: ChildContext, thread: NamedArbiter) -> Self {
        Self {
            begin,
            pulse: child.pulse,
            kill: child.kill,
            clock,
            _thread: thread,
            death: child.death,
        }
    }

    fn leave(&mut self, why: String, ctx: &mut Context<Self>) {
        self.death.last_words(why);
        ctx.stop();
    }
}

impl Actor for Keeper {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Context<Self>) {
        let me = ctx.address();
        self.kill.on_throw(move || me.do_send(Leave));
        ctx.run_interval(BEAT, |actor, _| actor.pulse.beat(actor.clock.now().mono));
        let work = (self.begin)(self.kill.clone(), self.death.words());
        ctx.spawn(work.into_actor(self).map(|why, actor, ctx| {
            actor.leave(why, ctx);
        }));
    }
}

impl Handler<Leave> for Keeper {
    type Result = ();

    fn handle(&mut self, _: Leave, ctx: &mut Context<Self>) {
        self.leave("asked to leave".to_owned(), ctx);
    }
}

//! The registry: topics and other resources, and the audit of what operators did. An actor alone on its thread, over a
//! small sled database of its own (`files`); everybody else reads immutable snapshots ([`TopicBook`], [`RuleBook`]).
//!
//! Topics are a kind of their own, because shards work by them and a pause has consequences there. All other kinds go
//! one way ([`resources`]), from a table of what differs ([`kind`]).
//!
//! Each change is on the disk before it is answered. What follows from it (telling the shards, moving the tasks
//! of a topic that was frozen) is the engine's, in this order, so that a crash anywhere in it is taken up again
//! at the next start:
//!
//! ```text
//!  resume of a frozen topic:  thawing{n, held} on disk ─▶ every shard moves its tasks (each task once per n)
//!                             ─▶ thawing ended on disk ─▶ shards let the topic go on
//! ```
//!
//! A topic that is thawing may be paused anew, which takes effect at once; it can be resumed again only when the
//! thaw is over, so that no stretch of time is overwritten by the next.
//!
//! After an I/O error nobody knows what is on the disk: the actor leaves, and its successor opens the database anew
//! and begins with what it finds there.

pub mod bulk;
mod desk;
mod files;
mod held;
pub mod kind;
mod records;
pub mod resources;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use actix::{Actor, ActorContext, AsyncContext, Context, Handler, Message};
use parking_lot::RwLock;

use self::desk::Desk;
use crate::clock::Clock;
use crate::engine::registry::kind::Kind;
use crate::failpoints;
use crate::ids::ShardEpoch;
use crate::limits;
use crate::rule::book::RuleBook;
use crate::store::StoreError;
use crate::task::model::PauseClock;
use crate::task::spec::{ResourceName, TopicName};
use crate::task::topic::{TopicBook, TopicSettings};
use crate::watchdog::{ChildContext, DeathNotice, KillSwitch, NamedArbiter, Pulse};

pub use files::{AuditLine, RegistryFiles};
pub use records::Version;

/// How often the actor shows that it lives.
const BEAT: std::time::Duration = std::time::Duration::from_millis(250);

/// Why the registry did not do it.
#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    /// The disk or the database refused. Whether the change counts is decided when the registry is opened anew.
    #[error("the registry: {0}")]
    Storage(#[from] StoreError),
    /// No more topics can be had.
    #[error("there are {} topics already, which is the most", limits::TOPICS_MAX)]
    TooManyTopics,
    /// The body that declares something is too long.
    #[error(
        "the body has {bytes} bytes, the most is {}",
        limits::RESOURCE_BODY_BYTES_MAX
    )]
    BodyTooLarge {
        /// Its size.
        bytes: usize,
    },
    /// The topic was never declared.
    #[error("there is no topic {0}")]
    UnknownTopic(TopicName),
    /// The topic can't be deleted as long as it is used.
    #[error("the topic {name} is in use: {by}")]
    InUse {
        /// The topic.
        name: TopicName,
        /// What uses it.
        by: String,
    },
    /// The topic can't be resumed as long as it is thawing.
    #[error("the topic {0} is still being moved on from its last pause; try again")]
    Thawing(TopicName),
    /// No more of that kind can be had.
    #[error("there are {} {}s already, which is the most", limits::RESOURCES_MAX, .0)]
    TooMany(Kind),
    /// There is none of that name.
    #[error("there is no {kind} {name}")]
    Unknown {
        /// Its kind.
        kind: Kind,
        /// Its name.
        name: ResourceName,
    },
    /// What is to be put needs another that is not there.
    #[error("needs the {kind} {name}, which is not there")]
    NeedsUnknown {
        /// Its kind.
        kind: Kind,
        /// Its name.
        name: ResourceName,
    },
    /// It can't be deleted as long as it is needed.
    #[error("the {kind} {name} is in use: {by}")]
    ResourceInUse {
        /// Its kind.
        kind: Kind,
        /// Its name.
        name: ResourceName,
        /// What needs it.
        by: String,
    },
    /// Too many questions wait for it already; nothing was done.
    #[error("too many requests wait for the registry")]
    Overloaded,
    /// The actor is being restarted, or does not answer.
    #[error("the registry is being restarted, or does not answer; try again")]
    Down,
}

/// The topics in force, shared with everybody who reads them.
pub type SharedBook = Arc<RwLock<Arc<TopicBook>>>;
/// The same of all other resources.
pub type SharedRules = Arc<RwLock<Arc<RuleBook>>>;

/// Changes topics and writes the audit. See the module's header.
pub struct RegistryActor {
    desk: Desk,
    pulse: Arc<Pulse>,
    kill: KillSwitch,
    _thread: NamedArbiter,
    death: DeathNotice,
}

impl RegistryActor {
    /// The actor, to be started on `thread`, which ends with it.
    pub fn new(
        files: RegistryFiles,
        book: SharedBook,
        rules: SharedRules,
        clock: Clock,
        child: ChildContext,
        thread: NamedArbiter,
    ) -> Self {
        Self {
            desk: Desk {
                files,
                book,
                rules,
                clock,
                owner: ShardEpoch(child.generation.0),
            },
            pulse: child.pulse,
            kill: child.kill,
            _thread: thread,
            death: child.death,
        }
    }

    /// Works on a message; what it panics with is told by the death notice.
    fn work<T>(
        &mut self,
        ctx: &mut Context<Self>,
        work: impl FnOnce(&Desk) -> Result<T, RegistryError>,
    ) -> Result<T, RegistryError> {
        let words = self.death.words();
        // It reads and syncs on this thread, and a slow disk is no reason to be given up.
        self.pulse.waiting_long(self.desk.clock.now().mono);
        let answer = words.hear(|| {
            failpoints::reach("registry::handler").map_err(injected)?;
            work(&self.desk)
        });
        self.pulse.idle(self.desk.clock.now().mono);
        self.answer(answer, ctx)
    }

    /// Passes an answer on; after an error of the disk it is the last one.
    fn answer<T>(
        &mut self,
        answer: Result<T, RegistryError>,
        ctx: &mut Context<Self>,
    ) -> Result<T, RegistryError> {
        if let Err(error @ RegistryError::Storage(_)) = &answer {
            self.death.last_words(error.to_string());
            ctx.stop();
        }
        answer
    }
}

impl Actor for RegistryActor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Context<Self>) {
        let me = ctx.address();
        self.kill.on_throw(move || me.do_send(Leave));
        ctx.run_interval(BEAT, |actor, _| {
            actor.pulse.beat(actor.desk.clock.now().mono);
        });
    }
}

/// Leave, so that the watchdog starts a successor.
struct Leave;

impl Message for Leave {
    type Result = ();
}

impl Handler<Leave> for RegistryActor {
    type Result = ();

    fn handle(&mut self, _: Leave, ctx: &mut Context<Self>) {
        self.death.last_words("asked to leave");
        ctx.stop();
    }
}

fn injected(source: std::io::Error) -> RegistryError {
    let (doing, file) = ("work", "registry".into());
    RegistryError::Storage(StoreError::Io {
        doing,
        file,
        source,
    })
}

/// Makes each message a struct, and its handler one call of the [`Desk`].
macro_rules! messages {
    ($($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident : $type:ty),* $(,)? } => $method:ident, $result:ty;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug)]
        pub struct $name { $($(#[$field_doc])* pub $field: $type),* }

        impl Message for $name {
            type Result = Result<$result, RegistryError>;
        }

        impl Handler<$name> for RegistryActor {
            type Result = Result<$result, RegistryError>;

            fn handle(&mut self, message: $name, ctx: &mut Context<Self>) -> Self::Result {
                self.work(ctx, |desk| desk.$method(message))
            }
        }
    )*};
}
messages! {
    /// Declares a topic, or replaces its settings.
    PutTopic {
        /// Its name.
        name: TopicName,
        /// The body as it came, at most [`limits::RESOURCE_BODY_BYTES_MAX`].
        body: String,
        /// What the body says.
        settings: TopicSettings,
        /// Who asks.
        by: String,
    } => put, Arc<TopicBook>;
    /// Forgets a topic's settings. Refused while the topic is paused or thawing.
    DeleteTopic {
        /// Its name.
        name: TopicName,
        /// Who asks.
        by: String,
    } => delete, Arc<TopicBook>;
    /// Holds all tasks of a topic.
    PauseTopic {
        /// Its name.
        name: TopicName,
        /// What becomes of the time left.
        clock: PauseClock,
        /// Who asks.
        by: String,
    } => pause, Arc<TopicBook>;
    /// Lets a topic go on; one that was frozen is thawing first. Refused while it still thaws from the pause before.
    ResumeTopic {
        /// Its name.
        name: TopicName,
        /// Who asks.
        by: String,
    } => resume, Arc<TopicBook>;
    /// All shards have moved the tasks of a thawing topic.
    EndThaw {
        /// Its name.
        name: TopicName,
        /// Which thaw.
        number: u32,
    } => end_thaw, Arc<TopicBook>;
    /// Writes lines of the audit, all in one sync.
    Note {
        /// The lines.
        lines: Vec<AuditLine>,
    } => note, ();
}

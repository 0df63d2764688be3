//! The registry: topics, and the audit of what operators did. An actor alone on its thread, over a small sled
//! database of its own; everybody else reads immutable snapshots ([`TopicBook`]).
//!
//! Each change is on the disk before it is answered. What follows from it (telling the shards, moving the tasks
//! of a topic that was frozen) is the engine's, in this order, so that a crash anywhere in it is taken up again
//! at the next start:
//!
//! ```text
//!  resume of a frozen topic:  thawing{n, held} on disk ─▶ every shard moves its tasks (each task once per n)
//!                             ─▶ thawing ended on disk ─▶ shards let the topic go on
//! ```

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use actix::{Actor, ActorContext, AsyncContext, Context, Handler, Message};
use parking_lot::RwLock;
use serde::{Deserialize, Serialize};

use crate::clock::{Clock, DurationMs, Now, SteadyMs, WallMs};
use crate::limits;
use crate::task::model::PauseClock;
use crate::task::spec::TopicName;
use crate::task::topic::{Thaw, Topic, TopicBook, TopicPause, TopicSettings};
use crate::watchdog::{ChildContext, DeathNotice, KillSwitch, NamedArbiter, Pulse};
use crate::wire;

/// What was allowed when it was put stays allowed.
const NO_LIMITS: wire::due::InLimits = wire::due::InLimits {
    max_delay: limits::MAX_DELAY,
    now: WallMs(0),
};
/// Audit lines that are kept; the oldest go first.
const AUDIT_LINES_MAX: u64 = 100_000;
/// How often the actor shows that it lives.
const BEAT: std::time::Duration = std::time::Duration::from_millis(250);

/// Why the registry did not do it.
#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    /// The disk or the database refused.
    #[error("{doing} the registry: {why}")]
    Storage {
        /// What was being done.
        doing: &'static str,
        /// What went wrong.
        why: String,
    },
    /// No more topics can be had.
    #[error("there are {} topics already, which is the most", limits::TOPICS_MAX)]
    TooManyTopics,
    /// The topic was never declared.
    #[error("there is no topic {0}")]
    UnknownTopic(TopicName),
    /// The actor is being restarted.
    #[error("the registry is being restarted")]
    Down,
}

fn storage(doing: &'static str) -> impl Fn(sled::Error) -> RegistryError {
    move |error| RegistryError::Storage {
        doing,
        why: error.to_string(),
    }
}

/// The book in force, shared with everybody who reads it.
pub type SharedBook = Arc<RwLock<Arc<TopicBook>>>;

/// The registry's files. Clones share them; they outlive the actor's restarts.
#[derive(Clone)]
pub struct RegistryFiles {
    db: sled::Db,
    file: PathBuf,
    topics: sled::Tree,
    audit: sled::Tree,
}

/// A topic as it is stored. The settings are kept as the body that set them.
#[derive(Serialize, Deserialize)]
struct TopicRecord {
    body: String,
    version: u64,
    pause: Option<PauseRecord>,
    thaw: u32,
    thawing_held_ms: Option<u64>,
}

#[derive(Serialize, Deserialize)]
struct PauseRecord {
    freeze: bool,
    since_ms: i64,
    since_steady_ms: i64,
}

/// One line of the audit.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct AuditLine {
    /// When, in Unix milliseconds.
    pub at_ms: i64,
    /// Who.
    pub by: String,
    /// What: `topic.put`, `task.discard`, …
    pub action: String,
    /// To what.
    pub target: String,
    /// More about it.
    pub detail: String,
}

impl RegistryFiles {
    /// Opens or makes the registry under a data directory.
    ///
    /// # Errors
    /// When it can't be read.
    pub fn open(data: &Path) -> Result<Self, RegistryError> {
        let path = data.join("registry");
        let db = sled::Config::new()
            .path(&path)
            .cache_capacity(4 * 1024 * 1024)
            .flush_every_ms(Some(1_000))
            .open()
            .map_err(storage("open"))?;
        Ok(Self {
            topics: db.open_tree("topics").map_err(storage("open"))?,
            audit: db.open_tree("audit").map_err(storage("open"))?,
            file: path.join("db"),
            db,
        })
    }

    /// All topics as they were stored.
    ///
    /// # Errors
    /// When one can't be read.
    pub fn book(&self) -> Result<TopicBook, RegistryError> {
        let damaged = |name: &[u8], why: String| RegistryError::Storage {
            doing: "read a topic of",
            why: format!("{}: {why}", String::from_utf8_lossy(name)),
        };
        let mut book = TopicBook::default();
        for stored in self.topics.iter() {
            let (name, record) = stored.map_err(storage("read"))?;
            let parsed = std::str::from_utf8(&name)
                .ok()
                .and_then(|text| TopicName::parse(text).ok());
            let topic_name =
                parsed.ok_or_else(|| damaged(&name, "not a topic's name".to_owned()))?;
            let record: TopicRecord = serde_json::from_slice(&record)
                .map_err(|error| damaged(&name, error.to_string()))?;
            let settings = match record.body.as_str() {
                "" => TopicSettings::default(),
                body => wire::topic::settings(body.as_bytes(), &NO_LIMITS)
                    .map_err(|problem| damaged(&name, problem.detail))?,
            };
            let topic = Topic {
                settings,
                body: record.body,
                version: record.version,
                pause: record.pause.map(|pause| TopicPause {
                    clock: if pause.freeze {
                        PauseClock::Freeze
                    } else {
                        PauseClock::Keep
                    },
                    since: WallMs(pause.since_ms),
                    since_steady: SteadyMs(pause.since_steady_ms),
                }),
                thaw: record.thaw,
                thawing: record.thawing_held_ms.map(|held| Thaw {
                    number: record.thaw,
                    held: DurationMs(held),
                }),
            };
            book = book.with(topic_name, topic);
        }
        Ok(book)
    }

    fn store(&self, name: &TopicName, topic: &Topic) -> Result<(), RegistryError> {
        let record = TopicRecord {
            body: topic.body.clone(),
            version: topic.version,
            pause: topic.pause.map(|pause| PauseRecord {
                freeze: pause.clock == PauseClock::Freeze,
                since_ms: pause.since.0,
                since_steady_ms: pause.since_steady.0,
            }),
            thaw: topic.thaw,
            thawing_held_ms: topic.thawing.map(|thaw| thaw.held.0),
        };
        let bytes = serde_json::to_vec(&record).map_err(|error| RegistryError::Storage {
            doing: "write a topic to",
            why: error.to_string(),
        })?;
        self.topics
            .insert(name.as_str(), bytes)
            .map_err(storage("write to"))?;
        self.sync()
    }

    fn note(&self, line: &AuditLine) -> Result<(), RegistryError> {
        let bytes = serde_json::to_vec(line).map_err(|error| RegistryError::Storage {
            doing: "write an audit line to",
            why: error.to_string(),
        })?;
        let last = self.audit.last().map_err(storage("read"))?;
        let number = last.map_or(0, |(key, _)| audit_number(&key) + 1);
        self.audit
            .insert(number.to_be_bytes(), bytes)
            .map_err(storage("write to"))?;
        if let Some(old) = number.checked_sub(AUDIT_LINES_MAX) {
            self.audit
                .remove(old.to_be_bytes())
                .map_err(storage("write to"))?;
        }
        self.sync()
    }

    /// The latest audit lines, newest first.
    ///
    /// # Errors
    /// When they can't be read.
    pub fn audit(&self, limit: usize) -> Result<Vec<AuditLine>, RegistryError> {
        let mut lines = Vec::new();
        for stored in self.audit.iter().rev().take(limit) {
            let (_, bytes) = stored.map_err(storage("read"))?;
            lines.extend(serde_json::from_slice::<AuditLine>(&bytes).ok());
        }
        Ok(lines)
    }

    /// sled's flush alone is no fsync on Linux.
    fn sync(&self) -> Result<(), RegistryError> {
        self.db.flush().map_err(storage("flush"))?;
        let synced = File::open(&self.file).and_then(|file| file.sync_data());
        synced.map_err(|error| RegistryError::Storage {
            doing: "sync",
            why: error.to_string(),
        })
    }
}

fn audit_number(key: &[u8]) -> u64 {
    key.try_into().map_or(0, u64::from_be_bytes)
}

/// Changes topics and writes the audit. See the module's header.
pub struct RegistryActor {
    files: RegistryFiles,
    book: SharedBook,
    clock: Clock,
    pulse: Arc<Pulse>,
    kill: KillSwitch,
    _thread: NamedArbiter,
    _death: DeathNotice,
}

impl RegistryActor {
    /// The actor, to be started on `thread`, which ends with it.
    pub fn new(
        files: RegistryFiles,
        book: SharedBook,
        clock: Clock,
        child: ChildContext,
        thread: NamedArbiter,
    ) -> Self {
        Self {
            files,
            book,
            clock,
            pulse: child.pulse,
            kill: child.kill,
            _thread: thread,
            _death: child.death,
        }
    }

    fn change(
        &self,
        name: TopicName,
        by: String,
        action: &str,
        f: impl FnOnce(&mut Topic, Now),
    ) -> Result<Arc<TopicBook>, RegistryError> {
        let book = self.book.read().clone();
        if !book.is_known(&name) && book.len() >= limits::TOPICS_MAX {
            return Err(RegistryError::TooManyTopics);
        }
        let now = self.clock.now();
        let mut topic = Topic::clone(book.get(&name));
        f(&mut topic, now);
        self.files.note(&AuditLine {
            at_ms: now.wall.0,
            by,
            action: action.to_owned(),
            target: name.as_str().to_owned(),
            detail: topic.body.clone(),
        })?;
        self.files.store(&name, &topic)?;
        let next = Arc::new(book.with(name, topic));
        *self.book.write() = Arc::clone(&next);
        Ok(next)
    }
}

impl Actor for RegistryActor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Context<Self>) {
        ctx.run_interval(BEAT, |actor, ctx| {
            actor.pulse.beat(actor.clock.now().mono);
            if actor.kill.is_thrown() {
                ctx.stop();
            }
        });
    }
}

macro_rules! messages {
    ($($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident : $type:ty),* $(,)? } => $result:ty;)*) => {$(
        $(#[$doc])*
        #[derive(Debug)]
        pub struct $name { $($(#[$field_doc])* pub $field: $type),* }

        impl Message for $name {
            type Result = Result<$result, RegistryError>;
        }
    )*};
}
messages! {
    /// Declares a topic, or replaces its settings.
    PutTopic {
        /// Its name.
        name: TopicName,
        /// The body as it came.
        body: String,
        /// What the body says.
        settings: TopicSettings,
        /// Who asks.
        by: String,
    } => Arc<TopicBook>;
    /// Forgets a topic's settings.
    DeleteTopic {
        /// Its name.
        name: TopicName,
        /// Who asks.
        by: String,
    } => Arc<TopicBook>;
    /// Holds all tasks of a topic.
    PauseTopic {
        /// Its name.
        name: TopicName,
        /// What becomes of the time left.
        clock: PauseClock,
        /// Who asks.
        by: String,
    } => Arc<TopicBook>;
    /// Lets a topic go on; one that was frozen is thawing first.
    ResumeTopic {
        /// Its name.
        name: TopicName,
        /// Who asks.
        by: String,
    } => Arc<TopicBook>;
    /// All shards have moved the tasks of a thawing topic.
    EndThaw {
        /// Its name.
        name: TopicName,
        /// Which thaw.
        number: u32,
    } => Arc<TopicBook>;
    /// Writes a line of the audit.
    Note {
        /// The line.
        line: AuditLine,
    } => ();
}

impl Handler<PutTopic> for RegistryActor {
    type Result = Result<Arc<TopicBook>, RegistryError>;

    fn handle(&mut self, put: PutTopic, _: &mut Context<Self>) -> Self::Result {
        self.change(put.name, put.by, "topic.put", |topic, _| {
            topic.settings = put.settings;
            topic.body = put.body;
            topic.version += 1;
        })
    }
}

impl Handler<DeleteTopic> for RegistryActor {
    type Result = Result<Arc<TopicBook>, RegistryError>;

    fn handle(&mut self, delete: DeleteTopic, _: &mut Context<Self>) -> Self::Result {
        let book = self.book.read().clone();
        if !book.is_known(&delete.name) {
            return Err(RegistryError::UnknownTopic(delete.name));
        }
        self.files.note(&AuditLine {
            at_ms: self.clock.now().wall.0,
            by: delete.by,
            action: "topic.delete".to_owned(),
            target: delete.name.as_str().to_owned(),
            detail: String::new(),
        })?;
        self.files
            .topics
            .remove(delete.name.as_str())
            .map_err(storage("write to"))?;
        self.files.sync()?;
        let next = Arc::new(book.without(&delete.name));
        *self.book.write() = Arc::clone(&next);
        Ok(next)
    }
}

impl Handler<PauseTopic> for RegistryActor {
    type Result = Result<Arc<TopicBook>, RegistryError>;

    fn handle(&mut self, pause: PauseTopic, _: &mut Context<Self>) -> Self::Result {
        if self.book.read().get(&pause.name).pause.is_some() {
            return Ok(self.book.read().clone());
        }
        self.change(pause.name, pause.by, "topic.pause", |topic, now| {
            topic.pause = Some(TopicPause {
                clock: pause.clock,
                since: now.wall,
                since_steady: now.steady,
            });
        })
    }
}

impl Handler<ResumeTopic> for RegistryActor {
    type Result = Result<Arc<TopicBook>, RegistryError>;

    fn handle(&mut self, resume: ResumeTopic, _: &mut Context<Self>) -> Self::Result {
        if self.book.read().get(&resume.name).pause.is_none() {
            return Ok(self.book.read().clone());
        }
        self.change(resume.name, resume.by, "topic.resume", |topic, now| {
            if let Some(pause) = topic.pause.take()
                && pause.clock == PauseClock::Freeze
            {
                topic.thaw += 1;
                topic.thawing = Some(Thaw {
                    number: topic.thaw,
                    held: now.steady.since(pause.since_steady),
                });
            }
        })
    }
}

impl Handler<EndThaw> for RegistryActor {
    type Result = Result<Arc<TopicBook>, RegistryError>;

    fn handle(&mut self, end: EndThaw, _: &mut Context<Self>) -> Self::Result {
        let thawing = self.book.read().get(&end.name).thawing;
        if thawing.is_none_or(|thaw| thaw.number != end.number) {
            return Ok(self.book.read().clone());
        }
        self.change(
            end.name,
            "registry".to_owned(),
            "topic.thawed",
            |topic, _| {
                topic.thawing = None;
            },
        )
    }
}

impl Handler<Note> for RegistryActor {
    type Result = Result<(), RegistryError>;

    fn handle(&mut self, note: Note, _: &mut Context<Self>) -> Self::Result {
        self.files.note(&note.line)
    }
}

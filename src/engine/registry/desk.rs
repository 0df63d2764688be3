//! What the registry decides, without an actor: each message becomes at most one change on the disk, and then the
//! next book.

use std::sync::Arc;

use crate::clock::{Clock, Now};
use crate::engine::registry::kind::Kind;
use crate::engine::registry::{
    AuditLine, DeleteTopic, EndThaw, Note, PauseTopic, PutTopic, RegistryError, RegistryFiles,
    ResumeTopic, SharedBook, SharedRules,
};
use crate::ids::ShardEpoch;
use crate::limits;
use crate::task::model::PauseClock;
use crate::task::spec::TopicName;
use crate::task::topic::{Thaw, Topic, TopicBook, TopicPause};

/// The files, the book, and the time of day.
#[derive(Debug)]
pub(super) struct Desk {
    pub files: RegistryFiles,
    pub book: SharedBook,
    pub rules: SharedRules,
    pub clock: Clock,
    /// Which owner of the files this is.
    pub owner: ShardEpoch,
}

type NextBook = Result<Arc<TopicBook>, RegistryError>;

impl Desk {
    pub(super) fn present(&self) -> Arc<TopicBook> {
        self.book.read().clone()
    }

    fn turn_to(&self, next: TopicBook) -> NextBook {
        let next = Arc::new(next);
        let mut book = self.book.write();
        // What a later owner has read must not be put back.
        self.files.check(self.owner)?;
        *book = Arc::clone(&next);
        Ok(next)
    }

    fn change(
        &self,
        name: TopicName,
        by: String,
        action: &str,
        f: impl FnOnce(&mut Topic, Now),
    ) -> NextBook {
        let book = self.present();
        if !book.is_known(&name) && book.len() >= limits::TOPICS_MAX {
            return Err(RegistryError::TooManyTopics);
        }
        let now = self.clock.now();
        let mut topic = Topic::clone(book.get(&name));
        f(&mut topic, now);
        let line = line(now, by, action, name.as_str(), &topic.body);
        self.files.put(self.owner, &name, &topic, &line)?;
        self.turn_to(book.with(name, topic))
    }

    pub(super) fn put(&self, put: PutTopic) -> NextBook {
        let bytes = put.body.len();
        if bytes > limits::RESOURCE_BODY_BYTES_MAX {
            return Err(RegistryError::BodyTooLarge { bytes });
        }
        if let Some(name) = &put.settings.rule
            && !self.rules.read().rules.contains_key(name)
        {
            let (kind, name) = (Kind::Rule, name.clone());
            return Err(RegistryError::NeedsUnknown { kind, name });
        }
        self.change(put.name, put.by, "topic.put", |topic, _| {
            topic.settings = put.settings;
            topic.body = put.body;
            topic.version += 1;
        })
    }

    pub(super) fn delete(&self, delete: DeleteTopic) -> NextBook {
        let (book, name) = (self.present(), delete.name);
        if !book.is_known(&name) {
            return Err(RegistryError::UnknownTopic(name));
        }
        let topic = book.get(&name);
        let user = topic.pause.map(|_| "its pause; resume it first");
        let user = user.or(topic
            .thawing
            .map(|_| "its tasks are being moved on from its last pause"));
        if let Some(by) = user.map(str::to_owned) {
            return Err(RegistryError::InUse { name, by });
        }
        let line = line(
            self.clock.now(),
            delete.by,
            "topic.delete",
            name.as_str(),
            "",
        );
        self.files.remove(self.owner, &name, &line)?;
        self.turn_to(book.without(&name))
    }

    pub(super) fn pause(&self, pause: PauseTopic) -> NextBook {
        let book = self.present();
        if book.get(&pause.name).pause.is_some() {
            return Ok(book);
        }
        self.change(pause.name, pause.by, "topic.pause", |topic, now| {
            topic.pause = Some(TopicPause {
                clock: pause.clock,
                since: now.wall,
                since_steady: now.steady,
            });
        })
    }

    pub(super) fn resume(&self, resume: ResumeTopic) -> NextBook {
        let book = self.present();
        let topic = book.get(&resume.name);
        let Some(pause) = topic.pause else {
            return Ok(book);
        };
        if topic.thawing.is_some() {
            return Err(RegistryError::Thawing(resume.name));
        }
        let number = self.files.next_thaw()?;
        self.change(resume.name, resume.by, "topic.resume", |topic, now| {
            topic.pause = None;
            if pause.clock == PauseClock::Freeze {
                topic.thaw = number;
                topic.thawing = Some(Thaw {
                    number,
                    held: now.steady.since(pause.since_steady),
                });
            }
        })
    }

    pub(super) fn end_thaw(&self, end: EndThaw) -> NextBook {
        let book = self.present();
        let thawing = book.get(&end.name).thawing;
        if thawing.is_none_or(|thaw| thaw.number != end.number) {
            return Ok(book);
        }
        let by = "registry".to_owned();
        self.change(end.name, by, "topic.thawed", |topic, _| {
            topic.thawing = None
        })
    }

    pub(super) fn note(&self, note: Note) -> Result<(), RegistryError> {
        Ok(self.files.note(self.owner, &note.lines)?)
    }
}

/// A line of the audit.
pub(super) fn line(now: Now, by: String, action: &str, target: &str, detail: &str) -> AuditLine {
    AuditLine {
        at_ms: now.wall.0,
        by,
        action: action.to_owned(),
        target: target.to_owned(),
        detail: detail.to_owned(),
    }
}

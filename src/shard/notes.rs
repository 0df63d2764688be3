//! What a shard keeps beside its tasks: cancels that came before their create, and answers for re-sent requests.

use std::collections::{BTreeSet, HashMap, HashSet};

use bytes::Bytes;
use xxhash_rust::xxh3::xxh3_128;

use crate::clock::{DurationMs, Now};
use crate::limits;
use crate::shard::place::{Alarm, AlarmClock, Setting};
use crate::store::{Batch, KeptAnswer, Note, Tombstone};
use crate::task::spec::{TaskKey, TopicName};

/// What a shard knows of a request that may have come before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Resent {
    /// It comes for the first time, or came and was never answered: do it, with ids derived from this instant.
    Do {
        /// When it first came.
        first_at: crate::clock::WallMs,
    },
    /// It was answered so.
    Answered {
        /// The status.
        status: u16,
        /// The body.
        body: Bytes,
    },
    /// The same key came with another body.
    Mismatch,
    /// The first one is still being worked on.
    InProgress,
}

/// Tombstones and kept answers of one shard.
#[derive(Debug, Default)]
pub struct Notes {
    tombstones: HashMap<[u8; 16], Tombstone>,
    answers: HashMap<[u8; 16], KeptAnswer>,
    by_age: BTreeSet<(i64, [u8; 16])>,
    working_on: HashSet<[u8; 16]>,
    dirty_tombstones: HashSet<(TopicName, TaskKey)>,
    dirty_answers: HashSet<[u8; 16]>,
}

fn hash(topic: &TopicName, key: &TaskKey) -> [u8; 16] {
    let mut text = Vec::with_capacity(topic.as_str().len() + key.as_str().len() + 1);
    text.extend_from_slice(topic.as_str().as_bytes());
    text.push(0);
    text.extend_from_slice(key.as_str().as_bytes());
    xxh3_128(&text).to_be_bytes()
}

impl Notes {
    /// Takes in a note as it was stored; the alarm that ends it is to be set.
    pub fn adopt(&mut self, note: Note) -> Setting {
        match note {
            Note::Tombstone(tombstone) => {
                let hash = hash(&tombstone.topic, &tombstone.key);
                let until = tombstone.until;
                self.tombstones.insert(hash, tombstone);
                (AlarmClock::Steady, until.0, Alarm::Tombstone(hash))
            }
            Note::Answer(answer) => {
                let (hash, until) = (answer.key.to_be_bytes(), answer.until);
                self.by_age.insert((until.0, hash));
                self.answers.insert(hash, answer);
                (AlarmClock::Steady, until.0, Alarm::Answer(hash))
            }
        }
    }

    /// The tombstone that holds a key, if one does now.
    pub fn tombstone(&self, topic: &TopicName, key: &TaskKey, now: Now) -> Option<&Tombstone> {
        self.tombstones
            .get(&hash(topic, key))
            .filter(|tombstone| tombstone.until > now.steady)
    }

    /// Lays a tombstone; the alarm that ends it is to be set.
    pub fn lay(&mut self, tombstone: Tombstone) -> Setting {
        self.dirty_tombstones
            .insert((tombstone.topic.clone(), tombstone.key.clone()));
        self.adopt(Note::Tombstone(tombstone))
    }

    /// Ends a tombstone whose time is over. A later one of the same key has an alarm of its own.
    pub fn end_tombstone(&mut self, hash: [u8; 16], now: Now) {
        if self
            .tombstones
            .get(&hash)
            .is_some_and(|tombstone| tombstone.until <= now.steady)
            && let Some(tombstone) = self.tombstones.remove(&hash)
        {
            self.dirty_tombstones
                .insert((tombstone.topic, tombstone.key));
        }
    }

    /// A request with an `Idempotency-Key` comes: is it a re-sent one? The alarm is to be set.
    pub fn ask(&mut self, key: u128, body: u128, now: Now) -> (Resent, Option<Setting>) {
        let hash = key.to_be_bytes();
        if let Some(kept) = self.answers.get(&hash) {
            let resent = match &kept.answer {
                _ if kept.body != body => Resent::Mismatch,
                Some((status, body)) => Resent::Answered {
                    status: *status,
                    body: body.clone(),
                },
                None if self.working_on.contains(&hash) => Resent::InProgress,
                None => {
                    self.working_on.insert(hash);
                    Resent::Do {
                        first_at: kept.first_at,
                    }
                }
            };
            return (resent, None);
        }
        while self.answers.len() >= limits::IDEMPOTENCY_KEYS_MAX {
            let Some((_, oldest)) = self.by_age.first().copied() else {
                break;
            };
            self.drop_answer(oldest);
        }
        self.working_on.insert(hash);
        self.dirty_answers.insert(hash);
        let alarm = self.adopt(Note::Answer(KeptAnswer {
            key,
            body,
            first_at: now.wall,
            until: now.steady.after(DurationMs(limits::IDEMPOTENCY_KEPT_MS)),
            answer: None,
        }));
        (Resent::Do { first_at: now.wall }, Some(alarm))
    }

    /// The request was answered. A server error or a refusal for lack of room is not kept: the next try may fare
    /// better. An answer too large to keep is computed again from the same ids.
    pub fn answered(&mut self, key: u128, status: u16, body: Bytes) {
        let hash = key.to_be_bytes();
        self.working_on.remove(&hash);
        let passing = status >= 500 || status == 429;
        if let Some(kept) = self.answers.get_mut(&hash)
            && !passing
            && body.len() <= limits::IDEMPOTENCY_ANSWER_BYTES_MAX
        {
            kept.answer = Some((status, body));
            self.dirty_answers.insert(hash);
        }
    }

    /// Ends a kept answer whose time is over.
    pub fn end_answer(&mut self, hash: [u8; 16], now: Now) {
        if self
            .answers
            .get(&hash)
            .is_some_and(|kept| kept.until <= now.steady)
        {
            self.drop_answer(hash);
        }
    }

    fn drop_answer(&mut self, hash: [u8; 16]) {
        if let Some(kept) = self.answers.remove(&hash) {
            self.by_age.remove(&(kept.until.0, hash));
            self.working_on.remove(&hash);
            self.dirty_answers.insert(hash);
        }
    }

    /// Writes what changed since the last call.
    pub fn write_changes(&mut self, batch: &mut Batch) {
        for (topic, key) in self.dirty_tombstones.drain() {
            match self.tombstones.get(&hash(&topic, &key)) {
                Some(tombstone) => batch.put_tombstone(tombstone),
                None => batch.remove_tombstone(&topic, &key),
            }
        }
        for hash in self.dirty_answers.drain() {
            match self.answers.get(&hash) {
                Some(answer) => batch.put_answer(answer),
                None => batch.remove_answer(u128::from_be_bytes(hash)),
            }
        }
    }
}

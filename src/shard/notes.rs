//! What a shard keeps beside its tasks: cancels that came before their create, answers for re-sent requests, and
//! [late answers](crate::shard::late).

use std::collections::{BTreeSet, HashMap, HashSet};

use bytes::Bytes;
use xxhash_rust::xxh3::xxh3_128;

use crate::clock::{DurationMs, MonoMs, Now};
use crate::limits;
use crate::shard::late::LateAnswers;
use crate::shard::place::{Alarm, AlarmClock, Setting};
use crate::store::{Batch, KeptAnswer, Note, Tombstone};
use crate::task::spec::{TaskKey, TopicName};

/// A request that has been worked on for longer was given up by who did: longer than any work takes, with all tries
/// to have its answer kept.
const WORKED_ON_MAX: DurationMs = DurationMs::secs(15 * 60);

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

/// No further cancel can stand for a create still to come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{} cancels stand for a create still to come already, which is the most; send it once the task is created",
    limits::TOMBSTONES_MAX
)]
pub struct TooManyTombstones;

/// How much is kept.
#[derive(Clone, Copy, Debug)]
struct Room {
    tombstones: usize,
    answers: usize,
    bytes: usize,
}

/// Tombstones, kept and late answers of one shard.
///
/// Of the kept answers the oldest go first: when their bodies are too many bytes, the bodies go (what was asked is done
/// again then, with the same ids, and so finds its own tasks); when there are too many, they go as a whole.
#[derive(Debug)]
pub struct Notes {
    room: Room,
    tombstones: HashMap<[u8; 16], Tombstone>,
    answers: HashMap<[u8; 16], KeptAnswer>,
    by_age: BTreeSet<(i64, [u8; 16])>,
    /// Those of `by_age` that have a body, and how many bytes these are.
    with_body: BTreeSet<(i64, [u8; 16])>,
    body_bytes: usize,
    /// Since when.
    working_on: HashMap<[u8; 16], MonoMs>,
    dirty_tombstones: HashSet<(TopicName, TaskKey)>,
    dirty_answers: HashSet<[u8; 16]>,
    pub(super) late: LateAnswers,
}

impl Default for Notes {
    fn default() -> Self {
        Self {
            room: Room {
                tombstones: limits::TOMBSTONES_MAX,
                answers: limits::IDEMPOTENCY_KEYS_MAX,
                bytes: limits::IDEMPOTENCY_ANSWERS_BYTES_MAX,
            },
            tombstones: HashMap::new(),
            answers: HashMap::new(),
            by_age: BTreeSet::new(),
            with_body: BTreeSet::new(),
            body_bytes: 0,
            working_on: HashMap::new(),
            dirty_tombstones: HashSet::new(),
            dirty_answers: HashSet::new(),
            late: LateAnswers::default(),
        }
    }
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
                if let Some((_, body)) = &answer.answer {
                    self.with_body.insert((until.0, hash));
                    self.body_bytes += body.len();
                }
                self.answers.insert(hash, answer);
                (AlarmClock::Steady, until.0, Alarm::Answer(hash))
            }
            Note::Late(late) => self.late.adopt(*late),
        }
    }

    /// All notes, in no order.
    pub fn all(&self) -> impl Iterator<Item = Note> + use<'_> {
        let tombstones = self.tombstones.values().cloned().map(Note::Tombstone);
        let answers = self.answers.values().cloned().map(Note::Answer);
        let late = self.late.all().cloned();
        let late = late.map(|late| Note::Late(Box::new(late)));
        tombstones.chain(answers).chain(late)
    }

    /// The tombstone that holds a key, if one does now.
    pub fn tombstone(&self, topic: &TopicName, key: &TaskKey, now: Now) -> Option<&Tombstone> {
        self.tombstones
            .get(&hash(topic, key))
            .filter(|tombstone| tombstone.until > now.steady)
    }

    /// Lays a tombstone; the alarm that ends it is to be set.
    ///
    /// # Errors
    /// When there are too many, and none on this key yet.
    pub fn lay(&mut self, tombstone: Tombstone) -> Result<Setting, TooManyTombstones> {
        let is_new = !self
            .tombstones
            .contains_key(&hash(&tombstone.topic, &tombstone.key));
        if is_new && self.tombstones.len() >= self.room.tombstones {
            return Err(TooManyTombstones);
        }
        self.dirty_tombstones
            .insert((tombstone.topic.clone(), tombstone.key.clone()));
        Ok(self.adopt(Note::Tombstone(tombstone)))
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
                None if self.is_worked_on(&hash, now) => Resent::InProgress,
                None => {
                    self.working_on.insert(hash, now.mono);
                    Resent::Do {
                        first_at: kept.first_at,
                    }
                }
            };
            return (resent, None);
        }
        while self.answers.len() >= self.room.answers {
            let Some((_, oldest)) = self.by_age.first().copied() else {
                break;
            };
            self.drop_answer(oldest);
        }
        self.working_on.insert(hash, now.mono);
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

    fn is_worked_on(&self, hash: &[u8; 16], now: Now) -> bool {
        let since = self.working_on.get(hash);
        since.is_some_and(|since| now.mono.since(*since) < WORKED_ON_MAX)
    }

    /// The request was answered. A server error or a refusal for lack of room is not kept: the next try may fare
    /// better. An answer too large to keep is computed again from the same ids.
    pub fn answered(&mut self, key: u128, status: u16, body: Bytes) {
        let hash = key.to_be_bytes();
        self.working_on.remove(&hash);
        let passing = status >= 500 || status == 429;
        if let Some(kept) = self.answers.get_mut(&hash)
            && kept.answer.is_none()
            && !passing
            && body.len() <= limits::IDEMPOTENCY_ANSWER_BYTES_MAX
        {
            self.body_bytes += body.len();
            self.with_body.insert((kept.until.0, hash));
            kept.answer = Some((status, body));
            self.dirty_answers.insert(hash);
        }
        while self.body_bytes > self.room.bytes {
            let Some((_, oldest)) = self.with_body.first().copied() else {
                break;
            };
            self.drop_body(oldest);
            self.dirty_answers.insert(oldest);
        }
    }

    fn drop_body(&mut self, hash: [u8; 16]) {
        if let Some(kept) = self.answers.get_mut(&hash)
            && let Some((_, body)) = kept.answer.take()
        {
            self.with_body.remove(&(kept.until.0, hash));
            self.body_bytes -= body.len();
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
        self.drop_body(hash);
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
        self.late.write_changes(batch);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::WallMs;
    use crate::testing::fixtures::{START, at, minutes};

    fn with_room(tombstones: usize, answers: usize, bytes: usize) -> Notes {
        Notes {
            room: Room {
                tombstones,
                answers,
                bytes,
            },
            ..Notes::default()
        }
    }

    fn tombstone(key: &str, until_ms: i64) -> Tombstone {
        Tombstone {
            topic: TopicName::parse("order.unpaid").expect("a good name"),
            key: TaskKey::parse(key).expect("a good key"),
            until: at(until_ms).steady,
            reason: "paid".to_owned(),
        }
    }

    fn answered(notes: &mut Notes, key: u128, ms: i64, bytes: usize) {
        notes.ask(key, 7, at(ms));
        notes.answered(key, 201, Bytes::from(vec![b'x'; bytes]));
    }

    /// What the last changes would write: how many answers with a body, and how many without.
    fn written(notes: &mut Notes) -> (usize, usize) {
        let mut batch = Batch::new(at(0).steady);
        let dirty: Vec<_> = notes.dirty_answers.iter().copied().collect();
        notes.write_changes(&mut batch);
        let kept = dirty.iter().filter_map(|hash| notes.answers.get(hash));
        let (with, without): (Vec<_>, Vec<_>) = kept.partition(|kept| kept.answer.is_some());
        (with.len(), without.len())
    }

    #[test]
    fn the_oldest_bodies_go_first_and_what_was_asked_is_done_again_with_its_own_ids() {
        let mut notes = with_room(9, 9, 100);
        answered(&mut notes, 1, 0, 60);
        answered(&mut notes, 2, 5, 40);
        assert_eq!(written(&mut notes), (2, 0));
        answered(&mut notes, 3, 10, 30);
        assert_eq!((notes.body_bytes, written(&mut notes)), (70, (1, 1)));
        let first_at = START;
        assert_eq!(notes.ask(1, 8, at(20)).0, Resent::Mismatch);
        assert_eq!(notes.ask(1, 7, at(20)).0, Resent::Do { first_at });
        assert!(matches!(
            notes.ask(2, 7, at(20)).0,
            Resent::Answered { status: 201, .. }
        ));
        // Done again, it is the newest work but still the oldest key.
        notes.answered(1, 201, Bytes::from_static(b"short"));
        assert_eq!(notes.body_bytes, 75);
    }

    #[test]
    fn bytes_are_counted_the_same_after_a_start_and_given_back_with_each_answer() {
        let mut notes = with_room(9, 2, 1_000);
        for key in 1..=3 {
            answered(&mut notes, key, key as i64, 10);
        }
        assert_eq!((notes.answers.len(), notes.body_bytes), (2, 20));
        let mut recovered = Notes::default();
        for answer in notes.answers.values().cloned() {
            recovered.adopt(Note::Answer(answer));
        }
        assert_eq!(recovered.body_bytes, 20);
        let over = at(limits::IDEMPOTENCY_KEPT_MS as i64 + 10);
        for hash in [2_u128, 3].map(u128::to_be_bytes) {
            recovered.end_answer(hash, over);
        }
        assert_eq!((recovered.body_bytes, recovered.with_body.len()), (0, 0));
    }

    #[test]
    fn a_second_answer_of_the_same_request_changes_nothing() {
        let mut notes = with_room(9, 9, 1_000);
        answered(&mut notes, 1, 0, 10);
        notes.answered(1, 200, Bytes::from_static(b"other"));
        assert_eq!(notes.body_bytes, 10);
        assert!(matches!(
            notes.ask(1, 7, at(1)).0,
            Resent::Answered { status: 201, .. }
        ));
    }

    #[test]
    fn too_many_tombstones_are_refused_until_one_ends() {
        let mut notes = with_room(2, 9, 1_000);
        for key in ["a", "b"] {
            assert!(notes.lay(tombstone(key, 1_000)).is_ok());
        }
        assert_eq!(notes.lay(tombstone("c", 1_000)), Err(TooManyTombstones));
        // One that is there may last longer.
        let Ok((_, until, Alarm::Tombstone(hash))) = notes.lay(tombstone("a", 2_000)) else {
            panic!("a tombstone that is there was refused");
        };
        assert_eq!(WallMs(until), START.after(DurationMs(2_000)));
        notes.end_tombstone(hash, at(minutes(1).0 as i64));
        assert!(notes.lay(tombstone("c", 1_000)).is_ok());
    }
}

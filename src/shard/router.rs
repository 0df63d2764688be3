//! The way to a shard: which one, is it up, has it room.
//!
//! Each shard has a door with so many permits; a question holds one until it is answered, so what waits for a
//! shard is bounded however many callers there are (actix's own mailbox capacity is no bound: every clone of an
//! address has a slot of its own). A shard that is down says so at once. A shard that dies with a question, or
//! does not answer in [`ASK_TIME`], leaves its outcome unknown, and that is what the caller is told.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use actix::Addr;
use parking_lot::RwLock;
use tokio::sync::{Semaphore, oneshot};

use crate::ids::{ShardEpoch, ShardId, Slot, SlotMap};
use crate::shard::actor::{ShardActor, Tick};
use crate::shard::messages::{Ask, Question};

/// Longest wait for an answer: whoever asks is told something.
pub const ASK_TIME: Duration = Duration::from_secs(30);

/// Why a shard gave no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoAnswer {
    /// Too many questions wait for it already; nothing was done.
    #[error("too many requests wait for shard {0}")]
    Overloaded(ShardId),
    /// It is down; nothing was done.
    #[error("shard {0} is being restarted")]
    Down(ShardId),
    /// It died with the question, or is too slow: what became of it is unknown.
    #[error("shard {0} took the request and gave no answer; whether it was done is unknown")]
    Unknown(ShardId),
}

/// All shards' doors.
#[derive(Debug)]
pub struct ShardRouter {
    slots: SlotMap,
    doors: Vec<Door>,
}

#[derive(Debug)]
struct Door {
    actor: RwLock<Option<Addr<ShardActor>>>,
    permits: Arc<Semaphore>,
    epoch: AtomicU64,
}

impl ShardRouter {
    /// Doors for all shards of `slots`, each with room for `queue` questions; nobody is behind them yet.
    pub fn new(slots: SlotMap, queue: usize) -> Self {
        let doors = (0..slots.shards())
            .map(|_| Door {
                actor: RwLock::new(None),
                permits: Arc::new(Semaphore::new(queue)),
                epoch: AtomicU64::new(0),
            })
            .collect();
        Self { slots, doors }
    }

    /// The shard that owns a slot.
    pub fn shard_of(&self, slot: Slot) -> ShardId {
        self.slots.shard_of(slot)
    }

    /// All shards.
    pub fn shards(&self) -> impl Iterator<Item = ShardId> + use<> {
        (0..self.slots.shards()).map(ShardId)
    }

    /// A new owner stands behind a shard's door.
    pub fn open(&self, shard: ShardId, actor: Addr<ShardActor>, epoch: ShardEpoch) {
        let door = self.door(shard);
        door.epoch.store(epoch.0, Ordering::Release);
        *door.actor.write() = Some(actor);
    }

    /// The epoch of a shard's owner; 0 before the first.
    pub fn epoch(&self, shard: ShardId) -> ShardEpoch {
        ShardEpoch(self.door(shard).epoch.load(Ordering::Acquire))
    }

    /// Whether somebody stands behind a shard's door.
    pub fn is_up(&self, shard: ShardId) -> bool {
        self.actor(shard).is_some()
    }

    /// Asks a shard and waits for the answer, which comes when all it rests on is committed.
    ///
    /// # Errors
    /// See [`NoAnswer`].
    pub async fn ask<Q: Question>(
        &self,
        shard: ShardId,
        question: Q,
    ) -> Result<Q::Answer, NoAnswer> {
        self.ask_within(ASK_TIME, shard, question).await
    }

    pub(super) async fn ask_within<Q: Question>(
        &self,
        limit: Duration,
        shard: ShardId,
        question: Q,
    ) -> Result<Q::Answer, NoAnswer> {
        let door = self.door(shard);
        let permit = Arc::clone(&door.permits)
            .try_acquire_owned()
            .map_err(|_| NoAnswer::Overloaded(shard))?;
        let permit = Some(permit);
        let (reply, answer) = oneshot::channel();
        let actor = self.actor(shard).ok_or(NoAnswer::Down(shard))?;
        // The permits are the bound; the mailbox has room for all of them.
        let ask = Ask {
            question,
            reply,
            permit,
        };
        if actor.try_send(ask).is_err() {
            return Err(if actor.connected() {
                NoAnswer::Overloaded(shard)
            } else {
                NoAnswer::Down(shard)
            });
        }
        match tokio::time::timeout(limit, answer).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(_)) | Err(_) => Err(NoAnswer::Unknown(shard)),
        }
    }

    /// Asks all shards the same, one after the other's sending, and waits for all answers.
    ///
    /// # Errors
    /// The first that a shard gave.
    pub async fn ask_all<Q: Question>(
        &self,
        question: impl Fn(ShardId) -> Q,
    ) -> Result<Vec<Q::Answer>, NoAnswer> {
        let asked = self.shards().map(|shard| self.ask(shard, question(shard)));
        futures_util::future::try_join_all(asked).await
    }

    /// Tells all shards the same: each of them, even when another gives no answer. Returns when all have answered.
    ///
    /// # Errors
    /// The first that a shard gave, after all were told.
    pub async fn tell_all<Q: Question>(
        &self,
        question: impl Fn(ShardId) -> Q,
    ) -> Result<Vec<Q::Answer>, NoAnswer> {
        let told = self.shards().map(|shard| self.ask(shard, question(shard)));
        let answers = futures_util::future::join_all(told).await;
        answers.into_iter().collect()
    }

    /// Tells a shard something without waiting, and without a place in its queue: for what comes about once in the
    /// life of a part.
    pub fn inform<Q: Question>(&self, shard: ShardId, question: Q) {
        if let Some(actor) = self.actor(shard) {
            let (reply, _) = oneshot::channel();
            let permit = None;
            actor.do_send(Ask {
                question,
                reply,
                permit,
            });
        }
    }

    /// Tells a shard what time it is. `false` when the tick could not be delivered.
    pub fn tick(&self, shard: ShardId) -> bool {
        self.actor(shard)
            .is_some_and(|actor| actor.try_send(Tick).is_ok())
    }

    /// Nobody stands behind a shard's door, until the next owner opens it.
    #[cfg(test)]
    pub(crate) fn close(&self, shard: ShardId) {
        *self.door(shard).actor.write() = None;
    }

    /// Takes all that is left of a shard's room, until it is dropped.
    #[cfg(test)]
    pub(crate) fn fill(&self, shard: ShardId) -> tokio::sync::OwnedSemaphorePermit {
        let permits = Arc::clone(&self.door(shard).permits);
        let left = u32::try_from(permits.available_permits()).expect("a queue is no longer");
        permits
            .try_acquire_many_owned(left)
            .expect("they are there")
    }

    fn door(&self, shard: ShardId) -> &Door {
        &self.doors[usize::from(shard.0)]
    }

    fn actor(&self, shard: ShardId) -> Option<Addr<ShardActor>> {
        self.door(shard)
            .actor
            .read()
            .clone()
            .filter(Addr::connected)
    }
}

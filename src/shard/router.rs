//! The way to a shard: which one, is it up, has it room.
//!
//! Each shard has a door with so many permits; a question holds one until it is answered, so what waits for a
//! shard is bounded however many callers there are (actix's own mailbox capacity is no bound: every clone of an
//! address has a slot of its own). A shard that is down says so at once. A shard that dies with a question
//! leaves its outcome unknown, and that is what the caller is told.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use actix::Addr;
use parking_lot::RwLock;
use tokio::sync::{Semaphore, oneshot};

use crate::ids::{ShardEpoch, ShardId, Slot, SlotMap};
use crate::shard::actor::{ShardActor, Tick};
use crate::shard::messages::{Ask, Question};

/// Why a shard gave no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoAnswer {
    /// Too many questions wait for it already; nothing was done.
    #[error("too many requests wait for shard {0}")]
    Overloaded(ShardId),
    /// It is down; nothing was done.
    #[error("shard {0} is being restarted")]
    Down(ShardId),
    /// It died with the question: what became of it is unknown.
    #[error("shard {0} died with the request; whether it was done is unknown")]
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
        answer.await.map_err(|_| NoAnswer::Unknown(shard))
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

    /// Tells a shard what time it is. `false` when the tick could not be delivered.
    pub fn tick(&self, shard: ShardId) -> bool {
        self.actor(shard)
            .is_some_and(|actor| actor.try_send(Tick).is_ok())
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

/// Routes questions for tasks to their owner.
pub type SharedRouter = Arc<ShardRouter>;

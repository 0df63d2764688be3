//! The way to a shard: which one, is it up, has it room.
//!
//! Each shard has a door with so many permits; a question holds one until it is answered, so what waits for a
//! shard is bounded however many callers there are (actix's own mailbox capacity is no bound: every clone of an
//! address has a slot of its own). A shard that is down says so at once. A shard that dies with a question, or
//! does not answer in [`ASK_TIME`], leaves its outcome unknown, and that is what the caller is told.
//!
//! An owner that hangs keeps the questions it has, and their permits. So each owner comes with permits of its own, and
//! who waits for an answer looks now and then ([`LOOK_TIME`]) whether the owner still counts.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use actix::Addr;
use parking_lot::RwLock;
use tokio::sync::{Semaphore, oneshot};

use crate::ids::{ShardEpoch, ShardId, Slot, SlotMap};
use crate::shard::actor::{ShardActor, Tick};
use crate::shard::messages::{Ask, Question};
use crate::watchdog::KillSwitch;

/// Longest wait for an answer: whoever asks is told something.
pub const ASK_TIME: Duration = Duration::from_secs(30);
/// How soon who waits hears that the owner does not count any more.
pub const LOOK_TIME: Duration = Duration::from_millis(250);

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
    queue: usize,
    doors: Vec<RwLock<Option<Arc<Owner>>>>,
}

/// Who stands behind a door.
struct Owner {
    actor: Addr<ShardActor>,
    epoch: ShardEpoch,
    /// Thrown when it is to leave, or counts as dead.
    kill: KillSwitch,
    permits: Arc<Semaphore>,
}

impl Owner {
    fn counts(&self) -> bool {
        !self.kill.is_thrown() && self.actor.connected()
    }
}

impl fmt::Debug for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Owner({})", self.epoch)
    }
}

impl ShardRouter {
    /// Doors for all shards of `slots`, each with room for `queue` questions; nobody is behind them yet.
    pub fn new(slots: SlotMap, queue: usize) -> Self {
        let doors = (0..slots.shards()).map(|_| RwLock::new(None)).collect();
        Self {
            slots,
            queue,
            doors,
        }
    }

    /// The shard that owns a slot.
    pub fn shard_of(&self, slot: Slot) -> ShardId {
        self.slots.shard_of(slot)
    }

    /// All shards.
    pub fn shards(&self) -> impl Iterator<Item = ShardId> + use<> {
        (0..self.slots.shards()).map(ShardId)
    }

    /// A new owner stands behind a shard's door, unless one of a later epoch does already.
    pub fn open(
        &self,
        shard: ShardId,
        actor: Addr<ShardActor>,
        epoch: ShardEpoch,
        kill: KillSwitch,
    ) {
        let mut owner = self.door(shard).write();
        if owner.as_ref().is_none_or(|present| present.epoch < epoch) {
            *owner = Some(Arc::new(Owner {
                actor,
                epoch,
                kill,
                permits: Arc::new(Semaphore::new(self.queue)),
            }));
        }
    }

    /// The epoch of a shard's last owner; 0 before the first.
    pub fn epoch(&self, shard: ShardId) -> ShardEpoch {
        let owner = self.door(shard).read();
        owner.as_ref().map_or(ShardEpoch(0), |owner| owner.epoch)
    }

    /// Whether somebody stands behind a shard's door.
    pub fn is_up(&self, shard: ShardId) -> bool {
        self.owner(shard).is_some()
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
        let owner = self.owner(shard).ok_or(NoAnswer::Down(shard))?;
        let permit = Arc::clone(&owner.permits)
            .try_acquire_owned()
            .map_err(|_| NoAnswer::Overloaded(shard))?;
        let permit = Some(permit);
        let (reply, mut answer) = oneshot::channel();
        // The permits are the bound; the mailbox has room for all of them.
        let ask = Ask {
            question,
            reply,
            permit,
        };
        if owner.actor.try_send(ask).is_err() {
            return Err(if owner.counts() {
                NoAnswer::Overloaded(shard)
            } else {
                NoAnswer::Down(shard)
            });
        }
        let end = Instant::now() + limit;
        loop {
            let look = LOOK_TIME.min(end.saturating_duration_since(Instant::now()));
            match tokio::time::timeout(look, &mut answer).await {
                Ok(Ok(answer)) => return Ok(answer),
                Err(_) if owner.counts() && Instant::now() < end => {}
                Ok(Err(_)) | Err(_) => return Err(NoAnswer::Unknown(shard)),
            }
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
        if let Some(owner) = self.owner(shard) {
            let (reply, _) = oneshot::channel();
            let permit = None;
            owner.actor.do_send(Ask {
                question,
                reply,
                permit,
            });
        }
    }

    /// Tells a shard what time it is. `false` when the tick could not be delivered.
    pub fn tick(&self, shard: ShardId) -> bool {
        self.owner(shard)
            .is_some_and(|owner| owner.actor.try_send(Tick).is_ok())
    }

    /// Nobody stands behind a shard's door, until the next owner opens it.
    #[cfg(test)]
    pub(crate) fn close(&self, shard: ShardId) {
        *self.door(shard).write() = None;
    }

    /// Takes all that is left of a shard's room, until it is dropped.
    #[cfg(test)]
    pub(crate) fn fill(&self, shard: ShardId) -> tokio::sync::OwnedSemaphorePermit {
        let owner = self.owner(shard).expect("a shard that is up");
        let permits = Arc::clone(&owner.permits);
        let left = u32::try_from(permits.available_permits()).expect("a queue is no longer");
        permits
            .try_acquire_many_owned(left)
            .expect("they are there")
    }

    fn door(&self, shard: ShardId) -> &RwLock<Option<Arc<Owner>>> {
        &self.doors[usize::from(shard.0)]
    }

    fn owner(&self, shard: ShardId) -> Option<Arc<Owner>> {
        let owner = self.door(shard).read().clone();
        owner.filter(|owner| owner.counts())
    }
}

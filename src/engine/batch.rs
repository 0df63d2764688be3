//! Many operations at once, each with an answer of its own.

use std::collections::BTreeMap;

use crate::engine::error::EngineError;
use crate::engine::handle::{Duetime, Origin};
use crate::ids::ShardId;
use crate::limits;
use crate::shard::messages::{Op, OpDone, RunOps, Target, Wants};
use crate::shard::query::TaskView;
use crate::shard::router::NoAnswer;
use crate::task::event::Event;
use crate::task::new_task::NewTask;

/// One operation of a mixed batch.
#[derive(Clone, Debug)]
pub enum BatchOp {
    /// Create a task.
    Create(Box<NewTask>),
    /// Let a verb happen to a task.
    Verb(Target, Event),
}

/// What an operator's hand ends or begins anew leaves a line in the audit.
pub(super) fn is_audited(event: &Event) -> bool {
    matches!(
        event,
        Event::Replay | Event::Resolve { .. } | Event::Discard
    )
}

/// So many operations are worked on at one go; then others that share the thread have their turn.
const AT_ONE_GO: usize = 256;

/// Lets others have their turn, after every [`AT_ONE_GO`] of many things.
pub(crate) async fn breathe(place: usize) {
    if place % AT_ONE_GO == AT_ONE_GO - 1 {
        tokio::task::yield_now().await;
    }
}

/// What goes to one shard.
struct Part {
    places: Vec<usize>,
    ops: Vec<Op>,
}

impl Part {
    fn with_room(ops: usize) -> Self {
        Self {
            places: Vec::with_capacity(ops),
            ops: Vec::with_capacity(ops),
        }
    }
}

impl Duetime {
    /// Applies operations: in order for each task, one commit per shard, an answer for each. They are taken as they
    /// come, a few hundred at one go. Of new tasks as much is shown as is wanted; of all else what is at hand.
    pub async fn batch(
        &self,
        ops: impl IntoIterator<Item = BatchOp, IntoIter: Send>,
        origin: Option<Origin>,
        wants: Wants,
        by: &str,
    ) -> Vec<Result<OpDone, EngineError>> {
        self.make_room_for_topics().await;
        let mut maker = self.maker();
        let ops = ops.into_iter();
        let count = ops.size_hint().1.unwrap_or(0).min(limits::BATCH_ITEMS_MAX);
        let mut answers: Vec<Option<Result<OpDone, EngineError>>> = Vec::with_capacity(count);
        // A task's operations all go to one shard, so order within a shard is order for each task.
        let mut by_shard: BTreeMap<ShardId, Part> = BTreeMap::new();
        // A shard's share, and a little more, since shares are not quite even.
        let share = count.div_ceil(self.parts.router.shards().count().max(1)) + count / 16;
        let mut audited = Vec::new();
        for (place, op) in ops.enumerate() {
            breathe(place).await;
            answers.push(None);
            let (shard, op) = match op {
                BatchOp::Create(new) => match maker.creation(*new, origin, place) {
                    Ok(creation) => (
                        self.parts.router.shard_of(creation.id.slot()),
                        Op::Create(creation),
                    ),
                    Err(error) => {
                        answers[place] = Some(Err(error));
                        continue;
                    }
                },
                BatchOp::Verb(target, event) => {
                    if is_audited(&event) {
                        audited.push((place, event.verb()));
                    }
                    let shard = self.shard_of(&target);
                    let op = match origin {
                        Some(origin) => Op::VerbOnce(target, event, origin.request(place)),
                        None => Op::Verb(target, event),
                    };
                    (shard, op)
                }
            };
            let part = by_shard
                .entry(shard)
                .or_insert_with(|| Part::with_room(share));
            part.places.push(place);
            part.ops.push(op);
        }
        let asked = by_shard.into_iter().map(|(shard, Part { places, ops })| {
            let by = by.to_owned();
            async move {
                (
                    places,
                    self.parts
                        .router
                        .ask(shard, RunOps::new(ops, wants, by))
                        .await,
                )
            }
        });
        for (places, answer) in futures_util::future::join_all(asked).await {
            match answer {
                Ok(done) => {
                    for (place, done) in places.into_iter().zip(done) {
                        answers[place] = Some(Ok(done));
                    }
                }
                Err(error) => {
                    for place in places {
                        answers[place] = Some(Err(error.into()));
                    }
                }
            }
        }
        let audited: Vec<(&str, &TaskView)> = audited
            .into_iter()
            .filter_map(|(place, verb)| match &answers[place] {
                Some(Ok(OpDone::Verb(Ok(done)))) => Some((verb, done.view.whole()?)),
                _ => None,
            })
            .collect();
        self.audit_verbs(by, &audited).await;
        let missing = || Err(EngineError::NoAnswer(NoAnswer::Unknown(ShardId(0))));
        answers
            .into_iter()
            .map(|answer| answer.unwrap_or_else(missing))
            .collect()
    }
}

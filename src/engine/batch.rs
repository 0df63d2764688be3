//! Many operations at once, each with an answer of its own.

use std::collections::BTreeMap;

use crate::engine::error::EngineError;
use crate::engine::handle::{Duetime, Origin};
use crate::ids::ShardId;
use crate::shard::messages::{Op, OpDone, RunOps, Target};
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

impl Duetime {
    /// Applies operations: in order for each task, one commit per shard, an answer for each.
    pub async fn batch(
        &self,
        ops: Vec<BatchOp>,
        origin: Option<Origin>,
        by: &str,
    ) -> Vec<Result<OpDone, EngineError>> {
        self.make_room_for_topics().await;
        let mut answers: Vec<Option<Result<OpDone, EngineError>>> = Vec::with_capacity(ops.len());
        answers.resize_with(ops.len(), || None);
        // A task's operations all go to one shard, so order within a shard is order for each task.
        let mut by_shard: BTreeMap<ShardId, (Vec<usize>, Vec<Op>)> = BTreeMap::new();
        let mut audited = Vec::new();
        for (place, op) in ops.into_iter().enumerate() {
            let (shard, op) = match op {
                BatchOp::Create(new) => match self.creation(*new, origin, place) {
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
            let (places, ops) = by_shard.entry(shard).or_default();
            places.push(place);
            ops.push(op);
        }
        let asked = by_shard.into_iter().map(|(shard, (places, ops))| {
            let by = by.to_owned();
            async move {
                (
                    places,
                    self.parts.router.ask(shard, RunOps::new(ops, by)).await,
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

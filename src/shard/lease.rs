//! Leases: due pull tasks handed to outside workers.

use std::collections::VecDeque;

use crate::clock::{DurationMs, MonoMs, Now, WallMs};
use crate::ids::{AttemptNumber, AttemptToken, TaskId};
use crate::shard::core::ShardCore;
use crate::shard::query::TaskView;
use crate::task::event::Event;
use crate::task::spec::TopicName;

/// A worker's right to one attempt.
#[derive(Clone, Debug)]
pub struct Lease {
    /// The task, as leased.
    pub view: TaskView,
    /// The attempt's number.
    pub attempt: AttemptNumber,
    /// To be given back with every answer.
    pub token: AttemptToken,
    /// When it ends without a heartbeat, on the wall clock as it is now.
    pub expires_at: WallMs,
}

impl ShardCore {
    /// Leases up to `max` due pull tasks of these topics to a worker. The topics take turns, so that a crowd in one keeps
    /// nobody waiting in another; within a topic the earliest due goes first, and so it does among topics whose turn was
    /// as long ago.
    pub fn lease(
        &mut self,
        topics: &[TopicName],
        max: usize,
        lease: DurationMs,
        worker: &str,
        now: Now,
    ) -> Vec<Lease> {
        let mut topics = topics.to_vec();
        topics.sort_unstable();
        topics.dedup();
        let mut lines: Vec<Line> = topics
            .iter()
            .filter(|topic| !self.book.get(topic).is_held())
            .filter_map(|topic| self.table.topic(topic))
            .map(|line| Line {
                topic: line.name.clone(),
                turn: line.turn,
                // Those that are not due after all are passed by, and come again with the next question.
                ready: line.ready.iter().take(max).copied().collect(),
            })
            .collect();
        let by = format!("worker {worker}");
        let mut leases = Vec::new();
        while leases.len() < max {
            let next = lines.iter_mut().min_by_key(|line| line.place());
            let Some((line, (_, id))) =
                next.and_then(|line| line.ready.pop_front().map(|first| (line, first)))
            else {
                break;
            };
            // A clock that stepped back makes a task wait again that was due once.
            let entry = self.table.wake(id);
            if !entry.is_some_and(|entry| entry.task.next.is_reached(now)) {
                continue;
            }
            let event = Event::Leased {
                worker: worker.to_owned(),
                lease,
            };
            if let Some(Ok(_)) = self.change(id, event, &by, now)
                && let Some(view) = self.view_of(id, now)
            {
                self.turns += 1;
                line.turn = self.turns;
                self.table.topic_mut(&line.topic, now.mono).turn = self.turns;
                leases.push(Lease {
                    attempt: view.task.attempt,
                    token: view.task.token,
                    expires_at: expires_at(&view, now),
                    view,
                });
            }
        }
        leases
    }
}

/// The first of a topic's due tasks.
struct Line {
    topic: TopicName,
    turn: u64,
    ready: VecDeque<(i64, TaskId)>,
}

impl Line {
    /// The least is served next; an empty one never.
    fn place(&self) -> (bool, u64, Option<(i64, TaskId)>) {
        (
            self.ready.is_empty(),
            self.turn,
            self.ready.front().copied(),
        )
    }
}

/// When the lease of a running task ends.
pub fn expires_at(view: &TaskView, now: Now) -> WallMs {
    let until = view
        .task
        .live
        .as_ref()
        .map_or(now.mono, |live| live.report_by);
    now.wall.after(MonoMs::since(until, now.mono))
}

//! Leases: due pull tasks handed to outside workers.

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
    /// Leases up to `max` due pull tasks of these topics, earliest due first, to a worker.
    pub fn lease(
        &mut self,
        topics: &[TopicName],
        max: usize,
        lease: DurationMs,
        worker: &str,
        now: Now,
    ) -> Vec<Lease> {
        let mut candidates: Vec<(i64, TaskId)> = topics
            .iter()
            .filter(|topic| !self.book.get(topic).is_held())
            .filter_map(|topic| self.table.topic(topic))
            .flat_map(|line| line.ready.iter().take(max).copied())
            .collect();
        // A clock that stepped back makes a task wait again that was due once.
        candidates.retain(|(_, id)| {
            let entry = self.table.wake(*id);
            entry.is_some_and(|entry| entry.task.next.is_reached(now))
        });
        candidates.sort_unstable();
        candidates.dedup();
        let by = format!("worker {worker}");
        let mut leases = Vec::new();
        for (_, id) in candidates.into_iter().take(max) {
            let event = Event::Leased {
                worker: worker.to_owned(),
                lease,
            };
            if let Some(Ok(_)) = self.change(id, event, &by, now)
                && let Some(view) = self.view_of(id, now)
            {
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

/// When the lease of a running task ends.
pub fn expires_at(view: &TaskView, now: Now) -> WallMs {
    let until = view
        .task
        .live
        .as_ref()
        .map_or(now.mono, |live| live.report_by);
    now.wall.after(MonoMs::since(until, now.mono))
}

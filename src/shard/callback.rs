//! Telling of an end: the callback is created in the step that ends its task, so that one commit holds both.

use std::sync::Arc;

use crate::clock::Now;
use crate::ids::TaskId;
use crate::shard::core::ShardCore;
use crate::shard::create::Creation;
use crate::task::callback;
use crate::task::model::Task;
use crate::task::topic::OnExisting;

/// Who creates callbacks, in their logs.
const BY: &str = "on_end";

impl ShardCore {
    /// A task that is awake has just ended: who asked for it is told. What is owed is not asked whether there is room
    /// for it: like all that ends, it may use the reserve.
    pub(super) fn call_back(&mut self, id: TaskId, now: Now) {
        let Some(task) = self.table.awake(id).map(|entry| Arc::clone(&entry.task)) else {
            return;
        };
        let topic = callback::topic_of(&task.topic);
        let spec = callback::spec_of(&task, self.book.get(&topic));
        if let (Some(id), Some(spec)) = (callback::id_of(&task), spec) {
            let creation = Creation {
                id,
                topic,
                spec: Arc::new(spec),
                key: None,
                when: None,
                on_existing: OnExisting::Return,
                request: None,
                is_skipped: false,
            };
            // Without a key there is nothing in its way.
            let _ = self.create(creation, BY, now);
        }
    }

    /// The callback that tells of the end of a task; `None` also when its record is gone.
    pub(super) fn callback_of(&mut self, task: &Task) -> Option<Arc<Task>> {
        Some(self.table.read(callback::id_of(task)?)?.task)
    }
}

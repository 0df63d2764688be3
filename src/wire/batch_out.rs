//! What a batch is answered: one result per item, written one after the other as they come in.

use bytes::Bytes;
use serde::Serialize;
use utoipa::ToSchema;
use uuid::Uuid;

use crate::ids::TaskId;
use crate::shard::query::{Slim, TaskView};
use crate::wire::problem::Problem;
use crate::wire::task_out::{SlimOut, TaskOut};

/// What became of one item.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = BatchItem)]
pub struct ItemOut<'a> {
    /// What it would have been answered on its own.
    status: u16,
    /// The task, whole or in short.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    task: Option<ItemTask<'a>>,
    /// With `?return=ids`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    id: Option<Uuid>,
    /// Why it was refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<crate::wire::problem::ProblemBody>, nullable = false)]
    error: Option<&'a Problem>,
}

/// A task, whole or in short.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub enum ItemTask<'a> {
    /// With all that is known of it.
    Whole(Box<TaskOut<'a>>),
    /// In short.
    Slim(SlimOut),
}

impl<'a> ItemOut<'a> {
    fn new(status: u16) -> Self {
        Self {
            status,
            task: None,
            id: None,
            error: None,
        }
    }

    /// Done; the whole task.
    pub fn whole(status: u16, view: &'a TaskView) -> Self {
        Self {
            task: Some(ItemTask::Whole(Box::new(view.into()))),
            ..Self::new(status)
        }
    }

    /// Done; the task in short.
    pub fn slim(status: u16, task: Slim) -> Self {
        Self {
            task: Some(ItemTask::Slim(task.into())),
            ..Self::new(status)
        }
    }

    /// Done; only the id.
    pub fn id(status: u16, id: TaskId) -> Self {
        Self {
            id: Some(id.uuid()),
            ..Self::new(status)
        }
    }

    /// Done; nothing is left to show (a discard).
    pub fn bare(status: u16) -> Self {
        Self::new(status)
    }

    /// Refused.
    pub fn error(problem: &'a Problem) -> Self {
        Self {
            error: Some(problem),
            ..Self::new(problem.status())
        }
    }
}

/// The answer to a batch.
#[derive(Debug, ToSchema)]
#[schema(as = BatchAnswer)]
pub struct BatchBody<'a> {
    /// One per item, in order.
    pub items: Vec<ItemOut<'a>>,
}

/// Writes the answer to a batch, item by item: what has been written can be dropped.
#[derive(Debug)]
pub struct BatchOut {
    json: Vec<u8>,
}

impl BatchOut {
    const BEGIN: &[u8] = br#"{"items":["#;

    /// An answer of so many items of about so many bytes.
    pub fn new(items: usize, item_bytes: usize) -> Self {
        let mut json = Vec::with_capacity(Self::BEGIN.len() + items * item_bytes + 2);
        json.extend_from_slice(Self::BEGIN);
        Self { json }
    }

    /// The next item.
    ///
    /// # Errors
    /// When it can't be written as JSON.
    pub fn push(&mut self, item: &ItemOut<'_>) -> serde_json::Result<()> {
        if self.json.len() > Self::BEGIN.len() {
            self.json.push(b',');
        }
        serde_json::to_writer(&mut self.json, item)
    }

    /// The whole.
    pub fn finish(mut self) -> Bytes {
        self.json.extend_from_slice(b"]}");
        self.json.into()
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test may")]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::wire::tests::properties;

    fn written(items: &[ItemOut<'_>]) -> Value {
        let mut out = BatchOut::new(items.len(), 10);
        for item in items {
            out.push(item).unwrap();
        }
        serde_json::from_slice(&out.finish()).unwrap()
    }

    #[test]
    fn results_are_shown_by_item() {
        let id: TaskId = "0192f0c1-2345-7abc-8def-0123456789ab".parse().unwrap();
        let problem = Problem::of_field("/delay", "invalid_duration", "is none");
        let shown = written(&[
            ItemOut::id(201, id),
            ItemOut::bare(200),
            ItemOut::error(&problem),
        ]);
        assert_eq!(
            shown["items"][0],
            json!({"status": 201, "id": id.to_string()})
        );
        assert_eq!(shown["items"][1], json!({"status": 200}));
        assert_eq!(
            (
                &shown["items"][2]["status"],
                &shown["items"][2]["error"]["code"]
            ),
            (&json!(422), &json!("invalid"))
        );
        assert_eq!(written(&[]), json!({"items": []}));
    }

    #[test]
    fn the_documented_field_is_the_one_that_is_written() {
        let shown = written(&[]);
        let fields: Vec<&String> = shown.as_object().unwrap().keys().collect();
        assert_eq!(
            fields,
            properties::<BatchBody<'_>>().iter().collect::<Vec<_>>()
        );
    }
}

//! The body of `PATCH /v1/tasks/{id}`: other facts, tags, payload.

use serde_json::{Map, Value};
use utoipa::ToSchema;

use crate::limits;
use crate::task::amendment::Amendment;
use crate::wire::decode::{Node, Shape, decode};
use crate::wire::problem::Problem;
use crate::wire::task_in;

const AMENDMENT: Shape = Shape {
    fields: &["facts", "tags", "payload"],
    not_built: &[],
};

/// Reads the body of `PATCH /v1/tasks/{id}`.
///
/// # Errors
/// 400, 422.
pub fn amendment(bytes: &[u8]) -> Result<Amendment, Problem> {
    decode(bytes, |node| {
        let body = node.object(&AMENDMENT)?;
        let facts = body.optional("facts", facts);
        let tags = body.optional("tags", tags);
        // Null is the same as absent, here too.
        let payload = body.optional("payload", |node| node.raw(limits::PAYLOAD_BYTES_MAX));
        if facts.is_none() && tags.is_none() && payload.is_none() {
            return node.refuse("missing", "changes nothing; give facts, tags or payload");
        }
        Some(Amendment {
            facts,
            tags: tags.unwrap_or_default(),
            payload: payload.map(Some),
        })
    })
}

fn facts(node: Node<'_, '_>) -> Option<Map<String, Value>> {
    let facts = task_in::facts(node)?;
    // It is an object, and was looked through.
    serde_json::from_str(facts.as_str()).ok()
}

fn tags(node: Node<'_, '_>) -> Option<Vec<(String, Option<String>)>> {
    node.entries(2 * limits::TAGS_MAX, |name, node| {
        let value = match node.is_null() {
            true => None,
            false => Some(task_in::tag(name, node)?),
        };
        Some((name.to_owned(), value))
    })
}

/// Body of `PATCH /v1/tasks/{id}`: what is left out stays as it is.
#[derive(Debug, ToSchema)]
#[schema(as = AmendTask, example = json!({"facts": {"pay_by": "2027-05-02T10:00:00Z"}}))]
pub struct AmendTask {
    /// Laid over the facts, as a JSON merge patch: null takes a fact away. The rule is asked again.
    #[schema(value_type = Option<Object>)]
    pub facts: Option<serde_json::Value>,
    /// Set; null takes a tag away.
    #[schema(value_type = Option<Object>)]
    pub tags: Option<serde_json::Value>,
    /// In the place of the payload.
    #[schema(value_type = Option<Object>)]
    pub payload: Option<serde_json::Value>,
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test may")]
mod tests {
    use super::*;
    use crate::wire::tests::{properties, refused};

    #[test]
    fn facts_tags_and_payload_can_be_changed_one_by_one() {
        let amended =
            amendment(br#"{"facts":{"a":null,"b":{"c":1}},"tags":{"x":"y","z":null}}"#).unwrap();
        let facts = amended.facts.unwrap();
        assert_eq!((facts.len(), &facts["a"]), (2, &Value::Null));
        assert_eq!(
            amended.tags,
            [
                ("x".to_owned(), Some("y".to_owned())),
                ("z".to_owned(), None)
            ]
        );
        assert_eq!(amended.payload, None);
        let payload = amendment(br#"{"payload": [1]}"#).unwrap().payload.unwrap();
        assert_eq!(payload.unwrap().as_str(), "[1]");
        for (body, pointer, code) in [
            ("{}", "", "missing"),
            (r#"{"facts": [1]}"#, "/facts", "wrong_type"),
            (r#"{"tags": {"": "x"}}"#, "/tags/", "invalid_name"),
            (r#"{"action": {}}"#, "/action", "unknown_field"),
        ] {
            let wrong = refused(amendment(body.as_bytes()));
            assert!(
                wrong.contains(&(pointer.to_owned(), code)),
                "{body}: {wrong:?}"
            );
        }
        assert_eq!(properties::<AmendTask>(), AMENDMENT.fields);
    }
}

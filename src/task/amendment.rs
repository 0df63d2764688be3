//! Changes of what a task carries, as they are asked for.

use bytes::Bytes;
use serde_json::{Map, Value};

use crate::limits;
use crate::task::spec::{RawJson, TaskSpec};

/// What is to be changed. What is `None` stays as it is.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Amendment {
    /// Laid over the facts: null takes a fact away, objects are laid over objects.
    pub facts: Option<Map<String, Value>>,
    /// Set; `None` takes a tag away.
    pub tags: Vec<(String, Option<String>)>,
    /// In the place of the payload; `Some(None)` takes it away.
    pub payload: Option<Option<RawJson>>,
}

/// It would carry more than it may.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TooMuch {
    /// So many tags.
    #[error("would have {0} tags, at most {max} are allowed", max = limits::TAGS_MAX)]
    Tags(usize),
    /// So many bytes of facts.
    #[error("would have {0} bytes of facts, at most {max} are allowed", max = limits::FACTS_BYTES_MAX)]
    Facts(usize),
}

impl Amendment {
    /// What a task carries then.
    ///
    /// # Errors
    /// When that is too much.
    pub fn of(&self, spec: &TaskSpec) -> Result<TaskSpec, TooMuch> {
        let mut spec = spec.clone();
        if let Some(facts) = &self.facts {
            spec.facts = Some(laid_over(spec.facts.as_ref(), facts)?);
        }
        for (name, value) in &self.tags {
            spec.tags.retain(|(there, _)| there != name);
            spec.tags
                .extend(value.clone().map(|value| (name.clone(), value)));
        }
        spec.tags.sort();
        if spec.tags.len() > limits::TAGS_MAX {
            return Err(TooMuch::Tags(spec.tags.len()));
        }
        if let Some(payload) = &self.payload {
            spec.payload.clone_from(payload);
        }
        Ok(spec)
    }
}

/// Facts with a patch laid over them.
fn laid_over(facts: Option<&RawJson>, patch: &Map<String, Value>) -> Result<RawJson, TooMuch> {
    let there = facts.and_then(|facts| serde_json::from_str(facts.as_str()).ok());
    let mut facts: Map<String, Value> = there.unwrap_or_default();
    lay_over(&mut facts, patch);
    let text = Value::Object(facts).to_string();
    if text.len() > limits::FACTS_BYTES_MAX {
        return Err(TooMuch::Facts(text.len()));
    }
    Ok(RawJson(Bytes::from(text)))
}

/// As a JSON merge patch (RFC 7396). Its depth is that of JSON that was taken in.
fn lay_over(there: &mut Map<String, Value>, patch: &Map<String, Value>) {
    for (name, value) in patch {
        match value {
            Value::Null => drop(there.remove(name)),
            Value::Object(inner) => {
                let entry = there.entry(name.clone()).or_insert(Value::Null);
                let mut below = match entry.take() {
                    Value::Object(below) => below,
                    _ => Map::new(),
                };
                lay_over(&mut below, inner);
                *entry = Value::Object(below);
            }
            value => drop(there.insert(name.clone(), value.clone())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_patch_sets_takes_away_and_goes_into_objects() {
        for (facts, patch, expected) in [
            (None, r#"{"a":1}"#, r#"{"a":1}"#),
            (
                Some(r#"{"a":1,"b":2}"#),
                r#"{"a":null,"c":3}"#,
                r#"{"b":2,"c":3}"#,
            ),
            (
                Some(r#"{"a":{"x":1,"y":2}}"#),
                r#"{"a":{"y":null,"z":[1]}}"#,
                r#"{"a":{"x":1,"z":[1]}}"#,
            ),
            (
                Some(r#"{"a":1}"#),
                r#"{"a":{"b":{"c":null,"d":1}}}"#,
                r#"{"a":{"b":{"d":1}}}"#,
            ),
        ] {
            let facts = facts.map(|text| RawJson::from(text.to_owned()));
            let patch: Map<String, Value> = serde_json::from_str(patch).expect("an object");
            let laid = laid_over(facts.as_ref(), &patch).expect("it is small");
            let value: Value = serde_json::from_str(laid.as_str()).expect("JSON");
            let expected: Value = serde_json::from_str(expected).expect("JSON");
            assert_eq!(value, expected);
        }
        let much = Value::from("x".repeat(limits::FACTS_BYTES_MAX));
        let patch = Map::from_iter([("a".to_owned(), much)]);
        assert!(matches!(laid_over(None, &patch), Err(TooMuch::Facts(_))));
    }
}

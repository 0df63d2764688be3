//! What is different between two bodies, pointer by pointer.

use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

/// Two versions of a resource, side by side.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = VersionDiff)]
pub struct DiffOut {
    /// The one version.
    pub from: u64,
    /// The other.
    pub to: u64,
    /// What is different, in the order of the bodies; none: they say the same.
    pub changes: Vec<Difference>,
}

/// One place that is different.
#[derive(Debug, Serialize, ToSchema, PartialEq)]
pub struct Difference {
    /// Where, as a JSON pointer.
    pointer: String,
    /// What stands there in the one; absent: nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Object, nullable = false)]
    from: Option<Value>,
    /// What stands there in the other; absent: nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Object, nullable = false)]
    to: Option<Value>,
}

/// What is different between two values. Their depth is that of JSON that was taken in.
pub fn differences(from: &Value, to: &Value) -> Vec<Difference> {
    let mut found = Vec::new();
    compare(String::new(), Some(from), Some(to), &mut found);
    found
}

fn compare(at: String, from: Option<&Value>, to: Option<&Value>, found: &mut Vec<Difference>) {
    match (from, to) {
        (Some(Value::Object(from)), Some(Value::Object(to))) => {
            let new = to.keys().filter(|name| !from.contains_key(*name));
            for name in from.keys().chain(new) {
                let at = format!("{at}/{}", name.replace('~', "~0").replace('/', "~1"));
                compare(at, from.get(name), to.get(name), found);
            }
        }
        (Some(Value::Array(from)), Some(Value::Array(to))) => {
            for place in 0..from.len().max(to.len()) {
                compare(
                    format!("{at}/{place}"),
                    from.get(place),
                    to.get(place),
                    found,
                );
            }
        }
        (from, to) if from == to => {}
        (from, to) => found.push(Difference {
            pointer: at,
            from: from.cloned(),
            to: to.cloned(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_different_is_told_where_it_stands_and_what_is_the_same_is_not() {
        let from = json!({"a": [1, {"b": 2, "c": 3}], "x/y": 1, "gone": true});
        let to = json!({"a": [1, {"b": 2, "c": 4}, 5], "x/y": 2, "new": []});
        let found = serde_json::to_value(differences(&from, &to)).expect("JSON");
        let expected = json!([
            {"pointer": "/a/1/c", "from": 3, "to": 4},
            {"pointer": "/a/2", "to": 5},
            {"pointer": "/gone", "from": true},
            {"pointer": "/x~1y", "from": 1, "to": 2},
            {"pointer": "/new", "to": []},
        ]);
        assert_eq!(found, expected);
        assert_eq!(differences(&from, &from), []);
    }
}

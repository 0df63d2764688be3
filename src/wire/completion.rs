//! What a receiver says at the URL that its request carried: `POST /v1/complete/{secret}`.

use utoipa::ToSchema;

use crate::task::outcome::{Failure, Outcome};
use crate::task::retry::DELAY_MAX;
use crate::task::spec::RawJson;
use crate::wire::decode::{Shape, decode_or_empty};
use crate::wire::leases;
use crate::wire::problem::Problem;
use crate::wire::time::Length;
use crate::wire::verbs::{self, ErrorBody};

const COMPLETION: Shape = Shape {
    fields: &[
        "result",
        "error",
        "retryable",
        "retry_after",
        "heartbeat",
        "checkpoint",
    ],
    not_built: &[],
};
const ENDS: [&str; 3] = ["result", "error", "heartbeat"];

/// What is said of the attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Told {
    /// It goes on.
    Heartbeat {
        /// How far it has got.
        checkpoint: Option<RawJson>,
    },
    /// It is over.
    Over(Outcome),
}

/// Reads the body; an empty one says that it is done.
///
/// # Errors
/// 400 when it is not JSON, 422 with all fields that are not valid.
pub fn told(bytes: &[u8]) -> Result<Told, Problem> {
    decode_or_empty(bytes, |node| {
        let body = node.object(&COMPLETION)?;
        if let Some(second) = ENDS.into_iter().filter(|name| body.has(name)).nth(1) {
            return body.refuse(second, "conflict", "only one of result, error, heartbeat");
        }
        if let Some(beats) = body.optional("heartbeat", |node| node.flag()) {
            let checkpoint = body.optional("checkpoint", leases::checkpoint);
            return match beats {
                true => Some(Told::Heartbeat { checkpoint }),
                false => body.refuse("heartbeat", "invalid_value", "must be true, or left out"),
            };
        }
        if body.has("checkpoint") {
            return body.refuse("checkpoint", "conflict", "only goes with `heartbeat`");
        }
        if !body.has("error") {
            for name in ["retryable", "retry_after"] {
                if body.has(name) {
                    return body.refuse(name, "conflict", "only goes with `error`");
                }
            }
            let result = match body.has("result") {
                true => Some(body.required("result", verbs::result)?.0),
                false => None,
            };
            return Some(Told::Over(Outcome::Succeeded {
                result,
                result_dropped: false,
            }));
        }
        let error = body.required("error", verbs::error);
        let retryable = body.optional("retryable", |node| node.flag());
        let retry_after = body.optional("retry_after", |node| node.length(0..=DELAY_MAX.0));
        let error = error?;
        Some(Told::Over(Outcome::Failed(Failure {
            code: error.code,
            message: error.message,
            retryable: retryable.unwrap_or(true),
            retry_after,
            in_doubt: false,
        })))
    })
}

/// Body of `POST /v1/complete/{secret}`: at most one of `result`, `error`, `heartbeat`.
#[derive(Debug, ToSchema)]
pub struct CompleteLater {
    /// It is done, and this is what it gave: any JSON of at most 64 KiB. Without anything it is done, too.
    pub result: Option<serde_json::Value>,
    /// It failed.
    pub error: Option<ErrorBody>,
    /// Whether another attempt may help.
    #[schema(default = true)]
    pub retryable: Option<bool>,
    /// The next attempt not sooner than after this.
    pub retry_after: Option<Length>,
    /// `true`: it goes on, and has its `complete_by` anew.
    pub heartbeat: Option<bool>,
    /// With `heartbeat`: how far the work has got, any JSON of at most 16 KiB, for the next attempt.
    pub checkpoint: Option<serde_json::Value>,
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test may")]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::wire::tests::{properties, refused};

    #[test]
    fn the_documented_fields_are_those_that_are_read() {
        assert_eq!(properties::<CompleteLater>(), COMPLETION.fields);
    }

    fn read(body: Value) -> Result<Told, Problem> {
        told(body.to_string().as_bytes())
    }

    #[test]
    fn a_receiver_says_that_it_is_done_failed_or_at_work_and_one_of_them() {
        let done = |result: Option<&'static str>| {
            Told::Over(Outcome::Succeeded {
                result: result.map(|json| json.as_bytes().into()),
                result_dropped: false,
            })
        };
        assert_eq!(told(b"").unwrap(), done(None));
        assert_eq!(read(json!({"result": [1]})).unwrap(), done(Some("[1]")));
        let checkpoint = Some(RawJson::from("{\"page\":7}".to_owned()));
        for (body, checkpoint) in [
            (json!({"heartbeat": true}), None),
            (
                json!({"heartbeat": true, "checkpoint": {"page": 7}}),
                checkpoint,
            ),
        ] {
            assert_eq!(read(body).unwrap(), Told::Heartbeat { checkpoint });
        }
        let failed = json!({"error": {"code": "no_stock", "message": "gone"}, "retryable": false});
        let Told::Over(Outcome::Failed(failure)) = read(failed).unwrap() else {
            panic!("it failed");
        };
        assert_eq!(
            (failure.code.as_str(), failure.retryable),
            ("no_stock", false)
        );
        for (body, pointer, code) in [
            (
                json!({"result": 1, "heartbeat": true}),
                "/heartbeat",
                "conflict",
            ),
            (json!({"heartbeat": false}), "/heartbeat", "invalid_value"),
            (json!({"checkpoint": 7}), "/checkpoint", "conflict"),
            (
                json!({"result": 1, "retryable": true}),
                "/retryable",
                "conflict",
            ),
            (json!({"error": {"code": "x"}}), "/error/message", "missing"),
            (json!({"token": 1}), "/token", "unknown_field"),
        ] {
            assert_eq!(
                refused(read(body.clone())),
                [(pointer.to_owned(), code)],
                "{body}"
            );
        }
    }
}

//! What went wrong, as a caller is told: RFC 9457 problem details with a stable code.
//!
//! ```text
//!  {"type": "urn:duetime:problem:invalid", "title": "not valid", "status": 422, "code": "invalid",
//!   "detail": "`/delay` is not an ISO 8601 duration such as PT30M, P1DT12H or PT0.25S",
//!   "errors": [{"pointer": "/delay", "code": "invalid_duration", "detail": "is not an ISO 8601 …"}]}
//! ```
//!
//! Programs look at `code`, which never changes; people read `detail`, which may. Every 422 names its fields in
//! `errors`, each by a JSON pointer into the body (for a query, `/` and the parameter's name). A field's `detail`
//! continues the field's name: "`/delay` *is not* …".

use std::fmt;

use serde::{Serialize, Serializer};
use utoipa::ToSchema;

use crate::ids::TaskId;
use crate::task::State;

macro_rules! codes {
    ($($(#[$doc:meta])* $Name:ident = $name:literal, $status:literal, $title:literal;)*) => {
        /// Stable codes of problems: the one table of code, HTTP status and title.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub enum Code {
            $($(#[$doc])* $Name,)*
        }

        impl Code {
            /// All codes.
            pub const ALL: &[Self] = &[$(Self::$Name),*];

            /// The code in the API.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$Name => $name,)* }
            }

            /// The HTTP status that goes with it.
            pub const fn status(self) -> u16 {
                match self { $(Self::$Name => $status,)* }
            }

            /// What it means, in a few words.
            pub const fn title(self) -> &'static str {
                match self { $(Self::$Name => $title,)* }
            }
        }
    };
}
codes! {
    /// The body is no JSON text.
    NotJson = "not_json", 400, "not JSON";
    /// The request can't be read for another reason.
    Malformed = "malformed", 400, "malformed request";
    /// The request lacks what it needs to be let in.
    Forbidden = "forbidden", 403, "forbidden";
    /// No such task, topic, …
    NotFound = "not_found", 404, "not found";
    /// No such path.
    RouteNotFound = "route_not_found", 404, "no such route";
    /// The path does not take this method.
    MethodNotAllowed = "method_not_allowed", 405, "method not allowed";
    /// The request did not arrive in time.
    RequestTimeout = "request_timeout", 408, "request timeout";
    /// A live task has the key.
    Exists = "exists", 409, "exists already";
    /// The task's state does not allow it.
    IllegalState = "illegal_state", 409, "not in this state";
    /// The token is not that of the present attempt.
    StaleToken = "stale_token", 409, "stale token";
    /// The same request is still being worked on.
    InProgress = "in_progress", 409, "in progress";
    /// What a bulk job did can't be taken back.
    NotUndoable = "not_undoable", 409, "can't be undone";
    /// Something uses what is to be deleted.
    InUse = "in_use", 409, "in use";
    /// There is only one version.
    NoVersionBefore = "no_version_before", 409, "no version before";
    /// The body is larger than allowed.
    TooLarge = "too_large", 413, "too large";
    /// The body's media type is not taken.
    UnsupportedMediaType = "unsupported_media_type", 415, "unsupported media type";
    /// Well-formed, but some fields are not valid.
    Invalid = "invalid", 422, "not valid";
    /// The idempotency key came with another body before.
    IdempotencyMismatch = "idempotency_mismatch", 422, "idempotency key used for another request";
    /// Part of the contract, but not built yet.
    NotSupported = "not_supported", 422, "not built yet";
    /// A filter that would take in everything.
    EmptyFilter = "empty_filter", 422, "empty filter";
    /// More than the caller's share.
    TooManyRequests = "too_many_requests", 429, "too many requests";
    /// More cancels stand for creates still to come than are kept.
    TooManyTombstones = "too_many_tombstones", 429, "too many tombstones";
    /// A defect of ours.
    Internal = "internal", 500, "internal error";
    /// More than the service can do at present.
    Overloaded = "overloaded", 503, "overloaded";
    /// The task's shard is being restarted.
    ShardUnavailable = "shard_unavailable", 503, "shard unavailable";
    /// The topic is still being moved on from its last pause.
    Thawing = "thawing", 503, "thawing";
    /// The service is being stopped.
    ShuttingDown = "shutting_down", 503, "shutting down";
    /// The disk is full: nothing new is taken in, what is there can end.
    StorageFull = "storage_full", 507, "storage full";
}

/// What is wrong with one field.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, ToSchema)]
pub struct FieldError {
    /// JSON pointer (RFC 6901) to the field; empty for the body as a whole.
    #[schema(example = "/delay")]
    pub pointer: String,
    /// Stable code.
    #[schema(value_type = String, example = "invalid_duration")]
    pub code: &'static str,
    /// What is wrong and what would be right; continues the field's name.
    pub detail: String,
}

/// Why a request was refused.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Problem {
    /// Stable code; status and title follow from it.
    pub code: Code,
    /// What happened, for a person.
    pub detail: String,
    /// The fields in question.
    pub errors: Vec<FieldError>,
    /// When asking again may help, in seconds; for `Retry-After` too.
    pub retry_after_s: Option<u32>,
    /// The task in question.
    pub id: Option<TaskId>,
    /// The state that it is in.
    pub state: Option<State>,
}

impl Problem {
    /// A problem without fields.
    pub fn new(code: Code, detail: impl Into<String>) -> Self {
        Self {
            code,
            detail: detail.into(),
            errors: Vec::new(),
            retry_after_s: None,
            id: None,
            state: None,
        }
    }

    /// A 422 for these fields, of which there must be one; `more` were found beyond them.
    pub fn of_fields(errors: Vec<FieldError>, more: usize) -> Self {
        let not_built = errors
            .iter()
            .all(|error| error.code == Code::NotSupported.name());
        let code = if not_built {
            Code::NotSupported
        } else {
            Code::Invalid
        };
        let detail = errors.first().map_or_else(String::new, |first| {
            let whole = first.pointer.is_empty();
            let place = if whole {
                "the body".to_owned()
            } else {
                format!("`{}`", first.pointer)
            };
            match errors.len() - 1 + more {
                0 => format!("{place} {}", first.detail),
                others => format!("{place} {} (and {others} more)", first.detail),
            }
        });
        Self {
            errors,
            ..Self::new(code, detail)
        }
    }

    /// A 422 for one field.
    pub fn of_field(
        pointer: impl Into<String>,
        code: &'static str,
        detail: impl Into<String>,
    ) -> Self {
        let error = FieldError {
            pointer: pointer.into(),
            code,
            detail: detail.into(),
        };
        Self::of_fields(vec![error], 0)
    }

    /// With the time after which asking again may help.
    #[must_use]
    pub fn retry_after_s(mut self, seconds: u32) -> Self {
        self.retry_after_s = Some(seconds);
        self
    }

    /// With the task in question.
    #[must_use]
    pub fn id(mut self, id: TaskId) -> Self {
        self.id = Some(id);
        self
    }

    /// With the state in question.
    #[must_use]
    pub fn state(mut self, state: State) -> Self {
        self.state = Some(state);
        self
    }

    /// Its HTTP status.
    pub fn status(&self) -> u16 {
        self.code.status()
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code.name(), self.detail)
    }
}

impl std::error::Error for Problem {}

/// A problem as it stands on the wire (`application/problem+json`).
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Problem)]
pub struct ProblemBody<'a> {
    /// Names the kind of problem.
    #[serde(rename = "type")]
    #[schema(example = "urn:duetime:problem:invalid")]
    kind: String,
    /// The kind in a few words.
    #[schema(value_type = String)]
    title: &'static str,
    /// The HTTP status.
    status: u16,
    /// What happened, for a person.
    detail: &'a str,
    /// Stable code.
    #[schema(value_type = String, example = "invalid")]
    code: &'static str,
    /// The fields in question.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    #[schema(value_type = Vec<FieldError>, required = false)]
    errors: &'a [FieldError],
    /// When asking again may help, in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    retry_after_s: Option<u32>,
    /// The task in question.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    id: Option<String>,
    /// The state that it is in.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, nullable = false)]
    state: Option<&'static str>,
}

impl Serialize for Problem {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        ProblemBody {
            kind: format!("urn:duetime:problem:{}", self.code.name()),
            title: self.code.title(),
            status: self.status(),
            detail: &self.detail,
            code: self.code.name(),
            errors: &self.errors,
            retry_after_s: self.retry_after_s,
            id: self.id.map(|id| id.to_string()),
            state: self.state.map(State::name),
        }
        .serialize(serializer)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn codes_are_snake_case_and_unique() {
        let mut names: Vec<&str> = Code::ALL.iter().map(|code| code.name()).collect();
        assert!(
            names
                .iter()
                .all(|name| name.bytes().all(|b| b == b'_' || b.is_ascii_lowercase()))
        );
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Code::ALL.len());
    }

    #[test]
    fn a_problem_shows_type_title_status_detail_code_and_fields() {
        let problem = Problem::of_field("/delay", "invalid_duration", "is not a duration");
        assert_eq!(
            serde_json::to_value(&problem).ok(),
            Some(json!({
                "type": "urn:duetime:problem:invalid", "title": "not valid", "status": 422,
                "detail": "`/delay` is not a duration", "code": "invalid",
                "errors": [{"pointer": "/delay", "code": "invalid_duration", "detail": "is not a duration"}],
            }))
        );
    }

    #[test]
    fn what_is_not_given_is_left_out() {
        let problem =
            Problem::new(Code::IllegalState, "a task that is dead can't pause").state(State::Dead);
        let shown = serde_json::to_value(&problem).unwrap_or_default();
        assert_eq!(shown["state"], "dead");
        assert!(shown.get("errors").is_none() && shown.get("retry_after_s").is_none());
    }

    #[test]
    fn only_fields_that_are_not_built_yet_make_it_not_supported() {
        let error = |code| FieldError {
            pointer: "/x".into(),
            code,
            detail: "y".into(),
        };
        let code = |errors| Problem::of_fields(errors, 0).code;
        assert_eq!(code(vec![error("not_supported")]), Code::NotSupported);
        assert_eq!(
            code(vec![error("not_supported"), error("missing")]),
            Code::Invalid
        );
        assert_eq!(
            Problem::of_fields(vec![error("a"), error("b")], 3).detail,
            "`/x` y (and 4 more)"
        );
    }
}

//! What leaves: JSON, problems, and how the engine's refusals become problems.

use std::io::ErrorKind;

use actix_web::http::StatusCode;
use actix_web::http::header::{CONTENT_TYPE, HeaderName, HeaderValue, LOCATION, RETRY_AFTER};
use actix_web::{HttpResponse, HttpResponseBuilder};
use bytes::Bytes;
use serde::Serialize;

use crate::engine::EngineError;
use crate::engine::bulk::BulkRefused;
use crate::engine::registry::RegistryError;
use crate::engine::registry::kind::Kind;
use crate::engine::what_if::WhatIfRefused;
use crate::limits;
use crate::shard::messages::VerbRefused;
use crate::shard::router::NoAnswer;
use crate::store::StoreError;
use crate::task::event::Refusal;
use crate::wire::problem::{Code, Problem};

/// How soon to come back when a shard is overloaded or being restarted, in seconds.
const RETRY_SOON_S: u32 = 1;
/// How soon to come back when something has to run out first, in seconds.
const RETRY_LATER_S: u32 = 60;

/// An answer before it becomes a response: it can be kept for a re-sent request.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The HTTP status.
    pub status: u16,
    /// The body, JSON.
    pub body: Bytes,
    /// Where a new task is.
    pub location: Option<String>,
    /// When to come back.
    pub retry_after_s: Option<u32>,
    /// It is the answer to a request that was sent again.
    pub replayed: bool,
    /// Sent again, the request may fare better, in whole or in part: the answer is not kept.
    pub is_passing: bool,
}

impl Answer {
    /// JSON with a status.
    pub fn json(status: u16, body: &impl Serialize) -> Self {
        match serde_json::to_vec(body) {
            Ok(body) => Self::of_bytes(status, Bytes::from(body)),
            Err(error) => unwritable(error).into(),
        }
    }

    /// A status with JSON that is written already.
    pub fn of_bytes(status: u16, body: Bytes) -> Self {
        Self {
            status,
            body,
            location: None,
            retry_after_s: None,
            replayed: false,
            is_passing: is_passing_status(status),
        }
    }

    /// The response.
    pub fn respond(self) -> HttpResponse {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let kind = if self.status >= 400 {
            "application/problem+json"
        } else {
            "application/json"
        };
        let mut response = HttpResponseBuilder::new(status);
        response.insert_header((CONTENT_TYPE, HeaderValue::from_static(kind)));
        if let Some(location) = self.location {
            response.insert_header((LOCATION, location));
        }
        if let Some(seconds) = self.retry_after_s {
            response.insert_header((RETRY_AFTER, seconds.to_string()));
        }
        if self.replayed {
            response.insert_header((
                HeaderName::from_static("idempotency-replayed"),
                HeaderValue::from_static("true"),
            ));
        }
        response.body(self.body)
    }
}

impl From<Problem> for Answer {
    fn from(problem: Problem) -> Self {
        // A problem is texts and numbers, which always become JSON.
        let body = serde_json::to_vec(&problem).unwrap_or_default();
        Self {
            retry_after_s: problem.retry_after_s,
            ..Self::of_bytes(problem.status(), Bytes::from(body))
        }
    }
}

/// Whether a request that is answered so may fare better when it is sent again.
pub fn is_passing_status(status: u16) -> bool {
    status >= 500 || status == 429
}

/// What the caller is told when the answer can't be written as JSON, which is a defect.
pub fn unwritable(error: serde_json::Error) -> Problem {
    tracing::error!(%error, "an answer could not be written as JSON");
    Problem::new(Code::Internal, "the answer could not be written")
}

/// The code for a name that nothing of its kind has.
fn unknown(kind: Kind) -> &'static str {
    match kind {
        Kind::Calendar => "unknown_calendar",
        Kind::Schedule => "unknown_schedule",
        Kind::Rule => "unknown_rule",
        Kind::Rollout => "unknown_rollout",
    }
}

/// What the caller is told when the engine did not do it.
pub fn problem_of(error: &EngineError) -> Problem {
    let says = |code| Problem::new(code, error.to_string());
    match error {
        EngineError::NoAnswer(NoAnswer::Overloaded(_))
        | EngineError::Registry(RegistryError::Overloaded) => {
            says(Code::Overloaded).retry_after_s(RETRY_SOON_S)
        }
        EngineError::NoAnswer(NoAnswer::Down(_) | NoAnswer::Unknown(_)) => {
            says(Code::ShardUnavailable).retry_after_s(RETRY_SOON_S)
        }
        EngineError::Refused(refused) => refusal(refused),
        EngineError::Exists(id) => says(Code::Exists).id(*id),
        EngineError::StorageFull(_) => says(Code::StorageFull).retry_after_s(RETRY_LATER_S),
        EngineError::TooMuch(_) => Problem::of_field("", Code::TooLarge.name(), error.to_string()),
        EngineError::Rule(failed) => Problem::of_field("/facts", "rule_failed", failed.to_string()),
        EngineError::ShuttingDown => says(Code::ShuttingDown).retry_after_s(RETRY_SOON_S),
        EngineError::Command { at, refused } => {
            let pointer = format!("{at}{}", refused.pointer());
            Problem::of_field(pointer, refused.code(), refused.to_string())
        }
        EngineError::WhatIf(refused) => what_if_refused(refused),
        EngineError::Bulk(refused) => match refused {
            BulkRefused::TooMany => says(Code::TooManyRequests).retry_after_s(RETRY_LATER_S),
            BulkRefused::Unknown(_) => says(Code::NotFound),
            BulkRefused::IllegalState { .. } => says(Code::IllegalState),
            BulkRefused::NotUndoable(_) => says(Code::NotUndoable),
        },
        EngineError::TooManyTopics | EngineError::Registry(RegistryError::TooManyTopics) => {
            Problem::of_field("/topic", "too_many_topics", error.to_string())
        }
        EngineError::Registry(RegistryError::UnknownTopic(_)) | EngineError::UnknownShard(_) => {
            says(Code::NotFound)
        }
        EngineError::Registry(RegistryError::BodyTooLarge { bytes }) => {
            let most = limits::RESOURCE_BODY_BYTES_MAX;
            let detail = format!("has {bytes} bytes, at most {most} are allowed");
            Problem::of_field("", Code::TooLarge.name(), detail)
        }
        EngineError::Registry(
            RegistryError::InUse { .. } | RegistryError::ResourceInUse { .. },
        ) => says(Code::InUse),
        EngineError::Registry(RegistryError::Unknown { .. }) => says(Code::NotFound),
        EngineError::Registry(RegistryError::TooMany(_)) => {
            Problem::of_field("", "too_many", error.to_string())
        }
        EngineError::Registry(RegistryError::NeedsUnknown { kind, .. }) => {
            Problem::of_field("", unknown(*kind), error.to_string())
        }
        EngineError::Registry(RegistryError::Thawing(_)) => {
            says(Code::Thawing).retry_after_s(RETRY_SOON_S)
        }
        EngineError::Registry(RegistryError::Down) => {
            says(Code::ShardUnavailable).retry_after_s(RETRY_SOON_S)
        }
        EngineError::Registry(RegistryError::Storage(StoreError::Io { source, .. }))
            if source.kind() == ErrorKind::StorageFull =>
        {
            let detail = "the disk is full, and the registry could not be written; \
                          once there is space again, look whether the change is there, and ask again if not";
            Problem::new(Code::StorageFull, detail).retry_after_s(RETRY_LATER_S)
        }
        EngineError::Registry(RegistryError::Storage { .. }) => {
            tracing::error!(%error, "registry");
            Problem::new(
                Code::Internal,
                "the registry could not be written; see the service's log",
            )
        }
    }
}

/// What the caller is told when a what-if is not played.
fn what_if_refused(refused: &WhatIfRefused) -> Problem {
    let (at, code) = match refused {
        WhatIfRefused::Busy => {
            let detail = refused.to_string();
            return Problem::new(Code::TooManyRequests, detail).retry_after_s(RETRY_SOON_S);
        }
        WhatIfRefused::NoSnapshot(_) => {
            let detail = refused.to_string();
            return Problem::new(Code::ShardUnavailable, detail).retry_after_s(RETRY_SOON_S);
        }
        WhatIfRefused::TooManyTasks => ("/filter", "too_many"),
        WhatIfRefused::TooLong => ("/filter", "too_long"),
        WhatIfRefused::NoTime | WhatIfRefused::TooFar => ("/until", "out_of_range"),
        WhatIfRefused::Past => ("/from", "out_of_range"),
        WhatIfRefused::Given { at, .. } => (at.as_str(), "unknown_calendar"),
    };
    Problem::of_field(at, code, refused.to_string())
}

/// What the caller is told when a task's state does not allow it.
pub fn refusal(refused: &VerbRefused) -> Problem {
    let says = |code| Problem::new(code, refused.to_string());
    match refused {
        VerbRefused::NotFound => says(Code::NotFound),
        VerbRefused::Exists(id) => says(Code::Exists).id(*id),
        VerbRefused::TooManyTombstones(_) => {
            says(Code::TooManyTombstones).retry_after_s(RETRY_LATER_S)
        }
        VerbRefused::Refused(Refusal::IllegalState { state, .. }) => {
            says(Code::IllegalState).state(*state)
        }
        VerbRefused::Refused(Refusal::StaleToken { .. }) => says(Code::StaleToken),
        VerbRefused::Refused(Refusal::ChangedMeanwhile) => says(Code::InProgress),
        VerbRefused::Damaged(_) => says(Code::Internal),
    }
}

//! What becomes of a leased task: what the work gives back, and what is said of it to the service.

use std::error::Error;
use std::time::Duration;

use bytes::Bytes;
use serde::Serialize;
use serde_json::json;
use serde_json::value::{RawValue, to_raw_value};

use crate::causes::chain;
use crate::client::call::Body;
use crate::clock::DurationMs;
use crate::ids::AttemptToken;
use crate::limits::RESULT_BYTES_MAX;
use crate::task::duration;
use crate::task::history::note;

/// Why a task's work is not done: it failed, or it is too early.
///
/// Any error becomes a failure with the code `error` that another attempt may mend, so `?` works in the work.
#[derive(Clone, PartialEq, Debug)]
pub enum NotDone {
    /// It failed. The task's retry policy says when it is tried again.
    Failed {
        /// Stable code, for `retry.on` and for people.
        code: String,
        /// What happened.
        message: String,
        /// Whether another attempt may help; if not, the task is dead.
        retryable: bool,
        /// The next attempt not sooner than after this.
        retry_after: Option<Duration>,
    },
    /// Later, please: after this. Uses no attempt.
    Snooze(Duration),
}

impl NotDone {
    /// A failure that another attempt may mend.
    pub fn failed(code: impl Into<String>, message: impl Into<String>) -> Self {
        Self::Failed {
            code: code.into(),
            message: message.into(),
            retryable: true,
            retry_after: None,
        }
    }

    /// A failure for good: the task is dead.
    pub fn for_good(code: impl Into<String>, message: impl Into<String>) -> Self {
        Self::Failed {
            code: code.into(),
            message: message.into(),
            retryable: false,
            retry_after: None,
        }
    }

    /// Later, please; uses no attempt.
    pub fn snooze(delay: Duration) -> Self {
        Self::Snooze(delay)
    }

    /// The same failure, with the next attempt not sooner than after this.
    #[must_use]
    pub fn not_before(mut self, wait: Duration) -> Self {
        if let Self::Failed { retry_after, .. } = &mut self {
            *retry_after = Some(wait);
        }
        self
    }
}

impl<E: Error + 'static> From<E> for NotDone {
    fn from(error: E) -> Self {
        Self::failed("error", chain(&error))
    }
}

/// What is said of an attempt.
#[derive(Debug)]
pub(super) enum Said {
    Complete(Option<Box<RawValue>>),
    NotDone(NotDone),
}

impl Said {
    /// What the work gave back, as it is said. A result that is too large is left out: the work is done all the same.
    pub(super) fn of(done: Result<impl Serialize, NotDone>) -> Self {
        let result = match done {
            Ok(result) => to_raw_value(&result),
            Err(not_done) => return Self::NotDone(not_done),
        };
        match result {
            Ok(result) if result.get() == "null" => Self::Complete(None),
            Ok(result) if result.get().len() > RESULT_BYTES_MAX => {
                let bytes = result.get().len();
                tracing::warn!(
                    bytes,
                    "a result is larger than 64 KiB and was left out; its task is complete"
                );
                Self::Complete(None)
            }
            Ok(result) => Self::Complete(Some(result)),
            Err(error) => Self::NotDone(NotDone::for_good("result", chain(&error))),
        }
    }

    /// The verb, and its body.
    pub(super) fn body(&self, token: AttemptToken) -> (&'static str, Bytes) {
        let body = Body::default().with("token", &Some(token.0));
        let length = |length: Duration| duration::format(DurationMs::at_least(length));
        let (verb, body) = match self {
            Self::Complete(result) => ("complete", body.with("result", result)),
            Self::NotDone(NotDone::Snooze(delay)) => {
                ("snooze", body.with("delay", &Some(length(*delay))))
            }
            Self::NotDone(NotDone::Failed {
                code,
                message,
                retryable,
                retry_after,
            }) => {
                let error = json!({"code": code, "message": note(message)});
                let body = body
                    .with("error", &Some(error))
                    .with("retryable", &Some(retryable))
                    .with("retry_after", &retry_after.map(length));
                ("fail", body)
            }
        };
        (verb, body.bytes())
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test may")]
mod tests {
    use super::*;
    use crate::task::history::ErrorNote;
    use crate::task::spec::RawJson;
    use crate::wire::leases::{LeaseReport, LeaseVerb, Says};
    use crate::wire::tests::WIDE;

    /// As the service reads it.
    fn read(done: Result<impl Serialize, NotDone>) -> Says {
        let (verb, body) = Said::of(done).body(AttemptToken(17));
        let read = LeaseVerb::parse(verb).unwrap().decode(&body, &WIDE);
        let LeaseReport { token, says } = read.unwrap();
        assert_eq!(token, AttemptToken(17));
        says
    }

    fn failed(code: &str, message: &str, retryable: bool, retry_after: Option<u64>) -> Says {
        Says::Fail {
            error: ErrorNote {
                code: code.into(),
                message: message.into(),
            },
            retryable,
            retry_after: retry_after.map(DurationMs),
        }
    }

    const DONE: Result<(), NotDone> = Ok(());

    #[test]
    fn each_end_of_the_work_is_said_as_the_service_reads_it() {
        let result = |text: &str| Says::Complete {
            result: Some(RawJson::from(text.to_owned())),
        };
        assert_eq!(read(DONE), Says::Complete { result: None });
        assert_eq!(
            read(Ok(json!({"closed": [1, 2]}))),
            result(r#"{"closed":[1,2]}"#)
        );
        assert_eq!(
            read(Ok(u64::MAX)),
            result("18446744073709551615"),
            "no digit is lost"
        );
        let not_done = |not_done| read(DONE.and(Err::<(), _>(not_done)));
        assert_eq!(
            not_done(NotDone::failed("busy", "come back").not_before(Duration::from_micros(1500))),
            failed("busy", "come back", true, Some(2))
        );
        assert_eq!(
            not_done(NotDone::for_good("gone", "never")),
            failed("gone", "never", false, None)
        );
        assert_eq!(
            not_done(NotDone::snooze(Duration::ZERO)),
            Says::Snooze {
                delay: DurationMs(0)
            }
        );
    }

    #[test]
    fn any_error_is_a_failure_with_its_causes() {
        let work = || -> Result<u32, NotDone> { Ok("seven".parse::<u32>()?) };
        let words = "invalid digit found in string";
        assert_eq!(read(work()), failed("error", words, true, None));
    }

    #[test]
    fn a_result_that_is_too_large_is_left_out_and_one_that_is_no_json_fails_for_good() {
        let large = "x".repeat(RESULT_BYTES_MAX);
        assert_eq!(read(Ok(large)), Says::Complete { result: None });
        let no_json = std::collections::HashMap::from([((1, 2), 3)]);
        let Says::Fail {
            error, retryable, ..
        } = read(Ok(no_json))
        else {
            panic!("it fails");
        };
        assert_eq!((error.code.as_str(), retryable), ("result", false));
    }
}

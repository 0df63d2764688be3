//! What can be asked of one task, beside creating it: the bodies of `POST /v1/tasks/{id}/{verb}` and of the verbs in
//! a batch, as one enum.

use utoipa::ToSchema;

use crate::clock::DurationMs;
use crate::ids::AttemptToken;
use crate::limits;
use crate::task::When;
use crate::task::history::{ErrorNote, note};
use crate::task::model::PauseClock;
use crate::task::spec::RawJson;
use crate::wire::decode::{NO_FIELDS, Node, Object, Shape, decode, decode_or_empty};
use crate::wire::due::{self, InLimits};
use crate::wire::problem::Problem;
use crate::wire::retry::CODE_BYTES_MAX;
use crate::wire::time::{Length, Time};

/// Another due time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NewTime {
    /// This one.
    To(When),
    /// Later than the present one by this.
    ExtendBy(DurationMs),
}

/// A verb with what it needs.
#[derive(Clone, PartialEq, Debug)]
pub enum Verb {
    /// Call it off.
    Cancel {
        /// Why; at most [`limits::NOTE_BYTES_MAX`], the rest is cut.
        reason: Option<String>,
        /// When the key has no live task: a create within this time is cancelled at once.
        tombstone_for: Option<DurationMs>,
    },
    /// Hold it.
    Pause {
        /// What becomes of the time left.
        clock: PauseClock,
    },
    /// Let it go on.
    Resume,
    /// Move its due time.
    Reschedule(NewTime),
    /// Make it due now.
    RunNow,
    /// End it as done.
    Complete {
        /// What it gave.
        result: Option<RawJson>,
        /// Only if this attempt is still the one.
        token: Option<AttemptToken>,
    },
    /// End it as failed.
    Fail {
        /// What was wrong.
        error: ErrorNote,
    },
    /// Run it again.
    Replay,
    /// Settle a dead one.
    Resolve {
        /// It had succeeded.
        succeeded: bool,
        /// What the person knows; cut like a reason.
        note: String,
    },
    /// Drop its record.
    Discard,
}

macro_rules! verbs {
    ($($Name:ident = $path:literal, $op:literal, $shape:expr;)*) => {
        /// The name of a verb.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[expect(missing_docs, reason = "each is the verb of that name")]
        pub enum VerbName {
            $($Name,)*
        }

        impl VerbName {
            /// All verbs.
            pub const ALL: &[Self] = &[$(Self::$Name),*];

            /// As it stands in a path: `run-now`.
            pub const fn in_path(self) -> &'static str {
                match self { $(Self::$Name => $path,)* }
            }

            /// As it stands in a batch: `run_now`.
            pub const fn in_batch(self) -> &'static str {
                match self { $(Self::$Name => $op,)* }
            }

            /// The fields of its body.
            pub(super) const fn shape(self) -> &'static Shape {
                match self { $(Self::$Name => $shape,)* }
            }
        }
    };
}
verbs! {
    Cancel = "cancel", "cancel", &CANCEL;
    Pause = "pause", "pause", &PAUSE;
    Resume = "resume", "resume", &NO_FIELDS;
    Reschedule = "reschedule", "reschedule", &RESCHEDULE;
    RunNow = "run-now", "run_now", &NO_FIELDS;
    Complete = "complete", "complete", &COMPLETE;
    Fail = "fail", "fail", &FAIL;
    Replay = "replay", "replay", &NO_FIELDS;
    Resolve = "resolve", "resolve", &RESOLVE;
    Discard = "discard", "discard", &NO_FIELDS;
}

const CANCEL: Shape = Shape {
    fields: &["reason", "tombstone_for"],
    not_built: &[],
};
const PAUSE: Shape = Shape {
    fields: &["clock"],
    not_built: &[],
};
const RESCHEDULE: Shape = Shape {
    fields: &["due_at", "tz", "delay", "extend_by"],
    not_built: &[],
};
const COMPLETE: Shape = Shape {
    fields: &["result", "token"],
    not_built: &[],
};
const FAIL: Shape = Shape {
    fields: &["error"],
    not_built: &[],
};
const ERROR: Shape = Shape {
    fields: &["code", "message"],
    not_built: &[],
};
const RESOLVE: Shape = Shape {
    fields: &["outcome", "note"],
    not_built: &[],
};

pub(super) const CLOCKS: [(&str, PauseClock); 2] =
    [("keep", PauseClock::Keep), ("freeze", PauseClock::Freeze)];

impl VerbName {
    /// The verb with that name in a path.
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL
            .iter()
            .copied()
            .find(|verb| verb.in_path() == word)
    }

    /// Reads the verb's body; an empty one counts as `{}`.
    ///
    /// # Errors
    /// 400 when it is not JSON, 422 with all fields that are not valid.
    pub fn decode(self, bytes: &[u8], limits: &InLimits) -> Result<Verb, Problem> {
        decode_or_empty(bytes, |node| self.read(&node.object(self.shape())?, limits))
    }

    /// Reads the verb's fields out of an object that has them, perhaps among others.
    pub(super) fn read(self, body: &Object<'_, '_>, limits: &InLimits) -> Option<Verb> {
        Some(match self {
            Self::Cancel => Verb::Cancel {
                reason: body.optional("reason", kept_note),
                tombstone_for: body.optional("tombstone_for", |node| {
                    node.length(1..=limits::TOMBSTONE_MS_MAX)
                }),
            },
            Self::Pause => Verb::Pause {
                clock: pause_clock(body),
            },
            Self::Resume => Verb::Resume,
            Self::Reschedule => Verb::Reschedule(new_time(body, limits)?),
            Self::RunNow => Verb::RunNow,
            Self::Complete => Verb::Complete {
                result: body.optional("result", result),
                token: body.optional("token", token),
            },
            Self::Fail => Verb::Fail {
                error: body.required("error", error)?,
            },
            Self::Replay => Verb::Replay,
            Self::Resolve => {
                let outcome = body.required("outcome", |node| {
                    node.word(&[("succeeded", true), ("failed", false)])
                });
                let note = body.required("note", kept_note);
                Verb::Resolve {
                    succeeded: outcome?,
                    note: note?,
                }
            }
            Self::Discard => Verb::Discard,
        })
    }
}

/// Reads the body of a topic's pause: `{clock?}`, or nothing.
///
/// # Errors
/// 400, 422.
pub fn topic_pause(bytes: &[u8]) -> Result<PauseClock, Problem> {
    decode_or_empty(bytes, |node| Some(pause_clock(&node.object(&PAUSE)?)))
}

/// Reads the body of something that takes none: `{}`, or nothing.
///
/// # Errors
/// 400, 422.
pub fn nothing(bytes: &[u8]) -> Result<(), Problem> {
    decode_or_empty(bytes, |node| node.object(&NO_FIELDS).map(drop))
}

fn pause_clock(body: &Object<'_, '_>) -> PauseClock {
    body.optional("clock", |node| node.word(&CLOCKS))
        .unwrap_or_default()
}

fn new_time(body: &Object<'_, '_>, limits: &InLimits) -> Option<NewTime> {
    match body.one_of(&["due_at", "delay", "extend_by"])? {
        "extend_by" if body.has("tz") => body.refuse("tz", "conflict", "only goes with `due_at`"),
        "extend_by" => body
            .required("extend_by", |node| due::delay(node, limits))
            .map(NewTime::ExtendBy),
        _ => due::when(body, limits).map(NewTime::To),
    }
}

/// Reads a result.
pub(super) fn result(node: Node<'_, '_>) -> Option<RawJson> {
    node.raw(limits::RESULT_BYTES_MAX)
}

/// Reads a fencing number.
pub(super) fn token(node: Node<'_, '_>) -> Option<AttemptToken> {
    node.whole(0..=u64::MAX).map(AttemptToken)
}

/// Reads `{code, message}`.
pub(super) fn error(node: Node<'_, '_>) -> Option<ErrorNote> {
    let body = node.object(&ERROR)?;
    let code = body.required("code", |node| node.line(CODE_BYTES_MAX));
    let message = body.required("message", kept_note);
    Some(ErrorNote {
        code: code?.into_owned(),
        message: message?,
    })
}

/// Reads a text for people, and keeps as much of it as is kept of notes.
fn kept_note(node: Node<'_, '_>) -> Option<String> {
    node.text().map(|text| note(&text))
}

/// Body of `POST /v1/store/backup`.
#[derive(Debug, ToSchema)]
pub struct BackupTo {
    /// An absolute path on the service's machine, where nothing is yet.
    #[schema(example = "/var/backups/duetime/monday")]
    pub to: String,
}

/// Reads `{to}`.
///
/// # Errors
/// 400, 422.
pub fn backup_to(bytes: &[u8]) -> Result<String, Problem> {
    const BACKUP: Shape = Shape {
        fields: &["to"],
        not_built: &[],
    };
    decode(bytes, |node| {
        let body = node.object(&BACKUP)?;
        body.required("to", |node| {
            let path = node.line(limits::PATH_BYTES_MAX)?;
            match path.starts_with('/') {
                true => Some(path.into_owned()),
                false => node.refuse("invalid_value", "must be an absolute path"),
            }
        })
    })
}

/// Body of `cancel`.
#[derive(Debug, ToSchema)]
pub struct CancelTask {
    /// Why, for the log.
    pub reason: Option<String>,
    /// By key only: when the key has no live task, a create within this time (at most 7 days) is cancelled at once.
    pub tombstone_for: Option<Length>,
}

/// Body of `pause`, of a task or a topic.
#[derive(Debug, ToSchema)]
pub struct PauseTask {
    /// `keep` (default): the due time stays, and may pass meanwhile. `freeze`: the time left counts on from the resume.
    pub clock: Option<String>,
}

/// Body of `reschedule`: exactly one of `due_at`, `delay`, `extend_by`.
#[derive(Debug, ToSchema)]
pub struct RescheduleTask {
    /// Due at this time.
    pub due_at: Option<Time>,
    /// Time zone (IANA) of a `due_at` without offset.
    pub tz: Option<String>,
    /// Due after this long, from now.
    pub delay: Option<Length>,
    /// Due this much later than now planned.
    pub extend_by: Option<Length>,
}

/// Body of `complete`.
#[derive(Debug, ToSchema)]
pub struct CompleteTask {
    /// What the work gave: any JSON of at most 64 KiB.
    pub result: Option<serde_json::Value>,
    /// Only if this attempt is still the one.
    pub token: Option<u64>,
}

/// Body of `fail`.
#[derive(Debug, ToSchema)]
pub struct FailTask {
    /// What was wrong.
    pub error: ErrorBody,
}

/// A failure.
#[derive(Debug, ToSchema)]
pub struct ErrorBody {
    /// Stable code.
    #[schema(example = "bad_card")]
    pub code: String,
    /// What happened; what is beyond 1 KiB is cut.
    pub message: String,
}

/// Body of `resolve`.
#[derive(Debug, ToSchema)]
pub struct ResolveTask {
    /// `succeeded` or `failed`.
    pub outcome: String,
    /// How the person knows.
    pub note: String,
}

/// Body of verbs that need nothing.
#[derive(Debug, ToSchema)]
pub struct NoBody {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::WallMs;
    use crate::wire::tests::{WIDE, properties, refused};

    fn read(verb: &str, body: &str) -> Result<Verb, Problem> {
        VerbName::parse(verb)
            .expect("a known verb")
            .decode(body.as_bytes(), &WIDE)
    }

    fn cancel(reason: Option<&str>, tombstone_for: Option<u64>) -> Verb {
        Verb::Cancel {
            reason: reason.map(str::to_owned),
            tombstone_for: tombstone_for.map(DurationMs),
        }
    }

    #[test]
    fn every_verb_is_read() {
        let note = |code: &str, message: &str| ErrorNote {
            code: code.into(),
            message: message.into(),
        };
        for (verb, body, meaning) in [
            (
                "cancel",
                r#"{"reason": "paid", "tombstone_for": "PT1M"}"#,
                cancel(Some("paid"), Some(60_000)),
            ),
            ("cancel", "", cancel(None, None)),
            (
                "pause",
                "",
                Verb::Pause {
                    clock: PauseClock::Keep,
                },
            ),
            (
                "pause",
                r#"{"clock": "freeze"}"#,
                Verb::Pause {
                    clock: PauseClock::Freeze,
                },
            ),
            ("resume", "{}", Verb::Resume),
            ("run-now", " ", Verb::RunNow),
            ("replay", "", Verb::Replay),
            ("discard", "", Verb::Discard),
            (
                "reschedule",
                r#"{"delay": "PT2H"}"#,
                Verb::Reschedule(NewTime::To(When::After(DurationMs::secs(7200)))),
            ),
            (
                "reschedule",
                r#"{"extend_by": "PT10M"}"#,
                Verb::Reschedule(NewTime::ExtendBy(DurationMs::secs(600))),
            ),
            (
                "reschedule",
                r#"{"due_at": "2027-06-01T12:00:00", "tz": "Europe/London"}"#,
                Verb::Reschedule(NewTime::To(When::At(WallMs(1_811_847_600_000)))),
            ),
            (
                "complete",
                "",
                Verb::Complete {
                    result: None,
                    token: None,
                },
            ),
            (
                "complete",
                r#"{"result": {"paid": true}, "token": 17}"#,
                Verb::Complete {
                    result: Some(RawJson::from(r#"{"paid": true}"#.to_owned())),
                    token: Some(AttemptToken(17)),
                },
            ),
            (
                "fail",
                r#"{"error": {"code": "x", "message": "y"}}"#,
                Verb::Fail {
                    error: note("x", "y"),
                },
            ),
            (
                "resolve",
                r#"{"outcome": "succeeded", "note": "asked the bank"}"#,
                Verb::Resolve {
                    succeeded: true,
                    note: "asked the bank".into(),
                },
            ),
        ] {
            assert_eq!(read(verb, body), Ok(meaning), "{verb} {body}");
        }
    }

    #[test]
    fn what_a_verb_does_not_take_is_refused_at_its_place() {
        for (verb, body, expected) in [
            (
                "cancel",
                r#"{"tombstone_for": "P8D"}"#,
                &[("/tombstone_for", "out_of_range")][..],
            ),
            ("cancel", r#"{"why": "paid"}"#, &[("/why", "unknown_field")]),
            ("cancel", r#"{"id": "x"}"#, &[("/id", "unknown_field")]),
            (
                "pause",
                r#"{"clock": "stop"}"#,
                &[("/clock", "unknown_value")],
            ),
            (
                "resume",
                r#"{"clock": "keep"}"#,
                &[("/clock", "unknown_field")],
            ),
            ("reschedule", "", &[("", "missing")]),
            (
                "reschedule",
                r#"{"delay": "PT1S", "extend_by": "PT1S"}"#,
                &[("/extend_by", "conflict")],
            ),
            (
                "reschedule",
                r#"{"extend_by": "PT1S", "tz": "UTC"}"#,
                &[("/tz", "conflict")],
            ),
            (
                "reschedule",
                r#"{"due_at": "2027-06-01T12:00:00"}"#,
                &[("/due_at", "offset_missing")],
            ),
            (
                "complete",
                r#"{"token": "17"}"#,
                &[("/token", "wrong_type")],
            ),
            ("fail", "", &[("/error", "missing")]),
            (
                "fail",
                r#"{"error": {"code": ""}}"#,
                &[("/error/code", "empty"), ("/error/message", "missing")],
            ),
            (
                "fail",
                r#"{"error": "broken"}"#,
                &[("/error", "wrong_type")],
            ),
            (
                "resolve",
                "",
                &[("/outcome", "missing"), ("/note", "missing")],
            ),
            (
                "resolve",
                r#"{"outcome": "dead", "note": ""}"#,
                &[("/outcome", "unknown_value")],
            ),
        ] {
            let expected: Vec<_> = expected
                .iter()
                .map(|(pointer, code)| ((*pointer).to_owned(), *code))
                .collect();
            assert_eq!(refused(read(verb, body)), expected, "{verb} {body}");
        }
        let large = format!(r#"{{"result": "{}"}}"#, "x".repeat(64 << 10));
        assert_eq!(
            refused(read("complete", &large)),
            [("/result".to_owned(), "too_long")]
        );
        assert_eq!(
            read("cancel", "hello").map_err(|problem| problem.status()),
            Err(400)
        );
    }

    #[test]
    fn long_notes_are_cut_not_refused() {
        let body = format!(r#"{{"reason": "{}"}}"#, "ü".repeat(1000));
        let Ok(Verb::Cancel {
            reason: Some(reason),
            ..
        }) = read("cancel", &body)
        else {
            panic!("it is a cancel");
        };
        assert_eq!(reason.len(), limits::NOTE_BYTES_MAX);
    }

    #[test]
    fn a_topics_pause_takes_a_clock_or_nothing() {
        assert_eq!(topic_pause(b""), Ok(PauseClock::Keep));
        assert_eq!(
            topic_pause(br#"{"clock": "freeze"}"#),
            Ok(PauseClock::Freeze)
        );
        assert_eq!(nothing(b""), Ok(()));
        assert_eq!(
            refused(nothing(br#"{"a": 1}"#)),
            [("/a".to_owned(), "unknown_field")]
        );
    }

    #[test]
    fn the_documented_fields_are_those_that_are_read() {
        assert_eq!(properties::<CancelTask>(), CANCEL.fields);
        assert_eq!(properties::<PauseTask>(), PAUSE.fields);
        assert_eq!(properties::<RescheduleTask>(), RESCHEDULE.fields);
        assert_eq!(properties::<CompleteTask>(), COMPLETE.fields);
        assert_eq!(properties::<FailTask>(), FAIL.fields);
        assert_eq!(properties::<ErrorBody>(), ERROR.fields);
        assert_eq!(properties::<ResolveTask>(), RESOLVE.fields);
        assert_eq!(properties::<NoBody>(), NO_FIELDS.fields);
    }
}

//! The verbs of one task, as they are sent.

use crate::client::call::Body;
use crate::shard::messages::Target;
use crate::task::When;
use crate::task::duration;
use crate::task::history::ErrorNote;
use crate::task::model::PauseClock;
use crate::wire::create_out::raw;
use crate::wire::time::Time;
use crate::wire::verbs::{NewTime, Verb, VerbName};

/// The path to a task.
pub(super) fn path(target: &Target) -> Vec<String> {
    let id;
    let segments: &[&str] = match target {
        Target::Id(task) => {
            id = task.to_string();
            &["tasks", &id]
        }
        Target::Key(topic, key) => &["topics", topic.as_str(), "keys", key.as_str()],
    };
    segments
        .iter()
        .map(|segment| (*segment).to_owned())
        .collect()
}

/// A verb's name, and the body that goes with it.
///
/// # Errors
/// When its result is no JSON.
pub(super) fn body(verb: &Verb) -> Result<(VerbName, Body), serde_json::Error> {
    let body = Body::default();
    let error =
        |error: &ErrorNote| serde_json::json!({"code": error.code, "message": error.message});
    Ok(match verb {
        Verb::Cancel {
            reason,
            tombstone_for,
        } => (
            VerbName::Cancel,
            body.with("reason", reason)
                .with("tombstone_for", &tombstone_for.map(duration::format)),
        ),
        Verb::Pause { clock } => {
            let clock = match clock {
                PauseClock::Keep => "keep",
                PauseClock::Freeze => "freeze",
            };
            (VerbName::Pause, body.with("clock", &Some(clock)))
        }
        Verb::Resume => (VerbName::Resume, body),
        Verb::Reschedule(time) => {
            let body = match time {
                NewTime::To(When::At(at) | When::Missed(at)) => {
                    body.with("due_at", &Some(Time(*at)))
                }
                NewTime::To(When::After(length)) => {
                    body.with("delay", &Some(duration::format(*length)))
                }
                NewTime::ExtendBy(length) => {
                    body.with("extend_by", &Some(duration::format(*length)))
                }
            };
            (VerbName::Reschedule, body)
        }
        Verb::RunNow => (VerbName::RunNow, body),
        Verb::Complete { result, token } => {
            let result = result.as_ref().map(raw).transpose()?;
            let token = token.map(|token| token.0);
            let body = body.with("result", &result).with("token", &token);
            (VerbName::Complete, body)
        }
        Verb::Fail { error: note } => (VerbName::Fail, body.with("error", &Some(error(note)))),
        Verb::Replay => (VerbName::Replay, body),
        Verb::Resolve { succeeded, note } => {
            let outcome = if *succeeded { "succeeded" } else { "failed" };
            let body = body
                .with("outcome", &Some(outcome))
                .with("note", &Some(note));
            (VerbName::Resolve, body)
        }
        Verb::Discard => (VerbName::Discard, body),
    })
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test may")]
mod tests {
    use super::*;
    use crate::clock::{DurationMs, WallMs};
    use crate::ids::AttemptToken;
    use crate::task::spec::RawJson;
    use crate::wire::tests::WIDE;

    #[test]
    fn every_verb_is_sent_as_the_service_reads_it() {
        let after = |seconds| When::After(DurationMs::secs(seconds));
        let all = [
            Verb::Cancel {
                reason: Some("paid".into()),
                tombstone_for: Some(DurationMs::secs(60)),
            },
            Verb::Cancel {
                reason: None,
                tombstone_for: None,
            },
            Verb::Pause {
                clock: PauseClock::Keep,
            },
            Verb::Pause {
                clock: PauseClock::Freeze,
            },
            Verb::Resume,
            Verb::Reschedule(NewTime::To(after(90))),
            Verb::Reschedule(NewTime::To(When::At(WallMs(1_811_847_600_250)))),
            Verb::Reschedule(NewTime::ExtendBy(DurationMs(1))),
            Verb::RunNow,
            Verb::Complete {
                result: Some(RawJson::from(r#"{"paid": 1.50}"#.to_owned())),
                token: Some(AttemptToken(17)),
            },
            Verb::Complete {
                result: None,
                token: None,
            },
            Verb::Fail {
                error: ErrorNote {
                    code: "x".into(),
                    message: "y".into(),
                },
            },
            Verb::Replay,
            Verb::Resolve {
                succeeded: false,
                note: "asked the bank".into(),
            },
            Verb::Discard,
        ];
        for verb in all {
            let (name, body) = body(&verb).unwrap();
            assert_eq!(name.decode(&body.bytes(), &WIDE), Ok(verb));
        }
    }
}

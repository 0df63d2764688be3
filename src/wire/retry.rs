//! Retry policies, in and out, and the preview of a policy's waits.

use serde::{Serialize, Serializer};
use utoipa::ToSchema;

use crate::clock::DurationMs;
use crate::limits;
use crate::task::retry::{Backoff, DELAY_MAX, OnFailure, RetryPolicy};
use crate::wire::decode::{Node, Shape, decode, word_of};
use crate::wire::problem::Problem;
use crate::wire::task_out::Map;
use crate::wire::time::Length;

/// Attempts of a policy that names no number: the first and ten retries.
const ATTEMPTS_DEFAULT: u32 = 11;
/// Jitter of an exponential policy that names none.
const EXPONENTIAL_JITTER: f64 = 0.1;
/// Growth of an exponential policy that names none.
const FACTOR_DEFAULT: f64 = 2.0;
/// Strongest growth of an exponential policy.
const FACTOR_MAX: f64 = 1000.0;
/// Longest wait of an exponential policy that names none.
const CAP_DEFAULT: DurationMs = DurationMs::secs(3600);
/// Most failure codes with a rule of their own.
const ON_MAX: usize = 64;
/// Longest failure code, in bytes.
pub(super) const CODE_BYTES_MAX: usize = 128;

const KINDS: &[&str] = &["ladder", "fixed", "exponential"];
const RETRY: Shape = Shape {
    fields: &[
        "ladder",
        "fixed",
        "exponential",
        "jitter",
        "max_attempts",
        "max_lost_leases",
        "on",
    ],
    not_built: &[],
};
const EXPONENTIAL: Shape = Shape {
    fields: &["base", "factor", "cap", "jitter"],
    not_built: &[],
};
const PREVIEW: Shape = Shape {
    fields: &["retry", "attempts"],
    not_built: &[],
};
const ON: [(&str, OnFailure); 3] = [
    ("retry", OnFailure::Retry),
    ("dead", OnFailure::Dead),
    ("park", OnFailure::Park),
];

/// Reads a retry policy: one kind of waits, and what all kinds have.
pub(super) fn policy(node: Node<'_, '_>) -> Option<RetryPolicy> {
    let body = node.object(&RETRY)?;
    let max_attempts = body.optional("max_attempts", |node| {
        node.whole(1..=limits::ATTEMPTS_MAX.into())
    });
    let leases = 1..=limits::LOST_LEASES_MAX;
    let max_lost_leases = body.optional("max_lost_leases", |node| node.whole(leases));
    let jitter = body.optional("jitter", jitter);
    let on = body.optional("on", |node| {
        node.entries(ON_MAX, |code, node| {
            let then = node.word(&ON);
            if code.is_empty() || code.len() > CODE_BYTES_MAX || code.chars().any(char::is_control)
            {
                let detail = format!(
                    "must be a failure code of 1 to {CODE_BYTES_MAX} bytes such as http_503"
                );
                return node.refuse("invalid_name", detail);
            }
            Some((code.to_owned(), then?))
        })
    });
    let kind = body.one_of(KINDS)?;
    let (backoff, own_jitter) = body.required(kind, |node| waits(kind, node))?;
    if own_jitter.is_some() && body.has("jitter") {
        return body.refuse(
            "jitter",
            "conflict",
            "stands in `exponential` too; give one of them",
        );
    }
    let is_exponential = matches!(backoff, Backoff::Exponential { .. });
    let plain_jitter = if is_exponential {
        EXPONENTIAL_JITTER
    } else {
        0.0
    };
    Some(RetryPolicy {
        backoff,
        jitter: own_jitter.or(jitter).unwrap_or(plain_jitter),
        max_attempts: max_attempts.map_or(ATTEMPTS_DEFAULT, |attempts| attempts as u32),
        max_lost_leases: max_lost_leases.map(|leases| leases as u32),
        on: on.unwrap_or_default(),
    })
}

/// The waits of one kind, and the jitter that stands among them.
fn waits(kind: &str, node: Node<'_, '_>) -> Option<(Backoff, Option<f64>)> {
    match kind {
        "ladder" => {
            let steps = node.list(limits::LADDER_STEPS_MAX, delay)?;
            if steps.is_empty() {
                return node.refuse("empty", "must have at least one step");
            }
            Some((Backoff::Ladder(steps), None))
        }
        "fixed" => Some((Backoff::Fixed(delay(node)?), None)),
        _ => {
            let body = node.object(&EXPONENTIAL)?;
            let jitter = body.optional("jitter", jitter);
            let factor = body.optional("factor", |node| node.number(1.0..=FACTOR_MAX));
            let cap = body.optional("cap", delay);
            let base = body.required("base", delay)?;
            let backoff = Backoff::Exponential {
                base,
                factor: factor.unwrap_or(FACTOR_DEFAULT),
                // A base above the usual cap is meant as it stands.
                cap: cap.unwrap_or(CAP_DEFAULT.max(base)),
            };
            Some((backoff, jitter))
        }
    }
}

fn delay(node: Node<'_, '_>) -> Option<DurationMs> {
    node.length(0..=DELAY_MAX.0)
}

fn jitter(node: Node<'_, '_>) -> Option<f64> {
    node.number(0.0..=1.0)
}

/// When a task is tried again: exactly one of `ladder`, `fixed`, `exponential`.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Retry)]
pub struct RetryBody<'a> {
    /// One wait per step; the last repeats.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<Length>>, nullable = false, min_items = 1, max_items = 64)]
    ladder: Option<Lengths<'a>>,
    /// Always the same wait.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Length>, nullable = false)]
    fixed: Option<Length>,
    /// Growing waits.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    exponential: Option<ExponentialBody>,
    /// Share of a wait by which it may be longer; of an exponential policy it stands among its waits.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0, maximum = 1, nullable = false)]
    jitter: Option<f64>,
    /// Attempts of one generation, the first included.
    #[schema(minimum = 1, maximum = 10000, default = 11, required = false)]
    max_attempts: u32,
    /// So many lost leases of one generation are the end, even if attempts are left. Default: no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 10000, nullable = false)]
    max_lost_leases: Option<u32>,
    /// What a failure leads to, by code (`http_503`, `exit_7`, `timeout`, `lease_expired`) or group (`http_5xx`, `exit`,
    /// `signal`): `retry`, `dead`, or `park` (paused for a person).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<std::collections::HashMap<String, String>>, nullable = false)]
    on: Option<Map<'a, OnFailure>>,
}

/// `base`, `base × factor`, … at most `cap`.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ExponentialRetry)]
pub struct ExponentialBody {
    /// The first wait.
    base: Length,
    /// Growth from wait to wait.
    #[schema(minimum = 1, maximum = 1000, default = 2, required = false)]
    factor: f64,
    /// The longest wait: an hour, if not given.
    #[schema(required = false)]
    cap: Length,
    /// Share of a wait by which it may be longer.
    #[schema(minimum = 0, maximum = 1, default = 0.1, required = false)]
    jitter: f64,
}

impl<'a> From<&'a RetryPolicy> for RetryBody<'a> {
    fn from(policy: &'a RetryPolicy) -> Self {
        let mut body = Self {
            ladder: None,
            fixed: None,
            exponential: None,
            jitter: Some(policy.jitter),
            max_attempts: policy.max_attempts,
            max_lost_leases: policy.max_lost_leases,
            on: (!policy.on.is_empty()).then_some(Map(&policy.on, |then| word_of(&ON, then))),
        };
        match &policy.backoff {
            Backoff::Ladder(steps) => body.ladder = Some(Lengths(steps)),
            Backoff::Fixed(delay) => body.fixed = Some(Length(*delay)),
            Backoff::Exponential { base, factor, cap } => {
                body.exponential = Some(ExponentialBody {
                    base: Length(*base),
                    factor: *factor,
                    cap: Length(*cap),
                    jitter: policy.jitter,
                });
                body.jitter = None;
            }
        }
        body
    }
}

#[derive(Debug)]
struct Lengths<'a>(&'a [DurationMs]);

impl Serialize for Lengths<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.iter().map(|length| Length(*length)))
    }
}

/// Body of `POST /v1/preview/retry`.
#[derive(Debug, ToSchema)]
pub struct PreviewRetry {
    /// The policy.
    #[schema(inline = false)]
    pub retry: RetryBody<'static>,
    /// How many waits to show.
    #[schema(minimum = 1, maximum = 10000)]
    pub attempts: u32,
}

/// The waits after attempts 1, 2, …, without jitter.
#[derive(Debug, Serialize, ToSchema)]
pub struct RetryDelays {
    /// The wait after each attempt.
    pub delays: Vec<Length>,
}

/// Reads `{retry, attempts}` and answers the waits.
///
/// # Errors
/// 400, 422.
pub fn preview(bytes: &[u8]) -> Result<RetryDelays, Problem> {
    decode(bytes, |node| {
        let body = node.object(&PREVIEW)?;
        let retry = body.required("retry", policy);
        let attempts = body.required("attempts", |node| {
            node.whole(1..=limits::ATTEMPTS_MAX.into())
        });
        let (retry, attempts) = (retry?, attempts? as u32);
        let delays = (1..=attempts)
            .map(|nth| Length(retry.delay_after(nth, 0.0)))
            .collect();
        Some(RetryDelays { delays })
    })
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test may")]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::wire::tests::{properties, refused};

    fn read(json: &str) -> RetryPolicy {
        decode(json.as_bytes(), policy).unwrap()
    }

    #[test]
    fn each_kind_has_its_defaults() {
        assert_eq!(
            read(r#"{"ladder": ["PT1M", "PT5M", "PT10M", "PT30M"]}"#),
            RetryPolicy::default()
        );
        let fixed = read(r#"{"fixed": "PT0S", "max_attempts": 3, "jitter": 0.5}"#);
        assert_eq!(
            (fixed.backoff, fixed.jitter, fixed.max_attempts),
            (Backoff::Fixed(DurationMs(0)), 0.5, 3)
        );
        let grows = |base, factor, cap| Backoff::Exponential {
            base: DurationMs::secs(base),
            factor,
            cap: DurationMs::secs(cap),
        };
        let plain = read(r#"{"exponential": {"base": "PT1S"}}"#);
        assert_eq!(
            (plain.backoff, plain.jitter, plain.max_attempts),
            (grows(1, 2.0, 3600), 0.1, 11)
        );
        let full =
            read(r#"{"exponential": {"base": "PT1S", "factor": 3, "cap": "PT9S", "jitter": 0}}"#);
        assert_eq!((full.backoff, full.jitter), (grows(1, 3.0, 9), 0.0));
        let long = read(r#"{"exponential": {"base": "PT2H"}, "jitter": 0.3}"#);
        assert_eq!((long.backoff, long.jitter), (grows(7200, 2.0, 7200), 0.3));
    }

    #[test]
    fn rules_by_failure_code_are_read() {
        let policy = read(
            r#"{"fixed": "PT1S", "on": {"http_4xx": "dead", "timeout": "park", "x": "retry"}}"#,
        );
        let on = [
            ("http_4xx", OnFailure::Dead),
            ("timeout", OnFailure::Park),
            ("x", OnFailure::Retry),
        ];
        assert_eq!(policy.on, on.map(|(code, then)| (code.to_owned(), then)));
    }

    #[test]
    fn what_is_no_policy_is_refused_at_its_place() {
        let steps = vec!["\"PT1S\""; 65].join(",");
        for (json, pointer, code) in [
            (r#"{}"#, "", "missing"),
            (r#"{"max_attempts": 3}"#, "", "missing"),
            (
                r#"{"fixed": "PT1S", "ladder": ["PT1S"]}"#,
                "/fixed",
                "conflict",
            ),
            (
                r#"{"fixed": "PT1S", "maxattempts": 3}"#,
                "/maxattempts",
                "unknown_field",
            ),
            (
                r#"{"fixed": "PT1S", "max_attempts": 0}"#,
                "/max_attempts",
                "out_of_range",
            ),
            (
                r#"{"fixed": "PT1S", "max_attempts": 10001}"#,
                "/max_attempts",
                "out_of_range",
            ),
            (
                r#"{"fixed": "PT1S", "max_lost_leases": 0}"#,
                "/max_lost_leases",
                "out_of_range",
            ),
            (r#"{"fixed": "P367D"}"#, "/fixed", "out_of_range"),
            (
                r#"{"fixed": "PT1S", "jitter": 1.1}"#,
                "/jitter",
                "out_of_range",
            ),
            (
                r#"{"fixed": "PT1S", "jitter": 1e999}"#,
                "/jitter",
                "out_of_range",
            ),
            (
                r#"{"fixed": "PT1S", "on": {"timeout": "give up"}}"#,
                "/on/timeout",
                "unknown_value",
            ),
            (
                r#"{"fixed": "PT1S", "on": {"": "dead"}}"#,
                "/on/",
                "invalid_name",
            ),
            (r#"{"ladder": []}"#, "/ladder", "empty"),
            (
                r#"{"ladder": ["PT1S", "x"]}"#,
                "/ladder/1",
                "invalid_duration",
            ),
            (
                &format!(r#"{{"ladder": [{steps}]}}"#),
                "/ladder",
                "too_many",
            ),
            (r#"{"exponential": {}}"#, "/exponential/base", "missing"),
            (
                r#"{"exponential": {"base": "PT1S", "factor": 0.5}}"#,
                "/exponential/factor",
                "out_of_range",
            ),
            (
                r#"{"exponential": {"base": "PT1S", "jitter": 0}, "jitter": 0}"#,
                "/jitter",
                "conflict",
            ),
        ] {
            assert_eq!(
                refused(decode(json.as_bytes(), policy)),
                [(pointer.to_owned(), code)],
                "{json}"
            );
        }
    }

    #[test]
    fn a_policy_is_shown_as_it_would_be_given() {
        for json in [
            json!({"ladder": ["PT1M", "PT5M"], "jitter": 0.0, "max_attempts": 10}),
            json!({"fixed": "PT10S", "jitter": 0.25, "max_attempts": 1, "max_lost_leases": 3, "on": {"http_4xx": "dead", "http_503": "park"}}),
            json!({"exponential": {"base": "PT1S", "factor": 1.5, "cap": "PT1H", "jitter": 0.1}, "max_attempts": 11}),
        ] {
            let policy = read(&json.to_string());
            assert_eq!(
                serde_json::to_value(RetryBody::from(&policy)).unwrap(),
                json
            );
        }
    }

    #[test]
    fn a_preview_shows_the_waits() {
        let ladder = br#"{"retry": {"ladder": ["PT1M", "PT5M", "PT10M", "PT30M"]}, "attempts": 6}"#;
        let shown = serde_json::to_value(preview(ladder).unwrap()).unwrap();
        assert_eq!(
            shown,
            json!({"delays": ["PT1M", "PT5M", "PT10M", "PT30M", "PT30M", "PT30M"]})
        );
        let grows =
            br#"{"retry": {"exponential": {"base": "PT1S", "cap": "PT1H"}}, "attempts": 10000}"#;
        let delays = preview(grows).unwrap().delays;
        assert_eq!(
            (delays.len(), delays[11].0, delays[9999].0),
            (10_000, DurationMs::secs(2048), DurationMs::secs(3600))
        );
        assert_eq!(refused(preview(br#"{"attempts": 10001}"#)).len(), 2);
    }

    #[test]
    fn the_documented_fields_are_those_that_are_read() {
        assert_eq!(properties::<RetryBody<'_>>(), RETRY.fields);
        assert_eq!(properties::<ExponentialBody>(), EXPONENTIAL.fields);
        assert_eq!(properties::<PreviewRetry>(), PREVIEW.fields);
    }
}

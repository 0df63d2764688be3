//! Rules: the body of `PUT /v1/rules/{name}`, a rule as it is answered, and a rollout.

mod staged;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;
use utoipa::ToSchema;

use crate::limits;
use crate::rule::book::Kept;
use crate::rule::calendar::{ClockTime, Shift, WorkingTime};
use crate::rule::expr::{Expr, Flaw, TASK, TimeExpr};
use crate::rule::model::{Case, Excluding, How, Plan, Rule};
use crate::rule::rollout::{PARTS, Reach, Rollout};
use crate::task::spec::{ResourceName, TaskKey};
use crate::wire::decode::{Node, Object, Shape, decode};
use crate::wire::due::InLimits;
use crate::wire::problem::Problem;
use crate::wire::time::{self, Time};

const KINDS: &[&str] = &["fixed", "conditional", "excluding", "staged"];
const RULE: Shape = Shape {
    fields: &[
        "fixed",
        "conditional",
        "excluding",
        "staged",
        "default",
        "enabled",
    ],
    not_built: &[],
};
/// Ways that stand beside an `if`, or alone.
const PLANS: &[&str] = &["after", "due", "skip", "excluding", "conditional", "staged"];
const PLAN: Shape = Shape {
    fields: PLANS,
    not_built: &[],
};
const CASE: Shape = Shape {
    fields: &[
        "if",
        "after",
        "due",
        "skip",
        "excluding",
        "conditional",
        "staged",
    ],
    not_built: &[],
};
const FIXED: Shape = Shape {
    fields: &["after", "due"],
    not_built: &[],
};
const CONDITIONAL: Shape = Shape {
    fields: &["cases", "else"],
    not_built: &[],
};
const EXCLUDING: Shape = Shape {
    fields: &[
        "calendar",
        "from",
        "working_hours",
        "working_days",
        "by",
        "after",
        "shift",
    ],
    not_built: &[],
};
const LENGTHS: &[&str] = &["working_hours", "working_days", "after"];
const SHIFTS: [(&str, Shift); 3] = [
    ("next_open", Shift::NextOpen),
    ("extend_by_closed_time", Shift::ExtendByClosedTime),
    ("skip_day", Shift::SkipDay),
];
/// Most cases of one condition.
const CASES_MAX: usize = 100;
/// Longest length of working time, in days or hours; a smaller limit may be that of a due time.
const WORKING_DAYS_MAX: u64 = 3_660;
const WORKING_HOURS_MAX: f64 = 87_840.0;

/// Reads the body of `PUT /v1/rules/{name}`.
///
/// # Errors
/// 400, 422.
pub fn rule(bytes: &[u8], limits: &InLimits) -> Result<Rule, Problem> {
    decode(bytes, |node| rule_of(node, limits))
}

fn rule_of(node: Node<'_, '_>, limits: &InLimits) -> Option<Rule> {
    let body = node.object(&RULE)?;
    let plan = match body.one_of(KINDS) {
        Some("fixed") => body.required("fixed", |node| {
            let fixed = node.object(&FIXED)?;
            plan(&fixed, FIXED.fields, limits)
        }),
        Some(kind) => nested(&body, kind, limits),
        None => None,
    };
    let default = body.optional("default", |node| {
        let default = node.object(&PLAN)?;
        self::plan(&default, PLANS, limits)
    });
    let is_enabled = body.optional("enabled", |node| node.flag());
    Some(Rule {
        is_enabled: is_enabled.unwrap_or(true),
        plan: plan?,
        default,
    })
}

/// The one of `kinds` that an object holds.
fn plan(body: &Object<'_, '_>, kinds: &'static [&'static str], limits: &InLimits) -> Option<Plan> {
    match body.one_of(kinds)? {
        "after" => {
            let length = body.required("after", |node| node.length(0..=limits.max_delay.0));
            length.map(Plan::After)
        }
        "due" => body.required("due", time).map(Plan::Due),
        "skip" => match body.required("skip", |node| node.flag())? {
            true => Some(Plan::Skip),
            false => body.refuse("skip", "unknown_value", "is true, or is left out"),
        },
        kind => nested(body, kind, limits),
    }
}

fn nested(body: &Object<'_, '_>, kind: &'static str, limits: &InLimits) -> Option<Plan> {
    match kind {
        "conditional" => body.required(kind, |node| conditional(node, limits)),
        "staged" => body.required(kind, |node| staged::staged(node, limits).map(Plan::Staged)),
        _ => body.required(kind, |node| excluding(node, limits).map(Plan::Excluding)),
    }
}

fn conditional(node: Node<'_, '_>, limits: &InLimits) -> Option<Plan> {
    let body = node.object(&CONDITIONAL)?;
    let cases = body.required("cases", |node| {
        node.list(CASES_MAX, |node| {
            let body = node.object(&CASE)?;
            let condition = body.required("if", condition);
            let plan = plan(&body, PLANS, limits);
            Some(Case {
                condition: condition?,
                plan: plan?,
            })
        })
    });
    let otherwise = body.optional("else", |node| {
        let body = node.object(&PLAN)?;
        plan(&body, PLANS, limits).map(Box::new)
    });
    let cases = cases?;
    if cases.is_empty() {
        return body.refuse("cases", "missing", "has no case");
    }
    Some(Plan::Conditional { cases, otherwise })
}

fn excluding(node: Node<'_, '_>, limits: &InLimits) -> Option<Excluding> {
    let body = node.object(&EXCLUDING)?;
    let calendar = body.required("calendar", |node| node.name(ResourceName::parse));
    let from = body.optional("from", time);
    let by = body.optional("by", |node| {
        let at = ClockTime::parse(&node.text()?);
        at.or_else(|| node.refuse("invalid_clock_time", "is no time of day such as 18:00"))
    });
    let kind = body.one_of(LENGTHS)?;
    let beside = |name: &'static str, needs: &'static str| {
        let is_alone = body.has(name) && kind != needs;
        is_alone.then(|| {
            body.refuse::<()>(
                name,
                "conflict",
                format!("stands beside `{kind}`; it belongs to `{needs}`"),
            )
        })
    };
    let _ = (beside("by", "working_days"), beside("shift", "after"));
    let how = match kind {
        "working_hours" => body.required(kind, |node| {
            let hours = node.number(0.0..=WORKING_HOURS_MAX)?;
            WorkingTime::hours(hours).map(How::Working)
        }),
        "working_days" => body.required(kind, |node| {
            let days = node.whole(1..=WORKING_DAYS_MAX)?;
            WorkingTime::days(days, by).map(How::Working)
        }),
        _ => {
            let length = body.required("after", |node| node.length(0..=limits.max_delay.0));
            let shift = body.required("shift", |node| node.word(&SHIFTS));
            Some(How::Shifted(length?, shift?))
        }
    };
    Some(Excluding {
        calendar: calendar?,
        from,
        how: how?,
    })
}

/// An expression over a task that is true or false.
fn condition(node: Node<'_, '_>) -> Option<Arc<Expr>> {
    let read = Expr::shared(&node.text()?, TASK);
    read.map_or_else(|flaw| refuse(&node, &flaw), Some)
}

/// An expression over a task that gives an instant.
fn time(node: Node<'_, '_>) -> Option<Arc<TimeExpr>> {
    let read = TimeExpr::parse(&node.text()?, TASK);
    read.map_or_else(|flaw| refuse(&node, &flaw), |expr| Some(Arc::new(expr)))
}

fn refuse<T>(node: &Node<'_, '_>, flaw: &Flaw) -> Option<T> {
    node.refuse("invalid_expression", flaw.to_string())
}

const ROLLOUT: Shape = Shape {
    fields: &["percent", "keys", "if", "topic_prefix", "from", "until"],
    not_built: &[],
};
const ROLLBACK: Shape = Shape {
    fields: &["version"],
    not_built: &[],
};
const STORED: Shape = Shape {
    fields: &["version", "base_version", "base", "reach"],
    not_built: &[],
};
/// Most keys that are named.
const KEYS_MAX: usize = 1_000;
/// Most bytes of a rollout as it is stored.
const STORED_BYTES_MAX: usize = limits::RESOURCE_BODY_BYTES_MAX;

/// Reads the body of `POST /v1/rules/{name}/rollout`: who gets the latest version.
///
/// # Errors
/// 400, 422.
pub fn reach(bytes: &[u8]) -> Result<Reach, Problem> {
    decode(bytes, reach_of)
}

fn reach_of(node: Node<'_, '_>) -> Option<Reach> {
    let body = node.object(&ROLLOUT)?;
    if !["percent", "keys", "if"].iter().any(|name| body.has(name)) {
        return body.refuse("percent", "missing", "is missing; give percent, keys or if");
    }
    let percent = body.optional("percent", |node| node.number(0.0..=100.0));
    let keys = body.optional("keys", |node| {
        node.list(KEYS_MAX, |node| node.name(TaskKey::parse))
    });
    let instant = |name| body.optional(name, |node| time::read(node, None));
    Some(Reach {
        parts: (percent.unwrap_or_default() / 100.0 * PARTS as f64).round() as u64,
        keys: keys.unwrap_or_default().into_iter().collect(),
        condition: body.optional("if", condition),
        topic_prefix: body.optional("topic_prefix", |node| {
            node.line(limits::TOPIC_BYTES_MAX).map(Cow::into_owned)
        }),
        from: instant("from"),
        until: instant("until"),
    })
}

/// The body of a rule, in force or out of it.
///
/// # Errors
/// If it is no JSON.
pub fn enabled(body: &str, is_enabled: bool) -> serde_json::Result<String> {
    let mut body: serde_json::Map<String, Value> = serde_json::from_str(body)?;
    body.insert("enabled".to_owned(), is_enabled.into());
    serde_json::to_string(&body)
}

/// Reads the body of `POST /v1/rules/{name}/rollback`: the version that is wanted again.
///
/// # Errors
/// 400, 422.
pub fn rollback(bytes: &[u8]) -> Result<u64, Problem> {
    decode(bytes, |node| {
        let body = node.object(&ROLLBACK)?;
        body.required("version", |node| node.whole(1..=u64::MAX))
    })
}

/// What is stored of a rollout: who gets it, and the version before as it was put, so that a deleted history takes
/// nothing from it.
///
/// # Errors
/// 422, if it is too large.
pub fn stored_rollout(
    version: u64,
    base_version: u64,
    base: &RawValue,
    reach: &RawValue,
) -> Result<String, Problem> {
    #[derive(Serialize)]
    struct Stored<'a> {
        version: u64,
        base_version: u64,
        base: &'a RawValue,
        reach: &'a RawValue,
    }
    let stored = Stored {
        version,
        base_version,
        base,
        reach,
    };
    // Numbers and JSON always become JSON.
    let text = serde_json::to_string(&stored).unwrap_or_default();
    if text.len() > STORED_BYTES_MAX {
        let detail = format!(
            "with the version before it has {} bytes, at most {STORED_BYTES_MAX} are allowed",
            text.len()
        );
        return Err(Problem::of_field("", "too_large", detail));
    }
    Ok(text)
}

/// Reads what [`stored_rollout`] has made.
///
/// # Errors
/// 400, 422.
pub fn rollout(bytes: &[u8], limits: &InLimits) -> Result<Rollout, Problem> {
    decode(bytes, |node| {
        let body = node.object(&STORED)?;
        let number = |name| body.required(name, |node| node.whole(1..=u64::MAX));
        Some(Rollout {
            version: number("version")?,
            base_version: number("base_version")?,
            base: body.required("base", |node| rule_of(node, limits))?,
            reach: body.required("reach", reach_of)?,
        })
    })
}

/// Body of `POST /v1/rules/{name}/rollout`: who gets the latest version; all others get the one before. What is named
/// adds up, within `topic_prefix`, `from` and `until`.
#[derive(Debug, Default, Serialize, ToSchema)]
#[schema(as = Rollout, example = json!({"percent": 10, "keys": ["order-42"]}))]
pub struct RolloutBody {
    /// So much of the keys, from 0 to 100; always the same keys.
    percent: Option<f64>,
    /// These keys.
    keys: Option<Vec<String>>,
    /// Those of which an expression holds.
    r#if: Option<String>,
    /// Only in topics whose names begin so.
    topic_prefix: Option<String>,
    /// Not before.
    from: Option<String>,
    /// Afterwards all get the version before.
    until: Option<String>,
}

/// Body of `POST /v1/rules/{name}/rollback`.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Rollback)]
pub struct RollbackBody {
    /// The version that is wanted again.
    version: u64,
}

/// Body of `PUT /v1/rules/{name}`: one of `fixed`, `conditional`, `excluding`, `staged`.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = PutRule, example = json!({"conditional": {"cases": [{"if": "facts.vip", "after": "PT45M"}], "else": {"after": "PT30M"}}}))]
pub struct RuleBody {
    /// `{after}`, a length from creation on, or `{due}`, an expression that gives an instant.
    #[schema(value_type = Object, required = false)]
    fixed: (),
    /// `{cases, else}`: the first case whose `if` holds, with one of `after`, `due`, `skip`, `excluding`,
    /// `conditional`, `staged`.
    #[schema(value_type = Object, required = false)]
    conditional: (),
    /// `{calendar, from}` and `working_hours`, `working_days` with `by`, or `after` with `shift`.
    #[schema(value_type = Object, required = false)]
    excluding: (),
    /// `{stages}`, as in a create; `due` or `excluding` may stand in the place of a stage's `after`.
    #[schema(value_type = Object, required = false)]
    staged: (),
    /// What is due when nothing else gives a time.
    #[schema(value_type = Object, required = false)]
    default: (),
    /// Whether it is in force; true unless it is said. One that is not gives its `default`, and without one a create is
    /// refused.
    #[schema(value_type = bool, required = false)]
    enabled: (),
}

/// A rule.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Rule)]
pub struct RuleOut<'a> {
    #[schema(value_type = String)]
    name: &'a str,
    /// Grows with each PUT and each rollback.
    version: u64,
    /// When that was.
    changed_at: Time,
    /// Who gets this version, and which one the others get; null: it is in force for all.
    rollout: Option<RolloutOut<'a>>,
    /// Whether it is in force.
    enabled: bool,
    /// By which versions creates went since the service was started, the latest first.
    creates: Vec<VersionCount>,
    /// The body of the latest PUT.
    #[serde(flatten)]
    #[schema(value_type = Object)]
    body: BTreeMap<String, Box<RawValue>>,
}

/// How many creates went by a version.
#[derive(Debug, Serialize, ToSchema)]
pub struct VersionCount {
    version: u64,
    creates: u64,
}

/// A rollout that goes on.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = RolloutState)]
pub struct RolloutOut<'a> {
    /// The version that all others get.
    base_version: u64,
    /// The body of the latest POST.
    #[schema(value_type = Object)]
    reach: &'a RawValue,
}

impl<'a> RuleOut<'a> {
    /// The rule of that name.
    ///
    /// # Errors
    /// If what is stored is no JSON.
    pub fn new(
        name: &'a ResourceName,
        kept: &'a Kept<Rule>,
        rollout: Option<&'a Kept<Rollout>>,
        creates: Vec<(u64, u64)>,
    ) -> serde_json::Result<Self> {
        #[derive(Deserialize)]
        struct Stored<'a> {
            #[serde(borrow)]
            reach: &'a RawValue,
        }
        let rollout = rollout.filter(|rollout| rollout.meaning.version == kept.version);
        let rollout = rollout.map(|rollout| {
            let stored: Stored<'a> = serde_json::from_str(&rollout.body)?;
            Ok::<_, serde_json::Error>(RolloutOut {
                base_version: rollout.meaning.base_version,
                reach: stored.reach,
            })
        });
        let mut body: BTreeMap<String, Box<RawValue>> = serde_json::from_str(&kept.body)?;
        body.remove("enabled");
        let creates = creates.into_iter();
        let creates = creates.map(|(version, creates)| VersionCount { version, creates });
        Ok(Self {
            name: name.as_str(),
            version: kept.version,
            changed_at: Time(kept.changed_at),
            rollout: rollout.transpose()?,
            enabled: kept.meaning.is_enabled,
            creates: creates.collect(),
            body,
        })
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test may")]
mod tests;

//! Answers in words for people: a sheet for one thing, a table for many, a time line for a log.
//!
//! Everything here is a function of the service's JSON and the time it is told against, and takes the JSON as it
//! comes: a missing field is left out, a field nobody knows yet is shown as JSON. Every text of the service passes
//! [`plain`] on its way: a payload with a terminal escape in it shows the escape and does not run it.

use std::fmt::Write as _;

use comfy_table::{ContentArrangement, Table, presets};
use jiff::Timestamp;
use serde_json::Value;

use crate::clock::{DurationMs, WallMs};

/// The order of what matters in a sheet; what is not named here follows in its own order.
const FIRST: &[&str] = &[
    "id",
    "name",
    "version",
    "paused",
    "topic",
    "key",
    "state",
    "due_at",
    "next_attempt_at",
    "waiting_for",
    "blocked_by",
    "dead_reason",
    "escalated",
    "attempts",
    "last_outcome",
    "result",
    "checkpoint",
    "generation",
    "stage",
    "stages",
    "lateness_ms",
    "payload",
    "facts",
    "tags",
    "action",
    "retry",
    "timeouts",
    "delivery",
    "class",
    "rule",
];

/// `text` with every control and direction character written out, so that a terminal only shows it.
pub(super) fn plain(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        let acts = c.is_control()
            || matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{61c}');
        if acts {
            shown.extend(c.escape_unicode());
        } else {
            shown.push(c);
        }
    }
    shown
}

/// A value as one line: texts bare, all else as JSON, nothing as "-".
pub(super) fn shown(value: &Value) -> String {
    match value {
        Value::Null => String::from("-"),
        Value::String(text) => plain(text),
        // JSON escapes only some of the characters that act.
        other => plain(&other.to_string()),
    }
}

/// A length in its two largest units: `29 min 58 s`.
pub(super) fn length(ms: DurationMs) -> String {
    const UNITS: [(u64, &str); 5] = [
        (86_400_000, "d"),
        (3_600_000, "h"),
        (60_000, "min"),
        (1000, "s"),
        (1, "ms"),
    ];
    let Some(first) = UNITS.iter().position(|(unit_ms, _)| ms.0 >= *unit_ms) else {
        return String::from("0 ms");
    };
    let (unit_ms, name) = UNITS[first];
    let mut words = format!("{} {name}", ms.0 / unit_ms);
    // Nobody waits for milliseconds once it is minutes, nor for seconds once it is days.
    if let Some((next_ms, next)) = UNITS.get(first + 1) {
        let rest = ms.0 % unit_ms / next_ms;
        if rest > 0 {
            let _ = write!(words, " {rest} {next}");
        }
    }
    words
}

/// An instant as people say it: `in 29 min 58 s (2026-12-01T10:30:00.000Z)`.
fn instant(at: &Value, now: WallMs) -> String {
    let Some(wall) = wall(at) else {
        return shown(at);
    };
    let words = match wall.since(now) {
        DurationMs(0) if now == wall => String::from("now"),
        DurationMs(0) => format!("{} ago", length(now.since(wall))),
        ahead => format!("in {}", length(ahead)),
    };
    format!("{words} ({})", shown(at))
}

fn wall(at: &Value) -> Option<WallMs> {
    let at: Timestamp = at.as_str()?.parse().ok()?;
    Some(WallMs(at.as_millisecond()))
}

/// When a task is due. The service's own `remaining_ms` comes first: its clock decides, not this machine's.
pub(super) fn due(task: &Value, now: WallMs) -> String {
    let at = &task["due_at"];
    if matches!(
        task["state"].as_str(),
        Some("succeeded" | "dead" | "cancelled")
    ) {
        return shown(at);
    }
    match task["remaining_ms"].as_u64() {
        Some(ms) if ms > 0 => format!("in {} ({})", length(DurationMs(ms)), shown(at)),
        _ => instant(at, now),
    }
}

/// How an attempt ended: `failed: http_503 service unavailable`.
pub(super) fn outcome(value: &Value) -> String {
    let Some(ended) = value["outcome"].as_str() else {
        return shown(value);
    };
    match error(&value["error"]) {
        None => plain(ended),
        Some(error) => format!("{}: {error}", plain(ended)),
    }
}

/// Code and message of an error, if there is one.
pub(super) fn error(value: &Value) -> Option<String> {
    let parts = [&value["code"], &value["message"]];
    let told: Vec<_> = parts
        .iter()
        .filter_map(|part| part.as_str())
        .map(plain)
        .collect();
    (!told.is_empty()).then(|| told.join(" "))
}

/// One thing as aligned lines of name and value.
pub(super) fn sheet(thing: &Value, now: WallMs) -> String {
    let Some(fields) = thing.as_object() else {
        return shown(thing);
    };
    let known = FIRST.iter().filter_map(|name| fields.get_key_value(*name));
    let further = fields
        .iter()
        .filter(|(name, _)| !FIRST.contains(&name.as_str()));
    let lines: Vec<_> = known
        .chain(further)
        .filter(|(name, value)| !is_empty(value) && !is_said_by_due(thing, name, value))
        .map(|(name, value)| line(thing, name, value, now))
        .collect();
    let width = lines
        .iter()
        .map(|(name, _)| name.chars().count())
        .max()
        .unwrap_or(0);
    let lines: Vec<_> = lines
        .iter()
        .map(|(name, value)| format!("{name:<width$}  {value}"))
        .collect();
    lines.join("\n")
}

fn line(thing: &Value, name: &str, value: &Value, now: WallMs) -> (String, String) {
    let words = match name {
        "due_at" => due(thing, now),
        "next_attempt_at" => instant(value, now),
        "last_outcome" => outcome(value),
        "attempts" => match thing["retry"]["max_attempts"].as_u64() {
            Some(max) => format!("{} of {max}", shown(value)),
            None => shown(value),
        },
        "tags" => tags(value),
        "stages" => stages(value),
        "rule" if value["name"].is_string() => {
            format!("{} v{}", shown(&value["name"]), shown(&value["version"]))
        }
        _ => match value.as_u64() {
            Some(ms) if name.ends_with("_ms") => length(DurationMs(ms)),
            _ => shown(value),
        },
    };
    let label = match name {
        "due_at" | "next_attempt_at" => name.trim_end_matches("_at"),
        _ => name.trim_end_matches("_ms"),
    };
    (plain(label).replace('_', " "), words)
}

fn is_said_by_due(thing: &Value, name: &str, value: &Value) -> bool {
    name == "remaining_ms" || (name == "next_attempt_at" && *value == thing["due_at"])
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        _ => false,
    }
}

fn tags(value: &Value) -> String {
    let Some(tags) = value.as_object() else {
        return shown(value);
    };
    let tags: Vec<_> = tags
        .iter()
        .map(|(name, value)| format!("{}={}", plain(name), shown(value)))
        .collect();
    tags.join(", ")
}

/// Stages with their times: `dispatch after PT1H, remind PT5M after the one before`.
fn stages(value: &Value) -> String {
    let Some(stages) = value.as_array() else {
        return shown(value);
    };
    let stages = stages.iter().map(|stage| {
        let name = shown(&stage["name"]);
        match &stage["after"] {
            Value::Null => {
                let after = shown(&stage["after_previous"]);
                format!("{name} {after} after the one before")
            }
            after => format!("{name} after {}", shown(after)),
        }
    });
    stages.collect::<Vec<_>>().join(", ")
}

/// Rows under their titles, without frames: to be read by eyes, `grep` and `awk`.
pub(super) fn table(titles: &[&str], rows: Vec<Vec<String>>) -> String {
    let mut table = Table::new();
    table
        .load_style(presets::NOTHING)
        // A wrapped id can't be copied; the terminal may scroll instead.
        .set_content_arrangement(ContentArrangement::Disabled)
        .set_header(titles.to_vec())
        .add_rows(rows);
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    table.trim_fmt()
}

/// The items of a list answer.
pub(super) fn items(answer: &Value) -> &[Value] {
    answer["items"].as_array().map_or(&[], Vec::as_slice)
}

/// A task's history as a time line: when, how long after the change before, what, by whom, why.
pub(super) fn log(answer: &Value) -> String {
    let mut before = None;
    let rows = items(answer)
        .iter()
        .map(|change| {
            let at = wall(&change["at"]);
            let after = match (before, at) {
                (Some(before), Some(at)) => format!("+{}", length(at.since(before))),
                _ => String::new(),
            };
            before = at;
            vec![
                shown(&change["at"]),
                after,
                format!("{} → {}", shown(&change["from"]), shown(&change["to"])),
                shown(&change["by"]),
                shown(&change["why"]),
            ]
        })
        .collect();
    kept(table(&["AT", "AFTER", "CHANGE", "BY", "WHY"], rows), answer)
}

/// A task's attempts, oldest first.
pub(super) fn attempts(answer: &Value) -> String {
    if items(answer).is_empty() {
        return String::from("no attempts yet");
    }
    let is_staged = items(answer)
        .iter()
        .any(|attempt| !attempt["stage"].is_null());
    let rows = items(answer)
        .iter()
        .map(|attempt| {
            let took = attempt["duration_ms"]
                .as_u64()
                .map(|ms| length(DurationMs(ms)));
            let mut row = vec![
                shown(&attempt["attempt"]),
                shown(&attempt["started_at"]),
                took.unwrap_or_else(|| "-".into()),
                shown(&attempt["outcome"]),
                shown(&attempt["executor"]),
                shown(&attempt["worker"]),
                error(&attempt["error"]).unwrap_or_else(|| "-".into()),
            ];
            if is_staged {
                row.insert(1, shown(&attempt["stage"]));
            }
            row
        })
        .collect();
    let mut titles = vec![
        "ATTEMPT", "STARTED", "TOOK", "OUTCOME", "EXECUTOR", "WORKER", "ERROR",
    ];
    if is_staged {
        titles.insert(1, "STAGE");
    }
    kept(table(&titles, rows), answer)
}

/// Adds how many older items are counted only.
fn kept(table: String, answer: &Value) -> String {
    let listed = items(answer).len() as u64;
    match answer["count"].as_u64() {
        Some(count) if count > listed => {
            format!("{table}\n{} older ones are no longer kept", count - listed)
        }
        _ => table,
    }
}

/// The fields a refusal names, a line each: `  /delay: not a duration`.
pub(super) fn field_errors(problem: &Value) -> Vec<String> {
    let errors = problem["errors"].as_array().map_or(&[][..], Vec::as_slice);
    let told = |error: &Value| {
        let detail = if error["detail"].is_string() {
            &error["detail"]
        } else {
            &error["code"]
        };
        format!("  {}: {}", shown(&error["pointer"]), shown(detail))
    };
    errors.iter().map(told).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// 2026-12-01T10:00:02Z.
    const NOW: WallMs = WallMs(1_796_119_202_000);

    #[test]
    fn lengths_are_told_in_two_units() {
        for (ms, words) in [
            (0, "0 ms"),
            (250, "250 ms"),
            (1000, "1 s"),
            (1250, "1 s 250 ms"),
            (1_798_000, "29 min 58 s"),
            (3_600_000, "1 h"),
            (7_380_999, "2 h 3 min"),
            (90_000_000, "1 d 1 h"),
            (u64::MAX, "213503982334 d 14 h"),
        ] {
            assert_eq!(length(DurationMs(ms)), words);
        }
    }

    #[test]
    fn control_characters_are_shown_and_not_run() {
        assert_eq!(
            plain("a\u{1b}]0;PWN\u{7}b\nc"),
            "a\\u{1b}]0;PWN\\u{7}b\\u{a}c"
        );
        assert_eq!(
            plain("\u{9b}31m \u{7f} \u{202e}x"),
            "\\u{9b}31m \\u{7f} \\u{202e}x"
        );
        assert_eq!(plain("Grüße, 世界 🙂"), "Grüße, 世界 🙂");
        let hostile = json!({"a\u{9b}": ["\u{1b}[2J"]});
        assert_eq!(shown(&hostile), "{\"a\\u{9b}\":[\"\\u001b[2J\"]}");
    }

    #[test]
    fn no_text_of_a_hostile_answer_acts_on_the_terminal() {
        let bad = "x\u{1b}[31m\u{9b}\r\n";
        let one = json!({"id": bad, "state": bad, "due_at": bad, "last_outcome": {"outcome": bad, "error": {"code": bad, "message": bad}},
            "tags": {bad: bad}, "rule": {"name": bad, "version": bad}, "payload": {bad: [bad]}, bad: bad, "attempts": bad,
            "next_attempt_at": bad, "at": bad, "from": bad, "to": bad, "by": bad, "why": bad, "attempt": bad,
            "started_at": bad, "stage": bad, "stages": [{"name": bad, "after": bad}], "outcome": bad, "executor": bad, "worker": bad, "error": {"code": bad}});
        let many = json!({"items": [one.clone()], "errors": [{"pointer": bad, "detail": bad}]});
        let told = [
            sheet(&one, NOW),
            log(&many),
            attempts(&many),
            field_errors(&many).join("\n"),
        ];
        for text in told {
            assert!(
                !text.contains(|c: char| c.is_control() && c != '\n'),
                "{text:?}"
            );
        }
        assert_eq!(log(&many).lines().count(), 2);
    }

    #[test]
    fn a_task_is_a_sheet_with_its_due_time_in_words() {
        let task = json!({"payload": {"order_id": 42}, "id": "0192", "topic": "order.unpaid", "key": null, "state": "pending",
            "due_at": "2026-12-01T10:30:00.000Z", "remaining_ms": 1_798_000, "next_attempt_at": "2026-12-01T10:30:00.000Z", "attempts": 2, "retry": {"max_attempts": 11},
            "tags": {"region": "eu"}, "facts": {}, "lateness_ms": 4, "rule": {"name": "r", "version": 3}, "news": 7,
            "last_outcome": {"outcome": "failed", "error": {"code": "http_503", "message": "busy"}}});
        assert_eq!(
            sheet(&task, NOW),
            "id            0192\n\
             topic         order.unpaid\n\
             state         pending\n\
             due           in 29 min 58 s (2026-12-01T10:30:00.000Z)\n\
             attempts      2 of 11\n\
             last outcome  failed: http_503 busy\n\
             lateness      4 ms\n\
             payload       {\"order_id\":42}\n\
             tags          region=eu\n\
             retry         {\"max_attempts\":11}\n\
             rule          r v3\n\
             news          7"
        );
    }

    #[test]
    fn a_due_time_is_told_against_now_and_only_while_it_matters() {
        let at = |state, due_at| due(&json!({"state": state, "due_at": due_at}), NOW);
        assert_eq!(
            at("pending", "2026-12-01T10:00:12Z"),
            "in 10 s (2026-12-01T10:00:12Z)"
        );
        assert_eq!(
            at("running", "2026-12-01T10:00:00Z"),
            "2 s ago (2026-12-01T10:00:00Z)"
        );
        assert_eq!(
            at("pending", "2026-12-01T10:00:02Z"),
            "now (2026-12-01T10:00:02Z)"
        );
        assert_eq!(
            at("succeeded", "2026-12-01T10:00:00Z"),
            "2026-12-01T10:00:00Z"
        );
        assert_eq!(at("pending", "never"), "never");
    }

    #[test]
    fn a_log_is_a_time_line() {
        let answer = json!({"count": 5, "items": [
            {"at": "2026-12-01T10:00:00.000Z", "from": null, "to": "pending", "by": "api", "why": "created"},
            {"at": "2026-12-01T10:30:00.002Z", "from": "pending", "to": "dispatched", "by": "s03", "why": "due"}]});
        assert_eq!(
            log(&answer),
            "AT                        AFTER    CHANGE                BY   WHY\n\
             2026-12-01T10:00:00.000Z           - → pending           api  created\n\
             2026-12-01T10:30:00.002Z  +30 min  pending → dispatched  s03  due\n\
             3 older ones are no longer kept"
        );
    }

    #[test]
    fn attempts_are_a_table() {
        assert_eq!(attempts(&json!({"items": []})), "no attempts yet");
        let answer = json!({"items": [{"attempt": 1, "started_at": "T", "duration_ms": 1250, "outcome": "failed",
            "executor": "http", "worker": null, "error": {"code": "http_503", "message": "busy"}}]});
        let text = attempts(&answer);
        assert_eq!(
            text.lines().last(),
            Some("1        T        1 s 250 ms  failed   http      -       http_503 busy")
        );
        let mut staged = answer;
        staged["items"][0]["stage"] = json!("dispatch");
        assert_eq!(
            attempts(&staged),
            "ATTEMPT  STAGE     STARTED  TOOK        OUTCOME  EXECUTOR  WORKER  ERROR\n\
             1        dispatch  T        1 s 250 ms  failed   http      -       http_503 busy"
        );
    }

    #[test]
    fn stages_are_told_with_their_times() {
        let task = json!({"stage": "remind", "stages": [{"name": "dispatch", "after": "PT1H", "action": {"pull": {}}},
            {"name": "remind", "after_previous": "PT5M", "if": "facts.vip"}]});
        assert_eq!(
            sheet(&task, NOW),
            "stage   remind\n\
             stages  dispatch after PT1H, remind PT5M after the one before"
        );
    }
}

//! The history of one task: who started what, as those who do the work saw it, beside what the service has written
//! down. A pure function, and lists of planted faults that show that it sees them.
//!
//! That nothing is early or lost, and what is promised stays so, is the [ledger](super::ledger)'s affair.

use serde_json::{Value, json};

use super::ledger::Start;

/// Attempts of which it is known that nothing was done: by the code that whoever did the work gave.
const KNOWN_FAILURES: [&str; 4] = ["http_500", "told", "panic", "no"];

/// Everything that is known of how a task was started.
pub struct History<'a> {
    /// In the order in which it was seen.
    pub starts: &'a [Start],
    /// What `/v1/tasks/{id}/attempts` answers in the end.
    pub written: &'a [Value],
    pub at_most_once: bool,
    /// The state it has ended in.
    pub state: &'a str,
}

impl History<'_> {
    /// What of it must never be.
    pub fn wrongs(&self) -> Vec<String> {
        let mut wrongs = Vec::new();
        let mut wrong = |is_wrong: bool, what: String| {
            if is_wrong {
                wrongs.push(what);
            }
        };
        for pair in self.starts.windows(2) {
            let (one, next) = (pair[0], pair[1]);
            let what = format!("attempt {} was started after {}", next.attempt, one.attempt);
            wrong(next.attempt <= one.attempt, what);
            let (token, before) = (next.token, one.token);
            let what = format!("token {token:?} came after {before:?}");
            wrong(token.is_some() && token <= before, what);
        }
        let number = |attempt: &Value, field: &str| attempt[field].as_u64().unwrap_or_default();
        for pair in self.written.windows(2) {
            for field in ["attempt", "token"] {
                let (one, next) = (number(&pair[0], field), number(&pair[1], field));
                wrong(
                    next <= one,
                    format!("{field} {next} is written after {one}"),
                );
            }
        }
        let succeeded = |attempt: &&Value| attempt["outcome"] == "succeeded";
        let successes: Vec<&Value> = self.written.iter().filter(succeeded).collect();
        wrong(successes.len() > 1, "it has succeeded twice".to_owned());
        for attempt in &successes {
            let is_last = self.written.last() == Some(*attempt);
            wrong(!is_last, "it went on after a success".to_owned());
            wrong(
                self.state != "succeeded",
                format!("it has succeeded, and is {}", self.state),
            );
        }
        for attempt in self.written {
            wrong(
                attempt["generation"] != 1,
                format!("nobody replayed it: {attempt}"),
            );
            let ended = self.state != "live";
            wrong(
                ended && attempt["outcome"].is_null(),
                format!("it has ended, and this is still out: {attempt}"),
            );
        }
        for (n, start) in self.starts.iter().enumerate() {
            let of_it = |attempt: &&Value| number(attempt, "attempt") == start.attempt;
            let Some(attempt) = self.written.iter().find(of_it) else {
                // Only the last hundred are kept.
                let is_old = self
                    .written
                    .first()
                    .is_some_and(|first| number(first, "attempt") > start.attempt);
                wrong(!is_old, format!("nothing is written of {start:?}"));
                continue;
            };
            let token = start.token.unwrap_or(number(attempt, "token"));
            wrong(
                number(attempt, "token") != token,
                format!("it was started with another token: {start:?}, {attempt}"),
            );
            let code = attempt["error"]["code"].as_str().unwrap_or_default();
            let is_known = attempt["outcome"] == "failed" && KNOWN_FAILURES.contains(&code);
            wrong(
                self.at_most_once && n + 1 < self.starts.len() && !is_known,
                format!("it was started again, and nobody knows what became of {attempt}"),
            );
        }
        wrongs
    }
}

/// Lays histories before the checker that are wrong in one thing each.
///
/// # Panics
/// When it does not see that.
pub fn finds_what_is_planted() {
    let start = |attempt, token| Start {
        attempt,
        token: Some(token),
        at_ms: 0,
    };
    let wrote = |attempt: u64, token: u64, outcome: &str, code: &str| json!({"attempt": attempt, "token": token, "generation": 1, "outcome": outcome, "error": {"code": code}});
    let failed = wrote(1, 1, "failed", "http_500");
    let unknown = wrote(1, 1, "outcome_unknown", "");
    let done = wrote(2, 5, "succeeded", "");
    let both = [start(1, 1), start(2, 5)];
    let table = [
        // what was seen, what is written, at most once, state → what is wrong
        (
            both.to_vec(),
            vec![failed.clone(), done.clone()],
            true,
            "succeeded",
            "",
        ),
        (
            both.to_vec(),
            vec![unknown.clone(), done.clone()],
            false,
            "succeeded",
            "",
        ),
        (
            both.to_vec(),
            vec![unknown, done.clone()],
            true,
            "succeeded",
            "started again",
        ),
        (
            vec![both[1], both[0]],
            vec![failed.clone(), done.clone()],
            false,
            "succeeded",
            "started after",
        ),
        (
            vec![start(1, 5), start(2, 5)],
            vec![wrote(1, 5, "failed", "no")],
            false,
            "live",
            "token",
        ),
        (
            vec![],
            vec![wrote(1, 5, "failed", "no"), done.clone()],
            false,
            "succeeded",
            "is written after",
        ),
        (
            vec![],
            vec![wrote(1, 1, "succeeded", ""), done.clone()],
            false,
            "succeeded",
            "twice",
        ),
        (
            vec![],
            vec![done.clone(), wrote(3, 6, "failed", "no")],
            false,
            "succeeded",
            "went on",
        ),
        (
            vec![],
            vec![done.clone()],
            false,
            "cancelled",
            "and is cancelled",
        ),
        (
            vec![start(3, 9)],
            vec![failed.clone(), done.clone()],
            false,
            "succeeded",
            "nothing is written",
        ),
        (
            vec![start(2, 4)],
            vec![failed.clone(), done],
            false,
            "succeeded",
            "another token",
        ),
        (
            vec![],
            vec![json!({"attempt": 1, "token": 1, "generation": 1})],
            false,
            "cancelled",
            "still out",
        ),
        (
            vec![],
            vec![json!({"attempt": 1, "token": 1, "generation": 2, "outcome": "x"})],
            false,
            "live",
            "replayed",
        ),
    ];
    for (starts, written, at_most_once, state, expected) in table {
        let history = History {
            starts: &starts,
            written: &written,
            at_most_once,
            state,
        };
        let wrongs = history.wrongs();
        let is_seen = match expected {
            "" => wrongs.is_empty(),
            expected => wrongs.iter().any(|wrong| wrong.contains(expected)),
        };
        assert!(
            is_seen,
            "{expected:?} in {starts:?}, {written:?}: {wrongs:?}"
        );
    }
}

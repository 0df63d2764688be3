//! How the story ended: what became of each order, and whether that is what was promised.

use serde_json::{Value, json};

use super::Fate;
use crate::cli::{Failure, render};
use crate::metrics::Quantiles;
use crate::task::model::State;

/// A timeout that fires later than this was not kept.
const LATE_MS_MAX: i64 = 1000;
/// Said when the service kept all its promises.
const ALL_KEPT: &str = "\nnothing fired early, twice, or after it was cancelled; nothing was lost";

/// What became of one order. Times are milliseconds since the shop opened.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) order: String,
    pub(super) fate: Fate,
    pub(super) due_ms: i64,
    /// Each attempt, as its receiver saw it.
    pub(super) fired_ms: Vec<i64>,
    /// As the service counts them.
    pub(super) attempts: u32,
    pub(super) state: State,
}

impl Row {
    /// How late the first attempt came.
    fn late_ms(&self) -> Option<i64> {
        self.fired_ms.first().map(|fired| fired - self.due_ms)
    }

    /// What was not as promised.
    fn problem(&self) -> Option<String> {
        let (order, fired, fires) = (&self.order, self.fired_ms.len(), self.fate.fires());
        if fires == 0 && fired > 0 {
            Some(format!(
                "{order} was paid and its timeout fired all the same"
            ))
        } else if fired != fires {
            Some(format!("{order} fired {fired} times instead of {fires}"))
        } else if usize::try_from(self.attempts) != Ok(fires) {
            Some(format!(
                "{order} has {} attempts on record instead of {fires}",
                self.attempts
            ))
        } else if self.state != self.fate.ends_as() {
            Some(format!(
                "{order} is {} instead of {}",
                self.state,
                self.fate.ends_as()
            ))
        } else {
            match self.late_ms() {
                Some(late) if late < 0 => Some(format!("{order} fired {} ms early", -late)),
                Some(late) if late > LATE_MS_MAX => Some(format!("{order} fired {late} ms late")),
                _ => None,
            }
        }
    }

    fn cells(&self) -> Vec<String> {
        let seconds = |ms: i64| format!("{:.2} s", ms as f64 / 1000.0);
        let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
        vec![
            self.order.clone(),
            self.fate.words().to_owned(),
            seconds(self.due_ms),
            or_dash(self.fired_ms.first().map(|ms| seconds(*ms))),
            or_dash(self.late_ms().map(|ms| format!("{ms} ms"))),
            self.attempts.to_string(),
            self.state.to_string(),
        ]
    }

    fn json(&self) -> Value {
        json!({
            "order": self.order,
            "what": self.fate.words(),
            "due_ms": self.due_ms,
            "fired_ms": self.fired_ms.first(),
            "late_ms": self.late_ms(),
            "attempts": self.attempts,
            "state": self.state.name(),
        })
    }
}

/// How it all ended.
pub(super) struct Ending {
    pub(super) rows: Vec<Row>,
}

impl Ending {
    fn lateness(&self) -> Quantiles {
        let mut lateness = Quantiles::default();
        for late in self.rows.iter().filter_map(Row::late_ms) {
            lateness.add(late);
        }
        lateness
    }

    pub(super) fn count(&self, state: State) -> usize {
        self.rows.iter().filter(|row| row.state == state).count()
    }

    pub(super) fn fired(&self) -> usize {
        self.rows
            .iter()
            .filter(|row| !row.fired_ms.is_empty())
            .count()
    }

    pub(super) fn problems(&self) -> Vec<String> {
        self.rows.iter().filter_map(Row::problem).collect()
    }

    pub(super) fn text(&self) -> String {
        let titles = [
            "order",
            "what happened",
            "due",
            "fired",
            "late by",
            "attempts",
            "state",
        ];
        let table = render::table(&titles, self.rows.iter().map(Row::cells).collect());
        let (fired, cancelled, late) =
            (self.fired(), self.count(State::Cancelled), self.lateness());
        let ms = |value: Option<u64>| value.unwrap_or(0);
        let (p50, max) = (ms(late.quantile(0.5)), ms(late.max()));
        let kept = if self.problems().is_empty() {
            ALL_KEPT
        } else {
            ""
        };
        format!(
            "{table}\n\nfired {fired}, cancelled {cancelled}; late by {p50} ms (p50), {max} ms (max){kept}"
        )
    }

    pub(super) fn json(&self) -> Value {
        let late = self.lateness();
        json!({
            "items": self.rows.iter().map(Row::json).collect::<Vec<_>>(),
            "fired": self.fired(),
            "cancelled": self.count(State::Cancelled),
            "lateness_ms": {"p50": late.quantile(0.5), "max": late.max()},
            "problems": self.problems(),
        })
    }

    pub(super) fn verdict(&self) -> Result<(), Failure> {
        match self.problems() {
            problems if problems.is_empty() => Ok(()),
            problems => Err(Failure::new(format!(
                "not as promised: {}",
                problems.join("; ")
            ))),
        }
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    fn row(fate: Fate, fired_ms: &[i64], state: State) -> Row {
        Row {
            order: "order-1".to_owned(),
            fate,
            due_ms: 3000,
            fired_ms: fired_ms.to_vec(),
            attempts: u32::try_from(fired_ms.len()).unwrap(),
            state,
        }
    }

    #[test]
    fn a_broken_promise_is_named() {
        let paid = Fate::Paid { at: 1 };
        let kept = [
            row(Fate::Unpaid, &[3000], State::Succeeded),
            row(Fate::ShopFails, &[3001, 3400], State::Succeeded),
            row(paid, &[], State::Cancelled),
            row(Fate::Courier, &[3000, 3500], State::Succeeded),
        ];
        for row in &kept {
            assert_eq!(row.problem(), None);
        }
        let broken = [
            (row(paid, &[3000], State::Succeeded), "was paid"),
            (
                row(Fate::Unpaid, &[], State::Pending),
                "0 times instead of 1",
            ),
            (
                row(Fate::Unpaid, &[3000, 3001], State::Succeeded),
                "2 times instead of 1",
            ),
            (row(Fate::Unpaid, &[2999], State::Succeeded), "1 ms early"),
            (row(Fate::Unpaid, &[4001], State::Succeeded), "1001 ms late"),
            (
                row(Fate::Unpaid, &[3000], State::Dead),
                "dead instead of succeeded",
            ),
        ];
        for (row, words) in broken {
            assert!(row.problem().unwrap().contains(words), "{words}");
        }
    }

    #[test]
    fn the_ending_counts_what_fired_and_what_was_cancelled() {
        let rows = vec![
            row(Fate::Unpaid, &[3002], State::Succeeded),
            row(Fate::Paid { at: 1 }, &[], State::Cancelled),
        ];
        let ending = Ending { rows };
        let text = ending.text();
        assert!(
            text.contains("fired 1, cancelled 1; late by 2 ms (p50), 2 ms (max)"),
            "{text}"
        );
        assert!(text.ends_with(ALL_KEPT), "{text}");
        assert!(text.contains("paid in time: timeout cancelled"), "{text}");
        let json = ending.json();
        assert_eq!(
            (
                json["items"][1]["fired_ms"].is_null(),
                json["lateness_ms"]["max"].as_u64()
            ),
            (true, Some(2))
        );
    }
}

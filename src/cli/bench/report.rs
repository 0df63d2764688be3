//! The figures, each beside its limit or peer of the same run: as a table for people, as JSON for machines.

use clap::ValueEnum;
use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use serde_json::{Value, json};

use super::machine::{self, Machine};

/// What a figure counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Unit {
    PerSecond,
    Millis,
    Seconds,
    Bytes,
    Percent,
    /// So many of something that the figure names.
    Count,
}

impl Unit {
    fn name(self) -> &'static str {
        match self {
            Self::PerSecond => "/s",
            Self::Millis => "ms",
            Self::Seconds => "s",
            Self::Bytes => "B",
            Self::Percent => "%",
            Self::Count => "",
        }
    }

    fn shown(self, value: f64) -> String {
        match self {
            Self::Millis | Self::Seconds | Self::Percent => format!("{value:.2} {}", self.name()),
            Self::Count => grouped(value),
            Self::PerSecond | Self::Bytes => format!("{} {}", grouped(value), self.name()),
        }
    }
}

/// `12345.6` as `12 346`.
fn grouped(value: f64) -> String {
    let digits = format!("{value:.0}");
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(' ');
        }
        text.push(digit);
    }
    text
}

/// One figure.
#[derive(Clone, Debug)]
pub(super) struct Figure {
    /// Stable, with its unit.
    pub(super) name: &'static str,
    /// For people.
    pub(super) what: String,
    pub(super) value: f64,
    pub(super) unit: Unit,
    /// A limit or peer of the same run and unit.
    pub(super) beside: Option<(String, f64)>,
}

impl Figure {
    pub(super) fn new(name: &'static str, what: impl Into<String>, value: f64, unit: Unit) -> Self {
        Self {
            name,
            what: what.into(),
            value,
            unit,
            beside: None,
        }
    }

    /// Set against a limit or a peer, when that was measured.
    pub(super) fn beside(mut self, what: impl Into<String>, value: Option<f64>) -> Self {
        self.beside = value.map(|value| (what.into(), value));
        self
    }

    fn ratio(&self) -> Option<f64> {
        let (_, value) = self.beside.as_ref()?;
        (*value > 0.0).then(|| self.value / value)
    }

    fn json(&self, of: &str) -> Value {
        let beside = self
            .beside
            .as_ref()
            .map(|(what, value)| json!({"what": what, "value": round(*value)}));
        json!({
            "measure": of,
            "name": self.name,
            "what": self.what,
            "value": round(self.value),
            "unit": self.unit.name(),
            "beside": beside,
            "ratio": self.ratio().map(round),
        })
    }
}

fn round(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

/// One line of the report.
#[derive(Clone, Debug)]
pub(super) enum Line {
    Figure(Figure),
    /// What is to be said of the figures above it.
    Verdict(String, &'static str),
    /// Something could not be measured, and why.
    NotMeasured(&'static str),
}

/// What something that can be measured is called.
pub(super) fn name_of<M: ValueEnum>(measure: M) -> String {
    measure
        .to_possible_value()
        .map(|value| value.get_name().to_owned())
        .unwrap_or_default()
}

/// All figures of a run, in the order of what can be measured.
#[derive(Debug)]
pub(super) struct Report<M> {
    machine: Machine,
    service: String,
    /// What has to be known of all figures.
    note: &'static str,
    lines: Vec<(M, Line)>,
}

impl<M: ValueEnum + Copy + Ord> Report<M> {
    pub(super) fn new(machine: Machine, service: String, note: &'static str) -> Self {
        Self {
            machine,
            service,
            note,
            lines: Vec::new(),
        }
    }

    pub(super) fn add(&mut self, of: M, lines: Vec<Line>) {
        self.lines.extend(lines.into_iter().map(|line| (of, line)));
        // They are measured in another order than they are read.
        self.lines.sort_by_key(|(of, _)| *of);
    }

    fn notes(&self) -> Vec<String> {
        let busy = |load| {
            format!(
                "other programs kept the machine busy before it began (load {load}): it can do better than this"
            )
        };
        let debug = "this is a debug build: its figures say little";
        let is_debug = machine::build() == "debug";
        [
            Some(self.note.to_owned()),
            self.machine.busy_with().map(busy),
            is_debug.then(|| debug.to_owned()),
        ]
        .into_iter()
        .flatten()
        .collect()
    }

    pub(super) fn text(&self) -> String {
        let mut table = Table::new();
        table
            .load_style(presets::NOTHING)
            .set_content_arrangement(ContentArrangement::Disabled)
            .set_header(["", "measured", "ratio", "limit or peer in the same run"]);
        for (of, line) in &self.lines {
            table.add_row(match line {
                Line::Figure(figure) => [
                    figure.what.clone(),
                    figure.unit.shown(figure.value),
                    figure
                        .ratio()
                        .map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.2}")),
                    figure
                        .beside
                        .as_ref()
                        .map_or_else(String::new, |(what, value)| {
                            format!("{}  {what}", figure.unit.shown(*value))
                        }),
                ],
                Line::Verdict(what, word) => [
                    what.clone(),
                    (*word).to_owned(),
                    "-".to_owned(),
                    String::new(),
                ],
                Line::NotMeasured(why) => [
                    name_of(*of),
                    "-".to_owned(),
                    "-".to_owned(),
                    format!("not measured: {why}"),
                ],
            });
        }
        for (place, column) in table.column_iter_mut().enumerate() {
            column.set_padding((0, 2));
            if place == 1 || place == 2 {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        let notes: Vec<String> = self
            .notes()
            .into_iter()
            .map(|note| format!("note: {note}"))
            .collect();
        format!(
            "{}\n{}\n\n{}\n\n{}",
            self.machine.words(),
            self.service,
            table.trim_fmt(),
            notes.join("\n")
        )
    }

    pub(super) fn json(&self) -> Value {
        let (mut figures, mut absent) = (Vec::new(), Vec::new());
        for (of, line) in &self.lines {
            match line {
                Line::Figure(figure) => figures.push(figure.json(&name_of(*of))),
                // Whoever gives one says it in words of its own there.
                Line::Verdict(..) => {}
                Line::NotMeasured(why) => absent.push(json!({"measure": name_of(*of), "why": why})),
            }
        }
        json!({
            "machine": self.machine.json(),
            "service": self.service,
            "figures": figures,
            "not_measured": absent,
            "notes": self.notes(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::Measure;
    use super::*;

    fn report() -> Report<Measure> {
        let mut report = Report::new(Machine::look(), "a service".to_owned(), "a note");
        report.add(
            Measure::Pending,
            vec![Line::NotMeasured("the service is another process")],
        );
        let create = Figure::new("create_per_s", "create, single", 19_123.4, Unit::PerSecond);
        let p99 = Figure::new("create_p99_ms", "  latency p99", 7.125, Unit::Millis);
        report.add(
            Measure::Create,
            vec![
                Line::Figure(create.beside("bare route", Some(48_000.0))),
                Line::Figure(p99),
            ],
        );
        report
    }

    #[test]
    fn a_figure_stands_beside_its_peer_and_in_the_order_of_reading() {
        let text = report().text();
        let line = |words: &str| text.lines().position(|line| line.contains(words));
        assert!(line("create, single") < line("pending"), "{text}");
        let create = text
            .lines()
            .find(|line| line.starts_with("create, single"))
            .unwrap_or_default();
        for words in ["19 123 /s", "0.40", "48 000 /s  bare route"] {
            assert!(create.contains(words), "{words} in {create}");
        }
        assert!(
            text.contains("7.12 ms")
                && text.contains("not measured: the service is another process")
        );
        assert!(!text.contains('\u{1b}'));
    }

    #[test]
    fn the_json_says_the_same() {
        let json = report().json();
        assert_eq!(json["figures"][0]["name"], "create_per_s");
        assert_eq!(json["figures"][0]["ratio"], 0.398);
        assert_eq!(json["figures"][1]["beside"], Value::Null);
        assert_eq!(json["not_measured"][0]["measure"], "pending");
        assert!(json["machine"]["cores"].as_u64() > Some(0));
    }

    #[test]
    fn thousands_are_set_apart() {
        for (value, text) in [
            (0.4, "0"),
            (999.0, "999"),
            (1000.0, "1 000"),
            (1_234_567.0, "1 234 567"),
        ] {
            assert_eq!(grouped(value), text);
        }
    }
}

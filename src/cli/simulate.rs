//! `duetime simulate`: what would fire, as a timetable.

use std::path::PathBuf;

use clap::Args as ClapArgs;
use serde_json::{Value, json};

use super::client::{Client, Request, Server};
use super::resource::read_text;
use super::{Failure, Out, render};
use crate::clock::WallMs;

/// The widest bar, in characters.
const BAR_MAX: u64 = 40;

#[derive(ClapArgs, Debug)]
#[command(after_help = "Examples:\n  \
    duetime simulate --for P7D --topic order.unpaid\n  \
    duetime simulate --file what-if.json\n\n\
    what-if.json: {\"for\": \"P7D\", \"rules\": {\"order-unpaid\": {\"fixed\": {\"after\": \"PT45M\"}}},\n  \
    \"tasks\": [{\"topic\": \"order.unpaid\", \"key\": \"order-42\"}], \"assume\": {\"ends\": \"fail\"}}")]
pub(super) struct Args {
    #[command(flatten)]
    server: Server,
    /// Read the what-if from this file; - is standard input. Without it: all stored tasks
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// How long it goes on, such as P7D; without it, a day
    #[arg(long = "for", value_name = "DURATION", conflicts_with = "file")]
    length: Option<String>,
    /// Only stored tasks of this topic
    #[arg(long, conflicts_with = "file")]
    topic: Option<String>,
    /// Width of a line of the timetable, such as PT1H
    #[arg(long, value_name = "DURATION", conflicts_with = "file")]
    bucket: Option<String>,
}

impl Args {
    fn body(&self) -> Result<String, Failure> {
        if let Some(file) = &self.file {
            return read_text(file);
        }
        let filter = match &self.topic {
            Some(topic) => json!({"topic": topic}),
            None => json!({}),
        };
        let body = json!({"for": self.length, "bucket": self.bucket, "filter": filter});
        Ok(body.to_string())
    }
}

pub(super) fn run(args: Args, out: &mut Out<'_>) -> Result<(), Failure> {
    let client = Client::new(&args.server)?;
    let path = vec!["simulate".to_owned()];
    let request = Request::post_text("simulate", path, "application/json", args.body()?);
    let answer = client.send(request)?;
    out.answer(&answer, timetable)
}

/// What fires, as bars by bucket and topic; then what happens, line by line; then all of it in numbers.
fn timetable(played: &Value, _: WallMs) -> String {
    let text = |value: &Value| render::shown(value);
    let list = |name: &str| played[name].as_array().map_or(&[][..], Vec::as_slice);
    let count = |bucket: &Value| {
        let of = |name: &str| bucket[name].as_u64().unwrap_or(0);
        of("fires") + of("retries") + of("questions")
    };
    let mut parts = Vec::new();
    let most = list("buckets").iter().map(count).max().unwrap_or(0).max(1);
    let bars = list("buckets").iter().map(|bucket| {
        let count = count(bucket);
        let bar = (count * BAR_MAX).div_ceil(most) as usize;
        vec![
            text(&bucket["at"]),
            text(&bucket["topic"]),
            count.to_string(),
            "█".repeat(bar),
        ]
    });
    if !list("buckets").is_empty() {
        parts.push(render::table(
            &["FROM", "TOPIC", "STARTS", ""],
            bars.collect(),
        ));
    }
    let events = list("events").iter().map(|event| {
        vec![
            text(&event["at"]),
            text(&event["what"]),
            text(&event["topic"]),
            text(&event["key"]),
            text(&event["stage"]),
            text(&event["attempt"]),
            text(&event["why"]),
        ]
    });
    if !list("events").is_empty() {
        let titles = ["AT", "WHAT", "TOPIC", "KEY", "STAGE", "ATTEMPT", "WHY"];
        parts.push(render::table(&titles, events.collect()));
    }
    let refused = list("refused").iter();
    parts
        .extend(refused.map(|it| format!("task {} is refused: {}", it["place"], text(&it["why"]))));
    parts.push(summary(played));
    parts.join("\n\n")
}

fn summary(played: &Value) -> String {
    let (from, until) = (
        render::shown(&played["from"]),
        render::shown(&played["until"]),
    );
    let counts = &played["counts"];
    let of = |name: &str| counts[name].as_u64().unwrap_or(0);
    let words = [
        ("fires", "fire"),
        ("retries", "tried again"),
        ("questions", "asked"),
        ("succeeded", "succeed"),
        ("skipped", "skipped"),
        ("expired", "out of time"),
        ("dead", "dead"),
        ("parked", "parked"),
    ];
    let some = words.iter().filter(|(name, _)| of(name) > 0);
    let some: Vec<String> = some
        .map(|(name, word)| format!("{} {word}", of(name)))
        .collect();
    let all = match some.is_empty() {
        true => "nothing fires".to_owned(),
        false => some.join(", "),
    };
    let mut lines = vec![format!("{from} to {until}: {all}")];
    let peaks = &played["peaks"];
    for (name, what) in [
        ("starts", "starts in one bucket"),
        ("running", "at once"),
        ("late_ms", "ms late"),
    ] {
        let peak = &peaks[name];
        if peak["value"].as_u64().is_some_and(|value| value > 0) {
            let at = render::shown(&peak["at"]);
            lines.push(format!("at most {} {what}, at {at}", peak["value"]));
        }
    }
    if played["truncated"] == true {
        lines.push("more happens than is listed; `limit` lists up to 10000 events".to_owned());
    }
    if let Some(why) = played["cut_off"]["why"].as_str() {
        let at = render::shown(&played["cut_off"]["at"]);
        lines.push(format!(
            "it was cut off at {at}: there is more than is played ({why})"
        ));
    }
    lines.push("Nothing was sent, and nothing was changed.".to_owned());
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::tests::{duetime, refused};
    use crate::client::scripted::Service;

    #[test]
    fn stored_tasks_are_simulated_by_flags_and_the_busiest_bucket_has_the_longest_bar() {
        let bucket = |at: &str, fires: u64| json!({"at": at, "topic": "t", "fires": fires, "retries": 0, "questions": 0});
        let played = json!({
            "from": "2027-03-01T10:00:00.000Z", "until": "2027-03-01T12:00:00.000Z",
            "buckets": [bucket("2027-03-01T10:00:00.000Z", 1), bucket("2027-03-01T11:00:00.000Z", 4)],
            "events": [{"at": "2027-03-01T10:05:00.000Z", "topic": "t", "key": "a", "what": "fire", "attempt": 1}],
            "counts": {"fires": 5}, "peaks": {"running": {"at": "2027-03-01T11:00:00.000Z", "value": 3}},
            "truncated": true, "refused": [{"place": 2, "why": "no"}], "cut_off": {"at": "2027-03-01T11:30:00.000Z", "why": "time"}
        });
        let service = Service::answering(&[("200 OK", &played.to_string())]);
        let command = [
            "simulate",
            "--for",
            "PT2H",
            "--topic",
            "t",
            "--url",
            &service.url,
        ];
        let shown = duetime(&command).1;
        let bars: Vec<usize> = shown
            .lines()
            .map(|line| line.matches('█').count())
            .filter(|bar| *bar > 0)
            .collect();
        assert_eq!(bars, [10, 40], "{shown}");
        for part in [
            "5 fire",
            "at most 3 at once",
            "task 2 is refused: no",
            "more happens than",
            "cut off at",
            "Nothing was sent",
        ] {
            assert!(shown.contains(part), "{part} in {shown}");
        }
        let asked = service.asked();
        assert_eq!(asked.line, "POST /v1/simulate");
        assert_eq!(
            (&asked.body["for"], &asked.body["filter"]),
            (&json!("PT2H"), &json!({"topic": "t"}))
        );
    }

    #[test]
    fn flags_do_not_go_with_a_file() {
        assert_eq!(
            refused(&["simulate", "--file", "a.json", "--for", "P1D"]).0,
            2
        );
    }
}

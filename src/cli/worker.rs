//! `duetime worker …`: who leases tasks.

use clap::{Args as ClapArgs, Subcommand};

use super::client::{Client, Server};
use super::task::{Column, Pages, list, segments};
use super::{Failure, Out, render};

#[derive(ClapArgs, Debug)]
pub(super) struct Args {
    #[command(flatten)]
    server: Server,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// List the workers that lease tasks, with what they hold and what became of it
    #[command(after_help = "Example:\n  duetime worker list --all")]
    List(Pages),
}

const COLUMNS: &[Column] = &[
    ("NAME", |worker, _| match worker["name"].as_str() {
        Some("") => String::from("-"),
        _ => render::shown(&worker["name"]),
    }),
    ("LEASES", |worker, _| render::shown(&worker["leases"])),
    ("WAITING", |worker, _| render::shown(&worker["waiting"])),
    ("COMPLETED", |worker, _| render::shown(&worker["completed"])),
    ("FAILED", |worker, _| render::shown(&worker["failed"])),
    ("LOST", |worker, _| render::shown(&worker["lost"])),
    ("LAST SEEN", |worker, _| {
        render::shown(&worker["last_seen_at"])
    }),
    ("TOPICS", |worker, _| {
        let topics = worker["topics"].as_array();
        let topics = topics.into_iter().flatten().map(render::shown);
        topics.collect::<Vec<_>>().join(" ")
    }),
];

pub(super) fn run(args: Args, out: &mut Out<'_>) -> Result<(), Failure> {
    let client = Client::new(&args.server)?;
    match args.command {
        Command::List(pages) => {
            let list_of = ("list workers", segments(&["workers"]));
            list(&client, list_of, Vec::new(), pages, COLUMNS, out)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::duetime;
    use crate::client::scripted::Service;

    #[test]
    fn workers_are_listed_with_what_they_hold_and_what_became_of_it() {
        let worker = r#"{"name":"w1","topics":["a","b"],"leases":2,"waiting":1,"completed":7,"failed":1,"lost":0,"last_seen_at":"2026-12-01T00:00:00.000Z"}"#;
        let page = format!(r#"{{"items":[{worker}],"next_cursor":null}}"#);
        let service = Service::answering(&[("200 OK", &page)]);
        let (code, out, err) = duetime(&["worker", "list", "--url", &service.url]);
        assert_eq!(code, 0, "{err}");
        let words: Vec<&str> = out
            .lines()
            .last()
            .unwrap_or_default()
            .split_whitespace()
            .collect();
        let expected = [
            "w1",
            "2",
            "1",
            "7",
            "1",
            "0",
            "2026-12-01T00:00:00.000Z",
            "a",
            "b",
        ];
        assert_eq!(words, expected);
        assert_eq!(service.asked().line, "GET /v1/workers");
    }
}

//! `duetime dead …`: tasks that were given up, and what a person does about each.

use clap::builder::PossibleValuesParser;
use clap::{Args as ClapArgs, Subcommand};

use super::client::{Body, Client, Server};
use super::task::{Column, Pages, Which, list, segments};
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
    /// List the dead letters, the latest first, with why each was given up
    #[command(
        after_help = "Example:\n  duetime dead list --topic order.unpaid --reason outcome_unknown --all"
    )]
    List(List),
    /// Give one a fresh start: a new generation, with all its attempts
    #[command(after_help = "Example:\n  duetime dead replay --topic order.unpaid --key order-42")]
    Replay(Which),
    /// Settle what nobody knew of one: it was done, or it has failed
    #[command(
        after_help = "Example:\n  duetime dead resolve --topic order.unpaid --key order-42 --outcome succeeded --note 'the bank has it'"
    )]
    Resolve(Resolve),
    /// Drop the record of one; the audit keeps a line
    #[command(after_help = "Example:\n  duetime dead discard 0192f0c1-2345-7abc-8def-0123456789ab")]
    Discard(Which),
}

#[derive(ClapArgs, Debug)]
struct List {
    /// Of this topic
    #[arg(long)]
    topic: Option<String>,
    /// With a key that starts like this
    #[arg(long, value_name = "PREFIX")]
    key_prefix: Option<String>,
    /// Given up for this reason, such as attempts_used_up or outcome_unknown
    #[arg(long)]
    reason: Option<String>,
    /// Given up after this time
    #[arg(long, value_name = "TIME")]
    after: Option<String>,
    /// Given up before this time
    #[arg(long, value_name = "TIME")]
    before: Option<String>,
    #[command(flatten)]
    pages: Pages,
}

impl List {
    fn query(&self) -> Vec<(String, String)> {
        let asked = [("state", "dead"), ("order", "-ended_at")];
        let asked = asked.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let given = [
            ("topic", &self.topic),
            ("key_prefix", &self.key_prefix),
            ("dead_reason", &self.reason),
            ("ended_after", &self.after),
            ("ended_before", &self.before),
        ];
        let given = given.into_iter();
        let given = given.filter_map(|(name, value)| Some((name.to_owned(), value.clone()?)));
        asked.into_iter().chain(given).collect()
    }
}

#[derive(ClapArgs, Debug)]
struct Resolve {
    #[command(flatten)]
    which: Which,
    /// What became of it
    #[arg(long, value_parser = PossibleValuesParser::new(["succeeded", "failed"]))]
    outcome: String,
    /// How you know
    #[arg(long)]
    note: String,
}

const COLUMNS: &[Column] = &[
    ("ID", |task, _| render::shown(&task["id"])),
    ("TOPIC", |task, _| render::shown(&task["topic"])),
    ("KEY", |task, _| render::shown(&task["key"])),
    ("REASON", |task, _| render::shown(&task["dead_reason"])),
    ("LAST OUTCOME", |task, _| {
        let last = &task["last_outcome"];
        match last["error"]["code"].as_str() {
            Some(code) => render::plain(code),
            None => render::shown(&last["outcome"]),
        }
    }),
    ("ATTEMPTS", |task, _| render::shown(&task["attempts"])),
    ("ENDED", |task, _| render::shown(&task["ended_at"])),
];

pub(super) fn run(args: Args, out: &mut Out<'_>) -> Result<(), Failure> {
    let client = Client::new(&args.server)?;
    let nothing = Body::default();
    let request = match args.command {
        Command::List(filter) => {
            let list_of = ("list dead letters", segments(&["tasks"]));
            let query = filter.query();
            return list(&client, list_of, query, filter.pages, COLUMNS, out);
        }
        Command::Replay(which) => which.verb("replay", &nothing),
        Command::Resolve(resolve) => {
            let body = nothing.with("outcome", &Some(resolve.outcome));
            resolve
                .which
                .verb("resolve", &body.with("note", &Some(resolve.note)))
        }
        Command::Discard(which) => which.verb("discard", &nothing),
    };
    let answer = client.send(request)?;
    out.answer(&answer, render::sheet)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::tests::duetime;
    use crate::client::scripted::Service;

    #[test]
    fn dead_letters_are_listed_with_why_they_were_given_up_the_latest_first() {
        let task = r#"{"id":"1","topic":"t","key":"k","dead_reason":"refused","attempts":3,"last_outcome":{"outcome":"failed","error":{"code":"http_410"}},"ended_at":"2026-12-01T00:00:00.000Z"}"#;
        let page = format!(r#"{{"items":[{task}],"next_cursor":null}}"#);
        let service = Service::answering(&[("200 OK", &page)]);
        let list = ["dead", "list", "--topic", "t", "--reason", "refused"];
        let (code, out, err) = duetime(&[&list[..], &["--url", &service.url]].concat());
        assert_eq!(code, 0, "{err}");
        let last = out.lines().last().unwrap_or_default();
        let words: Vec<&str> = last.split_whitespace().collect();
        let when = "2026-12-01T00:00:00.000Z";
        assert_eq!(words, ["1", "t", "k", "refused", "http_410", "3", when]);
        assert_eq!(
            service.asked().line,
            "GET /v1/tasks?state=dead&order=-ended_at&topic=t&dead_reason=refused"
        );
    }

    #[test]
    fn one_is_replayed_resolved_with_a_note_or_discarded() {
        let which = ["--topic", "t", "--key", "k"];
        let resolve = ["--outcome", "succeeded", "--note", "the bank has it"];
        for (verb, more, body) in [
            ("replay", &[][..], json!({})),
            ("discard", &[], json!({})),
            (
                "resolve",
                &resolve,
                json!({"outcome": "succeeded", "note": "the bank has it"}),
            ),
        ] {
            let service = Service::answering(&[("200 OK", r#"{"id":"1","state":"pending"}"#)]);
            let args = [&["dead", verb], &which[..], more, &["--url", &service.url]].concat();
            let (code, out, err) = duetime(&args);
            assert_eq!(code, 0, "{err}");
            assert!(out.contains("pending"), "{out}");
            let asked = service.asked();
            assert_eq!(asked.line, format!("POST /v1/topics/t/keys/k/{verb}"));
            assert_eq!(asked.body, body);
        }
    }
}

//! `duetime topic …`: declare topics, look at them, hold them back.

use clap::builder::NonEmptyStringValueParser;
use clap::{Args as ClapArgs, Subcommand};

use super::client::{Body, Client, Request, Server};
use super::resource::Definition;
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
    /// Create a topic or replace its definition
    #[command(after_help = "Example:\n  \
        duetime topic put order.unpaid '{\"retry\": {\"fixed\": \"PT10S\", \"max_attempts\": 5}}'")]
    Put(Put),
    /// Show one topic
    #[command(after_help = "Example:\n  duetime topic get order.unpaid")]
    Get(Name),
    /// List topics
    #[command(after_help = "Example:\n  duetime topic list --all")]
    List(Pages),
    /// Forget a topic's definition
    #[command(after_help = "Example:\n  duetime topic delete order.unpaid")]
    Delete(Name),
    /// Start none of the topic's tasks until it is resumed
    #[command(after_help = "Example:\n  duetime topic pause order.unpaid")]
    Pause(Name),
    /// Let the topic's tasks start again
    #[command(after_help = "Example:\n  duetime topic resume order.unpaid")]
    Resume(Name),
}

#[derive(ClapArgs, Debug)]
struct Name {
    /// The topic's name
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    name: String,
}

impl Name {
    fn path(&self) -> Vec<String> {
        segments(&["topics", &self.name])
    }

    fn verb(&self, verb: &str) -> Request {
        let what = format!("{verb} topic {}", self.name);
        Request::post(
            what,
            segments(&["topics", &self.name, verb]),
            &Body::default(),
        )
    }
}

#[derive(ClapArgs, Debug)]
struct Put {
    #[command(flatten)]
    topic: Name,
    #[command(flatten)]
    definition: Definition,
}

const COLUMNS: &[Column] = &[
    ("NAME", |topic, _| render::shown(&topic["name"])),
    ("VERSION", |topic, _| render::shown(&topic["version"])),
    ("RULE", |topic, _| render::shown(&topic["rule"])),
    ("CLASS", |topic, _| render::shown(&topic["class"])),
    ("DELIVERY", |topic, _| render::shown(&topic["delivery"])),
    ("PAUSED", |topic, _| render::shown(&topic["paused"])),
];

pub(super) fn run(args: Args, out: &mut Out<'_>) -> Result<(), Failure> {
    let client = Client::new(&args.server)?;
    let request = match args.command {
        Command::Put(put) => {
            let what = format!("put topic {}", put.topic.name);
            Request::put(what, put.topic.path(), &put.definition.read()?)
        }
        Command::Get(topic) => Request::get(format!("get topic {}", topic.name), topic.path()),
        Command::List(pages) => {
            let list_of = ("list topics", segments(&["topics"]));
            return list(&client, list_of, Vec::new(), pages, COLUMNS, out);
        }
        Command::Delete(topic) => {
            Request::delete(format!("delete topic {}", topic.name), topic.path())
        }
        Command::Pause(topic) => topic.verb("pause"),
        Command::Resume(topic) => topic.verb("resume"),
    };
    let answer = client.send(request)?;
    out.answer(&answer, |topic, now| match render::sheet(topic, now) {
        empty if empty.is_empty() => String::from("done"),
        sheet => sheet,
    })
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use std::fs;

    use serde_json::json;

    use super::super::tests::{duetime, refused};
    use crate::client::scripted::Service;

    const TOPIC: &str = r#"{"name":"order.unpaid","version":2,"class":"core","paused":false}"#;

    fn at(service: &Service, args: &[&str]) -> (u8, String, String) {
        duetime(&[args, &["--url", &service.url]].concat())
    }

    #[test]
    fn put_takes_its_definition_from_the_argument_or_a_file() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("topic.json");
        fs::write(&file, "{\"class\": \"core\"}\n").unwrap();
        let service = Service::answering(&[("200 OK", TOPIC), ("200 OK", TOPIC)]);
        let (code, out, _) = at(
            &service,
            &["topic", "put", "order.unpaid", r#"{"class":"core"}"#],
        );
        assert_eq!(
            (code, out.as_str()),
            (
                0,
                "name     order.unpaid\nversion  2\npaused   false\nclass    core\n"
            )
        );
        let from_file = [
            "topic",
            "put",
            "order.unpaid",
            "--file",
            file.to_str().unwrap(),
        ];
        assert_eq!(at(&service, &from_file).0, 0);
        for _ in 0..2 {
            let asked = service.asked();
            assert_eq!(
                (asked.line.as_str(), asked.body),
                ("PUT /v1/topics/order.unpaid", json!({"class": "core"}))
            );
        }
    }

    #[test]
    fn a_definition_that_cannot_be_read_is_named_with_its_place() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("topic.json");
        let put = ["topic", "put", "t", "--file", file.to_str().unwrap()];
        let (code, _, err) = duetime(&put);
        assert!(code == 1 && err.contains("topic.json"), "{err}");
        fs::write(&file, "{\n  \"class\" 1}").unwrap();
        let (code, _, err) = duetime(&put);
        assert!(
            code == 1 && err.contains("--file") && err.contains("line 2 column 11"),
            "{err}"
        );
        fs::write(&file, " ".repeat(1024 * 1024 + 1)).unwrap();
        assert!(duetime(&put).2.contains("over 1024 KiB"));
        assert_eq!(refused(&["topic", "put", "t"]).0, 2);
        assert_eq!(refused(&["topic", "put", "t", "{"]).0, 2);
        assert_eq!(refused(&["topic", "put", "t", "{}", "--file", "x"]).0, 2);
    }

    #[test]
    fn topics_are_shown_listed_paused_and_resumed() {
        let list = format!(r#"{{"items":[{TOPIC}],"next_cursor":null}}"#);
        let service = Service::answering(&[
            ("200 OK", TOPIC),
            ("200 OK", &list),
            ("200 OK", TOPIC),
            ("204 No Content", ""),
        ]);
        assert!(
            at(&service, &["topic", "get", "order.unpaid"])
                .1
                .contains("core")
        );
        let (_, out, _) = at(&service, &["topic", "list"]);
        assert_eq!(
            out.lines().last(),
            Some("order.unpaid  2        -     core   -         false")
        );
        assert_eq!(at(&service, &["topic", "pause", "order.unpaid"]).0, 0);
        assert_eq!(
            at(&service, &["topic", "resume", "order.unpaid"]).1,
            "done\n"
        );
        for line in [
            "GET /v1/topics/order.unpaid",
            "GET /v1/topics",
            "POST /v1/topics/order.unpaid/pause",
            "POST /v1/topics/order.unpaid/resume",
        ] {
            assert_eq!(service.asked().line, line);
        }
    }
}

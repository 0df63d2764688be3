//! `duetime rule …`: when tasks are due that do not say it.

use clap::{Args as ClapArgs, Subcommand};
use serde_json::json;
use serde_json::value::RawValue;

use super::client::{Client, Request, Server, parse_json};
use super::resource::{self, Kind, Name, show};
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
    #[command(flatten)]
    Shared(Shared),
    /// Give the latest version to some only; all others get the one before
    #[command(after_help = "Example:\n  duetime rule rollout order-unpaid '{\"percent\": 10}'")]
    Rollout {
        #[command(flatten)]
        rule: Name,
        /// Who gets it, as JSON: percent, keys, if, topic_prefix, from, until
        #[arg(value_parser = parse_json)]
        reach: Box<RawValue>,
    },
    /// Tell what it would make of the stored tasks that go by it, with another content or as it is
    #[command(
        after_help = "Example:\n  duetime rule preview order-unpaid '{\"rule\": {\"fixed\": {\"after\": \"PT45M\"}}}'"
    )]
    Preview {
        #[command(flatten)]
        rule: Name,
        /// As JSON: rule, filter
        #[arg(value_parser = parse_json, default_value = "{}")]
        what: Box<RawValue>,
    },
    /// Tell what is different between two versions
    #[command(after_help = "Example:\n  duetime rule diff order-unpaid 3 --to 5")]
    Diff {
        #[command(flatten)]
        rule: Name,
        /// The one version
        version: u64,
        /// The other; the latest unless it is said
        #[arg(long)]
        to: Option<u64>,
    },
    /// Put it in force again
    #[command(after_help = "Example:\n  duetime rule enable order-unpaid")]
    Enable(Name),
    /// Put it out of force: it gives its default, if it has one
    #[command(after_help = "Example:\n  duetime rule disable order-unpaid")]
    Disable(Name),
    /// Bring an older version again
    #[command(after_help = "Example:\n  duetime rule rollback order-unpaid 3")]
    Rollback {
        #[command(flatten)]
        rule: Name,
        /// Its number
        version: u64,
    },
}

resource::commands!("rule", "order-unpaid", r#"{"fixed": {"after": "PT30M"}}"#);

const JSON: &str = "application/json";

const RULE: Kind = Kind {
    word: "rule",
    words: "rules",
    columns: &[
        ("NAME", |it, _| render::shown(&it["name"])),
        ("VERSION", |it, _| render::shown(&it["version"])),
        ("KIND", |it, _| {
            let kinds = ["fixed", "conditional", "excluding", "staged"];
            let kind = kinds.into_iter().find(|kind| !it[*kind].is_null());
            kind.unwrap_or("-").to_owned()
        }),
        ("ROLLOUT", |it, _| match it["rollout"].is_null() {
            true => "-".to_owned(),
            false => it["rollout"]["reach"].to_string(),
        }),
        ("CHANGED", |it, _| render::shown(&it["changed_at"])),
    ],
};

pub(super) fn run(args: Args, out: &mut Out<'_>) -> Result<(), Failure> {
    let client = Client::new(&args.server)?;
    let request = match args.command {
        Command::Shared(command) => return resource::run(&RULE, command, &client, out),
        Command::Rollout { rule, reach } => {
            let what = format!("roll out rule {}", rule.name);
            let path = rule.path(&RULE, &["rollout"]);
            Request::post_text(what, path, JSON, reach.get().to_owned())
        }
        Command::Preview { rule, what } => {
            let told = format!("preview rule {}", rule.name);
            let path = rule.path(&RULE, &["preview"]);
            Request::post_text(told, path, JSON, what.get().to_owned())
        }
        Command::Diff { rule, version, to } => {
            let what = format!("compare versions of rule {}", rule.name);
            let path = rule.path(&RULE, &["versions", &version.to_string(), "diff"]);
            let to = to.map(|to| ("to".to_owned(), to.to_string()));
            Request::get(what, path).query(to.into_iter().collect())
        }
        Command::Enable(rule) => rule.verb(&RULE, "enable"),
        Command::Disable(rule) => rule.verb(&RULE, "disable"),
        Command::Rollback { rule, version } => {
            let what = format!("roll back rule {}", rule.name);
            let path = rule.path(&RULE, &["rollback"]);
            let body = json!({"version": version});
            Request::post_text(what, path, JSON, body.to_string())
        }
    };
    show(&client, request, out)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::tests::{duetime, refused};
    use crate::client::scripted::Service;

    const RULE: &str = r#"{"name":"r","version":2,"changed_at":"2026-12-01T00:00:00.000Z","rollout":null,"fixed":{"after":"PT30M"}}"#;

    #[test]
    fn rules_are_listed_rolled_out_and_rolled_back() {
        let list = format!(r#"{{"items":[{RULE}],"next_cursor":null}}"#);
        let service = Service::answering(&[("200 OK", &list), ("200 OK", RULE), ("200 OK", RULE)]);
        let at = |args: &[&str]| duetime(&[args, &["--url", &service.url]].concat());
        let (code, out, err) = at(&["rule", "list"]);
        assert!(code == 0 && out.contains("fixed"), "{out} {err}");
        assert_eq!(service.asked().line, "GET /v1/rules");
        assert_eq!(at(&["rule", "rollout", "r", r#"{"percent": 10}"#]).0, 0);
        let asked = service.asked();
        let expected = ("POST /v1/rules/r/rollout", json!({"percent": 10}));
        assert_eq!((asked.line.as_str(), asked.body), expected);
        assert_eq!(at(&["rule", "rollback", "r", "1"]).0, 0);
        let asked = service.asked();
        let expected = ("POST /v1/rules/r/rollback", json!({"version": 1}));
        assert_eq!((asked.line.as_str(), asked.body), expected);
        assert_eq!(refused(&["rule", "rollback", "r", "x"]).0, 2);
    }

    #[test]
    fn rules_are_previewed_compared_and_put_out_of_force() {
        let service = Service::answering(&[("200 OK", RULE), ("200 OK", RULE), ("200 OK", RULE)]);
        let at = |args: &[&str]| duetime(&[args, &["--url", &service.url]].concat());
        assert_eq!(at(&["rule", "preview", "r"]).0, 0);
        let asked = service.asked();
        let expected = ("POST /v1/rules/r/preview", json!({}));
        assert_eq!((asked.line.as_str(), asked.body), expected);
        assert_eq!(at(&["rule", "diff", "r", "1", "--to", "2"]).0, 0);
        assert_eq!(service.asked().line, "GET /v1/rules/r/versions/1/diff?to=2");
        assert_eq!(at(&["rule", "disable", "r"]).0, 0);
        assert_eq!(service.asked().line, "POST /v1/rules/r/disable");
    }
}

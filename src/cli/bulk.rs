//! `duetime bulk …`: one verb for many tasks, in the background.

use std::io::{self, IsTerminal, Write};
use std::thread;
use std::time::Duration;

use clap::builder::{NonEmptyStringValueParser, PossibleValuesParser};
use clap::{Args as ClapArgs, Subcommand};
use serde_json::{Map, Value, json};

use super::client::{Answer, Body, Client, Request, Server};
use super::filter::{Filter, STATES};
use super::task::{Column, Pages, list, segments};
use super::{Failure, Out, render};
use crate::clock::WallMs;

/// How often `--wait` looks.
const LOOK_EVERY: Duration = Duration::from_millis(250);

#[derive(ClapArgs, Debug)]
pub(super) struct Args {
    #[command(flatten)]
    server: Server,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Begin one: a verb for every task that the flags take in
    #[command(
        after_help = "Examples:\n  duetime bulk create cancel --topic order.unpaid --reason 'sold out' --dry-run --wait\n  \
                      duetime bulk create reschedule --topic order.unpaid --extend-by PT1H --rate 200"
    )]
    Create(Box<Create>),
    /// Show how far one is
    #[command(after_help = "Example:\n  duetime bulk get 5f0c2a9be1d37746 --wait")]
    Get {
        #[command(flatten)]
        job: Job,
        #[command(flatten)]
        wait: Wait,
    },
    /// List those that are kept, the latest first
    #[command(after_help = "Example:\n  duetime bulk list")]
    List,
    /// Hold one
    #[command(after_help = "Example:\n  duetime bulk pause 5f0c2a9be1d37746")]
    Pause(Job),
    /// Let one go on
    #[command(after_help = "Example:\n  duetime bulk resume 5f0c2a9be1d37746")]
    Resume(Job),
    /// End one where it is
    #[command(after_help = "Example:\n  duetime bulk stop 5f0c2a9be1d37746")]
    Stop(Job),
    /// Take back what one did (pause, resume, reschedule), but for tasks that were changed since
    #[command(after_help = "Example:\n  duetime bulk undo 5f0c2a9be1d37746 --wait")]
    Undo {
        #[command(flatten)]
        job: Job,
        #[command(flatten)]
        wait: Wait,
    },
}

/// Names a bulk job.
#[derive(ClapArgs, Debug)]
struct Job {
    /// The job's id
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    id: String,
}

impl Job {
    fn get(&self) -> Request {
        Request::get(
            format!("get bulk job {}", self.id),
            segments(&["bulk", &self.id]),
        )
    }

    fn verb(&self, verb: &str) -> Request {
        let what = format!("{verb} bulk job {}", self.id);
        let path = segments(&["bulk", &self.id, verb]);
        Request::post(what, path, &Body::default())
    }
}

#[derive(ClapArgs, Debug, Clone, Copy)]
struct Wait {
    /// Wait until it has ended, and show how far it is meanwhile
    #[arg(long)]
    wait: bool,
}

/// How a job goes about it.
#[derive(ClapArgs, Debug)]
struct Pace {
    /// Tasks per second, at most; without it, 500
    #[arg(long)]
    rate: Option<u32>,
    /// Change nothing; count, and name some of, the tasks that would be changed
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    wait: Wait,
}

#[derive(ClapArgs, Debug)]
struct Create {
    /// What is done to each task
    #[arg(value_parser = PossibleValuesParser::new(["cancel", "pause", "resume", "reschedule", "replay", "run_now", "discard", "recompute"]))]
    action: String,
    #[command(flatten)]
    filter: Filter,
    /// In this state; without it, those in which the action does something
    #[arg(long, value_parser = PossibleValuesParser::new(STATES))]
    state: Vec<String>,
    /// Why, for the logs of what is cancelled
    #[arg(long)]
    reason: Option<String>,
    /// Of a pause: whether due times stand (keep) or move by its length (freeze)
    #[arg(long, value_parser = PossibleValuesParser::new(["keep", "freeze"]))]
    clock: Option<String>,
    /// Of a reschedule: due this long from when it happens to the task
    #[arg(long, value_name = "DURATION")]
    delay: Option<String>,
    /// Of a reschedule: due at this time
    #[arg(long, value_name = "TIME")]
    due_at: Option<String>,
    /// Of a reschedule: due this much later than so far
    #[arg(long, value_name = "DURATION")]
    extend_by: Option<String>,
    #[command(flatten)]
    pace: Pace,
}

impl Create {
    fn args(&self) -> Map<String, Value> {
        let given = [
            ("reason", &self.reason),
            ("clock", &self.clock),
            ("delay", &self.delay),
            ("due_at", &self.due_at),
            ("extend_by", &self.extend_by),
        ];
        let given = given.into_iter();
        given
            .filter_map(|(name, value)| Some((name.to_owned(), value.clone()?.into())))
            .collect()
    }
}

const COLUMNS: &[Column] = &[
    ("ID", |job, _| render::shown(&job["id"])),
    ("ACTION", |job, _| render::shown(&job["action"])),
    ("STATE", |job, _| render::shown(&job["state"])),
    ("DRY RUN", |job, _| render::shown(&job["dry_run"])),
    ("MATCHED", |job, _| render::shown(&job["counts"]["matched"])),
    ("DONE", |job, _| render::shown(&job["counts"]["done"])),
    ("BEGUN", |job, _| render::shown(&job["begun_at"])),
];

pub(super) fn run(args: Args, out: &mut Out<'_>) -> Result<(), Failure> {
    let client = Client::new(&args.server)?;
    match args.command {
        Command::Create(create) => {
            let mut filter = create.filter.object();
            if !create.state.is_empty() {
                filter.insert("state".into(), create.state.clone().into());
            }
            begin(
                &client,
                &create.action,
                filter,
                create.args(),
                &create.pace,
                out,
            )
        }
        Command::Get { job, wait } => send(&client, job.get(), wait, out),
        Command::List => {
            let path = segments(&["bulk"]);
            let what = ("list bulk jobs", path);
            list(&client, what, Vec::new(), Pages::default(), COLUMNS, out)
        }
        Command::Pause(job) => send(&client, job.verb("pause"), Wait { wait: false }, out),
        Command::Resume(job) => send(&client, job.verb("resume"), Wait { wait: false }, out),
        Command::Stop(job) => send(&client, job.verb("stop"), Wait { wait: false }, out),
        Command::Undo { job, wait } => send(&client, job.verb("undo"), wait, out),
    }
}

fn begin(
    client: &Client,
    action: &str,
    filter: Map<String, Value>,
    args: Map<String, Value>,
    pace: &Pace,
    out: &mut Out<'_>,
) -> Result<(), Failure> {
    let mut body = json!({"action": action, "filter": filter, "dry_run": pace.dry_run});
    if !args.is_empty() {
        body["args"] = args.into();
    }
    if let Some(rate) = pace.rate {
        body["rate"] = rate.into();
    }
    let what = format!("begin a bulk {action}");
    let path = segments(&["bulk"]);
    let request = Request::post_text(what, path, "application/json", body.to_string());
    send(client, request, pace.wait, out)
}

/// Sends a request that answers a job, waits for its end if that is wanted, and shows it.
fn send(client: &Client, request: Request, wait: Wait, out: &mut Out<'_>) -> Result<(), Failure> {
    let mut answer = client.send(request)?;
    let shows = wait.wait && !out.json && io::stderr().is_terminal();
    while wait.wait && is_under_way(&answer) {
        if shows {
            // Nobody need see it.
            let _ = write!(io::stderr(), "\r\x1b[K{}", bar(&answer.value));
        }
        thread::sleep(LOOK_EVERY);
        let id = answer.value["id"].as_str().unwrap_or_default().to_owned();
        answer = client.send(Job { id }.get())?;
    }
    if shows {
        let _ = write!(io::stderr(), "\r\x1b[K");
    }
    out.answer(&answer, words)
}

fn is_under_way(answer: &Answer) -> bool {
    let state = answer.value["state"].as_str();
    state.is_some_and(|state| ["running", "paused", "undoing"].contains(&state))
}

/// How far it is, in a line: how many there will be nobody knows before it is through.
fn bar(job: &Value) -> String {
    let count = |name: &str| job["counts"][name].as_u64().unwrap_or(0);
    let refused = job["counts"]["refused"].as_object();
    let refused = refused.into_iter().flat_map(Map::values);
    let refused: u64 = refused.filter_map(Value::as_u64).sum();
    let back = match job["state"].as_str() {
        Some("undoing") => format!(", {} taken back, {} kept", count("undone"), count("kept")),
        _ => String::new(),
    };
    format!(
        "{} {}: {} looked at, {} match, {} done, {refused} refused{back}",
        render::shown(&job["action"]),
        render::shown(&job["state"]),
        count("looked_at"),
        count("matched"),
        count("done"),
    )
}

fn words(job: &Value, now: WallMs) -> String {
    format!("{}\n{}", render::sheet(job, now), bar(job))
}

#[cfg(test)]
mod tests {
    use super::super::tests::{duetime, refused};
    use crate::client::scripted::Service;

    const RUNNING: &str = r#"{"id":"5f0c2a9be1d37746","state":"running","action":"replay","counts":{"looked_at":9,"matched":4,"done":3,"refused":{},"failed":0,"undone":0,"kept":0}}"#;
    const DONE: &str = r#"{"id":"5f0c2a9be1d37746","state":"done","action":"replay","counts":{"looked_at":9,"matched":4,"done":3,"refused":{"exists":1},"failed":0,"undone":0,"kept":0}}"#;

    #[test]
    fn flags_become_filter_and_arguments_and_the_end_is_waited_for() {
        let service = Service::answering(&[
            ("202 Accepted", RUNNING),
            ("200 OK", RUNNING),
            ("200 OK", DONE),
        ]);
        let args = [
            "bulk",
            "create",
            "reschedule",
            "--topic",
            "a",
            "--tag",
            "region=eu",
            "--state",
            "paused",
            "--extend-by",
            "PT1H",
            "--rate",
            "7",
            "--wait",
            "--url",
            &service.url,
        ];
        let (code, shown, _) = duetime(&args);
        assert_eq!(code, 0);
        assert!(
            shown.contains("replay done: 9 looked at, 4 match, 3 done, 1 refused"),
            "{shown}"
        );
        let asked = service.asked();
        assert_eq!(asked.line, "POST /v1/bulk");
        let wanted = serde_json::json!({"action": "reschedule", "dry_run": false, "rate": 7, "args": {"extend_by": "PT1H"},
            "filter": {"topic": "a", "tag.region": "eu", "state": ["paused"]}});
        assert_eq!(asked.body, wanted);
        assert_eq!(service.asked().line, "GET /v1/bulk/5f0c2a9be1d37746");
    }

    #[test]
    fn jobs_are_held_ended_taken_back_and_listed() {
        let list = format!(r#"{{"items":[{DONE}],"next_cursor":null}}"#);
        let answers = [
            ("200 OK", DONE),
            ("200 OK", DONE),
            ("200 OK", DONE),
            ("200 OK", DONE),
            ("200 OK", list.as_str()),
        ];
        let service = Service::answering(&answers);
        let id = "5f0c2a9be1d37746";
        for verb in ["pause", "resume", "stop", "undo"] {
            duetime(&["bulk", verb, id, "--url", &service.url]);
            assert_eq!(service.asked().line, format!("POST /v1/bulk/{id}/{verb}"));
        }
        let listed = duetime(&["bulk", "list", "--url", &service.url]).1;
        assert!(listed.contains(id), "{listed}");
        assert_eq!(
            refused(&["bulk", "create", "complete", "--topic", "a"]).0,
            2
        );
    }
}

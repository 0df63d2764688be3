//! `duetime task …`: one task by id or by topic and key, or many by filter.

use std::collections::BTreeMap;

use clap::builder::{NonEmptyStringValueParser, PossibleValuesParser};
use clap::{Args as ClapArgs, Subcommand, ValueEnum};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::client::{Body, Client, Request, Server, parse_idempotency_key, parse_json};
use super::filter::{Filter, STATES, parse_tag};
use super::{Failure, Out, render};
use crate::ids::TaskId;
use crate::limits::PAGE_ITEMS_MAX;

#[derive(ClapArgs, Debug)]
pub(super) struct Args {
    #[command(flatten)]
    server: Server,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Promise that something will happen
    #[command(after_help = "Example:\n  \
        duetime task create --topic order.unpaid --key order-42 --delay PT30M \\\n    \
        --action '{\"http\": {\"url\": \"http://127.0.0.1:9000/close\"}}' --payload '{\"order_id\": 42}'")]
    Create(Box<Create>),
    /// Show one task
    #[command(after_help = "Example:\n  duetime task get --topic order.unpaid --key order-42")]
    Get(Which),
    /// List tasks, by due time unless --order says otherwise
    #[command(
        after_help = "Example:\n  duetime task list --topic order.unpaid --state dead --all --json"
    )]
    List(Box<List>),
    /// Call a task off; a running attempt is stopped
    #[command(
        after_help = "Example:\n  duetime task cancel --topic order.unpaid --key order-42 --reason paid"
    )]
    Cancel(Cancel),
    /// Hold a task back until it is resumed
    #[command(
        after_help = "Example:\n  duetime task pause 0192f0c1-2345-7abc-8def-0123456789ab --clock freeze"
    )]
    Pause(Pause),
    /// Let a paused task go on
    #[command(after_help = "Example:\n  duetime task resume 0192f0c1-2345-7abc-8def-0123456789ab")]
    Resume(Which),
    /// Move the due time
    #[command(
        after_help = "Example:\n  duetime task reschedule --topic order.unpaid --key order-42 --extend-by PT10M"
    )]
    Reschedule(Reschedule),
    /// Make a task due at once
    #[command(after_help = "Example:\n  duetime task run-now 0192f0c1-2345-7abc-8def-0123456789ab")]
    RunNow(Which),
    /// Give a dead task a fresh start
    #[command(after_help = "Example:\n  duetime task replay 0192f0c1-2345-7abc-8def-0123456789ab")]
    Replay(Which),
    /// End a task as succeeded from outside
    #[command(
        after_help = "Example:\n  duetime task complete --topic order.unpaid --key order-42 --result '{\"paid\": true}'"
    )]
    Complete(Complete),
    /// Show every change of a task as a time line
    #[command(after_help = "Example:\n  duetime task log 0192f0c1-2345-7abc-8def-0123456789ab")]
    Log(Which),
    /// Show the attempts of a task
    #[command(
        after_help = "Example:\n  duetime task attempts 0192f0c1-2345-7abc-8def-0123456789ab"
    )]
    Attempts(Which),
    /// List what was said of attempts when they were over, the newest first
    #[command(
        after_help = "Example:\n  duetime task late --topic order.unpaid --outcome succeeded --all"
    )]
    Late(Late),
}

/// Names one task.
#[derive(ClapArgs, Debug)]
pub(super) struct Which {
    /// The task's id
    #[arg(required_unless_present = "key", conflicts_with_all = ["topic", "key"])]
    id: Option<TaskId>,
    /// The task's topic, with --key
    #[arg(long, requires = "key", value_parser = NonEmptyStringValueParser::new())]
    topic: Option<String>,
    /// The task's key inside its topic
    #[arg(long, requires = "topic", value_parser = NonEmptyStringValueParser::new())]
    key: Option<String>,
}

impl Which {
    fn name(&self) -> String {
        match (&self.id, &self.topic, &self.key) {
            (Some(id), ..) => format!("task {id}"),
            (_, topic, key) => format!(
                "the task of topic {} with key {}",
                topic.as_deref().unwrap_or_default(),
                key.as_deref().unwrap_or_default()
            ),
        }
    }

    fn path(&self) -> Vec<String> {
        match (&self.id, &self.topic, &self.key) {
            (None, Some(topic), Some(key)) => segments(&["topics", topic, "keys", key]),
            (id, ..) => vec![
                "tasks".into(),
                id.map(|id| id.to_string()).unwrap_or_default(),
            ],
        }
    }

    fn get(&self) -> Request {
        Request::get(format!("get {}", self.name()), self.path())
    }

    /// A verb on this task, as the API's path spells it.
    pub(super) fn verb(&self, verb: &str, body: &Body) -> Request {
        let mut path = self.path();
        path.push(verb.into());
        Request::post(
            format!("{} {}", verb.replace('-', " "), self.name()),
            path,
            body,
        )
    }

    /// What stands below the task, which has a path by id only.
    fn below(&self, part: &str, client: &Client) -> Result<Request, Failure> {
        let id = match self.id {
            Some(id) => id.to_string(),
            None => {
                let task = client.send(self.get())?;
                task.value["id"].as_str().unwrap_or_default().to_owned()
            }
        };
        let what = format!("get the {part} of {}", self.name());
        Ok(Request::get(what, segments(&["tasks", &id, part])))
    }
}

pub(super) fn segments(path: &[&str]) -> Vec<String> {
    path.iter().map(ToString::to_string).collect()
}

#[derive(ClapArgs, Debug)]
struct Create {
    /// Business line and kind of timeout
    #[arg(long)]
    topic: String,
    /// Your own id for the task inside the topic
    #[arg(long)]
    key: Option<String>,
    /// Due this long from now, as an ISO 8601 duration such as PT30M
    #[arg(long, conflicts_with_all = ["due_at", "stages"])]
    delay: Option<String>,
    /// Due at this time, such as 2026-12-01T10:30:00Z
    #[arg(long, value_name = "TIME", conflicts_with = "stages")]
    due_at: Option<String>,
    /// Time zone of a --due-at without offset, such as Europe/Berlin
    #[arg(
        long,
        requires = "due_at",
        conflicts_with = "delay",
        value_name = "ZONE"
    )]
    tz: Option<String>,
    /// What to do when due; without it the task waits for a pull worker
    #[arg(long, value_name = "JSON", value_parser = parse_json)]
    action: Option<Box<RawValue>>,
    /// Steps of the task instead of a time, as a list: each has a time, an action and attempts of its own
    #[arg(long, value_name = "JSON", value_parser = parse_json)]
    stages: Option<Box<RawValue>>,
    /// What the action is given
    #[arg(long, value_name = "JSON", value_parser = parse_json)]
    payload: Option<Box<RawValue>>,
    /// How failures are retried
    #[arg(long, value_name = "JSON", value_parser = parse_json)]
    retry: Option<Box<RawValue>>,
    /// Time limits
    #[arg(long, value_name = "JSON", value_parser = parse_json)]
    timeouts: Option<Box<RawValue>>,
    /// A tag to find the task by; may be given several times
    #[arg(long = "tag", value_name = "NAME=VALUE", value_parser = parse_tag)]
    tags: Vec<(String, String)>,
    /// What rules compute the due time from
    #[arg(long, value_name = "JSON", value_parser = parse_json)]
    facts: Option<Box<RawValue>>,
    /// What to do when a live task has this topic and key
    #[arg(long, value_enum)]
    on_existing: Option<OnExisting>,
    /// Whether an attempt whose outcome is unknown may be made again
    #[arg(long, value_enum)]
    delivery: Option<Delivery>,
    /// Class of service, such as core
    #[arg(long)]
    class: Option<String>,
    /// Makes the request safe to repeat: the same key gets the same answer for 24 hours
    #[arg(long, value_name = "KEY", value_parser = parse_idempotency_key)]
    idempotency_key: Option<String>,
}

#[derive(ValueEnum, Clone, Copy, Debug, Serialize)]
#[value(rename_all = "snake_case")]
#[serde(rename_all = "snake_case")]
enum OnExisting {
    Return,
    Reject,
    Replace,
    Extend,
    KeepLater,
}

#[derive(ValueEnum, Clone, Copy, Debug, Serialize)]
#[value(rename_all = "snake_case")]
#[serde(rename_all = "snake_case")]
enum Delivery {
    AtLeastOnce,
    AtMostOnce,
}

#[derive(ClapArgs, Debug)]
struct Cancel {
    #[command(flatten)]
    which: Which,
    /// Why, for the log
    #[arg(long)]
    reason: Option<String>,
    /// Also refuse a create of this key that arrives within this time
    #[arg(long, value_name = "DURATION")]
    tombstone_for: Option<String>,
}

#[derive(ClapArgs, Debug)]
struct Pause {
    #[command(flatten)]
    which: Which,
    /// Whether the due time stands (keep) or moves by the length of the pause (freeze)
    #[arg(long, value_parser = PossibleValuesParser::new(["keep", "freeze"]))]
    clock: Option<String>,
}

#[derive(ClapArgs, Debug)]
struct Reschedule {
    #[command(flatten)]
    which: Which,
    #[command(flatten)]
    to: NewDue,
    /// Time zone of a --due-at without offset
    #[arg(long, requires = "due_at", conflicts_with_all = ["delay", "extend_by"], value_name = "ZONE")]
    tz: Option<String>,
}

#[derive(ClapArgs, Debug)]
#[group(required = true, multiple = false)]
struct NewDue {
    /// Due this long from now
    #[arg(long, value_name = "DURATION")]
    delay: Option<String>,
    /// Due at this time
    #[arg(long, value_name = "TIME")]
    due_at: Option<String>,
    /// Due this much later than so far
    #[arg(long, value_name = "DURATION")]
    extend_by: Option<String>,
}

#[derive(ClapArgs, Debug)]
struct Complete {
    #[command(flatten)]
    which: Which,
    /// The result to keep
    #[arg(long, value_name = "JSON", value_parser = parse_json)]
    result: Option<Box<RawValue>>,
    /// Only if the attempt with this token still has the task
    #[arg(long)]
    token: Option<u64>,
}

#[derive(ClapArgs, Debug)]
struct List {
    #[command(flatten)]
    filter: Filter,
    /// In this state
    #[arg(long, value_parser = PossibleValuesParser::new(STATES))]
    state: Option<String>,
    /// Sorted by this; a minus sign means the latest first
    #[arg(long, allow_hyphen_values = true, value_parser = PossibleValuesParser::new(["due_at", "-due_at", "-ended_at"]))]
    order: Option<String>,
    #[command(flatten)]
    pages: Pages,
}

impl List {
    fn query(&self) -> Vec<(String, String)> {
        let mut query = self.filter.words();
        for (name, value) in [("state", &self.state), ("order", &self.order)] {
            query.extend(value.clone().map(|value| (name.to_owned(), value)));
        }
        query
    }
}

#[derive(ClapArgs, Debug)]
struct Late {
    /// Of the task with this id
    #[arg(conflicts_with_all = ["topic", "key"])]
    id: Option<TaskId>,
    /// Of tasks of this topic
    #[arg(long)]
    topic: Option<String>,
    /// Of tasks with this key
    #[arg(long)]
    key: Option<String>,
    /// That say so
    #[arg(long, value_parser = PossibleValuesParser::new(["succeeded", "failed"]))]
    outcome: Option<String>,
    /// Treated so
    #[arg(long, value_parser = PossibleValuesParser::new(["refused", "accepted", "compensated"]))]
    treatment: Option<String>,
    /// That came then or later
    #[arg(long, value_name = "TIME")]
    after: Option<String>,
    /// That came before
    #[arg(long, value_name = "TIME")]
    before: Option<String>,
    #[command(flatten)]
    pages: Pages,
}

impl Late {
    fn path(&self) -> Vec<String> {
        match self.id {
            Some(id) => segments(&["tasks", &id.to_string(), "late-answers"]),
            None => segments(&["late-answers"]),
        }
    }

    fn query(&self) -> Vec<(String, String)> {
        let given = [
            ("topic", &self.topic),
            ("key", &self.key),
            ("outcome", &self.outcome),
            ("treatment", &self.treatment),
            ("after", &self.after),
            ("before", &self.before),
        ];
        let given = given.into_iter();
        given
            .filter_map(|(name, value)| Some((name.to_owned(), value.clone()?)))
            .collect()
    }
}

/// How much of a list to read.
#[derive(ClapArgs, Debug, Default)]
pub(super) struct Pages {
    /// Most items of a page
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(1..=PAGE_ITEMS_MAX as i64))]
    limit: Option<u16>,
    /// Go on where the page with this next_cursor ended
    #[arg(long)]
    cursor: Option<String>,
    /// Read page after page to the end
    #[arg(long)]
    all: bool,
}

#[derive(Deserialize)]
struct Page<'a> {
    #[serde(borrow)]
    items: Vec<&'a RawValue>,
    next_cursor: Option<String>,
}

/// A column of a list: its title and what it says of an item.
pub(super) type Column = (
    &'static str,
    fn(&serde_json::Value, crate::clock::WallMs) -> String,
);

/// Reads a list and writes it: one page as answered, or all pages as one.
///
/// JSON of all pages goes out page by page, so a long list needs no memory; text waits for the last row to align.
pub(super) fn list(
    client: &Client,
    (what, path): (&str, Vec<String>),
    mut query: Vec<(String, String)>,
    pages: Pages,
    columns: &[Column],
    out: &mut Out<'_>,
) -> Result<(), Failure> {
    let limit = pages.limit.or(pages.all.then_some(PAGE_ITEMS_MAX as u16));
    query.extend(limit.map(|limit| ("limit".into(), limit.to_string())));
    let mut cursor = pages.cursor;
    let mut rows = Vec::new();
    let mut separator = r#"{"items":["#;
    loop {
        let mut query = query.clone();
        query.extend(
            cursor
                .iter()
                .map(|cursor| ("cursor".into(), cursor.clone())),
        );
        let answer = client.send(Request::get(what, path.clone()).query(query))?;
        let page: Page<'_> = serde_json::from_str(&answer.text).map_err(|error| {
            Failure::new(format!("cannot {what}: the answer is no list: {error}"))
        })?;
        if !out.json {
            let items = render::items(&answer.value);
            rows.extend(
                items
                    .iter()
                    .map(|item| columns.iter().map(|(_, of)| of(item, out.now)).collect()),
            );
        } else if pages.all {
            for item in page.items {
                out.write(separator)?;
                out.write(item.get())?;
                separator = ",";
            }
        } else {
            return out.line(answer.text.trim_end());
        }
        if page.next_cursor.is_some() && page.next_cursor == cursor {
            return Err(Failure::new(format!(
                "cannot {what}: the service answers the same page again and again"
            )));
        }
        cursor = page.next_cursor;
        if !pages.all || cursor.is_none() {
            break;
        }
    }
    if out.json {
        if separator != "," {
            out.write(separator)?;
        }
        return out.line("]}");
    }
    if !rows.is_empty() {
        let titles: Vec<_> = columns.iter().map(|(title, _)| *title).collect();
        out.line(&render::table(&titles, rows))?;
    } else if cursor.is_none() {
        out.line("nothing found")?;
    }
    if let Some(cursor) = cursor {
        out.line(&format!(
            "there may be more: --all, or --cursor {}",
            render::plain(&cursor)
        ))?;
    }
    Ok(())
}

pub(super) const COLUMNS: &[Column] = &[
    ("ID", |task, _| render::shown(&task["id"])),
    ("TOPIC", |task, _| render::shown(&task["topic"])),
    ("KEY", |task, _| render::shown(&task["key"])),
    ("STATE", |task, _| render::shown(&task["state"])),
    ("DUE", render::due),
    ("ATTEMPTS", |task, _| render::shown(&task["attempts"])),
];

const LATE_COLUMNS: &[Column] = &[
    ("AT", |late, _| render::shown(&late["at"])),
    ("TASK", |late, _| render::shown(&late["task"])),
    ("TOPIC", |late, _| render::shown(&late["topic"])),
    ("KEY", |late, _| render::shown(&late["key"])),
    ("ATTEMPT", |late, _| render::shown(&late["attempt"])),
    ("WORKER", |late, _| render::shown(&late["worker"])),
    ("SAYS", |late, _| render::shown(&late["outcome"])),
    ("ENDED AS", |late, _| {
        render::shown(&late["attempt_outcome"])
    }),
    ("TREATMENT", |late, _| render::shown(&late["treatment"])),
];

pub(super) fn run(args: Args, out: &mut Out<'_>) -> Result<(), Failure> {
    let client = Client::new(&args.server)?;
    let nothing = Body::default();
    let request = match args.command {
        Command::Create(create) => return make(*create, &client, out),
        Command::List(filter) => {
            let query = filter.query();
            let list_of = ("list tasks", segments(&["tasks"]));
            return list(&client, list_of, query, filter.pages, COLUMNS, out);
        }
        Command::Log(which) => {
            let answer = client.send(which.below("log", &client)?)?;
            return out.answer(&answer, |log, _| render::log(log));
        }
        Command::Attempts(which) => {
            let answer = client.send(which.below("attempts", &client)?)?;
            return out.answer(&answer, |attempts, _| render::attempts(attempts));
        }
        Command::Late(late) => {
            let list_of = ("list late answers", late.path());
            let query = late.query();
            return list(&client, list_of, query, late.pages, LATE_COLUMNS, out);
        }
        Command::Get(which) => which.get(),
        Command::Cancel(Cancel {
            which,
            reason,
            tombstone_for,
        }) => {
            let body = nothing
                .with("reason", &reason)
                .with("tombstone_for", &tombstone_for);
            which.verb("cancel", &body)
        }
        Command::Pause(Pause { which, clock }) => {
            which.verb("pause", &nothing.with("clock", &clock))
        }
        Command::Resume(which) => which.verb("resume", &nothing),
        Command::Reschedule(Reschedule { which, to, tz }) => {
            let body = nothing
                .with("delay", &to.delay)
                .with("due_at", &to.due_at)
                .with("tz", &tz)
                .with("extend_by", &to.extend_by);
            which.verb("reschedule", &body)
        }
        Command::RunNow(which) => which.verb("run-now", &nothing),
        Command::Replay(which) => which.verb("replay", &nothing),
        Command::Complete(Complete {
            which,
            result,
            token,
        }) => which.verb(
            "complete",
            &nothing.with("result", &result).with("token", &token),
        ),
    };
    let answer = client.send(request)?;
    out.answer(&answer, |task, now| {
        let sheet = render::sheet(task, now);
        match answer.status {
            202 => format!("{sheet}\nthe running attempt is being stopped; its result can't win"),
            _ => sheet,
        }
    })
}

fn make(create: Create, client: &Client, out: &mut Out<'_>) -> Result<(), Failure> {
    let tags: Option<BTreeMap<_, _>> =
        (!create.tags.is_empty()).then(|| create.tags.into_iter().collect());
    let body = Body::default()
        .with("topic", &Some(&create.topic))
        .with("key", &create.key)
        .with("delay", &create.delay)
        .with("due_at", &create.due_at)
        .with("tz", &create.tz)
        .with("action", &create.action)
        .with("stages", &create.stages)
        .with("payload", &create.payload)
        .with("retry", &create.retry)
        .with("timeouts", &create.timeouts)
        .with("tags", &tags)
        .with("facts", &create.facts)
        .with("on_existing", &create.on_existing)
        .with("delivery", &create.delivery)
        .with("class", &create.class);
    let what = format!("create a task of topic {}", create.topic);
    let request =
        Request::post(what, segments(&["tasks"]), &body).idempotency_key(create.idempotency_key);
    let answer = client.send(request)?;
    out.answer(&answer, |task, now| {
        let sheet = render::sheet(task, now);
        match answer.status {
            _ if answer.replayed => format!(
                "{sheet}\nthe same answer as to the first request with this idempotency key"
            ),
            200 => format!("{sheet}\na task with this topic and key was there already"),
            _ => sheet,
        }
    })
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests;

//! `duetime schedule …`: what repeats.

use clap::{Args as ClapArgs, Subcommand};

use super::client::{Client, Request, Server};
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
    /// Show the next times of one
    #[command(after_help = "Example:\n  duetime schedule preview nightly --count 5")]
    Preview {
        #[command(flatten)]
        schedule: Name,
        /// Strictly after this time, such as 2026-12-01T10:30:00Z; without it, now
        #[arg(long, value_name = "TIME")]
        after: Option<String>,
        /// How many
        #[arg(long)]
        count: Option<u16>,
    },
    /// Make no occurrence until it is resumed
    #[command(after_help = "Example:\n  duetime schedule pause nightly")]
    Pause(Name),
    /// Go on with the next occurrence
    #[command(after_help = "Example:\n  duetime schedule resume nightly")]
    Resume(Name),
    /// Make an occurrence now, beside all others
    #[command(after_help = "Example:\n  duetime schedule run-now nightly")]
    RunNow(Name),
}

resource::commands!(
    "schedule",
    "nightly",
    r#"{"cron": "0 2 * * *", "tz": "Europe/Berlin", "topic": "report.nightly"}"#
);

const SCHEDULE: Kind = Kind {
    word: "schedule",
    words: "schedules",
    columns: &[
        ("NAME", |it, _| render::shown(&it["name"])),
        ("VERSION", |it, _| render::shown(&it["version"])),
        ("WHEN", |it, _| match &it["cron"] {
            cron if cron.is_string() => render::shown(cron),
            _ => render::shown(&it["every"]),
        }),
        ("TZ", |it, _| render::shown(&it["tz"])),
        ("TOPIC", |it, _| render::shown(&it["topic"])),
        ("PAUSED", |it, _| render::shown(&it["paused"])),
        ("NEXT", |it, _| render::shown(&it["next"])),
        ("RUNS", |it, _| render::shown(&it["runs"])),
    ],
};

pub(super) fn run(args: Args, out: &mut Out<'_>) -> Result<(), Failure> {
    let client = Client::new(&args.server)?;
    let request = match args.command {
        Command::Shared(command) => return resource::run(&SCHEDULE, command, &client, out),
        Command::Preview {
            schedule,
            after,
            count,
        } => {
            let what = format!("preview schedule {}", schedule.name);
            let query = [
                ("after", after),
                ("count", count.map(|count| count.to_string())),
            ];
            let given = query
                .into_iter()
                .filter_map(|(name, value)| Some((name.to_owned(), value?)));
            Request::get(what, schedule.path(&SCHEDULE, &["preview"])).query(given.collect())
        }
        Command::Pause(schedule) => schedule.verb(&SCHEDULE, "pause"),
        Command::Resume(schedule) => schedule.verb(&SCHEDULE, "resume"),
        Command::RunNow(schedule) => schedule.verb(&SCHEDULE, "run-now"),
    };
    show(&client, request, out)
}

#[cfg(test)]
mod tests {
    use super::super::tests::{duetime, refused};
    use crate::client::scripted::Service;

    const SCHEDULE: &str = r#"{"name":"nightly","version":1,"paused":false,"next":"2026-12-02T01:00:00.000Z","runs":3,"cron":"0 2 * * *","every":null,"tz":"Europe/Berlin","topic":"report"}"#;

    #[test]
    fn schedules_are_listed_previewed_paused_resumed_and_run() {
        let list = format!(r#"{{"items":[{SCHEDULE}],"next_cursor":null}}"#);
        let times = r#"{"times":["2026-12-02T01:00:00.000Z"]}"#;
        let service = Service::answering(&[
            ("200 OK", &list),
            ("200 OK", times),
            ("200 OK", SCHEDULE),
            ("200 OK", SCHEDULE),
            ("201 Created", r#"{"id":"1","state":"pending"}"#),
        ]);
        let at = |args: &[&str]| duetime(&[args, &["--url", &service.url]].concat()).1;
        assert_eq!(
            at(&["schedule", "list"]).lines().last(),
            Some(
                "nightly  1        0 2 * * *  Europe/Berlin  report  false   2026-12-02T01:00:00.000Z  3"
            )
        );
        let preview = [
            "schedule",
            "preview",
            "nightly",
            "--after",
            "2026-12-01T00:00:00Z",
            "--count",
            "1",
        ];
        assert!(at(&preview).contains("2026-12-02T01:00:00.000Z"));
        assert!(at(&["schedule", "pause", "nightly"]).contains("nightly"));
        assert!(at(&["schedule", "resume", "nightly"]).contains("nightly"));
        assert!(at(&["schedule", "run-now", "nightly"]).contains("pending"));
        for line in [
            "GET /v1/schedules",
            "GET /v1/schedules/nightly/preview?after=2026-12-01T00%3A00%3A00Z&count=1",
            "POST /v1/schedules/nightly/pause",
            "POST /v1/schedules/nightly/resume",
            "POST /v1/schedules/nightly/run-now",
        ] {
            assert_eq!(service.asked().line, line);
        }
        assert_eq!(refused(&["schedule", "put", "nightly"]).0, 2);
    }
}

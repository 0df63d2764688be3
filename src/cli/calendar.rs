//! `duetime calendar …`: when people work.

use std::path::PathBuf;

use clap::{Args as ClapArgs, Subcommand};

use super::client::{Client, Request, Server};
use super::resource::{self, Kind, Name, read_text, show};
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
    /// Add the holidays of an iCalendar file
    #[command(after_help = "Example:\n  duetime calendar import cn holidays.ics")]
    Import {
        #[command(flatten)]
        calendar: Name,
        /// The file; - is standard input
        file: PathBuf,
    },
}

resource::commands!(
    "calendar",
    "cn",
    r#"{"tz": "Asia/Shanghai", "weekly": {"mon": [["09:00", "17:00"]]}}"#
);

const CALENDAR: Kind = Kind {
    word: "calendar",
    words: "calendars",
    columns: &[
        ("NAME", |it, _| render::shown(&it["name"])),
        ("VERSION", |it, _| render::shown(&it["version"])),
        ("TZ", |it, _| render::shown(&it["tz"])),
        ("HOLIDAYS", |it, _| {
            it["holidays"].as_array().map_or(0, Vec::len).to_string()
        }),
        ("EXCEPTIONS", |it, _| {
            it["exceptions"].as_array().map_or(0, Vec::len).to_string()
        }),
    ],
};

pub(super) fn run(args: Args, out: &mut Out<'_>) -> Result<(), Failure> {
    let client = Client::new(&args.server)?;
    match args.command {
        Command::Shared(command) => resource::run(&CALENDAR, command, &client, out),
        Command::Import { calendar, file } => {
            let what = format!("import holidays into calendar {}", calendar.name);
            let path = calendar.path(&CALENDAR, &["import"]);
            let request = Request::post_text(what, path, "text/calendar", read_text(&file)?);
            show(&client, request, out)
        }
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use std::fs;

    use serde_json::json;

    use super::super::tests::{duetime, refused};
    use crate::client::scripted::Service;

    const CALENDAR: &str = r#"{"name":"cn","version":2,"tz":"Asia/Shanghai","weekly":{},"holidays":["2026-10-01"],"exceptions":[]}"#;

    fn at(service: &Service, args: &[&str]) -> (u8, String, String) {
        duetime(&[args, &["--url", &service.url]].concat())
    }

    #[test]
    fn calendars_are_put_shown_listed_and_deleted() {
        let list = format!(r#"{{"items":[{CALENDAR}],"next_cursor":null}}"#);
        let versions = r#"{"items":[{"version":2,"changed_at":"2026-12-01T00:00:00.000Z","by":"api","body":{}}],"next_cursor":null}"#;
        let service = Service::answering(&[
            ("201 Created", CALENDAR),
            ("200 OK", CALENDAR),
            ("200 OK", &list),
            ("200 OK", versions),
            ("200 OK", r#"{"name":"cn","deleted":true}"#),
        ]);
        let put = at(&service, &["calendar", "put", "cn", r#"{"tz":"UTC"}"#]);
        assert!(put.0 == 0 && put.1.contains("Asia/Shanghai"), "{put:?}");
        assert!(
            at(&service, &["calendar", "get", "cn"])
                .1
                .starts_with("name")
        );
        let (_, out, _) = at(&service, &["calendar", "list"]);
        assert_eq!(
            out.lines().last(),
            Some("cn    2        Asia/Shanghai  1         0")
        );
        assert!(
            at(&service, &["calendar", "versions", "cn"])
                .1
                .contains("api")
        );
        assert!(
            at(&service, &["calendar", "delete", "cn"])
                .1
                .contains("deleted")
        );
        let asked = service.asked();
        assert_eq!(
            (asked.line.as_str(), asked.body),
            ("PUT /v1/calendars/cn", json!({"tz": "UTC"}))
        );
        for line in [
            "GET /v1/calendars/cn",
            "GET /v1/calendars",
            "GET /v1/calendars/cn/versions",
            "DELETE /v1/calendars/cn",
        ] {
            assert_eq!(service.asked().line, line);
        }
    }

    #[test]
    fn holidays_are_imported_from_a_file() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("holidays.ics");
        fs::write(&file, "{\"as\": \"it is\"}").unwrap();
        let answer = format!(r#"{{"calendar":{CALENDAR},"imported":1,"skipped":0}}"#);
        let service = Service::answering(&[("200 OK", &answer)]);
        let import = ["calendar", "import", "cn", file.to_str().unwrap()];
        let (code, out, err) = at(&service, &import);
        assert!(code == 0 && out.contains("imported  1"), "{out} {err}");
        let asked = service.asked();
        assert_eq!(asked.line, "POST /v1/calendars/cn/import");
        assert!(asked.headers.contains("content-type: text/calendar"));
        assert_eq!(asked.body, json!({"as": "it is"}));
        let (code, _, err) = duetime(&["calendar", "import", "cn", "/nowhere.ics"]);
        assert!(code == 1 && err.contains("/nowhere.ics"), "{err}");
        assert_eq!(refused(&["calendar", "import", "cn"]).0, 2);
    }
}

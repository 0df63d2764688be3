//! `duetime top`: the parts of a running service, as its watchdog sees them, drawn anew each second.
//!
//! ```text
//!   fetcher ── GET /v1/actors, /v1/shards ──▶ the service       (its own thread: a hung service hangs only this)
//!      │ answers
//!      ▼
//!   Frame ── lines with a mood each ──▶ screen ◀── keys, resizes
//! ```
//!
//! What is shown is what the service says: the columns that are known come first and in a fixed order, any other
//! simple field of a part gets a column of its own, so a newer service shows more without a newer `top`.
//!
//! The screen is taken over only if standard output is a terminal, and given back however this ends; else one frame is
//! printed, plainly.

use std::io::{self, IsTerminal, Write};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::time::{Duration, Instant};

use crossterm::cursor::{Hide, MoveTo, Show};
use crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use crossterm::style::{Color, Print, ResetColor, SetForegroundColor};
use crossterm::terminal::{
    Clear, ClearType, DisableLineWrap, EnableLineWrap, EnterAlternateScreen, LeaveAlternateScreen,
    disable_raw_mode, enable_raw_mode, size,
};
use crossterm::{execute, queue};
use jiff::Timestamp;
use serde_json::Value;

use super::client::{Answer, Client, Request, Server};
use super::task::segments;
use super::{Failure, Out, render};
use crate::clock::DurationMs;

/// From one look at the service to the next.
const EVERY: Duration = Duration::from_secs(1);
/// A key is answered, and an answer shown, within this.
const LOOK_EVERY: Duration = Duration::from_millis(100);

#[derive(clap::Args, Debug)]
pub(super) struct Args {
    #[command(flatten)]
    server: Server,
    /// Print one frame and leave; so too if standard output is no terminal
    #[arg(long)]
    once: bool,
}

/// One frame, or the live view.
pub(super) fn run(args: Args, out: &mut Out<'_>) -> Result<(), Failure> {
    let client = Client::new(&args.server)?;
    if args.once || out.json || !io::stdout().is_terminal() {
        let seen = Seen::of(&client)?;
        return if out.json {
            out.line(&seen.json())
        } else {
            out.write(&Frame::of(&seen).text())
        };
    }
    watch(client)
}

// ---------------------------------------------------------------- what is seen

/// What the service said of its parts.
struct Seen {
    actors: Answer,
    shards: Answer,
}

impl Seen {
    fn of(client: &Client) -> Result<Self, Failure> {
        let get = |what: &str, name| {
            client.send(Request::get(format!("look at {what}"), segments(&[name])))
        };
        Ok(Self {
            actors: get("the parts of the service", "actors")?,
            shards: get("its shards", "shards")?,
        })
    }

    /// Both answers, as the service wrote them.
    fn json(&self) -> String {
        let (actors, shards) = (self.actors.text.trim(), self.shards.text.trim());
        format!("{{\"actors\":{actors},\"shards\":{shards}}}")
    }
}

/// How a line is meant.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Mood {
    Title,
    Well,
    Uneasy,
    Ill,
}

/// What is drawn.
struct Frame {
    lines: Vec<(Mood, String)>,
}

/// Columns of a table: the field, and its title. What is not named goes before the last of them.
type Columns = &'static [(&'static str, &'static str)];

const PARTS: Columns = &[
    ("name", "PART"),
    ("state", "STATE"),
    ("verdict", "VERDICT"),
    ("pulse", "PULSE"),
    ("generation", "GENERATION"),
    ("restarts", "RESTARTS"),
    ("quarantined", "QUARANTINED"),
    ("last_fault", "LAST FAULT"),
];
const SHARDS: Columns = &[
    ("shard", "SHARD"),
    ("state", "STATE"),
    ("epoch", "EPOCH"),
    ("tasks", "TASKS"),
    ("pending", "PENDING"),
    ("due", "DUE"),
    ("queued", "QUEUED"),
    ("in_flight", "IN FLIGHT"),
    ("lateness_ms", "LATENESS MS"),
    ("restarts", "RESTARTS"),
    ("last_fault", "LAST FAULT"),
];
const HANDLERS: Columns = &[
    ("handlers", "HANDLERS"),
    ("threads", "THREADS"),
    ("threads_max", "AT MOST"),
    ("busy", "BUSY"),
    ("queued", "QUEUED"),
    ("abandoned", "ABANDONED"),
];

impl Frame {
    fn of(seen: &Seen) -> Self {
        let parts = render::items(&seen.actors.value);
        let mut frame = Self { lines: Vec::new() };
        let ill = parts.iter().filter(|part| mood(part) == Mood::Ill).count();
        let told = match ill {
            0 => format!("{} parts, all well", parts.len()),
            ill => format!("{} parts, {ill} not well", parts.len()),
        };
        let mood = if ill == 0 { Mood::Title } else { Mood::Ill };
        frame.lines.push((mood, told));
        frame.table(PARTS, parts);
        frame.table(SHARDS, render::items(&seen.shards.value));
        let handlers = seen.actors.value["handlers"].as_object();
        let handlers = handlers.into_iter().flatten().map(|(kind, seats)| {
            let mut row = seats.clone();
            row["handlers"] = Value::from(kind.as_str());
            row
        });
        frame.table(HANDLERS, &handlers.collect::<Vec<_>>());
        frame
    }

    /// Rows under their titles, with an empty line before.
    fn table(&mut self, columns: Columns, rows: &[Value]) {
        if rows.is_empty() {
            return;
        }
        let columns = columns_of(columns, rows);
        let titles: Vec<&str> = columns.iter().map(|(_, title)| title.as_str()).collect();
        let cells = |row: &Value| columns.iter().map(|(field, _)| cell(&row[field])).collect();
        let table = render::table(&titles, rows.iter().map(cells).collect());
        self.lines.push((Mood::Title, String::new()));
        let moods = std::iter::once(Mood::Title).chain(rows.iter().map(mood));
        let lines = table.lines().map(str::to_owned);
        self.lines.extend(moods.zip(lines));
    }

    fn text(&self) -> String {
        let lines = self.lines.iter().map(|(_, line)| format!("{line}\n"));
        lines.collect()
    }
}

/// The columns that some row has: the known ones, and those of other simple fields before the last.
fn columns_of(known: Columns, rows: &[Value]) -> Vec<(String, String)> {
    let has = |field: &str| {
        let mut values = rows.iter().filter_map(|row| row.get(field));
        values.any(|value| is_simple(value) || shape_of(value).is_some())
    };
    let known_now = known.iter().filter(|(field, _)| has(field));
    let mut columns: Vec<_> = known_now
        .map(|(field, title)| ((*field).to_owned(), (*title).to_owned()))
        .collect();
    let last = columns.pop();
    let mut further: Vec<&String> = Vec::new();
    for (field, value) in rows.iter().filter_map(Value::as_object).flatten() {
        let is_known = known.iter().any(|(known, _)| known == field);
        if !is_known && !further.contains(&field) && is_simple(value) && !value.is_null() {
            further.push(field);
        }
    }
    columns.extend(further.into_iter().map(|field| {
        let title = render::plain(field).replace('_', " ").to_uppercase();
        (field.clone(), title)
    }));
    columns.extend(last);
    columns
}

fn is_simple(value: &Value) -> bool {
    !value.is_object()
}

/// What is known of an object: a pulse or quantiles.
fn shape_of(value: &Value) -> Option<String> {
    if let (Some(phase), Some(age_ms)) = (value["phase"].as_str(), value["age_ms"].as_u64()) {
        let age = render::length(DurationMs(age_ms));
        return Some(format!("{} {age}", render::plain(phase)));
    }
    let (p50, p99) = (value.get("p50")?, value.get("p99")?);
    Some(format!("{} / {}", render::shown(p50), render::shown(p99)))
}

fn cell(value: &Value) -> String {
    match value {
        Value::Array(items) => items.len().to_string(),
        Value::Object(_) => shape_of(value).unwrap_or_else(|| "-".to_owned()),
        simple => render::shown(simple),
    }
}

/// How a part, a shard or handlers are.
fn mood(row: &Value) -> Mood {
    let is_some = |field: &str| match &row[field] {
        Value::Number(count) => count.as_u64() != Some(0),
        Value::Array(items) => !items.is_empty(),
        Value::Bool(is_so) => *is_so,
        _ => false,
    };
    let held = ["quarantined", "quarantine", "abandoned"];
    match (row["state"].as_str(), row["verdict"].as_str()) {
        (Some("parked" | "backing_off"), _) | (_, Some("stuck")) => Mood::Ill,
        _ if held.into_iter().any(is_some) => Mood::Ill,
        (Some("running") | None, Some("live") | None) => Mood::Well,
        _ => Mood::Uneasy,
    }
}

// ---------------------------------------------------------------- the live view

type Fetched = Result<Seen, String>;

/// Looks at the service whenever it is asked to.
fn fetch(client: &Client, asked: &Receiver<()>, fetched: &SyncSender<Fetched>) {
    while asked.recv().is_ok() {
        let seen = Seen::of(client).map_err(|failure| failure.words());
        if fetched.send(seen).is_err() {
            return;
        }
    }
}

fn watch(client: Client) -> Result<(), Failure> {
    let address = client.shown_address();
    // One question is out at a time.
    let (ask, asked) = sync_channel(1);
    let (tell, fetched) = sync_channel(1);
    std::thread::Builder::new()
        .name("top-fetch".to_owned())
        .spawn(move || fetch(&client, &asked, &tell))
        .map_err(|error| Failure::new(format!("cannot start a thread: {error}")))?;
    let mut view = View {
        address,
        frame: None,
        trouble: None,
        scrolled: 0,
    };
    let screen = Screen::take().map_err(of_terminal)?;
    let (mut asked_at, mut is_out) = (None::<Instant>, false);
    view.draw().map_err(of_terminal)?;
    loop {
        if !is_out && asked_at.is_none_or(|at| at.elapsed() >= EVERY) {
            is_out = ask.send(()).is_ok();
            asked_at = Some(Instant::now());
        }
        let is_news = match fetched.try_recv() {
            Ok(seen) => {
                is_out = false;
                view.take(seen);
                true
            }
            Err(TryRecvError::Empty) => false,
            Err(TryRecvError::Disconnected) => {
                drop(screen);
                return Err(Failure::new("cannot look at the service any more"));
            }
        };
        let is_touched = event::poll(LOOK_EVERY).map_err(of_terminal)?;
        if is_touched {
            match view.handle(&event::read().map_err(of_terminal)?) {
                Wish::Leave => return Ok(()),
                Wish::Stay => {}
            }
        }
        if is_news || is_touched {
            view.draw().map_err(of_terminal)?;
        }
    }
}

fn of_terminal(error: io::Error) -> Failure {
    Failure::new(format!("cannot use the terminal: {error}")).then("use --once")
}

/// The terminal, taken over. Given back when dropped.
struct Screen;

impl Screen {
    fn take() -> io::Result<Self> {
        enable_raw_mode()?;
        let screen = Self;
        // What is wider than the screen ends at its edge.
        execute!(io::stdout(), EnterAlternateScreen, DisableLineWrap, Hide)?;
        Ok(screen)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // There is nobody to tell that it can't be given back.
        let _ = execute!(io::stdout(), Show, EnableLineWrap, LeaveAlternateScreen);
        let _ = disable_raw_mode();
    }
}

enum Wish {
    Stay,
    Leave,
}

/// What is on the screen.
struct View {
    address: String,
    frame: Option<(Frame, Timestamp)>,
    /// Why the frame is an old one.
    trouble: Option<String>,
    scrolled: usize,
}

impl View {
    fn take(&mut self, fetched: Fetched) {
        match fetched {
            Ok(seen) => {
                self.frame = Some((Frame::of(&seen), Timestamp::now()));
                self.trouble = None;
            }
            Err(why) => self.trouble = Some(why),
        }
    }

    fn handle(&mut self, event: &Event) -> Wish {
        let Event::Key(KeyEvent {
            code,
            modifiers,
            kind: KeyEventKind::Press | KeyEventKind::Repeat,
            ..
        }) = event
        else {
            return Wish::Stay;
        };
        match code {
            KeyCode::Char('q') | KeyCode::Esc => return Wish::Leave,
            KeyCode::Char('c') if modifiers.contains(KeyModifiers::CONTROL) => return Wish::Leave,
            KeyCode::Down | KeyCode::Char('j') => self.scrolled += 1,
            KeyCode::Up | KeyCode::Char('k') => self.scrolled = self.scrolled.saturating_sub(1),
            KeyCode::Home => self.scrolled = 0,
            _ => {}
        }
        Wish::Stay
    }

    /// The lines that have room, from the top of the screen to its foot.
    fn lines(&mut self, rows: usize) -> Vec<(Mood, String)> {
        let mut lines = vec![(Mood::Title, format!("duetime at {}", self.address))];
        if let Some(why) = &self.trouble {
            lines.push((Mood::Ill, render::plain(why)));
        }
        let mut foot = "q leaves".to_owned();
        if let Some((frame, at)) = &self.frame {
            lines[0].1 += &format!(", as of {at:.0}");
            let room = rows.saturating_sub(lines.len() + 1);
            let hidden = frame.lines.len().saturating_sub(room);
            self.scrolled = self.scrolled.min(hidden);
            let shown = frame.lines.iter().skip(self.scrolled).take(room);
            lines.extend(shown.cloned());
            if hidden > 0 {
                foot += &format!(", ↑ and ↓ move: {} lines below", hidden - self.scrolled);
            }
        }
        lines.resize_with(rows.saturating_sub(1).max(1), || {
            (Mood::Well, String::new())
        });
        lines.push((Mood::Title, foot));
        lines
    }

    fn draw(&mut self) -> io::Result<()> {
        let (_, rows) = size()?;
        let is_plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let mut out = io::stdout().lock();
        for (row, (mood, line)) in (0..rows).zip(self.lines(usize::from(rows))) {
            let color = match mood {
                Mood::Title => Some(Color::Cyan),
                Mood::Well => None,
                Mood::Uneasy => Some(Color::Yellow),
                Mood::Ill => Some(Color::Red),
            };
            queue!(out, MoveTo(0, row), Clear(ClearType::UntilNewLine))?;
            match color.filter(|_| !is_plain) {
                Some(color) => queue!(out, SetForegroundColor(color), Print(line), ResetColor)?,
                None => queue!(out, Print(line))?,
            }
        }
        out.flush()
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use serde_json::json;

    use super::super::tests::duetime;
    use super::*;
    use crate::client::scripted::Service;

    const ACTORS: &str = r#"{"items": [
        {"name": "scheduler", "generation": 1, "state": "running", "verdict": "live", "restarts": 0, "last_fault": null,
         "pulse": {"phase": "idle", "age_ms": 210}},
        {"name": "shard-00", "generation": 3, "state": "running", "verdict": "stuck", "restarts": 2, "quarantined": 1,
         "last_fault": "panicked: \u001b[31moh", "pulse": {"phase": "busy", "age_ms": 61500}, "news": true}],
        "handlers": {"handler": {"threads": 4, "abandoned": [{"task": "1"}], "since_start": {"panics": 1}}}}"#;
    const SHARDS: &str = r#"{"items": [{"shard": 0, "epoch": 3, "state": "running", "tasks": 12, "in_flight": 1,
        "store": {"chunks": 1}, "restarts": 2, "last_fault": null}]}"#;

    fn answer(text: &str) -> Answer {
        Answer {
            status: 200,
            replayed: false,
            text: text.to_owned(),
            value: serde_json::from_str(text).unwrap(),
        }
    }

    fn frame() -> Frame {
        Frame::of(&Seen {
            actors: answer(ACTORS),
            shards: answer(SHARDS),
        })
    }

    #[test]
    fn a_frame_shows_what_is_known_and_what_is_new_and_runs_no_escapes() {
        assert_eq!(
            frame().text(),
            "2 parts, 1 not well\n\
             \n\
             PART       STATE    VERDICT  PULSE           GENERATION  RESTARTS  QUARANTINED  NEWS  LAST FAULT\n\
             scheduler  running  live     idle 210 ms     1           0         -            -     -\n\
             shard-00   running  stuck    busy 1 min 1 s  3           2         1            true  panicked: \\u{1b}[31moh\n\
             \n\
             SHARD  STATE    EPOCH  TASKS  IN FLIGHT  RESTARTS  LAST FAULT\n\
             0      running  3      12     1          2         -\n\
             \n\
             HANDLERS  THREADS  ABANDONED\n\
             handler   4        1\n"
        );
    }

    #[test]
    fn what_is_stuck_parked_or_holds_threads_stands_out() {
        let moods: Vec<Mood> = frame().lines.iter().map(|(mood, _)| *mood).collect();
        let ill = |line: usize| moods[line] == Mood::Ill;
        assert!(
            ill(0) && !ill(3) && ill(4) && !ill(7) && ill(10),
            "{moods:?}"
        );
        for (row, expected) in [
            (json!({"state": "parked", "verdict": null}), Mood::Ill),
            (json!({"state": "backing_off"}), Mood::Ill),
            (json!({"state": "starting"}), Mood::Uneasy),
            (json!({"state": "running", "verdict": "late"}), Mood::Uneasy),
            (json!({"state": "running", "verdict": "live"}), Mood::Well),
            (json!({}), Mood::Well),
        ] {
            assert_eq!(mood(&row), expected, "{row}");
        }
    }

    #[test]
    fn one_frame_is_printed_and_in_json_both_answers_are() {
        let service = Service::answering(&[
            ("200 OK", ACTORS),
            ("200 OK", SHARDS),
            ("200 OK", ACTORS),
            ("200 OK", SHARDS),
        ]);
        let (code, text, _) = duetime(&["top", "--once", "--url", &service.url]);
        assert_eq!((code, text), (0, frame().text()));
        let (_, text, _) = duetime(&["top", "--json", "--url", &service.url]);
        let told: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(told["shards"]["items"][0]["tasks"], 12);
        for line in ["GET /v1/actors", "GET /v1/shards"] {
            assert_eq!(service.asked().line, line);
        }
    }

    #[test]
    fn a_small_screen_scrolls_and_keeps_its_head_and_foot() {
        let mut view = View {
            address: "http://here".to_owned(),
            frame: Some((frame(), Timestamp::UNIX_EPOCH)),
            trouble: Some("cannot connect".to_owned()),
            scrolled: 0,
        };
        let lines = view.lines(6);
        assert_eq!(lines.len(), 6);
        assert_eq!(
            lines[0].1,
            "duetime at http://here, as of 1970-01-01T00:00:00Z"
        );
        assert_eq!(lines[1], (Mood::Ill, "cannot connect".to_owned()));
        assert_eq!(lines[5].1, "q leaves, ↑ and ↓ move: 8 lines below");
        let down = Event::Key(KeyCode::Down.into());
        for _ in 0..100 {
            assert!(matches!(view.handle(&down), Wish::Stay));
        }
        let lines = view.lines(6);
        assert!(lines[4].1.starts_with("handler"), "{lines:?}");
        assert_eq!(lines[5].1, "q leaves, ↑ and ↓ move: 0 lines below");
        let ctrl_c = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert!(matches!(view.handle(&Event::Key(ctrl_c)), Wish::Leave));
        // However small it is, there is something to draw.
        assert!(!view.lines(0).is_empty());
    }
}

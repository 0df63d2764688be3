//! The command line. It translates and never decides: what a flag says goes into a request of the HTTP API, what
//! the service answers comes out, for people or (`--json`) as the service wrote it.
//!
//! ```text
//!  duetime task cancel ID ──► task.rs   flags to a request        ──► client.rs ──► the service
//!                             render.rs answer to sheet or table  ◄── Answer │ Failure
//! ```
//!
//! Exit codes: 0 done, 1 refused or failed, 2 not understood, 75 ([`EXIT_START_AGAIN`]) the service has left because a
//! part of it hangs, and is to be started again. Answers go to standard output and everything else
//! to standard error, so a pipe carries answers only. A reader that leaves early (`| head`) is no failure.
//!
//! Text from the service may hold anything a caller once put into a payload, terminal escapes too. In text output
//! it passes `render::plain` first; in JSON output it is left as it is.

pub mod bench;
mod bulk;
mod calendar;
mod client;
mod dead;
pub mod demo;
mod filter;
mod render;
mod resource;
mod rule;
mod schedule;
pub mod serve;
mod simulate;
mod store;
mod task;
mod top;
mod topic;
mod worker;

use std::io::{self, BufWriter, ErrorKind, Write};
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use clap_complete::Shell;
use serde_json::{Value, json};

use crate::clock::{Clock, WallMs};
use crate::executor::command::CommandGuard;

/// The service left because threads of it hang that only a new process is rid of. All that it acknowledged is on the
/// disk; whoever started it starts it again (`Restart=on-failure` of systemd does).
pub const EXIT_START_AGAIN: i32 = 75;

/// A durable timeout center: told what must happen and when, it makes it happen on time, once, through crashes.
#[derive(Parser, Debug)]
#[command(
    name = "duetime",
    version,
    arg_required_else_help = true,
    after_help = "Example, with the service running in another terminal (`duetime serve`):\n  \
                  duetime task create --topic order.unpaid --key order-42 --delay PT30M\n\n\
                  Exit codes: 0 done, 1 refused or failed, 2 not understood, 75 start the service again."
)]
struct Cli {
    /// Answer in JSON, as the service wrote it; a failure is problem JSON on standard error.
    #[arg(long, global = true, display_order = 1000)]
    json: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Run the service
    #[command(after_help = "Example:\n  duetime serve --data ./data --listen 127.0.0.1:7420")]
    Serve(serve::Args),
    /// Create, look at and change tasks
    #[command(
        arg_required_else_help = true,
        after_help = "Example:\n  duetime task list --topic order.unpaid --state pending"
    )]
    Task(Box<task::Args>),
    /// Tasks that were given up: look at them, run them again, settle or drop them
    #[command(
        arg_required_else_help = true,
        after_help = "Example:\n  duetime dead list --topic order.unpaid"
    )]
    Dead(dead::Args),
    /// Declare topics: the defaults, limits and retention of their tasks
    #[command(
        arg_required_else_help = true,
        after_help = "Example:\n  duetime topic put order.unpaid '{\"retention\": {\"succeeded\": \"P7D\"}}'"
    )]
    Topic(topic::Args),
    /// Say when people work: hours, holidays, exceptions
    #[command(
        arg_required_else_help = true,
        after_help = "Example:\n  duetime calendar put cn '{\"tz\": \"Asia/Shanghai\", \"weekly\": {\"mon\": [[\"09:00\", \"17:00\"]]}}'"
    )]
    Calendar(calendar::Args),
    /// Say when tasks are due that do not say it themselves
    #[command(
        arg_required_else_help = true,
        after_help = "Example:\n  duetime rule put order-unpaid '{\"fixed\": {\"after\": \"PT30M\"}}'"
    )]
    Rule(rule::Args),
    /// Say what repeats: by cron or at an interval
    #[command(
        arg_required_else_help = true,
        after_help = "Example:\n  duetime schedule put nightly '{\"cron\": \"0 2 * * *\", \"tz\": \"Europe/Berlin\", \"topic\": \"report.nightly\"}'"
    )]
    Schedule(schedule::Args),
    /// One verb for many tasks: in the background, at a rate, held, ended and taken back by hand
    #[command(
        arg_required_else_help = true,
        after_help = "Example:\n  duetime bulk create cancel --topic order.unpaid --dry-run --wait"
    )]
    Bulk(bulk::Args),
    /// See who leases tasks
    #[command(
        arg_required_else_help = true,
        after_help = "Example:\n  duetime worker list"
    )]
    Worker(worker::Args),
    /// What would fire: tasks, rules, calendars and schedules on a virtual clock; nothing is sent or changed
    Simulate(simulate::Args),
    /// Back up, restore, export, import, check and reshard a data directory
    #[command(
        arg_required_else_help = true,
        after_help = "Example:\n  duetime store backup --data ./data /var/backups/duetime/monday"
    )]
    Store(store::Args),
    /// Watch the parts of a running service: their pulses, restarts and faults, and what each shard holds
    #[command(after_help = "Example:\n  duetime top\n\nq or Ctrl-C leaves.")]
    Top(top::Args),
    /// See it work: tasks that fire, retry and are cancelled, on a service of its own
    #[command(after_help = "Example:\n  duetime demo")]
    Demo(demo::Args),
    /// Measure this machine
    #[command(after_help = "Example:\n  duetime bench")]
    Bench(bench::Args),
    /// Print the completion script of a shell
    #[command(
        after_help = "Example:\n  duetime completions bash > ~/.local/share/bash-completion/completions/duetime"
    )]
    Completions {
        /// Which shell
        shell: Shell,
    },
}

/// Runs the command that the process was started with and tells how it ended.
pub fn run() -> ExitCode {
    CommandGuard::enter();
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(told) => {
            // Help and version come this way too, with code 0. Nobody is left to hear of a failed print.
            let _ = told.print();
            return ExitCode::from(u8::try_from(told.exit_code()).unwrap_or(2));
        }
    };
    // Commands that print by themselves must find standard output unlocked.
    ExitCode::from(match cli.command {
        Command::Serve(_) | Command::Demo(_) | Command::Bench(_) => {
            conclude(cli, &mut io::sink(), &mut io::stderr())
        }
        _ => conclude(
            cli,
            &mut BufWriter::new(io::stdout().lock()),
            &mut io::stderr(),
        ),
    })
}

/// Runs a command with its answer to `answers` and its failure to `failures`; the exit code.
fn conclude(cli: Cli, answers: &mut dyn Write, failures: &mut dyn Write) -> u8 {
    let json = cli.json;
    let mut out = Out {
        sink: answers,
        json,
        now: Clock::machine().now().wall,
    };
    match execute(cli.command, &mut out).and_then(|()| out.flush()) {
        Ok(()) => 0,
        Err(failure) => failure.tell(json, failures),
    }
}

fn execute(command: Command, out: &mut Out<'_>) -> Result<(), Failure> {
    match command {
        Command::Serve(args) => serve::run(args, out.json),
        Command::Demo(args) => demo::run(args, out.json),
        Command::Bench(args) => bench::run(args, out.json),
        Command::Task(args) => task::run(*args, out),
        Command::Dead(args) => dead::run(args, out),
        Command::Topic(args) => topic::run(args, out),
        Command::Calendar(args) => calendar::run(args, out),
        Command::Rule(args) => rule::run(args, out),
        Command::Schedule(args) => schedule::run(args, out),
        Command::Bulk(args) => bulk::run(args, out),
        Command::Worker(args) => worker::run(args, out),
        Command::Simulate(args) => simulate::run(args, out),
        Command::Store(args) => store::run(args, out),
        Command::Top(args) => top::run(args, out),
        Command::Completions { shell } => {
            // Generated in memory first: the generator takes a closed pipe for a bug.
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "duetime", &mut script);
            let script = String::from_utf8_lossy(&script);
            if out.json {
                out.line(&json!({"shell": shell.to_string(), "script": script}).to_string())
            } else {
                out.write(&script)
            }
        }
    }
}

/// Where answers go, in which form, and the time they are told against.
struct Out<'a> {
    sink: &'a mut dyn Write,
    json: bool,
    now: WallMs,
}

impl Out<'_> {
    fn write(&mut self, text: &str) -> Result<(), Failure> {
        self.sink
            .write_all(text.as_bytes())
            .map_err(Failure::of_output)
    }

    fn line(&mut self, text: &str) -> Result<(), Failure> {
        self.write(text)?;
        self.write("\n")
    }

    fn flush(&mut self) -> Result<(), Failure> {
        self.sink.flush().map_err(Failure::of_output)
    }

    /// One answer: the service's own JSON, or what `words` makes of it for people.
    fn answer(
        &mut self,
        answer: &client::Answer,
        words: impl FnOnce(&Value, WallMs) -> String,
    ) -> Result<(), Failure> {
        if self.json {
            self.line(answer.text.trim_end())
        } else {
            let text = words(&answer.value, self.now);
            self.line(&text)
        }
    }
}

/// Why a command did not do what it was asked, and what to do next.
#[derive(Debug)]
pub struct Failure(Box<Kind>);

#[derive(Debug)]
enum Kind {
    Told {
        what: String,
        problem: Option<Problem>,
        next: Option<String>,
    },
    /// Whoever read our output has seen enough.
    ReaderGone,
}

/// A refusal in the service's own words (RFC 9457).
#[derive(Debug)]
struct Problem {
    text: String,
    value: Value,
}

impl Failure {
    /// A failure that says what could not be done, in lower case and without full stop.
    pub fn new(what: impl Into<String>) -> Self {
        Self(Box::new(Kind::Told {
            what: what.into(),
            problem: None,
            next: None,
        }))
    }

    /// Adds what the reader can do about it.
    pub fn then(mut self, advice: impl Into<String>) -> Self {
        if let Kind::Told { next, .. } = &mut *self.0 {
            *next = Some(advice.into());
        }
        self
    }

    /// What could not be done.
    fn words(&self) -> String {
        match &*self.0 {
            Kind::Told { what, .. } => what.clone(),
            Kind::ReaderGone => String::from("nobody reads any more"),
        }
    }

    /// Adds the service's own words.
    fn because(mut self, told: Problem) -> Self {
        if let Kind::Told { problem, .. } = &mut *self.0 {
            *problem = Some(told);
        }
        self
    }

    /// What a failed write to standard output means.
    pub fn of_output(error: io::Error) -> Self {
        if error.kind() == ErrorKind::BrokenPipe {
            Self(Box::new(Kind::ReaderGone))
        } else {
            Self::new(format!("cannot write the answer: {error}"))
        }
    }

    /// Tells the failure and answers the exit code.
    fn tell(&self, json: bool, to: &mut dyn Write) -> u8 {
        let Kind::Told {
            what,
            problem,
            next,
        } = &*self.0
        else {
            return 0;
        };
        let text = match (json, problem) {
            (true, Some(problem)) => problem.text.trim_end().to_owned(),
            (true, None) => {
                let mut own =
                    json!({"type": "about:blank", "title": what, "code": "client_failure"});
                if let Some(next) = next {
                    own["detail"] = Value::from(next.as_str());
                }
                own.to_string()
            }
            (false, _) => {
                let mut lines = vec![format!("error: {}", render::plain(what))];
                lines.extend(
                    problem
                        .iter()
                        .flat_map(|problem| render::field_errors(&problem.value)),
                );
                lines.extend(
                    next.as_deref()
                        .map(|next| format!("  {}", render::plain(next))),
                );
                lines.join("\n")
            }
        };
        // Standard error is the last place to tell anything.
        let _ = writeln!(to, "{text}");
        1
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    /// Runs a whole command line: exit code, standard output, standard error.
    pub(super) fn duetime(args: &[&str]) -> (u8, String, String) {
        let cli = Cli::try_parse_from([&["duetime"], args].concat()).unwrap();
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let code = conclude(cli, &mut out, &mut err);
        (
            code,
            String::from_utf8(out).unwrap(),
            String::from_utf8(err).unwrap(),
        )
    }

    /// The usage error of a command line that is not understood: exit code and message.
    pub(super) fn refused(args: &[&str]) -> (i32, String) {
        let told = Cli::try_parse_from([&["duetime"], args].concat()).unwrap_err();
        (told.exit_code(), told.to_string())
    }

    struct Broken(ErrorKind);

    impl Write for Broken {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(self.0.into())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn the_definition_of_the_command_line_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_teaches_with_an_example() {
        fn visit(command: &clap::Command, path: &str) {
            let path = format!("{path} {}", command.get_name());
            assert!(command.get_about().is_some(), "{path} says what it does");
            let example = command
                .get_after_help()
                .map(ToString::to_string)
                .unwrap_or_default();
            let line = example.lines().find(|line| line.starts_with("  duetime "));
            assert!(line.is_some(), "{path} has an example");
            for inner in command.get_subcommands() {
                visit(inner, &path);
            }
        }
        visit(&Cli::command(), "");
    }

    #[test]
    fn usage_errors_are_2_and_help_and_version_are_0() {
        assert_eq!(refused(&["no-such-verb"]).0, 2);
        assert_eq!(refused(&[]).0, 2);
        assert_eq!(refused(&["task"]).0, 2);
        let (code, help) = refused(&["--help"]);
        assert_eq!(code, 0);
        for word in [
            "serve",
            "task",
            "topic",
            "top",
            "completions",
            "demo",
            "bench",
            "--json",
        ] {
            assert!(help.contains(word), "{word}");
        }
        let (code, version) = refused(&["--version"]);
        assert_eq!(
            (code, version.starts_with("duetime 0.")),
            (0, true),
            "{version}"
        );
    }

    #[test]
    fn completions_are_printed_for_each_shell() {
        for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
            let (code, script, _) = duetime(&["completions", shell]);
            assert_eq!(code, 0);
            assert!(script.contains("duetime") && script.len() > 200, "{shell}");
        }
        let (_, script, _) = duetime(&["completions", "fish", "--json"]);
        let script: Value = serde_json::from_str(&script).unwrap();
        assert_eq!(script["shell"], "fish");
    }

    #[test]
    fn a_reader_that_leaves_early_is_no_failure_and_a_full_disk_is_one() {
        for (kind, code, words) in [
            (ErrorKind::BrokenPipe, 0, ""),
            (ErrorKind::StorageFull, 1, "cannot write the answer"),
        ] {
            let cli = Cli::try_parse_from(["duetime", "completions", "bash"]).unwrap();
            let mut err = Vec::new();
            assert_eq!(conclude(cli, &mut Broken(kind), &mut err), code);
            assert!(String::from_utf8(err).unwrap().contains(words));
        }
    }

    #[test]
    fn a_failure_says_what_and_what_next_in_text_and_in_json() {
        let failure =
            Failure::new("cannot open ./data\u{1b}[31m").then("give another directory with --data");
        let mut text = Vec::new();
        assert_eq!(failure.tell(false, &mut text), 1);
        assert_eq!(
            String::from_utf8(text).unwrap(),
            "error: cannot open ./data\\u{1b}[31m\n  give another directory with --data\n"
        );
        let mut text = Vec::new();
        failure.tell(true, &mut text);
        let told: Value = serde_json::from_slice(&text).unwrap();
        assert_eq!(told["title"], "cannot open ./data\u{1b}[31m");
        assert_eq!(told["detail"], "give another directory with --data");
    }
}

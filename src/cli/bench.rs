//! `duetime bench`: what this machine gets out of the service, and what it could get at most.
//!
//! ```text
//!   load ──HTTP over loopback──▶ service ──▶ disk          the figure
//!   load ──HTTP over loopback──▶ bare actix-web route      its peer, in the same run
//!   append + fdatasync ────────────────────▶ disk          its limit, in the same run
//! ```
//!
//! A rate alone says more about the machine than about the program, so each figure stands beside a limit or a
//! peer that was measured minutes before on the same cores and the same disk. The load generator takes its share
//! of those cores, in both. Nothing is estimated: what can't be measured from here is shown as not measured, and
//! an answer that is not the expected one ends the run as an error.
//!
//! Without `--url` the service is one of this process, on a directory that is removed afterwards; memory and
//! disk per pending task are measured first, while the process is fresh.
//!
//! `duetime bench actions` measures starts a second by action: see `actions`.
//! `duetime bench store` measures the engine alone, without HTTP and with many more tasks: see `store`.
//! `duetime bench day` runs the load of a day for half an hour, and looks whether anything grows: see `day`.

mod actions;
mod day;
mod load;
mod machine;
mod measures;
mod report;
mod site;
mod store;
mod traffic;

use std::io::{self, Write};
use std::path::PathBuf;

use clap::ValueEnum;
use indicatif::{ProgressBar, ProgressStyle};
use url::Url;

use super::Failure;
use machine::Machine;
use measures::{Bench, Scale};
use report::{Report, name_of};
use site::Site;

/// Measures the service on this machine: rates, lateness, memory and disk, each beside its limit.
#[derive(clap::Args, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Args {
    #[command(subcommand)]
    of: Option<Of>,
    /// Measure a running service instead of one of this process; its `bench.…` topics keep the tasks
    #[arg(long, value_name = "URL", value_parser = parse_url)]
    url: Option<Url>,
    /// Shorter and coarser: at most 20 s instead of 90 s
    #[arg(long)]
    quick: bool,
    /// Only these
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    only: Vec<Measure>,
    /// How many pending tasks to weigh
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..=20_000_000))]
    pending: u64,
    /// Where the data is kept while it runs [default: the machine's temporary directory]
    #[arg(long, value_name = "DIR", conflicts_with = "url")]
    dir: Option<PathBuf>,
}

/// What else is measured.
#[derive(clap::Subcommand, Debug)]
enum Of {
    /// Measure starts a second: handlers, workers that pull, HTTP pushes beside the bare client; and how late they are
    #[command(after_help = "Example:\n  duetime bench actions --dir /var/tmp --json")]
    Actions(ActionsArgs),
    /// Measure the engine alone, with many tasks: commits, creates, memory, disk, restart, cancels, a burst
    #[command(after_help = "Example:\n  duetime bench store --tasks 10000000 --data /var/tmp")]
    Store(store::Args),
    /// Run the load of a day of 100 million tasks for a while: is memory flat, is the disk, is all on time?
    #[command(after_help = "Example:\n  duetime bench day --minutes 30 --data /var/tmp")]
    Day(day::Args),
}

/// Measures starts a second by action.
#[derive(clap::Args, Debug)]
struct ActionsArgs {
    /// How many tasks of each
    #[arg(long, value_name = "N", default_value_t = 30_000, value_parser = clap::value_parser!(u64).range(100..=1_000_000))]
    tasks: u64,
    /// Measure a running service instead of one of this process; its `bench.…` topics keep the tasks
    #[arg(long, value_name = "URL", value_parser = parse_url)]
    url: Option<Url>,
    /// Where the data is kept while it runs [default: the machine's temporary directory]
    #[arg(long, value_name = "DIR", conflicts_with = "url")]
    dir: Option<PathBuf>,
}

/// What has to be known of all figures.
const NOTE: &str = "the load generator and the receiver of the pushes share the cores with the service, in a figure as \
                    in its peer";

fn parse_url(text: &str) -> Result<Url, String> {
    let told = "an address looks like http://127.0.0.1:7420; only plain HTTP is measured";
    let url = Url::parse(text).map_err(|error| format!("{error}; {told}"))?;
    let is_bare = url.path() == "/" && url.query().is_none() && url.fragment().is_none();
    if url.scheme() == "http" && url.has_host() && is_bare {
        Ok(url)
    } else {
        Err(told.to_owned())
    }
}

/// What can be measured, in the order in which it is shown.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Measure {
    /// Append and fdatasync, without duetime: the disk's own limit
    Disk,
    /// Single creates, 64 connections
    Create,
    /// Batches of 10 000 creates, 4 connections
    Batch,
    /// Cancels by key, single and in batches
    Cancel,
    /// Tasks that end by themselves, all due at one instant
    Ended,
    /// Tasks of a handler, all due at one instant
    Handler,
    /// Tasks that four workers pull, 100 at a time
    Pull,
    /// HTTP pushes, all due at one instant
    Push,
    /// How late 500 starts a second are
    Lateness,
    /// Memory and disk for each pending task
    Pending,
}

impl Measure {
    /// What is measured for this command line, in the order in which it is done: memory while the process is
    /// fresh, and what a figure is set against before the figure.
    fn plan(only: &[Self]) -> Vec<Self> {
        let mut plan: Vec<_> = Self::value_variants()
            .iter()
            .copied()
            .filter(|measure| only.is_empty() || only.contains(measure))
            .collect();
        plan.sort_by_key(|measure| (*measure != Self::Pending, *measure));
        plan
    }
}

/// Measures, and shows the figures.
///
/// # Errors
/// When the service can't be started or reached, or answers anything but what was expected; the figures so far
/// are shown all the same.
pub fn run(args: Args, json: bool) -> Result<(), Failure> {
    let run = match args.of {
        Some(Of::Store(args)) => return store::run(args, json),
        Some(Of::Day(args)) => return day::run(args, json),
        Some(Of::Actions(args)) => Run {
            url: args.url,
            dir: args.dir,
            only: vec![
                Measure::Handler,
                Measure::Pull,
                Measure::Push,
                Measure::Lateness,
            ],
            scale: Scale::of_actions(usize::try_from(args.tasks).unwrap_or(usize::MAX)),
        },
        None => Run {
            url: args.url,
            dir: args.dir,
            only: args.only,
            scale: match args.quick {
                true => Scale::quick(args.pending),
                false => Scale::usual(args.pending),
            },
        },
    };
    let (report, ended) = actix_web::rt::System::new().block_on(async {
        tokio::select! {
            measured = bench(run) => measured,
            _ = tokio::signal::ctrl_c() => Err(Failure::new("stopped by ctrl-c")),
        }
    })?;
    show(&report, json)?;
    ended
}

/// Shows the figures to people, or to machines.
fn show<M: ValueEnum + Copy + Ord>(report: &Report<M>, json: bool) -> Result<(), Failure> {
    let text = if json {
        format!("{:#}\n", report.json())
    } else {
        format!("{}\n", report.text())
    };
    io::stdout()
        .write_all(text.as_bytes())
        .map_err(Failure::of_output)
}

/// Where the run stands, on standard error.
fn progress(steps: usize) -> ProgressBar {
    let bar = ProgressBar::new(steps as u64);
    if let Ok(style) = ProgressStyle::with_template("{bar:20} {pos}/{len} {msg}") {
        bar.set_style(style);
    }
    bar
}

/// What is measured, and where.
struct Run {
    url: Option<Url>,
    dir: Option<PathBuf>,
    only: Vec<Measure>,
    scale: Scale,
}

async fn bench(run: Run) -> Result<(Report<Measure>, Result<(), Failure>), Failure> {
    let site = match &run.url {
        Some(url) => Site::elsewhere(url).await?,
        None => Site::own(run.dir.as_deref()).await?,
    };
    let mut report = Report::new(Machine::look(), site.words(), NOTE);
    let plan = Measure::plan(&run.only);
    let bar = progress(plan.len());
    let mut bench = Bench::new(site, run.scale);
    let mut ended = Ok(());
    for measure in plan {
        bar.set_message(name_of(measure));
        match bench.take(measure).await {
            Ok(lines) => report.add(measure, lines),
            Err(failure) => {
                ended = Err(failure);
                break;
            }
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    let closed = bench.close().await;
    Ok((report, ended.and(closed)))
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser, Debug)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn parse(line: &str) -> Result<Args, clap::Error> {
        Line::try_parse_from(["bench"].into_iter().chain(line.split_whitespace()))
            .map(|line| line.args)
    }

    #[test]
    fn all_is_measured_unless_some_is_named_and_memory_comes_first() {
        let plan = Measure::plan(&parse("").unwrap().only);
        assert_eq!(
            (plan.len(), plan[0], plan[1]),
            (10, Measure::Pending, Measure::Disk)
        );
        let plan = Measure::plan(&parse("--only push,disk").unwrap().only);
        assert_eq!(plan, [Measure::Disk, Measure::Push]);
    }

    #[test]
    fn what_makes_no_sense_is_a_usage_error() {
        for line in [
            "--only speed",
            "--pending 0",
            "--url https://127.0.0.1:7420",
            "--url http://127.0.0.1:7420/v1",
            "--url http://127.0.0.1:7420 --dir /tmp",
            "store --tasks 0",
            "day --minutes 0",
            "actions --tasks 1",
            "actions --url http://127.0.0.1:7420 --dir /tmp",
            "--only disk store",
        ] {
            assert_eq!(parse(line).unwrap_err().exit_code(), 2, "{line}");
        }
        assert_eq!(
            parse("--url http://127.0.0.1:7420")
                .unwrap()
                .url
                .unwrap()
                .port(),
            Some(7420)
        );
    }
}

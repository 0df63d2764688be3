//! `duetime bench day`: the load of a day of 100 million tasks, for a while, and whether anything grows.
//!
//! ```text
//!   create ──▶ waits ─┬─▶ 3 of 5 cancelled half-way ──┐
//!     1160/s          └─▶ 2 of 5 fired when due ──────┴─▶ ended ──▶ retention over: gone
//!   └── at each moment as many come as go: after the first third all has to stay as it is ──┘
//! ```
//!
//! A service that runs for months must not need a little more each hour. What it needs goes up and down like a saw: it
//! gathers what is committed, and folds it. So the verdict compares the highest teeth of the middle third of the run
//! with those of the last, and the slope over the second half; a leak of one record in four would show. See [`course`].
//!
//! Delays and retention are fitted to the length of the run, so that the first third is enough to come to a balance.
//! The service runs in this process, over HTTP on loopback, on a directory that is removed afterwards; the load and the
//! receiver of the pushes take their share of its cores and of its memory. Every task is accounted for at the end.

mod course;
mod shoppers;

use std::io::{self, Write as _};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use indicatif::ProgressBar;
use serde_json::json;

use super::machine::{self, Machine};
use super::progress;
use super::report::{Figure, Line, Report, Unit};
use super::site::{Site, cannot};
use super::traffic::DRAIN_MAX;
use crate::cli::Failure;
use crate::clock::{Clock, DurationMs};
use crate::engine::Duetime;
use crate::metrics::Quantiles;
use crate::shard::table::Totals;
use course::{Course, Sample};
use shoppers::{Done, Plan, shop};

/// Creates a second that make 100 million a day.
const RATE: u32 = 1_160;
/// Longest time between two samples.
const SAMPLE_EVERY_MAX: Duration = Duration::from_secs(10);
/// Samples of a shorter run.
const SAMPLES: u32 = 100;
/// Between two looks at what has ended, once all is created.
const LOOK_EVERY: Duration = Duration::from_millis(50);

const NOTE: &str = "memory and cores are those of one process with the service, the load and the receiver of the pushes";

/// Runs the load of a day of 100 million tasks for a while: is all flat, and on time?
#[derive(clap::Args, Debug)]
pub struct Args {
    /// For how long
    #[arg(long, value_name = "N", default_value_t = 30.0, value_parser = parse_minutes)]
    minutes: f64,
    /// Creates a second
    #[arg(long, value_name = "N", default_value_t = RATE, value_parser = clap::value_parser!(u32).range(10..=100_000))]
    rate: u32,
    /// Where the data is kept while it runs [default: the machine's temporary directory]
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
}

fn parse_minutes(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(minutes) if (0.05..=1440.0).contains(&minutes) => Ok(minutes),
        _ => Err("from 0.05 minutes to 1440".to_owned()),
    }
}

/// What is shown, in this order.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Measure {
    Load,
    Late,
    Memory,
    Disk,
}

/// Runs it, and shows what came of it. A verdict that is not good is no failure; a lost task is.
///
/// # Errors
/// When the service does not start, answers anything but what was expected, or a task is lost.
pub(super) fn run(args: Args, json: bool) -> Result<(), Failure> {
    let outcome = actix_web::rt::System::new().block_on(async {
        tokio::select! {
            outcome = day(&args) => outcome,
            _ = tokio::signal::ctrl_c() => Err(Failure::new("stopped by ctrl-c")),
        }
    })?;
    let text = match json {
        true => format!("{:#}\n", outcome.json()),
        false => format!("{}\n", outcome.text()),
    };
    io::stdout()
        .write_all(text.as_bytes())
        .map_err(Failure::of_output)?;
    match outcome.tasks.lost() {
        0 => Ok(()),
        lost => Err(Failure::new(format!("{lost} tasks were lost"))),
    }
}

async fn day(args: &Args) -> Result<Outcome, Failure> {
    let plan = Plan::of(Duration::from_secs_f64(args.minutes * 60.0), args.rate);
    let ends_at = Clock::machine()
        .now()
        .wall
        .after(DurationMs::of(plan.length + plan.delay_max));
    let _ = writeln!(
        io::stderr(),
        "{:.1} minutes of load; the figures come at {ends_at}",
        args.minutes
    );
    let machine = Machine::look();
    let site = Site::own(args.data.as_deref()).await?;
    let words = site.words();
    let measured = Run { site: &site, plan }.measure().await;
    let closed = site.close().await;
    let (course, tasks, late) = measured?;
    closed?;
    Ok(Outcome {
        machine,
        words,
        plan,
        course,
        tasks,
        late,
    })
}

struct Run<'a> {
    site: &'a Site,
    plan: Plan,
}

impl Run<'_> {
    async fn measure(&self) -> Result<(Course, Tasks, Quantiles), Failure> {
        let Some(engine) = self.site.engine() else {
            return Err(Failure::new("the service is another process"));
        };
        self.plan.declare(self.site.address).await?;
        let bar = progress(self.plan.length.as_secs() as usize);
        let begun = Instant::now();
        let (done, course) = tokio::try_join!(
            shop(self.site, self.plan, begun),
            self.watch(engine, begun, &bar),
        )?;
        bar.set_message("waiting for what is still due");
        let tasks = self.account(engine, done).await?;
        bar.finish_and_clear();
        Ok((course, tasks, Counts::of(engine).await?.late))
    }

    /// Takes samples as long as the load lasts.
    async fn watch(
        &self,
        engine: &Duetime,
        begun: Instant,
        bar: &ProgressBar,
    ) -> Result<Course, Failure> {
        let data = self.site.data().unwrap_or_default();
        let every = SAMPLE_EVERY_MAX.min(self.plan.length / SAMPLES);
        let mut course = Course::default();
        let mut before = Quantiles::default();
        while begun.elapsed() < self.plan.length {
            tokio::time::sleep(every).await;
            let counts = Counts::of(engine).await?;
            let sample = Sample {
                at: begun.elapsed(),
                memory_bytes: machine::resident_bytes().unwrap_or(0),
                disk_bytes: machine::disk_bytes(&data),
                tasks: counts.tasks,
                late: counts.late.since(&before),
            };
            before = counts.late;
            bar.set_position(sample.at.as_secs());
            bar.set_message(sample.words());
            course.0.push(sample);
        }
        Ok(course)
    }

    /// Waits until all tasks have ended, and sets what the service says against what was asked of it.
    async fn account(&self, engine: &Duetime, done: Done) -> Result<Tasks, Failure> {
        let until = Instant::now() + self.plan.delay_max + DRAIN_MAX;
        loop {
            let totals = Counts::of(engine).await?.totals;
            let ended = totals.succeeded + totals.cancelled + totals.dead;
            if ended >= done.created || Instant::now() > until {
                let received = self.site.peer.received.count() as u64;
                return Ok(Tasks {
                    done,
                    totals,
                    received,
                });
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }
}

/// What the service counts.
struct Counts {
    /// Live and ended, as long as they are kept.
    tasks: u64,
    totals: Totals,
    late: Quantiles,
}

impl Counts {
    async fn of(engine: &Duetime) -> Result<Self, Failure> {
        let counted = engine.topic_counts().await;
        let (topics, mut totals) = counted.map_err(|error| cannot("read the counts", &error))?;
        let (mut tasks, mut late) = (0, Quantiles::default());
        for topic in topics.values() {
            tasks += topic.states.iter().sum::<u64>();
            totals += topic.totals;
            late.merge(&topic.lateness);
        }
        Ok(Self {
            tasks,
            totals,
            late,
        })
    }
}

/// What was asked of the service, and what it says has become of it.
struct Tasks {
    done: Done,
    totals: Totals,
    /// Pushes.
    received: u64,
}

impl Tasks {
    /// Tasks of which the service does not say what became of them, or says something that was not to be.
    fn lost(&self) -> u64 {
        let (done, totals) = (&self.done, &self.totals);
        let uncounted = done.created.abs_diff(totals.created);
        let cancelled = done.cancelled.abs_diff(totals.cancelled);
        let fired = (done.created - done.cancelled).abs_diff(totals.succeeded);
        uncounted.max(cancelled).max(fired).max(self.unpushed())
    }

    /// Pushes that never came.
    fn unpushed(&self) -> u64 {
        self.done.to_be_pushed.saturating_sub(self.received)
    }
}

/// All that a run has shown.
struct Outcome {
    machine: Machine,
    words: String,
    plan: Plan,
    course: Course,
    tasks: Tasks,
    /// How late tasks were over the whole run, as the service has measured it.
    late: Quantiles,
}

impl Outcome {
    fn late_ms(&self, q: f64) -> f64 {
        self.late.quantile(q).map_or(0.0, |ms| ms as f64)
    }

    fn is_on_time(&self) -> bool {
        self.late_ms(0.99) <= course::LATE_P99_MAX_MS as f64
    }

    fn report(&self) -> Report<Measure> {
        let plan = &self.plan;
        let service = format!(
            "{}; {:.1} minutes, due after {:.1} to {:.1} s, retention {:.1} s",
            self.words,
            plan.length.as_secs_f64() / 60.0,
            plan.delay_min.as_secs_f64(),
            plan.delay_max.as_secs_f64(),
            plan.retention.as_secs_f64(),
        );
        let mut report = Report::new(self.machine.clone(), service, NOTE);
        let done = &self.tasks.done;
        let count = |name, what: &str, value: u64| {
            Line::Figure(Figure::new(name, what, value as f64, Unit::Count))
        };
        let rate = done.created as f64 / done.took.as_secs_f64();
        let rate = Figure::new("created_per_s", "create, single", rate, Unit::PerSecond);
        report.add(
            Measure::Load,
            vec![
                Line::Figure(rate.beside("as planned", Some(f64::from(plan.rate)))),
                count("created", "tasks created", done.created),
                count("cancelled", "  cancelled before due", done.cancelled),
                count("fired", "  fired", self.tasks.totals.succeeded),
                count(
                    "received",
                    "  of them pushed, received",
                    self.tasks.received,
                ),
                count("overtaken", "  cancels that came too late", done.overtaken),
                count("lost", "tasks lost", self.tasks.lost()),
            ],
        );
        let on_time = match self.is_on_time() {
            true => "on time",
            false => "TOO LATE",
        };
        let late = |name, what, q| Figure::new(name, what, self.late_ms(q), Unit::Millis);
        report.add(
            Measure::Late,
            vec![
                Line::Figure(late("late_p50_ms", "late, p50", 0.5)),
                Line::Figure(
                    late("late_p99_ms", "late, p99", 0.99)
                        .beside("limit", Some(course::LATE_P99_MAX_MS as f64)),
                ),
                Line::Figure(late("late_max_ms", "late, max", 1.0)),
                Line::Verdict("  so it is".to_owned(), on_time),
            ],
        );
        let memory = ["memory_bytes", "memory_bytes_per_min"];
        report.add(
            Measure::Memory,
            level("memory", memory, &self.course.memory()),
        );
        let disk = ["disk_bytes", "disk_bytes_per_min"];
        report.add(Measure::Disk, level("disk", disk, &self.course.disk()));
        report
    }

    fn text(&self) -> String {
        format!("{}\n\n{}", self.course.table(), self.report().text())
    }

    fn json(&self) -> serde_json::Value {
        let (memory, disk) = (self.course.memory().is_flat(), self.course.disk().is_flat());
        let mut json = self.report().json();
        json["samples"] = self.course.json();
        json["lost"] = json!(self.tasks.lost());
        json["verdict"] = json!({
            "memory_is_flat": memory,
            "disk_is_flat": disk,
            "is_on_time": self.is_on_time(),
            "holds": memory && disk && self.is_on_time(),
        });
        json
    }
}

/// The lines of something that should stay level.
fn level(what: &str, [name, slope_name]: [&'static str; 2], level: &course::Level) -> Vec<Line> {
    let highest = Figure::new(
        name,
        format!("{what}, highest in the last third"),
        level.last,
        Unit::Bytes,
    );
    let slope = Figure::new(
        slope_name,
        "  slope over the second half, per minute",
        level.slope_per_min(),
        Unit::Bytes,
    );
    vec![
        Line::Figure(highest.beside("highest in the middle third", Some(level.middle))),
        Line::Figure(slope.beside("limit", Some(level.slope_max_per_min()))),
        Line::Verdict("  so it is".to_owned(), level.verdict()),
    ]
}

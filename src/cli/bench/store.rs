//! `duetime bench store`: what the engine alone does with many tasks, and what they cost while they wait.
//!
//! ```text
//!   create N ──▶ N pending: memory, disk, idle CPU ──▶ stop, start again ──▶ backup, ──▶ cancel ──▶ two bursts
//!   └─ batches, all shards busy     └─ most of them in chunks               restore, doctor        └─ due within one second
//! ```
//!
//! There is no HTTP in this: rates are those of the embedded API, on a directory that is removed afterwards. Each
//! figure stands beside a peer of the same run, or beside the limit that the design sets itself. Memory is measured
//! first, while the process is fresh, and the bare store last. The load is made by this process too, so memory and
//! cores that it takes count against the engine.
//!
//! A burst is created long enough before its instant to be in chunks, and to be read ahead. What is read of chunks
//! from then on is counted: nothing should be.

mod commits;
mod load;
mod whole;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::ValueEnum;
use indicatif::ProgressBar;

use super::machine::{self, Machine};
use super::measures::append_rate;
use super::report::{Figure, Line, Report, Unit, name_of};
use super::site::{Directory, cannot};
use super::{progress, show};
use crate::cli::Failure;
use crate::clock::{DurationMs, WallMs};
use crate::engine::Duetime;
use crate::engine::handle::BatchOp;
use crate::limits::BATCH_ITEMS_MAX;
use crate::shard::shelf::{ChunkReads, ShelfOptions};
use crate::shard::table::TableOptions;
use crate::task::{Action, State, When};
use load::{BATCHES_AT_ONCE, Course, Orders, apply};

/// Tasks of `--quick`.
const QUICK: usize = 100_000;
/// Most tasks that are cancelled.
const CANCELS_MAX: usize = 500_000;
/// Most tasks of a burst.
const BURST_MAX: usize = 1_000_000;
/// Tasks to a sync of the disk's own limit: about what a shard commits of a batch.
const TASKS_A_SYNC: usize = 5000;
/// Handlers that run at a time.
const RUNNING: usize = 8_192;
/// The name of the handler of the second burst.
const HANDLER: &str = "bench";

/// Longest wait for folding and tidying to come to rest.
const REST_MAX: Duration = Duration::from_secs(120);
/// Nothing has changed for so long: at rest.
const REST: Duration = Duration::from_secs(3);
/// Longest wait for a start.
const START_MAX: Duration = Duration::from_secs(120);
/// Longest wait for the end of a burst.
const BURST_ENDS_MAX: Duration = Duration::from_secs(180);
/// Between two looks at the counts.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// From the last create of a burst to its instant: the look-ahead of 10 s and some time for it.
const BURST_LEAD: Duration = Duration::from_secs(14);
/// So long before the instant all has been read that is read for it.
const READ_AHEAD_BY: Duration = Duration::from_secs(4);

const NOTE: &str = "the load is made by the process that it is a load for; limits are those of the design for a machine \
                    of 2 cores";

/// Measures the engine alone on this machine, without HTTP, with many tasks.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// How many tasks are pending at a time
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(100..=50_000_000))]
    tasks: u64,
    /// 100 000 tasks
    #[arg(long, conflicts_with = "tasks")]
    quick: bool,
    /// Where the data is kept while it runs [default: the machine's temporary directory]
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
}

/// What is measured, in the order in which it is shown.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Measure {
    Commit,
    Create,
    Pending,
    Restart,
    Whole,
    Cancel,
    Ended,
    Handled,
}

/// In the order in which it is done.
const PLAN: [Measure; 8] = [
    Measure::Create,
    Measure::Pending,
    Measure::Restart,
    Measure::Whole,
    Measure::Cancel,
    Measure::Ended,
    Measure::Handled,
    Measure::Commit,
];

/// Measures, and shows the figures.
///
/// # Errors
/// When the engine does not start, or does anything but what was expected; the figures so far are shown all the
/// same.
pub(super) fn run(args: Args, json: bool) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(machine::cores().clamp(2, 8))
        .enable_all()
        .build()
        .map_err(|error| cannot("start threads", &error))?;
    let (report, ended) = runtime.block_on(async {
        tokio::select! {
            measured = bench(&args) => measured,
            _ = tokio::signal::ctrl_c() => Err(Failure::new("stopped by ctrl-c")),
        }
    })?;
    show(&report, json)?;
    ended
}

async fn bench(args: &Args) -> Result<(Report<Measure>, Result<(), Failure>), Failure> {
    let tasks = match args.quick {
        true => QUICK,
        false => usize::try_from(args.tasks).unwrap_or(usize::MAX),
    };
    let mut bench = Bench::start(tasks, args.data.as_deref()).await?;
    let mut report = Report::new(Machine::look(), bench.words(), NOTE);
    let bar = progress(PLAN.len());
    let mut ended = Ok(());
    for measure in PLAN {
        bar.set_message(name_of(measure));
        match bench.take(measure, &bar).await {
            Ok(lines) => report.add(measure, lines),
            Err(failure) => {
                ended = Err(failure);
                break;
            }
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    bench.engine.shutdown().await;
    Ok((report, ended))
}

/// A run: the engine, its directory, and what is known so far.
struct Bench {
    engine: Duetime,
    tasks: usize,
    /// How shards keep their tasks: as usual, but that they fold and look ahead less when there are few.
    table: TableOptions,
    orders: Orders,
    /// Memory of the process before the engine was there.
    memory_before: u64,
    create_per_s: f64,
    /// Gone last.
    directory: Directory,
}

impl Bench {
    async fn start(tasks: usize, parent: Option<&Path>) -> Result<Self, Failure> {
        let orders = Orders::of("store", Action::None);
        // So that each shard folds a few times also when there are few tasks.
        let shards = machine::cores().max(2);
        let a_quarter = tasks * orders.sent_bytes() / shards / 4;
        let usual = TableOptions::default();
        let look_ahead = length_for(tasks, usual.look_ahead.to_std());
        let table = TableOptions {
            look_ahead: DurationMs(look_ahead.as_millis() as u64),
            shelf: ShelfOptions {
                fold_bytes: a_quarter.clamp(64 * 1024, usual.shelf.fold_bytes),
            },
        };
        let directory = Directory::inside(parent)?;
        let memory_before = memory()?;
        Ok(Self {
            engine: start(&directory, table).await?,
            tasks,
            table,
            orders,
            memory_before,
            create_per_s: 0.0,
            directory,
        })
    }

    fn words(&self) -> String {
        let on = match machine::file_system(self.directory.path()) {
            Some(kind) if kind == "tmpfs" => {
                "tmpfs, which is memory: figures of the disk mean nothing (another directory: --data)".to_owned()
            }
            Some(kind) => kind,
            None => "an unknown file system".to_owned(),
        };
        format!(
            "the engine in this process, {} tasks, chunks made whenever {} KiB are committed to a shard, data on {on}",
            self.tasks,
            self.table.shelf.fold_bytes / 1024
        )
    }

    /// Measures one thing.
    ///
    /// # Errors
    /// When anything was not done as expected.
    async fn take(&mut self, measure: Measure, bar: &ProgressBar) -> Result<Vec<Line>, Failure> {
        match measure {
            Measure::Commit => {
                let length = self.length_of(Duration::from_millis(1500));
                commits::measure(self.directory.path(), length).await
            }
            Measure::Create => self.create(bar).await,
            Measure::Pending => self.pending().await,
            Measure::Restart => self.restart().await,
            Measure::Whole => whole::measure(&self.engine, self.directory.path()).await,
            Measure::Cancel => self.cancel(bar).await,
            Measure::Ended => {
                let names = [
                    "ended_s",
                    "ended_late_p50_ms",
                    "ended_late_p99_ms",
                    "ended_reads",
                ];
                self.burst("ended", Action::None, names, bar).await
            }
            Measure::Handled => {
                let name = HANDLER.to_owned();
                let names = [
                    "handled_s",
                    "handled_late_p50_ms",
                    "handled_late_p99_ms",
                    "handled_reads",
                ];
                self.burst("handled", Action::Handler { name }, names, bar)
                    .await
            }
        }
    }

    fn length_of(&self, usual: Duration) -> Duration {
        length_for(self.tasks, usual)
    }

    /// Tasks of a batch: there are enough batches to see a course.
    fn batch_of(&self, count: usize) -> usize {
        (count / 20).clamp(1, BATCH_ITEMS_MAX)
    }

    async fn apply<F>(&self, count: usize, bar: &ProgressBar, op: F) -> Result<Course, Failure>
    where
        F: Fn(usize) -> BatchOp + Clone + Send + 'static,
    {
        apply(&self.engine, (count, self.batch_of(count)), bar, op).await
    }

    async fn create(&mut self, bar: &ProgressBar) -> Result<Vec<Line>, Failure> {
        let bytes = self.orders.sent_bytes() * TASKS_A_SYNC;
        let length = self.length_of(Duration::from_millis(1500));
        let limit = append_rate(self.directory.path(), bytes, length);
        let limit =
            limit.map_err(|error| cannot("append to a file", &error))? * TASKS_A_SYNC as f64;

        let (orders, count) = (self.orders.clone(), self.tasks);
        let course = self
            .apply(count, bar, move |n| {
                orders.create(n, When::After(in_days(n)))
            })
            .await?;
        // The first batches have to be made before anything is committed, and find all buffers cold.
        let (begin, few) = (
            BATCHES_AT_ONCE * self.batch_of(count),
            QUICK.min(count / 10),
        );
        let (all, first, folding, last) = (
            course.per_second(0, count),
            course.per_second(begin, begin + few),
            course.per_second(count / 10 * 3, count / 10 * 5),
            course.per_second(count - count / 10, count),
        );
        self.create_per_s = all;
        let rate = |name, what: String, value| Figure::new(name, what, value, Unit::PerSecond);
        let append =
            format!("append + fdatasync of the same bytes, {TASKS_A_SYNC} tasks to a sync");
        let create = rate(
            "create_per_s",
            format!("create, batches, {count} due in days"),
            all,
        );
        Ok(vec![
            Line::Figure(create.beside(append, Some(limit))),
            Line::Figure(rate(
                "create_first_per_s",
                format!("  the first {few}"),
                first,
            )),
            Line::Figure(rate(
                "create_early_per_s",
                "  the fourth and fifth tenth, while chunks are made".to_owned(),
                folding,
            )),
            Line::Figure(
                rate(
                    "create_last_per_s",
                    format!("  the last {}", count / 10),
                    last,
                )
                .beside(format!("the first {few}; at least 0.8 of it"), Some(first)),
            ),
        ])
    }

    async fn pending(&mut self) -> Result<Vec<Line>, Failure> {
        let at_rest = self.rest().await?;
        let count = self.tasks as f64;
        let memory = memory()?.saturating_sub(self.memory_before) as f64;
        let disk = machine::disk_bytes(self.directory.path()) as f64;
        let busy = busy_share(self.length_of(Duration::from_secs(5))).await?;
        let raw = self.orders.sent_bytes() as f64;
        let index = at_rest.index_bytes as f64;
        let bytes = |name, what: &str, value| Figure::new(name, what, value, Unit::Bytes);
        let sent = "the task as it is sent over HTTP";
        Ok(vec![
            Line::Figure(
                bytes(
                    "pending_memory_bytes",
                    "memory for all pending tasks",
                    memory,
                )
                .beside("limit: 64 B each and 512 MiB", Some(memory_limit(count))),
            ),
            Line::Figure(
                bytes("pending_memory_task_bytes", "  for each", memory / count)
                    .beside(sent, Some(raw)),
            ),
            Line::Figure(
                bytes(
                    "pending_index_task_bytes",
                    "  of it the index",
                    index / count,
                )
                .beside("limit", Some(64.0)),
            ),
            Line::Figure(
                bytes(
                    "pending_disk_task_bytes",
                    "disk for each pending task, in blocks",
                    disk / count,
                )
                .beside(format!("{sent}; at most 1.5 of it"), Some(raw)),
            ),
            Line::Figure(
                Figure::new(
                    "pending_idle_cpu_percent",
                    "CPU while nothing is due, of one core",
                    busy,
                    Unit::Percent,
                )
                .beside("limit", Some(2.0)),
            ),
        ])
    }

    async fn restart(&mut self) -> Result<Vec<Line>, Failure> {
        self.engine.shutdown().await;
        let begun = Instant::now();
        self.engine = start(&self.directory, self.table).await?;
        let took = begun.elapsed();
        let memory = memory()?.saturating_sub(self.memory_before) as f64;
        let found = Sums::of(&self.engine).await?.tasks;
        if found != self.tasks {
            return Err(Failure::new(format!(
                "{} tasks were created, and after a restart there are {found}",
                self.tasks
            )));
        }
        let ready = Figure::new(
            "restart_s",
            "start, until all shards are recovered",
            took.as_secs_f64(),
            Unit::Seconds,
        );
        let memory_after = Figure::new(
            "restart_memory_bytes",
            "  memory right after",
            memory,
            Unit::Bytes,
        );
        Ok(vec![
            Line::Figure(ready.beside("limit", Some(5.0))),
            Line::Figure(memory_after.beside(
                "limit: 64 B each and 512 MiB",
                Some(memory_limit(self.tasks as f64)),
            )),
        ])
    }

    async fn cancel(&mut self, bar: &ProgressBar) -> Result<Vec<Line>, Failure> {
        // What was created first is in chunks.
        let count = CANCELS_MAX.min(self.tasks / 2);
        let before = Sums::of(&self.engine).await?;
        let orders = self.orders.clone();
        let course = self.apply(count, bar, move |n| orders.cancel(n)).await?;
        let after = Sums::of(&self.engine).await?;
        let what = format!("cancel by key, batches, the first {count}");
        let rate = Figure::new(
            "cancel_per_s",
            what,
            course.per_second(0, count),
            Unit::PerSecond,
        );
        let read = (after.reads.task - before.reads.task) + (after.reads.list - before.reads.list);
        let what = format!("  chunks read for it, of {}", before.chunks);
        let reads = Figure::new("cancel_reads", what, read as f64, Unit::Count);
        Ok(vec![
            Line::Figure(rate.beside("create, in batches", Some(self.create_per_s))),
            Line::Figure(reads.beside("limit", Some(0.0))),
        ])
    }

    /// Tasks that are all due within one second, until all of them have ended.
    async fn burst(
        &mut self,
        name: &str,
        action: Action,
        [took_name, p50, p99, reads_name]: [&'static str; 4],
        bar: &ProgressBar,
    ) -> Result<Vec<Line>, Failure> {
        let count = BURST_MAX.min(self.tasks);
        let orders = Orders::of(name, action);
        // Three times as long as it should take: an instant before the last task is created is no use.
        let creating = 1.0 + 3.0 * count as f64 / self.create_per_s.max(1.0);
        let creating = Duration::from_secs_f64(creating);
        let lead = creating + self.length_of(BURST_LEAD);
        let (due, at) = (
            Instant::now() + lead,
            self.engine
                .now()
                .wall
                .after(DurationMs(lead.as_millis() as u64)),
        );
        let of = orders.clone();
        self.apply(count, bar, move |n| {
            of.create(n, When::At(WallMs(at.0 + (n % 1000) as i64)))
        })
        .await?;
        let read_by = self.length_of(READ_AHEAD_BY);
        let look_at = due - read_by;
        if Instant::now() > look_at {
            return Err(Failure::new(format!(
                "creating {count} tasks took longer than {creating:.1?}"
            ))
            .then("the machine is busier than a moment ago: measure again"));
        }
        bar.set_message(format!("{name}: waiting for the due time"));
        tokio::time::sleep_until(look_at.into()).await;
        let before = Sums::of(&self.engine).await?.reads;
        tokio::time::sleep_until(due.into()).await;
        let (took, late) = loop {
            let (topics, _) = within("the counts", self.engine.topic_counts()).await?;
            let took = due.elapsed();
            let topic = topics.get(&orders.topic);
            let ended = topic.map_or(0, |topic| topic.states[State::Succeeded.index()]);
            match topic {
                Some(topic) if ended == count as u64 => break (took, topic.lateness.clone()),
                _ if took < BURST_ENDS_MAX => {
                    bar.set_message(format!("{name}: {ended} of {count}"))
                }
                _ => {
                    return Err(Failure::new(format!(
                        "only {ended} of {count} tasks ended within {BURST_ENDS_MAX:?}"
                    )));
                }
            }
            tokio::time::sleep(LOOK_EVERY).await;
        };
        let after = Sums::of(&self.engine).await?.reads;
        let (ahead, single) = (after.ahead - before.ahead, after.task - before.task);
        let took = Figure::new(
            took_name,
            format!("{count} due within one second, {name}: all have, after"),
            took.as_secs_f64(),
            Unit::Seconds,
        );
        let ms = |q| late.quantile(q).map_or(0.0, |ms| ms as f64);
        let late = |name, what: &str, q| Line::Figure(Figure::new(name, what, ms(q), Unit::Millis));
        let what = format!(
            "  chunk reads since {read_by:?} before, of {} ({ahead} ahead)",
            after.ahead + after.task
        );
        let reads = Figure::new(reads_name, what, (ahead + single) as f64, Unit::Count);
        Ok(vec![
            Line::Figure(took.beside("limit", Some(10.0))),
            late(p50, "  started late, p50", 0.5),
            late(p99, "  started late, p99", 0.99),
            Line::Figure(reads.beside("limit", Some(0.0))),
        ])
    }

    /// Waits until nothing is folded or tidied any more.
    async fn rest(&self) -> Result<Sums, Failure> {
        let until = Instant::now() + REST_MAX;
        let mut last = Sums::of(&self.engine).await?;
        let mut since = Instant::now();
        while since.elapsed() < self.length_of(REST) && Instant::now() < until {
            tokio::time::sleep(LOOK_EVERY * 5).await;
            let now = Sums::of(&self.engine).await?;
            if now != last {
                (last, since) = (now, Instant::now());
            }
        }
        Ok(last)
    }
}

/// As long as this, or shorter when so few tasks say that it is not about the figures.
fn length_for(tasks: usize, usual: Duration) -> Duration {
    match tasks < QUICK {
        true => usual / 5,
        false => usual,
    }
}

async fn start(directory: &Directory, table: TableOptions) -> Result<Duetime, Failure> {
    let starting = Duetime::builder()
        .data_dir(directory.path().join("data"))
        .table(table)
        // A handler that does nothing is over before the next is handed out: what is measured is the way there and back.
        .running_max(RUNNING)
        .handler(HANDLER, |_| async { Ok(None) })
        .start();
    within("the start", starting).await
}

/// The answer to a question, for which there is a longest wait.
async fn within<T, E: std::fmt::Display>(
    what: &str,
    asked: impl Future<Output = Result<T, E>>,
) -> Result<T, Failure> {
    match tokio::time::timeout(START_MAX, asked).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(error)) => Err(Failure::new(format!("{what} failed: {error}"))),
        Err(_) => Err(Failure::new(format!(
            "{what} took longer than {START_MAX:?}"
        ))),
    }
}

/// What all shards count, together.
#[derive(PartialEq, Debug, Default)]
struct Sums {
    tasks: usize,
    index_bytes: usize,
    chunks: u64,
    recent_bytes: u64,
    reads: ChunkReads,
}

impl Sums {
    async fn of(engine: &Duetime) -> Result<Self, Failure> {
        let mut sums = Self::default();
        for counts in within("the counts", engine.counts()).await? {
            let (shelf, reads) = (counts.shelf, &mut sums.reads);
            sums.tasks += counts.tasks;
            sums.index_bytes += counts.index_bytes;
            sums.chunks += shelf.chunks;
            sums.recent_bytes += shelf.recent_bytes;
            reads.task += shelf.reads.task;
            reads.list += shelf.reads.list;
            reads.ahead += shelf.reads.ahead;
            reads.moved += shelf.reads.moved;
        }
        Ok(sums)
    }
}

/// A day to thirty days, in no order.
fn in_days(n: usize) -> DurationMs {
    const DAY_MS: u64 = 86_400_000;
    DurationMs(DAY_MS + (n as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) % (29 * DAY_MS))
}

/// What so many pending tasks may take, in bytes.
fn memory_limit(tasks: f64) -> f64 {
    64.0 * tasks + f64::from(512 << 20)
}

fn memory() -> Result<u64, Failure> {
    let unknown = || Failure::new("cannot read this process's memory from /proc/self/status");
    machine::resident_bytes().ok_or_else(unknown)
}

/// How much of one core this process takes for a while, in percent.
async fn busy_share(length: Duration) -> Result<f64, Failure> {
    let unknown = || Failure::new("cannot read this process's CPU time from /proc/self/stat");
    let (begun, before) = (Instant::now(), machine::busy_time().ok_or_else(unknown)?);
    tokio::time::sleep(length).await;
    let busy = machine::busy_time().ok_or_else(unknown)? - before;
    Ok(100.0 * busy.as_secs_f64() / begun.elapsed().as_secs_f64())
}

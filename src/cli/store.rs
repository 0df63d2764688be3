//! `duetime store`: what is done with a data directory as a whole.
//!
//! All but a backup and an export need the directory to themselves and say so if a process has it. These two are asked of
//! a running service: its address and a token for it stand in the directory's lock, which only its owner can read.
//!
//! While something is being done a bar on standard error shows how far it is, if that is a terminal.

mod doctor;
mod left_out;
mod service;

use std::fs::File;
use std::io::{self, BufRead, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};

use crate::archive::backup::{self, Manifest, Wanted};
use crate::archive::sink::OnTaken;
use crate::archive::{ArchiveError, Carried, Options, Progress, export, import, reshard};
use crate::causes::chain;
use crate::cli::{Failure, Out, Problem, render};
use crate::ids::SLOTS;
use crate::store::data_dir::{DataDir, DataDirError};
use left_out::LeftOut;
use service::{asked_of, exported_by};

/// How often the bar is drawn anew.
const DRAW_EVERY: Duration = Duration::from_millis(100);
/// Blocks of lines that wait to be written.
const BLOCKS_MAX: usize = 16;

/// What is to be done with a data directory.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand, Debug)]
enum Command {
    /// Write all tasks and late answers to standard output, one line of JSON each, also while the service runs
    #[command(
        after_help = "Example:\n  duetime store export --data ./data > tasks.ndjson\n\n\
                            Topics, tombstones and kept answers are not in it; a backup has them."
    )]
    Export {
        #[command(flatten)]
        place: Place,
        #[command(flatten)]
        damaged: Damaged,
    },
    /// Add the tasks of an export, to a new directory or one that no service uses; all of them or none
    #[command(after_help = "Example:\n  duetime store import --data ./data tasks.ndjson")]
    Import {
        #[command(flatten)]
        place: Place,
        #[command(flatten)]
        damaged: Damaged,
        /// The lines of an export; `-` is standard input
        file: PathBuf,
        /// Pass over tasks that are there already, instead of refusing all
        #[arg(long)]
        skip_existing: bool,
        /// Shards of a new directory [default: as many as cores, at least 2]
        #[arg(long, value_name = "COUNT", value_parser = parse_shards())]
        shards: Option<u16>,
    },
    /// Copy all there is to a new directory, also while the service runs
    #[command(
        after_help = "Example:\n  duetime store backup --data ./data /var/backups/duetime/monday"
    )]
    Backup {
        #[command(flatten)]
        place: Place,
        #[command(flatten)]
        damaged: Damaged,
        /// Where the backup is to be; nothing may be there yet
        target: PathBuf,
    },
    /// Make a data directory of a backup
    #[command(
        after_help = "Example:\n  duetime store restore --data ./data /var/backups/duetime/monday"
    )]
    Restore {
        #[command(flatten)]
        place: Place,
        /// The backup
        backup: PathBuf,
        /// What came after the backup, from the copies of the journals: the directory of [backup] journal_dir
        #[arg(long, value_name = "DIR")]
        journals: Option<PathBuf>,
        /// Replace what is in the directory
        #[arg(long)]
        replace: bool,
        /// Shards of the directory [default: as many as were backed up]
        #[arg(long, value_name = "COUNT", value_parser = parse_shards())]
        shards: Option<u16>,
    },
    /// Look through all that is stored, and say what is wrong with it
    #[command(after_help = "Example:\n  duetime store doctor --data ./data\n\n\
                            Nothing is changed without --repair. Exit code 1 when something is wrong.")]
    Doctor {
        #[command(flatten)]
        place: Place,
        /// Rebuild the shards from what can be read; the rest is kept under DIR/aside, and tasks whose latest change is
        /// lost are paused
        #[arg(long)]
        repair: bool,
    },
    /// Spread the tasks over another number of shards
    #[command(after_help = "Example:\n  duetime store reshard --data ./data --shards 8")]
    Reshard {
        #[command(flatten)]
        place: Place,
        #[command(flatten)]
        damaged: Damaged,
        /// How many shards there are to be
        #[arg(long, value_name = "COUNT", value_parser = parse_shards())]
        shards: u16,
    },
}

/// Which directory.
#[derive(clap::Args, Debug)]
struct Place {
    /// The data directory
    #[arg(
        long,
        value_name = "DIR",
        env = "DUETIME_STORE__DATA",
        hide_env_values = true,
        default_value = "./data"
    )]
    data: PathBuf,
}

#[derive(clap::Args, Debug)]
struct Damaged {
    /// Leave out what does not read back, instead of failing
    #[arg(long)]
    skip_damaged: bool,
}

impl Damaged {
    fn options(&self) -> Options {
        Options {
            skip_damaged: self.skip_damaged,
            ..Options::default()
        }
    }
}

fn parse_shards() -> clap::builder::RangedI64ValueParser<u16> {
    clap::value_parser!(u16).range(1..=i64::from(SLOTS))
}

pub(super) fn run(args: Args, out: &mut Out<'_>) -> Result<(), Failure> {
    let begun = Instant::now();
    match args.command {
        Command::Export { place, damaged } => run_export(&place.data, &damaged.options(), out),
        Command::Import {
            place,
            damaged,
            file,
            skip_existing,
            shards,
        } => {
            let on_taken = match skip_existing {
                true => OnTaken::Skip,
                false => OnTaken::Refuse,
            };
            let options = damaged.options();
            let carried = run_import(&place.data, &file, on_taken, shards, &options)?;
            let words = match carried.skipped {
                0 => String::new(),
                skipped => format!(", passed over {skipped} that were there already"),
            };
            tell(
                out,
                "imported",
                &place.data,
                carried,
                begun,
                &words,
                json!({}),
            )
        }
        Command::Backup {
            place,
            damaged,
            target,
        } => run_backup(&place.data, &target, &damaged.options(), out),
        Command::Restore {
            place,
            backup,
            journals,
            replace,
            shards,
        } => {
            let from = (backup.as_path(), journals.as_deref());
            let (manifest, carried) = run_restore(&place.data, from, replace, shards)?;
            let shards = shards.unwrap_or(manifest.shards);
            let more = json!({"shards": shards, "made_at": stamp(manifest.made_at_ms)});
            tell(out, "restored", &place.data, carried, begun, "", more)
        }
        Command::Doctor { place, repair } => doctor::run(&place.data, repair, out),
        Command::Reshard {
            place,
            damaged,
            shards,
        } => {
            let options = damaged.options();
            let (before, carried) = run_reshard(&place.data, shards, &options)?;
            let words = format!(", {before} shards before and {shards} now");
            let more = json!({"shards": shards, "shards_before": before});
            tell(
                out,
                "carried over",
                &place.data,
                carried,
                begun,
                &words,
                more,
            )
        }
    }
}

// ---------------------------------------------------------------- the commands

fn run_export(data: &Path, options: &Options, out: &mut Out<'_>) -> Result<(), Failure> {
    let begun = Instant::now();
    let dir = match DataDir::open_existing(data) {
        Ok(dir) => dir,
        Err(DataDirError::InUse { holder, .. }) => {
            let (tasks, left_out) = exported_by(&holder, data, options, out)?;
            return tell_exported(tasks, begun, &left_out, out);
        }
        Err(error) => return Err(explained("export", data, error.into())),
    };
    let progress = Progress::default();
    let done = watched(
        "exporting",
        Unit::Tasks,
        &progress,
        |blocks| {
            let gone = |_| io::Error::from(io::ErrorKind::BrokenPipe);
            let give = |block: Vec<u8>| blocks.send(block).map_err(gone);
            export::of_directory(&dir, &give, options, &progress)
        },
        &mut |block| out.sink.write_all(block).map_err(Failure::of_output),
    )?;
    out.flush()?;
    let carried = match done {
        Ok(carried) => carried,
        Err(error) => {
            if !out.json {
                let _ = write!(io::stderr(), "{}", LeftOut::of(&progress).lines());
            }
            return Err(explained("export", data, error));
        }
    };
    tell_exported(carried.tasks, begun, &LeftOut::of(&progress), out)
}

fn tell_exported(
    tasks: u64,
    begun: Instant,
    left_out: &LeftOut,
    out: &mut Out<'_>,
) -> Result<(), Failure> {
    // Standard output holds tasks and nothing else.
    let summary = match out.json {
        true => json!({
            "tasks": tasks, "seconds": seconds(begun), "left_out": left_out.count, "places": left_out.json(),
        })
        .to_string(),
        false => {
            let lines = left_out.lines();
            format!("{lines}exported {}{}", count_of(tasks, begun), left_out.words())
        }
    };
    let _ = writeln!(io::stderr(), "{summary}");
    Ok(())
}

fn run_import(
    data: &Path,
    file: &Path,
    on_taken: OnTaken,
    shards: Option<u16>,
    options: &Options,
) -> Result<Carried, Failure> {
    let cannot = |error| Failure::new(format!("cannot read {}: {error}", file.display()));
    let mut lines: Box<dyn BufRead + Send> = match file.to_str() {
        Some("-") => Box::new(BufReader::new(io::stdin())),
        _ => Box::new(BufReader::with_capacity(
            1 << 20,
            File::open(file).map_err(cannot)?,
        )),
    };
    let (mut dir, is_new) = match DataDir::open_existing(data) {
        Ok(dir) => (dir, false),
        Err(DataDirError::Absent { .. }) => (claim(data, "import")?, true),
        Err(error) => return Err(explained("import", data, error.into())),
    };
    if let (false, Some(wanted)) = (is_new, shards)
        && wanted != dir.shards()
    {
        let told = format!("{} has {} shards", data.display(), dir.shards());
        return Err(Failure::new(told).then("change their number with `duetime store reshard`"));
    }
    let shards = shards.unwrap_or_else(|| usual_shards(options));
    let progress = Progress::default();
    let done = watched(
        "importing",
        Unit::Other,
        &progress,
        |_| import::import(&mut dir, shards, &mut lines, on_taken, options, &progress),
        &mut |_| Ok(()),
    )?;
    let _ = write!(io::stderr(), "{}", LeftOut::of(&progress).lines());
    done.map_err(|error| explained("import", data, error))
}

fn usual_shards(options: &Options) -> u16 {
    u16::try_from(options.threads).unwrap_or(u16::MAX).max(2)
}

fn run_restore(
    data: &Path,
    (backup, journals): (&Path, Option<&Path>),
    replace: bool,
    shards: Option<u16>,
) -> Result<(Manifest, Carried), Failure> {
    let read = Manifest::read(backup);
    let manifest = read.map_err(|error| explained("restore", data, error))?;
    let mut dir = match DataDir::open_existing(data) {
        Ok(dir) if replace => dir,
        Ok(dir) => {
            let told = format!(
                "{} is a data directory already, with {} shards",
                data.display(),
                dir.shards()
            );
            return Err(Failure::new(told).then(
                "name a new directory with --data, or put the backup in its place with --replace",
            ));
        }
        Err(DataDirError::Absent { .. }) => claim(data, "restore")?,
        Err(error) => return Err(explained("restore", data, error.into())),
    };
    let shards = shards.unwrap_or(manifest.shards);
    let progress = Progress::default();
    let options = Options::default();
    let done = watched(
        "restoring",
        Unit::Tasks,
        &progress,
        |_| backup::restore(backup, journals, &mut dir, shards, &options, &progress),
        &mut |_| Ok(()),
    )?;
    done.map_err(|error| explained("restore", data, error))
}

fn run_reshard(data: &Path, shards: u16, options: &Options) -> Result<(u16, Carried), Failure> {
    let mut dir = open(data, "reshard")?;
    let before = dir.shards();
    let progress = Progress::default();
    let done = watched(
        "carrying over",
        Unit::Tasks,
        &progress,
        |_| reshard::reshard(&mut dir, shards, options, &progress),
        &mut |_| Ok(()),
    )?;
    let _ = write!(io::stderr(), "{}", LeftOut::of(&progress).lines());
    let carried = done.map_err(|error| explained("reshard", data, error))?;
    Ok((before, carried))
}

fn run_backup(
    data: &Path,
    target: &Path,
    options: &Options,
    out: &mut Out<'_>,
) -> Result<(), Failure> {
    let begun = Instant::now();
    let target = std::path::absolute(target)
        .map_err(|error| Failure::new(format!("cannot name {}: {error}", target.display())))?;
    let manifest = match DataDir::open_existing(data) {
        Ok(dir) => {
            let progress = Progress::default();
            let wanted = Wanted {
                to: &target,
                now: out.now,
                journals: None,
            };
            let done = watched(
                "backing up",
                Unit::Tasks,
                &progress,
                |_| backup::of_directory(&dir, wanted, options, &progress),
                &mut |_| Ok(()),
            )?;
            if !out.json {
                let _ = write!(io::stderr(), "{}", LeftOut::of(&progress).lines());
            }
            done.map_err(|error| explained("back up", data, error))?
        }
        Err(DataDirError::InUse { .. }) if options.skip_damaged => {
            let told = format!(
                "cannot back up {}: a running service makes no backup that leaves something out",
                data.display()
            );
            return Err(Failure::new(told).then(
                "stop it to use --skip-damaged, or leave that out: the backup fails then, and says so, if something does not read back",
            ));
        }
        Err(DataDirError::InUse { holder, .. }) => asked_of(&holder, data, &target)?,
        Err(error) => return Err(explained("back up", data, error.into())),
    };
    let carried = Carried {
        tasks: manifest.tasks,
        notes: manifest.notes,
        skipped: 0,
    };
    let more = json!({"bytes": manifest.bytes(), "left_out": manifest.left_out});
    tell(out, "backed up", &target, carried, begun, "", more)
}

// ---------------------------------------------------------------- what they share

/// Takes a data directory that is there.
fn open(data: &Path, what: &str) -> Result<DataDir, Failure> {
    DataDir::open_existing(data).map_err(|error| explained(what, data, error.into()))
}

fn claim(data: &Path, what: &str) -> Result<DataDir, Failure> {
    DataDir::claim(data).map_err(|error| explained(what, data, error.into()))
}

/// Why it was not done, and what to do next.
fn explained(what: &str, data: &Path, error: ArchiveError) -> Failure {
    let data = data.display();
    if let ArchiveError::Io { source, .. } = &error
        && source.kind() == io::ErrorKind::BrokenPipe
    {
        return Failure::of_output(io::ErrorKind::BrokenPipe.into());
    }
    let told = Failure::new(format!("cannot {what}: {}", chain(&error)));
    match error {
        ArchiveError::DataDir(DataDirError::Absent { .. }) => {
            told.then("name the data directory with --data")
        }
        ArchiveError::DataDir(DataDirError::InUse { .. }) => told.then(
            "only `duetime store backup` and `export` work on a running service; a backup can be restored elsewhere",
        ),
        ArchiveError::Damaged { .. } => told.then(format!(
            "nothing was changed; `duetime store doctor --data {data}` says more, and --skip-damaged leaves it out"
        )),
        ArchiveError::Line { line, problem } => {
            let mut value = serde_json::to_value(&problem).unwrap_or_default();
            value["line"] = Value::from(line);
            told.then("nothing was imported; correct the line, or leave it out")
                .because(Problem {
                    text: value.to_string(),
                    value,
                })
        }
        ArchiveError::Taken { .. } => {
            told.then("nothing was imported; --skip-existing passes over what is there already")
        }
        ArchiveError::Exists { .. } => told.then("name a place where nothing is yet"),
        ArchiveError::Behind { .. } => told.then(
            "nothing was changed; name newer copies, or restore the backup alone, without --journals",
        ),
        ArchiveError::NotABackup { .. } => told.then("nothing was changed; use another backup"),
        _ => told,
    }
}

/// What a bar counts.
#[derive(Clone, Copy)]
enum Unit {
    Tasks,
    /// Tasks, nobody knows of how many.
    Count,
    /// Steps of no name.
    Other,
}

fn bar(doing: &'static str, unit: Unit) -> ProgressBar {
    let bar = ProgressBar::new(0);
    let template = match unit {
        Unit::Tasks => "{msg} {wide_bar} {human_pos}/{human_len} tasks, {per_sec}, {eta} left",
        Unit::Count => "{spinner} {msg} {human_pos} tasks, {per_sec}",
        Unit::Other => "{msg} {wide_bar} {percent} %, {eta} left",
    };
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar.with_message(doing)
}

/// Lets `work` run, shows how far it is, and takes the blocks that it gives out. A failure to take one stops it.
fn watched<T: Send>(
    doing: &'static str,
    unit: Unit,
    progress: &Progress,
    work: impl FnOnce(SyncSender<Vec<u8>>) -> Result<T, ArchiveError> + Send,
    take: &mut dyn FnMut(&[u8]) -> Result<(), Failure>,
) -> Result<Result<T, ArchiveError>, Failure> {
    let bar = bar(doing, unit);
    let (give, blocks) = sync_channel(BLOCKS_MAX);
    let done = thread::scope(|scope| {
        let working = scope.spawn(move || work(give));
        loop {
            match blocks.recv_timeout(DRAW_EVERY) {
                Ok(block) => {
                    if let Err(failure) = take(&block) {
                        progress.stop();
                        // What is given out from here on meets a closed door.
                        drop(blocks);
                        return Err(failure);
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            bar.set_length(progress.total());
            bar.set_position(progress.done());
        }
        Ok(working.join().unwrap_or(Err(ArchiveError::CutOff)))
    });
    bar.finish_and_clear();
    done
}

fn seconds(begun: Instant) -> f64 {
    (begun.elapsed().as_secs_f64() * 1000.0).round() / 1000.0
}

fn stamp(at_ms: i64) -> String {
    crate::clock::WallMs(at_ms).to_string()
}

fn count_of(tasks: u64, begun: Instant) -> String {
    let took = begun.elapsed().as_secs_f64();
    let rate = tasks as f64 / took.max(0.001);
    let noun = if tasks == 1 { "task" } else { "tasks" };
    format!("{tasks} {noun} in {took:.1} s ({rate:.0}/s)")
}

fn tell(
    out: &mut Out<'_>,
    did: &str,
    place: &Path,
    carried: Carried,
    begun: Instant,
    words: &str,
    more: Value,
) -> Result<(), Failure> {
    if !out.json {
        let count = count_of(carried.tasks, begun);
        let preposition = if did == "carried over" { "in" } else { "to" };
        let line = format!("{did} {count} {preposition} {}{words}", place.display());
        return out.line(&render::plain(&line));
    }
    let mut summary = json!({
        "path": place, "tasks": carried.tasks, "notes": carried.notes, "seconds": seconds(begun),
    });
    if did == "imported" {
        summary["skipped"] = Value::from(carried.skipped);
    }
    if let (Value::Object(summary), Value::Object(more)) = (&mut summary, more) {
        summary.extend(more);
    }
    out.line(&summary.to_string())
}

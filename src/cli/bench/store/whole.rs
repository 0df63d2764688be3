//! The whole store at once: a backup while the engine runs, a restore of it, and the doctor over what was restored, as it
//! is and with many chunks damaged.

use std::path::Path;
use std::time::{Duration, Instant};

use super::super::report::{Figure, Line, Unit};
use super::super::site::cannot;
use crate::archive::doctor::{look, repair};
use crate::archive::{Options, Progress, backup};
use crate::cli::Failure;
use crate::clock::Clock;
use crate::engine::Duetime;
use crate::store::data_dir::DataDir;
use crate::store::database::Database;

/// Most chunks that are damaged.
const DAMAGED_MAX: usize = 1000;
/// Longest wait for the backup.
const BACKUP_MAX: Duration = Duration::from_secs(300);
/// Between two looks at it.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// A restore of ten million tasks may take so long.
const RESTORE_10M_S: f64 = 60.0;
/// What the bodies of chunks are called in a shard's database.
const BODIES: &[u8] = b"c";

/// Measures it with all tasks of an engine, in directories inside `home`.
///
/// # Errors
/// When anything was not done as expected, or the doctor does not find each damaged place.
pub(super) async fn measure(engine: &Duetime, home: &Path) -> Result<Vec<Line>, Failure> {
    let (target, restored) = (home.join("backup"), home.join("restored"));
    let begun = Instant::now();
    let begin = engine.begin_backup(target.clone());
    begin.map_err(|error| cannot("begin a backup", &error))?;
    let manifest = loop {
        tokio::time::sleep(LOOK_EVERY).await;
        match engine.backup_status().and_then(|status| status.ended) {
            Some((_, made)) => break made.map_err(|why| cannot("make a backup", &why))?,
            None if begun.elapsed() > BACKUP_MAX => {
                return Err(Failure::new("the backup does not end"));
            }
            None => {}
        }
    };
    let backed_up = begun.elapsed();
    let looked = tokio::task::spawn_blocking(move || restore_and_look(&target, &restored));
    let looked = looked.await.map_err(|error| cannot("restore", &error))??;
    let seconds = |name, what: &str, took: Duration| {
        Figure::new(name, what, took.as_secs_f64(), Unit::Seconds)
    };
    let count = |name, what: String, value| {
        Line::Figure(Figure::new(name, what, value as f64, Unit::Count))
    };
    let limit = RESTORE_10M_S * manifest.tasks as f64 / 10e6;
    let name = "backup_s";
    Ok(vec![
        Line::Figure(seconds(
            name,
            "backup of all while the engine runs",
            backed_up,
        )),
        Line::Figure(
            seconds("restore_s", "  restore of it", looked.restored)
                .beside("limit, of 60 s for 10 M", Some(limit)),
        ),
        Line::Figure(seconds(
            "doctor_s",
            "  doctor over what was restored",
            looked.healthy,
        )),
        Line::Figure(
            seconds("doctor_damaged_s", "  with damaged chunks", looked.damaged)
                .beside("without", Some(looked.healthy.as_secs_f64())),
        ),
        count(
            "doctor_found",
            "  damaged chunks, all found".to_owned(),
            looked.places,
        ),
        Line::Figure(seconds("repair_s", "  repair", looked.repaired)),
        count(
            "repair_lost",
            "  tasks that did not read back".to_owned(),
            looked.lost,
        ),
    ])
}

/// How long it took, and what came of it.
struct Looked {
    restored: Duration,
    healthy: Duration,
    damaged: Duration,
    repaired: Duration,
    places: u64,
    lost: u64,
}

fn restore_and_look(backup: &Path, data: &Path) -> Result<Looked, Failure> {
    let (options, progress) = (Options::default(), Progress::default());
    let refused = |error| cannot("look through a store", &error);
    let lock = |error| cannot("take a data directory", &error);
    let mut dir = DataDir::claim(data).map_err(lock)?;
    let manifest = backup::Manifest::read(backup).map_err(refused)?;
    let (begun, shards) = (Instant::now(), manifest.shards);
    let done = backup::restore(backup, None, &mut dir, shards, &options, &progress);
    let (_, carried) = done.map_err(refused)?;
    let restored = begun.elapsed();
    let looking = Instant::now();
    let found = look(&dir, &options, &Progress::default()).map_err(refused)?;
    let healthy = looking.elapsed();
    if !found.is_healthy() {
        return Err(Failure::new("what was restored does not read back"));
    }
    let places = damage(data, shards)?;
    let looking = Instant::now();
    let found = look(&dir, &options, &Progress::default()).map_err(refused)?;
    let damaged = looking.elapsed();
    if found.findings.len() as u64 != places {
        let found = found.findings.len();
        return Err(Failure::new(format!(
            "{places} chunks were damaged, and {found} found"
        )));
    }
    let options = Options {
        skip_damaged: true,
        ..options
    };
    let (now, mending) = (Clock::machine().now().wall, Instant::now());
    let repaired = repair(&mut dir, now, &options, &progress).map_err(refused)?;
    Ok(Looked {
        restored,
        healthy,
        damaged,
        repaired: mending.elapsed(),
        places,
        lost: carried.tasks - repaired.carried.tasks,
    })
}

/// Flips a bit in chunks of each shard, evenly; in how many.
fn damage(data: &Path, shards: u16) -> Result<u64, Failure> {
    let broken = |error: &dyn std::fmt::Display| cannot("damage a chunk", error);
    let (each, mut places) = (DAMAGED_MAX / usize::from(shards), 0);
    for shard in 0..shards {
        let path = data.join(format!("shards/{shard:03}/wheel"));
        let db = Database::open(&path, 32 << 20, 500).map_err(|error| broken(&error))?;
        let every = (db.scan_prefix(BODIES).count() / each.max(1)).max(1);
        for entry in db.scan_prefix(BODIES).step_by(every).take(each) {
            let (key, body) = entry.map_err(|error| broken(&error))?;
            let mut body = body.to_vec();
            let middle = body.len() / 2;
            body[middle] ^= 1;
            db.insert(key, body).map_err(|error| broken(&error))?;
            places += 1;
        }
        db.sync().map_err(|error| broken(&error))?;
    }
    Ok(places)
}

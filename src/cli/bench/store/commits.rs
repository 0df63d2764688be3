//! Commits of one shard's store, beside the bare disk: a batch is committed, and then the very same bytes are appended
//! to a file beside it and synced. Taking turns batch by batch, both meet the same disk in the same minute.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::super::report::{Figure, Line, Unit};
use super::super::site::cannot;
use super::load::{Orders, topic};
use crate::cli::Failure;
use crate::clock::{DurationMs, MonoMs, Now, SteadyMs, WallMs};
use crate::ids::{ShardId, Slot, TaskId};
use crate::store::ShardStore;
use crate::store::codec::Batch;
use crate::store::local::{LocalHome, LocalOptions};
use crate::task::spec::TaskSpec;
use crate::task::{Action, Due, Task};

/// Tasks of a commit, and the figure's name.
const SIZES: [(u64, &str); 5] = [
    (1, "commit_1_per_s"),
    (10, "commit_10_per_s"),
    (100, "commit_100_per_s"),
    (1000, "commit_1000_per_s"),
    (5000, "commit_5000_per_s"),
];
/// More would only fill the disk.
const BYTES_MAX: usize = 512 << 20;

/// Measures all sizes, each for `length`, in a store of its own inside `directory`.
pub(super) async fn measure(directory: &Path, length: Duration) -> Result<Vec<Line>, Failure> {
    let mut lines = Vec::new();
    for (tasks, name) in SIZES {
        let (store, bare) = pair(&directory.join(name), tasks, length).await?;
        let what = format!("commit of {tasks} tasks, one shard's store");
        let figure = Figure::new(name, what, store, Unit::PerSecond);
        lines.push(Line::Figure(
            figure.beside("append + fdatasync of the same bytes", Some(bare)),
        ));
    }
    Ok(lines)
}

/// Tasks a second through the store, and through a bare file.
async fn pair(home: &Path, tasks: u64, length: Duration) -> Result<(f64, f64), Failure> {
    std::fs::create_dir_all(home).map_err(|error| cannot("make a directory", &error))?;
    let broken = |error| cannot("commit", &error);
    let mut store = LocalHome::new(home, LocalOptions::default()).store(ShardId(0));
    let epoch = store.begin().map_err(broken)?.epoch;
    store.recover(&mut |_| {}).map_err(broken)?;
    let path = home.join("append");
    let file = OpenOptions::new().create_new(true).append(true).open(&path);
    let mut file = file.map_err(|error| cannot("make a file", &error))?;

    let spec = Arc::new(TaskSpec {
        action: Action::None,
        payload: Some(Orders::payload(0)),
        ..TaskSpec::default()
    });
    let (begun, mut made, mut bytes) = (Instant::now(), 0, 0);
    let (mut committing, mut appending) = (Duration::ZERO, Duration::ZERO);
    while begun.elapsed() < length && bytes < BYTES_MAX {
        let mut batch = Batch::new(SteadyMs(0));
        for n in made..made + tasks {
            batch.put_task(&task(n, &spec));
        }
        made += tasks;
        bytes += batch.bytes();
        let start = Instant::now();
        store.commit(epoch, &batch).map_err(broken)?;
        committing += start.elapsed();
        let start = Instant::now();
        let appended = file
            .write_all(batch.encode())
            .and_then(|()| file.sync_data());
        appended.map_err(|error| cannot("append to a file", &error))?;
        appending += start.elapsed();
        // So that ctrl-c is heard.
        tokio::task::yield_now().await;
    }
    let rate = |spent: Duration| made as f64 / spent.as_secs_f64();
    Ok((rate(committing), rate(appending)))
}

fn task(n: u64, spec: &Arc<TaskSpec>) -> Task {
    let wall = WallMs(1_796_000_000_000 + i64::try_from(n / 100).unwrap_or(0));
    let now = Now {
        wall,
        mono: MonoMs(0),
        steady: SteadyMs(wall.0),
    };
    let slot = Slot::of_hash(n.wrapping_mul(0x9E37_79B9_7F4A_7C15));
    let key = usize::try_from(n).map(Orders::key).ok();
    let due = Due::after(DurationMs::secs(86_400), now);
    Task::new(
        TaskId::with_tail(slot, wall, n),
        topic("commit"),
        key,
        spec.clone(),
        due,
        now,
        "bench",
    )
}

//! What the figures were measured on, as `/proc` tells it. What it does not tell is shown as unknown.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

/// The machine and the build.
#[derive(Clone, Debug)]
pub(super) struct Machine {
    cores: usize,
    cpu: Option<String>,
    memory_bytes: Option<u64>,
    kernel: Option<String>,
    /// What ran or waited for a core in the minute before.
    load: Option<f64>,
}

impl Machine {
    pub(super) fn look() -> Self {
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").ok();
        let load = fs::read_to_string("/proc/loadavg").ok();
        Self {
            cores: cores(),
            cpu: field("/proc/cpuinfo", "model name"),
            memory_bytes: field("/proc/meminfo", "MemTotal").and_then(|text| kib(&text)),
            kernel: kernel.map(|text| text.trim().to_owned()),
            load: load.and_then(|text| text.split(' ').next()?.parse().ok()),
        }
    }

    /// The load before the run, when it was so high that the figures are not the machine's best.
    pub(super) fn busy_with(&self) -> Option<f64> {
        self.load.filter(|load| *load > self.cores as f64 / 4.0)
    }

    pub(super) fn words(&self) -> String {
        let unknown = || "unknown".to_owned();
        let memory = self
            .memory_bytes
            .map(|bytes| format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30)));
        format!(
            "duetime {} ({} build) on {}, {} cores, {}, Linux {}",
            env!("CARGO_PKG_VERSION"),
            build(),
            self.cpu.clone().unwrap_or_else(unknown),
            self.cores,
            memory.unwrap_or_else(unknown),
            self.kernel.clone().unwrap_or_else(unknown),
        )
    }

    pub(super) fn json(&self) -> Value {
        json!({
            "duetime": env!("CARGO_PKG_VERSION"),
            "build": build(),
            "cores": self.cores,
            "cpu": self.cpu,
            "memory_bytes": self.memory_bytes,
            "kernel": self.kernel,
            "load_before": self.load,
        })
    }
}

pub(super) fn build() -> &'static str {
    if cfg!(debug_assertions) {
        "debug"
    } else {
        "release"
    }
}

pub(super) fn cores() -> usize {
    std::thread::available_parallelism().map_or(2, usize::from)
}

/// Memory of this process, in bytes.
pub(super) fn resident_bytes() -> Option<u64> {
    kib(&field("/proc/self/status", "VmRSS")?)
}

/// How long this process has kept cores busy since it began.
pub(super) fn busy_time() -> Option<Duration> {
    /// Of a core's time in `/proc`, on all usual builds of Linux.
    const TICKS_PER_S: u64 = 100;
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    // The command's name may hold blanks; it ends with the last parenthesis, and user and system time are the 12th
    // and 13th field after it.
    let after = stat.rsplit_once(')')?.1;
    let ticks = |place| after.split_whitespace().nth(place)?.parse::<u64>().ok();
    let ticks = ticks(11)? + ticks(12)?;
    Some(Duration::from_millis(ticks * 1000 / TICKS_PER_S))
}

/// How many files and sockets this process may have open.
pub(super) fn open_files_max() -> Option<usize> {
    let limits = fs::read_to_string("/proc/self/limits").ok()?;
    let line = limits
        .lines()
        .find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_whitespace().next()?.parse().ok()
}

/// What a directory takes on the disk, in bytes: blocks, not lengths. A file that goes meanwhile counts nothing.
pub(super) fn disk_bytes(directory: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(directory) else {
        return 0;
    };
    entries
        .flatten()
        .map(|entry| match entry.metadata() {
            Ok(meta) if meta.is_dir() => disk_bytes(&entry.path()),
            Ok(meta) => meta.blocks() * 512,
            Err(_) => 0,
        })
        .sum()
}

/// The kind of file system that a directory is on.
pub(super) fn file_system(directory: &Path) -> Option<String> {
    let directory = directory.canonicalize().ok()?;
    kind_of(
        &fs::read_to_string("/proc/self/mountinfo").ok()?,
        &directory,
    )
}

fn kind_of(mounts: &str, directory: &Path) -> Option<String> {
    let mount = |line: &str| {
        let (place, kind) = line.split_once(" - ")?;
        let point = Path::new(place.split(' ').nth(4)?).to_owned();
        Some((point, kind.split(' ').next()?.to_owned()))
    };
    let holding = mounts
        .lines()
        .filter_map(mount)
        .filter(|(point, _)| directory.starts_with(point));
    // The innermost mount counts, and of two on the same place the later one.
    holding
        .max_by_key(|(point, _)| point.components().count())
        .map(|(_, kind)| kind)
}

/// The value of the first line `name: value`.
fn field(file: &str, name: &str) -> Option<String> {
    let text = fs::read_to_string(file).ok()?;
    text.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then(|| value.trim().to_owned())
    })
}

fn kib(text: &str) -> Option<u64> {
    Some(text.strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_tells_what_is_needed() {
        assert!(resident_bytes() > Some(1 << 20));
        assert!(open_files_max() > Some(10) && busy_time().is_some());
        assert!(Machine::look().words().contains("cores"));
    }

    #[test]
    fn the_innermost_mount_names_the_file_system() {
        let mounts = "22 1 254:0 / / rw,noatime - ext4 /dev/vda rw\n\
                      30 22 0:26 / /tmp rw shared:5 - tmpfs tmpfs rw\n\
                      31 22 0:27 / /tmpest rw - xfs /dev/vdb rw";
        for (path, kind) in [("/tmp/x/y", "tmpfs"), ("/home", "ext4"), ("/tmpest", "xfs")] {
            assert_eq!(kind_of(mounts, Path::new(path)).as_deref(), Some(kind));
        }
    }
}

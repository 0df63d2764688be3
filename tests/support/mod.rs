//! What the integration tests share: the real binary on a directory and port of its own ([`service`]), a caller
//! of its API ([`client`]), and somebody to be called ([`receiver`]).
//!
//! ```text
//!   test ── client ──▶ duetime serve (its own process) ──▶ receiver
//!     ▲                                                       │
//!     └────────────────── waits for a hit, or a state ◀───────┘
//! ```
//!
//! A test waits for what it wants to see, never for time to pass, and every wait has an end. Each file uses its
//! part of this, so the rest is dead code there.

pub mod client;
pub mod engine;
pub mod program;
pub mod receiver;
pub mod service;

use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use std::{fs, io};

use serde_json::{Value, json};

/// Longest wait for what must come. Long, because the machine may be busy with other tests.
pub const SOON: Duration = Duration::from_secs(20);
/// Between two looks at something that sends no signal.
pub const LOOK_EVERY: Duration = Duration::from_millis(5);
/// Latest arrival after the due time, in milliseconds: a debug build on a shared machine.
pub const LATE_MS_MAX: i64 = 250;

/// Looks until there is something to see, and gives it.
pub fn until<T>(what: &str, within: Duration, mut look: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + within;
    loop {
        if let Some(seen) = look() {
            return seen;
        }
        assert!(Instant::now() < end, "not within {within:?}: {what}");
        std::thread::sleep(LOOK_EVERY);
    }
}

/// Tells those who work beside a test that it is over, also when it fails: who waits for them would wait for ever.
pub struct Over<'a>(pub &'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Sends a signal, by its name without SIG.
pub fn signal(process: u32, name: &str) {
    let told = Command::new("kill")
        .args([&format!("-{name}"), &process.to_string()])
        .status();
    assert!(
        told.is_ok_and(|status| status.success()),
        "SIG{name} can be sent"
    );
}

/// Lets real time pass, where its passing is the subject.
pub fn pass(length: Duration) {
    std::thread::sleep(length);
}

/// Copies a directory as it stands: what a killed process leaves.
pub fn copy_directory(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        match entry.file_type()?.is_dir() {
            true => copy_directory(&entry.path(), &target)?,
            false => fs::copy(entry.path(), target).map(drop)?,
        }
    }
    Ok(())
}

/// The wall clock, in milliseconds of Unix time.
pub fn now_ms() -> i64 {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH);
    i64::try_from(since_epoch.expect("it is after 1970").as_millis())
        .expect("it is not yet the end of time")
}

/// A time as the API takes it.
pub fn iso(at_ms: i64) -> String {
    let at = jiff::Timestamp::from_millisecond(at_ms).expect("a year with four digits");
    format!("{at:.3}")
}

/// A time as the API gives it, in milliseconds of Unix time: UTC with milliseconds, nothing else.
pub fn ms(time: &Value) -> i64 {
    let text = time.as_str().unwrap_or_else(|| panic!("{time} is no time"));
    let shape: String = text
        .chars()
        .map(|c| if c.is_ascii_digit() { '0' } else { c })
        .collect();
    assert_eq!(shape, "0000-00-00T00:00:00.000Z", "{text}");
    let at: jiff::Timestamp = text.parse().expect("RFC 3339");
    at.as_millisecond()
}

/// A length as the API takes it.
pub fn length(ms: u64) -> String {
    format!("PT{}.{:03}S", ms / 1000, ms % 1000)
}

/// An action that pushes there.
pub fn push(url: &str) -> Value {
    json!({"http": {"url": url}})
}

/// Always the same wait, and at most so many attempts.
pub fn fixed(wait_ms: u64, attempts: u32) -> Value {
    json!({"fixed": length(wait_ms), "max_attempts": attempts})
}

/// A small generator of numbers that only need to be spread: the same seed gives the same numbers.
pub struct Random(u64);

impl Random {
    /// Begins with a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A number below `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % end
    }
}

/// All files below a directory.
pub fn files_of(path: &Path) -> Vec<std::path::PathBuf> {
    let mut files = Vec::new();
    let mut left = vec![path.to_owned()];
    while let Some(next) = left.pop() {
        if next.is_dir() {
            let entries = std::fs::read_dir(&next).expect("a directory that can be read");
            left.extend(entries.map(|entry| entry.expect("an entry").path()));
        } else {
            files.push(next);
        }
    }
    files
}

/// How many bytes a directory takes on the disk, in whole blocks: a file with a hole counts for what is in it.
pub fn bytes_of(path: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let sizes = files_of(path)
        .into_iter()
        .filter_map(|file| file.metadata().ok());
    sizes.map(|file| file.blocks() * 512).sum()
}

/// sled puts values that are too large into files of their own, which it never syncs: there must be none.
pub fn assert_no_blobs(path: &Path) {
    let is_blob = |file: &std::path::PathBuf| {
        file.parent()
            .is_some_and(|parent| parent.ends_with("blobs"))
    };
    let blobs: Vec<_> = files_of(path).into_iter().filter(is_blob).collect();
    assert!(blobs.is_empty(), "{blobs:?}");
}

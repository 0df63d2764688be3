//! A sled database, opened and synced so that what is synced survives a power cut: the one way to sled.
//!
//! What sled 0.34.7 does by itself, and what is done about it here:
//!
//! - A leaf that has grown over a quarter of a segment goes to a file in `blobs/` that is never synced. A leaf holds
//!   up to 20 entries: segments are 2 MiB, no entry may be larger than [`ENTRY_BYTES_MAX`], and
//!   [`Database::sync`] makes sure that there is no such file.
//! - `flush` is no fsync on Linux, and the directory is never synced: both are done here.
//! - A snapshot that a crash left half written makes the database look corrupt: it is removed first. One that is
//!   damaged is set aside, and the log is read instead.
//! - The lock is let go some time after the last handle: an open waits for it, at most 5 s.
//! - After an I/O error all writes fail: drop every handle and open it anew.
//!
//! No batches and no transactions: in sled 0.34.7 both take one lock for all databases of the process.

use std::fmt;
use std::fs::{self, File};
use std::io;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use crate::store::StoreError;

/// Largest entry, in bytes: key and value.
pub const ENTRY_BYTES_MAX: usize = 24 * 1024;
const SEGMENT_BYTES: usize = 2 * 1024 * 1024;
/// sled lets go of its lock some time after its last handle is dropped.
const LOCK_WAIT_MAX: Duration = Duration::from_secs(5);
const LOCK_WAIT_STEP: Duration = Duration::from_millis(10);

// 20 entries of a leaf, with room for its head, stay under a quarter of a segment.
const _: () = assert!(20 * ENTRY_BYTES_MAX + 16 * 1024 <= SEGMENT_BYTES / 4);

/// An open database. It derefs to sled's own.
pub struct Database {
    db: sled::Db,
    file: File,
    path: PathBuf,
}

impl fmt::Debug for Database {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Database").field(&self.path).finish()
    }
}

impl Deref for Database {
    type Target = sled::Db;

    fn deref(&self) -> &sled::Db {
        &self.db
    }
}

impl Database {
    /// Opens the database at `path`, created if need be; waits for a handle that is being dropped, at most 5 s.
    ///
    /// # Errors
    /// I/O and corruption.
    pub fn open(path: &Path, cache_bytes: u64, flush_every_ms: u64) -> Result<Self, StoreError> {
        fs::create_dir_all(path).map_err(|source| io_error("create", path, source))?;
        let end = Instant::now() + LOCK_WAIT_MAX;
        let db = loop {
            match open_once(path, cache_bytes, flush_every_ms) {
                Err(sled::Error::Io(error)) if is_locked(&error) && Instant::now() < end => {
                    thread::sleep(LOCK_WAIT_STEP);
                }
                Err(error) => return Err(sled_error("open", path, error)),
                Ok(db) => break db,
            }
        };
        // sled syncs neither its directory nor, with `flush`, its file.
        let file = File::open(path.join("conf"))
            .and_then(|settings| settings.sync_all())
            .and_then(|()| sync_directory(path))
            .and_then(|()| path.parent().map_or(Ok(()), sync_directory))
            .and_then(|()| File::open(path.join("db")))
            .map_err(|source| io_error("open", path, source))?;
        let path = path.to_owned();
        Ok(Self { db, file, path })
    }

    /// Makes everything written durable.
    ///
    /// Dies before: any prefix of what was written is there. Dies after: all of it.
    ///
    /// # Errors
    /// I/O; or sled has put a leaf where it does not sync it.
    pub fn sync(&self) -> Result<(), StoreError> {
        self.db
            .flush()
            .map_err(|error| self.failed("flush", error))?;
        self.file
            .sync_data()
            .map_err(|source| io_error("sync", &self.path.join("db"), source))?;
        let blobs = self.path.join("blobs");
        let mut spilled =
            fs::read_dir(&blobs).map_err(|source| io_error("list", &blobs, source))?;
        if spilled.next().is_some() {
            return Err(self.corrupt(
                "blobs",
                "sled has put a leaf into a file that it does not sync",
            ));
        }
        Ok(())
    }

    /// What sled refused, as the store's error.
    pub fn failed(&self, doing: &'static str, error: sled::Error) -> StoreError {
        sled_error(doing, &self.path, error)
    }

    /// An error that names a record of this database.
    pub fn corrupt(&self, what: impl fmt::Display, why: impl fmt::Display) -> StoreError {
        StoreError::Corrupt {
            place: self.place_of(what),
            why: why.to_string(),
        }
    }

    /// Names a record of this database.
    pub fn place_of(&self, what: impl fmt::Display) -> String {
        format!("{what} in {}", self.path.display())
    }
}

fn open_once(path: &Path, cache_bytes: u64, flush_every_ms: u64) -> Result<sled::Db, sled::Error> {
    let snapshots = |is_whole: bool| -> io::Result<Vec<PathBuf>> {
        let mut found = Vec::new();
        for entry in fs::read_dir(path)? {
            let name = entry?.file_name();
            let name = name.to_string_lossy();
            if name.starts_with("snap.") && name.ends_with(".generating") != is_whole {
                found.push(path.join(&*name));
            }
        }
        Ok(found)
    };
    let config = || {
        sled::Config::new()
            .path(path)
            .mode(sled::Mode::HighThroughput)
            .segment_size(SEGMENT_BYTES)
            .cache_capacity(cache_bytes)
            .flush_every_ms(Some(flush_every_ms))
    };
    // Left by a crash between write and rename, it would make sled call the database corrupt.
    for unfinished in snapshots(false)? {
        fs::remove_file(unfinished)?;
    }
    match config().open() {
        Err(sled::Error::Corruption { .. }) => {
            // A snapshot only saves reading the log: without one sled reads all of it.
            for snapshot in snapshots(true)? {
                tracing::warn!(file = %snapshot.display(), "setting a damaged snapshot aside, the log is read in full");
                let aside = snapshot.with_file_name(format!(
                    "aside.{}",
                    snapshot.file_name().unwrap_or_default().to_string_lossy()
                ));
                fs::rename(&snapshot, aside)?;
            }
            config().open()
        }
        opened => opened,
    }
}

fn is_locked(error: &io::Error) -> bool {
    // sled keeps neither the kind nor the number of the system's answer.
    error.to_string().contains("could not acquire lock")
}

fn sync_directory(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

fn io_error(doing: &'static str, file: &Path, source: io::Error) -> StoreError {
    StoreError::Io {
        doing,
        file: file.to_owned(),
        source,
    }
}

fn sled_error(doing: &'static str, path: &Path, error: sled::Error) -> StoreError {
    match error {
        sled::Error::Io(source) => io_error(doing, path, source),
        sled::Error::Corruption { .. } => StoreError::Corrupt {
            place: path.display().to_string(),
            why: error.to_string(),
        },
        other => io_error(doing, path, io::Error::other(other)),
    }
}

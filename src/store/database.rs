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
//! - Over some damaged files it panics, when it is opened or when it reads: caught, and an error like any other.
//! - After an I/O error all writes fail: drop every handle and open it anew.
//!
//! No batches and no transactions: in sled 0.34.7 both take one lock for all databases of the process.

use std::cell::Cell;
use std::fmt;
use std::fs::{self, File};
use std::io;
use std::ops::{Deref, RangeBounds};
use std::panic;
use std::path::{Path, PathBuf};
use std::sync::Once;
use std::thread;
use std::time::{Duration, Instant};

use crate::panics::contained;
use crate::store::{StoreError, directory};

/// Largest entry, in bytes: key and value.
pub const ENTRY_BYTES_MAX: usize = 24 * 1024;
const SEGMENT_BYTES: usize = 2 * 1024 * 1024;
/// sled lets go of its lock some time after its last handle is dropped.
const LOCK_WAIT_MAX: Duration = Duration::from_secs(5);
const LOCK_WAIT_STEP: Duration = Duration::from_millis(10);

// 20 entries of a leaf, with room for its head, stay under a quarter of a segment.
const _: () = assert!(20 * ENTRY_BYTES_MAX + 16 * 1024 <= SEGMENT_BYTES / 4);

/// A key and its value.
pub type Entry = (sled::IVec, sled::IVec);

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
        directory::make(path).map_err(|source| io_error("create", path, source))?;
        let end = Instant::now() + LOCK_WAIT_MAX;
        let db = loop {
            match caught(path, || Ok(open_once(path, cache_bytes, flush_every_ms)))? {
                Err(sled::Error::Io(error)) if is_locked(&error) && Instant::now() < end => {
                    thread::sleep(LOCK_WAIT_STEP);
                }
                Err(sled::Error::Io(error)) if is_locked(&error) => {
                    let file = path.to_owned();
                    return Err(StoreError::Held { file });
                }
                Err(error) => return Err(sled_error("open", path, error)),
                Ok(db) => break db,
            }
        };
        // sled syncs neither its directory nor, with `flush`, its file.
        let file = File::open(path.join("conf"))
            .and_then(|settings| settings.sync_all())
            .and_then(|()| directory::sync(path))
            .and_then(|()| path.parent().map_or(Ok(()), directory::sync))
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
        self.with("flush", |db| db.flush())?;
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

    /// The value under a key.
    ///
    /// # Errors
    /// I/O and corruption.
    pub fn read(&self, key: &[u8]) -> Result<Option<sled::IVec>, StoreError> {
        self.with("read", |db| db.get(key))
    }

    /// Puts a value under a key.
    ///
    /// # Errors
    /// I/O and corruption.
    pub fn write(&self, key: &[u8], value: &[u8]) -> Result<(), StoreError> {
        self.with("write", |db| db.insert(key, value)).map(drop)
    }

    /// Removes a key, if it is there.
    ///
    /// # Errors
    /// I/O and corruption.
    pub fn erase(&self, key: &[u8]) -> Result<(), StoreError> {
        self.with("clean", |db| db.remove(key)).map(drop)
    }

    /// All entries whose keys are in the range, in their order.
    pub fn scan<'a>(
        &'a self,
        range: impl RangeBounds<&'a [u8]>,
    ) -> impl Iterator<Item = Result<Entry, StoreError>> + 'a {
        let mut entries = self.db.range(range);
        std::iter::from_fn(move || {
            let next = self.with("read", |_| entries.next().transpose());
            next.transpose()
        })
    }

    /// The last entry whose key is in the range.
    ///
    /// # Errors
    /// I/O and corruption.
    pub fn last_of<'a>(
        &self,
        range: impl RangeBounds<&'a [u8]>,
    ) -> Result<Option<Entry>, StoreError> {
        self.with("read", |db| db.range(range).next_back().transpose())
    }

    /// Lets sled do something, which may panic over a damaged file.
    fn with<T>(
        &self,
        doing: &'static str,
        work: impl FnOnce(&sled::Db) -> Result<T, sled::Error>,
    ) -> Result<T, StoreError> {
        caught(&self.path, || {
            work(&self.db).map_err(|error| self.failed(doing, error))
        })
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

thread_local! {
    /// What panics on this thread just now is caught and named.
    static IS_CAUGHT: Cell<bool> = const { Cell::new(false) };
}

/// Does something with a database whose files may be damaged: sled panics over some of what it finds there, which
/// becomes an error without a trace.
///
/// # Errors
/// What `work` returns; corruption in the place of a panic.
pub fn caught<T>(
    path: &Path,
    work: impl FnOnce() -> Result<T, StoreError>,
) -> Result<T, StoreError> {
    static QUIET: Once = Once::new();
    QUIET.call_once(|| {
        let told = panic::take_hook();
        panic::set_hook(Box::new(move |panic| {
            if !IS_CAUGHT.get() {
                told(panic);
            }
        }));
    });
    let before = IS_CAUGHT.replace(true);
    // Who meets a panic here gives the database up.
    let done = contained(work);
    IS_CAUGHT.set(before);
    done.unwrap_or_else(|words| Err(corrupt_file(path, &words)))
}

fn corrupt_file(path: &Path, why: &str) -> StoreError {
    StoreError::Corrupt {
        place: path.display().to_string(),
        why: format!("sled does not understand its files there: {why}"),
    }
}

fn is_locked(error: &io::Error) -> bool {
    // sled keeps neither the kind nor the number of the system's answer.
    error.to_string().contains("could not acquire lock")
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
        // What was read is not what it should be: no other try would fare better.
        sled::Error::Io(source)
            if matches!(
                source.kind(),
                io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof
            ) =>
        {
            corrupt_file(path, &source.to_string())
        }
        sled::Error::Io(source) => io_error(doing, path, source),
        sled::Error::Corruption { at, .. } => {
            let at = at.map_or_else(String::new, |at| format!(" at {at:?}"));
            corrupt_file(path, &format!("something is damaged{at}"))
        }
        other => corrupt_file(path, &other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sources(of: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(of).expect("a directory") {
            let path = entry.expect("an entry").path();
            match path.is_dir() {
                true => sources(&path, found),
                false => found.push(path),
            }
        }
    }

    #[test]
    fn nobody_uses_what_takes_a_lock_for_all_databases_of_the_process() {
        let mut found = Vec::new();
        sources(
            &Path::new(env!("CARGO_MANIFEST_DIR")).join("src"),
            &mut found,
        );
        assert!(found.len() > 100);
        for path in found {
            let text = fs::read_to_string(&path).expect("a source");
            for word in [
                concat!("apply", "_batch("),
                concat!(".transac", "tion("),
                concat!("Transac", "tional"),
                concat!("sled::Ba", "tch"),
                concat!("watch", "_prefix("),
            ] {
                assert!(!text.contains(word), "{word} in {}", path.display());
            }
        }
    }

    #[test]
    fn a_panic_of_sleds_is_an_error_that_names_its_files() {
        let path = Path::new("/data/shards/007/wheel");
        let refused = caught(path, || -> Result<(), StoreError> { panic!("pid {}", 9) });
        let said = refused.expect_err("it panics").to_string();
        assert!(
            said.starts_with("/data/shards/007/wheel: ") && said.ends_with("pid 9"),
            "{said}"
        );
        assert!(caught(path, || Ok(())).is_ok());
    }
}

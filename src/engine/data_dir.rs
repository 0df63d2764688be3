//! The data directory: one process at a time, one format, a fixed number of shards.
//!
//! ```text
//!  <data>/LOCK       held by the running process: its id and address
//!  <data>/FORMAT     format version and number of shards
//!  <data>/registry/  topics and audit
//!  <data>/shards/    one directory per shard
//! ```

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// The version of what is stored; a start refuses another.
const FORMAT: &str = "duetime-format 2";

/// Why a data directory can't be used.
#[derive(Debug, thiserror::Error)]
pub enum DataDirError {
    /// The file system refused.
    #[error("{doing} {path}")]
    Io {
        /// What was being done.
        doing: &'static str,
        /// To what.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// Another process has it.
    #[error(
        "the data directory {path} is in use by another process ({holder}); stop that one, or give this one a directory of its own with --data"
    )]
    InUse {
        /// The directory.
        path: PathBuf,
        /// What the holder wrote into the lock.
        holder: String,
    },
    /// It was written by another version.
    #[error(
        "{path} says {found:?}, this version reads {FORMAT:?}: run the build that wrote it, or give this one a new directory with --data"
    )]
    Format {
        /// The file.
        path: PathBuf,
        /// What it says.
        found: String,
    },
}

/// A data directory held by this process. Dropping it lets go.
#[derive(Debug)]
pub struct DataDir {
    path: PathBuf,
    lock: File,
    shards: u16,
}

impl DataDir {
    /// Takes a directory, making it if it is not there. `shards` counts only for a new one: an existing
    /// directory's number wins.
    ///
    /// # Errors
    /// When it is in use, unreadable, or of another format.
    pub fn open(path: &Path, shards: u16) -> Result<Self, DataDirError> {
        let failed = |doing, path: &Path| {
            let path = path.to_path_buf();
            move |source| DataDirError::Io {
                doing,
                path,
                source,
            }
        };
        std::fs::create_dir_all(path).map_err(failed("create the data directory", path))?;
        let lock_path = path.join("LOCK");
        let mut lock = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&lock_path)
            .map_err(failed("open the lock file", &lock_path))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut holder = String::new();
                // Who holds it is a help, not a must.
                let _ = lock.read_to_string(&mut holder);
                return Err(DataDirError::InUse {
                    path: path.to_path_buf(),
                    holder: holder.trim().replace('\n', ", "),
                });
            }
            Err(TryLockError::Error(source)) => return Err(failed("lock", &lock_path)(source)),
        }
        let format_path = path.join("FORMAT");
        let shards = match std::fs::read_to_string(&format_path) {
            Ok(text) => read_format(&text).ok_or_else(|| DataDirError::Format {
                path: format_path.clone(),
                found: text.lines().next().unwrap_or_default().to_owned(),
            })?,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                write_format(path, &format_path, shards).map_err(failed("write", &format_path))?;
                shards
            }
            Err(source) => return Err(failed("read", &format_path)(source)),
        };
        let mut dir = Self {
            path: path.to_path_buf(),
            lock,
            shards,
        };
        dir.say(&format!("pid {}\n", std::process::id()))
            .map_err(failed("write the lock file", &lock_path))?;
        Ok(dir)
    }

    /// Writes into the lock who holds it.
    ///
    /// # Errors
    /// When the file system refuses.
    pub fn say(&mut self, holder: &str) -> std::io::Result<()> {
        self.lock.set_len(0)?;
        self.lock.rewind()?;
        self.lock.write_all(holder.as_bytes())
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// How many shards it has.
    pub fn shards(&self) -> u16 {
        self.shards
    }
}

fn read_format(text: &str) -> Option<u16> {
    let mut lines = text.lines();
    if lines.next()? != FORMAT {
        return None;
    }
    lines
        .next()?
        .strip_prefix("shards ")?
        .parse()
        .ok()
        .filter(|shards| *shards > 0)
}

/// Written aside, synced and renamed, so that a crash leaves either no file or a whole one.
fn write_format(dir: &Path, path: &Path, shards: u16) -> std::io::Result<()> {
    let aside = dir.join("FORMAT.new");
    let mut file = File::create(&aside)?;
    write!(file, "{FORMAT}\nshards {shards}\n")?;
    file.sync_all()?;
    std::fs::rename(&aside, path)?;
    File::open(dir)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_has_one_holder_at_a_time_and_says_who() {
        let temp = tempfile::tempdir().expect("a directory");
        let held = DataDir::open(temp.path(), 2).expect("it is free");
        let refused = DataDir::open(temp.path(), 2).expect_err("it is held");
        assert!(
            refused
                .to_string()
                .contains(&format!("pid {}", std::process::id())),
            "{refused}"
        );
        drop(held);
        assert!(DataDir::open(temp.path(), 2).is_ok());
    }

    #[test]
    fn the_number_of_shards_of_an_existing_directory_wins() {
        let temp = tempfile::tempdir().expect("a directory");
        drop(DataDir::open(temp.path(), 3).expect("it is free"));
        assert_eq!(
            DataDir::open(temp.path(), 8).expect("it is free").shards(),
            3
        );
    }

    #[test]
    fn another_format_is_refused_by_name() {
        let temp = tempfile::tempdir().expect("a directory");
        std::fs::write(temp.path().join("FORMAT"), "duetime-format 99\nshards 2\n")
            .expect("written");
        let refused = DataDir::open(temp.path(), 2).expect_err("it is of another version");
        assert!(
            refused.to_string().contains("duetime-format 99"),
            "{refused}"
        );
    }
}

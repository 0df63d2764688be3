//! The data directory: one process at a time, one format, a number of shards.
//!
//! ```text
//!  <data>/LOCK       held by the process that uses it: its id and, of a service, its address and a token
//!  <data>/FORMAT     format version and number of shards
//!  <data>/registry/  topics and audit
//!  <data>/shards/    one directory per shard
//!  <data>/new/       shards, and a registry, that are being built to take the place of those above
//!  <data>/SWAP       they are whole: whoever opens the directory next puts them there (see [`swap`])
//! ```
//!
//! The lock is the operating system's, on the open file: it ends with the process, however that ends. What stands in
//! the file is for others to read, and for nobody but its owner: the token opens the service's store to who has it.

mod swap;

use std::fmt;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read};
use std::net::SocketAddr;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::store::directory;

/// The version of what is stored; a start refuses another.
const FORMAT: &str = "duetime-format 2";
/// So much is shown of a format that is not ours.
const FOUND_CHARS_MAX: usize = 80;
/// No lock's text is longer, in bytes.
const HOLDER_BYTES_MAX: u64 = 4096;

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
        source: io::Error,
    },
    /// Another process has it.
    #[error(
        "the data directory {path} is in use by another process ({holder}); stop that one, or give this one a directory of its own with --data"
    )]
    InUse {
        /// The directory.
        path: PathBuf,
        /// What the holder wrote into the lock.
        holder: Holder,
    },
    /// It was written by another version.
    #[error(
        "{path} is damaged or of another version: it says {found:?}, this version reads {FORMAT:?}; run the build that wrote it, or give this one a new directory with --data"
    )]
    Format {
        /// The file.
        path: PathBuf,
        /// What it says.
        found: String,
    },
    /// One of its shards is gone.
    #[error(
        "{path} is missing, though it should hold tasks: bring it back, or restore a backup; `duetime store doctor` looks at the others"
    )]
    ShardMissing {
        /// Where it should be.
        path: PathBuf,
    },
    /// Nothing is stored there.
    #[error("{path} is no data directory: it has no file FORMAT")]
    Absent {
        /// The directory.
        path: PathBuf,
    },
    /// There is something in it already.
    #[error("{path} is a data directory already, with {shards} shards")]
    Taken {
        /// The directory.
        path: PathBuf,
        /// How many shards it has.
        shards: u16,
    },
    /// It was being filled for the first time when the process that did it ended.
    #[error(
        "a restore or an import into {path} was cut off before it was through: run it again, or remove the directory"
    )]
    Unfinished {
        /// The directory.
        path: PathBuf,
    },
}

/// Who holds a data directory, as its lock says.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Holder {
    /// The process.
    pub pid: Option<u32>,
    /// Where it serves.
    pub address: Option<SocketAddr>,
    /// What a request to its store has to carry.
    pub token: Option<String>,
}

impl Holder {
    fn read(text: &str) -> Self {
        let mut holder = Self::default();
        for line in text.lines() {
            match line.split_once(' ') {
                Some(("pid", pid)) => holder.pid = pid.parse().ok(),
                Some(("address", address)) => holder.address = address.parse().ok(),
                Some(("token", token)) => holder.token = Some(token.to_owned()),
                _ => {}
            }
        }
        holder
    }

    fn text(&self) -> String {
        let line = |name: &str, value: Option<String>| {
            value.map_or_else(String::new, |value| format!("{name} {value}\n"))
        };
        [
            line("pid", self.pid.map(|pid| pid.to_string())),
            line("address", self.address.map(|address| address.to_string())),
            line("token", self.token.clone()),
        ]
        .concat()
    }
}

/// Without the token: what is shown ends up in logs.
impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.pid {
            Some(pid) => write!(f, "pid {pid}")?,
            None => f.write_str("it does not say which")?,
        }
        match self.address {
            Some(address) => write!(f, ", serving at {address}"),
            None => Ok(()),
        }
    }
}

impl fmt::Debug for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Holder({self})")
    }
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
    /// When it is in use, unreadable, of another format, or half filled.
    pub fn open(path: &Path, shards: u16) -> Result<Self, DataDirError> {
        let mut dir = Self::take(path)?;
        dir.shards = match dir.stored_shards()? {
            Some(stored) => {
                dir.has_all(stored)?;
                stored
            }
            None if dir.is_half_filled() => {
                return Err(DataDirError::Unfinished {
                    path: dir.path.clone(),
                });
            }
            None => {
                // Before the format, so that one that is missing later was lost.
                for shard in 0..shards {
                    let path = dir.shard(shard);
                    directory::make(&path).map_err(failed("create", &path))?;
                }
                directory::sync(&path.join("shards")).map_err(failed("sync", path))?;
                write_format(path, shards).map_err(failed("write the format to", path))?;
                shards
            }
        };
        dir.clean()?;
        Ok(dir)
    }

    /// Takes a directory in which something is stored.
    ///
    /// # Errors
    /// When there is none, it is in use, unreadable, or of another format.
    pub fn open_existing(path: &Path) -> Result<Self, DataDirError> {
        let absent = || DataDirError::Absent {
            path: path.to_owned(),
        };
        // What is no data directory stays as it is.
        if !path.join("FORMAT").exists() && !swap::is_due(path) {
            return Err(absent());
        }
        let mut dir = Self::take(path)?;
        dir.shards = dir.stored_shards()?.ok_or_else(absent)?;
        dir.clean()?;
        Ok(dir)
    }

    /// Takes a directory in which nothing is stored, to fill it; made if it is not there. It has no shards until it is
    /// [swapped](DataDir::swap) in.
    ///
    /// # Errors
    /// When something is stored there, it is in use, or the file system refuses.
    pub fn claim(path: &Path) -> Result<Self, DataDirError> {
        let dir = Self::take(path)?;
        match dir.stored_shards()? {
            None => Ok(dir),
            Some(shards) => Err(DataDirError::Taken {
                path: path.to_owned(),
                shards,
            }),
        }
    }

    /// Takes the lock, says who holds it, and finishes a swap that was cut off.
    fn take(path: &Path) -> Result<Self, DataDirError> {
        directory::make(path).map_err(failed("create the data directory", path))?;
        let lock_path = path.join("LOCK");
        let lock = OpenOptions::new()
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
                let mut text = String::new();
                // Who holds it is a help, not a must.
                let _ = lock.take(HOLDER_BYTES_MAX).read_to_string(&mut text);
                return Err(DataDirError::InUse {
                    path: path.to_path_buf(),
                    holder: Holder::read(&text),
                });
            }
            Err(TryLockError::Error(source)) => return Err(failed("lock", &lock_path)(source)),
        }
        let dir = Self {
            path: path.to_path_buf(),
            lock,
            shards: 0,
        };
        dir.say(None, None)
            .map_err(failed("write the lock file", &lock_path))?;
        swap::finish(path).map_err(failed("finish the swap in", path))?;
        Ok(dir)
    }

    /// Writes into the lock who holds it.
    ///
    /// # Errors
    /// When the file system refuses.
    pub fn say(&self, address: Option<SocketAddr>, token: Option<&str>) -> io::Result<()> {
        let holder = Holder {
            pid: Some(std::process::id()),
            address,
            token: token.map(str::to_owned),
        };
        let text = holder.text();
        // In this order nobody reads half of it.
        self.lock.write_all_at(text.as_bytes(), 0)?;
        self.lock.set_len(text.len() as u64)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// How many shards it has.
    pub fn shards(&self) -> u16 {
        self.shards
    }

    /// An empty place beside what is stored, laid out like a data directory, in which what is to replace it is built.
    ///
    /// # Errors
    /// When the file system refuses.
    pub fn build(&self) -> Result<PathBuf, DataDirError> {
        let new = self.path.join(swap::NEW);
        directory::remove(&new).map_err(failed("remove", &new))?;
        directory::make_new(&new).map_err(failed("create", &new))?;
        Ok(new)
    }

    /// Throws away what was being built.
    ///
    /// # Errors
    /// When the file system refuses.
    pub fn give_up(&self) -> Result<(), DataDirError> {
        let new = self.path.join(swap::NEW);
        directory::remove(&new).map_err(failed("remove", &new))
    }

    /// Puts what was built, and is durable, in the place of what was stored: the shards, now so many, and the registry
    /// if one was built. A crash leaves all of the old or all of the new, whatever is opened next.
    ///
    /// # Errors
    /// When the file system refuses.
    pub fn swap(&mut self, shards: u16) -> Result<(), DataDirError> {
        swap::begin(&self.path, shards)
            .and_then(|()| swap::finish(&self.path))
            .map_err(failed("swap the shards in", &self.path))?;
        self.shards = shards;
        Ok(())
    }

    fn shard(&self, shard: u16) -> PathBuf {
        self.path.join("shards").join(format!("{shard:03}"))
    }

    fn has_all(&self, shards: u16) -> Result<(), DataDirError> {
        let missing = (0..shards).map(|shard| self.shard(shard));
        let missing = missing.into_iter().find(|path| !path.exists());
        missing.map_or(Ok(()), |path| Err(DataDirError::ShardMissing { path }))
    }

    /// Whether something is stored in a shard.
    fn has_any(&self) -> bool {
        let shards = fs::read_dir(self.path.join("shards")).into_iter().flatten();
        shards
            .flatten()
            .any(|shard| fs::read_dir(shard.path()).is_ok_and(|mut found| found.next().is_some()))
    }

    /// Something was being built to fill it for the first time.
    fn is_half_filled(&self) -> bool {
        self.path.join(swap::NEW).exists()
    }

    /// Removes what a reshard or import that was cut off has left behind: it never counted.
    fn clean(&self) -> Result<(), DataDirError> {
        if self.is_half_filled() {
            tracing::info!(path = %self.path.display(), "removing what a cut-off change of the shards has left; it never counted");
        }
        self.give_up()
    }

    fn stored_shards(&self) -> Result<Option<u16>, DataDirError> {
        let path = self.path.join("FORMAT");
        match fs::read_to_string(&path) {
            Ok(text) => match read_format(&text) {
                Some(shards) => Ok(Some(shards)),
                None => Err(DataDirError::Format {
                    path,
                    found: text.chars().take(FOUND_CHARS_MAX).collect(),
                }),
            },
            // A new directory has neither; one that is being filled has its shards under `new`.
            Err(error) if error.kind() == io::ErrorKind::NotFound => match self.has_any() {
                true => Err(DataDirError::Format {
                    path,
                    found: "nothing, for it is missing, though shards are there".to_owned(),
                }),
                false => Ok(None),
            },
            Err(source) => Err(failed("read", &path)(source)),
        }
    }
}

fn failed(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> DataDirError {
    let path = path.to_path_buf();
    move |source| DataDirError::Io {
        doing,
        path,
        source,
    }
}

fn read_format(text: &str) -> Option<u16> {
    // A shard more or less would look for tasks in the wrong place: the text has a sum.
    let (said, check) = text.split_at(text.rfind("check ")?);
    if check != check_of(said) {
        return None;
    }
    let mut lines = said.lines();
    if lines.next()? != FORMAT {
        return None;
    }
    read_shards(lines.next()?)
}

fn check_of(said: &str) -> String {
    format!("check {:08x}\n", crc32fast::hash(said.as_bytes()))
}

fn read_shards(line: &str) -> Option<u16> {
    let shards = line.strip_prefix("shards ")?.parse().ok();
    shards.filter(|shards| *shards > 0)
}

fn write_format(dir: &Path, shards: u16) -> io::Result<()> {
    let said = format!("{FORMAT}\nshards {shards}\n");
    let check = check_of(&said);
    directory::write_whole(dir, "FORMAT", &(said + &check))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_has_one_holder_at_a_time_and_says_who() {
        let temp = tempfile::tempdir().expect("a directory");
        let held = DataDir::open(temp.path(), 2).expect("it is free");
        let address = SocketAddr::from(([127, 0, 0, 1], 7420));
        held.say(Some(address), Some("secret"))
            .expect("it is written");
        let refused = DataDir::open(temp.path(), 2).expect_err("it is held");
        let told = refused.to_string();
        for part in [format!("pid {}", std::process::id()), address.to_string()] {
            assert!(told.contains(&part), "{told}");
        }
        assert!(
            !format!("{told} {refused:?}").contains("secret"),
            "{refused:?}"
        );
        let DataDirError::InUse { holder, .. } = refused else {
            panic!("{refused}");
        };
        assert_eq!(holder.token.as_deref(), Some("secret"));
        drop(held);
        assert!(DataDir::open(temp.path(), 2).is_ok());
    }

    #[test]
    fn the_lock_is_for_its_owner_alone() {
        use std::os::unix::fs::PermissionsExt;
        let temp = tempfile::tempdir().expect("a directory");
        let _held = DataDir::open(temp.path(), 2).expect("it is free");
        let lock = fs::metadata(temp.path().join("LOCK")).expect("it is there");
        assert_eq!(lock.permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn the_number_of_shards_of_an_existing_directory_wins() {
        let temp = tempfile::tempdir().expect("a directory");
        drop(DataDir::open(temp.path(), 4).expect("it is new"));
        assert_eq!(
            DataDir::open(temp.path(), 7).expect("it is free").shards(),
            4
        );
        let taken = DataDir::claim(temp.path()).expect_err("something is stored there");
        assert!(matches!(taken, DataDirError::Taken { shards: 4, .. }));
    }

    #[test]
    fn a_directory_of_another_format_is_refused_and_left_as_it_is() {
        let temp = tempfile::tempdir().expect("a directory");
        let format = temp.path().join("FORMAT");
        std::fs::write(&format, "duetime-format 9\nshards 2\n").expect("it is written");
        let refused = DataDir::open(temp.path(), 2).expect_err("it is of another format");
        assert!(refused.to_string().contains("duetime-format 9"));
        let text = std::fs::read_to_string(&format).expect("it is there");
        assert_eq!(text, "duetime-format 9\nshards 2\n");
    }

    #[test]
    fn a_number_of_shards_that_was_not_written_is_refused() {
        let temp = tempfile::tempdir().expect("a directory");
        drop(DataDir::open(temp.path(), 2).expect("it is new"));
        let format = temp.path().join("FORMAT");
        let text = std::fs::read_to_string(&format).expect("it is there");
        for damaged in [text.replace("shards 2", "shards 3"), String::new()] {
            std::fs::write(&format, damaged).expect("it is written");
            let refused = DataDir::open(temp.path(), 2).expect_err("it is damaged");
            assert!(
                refused.to_string().contains("FORMAT is damaged"),
                "{refused}"
            );
        }
        std::fs::write(temp.path().join("shards/000/journal"), "").expect("it is written");
        std::fs::remove_file(&format).expect("it is there");
        let refused = DataDir::open(temp.path(), 2).expect_err("it is missing");
        assert!(refused.to_string().contains("it is missing"), "{refused}");
        assert!(!format.exists());
    }

    #[test]
    fn a_shard_that_is_gone_is_missed() {
        let temp = tempfile::tempdir().expect("a directory");
        drop(DataDir::open(temp.path(), 3).expect("it is new"));
        std::fs::remove_dir(temp.path().join("shards/001")).expect("it is empty");
        let refused = DataDir::open(temp.path(), 3).expect_err("one is gone");
        assert!(
            refused.to_string().contains("shards/001 is missing"),
            "{refused}"
        );
    }

    #[test]
    fn a_tool_makes_no_directory_where_there_is_none() {
        let temp = tempfile::tempdir().expect("a directory");
        for path in [temp.path().to_owned(), temp.path().join("nowhere")] {
            let refused = DataDir::open_existing(&path).expect_err("there is none");
            assert!(matches!(refused, DataDirError::Absent { .. }));
            assert!(!path.join("LOCK").exists());
        }
    }

    #[test]
    fn a_directory_that_was_half_filled_is_not_taken_for_an_empty_one() {
        let temp = tempfile::tempdir().expect("a directory");
        let claimed = DataDir::claim(temp.path()).expect("it is free");
        claimed.build().expect("it can be built in");
        drop(claimed);
        let refused = DataDir::open(temp.path(), 2).expect_err("it is half filled");
        assert!(matches!(refused, DataDirError::Unfinished { .. }));
        let claimed = DataDir::claim(temp.path()).expect("it may be filled again");
        claimed.give_up().expect("it can be removed");
        drop(claimed);
        assert!(DataDir::open(temp.path(), 2).is_ok());
    }
}

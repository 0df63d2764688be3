//! Where segments live: a directory of files, or something that stands in for one in a test.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::JournalError;
use crate::store::directory;

/// Number of a segment file, from 1. Shown as the file's name, which sorts like the number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SegmentId(pub u64);

impl fmt::Display for SegmentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:020}.segment", self.0)
    }
}

impl SegmentId {
    fn parse(name: &str) -> Option<Self> {
        name.strip_suffix(".segment")?.parse().ok().map(Self)
    }

    /// Those of a directory, oldest first.
    pub(in crate::store::local) fn all_in(directory: &Path) -> io::Result<Vec<Self>> {
        let mut ids = Vec::new();
        for entry in fs::read_dir(directory)? {
            ids.extend(entry?.file_name().to_str().and_then(Self::parse));
        }
        ids.sort_unstable();
        Ok(ids)
    }
}

/// The bookmark's name, beside the segments.
pub(super) const BOOKMARK: &str = "bookmark";
/// No bookmark is longer.
const BOOKMARK_BYTES_MAX: u64 = 64;

/// The directory that segments live in. [`JournalDirectory`] is the real one; tests have one that tears, drops
/// and fails.
pub trait JournalFiles: Send {
    /// Where it is.
    fn directory(&self) -> &Path;
    /// Where a segment is.
    fn path(&self, id: SegmentId) -> PathBuf {
        self.directory().join(id.to_string())
    }
    /// All segments there are, in any order.
    fn list(&self) -> io::Result<Vec<SegmentId>>;
    /// The first `bytes_max` bytes of a segment, fewer if it is shorter.
    fn read(&self, id: SegmentId, bytes_max: u64) -> io::Result<Vec<u8>>;
    /// Creates a segment of `bytes` zeros; an error if there is one of that name.
    fn create(&self, id: SegmentId, bytes: u64) -> io::Result<Box<dyn SegmentFile>>;
    /// Opens a segment for writing.
    fn open(&self, id: SegmentId) -> io::Result<Box<dyn SegmentFile>>;
    /// Removes a segment.
    fn remove(&self, id: SegmentId) -> io::Result<()>;
    /// The bookmark, as far as it is there.
    fn read_bookmark(&self) -> io::Result<Vec<u8>>;
    /// Opens the bookmark for writing, and makes one if there is none.
    fn open_bookmark(&self) -> io::Result<Box<dyn SegmentFile>>;
    /// Makes the names of what was created durable.
    fn sync_directory(&self) -> io::Result<()>;
}

/// A segment or a bookmark that is open for writing.
pub trait SegmentFile: Send {
    /// Writes all of `bytes` at `offset`.
    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()>;
    /// Makes everything written durable.
    fn sync(&mut self) -> io::Result<()>;
}

/// A journal's directory on a real file system.
#[derive(Debug)]
pub struct JournalDirectory {
    path: PathBuf,
    handle: File,
}

impl JournalDirectory {
    /// Opens `path`, created if need be. In `<data>/shards/NNN/journal` all four names are durable on return.
    pub fn open(path: &Path) -> Result<Self, JournalError> {
        let opened = Self::open_again(path)?;
        for above in opened.path.ancestors().skip(1).take(4) {
            directory::sync(above).map_err(opening(path))?;
        }
        Ok(opened)
    }

    /// The same of one that this process has opened before, so that its names are durable. To sync those above it anew
    /// would wait for whatever else is written there.
    pub fn open_again(path: &Path) -> Result<Self, JournalError> {
        directory::make(path).map_err(opening(path))?;
        let path = path.canonicalize().map_err(opening(path))?;
        let handle = File::open(&path).map_err(opening(&path))?;
        Ok(Self { path, handle })
    }
}

fn opening(path: &Path) -> impl FnOnce(io::Error) -> JournalError {
    let file = path.to_owned();
    let doing = "opening";
    move |source| JournalError::Io {
        doing,
        file,
        source,
    }
}

impl JournalFiles for JournalDirectory {
    fn directory(&self) -> &Path {
        &self.path
    }

    fn list(&self) -> io::Result<Vec<SegmentId>> {
        SegmentId::all_in(&self.path)
    }

    fn read(&self, id: SegmentId, bytes_max: u64) -> io::Result<Vec<u8>> {
        read(&self.path(id), bytes_max)
    }

    fn create(&self, id: SegmentId, bytes: u64) -> io::Result<Box<dyn SegmentFile>> {
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(self.path(id))?;
        file.set_len(bytes)?;
        Ok(Box::new(file))
    }

    fn open(&self, id: SegmentId) -> io::Result<Box<dyn SegmentFile>> {
        Ok(Box::new(
            OpenOptions::new().write(true).open(self.path(id))?,
        ))
    }

    fn remove(&self, id: SegmentId) -> io::Result<()> {
        fs::remove_file(self.path(id))
    }

    fn read_bookmark(&self) -> io::Result<Vec<u8>> {
        match read(&self.path.join(BOOKMARK), BOOKMARK_BYTES_MAX) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            read => read,
        }
    }

    fn open_bookmark(&self) -> io::Result<Box<dyn SegmentFile>> {
        let mut options = OpenOptions::new();
        let options = options.write(true).create(true).truncate(false);
        Ok(Box::new(options.open(self.path.join(BOOKMARK))?))
    }

    fn sync_directory(&self) -> io::Result<()> {
        self.handle.sync_all()
    }
}

fn read(path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    let file = File::open(path)?;
    let length = file.metadata()?.len().min(bytes_max);
    let mut bytes = Vec::with_capacity(usize::try_from(length).map_err(io::Error::other)?);
    file.take(length).read_to_end(&mut bytes)?;
    Ok(bytes)
}

impl SegmentFile for File {
    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.write_all_at(bytes, offset)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.sync_data()
    }
}

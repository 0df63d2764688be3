//! What the registry's database should hold, told beside it.
//!
//! sled reads a damaged file as far as it is good, or around what is not, and says nothing; and the registry has no
//! journal that would know better. So a small file, `HELD`, keeps a tally of the topics and other resources, and how far the counters are.
//! It is written before a change, with what was and what will be, and again after it; a database that is neither is
//! refused by name.
//!
//! ```text
//!  {was, is}, synced ─▶ the change, synced ─▶ {is, is}
//! ```
//!
//! A process that dies in between has left what was or what will be. A `HELD` that is missing or does not read back is
//! written anew from what is there: then nothing else is damaged, or nobody can tell.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::engine::registry::kind::Kind;
use crate::store::StoreError;
use crate::store::codec::Tally;

const FILE: &str = "HELD";

/// What is in the database.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Content {
    /// How many topics.
    pub topics: u64,
    /// The sum of the hashes of their names and records.
    pub sum: u64,
    /// The highest number that a thaw ever had.
    pub thaw: u32,
    /// The number of the next audit line.
    pub audit_next: u64,
    /// How many other resources; none where older versions wrote.
    #[serde(default)]
    pub resources: u64,
    /// The sum of the hashes of their kinds, names and records.
    #[serde(default)]
    pub resources_sum: u64,
}

impl Content {
    /// With a topic's record put in the place of another, or of none; or removed.
    pub(super) fn with_topic(
        self,
        name: &[u8],
        before: Option<&[u8]>,
        after: Option<&[u8]>,
    ) -> Self {
        let tally = changed((self.topics, self.sum), &[name], before, after);
        Self {
            topics: tally.count,
            sum: tally.sum,
            ..self
        }
    }

    /// The same for another resource's record.
    pub(super) fn with_resource(
        self,
        kind: Kind,
        name: &[u8],
        before: Option<&[u8]>,
        after: Option<&[u8]>,
    ) -> Self {
        let place = [kind.words().as_bytes(), name];
        let tally = changed((self.resources, self.resources_sum), &place, before, after);
        Self {
            resources: tally.count,
            resources_sum: tally.sum,
            ..self
        }
    }
}

fn changed(
    (count, sum): (u64, u64),
    place: &[&[u8]],
    before: Option<&[u8]>,
    after: Option<&[u8]>,
) -> Tally {
    let mut tally = Tally { count, sum };
    let entry = |record: &[u8]| [&place.join(&0), &[0][..], record].concat();
    if let Some(record) = before {
        tally.take(&entry(record));
    }
    if let Some(record) = after {
        tally.add(&entry(record));
    }
    tally
}

/// The file, as it stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Told {
    was: Content,
    is: Content,
}

impl Told {
    /// Whether that can be found.
    fn allows(&self, found: &Content) -> bool {
        let (was, is) = (&self.was, &self.is);
        let topics = |it: &Content| (it.topics, it.sum) == (found.topics, found.sum);
        let resources = |it: &Content| {
            (it.resources, it.resources_sum) == (found.resources, found.resources_sum)
        };
        (topics(was) || topics(is))
            && (resources(was) || resources(is))
            && (was.thaw..=is.thaw).contains(&found.thaw)
            && (was.audit_next..=is.audit_next).contains(&found.audit_next)
    }
}

/// The file, open, and what it says.
#[derive(Debug)]
pub(super) struct Held {
    path: PathBuf,
    file: File,
    now: Content,
}

impl Held {
    /// Opens the file beside the database in which `found` was found.
    ///
    /// # Errors
    /// When something else had been stored; I/O.
    pub(super) fn open(registry: &Path, found: Content) -> Result<Self, StoreError> {
        let path = registry.join(FILE);
        match fs::read(&path) {
            Ok(bytes) => match decoded(&bytes) {
                Some(told) if told.allows(&found) => {}
                Some(told) => {
                    let why = format!(
                        "{} topics, {} other resources, thaw {} and audit line {} were found, where {} topics, {} other resources, thaw {} and audit line {} had been stored, or others: its file was damaged",
                        found.topics,
                        found.resources,
                        found.thaw,
                        found.audit_next,
                        told.is.topics,
                        told.is.resources,
                        told.is.thaw,
                        told.is.audit_next
                    );
                    let place = registry.display().to_string();
                    return Err(StoreError::Corrupt { place, why });
                }
                None => {
                    tracing::warn!(file = %path.display(), "it does not read back; it is written anew")
                }
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(source) => return Err(failed("read", &path)(source)),
        }
        let mut options = OpenOptions::new();
        let file = options.write(true).create(true).truncate(false).open(&path);
        let file = file.map_err(failed("open", &path))?;
        let mut held = Self {
            path,
            file,
            now: found,
        };
        held.settle()?;
        Ok(held)
    }

    /// What is in the database.
    pub(super) fn now(&self) -> Content {
        self.now
    }

    /// Tells, durably, what a change is about to make of it.
    pub(super) fn announce(&mut self, next: Content) -> Result<(), StoreError> {
        let was = self.now;
        self.write(Told { was, is: next })?;
        self.now = next;
        let synced = self.file.sync_data();
        synced.map_err(failed("sync", &self.path))
    }

    /// The change is durable.
    pub(super) fn settle(&mut self) -> Result<(), StoreError> {
        let (was, is) = (self.now, self.now);
        self.write(Told { was, is })
    }

    fn write(&mut self, told: Told) -> Result<(), StoreError> {
        let bytes = encoded(told).map_err(failed("write", &self.path))?;
        let written = self.file.write_all_at(&bytes, 0);
        let written = written.and_then(|()| self.file.set_len(bytes.len() as u64));
        written.map_err(failed("write", &self.path))
    }
}

fn encoded(told: Told) -> io::Result<Vec<u8>> {
    let json = serde_json::to_string(&told)?;
    let sum = crc32fast::hash(json.as_bytes());
    Ok(format!("{sum:08x} {json}\n").into_bytes())
}

fn decoded(bytes: &[u8]) -> Option<Told> {
    let text = std::str::from_utf8(bytes).ok()?;
    let (sum, json) = text.strip_suffix('\n')?.split_once(' ')?;
    let is_whole = sum == format!("{:08x}", crc32fast::hash(json.as_bytes()));
    is_whole.then(|| serde_json::from_str(json).ok())?
}

fn failed(doing: &'static str, file: &Path) -> impl FnOnce(io::Error) -> StoreError {
    let file = file.to_owned();
    move |source| StoreError::Io {
        doing,
        file,
        source,
    }
}

//! The registry on the disk: a small sled database of topics and other resources, audit lines and one counter.
//!
//! ```text
//!  topics   name          →  {"body": {…}, "version": 3, "pause": …, "thaw": 7, "thawing_held_ms": …}
//!  calendars, schedules   name  →  {"version": 3, "at_ms": …, "by": …, "body": {…}}
//!  versions  kind, 0, name, 0, version (u64)  →  the same, of each of the latest versions
//!  positions name         →  what is remembered of a schedule beside what was said of it
//!  bulk      id (u64)     →  a bulk job: what it was asked, and how far it is
//!  bulk_pages  id (u64), page (u32)  →  the tasks that it had in hand, and how they were before
//!  audit    number (u64)  →  {"at_ms": …, "by": …, "action": …, "target": …, "detail": …}
//!  (own)    "complete"    →  the key that signs URLs by which receivers complete later (32 bytes)
//!  (own)    "thaw"        →  the highest number a thaw ever had (u32)
//! ```
//!
//! Numbers of thaws are drawn from one counter for all topics: tasks remember the last thaw that they went through,
//! so a topic that was deleted and declared again must not begin anew.
//!
//! What these should hold is told beside them, in [`held`](super::held).
//!
//! After an error the database is in doubt: it is closed, everything but [`RegistryFiles::recover`] is refused, and
//! that opens it anew and reads what stands in it.
//!
//! An actor that was given up and wakes again must change nothing: each change names its owner, and is refused once a
//! later one has begun.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use uuid::Uuid;

use crate::archive::backup::{TakeEntry, entries_of};
use crate::engine::registry::held::{Content, Held};
use crate::engine::registry::kind::{Kind, Resource};
use crate::engine::registry::records::{
    Version, decode, encode, kept, version_key, version_prefix,
};
use crate::engine::registry::{SharedBook, SharedRules};
use crate::ids::ShardEpoch;
use crate::limits;
use crate::rule::book::{Kept, RuleBook};
use crate::rule::{Calendar, Rollout, Rule, Schedule};
use crate::store::StoreError;
use crate::store::database::{Database, ENTRY_BYTES_MAX, caught};
use crate::task::history::note;
use crate::task::spec::{ResourceName, TopicName};
use crate::task::topic::{Topic, TopicBook};

/// Audit lines that are kept; the oldest go first.
const AUDIT_LINES_MAX: u64 = 100_000;
/// Longest wait of a new actor for the change that the old one is making.
const TAKE_OVER_MAX: Duration = Duration::from_secs(5);
const CACHE_BYTES: u64 = 4 * 1024 * 1024;
const FLUSH_EVERY_MS: u64 = 1_000;
const THAW_KEY: &[u8] = b"thaw";
const COMPLETION_KEY: &[u8] = b"complete";

// A record is its resource's body, as it came, numbers, and who put it.
const _: () =
    assert!(limits::RESOURCE_BODY_BYTES_MAX + 2 * limits::NOTE_BYTES_MAX <= ENTRY_BYTES_MAX);

/// The registry's files. Clones share them; they outlive the actor's restarts.
#[derive(Clone, Debug)]
pub struct RegistryFiles {
    path: PathBuf,
    /// `None` after an error, until [`RegistryFiles::recover`].
    open: Arc<Mutex<Option<Arc<Open>>>>,
    /// The owner that counts.
    owner: Arc<AtomicU64>,
}

#[derive(Debug)]
struct Open {
    topics: sled::Tree,
    /// By [`Kind`].
    resources: [sled::Tree; Kind::ALL.len()],
    versions: sled::Tree,
    positions: sled::Tree,
    bulk: sled::Tree,
    bulk_pages: sled::Tree,
    audit: sled::Tree,
    db: Database,
    /// Held while a change is made, its sync included: of an actor and the one that was given up before it, one at a
    /// time.
    held: Mutex<Held>,
}

/// One line of the audit. Each text is cut to 1 KiB when it is written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditLine {
    /// When, in Unix milliseconds.
    pub at_ms: i64,
    /// Who.
    pub by: String,
    /// What: `topic.put`, `task.discard`, …
    pub action: String,
    /// To what.
    pub target: String,
    /// More about it.
    pub detail: String,
}

impl RegistryFiles {
    /// Opens or makes the registry under a data directory.
    ///
    /// # Errors
    /// When it can't be read.
    pub fn open(data: &Path) -> Result<Self, StoreError> {
        let path = data.join("registry");
        let open = Open::at(&path)?;
        Ok(Self {
            path,
            open: Arc::new(Mutex::new(Some(Arc::new(open)))),
            owner: Arc::default(),
        })
    }

    /// All topics as they are stored.
    ///
    /// # Errors
    /// When one can't be read; it is named.
    pub fn book(&self) -> Result<TopicBook, StoreError> {
        Ok(TopicBook::default().renewed(self.with(Open::topics)?))
    }

    /// All other resources as they are stored.
    ///
    /// # Errors
    /// When one can't be read; it is named.
    pub fn rules(&self) -> Result<RuleBook, StoreError> {
        self.with(Open::rules)
    }

    /// Makes the files usable for a new actor: opens them anew if an error has closed them, and brings both books in
    /// step with what is stored. Whether the change that met the error counts is decided here.
    ///
    /// # Errors
    /// When they can't be opened or read; the actor can't be started then.
    pub fn recover(
        &self,
        owner: ShardEpoch,
        book: &SharedBook,
        rules: &SharedRules,
    ) -> Result<(), StoreError> {
        self.owner.fetch_max(owner.0, Ordering::SeqCst);
        // A start that was given up may come by here as well: the database lets one of them open it.
        let is_closed = self.open.lock().is_none();
        if is_closed {
            let open = Open::at(&self.path)?;
            *self.open.lock() = Some(Arc::new(open));
        }
        // A change that its predecessor is about to make ends first; later ones are refused.
        let open = self.open.lock().clone().ok_or(StoreError::Poisoned)?;
        if open.held.try_lock_for(TAKE_OVER_MAX).is_none() {
            let file = self.path.clone();
            return Err(StoreError::Held { file });
        }
        let (stored, stored_rules) = self.with(|open| Ok((open.topics()?, open.rules()?)))?;
        let mut book = book.write();
        let mut rules = rules.write();
        self.check(owner)?;
        *book = Arc::new(book.renewed(stored));
        *rules = Arc::new(stored_rules);
        Ok(())
    }

    /// Whether no later owner has begun.
    pub(super) fn check(&self, given: ShardEpoch) -> Result<(), StoreError> {
        let present = ShardEpoch(self.owner.load(Ordering::SeqCst));
        match given < present {
            true => Err(StoreError::StaleEpoch { given, present }),
            false => Ok(()),
        }
    }

    /// Stores a topic and the audit line of what was done to it, in one sync.
    pub(super) fn put(
        &self,
        owner: ShardEpoch,
        name: &TopicName,
        topic: &Topic,
        line: &AuditLine,
    ) -> Result<(), StoreError> {
        self.with(|open| {
            let record = encode(topic).map_err(|error| open.db.corrupt(name, error))?;
            let edit = Edit {
                place: Place::Topics,
                key: name.as_str().as_bytes(),
                record: Some(&record),
            };
            let lines = std::slice::from_ref(line);
            open.change(&|| self.check(owner), &[edit], lines, topic.thaw)
        })
    }

    /// Removes a topic and stores the audit line of it, in one sync.
    pub(super) fn remove(
        &self,
        owner: ShardEpoch,
        name: &TopicName,
        line: &AuditLine,
    ) -> Result<(), StoreError> {
        let edit = Edit {
            place: Place::Topics,
            key: name.as_str().as_bytes(),
            record: None,
        };
        let lines = std::slice::from_ref(line);
        self.with(|open| open.change(&|| self.check(owner), &[edit], lines, 0))
    }

    /// Stores a resource, its version and the audit line of it, in one sync.
    pub(super) fn put_kept<T>(
        &self,
        owner: ShardEpoch,
        kind: Kind,
        name: &ResourceName,
        kept: &Kept<T>,
        line: &AuditLine,
    ) -> Result<(), StoreError> {
        self.with(|open| {
            let corrupt = |error| open.db.corrupt(format_args!("{kind} {name}"), error);
            let record = serde_json::to_vec(&Version {
                version: kept.version,
                at_ms: kept.changed_at.0,
                by: note(&line.by),
                body: RawValue::from_string(kept.body.clone()).map_err(corrupt)?,
            });
            let record = record.map_err(corrupt)?;
            let key = version_key(kind, name, kept.version);
            let oldest = kept.version.checked_sub(limits::RESOURCE_VERSIONS_KEPT);
            let oldest = oldest.map(|version| version_key(kind, name, version));
            let mut edits = vec![
                Edit {
                    place: Place::Versions,
                    key: &key,
                    record: Some(&record),
                },
                Edit {
                    place: Place::Kept(kind),
                    key: name.as_str().as_bytes(),
                    record: Some(&record),
                },
            ];
            edits.extend(oldest.as_deref().map(|key| Edit {
                place: Place::Versions,
                key,
                record: None,
            }));
            let lines = std::slice::from_ref(line);
            open.change(&|| self.check(owner), &edits, lines, 0)
        })
    }

    /// Removes a resource, all its versions but the last, which the next one's number follows from, and what is
    /// remembered of it; stores the audit line of it; in one sync.
    pub(super) fn remove_kept(
        &self,
        owner: ShardEpoch,
        kind: Kind,
        name: &ResourceName,
        line: &AuditLine,
    ) -> Result<(), StoreError> {
        self.with(|open| {
            let versions = open.versions_of(kind, name)?;
            let older = versions.iter().skip(1);
            let older: Vec<_> = older
                .map(|version| version_key(kind, name, version.version))
                .collect();
            let key = name.as_str().as_bytes();
            let gone = |place, key| Edit {
                place,
                key,
                record: None,
            };
            let mut edits = vec![gone(Place::Kept(kind), key)];
            if kind == Kind::Schedule {
                edits.push(gone(Place::Positions, key));
            }
            edits.extend(older.iter().map(|key| gone(Place::Versions, key)));
            let lines = std::slice::from_ref(line);
            open.change(&|| self.check(owner), &edits, lines, 0)
        })
    }

    /// The highest number that a version of the resource ever had.
    pub(super) fn last_version(&self, kind: Kind, name: &ResourceName) -> Result<u64, StoreError> {
        let versions = self.versions(kind, name)?;
        Ok(versions.first().map_or(0, |last| last.version))
    }

    /// The versions that are kept of a resource, the latest first.
    pub(super) fn versions(
        &self,
        kind: Kind,
        name: &ResourceName,
    ) -> Result<Vec<Version>, StoreError> {
        self.with(|open| open.versions_of(kind, name))
    }

    /// Stores positions, in one sync.
    pub(super) fn store_positions(
        &self,
        owner: ShardEpoch,
        positions: &[(ResourceName, Option<String>)],
    ) -> Result<(), StoreError> {
        let edit = |(name, text): &'_ (ResourceName, Option<String>)| {
            (
                name.clone(),
                text.as_ref().map(|text| text.clone().into_bytes()),
            )
        };
        let positions: Vec<_> = positions.iter().map(edit).collect();
        let edits: Vec<Edit<'_>> = positions
            .iter()
            .map(|(name, record)| Edit {
                place: Place::Positions,
                key: name.as_str().as_bytes(),
                record: record.as_deref(),
            })
            .collect();
        self.with(|open| open.change(&|| self.check(owner), &edits, &[], 0))
    }

    /// All positions.
    ///
    /// # Errors
    /// When they can't be read.
    pub fn positions(&self) -> Result<Vec<(String, String)>, StoreError> {
        self.with(|open| {
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            let stored = open.positions.iter();
            let stored = stored.map(|entry| entry.map(|(name, it)| (text(&name), text(&it))));
            let stored: Result<_, _> = stored.collect();
            stored.map_err(|error| open.db.failed("read", error))
        })
    }

    /// Stores entries that are not tallied, in one sync.
    pub(super) fn change(&self, owner: ShardEpoch, edits: &[Edit<'_>]) -> Result<(), StoreError> {
        self.with(|open| open.change(&|| self.check(owner), edits, &[], 0))
    }

    /// The first entries of a place whose keys begin so.
    pub(super) fn stored(
        &self,
        place: Place,
        prefix: &[u8],
        most: usize,
    ) -> Result<Vec<Stored>, StoreError> {
        self.with(|open| {
            let stored = open.tree(place).scan_prefix(prefix).take(most);
            let stored =
                stored.map(|entry| entry.map(|(key, record)| (key.to_vec(), record.to_vec())));
            let stored: Result<_, _> = stored.collect();
            stored.map_err(|error| open.db.failed("read", error))
        })
    }

    /// Stores audit lines, in one sync.
    pub(super) fn note(&self, owner: ShardEpoch, lines: &[AuditLine]) -> Result<(), StoreError> {
        self.with(|open| open.change(&|| self.check(owner), &[], lines, 0))
    }

    /// The number of the next thaw: higher than that of any thaw that ever was.
    pub(super) fn next_thaw(&self) -> Result<u32, StoreError> {
        Ok(self.with(Open::last_thaw)? + 1)
    }

    /// The key that signs URLs by which receivers complete later; drawn when there is none.
    ///
    /// # Errors
    /// When it can't be read or written, or nothing random can be had.
    pub fn completion_key(&self) -> Result<[u8; 32], StoreError> {
        self.with(|open| completion_key(&open.db))
    }

    /// The latest audit lines, newest first.
    ///
    /// # Errors
    /// When they can't be read.
    pub fn audit(&self, limit: usize) -> Result<Vec<AuditLine>, StoreError> {
        self.with(|open| open.latest(limit))
    }

    /// Gives all entries, for a backup: the name of a tree, a key, a value.
    ///
    /// # Errors
    /// When they can't be read, and what `take` returns.
    pub fn entries(&self, take: &mut TakeEntry<'_>) -> Result<(), StoreError> {
        // What `take` refuses is no fault of the database: it stays open.
        let open = self.open.lock().clone().ok_or(StoreError::Poisoned)?;
        entries_of(&open.db, take)
    }

    /// Works with the open database; an error closes it.
    fn with<R>(&self, work: impl FnOnce(&Open) -> Result<R, StoreError>) -> Result<R, StoreError> {
        let open = self.open.lock().clone().ok_or(StoreError::Poisoned)?;
        let done = caught(&self.path, || work(&open));
        if !matches!(done, Ok(_) | Err(StoreError::StaleEpoch { .. })) {
            self.open.lock().take();
        }
        done
    }
}

impl Open {
    fn at(path: &Path) -> Result<Self, StoreError> {
        caught(path, || Self::found_at(path))
    }

    fn found_at(path: &Path) -> Result<Self, StoreError> {
        let db = Database::open(path, CACHE_BYTES, FLUSH_EVERY_MS)?;
        let tree = |name| {
            let tree = db.open_tree(name);
            tree.map_err(|error| db.failed("open", error))
        };
        let (topics, audit) = (tree("topics")?, tree("audit")?);
        let (versions, positions) = (tree("versions")?, tree("positions")?);
        let (bulk, bulk_pages) = (tree("bulk")?, tree("bulk_pages")?);
        let [calendars, schedules, rules, rollouts] = Kind::ALL.map(|kind| tree(kind.words()));
        let resources = [calendars?, schedules?, rules?, rollouts?];
        // A killed process may have left something in the page cache only, and it is acted upon from here on.
        db.sync()?;
        let mut found = Content {
            thaw: last_thaw(&db)?,
            audit_next: next_line(&db, &audit)?,
            ..Content::default()
        };
        for stored in &topics {
            let (name, record) = stored.map_err(|error| db.failed("read", error))?;
            found = found.with_topic(&name, None, Some(&record));
        }
        for (kind, tree) in Kind::ALL.into_iter().zip(&resources) {
            for stored in tree {
                let (name, record) = stored.map_err(|error| db.failed("read", error))?;
                found = found.with_resource(kind, &name, None, Some(&record));
            }
        }
        let held = Mutex::new(Held::open(path, found)?);
        Ok(Self {
            topics,
            resources,
            versions,
            positions,
            bulk,
            bulk_pages,
            audit,
            db,
            held,
        })
    }

    /// Makes a change durable: of entries, with audit lines, and perhaps with the number of a thaw. At most one entry
    /// of it is tallied, so that a change that a crash cuts off has happened or has not.
    fn change(
        &self,
        may_change: &dyn Fn() -> Result<(), StoreError>,
        edits: &[Edit<'_>],
        lines: &[AuditLine],
        thaw: u32,
    ) -> Result<(), StoreError> {
        let mut held = self.held.lock();
        may_change()?;
        let mut next = held.now();
        next.thaw = next.thaw.max(thaw);
        next.audit_next += lines.len() as u64;
        for edit in edits {
            let before = || {
                let before = self.tree(edit.place).get(edit.key);
                before.map_err(|error| self.db.failed("read", error))
            };
            next = match edit.place {
                Place::Topics => next.with_topic(edit.key, before()?.as_deref(), edit.record),
                Place::Kept(kind) => {
                    next.with_resource(kind, edit.key, before()?.as_deref(), edit.record)
                }
                Place::Versions | Place::Positions | Place::Bulk | Place::BulkPages => next,
            };
        }
        held.announce(next)?;
        self.note(lines)?;
        self.count_thaw(thaw)?;
        for edit in edits {
            let tree = self.tree(edit.place);
            let done = match edit.record {
                Some(record) => tree.insert(edit.key, record),
                None => tree.remove(edit.key),
            };
            done.map_err(|error| self.db.failed("write", error))?;
        }
        self.db.sync()?;
        held.settle()
    }

    fn tree(&self, place: Place) -> &sled::Tree {
        match place {
            Place::Topics => &self.topics,
            Place::Kept(kind) => &self.resources[kind as usize],
            Place::Versions => &self.versions,
            Place::Positions => &self.positions,
            Place::Bulk => &self.bulk,
            Place::BulkPages => &self.bulk_pages,
        }
    }

    fn rules(&self) -> Result<RuleBook, StoreError> {
        let mut book = RuleBook::default();
        self.read_kept::<Calendar>(&mut book)?;
        self.read_kept::<Schedule>(&mut book)?;
        self.read_kept::<Rule>(&mut book)?;
        self.read_kept::<Rollout>(&mut book)?;
        Ok(book)
    }

    fn read_kept<R: Resource>(&self, book: &mut RuleBook) -> Result<(), StoreError> {
        for stored in &self.resources[R::KIND as usize] {
            let (name, record) = stored.map_err(|error| self.db.failed("read", error))?;
            let kept = kept::<R>(&name, &record).map_err(|why| {
                let (kind, name) = (R::KIND, String::from_utf8_lossy(&name));
                self.db.corrupt(format_args!("{kind} {name}"), why)
            })?;
            R::all_mut(book).insert(kept.0, Arc::new(kept.1));
        }
        Ok(())
    }

    fn versions_of(&self, kind: Kind, name: &ResourceName) -> Result<Vec<Version>, StoreError> {
        let all = self.versions.scan_prefix(version_prefix(kind, name)).rev();
        all.map(|stored| {
            let (_, record) = stored.map_err(|error| self.db.failed("read", error))?;
            serde_json::from_slice(&record).map_err(|error| {
                self.db
                    .corrupt(format_args!("a version of {kind} {name}"), error)
            })
        })
        .collect()
    }

    fn topics(&self) -> Result<Vec<(TopicName, Topic)>, StoreError> {
        let mut topics = Vec::with_capacity(self.topics.len());
        for stored in &self.topics {
            let (name, record) = stored.map_err(|error| self.db.failed("read", error))?;
            let topic = decode(&name, &record).map_err(|why| {
                let name = String::from_utf8_lossy(&name);
                self.db.corrupt(format_args!("topic {name}"), why)
            })?;
            topics.push(topic);
        }
        Ok(topics)
    }

    fn last_thaw(&self) -> Result<u32, StoreError> {
        last_thaw(&self.db)
    }

    fn count_thaw(&self, number: u32) -> Result<(), StoreError> {
        if number > self.last_thaw()? {
            let put = self.db.insert(THAW_KEY, &number.to_be_bytes());
            put.map_err(|error| self.db.failed("write", error))?;
        }
        Ok(())
    }

    fn note(&self, lines: &[AuditLine]) -> Result<(), StoreError> {
        let failed = |error| self.db.failed("write", error);
        let first = next_line(&self.db, &self.audit)?;
        for (number, line) in (first..).zip(lines) {
            let line = AuditLine {
                at_ms: line.at_ms,
                by: note(&line.by),
                action: note(&line.action),
                target: note(&line.target),
                detail: note(&line.detail),
            };
            let bytes = serde_json::to_vec(&line)
                .map_err(|error| self.db.corrupt("an audit line", error))?;
            self.audit
                .insert(number.to_be_bytes(), bytes)
                .map_err(failed)?;
            if let Some(old) = number.checked_sub(AUDIT_LINES_MAX) {
                self.audit.remove(old.to_be_bytes()).map_err(failed)?;
            }
        }
        Ok(())
    }

    fn latest(&self, limit: usize) -> Result<Vec<AuditLine>, StoreError> {
        let lines = self.audit.iter().rev().take(limit);
        lines
            .map(|stored| {
                let (number, bytes) = stored.map_err(|error| self.db.failed("read", error))?;
                serde_json::from_slice(&bytes).map_err(|error| {
                    let number = audit_number(&number);
                    self.db.corrupt(format_args!("audit line {number}"), error)
                })
            })
            .collect()
    }
}

/// A key and its record.
pub(super) type Stored = (Vec<u8>, Vec<u8>);

/// Where an entry is.
#[derive(Clone, Copy)]
pub(super) enum Place {
    Topics,
    Kept(Kind),
    Versions,
    Positions,
    Bulk,
    BulkPages,
}

/// What becomes of an entry: a record, or nothing.
pub(super) struct Edit<'a> {
    pub place: Place,
    pub key: &'a [u8],
    pub record: Option<&'a [u8]>,
}

fn last_thaw(db: &Database) -> Result<u32, StoreError> {
    let stored = db.get(THAW_KEY);
    let stored = stored.map_err(|error| db.failed("read", error))?;
    let Some(number) = stored else { return Ok(0) };
    let number = number.as_ref().try_into().map(u32::from_be_bytes);
    number.map_err(|_| db.corrupt("the number of thaws", "is not four bytes"))
}

fn completion_key(db: &Database) -> Result<[u8; 32], StoreError> {
    let stored = db.get(COMPLETION_KEY);
    let stored = stored.map_err(|error| db.failed("read", error))?;
    if let Some(key) = stored {
        let key = key.as_ref().try_into();
        return key.map_err(|_| db.corrupt("the key of completions", "is not 32 bytes"));
    }
    // Two ids of random bits each, less than all of them random: 244 bits, hashed by the signature.
    let parts = [Uuid::new_v4().into_bytes(), Uuid::new_v4().into_bytes()];
    let mut key = [0; 32];
    key.copy_from_slice(&parts.concat());
    let put = db.insert(COMPLETION_KEY, &key);
    put.map_err(|error| db.failed("write", error))?;
    db.sync()?;
    Ok(key)
}

/// The number of the next audit line.
fn next_line(db: &Database, audit: &sled::Tree) -> Result<u64, StoreError> {
    let last = audit.last().map_err(|error| db.failed("read", error))?;
    Ok(last.map_or(0, |(key, _)| audit_number(&key) + 1))
}

fn audit_number(key: &[u8]) -> u64 {
    key.try_into().map_or(0, u64::from_be_bytes)
}

#[cfg(test)]
impl RegistryFiles {
    /// Where the database is.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Takes a resource's record away, and tells nobody.
    pub(super) fn lose(&self, kind: Kind, name: &str) {
        let open = self.open.lock().clone().expect("it is open");
        let lost = open.resources[kind as usize].remove(name);
        assert!(lost.expect("it is written").is_some());
    }

    /// Puts something else in the place of a topic's record.
    pub(super) fn damage(&self, name: &str) {
        let open = self.open.lock().clone().expect("it is open");
        let record = open.topics.get(name).expect("it reads");
        let record = record.expect("it is there");
        let half = &record[..record.len() / 2];
        open.topics.insert(name, half).expect("it is written");
    }
}

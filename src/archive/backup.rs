//! A backup: one directory with all tasks, notes, topics and audit lines.
//!
//! ```text
//!  <backup>/MANIFEST            what is in it: format, when, of how many shards; of each file records, size and sum
//!  <backup>/shard-000.records   tasks and notes, whole and each once, in frames (see [`frames`](super::frames))
//!  <backup>/registry.records    topics and audit lines, as the registry keeps them
//! ```
//!
//! It is written to `<backup>.partial`, synced, read back and checked, and only then renamed: what has its name is whole.
//! It knows no chunks, marks or seeds, so it is restored into any number of shards, by later versions too.
//!
//! A backup of a running service holds a consistent state of each shard, at instants a few milliseconds apart.

use std::fs::{self, File};
use std::io::{BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::archive::frames::{ReadError, Reader, Writer, Written};
use crate::archive::reshard::settle;
use crate::archive::since::{Journals, Part, Since};
use crate::archive::sink::{Item, OnTaken, Sink};
use crate::archive::{ArchiveError, Carried, Options, Progress, each_shard, side_by_side};
use crate::clock::{SteadyMs, WallMs};
use crate::ids::ShardId;
use crate::shard::snapshot::{Found, Snapshot, record_of};
use crate::store::data_dir::DataDir;
use crate::store::database::Database;
use crate::store::directory;
use crate::store::{RecordKey, StoreError, codec};

/// What a backup says it is; a reader refuses another.
const FORMAT: &str = "duetime-backup 1";
const MANIFEST: &str = "MANIFEST";
const REGISTRY: &str = "registry.records";
/// sled's cache while the registry is read or written.
const CACHE_BYTES: u64 = 4 * 1024 * 1024;
const FLUSH_EVERY_MS: u64 = 1_000;

/// What is in a backup.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// Which format it is of: a reader refuses another.
    pub format: String,
    /// The version that wrote it.
    pub version: String,
    /// When it was begun, in Unix milliseconds.
    pub made_at_ms: i64,
    /// Of how many shards.
    pub shards: u16,
    /// How many tasks are in it.
    pub tasks: u64,
    /// How many tombstones and kept answers.
    pub notes: u64,
    /// Places that did not read back and are not in it.
    pub left_out: u64,
    /// The latest steady time that it knows of.
    pub steady_ms: i64,
    /// From where on copies of the journals hold what came after it, if they were copied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub journals: Option<JournalsAt>,
    /// Its files.
    pub files: Vec<FileOf>,
}

/// A place in the journals of all shards.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JournalsAt {
    /// What their copies are called: see [`copies`](crate::store::local::copies).
    pub lineage: String,
    /// The sequence of each shard behind which to go on.
    pub after: Vec<u64>,
    /// The sequence of each shard that their copies had reached when they held all that is in the backup.
    #[serde(default)]
    pub through: Vec<u64>,
}

/// A backup that is to be made.
#[derive(Clone, Debug)]
pub struct Wanted<'a> {
    /// Where; nothing may be there.
    pub to: &'a Path,
    /// When it is begun.
    pub now: WallMs,
    /// Where the journals' copies were before anything was read for it, and where once they held all that was read.
    pub journals: Option<JournalsAt>,
}

/// One file of a backup.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileOf {
    /// Its name.
    pub name: String,
    /// How many records it has.
    pub records: u64,
    /// How long it is.
    pub bytes: u64,
    /// The sum of its bytes.
    pub crc32: u32,
}

impl FileOf {
    fn new(name: &str, written: Written) -> Self {
        Self {
            name: name.to_owned(),
            records: written.records,
            bytes: written.bytes,
            crc32: written.crc32,
        }
    }

    fn is(&self, read: Written) -> bool {
        let told = (self.records, self.bytes, self.crc32);
        told == (read.records, read.bytes, read.crc32)
    }
}

impl Manifest {
    /// How long all files are together.
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).sum()
    }

    /// Reads what a backup says is in it.
    ///
    /// # Errors
    /// When it is no backup, or of another format.
    pub fn read(backup: &Path) -> Result<Self, ArchiveError> {
        let path = backup.join(MANIFEST);
        let text = fs::read(&path).map_err(|error| not_a_backup(&path, error))?;
        let manifest: Self =
            serde_json::from_slice(&text).map_err(|error| not_a_backup(&path, error))?;
        if manifest.format != FORMAT {
            let why = format!("is {:?}, this version reads {FORMAT:?}", manifest.format);
            return Err(not_a_backup(&path, why));
        }
        Ok(manifest)
    }
}

fn not_a_backup(path: &Path, why: impl std::fmt::Display) -> ArchiveError {
    ArchiveError::NotABackup {
        path: path.to_owned(),
        why: why.to_string(),
    }
}

/// Takes in the registry's entries: the name of a tree, a key, a value.
pub type TakeEntry<'a> = dyn FnMut(&[u8], &[u8], &[u8]) -> Result<(), StoreError> + 'a;
/// Gives all entries of the registry.
pub type GiveEntries<'a> = dyn Fn(&mut TakeEntry<'_>) -> Result<(), StoreError> + Sync + 'a;

/// Backs up a directory that this process holds.
///
/// # Errors
/// When something does not read back, or the disk refuses.
pub fn of_directory(
    dir: &DataDir,
    wanted: Wanted<'_>,
    options: &Options,
    progress: &Progress,
) -> Result<Manifest, ArchiveError> {
    let registry = dir.path().join("registry");
    let entries = |take: &mut TakeEntry<'_>| match registry.exists() {
        true => entries_of(
            &Database::open(&registry, CACHE_BYTES, FLUSH_EVERY_MS)?,
            take,
        ),
        // None of a directory into which tasks were imported and that never ran.
        false => Ok(()),
    };
    let shards = dir.shards();
    write(wanted, shards, &entries, options, progress, |each| {
        each_shard(dir, options, each)
    })
}

/// Backs up what was taken of running shards, one after the other.
///
/// # Errors
/// When something does not read back, or the disk refuses.
pub fn of_snapshots(
    snapshots: Vec<Snapshot>,
    registry: &GiveEntries<'_>,
    wanted: Wanted<'_>,
    options: &Options,
    progress: &Progress,
) -> Result<Manifest, ArchiveError> {
    let shards = snapshots.len() as u16;
    write(wanted, shards, registry, options, progress, |each| {
        let numbered = (0..).map(ShardId).zip(snapshots);
        numbered
            .into_iter()
            .try_for_each(|(shard, snapshot)| each(shard, snapshot))
    })
}

/// All entries of a database, as they are copied.
///
/// # Errors
/// Of the database.
pub fn entries_of(db: &Database, take: &mut TakeEntry<'_>) -> Result<(), StoreError> {
    for name in db.tree_names() {
        let tree = db
            .open_tree(&name)
            .map_err(|error| db.failed("open", error))?;
        for entry in &tree {
            let (key, value) = entry.map_err(|error| db.failed("read", error))?;
            take(&name, &key, &value)?;
        }
    }
    Ok(())
}

/// What is counted while shards are written.
#[derive(Default)]
struct Counted {
    files: Vec<FileOf>,
    tasks: u64,
    notes: u64,
    steady: SteadyMs,
}

type Each<'a> = dyn Fn(ShardId, Snapshot) -> Result<(), ArchiveError> + Sync + 'a;

fn write(
    wanted: Wanted<'_>,
    shards: u16,
    registry: &GiveEntries<'_>,
    options: &Options,
    progress: &Progress,
    give_shards: impl FnOnce(&Each<'_>) -> Result<(), ArchiveError>,
) -> Result<Manifest, ArchiveError> {
    let Wanted { to, now, journals } = wanted;
    let partial = begin(to)?;
    let made = (|| {
        let counted = Mutex::new(Counted::default());
        give_shards(&|shard, snapshot| {
            let (file, tasks, notes) = write_shard(&partial, shard, &snapshot, progress)?;
            let mut counted = counted.lock();
            counted.files.push(file);
            counted.tasks += tasks;
            counted.notes += notes;
            counted.steady = counted.steady.max(snapshot.steady());
            Ok(())
        })?;
        progress.undamaged(options)?;
        let mut counted = counted.into_inner();
        counted.files.sort_by(|a, b| a.name.cmp(&b.name));
        counted.files.push(write_registry(&partial, registry)?);
        let manifest = Manifest {
            format: FORMAT.to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            made_at_ms: now.0,
            shards,
            tasks: counted.tasks,
            notes: counted.notes,
            left_out: progress.faults_count(),
            steady_ms: counted.steady.0,
            journals,
            files: counted.files,
        };
        write_manifest(&partial, &manifest)?;
        verify(&partial, options, progress)?;
        put_in_place(&partial, to)?;
        Ok(manifest)
    })();
    if made.is_err() {
        // What is half written helps nobody; that it may stay there does no harm.
        let _ = fs::remove_dir_all(&partial);
    }
    made
}

fn begin(to: &Path) -> Result<PathBuf, ArchiveError> {
    let is_free = match fs::read_dir(to) {
        Ok(mut entries) => entries.next().is_none(),
        Err(error) => error.kind() == std::io::ErrorKind::NotFound,
    };
    let name = to.file_name().filter(|_| is_free);
    let name = name.ok_or_else(|| ArchiveError::Exists {
        path: to.to_owned(),
    })?;
    let mut partial = name.to_owned();
    partial.push(".partial");
    let partial = to.with_file_name(partial);
    if let Some(above) = to.parent().filter(|above| !above.as_os_str().is_empty()) {
        directory::make(above).map_err(ArchiveError::io("create", above))?;
    }
    directory::remove(&partial).map_err(ArchiveError::io("remove", &partial))?;
    directory::make_new(&partial).map_err(ArchiveError::io("create", &partial))?;
    Ok(partial)
}

fn writer_of(path: &Path) -> Result<Writer<BufWriter<File>>, ArchiveError> {
    File::create(path)
        .and_then(|file| Writer::new(BufWriter::new(file)))
        .map_err(ArchiveError::io("write", path))
}

/// Ends a file, and makes it durable.
fn close(writer: Writer<BufWriter<File>>, path: &Path, name: &str) -> Result<FileOf, ArchiveError> {
    let closed = writer.finish().and_then(|(mut file, written)| {
        file.flush()?;
        file.get_ref().sync_all()?;
        Ok(FileOf::new(name, written))
    });
    closed.map_err(ArchiveError::io("write", path))
}

fn write_shard(
    partial: &Path,
    shard: ShardId,
    snapshot: &Snapshot,
    progress: &Progress,
) -> Result<(FileOf, u64, u64), ArchiveError> {
    progress.add_total(snapshot.tasks());
    let name = format!("shard-{:03}.records", shard.0);
    let path = partial.join(&name);
    let failed = || ArchiveError::io("write", &path);
    let mut writer = writer_of(&path)?;
    for note in snapshot.notes() {
        let (key, value) = record_of(note);
        writer.put(&key.to_bytes(), &value).map_err(failed())?;
    }
    let mut tasks = 0;
    snapshot.visit(&mut |found| {
        match found {
            Found::Task(id, value) => {
                progress.go_on()?;
                let key = RecordKey::Task(id).to_bytes();
                writer.put(&key, &value).map_err(failed())?;
                tasks += 1;
                progress.add_done(1);
            }
            Found::Damaged(fault) => progress.note(fault),
        }
        Ok::<_, ArchiveError>(())
    })?;
    let notes = snapshot.notes().len() as u64;
    Ok((close(writer, &path, &name)?, tasks, notes))
}

fn write_registry(partial: &Path, registry: &GiveEntries<'_>) -> Result<FileOf, ArchiveError> {
    let path = partial.join(REGISTRY);
    let mut writer = writer_of(&path)?;
    registry(&mut |tree, key, value| {
        let name = [&[tree.len() as u8], tree, key].concat();
        writer.put(&name, value).map_err(|source| StoreError::Io {
            doing: "write",
            file: path.clone(),
            source,
        })
    })?;
    close(writer, &path, REGISTRY)
}

fn write_manifest(partial: &Path, manifest: &Manifest) -> Result<(), ArchiveError> {
    let path = partial.join(MANIFEST);
    let written = serde_json::to_vec_pretty(manifest)
        .map_err(std::io::Error::other)
        .and_then(|mut text| {
            text.push(b'\n');
            let mut file = File::create(&path)?;
            file.write_all(&text)?;
            file.sync_all()?;
            directory::sync(partial)
        });
    written.map_err(ArchiveError::io("write", &path))
}

fn put_in_place(partial: &Path, to: &Path) -> Result<(), ArchiveError> {
    let above = match to.parent() {
        Some(above) if !above.as_os_str().is_empty() => above,
        _ => Path::new("."),
    };
    fs::rename(partial, to)
        .and_then(|()| directory::sync(above))
        .map_err(ArchiveError::io("rename to", to))
}

/// Reads a backup to its end and checks each sum and count.
///
/// # Errors
/// When it is not what was written.
pub fn verify(
    backup: &Path,
    options: &Options,
    progress: &Progress,
) -> Result<Manifest, ArchiveError> {
    let manifest = Manifest::read(backup)?;
    side_by_side(options.threads, manifest.files.len(), |number| {
        read_file(backup, &manifest.files[number], &mut |_, _| {
            progress.go_on()
        })
    })?;
    Ok(manifest)
}

/// Reads one file of a backup to its end.
fn read_file(
    backup: &Path,
    file: &FileOf,
    take: &mut dyn FnMut(Bytes, Bytes) -> Result<(), ArchiveError>,
) -> Result<(), ArchiveError> {
    let path = backup.join(&file.name);
    let failed = |error: ReadError| match error {
        ReadError::Io(source) => ArchiveError::io("read", &path)(source),
        damaged @ ReadError::Damaged { .. } => not_a_backup(&path, damaged),
    };
    // A name with a way out of the backup is none of its files.
    if Path::new(&file.name).file_name() != Some(file.name.as_ref()) {
        return Err(not_a_backup(&path, "is no name of a file"));
    }
    let opened = File::open(&path).map_err(ArchiveError::io("open", &path))?;
    let mut reader = Reader::new(BufReader::new(opened)).map_err(failed)?;
    while let Some(records) = reader.next_frame().map_err(failed)? {
        for record in records {
            let (key, value) = record.map_err(failed)?;
            take(key, value)?;
        }
    }
    match file.is(reader.read_so_far()) {
        true => Ok(()),
        false => Err(not_a_backup(
            &path,
            "it is not the file that MANIFEST names",
        )),
    }
}

/// Puts a backup into a directory, with so many shards, and over it what copies of the journals hold that came after it;
/// what is there is replaced.
///
/// # Errors
/// When the backup or a copy is damaged, or the disk refuses; the directory is as it was.
pub fn restore(
    backup: &Path,
    copies: Option<&Path>,
    dir: &mut DataDir,
    shards: u16,
    options: &Options,
    progress: &Progress,
) -> Result<(Manifest, Carried), ArchiveError> {
    let manifest = Manifest::read(backup)?;
    progress.add_total(manifest.tasks);
    let since = match (copies, &manifest.journals) {
        (None, _) => None,
        (Some(copies), Some(journals)) => Some(Journals::look_at(copies, journals)?),
        (Some(_), None) => {
            let why = "no journals were copied when it was made";
            return Err(not_a_backup(&backup.join(MANIFEST), why));
        }
    };
    let place = dir.build()?;
    let restored = (|| {
        let (registry, records): (Vec<&FileOf>, Vec<&FileOf>) = manifest
            .files
            .iter()
            .partition(|file| file.name == REGISTRY);
        let steady = since.as_ref().map_or(SteadyMs(0), |since| since.steady);
        let steady = steady.max(SteadyMs(manifest.steady_ms));
        let counted = (AtomicU64::new(0), AtomicU64::new(0));
        let sink = Sink::begin(&place, shards, steady, OnTaken::Impossible, options)?;
        let fed = side_by_side(options.threads, records.len(), |number| {
            let (mut feeder, path) = (sink.feeder(), backup.join(&records[number].name));
            let mut feed = |key: &[u8], value: Bytes| feeder.put(item_of(&path, key, value)?);
            let mut part = Part::FIRST;
            loop {
                let mut since = match &since {
                    Some(since) => since.of_shard(number, part)?,
                    None => Since::default(),
                };
                read_file(backup, records[number], &mut |key, value| {
                    if !since.part.has(&key) {
                        return Ok(());
                    }
                    progress.go_on()?;
                    let is_task = is_task(&key);
                    let count = if is_task { &counted.0 } else { &counted.1 };
                    count.fetch_add(1, Ordering::Relaxed);
                    progress.add_done(u64::from(is_task));
                    match since.over(&key, value)? {
                        Some(value) => feed(&key, value),
                        None => Ok(()),
                    }
                })?;
                part = since.part.next();
                since
                    .rest()
                    .try_for_each(|(key, value)| feed(&key.to_bytes(), value))?;
                if part == Part::FIRST {
                    return feeder.flush();
                }
            }
        });
        let carried = settle(fed, sink)?;
        let counted = (counted.0.into_inner(), counted.1.into_inner());
        if counted != (manifest.tasks, manifest.notes) {
            return Err(not_a_backup(
                backup,
                "it has other counts than MANIFEST says",
            ));
        }
        for file in registry {
            restore_registry(backup, file, &place)?;
        }
        Ok(carried)
    })();
    match restored {
        Ok(carried) => {
            dir.swap(shards)?;
            Ok((manifest, carried))
        }
        Err(error) => {
            dir.give_up()?;
            Err(error)
        }
    }
}

fn is_task(key: &[u8]) -> bool {
    let key = key.try_into().ok().and_then(RecordKey::from_bytes);
    matches!(key, Some(RecordKey::Task(_)))
}

fn item_of(path: &Path, key: &[u8], value: Bytes) -> Result<Item, ArchiveError> {
    let record = key.try_into().ok().and_then(RecordKey::from_bytes);
    match record {
        Some(RecordKey::Task(id)) => Ok(Item::Task { id, value, line: 0 }),
        Some(note) => match codec::decode_note(note, &value) {
            Ok(Some(note)) => Ok(Item::Note(note)),
            Ok(None) => Err(not_a_backup(path, "has a record of no known kind")),
            Err(damaged) => Err(not_a_backup(path, damaged)),
        },
        None => Err(not_a_backup(path, "has a record of no known kind")),
    }
}

fn restore_registry(backup: &Path, file: &FileOf, place: &Path) -> Result<(), ArchiveError> {
    let db = Arc::new(Database::open(
        &place.join("registry"),
        CACHE_BYTES,
        FLUSH_EVERY_MS,
    )?);
    let path = backup.join(&file.name);
    read_file(backup, file, &mut |name, value| {
        let split = name
            .split_first()
            .and_then(|(length, rest)| rest.split_at_checked(usize::from(*length)));
        let (tree, key) = split.ok_or_else(|| not_a_backup(&path, "has an entry of no tree"))?;
        let tree = db
            .open_tree(tree)
            .map_err(|error| db.failed("open", error))?;
        tree.insert(key, &*value)
            .map_err(|error| db.failed("write", error))?;
        Ok(())
    })?;
    Ok(db.sync()?)
}

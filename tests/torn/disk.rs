//! A disk that loses, when its power is cut, what nobody had it sync: a file system in memory, mounted by FUSE.
//!
//! Think of a desk with a locked drawer. Whatever is written lies on the desk; a sync puts a copy into the drawer;
//! when the lights go out, what is on the desk is gone, or a gust has left some sheets of it.
//!
//! ```text
//!   write, truncate          ──▶ cached ── fsync, fdatasync ──▶ durable      of a file
//!   create, rename, unlink   ──▶ cached ── fsync of the directory ──▶ durable      of a directory
//! ```
//!
//! It is as strict as POSIX allows: a file's sync does not save its name, and `sync_file_range` saves nothing. A cut
//! may keep any of the sectors written since the last sync, and the first few of a directory's changes; a rename is
//! one change.
//!
//! It holds no more than a database needs: no links, no times, no rights, no renames from directory to directory.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{
    BackgroundSession, BsdFileFlags, Config, Errno, FileAttr, FileHandle, FileType, Filesystem,
    FopenFlags, Generation, INodeNo, LockOwner, MountOption, OpenFlags, RenameFlags, ReplyAttr,
    ReplyCreate, ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyStatfs, ReplyWrite,
    Request, TimeOrNow, WriteFlags,
};
use parking_lot::Mutex;
use tempfile::TempDir;

use super::support::Random;

const SECTOR: usize = 512;
const ROOT: u64 = INodeNo::ROOT.0;
/// Nothing is remembered by the kernel.
const TTL: Duration = Duration::ZERO;
const NO_HANDLE: FileHandle = FileHandle(0);

/// The disk, mounted until it is dropped.
pub struct LossyDisk {
    platters: Arc<Mutex<Platters>>,
    /// `None` while the power is off.
    session: Option<BackgroundSession>,
    place: TempDir,
}

/// What the kernel speaks to.
struct Driver(Arc<Mutex<Platters>>);

struct Platters {
    inodes: BTreeMap<u64, Inode>,
    next: u64,
}

enum Inode {
    File(File),
    Directory(Directory),
}

#[derive(Default)]
struct File {
    cached: Vec<u8>,
    durable: Vec<u8>,
    /// What was done to it since its last sync, in order.
    unsynced: Vec<FileChange>,
}

enum FileChange {
    Write(usize, Vec<u8>),
    Length(usize),
}

type Names = BTreeMap<OsString, u64>;

#[derive(Default)]
struct Directory {
    cached: Names,
    durable: Names,
    unsynced: Vec<NameChange>,
}

/// Names and what they mean from now on, if anything; all at once.
type NameChange = Vec<(OsString, Option<u64>)>;

impl File {
    fn change(&mut self, change: FileChange) {
        change.apply(&mut self.cached);
        self.unsynced.push(change);
    }

    fn sync(&mut self) {
        for change in self.unsynced.drain(..) {
            change.apply(&mut self.durable);
        }
    }

    fn lose(&mut self, kept: &mut dyn FnMut() -> bool) {
        for change in self.unsynced.drain(..) {
            match change {
                FileChange::Write(at, bytes) => {
                    let mut from = 0;
                    while from < bytes.len() {
                        // Up to the end of the sector that it is in.
                        let to = bytes.len().min(from + SECTOR - (at + from) % SECTOR);
                        if kept() {
                            put(&mut self.durable, at + from, &bytes[from..to]);
                        }
                        from = to;
                    }
                }
                FileChange::Length(length) => {
                    if kept() {
                        self.durable.resize(length, 0);
                    }
                }
            }
        }
        self.cached = self.durable.clone();
    }
}

impl FileChange {
    fn apply(&self, bytes: &mut Vec<u8>) {
        match self {
            Self::Write(at, new) => put(bytes, *at, new),
            Self::Length(length) => bytes.resize(*length, 0),
        }
    }
}

fn put(bytes: &mut Vec<u8>, at: usize, new: &[u8]) {
    bytes.resize(bytes.len().max(at + new.len()), 0);
    bytes[at..at + new.len()].copy_from_slice(new);
}

impl Directory {
    fn change(&mut self, change: NameChange) {
        apply(&change, &mut self.cached);
        self.unsynced.push(change);
    }

    fn sync(&mut self) {
        for change in self.unsynced.drain(..) {
            apply(&change, &mut self.durable);
        }
    }

    fn lose(&mut self, kept: &mut dyn FnMut() -> bool) {
        for change in self.unsynced.drain(..).take_while(|_| kept()) {
            apply(&change, &mut self.durable);
        }
        self.cached = self.durable.clone();
    }
}

fn apply(change: &NameChange, names: &mut Names) {
    for (name, meaning) in change {
        match meaning {
            Some(ino) => names.insert(name.clone(), *ino),
            None => names.remove(name),
        };
    }
}

impl LossyDisk {
    /// An empty one, mounted on a new directory; which not every machine allows.
    pub fn mount() -> io::Result<Self> {
        let inodes = BTreeMap::from([(ROOT, Inode::Directory(Directory::default()))]);
        let platters = Platters {
            inodes,
            next: ROOT + 1,
        };
        let mut disk = Self {
            platters: Arc::new(Mutex::new(platters)),
            session: None,
            place: tempfile::tempdir()?,
        };
        disk.power_on()?;
        Ok(disk)
    }

    pub fn path(&self) -> &Path {
        self.place.path()
    }

    /// Power is cut and comes back. Of what was not synced nothing is left or, with a seed, what chance decides.
    /// Nobody may have a file open: the processes that had are dead.
    pub fn cut_power(&mut self, seed: Option<u64>) -> io::Result<()> {
        self.power_off()?;
        let mut random = seed.map(Random::new);
        self.platters
            .lock()
            .lose(&mut || random.as_mut().is_some_and(|random| random.below(2) == 0));
        self.power_on()
    }

    fn power_on(&mut self) -> io::Result<()> {
        let mut config = Config::default();
        config.mount_options = vec![MountOption::FSName("lossy".to_owned())];
        let driver = Driver(Arc::clone(&self.platters));
        self.session = Some(fuser::spawn_mount(driver, self.place.path(), &config)?);
        Ok(())
    }

    /// Unmounted, so that the kernel knows nothing of it any more.
    fn power_off(&mut self) -> io::Result<()> {
        let Some(session) = self.session.take() else {
            return Ok(());
        };
        match session.umount_and_join() {
            // So its thread may learn that it is over.
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => Ok(()),
            ended => ended,
        }
    }
}

impl Drop for LossyDisk {
    fn drop(&mut self) {
        let _ = self.power_off();
    }
}

impl Platters {
    fn file(&mut self, ino: INodeNo) -> Result<&mut File, Errno> {
        match self.inodes.get_mut(&ino.0) {
            Some(Inode::File(file)) => Ok(file),
            Some(Inode::Directory(_)) => Err(Errno::EISDIR),
            None => Err(Errno::ENOENT),
        }
    }

    fn directory(&mut self, ino: INodeNo) -> Result<&mut Directory, Errno> {
        match self.inodes.get_mut(&ino.0) {
            Some(Inode::Directory(directory)) => Ok(directory),
            Some(Inode::File(_)) => Err(Errno::ENOTDIR),
            None => Err(Errno::ENOENT),
        }
    }

    fn attributes(&mut self, ino: u64) -> Result<FileAttr, Errno> {
        let (kind, perm, size) = match self.inodes.get(&ino).ok_or(Errno::ENOENT)? {
            Inode::File(file) => (FileType::RegularFile, 0o600, file.cached.len() as u64),
            Inode::Directory(_) => (FileType::Directory, 0o700, 0),
        };
        let never = UNIX_EPOCH;
        Ok(FileAttr {
            ino: INodeNo(ino),
            size,
            blocks: size.div_ceil(512),
            atime: never,
            mtime: never,
            ctime: never,
            crtime: never,
            kind,
            perm,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        })
    }

    fn create(&mut self, parent: INodeNo, name: &OsStr, inode: Inode) -> Result<FileAttr, Errno> {
        let ino = self.next;
        let directory = self.directory(parent)?;
        if directory.cached.contains_key(name) {
            return Err(Errno::EEXIST);
        }
        directory.change(vec![(name.to_owned(), Some(ino))]);
        self.next += 1;
        self.inodes.insert(ino, inode);
        self.attributes(ino)
    }

    fn find(&mut self, parent: INodeNo, name: &OsStr) -> Result<u64, Errno> {
        self.directory(parent)?
            .cached
            .get(name)
            .copied()
            .ok_or(Errno::ENOENT)
    }

    fn remove(&mut self, parent: INodeNo, name: &OsStr) -> Result<(), Errno> {
        self.find(parent, name)?;
        self.directory(parent)?
            .change(vec![(name.to_owned(), None)]);
        Ok(())
    }

    fn rename(
        &mut self,
        parent: INodeNo,
        name: &OsStr,
        into: INodeNo,
        new: &OsStr,
    ) -> Result<(), Errno> {
        if parent != into {
            return Err(Errno::EXDEV);
        }
        let ino = self.find(parent, name)?;
        self.directory(parent)?
            .change(vec![(name.to_owned(), None), (new.to_owned(), Some(ino))]);
        Ok(())
    }

    fn lose(&mut self, kept: &mut dyn FnMut() -> bool) {
        for inode in self.inodes.values_mut() {
            match inode {
                Inode::File(file) => file.lose(kept),
                Inode::Directory(directory) => directory.lose(kept),
            }
        }
        // Nobody has a file open any more that has no name.
        let mut named = vec![ROOT];
        let mut next = 0;
        while let Some(ino) = named.get(next) {
            if let Some(Inode::Directory(directory)) = self.inodes.get(ino) {
                named.extend(directory.cached.values());
            }
            next += 1;
        }
        self.inodes.retain(|ino, _| named.contains(ino));
    }
}

/// Answers with what was asked for, or the error.
macro_rules! answer {
    ($reply:ident, $result:expr, $value:pat => $said:expr) => {
        match $result {
            Ok($value) => $said,
            Err(error) => $reply.error(error),
        }
    };
}

impl Filesystem for Driver {
    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let mut disk = self.0.lock();
        let found = disk.find(parent, name).and_then(|ino| disk.attributes(ino));
        answer!(reply, found, attr => reply.entry(&TTL, &attr, Generation(0)));
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        answer!(reply, self.0.lock().attributes(ino.0), attr => reply.attr(&TTL, &attr));
    }

    fn setattr(
        &self,
        _: &Request,
        ino: INodeNo,
        _mode: Option<u32>,
        _uid: Option<u32>,
        _gid: Option<u32>,
        size: Option<u64>,
        _atime: Option<TimeOrNow>,
        _mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let mut disk = self.0.lock();
        let resized = match size {
            Some(size) => disk
                .file(ino)
                .map(|file| file.change(FileChange::Length(size as usize))),
            None => Ok(()),
        };
        answer!(reply, resized.and_then(|()| disk.attributes(ino.0)), attr => reply.attr(&TTL, &attr));
    }

    fn mkdir(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        _mode: u32,
        _umask: u32,
        reply: ReplyEntry,
    ) {
        let made = self
            .0
            .lock()
            .create(parent, name, Inode::Directory(Directory::default()));
        answer!(reply, made, attr => reply.entry(&TTL, &attr, Generation(0)));
    }

    fn create(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        _mode: u32,
        _umask: u32,
        _flags: i32,
        reply: ReplyCreate,
    ) {
        let made = self
            .0
            .lock()
            .create(parent, name, Inode::File(File::default()));
        let flags = FopenFlags::FOPEN_DIRECT_IO;
        answer!(reply, made, attr => reply.created(&TTL, &attr, Generation(0), NO_HANDLE, flags));
    }

    fn open(&self, _: &Request, ino: INodeNo, _: OpenFlags, reply: fuser::ReplyOpen) {
        let there = self.0.lock().file(ino).map(drop);
        answer!(reply, there, () => reply.opened(NO_HANDLE, FopenFlags::FOPEN_DIRECT_IO));
    }

    fn read(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let mut disk = self.0.lock();
        answer!(reply, disk.file(ino), file => {
            let from = file.cached.len().min(offset as usize);
            let to = file.cached.len().min(from + size as usize);
            reply.data(&file.cached[from..to]);
        });
    }

    fn write(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let change = FileChange::Write(offset as usize, data.to_vec());
        let written = self.0.lock().file(ino).map(|file| file.change(change));
        answer!(reply, written, () => reply.written(data.len() as u32));
    }

    /// Closing saves nothing.
    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }

    fn fsync(&self, _: &Request, ino: INodeNo, _: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        answer!(reply, self.0.lock().file(ino).map(File::sync), () => reply.ok());
    }

    fn fsyncdir(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        _datasync: bool,
        reply: ReplyEmpty,
    ) {
        answer!(reply, self.0.lock().directory(ino).map(Directory::sync), () => reply.ok());
    }

    fn readdir(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let mut disk = self.0.lock();
        let names = match disk.directory(ino) {
            Ok(directory) => directory.cached.clone(),
            Err(error) => return reply.error(error),
        };
        for (at, (name, ino)) in (1..).zip(names).skip(offset as usize) {
            let kind = disk
                .attributes(ino)
                .map_or(FileType::RegularFile, |attr| attr.kind);
            if reply.add(INodeNo(ino), at, kind, name) {
                break;
            }
        }
        reply.ok();
    }

    fn rename(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        into: INodeNo,
        new: &OsStr,
        _: RenameFlags,
        reply: ReplyEmpty,
    ) {
        answer!(reply, self.0.lock().rename(parent, name, into, new), () => reply.ok());
    }

    fn unlink(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        answer!(reply, self.0.lock().remove(parent, name), () => reply.ok());
    }

    fn rmdir(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        answer!(reply, self.0.lock().remove(parent, name), () => reply.ok());
    }

    /// There is room.
    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        let (blocks, free, files) = (1 << 24, 1 << 23, 1 << 20);
        reply.statfs(blocks, free, free, files, files, 4096, 255, 4096);
    }
}

//! Copies of the journals in a second directory: what is committed is there a moment later.
//!
//! ```text
//!  committer ──append, sync──▶ <data>/shards/NNN/journal/…0004.segment
//!                                     │ read behind it, several times a second, on a thread of its own
//!                                     ▼
//!                              <copies>/<lineage>/NNN/…0004.segment       + a backup = all but the last moment
//! ```
//!
//! The committer knows nothing of it: whole frames are read from the files as they grow and written to the same place of
//! a file of the same name, synced once a round. So a copy is a journal that [`Journal::open`] reads, with the seals that
//! tell a zombie's frames from the owner's. The bookmark is not copied: it would witness what is not there yet.
//!
//! A segment that was folded and dropped before it was copied leaves a *gap*: with a slow or absent second directory the
//! service goes on, and what is copied is of no use until the next backup, which begins behind the gap.
//!
//! A backup notes, before anything is read for it, up to which sequence each journal was copied. To read the journal from
//! there on once more does no harm, for a change is a whole record: see `archive::since`.
//!
//! **Lineage.** Journals begin anew after a restore, a reshard or an import, with the same names and numbers. A file of a
//! random name among the shards, which goes with them, keeps these apart.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use uuid::Uuid;

use super::journal::{Followed, Journal, JournalDirectory, SegmentId};
use super::path_of;
use crate::ids::ShardId;
use crate::store::{Batch, StoreError, directory};

/// So much of a segment is read at a time, unless a frame is longer.
const BLOCK_BYTES: usize = 256 * 1024;
/// In the first shard's directory: the name that its journals are copied under.
const LINEAGE: &str = "COPIES";

/// The journals of a data directory, and where they are copied to.
#[derive(Debug)]
pub struct Copies {
    lineage: String,
    shards: Vec<ShardCopy>,
}

impl Copies {
    /// Goes on with the copies under `to` of the data directory's journals, or begins them.
    ///
    /// # Errors
    /// Of either file system.
    pub fn begin(data: &Path, shards: u16, to: &Path) -> io::Result<Self> {
        let lineage = lineage_of(&path_of(data, ShardId(0)))?;
        let shards = (0..shards).map(|shard| {
            let to = place_of(to, &lineage, shard);
            directory::make(&to)?;
            to.ancestors().take(3).try_for_each(directory::sync)?;
            ShardCopy::resume(path_of(data, ShardId(shard)).join("journal"), to)
        });
        let shards = shards.collect::<io::Result<_>>()?;
        Ok(Self { lineage, shards })
    }

    /// Copies what has come since the last round. On return all is durable there that was committed when it was called.
    ///
    /// # Errors
    /// The first of either file system; all shards have been tried. What a failed sync has left behind looks written and
    /// may not be: begin anew, which copies the segment it happened in once more.
    pub fn round(&mut self) -> io::Result<()> {
        let mut done = Ok(());
        for shard in &mut self.shards {
            done = done.and(shard.round());
        }
        done
    }

    /// The name of what is copied.
    pub fn lineage(&self) -> &str {
        &self.lineage
    }

    /// Of each shard a sequence that is copied, and that nothing can change any more.
    pub fn positions(&self) -> Vec<u64> {
        self.shards.iter().map(ShardCopy::position).collect()
    }

    /// Of each shard the sequence that is copied, though its last may be one that nobody was told of.
    pub fn sequences(&self) -> Vec<u64> {
        let at = self.shards.iter().map(|shard| shard.at);
        at.map(|at| at.map_or(0, |at| at.sequence)).collect()
    }

    /// How often something was dropped that had not been copied.
    pub fn gaps(&self) -> u64 {
        self.shards.iter().map(|shard| shard.gaps).sum()
    }

    /// Removes the copies of segments that hold nothing after these sequences.
    ///
    /// # Errors
    /// Of the second directory.
    pub fn drop_through(&self, positions: &[u64]) -> io::Result<()> {
        let pairs = self.shards.iter().zip(positions);
        pairs
            .into_iter()
            .try_for_each(|(shard, position)| shard.drop_through(*position))
    }
}

/// Where the copies of a shard are.
pub fn place_of(copies: &Path, lineage: &str, shard: u16) -> PathBuf {
    copies.join(lineage).join(format!("{shard:03}"))
}

/// The name of the journals that there are, made up if they have none yet.
fn lineage_of(shard: &Path) -> io::Result<String> {
    let path = shard.join(LINEAGE);
    match fs::read_to_string(&path) {
        Ok(name) if Uuid::try_parse(&name).is_ok() => return Ok(name),
        Ok(_) => {}
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    let name = Uuid::new_v4().simple().to_string();
    directory::write_whole(shard, LINEAGE, &name)?;
    Ok(name)
}

#[derive(Debug)]
struct ShardCopy {
    from: PathBuf,
    to: PathBuf,
    /// The segment that was read last.
    at: Option<Followed>,
    /// It and its copy, while they are open.
    open: Option<(File, File)>,
    gaps: u64,
}

impl ShardCopy {
    fn resume(from: PathBuf, to: PathBuf) -> io::Result<Self> {
        let last = SegmentId::all_in(&to)?.pop();
        let at = match last {
            Some(id) => {
                let bytes = fs::read(to.join(id.to_string()))?;
                Followed::begin(&bytes, id).map(|mut at| {
                    at.go_on(&bytes[Followed::OPENING_BYTES..]);
                    at
                })
            }
            None => None,
        };
        Ok(Self {
            from,
            to,
            at,
            open: None,
            gaps: 0,
        })
    }

    /// The last frame says that the one before it was durable when it was written; of itself it can't be known.
    fn position(&self) -> u64 {
        self.at
            .map_or(0, |at| at.after.max(at.sequence.saturating_sub(1)))
    }

    fn round(&mut self) -> io::Result<()> {
        if let (Some(at), Some((_, copy))) = (&self.at, &self.open) {
            // A file that was removed takes all that is written to it.
            let named = fs::metadata(self.to.join(at.id.to_string()))?;
            if named.ino() != copy.metadata()?.ino() {
                return Err(ErrorKind::NotFound.into());
            }
        }
        let mut ids = SegmentId::all_in(&self.from)?;
        // A segment is complete before the next one has a name, so each is read to its end after the names; the one that
        // is open also when it has lost its own since.
        self.catch_up()?;
        let is_open = self.open.is_some();
        ids.retain(|id| {
            self.at
                .is_none_or(|at| *id > at.id || *id == at.id && !is_open)
        });
        for id in ids {
            if self.turn_to(id)? {
                self.catch_up()?;
            }
        }
        Ok(())
    }

    /// Begins with the copy of a segment; whether it can be: it may be gone again, or not begun.
    fn turn_to(&mut self, id: SegmentId) -> io::Result<bool> {
        let name = id.to_string();
        let source = match File::open(self.from.join(&name)) {
            Ok(source) => source,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(error),
        };
        let opening = read_at(&source, 0, Followed::OPENING_BYTES)?;
        let Some(next) = Followed::begin(&opening, id) else {
            return Ok(false);
        };
        let copy = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(self.to.join(&name))?;
        // One that was begun, lost in a power cut, and begun anew under the same name.
        if read_at(&copy, 0, Followed::OPENING_BYTES)? != opening {
            copy.set_len(0)?;
        }
        copy.write_all_at(&opening, 0)?;
        copy.sync_all()?;
        directory::sync(&self.to)?;
        if let Some(before) = self.at.filter(|before| before.id != id) {
            let follows = next
                .previous
                .is_some_and(|(id, seal)| id == before.id && seal <= before.end);
            if !follows {
                self.gaps += 1;
                tracing::error!(
                    copies = %self.to.display(),
                    after = before.sequence,
                    before = next.after + 1,
                    "the journal was folded before it was copied: its copies are of no use until the next backup"
                );
            }
        }
        self.at = Some(next);
        self.open = Some((source, copy));
        Ok(true)
    }

    /// Copies whole frames until there is none.
    fn catch_up(&mut self) -> io::Result<()> {
        let (Some(at), Some((source, copy))) = (&mut self.at, &self.open) else {
            return Ok(());
        };
        let mut is_behind = false;
        loop {
            let header = read_at(source, at.end, Followed::HEADER_BYTES)?;
            let Some(bytes) = at.next_bytes(&header) else {
                break;
            };
            let block = read_at(source, at.end, bytes.max(BLOCK_BYTES))?;
            let mut next = *at;
            let whole = next.go_on(&block);
            if whole == 0 {
                break;
            }
            copy.write_all_at(&block[..whole], at.end)?;
            (*at, is_behind) = (next, true);
        }
        match is_behind {
            true => copy.sync_data(),
            false => Ok(()),
        }
    }

    fn drop_through(&self, position: u64) -> io::Result<()> {
        let ids = SegmentId::all_in(&self.to)?;
        for pair in ids.windows(2) {
            let next = File::open(self.to.join(pair[1].to_string()))?;
            let opening = read_at(&next, 0, Followed::OPENING_BYTES)?;
            let next = Followed::begin(&opening, pair[1]);
            if next.is_some_and(|next| next.after <= position) {
                fs::remove_file(self.to.join(pair[0].to_string()))?;
            }
        }
        Ok(())
    }
}

/// What stands at a place of a file, as far as it is there.
fn read_at(file: &File, offset: u64, bytes: usize) -> io::Result<Vec<u8>> {
    let mut read = vec![0; bytes];
    let mut filled = 0;
    while filled < bytes {
        match file.read_at(&mut read[filled..], offset + filled as u64) {
            Ok(0) => break,
            Ok(more) => filled += more,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    read.truncate(filled);
    Ok(read)
}

/// Reads one shard's copies of a lineage under `copies`, from behind a sequence on; the last sequence that they have.
///
/// # Errors
/// When some of it is missing or damaged, or of what `visit` refuses.
pub fn replay(
    copies: &Path,
    lineage: &str,
    shard: u16,
    after: u64,
    visit: &mut dyn FnMut(Batch),
) -> Result<u64, StoreError> {
    let place = place_of(copies, lineage, shard);
    if !place.is_dir() {
        return Err(StoreError::Corrupt {
            place: place.display().to_string(),
            why: "there are no copies of this journal".to_owned(),
        });
    }
    let files = Box::new(JournalDirectory::open(&place)?);
    let journal = Journal::open(files, after, &mut |frame| {
        visit(Batch::decode(frame.payload).map_err(|damaged| damaged.to_string())?);
        Ok(())
    })?;
    Ok(journal.last_sequence())
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use crate::ids::ShardEpoch;

    struct Pair {
        home: tempfile::TempDir,
        journal: Journal,
    }

    const JOURNAL: &str = "data/shards/000/journal";

    impl Pair {
        fn journal_path(&self) -> PathBuf {
            self.home.path().join(JOURNAL)
        }

        fn new() -> Self {
            let home = tempfile::tempdir().unwrap();
            let journal = Self::opened(home.path(), 1);
            Self { home, journal }
        }

        fn opened(home: &Path, epoch: u64) -> Journal {
            let files = JournalDirectory::open(&home.join(JOURNAL)).unwrap();
            let mut journal = Journal::open(Box::new(files), 0, &mut |_| Ok(())).unwrap();
            journal.start_epoch(ShardEpoch(epoch)).unwrap();
            journal
        }

        fn begin(&self) -> Copies {
            let (data, to) = (self.home.path().join("data"), self.home.path().join("to"));
            Copies::begin(&data, 1, &to).unwrap()
        }

        fn commit(&mut self, steady: i64) {
            let batch = Batch::new(crate::clock::SteadyMs(steady));
            self.journal.append(&[batch.encode()]).unwrap();
        }

        fn large(&mut self) {
            self.journal.append(&[&[7; 3 << 20]]).unwrap();
        }

        /// The copies' commits after a sequence, by their steady time.
        fn copied(&self, copies: &Copies, after: u64) -> Result<Vec<i64>, StoreError> {
            let mut found = Vec::new();
            let to = self.home.path().join("to");
            let visit = &mut |batch: Batch| found.push(batch.steady().0);
            replay(&to, copies.lineage(), 0, after, visit)?;
            Ok(found)
        }
    }

    #[test]
    fn a_round_copies_what_was_committed_before_it_and_the_next_one_goes_on() {
        let mut pair = Pair::new();
        let mut copies = pair.begin();
        for n in 1..=3 {
            pair.commit(n);
            copies.round().unwrap();
            assert_eq!(pair.copied(&copies, 0).unwrap(), Vec::from_iter(1..=n));
        }
        assert_eq!(copies.positions(), [2]);
        // Another process, and another epoch.
        pair.commit(4);
        pair.journal = Pair::opened(pair.home.path(), 2);
        pair.commit(5);
        let mut copies = pair.begin();
        copies.round().unwrap();
        assert_eq!(pair.copied(&copies, 2).unwrap(), [3, 4, 5]);
        assert_eq!(copies.gaps(), 0);
    }

    #[test]
    fn an_owner_that_was_sealed_off_is_not_in_the_copies() {
        let mut pair = Pair::new();
        pair.commit(1);
        let mut copies = pair.begin();
        copies.round().unwrap();
        let mut zombie = std::mem::replace(&mut pair.journal, Pair::opened(pair.home.path(), 2));
        let late = Batch::new(crate::clock::SteadyMs(99));
        zombie.append(&[late.encode()]).unwrap();
        copies.round().unwrap();
        pair.commit(2);
        copies.round().unwrap();
        assert_eq!(pair.copied(&copies, 0).unwrap(), [1, 2]);
        assert_eq!(copies.gaps(), 0);
    }

    #[test]
    fn what_was_dropped_before_it_was_copied_is_a_gap_that_is_noticed() {
        let mut pair = Pair::new();
        let mut copies = pair.begin();
        pair.commit(1);
        copies.round().unwrap();
        // Each takes a segment of its own.
        (0..3).for_each(|_| pair.large());
        let covered = pair.journal.last_sequence();
        pair.commit(5);
        pair.journal.drop_through(covered).unwrap();
        copies.round().unwrap();
        assert_eq!(copies.gaps(), 1);
        assert!(pair.copied(&copies, 0).is_err());
        pair.commit(6);
        copies.round().unwrap();
        let [position] = copies.positions()[..] else {
            panic!("one shard")
        };
        assert_eq!(pair.copied(&copies, position).unwrap(), [6]);
    }

    #[test]
    fn a_segment_that_was_dropped_while_it_is_read_is_copied_to_its_end() {
        let mut pair = Pair::new();
        let mut copies = pair.begin();
        pair.commit(1);
        copies.round().unwrap();
        pair.commit(2);
        let covered = pair.journal.last_sequence();
        // A segment of its own, for another owner.
        pair.journal = Pair::opened(pair.home.path(), 2);
        pair.commit(3);
        pair.journal.drop_through(covered).unwrap();
        let left = SegmentId::all_in(&pair.journal_path()).unwrap();
        assert_eq!(left.len(), 1);
        copies.round().unwrap();
        assert_eq!(copies.gaps(), 0);
        assert_eq!(pair.copied(&copies, 0).unwrap(), [1, 2, 3]);
        assert_eq!((copies.positions(), copies.sequences()), (vec![2], vec![3]));
    }

    #[test]
    fn the_directories_of_the_copies_are_for_their_owner_alone() {
        use std::os::unix::fs::PermissionsExt as _;
        let pair = Pair::new();
        let copies = pair.begin();
        let place = pair
            .home
            .path()
            .join("to")
            .join(copies.lineage())
            .join("000");
        for made in place.ancestors().take(3) {
            let mode = fs::metadata(made).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o700, "{}", made.display());
        }
    }

    #[test]
    fn a_second_directory_that_comes_back_is_caught_up_with() {
        let mut pair = Pair::new();
        let mut copies = pair.begin();
        pair.commit(1);
        copies.round().unwrap();
        let (place, aside) = (
            pair.home
                .path()
                .join("to")
                .join(copies.lineage())
                .join("000"),
            pair.home.path().join("aside"),
        );
        fs::rename(&place, &aside).unwrap();
        pair.commit(2);
        assert!(copies.round().is_err());
        fs::rename(&aside, &place).unwrap();
        let mut copies = pair.begin();
        copies.round().unwrap();
        assert_eq!(copies.gaps(), 0);
        assert_eq!(pair.copied(&copies, 0).unwrap(), [1, 2]);
    }

    #[test]
    fn copies_that_a_backup_has_no_use_for_are_removed_and_the_rest_is_whole() {
        let mut pair = Pair::new();
        let mut copies = pair.begin();
        for n in 1..=9 {
            pair.commit(n);
            pair.journal = Pair::opened(pair.home.path(), n as u64 + 1);
            copies.round().unwrap();
        }
        copies.drop_through(&[5]).unwrap();
        assert_eq!(pair.copied(&copies, 5).unwrap(), [6, 7, 8, 9]);
        let place = pair.home.path().join("to").join(copies.lineage());
        let left = SegmentId::all_in(&place.join("000")).unwrap();
        assert_eq!(left.len(), 5);
    }

    #[test]
    fn journals_that_begin_anew_are_copied_beside_the_old_ones() {
        let pair = Pair::new();
        let before = pair.begin().lineage().to_owned();
        assert_eq!(pair.begin().lineage(), before);
        fs::remove_dir_all(pair.home.path().join("data")).unwrap();
        drop(Pair::opened(pair.home.path(), 1));
        assert_ne!(pair.begin().lineage(), before);
    }
}

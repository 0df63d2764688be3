#![expect(
    clippy::unwrap_used,
    reason = "a test that cannot go on should say where"
)]

mod disk;
mod salvage;

use proptest::prelude::*;

use self::disk::Disk;
use super::*;

const SECTOR: usize = 64;
/// An opening and fifteen frames of 64 bytes.
const SMALL_SEGMENT: u64 = 16 * 64;
const HEADER: u64 = HEADER_BYTES as u64;

type Read = (Journal, Vec<(u64, Vec<u8>)>);

fn open(disk: &Disk, after: u64) -> Result<Read, JournalError> {
    let mut frames = Vec::new();
    let mut visit = |frame: Frame| {
        frames.push((frame.sequence, frame.payload));
        Ok(())
    };
    let (files, mut visit) = (Box::new(disk.clone()), whole(&mut visit));
    let journal = Journal::open_sized(files, SMALL_SEGMENT, after, &mut visit)?;
    drop(visit);
    Ok((journal, frames))
}

fn sequences(disk: &Disk, after: u64) -> Vec<u64> {
    let (_, frames) = open(disk, after).unwrap();
    frames.into_iter().map(|(sequence, _)| sequence).collect()
}

/// A disk with `frames` frames of 16 bytes, all of epoch 1; each takes 64 bytes.
fn written(frames: u64) -> (Disk, Journal) {
    let disk = Disk::default();
    let (mut journal, _) = open(&disk, 0).unwrap();
    journal.start_epoch(ShardEpoch(1)).unwrap();
    for n in 1..=frames {
        assert_eq!(journal.append(&[&[0xA5; 8], &n.to_le_bytes()]).unwrap(), n);
    }
    (disk, journal)
}

fn damage(result: Result<Read, JournalError>) -> (PathBuf, u64) {
    match result.err() {
        Some(JournalError::Corrupt { file, offset, .. }) => (file, offset),
        other => panic!("expected damage, got {other:?}"),
    }
}

#[test]
fn what_was_appended_is_replayed_from_real_files() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("000").join("journal");
    let payloads: Vec<Vec<u8>> = [0, 1, 7, 8, 9, 5_000, 3 << 20, 2 << 20, 100]
        .iter()
        .enumerate()
        .map(|(n, bytes)| vec![n as u8; *bytes])
        .collect();
    let replay = |expected: &[Vec<u8>], epoch: u64| {
        let files = JournalDirectory::open(&path).unwrap();
        let mut seen = Vec::new();
        let mut journal = Journal::open(Box::new(files), 0, &mut |frame| {
            assert_eq!(frame.sequence, seen.len() as u64 + 1);
            seen.push(frame.payload);
            Ok(())
        })
        .unwrap();
        assert_eq!(seen, expected);
        journal.start_epoch(ShardEpoch(epoch)).unwrap();
        journal
    };
    let mut journal = replay(&[], 1);
    for payload in &payloads[..7] {
        journal.append(&[payload]).unwrap();
    }
    drop(journal);
    let mut journal = replay(&payloads[..7], 2);
    for payload in &payloads[7..] {
        journal.append(&[&payload[..50], &payload[50..]]).unwrap();
    }
    assert_eq!(journal.last_sequence(), 9);
    let before = journal.bytes();
    journal.drop_through(8).unwrap();
    assert!(before > 5 << 20 && journal.bytes() < 1 << 20);
    let files = JournalDirectory::open(&path).unwrap();
    let mut left = Vec::new();
    Journal::open(Box::new(files), 8, &mut |frame| {
        left.push(frame);
        Ok(())
    })
    .unwrap();
    let last = Frame {
        epoch: ShardEpoch(2),
        sequence: 9,
        payload: payloads[8].clone(),
    };
    assert_eq!(left, [last]);
}

#[test]
fn a_frame_torn_at_any_length_is_cut_and_all_before_it_stay() {
    let (disk, journal) = written(5);
    disk.lose_bookmark();
    let end = usize::try_from(journal.end()).unwrap();
    for length in end - 64..end {
        for refilled in [false, true] {
            let torn = disk.copy();
            torn.tamper(1, |bytes| {
                bytes.truncate(length);
                bytes.resize(if refilled { 1024 } else { length }, 0);
            });
            // The last byte is a zero that refilling restores.
            let (mut journal, frames) = open(&torn, 0).unwrap();
            let whole = torn.bytes_of(1).get(..end) == disk.bytes_of(1).get(..end);
            assert_eq!(frames.len(), if whole { 5 } else { 4 }, "{length}");
            journal.start_epoch(ShardEpoch(2)).unwrap();
            let next = journal.append(&[b"next"]).unwrap();
            assert_eq!(next, frames.len() as u64 + 1);
            assert_eq!(sequences(&torn, 0), (1..=next).collect::<Vec<_>>());
        }
    }
}

#[test]
fn a_segment_torn_at_any_length_of_its_beginning_was_never_begun() {
    let (disk, mut journal) = written(3);
    journal.start_epoch(ShardEpoch(2)).unwrap();
    journal.append(&[b"first of its segment"]).unwrap();
    disk.lose_bookmark();
    for length in 0..OPENING_BYTES as usize {
        for frame_is_there in [false, true] {
            let torn = disk.copy();
            torn.tamper(2, |bytes| {
                bytes[length..OPENING_BYTES as usize].fill(0);
                bytes.truncate(if frame_is_there {
                    SMALL_SEGMENT as usize
                } else {
                    length
                });
            });
            if torn.bytes_of(2) == disk.bytes_of(2) {
                continue; // the opening ends in zeros
            }
            let (mut journal, frames) = open(&torn, 0).unwrap();
            assert_eq!(
                (frames.len(), journal.last_epoch()),
                (3, Some(ShardEpoch(1)))
            );
            journal.start_epoch(ShardEpoch(2)).unwrap();
            assert_eq!(journal.append(&[b"again"]).unwrap(), 4);
            assert_eq!(sequences(&torn, 0), [1, 2, 3, 4]);
            assert_eq!(torn.ids(), [1, 2, 3]);
        }
    }
}

#[test]
fn a_new_owner_that_dies_at_any_sync_leaves_a_journal_that_opens() {
    for (calls, seed) in (0..5).flat_map(|calls| (1..50).map(move |seed| (calls, seed << 20))) {
        let (disk, mut journal) = written(15);
        disk.fail_sync_after(1, false);
        let failure = journal.append(&[b"in a segment whose name is not durable"]);
        assert!(failure.is_err() && disk.ids() == [1, 2]);
        let (mut next, frames) = open(&disk, 0).unwrap();
        assert_eq!(frames.len(), 16);
        disk.fail_sync_after(calls, false);
        let started = next.start_epoch(ShardEpoch(2));
        disk.cut_power(seed);
        let left = sequences(&disk, 0).len();
        assert!(left == 16 || left == 15 && started.is_err());
    }
}

#[test]
fn a_flipped_bit_in_a_durable_frame_is_an_error_that_names_file_and_offset() {
    let (disk, journal) = written(5);
    let file = disk.path(SegmentId(1));
    for position in 0..journal.end() - 64 {
        let rotten = disk.copy();
        rotten.tamper(1, |bytes| bytes[position as usize] ^= 0x10);
        let (named, offset) = damage(open(&rotten, 0));
        assert_eq!(named, file);
        // A bad version of the opening is named by its own place.
        let expected = if position / 64 == 0 {
            [0, 8]
        } else {
            [position / 64 * 64; 2]
        };
        assert!(expected.contains(&offset), "{position}: {offset}");
    }
}

#[test]
fn a_last_frame_that_is_rotten_zeroed_or_cut_off_is_an_error_and_so_is_nothing_else() {
    let (disk, journal) = written(5);
    let (last, end) = (journal.end() - 64, journal.end());
    let named = (disk.path(SegmentId(1)), last);
    for position in last..end {
        let rotten = disk.copy();
        rotten.tamper(1, |bytes| bytes[position as usize] ^= 0x10);
        assert_eq!(damage(open(&rotten, 0)), named);
    }
    let zeroed = disk.copy();
    zeroed.tamper(1, |bytes| bytes[last as usize..].fill(0));
    assert_eq!(damage(open(&zeroed, 0)), named);
    for length in last..end {
        let cut = disk.copy();
        cut.tamper(1, |bytes| bytes.truncate(length as usize));
        assert_eq!(damage(open(&cut, 0)), named, "{length}");
    }
    disk.tamper(1, |bytes| bytes.truncate(end as usize));
    assert_eq!(sequences(&disk, 0), [1, 2, 3, 4, 5]);
}

#[test]
fn a_bookmark_that_is_damaged_or_old_says_less_and_nothing_wrong() {
    let (disk, mut journal) = written(4);
    let mut old = Vec::new();
    disk.tamper_bookmark(|bytes| old = bytes.clone());
    journal.append(&[&[1; 16]]).unwrap();
    for position in 0..HEADER_BYTES {
        let bad = disk.copy();
        bad.tamper_bookmark(|bytes| bytes[position] ^= 0x10);
        assert_eq!(sequences(&bad, 0), [1, 2, 3, 4, 5]);
        bad.tamper_bookmark(|bytes| bytes.truncate(position));
        assert_eq!(sequences(&bad, 0), [1, 2, 3, 4, 5]);
    }
    disk.tamper_bookmark(|bytes| *bytes = old);
    assert_eq!(sequences(&disk, 0), [1, 2, 3, 4, 5]);
    let last = journal.end() as usize - 64;
    disk.tamper(1, |bytes| bytes[last..].fill(0));
    assert_eq!(sequences(&disk, 0), [1, 2, 3, 4]);
    disk.tamper(1, |bytes| bytes[last - 64..].fill(0));
    assert_eq!(damage(open(&disk, 0)).1, last as u64 - 64);
}

#[test]
fn what_a_bookmark_covers_is_not_written_again() {
    for is_covered in [true, false] {
        let (disk, _) = written(3);
        if !is_covered {
            disk.lose_bookmark();
        }
        let (mut next, _) = open(&disk, 0).unwrap();
        // The opening of its own segment takes two.
        disk.fail_sync_after(2, false);
        assert_eq!(next.start_epoch(ShardEpoch(2)).is_ok(), is_covered);
    }
}

#[test]
fn a_bookmark_of_a_zombie_covers_nothing_of_its_successor() {
    let (disk, mut zombie) = written(3);
    let (mut owner, _) = open(&disk, 0).unwrap();
    owner.start_epoch(ShardEpoch(2)).unwrap();
    for _ in 0..3 {
        zombie.append(&[b"too late"]).unwrap();
    }
    let (mut next, frames) = open(&disk, 0).unwrap();
    assert_eq!(frames.len(), 3);
    next.start_epoch(ShardEpoch(3)).unwrap();
}

#[test]
fn a_bad_last_frame_without_a_bookmark_is_cut_unless_a_checkpoint_knows_better() {
    let (disk, journal) = written(5);
    disk.lose_bookmark();
    let last = journal.end() - 64;
    for position in last..last + 64 {
        let rotten = disk.copy();
        rotten.tamper(1, |bytes| bytes[position as usize] ^= 0x10);
        assert_eq!(sequences(&rotten, 0), [1, 2, 3, 4]);
        assert_eq!(damage(open(&rotten, 5)), (disk.path(SegmentId(1)), last));
    }
}

#[test]
fn in_a_journal_from_before_bookmarks_the_footnote_is_the_witness() {
    let (disk, journal) = written(5);
    let last = journal.end() - 64;
    disk.footnote(&journal, 0);
    assert_eq!(sequences(&disk, 0), [1, 2, 3, 4, 5]);
    for position in last..last + 64 + FOOTNOTE_BYTES {
        let rotten = disk.copy();
        rotten.tamper(1, |bytes| bytes[position as usize] ^= 0x10);
        match position < last + 64 {
            true => assert_eq!(damage(open(&rotten, 0)), (disk.path(SegmentId(1)), last)),
            false => assert_eq!(sequences(&rotten, 0), [1, 2, 3, 4, 5]),
        }
    }
    let (disk, journal) = written(5);
    disk.footnote(&journal, 2);
    assert_eq!(damage(open(&disk, 0)), (disk.path(SegmentId(2)), 0));
}

#[test]
fn a_last_segment_that_is_lost_is_missed() {
    for is_new_owner in [false, true] {
        let (disk, mut journal) = written(12);
        match is_new_owner {
            true => journal.start_epoch(ShardEpoch(2)).unwrap(),
            false => assert_eq!(journal.append(&[&[0; 300]]).unwrap(), 13),
        }
        assert_eq!(disk.ids(), [1, 2]);
        let blank = disk.copy();
        blank.tamper(2, |bytes| bytes.fill(0));
        assert_eq!(damage(open(&blank, 0)), (disk.path(SegmentId(2)), 0));
        disk.remove(SegmentId(2)).unwrap();
        assert_eq!(damage(open(&disk, 0)), (disk.path(SegmentId(2)), 0));
        disk.remove(SegmentId(1)).unwrap();
        assert_eq!(damage(open(&disk, 0)), (disk.path(SegmentId(2)), 0));
    }
}

#[test]
fn a_sealed_segment_may_not_lose_its_last_frame() {
    let (disk, mut journal) = written(5);
    let last = journal.end() - 64;
    journal.start_epoch(ShardEpoch(2)).unwrap();
    disk.tamper(1, |bytes| bytes.truncate(last as usize));
    assert_eq!(damage(open(&disk, 0)), (disk.path(SegmentId(1)), last));
}

#[test]
fn a_cut_is_told_once_and_a_clean_end_not_at_all() {
    let (disk, journal) = written(2);
    let (clean, _) = open(&disk, 0).unwrap();
    assert_eq!(clean.torn_at(), None);
    disk.lose_bookmark();
    let last = journal.end() - 64;
    disk.tamper(1, |bytes| bytes[last as usize + 50] ^= 1);
    let (mut next, _) = open(&disk, 0).unwrap();
    assert_eq!(next.torn_at(), Some((disk.path(SegmentId(1)), last)));
    next.start_epoch(ShardEpoch(2)).unwrap();
    let (sealed, _) = open(&disk, 0).unwrap();
    assert_eq!(sealed.torn_at(), None);
}

#[test]
fn any_failing_write_or_sync_poisons_for_good() {
    for (calls, is_write) in [
        (0, true),
        (3, true),
        (20, true),
        (0, false),
        (3, false),
        (20, false),
    ] {
        let (disk, mut journal) = written(2);
        if is_write {
            disk.fail_write_after(calls);
        } else {
            disk.fail_sync_after(calls, true);
        }
        let mut acknowledged = 2;
        let failure = loop {
            match journal.append(&[&[7; 40]]) {
                Ok(sequence) => acknowledged = sequence,
                Err(error) => break error,
            }
        };
        assert!(matches!(failure, JournalError::Io { .. }), "{failure:?}");
        assert!(matches!(
            journal.append(&[b"more"]),
            Err(JournalError::Poisoned)
        ));
        assert!(matches!(
            journal.start_epoch(ShardEpoch(9)),
            Err(JournalError::Poisoned)
        ));
        assert!(matches!(
            journal.drop_through(1),
            Err(JournalError::Poisoned)
        ));
        disk.cut_power(0x5EED);
        let left = sequences(&disk, 0).len() as u64;
        assert!((acknowledged..=acknowledged + 1).contains(&left));
    }
}

#[test]
fn a_frame_left_in_the_cache_by_a_failed_sync_is_written_again_before_it_counts() {
    let (disk, mut journal) = written(3);
    disk.fail_sync_after(0, true);
    assert!(journal.append(&[b"only in the cache"]).is_err());
    let (mut next, frames) = open(&disk, 0).unwrap();
    assert_eq!(frames.len(), 4);
    next.start_epoch(ShardEpoch(2)).unwrap();
    disk.cut_power(0x5EED);
    assert_eq!(sequences(&disk, 0), [1, 2, 3, 4]);
}

#[test]
fn dropping_keeps_what_is_needed_across_a_reopen() {
    let (disk, mut journal) = written(60);
    let segments = disk.ids().len();
    assert_eq!(segments, 4);
    journal.drop_through(14).unwrap();
    assert_eq!(
        disk.ids(),
        [1, 2, 3, 4],
        "frame 15 stands in the first segment"
    );
    journal.drop_through(40).unwrap();
    assert_eq!(disk.ids(), [3, 4]);
    assert_eq!(sequences(&disk, 40), (41..=60).collect::<Vec<_>>());
    journal.drop_through(60).unwrap();
    assert_eq!(disk.ids(), [4], "the last one carries the numbers on");
    let (mut journal, frames) = open(&disk, 60).unwrap();
    assert_eq!((frames.len(), journal.last_sequence()), (0, 60));
    journal.start_epoch(ShardEpoch(2)).unwrap();
    assert_eq!(journal.append(&[b"on"]).unwrap(), 61);
}

#[test]
fn removals_that_a_power_cut_undid_are_made_again() {
    let (disk, _) = written(60);
    let with_a_gap = disk.copy();
    with_a_gap.remove(SegmentId(2)).unwrap();
    let (mut journal, frames) = open(&with_a_gap, 50).unwrap();
    assert_eq!((frames[0].0, frames.len()), (51, 10));
    assert_eq!(with_a_gap.ids(), [1, 3, 4], "opening changes nothing");
    journal.start_epoch(ShardEpoch(2)).unwrap();
    assert_eq!(with_a_gap.ids(), [4, 5]);
}

#[test]
fn nothing_is_removed_for_the_sake_of_an_opening_that_may_be_lost() {
    for seed in 1..50 {
        let (disk, mut journal) = written(15);
        disk.fail_sync_after(0, false);
        assert!(journal.append(&[b"in a segment of its own"]).is_err());
        let (mut next, _) = open(&disk, 15).unwrap();
        disk.fail_sync_after(0, false);
        assert!(next.start_epoch(ShardEpoch(2)).is_err());
        disk.cut_power(seed << 20);
        let (last, _) = open(&disk, 15).unwrap();
        assert!(last.last_sequence() >= 15);
    }
}

#[test]
fn a_missing_segment_or_journal_is_an_error_when_its_frames_are_needed() {
    let (disk, _) = written(60);
    disk.remove(SegmentId(2)).unwrap();
    let error = open(&disk, 16).err().unwrap();
    assert!(error.to_string().contains("00002.segment"), "{error}");
    assert_eq!(damage(open(&Disk::default(), 1)).1, 0);
}

#[test]
fn frames_of_an_older_epoch_past_the_seal_are_ignored() {
    let (disk, mut zombie) = written(3);
    let (mut owner, _) = open(&disk, 0).unwrap();
    owner.start_epoch(ShardEpoch(2)).unwrap();
    assert_eq!(zombie.append(&[b"too late"]).unwrap(), 4);
    assert_eq!(owner.append(&[b"in time"]).unwrap(), 4);
    assert_eq!(zombie.append(&[b"later still"]).unwrap(), 5);
    let (_, frames) = open(&disk, 0).unwrap();
    assert_eq!(frames.len(), 4);
    assert_eq!(frames[3], (4, b"in time".to_vec()));
    // A zombie that wants a segment of its own finds the name taken.
    let failure = (0..100).find_map(|_| zombie.append(&[&[0; 100]]).err());
    assert!(matches!(
        failure,
        Some(JournalError::Io {
            doing: "creating",
            ..
        })
    ));
}

#[test]
fn of_two_owners_that_start_at_once_one_is_refused() {
    let (disk, _) = written(3);
    let (mut slow, _) = open(&disk, 0).unwrap();
    let (mut fast, _) = open(&disk, 0).unwrap();
    fast.start_epoch(ShardEpoch(3)).unwrap();
    assert!(matches!(
        slow.start_epoch(ShardEpoch(2)),
        Err(JournalError::Io { .. })
    ));
    assert_eq!(fast.append(&[b"mine"]).unwrap(), 4);
    assert_eq!(sequences(&disk, 0), [1, 2, 3, 4]);
}

#[test]
fn a_late_owner_that_finds_its_name_free_again_is_ignored() {
    let disk = Disk::default();
    let (mut slow, _) = open(&disk, 0).unwrap();
    let (mut fast, _) = open(&disk, 0).unwrap();
    fast.start_epoch(ShardEpoch(3)).unwrap();
    for _ in 0..40 {
        fast.append(&[&[1; 16]]).unwrap();
    }
    fast.drop_through(40).unwrap();
    assert_eq!(disk.ids(), [3]);
    slow.start_epoch(ShardEpoch(2)).unwrap();
    slow.append(&[b"into the void"]).unwrap();
    assert_eq!(disk.ids(), [1, 3]);
    let (mut next, frames) = open(&disk, 35).unwrap();
    assert_eq!((frames[0].0, frames.len()), (36, 5));
    next.start_epoch(ShardEpoch(4)).unwrap();
    assert_eq!(disk.ids(), [3, 4]);
}

#[test]
fn misuse_is_refused_and_leaves_the_journal_whole() {
    let (disk, mut journal) = written(1);
    assert!(matches!(
        journal.start_epoch(ShardEpoch(1)),
        Err(JournalError::StaleEpoch { .. })
    ));
    let megabyte = vec![0; 1 << 20];
    let parts = vec![megabyte.as_slice(); 257];
    assert!(matches!(
        journal.append(&parts),
        Err(JournalError::TooLarge { .. })
    ));
    assert_eq!(journal.append(&[b"fine"]).unwrap(), 2);
    let (mut unowned, _) = open(&disk, 0).unwrap();
    assert!(matches!(
        unowned.append(&[b"x"]),
        Err(JournalError::NoEpoch)
    ));
    let refused = Journal::open(Box::new(disk.clone()), 0, &mut |_| {
        Err("no such task".into())
    });
    let refused = refused.err().unwrap().to_string();
    assert!(
        refused.ends_with("damaged at byte 64: no such task"),
        "{refused}"
    );
}

#[test]
fn a_length_that_lies_allocates_nothing_and_a_later_format_is_not_cut() {
    let (disk, _) = written(1);
    disk.lose_bookmark();
    for lie in [u32::MAX, FRAME_BYTES_MAX as u32, 2_000] {
        let lying = disk.copy();
        lying.tamper(1, |bytes| {
            bytes[64 + 12..64 + 16].copy_from_slice(&lie.to_le_bytes())
        });
        assert_eq!(sequences(&lying, 0), [0_u64; 0]);
    }
    disk.tamper(1, |bytes| bytes[8] = 2);
    assert_eq!(damage(open(&disk, 0)).1, 8);
    assert_eq!(OPENING_BYTES, HEADER + 16);
}

#[derive(Debug, Clone)]
enum Step {
    Append(usize),
    Checkpoint(u64),
    FailWrite(u32),
    FailSync(u32, bool),
    /// The old owner lives on as a zombie.
    Replace,
    Zombie(usize),
    /// The process dies; what it wrote stays.
    Kill,
    CutPower(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        12 => (0_usize..400).prop_map(Step::Append),
        1 => (900_usize..3_000).prop_map(Step::Append),
        2 => (0_u64..=100).prop_map(Step::Checkpoint),
        1 => (0_u32..6).prop_map(Step::FailWrite),
        2 => (0_u32..9, any::<bool>()).prop_map(|(calls, forgets)| Step::FailSync(calls, forgets)),
        1 => Just(Step::Replace),
        2 => (0_usize..400).prop_map(Step::Zombie),
        1 => Just(Step::Kill),
        2 => (1_u64..).prop_map(Step::CutPower),
    ];
    prop::collection::vec(step, 1..120)
}

/// What must hold: `attempted[..acknowledged]` is there, in order; behind it at most what else was attempted.
#[derive(Default)]
struct Model {
    disk: Disk,
    attempted: Vec<Vec<u8>>,
    acknowledged: usize,
    checkpoint: usize,
    epoch: u64,
}

impl Model {
    /// Opens until an owner stands, with a power cut after each failure.
    fn take_over(&mut self) -> Journal {
        for seed in 1..10 {
            let (mut journal, frames) = open(&self.disk, self.checkpoint as u64).unwrap();
            for (n, (sequence, payload)) in frames.iter().enumerate() {
                assert_eq!(*sequence as usize, self.checkpoint + n + 1);
                assert_eq!(Some(payload), self.attempted.get(self.checkpoint + n));
            }
            let found = self.checkpoint + frames.len();
            assert!(
                found >= self.acknowledged,
                "{found} < {}",
                self.acknowledged
            );
            assert_eq!(journal.last_sequence() as usize, found);
            self.attempted.truncate(found);
            self.epoch += 1;
            match journal.start_epoch(ShardEpoch(self.epoch)) {
                Ok(()) => {
                    self.acknowledged = found;
                    return journal;
                }
                Err(_) => self.disk.cut_power(seed * 0x9E37_79B9),
            }
        }
        panic!("no owner stands though the disk is well")
    }

    fn append(&mut self, journal: &mut Journal, bytes: usize) {
        let payload = vec![self.attempted.len() as u8; bytes];
        match journal.append(&[&payload]) {
            Ok(sequence) => {
                self.attempted.push(payload);
                self.acknowledged += 1;
                assert_eq!(sequence as usize, self.acknowledged);
            }
            Err(JournalError::Poisoned) => {}
            Err(_) => self.attempted.push(payload),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_was_acknowledged_survives_everything_and_nothing_else_is_made_up(steps in steps()) {
        let mut model = Model::default();
        let mut journal = model.take_over();
        let mut zombies: Vec<Journal> = Vec::new();
        for step in steps {
            match step {
                Step::Append(bytes) => model.append(&mut journal, bytes),
                Step::Checkpoint(percent) => {
                    let sequence = model.acknowledged * percent as usize / 100;
                    model.checkpoint = model.checkpoint.max(sequence);
                    // A poisoned journal refuses; the next open makes up for it.
                    journal.drop_through(model.checkpoint as u64).ok();
                }
                Step::FailWrite(calls) => model.disk.fail_write_after(calls),
                Step::FailSync(calls, forgets) => model.disk.fail_sync_after(calls, forgets),
                Step::Replace => zombies.push(mem::replace(&mut journal, model.take_over())),
                Step::Zombie(bytes) => {
                    for zombie in &mut zombies {
                        zombie.append(&[&vec![0xFF; bytes]]).ok();
                    }
                }
                Step::Kill => {
                    zombies.clear();
                    journal = model.take_over();
                }
                Step::CutPower(seed) => {
                    zombies.clear();
                    model.disk.cut_power(seed);
                    journal = model.take_over();
                }
            }
        }
        model.take_over();
    }
}

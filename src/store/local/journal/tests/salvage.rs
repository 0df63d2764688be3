//! What a repair reads of a journal that is damaged in its midst: all that is good, and what is lost between.

use super::*;

/// Numbers of the good frames, and what is lost between them.
fn salvaged(disk: &Disk, after: u64) -> (Journal, Vec<u64>, Vec<Lost>) {
    let (mut good, mut lost) = (Vec::new(), Vec::new());
    let mut visit = |met| {
        match met {
            Met::Frame(frame) => good.push(frame.sequence),
            Met::Lost(it) => lost.push(it),
        }
        Ok(())
    };
    let files = Box::new(disk.clone());
    let journal = Journal::open_sized(files, SMALL_SEGMENT, after, &mut visit).unwrap();
    (journal, good, lost)
}

fn ranges(lost: &[Lost]) -> Vec<(u64, u64)> {
    lost.iter().map(|it| (it.first, it.last)).collect()
}

/// Flips a bit of frame `n` of the first segment, `at` bytes into it.
fn rotten(disk: &Disk, n: u64, at: u64) -> Disk {
    let copy = disk.copy();
    let place = (n * 64 + at) as usize;
    copy.tamper(1, |bytes| bytes[place] ^= 0x10);
    copy
}

#[test]
fn one_bad_frame_costs_itself_wherever_its_bit_is_flipped() {
    let (disk, journal) = written(5);
    for n in 1..=5 {
        for at in 0..64 {
            let (mended, good, lost) = salvaged(&rotten(&disk, n, at), 0);
            let expected: Vec<u64> = (1..=5).filter(|other| *other != n).collect();
            assert_eq!((good, ranges(&lost)), (expected, vec![(n, n)]), "{n}, {at}");
            assert_eq!((lost[0].offset, lost[0].payloads.len()), (n * 64, 1));
            assert_eq!(mended.last_sequence(), 5);
            if at < HEADER {
                let payload = &lost[0].payloads[0];
                assert_eq!(payload[..8], [0xA5; 8]);
                assert_eq!(payload[8..16], n.to_le_bytes());
            }
        }
    }
    drop(journal);
}

#[test]
fn a_page_of_zeros_costs_the_frames_in_it_and_none_behind() {
    let (disk, _) = written(12);
    disk.tamper(1, |bytes| bytes[64 * 4 + 8..64 * 7].fill(0));
    let (_, good, lost) = salvaged(&disk, 0);
    assert_eq!(good, [1, 2, 3, 7, 8, 9, 10, 11, 12]);
    assert_eq!(ranges(&lost), [(4, 6)]);
    assert!(open(&disk, 0).is_err(), "a start does not pass over it");
}

#[test]
fn what_a_checkpoint_covers_is_no_loss_and_is_not_given_again() {
    let (disk, _) = written(6);
    let disk = rotten(&disk, 2, HEADER);
    let (_, good, lost) = salvaged(&disk, 4);
    assert_eq!(good, [5, 6]);
    assert_eq!(ranges(&lost), [(2, 2)]);
    assert!(lost[0].payloads.is_empty());
}

#[test]
fn a_sealed_segment_that_was_cut_short_costs_what_is_gone_and_no_segment_behind_it() {
    let (disk, mut journal) = written(5);
    journal.start_epoch(ShardEpoch(2)).unwrap();
    journal.append(&[&[1; 16]]).unwrap();
    disk.tamper(1, |bytes| bytes.truncate(64 * 4));
    let (_, good, lost) = salvaged(&disk, 0);
    assert_eq!(good, [1, 2, 3, 6]);
    assert_eq!(ranges(&lost), [(4, 5)]);
}

#[test]
fn a_last_segment_that_was_cut_short_costs_what_the_bookmark_knows_of() {
    let (disk, _) = written(5);
    disk.tamper(1, |bytes| bytes.truncate(64 * 4));
    let (mut mended, good, lost) = salvaged(&disk, 0);
    assert_eq!((good, ranges(&lost)), (vec![1, 2, 3], vec![(4, 5)]));
    mended.start_epoch(ShardEpoch(2)).unwrap();
    assert_eq!(mended.append(&[&[0; 16]]).unwrap(), 6);
}

#[test]
fn a_new_owner_after_a_salvage_goes_on_and_the_damage_is_still_there() {
    for n in [2, 5] {
        let (disk, _) = written(5);
        let disk = rotten(&disk, n, 5);
        for epoch in 2..4 {
            let (mut journal, good, lost) = salvaged(&disk, 0);
            assert_eq!(good.len() as u64, 2 + epoch);
            assert_eq!(ranges(&lost), [(n, n)]);
            journal.start_epoch(ShardEpoch(epoch)).unwrap();
            journal.append(&[&[0; 16]]).unwrap();
        }
        assert_eq!(damage(open(&disk, 0)).1, n * 64);
    }
}

#[test]
fn frames_of_an_owner_that_was_sealed_off_are_not_got_back() {
    let (disk, mut journal) = written(3);
    let zombie = salvaged(&disk, 0).0;
    journal.append(&[&[1; 16]]).unwrap();
    let mut owner = zombie;
    owner.start_epoch(ShardEpoch(2)).unwrap();
    let disk = rotten(&disk, 2, 5);
    let (_, good, lost) = salvaged(&disk, 0);
    assert_eq!((good, ranges(&lost)), (vec![1, 3], vec![(2, 2)]));
}

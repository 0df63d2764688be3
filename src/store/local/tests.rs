//! What only the local store can do wrong. What it shares with others stands in [`crate::store::conformance`].
#![expect(clippy::unwrap_used, reason = "a test that can't go on should stop")]

use std::fs;
use std::path::PathBuf;

use super::*;
use crate::store::EVERY_DUE;
use crate::store::conformance::harness::{Harness, Local, Owner};
use crate::store::conformance::{large_task, two_rounds};
use crate::testing::arbitrary::plain_task;

/// Largest value that is one entry, as a payload.
const LARGE: usize = 20 * 1024 - 300;

fn tree_of(owner: &Owner<LocalStore>) -> Arc<Tree> {
    owner.store.owned.as_ref().unwrap().tree.clone()
}

#[test]
fn a_value_that_was_changed_on_the_disk_is_an_error_that_names_its_key() {
    let harness = Local::default();
    let mut owner = Owner::of(&harness);
    let task = plain_task(1);
    owner.put(std::slice::from_ref(&task));
    owner.tend_to_the_end();
    let key = RecordKey::Task(task.id);
    tree_of(&owner)
        .write(key, Some(b"\x01\0\0\0\0nonsense"), 1, false)
        .unwrap();
    let error = owner
        .store
        .read_due(EVERY_DUE, &mut |_| panic!("there is nothing to read"))
        .unwrap_err();
    let StoreError::Corrupt { place, why } = error else {
        panic!("{error}");
    };
    assert!(place.starts_with(&format!("task {}", task.id)), "{place}");
    assert_eq!(why, "the checksum is wrong");
}

#[test]
fn a_value_whose_part_is_missing_is_an_error_and_not_shorter() {
    let harness = Local::default();
    let mut owner = Owner::of(&harness);
    owner.put(&[large_task(1, 100_000)]);
    owner.tend_to_the_end();
    tree_of(&owner).lose_a_part();
    let error = owner
        .store
        .read_due(EVERY_DUE, &mut |_| panic!("there is nothing to read"))
        .unwrap_err();
    assert!(error.to_string().ends_with("part 0 is missing"), "{error}");
}

#[test]
fn parts_that_no_manifest_names_do_not_stay() {
    let mut harness = Local::default();
    let mut owner = Owner::of(&harness);
    let content = two_rounds(&mut owner);
    for slices in 0..6 {
        harness.crash();
        owner = Owner::of(&harness);
        (0..slices).for_each(|_| assert_eq!(owner.tend(), Tended::More));
        // The process dies while it writes or removes the parts of a value, and these reach the disk.
        (1..=4).for_each(|n| tree_of(&owner).leave_a_part(RecordKey::Task(plain_task(n).id)));
        tree_of(&owner).sync().unwrap();
    }
    harness.crash();
    owner = Owner::of(&harness);
    assert_eq!(owner.content(), content);
    owner.tend_to_the_end();
    let mut named = 0;
    for task in content.tasks.values() {
        let mut batch = Batch::new(SteadyMs(0));
        batch.put_task(task);
        let bytes = batch.largest();
        named += if bytes > 20 * 1024 {
            bytes.div_ceil(20 * 1024)
        } else {
            0
        };
    }
    // Task 1 came through the journal too: every key that was cut off in the middle is swept.
    assert_eq!(tree_of(&owner).parts(), named);
    assert_eq!(owner.content(), content);
}

#[test]
fn no_leaf_outgrows_its_segment_under_churn() {
    let harness = Local::with_checkpoints_of(2 * 1024 * 1024);
    let mut owner = Owner::of(&harness);
    let mut random = 7_u64;
    for round in 0..6 {
        for chunk in 0..20 {
            let tasks: Vec<Task> = (0..20).map(|n| large_task(chunk * 20 + n, LARGE)).collect();
            owner.put(&tasks);
            for task in &tasks {
                // Thinning leaves makes them merge: that is when they hold more than sixteen.
                random = random
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(round);
                if random >> 62 != 0 {
                    owner.remove(task);
                }
            }
            owner.tend();
        }
        owner.tend_to_the_end();
        harness.check();
    }
    assert_eq!(
        tree_of(&owner).parts(),
        0,
        "the values are as large as an entry may be"
    );
}

#[test]
fn what_a_killed_snapshot_left_behind_does_not_stop_a_start() {
    let mut harness = Local::default();
    let mut owner = Owner::of(&harness);
    let content = two_rounds(&mut owner);
    let left = |harness: &Local| harness.wheel().join("snap.00000000000000FF.generating");
    harness.crash();
    fs::write(left(&harness), "half a snap").unwrap();
    owner = Owner::of(&harness);
    assert_eq!(owner.content(), content);
    assert!(!left(&harness).exists());
}

#[test]
fn a_damaged_snapshot_is_set_aside_and_the_log_is_read() {
    let mut harness = Local::default();
    let mut owner = Owner::of(&harness);
    let content = two_rounds(&mut owner);
    owner.tend_to_the_end();
    let snapshots = |harness: &Local| -> Vec<PathBuf> {
        let entries = fs::read_dir(harness.wheel())
            .unwrap()
            .map(|entry| entry.unwrap().path());
        entries
            .filter(|path| path.to_string_lossy().contains("/snap."))
            .collect()
    };
    harness.crash();
    drop(Owner::of(&harness));
    harness.crash();
    let damaged = snapshots(&harness);
    assert!(!damaged.is_empty(), "sled writes a snapshot at each start");
    for snapshot in damaged {
        let mut bytes = fs::read(&snapshot).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 0xFF;
        fs::write(snapshot, bytes).unwrap();
    }
    assert_eq!(Owner::of(&harness).content(), content);
    let mut names = fs::read_dir(harness.wheel())
        .unwrap()
        .map(|entry| entry.unwrap().file_name());
    assert!(names.any(|name| name.to_string_lossy().starts_with("aside.snap.")));
}

#[test]
fn a_home_that_is_dropped_can_be_opened_again_at_once() {
    let data = tempfile::tempdir().unwrap();
    for epoch in 1..5 {
        let home = LocalHome::new(data.path(), LocalOptions::default());
        let begun = home.store(ShardId(3)).begin().unwrap();
        assert_eq!(begun.epoch, ShardEpoch(epoch));
    }
    assert!(data.path().join("shards/003/wheel/db").exists());
}

#[test]
fn a_new_owner_waits_for_the_slice_that_is_being_written() {
    let harness = Local::default();
    let mut old = Owner::of(&harness);
    old.put(&[plain_task(1)]);
    let home = old.store.home.clone();
    let slice = home.tree.lock();
    let mut new = harness.store();
    let (tell, told) = mpsc::channel();
    let begin = thread::spawn(move || tell.send(new.begin().map(|begun| begun.epoch)));
    let early = told.recv_timeout(Duration::from_millis(50));
    assert!(matches!(early, Err(RecvTimeoutError::Timeout)), "{early:?}");
    assert!(
        home.gate.check(old.begun.epoch).is_err(),
        "the gate is raised before anything is waited for"
    );
    drop(slice);
    assert_eq!(
        told.recv_timeout(TAKE_OVER_MAX).unwrap().unwrap(),
        ShardEpoch(2)
    );
    begin.join().unwrap().unwrap();
}

#[test]
fn an_owner_that_passed_the_gate_just_before_it_closed_folds_nothing() {
    let harness = Local::default();
    let mut old = Owner::of(&harness);
    old.put(&[plain_task(1)]);
    let new = Owner::of(&harness);
    let home = old.store.home.clone();
    let refused = old.store.owned.as_mut().unwrap().fold(&home, 0);
    assert!(
        matches!(refused, Err(StoreError::StaleEpoch { .. })),
        "{refused:?}"
    );
    let mut records = 0;
    tree_of(&new)
        .visit(Kind::Task, &mut |_, _| {
            records += 1;
            Ok(())
        })
        .unwrap();
    assert_eq!(records, 0);
}

#[test]
fn of_two_claims_only_the_later_is_settled() {
    let gate = EpochGate::default();
    let (first, second) = (gate.claim(), gate.claim());
    let refused = gate.settle(first, ShardEpoch(40));
    assert!(matches!(refused, Err(StoreError::StaleEpoch { .. })));
    assert_eq!(gate.settle(second, ShardEpoch(40)).unwrap(), ShardEpoch(41));
    assert!(gate.check(ShardEpoch(41)).is_ok() && gate.check(second).is_err());
    assert_eq!(gate.claim(), ShardEpoch(42));
}

#[test]
fn a_memtable_stays_bounded_when_nobody_tends() {
    const CHECKPOINT: usize = 64 * 1024;
    let harness = Local::with_checkpoints_of(CHECKPOINT);
    let mut owner = Owner::of(&harness);
    let mut largest = 0;
    for n in 0..300 {
        owner.put(&(0..10).map(|k| plain_task(n * 10 + k)).collect::<Vec<_>>());
        largest = largest.max(owner.store.owned.as_ref().unwrap().active.bytes);
    }
    assert!(
        largest > CHECKPOINT && largest < 6 * CHECKPOINT,
        "{largest} bytes"
    );
}

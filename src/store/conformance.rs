//! The contract of [`ShardStore`] as sentences, each run over every store.
//!
//! Each store brings a [`Harness`]. The local one writes one chunk, note or part of marks per slice of folding, so
//! that a crash can come between any two. What an [`Owner`] finds is held against what was committed, whatever
//! happened in between; that marks count is asserted on the way: no task is found twice.

pub(super) mod harness;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use proptest::prelude::*;

use self::harness::{Content, Harness, Local, Mem, Owner, Progress};
use crate::clock::{DurationMs, SteadyMs, WallMs};
use crate::ids::{AttemptToken, ShardEpoch};
use crate::limits;
use crate::store::chunk::{ChunkId, Fold, Marks, Memtable};
use crate::store::codec::Cancel;
use crate::store::codec::late_key;
use crate::store::{Batch, KeptAnswer, ShardStore, StoreError, Tended, Tombstone};
use crate::task::Task;
use crate::task::late::{LateAnswer, Treatment};
use crate::task::model::State;
use crate::task::spec::RawJson;
use crate::testing::arbitrary::plain_task;

fn holding(tasks: &[Task]) -> Content {
    Content {
        tasks: tasks.iter().map(|task| (task.id, task.clone())).collect(),
        ..Content::default()
    }
}

fn task(n: u64, attempts: u32) -> Task {
    Task {
        attempts,
        ..plain_task(n)
    }
}

pub(super) fn large_task(n: u64, payload_bytes: usize) -> Task {
    let mut task = plain_task(n);
    // Not all alike, so that parts in the wrong order are noticed.
    let text: String = (0..payload_bytes)
        .map(|at| char::from(b'a' + (at / 1000 % 23) as u8))
        .collect();
    Arc::make_mut(&mut task.spec).payload = Some(RawJson::from(text));
    task
}

fn a_tombstone(n: u64) -> Tombstone {
    let task = plain_task(n);
    Tombstone {
        topic: task.topic,
        key: task.key.expect("a plain task has a key"),
        until: SteadyMs(i64::try_from(n).expect("a test's number is small")),
        reason: "cancelled first".into(),
    }
}

fn an_answer(n: u64, answer: Option<(u16, Bytes)>) -> KeptAnswer {
    KeptAnswer {
        key: u128::from(n) << 100,
        body: u128::MAX,
        first_at: WallMs(1),
        until: SteadyMs(2),
        answer,
    }
}

fn a_late_answer(token: u64, result_bytes: usize) -> LateAnswer {
    let task = plain_task(token);
    LateAnswer {
        task: task.id,
        topic: task.topic,
        key: task.key,
        attempt: None,
        generation: None,
        token: AttemptToken(token),
        outcome: "succeeded",
        error: None,
        result: Some(RawJson::from(format!("\"{}\"", "x".repeat(result_bytes)))),
        result_dropped: false,
        by: "worker".into(),
        worker: None,
        at: WallMs(7),
        ended_as: Some("lease_expired"),
        state: State::Dead,
        treatment: Treatment::Refused,
    }
}

fn a_cancel(reason: &str) -> Cancel {
    Cancel {
        at: WallMs(5),
        steady: SteadyMs(6),
        retention: DurationMs(1000),
        by: "api".into(),
        reason: reason.into(),
        request: None,
    }
}

fn an_empty_fold() -> Fold {
    Fold {
        table: Arc::new(Memtable::default()),
        marks: Marks::Changed(Vec::new()),
        drop: Vec::new(),
    }
}

fn is_stale<T>(result: &Result<T, StoreError>, given: ShardEpoch, present: ShardEpoch) -> bool {
    matches!(result, Err(StoreError::StaleEpoch { given: g, present: p }) if (*g, *p) == (given, present))
}

/// Makes a test of each sentence for each store.
macro_rules! sentences {
    ($($sentence:ident)*) => {
        mod mem {
            $(#[test] fn $sentence() { super::$sentence(super::Mem::default()); })*
        }
        mod local {
            $(#[test] fn $sentence() { super::$sentence(super::Local::default()); })*
        }
    };
}
sentences! {
    a_new_store_is_empty
    what_was_committed_is_there_after_a_crash_in_its_latest_form
    a_removed_task_is_gone
    a_batch_is_all_or_nothing
    changes_of_one_batch_count_in_their_order
    a_stale_epoch_is_refused_and_changes_nothing
    an_owner_is_refused_when_the_next_one_began_during_its_commit
    epochs_only_grow
    the_steady_mark_is_the_largest_committed
    notes_come_back_and_go
    a_crash_between_any_two_slices_of_tending_changes_nothing
    commits_between_slices_of_tending_win_over_what_is_folded
    a_new_owner_in_the_middle_of_tending_reads_the_same
    a_record_of_the_largest_size_comes_back_whole
    a_record_that_is_too_large_is_refused_and_the_store_goes_on
    a_failed_commit_ends_the_owner_and_leaves_the_rest_to_the_next
    a_dropped_chunk_is_gone_after_the_fold_and_not_before
    marks_of_a_fold_that_was_cut_off_do_not_count
    all_marks_replace_those_before
    chunk_numbers_are_never_used_twice
    a_cancel_stays_beside_its_record
    the_seed_stays_the_same
    a_second_fold_is_refused_while_one_is_at_work
    a_reader_reads_nothing_that_is_not_there
}

fn a_new_store_is_empty(harness: impl Harness) {
    let mut owner = Owner::of(&harness);
    assert_eq!(owner.content(), Content::default());
    assert_eq!(owner.begun.epoch, ShardEpoch(1));
    assert_eq!(owner.tend(), Progress::Idle);
}

fn what_was_committed_is_there_after_a_crash_in_its_latest_form(mut harness: impl Harness) {
    let mut owner = Owner::of(&harness);
    owner.put(&[task(1, 0), task(2, 0)]);
    owner.put(&[task(1, 7)]);
    let expected = holding(&[task(1, 7), task(2, 0)]);
    assert_eq!(owner.content(), expected);
    harness.crash();
    assert_eq!(Owner::of(&harness).content(), expected);
    harness.crash();
    assert_eq!(Owner::of(&harness).content(), expected);
}

fn a_removed_task_is_gone(mut harness: impl Harness) {
    let mut owner = Owner::of(&harness);
    owner.put(&[task(1, 0), task(2, 0), task(3, 0)]);
    owner.remove(&task(1, 0));
    assert_eq!(owner.content(), holding(&[task(2, 0), task(3, 0)]));
    owner.tend_to_the_end();
    owner.remove(&task(2, 0));
    let expected = holding(&[task(3, 0)]);
    assert_eq!(owner.content(), expected);
    harness.crash();
    let mut owner = Owner::of(&harness);
    assert_eq!(owner.content(), expected);
    owner.tend_to_the_end();
    harness.crash();
    assert_eq!(Owner::of(&harness).content(), expected);
}

fn a_batch_is_all_or_nothing(mut harness: impl Harness) {
    let mut owner = Owner::of(&harness);
    owner.put(&[task(9, 0)]);
    let hold = harness.hold_commit();
    let writer = std::thread::spawn(move || {
        let mut batch = Batch::new(SteadyMs(0));
        (0..50).for_each(|n| batch.put_task(&task(n, 1)));
        owner.commit(batch)
    });
    assert!(hold.wait_until_reached());
    harness.crash();
    hold.release();
    // Whatever the dead owner was told, nobody heard it.
    let _ = writer.join().expect("no panic");
    let mut owner = Owner::of(&harness);
    assert_eq!(owner.content(), holding(&[task(9, 0)]));
    let whole: Vec<Task> = (0..50).map(|n| task(n, 2)).collect();
    owner.put(&whole);
    harness.crash();
    assert_eq!(Owner::of(&harness).content(), holding(&whole));
}

fn changes_of_one_batch_count_in_their_order(mut harness: impl Harness) {
    let mut owner = Owner::of(&harness);
    let mut batch = Batch::new(SteadyMs(0));
    batch.put_task(&task(1, 0));
    batch.remove_task(task(1, 0).id);
    batch.put_task(&task(1, 5));
    batch.put_task(&task(2, 0));
    batch.remove_task(task(2, 0).id);
    owner.commit(batch).expect("the owner can commit");
    harness.crash();
    assert_eq!(Owner::of(&harness).content(), holding(&[task(1, 5)]));
}

fn a_stale_epoch_is_refused_and_changes_nothing(mut harness: impl Harness) {
    let mut old = Owner::of(&harness);
    old.put(&[task(1, 0), task(2, 0)]);
    let mut new = Owner::of(&harness);
    for _ in 0..2 {
        let mut batch = Batch::new(SteadyMs(77));
        batch.put_task(&task(1, 9));
        batch.remove_task(task(2, 0).id);
        let refused = old.commit(batch);
        assert!(
            is_stale(&refused, old.begun.epoch, new.begun.epoch),
            "{refused:?}"
        );
        let refused = old.store.fold(old.begun.epoch, an_empty_fold());
        assert!(
            is_stale(&refused, old.begun.epoch, new.begun.epoch),
            "{refused:?}"
        );
        let refused = old.store.tend(old.begun.epoch, 0);
        assert!(
            is_stale(&refused, old.begun.epoch, new.begun.epoch),
            "{refused:?}"
        );
    }
    let expected = holding(&[task(1, 0), task(2, 0)]);
    assert_eq!(new.content(), expected);
    new.put(&[]);
    harness.crash();
    let next = Owner::of(&harness);
    assert_eq!((next.content(), next.begun.steady), (expected, SteadyMs(0)));
}

fn an_owner_is_refused_when_the_next_one_began_during_its_commit(mut harness: impl Harness) {
    let mut old = Owner::of(&harness);
    old.put(&[task(1, 0)]);
    let given = old.begun.epoch;
    let hold = harness.hold_commit();
    let writer = std::thread::spawn(move || {
        let mut batch = Batch::new(SteadyMs(0));
        batch.put_task(&task(1, 9));
        old.commit(batch)
    });
    assert!(hold.wait_until_reached());
    let mut new = Owner::of(&harness);
    let seen = new.content();
    assert_eq!(seen, holding(&[task(1, 0)]));
    hold.release();
    let refused = writer.join().expect("no panic");
    assert!(is_stale(&refused, given, new.begun.epoch), "{refused:?}");
    assert_eq!(new.content(), seen);
    new.put(&[task(2, 0)]);
    harness.crash();
    assert_eq!(
        Owner::of(&harness).content(),
        holding(&[task(1, 0), task(2, 0)])
    );
}

fn epochs_only_grow(mut harness: impl Harness) {
    let mut last = ShardEpoch(0);
    for round in 0..8 {
        let mut owner = Owner::of(&harness);
        assert!(
            owner.begun.epoch > last,
            "{} after {last}",
            owner.begun.epoch
        );
        last = owner.begun.epoch;
        if round % 2 == 0 {
            owner.put(&[task(round, 0)]);
            owner.tend_to_the_end();
        }
        if round % 3 > 0 {
            harness.crash();
        }
    }
}

fn the_steady_mark_is_the_largest_committed(mut harness: impl Harness) {
    let mut owner = Owner::of(&harness);
    for steady in [5, 900, 30] {
        let mut batch = Batch::new(SteadyMs(steady));
        batch.put_task(&task(1, 0));
        owner.commit(batch).expect("the owner can commit");
    }
    harness.crash();
    let mut owner = Owner::of(&harness);
    assert_eq!(owner.begun.steady, SteadyMs(900));
    owner.tend_to_the_end();
    owner
        .commit(Batch::new(SteadyMs(901)))
        .expect("the owner can commit");
    harness.crash();
    let mut owner = Owner::of(&harness);
    assert_eq!(owner.begun.steady, SteadyMs(901));
    owner.tend_to_the_end();
    harness.crash();
    assert_eq!(Owner::of(&harness).begun.steady, SteadyMs(901));
}

fn notes_come_back_and_go(mut harness: impl Harness) {
    let mut owner = Owner::of(&harness);
    let (kept, gone) = (a_tombstone(1), a_tombstone(2));
    let answered = an_answer(
        1,
        Some((
            201,
            Bytes::from(vec![b'x'; limits::IDEMPOTENCY_ANSWER_BYTES_MAX]),
        )),
    );
    let unanswered = an_answer(2, None);
    let (late, settled) = (a_late_answer(1, 60_000), a_late_answer(2, 10));
    let mut batch = Batch::new(SteadyMs(0));
    [&kept, &gone]
        .into_iter()
        .for_each(|tombstone| batch.put_tombstone(tombstone));
    [&answered, &unanswered, &an_answer(3, None)]
        .into_iter()
        .for_each(|answer| batch.put_answer(answer));
    [&late, &settled]
        .into_iter()
        .for_each(|late| batch.put_late(late));
    owner.commit(batch).expect("the owner can commit");
    let mut batch = Batch::new(SteadyMs(0));
    batch.remove_late(late_key(&settled));
    batch.remove_tombstone(&gone.topic, &gone.key);
    batch.remove_answer(an_answer(3, None).key);
    owner.commit(batch).expect("the owner can commit");
    let content = owner.content();
    assert_eq!(content.tombstones.into_values().collect::<Vec<_>>(), [kept]);
    assert_eq!(
        content.answers.into_values().collect::<Vec<_>>(),
        [answered, unanswered]
    );
    assert_eq!(content.late.into_values().collect::<Vec<_>>(), [late]);
    let content = owner.content();
    for _ in 0..2 {
        harness.crash();
        owner = Owner::of(&harness);
        assert_eq!(owner.content(), content);
        owner.tend_to_the_end();
        assert_eq!(owner.content(), content);
    }
}

/// Tasks and notes of all sizes, then changes to them: what a fold over an earlier fold meets.
pub(super) fn two_rounds<S: ShardStore>(owner: &mut Owner<S>) -> Content {
    let large_answer = |n, bytes| an_answer(n, Some((200, Bytes::from(vec![b'x'; bytes]))));
    let mut batch = Batch::new(SteadyMs(0));
    for task in [
        task(1, 0),
        large_task(2, 50_000),
        large_task(3, 50_000),
        large_task(4, 70_000),
        task(6, 0),
    ] {
        batch.put_task(&task);
    }
    batch.put_answer(&large_answer(1, 70_000));
    batch.put_answer(&large_answer(2, 50_000));
    batch.put_answer(&large_answer(3, 90_000));
    batch.put_tombstone(&a_tombstone(1));
    owner.commit(batch).expect("the owner can commit");
    owner.tend_to_the_end();
    let latest = [
        task(1, 1),
        large_task(2, 90_000),
        task(3, 1),
        large_task(5, 30_000),
    ];
    let answers = [large_answer(1, 30_000), large_answer(2, 100)];
    let mut batch = Batch::new(SteadyMs(0));
    latest.iter().for_each(|task| batch.put_task(task));
    batch.remove_task(task(4, 0).id);
    batch.put_cancel(task(6, 0).id, &a_cancel("paid"));
    answers.iter().for_each(|answer| batch.put_answer(answer));
    batch.remove_answer(large_answer(3, 0).key);
    let tombstone = a_tombstone(1);
    batch.remove_tombstone(&tombstone.topic, &tombstone.key);
    owner.commit(batch).expect("the owner can commit");
    let mut content = holding(&latest);
    content.tasks.insert(task(6, 0).id, task(6, 0));
    content.cancels.insert(task(6, 0).id, a_cancel("paid"));
    content
        .answers
        .extend(answers.map(|answer| (answer.key, answer)));
    content
}

fn a_crash_between_any_two_slices_of_tending_changes_nothing(mut harness: impl Harness) {
    let mut owner = Owner::of(&harness);
    let expected = two_rounds(&mut owner);
    // Each life gets one slice further before it ends, until one gets through.
    for slices in 0.. {
        assert!(slices < 1000, "tending does not end");
        harness.crash();
        owner = Owner::of(&harness);
        assert_eq!(owner.content(), expected, "before {slices} slices");
        let is_through = (0..slices).any(|_| owner.tend() == Progress::Idle);
        assert_eq!(owner.content(), expected, "after {slices} slices");
        harness.check();
        if is_through {
            break;
        }
    }
    harness.crash();
    assert_eq!(Owner::of(&harness).content(), expected);
}

fn commits_between_slices_of_tending_win_over_what_is_folded(mut harness: impl Harness) {
    let mut owner = Owner::of(&harness);
    owner.put(&(0..6).map(|n| task(n, 0)).collect::<Vec<_>>());
    for n in 0..6 {
        owner.tend();
        if n % 2 == 0 {
            owner.put(&[large_task(n, 30_000)]);
        } else {
            owner.remove(&task(n, 0));
        }
    }
    let expected = holding(&[0, 2, 4].map(|n| large_task(n, 30_000)));
    assert_eq!(owner.content(), expected);
    owner.tend_to_the_end();
    assert_eq!(owner.content(), expected);
    harness.crash();
    assert_eq!(Owner::of(&harness).content(), expected);
}

fn a_new_owner_in_the_middle_of_tending_reads_the_same(harness: impl Harness) {
    let mut old = Owner::of(&harness);
    let mut expected = two_rounds(&mut old);
    for round in 0..10 {
        for _ in 0..round {
            old.tend();
        }
        let mut new = Owner::of(&harness);
        assert_eq!(new.content(), expected);
        let change = task(1, round);
        new.put(std::slice::from_ref(&change));
        expected.tasks.insert(change.id, change);
        assert_eq!(new.content(), expected);
        let refused = old.store.tend(old.begun.epoch, 0);
        assert!(
            is_stale(&refused, old.begun.epoch, new.begun.epoch),
            "{refused:?}"
        );
        old = new;
    }
    old.tend_to_the_end();
    assert_eq!(old.content(), expected);
}

fn a_record_of_the_largest_size_comes_back_whole(mut harness: impl Harness) {
    let mut owner = Owner::of(&harness);
    let tasks: Vec<Task> = (0..12)
        .map(|n| large_task(n, limits::PAYLOAD_BYTES_MAX))
        .collect();
    owner.put(&tasks);
    owner.tend_to_the_end();
    harness.check();
    assert_eq!(owner.content(), holding(&tasks));
    harness.crash();
    let mut owner = Owner::of(&harness);
    assert_eq!(owner.content(), holding(&tasks));
    tasks[1..].iter().for_each(|task| owner.remove(task));
    owner.tend_to_the_end();
    harness.check();
    harness.crash();
    assert_eq!(Owner::of(&harness).content(), holding(&tasks[..1]));
}

fn a_record_that_is_too_large_is_refused_and_the_store_goes_on(harness: impl Harness) {
    let mut owner = Owner::of(&harness);
    let mut batch = Batch::new(SteadyMs(0));
    batch.put_task(&task(1, 0));
    batch.put_task(&large_task(2, 5_000_000));
    let refused = owner.commit(batch);
    assert!(
        matches!(refused, Err(StoreError::TooLarge { .. })),
        "{refused:?}"
    );
    owner.put(&[task(3, 0)]);
    assert_eq!(owner.content(), holding(&[task(3, 0)]));
}

fn a_failed_commit_ends_the_owner_and_leaves_the_rest_to_the_next(harness: impl Harness) {
    let mut owner = Owner::of(&harness);
    owner.put(&[task(1, 0)]);
    harness.fail_commit();
    let mut batch = Batch::new(SteadyMs(0));
    batch.put_task(&task(1, 1));
    let failed = owner.commit(batch.clone());
    assert!(matches!(failed, Err(StoreError::Io { .. })), "{failed:?}");
    let refused = owner.commit(batch);
    assert!(matches!(refused, Err(StoreError::Poisoned)), "{refused:?}");
    let mut next = Owner::of(&harness);
    assert_eq!(next.content(), holding(&[task(1, 0)]));
    next.put(&[task(2, 0)]);
    assert_eq!(next.content(), holding(&[task(1, 0), task(2, 0)]));
}

fn a_dropped_chunk_is_gone_after_the_fold_and_not_before(mut harness: impl Harness) {
    let mut owner = Owner::of(&harness);
    owner.put(&[task(1, 0), large_task(2, 90_000)]);
    owner.tend_to_the_end();
    let chunks = owner.chunks();
    owner.put(&[task(3, 0)]);
    chunks.iter().for_each(|chunk| owner.drop_chunk(*chunk));
    let reader = owner.store.reader().expect("the owner can read");
    // Each life gets one slice further before it ends, until one gets through.
    for slices in 0.. {
        assert!(slices < 1000, "tending does not end");
        let is_through = (0..slices).any(|_| {
            chunks.iter().all(|chunk| {
                owner
                    .store
                    .reader()
                    .is_ok_and(|it| it.packed(*chunk).is_ok())
            }) && owner.tend() == Progress::Folded
        });
        harness.crash();
        owner = Owner::of(&harness);
        if is_through {
            break;
        }
        let kept = owner.chunks();
        if kept == chunks {
            assert_eq!(owner.content().tasks.len(), 3);
            chunks.iter().for_each(|chunk| owner.drop_chunk(*chunk));
        } else {
            // It had become durable before it was through: all of it counts.
            assert!(chunks.iter().all(|chunk| !kept.contains(chunk)), "{kept:?}");
            break;
        }
    }
    drop(reader);
    let expected = holding(&[task(3, 0)]);
    assert_eq!(owner.content(), expected);
    let reader = owner.store.reader().expect("the owner can read");
    for chunk in chunks {
        assert!(reader.index(chunk).is_err() && reader.packed(chunk).is_err());
    }
    owner.tend_to_the_end();
    harness.crash();
    assert_eq!(Owner::of(&harness).content(), expected);
}

fn marks_of_a_fold_that_was_cut_off_do_not_count(mut harness: impl Harness) {
    let mut owner = Owner::of(&harness);
    owner.put(&[task(1, 0), task(2, 0)]);
    owner.tend_to_the_end();
    let whole = owner.content();
    // It marks both records dead, without a commit that says so.
    let [chunk] = owner.chunks()[..] else {
        panic!("both are in one chunk");
    };
    for marks in [
        Marks::Changed(vec![(chunk, 0b11)]),
        Marks::All(vec![(chunk, 0b11)]),
    ] {
        let fold = Fold {
            marks,
            ..an_empty_fold()
        };
        owner
            .store
            .fold(owner.begun.epoch, fold)
            .expect("the owner can fold");
        owner
            .store
            .tend(owner.begun.epoch, 0)
            .expect("the owner can tend");
        owner
            .store
            .tend(owner.begun.epoch, 0)
            .expect("the owner can tend");
        harness.crash();
        owner = Owner::of(&harness);
        assert_eq!(owner.content(), whole);
    }
    let fold = Fold {
        marks: Marks::Changed(vec![(chunk, 0b01)]),
        ..an_empty_fold()
    };
    owner
        .store
        .fold(owner.begun.epoch, fold)
        .expect("the owner can fold");
    while !matches!(
        owner
            .store
            .tend(owner.begun.epoch, 0)
            .expect("the owner can tend"),
        Tended::Folded(_)
    ) {}
    harness.crash();
    assert_eq!(
        Owner::of(&harness).content().tasks.len(),
        1,
        "those of a whole fold do"
    );
}

fn all_marks_replace_those_before(mut harness: impl Harness) {
    let mut owner = Owner::of(&harness);
    owner.put(&(0..8).map(|n| task(n, 0)).collect::<Vec<_>>());
    owner.tend_to_the_end();
    for n in 0..7 {
        owner.remove(&task(n, 0));
        owner.writes_all_marks = n % 3 == 2;
        owner.tend_to_the_end();
        let expected: Vec<Task> = (n + 1..8).map(|n| task(n, 0)).collect();
        assert_eq!(owner.content(), holding(&expected));
        if n % 2 == 0 {
            harness.crash();
            owner = Owner::of(&harness);
            assert_eq!(owner.content(), holding(&expected));
        }
    }
    // A mask that is not among all of them is zero again.
    let fold = Fold {
        marks: Marks::All(Vec::new()),
        ..an_empty_fold()
    };
    owner
        .store
        .fold(owner.begun.epoch, fold)
        .expect("the owner can fold");
    while !matches!(
        owner
            .store
            .tend(owner.begun.epoch, 0)
            .expect("the owner can tend"),
        Tended::Folded(_)
    ) {}
    harness.crash();
    assert_eq!(Owner::of(&harness).content().tasks.len(), 8);
}

fn chunk_numbers_are_never_used_twice(mut harness: impl Harness) {
    let mut owner = Owner::of(&harness);
    let mut last = None;
    for round in 0..12 {
        owner.put(&[task(round, 0)]);
        owner.tend_to_the_end();
        let chunks = owner.chunks();
        let newest = chunks.last().copied();
        assert!(newest > last, "{newest:?} after {last:?}");
        last = newest;
        if round % 3 == 0 {
            chunks.iter().for_each(|chunk| owner.drop_chunk(*chunk));
            owner.tend_to_the_end();
            assert_eq!(owner.chunks(), []);
        }
        if round % 2 == 0 {
            harness.crash();
            owner = Owner::of(&harness);
        }
    }
}

fn a_cancel_stays_beside_its_record(mut harness: impl Harness) {
    let mut owner = Owner::of(&harness);
    owner.put(&[task(1, 0), task(2, 0), task(3, 0)]);
    owner.tend_to_the_end();
    let mut batch = Batch::new(SteadyMs(0));
    [1, 2, 3]
        .iter()
        .for_each(|n| batch.put_cancel(task(*n, 0).id, &a_cancel("paid")));
    owner.commit(batch).expect("the owner can commit");
    let mut expected = owner.content();
    assert_eq!((expected.tasks.len(), expected.cancels.len()), (3, 3));
    for is_folded in [false, true] {
        harness.crash();
        owner = Owner::of(&harness);
        assert_eq!(owner.content(), expected, "folded: {is_folded}");
        owner.tend_to_the_end();
    }
    // A task that is written whole, or removed, no longer has one.
    owner.put(&[task(1, 5)]);
    owner.remove(&task(2, 0));
    expected.tasks.insert(task(1, 5).id, task(1, 5));
    expected.tasks.remove(&task(2, 0).id);
    [1, 2]
        .iter()
        .for_each(|n| drop(expected.cancels.remove(&task(*n, 0).id)));
    for is_folded in [false, true] {
        assert_eq!(owner.content(), expected);
        harness.crash();
        owner = Owner::of(&harness);
        assert_eq!(owner.content(), expected, "folded: {is_folded}");
        owner.tend_to_the_end();
    }
}

fn the_seed_stays_the_same(mut harness: impl Harness) {
    let mut owner = Owner::of(&harness);
    let seed = owner.begun.seed;
    for round in 0..3 {
        harness.crash();
        owner = Owner::of(&harness);
        assert_eq!(owner.begun.seed, seed);
        owner.put(&[task(round, 0)]);
        owner.tend_to_the_end();
    }
    assert_eq!(Owner::of(&harness).begun.seed, seed);
}

fn a_second_fold_is_refused_while_one_is_at_work(harness: impl Harness) {
    let mut owner = Owner::of(&harness);
    owner.put(&[task(1, 0)]);
    owner.fold().expect("the owner can fold");
    let refused = owner.store.fold(owner.begun.epoch, an_empty_fold());
    assert!(matches!(refused, Err(StoreError::Poisoned)), "{refused:?}");
    assert_eq!(Owner::of(&harness).content(), holding(&[task(1, 0)]));
}

fn a_reader_reads_nothing_that_is_not_there(harness: impl Harness) {
    let store = harness.store();
    drop(store);
    let mut owner = Owner::of(&harness);
    owner.put(&[task(1, 0)]);
    owner.tend_to_the_end();
    let reader = owner.store.reader().expect("the owner can read");
    let error = reader
        .packed(ChunkId(77))
        .expect_err("there is no such chunk");
    assert!(error.to_string().starts_with("chunk 77"), "{error}");
    let error = reader
        .index(ChunkId(77))
        .expect_err("there is no such chunk");
    assert!(error.to_string().starts_with("chunk 77"), "{error}");
}

#[derive(Clone, Debug)]
enum Step {
    /// Puts (with this payload) or removes tasks, together with a tombstone and an answer.
    Commit(Vec<(u64, Option<usize>)>),
    Tend(usize),
    /// The next fold writes all marks.
    AllMarks,
    /// Another owner begins; the old one stays around.
    Replace,
    /// Old owners try to commit and to tend.
    Zombies,
    Crash,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let payload =
        prop_oneof![6 => 0..300_usize, 1 => 18_000..24_000_usize, 1 => 40_000..130_000_usize];
    let change = (0..10_u64, prop::option::weighted(0.7, payload));
    let step = prop_oneof![
        8 => prop::collection::vec(change, 0..5).prop_map(Step::Commit),
        6 => (1..40_usize).prop_map(Step::Tend),
        1 => Just(Step::AllMarks),
        1 => Just(Step::Replace),
        1 => Just(Step::Zombies),
        2 => Just(Step::Crash),
    ];
    prop::collection::vec(step, 1..40)
}

fn what_can_be_read_is_what_was_committed(mut harness: impl Harness, steps: Vec<Step>) {
    let mut owner = Owner::of(&harness);
    let mut zombies = VecDeque::new();
    let mut expected = Content::default();
    let mut steady = 0;
    for step in steps {
        match step {
            Step::Commit(changes) => {
                steady += 1;
                let mut batch = Batch::new(SteadyMs(steady));
                for (n, payload) in changes {
                    if let Some(bytes) = payload {
                        let task = large_task(n, bytes);
                        batch.put_task(&task);
                        expected.tasks.insert(task.id, task);
                        let (tombstone, answer) = (a_tombstone(n), an_answer(n, None));
                        batch.put_tombstone(&tombstone);
                        batch.put_answer(&answer);
                        expected
                            .tombstones
                            .insert(format!("{}\0{}", tombstone.topic, tombstone.key), tombstone);
                        expected.answers.insert(answer.key, answer);
                    } else {
                        let tombstone = a_tombstone(n);
                        batch.remove_task(plain_task(n).id);
                        batch.remove_tombstone(&tombstone.topic, &tombstone.key);
                        expected.tasks.remove(&plain_task(n).id);
                        expected
                            .tombstones
                            .remove(&format!("{}\0{}", tombstone.topic, tombstone.key));
                    }
                }
                owner.commit(batch).expect("the owner can commit");
            }
            Step::Tend(slices) => {
                for _ in 0..slices {
                    if owner.tend() == Progress::Idle {
                        break;
                    }
                }
            }
            Step::AllMarks => owner.writes_all_marks = true,
            Step::Replace => {
                zombies.push_back(std::mem::replace(&mut owner, Owner::of(&harness)));
                assert_eq!(owner.content(), expected);
            }
            Step::Zombies => {
                for zombie in &mut zombies {
                    let mut batch = Batch::new(SteadyMs(i64::MAX));
                    batch.put_task(&task(1, 666));
                    let refused = zombie.commit(batch);
                    assert!(
                        is_stale(&refused, zombie.begun.epoch, owner.begun.epoch),
                        "{refused:?}"
                    );
                    assert!(zombie.store.tend(zombie.begun.epoch, 0).is_err());
                }
            }
            Step::Crash => {
                zombies.clear();
                harness.crash();
                let last = owner.begun.epoch;
                owner = Owner::of(&harness);
                assert!(owner.begun.epoch > last);
                assert_eq!(owner.begun.steady, SteadyMs(steady));
                assert_eq!(owner.content(), expected);
            }
        }
        harness.check();
    }
    assert_eq!(owner.content(), expected);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, max_shrink_iters: 200, ..ProptestConfig::default() })]

    #[test]
    fn what_can_be_read_is_what_was_committed_in_memory(steps in steps()) {
        what_can_be_read_is_what_was_committed(Mem::default(), steps);
    }
}

proptest! {
    // A database is opened and its files are copied at each crash.
    #![proptest_config(ProptestConfig { cases: 24, max_shrink_iters: 200, ..ProptestConfig::default() })]

    #[test]
    fn what_can_be_read_is_what_was_committed_locally(steps in steps(), slice_ms in 0..3_u64) {
        let harness = Local::with_slices_of(Duration::from_millis(slice_ms));
        what_can_be_read_is_what_was_committed(harness, steps);
    }
}

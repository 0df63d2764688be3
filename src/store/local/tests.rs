//! What only the local store can do wrong. What it shares with others stands in [`crate::store::conformance`].
#![expect(clippy::unwrap_used, reason = "a test that can't go on should stop")]

use std::fs;
use std::path::PathBuf;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Instant;

use super::journal::SegmentId;
use super::*;
use crate::store::chunk::{Entry, Marks};
use crate::store::codec::Tally;
use crate::store::conformance::harness::{Content, Harness, Local, Owner, Progress};
use crate::store::conformance::two_rounds;
use crate::store::{KeptAnswer, RecordKey};
use crate::task::Task;
use crate::testing::arbitrary::plain_task;

/// Largest part of a value, as a payload that does not pack.
const LARGE: usize = 20 * 1024;

fn tree_of(owner: &Owner<LocalStore>) -> Arc<Tree> {
    owner.store.owned.as_ref().unwrap().tree.clone()
}

/// Keys of the entries of one kind.
fn entries(tree: &Tree, kind: u8) -> Vec<sled::IVec> {
    let entries = tree.entries().scan_prefix([kind]).keys();
    entries.map(Result::unwrap).collect()
}

/// Changes one byte of the first entry of a kind, and has it synced.
fn damage(tree: &Tree, kind: u8) {
    damage_at(tree, kind, 0);
}

fn damage_at(tree: &Tree, kind: u8, place: usize) {
    let key = entries(tree, kind).swap_remove(place);
    let mut value = tree.entries().get(&key).unwrap().unwrap().to_vec();
    let last = value.len() - 1;
    value[last] ^= 1;
    tree.entries().insert(key, value).unwrap();
    tree.sync().unwrap();
}

/// Two chunks and two notes, one of them large; the first task's record is dead.
fn some_content(owner: &mut Owner<LocalStore>) -> Content {
    owner.put(&[plain_task(1), plain_task(2)]);
    owner.tend_to_the_end();
    let mut batch = Batch::new(SteadyMs(0));
    batch.remove_task(plain_task(1).id);
    batch.put_task(&plain_task(3));
    for (key, bytes) in [(1, 10), (2, 50_000)] {
        batch.put_answer(&KeptAnswer {
            key,
            body: 0,
            first_at: crate::clock::WallMs(0),
            until: SteadyMs(0),
            answer: Some((200, vec![b'x'; bytes].into())),
        });
    }
    owner.commit(batch).unwrap();
    owner.tend_to_the_end();
    owner.content()
}

#[test]
fn a_damaged_index_is_named_and_the_rest_is_read() {
    let mut harness = Local::default();
    let mut owner = Owner::of(&harness);
    let mut content = some_content(&mut owner);
    damage(&tree_of(&owner), b'i');
    harness.crash();
    let owner = Owner::of_damaged(&harness);
    let [(place, why)] = &owner.damaged[..] else {
        panic!("{:?}", owner.damaged);
    };
    assert!(place.starts_with("chunk 0 in "), "{place}");
    assert_eq!(why, "the checksum is wrong");
    content.tasks.remove(&plain_task(2).id);
    assert_eq!(owner.content(), content);
    let reader = owner.store.reader().unwrap();
    let error = reader.index(ChunkId(0)).unwrap_err();
    assert!(error.to_string().starts_with("chunk 0 in "), "{error}");
}

#[test]
fn a_damaged_body_is_an_error_when_it_is_read_and_stops_no_start() {
    let mut harness = Local::default();
    let mut owner = Owner::of(&harness);
    some_content(&mut owner);
    damage(&tree_of(&owner), b'c');
    harness.crash();
    let owner = Owner::of(&harness);
    let reader = owner.store.reader().unwrap();
    let [damaged, whole] = owner.chunks()[..] else {
        panic!("there are two");
    };
    let why = reader.packed(damaged).unwrap().unpack().unwrap_err();
    assert_eq!(why.to_string(), "the checksum is wrong");
    assert!(reader.packed(whole).unwrap().unpack().is_ok());
}

#[test]
fn a_body_whose_part_is_missing_is_an_error_and_not_shorter() {
    let harness = Local::default();
    let mut owner = Owner::of(&harness);
    owner.put(&[noisy_task(1, 3 * LARGE)]);
    owner.tend_to_the_end();
    let tree = tree_of(&owner);
    let parts = entries(&tree, b'c');
    assert!(parts.len() >= 3, "{} parts", parts.len());
    let [chunk] = owner.chunks()[..] else {
        panic!("one task is one chunk");
    };
    for missing in [parts.len() - 1, 1, 0] {
        tree.remove(&parts[missing]).unwrap();
        let error = tree.packed(chunk).unwrap_err().to_string();
        assert!(
            error.ends_with(&format!("part {missing} of its body is missing")),
            "{error}"
        );
    }
}

#[test]
fn a_damaged_note_is_named_and_the_rest_is_read() {
    let mut harness = Local::default();
    let mut owner = Owner::of(&harness);
    let content = some_content(&mut owner);
    let tree = tree_of(&owner);
    damage(&tree, b'n');
    damage(&tree, b'p');
    drop(tree);
    harness.crash();
    let owner = Owner::of_damaged(&harness);
    let places: Vec<&str> = owner.damaged.iter().map(|(place, _)| &**place).collect();
    let [first, second] = places[..] else {
        panic!("{places:?}");
    };
    assert!(
        first.starts_with(&RecordKey::Answer(1).to_string()),
        "{first}"
    );
    assert!(
        second.starts_with(&RecordKey::Answer(2).to_string()),
        "{second}"
    );
    assert_eq!(owner.content().tasks, content.tasks);
    assert_eq!(owner.content().answers.len(), 0);
}

#[test]
fn a_note_whose_manifest_is_damaged_is_named_and_its_parts_stay() {
    let mut harness = Local::default();
    let mut owner = Owner::of(&harness);
    some_content(&mut owner);
    let tree = tree_of(&owner);
    let parts = entries(&tree, b'p');
    assert!(!parts.is_empty());
    damage_at(&tree, b'n', 1);
    drop(tree);
    harness.crash();
    let owner = Owner::of_damaged(&harness);
    assert_eq!(owner.damaged.len(), 1, "{:?}", owner.damaged);
    assert_eq!(entries(&tree_of(&owner), b'p'), parts);
}

#[test]
fn of_marks_one_good_copy_is_enough_and_without_one_nobody_begins() {
    let mut harness = Local::default();
    let mut owner = Owner::of(&harness);
    let content = some_content(&mut owner);
    damage(&tree_of(&owner), b'm');
    harness.crash();
    owner = Owner::of(&harness);
    assert_eq!(owner.content(), content);
    damage(&tree_of(&owner), b'M');
    harness.crash();
    let refused = refusal(&harness);
    assert!(refused.starts_with("marks "), "{refused}");
}

#[test]
fn what_sled_has_lost_or_brought_back_is_missed() {
    // (kind of entry, what the refusal names); the dead of lost marks, and a removed note, would come back.
    for (kind, name) in [
        (b'i', "the chunks"),
        (b'm', "the sets of marks"),
        (b'n', "the notes"),
    ] {
        let mut harness = Local::default();
        let mut owner = Owner::of(&harness);
        some_content(&mut owner);
        let tree = tree_of(&owner);
        let entries = |kind| entries(&tree, kind).into_iter().next().unwrap();
        tree.remove(&entries(kind)).unwrap();
        if kind == b'm' {
            tree.remove(&entries(b'M')).unwrap();
        }
        tree.sync().unwrap();
        drop(tree);
        harness.crash();
        let refused = refusal(&harness);
        assert!(refused.starts_with(name), "{refused}");
    }
    let mut harness = Local::default();
    let mut owner = Owner::of(&harness);
    some_content(&mut owner);
    let tree = tree_of(&owner);
    let note = entries(&tree, b'n').into_iter().next().unwrap();
    let value = tree.entries().get(&note).unwrap().unwrap();
    let mut batch = Batch::new(SteadyMs(0));
    batch.remove_answer(1);
    owner.commit(batch).unwrap();
    owner.tend_to_the_end();
    assert_eq!(entries(&tree, b'n').len(), 1);
    tree.entries().insert(note, value).unwrap();
    tree.sync().unwrap();
    drop(tree);
    harness.crash();
    let refused = refusal(&harness);
    assert!(refused.starts_with("the notes"), "{refused}");
}

#[test]
fn a_journal_that_is_gone_is_missed_even_before_the_first_fold() {
    let mut harness = Local::default();
    let mut owner = Owner::of(&harness);
    owner.put(&[plain_task(1)]);
    harness.crash();
    let journal = harness.wheel().with_file_name("journal");
    fs::remove_dir_all(&journal).unwrap();
    let refused = harness.store().begin().unwrap_err().to_string();
    assert!(refused.contains("the journal is gone"), "{refused}");
}

/// Why nobody can take the store over.
fn refusal(harness: &Local) -> String {
    let mut store = harness.store();
    store.begin().unwrap();
    store.recover(&mut |_| {}).unwrap_err().to_string()
}

#[test]
fn a_damaged_checkpoint_or_seed_stops_the_start() {
    for (kind, name) in [(b'k', "the checkpoint"), (b's', "the seed")] {
        let mut harness = Local::default();
        let mut owner = Owner::of(&harness);
        some_content(&mut owner);
        damage(&tree_of(&owner), kind);
        harness.crash();
        let error = harness.store().begin().unwrap_err().to_string();
        assert!(error.starts_with(name), "{error}");
    }
    let mut harness = Local::default();
    let mut owner = Owner::of(&harness);
    some_content(&mut owner);
    let tree = tree_of(&owner);
    tree.remove(b"s").unwrap();
    tree.sync().unwrap();
    drop(tree);
    harness.crash();
    let error = harness.store().begin().unwrap_err().to_string();
    assert!(error.ends_with("is missing"), "{error}");
}

#[test]
fn what_a_fold_that_was_cut_off_has_written_does_not_stay() {
    let mut harness = Local::default();
    let mut owner = Owner::of(&harness);
    let content = two_rounds(&mut owner);
    for slices in 0..40 {
        harness.crash();
        owner = Owner::of(&harness);
        let left = {
            let owned = owner.store.owned.as_ref().unwrap();
            owned.tree.left_behind(&owned.checkpoint).unwrap()
        };
        assert!(left.is_empty(), "after {slices} slices: {left:?}");
        for _ in 0..slices {
            owner.tend();
        }
        // All that it has written reaches the disk before the process dies.
        tree_of(&owner).sync().unwrap();
    }
    harness.crash();
    owner = Owner::of(&harness);
    assert_eq!(owner.content(), content);
    owner.tend_to_the_end();
    let tree = tree_of(&owner);
    assert_eq!(entries(&tree, b'i').len(), owner.chunks().len());
    let named: Vec<_> = owner.chunks().iter().map(|id| id.0.to_be_bytes()).collect();
    for body in entries(&tree, b'c') {
        assert!(named.iter().any(|id| body[1..].starts_with(id)), "{body:?}");
    }
    let large = content.answers.values().filter_map(|it| it.answer.as_ref());
    let large = large.filter(|(_, body)| body.len() > 20 * 1024);
    assert_eq!(entries(&tree, b'p').len(), 2 * large.count());
}

#[test]
fn a_crash_while_a_dropped_chunk_is_removed_leaves_nothing_of_it() {
    let mut harness = Local::default();
    let mut owner = Owner::of(&harness);
    owner.put(&[noisy_task(1, 3 * LARGE), plain_task(2)]);
    owner.tend_to_the_end();
    owner.remove(&plain_task(1));
    let folds = owner.chunks().len();
    // Up to the slice that has synced the fold and begins to remove.
    let mut slices = 0;
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        assert!(Instant::now() < end, "the fold does not come through");
        let before = entries(&tree_of(&owner), b'c').len();
        let progress = owner.tend();
        slices += 1;
        if entries(&tree_of(&owner), b'c').len() < before || progress == Progress::Folded {
            break;
        }
    }
    assert!(folds == 2 && slices > 1);
    // The removal itself was cut off: some of the body and the index are there still.
    let tree = tree_of(&owner);
    let dead = ChunkIndex {
        id: ChunkId(0),
        class: Entry::of(&plain_task(1), 0).class,
        entries: vec![Entry::of(&plain_task(1), 0)],
        packed_bytes: 0,
    };
    let body = PackedChunk::pack(ChunkId(0), [&vec![3; 100][..]]);
    let mut tally = Tally::default();
    tree.put_chunk(&dead.encode(), &body, &mut tally).unwrap();
    tree.sync().unwrap();
    drop(tree);
    harness.crash();
    let owner = Owner::of(&harness);
    assert!(!owner.content().tasks.contains_key(&plain_task(1).id));
    let tree = tree_of(&owner);
    assert_eq!(entries(&tree, b'i').len(), owner.chunks().len());
}

/// A task whose payload does not pack.
fn noisy_task(n: u64, bytes: usize) -> Task {
    let mut task = plain_task(n);
    let mut random = n;
    let mut text = String::from("\"");
    while text.len() < bytes {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        text.push_str(&format!(
            "{:x}",
            xxhash_rust::xxh3::xxh3_128(&random.to_le_bytes())
        ));
    }
    text.push('"');
    Arc::make_mut(&mut task.spec).payload = Some(text.into());
    task
}

#[test]
fn no_leaf_outgrows_its_segment_under_churn() {
    let harness = Local::with_slices_of(Duration::from_millis(2));
    let mut owner = Owner::of(&harness);
    let mut random = 7_u64;
    for round in 0..40 {
        // Chunks whose bodies are parts as large as they get, and small ones.
        let tasks: Vec<Task> = (0..24)
            .map(|n| noisy_task(round * 24 + n, 2 * LARGE))
            .collect();
        owner.put(&tasks);
        owner.tend_to_the_end();
        for chunk in owner.chunks() {
            // Thinning leaves makes them merge: that is when they hold more than sixteen.
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(round);
            if random >> 61 == 0 {
                owner.drop_chunk(chunk);
            }
        }
        owner.tend_to_the_end();
        harness.check();
    }
    assert!(owner.chunks().len() > 20);
}

#[test]
fn with_a_thread_frozen_inside_one_shards_sled_the_others_commit_and_fold() {
    let data = tempfile::tempdir().unwrap();
    let home = LocalHome::new(data.path(), LocalOptions::default());
    let mut frozen = home.store(ShardId(0));
    frozen.begin().unwrap();
    let tree = frozen.owned.as_ref().unwrap().tree.clone();
    let (tell, told) = mpsc::channel();
    let (thaw, thawed) = mpsc::channel::<()>();
    let inside = thread::spawn(move || {
        // sled calls this in the middle of a write.
        let update = |_: Option<&[u8]>| {
            tell.send(()).unwrap();
            let _ = thawed.recv_timeout(Duration::from_secs(60));
            None::<Vec<u8>>
        };
        tree.entries().update_and_fetch(b"x", update).unwrap();
    });
    told.recv_timeout(Duration::from_secs(20)).unwrap();
    for shard in 1..3 {
        let mut store = home.store(ShardId(shard));
        let epoch = store.begin().unwrap().epoch;
        store.recover(&mut |_| {}).unwrap();
        let mut table = crate::store::chunk::Memtable::default();
        for n in 0..300 {
            let mut batch = Batch::new(SteadyMs(0));
            let task = plain_task(n);
            batch.put_task(&task);
            store.commit(epoch, &batch).unwrap();
            let (entry, value) = (Entry::of(&task, 1), crate::store::codec::encode_task(&task));
            let recent = crate::store::chunk::Recent { entry, value };
            table.tasks.insert(task.id, recent);
        }
        let fold = Fold {
            table: Arc::new(table),
            marks: crate::store::chunk::Marks::Changed(Vec::new()),
            drop: Vec::new(),
        };
        store.fold(epoch, fold).unwrap();
        let end = Instant::now() + Duration::from_secs(20);
        while !matches!(store.tend(epoch, 0).unwrap(), Tended::Folded(_)) {
            assert!(Instant::now() < end, "shard {shard} does not fold");
        }
    }
    thaw.send(()).unwrap();
    inside.join().unwrap();
}

#[test]
fn a_fold_that_is_given_up_ends_its_threads() {
    let harness = Local::default();
    let mut owner = Owner::of(&harness);
    let tasks: Vec<Task> = (0..60).map(|n| noisy_task(n, 2 * LARGE)).collect();
    owner.put(&tasks);
    owner.fold().unwrap();
    owner.store.tend(owner.begun.epoch, 0).unwrap();
    let table = {
        let folding = owner.store.owned.as_ref().unwrap().folding.as_ref();
        Arc::downgrade(folding.unwrap().table())
    };
    drop(owner);
    let end = Instant::now() + Duration::from_secs(20);
    // The thread that cuts holds the table as long as it lives.
    while table.upgrade().is_some() {
        assert!(Instant::now() < end, "somebody still cuts");
        thread::yield_now();
    }
}

#[test]
fn a_reader_does_not_keep_the_database_open() {
    let data = tempfile::tempdir().unwrap();
    let home = LocalHome::new(data.path(), LocalOptions::default());
    let mut store = home.store(ShardId(3));
    store.begin().unwrap();
    let reader = store.reader().unwrap();
    drop((store, home));
    let home = LocalHome::new(data.path(), LocalOptions::default());
    assert_eq!(home.store(ShardId(3)).begin().unwrap().epoch, ShardEpoch(2));
    let error = reader.packed(ChunkId(0)).unwrap_err();
    assert!(matches!(error, StoreError::Poisoned), "{error}");
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
        told.recv_timeout(home.options.take_over).unwrap().unwrap(),
        ShardEpoch(2)
    );
    begin.join().unwrap().unwrap();
}

#[test]
fn an_owner_that_passed_the_gate_just_before_it_closed_folds_nothing() {
    let harness = Local::default();
    let mut old = Owner::of(&harness);
    old.put(&[plain_task(1)]);
    old.fold().unwrap();
    let new = Owner::of(&harness);
    let home = old.store.home.clone();
    let refused = old.store.owned.as_mut().unwrap().tend(&home, 0);
    assert!(
        matches!(refused, Err(StoreError::StaleEpoch { .. })),
        "{refused:?}"
    );
    assert_eq!(entries(&tree_of(&new), b'i').len(), 0);
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

/// Not a test: run it with `--release -- --ignored --nocapture`.
#[test]
#[ignore = "it measures, and asserts nothing that hangs on the machine"]
fn what_a_fold_costs() {
    const TASKS: u64 = 100_000;
    const FOLDS: u64 = 10;
    let cpu = || {
        let stat = fs::read_to_string("/proc/self/stat").unwrap();
        let fields: Vec<&str> = stat.rsplit(") ").next().unwrap().split(' ').collect();
        let ticks: u64 = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
        Duration::from_millis(ticks * 10)
    };
    // What a slice waits for and is kept from by other programs is not its own.
    let on_cpu = || {
        let stat = fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
        let spent = stat.split(' ').next().and_then(|nanos| nanos.parse().ok());
        Duration::from_nanos(spent.unwrap_or_default())
    };
    let data = tempfile::tempdir().unwrap();
    let home = LocalHome::new(data.path(), LocalOptions::default());
    let mut store = home.store(ShardId(0));
    let begun = store.begin().unwrap();
    store.recover(&mut |_| {}).unwrap();
    let (mut wall_spent, mut cpu_spent, mut slices) = (Duration::ZERO, Duration::ZERO, 0);
    let mut lengths = Vec::new();
    let mut chunks = Vec::new();
    let mut unpacked = 0;
    for fold in 0..FOLDS {
        let mut table = crate::store::chunk::Memtable::default();
        for batch in 0..TASKS / 1000 {
            let mut changes = Batch::new(SteadyMs(0));
            let mut entries = Vec::new();
            for n in 0..1000 {
                let task = plain_task((fold * TASKS + batch * 1000 + n) * 7919 % (FOLDS * TASKS));
                changes.put_task(&task);
                entries.push(Entry::of(&task, 7));
            }
            unpacked += changes.bytes();
            for (entry, (_, change)) in entries.into_iter().zip(changes.changes()) {
                let crate::store::Change::Put(value) = change else {
                    continue;
                };
                let recent = crate::store::chunk::Recent { entry, value };
                table.tasks.insert(recent.entry.id, recent);
            }
        }
        // The shard has it still, and drops it elsewhere.
        let table = Arc::new(table);
        let (start, cpu_start) = (Instant::now(), cpu());
        let fold = Fold {
            table: table.clone(),
            marks: crate::store::chunk::Marks::Changed(Vec::new()),
            drop: Vec::new(),
        };
        store.fold(begun.epoch, fold).unwrap();
        loop {
            let (slice, on_cpu_before) = (Instant::now(), on_cpu());
            let tended = store.tend(begun.epoch, 0).unwrap();
            slices += 1;
            lengths.push((slice.elapsed(), on_cpu() - on_cpu_before));
            if let Tended::Folded(folded) = tended {
                chunks.extend(folded.chunks);
                break;
            }
        }
        wall_spent += start.elapsed();
        cpu_spent += cpu() - cpu_start;
    }
    let tasks = (FOLDS * TASKS) as f64;
    let per_task = |spent: Duration| spent.as_secs_f64() * 1e6 / tasks;
    let packed: u64 = chunks
        .iter()
        .map(|chunk| u64::from(chunk.packed_bytes))
        .sum();
    let indexes: usize = chunks.iter().map(|chunk| chunk.encode().len()).sum();
    let on_disk = fs::metadata(data.path().join("shards/000/wheel/db"))
        .unwrap()
        .len();
    let longest = |lengths: &mut dyn Iterator<Item = Duration>| {
        let mut lengths: Vec<_> = lengths.collect();
        lengths.sort_unstable();
        format!("{:.1?}", &lengths[lengths.len() - 5..])
    };
    let longest_wall = longest(&mut lengths.iter().map(|(wall, _)| *wall));
    let longest_cpu = longest(&mut lengths.iter().map(|(_, cpu)| *cpu));
    let mut out = format!(
        "fold: {:.2} us wall, {:.2} us CPU a task; {slices} slices\n\
         the longest: {longest_wall}, and on the processor {longest_cpu}\n\
         bytes a task: {:.0} unpacked, {:.0} packed, {:.0} index, {:.0} in sled's file\n",
        per_task(wall_spent),
        per_task(cpu_spent),
        unpacked as f64 / tasks,
        packed as f64 / tasks,
        indexes as f64 / tasks,
        on_disk as f64 / tasks,
    );
    drop((store, home));
    let home = LocalHome::new(data.path(), LocalOptions::default());
    let mut store = home.store(ShardId(0));
    let start = Instant::now();
    store.begin().unwrap();
    let begun = start.elapsed();
    let mut entries = 0;
    store
        .recover(&mut |found| {
            if let Stored::Chunk(index, _) = found {
                entries += index.entries.len();
            }
        })
        .unwrap();
    out += &format!(
        "start: begin {begun:?}, then {:.3} us an entry, {entries} of them\n",
        (start.elapsed() - begun).as_secs_f64() * 1e6 / entries as f64
    );
    let reader = store.reader().unwrap();
    let (mut cold, mut warm) = (Duration::ZERO, Duration::ZERO);
    let reads = 1000;
    for n in 0..reads {
        let chunk = &chunks[(n * 7919) % chunks.len()];
        for spent in [&mut cold, &mut warm] {
            let start = Instant::now();
            let body = reader.packed(chunk.id).unwrap().unpack().unwrap();
            assert!(body.record(chunk.entries.len() / 2).is_some());
            *spent += start.elapsed();
        }
    }
    out += &format!(
        "read: {:?} cold, {:?} again\n",
        cold / reads as u32,
        warm / reads as u32
    );
    std::io::Write::write_all(&mut std::io::stderr(), out.as_bytes()).unwrap();
}

#[test]
fn an_owner_that_hangs_in_a_slice_holds_the_store_and_one_that_wakes_is_refused_and_counted() {
    let data = tempfile::tempdir().unwrap();
    let options = LocalOptions {
        take_over: Duration::from_millis(20),
        ..LocalOptions::default()
    };
    let (home, shard) = (LocalHome::new(data.path(), options), ShardId(0));
    let mut old = home.store(shard);
    let begun = old.begin().unwrap();
    old.recover(&mut |_| {}).unwrap();
    let slice = old.home.clone();
    let slice = slice.tree.lock();
    let held = home.store(shard).begin();
    assert!(matches!(held, Err(StoreError::Held { .. })), "{held:?}");
    drop(slice);
    let mut new = home.store(shard);
    assert!(new.begin().unwrap().epoch > begun.epoch);
    assert_eq!(home.refusals(shard).load(Ordering::Relaxed), 0);
    let refused = old.commit(begun.epoch, &Batch::new(SteadyMs(0)));
    assert!(matches!(refused, Err(StoreError::StaleEpoch { .. })));
    assert_eq!(home.refusals(shard).load(Ordering::Relaxed), 1);
}

#[test]
fn segments_of_the_journal_stay_for_one_fold_longer_where_they_are_copied() {
    for (drops_late, expected) in [(false, [1, 1, 1]), (true, [2, 2, 1])] {
        let data = tempfile::tempdir().unwrap();
        let options = LocalOptions {
            drops_late,
            ..LocalOptions::default()
        };
        let home = LocalHome::new(data.path(), options);
        let mut store = home.store(ShardId(0));
        let epoch = store.begin().unwrap().epoch;
        store.recover(&mut |_| {}).unwrap();
        let journal = path_of(data.path(), ShardId(0)).join("journal");
        // Each commit takes a segment of its own.
        let large = |n: u64| {
            let mut batch = Batch::new(SteadyMs(0));
            batch.put_task(&noisy_task(n, 2 << 20));
            batch
        };
        let mut left = Vec::new();
        for round in 0..3 {
            if round < 2 {
                (0..2).for_each(|n| store.commit(epoch, &large(2 * round + n)).unwrap());
            }
            let fold = Fold {
                table: Arc::default(),
                marks: Marks::Changed(Vec::new()),
                drop: Vec::new(),
            };
            store.fold(epoch, fold).unwrap();
            while !matches!(store.tend(epoch, usize::MAX).unwrap(), Tended::Folded(_)) {}
            left.push(SegmentId::all_in(&journal).unwrap().len());
        }
        assert_eq!(left, expected, "{drops_late}");
    }
}

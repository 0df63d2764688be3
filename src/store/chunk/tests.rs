#![expect(clippy::unwrap_used, reason = "a test that can't go on should stop")]

use proptest::prelude::*;

use super::*;
use crate::clock::SteadyMs;
use crate::store::{Batch, Change};
use crate::testing::arbitrary::{a_task, plain_task};

const STATES: [State; 8] = [
    State::Pending,
    State::Dispatched,
    State::Running,
    State::Retrying,
    State::Paused,
    State::Succeeded,
    State::Dead,
    State::Cancelled,
];

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn value_of(task: &Task) -> Bytes {
    let mut batch = Batch::new(SteadyMs(0));
    batch.put_task(task);
    match batch.changes().next().unwrap().1 {
        Change::Put(value) => value,
        other => panic!("{other:?}"),
    }
}

fn table_of(tasks: impl IntoIterator<Item = Task>) -> Arc<Memtable> {
    let mut table = Memtable::default();
    for task in tasks {
        let recent = Recent {
            entry: Entry::of(&task, 7),
            value: value_of(&task),
        };
        table.tasks.insert(task.id, recent);
    }
    Arc::new(table)
}

fn cut(tasks: impl IntoIterator<Item = Task>) -> Vec<Cut> {
    Cutter::new(table_of(tasks), ChunkId(1)).collect()
}

fn golden_index() -> ChunkIndex {
    let waiting = Entry {
        id: plain_task(1).id,
        topic: TopicName::parse("order.unpaid").unwrap(),
        key_hash: 0x1122_3344_5566_7788,
        class: Class::Steady,
        state: State::Pending,
        generation: 1,
        due_ms: 1_796_001_800_001,
        ended_ms: 0,
        wake_ms: 1_796_001_799_981,
        has_more_alarms: false,
        calls_back: false,
    };
    let other = Entry {
        id: plain_task(2).id,
        topic: TopicName::parse("b").unwrap(),
        key_hash: 0,
        state: State::Cancelled,
        generation: 0x0A0B_0C0D,
        due_ms: -1,
        ended_ms: 9,
        wake_ms: i64::MAX,
        has_more_alarms: true,
        ..waiting.clone()
    };
    ChunkIndex {
        id: ChunkId(0x0102),
        class: Class::Steady,
        entries: vec![waiting.clone(), other, waiting],
        packed_bytes: 1000,
    }
}

#[test]
fn the_bytes_of_an_index_are_what_they_always_were() {
    // A change here means that stored chunks no longer read: give the new form a version of its own.
    let index = golden_index();
    assert_eq!(hex(&index.encode()), GOLDEN_INDEX);
    assert_eq!(ChunkIndex::decode(index.id, &index.encode()), Ok(index));
}

const GOLDEN_INDEX: &str = concat!(
    "01f23270c4010302e80300000c6f726465722e756e706169640162",
    "01a229f12801785b80000000000000018877665544332211419f0c2aa201000000000000000000002d9f0c2aa201000001",
    "0000000000",
    "01a229f128027c8080000000000000020000000000000000ffffffffffffffff0900000000000000ffffffffffffff7f0d",
    "0c0b0a0187",
    "01a229f12801785b80000000000000018877665544332211419f0c2aa201000000000000000000002d9f0c2aa201000001",
    "0000000000",
);

#[test]
fn the_bytes_of_a_body_are_what_they_always_were() {
    for (records, golden) in [
        ([&b"abcdefgh"[..], b""], GOLDEN_PLAIN_BODY),
        (
            [
                &b"0123456789abcdef0123456789abcdef0123456789abcdef"[..],
                b"1",
            ],
            GOLDEN_PACKED_BODY,
        ),
    ] {
        let body = PackedChunk::pack(ChunkId(3), records);
        assert_eq!(hex(&body.bytes), golden);
        let unpacked = body.unpack().unwrap();
        assert_eq!(unpacked.len(), 2);
        assert_eq!(unpacked.record(0).unwrap(), records[0]);
        assert_eq!(unpacked.record(1).unwrap(), records[1]);
        assert_eq!(unpacked.record(2), None);
    }
}

const GOLDEN_PLAIN_BODY: &str = "01de4f2134011f000000120000005102000800000400806162636465666768";
const GOLDEN_PACKED_BODY: &str = concat!(
    "01a69b8d3601340000003b000000ff0b020030000000310000003031323334353637383961626364",
    "656610000860626364656631",
);

#[test]
fn every_flipped_bit_and_every_missing_end_is_noticed() {
    let index = golden_index();
    let value = index.encode();
    let body = PackedChunk::pack(index.id, [&*value_of(&plain_task(1)), &[7; 300]]);
    let whole = |bytes: &[u8]| PackedChunk {
        id: index.id,
        bytes: Bytes::copy_from_slice(bytes),
    };
    for at in 0..value.len() * 8 {
        let mut flipped = value.clone();
        flipped[at / 8] ^= 1 << (at % 8);
        assert!(ChunkIndex::decode(index.id, &flipped).is_err(), "bit {at}");
        assert!(ChunkIndex::decode(index.id, &value[..at / 8]).is_err());
    }
    for at in 0..body.bytes.len() * 8 {
        let mut flipped = body.bytes.to_vec();
        flipped[at / 8] ^= 1 << (at % 8);
        assert!(whole(&flipped).unpack().is_err(), "bit {at}");
        assert!(whole(&body.bytes[..at / 8]).unpack().is_err());
    }
    assert!(whole(&body.bytes).unpack().is_ok());
}

#[test]
fn a_value_in_anothers_place_is_noticed() {
    let index = golden_index();
    let other = ChunkId(index.id.0 + 1);
    assert!(ChunkIndex::decode(other, &index.encode()).is_err());
    let mut body = PackedChunk::pack(index.id, [&b"record"[..]]);
    assert!(ChunkIndex::decode(index.id, &body.bytes).is_err());
    body.id = other;
    assert!(body.unpack().is_err());
}

#[test]
fn chunks_hold_one_class_each_sorted_by_when_their_records_matter() {
    let tasks = (0..1000).map(|n| {
        let mut task = plain_task(n * 7919 % 1000);
        task.state = STATES[(n % 8) as usize];
        task.expires = Some(SteadyMs((n * 31 % 1000) as i64));
        task
    });
    let chunks = cut(tasks);
    let numbers: Vec<u64> = chunks.iter().map(|cut| cut.index.id.0).collect();
    assert_eq!(numbers, (1..=numbers.len() as u64).collect::<Vec<_>>());
    assert!(chunks.is_sorted_by_key(|cut| cut.index.class));
    let mut seen = 0;
    for Cut { index, body, .. } in &chunks {
        assert!(index.entries.iter().all(|entry| entry.class == index.class));
        assert!(index.entries.is_sorted_by_key(|entry| entry.wake_ms));
        let body = body.unpack().unwrap();
        assert_eq!(body.len(), index.entries.len());
        for (place, entry) in index.entries.iter().enumerate() {
            let record = body.record(place).unwrap();
            let task = crate::store::codec::decode_task(entry.id, &record).unwrap();
            assert_eq!(Entry::of(&task, 7), *entry);
        }
        seen += index.entries.len();
    }
    assert_eq!(seen, 1000);
}

#[test]
fn a_chunk_is_closed_when_it_is_full_by_count_or_by_size() {
    let by_count = cut((0..300).map(|n| {
        let mut task = plain_task(n);
        Arc::make_mut(&mut task.spec).payload = None;
        task
    }));
    let counts: Vec<usize> = by_count.iter().map(|cut| cut.index.entries.len()).collect();
    assert_eq!(counts, [128, 128, 44]);
    let by_size = cut((0..10).map(|n| {
        let mut task = plain_task(n);
        let payload = format!("\"{}\"", "x".repeat(15_000));
        Arc::make_mut(&mut task.spec).payload = Some(payload.into());
        task
    }));
    let counts: Vec<usize> = by_size.iter().map(|cut| cut.index.entries.len()).collect();
    assert_eq!(counts, [3, 3, 3, 1]);
    assert!(cut([]).is_empty());
}

#[test]
fn the_largest_index_fits_its_bound() {
    let entries = (0..128).map(|n| {
        let mut task = plain_task(n);
        task.topic = TopicName::parse(&format!("{n:0>128}")).unwrap();
        Entry::of(&task, 0)
    });
    let index = ChunkIndex {
        id: ChunkId(1),
        class: Class::Steady,
        entries: entries.collect(),
        packed_bytes: 0,
    };
    assert_eq!(index.encode().len(), INDEX_BYTES_MAX);
    assert!(ChunkIndex::decode(index.id, &index.encode()) == Ok(index));
}

#[test]
fn a_full_mask_has_a_bit_for_each_record() {
    assert_eq!(full_mask(0), 0);
    assert_eq!(full_mask(3), 0b111);
    assert_eq!(full_mask(CHUNK_RECORDS_MAX), Mask::MAX);
}

proptest! {
    #[test]
    fn every_index_comes_back_as_it_was(
        tasks in prop::collection::vec(a_task(), 0..40),
        (id, packed_bytes) in any::<(u64, u32)>(),
        class in prop::sample::select(Class::ALL.to_vec()),
        (more, calls) in any::<(bool, bool)>(),
    ) {
        let entries = tasks.iter().map(|task| Entry {
            class,
            has_more_alarms: more,
            calls_back: calls,
            ..Entry::of(task, 3)
        });
        let index = ChunkIndex { id: ChunkId(id), class, entries: entries.collect(), packed_bytes };
        prop_assert_eq!(ChunkIndex::decode(index.id, &index.encode()).unwrap(), index);
    }

    #[test]
    fn every_body_comes_back_as_it_was(
        records in prop::collection::vec(prop::collection::vec(0..4_u8, 0..300), 0..128),
        id in any::<u64>(),
    ) {
        let body = PackedChunk::pack(ChunkId(id), records.iter().map(Vec::as_slice));
        prop_assert_eq!(PackedChunk::bytes_of(&body.bytes), Some(body.bytes.len()));
        let unpacked = body.unpack().unwrap();
        prop_assert_eq!(unpacked.len(), records.len());
        for (place, record) in records.iter().enumerate() {
            prop_assert_eq!(&unpacked.record(place).unwrap(), record);
        }
    }

    #[test]
    fn nothing_that_is_not_ours_makes_decoding_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        // With a right sum too, so that the fields themselves are met.
        for value in stored::sealed_for_test(ChunkId(5), &bytes) {
            let _ = ChunkIndex::decode(ChunkId(5), &value);
            let _ = PackedChunk { id: ChunkId(5), bytes: value.into() }.unpack();
        }
    }
}

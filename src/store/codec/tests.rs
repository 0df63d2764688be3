use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::ids::{AttemptNumber, AttemptToken};
use crate::task::history::ErrorNote;
use crate::task::late::Treatment;
use crate::task::model::State;
use crate::task::spec::{Action, OnEnd, RawJson, TaskSpec};
use crate::testing::arbitrary::{
    a_late_answer, a_task, a_tombstone, an_answer, clocked_task, golden_task, guarded_task,
    plain_task, staged_task,
};

fn value_of(task: &Task) -> Vec<u8> {
    let mut batch = Batch::new(SteadyMs(0));
    batch.put_task(task);
    first_value(&mut batch)
}

fn first_value(batch: &mut Batch) -> Vec<u8> {
    match batch.changes().next().unwrap().1 {
        Change::Put(value) | Change::Cancel(value) => value.to_vec(),
        Change::Remove => panic!("it has no value"),
    }
}

fn a_cancel() -> Cancel {
    Cancel {
        at: WallMs(1_796_000_000_000),
        steady: SteadyMs(-3),
        retention: DurationMs(86_400_000),
        by: "api".into(),
        reason: "paid".into(),
        request: Some(9),
    }
}

fn tally(count: u64, sum: u64) -> Tally {
    Tally { count, sum }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn what_reads_of_a_damaged_batch_is_got_out_of_it_and_the_rest_is_named() {
    let tasks = [1, 2, 3].map(plain_task);
    let mut batch = Batch::new(SteadyMs(7));
    batch.put_task(&tasks[0]);
    batch.put_cancel(tasks[1].id, &a_cancel());
    batch.remove_task(tasks[2].id);
    batch.put_task(&tasks[1]);
    let payload = batch.encode().to_vec();
    // As a journal's frame ends.
    let filled = [&payload[..], &[0; 7]].concat();
    let whole = Batch::salvage(&filled);
    assert!(whole.is_all && whole.doubtful.is_empty());
    assert_eq!(
        whole.batch.encode()[BATCH_HEADER_BYTES..],
        payload[BATCH_HEADER_BYTES..]
    );

    let first = value_of(&tasks[0]).len();
    let header = size_of::<KeyBytes>() + 4;
    let value_at = BATCH_HEADER_BYTES + header;
    let mut rotten = payload.clone();
    rotten[value_at + first / 2] ^= 1;
    let part = Batch::salvage(&rotten);
    assert!(part.is_all);
    assert_eq!(
        (part.batch.len(), part.doubtful),
        (3, vec![RecordKey::Task(tasks[0].id)])
    );
    let mut left = Batch::decode(part.batch.encode().to_vec()).unwrap();
    let left = left.changes().map(|(key, _)| key);
    assert!(left.eq([1, 2, 1].map(|n: usize| RecordKey::Task(tasks[n].id))));

    // Where a length is wrong nothing behind it can be told apart.
    let mut rotten = payload.clone();
    rotten[value_at - 2] ^= 0x40;
    let none = Batch::salvage(&rotten);
    assert!(!none.is_all && none.batch.is_empty());
    assert!(!Batch::salvage(&payload[..payload.len() - 1]).is_all);
}

#[test]
fn the_bytes_of_a_task_are_what_they_always_were() {
    // A change here means that stored tasks no longer read: give the new form a version of its own.
    let task = golden_task();
    assert_eq!(hex(&value_of(&task)), GOLDEN);
    assert_eq!(decode_task(task.id, &value_of(&task)).unwrap(), task);
    let task = staged_task();
    assert_eq!(hex(&value_of(&task)), GOLDEN_WITH_STAGES);
    assert_eq!(decode_task(task.id, &value_of(&task)).unwrap(), task);
    let task = clocked_task();
    assert_eq!(hex(&value_of(&task)), GOLDEN_WITH_CLOCKS);
    assert_eq!(decode_task(task.id, &value_of(&task)).unwrap(), task);
    let task = guarded_task();
    assert_eq!(hex(&value_of(&task)), GOLDEN_WITH_GUARDS);
    assert_eq!(decode_task(task.id, &value_of(&task)).unwrap(), task);
    let mut task = plain_task(1);
    let spec = Arc::make_mut(&mut task.spec);
    let Action::Http(http) = &mut spec.action else {
        panic!("a plain task pushes");
    };
    http.success_if = Some("body.ok".to_owned());
    assert_eq!(hex(&value_of(&task)), GOLDEN_WITH_CONDITION);
    assert_eq!(decode_task(task.id, &value_of(&task)).unwrap(), task);
    let mut task = plain_task(1);
    let spec = Arc::make_mut(&mut task.spec);
    let (http, retry) = match golden_task().spec.as_ref().clone() {
        TaskSpec {
            action: Action::Http(http),
            retry,
            ..
        } => (http, Some(retry)),
        _ => panic!("the golden task pushes"),
    };
    spec.on_end = Some(Box::new(OnEnd { http, retry }));
    spec.callback_of = Some(plain_task(2).id);
    assert_eq!(hex(&value_of(&task)), GOLDEN_WITH_CALLBACK);
    assert_eq!(decode_task(task.id, &value_of(&task)).unwrap(), task);
}

const GOLDEN_WITH_GUARDS: &str = concat!(
    "03a4dbecdcfdd43e19544403000001fdd43e19544403000001fd5096e2534403000000fd5096e2",
    "53440300000c6f726465722e756e70616964010e6f726465722d30303030303034320e00196874",
    "7470733a2f2f6578616d706c652e6f72672f636c6f7365035055540106782d73686f70016102c8",
    "fb94010010216861732866616374732e7061696429010f7b226f726465725f6964223a34327d02",
    "fbe8030000000000000040fb60ea000000000000d03f050108687474705f34787801fb1027fbd0",
    "0701fc00dd6d00010001fb60ea0106726567696f6e026575010c7b22766970223a747275657d06",
    "02011201fde853e25344030000fd5450e25344030000fd5450e2534403000001fd209ee2534403",
    "000001fd202ee088450300000103fb2c010101fd5296e253440300000102773101fb307501010e",
    "0104010401070108687474705f353033046275737901025b5d0101010401fd0807060504030201",
    "0103fb2c010200fd209ee253440300000000010108687474705f35303304627573790101fd5450",
    "e25344030000000003617069076372656174656401030864697370617463680005010e68617328",
    "66616374732e7669702901010672656d696e640100010e6861732866616374732e766970290006",
    "63616e63656c00fc70110100010e6861732866616374732e766970290103010104010001fdca3e",
    "19544403000001fdca3e1954440300000101086469737061746368020303040100011968747470",
    "733a2f2f6578616d706c652e6f72672f636c6f7365035055540106782d73686f70016102c8fb94",
    "0100010b626f64792e756e706169640109626f64792e7061696401fcc027090002",
);

const GOLDEN_WITH_CALLBACK: &str = concat!(
    "0161c8e4effd823e19544403000001fd823e195444030000000c6f726465722e756e7061696401",
    "0e6f726465722d30303030303030310c0b001b687474703a2f2f3132372e302e302e313a393030",
    "302f636c6f736504504f535400001968747470733a2f2f6578616d706c652e6f72672f636c6f73",
    "65035055540106782d73686f70016102c8fb9401000102fbe8030000000000000040fb60ea0000",
    "00000000d03f050108687474705f3478780101a229f128027c808000000000000002013d7b226f",
    "726465725f6964223a30303030303030312c22637573746f6d6572223a22632d3137222c22616d",
    "6f756e745f63656e7473223a3132393930307d0004fb60eafce0930400fcc0270900fc40771b00",
    "00000000000000000b00fb3075fbd00700000100000000010000fd0250e25344030000fd0250e2",
    "5344030000000000000000000000000000000000000001fd0250e2534403000000000361706907",
    "6372656174656401",
);

const GOLDEN: &str = concat!(
    "015110acdafdd43e19544403000001fdd43e19544403000001fd5096e2534403000000fd5096e253",
    "440300000c6f726465722e756e70616964010e6f726465722d303030303030343200196874747073",
    "3a2f2f6578616d706c652e6f72672f636c6f7365035055540106782d73686f70016102c8fb940101",
    "0f7b226f726465725f6964223a34327d02fbe8030000000000000040fb60ea000000000000d03f05",
    "0108687474705f34787801fb1027fbd00701fc00dd6d00010001fb60ea0106726567696f6e026575",
    "010c7b22766970223a747275657d0602011201fde853e25344030000fd5450e25344030000fd5450",
    "e2534403000001fd209ee2534403000001fd202ee088450300000103fb2c010101fd5296e2534403",
    "00000102773101fb307501010e0101010401070108687474705f353033046275737901025b5d0101",
    "010401fd08070605040302010103fb2c010200fd209ee253440300000000010108687474705f3530",
    "3304627573790101fd5450e25344030000000003617069076372656174656401",
);

const GOLDEN_WITH_STAGES: &str = concat!(
    "02bede2e49fdd43e19544403000001fdd43e19544403000001fd5096e2534403000000fd5096e253",
    "440300000c6f726465722e756e70616964010e6f726465722d303030303030343200196874747073",
    "3a2f2f6578616d706c652e6f72672f636c6f7365035055540106782d73686f70016102c8fb940101",
    "0f7b226f726465725f6964223a34327d02fbe8030000000000000040fb60ea000000000000d03f05",
    "0108687474705f34787801fb1027fbd00701fc00dd6d00010001fb60ea0106726567696f6e026575",
    "010c7b22766970223a747275657d0602011201fde853e25344030000fd5450e25344030000fd5450",
    "e2534403000001fd209ee2534403000001fd202ee088450300000103fb2c010101fd5296e2534403",
    "00000102773101fb307501010e0101010401070108687474705f353033046275737901025b5d0101",
    "010401fd08070605040302010103fb2c010200fd209ee253440300000000010108687474705f3530",
    "3304627573790101fd5450e253440300000000036170690763726561746564010308646973706174",
    "63680005010e6861732866616374732e7669702901010672656d696e640100010e68617328666163",
    "74732e76697029000663616e63656c00fc70110100010e6861732866616374732e76697029010301",
    "0104010001fdca3e19544403000001fdca3e1954440300000101086469737061746368",
);

const GOLDEN_WITH_CLOCKS: &str = concat!(
    "033cd2934dfdd43e19544403000001fdd43e19544403000001fd5096e2534403000000fd5096e253",
    "440300000c6f726465722e756e70616964010e6f726465722d30303030303034320d001968747470",
    "733a2f2f6578616d706c652e6f72672f636c6f7365035055540106782d73686f70016102c8fb9401",
    "01fb307501fce093040004010002010003020463616c6c03020103010f7b226f726465725f696422",
    "3a34327d02fbe8030000000000000040fb60ea000000000000d03f050108687474705f34787801fb",
    "1027fbd00701fc00dd6d00010001fb60ea0106726567696f6e026575010c7b22766970223a747275",
    "657d0602011201fde853e25344030000fd5450e25344030000fd5450e2534403000001fd209ee253",
    "4403000001fd202ee088450300000103fb2c010101fd5296e253440300000102773101fb30750101",
    "0e0101010401070108687474705f353033046275737901025b5d0101010401fd0807060504030201",
    "0103fb2c010200fd209ee253440300000000010108687474705f35303304627573790101fd5450e2",
    "53440300000000036170690763726561746564010000010003000a7b2270616765223a377d010002",
    "0802",
);

const GOLDEN_WITH_CONDITION: &str = concat!(
    "01a4e7c4cffd823e19544403000001fd823e195444030000000c6f726465722e756e70616964010e",
    "6f726465722d3030303030303031041b687474703a2f2f3132372e302e302e313a393030302f636c",
    "6f736504504f5354000007626f64792e6f6b013d7b226f726465725f6964223a3030303030303031",
    "2c22637573746f6d6572223a22632d3137222c22616d6f756e745f63656e7473223a313239393030",
    "7d0004fb60eafce0930400fcc0270900fc40771b0000000000000000000b00fb3075fbd007000001",
    "00000000010000fd0250e25344030000fd0250e25344030000000000000000000000000000000000",
    "000001fd0250e25344030000000003617069076372656174656401",
);

#[test]
fn the_bytes_of_notes_batches_and_checkpoints_are_what_they_always_were() {
    let task = plain_task(1);
    let tombstone = Tombstone {
        topic: task.topic,
        key: task.key.unwrap(),
        until: SteadyMs(1_796_000_000_000),
        reason: "paid".into(),
    };
    let answer = KeptAnswer {
        key: 0x11,
        body: 0x22,
        first_at: crate::clock::WallMs(3),
        until: SteadyMs(4),
        answer: Some((201, Bytes::from_static(b"{}"))),
    };
    let mut batch = Batch::new(SteadyMs(0x0102));
    batch.put_tombstone(&tombstone);
    batch.put_answer(&answer);
    batch.put_cancel(task.id, &a_cancel());
    batch.remove_task(task.id);
    assert_eq!(hex(batch.encode()), GOLDEN_BATCH);
    let checkpoint = Checkpoint {
        covered: 1000,
        steady: SteadyMs(-2),
        fold: 300,
        marks_from: 7,
        next_chunk: ChunkId(70_000),
        chunks: tally(3, 1 << 40),
        marks: tally(2, 5),
        notes: tally(300, u64::MAX),
    };
    let marks = [(ChunkId(1), 5), (ChunkId(9), Mask::MAX)];
    let manifest = Manifest {
        stamp: 4,
        parts: 50,
        bytes: 1_000_000,
    };
    let values = [
        checkpoint.encode(b"k"),
        encode_marks(b"m", &marks),
        encode_seed(b"s", u64::MAX - 1),
        manifest.encode(b"n"),
    ];
    assert_eq!(values.map(|value| hex(&value)), GOLDEN_VALUES);
}

const GOLDEN_BATCH: &str = concat!(
    "0202010000000000000296598c3be8493152f4fd358a5bcdf4a32f000000018cf7a3530c6f726465",
    "722e756e706169640e6f726465722d3030303030303031fd0050e253440300000470616964030000",
    "00000000000000000000000000110d00000001cd8ea26122060801c9027b7d4101a229f12801785b",
    "80000000000000011f000000013098d863fd0050e2534403000005fc005c26050361706904706169",
    "6401098101a229f12801785b8000000000000001",
);
const GOLDEN_VALUES: [&str; 4] = [
    "018808a538fbe80303fb2c0107fc7011010003fd00000000000100000205fb2c01fdffffffffffffffff",
    "0163820ff202010509feffffffffffffffffffffffffffffffff",
    "0106caf00cfdfeffffffffffffff",
    "01b36ca9e10432fc40420f00",
];

#[test]
fn the_bytes_of_a_late_answer_are_what_they_always_were() {
    let task = plain_task(1);
    let late = LateAnswer {
        task: task.id,
        topic: task.topic,
        key: task.key,
        attempt: Some(AttemptNumber(3)),
        generation: Some(2),
        token: AttemptToken(300),
        outcome: "succeeded",
        error: None,
        result: Some(RawJson::from("[1]".to_owned())),
        result_dropped: false,
        by: "worker".into(),
        worker: Some("w1".into()),
        at: WallMs(1_796_000_000_000),
        ended_as: Some("lease_expired"),
        state: State::Running,
        treatment: Treatment::Compensated(plain_task(2).id),
    };
    let failed = LateAnswer {
        outcome: "failed",
        error: Some(ErrorNote {
            code: "no_stock".into(),
            message: "none left".into(),
        }),
        result: None,
        worker: None,
        treatment: Treatment::Refused,
        ..late.clone()
    };
    let mut batch = Batch::new(SteadyMs(0x0102));
    for late in [&late, &failed] {
        batch.put_late(late);
    }
    batch.remove_late(late_key(&late));
    assert_eq!(hex(batch.encode()), GOLDEN_LATE);
}

const GOLDEN_LATE: &str = concat!(
    "02020100000000000004edaa6a02599ea3c5beddbd67d0d78abb69000000018e10c78b01a229f128",
    "01785b80000000000000010c6f726465722e756e70616964010e6f726465722d3030303030303031",
    "01030102fb2c01000001035b315d0006776f726b657201027731fd0050e253440300000103020201",
    "a229f128027c8080000000000000020407f1a3c15b8ee3a05d854a7d43905fad6500000001ae44ad",
    "8801a229f12801785b80000000000000010c6f726465722e756e70616964010e6f726465722d3030",
    "30303030303101030102fb2c010101086e6f5f73746f636b096e6f6e65206c656674000006776f72",
    "6b657200fd0050e253440300000103020084edaa6a02599ea3c5beddbd67d0d78abb",
);

#[test]
fn a_typical_task_is_small() {
    let bytes = value_of(&plain_task(7)).len();
    assert!((150..=260).contains(&bytes), "{bytes} bytes");
}

#[test]
fn a_batch_of_another_format_is_refused() {
    let mut payload = Batch::new(SteadyMs(5)).encode().to_vec();
    payload[0] = 9;
    let error = Batch::decode(payload).unwrap_err();
    assert_eq!(error.to_string(), "a batch of the unknown format 9");
    assert!(Batch::decode(Vec::new()).is_err());
}

#[test]
fn a_checkpoint_comes_back_only_under_its_own_key() {
    let checkpoint = Checkpoint {
        covered: 7,
        steady: SteadyMs(-4),
        fold: 3,
        marks_from: 2,
        next_chunk: ChunkId(1),
        chunks: tally(1, 2),
        ..Checkpoint::default()
    };
    let value = checkpoint.encode(&[0]);
    assert_eq!(Checkpoint::decode(&[0], &value), Ok(checkpoint));
    assert!(Checkpoint::decode(&[1], &value).is_err());
}

#[test]
fn a_cancel_comes_back_only_for_its_own_task() {
    let (task, other) = (plain_task(1).id, plain_task(2).id);
    let mut batch = Batch::new(SteadyMs(0));
    batch.put_cancel(task, &a_cancel());
    let (key, change) = batch.changes().next().unwrap();
    assert!(matches!(change, Change::Cancel(_)), "{change:?}");
    assert_eq!(key, RecordKey::Task(task));
    let value = first_value(&mut batch);
    assert_eq!(decode_cancel(task, &value), Ok(a_cancel()));
    assert!(decode_cancel(other, &value).is_err());
}

#[test]
fn marks_seeds_and_manifests_come_back_only_under_their_own_keys() {
    // As wide as a mark can be, so that their number bounds an entry.
    let marks = vec![(ChunkId(u64::MAX), Mask::MAX); 700];
    let value = encode_marks(b"m1", &marks);
    assert!(value.len() <= 20 * 1024, "{} bytes", value.len());
    assert_eq!(decode_marks(b"m1", &value), Ok(marks));
    assert!(decode_marks(b"m2", &value).is_err());
    let value = encode_seed(b"s", 17);
    assert_eq!(decode_seed(b"s", &value), Ok(17));
    assert!(decode_seed(b"k", &value).is_err());
    let manifest = Manifest {
        stamp: u64::MAX,
        parts: 1,
        bytes: u32::MAX,
    };
    let value = manifest.encode(b"n1");
    assert_eq!(Manifest::decode(b"n1", &value), Ok(manifest));
    assert!(Manifest::decode(b"n2", &value).is_err());
}

#[test]
fn keys_sort_by_kind_and_then_by_id_as_bytes_too() {
    let task = RecordKey::Task(plain_task(1).id);
    let keys = [
        task,
        RecordKey::Tombstone(1),
        RecordKey::Tombstone(256),
        RecordKey::Answer(0),
    ];
    assert!(keys.is_sorted());
    assert!(keys.map(RecordKey::to_bytes).is_sorted());
    for key in keys {
        assert_eq!(RecordKey::from_bytes(key.to_bytes()), Some(key));
    }
    assert_eq!(RecordKey::from_bytes([0; 17]), None);
}

proptest! {
    #[test]
    fn every_task_comes_back_as_it_was(task in a_task()) {
        prop_assert_eq!(&decode_task(task.id, &value_of(&task)).unwrap(), &task);
    }

    #[test]
    fn a_task_that_was_read_is_written_again_byte_for_byte(task in a_task()) {
        let value = value_of(&task);
        let (mut read, spec) = decode_task_and_spec(task.id, &value).unwrap();
        let spec = spec.unwrap();
        prop_assert!(spec.of(&read).is_some_and(|spec| spec.len() > 10));
        let write = |task: &Task| {
            let mut batch = Batch::new(SteadyMs(0));
            batch.put_read_task(task, &spec);
            first_value(&mut batch)
        };
        prop_assert_eq!(write(&read), value);
        // With another spec the old bytes are not taken.
        read.spec = Arc::new(TaskSpec { max_lateness: Some(DurationMs(7)), ..(*read.spec).clone() });
        prop_assert_eq!(write(&read), value_of(&read));
    }

    #[test]
    fn every_note_comes_back_as_it_was(
        tombstone in a_tombstone(), answer in an_answer(), late in a_late_answer(),
    ) {
        let mut batch = Batch::new(SteadyMs(0));
        batch.put_tombstone(&tombstone);
        batch.put_answer(&answer);
        batch.put_late(&late);
        let notes: Vec<Note> = batch
            .changes()
            .filter_map(|(key, change)| match change {
                Change::Put(value) => decode_note(key, &value).unwrap(),
                _ => None,
            })
            .collect();
        prop_assert_eq!(notes, [Note::Tombstone(tombstone), Note::Answer(answer), Note::Late(late.into())]);
    }

    #[test]
    fn a_flipped_bit_or_a_missing_end_is_never_read_as_something_else(
        task in a_task(),
        at in any::<prop::sample::Index>(),
        bit in 0..8_u32,
        other in 0..u64::MAX,
    ) {
        let value = value_of(&task);
        let mut flipped = value.clone();
        flipped[at.index(value.len())] ^= 1_u8 << bit;
        prop_assert!(decode_task(task.id, &flipped).is_err());
        prop_assert!(decode_task(task.id, &value[..at.index(value.len())]).is_err());
        let longer = [value.as_slice(), &[0]].concat();
        prop_assert!(decode_task(task.id, &longer).is_err());
        let stranger = TaskId::with_tail(task.id.slot(), crate::clock::WallMs(1), other);
        prop_assert!(stranger == task.id || decode_task(stranger, &value).is_err());
    }

    #[test]
    fn nothing_that_is_not_ours_makes_decoding_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        // With a right sum too, so that the decoder itself meets it.
        let id = plain_task(3).id;
        for version in [VALUE_VERSION, STAGED_VERSION] {
            let mut value = vec![version];
            value.extend(checksum(version, &RecordKey::Task(id).to_bytes(), &bytes).to_le_bytes());
            value.extend(&bytes);
            let _ = decode_task(id, &value);
        }
        let _ = decode_note(RecordKey::Answer(1), &bytes);
        let mut payload = vec![BATCH_VERSION];
        payload.extend(bytes);
        let _ = Batch::decode(payload);
    }

    #[test]
    fn a_batch_comes_back_with_all_its_changes_in_order(
        tasks in prop::collection::vec((a_task(), any::<bool>()), 0..6),
        steady in any::<i64>(),
    ) {
        let mut batch = Batch::new(SteadyMs(steady));
        for (task, put) in &tasks {
            if *put { batch.put_task(task) } else { batch.remove_task(task.id) }
        }
        prop_assert_eq!((batch.len(), batch.is_empty()), (tasks.len(), tasks.is_empty()));
        let mut copy = Batch::decode(batch.encode().to_vec()).unwrap();
        prop_assert_eq!(copy.largest(), batch.largest());
        prop_assert_eq!(copy.steady(), SteadyMs(steady));
        let read: Vec<_> = copy.changes().collect();
        prop_assert_eq!(&read, &batch.changes().collect::<Vec<_>>());
        prop_assert_eq!(&copy, &batch);
        for ((key, change), (task, put)) in read.iter().zip(&tasks) {
            prop_assert_eq!(*key, RecordKey::Task(task.id));
            prop_assert_eq!(matches!(change, Change::Put(_)), *put);
        }
        for cut in BATCH_HEADER_BYTES..batch.bytes() {
            // A cut at a change's edge gives a shorter batch; everything else is refused.
            if let Ok(shorter) = Batch::decode(batch.encode()[..cut].to_vec()) {
                prop_assert!(shorter.len() < batch.len());
            }
        }
    }
}

//! Re-sent requests: the first answer is given again, for a day, to as many as there is room for.

use bytes::Bytes;

use super::*;
use crate::limits;
use crate::shard::notes::{Notes, Resent};

fn ask(key: u128, body: u128) -> AskResent {
    AskResent { key, body }
}

fn keep(key: u128, status: u16) -> KeepAnswer {
    let body = Bytes::from_static(b"{}");
    KeepAnswer { key, status, body }
}

#[test]
fn a_request_that_is_sent_again_gets_the_first_answer() {
    let mut shell = Shell::new();
    let first_at = START;
    assert_eq!(shell.ask(ask(1, 10)), Resent::Do { first_at });
    assert_eq!(shell.ask(ask(1, 10)), Resent::InProgress);
    assert_eq!(shell.ask(ask(1, 11)), Resent::Mismatch);
    shell.ask(keep(1, 201));
    let answered = Resent::Answered {
        status: 201,
        body: Bytes::from_static(b"{}"),
    };
    assert_eq!(shell.ask(ask(1, 10)), answered);
    shell.crash();
    assert_eq!(shell.ask(ask(1, 10)), answered);
    assert_eq!(shell.ask(ask(1, 11)), Resent::Mismatch);
    shell.pass(DurationMs(limits::IDEMPOTENCY_KEPT_MS));
    assert!(shell.notes().is_empty());
    let first_at = shell.now().wall;
    assert_eq!(shell.ask(ask(1, 11)), Resent::Do { first_at });
}

#[test]
fn a_request_cut_off_by_a_crash_is_done_again_with_ids_of_its_first_time() {
    let mut shell = Shell::new();
    shell.ask(ask(1, 10));
    shell.pass(minutes(1));
    shell.crash();
    assert_eq!(shell.ask(ask(1, 10)), Resent::Do { first_at: START });
    assert_eq!(shell.ask(ask(1, 10)), Resent::InProgress);
}

#[test]
fn a_request_whose_worker_never_came_back_is_done_again_after_a_while() {
    let mut shell = Shell::new();
    shell.ask(ask(1, 10));
    shell.pass(minutes(14));
    assert_eq!(shell.ask(ask(1, 10)), Resent::InProgress);
    shell.pass(minutes(1));
    assert_eq!(shell.ask(ask(1, 10)), Resent::Do { first_at: START });
    assert_eq!(shell.ask(ask(1, 10)), Resent::InProgress);
}

#[test]
fn an_answer_that_may_be_better_next_time_or_is_too_large_is_not_kept() {
    let mut shell = Shell::new();
    let too_large = KeepAnswer {
        body: Bytes::from(vec![b' '; limits::IDEMPOTENCY_ANSWER_BYTES_MAX + 1]),
        ..keep(1, 200)
    };
    for answer in [keep(1, 503), keep(1, 429), too_large] {
        assert_eq!(shell.ask(ask(1, 10)), Resent::Do { first_at: START });
        shell.ask(answer);
    }
    assert_eq!(shell.ask(ask(1, 10)), Resent::Do { first_at: START });
}

#[test]
fn when_there_are_too_many_the_oldest_goes() {
    let mut notes = Notes::default();
    let most = limits::IDEMPOTENCY_KEYS_MAX as u128;
    let now = |n: u128| at(n as i64);
    for n in 0..most {
        notes.ask(n, 0, now(n));
    }
    assert_eq!(notes.ask(0, 0, now(most)).0, Resent::InProgress);
    notes.ask(most, 0, now(most));
    assert_eq!(notes.ask(1, 0, now(most)).0, Resent::InProgress);
    let first_at = now(most).wall;
    assert_eq!(notes.ask(0, 0, now(most)).0, Resent::Do { first_at });
    assert_eq!(
        notes.ask(1, 0, now(most)).0,
        Resent::Do { first_at },
        "it made room for the other"
    );
}

#[test]
fn what_is_forgotten_is_taken_from_the_disk_too() {
    let mut notes = Notes::default();
    notes.ask(7, 0, at(0));
    let mut batch = Batch::new(crate::clock::SteadyMs(0));
    notes.write_changes(&mut batch);
    let day = limits::IDEMPOTENCY_KEPT_MS as i64;
    notes.end_answer(7_u128.to_be_bytes(), at(day));
    let mut batch = Batch::new(crate::clock::SteadyMs(0));
    notes.write_changes(&mut batch);
    let changes: Vec<_> = batch.changes().collect();
    assert_eq!(changes, [(RecordKey::Answer(7), Change::Remove)]);
}

//! What a wish makes of a job, and how it is written down: without an engine.

use proptest::prelude::*;

use crate::clock::WallMs;
use crate::engine::bulk::job::{Before, InHand, page_bytes, read_page};
use crate::engine::bulk::{BulkId, BulkJob, BulkState, BulkVerb, record};
use crate::ids::TaskId;
use crate::limits;
use crate::task::model::PauseClock;
use crate::wire::bulk::BulkAsk;
use crate::wire::due::InLimits;

const BEGUN: WallMs = WallMs(1_796_000_000_000);

fn job(body: &str) -> BulkJob {
    let limits = InLimits {
        max_delay: limits::MAX_DELAY,
        now: BEGUN,
    };
    let ask = BulkAsk::read(body.as_bytes(), &limits).unwrap();
    BulkJob::new(BulkId(0xAB), ask, "somebody".to_owned(), BEGUN)
}

fn held() -> BulkJob {
    job(r#"{"action": "pause", "filter": {"topic": "a"}, "rate": 7}"#)
}

#[test]
fn every_verb_in_every_state() {
    use BulkState::{Done, Paused, Running, Stopped, Undoing, Undone};
    let verbs = [
        BulkVerb::Pause,
        BulkVerb::Resume,
        BulkVerb::Stop,
        BulkVerb::Undo,
    ];
    let table = [
        (
            Running,
            [Some(Paused), Some(Running), Some(Stopped), Some(Undoing)],
        ),
        (
            Paused,
            [Some(Paused), Some(Running), Some(Stopped), Some(Undoing)],
        ),
        (Done, [None, None, None, Some(Undoing)]),
        (Stopped, [None, None, Some(Stopped), Some(Undoing)]),
        (Undoing, [None, None, Some(Stopped), Some(Undoing)]),
        (Undone, [None, None, None, Some(Undone)]),
    ];
    for (state, nexts) in table {
        for (verb, next) in verbs.into_iter().zip(nexts) {
            let mut job = held();
            job.progress.state = state;
            let turned = job.wish(verb, BEGUN);
            match next {
                None => assert!(turned.is_err(), "{verb:?} of {state:?}"),
                Some(next) => assert_eq!(turned, Ok(next != state), "{verb:?} of {state:?}"),
            }
            assert_eq!(job.progress.state, next.unwrap_or(state));
        }
    }
}

#[test]
fn only_what_was_kept_as_it_was_can_be_taken_back() {
    for (body, can) in [
        (r#"{"action": "pause", "filter": {"key": "a"}}"#, true),
        (r#"{"action": "resume", "filter": {"key": "a"}}"#, true),
        (
            r#"{"action": "reschedule", "args": {"delay": "PT1S"}, "filter": {"key": "a"}}"#,
            true,
        ),
        (r#"{"action": "cancel", "filter": {"key": "a"}}"#, false),
        (r#"{"action": "replay", "filter": {"key": "a"}}"#, false),
        (r#"{"action": "run_now", "filter": {"key": "a"}}"#, false),
        (r#"{"action": "discard", "filter": {"key": "a"}}"#, false),
        (
            r#"{"action": "pause", "filter": {"key": "a"}, "dry_run": true}"#,
            false,
        ),
    ] {
        let mut job = job(body);
        assert_eq!(job.wish(BulkVerb::Undo, BEGUN).is_ok(), can, "{body}");
    }
    let mut large = held();
    large.progress.counts.matched = limits::BULK_UNDO_MAX + 1;
    assert!(large.wish(BulkVerb::Undo, BEGUN).is_err());
}

#[test]
fn a_step_is_a_quarter_of_a_second_and_never_nothing() {
    for (rate, step) in [(1, 1), (3, 1), (20, 5), (500, 125), (100_000, 5_000)] {
        let mut job = held();
        job.ask.rate = rate;
        assert_eq!(job.step_max(), step);
    }
}

#[test]
fn a_job_is_read_back_as_it_was_stored_also_with_a_due_time_that_lies_far_ahead() {
    let mut job = job(
        r#"{"action": "reschedule", "args": {"due_at": "2027-01-01T00:00:00Z"}, "filter": {"state": ["paused"]}}"#,
    );
    job.count_refused(TaskId::from_bytes(*b"0123456789abcdef"), "illegal_state");
    job.turn(BulkState::Stopped, BEGUN);
    let read = record::decode(job.id, &record::encode(&job));
    assert_eq!(read, Ok(job));
    assert!(record::decode(BulkId(1), b"{}").is_err());
}

#[test]
fn an_id_is_written_in_one_way() {
    let id = BulkId(0xAB);
    assert_eq!(id.to_string(), "00000000000000ab");
    assert_eq!("00000000000000ab".parse(), Ok(id));
    for no_id in ["", "ab", "00000000000000AB", "+0000000000000ab", "x"] {
        assert!(no_id.parse::<BulkId>().is_err(), "{no_id}");
    }
}

proptest! {
    #[test]
    fn a_page_is_read_back_as_it_was_stored(tasks in prop::collection::vec((any::<[u8; 16]>(), 0..5_u8, any::<i64>()), 0..20)) {
        let task = |(id, kind, at_ms): ([u8; 16], u8, i64)| InHand {
            id: TaskId::from_bytes(id),
            before: match kind {
                0 => Before::Any,
                1 => Before::Waiting,
                2 => Before::Paused(PauseClock::Keep),
                3 => Before::Paused(PauseClock::Freeze),
                _ => Before::Due(WallMs(at_ms)),
            },
        };
        let tasks: Vec<InHand> = tasks.into_iter().map(task).collect();
        prop_assert_eq!(read_page(&page_bytes(&tasks)), Some(tasks));
    }

    #[test]
    fn any_bytes_are_a_page_or_none(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
        let _ = read_page(&bytes);
    }
}

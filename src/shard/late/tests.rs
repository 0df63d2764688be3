use super::*;
use crate::ids::{AttemptNumber, AttemptToken, Slot};
use crate::task::model::State;

fn late(task: u64, token: u64, at: i64, result_bytes: usize) -> LateAnswer {
    LateAnswer {
        task: TaskId::with_tail(Slot::of_hash(0), WallMs(0), task),
        topic: TopicName::parse("t").expect("a good name"),
        key: None,
        attempt: Some(AttemptNumber(1)),
        generation: Some(1),
        token: AttemptToken(token),
        outcome: "succeeded",
        error: None,
        result: Some(RawJson::from("x".repeat(result_bytes))),
        result_dropped: false,
        by: "worker".to_owned(),
        worker: None,
        at: WallMs(at),
        ended_as: None,
        state: State::Dead,
        treatment: Treatment::Refused,
    }
}

fn with_room(per_task: usize, answers: usize, bytes: usize) -> LateAnswers {
    LateAnswers::with(Room {
        per_task,
        answers,
        bytes,
    })
}

/// Their times, oldest first.
fn times(answers: &LateAnswers) -> Vec<i64> {
    answers.by_age.iter().map(|place| place.at.0).collect()
}

fn page(items: &[i64], has_more: bool) -> LatePage {
    let items = items.iter().map(|at| late(1, *at as u64, *at, 0));
    LatePage {
        items: items.collect(),
        has_more,
        ..LatePage::default()
    }
}

#[test]
fn the_oldest_go_first_of_a_task_of_all_and_of_what_is_too_large() {
    let small = late(0, 0, 0, 0).bytes();
    let mut answers = with_room(2, 3, 4 * small + 100);
    for at in 1..=3 {
        answers.keep(late(1, at as u64, at, 0));
    }
    assert_eq!(times(&answers), [2, 3], "of one task");
    answers.keep(late(2, 1, 4, 0));
    answers.keep(late(3, 1, 5, 0));
    assert_eq!(times(&answers), [3, 4, 5], "of all");
    answers.keep(late(4, 1, 6, 2 * small));
    assert_eq!(times(&answers), [5, 6], "in bytes");
    assert_eq!(answers.bytes, 2 * small + 2 * small);
    let mut batch = Batch::new(crate::clock::SteadyMs(0));
    answers.write_changes(&mut batch);
    assert_eq!(batch.len(), 6, "what came and went is told as gone");
    let (found, all) = (answers.kept.len(), answers.all().cloned());
    let mut again = with_room(9, 9, 9_999);
    for late in all.collect::<Vec<_>>() {
        again.adopt(late.clone());
        again.adopt(late);
    }
    assert_eq!((again.kept.len(), again.bytes), (found, answers.bytes));
    assert!(again.dirty.is_empty());
}

#[test]
fn pages_of_shards_are_one_page_that_ends_where_one_of_them_is_not_known_further() {
    let merged = |pages: &[LatePage], limit| {
        let page = LatePage::merged(pages.to_vec(), limit);
        let times: Vec<_> = page.items.iter().map(|late| late.at.0).collect();
        (times, page.has_more)
    };
    let whole = [page(&[9, 5, 1], false), page(&[8, 2], false)];
    assert_eq!(merged(&whole, 9), (vec![9, 8, 5, 2, 1], false));
    assert_eq!(merged(&whole, 5), (vec![9, 8, 5, 2, 1], false));
    assert_eq!(merged(&whole, 2), (vec![9, 8], true));
    let cut = [page(&[9, 5], true), page(&[8, 2], false)];
    assert_eq!(merged(&cut, 9), (vec![9, 8, 5], true));
    assert_eq!(merged(&[], 9), (vec![], false));
}

#[test]
fn a_compensation_is_told_the_payload_unless_it_has_no_room_for_it() {
    let late = late(1, 1, 1, 0);
    let late = LateAnswer {
        result: Some(RawJson::from("7".to_owned())),
        ..late
    };
    let parse = |payload: &RawJson| -> serde_json::Value {
        serde_json::from_str(payload_of(&late, Some(payload)).as_str()).expect("it is JSON")
    };
    let told = parse(&RawJson::from("[1]".to_owned()));
    assert_eq!(
        (&told["payload"], &told["result"]),
        (&[1].into(), &7.into())
    );
    let large = RawJson::from(format!("\"{}\"", "x".repeat(limits::PAYLOAD_BYTES_MAX - 2)));
    let told = parse(&large);
    assert!(told.get("payload").is_none() && told["result"] == 7);
}

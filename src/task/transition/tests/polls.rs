//! Questions that are asked again, work that a receiver takes on, and what only somebody outside can end.

use std::sync::Arc;

use super::*;

const EVERY: DurationMs = DurationMs::secs(10);
const FOR: DurationMs = DurationMs::secs(25);

fn asked() -> Life {
    let mut life = Life::of(task().poll(EVERY, FOR).max_attempts(2));
    life.must(due());
    life.must(Event::Started);
    life
}

fn not_yet() -> Outcome {
    Outcome::NotYet {
        answer: "200 {}".to_owned(),
    }
}

fn gives(text: &'static str) -> Outcome {
    Outcome::Succeeded {
        result: Some(text.as_bytes().into()),
        result_dropped: false,
    }
}

fn answered(life: &Life, outcome: Outcome) -> Event {
    Event::Answered {
        token: life.task.token,
        outcome,
    }
}

#[test]
fn not_yet_uses_no_attempt_and_the_next_question_has_a_token_of_its_own() {
    let mut life = asked();
    for question in 1..=2 {
        assert_eq!(life.task.token, AttemptToken(question));
        assert_eq!(
            (life.task.attempts, life.task.attempt),
            (1, AttemptNumber(1))
        );
        let old = life.task.token;
        life.answer(not_yet());
        assert_eq!(life.task.state, State::Retrying);
        assert_eq!(life.task.waiting_for, Some(WaitingFor::Poll));
        assert_eq!((life.task.attempts, life.left()), (0, EVERY));
        assert_eq!(
            (life.last_outcome(), life.task.attempts_log.total),
            ("not_yet", 0)
        );
        life.apply(finished(old, succeeded())).unwrap_err();
        life.wait(EVERY);
        life.must(due());
        life.must(Event::Started);
    }
    life.answer(gives("7"));
    assert_eq!((life.task.state, life.task.attempts), (State::Succeeded, 1));
    assert_eq!(life.task.result, Some(RawJson::from("7".to_owned())));
    assert_eq!(life.task.attempts_log.total, 1);
    let changes: Vec<_> = life
        .task
        .changes
        .kept
        .iter()
        .map(|change| change.to)
        .collect();
    let said_once = [
        State::Pending,
        State::Dispatched,
        State::Retrying,
        State::Succeeded,
    ];
    assert_eq!(
        changes, said_once,
        "a poll that goes well does not fill its log"
    );
}

#[test]
fn a_failing_answer_uses_an_attempt_and_a_refusing_one_ends_it() {
    let mut life = asked();
    life.answer(failed("http_503"));
    assert_eq!(life.task.waiting_for, Some(WaitingFor::Retry));
    assert_eq!((life.task.attempts, life.task.attempts_log.total), (1, 1));
    let left = life.left();
    assert!(
        left <= FOR,
        "it is asked at the end at the latest: {left:?}"
    );
    life.wait(left);
    life.must(due());
    assert_eq!(
        (life.task.attempts, life.task.attempt),
        (2, AttemptNumber(2))
    );
    let mut life = asked();
    life.answer(Outcome::Failed(Failure {
        retryable: false,
        ..failure("failed_if")
    }));
    assert_eq!(life.dead_of(), Some(DeadReason::Refused));
}

#[test]
fn when_its_time_is_over_it_is_asked_once_more_and_that_answer_counts() {
    for (said, reason) in [
        (gives("1"), None),
        (not_yet(), Some(DeadReason::TotalTime)),
        (Outcome::TimedOut, Some(DeadReason::TotalTime)),
        (failed("http_500"), Some(DeadReason::TotalTime)),
        (
            Outcome::Failed(Failure {
                retryable: false,
                ..failure("failed_if")
            }),
            Some(DeadReason::Refused),
        ),
    ] {
        let mut life = asked();
        for wait in [EVERY, EVERY, DurationMs::secs(5)] {
            assert!(!life.task.asks_last());
            life.answer(not_yet());
            assert_eq!(life.left(), wait, "and never later than its time");
            life.wait(wait);
            life.must(due());
            life.must(Event::Started);
        }
        assert!(life.task.asks_last());
        assert_eq!(life.must(Event::TotalTimeOver), Applied::Unchanged);
        life.answer(said.clone());
        assert_eq!(life.dead_of(), reason, "{said:?}");
        if reason == Some(DeadReason::TotalTime) {
            assert_eq!(life.last_outcome(), "total_time", "{said:?}");
            assert_eq!(life.task.attempts_log.total, 1, "{said:?}");
        }
    }
}

#[test]
fn a_question_that_is_out_when_the_time_is_over_is_cut_off_and_asked_anew() {
    let mut life = asked();
    life.wait(FOR);
    let token = life.task.token;
    assert_eq!(
        life.must(Event::TotalTimeOver),
        Applied::ChangedAndStop(token)
    );
    assert!(life.task.asks_last());
    assert_eq!((life.left(), life.task.attempts), (DurationMs(0), 0));
    life.must(due());
    life.answer(gives("1"));
    assert_eq!(life.task.state, State::Succeeded);
}

#[test]
fn one_that_waits_for_its_turn_when_the_time_is_over_is_asked_at_once() {
    let mut life = Life::of(task().poll(EVERY, FOR));
    life.must(Event::CameDue);
    life.wait(FOR);
    life.must(Event::TotalTimeOver);
    assert!(life.task.asks_last());
    life.must(due());
    life.answer(not_yet());
    assert_eq!(life.dead_of(), Some(DeadReason::TotalTime));
}

#[test]
fn a_question_that_a_crash_cut_off_is_asked_again_at_once_and_harms_nobody() {
    for event in [Event::Recovered, Event::HandedBack { was_started: true }] {
        let mut life = Life::of(task().poll(EVERY, FOR).at_most_once().max_attempts(1));
        life.must(due());
        life.must(Event::Started);
        life.must(event);
        assert_eq!((life.task.state, life.task.attempts), (State::Retrying, 0));
        assert_eq!(life.left(), DurationMs(0));
    }
}

#[test]
fn a_poll_without_an_end_of_its_own_has_that_of_its_total_time_or_five_minutes() {
    let total = |within: Option<u64>, total: Option<u64>| {
        let mut life = Life::of(task().poll(EVERY, FOR));
        let spec = Arc::make_mut(&mut life.task.spec);
        let Action::Poll(poll) = &mut spec.action else {
            panic!("it is a poll");
        };
        poll.within = within.map(DurationMs);
        spec.timeouts.total = total.map(DurationMs);
        life.task.total()
    };
    assert_eq!(total(None, None), Some(minutes(5)));
    assert_eq!(total(None, Some(900_000)), Some(DurationMs(900_000)));
    assert_eq!(total(Some(900_000), None), Some(DurationMs(900_000)));
    assert_eq!(total(Some(1), Some(2)), Some(DurationMs(1)));
    assert_eq!(total(Some(2), Some(1)), Some(DurationMs(1)));
}

// ---------------------------------------------------------------- taken on by a receiver

const BY: DurationMs = DurationMs::secs(600);

fn taken_on(fixture: TaskFixture) -> Life {
    let mut life = Life::of(fixture).then(due()).then(Event::Started);
    life.answer(Outcome::Accepted { complete_by: BY });
    life
}

#[test]
fn what_a_receiver_took_on_is_running_until_it_says_more() {
    let mut life = taken_on(task().push());
    assert_eq!((life.task.state, life.task.attempts), (State::Running, 1));
    assert!(!life.task.runs_here());
    let until = |life: &Life| life.task.live.as_ref().unwrap().report_by;
    assert_eq!(until(&life), MonoMs(600_000));
    let again = Outcome::Accepted { complete_by: BY };
    let token = life.task.token;
    let said_twice = life.must(finished(token, again));
    assert_eq!(said_twice, Applied::Unchanged);
    life.wait(minutes(9));
    life.must(heartbeat(token));
    assert_eq!(until(&life), MonoMs(1_140_000));
    assert_eq!(life.must(Event::Recovered), Applied::InMemory);
    assert_eq!(life.task.state, State::Running, "it outlives the process");
    let done = answered(&life, gives("7"));
    life.must(done.clone());
    assert_eq!(life.task.state, State::Succeeded);
    assert_eq!(life.task.result, Some(RawJson::from("7".to_owned())));
    assert!(matches!(life.apply(done), Err(Refusal::StaleToken { .. })));
}

#[test]
fn what_is_not_completed_in_time_has_timed_out_and_is_tried_again() {
    let mut life = taken_on(task().push());
    let token = life.task.token;
    life.wait(BY);
    life.must(Event::Overdue { token });
    assert_eq!(
        (life.task.state, life.last_outcome()),
        (State::Retrying, "timeout")
    );
    let late = Event::Answered {
        token,
        outcome: succeeded(),
    };
    life.apply(late).unwrap_err();
    let mut once = taken_on(task().push().at_most_once());
    let token = once.task.token;
    once.must(Event::Overdue { token });
    assert_eq!(once.dead_of(), Some(DeadReason::OutcomeUnknown));
}

#[test]
fn a_receiver_that_completes_before_it_has_answered_is_heard() {
    let mut life = Life::of(task().push()).then(due()).then(Event::Started);
    let token = life.task.token;
    let early = answered(&life, gives("1"));
    assert_eq!(life.must(early), Applied::ChangedAndStop(token));
    assert_eq!(life.task.state, State::Succeeded);
    let accepted = finished(token, Outcome::Accepted { complete_by: BY });
    life.apply(accepted).unwrap_err();
}

#[test]
fn a_receiver_that_failed_later_is_tried_again_by_the_policy() {
    let mut life = taken_on(task().push());
    let failed = answered(&life, failed("no_stock"));
    life.must(failed);
    assert_eq!(
        (life.task.state, life.left()),
        (State::Retrying, minutes(1))
    );
}

#[test]
fn total_time_ends_what_a_receiver_took_on() {
    let mut life = taken_on(task().push().total(minutes(2)));
    let lease = life.task.live.as_ref().unwrap().lease;
    assert_eq!(
        lease,
        Some(minutes(2)),
        "it is not waited for longer than that"
    );
    life.wait(minutes(2));
    life.must(Event::TotalTimeOver);
    assert_eq!(life.dead_of(), Some(DeadReason::TotalTime));
}

// ---------------------------------------------------------------- from outside only

#[test]
fn what_only_waits_for_somebody_outside_ends_by_them_or_by_its_time() {
    let waiting = || Life::of(task().action(Action::CompleteOnly).total(minutes(1)));
    let mut life = waiting();
    assert_eq!(
        life.must(Event::CameDue),
        Applied::Changed,
        "its time is written"
    );
    life.must(complete(None));
    assert_eq!((life.task.state, life.task.attempts), (State::Succeeded, 0));
    let mut life = waiting().then(Event::CameDue);
    life.wait(minutes(1));
    assert_eq!(life.must(Event::CameDue), Applied::InMemory, "and stays");
    life.must(Event::TotalTimeOver);
    assert_eq!(life.dead_of(), Some(DeadReason::TotalTime));
    let mut early = Life::of(task().action(Action::CompleteOnly).due_in_minutes(5));
    early.must(complete(None));
    assert_eq!(early.task.state, State::Succeeded, "before it is due, too");
}

#[test]
fn what_comes_in_the_place_of_a_poll_has_a_number_that_no_question_had() {
    let mut life = asked();
    life.must(answered(&life, not_yet()));
    let asked_as = life.task.attempt.0 + 1;
    life.must(Event::Replace {
        spec: task().push().spec(),
        due: Due::at(life.now().wall, life.now()),
    });
    life.must(due());
    assert_eq!(life.task.attempt, AttemptNumber(asked_as + 1));
}

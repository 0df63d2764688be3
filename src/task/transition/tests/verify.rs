//! Perhaps it was done, and only the answer was lost: asked before it is tried again.

use super::*;
use crate::task::retry::DELAY_MAX;

fn verified() -> TaskFixture {
    task().push().verified(OnNoAnswer::Retry).max_attempts(2)
}

fn not_done() -> Outcome {
    Outcome::NotYet {
        answer: "200 {}".to_owned(),
    }
}

/// In doubt, and asked about it at the time of its next attempt.
fn asked(fixture: TaskFixture, doubt: Outcome) -> Life {
    let mut life = Life::of(fixture).then(due()).then(Event::Started);
    life.answer(doubt);
    ask(&mut life);
    life
}

fn ask(life: &mut Life) {
    assert_eq!(life.task.waiting_for, Some(WaitingFor::Verify));
    let (attempts, attempt) = (life.task.attempts, life.task.attempt);
    life.wait(life.left());
    life.must(due());
    life.must(Event::Started);
    assert!(life.task.verifies() && life.task.runs_here());
    assert_eq!((life.task.attempts, life.task.attempt), (attempts, attempt));
}

#[test]
fn what_had_been_done_after_all_is_not_done_again() {
    for doubt in [Outcome::TimedOut, Outcome::Unknown, failed("protocol")] {
        let mut life = asked(verified(), doubt.clone());
        let old = AttemptToken(1);
        life.apply(finished(old, succeeded())).unwrap_err();
        life.answer(Outcome::Succeeded {
            result: Some("7".into()),
            result_dropped: false,
        });
        assert_eq!(life.task.state, State::Succeeded, "{doubt:?}");
        assert_eq!(life.task.result, Some(RawJson::from("7".to_owned())));
        assert_eq!((life.task.attempts, life.task.attempts_log.total), (1, 1));
    }
}

#[test]
fn what_was_not_done_is_tried_again_at_once_and_what_failed_for_certain_without_being_asked() {
    let mut life = asked(verified(), Outcome::TimedOut);
    life.answer(not_done());
    assert_eq!(life.task.waiting_for, Some(WaitingFor::Retry));
    assert_eq!(life.left(), DurationMs(0));
    life.must(due());
    assert_eq!(
        (life.task.attempts, life.task.attempt),
        (2, AttemptNumber(2))
    );
    assert_eq!(life.task.token, AttemptToken(3));
    life.answer(Outcome::TimedOut);
    assert_eq!(
        life.left(),
        DurationMs(0),
        "it is not tried again, so it is asked now"
    );
    ask(&mut life);
    life.answer(not_done());
    assert_eq!(life.dead_of(), Some(DeadReason::AttemptsUsedUp));
    let mut life = Life::of(verified()).then(due());
    life.answer(failed("http_503"));
    assert_eq!(life.task.waiting_for, Some(WaitingFor::Retry));
}

#[test]
fn what_may_be_done_only_once_is_tried_again_when_it_is_known_that_it_was_not() {
    let once = || verified().at_most_once();
    let mut life = asked(once(), Outcome::TimedOut);
    life.answer(not_done());
    life.must(due());
    assert_eq!(life.task.attempts, 2);
    let mut life = asked(once(), Outcome::TimedOut);
    life.answer(failed("http_500"));
    assert_eq!(
        life.dead_of(),
        Some(DeadReason::OutcomeUnknown),
        "nobody knows"
    );
}

#[test]
fn an_answer_that_says_that_it_failed_ends_it() {
    let mut life = asked(verified(), Outcome::TimedOut);
    life.answer(Outcome::Failed(Failure {
        retryable: false,
        ..failure("failed_if")
    }));
    assert_eq!(life.dead_of(), Some(DeadReason::Refused));
}

#[test]
fn without_an_answer_it_is_tried_again_held_or_dead_as_was_asked_for() {
    for (on_no_answer, state) in [
        (OnNoAnswer::Retry, State::Retrying),
        (OnNoAnswer::Hold, State::Paused),
        (OnNoAnswer::Dead, State::Dead),
    ] {
        for none in [failed("connect"), Outcome::TimedOut] {
            let mut life = asked(verified().verified(on_no_answer), Outcome::TimedOut);
            life.answer(none);
            assert_eq!(life.task.state, state);
            assert!(!life.task.verifies());
        }
    }
}

#[test]
fn a_lost_lease_is_asked_about_and_no_worker_gets_the_task_before() {
    let mut life = Life::of(task().verified(OnNoAnswer::Retry)).then(leased());
    let token = life.task.token;
    life.wait(DurationMs::secs(30));
    life.must(Event::Overdue { token });
    assert_eq!(life.task.waiting_for, Some(WaitingFor::Verify));
    life.apply(leased()).unwrap_err();
    ask(&mut life);
    life.answer(not_done());
    life.must(leased());
    assert_eq!(life.task.attempts, 2);
}

#[test]
fn a_crash_in_the_work_is_asked_about_and_one_in_the_question_asks_again() {
    let mut life = Life::of(verified()).then(due()).then(Event::Started);
    life.must(Event::Recovered);
    ask(&mut life);
    for event in [Event::Recovered, Event::HandedBack { was_started: true }] {
        life.must(event);
        assert_eq!(life.left(), DurationMs(0));
        ask(&mut life);
    }
    life.answer(Outcome::GivenBack);
    ask(&mut life);
    let token = life.task.token;
    life.must(Event::Overdue { token });
    assert_eq!(
        life.task.waiting_for,
        Some(WaitingFor::Retry),
        "nobody answered"
    );
    assert_eq!(life.task.attempts_log.total, 1);
}

#[test]
fn no_verb_goes_round_the_question() {
    let waiting = || {
        let mut life = Life::of(verified()).then(due()).then(Event::Started);
        life.answer(Outcome::TimedOut);
        life
    };
    let mut life = waiting();
    life.must(pause(PauseClock::Keep));
    life.must(Event::Resume);
    assert!(life.task.verifies());
    life.must(Event::RunNow);
    assert!(life.task.verifies());
    let due = Due::after(DurationMs(5), life.now());
    life.must(reschedule(due));
    assert!(life.task.verifies());
    life.must(complete(None));
    assert_eq!(
        (life.task.state, life.task.waiting_for),
        (State::Succeeded, None)
    );
    for end in [cancel(), fail(), complete(None), Event::TotalTimeOver] {
        let fixture = verified().total(DELAY_MAX);
        let mut life = asked(fixture, Outcome::TimedOut);
        let token = life.task.token;
        assert_eq!(life.must(end), Applied::ChangedAndStop(token));
        assert!(life.task.state.is_ended() && !life.task.verifies());
        assert_eq!(life.task.attempts_log.total, 1, "a question is no attempt");
    }
    let mut life = asked(verified(), Outcome::TimedOut);
    life.answer(failed("connect"));
    let mut replayed = asked(verified().max_attempts(1), Outcome::TimedOut);
    replayed.answer(not_done());
    replayed.must(Event::Replay);
    assert!(!replayed.task.verifies(), "a replay begins anew");
}

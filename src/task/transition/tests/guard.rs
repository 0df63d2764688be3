//! Asked before it fires: what the answers of a guard make of a task.

use super::*;
use crate::limits::{GUARD_AHEAD, GUARD_KEEPS, GUARD_QUESTIONS_MAX};
use crate::task::outcome::FAILED_IF;

const LATER: DurationMs = DurationMs::secs(600);

fn guarded(on_no_answer: OnSilence) -> TaskFixture {
    task()
        .push()
        .due_in(minutes(30))
        .guarded(Some(LATER), on_no_answer)
}

fn neither() -> Outcome {
    Outcome::NotYet {
        answer: "200 {}".to_owned(),
    }
}

fn cancels() -> Outcome {
    Outcome::Failed(Failure {
        retryable: false,
        ..failure(FAILED_IF)
    })
}

/// The question of its guard is out.
fn asked(fixture: TaskFixture) -> Life {
    let mut life = Life::of(fixture);
    ask(&mut life);
    life
}

fn ask(life: &mut Life) {
    let attempt = life.task.attempt;
    assert_eq!(
        (life.task.state, life.task.waiting_for),
        (State::Pending, Some(WaitingFor::Guard))
    );
    life.wait(life.left());
    life.must(due());
    life.must(Event::Started);
    assert!(life.task.asks_guard() && life.task.runs_here());
    assert_eq!(
        (life.task.attempts, life.task.attempt),
        (0, attempt),
        "a question is no attempt"
    );
}

fn why(life: &Life) -> &str {
    &life.task.changes.kept.last().unwrap().why
}

#[test]
fn it_is_asked_ahead_and_fires_at_its_due_time() {
    let mut life = Life::of(guarded(OnSilence::Retry));
    let due_at = life.task.due;
    assert_eq!(life.left(), DurationMs(minutes(30).0 - GUARD_AHEAD.0));
    ask(&mut life);
    life.wait(DurationMs::secs(1));
    life.answer(succeeded());
    assert_eq!(
        (life.task.state, life.task.waiting_for),
        (State::Pending, None)
    );
    assert_eq!((life.task.next, life.left()), (due_at, DurationMs::secs(4)));
    assert_eq!((life.task.lateness_ms, &life.task.result), (None, &None));
    life.wait(DurationMs::secs(4));
    life.must(due());
    assert_eq!(
        (life.task.attempts, life.task.attempt),
        (1, AttemptNumber(1))
    );
    life.must(Event::Started);
    assert_eq!(life.task.lateness_ms, Some(0));
    life.answer(failed("http_503"));
    assert_eq!(
        life.task.waiting_for,
        Some(WaitingFor::Retry),
        "what has begun is not asked about again"
    );
}

#[test]
fn it_is_called_off_or_made_later_as_the_answer_says() {
    let mut life = asked(guarded(OnSilence::Retry));
    life.answer(cancels());
    assert_eq!(life.task.state, State::Cancelled);
    assert_eq!(why(&life), "cancelled: guard: cancel_if is true");

    let mut life = asked(guarded(OnSilence::Retry));
    let due_at = life.task.due;
    life.answer(neither());
    assert_eq!(life.task.due, due_at.later_by(LATER));
    ask(&mut life);
    life.answer(succeeded());
    assert_eq!(life.left(), GUARD_AHEAD);

    // With nothing to say of it but fire_if, any other answer calls it off; with both, it is none.
    let mut life = asked(guarded(OnSilence::Hold).guarded(None, OnSilence::Hold));
    life.answer(neither());
    assert_eq!(life.task.state, State::Paused);
    let mut fixture = guarded(OnSilence::Hold);
    let crate::task::guard::Guard::Asks(mut question) = asking(None, OnSilence::Hold) else {
        panic!("it asks");
    };
    question.cancel_if = None;
    fixture = fixture.guarded_by(crate::task::guard::Guard::Asks(question));
    let mut life = asked(fixture);
    life.answer(neither());
    assert_eq!(life.task.state, State::Cancelled);
}

#[test]
fn without_an_answer_it_fires_is_held_or_is_asked_again_and_then_held() {
    for none in [
        failed("connect"),
        Outcome::TimedOut,
        failed("condition_error"),
    ] {
        let mut life = asked(guarded(OnSilence::Fire));
        life.answer(none.clone());
        assert_eq!(
            (life.task.state, life.task.waiting_for),
            (State::Pending, None)
        );
        assert_eq!(life.task.next, life.task.due);

        let mut life = asked(guarded(OnSilence::Hold));
        life.answer(none.clone());
        assert_eq!(life.task.state, State::Paused);
        life.must(Event::Resume);
        assert!(life.task.asks_guard(), "who lets it go on has it asked");

        let mut life = asked(guarded(OnSilence::Retry));
        for asked in 1..GUARD_QUESTIONS_MAX {
            life.answer(none.clone());
            assert_eq!(life.task.unanswered, asked);
            ask(&mut life);
        }
        life.answer(none);
        assert_eq!((life.task.state, life.task.unanswered), (State::Paused, 0));
        assert!(why(&life).starts_with("held for a person: its guard does not answer: "));
    }
}

#[test]
fn a_question_that_was_cut_off_is_asked_again_and_never_counts_as_an_answer() {
    for event in [Event::Recovered, Event::HandedBack { was_started: true }] {
        let mut life = asked(guarded(OnSilence::Fire));
        life.must(event);
        assert_eq!(life.left(), DurationMs(0));
        ask(&mut life);
    }
    let mut life = asked(guarded(OnSilence::Fire));
    life.answer(Outcome::GivenBack);
    assert!(life.task.asks_guard());
}

#[test]
fn whatever_moves_it_drops_the_question_and_has_it_asked_anew() {
    let spec = guarded(OnSilence::Retry).spec();
    let later = |life: &Life| Due::after(minutes(60), life.now());
    for n in 0..5 {
        let mut life = asked(guarded(OnSilence::Retry));
        let (token, due_at) = (life.task.token, later(&life));
        let event = match n {
            0 => pause(PauseClock::Keep),
            1 => reschedule(due_at),
            2 => extend(minutes(30)),
            3 => Event::RunNow,
            _ => Event::Replace {
                spec: std::sync::Arc::clone(&spec),
                due: due_at,
            },
        };
        let was_due = life.task.due;
        assert_eq!(life.must(event), Applied::ChangedAndStop(token));
        if n == 2 {
            assert_eq!(
                life.task.due,
                was_due.later_by(minutes(30)),
                "later than its due time"
            );
        }
        for old in [succeeded(), cancels(), neither()] {
            life.apply(finished(token, old)).unwrap_err();
        }
        if n == 0 {
            assert_eq!(life.task.state, State::Paused);
            life.must(Event::Resume);
        }
        ask(&mut life);
    }
    let mut life = asked(guarded(OnSilence::Retry));
    assert_eq!(life.must(Event::Resume), Applied::Unchanged);
    let stale = Event::Amend {
        spec,
        due: None,
        at_stage: life.task.at_stage,
        changes_seen: 0,
    };
    assert_eq!(life.apply(stale), Err(Refusal::ChangedMeanwhile));
    let token = life.task.token;
    assert_eq!(life.must(cancel()), Applied::ChangedAndStop(token));
}

#[test]
fn no_worker_gets_it_before_the_answer_and_a_complete_from_outside_needs_none() {
    let mut life = Life::of(task().guarded(None, OnSilence::Retry));
    life.apply(leased()).unwrap_err();
    ask(&mut life);
    life.answer(succeeded());
    life.must(leased());
    let mut life = asked(guarded(OnSilence::Retry));
    life.must(complete(None));
    assert_eq!(
        (life.task.state, life.task.attempts_log.total),
        (State::Succeeded, 0)
    );
}

#[test]
fn an_answer_is_good_for_a_minute() {
    let mut life = asked(guarded(OnSilence::Retry));
    life.answer(succeeded());
    life.wait(GUARD_KEEPS);
    assert!(!life.task.is_let_fire_long_ago(life.now()));
    life.wait(DurationMs(1));
    life.must(Event::AnswerOutdated);
    ask(&mut life);
    life.answer(succeeded());
    life.apply(Event::AnswerOutdated).unwrap_err();
    life.must(due());
}

#[test]
fn the_guard_of_a_stage_passes_over_it_and_that_of_the_task_cancels_all() {
    let staged = || {
        task()
            .push()
            .stage("dispatch", crate::task::stage::Starts::After(minutes(60)))
            .stage("cancel", crate::task::stage::Starts::After(minutes(120)))
    };
    let of_stage = || staged().stage_guarded(asking(Some(LATER), OnSilence::Retry));
    let mut life = Life::of(of_stage());
    assert!(!life.task.asks_guard(), "the first has none");
    life.wait(minutes(60));
    life.attempt(succeeded());
    ask(&mut life);
    life.answer(neither());
    ask(&mut life);
    assert_eq!(life.task.changes.kept[0].why, "created");
    life.answer(cancels());
    assert_eq!(
        life.task.state,
        State::Succeeded,
        "it ends as the stage before"
    );
    assert_eq!(
        why(&life),
        "stage cancel is passed over: its guard: cancel_if is true"
    );

    let mut life = asked(staged().guarded(Some(LATER), OnSilence::Retry));
    life.answer(succeeded());
    life.wait(life.left());
    life.attempt(succeeded());
    ask(&mut life);
    life.answer(cancels());
    assert_eq!(life.task.state, State::Cancelled);
}

#[test]
fn a_condition_that_is_not_true_cancels_and_one_without_a_value_is_for_a_person() {
    let mut life = Life::of(task().push().guarded_if("false"));
    assert!(!life.task.asks_guard());
    life.must(Event::Barred { error: None });
    assert_eq!(why(&life), "cancelled: guard: its condition is not true");
    let mut life = Life::of(task().push().guarded_if("facts.x"));
    let error = ErrorNote {
        code: "condition_error".to_owned(),
        message: "no such field".to_owned(),
    };
    life.must(Event::Barred { error: Some(error) });
    assert_eq!(life.dead_of(), Some(DeadReason::Refused));
    life.must(Event::Replay);
    life.must(due());
    let barred = Event::Barred { error: None };
    life.apply(barred).unwrap_err();
}

//! Guards: asked ahead of the due time, on a track of their own, and never gone round.

use super::shell::{Start, finish};
use super::*;
use crate::limits::{GUARD_AHEAD, GUARD_TIME_MAX};
use crate::task::event::NewDue;
use crate::task::guard::OnSilence;
use crate::task::model::Due;
use crate::task::outcome::Outcome;
use crate::task::stage::Starts;

const LATER: DurationMs = DurationMs::secs(600);

fn guarded(on_no_answer: OnSilence) -> TaskFixture {
    task()
        .push()
        .due_in(minutes(30))
        .guarded(Some(LATER), on_no_answer)
}

fn last(shell: &Shell) -> Start {
    *shell.starts.last().unwrap()
}

fn neither() -> Outcome {
    Outcome::NotYet {
        answer: "200 {}".to_owned(),
    }
}

fn ahead(length: DurationMs) -> DurationMs {
    DurationMs(length.0 - GUARD_AHEAD.0)
}

#[test]
fn a_guard_is_asked_five_seconds_ahead_and_its_task_fires_on_the_millisecond() {
    let mut shell = Shell::new();
    let id = shell.create(guarded(OnSilence::Retry));
    shell.pass(DurationMs(ahead(minutes(30)).0 - 1));
    assert!(shell.starts.is_empty());
    shell.pass(DurationMs(1));
    assert_eq!(last(&shell).at, START.after(ahead(minutes(30))));
    // It takes almost all of the time it has.
    shell.pass(DurationMs(GUARD_TIME_MAX.0 - 1));
    shell.answer(last(&shell), succeeded()).unwrap();
    assert_eq!(
        (shell.state(id), shell.counts().in_flight),
        (State::Pending, 0)
    );
    shell.pass(minutes(1));
    assert_eq!(
        (shell.starts.len(), last(&shell).at),
        (2, START.after(minutes(30)))
    );
    assert_eq!(
        (last(&shell).attempt.0, shell.task(id).lateness_ms),
        (1, Some(0))
    );
    assert_eq!(shell.counts().guards.fire, 1);
}

#[test]
fn a_guard_that_does_not_answer_is_cut_off_in_time() {
    let mut shell = Shell::new();
    let fires = shell.create(guarded(OnSilence::Fire));
    let held = shell.create(guarded(OnSilence::Hold).topic("held"));
    shell.pass(minutes(30));
    // The executor says so when the time is up; if it does not, the shard does.
    let starts = shell.starts.clone();
    for start in starts {
        shell.answer(start, Outcome::TimedOut).unwrap();
    }
    assert_eq!(shell.state(held), State::Paused);
    assert_eq!(shell.state(fires), State::Running);
    let counts = shell.counts().guards;
    assert_eq!((counts.none, counts.held), (2, 1));
    let lost = shell.create(guarded(OnSilence::Hold).topic("lost"));
    shell.pass(minutes(31));
    assert_eq!(shell.state(lost), State::Paused, "nobody ever reported");
}

#[test]
fn what_a_guard_makes_later_is_asked_about_again_and_what_it_calls_off_never_fires() {
    let mut shell = Shell::new();
    let id = shell.create(guarded(OnSilence::Retry));
    shell.pass(ahead(minutes(30)));
    shell.answer(last(&shell), neither()).unwrap();
    assert_eq!(shell.task(id).due.at, START.after(minutes(40)));
    shell.pass(LATER);
    assert_eq!(
        (shell.starts.len(), last(&shell).at),
        (2, START.after(ahead(minutes(40))))
    );
    let no = Outcome::Failed(crate::task::outcome::Failure {
        retryable: false,
        ..failure("failed_if")
    });
    shell.answer(last(&shell), no).unwrap();
    assert_eq!(shell.state(id), State::Cancelled);
    shell.pass(minutes(60));
    assert_eq!(shell.starts.len(), 2);
    let counts = shell.counts().guards;
    assert_eq!((counts.neither, counts.cancel), (1, 1));
}

#[test]
fn an_answer_to_an_older_question_changes_nothing_and_is_no_late_answer() {
    let mut shell = Shell::new();
    let id = shell.create(guarded(OnSilence::Retry));
    shell.pass(ahead(minutes(30)));
    let old = last(&shell);
    let due = NewDue::To(Due::after(minutes(30), shell.now()));
    shell.verb(id, Event::Reschedule { due }).unwrap();
    let event = Event::Finished {
        token: old.token,
        outcome: succeeded(),
        started_at: None,
    };
    assert!(shell.ask(finish(id, event)).is_err());
    assert!(shell.notes().is_empty(), "a question is no attempt");
    assert!(shell.task(id).asks_guard());
    shell.pass(minutes(30));
    assert_eq!(last(&shell).attempt.0, 0, "it is asked anew");
}

#[test]
fn a_crash_between_question_and_fire_asks_again() {
    let mut shell = Shell::new();
    let id = shell.create(guarded(OnSilence::Fire));
    shell.pass(ahead(minutes(30)));
    shell.crash();
    assert_eq!((shell.starts.len(), shell.state(id)), (2, State::Running));
    assert!(shell.task(id).asks_guard());
    shell.answer(last(&shell), succeeded()).unwrap();
    shell.crash();
    shell.pass(GUARD_AHEAD);
    assert_eq!(
        (shell.starts.len(), last(&shell).at),
        (3, START.after(minutes(30))),
        "the answer is on the disk"
    );
}

#[test]
fn nothing_is_asked_in_a_held_topic_and_an_old_answer_is_asked_for_again() {
    let mut shell = Shell::new();
    let id = shell.create(guarded(OnSilence::Retry));
    let answered = shell.create(guarded(OnSilence::Retry).topic("b"));
    shell.hold(USUAL, PauseClock::Keep);
    shell.pass(ahead(minutes(30)));
    assert_eq!(shell.starts.len(), 1, "that of the other topic");
    shell.answer(last(&shell), succeeded()).unwrap();
    shell.hold("b", PauseClock::Keep);
    shell.pass(minutes(10));
    assert_eq!(shell.starts.len(), 1);
    shell.release(USUAL);
    shell.release("b");
    shell.pass(DurationMs(0));
    assert_eq!(shell.starts.len(), 3);
    assert!(shell.task(id).asks_guard() && shell.task(answered).asks_guard());
    for start in [shell.starts[1], shell.starts[2]] {
        shell.answer(start, succeeded()).unwrap();
    }
    shell.pass(DurationMs(0));
    assert_eq!(
        (shell.starts.len(), shell.state(id), shell.state(answered)),
        (5, State::Running, State::Running)
    );
}

#[test]
fn conditions_are_looked_at_when_the_time_comes() {
    let mut shell = Shell::new();
    let if_unpaid = || {
        let facts = serde_json::json!({"paid": true});
        task().due_in(minutes(1)).facts(&facts)
    };
    let paid = shell.create(if_unpaid().push().guarded_if("!facts.paid"));
    let pulled = shell.create(if_unpaid().guarded_if("!facts.paid"));
    let fires = shell.create(if_unpaid().push().guarded_if("facts.paid"));
    let fails = shell.create(if_unpaid().push().guarded_if("facts.missing"));
    assert_eq!(shell.state(paid), State::Pending);
    shell.pass(minutes(1));
    let states = [paid, pulled, fires, fails].map(|id| shell.state(id));
    assert_eq!(
        states,
        [
            State::Cancelled,
            State::Cancelled,
            State::Running,
            State::Dead
        ]
    );
    let last_outcome = shell.task(fails).last_outcome.clone().unwrap();
    assert_eq!(last_outcome.error.unwrap().code, "condition_error");
    assert_eq!(shell.starts.len(), 1);
}

#[test]
fn a_stage_is_asked_about_ahead_of_its_own_time() {
    let mut shell = Shell::new();
    let staged = task()
        .push()
        .stage("dispatch", Starts::After(minutes(60)))
        .stage("cancel", Starts::After(minutes(120)))
        .stage_guarded(asking(None, OnSilence::Hold));
    let id = shell.create(staged);
    shell.pass(minutes(60));
    shell.answer(last(&shell), succeeded()).unwrap();
    shell.pass(ahead(minutes(60)));
    assert!(shell.task(id).asks_guard());
    shell.answer(last(&shell), succeeded()).unwrap();
    shell.pass(GUARD_AHEAD);
    assert_eq!(
        (shell.starts.len(), last(&shell).at),
        (3, START.after(minutes(120)))
    );
    shell.answer(last(&shell), succeeded()).unwrap();
    assert_eq!(shell.state(id), State::Succeeded);
}

#[test]
fn guards_that_hang_take_no_slot_of_the_work() {
    let options = CoreOptions {
        running_max: 2,
        questions_max: 4,
        ..folding()
    };
    let mut shell = Shell::with(options);
    for _ in 0..10 {
        shell.create(task().push().guarded(None, OnSilence::Retry));
    }
    assert_eq!(
        shell.starts.len(),
        3,
        "a topic has three quarters of the slots"
    );
    for _ in 0..20 {
        let work = shell.create(task().topic("work").push());
        assert_eq!(last(&shell).task, work);
        shell.answer(last(&shell), succeeded()).unwrap();
    }
}

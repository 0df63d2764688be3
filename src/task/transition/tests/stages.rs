//! What becomes of a task that has stages, as sentences.

use super::*;
use crate::task::stage::{AtStage, Starts};

fn after(length: DurationMs) -> Starts {
    Starts::After(length)
}

/// A push at 60 min, another at 120 min.
fn ladder() -> TaskFixture {
    task()
        .push()
        .retry_after(minutes(1))
        .max_attempts(3)
        .stage("dispatch", after(minutes(60)))
        .stage("cancel", after(minutes(120)))
}

fn at(life: &Life) -> AtStage {
    life.task.at_stage.unwrap()
}

fn stage(life: &Life) -> &str {
    life.task.stage().unwrap().name.as_str()
}

/// When it is due, in minutes since its creation.
fn due_after(life: &Life) -> i64 {
    (life.task.due.at.0 - life.task.created_at.0) / 60_000
}

fn took_over(place: u8) -> Event {
    Event::StageTookOver { place }
}

fn passed_over(place: u8) -> Event {
    Event::StagePassedOver { place, error: None }
}

fn no_value(place: u8) -> Event {
    let error = Some(ErrorNote {
        code: "condition_error".to_owned(),
        message: "no such key: vip".to_owned(),
    });
    Event::StagePassedOver { place, error }
}

fn last_change(life: &Life) -> &str {
    &life.task.changes.kept.last().unwrap().why
}

#[test]
fn stages_come_one_after_the_other_each_with_a_budget_of_its_own() {
    let mut life = Life::of(ladder());
    assert_eq!((stage(&life), due_after(&life)), ("dispatch", 60));
    life.wait(minutes(60));
    life.attempt(failed("http_503"));
    assert_eq!((life.task.state, life.task.attempts), (State::Retrying, 1));
    life.wait(minutes(1));
    life.attempt(Outcome::Succeeded {
        result: Some("\"courier 7\"".into()),
        result_dropped: false,
    });
    assert_eq!((stage(&life), due_after(&life)), ("cancel", 120));
    assert_eq!((life.task.state, life.task.attempts), (State::Pending, 0));
    assert_eq!(
        last_change(&life),
        "the attempt succeeded; after stage dispatch comes cancel"
    );
    assert_eq!(life.task.result.as_ref().unwrap().as_str(), "\"courier 7\"");
    life.wait(minutes(59));
    life.attempt(succeeded());
    assert_eq!(life.task.state, State::Succeeded);
    assert_eq!(life.task.result, None, "the result is the last stage's");
    let stages: Vec<_> = life
        .task
        .attempts_log
        .kept
        .iter()
        .map(|made| made.stage.as_ref().unwrap().as_str())
        .collect();
    assert_eq!(stages, ["dispatch", "dispatch", "cancel"]);
    assert_eq!(
        (life.task.attempt, life.task.token),
        (AttemptNumber(3), AttemptToken(3))
    );
}

#[test]
fn a_stage_that_failed_for_good_does_not_keep_the_next_from_running() {
    let mut life = Life::of(ladder().max_attempts(1));
    life.wait(minutes(60));
    life.attempt(failed("http_503"));
    assert_eq!((life.task.state, stage(&life)), (State::Pending, "cancel"));
    assert_eq!(at(&life).died, Some((0, DeadReason::AttemptsUsedUp)));
    assert_eq!(life.dead_of(), None);
    life.wait(minutes(60));
    life.attempt(succeeded());
    assert_eq!((life.task.state, at(&life).died), (State::Succeeded, None));
}

#[test]
fn a_later_stage_takes_over_from_one_that_is_at_work_or_waits_to_be() {
    for (in_flight, mut life) in [(true, Life::of(ladder())), (false, Life::of(ladder()))] {
        life.wait(minutes(60));
        life.must(due());
        life.must(Event::Started);
        if !in_flight {
            life.answer(failed("http_503"));
        }
        life.wait(minutes(60));
        let (token, tried) = (life.task.token, life.task.attempts_log.total);
        let done = life.must(took_over(1));
        if in_flight {
            assert_eq!(done, Applied::ChangedAndStop(token));
            assert_eq!(life.task.attempts_log.kept[0].outcome, "cancelled");
        } else {
            assert_eq!(
                (done, life.task.attempts_log.total),
                (Applied::Changed, tried)
            );
        }
        assert_eq!(
            (stage(&life), due_after(&life), life.task.attempts),
            ("cancel", 120, 0)
        );
        assert_eq!(life.task.state, State::Pending);
        let late = finished(token, succeeded());
        assert!(matches!(life.apply(late), Err(Refusal::StaleToken { .. })));
        life.attempt(succeeded());
        assert_eq!(life.task.state, State::Succeeded);
    }
}

#[test]
fn a_stage_that_counts_from_the_end_of_the_one_before_waits_for_it() {
    let fixture = ladder().stage("settle", Starts::AfterPrevious(minutes(5)));
    let mut life = Life::of(fixture).then(took_over(1));
    life.wait(minutes(130));
    assert_eq!(life.task.takes_over(), None);
    assert!(matches!(
        life.apply(took_over(2)),
        Err(Refusal::IllegalState { .. })
    ));
    life.attempt(succeeded());
    assert_eq!((stage(&life), due_after(&life)), ("settle", 135));
}

#[test]
fn a_stage_whose_time_has_passed_is_due_at_once_and_late_by_as_much() {
    let mut life = Life::of(ladder());
    life.wait(minutes(121));
    life.must(took_over(1));
    life.must(due());
    life.must(Event::Started);
    assert_eq!(life.task.lateness_ms, Some(60_000));
}

#[test]
fn a_stage_that_is_passed_over_has_no_say() {
    // What is left of the present one goes on.
    let mut life = Life::of(ladder());
    life.wait(minutes(60));
    life.attempt(failed("http_503"));
    life.must(passed_over(1));
    assert_eq!(
        (life.task.state, stage(&life)),
        (State::Retrying, "dispatch")
    );
    assert_eq!((life.task.takes_over(), life.task.attempts), (None, 1));
    assert!(last_change(&life).starts_with("stage cancel is passed over"));
    life.attempt(succeeded());
    assert_eq!(life.task.state, State::Succeeded);
    // A task ends as the last stage that ran.
    let mut life = Life::of(ladder().max_attempts(1));
    life.attempt(failed("http_503"));
    life.must(passed_over(1));
    assert_eq!(life.dead_of(), Some(DeadReason::AttemptsUsedUp));
    assert_eq!(stage(&life), "dispatch");
    // None ran: there was nothing to do.
    let mut life = Life::of(ladder()).then(passed_over(0));
    assert_eq!((stage(&life), due_after(&life)), ("cancel", 120));
    life.must(passed_over(1));
    assert_eq!(
        (life.task.state, life.task.attempt),
        (State::Succeeded, AttemptNumber(0))
    );
}

#[test]
fn a_stage_whose_condition_has_no_value_is_given_up() {
    let mut life = Life::of(ladder()).then(no_value(0));
    assert_eq!((stage(&life), life.last_outcome()), ("cancel", "failed"));
    life.must(no_value(1));
    assert_eq!(
        (life.dead_of(), stage(&life)),
        (Some(DeadReason::Refused), "cancel")
    );
    // While the one before it is still at work: that one ends first, but the task as the later.
    let mut life = Life::of(ladder()).then(due()).then(no_value(1));
    assert_eq!(life.task.state, State::Dispatched);
    life.answer(succeeded());
    assert_eq!(
        (life.dead_of(), stage(&life)),
        (Some(DeadReason::Refused), "cancel")
    );
}

#[test]
fn an_end_from_outside_ends_all_stages() {
    for (event, state) in [
        (cancel(), State::Cancelled),
        (complete(None), State::Succeeded),
        (fail(), State::Dead),
    ] {
        assert_eq!(Life::of(ladder()).then(event.clone()).task.state, state);
        let mut life = Life::of(ladder()).then(due());
        assert!(matches!(life.must(event), Applied::ChangedAndStop(_)));
        assert_eq!((life.task.state, stage(&life)), (state, "dispatch"));
    }
}

#[test]
fn a_total_time_is_that_of_one_stage() {
    let mut life = Life::of(ladder().total(minutes(10)));
    life.wait(minutes(60));
    life.attempt(failed("http_503"));
    life.wait(minutes(10));
    life.must(Event::TotalTimeOver);
    assert_eq!((life.task.state, stage(&life)), (State::Pending, "cancel"));
    assert_eq!((life.task.first_due, life.task.total_until()), (None, None));
    life.wait(minutes(50));
    life.must(Event::CameDue);
    assert_eq!(
        life.task.total_until(),
        Some(life.now().steady.after(minutes(10)))
    );
}

#[test]
fn what_stands_still_moves_all_stages() {
    let mut life = Life::of(ladder());
    life.must(pause(PauseClock::Freeze));
    life.wait(minutes(7));
    life.must(Event::Resume);
    assert_eq!(due_after(&life), 67);
    life.must(Event::Thawed {
        thaw: 1,
        held: minutes(3),
    });
    assert_eq!(due_after(&life), 70);
    life.attempt(succeeded());
    assert_eq!(due_after(&life), 130);
    // Kept time goes on.
    let mut life = Life::of(ladder());
    life.must(pause(PauseClock::Keep));
    life.wait(minutes(7));
    life.must(Event::Resume);
    life.attempt(succeeded());
    assert_eq!(due_after(&life), 120);
}

#[test]
fn a_reschedule_moves_the_present_stage_and_those_behind_it_by_as_much() {
    for (event, first, second) in [
        (extend(minutes(30)), 90, 150),
        (
            reschedule(Due::after(minutes(10), Life::of(ladder()).now())),
            10,
            70,
        ),
        (Event::RunNow, 0, 120),
    ] {
        let mut life = Life::of(ladder()).then(event);
        assert_eq!(due_after(&life), first);
        life.attempt(succeeded());
        assert_eq!((stage(&life), due_after(&life)), ("cancel", second));
    }
}

#[test]
fn a_replay_begins_with_the_stage_that_died_and_keeps_the_distance_of_those_behind_it() {
    let mut life = Life::of(ladder().max_attempts(1)).then(fail());
    life.wait(minutes(300));
    life.must(Event::Replay);
    assert_eq!(
        (stage(&life), due_after(&life), life.task.generation),
        ("dispatch", 300, 2)
    );
    life.attempt(failed("http_503"));
    assert_eq!((stage(&life), due_after(&life)), ("cancel", 360));
    life.attempt(failed("http_503"));
    assert_eq!(
        (life.dead_of(), stage(&life)),
        (Some(DeadReason::AttemptsUsedUp), "cancel")
    );
    life.wait(minutes(300));
    life.must(Event::Replay);
    assert_eq!(
        (stage(&life), due_after(&life), at(&life).died),
        ("cancel", 600, None)
    );
    // What was passed over does not come again.
    let mut life = Life::of(ladder().max_attempts(1));
    life.attempt(failed("http_503"));
    life.must(passed_over(1));
    life.must(Event::Replay);
    assert_eq!((stage(&life), life.task.takes_over()), ("dispatch", None));
    life.attempt(succeeded());
    assert_eq!(life.task.state, State::Succeeded);
}

#[test]
fn a_replace_begins_with_the_first_of_the_new_stages_or_without_any() {
    let mut life = Life::of(ladder().max_attempts(1));
    life.attempt(failed("http_503"));
    life.wait(minutes(10));
    let now = life.now();
    let spec = ladder().stage("last", after(minutes(200))).spec();
    life.must(Event::Replace {
        spec,
        due: Due::after(minutes(60), now),
    });
    assert_eq!(
        (stage(&life), due_after(&life), at(&life).died),
        ("dispatch", 70, None)
    );
    life.attempt(succeeded());
    assert_eq!((stage(&life), due_after(&life)), ("cancel", 130));
    let due = Due::after(minutes(1), life.now());
    life.must(Event::Replace {
        spec: task().spec(),
        due,
    });
    assert_eq!((life.task.at_stage, life.task.stage()), (None, None));
}

#[test]
fn a_late_success_that_counts_ends_its_own_stage_and_no_other() {
    let accepted = || Event::AcceptedLate {
        attempt: AttemptNumber(1),
        outcome: succeeded(),
    };
    let mut life = Life::of(ladder());
    life.attempt(Outcome::TimedOut);
    life.must(accepted());
    assert_eq!((life.task.state, stage(&life)), (State::Pending, "cancel"));
    let mut life = Life::of(ladder());
    life.attempt(Outcome::TimedOut);
    life.must(pause(PauseClock::Keep));
    life.must(accepted());
    assert_eq!(
        (life.task.state, stage(&life)),
        (State::Paused, "cancel"),
        "what is paused stays so"
    );
    // Said of the first stage when the second is there, it is too late.
    use crate::task::late::LateAnswer;
    let mut life = Life::of(ladder());
    life.attempt(Outcome::TimedOut);
    let late = |life: &Life| {
        let event = finished(AttemptToken(1), succeeded());
        LateAnswer::of(&life.task, &event, "worker", life.now().wall).unwrap()
    };
    assert!(late(&life).can_finish(&life.task));
    life.must(took_over(1));
    assert!(!late(&life).can_finish(&life.task));
}

#[test]
fn a_task_without_stages_has_none_to_come() {
    let mut life = Life::of(task().push());
    for event in [took_over(0), took_over(1), passed_over(0), passed_over(1)] {
        assert!(matches!(
            life.apply(event),
            Err(Refusal::IllegalState { .. })
        ));
    }
    assert_eq!((life.task.until(), life.task.takes_over()), (None, None));
}

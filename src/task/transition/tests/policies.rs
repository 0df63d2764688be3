//! What follows from outcomes, budgets and answers, as sentences.

use super::*;
use crate::limits;
use crate::task::model::Lane;
use crate::task::retry::DELAY_MAX;

// ---------------------------------------------------------------- unknown outcomes

/// All ways in which nobody can say whether the work was done, with what the attempt's record calls them.
fn doubts() -> Vec<(&'static str, Life, Event)> {
    let token = AttemptToken(1);
    let push = || Life::of(task().push().at_most_once()).then(due());
    let pull = || Life::of(task().at_most_once()).then(leased());
    let broken = Outcome::Failed(Failure {
        in_doubt: true,
        ..failure("protocol")
    });
    vec![
        ("timeout", push(), finished(token, Outcome::TimedOut)),
        ("timeout", push(), Event::Overdue { token }),
        ("lease_expired", pull(), Event::Overdue { token }),
        ("failed", push(), finished(token, broken)),
        ("outcome_unknown", push(), finished(token, Outcome::Unknown)),
        ("outcome_unknown", push(), Event::Recovered),
        (
            "outcome_unknown",
            push().then(Event::Started),
            Event::Recovered,
        ),
        (
            "outcome_unknown",
            push(),
            Event::HandedBack { was_started: true },
        ),
    ]
}

#[test]
fn an_at_most_once_task_in_doubt_goes_to_a_person() {
    for (recorded, mut life, event) in doubts() {
        let shown = format!("{event:?}");
        life.must(event);
        assert_eq!(life.dead_of(), Some(DeadReason::OutcomeUnknown), "{shown}");
        assert_eq!(life.last_outcome(), "outcome_unknown", "{shown}");
        assert_eq!(life.task.attempts, 1, "{shown}");
        assert_eq!(life.task.attempts_log.kept[0].outcome, recorded, "{shown}");
    }
}

#[test]
fn an_at_most_once_task_that_failed_for_certain_is_tried_again() {
    for code in ["http_503", "connect", "dns"] {
        let mut life = Life::of(task().push().at_most_once());
        life.attempt(failed(code));
        assert_eq!(life.task.state, State::Retrying, "{code}");
    }
}

#[test]
fn an_at_most_once_task_that_never_started_is_handed_back_unharmed() {
    let mut life = Life::of(task().push().at_most_once()).then(due());
    life.must(Event::HandedBack { was_started: false });
    assert_eq!((life.task.state, life.task.attempts), (State::Pending, 0));
}

#[test]
fn an_at_least_once_task_of_unknown_outcome_is_due_at_once_with_one_attempt_used() {
    let mut life = Life::of(task().push().due_in_minutes(1));
    life.wait(minutes(1));
    life.must(due());
    life.must(Event::Started);
    life.wait(minutes(3));
    life.must(Event::Recovered);
    assert_eq!(life.task.state, State::Retrying);
    assert_eq!(life.left(), DurationMs(0));
    assert_eq!(
        (life.task.attempts, life.task.attempt, life.task.token),
        (1, AttemptNumber(1), AttemptToken(1))
    );
    assert_eq!(life.last_outcome(), "outcome_unknown");
    life.must(due());
    assert_eq!(
        (life.task.attempts, life.task.attempt, life.task.token),
        (2, AttemptNumber(2), AttemptToken(2))
    );
}

#[test]
fn an_unknown_outcome_of_the_last_attempt_is_dead_as_unknown() {
    let mut life = Life::of(task().push().max_attempts(1)).then(due());
    life.must(Event::Recovered);
    assert_eq!(life.dead_of(), Some(DeadReason::OutcomeUnknown));
}

#[test]
fn a_lease_goes_on_over_a_restart_with_its_full_length() {
    let mut life = Life::of(task()).then(leased());
    life.wait(DurationMs::secs(20));
    assert_eq!(life.must(Event::Recovered), Applied::InMemory);
    assert_eq!(life.task.state, State::Running);
    assert_eq!(life.task.live.as_ref().unwrap().report_by, MonoMs(50_000));
}

// ---------------------------------------------------------------- retries

#[test]
fn retries_climb_the_ladder_until_the_budget_is_gone() {
    let mut life = Life::of(task().push());
    let mut waits = Vec::new();
    while life.task.state != State::Dead {
        life.attempt(failed("http_503"));
        waits.push(life.left().0 / 60_000);
        assert_eq!(
            life.task.waiting_for.is_some(),
            life.task.state == State::Retrying
        );
        life.wait(life.left());
    }
    assert_eq!(waits[..10], [1, 5, 10, 30, 30, 30, 30, 30, 30, 30]);
    assert_eq!(
        (life.task.attempts, life.task.attempt),
        (11, AttemptNumber(11))
    );
    assert_eq!(life.dead_of(), Some(DeadReason::AttemptsUsedUp));
    assert_eq!(
        life.task
            .last_outcome
            .as_ref()
            .unwrap()
            .error
            .as_ref()
            .unwrap()
            .code,
        "http_503"
    );
}

#[test]
fn a_lost_lease_counts_so_that_a_poison_task_ends() {
    let mut life = Life::of(task().max_attempts(3));
    for lost in 1..=3 {
        assert_ne!(
            life.task.state,
            State::Dead,
            "after {} lost leases",
            lost - 1
        );
        life.must(leased());
        life.wait(DurationMs::secs(30));
        let token = life.task.token;
        assert_eq!(life.must(Event::Overdue { token }), Applied::Changed);
        assert_eq!(
            (life.task.attempts, life.last_outcome()),
            (lost, "lease_expired")
        );
    }
    assert_eq!(life.dead_of(), Some(DeadReason::LeaseExpired));
}

#[test]
fn a_receiver_that_asks_for_time_gets_it_but_never_less_than_the_ladder() {
    let longest = DurationMs(u64::MAX);
    for (asked, wait) in [
        (None, minutes(1)),
        (Some(DurationMs(5)), minutes(1)),
        (Some(minutes(7)), minutes(7)),
        (Some(longest), DELAY_MAX),
    ] {
        let mut life = Life::of(task().push());
        life.attempt(Outcome::Failed(Failure {
            retry_after: asked,
            ..failure("http_503")
        }));
        assert_eq!(life.left(), wait, "{asked:?}");
        assert_eq!(life.task.next.lane, Lane::Steady);
    }
}

#[test]
fn jitter_only_lengthens_a_wait() {
    let wait_with = |random| {
        let policy = RetryPolicy {
            backoff: Backoff::Fixed(DurationMs(1000)),
            jitter: 0.5,
            ..RetryPolicy::default()
        };
        let mut life = Life::of(task().push().retry(policy));
        life.random = random;
        life.attempt(failed("http_503"));
        life.left().0
    };
    assert_eq!([0.0, 0.5, 1.0].map(wait_with), [1000, 1250, 1500]);
}

#[test]
fn a_failure_for_good_ends_the_task_with_attempts_left() {
    let mut life = Life::of(task().push());
    life.attempt(Outcome::Failed(Failure {
        retryable: false,
        ..failure("http_422")
    }));
    assert_eq!(life.dead_of(), Some(DeadReason::Refused));
    let policy = RetryPolicy {
        on: vec![("http_4xx".to_owned(), OnFailure::Dead)],
        ..RetryPolicy::default()
    };
    let mut life = Life::of(task().push().retry(policy));
    life.attempt(failed("http_404"));
    assert_eq!(life.dead_of(), Some(DeadReason::Refused));
}

#[test]
fn a_failure_that_parks_waits_for_a_person_and_then_goes_on_at_once() {
    let policy = RetryPolicy {
        on: vec![("timeout".to_owned(), OnFailure::Park)],
        ..RetryPolicy::default()
    };
    let mut life = Life::of(task().push().retry(policy));
    life.attempt(Outcome::TimedOut);
    assert_eq!(life.task.state, State::Paused);
    assert!(life.task.live.is_none());
    life.wait(minutes(600));
    life.must(Event::Resume);
    assert_eq!((life.task.state, life.task.attempts), (State::Pending, 1));
    assert_eq!(life.left(), DurationMs(0));
}

// ---------------------------------------------------------------- total time

#[test]
fn the_total_time_ends_a_task_that_waits_for_its_next_attempt() {
    let mut life = Life::of(task().push().total(minutes(3)));
    life.attempt(failed("http_503"));
    life.wait(minutes(3));
    assert_eq!(life.must(Event::TotalTimeOver), Applied::Changed);
    assert_eq!(life.dead_of(), Some(DeadReason::TotalTime));
    assert_eq!(life.last_outcome(), "total_time");
    assert_eq!(
        life.task
            .last_outcome
            .as_ref()
            .unwrap()
            .error
            .as_ref()
            .unwrap()
            .code,
        "http_503"
    );
}

#[test]
fn the_total_time_stops_an_attempt_that_is_out() {
    for (mut life, start) in [
        (Life::of(task().push().total(minutes(3))), due()),
        (Life::of(task().total(minutes(3))), leased()),
    ] {
        life.must(start);
        life.wait(minutes(3));
        assert_eq!(
            life.must(Event::TotalTimeOver),
            Applied::ChangedAndStop(AttemptToken(1))
        );
        assert_eq!(life.dead_of(), Some(DeadReason::TotalTime));
        assert_eq!(life.last_outcome(), "total_time");
        assert_eq!(life.task.attempts_log.kept[0].outcome, "timeout");
    }
}

#[test]
fn an_attempt_that_fails_after_the_total_time_is_the_last_and_one_that_succeeds_counts() {
    for (outcome, state) in [
        (failed("http_503"), State::Dead),
        (succeeded(), State::Succeeded),
    ] {
        let mut life = Life::of(task().push().total(minutes(3))).then(due());
        life.wait(minutes(3));
        life.answer(outcome);
        assert_eq!(life.task.state, state);
        assert_eq!(
            life.dead_of(),
            (state == State::Dead).then_some(DeadReason::TotalTime)
        );
    }
}

#[test]
fn the_total_time_counts_from_the_first_due_time() {
    let mut life = Life::of(task().push().due_in_minutes(10).total(minutes(3)));
    assert_eq!(life.task.total_until(), None);
    let until = SteadyMs(START.0).after(minutes(13));
    // Handed out 20 ms ahead of its instant, as the shard does.
    life.wait(DurationMs(10 * 60_000 - 20));
    life.must(due());
    assert_eq!(life.task.total_until(), Some(until));
    life.wait(DurationMs(20));
    life.answer(failed("http_503"));
    life.wait(minutes(1));
    life.must(due());
    assert_eq!(life.task.total_until(), Some(until));
}

#[test]
fn the_total_time_counts_while_something_holds_the_task_back() {
    let mut life = Life::of(task().push().due_in_minutes(10).total(minutes(3)));
    life.wait(minutes(10));
    life.must(Event::CameDue);
    life.wait(minutes(2));
    life.must(due());
    assert_eq!(
        life.task.total_until(),
        Some(SteadyMs(START.0).after(minutes(13)))
    );
}

#[test]
fn the_total_time_is_never_over_before_a_new_due_time() {
    let mut life = Life::of(task().push().total(minutes(3)));
    life.must(Event::CameDue);
    let tomorrow = Due::after(minutes(24 * 60), life.now());
    life.must(reschedule(tomorrow));
    assert_eq!(life.task.total_until(), None);
}

#[test]
fn a_lease_is_never_longer_than_the_total_time_left() {
    let mut life = Life::of(task().total(DurationMs::secs(10)));
    life.must(Event::CameDue);
    life.wait(DurationMs::secs(4));
    life.must(leased());
    let live = life.task.live.as_ref().unwrap();
    assert_eq!(
        (live.lease, live.report_by),
        (Some(DurationMs::secs(6)), MonoMs(10_000))
    );
}

// ---------------------------------------------------------------- what uses no attempt

#[test]
fn a_snooze_uses_no_attempt() {
    let mut life = Life::of(task().max_attempts(1));
    for round in 1..=5 {
        life.must(leased());
        let token = life.task.token;
        life.must(Event::Snoozed {
            token,
            delay: minutes(20),
        });
        assert_eq!((life.task.state, life.task.attempts), (State::Retrying, 0));
        assert_eq!(life.task.waiting_for, Some(WaitingFor::Snooze));
        assert_eq!(
            (life.task.attempt, life.task.token),
            (AttemptNumber(round), AttemptToken(u64::from(round)))
        );
        assert_eq!(life.left(), minutes(20));
        life.wait(minutes(20));
    }
}

#[test]
fn what_was_handed_back_uses_no_attempt_and_is_due_at_once() {
    let mut life = Life::of(task().push()).then(due()).then(Event::Started);
    life.wait(minutes(1));
    life.must(Event::HandedBack { was_started: true });
    assert_eq!((life.task.state, life.task.attempts), (State::Retrying, 0));
    assert_eq!(life.task.attempts_log.kept[0].outcome, "given_back");
    assert_eq!(life.left(), DurationMs(0));
}

#[test]
fn what_an_executor_did_not_take_uses_no_attempt_and_comes_again_soon() {
    let mut life = Life::of(task().push()).then(due()).then(Event::Started);
    life.answer(Outcome::GivenBack);
    assert_eq!((life.task.state, life.task.attempts), (State::Retrying, 0));
    assert_eq!(life.left(), HANDED_BACK_WAIT);
}

#[test]
fn an_attempt_that_nobody_saw_gives_its_number_back_but_not_its_token() {
    let mut life = Life::of(task().push());
    for round in 1..=3 {
        life.must(due());
        assert_eq!(
            (life.task.attempt, life.task.token),
            (AttemptNumber(1), AttemptToken(round))
        );
        life.must(Event::HandedBack { was_started: false });
        assert_eq!(
            (life.task.attempts, life.task.attempt),
            (0, AttemptNumber(0))
        );
        assert_eq!(life.task.attempts_log.total, 0);
    }
}

#[test]
fn an_attempt_handed_back_ahead_of_its_instant_still_waits_for_it() {
    let mut life = Life::of(task().push().due_in_minutes(10));
    life.wait(DurationMs(10 * 60_000 - 20));
    life.must(due());
    life.wait(DurationMs(5));
    life.must(Event::HandedBack { was_started: false });
    assert_eq!(life.left(), DurationMs(15));
}

// ---------------------------------------------------------------- dead letters

#[test]
fn a_replay_is_a_new_generation_with_a_fresh_budget_and_the_old_history() {
    let mut life = Life::of(
        task()
            .push()
            .max_attempts(2)
            .retry_after(DurationMs(0))
            .total(minutes(3)),
    );
    life.attempt(failed("http_500"));
    life.attempt(failed("http_500"));
    assert_eq!(life.dead_of(), Some(DeadReason::AttemptsUsedUp));
    life.wait(minutes(60));
    life.must(Event::Replay);

    let task = &life.task;
    assert_eq!(
        (task.state, task.generation, task.attempts),
        (State::Pending, 2, 0)
    );
    assert_eq!(
        (
            task.dead_reason,
            task.ended_at,
            task.expires,
            task.total_until()
        ),
        (None, None, None, None)
    );
    assert_eq!(task.attempts_log.total, 2);
    assert_eq!(life.left(), DurationMs(0));

    life.must(due());
    assert_eq!(
        (life.task.attempt, life.task.token),
        (AttemptNumber(3), AttemptToken(3))
    );
    life.answer(failed("http_500"));
    assert_eq!(life.task.state, State::Retrying, "its budget is fresh");
    life.attempt(failed("http_500"));
    assert_eq!(life.dead_of(), Some(DeadReason::AttemptsUsedUp));
    let generations: Vec<u32> = life
        .task
        .attempts_log
        .kept
        .iter()
        .map(|record| record.generation)
        .collect();
    assert_eq!(generations, [1, 1, 2, 2]);
}

#[test]
fn a_person_settles_an_unknown_outcome_either_way() {
    for (succeeded, state, reason) in [
        (true, State::Succeeded, None),
        (false, State::Dead, Some(DeadReason::Refused)),
    ] {
        let mut life = Life::of(task().push().at_most_once())
            .then(due())
            .then(Event::Recovered);
        life.must(resolve(succeeded));
        assert_eq!((life.task.state, life.dead_of()), (state, reason));
        assert!(
            life.task
                .changes
                .kept
                .last()
                .unwrap()
                .why
                .ends_with(": the bank says so")
        );
    }
}

#[test]
fn a_replace_gives_new_content_and_a_fresh_budget() {
    let mut life = Life::of(task().push().total(minutes(3)));
    life.attempt(failed("http_503"));
    life.must(pause(PauseClock::Freeze));
    let spec = task().max_attempts(7).spec();
    let in_ten = Due::after(minutes(10), life.now());
    life.must(Event::Replace {
        spec: spec.clone(),
        due: in_ten,
    });
    let task = &life.task;
    assert_eq!(
        (task.state, task.generation, task.attempts),
        (State::Pending, 2, 0)
    );
    assert_eq!((&task.spec, task.due, task.next), (&spec, in_ten, in_ten));
    assert_eq!((task.pause, task.first_due), (None, None));
    assert_eq!(task.attempts_log.total, 1);
}

// ---------------------------------------------------------------- answers

#[test]
fn a_late_answer_with_an_old_token_is_refused_whatever_it_says() {
    let mut life = Life::of(task()).then(leased());
    life.wait(DurationMs::secs(30));
    let old = life.task.token;
    life.must(Event::Overdue { token: old });
    let answers = || {
        [
            finished(old, succeeded()),
            finished(old, failed("late")),
            heartbeat(old),
            Event::Snoozed {
                token: old,
                delay: minutes(1),
            },
            Event::Overdue { token: old },
            complete(Some(old)),
        ]
    };
    let stale = Err(Refusal::StaleToken {
        given: old,
        cancelled: false,
    });
    for answer in answers() {
        assert_eq!(life.apply(answer), stale, "while nobody has it");
    }
    life.must(leased());
    for answer in answers() {
        assert_eq!(life.apply(answer), stale, "while another has it");
    }
    life.answer(succeeded());
    assert_eq!(life.task.state, State::Succeeded);
}

#[test]
fn a_cancel_of_a_running_attempt_kills_its_token() {
    let mut life = Life::of(task()).then(leased());
    let token = life.task.token;
    assert_eq!(life.must(cancel()), Applied::ChangedAndStop(token));
    assert!(life.task.live.is_none());
    assert_eq!(life.task.attempts_log.kept[0].outcome, "cancelled");
    assert_eq!(
        life.task.changes.kept.last().unwrap().why,
        "cancelled: paid"
    );
    assert!(life.apply(finished(token, succeeded())).is_err());
    assert_eq!(life.task.state, State::Cancelled);
    assert_eq!(life.must(cancel()), Applied::Unchanged);
}

#[test]
fn a_heartbeat_moves_the_end_of_the_lease_and_nothing_else() {
    let mut life = Life::of(task()).then(leased());
    let token = life.task.token;
    life.wait(DurationMs::secs(12));
    let mut expected = life.task.clone();
    expected.live.as_mut().unwrap().report_by = MonoMs(42_000);
    life.must(heartbeat(token));
    assert_eq!(life.task, expected);
}

#[test]
fn a_heartbeat_of_a_push_neither_shortens_nor_lengthens_its_time() {
    let mut life = Life::of(task().push()).then(due()).then(Event::Started);
    let token = life.task.token;
    life.wait(DurationMs::secs(12));
    let before = life.task.clone();
    life.must(heartbeat(token));
    assert_eq!(life.task, before);
}

#[test]
fn an_attempt_is_recorded_with_its_times_and_its_worker() {
    let mut life = Life::of(task()).then(leased());
    life.wait(DurationMs(250));
    life.answer(failed("no_stock"));
    let record = &life.task.attempts_log.kept[0];
    assert_eq!(
        (record.attempt, record.token, record.generation),
        (AttemptNumber(1), AttemptToken(1), 1)
    );
    assert_eq!(
        (record.started_at, record.ended_at),
        (Some(START), START.after(DurationMs(250)))
    );
    assert_eq!(
        (record.executor, record.worker.as_deref(), record.outcome),
        ("pull", Some("w1"), "failed")
    );
    assert_eq!(record.error.as_ref().unwrap().code, "no_stock");

    let mut life = Life::of(task().push()).then(due()).then(Event::Started);
    life.wait(DurationMs(250));
    let started = START.after(DurationMs(3));
    life.must(Event::Finished {
        token: AttemptToken(1),
        outcome: succeeded(),
        started_at: Some(started),
    });
    assert_eq!(
        life.task.attempts_log.kept[0].started_at,
        Some(started),
        "the executor knows best"
    );
}

#[test]
fn a_result_too_large_to_be_kept_is_still_told_of() {
    let mut life = Life::of(task().push()).then(due());
    life.answer(Outcome::Succeeded {
        result: None,
        result_dropped: true,
    });
    assert_eq!(
        (life.task.state, life.task.result_dropped),
        (State::Succeeded, true)
    );
}

#[test]
fn lateness_is_counted_from_the_due_time_to_the_start() {
    let mut life = Life::of(task().push().due_in_minutes(10));
    life.wait(DurationMs(10 * 60_000 - 20));
    life.must(due());
    life.wait(DurationMs(23));
    life.must(Event::Started);
    assert_eq!(life.task.lateness_ms, Some(3));
}

#[test]
fn an_end_from_outside_keeps_what_it_gave_and_ends_the_attempt_that_is_out() {
    let mut life = Life::of(task()).then(leased());
    let token = life.task.token;
    assert_eq!(life.must(complete(None)), Applied::ChangedAndStop(token));
    assert_eq!(
        life.task.result.as_ref().unwrap().as_str(),
        "{\"paid\":true}"
    );
    assert_eq!(life.task.attempts_log.kept[0].outcome, "succeeded");

    let mut life = Life::of(task().due_in_minutes(10));
    assert_eq!(life.must(fail()), Applied::Changed);
    assert_eq!(life.dead_of(), Some(DeadReason::Refused));
    assert_eq!(
        life.task
            .last_outcome
            .as_ref()
            .unwrap()
            .error
            .as_ref()
            .unwrap()
            .message,
        "nothing left"
    );
    assert_eq!(life.task.attempts_log.total, 0, "there was no attempt");
}

// ---------------------------------------------------------------- history

#[test]
fn the_latest_hundred_attempts_and_changes_are_kept_and_all_are_counted() {
    let mut life = Life::of(task().push().max_attempts(200).retry_after(DurationMs(0)));
    for _ in 0..150 {
        life.attempt(failed("http_503"));
    }
    let task = &life.task;
    assert_eq!(
        (task.attempts_log.kept.len(), task.attempts_log.total),
        (limits::HISTORY_KEPT, 150)
    );
    assert_eq!(task.attempts_log.kept[0].attempt, AttemptNumber(51));
    assert_eq!(task.attempts_log.kept[99].attempt, AttemptNumber(150));
    assert_eq!(
        (task.changes.kept.len(), task.changes.total),
        (limits::HISTORY_KEPT, 301)
    );
}

#[test]
fn texts_from_outside_are_cut_to_what_may_be_kept() {
    let long = "é".repeat(limits::NOTE_BYTES_MAX);
    let mut life = Life::of(task()).then(Event::Leased {
        worker: long.clone(),
        lease: minutes(1),
    });
    life.must(Event::Fail {
        error: ErrorNote {
            code: long.clone(),
            message: long,
        },
    });
    let task = &life.task;
    let error = task.last_outcome.as_ref().unwrap().error.as_ref().unwrap();
    let worker = task.attempts_log.kept[0].worker.as_ref().unwrap();
    let whys = task.changes.kept.iter().map(|change| &change.why);
    for text in whys.chain([worker, &error.code, &error.message]) {
        assert!(text.len() <= limits::NOTE_BYTES_MAX);
    }
}

#[test]
fn what_was_armed_when_its_shard_died_keeps_its_instant_and_uses_no_attempt() {
    let mut life = Life::of(task().push().at_most_once().due_in(DurationMs(20))).then(due());
    let instant = life.task.next;
    life.must(Event::Recovered);
    assert_eq!((life.task.state, life.task.attempts), (State::Pending, 0));
    assert_eq!(life.task.next, instant);
    life.must(due());
    assert_eq!(
        (life.task.attempt, life.task.token),
        (AttemptNumber(1), AttemptToken(2))
    );
}

//! Late answers: kept before anybody is told, treated as the topic says, gone with their task.

use super::shell::finish;
use super::*;
use crate::clock::WallMs;
use crate::executor::AttemptReport;
use crate::shard::late::{LateAsk, LateFilter};
use crate::task::late::{Compensation, LateAnswer, LatePolicy, Treatment};
use crate::task::outcome::Outcome;
use crate::task::spec::RawJson;

fn policy(shell: &mut Shell, policy: LatePolicy) {
    let set = shell.try_set_topic(USUAL, |topic, _| topic.settings.late_answers = policy);
    set.unwrap();
}

fn compensating() -> LatePolicy {
    let topic = topic("refund");
    let action = Some(Action::Handler {
        name: "give-back".into(),
    });
    LatePolicy::Compensate(Compensation { topic, action })
}

fn done(result: &str) -> Outcome {
    Outcome::Succeeded {
        result: Some(result.to_owned().into()),
        result_dropped: false,
    }
}

/// A task whose first lease has run out, and the token of that.
fn lost(shell: &mut Shell) -> (TaskId, AttemptToken) {
    let id = shell.create(task().key("k").retry_after(DurationMs(0)).max_attempts(9));
    let token = shell.lease(&[USUAL], 1).remove(0).token;
    shell.pass(DurationMs::secs(30));
    shell.pass(DurationMs(1));
    (id, token)
}

fn say(shell: &mut Shell, id: TaskId, token: AttemptToken, outcome: Outcome) -> bool {
    let event = Event::Finished {
        token,
        outcome,
        started_at: None,
    };
    shell.ask(finish(id, event)).is_ok()
}

fn late_of(shell: &mut Shell, id: TaskId) -> Vec<LateAnswer> {
    let found = shell.ask(GetWithLate(Target::Id(id))).unwrap();
    found.map(|(_, late)| late).unwrap_or_default()
}

#[test]
fn a_worker_that_lost_its_lease_is_refused_and_what_it_said_is_kept() {
    let mut shell = Shell::new();
    let (id, first) = lost(&mut shell);
    let second = shell.lease(&[USUAL], 1).remove(0).token;
    let before = shell.task(id);
    assert!(!say(&mut shell, id, first, done("\"A\"")));
    assert_eq!(shell.task(id), before, "nothing has changed");
    let kept = late_of(&mut shell, id);
    let [late] = &kept[..] else {
        panic!("{kept:?}")
    };
    assert_eq!(
        (late.attempt, late.generation, late.token, late.outcome),
        (Some(AttemptNumber(1)), Some(1), first, "succeeded")
    );
    assert_eq!(
        (late.result.as_ref().map(RawJson::as_str), late.at),
        (Some("\"A\""), shell.now().wall)
    );
    assert_eq!(
        (late.worker.as_deref(), late.ended_as, late.state),
        (Some("w1"), Some("lease_expired"), State::Running)
    );
    assert_eq!(late.treatment, Treatment::Refused);
    assert!(late.why().contains("attempt 1, whose lease had run out"));
    // It is on the disk, and what is said later stands beside it.
    shell.crash();
    assert!(say(&mut shell, id, second, done("\"B\"")));
    assert!(!say(&mut shell, id, first, failed("no_stock")));
    shell.crash();
    let outcomes = late_of(&mut shell, id).into_iter();
    let outcomes: Vec<_> = outcomes.map(|late| (late.outcome, late.state)).collect();
    assert_eq!(
        outcomes,
        [("succeeded", State::Running), ("failed", State::Succeeded)]
    );
}

#[test]
fn what_repeats_an_answer_or_names_no_attempt_that_was_is_not_kept() {
    let mut shell = Shell::new();
    let (id, first) = lost(&mut shell);
    let second = shell.lease(&[USUAL], 1).remove(0).token;
    assert!(say(&mut shell, id, second, failed("busy")));
    assert!(!say(&mut shell, id, second, failed("busy")), "sent again");
    for never in [AttemptToken(0), AttemptToken(second.0 + 1)] {
        assert!(!say(&mut shell, id, never, done("1")));
    }
    for nothing_known in [Outcome::TimedOut, Outcome::Cancelled, Outcome::GivenBack] {
        assert!(!say(&mut shell, id, first, nothing_known));
    }
    assert_eq!(late_of(&mut shell, id), []);
    let third = shell.lease(&[USUAL], 1).remove(0).token;
    assert!(say(&mut shell, id, third, done("1")));
    assert!(!say(&mut shell, id, third, done("1")), "sent again");
    assert_eq!(late_of(&mut shell, id), []);
    // Another result, or another verdict, is news.
    assert!(!say(&mut shell, id, third, done("2")));
    assert!(!say(&mut shell, id, third, failed("busy")));
    for _ in 0..3 {
        assert!(!say(&mut shell, id, first, done("3")), "kept once");
    }
    assert_eq!(late_of(&mut shell, id).len(), 3);
}

#[test]
fn answers_of_cancelled_attempts_and_of_pushes_are_kept_too() {
    let mut shell = Shell::new();
    let id = shell.create(task().push());
    shell.pass(DurationMs(0));
    let start = shell.starts[0];
    shell.cancel(id);
    let report = AttemptReport {
        task: id,
        token: start.token,
        outcome: done("200"),
        started: None,
        ended: shell.now(),
        checkpoint: None,
    };
    let reports = [report.clone(), report];
    let refused = shell.ask(FinishMany::new(reports.into()));
    assert_eq!(refused.len(), 2);
    let kept = late_of(&mut shell, id);
    let [late] = &kept[..] else {
        panic!("{kept:?}")
    };
    assert_eq!(
        (late.by.as_str(), late.ended_as, late.state),
        ("executor", Some("cancelled"), State::Cancelled)
    );
}

#[test]
fn a_completion_from_outside_with_an_old_token_is_late_as_well() {
    let mut shell = Shell::new();
    let (id, first) = lost(&mut shell);
    let event = Event::Complete {
        result: None,
        token: Some(first),
    };
    shell.verb(id, event).unwrap_err();
    assert_eq!(late_of(&mut shell, id).len(), 1);
}

#[test]
fn a_late_success_ends_its_task_where_the_topic_accepts_it_unless_it_has_ended() {
    let mut shell = Shell::new();
    policy(&mut shell, LatePolicy::AcceptIfUnfinished);
    let (id, first) = lost(&mut shell);
    let second = shell.lease(&[USUAL], 1).remove(0).token;
    assert!(
        !say(&mut shell, id, first, failed("no")),
        "a failure ends nothing"
    );
    assert!(say(&mut shell, id, first, done("\"A\"")));
    let ended = shell.task(id);
    assert_eq!(
        (ended.state, ended.result.as_ref().map(RawJson::as_str)),
        (State::Succeeded, Some("\"A\""))
    );
    let last = ended.attempts_log.kept.last().unwrap();
    assert_eq!((last.token, last.outcome), (second, "cancelled"));
    // The one that was at it is late now, and nothing is left to be ended.
    assert!(!say(&mut shell, id, second, done("\"B\"")));
    let treated = late_of(&mut shell, id).into_iter();
    let mut treated: Vec<_> = treated
        .map(|late| (late.token, late.outcome, late.treatment))
        .collect();
    treated.sort_unstable_by_key(|(token, outcome, _)| (*token, *outcome));
    assert_eq!(
        treated,
        [
            (first, "failed", Treatment::Refused),
            (first, "succeeded", Treatment::Accepted),
            (second, "succeeded", Treatment::Refused)
        ]
    );
}

#[test]
fn a_late_success_of_an_earlier_generation_is_never_accepted() {
    let mut shell = Shell::new();
    policy(&mut shell, LatePolicy::AcceptIfUnfinished);
    let (id, first) = lost(&mut shell);
    let error = crate::task::history::ErrorNote {
        code: "c".into(),
        message: "m".into(),
    };
    shell.verb(id, Event::Fail { error }).unwrap();
    shell.verb(id, Event::Replay).unwrap();
    assert!(!say(&mut shell, id, first, done("1")));
    assert_eq!(shell.task(id).generation, 2);
    assert!(!shell.state(id).is_ended());
    assert_eq!(late_of(&mut shell, id)[0].treatment, Treatment::Refused);
}

#[test]
fn an_attempt_that_had_succeeded_in_time_is_not_compensated_whatever_it_says_later() {
    let mut shell = Shell::new();
    policy(&mut shell, compensating());
    let id = shell.create(task().key("k"));
    let token = shell.lease(&[USUAL], 1).remove(0).token;
    assert!(say(&mut shell, id, token, done("1")));
    assert!(!say(&mut shell, id, token, done("2")));
    assert_eq!(late_of(&mut shell, id)[0].treatment, Treatment::Refused);
    assert_eq!(shell.ids(), [id], "nothing takes back what counts");
}

#[test]
fn what_a_late_success_has_done_is_compensated_once_in_the_same_commit() {
    let mut shell = Shell::new();
    policy(&mut shell, compensating());
    let (id, first) = lost(&mut shell);
    shell.cancel(id);
    assert!(
        !say(&mut shell, id, first, failed("no")),
        "nothing was done"
    );
    assert_eq!(shell.ids(), [id]);
    for _ in 0..3 {
        assert!(!say(&mut shell, id, first, done("{\"charge\":7}")));
        shell.crash();
    }
    let mut kept = late_of(&mut shell, id);
    kept.retain(LateAnswer::is_success);
    let Treatment::Compensated(compensation) = kept[0].treatment else {
        panic!("{kept:?}")
    };
    let mut both = [id, compensation];
    both.sort_unstable();
    assert_eq!(shell.ids(), both, "once");
    let made = shell.task(compensation);
    assert_eq!((&made.topic, &made.key), (&topic("refund"), &None));
    assert_eq!(compensation.slot(), id.slot(), "it is in the same shard");
    let payload = made.spec.payload.as_ref().unwrap();
    let payload: serde_json::Value = serde_json::from_str(payload.as_str()).unwrap();
    assert_eq!(
        payload,
        serde_json::json!({
            "task": id.to_string(), "topic": USUAL, "key": "k", "attempt": 1, "token": first.0,
            "result": {"charge": 7}, "payload": null,
        })
    );
    let expected = Action::Handler {
        name: "give-back".into(),
    };
    assert_eq!(made.spec.action, expected);
}

#[test]
fn a_late_answer_goes_with_its_task() {
    let mut shell = Shell::new();
    let (id, first) = lost(&mut shell);
    assert!(!say(&mut shell, id, first, done("1")));
    shell.cancel(id);
    assert_eq!(shell.notes().len(), 1);
    shell.pass(minutes(6 * 24 * 60));
    assert_eq!(late_of(&mut shell, id).len(), 1);
    shell.pass(minutes(3 * 24 * 60));
    assert_eq!(shell.notes(), []);

    let (id, first) = lost(&mut shell);
    assert!(!say(&mut shell, id, first, done("1")));
    let error = crate::task::history::ErrorNote {
        code: "c".into(),
        message: "m".into(),
    };
    shell.verb(id, Event::Fail { error }).unwrap();
    shell.verb(id, Event::Discard).unwrap();
    assert_eq!(shell.notes(), []);
}

#[test]
fn a_page_goes_on_where_the_one_before_ended() {
    let mut shell = Shell::new();
    let mut expected = Vec::new();
    for _ in 0..5 {
        let (id, first) = lost(&mut shell);
        assert!(!say(&mut shell, id, first, done("1")));
        shell.cancel(id);
        expected.insert(0, id);
    }
    let mut ask = LateAsk {
        filter: LateFilter {
            topic: Some(topic(USUAL)),
            ..LateFilter::default()
        },
        after: None,
        limit: 2,
    };
    let mut found = Vec::new();
    loop {
        let page = shell.ask(ListLate(Arc::new(ask.clone())));
        let last = page.items.last().map(crate::shard::late::LatePlace::of);
        found.extend(page.items.into_iter().map(|late| late.task));
        if !page.has_more {
            break;
        }
        ask.after = last;
    }
    assert_eq!(found, expected);
    ask.after = None;
    ask.filter.before = Some(WallMs(0));
    assert_eq!(shell.ask(ListLate(Arc::new(ask))).items, []);
}

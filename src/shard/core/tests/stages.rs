//! Tasks with stages: each at its time, whatever is left of the one before it.

use serde_json::json;

use super::shell::Start;
use super::*;
use crate::task::outcome::Outcome;
use crate::task::stage::Starts;

fn after(secs: u64) -> Starts {
    Starts::After(DurationMs::secs(secs))
}

/// A push after 60 s, another after 120 s; a wait of 25 s between attempts.
fn ladder() -> TaskFixture {
    let push = task().push().retry_after(DurationMs::secs(25));
    push.stage("dispatch", after(60))
        .stage("cancel", after(120))
}

fn stage(shell: &mut Shell, id: TaskId) -> String {
    shell.task(id).stage().unwrap().name.to_string()
}

/// When attempts began, in seconds from the test's beginning.
fn begun(shell: &Shell) -> Vec<i64> {
    let since = |start: &Start| (start.at.0 - START.0) / 1000;
    shell.starts.iter().map(since).collect()
}

/// Answers the latest attempt.
fn answer(shell: &mut Shell, outcome: Outcome) {
    let start = *shell.starts.last().unwrap();
    shell.answer(start, outcome).unwrap();
}

#[test]
fn each_stage_starts_at_its_instant() {
    let mut shell = Shell::new();
    let id = shell.create(ladder());
    shell.pass(DurationMs::secs(60));
    answer(&mut shell, succeeded());
    assert_eq!(
        (shell.state(id), stage(&mut shell, id)),
        (State::Pending, "cancel".to_owned())
    );
    shell.pass(DurationMs::secs(60));
    answer(&mut shell, succeeded());
    assert_eq!(
        (shell.state(id), begun(&shell)),
        (State::Succeeded, vec![60, 120])
    );
    assert_eq!(shell.task(id).lateness_ms, Some(0));
}

#[test]
fn a_stage_takes_over_at_its_instant_from_one_that_runs_or_retries_and_that_one_is_stopped() {
    for fails in [false, true] {
        let mut shell = Shell::new();
        let id = shell.create(ladder());
        shell.pass(DurationMs::secs(60));
        if fails {
            answer(&mut shell, failed("http_503"));
            shell.pass(DurationMs::secs(25));
            answer(&mut shell, failed("http_503"));
            shell.pass(DurationMs::secs(34));
            assert_eq!(begun(&shell), [60, 85, 110]);
        } else {
            shell.core.table.change(id, |entry| {
                // It may take longer than there is to the next stage.
                let spec = &mut Arc::make_mut(&mut entry.task).spec;
                Arc::make_mut(spec).timeouts.attempt = minutes(5);
            });
            shell.pass(DurationMs(59_999));
        }
        let first = *shell.starts.last().unwrap();
        shell.pass(DurationMs::secs(1));
        let last = *shell.starts.last().unwrap();
        assert_eq!((*begun(&shell).last().unwrap(), last.task), (120, id));
        assert_eq!(
            shell.running.get(&id),
            Some(&last.token),
            "the one before it is stopped"
        );
        let late = shell.answer(first, succeeded()).unwrap_err();
        assert!(matches!(
            late,
            VerbRefused::Refused(Refusal::StaleToken { .. })
        ));
        assert_eq!(
            (shell.state(id), stage(&mut shell, id)),
            (State::Running, "cancel".to_owned())
        );
        answer(&mut shell, succeeded());
        assert_eq!(shell.state(id), State::Succeeded);
    }
}

#[test]
fn a_stage_takes_over_from_one_that_nobody_has_leased_and_from_one_without_a_slot() {
    let waits = Action::Pull;
    let mut shell = Shell::with(CoreOptions {
        running_max: 1,
        ..folding()
    });
    let pull = shell.create(ladder_of(waits).stage_if("end", after(120), None, Some(Action::None)));
    let busy = shell.create(task().push().due_in(DurationMs::secs(59)));
    let push = shell.create(ladder_of(task().push().spec().action.clone()).stage_if(
        "end",
        after(80),
        None,
        Some(Action::None),
    ));
    shell.pass(DurationMs::secs(61));
    assert_eq!(
        (shell.place(pull), shell.place(push)),
        (Place::Ready, Place::Queued)
    );
    shell.pass(DurationMs::secs(19));
    assert_eq!(
        (shell.state(push), shell.state(busy)),
        (State::Succeeded, State::Running)
    );
    assert_eq!(shell.place(pull), Place::Ready);
    shell.pass(DurationMs::secs(40));
    assert_eq!(shell.state(pull), State::Succeeded);
    assert!(shell.lease(&[USUAL], 10).is_empty());
}

fn ladder_of(action: Action) -> TaskFixture {
    task().action(action).stage("begin", after(60))
}

#[test]
fn what_came_due_while_nobody_looked_is_only_the_latest_stage() {
    let mut shell = Shell::new();
    let id = shell.create(ladder());
    shell.clock.advance(minutes(10));
    shell.crash();
    shell.pass(DurationMs(0));
    assert_eq!(
        (shell.starts.len(), stage(&mut shell, id)),
        (1, "cancel".to_owned())
    );
    let log: Vec<String> = shell
        .task(id)
        .changes
        .kept
        .iter()
        .map(|change| change.why.clone())
        .collect();
    assert!(
        log.iter()
            .any(|why| why == "stage cancel takes over: its time has come"),
        "{log:?}"
    );
}

#[test]
fn a_crash_between_two_stages_loses_neither() {
    let mut shell = Shell::new();
    let id = shell.create(ladder());
    shell.pass(DurationMs::secs(60));
    shell.crash();
    shell.pass(DurationMs(1));
    assert_eq!(
        (begun(&shell), stage(&mut shell, id)),
        (vec![60, 60], "dispatch".to_owned())
    );
    answer(&mut shell, succeeded());
    shell.crash();
    shell.pass(DurationMs::secs(59));
    shell.crash();
    shell.pass(DurationMs::secs(1));
    answer(&mut shell, succeeded());
    assert_eq!(
        (begun(&shell), shell.state(id)),
        (vec![60, 60, 120], State::Succeeded)
    );
}

#[test]
fn a_condition_is_looked_at_when_its_stage_comes() {
    let with = |condition: &str| {
        let fixture = task()
            .key("k1")
            .facts(&json!({"vip": true, "until": "2026-11-30T00:54:50.000Z"}))
            .action(Action::None)
            .stage_if("first", after(60), Some(condition), None)
            .stage("second", after(120));
        let mut shell = Shell::new();
        let id = shell.create(fixture);
        shell.pass(DurationMs::secs(60));
        let task = shell.task(id);
        assert_eq!(task.stage().unwrap().name.as_str(), "second");
        let why = task.changes.kept.last().unwrap().why.clone();
        (why, task.at_stage.unwrap().died)
    };
    let runs = "due; after stage first comes second";
    let passed =
        "stage first is passed over: its condition is not true; after stage first comes second";
    for (condition, why) in [
        ("facts.vip", runs),
        ("!facts.vip", passed),
        (
            "key == 'k1' && topic == 'order.unpaid' && !has(tags.region)",
            runs,
        ),
        ("now >= timestamp(facts.until)", passed),
        (
            "now < timestamp(facts.until) && now - created_at == duration(\"60s\")",
            runs,
        ),
        // The instant that it was to come at.
        (
            "now == timestamp('2026-11-30T00:54:20Z') && created_at == timestamp('2026-11-30T00:53:20Z')",
            runs,
        ),
    ] {
        assert_eq!(with(condition), (why.to_owned(), None), "{condition}");
    }
    let (why, died) = with("facts.gold");
    assert!(
        why.starts_with("stage first is passed over: its condition has no value: "),
        "{why}"
    );
    assert_eq!(died, Some((0, DeadReason::Refused)));
}

#[test]
fn a_condition_that_is_not_true_takes_nothing_from_the_stage_before() {
    let mut shell = Shell::new();
    let id = shell.create(
        task()
            .push()
            .retry_after(DurationMs::secs(25))
            .stage("dispatch", after(60))
            .stage_if("remind", after(70), Some("false"), None)
            .stage_if("cancel", after(120), Some("true"), None),
    );
    shell.pass(DurationMs::secs(60));
    answer(&mut shell, failed("http_503"));
    shell.pass(DurationMs::secs(25));
    assert_eq!(
        (begun(&shell), stage(&mut shell, id)),
        (vec![60, 85], "dispatch".to_owned())
    );
    answer(&mut shell, failed("http_503"));
    shell.pass(DurationMs::secs(60));
    assert_eq!(
        (*begun(&shell).last().unwrap(), stage(&mut shell, id)),
        (120, "cancel".to_owned())
    );
}

#[test]
fn stages_of_other_kinds_of_action_leave_no_slot_taken() {
    let mut shell = Shell::new();
    let id = shell.create(
        task()
            .push()
            .stage("push", after(1))
            .stage_if(
                "pull",
                Starts::AfterPrevious(DurationMs::secs(1)),
                None,
                Some(Action::Pull),
            )
            .stage_if(
                "mark",
                Starts::AfterPrevious(DurationMs(0)),
                None,
                Some(Action::None),
            ),
    );
    shell.pass(DurationMs::secs(1));
    answer(&mut shell, succeeded());
    assert_eq!(shell.core.slots.taken().count(), 0);
    shell.pass(DurationMs::secs(1));
    let lease = shell.lease(&[USUAL], 1).pop().unwrap();
    assert_eq!(lease.view.task.stage().unwrap().name.as_str(), "pull");
    shell
        .try_answer(id, lease.token, succeeded())
        .unwrap()
        .unwrap();
    assert_eq!(
        shell.state(id),
        State::Succeeded,
        "a marker that is due at once"
    );
}

#[test]
fn while_time_stands_still_no_stage_comes() {
    let mut shell = Shell::new();
    let id = shell.create(ladder());
    shell.pass(DurationMs::secs(50));
    shell.hold(USUAL, PauseClock::Freeze);
    shell.pass(minutes(10));
    assert_eq!(
        (shell.state(id), stage(&mut shell, id)),
        (State::Pending, "dispatch".to_owned())
    );
    shell.release(USUAL);
    shell.pass(DurationMs::secs(10));
    assert_eq!(begun(&shell), [660]);
    answer(&mut shell, succeeded());
    shell.pass(DurationMs::secs(60));
    assert_eq!(begun(&shell), [660, 720]);
}

#[test]
fn while_a_topic_is_held_its_stages_come_and_the_latest_starts_when_it_goes_on() {
    let mut shell = Shell::new();
    let id = shell.create(ladder());
    shell.hold(USUAL, PauseClock::Keep);
    shell.pass(minutes(10));
    assert_eq!(
        (shell.place(id), stage(&mut shell, id)),
        (Place::Held, "cancel".to_owned())
    );
    shell.release(USUAL);
    shell.pass(DurationMs(0));
    assert_eq!((begun(&shell), shell.starts.len()), (vec![600], 1));
}

//! Polls, what receivers complete later, and what waits for somebody outside: on tracks of their own, each to its end.

use super::shell::finish;
use super::*;
use crate::task::outcome::Outcome;
use crate::task::spec::OnNoAnswer;

const EVERY: DurationMs = DurationMs::secs(10);
const FOR: DurationMs = DurationMs::secs(60);

fn poll() -> TaskFixture {
    task().poll(EVERY, FOR)
}

fn not_yet() -> Outcome {
    Outcome::NotYet {
        answer: "200 {}".to_owned(),
    }
}

fn options() -> CoreOptions {
    CoreOptions {
        running_max: 2,
        questions_max: 4,
        ..folding()
    }
}

#[test]
fn a_poll_asks_every_so_often_and_once_more_when_its_time_is_over() {
    let mut shell = Shell::new();
    let id = shell.create(poll());
    for question in 0..=6 {
        assert_eq!(shell.starts.len(), question + 1);
        let start = shell.starts[question];
        assert_eq!(start.at, START.after(DurationMs(EVERY.0 * question as u64)));
        shell.answer(start, not_yet()).unwrap();
        if question < 6 {
            let task = shell.task(id);
            assert_eq!((task.state, task.attempts), (State::Retrying, 0));
            assert_eq!(shell.counts().in_flight, 0, "nothing is held meanwhile");
        }
        shell.pass(EVERY);
    }
    let task = shell.task(id);
    assert_eq!(task.dead_reason, Some(DeadReason::TotalTime));
    assert_eq!(shell.counts().rescue.given_up, 1, "and it is told");
    shell.pass(minutes(60));
    assert_eq!(shell.starts.len(), 7);
}

#[test]
fn the_last_question_is_short_and_nothing_is_given_up_unasked() {
    let mut shell = Shell::new();
    let short = || task().poll(EVERY, DurationMs::secs(20)).max_attempts(1);
    let id = shell.create(short());
    shell.pass(DurationMs::secs(20));
    shell.pass(DurationMs(0));
    assert_eq!(shell.starts.len(), 2, "the first one hung, and was cut off");
    assert_eq!(shell.state(id), State::Running);
    shell.answer(shell.starts[1], succeeded()).unwrap();
    assert_eq!(shell.state(id), State::Succeeded);
    assert_eq!(shell.counts().rescue.given_up, 0);

    let id = shell.create(short());
    shell.pass(minutes(3));
    let task = shell.task(id);
    assert_eq!(task.dead_reason, Some(DeadReason::TotalTime), "both hung");
    assert_eq!(shell.counts().rescue.given_up, 1);
}

#[test]
fn polls_that_wait_or_hang_take_no_slot_of_the_work_nor_of_last_questions() {
    let mut shell = Shell::with(options());
    let ids: Vec<_> = (0..10).map(|_| shell.create(poll())).collect();
    assert_eq!(
        shell.starts.len(),
        3,
        "a topic has three quarters of the slots"
    );
    // They hang. Work goes on meanwhile, one after the other and all of it.
    for _ in 0..20 {
        let work = shell.create(task().topic("work").push());
        let start = *shell.starts.last().unwrap();
        assert_eq!(start.task, work);
        shell.answer(start, succeeded()).unwrap();
    }
    let last_begun = |shell: &Shell| {
        let at = |start: &shell::Start| start.at >= START.after(FOR);
        shell.starts.iter().copied().filter(at).collect::<Vec<_>>()
    };
    shell.pass(FOR);
    let asked = last_begun(&shell);
    assert_eq!(
        asked.len(),
        3,
        "the last questions do not wait for those that hang"
    );
    for _ in 0..10 {
        for start in last_begun(&shell) {
            if shell.task(start.task).token == start.token
                && shell.state(start.task) == State::Running
            {
                shell.answer(start, not_yet()).unwrap();
            }
        }
        shell.pass(DurationMs(1));
    }
    let dead = |id: &TaskId| shell.state(*id) == State::Dead;
    assert!(
        ids.iter().all(dead),
        "each was asked once more, and given up"
    );
    assert_eq!(last_begun(&shell).len(), 10);
}

#[test]
fn a_poll_over_a_crash_goes_on_with_the_time_it_had() {
    let mut shell = Shell::new();
    let id = shell.create(poll());
    shell.answer(shell.starts[0], not_yet()).unwrap();
    shell.pass(DurationMs::secs(15));
    shell.crash();
    let task = shell.task(id);
    assert_eq!(
        (task.attempts, task.attempt),
        (1, AttemptNumber(1)),
        "the question that was cut off is none"
    );
    let again = *shell.starts.last().unwrap();
    assert_eq!(
        again.at,
        START.after(DurationMs::secs(15)),
        "asked again at once"
    );
    shell.answer(again, not_yet()).unwrap();
    let until = task.total_until().unwrap();
    assert_eq!(until, at(60_000).steady);
    shell.pass(DurationMs::secs(45));
    let last = *shell.starts.last().unwrap();
    shell.answer(last, not_yet()).unwrap();
    assert_eq!(shell.state(id), State::Dead);
}

#[test]
fn a_poll_of_a_held_topic_asks_nothing_and_is_asked_once_more_before_it_is_given_up() {
    let mut shell = Shell::new();
    let id = shell.create(poll());
    shell.answer(shell.starts[0], not_yet()).unwrap();
    shell.hold(USUAL, PauseClock::Keep);
    shell.pass(minutes(5));
    assert_eq!((shell.starts.len(), shell.state(id)), (1, State::Retrying));
    shell.release(USUAL);
    shell.pass(DurationMs(0));
    assert_eq!(shell.starts.len(), 2);
    shell.answer(shell.starts[1], not_yet()).unwrap();
    assert_eq!(shell.state(id), State::Dead);
}

// ---------------------------------------------------------------- taken on by a receiver

fn accepted() -> Outcome {
    Outcome::Accepted {
        complete_by: minutes(10),
    }
}

#[test]
fn what_a_receiver_took_on_holds_no_slot_and_ends_by_its_word() {
    let mut shell = Shell::with(options());
    let ids: Vec<_> = (0..8).map(|_| shell.create(task().push())).collect();
    for nth in 0..8 {
        assert_eq!(
            shell.starts.len().min(nth + 2),
            nth + 2.min(8 - nth),
            "as many as may"
        );
        shell.answer(shell.starts[nth], accepted()).unwrap();
    }
    assert_eq!(shell.counts().in_flight, 0);
    shell.crash();
    shell.pass(minutes(9));
    for start in shell.starts.clone() {
        let (task, token) = (start.task, start.token);
        shell
            .ask(KeepLease {
                task,
                token,
                checkpoint: None,
            })
            .unwrap();
    }
    shell.pass(minutes(9));
    for id in &ids {
        assert_eq!(shell.state(*id), State::Running, "kept by its heartbeat");
    }
    let said = |start: shell::Start, outcome| {
        let token = start.token;
        finish(start.task, Event::Answered { token, outcome })
    };
    shell.ask(said(shell.starts[0], succeeded())).unwrap();
    assert_eq!(shell.state(ids[0]), State::Succeeded);
    shell.ask(said(shell.starts[0], succeeded())).unwrap_err();
    shell
        .ask(said(shell.starts[1], failed("no_stock")))
        .unwrap();
    assert_eq!(shell.state(ids[1]), State::Retrying);
    shell.pass(minutes(1));
    let rest = ids[2..].iter().filter(|id| {
        let task = shell.core.table.read(**id).unwrap().task;
        task.last_outcome.as_ref().map(|last| last.outcome) == Some("timeout")
    });
    assert_eq!(rest.count(), 6, "not completed in time");
}

// ---------------------------------------------------------------- from outside only

#[test]
fn what_waits_for_somebody_outside_ends_by_their_word_or_at_its_time() {
    let mut shell = Shell::new();
    let only = || {
        task()
            .action(Action::CompleteOnly)
            .due_in(DurationMs::secs(5))
    };
    let [done, dead, endless] =
        [only().total(FOR), only().total(FOR), only()].map(|fixture| shell.create(fixture));
    assert_eq!(shell.place(done), Place::Wheel);
    shell.pass(DurationMs::secs(30));
    for id in [done, dead, endless] {
        assert_eq!(
            (shell.state(id), shell.place(id)),
            (State::Pending, Place::Awaiting)
        );
    }
    let view = shell.get(Target::Id(done)).unwrap();
    assert_eq!(view.blocked_by, Some("not_completed"));
    shell.crash();
    shell
        .verb(
            done,
            Event::Complete {
                result: None,
                token: None,
            },
        )
        .unwrap();
    assert_eq!(shell.state(done), State::Succeeded);
    shell.pass(DurationMs(34_999));
    assert_eq!(shell.state(dead), State::Pending);
    shell.pass(DurationMs(1));
    assert_eq!(
        shell.task(dead).dead_reason,
        Some(DeadReason::TotalTime),
        "counted from its due time, over a crash"
    );
    shell.pass(minutes(60 * 24));
    assert_eq!(
        shell.place(endless),
        Place::Awaiting,
        "without an end it waits on"
    );
    shell.cancel(endless);
    assert_eq!(shell.state(endless), State::Cancelled);
}

// ---------------------------------------------------------------- asked whether it was done

#[test]
fn what_is_asked_about_holds_no_slot_of_the_work_and_no_worker_gets_it_before_the_answer() {
    let mut shell = Shell::with(options());
    let verified = |fixture: TaskFixture| fixture.verified(OnNoAnswer::Retry);
    let pushed = shell.create(verified(task().topic("a").push()));
    let pulled = shell.create(verified(task().topic("b")));
    shell.lease(&["b"], 1);
    shell.answer(shell.starts[0], Outcome::TimedOut).unwrap();
    // Work that hangs has all slots.
    for _ in 0..4 {
        shell.create(task().topic("hangs").push());
    }
    shell.pass(minutes(1));
    let question = *shell
        .starts
        .iter()
        .rfind(|start| start.task == pushed)
        .unwrap();
    assert_eq!(
        shell.task(pushed).token,
        question.token,
        "it is asked all the same"
    );
    assert!(shell.task(pushed).verifies());
    shell.answer(question, succeeded()).unwrap();
    assert_eq!(shell.state(pushed), State::Succeeded);

    shell.pass(minutes(1));
    assert_eq!(shell.place(pulled), Place::InFlight);
    assert_eq!(shell.lease(&["b"], 1).len(), 0, "it is being asked");
    shell.crash();
    shell.pass(DurationMs(0));
    let question = *shell
        .starts
        .iter()
        .rfind(|start| start.task == pulled)
        .unwrap();
    assert!(
        shell.task(pulled).verifies(),
        "and asked again after a crash"
    );
    shell.answer(question, not_yet()).unwrap();
    shell.pass(DurationMs(0));
    let lease = shell.lease(&["b"], 1).remove(0);
    assert_eq!(
        (lease.attempt, lease.view.task.attempts),
        (AttemptNumber(2), 2)
    );
}

//! Keys: one live task each, what a second create does, cancels that come first, and how long an end is remembered.

use super::shell::verb;
use super::*;
use crate::clock::Clock;
use crate::task::event::NewDue;
use crate::task::transition::Retention;

fn named(name: &str) -> Target {
    Target::Key(topic(USUAL), key(name))
}

fn cancel_ahead(name: &str, tombstone_for: DurationMs) -> CancelAhead {
    CancelAhead {
        topic: topic(USUAL),
        key: key(name),
        reason: "paid".to_owned(),
        tombstone_for,
        by: "test".to_owned(),
        wants: Wants::Slim,
    }
}

#[test]
fn a_second_create_does_what_it_asks_for() {
    let due_in = |count| task().key("a").due_in_minutes(count);
    let payload_of = |shell: &mut Shell, id| shell.task(id).spec.retry.max_attempts;
    for (on_existing, asked, due, generation, attempts) in [
        (OnExisting::Return, 40, 30, 1, 11),
        (OnExisting::Replace, 20, 20, 2, 3),
        (OnExisting::Extend, 20, 20, 1, 11),
        (OnExisting::KeepLater, 20, 30, 1, 11),
        (OnExisting::KeepLater, 40, 40, 1, 11),
    ] {
        let mut shell = Shell::new();
        let id = shell.create(due_in(30));
        let created = shell.create_or(due_in(asked).max_attempts(3), on_existing);
        let Created::Existing(view) = created else {
            panic!("{on_existing:?}: {created:?}")
        };
        assert_eq!(view.task, shell.task(id), "{on_existing:?}");
        let is = (
            shell.task(id).due.at.since(START),
            shell.task(id).generation,
            payload_of(&mut shell, id),
        );
        assert_eq!(is, (minutes(due), generation, attempts), "{on_existing:?}");
        assert_eq!(shell.core.tasks(), 1);
    }
    let mut shell = Shell::new();
    let id = shell.create(due_in(30));
    let rejected = shell.create_or(due_in(40), OnExisting::Reject);
    assert!(matches!(rejected, Created::Exists(live) if live == id));
    shell.create(task().topic("other").key("a"));
}

#[test]
fn a_task_in_flight_is_not_replaced_or_moved_but_returned() {
    let mut shell = Shell::new();
    let id = shell.create(task().key("a").push());
    for on_existing in [
        OnExisting::Replace,
        OnExisting::Extend,
        OnExisting::KeepLater,
    ] {
        let refused = shell.create_or(task().key("a").due_in_minutes(5), on_existing);
        assert!(
            matches!(refused, Created::Refused(Refusal::IllegalState { .. })),
            "{on_existing:?}"
        );
    }
    let returned = shell.create_or(task().key("a"), OnExisting::Return);
    assert!(matches!(returned, Created::Existing(view) if view.task.id == id));
}

#[test]
fn the_same_id_again_finds_the_task_it_made() {
    let mut shell = Shell::new();
    let creation = shell.creation(task().due_in_minutes(1), OnExisting::Return);
    let create = || CreateTask {
        creation: creation.clone(),
        by: "test".to_owned(),
    };
    shell.ask(create());
    shell.cancel(creation.id);
    let again = shell.ask(create());
    assert!(matches!(again, Created::New(view) if view.task.state == State::Cancelled));
    assert_eq!(shell.core.tasks(), 1);
}

#[test]
fn a_key_leads_to_its_live_task_else_to_the_one_that_ended_last() {
    let mut shell = Shell::new();
    let found = |shell: &mut Shell| shell.get(named("a")).map(|view| view.task.id);
    assert_eq!(found(&mut shell), None);
    let mut ended = Vec::new();
    for _ in 0..3 {
        let id = shell.create(task().key("a").due_in_minutes(5));
        assert_eq!(found(&mut shell), Some(id));
        let error = crate::task::history::ErrorNote {
            code: "no".to_owned(),
            message: String::new(),
        };
        shell.verb(id, Event::Fail { error }).unwrap();
        shell.pass(DurationMs(10));
        assert_eq!(found(&mut shell), Some(id));
        ended.push(id);
    }
    // The latest is thrown away: the one before it is the latest then.
    shell.verb(ended[2], Event::Discard).unwrap();
    assert_eq!(found(&mut shell), Some(ended[1]));
    shell.crash();
    assert_eq!(found(&mut shell), Some(ended[1]));
    // Run again, a former one is the live one.
    shell.verb(ended[0], Event::Replay).unwrap();
    assert_eq!(found(&mut shell), Some(ended[0]));
}

#[test]
fn of_two_that_end_in_the_same_millisecond_the_later_one_is_found() {
    let mut shell = Shell::new();
    for name in ["a", "b", "c", "d", "e", "f", "g", "h"] {
        let mut last = None;
        for _ in 0..3 {
            let id = shell.create(task().key(name).due_in_minutes(5));
            shell.cancel(id);
            last = Some(id);
        }
        let found = shell.get(named(name));
        assert_eq!(found.map(|view| view.task.id), last);
    }
}

#[test]
fn nothing_is_replayed_while_its_key_is_live_again() {
    let mut shell = Shell::new();
    let dead = shell.create(task().key("a").push().max_attempts(1));
    shell.answer(shell.starts[0], failed("http_503")).unwrap();
    let live = shell.create(task().key("a").due_in_minutes(5));
    let refused = shell.verb(dead, Event::Replay).unwrap_err();
    assert_eq!(refused, VerbRefused::Exists(live));
    shell.cancel(live);
    shell.verb(dead, Event::Replay).unwrap();
}

#[test]
fn a_cancel_by_key_comes_too_late_for_what_succeeded_and_is_no_news_to_what_was_cancelled() {
    let mut shell = Shell::new();
    let cancel = || {
        let reason = String::new();
        verb(named("a"), Event::Cancel { reason })
    };
    assert_eq!(shell.ask(cancel()).unwrap_err(), VerbRefused::NotFound);
    let id = shell.create(task().key("a").due_in_minutes(1));
    assert!(!shell.ask(cancel()).unwrap().stopping);
    assert_eq!(shell.ask(cancel()).unwrap().view.slim().id, id);
    shell.pass(DurationMs(1));
    shell.create(task().key("a").action(Action::None));
    assert!(matches!(
        shell.ask(cancel()).unwrap_err(),
        VerbRefused::Refused(Refusal::IllegalState { .. })
    ));
}

#[test]
fn a_cancel_that_comes_first_wins_until_its_time_is_over() {
    let mut shell = Shell::new();
    assert!(shell.ask(cancel_ahead("a", minutes(10))).unwrap().is_none());
    shell.crash();
    shell.pass(DurationMs(10 * 60_000 - 1));
    let created = shell.create_or(task().key("a").push(), OnExisting::Reject);
    let Created::Cancelled(view) = created else {
        panic!("{created:?}")
    };
    assert_eq!(view.task.state, State::Cancelled);
    assert!(view.task.changes.kept.last().unwrap().why.contains("paid"));
    // A second create finds the same cancelled task, not another.
    let again = shell.create_or(task().key("a").push(), OnExisting::Reject);
    assert!(matches!(again, Created::Cancelled(same) if same.task.id == view.task.id));
    shell.create(task().key("b"));
    shell.pass(DurationMs(1));
    assert!(shell.notes().is_empty(), "its record is gone");
    shell.create(task().key("a").push());
    assert_eq!(shell.starts.len(), 1);
}

#[test]
fn a_later_tombstone_of_a_key_outlasts_the_end_of_an_earlier_one() {
    let mut shell = Shell::new();
    shell.ask(cancel_ahead("a", minutes(1))).unwrap();
    shell.ask(cancel_ahead("a", minutes(5))).unwrap();
    shell.pass(minutes(3));
    let created = shell.create_or(task().key("a"), OnExisting::Return);
    assert!(matches!(created, Created::Cancelled(_)));
    shell.pass(minutes(2));
    shell.create(task().key("a"));
}

#[test]
fn a_cancel_ahead_of_a_live_task_cancels_it_and_leaves_no_tombstone() {
    let mut shell = Shell::new();
    let id = shell.create(task().key("a").due_in_minutes(5));
    let done = shell.ask(cancel_ahead("a", minutes(10))).unwrap().unwrap();
    assert_eq!(
        (done.view.slim().id, done.view.slim().state),
        (id, State::Cancelled)
    );
    shell.create(task().key("a").due_in_minutes(5));
}

#[test]
fn the_record_of_an_ended_task_goes_when_its_retention_is_over() {
    let mut shell = Shell::new();
    let retention = Retention {
        succeeded: minutes(1),
        cancelled: minutes(2),
        dead: minutes(3),
    };
    shell
        .try_set_topic(USUAL, |topic, _| topic.settings.retention = retention)
        .unwrap();
    let succeeded = shell.create(task().key("a").action(Action::None));
    let cancelled = shell.create(task().key("b").due_in_minutes(1));
    shell.cancel(cancelled);
    let dead = shell.create(task().key("c").push().max_attempts(1));
    shell.answer(shell.starts[0], failed("http_503")).unwrap();
    // What has ended keeps the retention it ended with, also over a restart.
    shell
        .try_set_topic(USUAL, |topic, _| {
            topic.settings.retention = Retention::default()
        })
        .unwrap();
    shell.crash();
    for (id, name) in [(succeeded, "a"), (cancelled, "b"), (dead, "c")] {
        shell.pass(DurationMs(59_999));
        assert_eq!(shell.get(named(name)).map(|view| view.task.id), Some(id));
        shell.pass(DurationMs(1));
        assert!(shell.get(named(name)).is_none());
        assert!(shell.get(Target::Id(id)).is_none());
    }
    // What the last fold has written is put in its place.
    (0..3).for_each(|_| shell.pass(DurationMs(1)));
    assert_eq!(
        shell.core.next_in_ms(shell.now()),
        None,
        "nothing is left to be done"
    );
}

// ---------------------------------------------------------------- requests that are sent again

#[test]
fn a_verb_whose_request_is_sent_again_happens_once_also_across_a_crash() {
    let mut shell = Shell::new();
    let id = shell.create(task().due_in_minutes(30));
    let due = shell.task(id).due.at;
    let extend = || ApplyOnce {
        verb: verb(
            Target::Id(id),
            Event::Reschedule {
                due: NewDue::ExtendBy(minutes(10)),
            },
        ),
        request: 7,
    };
    assert!(shell.ask(extend()).is_ok());
    shell.crash();
    assert!(shell.ask(extend()).is_ok());
    assert_eq!(shell.task(id).due.at, due.after(minutes(10)));
    let other = ApplyOnce {
        request: 8,
        ..extend()
    };
    assert!(shell.ask(other).is_ok());
    assert_eq!(shell.task(id).due.at, due.after(minutes(20)));
}

#[test]
fn a_create_that_moves_the_live_task_moves_it_once_per_request() {
    let mut shell = Shell::new();
    let first = shell.create(task().key("k").due_in_minutes(30));
    let again = |shell: &mut Shell| {
        let mut creation = shell.creation(task().key("k").due_in_minutes(60), OnExisting::Replace);
        creation.request = Some(9);
        shell.ask(CreateTask {
            creation,
            by: "test".to_owned(),
        })
    };
    assert!(matches!(again(&mut shell), Created::Existing(_)));
    shell.crash();
    assert!(matches!(again(&mut shell), Created::Existing(_)));
    assert_eq!(shell.task(first).generation, 2);
}

#[test]
fn the_key_of_a_record_that_does_not_read_back_is_taken_all_the_same() {
    let mut shell = Shell::new();
    let names: Vec<String> = (0..40).map(|n| format!("k{n}")).collect();
    let fixtures = names.iter().map(|name| task().key(name).due_in_minutes(60));
    let ids: Vec<TaskId> = fixtures.map(|fixture| shell.create(fixture)).collect();
    let clock = Clock::by_hand(START);
    for chunk in shell.mem.chunks() {
        assert!(shell.mem.damage(chunk));
    }
    let (mut core, ..) = shell::recovered(&shell.mem, &shell::folding(), Arc::default(), &clock);
    let damaged: Vec<_> = ids
        .iter()
        .zip(&names)
        .filter(|(id, _)| core.table.read(**id).is_none())
        .collect();
    assert!(!damaged.is_empty());
    for (id, name) in damaged {
        for on_existing in [
            OnExisting::Return,
            OnExisting::Reject,
            OnExisting::Replace,
            OnExisting::Extend,
            OnExisting::KeepLater,
        ] {
            let again = shell.creation(task().key(name), on_existing);
            let made = core.create(again, "test", clock.now());
            assert!(
                matches!(made, Created::Exists(existing) if existing == *id),
                "{made:?}"
            );
        }
    }
    assert!(core.fault().is_none());
}

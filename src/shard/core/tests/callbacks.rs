//! Callbacks: owed from the commit that ends their task on, and no part of it afterwards.

use serde_json::Value as Json;

use super::*;
use crate::task::callback;
use crate::task::history::ErrorNote;

const CALLBACKS: &str = "order.unpaid.on_end";

/// The callbacks there are, and what they tell, by creation.
fn callbacks(shell: &mut Shell) -> Vec<(TaskId, Json)> {
    let ids = shell.ids().into_iter();
    let tasks: Vec<_> = ids.map(|id| shell.task(id)).collect();
    let mut told: Vec<_> = tasks
        .into_iter()
        .filter(|task| task.spec.callback_of.is_some())
        .map(|task| {
            let payload = task.spec.payload.as_ref().unwrap();
            (task.id, serde_json::from_str(payload.as_str()).unwrap())
        })
        .collect();
    told.sort_by_key(|(id, _)| *id);
    told
}

fn told(shell: &mut Shell) -> Vec<String> {
    let all = callbacks(shell).into_iter();
    all.map(|(_, told)| format!("{} {}", told["generation"], told["state"].as_str().unwrap()))
        .collect()
}

fn fail(shell: &mut Shell, id: TaskId) {
    let error = ErrorNote {
        code: "no".into(),
        message: "sold out".into(),
    };
    shell.verb(id, Event::Fail { error }).unwrap();
}

#[test]
fn each_way_to_end_is_told_of_in_the_commit_of_the_end() {
    let mut shell = Shell::new();
    let done = shell.create(task().push().called_back());
    shell.pass(DurationMs(0));
    let start = shell.starts[0];
    shell.answer(start, succeeded()).unwrap();
    let asleep = shell.create(task().due_in_minutes(600).called_back());
    // Until its record is in a chunk, and nothing of it is in memory.
    shell.pass(minutes(2));
    shell.cancel(asleep);
    let failed = shell.create(task().due_in_minutes(1).called_back());
    fail(&mut shell, failed);
    let skipped = shell.creation(task().called_back(), OnExisting::Return);
    let (creation, by) = (
        crate::shard::create::Creation {
            is_skipped: true,
            ..skipped
        },
        "test".to_owned(),
    );
    shell.ask(CreateTask { creation, by });
    shell.create(task().action(Action::None).called_back());
    shell.pass(DurationMs(0));
    shell.create(task().due_in_minutes(600));
    shell.crash();
    let mut all = told(&mut shell);
    all.sort();
    assert_eq!(
        all,
        [
            "1 cancelled",
            "1 cancelled",
            "1 dead",
            "1 succeeded",
            "1 succeeded"
        ]
    );
    let (id, first) = callbacks(&mut shell).remove(0);
    assert_eq!(first["id"], done.to_string());
    let made = shell.task(id);
    assert_eq!(
        (&made.topic, made.spec.callback_of),
        (&topic(CALLBACKS), Some(done))
    );
}

#[test]
fn a_replay_and_a_settlement_end_it_again_and_are_told_of_again() {
    let mut shell = Shell::new();
    let id = shell.create(task().due_in_minutes(1).called_back());
    fail(&mut shell, id);
    shell.pass(DurationMs(5));
    shell.verb(id, Event::Replay).unwrap();
    assert_eq!(
        shell.get(Target::Id(id)).unwrap().callback.map(|it| it.id),
        None
    );
    fail(&mut shell, id);
    shell.pass(DurationMs(5));
    let note = String::new();
    let unchanged = Event::Resolve {
        succeeded: false,
        note: note.clone(),
    };
    shell.verb(id, unchanged).unwrap();
    assert_eq!(told(&mut shell), ["1 dead", "2 dead"]);
    let succeeded = true;
    shell.verb(id, Event::Resolve { succeeded, note }).unwrap();
    assert_eq!(told(&mut shell), ["1 dead", "2 dead", "2 succeeded"]);
    let shown = shell.get(Target::Id(id)).unwrap().callback.unwrap();
    assert_eq!(Some(shown.id), callback::id_of(&shell.task(id)));
}

#[test]
fn a_receiver_that_is_down_is_tried_again_and_the_ended_task_waits_for_nothing() {
    let mut shell = Shell::new();
    let short = |topic: &mut crate::task::topic::Topic, _| {
        topic.settings.retention.cancelled = DurationMs::secs(1);
    };
    shell.try_set_topic(USUAL, short).unwrap();
    shell.hold(CALLBACKS, PauseClock::Keep);
    let id = shell.create(task().due_in_minutes(1).called_back());
    shell.cancel(id);
    assert_eq!(shell.state(id), State::Cancelled);
    shell.pass(DurationMs::secs(9));
    assert_eq!(shell.starts, [], "its topic is paused");
    let (callback, _) = callbacks(&mut shell).remove(0);
    assert_eq!(
        shell.ids(),
        [callback],
        "the record of the task is gone, what is owed is not"
    );
    shell.release(CALLBACKS);
    for (attempt, wait, outcome) in [
        (1, 0, failed("http_503")),
        (2, 1, failed("http_503")),
        (3, 5, succeeded()),
    ] {
        shell.pass(minutes(wait));
        let start = *shell.starts.last().unwrap();
        assert_eq!((start.task, start.attempt.0), (callback, attempt));
        shell.answer(start, outcome).unwrap();
        shell.crash();
    }
    assert_eq!(shell.state(callback), State::Succeeded);
    assert_eq!(callbacks(&mut shell).len(), 1, "nobody is told of that");
}

#[test]
fn an_end_and_what_is_owed_for_it_are_committed_together_or_not_at_all() {
    for points in 0.. {
        let mut shell = Shell::new();
        let id = shell.create(task().due_in_minutes(600).called_back());
        shell.die_at(points);
        let reason = String::new();
        let event = Event::Cancel { reason };
        let died = shell
            .try_ask(super::shell::verb(Target::Id(id), event))
            .is_err();
        assert_eq!(!died, shell.lives());
        let ended = shell.task(id).state.is_ended();
        assert_eq!(callbacks(&mut shell).len(), usize::from(ended));
        if !died {
            assert!(ended && points > 3);
            break;
        }
    }
}

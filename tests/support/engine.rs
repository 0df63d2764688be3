//! An engine inside the test's own process: tasks for its handlers, and waiting for what becomes of them.

use std::time::{Duration, Instant};

use duetime::task::topic::PartialTimeouts;
use duetime::{
    Action, Backoff, Created, Duetime, DurationMs, NewTask, RetryPolicy, State, Target, Task,
    TaskId, TopicName,
};
use tokio::sync::mpsc::UnboundedReceiver;

use super::SOON;

/// A task for the handler of that name, due now.
pub fn task_for(handler: &str) -> NewTask {
    let topic = TopicName::parse("embedded").expect("a name");
    NewTask::new(topic).action(Action::Handler {
        name: handler.to_owned(),
    })
}

pub fn fixed(wait_ms: u64, max_attempts: u32) -> RetryPolicy {
    RetryPolicy {
        backoff: Backoff::Fixed(DurationMs(wait_ms)),
        max_attempts,
        ..RetryPolicy::default()
    }
}

pub fn limits(attempt_ms: u64, grace_ms: u64) -> PartialTimeouts {
    PartialTimeouts {
        attempt: Some(DurationMs(attempt_ms)),
        grace: Some(DurationMs(grace_ms)),
        ..PartialTimeouts::default()
    }
}

pub async fn made(engine: &Duetime, new: NewTask) -> Task {
    match engine.create(new, "test").await {
        Ok(Created::New(view)) => Task::clone(&view.task),
        other => panic!("{other:?}"),
    }
}

pub async fn look(engine: &Duetime, id: TaskId) -> Task {
    let view = engine.get(Target::Id(id)).await.expect("an answer");
    Task::clone(&view.expect("the task is there").task)
}

/// Waits until the task is in this state, and gives it.
pub async fn ended(engine: &Duetime, id: TaskId, state: State) -> Task {
    let end = Instant::now() + SOON;
    loop {
        let task = look(engine, id).await;
        if task.state == state {
            return task;
        }
        assert!(Instant::now() < end, "{id} is {}, not {state}", task.state);
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

pub async fn heard<T>(hear: &mut UnboundedReceiver<T>) -> T {
    let next = tokio::time::timeout(SOON, hear.recv()).await;
    next.expect("it comes in time").expect("somebody speaks")
}

//! Callbacks: who asked for it is told how a task has ended.
//!
//! ```text
//!  task, topic order.unpaid ── ends ──▶ task, topic order.unpaid.on_end ──▶ receiver
//!                              └───────── one commit ────────┘  retries, log, dead letters: a task's own
//! ```
//!
//! A callback is a task of its own, created in the commit that ends the other: so it is owed from then on, whatever
//! dies. All that is told stands in it, so it needs the other one no more, and neither keeps the other waiting. Each
//! time that a task ends (again, after a replay; otherwise, when a person settles it) there is one callback. Its id
//! follows from the end that it tells of, so it is found without being written down.

use bytes::Bytes;
use serde::Serialize;
use serde_json::value::RawValue;
use xxhash_rust::xxh3::xxh3_64;

use crate::ids::TaskId;
use crate::task::history::{ErrorNote, Latest};
use crate::task::model::Task;
use crate::task::new_task::NewTask;
use crate::task::spec::{Action, RawJson, StageName, TaskKey, TaskSpec, TopicName};
use crate::task::topic::Topic;

/// Behind the name of a task's topic: the topic of its callback. By itself, that of callbacks of topics whose names
/// leave no room for it.
const TOPIC: &str = "on_end";

/// The topic of the callbacks of tasks of this topic. It can be declared, paused and counted like any other.
pub fn topic_of(topic: &TopicName) -> TopicName {
    TopicName::parse(&format!("{topic}.{TOPIC}"))
        .or_else(|_| TopicName::parse(TOPIC))
        .expect("a short word is a name")
}

/// Whether tasks of this topic are callbacks, unless somebody creates others in it.
pub fn is_topic(name: &TopicName) -> bool {
    let before = name.as_str().strip_suffix(TOPIC);
    before.is_some_and(|before| before.is_empty() || before.ends_with('.'))
}

/// The callback that tells of the present end of a task, if it has ended and tells anybody.
pub fn id_of(task: &Task) -> Option<TaskId> {
    let ended_at = task.ended_at.filter(|_| task.state.is_ended())?;
    task.spec.on_end.as_ref()?;
    let end = [
        &task.id.to_bytes()[..],
        &task.generation.to_be_bytes(),
        task.state.name().as_bytes(),
    ];
    // In the slot of its task: it is part of the same commit.
    Some(TaskId::with_tail(
        task.id.slot(),
        ended_at,
        xxh3_64(&end.concat()),
    ))
}

/// What the callback of a task that has ended is created with; `topic` is that of callbacks. `None` if nobody is told.
pub fn spec_of(task: &Task, topic: &Topic) -> Option<TaskSpec> {
    let on_end = task.spec.on_end.as_deref()?;
    let asked = NewTask {
        action: Some(Action::Http(on_end.http.clone())),
        retry: on_end.retry.clone(),
        payload: Some(told(task)),
        ..NewTask::new(task.topic.clone())
    };
    Some(TaskSpec {
        callback_of: Some(task.id),
        // Nobody is told that somebody was told.
        on_end: None,
        ..TaskSpec::clone(&asked.spec(topic))
    })
}

#[derive(Serialize)]
struct Told<'a> {
    id: String,
    topic: &'a str,
    key: Option<&'a str>,
    state: &'static str,
    generation: u32,
    stage: Option<&'a str>,
    attempts: u32,
    dead_reason: Option<&'static str>,
    last_outcome: Option<OutcomeTold<'a>>,
    result: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    result_dropped: bool,
    due_at: String,
    created_at: String,
    ended_at: Option<String>,
    by: &'a str,
    why: &'a str,
    tags: serde_json::Map<String, serde_json::Value>,
}

#[derive(Serialize)]
struct OutcomeTold<'a> {
    outcome: &'static str,
    error: Option<ErrorTold<'a>>,
}

#[derive(Serialize)]
struct ErrorTold<'a> {
    code: &'a str,
    message: &'a str,
}

/// How the task has ended, in the words of the API. All parts of it are bounded, and far below what a payload may be.
fn told(task: &Task) -> RawJson {
    let Latest { kept, .. } = &task.changes;
    let (by, why) = kept.last().map_or(("", ""), |last| (&last.by, &last.why));
    let result = task.result.as_ref();
    let told = Told {
        id: task.id.to_string(),
        topic: task.topic.as_str(),
        key: task.key.as_ref().map(TaskKey::as_str),
        state: task.state.name(),
        generation: task.generation,
        stage: task.stage().map(|stage| &stage.name).map(StageName::as_str),
        attempts: task.attempts,
        dead_reason: task.dead_reason.map(|reason| reason.name()),
        last_outcome: task.last_outcome.as_ref().map(|last| OutcomeTold {
            outcome: last.outcome,
            error: last
                .error
                .as_ref()
                .map(|ErrorNote { code, message }| ErrorTold { code, message }),
        }),
        result: result.and_then(|json| serde_json::from_str(json.as_str()).ok()),
        result_dropped: task.result_dropped,
        due_at: task.due.at.to_string(),
        created_at: task.created_at.to_string(),
        ended_at: task.ended_at.map(|at| at.to_string()),
        by,
        why,
        tags: task
            .spec
            .tags
            .iter()
            .cloned()
            .map(|(name, value)| (name, value.into()))
            .collect(),
    };
    // A struct of texts and numbers always becomes JSON.
    RawJson(Bytes::from(serde_json::to_vec(&told).unwrap_or_default()))
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test may")]
mod tests {
    use super::*;
    use crate::limits;
    use crate::task::event::Event;
    use crate::task::transition::{Context, Retention, apply};
    use crate::testing::fixtures::{at, task};

    fn cancelled(mut task: Task) -> Task {
        let ctx = Context {
            now: at(5),
            retention: Retention::default(),
            random: 0.0,
            by: "api",
        };
        let reason = "paid".to_owned();
        apply(&mut task, Event::Cancel { reason }, &ctx).unwrap();
        task
    }

    #[test]
    fn callbacks_have_a_topic_beside_that_of_their_tasks() {
        let name = |name: &str| TopicName::parse(name).unwrap();
        assert_eq!(topic_of(&name("order.unpaid")), name("order.unpaid.on_end"));
        let long = name(&"t".repeat(limits::TOPIC_BYTES_MAX - 6));
        assert_eq!(topic_of(&long), name("on_end"));
        for (topic, is) in [
            ("order.unpaid.on_end", true),
            ("on_end", true),
            ("order.unpaid", false),
            ("season_end", false),
        ] {
            assert_eq!(is_topic(&name(topic)), is, "{topic}");
        }
    }

    #[test]
    fn the_callback_of_an_end_is_known_by_it_alone() {
        let live = task().called_back().build(at(0));
        assert_eq!(id_of(&live), None, "it has not ended");
        let ended = cancelled(live.clone());
        let id = id_of(&ended).unwrap();
        assert_eq!(id.slot(), live.id.slot());
        assert_eq!(id_of(&ended), Some(id));
        let mut again = ended.clone();
        again.generation += 1;
        assert_ne!(id_of(&again), Some(id));
        assert_eq!(id_of(&cancelled(task().build(at(0)))), None);
    }

    #[test]
    fn it_says_how_the_task_ended_and_is_told_of_to_nobody() {
        let mut ended = cancelled(task().key("order-42").called_back().build(at(0)));
        ended.result = Some(RawJson::from("{\"a\": 1.50}".to_owned()));
        let mut topic = Topic::default();
        topic.settings.on_end = ended.spec.on_end.clone();
        let spec = spec_of(&ended, &topic).unwrap();
        assert_eq!((&spec.on_end, spec.callback_of), (&None, Some(ended.id)));
        let payload = spec.payload.unwrap();
        assert!(payload.as_str().contains("{\"a\": 1.50}"), "as it came");
        let told: serde_json::Value = serde_json::from_str(payload.as_str()).unwrap();
        assert_eq!(told["id"], ended.id.to_string());
        assert_eq!(
            (&told["state"], &told["key"], &told["generation"]),
            (&"cancelled".into(), &"order-42".into(), &1.into())
        );
        assert_eq!(
            (&told["by"], &told["why"]),
            (&"api".into(), &"cancelled: paid".into())
        );
        assert_eq!(told["ended_at"], at(5).wall.to_string());
    }
}

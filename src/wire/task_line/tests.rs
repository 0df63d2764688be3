use proptest::prelude::*;
use serde_json::{Value, json};

use std::sync::Arc;

use super::*;
use crate::clock::{DurationMs, WallMs};
use crate::ids::{Slot, TaskId};
use crate::limits;
use crate::task::clocks::Then;
use crate::task::retry::Backoff;
use crate::task::spec::{Action, HttpAction, Poll, RawJson};
use crate::task::stage::AtStage;
use crate::testing::arbitrary::{
    a_task, clocked_task, golden_task, guarded_task, plain_task, staged_task,
};
use crate::wire::problem::Problem;
use crate::wire::tests::refused;

/// The last millisecond that a line can name: the end of the year 9999, less a day.
const TIMES: i64 = 253_402_200_000_000;

/// The fixture's payload has a number with zeros before it, which is no JSON.
fn plain(n: u64) -> Task {
    let mut task = plain_task(n);
    let mut spec = (*task.spec).clone();
    spec.payload = Some(RawJson::from(format!("{{\"order_id\":{n}}}")));
    task.spec = Arc::new(spec);
    task
}

#[test]
fn a_payload_that_is_no_json_is_told_and_not_left_out() {
    let error = write(&plain_task(7), &mut Vec::new()).unwrap_err();
    assert_eq!(error.to_string(), "its payload is no JSON");
}

fn back(task: &Task) -> Result<Task, Problem> {
    let mut line = Vec::new();
    write(task, &mut line).unwrap();
    assert_eq!(line.iter().filter(|byte| **byte == b'\n').count(), 1);
    match read(&line)? {
        Line::Task(task) => Ok(*task),
        Line::Late(late) => panic!("{late:?}"),
    }
}

/// A task as drawn, made one that the API could have led to: names of what there is, times that a calendar shows.
fn sane(mut task: Task) -> Task {
    let time = |at: WallMs| WallMs(at.0.rem_euclid(TIMES));
    let length = |length: DurationMs, max: u64| DurationMs(length.0 % max);
    for due in [&mut task.due, &mut task.next] {
        due.at = time(due.at);
    }
    if let Some(at) = &mut task.at_stage {
        at.from.at = time(at.from.at);
    }
    task.created_at = time(task.created_at);
    task.updated_at = time(task.updated_at);
    task.ended_at = task.ended_at.map(time);
    for record in &mut task.attempts_log.kept {
        record.started_at = record.started_at.map(time);
        record.ended_at = time(record.ended_at);
    }
    for change in &mut task.changes.kept {
        change.at = time(change.at);
    }
    if let Some(live) = &mut task.live {
        live.started_at = live.started_at.map(time);
        live.lease = live
            .lease
            .map(|lease| length(lease, *limits::LEASE_MS.end()));
    }
    if let Some(key) = &task.key {
        let slot = Slot::of_key(task.topic.as_str(), key.as_str());
        task.id = TaskId::with_tail(slot, time(task.created_at), task.token.0);
    }
    task.ended_at = task
        .ended_at
        .or_else(|| task.state.is_ended().then_some(WallMs(5)));
    task.dead_reason = task
        .dead_reason
        .or_else(|| (task.state == State::Dead).then_some(DeadReason::Refused));
    if task.state == State::Paused && task.pause.is_none() {
        task.pause = golden_task().pause;
    }
    if task.state.is_in_flight() && task.live.is_none() {
        task.live = golden_task().live;
    }
    let as_json = |text: &RawJson| RawJson::from(json!({ "text": text.as_str() }).to_string());
    task.result = task.result.as_ref().map(as_json);
    task.checkpoint = task.checkpoint.as_ref().map(as_json);
    let mut spec = (*task.spec).clone();
    spec.payload = spec.payload.as_ref().map(as_json);
    spec.facts = spec.facts.as_ref().map(as_json);
    let good = || match golden_task().spec.action.clone() {
        Action::Http(http) => http,
        other => panic!("{other:?} is no push"),
    };
    match &mut spec.action {
        Action::Http(http) => {
            let complete_by = http
                .complete_by
                .map(|by| DurationMs(1 + by.0 % 2_000_000_000));
            *http = HttpAction {
                complete_by,
                ..good()
            };
        }
        Action::Poll(poll) => {
            let within = poll
                .within
                .map(|within| DurationMs(1 + within.0 % (limits::MAX_DELAY.0 - 1)));
            **poll = Poll {
                http: good(),
                every: DurationMs(100 + poll.every.0 % 86_000_000),
                within,
                done_if: "body.done".to_owned(),
                failed_if: poll.failed_if.as_ref().map(|_| "status == 204".to_owned()),
            };
        }
        _ => {}
    }
    if let Action::Handler { name } = &mut spec.action {
        *name = format!("handler-{}", name.len());
    }
    if spec.stages.is_some() {
        spec.stages.clone_from(&staged_task().spec.stages);
        task.at_stage = task.at_stage.map(|at| AtStage {
            place: at.place % 3,
            died: at.died.map(|(place, reason)| (place % 3, reason)),
            ..at
        });
    }
    if let Some(on_end) = &mut spec.on_end {
        on_end.http = good();
        on_end.retry = on_end
            .retry
            .as_ref()
            .map(|_| golden_task().spec.retry.clone());
    }
    if let Some(verify) = &mut spec.verify {
        verify.http = good();
        verify.done_if = "body.done".to_owned();
        verify.failed_if = None;
    }
    if spec.guard.is_some() {
        spec.guard.clone_from(&guarded_task().spec.guard);
    }
    if let Action::Command(command) = &mut spec.action {
        let numbered = |n: usize| (format!("NAME_{n}"), n.to_string());
        command.program = format!("/bin/{}", command.program.len());
        command
            .args
            .iter_mut()
            .for_each(|arg| *arg = arg.replace('\0', ""));
        command.env = (0..command.env.len()).map(numbered).collect();
        command.cwd = command
            .cwd
            .as_ref()
            .map(|dir| format!("/srv/{}", dir.len()));
    }
    spec.timeouts.attempt = DurationMs(10 + spec.timeouts.attempt.0 % 86_000_000);
    spec.timeouts.grace = length(spec.timeouts.grace, 600_000);
    spec.timeouts.total = spec
        .timeouts
        .total
        .map(|total| DurationMs(1 + total.0 % (limits::MAX_DELAY.0 - 1)));
    spec.timeouts.queue = spec
        .timeouts
        .queue
        .map(|queue| DurationMs(1 + queue.0 % (limits::MAX_DELAY.0 - 1)));
    spec.timeouts.heartbeat = spec
        .timeouts
        .heartbeat
        .map(|beat| DurationMs(100 + beat.0 % 86_000_000));
    for (_, then) in &mut spec.timeouts.then.0 {
        if let Then::Escalate(action) = then {
            **action = Action::Handler {
                name: "call".to_owned(),
            };
        }
    }
    let leases = spec.retry.max_lost_leases;
    spec.retry.max_lost_leases = leases.map(|leases| 1 + leases % 10_000);
    spec.max_lateness = spec
        .max_lateness
        .map(|late| length(late, limits::MAX_DELAY.0));
    spec.tags = (0..spec.tags.len())
        .map(|n| (format!("tag-{n}"), n.to_string()))
        .collect();
    let delay_max = crate::task::retry::DELAY_MAX.0;
    spec.retry.max_attempts = 1 + spec.retry.max_attempts % limits::ATTEMPTS_MAX;
    spec.retry.on = Vec::new();
    match &mut spec.retry.backoff {
        Backoff::Ladder(steps) => steps
            .iter_mut()
            .for_each(|step| *step = length(*step, delay_max)),
        Backoff::Fixed(delay) => *delay = length(*delay, delay_max),
        Backoff::Exponential { base, cap, .. } => {
            (*base, *cap) = (length(*base, delay_max), length(*cap, delay_max));
        }
    }
    if let Some(rule) = &mut spec.rule {
        rule.at = task.created_at;
    }
    task.spec = Arc::new(spec);
    task
}

proptest! {
    #[test]
    fn what_was_written_is_read_back_unchanged(task in a_task()) {
        let task = sane(task);
        prop_assert_eq!(back(&task).unwrap(), task);
    }
}

#[test]
fn something_in_every_field_comes_back() {
    for task in [
        golden_task(),
        staged_task(),
        clocked_task(),
        guarded_task(),
        plain(7),
    ] {
        assert_eq!(back(&task).unwrap(), task);
    }
}

#[test]
fn line_breaks_between_the_parts_of_a_payload_become_spaces() {
    let mut task = plain(1);
    let mut spec = (*task.spec).clone();
    spec.payload = Some(RawJson::from("{\n  \"a\": \"b\\nc\"\r\n}".to_owned()));
    task.spec = Arc::new(spec);
    let payload = back(&task).unwrap().spec.payload.clone().unwrap();
    assert_eq!(payload.as_str(), "{   \"a\": \"b\\nc\"  }");
}

fn good_due() -> Value {
    json!({"at": "2026-11-30T00:53:20.000Z", "lane": "steady", "fire_ms": 1_796_000_000_000_i64})
}

#[test]
fn a_staged_task_is_at_one_of_its_stages() {
    let mut line = Vec::new();
    write(&staged_task(), &mut line).unwrap();
    let good: Value = serde_json::from_slice(&line).unwrap();
    for (at, code) in [
        (Value::Null, "missing"),
        (json!({"place": 3, "from": good_due()}), "conflict"),
        (
            json!({"place": 0, "died": {"place": 3, "reason": "refused"}, "from": good_due()}),
            "conflict",
        ),
    ] {
        let mut line = good.clone();
        line["at_stage"] = at;
        assert_eq!(
            refused(read(line.to_string().as_bytes())),
            [(String::new(), code)]
        );
    }
}

#[test]
fn a_line_that_is_wrong_is_refused_with_the_place_of_all_that_is() {
    let mut line = Vec::new();
    write(&plain(1), &mut line).unwrap();
    let good: Value = serde_json::from_slice(&line).unwrap();
    let with = |field: &str, value: Value| {
        let mut line = good.clone();
        line[field] = value;
        refused(read(line.to_string().as_bytes()))
    };
    let at = |pointer: &str, code| vec![(pointer.to_owned(), code)];
    assert_eq!(with("colour", json!("red")), at("/colour", "unknown_field"));
    assert_eq!(with("key", json!("another")), at("", "conflict"));
    assert_eq!(with("state", json!("paused")), at("", "missing"));
    assert_eq!(with("state", json!("dispatched")), at("", "missing"));
    assert_eq!(with("topic", Value::Null), at("", "missing"));
    assert_eq!(
        with("at_stage", json!({"place": 0, "from": good_due()})),
        at("", "conflict")
    );
    let headers = json!({"http": {"url": "http://a/", "headers": {"x": "a\r\nhost: b"}}});
    let refusal = with("action", headers);
    assert_eq!(
        refusal[0],
        ("/action/http/headers/x".to_owned(), "control_character")
    );
    let log =
        json!({"items": [{"at": "soon", "to": "pending", "by": "a", "why": "b"}], "count": 1});
    assert_eq!(
        with("log", log)[0],
        ("/log/items/0/at".to_owned(), "invalid_time")
    );
    assert!(read(b"{\"id\": ").is_err());
}

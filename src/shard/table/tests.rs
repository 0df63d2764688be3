use super::*;
use crate::testing::fixtures::{at, task};

/// A task of `topic`, created and then ended at `ms`, in no time.
fn come_and_go(table: &mut TaskTable, topic: &str, ms: i64) {
    let now = at(ms);
    let task = task().topic(topic).build(now);
    let (id, name) = (task.id, task.topic.clone());
    table.topic_mut(&name, now.mono).count_created(now.mono);
    table.insert(task, Place::Wheel, now.mono);
    let line = table.topic_mut(&name, now.mono);
    line.count_started(3, now.mono);
    line.count_ended(State::Dead, now.mono);
    assert!(table.remove(id).is_some());
}

fn created(table: &mut TaskTable) -> u64 {
    let lines = table.topics_mut().map(|line| line.totals.created);
    lines.sum::<u64>() + table.dropped_totals().created
}

fn topics(table: &mut TaskTable) -> Vec<String> {
    let names = table.topics_mut().map(|line| line.name.as_str().to_owned());
    names.collect()
}

#[test]
fn an_idle_topic_is_dropped_and_what_was_counted_stays_counted() {
    let mut table = TaskTable::default();
    let stays = task().topic("stays").build(at(0));
    table.insert(stays, Place::Wheel, at(0).mono);
    come_and_go(&mut table, "goes", 0);
    table.drop_idle_topics(at(59_000).mono);
    assert_eq!(
        topics(&mut table).len(),
        2,
        "it has rates of the last minute"
    );
    table.drop_idle_topics(at(61_000).mono);
    assert_eq!(topics(&mut table), ["stays"]);
    let gone = table.dropped_totals();
    assert_eq!((gone.created, gone.started, gone.dead), (1, 1, 1));
}

#[test]
fn topics_that_come_and_go_do_not_add_up() {
    let mut table = TaskTable::default();
    for number in 0..1_000 {
        come_and_go(&mut table, &format!("topic-{number}"), 10_000 * number);
    }
    let left = topics(&mut table).len();
    assert!(left <= 2 * topics::LINES_MIN, "{left}");
    assert_eq!(created(&mut table), 1_000);
}

#[test]
fn the_latest_holder_of_a_key_is_found_after_others_have_gone() {
    let mut table = TaskTable::default();
    let mono = at(0).mono;
    let mut ids = Vec::new();
    for ended_ms in [5, 1, 5, 5, 9] {
        let mut task = task().key("k").build(at(0));
        task.state = State::Cancelled;
        task.ended_at = Some(at(ended_ms).wall);
        ids.push(task.id);
        table.insert(task, Place::AtRest, mono);
    }
    let probe = task().key("k").build(at(0));
    let (topic, key) = (probe.topic.clone(), probe.key.clone().unwrap());
    let mut left: Vec<(i64, TaskId)> = ids
        .iter()
        .map(|id| (table.row(*id).unwrap().at_ms, *id))
        .collect();
    for gone in [4, 2, 3, 0, 1] {
        let latest = left.iter().max().map(|(_, id)| *id);
        assert_eq!(table.latest(&topic, &key), latest);
        assert!(table.remove(ids[gone]).is_some());
        left.retain(|(_, id)| *id != ids[gone]);
    }
    // A live one leaves those that ended alone.
    let live = probe.id;
    table.insert(probe, Place::Wheel, mono);
    assert_eq!(table.latest(&topic, &key), Some(live));
    assert!(table.remove(live).is_some());
    assert_eq!(table.latest(&topic, &key), None);
}

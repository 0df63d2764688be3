//! What holds of a core between steps, whatever happened before: counted again from its tasks.

use std::collections::{BTreeMap, HashMap};

use super::*;
use crate::shard::place::Setting;
use crate::shard::table::Entry;

/// A line in which tasks wait, of a topic or of the shard.
type Line = (Option<TopicName>, &'static str);

/// Checks a core against its own tasks, and against what executors run.
pub fn assert_sound(
    core: &mut ShardCore,
    running_max: usize,
    running: &BTreeMap<TaskId, AttemptToken>,
) {
    let ids: Vec<TaskId> = core
        .table
        .ids_by_due(None)
        .unwrap()
        .iter()
        .map(|(_, id)| *id)
        .collect();
    assert_eq!(ids.len(), core.tasks(), "each task has one due time");
    assert_places(core, &ids);
    assert_alarms(core, &ids);
    assert_in_flight(core, &ids, running_max, running);
    assert_keys(core, &ids);
    assert_topics(core, &ids);
}

/// Each task stands in one place that suits its state, and only where it stands is it waited for.
fn assert_places(core: &mut ShardCore, ids: &[TaskId]) {
    let mut waiting: BTreeMap<Line, BTreeSet<(i64, TaskId)>> = BTreeMap::new();
    for id in ids {
        let Entry { task, place } = core.table.get(*id).unwrap();
        let pull = task.spec.action == Action::Pull;
        let suits = match task.state {
            State::Dispatched => *place == Place::InFlight && task.spec.action.is_dispatched(),
            State::Running => *place == Place::InFlight,
            State::Paused | State::Succeeded | State::Dead | State::Cancelled => {
                *place == Place::AtRest
            }
            State::Pending | State::Retrying => match place {
                Place::Wheel => true,
                Place::Ready => pull,
                Place::Held => !pull,
                Place::Queued => task.spec.action.is_dispatched(),
                Place::InFlight | Place::AtRest => false,
            },
        };
        assert!(suits, "{id} is {} and stands in {place:?}", task.state);
        assert_eq!(task.live.is_some(), task.state.is_in_flight());
        assert_eq!(task.ended_at.is_some(), task.state.is_ended());
        let line = match place {
            Place::Ready => (Some(task.topic.clone()), "ready"),
            Place::Held => (Some(task.topic.clone()), "held"),
            Place::Queued => (None, "queued"),
            Place::Wheel | Place::InFlight | Place::AtRest => continue,
        };
        waiting
            .entry(line)
            .or_default()
            .insert((task.next.fire_ms, *id));
    }
    let mut take = |line| waiting.remove(&line).unwrap_or_default();
    let queued: BTreeSet<(i64, TaskId)> = core.slots.waiting().collect();
    assert_eq!(queued, take((None, "queued")));
    for (name, line) in core.table.topics_mut() {
        assert_eq!(line.ready, take((Some(name.clone()), "ready")), "{name}");
        assert_eq!(line.held, take((Some(name.clone()), "held")), "{name}");
    }
    assert!(waiting.is_empty(), "{waiting:?} stand nowhere");
}

/// The wheels hold exactly the alarms that follow from task and place. (Notes may leave an early one behind.)
fn assert_alarms(core: &ShardCore, ids: &[TaskId]) {
    let sorted = |settings: Vec<Setting>| {
        let settings = settings
            .into_iter()
            .map(|(clock, at, alarm)| (format!("{clock:?}"), at, alarm));
        settings.collect::<BTreeSet<_>>()
    };
    let frozen = |task: &Task| core.book.get(&task.topic).is_frozen() && !task.state.is_in_flight();
    let (mut needed, mut overtime) = (Vec::new(), Vec::new());
    for id in ids {
        let Entry { task, place } = core.table.get(*id).unwrap();
        let [main, total] = alarms_of(task, *place);
        needed.extend(main);
        // Total time that runs out while a topic is frozen rings when the topic goes on.
        if frozen(task) {
            overtime.extend(total)
        } else {
            needed.extend(total)
        }
    }
    let mut set = core.wheels.settings();
    set.retain(|(.., alarm)| !matches!(alarm, Alarm::Tombstone(_) | Alarm::Answer(_)));
    let (set, needed, overtime) = (sorted(set), sorted(needed), sorted(overtime));
    assert_eq!(
        needed.difference(&set).collect::<Vec<_>>(),
        Vec::<&_>::new(),
        "not set"
    );
    let stray = set
        .iter()
        .filter(|setting| !needed.contains(setting) && !overtime.contains(setting));
    assert_eq!(
        stray.collect::<Vec<_>>(),
        Vec::<&_>::new(),
        "set for nothing"
    );
}

/// Executors of ours have what is dispatched or running, and no more than they may; what has not started is armed.
fn assert_in_flight(
    core: &ShardCore,
    ids: &[TaskId],
    running_max: usize,
    running: &BTreeMap<TaskId, AttemptToken>,
) {
    let tasks = ids.iter().map(|id| &core.table.get(*id).unwrap().task);
    let out: Vec<&Task> = tasks
        .filter(|task| task.state.is_in_flight() && task.spec.action.is_dispatched())
        .collect();
    assert_eq!(
        *core.slots.taken(),
        out.iter().map(|task| task.id).collect()
    );
    assert!(
        core.slots.taken().len() <= running_max,
        "{} attempts at a time",
        core.slots.taken().len()
    );
    let started = out.iter().filter(|task| task.state == State::Running);
    assert_eq!(
        *running,
        started.map(|task| (task.id, task.token)).collect(),
        "what executors run"
    );
    for task in out.iter().filter(|task| task.state == State::Dispatched) {
        let armed = Armed {
            fire_ms: task.next.fire_ms,
            task: task.id,
            token: task.token,
        };
        let lane = match task.next.lane {
            Lane::Wall => &core.armed_wall,
            Lane::Steady => &core.armed_steady,
        };
        assert!(lane.contains(&armed), "{} waits to be started", task.id);
    }
}

/// A key leads to its live task, of which there is at most one, else to the one that ended last.
fn assert_keys(core: &ShardCore, ids: &[TaskId]) {
    let mut by_key: HashMap<(&TopicName, &TaskKey), Vec<&Task>> = HashMap::new();
    for id in ids {
        let task = &core.table.get(*id).unwrap().task;
        if let Some(key) = &task.key {
            by_key.entry((&task.topic, key)).or_default().push(task);
        }
    }
    for ((topic, key), tasks) in by_key {
        let live: Vec<TaskId> = tasks
            .iter()
            .filter(|task| !task.state.is_ended())
            .map(|task| task.id)
            .collect();
        assert!(live.len() <= 1, "{topic} {key} has two live tasks");
        // Of several that ended in the same millisecond any may have been the last.
        let last = tasks.iter().filter_map(|task| task.ended_at).max();
        let latest = core.table.latest(topic, key);
        let ended_last = tasks
            .iter()
            .any(|task| task.ended_at == last && Some(task.id) == latest);
        let live = live.first().copied();
        assert_eq!(core.table.live(topic, key), live);
        assert!(
            if live.is_some() {
                latest == live
            } else {
                ended_last
            },
            "{topic} {key} leads to {latest:?}"
        );
    }
}

/// Counts by topic and state, and the orders of lists.
fn assert_topics(core: &mut ShardCore, ids: &[TaskId]) {
    let mut counts: HashMap<TopicName, [u64; State::ALL.len()]> = HashMap::new();
    let (mut by_due, mut by_end) = (BTreeSet::new(), BTreeSet::new());
    for id in ids {
        let task = &core.table.get(*id).unwrap().task;
        counts.entry(task.topic.clone()).or_default()[task.state.index()] += 1;
        by_due.insert((task.due.at, *id));
        by_end.extend(task.ended_at.map(|at| (at, *id)));
    }
    assert_eq!(core.table.ids_by_due(None), Some(&by_due));
    assert_eq!(core.table.ids_by_end(), &by_end);
    for (name, line) in core.table.topics_mut() {
        assert_eq!(
            line.counts,
            counts.remove(name).unwrap_or_default(),
            "{name}"
        );
    }
    assert!(counts.is_empty());
}

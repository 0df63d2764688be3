//! What holds of a core between steps, whatever happened before: counted again from its tasks.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::*;
use crate::shard::index::Home;
use crate::shard::place::Setting;
use crate::shard::query::Order;
use crate::shard::table::Entry;
use crate::store::chunk::ChunkId;

/// A line in which tasks wait, of a topic or of the shard.
type Line = (Option<TopicName>, &'static str);

/// Checks a core against its own tasks, and against what executors run.
pub fn assert_sound(
    core: &mut ShardCore,
    running_max: usize,
    running: &BTreeMap<TaskId, AttemptToken>,
) {
    let mut ids = core.table.ids();
    ids.sort_unstable();
    assert_eq!(ids.len(), core.tasks(), "each task has one row");
    assert_homes(core, &ids);
    assert_eq!(core.audited().wrong, 0, "the auditor finds nothing wrong");
    assert_places(core, &ids);
    assert_alarms(core, &ids);
    assert_in_flight(core, &ids, running_max, running);
    assert_keys(core, &ids);
    assert_topics(core, &ids);
    assert_lists(core, &ids);
}

/// A list shows every task there is, wherever its record stands, in its order.
fn assert_lists(core: &mut ShardCore, ids: &[TaskId]) {
    let now = Now {
        wall: crate::clock::WallMs(0),
        mono: MonoMs(0),
        steady: crate::clock::SteadyMs(0),
    };
    let tasks: Vec<Arc<Task>> = ids
        .iter()
        .map(|id| core.table.read(*id).unwrap().task)
        .collect();
    for order in [Order::DueFirst, Order::DueLast, Order::EndedLast] {
        let place = |task: &Arc<Task>| match order {
            Order::DueFirst | Order::DueLast => Some((task.due.at, task.id)),
            Order::EndedLast => task.ended_at.map(|at| (at, task.id)),
        };
        let mut expected: Vec<_> = tasks.iter().filter_map(place).collect();
        expected.sort_unstable();
        if order != Order::DueFirst {
            expected.reverse();
        }
        let ask = PageAsk {
            order,
            limit: usize::MAX,
            scan_max: usize::MAX,
            ..PageAsk::default()
        };
        let items = core.page(&ask, now).items;
        let listed: Vec<_> = items.iter().map(|(at, _)| (at.at, at.id)).collect();
        assert_eq!(listed, expected, "{order:?}");
    }
}

/// Each task stands in one place that suits its state, and only where it stands is it waited for.
fn assert_places(core: &mut ShardCore, ids: &[TaskId]) {
    let mut waiting: BTreeMap<Line, BTreeSet<(i64, TaskId)>> = BTreeMap::new();
    for id in ids {
        let Entry { task, place, .. } = core.table.read(*id).unwrap();
        let (task, place) = (&*task, &place);
        let pull = *task.action() == Action::Pull;
        let awaits = *task.action() == Action::CompleteOnly;
        let suits = match task.state {
            State::Dispatched => *place == Place::InFlight && task.starts_here(),
            State::Running => *place == Place::InFlight,
            State::Paused | State::Succeeded | State::Dead | State::Cancelled => {
                *place == Place::AtRest
            }
            State::Pending | State::Retrying => match place {
                Place::Wheel => true,
                Place::Ready => pull && !task.is_asked_about(),
                Place::Held => task.is_asked_about() || !pull && !awaits,
                Place::Awaiting => awaits && !task.is_asked_about(),
                Place::Queued => task.starts_here(),
                Place::InFlight | Place::AtRest => false,
            },
        };
        assert!(suits, "{id} is {} and stands in {place:?}", task.state);
        let row = core.table.row(*id).unwrap();
        assert_eq!(row.calls_back, task.calls_back());
        assert_eq!(task.live.is_some(), task.state.is_in_flight());
        assert_eq!(task.ended_at.is_some(), task.state.is_ended());
        let line = match place {
            Place::Ready => (Some(task.topic.clone()), "ready"),
            Place::Held => (Some(task.topic.clone()), "held"),
            Place::Queued => (None, queue_of(Track::of(task))),
            Place::Wheel | Place::InFlight | Place::AtRest | Place::Awaiting => continue,
        };
        waiting
            .entry(line)
            .or_default()
            .insert((task.next.fire_ms, *id));
    }
    let mut take = |line| waiting.remove(&line).unwrap_or_default();
    for track in Track::ALL {
        let queued: BTreeSet<(i64, TaskId)> = core.slots.of(track).waiting().collect();
        assert_eq!(queued, take((None, queue_of(track))), "{track:?}");
    }
    for line in core.table.topics_mut() {
        let name = &line.name;
        assert_eq!(line.ready, take((Some(name.clone()), "ready")), "{name}");
        assert_eq!(line.held, take((Some(name.clone()), "held")), "{name}");
    }
    assert!(waiting.is_empty(), "{waiting:?} stand nowhere");
}

fn queue_of(track: Track) -> &'static str {
    match track {
        Track::Work => "queue for work",
        Track::Questions => "queue for questions",
        Track::LastQuestions => "queue for last questions",
        Track::Verifications => "queue for verifications",
        Track::Guards => "queue for guards",
    }
}

/// What a row says is what the record says, and a record in a chunk lives there.
fn assert_homes(core: &mut ShardCore, ids: &[TaskId]) {
    for id in ids {
        let row = core.table.row(*id).unwrap();
        let Entry { task, place, .. } = core.table.read(*id).expect("each record reads back");
        let at = task.ended_at.unwrap_or(task.due.at);
        assert_eq!(
            (row.state, row.place, row.at_ms),
            (task.state, place, at.0),
            "{id}"
        );
        assert_eq!(row.generation.map(u32::from), Some(task.generation));
        if let Home::Chunk(chunk, place) = row.home {
            let meta = core.table.shelf().chunk(chunk).expect("its chunk is there");
            assert!(
                meta.is_live(usize::from(place)),
                "{id} is dead in {}",
                meta.id
            );
        }
    }
    let live: u32 = core
        .table
        .shelf()
        .chunks()
        .map(|(_, meta)| meta.live())
        .sum();
    let in_chunks = |id: &&TaskId| {
        let row = core.table.row(**id).unwrap();
        matches!(row.home, Home::Chunk(..))
    };
    assert!(live as usize >= ids.iter().filter(in_chunks).count());
}

/// The wheels hold exactly the alarms that follow from task and place, but for tasks whose time is far: their chunk
/// has one for all of them. (Notes may leave an early one behind.)
fn assert_alarms(core: &mut ShardCore, ids: &[TaskId]) {
    let sorted = |settings: Vec<Setting>| {
        let settings = settings
            .into_iter()
            .map(|(clock, at, alarm)| (format!("{clock:?}"), at, alarm));
        settings.collect::<BTreeSet<_>>()
    };
    let book = Arc::clone(&core.book);
    let frozen = |task: &Task| book.get(&task.topic).is_frozen() && !task.state.is_in_flight();
    let (mut needed, mut overtime) = (Vec::new(), Vec::new());
    let mut set = core.wheels.settings();
    let chunks: HashSet<ChunkId> = set
        .iter()
        .filter_map(|(.., alarm)| match alarm {
            Alarm::Chunk(chunk) => Some(*chunk),
            _ => None,
        })
        .chain(core.to_open.iter().map(|(_, chunk)| *chunk))
        .collect();
    for id in ids {
        let Entry { task, place, .. } = core.table.read(*id).unwrap();
        let [main, total] = alarms_of(&task, place);
        let row = core.table.row(*id).unwrap();
        if !row.is_alarmed {
            match row.home {
                Home::Memtable => {
                    let far = main.is_none_or(|(clock, at, _)| at >= core.table.far_ms(clock));
                    assert!(far && total.is_none(), "{id} is near and has no alarm");
                }
                Home::Chunk(chunk, _) if main.is_some() && !row.is_overlaid => {
                    let meta = core.table.shelf().chunk(chunk).unwrap();
                    assert!(
                        chunks.contains(&meta.id),
                        "nobody wakes {id} in {}",
                        meta.id
                    );
                }
                Home::Chunk(..) => {}
            }
            continue;
        }
        needed.extend(main);
        // Total time that runs out while a topic is frozen rings when the topic goes on.
        if frozen(&task) {
            overtime.extend(total)
        } else {
            needed.extend(total)
        }
    }
    set.retain(|(.., alarm)| {
        !matches!(
            alarm,
            Alarm::Tombstone(_) | Alarm::Answer(_) | Alarm::Late(_) | Alarm::Chunk(_)
        )
    });
    let (set, needed, overtime) = (sorted(set), sorted(needed), sorted(overtime));
    assert_eq!(
        needed.difference(&set).collect::<Vec<_>>(),
        Vec::<&_>::new(),
        "not set"
    );
    let stray = set
        .iter()
        .filter(|setting| !needed.contains(setting) && !overtime.contains(setting));
    let stray: Vec<_> = stray.collect();
    let rows: Vec<_> = stray
        .iter()
        .filter_map(|(_, _, alarm)| match alarm {
            Alarm::Due(id) | Alarm::Expire(id) => Some(core.table.row(*id)),
            _ => None,
        })
        .collect();
    assert!(stray.is_empty(), "{stray:?} are set for nothing: {rows:?}");
}

/// Executors of ours have what is dispatched or running, and no more than they may; what has not started is armed.
fn assert_in_flight(
    core: &mut ShardCore,
    ids: &[TaskId],
    running_max: usize,
    running: &BTreeMap<TaskId, AttemptToken>,
) {
    let tasks = ids.iter().map(|id| core.table.read(*id).unwrap().task);
    let out: Vec<Arc<Task>> = tasks.filter(|task| task.runs_here()).collect();
    for track in Track::ALL {
        let on_it = |task: &&Arc<Task>| Track::of(task) == track;
        let (slots, out) = (core.slots.of(track), out.iter().filter(on_it));
        assert_eq!(
            *slots.taken(),
            out.clone().map(|task| task.id).collect(),
            "{track:?}"
        );
        let mut hosts = HashMap::new();
        for host in out.filter_map(|task| task.host()) {
            *hosts.entry(host).or_insert(0) += 1;
        }
        assert_eq!(slots.taken_for(), hosts);
    }
    let work = core.slots.of(Track::Work).taken().len();
    assert!(work <= running_max, "{work} attempts at a time");
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
fn assert_keys(core: &mut ShardCore, ids: &[TaskId]) {
    let mut by_key: HashMap<(TopicName, TaskKey), Vec<Arc<Task>>> = HashMap::new();
    for id in ids {
        let task = core.table.read(*id).unwrap().task;
        if let Some(key) = &task.key {
            let names = (task.topic.clone(), key.clone());
            by_key.entry(names).or_default().push(task);
        }
    }
    for ((topic, key), tasks) in &by_key {
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
    for id in ids {
        let task = core.table.read(*id).unwrap().task;
        counts.entry(task.topic.clone()).or_default()[task.state.index()] += 1;
    }
    for line in core.table.topics_mut() {
        let counted = counts.remove(&line.name).unwrap_or_default();
        assert_eq!(line.counts, counted, "{}", line.name);
    }
    assert!(counts.is_empty());
}

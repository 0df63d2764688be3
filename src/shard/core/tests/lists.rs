//! Lists: pages of several shards, put together, are one sorted list without gaps or repeats.

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;

use super::shell::Shell;
use super::*;
use crate::clock::WallMs;
use crate::ids::IdSet;
use crate::shard::query::{Order, Position, Span, TaskFilter, merge};

/// One task of a shard: which topic, when due, and whether (and when) it ended.
#[derive(Clone, Debug)]
struct Row {
    topic: &'static str,
    key: u8,
    due_ms: i64,
    ended_ms: Option<i64>,
}

fn a_row() -> impl Strategy<Value = Row> {
    let ended_ms = option::of(0..6_i64);
    (select(vec!["a", "b"]), any::<u8>(), 0..8_i64, ended_ms).prop_map(
        |(topic, key, due_ms, ended_ms)| Row {
            topic,
            key,
            due_ms,
            ended_ms,
        },
    )
}

fn a_filter() -> impl Strategy<Value = TaskFilter> {
    let instant = || {
        option::weighted(
            0.3,
            (0..9_i64).prop_map(|ms| START.after(DurationMs(ms as u64))),
        )
    };
    let span = move || (instant(), instant()).prop_map(|(after, before)| Span { after, before });
    let name = option::weighted(0.4, select(vec!["a", "b", "c"]));
    let states = option::weighted(0.3, select(vec![State::Pending, State::Cancelled]));
    let prefix = option::weighted(0.2, select(vec!["k1", "k2"]));
    (name, states, prefix, span(), span()).prop_map(|(name, state, prefix, due, ended)| {
        TaskFilter {
            topic: name.map(topic),
            states: state.into_iter().collect(),
            key_prefix: prefix.map(str::to_owned),
            due,
            ended,
            ..TaskFilter::default()
        }
    })
}

/// A shard with these tasks, none of which has a key that another shard or task has.
fn shard(number: u16, rows: &[Row]) -> ShardCore {
    let now = at(0);
    let mut core = ShardCore::new(ShardId(number), CoreOptions::default(), Arc::default(), now);
    for (nth, row) in rows.iter().enumerate() {
        let fixture = task()
            .topic(row.topic)
            .key(&format!("k{}-{number}-{nth}", row.key));
        let task = fixture.due_at(at(row.due_ms).wall).build(now);
        let id = task.id;
        core.add(task, now);
        if let Some(ms) = row.ended_ms {
            let reason = String::new();
            core.change(id, Event::Cancel { reason }, "test", at(ms))
                .unwrap()
                .unwrap();
        }
    }
    core
}

fn place_in(order: Order, task: &Task) -> Option<Position> {
    let at = match order {
        Order::DueFirst | Order::DueLast => Some(task.due.at),
        Order::EndedLast => task.ended_at,
    }?;
    Some(Position { at, id: task.id })
}

/// The whole list, put together without pages.
fn whole(shards: &mut [ShardCore], filter: &TaskFilter, order: Order) -> Vec<Position> {
    let within = |span: Span, at: Option<WallMs>| match at {
        Some(at) => {
            span.after.is_none_or(|after| after <= at)
                && span.before.is_none_or(|before| at < before)
        }
        None => span == Span::default(),
    };
    let begins = |task: &Task, prefix: &str| {
        task.key
            .as_ref()
            .is_some_and(|key| key.as_str().starts_with(prefix))
    };
    let mut list = Vec::new();
    for core in shards {
        for id in core.table.ids() {
            let task = &*core.table.read(id).unwrap().task;
            let shown = filter
                .topic
                .as_ref()
                .is_none_or(|topic| *topic == task.topic)
                && (filter.states.is_empty() || filter.states.contains(&task.state))
                && filter
                    .key_prefix
                    .as_ref()
                    .is_none_or(|prefix| begins(task, prefix))
                && within(filter.due, Some(task.due.at))
                && within(filter.ended, task.ended_at);
            list.extend(place_in(order, task).filter(|_| shown));
        }
    }
    list.sort_unstable();
    if order != Order::DueFirst {
        list.reverse();
    }
    list
}

/// The pages, one after the other.
fn pages(shards: &mut [ShardCore], ask: &PageAsk) -> Vec<Vec<Position>> {
    let mut ask = ask.clone();
    let mut pages = Vec::new();
    loop {
        let parts = shards
            .iter_mut()
            .map(|core| core.page(&ask, at(0)))
            .collect();
        let (items, next) = merge(parts, ask.order, ask.limit);
        pages.push(
            items
                .iter()
                .filter_map(|view| place_in(ask.order, &view.task))
                .collect(),
        );
        match next {
            Some(next) => assert_ne!(
                ask.after.replace(next),
                Some(next),
                "no page ends where it began"
            ),
            None => return pages,
        }
    }
}

proptest! {
    #[test]
    fn pages_lose_nothing_and_repeat_nothing(
        rows in vec(vec(a_row(), 0..15), 1..4),
        filter in a_filter(),
        order in select(vec![Order::DueFirst, Order::DueLast, Order::EndedLast]),
        (limit, scan_max) in (1..8_usize, 1..12_usize),
    ) {
        let mut shards: Vec<ShardCore> = (0..).zip(&rows).map(|(number, rows)| shard(number, rows)).collect();
        let ask = PageAsk { filter, order, after: None, limit, scan_max, besides: None };
        let pages = pages(&mut shards, &ask);
        prop_assert!(pages.iter().all(|page| page.len() <= limit));
        prop_assert_eq!(pages.concat(), whole(&mut shards, &ask.filter, order));
    }
}

#[test]
fn a_page_looks_at_so_many_records_and_no_more() {
    let rows = vec![
        Row {
            topic: "a",
            key: 1,
            due_ms: 5,
            ended_ms: None
        };
        100
    ];
    let mut core = shard(0, &rows);
    let last = core.table.ids().into_iter().max().unwrap();
    let reason = String::new();
    core.change(last, Event::Cancel { reason }, "test", at(9))
        .unwrap()
        .unwrap();
    let ask = PageAsk {
        filter: TaskFilter {
            ended: Span {
                after: Some(at(9).wall),
                before: None,
            },
            ..TaskFilter::default()
        },
        limit: 10,
        scan_max: 30,
        ..PageAsk::default()
    };
    let sizes: Vec<usize> = pages(&mut [core], &ask).iter().map(Vec::len).collect();
    assert_eq!(sizes, [0, 0, 0, 1], "short, and yet with a cursor");
}

#[test]
fn a_full_last_page_has_no_cursor() {
    let rows = vec![
        Row {
            topic: "a",
            key: 1,
            due_ms: 5,
            ended_ms: None
        };
        4
    ];
    let ask = PageAsk {
        limit: 2,
        scan_max: 1000,
        ..PageAsk::default()
    };
    let pages = pages(&mut [shard(0, &rows)], &ask);
    assert_eq!(pages.iter().map(Vec::len).collect::<Vec<_>>(), [2, 2]);
}

#[test]
fn of_what_is_folded_a_page_opens_so_much_and_no_more_even_if_it_wants_none_of_it() {
    for order in [Order::DueFirst, Order::DueLast] {
        let mut shell = Shell::new();
        let ids: Vec<TaskId> = (0..60)
            .map(|nth| shell.create(task().due_in_minutes(60 + nth)))
            .collect();
        shell.pass(DurationMs::secs(60));
        let mut last = *ids.last().unwrap();
        let mut besides: IdSet = ids.iter().copied().collect();
        if order == Order::DueLast {
            last = ids[0];
        }
        besides.remove(&last);
        let ask = PageAsk {
            order,
            limit: 10,
            scan_max: 2,
            besides: Some(Arc::new(besides)),
            ..PageAsk::default()
        };
        let pages = pages(std::slice::from_mut(&mut shell.core), &ask);
        let due = shell.task(last).due.at;
        assert_eq!(pages.concat(), [Position { at: due, id: last }]);
        assert!(pages.len() > 4, "{} pages", pages.len());
        assert!(pages.len() < 60, "{} pages", pages.len());
    }
}

use serde_json::{Value, json};

use super::*;
use crate::clock::{DurationMs, WallMs};
use crate::rule::again::{Again, again};
use crate::rule::book::{RuleBook, RuleFailed};
use crate::rule::model::{Asked, Given, RuleFault};
use crate::task::new_task::{NewTask, When};
use crate::task::spec::{RawJson, RuleRef, TaskSpec, TopicName};
use crate::task::stage::{AtStage, Stages, StagesError, Starts};
use crate::testing::fixtures::{self, at as at_ms};
use crate::wire::tests::{NOW, WIDE, refused};

fn read(body: &Value) -> Rule {
    rule(body.to_string().as_bytes(), &WIDE).unwrap()
}

fn kept<T>(meaning: T, version: u64) -> Arc<Kept<T>> {
    Arc::new(Kept {
        meaning,
        body: "{}".to_owned(),
        version,
        changed_at: NOW,
    })
}

fn name(name: &str) -> ResourceName {
    ResourceName::parse(name).unwrap()
}

fn task(facts: &Value) -> NewTask {
    NewTask {
        facts: Some(RawJson::from(facts.to_string())),
        ..NewTask::new(TopicName::parse("order.unpaid").unwrap())
    }
}

/// A book with one calendar, `cn`, from nine to five on working days of Shanghai.
fn book() -> RuleBook {
    let day = json!([["09:00", "17:00"]]);
    let weekly = json!({"mon": day, "tue": day, "wed": day, "thu": day, "fri": day});
    let body = json!({"tz": "Asia/Shanghai", "weekly": weekly, "holidays": ["2026-12-01"]});
    let calendar = crate::wire::calendar::calendar(body.to_string().as_bytes()).unwrap();
    let mut book = RuleBook::default();
    book.calendars.insert(name("cn"), kept(calendar, 1));
    book
}

fn given(body: &Value, facts: &Value) -> Result<Given, RuleFault> {
    let task = task(facts);
    read(body).give(&Asked::new(&task, NOW), &book())
}

fn after(minutes: u64) -> Result<Given, RuleFault> {
    Ok(Given::Due(When::After(DurationMs::secs(60 * minutes))))
}

fn at(text: &str) -> Result<Given, RuleFault> {
    Ok(Given::Due(When::At(time::parse(text, None).unwrap())))
}

#[test]
fn a_fixed_rule_is_a_length_or_an_instant() {
    assert_eq!(
        given(&json!({"fixed": {"after": "PT30M"}}), &json!({})),
        after(30)
    );
    let by_fact = json!({"fixed": {"due": "timestamp(facts.pay_by)"}});
    let facts = json!({"pay_by": "2027-05-01T10:00:00Z"});
    assert_eq!(given(&by_fact, &facts), at("2027-05-01T10:00:00Z"));
    let told = given(&by_fact, &json!({"other": 1}))
        .unwrap_err()
        .to_string();
    assert!(told.contains("pay_by"), "{told}");
}

#[test]
fn the_first_case_that_holds_decides_and_else_is_for_the_rest() {
    let body = json!({"conditional": {"cases": [
        {"if": "facts.paid", "skip": true},
        {"if": "facts.vip && facts.total > 100", "after": "PT45M"},
        {"if": "has(facts.pay_by)", "due": "timestamp(facts.pay_by) + duration('1h')"},
        {"if": "topic.endsWith('.paid')", "after": "PT1M"},
        {"if": "facts.total == 7", "conditional": {"cases": [{"if": "facts.vip", "after": "PT7M"}]}},
    ], "else": {"after": "PT30M"}}});
    let ask = |facts: Value| given(&body, &facts);
    assert_eq!(ask(json!({"paid": true})), Ok(Given::Skip));
    assert_eq!(
        ask(json!({"paid": false, "vip": true, "total": 101})),
        after(45)
    );
    let pay_by = json!({"paid": false, "vip": false, "pay_by": "2027-05-01T10:00:00Z"});
    assert_eq!(ask(pay_by), at("2027-05-01T11:00:00Z"));
    assert_eq!(
        ask(json!({"paid": false, "vip": false, "total": 1})),
        after(30)
    );
    assert_eq!(
        ask(json!({"paid": false, "vip": false, "total": 7})),
        Err(RuleFault::NoCase)
    );
    assert!(matches!(
        ask(json!({"paid": "yes"})),
        Err(RuleFault::Expr { .. })
    ));
}

#[test]
fn a_default_is_due_when_nothing_else_gives_a_time_and_only_then() {
    let body = json!({"fixed": {"due": "timestamp(facts.pay_by)"}, "default": {"after": "PT30M"}});
    assert_eq!(given(&body, &json!({})), after(30));
    assert_eq!(given(&body, &json!({"pay_by": "soon"})), after(30));
    let facts = json!({"pay_by": "2027-05-01T10:00:00Z"});
    assert_eq!(given(&body, &facts), at("2027-05-01T10:00:00Z"));
}

#[test]
fn closed_time_is_left_out_in_each_of_its_ways() {
    let ask = |more: Value| {
        let mut body = json!({"calendar": "cn", "from": "timestamp(facts.start)"});
        body.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        // A Monday, 16:00 in Shanghai; the Tuesday is a holiday.
        given(
            &json!({"excluding": body}),
            &json!({"start": "2026-11-30T08:00:00Z"}),
        )
    };
    assert_eq!(ask(json!({"working_hours": 8})), at("2026-12-02T08:00:00Z"));
    assert_eq!(
        ask(json!({"working_days": 2, "by": "18:00"})),
        at("2026-12-03T10:00:00Z")
    );
    assert_eq!(ask(json!({"working_days": 1})), at("2026-12-02T09:00:00Z"));
    assert_eq!(
        ask(json!({"after": "PT2H", "shift": "next_open"})),
        at("2026-12-02T01:00:00Z")
    );
    assert_eq!(
        ask(json!({"after": "PT2H", "shift": "extend_by_closed_time"})),
        at("2026-12-02T02:00:00Z")
    );
    assert_eq!(
        ask(json!({"after": "P1D", "shift": "skip_day"})),
        at("2026-12-02T08:00:00Z")
    );
    let from_creation = json!({"excluding": {"calendar": "cn", "working_hours": 1}});
    assert_eq!(
        given(&from_creation, &json!({})),
        at("2026-11-30T02:00:00Z")
    );
    let elsewhere = json!({"excluding": {"calendar": "de", "working_hours": 1}});
    assert_eq!(
        given(&elsewhere, &json!({})),
        Err(RuleFault::NoCalendar(name("de")))
    );
    assert_eq!(read(&elsewhere).calendars(), [name("de")]);
}

/// The names and times of stages that were given.
fn starts(given: Result<Given, RuleFault>) -> Vec<(&'static str, Starts)> {
    let Ok(Given::Staged(stages)) = given else {
        panic!("{given:?}");
    };
    let named = stages.iter().map(|stage| {
        let name: &'static str = stage.name.as_str().to_owned().leak();
        (name, stage.starts)
    });
    named.collect()
}

#[test]
fn a_staged_rule_gives_stages_with_times_that_may_be_worked_out() {
    let body = json!({"staged": {"stages": [
        {"name": "remind", "excluding": {"calendar": "cn", "working_hours": 1}},
        {"name": "again", "after_previous": "PT1M"},
        {"name": "cancel", "due": "timestamp(facts.pay_by)", "action": {"none": {}}},
    ]}});
    let after = |text| Starts::After(time::parse(text, None).unwrap().since(NOW));
    // One working hour from the night of a Monday on.
    let remind = after("2026-11-30T02:00:00Z");
    let given_for = |pay_by: &str| given(&body, &json!({"pay_by": pay_by}));
    assert_eq!(
        starts(given_for("2026-11-30T03:00:00Z")),
        [
            ("remind", remind),
            ("again", Starts::AfterPrevious(DurationMs::secs(60))),
            ("cancel", after("2026-11-30T03:00:00Z")),
        ]
    );
    let out_of_order = StagesError::OutOfOrder { place: 2 };
    assert_eq!(
        given_for("2026-11-30T01:00:00Z"),
        Err(RuleFault::Stages(out_of_order))
    );
    let missing = given(&body, &json!({}));
    assert!(
        matches!(missing, Err(RuleFault::Expr { .. })),
        "{missing:?}"
    );
    let rule = read(&body);
    assert_eq!(rule.calendars(), [name("cn")]);
    let at: Vec<String> = rule.actions().into_iter().map(|(at, _)| at).collect();
    assert_eq!(at, ["/staged/stages/2/action"]);
}

#[test]
fn a_case_picks_stages_and_the_actions_of_all_are_known() {
    let one =
        |name: &str| json!({"stages": [{"name": name, "after": "PT1H", "action": {"none": {}}}]});
    let body = json!({"conditional": {
        "cases": [{"if": "facts.vip", "staged": one("later")}], "else": {"staged": one("now")}},
        "default": {"staged": one("never")}});
    let hour = Starts::After(DurationMs::secs(3600));
    for (facts, expected) in [
        (json!({"vip": true}), "later"),
        (json!({"vip": false}), "now"),
        (json!({}), "never"),
    ] {
        assert_eq!(starts(given(&body, &facts)), [(expected, hour)]);
    }
    let at: Vec<String> = read(&body)
        .actions()
        .into_iter()
        .map(|(at, _)| at)
        .collect();
    assert_eq!(
        at,
        [
            "/conditional/cases/0/staged/stages/0/action",
            "/conditional/else/staged/stages/0/action",
            "/default/staged/stages/0/action"
        ]
    );
}

#[test]
fn a_rule_that_is_disabled_gives_its_default_and_nothing_else() {
    let body = json!({"fixed": {"after": "PT1H"}, "enabled": false});
    assert_eq!(given(&body, &json!({})), Err(RuleFault::Disabled));
    let body = json!({"fixed": {"after": "PT1H"}, "enabled": false, "default": {"after": "PT5M"}});
    assert_eq!(given(&body, &json!({})), after(5));
    let again = enabled(&body.to_string(), true).unwrap();
    assert_eq!(
        given(&serde_json::from_str(&again).unwrap(), &json!({})),
        after(60)
    );
}

#[test]
fn facts_that_the_condition_of_a_stage_could_not_read_are_refused_at_the_create() {
    let body =
        json!({"staged": {"stages": [{"name": "a", "after": "PT1H", "if": "has(facts.x)"}]}});
    let long = given(&body, &json!({"y": "y".repeat(9_000)}));
    assert!(matches!(long, Err(RuleFault::Facts(_))), "{long:?}");
}

#[test]
fn what_is_wrong_with_a_rule_is_told_where_it_stands() {
    for (body, expected) in [
        (json!({}), vec![("", "missing")]),
        (
            json!({"fixed": {"after": "PT1S"}, "excluding": {}}),
            vec![("/excluding", "conflict")],
        ),
        (json!({"fixed": {}}), vec![("/fixed", "missing")]),
        (
            json!({"fixed": {"after": "PT1S", "due": "now"}}),
            vec![("/fixed/due", "conflict")],
        ),
        (
            json!({"fixed": {"due": "duration('1h')"}}),
            vec![("/fixed/due", "invalid_expression")],
        ),
        (
            json!({"conditional": {"cases": []}}),
            vec![("/conditional/cases", "missing")],
        ),
        (
            json!({"conditional": {"cases": [{"if": "facts.", "after": "PT1S"}, {"if": "true"}]}}),
            vec![
                ("/conditional/cases/0/if", "invalid_expression"),
                ("/conditional/cases/1", "missing"),
            ],
        ),
        (
            json!({"excluding": {"calendar": "cn", "working_hours": 8, "by": "18:00", "shift": "next_open"}}),
            vec![
                ("/excluding/by", "conflict"),
                ("/excluding/shift", "conflict"),
            ],
        ),
        (
            json!({"excluding": {"working_days": 0}}),
            vec![
                ("/excluding/calendar", "missing"),
                ("/excluding/working_days", "out_of_range"),
            ],
        ),
        (
            json!({"excluding": {"calendar": "cn", "after": "PT1H"}}),
            vec![("/excluding/shift", "missing")],
        ),
        (
            json!({"staged": {"stages": []}}),
            vec![("/staged/stages", "empty")],
        ),
        (
            json!({"staged": {"stages": [{"name": "a", "due": "now", "after": "PT1S"}, {"name": "b", "excluding": {}}]}}),
            vec![
                ("/staged/stages/0/due", "conflict"),
                ("/staged/stages/1/excluding", "missing"),
                ("/staged/stages/1/excluding/calendar", "missing"),
            ],
        ),
        (
            json!({"fixed": {"after": "PT1S"}, "default": {"skip": false}}),
            vec![("/default/skip", "unknown_value")],
        ),
    ] {
        let mut wrong = refused(rule(body.to_string().as_bytes(), &WIDE));
        wrong.sort();
        let expected: Vec<_> = expected
            .into_iter()
            .map(|(pointer, code)| (pointer.to_owned(), code))
            .collect();
        assert_eq!(wrong, expected, "{body}");
    }
}

// ---------------------------------------------------------------- stored tasks

/// A task that the first of these rules has made, and what the second says of it ten minutes later, or with its first
/// stage passed over.
fn asked_again(first: &Value, then: &Value, is_at_second: bool) -> Option<Again> {
    let now = at_ms(0);
    let mut task = fixtures::task().due_in_minutes(60).build(now);
    let spec = TaskSpec {
        rule: Some(RuleRef {
            name: name("r"),
            version: 1,
            at: now.wall,
        }),
        stages: match given(first, &json!({})) {
            Ok(Given::Staged(stages)) => Some(stages),
            _ => None,
        },
        ..TaskSpec::default()
    };
    task.at_stage = AtStage::first(&spec, now);
    if is_at_second {
        task.at_stage = task.at_stage.map(|at| AtStage { place: 1, ..at });
    }
    task.spec = Arc::new(spec);
    let mut book = book();
    book.rules.insert(name("r"), kept(read(then), 2));
    let later = at_ms(600_000);
    again(&task, &task.spec, &book, later, crate::limits::MAX_DELAY).unwrap()
}

fn ladder(stages: &[(&str, u64)]) -> Value {
    let stages = stages.iter();
    let stages =
        stages.map(|(name, minutes)| json!({"name": name, "after": format!("PT{minutes}M")}));
    json!({"staged": {"stages": stages.collect::<Vec<_>>()}})
}

/// When it is due, in minutes since the creation; its stages, and the place of the present one.
fn stands(again: Option<Again>) -> (Option<i64>, Vec<(String, u64)>, Option<u8>) {
    let Some(Again::Stands(stand)) = again else {
        panic!("{again:?}");
    };
    assert_eq!(stand.rule.version, 2);
    let minutes = |ms: i64| ms / 60_000;
    let due = stand.due.map(|due| minutes(due.at.0 - at_ms(0).wall.0));
    let stages = stand.stages.iter().flat_map(Stages::iter);
    let stages = stages.map(|stage| match stage.starts {
        Starts::After(length) | Starts::AfterPrevious(length) => {
            (stage.name.as_str().to_owned(), length.0 / 60_000)
        }
    });
    (due, stages.collect(), stand.at_stage.map(|at| at.place))
}

#[test]
fn a_task_that_has_not_begun_becomes_what_a_create_would_have_made_of_it() {
    let two = [("a", 60), ("b", 120)];
    let owned = |stages: &[(&str, u64)]| -> Vec<(String, u64)> {
        stages
            .iter()
            .map(|(name, at)| ((*name).to_owned(), *at))
            .collect()
    };
    let fixed = |minutes: u64| json!({"fixed": {"after": format!("PT{minutes}M")}});
    let ask = |first: &Value, then: &Value| stands(asked_again(first, then, false));
    let staged = |stages: &[(&str, u64)], due| (Some(due), owned(stages), Some(0));
    let other = [("c", 30), ("b", 90)];
    assert_eq!(ask(&ladder(&two), &ladder(&other)), staged(&other, 30));
    // An hour either way, and due then as before.
    assert_eq!(ask(&fixed(60), &ladder(&two)), (None, owned(&two), Some(0)));
    assert_eq!(ask(&ladder(&two), &fixed(45)), (Some(45), Vec::new(), None));
    // What is past means now.
    assert_eq!(
        ask(&ladder(&two), &ladder(&[("a", 5)])),
        staged(&[("a", 5)], 10)
    );
    let skip = json!({"conditional": {"cases": [{"if": "true", "skip": true}]}});
    let skipped = asked_again(&ladder(&two), &skip, false);
    assert!(matches!(skipped, Some(Again::Skip { .. })), "{skipped:?}");
}

#[test]
fn beyond_its_first_stage_a_task_keeps_what_has_come_and_takes_what_is_named() {
    let three = ladder(&[("a", 60), ("b", 120), ("c", 180)]);
    let ask = |then: &Value| stands(asked_again(&three, then, true));
    let kept = |c: u64| {
        let stages = [("a", 60), ("b", 120), ("c", c)];
        let stages = stages.map(|(name, at)| (name.to_owned(), at));
        (None, stages.to_vec(), Some(1))
    };
    assert_eq!(
        ask(&ladder(&[("a", 1), ("b", 2), ("c", 150), ("d", 200)])),
        kept(150)
    );
    assert_eq!(ask(&ladder(&[("x", 1)])), kept(180));
    assert_eq!(ask(&json!({"fixed": {"after": "PT1M"}})), kept(180));
}

// ---------------------------------------------------------------- rollouts

fn rolled_out(reach: &Value) -> RuleBook {
    let mut book = book();
    let latest = read(&json!({"fixed": {"after": "PT2H"}}));
    let base = json!({"fixed": {"after": "PT30M"}}).to_string();
    let base: Box<RawValue> = serde_json::from_str(&base).unwrap();
    let reach: Box<RawValue> = serde_json::from_str(&reach.to_string()).unwrap();
    let stored = stored_rollout(2, 1, &base, &reach).unwrap();
    let meaning = rollout(stored.as_bytes(), &WIDE).unwrap();
    book.rules.insert(name("r"), kept(latest, 2));
    book.rollouts.insert(name("r"), kept(meaning, 1));
    book
}

fn keyed(key: &str) -> NewTask {
    task(&json!({"vip": key.ends_with('7')})).key(key).unwrap()
}

/// The version that a task gets.
fn version(book: &RuleBook, task: &NewTask, now: WallMs) -> u64 {
    let (given, version) = book.due(&name("r"), &Asked::new(task, now)).unwrap();
    assert_eq!(Ok(given), if version == 2 { after(120) } else { after(30) });
    version
}

#[test]
fn a_percentage_takes_about_so_many_keys_and_widening_loses_none() {
    let takes = |percent: f64| -> Vec<bool> {
        let book = rolled_out(&json!({"percent": percent}));
        let keys = (0..2_000).map(|n| keyed(&format!("k{n}")));
        keys.map(|task| version(&book, &task, NOW) == 2).collect()
    };
    let count = |takes: &[bool]| takes.iter().filter(|it| **it).count();
    let (ten, thirty) = (takes(10.0), takes(30.0));
    assert!((150..250).contains(&count(&ten)), "{}", count(&ten));
    assert!((520..680).contains(&count(&thirty)), "{}", count(&thirty));
    assert!(ten.iter().zip(&thirty).all(|(ten, thirty)| !ten || *thirty));
    assert_eq!(count(&takes(0.0)), 0);
    assert_eq!(count(&takes(100.0)), 2_000);
}

#[test]
fn keys_and_conditions_add_up_within_topics_and_times() {
    let book = rolled_out(&json!({"keys": ["a"], "if": "facts.vip"}));
    for (key, expected) in [("a", 2), ("b", 1), ("b7", 2)] {
        assert_eq!(version(&book, &keyed(key), NOW), expected, "{key}");
    }
    let of = |more: Value| {
        let mut reach = json!({"percent": 100});
        reach
            .as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        rolled_out(&reach)
    };
    assert_eq!(
        version(&of(json!({"topic_prefix": "order."})), &keyed("a"), NOW),
        2
    );
    assert_eq!(
        version(&of(json!({"topic_prefix": "refund."})), &keyed("a"), NOW),
        1
    );
    let weekend = of(json!({"from": "2026-12-05T00:00:00Z", "until": "2026-12-07T00:00:00Z"}));
    let at = |text| time::parse(text, None).unwrap();
    for (now, expected) in [
        ("2026-12-04T23:59:59Z", 1),
        ("2026-12-05T00:00:00Z", 2),
        ("2026-12-06T23:59:59Z", 2),
        ("2026-12-07T00:00:00Z", 1),
    ] {
        assert_eq!(version(&weekend, &keyed("a"), at(now)), expected, "{now}");
    }
}

#[test]
fn a_later_version_ends_the_rollout_and_a_rule_that_is_gone_is_told() {
    let mut book = rolled_out(&json!({"percent": 0}));
    assert_eq!(version(&book, &keyed("a"), NOW), 1);
    let later = read(&json!({"fixed": {"after": "PT1M"}}));
    book.rules.insert(name("r"), kept(later, 3));
    let task = keyed("a");
    let due = book.due(&name("r"), &Asked::new(&task, NOW));
    assert_eq!(due, Ok((after(1).unwrap(), 3)));
    book.rules.clear();
    let due = book.due(&name("r"), &Asked::new(&task, NOW));
    assert!(matches!(
        due,
        Err(RuleFailed {
            fault: RuleFault::NoRule,
            ..
        })
    ));
}

#[test]
fn a_rollout_says_who_gets_it() {
    for (body, expected) in [
        (json!({}), ("/percent", "missing")),
        (json!({"topic_prefix": "a"}), ("/percent", "missing")),
        (json!({"percent": 101}), ("/percent", "out_of_range")),
        (json!({"if": "facts."}), ("/if", "invalid_expression")),
        (
            json!({"percent": 1, "until": "2026-12-05"}),
            ("/until", "invalid_time"),
        ),
    ] {
        let wrong = refused(reach(body.to_string().as_bytes()));
        assert_eq!(wrong, [(expected.0.to_owned(), expected.1)], "{body}");
    }
}

// ---------------------------------------------------------------- the page

/// What the page puts or posts, in order: the line above, and the JSON.
fn examples() -> Vec<(&'static str, &'static str)> {
    let page = include_str!("../../docs/rules.md");
    let mut parts = page.split("```json\n");
    let mut before = parts.next().unwrap_or_default();
    let mut found = Vec::new();
    for part in parts {
        let (json, after) = part.split_once("```").unwrap();
        let line = before.trim_end().lines().last().unwrap();
        found.push((line, json));
        before = after;
    }
    found
}

#[test]
fn the_examples_of_the_page_are_what_can_be_put() {
    let mut counts = [0; 4];
    for (line, json) in examples() {
        let (request, bytes) = (
            line.trim_start_matches("PUT ").trim_start_matches("POST "),
            json.as_bytes(),
        );
        let nth = if request.ends_with("/rollout") {
            reach(bytes).unwrap();
            0
        } else if request.starts_with("/v1/rules/") {
            rule(bytes, &WIDE).unwrap();
            1
        } else if request.starts_with("/v1/calendars/") {
            crate::wire::calendar::calendar(bytes).unwrap();
            2
        } else {
            assert!(request.starts_with("/v1/topics/"), "{line}");
            crate::wire::topic::settings(bytes, &WIDE).unwrap();
            3
        };
        counts[nth] += 1;
    }
    assert_eq!(counts, [1, 8, 1, 1]);
}

#[test]
fn the_examples_of_the_page_give_what_it_says() {
    let shop = examples()
        .into_iter()
        .find(|(line, _)| line.contains("calendars"));
    let calendar = crate::wire::calendar::calendar(shop.unwrap().1.as_bytes()).unwrap();
    let mut book = RuleBook::default();
    book.calendars.insert(name("shop"), kept(calendar, 1));
    let give = |rule_name: &str, facts: Value| {
        let line = format!("PUT /v1/rules/{rule_name}");
        let example = examples().into_iter().rfind(|(there, _)| *there == line);
        let rule = rule(example.unwrap().1.as_bytes(), &WIDE).unwrap();
        let task = task(&facts);
        rule.give(&Asked::new(&task, NOW), &book)
    };
    // A Friday before Christmas: Mon, Tue, Wed, Thu, (25th is a holiday), Mon, Tue, Wed.
    assert_eq!(
        give("not-shipped", json!({"paid_at": "2026-12-18T10:00:00Z"})),
        at("2026-12-30T17:00:00Z")
    );
    assert_eq!(
        give("pre-order", json!({"pay_by": "2027-05-01T10:00:00Z"})),
        at("2027-05-01T10:00:00Z")
    );
    assert_eq!(give("pre-order", json!({})), after(48 * 60));
    assert_eq!(give("by-size", json!({"paid": true})), Ok(Given::Skip));
    assert_eq!(give("by-size", json!({"total": 7})), after(30));
    assert_eq!(give("order-unpaid", json!({"vip": true})), after(45));
    assert_eq!(give("order-unpaid", json!({})), after(30));
    // One hour without a courier: dispatch; two hours: cancel.
    let hours = |hours: u64| Starts::After(DurationMs::secs(hours * 3600));
    let no_courier = starts(give("no-courier", json!({})));
    assert_eq!(no_courier, [("dispatch", hours(1)), ("cancel", hours(2))]);
    // Monday 01:53 in Berlin: four working hours are over at 13:00, the second working day after it is Wednesday.
    let late = starts(give("late", json!({"express": true})));
    let until = |text| Starts::After(time::parse(text, None).unwrap().since(NOW));
    assert_eq!(
        late,
        [
            ("remind", until("2026-11-30T12:00:00Z")),
            ("refund", until("2026-12-02T17:00:00Z"))
        ]
    );
    assert_eq!(give("late", json!({})), at("2026-12-09T17:00:00Z"));
    // Monday, 2026-11-30, 01:53 in Berlin, and two hours.
    assert_eq!(give("remind", json!({})), at("2026-11-30T08:00:00Z"));
}

use serde_json::{Value, json};

use super::*;
use crate::clock::{DurationMs, WallMs};
use crate::rule::book::{RuleBook, RuleFailed};
use crate::rule::model::{Asked, Given, RuleFault};
use crate::task::new_task::{NewTask, When};
use crate::task::spec::{RawJson, TopicName};
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
    assert_eq!(counts, [1, 6, 1, 1]);
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
    // Monday, 2026-11-30, 01:53 in Berlin, and two hours.
    assert_eq!(give("remind", json!({})), at("2026-11-30T08:00:00Z"));
}

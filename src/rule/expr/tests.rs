use std::time::{Duration, Instant};

use serde_json::json;

use super::*;

fn answer(body: Json) -> impl Fn(&str) -> Result<Json, Fault> {
    move |name| {
        Ok(match name {
            "status" => json!(200),
            "headers" => json!({"content-type": "application/json", "x-count": "3"}),
            _ => body.clone(),
        })
    }
}

fn holds(source: &str, body: Json) -> Result<bool, Fault> {
    let expr = Expr::parse(source, ANSWER);
    expr.unwrap_or_else(|flaw| panic!("{source}: {flaw}"))
        .holds(answer(body))
}

fn flaw(source: &str) -> Flaw {
    match Expr::parse(source, ANSWER) {
        Ok(_) => panic!("{source:?} is taken"),
        Err(flaw) => flaw,
    }
}

#[test]
fn a_condition_reads_status_headers_and_body() {
    let body = json!({"ok": true, "n": 7, "big": u64::MAX, "part": 1.5, "none": null,
        "items": [{"name": "a/b", "qty": 2}], "x-y": "ü"});
    for source in [
        "status == 200",
        "body.ok",
        "body.ok == true && status < 300",
        "!has(body.missing) && has(body.none)",
        "'ok' in body && !('missing' in body)",
        "body.n == 7 && body.n == 7.0 && body.n - 8 == -1",
        "body.big == 18446744073709551615u",
        "body.part > 1 && body.none == null",
        "body.items[0].name.startsWith('a/') && size(body.items) == 1",
        "body['x-y'].size() == 1 && body['x-y'] == '\\u00fc'",
        "headers['content-type'].contains('json') && int(headers['x-count']) == 3",
        "body.n in [1, 7] ? body.ok : false",
        "{'a': body.n}['a'] == 7 && string(body.n) == '7'",
        "body.missing == 1 || status == 200",
        "body ==\n{'ok': true} || true",
    ] {
        assert_eq!(holds(source, body.clone()), Ok(true), "{source}");
    }
    assert_eq!(holds("body.n > 7", body.clone()), Ok(false));
    assert_eq!(holds("body == 'OK'", json!("OK")), Ok(true));
}

#[test]
fn an_error_is_never_a_silent_true() {
    for source in [
        "body.ok",
        "body.missing == true",
        "body.missing != true",
        "!body.missing",
        "body.n < 'a'",
        "body.n / 0 == 1",
        "9223372036854775807 + body.n > 0",
        "body.list[5] == 1",
        "body.missing == 1 || status == 404",
        "int(body.text) == 1",
    ] {
        let value = holds(source, json!({"n": 1, "list": [1], "text": "x"}));
        assert!(
            matches!(value, Err(Fault::Failed(_))),
            "{source}: {value:?}"
        );
    }
    let value = holds("body.n", json!({"n": 1}));
    assert!(matches!(value, Err(Fault::NotBool(_))), "{value:?}");
    assert!(holds("status == 200 && body.ok", json!(null)).is_err());
}

#[test]
fn what_is_wrong_is_told_with_its_place_and_what_would_be_right() {
    let mut wrong = Vec::new();
    for (source, at, says) in [
        ("", Some((1, 1)), "mismatched input '<EOF>'"),
        ("body.ok ==", Some((1, 11)), "mismatched input '<EOF>'"),
        ("body ok", Some((1, 6)), "extraneous input 'ok'"),
        (
            "status == 200 && boby.ok",
            Some((1, 18)),
            "there are status, headers, body",
        ),
        ("status == 200 &&\n boby.ok", Some((2, 2)), "no name `boby`"),
        ("body.ok = true", Some((1, 9)), "="),
        ("body.list.exists(x, x > 1)", Some((1, 17)), "no loops"),
        (
            "body.name.matches('a+')",
            Some((1, 18)),
            "no method `matches`",
        ),
        (
            "size(body, 1) == 1",
            Some((1, 5)),
            "no function `size` of 2",
        ),
        ("now() > 1", Some((1, 4)), "no function `now`"),
        ("has(body)", Some((1, 5)), "has(body.paid)"),
        ("a{b: 1}", Some((1, 2)), "can't be made here"),
        ("body.?ok", Some((1, 5)), "unsupported syntax"),
        ("1 + 1", None, "true or false is needed"),
        ("1 / 0 == 1", None, "ivision"),
        (
            "99999999999999999999 > 1",
            Some((1, 1)),
            "invalid int literal",
        ),
        ("'\\ud800' == 'a'", Some((1, 1)), "invalid"),
    ] {
        let flaw = flaw(source);
        if !(flaw.to_string().contains(says) && flaw.at == at) {
            wrong.push(format!("{source:?}: {flaw}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert_eq!(
        flaw("boby").to_string(),
        "at character 1: there is no name `boby`; there are status, headers, body"
    );
}

#[test]
fn hostile_expressions_are_refused_in_no_time_and_without_a_deep_stack() {
    let twice =
        |open: &str, inner: &str, close: &str, n: usize| open.repeat(n) + inner + &close.repeat(n);
    let sources = [
        twice("(", "body", ")", 500),
        twice("[", "", "]", 500),
        twice("{1:", "1", "}", 250),
        twice("body[", "1", "]", 170),
        twice("size(", "body", ")", 160),
        twice("a{a:", "1", "}", 200),
        "(".repeat(1024),
        "status>1?true:".repeat(70) + "true",
        "body".to_owned() + &".a".repeat(500),
        "body".to_owned() + &"[0]".repeat(330),
        "body".to_owned() + &".size()".repeat(140),
        "body".to_owned() + &"+body".repeat(200),
        "1".to_owned() + &"+1".repeat(500) + "==501",
        "?:?:[}{)(&&||".repeat(70),
        "ü".repeat(500),
        "'".to_owned() + &"x".repeat(1020),
        "x".repeat(1024),
        "body == 1 && ".repeat(1000) + "true",
    ];
    // Half of what a thread has, and far more than is used: a stack that overflows can't be caught.
    let stack = std::thread::Builder::new().stack_size(1024 * 1024);
    let thread = stack.spawn(move || {
        for source in sources {
            let began = Instant::now();
            let flaw = match Expr::parse(&source, ANSWER) {
                Ok(_) => panic!("{source:?} is taken"),
                Err(flaw) => flaw,
            };
            assert!(began.elapsed() < Duration::from_secs(1), "{source:?}");
            assert!(flaw.to_string().len() < 700, "{flaw}");
        }
    });
    thread.unwrap().join().unwrap();
}

#[test]
fn the_worst_that_is_taken_ends_within_the_budget() {
    let list = json!(vec![1; 4000]);
    let text = json!("x".repeat(8000));
    for (unit, last) in [
        ("body + ", "body == body"),
        ("body == body && ", "true"),
        ("body in [body, body] || ", "true"),
        ("body.contains(body) && ", "true"),
    ] {
        // As many as are taken.
        let sources = (1..64).map(|n| unit.repeat(n) + last);
        let taken = sources.map_while(|source| Expr::parse(&source, ANSWER).ok());
        let most = taken.last().unwrap();
        for body in [&list, &text] {
            let began = Instant::now();
            let _ = most.holds(|_| Ok(body.clone()));
            // 25 ms in a release build; this is to tell seconds from milliseconds.
            assert!(began.elapsed() < Duration::from_secs(2), "{unit}");
        }
    }
}

#[test]
fn a_usual_condition_is_far_from_the_budget() {
    let long = (0..40).map(|n| format!("body.f{n} == 'value{n}'"));
    let long = long.collect::<Vec<_>>().join(" && ");
    assert!(long.len() > 800);
    assert_eq!(holds(&long, json!({"f0": "other"})), Ok(false));
    assert!(Expr::parse("body.a + body.b + body.c + body.d + body.e > 100", ANSWER).is_ok());
}

#[test]
fn what_is_read_must_be_small_and_what_is_not_read_is_not_asked_for() {
    let large = json!("x".repeat(EXPR_INPUT_BYTES_MAX));
    assert_eq!(
        holds("body == ''", large.clone()),
        Err(Fault::TooLarge {
            name: "body".to_owned()
        })
    );
    let expr = Expr::parse("status == 200", ANSWER).unwrap();
    let asked = |name: &str| match name {
        "status" => Ok(json!(200)),
        other => panic!("{other} is asked for"),
    };
    assert_eq!(expr.holds(asked), Ok(true));
    let many = json!(vec![json!({}); EXPR_INPUT_BYTES_MAX]);
    assert!(matches!(
        holds("body == 1", many),
        Err(Fault::TooLarge { .. })
    ));
}

#[test]
fn a_text_is_parsed_once() {
    let first = Expr::shared("status == 299", ANSWER).unwrap();
    let second = Expr::shared("status == 299", ANSWER).unwrap();
    assert!(Arc::ptr_eq(&first, &second));
    // Other names, other expression.
    assert!(Expr::shared("status == 299", &["facts"]).is_err());
    for n in 0..2 * SHARED_MAX {
        Expr::shared(&format!("status == {n}"), ANSWER).unwrap();
    }
    assert!(SHARED.lock().len() <= SHARED_MAX);
}

// ---------------------------------------------------------------- times

const CREATED: i64 = 1_796_000_000_000;

fn time_of(source: &str, facts: Json) -> Result<i64, String> {
    let expr = TimeExpr::parse(source, TASK).map_err(|flaw| flaw.to_string())?;
    let input = |name: &str| {
        Ok(match name {
            "facts" => facts.clone(),
            "created_at" => json!(CREATED),
            "now" => json!(CREATED + 7),
            other => panic!("{other} is not given"),
        })
    };
    let at = expr.at(input).map_err(|fault| fault.to_string());
    at.map(|at| at.0)
}

#[test]
fn times_and_lengths_are_reckoned_in_milliseconds() {
    for (source, expected) in [
        ("created_at", CREATED),
        ("now", CREATED + 7),
        ("created_at + duration('PT30M')", CREATED + 1_800_000),
        ("duration(\"30m\") + created_at", CREATED + 1_800_000),
        ("created_at + duration('1h30m') - duration('90m')", CREATED),
        ("created_at - duration('P1D')", CREATED - 86_400_000),
        ("created_at + duration('250ms')", CREATED + 250),
        ("created_at + duration('-1s')", CREATED - 1_000),
        ("created_at + duration('1us')", CREATED + 1),
        ("created_at + duration('10s') * facts.n", CREATED + 30_000),
        (
            "created_at + facts.n * duration('10s') / 2",
            CREATED + 15_000,
        ),
        ("created_at + -duration('1s')", CREATED - 1_000),
        ("created_at + (now - created_at)", CREATED + 7),
        (
            "facts.vip ? created_at + duration('1h') : created_at",
            CREATED + 3_600_000,
        ),
        ("now > created_at ? now : created_at", CREATED + 7),
        ("timestamp(facts.pay_by)", 1_809_165_600_000),
        ("facts.pay_by", 1_809_165_600_000),
        (
            "has(facts.other) ? facts.other : facts.pay_by",
            1_809_165_600_000,
        ),
        ("timestamp('2027-05-01T10:00:00+01:00')", 1_809_162_000_000),
        ("timestamp('2027-05-01T10:00:00.0001Z')", 1_809_165_600_001),
        ("timestamp('1969-12-31T23:59:59.9999Z')", 0),
        (
            "created_at + (timestamp(facts.pay_by) - created_at)",
            1_809_165_600_000,
        ),
    ] {
        let facts = json!({"n": 3, "vip": true, "pay_by": "2027-05-01T10:00:00Z"});
        assert_eq!(time_of(source, facts), Ok(expected), "{source}");
    }
}

#[test]
fn conditions_may_compare_times_with_times_and_lengths_with_lengths() {
    for (source, expected) in [
        ("now >= created_at", true),
        ("now - created_at > duration('1s')", false),
        ("timestamp(facts.pay_by) < now || facts.vip", true),
        ("duration('60s') == duration('1m')", true),
        ("duration('1h') / duration('1m') == 60", true),
    ] {
        let expr = Expr::parse(source, TASK).unwrap();
        let input = |name: &str| {
            Ok(match name {
                "facts" => json!({"vip": true, "pay_by": "2027-05-01T10:00:00Z"}),
                "created_at" => json!(CREATED),
                _ => json!(CREATED + 7),
            })
        };
        assert_eq!(expr.holds(input), Ok(expected), "{source}");
    }
}

#[test]
fn a_number_never_becomes_a_time_and_a_time_never_a_number() {
    for (source, word) in [
        ("facts.wait", "gives int, where an instant is needed"),
        ("1796000000000", "gives int, where an instant is needed"),
        ("true", "gives bool, where an instant is needed"),
        ("duration('1h')", "created_at + "),
        ("created_at + 3600", "duration("),
        ("created_at + facts.wait", "duration("),
        ("created_at + created_at", "makes no sense"),
        ("duration('1h') - created_at", "makes no sense"),
        ("created_at * 2", "makes no sense"),
        ("-created_at", "makes no sense"),
        ("true ? created_at : 0", "makes no sense"),
        ("true ? created_at : duration('1h')", "makes no sense"),
        ("timestamp(created_at)", "makes no sense"),
        ("timestamp(string(now))", "makes no sense"),
        ("[created_at][0]", "no part"),
        ("{'a': now}.a", "no part"),
        ("created_at.year", "no part"),
        ("timestamp('tomorrow')", "no time with an offset"),
        ("timestamp('2027-05-01T10:00:00')", "no time with an offset"),
        ("created_at + duration('1 month')", "no length of time"),
        ("created_at + duration('P1M')", "no length of time"),
        (
            "timestamp('2027-05-01T10:00:00Z') + duration('PT99999999999H')",
            "no instant",
        ),
    ] {
        let told = time_of(source, json!({"wait": 3_600})).unwrap_err();
        assert!(told.contains(word), "{source}: {told}");
    }
    for source in [
        "created_at",
        "now == 5",
        "created_at && true",
        "facts.at > created_at",
        "now in [now]",
        "size(now) > 1",
        "string(now) == ''",
        "duration('1h') > 3600",
    ] {
        assert!(Expr::parse(source, TASK).is_err(), "{source}");
    }
}

#[test]
fn a_fact_that_is_missing_or_no_time_is_a_fault_that_names_it() {
    let told = time_of("timestamp(facts.pay_by)", json!({})).unwrap_err();
    assert!(told.contains("pay_by"), "{told}");
    for wrong in [json!(5), json!("soon"), json!(null), json!(true)] {
        for source in ["timestamp(facts.pay_by)", "facts.pay_by"] {
            let facts = json!({"pay_by": wrong.clone()});
            assert!(time_of(source, facts).is_err(), "{source} of {wrong}");
        }
    }
    let told = time_of(
        "created_at + duration('1h') * facts.n",
        json!({"n": 9_000_000_000_000_i64}),
    );
    assert!(told.is_err(), "{told:?}");
}

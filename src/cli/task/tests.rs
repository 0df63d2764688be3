use serde_json::{Value, json};

use super::super::tests::{duetime, refused};
use crate::client::scripted::Service;

const ID: &str = "0192f0c1-2345-7abc-8def-0123456789ab";
const TASK: &str = r#"{"id":"0192f0c1-2345-7abc-8def-0123456789ab","topic":"cli","key":"k1","state":"pending","due_at":"2026-12-01T10:30:00.000Z","remaining_ms":1798000,"attempts":0,"payload":{"n":1.10}}"#;

fn at(service: &Service, args: &[&str]) -> (u8, String, String) {
    duetime(&[args, &["--url", &service.url]].concat())
}

#[test]
fn create_sends_what_the_flags_say_and_nothing_else() {
    let service = Service::answering(&[("201 Created", TASK), ("201 Created", TASK)]);
    let (code, out, err) = at(
        &service,
        &[
            "task",
            "create",
            "--topic",
            "cli",
            "--key",
            "k1",
            "--due-at",
            "2026-12-01T10:30:00",
            "--tz",
            "Europe/Berlin",
            "--action",
            r#"{"none":{}}"#,
            "--payload",
            "[1.10]",
            "--retry",
            r#"{"fixed":"PT1S"}"#,
            "--timeouts",
            r#"{"attempt":"PT1S"}"#,
            "--tag",
            "region=eu",
            "--tag",
            "formula=a=b",
            "--facts",
            r#"{"vip":true}"#,
            "--on-existing",
            "keep_later",
            "--delivery",
            "at_most_once",
            "--class",
            "core",
            "--idempotency-key",
            "once",
        ],
    );
    assert_eq!((code, err.as_str()), (0, ""));
    assert!(
        out.contains("due       in 29 min 58 s (2026-12-01T10:30:00.000Z)\n"),
        "{out}"
    );
    let asked = service.asked();
    assert_eq!(asked.line, "POST /v1/tasks");
    assert!(
        asked.headers.contains("idempotency-key: once"),
        "{}",
        asked.headers
    );
    assert!(asked.headers.contains("content-type: application/json"));
    assert_eq!(
        asked.body,
        json!({"topic": "cli", "key": "k1", "due_at": "2026-12-01T10:30:00", "tz": "Europe/Berlin", "action": {"none": {}},
            "payload": [1.10], "retry": {"fixed": "PT1S"}, "timeouts": {"attempt": "PT1S"}, "facts": {"vip": true},
            "tags": {"region": "eu", "formula": "a=b"}, "on_existing": "keep_later", "delivery": "at_most_once", "class": "core"})
    );
    at(&service, &["task", "create", "--topic", "cli"]);
    assert_eq!(service.asked().body, json!({"topic": "cli"}));
}

#[test]
fn json_output_is_the_answer_to_the_letter() {
    let service = Service::answering(&[("201 Created", TASK)]);
    let (code, out, _) = at(&service, &["task", "create", "--topic", "cli", "--json"]);
    assert_eq!((code, out), (0, format!("{TASK}\n")));
}

#[test]
fn a_task_that_was_there_already_is_said_to_be() {
    let service = Service::answering(&[
        ("200 OK", TASK),
        ("201 Created\r\nidempotency-replayed: true", TASK),
        ("202 Accepted", TASK),
    ]);
    assert!(
        at(&service, &["task", "create", "--topic", "cli"])
            .1
            .contains("was there already")
    );
    assert!(
        at(&service, &["task", "create", "--topic", "cli"])
            .1
            .contains("idempotency key")
    );
    assert!(
        at(&service, &["task", "cancel", ID])
            .1
            .contains("being stopped")
    );
}

#[test]
fn bad_json_is_found_before_anything_is_sent_and_the_flag_is_named() {
    for flag in ["--action", "--payload", "--retry", "--timeouts", "--facts"] {
        let (code, told) = refused(&["task", "create", "--topic", "t", flag, "{\"a\": nope}"]);
        assert_eq!(code, 2);
        assert!(
            told.contains(flag) && told.contains("line 1 column 8"),
            "{told}"
        );
    }
}

#[test]
fn arguments_that_contradict_are_usage_errors() {
    for args in [
        &["get"][..],
        &["get", "nonsense"],
        &["get", ID, "--topic", "t", "--key", "k"],
        &["get", "--topic", "t"],
        &["get", "--key", "k"],
        &["get", "--topic", "t", "--key", ""],
        &["create", "--delay", "PT1S"],
        &[
            "create",
            "--topic",
            "t",
            "--delay",
            "PT1S",
            "--due-at",
            "2026-12-01T10:30:00Z",
        ],
        &[
            "create",
            "--topic",
            "t",
            "--delay",
            "PT1S",
            "--tz",
            "Europe/Berlin",
        ],
        &["create", "--topic", "t", "--tag", "eu"],
        &["create", "--topic", "t", "--tag", "=eu"],
        &["create", "--topic", "t", "--on-existing", "perhaps"],
        &["create", "--topic", "t", "--idempotency-key", "a b"],
        &["reschedule", ID],
        &["reschedule", ID, "--delay", "PT1S", "--extend-by", "PT1S"],
        &["reschedule", ID, "--delay", "PT1S", "--tz", "UTC"],
        &["reschedule", ID, "--tz", "UTC"],
        &["list", "--limit", "0"],
        &["list", "--limit", "1001"],
        &["list", "--state", "waiting"],
        &["list", "--order", "key"],
    ] {
        assert_eq!(refused(&[&["task"], args].concat()).0, 2, "{args:?}");
    }
}

#[test]
fn each_verb_goes_to_its_path_by_id_and_by_key() {
    let by_key = ["--topic", "a/b", "--key", "ü 1%?#"];
    for (args, verb, body) in [
        (
            &["cancel", "--reason", "paid"][..],
            "cancel",
            json!({"reason": "paid"}),
        ),
        (
            &["pause", "--clock", "freeze"],
            "pause",
            json!({"clock": "freeze"}),
        ),
        (&["resume"], "resume", json!({})),
        (
            &["reschedule", "--delay", "PT1S"],
            "reschedule",
            json!({"delay": "PT1S"}),
        ),
        (
            &["reschedule", "--extend-by", "PT1S"],
            "reschedule",
            json!({"extend_by": "PT1S"}),
        ),
        (
            &["reschedule", "--due-at", "x", "--tz", "UTC"],
            "reschedule",
            json!({"due_at": "x", "tz": "UTC"}),
        ),
        (&["run-now"], "run-now", json!({})),
        (&["replay"], "replay", json!({})),
        (
            &["complete", "--result", "[1]", "--token", "7"],
            "complete",
            json!({"result": [1], "token": 7}),
        ),
    ] {
        let service = Service::answering(&[("200 OK", TASK), ("200 OK", TASK)]);
        assert_eq!(at(&service, &[&["task"], args, &[ID]].concat()).0, 0);
        assert_eq!(at(&service, &[&["task"], args, &by_key].concat()).0, 0);
        let (first, second) = (service.asked(), service.asked());
        assert_eq!(first.line, format!("POST /v1/tasks/{ID}/{verb}"));
        assert_eq!(
            second.line,
            format!("POST /v1/topics/a%2Fb/keys/%C3%BC%201%25%3F%23/{verb}")
        );
        assert_eq!((first.body, second.body), (body.clone(), body));
    }
    let service = Service::answering(&[("200 OK", TASK)]);
    at(
        &service,
        &[&["task", "cancel", "--tombstone-for", "PT1H"], &by_key[..]].concat(),
    );
    assert_eq!(service.asked().body, json!({"tombstone_for": "PT1H"}));
}

#[test]
fn a_key_that_no_path_can_carry_is_refused_with_a_way_out() {
    let service = Service::answering(&[]);
    let (code, _, err) = at(&service, &["task", "cancel", "--topic", "t", "--key", ".."]);
    assert!(code == 1 && err.contains("duetime task list"), "{err}");
}

#[test]
fn log_and_attempts_by_key_look_the_id_up_first() {
    let service = Service::answering(&[("200 OK", TASK), ("200 OK", r#"{"items":[]}"#)]);
    let (code, out, _) = at(
        &service,
        &["task", "attempts", "--topic", "t", "--key", "k"],
    );
    assert_eq!((code, out.as_str()), (0, "no attempts yet\n"));
    assert_eq!(service.asked().line, "GET /v1/topics/t/keys/k");
    assert_eq!(service.asked().line, format!("GET /v1/tasks/{ID}/attempts"));
    let service = Service::answering(&[("200 OK", r#"{"items":[{"to":"pending"}]}"#)]);
    assert!(at(&service, &["task", "log", ID]).1.contains("- → pending"));
    assert_eq!(service.asked().line, format!("GET /v1/tasks/{ID}/log"));
}

#[test]
fn late_answers_are_listed_of_one_task_or_by_filter() {
    let answer = r#"{"items":[{"at":"2026-12-01T10:30:00.000Z","attempt":1,"worker":"w1","outcome":"succeeded","attempt_outcome":"lease_expired","treatment":"refused"}],"next_cursor":null}"#;
    let service = Service::answering(&[("200 OK", answer), ("200 OK", answer)]);
    let (code, out, _) = at(&service, &["task", "late", ID]);
    assert!(
        code == 0 && out.contains("w1") && out.contains("refused"),
        "{out}"
    );
    let asked = service.asked().line;
    assert_eq!(asked, format!("GET /v1/tasks/{ID}/late-answers"));
    let filter = ["--topic", "t", "--outcome", "failed", "--limit", "7"];
    at(&service, &[&["task", "late"], &filter[..]].concat());
    let asked = service.asked().line;
    assert_eq!(asked, "GET /v1/late-answers?topic=t&outcome=failed&limit=7");
}

#[test]
fn list_passes_every_filter_on() {
    let service = Service::answering(&[("200 OK", r#"{"items":[],"next_cursor":null}"#)]);
    let (code, out, _) = at(
        &service,
        &[
            "task",
            "list",
            "--topic",
            "t",
            "--key",
            "k",
            "--key-prefix",
            "p",
            "--state",
            "dead",
            "--tag",
            "region=e u",
            "--due-after",
            "a",
            "--due-before",
            "b",
            "--created-after",
            "c",
            "--created-before",
            "d",
            "--ended-after",
            "e",
            "--ended-before",
            "f",
            "--dead-reason",
            "g",
            "--rule",
            "h",
            "--class",
            "i",
            "--bucket",
            "202612011030",
            "--text",
            "j",
            "--order",
            "-due_at",
            "--limit",
            "5",
            "--cursor",
            "l",
        ],
    );
    assert_eq!((code, out.as_str()), (0, "nothing found\n"));
    assert_eq!(
        service.asked().line,
        "GET /v1/tasks?topic=t&key=k&key_prefix=p&due_after=a&due_before=b&created_after=c&created_before=d\
         &ended_after=e&ended_before=f&dead_reason=g&rule=h&class=i&bucket=202612011030&text=j&tag.region=e+u\
         &state=dead&order=-due_at&limit=5&cursor=l"
    );
}

#[test]
fn a_page_is_a_table_that_says_how_to_go_on() {
    let page = format!(r#"{{"items":[{TASK}],"next_cursor":"c2"}}"#);
    let service = Service::answering(&[("200 OK", &page), ("200 OK", &page)]);
    let (_, out, _) = at(&service, &["task", "list"]);
    let lines: Vec<_> = out.lines().collect();
    assert!(
        lines[0].starts_with("ID ") && lines[0].ends_with("ATTEMPTS"),
        "{out}"
    );
    assert_eq!(
        lines[1],
        format!("{ID}  cli    k1   pending  in 29 min 58 s (2026-12-01T10:30:00.000Z)  0")
    );
    assert_eq!(lines[2], "there may be more: --all, or --cursor c2");
    assert_eq!(service.asked().line, "GET /v1/tasks");
    let (_, out, _) = at(&service, &["task", "list", "--json"]);
    assert_eq!(out, format!("{page}\n"));
}

#[test]
fn all_follows_cursors_over_empty_pages_into_one_document() {
    let pages = [
        format!(r#"{{"items":[{TASK},{TASK}],"next_cursor":"c2"}}"#),
        String::from(r#"{"items":[],"next_cursor":"c3"}"#),
        format!(r#"{{"items":[{TASK}],"next_cursor":null}}"#),
    ];
    let script: Vec<_> = pages.iter().map(|page| ("200 OK", page.as_str())).collect();
    let service = Service::answering(&script);
    let (code, out, _) = at(&service, &["task", "list", "--all", "--json"]);
    assert_eq!(
        (code, out),
        (0, format!("{{\"items\":[{TASK},{TASK},{TASK}]}}\n"))
    );
    for query in ["limit=1000", "limit=1000&cursor=c2", "limit=1000&cursor=c3"] {
        assert_eq!(service.asked().line, format!("GET /v1/tasks?{query}"));
    }
    let service = Service::answering(&script);
    let (_, out, _) = at(&service, &["task", "list", "--all", "--limit", "2"]);
    assert_eq!(out.lines().count(), 4, "{out}");
    let service = Service::answering(&[("200 OK", r#"{"items":[]}"#)]);
    let (_, out, _) = at(&service, &["task", "list", "--all", "--json"]);
    assert_eq!(
        serde_json::from_str::<Value>(&out).unwrap(),
        json!({"items": []})
    );
}

#[test]
fn a_cursor_that_leads_nowhere_ends_in_a_failure() {
    let page = ("200 OK", r#"{"items":[],"next_cursor":"c"}"#);
    let service = Service::answering(&[page, page]);
    let (code, _, err) = at(&service, &["task", "list", "--all"]);
    assert!(code == 1 && err.contains("same page"), "{err}");
}

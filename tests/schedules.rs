//! Cron previews, calendars and schedules over HTTP, on the real binary.

#[expect(dead_code, reason = "each file of tests uses its part")]
mod support;

use std::time::Instant;

use serde_json::{Value, json};

use support::receiver::{Receiver, status};
use support::service::{Service, Shared};
use support::{SOON, push};

static SHARED: Shared = Shared::new();

/// Case 15.
#[test]
fn cron_dates_that_never_occur_are_refused_at_once_also_fifty_of_them_in_parallel() {
    let api = SHARED.service();
    let preview = |cron: &str| {
        let body = json!({"cron": cron, "tz": "UTC", "after": "2027-01-01T00:00:00Z", "count": 1});
        api.post("/v1/preview/cron", &body)
    };
    assert_eq!(
        preview("0 0 29 2 *").must(200),
        json!({"times": ["2028-02-29T00:00:00.000Z"]})
    );
    let never = ["0 0 31 4 *", "0 0 30 2 *", "0 0 31 2,4,6,9,11 *"];
    let begun = Instant::now();
    std::thread::scope(|threads| {
        for n in 0..50 {
            threads.spawn(move || {
                let refused = preview(never[n % never.len()]);
                assert_eq!(refused.status, 422);
                assert_eq!(refused.json()["errors"][0]["code"], "never_fires");
            });
        }
    });
    assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
    let schedule = json!({"cron": "0 0 31 4 *", "topic": "t"});
    let refused = api.put("/v1/schedules/never", &schedule);
    assert_eq!(refused.json()["errors"][0]["code"], "never_fires");
}

#[test]
fn a_schedule_whose_action_would_be_refused_at_each_create_is_refused_when_it_is_put() {
    let api = SHARED.service();
    let schedule =
        json!({"every": "PT1H", "topic": "t", "action": {"command": {"program": "true"}}});
    let refused = api.put("/v1/schedules/programs", &schedule);
    let error = &refused.json()["errors"][0];
    assert_eq!(
        (refused.status, &error["pointer"], &error["code"]),
        (422, &json!("/action/command"), &json!("commands_off"))
    );
    assert_eq!(
        api.get("/v1/schedules/programs").problem(),
        (404, "not_found".to_owned())
    );
}

fn office() -> Value {
    let day = json!([["09:00", "17:00"]]);
    json!({"tz": "Asia/Shanghai", "weekly": {"mon": day, "tue": day, "wed": day, "thu": day, "fri": day},
           "holidays": ["2026-10-01"], "exceptions": [{"date": "2026-10-10", "hours": day}]})
}

#[test]
fn a_calendar_that_is_put_tells_what_goes_by_it() {
    let api = SHARED.service();
    let put = || api.put("/v1/calendars/used", &office()).json()["used_by"].clone();
    assert_eq!(put(), json!({"rules": [], "topics": []}));
    let rule = json!({"excluding": {"calendar": "used", "working_hours": 8}});
    api.put("/v1/rules/used-hours", &rule).must(201);
    api.put("/v1/topics/used.orders", &json!({"rule": "used-hours"}))
        .must(201);
    let task = api.made(&json!({"topic": "used.orders"}));
    let topic = json!({"topic": "used.orders", "tasks": 1});
    assert_eq!(put(), json!({"rules": ["used-hours"], "topics": [topic]}));
    assert_eq!(api.task(&task["id"])["due_at"], task["due_at"]);
    // What it offers works them out anew.
    let mut longer = office();
    longer["weekly"] = json!({"sun": [["09:00", "17:00"]]});
    let answer = api.put("/v1/calendars/used", &longer).must(200);
    let job = api.post("/v1/bulk", &answer["recompute"][0]).must(202);
    let path = format!("/v1/bulk/{}", job["id"].as_str().expect("an id"));
    let job = support::until("it is through", support::SOON, || {
        let job = api.get(&path).must(200);
        (job["state"] == "done").then_some(job)
    });
    assert_eq!(job["counts"]["done"], 1);
    assert_ne!(api.task(&task["id"])["due_at"], task["due_at"]);
}

#[test]
fn a_calendar_is_put_read_replaced_listed_and_deleted() {
    let api = SHARED.service();
    assert_eq!(
        api.get("/v1/calendars/cn").problem(),
        (404, "not_found".to_owned())
    );
    let put = api.put("/v1/calendars/cn", &office()).must(201);
    assert_eq!((&put["name"], &put["version"]), (&json!("cn"), &json!(1)));
    let read = api.get("/v1/calendars/cn").must(200);
    assert_eq!(read["holidays"], json!(["2026-10-01"]));
    let mut back = read.clone();
    let fields = back.as_object_mut().expect("an object");
    fields.remove("name");
    fields.remove("version");
    let replaced = api.put("/v1/calendars/cn", &back).must(200);
    assert_eq!(replaced["version"], 2);
    assert_eq!(replaced["weekly"], read["weekly"]);
    for name in ["cn-a", "cn-b", "cn-c"] {
        api.put(&format!("/v1/calendars/{name}"), &office())
            .must(201);
    }
    let mut names = Vec::new();
    let mut cursor = "cn".to_owned();
    loop {
        let page = api
            .get(&format!("/v1/calendars?limit=2&cursor={cursor}"))
            .must(200);
        let items = page["items"].as_array().expect("a list");
        names.extend(
            items
                .iter()
                .map(|it| it["name"].as_str().expect("a name").to_owned()),
        );
        match page["next_cursor"].as_str() {
            Some(next) => cursor = next.to_owned(),
            None => break,
        }
    }
    assert_eq!(names[..3], ["cn-a", "cn-b", "cn-c"]);
    let versions = api.get("/v1/calendars/cn/versions").must(200);
    assert_eq!(versions["items"][0]["version"], 2);
    assert_eq!(versions["items"][1]["body"], office());
    let delete = || api.json("DELETE", "/v1/calendars/cn", &[], &json!({}));
    delete().expect("an answer").must(200);
    assert_eq!(api.get("/v1/calendars/cn").status, 404);
    assert_eq!(delete().expect("an answer").status, 404);
    let closed = api.put("/v1/calendars/closed", &json!({"tz": "UTC", "weekly": {}}));
    assert_eq!(closed.status, 422);
    assert_eq!(closed.json()["errors"][0]["code"], "never_open");
}

#[test]
fn topics_are_listed_in_pages_too() {
    let api = SHARED.service();
    for name in ["page.a", "page.b", "page.c"] {
        api.put(&format!("/v1/topics/{name}"), &json!({})).must(201);
    }
    let first = api.get("/v1/topics?limit=2&cursor=page").must(200);
    assert_eq!(first["items"][1]["name"], "page.b");
    assert_eq!(first["next_cursor"], "page.b");
    let rest = api.get("/v1/topics?limit=1000&cursor=page.b").must(200);
    assert_eq!(rest["items"][0]["name"], "page.c");
    assert_eq!(rest["next_cursor"], Value::Null);
    assert_eq!(api.get("/v1/topics?limit=0").status, 422);
}

#[test]
fn holidays_are_imported_from_an_icalendar_file() {
    let api = SHARED.service();
    api.put("/v1/calendars/de", &office()).must(201);
    let file = b"BEGIN:VCALENDAR\r\nBEGIN:VEVENT\r\nDTSTART;VALUE=DATE:19901003\r\nRRULE:FREQ=YEARLY\r\nEND:VEVENT\r\n\
        BEGIN:VEVENT\r\nDTSTART:20261224T100000Z\r\nEND:VEVENT\r\nEND:VCALENDAR\r\n";
    let import = |kind: &str, body: &[u8]| {
        let headers = [("content-type", kind)];
        api.send("POST", "/v1/calendars/de/import", &headers, body)
            .expect("an answer")
    };
    let told = import("text/calendar; charset=utf-8", file).must(200);
    assert_eq!(
        (&told["imported"], &told["skipped"]),
        (&json!(11), &json!(1))
    );
    assert_eq!(told["calendar"]["version"], 2);
    let read = api.get("/v1/calendars/de").must(200);
    assert_eq!(read["holidays"].as_array().map(Vec::len), Some(12));
    assert_eq!(import("text/calendar", file).must(200)["imported"], 0);
    assert_eq!(import("application/json", file).status, 415);
    assert_eq!(import("text/calendar", b"{}").status, 400);
}

#[test]
fn a_schedule_runs_on_time_over_a_kill_and_not_when_it_is_paused_or_deleted() {
    let mut service = Service::start();
    let sink = Receiver::start();
    let url = sink.on("/tick", &[status(200)]);
    let body = json!({"cron": "* * * * * *", "topic": "tick", "action": push(&url)});
    let put = service.put("/v1/schedules/tick", &body).must(201);
    assert_eq!((&put["paused"], &put["runs"]), (&json!(false), &json!(0)));
    sink.wait("/tick", 2);
    let pending = service.get("/v1/tasks?topic=tick&state=pending").must(200);
    assert!(
        pending["items"]
            .as_array()
            .is_some_and(|items| items.len() <= 2)
    );
    service.kill_and_start();
    sink.wait("/tick", sink.hits("/tick").len() + 2);

    let paused = service
        .post("/v1/schedules/tick/pause", &json!({}))
        .must(200);
    assert_eq!(
        (&paused["paused"], &paused["next"]),
        (&json!(true), &Value::Null)
    );
    let pending = service.get("/v1/tasks?topic=tick&state=pending").must(200);
    assert_eq!(pending["items"], json!([]));
    let run = service
        .post("/v1/schedules/tick/run-now", &json!({}))
        .must(201);
    service.wait_state(&run["id"], "succeeded");
    let resumed = service
        .post("/v1/schedules/tick/resume", &json!({}))
        .must(200);
    assert_eq!(resumed["paused"], false);
    sink.wait("/tick", sink.hits("/tick").len() + 1);
    let times = service.get("/v1/schedules/tick/preview?count=3").must(200);
    assert_eq!(times["times"].as_array().map(Vec::len), Some(3));

    let deleted = service.json("DELETE", "/v1/schedules/tick", &[], &json!({}));
    deleted.expect("an answer").must(200);
    let pending = service.get("/v1/tasks?topic=tick&state=pending").must(200);
    assert_eq!(pending["items"], json!([]));
    assert_eq!(service.get("/v1/schedules/tick").status, 404);
    let mut keys: Vec<String> = sink
        .hits("/tick")
        .iter()
        .map(|hit| hit.body["key"].to_string())
        .collect();
    let count = keys.len();
    keys.sort_unstable();
    keys.dedup();
    assert_eq!(keys.len(), count, "no occurrence twice");
    assert!(
        keys.iter().all(|key| key.starts_with("\"tick@20")),
        "{keys:?}"
    );
}

//! The process: its configuration, its stop, its directory, and what it says about itself.

#[expect(dead_code, reason = "each file of tests uses its part")]
mod support;

use std::collections::{BTreeSet, HashMap};
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde_json::{Value, json};

use support::receiver::{Answer, Receiver, assert_sound, status};
use support::service::{Service, Shared, command, free_address};
use support::{Over, SOON, fixed, length, ms, push, until};

static SHARED: Shared = Shared::new();

fn service() -> Arc<Service> {
    SHARED.service()
}

// ---------------------------------------------------------------- configuration

/// Starts a service that must leave by itself; its exit code and what it wrote to standard error.
fn start_in_vain(arguments: &[&str], environment: &[(&str, &str)]) -> (Option<i32>, String) {
    let home = tempfile::tempdir().expect("a temporary directory");
    let mut command = command(&["serve"]);
    command
        .arg("--listen")
        .arg(free_address().to_string())
        .args(arguments);
    command
        .envs(environment.iter().copied())
        .current_dir(home.path());
    let child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn();
    let mut child = child.expect("the binary can be started");
    let begun = Instant::now();
    while child
        .try_wait()
        .expect("its status can be asked for")
        .is_none()
    {
        if begun.elapsed() > SOON {
            let _ = child.kill();
            panic!("{arguments:?} {environment:?}: it goes on");
        }
        support::pass(Duration::from_millis(5));
    }
    let output = child.wait_with_output().expect("its output");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!said.contains("panicked"), "{said}");
    (output.status.code(), said)
}

#[test]
fn a_wrong_configuration_file_stops_the_start_and_names_the_line() {
    let home = tempfile::tempdir().expect("a temporary directory");
    let file = home.path().join("duetime.toml");
    let path = file.to_str().expect("a plain path");
    for (text, line, names) in [
        ("\n\nno_such_key = 1\n", 3, "no_such_key"),
        (
            "[http]\nlisten = \"127.0.0.1:0\"\nlisten_too = 1\n",
            3,
            "listen_too",
        ),
        ("[shards]\n\n[nonsense]\na = 1\n", 3, "nonsense"),
        ("[http]\nbody_timeout = 5\n", 2, "body_timeout"),
        ("[http]\nbody_timeout = \"soon\"\n", 2, "body_timeout"),
        ("[store\nx=", 1, "duetime.toml"),
        ("[shards]\ncount = \"many\"\n", 2, "count"),
    ] {
        std::fs::write(&file, text).expect("the file is written");
        let (code, said) = start_in_vain(&["--config", path], &[]);
        assert_eq!(code, Some(1), "{text:?}: {said}");
        assert!(said.contains(names), "{text:?}: {said}");
        assert!(
            said.contains(&format!("duetime.toml:{line}")),
            "{text:?}: {said}"
        );
    }
    let missing = home.path().join("missing.toml");
    let (code, said) = start_in_vain(&["--config", missing.to_str().expect("a plain path")], &[]);
    assert!(code == Some(1) && said.contains("missing.toml"), "{said}");
}

#[test]
fn a_wrong_variable_or_flag_stops_the_start_and_is_named() {
    for (name, value) in [
        ("DUETIME_NO_SUCH__KEY", "1"),
        ("DUETIME_HTTP__NO_SUCH", "1"),
        ("DUETIME_HTTP__BODY_TIMEOUT", "soon"),
        ("DUETIME_SHARDS__COUNT", "-1"),
    ] {
        let (code, said) = start_in_vain(&[], &[(name, value)]);
        assert_eq!(code, Some(1), "{name}: {said}");
        assert!(said.contains(name), "{said}");
    }
    let (code, said) = start_in_vain(&["--no-such-flag"], &[]);
    assert!(code == Some(2) && said.contains("--no-such-flag"), "{said}");
    let (code, _) = start_in_vain(&["--listen-on", "nowhere"], &[]);
    assert_eq!(code, Some(2));
}

#[test]
fn variables_without_two_underscores_are_none_of_ours() {
    let api = Service::with(&[
        ("DUETIME_PORT", "tcp://10.0.0.1:80"),
        ("DUETIME_URL", "nonsense"),
        ("DUETIME_SHARDS__COUNT", "3"),
    ]);
    let shards = api.get("/v1/shards").must(200);
    assert_eq!(shards["items"].as_array().map(Vec::len), Some(3));
}

#[test]
fn the_shipped_configuration_is_read_and_has_every_key() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("config/duetime.toml");
    let api = Service::with(&[("DUETIME_CONFIG", file.to_str().expect("a plain path"))]);
    assert_eq!(
        api.get("/livez").must(200)["version"],
        env!("CARGO_PKG_VERSION")
    );
}

#[test]
fn an_address_that_is_taken_is_refused_with_a_hint() {
    let api = service();
    let home = tempfile::tempdir().expect("a temporary directory");
    let mut command = command(&[
        "serve",
        "--listen",
        &api.address.to_string(),
        "--data",
        "data",
    ]);
    let output = command
        .current_dir(home.path())
        .output()
        .expect("the binary can be started");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(
        said.contains(&api.address.to_string()) && said.contains("--listen"),
        "{said}"
    );
}

// ---------------------------------------------------------------- stopping, and the directory

#[test]
fn sigterm_lets_a_running_attempt_end_and_leaves_with_0() {
    let (mut api, receiver) = (Service::start(), Receiver::start());
    let url = receiver.on(
        "/slow",
        &[Answer::Later(
            Duration::from_millis(700),
            200,
            r#"{"late":true}"#.to_owned(),
        )],
    );
    let task = api.made(&json!({"topic": "drain", "action": push(&url)}));
    receiver.wait("/slow", 1);
    let pending = api.made(&json!({"topic": "drain", "delay": "PT1H", "action": {"none": {}}}));
    let (exit, took) = api.terminate();
    assert_eq!(exit.code(), Some(0), "{}", api.log());
    assert!(took < Duration::from_secs(5), "{took:?}");
    assert!(
        receiver.hits("/slow")[0].hung_up.is_none(),
        "it had its answer"
    );
    api.start_again();
    assert_eq!(api.task(&pending["id"])["state"], "pending");
    let done = api.task(&task["id"]);
    assert_eq!(
        (&done["state"], &done["attempts"]),
        (&json!("succeeded"), &json!(1))
    );
    assert_eq!(done["result"], json!({"late": true}));
    assert_eq!(receiver.hits("/slow").len(), 1);
}

#[test]
fn what_outlasts_the_grace_is_given_back_and_has_used_no_attempt() {
    let (mut api, receiver) = (
        Service::with(&[("DUETIME_SHUTDOWN__GRACE", "PT0.3S")]),
        Receiver::start(),
    );
    let url = receiver.on("/long", &[Answer::Silence, status(200)]);
    let task = api.made(&json!({"topic": "long", "action": push(&url), "retry": fixed(60_000, 1)}));
    receiver.wait("/long", 1);
    let (exit, took) = api.terminate();
    assert_eq!(exit.code(), Some(0), "{}", api.log());
    assert!(
        (Duration::from_millis(300)..Duration::from_secs(5)).contains(&took),
        "{took:?}"
    );
    api.start_again();
    // It is due at once, not after the ladder's minute, though it had only one attempt.
    let done = api.wait_state(&task["id"], "succeeded");
    assert_eq!(done["attempts"], 1);
    let attempts: Vec<u64> = receiver
        .hits("/long")
        .iter()
        .map(|hit| hit.attempt())
        .collect();
    assert_eq!(attempts, [1, 2]);
    let outcomes: Vec<Value> = api
        .attempts(&task["id"])
        .iter()
        .map(|attempt| attempt["outcome"].clone())
        .collect();
    assert_eq!(outcomes, ["given_back", "succeeded"]);
}

#[test]
fn a_stop_does_not_wait_for_idle_connections_or_waiting_workers() {
    let mut api = Service::start();
    let _idle = api.connect().expect("a connection");
    let client = *api;
    let waiting = std::thread::spawn(move || {
        let ask = json!({"topics": ["none"], "wait_ms": 30_000});
        client
            .json("POST", "/v1/leases", &[], &ask)
            .map(|reply| reply.status)
    });
    until("the worker waits", SOON, || {
        let stats = api.get("/v1/stats").must(200);
        (stats["totals"]["waiting_workers"] == 1).then_some(())
    });
    let (exit, took) = api.terminate();
    assert_eq!(exit.code(), Some(0), "{}", api.log());
    assert!(took < Duration::from_secs(4), "{took:?}");
    let told = waiting.join().expect("its thread ends");
    assert!(
        matches!(told, Ok(200 | 503)),
        "the worker is answered: {told:?}"
    );
}

#[test]
fn a_second_process_on_the_same_directory_is_refused_and_the_first_goes_on() {
    let api = service();
    let data = api.data();
    let begun = Instant::now();
    let (code, said) = start_in_vain(&["--data", data.to_str().expect("a plain path")], &[]);
    let took = begun.elapsed();
    assert_eq!(code, Some(1), "{said}");
    assert!(took < Duration::from_secs(2), "{took:?}");
    assert!(said.contains("in use by another process"), "{said}");
    assert_eq!(api.get("/readyz").status, 200);
    let made = api.made(&json!({"topic": "first", "delay": "PT1H", "action": {"none": {}}}));
    assert_eq!(api.task(&made["id"])["state"], "pending");
}

#[test]
fn a_directory_keeps_its_number_of_shards() {
    let home = tempfile::tempdir().expect("a temporary directory");
    let data = home.path().join("data");
    let with = |count: &str| {
        Service::with(&[
            ("DUETIME_SHARDS__COUNT", count),
            ("DUETIME_STORE__DATA", data.to_str().expect("a plain path")),
        ])
    };
    // The directory is named by flag, which wins over the variable.
    let api = with("3");
    assert!(!data.exists() && api.data().exists());
    drop(api);
    let mut api = Service::with(&[("DUETIME_SHARDS__COUNT", "3")]);
    let task = api.made(&json!({"topic": "kept", "delay": "PT1H", "action": {"none": {}}}));
    api.set("DUETIME_SHARDS__COUNT", "5");
    api.kill_and_start();
    assert_eq!(
        api.get("/v1/shards").must(200)["items"]
            .as_array()
            .map(Vec::len),
        Some(3)
    );
    assert_eq!(api.task(&task["id"])["state"], "pending");
}

// ---------------------------------------------------------------- a shard that is started anew

fn epochs(api: &Service) -> Vec<u64> {
    let shards = api.get("/v1/shards").must(200);
    let items = shards["items"].as_array().expect("shards").iter();
    items
        .map(|shard| shard["epoch"].as_u64().expect("an epoch"))
        .collect()
}

#[test]
fn a_shard_restarted_under_load_has_the_next_epoch_and_nothing_is_lost() {
    let (api, receiver) = (Service::start(), Receiver::start());
    let url = receiver.on("/load", &[status(200)]);
    let before = epochs(&api);
    assert!(before.len() >= 2);
    let due: Mutex<HashMap<String, i64>> = Mutex::new(HashMap::new());
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _over = Over(&stop);
        let (api, url, due, stop) = (&api, &url, &due, &stop);
        scope.spawn(move || {
            for n in 0.. {
                if stop.load(Ordering::Acquire) {
                    return;
                }
                let body = json!({
                    "topic": "load", "key": format!("k{n}"), "delay": length(100 + n % 10 * 50), "action": push(url),
                    "retry": fixed(50, 10),
                });
                let reply = api.post("/v1/tasks", &body);
                match reply.status {
                    201 => {
                        let task = reply.json();
                        let id = task["id"].as_str().expect("an id").to_owned();
                        due.lock().insert(id, ms(&task["due_at"]));
                    }
                    _ => {
                        assert_eq!(reply.problem(), (503, "shard_unavailable".to_owned()));
                        assert!(reply.header("retry-after").is_some(), "it says when to come back");
                    }
                }
            }
        });
        for n in 1..=3 {
            let goal = due.lock().len() + 30;
            until("there is load", SOON, || {
                (due.lock().len() >= goal).then_some(())
            });
            assert_eq!(
                api.post("/v1/shards/0/restart", &json!({})).must(202)["shard"],
                0
            );
            until("the next epoch", Duration::from_secs(5), || {
                (epochs(api)[0] == before[0] + n).then_some(())
            });
        }
    });
    assert_eq!(
        epochs(&api)[1..],
        before[1..],
        "the others go on as they were"
    );
    until("it is ready again", SOON, || {
        (api.get("/readyz").status == 200).then_some(())
    });
    let due = due.into_inner();
    for id in due.keys() {
        let done = api.wait_state(&json!(id), "succeeded");
        assert_eq!(done["generation"], 1);
    }
    assert_sound(&receiver.hits("/load"), &due);
    let actors = api.get("/v1/actors").must(200);
    let shard = actors["items"]
        .as_array()
        .expect("parts")
        .iter()
        .find(|part| part["name"] == "shard-00")
        .expect("it is there");
    assert!(
        shard["restarts"].as_u64() >= Some(3) && shard["pulse"].is_object(),
        "{shard}"
    );
    assert_eq!(
        api.post("/v1/shards/9999/restart", &json!({})).problem(),
        (404, "not_found".to_owned())
    );
}

// ---------------------------------------------------------------- what it says about itself

/// Every route that the sources mount: read from where they are mounted, so that none can be forgotten.
fn mounted_routes() -> BTreeSet<(String, String)> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/http");
    let mut routes = BTreeSet::new();
    for entry in std::fs::read_dir(directory).expect("the sources of the routes") {
        let source = std::fs::read_to_string(entry.expect("a file").path()).expect("a text");
        // Verbs are declared in tables: `Cancel: cancel, cancel_by_key, "cancel", …`.
        let table = source
            .split_once("\ndeclare! {")
            .map_or("", |(_, table)| table);
        let declared: Vec<&str> = table
            .lines()
            .filter(|line| line.starts_with("    "))
            .filter_map(|line| line.split('"').nth(1))
            .collect();
        let compact: String = source.split_whitespace().collect();
        for mount in compact.split("(at(").skip(1) {
            let prefix = mount.split('"').nth(1).expect("a path").to_owned();
            let paths: Vec<String> = if mount.starts_with("concat!") {
                declared
                    .iter()
                    .map(|name| format!("{prefix}{name}"))
                    .collect()
            } else {
                vec![prefix]
            };
            // Its methods stand before the next one.
            let methods: Vec<&str> = ["get", "post", "put", "delete", "patch"]
                .into_iter()
                .filter(|method| mount.contains(&format!("web::{method}()")))
                .collect();
            assert!(!methods.is_empty(), "{paths:?}");
            routes.extend(methods.iter().flat_map(|method| {
                paths
                    .iter()
                    .map(|path| (path.clone(), (*method).to_owned()))
            }));
        }
    }
    routes
}

#[test]
fn the_openapi_document_names_every_route_and_nothing_in_it_dangles() {
    let api = service();
    let document = api.get("/openapi.json").must(200);
    assert!(
        document["openapi"]
            .as_str()
            .is_some_and(|version| version.starts_with("3.1")),
        "{}",
        document["openapi"]
    );

    let mut documented = BTreeSet::new();
    for (path, item) in document["paths"].as_object().expect("paths") {
        for method in item.as_object().expect("methods").keys() {
            documented.insert((path.clone(), method.clone()));
        }
    }
    let mut mounted = mounted_routes();
    assert!(mounted.len() > 40, "the sources were read: {mounted:?}");
    // The document does not document itself.
    assert!(mounted.remove(&("/openapi.json".to_owned(), "get".to_owned())));
    assert_eq!(documented, mounted);

    // Each is there, and says no to what is no request of its own.
    for (path, method) in &documented {
        let path: String = path
            .split('/')
            .map(|part| {
                if part.starts_with('{') {
                    "/none".to_owned()
                } else {
                    format!("/{part}")
                }
            })
            .collect();
        let reply = api
            .send(
                &method.to_uppercase(),
                &path.replacen("//", "/", 1),
                &[],
                b"",
            )
            .expect("an answer");
        if reply.status >= 400 {
            let (status, code) = reply.problem();
            assert!(
                status != 405 && code != "route_not_found",
                "{method} {path}: {code}"
            );
        }
    }
    let text = document.to_string();
    for reference in text.split(r##""$ref":"#"##).skip(1) {
        let pointer = reference.split('"').next().unwrap_or_default();
        assert!(
            document.pointer(pointer).is_some(),
            "{pointer} leads nowhere"
        );
    }
    let mut names = BTreeSet::new();
    for (path, item) in document["paths"].as_object().expect("paths") {
        for (method, operation) in item.as_object().expect("methods") {
            let name = operation["operationId"]
                .as_str()
                .expect("an operation has a name");
            assert!(names.insert(name.to_owned()), "{name} twice");
            let responses = operation["responses"].as_object().expect("responses");
            assert!(!responses.is_empty(), "{method} {path}");
            for (status, response) in responses
                .iter()
                .filter(|(status, _)| status.as_str() >= "400" && path.starts_with("/v1"))
            {
                assert!(
                    response["content"]["application/problem+json"].is_object(),
                    "{method} {path} {status}"
                );
            }
        }
    }
}

#[test]
fn the_api_page_loads_nothing_from_outside() {
    let api = service();
    let page = api.get("/docs");
    let page = match page.header("location") {
        Some(location) if (300..400).contains(&page.status) => api.get(location),
        _ => page,
    };
    assert_eq!(page.status, 200);
    let html = page.text();
    let mut assets = 0;
    for attribute in ["src=\"", "href=\""] {
        for link in html
            .split(attribute)
            .skip(1)
            .filter_map(|rest| rest.split('"').next())
        {
            assert!(!link.contains("//"), "{link} is outside");
            let path = link.trim_start_matches("./");
            let path = if path.starts_with('/') {
                path.to_owned()
            } else {
                format!("/docs/{path}")
            };
            assert_eq!(api.get(&path).status, 200, "{path}");
            assets += 1;
        }
    }
    assert!(assets >= 3, "{html}");
    let settings = api.get("/docs/swagger-initializer.js").text();
    assert!(settings.contains("/openapi.json"), "{settings}");
}

#[test]
fn probes_answer_with_detail() {
    let api = service();
    let alive = api.get("/livez").must(200);
    assert_eq!(alive["status"], "ok");
    let ready = api.get("/readyz").must(200);
    assert_eq!(
        (&ready["status"], &ready["problems"]),
        (&json!("ready"), &json!([]))
    );
}

#[test]
fn metrics_are_in_prometheus_form_and_count_what_happened() {
    let (api, receiver) = (Service::start(), Receiver::start());
    let url = receiver.on("/counted", &[status(500), status(200)]);
    let task = api.made(&json!({"topic": "counted", "action": push(&url), "retry": fixed(0, 3)}));
    api.made(&json!({"topic": "counted", "delay": "PT1H"}));
    api.wait_state(&task["id"], "succeeded");

    let reply = api.get("/metrics");
    assert!(
        reply
            .header("content-type")
            .is_some_and(|kind| kind.starts_with("application/openmetrics-text; version=1.0.0"))
    );
    let text = reply.text();
    let lines = text
        .strip_suffix("# EOF\n")
        .expect("it says that it is whole");
    let mut kinds: HashMap<String, String> = HashMap::new();
    let mut values: HashMap<String, f64> = HashMap::new();
    for line in lines.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').expect("a name and a kind");
            assert!(
                ["counter", "gauge", "histogram", "summary"].contains(&kind),
                "{line}"
            );
            assert!(
                kinds.insert(name.to_owned(), kind.to_owned()).is_none(),
                "{name} twice"
            );
        } else if !line.starts_with("# HELP ") {
            let (series, value) = line.rsplit_once(' ').expect("a series and a value");
            let name = series.split('{').next().expect("a name");
            let family = name.strip_suffix("_total").unwrap_or(name);
            let kind = kinds
                .get(family)
                .unwrap_or_else(|| panic!("{name} has no type before it"));
            assert!(name.starts_with("duetime_"), "{name}");
            assert_eq!(kind == "counter", family != name, "{name} is a {kind}");
            let labels = series.strip_prefix(name).unwrap_or_default();
            assert!(
                labels.is_empty() || (labels.starts_with('{') && labels.ends_with("\"}")),
                "{series}"
            );
            let value: f64 = value.parse().expect("a number");
            assert!(
                values.insert(series.to_owned(), value).is_none(),
                "{series} twice"
            );
        }
    }
    for (series, value) in [
        ("duetime_tasks{state=\"pending\"}", 1.0),
        ("duetime_tasks{state=\"succeeded\"}", 1.0),
        ("duetime_tasks_created_total", 2.0),
        ("duetime_attempts_started_total", 2.0),
        ("duetime_tasks_ended_total{state=\"succeeded\"}", 1.0),
        ("duetime_http_panics_total", 0.0),
    ] {
        assert_eq!(values.get(series), Some(&value), "{series}");
    }
}

#[test]
fn threads_are_named_for_what_they_do() {
    let api = service();
    let tasks = Path::new("/proc")
        .join(api.process_id().to_string())
        .join("task");
    let names: Vec<String> = std::fs::read_dir(tasks)
        .expect("its threads")
        .filter_map(|thread| std::fs::read_to_string(thread.ok()?.path().join("comm")).ok())
        .map(|name| name.trim().to_owned())
        .collect();
    for wanted in [
        "shard-00",
        "shard-01",
        "watchdog",
        "scheduler",
        "registry",
        "schedules",
        "http-push",
    ] {
        assert!(
            names.iter().any(|name| name == wanted),
            "{wanted} is not among {names:?}"
        );
    }
}

//! Commands: what a program gets, what becomes of its end, and that nothing of it is left when its attempt is over.
//! Case 21 from the field.

#[expect(dead_code, reason = "each file of tests uses its part")]
mod support;

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use duetime::{
    Action, Allow, CommandAction, CommandGuard, CommandOptions, Duetime, EngineError, NewTask,
    State, TopicName,
};
use parking_lot::Mutex;
use serde_json::{Value, json};

use support::engine::{ended, made};
use support::receiver::{Answer, Receiver};
use support::service::{START_MAX, Service};
use support::{SOON, fixed, push, until};

/// Everything may be run.
const ON: [(&str, &str); 3] = [
    ("DUETIME_COMMANDS__ENABLED", "true"),
    ("DUETIME_COMMANDS__ALLOW", r#"["*"]"#),
    ("DUETIME_SHARDS__COUNT", "1"),
];

/// One service for the tests of this file that run at the same time, where everything may be run.
fn service() -> Arc<Service> {
    static SHARED: Mutex<std::sync::Weak<Service>> = Mutex::new(std::sync::Weak::new());
    let mut shared = SHARED.lock();
    shared.upgrade().unwrap_or_else(|| {
        let service = Arc::new(Service::with(&ON));
        *shared = Arc::downgrade(&service);
        service
    })
}

fn shell(script: &str) -> Value {
    json!({"command": {"program": "/bin/sh", "args": ["-c", script]}})
}

/// A task that runs a script in its own directory, and the directory.
struct Scripted<'s> {
    api: &'s Service,
    dir: tempfile::TempDir,
    id: Value,
}

impl<'s> Scripted<'s> {
    fn new(api: &'s Service, script: &str, more: Value) -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let mut action = shell(script);
        action["command"]["cwd"] = json!(dir.path());
        let mut body = json!({"topic": "scripts", "action": action, "retry": fixed(60_000, 1)});
        for (name, value) in more.as_object().expect("an object") {
            body[name] = value.clone();
        }
        let id = api.made(&body)["id"].clone();
        Self { api, dir, id }
    }

    fn state(&self, state: &str) -> Value {
        self.api.wait_state(&self.id, state)
    }

    fn has(&self, file: &str) -> bool {
        self.dir.path().join(file).exists()
    }

    /// Waits until the script has written this file, and gives what stands in it.
    fn wrote(&self, file: &str) -> String {
        until(file, SOON, || {
            let text = fs::read_to_string(self.dir.path().join(file)).ok()?;
            text.ends_with('\n').then(|| text.trim().to_owned())
        })
    }

    /// The same, a process id.
    fn process(&self, file: &str) -> u32 {
        self.wrote(file).parse().expect("a process id")
    }
}

fn is_there(process: u32) -> bool {
    Path::new(&format!("/proc/{process}")).exists()
}

/// Of a service that lives: it reaps whom it has ended.
fn gone(processes: &[u32]) {
    until("all processes are gone and reaped", SOON, || {
        processes.iter().all(|id| !is_there(*id)).then_some(())
    });
}

/// Of one that is gone, or reaps nobody's children: whoever reaps them then is not ours, and may never do it.
fn ended_all(processes: &[u32]) {
    let has_ended = |id: &u32| {
        let stat = fs::read_to_string(format!("/proc/{id}/stat"));
        stat.map_or(true, |stat| {
            stat.rsplit_once(')')
                .is_some_and(|(_, fields)| fields.trim_start().starts_with(['Z', 'X']))
        })
    };
    until("all processes have ended", SOON, || {
        processes.iter().all(has_ended).then_some(())
    });
}

/// The one guard that stands beside a command. A program does not wait for it, so it may come a moment later.
fn guard_of(service: &Service) -> u32 {
    until("a guard stands", SOON, || {
        let is_guard = |id: &u32| {
            let line = fs::read_to_string(format!("/proc/{id}/cmdline"));
            line.is_ok_and(|line| line.ends_with("command-guard\0"))
        };
        let all = below(service.process_id());
        let guards: Vec<u32> = all.into_iter().filter(is_guard).collect();
        (guards.len() == 1).then(|| guards[0])
    })
}

/// Everything that stands below a process, zombies too.
fn below(process: u32) -> Vec<u32> {
    let mut parents = Vec::new();
    for entry in fs::read_dir("/proc").expect("processes").flatten() {
        let id = entry.file_name().to_string_lossy().parse::<u32>();
        let stat = fs::read_to_string(entry.path().join("stat"));
        if let (Ok(id), Ok(stat)) = (id, stat)
            && let Some((_, fields)) = stat.rsplit_once(')')
        {
            let parent = fields.split_whitespace().nth(1);
            parents.push((id, parent.and_then(|id| id.parse::<u32>().ok())));
        }
    }
    let (mut found, mut from) = (Vec::new(), vec![process]);
    while let Some(parent) = from.pop() {
        let children = parents.iter().filter(|(_, of)| *of == Some(parent));
        for (child, _) in children {
            found.push(*child);
            from.push(*child);
        }
    }
    found
}

fn error_of(task: &Value) -> (&str, &str) {
    let error = &task["last_outcome"]["error"];
    let text = |field: &str| error[field].as_str().unwrap_or_default();
    (text("code"), text("message"))
}

// ---------------------------------------------------------------- what a program gets, and gives

#[test]
fn a_program_gets_its_attempt_on_standard_input_and_what_it_is_about_in_its_environment() {
    let api = service();
    let echo = Scripted::new(
        &api,
        "cat",
        json!({"key": "order-42", "payload": {"order_id": 42}}),
    );
    let done = echo.state("succeeded");
    let told = &done["result"];
    assert_eq!(told["id"], done["id"]);
    assert_eq!(told["payload"], json!({"order_id": 42}));
    assert_eq!(
        (
            &told["topic"],
            &told["key"],
            &told["attempt"],
            &told["generation"],
            &told["due_at"]
        ),
        (
            &json!("scripts"),
            &json!("order-42"),
            &json!(1),
            &json!(1),
            &done["due_at"]
        )
    );
    assert_eq!(api.attempts(&done["id"])[0]["executor"], "command");

    let action = json!({"command": {
        "program": "env", "env": {"REGION": "eu", "LANG": "xx"}, "cwd": "/",
    }});
    let task = api.made(&json!({"topic": "scripts", "key": "k", "action": action}));
    assert_eq!(
        task["action"]["command"]["env"],
        json!({"LANG": "xx", "REGION": "eu"})
    );
    let done = api.wait_state(&task["id"], "succeeded");
    let text = done["result"].as_str().expect("a text");
    let value = |name: &str| {
        let mut lines = text.lines().filter_map(|line| line.split_once('='));
        lines
            .find(|(known, _)| *known == name)
            .map(|(_, value)| value)
    };
    let id = task["id"].as_str();
    for (name, expected) in [
        ("REGION", Some("eu")),
        ("LANG", Some("xx")),
        ("DUETIME_TASK_ID", id),
        ("DUETIME_TOPIC", Some("scripts")),
        ("DUETIME_KEY", Some("k")),
        ("DUETIME_ATTEMPT", Some("1")),
        ("DUETIME_GENERATION", Some("1")),
        ("DUETIME_DUE_AT", done["due_at"].as_str()),
        // The service's own is not handed on.
        ("DUETIME_COMMANDS__ENABLED", None),
    ] {
        assert_eq!(value(name), expected, "{name}: {text}");
    }
    assert!(value("DUETIME_TOKEN").is_some() && value("DUETIME_DEADLINE").is_some());
    assert!(value("PATH").is_some());
}

#[test]
fn standard_output_is_the_result_and_fifty_megabytes_of_it_are_not() {
    let api = service();
    let result = |script: &str| {
        let done = Scripted::new(&api, script, json!({})).state("succeeded");
        (done["result"].clone(), done["result_dropped"].clone())
    };
    assert_eq!(
        result("echo good; echo bad >&2"),
        (json!("good"), Value::Null)
    );
    assert_eq!(
        result(r#"echo '{"n": [1, 2]}'"#),
        (json!({"n": [1, 2]}), Value::Null)
    );
    assert_eq!(result("exit 0"), (Value::Null, Value::Null));
    assert_eq!(result("yes | head -c 50000000"), (Value::Null, json!(true)));
    // Output that nobody can keep holds nobody up either.
    assert_eq!(
        result("yes | head -c 5000000 >&2; echo 1"),
        (json!(1), Value::Null)
    );
}

#[test]
fn a_program_that_reads_no_input_and_one_that_closes_its_outputs_come_to_their_end() {
    let api = service();
    let large = json!({"payload": "x".repeat(200_000)});
    Scripted::new(&api, "exec <&-; echo done", large.clone()).state("succeeded");
    Scripted::new(&api, "exec >&- 2>&-; sleep 0.05", large.clone()).state("succeeded");
    let read = Scripted::new(&api, "wc -c", large).state("succeeded");
    assert!(
        read["result"].as_u64() > Some(200_000),
        "{}",
        read["result"]
    );
}

#[test]
fn an_exit_code_is_told_with_the_last_words_and_rules_what_follows() {
    let api = service();
    let script = "echo no room >&2; exit 7";
    let task = Scripted::new(&api, script, json!({"retry": fixed(20, 2)}));
    let dead = task.state("dead");
    assert_eq!(dead["attempts"], 2);
    assert_eq!(error_of(&dead), ("exit_7", "exit code 7 no room"));
    let codes: Vec<Value> = api
        .attempts(&task.id)
        .iter()
        .map(|attempt| attempt["error"]["code"].clone())
        .collect();
    assert_eq!(codes, ["exit_7", "exit_7"]);

    let mut retry = fixed(20, 5);
    retry["on"] = json!({"exit": "dead", "exit_75": "retry", "signal": "park"});
    let counting = "echo >> n; test $(wc -l < n) -lt 3 && exit 75; exit 1";
    let dead = Scripted::new(&api, counting, json!({ "retry": retry })).state("dead");
    assert_eq!(
        (&dead["attempts"], &dead["dead_reason"]),
        (&json!(3), &json!("refused"))
    );
    let parked = Scripted::new(&api, "kill -SEGV $$", json!({ "retry": retry })).state("paused");
    assert_eq!(error_of(&parked).0, "signal_11");
}

#[test]
fn what_can_not_be_started_is_refused_for_good() {
    let (api, dir) = (service(), tempfile::tempdir().expect("a directory"));
    let plain = dir.path().join("plain");
    fs::write(&plain, "no program").expect("a file");
    let gone = dir.path().join("gone");
    for (command, code) in [
        (json!({"program": gone}), "program_not_found"),
        (
            json!({"program": "no-such-program-anywhere"}),
            "program_not_found",
        ),
        (json!({"program": plain}), "program_not_executable"),
        (json!({"program": dir.path()}), "program_not_executable"),
        (
            json!({"program": "/bin/true", "cwd": gone}),
            "cwd_not_found",
        ),
    ] {
        let task = api.made(&json!({"topic": "vain", "action": {"command": command}}));
        let dead = api.wait_state(&task["id"], "dead");
        assert_eq!(
            (error_of(&dead).0, &dead["attempts"]),
            (code, &json!(1)),
            "{command}"
        );
        assert_eq!(dead["dead_reason"], "refused");
    }
}

// ---------------------------------------------------------------- time is up

#[test]
fn case_21_when_time_is_up_a_command_and_all_that_it_started_are_killed_and_a_push_is_cut() {
    let (api, receiver) = (service(), Receiver::start());
    let script = r#"trap "" TERM; echo $$ > P
        (sh -c 'echo $PPID > Q'; sleep 5; touch M) & sleep 5; touch N"#;
    let limits = json!({"timeouts": {"attempt": "PT1S", "grace": "PT1S"}});
    let command = Scripted::new(&api, script, limits);
    let late = Answer::Later(Duration::from_secs(5), 200, r#"{"late": 1}"#.to_owned());
    let url = receiver.on("/late", &[late]);
    let pushed = api.made(&json!({
        "topic": "late", "action": push(&url), "retry": fixed(60_000, 1), "timeouts": {"attempt": "PT1S"},
    }));
    let processes = [command.process("P"), command.process("Q")];
    assert!(processes.iter().all(|id| is_there(*id)), "the group runs");

    let dead = command.state("dead");
    let took = api.attempts(&command.id)[0]["duration_ms"].as_u64();
    assert!(
        took.is_some_and(|ms| (1900..3300).contains(&ms)),
        "{took:?}"
    );
    assert_eq!(
        (&dead["last_outcome"]["outcome"], &dead["dead_reason"]),
        (&json!("timeout"), &json!("attempts_used_up"))
    );
    // Who would write the files is gone with the attempt, so they are never written.
    gone(&processes);
    assert!(!command.has("M") && !command.has("N"));

    let cut = |hits: &[support::receiver::Hit]| hits.iter().any(|hit| hit.hung_up.is_some());
    let hits = receiver.wait_until("the push is cut", "/late", cut);
    let open = hits[0].hung_up.map(|closed| closed - hits[0].at);
    let allowed = Duration::from_millis(900)..Duration::from_millis(1500);
    assert!(open.is_some_and(|open| allowed.contains(&open)), "{open:?}");
    let pushed = api.wait_state(&pushed["id"], "dead");
    assert_eq!(
        (&pushed["last_outcome"]["outcome"], &pushed["result"]),
        (&json!("timeout"), &Value::Null)
    );
}

#[test]
fn a_program_is_asked_to_stop_first_and_what_it_says_then_is_still_a_timeout() {
    let api = service();
    let script =
        "trap 'touch asked; echo ok; exit 0' TERM; echo $$ > P; while :; do sleep 0.01; done";
    let limits = json!({"timeouts": {"attempt": "PT0.5S", "grace": "PT30S"}});
    let task = Scripted::new(&api, script, limits);
    let process = task.process("P");
    let dead = task.state("dead");
    assert!(task.has("asked"));
    assert_eq!(
        (&dead["last_outcome"]["outcome"], &dead["result"]),
        (&json!("timeout"), &Value::Null)
    );
    gone(&[process]);
}

#[test]
fn a_program_that_ended_in_time_while_the_service_stood_still_has_succeeded() {
    let service = Service::with(&ON);
    let script = "echo $$ > P; while ! test -e go; do sleep 0.01; done; echo done; echo > E";
    let task = Scripted::new(&service, script, json!({"timeouts": {"attempt": "PT2S"}}));
    task.process("P");
    support::signal(service.process_id(), "STOP");
    fs::write(task.dir.path().join("go"), "").expect("a file");
    task.wrote("E");
    // Past the time of the attempt, and then some.
    support::pass(Duration::from_millis(3500));
    support::signal(service.process_id(), "CONT");
    assert_eq!(task.state("succeeded")["result"], "done");
}

#[test]
fn who_leaves_the_group_is_found_and_killed_when_the_program_ends() {
    let api = service();
    // In a session of its own, its parent gone: nobody's child but the guard's.
    let leaver = "(setsid sh -c 'echo $$ > P; trap \"\" TERM HUP; sleep 600; touch M' &) ; while ! test -s P; do sleep 0.01; done";
    let task = Scripted::new(&api, leaver, json!({}));
    let process = task.process("P");
    task.state("succeeded");
    gone(&[process]);
    assert!(!task.has("M"));

    let stays = format!("trap '' TERM; {leaver}; sleep 600");
    let limits = json!({"timeouts": {"attempt": "PT0.5S", "grace": "PT0.1S"}});
    let task = Scripted::new(&api, &stays, limits);
    let process = task.process("P");
    task.state("dead");
    gone(&[process]);
}

#[test]
fn a_grandchild_that_keeps_the_pipes_open_does_not_hold_the_attempt() {
    let api = service();
    let script = "(trap '' TERM HUP; echo $(sh -c 'echo $PPID') > P; sleep 600) & while ! test -s P; do sleep 0.01; done; echo done";
    let task = Scripted::new(&api, script, json!({"timeouts": {"attempt": "PT60S"}}));
    assert_eq!(task.state("succeeded")["result"], "done");
    gone(&[task.process("P")]);
}

#[test]
fn an_orphan_that_hides_is_adopted_and_killed_and_a_command_goes_on_without_its_guard() {
    let service = Service::with(&ON);
    // Neither its group, nor its environment, nor its parent tells whose it is.
    let hides = "(env -i setsid sh -c 'echo $$ > P; trap \"\" TERM HUP; sleep 600' &) ; while ! test -s P; do sleep 0.01; done";
    let task = Scripted::new(&service, hides, json!({}));
    let process = task.process("P");
    task.state("succeeded");
    gone(&[process]);

    let waits = "echo $$ > P; while ! test -e go; do sleep 0.01; done; echo done";
    let task = Scripted::new(&service, waits, json!({}));
    let program = task.process("P");
    let guard = guard_of(&service);
    support::signal(guard, "KILL");
    assert!(is_there(program));
    fs::write(task.dir.path().join("go"), "").expect("a file");
    assert_eq!(task.state("succeeded")["result"], "done");
    gone(&[guard]);
}

#[test]
fn a_cancel_stops_the_whole_group() {
    let api = service();
    let script = "trap '' TERM; sh -c 'echo $PPID > Q; sleep 600' & echo $$ > P; sleep 600";
    let task = Scripted::new(
        &api,
        script,
        json!({"timeouts": {"attempt": "PT60S", "grace": "PT0.1S"}}),
    );
    let processes = [task.process("P"), task.process("Q")];
    let cancelled = api.verb("cancel", &task.id, &json!({}));
    assert_eq!(cancelled.must(202)["state"], "cancelled");
    gone(&processes);
    assert_eq!(api.task(&task.id)["state"], "cancelled");
    let counted = |row: &str| {
        let metrics = api.get("/metrics").text();
        let value = metrics.lines().find_map(|line| line.strip_prefix(row));
        value.is_some_and(|value| value.trim() != "0")
    };
    until("it is counted", SOON, || {
        let ended = counted("duetime_command_ended_total{outcome=\"cancelled\"}");
        (ended && counted("duetime_command_started_total")).then_some(())
    });
}

// ---------------------------------------------------------------- many, and the end

#[test]
fn only_so_many_run_at_a_time_and_the_others_wait_without_using_attempts_or_leaving_zombies() {
    let mut service = Service::unstarted(&ON);
    service.set("DUETIME_COMMANDS__RUNNING", "2");
    service.start_again();
    let dir = tempfile::tempdir().expect("a directory");
    let script = format!(
        "cd {}; touch up-$$; while ! test -e go; do sleep 0.01; done",
        dir.path().display()
    );
    let tasks: Vec<Value> = (0..12)
        .map(|_| service.made(&json!({"topic": "many", "action": shell(&script)}))["id"].clone())
        .collect();
    let up = || fs::read_dir(dir.path()).map_or(0, |entries| entries.count());
    until("two run", SOON, || (up() == 2).then_some(()));
    let waits = until("the others wait", SOON, || {
        let shown: Vec<Value> = tasks.iter().map(|id| service.task(id)).collect();
        let waits = shown
            .into_iter()
            .filter(|task| task["blocked_by"] == "commands_full");
        let waits: Vec<Value> = waits.collect();
        (waits.len() == 10).then_some(waits)
    });
    assert!(
        waits
            .iter()
            .all(|task| task["attempts"] == 0 && task["state"] == "pending")
    );
    // Others are not in their way.
    let other = service.made(&json!({"topic": "other", "delay": "PT0S", "action": {"none": {}}}));
    service.wait_state(&other["id"], "succeeded");
    assert_eq!(up(), 2);
    fs::write(dir.path().join("go"), "").expect("a file");
    for id in &tasks {
        assert_eq!(service.wait_state(id, "succeeded")["attempts"], 1);
    }
    let process = service.process_id();
    until("no guard, no program and no zombie is left", SOON, || {
        below(process).is_empty().then_some(())
    });
}

#[test]
fn when_the_service_is_killed_its_commands_die_and_are_run_again() {
    let mut service = Service::with(&ON);
    let dir = tempfile::tempdir().expect("a directory");
    let script = format!(
        "cd {}; test -e P && {{ echo again; exit 0; }}; (setsid sh -c 'echo $$ > Q; sleep 600' &); trap '' TERM HUP; echo $$ > P; sleep 600; touch N",
        dir.path().display()
    );
    let id = service.made(&json!({"topic": "killed", "action": shell(&script)}))["id"].clone();
    let process = |file: &str| {
        until(file, SOON, || {
            let text = fs::read_to_string(dir.path().join(file)).ok()?;
            text.trim().parse::<u32>().ok()
        })
    };
    let processes = [process("P"), process("Q")];
    guard_of(&service);
    let all = below(service.process_id());
    assert!(
        all.len() >= 3,
        "the guard, the program and what it started: {all:?}"
    );
    service.kill();
    ended_all(&processes);
    ended_all(&all);
    service.start_again();
    let done = service.wait_state(&id, "succeeded");
    assert_eq!(
        (&done["result"], &done["attempts"]),
        (&json!("again"), &json!(2))
    );
}

#[test]
fn a_stop_gives_commands_their_time_then_their_grace_and_hands_them_back() {
    let mut service = Service::unstarted(&ON);
    service.set("DUETIME_SHUTDOWN__GRACE", "PT0.1S");
    service.start_again();
    let dir = tempfile::tempdir().expect("a directory");
    let script = format!(
        "cd {}; test -e asked && exit 0; trap 'sleep 0.3; touch asked; exit 0' TERM; echo $$ > P; while :; do sleep 0.01; done",
        dir.path().display()
    );
    let id = service.made(&json!({"topic": "stopped", "action": shell(&script)}))["id"].clone();
    until("it runs", SOON, || {
        dir.path().join("P").exists().then_some(())
    });
    let all = below(service.process_id());
    let (status, _) = service.terminate();
    assert!(status.success(), "{status}");
    assert!(
        dir.path().join("asked").exists(),
        "it could put its things in order"
    );
    ended_all(&all);
    service.start_again();
    let done = service.wait_state(&id, "succeeded");
    assert_eq!(done["attempts"], 1, "what is handed back uses no attempt");
}

// ---------------------------------------------------------------- what may be run

#[test]
fn commands_are_off_unless_the_configuration_turns_them_on_and_the_refusal_says_how() {
    let service = Service::start();
    let create = json!({"topic": "off", "action": {"command": {"program": "/bin/true"}}});
    let refused = service.post("/v1/tasks", &create).must(422);
    assert_eq!(refused["errors"][0]["pointer"], "/action/command");
    assert_eq!(refused["errors"][0]["code"], "commands_off");
    let detail = refused["detail"].as_str().unwrap_or_default();
    assert!(detail.contains("[commands] enabled = true"), "{detail}");

    let topic = json!({"action": create["action"]});
    let refused = service.put("/v1/topics/off", &topic).must(422);
    assert_eq!(refused["errors"][0]["pointer"], "/action/command");
    let compensates =
        json!({"late_answers": {"compensate": {"topic": "off", "action": create["action"]}}});
    let refused = service.put("/v1/topics/off", &compensates).must(422);
    assert_eq!(
        refused["errors"][0]["pointer"],
        "/late_answers/compensate/action/command"
    );

    let none = json!({"topic": "off", "delay": "PT0S", "action": {"none": {}}});
    let items = service
        .post("/v1/tasks/batch", &json!({"items": [none, create]}))
        .must(200);
    assert_eq!(
        (&items["items"][0]["status"], &items["items"][1]["status"]),
        (&json!(201), &json!(422))
    );
}

#[test]
fn only_what_the_configuration_lists_is_run_also_when_it_lists_less_than_before() {
    let listed = r#"["/bin/echo", "/usr/bin/*", "env:REGION", "cwd:/tmp"]"#;
    let mut service = Service::unstarted(&ON);
    service.set("DUETIME_COMMANDS__ALLOW", listed);
    service.start_again();
    let create = |command: Value| {
        let body = json!({"topic": "some", "delay": "PT1H", "action": {"command": command}});
        service.post("/v1/tasks", &body)
    };
    create(json!({"program": "/usr/bin/env", "env": {"REGION": "eu"}, "cwd": "/tmp/x"})).must(201);
    for (command, pointer) in [
        (json!({"program": "/bin/sh"}), "/action/command/program"),
        (json!({"program": "echo"}), "/action/command/program"),
        (
            json!({"program": "/bin/echo", "env": {"LD_PRELOAD": "x"}}),
            "/action/command/env/LD_PRELOAD",
        ),
        (
            json!({"program": "/bin/echo", "cwd": "/etc"}),
            "/action/command/cwd",
        ),
    ] {
        let refused = create(command).must(422);
        assert_eq!(refused["errors"][0]["pointer"], pointer);
        assert_eq!(refused["errors"][0]["code"], "command_not_allowed");
    }
    let stored = create(json!({"program": "/bin/echo", "args": ["1"]})).must(201);
    service.set("DUETIME_COMMANDS__ALLOW", "[]");
    service.kill_and_start();
    service.verb("run-now", &stored["id"], &json!({})).must(200);
    let dead = service.wait_state(&stored["id"], "dead");
    assert_eq!(error_of(&dead).0, "command_not_allowed");
}

#[test]
fn an_allow_list_that_can_not_be_read_stops_the_start() {
    let mut service = Service::unstarted(&ON);
    service.set("DUETIME_COMMANDS__ALLOW", r#"["bin/sh"]"#);
    let why = service.try_start(START_MAX).expect_err("it does not start");
    assert!(
        why.contains("commands.allow") && why.contains("bin/sh"),
        "{why}"
    );
}

// ---------------------------------------------------------------- in a process of one's own

#[tokio::test]
async fn an_embedding_process_says_what_may_be_run_and_its_commands_end_with_its_engine() {
    let command = |script: &str| {
        let topic = TopicName::parse("embedded").expect("a name");
        NewTask::new(topic).action(Action::Command(CommandAction {
            program: "/bin/sh".to_owned(),
            args: vec!["-c".to_owned(), script.to_owned()],
            env: Vec::new(),
            cwd: None,
        }))
    };
    let dir = tempfile::tempdir().expect("a directory");
    let data = || {
        Duetime::builder()
            .shards(1)
            .data_dir(dir.path().join("data"))
    };
    let engine = data().start().await.expect("it starts");
    let refused = engine.create(command("exit 0"), "test").await;
    assert!(
        matches!(refused, Err(EngineError::Command { .. })),
        "{refused:?}"
    );
    engine.shutdown().await;
    drop(engine);

    let options = CommandOptions {
        guard: Some(CommandGuard::program(env!("CARGO_BIN_EXE_duetime"))),
        adopts: false,
        allow: Allow::parse(&["/bin/sh"]).expect("entries"),
        running_max: 2,
    };
    let engine = data().commands(options).start().await.expect("it starts");
    let task = made(&engine, command("echo '{\"n\": 1}'")).await;
    let done = ended(&engine, task.id, State::Succeeded).await;
    assert_eq!(
        done.result.as_ref().map(|json| json.as_str()),
        Some(r#"{"n": 1}"#)
    );

    let waits = format!(
        "cd {}; (setsid sleep 600 & echo $! > Q); echo $$ > P; sleep 600",
        dir.path().display()
    );
    made(&engine, command(&waits)).await;
    let process = |file: &str| {
        until(file, SOON, || {
            let text = fs::read_to_string(dir.path().join(file)).ok()?;
            text.trim().parse::<u32>().ok()
        })
    };
    let processes = [process("P"), process("Q")];
    // Not even stopped: let go of.
    drop(engine);
    ended_all(&processes);
}

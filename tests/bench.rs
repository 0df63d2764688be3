//! What `duetime bench` measures, seen as a run of the program.

#[expect(dead_code, reason = "each file of tests uses its part")]
mod support;

use serde_json::Value;

use support::service::command;

#[test]
fn the_bench_of_the_store_shows_every_figure_beside_its_limit_and_leaves_nothing_behind() {
    let data = tempfile::tempdir().expect("a directory");
    let mut bench = command(&["bench", "store", "--tasks", "2000", "--json", "--data"]);
    let output = bench.arg(data.path()).output().expect("it runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let report: Value = serde_json::from_slice(&output.stdout).expect("one JSON document");

    let figures = report["figures"].as_array().expect("figures");
    let figure = |name: &str| {
        let found = figures.iter().find(|figure| figure["name"] == name);
        found.unwrap_or_else(|| panic!("no {name} in {report:#}"))
    };
    for name in [
        "commit_1_per_s",
        "commit_10_per_s",
        "commit_100_per_s",
        "commit_1000_per_s",
        "commit_5000_per_s",
        "create_per_s",
        "create_last_per_s",
        "pending_memory_bytes",
        "pending_index_task_bytes",
        "pending_disk_task_bytes",
        "pending_idle_cpu_percent",
        "restart_s",
        "restart_memory_bytes",
        "restore_s",
        "doctor_damaged_s",
        "cancel_per_s",
        "cancel_reads",
        "ended_s",
        "ended_reads",
        "handled_s",
        "handled_reads",
    ] {
        assert!(figure(name)["value"].is_number(), "{name}");
        assert!(figure(name)["beside"]["value"].is_number(), "{name}");
    }
    assert_eq!(figure("cancel_reads")["value"], 0.0);
    assert!(figure("doctor_found")["value"].as_f64() > Some(0.0));
    assert!(figure("ended_late_p99_ms")["value"].is_number());
    let left = std::fs::read_dir(data.path()).expect("it is still there");
    assert_eq!(left.count(), 0, "files left behind");
}

#[test]
fn the_bench_of_a_day_accounts_for_every_task_and_judges_what_it_saw() {
    let data = tempfile::tempdir().expect("a directory");
    let mut bench = command(&["bench", "day", "--minutes", "0.05", "--rate", "200"]);
    let output = bench.args(["--json", "--data"]).arg(data.path()).output();
    let output = output.expect("it runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let report: Value = serde_json::from_slice(&output.stdout).expect("one JSON document");

    let figures = report["figures"].as_array().expect("figures");
    let figure = |name: &str| {
        let found = figures.iter().find(|figure| figure["name"] == name);
        let value = found.and_then(|figure| figure["value"].as_f64());
        value.unwrap_or_else(|| panic!("no {name} in {report:#}"))
    };
    assert_eq!(report["lost"], 0, "{report:#}");
    assert_eq!(figure("created"), 600.0);
    // A machine that stood still for a moment lets some fire that were to be cancelled.
    assert_eq!(figure("cancelled") + figure("overtaken"), 360.0);
    assert_eq!(figure("fired") + figure("cancelled"), 600.0);
    assert!(figure("received") >= 120.0, "{report:#}");
    for name in ["created_per_s", "late_p99_ms", "memory_bytes", "disk_bytes"] {
        assert!(figure(name) >= 0.0);
    }
    for name in ["memory_is_flat", "disk_is_flat", "is_on_time", "holds"] {
        assert!(report["verdict"][name].is_boolean(), "{name}");
    }
    let samples = report["samples"].as_array().expect("samples");
    assert!(samples.len() > 5, "{report:#}");
    assert!(
        samples
            .iter()
            .all(|sample| sample["memory_bytes"].as_u64() > Some(0))
    );
    let left = std::fs::read_dir(data.path()).expect("it is still there");
    assert_eq!(left.count(), 0, "files left behind");
}

#[test]
fn the_bench_of_actions_sets_each_beside_the_bare_client() {
    let data = tempfile::tempdir().expect("a directory");
    let mut bench = command(&["bench", "actions", "--tasks", "1000", "--json", "--dir"]);
    let output = bench.arg(data.path()).output().expect("it runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let report: Value = serde_json::from_slice(&output.stdout).expect("one JSON document");
    let figures = report["figures"].as_array().expect("figures");
    let named = |name: &str| figures.iter().find(|figure| figure["name"] == name);
    for name in ["handler_per_s", "pull_per_s", "push_per_s"] {
        let figure = named(name).unwrap_or_else(|| panic!("no {name} in {report:#}"));
        assert!(figure["value"].as_f64() > Some(0.0), "{figure}");
        assert!(figure["beside"]["value"].as_f64() > Some(0.0), "{figure}");
        assert!(figure["ratio"].is_number(), "{figure}");
    }
    for name in ["late_p50_ms", "late_p99_ms", "late_max_ms"] {
        let late = named(name).and_then(|figure| figure["value"].as_f64());
        assert!(late >= Some(0.0), "{name} in {report:#}");
    }
    assert_eq!(figures.len(), 6, "{report:#}");
    let left = std::fs::read_dir(data.path()).expect("it is still there");
    assert_eq!(left.count(), 0, "files left behind");
}

//! Callers that hang up: what they asked for is neither lost on them nor left half done.

#[expect(dead_code, reason = "each file of tests uses its part")]
mod support;

use std::io::Write;
use std::net::TcpStream;
use std::time::Duration;

use serde_json::json;

use support::service::Service;
use support::{SOON, until};

fn waiting_workers(api: &Service) -> u64 {
    let stats = api.get("/v1/stats").must(200);
    stats["totals"]["waiting_workers"]
        .as_u64()
        .expect("a count")
}

#[test]
fn a_worker_that_hung_up_gets_no_task_and_the_next_one_has_its_first_attempt() {
    let api = Service::start();
    let ask = json!({"topics": ["calls"], "max": 1, "wait_ms": 60_000, "lease": "PT10M", "worker": "gone"});
    let body = ask.to_string();
    let mut gone = TcpStream::connect(api.address).expect("it is served");
    let length = body.len();
    write!(
        gone,
        "POST /v1/leases HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
    )
    .expect("it is sent");
    until("it waits", SOON, || {
        (waiting_workers(&api) == 1).then_some(())
    });
    drop(gone);
    until("its place is free", SOON, || {
        (waiting_workers(&api) == 0).then_some(())
    });
    api.made(&json!({"topic": "calls"}));
    let leases = api.lease("calls", 1, 5_000, "PT10S");
    assert_eq!(leases.len(), 1);
    assert_eq!(leases[0]["attempt"], 1);
    assert!(
        leases[0]["task"]["lateness_ms"].as_f64() < Some(Duration::from_secs(5).as_millis() as f64)
    );
}

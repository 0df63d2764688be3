//! The process that is broken: an engine with handlers and the API, as `duetime serve` has them, and somebody at its
//! standard input who sets points and sends parts away.
//!
//! ```text
//!   set shard::handler@shard-01 1*panic
//!   restart scheduler
//! ```

use std::future::pending;
use std::io::{BufRead, stdin};
use std::net::SocketAddr;
use std::process::{ExitCode, exit};
use std::sync::Arc;
use std::time::Duration;

use duetime::clock::DurationMs;
use duetime::config::{LogConfig, LogFilter};
use duetime::http::HttpOptions;
use duetime::http::server::{ServerOptions, bind, serve as serve_api};
use duetime::shard::shelf::ShelfOptions;
use duetime::shard::table::TableOptions;
use duetime::store::local::LocalOptions;
use duetime::supervision::{Bounds, Supervision};
use duetime::{Builder, Duetime, HandlerError, HandlerResult, HandlerTask, failpoints, telemetry};
use serde::Deserialize;
use serde_json::json;

use super::support::client::Client;
use super::traffic::HANDLERS;

pub const SHARDS: u16 = 3;
/// The environment variable that makes this program the service.
pub const VARIABLE: &str = "SOAK_SERVES";
/// It leaves with this when only a new process helps.
pub const LEFT: i32 = 75;
/// A part that is silent for so long hangs: shorter than by default, and longer than a busy machine takes.
const SILENCE: DurationMs = DurationMs(1_500);
/// So does a wait for the disk.
const DISK_WAIT: DurationMs = DurationMs(1_000);
/// Folds every few seconds.
const FOLD_BYTES: usize = 64 * 1024;

pub fn is_meant() -> bool {
    std::env::var_os(VARIABLE).is_some()
}

/// Serves until it is killed, or whoever started it is gone.
pub fn serve() -> ExitCode {
    let log = LogConfig {
        level: LogFilter::parse("warn").expect("a level"),
        ..LogConfig::default()
    };
    telemetry::init(&log).expect("nobody else logs");
    let listen: SocketAddr = argument("--listen").parse().expect("an address");
    let bound = bind(listen).expect("the address is free");
    let served = actix_web::rt::System::new().block_on(async {
        let engine = builder().start().await.expect("it starts");
        let told = engine.clone();
        std::thread::spawn(move || obey(&told));
        let options = ServerOptions {
            workers: 2,
            connections_max: 1_000,
            idle_timeout: DurationMs::secs(30),
            grace: DurationMs::secs(1),
            http: HttpOptions {
                body_timeout: DurationMs::secs(30),
            },
        };
        serve_api(bound, engine, options, pending()).await
    });
    panic!("it has served: {served:?}")
}

fn argument(name: &str) -> String {
    let mut arguments = std::env::args().skip_while(|argument| argument != name);
    arguments.nth(1).expect("it is given")
}

fn builder() -> Builder {
    let supervision = Supervision {
        bounds: Some(Bounds {
            // Longer than the scheduler sleeps.
            late: DurationMs(1_200),
            stuck: SILENCE,
            wait_max: DISK_WAIT,
        }),
        held_max: 100,
        last_rung: Arc::new(|_| exit(LEFT)),
        ..Supervision::default()
    };
    let [calls, calls_blocking] = HANDLERS;
    Duetime::builder()
        .data_dir(argument("--data"))
        .shards(SHARDS)
        .table(TableOptions {
            shelf: ShelfOptions {
                fold_bytes: FOLD_BYTES,
            },
            ..TableOptions::default()
        })
        .store(LocalOptions {
            take_over: Duration::from_millis(300),
            ..LocalOptions::default()
        })
        .supervision(supervision)
        // It blocks its thread as well, for as long as it is not answered.
        .handler(calls, |task: HandlerTask| async move { call(&task) })
        .blocking_handler(calls_blocking, |task| call(&task))
}

/// What a handler does: it says what it is about where its payload says, and fails if it is told to.
fn call(task: &HandlerTask) -> HandlerResult {
    #[derive(Deserialize)]
    struct Payload {
        url: String,
    }
    let Payload { url } = task.payload_as()?;
    let (address, path) = url
        .strip_prefix("http://")
        .and_then(|url| url.split_once('/'))
        .expect("one of the receiver's");
    let client = Client {
        address: address.parse().expect("one of the receiver's"),
    };
    let attempt = task.attempt.0;
    let key = task.key.as_ref().map(ToString::to_string);
    let body = json!({"id": task.id.to_string(), "key": key, "attempt": attempt});
    let headers = [("duetime-attempt", attempt.to_string())];
    let [(name, value)] = &headers;
    let reply = client
        .json(
            "POST",
            &format!("/{path}"),
            &[(*name, value.as_str())],
            &body,
        )
        .map_err(|error| HandlerError::new("nobody_there", error.to_string()))?;
    match reply.status {
        200 => Ok(None),
        _ if task.handler == HANDLERS[1] => panic!("as at a failpoint: told to fail"),
        status => Err(HandlerError::new("told", format!("told {status}"))),
    }
}

fn obey(engine: &Duetime) {
    for line in stdin().lock().lines().map_while(Result::ok) {
        let words: Vec<&str> = line.split(' ').collect();
        let done = match words.as_slice() {
            ["set", point, actions] => failpoints::set(point, actions),
            ["restart", part] => engine
                .restart_part(part)
                .map_err(|unknown| unknown.to_string()),
            _ => Err(format!("what is {line}?")),
        };
        done.expect("whoever says so knows how");
    }
    exit(0);
}

//! `duetime serve`: the service, from its configuration to SIGTERM.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::signal::unix::{SignalKind, signal};

use crate::causes::chain;
use crate::cli::{EXIT_START_AGAIN, Failure};
use crate::clock::DurationMs;
use crate::config::{Config, Overrides, Sources, process_environment};
use crate::descriptors::{self, Shares};
use crate::engine::Duetime;
use crate::engine::backup::BackupPlan;
use crate::executor::command::{CommandGuard, CommandOptions};
use crate::executor::egress::EgressPolicy;
use crate::http::HttpOptions;
use crate::http::server::{ServerOptions, bind, serve};
use crate::shard::rescue::RescueOptions;
use crate::shard::shelf::ShelfOptions;
use crate::shard::table::TableOptions;
use crate::store::local::LocalOptions;
use crate::telemetry;
use crate::watchdog::{Bounds, Supervision};

/// Read when no other file is named and it is there.
const USUAL_FILE: &str = "config/duetime.toml";

/// Runs the service.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Configuration file [default: the one DUETIME_CONFIG names, else config/duetime.toml, if it is there]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Where tasks are kept, instead of the configured directory
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Address to listen on, instead of the configured one
    #[arg(long, value_name = "ADDR")]
    listen: Option<SocketAddr>,
}

/// Runs the service until SIGTERM or SIGINT.
///
/// # Errors
/// When the configuration is wrong, the address or the directory is taken, or a part does not come up.
pub fn run(args: Args, _json: bool) -> Result<(), Failure> {
    let overrides = Overrides {
        data: args.data,
        listen: args.listen,
    };
    let sources =
        Sources::new(args.config, process_environment(), overrides).usual_file(USUAL_FILE);
    let config = Config::load(&sources).map_err(|error| Failure::new(chain(&error)))?;
    telemetry::init(&config.log).map_err(|error| Failure::new(chain(&error)))?;
    match sources.chosen_file() {
        Some(file) => tracing::info!(file = %file.display(), "configuration read"),
        None => tracing::info!("no configuration file: defaults and environment"),
    }
    for (given, meant) in sources.mistaken_variables() {
        tracing::warn!("{given} is not read; did you mean {meant}?");
    }
    actix_web::rt::System::new().block_on(service(&config))
}

async fn service(config: &Config) -> Result<(), Failure> {
    let bound = bind(config.http.listen).map_err(|error| {
        Failure::new(format!("cannot listen on {}: {error}", config.http.listen))
            .then("name another address with --listen")
    })?;
    let shares = shares(config);
    let started = builder(config).running_max(shares.pushes).start().await;
    let engine = started.map_err(|error| Failure::new(chain(&error)))?;
    let address = bound.address;
    let here = (!address.ip().is_unspecified()).then(|| format!("http://{address}"));
    if let Some(url) = config.http.public_url.get().map(str::to_owned).or(here) {
        engine.set_public_url(&url);
    }
    tracing::info!(%address, data = %config.store.data.display(), "ready; the API page is at http://{address}/docs");
    let options = ServerOptions {
        workers: config.http.workers,
        connections_max: shares.connections,
        idle_timeout: config.http.idle_timeout,
        grace: config.shutdown.grace,
        http: HttpOptions {
            body_timeout: config.http.body_timeout,
        },
    };
    let stop = asked_to_stop()
        .map_err(|error| Failure::new(format!("cannot listen for signals: {error}")))?;
    let served = serve(bound, engine, options, stop).await;
    served.map_err(|error| Failure::new(format!("the HTTP server failed: {error}")))?;
    tracing::info!("stopped");
    Ok(())
}

/// How many pushes and connections the process's limit of open files leaves of what is configured.
fn shares(config: &Config) -> Shares {
    let wanted = Shares {
        pushes: config.push.running,
        connections: config.http.connections_max,
    };
    let Some(limit) = descriptors::allowed() else {
        return wanted;
    };
    let given = wanted.of(limit);
    if given != wanted {
        tracing::warn!(
            open_files = limit,
            pushes = given.pushes,
            of_pushes = wanted.pushes,
            connections = given.connections,
            of_connections = wanted.connections,
            "fewer pushes or connections than configured: raise the limit of open files"
        );
    }
    given
}

/// An engine as it is configured.
fn builder(config: &Config) -> crate::engine::Builder {
    let mut builder = without_backups(config);
    if config.commands.enabled {
        if !config.http.listen.ip().is_loopback() {
            tracing::warn!(
                "commands are on: whoever reaches this address can have run what [commands] allow lists"
            );
        }
        builder = builder.commands(CommandOptions {
            guard: Some(CommandGuard::enter()),
            adopts: true,
            allow: config.commands.allow.clone(),
            running_max: config.commands.running,
        });
    }
    if let Some(dir) = &config.backup.journal_dir {
        builder = builder.journal_copies(dir);
    }
    if let Some(path) = &config.push.root_certificates {
        builder = builder.root_certificates(path);
    }
    match config.backup.every {
        DurationMs(0) => builder,
        every => builder.backups(BackupPlan {
            every,
            keep: config.backup.keep,
            dir: config.backup.dir.clone(),
        }),
    }
}

fn without_backups(config: &Config) -> crate::engine::Builder {
    let shards = u64::from(config.shards.count).max(2);
    let egress = EgressPolicy {
        allow_loopback: config.http.listen.ip().is_loopback() || config.push.allow_private,
        allow_private: config.push.allow_private,
    };
    Duetime::builder()
        .data_dir(Path::new(&config.store.data))
        .shards(config.shards.count)
        .queue(config.shards.queue)
        .questions_max(config.push.questions)
        .per_host_max(config.push.per_host)
        .max_delay(config.limits.max_delay)
        .grace(config.shutdown.grace)
        .egress(egress)
        .reserve(config.store.reserve.0)
        .supervision(supervision(config))
        .table(TableOptions {
            look_ahead: config.wheel.look_ahead,
            shelf: ShelfOptions {
                fold_bytes: usize::try_from(config.store.checkpoint_bytes.0).unwrap_or(usize::MAX),
            },
        })
        .rescue(RescueOptions {
            every: config.rescue.every,
            dwell: config.rescue.dwell,
            on_dwell: config.rescue.on_dwell,
        })
        .store(LocalOptions {
            cache_bytes: config.store.cache.0 / shards,
            ..LocalOptions::default()
        })
}

/// How far the service goes about parts that hang: out of the process.
fn supervision(config: &Config) -> Supervision {
    let config = &config.supervision;
    Supervision {
        bounds: Some(Bounds {
            late: DurationMs(config.silence.0 / 2),
            stuck: config.silence,
            wait_max: config.disk_wait,
        }),
        quarantine_max: config.zombies,
        last_rung: Arc::new(|why| {
            tracing::error!(
                why,
                exit_code = EXIT_START_AGAIN,
                "leaving: only a new process helps. Nothing acknowledged is lost: start the service again"
            );
            std::process::exit(EXIT_START_AGAIN);
        }),
        ..Supervision::default()
    }
}

/// Done when the process is asked to stop.
fn asked_to_stop() -> std::io::Result<impl Future<Output = ()>> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    Ok(async move {
        let name = tokio::select! {
            _ = terminate.recv() => "SIGTERM",
            _ = interrupt.recv() => "SIGINT",
        };
        tracing::info!(
            signal = name,
            "stopping: nothing new is taken in, running attempts may end"
        );
    })
}

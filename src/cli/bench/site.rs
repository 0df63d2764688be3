//! What is measured, and what it is measured against: the service, and a bare actix-web server beside it that
//! also receives the service's pushes.

use std::io::ErrorKind;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use actix_web::dev::ServerHandle;
use actix_web::web::{self, Data};
use actix_web::{App, HttpResponse, HttpServer};
use bytes::Bytes;
use jiff::Timestamp;
use parking_lot::Mutex;
use serde::Deserialize;
use tempfile::TempDir;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use url::Url;

use super::machine;
use crate::cli::Failure;
use crate::clock::DurationMs;
use crate::engine::Duetime;
use crate::http::HttpOptions;
use crate::http::server::{ServerOptions, bind, serve};

/// How long an orderly stop may take.
const GRACE: DurationMs = DurationMs::secs(5);
/// How often, and how long after each other, a directory that is still written to is removed.
const REMOVALS_MAX: u32 = 20;
const REMOVE_AGAIN: Duration = Duration::from_millis(100);
/// The name of the handler of this process's service.
pub(super) const HANDLER: &str = "bench";
/// Most pushes at a time.
const PUSHES_MAX: usize = 512;
/// Open files kept for all but pushes.
const FILES_KEPT: usize = 512;

/// The service, and its neighbour.
pub(super) struct Site {
    /// Where the service is.
    pub(super) address: SocketAddr,
    pub(super) peer: Peer,
    /// How many pushes run at a time.
    pub(super) pushes: usize,
    own: Option<Own>,
}

/// A service of this process.
struct Own {
    engine: Duetime,
    stop: oneshot::Sender<()>,
    serving: JoinHandle<std::io::Result<()>>,
    /// Dropped last.
    data: Directory,
}

/// A directory that is gone afterwards.
pub(super) struct Directory(TempDir);

impl Directory {
    /// A new one inside `parent`, or where the machine keeps what is temporary.
    pub(super) fn inside(parent: Option<&Path>) -> Result<Self, Failure> {
        let made = match parent {
            Some(parent) => tempfile::tempdir_in(parent),
            None => tempfile::tempdir(),
        };
        made.map(Self)
            .map_err(|error| cannot("make a directory for the data", &error))
    }

    pub(super) fn path(&self) -> &Path {
        self.0.path()
    }
}

/// The failure to do something.
pub(super) fn cannot(what: &str, error: &dyn std::fmt::Display) -> Failure {
    Failure::new(format!("cannot {what}: {error}"))
}

impl Drop for Directory {
    fn drop(&mut self) {
        // A shard that is still on its way out may make a file while its directory is being removed.
        for _ in 0..REMOVALS_MAX {
            match std::fs::remove_dir_all(self.0.path()) {
                Err(error) if error.kind() != ErrorKind::NotFound => {
                    std::thread::sleep(REMOVE_AGAIN)
                }
                _ => return,
            }
        }
    }
}

impl Site {
    /// Starts a service in this process, on a directory of its own inside `parent`.
    pub(super) async fn own(parent: Option<&Path>) -> Result<Self, Failure> {
        let data = Directory::inside(parent)?;
        let pushes = pushes();
        let builder = Duetime::builder()
            .data_dir(data.path().join("data"))
            .running_max(pushes)
            .handler(HANDLER, async |_| Ok(None));
        let engine = builder
            .start()
            .await
            .map_err(|error| cannot("start the service", &error))?;
        let bound = bind(([127, 0, 0, 1], 0).into()).map_err(|error| cannot("listen", &error))?;
        let address = bound.address;
        let (stop, stopped) = oneshot::channel::<()>();
        let options = ServerOptions {
            workers: 0,
            connections_max: 4096,
            idle_timeout: DurationMs::secs(60),
            grace: GRACE,
            http: HttpOptions::default(),
        };
        // A sender that is dropped asks for a stop just the same.
        let serving = actix_web::rt::spawn(serve(bound, engine.clone(), options, async move {
            drop(stopped.await)
        }));
        Ok(Self {
            address,
            peer: Peer::start()?,
            pushes,
            own: Some(Own {
                engine,
                data,
                stop,
                serving,
            }),
        })
    }

    /// Takes a service that runs elsewhere.
    pub(super) async fn elsewhere(url: &Url) -> Result<Self, Failure> {
        let host = url
            .host_str()
            .unwrap_or_default()
            .trim_matches(['[', ']'])
            .to_owned();
        let port = url.port_or_known_default().unwrap_or(80);
        // Whatever the name leads to; a plain look-up may block, and nothing else runs yet.
        let addresses = (host.as_str(), port).to_socket_addrs();
        let address = addresses.ok().and_then(|mut all| all.next());
        Ok(Self {
            address: address.ok_or_else(|| Failure::new(format!("cannot find the host {host}")))?,
            peer: Peer::start()?,
            pushes: pushes(),
            own: None,
        })
    }

    /// The directory that the data is in, for a service of this process.
    pub(super) fn data(&self) -> Option<PathBuf> {
        self.own.as_ref().map(|own| own.data.path().to_owned())
    }

    /// The engine of a service of this process.
    pub(super) fn engine(&self) -> Option<&Duetime> {
        self.own.as_ref().map(|own| &own.engine)
    }

    /// Whether the service can reach a receiver on this machine's loopback address.
    pub(super) fn reaches_receiver(&self) -> bool {
        self.address.ip().is_loopback()
    }

    pub(super) fn words(&self) -> String {
        match self.data() {
            None => format!("the service at http://{}", self.address),
            Some(data) => match machine::file_system(&data) {
                Some(kind) if kind == "tmpfs" => {
                    "a service of this process, its data on tmpfs, which is memory: figures of the disk mean nothing \
                     (another directory: --dir)"
                        .to_owned()
                }
                Some(kind) => format!("a service of this process, its data on {kind}"),
                None => "a service of this process".to_owned(),
            },
        }
    }

    /// Stops what was started.
    pub(super) async fn close(self) -> Result<(), Failure> {
        self.peer.server.stop(false).await;
        let Some(own) = self.own else { return Ok(()) };
        drop(own.engine);
        let _ = own.stop.send(());
        let limit = GRACE.to_std() * 2;
        match tokio::time::timeout(limit, own.serving).await {
            Ok(Ok(Ok(()))) => Ok(()),
            Ok(Ok(Err(error))) => Err(Failure::new(format!("the service failed: {error}"))),
            Ok(Err(error)) => Err(Failure::new(format!("the service failed: {error}"))),
            Err(_) => Err(Failure::new(format!(
                "the service did not stop within {limit:?}"
            ))),
        }
    }
}

/// How many pushes may run at a time: each takes a socket here and one at the receiver, and the client that it
/// is compared with takes as many again.
fn pushes() -> usize {
    let files = machine::open_files_max().unwrap_or(1024);
    (files.saturating_sub(FILES_KEPT) / 4).clamp(16, PUSHES_MAX)
}

/// A bare actix-web server.
pub(super) struct Peer {
    pub(super) address: SocketAddr,
    pub(super) received: Arc<Received>,
    server: ServerHandle,
}

/// What has come in.
#[derive(Default)]
pub(super) struct Received {
    count: AtomicUsize,
    wanted: AtomicUsize,
    complete_at: Mutex<Option<Instant>>,
    /// How late each push came, in microseconds; before its due time is below zero.
    late_us: Mutex<Vec<i64>>,
}

impl Received {
    /// Begins to count anew, up to `wanted`.
    pub(super) fn expect(&self, wanted: usize) {
        self.late_us.lock().clear();
        *self.complete_at.lock() = None;
        self.wanted.store(wanted, Ordering::SeqCst);
        self.count.store(0, Ordering::SeqCst);
    }

    fn one_more(&self) {
        let count = self.count.fetch_add(1, Ordering::SeqCst) + 1;
        if count == self.wanted.load(Ordering::SeqCst) {
            *self.complete_at.lock() = Some(Instant::now());
        }
    }

    /// When the last one wanted came in.
    ///
    /// # Errors
    /// When that takes longer than `limit`.
    pub(super) async fn complete(&self, limit: Duration) -> Result<Instant, Failure> {
        let until = Instant::now() + limit;
        loop {
            if let Some(at) = *self.complete_at.lock() {
                return Ok(at);
            }
            if Instant::now() > until {
                let (count, wanted) = (
                    self.count.load(Ordering::SeqCst),
                    self.wanted.load(Ordering::SeqCst),
                );
                return Err(Failure::new(format!(
                    "only {count} of {wanted} pushes came within {limit:?}"
                )));
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// How many came in.
    pub(super) fn count(&self) -> usize {
        self.count.load(Ordering::SeqCst)
    }

    /// How late each was, in microseconds, sorted.
    pub(super) fn late_us(&self) -> Vec<i64> {
        let mut late = self.late_us.lock().clone();
        late.sort_unstable();
        late
    }
}

/// What is read of a push.
#[derive(Deserialize)]
struct Push {
    due_at: String,
}

async fn create(body: Bytes) -> HttpResponse {
    HttpResponse::Created()
        .content_type("application/json")
        .body(body)
}

async fn count(received: Data<Received>, _: Bytes) -> HttpResponse {
    received.one_more();
    HttpResponse::Ok().finish()
}

async fn late(received: Data<Received>, body: Bytes) -> HttpResponse {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let due = serde_json::from_slice::<Push>(&body)
        .ok()
        .and_then(|push| push.due_at.parse::<Timestamp>().ok());
    let Some(due) = due else {
        return HttpResponse::BadRequest().finish();
    };
    let now_us = i64::try_from(now.as_micros()).unwrap_or(i64::MAX);
    received.late_us.lock().push(now_us - due.as_microsecond());
    received.one_more();
    HttpResponse::Ok().finish()
}

impl Peer {
    fn start() -> Result<Self, Failure> {
        let received = Arc::new(Received::default());
        let data = Data::from(Arc::clone(&received));
        let routes = move || {
            App::new()
                .app_data(data.clone())
                .route("/v1/tasks", web::post().to(create))
                .route("/count", web::post().to(count))
                .route("/late", web::post().to(late))
        };
        let server = HttpServer::new(routes)
            .workers(machine::cores())
            .backlog(4096)
            .keep_alive(Duration::from_secs(60))
            .disable_signals()
            .bind("127.0.0.1:0")
            .map_err(|error| Failure::new(format!("cannot listen for pushes: {error}")))?;
        let address = server.addrs()[0];
        let server = server.run();
        let handle = server.handle();
        actix_web::rt::spawn(server);
        Ok(Self {
            address,
            received,
            server: handle,
        })
    }
}

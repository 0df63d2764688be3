//! The HTTP server: listener, threads, limits of connections, an orderly stop.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use actix_web::dev::ServerHandle;
use actix_web::{App, HttpServer};

use crate::clock::DurationMs;
use crate::descriptors::{self, Shares};
use crate::engine::Duetime;
use crate::http::connections::Connections;
use crate::http::{HttpOptions, configure};

/// Longest time for a request's head, unless a connection may not be idle for so long.
const HEAD_TIME: Duration = Duration::from_secs(10);
/// How often idle connections are looked for.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Longest time for a client to take an answer, from its head on: enough for the largest over a slow line.
const ANSWER_TIME: Duration = Duration::from_secs(5 * 60);

/// How the server is run.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// Threads; 0 means as many as cores.
    pub workers: usize,
    /// Open connections, over all threads; fewer if the process may not have enough descriptors.
    pub connections_max: usize,
    /// A connection with nothing, or half a request, on it is closed after this.
    pub idle_timeout: DurationMs,
    /// An orderly stop waits so long for requests that are being answered.
    pub grace: DurationMs,
    /// What the routes need.
    pub http: HttpOptions,
}

/// A bound address that is not served yet.
#[derive(Debug)]
pub struct Bound {
    listener: TcpListener,
    /// Where it is.
    pub address: SocketAddr,
}

/// Takes an address.
///
/// # Errors
/// When it is taken or not ours.
pub fn bind(address: SocketAddr) -> std::io::Result<Bound> {
    let listener = TcpListener::bind(address)?;
    let address = listener.local_addr()?;
    Ok(Bound { listener, address })
}

/// Serves until `stop` is done; then takes no more connections, lets requests that are being answered end, and
/// stops the engine.
///
/// To be called on an actix system.
///
/// # Errors
/// When the machine gives no threads or the listener fails.
pub async fn serve(
    bound: Bound,
    engine: Duetime,
    options: ServerOptions,
    stop: impl Future<Output = ()>,
) -> std::io::Result<()> {
    let connections = Arc::new(Connections::default());
    let address = bound.address;
    let workers = match options.workers {
        0 => std::thread::available_parallelism().map_or(2, usize::from),
        count => count,
    };
    let idle = options.idle_timeout.to_std();
    let head = HEAD_TIME.min(idle);
    let routes = configure(engine.clone(), options.http.clone());
    let watched = Arc::clone(&connections);
    let server = HttpServer::new(move || App::new().configure(routes.clone()))
        .on_connect(move |connection, data| watched.watch(connection, data))
        .workers(workers)
        .max_connections((connections_max(options.connections_max) / workers).max(1))
        .backlog(4096)
        .client_request_timeout(head)
        .client_disconnect_timeout(Duration::from_secs(2))
        .keep_alive(idle)
        // Who hangs up waits for nothing any more: a task must not be leased into a dead connection. Price: a client
        // that closes its own half after the request gets no answer.
        .h1_allow_half_closed(false)
        .shutdown_timeout(options.grace.to_std().as_secs().max(1))
        .disable_signals()
        .listen(bound.listener)?
        .run();
    engine.announce(address)?;
    let handle = server.handle();
    let serving = actix_web::rt::spawn(server);
    let watching = actix_web::rt::spawn(watch(
        Arc::clone(&connections),
        // actix-web's own limits come first where they work.
        idle + head,
    ));
    stop.await;
    watching.abort();
    tokio::join!(engine.shutdown(), stop_serving(&handle, &connections));
    serving.await.map_err(std::io::Error::other)?
}

/// As many connections as are wanted, and as leave enough descriptors for the store.
fn connections_max(wanted: usize) -> usize {
    let Some(limit) = descriptors::allowed() else {
        return wanted;
    };
    let shares = Shares {
        pushes: 0,
        connections: wanted,
    };
    let allowed = shares.of(limit).connections;
    if allowed < wanted {
        tracing::warn!(
            wanted,
            allowed,
            descriptors = limit,
            "fewer connections than wanted: raise the limit of open files"
        );
    }
    allowed
}

/// actix-web waits for open connections without telling them; those that are between requests are shut down.
async fn stop_serving(handle: &ServerHandle, connections: &Connections) {
    let stopped = handle.stop(true);
    tokio::pin!(stopped);
    loop {
        tokio::select! {
            () = &mut stopped => return,
            () = tokio::time::sleep(Duration::from_millis(20)) => connections.shut_idle(Duration::ZERO),
        };
    }
}

async fn watch(connections: Arc<Connections>, limit: Duration) {
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        let idle = connections.shut_idle(limit);
        let unread = connections.shut_unread(ANSWER_TIME);
        if idle + unread > 0 {
            tracing::debug!(
                idle,
                unread,
                "connections closed with half a request or none on them, or an answer that is not read"
            );
        }
    }
}

//! Watches connections on which nothing happens.
//!
//! actix-web limits the time for the first request's head on a connection, and closes a connection that is idle;
//! but a second request that is half sent holds its connection for ever. So each connection has a mark here:
//! when a request on it began or ended. One that is between requests for longer than the limit is shut down, its
//! half-sent request with it. What happens inside a request has limits of its own.

use std::any::Any;
use std::collections::HashMap;
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use actix_web::dev::Extensions;
use parking_lot::Mutex;

/// All open connections of one server.
#[derive(Debug, Default)]
pub struct Connections {
    open: Mutex<HashMap<u64, Arc<Mark>>>,
    next: AtomicU64,
}

/// One connection's mark. Requests on it are counted, since a client may pipeline.
#[derive(Debug)]
struct Mark {
    socket: TcpStream,
    requests: AtomicUsize,
    idle_since: Mutex<Instant>,
}

/// Lives with a connection.
#[derive(Debug)]
struct Watched {
    id: u64,
    mark: Arc<Mark>,
    connections: Arc<Connections>,
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.connections.open.lock().remove(&self.id);
    }
}

/// Lives with a request.
#[derive(Debug)]
pub struct InRequest(Arc<Mark>);

impl Drop for InRequest {
    fn drop(&mut self) {
        *self.0.idle_since.lock() = Instant::now();
        self.0.requests.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Connections {
    /// To be called for each new connection, with what its requests will carry.
    pub fn watch(self: &Arc<Self>, connection: &dyn Any, data: &mut Extensions) {
        let Some(stream) = connection.downcast_ref::<actix_web::rt::net::TcpStream>() else {
            return;
        };
        // A second descriptor of the same socket: to shut it down from outside, nothing else.
        let Ok(socket) = stream
            .as_fd()
            .try_clone_to_owned()
            .map(|fd: OwnedFd| TcpStream::from(fd))
        else {
            return;
        };
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let mark = Arc::new(Mark {
            socket,
            requests: AtomicUsize::new(0),
            idle_since: Mutex::new(Instant::now()),
        });
        self.open.lock().insert(id, Arc::clone(&mark));
        data.insert(Watched {
            id,
            mark,
            connections: Arc::clone(self),
        });
    }

    /// A request begins on the connection whose data this is; it ends when the guard is dropped.
    pub fn enter(req: &actix_web::dev::ServiceRequest) -> Option<InRequest> {
        let mark = Arc::clone(&req.conn_data::<Watched>()?.mark);
        mark.requests.fetch_add(1, Ordering::AcqRel);
        Some(InRequest(mark))
    }

    /// Shuts down what has been between requests for longer than `limit`; how many they were.
    pub fn shut_idle(&self, limit: Duration) -> usize {
        let idle: Vec<Arc<Mark>> = self
            .open
            .lock()
            .values()
            .filter(|mark| {
                mark.requests.load(Ordering::Acquire) == 0
                    && mark.idle_since.lock().elapsed() > limit
            })
            .cloned()
            .collect();
        for mark in &idle {
            // It may be gone already; all the better.
            let _ = mark.socket.shutdown(Shutdown::Both);
        }
        idle.len()
    }
}

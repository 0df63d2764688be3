//! Watches connections on which nothing happens, or too little.
//!
//! actix-web limits the time for the first request's head on a connection, and closes a connection that is idle;
//! but a second request that is half sent holds its connection for ever. So each connection has a mark here:
//! when a request on it began or ended. One that is between requests for longer than the limit is shut down, its
//! half-sent request with it. What happens inside a request has limits of its own, up to its answer: a client that
//! does not read that is shut down some time after the answer's head was made.

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
    /// When the answer that is being sent was made. Answers go one after the other.
    answer_since: Mutex<Option<Instant>>,
}

impl Mark {
    fn is_idle_for(&self, limit: Duration) -> bool {
        self.requests.load(Ordering::Acquire) == 0 && self.idle_since.lock().elapsed() > limit
    }

    fn is_answered_for(&self, limit: Duration) -> bool {
        let since = *self.answer_since.lock();
        since.is_some_and(|since| since.elapsed() > limit)
    }
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

impl InRequest {
    /// Its answer has been made, and begins to be sent.
    pub fn answered(&self) {
        *self.0.answer_since.lock() = Some(Instant::now());
    }
}

impl Drop for InRequest {
    fn drop(&mut self) {
        *self.0.answer_since.lock() = None;
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
            answer_since: Mutex::new(None),
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
        self.shut(|mark| mark.is_idle_for(limit))
    }

    /// Shuts down what has been taking an answer for longer than `limit`; how many they were.
    pub fn shut_unread(&self, limit: Duration) -> usize {
        self.shut(|mark| mark.is_answered_for(limit))
    }

    fn shut(&self, is_over: impl Fn(&Mark) -> bool) -> usize {
        let over: Vec<Arc<Mark>> = self
            .open
            .lock()
            .values()
            .filter(|mark| is_over(mark))
            .cloned()
            .collect();
        for mark in &over {
            // It may be gone already; all the better.
            let _ = mark.socket.shutdown(Shutdown::Both);
        }
        over.len()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[actix_web::test]
    async fn who_does_not_read_his_answer_is_shut_down_and_who_waits_for_one_is_not() {
        let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("a port");
        let address = listener.local_addr().expect("its address");
        let connect = actix_web::rt::net::TcpStream::connect(address);
        let connection = connect.await.expect("it connects");
        let (mut client, _) = listener.accept().expect("it is taken");
        let connections = Arc::new(Connections::default());
        let mut data = Extensions::new();
        connections.watch(&connection, &mut data);
        let mark = Arc::clone(&data.get::<Watched>().expect("it is watched").mark);
        let request = InRequest(mark);
        assert_eq!(connections.shut_unread(Duration::ZERO), 0, "no answer yet");
        request.answered();
        assert_eq!(connections.shut_unread(Duration::from_secs(60)), 0);
        assert_eq!(connections.shut_unread(Duration::ZERO), 1);
        assert_eq!(client.read(&mut [0]).expect("its end"), 0);
        drop(request);
        assert_eq!(connections.shut_unread(Duration::ZERO), 0, "it was read");
    }
}

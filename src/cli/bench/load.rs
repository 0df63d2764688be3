//! The load: prebuilt HTTP/1.1 requests over kept connections, one on its way at a time on each.
//!
//! It shares the cores with what it measures, so it does little: no HTTP library, one buffer per connection, and
//! of an answer it reads the status, the length and the body.

use std::cell::{Cell, RefCell};
use std::io::{self, ErrorKind, Write as _};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use futures_util::future::try_join_all;
use tokio::net::TcpStream;

use crate::cli::Failure;

/// A load that takes longer than this hangs.
const LOAD_MAX: Duration = Duration::from_secs(120);
/// Largest head of an answer, in bytes.
const HEAD_MAX: usize = 16 * 1024;

/// Writes a POST of `body` into `request`.
pub(super) fn post(request: &mut Vec<u8>, path: &str, kind: &str, body: &[u8]) {
    request.clear();
    let length = body.len();
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: bench\r\ncontent-type: {kind}\r\ncontent-length: {length}\r\n\r\n"
    );
    request.extend_from_slice(head.as_bytes());
    request.extend_from_slice(body);
}

/// One kept connection.
pub(super) struct Connection {
    stream: TcpStream,
    inbox: Vec<u8>,
}

/// What came back.
#[derive(Debug)]
pub(super) struct Answer<'a> {
    pub(super) status: u16,
    pub(super) body: &'a [u8],
}

impl Connection {
    pub(super) async fn open(to: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect(to).await?;
        stream.set_nodelay(true)?;
        Ok(Self {
            stream,
            inbox: Vec::new(),
        })
    }

    /// Sends a request and waits for its answer.
    pub(super) async fn exchange(&mut self, request: &[u8]) -> io::Result<Answer<'_>> {
        let mut rest = request;
        while !rest.is_empty() {
            match self.stream.try_write(rest) {
                Ok(written) => rest = &rest[written..],
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.stream.writable().await?
                }
                Err(error) => return Err(error),
            }
        }
        self.inbox.clear();
        let head = loop {
            if let Some(head) = Head::read(&self.inbox)? {
                break head;
            }
            self.read_more().await?;
        };
        let end = head.bytes + head.body_bytes;
        self.inbox.reserve(end.saturating_sub(self.inbox.len()));
        while self.inbox.len() < end {
            self.read_more().await?;
        }
        Ok(Answer {
            status: head.status,
            body: &self.inbox[head.bytes..end],
        })
    }

    async fn read_more(&mut self) -> io::Result<()> {
        loop {
            self.stream.readable().await?;
            match self.stream.try_read_buf(&mut self.inbox) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(_) => return Ok(()),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
struct Head {
    status: u16,
    /// Of the head itself.
    bytes: usize,
    body_bytes: usize,
}

impl Head {
    /// The head, once all of it is there.
    fn read(inbox: &[u8]) -> io::Result<Option<Self>> {
        let odd = |why: &str| io::Error::new(ErrorKind::InvalidData, why.to_owned());
        let Some(end) = inbox.windows(4).position(|four| four == b"\r\n\r\n") else {
            return if inbox.len() > HEAD_MAX {
                Err(odd("the answer's head is too long"))
            } else {
                Ok(None)
            };
        };
        let head =
            std::str::from_utf8(&inbox[..end]).map_err(|_| odd("the answer's head is no text"))?;
        let mut lines = head.split("\r\n");
        let status = lines
            .next()
            .and_then(|line| line.split(' ').nth(1))
            .and_then(|code| code.parse().ok());
        let length = lines.find_map(|line| {
            let (name, value) = line.split_once(':')?;
            name.eq_ignore_ascii_case("content-length")
                .then(|| value.trim().parse().ok())?
        });
        Ok(Some(Self {
            status: status.ok_or_else(|| odd("the answer is no HTTP"))?,
            bytes: end + 4,
            body_bytes: length.ok_or_else(|| odd("the answer does not tell its length"))?,
        }))
    }
}

/// What a load gave.
#[derive(Debug)]
pub(super) struct Load {
    /// From the first request to the last answer.
    pub(super) took: Duration,
    /// Of each answer, in microseconds, sorted.
    pub(super) latencies_us: Vec<u32>,
}

impl Load {
    pub(super) fn per_second(&self, each: usize) -> f64 {
        (self.latencies_us.len() * each) as f64 / self.took.as_secs_f64()
    }

    pub(super) fn latency_ms(&self, q: f64) -> f64 {
        quantile(&self.latencies_us, q).map_or(0.0, |us| f64::from(us) / 1000.0)
    }
}

/// The value below or at which the share `q` of `sorted` lies.
pub(super) fn quantile<T: Copy>(sorted: &[T], q: f64) -> Option<T> {
    let nth = (sorted.len() as f64 * q).ceil() as usize;
    sorted.get(nth.clamp(1, sorted.len().max(1)) - 1).copied()
}

/// Sends what `next` writes until it answers false, over so many connections, and hands each answer to `take`.
///
/// # Errors
/// When the connection breaks, an answer is not taken, or it hangs.
pub(super) async fn load(
    to: SocketAddr,
    connections: usize,
    next: impl Fn(&mut Vec<u8>) -> bool,
    take: impl Fn(Answer<'_>) -> Result<(), Failure>,
) -> Result<Load, Failure> {
    let broken =
        |error: io::Error| Failure::new(format!("the connection to http://{to} broke: {error}"));
    let opened = try_join_all((0..connections).map(|_| Connection::open(to))).await;
    let opened =
        opened.map_err(|error| Failure::new(format!("cannot connect to http://{to}: {error}")))?;
    let latencies = RefCell::new(Vec::new());
    let start = Instant::now();
    let last = Cell::new(start);
    let one = |mut connection: Connection| {
        let (next, take, latencies, last) = (&next, &take, &latencies, &last);
        async move {
            let mut request = Vec::new();
            while next(&mut request) {
                let sent = Instant::now();
                let answer = connection.exchange(&request).await.map_err(broken)?;
                let now = Instant::now();
                last.set(now);
                let us = now.duration_since(sent).as_micros();
                latencies
                    .borrow_mut()
                    .push(u32::try_from(us).unwrap_or(u32::MAX));
                take(answer)?;
            }
            Ok::<_, Failure>(())
        }
    };
    let all = try_join_all(opened.into_iter().map(one));
    let hangs = |_| {
        Failure::new(format!(
            "http://{to} did not answer all requests within {LOAD_MAX:?}"
        ))
    };
    tokio::time::timeout(LOAD_MAX, all).await.map_err(hangs)??;
    let mut latencies_us = latencies.into_inner();
    latencies_us.sort_unstable();
    Ok(Load {
        took: last.get() - start,
        latencies_us,
    })
}

/// Takes answers of one status only.
pub(super) fn expect(status: u16) -> impl Fn(Answer<'_>) -> Result<(), Failure> {
    move |answer| {
        if answer.status == status {
            return Ok(());
        }
        let body: String = String::from_utf8_lossy(answer.body)
            .chars()
            .take(300)
            .collect();
        Err(Failure::new(format!(
            "the answer was {} instead of {status}: {body}",
            answer.status
        )))
    }
}

/// One request and its answer, on a connection of its own.
///
/// # Errors
/// As [`load`].
pub(super) async fn once(to: SocketAddr, request: &[u8], status: u16) -> Result<Vec<u8>, Failure> {
    let body = RefCell::new(Vec::new());
    let todo = Cell::new(true);
    let next = |buffer: &mut Vec<u8>| {
        buffer.clear();
        buffer.extend_from_slice(request);
        todo.replace(false)
    };
    let take = |answer: Answer<'_>| {
        body.borrow_mut().extend_from_slice(answer.body);
        expect(status)(answer)
    };
    load(to, 1, next, take).await?;
    Ok(body.into_inner())
}

/// Appends text to a request's body. Memory takes all that is written.
pub(super) fn append(body: &mut Vec<u8>, text: std::fmt::Arguments<'_>) {
    body.write_fmt(text)
        .expect("a vector takes all that is written");
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn a_head_is_read_once_it_is_complete() {
        let text = b"HTTP/1.1 201 Created\r\nContent-Length: 5\r\nx: y\r\n\r\nhello";
        for cut in 0..text.len() - 5 {
            assert_eq!(Head::read(&text[..cut]).unwrap(), None, "{cut}");
        }
        let head = Head::read(text).unwrap().unwrap();
        assert_eq!(
            (head.status, head.body_bytes, &text[head.bytes..]),
            (201, 5, &b"hello"[..])
        );
        assert!(Head::read(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n").is_err());
        assert!(Head::read(b"not at all\r\n\r\n").is_err());
    }

    #[test]
    fn quantiles_are_values_that_occurred() {
        assert_eq!(quantile::<u32>(&[], 0.5), None);
        let values: Vec<u32> = (1..=100).collect();
        for (q, value) in [(0.0, 1), (0.5, 50), (0.99, 99), (1.0, 100)] {
            assert_eq!(quantile(&values, q), Some(value));
        }
    }
}

//! Somebody to be called: answers as it was told to, and remembers who came, when, and when they hung up.

use std::collections::HashMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use serde_json::Value;

use super::client::find;
use super::{SOON, now_ms};

/// What a caller is told.
#[derive(Clone, Debug)]
pub enum Answer {
    /// This status, with this body.
    Say(u16, String),
    /// This status after this time, unless the caller hangs up.
    Later(Duration, u16, String),
    /// 200 once the gate is open, unless the caller hangs up.
    Held(Gate),
    /// Nothing, until the caller hangs up.
    Silence,
}

/// A plain status.
pub fn status(status: u16) -> Answer {
    Answer::Say(status, String::new())
}

/// 200 with JSON.
pub fn ok(body: &Value) -> Answer {
    Answer::Say(200, body.to_string())
}

/// What held answers wait for.
#[derive(Clone, Debug, Default)]
pub struct Gate(Arc<AtomicBool>);

impl Gate {
    pub fn open(&self) {
        self.0.store(true, Ordering::Release);
    }

    fn is_open(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// One call.
#[derive(Clone, Debug)]
pub struct Hit {
    /// When its request was there, by the wall clock, in milliseconds.
    pub at_ms: i64,
    /// The same instant, for measuring.
    pub at: Instant,
    pub method: String,
    pub path: String,
    headers: Vec<(String, String)>,
    pub body: Value,
    /// When the caller hung up before it had its answer.
    pub hung_up: Option<Instant>,
}

impl Hit {
    /// A header's value, by its name in lower case; empty when it is not there.
    pub fn header(&self, name: &str) -> &str {
        let found = self.headers.iter().find(|(known, _)| known == name);
        found.map_or("", |(_, value)| value.as_str())
    }

    /// The task's id.
    pub fn id(&self) -> String {
        self.body["id"]
            .as_str()
            .expect("a push names its task")
            .to_owned()
    }

    /// The attempt's number.
    pub fn attempt(&self) -> u64 {
        self.body["attempt"]
            .as_u64()
            .expect("a push names its attempt")
    }
}

/// Listens on a loopback port until it is dropped.
pub struct Receiver {
    address: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    told: Mutex<HashMap<String, Vec<Answer>>>,
    hits: Mutex<Vec<Hit>>,
    changed: Condvar,
    closing: AtomicBool,
}

impl Receiver {
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let shared = Arc::new(Shared::default());
        let for_all = Arc::clone(&shared);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                if for_all.closing.load(Ordering::Acquire) {
                    return;
                }
                let Ok(stream) = stream else { continue };
                let shared = Arc::clone(&for_all);
                // Each ends with its connection.
                std::thread::spawn(move || shared.serve(stream));
            }
        });
        Self { address, shared }
    }

    /// Sets what callers of a path are told, one after the other; the last answer stays. Gives the URL.
    pub fn on(&self, path: &str, answers: &[Answer]) -> String {
        self.shared
            .told
            .lock()
            .insert(path.to_owned(), answers.to_vec());
        format!("http://{}{path}", self.address)
    }

    /// The calls of a path so far.
    pub fn hits(&self, path: &str) -> Vec<Hit> {
        let hits = self.shared.hits.lock();
        hits.iter()
            .filter(|hit| hit.path == path)
            .cloned()
            .collect()
    }

    /// How many calls there were, of whatever path.
    pub fn count(&self) -> usize {
        self.shared.hits.lock().len()
    }

    /// All calls after the first `count`, of whatever path.
    pub fn hits_after(&self, count: usize) -> Vec<Hit> {
        self.shared.hits.lock()[count..].to_vec()
    }

    /// Waits until a path was called so often.
    pub fn wait(&self, path: &str, count: usize) -> Vec<Hit> {
        self.wait_until(&format!("{count} calls of {path}"), path, |hits| {
            hits.len() >= count
        })
    }

    /// Waits until so many different tasks have come to a path.
    pub fn wait_tasks(&self, path: &str, count: usize) -> Vec<Hit> {
        self.wait_until(&format!("{count} tasks at {path}"), path, |hits| {
            by_task(hits).len() >= count
        })
    }

    /// Waits until the calls of a path are as they should be.
    pub fn wait_until(&self, what: &str, path: &str, enough: impl Fn(&[Hit]) -> bool) -> Vec<Hit> {
        let end = Instant::now() + SOON;
        let mut hits = self.shared.hits.lock();
        loop {
            let here: Vec<Hit> = hits
                .iter()
                .filter(|hit| hit.path == path)
                .cloned()
                .collect();
            if enough(&here) {
                return here;
            }
            let waited = self.shared.changed.wait_until(&mut hits, end);
            assert!(
                !waited.timed_out(),
                "{what}: only {} calls within {SOON:?}",
                here.len()
            );
        }
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.shared.closing.store(true, Ordering::Release);
        // Wakes the listener, which then sees that it is over.
        let _ = TcpStream::connect(self.address);
    }
}

impl Shared {
    fn serve(&self, mut stream: TcpStream) {
        let _ = stream.set_nodelay(true);
        while let Some(hit) = read_hit(&mut stream) {
            let answer = self.answer_for(&hit.path);
            let place = {
                let mut hits = self.hits.lock();
                hits.push(hit);
                hits.len() - 1
            };
            self.changed.notify_all();
            let (status, body) = match answer {
                Answer::Say(status, body) => (status, body),
                Answer::Later(time, status, body) => {
                    if hangs_up(&mut stream, Instant::now() + time, || false) {
                        return self.note_hung_up(place);
                    }
                    (status, body)
                }
                Answer::Held(gate) => {
                    if hangs_up(&mut stream, Instant::now() + 4 * SOON, || gate.is_open()) {
                        return self.note_hung_up(place);
                    }
                    (200, String::new())
                }
                Answer::Silence => {
                    hangs_up(&mut stream, Instant::now() + 4 * SOON, || false);
                    return self.note_hung_up(place);
                }
            };
            let head = format!(
                "HTTP/1.1 {status} told\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
                body.len()
            );
            if stream
                .write_all(format!("{head}{body}").as_bytes())
                .is_err()
            {
                return;
            }
        }
    }

    fn answer_for(&self, path: &str) -> Answer {
        let mut told = self.told.lock();
        match told.get_mut(path) {
            Some(answers) if answers.len() > 1 => answers.remove(0),
            Some(answers) => answers.first().cloned().unwrap_or_else(|| status(200)),
            None => status(404),
        }
    }

    fn note_hung_up(&self, place: usize) {
        self.hits.lock()[place].hung_up = Some(Instant::now());
        self.changed.notify_all();
    }
}

/// Waits until then, or until it is released; whether the caller hung up meanwhile.
fn hangs_up(stream: &mut TcpStream, end: Instant, released: impl Fn() -> bool) -> bool {
    loop {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() || released() {
            let _ = stream.set_read_timeout(None);
            return false;
        }
        let look = left.clamp(Duration::from_millis(1), Duration::from_millis(5));
        let _ = stream.set_read_timeout(Some(look));
        match stream.read(&mut [0; 64]) {
            Ok(0) => return true,
            Ok(_) => panic!("the caller sends more than its request"),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Err(_) => return true,
        }
    }
}

fn read_hit(stream: &mut TcpStream) -> Option<Hit> {
    let mut bytes = Vec::new();
    let mut part = [0; 16 * 1024];
    let mut more = |bytes: &mut Vec<u8>| {
        let read = stream.read(&mut part).ok().filter(|read| *read > 0)?;
        bytes.extend_from_slice(&part[..read]);
        Some(())
    };
    let head_end = loop {
        match find(&bytes, b"\r\n\r\n") {
            Some(at) => break at,
            None => more(&mut bytes)?,
        }
    };
    let head = String::from_utf8_lossy(&bytes[..head_end]).into_owned();
    let mut lines = head.lines();
    let mut first = lines.next()?.split(' ');
    let (method, path) = (first.next()?.to_owned(), first.next()?.to_owned());
    let headers: Vec<(String, String)> = lines
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
        .collect();
    let length = headers.iter().find(|(name, _)| name == "content-length");
    let length = length
        .and_then(|(_, value)| value.parse().ok())
        .unwrap_or(0);
    while bytes.len() < head_end + 4 + length {
        more(&mut bytes)?;
    }
    let (at_ms, at) = (now_ms(), Instant::now());
    let body = serde_json::from_slice(&bytes[head_end + 4..]).unwrap_or(Value::Null);
    Some(Hit {
        at_ms,
        at,
        method,
        path,
        headers,
        body,
        hung_up: None,
    })
}

/// Attempt numbers by task, in order of arrival.
pub fn by_task(hits: &[Hit]) -> HashMap<String, Vec<u64>> {
    let mut tasks: HashMap<String, Vec<u64>> = HashMap::new();
    for hit in hits {
        tasks.entry(hit.id()).or_default().push(hit.attempt());
    }
    tasks
}

/// What holds through every crash: nothing is early, no attempt starts twice, and what comes again comes with a
/// higher number. `due_ms` has the due time of each task that is known.
pub fn assert_sound(hits: &[Hit], due_ms: &HashMap<String, i64>) {
    for hit in hits {
        if let Some(due) = due_ms.get(&hit.id()) {
            assert!(
                hit.at_ms >= *due,
                "{} came {} ms early",
                hit.id(),
                due - hit.at_ms
            );
        }
    }
    for (task, attempts) in by_task(hits) {
        let mut in_order = attempts.clone();
        in_order.sort_unstable();
        in_order.dedup();
        assert_eq!(attempts, in_order, "attempts of {task}, as they came");
    }
}

//! A caller of the HTTP API: one connection per request, nothing hidden, nothing sent twice.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::{Value, json};

use super::{SOON, until};

/// Longest wait for an answer; a lease request may wait for itself.
const ANSWER_WAIT: Duration = Duration::from_secs(40);

/// Speaks to one service.
#[derive(Clone, Copy, Debug)]
pub struct Client {
    pub address: SocketAddr,
}

/// What was answered.
#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Reply {
    /// A header's value, by its name in lower case.
    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_str())
    }

    /// The body as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The body as JSON.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("{error}: {}", self.text()))
    }

    /// The body as JSON, if the status is this one.
    pub fn must(&self, status: u16) -> Value {
        assert_eq!(self.status, status, "{}", self.text());
        self.json()
    }

    /// Status and code, if it is a whole problem.
    pub fn problem(&self) -> (u16, String) {
        let kind = self.header("content-type").unwrap_or_default();
        assert_eq!(
            kind,
            "application/problem+json",
            "{} {}",
            self.status,
            self.text()
        );
        let body = self.json();
        assert_eq!(body["status"], self.status, "{body}");
        for field in ["type", "title", "detail", "code"] {
            let text = body[field].as_str().unwrap_or_default();
            assert!(!text.is_empty(), "{field} is missing: {body}");
        }
        (
            self.status,
            body["code"].as_str().unwrap_or_default().to_owned(),
        )
    }

    /// Reads one answer: to the end of its body, or to the end of the connection when no length is given.
    pub fn read(stream: &mut TcpStream) -> io::Result<Self> {
        let mut bytes = Vec::new();
        let head_end = loop {
            if let Some(at) = find(&bytes, b"\r\n\r\n") {
                break at;
            }
            if read_more(stream, &mut bytes)? == 0 {
                let seen = format!("the connection ended after {} bytes", bytes.len());
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, seen));
            }
        };
        let mut body = bytes.split_off(head_end + 4);
        let head = String::from_utf8_lossy(&bytes).into_owned();
        let mut lines = head.lines();
        let status = lines
            .next()
            .and_then(|line| line.split(' ').nth(1)?.parse().ok());
        let headers: Vec<(String, String)> = lines
            .filter_map(|line| line.split_once(':'))
            .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
            .collect();
        let value = |wanted: &str| {
            headers
                .iter()
                .find(|(name, _)| name == wanted)
                .map(|(_, value)| value.clone())
        };
        if value("transfer-encoding").is_some_and(|coding| coding == "chunked") {
            while !body.ends_with(b"\r\n0\r\n\r\n") && body != b"0\r\n\r\n" {
                if read_more(stream, &mut body)? == 0 {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
            }
            body = without_chunks(&body);
        } else if let Some(length) =
            value("content-length").and_then(|text| text.parse::<usize>().ok())
        {
            while body.len() < length {
                if read_more(stream, &mut body)? == 0 {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
            }
        } else {
            while read_more(stream, &mut body)? > 0 {}
        }
        Ok(Self {
            status: status.expect("a status line"),
            headers,
            body,
        })
    }
}

fn read_more(stream: &mut TcpStream, into: &mut Vec<u8>) -> io::Result<usize> {
    let mut part = [0; 16 * 1024];
    let read = loop {
        match stream.read(&mut part) {
            // This process was stopped for a while.
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            read => break read?,
        }
    };
    into.extend_from_slice(&part[..read]);
    Ok(read)
}

pub fn find(text: &[u8], part: &[u8]) -> Option<usize> {
    text.windows(part.len()).position(|window| window == part)
}

fn without_chunks(mut body: &[u8]) -> Vec<u8> {
    let mut whole = Vec::new();
    while let Some(line_end) = find(body, b"\r\n") {
        let size = String::from_utf8_lossy(&body[..line_end]).into_owned();
        let size = usize::from_str_radix(size.trim(), 16).expect("the size of a chunk");
        let start = line_end + 2;
        whole.extend_from_slice(&body[start..start + size]);
        body = &body[start + size + 2..];
    }
    whole
}

/// One segment of a path, percent-encoded.
pub fn segment(text: &str) -> String {
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_~".contains(byte);
    let one = |byte: u8| {
        if plain(&byte) {
            char::from(byte).to_string()
        } else {
            format!("%{byte:02X}")
        }
    };
    text.bytes().map(one).collect()
}

/// The path of a task by its key.
pub fn key_path(topic: &str, key: &str) -> String {
    format!("/v1/topics/{}/keys/{}", segment(topic), segment(key))
}

impl Client {
    /// A new connection.
    pub fn connect(&self) -> io::Result<TcpStream> {
        let stream = TcpStream::connect_timeout(&self.address, Duration::from_secs(5))?;
        stream.set_read_timeout(Some(ANSWER_WAIT))?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }

    /// Sends one request. An error means that nobody knows what became of it.
    pub fn send(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> io::Result<Reply> {
        self.send_on(self.connect()?, method, path, headers, body)
    }

    /// Asks whether the service is ready, and waits no longer than this for the answer.
    pub fn readiness(&self, within: Duration) -> io::Result<Reply> {
        let stream = self.connect()?;
        stream.set_read_timeout(Some(within.max(Duration::from_millis(1))))?;
        self.send_on(stream, "GET", "/readyz", &[], b"")
    }

    fn send_on(
        &self,
        mut stream: TcpStream,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> io::Result<Reply> {
        let mut request = format!(
            "{method} {path} HTTP/1.1\r\nhost: {}\r\nconnection: close\r\n",
            self.address
        );
        for (name, value) in headers {
            request.push_str(&format!("{name}: {value}\r\n"));
        }
        if !body.is_empty() || method != "GET" {
            request.push_str(&format!("content-length: {}\r\n", body.len()));
        }
        request.push_str("\r\n");
        let mut request = request.into_bytes();
        request.extend_from_slice(body);
        // Who refuses a large body may answer and hang up before it is sent; the answer is what counts.
        let sent = stream.write_all(&request);
        let answered = Reply::read(&mut stream);
        answered.or_else(|error| sent.and(Err(error)))
    }

    /// Sends JSON, with further headers.
    pub fn json(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &Value,
    ) -> io::Result<Reply> {
        let mut all = vec![("content-type", "application/json")];
        all.extend_from_slice(headers);
        self.send(method, path, &all, body.to_string().as_bytes())
    }

    pub fn get(&self, path: &str) -> Reply {
        let reply = self.send("GET", path, &[], b"");
        reply.unwrap_or_else(|error| panic!("GET {path}: {error}"))
    }

    pub fn post(&self, path: &str, body: &Value) -> Reply {
        let reply = self.json("POST", path, &[], body);
        reply.unwrap_or_else(|error| panic!("POST {path}: {error}"))
    }

    pub fn put(&self, path: &str, body: &Value) -> Reply {
        let reply = self.json("PUT", path, &[], body);
        reply.unwrap_or_else(|error| panic!("PUT {path}: {error}"))
    }

    /// Posts with an `Idempotency-Key`.
    pub fn post_once(&self, path: &str, key: &str, body: &Value) -> Reply {
        let reply = self.json("POST", path, &[("idempotency-key", key)], body);
        reply.unwrap_or_else(|error| panic!("POST {path}: {error}"))
    }

    /// Creates a task, which must be new, and gives it.
    pub fn made(&self, body: &Value) -> Value {
        self.post("/v1/tasks", body).must(201)
    }

    /// Creates tasks by the thousand, all of which must be new.
    pub fn made_many(&self, items: &[Value]) -> Vec<Value> {
        let mut made = Vec::with_capacity(items.len());
        for part in items.chunks(1000) {
            let answer = self
                .post("/v1/tasks/batch", &json!({"items": part}))
                .must(200);
            for item in answer["items"].as_array().expect("a list of items") {
                assert_eq!(item["status"], 201, "{item}");
                made.push(item["task"].clone());
            }
        }
        made
    }

    /// The whole task.
    pub fn task(&self, id: &Value) -> Value {
        self.get(&task_path(id)).must(200)
    }

    pub fn by_key(&self, topic: &str, key: &str) -> Value {
        self.get(&key_path(topic, key)).must(200)
    }

    /// Lets a verb happen to a task.
    pub fn verb(&self, verb: &str, id: &Value, body: &Value) -> Reply {
        self.post(&format!("{}/{verb}", task_path(id)), body)
    }

    pub fn verb_by_key(&self, verb: &str, topic: &str, key: &str, body: &Value) -> Reply {
        self.post(&format!("{}/{verb}", key_path(topic, key)), body)
    }

    /// Waits until the task is in this state, and gives it.
    pub fn wait_state(&self, id: &Value, state: &str) -> Value {
        let mut last = Value::Null;
        let what = format!("{id} is {state}");
        until(&what, SOON, || {
            last = self.task(id);
            (last["state"] == state).then(|| last.clone())
        })
    }

    /// A task's attempts, oldest first.
    pub fn attempts(&self, id: &Value) -> Vec<Value> {
        let answer = self.get(&format!("{}/attempts", task_path(id))).must(200);
        answer["items"]
            .as_array()
            .expect("a list of attempts")
            .clone()
    }

    /// All tasks of a list, over its pages.
    pub fn list(&self, query: &str) -> Vec<Value> {
        let mut all = Vec::new();
        let mut cursor = String::new();
        loop {
            let page = self.get(&format!("/v1/tasks?{query}{cursor}")).must(200);
            all.extend_from_slice(page["items"].as_array().expect("a list of items"));
            let Some(next) = page["next_cursor"].as_str() else {
                return all;
            };
            cursor = format!("&cursor={next}");
        }
    }

    /// Leases up to `max` tasks of a topic.
    pub fn lease(&self, topic: &str, max: u32, wait_ms: u64, lease: &str) -> Vec<Value> {
        let ask = json!({"topics": [topic], "max": max, "wait_ms": wait_ms, "lease": lease, "worker": "w1"});
        let answer = self.post("/v1/leases", &ask).must(200);
        answer["items"]
            .as_array()
            .expect("a list of leases")
            .clone()
    }

    /// Says something about a lease: the token of `lease`, and what else is in `body`.
    pub fn say(&self, verb: &str, lease: &Value, mut body: Value) -> Reply {
        body["token"] = lease["token"].clone();
        let id = lease["task"]["id"].as_str().expect("a leased task");
        self.post(&format!("/v1/leases/{id}/{verb}"), &body)
    }
}

fn task_path(id: &Value) -> String {
    format!(
        "/v1/tasks/{}",
        id.as_str().unwrap_or_else(|| panic!("{id} is no id"))
    )
}

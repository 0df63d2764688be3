//! A service that answers by script, for tests of everything above it.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use serde_json::Value;

/// What the service was asked.
pub(crate) struct Asked {
    /// Method and target, such as `GET /v1/tasks`.
    pub(crate) line: String,
    /// Headers in lower case, one a line.
    pub(crate) headers: String,
    pub(crate) body: Value,
}

pub(crate) struct Service {
    pub(crate) url: String,
    /// How many answers it gives.
    pub(crate) answers: usize,
    asked: Receiver<Asked>,
}

impl Service {
    /// A service that gives these answers (head after `HTTP/1.1 `, body), one a connection, and then is gone.
    pub(crate) fn answering(answers: &[(&str, &str)]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (tell, asked) = channel();
        let answers: Vec<_> = answers
            .iter()
            .map(|(h, b)| (h.to_string(), b.to_string()))
            .collect();
        let count = answers.len();
        thread::spawn(move || {
            let mut listener = Some(listener);
            for (number, (head, body)) in answers.into_iter().enumerate() {
                let (stream, _) = listener.as_ref().unwrap().accept().unwrap();
                if number + 1 == count {
                    // Gone before the last answer is: who has that finds nobody any more.
                    listener = None;
                }
                stream
                    .set_read_timeout(Some(Duration::from_secs(10)))
                    .unwrap();
                let mut reader = BufReader::new(&stream);
                let (mut line, mut headers, mut length) = (String::new(), String::new(), 0);
                reader.read_line(&mut line).unwrap();
                loop {
                    let mut header = String::new();
                    reader.read_line(&mut header).unwrap();
                    if header.trim().is_empty() {
                        break;
                    }
                    let header = header.to_ascii_lowercase();
                    if let Some(value) = header.strip_prefix("content-length:") {
                        length = value.trim().parse().unwrap();
                    }
                    headers.push_str(&header);
                }
                let mut sent = vec![0; length];
                reader.read_exact(&mut sent).unwrap();
                let answer = format!(
                    "HTTP/1.1 {head}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
                    body.len()
                );
                (&stream).write_all(answer.as_bytes()).unwrap();
                let line = line.trim_end().trim_end_matches(" HTTP/1.1").to_owned();
                let body = serde_json::from_slice(&sent).unwrap_or_default();
                let _ = tell.send(Asked {
                    line,
                    headers,
                    body,
                });
            }
        });
        Self {
            url,
            answers: count,
            asked,
        }
    }

    /// The next request that came in.
    pub(crate) fn asked(&self) -> Asked {
        self.asked.recv_timeout(Duration::from_secs(10)).unwrap()
    }
}

//! Against a receiver that does what the test says, byte by byte, on 127.0.0.1.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use tokio::runtime::{Builder, Runtime};

use super::*;
use crate::clock::Now;
use crate::executor::{AttemptReport, ReportSink};
use crate::ids::{AttemptToken, Slot, TaskId};
use crate::watchdog::{ChildId, Generation, named_arbiter};

/// Longest wait for anything that must happen.
const PATIENCE: Duration = Duration::from_secs(10);
/// A time limit that no test reaches.
const LONG: DurationMs = DurationMs::secs(60);

/// What the receiver saw, and what the executor reported.
#[derive(Debug)]
enum Seen {
    Request(String),
    Closed,
}

struct Reports {
    started: Sender<Now>,
    ended: Sender<AttemptReport>,
}

impl ReportSink for Reports {
    fn started(&self, _: TaskId, _: AttemptToken, at: Now) {
        self.started.send(at).ok();
    }

    fn ended(&self, report: AttemptReport) {
        self.ended.send(report).ok();
    }
}

/// An executor with its runtime, and the other end of its reports.
struct Bench {
    push: HttpPush,
    sink: Arc<dyn ReportSink>,
    clock: Clock,
    started: Receiver<Now>,
    ended: Receiver<AttemptReport>,
    runtime: Option<Runtime>,
}

impl Bench {
    fn new() -> Self {
        Self::with(Clock::machine(), true)
    }

    fn with(clock: Clock, allow_loopback: bool) -> Self {
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("duetime-io")
            .enable_all()
            .build()
            .unwrap();
        let (started_to, started) = channel();
        let (ended_to, ended) = channel();
        let sink = Arc::new(Reports {
            started: started_to,
            ended: ended_to,
        });
        let egress = EgressPolicy {
            allow_loopback,
            allow_private: false,
        };
        let options = PushOptions {
            egress,
            root_certificates: None,
            mailbox_max: 16,
        };
        let push = HttpPush::new(runtime.handle().clone(), clock.clone(), &options).unwrap();
        Self {
            push,
            sink,
            clock,
            started,
            ended,
            runtime: Some(runtime),
        }
    }

    fn attempt(&self, call: HttpCall, time: DurationMs) -> RunAttempt {
        RunAttempt {
            task: TaskId::with_tail(Slot::of_hash(7), WallMs(1), 7),
            token: AttemptToken(3),
            deadline: self.clock.now().mono.after(time),
            grace: DurationMs(0),
            cancel: CancellationToken::new(),
            work: Work::Http(call),
        }
    }

    fn owed(&self, attempt: &RunAttempt) -> OwedReport {
        OwedReport::new(attempt, Arc::clone(&self.sink), self.clock.clone())
    }

    fn run(&self, attempt: RunAttempt) {
        let owed = self.owed(&attempt);
        self.push.begin(attempt, owed);
    }

    fn report(&self) -> AttemptReport {
        let report = self.ended.recv_timeout(PATIENCE).unwrap();
        assert_eq!(report.token, AttemptToken(3));
        report
    }

    fn outcome_of(&self, call: HttpCall, time: DurationMs) -> Outcome {
        self.run(self.attempt(call, time));
        self.report().outcome
    }

    /// The failure of a call to a receiver that plays `script`.
    fn failure_from(&self, script: &[u8]) -> Failure {
        let (url, _seen) = receiver(script);
        failed(self.outcome_of(get(&url), LONG))
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// A receiver for one connection: reads a request, sends `script`, and says when the peer has closed.
fn receiver(script: &[u8]) -> (String, Receiver<Seen>) {
    let script = script.to_vec();
    serve(move |stream, seen| {
        seen.send(Seen::Request(read_request(stream))).ok();
        stream.write_all(&script).ok();
        wait_for_close(stream);
        seen.send(Seen::Closed).ok();
    })
}

/// Lets `play` speak with the first that connects. Gives the URL to connect to, and what `play` tells.
fn serve(
    play: impl FnOnce(&mut TcpStream, &Sender<Seen>) + Send + 'static,
) -> (String, Receiver<Seen>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/hook", listener.local_addr().unwrap());
    let (to, seen) = channel();
    thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        play(&mut stream, &to);
    });
    (url, seen)
}

/// Reads up to the end of the head, and of the body when its length is given.
fn read_request(stream: &mut TcpStream) -> String {
    let mut text = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        let read = stream.read(&mut buffer).unwrap_or(0);
        text.extend_from_slice(&buffer[..read]);
        let so_far = String::from_utf8_lossy(&text).into_owned();
        let length = so_far
            .lines()
            .find_map(|line| line.strip_prefix("content-length: ")?.parse::<usize>().ok());
        let whole = so_far
            .split_once("\r\n\r\n")
            .is_some_and(|(_, body)| body.len() >= length.unwrap_or(0));
        if whole || read == 0 {
            return so_far;
        }
    }
}

/// Panics when the peer has not closed in time.
fn wait_for_close(stream: &mut TcpStream) {
    let mut buffer = [0; 4096];
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return,
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return,
            Err(error) => panic!("the peer has not closed: {error}"),
        }
    }
}

fn request_seen(seen: &Receiver<Seen>) -> String {
    match seen.recv_timeout(PATIENCE).unwrap() {
        Seen::Request(request) => request,
        Seen::Closed => panic!("closed without a request"),
    }
}

fn assert_closed(seen: &Receiver<Seen>) {
    assert!(matches!(seen.recv_timeout(PATIENCE).unwrap(), Seen::Closed));
}

fn answer(head: &str, body: &[u8]) -> Vec<u8> {
    let head = format!("HTTP/1.1 {head}\r\ncontent-length: {}\r\n\r\n", body.len());
    [head.as_bytes(), body].concat()
}

fn get(url: &str) -> HttpCall {
    HttpCall {
        method: Method::GET,
        url: Url::parse(url).unwrap(),
        headers: HeaderMap::new(),
        body: Bytes::new(),
        expect_status: Vec::new(),
        success_if: None,
        complete_by: None,
        question: None,
    }
}

fn post(url: &str, body: &'static str, headers: &[(&str, &str)]) -> HttpCall {
    HttpCall {
        method: Method::POST,
        headers: header_map(&owned(headers)).unwrap(),
        body: Bytes::from_static(body.as_bytes()),
        ..get(url)
    }
}

fn owned(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
    pairs.iter().map(owned).collect()
}

fn failed(outcome: Outcome) -> Failure {
    match outcome {
        Outcome::Failed(failure) => failure,
        other => panic!("{other:?} is no failure"),
    }
}

fn succeeded(result: Option<&'static str>) -> Outcome {
    Outcome::Succeeded {
        result: result.map(|text| Bytes::from_static(text.as_bytes())),
        result_dropped: false,
    }
}

const RESULT_DROPPED: Outcome = Outcome::Succeeded {
    result: None,
    result_dropped: true,
};

#[test]
fn the_json_answer_of_a_2xx_becomes_the_result() {
    let bench = Bench::new();
    let (url, _seen) = receiver(&answer(
        "201 Created\r\ncontent-type: text/plain",
        b" {\"paid\":true}\n",
    ));
    bench.run(bench.attempt(get(&url), LONG));
    let report = bench.report();
    assert_eq!(report.outcome, succeeded(Some("{\"paid\":true}")));
    let started = bench.started.recv_timeout(PATIENCE).unwrap();
    assert_eq!(report.started, Some(started));
    assert!(started.mono <= report.ended.mono);
}

#[test]
fn an_answer_that_is_empty_or_no_json_gives_no_result() {
    let bench = Bench::new();
    let too_deep = "[".repeat(JSON_DEPTH_MAX + 1) + &"]".repeat(JSON_DEPTH_MAX + 1);
    for body in [
        "",
        "OK",
        "{\"open\":",
        "\"\\ud800\"",
        "1e999",
        "{} {}",
        &too_deep,
    ] {
        let (url, _seen) = receiver(&answer("200 OK", body.as_bytes()));
        assert_eq!(bench.outcome_of(get(&url), LONG), succeeded(None), "{body}");
    }
}

#[test]
fn brackets_in_strings_are_not_nesting() {
    assert_eq!(depth(br#"{"a":["[[[{{{\"[[["]}"#), 2);
    assert_eq!(depth(br#"["\\",[[]]]"#), 3);
    assert_eq!(depth(b"7"), 0);
}

#[test]
fn the_request_goes_out_as_it_was_given() {
    let bench = Bench::new();
    let (url, seen) = receiver(&answer("204 No Content", b""));
    let headers = [
        ("webhook-id", "0192.1.0"),
        ("user-agent", "duetime/0.1.0"),
        ("accept", "application/json"),
        ("content-type", "application/json"),
        ("X-Twice", "one"),
        ("X-Twice", "two"),
    ];
    let call = post(&format!("{url}?a=1"), "{\"id\":7}", &headers);
    assert_eq!(bench.outcome_of(call, LONG), succeeded(None));

    let request = request_seen(&seen);
    let (head, body) = request.split_once("\r\n\r\n").unwrap();
    assert_eq!(body, "{\"id\":7}");
    let mut lines: Vec<&str> = head.lines().collect();
    assert_eq!(lines.remove(0), "POST /hook?a=1 HTTP/1.1");
    lines.retain(|line| !line.starts_with("host: "));
    lines.sort_unstable();
    let expected = [
        "accept: application/json",
        "content-length: 8",
        "content-type: application/json",
        "user-agent: duetime/0.1.0",
        "webhook-id: 0192.1.0",
        "x-twice: one",
        "x-twice: two",
    ];
    assert_eq!(lines, expected);
}

#[test]
fn one_connection_serves_one_attempt_after_the_other() {
    let bench = Bench::new();
    let (url, seen) = serve(|stream, seen| {
        for _ in 0..2 {
            seen.send(Seen::Request(read_request(stream))).ok();
            stream.write_all(&answer("200 OK", b"1")).unwrap();
        }
    });
    for _ in 0..2 {
        assert_eq!(bench.outcome_of(get(&url), LONG), succeeded(Some("1")));
        request_seen(&seen);
    }
}

#[test]
fn a_500_is_a_retryable_failure_with_an_excerpt() {
    let failure =
        Bench::new().failure_from(&answer("500 Internal Server Error", b"no\r\n\x1b[31mdisk"));
    assert_eq!(failure.code, "http_500");
    assert_eq!(failure.message, "500 no   [31mdisk");
    assert!(failure.retryable);
    assert_eq!(failure.retry_after, None);
}

#[test]
fn a_long_refusal_is_cut() {
    let failure = Bench::new().failure_from(&answer("422 No", "é".repeat(100 * 1024).as_bytes()));
    assert_eq!(
        failure.message,
        format!("422 {}", "é".repeat(EXCERPT_CHARS_MAX))
    );
}

#[test]
fn a_refusal_that_breaks_off_is_still_a_refusal() {
    let bench = Bench::new();
    let (url, _seen) = serve(|stream, _| {
        read_request(stream);
        stream
            .write_all(b"HTTP/1.1 503 No\r\ncontent-length: 99\r\n\r\nbusy")
            .unwrap();
    });
    let failure = failed(bench.outcome_of(get(&url), LONG));
    assert_eq!(
        (failure.code.as_str(), failure.message.as_str()),
        ("http_503", "503 busy")
    );
}

#[test]
fn a_410_is_not_tried_again() {
    let failure = Bench::new().failure_from(&answer("410 Gone", b""));
    assert_eq!(failure.code, "http_410");
    assert!(!failure.retryable);
}

#[test]
fn the_expected_status_codes_replace_2xx() {
    let bench = Bench::new();
    let call = |status: &str| {
        let (url, _seen) = receiver(&answer(status, b""));
        let expect_status = vec![404, 303];
        bench.outcome_of(
            HttpCall {
                expect_status,
                ..get(&url)
            },
            LONG,
        )
    };
    assert_eq!(call("404 Not Found"), succeeded(None));
    assert_eq!(call("303 See Other"), succeeded(None));
    assert_eq!(failed(call("200 OK")).code, "http_200");
}

#[test]
fn success_if_is_asked_once_the_status_is_as_expected() {
    let bench = Bench::new();
    let outcome = |success_if: &str, answer: &[u8]| {
        let (url, _seen) = receiver(answer);
        let success_if = Some(success_if.to_owned());
        let headers = header_map(&owned(&[("x-token", "a-long-secret")])).unwrap();
        bench.outcome_of(
            HttpCall {
                success_if,
                headers,
                ..get(&url)
            },
            LONG,
        )
    };
    let paid = answer("200 OK\r\nX-Count: 1\r\nx-count: 2", b"{\"paid\":true}");
    for success_if in [
        "body.paid",
        "status == 200 && body == {'paid': true}",
        "headers['x-count'] == '1, 2'",
    ] {
        let outcome = outcome(success_if, &paid);
        assert_eq!(outcome, succeeded(Some("{\"paid\":true}")), "{success_if}");
    }
    assert_eq!(
        outcome("body == 'OK'", &answer("200 OK", b" OK\n")),
        succeeded(None)
    );
    assert_eq!(
        outcome("body == null", &answer("200 OK", b"")),
        succeeded(None)
    );
    // What is not read may be as large as it likes.
    let large = answer("200 OK", &[b'x'; 100 * 1024]);
    assert_eq!(outcome("status == 200", &large), RESULT_DROPPED);
    assert_eq!(
        failed(outcome("true", &answer("404 No", b""))).code,
        "http_404"
    );

    let refused = answer(
        "200 OK\r\nretry-after: 7",
        b"{\"paid\":false,\"by\":\"a-long-secret\"}",
    );
    let failure = failed(outcome("body.paid", &refused));
    assert_eq!(failure.code, "condition_false");
    let said = "success_if is false: 200 {\"paid\":false,\"by\":\"***\"}";
    assert_eq!(failure.message, said);
    assert_eq!(failure.retry_after, Some(DurationMs(7_000)));
    assert!(failure.retryable && !failure.in_doubt);

    for (success_if, answer, says) in [
        ("body.paid", answer("200 OK", b"{}"), "paid"),
        ("body.paid", answer("200 OK", b"plain"), "success_if: "),
        ("body.by < 1", refused, "success_if: "),
        ("body == 1", large, "`body` is larger than the 8192 bytes"),
        (
            "status",
            answer("200 OK", b""),
            "gives int, where true or false is needed",
        ),
    ] {
        let failure = failed(outcome(success_if, &answer));
        assert_eq!(failure.code, "condition_error", "{success_if}");
        assert!(failure.message.contains(says), "{}", failure.message);
        assert!(
            !failure.message.contains("a-long-secret"),
            "{}",
            failure.message
        );
        // Nobody can tell whether it was done.
        assert!(failure.retryable && failure.in_doubt, "{success_if}");
    }
}

#[test]
fn a_202_with_a_time_means_that_the_work_is_completed_later() {
    let bench = Bench::new();
    let ask = |body: &'static [u8], given: Option<DurationMs>| {
        let (url, _seen) = receiver(&answer("202 Accepted", body));
        let call = HttpCall {
            complete_by: given,
            success_if: Some("body.done".to_owned()),
            ..get(&url)
        };
        bench.outcome_of(call, LONG)
    };
    let accepted = |secs| Outcome::Accepted {
        complete_by: DurationMs::secs(secs),
    };
    let given = Some(DurationMs::secs(60));
    assert_eq!(ask(br#"{"complete_by": "PT10M"}"#, None), accepted(600));
    assert_eq!(ask(br#"{"complete_by": "PT10M"}"#, given), accepted(600));
    assert_eq!(ask(b"", given), accepted(60), "as the task says");
    assert_eq!(ask(br#"{"complete_by": null}"#, given), accepted(60));
    assert_eq!(
        ask(br#"{"done": true}"#, None),
        succeeded(Some(r#"{"done": true}"#))
    );
    for unclear in [
        &br#"{"complete_by": "soon"}"#[..],
        br#"{"complete_by": 600}"#,
        br#"{"complete_by": "PT0S"}"#,
        br#"{"complete_by": "P31D"}"#,
    ] {
        let failure = failed(ask(unclear, given));
        assert_eq!(
            (failure.code.as_str(), failure.in_doubt),
            ("protocol", true)
        );
    }
    let (url, _seen) = receiver(&answer("202 Accepted", br#"{"complete_by": "PT1M"}"#));
    let call = HttpCall {
        expect_status: vec![200],
        ..get(&url)
    };
    assert_eq!(failed(bench.outcome_of(call, LONG)).code, "http_202");
}

#[test]
fn a_question_is_answered_with_done_failed_or_not_yet() {
    let bench = Bench::new();
    let ask = |head: &str, body: &'static [u8], failed_if: Option<&str>| {
        let (url, _seen) = receiver(&answer(head, body));
        let question = Some(Conditions {
            done_if: "body.status == 'done'".to_owned(),
            failed_if: failed_if.map(str::to_owned),
        });
        let call = HttpCall {
            question,
            ..get(&url)
        };
        bench.outcome_of(call, LONG)
    };
    let refused = Some("body.status == 'refused'");
    let done = br#"{"status":"done"}"#;
    assert_eq!(
        ask("200 OK", done, refused),
        succeeded(Some(r#"{"status":"done"}"#))
    );
    let Outcome::NotYet { answer } = ask("200 OK", br#"{"status":"wait"}"#, refused) else {
        panic!("it is not done");
    };
    assert_eq!(answer, r#"200 {"status":"wait"}"#);
    let Outcome::NotYet { .. } = ask(
        "202 Accepted",
        br#"{"status":"wait","complete_by":"PT1M"}"#,
        None,
    ) else {
        panic!("a question is not taken on");
    };
    let failure = failed(ask("200 OK", br#"{"status":"refused"}"#, refused));
    assert_eq!(
        (failure.code.as_str(), failure.retryable),
        ("failed_if", false)
    );
    for (head, body, code) in [
        ("200 OK", &br#"{"odd":1}"#[..], "condition_error"),
        ("500 No", done, "http_500"),
        ("404 No", done, "http_404"),
    ] {
        let failure = failed(ask(head, body, refused));
        assert_eq!((failure.code.as_str(), failure.retryable), (code, true));
    }
}

#[test]
fn a_redirect_is_a_failure_and_is_not_followed() {
    let bench = Bench::new();
    let (elsewhere, seen_elsewhere) = receiver(&answer("200 OK", b""));
    let failure = bench.failure_from(&answer(&format!("302 Found\r\nlocation: {elsewhere}"), b""));
    assert_eq!(failure.code, "redirect");
    assert!(failure.retryable);
    assert!(seen_elsewhere.try_recv().is_err());
}

#[test]
fn retry_after_is_read_in_both_forms_and_capped() {
    let failure = Bench::new().failure_from(&answer("429 Slow Down\r\nretry-after: 7", b""));
    assert_eq!(failure.retry_after, Some(DurationMs(7_000)));

    // 1994-11-06T08:49:07Z, half a minute before the date below.
    let now = WallMs(784_111_747_000);
    for (text, expected_ms) in [
        ("0", Some(0)),
        ("120", Some(120_000)),
        ("3601", Some(3_600_000)),
        ("99999999999999999999999", Some(3_600_000)),
        ("Sun, 06 Nov 1994 08:49:37 GMT", Some(30_000)),
        ("Sun, 06 Nov 1994 08:49:00 GMT", Some(0)),
        ("Tue, 06 Nov 2035 08:49:37 GMT", Some(3_600_000)),
        ("-5", None),
        ("soon", None),
        ("", None),
    ] {
        let headers = HeaderMap::from_iter([(RETRY_AFTER, HeaderValue::from_static(text))]);
        assert_eq!(
            retry_after(&headers, now),
            expected_ms.map(DurationMs),
            "{text}"
        );
    }
    assert_eq!(retry_after(&HeaderMap::new(), now), None);
}

#[test]
fn at_the_deadline_the_receiver_sees_the_connection_close() {
    let bench = Bench::new();
    let (url, seen) = receiver(b"");
    bench.run(bench.attempt(get(&url), DurationMs(200)));
    request_seen(&seen);
    let report = bench.report();
    assert_eq!(report.outcome, Outcome::TimedOut);
    assert!(report.ended.mono.since(report.started.unwrap().mono) >= DurationMs(150));
    assert_closed(&seen);
}

#[test]
fn the_deadline_also_cuts_an_answer_that_drips() {
    let bench = Bench::new();
    let (url, seen) = receiver(b"HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\n{\"a\":");
    assert_eq!(
        bench.outcome_of(get(&url), DurationMs(200)),
        Outcome::TimedOut
    );
    request_seen(&seen);
    assert_closed(&seen);
}

#[test]
fn the_deadline_follows_a_clock_that_a_test_moves() {
    let bench = Bench::with(Clock::by_hand(WallMs(0)), true);
    let (url, seen) = receiver(b"");
    bench.run(bench.attempt(get(&url), LONG));
    request_seen(&seen);
    bench.clock.advance(DurationMs(59_999));
    assert!(bench.ended.try_recv().is_err());
    bench.clock.advance(DurationMs(1));
    let report = bench.report();
    assert_eq!(report.outcome, Outcome::TimedOut);
    assert_eq!(report.ended.mono, MonoMs(60_000));
    assert_closed(&seen);
}

#[test]
fn an_answer_that_came_while_the_process_stood_still_counts() {
    let bench = Bench::with(Clock::by_hand(WallMs(0)), true);
    let (come, comes) = channel();
    let (url, seen) = serve(move |stream, seen| {
        seen.send(Seen::Request(read_request(stream))).ok();
        comes.recv().unwrap();
        stream.write_all(&answer("200 OK", b"7")).ok();
        wait_for_close(stream);
    });
    bench.run(bench.attempt(get(&url), LONG));
    request_seen(&seen);
    bench.clock.advance(DurationMs(2 * LONG.0));
    come.send(()).unwrap();
    assert_eq!(bench.report().outcome, succeeded(Some("7")));
}

#[test]
fn a_cancel_closes_the_connection() {
    let bench = Bench::new();
    let (url, seen) = receiver(b"");
    let attempt = bench.attempt(get(&url), LONG);
    let cancel = attempt.cancel.clone();
    bench.run(attempt);
    request_seen(&seen);
    cancel.cancel();
    assert_eq!(bench.report().outcome, Outcome::Cancelled);
    assert_closed(&seen);
}

#[test]
fn nothing_is_sent_past_the_deadline_or_after_a_cancel() {
    let bench = Bench::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());

    let late = bench.attempt(get(&url), DurationMs(0));
    let cancelled = bench.attempt(get(&url), LONG);
    cancelled.cancel.cancel();
    for (attempt, expected) in [(late, Outcome::GivenBack), (cancelled, Outcome::Cancelled)] {
        bench.run(attempt);
        let report = bench.report();
        assert_eq!(report.outcome, expected);
        assert_eq!(report.started, None);
    }
    assert!(bench.started.try_recv().is_err());
    assert_eq!(
        listener.accept().unwrap_err().kind(),
        io::ErrorKind::WouldBlock
    );
}

#[test]
fn an_answer_of_exactly_the_limit_is_kept() {
    let text = format!("\"{}\"", "x".repeat(RESULT_BYTES_MAX - 2));
    let (url, _seen) = receiver(&answer("200 OK", text.as_bytes()));
    let expected = Outcome::Succeeded {
        result: Some(Bytes::from(text)),
        result_dropped: false,
    };
    assert_eq!(Bench::new().outcome_of(get(&url), LONG), expected);
}

#[test]
fn a_larger_answer_is_success_without_its_result() {
    let bench = Bench::new();
    let text = format!("\"{}\"", "x".repeat(100 * 1024));
    let (url, _seen) = receiver(&answer("200 OK", text.as_bytes()));
    assert_eq!(bench.outcome_of(get(&url), LONG), RESULT_DROPPED);
}

#[test]
fn an_endless_answer_is_cut() {
    let bench = Bench::new();
    let (url, seen) = serve(|stream, seen| {
        read_request(stream);
        stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").unwrap();
        // Ends because the peer closes; a peer that does not, and reads no more, ends it in the write time limit.
        let error = loop {
            if let Err(error) = stream.write_all(&[b'x'; 8192]) {
                break error;
            }
        };
        assert_ne!(error.kind(), io::ErrorKind::WouldBlock);
        seen.send(Seen::Closed).ok();
    });
    assert_eq!(bench.outcome_of(get(&url), LONG), RESULT_DROPPED);
    assert_closed(&seen);
}

#[test]
fn an_answer_that_is_no_http_is_a_protocol_failure() {
    let failure = Bench::new().failure_from(b"SSH-2.0-OpenSSH_9.7\r\n\r\n");
    assert_eq!(failure.code, "protocol");
    assert!(failure.retryable);
    assert!(
        !failure.message.contains("127.0.0.1"),
        "{}",
        failure.message
    );
}

#[test]
fn a_connection_closed_midway_is_a_protocol_failure() {
    let bench = Bench::new();
    for script in [
        "",
        "HTTP/1.1 200 OK\r\n",
        "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{\"a\"",
    ] {
        let (url, _seen) = serve(move |stream, _| {
            read_request(stream);
            stream.write_all(script.as_bytes()).unwrap();
        });
        assert_eq!(
            failed(bench.outcome_of(get(&url), LONG)).code,
            "protocol",
            "{script}"
        );
    }
}

#[test]
fn a_port_that_nobody_listens_on_is_a_connect_failure() {
    let free = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let failure =
        failed(Bench::new().outcome_of(get(&format!("http://{free}/secret?token=1")), LONG));
    assert_eq!(failure.code, "connect");
    assert!(failure.retryable);
    assert!(!failure.message.contains("token"), "{}", failure.message);
}

#[test]
fn a_name_without_an_address_is_a_dns_failure() {
    // A label of 64 characters cannot be asked for, so no name server is.
    let url = format!("http://{}.invalid/", "x".repeat(64));
    assert_eq!(failed(Bench::new().outcome_of(get(&url), LONG)).code, "dns");
}

#[test]
fn a_handshake_that_breaks_off_or_meets_no_tls_is_a_tls_failure() {
    let bench = Bench::new();
    for script in ["", "HTTP/1.1 400 Bad Request\r\n\r\n"] {
        let (url, _seen) = serve(move |stream, _| {
            // Only after the client's first flight, so that the close is not a reset.
            let mut hello = [0; 16 * 1024];
            assert_ne!(stream.read(&mut hello).unwrap(), 0);
            stream.write_all(script.as_bytes()).unwrap();
        });
        let url = url.replace("http://", "https://");
        assert_eq!(
            failed(bench.outcome_of(get(&url), LONG)).code,
            "tls",
            "{script}"
        );
    }
}

#[test]
fn a_blocked_address_is_not_reached_as_a_literal_nor_by_name() {
    let bench = Bench::with(Clock::machine(), false);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let port = listener.local_addr().unwrap().port();
    for host in ["127.0.0.1", "[::ffff:127.0.0.1]", "localhost", "10.0.0.1"] {
        let failure = failed(bench.outcome_of(get(&format!("http://{host}:{port}/")), LONG));
        assert_eq!(failure.code, "blocked_address", "{host}");
        assert!(!failure.retryable);
    }
    assert_eq!(
        listener.accept().unwrap_err().kind(),
        io::ErrorKind::WouldBlock
    );
}

#[test]
fn what_a_receiver_echoes_of_our_headers_stays_out_of_the_message() {
    let bench = Bench::new();
    let echo = b"denied: Bearer s3cr3t-t0ken (token s3cr3t-t0ken, id 12)";
    let (url, _seen) = receiver(&answer("401 No", echo));
    let call = post(
        &url,
        "",
        &[("authorization", "Bearer s3cr3t-t0ken"), ("x-id", "12")],
    );
    let failure = failed(bench.outcome_of(call.clone(), LONG));
    assert_eq!(failure.message, "401 denied: *** (token ***, id 12)");
    assert!(!format!("{call:?}").contains("s3cr3t"));
}

#[test]
fn a_header_that_cannot_be_sent_fails_without_showing_its_value() {
    let failure = header_map(&owned(&[("x-note", "a\r\nsecret: b")])).unwrap_err();
    assert_eq!(
        (failure.code.as_str(), failure.retryable),
        ("protocol", false)
    );
    assert!(!failure.message.contains("secret"));
}

#[test]
fn a_message_is_cut_to_what_is_kept() {
    let failure = failure("protocol", "é".repeat(NOTE_BYTES_MAX));
    assert_eq!(failure.message.len(), NOTE_BYTES_MAX);
}

#[test]
fn a_stopped_runtime_still_gives_a_report() {
    let mut bench = Bench::new();
    let (url, seen) = receiver(b"");
    bench.run(bench.attempt(get(&url), LONG));
    request_seen(&seen);
    bench.runtime.take().unwrap().shutdown_background();
    let report = bench.report();
    assert_eq!(report.outcome, Outcome::Unknown);
    assert!(report.started.is_some());

    bench.run(bench.attempt(get(&url), LONG));
    let report = bench.report();
    assert_eq!(report.outcome, Outcome::GivenBack);
    assert_eq!(report.started, None);
}

#[test]
fn the_actor_runs_what_it_is_sent() {
    let bench = Bench::new();
    let (url, _seen) = receiver(&answer("200 OK", b"7"));
    actix::System::new().block_on(async {
        let pulse = Arc::new(Pulse::new(bench.clock.now().mono));
        let death = DeathNotice::new(ChildId(0), Generation(1), drop);
        let child = ChildContext::unwatched(pulse, death);
        let kill = child.kill.clone();
        let thread = named_arbiter("http-push").unwrap();
        let door = HttpPushActor::start_on(bench.push.clone(), child, thread);
        let attempt = || {
            let attempt = bench.attempt(get(&url), LONG);
            let owed = bench.owed(&attempt);
            (attempt, owed)
        };
        let (run, owed) = attempt();
        door.run(vec![(run, owed)]);
        assert_eq!(bench.report().outcome, succeeded(Some("7")));
        // Once it was told to leave, what it has not begun is given back at once.
        kill.throw();
        let (run, owed) = attempt();
        door.run(vec![(run, owed)]);
        assert_eq!(bench.report().outcome, Outcome::GivenBack);
    });
}

#[test]
fn many_attempts_at_once_give_one_report_each() {
    let bench = Bench::new();
    let seen: Vec<_> = (0..32)
        .map(|_| {
            let (url, seen) = receiver(&answer("200 OK\r\nconnection: close", b"1"));
            bench.run(bench.attempt(get(&url), LONG));
            seen
        })
        .collect();
    for seen in &seen {
        assert_eq!(bench.report().outcome, succeeded(Some("1")));
        request_seen(seen);
    }
    assert!(bench.ended.try_recv().is_err());
}

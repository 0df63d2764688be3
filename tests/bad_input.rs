//! What is wrong gets a problem that says so, nothing of it is stored, and the service goes on.

#[expect(dead_code, reason = "each file of tests uses its part")]
mod support;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use support::client::Reply;
use support::service::{Service, Shared};
use support::{iso, now_ms, push};

static SHARED: Shared = Shared::new();

fn service() -> Arc<Service> {
    SHARED.service()
}

/// The service as it must be afterwards: of this topic nothing is stored, it is ready, and it did not panic.
fn assert_goes_on(api: &Service, topic: &str) {
    assert_eq!(
        api.list(&format!("topic={topic}")),
        [json!(null); 0],
        "nothing is stored"
    );
    assert_eq!(api.get("/readyz").status, 200);
    assert!(!api.log().contains("panicked"), "{}", api.log());
    let good = json!({"topic": format!("{topic}.good"), "delay": "PT1H", "action": {"none": {}}});
    api.made(&good);
}

fn assert_no_debug_text(reply: &Reply) {
    let text = reply.text();
    for word in ["panicked", "src/", "unwrap", "RUST_BACKTRACE", "Err("] {
        assert!(!text.contains(word), "{text}");
    }
}

/// A good task of that topic, with one field set or, by null, taken away.
fn good_but(topic: &str, field: &str, value: Value) -> Value {
    let mut body = json!({"topic": topic, "delay": "PT1H", "action": {"none": {}}});
    if field == "due_at" {
        body.as_object_mut().map(|fields| fields.remove("delay"));
    }
    body[field] = value;
    body
}

fn assert_refused(api: &Service, what: &str, body: &Value, pointer: &str) -> Reply {
    let reply = api.post("/v1/tasks", body);
    assert_eq!(reply.problem().0, 422, "{what}");
    let errors = reply.json()["errors"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    let pointers: Vec<&str> = errors
        .iter()
        .filter_map(|error| error["pointer"].as_str())
        .collect();
    assert!(
        pointers.contains(&pointer),
        "{what}: {pointer} is not in {pointers:?}"
    );
    assert!(
        errors
            .iter()
            .all(|error| !error["detail"].as_str().unwrap_or_default().is_empty()),
        "{what}"
    );
    assert_no_debug_text(&reply);
    reply
}

#[test]
fn a_field_that_is_not_valid_is_named_by_its_pointer() {
    let (api, topic) = (service(), "bad.fields");
    let in_11_years = iso(now_ms() + 11 * 366 * 86_400_000);
    for (field, value, pointer) in [
        ("dely", json!("PT1S"), "/dely"),
        (
            "retry",
            json!({"fixed": "PT1S", "maxattempts": 3}),
            "/retry/maxattempts",
        ),
        ("topic", json!(7), "/topic"),
        ("topic", json!(""), "/topic"),
        ("topic", json!("t".repeat(200)), "/topic"),
        ("topic", json!("t".repeat(129)), "/topic"),
        ("topic", json!("ü".repeat(65)), "/topic"),
        ("topic", json!("a\nb"), "/topic"),
        ("topic", json!("a\u{0}b"), "/topic"),
        ("topic", Value::Null, "/topic"),
        ("key", json!(123), "/key"),
        ("key", json!("k".repeat(257)), "/key"),
        ("key", json!("a\u{7f}b"), "/key"),
        ("delay", json!(5), "/delay"),
        ("delay", json!("soon"), "/delay"),
        ("delay", json!(""), "/delay"),
        ("delay", json!("-PT1S"), "/delay"),
        ("delay", json!("PT-1S"), "/delay"),
        ("delay", json!("P11Y"), "/delay"),
        ("delay", json!("P1M"), "/delay"),
        ("delay", json!("P3661D"), "/delay"),
        ("delay", json!("PT2147483648S"), "/delay"),
        ("delay", json!("PT99999999999999999999S"), "/delay"),
        ("due_at", json!("2027-06-01T12:00:00"), "/due_at"),
        ("due_at", json!("2027-02-30T12:00:00Z"), "/due_at"),
        ("due_at", json!("2027-06-01"), "/due_at"),
        ("due_at", json!(in_11_years), "/due_at"),
        ("due_at", json!(1_800_000_000), "/due_at"),
        ("payload", json!("x".repeat(300 << 10)), "/payload"),
        ("delivery", json!("exactly_once"), "/delivery"),
        ("on_existing", json!("ignore"), "/on_existing"),
        ("class", json!(1), "/class"),
        ("tags", json!({"a": 1}), "/tags/a"),
        (
            "tags",
            (0..17).map(|n| (format!("t{n}"), json!("v"))).collect(),
            "/tags",
        ),
        ("facts", json!([1]), "/facts"),
        (
            "retry",
            json!({"fixed": "PT1S", "max_attempts": 0}),
            "/retry/max_attempts",
        ),
        (
            "retry",
            json!({"fixed": "PT1S", "max_attempts": -1}),
            "/retry/max_attempts",
        ),
        (
            "retry",
            json!({"fixed": "PT1S", "max_attempts": 10_001}),
            "/retry/max_attempts",
        ),
        (
            "retry",
            json!({"fixed": "PT1S", "max_attempts": 1.5}),
            "/retry/max_attempts",
        ),
        ("retry", json!({"ladder": []}), "/retry/ladder"),
        (
            "retry",
            json!({"exponential": {"base": "PT1S", "factor": 0.5}}),
            "/retry/exponential/factor",
        ),
        ("timeouts", json!({"attempt": "PT0S"}), "/timeouts/attempt"),
        ("action", json!({"fax": {}}), "/action/fax"),
        ("action", json!({"handler": {}}), "/action/handler/name"),
    ] {
        let what = format!(
            "{field}: {}",
            value.to_string().chars().take(60).collect::<String>()
        );
        assert_refused(&api, &what, &good_but(topic, field, value), pointer);
    }
    for (body, pointer) in [
        (json!({"delay": "PT1S", "action": {"none": {}}}), "/topic"),
        (json!({"topic": topic, "action": {"none": {}}}), "/due_at"),
        (
            json!({"topic": topic, "delay": "PT1S", "due_at": "2027-06-01T12:00:00Z"}),
            "/delay",
        ),
        (json!([]), ""),
        (json!("text"), ""),
        (Value::Null, ""),
    ] {
        assert_refused(&api, &body.to_string(), &body, pointer);
    }
    let two = good_but(topic, "action", json!({"none": {}, "pull": {}}));
    assert_eq!(api.post("/v1/tasks", &two).problem().0, 422, "two actions");
    assert_goes_on(&api, topic);
}

#[test]
fn all_mistakes_of_a_body_are_told_together() {
    let api = service();
    let body = json!({"topic": "", "delay": "soon", "dely": 1, "key": 7});
    let reply = assert_refused(&api, "four mistakes", &body, "/topic");
    let errors = reply.json()["errors"].clone();
    assert_eq!(errors.as_array().map(Vec::len), Some(4), "{errors}");
}

#[test]
fn headers_and_urls_that_could_do_harm_are_refused() {
    let (api, topic) = (service(), "bad.push");
    let with =
        |headers: Value| json!({"http": {"url": "http://127.0.0.1:9/x", "headers": headers}});
    for (name, value) in [
        ("x-a", "b\r\nx-evil: 1"),
        ("x-a", "b\nc"),
        ("x-a", "b\rc"),
        ("x-a", "b\0c"),
        ("x a", "b"),
        ("x-a\r\nx-evil", "b"),
        ("", "b"),
        ("connection", "close"),
        ("Transfer-Encoding", "chunked"),
        ("content-length", "3"),
        ("host", "evil"),
        ("upgrade", "h2c"),
        ("webhook-signature", "v1,x"),
        ("webhook-id", "x"),
        ("duetime-attempt", "1"),
    ] {
        let body = good_but(topic, "action", with(json!({name: value})));
        let reply = api.post("/v1/tasks", &body);
        assert_eq!(reply.problem().0, 422, "{name:?}: {value:?}");
        let pointer = reply.json()["errors"][0]["pointer"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
        assert!(
            pointer.starts_with("/action/http/headers"),
            "{name:?}: {pointer}"
        );
        assert_no_debug_text(&reply);
    }
    let many: Value = (0..33).map(|n| (format!("x-{n}"), json!("v"))).collect();
    let large = json!({"x-a": "v".repeat(8 << 10)});
    for headers in [many, large] {
        assert_refused(
            &api,
            "too many",
            &good_but(topic, "action", with(headers)),
            "/action/http/headers",
        );
    }
    for url in [
        "http:///x",
        "http://",
        "file:///etc/passwd",
        "not a url",
        "",
        "ftp://127.0.0.1/x",
        "javascript:alert(1)",
        "/x",
    ] {
        assert_refused(
            &api,
            url,
            &good_but(topic, "action", push(url)),
            "/action/http/url",
        );
    }
    assert_goes_on(&api, topic);
}

#[test]
fn a_body_that_is_no_json_or_of_another_kind_is_refused_as_a_whole() {
    let (api, topic) = (service(), "bad.bodies");
    let json_type = "application/json";
    let deep = |depth: usize| {
        format!(
            r#"{{"topic":"{topic}","payload":{}{}}}"#,
            "[".repeat(depth),
            "]".repeat(depth)
        )
    };
    for (what, kind, body, status, code) in [
        ("a word", json_type, b"hello".to_vec(), 400, "not_json"),
        ("nothing", json_type, Vec::new(), 400, "not_json"),
        (
            "half of it",
            json_type,
            br#"{"topic": "bad", "del"#.to_vec(),
            400,
            "not_json",
        ),
        (
            "two of it",
            json_type,
            br#"{"topic": "bad"} {}"#.to_vec(),
            400,
            "not_json",
        ),
        (
            "no UTF-8",
            json_type,
            b"{\"topic\": \"b\xff\"}".to_vec(),
            400,
            "not_json",
        ),
        (
            "a lone surrogate",
            json_type,
            br#"{"topic": "bad.bodies", "payload": "\ud800"}"#.to_vec(),
            422,
            "invalid",
        ),
        (
            "a form",
            "application/x-www-form-urlencoded",
            b"topic=bad".to_vec(),
            415,
            "unsupported_media_type",
        ),
        (
            "lines",
            "application/x-ndjson",
            b"{}".to_vec(),
            415,
            "unsupported_media_type",
        ),
    ] {
        let reply = api
            .send("POST", "/v1/tasks", &[("content-type", kind)], &body)
            .expect("an answer");
        assert_eq!(reply.problem(), (status, code.to_owned()), "{what}");
        assert_no_debug_text(&reply);
    }
    for depth in [65, 100_000] {
        let body = deep(depth);
        let reply = api
            .send(
                "POST",
                "/v1/tasks",
                &[("content-type", json_type)],
                body.as_bytes(),
            )
            .expect("an answer");
        assert!(
            [400, 422].contains(&reply.problem().0),
            "{depth} levels: {}",
            reply.text()
        );
        assert_no_debug_text(&reply);
    }
    assert_goes_on(&api, topic);
}

#[test]
fn a_body_of_ten_megabytes_is_refused_however_it_comes() {
    let (api, topic) = (service(), "bad.large");
    let large = format!(
        r#"{{"topic":"{topic}","payload":"{}"}}"#,
        "x".repeat(10 << 20)
    );
    // With its length said beforehand, it is refused before it is read.
    let mut stream = api.connect().expect("a connection");
    let head = format!(
        "POST /v1/tasks HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        large.len()
    );
    stream.write_all(head.as_bytes()).expect("the head is sent");
    let reply = Reply::read(&mut stream).expect("an answer to the head alone");
    assert_eq!(reply.problem(), (413, "too_large".to_owned()));
    // In pieces of no known number, it is refused when it becomes too much; the rest may not be taken any more.
    let mut stream = api.connect().expect("a connection");
    let head = "POST /v1/tasks HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n";
    stream.write_all(head.as_bytes()).expect("the head is sent");
    for piece in large.as_bytes().chunks(64 << 10) {
        let mut chunk = format!("{:x}\r\n", piece.len()).into_bytes();
        chunk.extend_from_slice(piece);
        chunk.extend_from_slice(b"\r\n");
        if stream.write_all(&chunk).is_err() {
            break;
        }
    }
    let reply = Reply::read(&mut stream).expect("an answer before the end");
    assert_eq!(reply.problem().0, 413);
    let items = json!({"items": vec![good_but(topic, "key", Value::Null); 10_001]});
    assert_eq!(
        api.post("/v1/tasks/batch", &items).problem().0,
        422,
        "more items than a batch may have"
    );
    assert_goes_on(&api, topic);
}

#[test]
fn paths_methods_and_parameters_that_nobody_knows_are_problems_too() {
    let api = service();
    let unknown = "01a22c2d-38ae-7a92-a512-4288b3290db5";
    for (method, path, status) in [
        ("GET", "/v1/nowhere", 404),
        ("GET", "/nowhere", 404),
        ("POST", "/v1", 404),
        ("GET", "/v1/tasks/nonsense", 404),
        ("GET", &format!("/v1/tasks/{unknown}"), 404),
        ("GET", &format!("/v1/tasks/{unknown}/log"), 404),
        ("POST", &format!("/v1/tasks/{unknown}/cancel"), 404),
        ("POST", &format!("/v1/tasks/{unknown}/dance"), 404),
        ("GET", "/v1/topics/none/keys/none", 404),
        ("POST", "/v1/shards/9999/restart", 404),
        ("POST", "/v1/shards/x/restart", 404),
        ("PUT", "/v1/tasks", 405),
        ("DELETE", &format!("/v1/tasks/{unknown}"), 405),
        ("GET", "/v1/leases", 405),
        ("GET", &format!("/v1/tasks/{unknown}/cancel"), 405),
        ("GET", "/v1/tasks?limit=1001", 422),
        ("GET", "/v1/tasks?limit=0", 422),
        ("GET", "/v1/tasks?limit=x", 422),
        ("GET", "/v1/tasks?cursor=zzz", 422),
        ("GET", "/v1/tasks?colour=red", 422),
        ("GET", "/v1/tasks?state=happy", 422),
        ("GET", "/v1/tasks?due_after=2027-06-01T12:00:00", 422),
        ("GET", "/v1/stats?x=1", 422),
        ("POST", "/v1/tasks?dry=1", 422),
    ] {
        let reply = api.send(method, path, &[], b"").expect("an answer");
        assert_eq!(reply.problem().0, status, "{method} {path}");
        assert_eq!(reply.header("allow").is_some(), status == 405, "{path}");
        assert_no_debug_text(&reply);
    }
    let put = api.send("PUT", "/v1/tasks", &[], b"").expect("an answer");
    assert_eq!(put.header("allow"), Some("GET, POST"));
    let named = api.get("/v1/tasks?colour=red").json();
    assert_eq!(named["errors"][0]["pointer"], "/colour");
}

#[test]
fn what_is_no_http_is_answered_or_closed_and_nothing_else() {
    let api = service();
    for garbage in [
        "\0\0\0\0",
        "GET\r\n\r\n",
        "GET / HTTP/9.9\r\n\r\n",
        "POST /v1/tasks HTTP/1.1\r\ncontent-length: -1\r\n\r\n",
    ] {
        let mut stream = api.connect().expect("a connection");
        stream.write_all(garbage.as_bytes()).expect("it is sent");
        // Whatever comes, the connection ends by itself.
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        let text = String::from_utf8_lossy(&answer).into_owned();
        assert!(
            text.is_empty() || text.starts_with("HTTP/1.1 4"),
            "{garbage:?}: {text}"
        );
    }
    assert_goes_on(&api, "bad.http");
}

/// Reads until the other side closes; how long that took.
fn time_to_close(mut stream: TcpStream) -> Duration {
    let begun = Instant::now();
    stream
        .set_read_timeout(Some(Duration::from_secs(20)))
        .expect("it can be set");
    let mut sink = [0; 4096];
    loop {
        match stream.read(&mut sink) {
            Ok(0) => return begun.elapsed(),
            Ok(_) => {}
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => {
                return begun.elapsed();
            }
            Err(error) => panic!(
                "the connection is still open after {:?}: {error}",
                begun.elapsed()
            ),
        }
    }
}

#[test]
fn a_request_that_is_half_sent_does_not_hold_its_connection_for_long() {
    let api = Service::with(&[
        ("DUETIME_HTTP__BODY_TIMEOUT", "PT1S"),
        ("DUETIME_HTTP__IDLE_TIMEOUT", "PT1S"),
    ]);
    let begin = |text: &str| {
        let mut stream = api.connect().expect("a connection");
        stream.write_all(text.as_bytes()).expect("it is sent");
        stream
    };
    let post = "POST /v1/tasks HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{\"topic\"";
    let get = "GET /livez HTTP/1.1\r\nhost: x\r\n\r\n";
    // A kept connection is like new: half a request on it must not hold it either.
    let kept = |half: &str| {
        let mut stream = begin(get);
        assert_eq!(Reply::read(&mut stream).expect("an answer").status, 200);
        stream.write_all(half.as_bytes()).expect("it is sent");
        stream
    };
    let half_sent = [
        ("half a head", begin("GET /v1/ta")),
        ("half a body", begin(post)),
        ("nothing at all", begin("")),
        ("half a head on a kept connection", kept("GET /v1/ta")),
        ("half a body on a kept connection", kept(post)),
        ("nothing on a kept connection", kept("")),
    ];
    let closed: Vec<(&str, Duration)> = std::thread::scope(|scope| {
        let watch = |(what, stream)| (what, scope.spawn(move || time_to_close(stream)));
        let watched: Vec<_> = half_sent.into_iter().map(watch).collect();
        watched
            .into_iter()
            .map(|(what, time)| (what, time.join().expect(what)))
            .collect()
    });
    for (what, time) in closed {
        assert!(
            time < Duration::from_secs(6),
            "{what}: closed after {time:?}"
        );
    }
    // The half body was answered before.
    let mut stream = begin(post);
    assert_eq!(
        Reply::read(&mut stream).expect("an answer").problem(),
        (408, "request_timeout".to_owned())
    );
    // Who is slow but keeps sending within the limit is served.
    let mut slow = begin(
        "POST /v1/tasks HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 40\r\n\r\n",
    );
    for part in [r#"{"topic": "sl"#, r#"ow", "delay": "#, r#""PT2H"      }"#] {
        support::pass(Duration::from_millis(100));
        slow.write_all(part.as_bytes()).expect("it is sent");
    }
    assert_eq!(Reply::read(&mut slow).expect("an answer").status, 201);
    assert_goes_on(&api, "bad.half");
}

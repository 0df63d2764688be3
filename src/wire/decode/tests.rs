use proptest::prelude::*;

use super::*;

const OUTER: Shape = Shape {
    fields: &["name", "count", "inner", "many"],
    not_built: &["later"],
};
const INNER: Shape = Shape {
    fields: &["wait"],
    not_built: &[],
};

fn read(node: Node<'_, '_>) -> Option<(String, Option<u64>)> {
    let body = node.object(&OUTER)?;
    body.optional("inner", |node| {
        node.object(&INNER)?
            .required("wait", |node| node.length(1..=60_000))
    });
    body.optional("many", |node| node.list(3, |node| node.flag()));
    let name = body.required("name", |node| node.line(10));
    let count = body.optional("count", |node| node.whole(1..=9));
    Some((name?.into_owned(), count))
}

fn refused(body: &str) -> Vec<(String, &'static str, String)> {
    let problem = decode(body.as_bytes(), read).unwrap_err();
    assert_eq!(problem.status(), 422, "{body}: {problem}");
    problem
        .errors
        .into_iter()
        .map(|error| (error.pointer, error.code, error.detail))
        .collect()
}

fn pointers(body: &str) -> Vec<(String, &'static str)> {
    refused(body)
        .into_iter()
        .map(|(pointer, code, _)| (pointer, code))
        .collect()
}

#[test]
fn what_is_right_is_read_and_null_is_absent() {
    let body = r#" {"name": "a\u00fcb", "count": null, "later": null, "many": [true]} "#;
    assert_eq!(decode(body.as_bytes(), read), Ok(("aüb".to_owned(), None)));
}

#[test]
fn what_is_not_json_is_400_and_says_where() {
    for (body, code, says) in [
        (&b"hello"[..], "not_json", "line 1 column 1"),
        (b"", "not_json", "empty"),
        (b" \n", "not_json", "empty"),
        (b"{\"name\": \"a\", \"cou", "not_json", "line 1 column 18"),
        (b"{\"name\": \"b\xff\"}", "not_json", "UTF-8 at byte 11"),
        (b"{\"name\": \"a\"} x", "not_json", "trailing characters"),
        (b"{\"name\": 01}", "not_json", "invalid number"),
        (b"{\"name\": \"a\n\"}", "not_json", "control character"),
    ] {
        let problem = decode(body, read).unwrap_err();
        assert_eq!(
            (problem.status(), problem.code.name()),
            (400, code),
            "{problem}"
        );
        assert!(problem.detail.contains(says), "{problem}");
    }
    let problem = decode(br#"{"name": "\ud800"}"#, read).unwrap_err();
    assert_eq!(
        (problem.status(), problem.errors[0].code),
        (422, "invalid_text")
    );
    assert!(problem.detail.contains("surrogate"), "{problem}");
    let deep = format!(
        r#"{{"name": {}{}}}"#,
        "[".repeat(100_000),
        "]".repeat(100_000)
    );
    assert_eq!(
        decode(deep.as_bytes(), read).unwrap_err().code,
        Code::Malformed
    );
}

#[test]
fn a_body_that_is_no_object_is_refused_as_a_whole() {
    for body in ["[]", "7", "\"x\"", "null"] {
        assert_eq!(pointers(body), [(String::new(), "wrong_type")], "{body}");
    }
    assert_eq!(
        decode(b"[]", read).unwrap_err().detail,
        "the body must be an object, not a list"
    );
}

#[test]
fn an_empty_body_counts_as_an_empty_object_where_it_may_be_left_out() {
    for body in [&b""[..], b" ", b"{}"] {
        assert_eq!(
            decode_or_empty(body, |node| node.object(&NO_FIELDS).map(drop)),
            Ok(())
        );
    }
}

#[test]
fn the_pointer_names_the_field_itself() {
    for (body, pointer, code) in [
        (r#"{"name": "a", "cuont": 1}"#, "/cuont", "unknown_field"),
        (
            r#"{"name": "a", "inner": {"wait": "PT1S", "weight": 1}}"#,
            "/inner/weight",
            "unknown_field",
        ),
        (r#"{"name": "a", "a/b~c": 1}"#, "/a~1b~0c", "unknown_field"),
        (r#"{"count": 1}"#, "/name", "missing"),
        (r#"{"name": null}"#, "/name", "missing"),
        (r#"{"name": "a", "inner": {}}"#, "/inner/wait", "missing"),
        (r#"{"name": 7}"#, "/name", "wrong_type"),
        (
            r#"{"name": "a", "many": [true, 1]}"#,
            "/many/1",
            "wrong_type",
        ),
        (
            r#"{"name": "a", "many": [true, true, true, true]}"#,
            "/many",
            "too_many",
        ),
        (r#"{"name": "a", "name": "b"}"#, "/name", "duplicate_field"),
        (
            r#"{"name": "a", "na\u006de": "b"}"#,
            "/name",
            "duplicate_field",
        ),
        (r#"{"name": "a", "later": 1}"#, "/later", "not_supported"),
        (r#"{"name": ""}"#, "/name", "empty"),
        (r#"{"name": "01234567890"}"#, "/name", "too_long"),
        (r#"{"name": "a\nb"}"#, "/name", "control_character"),
        (
            r#"{"name": "a", "inner": {"wait": "soon"}}"#,
            "/inner/wait",
            "invalid_duration",
        ),
        (
            r#"{"name": "a", "inner": {"wait": "P1M"}}"#,
            "/inner/wait",
            "invalid_duration",
        ),
        (
            r#"{"name": "a", "inner": {"wait": "PT-1S"}}"#,
            "/inner/wait",
            "out_of_range",
        ),
        (
            r#"{"name": "a", "inner": {"wait": "PT0S"}}"#,
            "/inner/wait",
            "out_of_range",
        ),
    ] {
        assert_eq!(pointers(body), [(pointer.to_owned(), code)], "{body}");
    }
    for number in ["0", "10", "-1", "1.5", "1e1", "99999999999999999999999"] {
        let body = format!(r#"{{"name": "a", "count": {number}}}"#);
        assert_eq!(
            pointers(&body),
            [("/count".to_owned(), "out_of_range")],
            "{number}"
        );
    }
}

#[test]
fn messages_are_plain_words() {
    let said = |body| refused(body).remove(0).2;
    assert_eq!(said(r#"{"name": 7}"#), "must be a text, not a number");
    assert_eq!(
        said(r#"{"name": "a", "count": "7"}"#),
        "must be a number, not a text"
    );
    assert_eq!(
        said(r#"{"name": "a", "inner": {"wait": 5}}"#),
        "must be a duration such as \"PT30M\", not a number"
    );
    assert_eq!(
        said(r#"{"name": "a", "inner": {"wait": "PT2M"}}"#),
        "must be a duration from PT0.001S to PT1M"
    );
    assert_eq!(
        said(r#"{"name": "a", "x": 1}"#),
        "is not known here; known are `name`, `count`, `inner`, `many`"
    );
}

#[test]
fn all_mistakes_are_told_at_once() {
    let body = r#"{"name": 7, "count": 0, "inner": {"wait": 1}, "many": {}, "x": 1}"#;
    assert_eq!(refused(body).len(), 5);
}

#[test]
fn a_flood_of_mistakes_is_counted_not_told() {
    let fields: Vec<String> = (0..1000).map(|n| format!("\"x{n}\": {n}")).collect();
    let body = format!(r#"{{"name": "a", {}}}"#, fields.join(","));
    let problem = decode(body.as_bytes(), read).unwrap_err();
    assert_eq!(problem.errors.len(), ERRORS_TOLD_MAX);
    assert!(problem.detail.ends_with("(and 999 more)"), "{problem}");
    let body = format!(r#"{{"name": "a", "{}": 1}}"#, "ü".repeat(100_000));
    assert_eq!(refused(&body)[0].0.len(), 1 + STEP_BYTES_MAX + "…".len());
}

proptest! {
    #[test]
    fn any_bytes_are_read_or_refused(bytes in prop_oneof![
        prop::collection::vec(any::<u8>(), 0..100),
        r#"\{("(name|count|inner|many|later)": ?("a"|1|-0|\{"wait":"PT1S"\}|\[true\]|null|\[|\{\}),?){0,4}\}?"#.prop_map(String::into_bytes),
    ]) {
        let _ = decode(&bytes, read);
    }
}

//! What comes in: bodies, bounded in size and in time, of the right kind.

use std::time::Duration;

use actix_web::HttpRequest;
use actix_web::http::header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderName};
use actix_web::web::Payload;
use bytes::{Bytes, BytesMut};
use futures_util::StreamExt;

use crate::limits;
use crate::wire::problem::{Code, Problem};

/// What a body may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// One JSON text.
    Json,
    /// One JSON text per line.
    Ndjson,
}

/// Reads a body of at most `max` bytes that arrives within `time`.
///
/// # Errors
/// 413, 408, or 400 when it breaks off.
pub async fn read(
    req: &HttpRequest,
    mut payload: Payload,
    max: usize,
    time: Duration,
) -> Result<Bytes, Problem> {
    let too_large = || {
        Problem::new(
            Code::TooLarge,
            format!("the body is larger than {max} bytes"),
        )
    };
    let announced = header(req, &CONTENT_LENGTH).and_then(|text| text.parse::<usize>().ok());
    if announced.is_some_and(|length| length > max) {
        return Err(too_large());
    }
    let reading = async {
        let mut body = BytesMut::with_capacity(announced.unwrap_or(0).min(max));
        while let Some(chunk) = payload.next().await {
            let chunk = chunk.map_err(|error| {
                Problem::new(Code::Malformed, format!("the body broke off: {error}"))
            })?;
            if body.len() + chunk.len() > max {
                return Err(too_large());
            }
            body.extend_from_slice(&chunk);
        }
        Ok(body.freeze())
    };
    tokio::time::timeout(time, reading)
        .await
        .unwrap_or_else(|_| {
            let seconds = time.as_secs_f32();
            Err(Problem::new(
                Code::RequestTimeout,
                format!("the body did not arrive within {seconds} s"),
            ))
        })
}

/// What kind of body it says it is; nothing at all is fine without a body.
///
/// # Errors
/// 415 when it is neither.
pub fn kind(req: &HttpRequest, body: &[u8]) -> Result<Kind, Problem> {
    let Some(said) = header(req, &CONTENT_TYPE) else {
        if body.is_empty() {
            return Ok(Kind::Json);
        }
        let detail = "the body has no content-type; send it as `content-type: application/json`";
        return Err(Problem::new(Code::UnsupportedMediaType, detail));
    };
    let essence = said.split(';').next().unwrap_or_default().trim();
    if essence.eq_ignore_ascii_case("application/json") {
        Ok(Kind::Json)
    } else if essence.eq_ignore_ascii_case("application/x-ndjson") {
        Ok(Kind::Ndjson)
    } else {
        let essence = essence.to_ascii_lowercase();
        let detail =
            format!("`{essence}` is not taken here; send `content-type: application/json`");
        Err(Problem::new(Code::UnsupportedMediaType, detail))
    }
}

/// Whether the body says that it is of this media type.
pub fn is(req: &HttpRequest, wanted: &str) -> bool {
    let said = header(req, &CONTENT_TYPE).unwrap_or_default();
    let essence = said.split(';').next().unwrap_or_default().trim();
    essence.eq_ignore_ascii_case(wanted)
}

/// The request's `Idempotency-Key`.
///
/// # Errors
/// 422 when it is empty or too long.
pub fn idempotency_key(req: &HttpRequest) -> Result<Option<String>, Problem> {
    let Some(key) = req.headers().get("idempotency-key") else {
        return Ok(None);
    };
    let max = limits::IDEMPOTENCY_KEY_CHARS_MAX;
    match key.to_str() {
        Ok(text) if !text.is_empty() && text.chars().count() <= max => Ok(Some(text.to_owned())),
        _ => {
            let detail = format!("must be 1 to {max} visible ASCII characters");
            Err(Problem::of_field(
                "/Idempotency-Key",
                "invalid_header",
                detail,
            ))
        }
    }
}

fn header<'a>(req: &'a HttpRequest, name: &HeaderName) -> Option<&'a str> {
    req.headers()
        .get(name)
        .and_then(|value| value.to_str().ok())
}

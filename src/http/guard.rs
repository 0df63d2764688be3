//! Around every request: a panic becomes a 500 problem, a connection in use is marked, answers are counted.

use std::fmt;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use actix_web::body::{BodySize, BoxBody, MessageBody};
use actix_web::dev::{ServiceRequest, ServiceResponse};
use actix_web::http::StatusCode;
use actix_web::http::header::ALLOW;
use actix_web::middleware::Next;
use actix_web::web::Data;
use actix_web::{Error, HttpResponse, ResponseError};
use bytes::Bytes;
use futures_util::FutureExt;

use crate::http::Api;
use crate::http::answer::Answer;
use crate::http::connections::{Connections, InRequest};
use crate::wire::problem::{Code, Problem};

/// Answers since the start, by the first digit of their status.
#[derive(Debug, Default)]
pub struct AnswerCounts {
    classes: [AtomicU64; 6],
    panics: AtomicU64,
}

impl AnswerCounts {
    fn count(&self, status: u16) {
        let class = usize::from(status / 100).min(5);
        self.classes[class].fetch_add(1, Ordering::Relaxed);
    }

    /// Answers with a status from `100 × class`.
    pub fn of_class(&self, class: usize) -> u64 {
        self.classes[class.min(5)].load(Ordering::Relaxed)
    }

    /// Requests whose handler panicked.
    pub fn panics(&self) -> u64 {
        self.panics.load(Ordering::Relaxed)
    }
}

/// A body that keeps its connection marked as in use until it is sent or dropped.
struct InUse {
    body: BoxBody,
    _in_request: Option<InRequest>,
}

impl MessageBody for InUse {
    type Error = Box<dyn std::error::Error>;

    fn size(&self) -> BodySize {
        self.body.size()
    }

    fn poll_next(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, Self::Error>>> {
        self.get_mut().body.as_pin_mut().poll_next(cx)
    }
}

/// A problem as actix-web's kind of error, for where there is no request left to answer.
#[derive(Debug)]
struct Refused(Problem);

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl ResponseError for Refused {
    fn error_response(&self) -> HttpResponse {
        Answer::from(self.0.clone()).respond()
    }
}

/// The middleware.
pub async fn around(
    req: ServiceRequest,
    next: Next<impl MessageBody + 'static>,
) -> Result<ServiceResponse<impl MessageBody>, Error> {
    let in_request = Connections::enter(&req);
    let api = req.app_data::<Data<Api>>().cloned();
    let answered = AssertUnwindSafe(next.call(req)).catch_unwind().await;
    let refused = match answered {
        Ok(Ok(response)) => {
            let response = response.map_into_boxed_body();
            let response = match response.status() {
                // The framework's own answer, without a body.
                StatusCode::METHOD_NOT_ALLOWED => no_method(response),
                _ => response,
            };
            if let Some(api) = &api {
                api.answers.count(response.status().as_u16());
            }
            if let Some(in_request) = &in_request {
                in_request.answered();
            }
            return Ok(response.map_body(|_, body| InUse {
                body,
                _in_request: in_request,
            }));
        }
        // What actix-web itself refuses: a path or a head that it can't read.
        Ok(Err(error)) => {
            let is_ours = error.as_response_error().status_code().is_server_error();
            Problem::new(
                if is_ours {
                    Code::Internal
                } else {
                    Code::Malformed
                },
                error.to_string(),
            )
        }
        Err(_) => {
            // The panic itself is in the log, by the process's hook.
            if let Some(api) = &api {
                api.answers.panics.fetch_add(1, Ordering::Relaxed);
            }
            Problem::new(Code::Internal, "a defect of the service; it is in its log")
        }
    };
    if let Some(api) = &api {
        api.answers.count(refused.status());
    }
    Err(Refused(refused).into())
}

/// For a path that nobody serves.
pub async fn no_route(req: actix_web::HttpRequest) -> HttpResponse {
    let detail = format!("nothing is served at {}; see /docs for what is", req.path());
    Answer::from(Problem::new(Code::RouteNotFound, detail)).respond()
}

/// For a path that does not take the method; which ones it takes is in `Allow`, as RFC 9110 wants it.
fn no_method(response: ServiceResponse<BoxBody>) -> ServiceResponse<BoxBody> {
    let allow = response.headers().get(ALLOW).cloned();
    let takes = allow.as_ref().and_then(|allow| allow.to_str().ok());
    let detail = format!(
        "{} does not take {}; it takes {}",
        response.request().path(),
        response.request().method(),
        takes.unwrap_or("other methods")
    );
    let mut told = Answer::from(Problem::new(Code::MethodNotAllowed, detail)).respond();
    if let Some(allow) = allow {
        told.headers_mut().insert(ALLOW, allow);
    }
    response.into_response(told)
}

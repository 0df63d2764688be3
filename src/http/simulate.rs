//! What would fire if this were so: played through on a virtual clock, with nothing sent and nothing changed.

use actix_web::web::{Data, Payload};
use actix_web::{HttpRequest, HttpResponse};

use crate::http::answer::{Answer, problem_of};
use crate::http::body::{self, Kind};
use crate::http::{Api, query, respond};
use crate::wire::problem::{Code, Problem, ProblemBody};
use crate::wire::simulate::{PlayedOut, SimulateBody, what_if};

/// Largest body: a few thousand tasks with their facts.
const BODY_BYTES_MAX: usize = 8 * 1024 * 1024;

/// Plays stored or given tasks through on a virtual clock, by the rules, calendars and schedules of now or of a draft, and
/// tells what would fire, and when. Nothing is sent, and nothing is changed.
#[utoipa::path(post, path = "/v1/simulate", tag = "rules", request_body = SimulateBody, responses(
    (status = 200, description = "what would happen, by bucket and in order", body = PlayedOut<'static>),
    (status = 422, description = "the body is not valid, or takes in more than is played", body = ProblemBody, content_type = "application/problem+json"),
    (status = 429, description = "as many as may be are played already (`too_many_requests`)", body = ProblemBody, content_type = "application/problem+json")))]
pub async fn simulate(req: HttpRequest, payload: Payload, api: Data<Api>) -> HttpResponse {
    respond(async {
        query(&req, &[])?;
        let body = body::read(&req, payload, BODY_BYTES_MAX, api.body_timeout).await?;
        if body::kind(&req, &body)? != Kind::Json {
            let detail = "one what-if is taken; send `content-type: application/json`";
            return Err(Problem::new(Code::UnsupportedMediaType, detail));
        }
        let asked = what_if(&body, &api.in_limits())?;
        drop(body);
        // Dropped with the connection, it ends.
        let played = api.engine.simulate(asked).await;
        let played = played.map_err(|error| problem_of(&error))?;
        Ok(Answer::json(200, &PlayedOut::new(&played)))
    })
    .await
}

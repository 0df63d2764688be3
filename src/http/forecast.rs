//! What is to come.

use actix_web::web::Data;
use actix_web::{HttpRequest, HttpResponse};
use serde_json::{Value, json};

use crate::clock::{DurationMs, WallMs};
use crate::http::answer::{Answer, problem_of};
use crate::http::{Api, respond};
use crate::wire::forecast::{ForecastParams, ask};
use crate::wire::problem::ProblemBody;
use crate::wire::time::{Length, Time};

/// How many tasks come due in each of the next buckets, what is due already, and how long that takes at the pace of the last
/// minute. No task is read for it: of tasks that are on the disk it is known from when to when 128 of them are due.
#[utoipa::path(get, path = "/v1/forecast", tag = "operate", params(ForecastParams), responses(
    (status = 200, description = "`{from, bucket, due, buckets: [{at, tasks}], later, started_per_s, drain_time}`; `drain_time` is null if nothing starts", body = Object),
    (status = 422, description = "a parameter is not valid", body = ProblemBody, content_type = "application/problem+json"),
    (status = 503, description = "a shard is being restarted", body = ProblemBody, content_type = "application/problem+json")))]
pub async fn forecast(req: HttpRequest, api: Data<Api>) -> HttpResponse {
    respond(async {
        let ask = ask(req.query_string())?;
        let forecast = api.engine.forecast(ask.width, ask.count).await;
        let forecast = forecast.map_err(|error| problem_of(&error))?;
        let begins = |place: usize| {
            let passed = forecast.width.0.saturating_mul(place as u64);
            WallMs(forecast.from.0).after(DurationMs(passed))
        };
        let buckets = forecast.tasks.buckets.iter().enumerate();
        let buckets: Vec<Value> = buckets
            .map(|(place, tasks)| json!({"at": Time(begins(place)), "tasks": tasks}))
            .collect();
        let told = json!({
            "from": Time(forecast.from), "bucket": Length(forecast.width), "due": forecast.tasks.due,
            "buckets": buckets, "later": forecast.tasks.later,
            "started_per_s": (forecast.started_per_s * 100.0).round() / 100.0,
            "drain_time": forecast.drain_time().map(Length),
        });
        Ok(Answer::json(200, &told))
    })
    .await
}

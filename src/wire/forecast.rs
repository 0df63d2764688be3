//! `GET /v1/forecast`: which buckets are asked for.

use std::ops::RangeInclusive;

use utoipa::IntoParams;

use crate::clock::DurationMs;
use crate::task::duration;
use crate::wire::params::Params;
use crate::wire::problem::Problem;

/// Narrowest and widest bucket, in milliseconds.
const BUCKET_MS: RangeInclusive<u64> = 1_000..=31 * 24 * 3600 * 1000;
/// Most buckets.
const COUNT_MAX: usize = 1_440;

/// Parameters of `GET /v1/forecast`.
#[derive(Debug, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct ForecastParams {
    /// Width of a bucket, from `PT1S` to `P31D`; `PT1M` unless it is said.
    #[param(value_type = Option<String>, example = "PT1M")]
    pub bucket: (),
    /// How many buckets, from 1 to 1440; 60 unless it is said.
    #[param(value_type = Option<u16>)]
    pub count: (),
}

/// Which buckets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ForecastAsk {
    /// How wide each is.
    pub width: DurationMs,
    /// How many there are.
    pub count: usize,
}

/// Reads a query string.
///
/// # Errors
/// 422 with all parameters that are not valid, each as `/name`.
pub fn ask(query: &str) -> Result<ForecastAsk, Problem> {
    let mut ask = ForecastAsk {
        width: DurationMs::secs(60),
        count: 60,
    };
    let mut params = Params::default();
    params.each(query, &[], |params, name, value| match name {
        "bucket" => match duration::parse(value) {
            Ok(width) if BUCKET_MS.contains(&width.0) => ask.width = width,
            Ok(_) => drop(params.refuse::<()>(
                name,
                "out_of_range",
                "must be a duration from PT1S to P31D",
            )),
            Err(error) => drop(params.refuse::<()>(name, "invalid_duration", error.to_string())),
        },
        "count" => match value.parse() {
            Ok(count) if (1..=COUNT_MAX).contains(&count) => ask.count = count,
            _ => {
                let detail = format!("must be a whole number from 1 to {COUNT_MAX}");
                params.refuse::<()>(name, "out_of_range", detail);
            }
        },
        _ => {
            let detail = "is not a parameter here; taken: bucket, count";
            params.refuse::<()>(name, "unknown_parameter", detail);
        }
    });
    params.close()?;
    Ok(ask)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test may")]
mod tests {
    use super::*;
    use crate::wire::tests::refused;

    #[test]
    fn an_hour_of_minutes_is_foreseen_unless_it_is_said_otherwise() {
        let usual = ask("").unwrap();
        assert_eq!((usual.width, usual.count), (DurationMs::secs(60), 60));
        let other = ask("bucket=PT1H&count=24").unwrap();
        assert_eq!((other.width, other.count), (DurationMs::secs(3600), 24));
        let wrong = refused(ask("bucket=PT0.1S&count=0&hours=1"));
        let wrong: Vec<(&str, &str)> = wrong
            .iter()
            .map(|(at, code)| (at.as_str(), *code))
            .collect();
        assert_eq!(
            wrong,
            [
                ("/bucket", "out_of_range"),
                ("/count", "out_of_range"),
                ("/hours", "unknown_parameter")
            ]
        );
    }
}

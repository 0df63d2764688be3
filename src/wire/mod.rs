//! wire
pub mod action;
pub mod decode;
pub mod due;
pub mod guard;
pub mod problem;
pub mod retry;
pub mod task_in;
pub mod task_out;
pub mod time;

#[cfg(test)]
mod tests {
    use utoipa::openapi::RefOr;
    use utoipa::openapi::schema::Schema;
    use utoipa::ToSchema;

    use super::due::InLimits;
    use super::problem::Problem;
    use crate::clock::{DurationMs, WallMs};

    /// When these tests play: 2026-11-30T00:53:20Z.
    pub const NOW: WallMs = WallMs(1_796_000_000_000);
    /// The limits of a service as it comes.
    pub const WIDE: InLimits = InLimits { max_delay: DurationMs::secs(3660 * 24 * 3600), now: NOW };

    /// Pointers and codes of a 422.
    pub fn refused<T: std::fmt::Debug>(read: Result<T, Problem>) -> Vec<(String, &'static str)> {
        let problem = read.expect_err("it is to be refused");
        assert_eq!(problem.status(), 422, "{problem}");
        problem.errors.into_iter().map(|error| (error.pointer, error.code)).collect()
    }

    /// The fields that the OpenAPI document shows for a body.
    pub fn properties<T: ToSchema>() -> Vec<String> {
        match T::schema() {
            RefOr::T(Schema::Object(object)) => object.properties.keys().cloned().collect(),
            other => panic!("not an object: {other:?}"),
        }
    }
}

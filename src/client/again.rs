//! Trying again: how long is waited before it, and until when it is tried.

use std::time::Duration;

use tokio::time::{Instant, sleep};
use uuid::Uuid;

use crate::client::call::{Answer, Call, Service};
use crate::client::error::ClientError;

/// The first wait.
const FIRST: Duration = Duration::from_millis(100);
/// The longest wait of our own.
const LONGEST: Duration = Duration::from_secs(5);
/// The longest wait that a service may ask for.
const ASKED_MAX: Duration = Duration::from_secs(60);

/// Waits between tries: each twice the last, up to [`LONGEST`], less up to a half of it by chance, so that those who lost
/// the service together do not come back together. A service that asks for more gets it.
pub(super) struct Pauses(Duration);

impl Default for Pauses {
    fn default() -> Self {
        Self(FIRST)
    }
}

impl Pauses {
    /// How long to wait after this.
    pub(super) fn after(&mut self, error: &ClientError) -> Duration {
        let chance = Uuid::new_v4().as_u128() as u32;
        let share = 0.5 + f64::from(chance) / f64::from(u32::MAX) / 2.0;
        let own = self.0.mul_f64(share);
        self.0 = (self.0 * 2).min(LONGEST);
        let asked = error.retry_after().unwrap_or_default();
        own.max(asked.min(ASKED_MAX))
    }
}

/// Sends a call that may be sent twice, again and again until it is answered or the time is over.
pub(super) async fn send_until(
    service: &Service,
    call: &Call,
    until: Instant,
) -> Result<Answer, ClientError> {
    let mut pauses = Pauses::default();
    loop {
        let error = match service.send(call).await {
            Err(error) if error.may_pass() => error,
            answered => return answered,
        };
        let pause = pauses.after(&error);
        if Instant::now() + pause > until {
            return Err(error);
        }
        tracing::debug!(%error, ?pause, "asking the service again");
        sleep(pause).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn away(retry_after: Option<Duration>) -> ClientError {
        ClientError::Refused {
            status: 503,
            code: "overloaded".to_owned(),
            detail: "busy".to_owned(),
            retry_after,
            body: String::new(),
        }
    }

    #[test]
    fn waits_grow_to_a_bound_and_a_service_may_ask_for_longer_ones() {
        let mut pauses = Pauses::default();
        let mut longest = FIRST;
        for _ in 0..20 {
            let pause = pauses.after(&away(None));
            assert!(pause >= longest / 2 && pause <= longest, "{pause:?}");
            longest = (longest * 2).min(LONGEST);
        }
        let asked = Duration::from_secs(20);
        assert_eq!(pauses.after(&away(Some(asked))), asked);
        assert_eq!(pauses.after(&away(Some(asked * 60))), ASKED_MAX);
    }

    #[test]
    fn what_may_pass_is_told_from_what_stays_as_it_is() {
        let refused = |status, code: &str| ClientError::Refused {
            status,
            code: code.to_owned(),
            detail: String::new(),
            retry_after: None,
            body: String::new(),
        };
        for (status, code, passes) in [
            (429, "too_many_requests", true),
            (503, "shutting_down", true),
            (500, "internal", true),
            (409, "in_progress", true),
            (409, "stale_token", false),
            (422, "invalid", false),
            (507, "storage_full", false),
        ] {
            assert_eq!(refused(status, code).may_pass(), passes, "{status} {code}");
        }
        let page = |status| ClientError::NotDuetime {
            status,
            start: String::new(),
        };
        assert!(page(502).may_pass() && !page(200).may_pass());
    }
}

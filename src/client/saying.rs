//! How far the work on a leased task has got, as it says: gathered here, and told with the heartbeats.

use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::value::RawValue;
use tokio::sync::Notify;

/// Shared by the work and by what keeps its lease.
#[derive(Clone, Debug, Default)]
pub(super) struct Saying(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    said: Mutex<Said>,
    news: Notify,
}

#[derive(Debug, Default)]
struct Said {
    latest: Option<Arc<RawValue>>,
    /// How often something was said, and how much of that the service has heard.
    said: u64,
    told: u64,
}

/// Something that the service has not heard yet.
#[derive(Clone, Debug)]
pub(super) struct News {
    pub(super) so_far: Arc<RawValue>,
    said: u64,
}

impl Saying {
    /// The work has got so far.
    pub(super) fn say(&self, so_far: Box<RawValue>) {
        let mut said = self.0.said.lock();
        said.latest = Some(so_far.into());
        said.said += 1;
        drop(said);
        self.0.news.notify_one();
    }

    /// What the service has not heard yet.
    pub(super) fn news(&self) -> Option<News> {
        let said = self.0.said.lock();
        let so_far = said.latest.clone().filter(|_| said.said > said.told)?;
        let said = said.said;
        Some(News { so_far, said })
    }

    /// The service has heard it.
    pub(super) fn told(&self, news: &News) {
        let mut said = self.0.said.lock();
        said.told = said.told.max(news.said);
    }

    /// Waits until there is something new.
    pub(super) async fn changed(&self) {
        loop {
            let notified = self.0.news.notified();
            if self.news().is_some() {
                return;
            }
            notified.await;
        }
    }
}

//! Waiting for an instant of the engine's clock, whoever moves it.

use tokio::sync::watch;

use crate::clock::{Clock, DurationMs, MonoMs};

/// Wakes who waits for an instant. One per executor.
#[derive(Debug)]
pub(super) struct Deadlines {
    clock: Clock,
    /// Tells sleepers that a test has moved the clock.
    moved: watch::Sender<()>,
}

impl Deadlines {
    pub fn new(clock: Clock) -> Self {
        let (moved, _) = watch::channel(());
        clock.on_move({
            let moved = moved.clone();
            move || {
                moved.send_replace(());
            }
        });
        Self { clock, moved }
    }

    /// Waits until the monotonic clock has reached `deadline`.
    pub async fn reached(&self, deadline: MonoMs) {
        let mut moved = self.moved.subscribe();
        loop {
            let left = deadline.since(self.clock.now().mono);
            if left == DurationMs(0) {
                return;
            }
            if self.clock.runs_by_itself() {
                tokio::time::sleep(left.to_std()).await;
            } else if moved.changed().await.is_err() {
                return;
            }
        }
    }
}

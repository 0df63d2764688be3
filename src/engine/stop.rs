//! The end: of one shard, and of the whole engine.

use std::time::Duration;

use tokio::time::Instant;

use crate::engine::boot::shard_child;
use crate::engine::error::EngineError;
use crate::engine::handle::Duetime;
use crate::ids::ShardId;
use crate::shard::messages::Drain;
use crate::shard::router::NoAnswer;
use crate::watchdog::{ChildState, ChildStatus, UnknownChild};

/// How often a stop looks whether the running attempts, and then the parts, have ended.
const STOP_LOOK: Duration = Duration::from_millis(10);
/// Longest wait of a stop for the shards to hand back what still runs after the grace. One that hangs has its
/// attempts settled at the next start, as after a crash.
const HAND_BACK_MAX: Duration = Duration::from_secs(5);
/// Longest wait of a stop for its parts to end. One that is stuck by then is left behind.
const PARTS_END_MAX: Duration = Duration::from_secs(5);
/// Longest wait of a stop for what was committed last to be copied, too.
const COPIES_END_MAX: Duration = Duration::from_secs(5);

impl Duetime {
    /// Asks a shard to leave; the watchdog starts it anew from its store.
    ///
    /// # Errors
    /// When there is no such shard.
    pub fn restart_shard(&self, shard: ShardId) -> Result<(), EngineError> {
        self.restart_part(&shard_child(shard))
            .map_err(|_| EngineError::UnknownShard(shard.0))
    }

    /// Asks any of the [parts](Duetime::children) to leave; the watchdog starts it anew.
    ///
    /// # Errors
    /// When no part has this name.
    pub fn restart_part(&self, name: &str) -> Result<(), UnknownChild> {
        self.parts.watchdog.restart(name)
    }

    /// Takes nothing new in, lets running attempts finish within the grace, hands back the rest, and stops.
    /// All that was acknowledged is on the disk, and the directory is free for another engine.
    pub async fn shutdown(&self) {
        if self.parts.stopping.is_cancelled() {
            return;
        }
        self.parts.stopping.cancel();
        self.parts.backups.stop();
        let until = Instant::now() + self.parts.grace.to_std();
        loop {
            let running = self.drain(false, until).await;
            if running == 0 || Instant::now() >= until {
                break;
            }
            tokio::time::sleep(STOP_LOOK).await;
        }
        let cut_off = self.drain(true, Instant::now() + HAND_BACK_MAX).await;
        tracing::info!(
            cut_off,
            "stopped: running attempts have ended or were handed back"
        );
        self.parts.watchdog.shutdown();
        let until = Instant::now() + PARTS_END_MAX;
        while !self.has_ended() && Instant::now() < until {
            tokio::time::sleep(STOP_LOOK).await;
        }
        // Only now is nothing more written to the journals.
        let copies = self.parts.journal_copies.lock().clone();
        if let Some(copies) = copies {
            copies.end(COPIES_END_MAX).await;
        }
        drop(self.parts.files.lock().take());
        // Only now may another engine have the directory.
        drop(self.parts.dir.lock().take());
    }

    /// Whether every part has ended, no command is left and no file is open any more.
    fn has_ended(&self) -> bool {
        let stopped = |child: &ChildStatus| child.state == ChildState::Stopped;
        self.children().iter().all(stopped)
            && self.parts.files_open.strong_count() == 0
            && !self.parts.backups.is_busy()
            && self.parts.executors.commands().running() == 0
    }

    /// How many attempts still run, as far as the shards answer before `until`.
    pub(super) async fn drain(&self, give_up: bool, until: Instant) -> usize {
        let asked = self.parts.router.shards().map(|shard| {
            let router = &self.parts.router;
            let asked = async move {
                loop {
                    match router.ask(shard, Drain { give_up }).await {
                        Err(NoAnswer::Overloaded(_)) => tokio::time::sleep(STOP_LOOK).await,
                        answer => return answer,
                    }
                }
            };
            tokio::time::timeout_at(until, asked)
        });
        let answers = futures_util::future::join_all(asked).await;
        // A shard that is down has nothing running that could be waited for; one that hangs is not waited for.
        answers.into_iter().flatten().flatten().sum()
    }
}

//! The thread that has the journals copied to a second directory: see [`copies`](crate::store::local::copies).
//!
//! It reads files behind the committers' backs and never holds them up. A second directory that is slow, full or gone
//! holds up nothing but this thread; how far behind it is stands in the metrics, in readiness and in the log.
//!
//! ```text
//!  round ─▶ round ─▶ …        each 200 ms                             stop: the shards end ─▶ a last round ─▶ ended
//!             │
//!             └─ where they stand ─▶ backup: its snapshots ─▶ a round that began after them ─▶ MANIFEST names them
//! ```
//!
//! **A backup and the copies.** Copies that do not reach a backup would, laid over it, bring older states back. So it
//! names them only once they are known to hold all that it holds.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use tokio_util::sync::CancellationToken;

use crate::archive::backup::JournalsAt;
use crate::clock::DurationMs;
use crate::store::local::copies::Copies;

/// Between two rounds: what is lost with the data directory is what came in it, and while a round was running.
const ROUND_EVERY: Duration = Duration::from_millis(200);
/// Further behind than this, readiness warns.
const BEHIND_MAX: Duration = Duration::from_secs(5);
/// Between two lines of the log that say that it does not work.
const SAY_EVERY: Duration = Duration::from_secs(60);

/// How the copying fares.
#[derive(Clone, Debug)]
pub struct CopyStatus {
    /// All that was committed so long ago is in the second directory. `None` while nothing was copied since the start.
    pub behind: Option<DurationMs>,
    /// For how long nothing was copied: as long as it is behind, or since the start.
    pub without: DurationMs,
    /// How often something was folded before it was copied: the copies then begin to count with the next backup.
    pub gaps: u64,
    /// Why the latest round failed.
    pub failure: Option<String>,
}

impl CopyStatus {
    /// Whether it is so far behind that somebody should look.
    pub fn is_late(&self) -> bool {
        self.without.to_std() > BEHIND_MAX
    }
}

/// What the thread and the engine share.
#[derive(Debug)]
pub(super) struct JournalCopies {
    state: Mutex<State>,
    /// After each round, and when something is asked for.
    changed: Condvar,
    /// Once the thread has.
    ended: CancellationToken,
}

#[derive(Debug)]
struct State {
    asked: Asked,
    begun_at: Instant,
    /// When the latest good round began, and how far the copies are since.
    good: Option<(Instant, JournalsAt)>,
    gaps: u64,
    failure: Option<String>,
    /// What a backup has made superfluous.
    covered: Option<JournalsAt>,
}

/// What the thread is to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Asked {
    Rounds,
    LastRound,
    Nothing,
}

/// Where the copies stood before anything was read for a backup.
#[derive(Clone, Debug)]
pub(super) struct Stand {
    at: JournalsAt,
    gaps: u64,
}

impl JournalCopies {
    fn new() -> Self {
        Self {
            state: Mutex::new(State {
                asked: Asked::Rounds,
                begun_at: Instant::now(),
                good: None,
                gaps: 0,
                failure: None,
                covered: None,
            }),
            changed: Condvar::new(),
            ended: CancellationToken::new(),
        }
    }

    pub(super) fn status(&self) -> CopyStatus {
        let state = self.state.lock();
        let since = |at: Instant| DurationMs::of(at.elapsed());
        let behind = state.good.as_ref().map(|(at, _)| since(*at));
        CopyStatus {
            behind,
            without: behind.unwrap_or_else(|| since(state.begun_at)),
            gaps: state.gaps,
            failure: state.failure.clone(),
        }
    }

    /// Where they stand, for a backup that has not begun to read; `None` before anything was copied.
    pub(super) fn stand(&self) -> Option<Stand> {
        let state = self.state.lock();
        let (_, at) = state.good.clone()?;
        Some(Stand {
            at,
            gaps: state.gaps,
        })
    }

    /// Waits for a good round that began after `taken_at`, when all was read for a backup: what the backup says of them.
    ///
    /// # Errors
    /// Why it must not name them.
    pub(super) fn reach(
        &self,
        from: Stand,
        taken_at: Instant,
        within: Duration,
        stop: &CancellationToken,
    ) -> Result<JournalsAt, String> {
        let until = Instant::now() + within;
        let mut state = self.state.lock();
        loop {
            if let Some((begun_at, at)) = &state.good
                && *begun_at > taken_at
            {
                return match at.lineage == from.at.lineage && state.gaps == from.gaps {
                    true => Ok(JournalsAt {
                        through: at.through.clone(),
                        ..from.at
                    }),
                    false => Err("something was folded before it was copied".to_owned()),
                };
            }
            if Instant::now() >= until || stop.is_cancelled() {
                let why = state.failure.clone();
                return Err(why.unwrap_or_else(|| "the second directory is slow".to_owned()));
            }
            let look_at = until.min(Instant::now() + ROUND_EVERY);
            self.changed.wait_until(&mut state, look_at);
        }
    }

    /// A good backup was made that begins there: what is before it is not needed any more.
    pub(super) fn covered(&self, by: JournalsAt) {
        self.state.lock().covered = Some(by);
    }

    /// Lets the thread end after a last round.
    pub(super) fn let_end(&self) {
        self.ask(Asked::LastRound);
    }

    /// Has what is left copied, now that nothing more is committed, and waits so long for it at most.
    pub(super) async fn end(&self, within: Duration) {
        self.ask(Asked::LastRound);
        let ended = tokio::time::timeout(within, self.ended.cancelled()).await;
        if ended.is_err() {
            // The directory may be another's when it wakes.
            self.ask(Asked::Nothing);
            tracing::error!(
                ?within,
                "the second directory took too long: what was committed last is not in the journals' copies"
            );
        }
    }

    fn ask(&self, what: Asked) {
        self.state.lock().asked = what;
        self.changed.notify_all();
    }

    /// Waits for the time of the next round, or until something else is asked for.
    fn next(&self) -> Asked {
        let mut state = self.state.lock();
        if state.asked == Asked::Rounds {
            self.changed.wait_for(&mut state, ROUND_EVERY);
        }
        state.asked
    }
}

/// Starts the thread. It goes on until it is let [end](JournalCopies::end).
pub(super) fn follow(data: &Path, shards: u16, to: PathBuf) -> io::Result<Arc<JournalCopies>> {
    let shared = Arc::new(JournalCopies::new());
    let data = data.to_owned();
    let mut follower = Follower {
        begin: Box::new(move || Copies::begin(&data, shards, &to)),
        shared: Arc::clone(&shared),
        copies: None,
        gaps_before: 0,
        said_at: None,
    };
    std::thread::Builder::new()
        .name("journal-copy".to_owned())
        .spawn(move || follower.run())?;
    Ok(shared)
}

struct Follower {
    begin: Box<dyn Fn() -> io::Result<Copies> + Send>,
    shared: Arc<JournalCopies>,
    copies: Option<Copies>,
    /// Of copies that were begun anew since.
    gaps_before: u64,
    /// When the log was last told that it does not work.
    said_at: Option<Instant>,
}

impl Follower {
    fn run(&mut self) {
        // Also when it panics.
        let _ended = self.shared.ended.clone().drop_guard();
        loop {
            self.round();
            match self.shared.next() {
                Asked::Rounds => {}
                Asked::LastRound => return self.round(),
                Asked::Nothing => return,
            }
        }
    }

    fn round(&mut self) {
        let begun = Instant::now();
        let done = self.copy();
        let gaps = self.gaps_before + self.copies.as_ref().map_or(0, Copies::gaps);
        let mut state = self.shared.state.lock();
        state.gaps = gaps;
        match done {
            Ok(at) => {
                state.good = Some((begun, at));
                state.failure = None;
                drop(state);
                if self.said_at.take().is_some() {
                    tracing::info!("the copies of the journals are complete again");
                }
            }
            Err(error) => {
                state.failure = Some(error.to_string());
                let is_last = state.asked != Asked::Rounds;
                let since = state.good.as_ref().map_or(state.begun_at, |(at, _)| *at);
                drop(state);
                self.gaps_before = gaps;
                self.copies = None;
                if is_last || self.said_at.is_none_or(|at| at.elapsed() >= SAY_EVERY) {
                    self.said_at = Some(begun);
                    tracing::error!(%error, without = ?since.elapsed(), "the journals can't be copied to the second directory; the service goes on without");
                }
            }
        }
        self.shared.changed.notify_all();
    }

    /// One round; how far the copies are after it.
    fn copy(&mut self) -> io::Result<JournalsAt> {
        let copies = match &mut self.copies {
            Some(copies) => copies,
            None => self.copies.insert((self.begin)()?),
        };
        copies.round()?;
        let covered = self.shared.state.lock().covered.take();
        if let Some(covered) = covered.filter(|covered| covered.lineage == copies.lineage()) {
            copies.drop_through(&covered.after)?;
        }
        Ok(JournalsAt {
            lineage: copies.lineage().to_owned(),
            after: copies.positions(),
            through: copies.sequences(),
        })
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    /// Longest wait for what must come.
    const SOON: Duration = Duration::from_secs(20);
    const NOT_LONG: Duration = Duration::from_millis(20);

    fn at(through: u64) -> JournalsAt {
        JournalsAt {
            lineage: "a".to_owned(),
            after: vec![through - 1],
            through: vec![through],
        }
    }

    /// Copies whose latest good round began just now.
    fn copied(through: u64) -> JournalCopies {
        let copies = JournalCopies::new();
        copies.state.lock().good = Some((Instant::now(), at(through)));
        copies
    }

    fn reached(
        copies: &JournalCopies,
        stood: Stand,
        within: Duration,
    ) -> Result<JournalsAt, String> {
        copies.reach(stood, Instant::now(), within, &CancellationToken::new())
    }

    #[test]
    fn a_round_that_began_before_a_backup_was_read_says_nothing_of_it() {
        let copies = copied(5);
        let stood = copies.stand().unwrap();
        copies.state.lock().failure = Some("no space".to_owned());
        assert_eq!(
            reached(&copies, stood, NOT_LONG),
            Err("no space".to_owned())
        );
    }

    #[test]
    fn a_backup_goes_on_from_where_the_copies_stood_before_and_names_what_they_reached() {
        let copies = Arc::new(copied(5));
        let (stood, taken_at) = (copies.stand().unwrap(), Instant::now());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                copies.state.lock().good = Some((Instant::now(), at(9)));
                copies.changed.notify_all();
            });
            let reached = copies.reach(stood, taken_at, SOON, &CancellationToken::new());
            let reached = reached.unwrap();
            assert_eq!((reached.after, reached.through), (vec![4], vec![9]));
        });
    }

    #[test]
    fn copies_with_a_gap_since_or_of_other_journals_are_not_named() {
        let copies = copied(5);
        let stood = copies.stand().unwrap();
        let taken_at = Instant::now();
        let stop = CancellationToken::new();
        let mut other = at(9);
        for (gaps, lineage) in [(1, "a"), (0, "b")] {
            other.lineage = lineage.to_owned();
            copies.state.lock().gaps = gaps;
            copies.state.lock().good = Some((Instant::now(), other.clone()));
            let refused = copies.reach(stood.clone(), taken_at, SOON, &stop);
            assert!(refused.unwrap_err().contains("before it was copied"));
        }
    }

    #[test]
    fn a_stop_does_not_wait_for_the_copies_to_reach_a_backup() {
        let copies = copied(5);
        let stop = CancellationToken::new();
        stop.cancel();
        let stood = copies.stand().unwrap();
        let begun = Instant::now();
        assert!(copies.reach(stood, begun, SOON, &stop).is_err());
        assert!(begun.elapsed() < SOON / 2);
    }

    #[tokio::test]
    async fn a_second_directory_that_hangs_is_left_behind_and_not_written_to_any_more() {
        let shared = Arc::new(JournalCopies::new());
        let (hang, hung) = std::sync::mpsc::channel::<()>();
        let rounds = Arc::new(Mutex::new(0));
        let mut follower = Follower {
            begin: {
                let rounds = Arc::clone(&rounds);
                Box::new(move || {
                    *rounds.lock() += 1;
                    let _ = hung.recv();
                    Err(io::ErrorKind::TimedOut.into())
                })
            },
            shared: Arc::clone(&shared),
            copies: None,
            gaps_before: 0,
            said_at: None,
        };
        let thread = std::thread::spawn(move || follower.run());
        while *rounds.lock() == 0 {
            tokio::task::yield_now().await;
        }
        shared.end(NOT_LONG).await;
        assert!(!shared.ended.is_cancelled());
        drop(hang);
        thread.join().unwrap();
        assert_eq!(*rounds.lock(), 1);
        assert!(shared.ended.is_cancelled());
    }
}

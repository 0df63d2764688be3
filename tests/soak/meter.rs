//! Whether a shard serves: somebody asks it for a durable change, again and again, and notes how long that took.
//!
//! ```text
//!   asked ─ done ── asked ─ done ── asked ──── refused ── asked ─── done ── asked ─ done
//!   ◀──────────── up ──────────────▶◀──────────── down ─────────────────▶◀──── up ────
//! ```
//!
//! An instant counts as down when whoever asked then was not served within [`PROMPT`].

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde_json::json;

use super::house::SHARDS;
use super::support::client::Client;
use super::support::pass;

/// Whoever waits longer was not served in time.
const PROMPT: Duration = Duration::from_millis(500);
const ASK_EVERY: Duration = Duration::from_millis(20);

/// Of one shard.
#[derive(Default)]
pub struct Meter {
    /// The task that it is asked to move.
    id: String,
    noted: Mutex<Noted>,
}

#[derive(Default)]
struct Noted {
    /// From the first question that was not answered in time to the next answer that was.
    downs: Vec<(Instant, Instant)>,
    down_since: Option<Instant>,
    /// When the last question was asked that was answered in time.
    served: Option<Instant>,
}

impl Meter {
    /// One for each shard.
    pub fn of_all(client: &Client) -> Vec<Self> {
        let mut meters: Vec<Self> = (0..SHARDS).map(|_| Self::default()).collect();
        // Which shard a key belongs to is its own affair: keys are tried until each shard has one.
        for n in 0.. {
            let body = json!({"topic": "probe", "key": format!("p{n}"), "delay": "P1D", "action": {"none": {}}});
            let made = client.made(&body);
            let shard = made["shard"].as_u64().expect("it says where it is") as usize;
            meters[shard].id = made["id"].as_str().expect("it has one").to_owned();
            if meters.iter().all(|meter| !meter.id.is_empty()) {
                break;
            }
        }
        meters
    }

    /// Asks until it is over.
    pub fn ask(&self, client: &Client, over: &AtomicBool) {
        while !over.load(Ordering::Relaxed) {
            let path = format!("/v1/tasks/{}/reschedule", self.id);
            let asked = Instant::now();
            let reply = client.json("POST", &path, &[], &json!({"delay": "P1D"}));
            let is_done = reply.is_ok_and(|reply| reply.status == 200);
            self.noted.lock().note(asked, Instant::now(), is_done);
            pass(ASK_EVERY);
        }
    }

    /// Whether a question was answered in time that was asked after this.
    pub fn serves_since(&self, instant: Instant) -> bool {
        let noted = self.noted.lock();
        noted.down_since.is_none() && noted.served.is_some_and(|served| served > instant)
    }

    /// How long it was down between these.
    pub fn down(&self, from: Instant, to: Instant) -> Duration {
        let noted = self.noted.lock();
        let open = noted.down_since.map(|since| (since, to));
        let downs = noted.downs.iter().copied().chain(open);
        downs
            .map(|(since, until)| until.min(to).saturating_duration_since(since.max(from)))
            .sum()
    }
}

impl Noted {
    fn note(&mut self, asked: Instant, answered: Instant, is_done: bool) {
        match (is_done, answered - asked <= PROMPT) {
            (true, true) => {
                self.served = Some(asked);
                if let Some(since) = self.down_since.take() {
                    self.downs.push((since, answered));
                }
            }
            (true, false) => {
                let since = self.down_since.take().unwrap_or(asked);
                self.served = Some(answered);
                self.downs.push((since, answered));
            }
            (false, _) => {
                self.down_since.get_or_insert(asked);
            }
        }
    }
}

/// Down times of one stretch, by shard, in milliseconds.
pub fn down_ms(meters: &[Meter], from: Instant, to: Instant) -> Vec<u64> {
    let down = |meter: &Meter| meter.down(from, to).as_millis() as u64;
    meters.iter().map(down).collect()
}

//! Looking at everything: each task as it was promised, counts that agree with lists, and in the end nothing due that
//! has not ended.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::ledger::Kind;
use super::support::client::key_path;
use super::support::{Random, SOON};
use super::traffic::{Gone, Stage};

/// Longest wait for counts that stay the same for as long as a list takes.
const LOOK_MAX: Duration = SOON;

impl Stage<'_> {
    /// Compares every task with its promise, and the counts with the tasks.
    pub fn look_at_all(&self) -> Result<(), String> {
        let doubtful = self.ledger.lock().doubtful_creates();
        let end = Instant::now() + LOOK_MAX;
        let mut disagreed = 0;
        // Due tasks go on meanwhile: a list counts if nothing was counted otherwise before and after it.
        let found = loop {
            self.note_hits();
            self.ledger.lock().mark();
            let before = counts(&self.get("/v1/stats")?);
            let found = self.list_all()?;
            if before == counts(&self.get("/v1/stats")?) {
                let mut listed: Counts = BTreeMap::new();
                for task in found.values() {
                    let (topic, state) = (text(&task["topic"]), text(&task["state"]));
                    *listed.entry((topic, state)).or_default() += 1;
                }
                // A task may be handed out again within one look, and be counted the same before and after it: what
                // is wrong stays wrong.
                disagreed += u32::from(listed != before);
                if listed != before && disagreed < 5 && Instant::now() < end {
                    continue;
                }
                if listed != before {
                    return Err(format!(
                        "counts do not agree with lists\n      counted: {before:?}\n      listed: {listed:?}"
                    ));
                }
                break found;
            }
            if Instant::now() > end {
                return Err(format!(
                    "the counts do not come to rest within {LOOK_MAX:?}"
                ));
            }
        };
        self.note_hits();
        let wanted = self.ledger.lock().wanted();
        if let Some(stranger) = found.keys().find(|key| !wanted.contains(*key)) {
            return Err(format!(
                "nobody made this task, or it was not there before: {}",
                found[stranger]
            ));
        }
        for key in wanted {
            let mut ledger = self.ledger.lock();
            match found.get(&key) {
                Some(task) => ledger.looked_at(&key, task, true),
                None => ledger.missed(&key),
            }
        }
        // A create that got no answer, sent again: it is the same task, or there was none.
        for key in doubtful {
            let was = found.get(&key).map(|found| &found["id"]);
            let request = self.ledger.lock().promise(&key).request.clone();
            if was.is_none() {
                self.ledger.lock().creating(&key);
            }
            let headers = [("idempotency-key", key.as_str())];
            let reply = self
                .client
                .json("POST", "/v1/tasks", &headers, &request)
                .map_err(|gone| gone.to_string())?;
            let task = reply.json();
            if reply.status != 201 || was.is_some_and(|was| *was != task["id"]) {
                return Err(format!(
                    "{key}, sent again, was {was:?} and is now {} {task}",
                    reply.status
                ));
            }
            if was.is_none() {
                self.ledger.lock().told(&key, &task, true);
            }
        }
        // Each is also found by its key.
        for key in found.keys().step_by(1 + found.len() / 10) {
            let topic = self.ledger.lock().promise(key).kind.topic();
            let by_key = self.get(&key_path(topic, key))?;
            if by_key["id"] != found[key]["id"] {
                return Err(format!("by its key, {} is {by_key}", found[key]));
            }
        }
        Ok(())
    }

    /// All tasks there are, by key.
    fn list_all(&self) -> Result<BTreeMap<String, Value>, String> {
        let mut found = BTreeMap::new();
        let mut cursor = String::new();
        loop {
            let page = self.get(&format!("/v1/tasks?limit=1000{cursor}"))?;
            let items = page["items"].as_array().into_iter().flatten();
            for task in items.filter(|task| Kind::is_topic(&task["topic"])) {
                if let Some(twin) = found.insert(text(&task["key"]), task.clone()) {
                    return Err(format!(
                        "two tasks have one key:\n      {twin}\n      {task}"
                    ));
                }
            }
            match page["next_cursor"].as_str() {
                Some(next) => cursor = format!("&cursor={next}"),
                None => return Ok(found),
            }
        }
    }

    /// Everything that is due ends.
    pub fn drain(&self, worker: &mut Random) -> Result<(), String> {
        let end = Instant::now() + 2 * SOON;
        loop {
            self.look_at_all()?;
            let overdue = self.ledger.lock().overdue();
            if overdue.is_empty() {
                return Ok(());
            }
            if Instant::now() > end {
                let promise = format!("{:?}", self.ledger.lock().promise(&overdue[0]));
                return Err(format!(
                    "{} tasks are due and do not end, among them {promise}",
                    overdue.len()
                ));
            }
            let gone = |_: Gone| "the process is gone while nothing is done to it".to_owned();
            while self.lease_some(worker).map_err(gone)? > 0 {}
        }
    }
}

/// How many tasks of a topic are in a state.
type Counts = BTreeMap<(String, String), u64>;

fn counts(stats: &Value) -> Counts {
    let mut counts = BTreeMap::new();
    let topics = stats["topics"].as_array().into_iter().flatten();
    for topic in topics.filter(|topic| Kind::is_topic(&topic["topic"])) {
        for (state, count) in topic["states"].as_object().into_iter().flatten() {
            if let Some(count) = count.as_u64().filter(|count| *count > 0) {
                counts.insert((text(&topic["topic"]), state.clone()), count);
            }
        }
    }
    counts
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

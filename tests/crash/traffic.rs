//! What callers and workers do to the service, one request at a time, until it is gone from under them.

use std::convert::Infallible;
use std::io;
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::{Value, json};

use super::ledger::{Held, Kind, Ledger, Start};
use super::support::client::{Client, Reply};
use super::support::receiver::{Answer, Receiver, status};
use super::support::{Random, fixed, iso, length, now_ms, push};

/// Creates of one driver between two deaths; then it only does things to what there is.
const CREATES_PER_LIFE: usize = 25;
/// Tasks that a driver still does things to; older ones are left alone.
const IN_HAND: usize = 40;
/// More than a crash per attempt for a whole run.
const ATTEMPTS: u32 = 5_000;
const HOUR_MS: u64 = 3_600_000;
/// Functions that call where their task's payload says: one that is async, one that blocks its thread.
pub const HANDLERS: [&str; 2] = ["calls", "calls-blocking"];

/// The process is gone.
pub struct Gone;

/// What a request came to.
enum Came {
    Done(Value),
    Refused(Reply),
    /// The service says that it does not know.
    Doubtful,
}

fn came(reply: io::Result<Reply>) -> Result<Came, Gone> {
    let reply = reply.map_err(|_| Gone)?;
    match reply.status {
        200..=299 => Ok(Came::Done(reply.json())),
        503 if reply.json()["code"] == "shard_unavailable" => Ok(Came::Doubtful),
        _ => Ok(Came::Refused(reply)),
    }
}

/// Where everybody meets.
pub struct Stage<'a> {
    pub client: Client,
    pub receiver: &'a Receiver,
    pub ledger: &'a Mutex<Ledger>,
}

/// What kinds of tasks callers make.
#[derive(Clone, Copy)]
pub struct Mix {
    pub kinds: &'static [Kind],
    /// So many of a hundred must not be started again in doubt.
    pub at_most_once: u64,
    /// Length of an attempt and of its grace in milliseconds, if not the service's own.
    pub timeouts_ms: Option<(u64, u64)>,
}

/// A caller. Each has tasks of its own, so that it knows what it did to them and in which order.
pub struct Driver {
    name: usize,
    mix: Mix,
    made: usize,
    in_hand: Vec<String>,
    random: Random,
}

impl Driver {
    pub fn new(name: usize, seed: u64, mix: Mix) -> Self {
        let random = Random::new(seed ^ (name as u64 + 1).wrapping_mul(0xD1B5_4A32_D192_ED03));
        Self {
            name,
            mix,
            made: 0,
            in_hand: Vec::new(),
            random,
        }
    }

    /// Until the process is gone.
    pub fn drive(&mut self, stage: &Stage<'_>) -> Result<Infallible, Gone> {
        let goal = self.made + CREATES_PER_LIFE;
        loop {
            self.step(stage, self.made < goal)?;
        }
    }

    /// One request.
    pub fn step(&mut self, stage: &Stage<'_>, may_create: bool) -> Result<(), Gone> {
        let surplus = self.in_hand.len().saturating_sub(IN_HAND);
        self.in_hand.drain(..surplus);
        match self.random.below(100) {
            0..=29 if may_create => self.create(stage),
            30..=33 if may_create => self.create_many(stage),
            _ => self.act(stage),
        }
    }

    fn create(&mut self, stage: &Stage<'_>) -> Result<(), Gone> {
        let once = self.random.below(3) == 0;
        let (key, body) = self.invent(stage, once);
        let headers: &[(&str, &str)] = if once {
            &[("idempotency-key", &key)]
        } else {
            &[]
        };
        match came(stage.client.json("POST", "/v1/tasks", headers, &body))? {
            Came::Done(task) => stage.ledger.lock().told(&key, &task, true),
            Came::Refused(reply) => stage.surprise(&key, "a create", &reply),
            Came::Doubtful => self.let_go(&key),
        }
        Ok(())
    }

    fn create_many(&mut self, stage: &Stage<'_>) -> Result<(), Gone> {
        let count = 5 + self.random.below(15);
        let made: Vec<_> = (0..count).map(|_| self.invent(stage, false)).collect();
        let items: Vec<&Value> = made.iter().map(|(_, body)| body).collect();
        match came(
            stage
                .client
                .json("POST", "/v1/tasks/batch", &[], &json!({"items": items})),
        )? {
            Came::Done(answer) => {
                for ((key, _), item) in made
                    .iter()
                    .zip(answer["items"].as_array().into_iter().flatten())
                {
                    if item["status"] == 201 {
                        stage.ledger.lock().told(key, &item["task"], true);
                    } else {
                        self.let_go(key);
                    }
                }
            }
            Came::Refused(reply) => stage.surprise(&made[0].0, "a batch", &reply),
            Came::Doubtful => made.iter().for_each(|(key, _)| self.let_go(key)),
        }
        Ok(())
    }

    /// A new task, noted in the ledger as asked for; `once`: with an idempotency key.
    fn invent(&mut self, stage: &Stage<'_>, once: bool) -> (String, Value) {
        self.made += 1;
        let key = format!("d{}-{}", self.name, self.made);
        let kind = self.mix.kinds[self.random.below(self.mix.kinds.len() as u64) as usize];
        let due_in = match self.random.below(10) {
            0..=4 => self.random.below(300),
            5..=7 => 300 + self.random.below(2_500),
            _ => HOUR_MS,
        };
        // Mostly small; some take several entries of the store.
        let pad = match self.random.below(20) {
            0 => 20_000 + self.random.below(60_000),
            1..=5 => self.random.below(8_000),
            _ => self.random.below(300),
        };
        let mut payload = json!({"n": self.made, "pad": "x".repeat(pad as usize)});
        let action = match kind {
            Kind::None => json!({"none": {}}),
            Kind::Pull => json!({"pull": {}}),
            Kind::Push => push(&self.called(stage, &key)),
            Kind::Handler => {
                payload["url"] = json!(self.called(stage, &key));
                let name = HANDLERS[self.random.below(HANDLERS.len() as u64) as usize];
                json!({"handler": {"name": name}})
            }
        };
        let mut body = json!({
            "topic": kind.topic(), "key": key, "due_at": iso(now_ms() + due_in as i64), "action": action,
            "retry": fixed(50, ATTEMPTS), "payload": payload,
        });
        if let Some((attempt, grace)) = self.mix.timeouts_ms {
            body["timeouts"] = json!({"attempt": length(attempt), "grace": length(grace)});
        }
        if self.random.below(100) < self.mix.at_most_once {
            body["delivery"] = json!("at_most_once");
        }
        let mut ledger = stage.ledger.lock();
        ledger.invented(&key, kind, body.clone(), once);
        ledger.creating(&key);
        drop(ledger);
        if kind != Kind::Pull {
            self.in_hand.push(key.clone());
        }
        (key, body)
    }

    /// Where a task's attempts call, and what they are told there.
    fn called(&mut self, stage: &Stage<'_>, key: &str) -> String {
        let slow = Duration::from_millis(20 + self.random.below(60));
        let answers = match self.random.below(4) {
            0 => vec![status(500), status(200)],
            1 => vec![Answer::Later(slow, 200, String::new())],
            _ => vec![status(200)],
        };
        stage.receiver.on(&format!("/{key}"), &answers)
    }

    /// Does something to a task that it has in hand.
    fn act(&mut self, stage: &Stage<'_>) -> Result<(), Gone> {
        if self.in_hand.is_empty() {
            return self.create(stage);
        }
        let at = self.random.below(self.in_hand.len() as u64) as usize;
        let key = self.in_hand[at].clone();
        let (held, id) = {
            let ledger = stage.ledger.lock();
            (ledger.held(&key).cloned(), ledger.id(&key))
        };
        let (due_ms, is_paused, id) = match (held, id) {
            (Some(Held::Live { due_ms }), Some(id)) => (due_ms, false, id),
            (Some(Held::Paused { due_ms }), Some(id)) => (due_ms, true, id),
            // Ended, or in doubt until somebody has looked.
            _ => {
                self.in_hand.swap_remove(at);
                return Ok(());
            }
        };
        let (verb, body, after) = match self.random.below(100) {
            0..=19 => ("cancel", json!({}), Held::ended("cancelled", None)),
            20..=39 => ("pause", json!({}), Held::Paused { due_ms }),
            40..=59 => ("resume", json!({}), Held::Live { due_ms }),
            60..=79 => {
                let due_ms = now_ms() + 200 + self.random.below(2_000) as i64;
                (
                    "reschedule",
                    json!({"due_at": iso(due_ms)}),
                    Held::Asked {
                        due_ms,
                        paused: is_paused,
                    },
                )
            }
            80..=91 => {
                let result = json!({"done": key});
                (
                    "complete",
                    json!({"result": result}),
                    Held::ended("succeeded", Some(result)),
                )
            }
            _ => return stage.look(&key, &id),
        };
        stage.ledger.lock().asking(&key, after);
        let path = format!("/v1/tasks/{id}/{verb}");
        let reply = stage.client.json("POST", &path, &[], &body);
        let was_running = matches!(&reply, Ok(reply) if reply.status == 202);
        match came(reply)? {
            // Only a completion and a 202 may overtake an attempt that is out; the rest would have been refused.
            Came::Done(task) => {
                stage
                    .ledger
                    .lock()
                    .told(&key, &task, verb != "complete" && !was_running)
            }
            Came::Refused(reply) if reply.status == 409 => stage.ledger.lock().refused(&key),
            Came::Refused(reply) => stage.surprise(&key, verb, &reply),
            Came::Doubtful => self.let_go(&key),
        }
        Ok(())
    }

    fn let_go(&mut self, key: &str) {
        self.in_hand.retain(|known| known != key);
    }
}

impl Stage<'_> {
    /// What is there, or that it is not to be had.
    pub fn get(&self, path: &str) -> Result<Value, String> {
        let reply = self
            .client
            .send("GET", path, &[], b"")
            .map_err(|error| format!("GET {path}: {error}"))?;
        match reply.status {
            200 => Ok(reply.json()),
            status => Err(format!("GET {path} was answered {status} {}", reply.text())),
        }
    }

    /// Feeds the ledger with the pushes that have come.
    pub fn note_hits(&self) {
        let mut ledger = self.ledger.lock();
        for hit in self.receiver.hits_after(ledger.hits) {
            ledger.hit(&hit);
        }
    }

    fn look(&self, key: &str, id: &str) -> Result<(), Gone> {
        self.note_hits();
        self.ledger.lock().mark();
        match came(
            self.client
                .send("GET", &format!("/v1/tasks/{id}"), &[], b""),
        )? {
            Came::Done(task) => {
                self.note_hits();
                self.ledger.lock().looked_at(key, &task, false);
            }
            Came::Refused(reply) if reply.status == 404 => self.ledger.lock().missed(key),
            Came::Refused(reply) => self.surprise(key, "a read", &reply),
            Came::Doubtful => {}
        }
        Ok(())
    }

    fn surprise(&self, key: &str, what: &str, reply: &Reply) {
        // A queue that is full, or a service that is leaving, has done nothing.
        let mut ledger = self.ledger.lock();
        if reply.status == 503 {
            return ledger.refused(key);
        }
        ledger.violate(
            key,
            &format!("{what} was answered {} {}", reply.status, reply.text()),
        );
    }

    /// A worker: leases, and completes, fails or forgets.
    pub fn work(&self, random: &mut Random) -> Result<Infallible, Gone> {
        loop {
            self.lease_some(random)?;
        }
    }

    /// One round of it; how many there were.
    pub fn lease_some(&self, random: &mut Random) -> Result<usize, Gone> {
        let ask = json!({
            "topics": [Kind::Pull.topic()], "max": 20, "wait_ms": 50, "lease": "PT0.3S", "worker": "w1",
        });
        let Came::Done(answer) = came(self.client.json("POST", "/v1/leases", &[], &ask))? else {
            return Ok(0);
        };
        let leased_at = now_ms();
        let leases = answer["items"].as_array().cloned().unwrap_or_default();
        for lease in &leases {
            let key = lease["task"]["key"].as_str().unwrap_or_default().to_owned();
            let attempt = lease["attempt"].as_u64().unwrap_or_default();
            let start = Start {
                attempt,
                token: lease["token"].as_u64(),
                at_ms: leased_at,
            };
            self.ledger.lock().started(&key, start);
            let Held::Live { due_ms } = Held::of(&lease["task"]) else {
                self.ledger.lock().violate(
                    &key,
                    &format!("was leased in this state: {}", lease["task"]),
                );
                continue;
            };
            let result = json!({"attempt": attempt});
            let (verb, mut body, after) = match random.below(20) {
                0..=14 => (
                    "complete",
                    json!({"result": result}),
                    Held::ended("succeeded", Some(result)),
                ),
                15..=18 => (
                    "fail",
                    json!({"error": {"code": "no", "message": "try again"}}),
                    Held::Live { due_ms },
                ),
                _ => continue,
            };
            body["token"] = lease["token"].clone();
            self.ledger.lock().asking(&key, after);
            let id = lease["task"]["id"].as_str().unwrap_or_default();
            match came(
                self.client
                    .json("POST", &format!("/v1/leases/{id}/{verb}"), &[], &body),
            )? {
                Came::Done(task) => self.ledger.lock().told(&key, &task, false),
                // The lease had run out, and somebody else has the task.
                Came::Refused(reply) if reply.status == 409 => self.ledger.lock().refused(&key),
                Came::Refused(reply) => self.surprise(&key, verb, &reply),
                Came::Doubtful => {}
            }
        }
        Ok(leases.len())
    }
}

//! Rounds of load and faults, with a look at everything after each.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::scope;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde_json::Value;

use super::faults::{Deck, Fault, Kind};
use super::history::History;
use super::house::{LEFT, VARIABLE};
use super::ledger::{Held, Kind as Work, Ledger};
use super::meter::{Meter, down_ms};
use super::report::{Happened, Report};
use super::support::client::Client;
use super::support::receiver::Receiver;
use super::support::service::{START_MAX, Service};
use super::support::{LOOK_EVERY, Over, Random, pass, signal};
use super::traffic::{Driver, Mix, Stage};

const ROUND: Duration = Duration::from_secs(20);
const DRIVERS: usize = 3;
/// Between two requests of a driver.
const BREATH: Duration = Duration::from_millis(8);
/// When the process is gone from under it.
const BREATH_GONE: Duration = Duration::from_millis(20);
const MIX: Mix = Mix {
    kinds: &[Work::None, Work::Push, Work::Pull, Work::Handler],
    at_most_once: 30,
    timeouts_ms: Some((1_500, 300)),
};
/// Longest wait for somebody to come by a point, and for the restart that follows.
const MET_MAX: Duration = Duration::from_secs(6);
/// How long a part is slow.
const SLOW: Duration = Duration::from_millis(1_200);
const STOPPED: Duration = Duration::from_secs(1);
/// Longest time from the end of a fault until everything serves again.
const SETTLED_MAX: Duration = Duration::from_secs(30);
const HISTORY_READERS: usize = 4;

pub struct Soak {
    seed: u64,
    service: Service,
    receiver: Receiver,
    ledger: Mutex<Ledger>,
    drivers: Vec<Driver>,
    worker: Random,
    deck: Deck,
    happened: Vec<Happened>,
}

/// What is known of the children: how often each was restarted, and whether it runs and has no zombies.
type Children = BTreeMap<String, (u64, bool)>;

impl Soak {
    pub fn new(seed: u64) -> Self {
        let mut service = Service::unstarted(&[(VARIABLE, "1")]);
        service.set_program(std::env::current_exe().expect("this program has a name"));
        Self {
            seed,
            service,
            receiver: Receiver::start(),
            ledger: Mutex::default(),
            drivers: (0..DRIVERS)
                .map(|name| Driver::new(name, seed, MIX))
                .collect(),
            worker: Random::new(seed ^ 0xB0B),
            deck: Deck::new(seed),
            happened: Vec::new(),
        }
    }

    /// All of it. Faults rotate for so long; what comes after is looking.
    pub fn run(mut self, length: Duration) -> Report {
        self.service.start_again();
        let meters = Meter::of_all(&self.service);
        let (mut under_load, mut down) = (Duration::ZERO, vec![0; meters.len()]);
        let mut ended = Ok(());
        while under_load < length && ended.is_ok() {
            let began = Instant::now();
            ended = self.round(ROUND.min(length - under_load), &meters);
            let over = Instant::now();
            under_load += over - began;
            for (total, ms) in down.iter_mut().zip(down_ms(&meters, began, over)) {
                *total += ms;
            }
            ended = ended.and_then(|()| self.stage().look_at_all());
            ended = ended.and_then(|()| self.nothing_broken());
        }
        let mut worker = Random::new(self.seed);
        let drained = ended.and_then(|()| self.stage().drain(&mut worker));
        let gone_through = drained.and_then(|()| self.histories());
        let mut violations = std::mem::take(&mut self.ledger.lock().violations);
        violations.extend(gone_through.as_ref().err().cloned());
        let kept = (!violations.is_empty()).then(|| self.service.keep().display().to_string());
        let ledger = self.ledger.lock();
        Report {
            length: under_load,
            down_ms: down,
            tasks: ledger.len(),
            starts: ledger.promises().map(|(_, of)| of.started.len()).sum(),
            histories: gone_through.unwrap_or_default(),
            violations,
            kept,
            happened: std::mem::take(&mut self.happened),
            ..Report::of(self.seed)
        }
    }

    fn nothing_broken(&self) -> Result<(), String> {
        let broken = self.ledger.lock().violations.len();
        match broken {
            0 => Ok(()),
            _ => Err(format!("{broken} promises were broken by then")),
        }
    }

    fn stage(&self) -> Stage<'_> {
        Stage {
            client: *self.service,
            receiver: &self.receiver,
            ledger: &self.ledger,
        }
    }

    /// One round: everybody at work, and one fault after the other.
    fn round(&mut self, length: Duration, meters: &[Meter]) -> Result<(), String> {
        let stage = Stage {
            client: *self.service,
            receiver: &self.receiver,
            ledger: &self.ledger,
        };
        let over = AtomicBool::new(false);
        let goes_on = || !over.load(Ordering::Relaxed);
        let (service, deck, happened) = (&mut self.service, &mut self.deck, &mut self.happened);
        let (drivers, worker) = (&mut self.drivers, &mut self.worker);
        scope(|scope| {
            let over_all = Over(&over);
            for driver in drivers {
                let stage = &stage;
                scope.spawn(move || {
                    while goes_on() {
                        let done = driver.step(stage, true);
                        pass(if done.is_ok() { BREATH } else { BREATH_GONE });
                    }
                });
            }
            let at_work = &stage;
            scope.spawn(move || {
                while goes_on() {
                    if at_work.lease_some(worker).is_err() {
                        pass(BREATH_GONE);
                    }
                }
            });
            for meter in meters {
                let (client, over) = (&stage.client, &over);
                scope.spawn(move || meter.ask(client, over));
            }
            let end = Instant::now() + length;
            let mut director = Director { service, meters };
            let mut directed = Ok(());
            while directed.is_ok() && Instant::now() < end {
                let fault = deck.draw();
                directed = director.strike(fault).map(|struck| happened.push(struck));
                pass(Duration::from_millis(deck.pause_ms()));
            }
            drop(over_all);
            directed
        })
    }

    /// Goes through the history of each task that was to be started; how many those were.
    fn histories(&self) -> Result<usize, String> {
        self.stage().note_hits();
        let ledger = self.ledger.lock();
        let of_work = ledger.promises().filter(|(_, of)| of.kind != Work::None);
        let of_work: Vec<_> = of_work
            .filter_map(|(key, of)| Some((key, of, ledger.id(key)?)))
            .collect();
        let stage = self.stage();
        let (next, wrongs) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
        scope(|scope| {
            let read = || {
                while let Some((key, promise, id)) =
                    of_work.get(next.fetch_add(1, Ordering::Relaxed))
                {
                    let attempts = stage.get(&format!("/v1/tasks/{id}/attempts"));
                    let found = attempts.map(|attempts| {
                        let written = attempts["items"].as_array().cloned().unwrap_or_default();
                        let state = match ledger.held(key) {
                            Some(Held::Ended { state, .. }) => state.as_str(),
                            _ => "live",
                        };
                        let history = History {
                            starts: &promise.started,
                            written: &written,
                            at_most_once: promise.at_most_once,
                            state,
                        };
                        let tell = |wrong| {
                            format!(
                                "{key} ({id}): {wrong}\n      seen: {:?}\n      written: {}",
                                promise.started, attempts["items"]
                            )
                        };
                        history.wrongs().into_iter().map(tell).collect()
                    });
                    wrongs.lock().extend(found.unwrap_or_else(|why| vec![why]));
                }
            };
            for _ in 0..HISTORY_READERS {
                scope.spawn(read);
            }
        });
        let wrongs = wrongs.into_inner();
        match wrongs.first() {
            None => Ok(of_work.len()),
            Some(first) => Err(format!(
                "{} histories are wrong, the first: {first}",
                wrongs.len()
            )),
        }
    }
}

/// Who breaks parts, and waits until they serve again.
struct Director<'a> {
    service: &'a mut Service,
    meters: &'a [Meter],
}

impl Director<'_> {
    fn strike(&mut self, fault: Fault) -> Result<Happened, String> {
        let before = children(self.service).ok_or("the parts are not to be seen")?;
        let began = Instant::now();
        let mut was_met = true;
        let mut has_left = false;
        match (&fault.point, fault.kind) {
            (None, Kind::Stop) => {
                signal(self.service.process_id(), "STOP");
                pass(STOPPED);
                signal(self.service.process_id(), "CONT");
            }
            (None, _) => self.start_anew()?,
            (Some(point), kind) => {
                self.tell(&format!("set {point} {}", kind.action()))?;
                if let Some(part) = &fault.sends_away {
                    self.tell(&format!("restart {part}"))?;
                }
                was_met = self.wait_for(&fault, &before);
                if kind == Kind::Kill {
                    self.start_anew()?;
                } else if !was_met && self.service.is_gone().is_some() {
                    has_left = true;
                } else {
                    self.tell(&format!("set {point} off"))?;
                }
            }
        }
        let released = Instant::now();
        while !self.has_settled(released) {
            if let Some(status) = self.service.is_gone() {
                if status.code() != Some(LEFT) {
                    return Err(format!("after {fault} the process has left with {status}"));
                }
                has_left = true;
                self.start_anew()?;
            }
            if released.elapsed() > SETTLED_MAX {
                let parts = children(self.service);
                return Err(format!(
                    "{SETTLED_MAX:?} after {fault} not everything serves: {parts:?}"
                ));
            }
            pass(LOOK_EVERY);
        }
        let after = children(self.service).unwrap_or_default();
        let restarts = after.iter().map(|(name, (restarts, _))| {
            let before = before.get(name).map_or(0, |(restarts, _)| *restarts);
            restarts.saturating_sub(before)
        });
        Ok(Happened {
            was_met,
            has_left,
            restarts: restarts.sum(),
            down_ms: down_ms(self.meters, began, Instant::now()),
            fault,
        })
    }

    /// Waits until the fault has had its effect; whether it had.
    fn wait_for(&mut self, fault: &Fault, before: &Children) -> bool {
        let end = Instant::now()
            + if fault.kind == Kind::Slow {
                SLOW
            } else {
                MET_MAX
            };
        let wanted = before.get(&fault.part).map(|(was, _)| was + fault.restarts);
        while Instant::now() < end {
            if self.service.is_gone().is_some() {
                return fault.kind == Kind::Kill;
            }
            let now = children(self.service);
            let restarts = now.and_then(|now| Some(now.get(&fault.part)?.0));
            let is_through = fault.kind != Kind::Kill && restarts >= wanted;
            if fault.restarts > 0 && fault.kind != Kind::Slow && is_through {
                return true;
            }
            pass(LOOK_EVERY);
        }
        // Whether somebody was slow, or an attempt failed, does not show in the parts.
        fault.restarts == 0 || fault.kind == Kind::Slow
    }

    fn has_settled(&self, since: Instant) -> bool {
        let are_well = |children: Children| children.values().all(|(_, is_well)| *is_well);
        self.meters.iter().all(|meter| meter.serves_since(since))
            && children(self.service).is_some_and(are_well)
            && self
                .service
                .readiness(Duration::from_secs(5))
                .is_ok_and(|reply| reply.status == 200)
    }

    fn tell(&mut self, line: &str) -> Result<(), String> {
        let told = self.service.tell(line);
        told.map_err(|error| format!("{line}: {error}"))
    }

    fn start_anew(&mut self) -> Result<(), String> {
        self.service.kill();
        let started = self.service.try_start(START_MAX);
        started.map_err(|why| format!("it does not start again: {why}"))
    }
}

/// The parts, unless nobody answers.
fn children(client: &Client) -> Option<Children> {
    let reply = client.send("GET", "/v1/actors", &[], b"").ok()?;
    let answer: Value = (reply.status == 200).then(|| reply.json())?;
    let items = answer["items"].as_array()?;
    let child = |item: &Value| {
        let is_well = item["state"] == "running" && item["quarantined"] == 0;
        let restarts = item["restarts"].as_u64()?;
        Some((item["name"].as_str()?.to_owned(), (restarts, is_well)))
    };
    items.iter().map(child).collect()
}

//! Lives and deaths of the process, with what is looked at in between.
//!
//! A cycle is one life: traffic, until the process is killed at a random moment, or dies at a failpoint, perhaps while
//! it recovers. Some failpoints break or hold up a step instead, and the kill comes later. Then everything that was
//! promised is looked at.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::ledger::{Kind, Ledger};
use super::support::program::{is_asked_for, number};
use super::support::receiver::Receiver;
use super::support::service::{START_MAX, Service};
use super::support::{Random, now_ms, pass};
use super::traffic::{Driver, Mix, Stage};

/// Then a new directory is begun, so that looking at everything stays quick however many cycles there are.
const DIRECTORY_CYCLES: u64 = 20;
const DRIVERS: usize = 3;
/// Longest start of a life, which a failpoint may block; then it is over before it began.
const RECOVERY_MAX: Duration = Duration::from_secs(3);
/// Longest wait for a failpoint to be met; then the process is killed anyway.
const LIFE_MAX: Duration = Duration::from_millis(500);
const MIX: Mix = Mix {
    kinds: &[Kind::None, Kind::Push, Kind::Pull],
    at_most_once: 0,
    timeouts_ms: None,
};
/// A checkpoint as small as can be, so that one is written every few lives.
const ENVIRONMENT: [(&str, &str); 2] = [
    ("DUETIME_STORE__CHECKPOINT_BYTES", "64KiB"),
    ("DUETIME_LOG__LEVEL", "warn"),
];

/// What was asked for on the command line.
pub struct Asked {
    /// Of the test program.
    pub program: &'static str,
    pub cycles: u64,
    pub seed: u64,
}

impl Asked {
    /// `--cycles` and `--seed`; `None` if other tests are meant.
    pub fn of(program: &'static str, cycles: u64) -> Option<Self> {
        let seed = now_ms().unsigned_abs();
        let mut asked = Self {
            program,
            cycles,
            seed,
        };
        let is_meant = is_asked_for(program, |option, value| {
            let into = match option {
                "--cycles" => &mut asked.cycles,
                "--seed" => &mut asked.seed,
                _ => return false,
            };
            *into = number(option, &value());
            true
        });
        is_meant.then_some(asked)
    }

    /// Runs the cycles. `prepare` does something to each new directory.
    pub fn run(&self, prepare: impl Fn(&mut Run)) -> ExitCode {
        let Self {
            program,
            cycles,
            seed,
        } = *self;
        println!("{program}: {cycles} cycles, seed {seed}");
        if !cfg!(feature = "failpoints") {
            println!(
                "{program}: kills at failpoints NOT RUN, only at random moments: this build has none"
            );
            println!("{program}: to run them: cargo test --features failpoints --test {program}");
        }
        let began = Instant::now();
        let mut killed_at = BTreeMap::new();
        for first in (0..cycles).step_by(DIRECTORY_CYCLES as usize) {
            // A seed for each directory, so that it can be had again without those before it.
            let seed = seed.wrapping_add(first / DIRECTORY_CYCLES);
            let last = cycles.min(first + DIRECTORY_CYCLES);
            let mut run = Run::new(program, seed);
            prepare(&mut run);
            for cycle in first + 1..=last {
                run.live_and_die();
                if let Err(Broken) = run.check(cycle == last) {
                    run.complain(seed, cycle - first);
                    return ExitCode::FAILURE;
                }
                if cycle.is_multiple_of(10) || cycle == cycles {
                    run.progress(cycle, began.elapsed());
                }
            }
            for (point, kills) in run.killed_at {
                *killed_at.entry(point).or_insert(0) += kills;
            }
        }
        if cfg!(feature = "failpoints") {
            self.sum_up(&killed_at);
        }
        println!("{program}: no promise was broken");
        ExitCode::SUCCESS
    }

    /// At which failpoints the process died, and at which it never did.
    fn sum_up(&self, killed_at: &BTreeMap<&'static str, u64>) {
        let met = killed_at
            .iter()
            .map(|(name, kills)| format!("{name} {kills}"));
        println!(
            "{}: killed at {}",
            self.program,
            met.collect::<Vec<_>>().join(", ")
        );
        let all = duetime::failpoints::POINTS.iter().map(|(name, _)| *name);
        let missed: Vec<_> = all.filter(|name| !killed_at.contains_key(name)).collect();
        if !missed.is_empty() {
            println!("{}: never killed at {}", self.program, missed.join(", "));
        }
    }
}

/// Something is not as promised; the ledger says what.
struct Broken;

/// A directory, and all that was done to it.
pub struct Run {
    program: &'static str,
    pub service: Service,
    /// What happens to the directory when the process is dead.
    pub after_death: Box<dyn FnMut()>,
    receiver: Receiver,
    ledger: Mutex<Ledger>,
    drivers: Vec<Driver>,
    random: Random,
    /// How the last lives ended.
    deaths: Vec<String>,
    /// How often each failpoint ended one.
    killed_at: BTreeMap<&'static str, u64>,
    /// Failpoints that are still to come before all begin again.
    points: Vec<&'static str>,
}

/// How a life is to end.
struct Plan {
    point: Option<&'static str>,
    /// Whether the process is dead when it gets there; else it is killed after a while.
    is_deadly: bool,
    failpoints: String,
}

impl Run {
    fn new(program: &'static str, seed: u64) -> Self {
        Self {
            program,
            after_death: Box::new(|| {}),
            service: Service::unstarted(&ENVIRONMENT),
            receiver: Receiver::start(),
            ledger: Mutex::default(),
            drivers: (0..DRIVERS)
                .map(|name| Driver::new(name, seed, MIX))
                .collect(),
            random: Random::new(seed),
            deaths: Vec::new(),
            killed_at: BTreeMap::new(),
            points: Vec::new(),
        }
    }

    fn plan(&mut self) -> Plan {
        let at_random = Plan {
            point: None,
            is_deadly: false,
            failpoints: String::new(),
        };
        if !cfg!(feature = "failpoints") || self.random.below(4) == 0 {
            return at_random;
        }
        if self.points.is_empty() {
            self.points = duetime::failpoints::POINTS
                .iter()
                .map(|(name, _)| *name)
                .collect();
        }
        let at = self.random.below(self.points.len() as u64) as usize;
        let point = self.points.swap_remove(at);
        // So often it is passed in a life, more or less.
        let passes = match point {
            "journal::write" | "journal::written" | "journal::synced" => 80,
            "fold::chunk" => 6,
            _ => 2,
        };
        let passes = self.random.below(passes);
        let (action, is_deadly) = match self.random.below(10) {
            0 => ("1*return(error)", false),
            1 => ("1*panic", false),
            2 => ("1*pause", false),
            3 => ("5*sleep(20)", false),
            4..=6 => ("return(late)", true),
            _ => ("return(kill)", true),
        };
        let failpoints = format!("{point}={passes}*off->{action}");
        Plan {
            point: Some(point),
            is_deadly,
            failpoints,
        }
    }

    /// One life of the process, with all that goes on in it, to its end.
    fn live_and_die(&mut self) {
        let plan = self.plan();
        self.service.set("FAILPOINTS", &plan.failpoints);
        let mut killed_by = "in its recovery";
        if self.service.try_start(RECOVERY_MAX).is_ok() {
            killed_by = self.traffic(&plan);
        }
        if let Some(point) = plan
            .point
            .filter(|_| plan.is_deadly && killed_by != "from outside")
        {
            *self.killed_at.entry(point).or_default() += 1;
        }
        let at = if plan.failpoints.is_empty() {
            "no failpoint"
        } else {
            &plan.failpoints
        };
        (self.after_death)();
        self.deaths.push(format!("{killed_by} ({at})"));
        let old = self.deaths.len().saturating_sub(3);
        self.deaths.drain(..old);
    }

    fn traffic(&mut self, plan: &Plan) -> &'static str {
        let stage = Stage {
            client: *self.service,
            receiver: &self.receiver,
            ledger: &self.ledger,
        };
        let mut worker = Random::new(self.random.below(u64::MAX));
        let life = match plan.is_deadly {
            true => LIFE_MAX,
            false => Duration::from_micros(20_000 + self.random.below(300_000)),
        };
        let end = Instant::now() + life;
        let service = &mut self.service;
        std::thread::scope(|scope| {
            for driver in &mut self.drivers {
                let stage = &stage;
                scope.spawn(move || driver.drive(stage));
            }
            scope.spawn(|| stage.work(&mut worker));
            let killed_by = loop {
                if service.is_gone().is_some() {
                    break "by itself";
                }
                let left = end.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    break "from outside";
                }
                pass(left.min(Duration::from_millis(2)));
            };
            // Everybody notices by his connection.
            service.kill();
            killed_by
        })
    }

    /// Starts the process again and looks at everything.
    fn check(&mut self, is_last: bool) -> Result<(), Broken> {
        self.service.set("FAILPOINTS", "");
        let looked = match self.service.try_start(START_MAX) {
            Ok(()) if is_last => self.drain(),
            Ok(()) => self.stage().look_at_all(),
            Err(why) => Err(format!("it does not start again: {why}")),
        };
        if let Err(why) = looked {
            self.ledger.lock().violations.push(why);
        }
        self.service.kill();
        if self.ledger.lock().violations.is_empty() {
            Ok(())
        } else {
            Err(Broken)
        }
    }

    /// Everything that is due ends.
    fn drain(&mut self) -> Result<(), String> {
        let mut worker = Random::new(self.random.below(u64::MAX));
        self.stage().drain(&mut worker)
    }

    fn stage(&self) -> Stage<'_> {
        Stage {
            client: *self.service,
            receiver: &self.receiver,
            ledger: &self.ledger,
        }
    }

    fn progress(&self, cycle: u64, elapsed: Duration) {
        let program = self.program;
        let (tasks, pushes) = (self.ledger.lock().len(), self.receiver.hits_after(0).len());
        let killed: u64 = self.killed_at.values().sum();
        let elapsed = elapsed.as_secs();
        println!(
            "{program}: {cycle} cycles, {elapsed} s; this directory: {tasks} tasks, {pushes} pushes, {killed} deaths at a failpoint"
        );
    }

    /// Says what was broken, and how to see it again.
    fn complain(&mut self, seed: u64, cycle: u64) {
        let features = if cfg!(feature = "failpoints") {
            "--features failpoints "
        } else {
            ""
        };
        let program = self.program;
        println!("{program}: BROKEN, in cycle {cycle} of seed {seed}; to repeat:");
        println!("  cargo test {features}--test {program} -- --cycles {cycle} --seed {seed}");
        println!("  the last lives ended {}", self.deaths.join(", "));
        for violation in self.ledger.lock().violations.iter().take(10) {
            println!("  - {violation}");
        }
        println!(
            "  data and log are kept in {}",
            self.service.keep().display()
        );
    }
}

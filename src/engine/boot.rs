//! The start: from a data directory to a running engine. Every part that can die is a child of the watchdog, and
//! its first start and its hundredth are the same code.

use std::sync::Arc;

use actix::{Actor, Addr};
use parking_lot::{Mutex, RwLock};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::clock::{Clock, DurationMs};
use crate::engine::backup::{self, Backups};
use crate::engine::bulk::{self, BulkBoard};
use crate::engine::disk::Disk;
use crate::engine::error::StartError;
use crate::engine::handle::{Duetime, KEEPING_MAX, Parts};
use crate::engine::journal_copies;
use crate::engine::keeper::keeper;
use crate::engine::known_topics::KnownTopics;
use crate::engine::options::Builder;
use crate::engine::registry::{RegistryActor, RegistryFiles, SharedBook, SharedRules};
use crate::engine::reports::Reports;
use crate::engine::rule_counts::RuleCounts;
use crate::engine::schedules::{self, ScheduleBoard};
use crate::engine::topics::REGISTRY_ROOM;
use crate::engine::what_if::WhatIfs;
use crate::executor::http_push::HttpPush;
use crate::executor::pull::PullDesk;
use crate::executor::roster::Roster;
use crate::executor::{Commands, Executors, Handlers, HttpPushActor, PushOptions};
use crate::failpoints;
use crate::ids::{ShardEpoch, ShardId, SlotMap};
use crate::scheduler::SchedulerActor;
use crate::shard::actor::{Outlets, ShardActor};
use crate::shard::completion::Completions;
use crate::shard::core::{CoreOptions, ShardCore};
use crate::shard::messages::SetBook;
use crate::shard::router::ShardRouter;
use crate::shard::wakes::WakeBoard;
use crate::store::StoreError;
use crate::store::data_dir::DataDir;
use crate::store::local::{LocalHome, LocalOptions};
use crate::watchdog::{Bounds, ChildContext, ChildSpec, Office, StartFault, Supervision, Watchdog};

/// A start that takes longer than this has failed.
const START_MAX: DurationMs = DurationMs::secs(15 * 60);

/// Starts an engine. Blocks while the shards recover.
pub(super) fn boot(options: Builder) -> Result<Duetime, StartError> {
    let path = options.data.ok_or(StartError::NoDataDir)?;
    if options.journal_dir.is_some() && options.backups.is_none() {
        return Err(StartError::CopiesWithoutBackups);
    }
    let cores = std::thread::available_parallelism().map_or(2, usize::from);
    let wanted = match options.shards {
        0 => u16::try_from(cores).unwrap_or(u16::MAX).max(2),
        count => count,
    };
    let dir = DataDir::open(&path, wanted)?;
    let stopping = CancellationToken::new();
    let disk = Disk::watch(dir.path(), options.reserve_bytes, stopping.clone())
        .map_err(StartError::Threads)?;
    let clock = options.clock;
    let files = RegistryFiles::open(dir.path())?;
    let book: SharedBook = Arc::new(RwLock::new(Arc::new(files.book()?)));
    let rules: SharedRules = Arc::new(RwLock::new(Arc::new(files.rules()?)));
    let io = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(cores.clamp(2, 8))
        .thread_name("duetime-io")
        .enable_all()
        .build()
        .map_err(StartError::Threads)?;

    let router = Arc::new(ShardRouter::new(SlotMap::new(dir.shards()), options.queue));
    let reports = Arc::new(Reports::new(Arc::clone(&router), io.handle().clone()));
    let pushes = PushOptions {
        egress: options.egress,
        root_certificates: options.root_certificates,
        // Work, and three kinds of questions.
        mailbox_max: options.running_max
            + 3 * options.questions_max
            + usize::from(dir.shards()) * 4,
    };
    let push = HttpPush::new(io.handle().clone(), clock.clone(), &pushes)?;
    let handlers = Handlers::new(options.handlers, options.handler_limits, clock.clone())?;
    let commands_max = options.commands.as_ref().map_or(0, |on| on.running_max);
    let commands = options.commands.map(|on| (on, io.handle().clone()));
    let commands = Commands::new(commands, clock.clone());
    let executors = Arc::new(Executors::new(handlers, commands, reports, clock.clone()));
    let desk = Arc::new(PullDesk::default());
    let wakes = Arc::new(WakeBoard::new(dir.shards()));
    let completions = Arc::new(Completions::new(&files.completion_key()?));
    // Until schedules are caught up.
    wakes.close();
    let registry = Arc::new(Office::default());
    let schedules: Arc<ScheduleBoard> = Arc::default();
    let bulk: Arc<BulkBoard> = Arc::default();
    bulk.load(&files)?;
    let registry_files = files.clone();

    let mut children = vec![
        registry_child(files, (&book, &rules), &clock, &registry, &router, &disk),
        push_child(push, &executors),
    ];
    let store = LocalOptions {
        drops_late: options.journal_dir.is_some(),
        ..options.store
    };
    let home = Arc::new(LocalHome::new(dir.path(), store));
    let files_open = home.open();
    let core_options = CoreOptions {
        running_max: options.running_max.div_ceil(usize::from(dir.shards())),
        per_host_max: options.per_host_max.div_ceil(usize::from(dir.shards())),
        questions_max: options.questions_max.div_ceil(usize::from(dir.shards())),
        commands_max: commands_max.div_ceil(usize::from(dir.shards())).max(1),
        table: options.table,
        rescue: options.rescue,
        ..CoreOptions::default()
    };
    let what_if_core = core_options.clone();
    children.extend(router.shards().map(|shard| {
        let parts = ShardParts {
            shard,
            home: Arc::clone(&home),
            disk: Arc::clone(&disk),
            core: core_options.clone(),
            book: Arc::clone(&book),
            clock: clock.clone(),
            router: Arc::clone(&router),
            outlets: Outlets {
                executors: Arc::clone(&executors),
                desk: Arc::clone(&desk),
                wakes: Arc::clone(&wakes),
                attempts: Arc::default(),
                completions: Arc::clone(&completions),
            },
        };
        ChildSpec::new(shard_child(shard), move |child| parts.start(child))
            .excused_while(short_of_space(&disk))
            .in_turn()
    }));
    children.push(scheduler_child(&clock, &wakes, &router));
    children.push(schedules_child(&clock, &schedules));
    children.push(bulk_child(&clock, &bulk));

    clock.on_move({
        let (wakes, schedules) = (Arc::clone(&wakes), Arc::clone(&schedules));
        let bulk = Arc::clone(&bulk);
        move || {
            schedules.ring();
            bulk.ring();
            wakes.ring();
        }
    });
    let supervision = options.supervision.unwrap_or_else(|| Supervision {
        // A test that moves the clock would take everybody for stuck: nobody beats that fast.
        bounds: clock.runs_by_itself().then(Bounds::default),
        ..Supervision::default()
    });
    let refusals = router.shards().map(|shard| home.refusals(shard)).collect();
    drop(home);
    let silence_max = supervision.bounds.map(|bounds| bounds.stuck);
    let watchdog = Watchdog::start_with(clock.clone(), children, supervision);
    let (data, shards) = (dir.path().to_owned(), dir.shards());
    let engine = Duetime::over(Parts {
        max_delay: options.max_delay,
        grace: options.grace,
        desk,
        roster: Roster::default(),
        executors,
        completions,
        known_topics: KnownTopics::default(),
        started: clock.now(),
        clock,
        router,
        registry,
        registry_room: Arc::new(Semaphore::new(REGISTRY_ROOM)),
        book,
        rules,
        schedules,
        rule_counts: RuleCounts::default(),
        bulk,
        what_ifs: WhatIfs::new(what_if_core),
        settling: Mutex::default(),
        keeping_room: Arc::new(Semaphore::new(KEEPING_MAX)),
        watchdog,
        silence_max,
        refusals,
        on_io: io.handle().clone(),
        io: Mutex::new(Some(io)),
        files_open,
        dir: Mutex::new(Some(dir)),
        files: Mutex::new(Some(registry_files)),
        backups: Backups::default(),
        exports: Arc::default(),
        journal_copies: Mutex::default(),
        admin_token: Uuid::new_v4().simple().to_string() + &Uuid::new_v4().simple().to_string(),
        disk,
        stopping,
    });
    let come_up = || {
        engine.wait_until_up(START_MAX)?;
        engine.settle_in()?;
        wakes.open();
        engine.parts.schedules.open(&engine);
        engine.parts.bulk.open(&engine);
        if let Some(to) = options.journal_dir {
            let copies = journal_copies::follow(&data, shards, to).map_err(StartError::Threads)?;
            *engine.parts.journal_copies.lock() = Some(copies);
        }
        match options.backups {
            Some(plan) => backup::follow(&engine, plan).map_err(StartError::Threads),
            None => Ok(()),
        }
    };
    match come_up() {
        Ok(()) => Ok(engine),
        Err(error) => {
            // Some parts may be up, and at work: they end as in any other stop, which takes no longer than that may.
            engine.parts.on_io.block_on(engine.shutdown());
            Err(error)
        }
    }
}

/// The name of a shard's child: `shard-00`.
pub(super) fn shard_child(shard: ShardId) -> String {
    format!("shard-{:02}", shard.0)
}

/// What a store's error means for a start.
fn fault_of(error: StoreError) -> StartFault {
    match error {
        StoreError::Corrupt { .. } => StartFault::for_good(error),
        StoreError::Held { .. } => StartFault::held(error),
        _ => StartFault::new(error),
    }
}

/// What excuses the deaths of a part that writes.
fn short_of_space(disk: &Arc<Disk>) -> impl Fn() -> bool + Send + 'static {
    let disk = Arc::clone(disk);
    move || disk.is_in_reserve()
}

/// What a shard is started with, each time anew.
struct ShardParts {
    shard: ShardId,
    home: Arc<LocalHome>,
    disk: Arc<Disk>,
    core: CoreOptions,
    book: SharedBook,
    clock: Clock,
    router: Arc<ShardRouter>,
    outlets: Outlets,
}

impl ShardParts {
    fn start(&self, child: ChildContext) -> Result<(), StartFault> {
        self.disk.room_to_start().map_err(StartFault::new)?;
        failpoints::reach("shard::start").map_err(StartFault::new)?;
        let shard = self.shard;
        let store = Box::new(self.home.store(shard));
        let core = |now| ShardCore::new(shard, self.core.clone(), self.book.read().clone(), now);
        let attempts = &self.outlets.attempts;
        let recovered = ShardActor::recover(core, store, &self.clock, attempts, &child.pulse);
        let recovered = recovered.map_err(fault_of)?;
        let epoch = recovered.2;
        tracing::info!(shard = %shard, %epoch, tasks = recovered.0.tasks(), "shard recovered");
        let thread = child
            .arbiter(&shard_child(shard))
            .map_err(StartFault::new)?;
        let (clock, outlets, on) = (self.clock.clone(), self.outlets.clone(), thread.handle());
        let kill = child.kill.clone();
        let actor = ShardActor::start_in_arbiter(&on, move |_| {
            ShardActor::new(recovered, clock, outlets, child, thread)
        });
        self.router.open(shard, actor, epoch, kill);
        // One that changed while this one recovered was told to nobody. Read after the door is open, so that what
        // comes later is told through it.
        self.router.inform(shard, SetBook(self.book.read().clone()));
        Ok(())
    }
}

fn registry_child(
    files: RegistryFiles,
    (book, rules): (&SharedBook, &SharedRules),
    clock: &Clock,
    slot: &Arc<Office<Addr<RegistryActor>>>,
    router: &Arc<ShardRouter>,
    disk: &Arc<Disk>,
) -> ChildSpec {
    let (book, rules) = (Arc::clone(book), Arc::clone(rules));
    let (clock, slot) = (clock.clone(), Arc::clone(slot));
    let (router, room) = (Arc::clone(router), Arc::clone(disk));
    ChildSpec::new("registry", move |child| {
        room.room_to_start().map_err(StartFault::new)?;
        let owner = ShardEpoch(child.generation.0);
        files.recover(owner, &book, &rules).map_err(fault_of)?;
        // A change that was in doubt may count after all.
        for shard in router.shards() {
            router.inform(shard, SetBook(book.read().clone()));
        }
        let generation = child.generation;
        let thread = child.arbiter("registry").map_err(StartFault::new)?;
        let (files, clock, on) = (files.clone(), clock.clone(), thread.handle());
        let (book, rules) = (Arc::clone(&book), Arc::clone(&rules));
        let actor = RegistryActor::start_in_arbiter(&on, move |_| {
            RegistryActor::new(files, book, rules, clock, child, thread)
        });
        slot.take(generation, actor);
        Ok(())
    })
    .excused_while(short_of_space(disk))
}

fn push_child(push: HttpPush, executors: &Arc<Executors>) -> ChildSpec {
    let executors = Arc::clone(executors);
    ChildSpec::new("http-push", move |child| {
        let generation = child.generation;
        let thread = child.arbiter("http-push").map_err(StartFault::new)?;
        executors.set_http(
            generation,
            HttpPushActor::start_on(push.clone(), child, thread),
        );
        Ok(())
    })
}

fn schedules_child(clock: &Clock, board: &Arc<ScheduleBoard>) -> ChildSpec {
    let board = Arc::clone(board);
    let work = move |kill, words| schedules::run(Arc::clone(&board), kill, words);
    keeper("schedules", clock, work)
}

fn bulk_child(clock: &Clock, board: &Arc<BulkBoard>) -> ChildSpec {
    let board = Arc::clone(board);
    let work = move |kill, words| bulk::run(Arc::clone(&board), kill, words);
    keeper("bulk", clock, work)
}

fn scheduler_child(clock: &Clock, wakes: &Arc<WakeBoard>, router: &Arc<ShardRouter>) -> ChildSpec {
    let (clock, wakes, router) = (clock.clone(), Arc::clone(wakes), Arc::clone(router));
    ChildSpec::new("scheduler", move |child| {
        let thread = child.arbiter("scheduler").map_err(StartFault::new)?;
        let (clock, wakes, router, on) = (
            clock.clone(),
            Arc::clone(&wakes),
            Arc::clone(&router),
            thread.handle(),
        );
        SchedulerActor::start_in_arbiter(&on, move |_| {
            SchedulerActor::new(clock, wakes, router, child, thread)
        });
        Ok(())
    })
}

//! Why the engine did not do what was asked.

use crate::engine::bulk::BulkRefused;
use crate::engine::disk::StorageFull;
use crate::engine::registry::RegistryError;
use crate::engine::what_if::WhatIfRefused;
use crate::executor::ExecutorError;
use crate::executor::command::CommandRefused;
use crate::ids::TaskId;
use crate::limits;
use crate::rule::book::RuleFailed;
use crate::shard::messages::VerbRefused;
use crate::shard::router::NoAnswer;
use crate::store::StoreError;
use crate::store::data_dir::DataDirError;
use crate::task::amendment::TooMuch;

/// A question that was not answered with what was asked for.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// A shard gave no answer.
    #[error(transparent)]
    NoAnswer(#[from] NoAnswer),
    /// The task, or its state, does not allow it.
    #[error(transparent)]
    Refused(#[from] VerbRefused),
    /// A live task has the key.
    #[error("the key is held by the live task {0}")]
    Exists(TaskId),
    /// The registry did not do it.
    #[error(transparent)]
    Registry(#[from] RegistryError),
    /// The task would carry too much.
    #[error(transparent)]
    TooMuch(#[from] TooMuch),
    /// The topic's rule gives no due time.
    #[error(transparent)]
    Rule(#[from] RuleFailed),
    /// The service is stopping.
    #[error("the service is stopping; nothing new is taken in")]
    ShuttingDown,
    /// The disk has no space for new tasks.
    #[error(transparent)]
    StorageFull(#[from] StorageFull),
    /// The task's action is a command that may not be run here.
    #[error("the command {refused}")]
    Command {
        /// Where the action was given, as a JSON pointer.
        at: String,
        /// Why not.
        refused: CommandRefused,
    },
    /// No more topics can be had.
    #[error("there are {} topics already, which is the most", limits::TOPICS_MAX)]
    TooManyTopics,
    /// A what-if is not played.
    #[error(transparent)]
    WhatIf(#[from] WhatIfRefused),
    /// A bulk job does not do it.
    #[error(transparent)]
    Bulk(#[from] BulkRefused),
    /// There is no such shard.
    #[error("there is no shard {0}")]
    UnknownShard(u16),
}

/// Why the engine could not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The data directory can't be used.
    #[error(transparent)]
    DataDir(#[from] DataDirError),
    /// The registry can't be read.
    #[error("the registry: {0}")]
    Registry(#[from] StoreError),
    /// An executor can't be built.
    #[error(transparent)]
    Executor(#[from] ExecutorError),
    /// The machine gives no threads.
    #[error("start threads")]
    Threads(#[source] std::io::Error),
    /// A part did not come up.
    #[error("{0}")]
    NotRunning(String),
    /// No data directory was named.
    #[error("no data directory was named: call data_dir(…)")]
    NoDataDir,
    /// Copies of the journals are wanted, and no backups that they could be laid over.
    #[error(
        "[backup] journal_dir holds what came since the last backup, and none are made: set [backup] every, or leave journal_dir empty"
    )]
    CopiesWithoutBackups,
    /// The thread that starts the engine is gone.
    #[error("the engine's start was cut off")]
    CutOff,
}

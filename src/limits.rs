//! Every fixed limit, in one place, with its unit. What can be configured stands in `config.rs`.

/// Longest topic name, in bytes of UTF-8.
pub const TOPIC_BYTES_MAX: usize = 128;
/// Longest key, in bytes of UTF-8.
pub const KEY_BYTES_MAX: usize = 256;
/// Largest payload, in bytes of JSON.
pub const PAYLOAD_BYTES_MAX: usize = 256 * 1024;
/// Largest `facts`, in bytes of JSON.
pub const FACTS_BYTES_MAX: usize = 64 * 1024;
/// Largest result, in bytes of JSON.
pub const RESULT_BYTES_MAX: usize = 64 * 1024;
/// Largest checkpoint of an attempt, in bytes of JSON.
pub const CHECKPOINT_BYTES_MAX: usize = 16 * 1024;
/// Most lost leases that a policy may name.
pub const LOST_LEASES_MAX: u64 = 10_000;
/// Most tags of a task.
pub const TAGS_MAX: usize = 16;
/// Longest name of a tag, in bytes.
pub const TAG_NAME_BYTES_MAX: usize = 64;
/// Longest value of a tag, in bytes.
pub const TAG_VALUE_BYTES_MAX: usize = 256;
/// Most headers of an HTTP action.
pub const HEADERS_MAX: usize = 32;
/// All header names and values of an HTTP action together, in bytes.
pub const HEADER_BYTES_MAX: usize = 8 * 1024;
/// Longest URL of an HTTP action, in bytes.
pub const URL_BYTES_MAX: usize = 2048;
/// Most arguments of a command.
pub const COMMAND_ARGS_MAX: usize = 128;
/// Most environment variables of a command.
pub const COMMAND_ENV_MAX: usize = 64;
/// All arguments of a command, or its variables with their names, in bytes.
pub const COMMAND_BYTES_MAX: usize = 16 * 1024;
/// Longest expression, in bytes.
pub const EXPR_BYTES_MAX: usize = 1024;
/// Most that an expression may read under one name: bytes of its texts, and one for each value in it.
pub const EXPR_INPUT_BYTES_MAX: usize = 8 * 1024;
/// Most that the condition of a stage may cost at worst, in bytes looked at: it is evaluated by the shard itself.
pub const STAGE_CONDITION_COST_MAX: usize = 128 * 1024;
/// Longest path that is taken in, in bytes.
pub const PATH_BYTES_MAX: usize = 4096;
/// Deepest nesting of JSON that is taken in.
pub const JSON_DEPTH_MAX: usize = 64;
/// Most items or operations of one batch.
pub const BATCH_ITEMS_MAX: usize = 10_000;
/// How long before its instant a push or handler is written as dispatched, so that the sync makes nothing late.
pub const ARM_AHEAD: crate::clock::DurationMs = crate::clock::DurationMs(20);
/// Largest body of a batch, in bytes.
pub const BATCH_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Largest body of any other request, in bytes: a payload, facts, a result and room for the rest.
pub const BODY_BYTES_MAX: usize = 1024 * 1024;
/// Most steps of a retry ladder.
pub const LADDER_STEPS_MAX: usize = 64;
/// Most stored tasks, and most given ones, that take part in a what-if.
pub const WHAT_IF_TASKS_MAX: usize = 50_000;
/// Furthest ahead that a what-if is played, in days.
pub const WHAT_IF_DAYS_MAX: u64 = 400;
/// Most stages of a task: one bit each in a mask.
pub const STAGES_MAX: usize = 32;
/// Longest name of a stage, in bytes.
pub const STAGE_NAME_BYTES_MAX: usize = 64;
/// Most attempts of one generation, in one stage.
pub const ATTEMPTS_MAX: u32 = 10_000;
/// Attempts and changes that a task keeps in full; older ones are only counted.
pub const HISTORY_KEPT: usize = 100;
/// Requests with an `Idempotency-Key` that a task remembers having been changed by.
pub const REQUESTS_KEPT: usize = 8;
/// Longest text kept of an error, a reason or a worker's name, in bytes.
pub const NOTE_BYTES_MAX: usize = 1024;
/// Most topics.
pub const TOPICS_MAX: usize = 10_000;
/// Longest name of a calendar, rule or schedule, in bytes of UTF-8.
pub const RESOURCE_NAME_BYTES_MAX: usize = 128;
/// Most resources of one kind.
pub const RESOURCES_MAX: usize = 10_000;
/// Largest body that declares a topic or another resource, in bytes of JSON.
pub const RESOURCE_BODY_BYTES_MAX: usize = 16 * 1024;
/// Versions that are kept of a resource.
pub const RESOURCE_VERSIONS_KEPT: u64 = 50;
/// Longest `Idempotency-Key`, in characters.
pub const IDEMPOTENCY_KEY_CHARS_MAX: usize = 255;
/// How long an `Idempotency-Key` is kept, in milliseconds.
pub const IDEMPOTENCY_KEPT_MS: u64 = 24 * 3600 * 1000;
/// Most idempotency keys kept per shard; the oldest go first.
pub const IDEMPOTENCY_KEYS_MAX: usize = 100_000;
/// Largest answer kept for a re-sent request, in bytes; a larger one is computed again from the same ids.
pub const IDEMPOTENCY_ANSWER_BYTES_MAX: usize = 1024 * 1024;
/// Answers kept per shard for re-sent requests, in bytes; the oldest are computed again when they are asked for.
pub const IDEMPOTENCY_ANSWERS_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Most cancels per shard that stand for a create still to come.
pub const TOMBSTONES_MAX: usize = 100_000;
/// Longest time a cancel may reach ahead of its create, in milliseconds.
pub const TOMBSTONE_MS_MAX: u64 = 7 * 24 * 3600 * 1000;
/// Late answers that are kept of one task; the oldest go first.
pub const LATE_ANSWERS_PER_TASK_MAX: usize = 20;
/// Late answers that a shard keeps of all its tasks; the oldest go first.
pub const LATE_ANSWERS_MAX: usize = 10_000;
/// The same, in bytes.
pub const LATE_ANSWERS_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Most items of a list page.
pub const PAGE_ITEMS_MAX: usize = 1000;
/// Most records that a list page looks at.
pub const PAGE_SCAN_MAX: usize = 20_000;
/// Most bytes of tasks that one shard searches for a text, for one list page.
pub const PAGE_SEARCH_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Most records that a bulk job looks at in one step.
pub const BULK_SCAN_MAX: usize = 20_000;
/// Most tasks that a bulk job changes in one step.
pub const BULK_STEP_MAX: usize = 5_000;
/// Most of them that are stored as one page.
pub const BULK_PAGE_MAX: usize = 900;
/// So many tasks a bulk job remembers to have had in hand, about 20 bytes each; others are looked at again if it moves
/// them ahead.
pub const BULK_PASSED_MAX: usize = 1_000_000;
/// Slowest and fastest rate of a bulk job, in tasks per second.
pub const BULK_RATE: std::ops::RangeInclusive<u64> = 1..=100_000;
/// Bulk jobs that have not ended, at a time.
pub const BULK_LIVE_MAX: usize = 16;
/// Ended bulk jobs that are kept; the oldest go first.
pub const BULK_ENDED_MAX: usize = 20;
/// How long an ended bulk job is kept, and can be undone, in milliseconds.
pub const BULK_KEPT_MS: u64 = 7 * 24 * 3600 * 1000;
/// Tasks of one bulk job that can be taken back. One that changes more can't be undone.
pub const BULK_UNDO_MAX: u64 = 1_000_000;
/// Tasks that a bulk job names: of what it would change, and of what did not let itself be changed.
pub const BULK_SAMPLE_MAX: usize = 20;
/// Longest `args` and `filter` of a bulk job together, in bytes.
pub const BULK_BODY_BYTES_MAX: usize = 8 * 1024;
/// Most items of one lease request.
pub const LEASE_ITEMS_MAX: usize = 1000;
/// Longest wait of a lease request, in milliseconds.
pub const LEASE_WAIT_MS_MAX: u64 = 60_000;
/// Most topics of one lease request.
pub const LEASE_TOPICS_MAX: usize = 100;
/// Shortest and longest lease, in milliseconds.
pub const LEASE_MS: std::ops::RangeInclusive<u64> = 100..=24 * 3600 * 1000;
/// Shortest and longest time within which a receiver completes what it took on, in milliseconds.
pub const COMPLETE_BY_MS: std::ops::RangeInclusive<u64> = 1..=30 * 24 * 3600 * 1000;
/// Shortest and longest time from one question of a poll to the next, in milliseconds.
pub const POLL_EVERY_MS: std::ops::RangeInclusive<u64> = 100..=24 * 3600 * 1000;
/// How long before its due time the guard of a task is asked.
pub const GUARD_AHEAD: crate::clock::DurationMs = crate::clock::DurationMs::secs(5);
/// Longest time for its answer: it is there, and on the disk, before the due time.
pub const GUARD_TIME_MAX: crate::clock::DurationMs = crate::clock::DurationMs::secs(3);
/// How long the answer is good for: what fires later than that is asked about again.
pub const GUARD_KEEPS: crate::clock::DurationMs = crate::clock::DurationMs::secs(60);
/// Most questions of a guard in a row that nobody answers, before the task is held.
pub const GUARD_QUESTIONS_MAX: u32 = 10;
/// Shortest and longest time by which a guard may make a task later, in milliseconds.
pub const GUARD_EXTEND_MS: std::ops::RangeInclusive<u64> = 10_000..=MAX_DELAY.0;
/// Shortest and longest time limit of an attempt, in milliseconds.
pub const ATTEMPT_TIMEOUT_MS: std::ops::RangeInclusive<u64> = 10..=24 * 3600 * 1000;
/// Furthest ahead a task may be due, in any configuration: 3 660 days.
pub const MAX_DELAY: crate::clock::DurationMs = crate::clock::DurationMs::secs(3660 * 24 * 3600);

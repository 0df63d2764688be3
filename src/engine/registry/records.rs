//! Records of the registry: what stands in an entry, and what it says.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::clock::{DurationMs, SteadyMs, WallMs};
use crate::engine::registry::kind::{Kind, NO_LIMITS, Resource};
use crate::rule::book::Kept;
use crate::task::model::PauseClock;
use crate::task::spec::{ResourceName, TopicName};
use crate::task::topic::{Thaw, Topic, TopicPause, TopicSettings};
use crate::wire;

/// A topic as it is stored. The settings are kept as the body that set them.
#[derive(Serialize, Deserialize)]
struct TopicRecord {
    body: Option<Box<RawValue>>,
    version: u64,
    pause: Option<PauseRecord>,
    thaw: u32,
    thawing_held_ms: Option<u64>,
}

#[derive(Serialize, Deserialize)]
struct PauseRecord {
    freeze: bool,
    since_ms: i64,
    since_steady_ms: i64,
}

/// One version of a resource, as it is stored.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Version {
    /// Its number.
    pub version: u64,
    /// When it was put, in Unix milliseconds.
    pub at_ms: i64,
    /// By whom.
    pub by: String,
    /// The body, as it came.
    pub body: Box<RawValue>,
}

/// What the keys of all versions of a resource begin with.
pub(super) fn version_prefix(kind: Kind, name: &ResourceName) -> Vec<u8> {
    let parts = [kind.words().as_bytes(), name.as_str().as_bytes(), b""];
    parts.join(&0)
}

/// The key of a version; the latest comes last.
pub(super) fn version_key(kind: Kind, name: &ResourceName, version: u64) -> Vec<u8> {
    let mut key = version_prefix(kind, name);
    key.extend(version.to_be_bytes());
    key
}

/// Reads a resource's record.
pub(super) fn kept<R: Resource>(
    name: &[u8],
    record: &[u8],
) -> Result<(ResourceName, Kept<R>), String> {
    let name = std::str::from_utf8(name).map_err(|error| error.to_string())?;
    let name = ResourceName::parse(name).map_err(|error| error.to_string())?;
    let record: Version = serde_json::from_slice(record).map_err(|error| error.to_string())?;
    let body = record.body.get();
    let meaning = R::read(body.as_bytes(), &NO_LIMITS).map_err(|problem| problem.to_string())?;
    let kept = Kept {
        meaning,
        body: body.to_owned(),
        version: record.version,
        changed_at: WallMs(record.at_ms),
    };
    Ok((name, kept))
}

/// A topic's record.
pub(super) fn encode(topic: &Topic) -> serde_json::Result<Vec<u8>> {
    let body = (!topic.body.is_empty()).then(|| RawValue::from_string(topic.body.clone()));
    serde_json::to_vec(&TopicRecord {
        body: body.transpose()?,
        version: topic.version,
        pause: topic.pause.map(|pause| PauseRecord {
            freeze: pause.clock == PauseClock::Freeze,
            since_ms: pause.since.0,
            since_steady_ms: pause.since_steady.0,
        }),
        thaw: topic.thaw,
        thawing_held_ms: topic.thawing.map(|thaw| thaw.held.0),
    })
}

/// Reads a topic's record.
pub(super) fn decode(name: &[u8], record: &[u8]) -> Result<(TopicName, Topic), String> {
    let name = std::str::from_utf8(name).map_err(|error| error.to_string())?;
    let name = TopicName::parse(name).map_err(|error| error.to_string())?;
    let record: TopicRecord = serde_json::from_slice(record).map_err(|error| error.to_string())?;
    let body = record.body.as_ref().map_or("", |body| body.get());
    let settings = match body {
        "" => TopicSettings::default(),
        body => wire::topic::settings(body.as_bytes(), &NO_LIMITS)
            .map_err(|problem| problem.to_string())?,
    };
    let topic = Topic {
        settings,
        body: body.to_owned(),
        version: record.version,
        pause: record.pause.map(|pause| TopicPause {
            clock: if pause.freeze {
                PauseClock::Freeze
            } else {
                PauseClock::Keep
            },
            since: WallMs(pause.since_ms),
            since_steady: SteadyMs(pause.since_steady_ms),
        }),
        thaw: record.thaw,
        thawing: record.thawing_held_ms.map(|held| Thaw {
            number: record.thaw,
            held: DurationMs(held),
        }),
    };
    Ok((name, topic))
}

//! What did not read back and is not in what was written, told to people and machines.

use serde_json::{Value, json};

use crate::archive::Progress;
use crate::cli::render;
use crate::shard::snapshot::Fault;

/// What did not read back.
#[derive(Default)]
pub(super) struct LeftOut {
    pub(super) count: u64,
    /// The first of them.
    pub(super) places: Vec<Fault>,
}

impl LeftOut {
    pub(super) fn of(progress: &Progress) -> Self {
        Self {
            count: progress.faults_count(),
            places: progress.faults(),
        }
    }

    /// A line for each.
    pub(super) fn lines(&self) -> String {
        let mut text = String::new();
        for fault in &self.places {
            let line = format!("does not read back: {}: {}", fault.place, fault.why);
            text.push_str(&render::plain(&line));
            text.push('\n');
        }
        if self.count > self.places.len() as u64 {
            text.push_str(&format!("… {} in all\n", self.count));
        }
        text
    }

    /// How many, behind what was done.
    pub(super) fn words(&self) -> String {
        match self.count {
            0 => String::new(),
            1 => ", left out 1 place that does not read back".to_owned(),
            count => format!(", left out {count} places that do not read back"),
        }
    }

    pub(super) fn json(&self) -> Vec<Value> {
        let places = self.places.iter();
        places
            .map(|fault| json!({"place": fault.place, "why": fault.why}))
            .collect()
    }
}

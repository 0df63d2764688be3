//! `duetime store doctor`: what is found, as lines or JSON.

use std::path::Path;

use serde_json::{Value, json};

use super::{Unit, explained, open, watched};
use crate::archive::doctor::{Finding, Repaired, Report, look, repair};
use crate::archive::{Options, Progress};
use crate::cli::{Failure, Out, render};

/// Looks through a directory and, if that is asked for and needed, repairs it and looks again.
pub(super) fn run(data: &Path, wants_repair: bool, out: &mut Out<'_>) -> Result<(), Failure> {
    let mut dir = open(data, "look through")?;
    let options = Options {
        skip_damaged: true,
        ..Options::default()
    };
    let look_through = |dir: &_| {
        let progress = Progress::default();
        let looked = watched(
            "looking",
            Unit::Count,
            &progress,
            |_| look(dir, &options, &progress),
            &mut |_| Ok(()),
        )?;
        looked.map_err(|error| explained("look through", data, error))
    };
    let found = look_through(&dir)?;
    if !wants_repair || found.is_healthy() {
        return tell(&found, None, out);
    }
    let (progress, now) = (Progress::default(), out.now);
    let repaired = watched(
        "rebuilding",
        Unit::Tasks,
        &progress,
        |_| repair(&mut dir, now, &options, &progress),
        &mut |_| Ok(()),
    )?;
    let repaired = repaired.map_err(|error| explained("repair", data, error))?;
    let after = look_through(&dir)?;
    tell(&after, Some((&found, &repaired)), out)
}

fn tell(
    report: &Report,
    repaired: Option<(&Report, &Repaired)>,
    out: &mut Out<'_>,
) -> Result<(), Failure> {
    if out.json {
        let mut told = json_of(report);
        if let Some((before, repaired)) = repaired {
            told["before"] = json_of(before);
            told["repaired"] = json!({
                "tasks": repaired.carried.tasks,
                "salvaged": repaired.salvaged,
                "held": repaired.held.iter().map(ToString::to_string).collect::<Vec<_>>(),
                "aside": repaired.aside,
            });
        }
        out.line(&told.to_string())?;
    } else {
        if let Some((before, repaired)) = repaired {
            for found in &before.findings {
                out.line(&line_of(found))?;
            }
            let aside = repaired.aside.as_ref().map_or_else(String::new, |aside| {
                format!("; what could not be read is in {}", aside.display())
            });
            let line = format!(
                "rebuilt from {} tasks, {} of them out of damaged chunks{aside}",
                repaired.carried.tasks, repaired.salvaged
            );
            out.line(&render::plain(&line))?;
            for id in &repaired.held {
                out.line(&format!(
                    "paused: task {id}, whose latest change is lost: look whether it is still wanted, then resume or cancel it"
                ))?;
            }
        }
        for found in &report.findings {
            out.line(&line_of(found))?;
        }
        for shard in &report.shards {
            out.line(&format!(
                "shard {:02}: {} tasks ({} not ended) in {} chunks, {} batches in the journal, {} notes",
                shard.shard, shard.tasks, shard.live, shard.chunks, shard.journal_batches, shard.notes
            ))?;
        }
    }
    if report.is_healthy() {
        return match out.json {
            true => Ok(()),
            false => out.line("all of it reads back and agrees"),
        };
    }
    out.flush()?;
    let failure = Failure::new("something is wrong with what is stored");
    Err(match repaired {
        None if report.is_repairable() => {
            failure.then("make a copy of the directory first, then look again with --repair")
        }
        _ => failure.then("restore a backup"),
    })
}

fn line_of(found: &Finding) -> String {
    let Finding {
        severity,
        place,
        what,
        then,
    } = found;
    render::plain(&format!("{}: {place}: {what} ({then})", severity.name()))
}

fn json_of(report: &Report) -> Value {
    let shards = report.shards.iter().map(|shard| {
        json!({
            "shard": shard.shard, "tasks": shard.tasks, "live": shard.live, "chunks": shard.chunks,
            "dead_records": shard.dead_records, "journal_batches": shard.journal_batches,
            "notes": shard.notes,
        })
    });
    let findings = report.findings.iter().map(|found| {
        json!({
            "severity": found.severity.name(), "place": found.place, "what": found.what,
            "then": found.then,
        })
    });
    json!({
        "healthy": report.is_healthy(),
        "shards": shards.collect::<Vec<_>>(),
        "registry_entries": report.registry_entries,
        "findings": findings.collect::<Vec<_>>(),
    })
}

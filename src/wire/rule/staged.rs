//! Rules that give stages: those of a create, and times that are worked out.

use crate::limits;
use crate::rule::staged::{StageTime, Staged};
use crate::task::stage::{Stage, Starts};
use crate::wire::decode::{Node, Shape};
use crate::wire::due::InLimits;
use crate::wire::stages;

const STAGED: Shape = Shape {
    fields: &["stages"],
    not_built: &[],
};
const STAGE: Shape = Shape {
    fields: &[
        "name",
        "after",
        "after_previous",
        "due",
        "excluding",
        "if",
        "guard",
        "action",
    ],
    not_built: &[],
};
const TIMES: &[&str] = &["after", "after_previous", "due", "excluding"];

/// Reads `{stages}`.
pub(super) fn staged(node: Node<'_, '_>, limits: &InLimits) -> Option<Staged> {
    let body = node.object(&STAGED)?;
    let mut earlier: Vec<Stage> = Vec::new();
    let list = body.required("stages", |node| {
        node.list(limits::STAGES_MAX, |node| {
            let (stage, time) = stage(node, &earlier, limits)?;
            earlier.push(stage.clone());
            Some((stage, time))
        })
    })?;
    match Staged::new(list) {
        Ok(staged) => Some(staged),
        // All else was told where it stands.
        Err(flaw) => body.refuse("stages", "empty", flaw.to_string()),
    }
}

fn stage(
    node: Node<'_, '_>,
    earlier: &[Stage],
    limits: &InLimits,
) -> Option<(Stage, Option<StageTime>)> {
    let body = node.object(&STAGE)?;
    let field = body.one_of(TIMES);
    let time = match field {
        Some("due") => body.required("due", super::time).map(StageTime::Due),
        Some("excluding") => {
            let read = body.required("excluding", |node| super::excluding(node, limits));
            read.map(StageTime::Excluding)
        }
        _ => None,
    };
    let starts = match field {
        Some(field @ ("after" | "after_previous")) => stages::starts(&body, field, limits),
        // Whatever it will be: it can be looked at only when it is worked out.
        Some(_) if time.is_some() && earlier.is_empty() => Some(Starts::After(Default::default())),
        Some(_) if time.is_some() => Some(Starts::AfterPrevious(Default::default())),
        _ => None,
    };
    Some((stages::stage_of(&body, starts, earlier)?, time))
}

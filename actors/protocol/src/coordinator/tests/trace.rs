//! Prints what happens in a simulated world, for whoever looks into a failing seed:
//! `SLOWMO_TRACE=1`, with `--nocapture`.

use crate::coordinator::In;
use crate::ident::NodeId;
use crate::node::RoundsEffect;
use crate::node::vectors::Vectors;
use crate::wire::{Frame, Header};
use std::fmt::Debug;
use std::sync::OnceLock;

/// Longest description of one event.
const WIDTH: usize = 300;

fn is_on() -> bool {
    static ON: OnceLock<bool> = OnceLock::new();
    *ON.get_or_init(|| std::env::var_os("SLOWMO_TRACE").is_some())
}

fn line(now: u64, what: &str, of: &dyn Debug) {
    let of: String = format!("{of:?}").chars().take(WIDTH).collect();
    eprintln!("{now} {what} {of}");
}

pub fn fault(now: u64, fault: &dyn Debug) {
    if is_on() {
        line(now, "FAULT", fault);
    }
}

/// What a machine is told, but for frames, which were printed when they were sent.
pub fn told(now: u64, id: NodeId, event: &In) {
    if is_on() && !matches!(event, In::Frame { .. } | In::Tick) {
        line(now, &format!("{id} <="), event);
    }
}

pub fn effect(now: u64, id: NodeId, effect: &RoundsEffect<Vectors>) {
    if !is_on() {
        return;
    }
    match effect {
        RoundsEffect::Send {
            to,
            frame: Frame::V1 { header, message },
        } => {
            let Header {
                round,
                term,
                attempt,
                ..
            } = header;
            line(
                now,
                &format!(
                    "{id} -> {to} round {} term {}.{} attempt {attempt}",
                    round.0, term.counter, term.node.0
                ),
                message,
            );
        }
        RoundsEffect::Open(plan) => line(
            now,
            &format!("{id} OPEN"),
            &(plan.attempt, &plan.contributors, &plan.participants),
        ),
        RoundsEffect::Publish(publication) => {
            line(
                now,
                &format!("{id} PUBLISH"),
                &(
                    publication.attempt,
                    &publication.receivers,
                    &publication.moves,
                ),
            );
        }
        RoundsEffect::Applied(applied) => {
            let next: Vec<_> = applied.outcome.view.ids().collect();
            line(
                now,
                &format!("{id} APPLY"),
                &(
                    applied.plan.attempt,
                    &applied.outcome.contributors,
                    next,
                    applied.drained,
                ),
            );
        }
        other => line(now, &format!("{id}"), other),
    }
}

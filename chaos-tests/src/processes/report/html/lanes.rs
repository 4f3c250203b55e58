//! One lane per node: when it lived, was a member and contributed, and the faults that hit it.

use super::chart::{Axis, WIDTH};
use crate::processes::measure::Observed;
use slowmo_protocol::ident::NodeId;
use slowmo_protocol::time::Instant;
use slowmo_protocol::trace::{Fault, Link, Start};
use std::collections::BTreeSet;
use std::fmt::Write;

/// Height of a lane, and of the bar in it.
const LANE: f64 = 20.0;
const BAR: f64 = 11.0;
const TOP: f64 = 8.0;

/// Legend of the colours.
pub(super) fn legend() -> String {
    let bar = |colour: &str, words: &str| {
        format!("<span><i style='background:var(--{colour})'></i>{words}</span>")
    };
    let mark = |class: &str, shape: &str, words: &str| {
        format!(
            "<span><svg style='display:inline-block;width:1em;height:.8em' \
             viewBox='0 0 12 10'><path class='{class}' d='{shape}'/></svg> {words}</span>"
        )
    };
    format!(
        "<p class='legend'>{}{}{}{}{}{}{}{}<span>\
         <i style='background:var(--good);opacity:.25'></i>nothing is done any more</span></p>",
        bar("alive", "alive"),
        bar("member", "member"),
        bar("works", "contributing"),
        bar("paused", "paused"),
        mark("mark", "M1 1L11 1L6 9Z", "killed"),
        mark("leave", "M1 1L11 1L6 9Z", "drained"),
        mark("start", "M1 9L11 9L6 1Z", "started"),
        bar("cut", "links cut or worse"),
    )
}

/// The drawing.
pub(super) fn svg(run: &Observed, axis: &Axis) -> String {
    let nodes: BTreeSet<NodeId> = run.lives.keys().map(|start| start.node).collect();
    let bottom = TOP + LANE * nodes.len() as f64;
    let mut body = axis.grid(TOP, bottom);
    if let Some(quiet) = run.quiet {
        body.push_str(&axis.ground("quiet", (quiet, run.over), (TOP, bottom)));
    }
    for (index, node) in nodes.iter().enumerate() {
        let y = TOP + LANE * index as f64;
        let _ = write!(
            body,
            "<text x='56' y='{:.1}' text-anchor='end'>{}</text>",
            y + LANE / 2.0 + 4.0,
            node.0
        );
        bars(run, axis, *node, y + (LANE - BAR) / 2.0, &mut body);
        faults(run, axis, *node, y, &mut body);
    }
    format!(
        "<svg viewBox='0 0 {WIDTH} {:.0}'>{body}</svg>",
        bottom + 20.0
    )
}

fn bars(run: &Observed, axis: &Axis, node: NodeId, y: f64, body: &mut String) {
    let mut bar = |class: &str, from: Instant, to: Instant| {
        let x = axis.x(from);
        let width = (axis.x(to) - x).max(0.5);
        let _ = write!(
            body,
            "<rect class='{class}' x='{x:.1}' y='{y:.1}' width='{width:.1}' height='{BAR}'/>"
        );
    };
    for (start, life) in run.lives.iter().filter(|(start, _)| start.node == node) {
        let until = life.ended.map_or(run.over, |(at, _)| at);
        bar("alive", life.from, until);
        let (members, contributes) = standing(run, *start, until);
        members
            .iter()
            .for_each(|(from, to)| bar("member", *from, *to));
        contributes
            .iter()
            .for_each(|(from, to)| bar("works", *from, *to));
    }
    for (at, fault) in &run.faults {
        if let Fault::Pause { node: paused, span } = fault
            && *paused == node
        {
            bar("paused", *at, at.after(*span));
        }
    }
}

type Spans = Vec<(Instant, Instant)>;

/// Spans in which an incarnation was a member, and spans of the rounds to which it contributed.
fn standing(run: &Observed, start: Start, until: Instant) -> (Spans, Spans) {
    let mut members = Spans::new();
    let mut contributes = Spans::new();
    let extend = |spans: &mut Spans, from: Instant, to: Instant| match spans.last_mut() {
        Some((_, last)) if *last >= from => *last = to,
        _ => spans.push((from, to)),
    };
    let history = run.history();
    for (index, round) in history.iter().enumerate() {
        let to = history
            .get(index + 1)
            .map_or(run.over, |next| next.at)
            .min(until);
        if to > round.at && round.next.contains(&start) {
            extend(&mut members, round.at, to);
        }
        let from = index
            .checked_sub(1)
            .and_then(|before| history.get(before))
            .map_or(round.at, |before| before.at);
        if round.contributors.contains(&start) {
            extend(&mut contributes, from, round.at.min(until));
        }
    }
    (members, contributes)
}

fn faults(run: &Observed, axis: &Axis, node: NodeId, y: f64, body: &mut String) {
    for (at, fault) in run
        .faults
        .iter()
        .filter(|(_, fault)| fault.victim() == Some(node))
    {
        let x = axis.x(*at);
        let (class, up) = match fault {
            Fault::Kill { .. } => ("mark", false),
            Fault::Drain { .. } => ("leave", false),
            Fault::Start { .. } => ("start", true),
            _ => continue,
        };
        let (tip, base) = if up {
            (y + 9.0, y + 18.0)
        } else {
            (y + 11.0, y + 2.0)
        };
        let _ = write!(
            body,
            "<path class='{class}' d='M{:.1} {base:.1}L{:.1} {base:.1}L{x:.1} {tip:.1}Z'>\
             <title>{} {:.1} s</title></path>",
            x - 4.5,
            x + 4.5,
            fault.name(),
            at.0 as f64 / 1e6
        );
    }
    for (from, to) in ill(run, node) {
        let x = axis.x(from);
        let end = axis.x(to);
        let _ = write!(
            body,
            "<line class='cutoff' x1='{x:.1}' x2='{end:.1}' y1='{:.1}' y2='{:.1}'/>",
            y + 17.0,
            y + 17.0
        );
    }
}

/// Spans in which links of a node were worse than usual, for nodes on the side of a fault that is
/// not the larger one.
fn ill(run: &Observed, node: NodeId) -> Spans {
    let mut since: Vec<(&[NodeId], &[NodeId], Instant)> = Vec::new();
    let mut spans = Spans::new();
    let hits = |from: &[NodeId], to: &[NodeId]| {
        if to.len() < from.len() {
            to.contains(&node)
        } else {
            from.contains(&node) || to.len() == from.len() && to.contains(&node)
        }
    };
    for (at, fault) in &run.faults {
        match fault {
            Fault::Links { from, to, link } if *link != Link::default() => {
                since.push((from, to, *at))
            }
            Fault::Links { from, to, .. } => {
                let over = since
                    .iter()
                    .filter(|way| (way.0, way.1) == (from, to) && hits(way.0, way.1));
                spans.extend(over.map(|way| (way.2, *at)));
                since.retain(|way| (way.0, way.1) != (from, to));
            }
            Fault::Heal => {
                spans.extend(
                    since
                        .drain(..)
                        .filter(|way| hits(way.0, way.1))
                        .map(|way| (way.2, *at)),
                );
            }
            _ => {}
        }
    }
    spans.extend(
        since
            .into_iter()
            .filter(|way| hits(way.0, way.1))
            .map(|way| (way.2, run.quiet.unwrap_or(run.over))),
    );
    spans
}

//! Records when nodes had trouble: a node that was killed, stopped, cut off or slowed may have been
//! taken for dead for a while.

use slowmo_protocol::ident::{Incarnation, NodeId};
use slowmo_protocol::time::{Instant, Span};
use slowmo_protocol::trace::{Event, Line, Start};
use slowmo_protocol::trace::{Fault, Link};
use std::collections::BTreeMap;

/// Time after the end of its trouble during which a node may still be missing: it must be heard
/// again, or join again.
const AFTERWARDS: Span = Span::from_millis(4_000);

/// The times at which nodes had trouble.
#[derive(Default)]
pub struct Troubles {
    /// Per incarnation: when each trouble began and, if it is over, when it ended.
    of: BTreeMap<Start, Vec<(Instant, Option<Instant>)>>,
    living: BTreeMap<NodeId, Incarnation>,
    /// Nodes whose links are disturbed.
    links: BTreeMap<NodeId, u32>,
}

impl Troubles {
    pub(super) fn observe(&mut self, line: &Line) {
        match &line.event {
            Event::Started(start) => {
                self.living.insert(start.node, start.incarnation);
                // The links of the node were cut before the incarnation began.
                if self.links.contains_key(&start.node) {
                    self.begin(*start, line.at);
                }
            }
            Event::Ended { start, .. } => {
                self.begin(*start, line.at);
                self.living.remove(&start.node);
            }
            // The node takes part again once it has joined.
            Event::Resigned(start) => self.passing(*start, line.at, Span(0)),
            Event::Faulted { fault } => self.faulted(fault, line.at),
            Event::Quiet => self.heal(line.at),
            _ => {}
        }
    }

    fn faulted(&mut self, fault: &Fault, at: Instant) {
        match fault {
            Fault::Pause { node, span } => self.passing_of(*node, at, *span),
            Fault::Break { one, other } => [one, other]
                .into_iter()
                .for_each(|node| self.passing_of(*node, at, Span(0))),
            Fault::Links { from, to, link } if *link != Link::default() => {
                for node in from.iter().chain(to) {
                    *self.links.entry(*node).or_default() += 1;
                    if let Some(start) = self.start(*node) {
                        self.begin(start, at);
                    }
                }
            }
            // Links to some nodes are restored, perhaps not to all: that is known only when all
            // are.
            Fault::Heal => self.heal(at),
            Fault::Slow { node, .. }
            | Fault::SlowDisk { node, .. }
            | Fault::Drift { node, .. }
            | Fault::Drain { node } => {
                self.passing_of(*node, at, AFTERWARDS);
            }
            _ => {}
        }
    }

    fn heal(&mut self, at: Instant) {
        for node in std::mem::take(&mut self.links).into_keys() {
            if let Some(start) = self.start(node) {
                self.end(start, at);
            }
        }
    }

    fn start(&self, node: NodeId) -> Option<Start> {
        self.living.get(&node).map(|incarnation| Start {
            node,
            incarnation: *incarnation,
        })
    }

    fn passing_of(&mut self, node: NodeId, at: Instant, span: Span) {
        if let Some(start) = self.start(node) {
            self.passing(start, at, span);
        }
    }

    fn passing(&mut self, start: Start, at: Instant, span: Span) {
        self.of
            .entry(start)
            .or_default()
            .push((at, Some(at.after(span))));
    }

    fn begin(&mut self, start: Start, at: Instant) {
        self.of.entry(start).or_default().push((at, None));
    }

    fn end(&mut self, start: Start, at: Instant) {
        for (_, until) in self
            .of
            .entry(start)
            .or_default()
            .iter_mut()
            .filter(|(_, until)| until.is_none())
        {
            *until = Some(at);
        }
    }

    /// Whether an incarnation had trouble, or still felt it, at some time since `since`.
    #[must_use]
    pub fn since(&self, start: Start, since: Instant) -> bool {
        let felt = |(_, until): &(Instant, Option<Instant>)| {
            until.is_none_or(|until| until.after(AFTERWARDS) >= since)
        };
        self.of
            .get(&start)
            .is_some_and(|troubles| troubles.iter().any(felt))
    }
}

//! The contents of a trace, gathered line by line in bounded memory per round, incarnation and
//! fault.

use slowmo_protocol::coordinator::RoundKind;
use slowmo_protocol::ident::NodeId;
use slowmo_protocol::time::Instant;
use slowmo_protocol::trace::{End, Event, Fault, Line, Place, Setup, Start};
use std::collections::BTreeMap;

/// Maximum number of points of a curve; when there are more, every other one is dropped.
const POINTS_MAX: usize = 4096;

/// The contents of a trace.
#[derive(Clone, Debug, Default)]
pub struct Observed {
    /// The setup that the run reported.
    pub setup: Option<Setup>,
    /// The lifetime of each incarnation.
    pub lives: BTreeMap<Start, Life>,
    /// The faults, with their times.
    pub faults: Vec<(Instant, Fault)>,
    /// Decided rounds, in the order in which they were first applied.
    pub rounds: Vec<Round>,
    places: BTreeMap<Place, usize>,
    /// Times at which incarnations said that they were no longer members.
    pub resigned: Vec<(Instant, Start)>,
    /// Losses that workers reported, by node.
    pub losses: BTreeMap<NodeId, Curve>,
    /// Samples of processes, by name of the gauge.
    pub gauges: BTreeMap<String, BTreeMap<Start, Vec<(Instant, u64)>>>,
    /// Time at which the last fault was over, if known.
    pub quiet: Option<Instant>,
    /// Time of the last event.
    pub over: Instant,
}

/// The lifetime of one incarnation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Life {
    /// Time of the start.
    pub from: Instant,
    /// Time and manner of the end.
    pub ended: Option<(Instant, End)>,
}

/// A decided round.
#[derive(Clone, Debug)]
pub struct Round {
    /// Time at which it was first applied.
    pub at: Instant,
    /// Place of the round in history.
    pub place: Place,
    /// Number of the round, as a shorthand.
    pub number: u64,
    /// The outcome after which the round began.
    before: Option<Place>,
    /// The inner step after the round.
    pub step: u64,
    /// Nodes whose values were averaged.
    pub contributors: Vec<Start>,
    /// The members of the next view.
    pub next: Vec<Start>,
    /// Whether the round was the bootstrap.
    pub bootstrap: bool,
    /// Time at which each incarnation applied it.
    pub applied: BTreeMap<Start, Instant>,
}

/// Points in time, thinned out when there are many.
#[derive(Clone, Debug, Default)]
pub struct Curve {
    /// The points.
    pub points: Vec<(Instant, f64)>,
    every: u64,
    seen: u64,
}

impl Curve {
    fn push(&mut self, at: Instant, value: f64) {
        self.every = self.every.max(1);
        if self.seen.is_multiple_of(self.every) && value.is_finite() {
            self.points.push((at, value));
        }
        self.seen += 1;
        if self.points.len() >= POINTS_MAX {
            self.points = self.points.iter().copied().step_by(2).collect();
            self.every = self.every.saturating_mul(2);
        }
    }
}

impl Life {
    /// Whether the incarnation lived at `at`.
    #[must_use]
    pub fn includes(&self, at: Instant) -> bool {
        self.from <= at && self.ended.is_none_or(|(ended, _)| ended > at)
    }
}

impl Observed {
    /// Takes the next line of a trace.
    pub fn observe(&mut self, line: &Line) {
        let at = line.at;
        self.over = self.over.max(at);
        match &line.event {
            Event::Begun(setup) => self.setup = Some(setup.clone()),
            Event::Faulted { fault } => self.faults.push((at, fault.clone())),
            Event::Quiet => self.quiet = Some(at),
            Event::Started(start) => {
                _ = self.lives.insert(
                    *start,
                    Life {
                        from: at,
                        ended: None,
                    },
                )
            }
            Event::Ended { start, end } => {
                if let Some(life) = self.lives.get_mut(start) {
                    life.ended = Some((at, *end));
                }
            }
            Event::Applied { start, decided, .. } => {
                let index = *self.places.entry(decided.place).or_insert_with(|| {
                    let round = decided.place.round.0;
                    let of = |node: &NodeId| {
                        decided
                            .members
                            .iter()
                            .find(|start| start.node == *node)
                            .copied()
                    };
                    let before = round.checked_sub(1).map(|round| Place {
                        lineage: decided.began_in,
                        round: slowmo_protocol::ident::Round(round),
                    });
                    self.rounds.push(Round {
                        at,
                        place: decided.place,
                        number: round,
                        before,
                        step: decided.step.0,
                        contributors: decided.contributors.iter().filter_map(of).collect(),
                        next: decided.next.clone(),
                        bootstrap: decided.kind == RoundKind::Bootstrap,
                        applied: BTreeMap::new(),
                    });
                    self.rounds.len() - 1
                });
                if let Some(round) = self.rounds.get_mut(index) {
                    round.applied.entry(*start).or_insert(at);
                }
            }
            Event::Resigned(start) => self.resigned.push((at, *start)),
            Event::Loss { start, loss, .. } => {
                self.losses.entry(start.node).or_default().push(at, *loss)
            }
            Event::Gauge {
                start, name, value, ..
            } if name == super::MEMORY || name == super::DESCRIPTORS => {
                let of = self.gauges.entry(name.clone()).or_default();
                of.entry(*start).or_default().push((at, *value));
            }
            _ => {}
        }
    }

    /// The rounds of the history that went furthest, ascending.
    #[must_use]
    pub fn history(&self) -> Vec<&Round> {
        let mut last = self
            .rounds
            .iter()
            .max_by_key(|round| (round.number, round.at));
        let mut history = Vec::new();
        while let Some(round) = last {
            history.push(round);
            let before = round.before.and_then(|place| self.places.get(&place));
            last = before.and_then(|index| self.rounds.get(*index));
        }
        history.reverse();
        history
    }

    /// Number of nodes that lived at `at`.
    #[must_use]
    pub fn alive(&self, at: Instant) -> usize {
        self.lives.values().filter(|life| life.includes(at)).count()
    }

    /// Number of nodes that bootstrapped the cluster.
    #[must_use]
    pub fn founders(&self) -> usize {
        self.rounds
            .iter()
            .find(|round| round.bootstrap)
            .map_or(usize::MAX, |round| round.next.len())
    }

    /// The incarnation of a node that lived at `at`.
    #[must_use]
    pub fn living(&self, node: NodeId, at: Instant) -> Option<Start> {
        let of_node = self.lives.iter().filter(|(start, _)| start.node == node);
        of_node
            .filter(|(_, life)| life.includes(at))
            .map(|(start, _)| *start)
            .next_back()
    }

    /// Times at which disturbed links were restored, all of them or those between some nodes, with
    /// the nodes of the smaller side.
    #[must_use]
    pub fn heals(&self) -> Vec<(Instant, Vec<NodeId>)> {
        let mut ill: Vec<(&[NodeId], &[NodeId])> = Vec::new();
        let mut heals: Vec<(Instant, Vec<NodeId>)> = Vec::new();
        for (at, fault) in &self.faults {
            let healed: Vec<(&[NodeId], &[NodeId])> = match fault {
                Fault::Links { from, to, link } if *link != Default::default() => {
                    ill.push((from, to));
                    continue;
                }
                Fault::Links { from, to, .. } => {
                    let (healed, still) = ill
                        .into_iter()
                        .partition(|way| *way == (from.as_slice(), to.as_slice()));
                    ill = still;
                    healed
                }
                Fault::Heal => std::mem::take(&mut ill),
                _ => continue,
            };
            let smaller = healed
                .into_iter()
                .flat_map(|(from, to)| if to.len() < from.len() { to } else { from });
            let mut nodes: Vec<NodeId> = smaller.copied().collect();
            nodes.sort_unstable();
            nodes.dedup();
            match heals.last_mut() {
                Some((last, known)) if last == at => {
                    known.extend(nodes);
                    known.sort_unstable();
                    known.dedup();
                }
                _ => heals.push((*at, nodes)),
            }
        }
        heals
    }
}

//! The knowledge of a run that all rules share: which incarnations live, which outcome follows
//! which, and which contributions were made.

use super::troubles::Troubles;
use slowmo_protocol::coordinator::RoundKind;
use slowmo_protocol::ident::{Incarnation, Lineage, NodeId, Round};
use slowmo_protocol::time::Instant;
use slowmo_protocol::trace::{Decided, Event, Line, Place, Setup, Start};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

/// A contribution, as it was frozen.
#[derive(Clone, Debug)]
pub struct Contribution {
    /// The last outcome from whose parameters it was computed.
    pub after: Option<Place>,
    /// The push-sum weight.
    pub weight: f64,
    /// The values, if they are recorded.
    pub values: Vec<f64>,
    /// The samples that it used.
    pub samples: Vec<(u64, u64)>,
}

/// A decided outcome, and the time at which the first node applied it.
#[derive(Clone, Debug)]
pub struct Known {
    /// The decided outcome.
    pub decided: Decided,
    /// Time at which it was first applied.
    pub at: Instant,
}

/// The history of the run so far.
#[derive(Default)]
pub struct History {
    now: Instant,
    setup: Option<Setup>,
    outcomes: BTreeMap<Place, Known>,
    /// The outcome first seen in the last observed event, if any.
    new: Option<Place>,
    contributions: BTreeMap<Start, BTreeMap<(Round, Lineage), Contribution>>,
    living: BTreeSet<Start>,
    newest: BTreeMap<NodeId, Incarnation>,
    /// Incarnations of nodes that were restarted since, whatever the order of their incarnation
    /// numbers.
    superseded: BTreeSet<Start>,
    applied: BTreeMap<Start, (Place, Instant)>,
    /// Incarnations that said they are no longer members.
    resigned: BTreeSet<Start>,
    quiet: Option<Instant>,
    troubles: Troubles,
}

/// Number of rounds after which an incarnation's contributions are forgotten. They are counted in
/// its own rounds, since others may be far ahead in another history.
const REMEMBERED: u64 = 64;

impl History {
    pub(super) fn observe(&mut self, line: &Line) {
        self.now = line.at;
        self.new = None;
        self.troubles.observe(line);
        match &line.event {
            Event::Begun(setup) => self.setup = Some(setup.clone()),
            Event::Quiet => self.quiet = Some(line.at),
            Event::Started(start) => {
                self.living.insert(*start);
                if let Some(incarnation) = self.newest.insert(start.node, start.incarnation) {
                    self.superseded.insert(Start {
                        node: start.node,
                        incarnation,
                    });
                }
                self.superseded.remove(start);
            }
            Event::Ended { start, .. } => _ = self.living.remove(start),
            Event::Resigned(start) => _ = self.resigned.insert(*start),
            Event::Contributed {
                start,
                lineage,
                round,
                after,
                weight,
                values,
                samples,
            } => {
                let contribution = Contribution {
                    after: *after,
                    weight: *weight,
                    values: values.clone(),
                    samples: samples.clone(),
                };
                let own = self.contributions.entry(*start).or_default();
                own.insert((*round, *lineage), contribution);
                *own = own.split_off(&(Round(round.0.saturating_sub(REMEMBERED)), Lineage::NONE));
            }
            Event::Applied { start, decided, .. } => {
                self.applied.insert(*start, (decided.place, line.at));
                self.resigned.remove(start);
                if let Entry::Vacant(entry) = self.outcomes.entry(decided.place) {
                    entry.insert(Known {
                        decided: (**decided).clone(),
                        at: line.at,
                    });
                    self.new = Some(decided.place);
                }
            }
            _ => {}
        }
    }

    /// The time of the last event.
    #[must_use]
    pub fn now(&self) -> Instant {
        self.now
    }

    /// The setup that the run reported.
    #[must_use]
    pub fn setup(&self) -> Option<&Setup> {
        self.setup.as_ref()
    }

    /// The outcome first seen in the last event.
    #[must_use]
    pub fn new_outcome(&self) -> Option<&Known> {
        self.new.and_then(|place| self.outcomes.get(&place))
    }

    /// All outcomes, by lineage and round.
    #[must_use]
    pub fn outcomes(&self) -> &BTreeMap<Place, Known> {
        &self.outcomes
    }

    /// The outcome after which the round of `decided` began.
    #[must_use]
    pub fn before(&self, decided: &Decided) -> Option<&Known> {
        let round = Round(decided.place.round.0.checked_sub(1)?);
        self.outcomes.get(&Place {
            lineage: decided.began_in,
            round,
        })
    }

    /// The last outcome before `decided` that gave members parameters.
    #[must_use]
    pub fn parameters_before(&self, decided: &Decided) -> Option<&Known> {
        let mut known = self.before(decided)?;
        while known.decided.kind == RoundKind::Gradients {
            known = self.before(&known.decided)?;
        }
        Some(known)
    }

    /// A member's contribution to a round that began in a history. A node makes one in no history
    /// before the bootstrap, and while it waits to be admitted: it may return to its place.
    #[must_use]
    pub fn contribution(
        &self,
        start: Start,
        began_in: Lineage,
        round: Round,
    ) -> Option<&Contribution> {
        let own = self.contributions.get(&start)?;
        let of = |lineage| own.get(&(round, lineage));
        match of(began_in) {
            None => of(Lineage::NONE),
            found => found,
        }
    }

    /// The living incarnations.
    #[must_use]
    pub fn living(&self) -> &BTreeSet<Start> {
        &self.living
    }

    /// The newest incarnation of a node.
    #[must_use]
    pub fn newest(&self, node: NodeId) -> Option<Incarnation> {
        self.newest.get(&node).copied()
    }

    /// Whether an incarnation holds nothing of what it was a member of: a later one has replaced
    /// it, or it has resigned.
    #[must_use]
    pub fn is_void(&self, start: Start) -> bool {
        let superseded = self.superseded.contains(&start);
        superseded
            || self.resigned.contains(&start)
            || self
                .newest(start.node)
                .is_some_and(|newest| newest > start.incarnation)
    }

    /// The outcome that an incarnation applied last, and when.
    #[must_use]
    pub fn applied(&self, start: Start) -> Option<(Place, Instant)> {
        self.applied.get(&start).copied()
    }

    /// Time since which no faults occur, if they are over.
    #[must_use]
    pub fn quiet(&self) -> Option<Instant> {
        self.quiet
    }

    /// The troubles of the nodes.
    #[must_use]
    pub fn troubles(&self) -> &Troubles {
        &self.troubles
    }

    /// The last outcome of the history that went furthest.
    #[must_use]
    pub fn furthest(&self) -> Option<&Known> {
        self.outcomes
            .values()
            .max_by_key(|known| (known.decided.place.round, known.at))
    }

    /// The newest outcome that a living incarnation has applied. A newer one may be decided if the
    /// node that decided it ended before it could announce it.
    #[must_use]
    pub fn newest_heard(&self) -> Option<&Known> {
        let heard = self
            .living
            .iter()
            .filter_map(|start| self.applied.get(start));
        heard
            .filter_map(|(place, _)| self.outcomes.get(place))
            .max_by_key(|known| (known.decided.place.round, known.at))
    }
}

//! The data of one attempt at a round, complete or not.

use super::data::{Arrived, Data, StreamKind};
use crate::coordinator::{Outcome, Plan, Publication, Votes};
use crate::ident::{Lineage, NodeId, ShardId};
use crate::planted::{self, Bug};
use crate::published::Signed;
use crate::sound::{Unsound, is_sum_of_weights};
use crate::trace::{self, Event, Held, Start};
use crate::view::Member;
use crate::wire::Bulk;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Inputs with which an owner averages its shards.
#[derive(Debug)]
pub struct Reduction<D: Data> {
    /// The attempt's data movements: which shards of which contributions.
    pub plan: Arc<Plan>,
    /// Receivers of the results.
    pub publication: Arc<Publication>,
    /// The other contributors' streams, ascending.
    pub contributions: Vec<Arrived<D::Stream>>,
    /// The decided state of the node's own shards, ascending.
    pub states: Vec<(ShardId, D::State)>,
}

/// Inputs with which a relay sums up its group's contributions for the owners of other groups.
#[derive(Debug)]
pub struct GroupSum<D: Data> {
    /// The attempt's data movements: for which owners, and their shards.
    pub plan: Arc<Plan>,
    /// The streams of the group's other contributors, ascending.
    pub contributions: Vec<Arrived<D::Stream>>,
}

/// Results of a reduction.
#[derive(Debug)]
pub struct Reduced<D: Data> {
    /// The new values of the node's own shards.
    pub part: D::Part,
    /// The digest and signature with which they are published.
    pub signed: Signed,
    /// Their new state, if the round makes one.
    pub states: Vec<(ShardId, D::State)>,
    /// Data that the reduction leaves with the driver.
    pub rest: D::Rest,
}

/// A decided round, as a node applies it.
#[derive(Debug)]
pub struct Applied<D: Data> {
    /// The data movements of its attempt.
    pub plan: Arc<Plan>,
    /// Receivers of the results.
    pub publication: Arc<Publication>,
    /// The decided outcome.
    pub outcome: Arc<Outcome>,
    /// The members of the view that the round began with, ascending.
    pub members: Arc<[Member]>,
    /// The history that the round began in.
    pub began_in: Lineage,
    /// The votes that decided it, if this node led.
    pub votes: Option<Votes>,
    /// Whether the outcome leaves this node out.
    pub drained: bool,
    /// The values that the round made.
    pub values: D::Values,
    /// This node's contribution, whether it counts or not.
    pub contribution: Option<D::Contribution>,
    /// Data that its reduction left with the driver; the default if it averaged nothing.
    pub rest: D::Rest,
}

impl<D: Data> Applied<D> {
    /// The trace event of this round, with the values that the driver reports.
    #[must_use]
    pub fn event(&self, start: Start, digest: u64, values: Vec<f64>, holds: Vec<Held>) -> Event {
        let members = self
            .members
            .iter()
            .map(|member| Start {
                node: member.id,
                incarnation: member.incarnation,
            })
            .collect();
        let decided = trace::Decided::new(
            &self.outcome,
            self.began_in,
            members,
            self.plan.participants.clone(),
        );
        let votes = self.votes.as_ref().map(trace::Votes::from);
        Event::Applied {
            start,
            decided: Box::new(decided),
            digest,
            values,
            holds,
            drained: self.drained,
            votes,
        }
    }
}

/// One attempt: the streams that are awaited, and the data that is here.
#[derive(Debug)]
pub(crate) struct Moving<D: Data> {
    pub plan: Arc<Plan>,
    /// Receivers of the results, once they are proposed.
    pub publication: Option<Arc<Publication>>,
    /// Streams that have not arrived.
    awaited: BTreeSet<(StreamKind, NodeId)>,
    /// The others' streams for the node's own shards: contributions, and sums of other groups.
    pub contributions: BTreeMap<NodeId, Arrived<D::Stream>>,
    /// Whether the node's own shards are being averaged, or have been.
    pub reduces: bool,
    /// If this node is a relay: the streams of its group's other contributors.
    pub relayed: BTreeMap<NodeId, Arrived<D::Stream>>,
    /// Whether the relay sums these, or has.
    pub sums: bool,
    pub parts: Vec<D::Part>,
    /// New state of shards, received or made here.
    pub states: BTreeMap<ShardId, D::State>,
    /// A member's base optimizer buffers, from an optimizer-state transfer.
    pub donated: Option<D::Values>,
    pub rest: D::Rest,
}

impl<D: Data> Moving<D> {
    pub fn new(plan: Arc<Plan>) -> Self {
        let mut awaited: BTreeSet<_> = plan
            .other_owners()
            .into_iter()
            .map(|owner| match plan.publisher(owner) {
                publisher if publisher == owner => (StreamKind::Parameters, owner),
                relay => (StreamKind::Forwarded(owner), relay),
            })
            .collect();
        if plan.owns() {
            let others = plan
                .sources()
                .into_iter()
                .filter(|(node, _)| *node != plan.me);
            awaited.extend(others.map(|(node, contributions)| match contributions {
                1 => (StreamKind::Contribution, node),
                _ => (StreamKind::Partial, node),
            }));
        }
        if !plan.sums_for().is_empty() {
            let others = plan.summed().iter().filter(|node| **node != plan.me);
            awaited.extend(others.map(|node| (StreamKind::Relayed, *node)));
        }
        Self {
            plan,
            publication: None,
            awaited,
            contributions: BTreeMap::new(),
            reduces: false,
            relayed: BTreeMap::new(),
            sums: false,
            parts: Vec::new(),
            states: BTreeMap::new(),
            donated: None,
            rest: D::Rest::default(),
        }
    }

    /// Records the receivers of the results, which also says which nodes send state and buffers.
    pub fn publish(&mut self, publication: Arc<Publication>) {
        self.awaited.extend(
            publication
                .moves_to(self.plan.me)
                .map(|moved| (StreamKind::State, moved.from)),
        );
        self.awaited.extend(
            publication
                .donor_to(self.plan.me)
                .map(|donor| (StreamKind::Buffers, donor)),
        );
        self.publication = Some(publication);
    }

    /// Whether a stream has still to come.
    pub fn awaits(&self, kind: StreamKind, from: NodeId) -> bool {
        self.awaited.contains(&(kind, from))
    }

    /// Notes that a stream has arrived.
    pub fn arrived(&mut self, kind: StreamKind, from: NodeId) {
        self.awaited.remove(&(kind, from));
    }

    /// Whether all other contributions to the node's own shards are here, and the receivers of the
    /// results are known.
    pub fn may_reduce(&self) -> bool {
        let here = |node: &NodeId| *node == self.plan.me || self.contributions.contains_key(node);
        self.publication.is_some()
            && self.plan.owns()
            && !self.reduces
            && self.plan.sources().keys().all(here)
    }

    /// Whether this node is a relay, and all contributions of its group are here.
    pub fn may_sum(&self) -> bool {
        let here = |node: &NodeId| {
            planted::has(Bug::SumsTooEarly)
                || *node == self.plan.me
                || self.relayed.contains_key(node)
        };
        !self.sums && !self.plan.sums_for().is_empty() && self.plan.summed().iter().all(here)
    }
}

/// Reason why a contribution cannot be averaged.
pub(super) enum Unfit {
    /// Its sender expects a round of another specification.
    SpecsDiffer(crate::coordinator::RoundSpec),
    /// It is no contribution.
    Broken,
    /// Its weight is not one that a node can have.
    Unsound(Unsound),
}

/// Checks that a contribution, or the sum of some, can be averaged.
pub(super) fn fits(plan: &Plan, from: NodeId, content: &Bulk) -> Result<(), Unfit> {
    let (contribution, contributions) = match content {
        Bulk::Contribution(contribution) | Bulk::Relayed(contribution) => (contribution, 1),
        Bulk::Partial(sum) => (sum, plan.sources().get(&from).copied().unwrap_or(1)),
        _ => return Err(Unfit::Broken),
    };
    if contribution.spec != plan.spec {
        return Err(Unfit::SpecsDiffer(contribution.spec));
    }
    if is_sum_of_weights(contribution.weight, contributions) {
        Ok(())
    } else {
        Err(Unfit::Unsound(Unsound::Weight(contribution.weight)))
    }
}

//! The data of one attempt at a round, as far as it has come.

use super::data::{Arrived, Data, StreamKind};
use crate::coordinator::{Outcome, Plan, Publication, Votes};
use crate::ident::{Lineage, NodeId, ShardId};
use crate::trace::{self, Event, Held, Start};
use crate::view::Member;
use crate::wire::Bulk;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// What the owner of shards averages.
#[derive(Debug)]
pub struct Reduction<D: Data> {
    /// Which shards of whose contributions.
    pub plan: Arc<Plan>,
    /// Who gets what it makes.
    pub publication: Arc<Publication>,
    /// The other contributors' streams, ascending.
    pub contributions: Vec<Arrived<D::Stream>>,
    /// The decided state of the own shards, ascending.
    pub states: Vec<(ShardId, D::State)>,
}

/// What a reduction made.
#[derive(Debug)]
pub struct Reduced<D: Data> {
    /// The new values of the own shards.
    pub part: D::Part,
    /// Their new state, where the round makes it.
    pub states: Vec<(ShardId, D::State)>,
    /// What stays with the driver.
    pub rest: D::Rest,
}

/// A decided round, as a node applies it.
#[derive(Debug)]
pub struct Applied<D: Data> {
    /// The movements of its attempt.
    pub plan: Arc<Plan>,
    /// Who got what it made.
    pub publication: Arc<Publication>,
    /// What was decided.
    pub outcome: Arc<Outcome>,
    /// The members of the view that the round began with, ascending.
    pub members: Arc<[Member]>,
    /// The history that the round began in.
    pub began_in: Lineage,
    /// How it was decided, if this node led.
    pub votes: Option<Votes>,
    /// The outcome leaves this node out.
    pub drained: bool,
    /// What the round made.
    pub values: D::Values,
    /// What this node brought, whether it counts or not.
    pub contribution: Option<D::Contribution>,
    /// What its reduction left with the driver; of one that averaged nothing the default.
    pub rest: D::Rest,
}

impl<D: Data> Applied<D> {
    /// As traces have it, with what the driver says of the values.
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

/// One attempt: what is awaited, and what is here.
#[derive(Debug)]
pub(crate) struct Moving<D: Data> {
    pub plan: Arc<Plan>,
    /// Who gets what it makes, once that is proposed.
    pub publication: Option<Arc<Publication>>,
    /// Streams that have not come.
    awaited: BTreeSet<(StreamKind, NodeId)>,
    /// The other contributors' streams, for the own shards.
    pub contributions: BTreeMap<NodeId, Arrived<D::Stream>>,
    /// The own shards are being averaged, or have been.
    pub reduces: bool,
    pub parts: Vec<D::Part>,
    /// New state of shards: received, or made here.
    pub states: BTreeMap<ShardId, D::State>,
    /// A member's buffers of the base optimizer.
    pub donated: Option<D::Values>,
    pub rest: D::Rest,
}

impl<D: Data> Moving<D> {
    pub fn new(plan: Arc<Plan>) -> Self {
        let mut awaited: BTreeSet<_> = plan
            .other_owners()
            .into_iter()
            .map(|owner| (StreamKind::Parameters, owner))
            .collect();
        if plan.owns() {
            let others = plan.contributors.iter().filter(|node| **node != plan.me);
            awaited.extend(others.map(|node| (StreamKind::Contribution, *node)));
        }
        Self {
            plan,
            publication: None,
            awaited,
            contributions: BTreeMap::new(),
            reduces: false,
            parts: Vec::new(),
            states: BTreeMap::new(),
            donated: None,
            rest: D::Rest::default(),
        }
    }

    /// Who gets what it makes is known: so is who sends state and buffers.
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

    /// A stream has come.
    pub fn arrived(&mut self, kind: StreamKind, from: NodeId) {
        self.awaited.remove(&(kind, from));
    }

    /// Whether every contribution of the others to the own shards is here, and who gets what
    /// becomes of them is known.
    pub fn may_reduce(&self) -> bool {
        let others = self
            .plan
            .contributors
            .iter()
            .filter(|node| **node != self.plan.me);
        self.publication.is_some() && self.plan.owns() && !self.reduces && { others }
            .all(|node| self.contributions.contains_key(node))
    }
}

/// Why a contribution cannot be averaged.
pub(super) enum Unfit {
    /// Its sender expects another round.
    SpecsDiffer(crate::coordinator::RoundSpec),
    /// It is no contribution, or has no weight.
    Broken,
}

/// Whether a contribution can be averaged.
pub(super) fn fits(plan: &Plan, content: &Bulk) -> Result<(), Unfit> {
    let Bulk::Contribution(contribution) = content else {
        return Err(Unfit::Broken);
    };
    if contribution.spec != plan.spec {
        return Err(Unfit::SpecsDiffer(contribution.spec));
    }
    if contribution.weight.is_finite() && contribution.weight > 0.0 {
        Ok(())
    } else {
        Err(Unfit::Broken)
    }
}

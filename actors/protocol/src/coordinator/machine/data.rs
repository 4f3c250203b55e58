//! The data of a round's attempts, as far as this node moves or holds it: bookkeeping only, the
//! shell has the values.
//!
//! A node that says that it is ready for an attempt keeps that attempt's data until
//! - it learns the decision, or
//! - the attempt's own leader begins another one in the same term, which it does only if it asked
//!   for no vote, or
//! - a leader of a higher term says that a quorum of the voters acknowledged that its term is open.
//!
//! An attempt of a higher term alone is no reason: somebody may still be bound to the earlier
//! entry.

use crate::coordinator::outcome::{Outcome, Proposal};
use crate::coordinator::plan::{Attempt, Plan, Publication};
use crate::ident::{NodeId, Term};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Most attempts whose data is kept beside the one that moves. A node says that it is ready for
/// another one only when one of them may go.
pub const ATTEMPTS_KEPT_MAX: usize = 2;

/// The data movements of one attempt: what this node must still hold before it is ready.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Movement {
    /// Its reduction.
    pub plan: Arc<Plan>,
    /// What it makes, and for whom, once a leader proposed that.
    pub published: Option<(Proposal, Arc<Publication>)>,
    /// The other end of the first stream that broke.
    pub broken: Option<NodeId>,
    /// The own shards are not averaged and published yet.
    pub reducing: bool,
    /// Owners whose parameters have not arrived yet.
    pub parameters_from: BTreeSet<NodeId>,
    /// Nodes whose state has not arrived yet.
    pub state_from: BTreeSet<NodeId>,
    /// Nodes whose state arrived before it was known that they send some.
    state_early: BTreeSet<NodeId>,
    /// The node whose buffers of the base optimizer have not arrived yet.
    pub buffers_from: Option<NodeId>,
    /// The same as `state_early`, of buffers.
    buffers_early: bool,
    /// This node said that it holds everything.
    pub ready: bool,
}

impl Movement {
    pub fn new(plan: Arc<Plan>) -> Self {
        Self {
            published: None,
            broken: None,
            reducing: plan.owns(),
            parameters_from: plan.other_owners().into_iter().collect(),
            state_from: BTreeSet::new(),
            state_early: BTreeSet::new(),
            buffers_from: None,
            buffers_early: false,
            ready: false,
            plan,
        }
    }

    pub fn attempt(&self) -> Attempt {
        self.plan.attempt
    }

    /// What it makes, once that is known.
    pub fn outcome(&self) -> Option<&Outcome> {
        self.published
            .as_ref()
            .map(|(proposal, _)| &proposal.outcome)
    }

    pub fn publish(&mut self, proposal: Proposal, publication: Arc<Publication>) {
        let from = publication.moves_to(self.plan.me).map(|moved| moved.from);
        self.state_from = from
            .filter(|from| !self.state_early.contains(from))
            .collect();
        if !self.buffers_early {
            self.buffers_from = publication.donor_to(self.plan.me);
        }
        self.published = Some((proposal, publication));
    }

    pub fn take_state(&mut self, from: NodeId) {
        self.state_from.remove(&from);
        if self.published.is_none() {
            self.state_early.insert(from);
        }
    }

    pub fn take_buffers(&mut self, from: NodeId) {
        self.buffers_from.take_if(|donor| *donor == from);
        self.buffers_early |= self.published.is_none();
    }

    /// Whether something of a node may still have to come.
    pub fn waits_for(&self, node: NodeId) -> bool {
        let published = self.parameters_from.contains(&node)
            || self.state_from.contains(&node)
            || self.buffers_from == Some(node);
        published || (self.reducing && self.plan.contributors.contains(&node))
    }

    /// Whether all that it makes for this node is here.
    pub fn is_complete(&self) -> bool {
        let arrived = self.parameters_from.is_empty()
            && self.state_from.is_empty()
            && self.buffers_from.is_none();
        self.published.is_some() && !self.reducing && arrived
    }

    /// Whose data is missing, as far as is known: the owners that have not published, else the
    /// contributors.
    pub fn missing(&self) -> BTreeSet<NodeId> {
        let owners: BTreeSet<NodeId> = self
            .parameters_from
            .union(&self.state_from)
            .copied()
            .chain(self.buffers_from)
            .collect();
        if owners.is_empty() && self.reducing {
            return self
                .plan
                .contributors
                .iter()
                .copied()
                .filter(|node| *node != self.plan.me)
                .collect();
        }
        owners
    }
}

/// All that this node has of the round's attempts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Data {
    /// The newest attempt.
    pub moving: Option<Movement>,
    /// Earlier ones that this node is ready for, oldest first; at most [`ATTEMPTS_KEPT_MAX`].
    kept: Vec<Movement>,
}

impl Data {
    /// The newest attempt, if `attempt` is the one: what an earlier one's movements still report is
    /// of no interest.
    pub fn moving_at(&mut self, attempt: Attempt) -> Option<&mut Movement> {
        self.moving
            .as_mut()
            .filter(|movement| movement.attempt() == attempt)
    }

    fn all(&self) -> impl Iterator<Item = &Movement> {
        self.moving.iter().chain(&self.kept)
    }

    /// The complete data of an outcome.
    pub fn of(&self, outcome: &Outcome) -> Option<&Movement> {
        let made = |movement: &&Movement| {
            movement
                .outcome()
                .is_some_and(|made| made.has_the_data_of(outcome))
        };
        self.all()
            .filter(|movement| movement.is_complete())
            .find(made)
    }

    /// What this node is ready for, by its attempt.
    pub fn ready(&self, term: Term, number: u32) -> Option<&Movement> {
        let named = |movement: &&Movement| {
            movement.attempt().term == term && movement.attempt().number == number
        };
        self.all().filter(|movement| movement.ready).find(named)
    }

    /// The outcomes that may be decided with what this node moves or holds.
    pub fn outcomes(&self) -> impl Iterator<Item = &Outcome> {
        self.all().filter_map(Movement::outcome)
    }

    /// The outcomes whose data is all here, the newest attempt's first.
    pub fn complete_outcomes(&self) -> impl Iterator<Item = &Outcome> {
        self.moving
            .iter()
            .chain(self.kept.iter().rev())
            .filter(|movement| movement.is_complete())
            .filter_map(Movement::outcome)
    }

    /// How many earlier attempts' data is kept.
    pub fn kept(&self) -> usize {
        self.kept.len()
    }

    /// Whether another attempt's data may be kept.
    pub fn has_room(&self) -> bool {
        self.kept.len() < ATTEMPTS_KEPT_MAX
    }

    /// Moves the data of another attempt from now on; the one before, if it need not be kept.
    pub fn begin(&mut self, movement: Movement) -> Option<Attempt> {
        let before = self.moving.replace(movement)?;
        if before.ready {
            self.kept.push(before);
            return None;
        }
        Some(before.attempt())
    }

    /// Drops what is not wanted any more.
    pub fn drop_where(&mut self, drops: impl Fn(&Movement) -> bool) -> Vec<Attempt> {
        let mut dropped: Vec<Attempt> = self
            .moving
            .take_if(|movement| drops(movement))
            .iter()
            .map(Movement::attempt)
            .collect();
        self.kept.retain(|movement| {
            let goes = drops(movement);
            if goes {
                dropped.push(movement.attempt());
            }
            !goes
        });
        dropped
    }
}

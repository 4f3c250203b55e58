//! Bookkeeping of the data of a round's attempts that this node moves or holds; the shell has the
//! values.
//!
//! A node that reports that it is ready for an attempt keeps that attempt's data until
//! - it learns the decision, or
//! - the attempt's own leader begins another one in the same term, which it does only if it asked
//!   for no vote, or
//! - a leader of a higher term says that a quorum of the voters acknowledged that its term is open.
//!
//! An attempt of a higher term alone is not enough: a leader may still be bound to the earlier
//! entry.

use crate::coordinator::outcome::{Outcome, Proposal};
use crate::coordinator::plan::{Attempt, Plan, Publication};
use crate::ident::{NodeId, Term};
use crate::published::{Digest, Signed, root};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Maximum number of attempts whose data is kept besides the moving one. A node reports that it is
/// ready for another attempt only when one of these may be dropped.
pub const ATTEMPTS_KEPT_MAX: usize = 2;

/// Data movements of one attempt, and the data that this node still lacks before it is ready.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Movement {
    /// Reduction of the attempt.
    pub plan: Arc<Plan>,
    /// Proposal and publication of the attempt, once a leader proposed it.
    pub published: Option<(Proposal, Arc<Publication>)>,
    /// The other end of the first stream that broke.
    pub broken: Option<NodeId>,
    /// Whether this node's own shards are not yet averaged and published.
    pub reducing: bool,
    /// Owners whose parameters have not arrived yet.
    pub parameters_from: BTreeSet<NodeId>,
    /// Digests of what the owners published, this node included, as far as it is here.
    pub signed: BTreeMap<NodeId, Signed>,
    /// Whether this node has sent the members what it holds, because a leader contradicted it.
    pub disputed: bool,
    /// Nodes whose state has not arrived yet.
    pub state_from: BTreeSet<NodeId>,
    /// Nodes whose state arrived before it was known that they send some.
    state_early: BTreeSet<NodeId>,
    /// The node whose buffers of the base optimizer have not arrived yet.
    pub buffers_from: Option<NodeId>,
    /// Whether buffers arrived before it was known that a node sends some.
    buffers_early: bool,
    /// Whether this node reported that it holds all data of the attempt.
    pub ready: bool,
}

impl Movement {
    pub fn new(plan: Arc<Plan>) -> Self {
        Self {
            published: None,
            broken: None,
            reducing: plan.owns(),
            parameters_from: plan.other_owners().into_iter().collect(),
            signed: BTreeMap::new(),
            disputed: false,
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

    /// The outcome that the attempt produces, once it is known.
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
        self.note_published();
    }

    /// This node's own shards are averaged, and published with this digest.
    pub fn take_own(&mut self, signed: Signed) {
        if self.reducing {
            self.reducing = false;
            self.signed.insert(self.plan.me, signed);
            self.note_published();
        }
    }

    /// The parameters of another owner are here.
    pub fn take_parameters(&mut self, owner: NodeId, signed: Signed) {
        if self.parameters_from.remove(&owner) {
            self.signed.insert(owner, signed);
            self.note_published();
        }
    }

    /// Once everything that the owners publish is here, the outcome names it.
    fn note_published(&mut self) {
        if self.reducing || !self.parameters_from.is_empty() {
            return;
        }
        if let Some((proposal, _)) = &mut self.published {
            proposal.outcome.published = root(&self.signed);
        }
    }

    /// Lists the digests that the owners published, by owner.
    pub fn published_list(&self) -> Vec<(NodeId, Signed)> {
        self.signed
            .iter()
            .map(|(owner, signed)| (*owner, *signed))
            .collect()
    }

    /// The digest of the entry, if this node holds all data of the attempt.
    pub fn entry(&self) -> Option<Digest> {
        if !self.is_complete() {
            return None;
        }
        let (proposal, _) = self.published.as_ref()?;
        Some(proposal.outcome.digest())
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

    /// Whether data from `node` may still have to arrive.
    pub fn waits_for(&self, node: NodeId) -> bool {
        let publishes = |owner: &NodeId| self.plan.publisher(*owner) == node;
        let published = self.parameters_from.iter().any(publishes)
            || self.state_from.contains(&node)
            || self.buffers_from == Some(node);
        let contributes = self.reducing && self.plan.sources().contains_key(&node);
        // A relay's sum for an owner is done at the latest when the owner has published.
        let sums = || {
            let mut owners = self.plan.sums_for().into_iter();
            owners.any(|owner| self.parameters_from.contains(&owner))
        };
        published || contributes || (self.plan.summed().contains(&node) && sums())
    }

    /// Whether all data of the attempt for this node has arrived.
    pub fn is_complete(&self) -> bool {
        let arrived = self.parameters_from.is_empty()
            && self.state_from.is_empty()
            && self.buffers_from.is_none();
        self.published.is_some() && !self.reducing && arrived
    }

    /// Nodes whose data is missing, as far as is known: those that have not sent what owners
    /// publish, else those whose contributions this node adds up.
    pub fn missing(&self) -> BTreeSet<NodeId> {
        let publishers = self.parameters_from.iter();
        let senders: BTreeSet<NodeId> = publishers
            .map(|owner| self.plan.publisher(*owner))
            .chain(self.state_from.iter().copied())
            .chain(self.buffers_from)
            .collect();
        if senders.is_empty() && self.reducing {
            let sources = self.plan.sources().into_keys();
            return sources.filter(|node| *node != self.plan.me).collect();
        }
        senders
    }
}

/// All data of the round's attempts on this node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Data {
    /// The newest attempt.
    pub moving: Option<Movement>,
    /// Earlier ones that this node is ready for, oldest first; at most [`ATTEMPTS_KEPT_MAX`].
    kept: Vec<Movement>,
}

impl Data {
    /// The newest attempt, if it is `attempt`; reports from movements of earlier attempts are
    /// ignored.
    pub fn moving_at(&mut self, attempt: Attempt) -> Option<&mut Movement> {
        self.moving
            .as_mut()
            .filter(|movement| movement.attempt() == attempt)
    }

    fn all(&self) -> impl Iterator<Item = &Movement> {
        self.moving.iter().chain(&self.kept)
    }

    /// The movement of an attempt, complete or not.
    pub fn known(&self, attempt: Attempt) -> Option<&Movement> {
        self.all().find(|movement| movement.attempt() == attempt)
    }

    /// The same, to be changed.
    pub fn at(&mut self, attempt: Attempt) -> Option<&mut Movement> {
        let named = |movement: &&mut Movement| movement.attempt() == attempt;
        self.moving.iter_mut().chain(&mut self.kept).find(named)
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

    /// An attempt that this node is ready for, with the same outcome but for what was published.
    pub fn otherwise(&self, outcome: &Outcome) -> Option<Attempt> {
        let same = |movement: &&Movement| {
            movement.outcome().is_some_and(|held| {
                let published = held.published;
                let other = Outcome {
                    published,
                    ..outcome.clone()
                };
                published != outcome.published && held.has_the_data_of(&other)
            })
        };
        let ready = self.all().filter(|movement| movement.ready);
        ready.filter(same).map(Movement::attempt).next()
    }

    /// The movement of the given attempt, if this node is ready for it.
    pub fn ready(&self, term: Term, number: u32) -> Option<&Movement> {
        let named = |movement: &&Movement| {
            movement.attempt().term == term && movement.attempt().number == number
        };
        self.all().filter(|movement| movement.ready).find(named)
    }

    /// The outcomes that may be decided with the data that this node moves or holds.
    pub fn outcomes(&self) -> impl Iterator<Item = &Outcome> {
        self.all().filter_map(Movement::outcome)
    }

    /// The outcomes whose data has all arrived, the newest attempt's first.
    pub fn complete_outcomes(&self) -> impl Iterator<Item = &Outcome> {
        self.moving
            .iter()
            .chain(self.kept.iter().rev())
            .filter(|movement| movement.is_complete())
            .filter_map(Movement::outcome)
    }

    /// Number of earlier attempts whose data is kept.
    pub fn kept(&self) -> usize {
        self.kept.len()
    }

    /// Whether another attempt's data may be kept.
    pub fn has_room(&self) -> bool {
        self.kept.len() < ATTEMPTS_KEPT_MAX
    }

    /// Starts to move the data of another attempt. Returns the previous attempt if its data need
    /// not be kept.
    pub fn begin(&mut self, movement: Movement) -> Option<Attempt> {
        let before = self.moving.replace(movement)?;
        if before.ready {
            self.kept.push(before);
            return None;
        }
        Some(before.attempt())
    }

    /// Drops the movements that `drops` selects, and returns their attempts.
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

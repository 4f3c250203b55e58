//! The state of the cluster at one moment, with the past that the checks remember.

use super::shell::{Facts, Node};
use super::watch::{Violation, Watch};
use slowmo_protocol::coordinator::Voters;
use slowmo_protocol::ident::{NodeId, Round};
use slowmo_protocol::view::{Member, View};
use slowmo_protocol::wire::{Header, Message};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::hash::{Hash, Hasher};
use std::ops::Deref;
use std::sync::Arc;

/// A shared value with its fingerprint, computed once: a step changes one of several nodes and
/// rehashes only that one.
#[derive(Clone, Debug)]
pub(super) struct Marked<T> {
    value: Arc<T>,
    mark: u64,
}

impl<T: Hash> Marked<T> {
    pub fn new(value: T) -> Self {
        let mut hasher = Folding::default();
        value.hash(&mut hasher);
        Self {
            mark: hasher.finish(),
            value: Arc::new(value),
        }
    }

    pub fn change(&mut self, change: impl FnOnce(&mut T))
    where
        T: Clone,
    {
        let mut value = T::clone(&self.value);
        change(&mut value);
        *self = Self::new(value);
    }
}

/// A fast hash of many small integers: each is multiplied into the state, whose halves are folded
/// together.
#[derive(Default)]
struct Folding(u64);

impl Folding {
    /// An odd factor with as many one bits as zero bits.
    const FACTOR: u64 = 0x9E37_79B9_7F4A_7C15;

    fn fold(&mut self, value: u64) {
        let product = u128::from(self.0 ^ value ^ 0xA5A5_5A5A_C3C3_3C3C) * u128::from(Self::FACTOR);
        self.0 = (product as u64).rotate_left(23) ^ (product >> 64) as u64;
    }
}

impl Hasher for Folding {
    fn finish(&self) -> u64 {
        let mut last = Self(self.0);
        last.fold(1);
        last.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for part in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..part.len()].copy_from_slice(part);
            self.fold(u64::from_le_bytes(word) ^ part.len() as u64);
        }
    }

    fn write_u8(&mut self, value: u8) {
        self.fold(value.into());
    }

    fn write_u16(&mut self, value: u16) {
        self.fold(value.into());
    }

    fn write_u32(&mut self, value: u32) {
        self.fold(value.into());
    }

    fn write_u64(&mut self, value: u64) {
        self.fold(value);
    }

    fn write_usize(&mut self, value: usize) {
        self.fold(value as u64);
    }
}

impl<T> Deref for Marked<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> PartialEq for Marked<T> {
    fn eq(&self, other: &Self) -> bool {
        self.mark == other.mark
    }
}

impl<T> Hash for Marked<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.mark.hash(state);
    }
}

/// A frame in flight.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Letter {
    pub header: Header,
    pub message: Box<Message>,
}

/// The state of the cluster at one moment.
#[derive(Clone, Debug, PartialEq, Hash)]
pub struct State {
    /// The members of the bootstrap, the same in every state.
    pub(super) bootstrap: Arc<View>,
    /// Voters of the oldest round that is watched: the bootstrap, then the first round after it.
    pub(super) first_voters: Arc<Voters>,
    pub(super) nodes: Vec<Marked<Node>>,
    /// Frames in flight by sender and receiver, oldest first; no queue is empty.
    pub(super) links: BTreeMap<(NodeId, NodeId), VecDeque<Marked<Letter>>>,
    pub(super) facts: Marked<Facts>,
    pub(super) watch: Marked<Watch>,
    pub(super) crashes: u8,
    pub(super) wrong_verdicts: u8,
    pub(super) breaks: u8,
    /// The joiner: a new node, or one that crashed.
    pub(super) joiner: Option<Member>,
    /// Members that do not know of the joiner yet.
    pub(super) unannounced: BTreeSet<NodeId>,
    /// Nodes that do not know of the leaver yet.
    pub(super) unaware: BTreeSet<NodeId>,
    /// The node that crashed and restarted.
    pub(super) restarted: Option<NodeId>,
    /// Whether the planted bug took effect.
    pub(super) forgot: bool,
    pub(super) violation: Option<Violation>,
}

impl State {
    /// Whether a node has applied a round.
    #[must_use]
    pub fn has_applied(&self, id: NodeId, round: Round) -> bool {
        self.node(id).is_some_and(|node| node.applied >= round)
    }

    /// Number of attempts that the node said it is ready with and whose data it keeps.
    #[must_use]
    pub fn kept(&self, id: NodeId) -> usize {
        self.node(id).map_or(0, |node| {
            node.movements
                .iter()
                .filter(|movement| movement.ready)
                .count()
        })
    }

    /// The first violation, if any.
    #[must_use]
    pub fn violation(&self) -> Option<Violation> {
        self.violation
    }

    pub(super) fn node(&self, id: NodeId) -> Option<&Node> {
        self.nodes
            .iter()
            .find(|node| node.id() == id)
            .map(|node| &**node)
    }

    /// A node and its index.
    pub(super) fn take(&self, id: NodeId) -> Option<(usize, Node)> {
        let index = self.nodes.iter().position(|node| node.id() == id)?;
        Some((index, Node::clone(&self.nodes[index])))
    }

    /// Whether the live nodes can decide the next round: a quorum of its voters lives, including a
    /// member that may lead.
    pub(super) fn has_quorum(&self) -> bool {
        let voters = self.watch.newest_voters(&self.first_voters);
        let living: Vec<NodeId> = voters
            .iter()
            .filter(|voter| {
                self.node(voter.node)
                    .is_some_and(|node| node.is_start(voter))
            })
            .map(|voter| voter.node)
            .collect();
        let leads = |id: &NodeId| {
            self.node(*id)
                .is_some_and(|node| node.machine.view().is_some())
        };
        living.iter().any(leads) && voters.is_quorum(living.iter().copied())
    }

    /// Records a violation; only the first one counts.
    pub(super) fn violate(&mut self, violation: Violation) {
        self.violation.get_or_insert(violation);
    }
}

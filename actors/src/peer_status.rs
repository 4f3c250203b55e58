//! Status of the other nodes, as they reported it last.

use parking_lot::Mutex;
use slowmo_protocol::ident::{Incarnation, NodeId};
use slowmo_protocol::time::{Instant, Span};
use slowmo_protocol::wire::{Happened, StatusDigest};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::sync::OnceLock;

/// Shortest interval between two requests to the other nodes.
pub const ASK_INTERVAL: Span = Span::from_millis(900);
/// Most digests that this node sends per second, to all nodes together.
pub const DIGESTS_PER_SECOND_MAX: u32 = 64;
/// Most nodes whose orders without a proof are reported.
pub const UNPROVED_REPORTED_MAX: usize = 16;
/// Most events of other nodes that are kept.
pub const EVENTS_KEPT_MAX: usize = 256;

/// Status that another node reported.
#[derive(Clone, Debug)]
pub struct Seen {
    /// The node's last digest.
    pub digest: StatusDigest,
    /// Time at which that digest arrived.
    pub at: Instant,
}

/// Status of the other nodes.
#[derive(Debug, Default)]
pub struct PeerStatus {
    state: Mutex<State>,
    http: OnceLock<SocketAddr>,
}

#[derive(Debug, Default)]
struct State {
    /// Digests by node; only of members of the view.
    seen: BTreeMap<NodeId, Seen>,
    events: VecDeque<(NodeId, Happened)>,
    /// Per node: its incarnation, and the time of the last event that it reported, by its own
    /// clock.
    heard: BTreeMap<NodeId, (Incarnation, u64)>,
    asked: Option<Instant>,
    /// The current second, and the number of digests sent in it.
    told: (u64, u32),
    /// Nodes whose orders without a proof were reported.
    unproved: BTreeSet<NodeId>,
}

impl PeerStatus {
    /// Sets the address at which this node's page is served.
    pub fn is_served_at(&self, address: SocketAddr) {
        // Set once: a node has one endpoint.
        let _ = self.http.set(address);
    }

    /// The address at which this node's page is served, if it is.
    #[must_use]
    pub fn served_at(&self) -> Option<SocketAddr> {
        self.http.get().copied()
    }

    /// If the last request is [`ASK_INTERVAL`] ago or more: for each of these members the time of
    /// its last event that this node knows, by the member's own clock. What others reported is
    /// forgotten.
    pub fn to_ask(&self, members: &[NodeId], now: Instant) -> Option<Vec<(NodeId, u64)>> {
        let mut state = self.state.lock();
        if state
            .asked
            .is_some_and(|asked| now.since(asked) < ASK_INTERVAL)
        {
            return None;
        }
        state.asked = Some(now);
        state.seen.retain(|node, _| members.contains(node));
        state.heard.retain(|node, _| members.contains(node));
        let since = |node: &NodeId| state.heard.get(node).map_or(0, |(_, until_us)| *until_us);
        Some(members.iter().map(|node| (*node, since(node))).collect())
    }

    /// Notes that a node sent an order without a proof, and returns whether to report it: once for
    /// each node, and for at most [`UNPROVED_REPORTED_MAX`] nodes.
    pub fn is_first_unproved_order(&self, from: NodeId) -> bool {
        let unproved = &mut self.state.lock().unproved;
        unproved.len() < UNPROVED_REPORTED_MAX && unproved.insert(from)
    }

    /// Counts a digest that is about to be sent; whether it is within
    /// [`DIGESTS_PER_SECOND_MAX`].
    pub fn may_answer(&self, now: Instant) -> bool {
        let second = now.0 / 1_000_000;
        let mut state = self.state.lock();
        let told = if state.told.0 == second {
            state.told.1
        } else {
            0
        };
        state.told = (second, told.saturating_add(1));
        told < DIGESTS_PER_SECOND_MAX
    }

    /// Stores a member's digest. Each event in it is stored once, however often it is reported.
    pub fn store(&self, from: NodeId, digest: StatusDigest, now: Instant) {
        let mut state = self.state.lock();
        // A new incarnation counts its time from the start again.
        let heard = state
            .heard
            .get(&from)
            .filter(|(incarnation, _)| *incarnation == digest.incarnation)
            .map_or(0, |(_, until_us)| *until_us);
        let news: Vec<_> = digest
            .happened
            .iter()
            .filter(|happened| happened.at_us > heard)
            .map(|happened| (from, happened.clone()))
            .collect();
        let until_us = news
            .iter()
            .map(|(_, happened)| happened.at_us)
            .fold(heard, u64::max);
        state.heard.insert(from, (digest.incarnation, until_us));
        state.events.extend(news);
        let over = state.events.len().saturating_sub(EVENTS_KEPT_MAX);
        state.events.drain(..over);
        state.seen.insert(from, Seen { digest, at: now });
    }

    /// The members that have reported, with their digests.
    #[must_use]
    pub fn seen(&self) -> BTreeMap<NodeId, Seen> {
        self.state.lock().seen.clone()
    }

    /// Events at other nodes, in the order in which they were reported.
    #[must_use]
    pub fn events(&self) -> Vec<(NodeId, Happened)> {
        self.state.lock().events.iter().cloned().collect()
    }
}

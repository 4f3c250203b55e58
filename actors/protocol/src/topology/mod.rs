//! Gossip graphs on the ordered members of a view: a function of the view and of the turn alone.
//!
//! The turn follows from the schedule, not from a count kept by each node: nodes that skipped steps
//! still agree with the others.
//!
//! The graphs, with the receivers of a member at a turn:
//!
//! - [`Exponential`]: the members at distance 1, 2, 4, …, one distance a turn.
//! - [`Ring`]: always the next `p`.
//! - [`BipartiteExponential`]: one of the other half, which sends back.
//! - [`Complete`]: all others.
//! - [`BandwidthAware`]: as `Exponential`, over an order by link speed.
//!
//! The ring and the complete graph repeat after one turn, the others after `log₂ W` turns. With
//! `p = 1` one cycle of the complete graph gives the exact mean, and one of the others does for a
//! power of two; the ring mixes slowly, in about `W²` turns.
//!
//! A new graph is a [`Topology`] in a file of its own here. [`of`] makes it, [`TopologyName`] names
//! it, and `config/values.rs` and `config/keys.rs` of runtime and `docs/configuration.md` have its
//! word. Tests list the graphs too: `topology/tests`, `gossip_peer/tests/scenario.rs`, and in
//! `chaos-tests` `src/sim/generator.rs` and `tests/training/overlapped.rs`.

mod bandwidth;
mod bipartite;
mod complete;
mod deciding;
mod exponential;
mod links;
mod order;
mod ring;
#[cfg(test)]
mod tests;

pub use bandwidth::BandwidthAware;
pub use bipartite::BipartiteExponential;
pub use complete::Complete;
pub use deciding::next_order;
pub use exponential::{Exponential, hops};
pub use links::{RATES_MAX, Rate, Rates, Score};
pub use order::{order_by_rate, score};
pub use ring::Ring;

use crate::algorithm::{Gossip, TopologyName};
use crate::ident::NodeId;
use std::fmt::Debug;
use std::sync::Arc;

/// The peers of one gossip, as ids of the ordered members; both lists ascending, without repeats
/// and without the node itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Peers {
    /// Nodes that this node sends to.
    pub out: Vec<NodeId>,
    /// Nodes that it receives from.
    pub inward: Vec<NodeId>,
}

impl Peers {
    fn of(out: impl Iterator<Item = NodeId>, inward: impl Iterator<Item = NodeId>) -> Self {
        let ascending = |ids: &mut Vec<NodeId>| ids.sort_unstable();
        let mut out: Vec<_> = out.collect();
        let mut inward: Vec<_> = inward.collect();
        ascending(&mut out);
        ascending(&mut inward);
        Self { out, inward }
    }

    /// Peers of symmetric exchanges.
    fn both_ways(with: impl Iterator<Item = NodeId>) -> Self {
        let mut out: Vec<_> = with.collect();
        out.sort_unstable();
        Self {
            inward: out.clone(),
            out,
        }
    }
}

/// A gossip graph. All members of a view evaluate it in the same way, so that a node sends exactly
/// when its peer expects it: `i` is in the `out` of `j` exactly when `j` is in the `inward` of `i`.
/// Information from every member reaches all others, over one cycle or (in a ring) several.
pub trait Topology: Debug + Send + Sync {
    /// The peers of `me` in the gossip with number `turn`, counted from 0. `members` is the whole
    /// view, ascending. Empty if `me` is alone or not a member, or if the number of members is not
    /// the one the graph was built for.
    fn peers(&self, members: &[NodeId], me: NodeId, turn: u64) -> Peers;

    /// Number of turns after which the graph repeats, at least 1.
    fn cycle(&self) -> u64;

    /// Maximum number of members that one member receives from in a turn.
    fn peers_max(&self) -> usize;
}

/// The graph of the settings, over `members`, ascending. `order` is for
/// [`TopologyName::BandwidthAware`]: the decided order of the members; any list that is not such an
/// order stands for ascending ids.
#[must_use]
pub fn of(gossip: &Gossip, members: &[NodeId], order: &[NodeId]) -> Arc<dyn Topology> {
    let size = members.len();
    let peers_per_step = gossip.peers_per_step;
    match gossip.topology {
        TopologyName::Exponential => Arc::new(Exponential::new(size, peers_per_step)),
        TopologyName::Ring => Arc::new(Ring::new(size, peers_per_step)),
        TopologyName::BipartiteExponential => {
            Arc::new(BipartiteExponential::new(size, peers_per_step))
        }
        TopologyName::Complete => Arc::new(Complete::new(size)),
        TopologyName::BandwidthAware => {
            Arc::new(BandwidthAware::new(members, peers_per_step, order))
        }
    }
}

/// The `width` entries of `list` for `turn`: the first ones in turn 0, shifted by `width` in each
/// following turn, wrapping around.
fn window(list: &[usize], width: usize, turn: u64) -> impl Iterator<Item = usize> {
    let entries = u128::from(turn) * width as u128;
    // The remainder is below the length, so it fits.
    let cursor = entries.checked_rem(list.len() as u128).unwrap_or(0) as usize;
    list.iter()
        .copied()
        .cycle()
        .skip(cursor)
        .take(width.min(list.len()))
}

/// Number of turns after which [`window`] repeats.
fn cycle(length: usize, width: usize) -> u64 {
    if width >= length {
        return 1;
    }
    let mut a = length;
    let mut b = width;
    while b > 0 {
        (a, b) = (b, a % b);
    }
    (length / a) as u64
}

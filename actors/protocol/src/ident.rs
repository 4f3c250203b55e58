//! Identities and counters: integers with types of their own, so that an epoch is never mistaken
//! for a round.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Defines an integer newtype with order, serialization and a one-word display prefix.
macro_rules! counter {
    ($(#[$doc:meta])* $name:ident($inner:ty), $word:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[derive(Serialize, Deserialize)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($word, " {}"), self.0)
            }
        }
    };
}

counter!(
    /// A node: one process, whose workers share a fast interconnect. The id is configured,
    /// and then a restarted process has the same, or drawn at each start.
    NodeId(u64), "node"
);
counter!(
    /// Distinguishes a restarted process from its predecessor with the same [`NodeId`].
    /// Incarnations have no order: clocks may step back.
    Incarnation(u64), "incarnation"
);
counter!(
    /// Keeps the traffic of two clusters apart; derived from the cluster key.
    ClusterId(u64), "cluster"
);
counter!(
    /// A group of nodes with fast links among them, such as a site or a rack: a number made from
    /// its name. 0 is the group of all nodes without a name.
    GroupId(u32), "group"
);
counter!(
    /// Counts the views of a lineage; the bootstrap view is epoch 1.
    Epoch(u64), "epoch"
);
counter!(
    /// Counts the decided outcomes of a lineage; the bootstrap round is 0.
    Round(u64), "round"
);
counter!(
    /// An inner step of a worker, counted from 0.
    Step(u64), "step"
);
counter!(
    /// A contiguous range of the flat parameter vector, by index.
    ShardId(u32), "shard"
);

/// Displays several nodes in a message: `node 3, node 7`.
#[derive(Clone, Copy, Debug)]
pub struct Nodes<'a>(pub &'a [NodeId]);

impl fmt::Display for Nodes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, node) in self.0.iter().enumerate() {
            write!(f, "{}{node}", if index > 0 { ", " } else { "" })?;
        }
        Ok(())
    }
}

/// The model history that a node belongs to. Zero means "none yet": such a node never transfers
/// state to others.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Lineage(pub u128);

impl Lineage {
    /// The lineage of a node that has applied no decided outcome.
    pub const NONE: Self = Self(0);

    /// Whether this node belongs to a decided model history.
    #[must_use]
    pub fn is_decided(self) -> bool {
        self != Self::NONE
    }

    /// The lineage of a bootstrap: `of` is a hash of something unique to it. Never
    /// [`Lineage::NONE`], nor are the lineages forked from it.
    #[must_use]
    pub fn of_bootstrap(of: u128) -> Self {
        Self(of | 1 << Self::BOOTSTRAP_SHIFT)
    }

    /// The lineage of a fork of this history, next to others of the same bootstrap: `of` is a hash
    /// of what distinguishes it.
    #[must_use]
    pub fn parted(self, of: u128) -> Self {
        let low = (1 << Self::BOOTSTRAP_SHIFT) - 1;
        Self(((self.0 & !low) | (of & low)).max(1))
    }

    /// Whether both come from the same bootstrap.
    #[must_use]
    pub fn is_akin(self, other: Self) -> bool {
        self.0 >> Self::BOOTSTRAP_SHIFT == other.0 >> Self::BOOTSTRAP_SHIFT
    }

    /// The upper half identifies the bootstrap and is the same in all forks.
    const BOOTSTRAP_SHIFT: u32 = 64;
}

impl fmt::Display for Lineage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "lineage {:032x}", self.0)
    }
}

/// A proposal number. Ordered by counter, then by the node that owns it, so no two leaders share
/// one.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Term {
    /// Grows whenever a node takes over the leadership.
    pub counter: u64,
    /// The leader that proposes under this term.
    pub node: NodeId,
}

impl Term {
    /// The smallest term of `node` above this one.
    #[must_use]
    pub fn next_of(self, node: NodeId) -> Self {
        Self {
            counter: self.counter.saturating_add(1),
            node,
        }
    }
}

impl fmt::Display for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "term {}.{}", self.counter, self.node.0)
    }
}

impl Round {
    /// The bootstrap round: all nodes take the parameters of the lowest id.
    pub const BOOTSTRAP: Self = Self(0);

    /// The round after this one.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }

    /// The round before this one; `None` for [`Round::BOOTSTRAP`].
    #[must_use]
    pub fn before(self) -> Option<Self> {
        self.0.checked_sub(1).map(Self)
    }
}

impl Epoch {
    /// The epoch of the bootstrap view.
    pub const BOOTSTRAP: Self = Self(1);
}

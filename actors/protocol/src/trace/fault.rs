//! What can be done to a cluster. The same faults are carried out in the simulation, on real actors
//! and on real processes; who carries them out decides how.

use crate::ident::NodeId;
use crate::time::{Instant, Span};
use serde::{Deserialize, Serialize};

/// What is wrong on the way from one node to another. The default is nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Link {
    /// Nothing gets through.
    pub cut: bool,
    /// Every packet arrives later by this many microseconds.
    pub delay_us: u64,
    /// And by up to this many more, each packet by another number, so that packets overtake each
    /// other.
    pub jitter_us: u64,
    /// Packets lost of a million.
    pub lost_per_million: u32,
    /// Packets that arrive twice, of a million.
    pub doubled_per_million: u32,
    /// Bytes a second that get through; 0: no limit.
    pub bytes_per_second: u64,
}

/// One thing that is done to a cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "fault", rename_all = "snake_case")]
pub enum Fault {
    /// A node ends at once, without a word (SIGKILL).
    Kill {
        /// Who.
        node: NodeId,
    },
    /// A node starts: a new one, or one that ended, as a new start under its id.
    Start {
        /// Who.
        node: NodeId,
    },
    /// A node does nothing for a while and then goes on as if no time had passed (SIGSTOP,
    /// SIGCONT).
    Pause {
        /// Who.
        node: NodeId,
        /// For how long.
        span: Span,
    },
    /// A node hands over in the next round and ends.
    Drain {
        /// Who.
        node: NodeId,
    },
    /// What a node computes takes so many hundredths of the usual time from now on; 100 is the
    /// usual.
    Slow {
        /// Who.
        node: NodeId,
        /// How slow.
        hundredths: u32,
    },
    /// The way from some nodes to others changes, in this direction only.
    Links {
        /// From whom.
        from: Vec<NodeId>,
        /// To whom; a node has no way to itself.
        to: Vec<NodeId>,
        /// What it is like from now on.
        link: Link,
    },
    /// The connections of two nodes break now; they may connect again at once.
    Break {
        /// One end.
        one: NodeId,
        /// The other end.
        other: NodeId,
    },
    /// What a node writes to its disk takes so long from now on; 0 is no time.
    SlowDisk {
        /// Who.
        node: NodeId,
        /// How long one write takes.
        span: Span,
    },
    /// A node's disk for checkpoints is full, or is no more.
    FullDisk {
        /// Who.
        node: NodeId,
        /// Whether it is full.
        full: bool,
    },
    /// A node's clock runs at so many millionths of the right speed from now on; 1,000,000 is
    /// right.
    Drift {
        /// Who.
        node: NodeId,
        /// How fast.
        millionths: u32,
    },
    /// All links are as they were at the start.
    Heal,
}

/// A fault and when it happens, counted from the start of the run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Timed {
    /// When.
    pub at: Instant,
    /// What.
    #[serde(flatten)]
    pub fault: Fault,
}

impl Fault {
    /// The node that it hits, if it is one.
    #[must_use]
    pub fn victim(&self) -> Option<NodeId> {
        match self {
            Self::Kill { node }
            | Self::Start { node }
            | Self::Pause { node, .. }
            | Self::Drain { node }
            | Self::Slow { node, .. }
            | Self::SlowDisk { node, .. }
            | Self::FullDisk { node, .. }
            | Self::Drift { node, .. } => Some(*node),
            Self::Links { .. } | Self::Break { .. } | Self::Heal => None,
        }
    }

    /// Its name in traces and tables.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Kill { .. } => "kill",
            Self::Start { .. } => "start",
            Self::Pause { .. } => "pause",
            Self::Drain { .. } => "drain",
            Self::Slow { .. } => "slow",
            Self::Links {
                link: Link { cut: true, .. },
                ..
            } => "cut",
            Self::Links { .. } => "links",
            Self::Break { .. } => "break",
            Self::SlowDisk { .. } => "slow_disk",
            Self::FullDisk { .. } => "full_disk",
            Self::Drift { .. } => "drift",
            Self::Heal => "heal",
        }
    }
}

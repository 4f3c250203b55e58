//! Faults to inject into a cluster. The same faults are injected in the simulation, into real
//! actors and into real processes; the injector decides how.

use crate::ident::NodeId;
use crate::time::{Instant, Span};
use serde::{Deserialize, Serialize};

/// Faults of the link from one node to another. The default is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Link {
    /// Whether all packets are dropped.
    pub cut: bool,
    /// Added delay of every packet, in microseconds.
    pub delay_us: u64,
    /// Maximum further delay, in microseconds, random for each packet, so that packets overtake
    /// each other.
    pub jitter_us: u64,
    /// Lost packets per million.
    pub lost_per_million: u32,
    /// Duplicated packets per million.
    pub doubled_per_million: u32,
    /// Bandwidth limit in bytes per second; 0: no limit.
    pub bytes_per_second: u64,
}

/// A fault injected into a cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "fault", rename_all = "snake_case")]
pub enum Fault {
    /// A node is killed at once, without notice (SIGKILL).
    Kill {
        /// The node.
        node: NodeId,
    },
    /// A node starts: a new one, or one that ended, under its old id with a new incarnation.
    Start {
        /// The node.
        node: NodeId,
    },
    /// A node is paused and then continues as if no time had passed (SIGSTOP, SIGCONT).
    Pause {
        /// The node.
        node: NodeId,
        /// Length of the pause.
        span: Span,
    },
    /// A node drains: it hands over in the next round and ends.
    Drain {
        /// The node.
        node: NodeId,
    },
    /// A node's computation takes `hundredths` percent of its usual time from now on; 100 is the
    /// usual.
    Slow {
        /// The node.
        node: NodeId,
        /// Duration in percent of the usual.
        hundredths: u32,
    },
    /// The links from some nodes to others change, in this direction only.
    Links {
        /// The sending nodes.
        from: Vec<NodeId>,
        /// The receiving nodes; a node has no link to itself.
        to: Vec<NodeId>,
        /// State of the links from now on.
        link: Link,
    },
    /// The connections between two nodes break now; the nodes may reconnect at once.
    Break {
        /// One node.
        one: NodeId,
        /// The other node.
        other: NodeId,
    },
    /// Every write of a node to its disk takes this long from now on; 0 is no delay.
    SlowDisk {
        /// The node.
        node: NodeId,
        /// Duration of one write.
        span: Span,
    },
    /// A node's disk for checkpoints becomes full, or stops being full.
    FullDisk {
        /// The node.
        node: NodeId,
        /// Whether it is full.
        full: bool,
    },
    /// A node's clock runs at this rate from now on, in millionths of the right speed; 1,000,000 is
    /// right.
    Drift {
        /// The node.
        node: NodeId,
        /// Rate of the clock, in millionths.
        millionths: u32,
    },
    /// All links return to their initial state.
    Heal,
}

/// A fault and its time since the start of the run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Timed {
    /// Time of the fault.
    pub at: Instant,
    /// The fault.
    #[serde(flatten)]
    pub fault: Fault,
}

impl Fault {
    /// The node that the fault hits, if it hits exactly one.
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

    /// Name of the fault in traces and tables.
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

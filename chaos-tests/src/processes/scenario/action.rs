//! The actions of a scenario, and their targets.

use serde::{Deserialize, Serialize};
use slowmo_protocol::trace::Link;

/// One action of a scenario.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case", deny_unknown_fields)]
pub enum Action {
    /// The node is killed with SIGKILL.
    Kill {
        /// The node that is killed.
        who: Who,
        /// The node is restarted after this many seconds; never if not given.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        for_s: Option<Time>,
    },
    /// The node hands over and leaves.
    Drain {
        /// The node that leaves.
        who: Who,
        /// The node is restarted this many seconds after the order, but not before it has left;
        /// never if not given.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        for_s: Option<Time>,
    },
    /// SIGSTOP, and SIGCONT after this many seconds.
    Pause {
        /// The node that is paused.
        who: Who,
        /// Duration of the pause.
        for_s: Time,
    },
    /// Starts nodes under the lowest free ids, which join.
    Start {
        /// Number of nodes that are started at once.
        #[serde(default = "one")]
        count: usize,
    },
    /// Nothing gets through between two groups.
    Cut {
        /// One side of the cut.
        from: Group,
        /// The other side.
        to: Group,
        /// Only packets from `from` to `to` are lost.
        #[serde(default)]
        one_way: bool,
        /// Duration of the cut.
        for_s: Time,
    },
    /// Links between two groups get worse.
    Link {
        /// One side of the links.
        from: Group,
        /// The other side.
        to: Group,
        /// Only packets from `from` to `to` are affected.
        #[serde(default)]
        one_way: bool,
        /// Duration of the disturbance.
        for_s: Time,
        /// Delay in milliseconds.
        #[serde(default)]
        delay_ms: f64,
        /// Maximum additional delay in milliseconds, drawn for each packet.
        #[serde(default)]
        jitter_ms: f64,
        /// Share of packets that are lost.
        #[serde(default)]
        loss: f64,
        /// Share of packets that arrive twice.
        #[serde(default)]
        doubled: f64,
        /// Rate in megabits per second; 0 is no limit.
        #[serde(default)]
        mbit_per_s: f64,
    },
    /// The disk for checkpoints is full: the node writes no checkpoint part. Requires
    /// `checkpoint_every` among the settings.
    FullDisk {
        /// The node whose disk is full.
        who: Who,
        /// Duration of the full disk.
        for_s: Time,
    },
}

/// One node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged, expecting = "a node's id, or one of any, leader, last, next")]
pub enum Who {
    /// The node with this id.
    Id(u64),
    /// A node that is chosen at the time of the action.
    Word(WhoWord),
}

/// How one node is chosen among those that run and are not already disturbed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WhoWord {
    /// A random node.
    Any,
    /// The node with the lowest id, which leads.
    Leader,
    /// The node with the highest id.
    Last,
    /// One node after the other, ascending.
    Next,
}

/// Several nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(
    untagged,
    expecting = "a list of node ids, or one of any, leader, others, all, lower_half, upper_half"
)]
pub enum Group {
    /// The nodes with these ids.
    Ids(Vec<u64>),
    /// Nodes that are chosen at the time of the action.
    Word(GroupWord),
}

/// How a group is chosen among all ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GroupWord {
    /// One node at random.
    Any,
    /// The running node with the lowest id.
    Leader,
    /// All nodes that are not in the other group.
    Others,
    /// All nodes.
    All,
    /// The lower half of the ids.
    LowerHalf,
    /// The upper half of the ids.
    UpperHalf,
}

/// A number of seconds, or a range to draw it from.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(
    untagged,
    expecting = "a number of seconds, or a range of them like [1, 5]"
)]
pub enum Time {
    /// A fixed number of seconds.
    Fixed(f64),
    /// Uniformly distributed between these.
    Range([f64; 2]),
}

/// The quality of links.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Quality {
    /// Delay in milliseconds, in each direction.
    pub delay_ms: f64,
    /// Maximum additional delay in milliseconds, drawn for each packet.
    pub jitter_ms: f64,
    /// Share of packets that are lost.
    pub loss: f64,
    /// Share of packets that arrive twice.
    pub doubled: f64,
    /// Rate in megabits per second; 0 is no limit.
    pub mbit_per_s: f64,
}

impl Quality {
    /// Whether the links are undisturbed.
    #[must_use]
    pub fn is_perfect(&self) -> bool {
        *self == Self::default()
    }

    /// The quality as the link emulator represents it. Values are in the ranges that the check
    /// allows.
    #[must_use]
    pub fn link(&self) -> Link {
        let micros = |milliseconds: f64| (milliseconds * 1e3).round() as u64;
        let millionths = |share: f64| (share * 1e6).round() as u32;
        Link {
            cut: false,
            delay_us: micros(self.delay_ms),
            jitter_us: micros(self.jitter_ms),
            lost_per_million: millionths(self.loss),
            doubled_per_million: millionths(self.doubled),
            bytes_per_second: (self.mbit_per_s * 1e6 / 8.0).round() as u64,
        }
    }
}

impl Action {
    /// The new quality of the links, if the action changes links.
    #[must_use]
    pub fn link(&self) -> Option<Link> {
        match *self {
            Self::Cut { .. } => Some(Link {
                cut: true,
                ..Link::default()
            }),
            Self::Link {
                delay_ms,
                jitter_ms,
                loss,
                doubled,
                mbit_per_s,
                ..
            } => Some(
                Quality {
                    delay_ms,
                    jitter_ms,
                    loss,
                    doubled,
                    mbit_per_s,
                }
                .link(),
            ),
            _ => None,
        }
    }
}

fn one() -> usize {
    1
}

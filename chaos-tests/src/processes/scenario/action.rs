//! What a scenario can do, and to whom.

use serde::{Deserialize, Serialize};
use slowmo_protocol::trace::Link;

/// One thing that a scenario does.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case", deny_unknown_fields)]
pub enum Action {
    /// SIGKILL.
    Kill {
        /// Whom.
        who: Who,
        /// It is started again after so many seconds; never unless given.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        for_s: Option<Time>,
    },
    /// The node hands over and leaves.
    Drain {
        /// Who.
        who: Who,
        /// It is started again so many seconds after the order, and not before it has left; never
        /// unless given.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        for_s: Option<Time>,
    },
    /// SIGSTOP, and SIGCONT after so many seconds.
    Pause {
        /// Whom.
        who: Who,
        /// How long.
        for_s: Time,
    },
    /// Starts nodes under the lowest free ids, which join.
    Start {
        /// How many at once.
        #[serde(default = "one")]
        count: usize,
    },
    /// Nothing gets through between two groups.
    Cut {
        /// One side.
        from: Group,
        /// The other.
        to: Group,
        /// Only what travels from `from` to `to` is lost.
        #[serde(default)]
        one_way: bool,
        /// How long.
        for_s: Time,
    },
    /// Links between two groups get worse.
    Link {
        /// One side.
        from: Group,
        /// The other.
        to: Group,
        /// Only what travels from `from` to `to` is hit.
        #[serde(default)]
        one_way: bool,
        /// How long.
        for_s: Time,
        /// Milliseconds of delay.
        #[serde(default)]
        delay_ms: f64,
        /// Up to so many more milliseconds, each packet another number.
        #[serde(default)]
        jitter_ms: f64,
        /// Share of the packets that are lost.
        #[serde(default)]
        loss: f64,
        /// Share of the packets that arrive twice.
        #[serde(default)]
        doubled: f64,
        /// Megabits a second; 0 is no limit.
        #[serde(default)]
        mbit_per_s: f64,
    },
    /// The disk for checkpoints is full: a node writes no part of one. Wants `checkpoint_every`
    /// among the settings.
    FullDisk {
        /// Whose.
        who: Who,
        /// How long.
        for_s: Time,
    },
}

/// One node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged, expecting = "a node's id, or one of any, leader, last, next")]
pub enum Who {
    /// This one.
    Id(u64),
    /// One that is chosen then.
    Word(WhoWord),
}

/// How one node is chosen among those that run and are not disturbed already.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WhoWord {
    /// At random.
    Any,
    /// The lowest id: it leads.
    Leader,
    /// The highest id.
    Last,
    /// One after the other, ascending.
    Next,
}

/// Several nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(
    untagged,
    expecting = "a list of node ids, or one of any, leader, others, all, lower_half, upper_half"
)]
pub enum Group {
    /// These.
    Ids(Vec<u64>),
    /// Those that are chosen then.
    Word(GroupWord),
}

/// How a group is chosen among all ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GroupWord {
    /// One node at random.
    Any,
    /// The lowest id that runs.
    Leader,
    /// Everybody who is not in the other group.
    Others,
    /// Everybody.
    All,
    /// The lower half of the ids.
    LowerHalf,
    /// The upper half of the ids.
    UpperHalf,
}

/// A number of seconds, or one between two.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(
    untagged,
    expecting = "a number of seconds, or a range of them like [1, 5]"
)]
pub enum Time {
    /// So many.
    Fixed(f64),
    /// Evenly distributed between these.
    Range([f64; 2]),
}

/// What links are like.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Quality {
    /// Milliseconds of delay in each direction.
    pub delay_ms: f64,
    /// Up to so many more milliseconds, each packet another number.
    pub jitter_ms: f64,
    /// Share of the packets that are lost.
    pub loss: f64,
    /// Share of the packets that arrive twice.
    pub doubled: f64,
    /// Megabits a second; 0 is no limit.
    pub mbit_per_s: f64,
}

impl Quality {
    /// Whether nothing is wrong.
    #[must_use]
    pub fn is_perfect(&self) -> bool {
        *self == Self::default()
    }

    /// As the link emulator has it. Values are in the ranges that the check allows.
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
    /// What the links become, if it changes links.
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

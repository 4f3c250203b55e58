//! Everything that a run follows from, as data: its configuration and its faults. Schedules are
//! drawn from seeds ([`Schedule::from_seed`]), read from files and written to them
//! ([`super::file`]), and run ([`super::run`]).

use super::config::{Config, MILLI};
use super::generator::{self, Kinds};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use slowmo_protocol::changeable::SettingValues;
use slowmo_protocol::ident::NodeId;
use slowmo_protocol::time::{Instant, Span};
use slowmo_protocol::trace::{self, Fault, Link};
use std::num::NonZeroU64;
use std::ops::RangeInclusive;

/// The complete description of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Schedule {
    /// Purpose of the schedule, in a sentence or two.
    pub what: String,
    /// Configuration of the run.
    pub config: Config,
    /// Faults of the run, in order.
    pub faults: Vec<Timed>,
}

/// A time or duration in microseconds; in files in milliseconds, with up to three decimals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Millis(pub u64);

/// An act and its time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Timed {
    /// Time from the start of the run.
    #[serde(rename = "at_ms")]
    pub at: Millis,
    /// The act.
    #[serde(flatten)]
    pub act: Act,
}

/// Settings with which a node is started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Settings {
    /// The node joins a cluster and never bootstraps one.
    #[default]
    Joins,
    /// Like the first nodes of the run: the node may bootstrap a cluster. If an earlier incarnation
    /// of it was a member, it knows that.
    Founds,
    /// Like the first nodes of the run, on a new disk: the node knows of no earlier incarnation.
    Forgets,
}

/// Disturbances of the link from one node to another, beside a cut.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Way {
    /// Additional delay of every packet.
    #[serde(rename = "delay_ms", skip_serializing_if = "is_default")]
    pub delay: Millis,
    /// Maximum further delay, drawn for each packet.
    #[serde(rename = "jitter_ms", skip_serializing_if = "is_default")]
    pub jitter: Millis,
    /// Number of packets lost per million.
    #[serde(skip_serializing_if = "is_default")]
    pub lost_per_million: u32,
    /// Number of packets per million that arrive twice.
    #[serde(skip_serializing_if = "is_default")]
    pub doubled_per_million: u32,
    /// Rate in bytes per second; 0: no limit.
    #[serde(skip_serializing_if = "is_default")]
    pub bytes_per_second: u64,
}

/// One action on a cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case", deny_unknown_fields)]
pub enum Act {
    /// A node ends at once, without telling its peers.
    Kill {
        /// The node that ends.
        node: NodeId,
    },
    /// All holders of a shard end at once, except the last one that can continue.
    KillHolders {
        /// Index of the shard, counted around through the shards that have holders at that time.
        shard: u32,
    },
    /// A node starts: a new one, or one that ended, under its id and with empty memory.
    Start {
        /// The node that starts.
        node: NodeId,
        /// Settings of the node.
        #[serde(default, skip_serializing_if = "is_default")]
        settings: Settings,
        /// Its incarnation is lower by this number than the previous one of the node: its clock was
        /// set back meanwhile. 0: it is the next incarnation of the run.
        #[serde(default, skip_serializing_if = "is_default")]
        clock_back: u64,
    },
    /// A node does nothing for a while and then continues as if no time had passed.
    Pause {
        /// The node that is paused.
        node: NodeId,
        /// Duration of the pause.
        #[serde(rename = "for_ms")]
        lasts: Millis,
    },
    /// A node hands over and leaves.
    Drain {
        /// The node that leaves.
        node: NodeId,
    },
    /// From now on, computations of a node take this many hundredths of the usual time.
    Slow {
        /// The node that is slowed.
        node: NodeId,
        /// Duration in hundredths; 100 is the usual.
        hundredths: u32,
    },
    /// From now on, writes of a node to its disk take this long.
    SlowDisk {
        /// The node whose disk is slow.
        node: NodeId,
        /// Duration of one write.
        #[serde(rename = "takes_ms")]
        takes: Millis,
    },
    /// From now on, a node's clock runs at this many millionths of the correct speed.
    Drift {
        /// The node whose clock drifts.
        node: NodeId,
        /// Speed in millionths; 1,000,000 is correct.
        millionths: u32,
    },
    /// Nothing gets from some nodes to others, nor back.
    Cut {
        /// One side of the cut.
        from: Vec<NodeId>,
        /// The other side.
        to: Vec<NodeId>,
        /// Packets from `to` to `from` get through.
        #[serde(default, skip_serializing_if = "is_default")]
        one_way: bool,
        /// Time at which the links are restored; defaults to the end of the faults.
        #[serde(rename = "until_ms", default, skip_serializing_if = "Option::is_none")]
        until: Option<Millis>,
    },
    /// The links from some nodes to others are disturbed, and those back.
    Links {
        /// One side of the links.
        from: Vec<NodeId>,
        /// The other side.
        to: Vec<NodeId>,
        /// The links from `to` to `from` stay as they are.
        #[serde(default, skip_serializing_if = "is_default")]
        one_way: bool,
        /// Time at which the links are restored; defaults to the end of the faults.
        #[serde(rename = "until_ms", default, skip_serializing_if = "Option::is_none")]
        until: Option<Millis>,
        /// The quality of the links.
        way: Way,
    },
    /// The connections of two nodes break now; they may connect again at once.
    Break {
        /// One end.
        one: NodeId,
        /// The other end.
        other: NodeId,
    },
    /// All links return to their initial state.
    Heal,
    /// From now on a node publishes other values to some nodes than to the others, until its
    /// process ends, at the latest with the faults.
    Equivocate {
        /// The node that lies.
        node: NodeId,
    },
    /// A node is told that outer rounds are to be so many steps apart from now on, and to be waited
    /// for so long.
    Set {
        /// The node that is asked.
        node: NodeId,
        /// Inner steps of an outer round; at least 1.
        tau: NonZeroU64,
        /// Time that a round waits for a straggler; at least 1.
        grace_ms: NonZeroU64,
    },
}

/// An act as the world carries it out: an act with a duration is two deeds, its beginning and its
/// end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Deed {
    /// A fault that traces can represent.
    Fault(Fault),
    /// See [`Act::Start`].
    Start(NodeId, Settings, u64),
    /// See [`Act::KillHolders`].
    KillHolders(u32),
    /// See [`Act::Equivocate`].
    Equivocate(NodeId),
    /// See [`Act::Set`].
    Set(NodeId, SettingValues),
}

impl Schedule {
    /// The schedule of a seed, with a number of nodes in this range.
    #[must_use]
    pub fn from_seed(seed: u64, nodes: &RangeInclusive<usize>) -> Self {
        generator::draw(seed, nodes, Kinds::Usual)
    }

    /// The schedule with only those of its faults that have these indices; indices that do not
    /// exist are ignored.
    #[must_use]
    pub fn with(&self, places: &[usize]) -> Self {
        let faults = places
            .iter()
            .filter_map(|place| self.faults.get(*place))
            .cloned()
            .collect();
        Self {
            faults,
            ..self.clone()
        }
    }

    /// The deeds of the world with their times, in order.
    #[must_use]
    pub fn deeds(&self) -> Vec<(Instant, Deed)> {
        let mut deeds: Vec<(Instant, Deed)> = self.faults.iter().flat_map(Timed::deeds).collect();
        deeds.sort_by_key(|(at, _)| *at);
        deeds
    }

    /// The faults that traces can represent, for clusters that are not simulated: a started node
    /// only joins.
    #[must_use]
    pub fn known_faults(&self) -> Vec<trace::Timed> {
        let known = |(at, deed)| match deed {
            Deed::Fault(fault) => Some(trace::Timed { at, fault }),
            Deed::Start(node, ..) => Some(trace::Timed {
                at,
                fault: Fault::Start { node },
            }),
            Deed::KillHolders(_) | Deed::Equivocate(_) | Deed::Set(..) => None,
        };
        self.deeds().into_iter().filter_map(known).collect()
    }
}

impl Timed {
    /// The deeds of the act: its beginning, and its end.
    #[must_use]
    pub fn deeds(&self) -> Vec<(Instant, Deed)> {
        let at = Instant(self.at.0);
        let fault = match &self.act {
            Act::Cut {
                from,
                to,
                one_way,
                until,
            } => {
                return changes(
                    from,
                    to,
                    *one_way,
                    (at, *until),
                    Link {
                        cut: true,
                        ..Link::default()
                    },
                );
            }
            Act::Links {
                from,
                to,
                one_way,
                until,
                way,
            } => return changes(from, to, *one_way, (at, *until), way.link()),
            Act::KillHolders { shard } => return vec![(at, Deed::KillHolders(*shard))],
            Act::Equivocate { node } => return vec![(at, Deed::Equivocate(*node))],
            Act::Set {
                node,
                tau,
                grace_ms,
            } => {
                let values = SettingValues {
                    tau: Some(*tau),
                    grace_ms: Some(*grace_ms),
                    ..SettingValues::default()
                };
                return vec![(at, Deed::Set(*node, values))];
            }
            Act::Start {
                node,
                settings,
                clock_back,
            } => return vec![(at, Deed::Start(*node, *settings, *clock_back))],
            Act::Kill { node } => Fault::Kill { node: *node },
            Act::Pause { node, lasts } => Fault::Pause {
                node: *node,
                span: Span(lasts.0),
            },
            Act::Drain { node } => Fault::Drain { node: *node },
            Act::Slow { node, hundredths } => Fault::Slow {
                node: *node,
                hundredths: *hundredths,
            },
            Act::SlowDisk { node, takes } => Fault::SlowDisk {
                node: *node,
                span: Span(takes.0),
            },
            Act::Drift { node, millionths } => Fault::Drift {
                node: *node,
                millionths: *millionths,
            },
            Act::Break { one, other } => Fault::Break {
                one: *one,
                other: *other,
            },
            Act::Heal => Fault::Heal,
        };
        vec![(at, Deed::Fault(fault))]
    }

    /// Time at which the act is over.
    #[must_use]
    pub fn ends(&self) -> Millis {
        match &self.act {
            Act::Cut {
                until: Some(until), ..
            }
            | Act::Links {
                until: Some(until), ..
            } => self.at.max(*until),
            Act::Pause { lasts, .. } => Millis(self.at.0.saturating_add(lasts.0)),
            _ => self.at,
        }
    }
}

/// Disturbs each direction, and restores it.
fn changes(
    from: &[NodeId],
    to: &[NodeId],
    one_way: bool,
    (at, until): (Instant, Option<Millis>),
    link: Link,
) -> Vec<(Instant, Deed)> {
    let mut deeds = Vec::new();
    let directions = if one_way { 1 } else { 2 };
    for (from, to) in [(from, to), (to, from)].into_iter().take(directions) {
        let change = |link| {
            Deed::Fault(Fault::Links {
                from: from.to_vec(),
                to: to.to_vec(),
                link,
            })
        };
        deeds.push((at, change(link)));
        deeds.extend(until.map(|until| (Instant(until.0), change(Link::default()))));
    }
    deeds
}

impl Way {
    fn kinds(&self) -> Vec<&'static str> {
        let mut kinds = Vec::new();
        if self.delay.0 + self.jitter.0 > 0 {
            kinds.push("delay");
        }
        if self.lost_per_million > 0 {
            kinds.push("loss");
        }
        if self.doubled_per_million > 0 {
            kinds.push("doubled packets");
        }
        if self.bytes_per_second > 0 {
            kinds.push("narrow link");
        }
        kinds
    }

    fn link(&self) -> Link {
        Link {
            cut: false,
            delay_us: self.delay.0,
            jitter_us: self.jitter.0,
            lost_per_million: self.lost_per_million,
            doubled_per_million: self.doubled_per_million,
            bytes_per_second: self.bytes_per_second,
        }
    }
}

impl Act {
    /// The kinds to which the act belongs, for counting.
    #[must_use]
    pub fn kinds(&self) -> Vec<&'static str> {
        match self {
            Self::Kill { .. } => vec!["kill"],
            Self::KillHolders { .. } => vec!["kill all holders of a shard"],
            Self::Start {
                settings,
                clock_back,
                ..
            } => {
                let mut kinds = vec!["start"];
                if *settings == Settings::Founds {
                    kinds.push("start with a founder's settings");
                }
                if *clock_back > 0 {
                    kinds.push("clock stepped back");
                }
                kinds
            }
            Self::Equivocate { .. } => vec!["equivocate"],
            Self::Set { .. } => vec!["change settings"],
            Self::Pause { .. } => vec!["pause"],
            Self::Drain { .. } => vec!["drain"],
            Self::Slow { .. } => vec!["slow"],
            Self::SlowDisk { .. } => vec!["slow disk"],
            Self::Drift { .. } => vec!["drifting clock"],
            Self::Cut { one_way: false, .. } => vec!["cut"],
            Self::Cut { one_way: true, .. } => vec!["cut one way"],
            Self::Links { way, .. } => way.kinds(),
            Self::Break { .. } => vec!["break"],
            Self::Heal => vec!["heal"],
        }
    }

    /// The start of a node that only joins.
    #[must_use]
    pub fn start(node: NodeId) -> Self {
        Self::Start {
            node,
            settings: Settings::Joins,
            clock_back: 0,
        }
    }
}

pub(super) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

impl Serialize for Millis {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.0.is_multiple_of(MILLI) {
            serializer.serialize_u64(self.0 / MILLI)
        } else {
            serializer.serialize_f64(self.0 as f64 / MILLI as f64)
        }
    }
}

impl<'de> Deserialize<'de> for Millis {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;

        impl serde::de::Visitor<'_> for Visitor {
            type Value = Millis;

            fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                formatter.write_str("a number of milliseconds that is not negative")
            }

            fn visit_u64<E: serde::de::Error>(self, value: u64) -> Result<Millis, E> {
                let unexpected = serde::de::Unexpected::Unsigned(value);
                value
                    .checked_mul(MILLI)
                    .map(Millis)
                    .ok_or_else(|| E::invalid_value(unexpected, &self))
            }

            fn visit_i64<E: serde::de::Error>(self, value: i64) -> Result<Millis, E> {
                let unexpected = serde::de::Unexpected::Signed(value);
                let value =
                    u64::try_from(value).map_err(|_| E::invalid_value(unexpected, &self))?;
                self.visit_u64(value)
            }

            fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<Millis, E> {
                // Up to this value every microsecond has a distinct number.
                if (0.0..1e12).contains(&value) {
                    Ok(Millis((value * MILLI as f64).round() as u64))
                } else {
                    Err(E::invalid_value(serde::de::Unexpected::Float(value), &self))
                }
            }
        }

        deserializer.deserialize_any(Visitor)
    }
}

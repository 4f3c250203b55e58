//! Everything that a run follows from, as data: what the run is like and what is done to it.
//! Schedules are drawn from seeds ([`Schedule::from_seed`]), read from files and written to them
//! ([`super::file`]), and run ([`super::run`]).

use super::config::{Config, MILLI};
use super::generator::{self, Kinds};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use slowmo_protocol::ident::NodeId;
use slowmo_protocol::time::{Instant, Span};
use slowmo_protocol::trace::{self, Fault, Link};
use std::ops::RangeInclusive;

/// A run before it is run.
#[derive(Clone, Debug, PartialEq)]
pub struct Schedule {
    /// What it is for, in a sentence or two.
    pub what: String,
    /// What the run is like.
    pub config: Config,
    /// What is done to it, in order.
    pub faults: Vec<Timed>,
}

/// A time, or a length of time, in microseconds; in files in milliseconds, with up to three
/// decimals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Millis(pub u64);

/// Something that is done, and when.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Timed {
    /// When, from the start of the run.
    #[serde(rename = "at_ms")]
    pub at: Millis,
    /// What.
    #[serde(flatten)]
    pub act: Act,
}

/// How a node is started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Settings {
    /// It joins a cluster and never founds one.
    #[default]
    Joins,
    /// As the first nodes of the run: it may found a cluster. If an earlier start of it was a
    /// member, it knows that.
    Founds,
    /// As the first nodes of the run, on a new disk: it knows nothing of an earlier start.
    Forgets,
}

/// What is wrong on a way from one node to another, beside a cut.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Way {
    /// Every packet arrives later by this.
    #[serde(rename = "delay_ms", skip_serializing_if = "is_default")]
    pub delay: Millis,
    /// And by up to this more, each packet by another time.
    #[serde(rename = "jitter_ms", skip_serializing_if = "is_default")]
    pub jitter: Millis,
    /// Packets lost of a million.
    #[serde(skip_serializing_if = "is_default")]
    pub lost_per_million: u32,
    /// Packets that arrive twice, of a million.
    #[serde(skip_serializing_if = "is_default")]
    pub doubled_per_million: u32,
    /// Bytes a second that get through; 0: no limit.
    #[serde(skip_serializing_if = "is_default")]
    pub bytes_per_second: u64,
}

/// One thing that is done to a cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case", deny_unknown_fields)]
pub enum Act {
    /// A node ends at once, without a word.
    Kill {
        /// Who.
        node: NodeId,
    },
    /// Everybody who holds a shard ends at once, but for the last one who can go on.
    KillHolders {
        /// Which: counted around through the shards that somebody holds then.
        shard: u32,
    },
    /// A node starts: a new one, or one that ended, under its id and with empty memory.
    Start {
        /// Who.
        node: NodeId,
        /// With which settings.
        #[serde(default, skip_serializing_if = "is_default")]
        settings: Settings,
        /// Its incarnation is lower by so many than that of the node's start before: its clock was
        /// set back meanwhile. 0: it is the next one of the run.
        #[serde(default, skip_serializing_if = "is_default")]
        clock_back: u64,
    },
    /// A node does nothing for a while and then goes on as if no time had passed.
    Pause {
        /// Who.
        node: NodeId,
        /// For how long.
        #[serde(rename = "for_ms")]
        lasts: Millis,
    },
    /// A node hands over and leaves.
    Drain {
        /// Who.
        node: NodeId,
    },
    /// What a node computes takes so many hundredths of the usual time from now on.
    Slow {
        /// Who.
        node: NodeId,
        /// How slow; 100 is the usual.
        hundredths: u32,
    },
    /// What a node writes to its disk takes so long from now on.
    SlowDisk {
        /// Who.
        node: NodeId,
        /// How long one write takes.
        #[serde(rename = "takes_ms")]
        takes: Millis,
    },
    /// A node's clock runs at so many millionths of the right speed from now on.
    Drift {
        /// Who.
        node: NodeId,
        /// How fast; 1,000,000 is right.
        millionths: u32,
    },
    /// Nothing gets from some nodes to others, nor back.
    Cut {
        /// One side.
        from: Vec<NodeId>,
        /// The other.
        to: Vec<NodeId>,
        /// What travels from `to` to `from` gets through.
        #[serde(default, skip_serializing_if = "is_default")]
        one_way: bool,
        /// When the ways are well again; at the end of the faults unless given.
        #[serde(rename = "until_ms", default, skip_serializing_if = "Option::is_none")]
        until: Option<Millis>,
    },
    /// The ways from some nodes to others are bad, and those back.
    Links {
        /// One side.
        from: Vec<NodeId>,
        /// The other.
        to: Vec<NodeId>,
        /// The ways from `to` to `from` stay as they are.
        #[serde(default, skip_serializing_if = "is_default")]
        one_way: bool,
        /// When the ways are well again; at the end of the faults unless given.
        #[serde(rename = "until_ms", default, skip_serializing_if = "Option::is_none")]
        until: Option<Millis>,
        /// What they are like.
        way: Way,
    },
    /// The connections of two nodes break now; they may connect again at once.
    Break {
        /// One end.
        one: NodeId,
        /// The other end.
        other: NodeId,
    },
    /// All links are as they were at the start.
    Heal,
}

/// An act as the world carries it out: what lasts is two deeds, its beginning and its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Deed {
    /// What traces know.
    Fault(Fault),
    /// See [`Act::Start`].
    Start(NodeId, Settings, u64),
    /// See [`Act::KillHolders`].
    KillHolders(u32),
}

impl Schedule {
    /// The schedule that a seed stands for, with a number of nodes in this range.
    #[must_use]
    pub fn from_seed(seed: u64, nodes: &RangeInclusive<usize>) -> Self {
        generator::draw(seed, nodes, Kinds::Usual)
    }

    /// With these of its faults alone, by their places; those that it does not have are passed
    /// over.
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

    /// What the world does, and when, in order.
    #[must_use]
    pub fn deeds(&self) -> Vec<(Instant, Deed)> {
        let mut deeds: Vec<(Instant, Deed)> = self.faults.iter().flat_map(Timed::deeds).collect();
        deeds.sort_by_key(|(at, _)| *at);
        deeds
    }

    /// The same as far as traces know it, for clusters that are no simulation: a start is one that
    /// joins.
    #[must_use]
    pub fn known_faults(&self) -> Vec<trace::Timed> {
        let known = |(at, deed)| match deed {
            Deed::Fault(fault) => Some(trace::Timed { at, fault }),
            Deed::Start(node, ..) => Some(trace::Timed {
                at,
                fault: Fault::Start { node },
            }),
            Deed::KillHolders(_) => None,
        };
        self.deeds().into_iter().filter_map(known).collect()
    }
}

impl Timed {
    /// Its beginning, and its end.
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

    /// When it is over.
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

/// Each direction gets worse, and well again.
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
    /// Of what kinds it is, for whoever counts them.
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

    /// A node starts as one that joins.
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
                // Up to there every microsecond has a number of its own.
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

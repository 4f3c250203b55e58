//! Times of the links between members, from measured rates.

use crate::ident::NodeId;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Measured rate of one node's messages to a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Rate {
    /// The peer.
    pub to: NodeId,
    /// Rate in units of 1,000 bytes per second; 0 counts as 1.
    pub kilobytes: u32,
}

/// Maximum number of rates that a node reports: a graph has few edges at a node, and the leader
/// keeps those of all nodes.
pub const RATES_MAX: usize = 64;

/// The rates that each node measured, by node.
pub type Rates = BTreeMap<NodeId, Vec<Rate>>;

/// Nanoseconds per megabyte: an integer, so that sums are exact and the same everywhere.
pub type Time = u64;

/// Known links between members, by their positions in the given list. A link is as fast as its
/// slower direction; an unmeasured link takes the mean of the measured times.
#[derive(Clone, Debug)]
pub struct Links {
    /// Known times per member, ascending by peer, each peer once.
    known: Vec<Vec<(usize, Time)>>,
    unknown: Time,
}

impl Links {
    /// The links between `members`; rates of and to others are left out.
    pub fn new(members: &[NodeId], rates: &Rates) -> Self {
        let places: BTreeMap<_, _> = members
            .iter()
            .enumerate()
            .map(|(place, id)| (*id, place))
            .collect();
        let mut known = vec![Vec::new(); members.len()];
        for (from, measured) in rates {
            let Some(from) = places.get(from) else {
                continue;
            };
            for rate in measured {
                let Some(to) = places.get(&rate.to).filter(|to| *to != from) else {
                    continue;
                };
                let time = 1_000_000_000_000 / Time::from(rate.kilobytes.max(1));
                known[*from].push((*to, time));
                known[*to].push((*from, time));
            }
        }
        for row in &mut known {
            // The slower of two directions comes first and is kept.
            row.sort_unstable_by_key(|(to, time)| (*to, std::cmp::Reverse(*time)));
            row.dedup_by_key(|(to, _)| *to);
        }
        let times = || {
            known
                .iter()
                .flat_map(|row| row.iter().map(|(_, time)| *time))
        };
        let unknown = times().fold(0, Time::saturating_add) / times().count().max(1) as Time;
        Self { known, unknown }
    }

    /// Whether no link is known.
    pub fn none_known(&self) -> bool {
        self.known.iter().all(Vec::is_empty)
    }

    /// A row of times without any known link.
    pub fn fresh_row(&self) -> Vec<Time> {
        vec![self.unknown; self.known.len()]
    }

    /// Number of members.
    pub fn size(&self) -> usize {
        self.known.len()
    }

    /// Whether no link of this member is known.
    pub fn is_unknown(&self, of: usize) -> bool {
        self.known[of].is_empty()
    }

    /// The time of the link between two members.
    pub fn time(&self, from: usize, to: usize) -> Time {
        let row = &self.known[from];
        row.binary_search_by_key(&to, |(to, _)| *to)
            .map_or(self.unknown, |at| row[at].1)
    }

    fn fill(&self, row: &mut [Time], of: usize) {
        for (to, time) in &self.known[of] {
            row[*to] = *time;
        }
    }

    fn clear(&self, row: &mut [Time], of: usize) {
        for (to, _) in &self.known[of] {
            row[*to] = self.unknown;
        }
    }

    /// Calls `look` with the times from `of` to all members and returns its result. `row` must be
    /// fresh and is fresh again afterwards.
    pub fn on_row<T>(&self, row: &mut [Time], of: usize, look: impl FnOnce(&[Time]) -> T) -> T {
        self.fill(row, of);
        let seen = look(row);
        self.clear(row, of);
        seen
    }
}

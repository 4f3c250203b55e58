//! How long the links between members take, from measured rates.

use super::order::Rates;
use crate::ident::NodeId;
use std::collections::BTreeMap;

/// Nanoseconds that a megabyte takes, so that sums are whole numbers and the same everywhere.
pub type Time = u64;

/// What is known of the links between members, by their places in the list given. A link is as fast
/// as its slower direction; one that nobody measured takes the mean of the times measured.
#[derive(Clone, Debug)]
pub struct Links {
    /// Ascending, each peer once.
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
            // The slower one of two directions comes first and stays.
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

    /// Whether nothing is known of any link.
    pub fn none_known(&self) -> bool {
        self.known.iter().all(Vec::is_empty)
    }

    /// A row of times as they are where nothing is known.
    pub fn fresh_row(&self) -> Vec<Time> {
        vec![self.unknown; self.known.len()]
    }

    /// How many members there are.
    pub fn size(&self) -> usize {
        self.known.len()
    }

    /// Whether nothing is known of any link of this member.
    pub fn is_unknown(&self, of: usize) -> bool {
        self.known[of].is_empty()
    }

    /// Between two members.
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

    /// What `look` makes of the times from `of` to everybody. `row` is fresh before and after.
    pub fn on_row<T>(&self, row: &mut [Time], of: usize, look: impl FnOnce(&[Time]) -> T) -> T {
        self.fill(row, of);
        let seen = look(row);
        self.clear(row, of);
        seen
    }
}

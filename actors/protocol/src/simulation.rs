//! Building blocks of simulations: a queue of events in virtual time, and seeded randomness.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

/// Events in order of time; those at the same time in the order in which they were added.
#[derive(Debug)]
pub struct Queue<E> {
    events: BinaryHeap<Reverse<Planned<E>>>,
    planned: u64,
}

#[derive(Debug)]
struct Planned<E> {
    at: u64,
    number: u64,
    event: E,
}

impl<E> Default for Queue<E> {
    fn default() -> Self {
        Self {
            events: BinaryHeap::new(),
            planned: 0,
        }
    }
}

impl<E> Queue<E> {
    /// Adds an event at time `at`.
    pub fn push(&mut self, at: u64, event: E) {
        self.planned += 1;
        self.events.push(Reverse(Planned {
            at,
            number: self.planned,
            event,
        }));
    }

    /// Takes the next event and its time, if that is at most `until`.
    pub fn pop(&mut self, until: u64) -> Option<(u64, E)> {
        if self.events.peek()?.0.at > until {
            return None;
        }
        self.events
            .pop()
            .map(|Reverse(Planned { at, event, .. })| (at, event))
    }
}

impl<E> PartialEq for Planned<E> {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}

impl<E> Eq for Planned<E> {}

impl<E> PartialOrd for Planned<E> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> Ord for Planned<E> {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

/// A small generator (SplitMix64): one seed drives a run.
#[derive(Clone, Debug)]
pub struct Random(pub u64);

impl Random {
    /// A number below `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % bound.max(1)
    }
}

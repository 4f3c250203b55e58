//! All waits of the machine, by name. A timer that is not set does not run; an expired one is taken
//! once.

use crate::time::Instant;
use std::collections::BTreeMap;

/// The timers. Those of a round end with it, except [`Timer::Leave`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Timer {
    /// Wait for contributions of members that live, from the first contribution. Then an attempt is
    /// made without those that are late. The key `grace_ms` sets it; it is at most half of
    /// `round_timeout_ms` ([`capped_grace`](crate::coordinator::capped_grace)), and a configuration
    /// with more is refused.
    Grace,
    /// Wait for an outcome, from this node's contribution. Then the run ends here with an error,
    /// unless a quorum is gone.
    RoundTimeout,
    /// Wait for news of the round, from this node's contribution. Then the leader is asked, again
    /// and again: it may have continued without this node while nobody could tell this node so.
    Ask,
    /// Wait for another leader, from the promise of its term. Then this node may take over.
    Follow,
    /// Wait for promises of all voters that seem alive, from the request. Then a quorum of promises
    /// is enough.
    Promises,
    /// Wait for the return of a quorum. Then survivors continue in a history of their own.
    Fork,
    /// Wait for joiners that do not hold all data that they must yet, from the attempt that admits
    /// them. Then it is made without them.
    Joiners,
    /// Wait after a stream broke: its other end may be found dead. Then the leader is asked for
    /// another attempt.
    Broken,
    /// Wait for streams that may be lost with a connection. Then the leader is asked for another
    /// attempt.
    LostStreams,
    /// Wait before another attempt if links break again and again.
    Retry,
    /// Wait for what receivers with other values got from the owners. Then the next attempt is made
    /// without those that did not say.
    Compare,
    /// Wait for the votes of all living voters, once this node was told a decision. Then a quorum
    /// of them is enough, and everybody is asked.
    Votes,
    /// Wait before this node may again stand in for a leader that it cannot reach.
    StandIn,
    /// Wait after the voters without which there is no quorum left in order. Then the run ends here
    /// with an error.
    Over,
    /// Wait for acknowledgements of the entry with which this node leaves. Then it leaves without
    /// them.
    Leave,
}

/// Expiry time of each running timer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Timers(BTreeMap<Timer, Instant>);

impl Timers {
    pub fn set(&mut self, timer: Timer, at: Instant) {
        self.0.insert(timer, at);
    }

    /// Sets a timer unless it already runs.
    pub fn start(&mut self, timer: Timer, at: Instant) {
        self.0.entry(timer).or_insert(at);
    }

    pub fn stop(&mut self, timer: Timer) {
        self.0.remove(&timer);
    }

    pub fn runs(&self, timer: Timer) -> bool {
        self.0.contains_key(&timer)
    }

    pub fn at(&self, timer: Timer) -> Option<Instant> {
        self.0.get(&timer).copied()
    }

    /// The earliest expiry time.
    pub fn next(&self) -> Option<Instant> {
        self.0.values().min().copied()
    }

    /// Removes and returns the timers that have expired.
    pub fn passed(&mut self, now: Instant) -> Vec<Timer> {
        let passed: Vec<Timer> = self
            .0
            .iter()
            .filter(|(_, at)| now >= **at)
            .map(|(timer, _)| *timer)
            .collect();
        for timer in &passed {
            self.0.remove(timer);
        }
        passed
    }

    /// Stops all timers of a round that is over.
    pub fn end_round(&mut self) {
        self.0.retain(|timer, _| *timer == Timer::Leave);
    }
}

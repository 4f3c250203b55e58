//! Every wait of the machine, by name. A timer that is not set does not run; a passed one is taken
//! once.

use crate::time::Instant;
use std::collections::BTreeMap;

/// What is waited for. Those of a round end with it, but for [`Timer::Leave`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Timer {
    /// Contributions of members that live. From the first contribution; then an attempt is made
    /// without those that are late.
    Grace,
    /// An outcome. From this node's contribution; then the run ends here with an error, unless a
    /// quorum is gone.
    RoundTimeout,
    /// Word of the round, from this node's contribution. Then the leader is asked, again and again:
    /// it may have gone on without this node while nobody could tell it so.
    Ask,
    /// Another leader's word. From the promise of its term; then this node may take over.
    Follow,
    /// Promises of voters that seem alive, once a quorum promised.
    Promises,
    /// The return of a quorum. Then survivors go on in a history of their own.
    Fork,
    /// Joiners that do not hold what they must yet. From the attempt that admits them; then it is
    /// made without them.
    Joiners,
    /// The end of a stream that broke may be found dead. Then the leader is asked for another
    /// attempt.
    Broken,
    /// Streams that may be lost with a connection. Then the same.
    LostStreams,
    /// Links that break again and again. Then another attempt.
    Retry,
    /// A leader that this node cannot reach, and that it stood in for already. Then it may again.
    StandIn,
    /// Acknowledgements of the entry with which this node leaves. Then it goes without.
    Leave,
}

/// When which timer passes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Timers(BTreeMap<Timer, Instant>);

impl Timers {
    pub fn set(&mut self, timer: Timer, at: Instant) {
        self.0.insert(timer, at);
    }

    /// Sets a timer that does not run yet.
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

    /// When the next one passes.
    pub fn next(&self) -> Option<Instant> {
        self.0.values().min().copied()
    }

    /// Takes those that have passed.
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

    /// Stops all of a round that is over.
    pub fn end_round(&mut self) {
        self.0.retain(|timer, _| *timer == Timer::Leave);
    }
}

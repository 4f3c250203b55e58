//! The spaces that are searched, and the broken rules that are searched for.

use super::setup::{Planted, Setup};
use super::watch::{ALL_READY, MEMBERS_HOLD, ONE_OUTCOME, OUTVOTED, QUORUM, SETTLES, SHRINKS};
use crate::check::{Order, Search};
use std::time::Duration;

/// A space and how it is searched.
#[derive(Clone, Debug)]
pub struct Space {
    /// How it is searched.
    pub search: Search,
    /// What it is.
    pub setup: Setup,
}

fn space(name: &'static str, seconds: u64, setup: Setup) -> Space {
    Space { search: Search { order: Order::Depth, time: Duration::from_secs(seconds), ..Search::new(name) }, setup }
}

/// The spaces of the test suite.
#[must_use]
pub fn short() -> Vec<Space> {
    let three = Setup::calm(3);
    vec![
        space("3 voters, 1 take-over, 1 crash", 300, Setup { take_overs: 1, crashes: 1, ..three.clone() }),
        space("3 voters, 2 take-overs, 1 verdict", 300, Setup { take_overs: 2, attempts: 1, verdicts: 1, refused_raises: true, settle_every: 16, ..three.clone() }),
        space("3 voters, 1 take-overs, 2 crash, 1 verdict", 300, Setup { take_overs: 1, crashes: 2, verdicts: 1, settle_every: 16, ..three.clone() }),
        space("2 rounds: 3 voters, 2 verdict 1 crash 1 takeover", 100, Setup { rounds: 2, take_overs: 1, crashes: 1, verdicts: 2, attempts: 1, settle_every: 16, ..three.clone() }),
        space("2 rounds: 3 voters, joiner, 1 verdict 1 crash 1 takeover", 60, Setup { rounds: 2, take_overs: 1, joiners: 1, crashes: 1, verdicts: 1, attempts: 1, settle_every: 16, ..three.clone() }),
        space("3 rounds: 3 voters, 2 verdict 1 crash 0 takeover rejoin", 60, Setup { rounds: 3, take_overs: 0, crashes: 1, verdicts: 2, attempts: 1, settle_every: 16, rejoin: true, ..three.clone() }),
        space("2 rounds: 3 voters, restart, leaver 1 crash 1 takeover", 60, Setup { rounds: 2, take_overs: 1, crashes: 1, verdicts: 0, restarts: 1, leavers: 1, attempts: 1, settle_every: 16, ..three.clone() }),
        space("4 voters, 1 take-over, 1 crash 1 verdict", 60, Setup { take_overs: 1, crashes: 1, verdicts: 1, attempts: 1,settle_every: 16,  ..Setup::calm(4) }),
    ]
}

/// The widest spaces.
#[must_use]
pub fn long() -> Vec<Space> {
    Vec::new()
}

/// Every broken rule, the property that must find it, and the space in which it does; without the broken rule that space holds.
#[must_use]
pub fn planted() -> Vec<(Planted, &'static str, Setup)> {
    let three = Setup::calm(3);
    let duel = Setup { take_overs: 1, attempts: 1, ..three.clone() };
    vec![
        (Planted::ReadyMissing, ALL_READY, three.clone()),
        (Planted::DropAfterAccept, MEMBERS_HOLD, three.clone()),
        (Planted::DropOnPrepare, MEMBERS_HOLD, duel.clone()),
        (Planted::AcceptBelowPromise, ONE_OUTCOME, duel.clone()),
        (Planted::DecideWithoutQuorum, QUORUM, three),
        (Planted::SilentBelowThree, SETTLES, Setup { verdicts: 1, crashes: 1, ..duel }),
        (Planted::ParticipantsGrow, SHRINKS, Setup::calm(3)),
        (Planted::TooManyNewVoters, OUTVOTED, Setup::calm(3)),
    ]
}

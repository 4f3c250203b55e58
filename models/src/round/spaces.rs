//! The spaces that are searched, and the broken rules that the search must find.

use super::setup::{Planted, Setup};
use super::watch::{ALL_READY, MEMBERS_HOLD, ONE_OUTCOME, OUTVOTED, QUORUM, SETTLES, SHRINKS};
use crate::check::{Order, Search};
use std::time::Duration;

/// A space and its search settings.
#[derive(Clone, Debug)]
pub struct Space {
    /// Search settings.
    pub search: Search,
    /// Bounds of the space.
    pub setup: Setup,
}

fn space(name: &'static str, seconds: u64, setup: Setup) -> Space {
    Space {
        search: Search {
            order: Order::Depth,
            time: Duration::from_secs(seconds),
            ..Search::new(name)
        },
        setup,
    }
}

/// The spaces of the test suite.
#[must_use]
pub fn short() -> Vec<Space> {
    let three = Setup {
        attempts: 1,
        ..Setup::calm(3)
    };
    let at_once = Setup {
        at_once: true,
        settle_every: 8,
        ..three.clone()
    };
    let spaces = [
        (
            "3 voters; 1 take-over, 2 crashes, 1 verdict, 2 attempts",
            Setup {
                take_overs: 1,
                crashes: 2,
                verdicts: 1,
                attempts: 2,
                settle_every: 4,
                ..three.clone()
            },
        ),
        (
            "3 voters; 2 take-overs, 1 crash",
            Setup {
                take_overs: 2,
                crashes: 1,
                refused_raises: true,
                ..at_once.clone()
            },
        ),
        (
            "4 voters; 1 take-over, 1 crash, 1 verdict",
            Setup {
                founders: 4,
                take_overs: 1,
                crashes: 1,
                verdicts: 1,
                ..at_once.clone()
            },
        ),
        (
            "2 rounds, 3 voters; 1 take-over, 1 crash, 2 verdicts",
            Setup {
                rounds: 2,
                take_overs: 1,
                crashes: 1,
                verdicts: 2,
                ..three.clone()
            },
        ),
        (
            "2 rounds, 3 voters, 1 joiner; 1 take-over, 1 crash",
            Setup {
                rounds: 2,
                joiners: 1,
                take_overs: 1,
                crashes: 1,
                ..at_once.clone()
            },
        ),
        (
            "2 rounds, 3 voters, 1 leaver; 1 take-over, 1 crash, 1 restart",
            Setup {
                rounds: 2,
                leavers: 1,
                take_overs: 1,
                crashes: 1,
                restarts: 1,
                ..at_once.clone()
            },
        ),
        (
            "2 rounds, 2 voters, 1 joiner; 1 take-over, 1 crash, 1 verdict, 1 restart",
            Setup {
                founders: 2,
                rounds: 2,
                joiners: 1,
                take_overs: 1,
                crashes: 1,
                verdicts: 1,
                restarts: 1,
                ..at_once
            },
        ),
        (
            "3 rounds, 3 voters; 1 crash, 2 verdicts, 1 restart, who was left out joins again",
            Setup {
                rounds: 3,
                crashes: 1,
                verdicts: 2,
                restarts: 1,
                rejoin: true,
                ..three
            },
        ),
    ];
    spaces
        .into_iter()
        .map(|(name, setup)| space(name, 300, setup))
        .collect()
}

/// The widest spaces, which take minutes each.
#[must_use]
pub fn long() -> Vec<Space> {
    let three = Setup {
        attempts: 1,
        at_once: true,
        settle_every: 64,
        ..Setup::calm(3)
    };
    let four = Setup {
        founders: 4,
        ..three.clone()
    };
    let two_rounds = Setup {
        rounds: 2,
        ..three.clone()
    };
    let spaces = [
        (
            "2 rounds, 3 voters; 1 take-over, 1 crash, 2 verdicts, 1 false end",
            Setup {
                take_overs: 1,
                crashes: 1,
                verdicts: 2,
                ends: 1,
                ..two_rounds.clone()
            },
        ),
        (
            "2 rounds, 3 voters; 2 take-overs, 1 crash",
            Setup {
                take_overs: 2,
                crashes: 1,
                ..two_rounds.clone()
            },
        ),
        (
            "2 rounds, 3 voters, 1 joiner, 1 leaver; 1 take-over, 1 crash, 1 restart",
            Setup {
                take_overs: 1,
                crashes: 1,
                restarts: 1,
                leavers: 1,
                joiners: 1,
                ..two_rounds
            },
        ),
        (
            "3 rounds, 3 voters; 1 take-over, 1 crash, 2 verdicts, 1 restart, who was left out \
             joins again",
            Setup {
                rounds: 3,
                take_overs: 1,
                crashes: 1,
                verdicts: 2,
                restarts: 1,
                rejoin: true,
                ..three.clone()
            },
        ),
        (
            "3 voters; 2 take-overs, 2 crashes, 1 verdict",
            Setup {
                take_overs: 2,
                crashes: 2,
                verdicts: 1,
                ..three.clone()
            },
        ),
        (
            "4 voters; 1 take-over, 2 crashes, 2 verdicts, 2 attempts",
            Setup {
                take_overs: 1,
                crashes: 2,
                verdicts: 2,
                attempts: 2,
                ..four.clone()
            },
        ),
        (
            "4 voters; 2 take-overs",
            Setup {
                take_overs: 2,
                ..four.clone()
            },
        ),
        (
            "3 voters; 3 take-overs",
            Setup {
                take_overs: 3,
                ..three
            },
        ),
        (
            "2 rounds, 4 voters; 1 take-over, 2 crashes, 2 verdicts",
            Setup {
                rounds: 2,
                take_overs: 1,
                crashes: 2,
                verdicts: 2,
                ..four
            },
        ),
    ];
    spaces
        .into_iter()
        .map(|(name, setup)| space(name, 120, setup))
        .collect()
}

/// Every broken rule, the property that must find it, and the space in which it does. Without the
/// broken rule the property holds in that space.
#[must_use]
pub fn planted() -> Vec<(Planted, &'static str, Setup)> {
    let calm = Setup {
        attempts: 1,
        settle_every: 0,
        ..Setup::calm(3)
    };
    let again = Setup {
        attempts: 2,
        verdicts: 1,
        ..calm.clone()
    };
    let one = Setup {
        take_overs: 1,
        ..calm.clone()
    };
    let two = Setup {
        take_overs: 2,
        at_once: true,
        ..calm.clone()
    };
    let four = Setup {
        take_overs: 1,
        joiners: 1,
        crashes: 1,
        ..calm.clone()
    };
    let restarts = Setup {
        crashes: 1,
        restarts: 1,
        verdicts: 1,
        ..one.clone()
    };
    let settles = |setup: &Setup| Setup {
        settle_every: 1,
        ..setup.clone()
    };
    vec![
        (Planted::ReadyMissing, ALL_READY, calm.clone()),
        (Planted::AttemptAfterAccept, MEMBERS_HOLD, again.clone()),
        (Planted::DropAfterAccept, MEMBERS_HOLD, calm.clone()),
        (Planted::DropOnPrepare, MEMBERS_HOLD, one.clone()),
        (Planted::DropOnLaterAttempt, MEMBERS_HOLD, two.clone()),
        (Planted::SafeAfterOne, MEMBERS_HOLD, two.clone()),
        (Planted::NeverSafe, SETTLES, settles(&two)),
        (Planted::AcknowledgeBelowPromise, MEMBERS_HOLD, two.clone()),
        (Planted::FloorNotReported, MEMBERS_HOLD, two.clone()),
        (Planted::VoidIgnored, MEMBERS_HOLD, two.clone()),
        (Planted::VoidAtFloor, ONE_OUTCOME, two),
        (Planted::AcceptBelowPromise, ONE_OUTCOME, one.clone()),
        (Planted::PromiseForgetsAccepted, ONE_OUTCOME, one.clone()),
        (Planted::ProposeWithoutQuorum, ONE_OUTCOME, one.clone()),
        (Planted::DecideWithoutQuorum, QUORUM, calm.clone()),
        (
            Planted::HalfDecides,
            ONE_OUTCOME,
            Setup {
                founders: 2,
                verdicts: 2,
                ..one.clone()
            },
        ),
        (Planted::RestartKeepsPlace, ONE_OUTCOME, restarts.clone()),
        (
            Planted::LowestTermShared,
            ONE_OUTCOME,
            Setup {
                attempts: 2,
                verdicts: 0,
                ..restarts
            },
        ),
        (Planted::JoinerVotes, QUORUM, four),
        (
            Planted::TooManyNewVoters,
            OUTVOTED,
            Setup {
                founders: 2,
                joiners: 3,
                ..calm.clone()
            },
        ),
        (
            Planted::SilentBelowThree,
            SETTLES,
            settles(&Setup {
                rounds: 2,
                verdicts: 1,
                crashes: 1,
                ..calm.clone()
            }),
        ),
        (
            Planted::ParticipantsGrow,
            SHRINKS,
            Setup {
                joiners: 1,
                ..again
            },
        ),
        (
            Planted::LeavesEarly,
            SETTLES,
            settles(&Setup {
                crashes: 1,
                leavers: 1,
                ..calm.clone()
            }),
        ),
        (
            Planted::LastLeaves,
            SETTLES,
            settles(&Setup {
                rounds: 2,
                crashes: 1,
                verdicts: 1,
                leavers: 1,
                ..calm.clone()
            }),
        ),
        (
            Planted::VotesInOldRound,
            ONE_OUTCOME,
            Setup {
                rounds: 2,
                verdicts: 2,
                ..one
            },
        ),
    ]
}

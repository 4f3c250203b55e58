//! The simulation finds every bug that is planted on purpose, by the invariant that it breaks:
//! otherwise its silence would prove nothing. Needs the feature `planted`.
#![allow(clippy::unwrap_used, clippy::panic)]

use slowmo_chaos::sim::{Look, search};
use slowmo_protocol::planted::{BUGS, Bug, plant};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A bug must be found within so many seeds.
const SEEDS_MAX: u64 = 2_000;

/// The invariant that a bug must break, and a seed that is known to do so: it is tried first, so
/// that the test is short.
fn expected(bug: Bug) -> (&'static str, u64) {
    match bug {
        Bug::ApplyWithoutData => ("identical_parameters", 74),
        Bug::MomentumNotHandedOver => ("momentum_matches", 3),
        Bug::DecideWithoutQuorum => ("majority", 1),
        Bug::LostStreamsUnnoticed => ("progress", 1510),
        Bug::PromiseUntold => ("progress", 503),
        Bug::SamplerRepeats => ("samples_once", 8),
        // These two would stand still later. Before that they are named for what they send.
        Bug::FreshDonor => ("naming", 1),
        Bug::StaleEpoch => ("naming", 20),
        Bug::MixedTwice => ("push_sum_mass", 1),
        Bug::EscrowNotReclaimed => ("push_sum_mass", 1),
        Bug::UnboundedEscrow => ("push_sum_mass", 1),
        Bug::SumsTooEarly => ("momentum_matches", 1),
        // Those are not looked for here: the model finds them, by the properties that `model` and
        // `model_schedules` name.
        Bug::AttemptAfterAccept
        | Bug::AcceptBeforeReady
        | Bug::DroppedForLaterAttempt
        | Bug::ClosedTooEarly
        | Bug::OpenedBelowPromise
        | Bug::FloorUntold
        | Bug::VoidIgnored => panic!("{bug:?} is a bug of the model"),
    }
}

/// The seed that found a bug, if one did, and the other properties that earlier seeds broke.
struct Found {
    by: Option<u64>,
    instead: Vec<(u64, String)>,
}

/// Looks for the first seed that breaks the expected invariant with the bug, and none without it.
fn look_for(bug: Bug) -> Found {
    let (invariant, known) = expected(bug);
    let mut instead = Vec::new();
    for seed in std::iter::once(known).chain(0..SEEDS_MAX) {
        plant(Some(bug));
        let report = search::seed(seed, &(1..=8), Look::default());
        plant(None);
        let Some(violation) = report.violation else {
            continue;
        };
        if violation.invariant != invariant {
            instead.push((seed, violation.invariant));
            continue;
        }
        // A seed that fails anyway says nothing of the bug.
        let without = search::seed(seed, &(1..=8), Look::default());
        if without.violation.is_none() {
            return Found {
                by: Some(seed),
                instead,
            };
        }
    }
    Found { by: None, instead }
}

#[test]
fn every_planted_bug_is_found_by_its_invariant() {
    let next = AtomicUsize::new(0);
    let missed = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while let Some(bug) = BUGS.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let (invariant, _) = expected(*bug);
                    let Found { by, mut instead } = look_for(*bug);
                    instead.truncate(5);
                    println!("{bug:?}: {invariant} by {by:?}, before {instead:?}");
                    if by.is_none() {
                        missed.lock().unwrap().push((*bug, invariant, instead));
                    }
                }
            });
        }
    });
    let missed = missed.into_inner().unwrap();
    assert!(
        missed.is_empty(),
        "not found within {SEEDS_MAX} seeds: {missed:?}"
    );
}

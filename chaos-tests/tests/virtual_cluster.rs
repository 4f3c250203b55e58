//! A few seeds of real nodes in simulated time: no rule is broken, and a seed is the same run every
//! time.
#![allow(clippy::unwrap_used)]

use slowmo_chaos::virtual_cluster::search::search;

/// Seeds of several kinds: gossip, averages and gradient means, calm and stormy.
const SEEDS: std::ops::Range<u64> = 12..16;

/// Everything of a run happens on this test's thread, and so does what is planted there.
#[cfg(feature = "planted")]
#[test]
fn a_planted_bug_is_found() {
    use slowmo_protocol::planted::{Bug, plant};
    plant(Some(Bug::SamplerRepeats));
    let found = search(SEEDS, &(2..=5), false, |_| {});
    plant(None);
    let failures = found.unwrap().failures;
    assert!(
        failures
            .iter()
            .any(|(_, violation)| violation.invariant == "samples_once"),
        "{failures:?}"
    );
}

#[test]
fn no_seed_breaks_a_rule_and_each_is_the_same_run_twice() {
    let found = search(SEEDS, &(2..=5), true, |_| {}).unwrap();
    assert!(found.failures.is_empty(), "{:?}", found.failures);
    assert!(found.unequal.is_empty(), "{:?}", found.unequal);
    assert!(found.rounds > 100, "{found:?}");
    assert_eq!(
        found.rules["progress"],
        (found.runs, 0),
        "every run has time to recover"
    );
}

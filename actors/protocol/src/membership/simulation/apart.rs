//! Histories that meet: two sides of survivors, two clusters that were bootstrapped apart.

use super::process::{Start, node};
use super::world::{Common, World};
use super::{cluster, common, describe, ids, settle, start_all};
use crate::membership::LOOK_FOR_RUN_WAIT;
use std::collections::BTreeSet;

#[test]
fn two_halves_of_survivors_become_one_again() {
    let mut both_changed = 0;
    for seed in 0..40 {
        let (mut world, _) = cluster(
            seed,
            6,
            Common {
                survivors: true,
                ..common(6)
            },
        );
        world.cut(&[1, 2, 5]);
        world.run(4_000);
        let lineages: BTreeSet<_> = world
            .processes
            .iter()
            .map(|process| process.coordinator.as_ref().map(|at| at.lineage))
            .collect();
        assert_eq!(lineages.len(), 2, "seed {seed}");
        world.heal();
        let after = settle(&mut world);
        assert_eq!(ids(&after), [1, 2, 3, 4, 5, 6], "seed {seed}");
        let changed = world
            .processes
            .iter()
            .filter(|process| process.resigned > 0)
            .count();
        both_changed += usize::from(changed > 3);
    }
    // A side hears of the other's rounds a little late, so in rare cases each takes the other for
    // the one that is further.
    assert!(both_changed <= 2, "{both_changed} of 40");
}

/// Nodes 1 and 2 bootstrap a cluster, and so do 3 and 4: half of all nodes were enough.
fn founded_apart(seed: u64, survivors: bool) -> World {
    let mut world = World::new(
        seed,
        Common {
            survivors,
            ..common(2)
        },
    );
    world.cut(&[1, 2]);
    start_all(&mut world, &[1, 2, 3, 4]);
    world.run(1_000 + seed * 37);
    world
}

#[test]
fn two_clusters_that_were_founded_apart_say_so_and_stay_apart_whoever_may_decide() {
    for seed in 0..20 {
        let mut world = founded_apart(seed, seed % 2 == 0);
        let lineages: BTreeSet<_> = world.decided.keys().map(|(lineage, _)| *lineage).collect();
        assert_eq!(lineages.len(), 2, "seed {seed}");
        world.heal();
        world.run(3_000);
        let decided = world.decided.len();
        world.run(500);
        assert!(
            world.decided.len() >= decided + 4,
            "seed {seed}: both go on"
        );
        for process in &world.processes {
            let at = process.coordinator.as_ref().unwrap();
            let others: Vec<_> = lineages
                .iter()
                .copied()
                .filter(|lineage| *lineage != at.lineage)
                .collect();
            assert_eq!(
                (at.view.size(), process.resigned),
                (2, 0),
                "seed {seed}: {}",
                describe(&world)
            );
            assert_eq!(
                process.others, others,
                "seed {seed}: each is told once of the other cluster"
            );
        }
    }
}

#[test]
fn a_bootstrap_that_decided_nothing_gives_way_to_a_running_cluster() {
    for seed in 0..20 {
        let (mut world, _) = cluster(seed, 2, common(2));
        let running = settle(&mut world).lineage;
        world.cut(&[1, 2]);
        // Node 4 dies before anything is decided, so that node 3 is left with an undecided
        // bootstrap.
        world.slow_rounds = true;
        let started = start_all(&mut world, &[3, 4]);
        world.run(LOOK_FOR_RUN_WAIT.as_millis() + 300);
        world.end(started[1], false);
        world.slow_rounds = false;
        assert!(
            world.processes[started[0]]
                .coordinator
                .as_ref()
                .is_some_and(|at| at.round.0 == 0),
            "seed {seed}"
        );
        world.heal();
        let after = settle(&mut world);
        assert_eq!(
            (ids(&after), after.lineage),
            (vec![1, 2, 3], running),
            "seed {seed}"
        );
    }
}

/// Node 4 is partitioned. The others go on, admit node 5, and die while node 5 is partitioned in
/// turn. New incarnations of them account for all that node 4 knows of, so it goes on with them;
/// node 5 holds a history that shares only the past with theirs.
#[test]
fn who_goes_on_with_new_starts_of_the_others_and_a_member_of_a_later_view_find_each_other() {
    for seed in 0..30 {
        let (mut world, started) = cluster(seed, 4, common(4));
        world.cut(&[4]);
        world.run(3_000);
        let fifth = world.start(Start {
            join: true,
            ..node(5)
        });
        world.known.insert(world.processes[fifth].address);
        world.run(4_000);
        assert_eq!(
            world.processes[fifth].coordinator.as_ref().map(ids),
            Some(vec![1, 2, 3, 5]),
            "seed {seed}"
        );
        started[..3]
            .iter()
            .for_each(|killed| world.end(*killed, false));
        world.cut(&[5]);
        start_all(&mut world, &[1, 2, 3]);
        world.run(8_000);
        let (one, other) = [started[3], fifth]
            .map(|index| world.processes[index].coordinator.clone().unwrap())
            .into();
        assert_eq!(ids(&one), [1, 2, 3, 4], "seed {seed}: {}", describe(&world));
        assert_ne!(
            one.lineage, other.lineage,
            "seed {seed}: no round is decided twice in one history"
        );
        world.heal();
        assert_eq!(ids(&settle(&mut world)), [1, 2, 3, 4, 5], "seed {seed}");
    }
}

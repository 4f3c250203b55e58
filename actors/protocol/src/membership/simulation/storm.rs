//! Runs of random events.

use super::world::Common;
use super::{In, NodeId, cluster, common, ids, settle, start_all};
use std::collections::BTreeSet;

/// A run of random events, one at a time; at the end every living node is a member.
fn storm(seed: u64, survivors: bool) {
    let nodes = 3 + seed % 4;
    let (mut world, _) = cluster(
        seed,
        nodes,
        Common {
            survivors,
            ..common(nodes as usize / 2 + 1)
        },
    );
    for _ in 0..8 {
        let living: Vec<usize> = (0..world.processes.len())
            .filter(|index| world.processes[*index].alive)
            .collect();
        let one = living[world.random.below(living.len() as u64) as usize];
        // If no member is left, nobody holds the model.
        let spare = living
            .iter()
            .filter(|index| world.processes[**index].coordinator.is_some())
            .count()
            > 2;
        match world.random.below(6) {
            0 if spare => world.end(one, false),
            1 if spare => world.feed(one, In::Drain),
            2 => {
                let id = world.random.below(8) + 1;
                if living
                    .iter()
                    .all(|index| world.processes[*index].id != NodeId(id))
                {
                    start_all(&mut world, &[id]);
                }
            }
            3 => {
                let id = world.processes[one].id.0;
                world.cut(&[id]);
            }
            4 if spare => {
                let id = world.processes[one].id.0;
                world.end(one, false);
                start_all(&mut world, &[id]);
            }
            _ => {}
        }
        let wait = world.random.below(3_000);
        world.run(wait);
        world.heal();
        let wait = world.random.below(2_000);
        world.run(wait);
    }
    // Under a majority policy, members without a quorum wait for their dead to return.
    let living = || world.processes.iter().filter(|process| process.alive);
    let wanted: BTreeSet<u64> = living()
        .filter_map(|process| process.coordinator.as_ref())
        .flat_map(ids)
        .collect();
    let here: BTreeSet<u64> = living().map(|process| process.id.0).collect();
    start_all(
        &mut world,
        &wanted.difference(&here).copied().collect::<Vec<_>>(),
    );
    settle(&mut world);
}

#[test]
fn whatever_happens_everybody_who_lives_is_a_member_in_the_end() {
    for seed in 0..150 {
        storm(seed, false);
        storm(seed, true);
    }
}

//! The machines of many nodes in a discrete-event world, against an oracle.

mod apart;
mod forking;
mod membership;
mod network;
mod node;
mod oracle;
mod order;
mod promises;
mod restoring;
mod size;
mod storm;
mod streams;
mod unsound;
mod verbs;
mod world;

use crate::ident::NodeId;
use crate::policy::{OnQuorumLoss, Quorum};
use node::Schedule;
use std::collections::BTreeSet;
use world::{Fault, World};

const SCHEDULE: Schedule = Schedule {
    slow_every: 3,
    elements: 23,
    gradients: 0,
    buffers: 0,
};
const LONG: u64 = 20_000_000;

fn world(seed: u64, nodes: u64, replicas: usize) -> World {
    world_with(seed, nodes, replicas, SCHEDULE)
}

fn world_with(seed: u64, nodes: u64, replicas: usize, schedule: Schedule) -> World {
    let ids: Vec<u64> = (0..nodes).map(|rank| rank * 5 + 2).collect();
    World::new(seed, &ids, replicas, Quorum::Majority, schedule)
}

/// Every node that lives and belongs to the cluster reached the end with the same parameters.
fn assert_finished(world: &World, expected: usize) {
    let seed = world.seed;
    let done: Vec<_> = world
        .nodes
        .values()
        .filter(|node| node.alive && !node.outside && !node.drained)
        .collect();
    let state: Vec<_> = world
        .nodes
        .values()
        .map(|node| {
            (
                node.member.id.0,
                node.alive,
                node.outside,
                node.drained,
                node.round.0,
                node.next.step.0,
                node.waiting,
                node.failed.clone(),
            )
        })
        .collect();
    assert_eq!(done.len(), expected, "seed {seed} {state:?}");
    for node in done {
        assert!(
            node.failed.is_none() && node.next.step.0 >= world.steps_max,
            "seed {seed} {} at {:?}: {state:?}",
            node.member.id,
            node.round
        );
    }
}

#[test]
fn a_steady_cluster_matches_the_oracle() {
    for (nodes, replicas) in [(1, 1), (2, 1), (3, 0), (4, 1), (5, 2), (8, 3)] {
        let mut world = world(nodes * 31 + replicas as u64, nodes, replicas);
        world.run(LONG);
        assert_finished(&world, nodes as usize);
        assert_eq!(world.oracle.longest().len() as u64, world.steps_max + 1);
        assert_eq!(world.oracle.entries.len() as u64, world.steps_max + 1);
    }
}

#[test]
fn a_death_at_any_moment_loses_nothing() {
    for seed in 0..150u64 {
        let nodes = 3 + seed % 4;
        let mut world = world(seed, nodes, 1);
        let victim = NodeId((seed / 4 % nodes) * 5 + 2);
        world.fault_at(3_000 + seed * 397 % 90_000, Fault::Kill(victim));
        world.run(LONG);
        assert_finished(&world, nodes as usize - 1);
    }
}

#[test]
fn a_node_joins_while_others_train() {
    for seed in 0..100u64 {
        let mut world = world(seed, 1 + seed % 4, 1);
        let id = NodeId(if seed % 2 == 0 { 1 } else { 40 });
        world.fault_at(10_000 + seed * 211 % 60_000, Fault::Start(id));
        world.run(LONG);
        assert_finished(&world, (1 + seed % 4) as usize + 1);
    }
}

#[test]
fn a_joiner_gets_a_donors_buffers_whoever_dies_meanwhile() {
    for seed in 0..100u64 {
        let nodes = 3 + seed % 3;
        let mut world = world_with(
            seed,
            nodes,
            1,
            Schedule {
                buffers: 7,
                ..SCHEDULE
            },
        );
        let at = 10_000 + seed * 211 % 60_000;
        world.fault_at(at, Fault::Start(NodeId(if seed % 2 == 0 { 1 } else { 40 })));
        // The donor is the lowest contributor.
        if seed % 3 > 0 {
            world.fault_at(at + 1_000 + seed * 97 % 12_000, Fault::Kill(NodeId(2)));
        }
        world.run(LONG);
        assert_finished(&world, nodes as usize + usize::from(seed % 3 == 0));
    }
}

#[test]
fn killed_nodes_return_under_their_ids() {
    for seed in 0..80u64 {
        let nodes = 3 + seed % 3;
        let mut world = world(seed, nodes, 1);
        let victim = NodeId((seed % nodes) * 5 + 2);
        let at = 5_000 + seed * 173 % 60_000;
        world.fault_at(at, Fault::Kill(victim));
        world.fault_at(at + 100 + seed * 97 % 20_000, Fault::Start(victim));
        world.run(LONG);
        assert_finished(&world, nodes as usize);
    }
}

#[test]
fn a_drained_node_hands_over() {
    for seed in 0..80u64 {
        let mut world = world(seed, 4, (seed % 2) as usize);
        world.fault_at(
            5_000 + seed * 211 % 60_000,
            Fault::Drain(NodeId((seed % 4) * 5 + 2)),
        );
        world.run(LONG);
        assert_finished(&world, 3);
        assert_eq!(world.nodes.values().filter(|node| node.drained).count(), 1);
    }
}

#[test]
fn a_paused_node_is_excluded_and_comes_back() {
    for seed in 0..80u64 {
        let mut world = world(seed, 4, 1);
        let at = 5_000 + seed * 211 % 60_000;
        let span = 500 + seed * 1_009 % 60_000;
        world.steps_max = 60;
        world.fault_at(at, Fault::Pause(NodeId((seed % 4) * 5 + 2), span));
        world.run(LONG);
        assert_finished(&world, 4);
    }
}

#[test]
fn a_straggler_is_closed_without_and_stays_a_member() {
    for seed in 0..20u64 {
        let mut world = world(seed, 4, 1);
        world.slow_nodes = BTreeSet::from([NodeId((seed % 4) * 5 + 2)]);
        world.steps_max = 12;
        world.run(LONG);
        assert_finished(&world, 4);
        let sizes: BTreeSet<usize> = world
            .oracle
            .entries
            .values()
            .map(|entry| entry.outcome.contributors.len())
            .collect();
        assert!(sizes.contains(&3), "{sizes:?}");
        assert!(
            world
                .oracle
                .entries
                .values()
                .all(|entry| entry.outcome.view.size() == 4)
        );
    }
}

#[test]
fn a_minority_decides_nothing_and_rejoins() {
    for seed in 0..50u64 {
        let mut world = world(seed, 5, 1);
        world.steps_max = 80;
        world.losses_allowed = true;
        let at = 5_000 + seed * 211 % 60_000;
        let minority =
            BTreeSet::from([NodeId((seed % 5) * 5 + 2), NodeId(((seed + 1) % 5) * 5 + 2)]);
        world.fault_at(at, Fault::Cut(minority.clone()));
        world.run(at + 60_000);
        for id in &minority {
            assert!(
                world.nodes[id].waits_for.is_some(),
                "{id} does not say why it waits"
            );
        }
        world.fault_at(at + 60_001, Fault::Heal);
        world.run(LONG);
        assert_finished(&world, 5);
    }
}

/// Three of four die at once; the last one, and when the others are back, each under a new start.
fn lose_three_of_four(seed: u64, on_quorum_loss: OnQuorumLoss) -> (World, u64) {
    let ids = [2, 7, 12, 17];
    let mut world = World::with(seed, &ids, 1, (Quorum::Majority, on_quorum_loss), SCHEDULE);
    world.losses_allowed = true;
    let survivor = ids[seed as usize % 4];
    // The founding is decided by then.
    let at = 25_000 + seed * 211 % 40_000;
    let others: Vec<u64> = ids.into_iter().filter(|id| *id != survivor).collect();
    others
        .iter()
        .for_each(|id| world.fault_at(at, Fault::Kill(NodeId(*id))));
    world.run(at + 300_000);
    assert!(world.nodes[&NodeId(survivor)].waits_for.is_some());
    for (index, id) in others.iter().enumerate() {
        world.fault_at(
            at + 300_001 + index as u64 * 30_000,
            Fault::Start(NodeId(*id)),
        );
    }
    (world, at)
}

#[test]
fn the_last_of_a_majority_waits_also_when_all_others_were_started_again() {
    for seed in 0..40u64 {
        let (mut world, at) = lose_three_of_four(seed, OnQuorumLoss::Wait);
        let rounds = world.oracle.entries.len();
        world.run(at + 2_000_000);
        assert_eq!(
            world.oracle.entries.len(),
            rounds,
            "seed {seed}: a new start has no vote"
        );
        assert!(
            world.nodes[&NodeId([2, 7, 12, 17][seed as usize % 4])]
                .waits_for
                .is_some()
        );
    }
}

#[test]
fn the_last_of_a_majority_goes_on_with_all_others_started_again_where_it_may() {
    for seed in 0..40u64 {
        let (mut world, at) = lose_three_of_four(seed, OnQuorumLoss::Fork);
        let rounds = world.oracle.entries.len();
        world.run(at + 350_000);
        assert_eq!(
            world.oracle.entries.len(),
            rounds,
            "two of four are not all"
        );
        world.run(LONG);
        assert_finished(&world, 4);
        // Members of a view that this one never heard of may hold more: it is another history.
        let lineages: BTreeSet<_> = world
            .oracle
            .entries
            .values()
            .map(|entry| entry.outcome.lineage)
            .collect();
        assert_eq!(lineages.len(), 2, "seed {seed}: {lineages:?}");
    }
}

#[test]
fn the_last_survivor_goes_on_alone() {
    for seed in 0..40u64 {
        let ids = [2, 7, 12, 17];
        let mut world = World::new(seed, &ids, 1, Quorum::Survivors, SCHEDULE);
        world.losses_allowed = true;
        let survivor = ids[seed as usize % 4];
        let at = 5_000 + seed * 211 % 40_000;
        ids.iter()
            .filter(|id| **id != survivor)
            .for_each(|id| world.fault_at(at, Fault::Kill(NodeId(*id))));
        world.run(LONG);
        assert_finished(&world, 1);
    }
}

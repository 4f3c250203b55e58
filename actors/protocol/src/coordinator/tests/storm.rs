//! Storms of faults: spaced, so that every round between two of them must be decided and nothing
//! may be lost, and dense, where momentum may be lost but a round still has one outcome, and
//! everybody gets to the end once the faults are over.

use super::node::Schedule;
use super::world::{Fault, World};
use super::{LONG, SCHEDULE, assert_finished};
use crate::ident::{Lineage, NodeId};
use crate::policy::Quorum;
use crate::simulation::Random;
use proptest::prelude::*;
use std::collections::BTreeSet;

/// What happens to whom follows from the seed.
#[derive(Clone, Copy, Debug)]
struct Storm {
    seed: u64,
    nodes: u64,
    replicas: usize,
    /// From one fault to the next.
    gap: u64,
    /// One message in so many is slow; 0: none.
    rarely_slow: u64,
    /// Gradients that are averaged before every exchange; 0: none.
    gradients: usize,
    quorum: Quorum,
    /// Values of the base optimizer's buffers, which joiners get; 0: none.
    buffers: usize,
}

/// Between two faults a round is decided.
fn spaced() -> impl Strategy<Value = Storm> {
    let buffers = prop_oneof![Just(0usize), Just(5usize)];
    (any::<u64>(), 5u64..9, 1usize..3, 40_000u64..90_000, buffers).prop_map(
        |(seed, nodes, replicas, gap, buffers)| {
            let rarely_slow = 0;
            let gradients = 0;
            Storm {
                seed,
                nodes,
                replicas,
                gap,
                rarely_slow,
                gradients,
                quorum: Quorum::Majority,
                buffers,
            }
        },
    )
}

/// Faults on top of each other, and messages that take long.
fn dense(quorum: Quorum) -> impl Strategy<Value = Storm> {
    let rarely_slow = prop_oneof![Just(0u64), 10u64..100];
    let gradients = prop_oneof![Just(0usize), Just(17usize)];
    let buffers = prop_oneof![Just(0usize), Just(5usize)];
    (
        any::<u64>(),
        1u64..9,
        0usize..3,
        100u64..20_000,
        rarely_slow,
        gradients,
        buffers,
    )
        .prop_map(
            move |(seed, nodes, replicas, gap, rarely_slow, gradients, buffers)| Storm {
                seed,
                nodes,
                replicas,
                gap,
                rarely_slow,
                gradients,
                quorum,
                buffers,
            },
        )
}

impl Storm {
    fn world(self) -> World {
        let ids: Vec<u64> = (0..self.nodes).map(|rank| rank * 5 + 2).collect();
        let mut world = World::new(
            self.seed,
            &ids,
            self.replicas,
            self.quorum,
            Schedule {
                buffers: self.buffers,
                ..SCHEDULE
            },
        );
        world.network.rarely_slow = self.rarely_slow;
        world.schedule.gradients = self.gradients;
        world.steps_max = 120;
        world
    }

    /// Kills, restarts, pauses, joins and drains, far enough apart that a round is decided between
    /// two.
    fn spaced(self) {
        let Self { nodes, gap, .. } = self;
        let mut world = self.world();
        let mut next = 60;
        for index in 0..6u64 {
            let mut random = world.random.clone();
            random.0 ^= index.wrapping_mul(0x5851_F42D);
            let at = 8_000 + index * gap + random.below(gap / 4);
            let target = NodeId(random.below(nodes) * 5 + 2);
            match random.below(5) {
                0 => {
                    world.fault_at(at, Fault::Kill(target));
                    world.fault_at(at + random.below(15_000), Fault::Start(target));
                }
                1 => {
                    next += 1;
                    world.fault_at(at, Fault::Start(NodeId(next)));
                    world.fault_at(at + gap / 2, Fault::Drain(NodeId(next)));
                }
                2 => {
                    next += 1;
                    world.fault_at(at, Fault::Kill(target));
                    world.fault_at(at, Fault::Start(NodeId(next)));
                }
                3 => world.fault_at(at, Fault::Pause(target, random.below(30_000))),
                _ => {
                    next += 1;
                    world.fault_at(at, Fault::Start(NodeId(next)));
                    world.fault_at(at + random.below(8_000), Fault::Kill(NodeId(next)));
                }
            }
        }
        world.run(LONG);
        assert_all_finished(&world);
    }

    /// Everything that a cluster survives, at any moment, also while it still recovers from what
    /// came before.
    fn dense(self) {
        let mut world = self.world();
        world.losses_allowed = true;
        world.steps_max = u64::MAX;
        let has_slow = self.seed.is_multiple_of(4);
        if has_slow {
            world
                .slow_nodes
                .insert(NodeId(self.seed / 4 % self.nodes * 5 + 2));
        }
        let mut random = world.random.clone();
        random.0 ^= 0x5851_F42D;
        let mut at = 1_000 + random.below(30_000);
        let mut ids = (0..self.nodes).map(|rank| rank * 5 + 2).collect::<Vec<_>>();
        for index in 0..10 {
            at += 1 + random.below(2 * self.gap);
            // Every other fault hits the lowest ids: one of them leads.
            let reach = if random.below(2) == 0 {
                2
            } else {
                ids.len() as u64
            };
            let target = NodeId(ids[random.below(reach.min(ids.len() as u64)) as usize]);
            let other = NodeId(ids[random.below(ids.len() as u64) as usize]);
            at = self.dense_fault(
                &mut world,
                &mut random,
                &mut ids,
                (target, other),
                (at, index),
            );
        }
        world.run(at + if has_slow { 500_000 } else { 20_000 });
        world.steps_max = world
            .nodes
            .values()
            .map(|node| node.next.step.0)
            .max()
            .unwrap_or_default()
            + 30;
        world.run(LONG);
        assert_all_finished(&world);
    }

    /// One fault, and what follows from it; returns when it is over.
    fn dense_fault(
        self,
        world: &mut World,
        random: &mut Random,
        ids: &mut Vec<u64>,
        (target, other): (NodeId, NodeId),
        (at, index): (u64, u64),
    ) -> u64 {
        // Who is taken for dead though it lives goes on as well, among survivors: two histories, by
        // design.
        let survivors = self.quorum == Quorum::Survivors;
        match random.below(12) {
            0 => world.fault_at(at, Fault::KillOne(target)),
            1 => {
                world.fault_at(at, Fault::KillOne(target));
                world.fault_at(at + random.below(20_000), Fault::Start(target));
            }
            2 if !survivors => world.fault_at(at, Fault::Pause(target, random.below(40_000))),
            3 if !survivors => world.fault_at(at, Fault::Suspect(target, random.below(20_000))),
            4 if target != other => world.fault_at(at, Fault::Break(target, other)),
            5 if !survivors && self.nodes > 2 && random.below(3) == 0 => {
                let group: BTreeSet<NodeId> = ids
                    .iter()
                    .filter(|_| random.below(3) == 0)
                    .map(|id| NodeId(*id))
                    .collect();
                world.fault_at(at, Fault::Cut(group));
                let healed = at + random.below(20_000);
                world.fault_at(healed, Fault::Heal);
                return healed;
            }
            6 => {
                world.fault_at(at, Fault::Drain(target));
                if random.below(3) == 0 {
                    // It dies instead, and its next start wants to stay.
                    world.fault_at(at + random.below(5_000), Fault::KillOne(target));
                    world.fault_at(at + random.below(10_000), Fault::Start(target));
                }
            }
            7 => world.fault_at(at, Fault::Leave(target)),
            8 => world.fault_at(at, Fault::Slow(target, random.below(30_000))),
            _ => ids.push(arrival(world, random, at, index)),
        }
        at
    }
}

/// A new node, below or above the others; perhaps it dies, drains or pauses while it joins.
fn arrival(world: &mut World, random: &mut Random, at: u64, index: u64) -> u64 {
    let id = if random.below(3) == 0 {
        1_000 + index
    } else {
        200 + index
    };
    let node = NodeId(id);
    world.fault_at(at, Fault::Start(node));
    let soon = at + random.below(8_000);
    match random.below(4) {
        0 => world.fault_at(soon, Fault::KillOne(node)),
        1 if world.quorum == Quorum::Majority => {
            world.fault_at(soon, Fault::Pause(node, random.below(20_000)))
        }
        2 => world.fault_at(soon, Fault::Drain(node)),
        _ => {}
    }
    id
}

/// Whoever lives is in. If the last members of the history left on purpose while the others were
/// cut off, it is over, and nobody who lives is in it or can get in.
fn assert_all_finished(world: &World) {
    let entries = world.oracle.longest();
    let last = &entries.last().unwrap().outcome;
    let living = || {
        world
            .nodes
            .values()
            .filter(|node| node.alive && !node.drained)
    };
    let is_over = last.view.ids().all(|id| world.nodes[&id].drained);
    assert_finished(world, if is_over { 0 } else { living().count() });
    let lineages: BTreeSet<Lineage> = living()
        .filter(|node| !node.outside)
        .map(|node| node.machine().began_in())
        .collect();
    assert!(
        lineages.len() <= 1,
        "seed {}: those that live are in {lineages:?}",
        world.seed
    );
}

/// Few, so that they run with every build; `PROPTEST_CASES=10000` runs more.
fn cases(few: u32) -> ProptestConfig {
    let default = ProptestConfig::default();
    let cases = if std::env::var_os("PROPTEST_CASES").is_some() {
        default.cases
    } else {
        few
    };
    ProptestConfig {
        cases,
        failure_persistence: None,
        ..default
    }
}

proptest! {
    #![proptest_config(cases(40))]

    #[test]
    fn any_storm_of_spaced_faults_loses_nothing(storm in spaced()) {
        storm.spaced();
    }
}

proptest! {
    #![proptest_config(cases(120))]

    #[test]
    fn any_dense_storm_ends_in_one_history(storm in dense(Quorum::Majority)) {
        storm.dense();
    }

    #[test]
    fn any_dense_storm_among_survivors_ends_in_one_history(storm in dense(Quorum::Survivors)) {
        storm.dense();
    }
}

#[test]
fn spaced_storms_that_failed_once() {
    let storm = |seed, nodes, replicas, gap| {
        let rarely_slow = 0;
        let gradients = 0;
        let buffers = 0;
        Storm {
            seed,
            nodes,
            replicas,
            gap,
            rarely_slow,
            gradients,
            quorum: Quorum::Majority,
            buffers,
        }
        .spaced();
    };
    storm(9673298147799824389, 5, 1, 89520);
    storm(13579537005728292551, 8, 1, 46000);
    storm(12846056096122377243, 6, 1, 55600);
    storm(6632116104375957888, 6, 1, 68715);
}

#[test]
fn dense_storms_that_failed_once() {
    let storm = |seed, nodes, replicas, gap, rarely_slow, gradients| {
        Storm {
            seed,
            nodes,
            replicas,
            gap,
            rarely_slow,
            gradients,
            quorum: Quorum::Majority,
            buffers: 0,
        }
        .dense();
    };
    // A member answered for what it had accepted although another attempt had replaced the data.
    storm(11102921614542347865, 8, 1, 18049, 28, 17);
    // A leader was bound to its own attempt, which it knew it had not decided, and which nobody
    // else held.
    storm(14038896029908989615, 3, 0, 4559, 79, 0);
    // Joiners held nothing yet of what all members had accepted, and an outcome was decided without
    // them.
    storm(8765834026712485045, 1, 0, 7130, 0, 0);
    storm(2636501207376796202, 2, 1, 3849, 61, 17);
    // A node was drained because the start before it had wanted to leave.
    storm(4983979435718341634, 5, 2, 19762, 42, 0);
    storm(17283962018210598817, 6, 0, 3974, 0, 0);
    // Who had accepted an outcome and went over to a higher term no longer knew whom that outcome
    // had let in.
    storm(492179430981721438, 3, 1, 6743, 0, 17);
    // Of three nodes one left and one died in the same round.
    storm(9240943576071230928, 3, 0, 19816, 0, 0);
    // Two of four nodes left for good while a third was cut off.
    storm(8972206299028092058, 4, 0, 3438, 76, 17);
    // A member that wanted to leave did not hold what was decided: it ends, and the others need not
    // wait for it.
    storm(3321801828758438107, 8, 1, 484, 0, 0);
    // A leader drained with a decision that was lost on its way to the others.
    storm(3005578729937786161, 3, 1, 15181, 72, 0);
    // A leader was taken for dead and admitted again by another, which died then: everybody waited
    // for the first one to lead.
    storm(969430801804451322, 5, 0, 12702, 33, 17);
}

#[test]
fn dense_storms_among_survivors_that_failed_once() {
    let storm = |seed, nodes, replicas, gap| {
        let rarely_slow = 0;
        let gradients = 0;
        let buffers = 0;
        Storm {
            seed,
            nodes,
            replicas,
            gap,
            rarely_slow,
            gradients,
            quorum: Quorum::Survivors,
            buffers,
        }
        .dense();
    };
    // A leader died when only a joiner had its decision; the other member decided the same in a
    // history of its own.
    storm(8089224222511810229, 2, 1, 8436);
}

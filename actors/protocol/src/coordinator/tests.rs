//! Whole clusters of coordinators in a simulator, and single machines fed by hand.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod frames;
mod node;
mod noise;
mod oracle;
mod simulation;

use super::{RoundError, RoundKind, Terms};
use crate::ident::Step;
use oracle::Random;
use proptest::prelude::*;
use simulation::{Scenario, Simulation};

const KINDS: [RoundKind; 4] = [RoundKind::Average, RoundKind::Slow, RoundKind::Slow, RoundKind::Gradients];

/// A founding and `rounds` random rounds over a random small model.
fn scenario(seed: u64, members: usize, replicas: usize, rounds: usize) -> Scenario {
    let mut random = Random(seed ^ 0xabcd);
    let drawn = std::iter::repeat_with(|| KINDS[random.below(4) as usize]).take(rounds);
    let kinds = [RoundKind::Found].into_iter().chain(drawn).collect();
    let (elements, gradients) = (1 + random.below(40) as usize, 1 + random.below(40) as usize);
    Scenario { seed, members, replicas, elements, gradients, kinds, death: None, odd: None, silent: None, noise: false }
}

/// Every node applied every round of the schedule.
fn assert_complete(simulation: &Simulation, rounds: usize) {
    for node in simulation.nodes.values() {
        assert_eq!(node.failed, None);
        assert_eq!(node.applied.len(), rounds, "{} stopped early", node.id);
    }
}

#[test]
fn every_size_and_replication_matches_the_oracle() {
    for members in 1..=7 {
        for replicas in 0..=3 {
            let mut simulation = Simulation::new(scenario(members as u64 * 10 + replicas as u64, members, replicas, 12));
            simulation.run();
            assert_complete(&simulation, 13);
        }
    }
}

#[test]
fn a_model_without_values_is_decided_too() {
    for members in 1..=4 {
        let mut simulation = Simulation::new(Scenario { elements: 0, gradients: 0, ..scenario(5, members, 1, 6) });
        simulation.run();
        assert_complete(&simulation, 7);
    }
}

#[test]
fn an_odd_node_is_named_to_everybody_even_if_the_others_are_a_round_ahead() {
    // One shard, no replicas: a round may be decided without the odd node, which learns of it late.
    for seed in 0..200 {
        let terms = Terms { kind: RoundKind::Found, step: Step(1), gamma: 0.0, elements: 1 };
        let base = Scenario { elements: 1, gradients: 1, ..scenario(seed, 3, 0, 3) };
        let mut simulation = Simulation::new(Scenario { odd: Some((2, 0, terms)), ..base });
        simulation.run();
        assert_names(&mut simulation, 2);
    }
}

/// Everybody's error names the odd node and another one.
fn assert_names(simulation: &mut Simulation, rank: usize) {
    let odd = *simulation.nodes.keys().nth(rank).unwrap();
    for (id, error) in simulation.errors() {
        let RoundError::TermsDiffer { one, other, one_terms, other_terms, .. } = &error else { panic!("{id}: {error}") };
        assert!((*one == odd) != (*other == odd), "{id}: {error}");
        assert_ne!(one_terms, other_terms);
    }
}

#[test]
fn a_silent_node_ends_every_round_in_time_and_nobody_hangs() {
    for seed in 0..40 {
        let base = scenario(seed, 4, 1, 5);
        let mut simulation = Simulation::new(Scenario { elements: 30, gradients: 30, silent: Some((2, 3)), ..base });
        simulation.run();
        for (id, error) in simulation.errors() {
            let RoundError::TimedOut { waiting_for, .. } = &error else { panic!("{id}: {error}") };
            assert!(!waiting_for.is_empty() && !waiting_for.contains(&id), "{id} waits for itself: {error}");
        }
        assert!(simulation.nodes.values().all(|node| node.applied.len() == 3));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_schedule_in_any_order_matches_the_oracle(seed: u64, members in 1usize..8, replicas in 0usize..4, rounds in 0usize..15) {
        let mut simulation = Simulation::new(scenario(seed, members, replicas, rounds));
        simulation.run();
        assert_complete(&simulation, rounds + 1);
    }

    #[test]
    fn repeated_stale_and_foreign_frames_change_nothing(seed: u64, members in 1usize..8, replicas in 0usize..4) {
        let mut simulation = Simulation::new(Scenario { noise: true, ..scenario(seed, members, replicas, 8) });
        simulation.run();
        assert_complete(&simulation, 9);
    }

    #[test]
    fn a_lost_member_ends_the_run_for_everybody_else(
        seed: u64,
        members in 2usize..8,
        replicas in 0usize..4,
        victim: prop::sample::Index,
        at in 0u64..6_000,
        noise: bool,
    ) {
        let death = Some((victim.index(members), at));
        let mut simulation = Simulation::new(Scenario { death, noise, ..scenario(seed, members, replicas, 10) });
        simulation.run();
        if let Some(dead) = simulation.dead {
            for (id, error) in simulation.errors() {
                prop_assert!(matches!(&error, RoundError::MemberLost { node, .. } if *node == dead), "{id}: {error}");
            }
        }
    }

    #[test]
    fn different_terms_are_named_to_everybody(
        seed: u64,
        members in 2usize..8,
        replicas in 0usize..4,
        odd: prop::sample::Index,
        round in 0u64..6,
        what in 0usize..4,
    ) {
        let base = scenario(seed, members, replicas, 6);
        let kind = base.kinds[round as usize];
        let elements = if kind == RoundKind::Gradients { base.gradients } else { base.elements } as u64;
        let ours = Terms { kind, step: Step(round * 3), gamma: oracle::GAMMA, elements };
        let terms = match what {
            0 => Terms { step: Step(round * 3 + 1), ..ours },
            1 => Terms { gamma: f32::NAN, ..ours },
            2 => Terms { elements: elements + 1, ..ours },
            _ => Terms { kind: if kind == RoundKind::Average { RoundKind::Slow } else { RoundKind::Average }, ..ours },
        };
        let rank = odd.index(members);
        let mut simulation = Simulation::new(Scenario { odd: Some((rank, round, terms)), ..base });
        simulation.run();
        assert_names(&mut simulation, rank);
    }
}

//! Simulated memberships bootstrap, join, are refused, die, return, drain and leave. Whatever
//! happens, all living nodes that may be members end up in one view, and know it.
#![allow(clippy::unwrap_used, clippy::panic)]

mod apart;
mod leaving;
mod process;
mod rounds;
mod storm;
mod world;

use super::{BootstrapError, In};
use crate::ident::{ClusterId, Incarnation, Lineage, NodeId};
use crate::model::ModelSize;
use crate::time::Span;
use crate::wire::JoinRefusal;
use process::{At, Process, Start, node};
use std::collections::BTreeSet;
use world::{Common, MS, World};

const CLUSTER: ClusterId = ClusterId(7);
/// Milliseconds within which all living nodes must be members once nothing happens any more.
const SETTLES: u64 = 8_000;

fn common(min_nodes: usize) -> Common {
    Common {
        min_nodes,
        max_nodes: 16,
        survivors: false,
        connect_timeout: Span::from_millis(60_000),
    }
}

/// Starts nodes that know each other's addresses, each up to 40 ms after the previous one.
fn start_all(world: &mut World, ids: &[u64]) -> Vec<usize> {
    let starts = ids.iter().map(|id| {
        let index = world.start(node(*id));
        let address = world.processes[index].address;
        world.known.insert(address);
        let wait = world.random.below(40);
        world.run(wait);
        index
    });
    starts.collect()
}

/// A cluster of nodes 1, 2, … that has decided rounds, and its processes.
fn cluster(seed: u64, nodes: u64, common: Common) -> (World, Vec<usize>) {
    let mut world = World::new(seed, common);
    let ids: Vec<u64> = (1..=nodes).collect();
    let started = start_all(&mut world, &ids);
    settle(&mut world);
    (world, started)
}

/// The common member state of all living nodes that were not refused, if there is one.
fn settled(world: &World) -> Option<At> {
    let second = |one: &Process| {
        world
            .processes
            .iter()
            .any(|other| other.alive && other.id == one.id && other.incarnation < one.incarnation)
    };
    // A second process with a live node's id waits.
    let living = || {
        world
            .processes
            .iter()
            .filter(|process| process.alive && process.failed.is_none() && !second(process))
    };
    let first = living().next()?.coordinator.clone()?;
    let same = |at: &At| at.lineage == first.lineage && at.view == first.view && at.round.0 > 0;
    let agrees = living().all(|process| {
        let standing = process.machine.life.standing.as_ref();
        let knows = standing.is_some_and(|standing| {
            standing.view == first.view && standing.lineage == first.lineage
        });
        knows && process.coordinator.as_ref().is_some_and(same) && process.waiting.is_none()
    });
    let mut incarnations: Vec<Incarnation> = living().map(|process| process.incarnation).collect();
    incarnations.sort_unstable();
    let mut members: Vec<Incarnation> = first
        .view
        .members()
        .iter()
        .map(|member| member.incarnation)
        .collect();
    members.sort_unstable();
    (agrees && incarnations == members).then_some(first)
}

/// Runs until the world is settled, and checks that it still is 500 ms later.
fn settle(world: &mut World) -> At {
    let begun = world.now;
    while settled(world).is_none() {
        assert!(
            world.now < begun + SETTLES * MS,
            "seed {}: not settled: {}",
            world.seed,
            describe(world)
        );
        world.run(20);
    }
    world.run(500);
    let at = settled(world);
    assert!(
        at.is_some(),
        "seed {}: not settled any more: {}",
        world.seed,
        describe(world)
    );
    at.unwrap()
}

fn describe(world: &World) -> String {
    let one = |process: &Process| {
        let resigned = process.resigned;
        let view = |at: &At| {
            format!(
                "{} {} of {:?}",
                at.lineage,
                at.round,
                at.view.ids().map(|id| id.0).collect::<Vec<_>>()
            )
        };
        let at = process.coordinator.as_ref().map(view);
        let id = process.id;
        let incarnation = process.incarnation.0;
        let failed = &process.failed;
        let standing = process
            .machine
            .life
            .standing
            .as_ref()
            .map(|standing| standing.round);
        format!(
            "\n{id}.{incarnation} at {at:?} standing {standing:?} failed {failed:?} resigned {resigned} joiners {:?} lost {:?}",
            process.joiners, process.lost
        )
    };
    world
        .processes
        .iter()
        .filter(|process| process.alive)
        .map(one)
        .collect()
}

fn ids(at: &At) -> Vec<u64> {
    at.view.ids().map(|id| id.0).collect()
}

#[test]
fn nodes_that_come_one_after_the_other_found_one_view() {
    for seed in 0..30 {
        let nodes = 1 + seed % 8;
        let (world, _) = cluster(seed, nodes, common(nodes as usize));
        assert_eq!(
            ids(&settled(&world).unwrap()),
            (1..=nodes).collect::<Vec<_>>()
        );
        assert!(world.processes.iter().all(|process| process.resigned == 0));
    }
}

#[test]
fn who_misses_the_bootstrap_joins() {
    for seed in 0..30 {
        let (world, _) = cluster(seed, 7, common(4));
        let lineages: BTreeSet<_> = world.decided.keys().map(|(lineage, _)| lineage).collect();
        assert_eq!(lineages.len(), 1, "seed {seed}");
    }
}

#[test]
fn a_node_that_only_joins_founds_nothing() {
    let mut world = World::new(5, common(1));
    let joiner = world.start(Start {
        join: true,
        ..node(1)
    });
    world.run(2_000);
    assert_eq!(world.processes[joiner].coordinator, None);
    start_all(&mut world, &[2]);
    assert_eq!(ids(&settle(&mut world)), [1, 2]);
    // Nor do bootstrap members count on it, although its id is lower than theirs.
    for seed in 0..20 {
        let mut world = World::new(seed, common(2));
        let joiner = world.start(Start {
            join: true,
            ..node(1)
        });
        start_all(&mut world, &[2, 3]);
        let address = world.processes[joiner].address;
        world.known.insert(address);
        settle(&mut world);
        let bootstrap = world
            .decided
            .iter()
            .next()
            .map(|(_, view)| view.contains(NodeId(2)) && view.contains(NodeId(3)));
        assert_eq!(bootstrap, Some(true), "seed {seed}");
    }
    let mut alone = World::new(
        6,
        Common {
            connect_timeout: Span::from_millis(1_000),
            ..common(1)
        },
    );
    let joiner = alone.start(Start {
        join: true,
        ..node(1)
    });
    alone.run(3_000);
    assert!(matches!(
        alone.processes[joiner].failed,
        Some(BootstrapError::NotAdmitted { .. })
    ));
}

/// Starts a node beside a cluster and returns the reason why it is refused; the others take no
/// notice.
fn refused(world: &mut World, start: Start) -> (NodeId, JoinRefusal) {
    let before = settle(world);
    let stranger = world.start(start);
    world.run(3_000);
    assert_eq!(settle(world).view, before.view);
    let rounds = |world: &World| world.decided.len();
    let decided = rounds(world);
    world.run(500);
    assert!(rounds(world) > decided, "rounds go on");
    world.end(stranger, false);
    match world.processes[stranger].failed.clone() {
        Some(BootstrapError::Refused { by, reason }) => (by, reason),
        other => panic!("{other:?}"),
    }
}

#[test]
fn refusals_name_the_reason() {
    let (mut world, _) = cluster(
        1,
        3,
        Common {
            max_nodes: 4,
            ..common(3)
        },
    );
    let (_, reason) = refused(
        &mut world,
        Start {
            model: ModelSize {
                optimizer: 5,
                ..ModelSize::of(23)
            },
            ..node(9)
        },
    );
    assert_eq!(
        reason,
        JoinRefusal::ModelsDiffer {
            cluster: ModelSize::of(23),
            joiner: ModelSize {
                optimizer: 5,
                ..ModelSize::of(23)
            }
        }
    );
    let (_, reason) = refused(
        &mut world,
        Start {
            shared: "tau = 24".to_owned(),
            ..node(9)
        },
    );
    assert!(
        matches!(&reason, JoinRefusal::SettingsDiffer { differences } if differences.contains("tau is 24 here, 12 there")),
        "{reason}"
    );
    let fourth = world.start(node(8));
    assert_eq!(ids(&settle(&mut world)), [1, 2, 3, 8]);
    let (by, reason) = refused(&mut world, node(9));
    assert_eq!(reason, JoinRefusal::Full { max_nodes: 4 });
    assert!(by.0 < 9);
    // A slot that is free again is given away.
    world.feed(fourth, In::Drain);
    settle(&mut world);
    world.start(node(10));
    assert_eq!(ids(&settle(&mut world)), [1, 2, 3, 10]);
}

#[test]
fn a_node_joins_only_the_history_whose_state_it_brings() {
    let (mut world, started) = cluster(7, 3, common(3));
    let ours = settle(&mut world).lineage;
    let other = Lineage(5);
    let (_, reason) = refused(
        &mut world,
        Start {
            lineage: Some(other),
            join: true,
            ..node(9)
        },
    );
    assert_eq!(
        reason,
        JoinRefusal::OtherLineage {
            cluster: ours,
            joiner: other
        }
    );
    // Also under the id of a member that is gone.
    world.end(started[2], false);
    let successor = world.start(Start {
        lineage: Some(other),
        join: true,
        ..node(3)
    });
    world.run(3_000);
    let told = world.processes[successor].failed.clone();
    assert!(
        matches!(
            told,
            Some(BootstrapError::Refused {
                reason: JoinRefusal::OtherLineage { .. },
                ..
            })
        ),
        "{told:?}"
    );
    world.end(successor, false);
    world.start(Start {
        lineage: Some(ours),
        join: true,
        ..node(4)
    });
    assert_eq!(ids(&settle(&mut world)), [1, 2, 4]);
}

#[test]
fn who_joins_again_need_not_name_a_history() {
    let (mut world, _) = cluster(
        8,
        4,
        Common {
            survivors: true,
            ..common(4)
        },
    );
    let first = settle(&mut world).lineage;
    let brings = world.start(Start {
        lineage: Some(first),
        join: true,
        ..node(9)
    });
    settle(&mut world);
    // The others go on under another lineage, and it comes back to them.
    world.cut(&[1, 2, 3, 4]);
    world.run(4_000);
    world.heal();
    let after = settle(&mut world);
    assert_eq!(ids(&after), [1, 2, 3, 4, 9]);
    assert!(world.processes[brings].failed.is_none());
}

#[test]
fn a_cluster_without_complete_rounds_admits_nobody() {
    let mut world = World::new(3, common(2));
    for id in [1, 2] {
        let index = world.start(Start {
            refuses: Some(JoinRefusal::NoParameters),
            ..node(id)
        });
        let address = world.processes[index].address;
        world.known.insert(address);
    }
    assert_eq!(refused(&mut world, node(3)).1, JoinRefusal::NoParameters);
}

#[test]
fn a_second_process_with_a_live_members_id_waits_until_that_is_dead() {
    for seed in 0..20 {
        let (mut world, started) = cluster(seed, 4, common(4));
        let before = settle(&mut world);
        let second = world.start(node(3));
        world.run(3_000);
        assert_eq!(
            world.processes[started[0]]
                .coordinator
                .as_ref()
                .map(|at| &at.view),
            Some(&before.view),
            "seed {seed}"
        );
        assert_eq!(
            (
                &world.processes[second].coordinator,
                &world.processes[second].failed
            ),
            (&None, &None)
        );
        world.end(started[2], false);
        let after = settle(&mut world);
        let incarnation = world.processes[second].incarnation;
        assert_eq!(
            after
                .view
                .member(NodeId(3))
                .map(|member| member.incarnation),
            Some(incarnation),
            "seed {seed}"
        );
    }
}

#[test]
fn a_restarted_node_takes_its_place_again() {
    for seed in 0..30 {
        let (mut world, started) = cluster(seed, 5, common(5));
        let killed = started[world.random.below(5) as usize];
        world.end(killed, false);
        // Restarts before or after the others notice, at the same port or at another one.
        let wait = world.random.below(600);
        world.run(wait);
        let id = world.processes[killed].id;
        let port = world.processes[killed].address.port();
        let again = world.start(Start {
            port: (seed % 2 == 0).then_some(port),
            ..node(id.0)
        });
        let after = settle(&mut world);
        assert_eq!(
            after.view.member(id).map(|member| member.incarnation),
            Some(world.processes[again].incarnation),
            "seed {seed}"
        );
        assert_eq!(ids(&after), [1, 2, 3, 4, 5]);
        assert!(
            world.processes.iter().all(|process| process.resigned == 0),
            "seed {seed}: {}",
            describe(&world)
        );
    }
}

#[test]
fn without_a_quorum_a_majority_waits_until_everybody_is_accounted_for() {
    for seed in 0..30 {
        let (mut world, started) = cluster(seed, 5, common(5));
        let before = settle(&mut world);
        for killed in &started[..3] {
            world.end(*killed, false);
        }
        let decided = world.decided.len();
        for id in [1, 2] {
            world.start(node(id));
            let wait = world.random.below(3_000);
            world.run(wait);
        }
        // A round that was under way may still be decided.
        assert!(
            world.decided.len() <= decided + 1,
            "seed {seed}: node 3 may live on another side"
        );
        world.start(node(3));
        let after = settle(&mut world);
        assert_eq!(ids(&after), ids(&before), "seed {seed}");
        assert_ne!(
            after.lineage, before.lineage,
            "seed {seed}: nobody knows whether there was a later view, whose members hold more"
        );
    }
}

#[test]
fn a_member_that_was_cut_off_learns_that_it_is_out_and_joins_again() {
    for seed in 0..30 {
        let (mut world, started) = cluster(seed, 5, common(5));
        let away = world.random.below(5) as usize;
        let id = away as u64 + 1;
        world.cut(&[id]);
        world.run(4_000);
        let others = world.processes[started[(away + 1) % 5]]
            .coordinator
            .clone()
            .unwrap();
        assert!(!others.view.contains(NodeId(id)), "seed {seed}");
        assert!(
            world.processes[started[away]]
                .coordinator
                .as_ref()
                .is_some_and(|at| at.view.size() == 5),
            "it waits where it was"
        );
        world.heal();
        let after = settle(&mut world);
        assert_eq!(
            (ids(&after), after.lineage),
            (vec![1, 2, 3, 4, 5], others.lineage),
            "seed {seed}"
        );
        let resigned: Vec<usize> = world
            .processes
            .iter()
            .map(|process| process.resigned)
            .collect();
        assert_eq!(
            (resigned[started[away]], resigned.iter().sum::<usize>()),
            (1, 1),
            "seed {seed}"
        );
        // In the same process.
        assert_eq!(world.processes.len(), 5);
    }
}

#[test]
fn a_member_that_does_not_hold_what_was_decided_joins_again() {
    for seed in 0..20 {
        let (mut world, started) = cluster(seed, 4, common(4));
        let must_rejoin = started[world.random.below(4) as usize];
        world.processes[must_rejoin].coordinator = None;
        world.feed(must_rejoin, In::MustRejoin);
        assert_eq!(ids(&settle(&mut world)), [1, 2, 3, 4], "seed {seed}");
        assert_eq!(world.processes[must_rejoin].resigned, 1, "seed {seed}");
    }
}

#[test]
fn a_short_cut_costs_no_membership() {
    for seed in 0..20 {
        let (mut world, _) = cluster(seed, 4, common(4));
        let before = settle(&mut world);
        world.cut(&[2, 3]);
        world.run(300);
        world.heal();
        assert_eq!(settle(&mut world).view, before.view, "seed {seed}");
    }
}

/// The bootstrapper is killed before round 0 is decided, and restarts: the bootstrap that the
/// others were still in when it met them is given up, and it bootstraps anew.
#[test]
fn a_bootstrap_that_was_cut_short_begins_anew() {
    for seed in 0..4 {
        for others in [1, 2] {
            let mut world = World::new(seed, common(2));
            world.slow_rounds = true;
            let started: Vec<usize> = (1..=1 + others).map(|id| world.start(node(id))).collect();
            for index in &started {
                let address = world.processes[*index].address;
                world.known.insert(address);
            }
            world.run(3_000);
            let port = world.processes[started[0]].address.port();
            world.end(started[0], false);
            world.run(1_000);
            world.start(Start {
                port: Some(port),
                ..node(1)
            });
            world.run(3_000);
            world.slow_rounds = false;
            world.run(8_000);
            assert!(settled(&world).is_some(), "seed {seed}, {others} others");
        }
    }
}

#[test]
fn who_waits_to_be_admitted_says_what_for() {
    let (mut world, started) = cluster(3, 5, common(5));
    assert!(
        world
            .processes
            .iter()
            .all(|process| process.waiting.is_none())
    );
    let id = world.processes[started[4]].id.0;
    world.cut(&[id]);
    world.run(4_000);
    // Three of four are a majority; the last one is not.
    started[1..4]
        .iter()
        .for_each(|index| world.end(*index, false));
    world.heal();
    world.run(4_000);
    let waits = |world: &World| {
        world.processes[started[4]]
            .waiting
            .clone()
            .unwrap_or_default()
    };
    assert!(
        waits(&world).contains("the cluster decided no round"),
        "{}",
        waits(&world)
    );
    world.end(started[0], false);
    world.run(1_500);
    assert!(
        waits(&world).contains("this node and node 1 cannot reach each other"),
        "{}",
        waits(&world)
    );
    // Nobody is left who could admit it: its state is needed where it was before.
    assert_eq!(world.processes[started[4]].coordinator, None);
    world.run(2_500);
    assert_eq!(
        world.processes[started[4]].coordinator.as_ref().map(ids),
        Some(vec![1, 2, 3, 4, 5])
    );
}

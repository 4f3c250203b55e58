//! Nodes that leave, also when they cannot announce it, and nodes that come after them under their
//! ids.

use super::process::node;
use super::{In, NodeId, cluster, common, describe, ids, settle};
use crate::membership::LEAVE_AGAIN_EVERY;

#[test]
fn a_node_that_was_cut_off_while_it_drained_ends() {
    for seed in 0..20 {
        let (mut world, started) = cluster(seed, 4, common(4));
        let drained = started[world.random.below(4) as usize];
        world.feed(drained, In::Drain);
        let wait = world.random.below(80);
        let id = world.processes[drained].id.0;
        world.run(wait);
        world.cut(&[id]);
        world.run(4_000);
        world.heal();
        settle(&mut world);
        assert!(world.processes[drained].left, "seed {seed}");
    }
}

#[test]
fn a_node_that_could_not_say_that_it_leaves_says_so_again() {
    for seed in 0..20 {
        let (mut world, started) = cluster(seed, 4, common(4));
        let drained = started[world.random.below(4) as usize];
        let id = world.processes[drained].id.0;
        // Nothing that it sends arrives, and the others' connections to it may or may not last.
        world.cut(&[id]);
        world.feed(drained, In::Drain);
        let wait = world.random.below(140);
        world.run(wait);
        world.heal();
        world.run(LEAVE_AGAIN_EVERY.as_millis() + 200);
        let after = settle(&mut world);
        assert!(
            !after.view.contains(NodeId(id)) && world.processes[drained].left,
            "seed {seed}: {}",
            describe(&world)
        );
    }
}

#[test]
fn a_node_that_holds_nothing_any_more_while_it_drains_ends_at_once() {
    for seed in 0..20 {
        let (mut world, started) = cluster(seed, 4, common(4));
        let drained = started[world.random.below(4) as usize];
        world.feed(drained, In::Drain);
        world.processes[drained].coordinator = None;
        world.feed(drained, In::MustRejoin);
        world.run(200);
        assert!(world.processes[drained].left, "seed {seed}");
        assert!(
            !settle(&mut world)
                .view
                .contains(world.processes[drained].id),
            "seed {seed}"
        );
    }
}

#[test]
fn what_a_start_wanted_is_not_wanted_by_the_next_one() {
    for seed in 0..40 {
        let (mut world, started) = cluster(seed, 4, common(4));
        let one = started[world.random.below(4) as usize];
        let id = world.processes[one].id.0;
        world.feed(one, In::Drain);
        let wait = 1 + world.random.below(40);
        world.run(wait);
        world.end(one, false);
        let again = world.start(node(id));
        let after = settle(&mut world);
        assert_eq!(
            ids(&after),
            [1, 2, 3, 4],
            "seed {seed}: {}",
            describe(&world)
        );
        assert!(!world.processes[again].left, "seed {seed}");
    }
}

#[test]
fn a_drained_node_ends_and_the_others_go_on() {
    for seed in 0..20 {
        let (mut world, started) = cluster(seed, 4, common(4));
        let drained = started[world.random.below(4) as usize];
        world.feed(drained, In::Drain);
        let after = settle(&mut world);
        assert!(world.processes[drained].left, "seed {seed}");
        assert!(!after.view.contains(world.processes[drained].id));
        assert!(
            world.processes.iter().all(|process| process.resigned == 0),
            "seed {seed}"
        );
    }
}

#[test]
fn a_leaving_node_ends_and_so_does_a_cluster_that_leaves_together() {
    for seed in 0..20 {
        let (mut world, started) = cluster(seed, 4, common(4));
        world.feed(started[1], In::Leave);
        assert_eq!(ids(&settle(&mut world)), [1, 3, 4], "seed {seed}");
        assert!(world.processes[started[1]].left);
        for index in [0, 2, 3] {
            let wait = world.random.below(30);
            world.run(wait);
            world.feed(started[index], In::Leave);
        }
        world.run(500);
        assert!(
            world.processes.iter().all(|process| process.left),
            "seed {seed}: nobody waits for the others' time to be over"
        );
    }
}

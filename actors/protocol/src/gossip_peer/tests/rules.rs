//! Rules of waiting, of mixing, and of choosing the peers of a gossip.

use super::bench::{
    Bench, GRACE, ROUND, SETTLE, arrivals, header, key, mix, mixed, out, overlapped, plan, refused,
    sends, skipped, skipping,
};
use crate::algorithm::Gossip;
use crate::gossip_peer::{Effect, In, Purpose};
use crate::ident::{NodeId, Step};
use crate::machine::Machine;
use crate::time::Instant;
use crate::wire::Message;

#[test]
fn synchronous_a_step_ends_when_its_messages_are_mixed() {
    let mut node = Bench::new(4, Gossip::synchronous(1));
    let effects = node.gossip(0);
    assert_eq!(
        (out(&effects), mix(&effects)),
        (vec![2], None),
        "it waits for node 4"
    );
    assert_eq!(plan(&effects).unwrap().split.kept, 0.5);
    assert_eq!(
        (node.waits_for(), node.machine.next_deadline()),
        (vec![(0, 4)], Some(Instant(GRACE)))
    );
    let effects = node.arrive(4, 0);
    assert_eq!(sends(&effects), [(4, mixed(0))]);
    let mix = mix(&effects).unwrap();
    assert_eq!(
        (mix.own, mix.weight, mix.purpose, &mix.arrivals),
        (0.5, 1.0, Purpose::Gossip, &vec![key(4, 0)])
    );
    assert_eq!(
        (node.waits_for(), node.machine.weight()),
        (vec![], 1.5),
        "its own message is without an answer"
    );
    assert_eq!(
        node.acknowledge(2, 0),
        [Effect::Forget((NodeId(2), Step(0)))]
    );
    assert_eq!((node.machine.weight(), node.machine.escrowed()), (1.0, 0.0));
}

#[test]
fn synchronous_what_comes_early_waits_for_its_step() {
    let mut node = Bench::new(2, Gossip::synchronous(1));
    assert_eq!(
        sends(&node.arrive(2, 0)),
        [(2, mixed(0))],
        "held while the training threads compute"
    );
    assert_eq!(sends(&node.arrive(2, 1)), [(2, mixed(1))]);
    assert_eq!(arrivals(&node.gossip(0)), [key(2, 0)]);
    assert_eq!(arrivals(&node.gossip(1)), [key(2, 1)]);
}

#[test]
fn messages_are_mixed_ascending_whatever_the_order_of_arrival() {
    let mut node = Bench::new(4, Gossip::synchronous(2));
    assert_eq!(out(&node.gossip(0)), [2, 3]);
    assert_eq!(mix(&node.arrive(4, 0)), None);
    assert_eq!(arrivals(&node.arrive(3, 0)), [key(3, 0), key(4, 0)]);
    let mut node = Bench::new(4, overlapped(3));
    for (from, step) in [(4, 1), (2, 0), (3, 2), (3, 0)] {
        node.arrive(from, step);
    }
    assert_eq!(
        arrivals(&node.gossip(0)),
        [key(2, 0), key(3, 0), key(4, 1), key(3, 2)],
        "everything that is here"
    );
}

#[test]
fn overlapped_a_step_waits_only_for_what_is_more_than_the_staleness_late() {
    for staleness in 1..4 {
        let mut node = Bench::new(2, overlapped(staleness));
        let bound = u64::from(staleness);
        for step in 0..bound {
            let effects = node.gossip(step);
            assert!(mix(&effects).unwrap().arrivals.is_empty() && out(&effects) == [2]);
            node.acknowledge(2, step);
        }
        assert_eq!(
            (node.gossip(bound), node.waits_for()),
            (vec![], vec![(0, 2)])
        );
        let effects = node.arrive(2, 0);
        assert_eq!(
            (arrivals(&effects), out(&effects)),
            (vec![key(2, 0)], vec![2]),
            "it mixes, then it sends"
        );
        assert_eq!(
            mix(&effects).unwrap().weight,
            0.5f64.powi(bound as i32) + 0.5
        );
    }
}

#[test]
fn what_is_too_late_is_refused_and_its_sender_told_where_the_others_are() {
    let mut node = Bench::new(4, overlapped(2));
    (0..6).for_each(|step| _ = node.frame(4, skipped(step, step)));
    (0..6).for_each(|step| _ = node.frame(3, skipped(step, step)));
    (0..6).for_each(|step| _ = node.gossip(step));
    assert_eq!(
        sends(&node.arrive(2, 3)),
        [(2, refused(3, 6))],
        "step 6 is the next to mix"
    );
    assert_eq!(sends(&node.arrive(2, 4)), [(2, mixed(4))]);

    let mut node = Bench::new(2, Gossip::synchronous(1));
    for step in 0..3 {
        node.frame(2, skipped(step, step));
        node.gossip(step);
    }
    assert_eq!(sends(&node.arrive(2, 1)), [(2, refused(1, 3))]);
    assert_eq!(
        sends(&node.arrive(2, 2)),
        [(2, mixed(2))],
        "a detour may come one step late"
    );
    assert_eq!(mix(&node.gossip(3)), None);
    assert_eq!(arrivals(&node.arrive(2, 3)), [key(2, 2), key(2, 3)]);
}

#[test]
fn nobody_waits_for_what_is_skipped() {
    let mut node = Bench::new(2, overlapped(1));
    node.gossip(0);
    node.acknowledge(2, 0);
    assert_eq!(node.gossip(1), []);
    assert!(mix(&node.frame(2, skipped(0, 4))).is_some());
    (2..6).for_each(|step| assert!(mix(&node.gossip(step)).is_some(), "also of steps that come"));
    assert_eq!((node.gossip(6), node.waits_for()), (vec![], vec![(5, 2)]));
}

#[test]
fn a_late_peer_is_waited_for_no_longer_than_the_grace_until_it_is_in_time() {
    let mut node = Bench::new(2, overlapped(1));
    node.gossip(0);
    node.acknowledge(2, 0);
    node.gossip(1);
    assert_eq!(node.tick_at(GRACE - 1), []);
    let effects = node.tick_at(GRACE);
    assert_eq!(effects[0], Effect::Late(vec![NodeId(2)]));
    assert!(
        mix(&effects).is_some() && out(&effects).is_empty(),
        "it is sent nothing"
    );
    assert_eq!(sends(&effects), [(2, skipped(1, 1))]);
    assert_eq!(node.late(), [NodeId(2)]);
    assert!(mix(&node.gossip(2)).is_some(), "once");
    // It shows a step within the bound.
    node.arrive(2, 2);
    assert_eq!(out(&node.gossip(3)), [2]);
    assert_eq!((node.late().len(), node.gossip(4)), (0, vec![]));
    assert_eq!(node.waits_for(), [(3, 2)]);
}

/// Where messages take longer than steps, it might otherwise never be within the bound.
#[test]
fn a_late_peer_is_waited_for_again_once_it_has_reached_the_step_at_which_it_was_given_up() {
    for (gossip, late) in [(overlapped(1), vec![]), (skipping(1), vec![NodeId(2)])] {
        let mut node = Bench::new(2, gossip);
        node.gossip(0);
        node.acknowledge(2, 0);
        node.gossip(1);
        node.tick_at(GRACE);
        (2..6).for_each(|step| _ = node.gossip(step));
        node.frame(2, skipped(0, 1));
        node.gossip(6);
        assert_eq!(node.late(), late, "{gossip:?}");
    }
}

#[test]
fn nobody_is_late_in_a_new_round() {
    let mut node = Bench::new(2, overlapped(1));
    node.gossip(0);
    node.acknowledge(2, 0);
    node.gossip(1);
    node.tick_at(GRACE);
    assert_eq!(node.late(), [NodeId(2)]);
    node.feed(In::Round(ROUND.next()));
    assert_eq!(node.late(), []);
}

#[test]
fn late_peers_may_be_skipped_at_once() {
    let mut node = Bench::new(2, skipping(1));
    node.gossip(0);
    let effects = node.gossip(1);
    assert_eq!(
        (&effects[0], arrivals(&effects)),
        (&Effect::Late(vec![NodeId(2)]), vec![])
    );
}

#[test]
fn who_is_told_that_it_is_late_jumps_and_tells_what_it_leaves_out() {
    let mut node = Bench::new(4, overlapped(1));
    node.gossip(0);
    let effects = node.frame(2, refused(0, 9));
    assert_eq!((sends(&effects), node.machine.escrowed()), (vec![], 0.5));
    node.frame(4, skipped(0, 20));
    node.frame(3, skipped(0, 20));
    let effects = node.gossip(1);
    let mixed = mix(&effects).unwrap();
    let sent = vec![(NodeId(2), Step(0))];
    assert_eq!(
        (mixed.behind, &mixed.returned, mixed.weight),
        (Some(Step(9)), &sent, 1.0)
    );
    assert_eq!(out(&effects), [3]);
    let effects = node.gossip(9);
    let left_out = skipped(2, 8);
    assert_eq!(
        sends(&effects)[..3],
        [(2, left_out.clone()), (3, left_out.clone()), (4, left_out)]
    );
    assert_eq!(mix(&effects).unwrap().behind, None);
    // A message that is in time comes back for another reason.
    node.frame(2, refused(8, 9));
    assert_eq!(mix(&node.gossip(10)).unwrap().behind, None);
}

#[test]
fn who_is_told_that_it_is_late_takes_nothing_until_it_has_jumped() {
    let mut node = Bench::new(2, skipping(1));
    node.gossip(0);
    node.frame(2, refused(0, 9));
    assert_eq!(
        sends(&node.arrive(2, 9)),
        [(2, refused(9, 1))],
        "it could give nothing away in turn"
    );
    assert_eq!(mix(&node.gossip(1)).unwrap().behind, Some(Step(9)));
    assert_eq!(sends(&node.arrive(2, 10)), [(2, mixed(10))]);
}

#[test]
fn who_skips_and_is_late_is_told_as_well() {
    // Two nodes that take each other for late, or have little weight, send nothing that could be
    // refused.
    let mut node = Bench::new(2, skipping(2));
    (0..9).for_each(|step| _ = node.gossip(step));
    assert_eq!(sends(&node.frame(2, skipped(6, 6))), [(2, refused(6, 9))]);
    assert_eq!(sends(&node.frame(2, skipped(7, 7))), []);
    let mut behind = Bench::new(2, skipping(2));
    behind.gossip(0);
    behind.frame(2, refused(0, 9));
    behind.frame(2, refused(1, 4));
    assert_eq!(mix(&behind.gossip(1)).unwrap().behind, Some(Step(9)));
}

#[test]
fn little_weight_is_not_given_away() {
    let mut node = Bench::new(4, skipping(1));
    for step in 0..2 {
        assert_eq!(out(&node.gossip(step)).len(), 1);
        node.acknowledge(2 + step, step);
    }
    assert_eq!(node.machine.own_weight(), 0.25);
    assert_eq!(out(&node.gossip(2)), [2], "a quarter is enough");
    let effects = node.gossip(3);
    assert_eq!(
        (plan(&effects), sends(&effects), node.machine.own_weight()),
        (None, vec![(3, skipped(2, 3))], 0.125)
    );
}

#[test]
fn who_does_not_answer_is_sent_nothing_more_and_others_get_it() {
    let mut node = Bench::new(2, skipping(1));
    node.frame(2, skipped(0, 9));
    node.machine.weight = 8.0;
    assert_eq!(
        [0, 1, 2, 3].map(|step| out(&node.gossip(step))),
        [vec![2], vec![2], vec![2], vec![]]
    );
    node.acknowledge(2, 0);
    node.acknowledge(2, 2);
    assert_eq!(
        out(&node.gossip(4)),
        [0u64; 0],
        "the message of step 1 is older than the bound"
    );
    node.acknowledge(2, 1);
    assert_eq!(out(&node.gossip(5)), [2]);

    // Of three, hop 1 goes to node 2 again in step 4; node 3, which follows, gets it instead.
    let mut node = Bench::new(3, overlapped(1));
    node.machine.weight = 8.0;
    (2..4).for_each(|from| _ = node.frame(from, skipped(0, 9)));
    for (step, to) in [(0, 2), (1, 3), (2, 2), (3, 3)] {
        assert_eq!(out(&node.gossip(step)), [to]);
        node.acknowledge(3, step);
    }
    let effects = node.gossip(4);
    assert_eq!(
        (out(&effects), sends(&effects)),
        (vec![3], vec![(2, skipped(3, 4))])
    );
}

#[test]
fn models_are_kept_for_a_bounded_number_of_steps() {
    let mut node = Bench::new(16, skipping(1));
    node.machine.weight = 1e6;
    let sent = (0..40)
        .filter(|step| !out(&node.gossip(*step)).is_empty())
        .count();
    assert_eq!((sent, node.machine.escrow.steps()), (5, 5));
}

#[test]
fn alone_a_node_keeps_everything() {
    for gossip in [Gossip::synchronous(1), overlapped(1)] {
        let effects = Bench::new(1, gossip).gossip(0);
        assert_eq!((effects.len(), mix(&effects).unwrap().weight), (1, 1.0));
    }
}

#[test]
fn what_is_withheld_is_the_nodes_own_again() {
    let mut node = Bench::new(4, overlapped(1));
    assert_eq!(out(&node.gossip(0)), [2]);
    assert_eq!(
        sends(&node.feed(In::Withheld(Step(0)))),
        [(2, skipped(0, 0))]
    );
    assert_eq!(
        (node.machine.own_weight(), node.machine.escrowed()),
        (1.0, 0.0)
    );
    // Its receiver was lost before it was known that nothing is sent.
    node.frame(4, skipped(0, 0));
    assert_eq!(out(&node.gossip(1)), [3]);
    node.lose(3);
    node.feed(In::Withheld(Step(1)));
    assert_eq!(
        (node.machine.own_weight(), node.machine.escrowed()),
        (1.0, 0.0)
    );
    assert_eq!(
        sends(&node.regain(3)),
        [(3, skipped(0, 1))],
        "nothing was sent that could be reclaimed"
    );
}

#[test]
fn an_average_waits_for_answers_and_refuses_what_comes_later() {
    let mut node = Bench::new(4, overlapped(1));
    node.gossip(0);
    node.arrive(4, 0);
    node.offer(3, 0);
    assert_eq!(
        (node.settle(1), node.machine.next_deadline()),
        (vec![], Some(Instant(SETTLE)))
    );
    assert_eq!(
        sends(&node.arrive(2, 1)),
        [(2, mixed(1))],
        "until then it takes part"
    );
    let effects = node.acknowledge(2, 0);
    assert_eq!(sends(&effects), [(3, refused(0, 1))], "it was being read");
    assert!(effects.contains(&Effect::Drop(key(3, 0))));
    let average = mix(&effects).unwrap();
    assert_eq!(
        (average.purpose, average.weight, &average.arrivals),
        (Purpose::Average, 1.5, &vec![key(4, 0), key(2, 1)])
    );
    assert_eq!(
        sends(&node.feed(In::Arrived(key(3, 0)))),
        [],
        "it was dropped"
    );
    assert_eq!(sends(&node.arrive(3, 1)), [(3, refused(1, 1))]);
    assert_eq!(
        (node.machine.written_off(), node.machine.next_deadline()),
        (0.0, None)
    );
}

#[test]
fn an_average_writes_off_what_is_not_answered() {
    let mut node = Bench::new(2, overlapped(1));
    node.gossip(0);
    node.settle(1);
    let average = mix(&node.tick_at(SETTLE)).unwrap().clone();
    assert_eq!(
        (
            average.weight,
            average.returned.len(),
            node.machine.written_off()
        ),
        (0.5, 0, 0.5)
    );
    assert_eq!(node.acknowledge(2, 0), []);
    node.frame(2, refused(0, 0));
    assert_eq!(node.machine.weight(), 0.5);
}

#[test]
fn a_refused_message_is_in_the_average_of_its_sender() {
    let mut node = Bench::new(2, overlapped(1));
    node.gossip(0);
    node.settle(1);
    let average = mix(&node.frame(2, refused(0, 1))).unwrap().clone();
    assert_eq!(
        (average.weight, average.returned),
        (1.0, vec![(NodeId(2), Step(0))])
    );
}

#[test]
fn answers_of_strangers_and_other_histories_release_nothing() {
    use crate::ident::{Epoch, Lineage};
    let mut node = Bench::new(2, overlapped(1));
    node.gossip(0);
    let good = header(2, 1);
    let headers = [
        crate::wire::Header {
            lineage: Lineage(2),
            ..good
        },
        crate::wire::Header {
            epoch: Epoch(2),
            ..good
        },
        header(3, 1),
    ];
    for (header, message) in headers
        .into_iter()
        .flat_map(|header| [(header, mixed(0)), (header, refused(0, 0))])
    {
        node.feed(In::Frame {
            header,
            message: Box::new(message),
        });
        assert_eq!(
            (node.machine.escrowed(), node.machine.escrow.messages()),
            (0.5, 1)
        );
    }
    node.frame(2, Message::GossipMixed { step: Step(0) });
    assert_eq!(node.machine.escrowed(), 0.0);
}

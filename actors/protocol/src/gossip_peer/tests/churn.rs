//! Members that are lost, come back, join and leave.

use super::bench::{
    Bench, LEAVE, ROUND, ask, header, key, members, mix, mixed, out, overlapped, reclaimed,
    refused, sends, skipped, view_of,
};
use crate::algorithm::{Gossip, TopologyName};
use crate::gossip_peer::escrow::ASK_INTERVAL;
use crate::gossip_peer::{Effect, In};
use crate::ident::{Epoch, Lineage, NodeId, Round, Step};
use crate::machine::Machine;
use crate::time::Instant;
use crate::view::View;
use crate::wire::{Frame, Header};

fn view(view: View, round: u64) -> In {
    In::View {
        view,
        lineage: Lineage(1),
        round: Round(round),
        order: Vec::new(),
    }
}

#[test]
fn a_lost_peer_is_not_waited_for_and_what_it_did_not_answer_comes_back() {
    for gossip in [Gossip::synchronous(1), overlapped(1)] {
        let mut node = Bench::new(2, gossip);
        node.gossip(0);
        if gossip.staleness > 0 {
            node.gossip(1);
        }
        let effects = node.lose(2);
        assert_eq!(
            (mix(&effects).unwrap().weight, out(&effects)),
            (1.0, vec![]),
            "{gossip:?}"
        );
        assert_eq!(
            (node.machine.weight(), node.machine.escrow.messages()),
            (1.0, 0)
        );
        assert!(mix(&node.gossip(2)).is_some(), "nor later");
    }
}

#[test]
fn what_a_lost_peer_is_due_goes_to_the_next_member() {
    let mut node = Bench::new(5, overlapped(4));
    node.lose(3);
    assert_eq!(out(&node.gossip(0)), [2], "hop 1");
    let effects = node.gossip(1);
    assert_eq!(
        (out(&effects), sends(&effects)),
        (vec![4], vec![(3, skipped(0, 1))]),
        "hop 2"
    );
    node.lose(4);
    node.lose(5);
    assert_eq!(out(&node.gossip(4)), [2], "around");
    node.lose(2);
    assert_eq!(out(&node.gossip(5)), [0u64; 0]);
    // Of two nominal peers, none gets two messages.
    let mut node = Bench::new(4, Gossip::synchronous(2));
    node.lose(2);
    assert_eq!(out(&node.gossip(0)), [3, 4]);
}

#[test]
fn what_a_suspected_peer_is_due_goes_to_the_next_member_and_it_is_waited_for_all_the_same() {
    let mut node = Bench::new(3, overlapped(1));
    node.suspect(&[2]);
    let effects = node.gossip(0);
    assert_eq!(
        (out(&effects), sends(&effects)),
        (vec![3], vec![(2, skipped(0, 0))])
    );
    assert!(
        node.machine.escrow.messages() == 1 && mix(&node.gossip(1)).is_none(),
        "what the others send is mixed"
    );
    node.arrive(3, 0);
    node.suspect(&[]);
    node.arrive(2, 1);
    assert_eq!(out(&node.gossip(2)), [2], "it lives");
    // What it was sent before stays in escrow: it may have it.
    node.suspect(&[2]);
    assert!(node.machine.escrow.is_open((NodeId(2), Step(2))));
}

#[test]
fn who_was_away_is_told_what_was_skipped_and_what_was_reclaimed_until_it_answers() {
    let mut node = Bench::new(2, overlapped(3));
    node.gossip(0);
    node.gossip(1);
    node.acknowledge(2, 0);
    node.lose(2);
    node.gossip(2);
    assert_eq!(
        sends(&node.regain(2)),
        [(2, reclaimed(1)), (2, skipped(0, 2))]
    );
    assert_eq!(node.regain(2), [], "it is not away");
    assert_eq!(node.machine.next_deadline(), Some(Instant(ASK_INTERVAL.0)));
    assert_eq!(sends(&node.tick_at(ASK_INTERVAL.0)), [(2, reclaimed(1))]);
    node.acknowledge(2, 1);
    assert_eq!(
        sends(&node.tick_at(2 * ASK_INTERVAL.0)),
        [(2, reclaimed(1))],
        "it does not know yet"
    );
    node.frame(2, refused(1, 1));
    assert_eq!(
        (
            node.tick_at(3 * ASK_INTERVAL.0),
            node.machine.next_deadline()
        ),
        (vec![], None)
    );
}

#[test]
fn who_was_away_for_a_moment_stalls_nobody() {
    let mut node = Bench::new(2, overlapped(1));
    node.gossip(0);
    node.acknowledge(2, 0);
    assert_eq!(node.gossip(1), []);
    // Node 2 took this node for dead while it waited.
    assert!(mix(&node.frame(2, skipped(0, 5))).is_some());
    // It took node 2 for dead as well, and waits again as soon as that is over.
    node.lose(2);
    node.gossip(2);
    node.regain(2);
    assert!(mix(&node.gossip(6)).is_some());
    node.acknowledge(2, 6);
    assert_eq!((node.gossip(7), node.waits_for()), (vec![], vec![(6, 2)]));
}

#[test]
fn who_was_taken_for_dead_gives_up_what_was_reclaimed() {
    let mut node = Bench::new(4, overlapped(2));
    (2..5).for_each(|from| _ = node.frame(from, skipped(0, 9)));
    node.arrive(3, 0);
    node.arrive(4, 0);
    assert_eq!(node.machine.weight(), 2.0);
    assert_eq!(sends(&node.frame(4, reclaimed(0))), [(4, refused(0, 0))]);
    assert_eq!(node.machine.weight(), 1.5);
    assert_eq!(
        sends(&node.frame(4, reclaimed(0))),
        [(4, refused(0, 0))],
        "told again, it owes nothing more"
    );
    let effects = node.gossip(0);
    let first = mix(&effects).unwrap();
    assert_eq!(
        (first.own, first.weight),
        (0.5, 1.5),
        "the same weight of its own, whatever was in the message"
    );
    assert_eq!(node.machine.weight(), 1.5);
}

#[test]
fn nobody_gives_up_more_than_half_of_what_it_has_at_a_time() {
    let mut node = Bench::new(2, overlapped(4));
    (0..4).for_each(|step| _ = node.arrive(2, step));
    node.gossip(0);
    (0..4).for_each(|step| _ = node.frame(2, reclaimed(step)));
    assert_eq!(
        (node.machine.own_weight(), node.machine.weight()),
        (1.5, 1.0)
    );
    let own: Vec<f64> = (1..4)
        .map(|step| mix(&node.gossip(step)).unwrap().own)
        .collect();
    assert_eq!(own, [0.75, 0.25, 0.125], "and keeps what it needs to go on");
    assert_eq!(node.machine.weight(), 1.0);
}

#[test]
fn what_was_reclaimed_before_it_arrived_never_does() {
    let mut node = Bench::new(2, overlapped(2));
    node.offer(2, 0);
    let effects = node.frame(2, reclaimed(0));
    assert_eq!(
        (&effects[0], sends(&effects)),
        (&Effect::Drop(key(2, 0)), vec![(2, refused(0, 0))])
    );
    node.feed(In::Arrived(key(2, 0)));
    node.frame(2, reclaimed(1));
    assert_eq!(sends(&node.arrive(2, 1)), [(2, refused(1, 0))]);
    assert_eq!(node.machine.weight(), 1.0);
}

#[test]
fn what_was_reclaimed_in_another_round_is_not_owed_here() {
    let mut node = Bench::new(2, overlapped(2));
    let told = |round| In::Frame {
        header: header(2, round),
        message: Box::new(reclaimed(5)),
    };
    assert_eq!(
        node.feed(told(2)),
        [],
        "it is told again when this node is there"
    );
    node.feed(In::Offered {
        header: header(2, 2),
        step: Step(5),
        weight: 0.5,
    });
    node.gossip_in(5, Round(2));
    assert_eq!(sends(&node.feed(told(2))), [(2, refused(5, 6))]);
    assert_eq!(
        sends(&node.feed(In::Arrived((Round(2), Step(5), NodeId(2))))),
        []
    );
    assert_eq!(node.machine.own_weight() + node.machine.escrowed(), 1.0);
    assert_eq!(
        sends(&node.feed(told(1))),
        [(2, refused(5, 6))],
        "that round is over"
    );
}

#[test]
fn what_is_owed_when_a_round_closes_is_counted() {
    let mut node = Bench::new(2, overlapped(2));
    node.arrive(2, 0);
    node.settle(0);
    node.frame(2, reclaimed(0));
    node.gossip_in(4, Round(2));
    assert_eq!(
        (node.machine.written_off(), node.machine.own_weight()),
        (0.5, 0.5)
    );
}

#[test]
fn another_view_has_a_graph_of_its_own_and_its_weights_are_one() {
    let mut node = Bench::new(5, overlapped(1));
    node.gossip(0);
    let early = In::Offered {
        header: Header {
            epoch: Epoch(2),
            ..header(2, 2)
        },
        step: Step(3),
        weight: 0.5,
    };
    assert_eq!(node.feed(early), [], "node 2 is there already");
    let ids = [1, 2, 7].map(|id| (NodeId(id), 0));
    let effects = node.feed(view(view_of(Epoch(2), ids), 2));
    assert!(effects.contains(&Effect::Receive((Round(2), Step(3), NodeId(2)))));
    assert_eq!(
        (
            node.machine.own_weight(),
            node.machine.escrowed(),
            node.machine.written_off()
        ),
        (1.0, 0.0, 0.5)
    );
    let effects = node.gossip_in(3, Round(2));
    let Some(plan) = super::bench::plan(&effects) else {
        panic!()
    };
    assert_eq!(
        (out(&effects), plan.place.epoch, plan.place.round),
        (vec![7], Epoch(2), Round(2))
    );
}

#[test]
fn a_member_that_is_lost_stays_lost_in_the_next_view_but_not_its_next_start() {
    for (start, waits) in [(0, vec![]), (1, vec![(4, 2)])] {
        let mut node = Bench::new(3, Gossip::synchronous(2));
        node.lose(2);
        let ids = [(NodeId(1), 0), (NodeId(2), start)];
        node.feed(view(view_of(Epoch(2), ids), 2));
        node.gossip_in(4, Round(2));
        assert_eq!(node.waits_for(), waits);
    }
}

#[test]
fn what_was_skipped_in_another_history_is_waited_for_in_this_one() {
    for (lineage, waits) in [(1, vec![]), (2, vec![(4, 2)])] {
        let mut node = Bench::new(2, Gossip::synchronous(1));
        node.frame(2, skipped(0, 1000));
        let view = members(2, 2);
        node.feed(In::View {
            view,
            lineage: Lineage(lineage),
            round: Round(2),
            order: Vec::new(),
        });
        node.gossip_in(4, Round(2));
        assert_eq!(node.waits_for(), waits, "lineage {lineage}");
    }
}

#[test]
fn another_history_may_be_at_an_earlier_step() {
    for (lineage, step) in [(1, Step(8)), (2, Step(0))] {
        let mut node = Bench::new(2, overlapped(4));
        node.gossip(7);
        node.feed(In::View {
            view: members(2, 2),
            lineage: Lineage(lineage),
            round: Round(2),
            order: Vec::new(),
        });
        assert_eq!(node.machine.step(), step, "lineage {lineage}");
    }
}

#[test]
fn a_node_leaves_when_its_last_message_is_answered_or_its_receiver_gone_or_the_wait_over() {
    let under_way = || {
        let mut node = Bench::new(2, overlapped(1));
        node.gossip(0);
        assert_eq!(
            node.feed(In::Leave(ROUND)),
            [],
            "node 2 may still need the message"
        );
        node
    };
    assert_eq!(
        under_way().acknowledge(2, 0),
        [Effect::Forget((NodeId(2), Step(0))), Effect::Left]
    );
    assert_eq!(under_way().lose(2), [Effect::Left]);
    let mut late = under_way();
    assert_eq!(late.machine.next_deadline(), Some(Instant(LEAVE)));
    assert_eq!(late.tick_at(LEAVE), [Effect::Left]);
    assert_eq!(
        sends(&under_way().arrive(2, 0)),
        [(2, refused(0, 1))],
        "it takes nothing with it"
    );
    let mut node = Bench::new(2, overlapped(1));
    node.gossip(0);
    assert_eq!(
        node.feed(In::Leave(Round(2))),
        [Effect::Left],
        "a closed round made it void"
    );
}

#[test]
fn what_is_held_is_answered_for_while_a_node_leaves() {
    let mut node = Bench::new(2, overlapped(1));
    node.arrive(2, 0);
    node.gossip(0);
    node.feed(In::Leave(ROUND));
    assert_eq!(sends(&node.frame(2, ask(0))), [(2, mixed(0))]);
}

#[test]
fn a_frame_says_where_its_sender_stands() {
    let mut node = Bench::new(2, overlapped(1));
    node.feed(view(
        View::new(Epoch(3), members(2, 3).members().to_vec()).unwrap(),
        4,
    ));
    let effects = node.gossip_in(9, Round(4));
    node.lose(2);
    let back = node.regain(2);
    let places: Vec<_> = back
        .iter()
        .filter_map(|effect| {
            if let Effect::Send {
                frame: Frame::V1 { header, .. },
                ..
            } = effect
            {
                Some((header.epoch, header.round))
            } else {
                None
            }
        })
        .collect();
    assert_eq!(
        (out(&effects), places),
        (vec![2], vec![(Epoch(3), Round(4)); 2])
    );
}

#[test]
fn what_was_offered_early_is_refused_if_the_view_that_comes_is_another() {
    let offer = |header: Header| In::Offered {
        header,
        step: Step(4),
        weight: 0.5,
    };
    for (lineage, epoch, sender, fits) in [(1, 2, 2, true), (9, 2, 2, false), (1, 2, 7, false)] {
        let mut node = Bench::new(2, overlapped(1));
        let early = Header {
            lineage: Lineage(lineage),
            epoch: Epoch(epoch),
            ..header(sender, 2)
        };
        assert_eq!(node.feed(offer(early)), [], "it may be of a view to come");
        let effects = node.feed(view(members(3, 2), 2));
        let round = Round(2);
        let step = Step(4);
        let reads = effects.contains(&Effect::Receive((round, step, NodeId(sender))));
        assert_eq!(
            (reads, sends(&effects)),
            (
                fits,
                if fits {
                    vec![]
                } else {
                    vec![(sender, refused(4, 0))]
                }
            )
        );
    }
}

#[test]
fn how_many_messages_are_read_ahead_follows_the_view() {
    let complete = Gossip {
        topology: TopologyName::Complete,
        ..overlapped(1)
    };
    let mut node = Bench::new(2, complete);
    let before = node.machine.inbox.reads_max;
    node.feed(view(members(9, 2), 2));
    assert_eq!((before, node.machine.inbox.reads_max), (6, 34));
}

#[test]
fn who_stays_in_the_view_is_as_late_as_before_and_who_comes_is_not_late_at_all() {
    let mut node = Bench::new(2, overlapped(1));
    for step in 1_000..1_003 {
        node.gossip(step);
        node.arrive(2, step);
        node.acknowledge(2, step);
    }
    node.feed(view(members(3, 2), 2));
    node.gossip_in(1_010, Round(2));
    node.gossip_in(1_012, Round(2));
    let late: Vec<_> = node
        .machine
        .stragglers()
        .iter()
        .map(|straggler| (straggler.node.0, straggler.steps))
        .collect();
    assert_eq!(late, [(3, 3)], "it was expected at 1010");
}

#[test]
fn no_message_weighs_nothing_or_more_than_all_members() {
    for weight in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e300] {
        let mut node = Bench::new(2, overlapped(1));
        let effects = node.feed(In::Offered {
            header: header(2, 1),
            step: Step(0),
            weight,
        });
        assert_eq!(
            (node.machine.inbox.has(key(2, 0)), sends(&effects).len()),
            (false, 1),
            "{weight}"
        );
    }
}

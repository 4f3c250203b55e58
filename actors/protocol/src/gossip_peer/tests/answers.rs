//! Answers to messages: some are refused, some come twice, some are asked for. The memory of them
//! is bounded.

use super::bench::{
    Bench, arrivals, ask, header, key, mix, mixed, overlapped, reclaimed, refused, sends, skipped,
};
use crate::algorithm::Gossip;
use crate::gossip_peer::escrow::ASK_INTERVAL;
use crate::gossip_peer::inbox::VERDICTS_MAX;
use crate::gossip_peer::{Effect, In, PARKED_MAX};
use crate::ident::{Epoch, Lineage, NodeId, Round, Step};
use crate::machine::Machine;
use crate::time::Instant;
use crate::wire::{Frame, Header};

#[test]
fn what_belongs_to_another_history_is_refused_where_it_belongs() {
    let good = header(2, 1);
    let bad = [
        (header(2, 0), 0.5),
        (header(3, 1), 0.5),
        (
            Header {
                lineage: Lineage(2),
                ..good
            },
            0.5,
        ),
        (
            Header {
                epoch: Epoch(0),
                ..good
            },
            0.5,
        ),
        (good, 0.0),
        (good, -0.5),
        (good, f64::NAN),
        (good, f64::INFINITY),
    ];
    for (header, weight) in bad {
        let mut node = Bench::new(2, overlapped(1));
        let effects = node.feed(In::Offered {
            header,
            step: Step(0),
            weight,
        });
        assert_eq!(
            effects[0],
            Effect::Drop((header.round, Step(0), header.sender))
        );
        let Effect::Send {
            to,
            frame: Frame::V1 { header: answer, .. },
        } = &effects[1]
        else {
            panic!("{effects:?}")
        };
        let place = |header: &Header| (header.lineage, header.epoch, header.round);
        assert_eq!((*to, place(answer)), (header.sender, place(&header)));
        assert_eq!(sends(&effects), [(header.sender.0, refused(0, 0))]);
    }
}

#[test]
fn another_history_says_nothing_of_a_message_that_is_held() {
    let mut node = Bench::new(2, overlapped(1));
    node.arrive(2, 0);
    for header in [
        Header {
            lineage: Lineage(2),
            ..header(2, 1)
        },
        header(2, 1),
    ] {
        let weight = if header.lineage == Lineage(2) {
            0.5
        } else {
            f64::NAN
        };
        node.feed(In::Offered {
            header,
            step: Step(0),
            weight,
        });
    }
    assert_eq!(sends(&node.frame(2, ask(0))), [(2, mixed(0))]);
}

#[test]
fn a_message_that_comes_twice_counts_once() {
    let mut node = Bench::new(2, overlapped(1));
    assert_eq!(node.offer(2, 0), [Effect::Receive(key(2, 0))]);
    assert_eq!(node.offer(2, 0), [], "it is being read");
    node.feed(In::Arrived(key(2, 0)));
    let again = node.offer(2, 0);
    assert_eq!(
        (&again[0], sends(&again)),
        (&Effect::Drop(key(2, 0)), vec![(2, mixed(0))])
    );
    assert_eq!(arrivals(&node.gossip(0)), [key(2, 0)]);
    assert_eq!(sends(&node.offer(2, 0)), [(2, mixed(0))]);
    assert_eq!(
        mix(&node.gossip(1)).unwrap().weight,
        0.75,
        "half of 1.5 was sent"
    );
}

#[test]
fn a_message_that_breaks_off_is_refused_for_good() {
    let mut node = Bench::new(2, overlapped(1));
    node.gossip(0);
    node.acknowledge(2, 0);
    node.gossip(1);
    node.offer(2, 0);
    let effects = node.feed(In::Broken(key(2, 0)));
    assert_eq!(sends(&effects)[0], (2, refused(0, 1)));
    assert!(mix(&effects).is_some(), "nobody waits for it any more");
    assert_eq!(sends(&node.offer(2, 0)), [(2, refused(0, 2))]);
    assert_eq!(node.feed(In::Broken(key(2, 0))), []);
}

#[test]
fn what_is_not_answered_is_asked_for_until_it_is() {
    let mut node = Bench::new(2, overlapped(1));
    node.gossip(0);
    assert_eq!(node.machine.next_deadline(), None, "it is being sent");
    node.feed(In::Sent((NodeId(2), Step(0))));
    assert_eq!(node.machine.next_deadline(), Some(Instant(ASK_INTERVAL.0)));
    for times in 1..4 {
        assert_eq!(sends(&node.tick_at(times * ASK_INTERVAL.0)), [(2, ask(0))]);
    }
    node.frame(2, refused(0, 0));
    assert_eq!(node.machine.next_deadline(), None);
}

#[test]
fn a_send_that_failed_is_asked_for_at_once() {
    let mut node = Bench::new(2, overlapped(1));
    node.gossip(0);
    assert_eq!(
        sends(&node.feed(In::SendFailed((NodeId(2), Step(0))))),
        [(2, ask(0))]
    );
    assert_eq!(
        node.machine.escrowed(),
        0.5,
        "it may have arrived all the same"
    );
}

#[test]
fn who_is_asked_says_what_became_of_it() {
    let mut node = Bench::new(2, overlapped(1));
    node.arrive(2, 0);
    assert_eq!(sends(&node.frame(2, ask(0))), [(2, mixed(0))], "held");
    node.gossip(0);
    assert_eq!(sends(&node.frame(2, ask(0))), [(2, mixed(0))], "mixed");
    node.offer(2, 1);
    assert_eq!(node.frame(2, ask(1)), [], "it is being read");
    assert_eq!(
        sends(&node.frame(2, ask(2))),
        [(2, refused(2, 1))],
        "nothing of it is here"
    );
    assert_eq!(
        sends(&node.arrive(2, 2)),
        [(2, refused(2, 1))],
        "so nothing ever will be"
    );
    let ask_in = |round| In::Frame {
        header: header(2, round),
        message: Box::new(ask(3)),
    };
    assert_eq!(node.feed(ask_in(2)), [], "this node gets there yet");
    assert_eq!(
        sends(&node.feed(ask_in(0))),
        [(2, refused(3, 1))],
        "that round is over"
    );
}

#[test]
fn messages_of_later_rounds_wait_for_them() {
    let mut node = Bench::new(2, overlapped(1));
    for (round, step) in [(3, 8), (2, 4), (2, 5)] {
        assert_eq!(
            node.feed(In::Offered {
                header: header(2, round),
                step: Step(step),
                weight: 0.5
            }),
            []
        );
    }
    node.arrive(2, 0);
    let effects = node.gossip_in(4, Round(2));
    assert_eq!(effects[0], Effect::Drop(key(2, 0)), "it was void");
    let read = |round, step| Effect::Receive((Round(round), Step(step), NodeId(2)));
    assert!(
        effects.contains(&read(2, 4))
            && effects.contains(&read(2, 5))
            && !effects.contains(&read(3, 8))
    );
    let effects = node.gossip_in(8, Round(3));
    let dropped = [4, 5].map(|step| Effect::Drop((Round(2), Step(step), NodeId(2))));
    assert!(
        dropped.iter().all(|drop| effects.contains(drop)) && effects.contains(&read(3, 8)),
        "{effects:?}"
    );
}

#[test]
fn who_knows_of_a_round_answers_in_it_while_it_still_computes() {
    let mut node = Bench::new(2, overlapped(1));
    node.feed(In::Offered {
        header: header(2, 2),
        step: Step(4),
        weight: 0.5,
    });
    let key = (Round(2), Step(4), NodeId(2));
    assert_eq!(node.feed(In::Round(Round(2))), [Effect::Receive(key)]);
    assert_eq!(sends(&node.feed(In::Arrived(key))), [(2, mixed(4))]);
    assert_eq!(arrivals(&node.gossip_in(4, Round(2))), [key]);
}

#[test]
fn no_more_is_read_than_there_is_room_for_but_what_a_step_waits_for() {
    let mut node = Bench::new(2, overlapped(1));
    let room = 6;
    let read = (2..12)
        .filter(|step| !node.offer(2, *step).is_empty())
        .count();
    assert_eq!(read, room);
    assert_eq!(sends(&node.feed(In::Arrived(key(2, 2)))), [(2, mixed(2))]);
    assert!(
        node.gossip(0).contains(&Effect::Receive(key(2, 8))),
        "there is room again"
    );
    assert!(node.gossip(1).is_empty() && node.waits_for() == [(0, 2)]);
    assert!(node.offer(2, 0).contains(&Effect::Receive(key(2, 0))));
}

#[test]
fn so_many_streams_wait_and_no_more() {
    let mut node = Bench::new(2, overlapped(1));
    let offer = |step| In::Offered {
        header: header(2, 2),
        step: Step(step),
        weight: 0.5,
    };
    (0..PARKED_MAX as u64).for_each(|step| assert_eq!(node.feed(offer(step)), []));
    assert_eq!(sends(&node.feed(offer(5_000))), [(2, refused(5_000, 0))]);
    assert_eq!(node.feed(offer(7)), [], "it waits already");
}

#[test]
fn a_sender_with_as_many_messages_as_may_be_unanswered_is_remembered_for_each() {
    let mut node = Bench::new(
        2,
        Gossip {
            staleness: 64,
            ..Gossip::default()
        },
    );
    let steps = 0..VERDICTS_MAX as u64 - 7;
    steps.clone().for_each(|step| _ = node.arrive(2, step));
    assert!(
        steps
            .clone()
            .all(|step| sends(&node.frame(2, ask(step))) == [(2, mixed(step))])
    );
}

#[test]
fn skips_are_remembered_in_whatever_order_they_come() {
    let steps = 0..200u64;
    let shuffled = steps.clone().map(|index| index * 77 % 200);
    let mut node = Bench::new(2, overlapped(1));
    shuffled.for_each(|step| _ = node.frame(2, skipped(step, step)));
    steps.for_each(|step| assert!(mix(&node.gossip(step)).is_some(), "{step}"));
    // With gaps, the earliest are.
    let mut node = Bench::new(2, overlapped(1));
    (0..100).for_each(|index| _ = node.frame(2, skipped(2 * index, 2 * index)));
    for step in 0..100 {
        assert!(mix(&node.gossip(step)).is_some(), "{step}");
        node.arrive(2, step | 1);
    }
}

#[test]
fn a_node_that_hears_of_a_skip_late_does_not_answer_for_a_message_that_came() {
    let mut node = Bench::new(2, overlapped(1));
    node.arrive(2, 0);
    node.frame(2, skipped(1, 9));
    (0..9).for_each(|step| assert!(mix(&node.gossip(step)).is_some()));
    // Its sender may wait for an answer to something else that it says of step 0: that it has taken
    // the mass back.
    assert_eq!(sends(&node.frame(2, skipped(0, 0))), []);
    assert_eq!(sends(&node.frame(2, skipped(0, 1))), [(2, refused(1, 9))]);
    assert_eq!(sends(&node.frame(2, reclaimed(0))), [(2, refused(0, 9))]);
}

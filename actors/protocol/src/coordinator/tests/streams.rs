//! Streams that break, and who still contributes.

use super::*;
use crate::coordinator::{Attempt, GivesUp};

#[test]
fn one_death_breaks_the_streams_of_many_members_and_costs_one_attempt() {
    let all: Vec<u64> = (1..=14).collect();
    let alive = &all[1..12];
    let mut leader = Bench::leader(&all);
    let first = leader.place();
    // Node 14 dies while node 13 still computes: its streams of the first attempt break everywhere,
    // then it is found dead.
    leader.tell(In::StreamBroken(Attempt::at(&first), NodeId(14)));
    leader.lose(&[14], false);
    leader.hear_all(alive, &Message::Contribute(contribution()));
    // What broke was of the first attempt; the second one waits for node 13's contribution.
    let waits = leader.wait(600_000);
    assert_eq!((leader.place(), leader.attempted(&waits)), (first, None));
    for id in alive {
        let effects = leader.hear_at(*id, first, Message::Broken(NodeId(14)));
        assert!(!says!(effects, Message::Abandon(_)), "{effects:?}");
    }
    let begun = leader.hear(13, Message::Contribute(contribution()));
    assert_eq!(leader.attempted(&begun), Some((1..=13).collect()));
    let second = leader.place();
    assert_eq!(
        (second.term, second.attempt),
        (first.term, first.attempt + 1)
    );
    for id in alive {
        leader.hear_at(*id, first, Message::Broken(NodeId(14)));
    }
    assert_eq!(leader.place(), second);
}

#[test]
fn who_leaves_after_it_contributed_cuts_nobody_short() {
    let mut leader = Bench::leader(&[1, 2, 3, 4]);
    leader.lose(&[4], false);
    leader.leaves(3);
    let early = leader.hear(3, Message::Contribute(contribution()));
    assert_eq!(leader.attempted(&early), None, "node 2 is still expected");
    let complete = leader.hear(2, Message::Contribute(contribution()));
    assert_eq!(leader.attempted(&complete), Some(vec![1, 2, 3]));
}

/// Node 2 has averaged its own shards and waits for those of node 1, whose stream was finished and
/// then lost with its connection.
#[test]
fn what_was_lost_with_a_connection_is_asked_for_when_that_is_new_again() {
    let mut member = Bench::of(&[1, 2, 3], 2);
    for peer in [1, 3] {
        member.tell(In::PeerUp(NodeId(peer)));
    }
    let begun = member.contribute();
    let plan = opened(&begun);
    let outcome = founded(&member.view, 1);
    member.hear_attempt(1, &outcome, &[1, 2, 3]);
    member.tell(In::Reduced(plan.attempt, signed(plan.me)));
    let others = plan.other_owners();
    assert!(others.contains(&NodeId(3)), "node 3 owns a shard");
    for owner in others.iter().filter(|owner| **owner != NodeId(3)) {
        member.tell(In::ParametersHeld(plan.attempt, *owner, signed(*owner)));
    }
    assert!(
        !member.reports_broken(3, 600_000),
        "nothing is known to be wrong"
    );
    // A new connection of a node that has brought all it must is of no interest.
    member.tell(In::PeerUp(NodeId(1)));
    assert!(!member.reports_broken(3, 600_000));
    member.tell(In::PeerUp(NodeId(3)));
    assert!(!member.reports_broken(3, 400_000), "it may still come");
    assert!(member.reports_broken(3, 200_000));
    assert!(
        !member.reports_broken(3, 600_000),
        "a new connection costs one attempt"
    );
}

/// Node 2 takes node 1, which leads, for dead, and dies itself before its round is decided.
#[test]
fn a_member_that_was_left_out_leads_again_when_whoever_left_it_out_dies() {
    let mut member = Bench::leader(&[1, 2, 3, 4]);
    let taken_over = term(1, 2);
    let promised = member.hear_under(2, taken_over, Message::Prepare);
    assert!(
        says!(promised, Message::Promise { .. }),
        "it votes, whoever takes part: {promised:?}"
    );
    let acknowledged = member.hear_under(2, taken_over, Message::Open);
    assert!(says!(acknowledged, Message::Opened));
    let resumed = member.lose(&[2], false);
    assert!(
        says!(resumed, Message::Prepare),
        "it leads again: {resumed:?}"
    );
    assert!(member.term() > taken_over);
    let refused = member.hear_under(2, taken_over, Message::Open);
    assert!(says!(refused, Message::Overtaken), "{refused:?}");
    member.hear_promise(3, None, Some(contribution()));
    let begun = member.hear_promise(4, None, Some(contribution()));
    assert_eq!(member.attempted(&begun), Some(vec![1, 3, 4]));
}

#[test]
fn a_promise_is_told_again_when_its_leader_can_be_reached() {
    let mut member = Bench::of(&[1, 2, 3], 2);
    member.contribute();
    let promises = |effects: Vec<Effect>| {
        says!(
            effects,
            Message::Promise {
                contributed: Some(_),
                ..
            }
        )
    };
    assert!(
        !promises(member.tell(In::PeerUp(NodeId(1)))),
        "the first term needs no promises"
    );
    let term = member.term().next_of(NodeId(1));
    // It may be lost: the leader can be heard, but not answered yet.
    assert!(promises(member.hear_under(1, term, Message::Prepare)));
    assert!(!promises(member.tell(In::PeerUp(NodeId(3)))));
    assert!(promises(member.tell(In::PeerUp(NodeId(1)))));
}

#[test]
fn a_bootstrap_is_given_up_unless_it_is_decided() {
    let mut member = Bench::of(&[2, 3], 3);
    assert_eq!(
        member.tell(In::Resign(GivesUp::ForBootstrap)),
        [Effect::Resigned(true)]
    );
    assert_eq!(member.machine.view(), None);
    // What the bootstrap that it goes over to has sent it meanwhile was refused: it asks for that
    // again.
    let effects = member.tell(In::Formed {
        view: view(&[1, 3]),
        lineage: Lineage(78),
    });
    assert!(says!(effects, Message::Broken(NodeId(3))), "{effects:?}");

    let mut alone = Bench::of(&[2], 2);
    let begun = alone.contribute();
    let applied = alone.hold_all(&begun);
    let applies = |effect: &Effect| matches!(effect, Effect::Apply { .. });
    assert!(applied.iter().any(applies), "{applied:?}");
    assert_eq!(
        alone.machine.next_deadline(),
        None,
        "its waits end with a round"
    );
    assert_eq!(
        alone.tell(In::Resign(GivesUp::ForDecided)),
        [Effect::Resigned(false)]
    );
    assert!(alone.machine.view().is_some());
}

/// The others leave a member out and admit it again before it knows of either.
#[test]
fn a_member_takes_streams_of_later_rounds_from_members_of_its_history() {
    let (mut member, bootstrap) = Bench::ready(&[1, 2, 3], 2, |_| {});
    member.hear_decision(1, bootstrap);
    let speaking = view(&[1, 2, 3, 9]);
    let takes = |lineage, round, sender| {
        let place = Place {
            lineage,
            round: Round(round),
            ..member.place()
        };
        let speaker = identity(&speaking, sender);
        let Frame::V1 { header, .. } = speaker.frame(place, Message::Learn);
        member.machine.admits(&header)
    };
    for (lineage, round, sender, expected) in [
        (LINEAGE, 0, 1, false),
        (LINEAGE, 1, 1, true),
        (LINEAGE, 4, 1, true),
        (LINEAGE, 4, 9, false),
        (LINEAGE.parted(3), 2, 1, true),
        (LINEAGE.parted(3), 4, 1, false),
    ] {
        let takes = takes(lineage, round, sender);
        assert_eq!(takes, expected, "{lineage:?}, round {round} of {sender}");
    }
}

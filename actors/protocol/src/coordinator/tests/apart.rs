//! Members that live and cannot reach each other.

use super::streams::{Leader, attempted, contribution, founded, says};
use crate::coordinator::{
    AWAY_WAIT, Effect, In, REPORTS_TO_PART, STAND_IN_STEP, STREAM_BROKEN_WAIT,
};
use crate::ident::NodeId;
use crate::machine::Machine;
use crate::wire::{Frame, Message};

fn abandons(effects: &[Effect]) -> bool {
    says(effects, |message| matches!(message, Message::Abandon(_)))
}

/// Node 1 leads, and all have contributed.
fn all_contributed(ids: &[u64]) -> Leader {
    let mut leader = Leader::new(ids);
    for id in &ids[1..] {
        leader.tell(In::PeerUp(NodeId(*id)));
        leader.hear(*id, Message::Contribute(contribution()));
    }
    leader
}

#[test]
fn one_of_a_pair_that_cannot_reach_each_other_takes_no_part() {
    let mut leader = all_contributed(&[1, 2, 3, 4]);
    let term = leader.term();
    for attempt in 1..=REPORTS_TO_PART {
        let before = leader.machine.place();
        let effects = leader.hear(2, Message::Broken(NodeId(3)));
        let expected = if attempt < REPORTS_TO_PART {
            vec![1, 2, 3, 4]
        } else {
            vec![1, 2, 4]
        };
        assert_eq!(
            attempted(&leader, &effects),
            Some(expected),
            "attempt {attempt}"
        );
        assert_eq!(
            (leader.term(), leader.machine.place().attempt),
            (term, before.attempt + 1),
            "it needs no promises"
        );
        // The other end of the same break, of an attempt that is over.
        let late = leader.hear_at(3, before, Message::Broken(NodeId(2)));
        assert_eq!(
            leader.machine.place().attempt,
            before.attempt + 1,
            "one break costs one attempt: {late:?}"
        );
    }
}

#[test]
fn whoever_more_members_cannot_reach_takes_no_part() {
    let mut leader = all_contributed(&[1, 2, 3, 4, 5]);
    for reporter in [4, 5] {
        leader.hear(reporter, Message::Broken(NodeId(2)));
    }
    // The same pair as at first: one of nodes 2 and 4, and node 5 cannot reach node 2 either.
    leader.hear(4, Message::Broken(NodeId(2)));
    leader.now += STREAM_BROKEN_WAIT.0;
    let effects = leader.tell(In::Tick);
    assert_eq!(attempted(&leader, &effects), Some(vec![1, 3, 4, 5]));
}

#[test]
fn nobody_is_left_out_without_whom_the_others_are_no_quorum_and_attempts_follow_at_growing_intervals()
 {
    let mut leader = Leader::new(&[1, 2, 3]);
    leader.lose(3, false);
    leader.hear(2, Message::Contribute(contribution()));
    let mut waits = Vec::new();
    for attempt in 0..12 {
        let number = leader.machine.place().attempt;
        let begun = leader.now;
        let mut effects = leader.hear(2, Message::Broken(NodeId(1)));
        while leader.machine.place().attempt == number {
            leader.hear(2, Message::Broken(NodeId(1)));
            leader.now = leader.machine.next_deadline().unwrap().0;
            effects.extend(leader.tell(In::Tick));
        }
        assert!(!abandons(&effects), "attempt {attempt}: {effects:?}");
        assert_eq!(attempted(&leader, &effects), Some(vec![1, 2]));
        waits.push((leader.now - begun) / 1000);
    }
    assert_eq!(
        waits,
        [
            0, 0, 500, 1000, 2000, 4000, 8000, 16_000, 32_000, 32_000, 32_000, 32_000
        ]
    );
}

#[test]
fn a_leader_goes_on_without_a_member_that_it_cannot_send_to() {
    let mut leader = all_contributed(&[1, 2, 3]);
    let first = leader.machine.place();
    leader.tell(In::PeerDown(NodeId(3)));
    leader.now += AWAY_WAIT.0 - 1;
    leader.tell(In::Tick);
    assert_eq!(
        leader.machine.place(),
        first,
        "most connections are made anew at once"
    );
    leader.now += 1;
    let effects = leader.tell(In::Tick);
    assert_eq!(attempted(&leader, &effects), Some(vec![1, 2]));
    assert_eq!(leader.term(), first.term);
}

#[test]
fn a_leader_waits_for_a_member_without_which_there_is_no_quorum() {
    let mut leader = Leader::new(&[1, 2, 3, 4]);
    leader.hear(2, Message::Contribute(contribution()));
    leader.hear(3, Message::Contribute(contribution()));
    let first = leader.machine.place();
    leader.tell(In::PeerDown(NodeId(3)));
    leader.tell(In::PeerDown(NodeId(4)));
    leader.tell(In::PeerDown(NodeId(2)));
    leader.now += 10 * AWAY_WAIT.0;
    let effects = leader.tell(In::Tick);
    assert_eq!(leader.machine.place(), first);
    assert!(
        effects
            .iter()
            .any(|effect| matches!(effect, Effect::Waiting(Some(_)))),
        "{effects:?}"
    );
    // Of four founders three must vote.
    leader.tell(In::PeerUp(NodeId(3)));
    let effects = leader.tell(In::PeerUp(NodeId(2)));
    assert_eq!(attempted(&leader, &effects), Some(vec![1, 2, 3]));
}

#[test]
fn a_member_that_its_leader_cannot_reach_leads_after_a_while() {
    let mut member = Leader::of(&[1, 2, 3, 4, 5], 3);
    member.contribute();
    member.tell(In::PeerDown(NodeId(1)));
    let prepares =
        |effects: &[Effect]| says(effects, |message| matches!(message, Message::Prepare));
    // Two members are before it: 1, and 2, which may reach node 1.
    member.now += 2 * AWAY_WAIT.0 + 2 * STAND_IN_STEP.0 - 1;
    assert!(!prepares(&member.tell(In::Tick)));
    member.now += 1;
    assert!(prepares(&member.tell(In::Tick)));
    let effects: Vec<Effect> = [2, 4, 5]
        .into_iter()
        .flat_map(|id| member.hear_promise(id, true))
        .collect();
    assert!(says(&effects, |message| matches!(message, Message::Open)));
    assert_eq!(attempted(&member, &effects), Some(vec![2, 3, 4, 5]));
}

#[test]
fn a_member_does_not_depose_its_leader_where_the_others_are_no_quorum() {
    let mut member = Leader::of(&[1, 2], 2);
    member.contribute();
    member.tell(In::PeerDown(NodeId(1)));
    member.now += 20 * AWAY_WAIT.0;
    assert!(!says(&member.tell(In::Tick), |message| matches!(
        message,
        Message::Prepare
    )));
}

#[test]
fn streams_of_a_member_that_cannot_be_reached_are_reported_to_the_leader_until_it_parts_them() {
    let mut member = Leader::of(&[1, 2, 3], 2);
    let opened = member.contribute();
    let plan = opened
        .iter()
        .find_map(|effect| {
            if let Effect::Open(plan) = effect {
                Some(plan.clone())
            } else {
                None
            }
        })
        .unwrap();
    assert!(
        plan.other_owners().contains(&NodeId(3)),
        "node 3 owns a shard"
    );
    let outcome = founded(&member.view, NodeId(1));
    member.hear_attempt(1, &outcome, &[1, 2, 3]);
    let broken = |effects: &[Effect]| {
        says(effects, |message| {
            matches!(message, Message::Broken(NodeId(3)))
        })
    };
    member.tell(In::PeerDown(NodeId(3)));
    member.now += AWAY_WAIT.0;
    member.tell(In::Tick);
    member.now += STREAM_BROKEN_WAIT.0;
    assert!(broken(&member.tell(In::Tick)));
    assert!(!broken(&member.tell(In::Tick)), "not at every turn");
    member.now += STREAM_BROKEN_WAIT.0;
    assert!(broken(&member.tell(In::Tick)), "what was said may be lost");
    member.tell(In::PeerUp(NodeId(3)));
}

/// Nodes 1 and 2 both lead, cut off from each other; node 3 has followed node 2 last, which dies.
#[test]
fn whoever_leads_learns_of_the_term_that_was_promised_to_the_dead() {
    let mut member = Leader::of(&[1, 2, 3], 3);
    let taken_over = member.term().next_of(NodeId(2));
    member.hear_under(2, taken_over, Message::Prepare);
    assert_eq!(member.term(), taken_over);
    let effects = member.lose(2, false);
    let told = |effect: &Effect| {
        let Effect::Send {
            to,
            frame: Frame::V1 { header, message },
        } = effect
        else {
            return false;
        };
        *to == NodeId(1) && header.term == taken_over && **message == Message::Overtaken
    };
    assert!(effects.iter().any(told), "{effects:?}");
}

#[test]
fn a_member_that_only_others_hear_is_given_up_at_once_and_counts_again_when_it_is_heard() {
    for heard in [false, true] {
        let mut leader = Leader::new(&[1, 2, 3]);
        leader.hear(3, Message::Contribute(contribution()));
        leader.now += 10 * AWAY_WAIT.0;
        leader.tell(In::Unheard([NodeId(3)].into()));
        leader.tell(In::Tick);
        if heard {
            leader.tell(In::Unheard([].into()));
        }
        let effects = leader.hear(2, Message::Contribute(contribution()));
        let expected = if heard { vec![1, 2, 3] } else { vec![1, 2] };
        assert_eq!(attempted(&leader, &effects), Some(expected));
    }
}

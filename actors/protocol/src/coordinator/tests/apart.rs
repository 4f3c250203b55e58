//! Members that live and cannot reach each other.

use super::*;
use crate::coordinator::{
    AWAY_WAIT, OVER_WAIT, REPORTS_TO_PART, RoundError, STAND_IN_STEP, STREAM_BROKEN_WAIT,
};

#[test]
fn one_of_a_pair_that_cannot_reach_each_other_takes_no_part() {
    let mut leader = Bench::with_all_contributions(&[1, 2, 3, 4]);
    let term = leader.term();
    for attempt in 1..=REPORTS_TO_PART {
        let before = leader.place();
        let effects = leader.hear(2, Message::Broken(NodeId(3)));
        let expected = if attempt < REPORTS_TO_PART {
            vec![1, 2, 3, 4]
        } else {
            vec![1, 2, 4]
        };
        assert_eq!(
            leader.attempted(&effects),
            Some(expected),
            "attempt {attempt}"
        );
        assert_eq!(
            (leader.term(), leader.place().attempt),
            (term, before.attempt + 1),
            "it needs no promises"
        );
        // The other end of the same break, of an attempt that is over.
        let late = leader.hear_at(3, before, Message::Broken(NodeId(2)));
        assert_eq!(
            leader.place().attempt,
            before.attempt + 1,
            "one break costs one attempt: {late:?}"
        );
    }
}

#[test]
fn who_alone_says_that_its_link_is_broken_takes_no_part() {
    for (liar, other) in [(2, 4), (4, 2)] {
        let mut leader = Bench::with_all_contributions(&[1, 2, 3, 4, 5]);
        let mut effects = Vec::new();
        for _ in 0..REPORTS_TO_PART {
            effects = leader.hear(liar, Message::Broken(NodeId(other)));
        }
        let others = [1, 2, 3, 4, 5].into_iter().filter(|id| *id != liar);
        assert_eq!(leader.attempted(&effects), Some(others.collect()));
    }
}

#[test]
fn whoever_more_members_cannot_reach_takes_no_part() {
    let mut leader = Bench::with_all_contributions(&[1, 2, 3, 4, 5]);
    // The same pair twice: one of nodes 2 and 4, and node 5 cannot reach node 2 either.
    for reporter in [4, 5, 4] {
        leader.hear(reporter, Message::Broken(NodeId(2)));
    }
    let effects = leader.wait(STREAM_BROKEN_WAIT.0);
    assert_eq!(leader.attempted(&effects), Some(vec![1, 3, 4, 5]));
}

#[test]
fn nobody_is_left_out_whom_the_quorum_needs_and_attempts_follow_at_growing_intervals() {
    let mut leader = Bench::leader(&[1, 2, 3]);
    leader.lose(&[3], false);
    leader.hear(2, Message::Contribute(contribution()));
    let mut waits = Vec::new();
    for attempt in 0..12 {
        let number = leader.place().attempt;
        let begun = leader.now;
        let mut effects = leader.hear(2, Message::Broken(NodeId(1)));
        while leader.place().attempt == number {
            leader.hear(2, Message::Broken(NodeId(1)));
            let deadline = leader.machine.next_deadline().unwrap();
            effects.extend(leader.wait(deadline.0 - leader.now));
        }
        assert!(
            !says!(effects, Message::Abandon(_)),
            "attempt {attempt}: {effects:?}"
        );
        assert_eq!(leader.attempted(&effects), Some(vec![1, 2]));
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
    let mut leader = Bench::with_all_contributions(&[1, 2, 3]);
    let first = leader.place();
    leader.tell(In::PeerDown(NodeId(3)));
    leader.wait(AWAY_WAIT.0 - 1);
    assert_eq!(
        leader.place(),
        first,
        "most connections are made anew at once"
    );
    let effects = leader.wait(1);
    assert_eq!(leader.attempted(&effects), Some(vec![1, 2]));
    assert_eq!(leader.term(), first.term);
}

#[test]
fn a_leader_waits_for_a_member_without_which_there_is_no_quorum() {
    let mut leader = Bench::leader(&[1, 2, 3, 4]);
    leader.hear_all(&[2, 3], &Message::Contribute(contribution()));
    let first = leader.place();
    for node in [3, 4, 2] {
        leader.tell(In::PeerDown(NodeId(node)));
    }
    let effects = leader.wait(10 * AWAY_WAIT.0);
    assert_eq!(leader.place(), first);
    let waits = |effect: &Effect| matches!(effect, Effect::Waiting(Some(_)));
    assert!(effects.iter().any(waits), "{effects:?}");
    // Of four founders three must vote.
    leader.tell(In::PeerUp(NodeId(3)));
    let effects = leader.tell(In::PeerUp(NodeId(2)));
    assert_eq!(leader.attempted(&effects), Some(vec![1, 2, 3]));
}

#[test]
fn a_member_that_its_leader_cannot_reach_leads_after_a_while() {
    let mut member = Bench::of(&[1, 2, 3, 4, 5], 3);
    member.contribute();
    member.tell(In::PeerDown(NodeId(1)));
    // Two members are before it: 1, and 2, which may reach node 1.
    let early = member.wait(2 * AWAY_WAIT.0 + 2 * STAND_IN_STEP.0 - 1);
    assert!(!says!(early, Message::Prepare));
    assert!(says!(member.wait(1), Message::Prepare));
    let effects: Vec<Effect> = [2, 4, 5]
        .into_iter()
        .flat_map(|id| member.hear_promise(id, None, Some(contribution())))
        .collect();
    assert!(says!(effects, Message::Open));
    assert_eq!(member.attempted(&effects), Some(vec![2, 3, 4, 5]));
}

#[test]
fn a_member_does_not_depose_its_leader_where_the_others_are_no_quorum() {
    let mut member = Bench::of(&[1, 2], 2);
    member.contribute();
    member.tell(In::PeerDown(NodeId(1)));
    assert!(!says!(member.wait(20 * AWAY_WAIT.0), Message::Prepare));
}

#[test]
fn streams_of_a_member_that_cannot_be_reached_are_reported_to_the_leader_until_it_parts_them() {
    let mut member = Bench::of(&[1, 2, 3], 2);
    let begun = member.contribute();
    assert!(
        opened(&begun).other_owners().contains(&NodeId(3)),
        "node 3 owns a shard"
    );
    let outcome = founded(&member.view, 1);
    member.hear_attempt(1, &outcome, &[1, 2, 3]);
    member.tell(In::PeerDown(NodeId(3)));
    member.wait(AWAY_WAIT.0);
    assert!(member.reports_broken(3, STREAM_BROKEN_WAIT.0));
    assert!(!member.reports_broken(3, 0), "not at every turn");
    assert!(
        member.reports_broken(3, STREAM_BROKEN_WAIT.0),
        "what was said may be lost"
    );
}

/// Nodes 1 and 2 both lead, cut off from each other; node 3 has followed node 2 last, which dies.
#[test]
fn whoever_leads_learns_of_the_term_that_was_promised_to_the_dead() {
    let mut member = Bench::of(&[1, 2, 3], 3);
    let taken_over = member.term().next_of(NodeId(2));
    member.hear_under(2, taken_over, Message::Prepare);
    assert_eq!(member.term(), taken_over);
    let effects = member.lose(&[2], false);
    let told = |(to, header, message): (NodeId, &Header, &Message)| {
        to == NodeId(1) && header.term == taken_over && *message == Message::Overtaken
    };
    assert!(messages(&effects).any(told), "{effects:?}");
}

#[test]
fn a_member_that_only_others_hear_is_given_up_at_once_and_counts_again_when_it_is_heard() {
    // A leader that slept finds that its connections are gone, too, but not for how long.
    for (heard, connects) in [(false, false), (true, false), (true, true)] {
        let mut leader = Bench::leader(&[1, 2, 3]);
        leader.hear(3, Message::Contribute(contribution()));
        leader.now += 10 * AWAY_WAIT.0;
        leader.tell(In::Unheard([NodeId(3)].into()));
        leader.tell(In::Tick);
        if connects {
            leader.tell(In::PeerDown(NodeId(3)));
        }
        if heard {
            leader.tell(In::Unheard([].into()));
        }
        let effects = leader.hear(2, Message::Contribute(contribution()));
        let expected = if heard { vec![1, 2, 3] } else { vec![1, 2] };
        assert_eq!(leader.attempted(&effects), Some(expected));
    }
}

#[test]
fn a_member_whose_quorum_left_in_order_hears_that_the_training_is_over() {
    let view = Bench::of(&[1, 2, 3, 4], 4).view;
    let leaves = |id: u64, contributes| In::Leaving {
        node: NodeId(id),
        incarnation: identity(&view, id).incarnation,
        contributes,
    };
    let lost = |id: u64, ended| In::Lost {
        node: NodeId(id),
        incarnation: identity(&view, id).incarnation,
        ended,
    };
    let over = |effect: &Effect| matches!(effect, Effect::Fail(RoundError::Over { .. }));
    let ends = |last: [In; 2]| {
        let mut node = Bench::of(&[1, 2, 3, 4], 4);
        node.contribute();
        for id in [1, 2] {
            node.tell(leaves(id, false));
            node.tell(lost(id, true));
        }
        last.into_iter().for_each(|event| _ = node.tell(event));
        let early = node.wait(OVER_WAIT.0 - 1);
        assert!(!early.iter().any(over), "{early:?}");
        node.wait(1).iter().any(over)
    };
    assert!(ends([leaves(3, false), lost(3, true)]));
    assert!(
        ends([lost(3, true), In::Tick]),
        "it does not come back to those that left"
    );
    assert!(
        !ends([lost(3, false), In::Tick]),
        "it may live, with one half of the votes"
    );
    assert!(
        !ends([leaves(3, true), lost(3, false)]),
        "it hands over first"
    );
}

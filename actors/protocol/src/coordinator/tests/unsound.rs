//! Members that send what no correct node sends, and averages that overflow although nobody does.

use super::*;
use crate::coordinator::{Attempt, RoundError, VOTES_WAIT};
use crate::sound::Unsound;
use crate::wire::RefusalReason;

/// A node sent unsound values in the attempt in force.
fn unsound(bench: &mut Bench, node: u64) -> Vec<Effect> {
    let attempt = Attempt::at(&bench.place());
    bench.tell(In::Unsound(attempt, NodeId(node)))
}

#[test]
fn a_leader_goes_on_at_once_without_whoever_lied_to_it() {
    let mut leader = Bench::with_all_contributions(&[1, 2, 3, 4]);
    let begun = leader.place();
    let effects = unsound(&mut leader, 3);
    assert_eq!(leader.attempted(&effects), Some(vec![1, 2, 4]));
    assert_eq!(leader.term(), begun.term);
    // It can be reached, and says so; that changes nothing.
    leader.tell(In::PeerDown(NodeId(3)));
    leader.tell(In::PeerUp(NodeId(3)));
    let effects = leader.hear(2, Message::Broken(NodeId(4)));
    assert_eq!(leader.attempted(&effects), Some(vec![1, 2, 4]));
}

#[test]
fn only_values_that_no_correct_node_sends_are_an_accusation() {
    let (mut member, _) = Bench::ready(&[1, 2, 3, 4], 2, |_| {});
    let attempt = Attempt::at(&member.place());
    // Node 3 has another script; which of the two is wrong, the leader finds itself.
    let effects = member.tell(In::SpecsDiffer(attempt, NodeId(3), FIRST));
    assert!(!says!(effects, Message::Accuse(_)), "{effects:?}");
    let (mut member, _) = Bench::ready(&[1, 2, 3, 4], 2, |_| {});
    let effects = unsound(&mut member, 3);
    assert!(says!(effects, Message::Accuse(NodeId(3))), "{effects:?}");
    // A leader does not judge itself.
    let effects = unsound(&mut member, 1);
    assert!(!says!(effects, Message::Accuse(_)), "{effects:?}");
}

fn named(effects: &[Effect]) -> Vec<u64> {
    let named = |effect: &Effect| match effect {
        Effect::Unsound(node, _) => Some(node.0),
        _ => None,
    };
    effects.iter().filter_map(named).collect()
}

#[test]
fn a_member_that_two_others_accuse_is_refused() {
    let mut leader = Bench::with_all_contributions(&[1, 2, 3, 4, 5]);
    // One may be wrong.
    let effects = leader.hear(2, Message::Accuse(NodeId(3)));
    assert_eq!(leader.attempted(&effects), Some(vec![1, 2, 3, 4, 5]));
    assert_eq!(named(&effects), []);
    let effects = leader.hear(4, Message::Accuse(NodeId(3)));
    assert_eq!(leader.attempted(&effects), Some(vec![1, 2, 4, 5]));
    assert_eq!(named(&effects), [3]);
    let same = leader.view.member(NodeId(3)).unwrap().clone();
    leader.joiners(vec![same]);
    assert_eq!(leader.machine.joiners().next(), None);
}

#[test]
fn an_accuser_that_stays_alone_is_left_out_of_the_round_and_remembered() {
    let mut leader = Bench::with_all_contributions(&[1, 2, 3, 4, 5]);
    leader.hear(2, Message::Accuse(NodeId(3)));
    let effects = leader.hear(2, Message::Accuse(NodeId(3)));
    assert_eq!(leader.attempted(&effects), Some(vec![1, 3, 4, 5]));
    assert_eq!(named(&effects), []);
    let effects = leader.hear(4, Message::Accuse(NodeId(3)));
    assert_eq!(leader.attempted(&effects), Some(vec![1, 4, 5]));
    assert_eq!(named(&effects), [3]);
}

#[test]
fn who_accuses_itself_the_leader_or_a_stranger_changes_nothing() {
    let mut leader = Bench::with_all_contributions(&[1, 2, 3, 4]);
    for accused in [1, 2, 7] {
        for accuser in [2, 7] {
            let effects = leader.hear(accuser, Message::Accuse(NodeId(accused)));
            assert_eq!(leader.attempted(&effects), None);
            assert_eq!(named(&effects), []);
        }
    }
}

#[test]
fn who_accuses_everybody_is_left_out_itself() {
    let mut leader = Bench::with_all_contributions(&[1, 2, 3, 4]);
    let effects = leader.hear(2, Message::Accuse(NodeId(3)));
    assert_eq!(leader.attempted(&effects), Some(vec![1, 2, 3, 4]));
    let effects = leader.hear(2, Message::Accuse(NodeId(4)));
    assert_eq!(leader.attempted(&effects), Some(vec![1, 3, 4]));
    assert_eq!(named(&effects), []);
}

#[test]
fn two_members_can_have_one_other_refused_and_no_more() {
    let mut leader = Bench::with_all_contributions(&[1, 2, 3, 4, 5, 6, 7]);
    let mut refused = Vec::new();
    for accused in [3, 5, 6] {
        for accuser in [2, 4] {
            let effects = leader.hear(accuser, Message::Accuse(NodeId(accused)));
            refused.extend(named(&effects));
        }
    }
    assert_eq!(refused, [3]);
}

#[test]
fn nobody_is_refused_without_whom_there_is_no_quorum() {
    let mut leader = Bench::with_all_contributions(&[1, 2, 3, 4]);
    leader.lose(&[4], true);
    for accuser in [2, 3] {
        for accused in [2, 3] {
            let effects = leader.hear(accuser, Message::Accuse(NodeId(accused)));
            assert_eq!(named(&effects), []);
        }
    }
}

#[test]
fn an_accusation_of_an_attempt_that_is_over_ends_no_other_one() {
    let mut leader = Bench::with_all_contributions(&[1, 2, 3, 4, 5]);
    let before = leader.place();
    leader.hear(2, Message::Accuse(NodeId(3)));
    let under_way = leader.place();
    // The same node sent it two streams.
    leader.hear_at(2, before, Message::Accuse(NodeId(3)));
    assert_eq!(leader.place(), under_way);
    // It still confirms another one.
    let effects = leader.hear_at(4, before, Message::Accuse(NodeId(3)));
    assert_eq!(named(&effects), [3]);
}

#[test]
fn whoever_lied_is_admitted_again_only_as_another_process() {
    let mut leader = Bench::with_all_contributions(&[1, 2, 3, 4]);
    leader.tell(In::Distrust(NodeId(3)));
    let same = leader.view.member(NodeId(3)).unwrap().clone();
    let restarted = again(&leader.view, 3);
    leader.joiners(vec![same]);
    assert_eq!(leader.machine.joiners().next(), None);
    leader.joiners(vec![restarted]);
    assert!(leader.machine.joiners().eq([NodeId(3)]));
}

#[test]
fn another_member_stands_in_for_a_leader_that_lied() {
    let mut member = Bench::of(&[1, 2, 3], 2);
    for peer in [1, 3] {
        member.tell(In::PeerUp(NodeId(peer)));
    }
    member.contribute();
    let effects = member.tell(In::Distrust(NodeId(1)));
    assert!(says!(effects, Message::Prepare), "{effects:?}");
}

#[test]
fn a_liar_without_which_there_is_no_quorum_stays_and_its_values_are_refused_again() {
    let mut leader = Bench::with_all_contributions(&[1, 2]);
    for time in 0..3 {
        let mut effects = unsound(&mut leader, 2);
        let deadline = leader.machine.next_deadline().unwrap();
        effects.extend(leader.wait(deadline.0 - leader.now));
        let waits = |effect: &Effect| matches!(effect, Effect::Waiting(Some(_)));
        assert_eq!(effects.iter().any(waits), time == 0, "{effects:?}");
        assert_eq!(leader.attempted(&effects), None);
    }
    assert_eq!(leader.machine.last_outcome(), None);
    assert!(leader.machine.view().unwrap().ids().eq(ids(&[1, 2])));
}

#[test]
fn an_overflow_ends_the_run_everywhere_and_excludes_nobody() {
    let mut owner = Bench::of(&[1, 2, 3], 2);
    owner.contribute();
    let attempt = Attempt::at(&owner.place());
    let other = Attempt {
        number: attempt.number + 1,
        ..attempt
    };
    assert_eq!(owner.tell(In::Overflowed(other, 17)), []);
    let effects = owner.tell(In::Overflowed(attempt, 17));
    let reason = Message::Abandon(RefusalReason::Overflowed {
        node: NodeId(2),
        element: 17,
    });
    for member in [1, 3] {
        let told = |(to, _, message): (NodeId, &Header, &Message)| {
            to == NodeId(member) && *message == reason
        };
        assert!(messages(&effects).any(told), "{member}: {effects:?}");
    }
    let failed = Effect::Fail(RoundError::Overflowed {
        round: Round::BOOTSTRAP,
        node: NodeId(2),
        element: 17,
    });
    assert!(effects.contains(&failed), "{effects:?}");
}

fn fails(effects: &[Effect]) -> bool {
    effects
        .iter()
        .any(|effect| matches!(effect, Effect::Fail(_)))
}

fn names(effects: &[Effect], node: u64, what: Unsound) -> bool {
    effects.contains(&Effect::Unsound(NodeId(node), what))
}

#[test]
fn a_member_that_abandons_a_round_is_left_out_and_the_others_go_on() {
    let reasons = [
        RefusalReason::MomentumLost { shards: 1 },
        RefusalReason::SpecsDiffer {
            one: NodeId(2),
            one_spec: String::new(),
            other: NodeId(4),
            other_spec: String::new(),
        },
    ];
    for reason in reasons {
        let mut leader = Bench::with_all_contributions(&[1, 2, 3, 4]);
        let effects = leader.hear(3, Message::Abandon(reason));
        assert!(!fails(&effects), "{effects:?}");
        assert!(names(&effects, 3, Unsound::Abandoned), "{effects:?}");
        assert_eq!(leader.attempted(&effects), Some(vec![1, 2, 4]));
    }
}

#[test]
fn a_run_ends_when_those_that_have_not_abandoned_it_are_not_most() {
    for (ids, enough) in [(&[1, 2][..], 1), (&[1, 2, 3], 2), (&[1, 2, 3, 4], 2)] {
        let mut member = Bench::of(ids, 1);
        member.contribute();
        for (index, from) in ids[1..=enough].iter().enumerate() {
            let reason = RefusalReason::MomentumLost { shards: 2 };
            let effects = member.hear(*from, Message::Abandon(reason));
            let last = index + 1 == enough;
            assert_eq!(fails(&effects), last, "{ids:?}, {from}: {effects:?}");
        }
    }
}

#[test]
fn a_run_ends_when_its_leader_abandons_it_and_another_member_is_dead() {
    for abandoned_first in [false, true] {
        let mut member = Bench::of(&[1, 2, 3], 2);
        member.contribute();
        let reason = RefusalReason::MomentumLost { shards: 1 };
        let mut effects = Vec::new();
        if !abandoned_first {
            member.lose(&[3], true);
        }
        effects.extend(member.hear(1, Message::Abandon(reason)));
        if abandoned_first {
            assert!(!fails(&effects), "{effects:?}");
            effects.extend(member.lose(&[3], true));
        }
        assert!(fails(&effects), "{effects:?}");
    }
}

#[test]
fn a_member_that_expects_another_round_is_left_out_by_most() {
    let mut leader = Bench::leader(&[1, 2, 3]);
    leader.hear(3, Message::Contribute(contribution()));
    let effects = leader.hear(2, Message::Contribute(contribution_to(FIRST)));
    assert!(
        names(&effects, 2, Unsound::OtherRound(FIRST)),
        "{effects:?}"
    );
    assert!(!fails(&effects), "{effects:?}");
    assert!(!says!(effects, Message::Abandon(_)), "{effects:?}");
    assert_eq!(leader.attempted(&effects), Some(vec![1, 3]));
    // It sees the same in the others' streams, and gets the error.
    let mut odd = Bench::of(&[1, 2, 3], 2);
    odd.contribute_to(FIRST);
    let attempt = Attempt::at(&odd.place());
    let first = odd.tell(In::SpecsDiffer(attempt, NodeId(3), SPEC));
    let second = odd.tell(In::SpecsDiffer(attempt, NodeId(1), SPEC));
    assert!(!fails(&first) && fails(&second), "{second:?}");
}

/// Node 2 hears the decision before it sees what the others expect.
#[test]
fn a_member_that_expects_another_round_gets_the_error_with_the_decision_too() {
    let (other, entry) = Bench::ready(&[1, 2, 3], 2, |_| {});
    let without = Outcome {
        view: next_view(&other.view, view(&[1, 3]).members()),
        contributors: ids(&[1, 3]),
        ..entry
    };
    let by_one = Outcome {
        contributors: ids(&[3]),
        ..without.clone()
    };
    let by_nobody = Outcome {
        contributors: Vec::new(),
        ..without.clone()
    };
    for (spec, decided, is_refused) in [
        (FIRST, &without, true),
        (without.spec, &without, false),
        (FIRST, &by_one, false),
        (FIRST, &by_nobody, false),
    ] {
        let mut odd = Bench::of(&[1, 2, 3], 2);
        odd.contribute_to(spec);
        let mut told = odd.hear_decision(1, decided.clone());
        told.extend(odd.wait(VOTES_WAIT.0));
        assert_eq!(fails(&told), is_refused, "{told:?}");
        assert_eq!(told.contains(&Effect::MustRejoin), !is_refused, "{told:?}");
    }
}

#[test]
fn two_members_that_expect_different_rounds_end_the_run() {
    let mut leader = Bench::leader(&[1, 2]);
    let effects = leader.hear(2, Message::Contribute(contribution_to(FIRST)));
    assert!(says!(effects, to 2, Message::Abandon(_)), "{effects:?}");
    assert!(fails(&effects), "{effects:?}");
}

#[test]
fn a_leader_that_has_not_contributed_attempts_what_most_expect() {
    let mut leader = Bench::of(&[1, 2, 3, 4], 1);
    leader.hear(2, Message::Contribute(contribution_to(FIRST)));
    leader.hear_all(&[3, 4], &Message::Contribute(contribution()));
    let effects = leader.contribute();
    assert!(
        names(&effects, 2, Unsound::OtherRound(FIRST)),
        "{effects:?}"
    );
    assert_eq!(leader.attempted(&effects), Some(vec![1, 3, 4]));
}

#[test]
fn a_leader_attempts_nothing_in_the_name_of_all_before_it_or_most_expect_it() {
    let mut leader = Bench::of(&[1, 2, 3, 4], 1);
    let effects = leader.hear(4, Message::Contribute(contribution_to(FIRST)));
    assert_eq!(leader.attempted(&effects), None);
    let effects = leader.hear(2, Message::Contribute(contribution()));
    assert_eq!(leader.attempted(&effects), None);
    let effects = leader.contribute();
    assert!(
        names(&effects, 4, Unsound::OtherRound(FIRST)),
        "{effects:?}"
    );
    assert!(!fails(&effects), "{effects:?}");
}

#[test]
fn a_late_leader_is_not_blamed_for_what_the_first_contributor_expects() {
    let all = [1, 2, 3, 4, 5];
    let mut leader = Bench::of(&all, 1);
    leader.hear(5, Message::Contribute(contribution_to(FIRST)));
    let grace = Settings::simulated(identity(&leader.view, 1)).grace;
    let effects = leader.wait(grace.0);
    assert_eq!(
        newest(&leader, &effects),
        Some((all.to_vec(), vec![5])),
        "{effects:?}"
    );
    let mut member = Bench::of(&all, 2);
    member.contribute();
    let outcome = Outcome {
        spec: FIRST,
        contributors: ids(&[5]),
        ..founded(&member.view, 1)
    };
    let effects = member.hear_attempt(1, &outcome, &all);
    assert_eq!(effects, []);
    // The leader goes by most of those that it knows of, here by the lower id, and drops the
    // attempt.
    let effects = leader.hear(2, Message::Contribute(contribution()));
    assert_eq!(newest(&leader, &effects), Some((all.to_vec(), vec![2])));
}

#[test]
fn frames_of_whoever_lied_are_ignored() {
    let mut member = Bench::of(&[1, 2, 3], 2);
    member.contribute();
    member.tell(In::Distrust(NodeId(3)));
    let before = member.term();
    let effects = member.hear_under(3, term(9, 3), Message::Prepare);
    assert_eq!(effects, []);
    assert_eq!(member.term(), before);
}

/// A node that was left out asks to join again, and is named while an attempt admits it.
#[test]
fn a_joiner_that_is_named_holds_up_no_round() {
    let mut leader = Bench::of(&[1, 2, 3], 1);
    leader.lead(SPEC);
    leader.hear_all(&[2, 3], &leader.vote());
    leader.joiners(vec![view(&[4]).members()[0].clone()]);
    let mut effects = leader.contribute_to(FIRST);
    let all = Message::Contribute(contribution_to(FIRST));
    effects.extend(leader.hear_all(&[2, 3], &all));
    let (next, _) = newest(&leader, &effects).unwrap();
    assert_eq!(next, [1, 2, 3, 4]);
    let effects = leader.tell(In::Distrust(NodeId(4)));
    let (next, contributors) = newest(&leader, &effects).unwrap();
    assert_eq!((next, contributors), (vec![1, 2, 3], vec![1, 2, 3]));
}

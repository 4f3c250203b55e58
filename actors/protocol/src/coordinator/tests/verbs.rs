//! Which node gets which message, and from which nodes a message is accepted.

use super::*;
use crate::coordinator::{Attempt, FOLLOW_WAIT, Recovery, RecoveryError, Voter};
use crate::policy::Quorum;

/// The entry with which nodes 2 and 3 finish, in a fork of theirs, what nodes 1 to 5 were ready for.
fn finished_by_survivors(outcome: Outcome) -> Outcome {
    Outcome {
        lineage: LINEAGE.parted(5),
        waiting: ids(&[1, 4, 5]),
        leader: NodeId(2),
        ..outcome
    }
}

#[test]
fn survivors_that_count_on_a_node_are_followed_unless_it_voted_for_something_else() {
    for (votes, follows) in [(None, true), (Some(true), true), (Some(false), false)] {
        // Nodes 2 and 3 went on without the others and finished what all were ready for.
        let (mut member, outcome) = Bench::ready(&[1, 2, 3, 4, 5], 4, |settings| {
            settings.quorum = Quorum::Survivors
        });
        if let Some(same) = votes {
            let other = Outcome {
                contributors: ids(&[2]),
                ..outcome.clone()
            };
            let entry = if same { outcome.clone() } else { other };
            member.hear_under(1, term(1, 1), ask(Entry::Whole(entry)));
        }
        let entry = finished_by_survivors(outcome);
        let fork = entry.lineage;
        let place = Place {
            lineage: fork,
            term: term(1, 2),
            ..member.place()
        };
        let effects = member.hear_at(2, place, decision(entry));
        let applies = effects.iter().any(|effect| {
            matches!(
                effect,
                Effect::Apply {
                    began_in: LINEAGE,
                    ..
                }
            )
        });
        assert_eq!(
            (applies, member.place().lineage == fork),
            (follows, follows),
            "{votes:?}: {effects:?}"
        );
    }
}

/// Nodes 4 and 5 began a fork, and node 4 leads it. Node 5 follows the others.
#[test]
fn who_follows_survivors_tells_those_of_the_fork_that_it_leaves() {
    let (mut member, outcome) = Bench::ready(&[1, 2, 3, 4, 5], 5, |settings| {
        settings.quorum = Quorum::Survivors
    });
    let before = member.place();
    let voters = member.view.members()[3..].iter().map(Voter::from).collect();
    let begins = Message::Fork {
        lineage: LINEAGE.parted(4),
        ordered: false,
        voters,
    };
    member.hear_under(4, term(1, 4), begins);
    assert_eq!(member.place().lineage, LINEAGE.parted(4));
    let entry = finished_by_survivors(outcome);
    let fork = entry.lineage;
    let place = Place {
        lineage: fork,
        term: term(1, 2),
        ..before
    };
    let effects = member.hear_at(2, place, decision(entry));
    assert_eq!(member.place().lineage, fork);
    let told: Vec<u64> = messages(&effects)
        .filter(|(.., message)| matches!(message, Message::Decide { .. }))
        .map(|(to, ..)| to.0)
        .collect();
    assert_eq!(told, [4], "{effects:?}");
}

/// Nobody else in a fork may know the entry for which this node left it.
#[test]
fn a_question_from_an_akin_history_is_answered_and_nothing_else() {
    let (mut member, bootstrap) = Bench::ready(&[1, 2, 3], 2, |_| {});
    let before = member.place();
    member.hear_decision(1, bootstrap);
    assert_eq!(member.place().round, Round(1));
    for (lineage, message, answered) in [
        (LINEAGE, Message::Learn, true),
        (LINEAGE, Message::Prepare, true),
        (LINEAGE.parted(7), Message::Learn, true),
        (LINEAGE.parted(7), Message::Prepare, false),
        (Lineage(!LINEAGE.0), Message::Learn, false),
    ] {
        let place = Place { lineage, ..before };
        let effects = member.hear_at(3, place, message.clone());
        let answers = says!(effects, to 3, Message::Decide { .. });
        assert_eq!(answers, answered, "{lineage:?} {message:?}: {effects:?}");
    }
}

#[test]
fn another_start_of_a_voter_that_joins_does_not_lead() {
    let mut member = Bench::of(&[1, 2, 3], 2);
    member.contribute();
    let before = member.view.clone();
    let mut members = before.members().to_vec();
    members[2] = again(&before, 3);
    let outcome = Outcome {
        view: next_view(&before, &members),
        ..founded(&before, 1)
    };
    member.hear_attempt(1, &outcome, &[1, 2]);
    let mut promises = |speaking: View| {
        member.view = speaking;
        let effects = member.hear_under(3, term(1, 3), Message::Prepare);
        says!(effects, Message::Promise { .. })
    };
    // It may speak: the outcome that is attempted admits it.
    assert!(!promises(outcome.view), "it has no vote, and leads nothing");
    assert!(promises(before), "the start that votes may");
}

#[test]
fn joiners_hear_that_the_data_of_earlier_terms_may_go() {
    let (mut leader, outcome) = Bench::ready(&[1, 2, 3], 2, |_| {});
    leader.hear_decision(1, outcome);
    let spec = RoundSpec {
        kind: RoundKind::Slow,
        step: Step(3),
        ..SPEC
    };
    leader.contribute_to(spec);
    leader.joiners(view(&[9]).members().to_vec());
    leader.lose(&[1], false);
    let begun = leader.hear_promise(3, None, Some(contribution_to(spec)));
    assert!(says!(begun, to 9, Message::Admit { .. }), "{begun:?}");
    let closed = leader.hear(3, Message::Opened);
    assert!(says!(closed, to 9, Message::Closed), "{closed:?}");
    // Whoever is told of the attempt later is told so too.
    let again = leader.tell(In::PeerUp(NodeId(9)));
    assert!(says!(again, to 9, Message::Closed), "{again:?}");
}

#[test]
fn a_voter_that_was_left_out_asks_whoever_is_ahead() {
    let mut voter = Bench::of(&[1, 2, 3], 3);
    let place = Place {
        round: Round(7),
        term: term(1, 9),
        ..voter.place()
    };
    let mut asks = || says!(voter.hear_at(9, place, Message::Prepare), Message::Learn);
    // Node 9 joined while nobody reached node 3, and leads by now.
    assert!(asks());
    assert!(!asks(), "once a round");
}

#[test]
fn an_operator_names_the_history_that_goes_on_where_a_quorum_is_lost() {
    let (mut member, outcome) = Bench::ready(&[1, 2, 3], 2, |_| {});
    member.lose(&[1, 3], false);
    assert_eq!(
        member.machine.recovery(),
        Err(RecoveryError::NothingDecided)
    );
    member.tell(In::Back(NodeId(1)));
    member.tell(In::Back(NodeId(3)));
    member.hear_decision(1, outcome);
    assert_eq!(member.machine.recovery(), Err(RecoveryError::QuorumLives));
    member.lose(&[1, 3], false);
    let expected = Recovery {
        lineage: LINEAGE,
        round: Round(1),
        goes_on: ids(&[2]),
        missing: ids(&[1, 3]),
    };
    assert_eq!(member.machine.recovery(), Ok(expected));
    member.tell(In::Recover(Lineage(LINEAGE.0 + 1)));
    assert_eq!(member.place().lineage, LINEAGE, "that is another history");
    member.tell(In::Recover(LINEAGE));
    let place = member.place();
    assert!(
        place.lineage != LINEAGE && place.lineage.is_akin(LINEAGE),
        "{place:?}"
    );
    // A history of its own needs nobody's vote, nor to be recovered.
    assert_eq!(member.machine.recovery(), Err(RecoveryError::QuorumLives));
}

#[test]
fn a_member_says_again_what_its_leader_may_have_missed() {
    let (mut member, outcome) = Bench::ready(&[1, 2, 3], 2, |_| {});
    let again = member.tell(In::PeerUp(NodeId(3)));
    assert!(!says!(again, Message::Ready(_)), "node 3 does not lead");
    let again = member.tell(In::PeerUp(NodeId(1)));
    assert!(says!(again, to 1, Message::Contribute(_)), "{again:?}");
    assert!(says!(again, to 1, Message::Ready(_)), "{again:?}");
    assert!(!says!(again, Message::Accepted(_)), "{again:?}");
    member.hear(1, ask(Entry::Whole(outcome)));
    let again = member.tell(In::PeerUp(NodeId(1)));
    assert!(says!(again, to 1, Message::Accepted(_)), "{again:?}");
}

#[test]
fn a_leader_asks_again_whoever_may_have_missed_it() {
    let mut leader = Bench::leader(&[1, 2, 3]);
    let again = leader.tell(In::PeerUp(NodeId(3)));
    assert!(says!(again, to 3, Message::Attempt(_)), "{again:?}");
    let mut leader = Bench::of(&[1, 2, 3], 1);
    leader.lead(SPEC);
    let again = leader.tell(In::PeerUp(NodeId(3)));
    assert!(
        says!(
            again,
            to 3,
            Message::Accept {
                entry: Entry::Whole(_),
                ..
            }
        ),
        "{again:?}"
    );

    let (mut leader, _) = Bench::ready(&[1, 2, 3], 2, |_| {});
    leader.lose(&[1], false);
    let again = leader.tell(In::PeerUp(NodeId(3)));
    assert!(says!(again, to 3, Message::Prepare), "{again:?}");
    leader.hear_promise(3, None, Some(contribution()));
    let again = leader.tell(In::PeerUp(NodeId(3)));
    assert!(says!(again, to 3, Message::Open), "{again:?}");
    leader.hear(3, Message::Opened);
    let again = leader.tell(In::PeerUp(NodeId(3)));
    assert!(!says!(again, Message::Open), "{again:?}");
    assert!(says!(again, to 3, Message::Closed), "{again:?}");
}

#[test]
fn a_leader_whose_term_is_overtaken_waits_and_takes_a_higher_one() {
    let mut leader = Bench::leader(&[1, 2, 3]);
    leader.hear_under(3, term(4, 2), Message::Overtaken);
    let early = leader.wait(FOLLOW_WAIT.0 - 1);
    assert!(!says!(early, Message::Prepare), "{early:?}");
    let later = leader.wait(1);
    assert!(says!(later, Message::Prepare), "{later:?}");
    assert_eq!(leader.term(), term(5, 1));
}

#[test]
fn an_attempt_that_its_leader_replaced_is_dropped() {
    let (mut member, outcome) = Bench::ready(&[1, 2, 3], 2, |_| {});
    let first = member.place();
    let next = Place {
        attempt: first.attempt + 1,
        ..first
    };
    let effects = member.hear_attempt_at(1, next, &outcome, &[1, 2, 3]);
    assert!(
        effects.contains(&Effect::Discard(Attempt::at(&first))),
        "{effects:?}"
    );
    let effects = member.hear_attempt_at(1, first, &outcome, &[1, 2, 3]);
    assert_eq!(effects, [], "it came late");
}

/// A voter that holds an attempt's data is asked without the entry; one that does not asks for it.
#[test]
fn a_vote_is_for_an_entry_that_the_voter_knows() {
    let (mut ready, outcome) = Bench::ready(&[1, 2, 3], 2, |_| {});
    assert!(says!(
        ready.hear(1, ask(Entry::Held(outcome.digest()))),
        Message::Accepted(_)
    ));
    assert_eq!(ready.machine.accepted(), Some(&(term(0, 1), outcome)));
    let mut voter = Bench::of(&[1, 2, 3], 2);
    let asks = voter.hear(1, ask(Entry::Held(Digest::default())));
    assert!(says!(asks, to 1, Message::Learn), "{asks:?}");
    let other_round = Outcome {
        round: Round(1),
        ..founded(&voter.view, 1)
    };
    let effects = voter.hear(1, ask(Entry::Whole(other_round)));
    assert!(!says!(effects, Message::Accepted(_)), "{effects:?}");
    assert_eq!(voter.machine.accepted(), None);
}

#[test]
fn a_promise_tells_what_was_accepted_and_contributed() {
    let (mut voter, outcome) = Bench::ready(&[1, 2, 3], 2, |_| {});
    voter.hear(1, ask(Entry::Held(outcome.digest())));
    let effects = voter.hear_under(3, term(1, 3), Message::Prepare);
    let promise = Message::Promise {
        accepted: Some((term(0, 1), outcome)),
        floor: term(0, 1),
        contributed: Some(contribution()),
    };
    let promises =
        messages(&effects).any(|(to, _, message)| to == NodeId(3) && *message == promise);
    assert!(promises, "{effects:?}");
}

#[test]
fn who_joins_has_no_vote_yet_and_goes_back_to_no_earlier_round() {
    let mut joiner = Bench::outside(view(&[1, 2, 3]), 3, |_| {});
    joiner.contribute();
    let parent = |round| Outcome {
        round: Round(round),
        ..founded(&view(&[1, 2]), 1)
    };
    joiner.hear_admission(parent(5), 1, &[1, 2, 3]);
    let effects = joiner.hear_under(1, term(2, 1), Message::Prepare);
    assert!(!says!(effects, Message::Promise { .. }), "{effects:?}");
    joiner.hear_admission(parent(3), 1, &[1, 2, 3]);
    assert_eq!(joiner.place().round, Round(6));
}

/// Node 3 leaves: it ends once a quorum of the next voters, which node 1 leads, knows the entry.
#[test]
fn who_leaves_ends_when_a_quorum_knows_the_entry() {
    let mut node = Bench::of(&[1, 2, 3], 3);
    let begun = node.contribute();
    let entry = Outcome {
        view: next_view(&node.view, view(&[1, 2]).members()),
        ..founded(&node.view, 1)
    };
    node.hear_attempt(1, &entry, &[1, 2, 3]);
    node.hold_all(&begun);
    let entry = Outcome {
        published: node.root(),
        ..entry
    };
    let place = node.place();
    let ends = |effect: &Effect| matches!(effect, Effect::Apply { drained: true, .. });
    let decided = node.hear_decision(1, entry.clone());
    assert!(
        says!(decided, to 2, Message::Decide { leaves: true, .. }),
        "{decided:?}"
    );
    assert!(!decided.iter().any(ends), "{decided:?}");
    let one = node.hear_at(2, place, Message::Learned);
    assert!(!one.iter().any(ends), "half without the tie-breaker");
    let both = node.hear_at(1, place, Message::Learned);
    assert!(both.iter().any(ends), "{both:?}");

    let (mut stays, _) = Bench::ready(&[1, 2, 3], 2, |_| {});
    let told = Message::Decide {
        entry: Entry::Whole(entry),
        leaves: true,
    };
    let answer = stays.hear_at(3, place, told);
    assert!(says!(answer, to 3, Message::Learned), "{answer:?}");
}

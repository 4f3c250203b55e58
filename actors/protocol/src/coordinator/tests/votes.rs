//! Leaders that have two entries voted for, and nodes that say alone what was decided.

use super::*;
use crate::coordinator::{GivesUp, RoundError, VOTES_WAIT};
use crate::sound::Unsound;

fn doubts(settings: &mut Settings) {
    settings.votes_wait = VOTES_WAIT;
}

/// Node `node` of a view holds what node 1 attempts.
fn follower(ids: &[u64], node: u64) -> (Bench, Outcome) {
    Bench::ready(ids, node, doubts)
}

/// The same entry, but for what nobody's data shows.
fn other(entry: &Outcome) -> Outcome {
    Outcome {
        leader: NodeId(3),
        ..entry.clone()
    }
}

fn names(effects: &[Effect]) -> Vec<(u64, Unsound)> {
    let named = |effect: &Effect| match effect {
        Effect::Unsound(node, what) => Some((node.0, *what)),
        _ => None,
    };
    effects.iter().filter_map(named).collect()
}

fn applies(effects: &[Effect]) -> bool {
    let applied = |effect: &Effect| matches!(effect, Effect::Apply { .. });
    effects.iter().any(applied)
}

fn told(effects: &[Effect], is: impl Fn(&Message) -> bool) -> Vec<u64> {
    let told = messages(effects).filter(|(.., message)| is(message));
    told.map(|(to, ..)| to.0).collect()
}

fn proof(message: &Message) -> bool {
    matches!(message, Message::TwoEntries { .. })
}

#[test]
fn a_vote_goes_to_everybody_and_a_decision_waits_for_the_votes_of_all_that_live() {
    let (mut member, entry) = follower(&[1, 2, 3, 4], 2);
    let voted = member.hear(1, ask(Entry::Held(entry.digest())));
    assert_eq!(
        told(&voted, |message| *message == accepted(&entry)),
        [1, 3, 4]
    );
    member.hear(3, accepted(&entry));
    // Three of four voted.
    assert!(!applies(&member.hear_decision(1, entry.clone())));
    assert!(applies(&member.hear(4, accepted(&entry))));
    assert_eq!(member.hear_decision(1, entry), []);

    let (mut member, entry) = follower(&[1, 2, 3, 4], 2);
    member.hear(1, ask(Entry::Held(entry.digest())));
    member.hear(3, accepted(&entry));
    member.hear_decision(1, entry.clone());
    assert!(applies(&member.lose(&[4], false)));
}

/// Nobody tells node 2 of the decision: its leader may have died after it asked for votes.
#[test]
fn a_voter_decides_once_all_that_live_voted_for_its_entry() {
    let (mut member, entry) = follower(&[1, 2, 3, 4], 2);
    member.hear(3, accepted(&entry));
    member.hear(4, accepted(&entry));
    assert!(applies(&member.hear(1, ask(Entry::Held(entry.digest())))));

    let (mut member, entry) = follower(&[1, 2, 3, 4], 2);
    member.hear(1, ask(Entry::Held(entry.digest())));
    assert!(!applies(&member.hear(3, accepted(&entry))));
    assert!(!applies(&member.lose(&[1], true)));
    assert!(applies(&member.lose(&[4], true)));

    // Two of four are no quorum without the tie-breaker.
    let (mut member, entry) = follower(&[1, 2, 3, 4], 2);
    member.hear(1, ask(Entry::Held(entry.digest())));
    assert!(!applies(&member.lose(&[3, 4], true)));
}

/// The votes of nodes 4 and 5 went to the others faster than to their leader, node 1. Joining nodes
/// and those that do not vote learn the decision from it alone.
#[test]
fn a_leader_that_the_others_overtook_tells_the_decision() {
    let mut leader = Bench::with(&[1, 2, 3, 4, 5], 1, doubts);
    leader.lead(contribution().spec);
    let entry = leader.entry_of(&leader.list());
    leader.hear(2, accepted(&entry));
    leader.hear_decision(2, entry.clone());
    let believed = leader.hear_decision(3, entry);
    assert!(applies(&believed), "{believed:?}");
    assert!(
        says!(believed, to 5, Message::Decide { .. }),
        "{believed:?}"
    );
}

/// Node 3 voted for the entry under the first term. Nodes 1 and 2 vote for it under a higher one.
/// Under neither are they a quorum: another entry may be chosen still.
#[test]
fn votes_under_different_terms_do_not_count_together() {
    let (mut member, entry) = follower(&[1, 2, 3, 4, 5], 2);
    member.hear(3, accepted(&entry));
    member.lose(&[4, 5], true);
    let asked = member.hear_under(1, term(1, 1), ask(Entry::Whole(entry.clone())));
    assert!(says!(asked, to 1, Message::Accepted(_)), "{asked:?}");
    assert!(!applies(&asked));
    let voted = member.hear_under(3, term(1, 1), accepted(&entry));
    assert!(applies(&voted), "{voted:?}");
}

#[test]
fn a_decision_waits_no_longer_for_votes_than_it_must() {
    let (mut member, entry) = follower(&[1, 2, 3, 4], 2);
    member.hear(1, ask(Entry::Held(entry.digest())));
    member.hear(3, accepted(&entry));
    member.hear_decision(1, entry);
    assert!(!applies(&member.wait(VOTES_WAIT.0 - 1)));
    assert!(applies(&member.wait(1)));
}

/// Node 1 says that the round is decided. Nobody else voted, as far as node 2 knows.
#[test]
fn one_node_is_not_believed_and_two_are() {
    let (mut member, entry) = follower(&[1, 2, 3, 4, 5], 2);
    let forged = other(&entry);
    member.hear_decision(1, forged.clone());
    let asks = member.wait(VOTES_WAIT.0);
    let learns = |message: &Message| *message == Message::Learn;
    assert_eq!(told(&asks, learns), [1, 3, 4, 5]);
    assert!(!applies(&asks));
    assert!(!applies(&member.hear_decision(3, entry.clone())));
    let applied = member.hear_decision(4, entry);
    assert!(applies(&applied), "{applied:?}");
    assert_eq!(names(&applied), [(1, Unsound::OtherEntry)]);
}

#[test]
fn the_only_other_node_is_believed() {
    let (mut member, entry) = follower(&[1, 2, 3], 2);
    member.lose(&[3], true);
    assert!(applies(&member.hear_decision(1, entry)));
}

/// Node 1 asks node 2 for a vote for one entry, and node 3 for another one.
#[test]
fn a_leader_that_asks_for_two_entries_is_proved_before_either_is_applied() {
    for told_first in [false, true] {
        let (mut member, entry) = follower(&[1, 2, 3, 4, 5], 2);
        let asks = ask(Entry::Held(entry.digest()));
        let vote = accepted(&other(&entry));
        if !told_first {
            member.hear(1, asks.clone());
        }
        member.hear(4, accepted(&entry));
        member.hear_decision(1, entry.clone());
        let mut effects = member.hear(3, vote);
        if told_first {
            assert_eq!(names(&effects), [], "node 2 was not asked yet");
            effects = member.hear(1, asks);
        }
        assert_eq!(names(&effects), [(1, Unsound::TwoEntries)]);
        assert_eq!(told(&effects, proof), [1, 3, 4, 5]);
        assert!(!applies(&effects) && !applies(&member.wait(VOTES_WAIT.0)));
        // Without node 1 two of five voted for it.
        assert!(says!(effects, to 3, Message::Prepare), "{effects:?}");
    }
}

#[test]
fn a_proof_from_another_node_is_enough_and_an_empty_one_names_its_sender() {
    let proof = |one: &Outcome, other: &Outcome| {
        let signed = |entry: &Outcome| Signed {
            digest: entry.digest(),
            signature: Signature::default(),
        };
        Message::TwoEntries {
            one: signed(one),
            other: signed(other),
        }
    };
    let (mut member, entry) = follower(&[1, 2, 3, 4, 5], 2);
    let found = member.hear(3, proof(&entry, &entry));
    assert_eq!(names(&found), [(3, Unsound::OtherEntry)]);
    let found = member.hear(4, proof(&entry, &other(&entry)));
    assert_eq!(names(&found), [(1, Unsound::TwoEntries)]);
}

/// Nodes 3 and 4 voted for one entry, 5 for another one, all for node 1.
#[test]
fn who_takes_over_from_a_leader_of_two_entries_finishes_what_may_be_chosen_without_it() {
    let (mut leader, entry) = follower(&[1, 2, 3, 4, 5], 2);
    leader.hear(1, ask(Entry::Held(entry.digest())));
    leader.tell(In::Distrust(NodeId(1)));
    let first = |entry: &Outcome| Some((term(0, 1), entry.clone()));
    leader.hear_promise(3, first(&entry), None);
    leader.hear_promise(5, first(&other(&entry)), None);
    // Nodes 2, 3 and 4 are a quorum.
    let asked = leader.hear_promise(4, first(&entry), None);
    assert!(
        says!(asked, to 3, Message::Accept { entry: Entry::Whole(_), .. }),
        "{asked:?}"
    );

    let (mut leader, entry) = follower(&[1, 2, 3, 4, 5], 2);
    leader.hear(1, ask(Entry::Held(entry.digest())));
    leader.tell(In::Distrust(NodeId(1)));
    leader.hear_promise(3, first(&entry), Some(contribution()));
    leader.hear_promise(5, first(&other(&entry)), Some(contribution()));
    let opened = leader.hear_promise(4, first(&other(&entry)), Some(contribution()));
    assert!(says!(opened, to 3, Message::Open), "{opened:?}");
}

/// The vote of node 3 comes after node 2 has applied the other entry.
#[test]
fn who_applied_an_entry_that_only_a_liar_made_a_quorum_for_stops() {
    for firm in [true, false] {
        let (mut member, entry) = follower(&[1, 2, 3, 4, 5], 2);
        let place = member.place();
        member.hear(1, ask(Entry::Held(entry.digest())));
        let votes: &[u64] = if firm { &[4, 5] } else { &[4] };
        member.hear_all(votes, &accepted(&entry));
        member.hear_decision(1, entry.clone());
        assert!(applies(&member.wait(VOTES_WAIT.0)));
        member.contribute_to(FIRST);
        let found = member.hear_at(3, place, accepted(&other(&entry)));
        assert_eq!(names(&found), [(1, Unsound::TwoEntries)]);
        assert_eq!(told(&found, proof), [1, 3, 4, 5]);
        let error = RoundError::TwoEntries {
            round: Round::BOOTSTRAP,
            leader: NodeId(1),
        };
        assert_eq!(found.contains(&Effect::Fail(error)), !firm, "{found:?}");
    }
}

#[test]
fn a_late_vote_for_the_same_entry_or_an_earlier_term_changes_nothing() {
    let (mut member, entry) = follower(&[1, 2, 3], 2);
    let place = member.place();
    member.hear(1, ask(Entry::Held(entry.digest())));
    assert!(applies(&member.hear(3, accepted(&entry))));
    assert_eq!(member.hear_at(3, place, accepted(&entry)), []);
    let earlier = Place {
        term: term(0, 3),
        ..place
    };
    assert_eq!(member.hear_at(3, earlier, accepted(&other(&entry))), []);
}

#[test]
fn an_entry_that_was_not_attempted_gets_no_vote() {
    let mut voter = Bench::with(&[1, 2, 3], 2, doubts);
    voter.contribute();
    // It names node 2 as a next member.
    let entry = founded(&voter.view, 1);
    let asked = voter.hear(1, ask(Entry::Whole(entry.clone())));
    assert!(!says!(asked, Message::Accepted(_)), "{asked:?}");
    assert_eq!(names(&asked), [(1, Unsound::Unattempted)]);
    // Who finishes an entry of another leader may have been told it by a liar.
    let mut voter = Bench::with(&[1, 2, 3], 2, doubts);
    voter.contribute();
    let asked = voter.hear_under(3, term(1, 3), ask(Entry::Whole(entry)));
    assert!(!says!(asked, Message::Accepted(_)), "{asked:?}");
    assert_eq!(names(&asked), []);
}

#[test]
fn who_saw_an_entry_chosen_votes_for_no_other() {
    let (mut voter, entry) = follower(&[1, 2, 3, 4, 5], 2);
    voter.hear_all(&[3, 4, 5], &accepted(&entry));
    let without = Outcome {
        view: next_view(&voter.view, view(&[1, 3]).members()),
        ..entry
    };
    let asked = voter.hear_under(3, term(1, 3), ask(Entry::Whole(without)));
    assert!(!says!(asked, Message::Accepted(_)), "{asked:?}");
}

/// Node 3 lies about a round that is far ahead.
#[test]
fn one_node_that_is_ahead_is_not_followed_and_two_are() {
    let (mut member, entry) = follower(&[1, 2, 3, 4, 5], 2);
    let later = |round, members: &[u64]| Outcome {
        round: Round(round),
        view: next_view(&entry.view, view(members).members()),
        leader: NodeId(members[0]),
        ..entry.clone()
    };
    let at = |round| Place {
        round: Round(round),
        ..member.place()
    };
    let far = at(90);
    let near = at(4);
    let asks = member.hear_at(3, far, decision(later(90, &[3])));
    let learns = |message: &Message| *message == Message::Learn;
    assert_eq!(told(&asks, learns), [1, 3, 4, 5]);
    assert!(!asks.contains(&Effect::MustRejoin), "{asks:?}");
    // Nodes 1 and 4 and this one are a quorum.
    member.hear_all(&[1, 4], &Message::Undecided);
    let waited = member.wait(VOTES_WAIT.0);
    assert!(!waited.contains(&Effect::MustRejoin), "{waited:?}");
    let followed = member.hear_at(4, near, decision(later(4, &[1, 4, 5])));
    assert!(followed.contains(&Effect::MustRejoin), "{followed:?}");
    assert_eq!(member.machine.place().round, Round::BOOTSTRAP, "it left");
}

/// Nodes 1, 4 and 5 are gone, though node 2 does not know it.
#[test]
fn one_node_that_is_ahead_is_followed_where_no_quorum_goes_on() {
    let (mut member, entry) = follower(&[1, 2, 3, 4, 5], 2);
    let later = Outcome {
        round: Round(4),
        view: next_view(&entry.view, view(&[3]).members()),
        leader: NodeId(3),
        ..entry
    };
    let place = Place {
        round: Round(4),
        ..member.place()
    };
    member.hear_at(3, place, decision(later));
    member.hear(1, Message::Undecided);
    assert!(!member.wait(VOTES_WAIT.0 - 1).contains(&Effect::MustRejoin));
    assert!(member.wait(1).contains(&Effect::MustRejoin));
}

/// The others died, or voted and cannot say so.
#[test]
fn one_node_that_knows_a_decision_is_believed_where_no_quorum_knows_nothing_of_it() {
    for (undecided, believed) in [(&[1u64][..], true), (&[1, 4], false)] {
        let (mut member, entry) = follower(&[1, 2, 3, 4, 5], 2);
        member.hear_decision(3, entry);
        let asks = member.wait(VOTES_WAIT.0);
        assert!(says!(asks, to 5, Message::Learn), "{asks:?}");
        member.hear_all(undecided, &Message::Undecided);
        assert_eq!(applies(&member.wait(VOTES_WAIT.0)), believed);
    }
}

#[test]
fn who_knows_of_no_decision_says_so_when_it_is_asked() {
    let (mut member, entry) = follower(&[1, 2, 3], 2);
    let answer = member.hear(3, Message::Learn);
    assert!(says!(answer, to 3, Message::Undecided), "{answer:?}");
    member.hear_all(&[1, 3], &decision(entry));
    let answer = member.hear_at(
        3,
        Place {
            round: Round::BOOTSTRAP,
            ..member.place()
        },
        Message::Learn,
    );
    assert!(!says!(answer, Message::Undecided), "{answer:?}");
}

/// Node 2 missed the votes.
#[test]
fn a_vote_is_told_again_to_who_asks() {
    let (mut voter, entry) = follower(&[1, 2, 3], 2);
    let again = voter.hear(3, Message::Learn);
    assert!(!says!(again, Message::Accepted(_)), "{again:?}");
    voter.hear(1, ask(Entry::Held(entry.digest())));
    let again = voter.hear(3, Message::Learn);
    assert!(says!(again, to 3, Message::Accepted(_)), "{again:?}");
    let again = voter.tell(In::PeerUp(NodeId(3)));
    assert!(says!(again, to 3, Message::Accepted(_)), "{again:?}");
}

/// Nodes 1, 3 and 4 are a quorum, so a later leader that asks for something else ignores its
/// promises.
#[test]
fn a_leader_that_asks_twice_against_a_chosen_entry_gains_nothing() {
    let (mut voter, entry) = follower(&[1, 2, 3, 4, 5], 2);
    voter.hear_all(&[3, 4], &accepted(&entry));
    let without = Outcome {
        view: next_view(&voter.view, view(&[1, 3]).members()),
        ..entry
    };
    for _ in 0..2 {
        let asked = voter.hear_under(3, term(1, 3), ask(Entry::Whole(without.clone())));
        assert!(!says!(asked, Message::Accepted(_)), "{asked:?}");
    }
}

/// With node 1 they were a quorum for an entry, but node 1 voted for two.
#[test]
fn the_vote_of_a_proved_liar_chooses_nothing() {
    let (mut voter, entry) = follower(&[1, 2, 3, 4, 5], 2);
    voter.hear(1, ask(Entry::Held(entry.digest())));
    voter.hear(4, accepted(&entry));
    voter.hear(3, accepted(&other(&entry)));
    let without = Outcome {
        view: next_view(&voter.view, view(&[3, 4, 5]).members()),
        leader: NodeId(3),
        ..entry
    };
    let asked = voter.hear_under(3, term(1, 3), ask(Entry::Whole(without)));
    assert!(says!(asked, to 3, Message::Accepted(_)), "{asked:?}");
}

/// Nodes 2 and 3 voted for it, and node 4 may have; it is not there.
#[test]
fn what_an_absent_voter_may_have_made_a_quorum_for_is_finished() {
    let (mut leader, entry) = follower(&[1, 2, 3, 4, 5], 2);
    leader.hear(1, ask(Entry::Held(entry.digest())));
    leader.tell(In::Distrust(NodeId(1)));
    leader.lose(&[4], false);
    let first = |entry: &Outcome| Some((term(0, 1), entry.clone()));
    leader.hear_promise(3, first(&entry), Some(contribution()));
    let asked = leader.hear_promise(5, first(&other(&entry)), Some(contribution()));
    assert!(says!(asked, to 3, Message::Accept { .. }), "{asked:?}");
}

/// Nodes 6 and 7 may have made a quorum for either.
#[test]
fn where_either_of_two_entries_may_be_chosen_nothing_is_asked_for() {
    let (mut leader, entry) = follower(&[1, 2, 3, 4, 5, 6, 7], 2);
    leader.hear(1, ask(Entry::Held(entry.digest())));
    leader.tell(In::Distrust(NodeId(1)));
    leader.lose(&[6, 7], false);
    let first = |entry: &Outcome| Some((term(0, 1), entry.clone()));
    let mut effects = leader.hear_promise(3, first(&entry), Some(contribution()));
    for node in [4, 5] {
        let promised = leader.hear_promise(node, first(&other(&entry)), Some(contribution()));
        effects.extend(promised);
    }
    assert!(!says!(effects, Message::Accept { .. }), "{effects:?}");
    assert!(!says!(effects, Message::Open), "{effects:?}");
}

/// Node 2 is told of the decision, and was never asked for a vote.
#[test]
fn who_was_not_asked_for_a_vote_stops_too() {
    let (mut member, entry) = follower(&[1, 2, 3, 4, 5], 2);
    let place = member.place();
    member.hear_all(&[4, 5], &accepted(&entry));
    member.hear_decision(1, entry.clone());
    assert!(applies(&member.wait(VOTES_WAIT.0)));
    member.contribute_to(FIRST);
    let signed = |entry: &Outcome| Signed {
        digest: entry.digest(),
        signature: Signature::default(),
    };
    let proof = Message::TwoEntries {
        one: signed(&entry),
        other: signed(&other(&entry)),
    };
    let found = member.hear_at(3, place, proof);
    let stops = |effect: &Effect| matches!(effect, Effect::Fail(RoundError::TwoEntries { .. }));
    assert!(found.iter().any(stops), "{found:?}");
}

/// The others hear of the second entry only when a cut is healed.
#[test]
fn who_hears_of_the_other_entry_rounds_later_stops_too() {
    let (mut member, entry) = follower(&[1, 2, 3, 4, 5], 2);
    let place = member.place();
    member.hear(1, ask(Entry::Held(entry.digest())));
    member.hear(4, accepted(&entry));
    member.hear_decision(1, entry.clone());
    assert!(applies(&member.wait(VOTES_WAIT.0)));
    let mut effects = member.contribute_to(FIRST);
    let next = Outcome {
        round: Round(1),
        spec: FIRST,
        contributors: ids(&[1, 2, 3, 4, 5]),
        published: member.root(),
        ..entry.clone()
    };
    effects.extend(member.hear_attempt(1, &next, &[1, 2, 3, 4, 5]));
    member.hold_all(&effects);
    member.hear(1, ask(Entry::Held(next.digest())));
    assert!(applies(&member.hear_all(&[3, 4, 5], &accepted(&next))));
    member.contribute_to(RoundSpec {
        step: Step(2),
        ..FIRST
    });
    let found = member.hear_at(3, place, accepted(&other(&entry)));
    let stops = |effect: &Effect| matches!(effect, Effect::Fail(RoundError::TwoEntries { .. }));
    assert!(found.iter().any(stops), "{found:?}");
}

/// Node 3 was excluded, lives, and stays a voter, since two are few. It has nothing to say.
#[test]
fn a_voter_that_is_no_member_is_not_waited_for() {
    let (mut member, entry) = follower(&[1, 2, 3], 2);
    let excluded = member.view.member(NodeId(3)).cloned();
    let mut next = Outcome {
        view: next_view(&member.view, view(&[1, 2]).members()),
        retained: excluded.into_iter().collect(),
        ..entry
    };
    let place = Place {
        attempt: 1,
        ..member.place()
    };
    let effects = member.hear_attempt_at(1, place, &next, &[1, 2]);
    member.hold_all(&effects);
    next.published = member.root();
    member.hear_at(1, place, ask(Entry::Held(next.digest())));
    let applied = member.hear_at(3, place, accepted(&next));
    assert!(applies(&applied), "{applied:?}");

    member.view = next.view.clone();
    let mut effects = member.contribute_to(FIRST);
    let mut later = Outcome {
        round: Round(1),
        spec: FIRST,
        contributors: ids(&[1, 2]),
        ..next
    };
    effects.extend(member.hear_attempt(1, &later, &[1, 2]));
    member.hold_all(&effects);
    later.published = member.root();
    let asked = member.hear(1, ask(Entry::Held(later.digest())));
    assert!(applies(&asked), "{asked:?}");
}

#[test]
fn no_single_node_makes_a_fork_while_a_quorum_lives() {
    let (mut member, entry) = Bench::ready(&[1, 2, 3, 4, 5], 2, |settings| {
        doubts(settings);
        settings.on_quorum_loss = crate::policy::OnQuorumLoss::Fork;
    });
    let lineage = LINEAGE.parted(99);
    let forged = Outcome {
        lineage,
        waiting: ids(&[1, 2, 4, 5]),
        leader: NodeId(3),
        ..entry
    };
    let place = Place {
        lineage,
        ..member.place()
    };
    let told = member.hear_at(3, place, decision(forged));
    assert!(!applies(&told), "{told:?}");
}

/// Nodes 2 and 3 voted for an entry, with node 1 a quorum, before they heard of the other one,
/// which nodes 4 and 5 hold and did not vote for.
#[test]
fn who_takes_over_from_a_proved_liar_does_not_count_on_its_vote() {
    let (mut leader, entry) = follower(&[1, 2, 3, 4, 5], 2);
    leader.hear(1, ask(Entry::Held(entry.digest())));
    let signed = |entry: &Outcome| Signed {
        digest: entry.digest(),
        signature: Signature::default(),
    };
    let proof = Message::TwoEntries {
        one: signed(&entry),
        other: signed(&other(&entry)),
    };
    let mut effects = leader.hear(4, proof);
    let voted = Some((term(0, 1), entry));
    effects.extend(leader.hear_promise(3, voted, Some(contribution())));
    effects.extend(leader.hear_promise(4, None, Some(contribution())));
    effects.extend(leader.hear_promise(5, None, Some(contribution())));
    assert!(!says!(effects, Message::Accept { .. }), "{effects:?}");
    assert!(says!(effects, to 3, Message::Open), "{effects:?}");
}

/// Node 9 joins. It has nothing of the round but what node 1, its leader, told.
#[test]
fn a_node_that_joins_believes_the_leader_that_admits_it_and_no_other_node() {
    for (teller, believed) in [(1, true), (3, false)] {
        let (mut leader, begun) = super::attempts::admits(doubts);
        leader.hold_all(&begun);
        let entry = leader.entry_of(&leader.list());
        let mut joiner = Bench::outside(leader.view.clone(), 9, doubts);
        joiner.contribute();
        let mut effects = Vec::new();
        for (to, header, message) in messages(&begun) {
            if to == NodeId(9) {
                effects.extend(joiner.hear_at(1, header.place(), message.clone()));
            }
        }
        let ready = joiner.hold_all(&effects);
        assert!(says!(ready, to 1, Message::Ready(_)), "{ready:?}");
        let told = joiner.hear_decision(teller, entry);
        assert_eq!(applies(&told), believed, "{told:?}");
    }
}

/// An entry without node 2, which votes on.
fn without_node_2(voter: &Bench, entry: Outcome, members: &[u64]) -> Outcome {
    Outcome {
        view: next_view(&voter.view, view(members).members()),
        retained: voter.view.member(NodeId(2)).cloned().into_iter().collect(),
        leader: NodeId(members[0]),
        ..entry
    }
}

/// Node 2 believed the entry late: another node may lead already, and those that told it of the
/// entry may be dead.
#[test]
fn a_voter_outside_asks_what_it_missed_while_it_did_not_believe() {
    let (mut voter, entry) = follower(&[1, 2, 3, 4], 2);
    let without = without_node_2(&voter, entry, &[1, 3, 4]);
    let place = Place {
        attempt: 1,
        ..voter.place()
    };
    assert!(!applies(&voter.hear_at(
        1,
        place,
        decision(without.clone())
    )));
    let effects = voter.hear_at(3, place, decision(without));
    assert_eq!(voter.place().round, Round(1), "{effects:?}");
    let learns = |message: &Message| *message == Message::Learn;
    assert_eq!(told(&effects, learns), [1, 3, 4]);
}

/// Node 2 is told by one node that others are ahead, and gives up its membership before it believes
/// that.
#[test]
fn a_voter_that_gave_up_its_membership_follows_who_is_ahead() {
    let (mut voter, entry) = follower(&[1, 2, 3], 2);
    let round = voter.machine.place().round;
    voter.hear_decision(1, entry.clone());
    voter.hear_decision(3, entry.clone());
    assert_eq!(voter.machine.place().round, round.next());
    let later = Outcome {
        round: Round(4),
        ..without_node_2(&voter, entry, &[3])
    };
    let place = Place {
        round: Round(4),
        ..voter.machine.place()
    };
    voter.hear_at(3, place, decision(later));
    voter.tell(In::Resign(GivesUp::Membership));
    let effects = voter.wait(VOTES_WAIT.0);
    assert_eq!(voter.machine.place().round, Round(5));
    let learns = |message: &Message| *message == Message::Learn;
    assert_eq!(told(&effects, learns), [3]);
}

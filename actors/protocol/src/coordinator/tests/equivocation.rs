//! Receivers of an attempt that hold different values, and nodes that say so without need.

use super::*;
use crate::coordinator::{COMPARE_WAIT, RoundError};
use crate::sound::Unsound;

/// Returns another digest, which a lying owner publishes to other nodes.
fn otherwise(owner: u64) -> Signed {
    Signed::simulated(&[owner as u8, 99])
}

/// The list of a node that got other values from an owner than this one.
fn list_with(bench: &Bench, owner: u64) -> Vec<(NodeId, Signed)> {
    let mut list = bench.list();
    let entry = list
        .iter_mut()
        .find(|(of, _)| *of == NodeId(owner))
        .unwrap();
    entry.1 = otherwise(owner);
    list
}

fn root_of(list: &[(NodeId, Signed)]) -> Digest {
    root(list.iter().map(|(owner, signed)| (owner, signed)))
}

/// Node 1 leads a round of 1 to 5, holds all data, and has heard that `ready` hold the same.
fn leader(ready: &[u64]) -> Bench {
    let mut leader = Bench::of(&[1, 2, 3, 4, 5], 1);
    for peer in 2..=5 {
        leader.tell(In::PeerUp(NodeId(peer)));
    }
    let mut effects = leader.contribute_to(FIRST);
    effects.extend(leader.hear_all(&[2, 3, 4, 5], &Message::Contribute(contribution_to(FIRST))));
    leader.hold_all(&effects);
    let same = leader.is_ready();
    leader.hear_all(ready, &same);
    leader
}

fn names(effects: &[Effect]) -> Vec<(u64, Unsound)> {
    let named = |effect: &Effect| match effect {
        Effect::Unsound(node, what) => Some((node.0, *what)),
        _ => None,
    };
    effects.iter().filter_map(named).collect()
}

/// Lists the nodes that were told that an owner equivocated.
fn told_proof(effects: &[Effect], owner: u64) -> Vec<u64> {
    let told = |(to, _, message): (NodeId, &Header, &Message)| match message {
        Message::Equivocated {
            owner: of,
            one,
            other,
        } => {
            assert_eq!((*of, one.digest == other.digest), (NodeId(owner), false));
            Some(to.0)
        }
        _ => None,
    };
    messages(effects).filter_map(told).collect()
}

#[test]
fn an_owner_that_publishes_different_values_is_proved_and_left_out() {
    for owner in [5u64, 2] {
        let mut leader = leader(&[3, 4, 5]);
        // Node 2 got other values; it may be the owner itself.
        let list = list_with(&leader, owner);
        let asked = leader.hear(2, Message::Ready(leader.entry_of(&list).digest()));
        assert!(!says!(asked, Message::Accept { .. }), "{asked:?}");
        assert!(says!(asked, to 2, Message::Compare), "{asked:?}");
        assert!(!says!(asked, to 3, Message::Compare), "{asked:?}");
        let found = leader.hear(2, Message::Published(list));
        assert_eq!(told_proof(&found, owner), [2, 3, 4, 5]);
        assert_eq!(names(&found), [(owner, Unsound::Equivocated)]);
        let others: Vec<u64> = (1..=5).filter(|node| *node != owner).collect();
        assert_eq!(leader.attempted(&found), Some(others), "{owner}");
    }
}

#[test]
fn a_receiver_that_tells_a_false_root_is_named_and_no_owner_is() {
    let mut leader = leader(&[3, 4, 5]);
    leader.hear(2, Message::Ready(Digest([7; 32])));
    // It has no values with this root.
    let list = leader.list();
    let found = leader.hear(2, Message::Published(list));
    assert_eq!(names(&found), [(2, Unsound::OtherValues)]);
    assert_eq!(leader.attempted(&found), Some(vec![1, 3, 4, 5]));
}

#[test]
fn a_list_that_names_other_owners_names_its_sender() {
    let mut leader = leader(&[3, 4, 5]);
    let mut list = leader.list();
    list.pop();
    leader.hear(2, Message::Ready(leader.entry_of(&list).digest()));
    let found = leader.hear(2, Message::Published(list.clone()));
    assert_eq!(names(&found), [(2, Unsound::OtherValues)]);
    list.reverse();
    let found = leader.hear(3, Message::Published(list));
    assert_eq!(names(&found), [(3, Unsound::OtherValues)]);
}

#[test]
fn who_does_not_say_what_it_got_is_left_out_and_not_named() {
    let mut leader = leader(&[3, 4, 5]);
    leader.hear(2, Message::Ready(Digest([7; 32])));
    // Saying it again does not prolong the wait.
    leader.wait(COMPARE_WAIT.0 - 1);
    leader.hear(2, Message::Ready(Digest([7; 32])));
    let waited = leader.wait(1);
    assert_eq!(names(&waited), []);
    assert_eq!(leader.attempted(&waited), Some(vec![1, 3, 4, 5]));
}

#[test]
fn what_a_member_got_is_told_to_the_leader_of_its_attempt_only() {
    let (mut member, _) = Bench::ready(&[1, 2, 3], 2, |_| {});
    let list = Message::Published(member.list());
    let told = |effects: Vec<Effect>| {
        let sends =
            |(to, _, message): (NodeId, &Header, &Message)| (*message == list).then_some(to.0);
        messages(&effects).filter_map(sends).collect::<Vec<_>>()
    };
    assert_eq!(told(member.hear(1, Message::Compare)), [1]);
    assert_eq!(told(member.hear(3, Message::Compare)), [0; 0]);
}

/// The leader asks for votes for what it published to others.
#[test]
fn a_voter_that_is_asked_for_other_values_tells_the_others_and_follows_the_leader_no_more() {
    let asks = ask(Entry::Held(Digest([7; 32])));
    let decide = Message::Decide {
        entry: Entry::Held(Digest([7; 32])),
        leaves: false,
    };
    for message in [asks, decide] {
        let (mut member, _) = Bench::ready(&[1, 2, 3], 2, |_| {});
        let list = member.list();
        let effects = member.hear(1, message.clone());
        assert!(!says!(effects, Message::Accepted(_)), "{effects:?}");
        assert_eq!(member.machine.last_outcome(), None);
        assert_eq!(names(&effects), [(1, Unsound::OtherValues)]);
        for to in [1, 3] {
            let told = |(node, _, message): (NodeId, &Header, &Message)| {
                node == NodeId(to) && *message == Message::Published(list.clone())
            };
            assert!(messages(&effects).any(told), "{to}: {effects:?}");
        }
        assert!(says!(effects, to 3, Message::Prepare), "{effects:?}");
    }
}

/// Node 1 leads and keeps silent. Node 3 got other values from it, and says so.
#[test]
fn members_find_a_leader_that_equivocates_and_go_on_without_it() {
    let (mut member, _) = Bench::ready(&[1, 2, 3], 2, |_| {});
    let list = list_with(&member, 1);
    let found = member.hear(3, Message::Published(list));
    assert_eq!(told_proof(&found, 1), [1, 3]);
    assert_eq!(names(&found), [(1, Unsound::Equivocated)]);
    assert!(says!(found, to 3, Message::Prepare), "{found:?}");
    // Once is enough.
    let list = list_with(&member, 1);
    let place = Place {
        term: term(0, 1),
        ..member.place()
    };
    let again = member.hear_at(3, place, Message::Published(list));
    assert_eq!((names(&again), told_proof(&again, 1)), (vec![], vec![]));
}

#[test]
fn a_proof_names_the_owner_in_any_round_and_an_empty_one_its_sender() {
    let proof = |owner: u64, other| Message::Equivocated {
        owner: NodeId(owner),
        one: signed(NodeId(owner)),
        other,
    };
    let (mut member, outcome) = Bench::ready(&[1, 2, 3, 4], 2, |_| {});
    let place = member.place();
    member.hear_decision(1, outcome);
    let told = member.hear_at(3, place, proof(4, otherwise(4)));
    assert_eq!(names(&told), [(4, Unsound::Equivocated)]);
    let again = member.hear_at(1, place, proof(4, otherwise(4)));
    assert_eq!(names(&again), []);
    let told = member.hear_at(3, place, proof(1, signed(NodeId(1))));
    assert_eq!(names(&told), [(3, Unsound::OtherValues)]);
}

/// Nobody can check it before the view, which names the keys, is known.
#[test]
fn a_proof_that_comes_before_the_view_is_not_kept() {
    let mut member = Bench::outside(view(&[1, 2, 3]), 2, |_| {});
    let place = Place {
        lineage: LINEAGE,
        epoch: Epoch::BOOTSTRAP,
        ..member.place()
    };
    let proof = Message::Equivocated {
        owner: NodeId(3),
        one: signed(NodeId(3)),
        other: otherwise(3),
    };
    member.hear_at(1, place, proof);
    let view = member.view.clone();
    let formed = member.tell(In::Formed {
        view,
        lineage: LINEAGE,
    });
    assert_eq!(names(&formed), []);
}

#[test]
fn a_node_that_signed_different_values_itself_stops() {
    let (mut member, _) = Bench::ready(&[1, 2, 3], 2, |_| {});
    let list = list_with(&member, 2);
    let found = member.hear(3, Message::Published(list));
    assert_eq!(told_proof(&found, 2), [1, 3]);
    let round = Round::BOOTSTRAP;
    let failed = Effect::Fail(RoundError::Equivocated { round });
    assert!(found.contains(&failed), "{found:?}");
}

/// Node 1 leads, and asks node 3, to which it published something else, for no vote.
#[test]
fn what_a_member_could_not_apply_shows_the_others_late_who_equivocated() {
    let (mut member, outcome) = Bench::ready(&[1, 2, 3], 2, |_| {});
    let (mut other, _) = Bench::ready(&[1, 2, 3], 3, |_| {});
    let place = member.place();
    let list = list_with(&member, 1);
    let applied = member.hear_decision(1, outcome.clone());
    let applies = |effect: &Effect| matches!(effect, Effect::Apply { .. });
    assert!(applied.iter().any(applies), "{applied:?}");
    let decided = Outcome {
        published: root_of(&list),
        ..outcome
    };
    let told = other.hear_decision(2, decided);
    assert!(says!(told, to 2, Message::Published(_)), "{told:?}");
    assert!(told.contains(&Effect::MustRejoin), "{told:?}");
    let found = member.hear_at(3, place, Message::Published(list.clone()));
    assert_eq!(told_proof(&found, 1), [1, 3]);
    assert_eq!(names(&found), [(1, Unsound::Equivocated)]);
    let again = member.hear_at(3, place, Message::Published(list));
    assert_eq!(names(&again), []);
}

/// Nodes 2 to 4 voted for what node 1 published to them; node 5 holds something else.
#[test]
fn who_takes_over_finishes_the_root_that_was_voted_for() {
    let (mut voter, outcome) = Bench::ready(&[1, 2, 3, 4, 5], 5, |_| {});
    let chosen = Outcome {
        published: Digest([7; 32]),
        ..outcome
    };
    voter.hear(1, ask(Entry::Held(chosen.digest())));
    assert_eq!(voter.machine.accepted(), None);
    let entry = ask(Entry::Whole(chosen.clone()));
    let effects = voter.hear_under(2, term(2, 2), entry);
    assert!(says!(effects, to 2, Message::Accepted(_)), "{effects:?}");
    let effects = voter.hear_under(2, term(2, 2), decision(chosen));
    assert!(effects.contains(&Effect::MustRejoin), "{effects:?}");

    // Node 2 leads, and asks for just that.
    let (mut leader, outcome) = Bench::ready(&[1, 2, 3], 2, |_| {});
    leader.tell(In::Distrust(NodeId(1)));
    let accepted = Some((term(0, 1), outcome.clone()));
    let asked = leader.hear_promise(3, accepted, None);
    let asks = |(to, _, message): (NodeId, &Header, &Message)| {
        to == NodeId(3) && *message == ask(Entry::Whole(outcome.clone()))
    };
    assert!(messages(&asked).any(asks), "{asked:?}");
}

fn proof_of(owner: u64) -> Message {
    let signed = |byte| Signed {
        digest: Digest([byte; 32]),
        signature: Signature::default(),
    };
    Message::Equivocated {
        owner: NodeId(owner),
        one: signed(1),
        other: signed(2),
    }
}

/// The leader was restarted since, or joined later.
#[test]
fn a_leader_that_counts_on_a_proved_liar_is_shown_the_proof() {
    let (mut member, entry) = Bench::ready(&[1, 2, 3, 4], 2, |_| {});
    let attempt = |number| Place {
        attempt: number,
        ..member.place()
    };
    let next = attempt(1);
    let third = attempt(2);
    let shown = member.hear_attempt_at(1, next, &entry, &[1, 2, 3, 4]);
    assert!(!says!(shown, Message::Equivocated { .. }), "{shown:?}");
    member.hear(3, proof_of(4));
    let shown = member.hear_attempt_at(1, third, &entry, &[1, 2, 3, 4]);
    assert_eq!(told_proof(&shown, 4), [1]);
}

#[test]
fn a_leader_that_is_shown_a_proof_of_an_earlier_round_admits_its_liar_no_more() {
    let mut leader = Bench::of(&[1, 2, 3], 1);
    leader.lead(SPEC);
    let place = leader.place();
    leader.hear_all(&[2, 3], &leader.vote());
    leader.joiners(vec![view(&[4]).members()[0].clone()]);
    let mut effects = leader.contribute_to(FIRST);
    let all = Message::Contribute(contribution_to(FIRST));
    effects.extend(leader.hear_all(&[2, 3], &all));
    let (next, _) = newest(&leader, &effects).unwrap();
    assert_eq!(next, [1, 2, 3, 4]);
    let found = leader.hear_at(2, place, proof_of(4));
    assert_eq!(names(&found), [(4, Unsound::Equivocated)]);
    let (next, _) = newest(&leader, &found).unwrap();
    assert_eq!(next, [1, 2, 3]);
}

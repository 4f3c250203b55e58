//! A node's promises hold on every way out of a history and back into it.

use super::*;
use crate::coordinator::{GivesUp, Voter};

#[test]
fn a_leader_that_gave_its_place_up_and_returned_leads_under_a_higher_term() {
    let mut leader = Bench::of(&[1, 2, 3], 1);
    leader.lead(SPEC);
    leader.hear(2, leader.vote());
    // It leads round 1, and has asked for votes.
    leader.lead(FIRST);
    let term = leader.term();
    leader.tell(In::Resign(GivesUp::Membership));
    let effects = leader.tell(In::Return { ended: false });
    assert!(says!(effects, Message::Prepare), "{effects:?}");
    assert!(leader.term() > term);
}

#[test]
fn a_vote_counts_once_and_only_under_its_term() {
    let mut leader = Bench::of(&[1, 2, 3, 4, 5], 1);
    leader.lead(SPEC);
    let decides = |effects: Vec<Effect>| says!(effects, Message::Decide { .. });
    assert!(!decides(leader.hear_all(&[2, 2, 2], &leader.vote())));
    let vote = leader.vote();
    assert!(!decides(leader.hear_under(3, term(1, 3), vote)));
    let other = accepted(&founded(&leader.view, 2));
    assert!(!decides(leader.hear_all(&[3, 4], &other)));
    assert!(decides(leader.hear(3, leader.vote())));
}

#[test]
fn a_founder_that_voted_goes_over_to_no_other_bootstrap() {
    let mut founder = Bench::of(&[2, 3, 4], 4);
    // It was taken for dead, so that the attempt left it out.
    let entry = Outcome {
        view: next_view(&founder.view, view(&[2, 3]).members()),
        ..founded(&founder.view, 2)
    };
    let effects = founder.hear(2, ask(Entry::Whole(entry)));
    assert!(says!(effects, Message::Accepted(_)));
    assert_eq!(
        founder.tell(In::Resign(GivesUp::ForBootstrap)),
        [Effect::Resigned(false)]
    );
}

/// Node 3 is a member of the newest view and has given its place up. It asks for the same view
/// again, and the next round admits it.
#[test]
fn a_member_that_resigned_is_admitted_by_the_next_round() {
    let mut node = Bench::of(&[1, 2, 3], 3);
    node.contribute();
    let entry = founded(&node.view, 1);
    node.hear_decision(1, entry.clone());
    node.tell(In::Resign(GivesUp::Membership));
    let effects = node.hear_admission(entry, 1, &[1, 2, 3]);
    let opens = |effect: &Effect| matches!(effect, Effect::Open(_));
    assert!(effects.iter().any(opens), "{effects:?}");
    assert_eq!(node.machine.view(), None, "it holds nothing of it yet");
}

/// Node 3 votes although it is no member. Another history begins to admit it, and then the one in
/// which it votes.
#[test]
fn a_voter_that_two_histories_admit_in_turn_forgets_no_vote() {
    let mut voter = Bench::of(&[1, 2, 3], 3);
    voter.contribute();
    let entry = Outcome {
        view: next_view(&voter.view, view(&[1, 2]).members()),
        retained: view(&[3]).members().to_vec(),
        ..founded(&voter.view, 1)
    };
    voter.hear_decision(1, entry.clone());
    let next = Outcome {
        round: Round(1),
        spec: FIRST,
        contributors: ids(&[1, 2]),
        ..entry.clone()
    };
    voter.hear_under(1, term(5, 1), ask(Entry::Whole(next)));
    assert!(voter.machine.accepted().is_some());

    let elsewhere = Outcome {
        lineage: Lineage(78),
        round: Round(49),
        retained: vec![],
        ..entry.clone()
    };
    voter.hear_admission(elsewhere, 1, &[1, 2, 3]);
    assert_eq!(voter.place().lineage, Lineage(78));
    voter.hear_admission(entry, 2, &[1, 2, 3]);
    assert_eq!(voter.place().lineage, LINEAGE);
    let effects = voter.hear_under(2, term(1, 2), Message::Prepare);
    assert!(
        !says!(effects, Message::Promise { .. }),
        "it promised a higher term: {effects:?}"
    );
}

/// Nodes 2 and 3 were about to admit node 4 and died; node 1 is in an earlier round of a history
/// that parted from theirs.
#[test]
fn a_joiner_is_admitted_to_another_history_also_where_that_is_behind() {
    let mut joiner = Bench::outside(view(&[1, 2, 3, 4]), 4, |_| {});
    joiner.contribute();
    for (lineage, round, members, next) in [
        (LINEAGE, Round(90), &[2, 3][..], &[2, 3, 4][..]),
        (Lineage(78), Round(50), &[1, 2, 3], &[1, 3, 4]),
    ] {
        let parent = Outcome {
            lineage,
            round: Round(round.0 - 1),
            spec: FIRST,
            ..founded(&view(members), members[0])
        };
        joiner.hear_admission(parent, members[0], next);
        assert_eq!(
            (joiner.place().lineage, joiner.place().round),
            (lineage, round)
        );
    }
}

/// The frames for a node.
fn frames_to(node: u64, effects: Vec<Effect>) -> Vec<In> {
    let to_it = |effect| match effect {
        Effect::Send {
            to,
            frame: Frame::V1 { header, message },
        } if to == NodeId(node) => Some(In::Frame { header, message }),
        _ => None,
    };
    effects.into_iter().filter_map(to_it).collect()
}

/// Node 1 is ordered to go on without 4 to 6, tells 2, and dies before 3 hears of it.
#[test]
fn who_was_not_told_of_a_fork_is_told_by_those_who_were() {
    let mut told = Bench::of(&[1, 2, 3, 4, 5, 6], 2);
    let mut untold = Bench::of(&[1, 2, 3, 4, 5, 6], 3);
    for node in [&mut told, &mut untold] {
        node.contribute();
        node.lose(&[4, 5, 6], true);
        node.hear_all(&[1, 2, 3], &Message::Contribute(contribution()));
    }
    let voters: Vec<Voter> = view(&[1, 2, 3]).members().iter().map(Voter::from).collect();
    told.hear_under(
        1,
        term(1, 1),
        Message::Fork {
            lineage: LINEAGE.parted(99),
            ordered: true,
            voters,
        },
    );
    let mut from_told = told.lose(&[1], true);
    let mut from_untold = untold.lose(&[1], true);
    for _ in 0..20 {
        from_told.extend(told.wait(300_000));
        from_untold.extend(untold.wait(300_000));
        let to_untold = frames_to(3, std::mem::take(&mut from_told));
        let to_told = frames_to(2, std::mem::take(&mut from_untold));
        from_untold.extend(to_untold.into_iter().flat_map(|frame| untold.tell(frame)));
        from_told.extend(to_told.into_iter().flat_map(|frame| told.tell(frame)));
    }
    assert_eq!(told.place().lineage, untold.place().lineage);
}

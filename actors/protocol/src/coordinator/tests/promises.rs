//! What a node promised holds on every way out of a history and back into it.

use super::streams::{LINEAGE, Leader, contribution, founded, says};
use crate::coordinator::{
    Base, Draft, Effect, GivesUp, In, Outcome, Proposal, RoundKind, RoundSpec, Voter,
};
use crate::ident::{Epoch, Lineage, NodeId, Round, Step, Term};
use crate::machine::Place;
use crate::view::View;
use crate::view::tests::view;
use crate::wire::{ContributionNotice, Frame, Message};

/// The round after the bootstrap.
const FIRST: RoundSpec = RoundSpec {
    kind: RoundKind::Average,
    step: Step(1),
    gamma: 0.0,
    elements: 23,
};

/// Brings all data of the attempt that these effects began.
fn hold_all(node: &mut Leader, effects: &[Effect]) -> Vec<Effect> {
    let mut more = Vec::new();
    for effect in effects {
        if let Effect::Open(plan) = effect {
            if plan.owns() {
                more.extend(node.tell(In::Reduced(plan.attempt)));
            }
            for owner in plan.other_owners() {
                more.extend(node.tell(In::ParametersHeld(plan.attempt, owner)));
            }
        }
    }
    for effect in effects {
        if let Effect::Publish(publication) = effect {
            let senders: Vec<NodeId> = publication
                .moves_to(NodeId(node.id))
                .map(|moved| moved.from)
                .collect();
            for sender in senders {
                more.extend(node.tell(In::StateHeld(publication.attempt, sender)));
            }
        }
    }
    more
}

/// Node 1 leads round 1 of three, and has asked for votes.
fn asked_for_votes() -> Leader {
    let mut leader = Leader::of(&[1, 2, 3], 1);
    for spec in [super::streams::SPEC, FIRST] {
        let round = leader.machine.place().round;
        let mut effects = leader.tell(In::Contribute {
            round,
            spec,
            samples: None,
            rates: vec![],
            buffers: 0,
        });
        for id in [2, 3] {
            effects.extend(leader.hear(
                id,
                Message::Contribute(ContributionNotice {
                    spec,
                    samples: None,
                    rates: vec![],
                }),
            ));
        }
        effects.extend(hold_all(&mut leader, &effects.clone()));
        for id in [2, 3] {
            effects.extend(leader.hear(id, Message::Ready));
        }
        assert!(says(&effects, |message| matches!(
            message,
            Message::Accept(_)
        )));
        if spec != FIRST {
            leader.hear(2, Message::Accepted);
        }
    }
    leader
}

#[test]
fn a_leader_that_gave_its_place_up_and_returned_leads_under_a_higher_term() {
    let mut leader = asked_for_votes();
    let term = leader.term();
    leader.tell(In::Resign(GivesUp::Membership));
    let effects = leader.tell(In::Return { ended: false });
    assert!(
        says(&effects, |message| matches!(message, Message::Prepare)),
        "{effects:?}"
    );
    assert!(leader.term() > term);
}

#[test]
fn a_founder_that_voted_goes_over_to_no_other_bootstrap() {
    let mut founder = Leader::of(&[2, 3, 4], 4);
    // It was taken for dead, so that the attempt left it out.
    let all = view(&[2, 3, 4]);
    let two = all
        .succeeded_by(Epoch(all.epoch().0 + 1), view(&[2, 3]).members().to_vec())
        .unwrap();
    let entry = Outcome {
        view: two,
        ..founded(&all, NodeId(2))
    };
    let effects = founder.hear(2, Message::Accept(Some(entry)));
    assert!(says(&effects, |message| matches!(
        message,
        Message::Accepted
    )));
    assert_eq!(
        founder.tell(In::Resign(GivesUp::ForBootstrap)),
        [Effect::Resigned(false)]
    );
}

/// A leader attempts to admit node 3.
fn admit(node: &mut Leader, parent: Outcome, leader: u64, counter: u64) -> Vec<Effect> {
    let before: View = parent.view.clone();
    let round = parent.round.next();
    let base = Base {
        round,
        view: &before,
        order: &[],
        forks: &[],
    };
    let all = view(&[1, 2, 3]).members().to_vec();
    let joined = before
        .succeeded_by(Epoch(before.epoch().0 + 1), all)
        .unwrap();
    let leads = NodeId(leader);
    let outcome = Outcome {
        round,
        view: joined,
        spec: FIRST,
        contributors: vec![leads],
        leader: leads,
        retained: vec![],
        ..parent.clone()
    };
    let participants = before.ids().filter(|id| *id != NodeId(3)).collect();
    let draft = Draft::new(
        &Proposal {
            outcome,
            participants,
        },
        base,
    );
    let term = Term {
        counter,
        node: leads,
    };
    let place = Place {
        lineage: parent.lineage,
        epoch: before.epoch(),
        round,
        term,
        attempt: 1,
    };
    node.hear_at(leader, place, Message::Admit { parent, draft })
}

/// Node 3 is a member of the newest view and has given its place up. It asks for the same view
/// again, and the next round admits it.
#[test]
fn a_member_that_resigned_is_admitted_by_the_next_round() {
    let mut node = Leader::of(&[1, 2, 3], 3);
    node.contribute();
    let entry = founded(&node.view.clone(), NodeId(1));
    let decide = Message::Decide {
        entry: Some(entry.clone()),
        leaves: false,
    };
    node.hear(1, decide);
    node.tell(In::Resign(GivesUp::Membership));
    let effects = admit(&mut node, entry, 1, 1);
    let opens = |effect: &Effect| matches!(effect, Effect::Open(_));
    assert!(effects.iter().any(opens), "{effects:?}");
}

/// Node 3 votes although it is no member. Another history begins to admit it, and then the one in
/// which it votes.
#[test]
fn a_voter_that_two_histories_admit_in_turn_forgets_no_vote() {
    let mut voter = Leader::of(&[1, 2, 3], 3);
    voter.contribute();
    let all = voter.view.clone();
    let two = all
        .succeeded_by(Epoch(all.epoch().0 + 1), view(&[1, 2]).members().to_vec())
        .unwrap();
    let retained = vec![view(&[3]).members()[0].clone()];
    let entry = Outcome {
        view: two,
        retained,
        ..founded(&all, NodeId(1))
    };
    voter.hear(
        1,
        Message::Decide {
            entry: Some(entry.clone()),
            leaves: false,
        },
    );
    let next = Outcome {
        round: Round(1),
        spec: FIRST,
        contributors: vec![NodeId(1), NodeId(2)],
        ..entry.clone()
    };
    let term = Term {
        counter: 5,
        node: NodeId(1),
    };
    voter.hear_at(
        1,
        Place {
            term,
            ..voter.machine.place()
        },
        Message::Accept(Some(next)),
    );
    assert!(voter.machine.accepted().is_some());

    let elsewhere = Outcome {
        lineage: Lineage(78),
        round: Round(49),
        retained: vec![],
        ..entry.clone()
    };
    admit(&mut voter, elsewhere, 1, 1);
    assert_eq!(voter.machine.place().lineage, Lineage(78));
    admit(&mut voter, entry, 2, 1);
    assert_eq!(voter.machine.place().lineage, LINEAGE);
    let lower = Place {
        term: Term {
            counter: 1,
            node: NodeId(2),
        },
        attempt: 0,
        ..voter.machine.place()
    };
    let effects = voter.hear_at(2, lower, Message::Prepare);
    assert!(
        !says(&effects, |message| matches!(
            message,
            Message::Promise { .. }
        )),
        "it promised a higher term: {effects:?}"
    );
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
    let mut told = Leader::of(&[1, 2, 3, 4, 5, 6], 2);
    let mut untold = Leader::of(&[1, 2, 3, 4, 5, 6], 3);
    for node in [&mut told, &mut untold] {
        node.contribute();
        [4, 5, 6]
            .into_iter()
            .for_each(|dead| _ = node.lose(dead, true));
        [1, 2, 3]
            .into_iter()
            .for_each(|id| _ = node.hear(id, Message::Contribute(contribution())));
    }
    let voters: Vec<Voter> = told
        .view
        .members()
        .iter()
        .filter(|member| member.id.0 <= 3)
        .map(Voter::from)
        .collect();
    let place = Place {
        term: Term {
            counter: 1,
            node: NodeId(1),
        },
        ..told.machine.place()
    };
    told.hear_at(
        1,
        place,
        Message::Fork {
            lineage: LINEAGE.parted(99),
            ordered: true,
            voters,
        },
    );
    let mut from_told = told.lose(1, true);
    let mut from_untold = untold.lose(1, true);
    for _ in 0..20 {
        for node in [&mut told, &mut untold] {
            node.now += 300_000;
        }
        from_told.extend(told.tell(In::Tick));
        from_untold.extend(untold.tell(In::Tick));
        let to_untold = frames_to(3, std::mem::take(&mut from_told));
        let to_told = frames_to(2, std::mem::take(&mut from_untold));
        from_untold.extend(to_untold.into_iter().flat_map(|frame| untold.tell(frame)));
        from_told.extend(to_told.into_iter().flat_map(|frame| told.tell(frame)));
    }
    assert_eq!(told.machine.place().lineage, untold.machine.place().lineage);
}

//! Members that send what no correct node sends, and averages that overflow although nobody does.

use super::streams::{Leader, attempted, contribution, says};
use crate::coordinator::{Attempt, Effect, In, RoundError};
use crate::ident::{Epoch, Incarnation, NodeId};
use crate::machine::Machine;
use crate::view::Member;
use crate::wire::{Message, RefusalReason};

/// Node 1 leads, and all have contributed.
fn all_contributed(ids: &[u64]) -> Leader {
    let mut leader = Leader::new(ids);
    for id in &ids[1..] {
        leader.tell(In::PeerUp(NodeId(*id)));
        leader.hear(*id, Message::Contribute(contribution()));
    }
    leader
}

fn unsound(leader: &mut Leader, node: u64) -> Vec<Effect> {
    let attempt = Attempt::at(&leader.machine.place());
    leader.tell(In::Unsound(attempt, NodeId(node)))
}

#[test]
fn a_leader_goes_on_at_once_without_whoever_lied_to_it() {
    let mut leader = all_contributed(&[1, 2, 3, 4]);
    let begun = leader.machine.place();
    let effects = unsound(&mut leader, 3);
    assert_eq!(attempted(&leader, &effects), Some(vec![1, 2, 4]));
    assert_eq!(leader.machine.place().term, begun.term);
    // It can be reached, and says so; that changes nothing.
    leader.tell(In::PeerDown(NodeId(3)));
    leader.tell(In::PeerUp(NodeId(3)));
    let effects = leader.hear(2, Message::Broken(NodeId(4)));
    assert_eq!(attempted(&leader, &effects), Some(vec![1, 2, 4]));
}

#[test]
fn whoever_lied_is_admitted_again_only_as_another_process() {
    let mut leader = all_contributed(&[1, 2, 3, 4]);
    leader.tell(In::Distrust(NodeId(3)));
    let known = leader.view.member(NodeId(3)).unwrap().clone();
    let joins = |leader: &mut Leader, incarnation: Incarnation| {
        let epoch = Epoch(leader.view.epoch().0);
        let member = Member {
            incarnation,
            ..known.clone()
        };
        leader.tell(In::Joiners {
            epoch,
            members: vec![member],
        });
        leader.machine.joiners().collect::<Vec<_>>()
    };
    assert_eq!(joins(&mut leader, known.incarnation), []);
    let restarted = Incarnation(known.incarnation.0 + 1);
    assert_eq!(joins(&mut leader, restarted), [NodeId(3)]);
}

#[test]
fn another_member_stands_in_for_a_leader_that_lied() {
    let mut member = Leader::of(&[1, 2, 3], 2);
    for peer in [1, 3] {
        member.tell(In::PeerUp(NodeId(peer)));
    }
    member.contribute();
    let effects = member.tell(In::Distrust(NodeId(1)));
    assert!(
        says(&effects, |message| matches!(message, Message::Prepare)),
        "{effects:?}"
    );
}

#[test]
fn a_liar_without_which_there_is_no_quorum_stays_and_its_values_are_refused_again() {
    let mut leader = all_contributed(&[1, 2]);
    for _ in 0..3 {
        unsound(&mut leader, 2);
        leader.now = leader.machine.next_deadline().unwrap().0;
        leader.tell(In::Tick);
    }
    assert_eq!(leader.machine.last_outcome(), None);
    assert!(leader.machine.view().is_some());
}

#[test]
fn an_overflow_ends_the_run_everywhere_and_excludes_nobody() {
    let mut owner = Leader::of(&[1, 2, 3], 2);
    owner.contribute();
    let attempt = Attempt::at(&owner.machine.place());
    let effects = owner.tell(In::Overflowed(attempt, 17));
    let told = |message: &Message| {
        matches!(
            message,
            Message::Abandon(RefusalReason::Overflowed {
                node: NodeId(2),
                element: 17
            })
        )
    };
    assert!(says(&effects, told), "{effects:?}");
    assert!(
        effects.iter().any(|effect| matches!(
            effect,
            Effect::Fail(RoundError::Overflowed {
                node: NodeId(2),
                element: 17,
                ..
            })
        )),
        "{effects:?}"
    );
    // Of an attempt that is over.
    let mut owner = Leader::of(&[1, 2, 3], 2);
    owner.contribute();
    let other = Attempt {
        number: attempt.number + 1,
        ..attempt
    };
    assert_eq!(owner.tell(In::Overflowed(other, 17)), []);
}

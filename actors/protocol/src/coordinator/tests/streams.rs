//! Streams that break, and who still contributes: one machine, told by hand what the others say.

use super::node::CLUSTER;
use crate::coordinator::{
    Attempt, Base, Coordinator, Draft, Effect, GivesUp, In, Origin, Outcome, Proposal, RoundKind,
    RoundSpec, Settings,
};
use crate::ident::{Epoch, Lineage, NodeId, Round, Step, Term};
use crate::machine::{Identity, Machine, Outbox, Place};
use crate::time::{Instant, Span};
use crate::view::View;
use crate::wire::{ContributionNotice, Frame, Message};

pub const SPEC: RoundSpec = RoundSpec {
    kind: RoundKind::Bootstrap,
    step: Step(0),
    gamma: 0.0,
    elements: 23,
};
pub const LINEAGE: Lineage = Lineage(77);
pub const FORK_AFTER: Span = Span::from_millis(20_000);

/// The coordinator of a node, the lowest one for the most part, and what it asks for.
pub struct Leader {
    pub machine: Coordinator,
    pub view: View,
    pub now: u64,
    pub id: u64,
}

fn identity(view: &View, node: u64) -> Identity {
    Identity {
        cluster: CLUSTER,
        node: NodeId(node),
        incarnation: view.member(NodeId(node)).unwrap().incarnation,
    }
}

fn settings(view: &View, node: u64) -> Settings {
    Settings {
        fork_after: FORK_AFTER,
        ..Settings::simulated(identity(view, node))
    }
}

impl Leader {
    pub fn new(ids: &[u64]) -> Self {
        let mut leader = Self::of(ids, ids[0]);
        leader.contribute();
        leader
    }

    /// Node `node` of the view, before its first contribution.
    pub fn of(ids: &[u64], node: u64) -> Self {
        Self::with(ids, node, |settings| settings)
    }

    pub fn with(ids: &[u64], node: u64, change: impl FnOnce(Settings) -> Settings) -> Self {
        let view = crate::view::tests::view(ids);
        let machine = Coordinator::new(change(settings(&view, node)));
        let mut member = Self {
            machine,
            view: view.clone(),
            now: 1,
            id: node,
        };
        member.tell(In::Formed {
            view,
            lineage: LINEAGE,
        });
        member
    }

    pub fn tell(&mut self, event: In) -> Vec<Effect> {
        let mut out = Outbox::default();
        self.machine.handle(event, Instant(self.now), &mut out);
        out.take()
    }

    pub fn contribute(&mut self) -> Vec<Effect> {
        self.tell(In::Contribute {
            round: Round::BOOTSTRAP,
            spec: SPEC,
            samples: None,
            rates: vec![],
            buffers: 0,
        })
    }

    /// A node is dead.
    pub fn lose(&mut self, node: u64, ended: bool) -> Vec<Effect> {
        let incarnation = identity(&self.view, node).incarnation;
        self.tell(In::Lost {
            node: NodeId(node),
            incarnation,
            ended,
        })
    }

    /// A frame of the attempt in force.
    pub fn hear(&mut self, from: u64, message: Message) -> Vec<Effect> {
        self.hear_at(from, self.machine.place(), message)
    }

    pub fn hear_under(&mut self, from: u64, term: Term, message: Message) -> Vec<Effect> {
        self.hear_at(
            from,
            Place {
                term,
                attempt: 0,
                ..self.machine.place()
            },
            message,
        )
    }

    pub fn hear_at(&mut self, from: u64, place: Place, message: Message) -> Vec<Effect> {
        let Frame::V1 { header, message } = identity(&self.view, from).frame(place, message);
        self.tell(In::Frame { header, message })
    }

    /// The leader of the term in force attempts an outcome.
    pub fn hear_attempt(
        &mut self,
        from: u64,
        outcome: &Outcome,
        participants: &[u64],
    ) -> Vec<Effect> {
        let participants = participants.iter().copied().map(NodeId).collect();
        let draft = Draft::new(
            &Proposal {
                outcome: outcome.clone(),
                participants,
            },
            base(&self.view),
        );
        self.hear(from, Message::Attempt(draft))
    }

    /// A voter's promise under the term in force; it accepted nothing.
    pub fn hear_promise(&mut self, from: u64, contributes: bool) -> Vec<Effect> {
        let contributed = contributes.then(contribution);
        self.hear(
            from,
            Message::Promise {
                accepted: None,
                floor: Term::default(),
                contributed,
            },
        )
    }

    pub fn term(&self) -> Term {
        self.machine.place().term
    }
}

pub fn contribution() -> ContributionNotice {
    ContributionNotice {
        spec: SPEC,
        samples: None,
        rates: vec![],
    }
}

fn base(view: &View) -> Base<'_> {
    Base {
        round: Round::BOOTSTRAP,
        view,
        order: &[],
        forks: &[],
    }
}

/// The founding of a view with this node's parameters.
pub fn founded(view: &View, contributor: NodeId) -> Outcome {
    Outcome {
        lineage: LINEAGE,
        round: Round::BOOTSTRAP,
        spec: SPEC,
        contributors: vec![contributor],
        view: view.clone(),
        absent: vec![],
        momentum_lost: 0,
        samples: None,
        order: vec![],
        origin: Origin::default(),
        forks: Vec::new(),
        waiting: vec![],
        retained: vec![],
        leader: view.lowest(),
    }
}

/// What the first frame of these effects that `wanted` knows says.
pub fn said<T>(effects: &[Effect], wanted: impl Fn(&Message) -> Option<T>) -> Option<T> {
    effects.iter().find_map(|effect| {
        let Effect::Send {
            frame: Frame::V1 { message, .. },
            ..
        } = effect
        else {
            return None;
        };
        wanted(message)
    })
}

/// Who is to take part in the newest attempt that a leader begins.
pub fn attempted(leader: &Leader, effects: &[Effect]) -> Option<Vec<u64>> {
    let messages = effects.iter().filter_map(|effect| match effect {
        Effect::Send {
            frame: Frame::V1 { message, .. },
            ..
        } => Some(&**message),
        _ => None,
    });
    let mut drafts = messages.filter_map(|message| {
        if let Message::Attempt(draft) = message {
            Some(draft)
        } else {
            None
        }
    });
    let newest = drafts.next_back()?.resolve(base(&leader.view))?;
    Some(newest.participants.iter().map(|node| node.0).collect())
}

pub fn says(effects: &[Effect], wanted: fn(&Message) -> bool) -> bool {
    let is = |effect: &Effect| matches!(effect, Effect::Send { frame: Frame::V1 { message, .. }, .. } if wanted(message));
    effects.iter().any(is)
}

#[test]
fn one_death_breaks_the_streams_of_many_members_and_costs_one_attempt() {
    let ids: Vec<u64> = (1..=14).collect();
    let mut leader = Leader::new(&ids);
    let first = leader.machine.place();
    // Node 14 dies while node 13 still computes: its streams of the first attempt break everywhere,
    // then it is found dead.
    leader.tell(In::StreamBroken(Attempt::at(&first), NodeId(14)));
    leader.lose(14, false);
    for id in 2..=12 {
        leader.hear(id, Message::Contribute(contribution()));
    }
    // What broke was of the first attempt; the second one waits for node 13's contribution.
    leader.now += 600_000;
    let waits = leader.tell(In::Tick);
    assert_eq!(
        (leader.machine.place(), attempted(&leader, &waits)),
        (first, None)
    );
    for id in 2..=12 {
        let effects = leader.hear_at(id, first, Message::Broken(NodeId(14)));
        assert!(
            !says(&effects, |message| matches!(message, Message::Abandon(_))),
            "{effects:?}"
        );
    }
    let begun = leader.hear(13, Message::Contribute(contribution()));
    assert_eq!(attempted(&leader, &begun), Some((1..=13).collect()));
    let second = leader.machine.place();
    assert_eq!(
        (second.term, second.attempt),
        (first.term, first.attempt + 1)
    );
    for id in 2..=12 {
        leader.hear_at(id, first, Message::Broken(NodeId(14)));
    }
    assert_eq!(leader.machine.place(), second);
}

#[test]
fn who_leaves_after_it_contributed_cuts_nobody_short() {
    let mut leader = Leader::new(&[1, 2, 3, 4]);
    leader.lose(4, false);
    let incarnation = identity(&leader.view, 3).incarnation;
    leader.tell(In::Leaving {
        node: NodeId(3),
        incarnation,
        contributes: false,
    });
    let early = leader.hear(3, Message::Contribute(contribution()));
    assert_eq!(attempted(&leader, &early), None, "node 2 is still expected");
    let complete = leader.hear(2, Message::Contribute(contribution()));
    assert_eq!(attempted(&leader, &complete), Some(vec![1, 2, 3]));
}

/// Nodes 2 and 3 were about to admit node 4 and died; node 1 is in an earlier round of a history
/// that parted from theirs.
#[test]
fn a_joiner_is_admitted_to_another_history_also_where_that_is_behind() {
    let all = crate::view::tests::view(&[1, 2, 3, 4]);
    let mut joiner = Leader {
        machine: Coordinator::new(settings(&all, 4)),
        view: all,
        now: 1,
        id: 4,
    };
    joiner.contribute();
    for (lineage, round, members, next) in [
        (LINEAGE, 90, vec![2, 3], [2, 3, 4]),
        (Lineage(78), 50, vec![1, 2, 3], [1, 3, 4]),
    ] {
        let before = crate::view::tests::view(&members);
        let joined = crate::view::tests::view(&next);
        let leader = NodeId(members[0]);
        let spec = RoundSpec {
            kind: RoundKind::Slow,
            ..SPEC
        };
        let parent = Outcome {
            lineage,
            round: Round(round - 1),
            spec,
            ..founded(&before, leader)
        };
        let base = Base {
            round: Round(round),
            view: &before,
            order: &[],
            forks: &[],
        };
        let view = before
            .succeeded_by(Epoch(before.epoch().0 + 1), joined.members().to_vec())
            .unwrap();
        let outcome = Outcome {
            round: Round(round),
            view,
            ..parent.clone()
        };
        let draft = Draft::new(
            &Proposal {
                outcome,
                participants: vec![leader],
            },
            base,
        );
        let place = Place {
            lineage,
            epoch: before.epoch(),
            round: Round(round),
            term: Term {
                counter: 1,
                node: leader,
            },
            attempt: 1,
        };
        joiner.hear_at(members[0], place, Message::Admit { parent, draft });
        assert_eq!(
            (joiner.machine.place().lineage, joiner.machine.place().round),
            (lineage, Round(round))
        );
    }
}

/// Node 2 has averaged its own shards and waits for those of node 1, whose stream was finished and
/// then lost with its connection.
#[test]
fn what_was_lost_with_a_connection_is_asked_for_when_that_is_new_again() {
    let mut member = Leader::of(&[1, 2, 3], 2);
    for peer in [1, 3] {
        member.tell(In::PeerUp(NodeId(peer)));
    }
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
    let others = plan.other_owners();
    let outcome = founded(&member.view, NodeId(1));
    member.hear_attempt(1, &outcome, &[1, 2, 3]);
    member.tell(In::Reduced(plan.attempt));
    for owner in others.iter().filter(|owner| **owner != NodeId(3)) {
        member.tell(In::ParametersHeld(plan.attempt, *owner));
    }
    assert!(others.contains(&NodeId(3)), "node 3 owns a shard");
    let broken = |effects: &[Effect]| {
        says(effects, |message| {
            matches!(message, Message::Broken(NodeId(3)))
        })
    };
    member.now += 600_000;
    assert!(
        !broken(&member.tell(In::Tick)),
        "nothing is known to be wrong"
    );
    // A new connection of a node that has brought all it must is of no interest.
    member.tell(In::PeerUp(NodeId(1)));
    member.now += 600_000;
    assert!(!broken(&member.tell(In::Tick)));
    member.tell(In::PeerUp(NodeId(3)));
    member.now += 400_000;
    assert!(!broken(&member.tell(In::Tick)), "it may still come");
    member.now += 200_000;
    assert!(broken(&member.tell(In::Tick)));
    member.now += 600_000;
    assert!(
        !broken(&member.tell(In::Tick)),
        "a new connection costs one attempt"
    );
}

/// Node 2 takes node 1, which leads, for dead, and dies itself before its round is decided.
#[test]
fn a_member_that_was_left_out_leads_again_when_whoever_left_it_out_dies() {
    let mut member = Leader::new(&[1, 2, 3, 4]);
    let taken_over = Term {
        counter: 1,
        node: NodeId(2),
    };
    let promised = member.hear_under(2, taken_over, Message::Prepare);
    assert!(
        says(&promised, |message| matches!(
            message,
            Message::Promise { .. }
        )),
        "it votes, whoever takes part: {promised:?}"
    );
    let opened = member.hear_under(2, taken_over, Message::Open);
    assert!(says(&opened, |message| matches!(message, Message::Opened)));
    let resumed = member.lose(2, false);
    assert!(
        says(&resumed, |message| matches!(message, Message::Prepare)),
        "it leads again: {resumed:?}"
    );
    assert!(member.term() > taken_over);
    let refused = member.hear_under(2, taken_over, Message::Open);
    assert!(
        says(&refused, |message| matches!(message, Message::Overtaken)),
        "{refused:?}"
    );
    member.hear_promise(3, true);
    let begun = member.hear_promise(4, true);
    assert_eq!(attempted(&member, &begun), Some(vec![1, 3, 4]));
}

#[test]
fn a_promise_is_told_again_when_its_leader_can_be_reached() {
    let mut member = Leader::of(&[1, 2, 3], 2);
    member.contribute();
    let promises = |effects: &[Effect]| {
        says(effects, |message| {
            matches!(
                message,
                Message::Promise {
                    contributed: Some(_),
                    ..
                }
            )
        })
    };
    assert!(
        !promises(&member.tell(In::PeerUp(NodeId(1)))),
        "the first term needs no promises"
    );
    let term = member.term().next_of(NodeId(1));
    // It may be lost: the leader can be heard, but not answered yet.
    assert!(promises(&member.hear_under(1, term, Message::Prepare)));
    assert!(!promises(&member.tell(In::PeerUp(NodeId(3)))));
    assert!(promises(&member.tell(In::PeerUp(NodeId(1)))));
}

#[test]
fn a_bootstrap_is_given_up_unless_it_is_decided() {
    let mut member = Leader::of(&[2, 3], 3);
    assert_eq!(
        member.tell(In::Resign(GivesUp::ForBootstrap)),
        [Effect::Resigned(true)]
    );
    assert_eq!(member.machine.view(), None);
    // What the founding that it goes over to has sent it meanwhile was refused: it asks for that
    // again.
    let view = crate::view::tests::view(&[1, 3]);
    let effects = member.tell(In::Formed {
        view: view.clone(),
        lineage: Lineage(78),
    });
    assert!(
        says(&effects, |message| matches!(
            message,
            Message::Broken(NodeId(3))
        )),
        "{effects:?}"
    );

    let mut alone = Leader::of(&[2], 2);
    let opened = alone.contribute();
    let plan = opened.iter().find_map(|effect| {
        if let Effect::Open(plan) = effect {
            Some(plan.clone())
        } else {
            None
        }
    });
    let applied = alone.tell(In::Reduced(plan.unwrap().attempt));
    assert!(
        applied
            .iter()
            .any(|effect| matches!(effect, Effect::Apply { .. })),
        "{applied:?}"
    );
    assert_eq!(
        alone.tell(In::Resign(GivesUp::ForDecided)),
        [Effect::Resigned(false)]
    );
    assert!(alone.machine.view().is_some());
}

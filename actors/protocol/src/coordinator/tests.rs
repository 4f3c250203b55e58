//! One coordinator at a time, told by hand what the others say. Whole clusters are simulated in
//! `chaos-tests`.

/// Whether any of the effects sends such a message, to anybody or to one node.
macro_rules! says {
    ($effects:expr, $message:pat) => {
        messages(&$effects).any(|(.., message)| matches!(message, $message))
    };
    ($effects:expr, to $node:expr, $message:pat) => {
        messages(&$effects)
            .any(|(to, _, message)| to == NodeId($node) && matches!(message, $message))
    };
}

mod apart;
mod asked_checkpoint;
mod asked_settings;
mod attempts;
mod equivocation;
mod forking;
mod order;
mod promises;
mod restoring;
mod returning;
mod size;
mod stragglers;
mod streams;
mod unsound;
mod verbs;
mod votes;

use crate::changeable::ChangedSettings;
use crate::coordinator::{
    Base, Coordinator, Draft, Effect, Entry, In, Outcome, Plan, Proposal, RoundKind, RoundSpec,
    Settings,
};
use crate::ident::{ClusterId, Epoch, Incarnation, Lineage, NodeId, Round, Step, Term};
use crate::machine::{Identity, Machine, Outbox, Place};
use crate::published::{Digest, Signature, Signed, root};
use crate::time::{Instant, Span};
use crate::view::tests::view;
use crate::view::{Member, View};
use crate::wire::{ContributionNotice, Frame, Header, Message};
use std::sync::Arc;

const SPEC: RoundSpec = RoundSpec {
    kind: RoundKind::Bootstrap,
    step: Step(0),
    gamma: 0.0,
    elements: 23,
};
/// The round after the bootstrap.
const FIRST: RoundSpec = RoundSpec {
    kind: RoundKind::Average,
    step: Step(1),
    ..SPEC
};
const LINEAGE: Lineage = Lineage(77);
const FORK_AFTER: Span = Span::from_millis(20_000);

/// The coordinator of one node, its clock, and the view that names the others' incarnations.
struct Bench {
    machine: Coordinator,
    view: View,
    now: u64,
    id: u64,
    /// The plan that was opened last.
    plan: Option<Arc<Plan>>,
    /// The entry of the attempt that it proposed last, as a leader.
    proposed: Option<Outcome>,
}

impl Bench {
    /// The lowest node of the view, which leads and has contributed.
    fn leader(ids: &[u64]) -> Self {
        let mut leader = Self::of(ids, ids[0]);
        leader.contribute();
        leader
    }

    /// The leader of a view of which all can be reached and have contributed.
    fn with_all_contributions(ids: &[u64]) -> Self {
        let mut leader = Self::leader(ids);
        for id in &ids[1..] {
            leader.tell(In::PeerUp(NodeId(*id)));
            leader.hear(*id, Message::Contribute(contribution()));
        }
        leader
    }

    /// Node `node` of the view, before its first contribution.
    fn of(ids: &[u64], node: u64) -> Self {
        Self::with(ids, node, |_| {})
    }

    fn with(ids: &[u64], node: u64, change: impl FnOnce(&mut Settings)) -> Self {
        let mut bench = Self::outside(view(ids), node, change);
        bench.tell(In::Formed {
            view: bench.view.clone(),
            lineage: LINEAGE,
        });
        bench
    }

    /// A node that belongs to no view yet.
    fn outside(view: View, node: u64, change: impl FnOnce(&mut Settings)) -> Self {
        let mut settings = Settings {
            fork_after: FORK_AFTER,
            ..Settings::simulated(identity(&view, node))
        };
        change(&mut settings);
        Self {
            machine: Coordinator::new(settings),
            view,
            now: 1,
            id: node,
            plan: None,
            proposed: None,
        }
    }

    fn tell(&mut self, event: In) -> Vec<Effect> {
        let mut out = Outbox::default();
        self.machine.handle(event, Instant(self.now), &mut out);
        let effects = out.take();
        for effect in &effects {
            if let Effect::Open(plan) = effect {
                self.plan = Some(Arc::clone(plan));
            }
        }
        let round = self.machine.place().round;
        let view = self.machine.round_view();
        let changed = self.machine.changed_settings();
        let drafts = messages(&effects).filter_map(|(_, header, message)| match message {
            Message::Attempt(draft) if header.round == round => draft.resolve(Base {
                changed,
                ..base(round, view?)
            }),
            _ => None,
        });
        if let Some(proposal) = drafts.last() {
            self.proposed = Some(proposal.outcome);
        }
        effects
    }

    /// Returns the signed digests that the owners of the newest attempt publish if none of them
    /// lies.
    fn list(&self) -> Vec<(NodeId, Signed)> {
        let plan = self.plan.as_deref().unwrap();
        let mut owners = plan.other_owners();
        owners.extend(plan.owns().then_some(plan.me));
        owners.sort_unstable();
        owners
            .into_iter()
            .map(|owner| (owner, signed(owner)))
            .collect()
    }

    /// The root of that.
    fn root(&self) -> Digest {
        root(self.list().iter().map(|(owner, signed)| (owner, signed)))
    }

    /// The entry that this leader proposed last, with what its owners published.
    fn entry_of(&self, list: &[(NodeId, Signed)]) -> Outcome {
        Outcome {
            published: root(list.iter().map(|(owner, signed)| (owner, signed))),
            ..self.proposed.clone().unwrap()
        }
    }

    /// Returns the message of a node that holds all data of the newest attempt.
    fn is_ready(&self) -> Message {
        Message::Ready(self.entry_of(&self.list()).digest())
    }

    /// A vote for the entry that this leader asks for.
    fn vote(&self) -> Message {
        accepted(&self.entry_of(&self.list()))
    }

    /// Time passes.
    fn wait(&mut self, micros: u64) -> Vec<Effect> {
        self.now += micros;
        self.tell(In::Tick)
    }

    /// Whether it says, once so much time has passed, that streams of a node broke.
    fn reports_broken(&mut self, node: u64, after: u64) -> bool {
        let broken = Message::Broken(NodeId(node));
        messages(&self.wait(after)).any(|(.., message)| *message == broken)
    }

    fn contribute(&mut self) -> Vec<Effect> {
        self.contribute_to(SPEC)
    }

    /// Contributes to the round under way.
    fn contribute_to(&mut self, spec: RoundSpec) -> Vec<Effect> {
        self.tell(In::Contribute {
            round: self.machine.place().round,
            spec,
            samples: None,
            rates: vec![],
            buffers: 0,
        })
    }

    /// Nodes are dead.
    fn lose(&mut self, nodes: &[u64], ended: bool) -> Vec<Effect> {
        let lost = |node: &u64| In::Lost {
            node: NodeId(*node),
            incarnation: identity(&self.view, *node).incarnation,
            ended,
        };
        let lost: Vec<In> = nodes.iter().map(lost).collect();
        lost.into_iter().flat_map(|lost| self.tell(lost)).collect()
    }

    /// A node leaves after the round that it has contributed to.
    fn leaves(&mut self, node: u64) -> Vec<Effect> {
        self.tell(In::Leaving {
            node: NodeId(node),
            incarnation: identity(&self.view, node).incarnation,
            contributes: false,
        })
    }

    /// A node leaves after the next round to which it contributes.
    fn leaves_after_contributing(&mut self, node: u64) -> Vec<Effect> {
        self.tell(In::Leaving {
            node: NodeId(node),
            incarnation: identity(&self.view, node).incarnation,
            contributes: true,
        })
    }

    /// These nodes are ready to join.
    fn joiners(&mut self, members: Vec<Member>) -> Vec<Effect> {
        let epoch = self.view.epoch();
        self.tell(In::Joiners { epoch, members })
    }

    /// A frame of the attempt in force.
    fn hear(&mut self, from: u64, message: Message) -> Vec<Effect> {
        self.hear_at(from, self.machine.place(), message)
    }

    /// The same frame from several nodes.
    fn hear_all(&mut self, from: &[u64], message: &Message) -> Vec<Effect> {
        from.iter()
            .flat_map(|from| self.hear(*from, message.clone()))
            .collect()
    }

    fn hear_under(&mut self, from: u64, term: Term, message: Message) -> Vec<Effect> {
        let place = Place {
            term,
            attempt: 0,
            ..self.machine.place()
        };
        self.hear_at(from, place, message)
    }

    fn hear_at(&mut self, from: u64, place: Place, message: Message) -> Vec<Effect> {
        let Frame::V1 { header, message } = identity(&self.view, from).frame(place, message);
        self.tell(In::Frame { header, message })
    }

    /// The leader of the term in force attempts an outcome.
    fn hear_attempt(&mut self, from: u64, outcome: &Outcome, participants: &[u64]) -> Vec<Effect> {
        self.hear_attempt_at(from, self.place(), outcome, participants)
    }

    fn hear_attempt_at(
        &mut self,
        from: u64,
        place: Place,
        outcome: &Outcome,
        participants: &[u64],
    ) -> Vec<Effect> {
        let proposal = Proposal {
            outcome: outcome.clone(),
            participants: ids(participants),
        };
        let draft = Draft::new(&proposal, base(place.round, &self.view));
        self.hear_at(from, place, Message::Attempt(draft))
    }

    /// A voter's promise under the term in force.
    fn hear_promise(
        &mut self,
        from: u64,
        accepted: Option<(Term, Outcome)>,
        contributed: Option<ContributionNotice>,
    ) -> Vec<Effect> {
        let promise = Message::Promise {
            accepted,
            floor: Term::default(),
            contributed,
        };
        self.hear(from, promise)
    }

    /// The leader of the term in force says what was decided.
    fn hear_decision(&mut self, from: u64, entry: Outcome) -> Vec<Effect> {
        self.hear(from, decision(entry))
    }

    /// The leader of the round after `parent` attempts to admit whoever is in the next view only.
    fn hear_admission(&mut self, parent: Outcome, leader: u64, next: &[u64]) -> Vec<Effect> {
        let before = parent.view.clone();
        let round = parent.round.next();
        let outcome = Outcome {
            round,
            view: next_view(&before, view(next).members()),
            spec: FIRST,
            contributors: ids(&[leader]),
            leader: NodeId(leader),
            retained: vec![],
            ..parent.clone()
        };
        let proposal = Proposal {
            outcome,
            participants: before.ids().filter(|id| id.0 != self.id).collect(),
        };
        let draft = Draft::new(&proposal, base(round, &before));
        let place = Place {
            lineage: parent.lineage,
            epoch: before.epoch(),
            round,
            term: term(1, leader),
            attempt: 1,
        };
        self.hear_at(leader, place, Message::Admit { parent, draft })
    }

    /// Brings all data of the attempt that these effects opened.
    fn hold_all(&mut self, effects: &[Effect]) -> Vec<Effect> {
        let mut arrived = Vec::new();
        for effect in effects {
            match effect {
                Effect::Open(plan) => {
                    if plan.owns() {
                        arrived.push(In::Reduced(plan.attempt, signed(plan.me)));
                    }
                    let held = |owner| In::ParametersHeld(plan.attempt, owner, signed(owner));
                    arrived.extend(plan.other_owners().into_iter().map(held));
                }
                Effect::Publish(publication) => {
                    let attempt = publication.attempt;
                    let moves = publication.moves_to(NodeId(self.id));
                    arrived.extend(moves.map(|moved| In::StateHeld(attempt, moved.from)));
                }
                _ => {}
            }
        }
        arrived
            .into_iter()
            .flat_map(|arrived| self.tell(arrived))
            .collect()
    }

    /// This node leads a round of the view until it asks for votes.
    fn lead(&mut self, spec: RoundSpec) -> Vec<Effect> {
        let others: Vec<u64> = self.view.ids().map(|id| id.0).collect();
        let others: Vec<u64> = others.into_iter().filter(|id| *id != self.id).collect();
        let mut effects = self.contribute_to(spec);
        effects.extend(self.hear_all(&others, &Message::Contribute(contribution_to(spec))));
        let held = self.hold_all(&effects);
        effects.extend(held);
        effects.extend(self.hear_all(&others, &self.is_ready()));
        assert!(says!(effects, Message::Accept { .. }), "{effects:?}");
        effects
    }

    /// Node `node` holds all data of the bootstrap that node 1 attempts.
    fn ready(ids: &[u64], node: u64, change: impl FnOnce(&mut Settings)) -> (Self, Outcome) {
        let mut member = Self::with(ids, node, change);
        let opened = member.contribute();
        let outcome = Outcome {
            published: member.root(),
            ..founded(&member.view, 1)
        };
        member.hear_attempt(1, &outcome, ids);
        let ready = member.hold_all(&opened);
        assert!(says!(ready, Message::Ready(_)), "{ready:?}");
        (member, outcome)
    }

    fn place(&self) -> Place {
        self.machine.place()
    }

    fn term(&self) -> Term {
        self.machine.place().term
    }

    /// Participants of the newest attempt that this leader begins.
    fn attempted(&self, effects: &[Effect]) -> Option<Vec<u64>> {
        let draft = messages(effects)
            .filter_map(|(.., message)| match message {
                Message::Attempt(draft) => Some(draft),
                _ => None,
            })
            .last()?;
        let newest = draft.resolve(base(self.place().round, &self.view))?;
        Some(newest.participants.iter().map(|node| node.0).collect())
    }
}

/// The members that the newest attempt admits, and its contributors.
fn newest(leader: &Bench, effects: &[Effect]) -> Option<(Vec<u64>, Vec<u64>)> {
    let drafts = messages(effects).filter_map(|(.., message)| match message {
        Message::Attempt(draft) => draft.resolve(base(leader.place().round, &leader.view)),
        _ => None,
    });
    let outcome = drafts.last()?.outcome;
    let numbers = |ids: Vec<NodeId>| ids.into_iter().map(|id| id.0).collect();
    Some((
        numbers(outcome.view.ids().collect()),
        numbers(outcome.contributors),
    ))
}

/// Returns the digest that an honest owner publishes.
fn signed(owner: NodeId) -> Signed {
    Signed::simulated(&owner.0.to_le_bytes())
}

/// A member of the view, or the first start of another node.
fn identity(view: &View, node: u64) -> Identity {
    Identity {
        cluster: ClusterId(1),
        node: NodeId(node),
        incarnation: view
            .member(NodeId(node))
            .map_or(Incarnation(1), |member| member.incarnation),
    }
}

fn ids(ids: &[u64]) -> Vec<NodeId> {
    ids.iter().copied().map(NodeId).collect()
}

fn term(counter: u64, node: u64) -> Term {
    Term {
        counter,
        node: NodeId(node),
    }
}

/// The next start of a node.
fn again(view: &View, node: u64) -> Member {
    let member = view.member(NodeId(node)).unwrap();
    Member {
        incarnation: Incarnation(member.incarnation.0 + 1),
        ..member.clone()
    }
}

/// The view with these members that follows another one.
fn next_view(before: &View, members: &[Member]) -> View {
    let epoch = Epoch(before.epoch().0 + 1);
    before.succeeded_by(epoch, members.to_vec()).unwrap()
}

fn contribution_to(spec: RoundSpec) -> ContributionNotice {
    ContributionNotice {
        spec,
        samples: None,
        rates: vec![],
    }
}

fn contribution() -> ContributionNotice {
    contribution_to(SPEC)
}

fn decision(entry: Outcome) -> Message {
    Message::Decide {
        entry: Entry::Whole(entry),
        leaves: false,
    }
}

/// A leader asks for a vote.
fn ask(entry: Entry) -> Message {
    let signature = Signature::default();
    Message::Accept { entry, signature }
}

/// A vote for an entry.
fn accepted(entry: &Outcome) -> Message {
    Message::Accepted(Signed {
        digest: entry.digest(),
        signature: Signature::default(),
    })
}

/// The base that a draft of the first rounds changes.
fn base(round: Round, view: &View) -> Base<'_> {
    Base {
        round,
        view,
        order: &[],
        changed: ChangedSettings::default(),
        forks: &[],
    }
}

/// The entry of the bootstrap of a view with a node's parameters.
fn founded(view: &View, contributor: u64) -> Outcome {
    Outcome {
        contributors: vec![NodeId(contributor)],
        ..Outcome::of_all(LINEAGE, Round::BOOTSTRAP, SPEC, view.clone())
    }
}

/// The messages that these effects send.
fn messages(effects: &[Effect]) -> impl Iterator<Item = (NodeId, &Header, &Message)> {
    effects.iter().filter_map(|effect| match effect {
        Effect::Send {
            to,
            frame: Frame::V1 { header, message },
        } => Some((*to, header, &**message)),
        _ => None,
    })
}

/// The plan of the attempt that these effects opened.
fn opened(effects: &[Effect]) -> &Plan {
    let plan = effects.iter().find_map(|effect| match effect {
        Effect::Open(plan) => Some(&**plan),
        _ => None,
    });
    plan.unwrap()
}

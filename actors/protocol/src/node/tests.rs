//! Two nodes whose rounds are driven by hand.

use super::vectors::{Contribution, Done, SLOWMO, State, Stream, Vectors, carry_out};
use super::{ContributionMail, Mail, RoundsEffect, RoundsPart, ToMembership, ToRounds};
use crate::coordinator::{GivesUp, In, RoundKind, RoundSpec, Settings};
use crate::ident::{ClusterId, Lineage, NodeId, Round, ShardId, Step};
use crate::machine::{Identity, Outbox};
use crate::membership;
use crate::time::Instant;
use crate::view::View;
use crate::view::tests::view;
use crate::wire::{Frame, Message};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

const ELEMENTS: usize = 23;

/// A message under way to a node.
enum Letter {
    Frame(Frame),
    Stream(Stream),
    Report(ToRounds<Vectors>),
}

/// One node, and the rounds that it has applied.
struct Node {
    identity: Identity,
    part: RoundsPart<Vectors>,
    inbox: VecDeque<Letter>,
    applied: Vec<Round>,
    /// The inputs of its membership.
    heard: Vec<membership::In>,
}

struct Pair {
    nodes: BTreeMap<NodeId, Node>,
}

impl Pair {
    /// Two nodes that have decided their founding.
    fn founded() -> Self {
        let view = view(&[1, 2]);
        let node = |id: NodeId| {
            let identity = Identity {
                cluster: ClusterId(1),
                node: id,
                incarnation: view.member(id).unwrap().incarnation,
            };
            let part = RoundsPart::new(Settings::simulated(identity));
            (
                id,
                Node {
                    identity,
                    part,
                    inbox: VecDeque::new(),
                    applied: Vec::new(),
                    heard: Vec::new(),
                },
            )
        };
        let mut pair = Self {
            nodes: view.ids().map(node).collect(),
        };
        pair.found(&view);
        pair
    }

    fn found(&mut self, view: &View) {
        for id in view.ids() {
            self.tell(
                id,
                In::Formed {
                    view: view.clone(),
                    lineage: Lineage::of_bootstrap(7),
                },
            );
        }
        self.contribute(RoundKind::Bootstrap, 0);
        self.deliver(|_| true);
    }

    fn tell(&mut self, id: NodeId, event: In) {
        self.take(id, ToRounds::In(event));
    }

    fn take(&mut self, id: NodeId, message: ToRounds<Vectors>) {
        let node = self.nodes.get_mut(&id).unwrap();
        let mut out = Outbox::default();
        node.part.handle(message, Instant(1), &mut out);
        let mut letters = Vec::new();
        for effect in out.take() {
            match effect {
                RoundsEffect::Send { to, frame } => letters.push((to, Letter::Frame(frame))),
                RoundsEffect::Applied(applied) => node.applied.push(applied.outcome.round),
                RoundsEffect::Tell(Mail::Membership(ToMembership::In(event))) => {
                    node.heard.push(event)
                }
                effect => letters.extend(
                    carry_out(&mut node.part, node.identity, SLOWMO, effect)
                        .into_iter()
                        .map(|done| match done {
                            Done::Stream(to, stream) => (to, Letter::Stream(stream)),
                            Done::Report(attempt, moved) => {
                                (id, Letter::Report(ToRounds::Moved(attempt, moved)))
                            }
                        }),
                ),
            }
        }
        for (to, letter) in letters {
            self.nodes.get_mut(&to).unwrap().inbox.push_back(letter);
        }
    }

    fn contribute(&mut self, kind: RoundKind, step: u64) {
        for id in [NodeId(1), NodeId(2)] {
            let round = self.nodes[&id].part.machine().place().round;
            let spec = RoundSpec {
                kind,
                step: Step(step),
                gamma: 0.125,
                elements: ELEMENTS as u64,
            };
            let values = (0..ELEMENTS)
                .map(|index| (id.0 * step + index as u64) as f64)
                .collect();
            let contribution = Contribution {
                weight: 1.0,
                values: Arc::new(values),
                ..Contribution::default()
            };
            let contribute = ContributionMail {
                round,
                spec,
                samples: None,
                rates: vec![],
                buffers: 0,
                parameters: ELEMENTS,
                contribution,
            };
            self.take(id, ToRounds::Contribute(Box::new(contribute)));
        }
    }

    /// Delivers until nothing that passes is left; what does not pass stays.
    fn deliver(&mut self, passes: impl Fn(&Letter) -> bool) {
        while let Some((id, index)) = self.next(&passes) {
            let message = match self
                .nodes
                .get_mut(&id)
                .unwrap()
                .inbox
                .remove(index)
                .unwrap()
            {
                Letter::Frame(Frame::V1 { header, message }) => {
                    ToRounds::In(In::Frame { header, message })
                }
                Letter::Stream(stream) => ToRounds::Stream(stream),
                Letter::Report(message) => message,
            };
            self.take(id, message);
        }
    }

    fn next(&self, passes: impl Fn(&Letter) -> bool) -> Option<(NodeId, usize)> {
        let first = |node: &Node| node.inbox.iter().position(&passes);
        self.nodes
            .iter()
            .find_map(|(id, node)| Some((*id, first(node)?)))
    }

    fn states(&self, id: NodeId) -> Vec<(ShardId, State)> {
        self.nodes[&id]
            .part
            .shards()
            .all()
            .map(|(shard, state)| (shard, state.clone()))
            .collect()
    }
}

fn asks_for_votes(letter: &Letter) -> bool {
    matches!(
        letter,
        Letter::Frame(Frame::V1 { message, .. }) if matches!(**message, Message::Accept { .. })
    )
}

/// A node that resigns may have said that it is ready for a round, which is then decided with what
/// it holds.
#[test]
fn a_node_that_resigned_keeps_its_shards_for_the_round_that_it_is_ready_for() {
    let mut pair = Pair::founded();
    pair.contribute(RoundKind::Slow, 1);
    pair.deliver(|_| true);
    let resigns = NodeId(2);
    let before = pair.states(resigns);
    assert!(
        !before.is_empty()
            && before
                .iter()
                .all(|(_, state)| state.momentum.iter().any(|value| *value != 0.0)),
        "{before:?}"
    );
    pair.contribute(RoundKind::Average, 2);
    pair.deliver(|letter| !asks_for_votes(letter));
    assert!(pair.next(asks_for_votes).is_some(), "everybody is ready");
    pair.tell(resigns, In::Resign(GivesUp::Membership));
    let heard = &pair.nodes[&resigns].heard;
    assert!(
        heard
            .iter()
            .any(|event| matches!(event, membership::In::Resigned(true))),
        "{heard:?}"
    );
    assert_eq!(
        pair.states(resigns),
        before,
        "it may still have to apply the round"
    );
    pair.deliver(|_| true);
    for (id, node) in &pair.nodes {
        assert_eq!(node.applied, [Round(0), Round(1), Round(2)], "{id}");
    }
    assert_eq!(
        pair.states(resigns),
        before,
        "an exact average leaves anchor and momentum as they were"
    );
}

/// Of what is not awaited only so much waits, and nothing twice.
#[test]
fn streams_wait_for_their_attempt_once() {
    let mut pair = Pair::founded();
    let identity = pair.nodes[&NodeId(2)].identity;
    let mut place = pair.nodes[&NodeId(1)].part.machine().place();
    place.attempt = 9;
    let stream = || Stream {
        header: identity.header(place),
        content: crate::wire::Bulk::State,
        stream: super::vectors::Body::States(BTreeMap::new()),
    };
    pair.take(NodeId(1), ToRounds::Stream(stream()));
    pair.take(NodeId(1), ToRounds::Stream(stream()));
    assert_eq!(pair.nodes[&NodeId(1)].part.parked(), 1);
}

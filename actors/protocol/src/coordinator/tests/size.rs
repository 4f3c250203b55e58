//! What a leader sends in a steady round, in bytes as they travel: it grows with the members, not
//! with their square.

use super::super::{Coordinator, Effect, In, Plan, RoundKind, RoundSpec, Settings};
use crate::ident::{ClusterId, Epoch, Incarnation, Lineage, NodeId, Round, Step};
use crate::machine::{Identity, Machine, Outbox, Place};
use crate::time::{Instant, Span};
use crate::view::{Member, View};
use crate::wire::{ContributionNotice, Message};
use std::net::SocketAddr;
use std::sync::Arc;

const CLUSTER: ClusterId = ClusterId(1);
/// Members are known by large numbers, as random ids are.
const FIRST_ID: u64 = 1 << 60;

fn view(nodes: u64) -> View {
    let member = |index: u64| Member {
        id: NodeId(FIRST_ID + index * 977),
        incarnation: Incarnation(1_700_000_000_000_000 + index),
        address: SocketAddr::from(([10, 1, (index >> 8) as u8, index as u8], 7400)),
        devices: 8,
    };
    View::new(Epoch::BOOTSTRAP, (0..nodes).map(member).collect()).unwrap()
}

fn identity(member: &Member) -> Identity {
    Identity {
        cluster: CLUSTER,
        node: member.id,
        incarnation: member.incarnation,
    }
}

fn leader(view: &View) -> Coordinator {
    Coordinator::new(Settings {
        grace: Span::from_millis(1_000),
        round_timeout: Span::from_millis(10_000),
        ..Settings::simulated(identity(&view.members()[0]))
    })
}

/// Bytes that the leader of `nodes` sends in control frames to decide one round, each member
/// contributing.
fn bytes_of_a_round(nodes: u64) -> usize {
    let view = view(nodes);
    let mut machine = leader(&view);
    let spec = RoundSpec {
        kind: RoundKind::Average,
        step: Step(47),
        gamma: 0.1,
        elements: 25_000_000,
    };
    let lineage = Lineage::founded(0x1234_5678_9abc_def0_1234_5678_9abc_def0);
    let now = Instant(1_000_000);
    let mut out = Outbox::default();
    let mut bytes = 0;
    let mut plan: Option<Arc<Plan>> = None;
    let mut decided = false;
    let mut events = vec![
        In::Formed {
            view: view.clone(),
            lineage,
        },
        In::Contribute {
            round: Round::BOOTSTRAP,
            spec,
            samples: None,
            rates: Vec::new(),
            buffers: 0,
        },
    ];
    let place = Place {
        lineage,
        epoch: view.epoch(),
        round: Round::BOOTSTRAP,
        term: super::super::first_term(view.lowest()),
        attempt: 0,
    };
    let from = |member: &Member, message: Message| In::Frame {
        header: identity(member).header(place),
        message: Box::new(message),
    };
    for member in &view.members()[1..] {
        events.push(from(
            member,
            Message::Contribute(ContributionNotice {
                spec,
                samples: None,
                rates: Vec::new(),
            }),
        ));
    }
    events.extend(
        view.members()[1..]
            .iter()
            .map(|member| from(member, Message::Ready)),
    );
    events.push(In::Tick);
    events.extend(
        view.members()[1..]
            .iter()
            .map(|member| from(member, Message::Accepted)),
    );
    for event in events {
        let mut queue = vec![event];
        while let Some(event) = queue.pop() {
            machine.handle(event, now, &mut out);
            for effect in out.take() {
                match effect {
                    Effect::Send { frame, .. } => bytes += frame.encode().unwrap().len(),
                    Effect::Open(opened) => plan = Some(opened),
                    Effect::Publish(_) => {
                        let plan = plan.clone().unwrap();
                        queue.extend(
                            plan.other_owners()
                                .into_iter()
                                .map(|owner| In::ParametersHeld(plan.attempt, owner)),
                        );
                        queue.push(In::Reduced(plan.attempt));
                    }
                    Effect::Apply { .. } => decided = true,
                    _ => {}
                }
            }
        }
    }
    assert!(decided, "the round of {nodes} members was decided");
    bytes
}

#[test]
fn the_bytes_that_a_leader_sends_grow_with_the_members() {
    let sizes = [16u64, 64, 256, 500, 1_000];
    let per_member: Vec<f64> = sizes
        .iter()
        .map(|nodes| bytes_of_a_round(*nodes) as f64 / (*nodes - 1) as f64)
        .collect();
    println!("bytes a member of {sizes:?}: {per_member:.0?}");
    for (nodes, bytes) in sizes.iter().zip(&per_member) {
        assert!(
            (bytes / per_member[0] - 1.0).abs() < 0.2,
            "{nodes}: {bytes} bytes a member, {} of 16",
            per_member[0]
        );
    }
}

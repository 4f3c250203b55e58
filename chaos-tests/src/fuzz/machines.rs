//! Bytes of an authenticated but broken peer, handed to the state machines that act on them. A
//! machine may do anything with them except panic, and what it sends must have an encoding.
//!
//! An input is a list of pieces, each preceded by two bytes: the sender and the length of the
//! piece. Fields that a sender cannot choose are corrected so that the fuzzer gets past them: a
//! frame's cluster, and its sender, which is the authenticated peer.

use slowmo_protocol::coordinator::{self, Attempt, Coordinator, RoundKind, RoundSpec};
use slowmo_protocol::ident::{
    ClusterId, Epoch, GroupId, Incarnation, Lineage, NodeId, Round, Step,
};
use slowmo_protocol::liveness::{self, Liveness};
use slowmo_protocol::machine::{Identity, Machine, Outbox};
use slowmo_protocol::published::{PublicKey, Signed};
use slowmo_protocol::time::{Instant, Span};
use slowmo_protocol::view::{Member, View};
use slowmo_protocol::wire::{DATAGRAM_BYTES_MAX, Datagram, Frame};
use std::net::SocketAddr;

/// Number of nodes that the machines know; the first is the machine's own.
const NODES: u64 = 3;
const CLUSTER: ClusterId = ClusterId(0x0102_0304_0506_0708);
/// The history that the coordinator's cluster bootstraps.
pub(super) const LINEAGE: Lineage = Lineage(0x1112_1314_1516_1718_191a_1b1c_1d1e_1f20);

fn identity() -> Identity {
    Identity {
        cluster: CLUSTER,
        node: NodeId(1),
        incarnation: Incarnation(1),
    }
}

/// Splits an input into at most 64 pieces, each with its sender.
fn pieces(mut data: &[u8]) -> Vec<(NodeId, &[u8])> {
    let mut pieces = Vec::new();
    while let [from, length, rest @ ..] = data {
        if pieces.len() == 64 {
            break;
        }
        // Lengths are in steps of four bytes, which is enough for frames with two members.
        let (piece, rest) = rest.split_at(rest.len().min(4 * usize::from(*length)));
        pieces.push((NodeId(2 + u64::from(*from) % (NODES - 1)), piece));
        data = rest;
    }
    pieces
}

/// The view that the machines are in.
pub(super) fn view() -> View {
    let address = SocketAddr::from(([10, 0, 0, 5], 7400));
    let member = |id| Member {
        id: NodeId(id),
        incarnation: Incarnation(1),
        address,
        devices: 1,
        group: GroupId::default(),
        key: PublicKey::default(),
    };
    #[allow(clippy::expect_used)]
    View::new(Epoch::BOOTSTRAP, (1..=NODES).map(member).collect()).expect("three ids that ascend")
}

/// The round that node 1 expects.
pub(super) fn spec() -> RoundSpec {
    RoundSpec {
        kind: RoundKind::Average,
        step: Step(1),
        gamma: 0.0,
        elements: 6,
    }
}

/// Hands control frames to the coordinator of node 1 in a round that it has contributed to, with a
/// tick after each.
pub fn coordinator(data: &[u8]) -> bool {
    let settings = coordinator::Settings {
        orders_by_rate: true,
        grace: Span::from_millis(10),
        round_timeout: Span::from_millis(1_000),
        ..coordinator::Settings::simulated(identity())
    };
    let mut machine = Coordinator::new(settings);
    let contribute = coordinator::In::Contribute {
        round: Round::BOOTSTRAP,
        spec: spec(),
        samples: None,
        rates: Vec::new(),
        buffers: 0,
    };
    tell(
        &mut machine,
        coordinator::In::Formed {
            view: view(),
            lineage: LINEAGE,
        },
        0,
    );
    tell(&mut machine, contribute, 0);
    let mut accepted = false;
    for (index, (from, piece)) in pieces(data).into_iter().enumerate() {
        let now = index as u64 * 1_000;
        if let Ok(Frame::V1 { header, message }) =
            Frame::decode(message_in(piece, |bytes| Frame::decode(bytes).is_ok()))
        {
            let header = slowmo_protocol::wire::Header {
                cluster: CLUSTER,
                sender: from,
                incarnation: Incarnation(1),
                ..header
            };
            accepted |= machine.admits(&header);
            let attempt = Attempt::of(&header);
            let signed = Signed::default();
            tell(
                &mut machine,
                coordinator::In::Frame { header, message },
                now,
            );
            tell(
                &mut machine,
                coordinator::In::ParametersHeld(attempt, from, signed),
                now,
            );
            let own = Signed::default();
            tell(&mut machine, coordinator::In::Reduced(attempt, own), now);
        }
        tell(&mut machine, coordinator::In::Tick, now);
    }
    accepted
}

/// The part of a piece that is a message. A piece is cut at a multiple of four bytes, so up to
/// three bytes after the message belong to no message.
fn message_in(piece: &[u8], is_message: impl Fn(&[u8]) -> bool) -> &[u8] {
    let shorter = (0..4)
        .filter_map(|extra| piece.len().checked_sub(extra))
        .map(|length| &piece[..length]);
    shorter
        .into_iter()
        .find(|bytes| is_message(bytes))
        .unwrap_or(piece)
}

fn tell(machine: &mut Coordinator, event: coordinator::In, now: u64) {
    let mut out = Outbox::default();
    machine.handle(event, Instant(now), &mut out);
    for effect in out.take() {
        if let coordinator::Effect::Send { frame, .. } = effect {
            let encoded = frame.encode();
            assert!(
                encoded
                    .as_deref()
                    .is_ok_and(|bytes| Frame::decode(bytes).as_ref() == Ok(&frame)),
                "sends what nobody can read: {frame:?}"
            );
        }
    }
}

/// Hands datagrams to the liveness of node 1, with time passing between them.
pub fn liveness(data: &[u8]) -> bool {
    let mut machine = Liveness::new(liveness::Settings::new(identity()));
    let mut out = Outbox::default();
    let members = (1..=NODES).map(|id| (NodeId(id), Incarnation(1))).collect();
    machine.handle(liveness::In::Members(members), Instant(0), &mut out);
    let mut now = 0;
    let mut accepted = false;
    for (from, piece) in pieces(data) {
        let piece = message_in(piece, |bytes| Datagram::decode(bytes).is_ok());
        accepted |= Datagram::decode(piece).is_ok();
        machine.handle(
            liveness::In::Datagram {
                from,
                bytes: piece.to_vec(),
            },
            Instant(now),
            &mut out,
        );
        now = machine
            .next_deadline()
            .map_or(now + 1_000, |deadline| deadline.0.max(now + 1_000));
        machine.handle(liveness::In::Tick, Instant(now), &mut out);
        for effect in out.take() {
            if let liveness::Effect::Datagram { bytes, .. } = effect {
                assert!(
                    bytes.len() <= DATAGRAM_BYTES_MAX && Datagram::decode(&bytes).is_ok(),
                    "sends what nobody can read"
                );
            }
        }
    }
    accepted
}

//! The membership of a simulated node: drives that part of the node.

use crate::sim::mail::Output;
use slowmo_protocol::ident::NodeId;
use slowmo_protocol::liveness;
use slowmo_protocol::machine::Outbox;
use slowmo_protocol::membership::Settings;
use slowmo_protocol::node::vectors::Vectors;
use slowmo_protocol::node::{MembershipEffect, MembershipPart, Notice, SignsOfLife, ToMembership};
use slowmo_protocol::time::{Instant, Span};
use slowmo_protocol::wire::MemberState;
use std::collections::BTreeMap;

/// Number of times that the transport has heard each peer.
pub type Heard = BTreeMap<NodeId, u64>;

struct Signs<'a> {
    heard: &'a Heard,
    round_trip: Span,
}

impl SignsOfLife for Signs<'_> {
    fn heard(&self, node: NodeId) -> u64 {
        self.heard.get(&node).copied().unwrap_or(0)
    }

    fn round_trip(&self, _: NodeId) -> Option<Span> {
        Some(self.round_trip)
    }
}

/// The membership part, and the state that is shown of it.
pub struct Members {
    part: MembershipPart,
    round_trip: Span,
    /// Reason why the node is not a member.
    pub waiting: Option<String>,
}

impl Members {
    /// A membership that has met no peer.
    pub fn new(settings: Settings, liveness: liveness::Settings, round_trip: Span) -> Self {
        Self {
            part: MembershipPart::new(settings, liveness),
            round_trip,
            waiting: None,
        }
    }

    /// The newest view that the node heard of while it waits to be admitted.
    pub fn sought(&self) -> Option<&MemberState> {
        self.part.sought()
    }

    /// Time at which the part needs its next tick.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.part.next_deadline()
    }

    /// Handles a message.
    pub fn take(
        &mut self,
        message: ToMembership,
        heard: &Heard,
        now: Instant,
        outputs: &mut Vec<Output>,
    ) {
        let mut out = Outbox::default();
        self.part.handle::<Vectors>(
            message,
            &Signs {
                heard,
                round_trip: self.round_trip,
            },
            now,
            &mut out,
        );
        for effect in out.take() {
            outputs.push(match effect {
                MembershipEffect::Send { to, frame } => Output::Frame(to, frame),
                MembershipEffect::Tell(mail) => Output::tell(mail),
                MembershipEffect::Datagram { to, bytes } => Output::Datagram(to, bytes),
                MembershipEffect::PortProbe(node) => Output::PortProbe(node),
                MembershipEffect::Connect(address) => Output::Connect(address),
                MembershipEffect::Disconnect(node) => Output::Disconnect(node),
                MembershipEffect::Search(on) => Output::Search(on),
                MembershipEffect::Noticed(notice) => {
                    if let Notice::Waiting(why) = notice {
                        self.waiting = why;
                    }
                    continue;
                }
            });
        }
    }
}

//! The network of the simulated world: one link per pair of nodes. Its frames arrive in order,
//! encoded; its streams in any order. A link that breaks loses what is on its way, and nothing can
//! be sent until it is connected again.

use super::world::{DELAY_MAX, Event, World};
use crate::coordinator::{Attempt, In};
use crate::ident::NodeId;
use crate::node::ToRounds;
use crate::node::vectors::Stream;
use crate::simulation::InOrder;
use crate::wire::Frame;
use std::collections::BTreeMap;

/// What is on its way between two nodes belongs to one connection of theirs.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Link {
    /// Which connection of the pair.
    connection: u64,
    broken: bool,
}

/// The links, and when the last frame of each direction arrives.
#[derive(Default)]
pub struct Network {
    links: BTreeMap<(NodeId, NodeId), Link>,
    in_order: InOrder<NodeId>,
    /// One frame or stream in so many takes far longer than the others; 0: none.
    pub rarely_slow: u64,
    /// Until when everything to and from these nodes is slow.
    pub slow: BTreeMap<NodeId, u64>,
}

impl Network {
    pub fn of(&mut self, one: NodeId, other: NodeId) -> Link {
        *self.link(one, other)
    }

    pub fn is_up(&mut self, one: NodeId, other: NodeId) -> bool {
        !self.link(one, other).broken
    }

    fn link(&mut self, one: NodeId, other: NodeId) -> &mut Link {
        self.links
            .entry((one.min(other), one.max(other)))
            .or_default()
    }
}

impl World {
    fn travel_time(&mut self, from: NodeId, to: NodeId, usual: u64) -> u64 {
        let rarely =
            self.network.rarely_slow > 0 && self.random.below(self.network.rarely_slow) == 0;
        let slow = rarely
            || [from, to].iter().any(|end| {
                self.network
                    .slow
                    .get(end)
                    .is_some_and(|until| *until > self.now)
            });
        1 + self.random.below(if slow { 12 * usual } else { usual })
    }

    pub fn send(&mut self, from: NodeId, to: NodeId, frame: &Frame) {
        let link = *self.network.link(from, to);
        if link.broken {
            return;
        }
        let Frame::V1 { header, message } = Frame::decode(&frame.encode().unwrap()).unwrap();
        let delayed = self.now + self.travel_time(from, to, DELAY_MAX);
        let at = self.network.in_order.arrives(from, to, delayed);
        self.at(at, Event::Frame(to, link, header, message));
    }

    pub fn send_stream(&mut self, to: NodeId, stream: Stream) {
        let link = *self.network.link(stream.header.sender, to);
        let at = self.now + self.travel_time(stream.header.sender, to, 3 * DELAY_MAX);
        self.at(at, Event::Stream(to, link, stream));
    }

    /// Whether what was sent over `link` still arrives. A link that loses anything is broken.
    pub fn carries(&mut self, link: Link, from: NodeId, to: NodeId) -> bool {
        let same = !link.broken && *self.network.link(from, to) == link;
        if same && !self.connected(from, to) {
            self.break_link(from, to);
        }
        same && self.connected(from, to)
    }

    pub fn deliver(&mut self, to: NodeId, link: Link, stream: Stream) {
        let from = stream.header.sender;
        if !self.carries(link, from, to) {
            return self.stream_broke(from, to, &stream);
        }
        self.take(to, ToRounds::Stream(stream));
    }

    /// Both ends notice, if they live.
    fn stream_broke(&mut self, from: NodeId, to: NodeId, stream: &Stream) {
        let attempt = Attempt::of(&stream.header);
        for (one, other) in [(from, to), (to, from)] {
            if self.is_up(one) {
                self.tell_later(one, In::StreamBroken(attempt, other), DELAY_MAX);
            }
        }
    }

    /// Loses what is on its way between two nodes.
    pub fn break_link(&mut self, one: NodeId, other: NodeId) {
        let link = self.network.link(one, other);
        link.connection += 1;
        link.broken = true;
    }

    /// Connects two nodes where they are not; both learn that they can send again.
    pub fn connect(&mut self, one: NodeId, other: NodeId) {
        let link = self.network.link(one, other);
        if !std::mem::take(&mut link.broken) {
            return;
        }
        let now = self.now;
        for (from, to) in [(one, other), (other, one)] {
            self.network.in_order.begin(from, to, now);
            self.tell_later(from, In::PeerUp(to), 2 * DELAY_MAX);
        }
    }
}

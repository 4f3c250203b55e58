//! Delivery between simulated processes: control frames in order, streams, datagrams.

use super::event::Event;
use super::mail::Mail;
use super::network::{FRAME_BYTES, InFlight, Packet, Process, RETRANSMISSION};
use super::world::World;
use slowmo_protocol::coordinator::Attempt;
use slowmo_protocol::ident::NodeId;
use slowmo_protocol::liveness;
use slowmo_protocol::node::vectors::{Body, Stream};
use slowmo_protocol::node::{self, Moved, ToGossip, ToRounds};
use slowmo_protocol::wire::{Bulk, Frame};
use std::collections::VecDeque;

/// Bytes of a value on the wire.
const VALUE_BYTES: u64 = 4;
/// Maximum time after a cut is healed until what it held back is sent again, in microseconds.
const SENT_AGAIN_MAX: u64 = 300_000;

/// Whether a node gets other values from who lies: about half of them do.
fn is_deceived(node: NodeId) -> bool {
    node.0 % 2 == 1
}

/// Changes a published value.
fn falsify(stream: &mut Stream) {
    if let (Bulk::Parameters, Body::Pieces(pieces)) = (&stream.content, &mut stream.stream)
        && let Some(value) = pieces.values_mut().flatten().next()
    {
        *value += 1.0;
    }
}

impl World {
    /// Time at which something that leaves now arrives.
    pub(super) fn travel(&mut self, from: Process, to: Process, bytes: u64) -> u64 {
        let (base, more) = self.config.delay;
        let pair = (self.id(from), self.id(to));
        let link = self.network.link(pair.0, pair.1);
        let mut at = self.now
            + base
            + self.random.below(more)
            + link.delay_us
            + self.random.below(link.jitter_us);
        if let Some(takes) = (bytes * 1_000_000).checked_div(link.bytes_per_second) {
            let busy = self.network.busy.entry(pair).or_default();
            *busy = self.now.max(*busy) + takes;
            at += *busy - self.now;
        }
        at
    }

    /// Like `travel`, for something that is sent again until it arrives.
    fn travel_surely(&mut self, from: Process, to: Process, bytes: u64) -> u64 {
        let lost = self
            .network
            .link(self.id(from), self.id(to))
            .lost_per_million;
        let mut at = self.travel(from, to, bytes);
        let mut again = RETRANSMISSION;
        while self.random.per_million(lost) && again < 64 * RETRANSMISSION {
            at += again;
            again *= 2;
        }
        at
    }

    pub(super) fn send_frame(&mut self, from: Process, to: NodeId, frame: Frame, encodes: bool) {
        let Some((frame, size)) = (if encodes {
            self.through_the_wire(frame)
        } else {
            Some((frame, FRAME_BYTES))
        }) else {
            return;
        };
        let Some(peer) = self.up(from, to) else {
            return;
        };
        let at = self.travel_surely(
            from,
            peer,
            if self.config.true_sizes {
                size
            } else {
                FRAME_BYTES
            },
        );
        let Some(connection) = self.network.connections.get_mut(&(from, peer)) else {
            return;
        };
        let packet = Packet::Frame(Box::new(frame));
        if !connection.held.is_empty() {
            return connection.held.push_back(packet);
        }
        connection.in_order = at.max(connection.in_order);
        connection.last = connection.last.max(connection.in_order);
        let at = connection.in_order;
        let number = connection.number;
        self.at(
            at,
            Event::Packet {
                from,
                to: peer,
                connection: number,
                packet,
            },
        );
    }

    /// Encodes and decodes a frame; returns it with its size in bytes.
    fn through_the_wire(&mut self, frame: Frame) -> Option<(Frame, u64)> {
        let bytes = match frame.encode() {
            Ok(bytes) => bytes,
            Err(error) => {
                self.watch.broken(
                    self.now,
                    "bounds",
                    format!("a frame does not encode: {error}"),
                );
                return None;
            }
        };
        match Frame::decode(&bytes) {
            Ok(decoded) => Some((decoded, bytes.len() as u64)),
            Err(error) => {
                self.watch.broken(
                    self.now,
                    "bounds",
                    format!("a frame does not decode: {error}"),
                );
                None
            }
        }
    }

    /// The process to which `from` can send for node `to`.
    fn up(&self, from: Process, to: NodeId) -> Option<Process> {
        self.network.sessions[from]
            .get(&to)
            .filter(|session| session.up)
            .map(|session| session.peer)
    }

    pub(super) fn send_stream(&mut self, from: Process, to: NodeId, mut stream: Box<Stream>) {
        if self.processes[from].lies && is_deceived(to) {
            falsify(&mut stream);
        }
        let Some(peer) = self.up(from, to) else {
            // The peer is dialed again for a while, then the stream has failed.
            let delay = self.random.below(self.config.waits.idle.0);
            return self.stream_failed(from, to, &stream, delay);
        };
        let number = self.network.number();
        let at = self.travel_surely(from, peer, self.config.parameters as u64 * VALUE_BYTES);
        let Some(connection) = self.network.connections.get_mut(&(from, peer)) else {
            return;
        };
        connection.streams.insert(number);
        connection.last = connection.last.max(at);
        let on = connection.number;
        // Some transports report a stream as sent when they have taken it, others when it has
        // arrived.
        if let Bulk::Gossip { step, .. } = stream.content
            && self.random.once_in(2)
        {
            self.tell(from, ToGossip::Sent((to, step), true), 0);
        }
        self.network.in_flight.insert(
            number,
            InFlight {
                from,
                to: peer,
                connection: on,
                stream,
            },
        );
        self.at(
            at,
            Event::Packet {
                from,
                to: peer,
                connection: on,
                packet: Packet::Stream(number),
            },
        );
    }

    fn stream_failed(&mut self, at: Process, other: NodeId, stream: &Stream, delay: u64) {
        let mail: Mail = match stream.content {
            Bulk::Gossip { step, .. } => ToGossip::Sent((other, step), false).into(),
            _ => ToRounds::Moved(Attempt::of(&stream.header), Moved::Broken(other)).into(),
        };
        self.tell(at, mail, delay);
    }

    /// Delivers a packet, if its connection is still alive.
    pub(super) fn arrive(&mut self, from: Process, to: Process, connection: u64, packet: Packet) {
        let sender = self.id(from);
        let receiver = self.id(to);
        let Some(dialed) = self
            .network
            .connections
            .get_mut(&(from, to))
            .filter(|dialed| dialed.number == connection)
        else {
            return;
        };
        if self
            .network
            .links
            .get(&(sender, receiver))
            .is_some_and(|link| link.cut)
        {
            return dialed.held.push_back(packet);
        }
        // A packet received from a process that has died meanwhile was sent before.
        let attached = self.network.sessions[to]
            .get(&sender)
            .is_some_and(|session| session.peer == from);
        if !self.processes[to].alive || !attached {
            return;
        }
        self.network.hear(to, sender);
        if self.processes[from].alive && !self.network.is_cut(receiver, sender) {
            self.network.hear(from, receiver);
        }
        match packet {
            Packet::Frame(frame) => {
                let Frame::V1 { header, message } = *frame;
                self.tell(to, node::route(header, message), 0);
            }
            Packet::Stream(number) => self.arrive_stream(number),
        }
    }

    fn arrive_stream(&mut self, number: u64) {
        let Some(InFlight {
            from, to, stream, ..
        }) = self.network.in_flight.remove(&number)
        else {
            return;
        };
        if let Some(connection) = self.network.connections.get_mut(&(from, to)) {
            connection.streams.remove(&number);
        }
        if let Bulk::Gossip { step, .. } = stream.content {
            let receiver = self.id(to);
            let delay = self.config.delay.0 + self.random.below(self.config.delay.1);
            self.tell(from, ToGossip::Sent((receiver, step), true), delay);
        }
        self.tell(to, node::Mail::from(*stream), 0);
    }

    /// Handles the loss of the connections between two processes at one of them: the streams that
    /// it sent on them, and those that it was about to receive, break.
    pub(super) fn lose_streams(&mut self, at: Process, peer: Process) {
        let node = self.id(peer);
        let lost = self
            .network
            .connections
            .get_mut(&(at, peer))
            .map(|connection| std::mem::take(&mut connection.streams));
        for number in lost.into_iter().flatten() {
            let Some(InFlight { stream, .. }) = self.network.in_flight.remove(&number) else {
                continue;
            };
            // The sender of a round's stream is done with it when its transport has taken it, and
            // then hears nothing more.
            if matches!(stream.content, Bulk::Gossip { .. }) || self.random.once_in(2) {
                self.stream_failed(at, node, &stream, 0);
            }
        }
        let coming: Vec<u64> = self
            .network
            .connections
            .get(&(peer, at))
            .into_iter()
            .flat_map(|connection| connection.streams.iter().copied())
            .collect();
        for number in coming {
            // Only streams whose beginning has arrived are known to be broken.
            if self.random.once_in(2)
                && let Some(stream) = self
                    .network
                    .in_flight
                    .get(&number)
                    .map(|in_flight| in_flight.stream.clone())
                && !matches!(stream.content, Bulk::Gossip { .. })
            {
                self.stream_failed(at, node, &stream, 0);
            }
        }
    }

    /// Sends again what a cut has held back.
    pub(super) fn open(&mut self, from: NodeId, to: NodeId) {
        let pairs: Vec<(Process, Process)> = self
            .network
            .connections
            .keys()
            .copied()
            .filter(|(one, other)| self.id(*one) == from && self.id(*other) == to)
            .collect();
        for (one, other) in pairs {
            let again = self.now + 1 + self.random.below(SENT_AGAIN_MAX);
            let Some(connection) = self.network.connections.get_mut(&(one, other)) else {
                continue;
            };
            let held: VecDeque<Packet> = std::mem::take(&mut connection.held);
            connection.in_order = connection.in_order.max(again);
            connection.last = connection.last.max(connection.in_order);
            let at = connection.in_order;
            let number = connection.number;
            for packet in held {
                self.at(
                    at,
                    Event::Packet {
                        from: one,
                        to: other,
                        connection: number,
                        packet,
                    },
                );
            }
        }
    }

    pub(super) fn send_datagram(&mut self, from: Process, to: NodeId, bytes: Vec<u8>) {
        let Some(peer) = self.up(from, to) else {
            return;
        };
        let link = self.network.link(self.id(from), to);
        if link.cut || self.random.per_million(link.lost_per_million) {
            return;
        }
        let copies = if self.random.per_million(link.doubled_per_million) {
            2
        } else {
            1
        };
        for _ in 0..copies {
            let at = self.travel(from, peer, bytes.len() as u64);
            self.at(
                at,
                Event::Datagram {
                    from,
                    to: peer,
                    bytes: bytes.clone(),
                },
            );
        }
    }

    pub(super) fn receive_datagram(&mut self, from: Process, to: Process, bytes: Vec<u8>) {
        let sender = self.id(from);
        let attached = self.network.sessions[to]
            .get(&sender)
            .is_some_and(|session| session.peer == from);
        if attached && self.processes[to].alive && !self.network.is_cut(sender, self.id(to)) {
            self.network.hear(to, sender);
            self.tell(
                to,
                liveness::In::Datagram {
                    from: sender,
                    bytes,
                },
                0,
            );
        }
    }
}

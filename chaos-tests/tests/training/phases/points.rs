//! The phases of a round as one node goes through them: each thing that it is about to send.

use slowmo::internal::transport::faulty::Sending;
use slowmo_protocol::ident::Round;
use slowmo_protocol::wire::{Bulk, BulkHeader, Frame, Header, Message};

/// The content of a bulk stream of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stream {
    Contribution,
    /// A contribution for the relay of its group.
    Relayed,
    /// The sum of a group.
    Sum,
    Parameters,
    /// Parameters that a relay passes on.
    Forwarded,
    State,
}

/// A kind of message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    Leave,
    Join,
    Contribute,
    Prepare,
    Promise,
    Attempt,
    Admit,
    Ready,
    Accept,
    Accepted,
    Decide,
    Opens(Stream),
    Values(Stream),
    Ends(Stream),
}

/// Before the `nth` message of a kind (from 0) that belongs to a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Point {
    pub round: u64,
    pub kind: Kind,
    pub nth: usize,
}

/// A fault of a node at a point.
#[derive(Clone, Copy, Debug)]
pub enum Act {
    /// It crashes.
    Crash,
    /// Nothing gets from it to anybody any more, nor back.
    CutOff,
}

/// An act that waits for a node at a point.
#[derive(Clone, Copy, Debug)]
pub struct Trap {
    pub node: u64,
    pub point: Point,
    pub act: Act,
}

/// Returns the round and kind of a message. Requests of the membership belong to round 0.
pub fn classify(sending: Sending<'_>) -> Option<(Round, Kind)> {
    let stream = |header: &BulkHeader| {
        let BulkHeader::V1 { header, content } = header;
        let stream = match content {
            Bulk::Contribution(_) => Stream::Contribution,
            Bulk::Relayed(_) => Stream::Relayed,
            Bulk::Partial(_) => Stream::Sum,
            Bulk::Parameters | Bulk::Update(_) => Stream::Parameters,
            Bulk::Forwarded { .. } => Stream::Forwarded,
            Bulk::State => Stream::State,
            // Buffers travel where joiners get a copy, which these cases do not ask for.
            Bulk::Gossip { .. } | Bulk::Buffers => return None,
        };
        Some((header.round, stream))
    };
    let place = |header: &BulkHeader, kind: fn(Stream) -> Kind| {
        stream(header).map(|(round, stream)| (round, kind(stream)))
    };
    match sending {
        Sending::Control(Frame::V1 { header, message }) => control(header, message),
        Sending::Opens(header) => place(header, Kind::Opens),
        Sending::Values(header) => place(header, Kind::Values),
        Sending::Ends(header) => place(header, Kind::Ends),
    }
}

fn control(header: &Header, message: &Message) -> Option<(Round, Kind)> {
    let kind = match message {
        Message::Leave { .. } => Kind::Leave,
        Message::Join => Kind::Join,
        Message::Contribute(_) => Kind::Contribute,
        Message::Prepare => Kind::Prepare,
        Message::Promise { .. } => Kind::Promise,
        Message::Attempt(_) => Kind::Attempt,
        Message::Admit { .. } => Kind::Admit,
        Message::Ready(_) => Kind::Ready,
        Message::Accept { .. } => Kind::Accept,
        Message::Accepted(_) => Kind::Accepted,
        Message::Decide { leaves: false, .. } => Kind::Decide,
        _ => return None,
    };
    Some((header.round, kind))
}

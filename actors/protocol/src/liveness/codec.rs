//! Converts between foca's packets, which only foca can read as bytes, and the packets of
//! [`crate::wire`]. Performs no I/O.
//!
//! foca writes a header, a count and updates into one buffer through this codec; [`packet`] reads
//! them back as data that can be inspected and filtered, and that `wire` encodes for the network.
//! [`bytes`] converts the other way.

use crate::ident::{Incarnation, NodeId};
use crate::wire::{DATAGRAM_BYTES_MAX, Life, LifeState, LifeUpdate, SwimMessage, SwimPacket};
use bytes::{Buf, BufMut};
use foca::{Codec, Header, Member, Message, State};

/// Bytes of a life: node, incarnation, renewals.
const LIFE_BYTES: usize = 8 + 8 + 4;
/// Bytes of every header: source, refutations, destination, message with the longest content.
const HEADER_BYTES: usize = LIFE_BYTES + 2 + LIFE_BYTES + 1 + LIFE_BYTES + 1;
/// Bytes of an update; the same number as on the wire.
const UPDATE_BYTES: usize = LIFE_BYTES + 2 + 4;
/// Most bytes by which a packet on the wire is longer than foca's: tags and a longer count.
const WIRE_OVERHEAD_BYTES: usize = 20;
/// Largest packet that foca may write, so that it fits a datagram on the wire.
pub(super) const PACKET_BYTES_MAX: usize = DATAGRAM_BYTES_MAX - WIRE_OVERHEAD_BYTES;

/// Error of writing or reading a packet. The buffer was left as it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum CodecError {
    /// The buffer is too short.
    #[error("the packet is full, or too short")]
    TooShort,
    /// Unknown message or state.
    #[error("{0} is not a message or a state")]
    Unknown(u32),
}

/// A fixed layout, little-endian.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout;

impl Codec<Life> for Layout {
    type Error = CodecError;

    fn encode_header(
        &mut self,
        header: &Header<Life>,
        mut buf: impl BufMut,
    ) -> Result<(), CodecError> {
        room(buf.remaining_mut(), HEADER_BYTES)?;
        put_life(&header.src, &mut buf);
        buf.put_u16_le(header.src_incarnation);
        put_life(&header.dst, &mut buf);
        let (tag, life, probe) = flatten(&header.message);
        buf.put_u8(tag);
        put_life(&life, &mut buf);
        buf.put_u8(probe);
        Ok(())
    }

    fn decode_header(&mut self, mut buf: impl Buf) -> Result<Header<Life>, CodecError> {
        room(buf.remaining(), HEADER_BYTES)?;
        let src = take_life(&mut buf);
        let src_incarnation = buf.get_u16_le();
        let dst = take_life(&mut buf);
        let tag = buf.get_u8();
        let life = take_life(&mut buf);
        let probe = buf.get_u8();
        Ok(Header {
            src,
            src_incarnation,
            dst,
            message: unflatten(tag, life, probe)?,
        })
    }

    fn encode_member(
        &mut self,
        member: &Member<Life>,
        mut buf: impl BufMut,
    ) -> Result<(), CodecError> {
        room(buf.remaining_mut(), UPDATE_BYTES)?;
        put_life(member.id(), &mut buf);
        buf.put_u16_le(member.incarnation());
        buf.put_u32_le(match member.state() {
            State::Alive => 0,
            State::Suspect => 1,
            State::Down => 2,
        });
        Ok(())
    }

    fn decode_member(&mut self, mut buf: impl Buf) -> Result<Member<Life>, CodecError> {
        room(buf.remaining(), UPDATE_BYTES)?;
        let life = take_life(&mut buf);
        let refutations = buf.get_u16_le();
        let state = match buf.get_u32_le() {
            0 => State::Alive,
            1 => State::Suspect,
            2 => State::Down,
            other => return Err(CodecError::Unknown(other)),
        };
        Ok(Member::new(life, refutations, state))
    }
}

/// Parses what foca wrote.
pub(super) fn packet(mut written: &[u8]) -> Result<SwimPacket, CodecError> {
    let Header {
        src,
        src_incarnation,
        dst,
        message,
    } = Layout.decode_header(&mut written)?;
    let count = if written.remaining() >= 2 {
        written.get_u16()
    } else {
        0
    };
    let updates = (0..count).map(|_| {
        Layout
            .decode_member(&mut written)
            .map(|member| update(&member))
    });
    let message = told(message);
    Ok(SwimPacket {
        source: src,
        refutations: src_incarnation,
        destination: dst,
        message,
        updates: updates.collect::<Result<_, _>>()?,
    })
}

/// Encodes a packet as foca would have written it.
pub(super) fn bytes(packet: &SwimPacket) -> Result<Vec<u8>, CodecError> {
    let SwimPacket {
        source,
        refutations,
        destination,
        message,
        ref updates,
    } = *packet;
    let mut buf = Vec::with_capacity(HEADER_BYTES + 2 + updates.len() * UPDATE_BYTES);
    let header = Header {
        src: source,
        src_incarnation: refutations,
        dst: destination,
        message: asked(message),
    };
    Layout.encode_header(&header, &mut buf)?;
    // Nothing may follow an announcement.
    if message != SwimMessage::Announce {
        buf.put_u16(updates.len() as u16);
        updates
            .iter()
            .try_for_each(|update| Layout.encode_member(&member(*update), &mut buf))?;
    }
    Ok(buf)
}

fn room(available: usize, needed: usize) -> Result<(), CodecError> {
    if available < needed {
        Err(CodecError::TooShort)
    } else {
        Ok(())
    }
}

fn put_life(life: &Life, buf: &mut impl BufMut) {
    buf.put_u64_le(life.node.0);
    buf.put_u64_le(life.incarnation.0);
    buf.put_u32_le(life.renewals);
}

fn take_life(buf: &mut impl Buf) -> Life {
    Life {
        node: NodeId(buf.get_u64_le()),
        incarnation: Incarnation(buf.get_u64_le()),
        renewals: buf.get_u32_le(),
    }
}

/// Tag, life and probe of a message; fields that a message does not have are zero.
fn flatten(message: &Message<Life>) -> (u8, Life, u8) {
    let nobody = Life {
        node: NodeId(0),
        incarnation: Incarnation(0),
        renewals: 0,
    };
    match message {
        Message::Ping(probe) => (0, nobody, *probe),
        Message::Ack(probe) => (1, nobody, *probe),
        Message::PingReq {
            target,
            probe_number,
        } => (2, *target, *probe_number),
        Message::IndirectPing {
            origin,
            probe_number,
        } => (3, *origin, *probe_number),
        Message::IndirectAck {
            target,
            probe_number,
        } => (4, *target, *probe_number),
        Message::ForwardedAck {
            origin,
            probe_number,
        } => (5, *origin, *probe_number),
        Message::Announce => (6, nobody, 0),
        Message::Feed => (7, nobody, 0),
        Message::Gossip => (8, nobody, 0),
        Message::Broadcast => (9, nobody, 0),
        Message::TurnUndead => (10, nobody, 0),
    }
}

fn unflatten(tag: u8, life: Life, probe_number: u8) -> Result<Message<Life>, CodecError> {
    Ok(match tag {
        0 => Message::Ping(probe_number),
        1 => Message::Ack(probe_number),
        2 => Message::PingReq {
            target: life,
            probe_number,
        },
        3 => Message::IndirectPing {
            origin: life,
            probe_number,
        },
        4 => Message::IndirectAck {
            target: life,
            probe_number,
        },
        5 => Message::ForwardedAck {
            origin: life,
            probe_number,
        },
        6 => Message::Announce,
        7 => Message::Feed,
        8 => Message::Gossip,
        9 => Message::Broadcast,
        10 => Message::TurnUndead,
        other => return Err(CodecError::Unknown(other.into())),
    })
}

/// Converts foca's message to the wire's.
fn told(message: Message<Life>) -> SwimMessage {
    match message {
        Message::Ping(probe) => SwimMessage::Ping { probe },
        Message::Ack(probe) => SwimMessage::Acknowledge { probe },
        Message::PingReq {
            target,
            probe_number,
        } => SwimMessage::PingRequest {
            target,
            probe: probe_number,
        },
        Message::IndirectPing {
            origin,
            probe_number,
        } => SwimMessage::IndirectPing {
            origin,
            probe: probe_number,
        },
        Message::IndirectAck {
            target,
            probe_number,
        } => SwimMessage::IndirectAcknowledge {
            target,
            probe: probe_number,
        },
        Message::ForwardedAck {
            origin,
            probe_number,
        } => SwimMessage::ForwardedAcknowledge {
            origin,
            probe: probe_number,
        },
        Message::Announce => SwimMessage::Announce,
        Message::Feed => SwimMessage::Feed,
        Message::Gossip => SwimMessage::Gossip,
        Message::Broadcast => SwimMessage::Broadcast,
        Message::TurnUndead => SwimMessage::BelievedDead,
    }
}

/// Converts the wire's message to foca's.
fn asked(message: SwimMessage) -> Message<Life> {
    match message {
        SwimMessage::Ping { probe } => Message::Ping(probe),
        SwimMessage::Acknowledge { probe } => Message::Ack(probe),
        SwimMessage::PingRequest { target, probe } => Message::PingReq {
            target,
            probe_number: probe,
        },
        SwimMessage::IndirectPing { origin, probe } => Message::IndirectPing {
            origin,
            probe_number: probe,
        },
        SwimMessage::IndirectAcknowledge { target, probe } => Message::IndirectAck {
            target,
            probe_number: probe,
        },
        SwimMessage::ForwardedAcknowledge { origin, probe } => Message::ForwardedAck {
            origin,
            probe_number: probe,
        },
        SwimMessage::Announce => Message::Announce,
        SwimMessage::Feed => Message::Feed,
        SwimMessage::Gossip => Message::Gossip,
        SwimMessage::Broadcast => Message::Broadcast,
        SwimMessage::BelievedDead => Message::TurnUndead,
    }
}

fn update(member: &Member<Life>) -> LifeUpdate {
    let state = match member.state() {
        State::Alive => LifeState::Alive,
        State::Suspect => LifeState::Suspect,
        State::Down => LifeState::Down,
    };
    LifeUpdate {
        life: *member.id(),
        refutations: member.incarnation(),
        state,
    }
}

fn member(update: LifeUpdate) -> Member<Life> {
    let state = match update.state {
        LifeState::Alive => State::Alive,
        LifeState::Suspect => State::Suspect,
        LifeState::Down => State::Down,
    };
    Member::new(update.life, update.refutations, state)
}

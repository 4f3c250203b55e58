//! Control frames that arrive before this node knows their round. They are kept until it gets
//! there, within bounds that no sender can use up for the others.

use crate::coordinator::voters::Voter;
use crate::ident::NodeId;
use crate::view::MEMBERS_MAX;
use crate::wire::{CONTROL_FRAME_BYTES_MAX, Header, Message};

/// Maximum number of frames kept per member.
pub const EARLY_FRAMES_PER_MEMBER_MAX: usize = 4;
/// Maximum number of frames kept over all members.
pub const EARLY_FRAMES_MAX: usize = EARLY_FRAMES_PER_MEMBER_MAX * MEMBERS_MAX;
/// Maximum bytes of kept frames per member, as encoded: the frames that a leader sends in one round
/// of the largest view fit.
pub const EARLY_BYTES_PER_MEMBER_MAX: usize = CONTROL_FRAME_BYTES_MAX;
/// Maximum bytes of kept frames over all members: all of them may have contributed early, and some
/// may lead.
pub const EARLY_BYTES_MAX: usize = 16 * CONTROL_FRAME_BYTES_MAX;

/// Waiting frames, in order of arrival.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Early {
    frames: Vec<EarlyFrame>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct EarlyFrame {
    pub header: Header,
    pub message: Message,
    /// The incarnation with whose key a signature in the frame was checked. Nothing is true of the
    /// frame once the node has another one.
    pub signer: Option<Voter>,
    bytes: usize,
}

impl Early {
    /// Keeps a frame, unless that exceeds a bound: its sender repeats what matters when it is
    /// asked.
    pub fn keep(&mut self, header: Header, message: Message, signer: Option<Voter>) {
        let bytes = message.encoded_bytes();
        let (count, of_sender) = self.size(Some(header.sender));
        let (all, of_all) = self.size(None);
        let few = count < EARLY_FRAMES_PER_MEMBER_MAX && all < EARLY_FRAMES_MAX;
        if few
            && of_sender.saturating_add(bytes) <= EARLY_BYTES_PER_MEMBER_MAX
            && of_all.saturating_add(bytes) <= EARLY_BYTES_MAX
        {
            self.frames.push(EarlyFrame {
                header,
                message,
                signer,
                bytes,
            });
        }
    }

    /// Takes all frames, oldest first.
    pub fn take(&mut self) -> Vec<EarlyFrame> {
        std::mem::take(&mut self.frames)
    }

    /// Number and bytes of the frames of a sender, or of all.
    fn size(&self, sender: Option<NodeId>) -> (usize, usize) {
        let of = self
            .frames
            .iter()
            .filter(|frame| sender.is_none_or(|sender| frame.header.sender == sender));
        of.fold((0, 0), |(count, sum), frame| (count + 1, sum + frame.bytes))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::ident::{ClusterId, Epoch, GroupId, Incarnation, Lineage, Round, Term};
    use crate::published::PublicKey;
    use crate::view::{Member, View};
    use std::net::SocketAddr;

    fn header(sender: u64) -> Header {
        let term = Term {
            counter: 1,
            node: NodeId(sender),
        };
        let cluster = ClusterId(1);
        let incarnation = Incarnation(1);
        Header {
            cluster,
            lineage: Lineage(1),
            epoch: Epoch(1),
            round: Round(2),
            term,
            attempt: 0,
            sender: NodeId(sender),
            incarnation,
        }
    }

    fn large() -> Message {
        let address = SocketAddr::from(([0x2001, 0xdb8, 0, 0, 0, 0, 0, 1], 7401));
        let member = |id| Member {
            id: NodeId(id),
            incarnation: Incarnation(1),
            address,
            devices: 1,
            group: GroupId::default(),
            key: PublicKey::default(),
        };
        let view = View::new(Epoch(1), (0..MEMBERS_MAX as u64).map(member).collect()).unwrap();
        Message::Bootstrap {
            view,
            lineage: Lineage(1),
        }
    }

    #[test]
    fn one_sender_keeps_few_frames() {
        let mut early = Early::default();
        (0..9).for_each(|_| early.keep(header(1), Message::Prepare, None));
        assert_eq!(
            early.size(Some(NodeId(1))),
            (EARLY_FRAMES_PER_MEMBER_MAX, 4 * EARLY_FRAMES_PER_MEMBER_MAX)
        );
        assert_eq!(early.take().len(), EARLY_FRAMES_PER_MEMBER_MAX);
        assert_eq!(early.take().len(), 0);
    }

    #[test]
    fn a_flood_of_large_frames_stays_within_its_bytes() {
        let mut early = Early::default();
        let message = large();
        let bytes = message.encoded_bytes();
        assert!(bytes > 100_000);
        for node in 0..200 {
            (0..EARLY_FRAMES_PER_MEMBER_MAX)
                .for_each(|_| early.keep(header(node), message.clone(), None));
            assert!(early.size(Some(NodeId(node))).1 <= EARLY_BYTES_PER_MEMBER_MAX);
        }
        let (count, kept) = early.size(None);
        assert!(
            kept <= EARLY_BYTES_MAX && kept + bytes > EARLY_BYTES_MAX,
            "{count} frames, {kept} bytes"
        );
        // There is still room for small frames.
        early.keep(header(999), Message::Prepare, None);
        assert_eq!(early.size(Some(NodeId(999))), (1, 4));
    }
}

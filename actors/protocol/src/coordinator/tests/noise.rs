//! Frames that must not be acted on: of older rounds, other histories, other incarnations, strangers and usurpers.

use super::node::LINEAGE;
use super::oracle::Random;
use crate::ballot::BALLOT_COUNTER_MAX;
use crate::coordinator::{Outcome, RoundKind, Terms};
use crate::ident::{ClusterId, Epoch, Incarnation, Lineage, NodeId, Round, Step};
use crate::view::tests::view;
use crate::wire::{Header, Message, RefusalReason};

/// A few frames that look like `header` and `message` but are of no worth.
pub fn around(header: Header, message: &Message, random: &mut Random) -> Vec<(Header, Message)> {
    let count = random.below(3);
    (0..count).map(|_| one(header, message.clone(), random)).collect()
}

fn one(mut header: Header, message: Message, random: &mut Random) -> (Header, Message) {
    let abandon = Message::Abandon(RefusalReason::MemberLost { node: header.sender });
    let loud = if random.below(2) == 0 { message } else { abandon };
    match random.below(10) {
        0 => header.cluster = ClusterId(99),
        1 => header.lineage = Lineage(LINEAGE.0 + 1),
        2 => header.epoch = Epoch(header.epoch.0 + 1),
        3 => header.incarnation = Incarnation(header.incarnation.0 + 1),
        4 => header.sender = NodeId(header.sender.0 + 1),
        5 => header.ballot.counter = BALLOT_COUNTER_MAX + 1 + random.below(u64::MAX - BALLOT_COUNTER_MAX),
        6 => header.ballot.node = NodeId(header.ballot.node.0 + 1),
        7 => header.round = Round(header.round.0 + 2 + random.below(u64::MAX - header.round.0 - 2)),
        8 => return (header, Message::Decide(strange(header, random))),
        _ => return (header, Message::Propose(strange(header, random))),
    }
    (header, loud)
}

/// An outcome that the round cannot have.
fn strange(header: Header, random: &mut Random) -> Outcome {
    let kind = RoundKind::Average;
    let terms = Terms { kind, step: Step(u64::MAX), gamma: f32::NAN, elements: u64::MAX };
    let stranger = header.sender.0 + 1;
    let (contributors, members): (&[u64], &[u64]) = match random.below(4) {
        0 => (&[], &[2]),
        1 => (&[7, 2], &[2, 7]),
        2 => (&[2, 2], &[2]),
        _ => (&[stranger], &[2, 7]),
    };
    let round = if random.below(2) == 0 { header.round } else { Round(u64::MAX) };
    let contributors = contributors.iter().copied().map(NodeId).collect();
    Outcome { lineage: header.lineage, round, terms, contributors, view: view(members) }
}

//! The entries of the books on a gossip peer's mass, derived from the input and the effects of its
//! machine.

use super::Gossips;
use crate::sim::books::Entry;
use crate::sim::mail::Output;
use slowmo_protocol::gossip_peer::{In, Key};
use slowmo_protocol::ident::{NodeId, Step};
use slowmo_protocol::machine::Place;
use slowmo_protocol::node::vectors::Vectors;
use slowmo_protocol::node::{GossipEffect, ToGossip};
use slowmo_protocol::trace::Start;
use slowmo_protocol::wire::{Frame, Header, Message};

/// The place of a machine, and the weight that it had written off.
pub type Stands = Option<(Place, f64)>;

/// An input of a machine that moves mass.
pub enum Told {
    /// A message has arrived completely.
    Arrived(Key, Header),
    /// A node is taken for dead.
    Lost(NodeId),
    /// The messages of a step were not sent.
    Withheld(Step),
    /// A sender reclaimed the mass that it sent.
    Reclaimed(Header, Step),
    /// Any other input.
    Other,
}

impl Gossips {
    pub(super) fn stands(&self) -> Stands {
        self.machine()
            .map(|machine| (machine.place(), machine.written_off()))
    }

    pub(super) fn told(&self, message: &ToGossip<Vectors>) -> Told {
        match message {
            ToGossip::Read(key, Some(_)) => self
                .part
                .reading(*key)
                .map_or(Told::Other, |header| Told::Arrived(*key, *header)),
            ToGossip::In(In::MemberLost(node)) => Told::Lost(*node),
            ToGossip::In(In::Frame { header, message }) => match **message {
                Message::GossipReclaimed { step } => Told::Reclaimed(*header, step),
                _ => Told::Other,
            },
            ToGossip::Leave(_) => self
                .part
                .pending()
                .map_or(Told::Other, |plan| Told::Withheld(plan.step)),
            _ => Told::Other,
        }
    }

    pub(super) fn book(
        &self,
        before: Stands,
        told: Told,
        effects: &[GossipEffect<Vectors>],
        outputs: &mut Vec<Output>,
    ) {
        let Some((machine, (place, written_off))) = self.machine().zip(self.stands()) else {
            return;
        };
        let mut entries = Vec::new();
        let stays = before.filter(|(before, _)| *before == place);
        match stays {
            None => entries.push(Entry::Stands(place)),
            Some((_, before)) if written_off > before => {
                entries.push(Entry::WrittenOff(written_off - before))
            }
            Some(_) => {}
        }
        match told {
            Told::Arrived(key, header)
                if effects.iter().any(|effect| says_it_is_held(effect, key)) =>
            {
                entries.push(Entry::Accepted(start(&header), place_of(&header), key.1));
            }
            Told::Lost(node) if machine.is_lost(node) => {
                entries.push(Entry::Lost(node, self.open(node)));
            }
            Told::Withheld(step) if stays.is_some() => entries.push(Entry::Withheld(step)),
            Told::Reclaimed(header, step) => {
                entries.push(Entry::Reclaimed(start(&header), place_of(&header), step))
            }
            _ => {}
        }
        for effect in effects {
            match effect {
                GossipEffect::Ship(plan) => entries.push(Entry::Shipped(
                    plan.step,
                    plan.out.clone(),
                    plan.split.share,
                )),
                GossipEffect::Forget(sent) => entries.push(Entry::Released(*sent)),
                GossipEffect::Mix { mix, .. } => {
                    entries.extend(mix.returned.iter().map(|sent| Entry::Back(*sent)))
                }
                _ => {}
            }
        }
        entries.push(Entry::Weighs(machine.weight()));
        outputs.extend(entries.into_iter().map(Output::Book));
    }
}

/// Whether an effect is the answer that confirms the message that was just read.
fn says_it_is_held(effect: &GossipEffect<Vectors>, key: Key) -> bool {
    let GossipEffect::Send {
        to,
        frame: Frame::V1 { message, .. },
    } = effect
    else {
        return false;
    };
    *to == key.2 && matches!(**message, Message::GossipMixed { step } if step == key.1)
}

fn start(header: &Header) -> Start {
    Start {
        node: header.sender,
        incarnation: header.incarnation,
    }
}

fn place_of(header: &Header) -> Place {
    header.place()
}

//! Books on where all push-sum mass is. They are kept outside of the machines and compared, after
//! every event, with the mass that each machine says it answers for.
//!
//! A node begins a round with weight 1. Mass that it sends stays its own until the receiver has it;
//! mass that it accepts is its own from then on. A message has one owner, unless its sender took
//! the receiver for dead: then it has two, until the receiver gives it up.

use slowmo_protocol::gossip_peer::Sent;
use slowmo_protocol::ident::{Epoch, Lineage, NodeId, Round, Step};
use slowmo_protocol::trace::{Event, Start};
use slowmo_protocol::{machine, trace};
use std::collections::BTreeMap;

/// An event of a gossip peer that concerns mass.
#[derive(Clone, Debug)]
pub enum Entry {
    /// The node takes its place in a history, with weight 1.
    Stands(machine::Place),
    /// The node split its mass: each of these nodes gets this share.
    Shipped(Step, Vec<NodeId>, f64),
    /// The messages of this step were not sent after all.
    Withheld(Step),
    /// The node holds a message of this sender, sent in that place.
    Accepted(Start, machine::Place, Step),
    /// The node no longer answers for a message: its receiver does.
    Released(Sent),
    /// A message belongs to its sender again.
    Back(Sent),
    /// The node takes this node for dead. These messages to it are still unanswered.
    Lost(NodeId, Vec<Step>),
    /// The sender took this node for dead and has reclaimed the mass that it sent from that place.
    Reclaimed(Start, machine::Place, Step),
    /// A round closed over messages of this weight.
    WrittenOff(f64),
    /// The node says that it answers for this weight.
    Weighs(f64),
}

/// A place in history without its term.
type Stand = (Lineage, Epoch, Round);

/// Key of a message: place of sending, sender, receiver, step.
type Parcelled = (Stand, Start, NodeId, Step);

#[derive(Clone, Copy, Debug, Default)]
struct Parcel {
    share: f64,
    accepted: bool,
    /// Whether the message belongs to its sender again, or never left it.
    back: bool,
    /// Whether the sender took the receiver for dead.
    reclaimed: bool,
    given_up: bool,
}

#[derive(Clone, Copy, Debug)]
struct Account {
    start: Start,
    stand: Stand,
    weight: f64,
    told: Option<f64>,
}

/// The books of a run.
#[derive(Default)]
pub struct Books {
    accounts: BTreeMap<NodeId, Account>,
    parcels: BTreeMap<Parcelled, Parcel>,
}

impl Books {
    /// Books an entry of an incarnation; returns the event to record, if any.
    ///
    /// # Errors
    /// The entry is impossible; the error says why in words.
    pub fn take(&mut self, start: Start, entry: Entry) -> Result<Option<Event>, String> {
        if let Entry::Stands(place) = entry {
            self.accounts.insert(
                start.node,
                Account {
                    start,
                    stand: stand(&place),
                    weight: 1.0,
                    told: None,
                },
            );
            return Ok(None);
        }
        let Some(mut account) = self
            .accounts
            .get(&start.node)
            .copied()
            .filter(|account| account.start == start)
        else {
            return Err(format!(
                "{} moves mass before it stands anywhere: {entry:?}",
                start.node
            ));
        };
        let event = self.book(&mut account, entry)?;
        self.accounts.insert(start.node, account);
        Ok(event)
    }

    fn book(&mut self, account: &mut Account, entry: Entry) -> Result<Option<Event>, String> {
        let me = account.start.node;
        match entry {
            Entry::Stands(_) => {}
            Entry::Shipped(step, to, share) => {
                for to in to {
                    let parcel = Parcel {
                        share,
                        ..Parcel::default()
                    };
                    if self
                        .parcels
                        .insert((account.stand, account.start, to, step), parcel)
                        .is_some()
                    {
                        return Err(format!("{me} sends to {to} twice in {step}"));
                    }
                }
            }
            Entry::Withheld(step) => self
                .mine(account)
                .filter(|((.., of), _)| *of == step)
                .for_each(|(_, parcel)| parcel.back = true),
            Entry::Accepted(from, place, step) => {
                self.accept(account, (stand(&place), from, me, step))?
            }
            Entry::Released((to, step)) => {
                let parcel = self.parcel((account.stand, account.start, to, step))?;
                if !parcel.accepted {
                    return Err(format!(
                        "{me} gives up its message of {step} to {to}, which has not got it"
                    ));
                }
                account.weight -= parcel.share;
            }
            Entry::Back((to, step)) => {
                let parcel = self.parcel((account.stand, account.start, to, step))?;
                if parcel.back || (parcel.accepted && !parcel.reclaimed) {
                    return Err(format!(
                        "{me} takes its message of {step} to {to} back, which is no more its own"
                    ));
                }
                parcel.back = true;
            }
            Entry::Lost(to, open) => {
                if let Some(step) = open.first() {
                    return Err(format!(
                        "{me} takes {to} for dead and does not take back what it sent it in {step}"
                    ));
                }
                self.mine(account)
                    .filter(|((_, _, of, _), _)| *of == to)
                    .for_each(|(_, parcel)| parcel.reclaimed = true);
            }
            Entry::Reclaimed(from, place, step) => {
                let key = (stand(&place), from, me, step);
                let here = key.0 == account.stand;
                if let Some(parcel) = self
                    .parcels
                    .get_mut(&key)
                    .filter(|parcel| here && parcel.accepted && !parcel.given_up)
                {
                    parcel.given_up = true;
                    account.weight -= parcel.share;
                }
            }
            Entry::WrittenOff(weight) => account.weight -= weight,
            Entry::Weighs(weight) => {
                let known = account.told.replace(weight) == Some(weight);
                let (lineage, _, round) = account.stand;
                let place = trace::Place { lineage, round };
                let event = Event::Mass {
                    start: account.start,
                    place,
                    found: vec![weight],
                    expected: vec![account.weight],
                };
                return Ok(
                    (!known || (weight - account.weight).abs() > f64::EPSILON).then_some(event)
                );
            }
        }
        Ok(None)
    }

    fn accept(&mut self, account: &mut Account, key: Parcelled) -> Result<(), String> {
        let me = account.start.node;
        let from = key.1.node;
        let step = key.3;
        let stands = account.stand;
        let parcel = self.parcel(key)?;
        if key.0 != stands {
            return Err(format!(
                "{me} stands in {stands:?} and mixes what {from} sent in {:?}",
                key.0
            ));
        }
        if parcel.accepted || (parcel.back && !parcel.reclaimed) {
            return Err(format!(
                "{me} accepts the message of {step} from {from}, which has another owner: \
                 {parcel:?}"
            ));
        }
        parcel.accepted = true;
        account.weight += parcel.share;
        Ok(())
    }

    fn parcel(&mut self, key: Parcelled) -> Result<&mut Parcel, String> {
        let (_, from, to, step) = key;
        self.parcels
            .get_mut(&key)
            .ok_or_else(|| format!("{} sent {to} nothing in {step}", from.node))
    }

    /// The messages that this node sent from its current place.
    fn mine(&mut self, account: &Account) -> impl Iterator<Item = (&Parcelled, &mut Parcel)> {
        let stand = account.stand;
        let start = account.start;
        let first = (stand, start, NodeId(0), Step(0));
        self.parcels
            .range_mut(first..=(stand, start, NodeId(u64::MAX), Step(u64::MAX)))
    }
}

fn stand(place: &machine::Place) -> Stand {
    (place.lineage, place.epoch, place.round)
}

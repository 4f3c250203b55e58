//! Where all mass is: kept outside of the machines, and compared with what they say after every
//! event.

use super::node::{Node, Parcelled};
use crate::ident::{NodeId, Step};
use std::collections::{BTreeMap, BTreeSet};

/// A push-sum weight and two numerators.
pub type Mass = [f64; 3];

/// For so many steps a message that nobody answers for any more is remembered.
const REMEMBERED: u64 = 300;

/// `a + scale·b`
pub fn combine(a: Mass, scale: f64, b: Mass) -> Mass {
    [
        a[0] + scale * b[0],
        a[1] + scale * b[1],
        a[2] + scale * b[2],
    ]
}

/// The side that answers for a message, as its sender sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// It is without an answer.
    Open,
    /// Its receiver has it.
    Released,
    /// It is the sender's again, and not mixed yet.
    Returned,
    /// It was mixed again, or never sent.
    Back,
    /// The sender is dead.
    Void,
}

#[derive(Clone, Copy, Debug)]
pub struct Parcel {
    pub mass: Mass,
    pub side: Side,
    /// A living receiver accepted it.
    pub accepted: bool,
    /// Taken back because its receiver was thought dead.
    pub reclaimed: bool,
    /// Its receiver gave up what was reclaimed.
    pub given_up: bool,
    to_the_dead: bool,
}

/// The books.
#[derive(Default)]
pub struct Audit {
    pub expected: Mass,
    pub parcels: BTreeMap<Parcelled, Parcel>,
    /// Those that their senders still answer for.
    senders: BTreeSet<Parcelled>,
    /// Mass was lost, or counted twice for a while.
    pub adjusted: bool,
}

/// The mass that a node answers for, without what is on its way.
fn of(node: &Node) -> Mass {
    let mut mass = combine(node.mass, 1.0, node.held_mass());
    mass[0] -= node.machine.debt;
    mass
}

impl Audit {
    pub fn adjust(&mut self, scale: f64, mass: Mass) {
        self.expected = combine(self.expected, scale, mass);
        self.adjusted = true;
    }

    /// All mass that there is.
    pub fn total(&self, nodes: &BTreeMap<NodeId, Node>) -> Mass {
        let living = nodes.values().filter(|node| node.alive);
        let living = living.fold([0.0; 3], |sum, node| combine(sum, 1.0, of(node)));
        self.on_their_way()
            .fold(living, |sum, mass| combine(sum, 1.0, *mass))
    }

    pub fn shipped(&mut self, of: Parcelled, mass: Mass) {
        let parcel = Parcel {
            mass,
            side: Side::Open,
            accepted: false,
            reclaimed: false,
            given_up: false,
            to_the_dead: false,
        };
        assert!(
            self.parcels.insert(of, parcel).is_none(),
            "sent twice: {of:?}"
        );
        self.senders.insert(of);
        let old = (of.0, of.1, Step(of.2.0.saturating_sub(REMEMBERED)));
        let done = self
            .parcels
            .range((of.0, of.1, Step(0))..old)
            .map(|(of, _)| *of)
            .filter(|of| !self.senders.contains(of));
        done.collect::<Vec<_>>()
            .iter()
            .for_each(|of| _ = self.parcels.remove(of));
    }

    pub fn accepted(&mut self, of: Parcelled) {
        let Some(parcel) = self.parcels.get_mut(&of) else {
            return;
        };
        assert!(!parcel.accepted, "accepted twice: {of:?}");
        parcel.accepted = true;
        let mass = parcel.mass;
        let side = parcel.side;
        let reclaimed = parcel.reclaimed;
        match side {
            Side::Open => {}
            Side::Void => self.adjust(1.0, mass),
            Side::Returned | Side::Back if reclaimed => self.adjust(1.0, mass),
            _ => panic!("accepted although its sender took it back: {of:?} {side:?}"),
        }
    }

    /// The sender does not answer for it any more: its receiver has it.
    pub fn released(&mut self, of: Parcelled) {
        let Some(parcel) = self.parcels.get_mut(&of) else {
            return;
        };
        assert_eq!(parcel.side, Side::Open, "{of:?}");
        parcel.side = Side::Released;
        self.senders.remove(&of);
        if !parcel.accepted {
            assert!(
                parcel.to_the_dead,
                "released although nobody has it: {of:?}"
            );
            let mass = parcel.mass;
            self.adjust(-1.0, mass);
        }
    }

    /// The sender has it again.
    pub fn returned(&mut self, of: Parcelled, reclaimed: bool) {
        let Some(parcel) = self.parcels.get_mut(&of) else {
            return;
        };
        if parcel.side != Side::Open {
            return;
        }
        parcel.side = Side::Returned;
        parcel.reclaimed = reclaimed;
        if parcel.accepted {
            assert!(reclaimed, "taken back although its receiver has it: {of:?}");
            let mass = parcel.mass;
            self.adjust(1.0, mass);
        }
    }

    pub fn back(&mut self, of: Parcelled) {
        if let Some(parcel) = self.parcels.get_mut(&of) {
            assert!(
                matches!(parcel.side, Side::Returned | Side::Open),
                "{of:?} {:?}",
                parcel.side
            );
            parcel.side = Side::Back;
            self.senders.remove(&of);
        }
    }

    /// The receiver owes its weight.
    pub fn owed(&mut self, of: Parcelled, debt: f64) {
        let Some(parcel) = self.parcels.get_mut(&of) else {
            return;
        };
        assert!(
            parcel.accepted && parcel.reclaimed && !parcel.given_up,
            "{of:?} {parcel:?}"
        );
        assert!((parcel.mass[0] - debt).abs() < 1e-12);
        parcel.given_up = true;
        self.adjust(-debt, [1.0, 0.0, 0.0]);
    }

    /// A node is gone, with what it had at that time.
    pub fn gone(&mut self, node: NodeId, nodes: &BTreeMap<NodeId, Node>) {
        let before = self.total(nodes);
        for ((from, to, step), parcel) in &mut self.parcels {
            if *from == node && matches!(parcel.side, Side::Open | Side::Returned) {
                parcel.side = Side::Void;
                self.senders.remove(&(*from, *to, *step));
            }
            if *to == node {
                parcel.accepted = false;
                parcel.to_the_dead = true;
            }
        }
        let mut without = self.total(nodes);
        without = combine(without, -1.0, of(&nodes[&node]));
        let lost = combine(before, -1.0, without);
        self.adjust(-1.0, lost);
    }

    /// Mass that is in no node's numerators.
    pub fn on_their_way(&self) -> impl Iterator<Item = &Mass> {
        self.senders
            .iter()
            .map(|of| &self.parcels[of])
            .filter(|parcel| parcel.side == Side::Returned || !parcel.accepted)
            .map(|parcel| &parcel.mass)
    }

    /// Messages of a node that it has no answer to.
    pub fn open_of(&self, from: NodeId) -> Vec<Parcelled> {
        let of_node = self
            .senders
            .range((from, NodeId(0), Step(0))..=(from, NodeId(u64::MAX), Step(u64::MAX)));
        of_node
            .filter(|of| self.parcels[of].side == Side::Open)
            .copied()
            .collect()
    }

    /// Whether some mass is counted twice because a living node was taken for dead and does not
    /// know of it.
    pub fn doubled(&self, nodes: &BTreeMap<NodeId, Node>) -> Vec<Parcelled> {
        let twice = |((from, to, _), parcel): &(&Parcelled, &Parcel)| {
            let live = nodes[from].alive && nodes[to].alive;
            live && parcel.accepted && parcel.reclaimed && !parcel.given_up
        };
        self.parcels
            .iter()
            .filter(twice)
            .map(|(of, _)| *of)
            .collect()
    }
}

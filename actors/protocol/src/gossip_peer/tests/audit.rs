//! Where all mass is: kept outside of the machines, and compared with what they say after every
//! event.

use super::node::{Node, Parcelled};
use crate::ident::{NodeId, Round, Step};
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

/// Who answers for a message, as its sender sees it.
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
    /// A round closed over it.
    WrittenOff,
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

/// The books of the round that is not decided yet.
#[derive(Default)]
pub struct Audit {
    pub round: Round,
    /// With what everybody begins the round.
    pub mean: [f64; 2],
    pub expected: Mass,
    pub parcels: BTreeMap<Parcelled, Parcel>,
    /// Those that their senders still answer for.
    senders: BTreeSet<Parcelled>,
    /// Mass was lost, or counted twice for a while.
    pub adjusted: bool,
    /// Who takes part in the round.
    pub members: BTreeSet<NodeId>,
    /// Nodes that died with their contribution frozen.
    pub frozen: BTreeMap<NodeId, Mass>,
}

impl Audit {
    /// A round begins with these nodes, which all have the same.
    pub fn begin(&mut self, round: Round, mean: [f64; 2], members: BTreeSet<NodeId>) {
        let size = members.len() as f64;
        *self = Self {
            round,
            mean,
            members,
            expected: [size, size * mean[0], size * mean[1]],
            ..Self::default()
        };
    }

    pub fn adjust(&mut self, scale: f64, mass: Mass) {
        self.expected = combine(self.expected, scale, mass);
        self.adjusted = true;
    }

    /// All mass of the round that there is.
    pub fn total(&self, nodes: &BTreeMap<NodeId, Node>) -> Mass {
        let living = nodes
            .iter()
            .filter(|(id, node)| node.alive && self.members.contains(id));
        let living = living.fold([0.0; 3], |sum, (_, node)| combine(sum, 1.0, self.of(node)));
        let frozen = self
            .frozen
            .values()
            .fold(living, |sum, mass| combine(sum, 1.0, *mass));
        self.on_their_way()
            .fold(frozen, |sum, mass| combine(sum, 1.0, *mass))
    }

    fn of(&self, node: &Node) -> Mass {
        let own = if node.round == self.round {
            node.mass
        } else {
            [1.0, self.mean[0], self.mean[1]]
        };
        if node.machine.round != self.round {
            return own;
        }
        let mut with_held = combine(own, 1.0, node.held_of(self.round));
        with_held[0] -= node.machine.debt;
        with_held
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
            Side::Void | Side::WrittenOff => self.adjust(1.0, mass),
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

    pub fn written_off(&mut self, of: Parcelled) {
        let Some(parcel) = self.parcels.get_mut(&of) else {
            return;
        };
        parcel.side = Side::WrittenOff;
        self.senders.remove(&of);
        let mass = parcel.mass;
        let accepted = parcel.accepted;
        self.adjusted = true;
        if !accepted {
            self.adjust(-1.0, mass);
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

    /// A node is gone, with what it had at that time; it still counts if it had contributed.
    pub fn gone(
        &mut self,
        node: NodeId,
        nodes: &BTreeMap<NodeId, Node>,
        contributed: Option<Mass>,
    ) {
        let before = self.total(nodes);
        if let Some(mass) = contributed {
            self.frozen.insert(node, mass);
        }
        for ((from, to, step), parcel) in &mut self.parcels {
            if *from == node && matches!(parcel.side, Side::Open | Side::Returned) {
                parcel.side = Side::Void;
                self.senders.remove(&(*from, *to, *step));
            }
            if *to == node && contributed.is_none() {
                parcel.accepted = false;
                parcel.to_the_dead = true;
            }
        }
        let mut without = self.total(nodes);
        without = combine(without, -1.0, self.of(&nodes[&node]));
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

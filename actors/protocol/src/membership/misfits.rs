//! Which of two nodes that do not fit together gives up before a run is bootstrapped. They fit if
//! they share credentials, settings and model, and each has an id of its own.
//!
//! No node alone can tell which of the two is wrong, so the smaller side gives up: the nodes that
//! more nodes differ from, or are refused by, than agree with them. The others refuse them, say so,
//! and wait for their return. Of two sides of equal size the one with the smallest address stays,
//! or the node with `bootstrap = yes`, once every known address has answered.
//!
//! A node that only joins has no say. Members tell it what differs ([`super::life`]), and it gives
//! up if all addresses that it knows refuse it.
//!
//! A dial that fails tells of a misfit only for some reasons: `fault_of` in the router of actors
//! says which.

use super::dialing::DialFault;
use super::known::Known;
use super::settings::{Difference, differing_settings};
use super::{BootstrapError, Effect, Membership};
use crate::ident::NodeId;
use crate::machine::Outbox;
use crate::model::ModelSize;
use crate::policy::Bootstrap;
use crate::time::{Instant, Span};
use crate::view::MEMBERS_MAX;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

/// Most refused nodes that the reason for waiting names.
pub const REFUSED_TOLD_MAX: usize = 4;

/// Refused nodes by address; at most [`MEMBERS_MAX`].
pub(super) type Misfits = BTreeMap<SocketAddr, Misfit>;

/// A node that was refused, kept until one that fits is met at its address.
#[derive(Clone, Debug)]
pub(super) struct Misfit {
    /// The reason.
    error: BootstrapError,
    /// The reason in short, for the status.
    why: String,
    /// It refuses this node's dials now, and for this fault.
    refuses: Option<DialFault>,
    /// It dialed this node, so it discovered this node's address too: its own is not of an earlier
    /// run.
    dials: bool,
}

/// Nodes that differ from this one and agree with each other.
struct Side {
    nodes: usize,
    lowest: SocketAddr,
    error: BootstrapError,
}

impl Side {
    fn add(&mut self, address: SocketAddr) {
        self.nodes += 1;
        self.lowest = self.lowest.min(address);
    }
}

impl Membership {
    /// Notes whether a peer that has said who it is fits.
    pub(super) fn note_fit(&mut self, known: &Known, out: &mut Outbox<Effect>) {
        match self.misfit(known) {
            Some((error, why)) => self.note_misfit(known.address(), error, why, None, out),
            None => _ = self.misfits.remove(&known.address()),
        }
    }

    /// Notes the result of dialing an address in vain.
    pub(super) fn note_failed_dial(
        &mut self,
        address: SocketAddr,
        tried_for: Span,
        fault: DialFault,
        error: String,
        out: &mut Outbox<Effect>,
    ) {
        let why = error.clone();
        let error = BootstrapError::Unreachable {
            address,
            tried_for,
            error,
        };
        if fault == DialFault::Silent {
            self.unreachable = Some((address, error.to_string()));
            if let Some(misfit) = self.misfits.get_mut(&address) {
                misfit.refuses = None;
            }
        } else {
            self.note_misfit(address, error, why, Some(fault), out);
        }
    }

    fn note_misfit(
        &mut self,
        address: SocketAddr,
        error: BootstrapError,
        why: String,
        refuses: Option<DialFault>,
        out: &mut Outbox<Effect>,
    ) {
        let known = self.misfits.get(&address);
        let dials = known.is_some_and(|known| known.dials);
        if known.is_none() && self.misfits.len() >= MEMBERS_MAX {
            return;
        }
        if known.is_none_or(|known| known.why != why) {
            out.push(Effect::Refused {
                address,
                why: why.clone(),
            });
        }
        let misfit = Misfit {
            error,
            why,
            refuses,
            dials,
        };
        self.misfits.insert(address, misfit);
    }

    /// Notes that a node without this cluster's credentials dialed this one. Anybody may do that, so
    /// it counts only where this node dialed that address, too.
    pub(super) fn note_stranger(&mut self, address: SocketAddr) {
        if let Some(misfit) = self.misfits.get_mut(&address) {
            misfit.dials = true;
        }
    }

    /// Compares this node and a peer. Returns how they differ; `None` if they may train together.
    fn misfit(&self, known: &Known) -> Option<(BootstrapError, String)> {
        let ours = &self.settings.shared;
        let theirs = known.node;
        let differences = differing_settings(ours, known.settings(ours));
        if !differences.is_empty() {
            let told: Vec<String> = differences.iter().map(Difference::to_string).collect();
            let differences = told.join("; ");
            let why = format!("{theirs} has other settings: {differences}");
            let error = BootstrapError::SettingsDiffer {
                ours: self.me(),
                theirs,
                differences,
            };
            return Some((error, why));
        }
        let our_model = self.model?;
        let their_model = known.model.filter(|model| !model.fits(&our_model))?;
        let place = our_model.told_difference(&their_model);
        let why =
            format!("{theirs} has another model: {our_model} here, {their_model} there{place}");
        let error = BootstrapError::ModelsDiffer {
            ours: self.me(),
            our_model: Box::new(our_model),
            theirs,
            their_model: Box::new(their_model),
        };
        Some((error, why))
    }

    /// Whether a peer may be a bootstrap member together with this node.
    pub(super) fn fits(&self, known: &Known) -> bool {
        let model_fits = match (&known.model, &self.model) {
            (None, _) => true,
            (Some(_), None) => false,
            (Some(theirs), Some(ours)) => theirs.fits(ours),
        };
        !known.differs() && model_fits
    }

    /// The nodes that can be sent to, without those that do not fit, and with this node.
    pub(super) fn present(&self) -> Vec<NodeId> {
        let fits = |id: &&NodeId| {
            let known = self.hellos.get(id).filter(|known| self.is_current(known));
            known.is_none_or(|known| self.fits(known))
        };
        let others = self.connected.keys().filter(fits).copied();
        others.chain([self.me()]).collect()
    }

    /// Whether `min_nodes` nodes that fit can be sent to, this one included.
    pub(super) fn enough_are_present(&self) -> bool {
        let connected = self.connected.len() + 1;
        connected >= self.settings.min_nodes
            && (self.misfits.is_empty() || self.present().len() >= self.settings.min_nodes)
    }

    /// Gives up, or no longer means to, as the misfits are now.
    pub(super) fn judge(&mut self, now: Instant, out: &mut Outbox<Effect>) {
        let waits = self.model.is_some()
            && self.failed.is_none()
            && self.adopted.is_none()
            && self.life.is_new()
            && self.life.resigning.is_empty();
        let verdict = if waits && !self.misfits.is_empty() {
            self.verdict()
        } else {
            None
        };
        match verdict {
            Some(error) if self.settings.join => self.fail(error, out),
            Some(error) => self.refuse(error, now, out),
            None => self.refused = None,
        }
    }

    /// The reason to give up; `None` if this node is on the side that stays, or may be.
    fn verdict(&self) -> Option<BootstrapError> {
        let refusing = self.refusing();
        if self.settings.join {
            let all_refuse = self.connected.is_empty() && self.unaccounted() == 0;
            if !all_refuse {
                return None;
            }
            return refusing.map(|side| side.error);
        }
        let larger = |one: &Side, other: &Side| {
            let key = |side: &Side| (side.nodes, std::cmp::Reverse(side.lowest));
            key(one).cmp(&key(other))
        };
        let others = self
            .differing()
            .into_iter()
            .chain(refusing)
            .max_by(larger)?;
        let present = self.present();
        if others.nodes != present.len() {
            return (others.nodes > present.len()).then_some(others.error);
        }
        let refused = self
            .misfits
            .values()
            .filter(|misfit| misfit.refuses.is_some());
        let met = self.connected.len() + 1 + refused.count();
        if met < self.settings.min_nodes || self.unaccounted() > 0 {
            return None;
        }
        let ours = present.iter().filter_map(|id| self.hellos.get(id));
        let lowest = ours
            .map(Known::address)
            .fold(self.settings.address, SocketAddr::min);
        let stays = match self.settings.bootstrap {
            Bootstrap::Yes => true,
            Bootstrap::No => false,
            Bootstrap::Auto => lowest < others.lowest,
        };
        (!stays).then_some(others.error)
    }

    /// The addresses that refuse this node, as one side: whether they agree is not known.
    fn refusing(&self) -> Option<Side> {
        // An address of an earlier run may be another cluster's by now.
        let counts = |misfit: &Misfit| match misfit.refuses {
            None => false,
            Some(DialFault::IdTaken) => true,
            Some(_) => self.settings.join || !self.settings.addresses_may_be_stale || misfit.dials,
        };
        let mut side: Option<Side> = None;
        for (address, misfit) in &self.misfits {
            if !counts(misfit) {
                continue;
            }
            side.get_or_insert_with(|| Side {
                nodes: 0,
                lowest: *address,
                error: misfit.error.clone(),
            })
            .add(*address);
        }
        side
    }

    /// The sides of the peers that differ from this node.
    fn differing(&self) -> Vec<Side> {
        let mut sides: BTreeMap<(Option<&str>, Option<ModelSize>), Side> = BTreeMap::new();
        let current = self.hellos.values().filter(|known| self.is_current(known));
        for known in current.filter(|known| !self.fits(known)) {
            let address = known.address();
            let Some(misfit) = self.misfits.get(&address) else {
                continue;
            };
            let settings = known.other_settings();
            // Of nodes with other settings it does not matter whether they have synchronized.
            let model = match settings {
                Some(_) => None,
                None => known.model,
            };
            sides
                .entry((settings, model))
                .or_insert_with(|| Side {
                    nodes: 0,
                    lowest: address,
                    error: misfit.error.clone(),
                })
                .add(address);
        }
        sides.into_values().collect()
    }

    /// Number of discovered addresses that have neither answered nor refused this node; 1 if
    /// discovery has reported nothing yet.
    fn unaccounted(&self) -> usize {
        let Some(discovered) = &self.discovered else {
            return 1;
        };
        let answered: BTreeSet<SocketAddr> = self.answered().collect();
        let refuses = |address: &SocketAddr| {
            let misfit = self.misfits.get(address);
            misfit.is_some_and(|misfit| misfit.refuses.is_some())
        };
        discovered
            .iter()
            .filter(|address| {
                **address != self.settings.address
                    && !answered.contains(address)
                    && !refuses(address)
            })
            .count()
    }

    /// Names the refused nodes and the reasons, for an operator.
    pub(super) fn refused_nodes(&self) -> Option<String> {
        let told = self.misfits.iter().take(REFUSED_TOLD_MAX);
        let told: Vec<String> = told
            .map(|(address, misfit)| format!("{address} is refused: {}", misfit.why))
            .collect();
        let further = self.misfits.len().saturating_sub(REFUSED_TOLD_MAX);
        match (told.is_empty(), further) {
            (true, _) => None,
            (false, 0) => Some(told.join("; ")),
            (false, further) => Some(format!("{}; and {further} more", told.join("; "))),
        }
    }
}

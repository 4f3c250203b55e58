//! Proofs that nodes lied. A node that was restarted, or joined later, does not know whom the
//! others refuse, and may admit it as a leader: whoever has a proof shows it then.
//!
//! ```text
//!   liar X (out)       A (saw the proof)      leader (restarted since)
//!   ├─ Join ───────────┼─────────────────────►│
//!   │                  │◄── Attempt(with X) ──┤
//!   │                  ├─ Equivocated ───────►│ names X, and begins another attempt without it
//! ```
//! A proof is about one incarnation, which has a key of its own. It is forgotten once everybody
//! that saw it has ended.

use super::Coordinator;
use crate::coordinator::events::Effect;
use crate::coordinator::outcome::Proposal;
use crate::coordinator::voters::Voter;
use crate::ident::NodeId;
use crate::machine::{Outbox, Place};
use crate::wire::{Header, Message};
use std::collections::BTreeMap;

/// Maximum number of proofs that a node keeps.
pub const PROOFS_MAX: usize = 16;

/// The proofs that this node made or was shown, by the incarnation that they are about, with the
/// place that each is of.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Proofs(BTreeMap<Voter, (Place, Message)>);

impl Coordinator {
    /// Keeps the proof that a node lied, whose signatures hold.
    pub(super) fn keep_proof(&mut self, liar: NodeId, place: Place, proof: Message) {
        if let Some((signer, _)) = self.key_of(liar)
            && self.proofs.0.len() < PROOFS_MAX
        {
            self.proofs.0.entry(signer).or_insert((place, proof));
        }
    }

    /// Shows a leader what proves that nodes of its next view lied.
    pub(super) fn show_proofs(
        &self,
        header: &Header,
        proposal: &Proposal,
        out: &mut Outbox<Effect>,
    ) {
        if self.proofs.0.is_empty() {
            return;
        }
        let members = proposal.outcome.view.members().iter().map(Voter::from);
        let proved = members.filter_map(|member| self.proofs.0.get(&member));
        for (place, proof) in proved {
            self.send_from(*place, header.sender, proof.clone(), out);
        }
    }
}

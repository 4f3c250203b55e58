//! Receivers that hold different values of one attempt. An owner that published different values to
//! different nodes is found by comparison, proved by its own signatures, and left out.
//!
//! ```text
//!   owner X                  A                      B                      leader
//!   ├─ values, signed ──────►│                      │                      │
//!   ├─ others, signed ───────┼─────────────────────►│                      │
//!   │                        ├─ Ready(root) ────────┼─────────────────────►│
//!   │                        │                      ├─ Ready(other root) ─►│ no vote is asked for
//!   │                        │                      │◄──────────── Compare ┤
//!   │                        │                      ├─ Published(list) ───►│ X signed two digests
//!   │                        │◄─────────────────────┼◄────── Equivocated ──┤ an attempt without X
//! ```
//! The digest that `Ready` names is that of the whole entry, so a leader that drafts another one
//! for each node gains nothing: those that it asks tell each other (`votes`).
//!
//! A leader that asks for a vote for another entry than a node told it, or says that another one is
//! decided, lies: it asks only once all told the same. The node does not vote, goes on without that
//! leader, and sends the other members its list, so that they find which owner equivocated.
//!
//! The shell checks the signatures in lists and proofs before they get here: those that
//! [`Coordinator::claims`] names.

use super::Coordinator;
use super::deciding::Lead;
use super::following::is_member;
use super::timers::Timer;
use crate::coordinator::error::RoundError;
use crate::coordinator::events::Effect;
use crate::coordinator::outcome::Outcome;
use crate::coordinator::plan::Attempt;
use crate::coordinator::voters::Voter;
use crate::ident::{ClusterId, Lineage, NodeId, Round, Term};
use crate::machine::{Outbox, Place};
use crate::published::{PublicKey, Signed, ask, root, statement};
use crate::sound::Unsound;
use crate::time::{Instant, Span};
use crate::wire::{Header, Message};
use std::collections::{BTreeMap, BTreeSet};

/// Time that a leader waits for what a receiver got. As long as for a member that cannot be
/// reached: the answer is at hand, and one frame.
pub const COMPARE_WAIT: Span = super::links::AWAY_WAIT;
/// Maximum number of receivers that a leader asks at once. One honest answer is a proof, and
/// whoever gives none is left out of the next attempt.
pub const COMPARED_MAX: usize = 16;

/// The owners that published something else to another node, with what they published to this one
/// and to that one.
fn differing<'a>(
    known: &'a BTreeMap<NodeId, Signed>,
    list: &'a [(NodeId, Signed)],
) -> impl Iterator<Item = (NodeId, Signed, Signed)> + 'a {
    list.iter().filter_map(|(owner, other)| {
        let one = known.get(owner)?;
        (one.digest != other.digest).then_some((*owner, *one, *other))
    })
}

/// A statement that somebody says a node signed. Its signature is to be checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    /// The node.
    pub signer: Voter,
    /// Its key.
    pub key: PublicKey,
    /// The digest and the signature that somebody says are the node's.
    pub signed: Signed,
    /// The statement that the digest belongs to.
    pub of: Statement,
}

/// The statement that a signature makes about a digest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Statement {
    /// The signer published values with this digest in an attempt.
    Values(Attempt),
    /// The signer asked for votes for the entry with this digest, as the leader of a term.
    Entry(Lineage, Round, Term),
}

impl Claim {
    /// The bytes that were signed, if the claim is true.
    #[must_use]
    pub fn statement(&self, cluster: ClusterId) -> Vec<u8> {
        let digest = self.signed.digest;
        match self.of {
            Statement::Values(attempt) => statement(cluster, attempt, self.signer, digest),
            Statement::Entry(lineage, round, term) => {
                ask(cluster, (lineage, round, term), self.signer, digest)
            }
        }
    }
}

impl Coordinator {
    /// The claims in a frame whose signatures must hold before the frame is handled. Those that
    /// say what this node knows need no check, and so do those that it would ignore.
    #[must_use]
    pub fn claims(&self, header: &Header, message: &Message) -> Vec<Claim> {
        if self.history.is_none() {
            return Vec::new();
        }
        let claim = |owner: NodeId, signed: Signed| {
            let (signer, key) = self.key_of(owner)?;
            Some(Claim {
                signer,
                key,
                signed,
                of: Statement::Values(Attempt::of(header)),
            })
        };
        let refused = self.links.is_refused(header.sender, header.incarnation);
        match message {
            _ if refused => Vec::new(),
            Message::Published(list) => {
                let attempt = Attempt::of(header);
                let Some(known) = self.published_in(attempt) else {
                    return Vec::new();
                };
                differing(known, list)
                    .filter_map(|(owner, _, other)| claim(owner, other))
                    .collect()
            }
            Message::Equivocated { owner, one, other } if !self.is_named(*owner) => {
                let both = [*one, *other].into_iter();
                both.filter_map(|signed| claim(*owner, signed)).collect()
            }
            Message::Accept { entry, signature } if self.concerns_votes(header) => {
                let digest = entry.digest();
                let signature = *signature;
                let asked = self.asked_by(header, Signed { digest, signature });
                asked.into_iter().collect()
            }
            Message::Accepted(signed) if self.is_other_vote(header, *signed) => {
                self.asked_by(header, *signed).into_iter().collect()
            }
            Message::TwoEntries { one, other } => {
                let both = [*one, *other].into_iter();
                both.filter_map(|signed| self.asked_by(header, signed))
                    .collect()
            }
            _ => Vec::new(),
        }
    }

    /// Asks receivers that told another root than this leader holds for what they got.
    pub(super) fn compare(&mut self, now: Instant, out: &mut Outbox<Effect>) {
        let me = self.me();
        let Some(deciding) = &mut self.deciding else {
            return;
        };
        let Lead::Attempt(attempts) = &mut deciding.lead else {
            return;
        };
        // A leader takes part itself.
        let Some(ours) = attempts.ready.get(&me).copied() else {
            return;
        };
        if !attempts.compared.is_empty() {
            return;
        }
        let others = attempts.ready.iter().filter(|(_, root)| **root != ours);
        let asked: BTreeSet<NodeId> = others.map(|(node, _)| *node).take(COMPARED_MAX).collect();
        attempts.compared.clone_from(&asked);
        let place = Place {
            term: attempts.term,
            attempt: attempts.number,
            ..self.place()
        };
        for node in asked {
            self.send_from(place, node, Message::Compare, out);
        }
        self.timers.set(Timer::Compare, now.after(COMPARE_WAIT));
    }

    /// Tells a leader what the owners published to this node.
    pub(super) fn tell_published(&mut self, header: &Header, out: &mut Outbox<Effect>) {
        let attempt = Attempt::of(header);
        let movement = self
            .deciding
            .as_mut()
            .and_then(|deciding| deciding.data.at(attempt));
        if let Some(movement) = movement.filter(|movement| movement.ready) {
            let list = movement.published_list();
            self.send_from(header.place(), header.sender, Message::Published(list), out);
        }
    }

    /// Compares what a node got from the owners with what this node got.
    pub(super) fn receive_published(
        &mut self,
        header: &Header,
        list: &[(NodeId, Signed)],
        now: Instant,
        out: &mut Outbox<Effect>,
    ) {
        let Some(deciding) = &mut self.deciding else {
            return;
        };
        let mut asked = false;
        let mut told_otherwise = false;
        if let Lead::Attempt(attempts) = &mut deciding.lead
            && (attempts.term, attempts.number) == (header.term, header.attempt)
        {
            asked = attempts.compared.remove(&header.sender);
            let listed = attempts.proposal.as_ref().map(|proposal| Outcome {
                published: root(list.iter().map(|(owner, signed)| (owner, signed))),
                ..proposal.outcome.clone()
            });
            let told = attempts.ready.get(&header.sender).copied();
            told_otherwise =
                told.is_some_and(|told| listed.is_some_and(|listed| listed.digest() != told));
        }
        let ascends = list.windows(2).all(|pair| pair[0].0 < pair[1].0);
        if !ascends || told_otherwise {
            return self.go_on_without(header.sender, Unsound::OtherValues, now, out);
        }
        let Some(known) = self.published_in(Attempt::of(header)) else {
            return;
        };
        let found = differing(known, list).next();
        match found {
            Some((owner, one, other)) => self.prove(header, owner, (one, other), now, out),
            // What it got is what this leader got, so it told a wrong root; or it names other
            // owners than the attempt has.
            None if asked => self.go_on_without(header.sender, Unsound::OtherValues, now, out),
            None => {}
        }
    }

    /// Compares what a node got in the attempt that this node applied last: it could not apply the
    /// same.
    pub(super) fn receive_late_list(
        &mut self,
        header: &Header,
        list: &[(NodeId, Signed)],
        now: Instant,
        out: &mut Outbox<Effect>,
    ) {
        let view = self.history.as_ref().map(|history| &history.view);
        if !view.is_some_and(|view| is_member(view, header)) {
            return;
        }
        let known = self.published_in(Attempt::of(header));
        let found = known.and_then(|known| differing(known, list).next());
        if let Some((owner, one, other)) = found {
            self.prove(header, owner, (one, other), now, out);
        }
    }

    /// Returns the digests that the owners of an attempt published to this node, as far as they are
    /// here.
    fn published_in(&self, attempt: Attempt) -> Option<&BTreeMap<NodeId, Signed>> {
        let deciding = self.deciding.as_ref();
        let movement = deciding.and_then(|deciding| deciding.data.known(attempt));
        let applied = self.applied.as_ref();
        let applied = applied.filter(|applied| applied.attempt == attempt);
        movement
            .map(|movement| &movement.signed)
            .or(applied.map(|applied| &applied.signed))
    }

    /// Tells everybody of the proof that an owner equivocated, and goes on without it.
    fn prove(
        &mut self,
        header: &Header,
        owner: NodeId,
        (one, other): (Signed, Signed),
        now: Instant,
        out: &mut Outbox<Effect>,
    ) {
        if self.is_named(owner) {
            return;
        }
        let members = self.history.iter().flat_map(|history| history.view.ids());
        let deciding = self.deciding.iter();
        let joiners = deciding.flat_map(|deciding| deciding.may_follow());
        let everybody: BTreeSet<NodeId> = members
            .chain(joiners.flat_map(|outcome| outcome.view.ids()))
            .collect();
        let proof = Message::Equivocated { owner, one, other };
        for node in everybody.into_iter().filter(|node| *node != self.me()) {
            self.send_from(header.place(), node, proof.clone(), out);
        }
        self.keep_proof(owner, header.place(), proof);
        self.go_on_without_equivocator(owner, now, out);
    }

    /// Handles the proof that an owner equivocated. It holds in every round, for the incarnation
    /// whose key the view has.
    pub(super) fn receive_proof(
        &mut self,
        header: &Header,
        owner: NodeId,
        (one, other): (Signed, Signed),
        now: Instant,
        out: &mut Outbox<Effect>,
    ) {
        let Some(history) = &self.history else { return };
        if !is_member(&history.view, header) || self.key_of(owner).is_none() {
            return;
        }
        if one.digest == other.digest {
            return self.go_on_without(header.sender, Unsound::OtherValues, now, out);
        }
        if !self.is_named(owner) {
            let proof = Message::Equivocated { owner, one, other };
            self.keep_proof(owner, header.place(), proof);
            self.go_on_without_equivocator(owner, now, out);
        }
    }

    fn go_on_without_equivocator(&mut self, owner: NodeId, now: Instant, out: &mut Outbox<Effect>) {
        if owner == self.me() {
            // Its values change on their way out, or somebody else has its key.
            let round = self.place().round;
            return self.stop(RoundError::Equivocated { round }, out);
        }
        self.go_on_without(owner, Unsound::Equivocated, now, out);
    }

    /// Whether the incarnation of a member, a voter or a node that joins was named.
    pub(super) fn is_named(&self, node: NodeId) -> bool {
        self.key_of(node)
            .is_some_and(|(signer, _)| self.links.is_refused(node, signer.incarnation))
    }

    /// Called when the wait for what receivers got is over: the next attempt is made without those
    /// that did not say.
    pub(super) fn leave_silent_ones_out(&mut self) {
        let Some(deciding) = &mut self.deciding else {
            return;
        };
        if let Lead::Attempt(attempts) = &mut deciding.lead {
            let silent = std::mem::take(&mut attempts.compared);
            deciding.retry |= attempts.proposal.is_some() && !silent.is_empty();
            deciding.reports.left_out.extend(silent);
        }
    }

    /// Handles a leader that contradicts what this node told it of an attempt. What the owners
    /// published to this node is sent to the others, once.
    pub(super) fn contradicted(&mut self, header: &Header, now: Instant, out: &mut Outbox<Effect>) {
        self.dispute(Attempt::of(header), out);
        self.go_on_without(header.sender, Unsound::OtherValues, now, out);
    }

    /// Sends the members what the owners published to this node in an attempt, once.
    pub(super) fn dispute(&mut self, attempt: Attempt, out: &mut Outbox<Effect>) {
        let movement = self
            .deciding
            .as_mut()
            .and_then(|deciding| deciding.data.at(attempt))
            .filter(|movement| movement.ready && !movement.disputed);
        let Some(movement) = movement else { return };
        movement.disputed = true;
        let list = Message::Published(movement.published_list());
        let place = movement.plan.place;
        let members: Vec<NodeId> = movement.plan.participants.clone();
        for node in members.into_iter().filter(|node| *node != self.me()) {
            self.send_from(place, node, list.clone(), out);
        }
    }
}

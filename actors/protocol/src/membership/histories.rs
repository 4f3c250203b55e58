//! Decides between two histories that meet: those of a member and of a node that the others left
//! out, two bootstraps that count on the same nodes, the two sides of a healed partition. Every
//! node that sees both prefers the same one, so all end up in it.
//!
//! An undecided bootstrap is given up without loss. Of two that share nodes, the one whose lowest
//! id is lower is preferred: nodes that it names go over to it as its bootstrap members, and the
//! others join. A decided history is given up only if it went on without this node, or for one
//! of the same bootstrap that ranks higher (`forks`). Two runs that were bootstrapped apart and
//! have decided rounds stay apart, whether a majority or any survivors may decide: no training is
//! discarded unless an operator asks for it, and both sides report the other by name.

use super::{DECISION_WAIT, Effect, Membership};
use crate::coordinator::GivesUp;
use crate::forks::rank;
use crate::ident::{Lineage, NodeId, Round};
use crate::machine::Outbox;
use crate::time::Instant;
use crate::view::View;
use crate::wire::{Header, Hello, MemberState, Message};
use std::cmp::{Ordering, Reverse};

impl Membership {
    /// The member state that this node holds: its place in a history, or a bootstrap that it agreed
    /// to.
    fn stake(&self) -> Option<MemberState> {
        let adopted = || {
            self.adopted
                .as_ref()
                .map(|(view, lineage)| bootstrap(view.clone(), *lineage))
        };
        self.life.standing.clone().or_else(adopted)
    }

    /// Handles the bootstrapper's view, which counts on this node. The first such view is adopted,
    /// unless a preferred one comes before a round is decided.
    pub(super) fn adopt(
        &mut self,
        header: &Header,
        view: View,
        lineage: Lineage,
        out: &mut Outbox<Effect>,
    ) {
        // If its workers were told that there is no view, the node must not enter one unnoticed.
        if self.failed.is_some()
            || !view.contains(header.sender)
            || !lineage.is_decided()
            || !self.counts_on_me(&view)
        {
            return;
        }
        let theirs = bootstrap(view, lineage);
        let takes = match self.stake() {
            Some(ours) if ours.lineage == lineage => return,
            Some(ours) => {
                ours.round == Round::BOOTSTRAP
                    && !self.life.is_bound
                    && is_preferred(&theirs, &ours)
            }
            None => self.life.is_new() || self.waits_for_another_bootstrap(),
        };
        if !takes || !self.may_bootstrap() || self.model.is_none() {
            // The bootstrapper learns this node's member state, and joins.
            return self.send(header.sender, self.hello(), out);
        }
        self.change_over(theirs, out);
    }

    /// Whether this node waits to be admitted by a bootstrap that does not count on it, and was
    /// never a member of anything.
    fn waits_for_another_bootstrap(&self) -> bool {
        let other = self.life.cluster.as_ref().filter(|cluster| {
            cluster.round == Round::BOOTSTRAP && !self.counts_on_me(&cluster.view)
        });
        other.is_some() && !self.life.was_member && !self.life.has_drained()
    }

    /// Enters another bootstrap as the bootstrap member that it counts on.
    fn change_over(&mut self, theirs: MemberState, out: &mut Outbox<Effect>) {
        self.life.cluster = None;
        self.life.asked = None;
        self.life.wished = None;
        if self.life.standing.is_some() {
            self.resign(GivesUp::ForBootstrap, out);
        }
        self.adopted = Some((theirs.view, theirs.lineage));
        self.form_when_connected(out);
    }

    pub(super) fn counts_on_me(&self, view: &View) -> bool {
        view.member(self.me())
            .is_some_and(|member| member.incarnation == self.settings.identity.incarnation)
    }

    /// Handles a hello when this node has a member state. The sender is a member of the same
    /// history, a node of another one, or a stranger.
    pub(super) fn meet_as_member(
        &mut self,
        header: &Header,
        hello: &Hello,
        out: &mut Outbox<Effect>,
    ) {
        let Some(ours) = self.stake() else { return };
        let Some(theirs) = &hello.standing else {
            // The sender is no member, or no longer one. It has to know where it can join, or why
            // it cannot.
            let refused =
                !ours.view.contains(header.sender) && self.refuse_stranger(header, hello, out);
            if !refused {
                self.send(header.sender, self.hello(), out);
            }
            return;
        };
        if self.life.candidates.remove(&header.sender).is_some() {
            // It was admitted elsewhere.
            self.tell_joiners(out);
        }
        if self.gives_way(&ours, header.sender, theirs) {
            if theirs.round == Round::BOOTSTRAP && self.counts_on_me(&theirs.view) {
                return self.change_over(theirs.clone(), out);
            }
            self.adopted = None;
            self.life.cluster = Some(theirs.clone());
            self.rejoin(out);
            return;
        }
        if self.has_to_know(&ours, theirs, header) {
            self.send(header.sender, self.hello(), out);
        }
        let start = (header.sender, header.incarnation);
        if self.went_elsewhere(&ours, theirs, header) {
            if self.life.declare_dead(start.0, start.1) {
                self.life.elsewhere.insert(start);
                // Its vote counts there, and no longer here.
                out.push(Effect::Lost {
                    node: start.0,
                    incarnation: start.1,
                    ended: true,
                });
            }
        } else if ours.lineage == theirs.lineage && self.life.elsewhere.remove(&start) {
            // It was expected to change over, but kept to the bootstrap that it had accepted.
            self.up(start.0, out);
        }
        self.tell_of_another_cluster(&ours, theirs, header, out);
    }

    /// Reports another cluster once: two were bootstrapped where one was meant. A majority gives up
    /// no decided history for another, so both go on, and an operator has to know.
    fn tell_of_another_cluster(
        &mut self,
        ours: &MemberState,
        theirs: &MemberState,
        header: &Header,
        out: &mut Outbox<Effect>,
    ) {
        let apart = ours.lineage != theirs.lineage
            && ours.round > Round::BOOTSTRAP
            && theirs.round > Round::BOOTSTRAP;
        if apart && !Self::may_heal(ours, theirs) && self.life.is_another_cluster(theirs.lineage) {
            out.push(Effect::OtherCluster {
                node: header.sender,
                lineage: theirs.lineage,
                round: theirs.round,
            });
        }
    }

    /// Whether our member state yields to theirs: the same history went on without this node; or
    /// our bootstrap is undecided and theirs is decided, or shares nodes with ours and is
    /// preferred; or, within one bootstrap, their history ranks higher.
    fn gives_way(&self, ours: &MemberState, sender: NodeId, theirs: &MemberState) -> bool {
        let without_me = !self.counts_on_me(&theirs.view);
        if ours.lineage == theirs.lineage {
            return without_me && theirs.round > ours.round;
        }
        let shares = ours.view.contains(sender) || theirs.view.contains(self.me());
        if self.life.is_bound && theirs.round == Round::BOOTSTRAP {
            return false;
        }
        if ours.round == Round::BOOTSTRAP && (shares || theirs.round > Round::BOOTSTRAP) {
            return is_preferred(theirs, ours);
        }
        // The round by which theirs follows ours may be on its way here.
        let follows = !without_me && theirs.round == ours.round.next();
        !follows
            && !self.is_late(ours, theirs)
            && Self::may_heal(ours, theirs)
            && is_preferred(theirs, ours)
    }

    /// Whether one of two decided histories gives way to the other, which requires that both come
    /// from one bootstrap. Shared ids do not show that: a node may have been restarted and joined a
    /// run that was bootstrapped apart. Two bootstraps never merge by themselves, whether a
    /// majority or any survivors may decide: fresh weights must not replace trained ones.
    fn may_heal(ours: &MemberState, theirs: &MemberState) -> bool {
        ours.lineage.is_akin(theirs.lineage)
    }

    /// Whether the other's member state is this node's from before its last round: that round may
    /// still be on its way there.
    fn is_late(&self, ours: &MemberState, theirs: &MemberState) -> bool {
        self.life.lineage_before == Some(theirs.lineage) && theirs.round.next() == ours.round
    }

    /// Whether the sender gives way once it hears of our member state.
    fn has_to_know(&self, ours: &MemberState, theirs: &MemberState, header: &Header) -> bool {
        if ours.lineage == theirs.lineage {
            let lacks = ours
                .view
                .member(header.sender)
                .is_none_or(|member| member.incarnation != header.incarnation);
            return lacks && ours.round > theirs.round;
        }
        // As long as two sides disagree on who gives way, they go on telling each other.
        (theirs.round == Round::BOOTSTRAP || Self::may_heal(ours, theirs))
            && is_preferred(ours, theirs)
    }

    /// Whether a member of our view is in another history, so that it no longer counts in ours.
    fn went_elsewhere(&self, ours: &MemberState, theirs: &MemberState, header: &Header) -> bool {
        let counted = ours
            .view
            .member(header.sender)
            .is_some_and(|member| member.incarnation == header.incarnation);
        let follows = theirs.round > ours.round && self.counts_on_me(&theirs.view);
        counted
            && ours.round > Round::BOOTSTRAP
            && ours.lineage != theirs.lineage
            && !follows
            && !self.is_late(ours, theirs)
    }

    /// Handles a member's hello at a node that is no member: it enters the bootstrap that counts on
    /// it, or joins the furthest history.
    pub(super) fn meet_a_member(
        &mut self,
        header: &Header,
        theirs: MemberState,
        out: &mut Outbox<Effect>,
    ) {
        if self.life.has_drained() || self.failed.is_some() {
            return;
        }
        let bootstraps = self.life.is_new() && self.model.is_some() && self.may_bootstrap();
        if bootstraps && theirs.round == Round::BOOTSTRAP && self.counts_on_me(&theirs.view) {
            return self.change_over(theirs, out);
        }
        if self.counts_on_me(&theirs.view) && self.life.has_asked(&theirs) {
            // Admitted: the decision is on its way here, unless they decided before they heard that
            // this node resigned.
            self.life.counted = Some(theirs);
            return;
        }
        if self.life.has_asked_for(&theirs) {
            // The sender was not yet a member when this node asked, and did not get the request.
            return self.send(header.sender, Message::Join, out);
        }
        let newer = self.life.cluster.as_ref().is_none_or(|known| {
            if self.is_deserted(known) {
                return true;
            }
            // The sender is a member of the known history, which may have gone on under another
            // lineage.
            let of_known = known
                .view
                .member(header.sender)
                .is_some_and(|member| member.incarnation == header.incarnation);
            let same = known.lineage == theirs.lineage
                && (theirs.round, theirs.view.epoch()) >= (known.round, known.view.epoch());
            let other = is_preferred(&theirs, known) || (of_known && theirs.round >= known.round);
            same || (known.lineage != theirs.lineage && other)
        });
        if newer {
            let known = self.life.cluster.as_ref().map(|known| known.lineage);
            if known.is_some()
                && known == self.brings()
                && known.is_some_and(|known| known.is_akin(theirs.lineage))
            {
                // The history that it brings went on under another lineage while this node waited.
                self.life.brings = Some(theirs.lineage);
            }
            self.life.cluster = Some(theirs);
        }
        self.join_when_ready(out);
    }

    /// Whether nobody is left of a cluster that was heard of: its members are gone, were restarted,
    /// or are in another history.
    pub(super) fn is_deserted(&self, known: &MemberState) -> bool {
        let there = |id: &NodeId, incarnation| {
            let stands_in = self
                .hellos
                .get(id)
                .filter(|hello| hello.incarnation == incarnation)
                .and_then(|hello| hello.stands_in);
            self.connected.get(id) == Some(&incarnation) && stands_in == Some(known.lineage)
        };
        !known
            .view
            .members()
            .iter()
            .any(|member| there(&member.id, member.incarnation))
    }

    /// Asks again if others count on this node and the decision does not come within
    /// [`DECISION_WAIT`]: the node was a member when that was decided, and resigned meanwhile.
    pub(super) fn ask_again_when_not_admitted(&mut self, now: Instant, out: &mut Outbox<Effect>) {
        if self.life.counted.is_none() {
            self.life.counted_until = None;
        } else if now
            >= *self
                .life
                .counted_until
                .get_or_insert(now.after(DECISION_WAIT))
        {
            self.life.cluster = self.life.counted.take();
            self.life.counted_until = None;
            self.join_when_ready(out);
        }
    }
}

pub(super) fn bootstrap(view: View, lineage: Lineage) -> MemberState {
    MemberState {
        lineage,
        forks: Vec::new(),
        round: Round::BOOTSTRAP,
        view,
        dead: Vec::new(),
    }
}

/// Whether `one` lives on rather than `other`: a decided history before an undecided one; of two
/// undecided ones the one whose lowest id is lower; of two from one bootstrap the one that [`rank`]
/// prefers; of two bootstraps, between which only an outsider chooses, the one with more rounds.
fn is_preferred(one: &MemberState, other: &MemberState) -> bool {
    let decided = |standing: &MemberState| standing.round > Round::BOOTSTRAP;
    if decided(one) != decided(other) {
        return decided(one);
    }
    if !decided(one) {
        let key =
            |standing: &MemberState| (Reverse(standing.view.lowest()), Reverse(standing.lineage));
        return key(one) > key(other);
    }
    if !one.lineage.is_akin(other.lineage) {
        let key = |standing: &MemberState| (standing.round, Reverse(standing.lineage));
        return key(one) > key(other);
    }
    rank((&one.forks, one.round), (&other.forks, other.round)) == Ordering::Greater
}

#[cfg(test)]
mod tests;

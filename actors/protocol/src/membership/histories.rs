//! What happens where two histories meet: a member and one that the others left out, two foundings
//! that count on the same nodes, two sides of a healed network. Everybody that sees both prefers
//! the same one, so all end up in it.
//!
//! A founding that is not decided is given up without loss. Of two that share nodes the one with
//! the lower lowest id is preferred: its members change over to it as the founding members that
//! they are, the others join. A decided history is given up only if it went on without this node,
//! or for one of the same bootstrap that ranks higher (`forks`). Two that were bootstrapped apart
//! and decided rounds stay apart, whoever may decide: nobody's training is thrown away unasked, and
//! both sides say so by name.

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
    /// What this node stands by: its place in a history, or a founding that it agreed to.
    fn stake(&self) -> Option<MemberState> {
        let adopted = || {
            self.adopted
                .as_ref()
                .map(|(view, lineage)| bootstrap(view.clone(), *lineage))
        };
        self.life.standing.clone().or_else(adopted)
    }

    /// The founder counts on this node: the first one does, unless a better one comes before a
    /// round is decided.
    pub(super) fn adopt(
        &mut self,
        header: &Header,
        view: View,
        lineage: Lineage,
        out: &mut Outbox<Effect>,
    ) {
        // A node whose workers were told that there is no view does not enter one behind their
        // back.
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
        if !takes || !self.founds() || self.model.is_none() {
            // The founder learns where this node stands, and joins.
            return self.send(header.sender, self.hello(), out);
        }
        self.change_over(theirs, out);
    }

    /// Whether this node waits to be admitted by a founding that does not count on it, and was
    /// never a member of anything.
    fn waits_for_another_bootstrap(&self) -> bool {
        let other = self.life.cluster.as_ref().filter(|cluster| {
            cluster.round == Round::BOOTSTRAP && !self.counts_on_me(&cluster.view)
        });
        other.is_some() && !self.life.was_member && !self.life.has_drained()
    }

    /// Enters another founding as the founding member that it counts on.
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

    /// A node that stands somewhere met another: a member of the same history, a node of another
    /// one, or a stranger.
    pub(super) fn meet_as_member(
        &mut self,
        header: &Header,
        hello: &Hello,
        out: &mut Outbox<Effect>,
    ) {
        let Some(ours) = self.stake() else { return };
        let Some(theirs) = &hello.standing else {
            // It is no member, or none any more, and has to know where it can join, or why it
            // cannot.
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
                // Its vote counts there, and here no more.
                out.push(Effect::Lost {
                    node: start.0,
                    incarnation: start.1,
                    ended: true,
                });
            }
        } else if ours.lineage == theirs.lineage && self.life.elsewhere.remove(&start) {
            // It was to change over, and kept to the founding that it had accepted.
            self.up(start.0, out);
        }
        self.tell_of_another_cluster(&ours, theirs, header, out);
    }

    /// Two clusters were founded where one was meant: a majority gives up no decided history for
    /// another, so both go on, and a person has to know.
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

    /// Whether our standing is void beside theirs: the same history went on without this node; our
    /// founding is not decided, and theirs is, or shares nodes with ours and is better; or, of one
    /// bootstrap, their history ranks higher.
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
        // What their last round made of ours may be on its way here.
        let follows = !without_me && theirs.round == ours.round.next();
        !follows
            && !self.is_late(ours, theirs)
            && Self::may_heal(ours, theirs)
            && is_preferred(theirs, ours)
    }

    /// Whether one of two decided histories gives way to the other: if both come from one
    /// bootstrap. Ids say nothing of that: a node may have been started again and joined what was
    /// bootstrapped apart. Two bootstraps never become one by themselves, whoever may decide: fresh
    /// weights must not take the place of what was trained.
    fn may_heal(ours: &MemberState, theirs: &MemberState) -> bool {
        ours.lineage.is_akin(theirs.lineage)
    }

    /// Whether the other stands where this node stood before its last round: that round may be on
    /// its way there.
    fn is_late(&self, ours: &MemberState, theirs: &MemberState) -> bool {
        self.life.lineage_before == Some(theirs.lineage) && theirs.round.next() == ours.round
    }

    /// Whether the sender gives way once it hears of our standing.
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

    /// Whether a member of our view stands in another history, so that ours is as good as without
    /// it.
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

    /// A node outside meets a member: it enters the founding that counts on it, or joins what went
    /// on furthest.
    pub(super) fn meet_a_member(
        &mut self,
        header: &Header,
        theirs: MemberState,
        out: &mut Outbox<Effect>,
    ) {
        if self.life.has_drained() || self.failed.is_some() {
            return;
        }
        let founds = self.life.is_new() && self.model.is_some() && self.founds();
        if founds && theirs.round == Round::BOOTSTRAP && self.counts_on_me(&theirs.view) {
            return self.change_over(theirs, out);
        }
        if self.counts_on_me(&theirs.view) && self.life.has_asked(&theirs) {
            // Admitted: the decision is on its way here. Unless they decided before they heard that
            // it resigned.
            self.life.counted = Some(theirs);
            return;
        }
        if self.life.has_asked_for(&theirs) {
            // It was no member yet, and heard nothing, when this node asked.
            return self.send(header.sender, Message::Join, out);
        }
        let newer = self.life.cluster.as_ref().is_none_or(|known| {
            if self.is_deserted(known) {
                return true;
            }
            // A member of what was known: its history may have gone on under another lineage.
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
                // What it brings went on under another lineage while this node waited.
                self.life.brings = Some(theirs.lineage);
            }
            self.life.cluster = Some(theirs);
        }
        self.join_when_ready(out);
    }

    /// Whether nobody is left of a cluster that was heard of: its members are gone, were started
    /// again, or stand in another history.
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

    /// Who is counted on and does not get the decision was a member when that was made, and
    /// resigned meanwhile: it asks again.
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

/// Which of two histories lives on: a decided one beside one that is not; of two undecided ones the
/// one with the lower lowest id; of one bootstrap the one that [`rank`] says. Of two bootstraps,
/// between which only an outsider chooses, the lower lineage.
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
        return one.lineage < other.lineage;
    }
    rank((&one.forks, one.round), (&other.forks, other.round)) == Ordering::Greater
}

#[cfg(test)]
mod tests;

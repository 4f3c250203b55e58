//! Bootstraps a run. Exactly one process, the bootstrapper, does so; the others wait for it, or for
//! a living run.
//!
//! A restarted process may have been a member of a run that still lives. It does not bootstrap, and
//! is no bootstrap member, until every address that it knows has answered, since any of them may
//! know that run. So fresh weights never replace those of a living run.
//!
//! A bootstrap member that is ready for round 0 stays in its bootstrap. It leaves in two cases: the
//! round was decided without it, or so many bootstrap members have ended that the rest are no
//! quorum and nobody can decide the bootstrap any more.

use super::known::Known;
use super::{BootstrapError, Effect, Membership};
use crate::coordinator::{GivesUp, Voters};
use crate::ident::{Epoch, Round};
use crate::machine::Outbox;
use crate::policy::Bootstrap;
use crate::time::{Instant, Span};
use crate::view::{Member, View};
use crate::wire::{MemberState, Message};
use std::collections::BTreeSet;
use std::net::SocketAddr;

/// How long the bootstrapper waits for answers from all addresses that it knows: one of them may
/// belong to a living run.
pub const LOOK_FOR_RUN_WAIT: Span = Span::from_millis(1_000);
/// How often a node in an undecided bootstrap checks whether enough bootstrap members are left to
/// decide it.
pub const VOID_LOOK_EVERY: Span = Span::from_millis(250);

impl Membership {
    /// Whether this node may be a bootstrap member of another process's bootstrap, or bootstrap
    /// itself.
    pub(super) fn may_bootstrap(&self) -> bool {
        !self.settings.join && !self.is_bound_to_look()
    }

    /// Whether this is a restarted process that must still look for the run it was in.
    pub(super) fn is_bound_to_look(&self) -> bool {
        self.settings.restarted
            && self.settings.bootstrap != Bootstrap::Yes
            && self.unanswered() > 0
    }

    /// Number of discovered addresses that have not answered; 1 if discovery has reported nothing
    /// yet.
    fn unanswered(&self) -> usize {
        let Some(discovered) = &self.discovered else {
            return 1;
        };
        let answered: BTreeSet<SocketAddr> = self.answered().collect();
        discovered
            .iter()
            .filter(|address| **address != self.settings.address && !answered.contains(address))
            .count()
    }

    /// Addresses of the nodes that have said who they are and can be sent to.
    pub(super) fn answered(&self) -> impl Iterator<Item = SocketAddr> {
        let current = self.hellos.values().filter(|known| self.is_current(known));
        current.map(Known::address)
    }

    pub(super) fn discovered(&mut self, mut addresses: Vec<SocketAddr>, out: &mut Outbox<Effect>) {
        addresses.sort_unstable();
        self.discovered = Some(addresses);
        self.tell_that_it_may_bootstrap(out);
        self.bootstrap_when_complete(out);
    }

    /// A restarted process that has heard of no run names its model once all known addresses have
    /// answered: from then on the other bootstrap members count on it.
    pub(super) fn tell_that_it_may_bootstrap(&mut self, out: &mut Outbox<Effect>) {
        let may_bootstrap = self.may_bootstrap();
        if std::mem::replace(&mut self.life.told_that_it_may_bootstrap, may_bootstrap)
            != may_bootstrap
            && self.model.is_some()
            && self.life.is_new()
        {
            self.say_where_it_stands(out);
        }
    }

    /// The address of the bootstrapper, if it is lower than this node's: the process with the
    /// smallest known address bootstraps. It is the smallest discovered address, or else that of a
    /// bootstrap member.
    fn bootstrapped_by(&self) -> Option<SocketAddr> {
        let goes_before = |address: &SocketAddr| *address < self.settings.address;
        let discovered = self.discovered.iter().flatten().next().copied();
        let discovered = discovered
            .filter(|address| !self.settings.addresses_may_be_stale && goes_before(address));
        discovered.or_else(|| {
            self.bootstrap_members()
                .map(Known::address)
                .find(goes_before)
        })
    }

    fn bootstraps(&self) -> bool {
        match self.settings.bootstrap {
            Bootstrap::Yes => true,
            Bootstrap::No => false,
            Bootstrap::Auto => self.bootstrapped_by().is_none(),
        }
    }

    /// The other nodes that called `synchronize` and can be sent to.
    fn bootstrap_members(&self) -> impl Iterator<Item = &Known> {
        self.hellos
            .values()
            .filter(|known| self.is_bootstrap_member(known))
    }

    fn is_bootstrap_member(&self, known: &Known) -> bool {
        let incarnation = (known.node, known.incarnation);
        let has_ended = self.life.ended.contains(&incarnation) || self.left.contains(&incarnation);
        known.model.is_some() && self.fits(known) && self.is_current(known) && !has_ended
    }

    /// Whether `known` describes the incarnation that this node can send to.
    pub(super) fn is_current(&self, known: &Known) -> bool {
        self.connected.get(&known.node) == Some(&known.incarnation)
    }

    /// Forms the view, on the bootstrapper, once `min_nodes` nodes, itself included, called
    /// `synchronize` and none of the known addresses belongs to a run.
    pub(super) fn bootstrap_when_complete(&mut self, out: &mut Outbox<Effect>) {
        let waits = self.life.is_new() && self.life.resigning.is_empty() && self.adopted.is_none();
        let able = self.model.is_some() && self.refused.is_none() && self.failed.is_none();
        // A cheap check before the costly ones: every bootstrap member is connected.
        let enough = self.connected.len() + 1 >= self.settings.min_nodes;
        if !waits || !able || !enough || !self.may_bootstrap() || !self.bootstraps() {
            return;
        }
        if self.unanswered() > 0 && !self.looked {
            return;
        }
        let mut members: Vec<Member> = self.bootstrap_members().map(Known::member).collect();
        if members.len() + 1 < self.settings.min_nodes {
            return;
        }
        let super::Settings {
            identity,
            address,
            devices,
            group,
            key,
            ..
        } = self.settings;
        members.push(Member {
            id: identity.node,
            incarnation: identity.incarnation,
            address,
            devices,
            group,
            key,
        });
        match View::new(Epoch::BOOTSTRAP, members) {
            Ok(view) => self.found(view, out),
            Err(error) => self.fail(BootstrapError::NoView(error), out),
        }
    }

    fn found(&mut self, view: View, out: &mut Outbox<Effect>) {
        let lineage = super::lineage_of(self.settings.identity, &view);
        for peer in view.ids().filter(|id| *id != self.me()) {
            self.send(
                peer,
                Message::Bootstrap {
                    view: view.clone(),
                    lineage,
                },
                out,
            );
        }
        self.form(view, lineage, out);
    }

    /// Leaves a bootstrap that nobody can decide any more. The check looks at every bootstrap
    /// member, so it runs only every [`VOID_LOOK_EVERY`].
    pub(super) fn leave_void_bootstrap(&mut self, now: Instant, out: &mut Outbox<Effect>) {
        let mut known = self.life.cluster.iter().chain(&self.life.standing);
        if self.adopted.is_none() && known.all(|standing| standing.round > Round::BOOTSTRAP) {
            self.life.void_look_at = None;
            return;
        }
        if now
            < *self
                .life
                .void_look_at
                .get_or_insert(now.after(VOID_LOOK_EVERY))
        {
            return;
        }
        self.life.void_look_at = Some(now.after(VOID_LOOK_EVERY));
        if let Some((view, _)) = &self.adopted
            && self.is_void(view)
        {
            self.adopted = None;
            self.bootstrap_when_complete(out);
        }
        if self
            .life
            .cluster
            .as_ref()
            .is_some_and(|cluster| self.is_given_up(cluster))
        {
            self.life.cluster = None;
            self.life.asked = None;
            self.life.wished = None;
            self.bootstrap_when_complete(out);
        }
        let Some(MemberState { view, round, .. }) = &self.life.standing else {
            return;
        };
        if *round == Round::BOOTSTRAP && self.life.resigning.is_empty() && self.is_void(view) {
            self.resign(GivesUp::ForDecided, out);
        }
    }

    /// Whether the bootstrap members that have not ended are no quorum.
    fn is_void(&self, view: &View) -> bool {
        let left = view
            .members()
            .iter()
            .filter(|member| !self.has_ended(member));
        !Voters::of_bootstrap(view).is_quorum(left.map(|member| member.id))
    }

    /// Whether the bootstrap is abandoned: each of its members has ended, or says that it is not in
    /// it. A member that is only unreachable may still decide it.
    fn is_given_up(&self, bootstrap: &MemberState) -> bool {
        let gave_up = |member: &Member| {
            let said = self
                .hellos
                .get(&member.id)
                .filter(|known| known.incarnation == member.incarnation);
            self.has_ended(member)
                || said.is_some_and(|known| known.stands_in != Some(bootstrap.lineage))
        };
        bootstrap.round == Round::BOOTSTRAP && bootstrap.view.members().iter().all(gave_up)
    }

    /// Whether this incarnation of a node is known to have ended.
    pub(super) fn has_ended(&self, member: &Member) -> bool {
        let start = (member.id, member.incarnation);
        let earlier_start_of_this =
            member.id == self.me() && member.incarnation != self.settings.identity.incarnation;
        // Only one process at a time holds an id, and only one an address.
        let other_start = self
            .connected
            .get(&member.id)
            .is_some_and(|incarnation| *incarnation != member.incarnation);
        let took_address = |known: &Known| {
            known.address() == member.address && (known.node, known.incarnation) != start
        };
        other_start
            || earlier_start_of_this
            || self.life.ended.contains(&start)
            || self.left.contains(&start)
            || self
                .hellos
                .values()
                .any(|known| took_address(known) && self.is_current(known))
    }

    /// Why no bootstrap has happened yet, as text for an operator.
    pub(super) fn why_not_founded(&self) -> Option<String> {
        if self.model.is_none() || self.settings.join {
            return None;
        }
        if self.is_bound_to_look() {
            let unanswered = self.unanswered();
            return Some(format!(
                "this node was restarted, and {unanswered} of the known addresses have not \
                 answered: its run may still live there. If that run is over, set bootstrap = yes \
                 on one node"
            ));
        }
        if self.settings.min_nodes == 1 {
            return None;
        }
        if !self.enough_are_present() {
            let met = self.present().len();
            let needed = self.settings.min_nodes;
            let obstacle = self.obstacle().map(|told| format!("; {told}"));
            return Some(format!(
                "{met} of min_nodes = {needed} nodes have met{}",
                obstacle.unwrap_or_default()
            ));
        }
        let who = match self.settings.bootstrap {
            Bootstrap::No => "another process bootstraps the run (bootstrap = no here)".to_owned(),
            Bootstrap::Auto => {
                let other = self.bootstrapped_by()?;
                format!(
                    "{other} bootstraps the run, unless a node with a smaller address does (key \
                     bootstrap)"
                )
            }
            Bootstrap::Yes => return None,
        };
        let refused = self.refused_nodes().map(|told| format!("; {told}"));
        Some(who + &refused.unwrap_or_default())
    }

    /// Stops waiting for known addresses once their time to answer is over.
    pub(super) fn look_no_longer(&mut self, now: Instant, out: &mut Outbox<Effect>) {
        if self.look_by.take_if(|by| now >= *by).is_some() {
            self.looked = true;
            self.bootstrap_when_complete(out);
        }
    }
}

//! The elastic life of a node: member, joiner, member again. Tracks who may join, who is dead, who
//! leaves and who must be dialed.

use super::dialing::Missed;
use super::error::in_brackets;
use super::known::Known;
use super::settings::differing_from_cluster;
use super::{BootstrapError, Effect, Membership, WAITING_TOLD_AFTER, WAITING_TOLD_EVERY};
use crate::coordinator::GivesUp;
use crate::ident::{Epoch, Incarnation, Lineage, NodeId, Round};
use crate::machine::Outbox;
use crate::time::Instant;
use crate::view::{MEMBERS_MAX, Member};
use crate::wire::{Header, Hello, JoinRefusal, MemberState, Message};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Most other clusters that are remembered, so that each is reported once.
const OTHER_CLUSTERS_MAX: usize = 64;

/// State of a node after, or instead of, a bootstrap.
#[derive(Clone, Debug, Default)]
pub(super) struct Life {
    /// This node's place in a history, while it is a member.
    pub standing: Option<MemberState>,
    /// Lineage of the history that this node's last round continued.
    pub lineage_before: Option<Lineage>,
    /// Resignations that the coordinator has not answered. Outcomes that it reports meanwhile were
    /// decided before it took note. Each entry holds the bootstrap that it gives up, if it gives
    /// one up. The node enters nothing until all are answered, so there are few.
    pub resigning: VecDeque<Option<MemberState>>,
    /// The bootstrap that the coordinator keeps, while other resignations are unanswered.
    pub kept: Option<MemberState>,
    /// This node was ready for round 0 of its bootstrap: it changes over to no other one.
    pub is_bound: bool,
    /// It named its model to the others, so that they count on it as a bootstrap member.
    pub told_that_it_may_bootstrap: bool,
    /// Incarnations of nodes that are known to have ended.
    pub ended: BTreeSet<(NodeId, Incarnation)>,
    /// Incarnations that said that they leave for good, since their training is over.
    pub done: BTreeSet<(NodeId, Incarnation)>,
    /// The last decided round that this node was a member in.
    pub last_round: Option<Round>,
    /// Later lineage of the history whose state this node brings, if that history went on under
    /// another one while this node waited to be admitted.
    pub brings: Option<Lineage>,
    /// In a bootstrap: when to check next whether it can still be decided.
    pub void_look_at: Option<Instant>,
    /// When to tell the coordinator (again) to return, since nobody is left of the history that was
    /// to admit this node.
    pub returns_at: Option<Instant>,
    /// The coordinator was told to return, and no member of that history has been seen since.
    pub returns: bool,
    /// The coordinator did return, and no round was decided since: it can return, but not go on.
    pub returned: bool,
    /// The furthest history heard of while this node is no member.
    pub cluster: Option<MemberState>,
    /// The view that this node asked to be admitted to.
    pub asked: Option<(Lineage, Epoch)>,
    /// The last view that it asked to be admitted to since it last resigned.
    pub wished: Option<(Lineage, Epoch)>,
    /// A view later than the one asked for, of which others say that this node is a member.
    pub counted: Option<MemberState>,
    pub counted_until: Option<Instant>,
    /// Nodes that asked to be admitted, each with the epoch of the view that it asked for.
    pub candidates: BTreeMap<NodeId, (Epoch, Member)>,
    /// Voters that are not members.
    pub retained: Vec<Member>,
    pub dead: BTreeSet<(NodeId, Incarnation)>,
    /// Those of the dead that are alive members of another history.
    pub elsewhere: BTreeSet<(NodeId, Incarnation)>,
    /// `Some` if this node leaves: whether it still contributes to the next round.
    pub leaving: Option<bool>,
    pub leave_again_at: Option<Instant>,
    /// This node was a member of a decided history: it bootstraps none any more.
    pub was_member: bool,
    /// Last reason given to an operator why this node is no member.
    pub waiting: Option<String>,
    /// Running clusters beside this one that were reported.
    others: BTreeSet<Lineage>,
    /// This node has handed over: it is no member and does not want to be one.
    pub drained: bool,
    /// It heard from others that it was left out; its own coordinator may still bring the decision.
    pub left_out: bool,
    pub drained_by: Option<Instant>,
    pub redial_at: Option<Instant>,
    /// The view (lineage, epoch) whose members could all be sent to, and the count of
    /// disconnections at that time.
    pub all_connected: Option<(Lineage, Epoch, u64)>,
    pub missed: Missed,
}

impl Life {
    /// Whether the node has neither been a member nor heard of a running cluster.
    pub fn is_new(&self) -> bool {
        self.standing.is_none() && self.cluster.is_none() && !self.drained && !self.was_member
    }

    /// Notes a death; `true` if it was not known.
    pub fn declare_dead(&mut self, node: NodeId, incarnation: Incarnation) -> bool {
        self.dead.insert((node, incarnation))
    }

    pub fn is_dead(&self, member: &Member) -> bool {
        self.dead.contains(&(member.id, member.incarnation))
    }

    /// `true` the first time that this node hears of this running cluster beside its own.
    pub fn is_another_cluster(&mut self, lineage: Lineage) -> bool {
        self.others.len() < OTHER_CLUSTERS_MAX && self.others.insert(lineage)
    }

    /// Whether this node asked to be admitted to an earlier view of the same history, which may
    /// have gone on under another lineage.
    pub fn has_asked(&self, later: &MemberState) -> bool {
        self.asked.is_some_and(|(lineage, epoch)| {
            lineage.is_akin(later.lineage) && epoch < later.view.epoch()
        })
    }

    /// Whether this node asked to be admitted to this very view.
    pub fn has_asked_for(&self, view: &MemberState) -> bool {
        self.asked == Some((view.lineage, view.view.epoch()))
    }

    pub fn drained_by(&self) -> Option<Instant> {
        self.drained_by
    }

    pub fn has_drained(&self) -> bool {
        self.drained
    }

    pub fn waits_for_admission(&self, join: bool) -> bool {
        self.standing.is_none()
            && !self.drained
            && (self.cluster.is_some() || self.was_member || join)
    }

    /// The reason why this node is not admitted, as text for an operator.
    pub fn missing(&self, node: &Membership) -> String {
        if self.cluster.is_none() && self.was_member {
            return "the cluster continued without this node, and none of its members was met; \
                bring one back, or restart from a checkpoint"
                .to_owned();
        }
        let Some(cluster) = &self.cluster else {
            if node.is_bound_to_look() && !node.settings.join {
                return node.why_not_founded().unwrap_or_default();
            }
            return format!(
                "no running cluster was met; check peers, rendezvous or discover{}",
                in_brackets(node.obstacle().as_deref())
            );
        };
        match node.unheard(cluster).next() {
            Some(unheard) => {
                format!(
                    "this node and {unheard} cannot reach each other; check addresses and firewalls"
                )
            }
            None if node.model.is_none() => "synchronize was not called".to_owned(),
            None => "the cluster decided no round; see its status".to_owned(),
        }
    }
}

impl Membership {
    pub(super) fn standing(&self) -> Option<MemberState> {
        let mut standing = self.life.standing.clone()?;
        standing.dead = standing
            .view
            .members()
            .iter()
            .filter(|member| self.life.is_dead(member))
            .map(|member| member.id)
            .collect();
        Some(standing)
    }

    /// Becomes, or stays, a member of `view`.
    pub(super) fn enter(&mut self, standing: MemberState, out: &mut Outbox<Effect>) {
        let round = standing.round;
        let before = self.life.standing.replace(standing);
        let asked = self.life.asked.map(|(lineage, _)| lineage);
        self.life.lineage_before = before.as_ref().map(|before| before.lineage).or(asked);
        self.life.cluster = None;
        self.life.asked = None;
        self.life.counted = None;
        self.life.was_member |= round > Round::BOOTSTRAP;
        self.life.last_round = round.before().or(self.life.last_round);
        self.life.is_bound &= round == Round::BOOTSTRAP;
        self.misfits.clear();
        let Some(standing) = &self.life.standing else {
            return;
        };
        if before
            .as_ref()
            .is_some_and(|before| before.view == standing.view)
        {
            if round == Round::BOOTSTRAP.next() {
                // A node that waits in another bootstrap has to know that this one is decided; the
                // bootstrap members have not said in a hello that they are in it.
                let lineage = standing.lineage;
                let view = standing.view.clone();
                let bootstrap_members = self.hellos.values_mut().filter(|known| {
                    known.stands_in.is_none() && view.members().contains(&known.member())
                });
                bootstrap_members.for_each(|known| known.stands_in = Some(lineage));
                self.tell_strangers(out);
            }
            return;
        }
        let view = standing.view.clone();
        let enters = before.is_none();
        if enters && round > Round::BOOTSTRAP {
            // Otherwise the others, told last that this node is in no history, would send it every
            // change.
            self.say_where_it_stands(out);
        }
        self.life.leave_again_at = None;
        before
            .iter()
            .for_each(|before| self.note_missed(&before.view, &view));
        out.push(Effect::Search(false));
        let stays = |id: &NodeId, incarnation: &Incarnation| {
            view.member(*id)
                .is_some_and(|member| member.incarnation == *incarnation)
        };
        // A member that asks for this very view has resigned from it: its request may have come
        // before the decision.
        let asks_for_it = |of: Epoch| of >= view.epoch();
        self.life
            .candidates
            .retain(|id, (of, member)| asks_for_it(*of) || !stays(id, &member.incarnation));
        let candidates = &self.life.candidates;
        let retained = &self.life.retained;
        let votes = |id: &NodeId| retained.iter().any(|voter| voter.id == *id);
        self.life.dead.retain(|(id, incarnation)| {
            stays(id, incarnation) || votes(id) || candidates.contains_key(id)
        });
        self.life
            .elsewhere
            .retain(|(id, incarnation)| stays(id, incarnation));
        self.watch(out);
        self.notice_superseded(out);
        self.tell_joiners(out);
        self.tell_strangers(out);
        if let Some(contributes) = self.life.leaving
            && enters
        {
            // It was asked to leave before there was anybody to tell.
            self.says_it_leaves(contributes, out);
        }
    }

    pub(super) fn decided(&mut self, decided: MemberState, out: &mut Outbox<Effect>) {
        let given_up = |standing: &MemberState| standing.lineage == decided.lineage;
        if self
            .life
            .resigning
            .iter()
            .flatten()
            .chain(&self.life.kept)
            .any(given_up)
        {
            // It was decided before it was given up: this node stays, and is no member of the other
            // bootstrap.
            self.life
                .resigning
                .iter_mut()
                .for_each(|standing| *standing = None);
            self.adopted = None;
            self.life.kept = None;
        } else if !self.life.resigning.is_empty() {
            return;
        }
        if self.counts_on_me(&decided.view) {
            let returns = std::mem::take(&mut self.life.returns);
            self.life.returned = returns;
            if returns {
                // Make liveness report deaths anew: the coordinator has forgotten them.
                out.push(Effect::Watch(Vec::new()));
            }
            self.enter(decided, out);
            if returns {
                self.notice_later_starts(out);
            }
            return;
        }
        self.life.standing = None;
        self.life.drained = true;
        self.life.left_out = false;
        self.left_when_alone(out);
    }

    /// Makes liveness watch the members, the retained voters and those that ask to become members.
    pub(super) fn watch(&self, out: &mut Outbox<Effect>) {
        let members = self
            .life
            .standing
            .iter()
            .flat_map(|standing| standing.view.members());
        let candidates = self.life.candidates.values().map(|(_, member)| member);
        let watched = self.life.retained.iter().chain(members).chain(candidates);
        let watched: BTreeMap<NodeId, Incarnation> = watched
            .map(|member| (member.id, member.incarnation))
            .collect();
        out.push(Effect::Watch(
            watched
                .into_iter()
                .filter(|(id, _)| *id != self.me())
                .collect(),
        ));
    }

    pub(super) fn tell_joiners(&self, out: &mut Outbox<Effect>) {
        let Some(standing) = &self.life.standing else {
            return;
        };
        let epoch = standing.view.epoch();
        let ready = self
            .life
            .candidates
            .values()
            .filter(|(of, member)| *of == epoch && self.can_send_to(member));
        let room = self.settings.max_nodes.saturating_sub(standing.view.size());
        let returns = |member: &Member| standing.view.contains(member.id);
        let (back, new): (Vec<_>, Vec<_>) =
            ready.map(|(_, member)| member.clone()).partition(returns);
        let members = back.into_iter().chain(new.into_iter().take(room)).collect();
        out.push(Effect::Joiners { epoch, members });
    }

    pub(super) fn can_send_to(&self, member: &Member) -> bool {
        self.connected.get(&member.id) == Some(&member.incarnation)
    }

    /// Tells nodes outside this history, also a member that has resigned, how the view and the set
    /// of its living members changed.
    fn tell_strangers(&self, out: &mut Outbox<Effect>) {
        let Some(standing) = &self.life.standing else {
            return;
        };
        let elsewhere = |known: &Known| known.stands_in != Some(standing.lineage);
        for id in self.connected.keys() {
            if self.hellos.get(id).is_some_and(elsewhere) {
                self.send(*id, self.hello(), out);
            }
        }
    }

    /// Joins again: the others went on, or hold data that this node does not hold.
    pub(super) fn rejoin(&mut self, out: &mut Outbox<Effect>) {
        if self.life.leaving.is_some() && self.life.standing.take().is_some() {
            // Left out, as it wanted; the decision may still be on its way here.
            self.life.drained = true;
            self.life.left_out = true;
            return self.left_when_alone(out);
        }
        if self.life.standing.is_some() {
            self.resign(GivesUp::ForDecided, out);
        }
        // Connected members still answer with their member state.
        let connected: Vec<NodeId> = self.connected.keys().copied().collect();
        connected
            .into_iter()
            .for_each(|peer| self.send(peer, self.hello(), out));
        self.join_when_ready(out);
    }

    /// Living members of the cluster that this node cannot send to, or has not heard from.
    pub(super) fn unheard<'a>(
        &'a self,
        cluster: &'a MemberState,
    ) -> impl Iterator<Item = NodeId> + 'a {
        let heard = move |member: &Member| {
            let known = self
                .hellos
                .get(&member.id)
                .is_some_and(|known| known.incarnation == member.incarnation);
            known && self.can_send_to(member)
        };
        let unheard = cluster
            .view
            .members()
            .iter()
            .filter(move |member| member.id != self.me() && !heard(member));
        unheard
            .map(|member| member.id)
            .filter(|id| !cluster.dead.contains(id))
    }

    /// Whether only a round of the cluster is missing for admission.
    pub(super) fn is_ready_to_join(&self) -> bool {
        self.life
            .cluster
            .as_ref()
            .is_some_and(|cluster| self.unheard(cluster).next().is_none())
    }

    /// Asks to be admitted once every living member can be sent to and was heard from.
    pub(super) fn join_when_ready(&mut self, out: &mut Outbox<Effect>) {
        // A node that asks has resigned: the others no longer count on it, so its coordinator must
        // have agreed.
        let wants = self.life.standing.is_none()
            && self.life.resigning.is_empty()
            && self.failed.is_none()
            && !self.life.drained;
        if !wants {
            return;
        }
        let Some(cluster) = self.life.cluster.clone() else {
            return;
        };
        let wish = (cluster.lineage, cluster.view.epoch());
        if self.model.is_none()
            || self.life.asked == Some(wish)
            || self.unheard(&cluster).next().is_some()
        {
            return;
        }
        if self.counts_on_me(&cluster.view) && self.life.wished.is_some_and(|last| last != wish) {
            // It is admitted, and the decision may still be on its way here: a node that asks again
            // must hold nothing of it and vote on nothing.
            self.life.wished = None;
            self.life.resigning.push_back(None);
            return out.push(Effect::Resign(GivesUp::Membership));
        }
        self.life.asked = Some(wish);
        self.life.wished = Some(wish);
        if self.settings.join {
            // Until now it kept its model to itself, so that no bootstrap counted on it.
            cluster
                .view
                .ids()
                .filter(|id| self.connected.contains_key(id))
                .for_each(|peer| self.send(peer, self.hello(), out));
        }
        for peer in cluster
            .view
            .ids()
            .filter(|id| self.connected.contains_key(id))
        {
            self.send(peer, Message::Join, out);
        }
    }

    pub(super) fn connected_anew(
        &mut self,
        node: NodeId,
        incarnation: Incarnation,
        out: &mut Outbox<Effect>,
    ) {
        if self
            .life
            .candidates
            .get(&node)
            .is_some_and(|(_, member)| member.incarnation == incarnation)
        {
            self.tell_joiners(out);
        }
        // A new connection may have missed the announcement that this node leaves.
        self.life.leave_again_at = None;
        // A member that comes back may have missed the request.
        self.life.asked.take_if(|_| self.life.standing.is_none());
    }

    pub(super) fn asks_to_join(&mut self, header: &Header, out: &mut Outbox<Effect>) {
        let Some(standing) = &self.life.standing else {
            return;
        };
        let Some(known) = self
            .hellos
            .get(&header.sender)
            .filter(|known| known.incarnation == header.incarnation)
        else {
            return;
        };
        let member = known.member();
        if standing.lineage != header.lineage || header.epoch < standing.view.epoch() {
            return self.send(header.sender, self.hello(), out);
        }
        if let Some(refusal) = self.refusal(known) {
            return self.send(header.sender, Message::Refused(refusal), out);
        }
        if let Some(earlier) = standing
            .view
            .member(member.id)
            .filter(|earlier| earlier.incarnation != member.incarnation)
            .cloned()
        {
            // Another incarnation can reach anybody only once the earlier one is gone.
            self.down(earlier.id, earlier.incarnation, true, out);
        }
        if self.life.candidates.len() < MEMBERS_MAX {
            let before = self
                .life
                .candidates
                .insert(header.sender, (header.epoch, member));
            let asks_anew =
                before.is_none_or(|(_, before)| before.incarnation != header.incarnation);
            if self.life.dead.remove(&(header.sender, header.incarnation)) {
                out.push(Effect::Back(header.sender));
            }
            self.watch(out);
            self.tell_joiners(out);
            if asks_anew {
                out.push(Effect::JoinAsked(header.sender));
            }
        }
    }

    /// Refuses at once a node that can never train with this cluster; `true` if it was refused.
    pub(super) fn refuse_stranger(
        &self,
        header: &Header,
        hello: &Hello,
        out: &mut Outbox<Effect>,
    ) -> bool {
        let Some(refusal) = self.refusal(&Known::of(header, hello, &self.settings.shared)) else {
            return false;
        };
        out.push(Effect::Refused {
            address: hello.address,
            why: format!(
                "{} asked to join, and {} told it: {refusal}",
                header.sender,
                self.me()
            ),
        });
        self.send(header.sender, Message::Refused(refusal), out);
        true
    }

    fn refusal(&self, known: &Known) -> Option<JoinRefusal> {
        let standing = self.life.standing.as_ref()?;
        let ours = &self.settings.shared;
        let differences = differing_from_cluster(known.settings(ours), ours);
        if !differences.is_empty() {
            let differences = differences
                .iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>()
                .join("; ");
            return Some(JoinRefusal::SettingsDiffer { differences });
        }
        if let (Some(cluster), Some(joiner)) = (self.model, known.model)
            && !cluster.fits(&joiner)
        {
            return Some(JoinRefusal::ModelsDiffer {
                cluster: Box::new(cluster),
                joiner: Box::new(joiner),
            });
        }
        if let Some(joiner) = known.lineage.filter(|brought| *brought != standing.lineage) {
            return Some(JoinRefusal::OtherLineage {
                cluster: standing.lineage,
                joiner,
            });
        }
        if standing.view.size() >= self.settings.max_nodes && !standing.view.contains(known.node) {
            return Some(JoinRefusal::Full {
                max_nodes: u32::try_from(self.settings.max_nodes).unwrap_or(u32::MAX),
            });
        }
        self.settings.refuses.clone()
    }

    pub(super) fn refused_by(
        &mut self,
        header: &Header,
        reason: JoinRefusal,
        out: &mut Outbox<Effect>,
    ) {
        if self.life.standing.is_none() && self.model.is_some() {
            self.fail(
                BootstrapError::Refused {
                    by: header.sender,
                    reason,
                },
                out,
            );
        }
    }

    pub(super) fn down(
        &mut self,
        node: NodeId,
        incarnation: Incarnation,
        ended: bool,
        out: &mut Outbox<Effect>,
    ) {
        let first = self.life.dead.insert((node, incarnation));
        if ended && self.life.ended.len() < MEMBERS_MAX {
            self.life.ended.insert((node, incarnation));
        }
        if first || ended {
            out.push(Effect::Lost {
                node,
                incarnation,
                ended,
            });
        }
        if first {
            self.life.candidates.remove(&node);
            if self.connected.get(&node) == Some(&incarnation) {
                out.push(Effect::Disconnect(node));
            }
            self.tell_strangers(out);
            self.left_when_alone(out);
        }
        if ended {
            // It may have been the one with the smaller address.
            self.bootstrap_when_complete(out);
        }
    }

    pub(super) fn up(&mut self, node: NodeId, out: &mut Outbox<Effect>) {
        self.life.dead.retain(|(dead, _)| *dead != node);
        if let Some(incarnation) = self.connected.get(&node) {
            self.life.ended.remove(&(node, *incarnation));
        }
        out.push(Effect::Back(node));
        self.tell_strangers(out);
    }

    /// Reports the reason why this node is no member, when it changes.
    pub(super) fn tell_waiting(&mut self, out: &mut Outbox<Effect>) {
        let waiting = if self.failed.is_some() {
            None
        } else if self.life.is_new() && !self.settings.join {
            self.why_not_founded()
        } else if self.life.waits_for_admission(self.settings.join) {
            Some(self.life.missing(self))
        } else {
            None
        };
        if waiting != self.life.waiting {
            self.life.waiting.clone_from(&waiting);
            out.push(Effect::Waiting(waiting));
        }
    }

    /// Reports, now and then, that this node is still no member: what is missing is often another
    /// host's, and nothing else tells of it.
    pub(super) fn tell_still_waiting(&mut self, now: Instant, out: &mut Outbox<Effect>) {
        let Some(why) = &self.life.waiting else {
            self.told_at = None;
            return;
        };
        let at = self.told_at.get_or_insert(now.after(WAITING_TOLD_AFTER));
        if now >= *at {
            *at = now.after(WAITING_TOLD_EVERY);
            out.push(Effect::StillWaits(why.clone()));
        }
    }
}

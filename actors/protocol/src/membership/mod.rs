//! Cluster membership: how `min_nodes` nodes with equal settings bootstrap the first view, which
//! nodes may join, which are dead, and which leave.
//!
//! ```text
//!   every node            the one that bootstraps
//!      │◄──── Hello ────────────►│   settings, parameter count (once known), member state
//!      │                         │   every known address answered, or had the time to; none runs
//!      │                         │   min_nodes nodes agree
//!      │◄──── Bootstrap(view) ───┤
//!   round 0: the lowest id's parameters
//! ```
//! `bootstrap` decides which process bootstraps, and keeps a restarted process from doing so
//! wrongly. A node that meets a running cluster, or that the others went on without, joins
//! (`life`); it first gives up its own place (`resigning`). Of nodes that differ, `misfits` says
//! which give up before there is a run:
//! ```text
//!   joiner J                    each member
//!      │◄──── Hello{standing} ────►│   the view and its living members; members dial J back
//!      │      J can send to all of them, and has heard from all of them
//!      ├───── Join(epoch) ────────►│   ready joiners go to the leader, for the next view
//!      │◄──── Refused(why) ────────┤   other settings, another model, full, …: final; only J hears
//! ```
//! When two histories or two bootstraps meet, `histories` decides which one a node keeps. `dialing`
//! makes sure that they do meet. Views change only by decisions of the coordinator; liveness
//! reports deaths, and this machine passes them to the coordinator.

mod bootstrap;
mod dialing;
mod error;
mod events;
mod histories;
mod known;
mod leaving;
mod life;
mod misfits;
mod resigning;
pub mod settings;
#[cfg(test)]
mod tests;

pub use bootstrap::LOOK_FOR_RUN_WAIT;
pub use dialing::{DialFault, MISSED_FOR, MISSED_REDIAL_EVERY, REDIAL_EVERY};
pub use error::BootstrapError;
pub use events::{Effect, In, Settings};
pub use leaving::{DECISION_WAIT, LEAVE_AGAIN_EVERY};
pub use misfits::REFUSED_TOLD_MAX;
pub use resigning::RETURN_WAIT;

use crate::ident::{Epoch, Incarnation, Lineage, NodeId, Round, Term};
use crate::machine::{Identity, Machine, Outbox, Place};
use crate::model::ModelSize;
use crate::time::{Instant, Span};
use crate::view::{MEMBERS_MAX, Member, View};
use crate::wire::{Header, Hello, MemberState, Message};
use known::Known;
use life::Life;
use misfits::Misfits;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use xxhash_rust::xxh3::xxh3_128;

/// How long a leaving node stays reachable so that what it sent arrives.
pub const LEAVE_WAIT_MAX: Span = Span::from_millis(5_000);
/// How long a refused node stays reachable, so that the others meet it and are told the same.
pub const REFUSED_WAIT_MAX: Span = Span::from_millis(1_000);
/// How long after the last attempt to reach a peer its error may arrive; a missing peer is then
/// reported with that error.
pub const DIAL_ERROR_WAIT_MAX: Span = Span::from_millis(1_000);
/// How long a node that waits for others has waited when it says so first.
pub const WAITING_TOLD_AFTER: Span = Span::from_millis(5_000);
/// Time between further such reports.
pub const WAITING_TOLD_EVERY: Span = Span::from_millis(60_000);

/// The membership machine of one node.
#[derive(Clone, Debug)]
pub struct Membership {
    settings: Settings,
    model: Option<ModelSize>,
    connected: BTreeMap<NodeId, Incarnation>,
    /// The incarnation of each node that was connected last; at most [`MEMBERS_MAX`].
    last_connected: BTreeMap<NodeId, Incarnation>,
    /// Incarnations after which another one of the same node connected; at most [`MEMBERS_MAX`]. A
    /// view that is applied later may still have them.
    superseded: BTreeSet<(NodeId, Incarnation)>,
    /// Number of times a peer could no longer be sent to, or was replaced by another incarnation.
    disconnections: u64,
    hellos: BTreeMap<NodeId, Known>,
    /// Addresses that discovery found, ascending; may include this node's own. `None` before
    /// discovery has reported anything.
    discovered: Option<Vec<SocketAddr>>,
    /// How long this node waits for those addresses before it bootstraps, and whether that time is
    /// over.
    look_by: Option<Instant>,
    looked: bool,
    /// Until when `min_nodes` nodes, or a cluster to join, must have been met; while they have not.
    appear_by: Option<Instant>,
    /// Until when those that have met must have decided a round.
    synchronize_by: Option<Instant>,
    /// Until when a node that was a member must be one again.
    return_by: Option<Instant>,
    /// When to report again that this node waits.
    told_at: Option<Instant>,
    misfits: Misfits,
    adopted: Option<(View, Lineage)>,
    life: Life,
    /// The last address that did not answer, and the error.
    unreachable: Option<(SocketAddr, String)>,
    refused: Option<(BootstrapError, Instant)>,
    failed: Option<BootstrapError>,
    left: BTreeSet<(NodeId, Incarnation)>,
    leave_by: Option<Instant>,
}

impl Machine for Membership {
    type In = In;
    type Effect = Effect;

    fn handle(&mut self, event: In, now: Instant, out: &mut Outbox<Effect>) {
        match event {
            In::Synchronize(model) => self.synchronize(model, now, out),
            In::Discovered(addresses) => self.discovered(addresses, out),
            In::PeerUp(node, incarnation) => self.peer_up((node, incarnation), out),
            In::PeerDown { node, departed } => self.peer_down(node, departed, out),
            In::DialFailed {
                address,
                tried_for,
                fault,
                error,
            } => self.note_failed_dial(address, tried_for, fault, error, out),
            In::StrangerDialed(address) => self.note_stranger(address),
            In::Frame { header, message } => self.receive(header, *message, out),
            In::Down {
                node,
                incarnation,
                ended,
            } => self.down(node, incarnation, ended, out),
            In::Up(node) => self.up(node, out),
            In::Decided(standing) => self.decided(standing, out),
            In::Retained(voters) => {
                voters
                    .iter()
                    .for_each(|voter| self.life.missed.note(voter.clone()));
                self.life.retained = voters;
                self.watch(out);
            }
            // A node that is about to enter another bootstrap goes nowhere else.
            In::WentOn(cluster) if self.adopted.is_none() => {
                self.life.cluster.get_or_insert(cluster);
            }
            In::WentOn(_) => {}
            In::MustRejoin => self.must_rejoin(out),
            In::Resigned(obeyed) => self.resigned(obeyed, out),
            In::Drain => self.drain(now, out),
            In::Leave => self.leave(now, out),
            In::Tick => self.tick(now, out),
        }
        self.dial_missing(now, out);
        self.dial_missed(now, out);
        self.leave_again(now, out);
        self.end_when_nothing_counts_on_it(out);
        self.end_when_drained(now, out);
        self.ask_again_when_not_admitted(now, out);
        self.leave_void_bootstrap(now, out);
        self.return_when_deserted(now, out);
        self.tell_that_it_may_bootstrap(out);
        self.look_no_longer(now, out);
        self.judge(now, out);
        self.bound_waits(now);
        self.bound_return(now, out);
        self.tell_waiting(out);
        self.tell_still_waiting(now, out);
    }

    fn next_deadline(&self) -> Option<Instant> {
        let waiting = self.failed.is_none()
            && (self.life.is_new() || self.life.waits_for_admission(self.settings.join));
        let looking = if self.life.is_new() {
            self.look_by
        } else {
            None
        };
        let refused_by = self.refused.as_ref().map(|(_, deadline)| *deadline);
        let mut bootstrap = None;
        if waiting {
            let deadlines = [self.appear_by, self.synchronize_by, refused_by];
            bootstrap = deadlines.into_iter().flatten().min();
        }
        let mut dials_missed_at = None;
        if self.life.standing.is_some() {
            dials_missed_at = self.life.missed.deadline();
        }
        let others = [
            self.leave_by,
            self.life.redial_at,
            dials_missed_at,
            self.life.leave_again_at,
            self.life.drained_by(),
            self.life.counted_until,
            looking,
            self.life.returns_at,
            self.life.void_look_at,
            self.return_by,
            self.told_at,
        ];
        bootstrap
            .into_iter()
            .chain(others.into_iter().flatten())
            .min()
    }
}

impl Membership {
    /// A node that has met no peer yet.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            model: None,
            connected: BTreeMap::new(),
            last_connected: BTreeMap::new(),
            superseded: BTreeSet::new(),
            disconnections: 0,
            hellos: BTreeMap::new(),
            discovered: None,
            look_by: None,
            looked: false,
            appear_by: None,
            synchronize_by: None,
            return_by: None,
            told_at: None,
            misfits: Misfits::new(),
            adopted: None,
            life: Life::default(),
            unreachable: None,
            refused: None,
            failed: None,
            left: BTreeSet::new(),
            leave_by: None,
        }
    }

    /// The newest view that this node heard of while it waits to be admitted.
    #[must_use]
    pub fn sought(&self) -> Option<&MemberState> {
        self.life.cluster.as_ref()
    }

    fn me(&self) -> NodeId {
        self.settings.identity.node
    }

    fn place(&self) -> Place {
        // A joiner refers to the view that it asks to be admitted to.
        let standing = self.life.standing.as_ref().or(self.life.cluster.as_ref());
        let (epoch, lineage) = standing.map_or((Epoch(0), Lineage::NONE), |standing| {
            (standing.view.epoch(), standing.lineage)
        });
        Place {
            lineage,
            epoch,
            round: Round::BOOTSTRAP,
            term: Term::default(),
            attempt: 0,
        }
    }

    fn send(&self, to: NodeId, message: Message, out: &mut Outbox<Effect>) {
        out.push(Effect::Send {
            to,
            frame: self.settings.identity.frame(self.place(), message),
        });
    }

    fn hello(&self) -> Message {
        let Settings {
            address,
            devices,
            group,
            key,
            shared,
            ..
        } = &self.settings;
        // Naming the model makes the other bootstrap members count on this node.
        let named = !self.life.drained
            && (self.may_bootstrap()
                || self.life.standing.is_some()
                || self.life.cluster.is_some());
        let address = *address;
        let devices = *devices;
        let group = *group;
        let key = *key;
        let settings = shared.clone();
        let standing = self.standing();
        let lineage = self.brings();
        let model = if named { self.model } else { None };
        Message::Hello(Hello {
            address,
            devices,
            group,
            key,
            settings,
            model,
            standing,
            lineage,
        })
    }

    /// History whose state this node brings. A node that was once a member joins with the cluster's
    /// model, whatever state it brought.
    fn brings(&self) -> Option<Lineage> {
        if self.life.was_member {
            return None;
        }
        self.life.brings.or(self.settings.lineage)
    }

    fn synchronize(&mut self, model: ModelSize, now: Instant, out: &mut Outbox<Effect>) {
        self.model = Some(model);
        self.look_by = Some(now.after(LOOK_FOR_RUN_WAIT));
        if let Some(error) = &self.failed {
            return out.push(Effect::Fail(error.clone()));
        }
        for peer in self.connected.keys().copied().collect::<Vec<_>>() {
            self.send(peer, self.hello(), out);
        }
        if self.life.cluster.is_none() {
            // The models can be compared only now.
            let known: Vec<_> = self.hellos.values().cloned().collect();
            known.iter().for_each(|known| self.note_fit(known, out));
        }
        self.bootstrap_when_complete(out);
        self.join_when_ready(out);
    }

    fn peer_up(&mut self, (node, incarnation): (NodeId, Incarnation), out: &mut Outbox<Effect>) {
        let known = self.connected.get(&node).copied();
        if self.connected.len() < MEMBERS_MAX && known != Some(incarnation) {
            self.connected.insert(node, incarnation);
            self.note_superseded(node, incarnation);
            // It answered: an end that was reported of it was none.
            self.life.ended.remove(&(node, incarnation));
            self.disconnections += u64::from(known.is_some());
            self.send(node, self.hello(), out);
            self.connected_anew(node, incarnation, out);
        }
        self.form_when_connected(out);
        self.bootstrap_when_complete(out);
        self.join_when_ready(out);
    }

    /// Remembers which incarnation of a node came before the one that connected.
    fn note_superseded(&mut self, node: NodeId, incarnation: Incarnation) {
        self.superseded.remove(&(node, incarnation));
        let before = self.last_connected.insert(node, incarnation);
        if let Some(before) = before.filter(|before| *before != incarnation)
            && self.superseded.len() < MEMBERS_MAX
        {
            self.superseded.insert((node, before));
        }
    }

    /// Whether `min_nodes` nodes can be sent to, this one included.
    fn met_all(&self) -> bool {
        self.connected.len() + 1 >= self.settings.min_nodes
    }

    fn peer_down(&mut self, node: NodeId, departed: bool, out: &mut Outbox<Effect>) {
        // Keep its hello: a refused node may be gone before this one synchronizes.
        let incarnation = self.connected.remove(&node);
        self.disconnections += 1;
        self.life.candidates.remove(&node);
        if departed {
            self.life.missed.forget(node);
        }
        if let Some(incarnation) = incarnation
            && departed
            && self.left.len() < MEMBERS_MAX
        {
            self.left.insert((node, incarnation));
        }
        self.left_when_alone(out);
    }

    fn receive(&mut self, header: Header, message: Message, out: &mut Outbox<Effect>) {
        match message {
            Message::Hello(hello) => self.meet(header, hello, out),
            Message::Bootstrap { view, lineage } => self.adopt(&header, view, lineage, out),
            Message::Leave { contributes } => self.leaves(&header, contributes, out),
            Message::Join => self.asks_to_join(&header, out),
            Message::Refused(refusal) => self.refused_by(&header, refusal, out),
            _ => {}
        }
    }

    fn meet(&mut self, header: Header, hello: Hello, out: &mut Outbox<Effect>) {
        self.dial_back(&header, &hello, out);
        self.unreachable
            .take_if(|(address, _)| *address == hello.address);
        let known = Known::of(&header, &hello, &self.settings.shared);
        if self.life.standing.is_some() || (self.adopted.is_some() && hello.standing.is_some()) {
            self.meet_as_member(&header, &hello, out);
        } else if let Some(theirs) = hello.standing.clone() {
            self.meet_a_member(&header, theirs, out);
        } else if self.life.cluster.is_none() {
            self.note_fit(&known, out);
        }
        self.forget_strangers();
        if self.hellos.len() < MEMBERS_MAX || self.hellos.contains_key(&header.sender) {
            self.hellos.insert(header.sender, known);
        }
        self.bootstrap_when_complete(out);
        self.join_when_ready(out);
    }

    /// Makes room for new nodes: over a long run many come and go.
    fn forget_strangers(&mut self) {
        let standing = self.life.standing.as_ref();
        let concerns = |id: &NodeId| {
            self.connected.contains_key(id)
                || standing.is_some_and(|standing| standing.view.contains(*id))
        };
        if self.hellos.len() >= MEMBERS_MAX {
            self.hellos.retain(|id, _| concerns(id));
        }
        if self.last_connected.len() >= MEMBERS_MAX {
            self.last_connected.retain(|id, _| concerns(id));
        }
        if self.superseded.len() >= MEMBERS_MAX {
            self.superseded.retain(|(id, _)| concerns(id));
        }
        if self.left.len() >= MEMBERS_MAX {
            self.left.retain(|(id, _)| concerns(id));
        }
        if self.life.done.len() >= MEMBERS_MAX {
            self.life.done.retain(|(id, _)| concerns(id));
        }
        if self.life.ended.len() >= MEMBERS_MAX {
            self.life.ended.retain(|(id, _)| concerns(id));
        }
    }

    /// Acts on an adopted view once this node can send to every member (the bootstrapper's
    /// connections say nothing about this node's), and once the coordinator has given up the
    /// previous one: a node that accepted that one must not be counted out of it.
    fn form_when_connected(&mut self, out: &mut Outbox<Effect>) {
        if !self.life.resigning.is_empty() {
            return;
        }
        let me = self.me();
        let connected = |view: &View| {
            view.ids()
                .all(|id| id == me || self.connected.contains_key(&id))
        };
        if let Some((view, lineage)) = self.adopted.take_if(|(view, _)| connected(view)) {
            self.form(view, lineage, out);
        }
    }

    fn form(&mut self, view: View, lineage: Lineage, out: &mut Outbox<Effect>) {
        out.push(Effect::Formed {
            view: view.clone(),
            lineage,
        });
        self.enter(histories::bootstrap(view, lineage), out);
    }

    /// Fails once this node can send to every node it waits for, so that they are told the same;
    /// after [`REFUSED_WAIT_MAX`] it fails without them.
    fn refuse(&mut self, error: BootstrapError, now: Instant, out: &mut Outbox<Effect>) {
        if self.met_all() {
            return self.fail(error, out);
        }
        self.refused
            .get_or_insert((error, now.after(REFUSED_WAIT_MAX)));
    }

    fn fail(&mut self, error: BootstrapError, out: &mut Outbox<Effect>) {
        if self.life.standing.is_none() && self.failed.is_none() {
            if self.life.leaving == Some(true) {
                // It was told to leave, and is in nothing: that is no failure.
                self.refused = None;
                if !self.life.drained {
                    self.drained(out);
                }
                return;
            }
            // The first error found says more than its consequences.
            let error = self.refused.take().map_or(error, |(first, _)| first);
            self.failed = Some(error.clone());
            out.push(Effect::Fail(error));
        }
    }

    fn tick(&mut self, now: Instant, out: &mut Outbox<Effect>) {
        let due = |deadline: Option<Instant>| deadline.is_some_and(|deadline| now >= deadline);
        if due(self.leave_by) {
            self.leave_by = None;
            out.push(Effect::Left);
        }
        if let Some((error, _)) = self.refused.take_if(|(_, deadline)| due(Some(*deadline))) {
            return self.fail(error, out);
        }
        let needed = self.settings.min_nodes;
        let joins = self.life.waits_for_admission(self.settings.join);
        let met_late = self.appear_by.take_if(|by| now >= *by).is_some();
        let decided_late = self.synchronize_by.take_if(|by| now >= *by).is_some();
        if joins && met_late {
            self.not_admitted(self.settings.meet_timeout, out);
        } else if joins && decided_late {
            // The cluster's next round admits a node, and that may be far off.
            self.not_admitted(self.settings.synchronize_timeout, out);
        } else if met_late {
            self.fail(
                BootstrapError::TooFew {
                    needed,
                    present: self.present(),
                    waited: self.settings.meet_timeout,
                    obstacle: self.obstacle(),
                },
                out,
            );
        } else if decided_late {
            let waited = self.settings.synchronize_timeout;
            let error = match self.why_not_founded() {
                Some(why) => BootstrapError::NotBootstrapped { waited, why },
                None => {
                    let silent = |id: &NodeId| {
                        self.hellos
                            .get(id)
                            .is_none_or(|known| known.model.is_none())
                    };
                    let waiting_for = self.connected.keys().copied().filter(silent).collect();
                    BootstrapError::NotSynchronized {
                        waiting_for,
                        waited,
                    }
                }
            };
            self.fail(error, out);
        }
    }

    /// Bounds the first wait of this node: for the nodes to meet, then for them to decide a round.
    fn bound_waits(&mut self, now: Instant) {
        let joins = self.life.waits_for_admission(self.settings.join);
        let bootstraps = self.life.is_new() && self.may_bootstrap();
        let waits = self.model.is_some() && self.failed.is_none() && !self.life.was_member;
        if !waits || !(joins || bootstraps) {
            self.appear_by = None;
            self.synchronize_by = None;
            return;
        }
        let have_met = if joins {
            self.is_ready_to_join()
        } else {
            self.enough_are_present()
        };
        if have_met {
            self.appear_by = None;
            let by = now.after(self.settings.synchronize_timeout);
            self.synchronize_by.get_or_insert(by);
        } else {
            self.synchronize_by = None;
            let by = now.after(self.settings.meet_timeout);
            self.appear_by.get_or_insert(by.after(DIAL_ERROR_WAIT_MAX));
        }
    }

    /// Bounds the wait of a node that was a member, or that must look for its run: without an end
    /// it would wait for a run that is over.
    fn bound_return(&mut self, now: Instant, out: &mut Outbox<Effect>) {
        let was_member = self.life.was_member && self.life.standing.is_none() && !self.life.drained;
        let looks = self.model.is_some()
            && !self.settings.join
            && self.life.is_new()
            && self.is_bound_to_look();
        if self.failed.is_some() || !(was_member || looks) {
            self.return_by = None;
            return;
        }
        let timeout = self.settings.rejoin_timeout;
        if now >= *self.return_by.get_or_insert(now.after(timeout)) {
            self.return_by = None;
            self.not_admitted(timeout, out);
        }
    }

    /// Names the obstacle that keeps this node from meeting the others, for an operator.
    fn obstacle(&self) -> Option<String> {
        let silent = self.unreachable.as_ref();
        let silent = silent.map(|(_, told)| format!("last failure: {told}"));
        let told: Vec<String> = self.refused_nodes().into_iter().chain(silent).collect();
        (!told.is_empty()).then(|| told.join("; "))
    }

    fn not_admitted(&mut self, waited: Span, out: &mut Outbox<Effect>) {
        let met = self.connected.keys().copied().collect();
        self.fail(
            BootstrapError::NotAdmitted {
                met,
                waited,
                missing: self.life.missing(self),
            },
            out,
        );
    }

    fn leave(&mut self, now: Instant, out: &mut Outbox<Effect>) {
        self.leave_by = Some(now.after(LEAVE_WAIT_MAX));
        self.tell_leaving(false, now, out);
        self.left_when_alone(out);
    }

    fn left_when_alone(&mut self, out: &mut Outbox<Effect>) {
        let me = self.me();
        let gone = |member: &Member| {
            member.id == me
                || self.left.contains(&(member.id, member.incarnation))
                || self.life.is_dead(member)
        };
        let alone = self
            .life
            .standing
            .as_ref()
            .is_none_or(|standing| standing.view.members().iter().all(gone));
        if alone && self.leave_by.take().is_some() {
            out.push(Effect::Left);
        }
    }
}

/// The lineage of a bootstrap, unique to it: hash of the cluster, every bootstrap member and its
/// incarnation. Never [`Lineage::NONE`].
fn lineage_of(identity: Identity, view: &View) -> Lineage {
    let mut bytes = identity.cluster.0.to_le_bytes().to_vec();
    for member in view.members() {
        bytes.extend(member.id.0.to_le_bytes());
        bytes.extend(member.incarnation.0.to_le_bytes());
    }
    Lineage::of_bootstrap(xxh3_128(&bytes))
}

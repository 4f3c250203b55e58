//! Who is there: how the founding view forms from `min_nodes` nodes with equal settings, who was lost, who leaves.
//!
//! ```text
//!   every node               lowest id
//!      │◄──── Hello ────────────►│   settings, parameter count (once `synchronize` was called)
//!      │                         │   min_nodes nodes agree
//!      │◄──── Found(view) ───────┤
//!   round 0: the lowest id's parameters
//! ```
//!
//! The view is fixed once it is formed: a lost member is reported, nobody joins.

mod error;
pub mod settings;
#[cfg(test)]
mod tests;

pub use error::FoundingError;

use crate::ident::{Ballot, Epoch, Lineage, NodeId, Round};
use crate::machine::{Identity, Machine, Outbox, Place};
use crate::time::{Instant, Span};
use crate::view::{MEMBERS_MAX, Member, View};
use crate::wire::{Frame, Header, Hello, Message};
use settings::differing_settings;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use xxhash_rust::xxh3::xxh3_128;

/// How long a leaving node stays reachable for the others, so that what it sent arrives.
pub const LEAVE_WAIT_MAX: Span = Span::from_millis(5_000);

/// What happens to the membership.
#[derive(Clone, Debug)]
pub enum In {
    /// This node's workers called `synchronize`: the size of the model is known.
    Synchronize {
        /// Parameters.
        elements: u64,
        /// Values of the buffers that travel with them.
        buffer_elements: u64,
    },
    /// A peer can be sent to.
    PeerUp(NodeId),
    /// A peer is gone.
    PeerDown(NodeId),
    /// An address was given up.
    DialFailed {
        /// The address.
        address: SocketAddr,
        /// How long it was tried.
        tried_for: Span,
        /// The last attempt's error, for a person.
        error: String,
    },
    /// A control frame about membership arrived.
    Frame {
        /// Who, where in history.
        header: Header,
        /// What.
        message: Message,
    },
    /// This node leaves.
    Leave,
    /// Time passed.
    Tick,
}

/// What the membership asks its shell for.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Send a control frame.
    Send {
        /// To whom.
        to: NodeId,
        /// What.
        frame: Frame,
    },
    /// The founding view is formed.
    Formed {
        /// Its members.
        view: View,
        /// The new model history.
        lineage: Lineage,
    },
    /// This node cannot be part of a founding view.
    Fail(FoundingError),
    /// A member of the view is gone.
    Lost(NodeId),
    /// Everybody left, or was given the time to: the node may go.
    Left,
}

/// What the membership of a node needs to know at its start.
#[derive(Clone, Debug)]
pub struct Settings {
    /// This node.
    pub identity: Identity,
    /// Where it listens.
    pub address: SocketAddr,
    /// Its workers.
    pub devices: u16,
    /// Nodes of the founding view.
    pub min_nodes: usize,
    /// The settings that all nodes must share, as `key = value` lines.
    pub shared: String,
    /// How long peers may take to appear after `synchronize`.
    pub connect_timeout: Span,
    /// How long connected peers may take to call `synchronize` too.
    pub synchronize_timeout: Span,
}

/// The membership of one node.
#[derive(Clone, Debug)]
pub struct Membership {
    settings: Settings,
    model: Option<(u64, u64)>,
    connected: BTreeSet<NodeId>,
    hellos: BTreeMap<NodeId, (Header, Hello)>,
    appear_by: Option<Instant>,
    synchronize_by: Option<Instant>,
    adopted: Option<(View, Lineage)>,
    formed: Option<(View, Lineage)>,
    failed: Option<FoundingError>,
    left: BTreeSet<NodeId>,
    leave_by: Option<Instant>,
}

impl Machine for Membership {
    type In = In;
    type Effect = Effect;

    fn handle(&mut self, event: In, now: Instant, out: &mut Outbox<Effect>) {
        match event {
            In::Synchronize { elements, buffer_elements } => self.synchronize((elements, buffer_elements), now, out),
            In::PeerUp(node) => self.peer_up(node, out),
            In::PeerDown(node) => self.peer_down(node, out),
            In::DialFailed { address, tried_for, error } => {
                if self.formed.is_none() && self.connected.len() + 1 < self.settings.min_nodes {
                    self.fail(FoundingError::Unreachable { address, tried_for, error }, out);
                }
            }
            In::Frame { header, message } => self.receive(header, message, out),
            In::Leave => self.leave(now, out),
            In::Tick => self.tick(now, out),
        }
    }

    fn next_deadline(&self) -> Option<Instant> {
        let waiting = self.formed.is_none() && self.failed.is_none();
        let founding = [self.appear_by, self.synchronize_by].into_iter().flatten().filter(|_| waiting).min();
        founding.into_iter().chain(self.leave_by).min()
    }
}

impl Membership {
    /// A node that has met nobody yet.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            model: None,
            connected: BTreeSet::new(),
            hellos: BTreeMap::new(),
            appear_by: None,
            synchronize_by: None,
            adopted: None,
            formed: None,
            failed: None,
            left: BTreeSet::new(),
            leave_by: None,
        }
    }

    fn me(&self) -> NodeId {
        self.settings.identity.node
    }

    fn place(&self) -> Place {
        let (epoch, lineage) = self.formed.as_ref().map_or((Epoch(0), Lineage::NONE), |(view, lineage)| (view.epoch(), *lineage));
        Place { lineage, epoch, round: Round::FOUNDING, ballot: Ballot::default() }
    }

    fn send(&self, to: NodeId, message: Message, out: &mut Outbox<Effect>) {
        out.push(Effect::Send { to, frame: self.settings.identity.frame(self.place(), message) });
    }

    fn hello(&self) -> Message {
        let Settings { address, devices, shared, .. } = &self.settings;
        let (elements, buffer_elements) = self.model.unzip();
        Message::Hello(Hello { address: *address, devices: *devices, settings: shared.clone(), elements, buffer_elements })
    }

    fn synchronize(&mut self, model: (u64, u64), now: Instant, out: &mut Outbox<Effect>) {
        self.model = Some(model);
        self.appear_by = Some(now.after(self.settings.connect_timeout));
        self.synchronize_by = Some(now.after(self.settings.synchronize_timeout));
        if let Some(error) = &self.failed {
            return out.push(Effect::Fail(error.clone()));
        }
        for peer in self.connected.clone() {
            self.send(peer, self.hello(), out);
        }
        let known: Vec<_> = self.hellos.values().cloned().collect();
        for (header, hello) in known {
            self.compare(header.sender, &hello, out);
        }
        self.found_when_complete(out);
    }

    fn peer_up(&mut self, node: NodeId, out: &mut Outbox<Effect>) {
        if self.connected.len() < MEMBERS_MAX && self.connected.insert(node) {
            self.send(node, self.hello(), out);
        }
        self.form_when_connected(out);
        self.found_when_complete(out);
    }

    fn peer_down(&mut self, node: NodeId, out: &mut Outbox<Effect>) {
        self.connected.remove(&node);
        self.hellos.remove(&node);
        if self.formed.as_ref().is_some_and(|(view, _)| view.contains(node)) {
            self.left.insert(node);
            out.push(Effect::Lost(node));
            self.left_when_alone(out);
        }
    }

    fn receive(&mut self, header: Header, message: Message, out: &mut Outbox<Effect>) {
        match message {
            Message::Hello(hello) => self.meet(header, hello, out),
            Message::Found { view, lineage } => self.adopt(header, view, lineage, out),
            Message::Leave => {
                self.left.insert(header.sender);
                self.left_when_alone(out);
            }
            _ => {}
        }
    }

    fn meet(&mut self, header: Header, hello: Hello, out: &mut Outbox<Effect>) {
        if let Some((view, lineage)) = &self.formed {
            let stranger = !view.contains(header.sender);
            let answer = Message::Found { view: view.clone(), lineage: *lineage };
            return if stranger {
                self.send(header.sender, answer, out)
            };
        }
        self.compare(header.sender, &hello, out);
        if self.hellos.len() < MEMBERS_MAX {
            self.hellos.insert(header.sender, (header, hello));
        }
        self.found_when_complete(out);
    }

    /// Refuses a peer that trains something else. Both nodes see the same difference and name both sides.
    fn compare(&mut self, peer: NodeId, hello: &Hello, out: &mut Outbox<Effect>) {
        let differences = differing_settings(&self.settings.shared, &hello.settings);
        if !differences.is_empty() {
            let differences = differences.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
            return self.fail(FoundingError::SettingsDiffer { ours: self.me(), theirs: peer, differences }, out);
        }
        let theirs = hello.elements.zip(hello.buffer_elements);
        if let (Some(our_elements), Some(their_elements)) = (self.model, theirs)
            && our_elements != their_elements
        {
            self.fail(FoundingError::ModelsDiffer { ours: self.me(), our_elements, theirs: peer, their_elements }, out);
        }
    }

    /// The lowest id forms the view once `min_nodes` nodes, itself included, called `synchronize`.
    fn found_when_complete(&mut self, out: &mut Outbox<Effect>) {
        if self.formed.is_some() || self.adopted.is_some() || self.failed.is_some() || self.model.is_none() {
            return;
        }
        let ready = self.hellos.iter().filter(|(id, (_, hello))| hello.elements.is_some() && self.connected.contains(id));
        let ready: Vec<_> = ready.map(|(_, known)| known.clone()).collect();
        let lowest = ready.iter().all(|(header, _)| header.sender > self.me());
        if ready.len() + 1 < self.settings.min_nodes || !lowest {
            return;
        }
        let peers = ready.iter().map(|(header, hello)| member(header, hello));
        let Settings { identity, address, devices, .. } = self.settings;
        let myself = Member { id: identity.node, incarnation: identity.incarnation, address, devices };
        match View::new(Epoch::FOUNDING, peers.chain([myself]).collect()) {
            Ok(view) => self.found(view, out),
            Err(error) => self.fail(FoundingError::NoView(error), out),
        }
    }

    fn found(&mut self, view: View, out: &mut Outbox<Effect>) {
        let lineage = lineage_of(self.settings.identity, &view);
        for peer in view.ids().filter(|id| *id != self.me()) {
            self.send(peer, Message::Found { view: view.clone(), lineage }, out);
        }
        self.form(view, lineage, out);
    }

    fn adopt(&mut self, header: Header, view: View, lineage: Lineage, out: &mut Outbox<Effect>) {
        if self.formed.is_some() || self.adopted.is_some() {
            return;
        }
        let myself = view.member(self.me()).map(|member| member.incarnation);
        if myself != Some(self.settings.identity.incarnation) {
            let members = view.ids().collect();
            return self.fail(FoundingError::NotAMember { members }, out);
        }
        if header.sender == view.lowest() && self.model.is_some() && lineage.is_decided() {
            self.adopted = Some((view, lineage));
            self.form_when_connected(out);
        }
    }

    /// A view is acted on once every member can be sent to: the founder's own connections say nothing of this node's.
    fn form_when_connected(&mut self, out: &mut Outbox<Effect>) {
        let me = self.me();
        let connected = |view: &View| view.ids().all(|id| id == me || self.connected.contains(&id));
        if let Some((view, lineage)) = self.adopted.take_if(|(view, _)| connected(view)) {
            self.form(view, lineage, out);
        }
    }

    fn form(&mut self, view: View, lineage: Lineage, out: &mut Outbox<Effect>) {
        self.formed = Some((view.clone(), lineage));
        out.push(Effect::Formed { view, lineage });
    }

    fn fail(&mut self, error: FoundingError, out: &mut Outbox<Effect>) {
        if self.formed.is_none() && self.failed.is_none() {
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
        let (needed, found) = (self.settings.min_nodes, self.connected.len() + 1);
        if due(self.appear_by) && found < needed {
            let present = self.connected.iter().copied().chain([self.me()]).collect();
            self.fail(FoundingError::TooFew { needed, present, waited: self.settings.connect_timeout }, out);
        }
        if due(self.appear_by) {
            self.appear_by = None;
        }
        if due(self.synchronize_by) {
            let silent = |id: &NodeId| self.hellos.get(id).is_none_or(|(_, hello)| hello.elements.is_none());
            let waiting_for = self.connected.iter().copied().filter(silent).collect();
            self.fail(FoundingError::NotSynchronized { waiting_for, waited: self.settings.synchronize_timeout }, out);
            self.synchronize_by = None;
        }
    }

    fn leave(&mut self, now: Instant, out: &mut Outbox<Effect>) {
        self.leave_by = Some(now.after(LEAVE_WAIT_MAX));
        for peer in self.connected.clone() {
            self.send(peer, Message::Leave, out);
        }
        self.left_when_alone(out);
    }

    fn left_when_alone(&mut self, out: &mut Outbox<Effect>) {
        let me = self.me();
        let alone = self.formed.as_ref().is_none_or(|(view, _)| view.ids().all(|id| id == me || self.left.contains(&id)));
        if alone && self.leave_by.take().is_some() {
            out.push(Effect::Left);
        }
    }
}

fn member(header: &Header, hello: &Hello) -> Member {
    Member { id: header.sender, incarnation: header.incarnation, address: hello.address, devices: hello.devices }
}

/// A lineage that no other founding has: the cluster, every founding member and its incarnation. Never [`Lineage::NONE`].
fn lineage_of(identity: Identity, view: &View) -> Lineage {
    let mut bytes = identity.cluster.0.to_le_bytes().to_vec();
    for member in view.members() {
        bytes.extend(member.id.0.to_le_bytes());
        bytes.extend(member.incarnation.0.to_le_bytes());
    }
    Lineage(xxh3_128(&bytes).max(1))
}

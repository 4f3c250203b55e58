//! One machine at a time, told by hand what its peers, liveness and its coordinator say. Whole
//! clusters of nodes are simulated in `chaos-tests`.
#![allow(clippy::unwrap_used, clippy::panic)]

mod bootstrapping;
mod joining;
mod leaving;
mod misfits;

use super::*;
use crate::ident::{ClusterId, GroupId};
use crate::policy::Bootstrap;
use crate::published::PublicKey;
use crate::wire::Frame;

/// The history that most tests are about.
pub(super) const FIRST: Lineage = Lineage(1 << 64 | 7);

pub(super) fn machine(id: u64, min_nodes: usize, shared: &str) -> Membership {
    let member = member(id);
    let mut machine = Membership::new(Settings {
        identity: Identity {
            cluster: ClusterId(7),
            node: member.id,
            incarnation: member.incarnation,
        },
        address: member.address,
        devices: member.devices,
        group: member.group,
        key: member.key,
        min_nodes,
        max_nodes: 4,
        join: false,
        lineage: None,
        bootstrap: Bootstrap::Auto,
        restarted: false,
        refuses: None,
        shared: shared.to_owned(),
        addresses_may_be_stale: false,
        meet_timeout: Span(100),
        rejoin_timeout: Span::from_millis(3_600_000),
        synchronize_timeout: Span(1000),
    });
    machine.discovered = Some(Vec::new());
    machine
}

pub(super) fn member(id: u64) -> Member {
    Member {
        id: NodeId(id),
        incarnation: Incarnation(id + 100),
        address: SocketAddr::from(([127, 0, 0, 1], 7000 + id as u16)),
        devices: 1,
        group: GroupId::default(),
        key: PublicKey::default(),
    }
}

/// The next incarnation of a node, at another address.
pub(super) fn again(id: u64) -> Member {
    Member {
        incarnation: Incarnation(id + 200),
        address: SocketAddr::from(([127, 0, 0, 1], 8000 + id as u16)),
        ..member(id)
    }
}

pub(super) fn view(epoch: u64, ids: &[u64]) -> View {
    let members = ids.iter().copied().map(member).collect();
    View::new(Epoch(epoch), members).unwrap()
}

pub(super) fn at(lineage: Lineage, round: u64, view: View) -> MemberState {
    MemberState {
        lineage,
        forks: Vec::new(),
        round: Round(round),
        view,
        dead: Vec::new(),
    }
}

/// A peer that trains the same model; `standing` is its place in a history.
pub(super) fn peer(id: u64, standing: Option<MemberState>) -> Membership {
    let mut peer = machine(id, 2, "");
    peer.model = Some(ModelSize::of(23));
    let members = standing.iter().flat_map(|standing| {
        standing
            .view
            .members()
            .iter()
            .map(move |one| (standing, one))
    });
    for (standing, member) in members {
        if standing.dead.contains(&member.id) {
            peer.life.declare_dead(member.id, member.incarnation);
        }
    }
    peer.life.standing = standing;
    peer
}

/// The machine under test, and its clock.
#[derive(Clone)]
pub(super) struct Bench {
    pub machine: Membership,
    pub now: Instant,
}

impl Bench {
    pub fn new(id: u64, min_nodes: usize) -> Self {
        Self::with(id, min_nodes, |_| {})
    }

    pub fn with(id: u64, min_nodes: usize, change: impl FnOnce(&mut Settings)) -> Self {
        let mut machine = machine(id, min_nodes, "");
        change(&mut machine.settings);
        Self {
            machine,
            now: Instant(0),
        }
    }

    /// Node `id` as a member of the first history in round 7.
    pub fn member(id: u64, view: View) -> Self {
        let mut node = Self::new(id, 2);
        node.synchronize();
        node.decide(at(FIRST, 7, view));
        node
    }

    /// Effects of an event, without what a person is told while the machine waits.
    pub fn feed(&mut self, event: In) -> Vec<Effect> {
        let mut out = Outbox::default();
        self.machine.handle(event, self.now, &mut out);
        let mut effects = out.take();
        let told = |effect: &Effect| {
            matches!(
                effect,
                Effect::Waiting(_) | Effect::StillWaits(_) | Effect::Refused { .. }
            )
        };
        effects.retain(|effect| !told(effect));
        effects
    }

    pub fn synchronize(&mut self) -> Vec<Effect> {
        self.feed(In::Synchronize(ModelSize::of(23)))
    }

    pub fn decide(&mut self, standing: MemberState) -> Vec<Effect> {
        self.feed(In::Decided(standing))
    }

    pub fn up(&mut self, id: u64) -> Vec<Effect> {
        self.feed(In::PeerUp(NodeId(id), member(id).incarnation))
    }

    pub fn disconnect(&mut self, id: u64, departed: bool) -> Vec<Effect> {
        let node = NodeId(id);
        self.feed(In::PeerDown { node, departed })
    }

    pub fn dead(&mut self, id: u64, ended: bool) -> Vec<Effect> {
        self.feed(In::Down {
            node: NodeId(id),
            incarnation: member(id).incarnation,
            ended,
        })
    }

    pub fn tick_at(&mut self, now: Instant) -> Vec<Effect> {
        self.now = now;
        self.feed(In::Tick)
    }

    /// A tick so much later.
    pub fn tick_after(&mut self, span: Span) -> Vec<Effect> {
        self.tick_at(self.now.after(span))
    }

    /// A frame of `sender`.
    pub fn hear(&mut self, sender: &Membership, message: Message) -> Vec<Effect> {
        let Frame::V1 { header, message } = sender.settings.identity.frame(sender.place(), message);
        self.feed(In::Frame { header, message })
    }

    /// `sender` introduces itself.
    pub fn meet(&mut self, sender: &Membership) -> Vec<Effect> {
        self.hear(sender, sender.hello())
    }

    /// `sender` can be sent to, and introduces itself.
    pub fn connect(&mut self, sender: &Membership) -> Vec<Effect> {
        let Identity {
            node, incarnation, ..
        } = sender.settings.identity;
        let mut effects = self.feed(In::PeerUp(node, incarnation));
        effects.extend(self.meet(sender));
        effects
    }

    /// The reason, told to a person, why it is no member.
    pub fn waiting(&self) -> &str {
        self.machine.life.waiting.as_deref().unwrap_or_default()
    }
}

/// The frames, and to whom they go.
pub(super) fn frames(effects: &[Effect]) -> impl Iterator<Item = (u64, &Message)> {
    effects.iter().filter_map(|effect| match effect {
        Effect::Send {
            to,
            frame: Frame::V1 { message, .. },
        } => Some((to.0, &**message)),
        _ => None,
    })
}

/// Nodes that are asked to admit this node.
pub(super) fn asked(effects: &[Effect]) -> Vec<u64> {
    let joins = frames(effects).filter(|(_, message)| **message == Message::Join);
    joins.map(|(to, _)| to).collect()
}

/// The member states that this node tells `to`.
pub(super) fn says_to(effects: &[Effect], to: u64) -> Vec<Option<MemberState>> {
    let hellos = frames(effects).filter_map(|(node, message)| match message {
        Message::Hello(hello) if node == to => Some(hello.standing.clone()),
        _ => None,
    });
    hellos.collect()
}

pub(super) fn resigns(effects: &[Effect]) -> bool {
    let is = |effect: &Effect| matches!(effect, Effect::Resign(_));
    effects.iter().any(is)
}

pub(super) fn formed(effects: &[Effect]) -> bool {
    let is = |effect: &Effect| matches!(effect, Effect::Formed { .. });
    effects.iter().any(is)
}

/// The nodes that are ready to join, as the coordinator was told last.
pub(super) fn joiners(effects: &[Effect]) -> Option<Vec<u64>> {
    effects.iter().rev().find_map(|effect| match effect {
        Effect::Joiners { members, .. } => Some(members.iter().map(|one| one.id.0).collect()),
        _ => None,
    })
}

pub(super) fn fails(effects: &[Effect]) -> Option<&BootstrapError> {
    effects.iter().find_map(|effect| match effect {
        Effect::Fail(error) => Some(error),
        _ => None,
    })
}

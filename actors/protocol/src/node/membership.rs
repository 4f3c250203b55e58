//! The membership and liveness machines: the messages between them, and their messages to the other
//! parts.

use super::data::Data;
use super::mail::{Failure, Mail, ToAggregator, ToMembership, ToRounds};
use crate::coordinator::{self, GivesUp};
use crate::gossip_peer;
use crate::ident::{Lineage, NodeId, Round};
use crate::liveness::{self, DownCause, Liveness};
use crate::machine::{Machine, Outbox};
use crate::membership::{Effect, In, Membership, Settings};
use crate::time::{Instant, Span};
use crate::wire::{Frame, MemberState};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

/// Round trips of near nodes are read in one of so many ticks, and those of all nodes in one of so
/// many looks at all nodes.
const ROUND_TRIP_TICKS: u64 = 16;

/// A peer's signs of life, as the transport knows them.
pub trait SignsOfLife {
    /// Number of arrivals from a peer. A number below the previous one belongs to another session.
    fn heard(&self, node: NodeId) -> u64;

    /// Round-trip time of a packet to a peer and its answer.
    fn round_trip(&self, node: NodeId) -> Option<Span>;
}

/// Actions that the part requests from its driver.
#[derive(Debug)]
pub enum MembershipEffect<D: Data> {
    /// Send a control frame.
    Send {
        /// Receiver of the frame.
        to: NodeId,
        /// The frame.
        frame: Frame,
    },
    /// Tell another part.
    Tell(Mail<D>),
    /// Send a datagram of liveness.
    Datagram {
        /// Receiver of the datagram.
        to: NodeId,
        /// Its bytes.
        bytes: Vec<u8>,
    },
    /// Send a port probe: find out whether anybody listens where a node was.
    PortProbe(NodeId),
    /// Dial an address.
    Connect(SocketAddr),
    /// Close the connections to a node that was declared dead.
    Disconnect(NodeId),
    /// Start (`true`) or stop looking for peers.
    Search(bool),
    /// Report a notice; nothing else is to be done.
    Noticed(Notice),
}

/// Notices for operators.
#[derive(Debug)]
pub enum Notice {
    /// Liveness declared a node dead.
    Dead(NodeId, DownCause),
    /// A node that it had declared dead is alive.
    Alive(NodeId),
    /// A member is gone.
    Lost(NodeId),
    /// A member that was gone is back.
    Back(NodeId),
    /// The others went on without this node, which joins again.
    Rejoins,
    /// This node wanted to leave, and has left: the others went on without it, or never counted on
    /// it.
    Drained,
    /// Reason why this node is no member; `None` if it is one or does not wait to be.
    Waiting(Option<String>),
    /// This node has waited for a while, for this reason, and goes on waiting.
    StillWaits(String),
    /// A node at this address is refused, for this reason.
    Refused(SocketAddr, String),
    /// Another running cluster was met.
    OtherCluster {
        /// One of its members.
        node: NodeId,
        /// Its model history.
        lineage: Lineage,
        /// Its next round.
        round: Round,
    },
}

/// Both machines, and the last values reported to other parts.
pub struct MembershipPart {
    machine: Membership,
    liveness: Liveness,
    heard: BTreeMap<NodeId, u64>,
    ticks: u64,
    looks: u64,
    suspects: BTreeSet<NodeId>,
    suspicions: u64,
    unheard: BTreeSet<NodeId>,
}

impl MembershipPart {
    /// A node that has met no peer.
    #[must_use]
    pub fn new(settings: Settings, liveness: liveness::Settings) -> Self {
        Self {
            machine: Membership::new(settings),
            liveness: Liveness::new(liveness),
            heard: BTreeMap::new(),
            ticks: 0,
            looks: 0,
            suspects: BTreeSet::new(),
            suspicions: 0,
            unheard: BTreeSet::new(),
        }
    }

    /// The newest view that the node heard of while it waits to be admitted.
    #[must_use]
    pub fn sought(&self) -> Option<&MemberState> {
        self.machine.sought()
    }

    /// Time at which the part must be given a tick.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        [self.machine.next_deadline(), self.liveness.next_deadline()]
            .into_iter()
            .flatten()
            .min()
    }

    /// Handles a message.
    pub fn handle<D: Data>(
        &mut self,
        message: ToMembership,
        signs: &dyn SignsOfLife,
        now: Instant,
        out: &mut Outbox<MembershipEffect<D>>,
    ) {
        let mut turn = Turn {
            part: self,
            signs,
            now,
            effects: Outbox::default(),
            out,
        };
        turn.take(message);
        turn.act_on_all();
        turn.tell_suspects();
    }
}

/// A part while it handles one message.
struct Turn<'a, D: Data> {
    part: &'a mut MembershipPart,
    signs: &'a dyn SignsOfLife,
    now: Instant,
    effects: Outbox<Effect>,
    out: &'a mut Outbox<MembershipEffect<D>>,
}

impl<D: Data> Turn<'_, D> {
    fn take(&mut self, message: ToMembership) {
        match message {
            ToMembership::In(In::Tick) => {
                self.tick();
                self.feed(In::Tick);
            }
            ToMembership::In(In::PeerUp(node, incarnation)) => {
                self.watch(liveness::In::PeerUp(node, incarnation));
                self.feed(In::PeerUp(node, incarnation));
                self.tell(coordinator::In::PeerUp(node));
            }
            ToMembership::In(In::PeerDown { node, departed }) => {
                if departed {
                    self.watch(liveness::In::Gone(node));
                }
                self.feed(In::PeerDown { node, departed });
                self.tell(coordinator::In::PeerDown(node));
            }
            ToMembership::In(event) => self.feed(event),
            ToMembership::Liveness(event) => {
                // A refused port probe counts only if nothing was heard just now.
                if let liveness::In::PortRefused(node) = event {
                    self.hear(node);
                }
                self.watch(event);
            }
        }
    }

    fn feed(&mut self, event: In) {
        self.part.machine.handle(event, self.now, &mut self.effects);
    }

    fn tell(&mut self, mail: impl Into<Mail<D>>) {
        self.out.push(MembershipEffect::Tell(mail.into()));
    }

    fn notice(&mut self, notice: Notice) {
        self.out.push(MembershipEffect::Noticed(notice));
    }

    fn tick(&mut self) {
        let MembershipPart {
            liveness,
            heard,
            ticks,
            looks,
            ..
        } = &mut *self.part;
        let looks_at_all = liveness.looks_at_all();
        *ticks = ticks.wrapping_add(1);
        let mut reads_round_trips = ticks.is_multiple_of(ROUND_TRIP_TICKS);
        if looks_at_all {
            *looks = looks.wrapping_add(1);
            reads_round_trips = looks.is_multiple_of(ROUND_TRIP_TICKS);
            heard.retain(|node, _| liveness.watches(*node));
        }
        for node in liveness.listens_to() {
            self.hear(node);
            if reads_round_trips && let Some(round_trip) = self.signs.round_trip(node) {
                self.watch(liveness::In::RoundTrip(node, round_trip));
            }
        }
        if looks_at_all
            && !self
                .part
                .liveness
                .heard_by_others(self.now)
                .eq(self.part.unheard.iter().copied())
        {
            self.part.unheard = self.part.liveness.heard_by_others(self.now).collect();
            self.tell(coordinator::In::Unheard(self.part.unheard.clone()));
        }
        if self
            .part
            .liveness
            .next_deadline()
            .is_some_and(|deadline| deadline <= self.now)
        {
            self.watch(liveness::In::Tick);
        }
    }

    /// Probes a node's port. A refusal counts only if nothing was heard since, so what arrived
    /// before is no sign of life any more.
    fn probe_port(&mut self, node: NodeId) {
        self.part.heard.insert(node, self.signs.heard(node));
        self.out.push(MembershipEffect::PortProbe(node));
    }

    fn hear(&mut self, node: NodeId) {
        let heard = self.signs.heard(node);
        if self
            .part
            .heard
            .insert(node, heard)
            .is_some_and(|before| before != heard)
        {
            self.watch(liveness::In::Heard(node));
        }
    }

    /// Passes an event to liveness, and its verdicts to the membership.
    fn watch(&mut self, event: liveness::In) {
        let mut found = Outbox::default();
        self.part.liveness.handle(event, self.now, &mut found);
        for effect in found.take() {
            match effect {
                liveness::Effect::Datagram { to, bytes } => {
                    self.out.push(MembershipEffect::Datagram { to, bytes })
                }
                liveness::Effect::PortProbe(node) => self.probe_port(node),
                liveness::Effect::Down(node, incarnation, cause) => {
                    self.notice(Notice::Dead(node, cause));
                    self.feed(In::Down {
                        node,
                        incarnation,
                        ended: cause.has_ended(),
                    });
                }
                liveness::Effect::Up(node, _) => {
                    self.notice(Notice::Alive(node));
                    self.feed(In::Up(node));
                }
            }
        }
    }

    fn tell_suspects(&mut self) {
        let suspicions = self.part.liveness.suspicions();
        if std::mem::replace(&mut self.part.suspicions, suspicions) == suspicions {
            return;
        }
        if !self
            .part
            .liveness
            .suspected()
            .eq(self.part.suspects.iter().copied())
        {
            self.part.suspects = self.part.liveness.suspected().collect();
            self.tell(gossip_peer::In::Suspects(self.part.suspects.clone()));
        }
    }

    /// Acts on effects until there are none: a change of the watched nodes may change the set of
    /// known deaths.
    fn act_on_all(&mut self) {
        loop {
            let effects = self.effects.take();
            if effects.is_empty() {
                return;
            }
            for effect in effects {
                self.act(effect);
            }
        }
    }

    fn act(&mut self, effect: Effect) {
        match effect {
            Effect::Send { to, frame } => self.out.push(MembershipEffect::Send { to, frame }),
            Effect::Formed { view, lineage } => {
                self.tell(coordinator::In::Formed { view, lineage })
            }
            Effect::Fail(error) => {
                self.tell(ToRounds::BootstrapFailed);
                self.tell(ToAggregator::Failed(Failure::Bootstrapping(error)));
            }
            Effect::Lost {
                node,
                incarnation,
                ended,
            } => {
                self.tell(coordinator::In::Lost {
                    node,
                    incarnation,
                    ended,
                });
                self.tell(gossip_peer::In::MemberLost(node));
                self.notice(Notice::Lost(node));
            }
            Effect::Back(node) => {
                self.tell(coordinator::In::Back(node));
                self.tell(gossip_peer::In::MemberBack(node));
                self.notice(Notice::Back(node));
            }
            Effect::Joiners { epoch, members } => {
                self.tell(coordinator::In::Joiners { epoch, members })
            }
            Effect::JoinAsked(node) => self.tell(coordinator::In::JoinAsked(node)),
            Effect::Leaving {
                node,
                incarnation,
                contributes,
            } => {
                self.tell(coordinator::In::Leaving {
                    node,
                    incarnation,
                    contributes,
                });
            }
            Effect::Resign(gives_up) => {
                self.tell(coordinator::In::Resign(gives_up));
                self.notice(Notice::Rejoins);
            }
            Effect::Return { ended } => self.tell(coordinator::In::Return { ended }),
            Effect::Drained => {
                self.tell(coordinator::In::Resign(GivesUp::Membership));
                self.tell(ToAggregator::Drained);
                self.notice(Notice::Drained);
            }
            Effect::Waiting(why) => self.notice(Notice::Waiting(why)),
            Effect::StillWaits(why) => self.notice(Notice::StillWaits(why)),
            Effect::Refused { address, why } => self.notice(Notice::Refused(address, why)),
            Effect::OtherCluster {
                node,
                lineage,
                round,
            } => self.notice(Notice::OtherCluster {
                node,
                lineage,
                round,
            }),
            Effect::Connect(address) => self.out.push(MembershipEffect::Connect(address)),
            Effect::Disconnect(node) => self.out.push(MembershipEffect::Disconnect(node)),
            Effect::Watch(nodes) => self.watch(liveness::In::Members(nodes)),
            Effect::Search(on) => self.out.push(MembershipEffect::Search(on)),
            Effect::Left => self.tell(ToAggregator::Left),
        }
    }
}

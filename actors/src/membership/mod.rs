//! The membership actor: one per process. Meets the peers that discovery finds, forms the founding view, says who is dead, who is
//! ready to join, who leaves. Runs two machines: the membership, and liveness, whose signs of life it reads off the transport.

mod pulse;
mod search;

pub use search::{DISCOVERY_INTERVAL, REDIAL_PAUSE};

use crate::aggregator::AggregatorMessage;
use crate::context::{Credit, NodeContext};
use crate::coordinator::CoordinatorMessage;
use crate::error::ExchangeError;
use crate::gossip_peer::GossipPeerMessage;
use crate::ports::transport::DownReason;
use crate::status::Standing;
use crate::timer::Timer;
use pulse::Pulse;
use ractor::{Actor, ActorProcessingErr, ActorRef};
use search::Resting;
use slowmo_protocol::algorithm::Base;
use slowmo_protocol::coordinator::GivesUp;
use slowmo_protocol::ident::{Incarnation, NodeId};
use slowmo_protocol::liveness;
use slowmo_protocol::machine::{Machine, Outbox};
use slowmo_protocol::membership::{Effect, In, Membership, Settings};
use slowmo_protocol::model::ModelSize;
use slowmo_protocol::view::Member;
use slowmo_protocol::wire::{self, Header, JoinRefusal, Message};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// Messages to the membership.
pub enum MembershipMessage {
    /// The size of the model is known.
    Synchronize(ModelSize),
    /// The addresses that discovery finds by now.
    Discovered(Vec<SocketAddr>),
    /// This start of a peer can be sent to.
    PeerUp(NodeId, Incarnation),
    /// The connections to a peer are gone.
    PeerDown(NodeId, DownReason),
    /// An address was given up.
    DialFailed {
        /// The address.
        address: SocketAddr,
        /// How long it was tried.
        tried_for: Duration,
        /// The last attempt's error.
        error: String,
    },
    /// A control frame about membership.
    Frame(Header, Box<Message>, Credit),
    /// A datagram of liveness.
    Datagram(NodeId, bytes::Bytes, Credit),
    /// Nobody listens at a peer's address.
    KnockRefused(NodeId),
    /// A launcher saw a node's process end.
    Exited(NodeId),
    /// A round was decided.
    Decided(wire::Standing),
    /// Who votes without being a member.
    Retained(Vec<Member>),
    /// A round was decided whose data this node does not hold.
    Stranded,
    /// The coordinator's answer to a resignation.
    Resigned(bool),
    /// This node hands over and leaves with the next round.
    Drain,
    /// This node leaves.
    Leave,
    /// A deadline passed.
    Tick,
}

/// The shell of the membership.
pub struct MembershipActor;

/// The membership's machine, its liveness, their timer and the search for peers.
pub struct MembershipState {
    machine: Membership,
    out: Outbox<Effect>,
    pulse: Pulse,
    context: Arc<NodeContext>,
    timer: Timer,
    search: Option<tokio::task::AbortHandle>,
    resting: Arc<Resting>,
}

impl Actor for MembershipActor {
    type Msg = MembershipMessage;
    type State = MembershipState;
    type Arguments = Arc<NodeContext>;

    async fn pre_start(&self, _: ActorRef<Self::Msg>, context: Arc<NodeContext>) -> Result<MembershipState, ActorProcessingErr> {
        let machine = Membership::new(settings(&context));
        let (out, resting) = (Outbox::default(), Arc::new(Resting::default()));
        let pulse = Pulse::new(Arc::clone(&context));
        let mut state = MembershipState { machine, out, pulse, context, timer: Timer::default(), search: None, resting };
        state.search(true);
        Ok(state)
    }

    async fn handle(
        &self,
        myself: ActorRef<Self::Msg>,
        message: MembershipMessage,
        state: &mut MembershipState,
    ) -> Result<(), ActorProcessingErr> {
        state.take(message);
        state.execute();
        let deadlines = [state.machine.next_deadline(), state.pulse.next_deadline()];
        let now = state.context.clock.now();
        state.timer.arm(deadlines.into_iter().flatten().min(), now, &myself, || MembershipMessage::Tick);
        Ok(())
    }

    async fn post_stop(&self, _: ActorRef<Self::Msg>, state: &mut MembershipState) -> Result<(), ActorProcessingErr> {
        state.search(false);
        Ok(())
    }
}

impl MembershipState {
    fn take(&mut self, message: MembershipMessage) {
        match message {
            MembershipMessage::Synchronize(model) => self.feed(In::Synchronize(model)),
            MembershipMessage::Discovered(addresses) => self.feed(In::Discovered(addresses)),
            MembershipMessage::PeerUp(node, incarnation) => {
                self.pulse.feed(liveness::In::PeerUp(node, incarnation));
                self.feed(In::PeerUp(node, incarnation));
                self.context.actors.tell_coordinator(CoordinatorMessage::PeerUp(node));
            }
            MembershipMessage::PeerDown(node, reason) => {
                if reason.is_departure() {
                    self.pulse.feed(liveness::In::Gone(node));
                }
                self.feed(In::PeerDown { node, departed: reason.is_departure() });
                self.context.actors.tell_coordinator(CoordinatorMessage::PeerDown(node));
            }
            MembershipMessage::DialFailed { address, tried_for, error } => {
                self.resting.begin(address);
                self.feed(In::DialFailed { address, tried_for: NodeContext::span(tried_for), error });
            }
            MembershipMessage::Frame(header, message, _credit) => self.feed(In::Frame { header, message }),
            MembershipMessage::Datagram(from, bytes, _credit) => self.pulse.feed(liveness::In::Datagram { from, bytes: bytes.to_vec() }),
            MembershipMessage::KnockRefused(node) => self.pulse.knock_refused(node),
            MembershipMessage::Exited(node) => self.pulse.feed(liveness::In::Exited(node, None)),
            MembershipMessage::Decided(standing) => self.feed(In::Decided(standing)),
            MembershipMessage::Retained(voters) => self.feed(In::Retained(voters)),
            MembershipMessage::Stranded => self.feed(In::Stranded),
            MembershipMessage::Resigned(obeyed) => self.feed(In::Resigned(obeyed)),
            MembershipMessage::Drain => self.feed(In::Drain),
            MembershipMessage::Leave => self.feed(In::Leave),
            MembershipMessage::Tick => {
                self.timer.disarm();
                self.pulse.tick();
                self.feed(In::Tick);
            }
        }
    }

    fn feed(&mut self, event: In) {
        let now = self.context.clock.now();
        self.machine.handle(event, now, &mut self.out);
    }

    fn execute(&mut self) {
        for verdict in self.pulse.verdicts() {
            match verdict {
                pulse::Verdict::Down(node, incarnation, cause) => {
                    tracing::info!(%node, %cause, "a node is dead");
                    self.feed(In::Down { node, incarnation, ended: cause.has_ended() });
                }
                pulse::Verdict::Up(node) => {
                    tracing::info!(%node, "a node is back");
                    self.feed(In::Up(node));
                }
            }
        }
        if let Some(suspects) = self.pulse.suspects() {
            self.context.status.suspects(suspects.len());
            self.context.actors.tell_gossip_peer(GossipPeerMessage::Suspects(suspects));
        }
        if let Some(unheard) = self.pulse.unheard() {
            self.context.actors.tell_coordinator(CoordinatorMessage::Unheard(unheard));
        }
        for effect in self.out.take() {
            self.act(effect);
        }
    }

    fn act(&mut self, effect: Effect) {
        let actors = &self.context.actors;
        match effect {
            Effect::Send { to, frame } => self.context.send_frame(to, &frame),
            Effect::Formed { view, lineage } => {
                tracing::info!(nodes = view.size(), epoch = view.epoch().0, %lineage, "the founding view is formed");
                actors.tell_coordinator(CoordinatorMessage::Formed { view, lineage });
            }
            Effect::Fail(error) => {
                actors.tell_coordinator(CoordinatorMessage::FoundingFailed(error.clone()));
                actors.tell_aggregator(AggregatorMessage::Failed(ExchangeError::Founding(error)));
            }
            Effect::Lost { node, incarnation, ended } => {
                self.context.status.lives(node, false);
                actors.tell_coordinator(CoordinatorMessage::Lost { node, incarnation, ended });
                actors.tell_gossip_peer(GossipPeerMessage::MemberLost(node));
            }
            Effect::Back(node) => {
                self.context.status.lives(node, true);
                actors.tell_coordinator(CoordinatorMessage::Back(node));
                actors.tell_gossip_peer(GossipPeerMessage::MemberBack(node));
            }
            Effect::Joiners { epoch, members } => actors.tell_coordinator(CoordinatorMessage::Joiners { epoch, members }),
            Effect::Leaving { node, incarnation, contributes } => {
                if node == self.context.settings.identity.node {
                    self.context.status.standing(Standing::Leaving);
                }
                actors.tell_coordinator(CoordinatorMessage::Leaving { node, incarnation, contributes });
            }
            Effect::Resign(gives_up) => {
                tracing::warn!("the others went on without this node: it joins again");
                self.context.status.standing(Standing::Joining);
                actors.tell_coordinator(CoordinatorMessage::Resign(gives_up));
            }
            Effect::Return => actors.tell_coordinator(CoordinatorMessage::Return),
            Effect::Drained => {
                tracing::warn!("the others went on without this node, which wanted to leave: it has left");
                self.context.status.standing(Standing::Left);
                actors.tell_coordinator(CoordinatorMessage::Resign(GivesUp::Membership));
                actors.tell_aggregator(AggregatorMessage::Drained);
            }
            Effect::Waiting(why) => {
                if let Some(why) = &why {
                    tracing::info!(why, "this node is no member yet");
                }
                self.context.status.waiting_to_join(why);
            }
            Effect::OtherCluster { node, lineage, round } => {
                let found = format!("{node} belongs to another running cluster ({lineage}, {round})");
                tracing::warn!(
                    "{found}: both go on and never become one. Stop one of them, and start all nodes with min_nodes above half of them"
                );
                self.context.status.event(found);
            }
            Effect::Connect(address) => self.context.transport.connect(address, self.context.settings.connect_timeout),
            Effect::Disconnect(node) => self.context.transport.disconnect(node, "it was declared dead"),
            Effect::Watch(nodes) => self.pulse.feed(liveness::In::Members(nodes)),
            Effect::Search(on) => self.search(on),
            Effect::Left => actors.tell_aggregator(AggregatorMessage::Left),
        }
    }

    fn search(&mut self, on: bool) {
        if let Some(search) = self.search.take_if(|_| !on) {
            search.abort();
        }
        if on && self.search.is_none() {
            let (context, resting) = (Arc::clone(&self.context), Arc::clone(&self.resting));
            self.search = Some(tokio::spawn(search::search(context, resting)).abort_handle());
        }
    }
}

fn settings(context: &NodeContext) -> Settings {
    let node = &context.settings;
    Settings {
        identity: node.identity,
        address: context.transport.local().announced,
        // The configuration allows 64.
        devices: u16::try_from(node.workers).unwrap_or(u16::MAX),
        min_nodes: node.min_nodes,
        max_nodes: node.max_nodes,
        join: node.join,
        lineage: node.lineage,
        bootstrap: node.bootstrap,
        restarted: node.restarted,
        refuses: refuses(context),
        shared: node.shared.clone(),
        addresses_may_be_stale: context.discovery.may_be_stale(),
        connect_timeout: NodeContext::span(node.connect_timeout),
        synchronize_timeout: NodeContext::span(node.round_timeout),
    }
}

/// Clusters whose rounds do not bring a joiner up to date.
fn refuses(context: &NodeContext) -> Option<JoinRefusal> {
    let algorithm = &context.settings.algorithm;
    let whole = algorithm.outer.is_some_and(|outer| !outer.sharded);
    let averages = algorithm.outer.is_some() || algorithm.average_every.is_some() || matches!(algorithm.base, Base::LocalSgd { .. });
    (whole || !averages).then_some(JoinRefusal::NoParameters)
}

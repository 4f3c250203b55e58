//! The membership actor: one per process. Connects to the peers that discovery finds, forms the
//! bootstrap view, and reports which nodes are dead, ready to join or leaving. Reads signs of life
//! from the transport.

mod search;

pub use search::{DISCOVERY_INTERVAL, REDIAL_PAUSE};

use crate::context::NodeContext;
use crate::data::Buffers;
use crate::messages::Told;
use crate::ports::transport::Transport;
use crate::status::MemberState;
use crate::timer::Timer;
use ractor::{Actor, ActorProcessingErr, ActorRef};
use search::Resting;
use slowmo_protocol::algorithm::Base;
use slowmo_protocol::coordinator;
use slowmo_protocol::gossip_peer;
use slowmo_protocol::ident::NodeId;
use slowmo_protocol::liveness;
use slowmo_protocol::machine::Outbox;
use slowmo_protocol::membership::{In, Settings};
use slowmo_protocol::node::{
    Mail, MembershipEffect, MembershipPart, Notice, SignsOfLife, ToGossip, ToMembership, ToRounds,
};
use slowmo_protocol::time::Span;
use slowmo_protocol::wire::JoinRefusal;
use std::sync::Arc;

/// Actor shell of the membership.
pub struct MembershipActor;

/// The membership's part of the node, its timer, and the search for peers.
pub struct MembershipState {
    part: MembershipPart,
    context: Arc<NodeContext>,
    myself: ActorRef<Told<ToMembership>>,
    timer: Timer,
    search: Option<tokio::task::AbortHandle>,
    resting: Arc<Resting>,
}

impl Actor for MembershipActor {
    type Msg = Told<ToMembership>;
    type State = MembershipState;
    type Arguments = Arc<NodeContext>;

    async fn pre_start(
        &self,
        myself: ActorRef<Self::Msg>,
        context: Arc<NodeContext>,
    ) -> Result<MembershipState, ActorProcessingErr> {
        let part = MembershipPart::new(settings(&context), liveness_settings(&context));
        let mut state = MembershipState {
            part,
            context,
            myself,
            timer: Timer::default(),
            search: None,
            resting: Arc::default(),
        };
        state.search(true);
        Ok(state)
    }

    async fn handle(
        &self,
        _: ActorRef<Self::Msg>,
        told: Self::Msg,
        state: &mut MembershipState,
    ) -> Result<(), ActorProcessingErr> {
        let Told {
            message,
            credit: _credit,
        } = told;
        match &message {
            ToMembership::In(In::DialFailed { address, .. }) => state.resting.begin(*address),
            ToMembership::In(In::Synchronize(_)) => state.context.status.synchronizes(),
            ToMembership::In(In::Tick) => state.timer.disarm(),
            _ => {}
        }
        let mut out = Outbox::default();
        state.part.handle(
            message,
            &Signs(&*state.context.transport),
            state.context.clock.now(),
            &mut out,
        );
        for effect in out.take() {
            state.execute(effect);
        }
        let tick = || Told {
            message: ToMembership::In(In::Tick),
            credit: None,
        };
        state.timer.arm(
            state.part.next_deadline(),
            state.context.clock.now(),
            &state.myself,
            tick,
        );
        Ok(())
    }

    async fn post_stop(
        &self,
        _: ActorRef<Self::Msg>,
        state: &mut MembershipState,
    ) -> Result<(), ActorProcessingErr> {
        state.search(false);
        Ok(())
    }
}

/// Signs of life that the transport has received.
struct Signs<'a>(&'a dyn Transport);

impl SignsOfLife for Signs<'_> {
    fn heard(&self, node: NodeId) -> u64 {
        self.0.heard(node)
    }

    fn round_trip(&self, node: NodeId) -> Option<Span> {
        self.0.round_trip(node).map(NodeContext::span)
    }
}

impl MembershipState {
    fn execute(&mut self, effect: MembershipEffect<Buffers>) {
        let transport = &self.context.transport;
        match effect {
            MembershipEffect::Send { to, frame } => self.context.send_frame(to, &frame),
            MembershipEffect::Tell(mail) => {
                self.note(&mail);
                self.context.actors.tell(mail);
            }
            MembershipEffect::Datagram { to, bytes } => {
                if let Err(error) = transport.send_datagram(to, bytes.into()) {
                    tracing::trace!(%to, %error, "datagram not sent");
                }
            }
            MembershipEffect::PortProbe(node) => transport.port_probe(node),
            MembershipEffect::Connect(address) => {
                transport.connect(address, self.context.settings.connect_timeout)
            }
            MembershipEffect::Disconnect(node) => {
                transport.disconnect(node, "it was declared dead")
            }
            MembershipEffect::Search(on) => self.search(on),
            MembershipEffect::Noticed(notice) => self.show(notice),
        }
    }

    /// Logs messages to other parts, and updates the status from them.
    fn note(&self, mail: &Mail<Buffers>) {
        match mail {
            Mail::Rounds(ToRounds::In(coordinator::In::Formed { view, lineage })) => {
                tracing::info!(
                    nodes = view.size(),
                    epoch = view.epoch().0,
                    %lineage,
                    "the first view is formed"
                );
            }
            Mail::Rounds(ToRounds::In(coordinator::In::Leaving { node, .. }))
                if *node == self.context.settings.identity.node =>
            {
                self.context.status.standing(MemberState::Leaving);
            }
            Mail::Gossip(ToGossip::In(gossip_peer::In::Suspects(suspects))) => {
                self.context.status.suspects(suspects.len())
            }
            _ => {}
        }
    }

    fn show(&self, notice: Notice) {
        let status = &self.context.status;
        match notice {
            Notice::Dead(node, cause) => tracing::info!(%node, %cause, "a node is dead"),
            Notice::Alive(node) => tracing::info!(%node, "a node is back"),
            Notice::Lost(node) => status.lives(node, false),
            Notice::Back(node) => status.lives(node, true),
            Notice::Rejoins => {
                tracing::warn!("the others continued without this node: it rejoins");
                status.standing(MemberState::Joining);
            }
            Notice::Drained => {
                tracing::warn!(
                    "this node was leaving, and the others do not count on it: it has left"
                );
                status.standing(MemberState::Left);
            }
            Notice::Waiting(why) => {
                if let Some(why) = &why {
                    tracing::info!(why, "this node is not a member yet");
                }
                status.waiting_to_join(why);
            }
            Notice::StillWaits(why) => {
                tracing::warn!(why, "this node is not a member yet, and waits on");
            }
            Notice::Refused(address, why) => {
                if status.refused(address, &why) {
                    tracing::warn!(%address, why, "a node was refused");
                }
            }
            Notice::OtherCluster {
                node,
                lineage,
                round,
            } => {
                let found =
                    format!("{node} belongs to another running cluster ({lineage}, {round})");
                tracing::warn!(
                    "{found}: both continue and never merge. Stop one of them, and set min_nodes \
                     above half of all nodes"
                );
                status.event(found);
            }
        }
    }

    fn search(&mut self, on: bool) {
        if !on {
            self.search
                .take()
                .into_iter()
                .for_each(|search| search.abort());
        } else if self.search.is_none() {
            let searching = search::search(
                Arc::clone(&self.context),
                Arc::clone(&self.resting),
                self.myself.clone(),
            );
            self.search = Some(tokio::spawn(searching).abort_handle());
        }
    }
}

fn liveness_settings(context: &NodeContext) -> liveness::Settings {
    let node = &context.settings;
    let probe_interval = NodeContext::span(node.probe_interval);
    let suspect = NodeContext::span(node.suspect);
    liveness::Settings {
        probe_interval,
        suspect,
        ..liveness::Settings::new(node.identity)
    }
}

fn settings(context: &NodeContext) -> Settings {
    let node = &context.settings;
    Settings {
        identity: node.identity,
        address: context.transport.local().announced,
        // The configuration allows at most 64 workers.
        devices: u16::try_from(node.workers).unwrap_or(u16::MAX),
        group: node.group,
        key: context.signer.public_key(),
        min_nodes: node.min_nodes,
        max_nodes: node.max_nodes,
        join: node.join,
        lineage: node.lineage,
        bootstrap: node.bootstrap,
        restarted: node.restarted,
        refuses: refuses(context),
        shared: node.shared.clone(),
        addresses_may_be_stale: context.discovery.may_be_stale(),
        meet_timeout: NodeContext::span(node.meet_timeout),
        rejoin_timeout: NodeContext::span(node.rejoin_timeout),
        synchronize_timeout: NodeContext::span(node.round_timeout),
    }
}

/// Reason for refusing joiners, if the cluster's rounds do not bring a joiner up to date.
fn refuses(context: &NodeContext) -> Option<JoinRefusal> {
    let algorithm = &context.settings.algorithm;
    let whole = algorithm.outer.is_some_and(|outer| !outer.sharded);
    let averages = algorithm.outer.is_some()
        || algorithm.average_every.is_some()
        || matches!(algorithm.base, Base::LocalSgd { .. });
    (whole || !averages).then_some(JoinRefusal::NoParameters)
}

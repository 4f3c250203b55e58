//! Settings of real nodes that make them run a simulated configuration.

use crate::sim::config::Config as Simulated;
use slowmo::Config;
use slowmo::{BaseName, OuterName};
use slowmo_protocol::algorithm::{Base, Gossip, OuterOptimizer};
use slowmo_protocol::ident::NodeId;
use slowmo_protocol::policy::JoinerBuffers;
use slowmo_protocol::time::Span;

/// The configuration of one start of a node. A node that does not bootstrap only joins.
pub fn node(simulated: &Simulated, id: NodeId, founds: bool) -> Config {
    let algorithm = simulated.algorithm;
    let (base, gossip, frequency) = match algorithm.base {
        Base::LocalSgd { frequency } => (BaseName::LocalSgd, None, frequency),
        Base::Sgp(gossip) => (BaseName::Sgp, Some(gossip), 1),
        Base::AllReduce => (BaseName::AllReduce, None, 1),
        Base::None => (BaseName::None, None, 1),
    };
    let waits = simulated.waits;
    let mut config = Config {
        node_id: Some(id.0),
        min_nodes: simulated.min_nodes,
        join: !founds,
        base,
        frequency,
        average_every: algorithm.average_every,
        buffers: algorithm.buffers,
        replicas: simulated.replicas,
        quorum: simulated.quorum,
        joiner_buffers: if simulated.buffers > 0 {
            JoinerBuffers::Copy
        } else {
            JoinerBuffers::Reset
        },
        grace_ms: milliseconds(waits.grace),
        probe_interval_ms: milliseconds(waits.probe),
        suspect_ms: milliseconds(waits.suspect),
        connect_timeout_ms: milliseconds(waits.connect),
        round_timeout_ms: milliseconds(waits.round),
        idle_timeout_ms: milliseconds(waits.idle),
        keep_alive_ms: (milliseconds(waits.idle) / 4).max(1),
        drain_on_sigterm: false,
        runtime_threads: 1,
        ..Config::default()
    };
    if let Some(outer) = algorithm.outer {
        config.tau = outer.frequency;
        config.sharded = outer.sharded;
        config.no_average = !outer.average;
        if let OuterOptimizer::SlowMo { alpha, beta } = outer.optimizer {
            config.outer = OuterName::SlowMo;
            config.alpha = alpha;
            config.beta = beta;
        }
    }
    if let Some(Gossip {
        peers_per_step,
        staleness,
        topology,
        late_peers,
        wire,
    }) = gossip
    {
        config.peers_per_step = peers_per_step;
        config.staleness = staleness;
        config.topology = topology;
        config.late_peers = late_peers;
        config.gossip_wire = wire;
    }
    config
}

fn milliseconds(span: Span) -> u64 {
    span.as_millis().max(1)
}

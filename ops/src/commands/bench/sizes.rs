//! Size of a measurement, and the bytes that the algorithm must move for it.

use anyhow::ensure;
use clap::Args;
use serde::Serialize;
use slowmo::WireType;
use slowmo_ops::processes::{Host, NODES_MAX};

/// Replicas of each shard's momentum, `R`, as the runtime keeps them by default.
pub const REPLICAS: u16 = 1;
/// Largest model of a measurement, in MiB.
const MODEL_MIB_MAX: i64 = 16 * 1024;

/// Nodes and model size of a measurement.
#[derive(Clone, Debug, Args, Serialize)]
pub struct Sizes {
    /// Node processes, `W`.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 4,
        conflicts_with = "hosts",
        value_parser = clap::value_parser!(u16).range(1..=NODES_MAX as i64)
    )]
    pub nodes: u16,
    /// Model size in MiB (float32 values).
    #[arg(
        long,
        value_name = "MIB",
        default_value_t = 64,
        value_parser = clap::value_parser!(u32).range(1..=MODEL_MIB_MAX)
    )]
    #[serde(rename = "model_mib")]
    pub mib: u32,
    /// Network namespaces in which the nodes run, and their addresses there: `bl0=10.210.0.1,…`,
    /// one for each node. Needs root. Without them, the nodes talk over loopback.
    #[arg(long, value_name = "NAMESPACE=ADDRESS", value_delimiter = ',')]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub hosts: Vec<Host>,
    /// Groups that the nodes are in (key group), in the order of the nodes, of equal size.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1,
        value_parser = clap::value_parser!(u16).range(1..=NODES_MAX as i64)
    )]
    pub groups: u16,
}

impl Sizes {
    /// Size of the model in bytes.
    pub fn model_bytes(&self) -> u64 {
        u64::from(self.mib) << 20
    }

    /// Number of float32 values of the model.
    pub fn parameters(&self) -> usize {
        (self.model_bytes() / 4) as usize
    }

    /// Bytes that each node sends in an exact average: `2(W−1)/W` of the model, as a mean over the
    /// nodes also where they are in several groups.
    pub fn average_bytes(&self) -> f64 {
        let nodes = f64::from(self.nodes);
        2.0 * (nodes - 1.0) / nodes * self.model_bytes() as f64
    }

    /// Bytes that each node sends in an outer round: those of an exact average, and `R/W` of the
    /// model for the momentum's replicas.
    pub fn outer_round_bytes(&self) -> f64 {
        let replicas = f64::from(REPLICAS.min(self.nodes - 1));
        self.average_bytes() + replicas / f64::from(self.nodes) * self.model_bytes() as f64
    }

    /// Bytes that each node sends in one gossip with one peer.
    pub fn gossip_bytes(&self) -> f64 {
        if self.nodes > 1 {
            self.model_bytes() as f64
        } else {
            0.0
        }
    }

    /// Size of the model in a wire type, relative to float32.
    pub fn encoded_share(&self, wire: &str) -> f64 {
        let wire = match wire {
            "bf16" => WireType::BFloat16,
            "int8" => WireType::Int8,
            _ => WireType::Float32,
        };
        wire.encoded_bytes(self.parameters()) as f64 / self.model_bytes() as f64
    }

    /// The link between the nodes, for people.
    pub fn link(&self) -> String {
        match self.hosts.as_slice() {
            [] => "loopback".to_owned(),
            [only] => only.namespace.clone(),
            [first, .., last] => format!("{} to {}", first.namespace, last.namespace),
        }
    }

    /// Nodes, link and model, for the head of a table.
    pub fn title(&self) -> String {
        let groups = match self.groups {
            1 => String::new(),
            groups => format!(" in {groups} groups"),
        };
        format!(
            "{} nodes{groups} over {}, {} MiB",
            self.nodes,
            self.link(),
            self.mib
        )
    }

    /// Counts the hosts, and checks that the machine has enough memory; each node needs a few
    /// copies of the model.
    pub fn check(&mut self) -> anyhow::Result<()> {
        if !self.hosts.is_empty() {
            let hosts = self.hosts.len();
            ensure!(
                hosts <= NODES_MAX,
                "{hosts} hosts: one machine runs at most {NODES_MAX} nodes"
            );
            self.nodes = u16::try_from(hosts)?;
        }
        ensure!(
            self.groups <= self.nodes,
            "{} groups of {} nodes: each group needs a node",
            self.groups,
            self.nodes
        );
        let needed = self.model_bytes() * u64::from(self.nodes);
        ensure!(
            needed <= 64 << 30,
            "{} nodes of {} MiB: keep the product below 64 GiB",
            self.nodes,
            self.mib
        );
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_a_round_follow_the_formula() {
        let sizes = |nodes| Sizes {
            nodes,
            mib: 64,
            hosts: Vec::new(),
            groups: 1,
        };
        let model = f64::from(64 << 20);
        for (nodes, average, outer, gossip) in
            [(1, 0.0, 0.0, 0.0), (2, 1.0, 1.5, 1.0), (4, 1.5, 1.75, 1.0)]
        {
            let sizes = sizes(nodes);
            assert!(
                (sizes.average_bytes() - average * model).abs() < 1.0,
                "{nodes}"
            );
            assert!(
                (sizes.outer_round_bytes() - outer * model).abs() < 1.0,
                "{nodes}"
            );
            assert!(
                (sizes.gossip_bytes() - gossip * model).abs() < 1.0,
                "{nodes}"
            );
        }
    }
}

//! The memory that a node takes beside the program's own tensors: what for, and how much at most.
//! `docs/memory.md` has the table; `runtime/tests/memory.rs` compares the line in the log with real
//! nodes. Pure.

use crate::transport::quic::CONNECTION_WINDOW_BYTES;
use slowmo_protocol::algorithm::{Algorithm, Base, BufferStrategy, WireType};
use slowmo_protocol::policy::JoinerBuffers;
use std::fmt;

const VALUE_BYTES: u64 = size_of::<f32>() as u64;
const MIB: u64 = 1 << 20;

/// The facts that the memory of a node depends on.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    /// Values of the parameters.
    pub parameters: usize,
    /// Those of them that are not float32.
    pub halves: usize,
    /// Values of the model's buffers.
    pub model_buffers: usize,
    /// Values of the base optimizer's buffers.
    pub optimizer: usize,
    /// Members of the view, `W`.
    pub nodes: usize,
    /// Workers of the node, `g`.
    pub workers: usize,
    /// Copies of each shard besides its owner's, `R`.
    pub replicas: usize,
    /// Whether the node is in a named group.
    pub grouped: bool,
    /// The algorithm.
    pub algorithm: &'a Algorithm,
    /// The buffers that a joiner's optimizer gets.
    pub joiner_buffers: JoinerBuffers,
    /// Whether the node writes checkpoints.
    pub checkpoints: bool,
}

/// Threads, connections, code, and what the allocator does not give back, in bytes.
const RUNTIME_BYTES: u64 = 48 << 20;

/// A node's memory by what it is for, in bytes; parts that take nothing are left out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Budget {
    parts: Vec<Part>,
}

/// A purpose of memory, and its bytes.
type Part = (&'static str, u64);

impl Budget {
    /// The most that a node takes at once, at the end of an outer round or in a gossip.
    #[must_use]
    pub fn of(facts: &Facts<'_>) -> Self {
        let model = bytes(facts.parameters);
        let mut parts = facts.state();
        let round = facts.round();
        let gossip = facts.gossip();
        let sum = |parts: &[Part]| parts.iter().map(|(_, bytes)| bytes).sum::<u64>();
        // A round and a gossip are never under way at once.
        parts.extend(if sum(&gossip) > sum(&round) {
            gossip
        } else {
            round
        });
        parts.extend(facts.copies());
        if facts.workers > 1 {
            let slots = facts.workers as u64 + 1;
            parts.push(("gradients of several workers", slots * model));
        }
        parts.push(("what arrived and is not read", facts.unread()));
        parts.push(("the runtime itself", RUNTIME_BYTES));
        parts.retain(|(_, bytes)| *bytes > 0);
        Self { parts }
    }

    /// All parts together.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.parts.iter().map(|(_, bytes)| bytes).sum()
    }
}

fn bytes(values: usize) -> u64 {
    values as u64 * VALUE_BYTES
}

impl Facts<'_> {
    fn model(&self) -> u64 {
        bytes(self.parameters)
    }

    fn averages_optimizer(&self) -> bool {
        self.algorithm.buffers == BufferStrategy::Average
    }

    /// The values that are averaged in a round.
    fn travels(&self) -> u64 {
        let optimizer = if self.averages_optimizer() {
            bytes(self.optimizer)
        } else {
            0
        };
        self.model() + bytes(self.model_buffers) + optimizer
    }

    /// The part of the model whose state this node holds.
    fn held(&self) -> u64 {
        let copies = self.replicas as u64 + 1;
        let nodes = self.nodes.max(1) as u64;
        self.model() * copies.min(nodes) / nodes
    }

    /// Lists the memory that is kept from one round to the next.
    fn state(&self) -> Vec<Part> {
        let mut parts = Vec::new();
        if let Some(outer) = self.algorithm.outer {
            let held = if outer.sharded {
                self.held()
            } else {
                self.model()
            };
            parts.push(("anchors", held));
            parts.push(("slow momentum", held));
        }
        if self.algorithm.round_wire != WireType::Float32 {
            // The values that the last round decided, and what rounding left of them.
            parts.push(("reference and residual of round_wire", 2 * self.model()));
        }
        parts.push((
            "the float32 values of 16-bit parameters",
            self.float32_values(),
        ));
        parts
    }

    /// Counts the bytes of the last round's values that are kept to give back what rounding took
    /// from parameters that are not float32. Values that are kept anyway, as anchors or as the
    /// reference, do not count.
    fn float32_values(&self) -> u64 {
        let all = bytes(self.halves);
        let outer = self.algorithm.outer;
        if self.algorithm.round_wire != WireType::Float32 {
            0
        } else if outer.is_some_and(|outer| outer.sharded) {
            let copies = self.replicas as u64 + 1;
            let nodes = self.nodes.max(1) as u64;
            all - all * copies.min(nodes) / nodes
        } else {
            all
        }
    }

    /// Lists the memory that a round takes besides.
    fn round(&self) -> Vec<Part> {
        let mut parts = vec![
            ("the contribution", self.travels()),
            ("the values of a round", self.travels()),
        ];
        match self.algorithm.outer {
            Some(outer) if outer.sharded => parts.push(("the next slow momentum", self.held())),
            Some(_) => parts.push(("the result of the slow step", self.travels())),
            None => {}
        }
        if self.algorithm.round_wire != WireType::Float32 {
            parts.push(("the next residual", self.model()));
            if self.grouped && self.nodes > 1 {
                // The largest case: this node alone is a group, and sums for all other owners.
                let nodes = self.nodes as u64;
                let of_others = self.model() * (nodes - 1) / nodes;
                parts.push(("the residual of sums", of_others));
            }
        }
        if matches!(self.algorithm.base, Base::Sgp(_)) && self.nodes > 1 {
            parts.push(("the numerators", self.model()));
        }
        parts
    }

    /// Lists the memory that gossip takes: the numerators and the model from before a step; for
    /// each step that may be late a message that was sent, and one of each peer.
    fn gossip(&self) -> Vec<Part> {
        let Base::Sgp(gossip) = self.algorithm.base else {
            return Vec::new();
        };
        if self.nodes < 2 {
            return Vec::new();
        }
        let peers = u64::from(gossip.peers_per_step).min(self.nodes as u64 - 1);
        let steps = 1 + u64::from(gossip.staleness);
        let mut parts = vec![
            ("the numerators, now and before", 2 * self.model()),
            ("messages", steps * (1 + peers) * self.model()),
        ];
        if gossip.wire != WireType::Float32 {
            parts.push(("the residual of gossip_wire", self.model()));
        }
        parts
    }

    /// Lists the copies for joiners and for checkpoints.
    fn copies(&self) -> Vec<Part> {
        let mut parts = Vec::new();
        let copied = self.joiner_buffers == JoinerBuffers::Copy || self.checkpoints;
        let optimizer = if copied && !self.averages_optimizer() {
            bytes(self.optimizer)
        } else {
            0
        };
        parts.push(("a copy of the optimizer's state", optimizer));
        if self.checkpoints {
            let held = self.algorithm.outer.map_or(0, |_| self.held());
            let written = self.travels() + held + optimizer;
            parts.push(("a checkpoint that is written", written));
        }
        parts
    }

    /// Most bytes of a round that may wait in the connections: a contribution to each of this
    /// node's shards, and the values of each other shard.
    fn unread(&self) -> u64 {
        let nodes = self.nodes.max(1) as u64;
        let of_each = (2 * self.travels() / nodes).min(u64::from(CONNECTION_WINDOW_BYTES));
        (nodes - 1) * of_each
    }
}

impl fmt::Display for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mebibytes = |bytes: u64| bytes.div_ceil(MIB);
        write!(f, "{} MiB (", mebibytes(self.bytes()))?;
        for (index, (what, bytes)) in self.parts.iter().enumerate() {
            let comma = if index > 0 { ", " } else { "" };
            write!(f, "{comma}{what} {}", mebibytes(*bytes))?;
        }
        write!(f, ")")
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::Config;

    const VALUES: usize = 200 << 18;

    fn budget(config: &Config, nodes: usize, optimizer: usize) -> Budget {
        Budget::of(&Facts {
            parameters: VALUES,
            halves: 0,
            model_buffers: 0,
            optimizer,
            nodes,
            workers: usize::from(config.devices),
            replicas: config.replicas,
            grouped: config.group.is_some(),
            algorithm: &config.algorithm().unwrap(),
            joiner_buffers: config.joiner_buffers,
            checkpoints: config.checkpoint_every.is_some(),
        })
    }

    /// The example in `docs/memory.md`, which has line breaks.
    #[test]
    fn the_line_in_the_documentation_is_that_of_two_nodes_with_200_mib() {
        let line = budget(&Config::default(), 2, 0).to_string();
        let page = include_str!("../../docs/memory.md").replace('\n', " ");
        assert!(page.contains(&format!("at most about {line};")), "{line}");
    }

    /// Rows of the table in `docs/memory.md`, in models of 200 MiB.
    #[test]
    fn the_table_by_hand() {
        let models = |config: &Config, nodes, optimizer| {
            let budget = budget(config, nodes, optimizer * VALUES);
            let rest = ["what arrived and is not read", "the runtime itself"];
            let counted = budget.parts.iter().filter(|(what, _)| !rest.contains(what));
            counted.map(|(_, bytes)| bytes).sum::<u64>() as f64 / bytes(VALUES) as f64
        };
        let with = |key: &str, value: &str| Config::default().with(key, value).unwrap();
        let default = Config::default();
        let off = Config {
            beta: 0.0,
            ..Config::default()
        };
        let gossip = |staleness: &str, peers: &str| {
            let gossip = off.clone().with("base", "sgp").unwrap();
            let gossip = gossip.with("staleness", staleness).unwrap();
            gossip.with("peers_per_step", peers).unwrap()
        };
        let kept = Config {
            checkpoint_every: Some(1),
            ..Config::default()
        };
        for (config, nodes, optimizer, expected) in [
            (&default, 1, 0, 5.0),
            (&default, 2, 0, 5.0),
            (&default, 8, 0, 2.0 + 3.0 / 4.0),
            (&with("replicas", "0"), 8, 0, 2.0 + 3.0 / 8.0),
            (&default, 2, 2, 7.0),
            (&with("joiner_buffers", "reset"), 2, 2, 5.0),
            (&with("buffers", "average"), 2, 2, 9.0),
            (&off, 2, 0, 2.0),
            (&with("sharded", "false"), 8, 0, 5.0),
            (&with("round_wire", "int8"), 2, 0, 8.0),
            (&gossip("0", "1"), 2, 0, 4.0),
            (&gossip("1", "1"), 2, 0, 6.0),
            (&gossip("1", "3"), 2, 0, 6.0),
            (&gossip("1", "3"), 8, 0, 10.0),
            (&kept, 2, 2, 5.0 + 2.0 + 4.0),
            (&with("devices", "4"), 2, 0, 10.0),
        ] {
            let found = models(config, nodes, optimizer);
            assert!(
                (found - expected).abs() < 1e-6,
                "{found}, not {expected}: {config:?}"
            );
        }
        let of_halves = |config: &Config, nodes| {
            let algorithm = &config.algorithm().unwrap();
            let parts = Facts {
                parameters: VALUES,
                halves: VALUES,
                model_buffers: 0,
                optimizer: 0,
                nodes,
                workers: 1,
                replicas: config.replicas,
                grouped: false,
                algorithm,
                joiner_buffers: config.joiner_buffers,
                checkpoints: false,
            }
            .state();
            parts.iter().map(|(_, bytes)| bytes).sum::<u64>() as f64 / bytes(VALUES) as f64
        };
        assert_eq!(of_halves(&default, 2), 2.0);
        assert_eq!(of_halves(&default, 8), 2.0 / 4.0 + 3.0 / 4.0);
        assert_eq!(of_halves(&off, 2), 1.0);
        assert_eq!(of_halves(&with("sharded", "false"), 2), 3.0);
        assert_eq!(of_halves(&with("round_wire", "bf16"), 2), 4.0);
        let in_group = with("round_wire", "bf16").with("group", "rack-7").unwrap();
        let of_sums = budget(&in_group, 4, 0).parts;
        assert!(of_sums.contains(&("the residual of sums", 150 << 20)));
        let unread = |nodes| budget(&default, nodes, 0).parts;
        assert!(unread(1).iter().all(|(what, _)| !what.contains("arrived")));
        let three = unread(3);
        assert!(three.contains(&("what arrived and is not read", 96 << 20)));
    }
}

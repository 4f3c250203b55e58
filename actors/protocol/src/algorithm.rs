//! The user's settings: the base algorithm, the outer optimizer and their frequencies, checked
//! once.

use serde::{Deserialize, Serialize};

/// Base algorithm: runs between the outer rounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Base {
    /// An exact average every `frequency` inner steps.
    LocalSgd {
        /// `f`, inner steps from one exact average to the next.
        frequency: u64,
    },
    /// One push-sum gossip after every inner step.
    Sgp(Gossip),
    /// The exact mean of the gradients over all nodes at every step, as DDP does (the reference).
    AllReduce,
    /// No base exchange: outer rounds only, as in DiLoCo.
    None,
}

/// Upper bound of [`Gossip::staleness`], in inner steps; a sent message is kept until it is mixed.
pub const STALENESS_MAX: u32 = 64;

/// Settings of SGP's gossip ([`crate::gossip_peer`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gossip {
    /// `p`, number of out-peers of one gossip.
    pub peers_per_step: u32,
    /// Inner steps that a message may be late before a node waits for it. 0 is synchronous: a step
    /// ends when the messages sent in it are mixed.
    pub staleness: u32,
    /// The gossip graph.
    pub topology: TopologyName,
    /// Handling of a peer whose message is later than `staleness`.
    pub late_peers: LatePeers,
    /// Encoding of the values on the wire.
    pub wire: WireType,
}

impl Default for Gossip {
    /// One peer a step over the directed exponential graph, with staleness 1, as float32.
    fn default() -> Self {
        Self {
            peers_per_step: 1,
            staleness: 1,
            topology: TopologyName::Exponential,
            late_peers: LatePeers::Wait,
            wire: WireType::Float32,
        }
    }
}

impl Gossip {
    /// Synchronous gossip with `peers_per_step` out-peers.
    #[must_use]
    pub fn synchronous(peers_per_step: u32) -> Self {
        Self {
            peers_per_step,
            staleness: 0,
            ..Self::default()
        }
    }
}

/// Gossip graphs by name; they are implemented in [`crate::topology`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum TopologyName {
    /// Directed exponential: hops 1, 2, 4, … for one peer a step.
    #[default]
    Exponential,
    /// Each member always sends to the next `p` members.
    Ring,
    /// Exponential between the members of even and of odd rank: every exchange goes both ways.
    BipartiteExponential,
    /// Every member sends to all others.
    Complete,
    /// Directed exponential, over an order of the members in which few turns wait for slow links.
    BandwidthAware,
}

/// Handling of a peer whose message is later than the staleness bound.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum LatePeers {
    /// Wait for the message, at most for the grace period; then go on without that peer until it is
    /// in time again.
    #[default]
    Wait,
    /// Go on without that peer at once, until it is in time again.
    Skip,
}

/// Wire encoding of float32 values: unchanged, or rounded to fewer bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum WireType {
    /// Unchanged, 4 bytes each.
    #[default]
    Float32,
    /// Rounded to bfloat16, 2 bytes each.
    BFloat16,
    /// Rounded to 255 steps of a scale per block of 256 values: 1 byte per value and 4 per block.
    Int8,
}

impl WireType {
    /// The configuration's word for it.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Float32 => "f32",
            Self::BFloat16 => "bf16",
            Self::Int8 => "int8",
        }
    }
}

/// The outer optimizer of the slow step; formulas in [`crate::outer`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum OuterOptimizer {
    /// SlowMo (arXiv 1910.00643): `u ← βu + (o − x̄)/γ; o ← o − αγu`.
    SlowMo {
        /// `α`, slow learning rate.
        alpha: f32,
        /// `β`, slow momentum.
        beta: f32,
    },
    /// DiLoCo's Nesterov (arXiv 2311.08105): `v ← μv + Δ; x ← o − η(Δ + μv)`.
    Nesterov {
        /// `η`, outer learning rate.
        eta: f32,
        /// `μ`, outer momentum.
        mu: f32,
    },
    /// Blockwise model update filtering with Nesterov momentum: `v ← μv + ηΔ; x ← o − v − μv`.
    BmufNbm {
        /// `η`, block learning rate.
        eta: f32,
        /// `μ`, block momentum.
        mu: f32,
    },
}

/// The outer rounds: frequency, optimizer, and whether their state is sharded.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Outer {
    /// `τ`, inner steps of an outer round.
    pub frequency: u64,
    /// The optimizer of the slow step.
    pub optimizer: OuterOptimizer,
    /// Whether anchor and momentum are sharded over the nodes. `false` keeps them whole on every
    /// node (compatibility).
    pub sharded: bool,
    /// Whether the slow step of SGP averages exactly first. `false` is the paper's
    /// SGP-SlowMo-noaverage (unsharded).
    pub average: bool,
}

/// Handling of the base optimizer's buffers at a round boundary.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum BufferStrategy {
    /// Leave them unchanged.
    #[default]
    Maintain,
    /// Set them to zero.
    Reset,
    /// Average them exactly over the contributors, in the same round as the parameters.
    Average,
}

impl BufferStrategy {
    /// Whether nodes have different buffers after a round, be it one with the slow step or a plain
    /// average. Otherwise all have the same, and a joiner needs no copy of another node's.
    #[must_use]
    pub fn leaves_own(self, slow_step: bool) -> bool {
        self == Self::Maintain || !slow_step
    }
}

/// A complete training algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Algorithm {
    /// The algorithm that runs between outer rounds.
    pub base: Base,
    /// The outer rounds; `None` when SlowMo is off (`α = 1` and `β = 0`).
    pub outer: Option<Outer>,
    /// Inner steps between additional exact averages without momentum, with any base; `None` is
    /// off.
    pub average_every: Option<u64>,
    /// Handling of the base optimizer's buffers in a round.
    pub buffers: BufferStrategy,
    /// Encoding of parameters in rounds. The bootstrap round, transfers to joiners, slow momentum,
    /// buffers and gradients are always float32.
    pub round_wire: WireType,
}

/// A setting outside its range. Nothing was started.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum AlgorithmError {
    /// `τ = 0`.
    #[error(
        "tau = 0: an outer round needs at least one inner step; set tau to 1 or more (default 48)"
    )]
    TauZero,
    /// `f = 0`.
    #[error(
        "frequency = 0: LocalSGD averages every `frequency` steps; set it to 1 or more (default 3)"
    )]
    FrequencyZero,
    /// `average_every = 0`.
    #[error("average_every = 0: leave it out to switch it off, or set it to 1 or more")]
    AverageEveryZero,
    /// `p = 0`.
    #[error("peers_per_step = 0: SGP sends to at least one peer; set it to 1 or more (default 1)")]
    PeersZero,
    /// `staleness` above its bound.
    #[error(
        "staleness = {0}: a message may be at most {STALENESS_MAX} steps late; set staleness to 0 \
         (synchronous) … {STALENESS_MAX}"
    )]
    Staleness(u32),
    /// `late_peers = "skip"` with synchronous gossip.
    #[error(
        "late_peers = \"skip\" skips every message that has not arrived, and with staleness = 0 \
         none has: set staleness to 1 or more"
    )]
    SynchronousSkips,
    /// `topology = "bandwidth"` without exact averages.
    #[error(
        "topology = \"bandwidth\": exact averages decide the order of the nodes, and there are \
         none: set average_every, SlowMo or another topology"
    )]
    OrderNeedsAverages,
    /// `no_average` with overlapped gossip.
    #[error(
        "no_average takes the slow step on the result of the same step's gossip: set staleness = 0"
    )]
    NoAverageIsSynchronous,
    /// `β` or `μ` outside `[0, 1)`.
    #[error("{name} = {value}: a momentum must lie in [0, 1)")]
    Momentum {
        /// Name of the setting.
        name: &'static str,
        /// The value given.
        value: f32,
    },
    /// `α` or `η` not a positive finite number.
    #[error("{name} = {value}: an outer learning rate must be finite and above 0")]
    Rate {
        /// Name of the setting.
        name: &'static str,
        /// The value given.
        value: f32,
    },
    /// `no_average` with another base.
    #[error(
        "no_average works with base = \"sgp\" only: the other bases average exactly by definition; \
         remove no_average"
    )]
    NoAverageNeedsSgp,
    /// Buffers reset or averaged without slow steps.
    #[error(
        "buffers = \"reset\" or \"average\" acts at slow steps, and SlowMo is off (alpha = 1, beta \
         = 0): set buffers = \"maintain\""
    )]
    BuffersNeedOuterRounds,
    /// Buffers averaged without exact averages.
    #[error(
        "buffers = \"average\" needs slow steps that average, and no_average is set: set buffers \
         = \"maintain\" or \"reset\""
    )]
    BuffersNeedAverage,
    /// `no_average` with sharded state.
    #[error(
        "no_average keeps momentum on each node's own parameters and cannot be sharded: set \
         sharded = false"
    )]
    NoAverageIsUnsharded,
}

impl OuterOptimizer {
    /// Whether this is the identity on the exact average: SlowMo with `α = 1` and `β = 0`.
    #[must_use]
    pub fn is_off(&self) -> bool {
        matches!(self, Self::SlowMo { alpha, beta } if *alpha == 1.0 && *beta == 0.0)
    }

    /// Whether the slow step divides by the inner learning rate, so that `γ` must be finite and not
    /// 0.
    #[must_use]
    pub fn needs_gamma(&self) -> bool {
        matches!(self, Self::SlowMo { .. })
    }

    fn check(&self) -> Result<(), AlgorithmError> {
        let (rate, momentum) = match *self {
            Self::SlowMo { alpha, beta } => (("alpha", alpha), ("beta", beta)),
            Self::Nesterov { eta, mu } | Self::BmufNbm { eta, mu } => (("eta", eta), ("mu", mu)),
        };
        if !(rate.1.is_finite() && rate.1 > 0.0) {
            return Err(AlgorithmError::Rate {
                name: rate.0,
                value: rate.1,
            });
        }
        if !(0.0..1.0).contains(&momentum.1) {
            return Err(AlgorithmError::Momentum {
                name: momentum.0,
                value: momentum.1,
            });
        }
        Ok(())
    }
}

impl Algorithm {
    /// Whether the gossip graph uses an order of the members by measured rates.
    #[must_use]
    pub fn orders_by_rate(&self) -> bool {
        matches!(
            self.base,
            Base::Sgp(Gossip {
                topology: TopologyName::BandwidthAware,
                ..
            })
        )
    }

    /// Checks every value; an algorithm that passes never fails in the schedule.
    ///
    /// # Errors
    /// The first value out of its range.
    pub fn check(&self) -> Result<(), AlgorithmError> {
        match self.base {
            Base::LocalSgd { frequency: 0 } => return Err(AlgorithmError::FrequencyZero),
            Base::Sgp(Gossip {
                peers_per_step: 0, ..
            }) => return Err(AlgorithmError::PeersZero),
            Base::Sgp(Gossip { staleness, .. }) if staleness > STALENESS_MAX => {
                return Err(AlgorithmError::Staleness(staleness));
            }
            Base::Sgp(Gossip {
                staleness: 0,
                late_peers: LatePeers::Skip,
                ..
            }) => return Err(AlgorithmError::SynchronousSkips),
            _ => {}
        }
        if self.average_every == Some(0) {
            return Err(AlgorithmError::AverageEveryZero);
        }
        let averages =
            self.average_every.is_some() || self.outer.is_some_and(|outer| outer.average);
        if self.orders_by_rate() && !averages {
            return Err(AlgorithmError::OrderNeedsAverages);
        }
        let Some(outer) = &self.outer else {
            return if self.buffers == BufferStrategy::Maintain {
                Ok(())
            } else {
                Err(AlgorithmError::BuffersNeedOuterRounds)
            };
        };
        if outer.frequency == 0 {
            return Err(AlgorithmError::TauZero);
        }
        outer.optimizer.check()?;
        match self.base {
            _ if outer.average => {}
            Base::Sgp(gossip) if gossip.staleness > 0 => {
                return Err(AlgorithmError::NoAverageIsSynchronous);
            }
            Base::Sgp(_) => {}
            _ => return Err(AlgorithmError::NoAverageNeedsSgp),
        }
        if !outer.average && outer.sharded {
            return Err(AlgorithmError::NoAverageIsUnsharded);
        }
        if !outer.average && self.buffers == BufferStrategy::Average {
            return Err(AlgorithmError::BuffersNeedAverage);
        }
        Ok(())
    }
}

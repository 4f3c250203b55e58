//! The compared algorithms, as settings of the runtime and as rules for the oracle.

use slowmo::Config;
use slowmo::ConfigError;

/// Communication of the replicas between two outer rounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Base {
    /// The exact mean of all gradients, every step.
    AllReduce,
    /// The exact mean of the parameters every `frequency` inner steps.
    LocalSgd {
        /// Inner steps between two means, f.
        frequency: u64,
    },
    /// Push-sum gossip with one peer every step.
    Sgp {
        /// Steps by which a message may be late: 0 is synchronous; from 1 on, it travels during the
        /// computation of the next step.
        staleness: u64,
    },
}

/// Wire type of values between nodes: gossip messages, and the parameters of rounds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Wire {
    /// 4 bytes per value, unchanged.
    #[default]
    Float32,
    /// 2 bytes per value.
    BFloat16,
    /// 1 byte per value, and one scale per block of 256.
    Int8,
}

impl Wire {
    /// Spelling of the wire type in the runtime's configuration.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Float32 => "f32",
            Self::BFloat16 => "bf16",
            Self::Int8 => "int8",
        }
    }
}

/// The outer optimizer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SlowMo {
    /// Inner steps per outer round, τ.
    pub tau: u64,
    /// Slow learning rate, α.
    pub alpha: f32,
    /// Slow momentum, β.
    pub beta: f32,
}

/// A base algorithm, with SlowMo or without.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Method {
    /// Name of this method in tables and plots.
    pub name: &'static str,
    /// Algorithm between outer rounds.
    pub base: Base,
    /// The outer rounds, if any.
    pub slow: Option<SlowMo>,
    /// Wire type of values.
    pub wire: Wire,
}

const fn method(name: &'static str, base: Base, tau: Option<u64>) -> Method {
    let slow = match tau {
        Some(tau) => Some(SlowMo {
            tau,
            alpha: 1.0,
            beta: 0.5,
        }),
        None => None,
    };
    Method {
        name,
        base,
        slow,
        wire: Wire::Float32,
    }
}

const fn encoded(name: &'static str, base: Base, wire: Wire) -> Method {
    Method {
        wire,
        ..method(name, base, Some(12))
    }
}

const LOCAL: Base = Base::LocalSgd { frequency: 12 };
const SGP: Base = Base::Sgp { staleness: 0 };
const OSGP: Base = Base::Sgp { staleness: 1 };

/// The methods for which figures of peers exist on the same task, in the order of the tables.
pub const METHODS: [Method; 7] = [
    method("AllReduce", Base::AllReduce, None),
    method("LocalSGD f=12", LOCAL, None),
    method("LocalSGD + SlowMo τ=12", LOCAL, Some(12)),
    method("LocalSGD + SlowMo τ=48", LOCAL, Some(48)),
    method("SGP", SGP, None),
    method("SGP + SlowMo τ=12", SGP, Some(12)),
    method("SGP + SlowMo τ=48", SGP, Some(48)),
];

/// Methods with gossip during the computation, which the peers lack.
pub const OVERLAPPED: [Method; 3] = [
    method("OSGP", OSGP, None),
    method("OSGP + SlowMo τ=12", OSGP, Some(12)),
    method("OSGP + SlowMo τ=48", OSGP, Some(48)),
];

/// Each base with SlowMo in every wire type, for gossip as well as rounds.
pub const ENCODED: [Method; 9] = [
    encoded("LocalSGD + SlowMo f32", LOCAL, Wire::Float32),
    encoded("LocalSGD + SlowMo bf16", LOCAL, Wire::BFloat16),
    encoded("LocalSGD + SlowMo int8", LOCAL, Wire::Int8),
    encoded("SGP + SlowMo f32", SGP, Wire::Float32),
    encoded("SGP + SlowMo bf16", SGP, Wire::BFloat16),
    encoded("SGP + SlowMo int8", SGP, Wire::Int8),
    encoded("OSGP + SlowMo f32", OSGP, Wire::Float32),
    encoded("OSGP + SlowMo bf16", OSGP, Wire::BFloat16),
    encoded("OSGP + SlowMo int8", OSGP, Wire::Int8),
];

/// Set of methods in one table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Methods {
    /// AllReduce, LocalSGD, SGP and overlapped SGP, with SlowMo and without.
    #[default]
    Algorithms,
    /// LocalSGD, SGP and overlapped SGP with SlowMo (τ = 12), each as float32, bfloat16 and int8.
    Wires,
}

impl Methods {
    /// The methods, in the order of the table.
    #[must_use]
    pub fn all(self) -> Vec<Method> {
        match self {
            Self::Algorithms => METHODS.into_iter().chain(OVERLAPPED).collect(),
            Self::Wires => ENCODED.to_vec(),
        }
    }
}

impl Method {
    /// Whether it gossips during the computation.
    #[must_use]
    pub const fn is_overlapped(&self) -> bool {
        matches!(self.base, Base::Sgp { staleness: 1.. })
    }

    /// Whether `other` differs from this at most in its wire type.
    #[must_use]
    pub fn is_alike(&self, other: &Self) -> bool {
        (self.base, self.slow) == (other.base, other.slow)
    }

    /// Writes this method into `config`.
    ///
    /// The configuration refuses a value; keys before it have been set.
    /// The configuration refuses a value; keys before it were set.
    pub fn configure(&self, config: &mut Config) -> Result<(), ConfigError> {
        match self.base {
            Base::AllReduce => config.set("base", "all_reduce")?,
            Base::Sgp { staleness } => {
                config.set("base", "sgp")?;
                config.set("staleness", &staleness.to_string())?;
                config.set("gossip_wire", self.wire.word())?;
            }
            Base::LocalSgd { frequency } => {
                config.set("base", "local_sgd")?;
                config.set("frequency", &frequency.to_string())?;
            }
        }
        config.set("round_wire", self.wire.word())?;
        config.set("outer", "slowmo")?;
        // α = 1 with β = 0 disables the outer rounds.
        let slow = self.slow.unwrap_or(SlowMo {
            tau: 48,
            alpha: 1.0,
            beta: 0.0,
        });
        config.set("tau", &slow.tau.to_string())?;
        config.set("alpha", &slow.alpha.to_string())?;
        config.set("beta", &slow.beta.to_string())
    }
}

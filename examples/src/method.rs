//! The algorithms that are compared, as settings of the runtime and as rules for the oracle.

use slowmo::Config;
use slowmo::config::ConfigError;

/// How replicas exchange between two outer rounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Base {
    /// The exact mean of all gradients, every step.
    AllReduce,
    /// The exact mean of the parameters every `frequency` inner steps.
    LocalSgd {
        /// f.
        frequency: u64,
    },
    /// Push-sum gossip with one peer every step.
    Sgp,
}

/// The outer optimizer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SlowMo {
    /// Inner steps of an outer round, τ.
    pub tau: u64,
    /// Slow learning rate, α.
    pub alpha: f32,
    /// Slow momentum, β.
    pub beta: f32,
}

/// A base algorithm, with SlowMo or without.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Method {
    /// How this method is called in tables and plots.
    pub name: &'static str,
    /// Between outer rounds.
    pub base: Base,
    /// The outer rounds, if there are any.
    pub slow: Option<SlowMo>,
}

const fn method(name: &'static str, base: Base, tau: Option<u64>) -> Method {
    let slow = match tau {
        Some(tau) => Some(SlowMo { tau, alpha: 1.0, beta: 0.5 }),
        None => None,
    };
    Method { name, base, slow }
}

const LOCAL: Base = Base::LocalSgd { frequency: 12 };

/// The methods whose peers were measured on the same task, in the order of the tables.
pub const METHODS: [Method; 7] = [
    method("AllReduce", Base::AllReduce, None),
    method("LocalSGD f=12", LOCAL, None),
    method("LocalSGD + SlowMo τ=12", LOCAL, Some(12)),
    method("LocalSGD + SlowMo τ=48", LOCAL, Some(48)),
    method("SGP", Base::Sgp, None),
    method("SGP + SlowMo τ=12", Base::Sgp, Some(12)),
    method("SGP + SlowMo τ=48", Base::Sgp, Some(48)),
];

impl Method {
    /// Writes this method into `config`.
    ///
    /// # Errors
    /// The configuration refuses a value; keys before it were set.
    pub fn configure(&self, config: &mut Config) -> Result<(), ConfigError> {
        match self.base {
            Base::AllReduce => config.set("base", "all_reduce")?,
            Base::Sgp => config.set("base", "sgp")?,
            Base::LocalSgd { frequency } => {
                config.set("base", "local_sgd")?;
                config.set("frequency", &frequency.to_string())?;
            }
        }
        config.set("outer", "slowmo")?;
        // α = 1 with β = 0 turns the outer rounds off.
        let slow = self.slow.unwrap_or(SlowMo { tau: 48, alpha: 1.0, beta: 0.0 });
        config.set("tau", &slow.tau.to_string())?;
        config.set("alpha", &slow.alpha.to_string())?;
        config.set("beta", &slow.beta.to_string())
    }
}

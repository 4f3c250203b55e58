//! One recorded trajectory: its file, checked, and the configuration it asks for.

use serde::Deserialize;
use slowmo::Config;
use slowmo::{BaseName, OuterName};
use std::path::Path;

/// Largest trajectory file, in bytes.
pub const FILE_BYTES_MAX: u64 = 256 << 20;

/// A trajectory, as stored in its file.
#[derive(Clone, Debug, Deserialize)]
pub struct Case {
    /// Name of the case; the file's name if it has none.
    #[serde(default)]
    pub name: String,
    /// Total number of workers.
    pub workers: usize,
    /// Number of workers per node; worker `i` is on node `i / gpus_per_node`.
    pub gpus_per_node: usize,
    /// Number of inner steps.
    pub steps: usize,
    /// Learning rate.
    pub lr: f32,
    /// The step (from 0) from which `lr_drop_to` applies.
    pub lr_drop_at: Option<usize>,
    /// The later learning rate.
    pub lr_drop_to: Option<f32>,
    /// Momentum of the inner optimizer; none if absent.
    #[serde(default)]
    pub base_momentum: Option<f32>,
    /// Whether the inner momentum is Nesterov's.
    #[serde(default)]
    pub nesterov: Option<bool>,
    /// `localsgd` or `sgp`.
    pub base: String,
    /// `f`: the period of LocalSGD in steps.
    #[serde(default)]
    pub localsgd_frequency: Option<u64>,
    /// Number of out-peers in one SGP gossip step.
    #[serde(default)]
    pub peers_per_step: Option<u32>,
    /// `β`: the slow momentum.
    pub slowmo_momentum: f32,
    /// `α`: the slow learning rate.
    pub slowmo_lr: f32,
    /// `τ`; irrelevant where SlowMo is off.
    #[serde(default)]
    pub slowmo_frequency: Option<u64>,
    /// Sharded slow state, with the exact average inside the slow step.
    pub memory_efficient: bool,
    /// With `memory_efficient` false: an exact average replaces the gossip of a slow step.
    #[serde(default)]
    pub sgp_average_params: Option<bool>,
    /// Shapes of the tensors.
    pub shapes: Vec<Vec<usize>>,
    /// Initial parameters.
    pub initial: Vec<f32>,
    /// Per worker: one value per parameter.
    pub curvature: Vec<Vec<f32>>,
    /// Per worker and step (cyclic): one value per parameter.
    pub target: Vec<Vec<Vec<f32>>>,
    /// Per worker and step: the parameters to match.
    pub params: Vec<Vec<Vec<f32>>>,
}

/// The reason why a file is not a trajectory that can be run.
#[derive(Debug, thiserror::Error)]
pub enum CaseError {
    /// The file cannot be read.
    #[error("cannot be read")]
    Unreadable(#[from] std::io::Error),
    /// The file is larger than the bound of 256 MiB.
    #[error("{0} bytes exceed the bound of {FILE_BYTES_MAX}")]
    TooLarge(u64),
    /// The file is not JSON of the expected form.
    #[error("is not a trajectory")]
    Malformed(#[from] serde_json::Error),
    /// The parts of the file contradict each other.
    #[error("contradicts itself: {0}")]
    Inconsistent(&'static str),
}

impl Case {
    /// Reads and checks a file.
    ///
    /// # Errors
    /// The file is unreadable, too large, malformed or inconsistent.
    pub fn read(path: &Path) -> Result<Self, CaseError> {
        let bytes = std::fs::metadata(path)?.len();
        if bytes > FILE_BYTES_MAX {
            return Err(CaseError::TooLarge(bytes));
        }
        let mut case = Self::parse(&std::fs::read(path)?)?;
        if case.name.is_empty() {
            case.name = path
                .file_stem()
                .map_or_else(String::new, |stem| stem.to_string_lossy().into_owned());
        }
        Ok(case)
    }

    /// Checks a file's bytes.
    ///
    /// # Errors
    /// The bytes are malformed or inconsistent.
    pub fn parse(bytes: &[u8]) -> Result<Self, CaseError> {
        let case: Self = serde_json::from_slice(bytes)?;
        case.check()?;
        Ok(case)
    }

    fn check(&self) -> Result<(), CaseError> {
        let width = self.initial.len();
        let product = |shape: &Vec<usize>| {
            shape
                .iter()
                .fold(1usize, |product, length| product.saturating_mul(*length))
        };
        let shaped = self
            .shapes
            .iter()
            .map(product)
            .fold(0, usize::saturating_add);
        let off = self.slowmo_momentum == 0.0 && self.slowmo_lr == 1.0;
        let wide = |values: &Vec<f32>| values.len() == width;
        let checks = [
            (
                self.workers > 0
                    && self.gpus_per_node > 0
                    && self.workers.is_multiple_of(self.gpus_per_node),
                "workers do not divide into nodes",
            ),
            (
                shaped == width && width > 0,
                "shapes do not add up to the initial parameters",
            ),
            (
                self.curvature.len() == self.workers && self.curvature.iter().all(wide),
                "curvature has another size",
            ),
            (
                self.target.len() == self.workers,
                "target has another number of workers",
            ),
            (
                self.target
                    .iter()
                    .all(|steps| !steps.is_empty() && steps.iter().all(wide)),
                "target has another size",
            ),
            (
                self.params.len() == self.workers,
                "params has another number of workers",
            ),
            (
                self.params
                    .iter()
                    .all(|steps| steps.len() == self.steps && steps.iter().all(wide)),
                "params has another size",
            ),
            (
                ["localsgd", "sgp"].contains(&self.base.as_str()),
                "base is neither localsgd nor sgp",
            ),
            (
                off || self.slowmo_frequency.is_some(),
                "slowmo_frequency is missing",
            ),
            (
                self.lr_drop_at.is_some() == self.lr_drop_to.is_some(),
                "lr_drop_at and lr_drop_to come together",
            ),
        ];
        checks
            .iter()
            .find(|(holds, _)| !holds)
            .map_or(Ok(()), |(_, why)| Err(CaseError::Inconsistent(why)))
    }

    /// Number of nodes of the case.
    #[must_use]
    pub fn nodes(&self) -> usize {
        self.workers / self.gpus_per_node
    }

    /// The learning rate of a step.
    #[must_use]
    pub fn learning_rate(&self, step: usize) -> f32 {
        match (self.lr_drop_at, self.lr_drop_to) {
            (Some(at), Some(to)) if step >= at => to,
            _ => self.lr,
        }
    }

    /// The configuration that the case asks for.
    #[must_use]
    pub fn config(&self) -> Config {
        let sgp = self.base == "sgp";
        let off = self.slowmo_momentum == 0.0 && self.slowmo_lr == 1.0;
        Config {
            base: if sgp {
                BaseName::Sgp
            } else {
                BaseName::LocalSgd
            },
            frequency: if sgp {
                1
            } else {
                self.localsgd_frequency.unwrap_or(1)
            },
            staleness: 0,
            peers_per_step: if sgp {
                self.peers_per_step.unwrap_or(1)
            } else {
                1
            },
            outer: OuterName::SlowMo,
            tau: if off {
                1
            } else {
                self.slowmo_frequency.unwrap_or(1)
            },
            alpha: self.slowmo_lr,
            beta: self.slowmo_momentum,
            sharded: self.memory_efficient,
            no_average: sgp
                && !off
                && !self.memory_efficient
                && self.sgp_average_params != Some(true),
            // The recorder refuses larger numbers; so does the configuration.
            devices: u16::try_from(self.gpus_per_node).unwrap_or(u16::MAX),
            ..Config::default()
        }
    }
}

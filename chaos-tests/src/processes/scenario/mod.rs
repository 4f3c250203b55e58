//! The description of a run: nodes, links, faults, and the expectations of the cluster.

mod action;
mod check;
mod error;
mod shipped;

pub use action::{Action, Group, GroupWord, Quality, Time, Who, WhoWord};
pub use error::ScenarioError;
pub use shipped::{SHIPPED, Shipped};

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;

/// Largest scenario file, in bytes.
pub const FILE_BYTES_MAX: u64 = 1 << 20;
/// Maximum number of nodes of a run, and highest node id.
pub const NODES_MAX: usize = 32;
/// Longest run, in seconds: a week.
pub const SECONDS_MAX: f64 = 7.0 * 86_400.0;
/// Maximum number of actions in one scenario's lists, and of repetitions of one action.
pub const ACTIONS_MAX: usize = 10_000;

/// A scenario, as in its file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// A line that says what the scenario shows.
    pub summary: String,
    /// Number of nodes that bootstrap the cluster; their ids are 1 to this.
    pub nodes: usize,
    /// Maximum number of nodes at a time, and therefore the highest id; defaults to `nodes`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodes_max: Option<usize>,
    /// Number of groups (key `group`): those that bootstrap the cluster are in them in the order of
    /// their ids, and those with higher ids are in the last one.
    #[serde(default = "once", skip_serializing_if = "is_once")]
    pub groups: usize,
    /// Number of nodes that random faults leave untouched at any time; defaults to more than half
    /// of the bootstrap members.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_least: Option<usize>,
    /// Nodes that random faults never hit.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub spared: Vec<u64>,
    /// Time from the moment that all bootstrap members train until the last fault, in seconds.
    pub duration_s: f64,
    /// Seconds at the beginning without random faults, which are not measured.
    #[serde(default = "default_warm_up")]
    pub warm_up_s: f64,
    /// Seconds after the last fault without any fault, in which every node must contribute again.
    #[serde(default = "default_quiet")]
    pub quiet_s: f64,
    /// Configuration keys of the nodes; command-line flags of the binary take precedence.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub settings: BTreeMap<String, Setting>,
    /// Quality of all links from the start.
    #[serde(default, skip_serializing_if = "Quality::is_perfect")]
    pub links: Quality,
    /// Actions at set times.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub script: Vec<Scripted>,
    /// Actions at random times.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub random: Vec<Recurring>,
    /// Expectations of the cluster, beside the invariants.
    #[serde(default)]
    pub expect: Expect,
}

/// The value of a configuration key.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Setting {
    /// A boolean.
    Flag(bool),
    /// A whole number.
    Whole(i64),
    /// Any other number.
    Number(f64),
    /// A string.
    Text(String),
}

/// An action at a set time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Scripted {
    /// Time in seconds since all bootstrap members train.
    pub at_s: f64,
    /// Interval in seconds after which the action is repeated, `times` in all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub every_s: Option<f64>,
    /// Total number of times.
    #[serde(default = "once")]
    pub times: usize,
    /// The action.
    #[serde(flatten)]
    pub action: Action,
}

/// Actions at random times, either with a number per hour (a Poisson process) or with a distance in
/// seconds (uniformly distributed).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recurring {
    /// Average number per hour.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub per_hour: Option<f64>,
    /// Seconds between two actions, from and to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub between_s: Option<[f64; 2]>,
    /// One of these is chosen each time; another one if it finds no node to hit.
    pub choose: Vec<Choice>,
}

/// One of several actions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Choice {
    /// Weight of the choice, relative to the others.
    #[serde(default = "default_weight")]
    pub weight: u64,
    /// The action.
    #[serde(flatten)]
    pub action: Action,
}

/// Expectations of the cluster. A figure whose expectation is not given is measured but not judged.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Expect {
    /// Minimum share of the fault-free inner steps per second of a live node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub throughput: Option<f64>,
    /// Minimum share of the live nodes that contribute to a decided round, on average.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub contributing: Option<f64>,
    /// Every victim that lived long enough contributed again.
    #[serde(default)]
    pub victims_return: bool,
    /// After links are restored, all nodes hold equal parameters within this many milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub whole_within_ms: Option<u64>,
    /// A round is decided within this many milliseconds after each fault.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_round_within_ms: Option<u64>,
    /// Maximum share by which the resident memory of any survivor may grow after warm-up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_growth: Option<f64>,
    /// A whole checkpoint exists at the end, and no part of any checkpoint is torn.
    #[serde(default)]
    pub checkpoint_kept: bool,
    /// Maximum share by which the open descriptors of any survivor may grow after warm-up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub descriptor_growth: Option<f64>,
}

impl Scenario {
    /// A shipped scenario by its name, or the scenario in a file, together with its name in
    /// reports.
    ///
    /// # Errors
    /// There is no such scenario, or the file cannot be read or is invalid.
    pub fn find(name_or_path: &str) -> Result<(String, Self), ScenarioError> {
        if let Some(shipped) = SHIPPED.iter().find(|shipped| shipped.name == name_or_path) {
            return Ok((
                shipped.name.to_owned(),
                Self::parse(shipped.text, shipped.name)?,
            ));
        }
        let path = Path::new(name_or_path);
        if !path.exists() && path.components().count() == 1 && path.extension().is_none() {
            return Err(ScenarioError::unknown_name(name_or_path));
        }
        let text = read(path)?;
        let name = path.file_stem().map_or_else(
            || name_or_path.to_owned(),
            |stem| stem.to_string_lossy().into_owned(),
        );
        Ok((name, Self::parse(&text, name_or_path)?))
    }

    /// Reads and checks a scenario; `source` names it in errors.
    ///
    /// # Errors
    /// The text is not TOML, has unknown or missing keys, or values out of range.
    pub fn parse(text: &str, source: &str) -> Result<Self, ScenarioError> {
        let scenario: Self =
            toml::from_str(text).map_err(|error| ScenarioError::syntax(source, text, &error))?;
        scenario.check().map_err(|what| ScenarioError::Value {
            source_name: source.to_owned(),
            what,
        })?;
        Ok(scenario)
    }

    /// Changes the duration of the faults; the warm-up is at most a quarter of it.
    pub fn shorten(&mut self, duration_s: f64) {
        self.duration_s = duration_s;
        self.warm_up_s = self.warm_up_s.min(duration_s / 4.0);
    }

    /// The highest id.
    #[must_use]
    pub fn ids_max(&self) -> usize {
        self.nodes_max.unwrap_or(self.nodes)
    }

    /// The group of a node; `None` if there is only one.
    #[must_use]
    pub fn group(&self, node: u64) -> Option<String> {
        let index = node.saturating_sub(1) as usize * self.groups / self.nodes;
        (self.groups > 1).then(|| format!("site-{}", index.min(self.groups - 1) + 1))
    }

    /// Whether the nodes write checkpoints, into a folder of the run.
    #[must_use]
    pub fn writes_checkpoints(&self) -> bool {
        self.settings.contains_key("checkpoint_every")
    }

    /// Number of nodes that random faults leave untouched.
    #[must_use]
    pub fn untouched_min(&self) -> usize {
        self.at_least.unwrap_or(self.nodes / 2 + 1)
    }
}

impl std::fmt::Display for Setting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Flag(value) => value.fmt(f),
            Self::Whole(value) => value.fmt(f),
            Self::Number(value) => value.fmt(f),
            Self::Text(value) => value.fmt(f),
        }
    }
}

/// Reads a scenario file, at most [`FILE_BYTES_MAX`] bytes.
fn read(path: &Path) -> Result<String, ScenarioError> {
    let unreadable = |source| ScenarioError::Unreadable {
        path: path.to_owned(),
        source,
    };
    let mut text = String::new();
    let file = std::fs::File::open(path).map_err(unreadable)?;
    let length = file
        .take(FILE_BYTES_MAX + 1)
        .read_to_string(&mut text)
        .map_err(unreadable)?;
    if length as u64 > FILE_BYTES_MAX {
        return Err(unreadable(std::io::Error::other(format!(
            "it is larger than {FILE_BYTES_MAX} bytes"
        ))));
    }
    Ok(text)
}

fn default_warm_up() -> f64 {
    5.0
}

fn default_quiet() -> f64 {
    15.0
}

fn default_weight() -> u64 {
    1
}

fn once() -> usize {
    1
}

fn is_once(number: &usize) -> bool {
    *number == 1
}

#[cfg(test)]
mod tests;

//! Schedules as TOML files: one line per setting, one line per fault, all times in milliseconds.
//! Settings that a file omits are those of a plain run. These defaults must not change, because
//! existing files rely on them.

use super::config::{Class, Config, MILLI, Waits};
use super::schedule::{Act, Millis, Schedule, Timed, is_default};
use serde::{Deserialize, Serialize};
use slowmo_protocol::algorithm::{
    Algorithm, Base, BufferStrategy, Outer, OuterOptimizer, WireType,
};
use slowmo_protocol::ident::NodeId;
use slowmo_protocol::policy::Quorum;
use slowmo_protocol::sampler;
use slowmo_protocol::time::Span;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Maximum size of a file, in bytes.
const BYTES_MAX: u64 = 1 << 20;
/// Maximum length of a line of prose.
const LINE: usize = 130;

/// The reason why a schedule is refused.
#[derive(Debug, thiserror::Error)]
pub enum ScheduleError {
    /// The file cannot be read.
    #[error("cannot read the schedule {}: {error}", path.display())]
    Unreadable {
        /// Path of the file.
        path: PathBuf,
        /// Error of the system.
        error: std::io::Error,
    },
    /// The file cannot be written.
    #[error("cannot write the schedule {}: {error}", path.display())]
    Unwritable {
        /// Path of the file.
        path: PathBuf,
        /// Error of the system.
        error: std::io::Error,
    },
    /// The file is not TOML, or has keys that a schedule does not have.
    #[error("{name}, line {line}: {message}")]
    Syntax {
        /// Name of the file.
        name: String,
        /// Number of the line, from 1.
        line: usize,
        /// Description of the error.
        message: String,
    },
    /// A value makes no sense.
    #[error("{name}: {what}")]
    Value {
        /// Name of the file.
        name: String,
        /// Description of the error, and of the allowed values.
        what: String,
    },
    /// The schedule has values that TOML cannot hold.
    #[error("a schedule that TOML cannot hold: {0}")]
    Unspeakable(String),
}

/// A schedule in file form, with its keys in the order in which they are written.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    what: String,
    /// Seed of all randomness in the run.
    #[serde(default)]
    seed: u64,
    #[serde(default, skip_serializing_if = "is_default")]
    class: Class,
    founders: Vec<NodeId>,
    /// Defaults to all bootstrap members.
    min_nodes: Option<usize>,
    #[serde(default, with = "QuorumWord")]
    quorum: Quorum,
    #[serde(default = "replicas")]
    replicas: usize,
    #[serde(default = "groups", skip_serializing_if = "is_one")]
    groups: u32,
    #[serde(default = "parameters")]
    parameters: usize,
    #[serde(default)]
    buffers: usize,
    #[serde(default = "algorithm")]
    algorithm: Algorithm,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    samples: Option<Samples>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    trains_until: Option<u64>,
    #[serde(default = "compute")]
    compute_ms: [Millis; 2],
    #[serde(default = "delay")]
    delay_ms: [Millis; 2],
    #[serde(default = "mail_delay")]
    mail_delay_ms: Millis,
    #[serde(default)]
    waits_ms: WaitsMillis,
    #[serde(default = "encodes_every")]
    encodes_every: u64,
    #[serde(
        default = "first_incarnation",
        skip_serializing_if = "is_first_incarnation"
    )]
    first_incarnation: u64,
    /// Defaults to a second after the last fault.
    horizon_ms: Option<Millis>,
    #[serde(default = "recovers_within")]
    recovers_within_ms: Millis,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    goes_on_within_ms: Option<Millis>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    settles_ms: Option<Millis>,
    #[serde(default, skip_serializing_if = "is_default")]
    true_sizes: bool,
    #[serde(default)]
    faults: Vec<Timed>,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Quorum", rename_all = "snake_case")]
enum QuorumWord {
    Majority,
    Survivors,
}

/// See [`sampler::Settings`].
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Samples {
    samples: u64,
    batch: u64,
    seed: u64,
}

/// See [`Waits`].
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct WaitsMillis {
    grace: Millis,
    round: Millis,
    connect: Millis,
    idle: Millis,
    probe: Millis,
    suspect: Millis,
}

impl Default for WaitsMillis {
    fn default() -> Self {
        let millis = |milliseconds: u64| Millis(milliseconds * MILLI);
        Self {
            grace: millis(200),
            round: millis(30_000),
            connect: millis(60_000),
            idle: millis(1_500),
            probe: millis(100),
            suspect: millis(500),
        }
    }
}

fn replicas() -> usize {
    1
}

fn groups() -> u32 {
    1
}

/// Serde passes a reference.
#[allow(clippy::trivially_copy_pass_by_ref)]
fn is_one(groups: &u32) -> bool {
    *groups == 1
}

fn parameters() -> usize {
    12
}

/// An exact average every two steps and a slow step every four.
fn algorithm() -> Algorithm {
    let outer = Outer {
        frequency: 4,
        optimizer: OuterOptimizer::SlowMo {
            alpha: 1.0,
            beta: 0.5,
        },
        sharded: true,
        average: true,
    };
    Algorithm {
        base: Base::LocalSgd { frequency: 2 },
        outer: Some(outer),
        average_every: None,
        buffers: BufferStrategy::Maintain,
        round_wire: WireType::Float32,
    }
}

fn compute() -> [Millis; 2] {
    [Millis(20 * MILLI), Millis(5 * MILLI)]
}

fn delay() -> [Millis; 2] {
    [Millis(50), Millis(MILLI)]
}

fn mail_delay() -> Millis {
    Millis(60)
}

fn encodes_every() -> u64 {
    1
}

fn first_incarnation() -> u64 {
    1
}

fn is_first_incarnation(incarnation: &u64) -> bool {
    *incarnation == first_incarnation()
}

fn recovers_within() -> Millis {
    Millis(15_000 * MILLI)
}

impl Schedule {
    /// Reads the schedule in a file.
    ///
    /// # Errors
    /// The file cannot be read, is not TOML, has unknown or missing keys, or values that make no
    /// sense.
    pub fn read(path: &Path) -> Result<Self, ScheduleError> {
        let unreadable = |error| ScheduleError::Unreadable {
            path: path.to_owned(),
            error,
        };
        let bytes = std::fs::metadata(path).map_err(unreadable)?.len();
        if bytes > BYTES_MAX {
            return Err(unreadable(std::io::Error::other(format!(
                "it is larger than {BYTES_MAX} bytes"
            ))));
        }
        Self::parse(
            &std::fs::read_to_string(path).map_err(unreadable)?,
            &path.display().to_string(),
        )
    }

    /// Parses the schedule in a text; `name` stands for the text in errors.
    ///
    /// # Errors
    /// As [`Schedule::read`].
    pub fn parse(text: &str, name: &str) -> Result<Self, ScheduleError> {
        let file: File = toml::from_str(text).map_err(|error| syntax(name, text, &error))?;
        let schedule = file.schedule();
        schedule.check().map_err(|what| ScheduleError::Value {
            name: name.to_owned(),
            what,
        })?;
        Ok(schedule)
    }

    /// Writes the schedule to a file.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(&self, path: &Path) -> Result<(), ScheduleError> {
        let text = self.text()?;
        std::fs::write(path, text).map_err(|error| ScheduleError::Unwritable {
            path: path.to_owned(),
            error,
        })
    }

    /// The schedule as text.
    ///
    /// # Errors
    /// A number is larger than TOML allows.
    pub fn text(&self) -> Result<String, ScheduleError> {
        let mut table = toml::Table::try_from(File::of(self))
            .map_err(|error| ScheduleError::Unspeakable(error.to_string()))?;
        let mut text = String::new();
        if let Some(toml::Value::String(what)) = table.remove("what") {
            text.push_str(&prose("what", &what));
        }
        let faults = table.remove("faults");
        for key in KEYS {
            if let Some(value) = table.remove(key) {
                text.push_str(&format!("{key} = {value}\n"));
            }
        }
        for (key, value) in table {
            text.push_str(&format!("{key} = {value}\n"));
        }
        text.push_str("faults = [\n");
        for fault in faults.iter().filter_map(toml::Value::as_array).flatten() {
            text.push_str(&format!("    {fault},\n"));
        }
        text.push_str("]\n");
        Ok(text)
    }

    fn check(&self) -> Result<(), String> {
        let Config {
            founders,
            min_nodes,
            parameters,
            compute,
            first_incarnation,
            ..
        } = &self.config;
        let ids: BTreeSet<&NodeId> = founders.iter().collect();
        if founders.is_empty() || ids.len() != founders.len() {
            return Err("`founders` must name at least one node, and each once".to_owned());
        }
        if !(1..=founders.len()).contains(min_nodes) {
            return Err(format!(
                "`min_nodes` must be from 1 to the number of founders, {}",
                founders.len()
            ));
        }
        if *parameters == 0 || compute.0 + compute.1 == 0 {
            return Err("`parameters` and `compute_ms` must be more than 0".to_owned());
        }
        let clock_back = |timed: &Timed| {
            if let Act::Start { clock_back, .. } = timed.act {
                clock_back
            } else {
                0
            }
        };
        if self
            .faults
            .iter()
            .map(clock_back)
            .fold(0, u64::saturating_add)
            >= *first_incarnation
        {
            return Err(
                "`first_incarnation` must be more than all `clock_back` together".to_owned(),
            );
        }
        self.faults.iter().try_for_each(Timed::check)
    }
}

impl Timed {
    fn check(&self) -> Result<(), String> {
        let at = self.at.0 as f64 / MILLI as f64;
        match &self.act {
            Act::Cut {
                until: Some(until), ..
            }
            | Act::Links {
                until: Some(until), ..
            } if *until < self.at => Err(format!("the fault at {at} ms is over before it begins")),
            Act::Slow { hundredths: 0, .. } => Err(format!(
                "`hundredths` of the fault at {at} ms must be more than 0"
            )),
            Act::Drift { millionths: 0, .. } => Err(format!(
                "`millionths` of the fault at {at} ms must be more than 0"
            )),
            _ => Ok(()),
        }
    }
}

/// The order in which settings are written.
const KEYS: [&str; 22] = [
    "seed",
    "class",
    "founders",
    "min_nodes",
    "quorum",
    "replicas",
    "groups",
    "parameters",
    "buffers",
    "algorithm",
    "samples",
    "trains_until",
    "compute_ms",
    "delay_ms",
    "mail_delay_ms",
    "waits_ms",
    "encodes_every",
    "true_sizes",
    "horizon_ms",
    "recovers_within_ms",
    "goes_on_within_ms",
    "settles_ms",
];

impl File {
    fn schedule(self) -> Schedule {
        let ends = self
            .faults
            .iter()
            .map(|timed| timed.ends().0)
            .max()
            .unwrap_or(0);
        let mut faults = self.faults;
        faults.sort_by_key(|timed| timed.at);
        let span = |millis: Millis| Span(millis.0);
        let pair = |[one, other]: [Millis; 2]| (one.0, other.0);
        let waits = self.waits_ms;
        let config = Config {
            seed: self.seed,
            class: self.class,
            min_nodes: self.min_nodes.unwrap_or(self.founders.len()),
            founders: self.founders,
            quorum: self.quorum,
            replicas: self.replicas,
            groups: self.groups,
            parameters: self.parameters,
            buffers: self.buffers,
            algorithm: self.algorithm,
            samples: self.samples.map(
                |Samples {
                     samples,
                     batch,
                     seed,
                 }| sampler::Settings {
                    samples,
                    batch,
                    seed,
                },
            ),
            trains_until: self.trains_until,
            compute: pair(self.compute_ms),
            delay: pair(self.delay_ms),
            mail_delay_max: self.mail_delay_ms.0,
            waits: Waits {
                grace: span(waits.grace),
                round: span(waits.round),
                connect: span(waits.connect),
                idle: span(waits.idle),
                probe: span(waits.probe),
                suspect: span(waits.suspect),
            },
            horizon: self
                .horizon_ms
                .map_or(ends + 1_000 * MILLI, |horizon| horizon.0),
            recovers_within: span(self.recovers_within_ms),
            goes_on_within: self.goes_on_within_ms.map(span),
            settles: self.settles_ms.map(span),
            true_sizes: self.true_sizes,
            first_incarnation: self.first_incarnation,
            encodes_every: self.encodes_every,
        };
        Schedule {
            what: self.what,
            config,
            faults,
        }
    }

    fn of(schedule: &Schedule) -> Self {
        let Schedule {
            what,
            config,
            faults,
        } = schedule.clone();
        let millis = |span: Span| Millis(span.0);
        let waits = config.waits;
        Self {
            what,
            seed: config.seed,
            class: config.class,
            founders: config.founders,
            min_nodes: Some(config.min_nodes),
            quorum: config.quorum,
            replicas: config.replicas,
            groups: config.groups,
            parameters: config.parameters,
            buffers: config.buffers,
            algorithm: config.algorithm,
            samples: config.samples.map(
                |sampler::Settings {
                     samples,
                     batch,
                     seed,
                 }| Samples {
                    samples,
                    batch,
                    seed,
                },
            ),
            trains_until: config.trains_until,
            compute_ms: [Millis(config.compute.0), Millis(config.compute.1)],
            delay_ms: [Millis(config.delay.0), Millis(config.delay.1)],
            mail_delay_ms: Millis(config.mail_delay_max),
            waits_ms: WaitsMillis {
                grace: millis(waits.grace),
                round: millis(waits.round),
                connect: millis(waits.connect),
                idle: millis(waits.idle),
                probe: millis(waits.probe),
                suspect: millis(waits.suspect),
            },
            encodes_every: config.encodes_every,
            first_incarnation: config.first_incarnation,
            horizon_ms: Some(Millis(config.horizon)),
            recovers_within_ms: millis(config.recovers_within),
            goes_on_within_ms: config.goes_on_within.map(millis),
            settles_ms: config.settles.map(millis),
            true_sizes: config.true_sizes,
            faults,
        }
    }
}

/// A text split into several lines, so that none is too long.
fn prose(key: &str, text: &str) -> String {
    if text.len() < LINE && !text.contains('\n') {
        return format!("{key} = {}\n", toml::Value::String(text.to_owned()));
    }
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        if lines
            .last()
            .is_some_and(|line| !line.is_empty() && line.len() + word.len() > LINE)
        {
            lines.push(String::new());
        }
        if let Some(line) = lines.last_mut() {
            let gap = if line.is_empty() { "" } else { " " };
            line.push_str(&format!(
                "{gap}{}",
                word.replace('\\', "\\\\").replace('"', "\\\"")
            ));
        }
    }
    format!("{key} = \"\"\"\n{}\"\"\"\n", lines.join("\n"))
}

fn syntax(name: &str, text: &str, error: &toml::de::Error) -> ScheduleError {
    let offset = error.span().map_or(0, |span| span.start);
    let line = 1 + text
        .bytes()
        .take(offset)
        .filter(|byte| *byte == b'\n')
        .count();
    ScheduleError::Syntax {
        name: name.to_owned(),
        line,
        message: error.message().to_owned(),
    }
}

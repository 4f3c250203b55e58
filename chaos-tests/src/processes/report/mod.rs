//! The report of a run: every invariant's verdict, the expectations, and the figures of the run and
//! of the fault-free one.
//!
//! | file | does |
//! |---|---|
//! | `examine` | judges and measures a trace in one pass |
//! | `expectations` | the scenario's `[expect]` table against the figures |
//! | `text` | the report for a terminal |
//! | `html` | the report as one self-contained page |

mod examine;
mod expectations;
mod html;
mod text;

pub use examine::{Examined, Examiner};
pub use expectations::Expectation;
pub use html::page;

use super::measure::Measures;
use super::relay::Traffic;
use super::scenario::Scenario;
use super::schedule::span;
use crate::invariants::Verdict;
use serde::{Deserialize, Serialize};

/// The report of a run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Report {
    /// Whether every invariant held and every expectation was met.
    pub succeeded: bool,
    /// The scenario's name.
    pub scenario: String,
    /// A line that says what the scenario shows.
    pub summary: String,
    /// The seed of its schedule.
    pub seed: u64,
    /// The command that was started.
    pub command: String,
    /// Every invariant and its verdict, for the run with faults.
    pub invariants: Vec<Judged>,
    /// Invariants that the fault-free run broke.
    pub broken_without_faults: Vec<Judged>,
    /// The expectations of the scenario.
    pub expectations: Vec<Expectation>,
    /// Actions that could not be carried out and aspects that were not checked, in words.
    pub notes: Vec<String>,
    /// Figures of the run with faults.
    pub measures: Measures,
    /// Figures of the fault-free run, if there was one.
    pub baseline: Option<Measures>,
    /// Share of the fault-free throughput per live node.
    pub throughput_share: Option<f64>,
    /// Traffic on the emulated links.
    pub traffic: Traffic,
}

/// An invariant and its verdict.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Judged {
    /// Name of the invariant.
    pub name: String,
    /// Verdict on the invariant.
    #[serde(flatten)]
    pub verdict: Verdict,
}

/// The checkpoints that a run left.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kept {
    /// The inner step of the newest whole checkpoint, every value of which was verified.
    pub step: Option<u64>,
    /// Errors in parts that exist; missing parts are no error.
    pub wrong: Vec<String>,
}

/// Description of a run, beside its traces.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// The scenario's name.
    pub scenario: String,
    /// The seed of its schedule.
    pub seed: u64,
    /// The command that was started.
    pub command: String,
    /// Actions that could not be carried out, in words.
    pub notes: Vec<String>,
    /// Traffic on the emulated links.
    pub traffic: Traffic,
    /// The checkpoints that the run left, if any were written.
    #[serde(default)]
    pub kept: Option<Kept>,
}

impl Report {
    /// The report of a run and, if there was one, of the fault-free run before it.
    #[must_use]
    pub fn new(
        header: &Header,
        scenario: &Scenario,
        run: &Examined,
        baseline: Option<&Examined>,
    ) -> Self {
        let measure =
            |examined: &Examined| Measures::of(&examined.observed, span(scenario.warm_up_s));
        let measures = measure(run);
        let fault_free = baseline.map(measure);
        let share = fault_free
            .as_ref()
            .filter(|fault_free| fault_free.throughput > 0.0);
        let throughput_share = share.map(|fault_free| measures.throughput / fault_free.throughput);
        let broken = |examined: &Examined| {
            let violated = |judged: &&Judged| matches!(judged.verdict, Verdict::Violated(_));
            examined
                .verdicts
                .iter()
                .filter(violated)
                .cloned()
                .collect::<Vec<_>>()
        };
        let broken_without_faults = baseline.map(broken).unwrap_or_default();
        let mut expectations = expectations::of(
            &scenario.expect,
            &measures,
            fault_free.as_ref(),
            throughput_share,
        );
        expectations.extend(
            scenario
                .expect
                .checkpoint_kept
                .then(|| expectations::kept(header.kept.as_ref())),
        );
        let met = expectations.iter().all(|expectation| expectation.met);
        Self {
            succeeded: met && broken(run).is_empty() && broken_without_faults.is_empty(),
            scenario: header.scenario.clone(),
            summary: scenario.summary.clone(),
            seed: header.seed,
            command: header.command.clone(),
            invariants: run.verdicts.clone(),
            broken_without_faults,
            expectations,
            notes: header.notes.clone(),
            measures,
            baseline: fault_free,
            throughput_share,
            traffic: header.traffic,
        }
    }
}

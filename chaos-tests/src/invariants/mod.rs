//! Properties that must always hold: one file each, with a number by which reports and comments
//! refer to it. They judge a trace event by event, whether it comes from the simulation, real
//! actors or real processes. If a trace lacks what a property needs, the property says so.

mod bootstraps;
mod bounds;
mod fresh;
mod history;
mod identical_parameters;
mod majority;
mod mass;
mod momentum_kept;
mod momentum_matches;
mod one_group;
mod one_outcome;
mod progress;
mod samples_once;
mod troubles;

pub use history::History;

use serde::{Deserialize, Serialize};
use slowmo_protocol::time::Instant;
use slowmo_protocol::trace::Line;

/// A rule that must hold.
pub trait Invariant {
    /// Name of the rule in reports.
    fn name(&self) -> &'static str;

    /// Checks an event, which `history` already contains.
    ///
    /// # Errors
    /// The rule is broken; the error describes the violation in words.
    fn observe(&mut self, line: &Line, history: &History) -> Result<(), String>;

    /// Checks the whole when the run is over. Returns how often something was checked, or what a
    /// trace must contain for that.
    ///
    /// # Errors
    /// As in [`Invariant::observe`].
    fn finish(&mut self, history: &History) -> Result<Checked, String>;
}

/// Result of a rule that was not broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checked {
    /// Number of checks made.
    Times(u64),
    /// The trace does not contain what the rule needs; the reason.
    NotShown(&'static str),
}

/// Result of a rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "verdict", rename_all = "snake_case")]
pub enum Verdict {
    /// The rule held.
    Held {
        /// Number of checks made.
        checked: u64,
    },
    /// The trace does not contain what the rule needs.
    NotShown {
        /// Description of what is missing.
        why: String,
    },
    /// The rule was broken.
    Violated(Violation),
}

/// A broken rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Violation {
    /// Name of the rule.
    pub invariant: String,
    /// Time of the violation.
    pub at: Instant,
    /// Description of the violation.
    pub what: String,
}

/// Judges one trace by all rules.
pub struct Judge {
    history: History,
    rules: Vec<(Box<dyn Invariant + Send>, Option<Violation>)>,
}

impl Default for Judge {
    fn default() -> Self {
        let rules: [Box<dyn Invariant + Send>; 12] = [
            Box::new(one_outcome::OneOutcome::default()),
            Box::new(identical_parameters::IdenticalParameters::default()),
            Box::new(momentum_matches::MomentumMatches::default()),
            Box::new(momentum_kept::MomentumKept::default()),
            Box::new(mass::Mass::default()),
            Box::new(majority::Majority::default()),
            Box::new(fresh::Fresh::default()),
            Box::new(progress::Progress::default()),
            Box::new(bounds::Bounds::default()),
            Box::new(samples_once::SamplesOnce::default()),
            Box::new(one_group::OneGroup::default()),
            Box::new(bootstraps::Bootstraps::default()),
        ];
        Self {
            history: History::default(),
            rules: rules.into_iter().map(|rule| (rule, None)).collect(),
        }
    }
}

/// Rules that need nothing from before the beginning of a trace.
const WITHOUT_A_BEGINNING: [&str; 3] = ["one_outcome", "identical_parameters", "bounds"];

impl Judge {
    /// A judge for a trace that begins in the middle: only the rules that need nothing from before.
    #[must_use]
    pub fn of_a_part() -> Self {
        let mut judge = Self::default();
        judge
            .rules
            .retain(|(rule, _)| WITHOUT_A_BEGINNING.contains(&rule.name()));
        judge
    }

    /// Checks an event; returns the first rule that it breaks, if any.
    pub fn observe(&mut self, line: &Line) -> Option<Violation> {
        self.history.observe(line);
        let mut first = None;
        for (rule, violated) in self
            .rules
            .iter_mut()
            .filter(|(_, violated)| violated.is_none())
        {
            if let Err(what) = rule.observe(line, &self.history) {
                let violation = Violation {
                    invariant: rule.name().to_owned(),
                    at: line.at,
                    what,
                };
                first = first.or_else(|| Some(violation.clone()));
                *violated = Some(violation);
            }
        }
        first
    }

    /// The history of the run so far.
    #[must_use]
    pub fn history(&self) -> &History {
        &self.history
    }

    /// Ends the run and returns the result of each rule.
    #[must_use]
    pub fn finish(self) -> Vec<(&'static str, Verdict)> {
        let Self { history, rules } = self;
        let at = history.now();
        let verdict = |(mut rule, violated): (Box<dyn Invariant + Send>, Option<Violation>)| {
            let name = rule.name();
            let verdict = match violated
                .map_or_else(|| rule.finish(&history), |violation| Err(violation.what))
            {
                Ok(Checked::Times(checked)) => Verdict::Held { checked },
                Ok(Checked::NotShown(why)) => Verdict::NotShown {
                    why: why.to_owned(),
                },
                Err(what) => Verdict::Violated(Violation {
                    invariant: name.to_owned(),
                    at,
                    what,
                }),
            };
            (name, verdict)
        };
        rules.into_iter().map(verdict).collect()
    }
}

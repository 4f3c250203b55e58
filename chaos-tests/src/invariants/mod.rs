//! What must hold, whatever happens: one file each, numbered as in the architecture. They judge a
//! trace event by event, be it of the simulation, of real actors or of real processes; where a
//! trace does not show what one needs, it says so.

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

/// One rule.
pub trait Invariant {
    /// Its name in reports.
    fn name(&self) -> &'static str;

    /// Looks at an event; `history` already has it.
    ///
    /// # Errors
    /// The rule is broken; what is wrong, for a person.
    fn observe(&mut self, line: &Line, history: &History) -> Result<(), String>;

    /// Looks at the whole, when the run is over. How often something was looked at, or what a trace
    /// must have for that.
    ///
    /// # Errors
    /// As in [`Invariant::observe`].
    fn finish(&mut self, history: &History) -> Result<Checked, String>;
}

/// What a rule that holds has seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checked {
    /// It was looked at so often.
    Times(u64),
    /// The trace does not show what it needs.
    NotShown(&'static str),
}

/// What became of a rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "verdict", rename_all = "snake_case")]
pub enum Verdict {
    /// It held.
    Held {
        /// How often it was looked at.
        checked: u64,
    },
    /// The trace does not show what it needs.
    NotShown {
        /// What is missing.
        why: String,
    },
    /// It was broken.
    Violated(Violation),
}

/// A broken rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Violation {
    /// Which.
    pub invariant: String,
    /// When.
    pub at: Instant,
    /// What is wrong.
    pub what: String,
}

/// All rules over one trace.
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

/// Rules that need nothing of what was before a trace began.
const WITHOUT_A_BEGINNING: [&str; 3] = ["one_outcome", "identical_parameters", "bounds"];

impl Judge {
    /// Of a trace that begins in the middle: only the rules that need nothing of what was before.
    #[must_use]
    pub fn of_a_part() -> Self {
        let mut judge = Self::default();
        judge
            .rules
            .retain(|(rule, _)| WITHOUT_A_BEGINNING.contains(&rule.name()));
        judge
    }

    /// Looks at an event; the first rule that it breaks, if it breaks one.
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

    /// What is known of the run.
    #[must_use]
    pub fn history(&self) -> &History {
        &self.history
    }

    /// The run is over: what became of each rule.
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

//! Counts in how many runs each kind of fault, each setting, each rule and each frame was seen, and
//! in how many it must be: a rule that is never judged and a fault that never happens prove
//! nothing.

use super::Report;
use super::schedule::Timed;
use crate::invariants::Verdict;
use slowmo_protocol::algorithm::{Base, OuterOptimizer};
use slowmo_protocol::policy::Quorum;
use std::collections::{BTreeMap, BTreeSet};

/// Minimum number of runs; fewer runs need not have seen everything.
pub const RUNS_MIN: u64 = 2_000;

/// The items that are counted, and the number of runs out of which each must be seen at least once.
const EXPECTED: [(&str, u64, &[&str]); 5] = [
    (
        "fault",
        50,
        &[
            "kill",
            "kill all holders of a shard",
            "start",
            "start with a founder's settings",
            "clock stepped back",
            "pause",
            "drain",
            "slow",
            "slow disk",
            "drifting clock",
            "equivocate",
            "change settings",
            "cut",
            "cut one way",
            "break",
            "delay",
            "loss",
            "doubled packets",
            "narrow link",
        ],
    ),
    (
        "setting",
        50,
        &[
            "quorum = majority",
            "quorum = survivors",
            "survivors with bad links",
            "R = 0",
            "R = 1",
            "R = 2",
            "R = 3",
            "one group",
            "several groups",
            "SlowMo",
            "Nesterov",
            "BMUF",
            "push-sum",
            "LocalSGD",
            "means of gradients",
            "no base algorithm",
            "elastic sampler",
            "buffers",
            "frames of their true size",
            "one node",
            "fewer found than start",
        ],
    ),
    (
        "rule",
        10,
        &[
            "one_outcome",
            "identical_parameters",
            "momentum_matches",
            "momentum_kept",
            "push_sum_mass",
            "majority",
            "fresh_parameters",
            "progress",
            "bounds",
            "samples_once",
            "one_group",
            "bootstraps",
            "liveness",
        ],
    ),
    ("rule, seldom judged", 100, &["waits_and_says_why"]),
    (
        "frame",
        200,
        &[
            "Hello",
            "Bootstrap",
            "Join",
            "Leave",
            "Contribute",
            "Prepare",
            "Promise",
            "Open",
            "Opened",
            "Closed",
            "Attempt",
            "Admit",
            "Ready",
            "Accept",
            "Accepted",
            "Overtaken",
            "Decide",
            "Learn",
            "Learned",
            "Fork",
            "Broken",
            "GossipMixed",
            "GossipRefused",
            "GossipSkipped",
            "GossipAsk",
            "GossipReclaimed",
            "GoesOn",
            "Compare",
            "Published",
            "Equivocated",
            "Undecided",
            "AskSettings",
        ],
    ),
];

/// The number of runs, and in how many of them each item was seen.
#[derive(Clone, Debug, Default)]
pub struct Counters {
    runs: u64,
    seen: BTreeMap<&'static str, u64>,
}

impl Counters {
    /// Counts a run.
    pub fn take(&mut self, report: &Report) {
        self.runs += 1;
        let mut seen: BTreeSet<&'static str> = faults(report).collect();
        seen.extend(settings(report));
        seen.extend(report.coverage.iter().map(|(message, ..)| *message));
        let judged = report
            .verdicts
            .iter()
            .filter(|(_, verdict)| matches!(verdict, Verdict::Held { checked } if *checked > 0));
        seen.extend(judged.map(|(rule, _)| *rule));
        for name in seen {
            *self.seen.entry(name).or_default() += 1;
        }
    }

    /// Adds the counts of other runs.
    pub fn add(&mut self, other: &Self) {
        self.runs += other.runs;
        for (name, times) in &other.seen {
            *self.seen.entry(name).or_default() += times;
        }
    }

    /// Items seen in too few runs; empty if there were too few runs to judge.
    #[must_use]
    pub fn missed(&self) -> Vec<&'static str> {
        if self.runs < RUNS_MIN {
            return Vec::new();
        }
        let rows = self.rows().filter(|(.., runs, least)| runs < least);
        rows.map(|(_, name, ..)| name).collect()
    }

    /// Table with one line per item.
    #[must_use]
    pub fn table(&self) -> String {
        let mut text = format!("{:20} {:32} {:>8} {:>8}\n", "", "", "runs", "least");
        let mut before = "";
        for (group, name, runs, least) in self.rows() {
            let shown = if group == before { "" } else { group };
            before = group;
            let short = if runs < least { "  too few" } else { "" };
            text.push_str(&format!(
                "{shown:20} {name:32} {runs:>8} {least:>8}{short}\n"
            ));
        }
        text
    }

    fn rows(&self) -> impl Iterator<Item = (&'static str, &'static str, u64, u64)> + '_ {
        EXPECTED.iter().flat_map(move |(group, one_in, names)| {
            let least = (self.runs / one_in).max(1);
            names.iter().map(move |name| {
                (
                    *group,
                    *name,
                    self.seen.get(name).copied().unwrap_or(0),
                    least,
                )
            })
        })
    }
}

/// The kinds of faults that were carried out.
fn faults(report: &Report) -> impl Iterator<Item = &'static str> + '_ {
    let horizon = report.schedule.config.horizon;
    let done = move |timed: &&Timed| {
        timed.at.0 < horizon
            && timed
                .deeds()
                .iter()
                .any(|deed| !report.not_done.contains(deed))
    };
    report
        .schedule
        .faults
        .iter()
        .filter(done)
        .flat_map(|timed| timed.act.kinds())
}

/// The settings of the run, by name.
fn settings(report: &Report) -> Vec<&'static str> {
    let config = &report.schedule.config;
    let bad_link = |kind: &str| {
        [
            "cut",
            "cut one way",
            "delay",
            "loss",
            "narrow link",
            "break",
        ]
        .contains(&kind)
    };
    let mut settings = Vec::new();
    let mut note = |name: &'static str, is: bool| {
        if is {
            settings.push(name);
        }
    };
    note("quorum = majority", config.quorum == Quorum::Majority);
    note("quorum = survivors", config.quorum == Quorum::Survivors);
    note(
        "survivors with bad links",
        config.quorum == Quorum::Survivors && faults(report).any(bad_link),
    );
    for (replicas, name) in ["R = 0", "R = 1", "R = 2", "R = 3"].into_iter().enumerate() {
        note(name, config.replicas == replicas);
    }
    note("one group", config.groups == 1);
    note("several groups", config.groups > 1);
    let optimizer = config.algorithm.outer.map(|outer| outer.optimizer);
    note(
        "SlowMo",
        matches!(optimizer, Some(OuterOptimizer::SlowMo { .. })),
    );
    note(
        "Nesterov",
        matches!(optimizer, Some(OuterOptimizer::Nesterov { .. })),
    );
    note(
        "BMUF",
        matches!(optimizer, Some(OuterOptimizer::BmufNbm { .. })),
    );
    note("push-sum", matches!(config.algorithm.base, Base::Sgp(_)));
    note(
        "LocalSGD",
        matches!(config.algorithm.base, Base::LocalSgd { .. }),
    );
    note(
        "means of gradients",
        config.algorithm.base == Base::AllReduce,
    );
    note("no base algorithm", config.algorithm.base == Base::None);
    note("elastic sampler", config.samples.is_some());
    note("buffers", config.buffers > 0);
    note("frames of their true size", config.true_sizes);
    note("one node", config.founders.len() == 1);
    note(
        "fewer found than start",
        config.min_nodes < config.founders.len(),
    );
    settings
}

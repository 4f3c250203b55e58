//! The report for a terminal.

use super::super::measure::{Kind, Measures, Quantiles};
use super::expectations::percent;
use super::{Judged, Report};
use crate::invariants::Verdict;
use std::fmt;

/// Width of the name column.
const NAMES: usize = 22;

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}, seed {}: {}", self.scenario, self.seed, self.summary)?;
        writeln!(f)?;
        for judged in &self.invariants {
            let (mark, words) = judged.words();
            writeln!(f, "{mark} {:NAMES$} {words}", judged.name)?;
        }
        for judged in &self.broken_without_faults {
            writeln!(
                f,
                "✗ {:NAMES$} without faults: {}",
                judged.name,
                judged.words().1
            )?;
        }
        for expectation in &self.expectations {
            let mark = if expectation.met { "✓" } else { "✗" };
            writeln!(
                f,
                "{mark} {:NAMES$} {}; wanted: {}",
                expectation.name, expectation.got, expectation.wanted
            )?;
        }
        writeln!(f)?;
        figures(f, self)?;
        for note in &self.notes {
            writeln!(f, "note: {note}")?;
        }
        write!(
            f,
            "{}",
            if self.succeeded {
                "all held"
            } else {
                "not all held"
            }
        )
    }
}

fn figures(f: &mut fmt::Formatter<'_>, report: &Report) -> fmt::Result {
    let measures = &report.measures;
    let baseline = report.baseline.as_ref();
    let pair = |of: fn(&Measures) -> String| match baseline {
        Some(baseline) => format!("{} ({} without faults)", of(measures), of(baseline)),
        None => of(measures),
    };
    let share = report
        .throughput_share
        .map(|share| format!(", {}", percent(share)))
        .unwrap_or_default();
    let rows = [
        (
            "steps of a live node",
            format!(
                "{} a second{share}",
                pair(|measures| format!("{:.2}", measures.throughput))
            ),
        ),
        (
            "contributing",
            pair(|measures| percent(measures.contributing)),
        ),
        ("rounds", pair(|measures| measures.rounds.to_string())),
        (
            "time between rounds",
            pair(|measures| {
                format!(
                    "{:.0} ms, {:.0} at most",
                    measures.round_ms, measures.longest_gap_ms
                )
            }),
        ),
        ("next round", quantiles(&measures.next_round_ms)),
        ("contributes again", quantiles(&measures.back_ms)),
        ("whole again", quantiles(&measures.whole_ms)),
    ];
    for (name, figure) in rows {
        writeln!(f, "  {name:NAMES$} {figure}")?;
    }
    for Kind {
        name,
        count,
        next_round_ms,
        back_ms,
        stalled_ms,
    } in &measures.kinds
    {
        let back = if back_ms.count > 0 {
            format!("; back: {}", quantiles(back_ms))
        } else {
            String::new()
        };
        writeln!(
            f,
            "  {name:NAMES$} {count} times, rounds {stalled_ms:.0} ms later in all; next: {}{back}",
            quantiles(next_round_ms)
        )?;
    }
    for (name, growth, unit) in [
        ("memory", &measures.memory, 1e6),
        ("descriptors", &measures.descriptors, 1.0),
    ] {
        for survivor in growth.iter().flat_map(|growth| &growth.survivors) {
            let first = survivor.first / unit;
            let last = survivor.last / unit;
            writeln!(
                f,
                "  {:NAMES$} {first:.1} → {last:.1}, {}",
                format!("{name} of node {}", survivor.node),
                percent(survivor.growth)
            )?;
        }
    }
    Ok(())
}

fn quantiles(of: &Quantiles) -> String {
    match of.count {
        0 => "–".to_owned(),
        count => format!(
            "p50 {:.0} ms, p90 {:.0}, max {:.0} ({count})",
            of.p50, of.p90, of.max
        ),
    }
}

impl Judged {
    /// A mark and a line of text for the verdict.
    #[must_use]
    pub fn words(&self) -> (&'static str, String) {
        match &self.verdict {
            Verdict::Held { checked } => ("✓", format!("held, looked at {checked} times")),
            Verdict::NotShown { why } => ("–", format!("not shown: {why}")),
            Verdict::Violated(violation) => (
                "✗",
                format!(
                    "violated at {:.3} s: {}",
                    violation.at.0 as f64 / 1e6,
                    violation.what
                ),
            ),
        }
    }
}

//! The expectations of a scenario, compared with the measures.

use super::super::measure::{Growth, Measures};
use super::super::scenario::Expect;
use super::Kept;
use serde::{Deserialize, Serialize};

/// An expectation and whether it was met.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Expectation {
    /// Name of the expectation in the scenario.
    pub name: String,
    /// The required value, in words.
    pub wanted: String,
    /// The measured value, in words.
    pub got: String,
    /// Whether the measured value is sufficient.
    pub met: bool,
}

/// All expectations of the scenario, and that no process ended by itself.
pub(super) fn of(
    expect: &Expect,
    measures: &Measures,
    baseline: Option<&Measures>,
    share: Option<f64>,
) -> Vec<Expectation> {
    let mut all = vec![unattended(measures)];
    all.extend(
        expect
            .throughput
            .map(|least| throughput(least, measures, baseline, share)),
    );
    all.extend(expect.contributing.map(|least| Expectation {
        name: "contributing".into(),
        wanted: format!("at least {} of the live nodes in a round", percent(least)),
        got: percent(measures.contributing),
        met: measures.contributing >= least,
    }));
    all.extend(expect.victims_return.then(|| victims(measures)));
    all.extend(
        expect
            .whole_within_ms
            .map(|most| within("whole_within_ms", measures.whole_ms, most)),
    );
    all.extend(
        expect
            .next_round_within_ms
            .map(|most| within("next_round_within_ms", measures.next_round_ms, most)),
    );
    all.extend(
        expect
            .memory_growth
            .map(|most| growth("memory_growth", measures.memory.as_ref(), most)),
    );
    all.extend(
        expect
            .descriptor_growth
            .map(|most| growth("descriptor_growth", measures.descriptors.as_ref(), most)),
    );
    all
}

/// Expects that the kept checkpoint is whole.
pub(super) fn kept(kept: Option<&Kept>) -> Expectation {
    let none = Kept::default();
    let Kept { step, wrong } = kept.unwrap_or(&none);
    let newest = step.map_or_else(
        || "no whole checkpoint".to_owned(),
        |step| format!("a whole checkpoint of step {step}"),
    );
    Expectation {
        name: "checkpoint_kept".into(),
        wanted: "a whole checkpoint, and no part that is torn".into(),
        got: std::iter::once(&newest)
            .chain(wrong)
            .cloned()
            .collect::<Vec<_>>()
            .join("; "),
        met: step.is_some() && wrong.is_empty(),
    }
}

fn unattended(measures: &Measures) -> Expectation {
    let got = if measures.fell.is_empty() {
        "none did".to_owned()
    } else {
        measures.fell.join("; ")
    };
    Expectation {
        name: "unattended".into(),
        wanted: "no process ends unless it is killed or drained".into(),
        got,
        met: measures.fell.is_empty(),
    }
}

fn throughput(
    least: f64,
    measures: &Measures,
    baseline: Option<&Measures>,
    share: Option<f64>,
) -> Expectation {
    let got = match (baseline, share) {
        (Some(baseline), Some(share)) => {
            format!(
                "{} ({:.2} of {:.2} steps a second)",
                percent(share),
                measures.throughput,
                baseline.throughput
            )
        }
        _ => "not known: there was no fault-free run".to_owned(),
    };
    let wanted = format!(
        "at least {} of the fault-free throughput of a live node",
        percent(least)
    );
    Expectation {
        name: "throughput".into(),
        wanted,
        got,
        met: share.is_none_or(|share| share >= least),
    }
}

fn victims(measures: &Measures) -> Expectation {
    let Measures {
        episodes,
        returned,
        hit_again,
        missing,
        ..
    } = measures;
    let mut got = format!("{returned} of {episodes} did");
    if *hit_again > 0 {
        got.push_str(&format!(", {hit_again} were hit again first"));
    }
    if !missing.is_empty() {
        got.push_str(&format!("; {}", missing.join("; ")));
    }
    Expectation {
        name: "victims_return".into(),
        wanted: "every victim contributes again".into(),
        got,
        met: missing.is_empty(),
    }
}

fn within(name: &str, got: super::super::measure::Quantiles, most: u64) -> Expectation {
    Expectation {
        name: name.to_owned(),
        wanted: format!("at most {most} ms"),
        got: if got.count > 0 {
            format!("{:.0} ms at most, of {}", got.max, got.count)
        } else {
            "it never came to that".to_owned()
        },
        met: got.max <= most as f64,
    }
}

fn growth(name: &str, growth: Option<&Growth>, most: f64) -> Expectation {
    let wanted = format!("below {} for everybody who lived through", percent(most));
    let Some(growth) = growth else {
        return Expectation {
            name: name.to_owned(),
            wanted,
            got: "not known: nobody lived through, or equal numbers of nodes were not seen early \
                and late; run it longer"
                .into(),
            met: false,
        };
    };
    let one = |survivor: &super::super::measure::growth::Survivor| {
        format!("node {}: {}", survivor.node, percent(survivor.growth))
    };
    let got = growth
        .survivors
        .iter()
        .map(one)
        .collect::<Vec<_>>()
        .join(", ");
    Expectation {
        name: name.to_owned(),
        wanted,
        got,
        met: growth.worst < most,
    }
}

/// A share as a percentage, as text.
pub(super) fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

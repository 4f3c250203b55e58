//! The report as one self-contained page: a timeline with one lane per node, with faults, rounds
//! and losses over it, and tables.

mod chart;
mod lanes;
mod style;
mod tables;

use super::Report;
use crate::processes::measure::Observed;
use chart::Axis;
use slowmo_protocol::time::Instant;

/// The page of a run.
#[must_use]
pub fn page(report: &Report, run: &Observed) -> String {
    let axis = Axis::new(Instant(0), run.over);
    let title = format!("{}, seed {}", escape(&report.scenario), report.seed);
    let verdict = if report.succeeded {
        ("good", "all held")
    } else {
        ("bad", "not all held")
    };
    let parts = [
        format!(
            "<h1>{title} <span class='verdict {}'>{}</span></h1>",
            verdict.0, verdict.1
        ),
        format!(
            "<p>{}</p><p><code>{}</code></p>",
            escape(&report.summary),
            escape(&report.command)
        ),
        tables::verdicts(report),
        "<h2>Nodes</h2>".to_owned(),
        lanes::legend(),
        lanes::svg(run, &axis),
        "<h2>Nodes that were alive, members, contributors</h2>".to_owned(),
        chart::counts(run, &axis),
        "<h2>Time between decided rounds</h2>".to_owned(),
        chart::rounds(run, &axis),
        "<h2>Loss</h2>".to_owned(),
        chart::losses(run, &axis),
        tables::figures(report),
        tables::kinds(report),
        tables::growth(report),
        tables::notes(report),
    ];
    format!(
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>\
         <meta name='viewport' content='width=device-width'>\
         <title>{title}</title><style>{}</style></head><body>{}</body></html>\n",
        style::CSS,
        parts.concat()
    )
}

/// Text escaped for HTML.
fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('\'', "&#39;")
        .replace('"', "&quot;")
}

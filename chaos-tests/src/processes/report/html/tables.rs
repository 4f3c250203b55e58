//! Tables of verdicts and figures.

use super::super::Report;
use super::super::expectations::percent;
use super::escape;
use crate::processes::measure::growth::Survivor;
use crate::processes::measure::{Growth, Measures, Quantiles};

/// Table of invariants and expectations.
pub(super) fn verdicts(report: &Report) -> String {
    let mut rows = String::new();
    for judged in &report.invariants {
        let (mark, words) = judged.words();
        rows.push_str(&row(mark, &judged.name, &words));
    }
    for judged in &report.broken_without_faults {
        rows.push_str(&row(
            "✗",
            &judged.name,
            &format!("without faults: {}", judged.words().1),
        ));
    }
    for expectation in &report.expectations {
        let mark = if expectation.met { "✓" } else { "✗" };
        rows.push_str(&row(
            mark,
            &expectation.name,
            &format!("{}; wanted: {}", expectation.got, expectation.wanted),
        ));
    }
    format!("<h2>Verdicts</h2><table>{rows}</table>")
}

fn row(mark: &str, name: &str, words: &str) -> String {
    let class = match mark {
        "✓" => "good",
        "✗" => "bad",
        _ => "dim",
    };
    format!(
        "<tr><td class='v {class}'>{mark}</td><td class='name'>{}</td><td>{}</td></tr>",
        escape(name),
        escape(words)
    )
}

/// Table of the figures, beside those of the fault-free run.
pub(super) fn figures(report: &Report) -> String {
    type Figure = fn(&Measures) -> String;
    let figures: [(&str, Figure); 6] = [
        (
            "inner steps a second of a live node that went into the model",
            |measures| format!("{:.2}", measures.throughput),
        ),
        ("contributors of a round by live nodes", |measures| {
            percent(measures.contributing)
        }),
        ("decided rounds", |measures| measures.rounds.to_string()),
        ("time between rounds, p50", |measures| {
            format!("{:.0} ms", measures.round_ms)
        }),
        ("longest time without a decided round", |measures| {
            format!("{:.0} ms", measures.longest_gap_ms)
        }),
        ("seconds that nodes lived, summed", |measures| {
            format!("{:.0}", measures.node_seconds)
        }),
    ];
    let fault_free = |figure: Figure| {
        report
            .baseline
            .as_ref()
            .map_or_else(|| "–".to_owned(), figure)
    };
    let rows: String = figures
        .into_iter()
        .map(|(name, figure)| {
            format!(
                "<tr><td>{name}</td><td class='n'>{}</td><td class='n'>{}</td></tr>",
                figure(&report.measures),
                fault_free(figure)
            )
        })
        .collect();
    let share = report.throughput_share.map(|share| {
        format!(
            "<tr><td>share of the fault-free throughput</td><td class='n'>{}</td><td></td></tr>",
            percent(share)
        )
    });
    let header = "<tr><th></th><th class='n'>with faults</th><th class='n'>without</th></tr>";
    format!(
        "<h2>Figures</h2><table>{header}{rows}{}</table>",
        share.unwrap_or_default()
    )
}

/// Table of the consequences of each kind of fault.
pub(super) fn kinds(report: &Report) -> String {
    let cell = |of: &Quantiles| match of.count {
        0 => "<td class='n'>–</td>".to_owned(),
        _ => format!(
            "<td class='n'>{:.0} · {:.0} · {:.0}</td>",
            of.p50, of.p90, of.max
        ),
    };
    let measures = &report.measures;
    let mut rows: String = measures
        .kinds
        .iter()
        .map(|kind| {
            let next = cell(&kind.next_round_ms);
            let back = cell(&kind.back_ms);
            format!(
                "<tr><td>{}</td><td class='n'>{}</td>{next}{back}<td class='n'>{:.0}</td></tr>",
                escape(&kind.name),
                kind.count,
                kind.stalled_ms
            )
        })
        .collect();
    let next = cell(&measures.next_round_ms);
    let back = cell(&measures.back_ms);
    rows.push_str(&format!(
        "<tr><td><b>all</b></td><td class='n'>{}</td>{next}{back}<td></td></tr>",
        measures.next_round_ms.count
    ));
    rows.push_str(&format!(
        "<tr><td><b>whole again</b> after links were well</td>\
         <td class='n'>{}</td>{}<td></td><td></td></tr>",
        measures.whole_ms.count,
        cell(&measures.whole_ms)
    ));
    format!(
        "<h2>Faults</h2><p class='dim'>Milliseconds: p50 · p90 · max</p><table><tr><th></th>\
         <th class='n'>times</th>\
         <th class='n'>until the next decided round</th><th class='n'>until the victim contributes \
         again</th>\
         <th class='n'>rounds later than usual, summed</th></tr>{rows}</table>"
    )
}

/// Table of the growth of the survivors.
pub(super) fn growth(report: &Report) -> String {
    let table = |(name, growth, unit): (&str, &Option<Growth>, f64)| {
        let row = |Survivor {
                       node,
                       first,
                       last,
                       growth,
                       samples,
                   }: &Survivor| {
            let first = first / unit;
            let last = last / unit;
            format!(
                "<tr><td>{name} of node {node}</td><td class='n'>{first:.1}</td>\
                 <td class='n'>{last:.1}</td>\
                 <td class='n'>{}</td><td class='n'>{samples}</td></tr>",
                percent(*growth)
            )
        };
        growth
            .iter()
            .flat_map(|growth| &growth.survivors)
            .map(row)
            .collect::<String>()
    };
    let measures = &report.measures;
    let rows: String = [
        ("resident memory, MB,", &measures.memory, 1e6),
        ("open descriptors", &measures.descriptors, 1.0),
    ]
    .map(table)
    .concat();
    if rows.is_empty() {
        return String::new();
    }
    format!(
        "<h2>Processes that lived through</h2><p class='dim'>Medians of the first and the last \
         third of the measured time; growth compares samples at equal numbers of live \
         nodes.</p><table><tr><th></th>\
         <th class='n'>first</th><th class='n'>last</th>\
         <th class='n'>growth</th><th class='n'>samples</th></tr>{rows}</table>"
    )
}

/// Notes for the reader.
pub(super) fn notes(report: &Report) -> String {
    let traffic = report.traffic;
    let mut rows: String = report
        .notes
        .iter()
        .map(|note| format!("<li>{}</li>", escape(note)))
        .collect();
    rows.push_str(&format!(
        "<li>links carried {:.1} MB in {} datagrams, lost {} on purpose; the emulator itself \
         dropped {}</li>",
        traffic.bytes as f64 / 1e6,
        traffic.datagrams,
        traffic.lost,
        traffic.overrun
    ));
    format!("<h2>Notes</h2><ul>{rows}</ul>")
}

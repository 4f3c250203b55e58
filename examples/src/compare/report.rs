//! The comparison as a table for people and as one JSON object for programs.

use super::{
    BOTH_SHARDS, Figures, Outcome, PEER_NODES, PEER_SOURCE, PEER_STEPS, PeerFigures, Plan,
    peer_figures,
};
use crate::digits::{ParameterType, Shards};
use crate::method::{Methods, Wire};
use comfy_table::{CellAlignment, ContentArrangement, Table, presets};

/// Placeholder where there is no figure.
const NOTHING: &str = "–";

/// A whole comparison; serializes as one JSON object.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Report {
    nodes: usize,
    seeds: u64,
    steps: u64,
    batch: usize,
    learning_rate: f32,
    methods: Methods,
    /// Type in which the parameters are kept and lent.
    dtype: ParameterType,
    /// Whether the run was simulated: nothing sent, all nodes by exact arithmetic in one thread.
    simulated: bool,
    peer_source: &'static str,
    rows: Vec<Row>,
}

/// Figures of one method with one way of dealing the images.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
struct Row {
    method: &'static str,
    shards: Shards,
    train_loss_nats: Statistics,
    test_accuracy_percent: Statistics,
    sent_bytes_per_node: Option<f64>,
    /// Ratio of the bytes sent to those of the method that differs only in sending float32, where
    /// wire types are compared.
    sent_of_f32: Option<f64>,
    step_ms: Option<f64>,
    /// Figures of the peers; only where the plan equals theirs.
    peer: Option<PeerFigures>,
}

/// Statistics of a figure over the seeds.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
struct Statistics {
    mean: f64,
    standard_deviation: Option<f64>,
    by_seed: Vec<f64>,
}

impl Statistics {
    fn of(figures: &Figures, value: impl Fn(&Outcome) -> f64) -> Self {
        let (mean, standard_deviation) = figures.statistics(&value);
        Self {
            mean,
            standard_deviation,
            by_seed: figures.outcomes.iter().map(value).collect(),
        }
    }

    fn text(&self, digits: usize) -> String {
        let deviation = self
            .standard_deviation
            .map(|deviation| format!(" ± {deviation:.digits$}"));
        format!("{:.digits$}{}", self.mean, deviation.unwrap_or_default())
    }
}

impl Report {
    /// Builds the report of the `figures` that `plan` gave.
    #[must_use]
    pub fn new(plan: &Plan, figures: &[Figures]) -> Self {
        let Plan {
            nodes,
            seeds,
            steps,
            batch,
            learning_rate,
            methods,
            dtype,
            simulate,
            ..
        } = *plan;
        let comparable = nodes == PEER_NODES && steps == PEER_STEPS && dtype == ParameterType::F32;
        let sent_of_f32 = |row: &Figures| match methods {
            Methods::Wires => sent_of_f32(row, figures),
            _ => None,
        };
        let peer = |row: &Figures| match comparable {
            true => peer_figures(row.method.name, row.shards),
            false => None,
        };
        let row = |row: &Figures| Row {
            method: row.method.name,
            shards: row.shards,
            train_loss_nats: Statistics::of(row, |outcome| outcome.train_loss),
            test_accuracy_percent: Statistics::of(row, |outcome| 100.0 * outcome.test_accuracy),
            sent_bytes_per_node: row.sent_bytes_per_node,
            sent_of_f32: sent_of_f32(row),
            step_ms: row.step_ms,
            peer: peer(row),
        };
        let rows = figures.iter().map(row).collect();
        Self {
            nodes,
            seeds,
            steps,
            batch,
            learning_rate,
            methods,
            dtype,
            simulated: simulate,
            peer_source: PEER_SOURCE,
            rows,
        }
    }
}

fn sent_of_f32(row: &Figures, all: &[Figures]) -> Option<f64> {
    let plain = |other: &&Figures| {
        other.shards == row.shards
            && other.method.wire == Wire::Float32
            && other.method.is_alike(&row.method)
    };
    Some(row.sent_bytes_per_node? / all.iter().find(plain)?.sent_bytes_per_node?)
}

/// The report as text: one table per way of dealing the images, our figures beside the peers' where
/// both ran the same plan.
#[must_use]
pub fn table(report: &Report) -> String {
    let Report {
        nodes,
        seeds,
        steps,
        ..
    } = report;
    let how = if report.simulated {
        "simulated in one thread"
    } else {
        "over QUIC on loopback"
    };
    let spread = if *seeds > 1 {
        format!("mean ± standard deviation of {seeds} seeds")
    } else {
        "one seed".to_owned()
    };
    let dtype = report
        .dtype
        .half()
        .map(|half| format!("{} parameters, ", half.name()));
    let dtype = dtype.unwrap_or_default();
    let mut text =
        format!("Handwritten digits, {dtype}{nodes} nodes {how}, {steps} steps, {spread}\n");
    for shards in BOTH_SHARDS {
        let title = match shards {
            Shards::Even => "Even shards",
            Shards::Skewed => "Label-skewed shards (90 % sorted by class)",
        };
        let rows: Vec<_> = report
            .rows
            .iter()
            .filter(|row| row.shards == shards)
            .collect();
        if !rows.is_empty() {
            text.push_str(&format!("\n{title}\n{}\n", shards_table(&rows)));
        }
    }
    if report.rows.iter().any(|row| row.peer.is_some()) {
        text.push_str(&format!("\npeer: {}\n", report.peer_source));
    }
    text
}

/// Heading of a column, and the function that returns its text for a row.
type Column = (&'static str, fn(&Row) -> Option<String>);

const COLUMNS: [Column; 9] = [
    ("method", |row| Some(row.method.to_owned())),
    ("loss", |row| Some(row.train_loss_nats.text(4))),
    ("peer", |row| {
        row.peer.map(|peer| format!("{:.4}", peer.train_loss_nats))
    }),
    ("accuracy %", |row| Some(row.test_accuracy_percent.text(1))),
    ("peer", |row| {
        row.peer
            .map(|peer| format!("{:.1}", peer.test_accuracy_percent))
    }),
    ("kB sent / node", |row| {
        row.sent_bytes_per_node
            .map(|bytes| format!("{:.0}", bytes / 1e3))
    }),
    ("of f32", |row| {
        row.sent_of_f32.map(|ratio| format!("{ratio:.3}"))
    }),
    ("ms / step", |row| row.step_ms.map(|ms| format!("{ms:.2}"))),
    ("peer", |row| row.peer.map(|peer| range(peer.step_ms))),
];

/// Builds a table of the columns that have text in at least one row.
fn shards_table(rows: &[&Row]) -> Table {
    let mut table = Table::new();
    table
        .load_style(presets::UTF8_FULL_CONDENSED)
        .set_content_arrangement(ContentArrangement::Disabled);
    let columns: Vec<_> = COLUMNS
        .into_iter()
        .filter(|(_, show)| rows.iter().any(|row| show(row).is_some()))
        .collect();
    table.set_header(columns.iter().map(|(head, _)| *head));
    for row in rows {
        table.add_row(
            columns
                .iter()
                .map(|(_, show)| show(row).unwrap_or_else(|| NOTHING.to_owned())),
        );
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

fn range((lowest, highest): (f64, f64)) -> String {
    if lowest == highest {
        format!("{lowest:.1}")
    } else {
        format!("{lowest:.1}–{highest:.1}")
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn report(nodes: usize, methods: Methods) -> Report {
        let plan = Plan {
            nodes,
            seeds: 2,
            steps: 600,
            batch: 16,
            learning_rate: 0.02,
            methods,
            shards: None,
            dtype: ParameterType::F32,
            simulate: false,
        };
        let figures = |shards| {
            methods.all().into_iter().map(move |method| Figures {
                method,
                shards,
                outcomes: vec![
                    Outcome {
                        train_loss: 0.0195,
                        test_accuracy: 0.968,
                    },
                    Outcome {
                        train_loss: 0.0215,
                        test_accuracy: 0.968,
                    },
                ],
                sent_bytes_per_node: Some(if method.wire == Wire::Int8 {
                    312_345.0
                } else {
                    1_234_567.0
                }),
                step_ms: Some(0.61),
                curve: Vec::new(),
            })
        };
        Report::new(
            &plan,
            &BOTH_SHARDS
                .into_iter()
                .flat_map(figures)
                .collect::<Vec<_>>(),
        )
    }

    #[test]
    fn the_table_shows_ours_beside_the_peers() {
        let text = table(&report(4, Methods::Algorithms));
        println!("{text}");
        let row = text
            .lines()
            .find(|line| line.contains("LocalSGD + SlowMo τ=12"))
            .unwrap();
        for figure in [
            "0.0205 ± 0.0014",
            "0.0206",
            "96.8 ± 0.0",
            "1235",
            "0.61",
            "2.7",
        ] {
            assert!(row.contains(figure), "{figure} in {row}");
        }
        assert!(text.contains("fairscale 0.4.13") && !text.contains("of f32"));
        assert!(
            text.lines()
                .any(|line| line.contains("OSGP + SlowMo τ=48") && line.contains(NOTHING))
        );
    }

    #[test]
    fn wire_types_stand_beside_float32() {
        let text = table(&report(4, Methods::Wires));
        println!("{text}");
        assert!(text.contains("of f32") && !text.contains("peer"));
        for (method, ratio) in [
            ("OSGP + SlowMo f32", "1.000"),
            ("OSGP + SlowMo int8", "0.253"),
        ] {
            assert!(
                text.lines()
                    .any(|line| line.contains(method) && line.contains(ratio)),
                "{method}"
            );
        }
    }

    #[test]
    fn peers_are_left_out_where_the_task_is_another() {
        let report_of_eight = report(8, Methods::Algorithms);
        let json = serde_json::to_value(&report_of_eight).unwrap();
        assert_eq!(json["rows"][0]["peer"], serde_json::Value::Null);
        assert_eq!(json["rows"][19]["shards"], "skewed");
        assert_eq!(
            json["rows"][19]["test_accuracy_percent"]["by_seed"]
                .as_array()
                .unwrap()
                .len(),
            2
        );
        assert!(!table(&report_of_eight).contains("peer"));
        let json = serde_json::to_value(report(4, Methods::Algorithms)).unwrap();
        assert_eq!(json["rows"][0]["peer"]["train_loss_nats"], 0.0529);
    }
}

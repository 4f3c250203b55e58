//! The comparison as a table for people and as one JSON object for programs.

use super::{BOTH_SHARDS, Figures, PEER_NODES, PEER_SOURCE, PEER_STEPS, PeerFigures, Plan, peer_figures};
use crate::digits::Shards;
use comfy_table::{CellAlignment, ContentArrangement, Table, presets};

/// What stands where there is no figure.
const NOTHING: &str = "–";

/// A whole comparison; serializes as one object.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Report {
    nodes: usize,
    seeds: u64,
    steps: u64,
    batch: usize,
    learning_rate: f32,
    /// Whether nothing was sent: all nodes by exact arithmetic in one thread.
    simulated: bool,
    peer_source: &'static str,
    rows: Vec<Row>,
}

/// One method on one way to deal the images.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
struct Row {
    method: &'static str,
    shards: Shards,
    train_loss_nats: f64,
    test_accuracy_percent: f64,
    sent_bytes_per_node: Option<f64>,
    step_ms: Option<f64>,
    /// Only where the plan equals the peers'.
    peer: Option<PeerFigures>,
}

impl Report {
    /// The report of `figures` reached by `plan`.
    #[must_use]
    pub fn new(plan: &Plan, figures: &[Figures]) -> Self {
        let comparable = plan.nodes == PEER_NODES && plan.steps == PEER_STEPS;
        let row = |figures: &Figures| Row {
            method: figures.method.name,
            shards: figures.shards,
            train_loss_nats: figures.train_loss,
            test_accuracy_percent: 100.0 * figures.test_accuracy,
            sent_bytes_per_node: figures.sent_bytes_per_node,
            step_ms: figures.step_ms,
            peer: peer_figures(figures.method.name, figures.shards).filter(|_| comparable),
        };
        let Plan { nodes, seeds, steps, batch, learning_rate, simulate } = *plan;
        let rows = figures.iter().map(row).collect();
        Self { nodes, seeds, steps, batch, learning_rate, simulated: simulate, peer_source: PEER_SOURCE, rows }
    }
}

/// The report as text: one table for each way to deal the images, ours beside the peers'.
#[must_use]
pub fn table(report: &Report) -> String {
    let Report { nodes, seeds, steps, .. } = report;
    let how = if report.simulated { "simulated in one thread" } else { "over QUIC on loopback" };
    let mut text = format!("Handwritten digits, {nodes} nodes {how}, {steps} steps, mean of {seeds} seeds\n");
    for shards in BOTH_SHARDS {
        let title = match shards {
            Shards::Even => "Even shards",
            Shards::Skewed => "Label-skewed shards (90 % sorted by class)",
        };
        let rows: Vec<_> = report.rows.iter().filter(|row| row.shards == shards).collect();
        text.push_str(&format!("\n{title}\n{}\n", shards_table(&rows)));
    }
    text.push_str(&format!("\npeer: {}\n", report.peer_source));
    text
}

fn shards_table(rows: &[&Row]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED).set_content_arrangement(ContentArrangement::Disabled);
    let heads = ["method", "loss", "peer", "accuracy %", "peer", "kB sent / node", "ms / step", "peer"];
    table.set_header(heads);
    for row in rows {
        table.add_row(cells(row));
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

fn cells(row: &Row) -> [String; 8] {
    let or_nothing = |text: Option<String>| text.unwrap_or_else(|| NOTHING.to_owned());
    [
        row.method.to_owned(),
        format!("{:.4}", row.train_loss_nats),
        or_nothing(row.peer.map(|peer| format!("{:.4}", peer.train_loss_nats))),
        format!("{:.1}", row.test_accuracy_percent),
        or_nothing(row.peer.map(|peer| format!("{:.1}", peer.test_accuracy_percent))),
        or_nothing(row.sent_bytes_per_node.map(|bytes| format!("{:.0}", bytes / 1e3))),
        or_nothing(row.step_ms.map(|ms| format!("{ms:.2}"))),
        or_nothing(row.peer.map(|peer| range(peer.step_ms))),
    ]
}

fn range((lowest, highest): (f64, f64)) -> String {
    if lowest == highest { format!("{lowest:.1}") } else { format!("{lowest:.1}–{highest:.1}") }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::method::METHODS;

    fn report(nodes: usize) -> Report {
        let plan = Plan { nodes, seeds: 3, steps: 600, batch: 16, learning_rate: 0.02, simulate: false };
        let figures = |shards| {
            METHODS.map(|method| Figures {
                method,
                shards,
                train_loss: 0.0205,
                test_accuracy: 0.968,
                sent_bytes_per_node: Some(1_234_567.0),
                step_ms: Some(0.61),
                curve: Vec::new(),
            })
        };
        Report::new(&plan, &BOTH_SHARDS.map(figures).concat())
    }

    #[test]
    fn the_table_shows_ours_beside_the_peers() {
        let text = table(&report(4));
        println!("{text}");
        let row = text.lines().find(|line| line.contains("LocalSGD + SlowMo τ=12")).unwrap();
        for figure in ["0.0205", "0.0206", "96.8", "1235", "0.61", "2.7"] {
            assert!(row.contains(figure), "{figure} in {row}");
        }
        assert!(text.contains("fairscale 0.4.13"));
    }

    #[test]
    fn peers_are_left_out_where_the_task_is_another() {
        let json = serde_json::to_value(report(8)).unwrap();
        assert_eq!(json["rows"][0]["peer"], serde_json::Value::Null);
        assert_eq!(json["rows"][13]["shards"], "skewed");
        assert_eq!(serde_json::to_value(report(4)).unwrap()["rows"][0]["peer"]["train_loss_nats"], 0.0529);
    }
}

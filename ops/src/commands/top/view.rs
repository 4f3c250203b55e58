//! Draws the state of `slowmo top`.

use super::state::{Happened, Order, Top, step_of};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style, Stylize};
use ratatui::text::{Line, Text};
use ratatui::widgets::{Block, Cell, Paragraph, Row, Table, TableState};
use slowmo::internal::printable;
use slowmo::status::{MemberState, Status};
use std::collections::BTreeSet;

/// Lines of the header.
const HEAD_LINES: u16 = 3;
/// Rows of the event log, with its border, where there is space.
const EVENT_LINES: u16 = 10;

/// Draws everything.
pub fn draw(frame: &mut Frame<'_>, top: &Top) {
    let areas = Layout::vertical([
        Constraint::Length(HEAD_LINES),
        Constraint::Min(4),
        Constraint::Length(EVENT_LINES.min(frame.area().height / 3)),
        Constraint::Length(1),
    ]);
    let [head, nodes, events, foot] = areas.areas(frame.area());
    frame.render_widget(Paragraph::new(heading(top)), head);
    draw_nodes(frame, top, nodes);
    draw_events(frame, top, events);
    frame.render_widget(Paragraph::new(footing(top)), foot);
}

fn heading(top: &Top) -> Text<'static> {
    let Some(report) = top.furthest() else {
        return Text::from(vec![
            Line::from(top.name.clone()).bold(),
            Line::from("no node is a member yet"),
        ]);
    };
    let last = report.last_round;
    let rate = top
        .round_rate()
        .map_or_else(String::new, |rate| format!(", {rate:.2} a second"));
    let reports = || top.nodes.iter().filter_map(|(_, report)| report.as_ref());
    let waits = reports()
        .find_map(|report| report.waiting_for.clone())
        .or_else(|| reports().find_map(|report| report.awaits.clone()));
    let third = match waits {
        Some(why) => Line::from(format!("waits: {}", printable(&why))).yellow(),
        None => Line::from(format!(
            "momentum lost: {} shards, push-sum weight lost: {:.3}",
            report.momentum_lost, report.push_sum_weight_lost
        )),
    };
    Text::from(vec![
        Line::from(format!(
            "{}  view {} of {}",
            printable(&top.name),
            report.epoch,
            printable(&report.lineage)
        ))
        .bold(),
        Line::from(format!(
            "round {}{rate}; last one: {} contributors of {} alive of {} members, published in \
             {:.1} ms",
            report.round,
            last.contributors,
            last.alive,
            last.members,
            last.published_us as f64 / 1e3
        )),
        third,
    ])
}

fn draw_nodes(frame: &mut Frame<'_>, top: &Top, area: Rect) {
    let header = [
        "node",
        "standing",
        "round",
        "step",
        "steps/s",
        "loss",
        "disagree",
        "late",
        "checkpoint",
        "device",
    ];
    let widths = [6, 9, 8, 10, 8, 10, 9, 5, 11, 12].map(Constraint::Min);
    let rows = top.nodes.iter().map(|(node, report)| match report {
        None => Row::new([node.to_string(), "no answer".to_owned()]).dim(),
        Some(report) => row(top, *node, report),
    });
    let table = Table::new(rows, widths)
        .header(
            Row::new(header)
                .style(Style::new().add_modifier(Modifier::BOLD | Modifier::UNDERLINED)),
        )
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
    frame.render_stateful_widget(
        table,
        area,
        &mut TableState::default().with_selected(Some(top.chosen)),
    );
}

fn row(top: &Top, node: usize, report: &Status) -> Row<'static> {
    let none = || "–".to_owned();
    let standing = Cell::from(report.standing.name());
    let standing = if report.standing == MemberState::Member {
        standing.green()
    } else {
        standing.yellow()
    };
    let in_gossip = report.gossip.as_ref().map_or(0, |gossip| gossip.late.len());
    let late = (in_gossip + report.stragglers.len()).to_string();
    let checkpoint = report.checkpoints.as_ref().map_or_else(none, |told| {
        let step = told.last_step.map_or_else(none, |step| step.to_string());
        if told.error.is_some() {
            format!("{step} FAILS")
        } else {
            step
        }
    });
    Row::new([
        Cell::from(node.to_string()),
        standing,
        Cell::from(report.round.to_string()),
        Cell::from(step_of(report).to_string()),
        Cell::from(
            top.step_rate(node)
                .map_or_else(none, |rate| format!("{rate:.1}")),
        ),
        Cell::from(
            report
                .loss
                .map_or_else(none, |loss| format!("{:.4}", loss.loss)),
        ),
        Cell::from(
            report
                .disagreement
                .map_or_else(none, |distance| format!("{distance:.1e}")),
        ),
        Cell::from(late),
        Cell::from(checkpoint),
        Cell::from(printable(&report.devices.join(", ")).into_owned()),
    ])
}

fn draw_events(frame: &mut Frame<'_>, top: &Top, area: Rect) {
    let room = usize::from(area.height.saturating_sub(2));
    let newest = top
        .events
        .iter()
        .rev()
        .take(room)
        .collect::<Vec<_>>()
        .into_iter()
        .rev();
    let told = |nodes: &BTreeSet<usize>| {
        nodes
            .iter()
            .map(usize::to_string)
            .collect::<Vec<_>>()
            .join(", ")
    };
    let line = |event: &Happened| {
        Line::from(format!(
            "{}  {}  (told by {})",
            time_of_day(event.at_us),
            event.what,
            told(&event.nodes)
        ))
    };
    let lines = newest.map(line);
    let block = Block::bordered().title("what happened");
    frame.render_widget(Paragraph::new(lines.collect::<Vec<_>>()).block(block), area);
}

/// Time of day in UTC, from microseconds since 1970.
fn time_of_day(at_us: u64) -> String {
    let seconds = at_us / 1_000_000 % 86_400;
    format!(
        "{:02}:{:02}:{:02}",
        seconds / 3600,
        seconds / 60 % 60,
        seconds % 60
    )
}

fn footing(top: &Top) -> Line<'static> {
    let asks = |what: String| Line::from(format!("{what}? y for yes, any other key for no")).bold();
    match (top.asks, &top.said) {
        (Some(Order::Drain(node)), _) => asks(format!("let node {node} hand over and leave")),
        (Some(Order::Kill(node)), _) => asks(format!("kill node {node}")),
        (Some(Order::Scale(nodes)), _) => asks(format!("run {nodes} nodes")),
        (_, Some(said)) => Line::from(said.clone()),
        _ => Line::from("↑ ↓ choose   d drain   x kill   + - scale   q quit").dim(),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::state::tests::polled;
    use super::*;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use ratatui::crossterm::event::KeyCode;
    use std::time::{Duration, Instant};

    fn drawn(top: &Top, (width, height): (u16, u16)) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, top)).unwrap();
        terminal.backend().to_string()
    }

    #[test]
    fn nodes_rounds_loss_rates_and_events_are_there() {
        let start = Instant::now();
        let mut top = Top::new("job 7".to_owned(), polled(start, 100));
        top.take(polled(start + Duration::from_secs(2), 140));
        let picture = drawn(&top, (120, 24));
        for part in [
            "job 7  view 3",
            "round 35, 5.00 a second",
            "2 contributors of 2 alive",
            "20.0",
            "0.5000",
            "no answer",
            "22:13:20  node-2 joined in round-3  (told by 1)",
            "d drain",
        ] {
            assert!(picture.contains(part), "{part} in\n{picture}");
        }
        top.press(KeyCode::Char('x'));
        assert!(drawn(&top, (120, 24)).contains("kill node 1? y for yes"));
    }

    #[test]
    fn what_nodes_tell_is_drawn_without_control_characters() {
        let mut polled = polled(Instant::now(), 100);
        if let Some(report) = &mut polled.nodes[0].1 {
            report.events[0].what = "\x1b[2Jnode-2 joined".to_owned();
            report.waiting_for = Some("\u{202e}node 3\r".to_owned());
        }
        let picture = drawn(&Top::new("job 7".to_owned(), polled), (120, 24));
        for part in ["\\u{1b}[2Jnode-2 joined", "waits: \\u{202e}node 3\\r"] {
            assert!(picture.contains(part), "{part} in\n{picture}");
        }
    }

    #[test]
    fn a_tiny_terminal_is_no_error() {
        let top = Top::new("job 7".to_owned(), polled(Instant::now(), 100));
        for size in [(1, 1), (20, 5), (300, 100)] {
            drawn(&top, size);
        }
    }
}

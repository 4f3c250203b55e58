//! State of `slowmo top`: polls turned into rates and events, keys turned into orders.

use ratatui::crossterm::event::KeyCode;
use slowmo::internal::printable;
use slowmo::status::{MemberState, Status};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Instant;

/// Most events kept.
const EVENTS_MAX: usize = 200;
/// Equal messages from several nodes within this time count as one event, in microseconds.
const SAME_EVENT_US: u64 = 10_000_000;
/// Window over which rates are computed, in polls.
const RATE_POLLS: usize = 10;

/// Result of a poll.
#[derive(Clone, Debug, Default)]
pub struct Polled {
    /// Time of the poll.
    pub at: Option<Instant>,
    /// Each node's report; `None` for a node that does not answer.
    pub nodes: Vec<(usize, Option<Status>)>,
    /// Result of an order, as text.
    pub said: Option<String>,
}

/// Order that a key gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// End the program.
    Quit,
    /// Let a node hand over and leave.
    Drain(usize),
    /// Kill a node's process.
    Kill(usize),
    /// Scale to this many nodes.
    Scale(usize),
}

/// An event in the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Happened {
    /// Time of its first report, in microseconds since 1970.
    pub at_us: u64,
    /// Text of the event.
    pub what: String,
    /// Nodes that reported it, ascending.
    pub nodes: BTreeSet<usize>,
}

/// The content of the picture.
#[derive(Debug)]
pub struct Top {
    /// Name of the job or node.
    pub name: String,
    /// The last reports.
    pub nodes: Vec<(usize, Option<Status>)>,
    /// Events, oldest first.
    pub events: Vec<Happened>,
    /// Index of the chosen row.
    pub chosen: usize,
    /// Order that needs confirmation by a second key.
    pub asks: Option<Order>,
    /// Result of the last order, as text.
    pub said: Option<String>,
    seen: BTreeSet<(u64, usize, String)>,
    steps: BTreeMap<usize, VecDeque<(Instant, u64)>>,
    rounds: VecDeque<(Instant, u64)>,
}

impl Top {
    /// Builds the picture from a first poll.
    pub fn new(name: String, polled: Polled) -> Self {
        let mut top = Self {
            name,
            nodes: Vec::new(),
            events: Vec::new(),
            chosen: 0,
            asks: None,
            said: None,
            seen: BTreeSet::new(),
            steps: BTreeMap::new(),
            rounds: VecDeque::new(),
        };
        top.take(polled);
        top
    }

    /// Adds the result of a poll.
    pub fn take(&mut self, polled: Polled) {
        let said = polled.said.map(|said| printable(&said).into_owned());
        self.said = said.or(self.said.take());
        let Some(at) = polled.at else { return };
        self.nodes = polled.nodes;
        self.chosen = self.chosen.min(self.nodes.len().saturating_sub(1));
        for (node, report) in self
            .nodes
            .iter()
            .filter_map(|(node, report)| Some((*node, report.as_ref()?)))
        {
            note(self.steps.entry(node).or_default(), at, step_of(report));
            for event in &report.events {
                let what = printable(&event.what).into_owned();
                let event = (event.at_us, node, what);
                if self.seen.insert(event.clone()) {
                    happened(&mut self.events, event);
                }
            }
        }
        self.events.sort_by_key(|event| event.at_us);
        self.events
            .drain(..self.events.len().saturating_sub(EVENTS_MAX));
        // Events shown once are not shown again; events that every node has forgotten need not be
        // remembered.
        if self.seen.len() > 64 * EVENTS_MAX
            && let Some(oldest) = self.events.first()
        {
            self.seen = self.seen.split_off(&(oldest.at_us, 0, String::new()));
        }
        let present: BTreeSet<usize> = self.nodes.iter().map(|(node, _)| *node).collect();
        self.steps.retain(|node, _| present.contains(node));
        if let Some(round) = self.furthest().map(|report| report.round) {
            note(&mut self.rounds, at, round);
        }
    }

    /// The report of the member that is furthest ahead.
    pub fn furthest(&self) -> Option<&Status> {
        let reports = self.nodes.iter().filter_map(|(_, report)| report.as_ref());
        reports
            .filter(|report| report.standing != MemberState::Joining)
            .max_by_key(|report| report.round)
    }

    /// Inner steps per second of a node.
    pub fn step_rate(&self, node: usize) -> Option<f64> {
        self.steps.get(&node).and_then(rate)
    }

    /// Decided rounds per second.
    pub fn round_rate(&self) -> Option<f64> {
        rate(&self.rounds)
    }

    /// Id of the chosen node.
    pub fn chosen_node(&self) -> Option<usize> {
        self.nodes.get(self.chosen).map(|(node, _)| *node)
    }

    /// Handles a key press. Orders that change something need a confirmation with y.
    pub fn press(&mut self, key: KeyCode) -> Option<Order> {
        if let Some(order) = self.asks.take() {
            self.said = None;
            return (key == KeyCode::Char('y')).then_some(order);
        }
        let node = self.chosen_node();
        match key {
            KeyCode::Char('q') | KeyCode::Esc => return Some(Order::Quit),
            KeyCode::Up | KeyCode::Char('k') => self.chosen = self.chosen.saturating_sub(1),
            KeyCode::Down | KeyCode::Char('j') => {
                self.chosen = (self.chosen + 1).min(self.nodes.len().saturating_sub(1))
            }
            KeyCode::Char('d') => self.asks = node.map(Order::Drain),
            KeyCode::Char('x') => self.asks = node.map(Order::Kill),
            KeyCode::Char('+') => self.asks = Some(Order::Scale(self.nodes.len() + 1)),
            KeyCode::Char('-') if self.nodes.len() > 1 => {
                self.asks = Some(Order::Scale(self.nodes.len() - 1))
            }
            _ => {}
        }
        None
    }
}

/// The inner step at which a node's training is; rounds go on while it stands still.
pub fn step_of(report: &Status) -> u64 {
    report
        .training
        .map_or(report.step, |training| training.step)
}

/// Adds an event reported by a node; several nodes may report the same one.
fn happened(events: &mut Vec<Happened>, (at_us, node, what): (u64, usize, String)) {
    let same =
        |event: &&mut Happened| event.what == what && event.at_us.abs_diff(at_us) < SAME_EVENT_US;
    match events.iter_mut().rev().find(same) {
        Some(event) => {
            event.at_us = event.at_us.min(at_us);
            event.nodes.insert(node);
        }
        None => events.push(Happened {
            at_us,
            what,
            nodes: BTreeSet::from([node]),
        }),
    }
}

fn note(counts: &mut VecDeque<(Instant, u64)>, at: Instant, count: u64) {
    if counts.back().is_some_and(|(_, before)| *before > count) {
        // A restarted node counts from the beginning.
        counts.clear();
    }
    counts.push_back((at, count));
    while counts.len() > RATE_POLLS {
        counts.pop_front();
    }
}

fn rate(counts: &VecDeque<(Instant, u64)>) -> Option<f64> {
    let (first, before) = counts.front()?;
    let (last, now) = counts.back()?;
    let seconds = last.saturating_duration_since(*first).as_secs_f64();
    (seconds > 0.0).then(|| now.saturating_sub(*before) as f64 / seconds)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
pub mod tests {
    use super::*;
    use slowmo::status::{Event, LastRound, Loss, MemberStatus, TrainingStatus};
    use std::time::Duration;

    pub fn report(node: u64, step: u64) -> Status {
        Status {
            node,
            standing: MemberState::Member,
            lineage: "00112233445566778899aabbccddeeff".to_owned(),
            epoch: 3,
            round: step / 4,
            step,
            training: Some(TrainingStatus { step, ms: 0 }),
            stragglers: vec![],
            devices: vec!["cpu".to_owned()],
            members: vec![MemberStatus {
                node,
                address: "127.0.0.1:7000".to_owned(),
                devices: 1,
                alive: true,
                group: None,
            }],
            max_nodes: 4096,
            last_round: LastRound {
                members: 2,
                alive: 2,
                contributors: 2,
                published_us: 1200,
            },
            contributors: vec![1, 2],
            momentum_lost: 0,
            settings: Vec::new(),
            push_sum_weight_lost: 0.0,
            push_sum_weight_doubled: 0.0,
            disagreement: Some(0.01),
            loss: Some(Loss { step, loss: 0.5 }),
            measures: std::collections::BTreeMap::new(),
            gossip: None,
            checkpoints: None,
            waiting_for: None,
            awaits: None,
            http: None,
            events: vec![Event {
                at_us: 1_700_000_000_000_000 + node,
                what: "node-2 joined in round-3".to_owned(),
            }],
        }
    }

    pub fn polled(at: Instant, step: u64) -> Polled {
        Polled {
            at: Some(at),
            nodes: vec![(1, Some(report(1, step))), (2, None)],
            said: None,
        }
    }

    #[test]
    fn polls_become_rates_and_events_are_shown_once() {
        let start = Instant::now();
        let mut both = polled(start, 100);
        both.nodes[1].1 = Some(report(2, 100));
        let mut top = Top::new("job 7".to_owned(), both);
        assert_eq!(
            top.events
                .iter()
                .map(|event| event.nodes.len())
                .collect::<Vec<_>>(),
            [2],
            "both told the same"
        );
        assert_eq!(top.step_rate(1), None);
        top.take(polled(start + Duration::from_secs(2), 140));
        assert_eq!(
            (top.step_rate(1), top.round_rate(), top.step_rate(2)),
            (Some(20.0), Some(5.0), None)
        );
        assert_eq!(top.events.len(), 1);
        // It was started anew.
        top.take(polled(start + Duration::from_secs(3), 8));
        assert_eq!(top.step_rate(1), None);
    }

    #[test]
    fn what_changes_something_wants_a_second_key() {
        let mut top = Top::new("job 7".to_owned(), polled(Instant::now(), 100));
        assert_eq!(
            (top.press(KeyCode::Down), top.chosen_node()),
            (None, Some(2))
        );
        assert_eq!(
            (top.press(KeyCode::Char('x')), top.asks),
            (None, Some(Order::Kill(2)))
        );
        assert_eq!((top.press(KeyCode::Char('n')), top.asks), (None, None));
        assert_eq!(top.press(KeyCode::Char('d')), None);
        assert_eq!(top.press(KeyCode::Char('y')), Some(Order::Drain(2)));
        assert_eq!(top.press(KeyCode::Char('+')), None);
        assert_eq!(top.press(KeyCode::Char('y')), Some(Order::Scale(3)));
        assert_eq!(top.press(KeyCode::Char('q')), Some(Order::Quit));
    }
}

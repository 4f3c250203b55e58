//! Measures of small traces made by hand. Pure.
#![allow(clippy::unwrap_used)]

use super::*;
use slowmo_protocol::coordinator::RoundKind;
use slowmo_protocol::ident::{Epoch, Incarnation, Lineage, NodeId, Round as Number, Step};
use slowmo_protocol::trace::{Decided, End, Event, Fault, Line, Link, Place, Start};

fn start(node: u64, incarnation: u64) -> Start {
    Start {
        node: NodeId(node),
        incarnation: Incarnation(incarnation),
    }
}

#[derive(Default)]
struct Trace(Observed);

impl Trace {
    /// At so many milliseconds.
    fn at(&mut self, ms: u64, event: Event) -> &mut Self {
        self.0.observe(&Line {
            at: Instant(ms * 1000),
            event,
        });
        self
    }

    fn fault(&mut self, ms: u64, fault: Fault) -> &mut Self {
        self.at(ms, Event::Faulted { fault })
    }

    /// A round of ten steps, applied by its members one millisecond after the other.
    fn round(&mut self, ms: u64, round: u64, contributors: &[Start], next: &[Start]) -> &mut Self {
        let members: Vec<Start> = if round == 0 {
            next.to_vec()
        } else {
            contributors.to_vec()
        };
        let decided = Decided {
            place: Place {
                lineage: Lineage(9),
                round: Number(round),
            },
            began_in: Lineage(9),
            kind: if round == 0 {
                RoundKind::Bootstrap
            } else {
                RoundKind::Slow
            },
            step: Step(round * 10),
            gamma: 0.1,
            contributors: contributors.iter().map(|start| start.node).collect(),
            participants: Vec::new(),
            members,
            epoch: Epoch(1),
            next: next.to_vec(),
            waiting: Vec::new(),
            retained: Vec::new(),
            leader: next[0].node,
            absent: Vec::new(),
            momentum_lost: 0,
        };
        for (index, start) in next.iter().enumerate() {
            let decided = Box::new(decided.clone());
            let holds = Vec::new();
            self.at(
                ms + index as u64,
                Event::Applied {
                    start: *start,
                    decided,
                    digest: 1,
                    values: Vec::new(),
                    holds,
                    drained: false,
                    votes: None,
                },
            );
        }
        self
    }
}

/// Two nodes found at 0 s and decide a round a second; node 2 is killed at 3.5 s, started at 5.5 s
/// and contributes again at 8 s.
fn one_kill() -> Observed {
    let one = start(1, 1);
    let two = start(2, 1);
    let again = start(2, 2);
    let mut trace = Trace::default();
    trace
        .at(0, Event::Started(one))
        .at(0, Event::Started(two))
        .round(500, 0, &[one], &[one, two]);
    (1..=3).for_each(|round| _ = trace.round(round * 1000, round, &[one, two], &[one, two]));
    trace.fault(3_500, Fault::Kill { node: NodeId(2) }).at(
        3_500,
        Event::Ended {
            start: two,
            end: End::Killed,
        },
    );
    trace
        .round(4_800, 4, &[one], &[one])
        .fault(5_500, Fault::Start { node: NodeId(2) })
        .at(5_600, Event::Started(again));
    trace
        .round(6_000, 5, &[one], &[one])
        .round(7_000, 6, &[one], &[one, again]);
    trace
        .round(8_000, 7, &[one, again], &[one, again])
        .at(9_000, Event::Quiet)
        .at(10_000, Event::Over);
    trace.0
}

#[test]
fn throughput_counts_the_steps_of_contributors_by_the_seconds_that_nodes_lived() {
    let measures = Measures::of(&one_kill(), Span(0));
    // The window is from 1 s to 9 s: rounds 2 and 3 of two nodes, 4, 5 and 6 of one, 7 of two.
    assert_eq!(
        (measures.rounds, measures.steps, measures.window_s),
        (6, 90, 8.0)
    );
    // Node 1 lived for 8 s, node 2 for 2.5 s and 3.4 s.
    assert!(
        (measures.node_seconds - 13.9).abs() < 1e-9
            && (measures.throughput - 90.0 / 13.9).abs() < 1e-9
    );
    // Of the rounds 2 to 7: all, all, all, one of two, one of two, all.
    assert!(
        (measures.contributing - 5.0 / 6.0).abs() < 1e-9,
        "{}",
        measures.contributing
    );
    assert!((measures.round_ms, measures.longest_gap_ms) == (1000.0, 1800.0));
}

#[test]
fn a_victim_is_back_when_its_new_start_contributes() {
    let measures = Measures::of(&one_kill(), Span(0));
    let kind = |name: &str| {
        measures
            .kinds
            .iter()
            .find(|kind| kind.name == name)
            .unwrap()
    };
    assert_eq!(
        (
            kind("kill").next_round_ms.max,
            kind("start").next_round_ms.max
        ),
        (1300.0, 500.0)
    );
    assert_eq!(
        (kind("kill").stalled_ms, kind("kill").back_ms.max),
        (800.0, 2500.0)
    );
    assert_eq!(
        (measures.episodes, measures.returned, measures.hit_again),
        (1, 1, 0)
    );
    assert!(measures.missing.is_empty() && measures.fell.is_empty());
}

#[test]
fn whoever_never_contributes_again_is_named_unless_it_is_hit_again() {
    let one = start(1, 1);
    let two = start(2, 1);
    let story = |again: bool| {
        let mut trace = Trace::default();
        trace
            .at(0, Event::Started(one))
            .at(0, Event::Started(two))
            .round(500, 0, &[one], &[one, two])
            .round(1000, 1, &[one, two], &[one, two]);
        trace
            .fault(
                1_500,
                Fault::Pause {
                    node: NodeId(2),
                    span: Span::from_millis(500),
                },
            )
            .round(4_000, 2, &[one], &[one]);
        if again {
            trace.fault(5_000, Fault::Kill { node: NodeId(2) }).at(
                5_000,
                Event::Ended {
                    start: two,
                    end: End::Killed,
                },
            );
        }
        trace.at(9_000, Event::Quiet).at(9_000, Event::Over);
        Measures::of(&trace.0, Span(0))
    };
    assert_eq!(
        story(false).missing,
        ["node 2 did not contribute again after its pause (2.0 s)"]
    );
    assert_eq!((story(true).missing.len(), story(true).hit_again), (0, 1));
}

#[test]
fn nodes_are_whole_when_all_have_applied_a_round_decided_after_the_heal() {
    let one = start(1, 1);
    let two = start(2, 1);
    let three = start(3, 1);
    let mut trace = Trace::default();
    [one, two, three]
        .into_iter()
        .for_each(|start| _ = trace.at(0, Event::Started(start)));
    trace.round(500, 0, &[one], &[one, two, three]).round(
        1000,
        1,
        &[one, two, three],
        &[one, two, three],
    );
    let links = |link| Fault::Links {
        from: vec![NodeId(1), NodeId(2)],
        to: vec![NodeId(3)],
        link,
    };
    trace
        .fault(
            1_500,
            links(Link {
                cut: true,
                ..Link::default()
            }),
        )
        .round(3_000, 2, &[one, two], &[one, two]);
    trace
        .fault(4_000, links(Link::default()))
        .fault(4_000, Fault::Heal)
        .round(5_000, 3, &[one, two], &[one, two]);
    trace
        .round(6_000, 4, &[one, two], &[one, two, three])
        .at(8_000, Event::Quiet)
        .at(8_000, Event::Over);
    let measures = Measures::of(&trace.0, Span(0));
    assert_eq!(
        (measures.whole_ms.count, measures.whole_ms.max),
        (1, 2002.0)
    );
    assert_eq!(measures.kinds.len(), 1, "{:?}", measures.kinds);
    assert_eq!(
        measures.missing,
        ["node 3 did not contribute again after its links (4.0 s)"]
    );
}

#[test]
fn a_process_that_nobody_ended_is_named() {
    let mut trace = Trace::default();
    trace
        .at(0, Event::Started(start(1, 1)))
        .at(
            700,
            Event::Ended {
                start: start(1, 1),
                end: End::Failed,
            },
        )
        .at(900, Event::Over);
    assert_eq!(
        Measures::of(&trace.0, Span(0)).fell,
        ["node 1 ended by itself after 0.7 s (Failed)"]
    );
}

#[test]
fn growth_compares_samples_at_equal_numbers_of_nodes() {
    let one = start(1, 1);
    let two = start(2, 1);
    let mut trace = Trace::default();
    trace
        .at(0, Event::Started(one))
        .round(0, 0, &[one], &[one])
        .round(0, 1, &[one], &[one]);
    // Twice as much while another node lives, and one percent more at the end.
    for second in 0..90 {
        let lives = (20..40).contains(&second) || (70..80).contains(&second);
        match second {
            20 | 70 => _ = trace.at(second * 1000, Event::Started(two)),
            40 | 80 => {
                _ = trace.at(
                    second * 1000,
                    Event::Ended {
                        start: two,
                        end: End::Killed,
                    },
                )
            }
            _ => {}
        }
        let value = 1000 * (1 + u64::from(lives)) * (100 + u64::from(second >= 60)) / 100;
        trace.at(
            second * 1000 + 1,
            Event::Gauge {
                start: one,
                name: MEMORY.into(),
                value,
                bound: u64::MAX,
            },
        );
    }
    trace.at(90_000, Event::Quiet).at(90_000, Event::Over);
    let growth = Measures::of(&trace.0, Span(0)).memory.unwrap();
    assert_eq!(growth.survivors.len(), 1);
    assert!((growth.worst - 0.01).abs() < 1e-9, "{growth:?}");
}

#[test]
fn quantiles_are_by_nearest_rank() {
    let all = Quantiles::of((1..=10).map(f64::from));
    assert_eq!((all.count, all.p50, all.p90, all.max), (10, 5.0, 9.0, 10.0));
    assert_eq!(Quantiles::of([]), Quantiles::default());
}

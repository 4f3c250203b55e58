//! How fast the dead are found, and that the living are not: measured over many seeds, and printed.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout)]

mod events;
mod simulation;

use crate::liveness::DownCause;
use crate::time::{Instant, Span};
use simulation::{Network, Simulation};

const SECOND: u64 = 1_000_000;

/// Milliseconds from `begun` to each of `found`, sorted.
fn times(begun: Instant, found: &[Instant]) -> Vec<f64> {
    found
        .iter()
        .map(|at| at.since(begun).0 as f64 / 1000.0)
        .collect()
}

fn quantile(sorted: &[f64], part: f64) -> f64 {
    sorted[((sorted.len() - 1) as f64 * part).round() as usize]
}

/// Prints and returns p50, p99 and the maximum.
fn report(what: &str, mut times: Vec<f64>) -> (f64, f64, f64) {
    times.sort_by(f64::total_cmp);
    let shown = (
        quantile(&times, 0.5),
        quantile(&times, 0.99),
        quantile(&times, 1.0),
    );
    println!(
        "{what}: p50 {:.0} ms, p99 {:.0} ms, max {:.0} ms of {}",
        shown.0,
        shown.1,
        shown.2,
        times.len()
    );
    shown
}

/// Runs `runs` seeds in which a node of `count` is killed or stopped at a random moment; the time
/// until each survivor knows.
fn detection(count: u64, runs: u64, network: Network, stop: bool) -> Vec<f64> {
    let mut all = Vec::new();
    for seed in 0..runs {
        let mut simulation = Simulation::new(count, network, seed);
        let begun = Instant(SECOND + simulation.roll(SECOND));
        let victim = simulation.roll(count);
        if stop {
            simulation.pause_at(begun, victim, Span(60 * SECOND))
        } else {
            simulation.kill_at(begun, victim)
        }
        simulation.run_until(Instant(8 * SECOND));
        let found = simulation.found_down(victim);
        assert_eq!(
            found.len() as u64,
            count - 1,
            "seed {seed}: every survivor knows, once"
        );
        // Who found it silent is told again that it ended.
        let ended = simulation
            .verdicts
            .iter()
            .filter(|verdict| verdict.down.is_some_and(DownCause::has_ended))
            .count() as u64;
        let again = simulation.verdicts.len() as u64 - (count - 1);
        assert!(
            again <= ended && ended < count && (again == 0 || !stop),
            "seed {seed}: {:?}",
            simulation.verdicts
        );
        all.extend(times(begun, &found));
    }
    all
}

#[test]
fn a_killed_process_is_found_by_its_hosts_refusal() {
    for count in [2, 3, 8, 16, 24] {
        let (_, _, max) = report(
            &format!("killed, {count} nodes"),
            detection(count, 60, Network::default(), false),
        );
        assert!(max < 300.0);
    }
}

#[test]
fn a_stopped_process_is_found_by_its_silence() {
    for count in [2, 3, 8, 16] {
        let (_, p99, max) = report(
            &format!("stopped, {count} nodes"),
            detection(count, 60, Network::default(), true),
        );
        assert!(p99 < 1500.0 && max < 1700.0);
    }
}

fn rough() -> Network {
    let delay = Span::from_millis(1);
    let jitter = Span::from_millis(20);
    Network {
        lost_per_thousand: 200,
        delay,
        jitter,
        spike_one_in: 200,
        spike: Span::from_millis(300),
    }
}

#[test]
fn the_dead_are_found_on_a_rough_network() {
    let (_, p99, _) = report(
        "killed, 8 nodes, rough network",
        detection(8, 40, rough(), false),
    );
    assert!(p99 < 700.0);
    let (_, p99, _) = report(
        "stopped, 8 nodes, rough network",
        detection(8, 40, rough(), true),
    );
    assert!(p99 < 2500.0);
}

#[test]
fn no_live_node_is_marked_down_on_a_rough_network() {
    for (count, seconds) in [(2, 300), (8, 300), (40, 20)] {
        let mut simulation = Simulation::new(count, rough(), count);
        simulation.run_until(Instant(seconds * SECOND));
        assert_eq!(simulation.verdicts, []);
        let per_node = simulation.datagrams / count / seconds;
        println!(
            "{count} nodes, {seconds} s: nobody down; {per_node} datagrams and {} port probes a \
             node and second",
            simulation.port_probes / count / seconds
        );
    }
}

#[test]
fn no_live_node_is_marked_down_for_starving() {
    let mut simulation = Simulation::new(8, rough(), 5);
    // Every second some node gets no processor for half a second, and now and then all do.
    for second in 1..120 {
        let starved = if second % 10 == 0 {
            (0..8).collect()
        } else {
            vec![simulation.roll(8)]
        };
        for node in starved {
            let at = Instant(second * SECOND + simulation.roll(SECOND / 2));
            simulation.pause_at(at, node, Span::from_millis(500));
        }
    }
    simulation.run_until(Instant(121 * SECOND));
    assert_eq!(simulation.verdicts, []);
}

#[test]
fn a_node_that_was_stopped_buries_nobody_when_it_wakes_and_comes_back() {
    for seed in 0..40 {
        let mut simulation = Simulation::new(8, Network::default(), seed);
        let pause = Span::from_millis(3_000 + simulation.roll(20_000));
        simulation.pause_at(Instant(SECOND), 3, pause);
        simulation.run_until(Instant(2 * SECOND + pause.0));
        let by_it = simulation
            .verdicts
            .iter()
            .filter(|verdict| verdict.by == 3)
            .count();
        assert_eq!(by_it, 0, "seed {seed}");
        assert!(
            (0..8)
                .filter(|id| *id != 3)
                .all(|id| !simulation.is_down(id, 3)),
            "seed {seed}: it is back everywhere"
        );
        assert_eq!(
            simulation.verdicts.len(),
            14,
            "seed {seed}: down and up, once for each of the others"
        );
        simulation.kill_at(Instant(3 * SECOND + pause.0), 3);
        simulation.run_until(Instant(4 * SECOND + pause.0));
        assert!(
            (0..8)
                .filter(|id| *id != 3)
                .all(|id| simulation.is_down(id, 3)),
            "seed {seed}: and can die again"
        );
    }
}

#[test]
fn the_last_of_many_finds_all_others() {
    for count in [8, 40] {
        let mut simulation = Simulation::new(count, Network::default(), 1);
        (1..count).for_each(|node| simulation.kill_at(Instant(SECOND), node));
        simulation.run_until(Instant(2 * SECOND));
        assert!((1..count).all(|node| simulation.is_down(0, node)));
        let last = simulation
            .verdicts
            .iter()
            .map(|verdict| verdict.at)
            .max()
            .unwrap();
        println!(
            "all but one of {count} killed: the last of them found after {} ms",
            last.since(Instant(SECOND)).as_millis()
        );
        assert!(last < Instant(SECOND + SECOND / 2));
    }
}

#[test]
fn a_node_that_is_always_late_finds_the_dead_all_the_same() {
    let mut simulation = Simulation::new(3, Network::default(), 4);
    // Node 0 runs for 30 ms and is away for 170 ms, over and over: it counts its own time only.
    for round in 0..150 {
        simulation.pause_at(Instant(round * 200_000 + 30_000), 0, Span::from_millis(170));
    }
    simulation.pause_at(Instant(SECOND), 2, Span(60 * SECOND));
    simulation.run_until(Instant(SECOND * 3 / 2));
    assert_eq!(simulation.verdicts, []);
    simulation.run_until(Instant(30 * SECOND));
    let found: Vec<_> = simulation
        .verdicts
        .iter()
        .map(|verdict| (verdict.by, verdict.about))
        .collect();
    assert_eq!(found, [(1, 2), (0, 2)]);
    assert!(
        simulation
            .verdicts
            .iter()
            .all(|verdict| verdict.down.is_some())
    );
}

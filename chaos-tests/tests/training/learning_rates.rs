//! Learning rates of exactly 0 at an outer round, with which many schedules end.

use crate::support::{
    IN_ORDER, Job, assert_says, bits, in_hub, local_sgd, noise, on_nodes, uneven, until,
};
use slowmo::internal::transport::memory::MemoryHub;
use slowmo::{Config, Runtime, StepError};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

const VALUES: usize = 40;

fn events(node: &Runtime) -> Vec<String> {
    let events = node.status().events;
    events.into_iter().map(|event| event.what).collect()
}

#[test]
fn a_schedule_that_ends_at_zero_ends_with_the_last_rate_above_it() {
    let job = |rate| Job {
        initial: uneven(VALUES),
        steps: 6,
        rate,
        ..Job::new(3, local_sgd(1, 2, 1.0, 0.5), noise())
    };
    // Rounds end at steps 1, 3 and 5. At a rate of 0 the inner optimizer does not move.
    let seen = job(|step| [0.1, 0.1, 0.05, 0.0, 0.0, 0.0][step]).values();
    let mut expected = job(|step| [0.1, 0.1, 0.05, 0.05, 0.05, 0.05][step]);
    let gradient = noise();
    expected.gradient = std::sync::Arc::new(move |worker, step, x| {
        let mut gradient = gradient(worker, step, x);
        if step > 2 {
            gradient.fill(0.0);
        }
        gradient
    });
    for (found, expected) in seen.iter().zip(expected.values()) {
        for (found, expected) in found.iter().zip(expected) {
            assert_eq!(bits(found), bits(&expected));
        }
    }
}

#[test]
fn the_rate_that_stands_in_is_said_once() {
    let seen = on_nodes(
        &[1, 2],
        IN_ORDER,
        &local_sgd(1, 2, 1.0, 0.5),
        |_, node, mut worker| {
            let mut values = vec![1.0f32, 2.0];
            worker.synchronize(&mut values).unwrap();
            for rate in [0.1, 0.1, 0.05, 0.0, 0.0, 0.0] {
                worker.step(&mut values, rate).unwrap();
            }
            let events = events(node);
            worker.leave().unwrap();
            events
        },
    );
    for events in &seen {
        let said = events.iter().filter(|event| event.contains("stands in"));
        let said: Vec<_> = said.collect();
        assert_eq!(said.len(), 1, "{events:?}");
        assert_says(
            said[0],
            &[
                "step 3: the learning rate is 0",
                "the last one above 0, 5e-2",
            ],
        );
    }
}

#[test]
fn without_any_rate_above_zero_a_round_is_refused_and_can_be_called_again() {
    on_nodes(
        &[1, 2],
        IN_ORDER,
        &local_sgd(1, 2, 1.0, 0.5),
        |_, _, mut worker| {
            let mut values = vec![1.0f32, 2.0];
            worker.synchronize(&mut values).unwrap();
            worker.step(&mut values, 0.0).unwrap();
            let error = worker.step(&mut values, 0.0).unwrap_err();
            assert_says(
                &error.to_string(),
                &[
                    "step 1 ends an outer round",
                    "has been 0 since the start",
                    "begin the schedule",
                ],
            );
            assert_eq!(values, [1.0, 2.0]);
            assert!(worker.step(&mut values, 0.1).unwrap().slow_step);
            worker.leave().unwrap();
        },
    );
}

#[test]
fn a_node_that_joins_at_the_end_of_a_schedule_takes_the_rate_of_the_others_over() {
    let config = Config {
        min_nodes: 2,
        ..local_sgd(1, 1, 1.0, 0.5)
    };
    let hub = &MemoryHub::new(None);
    let config = &config;
    let begun = &AtomicU64::new(0);
    let seen: Vec<_> = thread::scope(|scope| {
        let mut threads = Vec::new();
        for id in [1, 3, 2] {
            let node = in_hub(hub, id, &[1, 2, 3], config);
            threads.push(scope.spawn(move || {
                let mut worker = node.worker(0).unwrap();
                let mut values = uneven(VALUES);
                worker.synchronize(&mut values).unwrap();
                // The rate is 0 as soon as all three are members: node 2 never has another one.
                let mut rate = if id == 2 { 0.0 } else { 0.1 };
                // Rounds with three members, the one that it joined with among them.
                let mut together = usize::from(id == 2);
                while together < 4 {
                    let report = worker.step(&mut values, rate)?;
                    begun.fetch_max(report.step, Ordering::SeqCst);
                    if report.nodes == 3 {
                        rate = 0.0;
                        together += 1;
                    }
                }
                worker.leave().unwrap();
                Ok::<_, StepError>(values)
            }));
            if id == 3 {
                until("the founders train", || begun.load(Ordering::SeqCst) > 2);
            }
        }
        let ended = threads.into_iter().map(|thread| thread.join().unwrap());
        ended.collect::<Result<_, _>>().unwrap()
    });
    assert!(seen.iter().all(|values| bits(values) == bits(&seen[0])));
}

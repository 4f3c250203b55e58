//! A joiner's base optimizer gets zeros, or the lowest contributor's buffers, on each of its
//! workers, bit for bit.

use crate::support::{PATIENCE, bits, in_hub, local_sgd, uneven};
use slowmo::internal::transport::memory::MemoryHub;
use slowmo::{Buffers, Config, Runtime, StepError, Worker};
use slowmo_protocol::algorithm::BufferStrategy;
use slowmo_protocol::policy::JoinerBuffers;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const VALUES: usize = 600;
const FOUNDERS: [u64; 2] = [1, 3];
const LATE: u64 = 2;
/// More than a chunk.
const BUFFERS: usize = 70_000;

fn config(buffers: BufferStrategy, joiner_buffers: JoinerBuffers) -> Config {
    Config {
        min_nodes: 2,
        buffers,
        joiner_buffers,
        ..local_sgd(1, 3, 1.0, 0.5)
    }
}

/// The values of a member's optimizer after each step.
type Held = Mutex<BTreeMap<u64, Vec<f32>>>;

/// A founder whose buffers move in their own way until all may end; then it leaves.
fn found(node: &Runtime, held: &Held, over: &AtomicBool) {
    let mut worker = node.worker(0).unwrap();
    let id = node.node_id();
    let mut parameters = uneven(VALUES);
    let mut optimizer = vec![0.0f32; BUFFERS];
    let lend = |optimizer: &mut Vec<f32>| {
        optimizer
            .iter_mut()
            .enumerate()
            .for_each(|(at, value)| *value += (id as f32 + at as f32).sqrt())
    };
    worker
        .synchronize_with(
            &mut parameters,
            Buffers {
                optimizer: &mut optimizer,
                model: &mut (),
            },
        )
        .unwrap();
    let begun = Instant::now();
    while !over.load(Ordering::SeqCst) && begun.elapsed() < PATIENCE {
        thread::sleep(Duration::from_millis(1));
        lend(&mut optimizer);
        let Ok(report) = worker.step_with(
            &mut parameters,
            Buffers {
                optimizer: &mut optimizer,
                model: &mut (),
            },
            0.1,
        ) else {
            break;
        };
        held.lock().unwrap().insert(report.step, optimizer.clone());
    }
    worker.leave().unwrap();
}

/// One worker of the joiner: its first step, and what its optimizer holds then.
fn join(mut worker: Worker) -> (u64, Vec<f32>) {
    // What a joiner brings of its own is of another training.
    let mut optimizer = vec![77.0f32; BUFFERS];
    let found = worker
        .synchronize_with(
            &mut uneven(VALUES),
            Buffers {
                optimizer: &mut optimizer,
                model: &mut (),
            },
        )
        .unwrap();
    worker.leave().unwrap();
    (found.step, optimizer)
}

/// Returns the values that each of a joiner's two workers starts with, and those of the lowest
/// contributor then.
fn joined(config: &Config) -> (Vec<(u64, Vec<f32>)>, Vec<f32>) {
    let hub = MemoryHub::new(None);
    let over = &AtomicBool::new(false);
    let first: &Held = &Held::default();
    let third: &Held = &Held::default();
    let joined = thread::scope(|scope| {
        for (id, held) in FOUNDERS.into_iter().zip([first, third]) {
            let node = in_hub(&hub, id, &[1, 2, 3], config);
            scope.spawn(move || found(&node, held, over));
        }
        while first.lock().unwrap().len() < 5 {
            thread::sleep(Duration::from_millis(1));
        }
        let node = in_hub(
            &hub,
            LATE,
            &[1, 2, 3],
            &Config {
                devices: 2,
                ..config.clone()
            },
        );
        let workers = [0, 1].map(|index| node.worker(index).unwrap());
        let joining = workers.map(|worker| scope.spawn(move || join(worker)));
        let joined = joining.map(|worker| worker.join().unwrap());
        over.store(true, Ordering::SeqCst);
        joined
    });
    let before = joined[0].0 - 1;
    let donated = first.lock().unwrap().remove(&before).unwrap();
    assert_ne!(third.lock().unwrap().get(&before), None);
    (joined.into(), donated)
}

#[test]
fn a_joiner_s_buffers_are_those_of_the_lowest_contributor() {
    for strategy in [
        BufferStrategy::Maintain,
        BufferStrategy::Reset,
        BufferStrategy::Average,
    ] {
        let (workers, donated) = joined(&config(strategy, JoinerBuffers::Copy));
        for (step, held) in workers {
            assert!(
                bits(&held) == bits(&donated),
                "{strategy:?}, at step {step}: {:?} against {:?}",
                &held[..3],
                &donated[..3]
            );
        }
    }
}

#[test]
fn a_joiner_s_buffers_are_zero_where_they_are_reset() {
    let (workers, donated) = joined(&config(BufferStrategy::Maintain, JoinerBuffers::Reset));
    assert!(donated.iter().all(|value| *value > 0.0));
    for (_, held) in workers {
        assert!(
            held.iter().all(|value| value.to_bits() == 0),
            "{:?}",
            &held[..3]
        );
    }
}

#[test]
fn lent_buffers_keep_their_length() {
    let node = Runtime::builder()
        .config(Config {
            min_nodes: 1,
            ..config(BufferStrategy::Maintain, JoinerBuffers::Copy)
        })
        .spawn()
        .unwrap();
    let mut worker = node.worker(0).unwrap();
    let mut parameters = [1.0f32; 4];
    worker
        .synchronize_with(
            &mut parameters,
            Buffers {
                optimizer: &mut [0.0; 4],
                model: &mut (),
            },
        )
        .unwrap();
    let error = worker.step(&mut parameters, 0.1).unwrap_err();
    assert_eq!(
        error,
        StepError::Length {
            step: 0,
            what: "optimizer buffers",
            found: 0,
            expected: 4
        }
    );
    worker
        .step_with(
            &mut parameters,
            Buffers {
                optimizer: &mut [0.0; 4],
                model: &mut (),
            },
            0.1,
        )
        .unwrap();
    worker.leave().unwrap();
}

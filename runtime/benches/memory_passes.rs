//! How fast values pass through memory: freezing, digesting, and the mean over a node's workers,
//! beside a plain copy. Touches memory only. Under `cargo test` it does nothing.
#![allow(clippy::unwrap_used)]

use slowmo::digest;
use slowmo::internal::device::cpu::SharedMemory;
use slowmo::internal::tensors::freeze;
use slowmo_actors::ports::device::Collective;
use std::time::Instant;

const ELEMENTS: usize = 25_000_000;
const REPETITIONS: usize = 15;

fn main() {
    if std::env::args().any(|argument| argument == "--bench") {
        passes();
        mean();
    }
}

fn passes() {
    let values = vec![0.5f32; ELEMENTS];
    let mut flat = vec![0.0f32; ELEMENTS];
    best("memcpy", || flat.copy_from_slice(&values));
    best("freeze", || freeze(&values, &mut flat).unwrap());
    best("digest", || drop(digest(&values).unwrap()));
}

fn mean() {
    let collective = SharedMemory::new(2);
    std::thread::scope(|scope| {
        for rank in 0..2 {
            let collective = &collective;
            scope.spawn(move || {
                let mut values = vec![1.0f32; ELEMENTS];
                best(&format!("mean of 2 workers, worker {rank}"), || {
                    collective.mean(rank, &mut values).unwrap()
                });
            });
        }
    });
}

fn best(what: &str, mut run: impl FnMut()) {
    let once = |_| {
        let start = Instant::now();
        run();
        start.elapsed().as_secs_f64()
    };
    let seconds = (0..REPETITIONS).map(once).fold(f64::MAX, f64::min);
    println!("{what}: {:.1} GB/s", ELEMENTS as f64 * 4e-9 / seconds);
}

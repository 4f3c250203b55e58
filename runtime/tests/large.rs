//! A model of more than 4 GiB, for real. It takes 16 GB of memory, so it is not among the tests
//! that run by themselves: `cargo test -p slowmo --test large -- --ignored --nocapture`.
#![allow(clippy::unwrap_used)]

use slowmo::{BaseName, Config, Half, NamedTensors, Runtime, digest};
use std::time::Instant;

/// 4.5 GiB as float32.
const VALUES: usize = (1 << 30) + (1 << 27);
/// Places of which each would be another without the upper bits of its byte.
const PLACES: [usize; 4] = [0, 1 << 20, 1 << 30, VALUES - 1];

fn lend(bits: &mut [u16]) -> NamedTensors<'_> {
    NamedTensors::new().with_half("x", Half::BFloat16, bits)
}

#[test]
#[ignore = "it takes 16 GB of memory"]
fn a_model_of_more_than_4_gib_is_averaged() {
    let config = Config {
        base: BaseName::LocalSgd,
        frequency: 1,
        beta: 0.0,
        min_nodes: 1,
        ..Config::default()
    };
    let mut bits = vec![Half::BFloat16.round(1.0); VALUES];
    let runtime = Runtime::builder().config(config).spawn().unwrap();
    let mut worker = runtime.worker(0).unwrap();
    worker.synchronize(&mut lend(&mut bits)).unwrap();
    for step in 0..2u8 {
        for (place, value) in PLACES.iter().zip(2u8..) {
            bits[*place] = Half::BFloat16.round(f32::from(value) + f32::from(step));
        }
        let before = digest(&lend(&mut bits)).unwrap();
        let begun = Instant::now();
        let report = worker.step(&mut lend(&mut bits), 0.1).unwrap();
        println!("step {step}: {report:?} after {:?}", begun.elapsed());
        assert!(report.round.is_some());
        // One node's average is its own model.
        assert_eq!(digest(&lend(&mut bits)).unwrap(), before);
    }
    worker.leave().unwrap();
}

//! scratch
#![allow(clippy::unwrap_used)]
use slowmo_examples::digits::*;
use slowmo_examples::method::*;
use std::time::Instant;
#[test]
fn timing() {
    let data = Dataset::train().unwrap();
    let model = Mlp::seeded(0).unwrap();
    let mut sgd = NesterovSgd::new(model.variables(), 0.9).unwrap();
    let mut b = Batches::new((0..359).collect(), 16, 0, 0);
    let (mut t0, mut t1, mut t2) = (0.0, 0.0, 0.0);
    for k in 0..1000u64 {
        let i = Instant::now();
        let (p, l) = data.batch(b.at(k)).unwrap();
        t0 += i.elapsed().as_secs_f64();
        let i = Instant::now();
        let (_, g) = model.loss_and_gradients(&p, &l).unwrap();
        t1 += i.elapsed().as_secs_f64();
        let i = Instant::now();
        sgd.step(model.variables(), g.tensors(), 0.02).unwrap();
        t2 += i.elapsed().as_secs_f64();
    }
    println!("batch {t0:.4} gradients {t1:.4} sgd {t2:.4} ms per step");
    let i = Instant::now();
    model.evaluate(&data).unwrap();
    println!("evaluate {:?}", i.elapsed());
}
#[test]
fn all() {
    for shards in [Shards::Even, Shards::Skewed] {
        for m in METHODS {
            let (mut loss, mut acc) = (0.0, 0.0);
            for seed in 0..3 {
                let run = slowmo_examples::oracle::train(4, &m, &Options { shards, seed, ..Options::default() }).unwrap();
                let mut model = Mlp::seeded(0).unwrap();
                model.set_flat(&run.parameters).unwrap();
                loss += model.evaluate(&Dataset::train().unwrap()).unwrap().loss / 3.0;
                acc += model.evaluate(&Dataset::test().unwrap()).unwrap().accuracy / 3.0;
            }
            println!("{shards:?} {} {loss:.4} {acc:.4}", m.name);
        }
    }
}

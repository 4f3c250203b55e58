//! The same rounds as `tests/programs/large.py`, from Rust: what a round from Python is compared
//! with. Prints seconds of each round, and the memory that they take beside the model. One node of
//! a cluster.

use std::time::Instant;

/// Weights and biases of 25 layers of 1000 by 1000.
const LAYERS: usize = 25;
const ROUNDS: usize = 6;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let config = slowmo::Config::load()?
        .with("tau", 1)?
        .with("frequency", 1)?;
    let runtime = slowmo::Runtime::builder().config(config).spawn()?;
    let mut worker = runtime.worker(0)?;
    let layer = [1_000_000, 1_000].into_iter();
    let mut values: Vec<Vec<f32>> = std::iter::repeat_n(layer, LAYERS)
        .flatten()
        .map(|elements| vec![0.01; elements])
        .collect();
    // The peak starts again here.
    std::fs::write("/proc/self/clear_refs", "5")?;
    let before = kilobytes("VmRSS:")?;
    worker.synchronize(&mut values)?;
    let mut seconds = Vec::new();
    for _ in 0..ROUNDS {
        std::thread::sleep(std::time::Duration::from_millis(10));
        let begun = Instant::now();
        worker.step(&mut values, 0.1)?;
        seconds.push(begun.elapsed().as_secs_f64());
    }
    let more_mb = (kilobytes("VmHWM:")? - before) / 1e3;
    println!("{{\"seconds\": {seconds:?}, \"more_mb\": {more_mb}}}");
    worker.leave()?;
    Ok(())
}

/// A line of this process's status.
fn kilobytes(name: &str) -> Result<f64, Box<dyn std::error::Error>> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    let number = line.and_then(|line| line.split_whitespace().next());
    Ok(number.unwrap_or("0").parse()?)
}

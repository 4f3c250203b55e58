//! The whole integration on one page: each node minimises its own parabola ½a(x − c)²; together
//! they find the minimum of the sum. Needs only the standard library and `slowmo`.
//!
//! Alone: `cargo run --release -p slowmo-examples --bin 01_quadratic`.
//! Four nodes on this machine: `slowmo launch --nodes 4 -- target/release/01_quadratic`.

use slowmo::{Config, Runtime};

const STEPS: u64 = 600;
const LEARNING_RATE: f32 = 0.01;
/// Steepness a of every parabola.
const STEEPNESS: f32 = 1.0;

fn main() -> std::process::ExitCode {
    match train() {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            std::process::ExitCode::FAILURE
        }
    }
}

fn train() -> Result<(), Box<dyn std::error::Error>> {
    // 1. Start this process's node. Settings come from a file, SLOWMO_* variables and --slowmo-*
    //    flags.
    let runtime = Runtime::builder().config(Config::load()?).spawn()?;
    let mut worker = runtime.worker(0)?;

    // 2. Start from the same parameters everywhere: the cluster's parameters replace this node's
    //    initial ones.
    let mut parameters = [0.0f32];
    let place = worker.synchronize(&mut parameters)?;

    // This node's data. A single node finds the minimum c = 1; with four nodes c = 1, 2, 3, 4 and
    // the minimum of the sum is 2.5.
    let minimum = (place.node_rank + 1) as f32;
    println!(
        "node {} of {}: my own minimum is {minimum}",
        place.node_rank + 1,
        place.nodes
    );

    // The loop ends after its last step, or once this node was drained: by SIGTERM, or by an order.
    let mut step = place.step;
    while worker.is_running() && step < STEPS {
        // 3. Train as usual: a gradient on this node's data, then a step of your own optimizer.
        let mut gradient = [STEEPNESS * (parameters[0] - minimum)];
        worker.average_gradients(&mut gradient)?; // over this node's devices, if it has several
        parameters[0] -= LEARNING_RATE * gradient[0];

        // 4. Then report the step to the runtime. When something is due, it averages with the other
        //    nodes and takes the slow step.
        let report = worker.step(&mut parameters, LEARNING_RATE)?;
        step = report.step + 1;
        if report.slow_step || step % 100 == 0 {
            println!(
                "step {step:>3}  x = {:<8.5} {}",
                parameters[0],
                if report.slow_step {
                    "← slow step"
                } else {
                    ""
                }
            );
        }
    }

    // 5. Leave explicitly, so that the others need not wait to detect it.
    worker.leave()?;
    println!(
        "done: x = {:.5}, and {} bytes sent",
        parameters[0],
        runtime.traffic().sent_bytes
    );
    Ok(())
}

//! Comparison of the algorithms on the handwritten digits: loss, accuracy, bytes and time, as
//! table, JSON and SVG.
//!
//! `cargo run --release -p slowmo-examples --bin 03_compare -- --plot compare.svg` takes a few
//! minutes. `--methods wires` compares algorithms that send float32, bfloat16 and int8.

use anyhow::Context;
use slowmo_examples::compare::{Plan, Progress, Report, compare, plot, table};
use slowmo_examples::{flags, log};
use std::io::IsTerminal;
use std::path::PathBuf;

/// Compare AllReduce, LocalSGD, SGP and overlapped SGP, with SlowMo and without, on even and on
/// label-skewed data.
#[derive(Debug, clap::Parser)]
#[command(version)]
struct Arguments {
    #[command(flatten)]
    plan: Plan,
    /// Write the loss curves to this file, as SVG.
    #[arg(long)]
    plot: Option<PathBuf>,
    /// Print the figures as one JSON object, the last line of standard output.
    #[arg(long)]
    json: bool,
}

fn main() -> anyhow::Result<()> {
    let Arguments {
        plan,
        plot: plot_path,
        json,
    } = flags::parse_own()?;
    log::to_standard_error(log::LevelFilter::ERROR)?;

    let figures = compare(&plan, show)?;
    let report = Report::new(&plan, &figures);
    print!("{}", table(&report));
    if let Some(path) = plot_path {
        let how = if plan.simulate {
            "simulated in one thread"
        } else {
            "QUIC on loopback"
        };
        let subtitle = format!(
            "{} nodes, batch {} a node, {how}, mean of {} seeds",
            plan.nodes, plan.batch, plan.seeds
        );
        plot(&path, &figures, &subtitle)?;
        println!("plot: {}", path.display());
    }
    if json {
        println!(
            "{}",
            serde_json::to_string(&report).context("the report as JSON")?
        );
    }
    Ok(())
}

/// Shows the progress on one line that is overwritten; where standard error is not a terminal, one
/// line per run.
fn show(progress: &Progress) {
    let Progress {
        finished,
        runs,
        method,
        shards,
    } = progress;
    if !std::io::stderr().is_terminal() {
        eprintln!("{finished}/{runs} {} ({shards:?} shards)", method.name);
        return;
    }
    eprint!(
        "\r\x1b[K{finished}/{runs} {} ({shards:?} shards)",
        method.name
    );
    if finished == runs {
        eprint!("\r\x1b[K");
    }
}

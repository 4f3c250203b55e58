//! `slowmo-chaos sim`: many simulated runs; exits 1 if a rule is broken.

use clap::{Parser, Subcommand};
use slowmo_chaos::invariants::Verdict;
use slowmo_chaos::sim::search::{self, Search};
use slowmo_chaos::sim::{Look, Report, shrink};
use std::ops::RangeInclusive;
use std::process::ExitCode;
use std::time::Instant;

/// Looks for ways to lose a model.
#[derive(Parser)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Simulates whole clusters in virtual time, one run a seed.
    Sim(Sim),
}

/// How many runs, of what.
#[derive(Parser)]
struct Sim {
    /// How many seeds.
    #[arg(long, default_value_t = 1_000)]
    seeds: u64,
    /// The first of them.
    #[arg(long, default_value_t = 0)]
    first_seed: u64,
    /// Nodes that a run starts with: one number, or from..to.
    #[arg(long, default_value = "1..8", value_parser = range)]
    nodes: RangeInclusive<usize>,
    /// Threads; as many as there are cores if it is not given.
    #[arg(long)]
    threads: Option<usize>,
    /// Go on after the first failure, and list all.
    #[arg(long)]
    all: bool,
    /// Print every message of the run to standard error.
    #[arg(long)]
    verbose: bool,
    /// Write the trace of a run (of the failing one) to this file, one JSON object a line.
    #[arg(long)]
    trace: Option<std::path::PathBuf>,
}

fn range(text: &str) -> Result<RangeInclusive<usize>, String> {
    let number = |text: &str| text.parse::<usize>().ok().filter(|count| (1..=4096).contains(count));
    let parsed = match text.split_once("..") {
        Some((from, to)) => number(from).zip(number(to)),
        None => number(text).map(|count| (count, count)),
    };
    let (from, to) = parsed.ok_or_else(|| format!("'{text}' is no range of 1 to 4096 nodes, like 2..8"))?;
    if from > to { Err(format!("{from} is more than {to}")) } else { Ok(from..=to) }
}

fn main() -> anyhow::Result<ExitCode> {
    let Command::Sim(arguments) = Arguments::parse().command;
    let begun = Instant::now();
    let threads = arguments.threads.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
    let look = Look { keeps_trace: arguments.trace.is_some(), verbose: arguments.verbose };
    if arguments.verbose || (arguments.seeds == 1 && arguments.trace.is_some()) {
        let report = search::seed(arguments.first_seed, &arguments.nodes, look);
        return show(&arguments, report);
    }
    let seeds = arguments.first_seed..arguments.first_seed.saturating_add(arguments.seeds);
    let search = Search { seeds, nodes: arguments.nodes.clone(), threads, all: arguments.all };
    let found = search::search(&search, &|_| {});
    let seconds = begun.elapsed().as_secs_f64();
    println!(
        "{} runs, {} rounds, {} events in {seconds:.1} s: {:.1} seeds a second",
        found.runs,
        found.rounds,
        found.events,
        found.runs as f64 / seconds
    );
    print_coverage(&found.coverage);
    if arguments.all {
        for (seed, violation) in &found.failures {
            println!("seed {seed}: {} at {} ms: {}", violation.invariant, violation.at.0 / 1000, violation.what);
        }
    }
    match found.failures.first() {
        Some((first, _)) => show(&arguments, search::seed(*first, &arguments.nodes, look)),
        None => Ok(ExitCode::SUCCESS),
    }
}

fn print_coverage(coverage: &slowmo_chaos::sim::coverage::Coverage) {
    let pairs = coverage.pairs();
    println!("coverage: {} of message x phase, {} of message x phase x fault", pairs.len(), coverage.triples());
}

/// A run that failed, as short as it can be made, and how to see it again.
fn show(arguments: &Sim, report: Report) -> anyhow::Result<ExitCode> {
    let Some(violation) = report.violation.clone() else {
        for (name, verdict) in &report.verdicts {
            println!("{name}: {}", words(verdict));
        }
        return save(arguments, &report).map(|()| ExitCode::SUCCESS);
    };
    let seed = report.config.seed;
    println!("seed {seed} ({:?}): {} at {} ms: {}", report.config.class, violation.invariant, violation.at.0 / 1000, violation.what);
    // Of the run as it was: that is what the seed replays.
    save(arguments, &report)?;
    let faults = report.schedule.len();
    report.nodes.iter().for_each(|node| println!("  {node}"));
    let shorter = shrink::shrink(report);
    println!("{} of its {faults} faults are enough:", shorter.schedule.len());
    for timed in &shorter.schedule {
        println!("  {} us {:?}", timed.at.0, timed.fault);
    }
    let (from, to) = (arguments.nodes.start(), arguments.nodes.end());
    println!("again: cargo run --release -p slowmo-chaos -- sim --first-seed {seed} --seeds 1 --nodes {from}..{to}");
    Ok(ExitCode::FAILURE)
}

fn save(arguments: &Sim, report: &Report) -> anyhow::Result<()> {
    let (Some(path), Some(trace)) = (&arguments.trace, &report.trace) else { return Ok(()) };
    let mut text = String::new();
    for line in trace {
        text.push_str(&serde_json::to_string(line)?);
        text.push('\n');
    }
    Ok(std::fs::write(path, text)?)
}

fn words(verdict: &Verdict) -> String {
    match verdict {
        Verdict::Held { checked } => format!("held, looked at {checked} times"),
        Verdict::NotShown { why } => format!("not shown: {why}"),
        Verdict::Violated(violation) => format!("violated: {}", violation.what),
    }
}

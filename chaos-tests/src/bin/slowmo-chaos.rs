//! `slowmo-chaos sim`: many simulated runs; exits 1 if a rule is broken. `flood` and `siege`:
//! packets of strangers against nodes on loopback. `hostile`: a member that lies among honest ones.

use clap::{Parser, Subcommand};
use slowmo_chaos::flood::{Flood, Siege, SiegeNode};
use slowmo_chaos::hostile::Hostile;
use slowmo_chaos::invariants::Verdict;
use slowmo_chaos::say;
use slowmo_chaos::sim::schedule::Schedule;
use slowmo_chaos::sim::search::{self, Search};
use slowmo_chaos::sim::shrink::{self, Shortest};
use slowmo_chaos::sim::{self, Look, Report};
use slowmo_protocol::time::Span;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;
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
    /// Simulates whole clusters in virtual time, one run per seed or schedule.
    Sim(Sim),
    /// Floods a node on loopback with packets of strangers.
    Flood(FloodArguments),
    /// Measures four training nodes without and under a flood.
    Siege(Siege),
    /// Trains five nodes in this process, one of which lies; exits 1 if that harms the others.
    Hostile(Hostile),
    /// One node of a siege.
    #[command(hide = true)]
    SiegeNode(SiegeNode),
}

/// A flood: how much of it, and where.
#[derive(Parser)]
struct FloodArguments {
    /// Address of the node; on loopback.
    address: SocketAddr,
    /// Packets per second.
    #[arg(long, default_value_t = 20_000)]
    per_second: u32,
    /// Length in seconds.
    #[arg(long, default_value_t = 30)]
    seconds: u64,
    /// Number of addresses of loopback that it comes from.
    #[arg(long, default_value_t = 8)]
    sources: u8,
}

fn flood(arguments: &FloodArguments) -> anyhow::Result<ExitCode> {
    let flood = Flood {
        target: arguments.address,
        per_second: arguments.per_second,
        seconds: arguments.seconds,
        sources: arguments.sources,
    };
    let sent = flood.run(|| false)?;
    say!(
        "{} packets in {:.1} s, {} not sent",
        sent.packets,
        sent.seconds,
        sent.refused
    );
    Ok(ExitCode::SUCCESS)
}

/// Number of runs, and how they are run.
#[derive(Parser)]
struct Sim {
    /// Number of seeds.
    #[arg(long, default_value_t = 1_000)]
    seeds: u64,
    /// The first seed.
    #[arg(long, default_value_t = 0)]
    first_seed: u64,
    /// Nodes that a run starts with: one number, or from..to.
    #[arg(long, default_value = "1..8", value_parser = range)]
    nodes: RangeInclusive<usize>,
    /// Run the schedules in these files, and no seeds.
    #[arg(long, num_args = 1.., value_name = "FILE")]
    schedule: Vec<PathBuf>,
    /// Write the schedule of the run that failed, or of the only one, to this file, with no more
    /// faults than are needed to fail.
    #[arg(long, value_name = "FILE")]
    write: Option<PathBuf>,
    /// Once the faults are over, the live nodes must continue without the dead within this many
    /// milliseconds.
    #[arg(long, value_name = "MILLISECONDS")]
    goes_on_within: Option<u64>,
    /// Number of threads; defaults to the number of cores.
    #[arg(long)]
    threads: Option<usize>,
    /// Use every kind of fault: each seed draws which of them occur. At the end the live nodes
    /// continue without the dead. Lists every failure, and counts which faults, rules and frames
    /// were seen: too few of any is a failure too.
    #[arg(long)]
    all: bool,
    /// Every training ends after some steps: the nodes must leave in order, and no node may wait for
    /// those that left.
    #[arg(long, conflicts_with = "all")]
    ends: bool,
    /// Print, for every message and phase of a round, under how many kinds of faults they met.
    #[arg(long)]
    coverage: bool,
    /// Print every message of the run to standard error.
    #[arg(long)]
    verbose: bool,
    /// Write the trace of a run (of the failing one) to this file, one JSON object per line.
    #[arg(long)]
    trace: Option<PathBuf>,
}

fn range(text: &str) -> Result<RangeInclusive<usize>, String> {
    let number = |text: &str| {
        text.parse::<usize>()
            .ok()
            .filter(|count| (1..=4096).contains(count))
    };
    let parsed = match text.split_once("..") {
        Some((from, to)) => number(from).zip(number(to)),
        None => number(text).map(|count| (count, count)),
    };
    let (from, to) =
        parsed.ok_or_else(|| format!("'{text}' is no range of 1 to 4096 nodes, like 2..8"))?;
    if from > to {
        Err(format!("{from} is more than {to}"))
    } else {
        Ok(from..=to)
    }
}

fn main() -> anyhow::Result<ExitCode> {
    let arguments = match Arguments::parse().command {
        Command::Sim(arguments) => arguments,
        Command::Flood(arguments) => return flood(&arguments),
        Command::Siege(siege) => return siege.run(),
        Command::Hostile(hostile) => return hostile.run(),
        Command::SiegeNode(node) => return node.run().map(|()| ExitCode::SUCCESS),
    };
    let look = Look {
        keeps_trace: arguments.trace.is_some(),
        verbose: arguments.verbose,
    };
    if !arguments.schedule.is_empty() {
        return files(&arguments, look);
    }
    let begun = Instant::now();
    let seeds = arguments.first_seed..arguments.first_seed.saturating_add(arguments.seeds);
    let nodes = arguments.nodes.clone();
    let mut search = if arguments.all {
        Search::swarm(seeds, nodes)
    } else if arguments.ends {
        Search::ends(seeds, nodes)
    } else {
        Search::usual(seeds, nodes)
    };
    search.threads = arguments.threads.unwrap_or(search.threads);
    search.goes_on_within = arguments.goes_on_within.map(Span::from_millis);
    if arguments.verbose
        || (arguments.seeds == 1 && (look.keeps_trace || arguments.write.is_some()))
    {
        let mut schedule = search.schedule(arguments.first_seed);
        schedule.what = drawn(&arguments, arguments.first_seed);
        return show(&arguments, sim::run(&schedule, look));
    }
    let found = search::search(&search, &|_| {});
    let seconds = begun.elapsed().as_secs_f64();
    say!(
        "{} runs, {} rounds, {} events in {seconds:.1} s: {:.1} seeds a second",
        found.runs,
        found.rounds,
        found.events,
        found.runs as f64 / seconds
    );
    print_coverage(&found.coverage);
    if arguments.coverage {
        print!("{}", found.coverage.table());
    }
    let mut missed = Vec::new();
    if arguments.all || arguments.ends {
        for (seed, violation) in &found.failures {
            say!(
                "seed {seed}: {} at {} ms: {}",
                violation.invariant,
                violation.at.0 / 1000,
                violation.what
            );
        }
    }
    if arguments.all {
        print!("{}", found.counters.table());
        missed = found.counters.missed();
    }
    if !missed.is_empty() {
        say!("too seldom seen: {}", missed.join(", "));
    }
    match found.failures.first() {
        Some((first, _)) => {
            let mut schedule = search.schedule(*first);
            schedule.what = drawn(&arguments, *first);
            show(&arguments, sim::run(&schedule, look))
        }
        None if missed.is_empty() => Ok(ExitCode::SUCCESS),
        None => Ok(ExitCode::FAILURE),
    }
}

/// Runs schedules, and shows the only one or the first that fails.
fn files(arguments: &Sim, look: Look) -> anyhow::Result<ExitCode> {
    let mut code = ExitCode::SUCCESS;
    for path in &arguments.schedule {
        let report = sim::run(&Schedule::read(path)?, look);
        for (at, deed) in &report.not_done {
            say!(
                "{}: not done at {} ms: {deed:?}",
                path.display(),
                at.0 / 1000
            );
        }
        if arguments.schedule.len() == 1 {
            return show(arguments, report);
        }
        match &report.violation {
            Some(violation) => {
                say!(
                    "{}: {} at {} ms: {}",
                    path.display(),
                    violation.invariant,
                    violation.at.0 / 1000,
                    violation.what
                );
                code = ExitCode::FAILURE;
            }
            None => say!(
                "{}: {} rounds, nothing is broken",
                path.display(),
                report.rounds
            ),
        }
    }
    Ok(code)
}

/// Describes where a schedule came from.
fn drawn(arguments: &Sim, seed: u64) -> String {
    let from = arguments.nodes.start();
    let to = arguments.nodes.end();
    format!(
        "Drawn from seed {seed}, for {from} to {to} nodes{}.",
        if arguments.all {
            ", with kinds of faults that it drew"
        } else if arguments.ends {
            ", with a training that ends"
        } else {
            ""
        }
    )
}

fn print_coverage(coverage: &slowmo_chaos::sim::coverage::Coverage) {
    let pairs = coverage.pairs();
    say!(
        "coverage: {} of message x phase, {} of message x phase x fault",
        pairs.len(),
        coverage.triples()
    );
}

/// Prints a failed run, made as short as possible, and how to see it again.
fn show(arguments: &Sim, report: Report) -> anyhow::Result<ExitCode> {
    save(arguments, &report)?;
    let Some(violation) = report.violation.clone() else {
        for (name, verdict) in &report.verdicts {
            say!("{name}: {}", words(verdict));
        }
        return keep(arguments, &report).map(|()| ExitCode::SUCCESS);
    };
    let seed = report.schedule.config.seed;
    let class = report.schedule.config.class;
    say!(
        "seed {seed} ({class:?}): {} at {} ms: {}",
        violation.invariant,
        violation.at.0 / 1000,
        violation.what
    );
    report.nodes.iter().for_each(|node| say!("  {node}"));
    let all = report.schedule.faults.len();
    let Shortest { report, faults } = shrink::shrink(report);
    say!("{} of its {all} faults are enough:", faults.len());
    for timed in &report.schedule.faults {
        say!("  {} us {:?}", timed.at.0, timed.act);
    }
    let sim = "cargo run --release -p slowmo-chaos -- sim";
    match &arguments.write {
        Some(path) => say!("again: {sim} --schedule {}", path.display()),
        None => {
            let again = again(arguments, seed);
            say!(
                "again: {sim} {again}\nas a schedule: {sim} {again} --write FILE\nand that again: \
                 {sim} --schedule FILE"
            );
        }
    }
    keep(arguments, &report).map(|()| ExitCode::FAILURE)
}

/// The arguments of the run that is shown.
fn again(arguments: &Sim, seed: u64) -> String {
    if let [file] = arguments.schedule.as_slice() {
        return format!("--schedule {}", file.display());
    }
    let from = arguments.nodes.start();
    let to = arguments.nodes.end();
    let mut again = format!("--first-seed {seed} --seeds 1 --nodes {from}..{to}");
    if arguments.all {
        again.push_str(" --all");
    }
    if let Some(within) = arguments.goes_on_within {
        again.push_str(&format!(" --goes-on-within {within}"));
    }
    again
}

/// Writes the schedule of the run to a file.
fn keep(arguments: &Sim, report: &Report) -> anyhow::Result<()> {
    let Some(path) = &arguments.write else {
        return Ok(());
    };
    Ok(report.schedule.write(path)?)
}

fn save(arguments: &Sim, report: &Report) -> anyhow::Result<()> {
    let (Some(path), Some(trace)) = (&arguments.trace, &report.trace) else {
        return Ok(());
    };
    write(path, trace)
}

fn write(path: &std::path::Path, trace: &[slowmo_protocol::trace::Line]) -> anyhow::Result<()> {
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

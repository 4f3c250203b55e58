//! `slowmo chaos`: runs a training binary under a schedule of faults and reports the result.

use crate::console::{Console, Told};
use anyhow::{Context, bail, ensure};
use clap::{Args, Subcommand};
use slowmo_chaos::processes::report::{Header, Report};
use slowmo_chaos::processes::scenario::{SHIPPED, Scenario};
use slowmo_ops::chaos::{Folder, Orders, Outcome, Part, Progress, run};
use slowmo_ops::processes::catch_signals;
use std::ffi::OsString;
use std::path::PathBuf;

/// Put a training binary through faults and report the result.
#[derive(Debug, Subcommand)]
pub enum Chaos {
    /// Run a scenario.
    Run(Run),
    /// Show the built-in scenarios.
    List,
    /// Regenerate the report of a run from the traces in its folder.
    Report(Again),
}

/// Runs a training binary as N node processes and applies the faults of a scenario.
///
/// Nodes are killed, paused, drained and started; links between them, which go through an emulator
/// in this process, are cut, slow or lossy. A fault-free run of the same length comes first. Exits
/// with 1 if an invariant was broken or an expected event was missed.
#[derive(Debug, Args)]
pub struct Run {
    /// A shipped scenario (see `slowmo chaos list`), or the path of a TOML file.
    scenario: String,
    /// Seed of the faults' targets and times, and of the losses on links.
    #[arg(long, value_name = "S", default_value_t = 1)]
    seed: u64,
    /// Duration of the faults, like 90, 90s, 10m or 1h; the scenario's own duration unless given.
    #[arg(long, value_name = "D", value_parser = seconds)]
    duration: Option<f64>,
    /// Folder for traces and report; chaos-SCENARIO-SEED in the working directory unless given.
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
    /// Skip the fault-free run that otherwise comes first.
    #[arg(long, conflicts_with = "baseline")]
    no_baseline: bool,
    /// Take the fault-free run from the folder of an earlier run.
    #[arg(long, value_name = "FOLDER")]
    baseline: Option<PathBuf>,
    /// The training binary and its arguments.
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Regenerates a report.
#[derive(Debug, Args)]
pub struct Again {
    /// The folder of the run.
    folder: PathBuf,
}

impl Chaos {
    /// Runs the subcommand.
    pub fn run(self, console: Console) -> anyhow::Result<()> {
        match self {
            Self::Run(run) => run.run(console),
            Self::List => list(console),
            Self::Report(Again { folder }) => {
                show(console, &Folder::open(&folder).report()?, &folder)
            }
        }
    }
}

impl Run {
    fn run(self, console: Console) -> anyhow::Result<()> {
        let (name, mut scenario) = Scenario::find(&self.scenario)?;
        if let Some(duration) = self.duration {
            scenario.shorten(duration);
        }
        let Some((program, arguments)) = self.command.split_first() else {
            bail!("no binary was named")
        };
        let program = PathBuf::from(program);
        super::launch::check_program(&program)?;
        let path = self
            .out
            .clone()
            .unwrap_or_else(|| PathBuf::from(format!("chaos-{name}-{}", self.seed)));
        let orders = Orders {
            scenario,
            seed: self.seed,
            program,
            arguments: arguments.to_vec(),
        };
        catch_signals();
        let folder = Folder::create(&path)?;
        let mut header = Header {
            scenario: name,
            seed: self.seed,
            command: orders.command(),
            ..Header::default()
        };
        folder.write_header(&orders.scenario, &header)?;
        match &self.baseline {
            Some(earlier) => folder.copy_baseline(&Folder::open(earlier))?,
            None if self.no_baseline => folder.forget_baseline()?,
            None => drop(go(console, &orders, Part::Baseline, &folder)?),
        }
        let outcome = go(console, &orders, Part::Faulty, &folder)?;
        header.notes = outcome.notes;
        header.traffic = outcome.traffic;
        header.kept = outcome.kept;
        folder.write_header(&orders.scenario, &header)?;
        show(console, &folder.report()?, &path)
    }
}

fn go(console: Console, orders: &Orders, part: Part, folder: &Folder) -> anyhow::Result<Outcome> {
    let nodes = orders.scenario.nodes;
    let quiet = orders.scenario.quiet_s;
    let seconds = orders.scenario.duration_s + quiet;
    let kind = if part == Part::Faulty {
        "with faults"
    } else {
        "without faults first"
    };
    console.progress(format!("{nodes} nodes, {kind}, {seconds:.0} s"));
    let begun = std::cell::Cell::new(std::time::Instant::now());
    let mut tell = |progress: Progress| {
        let at = begun.get().elapsed().as_secs_f64();
        match progress {
            Progress::Bootstrapped => begun.set(std::time::Instant::now()),
            Progress::Did(what) => console.note(format!("{at:7.1} s  {what}")),
            Progress::Wrong(what) => console.note(format!("{at:7.1} s  WRONG: {what}")),
            Progress::Quiet => console.note(format!(
                "{at:7.1} s  no more faults: {quiet:.0} s to recover, then it is judged"
            )),
        }
    };
    let outcome = run(orders, part, folder, &mut tell);
    outcome.with_context(|| {
        format!(
            "the run {kind}; its trace so far is {}",
            folder.trace(part).display()
        )
    })
}

fn show(console: Console, report: &Report, folder: &std::path::Path) -> anyhow::Result<()> {
    console.result(
        format!("{report}; {}", folder.join("report.html").display()),
        report,
    )?;
    if report.succeeded {
        Ok(())
    } else {
        Err(Told.into())
    }
}

fn list(console: Console) -> anyhow::Result<()> {
    let mut rows = Vec::new();
    for shipped in SHIPPED {
        let (_, scenario) = Scenario::find(shipped.name)?;
        rows.push((shipped.name, scenario));
    }
    let width = rows.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let line = |(name, scenario): &(&str, Scenario)| {
        let Scenario {
            nodes,
            duration_s,
            summary,
            ..
        } = scenario;
        format!("{name:width$}  {nodes:2} nodes  {duration_s:3.0} s  {summary}")
    };
    let lines: Vec<String> = rows.iter().map(line).collect();
    let object: Vec<_> = rows
        .iter()
        .map(|(name, scenario)| {
            serde_json::json!(
                {
                    "name": name,
                    "summary": scenario.summary,
                    "nodes": scenario.nodes,
                    "duration_s": scenario.duration_s
                }
            )
        })
        .collect();
    console.result(lines.join("\n"), &object)
}

/// Parses a number of seconds, minutes or hours.
fn seconds(text: &str) -> anyhow::Result<f64> {
    let (number, unit) = match text.trim_end_matches(char::is_alphabetic) {
        number if number.len() == text.len() => (number, 1.0),
        number => (
            number,
            match &text[number.len()..] {
                "s" => 1.0,
                "m" | "min" => 60.0,
                "h" => 3600.0,
                other => bail!("'{other}' is no unit: s, m and h are"),
            },
        ),
    };
    let seconds = number
        .trim()
        .parse::<f64>()
        .map(|number| number * unit)
        .unwrap_or(f64::NAN);
    let most = slowmo_chaos::processes::scenario::SECONDS_MAX;
    ensure!(
        (1.0..=most).contains(&seconds),
        "1 s to {most} s are possible, written like 90, 90s, 10m or 1h"
    );
    Ok(seconds)
}

//! Runs the models and prints what they found: `slowmo-models [bootstrap|histories] [--long]`.

use slowmo_models::check::Report;
use slowmo_models::{bootstrap, histories};
use std::process::ExitCode;

/// A model's name and the function that runs it.
type Subject = (&'static str, fn(bool) -> Vec<Report>);

const SUBJECTS: [Subject; 2] = [("bootstrap", bootstrap::run), ("histories", histories::run)];

fn main() -> ExitCode {
    let mut long = false;
    let mut named = Vec::new();
    for argument in std::env::args().skip(1) {
        match SUBJECTS.iter().find(|(name, _)| *name == argument) {
            Some((name, _)) => named.push(*name),
            None if argument == "--long" => long = true,
            None => {
                eprintln!("slowmo-models [bootstrap|histories] [--long]");
                return ExitCode::FAILURE;
            }
        }
    }
    let mut all_hold = true;
    for (name, run) in SUBJECTS {
        if !named.is_empty() && !named.contains(&name) {
            continue;
        }
        println!("{name}");
        println!("| space | result | states | steps | depth | seconds |");
        println!("|---|---|---|---|---|---|");
        let reports = run(long);
        for report in &reports {
            let Report {
                name,
                states,
                steps,
                depth,
                took,
                end,
                ..
            } = report;
            println!(
                "| {name} | {} | {states} | {steps} | {depth} | {:.1} |",
                end.word(),
                took.as_secs_f64()
            );
        }
        for report in reports.iter().filter(|report| !report.holds()) {
            all_hold = false;
            println!("{report}");
        }
    }
    if all_hold {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

//! Trains a small network on handwritten digits as one node of a cluster.
//!
//! Alone: `cargo run --release -p slowmo-examples --bin 02_digits`. Four nodes: `slowmo launch
//! --nodes 4 -- target/release/02_digits --slowmo-tau 12 --slowmo-frequency 12`.

use slowmo::Config;
use slowmo_examples::digits::{self, Event, Options};
use slowmo_examples::{flags, log};
use std::io::Write;

/// Train a 64-128-64-10 network on handwritten digits, together with the other nodes.
///
/// Flags that begin with --slowmo- configure the runtime (--slowmo-tau 12, --slowmo-base sgp, …).
#[derive(Debug, clap::Parser)]
#[command(version)]
struct Arguments {
    #[command(flatten)]
    options: Options,
    /// Print one JSON object per line on standard output: start, step, round and done.
    #[arg(long)]
    json_events: bool,
}

fn main() -> anyhow::Result<()> {
    let arguments: Arguments = flags::parse_own()?;
    log::to_standard_error(log::LevelFilter::WARN)?;
    digits::train(Config::load()?, &arguments.options, |event| {
        print(event, arguments.json_events)
    })?;
    Ok(())
}

/// Prints an event. A failed write is ignored: a parent that closed our standard output no longer
/// listens, and training continues without it.
fn print(event: &Event, json: bool) {
    let mut stdout = std::io::stdout().lock();
    let _ = match serde_json::to_string(event) {
        Ok(line) if json => writeln!(stdout, "{line}"),
        _ if is_due(event) => writeln!(stdout, "{event}"),
        _ => Ok(()),
    };
    let _ = stdout.flush();
}

/// Whether people are shown the event: every tenth step event is enough, and rounds would be as
/// numerous.
fn is_due(event: &Event) -> bool {
    match event {
        Event::Step { step, .. } => step % 50 == 0,
        Event::Round { .. } => false,
        Event::Start { .. } | Event::Done(_) => true,
    }
}

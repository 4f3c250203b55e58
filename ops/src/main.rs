//! The `slowmo` command line: reads the arguments, runs one command, and turns its result into an
//! exit code.
//!
//! Exit codes: 0 is success; 1 is a failure, explained on standard error; 2 is a usage error.

mod commands;
mod console;

use clap::Parser;
use commands::Cli;
use std::io::IsTerminal;
use std::process::ExitCode;
use tracing_subscriber::EnvFilter;

const _: () = assert!(
    !slowmo_protocol::planted::COMPILED_IN,
    "bugs on purpose are for tests of slowmo-chaos only: build without its feature `planted`"
);

fn main() -> ExitCode {
    let cli = Cli::parse();
    log();
    let console = console::Console::new(cli.json);
    match cli.command.run(&console) {
        Ok(()) => ExitCode::SUCCESS,
        // The command has already printed the reason.
        Err(error) if error.is::<console::Told>() => ExitCode::FAILURE,
        Err(error) => {
            console.failure(&error);
            ExitCode::FAILURE
        }
    }
}

/// Sends the runtime's warnings and errors to standard error; `SLOWMO_LOG` selects more, e.g.
/// `SLOWMO_LOG=slowmo=debug`.
fn log() {
    let filter = EnvFilter::try_from_env("SLOWMO_LOG").unwrap_or_else(|_| EnvFilter::new("warn"));
    let coloured = std::io::stderr().is_terminal();
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(coloured)
        .with_writer(std::io::stderr)
        .init();
}

//! The `slowmo` command line: reads the arguments, runs one command, turns its result into an exit
//! code.
//!
//! 0: done. 1: it failed, and standard error says why. 2: the arguments make no sense.

mod commands;
mod console;

use clap::Parser;
use commands::Cli;
use std::io::IsTerminal;
use std::process::ExitCode;
use tracing_subscriber::EnvFilter;

fn main() -> ExitCode {
    let cli = Cli::parse();
    log();
    let console = console::Console::new(cli.json);
    match cli.command.run(&console) {
        Ok(()) => ExitCode::SUCCESS,
        // What the command printed says why.
        Err(error) if error.is::<console::Told>() => ExitCode::FAILURE,
        Err(error) => {
            console.failure(&error);
            ExitCode::FAILURE
        }
    }
}

/// Warnings and worse of the runtime go to standard error; `SLOWMO_LOG` asks for more, as in
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

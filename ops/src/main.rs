//! The `slowmo` command line: reads the arguments, runs one command, turns its result into an exit code.
//!
//! 0: done. 1: it failed, and standard error says why. 2: the arguments make no sense.

mod commands;
mod console;

use clap::Parser;
use commands::Cli;
use std::process::ExitCode;

fn main() -> ExitCode {
    let cli = Cli::parse();
    let console = console::Console::new(cli.json);
    match cli.command.run(&console) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            console.failure(&error);
            ExitCode::FAILURE
        }
    }
}

//! The `slowmo` command line: reads the arguments, runs one command, and turns its result into an
//! exit code.
//!
//! Exit codes: 0 is success; 1 is a failure, explained on standard error; 2 is a usage error.

mod commands;
mod console;

use clap::Parser;
use commands::Cli;
use slowmo_examples::log;
use std::process::ExitCode;

const _: () = assert!(
    !slowmo_protocol::planted::COMPILED_IN,
    "bugs on purpose are for tests of slowmo-chaos only: build without its feature `planted`"
);

fn main() -> ExitCode {
    let cli = Cli::parse();
    let console = console::Console::new(cli.json);
    // `SLOWMO_LOG` selects more, e.g. `SLOWMO_LOG=slowmo=debug`.
    let logs = log::to_standard_error(log::LevelFilter::WARN);
    match logs.and_then(|()| cli.command.run(&console)) {
        Ok(()) => ExitCode::SUCCESS,
        // The command has already printed the reason.
        Err(error) if error.is::<console::Told>() => ExitCode::FAILURE,
        Err(error) => {
            console.failure(&error);
            ExitCode::FAILURE
        }
    }
}

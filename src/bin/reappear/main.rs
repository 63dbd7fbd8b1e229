//! The command-line tool `reappear`, over the public interface only.
//!
//! Reading commands read the log: no lock, no change. Writing commands open the store.
//!
//! # Not here
//! What each command does: `cmd/`, one file each. `docs/cli.md` is its manual.

mod args;
mod cmd;
mod output;
mod show;
mod store;

use std::io;
use std::process::ExitCode;

use clap::Parser;
use reappear::ErrorKind;

use output::Out;

/// How a command ended that did not fail.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Exit {
    Done,
    /// Nothing matched, or some of what was asked for was refused.
    Nothing,
    /// What was shown rests on a damaged log.
    Damaged,
}

/// A mistake in the arguments that clap cannot see.
#[derive(Debug)]
pub struct Usage(pub String);

impl std::fmt::Display for Usage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}

/// There is no store where one was named: unlike a message that is not there, no result.
#[derive(Debug)]
pub struct NoStore(pub reappear::Error);

impl std::fmt::Display for NoStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(&self.0, f)
    }
}

impl std::error::Error for NoStore {}

/// The exit code of a failure; see `docs/cli.md`.
fn code_of(error: &anyhow::Error) -> u8 {
    if error.is::<Usage>() {
        return 2;
    }
    match error.downcast_ref::<reappear::Error>().map(reappear::Error::kind) {
        Some(ErrorKind::NotFound | ErrorKind::StaleReceipt) => 1,
        Some(ErrorKind::InvalidInput) => 2,
        Some(ErrorKind::Corrupt) => 3,
        Some(ErrorKind::Locked) => 5,
        _ => 6,
    }
}

/// Whoever read the output has seen enough.
fn is_closed_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

fn main() -> ExitCode {
    let arguments = args::Cli::parse();
    let mut out = Out::new();
    let result = cmd::run(arguments.command, &mut out).and_then(|exit| {
        out.flush()?;
        Ok(exit)
    });
    match result {
        Ok(Exit::Done) => ExitCode::SUCCESS,
        Ok(Exit::Nothing) => ExitCode::from(1),
        Ok(Exit::Damaged) => ExitCode::from(3),
        Err(error) if is_closed_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            // Texts of errors may carry names and texts of messages.
            output::note(&format!("error: {error:#}"));
            ExitCode::from(code_of(&error))
        }
    }
}

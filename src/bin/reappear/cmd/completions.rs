//! `completions`: what a shell needs to complete our arguments.

use clap::CommandFactory;
use clap_complete::Shell;

use crate::Exit;
use crate::args::Cli;
use crate::output::Out;

/// Prints completions for a shell
#[derive(clap::Args)]
#[command(after_help = "Examples:
  reappear completions bash > /etc/bash_completion.d/reappear
  reappear completions fish > ~/.config/fish/completions/reappear.fish")]
pub struct Args {
    /// The shell
    shell: Shell,
}

pub fn run(args: Args, out: &mut Out) -> anyhow::Result<Exit> {
    // Made in memory first: the generator gives up loudly when a pipe is closed.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "reappear", &mut script);
    out.line(String::from_utf8_lossy(&script).trim_end())?;
    Ok(Exit::Done)
}

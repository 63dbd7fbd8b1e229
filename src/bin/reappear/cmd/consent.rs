//! Asking before something goes that nobody can bring back.

use std::io::{self, BufRead, IsTerminal, Write};

use crate::Usage;
use crate::args::Consent;
use crate::output::note;

/// Says what is going to happen; `false`: the person at the terminal does not want it.
///
/// # Errors
/// Wrong usage when there is no terminal to ask on and no `--yes`.
pub fn is_given(consent: &Consent, what: &str) -> anyhow::Result<bool> {
    note(what);
    if consent.yes {
        return Ok(true);
    }
    if !io::stdin().is_terminal() || !io::stderr().is_terminal() {
        return Err(Usage(format!("{what}: give --yes to do it, or --dry-run to change nothing")).into());
    }
    write!(io::stderr(), "Go on? [y/N] ")?;
    io::stderr().flush()?;
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

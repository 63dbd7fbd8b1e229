//! `history`: one message's whole life, as the log still knows it.

use std::path::PathBuf;

use reappear::MessageId;

use crate::Exit;
use crate::args::{Bodies, Output};
use crate::output::Out;
use crate::show::{record_json, record_text};

/// Shows everything that happened to one message, as far as the log still knows it
///
/// Reads the log without a lock, so it also works on a store that is in use. Ends with 1 when the log
/// does not know the message (any more).
#[derive(clap::Args)]
#[command(after_help = "Examples:
  reappear history jobs 4711
  reappear history jobs 4711 --json --body none")]
pub struct Args {
    /// The store's directory
    store: PathBuf,
    /// The message
    id: MessageId,
    #[command(flatten)]
    bodies: Bodies,
    #[command(flatten)]
    output: Output,
}

pub fn run(args: Args, out: &mut Out) -> anyhow::Result<Exit> {
    let records = crate::store::history(&args.store, args.id)?;
    for record in &records {
        let line = if args.output.json {
            record_json(record, &args.bodies)
        } else {
            record_text(record, &args.bodies, args.output.time)
        };
        out.line(&line)?;
    }
    Ok(if records.is_empty() { Exit::Nothing } else { Exit::Done })
}

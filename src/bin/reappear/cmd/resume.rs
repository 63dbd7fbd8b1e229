//! `resume`: undoes `pause`.

use std::path::PathBuf;

use reappear::QueueName;

use crate::Exit;
use crate::output::Out;
use crate::store::with_store;

/// Hands out messages of a paused queue again
///
/// Sending and settling go on either way.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  reappear resume jobs thumbnails")]
pub struct Args {
    /// The store's directory
    store: PathBuf,
    /// The queue
    queue: QueueName,
}

pub fn run(args: Args, _: &mut Out) -> anyhow::Result<Exit> {
    with_store(&args.store, false, async |store| {
        store.queue(args.queue.clone())?.resume().await?;
        Ok(Exit::Done)
    })
}

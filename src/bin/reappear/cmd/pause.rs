//! `pause`: hands nothing out any more.

use std::path::PathBuf;

use reappear::QueueName;

use crate::Exit;
use crate::output::Out;
use crate::store::with_store;

/// Stops handing out messages of a queue, over restarts too
///
/// Sending and settling go on either way.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  reappear pause jobs thumbnails")]
pub struct Args {
    /// The store's directory
    store: PathBuf,
    /// The queue
    queue: QueueName,
}

pub fn run(args: Args, _: &mut Out) -> anyhow::Result<Exit> {
    with_store(&args.store, false, async |store| {
        store.queue(args.queue.clone())?.pause().await?;
        Ok(Exit::Done)
    })
}

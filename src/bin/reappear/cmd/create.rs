//! `create`: a new queue with options of its own.

use std::path::PathBuf;

use reappear::{Backoff, QueueName, QueueOptions};

use crate::Exit;
use crate::args::QueueSettings;
use crate::output::Out;
use crate::store::with_store;

/// Creates a queue, and the store if it is missing
#[derive(clap::Args)]
#[command(after_help = "Examples:
  reappear create jobs failed
  reappear create jobs thumbnails --visibility 5m --max-attempts 3 --dead-letter failed")]
pub struct Args {
    /// The store's directory
    store: PathBuf,
    /// The queue
    queue: QueueName,
    #[command(flatten)]
    settings: QueueSettings,
}

pub fn run(args: Args, _: &mut Out) -> anyhow::Result<Exit> {
    with_store(&args.store, true, async |store| {
        let options = args.settings.over(QueueOptions::new(), Backoff::default());
        store.queue(args.queue.clone())?.create(options).await?;
        Ok(Exit::Done)
    })
}

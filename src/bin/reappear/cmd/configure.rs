//! `configure`: other options for a queue.

use std::path::PathBuf;

use reappear::QueueName;
use reappear::inspect::StoreState;

use crate::args::QueueSettings;
use crate::output::Out;
use crate::store::with_store;
use crate::{Exit, Usage};

/// Changes options of a queue; those that are not given stay as they are
///
/// Messages that are there follow the new options from now on; deadlines that run are kept.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  reappear configure jobs thumbnails --visibility 10m
  reappear configure jobs thumbnails --max-attempts none --no-dead-letter
  reappear configure jobs thumbnails --backoff 5s --backoff-max 1h")]
pub struct Args {
    /// The store's directory
    store: PathBuf,
    /// The queue
    queue: QueueName,
    #[command(flatten)]
    settings: QueueSettings,
}

pub fn run(args: Args, _: &mut Out) -> anyhow::Result<Exit> {
    if args.settings.is_empty() {
        return Err(Usage("nothing to change: give at least one option".to_owned()).into());
    }
    with_store(&args.store, false, async |store| {
        let queue = store.queue(args.queue.clone())?;
        let options = queue.stats().await?.options;
        // The store is ours, so what the log says of the back-off now is what holds.
        let seen = StoreState::load(&args.store)?;
        let backoff = seen.queue(args.queue.as_str()).map(|queue| queue.options.backoff).unwrap_or_default();
        queue.configure(args.settings.over(options, backoff)).await?;
        Ok(Exit::Done)
    })
}

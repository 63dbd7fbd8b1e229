//! `delete`: removes a queue.

use std::path::PathBuf;

use reappear::QueueName;

use super::consent;
use crate::Exit;
use crate::args::Consent;
use crate::output::{Json, Out, note};
use crate::store::{load, with_store};

/// Deletes a queue
///
/// One that holds messages, or that is the dead-letter queue of another, only with --force; its
/// messages are gone then. --dry-run reads the log without a lock and counts.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  reappear delete jobs thumbnails
  reappear delete jobs thumbnails --force --dry-run
  reappear delete jobs thumbnails --force --yes")]
pub struct Args {
    /// The store's directory
    store: PathBuf,
    /// The queue
    queue: QueueName,
    /// Delete it with its messages
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    consent: Consent,
    /// Print one JSON object a line
    #[arg(long)]
    json: bool,
}

pub fn run(args: Args, out: &mut Out) -> anyhow::Result<Exit> {
    if args.consent.dry_run {
        let (seen, exit) = load(&args.store)?;
        let Some(queue) = seen.queue(args.queue.as_str()) else {
            note(&format!("there is no queue {:?}", args.queue.as_str()));
            return Ok(Exit::Nothing);
        };
        let count = seen.messages().filter(|message| message.queue() == queue.queue).count();
        print(&args, count as u64, out)?;
        return Ok(exit);
    }
    with_store(&args.store, false, async |store| {
        let queue = store.queue(args.queue.clone())?;
        let stats = queue.stats().await?;
        let count = stats.ready + stats.delayed + stats.in_flight + stats.dead;
        let what = format!("queue {:?} will be deleted with its {count} messages", args.queue.as_str());
        // Without force the library refuses a queue that holds any.
        if args.force && count > 0 && !consent::is_given(&args.consent, &what)? {
            return Ok(Exit::Nothing);
        }
        let count = queue.delete(args.force).await?;
        print(&args, count, out)?;
        Ok(Exit::Done)
    })
}

fn print(args: &Args, count: u64, out: &mut Out) -> anyhow::Result<()> {
    if args.json {
        let mut json = Json::line();
        json.put("queue", &args.queue);
        json.put("removed", &count);
        json.put("dry_run", &args.consent.dry_run);
        out.line(&json.end())?;
    } else {
        let verb = if args.consent.dry_run { "would be deleted" } else { "deleted" };
        out.line(&format!("{verb}, with {count} messages"))?;
    }
    Ok(())
}

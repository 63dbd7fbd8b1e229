//! `redrive`: puts dead messages back to work.

use std::path::PathBuf;

use reappear::{DeadReason, MessageId, QueueName, RedriveFilter};

use crate::Exit;
use crate::args::dead_reason;
use crate::output::{Json, Out};
use crate::store::with_store;

/// Puts dead messages back to work, with their attempts at 0
///
/// In a dead-letter queue: moves the messages back to the queues they came from. Prints how many;
/// ends with 1 when there were none. Interrupted, it can be called again.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  reappear redrive jobs thumbnails
  reappear redrive jobs thumbnails --reason max_attempts --max 100
  reappear redrive jobs failed --id 4711 --id 4712")]
pub struct Args {
    /// The store's directory
    store: PathBuf,
    /// The queue
    queue: QueueName,
    /// Only messages that died for this reason: max_attempts, rejected, expired or unreadable
    #[arg(long, value_name = "REASON", value_parser = dead_reason)]
    reason: Option<DeadReason>,
    /// Only this message; may be given several times
    #[arg(long, value_name = "ID")]
    id: Vec<MessageId>,
    /// Most messages to put back
    #[arg(long, value_name = "N")]
    max: Option<u64>,
    /// Print one JSON object a line
    #[arg(long)]
    json: bool,
}

pub fn run(args: Args, out: &mut Out) -> anyhow::Result<Exit> {
    let mut filter = RedriveFilter::default();
    filter.reason = args.reason;
    filter.ids = (!args.id.is_empty()).then_some(args.id);
    with_store(&args.store, false, async |store| {
        let count = store.queue(args.queue.clone())?.redrive(filter, args.max).await?;
        if args.json {
            let mut json = Json::line();
            json.put("queue", &args.queue);
            json.put("redriven", &count);
            out.line(&json.end())?;
        } else {
            out.line(&format!("{count} redriven"))?;
        }
        Ok(if count == 0 { Exit::Nothing } else { Exit::Done })
    })
}

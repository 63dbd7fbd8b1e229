//! `rebuild`: the index anew from the log.

use std::path::PathBuf;

use reappear::Options;

use crate::Exit;
use crate::output::{Json, Out};
use crate::store::with_store_and;

/// Builds the index anew from the log
///
/// The index can always be made from the log, so nothing is lost by it; an index that does not open, fails or
/// grows too large is replaced by itself. The store must not be in use.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  reappear rebuild jobs
  reappear rebuild jobs --json")]
pub struct Args {
    /// The store's directory
    store: PathBuf,
    /// Print one JSON object a line
    #[arg(long)]
    json: bool,
}

pub fn run(args: Args, out: &mut Out) -> anyhow::Result<Exit> {
    let options = Options::new().create(false).create_queues(false).rebuild_index(true);
    with_store_and(&args.store, options, async |store| {
        let (stats, report) = (store.stats().await?, store.report());
        if args.json {
            let mut json = Json::line();
            json.put("messages", &stats.messages);
            json.put("records", &report.replayed_records);
            json.put("index_generation", &stats.index_generation);
            out.line(&json.end())?;
        } else {
            let (messages, records) = (stats.messages, report.replayed_records);
            out.line(&format!("index rebuilt: {messages} messages from {records} records"))?;
        }
        Ok(Exit::Done)
    })
}

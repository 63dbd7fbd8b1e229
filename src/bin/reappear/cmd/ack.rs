//! `ack`: settles deliveries: the work is done.

use super::settle::{Receipts, each};
use crate::Exit;
use crate::output::Out;

/// Acknowledges deliveries: the work is done, the messages are gone
///
/// What is acknowledged never comes back. Each receipt gets a result line; ends with 1 if any of
/// them was refused, because its delivery is over or its message is gone.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  reappear ack jobs r1-…
  reappear receive jobs mails --json | jq -r .receipt | xargs reappear ack jobs")]
pub struct Args {
    #[command(flatten)]
    receipts: Receipts,
}

pub fn run(args: Args, out: &mut Out) -> anyhow::Result<Exit> {
    each(&args.receipts, "acked", out, async |store, receipt| store.ack(receipt).await)
}

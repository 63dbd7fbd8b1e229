//! `nack`: gives deliveries back as failed.

use std::time::Duration;

use reappear::Nack;

use super::settle::{Receipts, each};
use crate::Exit;
use crate::args::duration;
use crate::output::Out;

/// Gives deliveries back as failed: they reappear after a delay
///
/// Those whose attempts are used up are dead, or move to the dead-letter queue. Each receipt gets a result line; ends with 1 if any of
/// them was refused, because its delivery is over or its message is gone.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  reappear nack jobs r1-…
  reappear nack jobs r1-… --delay 30s --error 'upstream answered 503'")]
pub struct Args {
    #[command(flatten)]
    receipts: Receipts,
    /// Hidden for this long [default: the queue's back-off]
    #[arg(long, value_name = "D", value_parser = duration)]
    delay: Option<Duration>,
    /// Why it failed; kept with the message
    #[arg(long, value_name = "TEXT")]
    error: Option<String>,
}

pub fn run(args: Args, out: &mut Out) -> anyhow::Result<Exit> {
    let mut nack = Nack::new();
    if let Some(delay) = args.delay {
        nack = nack.delay(delay);
    }
    if let Some(error) = args.error {
        nack = nack.error(error);
    }
    each(&args.receipts, "nacked", out, async |store, receipt| store.nack(receipt, nack.clone()).await)
}

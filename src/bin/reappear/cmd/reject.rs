//! `reject`: sets deliveries aside as dead.

use super::settle::{Receipts, each};
use crate::Exit;
use crate::output::Out;

/// Sets deliveries aside: they can never be worked, and are dead now
///
/// With a dead-letter queue they move there. Each receipt gets a result line; ends with 1 if any of
/// them was refused, because its delivery is over or its message is gone.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  reappear reject jobs r1-… --reason 'no such customer'")]
pub struct Args {
    #[command(flatten)]
    receipts: Receipts,
    /// Why; kept with the message
    #[arg(long, value_name = "TEXT")]
    reason: String,
}

pub fn run(args: Args, out: &mut Out) -> anyhow::Result<Exit> {
    each(&args.receipts, "rejected", out, async |store, receipt| store.reject(receipt, &args.reason).await)
}

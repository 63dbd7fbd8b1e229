//! `release`: gives deliveries back unworked.

use super::settle::{Receipts, each};
use crate::Exit;
use crate::output::Out;

/// Gives deliveries back unworked: receivable now, the attempt refunded
///
/// For what was received and then not begun. Each receipt gets a result line; ends with 1 if any of
/// them was refused, because its delivery is over or its message is gone.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  reappear release jobs r1-…")]
pub struct Args {
    #[command(flatten)]
    receipts: Receipts,
}

pub fn run(args: Args, out: &mut Out) -> anyhow::Result<Exit> {
    each(&args.receipts, "released", out, async |store, receipt| store.release(receipt).await)
}

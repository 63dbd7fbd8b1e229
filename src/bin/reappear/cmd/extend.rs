//! `extend`: gives the holder of a delivery more time.

use std::time::Duration;

use super::settle::{Receipts, each};
use crate::Exit;
use crate::args::duration;
use crate::output::Out;

/// Moves the deadline of deliveries: hidden for this long from now
///
/// The time counts from now, not from the present deadline. Each receipt gets a result line; ends with 1 if any of
/// them was refused, because its delivery is over or its message is gone.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  reappear extend jobs r1-… --by 10m")]
pub struct Args {
    #[command(flatten)]
    receipts: Receipts,
    /// Hidden for this long from now
    #[arg(long, value_name = "D", value_parser = duration)]
    by: Duration,
}

pub fn run(args: Args, out: &mut Out) -> anyhow::Result<Exit> {
    each(&args.receipts, "extended", out, async |store, receipt| store.extend(receipt, args.by).await)
}

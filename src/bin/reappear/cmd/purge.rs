//! `purge`: removes messages of a queue.

use std::path::PathBuf;

use reappear::{QueueName, State};

use super::consent;
use super::queues::figures;
use crate::Exit;
use crate::args::{Consent, state};
use crate::output::{Json, Out};
use crate::store::{load, with_store};

/// Removes messages of a queue for good
///
/// Without --state it removes what is ready, delayed or dead; what is in flight goes only if it is
/// named. --dry-run reads the log without a lock and counts.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  reappear purge jobs thumbnails --dry-run
  reappear purge jobs thumbnails --state dead --yes")]
pub struct Args {
    /// The store's directory
    store: PathBuf,
    /// The queue
    queue: QueueName,
    /// Only messages in this state; may be given several times
    #[arg(long, value_name = "STATE", value_parser = state)]
    state: Vec<State>,
    #[command(flatten)]
    consent: Consent,
    /// Print one JSON object a line
    #[arg(long)]
    json: bool,
}

pub fn run(args: Args, out: &mut Out) -> anyhow::Result<Exit> {
    let states =
        if args.state.is_empty() { vec![State::Ready, State::Delayed, State::Dead] } else { args.state.clone() };
    if args.consent.dry_run {
        let (seen, exit) = load(&args.store)?;
        let Some(queue) = seen.queue(args.queue.as_str()) else {
            crate::output::note(&format!("there is no queue {:?}", args.queue.as_str()));
            return Ok(Exit::Nothing);
        };
        let figures = figures(&seen, seen.now());
        let figures = figures.get(&queue.queue);
        let count = State::ALL.iter().filter(|state| states.contains(state));
        let count = count.map(|state| figures.map_or(0, |figures| figures.count(*state))).sum();
        print(&args, count, out)?;
        return Ok(if exit == Exit::Done && count == 0 { Exit::Nothing } else { exit });
    }
    with_store(&args.store, false, async |store| {
        let queue = store.queue(args.queue.clone())?;
        let stats = queue.stats().await?;
        let counts = [
            (State::Ready, stats.ready),
            (State::Delayed, stats.delayed),
            (State::InFlight, stats.in_flight),
            (State::Dead, stats.dead),
        ];
        let count: u64 = counts.iter().filter(|(state, _)| states.contains(state)).map(|(_, count)| count).sum();
        let what = format!("{count} messages of {:?} will be removed for good", args.queue.as_str());
        if count > 0 && !consent::is_given(&args.consent, &what)? {
            return Ok(Exit::Nothing);
        }
        let removed = if count > 0 { queue.purge(&states).await? } else { 0 };
        print(&args, removed, out)?;
        Ok(if removed == 0 { Exit::Nothing } else { Exit::Done })
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
        let verb = if args.consent.dry_run { "would be removed" } else { "removed" };
        out.line(&format!("{count} {verb}"))?;
    }
    Ok(())
}

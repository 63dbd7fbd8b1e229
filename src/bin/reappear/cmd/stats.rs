//! `stats`: figures of a store, or of one queue.

use std::path::PathBuf;

use reappear::inspect::{QueueState, StoreState};
use reappear::{QueueName, State, Timestamp};

use super::queues::{Figures, figures};
use crate::Exit;
use crate::args::Output;
use crate::output::{Json, Out, escape, span, time};
use crate::show::{options_json, options_text};
use crate::store::load;

/// Shows figures of the store, or of one queue with its options
///
/// Reads the log without a lock, so it also works on a store that is in use. Figures that only the
/// process has that holds the store (settle times, waiting receivers) are not in the log, and not here.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  reappear stats jobs
  reappear stats jobs thumbnails --json")]
pub struct Args {
    /// The store's directory
    store: PathBuf,
    /// Only this queue
    queue: Option<QueueName>,
    #[command(flatten)]
    output: Output,
}

/// What can be said about durability from outside.
const DURABILITY: &str = "every record up to durable_lsn is proven to be on disk; the newest usually are too. What a \
power cut may lose beyond that is decided by the durability policy of the program that has the store open: under \
`always`, the default, nothing that was acknowledged";

pub fn run(args: Args, out: &mut Out) -> anyhow::Result<Exit> {
    let (state, exit) = load(&args.store)?;
    let now = state.now();
    let mut all = figures(&state, now);
    let Some(name) = &args.queue else {
        let line =
            if args.output.json { vec![store_json(&state, &all, now)] } else { store_text(&args, &state, &all, now) };
        line.iter().try_for_each(|line| out.line(line))?;
        return Ok(exit);
    };
    let Some(queue) = state.queue(name.as_str()) else {
        crate::output::note(&format!("there is no queue {:?}", name.as_str()));
        return Ok(if exit == Exit::Done { Exit::Nothing } else { exit });
    };
    let figures = all.remove(&queue.queue).unwrap_or_default();
    let lines =
        if args.output.json { vec![queue_json(queue, &figures, now)] } else { queue_text(queue, &figures, now) };
    lines.iter().try_for_each(|line| out.line(line))?;
    Ok(exit)
}

type All = std::collections::BTreeMap<u64, Figures>;

fn total(all: &All, state: State) -> u64 {
    all.values().map(|figures| figures.count(state)).sum()
}

fn store_json(state: &StoreState, all: &All, now: Timestamp) -> String {
    let mut json = Json::line();
    json.put("store", &state.store.to_string());
    json.time("created", Some(state.created));
    json.time("clock", Some(state.clock));
    json.time("now", Some(now));
    json.put("last_lsn", &state.last_lsn);
    json.put("durable_lsn", &state.durable_lsn);
    json.put("closed_in_order", &state.closed_in_order);
    json.put("queues", &state.queues().len());
    json.put("messages", &state.messages().count());
    for s in State::ALL {
        json.put(s.as_str(), &total(all, s));
    }
    json.put("body_len", &all.values().map(|figures| figures.body_len).sum::<u64>());
    json.put("records", &state.records);
    json.put("records_len", &state.records_len);
    let space = &state.space;
    json.put("segments", &space.segments);
    json.put("oldest_segment_kept_for", &space.oldest_segment_kept_for.to_string());
    json.put("log_len_on_disk", &space.log_len_on_disk);
    json.put("live_len", &space.live_len);
    json.put("dead_len", &space.dead_len);
    json.put("reserve_len", &space.reserve_len);
    json.put("index_len", &space.index_len);
    json.put("quarantine_len", &space.quarantine_len);
    json.put("findings", &(state.findings.len() + state.bad_records.len()));
    json.end()
}

/// Pairs of name and value under each other.
fn listed(pairs: Vec<(&str, String)>) -> Vec<String> {
    let width = pairs.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    pairs.into_iter().map(|(name, value)| format!("{name:width$}  {value}")).collect()
}

fn store_text(args: &Args, state: &StoreState, all: &All, now: Timestamp) -> Vec<String> {
    let at = |at| time(at, args.output.time);
    let mut pairs = vec![
        ("store", state.store.to_string()),
        ("created", at(state.created)),
        ("clock", at(state.clock)),
        ("now", at(now)),
        ("last_lsn", state.last_lsn.to_string()),
        ("durable_lsn", state.durable_lsn.to_string()),
        ("closed_in_order", state.closed_in_order.to_string()),
        ("queues", state.queues().len().to_string()),
        ("messages", state.messages().count().to_string()),
    ];
    pairs.extend(State::ALL.map(|s| (s.as_str(), total(all, s).to_string())));
    pairs.extend([
        ("body_len", all.values().map(|figures| figures.body_len).sum::<u64>().to_string()),
        ("records", state.records.to_string()),
        ("records_len", state.records_len.to_string()),
        ("segments", state.space.segments.to_string()),
        ("oldest_segment_kept_for", escape(&state.space.oldest_segment_kept_for.to_string())),
        ("log_len_on_disk", state.space.log_len_on_disk.to_string()),
        ("live_len", state.space.live_len.to_string()),
        ("dead_len", state.space.dead_len.to_string()),
        ("reserve_len", state.space.reserve_len.to_string()),
        ("index_len", state.space.index_len.to_string()),
        ("quarantine_len", state.space.quarantine_len.to_string()),
        ("findings", (state.findings.len() + state.bad_records.len()).to_string()),
    ]);
    let mut lines = listed(pairs);
    lines.push(String::new());
    lines.push(format!("durability: {DURABILITY}."));
    lines
}

fn queue_json(queue: &QueueState, figures: &Figures, now: Timestamp) -> String {
    let mut json = Json::line();
    json.put("queue", &queue.name);
    json.put("queue_id", &queue.queue);
    figures.put(&mut json, now);
    json.put("body_len", &figures.body_len);
    let mut reasons = Json::object();
    for (reason, count) in &figures.dead_reasons {
        reasons.put(reason, count);
    }
    json.nest("dead_reasons", reasons);
    json.put("paused", &queue.paused);
    json.nest("options", options_json(&queue.options));
    json.end()
}

fn queue_text(queue: &QueueState, figures: &Figures, now: Timestamp) -> Vec<String> {
    let age = |at: Option<Timestamp>| at.map_or_else(|| "-".to_owned(), |at| span(now.since(at)));
    let reasons: Vec<String> = figures.dead_reasons.iter().map(|(reason, count)| format!("{reason} {count}")).collect();
    let mut pairs = vec![("queue", escape(queue.name.as_str())), ("queue_id", queue.queue.to_string())];
    pairs.extend(State::ALL.map(|s| (s.as_str(), figures.count(s).to_string())));
    pairs.extend([
        ("oldest_ready", age(figures.oldest_ready)),
        ("oldest_in_flight", age(figures.oldest_in_flight)),
        ("dead_reasons", if reasons.is_empty() { "-".to_owned() } else { reasons.join(", ") }),
        ("body_len", figures.body_len.to_string()),
        ("paused", queue.paused.to_string()),
    ]);
    pairs.extend(options_text(&queue.options));
    listed(pairs)
}

//! `queues`: all queues of a store with their counts.

use std::collections::BTreeMap;
use std::path::PathBuf;

use reappear::State;
use reappear::inspect::{QueueState, StoreState};

use crate::Exit;
use crate::output::{Json, Out, Table, span};
use crate::show::options_json;
use crate::store::load;

/// Lists the queues with their messages by state
///
/// Reads the log without a lock, so it also works on a store that is in use. The counts are as of
/// the last record that is written.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  reappear queues jobs
  reappear queues jobs --json | jq 'select(.dead > 0) | .queue'")]
pub struct Args {
    /// The store's directory
    store: PathBuf,
    /// Print one JSON object a line
    #[arg(long)]
    json: bool,
}

/// Figures of one queue, added up from its messages.
#[derive(Default)]
pub struct Figures {
    pub counts: BTreeMap<&'static str, u64>,
    /// When the oldest receivable message was sent.
    pub oldest_ready: Option<reappear::Timestamp>,
    /// When the longest-held message in flight was handed out.
    pub oldest_in_flight: Option<reappear::Timestamp>,
    /// Dead messages by reason.
    pub dead_reasons: BTreeMap<&'static str, u64>,
    pub body_len: u64,
}

impl Figures {
    pub fn count(&self, state: State) -> u64 {
        self.counts.get(state.as_str()).copied().unwrap_or(0)
    }

    fn add(&mut self, message: &reappear::inspect::MessageState, now: reappear::Timestamp) {
        let state = message.state(now);
        *self.counts.entry(state.as_str()).or_default() += 1;
        self.body_len += message.body_len() as u64;
        let older = |old: Option<reappear::Timestamp>, at| Some(old.map_or(at, |old| old.min(at)));
        match state {
            State::Ready => self.oldest_ready = older(self.oldest_ready, message.sent_at()),
            State::InFlight => {
                if let Some(at) = message.last_received_at() {
                    self.oldest_in_flight = older(self.oldest_in_flight, at);
                }
            }
            State::Dead => {
                let reason = message.dead().map_or("unknown", |dead| dead.reason.as_str());
                *self.dead_reasons.entry(reason).or_default() += 1;
            }
            _ => {}
        }
    }

    pub fn put(&self, json: &mut Json, now: reappear::Timestamp) {
        for state in State::ALL {
            json.put(state.as_str(), &self.count(state));
        }
        json.millis("oldest_ready", self.oldest_ready.map(|at| now.since(at)));
        json.millis("oldest_in_flight", self.oldest_in_flight.map(|at| now.since(at)));
    }
}

/// Figures by queue id.
pub fn figures(state: &StoreState, now: reappear::Timestamp) -> BTreeMap<u64, Figures> {
    let mut all: BTreeMap<u64, Figures> = BTreeMap::new();
    for message in state.messages() {
        all.entry(message.queue()).or_default().add(message, now);
    }
    all
}

pub fn run(args: Args, out: &mut Out) -> anyhow::Result<Exit> {
    let (state, exit) = load(&args.store)?;
    let now = state.now();
    let mut figures = figures(&state, now);
    let mut table =
        Table::new(&["queue", "ready", "delayed", "in_flight", "dead", "oldest_ready", "visibility_timeout", "paused"]);
    for queue in state.queues() {
        let figures = figures.remove(&queue.queue).unwrap_or_default();
        if args.json {
            out.line(&json(queue, &figures, now))?;
        } else {
            let counts = State::ALL.map(|state| figures.count(state).to_string());
            let oldest = figures.oldest_ready.map_or_else(|| "-".to_owned(), |at| span(now.since(at)));
            let rest = [oldest, span(queue.options.visibility_timeout), queue.paused.to_string()];
            table.row(std::iter::once(queue.name.as_str().to_owned()).chain(counts).chain(rest));
        }
    }
    if !args.json && !state.queues().is_empty() {
        out.table(&table)?;
    }
    Ok(if exit == Exit::Done && state.queues().is_empty() { Exit::Nothing } else { exit })
}

fn json(queue: &QueueState, figures: &Figures, now: reappear::Timestamp) -> String {
    let mut json = Json::line();
    json.put("queue", &queue.name);
    json.put("queue_id", &queue.queue);
    figures.put(&mut json, now);
    json.put("paused", &queue.paused);
    json.nest("options", options_json(&queue.options));
    json.end()
}

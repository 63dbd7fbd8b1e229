//! `peek`: messages in the order of delivery, changing nothing.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use reappear::inspect::{Item, MessageState};
use reappear::{Attributes, MessageId, QueueName, State, Timestamp};

use crate::Exit;
use crate::args::{Bodies, BodyMode, Output, state};
use crate::output::{Json, Out, quote, time};
use crate::show::{attributes_text, body_text, put_attributes, put_body, put_dead};
use crate::store::{load, log};

/// Shows messages in the order of delivery, changing nothing
///
/// Reads the log without a lock, so it also works on a store that is in use. Ends with 1 when there
/// is no such message.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  reappear peek jobs thumbnails
  reappear peek jobs thumbnails --state dead --max 100 --json")]
pub struct Args {
    /// The store's directory
    store: PathBuf,
    /// The queue
    queue: QueueName,
    /// Only messages in this state: ready, delayed, in_flight or dead
    #[arg(long, value_name = "STATE", value_parser = state)]
    state: Option<State>,
    /// Most messages to show
    #[arg(long, value_name = "N", default_value_t = 10)]
    max: usize,
    #[command(flatten)]
    bodies: Bodies,
    #[command(flatten)]
    output: Output,
}

/// Attributes and body of messages that are to be shown.
type Contents = BTreeMap<MessageId, (Attributes, Vec<u8>)>;

pub fn run(args: Args, out: &mut Out) -> anyhow::Result<Exit> {
    let (state, exit) = load(&args.store)?;
    let now = state.now();
    let Some(queue) = state.queue(args.queue.as_str()) else {
        crate::output::note(&format!("there is no queue {:?}", args.queue.as_str()));
        return Ok(if exit == Exit::Done { Exit::Nothing } else { exit });
    };
    let is_wanted = |message: &&MessageState| {
        message.queue() == queue.queue && args.state.is_none_or(|state| message.state(now) == state)
    };
    let mut chosen: Vec<&MessageState> = state.messages().filter(is_wanted).collect();
    chosen.sort_by_key(|message| (Reverse(message.priority()), message.id()));
    chosen.truncate(args.max);
    let contents = contents(&args.store, &chosen)?;
    for message in &chosen {
        let content = contents.get(&message.id());
        let line =
            if args.output.json { json(&args, message, content, now) } else { text(&args, message, content, now) };
        out.line(&line)?;
    }
    Ok(if exit == Exit::Done && chosen.is_empty() { Exit::Nothing } else { exit })
}

/// Reads the log once more, for the bodies of the chosen messages only.
fn contents(path: &Path, chosen: &[&MessageState]) -> anyhow::Result<Contents> {
    let mut wanted: Contents = chosen.iter().map(|message| (message.id(), Default::default())).collect();
    let mut found = Contents::new();
    if wanted.is_empty() {
        return Ok(found);
    }
    for item in log(path)? {
        if let Item::Record(record) = item?
            && matches!(record.kind, "sent" | "relocated")
            && let Some(id) = record.id.filter(|id| wanted.contains_key(id))
        {
            found.insert(id, (record.attributes, record.body));
            // A later copy of a message is the same, so the first one is enough.
            wanted.remove(&id);
            if wanted.is_empty() {
                break;
            }
        }
    }
    Ok(found)
}

fn json(args: &Args, message: &MessageState, content: Option<&(Attributes, Vec<u8>)>, now: Timestamp) -> String {
    let mut json = Json::line();
    json.put("id", &message.id());
    json.put("queue", &args.queue);
    json.put("state", &message.state(now));
    json.put("epoch", &message.epoch());
    json.put("receive_count", &message.receive_count());
    json.put("attempts", &message.attempts());
    json.put("priority", &message.priority());
    json.time("sent_at", Some(message.sent_at()));
    json.time("visible_at", Some(message.visible_at()));
    json.time("expires_at", message.expires_at());
    json.time("first_received_at", message.first_received_at());
    json.time("last_received_at", message.last_received_at());
    json.some("last_error", message.last_error());
    put_dead(&mut json, message.dead().as_ref());
    if let Some((attributes, body)) = content {
        put_attributes(&mut json, attributes);
        put_body(&mut json, body, &args.bodies);
    } else {
        json.put("unreadable", &true);
    }
    json.end()
}

fn text(args: &Args, message: &MessageState, content: Option<&(Attributes, Vec<u8>)>, now: Timestamp) -> String {
    let at = |at| time(at, args.output.time);
    let mut line = format!("{:>8}  {:<9}  sent_at={}", message.id(), message.state(now), at(message.sent_at()));
    let mut put = |name: &str, value: Option<String>| {
        if let Some(value) = value {
            line.push_str(&format!(" {name}={value}"));
        }
    };
    put("receive_count", Some(message.receive_count().to_string()));
    put("attempts", Some(message.attempts().to_string()));
    put("priority", (message.priority() != 0).then(|| message.priority().to_string()));
    put("visible_at", (message.visible_at() > now).then(|| at(message.visible_at())));
    put("expires_at", message.expires_at().map(at));
    put("reason", message.dead().map(|dead| dead.reason.to_string()));
    put("origin", message.dead().map(|dead| quote(dead.origin.as_str())));
    put("last_error", message.last_error().map(quote));
    match content {
        Some((attributes, body)) => {
            line.push_str(&attributes_text(attributes));
            if args.bodies.body != BodyMode::None {
                line.push_str(&format!(" body={}", body_text(body, &args.bodies)));
            }
        }
        None => line.push_str(" unreadable"),
    }
    line
}

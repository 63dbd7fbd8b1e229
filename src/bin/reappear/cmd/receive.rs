//! `receive`: takes messages out of a queue and prints them with their receipts.

use std::path::PathBuf;
use std::time::Duration;

use reappear::{Delivery, QueueName};

use crate::Exit;
use crate::args::{Bodies, BodyMode, Output, TimeFormat, duration};
use crate::output::{Json, Out, escape, quote, time};
use crate::show::{attributes_text, body_text, put_attributes, put_body, put_dead};
use crate::store::with_store;

/// Receives messages and prints them with their receipts
///
/// They stay hidden until their deadline, or until they are settled with their receipt: by ack,
/// nack, release, extend or reject, also from another process. Ends with 1 when there was none.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  reappear receive jobs thumbnails
  reappear receive jobs thumbnails --max 10 --wait 20s --visibility 5m --json
  reappear receive jobs thumbnails --ack --json | jq -r .body")]
pub struct Args {
    /// The store's directory
    store: PathBuf,
    /// The queue
    queue: QueueName,
    /// Most messages to receive, 1 to 1000
    #[arg(long, value_name = "N", default_value_t = 1)]
    max: usize,
    /// Wait this long for a message
    #[arg(long, value_name = "D", value_parser = duration)]
    wait: Option<Duration>,
    /// How long they stay hidden [default: the queue's visibility timeout]
    #[arg(long, value_name = "D", value_parser = duration)]
    visibility: Option<Duration>,
    /// Acknowledge what was printed
    #[arg(long)]
    ack: bool,
    #[command(flatten)]
    bodies: Bodies,
    #[command(flatten)]
    output: Output,
}

pub fn run(args: Args, out: &mut Out) -> anyhow::Result<Exit> {
    with_store(&args.store, false, async |store| {
        let queue = store.queue(args.queue.clone())?;
        let mut receive = queue.receive().max(args.max).wait(args.wait.unwrap_or_default());
        if let Some(visibility) = args.visibility {
            receive = receive.visibility(visibility);
        }
        let deliveries = receive.many().await?;
        if let Err(error) = print(&args, &deliveries, out) {
            // Nobody has seen them, or not all of them: whoever comes next gets them at once.
            for result in queue.release_many(deliveries.iter().map(Delivery::receipt)).await? {
                result?;
            }
            return Err(error);
        }
        if args.ack && !deliveries.is_empty() {
            for result in queue.ack_many(deliveries.iter().map(Delivery::receipt)).await? {
                result?;
            }
        }
        Ok(if deliveries.is_empty() { Exit::Nothing } else { Exit::Done })
    })
}

fn print(args: &Args, deliveries: &[Delivery], out: &mut Out) -> anyhow::Result<()> {
    for delivery in deliveries {
        let line = if args.output.json { json(args, delivery) } else { text(args, delivery, args.output.time) };
        out.line(&line)?;
    }
    out.flush()?;
    Ok(())
}

fn json(args: &Args, delivery: &Delivery) -> String {
    let mut json = Json::line();
    json.put("id", &delivery.id());
    json.put("queue", delivery.queue());
    json.put("receipt", &delivery.receipt().to_string());
    json.put("epoch", &delivery.epoch());
    json.put("receive_count", &delivery.receive_count());
    json.put("attempts", &delivery.attempts());
    json.put("priority", &delivery.priority());
    json.time("sent_at", Some(delivery.sent_at()));
    json.time("visible_at", Some(delivery.visible_at()));
    json.time("first_received_at", Some(delivery.first_received_at()));
    json.some("last_error", delivery.last_error());
    put_dead(&mut json, delivery.dead_letter().as_ref());
    put_attributes(&mut json, delivery.attributes());
    put_body(&mut json, delivery.body(), &args.bodies);
    json.end()
}

fn text(args: &Args, delivery: &Delivery, format: TimeFormat) -> String {
    let mut line = format!(
        "{}  {}  receive_count={} attempts={} visible_at={}",
        delivery.id(),
        delivery.receipt(),
        delivery.receive_count(),
        delivery.attempts(),
        time(delivery.visible_at(), format),
    );
    if let Some(error) = delivery.last_error() {
        line.push_str(&format!(" last_error={}", quote(error)));
    }
    if let Some(dead) = delivery.dead_letter() {
        line.push_str(&format!(" origin={} reason={}", quote(dead.origin.as_str()), escape(dead.reason.as_str())));
    }
    line.push_str(&attributes_text(delivery.attributes()));
    if args.bodies.body != BodyMode::None {
        line.push_str(&format!(" body={}", body_text(delivery.body(), &args.bodies)));
    }
    line
}

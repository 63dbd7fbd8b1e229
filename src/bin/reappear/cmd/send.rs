//! `send`: puts messages into a queue.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use reappear::{NewMessage, Queue, QueueName};

use crate::Exit;
use crate::args::{attribute, duration};
use crate::output::{Json, Out};
use crate::store::with_store;

/// Sends a message, or one for each line of a file; prints their ids
///
/// A store or queue that is missing is created. The messages are on disk when their ids are printed.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  reappear send jobs thumbnails cat.png
  reappear send jobs thumbnails --file cat.json --attr kind=photo --priority 10
  reappear send jobs mails --delay 5m --ttl 1d \"hello\"
  seq 1000 | reappear send jobs numbers --lines -")]
#[group(id = "source", required = true, multiple = false, args = ["body", "file", "lines"])]
pub struct Args {
    /// The store's directory
    store: PathBuf,
    /// The queue
    queue: QueueName,
    /// The message's body
    body: Option<String>,
    /// Read the body from this file; - is standard input
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Send each line of this file as a message of its own; - is standard input
    #[arg(long, value_name = "FILE")]
    lines: Option<PathBuf>,
    /// An attribute; may be given several times
    #[arg(long, value_name = "NAME=VALUE", value_parser = attribute)]
    attr: Vec<(String, String)>,
    /// Larger is handed out first
    #[arg(long, value_name = "N", default_value_t = 0, allow_negative_numbers = true)]
    priority: i16,
    /// Hidden for this long
    #[arg(long, value_name = "D", value_parser = duration)]
    delay: Option<Duration>,
    /// Gone when it was not received within this time
    #[arg(long, value_name = "D", value_parser = duration)]
    ttl: Option<Duration>,
    /// Print one JSON object a line
    #[arg(long)]
    json: bool,
}

/// Lines that are sent with one durable write.
const BATCH_COUNT: usize = 1000;
/// Bytes of lines after which a batch is sent although it has fewer.
const BATCH_LEN: usize = 1024 * 1024;

impl Args {
    fn message(&self, body: Vec<u8>) -> NewMessage {
        let mut message = NewMessage::new(body).priority(self.priority).delay(self.delay.unwrap_or_default());
        for (name, value) in &self.attr {
            message = message.attribute(name, value.as_str());
        }
        match self.ttl {
            Some(ttl) => message.ttl(ttl),
            None => message,
        }
    }
}

pub fn run(args: Args, out: &mut Out) -> anyhow::Result<Exit> {
    // Read before the store is opened: nobody is locked out while we wait for a file.
    let body = match (&args.body, &args.file) {
        (Some(body), _) => Some(body.clone().into_bytes()),
        (None, Some(file)) => {
            let mut body = Vec::new();
            open(file)?.read_to_end(&mut body).with_context(|| format!("reading {}", file.display()))?;
            Some(body)
        }
        (None, None) => None,
    };
    let mut lines = args.lines.as_deref().map(open).transpose()?;
    with_store(&args.store, true, async |store| {
        let queue = store.queue(args.queue.clone())?;
        if let Some(body) = body {
            send(&args, &queue, vec![args.message(body)], out).await?;
            return Ok(Exit::Done);
        }
        let mut any = false;
        if let Some(lines) = &mut lines {
            while let Some(batch) = next_batch(&args, lines)? {
                send(&args, &queue, batch, out).await?;
                any = true;
            }
        }
        Ok(if any { Exit::Done } else { Exit::Nothing })
    })
}

fn open(path: &Path) -> anyhow::Result<Box<dyn BufRead>> {
    if path.as_os_str() == "-" {
        return Ok(Box::new(std::io::stdin().lock()));
    }
    let file = File::open(path).with_context(|| format!("opening {}", path.display()))?;
    Ok(Box::new(BufReader::new(file)))
}

/// The next lines, without their ends; `None` behind the last one.
fn next_batch(args: &Args, lines: &mut dyn BufRead) -> anyhow::Result<Option<Vec<NewMessage>>> {
    let (mut batch, mut len) = (Vec::new(), 0);
    while batch.len() < BATCH_COUNT && len < BATCH_LEN {
        let mut line = Vec::new();
        if lines.read_until(b'\n', &mut line).context("reading lines")? == 0 {
            break;
        }
        if line.ends_with(b"\n") {
            line.pop();
        }
        len += line.len();
        batch.push(args.message(line));
    }
    Ok((!batch.is_empty()).then_some(batch))
}

async fn send(args: &Args, queue: &Queue, messages: Vec<NewMessage>, out: &mut Out) -> anyhow::Result<()> {
    for id in queue.send_batch(messages).await? {
        if args.json {
            let mut json = Json::line();
            json.put("id", &id);
            json.put("queue", queue.name());
            out.line(&json.end())?;
        } else {
            out.line(&id.to_string())?;
        }
    }
    // Ids of what is durable are not kept back while the next lines are waited for.
    out.flush()?;
    Ok(())
}

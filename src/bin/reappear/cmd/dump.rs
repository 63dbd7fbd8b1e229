//! `dump`: the log's records, one a line, with damage in its place.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::mpsc;
use std::time::Duration;

use reappear::inspect::{Item, LogRecord};

use super::filter::Filter;
use crate::args::{Bodies, Output};
use crate::output::{Json, Out, note};
use crate::show::{record_json, record_text};
use crate::store::{finding_text, log};
use crate::{Exit, Usage};

/// Prints the log's records, oldest first
///
/// Reads without a lock and changes nothing, so it also works on a store that is in use, or broken:
/// it goes on behind damage, says what is lost, and ends with 3. As text a line has LSN, time,
/// segment+offset, length, kind, and what the record says. Ends with 1 when nothing matched.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  reappear dump jobs --limit 20 --reverse
  reappear dump jobs --queue 'thumb*' --kind sent --since -10m --json
  reappear dump jobs --grep 'customer=4711' --body utf8
  reappear dump jobs --follow --kind dead --kind moved
  reappear dump jobs --kind acked --count")]
pub struct Args {
    /// The store's directory
    store: PathBuf,
    #[command(flatten)]
    filter: Filter,
    /// Print at most this many records
    #[arg(long, value_name = "N")]
    limit: Option<usize>,
    /// Newest first; without --limit all matching records are held in memory
    #[arg(long, conflicts_with_all = ["follow", "count"])]
    reverse: bool,
    /// Print only how many match
    #[arg(long, conflicts_with = "follow")]
    count: bool,
    /// Go on with new records as they are written, until interrupted
    #[arg(long, short)]
    follow: bool,
    #[command(flatten)]
    bodies: Bodies,
    #[command(flatten)]
    output: Output,
}

/// How often the log is looked at again while it is followed.
const FOLLOW_EVERY: Duration = Duration::from_millis(200);

/// What was found so far.
struct Dump<'a> {
    args: &'a Args,
    out: &'a mut Out,
    count: usize,
    damaged: bool,
    /// The newest matches, held back for `--reverse`.
    newest: VecDeque<Box<LogRecord>>,
}

pub fn run(args: Args, out: &mut Out) -> anyhow::Result<Exit> {
    if args.limit == Some(0) {
        return Err(Usage("--limit 0 would print nothing".to_owned()).into());
    }
    let mut log = log(&args.store)?;
    let mut dump = Dump { args: &args, out, count: 0, damaged: false, newest: VecDeque::new() };
    // Nothing is ever sent: it is a wait that needs no clock.
    let (_never, wait) = mpsc::channel::<()>();
    let mut again = false;
    loop {
        let mut ended = false;
        for item in &mut log {
            if dump.take(item?, again)? {
                ended = true;
                break;
            }
        }
        if ended || !args.follow {
            break;
        }
        dump.out.flush()?;
        let _ = wait.recv_timeout(FOLLOW_EVERY);
        log.again();
        again = true;
    }
    dump.finish()
}

impl Dump<'_> {
    /// Takes the next item; `true` when nothing more is wanted. While the log is followed its end is
    /// a write that goes on, not news.
    fn take(&mut self, item: Item, following: bool) -> anyhow::Result<bool> {
        match item {
            Item::Record(record) => {
                let is_past = self.args.filter.is_past(&record);
                if self.args.filter.matches(&record) {
                    self.matched(record)?;
                }
                let is_full = !self.args.reverse && self.args.limit.is_some_and(|limit| self.count >= limit);
                Ok(is_full || is_past)
            }
            Item::Tail { .. } if following || self.args.follow => Ok(false),
            finding => {
                self.damaged |= !matches!(finding, Item::Tail { ambiguous: false, .. });
                note(&finding_text(&finding));
                if self.args.output.json && !self.args.count {
                    self.out.line(&finding_json(&finding))?;
                }
                Ok(false)
            }
        }
    }

    fn matched(&mut self, record: Box<LogRecord>) -> anyhow::Result<()> {
        self.count += 1;
        if self.args.count {
            return Ok(());
        }
        if !self.args.reverse {
            return self.print(&record);
        }
        self.newest.push_back(record);
        if self.args.limit.is_some_and(|limit| self.newest.len() > limit) {
            self.newest.pop_front();
        }
        Ok(())
    }

    fn print(&mut self, record: &LogRecord) -> anyhow::Result<()> {
        let args = self.args;
        let line = if args.output.json {
            record_json(record, &args.bodies)
        } else {
            record_text(record, &args.bodies, args.output.time)
        };
        Ok(self.out.line(&line)?)
    }

    fn finish(mut self) -> anyhow::Result<Exit> {
        while let Some(record) = self.newest.pop_back() {
            self.print(&record)?;
        }
        if self.args.count && self.args.output.json {
            let mut json = Json::line();
            json.put("count", &self.count);
            self.out.line(&json.end())?;
        } else if self.args.count {
            self.out.line(&self.count.to_string())?;
        }
        Ok(match (self.damaged, self.count) {
            (true, _) => Exit::Damaged,
            (false, 0) => Exit::Nothing,
            (false, _) => Exit::Done,
        })
    }
}

fn finding_json(finding: &Item) -> String {
    let mut json = Json::line();
    match finding {
        Item::Damage { what, at, len } => {
            json.put("type", "damage");
            json.put("what", what);
            json.put("file", &at.file.to_string_lossy());
            json.put("offset", &at.offset);
            json.put("len", len);
            json.some("first_lsn", at.first_lsn);
            json.some("last_lsn", at.last_lsn);
        }
        Item::Tail { file, offset, len, ambiguous } => {
            json.put("type", "tail");
            json.put("file", &file.to_string_lossy());
            json.put("offset", offset);
            json.put("len", len);
            json.put("ambiguous", ambiguous);
        }
        _ => {}
    }
    json.end()
}

//! `work`: runs a command for each message of a queue.
//!
//! Each worker is a thread that receives, runs the command, and settles by how the command ended. A
//! thread of its own waits for signals.
//!
//! # Crashes
//! If this process is killed, the messages reappear when their deadlines pass. The commands that run
//! at that moment are not stopped by it.

use std::path::PathBuf;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::task::Poll;
use std::time::{Duration, Instant};

use indicatif::ProgressBar;
use reappear::{Delivery, Error, ErrorKind, Nack, Queue, QueueName};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use tokio::sync::watch;

use super::run_command::{End, Event, Job};
use crate::Exit;
use crate::args::duration;
use crate::output::{Json, Out, note};
use crate::store::with_store;

/// Runs a command for each message, and settles the message by how the command ends
///
/// The command gets the body on its standard input, and in its environment REAPPEAR_ID,
/// REAPPEAR_QUEUE, REAPPEAR_RECEIVE_COUNT, REAPPEAR_ATTEMPTS and REAPPEAR_ATTR_<NAME> for each
/// attribute that is text. Its exit code decides: 0 acknowledges, 75 releases (not begun, attempt
/// refunded), 65 rejects (can never be worked), everything else is a failure: the message reappears
/// after the queue's back-off, with the end of the command's standard error as its error text.
///
/// On SIGTERM or SIGINT nothing new is begun; commands that run have --grace to end, then they are
/// killed and their messages released. A second signal ends the grace.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  reappear work jobs thumbnails -- ./make-thumbnail
  reappear work jobs mails --concurrency 8 --timeout 1m -- ./send-mail --from shop
  reappear work jobs import --until-empty --max-attempts 3 -- sh -c 'psql -f -'")]
pub struct Args {
    /// The store's directory
    store: PathBuf,
    /// The queue
    queue: QueueName,
    /// How many commands run at a time
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1000))]
    concurrency: u16,
    /// How long a message stays hidden; extended while its command runs [default: 1m]
    #[arg(long, value_name = "D", value_parser = duration, default_value = "1m", hide_default_value = true)]
    visibility: Duration,
    /// Kill a command that runs longer than this; its message has failed
    #[arg(long, value_name = "D", value_parser = duration)]
    timeout: Option<Duration>,
    /// End when no message is receivable
    #[arg(long)]
    until_empty: bool,
    /// Reject a message instead when it fails at this many attempts
    #[arg(long, value_name = "N")]
    max_attempts: Option<u32>,
    /// How long running commands have to end after SIGTERM or SIGINT
    #[arg(long, value_name = "D", value_parser = duration, default_value = "30s")]
    grace: Duration,
    /// Print one JSON object for each message; what commands print goes to standard error then
    #[arg(long)]
    json: bool,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<String>,
}

/// How many messages ended how.
#[derive(Default)]
struct Counts {
    acked: AtomicU64,
    nacked: AtomicU64,
    rejected: AtomicU64,
    released: AtomicU64,
    lost: AtomicU64,
}

impl Counts {
    fn of(&self, result: &str) -> &AtomicU64 {
        match result {
            "acked" => &self.acked,
            "nacked" => &self.nacked,
            "rejected" => &self.rejected,
            "released" => &self.released,
            _ => &self.lost,
        }
    }

    fn all(&self) -> [(&'static str, u64); 5] {
        ["acked", "nacked", "rejected", "released", "lost"].map(|name| (name, self.of(name).load(Ordering::Relaxed)))
    }

    fn text(&self) -> String {
        self.all().map(|(name, count)| format!("{count} {name}")).join(", ")
    }
}

/// Commands that run, and whether they should not any more.
#[derive(Default)]
struct Running {
    killed: bool,
    events: Vec<mpsc::Sender<Event>>,
}

/// What the workers share.
struct Shared {
    args: Args,
    queue: Queue,
    stopping: watch::Sender<bool>,
    running: Mutex<Running>,
    counts: Counts,
    bar: ProgressBar,
    /// The first failure that is not a message's own.
    failure: Mutex<Option<anyhow::Error>>,
    /// All workers have ended.
    over: Mutex<bool>,
    ended: Condvar,
}

/// Locks; a thread that panicked left nothing half-done in any of these.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub fn run(args: Args, out: &mut Out) -> anyhow::Result<Exit> {
    // From the beginning, so that no signal in between ends us the hard way.
    let signals = Signals::new([SIGTERM, SIGINT])?;
    let path = args.store.clone();
    with_store(&path, false, async |store| {
        let queue = store.queue(args.queue.clone())?;
        // That it is not there is better told before anything else.
        queue.stats().await?;
        work(args, queue, signals, out)
    })
}

fn work(args: Args, queue: Queue, mut signals: Signals, out: &mut Out) -> anyhow::Result<Exit> {
    let shared = Shared {
        args,
        queue,
        stopping: watch::Sender::new(false),
        running: Mutex::default(),
        counts: Counts::default(),
        bar: ProgressBar::new_spinner(),
        failure: Mutex::default(),
        over: Mutex::default(),
        ended: Condvar::new(),
    };
    let handle = signals.handle();
    std::thread::scope(|scope| {
        let shared = &shared;
        scope.spawn(move || {
            for (number, _) in signals.forever().enumerate() {
                if number == 0 {
                    note("no new work is begun; signal again to kill what runs");
                    shared.stopping.send_replace(true);
                    scope.spawn(|| wait_for_grace(shared));
                } else {
                    kill_all(shared);
                }
            }
        });
        let (lines, printed) = mpsc::channel::<String>();
        for _ in 0..shared.args.concurrency {
            let lines = lines.clone();
            scope.spawn(move || worker(shared, &lines));
        }
        // The loop ends when the last worker does.
        drop(lines);
        for line in printed {
            if let Err(error) = out.line(&line).and_then(|()| out.flush()) {
                fail(shared, error.into());
            }
        }
        *lock(&shared.over) = true;
        shared.ended.notify_all();
        handle.close();
    });
    shared.bar.finish_and_clear();
    note(&shared.counts.text());
    if let Some(error) = lock(&shared.failure).take() {
        return Err(error);
    }
    let any = shared.counts.all().iter().any(|(_, count)| *count > 0);
    Ok(if shared.args.until_empty && !any { Exit::Nothing } else { Exit::Done })
}

/// Ends the work because of something that concerns all of it.
fn fail(shared: &Shared, error: anyhow::Error) {
    lock(&shared.failure).get_or_insert(error);
    shared.stopping.send_replace(true);
}

fn wait_for_grace(shared: &Shared) {
    let over = lock(&shared.over);
    let result = shared.ended.wait_timeout_while(over, shared.args.grace, |over| !*over);
    let is_over = *result.unwrap_or_else(PoisonError::into_inner).0;
    if !is_over {
        kill_all(shared);
    }
}

fn kill_all(shared: &Shared) {
    let mut running = lock(&shared.running);
    running.killed = true;
    for events in running.events.drain(..) {
        // One that has ended meanwhile does not listen any more.
        let _ = events.send(Event::Kill);
    }
}

fn worker(shared: &Shared, lines: &mpsc::Sender<String>) {
    let mut stopping = shared.stopping.subscribe();
    loop {
        let delivery = match pollster::block_on(next(shared, &mut stopping)) {
            Ok(Some(delivery)) => delivery,
            Ok(None) => return,
            // The store has set that message aside; the next one may be fine.
            Err(error) if error.kind() == ErrorKind::Corrupt => {
                note(&error.to_string());
                continue;
            }
            Err(error) => return fail(shared, error.into()),
        };
        if let Err(error) = handle(shared, &delivery, lines) {
            return fail(shared, error);
        }
    }
}

/// The next message; `None` when there is no more work to be begun.
async fn next(shared: &Shared, stopping: &mut watch::Receiver<bool>) -> Result<Option<Delivery>, Error> {
    let wait = if shared.args.until_empty { Duration::ZERO } else { Duration::from_secs(3600) };
    loop {
        let receive = shared.queue.receive().wait(wait).visibility(shared.args.visibility).one();
        let (mut receive, mut stop) = (pin!(receive), pin!(stopping.wait_for(|stopping| *stopping)));
        // A receive that is dropped leaves its message receivable, attempt refunded.
        let received = std::future::poll_fn(|context| {
            if stop.as_mut().poll(context).is_ready() {
                return Poll::Ready(None);
            }
            receive.as_mut().poll(context).map(Some)
        });
        match received.await {
            None => return Ok(None),
            Some(Ok(None)) if !shared.args.until_empty => {}
            Some(result) => return result,
        }
    }
}

/// Runs the command for one message and settles it.
fn handle(shared: &Shared, delivery: &Delivery, lines: &mpsc::Sender<String>) -> anyhow::Result<()> {
    let started = Instant::now();
    let (events, heard) = mpsc::channel();
    {
        let mut running = lock(&shared.running);
        if running.killed {
            let _ = events.send(Event::Kill);
        }
        running.events.push(events.clone());
    }
    let args = &shared.args;
    let job = Job {
        command: &args.command,
        delivery,
        visibility: args.visibility,
        timeout: args.timeout,
        stdout_to_stderr: args.json,
    };
    let end = job.run(events, &heard);
    drop(heard);
    // Those that nobody listens to are dropped with the next one.
    lock(&shared.running).events.retain(|events| events.send(Event::Check).is_ok());
    let end = match end {
        Ok(end) => end,
        Err(error) => {
            // The command cannot be run at all: not the message's fault.
            settled(pollster::block_on(delivery.release()), "released")?;
            return Err(error);
        }
    };
    let result = settle(shared, delivery, &end)?;
    shared.counts.of(result).fetch_add(1, Ordering::Relaxed);
    shared.bar.set_message(shared.counts.text());
    shared.bar.tick();
    if args.json {
        // The receiver lives until the last worker ends.
        let _ = lines.send(line(delivery, result, &end, started.elapsed()));
    }
    Ok(())
}

/// Settles as the command's end says; returns in a word what became of the delivery.
fn settle(shared: &Shared, delivery: &Delivery, end: &End) -> anyhow::Result<&'static str> {
    let is_last = shared.args.max_attempts.is_some_and(|max| delivery.attempts() >= max);
    pollster::block_on(async {
        match end {
            End::Code(0, _) => settled(delivery.ack().await, "acked"),
            End::Code(75, _) | End::Stopped => settled(delivery.release().await, "released"),
            End::Code(65, _) => settled(delivery.reject(end.error()).await, "rejected"),
            End::Lost(error) => settled(Err(error.clone()), "lost"),
            _ if is_last => settled(delivery.reject(end.error()).await, "rejected"),
            _ => settled(delivery.nack_with(Nack::new().error(end.error())).await, "nacked"),
        }
    })
}

/// A delivery that is over meanwhile (purged, or received again after its deadline) is lost to us,
/// which is a fact about one message; everything else that fails concerns all of them.
fn settled(result: Result<(), Error>, word: &'static str) -> anyhow::Result<&'static str> {
    match result {
        Ok(()) => Ok(word),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::StaleReceipt) => {
            note(&error.to_string());
            Ok("lost")
        }
        Err(error) => Err(error.into()),
    }
}

fn line(delivery: &Delivery, result: &str, end: &End, took: Duration) -> String {
    let mut json = Json::line();
    json.put("id", &delivery.id());
    json.put("queue", delivery.queue());
    json.put("result", result);
    json.put("receive_count", &delivery.receive_count());
    json.put("attempts", &delivery.attempts());
    json.some("exit_code", end.code());
    if !matches!(result, "acked" | "released") {
        json.put("error", &end.error());
    }
    json.millis("duration", Some(took));
    json.end()
}

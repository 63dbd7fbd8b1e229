//! The main job on real input: work through every file of a directory with a process that is killed
//! again and again, and prove that nothing was lost and nothing was done twice.
//!
//! ```text
//! cargo run --release --example crash_resume [DIR] [--kills N] [--store DIR]
//! ```
//!
//! The parent puts the path of every file below `DIR` (by default this repository's own sources)
//! into the queue `files`. A child process embeds the store and works: for each file it computes
//! SHA-256 and counts lines and words, and in one atomic batch acknowledges the file and sends the
//! result to the queue `results`. The parent kills the child with SIGKILL at random moments and
//! starts it again. What the child held when it died reappears after its visibility timeout.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use reappear::blocking::{Delivery, Store};
use reappear::{MessageId, QueueOptions, State, inspect};
use sha2::{Digest, Sha256};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Set for the child: the store to work on.
const CHILD: &str = "CRASH_RESUME_STORE";
const VISIBILITY: Duration = Duration::from_secs(1);
/// Files that the child takes at a time, so that a kill finds some in its hands.
const PREFETCH: usize = 8;

fn main() -> ExitCode {
    let outcome = match std::env::var_os(CHILD) {
        Some(store) => work(Path::new(&store)).map(|()| true),
        None => Arguments::parse().and_then(|arguments| parent(&arguments)),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("crash_resume: {error}");
            ExitCode::FAILURE
        }
    }
}

struct Arguments {
    input: PathBuf,
    store: Option<PathBuf>,
    kills: usize,
}

impl Arguments {
    fn parse() -> Result<Self> {
        let mut parsed = Self { input: PathBuf::from(env!("CARGO_MANIFEST_DIR")), store: None, kills: 5 };
        let mut words = std::env::args_os().skip(1);
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or_else(|| format!("{} wants a value", word.display()));
            match word.to_str() {
                Some("--store") => parsed.store = Some(value()?.into()),
                Some("--kills") => parsed.kills = value()?.to_str().ok_or("--kills wants a number")?.parse()?,
                Some(option) if option.starts_with("--") => {
                    return Err(format!("unknown option {option}; give [DIR] [--kills N] [--store DIR]").into());
                }
                _ => parsed.input = word.into(),
            }
        }
        Ok(parsed)
    }
}

// ---- the child: embeds the store and works -----------------------------------------------------

fn work(path: &Path) -> Result<()> {
    let store = Store::open(path)?;
    say(&format!("opened {:?}", store.report()))?;
    let (files, results) = (store.queue("files")?, store.queue("results")?);
    loop {
        let jobs = files.receive().max(PREFETCH).wait(VISIBILITY).many()?;
        for job in &jobs {
            let file = Path::new(OsStr::from_bytes(job.body()));
            let content = std::fs::read(file)?;
            let mut hand_over = store.batch();
            hand_over.ack(job).send(&results, line(job, &content));
            match hand_over.commit() {
                Ok(_) => say("done")?,
                // It took too long and somebody else has it: theirs is the result.
                Err(error) if error.kind() == reappear::ErrorKind::StaleReceipt => {}
                Err(error) => return Err(error.into()),
            }
        }
        let left = files.stats()?;
        if left.ready + left.delayed + left.in_flight == 0 {
            store.close()?;
            return Ok(());
        }
    }
}

/// One result: everything the parent needs to check it.
fn line(job: &Delivery, content: &[u8]) -> String {
    let text = String::from_utf8_lossy(content);
    let (lines, words) = (text.lines().count(), text.split_whitespace().count());
    let sum = digest(content);
    format!("{}\t{}\t{sum}\t{lines}\t{words}\t{}", job.id(), job.receive_count(), String::from_utf8_lossy(job.body()))
}

fn digest(content: &[u8]) -> String {
    Sha256::digest(content).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Tells the parent, at once.
fn say(text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{text}")?;
    Ok(out.flush()?)
}

// ---- the parent: kills, restarts, proves ---------------------------------------------------------

fn parent(arguments: &Arguments) -> Result<bool> {
    let scratch = tempfile::tempdir()?;
    let path = arguments.store.clone().unwrap_or_else(|| scratch.path().join("store"));
    let files = list(&arguments.input)?;
    if files.is_empty() {
        return Err(format!("{} holds no files", arguments.input.display()).into());
    }
    let sent = enqueue(&path, &files)?;
    println!("{} files of {} are queued in {}", sent.len(), arguments.input.display(), path.display());
    let kills = run_children(&path, sent.len(), arguments.kills)?;
    prove(&path, &sent, kills)
}

/// Every regular file below `dir`, leaving out build output and hidden directories.
fn list(dir: &Path) -> Result<Vec<PathBuf>> {
    let left_out = |entry: &walkdir::DirEntry| {
        let name = entry.file_name().to_string_lossy();
        entry.depth() > 0 && entry.file_type().is_dir() && (name == "target" || name.starts_with('.'))
    };
    let mut files = Vec::new();
    for entry in walkdir::WalkDir::new(dir).sort_by_file_name().into_iter().filter_entry(|e| !left_out(e)) {
        let entry = entry?;
        if entry.file_type().is_file() {
            files.push(entry.path().canonicalize()?);
        }
    }
    Ok(files)
}

fn enqueue(path: &Path, files: &[PathBuf]) -> Result<BTreeMap<MessageId, PathBuf>> {
    let store = Store::open(path)?;
    let queue = store.queue("files")?;
    queue.create(QueueOptions::new().visibility_timeout(VISIBILITY).max_attempts(None))?;
    let ids = queue.send_batch(files.iter().map(|file| file.as_os_str().as_bytes()))?;
    store.close()?;
    Ok(ids.into_iter().zip(files.iter().cloned()).collect())
}

/// Starts the child until everything is done, killing it `kills` times on the way.
fn run_children(path: &Path, files: usize, kills: usize) -> Result<usize> {
    let bar =
        ProgressBar::new(files as u64).with_style(ProgressStyle::with_template("{bar:40} {pos}/{len} files, {msg}")?);
    let mut killed = 0;
    loop {
        bar.set_message(format!("{killed} kills"));
        // Somewhere in this child's share of what is left.
        let left = files.saturating_sub(usize::try_from(bar.position())?);
        let share = left / (kills - killed + 1);
        let fatal = (killed < kills).then(|| 1 + random(share.max(1)));
        let mut child = Command::new(std::env::current_exe()?).env(CHILD, path).stdout(Stdio::piped()).spawn()?;
        if watch(&mut child, fatal, &bar)? {
            killed += 1;
            continue;
        }
        let status = child.wait()?;
        if !status.success() {
            return Err(format!("the child failed: {status}").into());
        }
        bar.finish();
        return Ok(killed);
    }
}

/// Follows the child's words. Returns whether it was killed, which is after `fatal` files.
fn watch(child: &mut Child, fatal: Option<usize>, bar: &ProgressBar) -> Result<bool> {
    let out = child.stdout.take().ok_or("the child has no output")?;
    let mut done = 0;
    for line in BufReader::new(out).lines() {
        let line = line?;
        if let Some(report) = line.strip_prefix("opened ") {
            bar.suspend(|| println!("child {}: {report}", child.id()));
        } else if line == "done" {
            done += 1;
            bar.inc(1);
        }
        if Some(done) == fatal {
            child.kill()?;
            child.wait()?;
            return Ok(true);
        }
    }
    Ok(false)
}

fn random(below: usize) -> usize {
    use std::hash::{BuildHasher, Hasher};
    let number = std::collections::hash_map::RandomState::new().build_hasher().finish();
    usize::try_from(number % below as u64).unwrap_or(0)
}

/// Checks every result against the file it is of.
fn prove(path: &Path, sent: &BTreeMap<MessageId, PathBuf>, kills: usize) -> Result<bool> {
    let store = Store::open(path)?;
    println!("parent: {:?}", store.report());
    let mut results: BTreeMap<MessageId, Vec<String>> = BTreeMap::new();
    let mut repeated = BTreeMap::new();
    for view in store.queue("results")?.peek(State::Ready, usize::MAX)? {
        let text = String::from_utf8(view.body)?;
        let mut fields = text.split('\t');
        let (Some(id), Some(count), Some(sum)) = (fields.next(), fields.next(), fields.next()) else {
            return Err(format!("a result that cannot be read: {text}").into());
        };
        let (id, count): (MessageId, u32) = (id.parse()?, count.parse()?);
        if count > 1 {
            repeated.insert(id, count - 1);
        }
        results.entry(id).or_default().push(sum.to_owned());
    }
    let left = store.queue("files")?.stats()?;
    let unsettled = left.ready + left.delayed + left.in_flight + left.dead;
    let (mut lost, mut doubled, mut wrong) = (0, 0, 0);
    for (id, file) in sent {
        match results.get(id).map(Vec::as_slice) {
            None => lost += 1,
            Some([sum]) => wrong += usize::from(*sum != digest(&std::fs::read(file)?)),
            Some(_) => doubled += 1,
        }
    }
    let again: u32 = repeated.values().sum();
    println!(
        "{} files, {} results, {lost} lost, {doubled} done twice, {wrong} wrong, {unsettled} unsettled; \
         {kills} kills, {again} deliveries repeated",
        sent.len(),
        results.len()
    );
    if let Some(id) = repeated.keys().next() {
        println!("the life of message {id}, which was redelivered:");
        for record in inspect::history(path, *id)? {
            println!(
                "  lsn {} at {} {}: epoch {:?}, receive_count {:?}, visible_at {:?}",
                record.lsn,
                record.time,
                record.kind,
                record.fields.epoch,
                record.fields.receive_count,
                record.fields.visible_at.map(|at| at.as_millis())
            );
        }
    }
    store.close()?;
    Ok(lost == 0 && doubled == 0 && wrong == 0 && unsettled == 0 && results.len() == sent.len())
}

//! Getting at a store: by opening it, or by reading its log.

use std::io::IsTerminal;
use std::path::Path;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use reappear::inspect::{Item, StoreState};
use reappear::{Error, ErrorKind, Options, RecoveryProgress, Store};

use crate::output::note;
use crate::{Exit, NoStore};

/// Work that takes longer than this shows how far it is.
const PATIENCE: Duration = Duration::from_secs(2);

/// That the store itself is missing is a failure, not an empty result.
fn missing(error: Error) -> anyhow::Error {
    if error.kind() == ErrorKind::NotFound { NoStore(error).into() } else { error.into() }
}

/// Opens the store, does `work` with it and closes it. A store or queue that is missing is made only
/// if `create` is set.
pub fn with_store<T>(
    path: &Path,
    create: bool,
    work: impl AsyncFnOnce(&Store) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    with_store_and(path, Options::new().create(create).create_queues(create), work)
}

/// The same, opened with these options.
pub fn with_store_and<T>(
    path: &Path,
    options: Options,
    work: impl AsyncFnOnce(&Store) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    pollster::block_on(async {
        let store = open(path, options).await?;
        let result = work(&store).await;
        let closed = store.close().await;
        let value = result?;
        closed?;
        Ok(value)
    })
}

async fn open(path: &Path, options: Options) -> anyhow::Result<Store> {
    let store = Store::open_with_progress(path, options, progress()).await.map_err(missing)?;
    let report = store.report();
    if let Some(torn) = &report.torn_tail {
        note(&format!(
            "the last write was torn by a crash and never acknowledged: {} bytes were cut off {} at offset {}",
            torn.len,
            torn.file.display(),
            torn.offset
        ));
    }
    if let Some(step) = report.clock_step_back {
        note(&format!("the wall clock stands {step:?} behind the store's clock: it was set back"));
    }
    Ok(store)
}

/// A bar on the terminal, from the moment at which waiting gets long.
fn progress() -> impl FnMut(RecoveryProgress) + Send + 'static {
    let started = Instant::now();
    let shown = std::io::stderr().is_terminal();
    let mut bar: Option<ProgressBar> = None;
    move |progress: RecoveryProgress| {
        if !shown || started.elapsed() < PATIENCE {
            return;
        }
        let bar = bar.get_or_insert_with(|| {
            let style = ProgressStyle::with_template("recovering {bar:30} {binary_bytes} of {binary_total_bytes}");
            ProgressBar::new(0).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
        });
        bar.set_length(progress.total_len);
        bar.set_position(progress.done_len);
    }
}

/// Adds up the log without a lock. Damage is told on standard error, and makes the exit code.
pub fn load(path: &Path) -> anyhow::Result<(StoreState, Exit)> {
    let state = StoreState::load(path).map_err(missing)?;
    let mut exit = Exit::Done;
    for finding in &state.findings {
        note(&finding_text(finding));
        if !matches!(finding, Item::Tail { ambiguous: false, .. }) {
            exit = Exit::Damaged;
        }
    }
    for record in &state.bad_records {
        let why = record.undecoded.as_deref().unwrap_or("the record's own checksum does not match");
        note(&format!("lsn {}: {why}; what is shown rests on it", record.lsn));
        exit = Exit::Damaged;
    }
    Ok((state, exit))
}

/// Opens the log for reading.
pub fn log(path: &Path) -> anyhow::Result<reappear::inspect::Log> {
    reappear::inspect::Log::open(path).map_err(missing)
}

/// The history of a message, read without a lock.
pub fn history(path: &Path, id: reappear::MessageId) -> anyhow::Result<Vec<reappear::inspect::LogRecord>> {
    reappear::inspect::history(path, id).map_err(missing)
}

/// Damage or a torn end in words.
pub fn finding_text(finding: &Item) -> String {
    match finding {
        Item::Damage { what, at, len } => {
            let lost = match (at.first_lsn, at.last_lsn) {
                (Some(first), Some(last)) => format!("; lsn {first} to {last} are lost"),
                (Some(first), None) => format!("; records from lsn {first} on are lost"),
                _ => String::new(),
            };
            format!("damage: {what} in {} at offset {}, {len} bytes{lost}", at.file.display(), at.offset)
        }
        Item::Tail { file, offset, len, ambiguous } => {
            let why = if *ambiguous { "that a power cut does not explain" } else { "of an unfinished write" };
            format!("behind the end: {len} bytes {why} in {} at offset {offset}", file.display())
        }
        _ => String::new(),
    }
}

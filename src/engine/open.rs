//! Opening a store: create or recover, choose an index, replay, and look at every hidden message.
//!
//! | observed | index |
//! |---|---|
//! | the log ends where a clean close left it, and the index is there and agrees | used as it is |
//! | same boot (only the process died), checkpoint <= applied <= end of the log | used, the rest is replayed |
//! | another boot, or none known, and no clean close | not opened: rebuilt from the log |
//! | it does not open or read, is of another store, older than the checkpoint, ahead of the log, or its counts disagree | set aside, rebuilt |
//!
//! # Invariants
//! 12, 13, 14. A damaged or missing file never means that there is nothing here.
//!
//! # Crashes
//! Creating goes STORE, log, CHECKPOINT: a store without a CHECKPOINT and without a record is half
//! made, and is completed. Recovery may be killed at any point; running it again gives the same.
//!
//! # Not here
//! Reading the log and its verdicts: `log/recovery.rs`.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::engine::applier::{Applier, Fold, Tasks};
use crate::engine::commit::Committer;
use crate::engine::mount::{mount, scan_hidden};
use crate::engine::renewal::Renewals;
use crate::engine::replay::{Failure, Replay, rebuild_upto};
use crate::engine::report::{IndexReport, OpenReport, RecoveryProgress, TornTail};
use crate::engine::space::Space;
use crate::engine::wait::Shared;
use crate::env::store_clock::StoreClock;
use crate::env::{EntryKind, Env, LockGuard, TryLock};
use crate::error::{Damage, Error, ErrorKind, Result};
use crate::index::{Index, Kv, MemKv};
use crate::log::{self, Checkpoint, CheckpointFile, NO_INDEX, RecoverOptions, Recovered, StoreFile};
use crate::options::Options;
use crate::types::{Lsn, StoreId, Timestamp};

/// Makes the store of the index of one generation.
pub(crate) trait IndexSite: Send + Sync {
    /// Opens the generation's rows, creating them if they are missing.
    fn open(&self, dir: &Path, generation: u64) -> Result<Box<dyn Kv>>;
    /// Removes every generation but this one. Best effort.
    fn keep_only(&self, dir: &Path, generation: u64);
    /// Removes a generation. Best effort.
    fn remove(&self, dir: &Path, generation: u64);
    /// Bytes that even a small index takes on disk after some use.
    fn least_len(&self) -> u64;
}

/// Everything of the outside that a store is opened with.
#[derive(Clone)]
pub(crate) struct Site {
    pub(crate) env: Env,
    pub(crate) index: Arc<dyn IndexSite>,
}

/// An open store before its threads run.
pub(crate) struct Opened {
    pub(crate) committer: Committer,
    pub(crate) applier: Applier,
    pub(crate) lock: Box<dyn LockGuard>,
    pub(crate) report: OpenReport,
}

pub(crate) const LOCK_FILE: &str = "LOCK";
pub(crate) const STORE_FILE: &str = "STORE";
pub(crate) const CHECKPOINT_FILE: &str = "CHECKPOINT";
pub(crate) const INDEX_DIR: &str = "index";
const LOG_DIR: &str = "log";
/// Names that a store's directory may hold.
const OWN_NAMES: [&str; 6] = [LOCK_FILE, STORE_FILE, CHECKPOINT_FILE, INDEX_DIR, LOG_DIR, "quarantine"];

/// Opens, or creates, the store in `dir`.
pub(crate) fn open(
    site: &Site,
    dir: &Path,
    options: Options,
    progress: &mut dyn FnMut(RecoveryProgress),
) -> Result<Opened> {
    options.validate()?;
    check_limit(site, &options)?;
    let started = site.env.clock.boottime();
    let lock = enter(site, dir, &options)?;
    let (store, created) = identify(site, dir, &options)?;
    let (mut recovery, mut report) = Recovery::begin(site, dir, &options, store, created)?;
    let index = recovery.run(&mut report, progress)?;
    let mut opened = recovery.mount(index, lock, report)?;
    opened.report.duration = site.env.clock.boottime().saturating_sub(started);
    Ok(opened)
}

/// A limit must leave room for an index, and for a new one beside it.
fn check_limit(site: &Site, options: &Options) -> Result<()> {
    let least = 4 * u64::from(options.segment_len) + 2 * site.index.least_len();
    match options.max_store_bytes.filter(|most| *most < least) {
        None => Ok(()),
        Some(most) => Err(Error::invalid(format!(
            "max_store_bytes is {most}; give at least {least} (4 segments of segment_len, and an index), or make \
             segment_len smaller"
        ))),
    }
}

/// Checks the directory, creates it if it is missing, and takes the lock.
fn enter(site: &Site, dir: &Path, options: &Options) -> Result<Box<dyn LockGuard>> {
    let fs = &site.env.fs;
    let at = |e| Error::io("cannot look at", dir, e);
    match fs.metadata(dir).map_err(at)? {
        None if !options.create => return Err(Error::not_found(format!("there is no store at {}", dir.display()))),
        None => fs.create_dir(dir).map_err(|e| Error::io("cannot create the store's directory", dir, e))?,
        Some(found) if found.kind != EntryKind::Dir => {
            return Err(Error::invalid(format!("{} is not a directory; a store is one", dir.display())));
        }
        Some(_) => refuse_foreign(site, dir, options)?,
    }
    if fs.info(dir).map_err(at)?.is_network && !options.allow_network_fs {
        return Err(Error::new(
            ErrorKind::Unsupported,
            format!(
                "{} is on a network file system, where locks and syncs may not hold; use a local disk, or allow it by option",
                dir.display()
            ),
        ));
    }
    let path = dir.join(LOCK_FILE);
    match fs.try_lock(&path).map_err(|e| Error::io("cannot lock", &path, e))? {
        TryLock::Busy { text } => Err(locked(dir, &text)),
        TryLock::Held(lock) => {
            let exe = std::env::current_exe().map(|exe| exe.display().to_string()).unwrap_or_default();
            if let Err(error) = lock.describe(&format!("{} {exe}\n", std::process::id())) {
                tracing::debug!(%error, "the lock file could not be described");
            }
            Ok(lock)
        }
    }
}

fn locked(dir: &Path, text: &str) -> Error {
    let mut words = text.trim().splitn(2, ' ');
    let pid: Option<u32> = words.next().and_then(|pid| pid.parse().ok());
    let exe = words.next().unwrap_or("unknown program");
    let owner = pid.map_or_else(|| "another process".to_owned(), |pid| format!("process {pid} ({exe})"));
    let shown = dir.display();
    Error::locked(
        format!("store {shown} is open in {owner}; stop it, or read the store with \"reappear dump {shown}\""),
        pid,
    )
}

/// A directory with other things in it is not turned into a store.
fn refuse_foreign(site: &Site, dir: &Path, options: &Options) -> Result<()> {
    let entries = site.env.fs.read_dir(dir).map_err(|e| Error::io("cannot list", dir, e))?;
    if entries.iter().any(|entry| entry.name == STORE_FILE) {
        return Ok(());
    }
    let own = |name: &str| OWN_NAMES.contains(&name) || name.ends_with(".tmp");
    if let Some(rest) = entries.iter().find(|entry| entry.name == LOG_DIR || entry.name == CHECKPOINT_FILE) {
        let damage = Damage { file: dir.join(STORE_FILE), offset: 0, first_lsn: None, last_lsn: None };
        return Err(Error::corrupt(format!("STORE is missing, but {} is there: a damaged store", rest.name), damage));
    }
    if let Some(other) = entries.iter().find(|entry| !own(&entry.name)) {
        return Err(Error::invalid(format!(
            "{} holds no store but other files ({}); give an empty or a new directory",
            dir.display(),
            other.name
        )));
    }
    if options.create { Ok(()) } else { Err(Error::not_found(format!("there is no store at {}", dir.display()))) }
}

/// Reads or creates STORE. Returns whether it is new.
fn identify(site: &Site, dir: &Path, options: &Options) -> Result<(StoreFile, bool)> {
    let fs = &site.env.fs;
    let path = dir.join(STORE_FILE);
    if fs.metadata(&path).map_err(|e| Error::io("cannot look at", &path, e))?.is_some() {
        return StoreFile::read(fs, dir).map(|store| (store, false));
    }
    // Looked at again under the lock: somebody else may have begun meanwhile.
    refuse_foreign(site, dir, options)?;
    let store = StoreFile::create_new(fs, dir, StoreId((site.env.random)()), site.env.clock.wall())?;
    Ok((store, true))
}

/// One recovery on its way.
struct Recovery<'a> {
    site: &'a Site,
    dir: &'a Path,
    options: &'a Options,
    store: StoreFile,
    checkpoint_file: CheckpointFile,
    checkpoint: Checkpoint,
    /// No checkpoint was there: the store must turn out to be without a record.
    unmade: bool,
    recovered: Option<Recovered>,
    generation: u64,
    /// No index can be kept on disk.
    in_memory: bool,
}

impl<'a> Recovery<'a> {
    fn begin(
        site: &'a Site,
        dir: &'a Path,
        options: &'a Options,
        store: StoreFile,
        created: bool,
    ) -> Result<(Self, OpenReport)> {
        let fs = &site.env.fs;
        let path = dir.join(CHECKPOINT_FILE);
        let unmade = fs.metadata(&path).map_err(|e| Error::io("cannot look at", &path, e))?.is_none();
        let mut slot_damaged = false;
        let (checkpoint_file, checkpoint) = if unmade {
            complete(site, dir, options, &store)?
        } else {
            let (file, checkpoint, damaged) = CheckpointFile::open(fs, dir, store.id.seed())?;
            slot_damaged = damaged;
            (file, checkpoint)
        };
        let index_dir = dir.join(INDEX_DIR);
        match fs.create_dir(&index_dir) {
            Err(e) if e.kind() != std::io::ErrorKind::AlreadyExists => {
                tracing::warn!(error = %e, "the index's directory cannot be created; the index will be in memory");
            }
            _ => {}
        }
        let report = OpenReport {
            created,
            durability: options.durability,
            replayed_records: 0,
            last_lsn: Lsn::ZERO,
            torn_tail: None,
            index: if created { IndexReport::Created } else { IndexReport::Kept },
            redelivered: 0,
            released: 0,
            dead_lettered: 0,
            clock_step_back: None,
            checkpoint_slot_damaged: slot_damaged,
            removed_files: Vec::new(),
            foreign_files: Vec::new(),
            duration: Duration::ZERO,
        };
        let generation = checkpoint.index_generation;
        Ok((
            Self {
                site,
                dir,
                options,
                store,
                checkpoint_file,
                checkpoint,
                unmade,
                recovered: None,
                generation,
                in_memory: false,
            },
            report,
        ))
    }

    /// Recovers the log and brings an index up to its end.
    fn run(&mut self, report: &mut OpenReport, progress: &mut dyn FnMut(RecoveryProgress)) -> Result<Index> {
        let reason = match self.candidate() {
            Ok(index) => match self.replay(index, report, progress) {
                Ok(index) => match self.disagreement(&index) {
                    None => return Ok(index),
                    Some(reason) => reason,
                },
                Err(Failure::Index(error)) => error.to_string(),
                Err(Failure::Log(error)) => return Err(error),
            },
            Err(reason) => reason,
        };
        self.rebuild(reason, report, progress)
    }

    /// The index on disk, if the rules allow its use; otherwise why not.
    fn candidate(&self) -> Result<Index, String> {
        let boot = self.site.env.clock.boot_id();
        let same_boot = boot.is_some() && boot == self.checkpoint.boot_id;
        if self.options.rebuild_index {
            return Err("it was asked for".to_owned());
        }
        if self.checkpoint.index_generation == NO_INDEX {
            return Err("the index on disk had failed, and was in memory".to_owned());
        }
        let is_new = self.checkpoint.lsn == Lsn::ZERO && !self.checkpoint.clean;
        if !same_boot && !self.checkpoint.clean && !is_new {
            return Err("the machine was restarted and the store had not been closed".to_owned());
        }
        if is_new && !same_boot {
            // Nothing was ever checkpointed, so nothing on disk vouches for what the index has.
            self.site.index.remove(&self.dir.join(INDEX_DIR), self.generation);
        }
        let kv = self.site.index.open(&self.dir.join(INDEX_DIR), self.generation).map_err(|e| e.to_string())?;
        let index = Index::open(kv, self.store.id).map_err(|e| e.to_string())?;
        if index.applied() < self.checkpoint.lsn {
            return Err(format!("it has lsn {} and the checkpoint {}", index.applied(), self.checkpoint.lsn));
        }
        Ok(index)
    }

    /// Why the index cannot be used after all, now that the log's end is known.
    fn disagreement(&self, index: &Index) -> Option<String> {
        let recovered = self.recovered.as_ref()?;
        let boot = self.site.env.clock.boot_id();
        let same_boot = boot.is_some() && boot == self.checkpoint.boot_id;
        let (end, checkpoint) = (recovered.last_lsn, &self.checkpoint);
        if index.applied() > end {
            return Some(format!("it has lsn {} and the log ends at {end}", index.applied()));
        }
        if checkpoint.clean && !same_boot && checkpoint.lsn != end {
            return Some("the store was written after its last clean close, and the machine was restarted".to_owned());
        }
        let counted = (checkpoint.live_count, checkpoint.live_hash);
        if checkpoint.lsn == end && checkpoint.lsn > Lsn::ZERO && index.live() != counted {
            return Some("its messages are not those of the checkpoint".to_owned());
        }
        None
    }

    fn rebuild(
        &mut self,
        reason: String,
        report: &mut OpenReport,
        progress: &mut dyn FnMut(RecoveryProgress),
    ) -> Result<Index> {
        tracing::info!(%reason, "the index is rebuilt from the log");
        self.generation += 1;
        let index_dir = self.dir.join(INDEX_DIR);
        self.site.index.remove(&index_dir, self.generation);
        let fresh = self.site.index.open(&index_dir, self.generation).and_then(|kv| Index::open(kv, self.store.id));
        let fresh =
            fresh.and_then(|index| if index.applied() == Lsn::ZERO { Ok(index) } else { Err(not_removed(&index_dir)) });
        let rebuilt = match fresh {
            Ok(index) => self.replay(index, report, progress),
            Err(error) => Err(Failure::Index(error)),
        };
        let index = match rebuilt {
            Ok(index) => index,
            Err(Failure::Log(error)) => return Err(error),
            Err(Failure::Index(error)) => {
                // Not even a new one on disk works: go on without, the log has everything.
                tracing::error!(%error, "no index can be kept on disk; one in memory takes its place");
                self.in_memory = true;
                let index = Index::open(Box::new(MemKv::new()), self.store.id)?;
                self.replay(index, report, progress).map_err(Failure::into_error)?
            }
        };
        report.index = IndexReport::Rebuilt { reason };
        Ok(index)
    }

    /// Recovers the log, putting every record that `index` does not have into it.
    fn replay(
        &mut self,
        index: Index,
        report: &mut OpenReport,
        progress: &mut dyn FnMut(RecoveryProgress),
    ) -> Result<Index, Failure> {
        self.recovered = None;
        let from = index.applied().plus(1);
        let mut replay = Replay::new(index, self.store.id.seed()).map_err(Failure::Index)?;
        let mut index_error = None;
        let options = RecoverOptions {
            segment_len: self.options.segment_len,
            tail: self.options.tail,
            checkpoint: (!self.unmade).then_some(self.checkpoint),
            from,
            now: self.site.env.clock.wall(),
            read_only: false,
        };
        let segments_dir = self.dir.join(LOG_DIR);
        let recovered = log::recover(
            &self.site.env.fs,
            self.dir,
            &self.store,
            options,
            &mut |frame| match replay.frame(frame, &segments_dir) {
                Err(Failure::Index(error)) => {
                    // The scan must go on to its end all the same; the index is thrown away then.
                    index_error.get_or_insert(error);
                    Ok(())
                }
                Err(Failure::Log(error)) => Err(error),
                Ok(()) => Ok(()),
            },
            &mut |done_len, total_len| progress(RecoveryProgress { done_len, total_len }),
        )
        .map_err(Failure::Log)?;
        if self.unmade && recovered.last_lsn > Lsn::ZERO {
            return Err(Failure::Log(checkpoint_missing(&self.dir.join(CHECKPOINT_FILE))));
        }
        tracing::debug!(
            frames = recovered.frames,
            records = replay.records,
            ends_clean = recovered.ends_clean,
            "the log was read"
        );
        report.replayed_records = replay.records;
        report.last_lsn = recovered.last_lsn;
        report.torn_tail = report.torn_tail.take().or_else(|| {
            recovered.torn.as_ref().map(|t| TornTail { file: t.file.clone(), offset: t.offset, len: t.bytes })
        });
        report.removed_files.extend(recovered.removed_files.iter().cloned());
        report.foreign_files.clone_from(&recovered.foreign_files);
        if replay.records > 0 && report.index == IndexReport::Kept {
            report.index = IndexReport::Replayed;
        }
        self.recovered = Some(recovered);
        match index_error {
            Some(error) => Err(Failure::Index(error)),
            None => replay.finish().map_err(Failure::Index),
        }
    }

    /// Builds the tables from the index and puts the parts together.
    fn mount(mut self, mut index: Index, lock: Box<dyn LockGuard>, mut report: OpenReport) -> Result<Opened> {
        let Some(recovered) = self.recovered.take() else { return Err(Error::closed()) };
        let env = &self.site.env;
        if matches!(report.index, IndexReport::Rebuilt { .. }) && !self.in_memory {
            match index.sync() {
                Ok(()) => self.vouch_for(&index, recovered.last_lsn, &recovered)?,
                Err(error) => index = self.replacement(&error, recovered.last_lsn)?,
            }
        }
        self.site.index.keep_only(&self.dir.join(INDEX_DIR), self.generation);
        let persisted = recovered.clock.max(index.clock());
        let (clock, step) = StoreClock::new(Arc::clone(&env.clock), persisted);
        report.clock_step_back = step.map(|step| step.behind());
        let options = self.options.clone();
        let on_open = options.on_open;
        let (segments, spare) = (recovered.log.segments(), recovered.log.spare());
        let space = Space::new(Arc::clone(&env.fs), self.dir.to_owned(), Arc::clone(&segments), spare, &options);
        let shared = Arc::new(Shared::new(self.store.id, options, clock, segments, space));
        let now = shared.clock.now();
        let window = shared.options.window;
        let mut mounted = mount(&mut index, window, now);
        if let Err(error) = &mounted
            && !self.in_memory
        {
            index = self.replacement(error, recovered.last_lsn)?;
            mounted = mount(&mut index, window, now);
        }
        let (tables, definitions) = mounted?;
        let tasks = Arc::new(Tasks::default());
        let applier = Applier {
            shared: Arc::clone(&shared),
            tasks: Arc::clone(&tasks),
            fold: Fold::new(index.applied(), index.clock()),
            clock: Arc::clone(&env.clock),
            checkpoint: self.checkpoint_file,
            index_generation: self.generation,
            in_memory: self.in_memory,
            site: Arc::clone(&self.site.index),
            renewals: Renewals::default(),
            definitions,
            fs: Arc::clone(&env.fs),
            dir: self.dir.to_owned(),
            since: None,
            index,
        };
        let checkpointed = self.checkpoint.lsn;
        let mut committer = Committer::new(shared, tasks, tables, recovered.log, Arc::clone(&env.clock), checkpointed);
        applier.note_figures();
        committer.look_at_space();
        committer.checkpoint.hurry = applier.may_reclaim();
        scan_hidden(&mut committer, on_open, &mut report);
        Ok(Opened { committer, applier, lock, report })
    }

    /// The index on disk failed at the last moment: one in memory takes its place.
    fn replacement(&mut self, error: &Error, upto: Lsn) -> Result<Index> {
        tracing::error!(%error, "the index on disk failed; one in memory takes its place");
        self.in_memory = true;
        let empty = Index::open(Box::new(MemKv::new()), self.store.id)?;
        rebuild_upto(&self.site.env.fs, self.dir, empty, upto, self.store.id.seed())
    }

    /// Writes a checkpoint that names a rebuilt index, which is durable.
    fn vouch_for(&mut self, index: &Index, durable: Lsn, recovered: &Recovered) -> Result<()> {
        let (live_count, live_hash) = index.live();
        self.checkpoint.lsn = index.applied();
        let result = self.checkpoint_file.write(Checkpoint {
            lsn: index.applied(),
            durable_lsn: durable,
            boot_id: self.site.env.clock.boot_id(),
            index_generation: self.generation,
            live_count,
            live_hash,
            clock: index.clock().max(recovered.clock),
            clean: false,
            ..self.checkpoint
        });
        match result {
            // Without room the store still opens; the next open rebuilds once more.
            Err(error) if error.kind() == ErrorKind::Full => {
                tracing::warn!(%error, "no checkpoint could be written for the rebuilt index");
                Ok(())
            }
            other => other,
        }
    }
}

/// Makes what a store without a CHECKPOINT lacks: its first segment, and then that.
fn complete(site: &Site, dir: &Path, options: &Options, store: &StoreFile) -> Result<(CheckpointFile, Checkpoint)> {
    let fs = &site.env.fs;
    let log = dir.join(LOG_DIR);
    let segments = match fs.metadata(&log).map_err(|e| Error::io("cannot look at", &log, e))? {
        Some(_) => fs.read_dir(&log).map_err(|e| Error::io("cannot list", &log, e))?,
        None => Vec::new(),
    };
    if segments.iter().filter(|entry| entry.name.ends_with(".seg")).count() > 1 {
        return Err(checkpoint_missing(&dir.join(CHECKPOINT_FILE)));
    }
    log::create(fs, dir, store, options.segment_len, site.env.clock.wall())?;
    // The directory's own name must be as durable as what is in it.
    let parent = dir.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    fs.sync_dir(parent).map_err(|e| Error::io("cannot sync", parent, e))?;
    let first = first_checkpoint(site.env.clock.wall());
    Ok((CheckpointFile::create(fs, dir, store.id.seed(), &first)?, first))
}

/// Of a store without a record.
fn first_checkpoint(now: Timestamp) -> Checkpoint {
    Checkpoint {
        generation: 0,
        lsn: Lsn::ZERO,
        durable_lsn: Lsn::ZERO,
        first_segment: 1,
        boot_id: None,
        index_generation: 1,
        live_count: 0,
        live_hash: 0,
        clock: now,
        clean: false,
    }
}

fn not_removed(dir: &Path) -> Error {
    Error::new(ErrorKind::Io, format!("an old index in {} cannot be removed", dir.display()))
}

fn checkpoint_missing(path: &Path) -> Error {
    let damage = Damage { file: path.to_owned(), offset: 0, first_lsn: None, last_lsn: None };
    Error::corrupt("CHECKPOINT is missing, but the log has records", damage)
}

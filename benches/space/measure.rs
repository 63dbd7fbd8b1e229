//! What a store takes while it is used: its files, looked at all the time, and the memory of the process.

use std::collections::HashSet;
use std::fmt::Write as _;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use reappear::StoreStats;
use reappear::blocking::Store;

use crate::{MIB, Scale, check};

/// What must hold: segments beside twice what is live, at any time and after quiet; bytes of the index.
const MAX_EXTRA: f64 = 6.0;
const MAX_EXTRA_QUIET: f64 = 3.0;
const MAX_INDEX_LEN: u64 = 64 * MIB;
const MAX_QUIET: Duration = Duration::from_secs(60);

/// Bytes of a store's files.
#[derive(Clone, Copy, Default)]
struct Disk {
    /// Segments and what is made ahead of them.
    log: u64,
    index: u64,
    whole: u64,
}

impl Disk {
    fn of(store: &Path) -> Self {
        let mut disk = Self::default();
        // A file that is renamed while the directory is read may be listed under both names.
        let mut seen = HashSet::new();
        for entry in walkdir::WalkDir::new(store).into_iter().flatten() {
            let Ok(metadata) = entry.metadata() else { continue };
            if !metadata.is_file() || !seen.insert(metadata.ino()) {
                continue;
            }
            disk.whole += metadata.len();
            if entry.path().starts_with(store.join("log")) {
                disk.log += metadata.len();
            } else if entry.path().starts_with(store.join("index")) {
                disk.index += metadata.len();
            }
        }
        disk
    }

    fn max(self, other: Self) -> Self {
        Self { log: self.log.max(other.log), index: self.index.max(other.index), whole: self.whole.max(other.whole) }
    }
}

/// Looks at a store's files every 10 ms and remembers the most.
struct Watch {
    peak: Arc<Mutex<Disk>>,
    stop: Sender<()>,
    thread: JoinHandle<()>,
}

impl Watch {
    fn start(store: PathBuf) -> Self {
        let peak = Arc::new(Mutex::new(Disk::default()));
        let (stop, stopped) = channel();
        let shared = Arc::clone(&peak);
        let thread = std::thread::spawn(move || {
            while stopped.recv_timeout(Duration::from_millis(10)) == Err(RecvTimeoutError::Timeout) {
                let now = Disk::of(&store);
                let mut peak = shared.lock().expect("not poisoned");
                *peak = peak.max(now);
            }
        });
        Self { peak, stop, thread }
    }

    /// The most since the last call.
    fn take(&self) -> Disk {
        std::mem::take(&mut *self.peak.lock().expect("not poisoned"))
    }

    fn stop(self) {
        self.stop.send(()).expect("it watches");
        self.thread.join().expect("it watched to the end");
    }
}

/// A figure in KiB of a file in `/proc/self`, or in bytes where it has no unit.
fn of_process(file: &str, name: &str) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/self/{file}")).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

fn resident_len() -> u64 {
    of_process("status", "VmRSS") * 1024
}

/// Bytes written so far, as counted by two who both err, if they can be asked.
#[derive(Clone, Copy)]
pub struct Written {
    /// By the device below the store: what others write there is in it.
    pub device: u64,
    /// By the kernel for this process: it counts whole folios of the page cache, of which a file system may
    /// write only the blocks that changed.
    pub process: u64,
}

impl Written {
    pub fn so_far(below: &Path) -> Self {
        let device = std::fs::metadata(below).map_or(0, |metadata| metadata.dev());
        let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
        let text = std::fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/stat")).unwrap_or_default();
        let sectors = text.split_whitespace().nth(6).and_then(|sectors| sectors.parse::<u64>().ok());
        Self { device: sectors.unwrap_or(0) * 512, process: of_process("io", "write_bytes") }
    }

    pub fn since(self, before: Self) -> Self {
        Self { device: self.device - before.device, process: self.process - before.process }
    }
}

pub fn mib(len: u64) -> f64 {
    len as f64 / MIB as f64
}

/// One run with its rows.
pub struct Run {
    name: &'static str,
    path: PathBuf,
    watch: Watch,
    segment_len: u64,
    /// When, how much was done and what was live at the last sample.
    at: Instant,
    done: u64,
    live_len: u64,
    written: Written,
    written_before: u64,
    rates: Vec<f64>,
    resident: Vec<u64>,
    most: Disk,
    most_extra: f64,
}

impl Run {
    pub fn start(name: &'static str, store: &Store, scale: &Scale) -> Self {
        let path = store.path().to_owned();
        let stats = store.stats().expect("stats");
        println!(
            "{name}\n{:>10} {:>9} {:>9} {:>9} {:>8} {:>9} {:>9} {:>9} {:>9}",
            "lives", "disk MiB", "log MiB", "live MiB", "extra", "segments", "index MiB", "RSS MiB", "lives/s"
        );
        Self {
            name,
            watch: Watch::start(path.clone()),
            written: Written::so_far(&path),
            path,
            segment_len: scale.segment_len.into(),
            live_len: stats.live_len,
            written_before: stats.written_len,
            at: Instant::now(),
            done: 0,
            rates: Vec::new(),
            resident: Vec::new(),
            most: Disk::default(),
            most_extra: 0.0,
        }
    }

    /// Segments that the log takes beside twice what is live.
    fn extra(&self, log_len: u64, live_len: u64) -> f64 {
        (log_len as f64 - 2.0 * live_len as f64) / self.segment_len as f64
    }

    /// A row: the most that was on disk since the last one.
    pub fn sample(&mut self, store: &Store, done: u64) {
        let rate = (done - self.done) as f64 / self.at.elapsed().as_secs_f64();
        let stats = store.stats().expect("stats");
        let peak = self.watch.take().max(Disk::of(&self.path));
        // What was live in between is not known; the less of both ends makes the bound the harder.
        let extra = self.extra(peak.log, self.live_len.min(stats.live_len));
        let resident = resident_len();
        println!(
            "{done:>10} {:>9.1} {:>9.1} {:>9.2} {extra:>8.2} {:>9} {:>9.1} {:>9.1} {rate:>9.0}",
            mib(peak.whole),
            mib(peak.log),
            mib(stats.live_len),
            stats.segments,
            mib(peak.index),
            mib(resident)
        );
        let name = self.name;
        check(extra <= MAX_EXTRA, &format!("{name}: {extra:.2} segments beside 2 x live after {done}"));
        check(peak.index <= MAX_INDEX_LEN, &format!("{name}: {:.1} MiB of index after {done}", mib(peak.index)));
        self.most = self.most.max(peak);
        self.most_extra = self.most_extra.max(extra);
        self.rates.push(rate);
        self.resident.push(resident);
        (self.done, self.live_len, self.at) = (done, stats.live_len, Instant::now());
    }

    /// Waits until the log is as small as it must become, and ends.
    pub fn finish(self, store: &Store) -> Summary {
        let written = Written::so_far(&self.path).since(self.written);
        let start = Instant::now();
        let (stats, extra) = loop {
            let stats = store.stats().expect("stats");
            let extra = self.extra(Disk::of(&self.path).log, stats.live_len);
            if extra <= MAX_EXTRA_QUIET || start.elapsed() > MAX_QUIET {
                break (stats, extra);
            }
            std::thread::sleep(Duration::from_millis(100));
        };
        let quiet = start.elapsed();
        check(extra <= MAX_EXTRA_QUIET, &format!("{}: {extra:.2} segments beside 2 x live after quiet", self.name));
        self.watch.stop();
        println!("quiet after {:.1} s: {extra:.2} segments beside 2 x live\n", quiet.as_secs_f64());
        Summary {
            name: self.name,
            rates: tenths(&self.rates),
            resident: tenths(&self.resident.iter().map(|len| mib(*len)).collect::<Vec<_>>()),
            most: self.most,
            most_extra: self.most_extra,
            quiet_extra: extra,
            quiet,
            lives: self.done,
            written,
            written_before: self.written_before,
            stats,
        }
    }
}

/// Means of the first and the last tenth.
fn tenths(values: &[f64]) -> (f64, f64) {
    let count = values.len().div_ceil(10);
    let mean = |part: &[f64]| part.iter().sum::<f64>() / part.len() as f64;
    (mean(&values[..count]), mean(&values[values.len() - count..]))
}

pub struct Summary {
    name: &'static str,
    rates: (f64, f64),
    resident: (f64, f64),
    most: Disk,
    most_extra: f64,
    quiet_extra: f64,
    quiet: Duration,
    lives: u64,
    written: Written,
    written_before: u64,
    stats: StoreStats,
}

impl Summary {
    pub fn table(runs: &[Self]) -> String {
        let titles =
            ["disk MiB", "log MiB", "extra", "quiet", "after s", "index MiB", "index no", "RSS first", "RSS last"];
        let more = ["/s first", "/s last", "w. amp.", "carried", "log B", "device B", "process B"];
        let mut text = format!("{:<22}", "");
        for title in titles.into_iter().chain(more) {
            write!(text, " {title:>9}").expect("a string takes it");
        }
        for run in runs {
            write!(text, "\n{:<22}", run.name).expect("a string takes it");
            for figure in run.figures() {
                write!(text, " {figure:>9}").expect("a string takes it");
            }
        }
        text + "\n\
            disk, log, index: the most there was. extra: segments that the log took beside twice what was live, at most \
            and after quiet.\nindex no: its generation. first, last: mean of that tenth of the run. w. amp.: bytes \
            written to the log per byte that callers wrote.\ncarried: MiB. log B, device B, process B: bytes a life, \
            written to the log, to the device by everybody, and as counted for the process.\n"
    }

    fn figures(&self) -> [String; 16] {
        let a_life = |len: u64| format!("{:.0}", len as f64 / self.lives as f64);
        let tenth = |len: u64| format!("{:.1}", mib(len));
        [
            tenth(self.most.whole),
            tenth(self.most.log),
            format!("{:.2}", self.most_extra),
            format!("{:.2}", self.quiet_extra),
            format!("{:.1}", self.quiet.as_secs_f64()),
            tenth(self.most.index),
            self.stats.index_generation.to_string(),
            format!("{:.1}", self.resident.0),
            format!("{:.1}", self.resident.1),
            format!("{:.0}", self.rates.0),
            format!("{:.0}", self.rates.1),
            format!("{:.4}", self.stats.write_amplification().unwrap_or(f64::NAN)),
            tenth(self.stats.relocated_len),
            a_life(self.stats.written_len - self.written_before),
            a_life(self.written.device),
            a_life(self.written.process),
        ]
    }
}

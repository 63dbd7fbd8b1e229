//! The simulated disk and the real one answer the same calls alike, as long as nothing crashes.

use super::super::rng::Rng;
use super::*;
use crate::env::os::OsFs;

const PATHS: [&str; 9] = ["a", "b", "d", "d/a", "d/b", "d/e", "d/e/a", "a/x", "."];

/// One file system with the handles and locks that were opened in it.
struct Side {
    fs: Arc<dyn Fs>,
    root: PathBuf,
    files: Vec<Arc<dyn File>>,
    locks: Vec<Box<dyn LockGuard>>,
}

#[derive(Clone, Copy, Debug)]
struct Call {
    what: usize,
    path: &'static str,
    other: &'static str,
    file: usize,
    offset: u64,
    len: usize,
    byte: u8,
}

impl Call {
    fn any(rng: &mut Rng) -> Self {
        let path = |rng: &mut Rng| PATHS[rng.below(PATHS.len())];
        Self {
            what: rng.below(20),
            path: path(rng),
            other: path(rng),
            file: rng.below(1000),
            offset: rng.below(2000) as u64,
            len: rng.below(1500),
            byte: u8::try_from(rng.below(256)).unwrap(),
        }
    }
}

/// What a call answered, in a form that can be compared.
type Answer = Result<String, String>;

fn answer<T>(result: io::Result<T>, show: impl FnOnce(T) -> String) -> Answer {
    // Not the error's text: std's own errors have no number.
    result.map(show).map_err(|error| format!("{:?} {:?}", error.kind(), error.raw_os_error()))
}

fn done(result: io::Result<()>) -> Answer {
    answer(result, |()| String::new())
}

impl Side {
    fn run(&mut self, call: Call) -> Answer {
        let (path, other) = (self.root.join(call.path), self.root.join(call.other));
        let is_root = call.path == "." || call.other == ".";
        let file = self.files.get(call.file % self.files.len().max(1)).cloned();
        match (call.what, file) {
            (0, _) => done(self.fs.create_dir(&path)),
            (1..=4, _) => {
                let mode = [OpenMode::Read, OpenMode::Write, OpenMode::CreateNew][call.what % 3];
                let opened = self.fs.open(&path, mode);
                answer(opened, |file| {
                    self.files.push(file);
                    String::new()
                })
            }
            (5, _) if !is_root => done(self.fs.rename(&path, &other)),
            (6, _) if !is_root => done(self.fs.remove_file(&path)),
            (7, _) if !is_root && call.byte < 60 => done(self.fs.remove_dir_all(&path)),
            (8, _) => answer(self.fs.read_dir(&path), |entries| format!("{entries:?}")),
            (9, _) if !is_root => answer(self.fs.metadata(&path), |entry| format!("{entry:?}")),
            (10, _) if call.byte < 40 => done(self.fs.sync_dir(&path)),
            (11, _) if call.byte < 20 => done(self.fs.sync_tree(&path)),
            (12, _) if !is_root => answer(self.fs.try_lock(&path), |found| match found {
                TryLock::Busy { text } => format!("busy {text}"),
                TryLock::Held(guard) => {
                    self.locks.push(guard);
                    "held".to_owned()
                }
            }),
            (13, _) if !self.locks.is_empty() => {
                let guard = self.locks.swap_remove(call.file % self.locks.len());
                done(guard.describe(call.other))
            }
            (14..=15, Some(file)) => {
                let mut buf = vec![0; call.len];
                answer(file.read_exact_at(&mut buf, call.offset), |()| format!("{buf:?}"))
            }
            (16..=17, Some(file)) => done(file.write_all_at(&vec![call.byte; call.len], call.offset)),
            (18, Some(file)) => done(file.set_len(call.offset)),
            (19, Some(file)) if call.byte < 40 => done(file.sync_data()),
            (_, Some(file)) => answer(file.len(), |len| len.to_string()),
            (_, None) => Ok(String::new()),
        }
    }
}

#[test]
fn without_crashes_the_simulated_disk_answers_like_the_real_one() {
    let mut refused = BTreeSet::new();
    for seed in 0..60 {
        let mut rng = Rng::new(seed);
        let dir = tempfile::tempdir().unwrap();
        let mut sides =
            [(Arc::new(OsFs) as Arc<dyn Fs>, dir.path().to_owned()), (SimDisk::new(seed).fs(), PathBuf::from("/"))]
                .map(|(fs, root)| Side { fs, root, files: Vec::new(), locks: Vec::new() });
        for step in 0..300 {
            let call = Call::any(&mut rng);
            let [real, simulated] = sides.each_mut().map(|side| side.run(call));
            assert_eq!(real, simulated, "seed {seed}, step {step}: {call:?}: real on the left");
            refused.extend(real.err());
        }
    }
    assert!(refused.len() >= 8, "the calls hardly ever failed: {refused:?}");
}

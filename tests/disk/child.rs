//! What the child process does, and how it is started.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use reappear::Options;
use reappear::blocking::Store;

const JOB: &str = "REAPPEAR_DISK_CHILD";
const STORE: &str = "REAPPEAR_DISK_STORE";

/// Messages that one batch has.
pub const BATCH: usize = 100;
/// What the child of the sync tests does once all is well.
pub const ROUNDS: usize = 40;

pub fn options() -> Options {
    Options::new().segment_len(1024 * 1024)
}

/// The `n`th body of so many bytes.
pub fn body(n: usize, len: usize) -> Vec<u8> {
    let mut body = format!("{n:020}").into_bytes();
    body.resize(len, b'.');
    body
}

/// A command that runs this binary as the child that does `job`.
pub fn prepare(command: &mut Command, job: &str, store: &Path) {
    command.env(JOB, job).env(STORE, store).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
}

/// Starts the child that does `job`; its lines come one by one.
pub fn start(job: &str, store: &Path) -> (Child, impl Iterator<Item = String> + use<>) {
    let mut command = Command::new(std::env::current_exe().expect("the path of this binary"));
    prepare(&mut command, job, store);
    let mut child = command.spawn().expect("the child starts");
    let out = child.stdout.take().expect("its output");
    (child, BufReader::new(out).lines().map_while(Result::ok))
}

pub fn is_wanted() -> bool {
    std::env::var_os(JOB).is_some()
}

pub fn run() {
    let path = PathBuf::from(std::env::var_os(STORE).expect("the store is named"));
    match std::env::var(JOB).as_deref() {
        Ok("fill") => fill(&path),
        Ok("work") => work(&path),
        other => panic!("there is no job {other:?}"),
    }
}

/// Says one line to the parent, at once.
fn say(text: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{text}").and_then(|()| out.flush()).expect("the parent listens");
}

/// Sends until the disk is full, says each id, and waits to be killed.
fn fill(path: &Path) {
    let store = Store::open_with(path, options()).expect("the store opens");
    let queue = store.queue("q").expect("a name");
    for n in (0..).step_by(BATCH) {
        match queue.send_batch((n..n + BATCH).map(|n| body(n, 100))) {
            Ok(ids) => say(&ids.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")),
            Err(error) => {
                say(&format!("refused {}", error.kind()));
                break;
            }
        }
    }
    loop {
        std::thread::park();
    }
}

/// Sends and acknowledges, whatever fails, and says what came of each call.
fn work(path: &Path) {
    let store = match Store::open_with(path, options().segment_len(4096)) {
        Ok(store) => store,
        Err(error) => return say(&format!("unopened {}: {error}", error.kind())),
    };
    let queue = store.queue("q").expect("a name");
    for n in 0..ROUNDS {
        say(&format!("send {n}"));
        match queue.send(body(n, 700)) {
            Ok(id) => say(&format!("sent {id}")),
            Err(error) => say(&format!("refused {}", error.kind())),
        }
        if n % 2 == 0 {
            continue;
        }
        match queue.receive().one() {
            Ok(None) => say("nothing"),
            Err(error) => say(&format!("refused {}", error.kind())),
            Ok(Some(job)) => {
                say(&format!("received {}", job.id()));
                say(&format!("ack {}", job.id()));
                match job.ack() {
                    Ok(()) => say(&format!("acked {}", job.id())),
                    Err(error) => say(&format!("refused {}", error.kind())),
                }
            }
        }
    }
    let _ = store.close();
    say("done");
}

//! One run of a command for one message: what it gets, how long it may take, how it ended.
//!
//! # Not here
//! What its end means for the message: `work.rs`.

use std::ffi::OsString;
use std::io::{Read, Write};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};

use anyhow::Context;
use reappear::{AttributeValue, Attributes, Delivery, Error, ErrorKind};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};

/// Bytes of the end of a command's standard error that are kept as the error text.
const ERROR_LEN: usize = 2048;
/// How long its standard error may stay open behind the command: something it left running has it.
const STDERR_GRACE: Duration = Duration::from_millis(500);

/// What happens while a command runs.
pub enum Event {
    /// It has ended and can be waited for.
    Exited,
    /// Its time is up because the work ends.
    Kill,
    /// Nothing: a look whether somebody listens.
    Check,
}

/// How a command ended.
pub enum End {
    /// By itself, with this exit code and this error text.
    Code(i32, String),
    /// By a signal that was not ours.
    Signal(i32, String),
    /// It took longer than allowed.
    TimedOut(Duration, String),
    /// Its delivery was over before it ended.
    Lost(Error),
    /// It was killed because the work ends.
    Stopped,
}

impl End {
    pub fn code(&self) -> Option<i32> {
        match self {
            Self::Code(code, _) => Some(*code),
            _ => None,
        }
    }

    /// What is kept with the message: what the command said at the end, or else how it ended.
    pub fn error(&self) -> String {
        match self {
            Self::Code(code, text) if text.is_empty() => format!("the command ended with exit code {code}"),
            Self::Code(_, text) => text.clone(),
            Self::Signal(signal, text) => format!("the command was killed by signal {signal}; {text}"),
            Self::TimedOut(limit, text) => format!("the command ran longer than {limit:?}; {text}"),
            Self::Lost(error) => error.to_string(),
            Self::Stopped => "the work was ended".to_owned(),
        }
    }
}

/// A command that is to be run for a message.
pub struct Job<'a> {
    pub command: &'a [String],
    pub delivery: &'a Delivery,
    pub visibility: Duration,
    pub timeout: Option<Duration>,
    pub stdout_to_stderr: bool,
}

/// Why a command was killed by us.
enum Killed {
    TimedOut,
    Lost(Error),
    Failed(Error),
    Stopped,
}

impl Job<'_> {
    /// Runs it to its end.
    ///
    /// # Errors
    /// When it cannot be started, or the store fails. It does not run any more then.
    pub fn run(&self, events: mpsc::Sender<Event>, heard: &mpsc::Receiver<Event>) -> anyhow::Result<End> {
        let mut child = self.start()?;
        let pid = Pid::from_child(&child);
        if let Some(mut stdin) = child.stdin.take() {
            let body = self.delivery.body().to_owned();
            // A command may end without reading all of it, or any.
            std::thread::spawn(move || drop(stdin.write_all(&body)));
        }
        let stderr = child.stderr.take().map(Tail::of);
        std::thread::spawn(move || {
            // It is not reaped here, so its number stays its own until `wait` below.
            while waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT)
                .is_err_and(|error| error == rustix::io::Errno::INTR)
            {}
            let _ = events.send(Event::Exited);
        });
        let killed = self.attend(pid, heard);
        let status = child.wait().context("waiting for the command")?;
        let text = stderr.map(Tail::end).unwrap_or_default();
        Ok(match killed {
            Some(Killed::Failed(error)) => return Err(error.into()),
            Some(Killed::Lost(error)) => End::Lost(error),
            Some(Killed::Stopped) => End::Stopped,
            Some(Killed::TimedOut) => End::TimedOut(self.timeout.unwrap_or_default(), text),
            None => match status.code() {
                Some(code) => End::Code(code, text),
                None => End::Signal(status.signal().unwrap_or_default(), text),
            },
        })
    }

    fn start(&self) -> anyhow::Result<Child> {
        let Some((program, arguments)) = self.command.split_first() else { anyhow::bail!("no command is given") };
        let delivery = self.delivery;
        let mut command = Command::new(program);
        command
            .args(arguments)
            .env("REAPPEAR_ID", delivery.id().to_string())
            .env("REAPPEAR_QUEUE", delivery.queue().as_str())
            .env("REAPPEAR_RECEIVE_COUNT", delivery.receive_count().to_string())
            .env("REAPPEAR_ATTEMPTS", delivery.attempts().to_string())
            .envs(variables(delivery.attributes()))
            .stdin(Stdio::piped())
            .stderr(Stdio::piped())
            // A group of its own: an interrupt on the terminal ends us in order and not the command,
            // and what the command starts can be killed with it.
            .process_group(0);
        if self.stdout_to_stderr {
            command.stdout(std::io::stderr());
        }
        command.spawn().with_context(|| format!("starting {program:?}"))
    }

    /// Keeps the message hidden while the command runs, and kills it when it has to end. Returns
    /// when it has ended.
    fn attend(&self, pid: Pid, heard: &mpsc::Receiver<Event>) -> Option<Killed> {
        let started = Instant::now();
        let mut extend_at = started + self.visibility / 3;
        let mut killed = None;
        loop {
            let now = Instant::now();
            let timeout_at = self.timeout.map(|timeout| started + timeout);
            let next = timeout_at.map_or(extend_at, |at| at.min(extend_at));
            let event = if killed.is_some() {
                heard.recv().map_err(|_| mpsc::RecvTimeoutError::Disconnected)
            } else {
                heard.recv_timeout(next.saturating_duration_since(now))
            };
            let why = match event {
                Ok(Event::Exited) | Err(mpsc::RecvTimeoutError::Disconnected) => return killed,
                Ok(Event::Kill) => Killed::Stopped,
                Ok(Event::Check) => continue,
                Err(mpsc::RecvTimeoutError::Timeout) if timeout_at.is_some_and(|at| at <= Instant::now()) => {
                    Killed::TimedOut
                }
                Err(mpsc::RecvTimeoutError::Timeout) => match pollster::block_on(self.delivery.extend(self.visibility))
                {
                    Ok(()) => {
                        extend_at = Instant::now() + self.visibility / 3;
                        continue;
                    }
                    Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::StaleReceipt) => {
                        Killed::Lost(error)
                    }
                    Err(error) => Killed::Failed(error),
                },
            };
            if killed.is_none() {
                // It may have ended in between, which is what is wanted.
                let _ = kill_process_group(pid, Signal::KILL);
                killed = Some(why);
            }
        }
    }
}

/// `REAPPEAR_ATTR_<NAME>` for each attribute whose value can stand in an environment.
fn variables(attributes: &Attributes) -> impl Iterator<Item = (String, OsString)> {
    attributes.iter().filter_map(|(name, value)| {
        let bytes = match value {
            AttributeValue::String(text) => text.as_bytes(),
            AttributeValue::Bytes(bytes) => bytes,
        };
        (!bytes.contains(&0)).then(|| (variable(name), OsString::from_vec(bytes.to_owned())))
    })
}

fn variable(attribute: &str) -> String {
    let word = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' };
    format!("REAPPEAR_ATTR_{}", attribute.chars().map(word).collect::<String>())
}

/// A command's standard error: passed on to ours, its end kept.
struct Tail {
    kept: Arc<Mutex<Vec<u8>>>,
    closed: mpsc::Receiver<()>,
}

impl Tail {
    fn of(mut from: ChildStderr) -> Self {
        let kept = Arc::new(Mutex::new(Vec::new()));
        let (open, closed) = mpsc::channel::<()>();
        let keep = Arc::clone(&kept);
        std::thread::spawn(move || {
            // Dropped at the end of the thread, which is what `end` waits for.
            let _open = open;
            let mut buffer = [0; 4096];
            while let Ok(len) = from.read(&mut buffer) {
                let Some(part) = buffer.get(..len).filter(|part| !part.is_empty()) else { break };
                let _ = std::io::stderr().write_all(part);
                let mut kept = keep.lock().unwrap_or_else(PoisonError::into_inner);
                kept.extend_from_slice(part);
                let surplus = kept.len().saturating_sub(ERROR_LEN);
                kept.drain(..surplus);
            }
        });
        Self { kept, closed }
    }

    /// The end of what was written, without white space around it.
    fn end(self) -> String {
        let _ = self.closed.recv_timeout(STDERR_GRACE);
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        // It may begin within a character.
        let begin = kept.iter().take(3).take_while(|byte| **byte & 0b1100_0000 == 0b1000_0000).count();
        let mut text = String::from_utf8_lossy(kept.get(begin..).unwrap_or_default()).trim().to_owned();
        // A replacement takes more bytes than what it replaces.
        while text.len() > ERROR_LEN {
            let first = text.chars().next().map_or(1, char::len_utf8);
            text.drain(..first);
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::variable;

    #[test]
    fn attribute_names_become_names_of_variables() {
        assert_eq!(variable("trace-id"), "REAPPEAR_ATTR_TRACE_ID");
        assert_eq!(variable("größe=1"), "REAPPEAR_ATTR_GR__E_1");
    }
}

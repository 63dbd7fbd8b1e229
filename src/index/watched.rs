//! A watchdog: another store's calls on a thread of their own, each waited for at most a limit.
//!
//! ```text
//! owner ──call──► thread that has the store      answered in time: the answer
//!       ◄─answer─┘                               not in time, or the thread panicked: an error, for good
//! ```
//!
//! # Invariants
//! 17: every call returns. At most one call is under way, so nothing changes between the parts of a scan.
//!
//! # Crashes
//! A call that hangs can not be ended from outside. Its thread is left alone with the store: neither joined
//! nor told anything any more, and should it come back, it ends without dropping the store.
//!
//! # Locking
//! None; the two threads send each other what they have to say.
//!
//! # Not here
//! What takes the place of a store that hangs: the engine.

use std::cell::OnceCell;
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use super::kv::{Kv, Writes};
use crate::error::{Error, ErrorKind, Result};

/// Rows of a scan that come over at a time, in bytes.
const MAX_CHUNK_LEN: usize = 256 * 1024;
/// The limit is waited for in so many parts. To a process that was stopped, the time until it goes on is
/// the end of one part, and not of all.
const PARTS: u32 = 60;

type Call = Box<dyn FnOnce(&mut dyn Kv) + Send>;

enum Task {
    Call(Call),
    /// Drops the store, then answers.
    Close(Sender<()>),
}

/// A [`Kv`] that runs another one and does not wait for it for ever.
pub(crate) struct Watched {
    limit: Duration,
    hung: &'static AtomicBool,
    tasks: Sender<Task>,
    /// Why nothing is asked of the thread any more.
    failed: OnceCell<Error>,
}

impl Watched {
    /// Opens a store on a thread of its own. When that or a later call takes longer than `limit`, `hung` is
    /// set; if it is set already, nothing is opened.
    ///
    /// # Errors
    /// Those of `open`; [`Io`](ErrorKind::Io) when it does not return in time, or something hung before.
    pub(crate) fn open(
        limit: Duration,
        hung: &'static AtomicBool,
        open: impl FnOnce() -> Result<Box<dyn Kv>> + Send + 'static,
    ) -> Result<Self> {
        if hung.load(Ordering::Relaxed) {
            return Err(Error::new(
                ErrorKind::Io,
                "index: sled did not answer earlier and is not opened again in this process",
            ));
        }
        let (tasks, inbox) = channel();
        let (reply, answer) = channel();
        let body = move || match open() {
            Ok(kv) => {
                drop(reply.send(Ok(())));
                serve(kv, &inbox);
            }
            Err(error) => drop(reply.send(Err(error))),
        };
        std::thread::Builder::new()
            .name("reappear-sled".to_owned())
            .spawn(body)
            .map_err(|error| Error::new(ErrorKind::Io, format!("index: cannot start a thread: {error}")))?;
        let watched = Self { limit, hung, tasks, failed: OnceCell::new() };
        match watched.wait("open", &answer).and_then(|opened| opened) {
            Ok(()) => Ok(watched),
            Err(error) => Err(watched.failed.get_or_init(|| error).clone()),
        }
    }

    /// Makes a call on the thread.
    fn call<T: Send + 'static>(&self, what: &str, call: impl FnOnce(&mut dyn Kv) -> T + Send + 'static) -> Result<T> {
        if let Some(error) = self.failed.get() {
            return Err(error.clone());
        }
        let (reply, answer) = channel();
        // That nobody takes the task or the answer is seen by waiting for it.
        drop(self.tasks.send(Task::Call(Box::new(move |kv| drop(reply.send(call(kv)))))));
        self.wait(what, &answer)
    }

    fn wait<T>(&self, what: &str, answer: &Receiver<T>) -> Result<T> {
        let mut waited = Err(RecvTimeoutError::Timeout);
        for _ in 0..PARTS {
            waited = answer.recv_timeout(self.limit / PARTS);
            if !matches!(waited, Err(RecvTimeoutError::Timeout)) {
                break;
            }
        }
        waited.map_err(|error| {
            let text = match error {
                RecvTimeoutError::Timeout => {
                    self.hung.store(true, Ordering::Relaxed);
                    format!(
                        "index: sled did not answer within {} s ({what}); it is left alone",
                        self.limit.as_secs_f64()
                    )
                }
                RecvTimeoutError::Disconnected => format!("index: the thread of sled panicked ({what})"),
            };
            self.failed.get_or_init(|| Error::new(ErrorKind::Io, text)).clone()
        })
    }
}

/// The thread's body.
fn serve(kv: Box<dyn Kv>, tasks: &Receiver<Task>) {
    // After a hang or a panic nobody knows whether it can be dropped.
    let mut kv = ManuallyDrop::new(kv);
    while let Ok(task) = tasks.recv() {
        match task {
            Task::Call(call) => call(&mut **kv),
            Task::Close(done) => {
                drop(ManuallyDrop::into_inner(kv));
                let _ = done.send(());
                return;
            }
        }
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        if self.failed.get().is_none() {
            let (done, answer) = channel();
            drop(self.tasks.send(Task::Close(done)));
            if let Err(error) = self.wait("close", &answer) {
                tracing::warn!(%error, "a store of the index could not be closed");
            }
        }
    }
}

impl Kv for Watched {
    fn get(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let key = key.to_vec();
        self.call("get", move |kv| kv.get(&key))?
    }

    fn scan(&mut self, from: &[u8], to: &[u8], visit: &mut dyn FnMut(&[u8], &[u8]) -> bool) -> Result<()> {
        let mut from = from.to_vec();
        loop {
            let (start, end) = (from.clone(), to.to_vec());
            let (rows, is_rest) = self.call("scan", move |kv| read_chunk(kv, &start, &end))??;
            for (key, row) in &rows {
                if !visit(key, row) {
                    return Ok(());
                }
            }
            match rows.into_iter().next_back() {
                // The lowest key above the last one.
                Some((last, _)) if !is_rest => from = [last.as_slice(), &[0]].concat(),
                _ => return Ok(()),
            }
        }
    }

    fn commit(&mut self, writes: &Writes) -> Result<()> {
        let writes = writes.to_vec();
        self.call("commit", move |kv| kv.commit(&writes))?
    }

    fn sync(&mut self) -> Result<()> {
        self.call("sync", |kv| kv.sync())?
    }

    fn len_on_disk(&self) -> u64 {
        self.call("measure", |kv| kv.len_on_disk()).unwrap_or(0)
    }
}

/// Rows with their keys.
type Chunk = Vec<(Vec<u8>, Vec<u8>)>;

/// The first rows in `from..to`, and whether these are all.
fn read_chunk(kv: &mut dyn Kv, from: &[u8], to: &[u8]) -> Result<(Chunk, bool)> {
    let (mut rows, mut len) = (Vec::new(), 0);
    kv.scan(from, to, &mut |key, row| {
        len += key.len() + row.len();
        rows.push((key.to_vec(), row.to_vec()));
        len < MAX_CHUNK_LEN
    })?;
    Ok((rows, len < MAX_CHUNK_LEN))
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::sync::{Arc, Mutex};

    use super::super::mem::{MemDisk, MemKv};
    use super::*;

    const PLENTY: Duration = Duration::from_secs(600);

    /// A store that blocks or panics when it is told.
    struct Bad {
        kv: MemKv,
        orders: Arc<Mutex<Receiver<()>>>,
        what: &'static str,
        dropped: Sender<()>,
    }

    impl Bad {
        fn act(&self, call: &str) {
            if self.what == format!("panic in {call}") {
                panic!("told to");
            }
            if self.what == call {
                let _ = self.orders.lock().unwrap().recv();
            }
        }
    }

    impl Drop for Bad {
        fn drop(&mut self) {
            self.act("close");
            let _ = self.dropped.send(());
        }
    }

    impl Kv for Bad {
        fn get(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>> {
            self.act("get");
            self.kv.get(key)
        }
        fn scan(&mut self, from: &[u8], to: &[u8], visit: &mut dyn FnMut(&[u8], &[u8]) -> bool) -> Result<()> {
            self.act("scan");
            self.kv.scan(from, to, visit)
        }
        fn commit(&mut self, writes: &Writes) -> Result<()> {
            self.act("commit");
            self.kv.commit(writes)
        }
        fn sync(&mut self) -> Result<()> {
            self.act("sync");
            self.kv.sync()
        }
        fn len_on_disk(&self) -> u64 {
            self.act("measure");
            77
        }
    }

    thread_local! {
        /// Goes with the thread of a store.
        static THREAD: RefCell<Option<Sender<()>>> = const { RefCell::new(None) };
    }

    /// A watched store, and what a test needs to tell it and to see of it.
    struct Rig {
        watched: Option<Watched>,
        hung: &'static AtomicBool,
        go_on: Sender<()>,
        dropped: Receiver<()>,
        thread: Receiver<()>,
    }

    impl Rig {
        fn new(what: &'static str) -> Self {
            let hung: &'static AtomicBool = Box::leak(Box::default());
            let ((go_on, orders), (drops, dropped), (lives, thread)) = (channel(), channel(), channel());
            let watched = Watched::open(PLENTY, hung, move || {
                THREAD.set(Some(lives));
                let orders = Arc::new(Mutex::new(orders));
                Ok(Box::new(Bad { kv: MemKv::new(), orders, what, dropped: drops }))
            });
            Self { watched: Some(watched.unwrap()), hung, go_on, dropped, thread }
        }

        fn kv(&mut self) -> &mut Watched {
            self.watched.as_mut().unwrap()
        }

        fn hangs_soon(&mut self) {
            self.kv().limit = Duration::from_millis(5);
        }

        fn thread_ends(&self) {
            assert_eq!(self.thread.recv_timeout(PLENTY), Err(RecvTimeoutError::Disconnected));
        }
    }

    fn call(kv: &mut Watched, what: &str) -> Result<()> {
        match what {
            "get" => kv.get(b"a").map(drop),
            "scan" => kv.scan(b"a", b"b", &mut |_, _| true),
            "commit" => kv.commit(&[(b"a".to_vec(), None)]),
            _ => kv.sync(),
        }
    }

    #[test]
    fn a_call_that_hangs_is_an_error_and_so_is_every_later_one_at_once() {
        for what in ["get", "scan", "commit", "sync"] {
            let mut rig = Rig::new(what);
            rig.hangs_soon();
            let error = call(rig.kv(), what).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Io);
            assert!(error.to_string().contains("did not answer within 0.005 s"), "{error}");
            assert!(rig.hung.load(Ordering::Relaxed));
            rig.kv().limit = PLENTY;
            for later in ["get", "scan", "commit", "sync"] {
                assert_eq!(call(rig.kv(), later).unwrap_err().to_string(), error.to_string());
            }
            assert_eq!(rig.kv().len_on_disk(), 0);
            rig.watched = None;
            // When it comes back after all, the thread ends and leaves the store alone.
            rig.go_on.send(()).unwrap();
            rig.thread_ends();
            assert!(rig.dropped.try_recv().is_err());
        }
    }

    #[test]
    fn a_length_that_does_not_come_is_0() {
        let mut rig = Rig::new("");
        assert_eq!(rig.kv().len_on_disk(), 77);
        let mut rig = Rig::new("measure");
        rig.hangs_soon();
        assert_eq!(rig.kv().len_on_disk(), 0);
        assert!(call(rig.kv(), "get").is_err());
    }

    #[test]
    fn a_panic_is_an_error_for_good_and_the_store_is_not_dropped() {
        for what in ["get", "commit"] {
            let mut rig = Rig::new(if what == "get" { "panic in get" } else { "panic in commit" });
            call(rig.kv(), "sync").unwrap();
            let error = call(rig.kv(), what).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Io);
            assert!(error.to_string().contains("panicked"), "{error}");
            assert_eq!(call(rig.kv(), "sync").unwrap_err().to_string(), error.to_string());
            rig.thread_ends();
            rig.watched = None;
            assert!(rig.dropped.try_recv().is_err() && !rig.hung.load(Ordering::Relaxed));
        }
    }

    #[test]
    fn closing_waits_for_the_store_to_be_dropped_and_no_longer_than_for_a_call() {
        let mut rig = Rig::new("");
        call(rig.kv(), "commit").unwrap();
        rig.watched = None;
        rig.dropped.try_recv().unwrap();
        rig.thread_ends();
        let mut rig = Rig::new("close");
        rig.hangs_soon();
        rig.watched = None;
        assert!(rig.dropped.try_recv().is_err() && rig.hung.load(Ordering::Relaxed));
    }

    #[test]
    fn opening_that_fails_hangs_or_panics_is_an_error_and_after_a_hang_nothing_is_opened() {
        let hung: &'static AtomicBool = Box::leak(Box::default());
        let refused = || Error::new(ErrorKind::Full, "no room");
        assert_eq!(Watched::open(PLENTY, hung, move || Err(refused())).err().unwrap().kind(), ErrorKind::Full);
        let panicked = Watched::open(PLENTY, hung, || panic!("told to")).err().unwrap();
        assert_eq!(panicked.kind(), ErrorKind::Io);
        assert!(!hung.load(Ordering::Relaxed));
        let (go_on, orders) = channel::<()>();
        let error = Watched::open(Duration::from_millis(5), hung, move || {
            let _ = orders.recv();
            Ok(Box::new(MemKv::new()))
        });
        assert!(error.err().unwrap().to_string().contains("did not answer within"));
        let error = Watched::open(PLENTY, hung, || unreachable!("it must not be tried")).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Io);
        assert!(error.to_string().contains("not opened again in this process"), "{error}");
        drop(go_on);
    }

    #[test]
    fn a_scan_comes_over_in_parts_and_ends_where_it_is_told() {
        let mut rig = Rig::new("");
        let writes: Vec<_> = (0..100_u8).map(|n| (vec![n], Some(vec![n; MAX_CHUNK_LEN / 7]))).collect();
        rig.kv().commit(&writes).unwrap();
        let mut seen = vec![];
        let mut scan = |from: u8, to: u8, max: usize| {
            seen.clear();
            rig.kv()
                .scan(&[from], &[to], &mut |key, row| {
                    assert_eq!(row, vec![key[0]; MAX_CHUNK_LEN / 7]);
                    seen.push(key[0]);
                    seen.len() < max
                })
                .unwrap();
            seen.clone()
        };
        assert_eq!(scan(0, 255, 1000), (0..100).collect::<Vec<_>>());
        assert_eq!(scan(3, 50, 1000), (3..50).collect::<Vec<_>>());
        assert_eq!(scan(3, 50, 20), (3..23).collect::<Vec<_>>());
        assert!(scan(200, 255, 9).is_empty());
    }

    #[test]
    fn errors_of_the_store_come_through_as_they_are() {
        let disk = MemDisk::new();
        let kv = disk.open();
        let mut watched = Watched::open(PLENTY, Box::leak(Box::default()), || Ok(Box::new(kv))).unwrap();
        disk.fail_after(Some(1));
        watched.commit(&[(b"a".to_vec(), Some(b"1".to_vec()))]).unwrap();
        let error = watched.sync().unwrap_err();
        assert!(error.to_string().contains("told to fail"), "{error}");
        disk.fail_after(None);
        assert_eq!(watched.get(b"a").unwrap(), Some(b"1".to_vec()));
    }
}

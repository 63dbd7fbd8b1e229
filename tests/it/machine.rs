//! A simulated machine with a store on it, and short words for what the tests do with it.
//!
//! When a test is through, the machine checks what must hold after any test: the counters equal a
//! recount, and a store opened again after its process died, with its index gone, shows the same
//! messages as before.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::Duration;

use reappear::testing::Rig;
use reappear::{
    Delivery, ErrorKind, MessageId, MessageView, NewMessage, OpenReport, Options, Queue, QueueOptions, State, Store,
};

/// One way in which a store ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stop {
    Close,
    Kill,
    PowerCut,
    /// The process dies, and the index is gone.
    KillWithoutIndex,
}

pub(crate) const STOPS: [Stop; 4] = [Stop::Close, Stop::Kill, Stop::PowerCut, Stop::KillWithoutIndex];

pub(crate) fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

pub(crate) fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// The kind of the error that a call must give.
#[track_caller]
pub(crate) fn kind<T: std::fmt::Debug>(result: Result<T, reappear::Error>) -> ErrorKind {
    result.expect_err("it must be refused").kind()
}

/// See the module.
pub(crate) struct Machine {
    pub(crate) rig: Rig,
    store: RefCell<Option<Store>>,
    options: RefCell<Options>,
    /// Whether the last look is taken.
    look: RefCell<bool>,
}

/// Small segments, so that every test rotates.
pub(crate) fn small() -> Options {
    Options::new().segment_len(16 * 1024)
}

impl Machine {
    pub(crate) fn new() -> Self {
        Self::with(small())
    }

    pub(crate) fn with(options: Options) -> Self {
        let machine = Self {
            rig: Rig::new(7),
            store: RefCell::default(),
            options: RefCell::new(options),
            look: RefCell::new(true),
        };
        machine.open();
        machine
    }

    /// Opens the store, which is not open.
    pub(crate) fn open(&self) -> OpenReport {
        self.rig.set_options(self.options.borrow().clone());
        let store = self.rig.open();
        let report = store.report().clone();
        *self.store.borrow_mut() = Some(store);
        report
    }

    pub(crate) fn stop(&self, stop: Stop) {
        match stop {
            Stop::Close => self.rig.run(self.store().close()).unwrap(),
            Stop::Kill => self.rig.kill(),
            Stop::PowerCut => self.rig.power_cut(),
            Stop::KillWithoutIndex => {
                self.rig.kill();
                self.rig.lose_index();
            }
        }
        *self.store.borrow_mut() = None;
    }

    pub(crate) fn reopen(&self, stop: Stop) -> OpenReport {
        self.stop(stop);
        self.open()
    }

    /// The store is left as it is: what the test did to it forbids a last look.
    pub(crate) fn leave(&self) {
        *self.look.borrow_mut() = false;
    }

    pub(crate) fn store(&self) -> Store {
        self.store.borrow().clone().expect("the store is open")
    }

    pub(crate) fn queue(&self, name: &str) -> Queue {
        self.store().queue(name).unwrap()
    }

    /// A queue, created with options of its own.
    pub(crate) fn made(&self, name: &str, options: QueueOptions) -> Queue {
        let queue = self.queue(name);
        self.rig.run(queue.create(options)).unwrap();
        queue
    }

    pub(crate) fn send(&self, name: &str, message: impl Into<NewMessage>) -> MessageId {
        self.rig.run(self.queue(name).send(message)).unwrap()
    }

    /// What can be received now, without waiting.
    pub(crate) fn take(&self, name: &str) -> Option<Delivery> {
        self.rig.run(self.queue(name).receive().one()).unwrap()
    }

    /// The same, when there must be one.
    #[track_caller]
    pub(crate) fn took(&self, name: &str) -> Delivery {
        self.take(name).expect("there is a message to receive")
    }

    pub(crate) fn take_for(&self, name: &str, visibility: Duration) -> Option<Delivery> {
        self.rig.run(self.queue(name).receive().visibility(visibility).one()).unwrap()
    }

    pub(crate) fn take_many(&self, name: &str, max: usize) -> Vec<Delivery> {
        self.rig.run(self.queue(name).receive().max(max).many()).unwrap()
    }

    /// Receives and acknowledges until nothing comes any more; the bodies in order.
    pub(crate) fn drain(&self, name: &str) -> Vec<String> {
        let mut bodies = Vec::new();
        loop {
            let batch = self.take_many(name, 100);
            if batch.is_empty() {
                return bodies;
            }
            let done = self.rig.run(self.queue(name).ack_many(batch.iter().map(Delivery::receipt))).unwrap();
            assert!(done.iter().all(Result::is_ok), "{done:?}");
            bodies.extend(batch.into_iter().map(|job| String::from_utf8_lossy(job.body()).into_owned()));
        }
    }

    pub(crate) fn ack(&self, job: &Delivery) {
        self.rig.run(job.ack()).unwrap();
    }

    pub(crate) fn pass(&self, time: Duration) {
        self.rig.advance(time);
    }

    /// Ready, delayed, in flight and dead messages of a queue.
    pub(crate) fn counts(&self, name: &str) -> [u64; 4] {
        let stats = self.rig.run(self.queue(name).stats()).unwrap();
        [stats.ready, stats.delayed, stats.in_flight, stats.dead]
    }

    pub(crate) fn peek(&self, name: &str) -> Vec<MessageView> {
        self.rig.run(self.queue(name).peek(None, 100_000)).unwrap()
    }

    pub(crate) fn peek_one(&self, name: &str) -> MessageView {
        let mut seen = self.peek(name);
        assert_eq!(seen.len(), 1, "one message in {name}: {seen:?}");
        seen.remove(0)
    }

    /// All messages by queue, with the counters checked against them.
    pub(crate) fn recount(&self) -> BTreeMap<String, Vec<MessageView>> {
        let queues = self.rig.run(self.store().queues()).unwrap();
        let look = |stats: reappear::QueueStats| {
            let name = stats.name.as_str().to_owned();
            let seen = self.peek(&name);
            let count = |state| seen.iter().filter(|view| view.state == state).count() as u64;
            let counted = [State::Ready, State::Delayed, State::InFlight, State::Dead].map(count);
            assert_eq!([stats.ready, stats.delayed, stats.in_flight, stats.dead], counted, "counters of {name}");
            (name, seen)
        };
        queues.into_iter().map(look).collect()
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        if std::thread::panicking() || !*self.look.borrow() || self.store.borrow().is_none() {
            return;
        }
        let before = self.recount();
        self.reopen(Stop::KillWithoutIndex);
        assert_eq!(self.recount(), before, "a store built anew from its log shows the same messages");
    }
}

//! The boot service on a link, driven by a thread as a domain's would.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use boot::{Event, Service};
use link::{Link, Waker};

/// A service that answers until it is dropped.
pub struct Serving {
    thread: Option<JoinHandle<()>>,
    waker: Waker,
    stop: Arc<AtomicBool>,
    events: Arc<Mutex<Vec<Event>>>,
}

impl Serving {
    /// Starts to answer.
    pub fn start(mut service: Service, mut link: Box<dyn Link>) -> Serving {
        let (waker, stop) = (link.waker(), Arc::<AtomicBool>::default());
        let events = Arc::<Mutex<Vec<Event>>>::default();
        let (stopped, seen) = (stop.clone(), events.clone());
        let thread = thread::spawn(move || {
            let started = Instant::now();
            while !stopped.load(Ordering::Relaxed) {
                let now = started.elapsed();
                link.rx(&mut |frame| {
                    service.handle(now, frame);
                });
                while service.transmit(now, &mut *boot::onto(&mut *link)) {}
                link.flush();
                while let Some(event) = service.poll_event() {
                    seen.lock().unwrap_or_else(PoisonError::into_inner).push(event);
                }
                let now = started.elapsed();
                let left = service.next_deadline(now).map(|at| at.saturating_sub(now));
                link.wait(Some(left.unwrap_or(Duration::from_secs(1))));
            }
        });
        Serving { thread: Some(thread), waker, stop, events }
    }

    /// What has happened so far, as people are told.
    pub fn events(&self) -> Vec<String> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner).iter().map(Event::to_string).collect()
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.waker.wake();
        let ended = self.thread.take().map(JoinHandle::join);
        assert!(thread::panicking() || ended.is_none_or(|ended| ended.is_ok()), "the service has panicked");
    }
}

//! Ducks in threads, and the host of `duck_tests` at the other end of an in-process link.
#![allow(dead_code, reason = "each test binary uses a part")]

use std::sync::Arc;
use std::thread::JoinHandle;

#[allow(unused_imports, reason = "each test binary uses a part")]
pub use duck_tests::{Host, LIMITS, Model, StepData, key, slice_nodes};
use duckd::{Exit, HugePages, Monitor, Node, Options, Stop};
use link::{Hub, Mac};
use wire::host;

pub const DUCK: Mac = Mac([2, 0, 0, 0, 0, 7]);
pub const HOST: Mac = Mac([2, 0, 0, 0, 0, 1]);
pub const ID: [u8; 16] = *b"duck seven\0\0\0\0\0\0";

pub fn options() -> Options {
    Options {
        memory: 4 << 20,
        input: 1 << 16,
        result: 1 << 17,
        lock: false,
        huge_pages: HugePages::Off,
        scrub: None,
        seed: Some([9; 32]),
        ..Options::new(ID, key().public())
    }
}

/// A duck in a thread of its own; stopped when dropped.
pub struct Duck {
    pub monitor: Monitor,
    pub stop: Stop,
    thread: Option<JoinHandle<Exit>>,
}

impl Duck {
    pub fn start(hub: &Hub, options: Options) -> Duck {
        let mut node = Node::new(Box::new(hub.port(DUCK, 1_500)), options).expect("a duck");
        let (monitor, stop) = (node.monitor(), Stop::new());
        let own = stop.clone();
        let thread = std::thread::Builder::new().name("duck".into()).spawn(move || node.run(&own)).expect("a thread");
        Duck { monitor, stop, thread: Some(thread) }
    }

    pub fn has_ended(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// How it ended; it must be about to.
    pub fn join(&mut self) -> Exit {
        self.thread.take().expect("joined once").join().expect("a duck does not panic")
    }
}

impl Drop for Duck {
    fn drop(&mut self) {
        self.stop.trigger();
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            assert!(ended.is_ok() || std::thread::panicking(), "a duck does not panic");
        }
    }
}

/// A host on that hub which wants these slices' units on the duck.
pub fn host(hub: &Hub, model: &Arc<Model>, slices: std::ops::Range<u16>) -> Host {
    host_with(hub, model, slices, |_| ())
}

pub fn host_with(
    hub: &Hub,
    model: &Arc<Model>,
    slices: std::ops::Range<u16>,
    change: impl FnOnce(&mut host::Config),
) -> Host {
    Host::with(Box::new(hub.port(HOST, 1_500)), (DUCK, ID), model, slices, None, change)
}

//! What others see of a running duck, and how they stop it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use link::Waker;
use node::Figures;
use wire::message::{COUNTERS, Counter};

/// Ends [`Node::run`](crate::Node::run), from any thread.
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<StopState>);

#[derive(Debug, Default)]
struct StopState {
    stopped: AtomicBool,
    waker: Mutex<Option<Waker>>,
}

impl Stop {
    /// Nothing is stopped yet.
    pub fn new() -> Stop {
        Stop::default()
    }

    /// Stops the duck that runs with this, or will.
    pub fn trigger(&self) {
        self.0.stopped.store(true, Ordering::Release);
        if let Some(waker) = &*self.0.waker.lock().unwrap_or_else(PoisonError::into_inner) {
            waker.wake();
        }
    }

    /// Whether it was triggered.
    pub fn is_triggered(&self) -> bool {
        self.0.stopped.load(Ordering::Acquire)
    }

    /// Whoever waits is woken by `waker`.
    pub(crate) fn attach(&self, waker: Waker) {
        *self.0.waker.lock().unwrap_or_else(PoisonError::into_inner) = Some(waker);
    }
}

const NOTHING: u64 = u64::MAX;

#[derive(Debug)]
struct State {
    counters: [AtomicU64; COUNTERS],
    resident: AtomicU64,
    blocks: AtomicU64,
    waits: AtomicU64,
    beats: AtomicU64,
    scrubbed: AtomicU64,
    damage: AtomicU64,
    waker: Waker,
}

/// Figures of a duck, as of its last look at them: at least once a second, and whenever it has nothing to do.
#[derive(Clone, Debug)]
pub struct Monitor(Arc<State>);

impl Monitor {
    pub(crate) fn new(waker: Waker) -> Monitor {
        let zero = || AtomicU64::new(0);
        Monitor(Arc::new(State {
            counters: std::array::from_fn(|_| zero()),
            resident: zero(),
            blocks: zero(),
            waits: zero(),
            beats: zero(),
            scrubbed: zero(),
            damage: AtomicU64::new(NOTHING),
            waker,
        }))
    }

    /// A counter of the protocol's.
    pub fn counter(&self, counter: Counter) -> u64 {
        self.0.counters[counter as usize].load(Ordering::Relaxed)
    }

    /// Blocks held.
    pub fn resident(&self) -> u64 {
        self.0.resident.load(Ordering::Relaxed)
    }

    /// Blocks of the list, 0 without one.
    pub fn blocks(&self) -> u64 {
        self.0.blocks.load(Ordering::Relaxed)
    }

    /// Times that the network thread went to sleep.
    pub fn waits(&self) -> u64 {
        self.0.waits.load(Ordering::Relaxed)
    }

    /// Goes up as long as the network thread lives: at least once a second.
    pub fn beats(&self) -> u64 {
        self.0.beats.load(Ordering::Relaxed)
    }

    /// Blocks that were checked again.
    pub fn scrubbed(&self) -> u64 {
        self.0.scrubbed.load(Ordering::Relaxed)
    }

    /// Changes one byte of a block in memory, to see it found out. For tests.
    #[doc(hidden)]
    pub fn flip_byte(&self, block: u32, offset: u32) {
        self.0.damage.store(u64::from(block) << 32 | u64::from(offset), Ordering::Release);
        self.0.waker.wake();
    }

    pub(crate) fn wanted_damage(&self) -> Option<(u32, usize)> {
        let wanted = self.0.damage.load(Ordering::Acquire);
        (wanted != NOTHING).then_some(((wanted >> 32) as u32, wanted as u32 as usize))
    }

    pub(crate) fn damaged(&self) {
        self.0.damage.store(NOTHING, Ordering::Relaxed);
    }

    pub(crate) fn waited(&self) {
        self.0.waits.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn beat(&self) {
        self.0.beats.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn publish(&self, figures: &Figures) {
        for (to, &value) in self.0.counters.iter().zip(&figures.counters) {
            to.store(value, Ordering::Relaxed);
        }
        self.0.resident.store(figures.resident.into(), Ordering::Relaxed);
        self.0.blocks.store(figures.blocks.into(), Ordering::Relaxed);
        self.0.scrubbed.store(figures.scrubbed, Ordering::Relaxed);
    }
}

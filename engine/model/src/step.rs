//! What stage 0 and stage 1 exchange for one step: the input with its experts, and the sums that come back.
//!
//! A [`StepIo`] is owned by the stage and shared with the domains while a step runs. Each part is written once and then
//! read-only until the stage has the `StepIo` to itself again ([`StepIo::recycle`]), so nothing is copied and no lock is held. A
//! backend with pinned memory keeps this shape and replaces the storage.

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicU32, Ordering};

use kernels::tree::Node;

/// What the ducks get: T lanes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepInput {
    /// Index of the layer's experts in the model.
    pub layer: u16,
    /// Number of lanes T.
    pub lanes: usize,
    /// `[T, hidden]`.
    pub hidden: Vec<f32>,
    /// `[T, chosen]`, ascending in each lane.
    pub experts: Vec<u16>,
    /// `[T, chosen]`, in the order of `experts`.
    pub weights: Vec<f32>,
}

/// The sums below some nodes of the canonical tree, none of which is above another: what one source of sums (a domain, or the host) has of a
/// step. Which nodes these are may change from step to step, so a table that travels with the values says it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeSums {
    /// The nodes, in the order of the tree's leaves; none if the source holds nothing.
    pub nodes: Vec<Node>,
    /// `[nodes, T]`: does the lane have a value there? A lane none of whose experts lie below the node is absent.
    pub present: Vec<bool>,
    /// `[nodes, T, hidden]`; rows of absent lanes are not read.
    pub values: Vec<f32>,
}

impl NodeSums {
    /// Of a source that holds nothing; memory stays allocated.
    pub fn clear(&mut self) {
        self.nodes.clear();
        self.present.clear();
        self.values.clear();
    }
}

const EMPTY: u32 = 0;
const WRITING: u32 = 1;
const READY: u32 = 2;

/// A value that is written once, then shared; its memory is used again after [`Slot::clear`].
#[derive(Debug, Default)]
pub struct Slot<T> {
    ready: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached mutably only by the one caller that moved the word from EMPTY to WRITING, or through
// `&mut self`; shared references are handed out only after READY was stored with Release and seen with Acquire, and nothing
// writes after READY until `clear` takes `&mut self`.
unsafe impl<T: Send + Sync> Sync for Slot<T> {}

impl<T> Slot<T> {
    /// Writes the value and makes it visible. False if somebody wrote before: the value is then untouched.
    pub fn publish(&self, write: impl FnOnce(&mut T)) -> bool {
        if self.ready.compare_exchange(EMPTY, WRITING, Ordering::Acquire, Ordering::Relaxed).is_err() {
            return false;
        }
        // SAFETY: this call alone moved the word to WRITING; no reference exists before READY.
        write(unsafe { &mut *self.value.get() });
        self.ready.store(READY, Ordering::Release);
        true
    }

    /// The value, once published.
    pub fn get(&self) -> Option<&T> {
        if self.ready.load(Ordering::Acquire) != READY {
            return None;
        }
        // SAFETY: READY was seen with Acquire, and nobody writes until `&mut self` exists.
        Some(unsafe { &*self.value.get() })
    }

    /// Empties the slot; its value stays allocated for the next `publish`.
    pub fn clear(&mut self) {
        *self.ready.get_mut() = EMPTY;
    }
}

/// One step's exchange.
#[derive(Debug)]
pub struct StepIo {
    /// Written by the stage.
    pub input: Slot<StepInput>,
    /// Each written by one source: a domain, or the host for what it computes itself.
    pub sums: Vec<Slot<NodeSums>>,
}

impl StepIo {
    /// An exchange for so many sources of sums.
    pub fn new(sources: usize) -> StepIo {
        StepIo { input: Slot::default(), sums: (0..sources).map(|_| Slot::default()).collect() }
    }

    /// Makes it ready for another step.
    pub fn recycle(&mut self) {
        self.input.clear();
        for sum in &mut self.sums {
            sum.clear();
        }
    }

    /// Whether every source has written.
    pub fn is_summed(&self) -> bool {
        self.sums.iter().all(|s| s.get().is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_is_written_once_until_cleared() {
        let mut slot = Slot::<u32>::default();
        assert_eq!(slot.get(), None);
        assert!(slot.publish(|v| *v = 7));
        assert!(!slot.publish(|v| *v = 8));
        assert_eq!(slot.get(), Some(&7));
        slot.clear();
        assert_eq!(slot.get(), None);
        assert!(slot.publish(|v| *v += 1));
        assert_eq!(slot.get(), Some(&8));
    }

    #[test]
    fn a_slot_shows_whole_values_to_other_threads() {
        let slot = Slot::<[u64; 32]>::default();
        std::thread::scope(|s| {
            s.spawn(|| assert!(slot.publish(|v| v.fill(3))));
            s.spawn(|| {
                loop {
                    if let Some(v) = slot.get() {
                        assert_eq!(v, &[3; 32]);
                        break;
                    }
                    std::thread::yield_now();
                }
            });
        });
    }
}

//! Sums on their way out: written by the cores of the running step, read by the network thread row by row as they become final.
#![allow(unsafe_code)] // two threads share a slot, apart by rows

use std::sync::Arc;

use wire::duck::STEPS;

use crate::error::DuckError;
use crate::options::HugePages;
use crate::region::Region;

/// `[STEPS]` slots of `[nodes, lanes, hidden]` fp32.
#[derive(Clone, Debug)]
pub(crate) struct Results {
    region: Arc<Region>,
    slot: usize,
}

impl Results {
    /// Slots of `len` bytes, a multiple of four.
    pub fn new(len: usize) -> Result<Results, DuckError> {
        let region = Region::new(len.saturating_mul(STEPS), HugePages::Off)?;
        Ok(Results { region: Arc::new(region), slot: len })
    }

    /// Bytes of a slot.
    pub fn len(&self) -> usize {
        self.slot
    }

    /// The first `count` values of a slot, for the cores.
    ///
    /// # Safety
    /// Nobody else has this slot's values, and what is read of it meanwhile (see [`Results::read`]) is not written any more.
    #[allow(clippy::mut_from_ref)] // one step at a time, says the contract
    pub unsafe fn claim(&self, slot: usize, count: usize) -> &mut [f32] {
        assert!(slot < STEPS && count <= self.slot / size_of::<f32>(), "an open that needs more is refused");
        // SAFETY: promised by the caller; slots do not overlap.
        unsafe { self.region.floats_mut(slot * self.slot, count) }
    }

    /// Copies bytes from a slot.
    ///
    /// # Safety
    /// Nobody writes these values any more: their step has ended, or its progress, read with Acquire, says that they are final.
    pub unsafe fn read(&self, slot: usize, offset: usize, out: &mut [u8]) {
        const { assert!(cfg!(target_endian = "little"), "results travel as they lie") };
        assert!(slot < STEPS && offset <= self.slot && out.len() <= self.slot - offset, "a result lies in its slot");
        // SAFETY: promised by the caller.
        unsafe { self.region.read(slot * self.slot + offset, out) }
    }
}

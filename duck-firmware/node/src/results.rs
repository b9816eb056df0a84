//! Sums on their way out: written by the cores of the running step, sent by core 0 row by row as they become final.
#![allow(unsafe_code)] // several cores share a slot, apart by rows

use alloc::sync::Arc;

use wire::duck::STEPS;

use crate::region::Region;

/// Slots start at cache lines.
const LINE: usize = 64;

/// `[STEPS]` slots of `[nodes, lanes, hidden]` fp32.
#[derive(Clone, Debug)]
pub(crate) struct Results {
    region: Arc<Region>,
    slot: usize,
}

impl Results {
    /// As long slots as there is room for. A step's results, whose hidden dimension is a multiple of 64, need no odd bytes.
    pub fn new(region: Region) -> Results {
        let slot = region.len() / STEPS / LINE * LINE;
        Results { region: Arc::new(region), slot }
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
        unsafe { self.region.array(slot * self.slot, count) }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::region::tests::heap;

    #[test]
    fn slots_share_the_memory_and_keep_apart() {
        let results = Results::new(heap(4 * 192 + 100));
        assert_eq!(results.len(), 192);
        for slot in 0..STEPS {
            // SAFETY: nobody else has it.
            unsafe { results.claim(slot, 48) }.fill(slot as f32);
        }
        let mut out = [0; 4];
        for slot in 0..STEPS {
            for offset in [0, 188] {
                // SAFETY: nobody writes any more.
                unsafe { results.read(slot, offset, &mut out) };
                assert_eq!(out, (slot as f32).to_le_bytes());
            }
        }
    }
}

//! Steps allocate nothing once a plan's first ones are done: on the network thread, the cores and the hashing thread.

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

use common::*;
use duckd::Options;
use link::Hub;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);
/// Bytes of the last one.
static LAST: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// The host's thread, which is the test's.
    static EXEMPT: Cell<bool> = const { Cell::new(false) };
}

struct Counting;

/// A frame's buffer in the in-process link, which takes another whenever more frames wait than ever before.
const FRAME: usize = link::ETHERNET + 1_500;

fn count(size: usize) {
    if size != FRAME && !EXEMPT.try_with(Cell::get).unwrap_or(true) {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        LAST.store(size as u64, Ordering::Relaxed);
    }
}

// SAFETY: the system's allocator, with a counter that does not allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: the caller's promises are the system's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size);
        // SAFETY: as above.
        unsafe { System.realloc(at, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn no_step_allocates_after_the_first_ones_of_a_plan() {
    EXEMPT.set(true);
    let (hub, model) = (Hub::new(), Model::random(LIMITS, 31));
    let _duck = Duck::start(&hub, Options { cores: 2, ..options() });
    let mut host = host(&hub, &model, 0..2);
    host.loaded();
    let plan = slice_nodes(&LIMITS, 0..2);
    host.assign(1, &plan);
    let mut steps = |seqs: std::ops::Range<u32>| {
        for seq in seqs {
            let lanes = 1 + seq as usize % 5;
            let named: &[u16] = if seq % 3 == 0 { &plan[1..] } else { &[] };
            let mut data = StepData::random(&LIMITS, lanes, &plan, named, seq.into());
            data.layer = (seq / 3 % 2) as u16;
            host.begin(seq, 1, &data);
            host.assert_sums(seq, &model.sums(&data));
        }
    };
    steps(0..60);
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    assert!(before > 0, "allocations are counted");
    steps(60..300);
    let found = ALLOCATIONS.load(Ordering::Relaxed) - before;
    assert_eq!(found, 0, "the last of {} bytes", LAST.load(Ordering::Relaxed));
}

//! Steps allocate nothing once host, domain and ducks have seen a few of them.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use flock::Flock;
use model::Numerics;
use model::step::StepIo;
use pond_tests::ducks::{Ducks, PondOptions};
use pond_tests::{duckling_folder, load};

static COUNT: AtomicU64 = AtomicU64::new(0);

struct Counting;

// SAFETY: everything is the system allocator's.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        COUNT.fetch_add(1, Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn no_step_allocates_after_the_first_few() {
    let mut ducks = Ducks::start(PondOptions { ports: 2, ducks: 2, ..PondOptions::default() });
    let model = load(&duckling_folder());
    let mut flock = Flock::remote(&model, Numerics::Exact, ducks.host()).expect("a pond");
    flock.as_remote().expect("remote").wait_ready(&mut |_| true).expect("domains work");
    let mut io = Arc::new(StepIo::new(flock.sources()));
    let (hidden, layers) = (model.dims.hidden, model.experts.len());
    let mut step = |at: usize| {
        Arc::get_mut(&mut io).expect("the flock has let go of it").recycle();
        let fresh = io.input.publish(|input| {
            input.layer = (at % layers) as u16;
            input.lanes = 1 + at % 2;
            input.hidden.clear();
            input.hidden.extend((0..input.lanes * hidden).map(|i| ((i * 37 + at) % 101) as f32 / 101.0 - 0.5));
            input.experts.clear();
            input.weights.clear();
            for lane in 0..input.lanes {
                let first = ((at + lane) % 7) as u16;
                input.experts.extend([first, 7]);
                input.weights.extend([0.75, 0.25]);
            }
        });
        assert!(fresh);
        flock.submit(Arc::clone(&io)).expect("a sound step");
        while !io.is_summed() {
            if !flock.poll().expect("domains work") {
                flock.wait(Duration::from_millis(20));
            }
        }
        // Domains let go of a step just after they have published it.
        while Arc::strong_count(&io) > 1 {
            flock.poll().expect("domains work");
            std::thread::yield_now();
        }
    };
    (0..600).for_each(&mut step);
    // Other threads (a ping, a thread that is scheduled late) may allocate now and then; steps must not.
    let mut least = u64::MAX;
    for round in 0..20 {
        let before = COUNT.load(Ordering::Relaxed);
        (0..200).for_each(|at| step(round * 200 + at));
        least = least.min(COUNT.load(Ordering::Relaxed) - before);
    }
    assert_eq!(least, 0, "allocations in 200 steps");
}

//! What is not the service's business costs its owner no memory and hardly any time; nor does sending files.

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use common::{Bench, DUCK, DUCK_IP, SERVER_IP, config, datagram};

/// The system's allocator with a count for each thread, so that tests do not disturb each other.
struct Counting;

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: all calls go on to the system's allocator as they came; the counter neither allocates nor panics.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = COUNT.try_with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn frames_of_others_cost_nothing() {
    let mut bench = Bench::new(config());
    let mut step = vec![0x5a; 1514];
    step[12..14].copy_from_slice(&[0x88, 0xb5]);
    // For another host, to a port that nobody listens on, and cut off.
    let tftp = |ports, data: &[u8]| datagram(DUCK, [DUCK_IP, SERVER_IP], ports, data);
    let mut elsewhere = tftp([5, 69], b"\0\x01x\0octet\0");
    elsewhere[5] = 9;
    let cut = elsewhere[..30].to_vec();
    let frames = [step, elsewhere, cut, tftp([5, 4000], b"hello"), tftp([5, 50_000], b"\0\x04\0\x01")];
    let before = COUNT.get();
    for _ in 0..1000 {
        for frame in &frames {
            bench.service.handle(bench.now, frame);
        }
        assert!(!bench.service.transmit(bench.now, &mut |_, _| ()));
        assert_eq!(bench.service.next_deadline(bench.now), None);
    }
    assert_eq!(COUNT.get() - before, 0);
}

#[test]
fn blocks_are_sent_without_allocating() {
    let mut bench = Bench::new(config());
    let said = bench.tftp([1000, 69], b"\0\x01long\0octet\0");
    let port = said[0].ports[0];
    bench.tftp([1000, port], b"\0\x04\0\x01");
    let acknowledgements: Vec<_> = (2..2000u16)
        .map(|n| {
            let [high, low] = n.to_be_bytes();
            datagram(DUCK, [DUCK_IP, SERVER_IP], [1000, port], &[0, 4, high, low])
        })
        .collect();
    let (before, mut sent) = (COUNT.get(), 0);
    for acknowledgement in &acknowledgements {
        bench.service.handle(bench.now, acknowledgement);
        bench.service.transmit(bench.now, &mut |length, _| sent += length);
    }
    assert_eq!(COUNT.get() - before, 0);
    assert_eq!(sent, acknowledgements.len() * (14 + 28 + 4 + 512));
}

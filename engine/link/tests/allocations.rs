//! No carrier allocates for a frame once it is warm.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::net::SocketAddr;
use std::time::Duration;

use link::{ETHERNET, Faulty, Header, Hub, Link, Mac, Udp};

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

/// Sends bursts to and fro, with a wait and a wake for each; returns how many frames arrived.
fn traffic(links: &mut [Box<dyn Link>; 2], bursts: usize) -> usize {
    let mut arrived = 0;
    for burst in 0..bursts {
        let [a, b] = links;
        let header = Header { to: b.mac(), from: a.mac(), ethertype: 0x88b5 };
        for i in 0..48 {
            a.tx(&mut |frame| {
                header.emit(frame).map_or(0, |payload| ETHERNET + (burst * 131 + i * 17) % payload.len())
            });
        }
        a.flush();
        b.wait(Some(Duration::from_millis(2)));
        while b.rx(&mut |_| arrived += 1) > 0 {}
        links.swap(0, 1);
    }
    arrived
}

fn allocations(name: &str, mut links: [Box<dyn Link>; 2]) {
    let wakers = [links[0].waker(), links[1].waker()];
    traffic(&mut links, 200);
    let before = COUNT.get();
    let arrived = traffic(&mut links, 100);
    wakers.iter().for_each(link::Waker::wake);
    let count = COUNT.get() - before;
    assert!(arrived > 2000, "{name}: {arrived} frames arrived");
    assert_eq!(count, 0, "{name}: allocations for {arrived} frames");
}

fn in_process() -> [Box<dyn Link>; 2] {
    let hub = Hub::new();
    [1, 2].map(|i| Box::new(hub.port(Mac([2, 0, 0, 0, 0, i]), 9000)) as Box<dyn Link>)
}

#[test]
fn in_process_does_not_allocate() {
    allocations("in-process", in_process());
}

#[test]
fn udp_does_not_allocate() {
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let a = Udp::bind(any, &[], None, 9000).expect("a link");
    let b = Udp::bind(any, &[a.local_addr()], None, 9000).expect("a link");
    allocations("udp", [Box::new(b), Box::new(a)]);
}

#[test]
fn faults_do_not_allocate() {
    let faults = "loss=50,duplicate=50,reorder=50,corrupt=50".parse().expect("faults");
    allocations("faulty", in_process().map(|link| Box::new(Faulty::new(link, faults, 7)) as Box<dyn Link>));
}

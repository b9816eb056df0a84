//! `cargo bench -p link`: the time of a frame to another thread and back, both polling as the engine does: spin, then yield.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use link::{ETHERNET, Header, Hub, Link, Mac, Udp};

const ROUNDS: usize = 20_000;
const WARM_UP: usize = 2_000;
/// Empty polls before the processor is offered to others.
const SPINS: usize = 64;

fn main() {
    // cargo test runs benchmarks with `--test`: a short run proves that it works.
    let rounds = if std::env::args().any(|argument| argument == "--bench") { ROUNDS } else { 20 };
    println!("{:<12} {:>6} {:>10} {:>10}", "carrier", "bytes", "median µs", "p99 µs");
    for bytes in [64, 1500, 9000] {
        let hub = Hub::new();
        let [a, b] = [1, 2].map(|i| hub.port(Mac([2, 0, 0, 0, 0, i]), 9600));
        measure("in-process", Box::new(a), Box::new(b), bytes, rounds);
    }
    for bytes in [64, 1500, 9000] {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let b = Udp::bind(any, &[], None, 9600).expect("a socket on loopback");
        let a = Udp::bind(any, &[b.local_addr()], None, 9600).expect("a socket on loopback");
        measure("udp", Box::new(a), Box::new(b), bytes, rounds);
    }
}

fn measure(name: &str, mut a: Box<dyn Link>, mut b: Box<dyn Link>, bytes: usize, rounds: usize) {
    let (there, back) = (Header { to: b.mac(), from: a.mac(), ethertype: 0x88b5 }, AtomicBool::new(false));
    let mut times = Vec::with_capacity(rounds);
    thread::scope(|scope| {
        scope.spawn(|| echo(&mut b, &back));
        for round in 0..rounds + WARM_UP.min(rounds) {
            let started = Instant::now();
            send(&mut a, there, bytes);
            // A lost frame would be waited for in vain; a window of one loses none.
            poll(&mut a, &mut || false);
            if round >= WARM_UP.min(rounds) {
                times.push(started.elapsed());
            }
        }
        back.store(true, Ordering::Relaxed);
    });
    times.sort_unstable();
    let micros = |time: Duration| time.as_secs_f64() * 1e6;
    println!("{name:<12} {bytes:>6} {:>10.2} {:>10.2}", micros(times[rounds / 2]), micros(times[rounds * 99 / 100]));
}

/// Answers each frame with one of the same length until it is told to stop.
fn echo(link: &mut Box<dyn Link>, stop: &AtomicBool) {
    while let Some((length, header)) = poll(link, &mut || stop.load(Ordering::Relaxed)) {
        send(link, Header { to: header.from, from: header.to, ..header }, length);
    }
}

fn send(link: &mut Box<dyn Link>, header: Header, length: usize) {
    link.tx(&mut |frame| header.emit(frame).map_or(0, |_| length.max(ETHERNET)));
    link.flush();
}

/// Polls until there is a frame, or `stop`.
fn poll(link: &mut Box<dyn Link>, stop: &mut dyn FnMut() -> bool) -> Option<(usize, Header)> {
    let (mut got, mut empty) = (None, 0);
    while got.is_none() {
        if link.rx(&mut |frame| got = Header::parse(frame).map(|header| (frame.len(), header))) == 0 {
            empty += 1;
            if empty % SPINS == 0 {
                if stop() {
                    return None;
                }
                thread::yield_now();
            }
        }
    }
    got
}

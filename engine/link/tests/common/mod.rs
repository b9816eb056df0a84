//! What every carrier must do, run over real ones by the test programs beside this folder.

use std::thread;
use std::time::{Duration, Instant};

use link::{BROADCAST, ETHERNET, Header, Link, Mac};

/// The type of the frames that tests send.
pub const ETHERTYPE: u16 = 0x88b5;
/// Until a frame that must come counts as lost. The machine may be busy.
const PATIENCE: Duration = Duration::from_secs(10);
/// Until a frame that must not come counts as not coming.
const SILENCE: Duration = Duration::from_millis(30);

/// A frame of `length` bytes whose payload is a function of `number`.
pub fn frame(from: Mac, to: Mac, length: usize, number: u32) -> Vec<u8> {
    let mut frame = vec![0; length];
    let payload = Header { to, from, ethertype: ETHERTYPE }.emit(&mut frame).expect("a frame has a header");
    for (i, byte) in payload.iter_mut().enumerate() {
        *byte = if i < 4 { number.to_le_bytes()[i] } else { (i as u32 * 31 + number) as u8 };
    }
    frame
}

/// Sends it without flushing.
pub fn send(link: &mut dyn Link, frame: &[u8]) {
    let sent = link.tx(&mut |buffer| {
        buffer[..frame.len()].copy_from_slice(frame);
        frame.len()
    });
    assert!(sent, "there was a frame");
}

/// Collects frames until there are `count`, or patience ends.
pub fn receive(link: &mut dyn Link, count: usize) -> Vec<Vec<u8>> {
    let (mut frames, deadline) = (Vec::new(), Instant::now() + PATIENCE);
    while frames.len() < count && Instant::now() < deadline {
        if link.rx(&mut |frame| frames.push(frame.to_vec())) == 0 {
            link.wait(Some(deadline.saturating_duration_since(Instant::now())));
        }
    }
    frames
}

/// Whatever arrives in a while in which nothing should.
pub fn silence(link: &mut dyn Link) -> usize {
    let (mut count, deadline) = (0, Instant::now() + SILENCE);
    while Instant::now() < deadline {
        count += link.rx(&mut |_| ());
        link.wait(Some(Duration::from_millis(5)));
    }
    count
}

/// Runs everything over the ends of one segment, at least two. They know each other already.
pub fn suite(make: &mut dyn FnMut() -> Vec<Box<dyn Link>>) {
    for (name, check) in [
        ("every length arrives whole, both ways", lengths as fn(&mut [Box<dyn Link>])),
        ("a broadcast reaches all others", broadcast),
        ("a frame for nobody reaches nobody", unknown_receiver),
        ("lengths that no frame has are dropped", wrong_lengths),
        ("thousands of frames arrive in order and are counted", thousands),
        ("a wait times out", wait_times_out),
        ("a wake ends a wait at once, now or the next", wake_ends_wait),
        ("a frame ends a wait at once", frame_ends_wait),
    ] {
        let mut links = make();
        assert!(links.len() >= 2, "{name}: {} ends", links.len());
        println!("{}: {name}", links[0].describe());
        check(&mut links);
    }
}

fn pair(links: &mut [Box<dyn Link>]) -> (&mut dyn Link, &mut dyn Link) {
    let [a, b, ..] = links else { panic!("two ends") };
    (a, b)
}

fn lengths(links: &mut [Box<dyn Link>]) {
    let (a, b) = pair(links);
    let most = ETHERNET + a.mtu().min(b.mtu());
    let mut number = 0;
    for (from, to) in [(0, 1), (1, 0)] {
        for length in (15..most).step_by(97).chain([59, 60, 61, 1514.min(most), most - 1, most]) {
            number += 1;
            let sent = frame(links[from].mac(), links[to].mac(), length, number);
            send(&mut links[from], &sent);
            links[from].flush();
            let received = receive(&mut links[to], 1);
            assert_eq!(received.len(), 1, "{length} bytes from {}", links[from].describe());
            assert!(received[0] == sent, "{length} bytes: {} came, or they differ", received[0].len());
        }
    }
}

fn broadcast(links: &mut [Box<dyn Link>]) {
    let mut number = 0;
    for to in [BROADCAST, Mac([3, 0, 0, 0, 0, 9])] {
        for from in 0..links.len() {
            number += 1;
            let sent = frame(links[from].mac(), to, 100, number);
            send(&mut links[from], &sent);
            links[from].flush();
            for (i, link) in links.iter_mut().enumerate().filter(|(i, _)| *i != from) {
                assert!(receive(link, 1) == [sent.clone()], "end {i} got another frame, from {from}");
            }
        }
    }
    for (i, link) in links.iter_mut().enumerate() {
        assert_eq!(silence(link), 0, "end {i} heard itself, or a frame twice");
    }
}

fn unknown_receiver(links: &mut [Box<dyn Link>]) {
    let sent = frame(links[0].mac(), Mac([2, 9, 9, 9, 9, 9]), 100, 1);
    send(&mut links[0], &sent);
    links[0].flush();
    for link in links.iter_mut() {
        assert_eq!((silence(link), link.stats().frames_in), (0, 0), "{}", link.describe());
    }
    assert_eq!((links[0].stats().frames_out, links[0].stats().dropped_out), (1, 0));
}

fn wrong_lengths(links: &mut [Box<dyn Link>]) {
    let (a, b) = pair(links);
    let most = ETHERNET + a.mtu();
    for length in [1, 13, most + 1, usize::MAX] {
        assert!(a.tx(&mut |buffer| {
            assert_eq!(buffer.len(), most);
            length
        }));
    }
    assert!(!a.tx(&mut |_| 0), "nothing to send");
    a.flush();
    assert_eq!(silence(b), 0);
    assert_eq!((a.stats().frames_out, a.stats().dropped_out), (0, 4));
}

/// Both ways at once, never more than a window on its way, so that no buffer of a carrier must overflow.
fn thousands(links: &mut [Box<dyn Link>]) {
    const FRAMES: u32 = 5000;
    const WINDOW: u32 = 40;
    let length = |number: u32| 60 + number as usize % 1400;
    let macs = [links[0].mac(), links[1].mac()];
    let (mut sent, mut received) = ([0; 2], [0; 2]);
    let deadline = Instant::now() + PATIENCE;
    while received != [FRAMES; 2] {
        assert!(Instant::now() < deadline, "sent {sent:?}, received {received:?}");
        for i in 0..2 {
            while sent[i] < FRAMES && sent[i] < received[1 - i] + WINDOW {
                send(&mut links[i], &frame(macs[i], macs[1 - i], length(sent[i]), sent[i]));
                sent[i] += 1;
            }
            links[i].flush();
        }
        for i in 0..2 {
            links[i].rx(&mut |got| {
                assert!(got == frame(macs[1 - i], macs[i], length(received[i]), received[i]), "frame {}", received[i]);
                received[i] += 1;
            });
        }
    }
    let bytes = (0..FRAMES).map(|number| length(number) as u64).sum::<u64>();
    for link in &links[..2] {
        let stats = link.stats();
        assert_eq!((stats.frames_out, stats.bytes_out, stats.dropped_out), (FRAMES.into(), bytes, 0));
        assert_eq!((stats.frames_in, stats.bytes_in, stats.dropped_in), (FRAMES.into(), bytes, 0));
    }
}

fn wait_times_out(links: &mut [Box<dyn Link>]) {
    for time in [Duration::ZERO, Duration::from_micros(300), Duration::from_millis(20)] {
        let started = Instant::now();
        links[0].wait(Some(time));
        assert!(started.elapsed() >= time, "{:?} of {time:?}", started.elapsed());
    }
}

fn wake_ends_wait(links: &mut [Box<dyn Link>]) {
    let (a, _) = pair(links);
    let waker = a.waker();
    waker.wake();
    a.wait(None);
    let started = Instant::now();
    a.wait(Some(Duration::from_millis(20)));
    assert!(started.elapsed() >= Duration::from_millis(20), "one wake ended two waits");
    for _ in 0..5 {
        let waker = waker.clone();
        let other = thread::spawn(move || {
            thread::sleep(Duration::from_millis(10));
            waker.wake();
        });
        a.wait(Some(PATIENCE));
        other.join().expect("the other thread only wakes");
    }
    assert!(started.elapsed() < PATIENCE, "a wait was not ended");
}

fn frame_ends_wait(links: &mut [Box<dyn Link>]) {
    let [a, b, ..] = links else { panic!("two ends") };
    let sent = frame(a.mac(), b.mac(), 100, 1);
    thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(Duration::from_millis(10));
            send(a, &sent);
            a.flush();
        });
        let started = Instant::now();
        while b.rx(&mut |_| ()) == 0 {
            assert!(started.elapsed() < PATIENCE, "no frame");
            b.wait(Some(PATIENCE));
        }
        assert!(started.elapsed() < PATIENCE, "the wait was not ended");
    });
}

//! Packet sockets between two network namespaces. These are made here, with random names, and nothing else is touched.
//!
//! It needs root and iproute2. Without them it says so and passes, unless `DUCKPOND_REQUIRE_NET=1`.

use std::fs::File;
use std::io::Write;
use std::os::fd::AsFd;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use link::{AfPacket, BROADCAST, Link, LinkError, Spec};
use rustix::thread::{CapabilitySet, CapabilitySets, LinkNameSpaceType, move_into_link_name_space, set_capabilities};

mod common;

use common::{ETHERTYPE, frame, receive, send, silence, suite};

/// The interface's name in either namespace.
const INTERFACE: &str = "dp0";

/// Two namespaces and a veth pair between them; removed when dropped.
struct Net {
    names: [String; 2],
}

impl Net {
    /// `None`, said aloud, if this machine or user cannot.
    fn new() -> Option<Net> {
        let missing = |what: &str| {
            // Not by `println!`, whose lines a passing test keeps to itself.
            let _ = writeln!(std::io::stderr(), "packet sockets are not tested: {what}");
            let required = std::env::var("DUCKPOND_REQUIRE_NET").is_ok_and(|value| value == "1");
            assert!(!required, "DUCKPOND_REQUIRE_NET is set, and {what}");
            None
        };
        if !rustix::process::geteuid().is_root() {
            return missing("only root may make network namespaces");
        }
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let time = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |time| time.subsec_nanos());
        let (id, next) = (std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let net = Net { names: ["a", "b"].map(|end| format!("dp-{id:x}-{time:x}-{next}-{end}")) };
        for name in &net.names {
            if let Err(why) = ip(&format!("netns add {name}")) {
                return missing(&why);
            }
        }
        net.connect();
        Some(net)
    }

    /// Makes the veth pair.
    fn connect(&self) {
        let [a, b] = &self.names;
        self.ip(&format!("-n {a} link add {INTERFACE} mtu 9600 type veth peer name {INTERFACE} mtu 9600 netns {b}"));
        self.names.iter().for_each(|name| self.ip(&format!("-n {name} link set {INTERFACE} up")));
    }

    fn ip(&self, arguments: &str) {
        ip(arguments).unwrap_or_else(|why| panic!("{why}"));
    }

    /// Runs `open` in the namespace of an end. A socket stays in the namespace that it was opened in.
    fn within<T: Send>(&self, end: usize, open: impl FnOnce() -> T + Send) -> T {
        let namespace = File::open(format!("/run/netns/{}", self.names[end])).expect("ip netns has made it");
        let enter = || {
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).expect("root may");
            open()
        };
        thread::scope(|scope| scope.spawn(enter).join().expect("opening does not panic"))
    }

    fn open(&self, end: usize) -> AfPacket {
        self.within(end, || AfPacket::open(INTERFACE, ETHERTYPE)).unwrap_or_else(|error| panic!("{error}"))
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        // A namespace lives as long as a socket in it; the pair must not.
        let _ = ip(&format!("-n {} link del {INTERFACE}", self.names[0]));
        for name in &self.names {
            let _ = ip(&format!("netns del {name}"));
        }
    }
}

fn ip(arguments: &str) -> Result<(), String> {
    let output = Command::new("ip").args(arguments.split(' ')).output().map_err(|error| format!("`ip`: {error}"))?;
    let said = || format!("`ip {arguments}` says: {}", String::from_utf8_lossy(&output.stderr).trim());
    output.status.success().then_some(()).ok_or_else(said)
}

#[test]
fn packet_sockets_pass_the_suite() {
    let Some(net) = Net::new() else { return };
    suite(&mut || (0..2).map(|end| Box::new(net.open(end)) as Box<dyn Link>).collect());
}

#[test]
fn an_interface_says_its_address_and_mtu() {
    let Some(net) = Net::new() else { return };
    let link = net.open(0);
    assert_eq!((link.mtu(), link.describe().as_str()), (9600, INTERFACE));
    assert!(link.mac() != net.open(1).mac() && !link.mac().is_multicast());
    net.ip(&format!("-n {} link set {INTERFACE} mtu 20000", net.names[0]));
    assert_eq!(net.open(0).mtu(), 9600, "the longest of any use");
    let spec: Spec = format!("eth:{INTERFACE}").parse().expect("a form");
    for (asked, most) in [(None, 9600), (Some(1500), 1500), (Some(12_000), 9600)] {
        assert_eq!(net.within(0, || spec.open(ETHERTYPE, asked)).expect("a link").mtu(), most);
    }
}

#[test]
fn other_types_and_what_this_end_sends_stay_out() {
    const ALL_TYPES: u16 = 3;
    let Some(net) = Net::new() else { return };
    let (mut a, mut b) = (net.open(0), net.open(1));
    // Even a socket that gets every type must not hear its own machine.
    let mut all = net.within(0, || AfPacket::open(INTERFACE, ALL_TYPES)).expect("a link");
    let ours = frame(a.mac(), BROADCAST, 100, 1);
    let mut other = ours.clone();
    other[12..14].copy_from_slice(&[0x88, 0xb6]);
    send(&mut a, &other);
    send(&mut a, &ours);
    a.flush();
    assert_eq!(receive(&mut b, 1), std::slice::from_ref(&ours));
    assert_eq!(silence(&mut b), 0);
    let mut heard = 0;
    while all.rx(&mut |frame| heard += usize::from(frame == ours || frame == other)) > 0 {}
    assert_eq!(heard, 0);
}

#[test]
fn a_link_for_several_types_hears_these_and_no_others() {
    let Some(net) = Net::new() else { return };
    let spec: Spec = format!("eth:{INTERFACE}").parse().expect("a form");
    let types = [0x0800, 0x0806, ETHERTYPE];
    let open = |end| net.within(end, || spec.open_for(&types, None)).expect("a link");
    let (mut a, mut b, mut beside) = (open(0), open(1), open(0));
    let of = |ethertype: u16, to| {
        let mut frame = frame(a.mac(), to, 100, 1);
        frame[12..14].copy_from_slice(&ethertype.to_be_bytes());
        frame
    };
    let sent = [0x0800, 0x86dd, 0x0806, ETHERTYPE, 0x88b6, 0x0801].map(|ethertype| of(ethertype, b.mac()));
    let to_others = of(0x0800, link::Mac([2, 9, 9, 9, 9, 9]));
    for frame in sent.iter().chain([&to_others, &sent[2]]) {
        a.tx(&mut |to| {
            to[..frame.len()].copy_from_slice(frame);
            frame.len()
        });
    }
    a.flush();
    let heard = receive(&mut b, 4);
    assert_eq!(heard, [&sent[0], &sent[2], &sent[3], &sent[2]].map(Clone::clone));
    assert_eq!((silence(&mut b), silence(&mut beside)), (0, 0), "nothing else, and nothing of its own machine's");
}

#[test]
fn an_interface_that_is_down_only_loses_frames() {
    let Some(net) = Net::new() else { return };
    let (mut a, mut b) = (net.open(0), net.open(1));
    let (there, back) = (frame(a.mac(), b.mac(), 100, 1), frame(b.mac(), a.mac(), 100, 2));
    net.ip(&format!("-n {} link set {INTERFACE} down", net.names[0]));
    send(&mut a, &there);
    a.flush();
    assert_eq!((silence(&mut a), a.stats().frames_out, a.stats().dropped_out), (0, 0, 1));
    net.ip(&format!("-n {} link set {INTERFACE} up", net.names[0]));
    send(&mut a, &there);
    a.flush();
    assert_eq!(receive(&mut b, 1), [there]);
    send(&mut b, &back);
    b.flush();
    assert_eq!(receive(&mut a, 1), [back]);
}

#[test]
fn an_interface_that_comes_back_under_another_number_is_used_again() {
    let Some(net) = Net::new() else { return };
    let (mut a, mut b) = (net.open(0), net.open(1));
    net.ip(&format!("-n {} link del {INTERFACE}", net.names[0]));
    let old = a.mac();
    let lost = frame(old, BROADCAST, 100, 1);
    send(&mut a, &lost);
    a.flush();
    assert_eq!(a.stats().dropped_out, 1);
    assert_eq!(silence(&mut b), 0);
    net.connect();
    // Both only listen and sleep; nobody sends until they had time to look.
    let deadline = Instant::now() + Duration::from_secs(10);
    let wait = |link: &mut AfPacket, until: Instant| {
        while Instant::now() < until {
            link.rx(&mut |_| ());
            link.wait(Some(until.saturating_duration_since(Instant::now())));
        }
    };
    wait(&mut a, Instant::now() + Duration::from_millis(1200));
    wait(&mut b, Instant::now() + Duration::from_millis(1200));
    assert!(a.mac() != old, "a new interface has a new address");
    let (there, back) = (frame(a.mac(), b.mac(), 100, 1), frame(b.mac(), a.mac(), 100, 2));
    send(&mut a, &there);
    a.flush();
    assert_eq!(receive(&mut b, 1), [there]);
    send(&mut b, &back);
    b.flush();
    assert_eq!(receive(&mut a, 1), [back]);
    assert!(Instant::now() < deadline);
}

#[test]
fn the_kernel_tells_what_it_had_no_room_for() {
    let Some(net) = Net::new() else { return };
    let (mut a, mut b) = (net.open(0), net.open(1));
    let sent = frame(a.mac(), b.mac(), 9000, 1);
    // More than twice the 64 MiB that links ask for.
    let count = 20_000;
    for _ in 0..count {
        send(&mut a, &sent);
    }
    a.flush();
    assert_eq!(a.stats().frames_out, count);
    let mut received = 0;
    while b.rx(&mut |_| received += 1) > 0 {}
    let dropped = b.stats().dropped_in;
    assert!(dropped > 0 && received > 0, "{dropped} dropped, {received} received");
    assert_eq!(received + dropped, count);
    assert_eq!(b.stats().dropped_in, dropped, "the kernel forgets what it has told; the link does not");
}

#[test]
fn what_cannot_be_opened_is_named() {
    let Some(net) = Net::new() else { return };
    let error = net.within(0, || AfPacket::open("dp-none", ETHERTYPE)).err().expect("no such interface");
    assert!(matches!(&error, LinkError::NoInterface { interface } if interface == "dp-none"), "{error}");
    let error = net.within(0, || AfPacket::open("longer-than-any-name", ETHERTYPE)).err().expect("no such interface");
    assert!(matches!(error, LinkError::NoInterface { .. }), "{error}");
}

#[test]
fn without_the_right_the_error_says_what_to_do() {
    let unprivileged = || {
        let none = CapabilitySet::empty();
        let sets = CapabilitySets { effective: none, permitted: none, inheritable: none };
        set_capabilities(None, sets).expect("anybody may give up rights");
        AfPacket::open("lo", ETHERTYPE).err().expect("no right to")
    };
    // Rights are a thread's: the others keep theirs.
    let error = thread::spawn(unprivileged).join().expect("it does not panic").to_string();
    assert!(error.contains("run as root") && error.contains("setcap cap_net_raw+ep"), "{error}");
}

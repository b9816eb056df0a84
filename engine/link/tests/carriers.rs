//! Carriers that need no rights: the suite of all carriers, and what only they do.

use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use link::{BROADCAST, Hub, Link, Mac, Udp};

mod common;

use common::{frame, receive, send, silence, suite};

const MTU: usize = 9600;

/// A free port on loopback.
fn any() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

#[test]
fn in_process_passes_the_suite() {
    suite(&mut || {
        let hub = Hub::new();
        (0..4).map(|i| Box::new(hub.port(Mac([2, 0, 0, 0, 0, i]), MTU)) as Box<dyn Link>).collect()
    });
}

/// All ends are told of all, themselves included.
#[test]
fn udp_passes_the_suite() {
    suite(&mut || {
        // Addresses that nothing else binds, so that each port is still free after it was found.
        let find = |i| {
            UdpSocket::bind(SocketAddr::from(([127, 77, 0, i], 0)))
                .expect("a socket")
                .local_addr()
                .expect("its address")
        };
        let addresses: Vec<SocketAddr> = (1..5).map(find).collect();
        let open = |at: &SocketAddr| Box::new(Udp::bind(*at, &addresses, None, MTU).expect("a link")) as Box<dyn Link>;
        addresses.iter().map(open).collect()
    });
}

#[test]
fn udp_answers_a_peer_that_it_was_not_told_of() {
    let mut known = Udp::bind(any(), &[], None, MTU).expect("a link");
    let mut stranger = Udp::bind(any(), &[known.local_addr()], None, MTU).expect("a link");
    let mut third = Udp::bind(any(), &[known.local_addr()], None, MTU).expect("a link");
    for link in [&mut stranger, &mut third] {
        let hello = frame(link.mac(), BROADCAST, 60, 1);
        send(link, &hello);
        link.flush();
        assert_eq!(receive(&mut known, 1), [hello]);
    }
    let answer = frame(known.mac(), stranger.mac(), 1000, 2);
    send(&mut known, &answer);
    known.flush();
    assert_eq!(receive(&mut stranger, 1), [answer]);
    assert_eq!(silence(&mut third), 0);
    assert_eq!(third.stats().dropped_in, 0);
}

#[test]
fn udp_survives_foreign_datagrams_and_a_closed_peer() {
    let gone = UdpSocket::bind(any()).expect("a socket").local_addr().expect("its address");
    let mut link = Udp::bind(any(), &[gone], None, 1500).expect("a link");
    let stranger = UdpSocket::bind(any()).expect("a socket");
    for number in 0..100 {
        let lost = frame(link.mac(), BROADCAST, 60, number);
        send(&mut link, &lost);
        link.flush();
        link.rx(&mut |_| ());
    }
    assert_eq!((link.stats().frames_out, link.stats().dropped_out), (100, 0));
    let wanted = frame(Mac([2, 0, 0, 0, 0, 1]), link.mac(), 200, 1);
    for datagram in [&[][..], &[7], &[7; 13], &[7; 1515], &[7; 60_000], &wanted] {
        stranger.send_to(datagram, link.local_addr()).expect("loopback takes it");
    }
    assert_eq!(receive(&mut link, 1), [wanted]);
    assert_eq!(link.stats().dropped_in, 5, "too short, or longer than the MTU");
}

#[test]
fn udp_counts_what_its_socket_had_no_room_for() {
    let mut link = Udp::bind(any(), &[], None, 1500).expect("a link");
    let stranger = UdpSocket::bind(any()).expect("a socket");
    let wanted = frame(Mac([2, 0, 0, 0, 0, 1]), link.mac(), 1000, 1);
    // The kernel charges at least twice the bytes, and the largest buffer that links ask for is 64 MiB, doubled.
    let count = 140_000;
    for _ in 0..count {
        stranger.send_to(&wanted, link.local_addr()).expect("loopback takes it");
    }
    let mut received = 0;
    while link.rx(&mut |_| received += 1) > 0 {}
    assert!(received > 0 && link.stats().dropped_in > 0, "{received} received, {:?}", link.stats());
    assert_eq!(received + link.stats().dropped_in, count);
}

#[test]
fn a_boxed_link_is_a_link() {
    let hub = Hub::new();
    let (a, mut b) = (hub.port(Mac([2, 0, 0, 0, 0, 1]), 500), hub.port(Mac([2, 0, 0, 0, 0, 2]), 500));
    let describe = a.describe();
    let mut boxed: Box<dyn Link> = Box::new(Box::new(a) as Box<dyn Link>);
    let sent = frame(boxed.mac(), b.mac(), 514, 1);
    send(&mut boxed, &sent);
    assert_eq!(receive(&mut b, 1), [sent]);
    boxed.wait(Some(Duration::ZERO));
    assert_eq!((boxed.mtu(), boxed.speed(), boxed.describe(), boxed.stats().frames_out), (500, 0, describe, 1));
}

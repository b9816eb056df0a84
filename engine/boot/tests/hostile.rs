//! Whatever comes, nothing panics, nothing grows without bound, and what is sent is well-formed.

mod common;

use common::{Bench, DUCK, DUCK_IP, SERVER_IP, config, datagram, dhcp};
use link::Mac;
use proptest::prelude::*;

/// Frames that are answered, to be damaged.
fn samples() -> Vec<Vec<u8>> {
    let request = "|\x01duck.efi|octet|blksize|1428|tsize|0|windowsize|8|".replace('|', "\0");
    let tftp = |ports, data: &[u8]| datagram(DUCK, [DUCK_IP, SERVER_IP], ports, data);
    let mut arp = vec![0; 60];
    arp[..6].fill(0xff);
    arp[6..12].copy_from_slice(&DUCK.0);
    arp[12..22].copy_from_slice(&[8, 6, 0, 1, 8, 0, 6, 4, 0, 1]);
    arp[22..28].copy_from_slice(&DUCK.0);
    arp[28..32].copy_from_slice(&DUCK_IP.octets());
    arp[38..42].copy_from_slice(&SERVER_IP.octets());
    let mut ping = tftp([8 << 8, 0], &[1; 40]);
    // An ICMP echo without a right sum; the damage below may find one.
    ping[23] = 1;
    vec![
        dhcp(DUCK, 1, true, &[(93, &[0, 7]), (60, b"PXEClient"), (97, &[1; 17])]),
        dhcp(DUCK, 3, false, &[(54, &[10, 21, 1, 1]), (50, &[10, 21, 1, 17])]),
        dhcp(Mac([2, 9, 9, 9, 9, 9]), 1, false, &[(250, &[1; 255]), (251, &[2; 255])]),
        tftp([1000, 69], request.as_bytes()),
        tftp([1000, 49_152], b"\0\x04\0\0"),
        tftp([1000, 49_152], b"\0\x04\0\x01"),
        tftp([1000, 49_152], b"\0\x05\0\x01stop\0"),
        arp,
        ping,
    ]
}

fn well_formed(frames: &[Vec<u8>]) {
    assert!(frames.len() <= 64, "{} frames for one", frames.len());
    for frame in frames {
        assert!((60..=1514).contains(&frame.len()) && frame[6..12] == common::SERVER.0);
        if frame[12..14] == [8, 0] && frame[23] == 17 {
            common::read(frame);
        }
    }
}

#[derive(Debug, Clone)]
struct Damage {
    sample: usize,
    bytes: Vec<(prop::sample::Index, u8)>,
    length: Option<prop::sample::Index>,
    /// Right sums, so that the damage is looked at.
    mend: bool,
    wait: u64,
}

fn damage() -> impl Strategy<Value = Damage> {
    let bytes = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6);
    let length = prop::option::weighted(0.2, any::<prop::sample::Index>());
    (0..samples().len(), bytes, length, any::<bool>(), 0..1000u64)
        .prop_map(|(sample, bytes, length, mend, wait)| Damage { sample, bytes, length, mend, wait })
}

fn mend(frame: &mut [u8]) {
    use smoltcp::wire::{Ipv4Packet, UdpPacket};
    if frame[12..14] != [8, 0] {
        return;
    }
    if let Ok(mut packet) = Ipv4Packet::new_checked(&mut frame[14..]) {
        let (from, to) = (packet.src_addr().into(), packet.dst_addr().into());
        packet.fill_checksum();
        if let Ok(mut udp) = UdpPacket::new_checked(packet.payload_mut()) {
            udp.fill_checksum(&from, &to);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn any_frames_are_survived(
        frames in prop::collection::vec((0..3usize, prop::collection::vec(any::<u8>(), 0..200)), 0..20),
    ) {
        let mut bench = Bench::new(config());
        for (kind, mut frame) in frames {
            if frame.len() >= 14 && kind > 0 {
                frame[..6].fill(0xff);
                frame[12..14].copy_from_slice(&[8, if kind == 1 { 0 } else { 6 }]);
            }
            well_formed(&bench.ask(&frame));
        }
    }

    #[test]
    fn damaged_frames_are_survived(all in prop::collection::vec(damage(), 0..30), adopt: bool) {
        let mut bench = Bench::new(config());
        if adopt {
            bench.service.set_adopt(Some([10, 21, 1, 200].into()..=[10, 21, 1, 210].into())).expect("of the subnet");
        }
        for damage in all {
            let mut frame = samples().swap_remove(damage.sample);
            for (at, byte) in &damage.bytes {
                // Mostly behind the Ethernet header, where there is more to get wrong.
                let at = 14 + at.index(frame.len() - 14);
                frame[at] = *byte;
            }
            if damage.mend {
                mend(&mut frame);
            }
            if let Some(length) = damage.length {
                frame.truncate(length.index(frame.len()));
            }
            bench.wait(damage.wait);
            well_formed(&bench.ask(&frame));
        }
        bench.events();
    }
}

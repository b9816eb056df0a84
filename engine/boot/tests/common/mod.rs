//! A client's frames, and a service to give them to.
#![allow(dead_code)]

use std::net::Ipv4Addr;
use std::sync::LazyLock;
use std::time::Duration;

use boot::{BIOS, BootFile, Config, EFI_X64, Files, Lease, Mac, Service};
use link::{BROADCAST, ETHERNET, ethernet};
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{IpProtocol, Ipv4Packet, Ipv4Repr, UdpPacket, UdpRepr};

pub const SERVER: Mac = Mac([2, 0, 0, 0, 0, 1]);
pub const DUCK: Mac = Mac([2, 0, 0, 0, 1, 7]);
pub const SERVER_IP: Ipv4Addr = Ipv4Addr::new(10, 21, 1, 1);
pub const DUCK_IP: Ipv4Addr = Ipv4Addr::new(10, 21, 1, 17);

/// Bytes that repeat nowhere soon.
pub fn content(length: usize) -> Vec<u8> {
    (0..length as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
}

pub fn config() -> Config {
    // Made once: one of them is large.
    static FILES: LazyLock<Files> = LazyLock::new(|| {
        let files = [("duck.efi", 5000), ("duck.0", 3000), ("empty", 0), ("exact", 1024), ("long", 40_000_000)];
        files.map(|(name, length)| (name.into(), content(length).into())).into()
    });
    let boot = |architecture, name: &str| BootFile { architecture, name: name.into() };
    Config {
        mac: SERVER,
        mtu: 1500,
        address: SERVER_IP,
        prefix: 24,
        leases: vec![Lease { mac: DUCK, address: DUCK_IP, name: "d7".into(), text: "key=00".into() }],
        adopt: None,
        files: FILES.clone(),
        boot_files: vec![boot(BIOS, "duck.0"), boot(EFI_X64[0], "duck.efi"), boot(EFI_X64[1], "duck.efi")],
    }
}

/// A frame with a datagram.
pub fn datagram(from: Mac, addresses: [Ipv4Addr; 2], ports: [u16; 2], data: &[u8]) -> Vec<u8> {
    let to = if addresses[1].is_broadcast() { BROADCAST } else { SERVER };
    let mut frame = vec![0; (ETHERNET + 28 + data.len()).max(60)];
    let payload = &mut frame[ETHERNET..];
    let [source, target] = addresses.map(Into::into);
    let sums = ChecksumCapabilities::default();
    let mut udp = UdpPacket::new_unchecked(&mut payload[20..28 + data.len()]);
    let header = UdpRepr { src_port: ports[0], dst_port: ports[1] };
    header.emit(&mut udp, &source, &target, data.len(), |room| room.copy_from_slice(data), &sums);
    let header = Ipv4Repr {
        src_addr: addresses[0],
        dst_addr: addresses[1],
        next_header: IpProtocol::Udp,
        payload_len: 8 + data.len(),
        hop_limit: 64,
    };
    header.emit(&mut Ipv4Packet::new_unchecked(payload), &sums);
    ethernet::close(&mut frame, ethernet::Header { to, from, ethertype: 0x0800 }, 28 + data.len());
    frame
}

/// What a frame with a datagram says.
#[derive(Debug, PartialEq, Eq)]
pub struct Said {
    pub to_mac: Mac,
    pub to: Ipv4Addr,
    pub ports: [u16; 2],
    pub data: Vec<u8>,
}

pub fn read(frame: &[u8]) -> Said {
    assert!((60..=1514).contains(&frame.len()), "{} bytes", frame.len());
    let header = ethernet::Header::parse(frame).expect("a frame");
    assert_eq!((header.from, header.ethertype), (SERVER, 0x0800));
    let packet = Ipv4Packet::new_checked(&frame[ETHERNET..]).expect("a packet");
    assert!(packet.verify_checksum() && packet.src_addr() == SERVER_IP);
    let udp = UdpPacket::new_checked(packet.payload()).expect("a datagram");
    assert!(udp.checksum() != 0 && udp.verify_checksum(&packet.src_addr().into(), &packet.dst_addr().into()));
    Said {
        to_mac: header.to,
        to: packet.dst_addr(),
        ports: [udp.src_port(), udp.dst_port()],
        data: udp.payload().to_vec(),
    }
}

/// A DHCP message of a client: its kind, more options.
pub fn dhcp(mac: Mac, kind: u8, broadcast: bool, options: &[(u8, &[u8])]) -> Vec<u8> {
    let mut data = vec![0; 240];
    data[..4].copy_from_slice(&[1, 1, 6, 0]);
    data[4..8].copy_from_slice(&0x1234_5678u32.to_be_bytes());
    data[10] = if broadcast { 0x80 } else { 0 };
    data[28..34].copy_from_slice(&mac.0);
    data[236..].copy_from_slice(&[0x63, 0x82, 0x53, 0x63]);
    data.extend([53, 1, kind]);
    for (kind, value) in options {
        data.extend([*kind, value.len() as u8]);
        data.extend(*value);
    }
    data.push(255);
    datagram(mac, [Ipv4Addr::UNSPECIFIED, Ipv4Addr::BROADCAST], [68, 67], &data)
}

/// Options of a DHCP message.
pub fn options(data: &[u8]) -> Vec<(u8, Vec<u8>)> {
    let (mut at, mut found) = (240, Vec::new());
    while data[at] != 255 {
        let length = usize::from(data[at + 1]);
        found.push((data[at], data[at + 2..at + 2 + length].to_vec()));
        at += 2 + length;
    }
    found
}

/// A service, what it sends, and the time.
pub struct Bench {
    pub service: Service,
    pub now: Duration,
}

impl Bench {
    pub fn new(config: boot::Config) -> Bench {
        Bench { service: Service::new(config).expect("a good configuration"), now: Duration::ZERO }
    }

    /// What it sends now.
    pub fn sent(&mut self) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        while self.service.transmit(self.now, &mut |length, fill| {
            let mut frame = vec![0xee; length];
            fill(&mut frame);
            frames.push(frame);
        }) {}
        frames
    }

    /// What it answers to a frame.
    pub fn ask(&mut self, frame: &[u8]) -> Vec<Vec<u8>> {
        self.service.handle(self.now, frame);
        self.sent()
    }

    pub fn wait(&mut self, millis: u64) {
        self.now += Duration::from_millis(millis);
    }

    /// A datagram of the duck's to a port, and the data of what comes back.
    pub fn tftp(&mut self, ports: [u16; 2], data: &[u8]) -> Vec<Said> {
        let frame = datagram(DUCK, [DUCK_IP, SERVER_IP], ports, data);
        self.ask(&frame).iter().map(|frame| read(frame)).collect()
    }

    pub fn events(&mut self) -> Vec<String> {
        std::iter::from_fn(|| self.service.poll_event()).map(|event| event.to_string()).collect()
    }
}

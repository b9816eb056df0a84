//! Frames as the service sees them: what it may answer, and how an answer is wrapped.

use std::net::Ipv4Addr;

use link::{BROADCAST, ETHERNET, Mac, ethernet};
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    ArpOperation, ArpPacket, ArpRepr, EthernetAddress, Icmpv4Message, Icmpv4Packet, Icmpv4Repr, IpProtocol, Ipv4Packet,
    Ipv4Repr, UdpPacket, UdpRepr,
};

/// Ethernet's types.
const IPV4: u16 = 0x0800;
const ARP: u16 = 0x0806;
/// Bytes of an ARP packet for IPv4 over Ethernet, of an IPv4 header without options, of a UDP header, of an ICMP echo's header.
const ARP_LENGTH: usize = 28;
const IPV4_LENGTH: usize = 20;
const UDP_LENGTH: usize = 8;
const ECHO_LENGTH: usize = 8;
/// Bytes in front of a datagram's payload, after the Ethernet header.
pub(crate) const DATAGRAM: usize = IPV4_LENGTH + UDP_LENGTH;

/// This end.
#[derive(Clone, Copy)]
pub(crate) struct Own {
    pub mac: Mac,
    pub address: Ipv4Addr,
    pub broadcast: Ipv4Addr,
}

/// The other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Peer {
    pub mac: Mac,
    pub address: Ipv4Addr,
}

/// What a frame says that may be answered.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Incoming<'a> {
    /// Who has this end's address?
    WhoHas { from: Peer },
    /// An echo is wanted.
    Echo { from: Peer, ident: u16, sequence: u16, data: &'a [u8] },
    /// A datagram. Ports: from, to.
    Datagram { from: Peer, ports: [u16; 2], to_all: bool, data: &'a [u8] },
}

/// Whether a frame is of a type that is the service's business.
pub(crate) fn is_ours(frame: &[u8]) -> bool {
    matches!(frame.get(12..14), Some([0x08, 0x00 | 0x06]))
}

/// Reads a frame. `None`: there is nothing to answer.
pub(crate) fn parse<'a>(own: &Own, frame: &'a [u8]) -> Option<Incoming<'a>> {
    let header = ethernet::Header::parse(frame)?;
    if (header.to != own.mac && header.to != BROADCAST) || header.from.is_multicast() || header.from == own.mac {
        return None;
    }
    let payload = &frame[ETHERNET..];
    match header.ethertype {
        ARP => parse_arp(own, header.from, payload),
        IPV4 => parse_ipv4(own, header, payload),
        _ => None,
    }
}

fn parse_arp<'a>(own: &Own, from: Mac, payload: &[u8]) -> Option<Incoming<'a>> {
    let packet = ArpPacket::new_checked(payload).ok()?;
    let ArpRepr::EthernetIpv4 { operation, source_hardware_addr, source_protocol_addr, target_protocol_addr, .. } =
        ArpRepr::parse(&packet).ok()?
    else {
        return None;
    };
    let asks = operation == ArpOperation::Request && target_protocol_addr == own.address;
    let honest = source_hardware_addr.0 == from.0 && source_protocol_addr != own.address;
    (asks && honest).then_some(Incoming::WhoHas { from: Peer { mac: from, address: source_protocol_addr } })
}

fn parse_ipv4<'a>(own: &Own, header: ethernet::Header, payload: &'a [u8]) -> Option<Incoming<'a>> {
    let packet = Ipv4Packet::new_checked(payload).ok()?;
    let to = packet.dst_addr();
    let to_all = to == own.broadcast || to.is_broadcast();
    let whole = packet.version() == 4 && !packet.more_frags() && packet.frag_offset() == 0;
    if !whole || !packet.verify_checksum() || !(to_all || to == own.address) || packet.src_addr() == own.address {
        return None;
    }
    let from = Peer { mac: header.from, address: packet.src_addr() };
    let data = packet.payload();
    match packet.next_header() {
        IpProtocol::Udp => {
            let udp = UdpPacket::new_checked(data).ok()?;
            // What comes from a kernel on this same machine has only the sum of the addresses: a card would have done the rest.
            let (source, target) = (from.address.into(), to.into());
            let whole = udp.verify_checksum(&source, &target) || udp.verify_partial_checksum(&source, &target);
            let ports = [udp.src_port(), udp.dst_port()];
            whole.then_some(Incoming::Datagram { from, ports, to_all, data: udp.payload() })
        }
        IpProtocol::Icmp if !to_all => {
            let icmp = Icmpv4Packet::new_checked(data).ok().filter(|_| data.len() >= ECHO_LENGTH)?;
            let asks = icmp.msg_type() == Icmpv4Message::EchoRequest && icmp.msg_code() == 0;
            let (ident, sequence) =
                (asks && icmp.verify_checksum()).then(|| (icmp.echo_ident(), icmp.echo_seq_no()))?;
            Some(Incoming::Echo { from, ident, sequence, data: &data[ECHO_LENGTH..] })
        }
        _ => None,
    }
}

/// Bytes of a frame with a payload of so many bytes after its Ethernet header.
pub(crate) fn length(payload: usize) -> usize {
    (ETHERNET + payload).max(ethernet::SHORTEST)
}

/// Bytes of a frame with a datagram of so many bytes.
pub(crate) fn datagram_length(data: usize) -> usize {
    length(DATAGRAM + data)
}

/// "I have it."
pub(crate) fn emit_arp(frame: &mut [u8], own: &Own, to: Peer) -> usize {
    let answer = ArpRepr::EthernetIpv4 {
        operation: ArpOperation::Reply,
        source_hardware_addr: EthernetAddress(own.mac.0),
        source_protocol_addr: own.address,
        target_hardware_addr: EthernetAddress(to.mac.0),
        target_protocol_addr: to.address,
    };
    answer.emit(&mut ArpPacket::new_unchecked(&mut frame[ETHERNET..][..ARP_LENGTH]));
    ethernet::close(frame, ethernet::Header { to: to.mac, from: own.mac, ethertype: ARP }, ARP_LENGTH)
}

/// The echo; `None` if it does not fit.
pub(crate) fn emit_echo(
    frame: &mut [u8],
    own: &Own,
    to: Peer,
    ident: u16,
    sequence: u16,
    data: &[u8],
) -> Option<usize> {
    let payload = ECHO_LENGTH + data.len();
    let answer = Icmpv4Repr::EchoReply { ident, seq_no: sequence, data };
    let room = frame.get_mut(ETHERNET + IPV4_LENGTH..)?.get_mut(..payload)?;
    answer.emit(&mut Icmpv4Packet::new_unchecked(room), &ChecksumCapabilities::default());
    Some(emit_ipv4(frame, own, to, IpProtocol::Icmp, payload))
}

/// A datagram of `length` bytes, which `fill` writes. The frame must have room for [`datagram_length`].
pub(crate) fn emit_datagram(
    frame: &mut [u8],
    own: &Own,
    ports: [u16; 2],
    to: Peer,
    length: usize,
    fill: impl FnOnce(&mut [u8]),
) -> usize {
    let header = UdpRepr { src_port: ports[0], dst_port: ports[1] };
    let mut room = UdpPacket::new_unchecked(&mut frame[ETHERNET + IPV4_LENGTH..][..UDP_LENGTH + length]);
    let (from, address) = (own.address.into(), to.address.into());
    header.emit(&mut room, &from, &address, length, fill, &ChecksumCapabilities::default());
    emit_ipv4(frame, own, to, IpProtocol::Udp, UDP_LENGTH + length)
}

fn emit_ipv4(frame: &mut [u8], own: &Own, to: Peer, protocol: IpProtocol, length: usize) -> usize {
    let header = Ipv4Repr {
        src_addr: own.address,
        dst_addr: to.address,
        next_header: protocol,
        payload_len: length,
        hop_limit: 64,
    };
    let mut room = Ipv4Packet::new_unchecked(&mut frame[ETHERNET..][..IPV4_LENGTH]);
    header.emit(&mut room, &ChecksumCapabilities::default());
    ethernet::close(frame, ethernet::Header { to: to.mac, from: own.mac, ethertype: IPV4 }, IPV4_LENGTH + length)
}

/// Answers that wait to be sent, at most so many.
pub(crate) const WAITING: usize = 16;

/// Finished frames that wait to be sent, in memory that never grows.
pub(crate) struct Outbox {
    bytes: Box<[u8]>,
    size: usize,
    lengths: [usize; WAITING],
    first: usize,
    count: usize,
}

impl Outbox {
    pub fn new(mtu: usize) -> Outbox {
        let size = ETHERNET + mtu;
        Outbox { bytes: vec![0; size * WAITING].into(), size, lengths: [0; WAITING], first: 0, count: 0 }
    }

    /// Adds what `fill` writes, unless it writes nothing or nothing more has room: whoever asked asks again.
    pub fn put(&mut self, fill: impl FnOnce(&mut [u8]) -> usize) {
        if self.count < WAITING {
            let at = (self.first + self.count) % WAITING;
            self.lengths[at] = fill(&mut self.bytes[at * self.size..][..self.size]).min(self.size);
            self.count += usize::from(self.lengths[at] > 0);
        }
    }

    /// Takes the oldest out.
    pub fn take(&mut self) -> Option<&[u8]> {
        let at = self.first;
        (self.count > 0).then_some(())?;
        (self.first, self.count) = ((at + 1) % WAITING, self.count - 1);
        Some(&self.bytes[at * self.size..][..self.lengths[at]])
    }

    pub fn is_empty(&self) -> bool {
        self.count == 0
    }
}

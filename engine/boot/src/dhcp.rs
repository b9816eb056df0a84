//! DHCP (RFC 2131, 2132) with what PXE adds (RFC 4578): requests read, answers written.

use std::net::Ipv4Addr;

use link::Mac;
use smoltcp::wire::{ArpHardware, DhcpFlags, DhcpMessageType, DhcpOpCode, DhcpOption, DhcpPacket, EthernetAddress};

/// Options by number.
mod option {
    pub const MASK: u8 = 1;
    pub const HOST_NAME: u8 = 12;
    pub const BROADCAST: u8 = 28;
    pub const VENDOR: u8 = 43;
    pub const REQUESTED: u8 = 50;
    pub const TERM: u8 = 51;
    pub const KIND: u8 = 53;
    pub const SERVER: u8 = 54;
    pub const CLASS: u8 = 60;
    pub const TFTP_SERVER: u8 = 66;
    pub const BOOT_FILE: u8 = 67;
    pub const ARCHITECTURE: u8 = 93;
    pub const MACHINE_ID: u8 = 97;
    pub const TEXT: u8 = 224;
}

/// Where servers and clients listen.
pub(crate) const SERVER_PORT: u16 = 67;
pub(crate) const CLIENT_PORT: u16 = 68;
/// What tells DHCP from the older BOOTP.
const MAGIC: u32 = 0x6382_5363;
/// How a client that boots over the network begins to say what it is.
const PXE: &[u8] = b"PXEClient";
/// To clients of PXE: take the boot file and no other way of finding one (option 6, discovery control, bit 3), the end.
const BOOT_AT_ONCE: [u8; 4] = [6, 1, 8, 255];
/// A machine's id: its type and 16 bytes.
const ID_MOST: usize = 17;
/// Where options and the boot file's name begin, and its room.
const OPTIONS: usize = 240;
const FILE: std::ops::Range<usize> = 108..236;
/// Bytes of an answer: what BOOTP's readers expect at least, and every client of DHCP takes at most.
const SHORTEST: usize = 300;
const LONGEST: usize = 548;

/// A client's message.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Request<'a> {
    pub kind: DhcpMessageType,
    pub id: u32,
    pub mac: Mac,
    /// The address that it has already.
    pub has: Ipv4Addr,
    pub wants: Option<Ipv4Addr>,
    /// The server that it has chosen.
    pub server: Option<Ipv4Addr>,
    pub architecture: Option<u16>,
    pub is_pxe: bool,
    pub machine: Option<&'a [u8]>,
    /// It cannot yet receive frames to its future address.
    broadcast: bool,
}

impl<'a> Request<'a> {
    /// `None` for what is none, or came through a relay.
    pub fn parse(data: &'a [u8]) -> Option<Request<'a>> {
        let packet = DhcpPacket::new_checked(data).ok()?;
        let ethernet = packet.hardware_type() == ArpHardware::Ethernet && packet.hardware_len() == 6;
        let asks = packet.opcode() == DhcpOpCode::Request && packet.magic_number() == MAGIC;
        if !asks || !ethernet || !packet.relay_agent_ip().is_unspecified() {
            return None;
        }
        let mut request = Request {
            kind: DhcpMessageType::Unknown(0),
            id: packet.transaction_id(),
            mac: Mac(packet.client_hardware_address().0),
            has: packet.client_ip(),
            wants: None,
            server: None,
            architecture: None,
            is_pxe: false,
            machine: None,
            broadcast: packet.flags().contains(DhcpFlags::BROADCAST),
        };
        // Not `packet.options()`, which borrows the view: what it gives may live as long as the bytes.
        for (kind, value) in options(&data[OPTIONS..]) {
            match (kind, value) {
                (option::KIND, &[kind]) => request.kind = kind.into(),
                (option::REQUESTED, &[a, b, c, d]) => request.wants = Some([a, b, c, d].into()),
                (option::SERVER, &[a, b, c, d]) => request.server = Some([a, b, c, d].into()),
                (option::ARCHITECTURE, &[high, low, ..]) => {
                    request.architecture = Some(u16::from_be_bytes([high, low]))
                }
                (option::CLASS, class) => request.is_pxe = class.starts_with(PXE),
                (option::MACHINE_ID, id) => request.machine = Some(id).filter(|id| id.len() <= ID_MOST),
                _ => {}
            }
        }
        Some(request)
    }
}

/// Options up to the end, or up to the first that is cut off.
fn options(mut bytes: &[u8]) -> impl Iterator<Item = (u8, &[u8])> {
    std::iter::from_fn(move || {
        while let [0, rest @ ..] = bytes {
            bytes = rest;
        }
        let &[kind, length, ref rest @ ..] = bytes else { return None };
        if kind == 255 {
            return None;
        }
        let (value, rest) = rest.split_at_checked(length.into())?;
        bytes = rest;
        Some((kind, value))
    })
}

/// What an answer says.
pub(crate) struct Answer<'a> {
    pub kind: DhcpMessageType,
    pub request: &'a Request<'a>,
    pub server: Ipv4Addr,
    pub mask: Ipv4Addr,
    pub broadcast: Ipv4Addr,
    /// The address given; `None`: none is.
    pub address: Option<Ipv4Addr>,
    pub term: u32,
    pub name: Option<&'a str>,
    pub boot_file: Option<&'a str>,
    pub text: Option<&'a str>,
}

impl Answer<'_> {
    /// Where it goes to (RFC 2131, 4.1): `true` for everyone.
    pub fn goes_to(&self) -> Option<Ipv4Addr> {
        if self.kind == DhcpMessageType::Nak {
            None
        } else if !self.request.has.is_unspecified() {
            Some(self.request.has)
        } else if self.request.broadcast {
            None
        } else {
            self.address
        }
    }

    /// The answer's bytes.
    pub fn to_bytes(&self) -> ([u8; LONGEST], usize) {
        let mut bytes = [0; LONGEST];
        let server = self.server.octets();
        let nak = self.kind == DhcpMessageType::Nak;
        let mut packet = DhcpPacket::new_unchecked(&mut bytes[..]);
        packet.set_opcode(DhcpOpCode::Reply);
        packet.set_hardware_type(ArpHardware::Ethernet);
        packet.set_hardware_len(6);
        packet.set_transaction_id(self.request.id);
        packet.set_client_hardware_address(EthernetAddress(self.request.mac.0));
        packet.set_magic_number(MAGIC);
        packet.set_flags(if self.request.broadcast || nak { DhcpFlags::BROADCAST } else { DhcpFlags::empty() });
        if !nak {
            packet.set_client_ip(self.request.has);
            packet.set_your_ip(self.address.unwrap_or(Ipv4Addr::UNSPECIFIED));
            packet.set_server_ip(self.server);
        }
        let mut writer = packet.options_mut();
        // Names and texts were checked to be so short that all fits; one that did not would only be missing.
        let mut left = LONGEST - OPTIONS;
        let mut put = |kind, data: &[u8]| {
            if writer.emit(DhcpOption { kind, data }).is_ok() {
                left -= 2 + data.len();
            }
        };
        put(option::KIND, &[self.kind.into()]);
        put(option::SERVER, &server);
        if !nak {
            self.put_options(&mut put);
        }
        let _ = writer.end();
        let length = (LONGEST - left + 1).clamp(SHORTEST, LONGEST);
        if let (Some(file), false) = (self.boot_file, nak) {
            bytes[FILE][..file.len()].copy_from_slice(file.as_bytes());
        }
        (bytes, length)
    }

    fn put_options(&self, put: &mut impl FnMut(u8, &[u8])) {
        if self.address.is_some() {
            put(option::TERM, &self.term.to_be_bytes());
        }
        put(option::MASK, &self.mask.octets());
        put(option::BROADCAST, &self.broadcast.octets());
        if let Some(name) = self.name {
            put(option::HOST_NAME, name.as_bytes());
        }
        if let Some(file) = self.boot_file {
            put(option::TFTP_SERVER, self.server.to_string().as_bytes());
            put(option::BOOT_FILE, file.as_bytes());
        }
        if self.request.is_pxe {
            put(option::CLASS, PXE);
            put(option::VENDOR, &BOOT_AT_ONCE);
            if let Some(id) = self.request.machine {
                put(option::MACHINE_ID, id);
            }
        }
        if let Some(text) = self.text {
            put(option::TEXT, text.as_bytes());
        }
    }
}

//! The header of an Ethernet II frame around a protocol's bytes, as every carrier of raw frames writes and reads it. Tags (802.1Q) and
//! checksums are left out: no carrier shows them.

use crate::duck::Address;

/// Bytes of an Ethernet header: receiver, sender, type.
pub const ETHERNET: usize = 14;
/// Shortest frame, without its checksum: what is shorter is padded.
pub const SHORTEST: usize = 60;
/// The address of everyone.
pub const BROADCAST: Address = 0xffff_ffff_ffff;

/// The first [`ETHERNET`] bytes of a frame. Addresses are hardware addresses as numbers, see [`address`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// Who gets it.
    pub to: Address,
    /// Who sends it.
    pub from: Address,
    /// What follows the header.
    pub ethertype: u16,
}

impl Header {
    /// Reads the header of a frame; `None` if it is too short to have one.
    pub fn parse(frame: &[u8]) -> Option<Header> {
        let (to, rest) = frame.split_first_chunk::<6>()?;
        let (from, rest) = rest.split_first_chunk::<6>()?;
        let ethertype = rest.first_chunk::<2>()?;
        Some(Header { to: address(*to), from: address(*from), ethertype: u16::from_be_bytes(*ethertype) })
    }

    /// The header's bytes.
    pub fn to_bytes(&self) -> [u8; ETHERNET] {
        let mut bytes = [0; ETHERNET];
        bytes[..6].copy_from_slice(&mac(self.to));
        bytes[6..12].copy_from_slice(&mac(self.from));
        bytes[12..].copy_from_slice(&self.ethertype.to_be_bytes());
        bytes
    }
}

/// A hardware address as a number: its first byte is the highest of six.
pub fn address(mac: [u8; 6]) -> Address {
    mac.iter().fold(0, |number, &byte| number << 8 | Address::from(byte))
}

/// The hardware address in the low 48 bits of a number; higher ones are ignored.
pub fn mac(address: Address) -> [u8; 6] {
    let [_, _, bytes @ ..] = address.to_be_bytes();
    bytes
}

/// Sender and payload of a frame of this type; `None` for another, or for bytes that are no frame.
pub fn open(frame: &[u8], ethertype: u16) -> Option<(Address, &[u8])> {
    let header = Header::parse(frame).filter(|header| header.ethertype == ethertype)?;
    Some((header.from, &frame[ETHERNET..]))
}

/// Completes a frame whose payload of that many bytes lies behind the place for `header`: writes it, and zeroes as padding. Returns the
/// frame's length.
///
/// # Panics
/// If `frame` is shorter than header and payload.
pub fn close(frame: &mut [u8], header: Header, payload: usize) -> usize {
    frame[..ETHERNET].copy_from_slice(&header.to_bytes());
    let end = ETHERNET + payload;
    let padded = end.max(SHORTEST.min(frame.len()));
    frame[end..padded].fill(0);
    padded
}

#[cfg(test)]
mod tests {
    use super::*;

    const FROM: [u8; 6] = [2, 0, 0, 0, 0, 7];

    #[test]
    fn a_header_comes_back_from_its_bytes() {
        let header = Header { to: BROADCAST, from: address(FROM), ethertype: 0x88b5 };
        let bytes = header.to_bytes();
        assert_eq!(bytes, [255, 255, 255, 255, 255, 255, 2, 0, 0, 0, 0, 7, 0x88, 0xb5]);
        assert_eq!(Header::parse(&bytes), Some(header));
        assert_eq!(Header::parse(&bytes[..13]), None);
    }

    #[test]
    fn an_address_is_a_number_of_six_bytes() {
        assert_eq!(address([0xa0, 0xb1, 2, 0, 0, 0xff]), 0xa0b1_0200_00ff);
        assert_eq!(mac(0xdead_a0b1_0200_00ff), [0xa0, 0xb1, 2, 0, 0, 0xff]);
    }

    #[test]
    fn a_closed_frame_is_padded_and_opened_by_its_type_alone() {
        let header = Header { to: BROADCAST, from: address(FROM), ethertype: 0x88b5 };
        for payload in [0, 45, 46, 47, 80] {
            let mut frame = [0xaa; 100];
            let length = close(&mut frame, header, payload);
            assert_eq!(length, SHORTEST.max(ETHERNET + payload));
            assert!(frame[ETHERNET..][..payload].iter().all(|&byte| byte == 0xaa));
            assert!(frame[ETHERNET + payload..length].iter().all(|&byte| byte == 0));
            assert_eq!(open(&frame[..length], 0x88b5), Some((address(FROM), &frame[ETHERNET..length])));
            assert_eq!(open(&frame[..length], 0x0800), None);
        }
        assert_eq!(open(&[0; 13], 0), None);
        assert_eq!(close(&mut [0; 40], header, 10), 40);
    }
}

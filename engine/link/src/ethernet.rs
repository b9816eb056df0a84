//! The header of an Ethernet II frame with its addresses as [`Mac`], and their text. The bytes are [`wire::ethernet`]'s, which ducks without
//! an operating system use as well.

use std::fmt;
use std::str::FromStr;

use wire::ethernet;
pub use wire::ethernet::SHORTEST;

use crate::{BROADCAST, ETHERNET, Mac};

/// The first [`ETHERNET`] bytes of a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// Who gets it.
    pub to: Mac,
    /// Who sends it.
    pub from: Mac,
    /// What follows the header.
    pub ethertype: u16,
}

impl Header {
    /// Reads the header of a frame; `None` if it is too short to have one.
    pub fn parse(frame: &[u8]) -> Option<Header> {
        let ethernet::Header { to, from, ethertype } = ethernet::Header::parse(frame)?;
        Some(Header { to: Mac::from_u64(to), from: Mac::from_u64(from), ethertype })
    }

    /// The header's bytes.
    pub fn to_bytes(&self) -> [u8; ETHERNET] {
        self.numbers().to_bytes()
    }

    fn numbers(&self) -> ethernet::Header {
        ethernet::Header { to: self.to.to_u64(), from: self.from.to_u64(), ethertype: self.ethertype }
    }

    /// Writes the header to the front of `frame` and returns the room for the payload; `None`, with nothing written, if there is too little room.
    pub fn emit<'a>(&self, frame: &'a mut [u8]) -> Option<&'a mut [u8]> {
        let (header, payload) = frame.split_first_chunk_mut::<ETHERNET>()?;
        *header = self.to_bytes();
        Some(payload)
    }
}

/// Sender and payload of a frame of this type; `None` for another, or for bytes that are no frame.
pub fn open(frame: &[u8], ethertype: u16) -> Option<(Mac, &[u8])> {
    ethernet::open(frame, ethertype).map(|(from, payload)| (Mac::from_u64(from), payload))
}

/// Completes a frame whose payload of that many bytes lies behind the place for `header`: writes it, and zeroes as padding. Returns the
/// frame's length.
///
/// # Panics
/// If `frame` is shorter than header and payload.
pub fn close(frame: &mut [u8], header: Header, payload: usize) -> usize {
    ethernet::close(frame, header.numbers(), payload)
}

impl Mac {
    /// The address as a number: its first byte is the highest of six.
    pub fn to_u64(self) -> u64 {
        ethernet::address(self.0)
    }

    /// The address in the low 48 bits of a number; higher ones are ignored.
    pub fn from_u64(number: u64) -> Mac {
        Mac(ethernet::mac(number))
    }

    /// Whether it stands for a group, of which [`BROADCAST`] is one.
    pub fn is_multicast(self) -> bool {
        self.0[0] & 1 != 0
    }

    /// Whether it stands for everyone.
    pub fn is_broadcast(self) -> bool {
        self == BROADCAST
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

/// Text that is no hardware address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected a hardware address such as 02:00:00:00:00:01, found {found:?}")]
pub struct MacError {
    /// The text.
    pub found: String,
}

impl FromStr for Mac {
    type Err = MacError;

    fn from_str(text: &str) -> Result<Mac, MacError> {
        parse(text).ok_or_else(|| MacError { found: text.to_owned() })
    }
}

/// Six pairs of hexadecimal digits with colons between them, and nothing else.
fn parse(text: &str) -> Option<Mac> {
    let mut mac = Mac::default();
    let mut parts = text.split(':');
    for byte in &mut mac.0 {
        let part = parts.next()?;
        // `from_str_radix` alone would take "+1" and "1".
        if part.len() != 2 || !part.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return None;
        }
        *byte = u8::from_str_radix(part, 16).ok()?;
    }
    parts.next().is_none().then_some(mac)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_header_comes_back_from_its_bytes() {
        let header = Header { to: BROADCAST, from: Mac([2, 0, 0, 0, 0, 7]), ethertype: 0x88b5 };
        let mut frame = [0xaa; 20];
        assert_eq!(header.emit(&mut frame).map(|payload| payload.len()), Some(6));
        assert_eq!(frame[..14], [255, 255, 255, 255, 255, 255, 2, 0, 0, 0, 0, 7, 0x88, 0xb5]);
        assert_eq!(Header::parse(&frame), Some(header));
    }

    #[test]
    fn thirteen_bytes_are_no_header() {
        assert_eq!(Header::parse(&[0; 13]), None);
        let mut short = [0xaa; 13];
        assert!(Header::default().emit(&mut short).is_none());
        assert_eq!(short, [0xaa; 13]);
    }

    #[test]
    fn a_closed_frame_is_opened_by_its_type_alone() {
        let from = Mac([2, 0, 0, 0, 0, 7]);
        let mut frame = [0xaa; 100];
        let length = close(&mut frame, Header { to: BROADCAST, from, ethertype: 0x88b5 }, 2);
        assert_eq!(length, SHORTEST);
        assert_eq!(open(&frame[..length], 0x88b5), Some((from, &frame[ETHERNET..length])));
        assert_eq!(open(&frame[..length], 0x0800), None);
    }

    #[test]
    fn an_address_is_text_and_number() {
        let mac: Mac = "a0:B1:02:00:00:ff".parse().expect("an address");
        assert_eq!(mac, Mac([0xa0, 0xb1, 2, 0, 0, 0xff]));
        assert_eq!(mac.to_string(), "a0:b1:02:00:00:ff");
        assert_eq!(mac.to_u64(), 0xa0b1_0200_00ff);
        assert_eq!(Mac::from_u64(0xdead_a0b1_0200_00ff), mac);
        assert!(!mac.is_multicast() && Mac([3, 0, 0, 0, 0, 0]).is_multicast());
        assert!(BROADCAST.is_multicast() && BROADCAST.is_broadcast());
    }

    #[test]
    fn what_is_no_address_is_named() {
        for text in [
            "",
            "02",
            "02:00:00:00:00",
            "02:00:00:00:00:00:00",
            "2:0:0:0:0:1",
            "+2:00:00:00:00:01",
            "02-00-00-00-00-01",
            "0é:00:00:00:00:01",
        ] {
            let error = text.parse::<Mac>().expect_err(text);
            assert!(error.to_string().contains(&format!("{text:?}")), "{error}");
        }
    }

    proptest! {
        #[test]
        fn every_address_reads_its_own_text(number in 0..1u64 << 48) {
            let mac = Mac::from_u64(number);
            prop_assert_eq!(mac.to_string().parse::<Mac>(), Ok(mac));
            prop_assert_eq!(mac.to_u64(), number);
        }

        #[test]
        fn any_text_is_read_without_panic(text in ".{0,24}") {
            let _ = text.parse::<Mac>();
        }
    }
}

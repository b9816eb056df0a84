//! What never changes, so that every duck can always be found and told to start afresh, however old its firmware is.
//!
//! That is: the frame's magic, version, kind, flags and length (bytes 0 to 7) and its CRC (28 to 31); the kinds and codes of
//! announce, reset and discover, whose version byte is [`VERSION`] for ever; and their payloads below. Later programs may append to these
//! payloads; a reader ignores what it does not know. The tests at the end fix the bytes.

use crate::field::layout;
use crate::key::{Domain, Key, PublicKey};

/// Version byte of frozen messages.
pub const VERSION: u8 = 0;
/// Bytes of a nonce.
pub const NONCE: usize = 16;
/// Bytes of a duck's or host's identity.
pub const ID: usize = 16;

/// The identity of that name: its bytes, then zeroes; `None` if it is empty or too long.
pub fn identity(name: &str) -> Option<[u8; ID]> {
    let mut id = [0; ID];
    id.get_mut(..name.len()).filter(|_| !name.is_empty())?.copy_from_slice(name.as_bytes());
    Some(id)
}

layout! {
    /// What a duck says of itself, unasked once in [`ANNOUNCE_EVERY`](crate::duck::ANNOUNCE_EVERY) while nobody holds its
    /// lease, and whenever it is asked.
    Announce[144] {
        /// Protocol version that it speaks beyond the frozen messages.
        protocol: u8 = 0,
        /// 0 nest, 1 duckd, 2 in the host's process.
        program: u8 = 1,
        /// Cores that compute.
        cores: u16 = 2,
        /// See the `FEATURE_` constants.
        features: u32 = 4,
        /// Bytes that it can hold in blocks.
        memory: u64 = 8,
        /// Who: the same across restarts.
        id: [u8; ID] = 16,
        /// Hardware address of the port it speaks through.
        mac: [u8; 6] = 32,
        /// Speed of its link in Mbit/s.
        link: u16 = 38,
        /// blake3 of its firmware image.
        firmware: [u8; 32] = 40,
        /// What the next signed message must contain.
        nonce: [u8; NONCE] = 72,
        /// Epoch of its session, 0 when it has none.
        epoch: u32 = 88,
        /// Blocks that it holds.
        resident: u32 = 92,
        /// Root of the list that they belong to; zero when it has none.
        root: [u8; 32] = 96,
        /// Milliseconds until its lease expires.
        lease: u32 = 128,
        /// Seconds since it started.
        uptime: u32 = 132,
        /// A random number that it drew when it started.
        boot: u64 = 136,
    }
}

/// AVX2 and FMA.
pub const FEATURE_AVX2: u32 = 1;
/// AVX-VNNI.
pub const FEATURE_AVX_VNNI: u32 = 2;
/// Weights lie on huge pages.
pub const FEATURE_HUGE_PAGES: u32 = 4;
/// Weights are locked into memory.
pub const FEATURE_LOCKED: u32 = 8;
/// Steps run in ring 3, so that traps become verdicts.
pub const FEATURE_ISOLATED: u32 = 16;

/// Start afresh.
pub const RESET_REBOOT: u8 = 0;
/// Power off. A duck that cannot starts afresh, as it does for every action that it does not know.
pub const RESET_OFF: u8 = 1;

layout! {
    /// Start afresh. Obeyed only with the duck's identity, its present nonce and the pond's signature.
    Reset[104] {
        /// The duck's present nonce.
        nonce: [u8; NONCE] = 0,
        /// The duck meant.
        id: [u8; ID] = 16,
        /// [`RESET_REBOOT`], or [`RESET_OFF`].
        action: u8 = 32,
        /// Zero.
        reserved: [u8; 7] = 33,
        /// Of [`Domain::Reset`] and the bytes before.
        signature: [u8; 64] = 40,
    }
}

impl Reset {
    /// Bytes that are signed.
    pub const SIGNED: usize = 40;

    /// A signed reset.
    pub fn sign(nonce: [u8; NONCE], id: [u8; ID], action: u8, key: &Key) -> Reset {
        let mut reset = Reset { nonce, id, action, reserved: [0; 7], signature: [0; 64] };
        reset.signature = key.sign(Domain::Reset, &reset.emit()[..Reset::SIGNED]);
        reset
    }

    /// Whether the holder of `key` signed it.
    pub fn verify(&self, key: &PublicKey) -> bool {
        key.verify(Domain::Reset, &self.emit()[..Reset::SIGNED], &self.signature)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::{Frame, Header, Kind, emit};
    use std::vec::Vec;

    fn hex(bytes: &[u8]) -> std::string::String {
        bytes.iter().map(|b| std::format!("{b:02x}")).collect()
    }

    fn frame(kind: Kind, payload: &[u8]) -> Vec<u8> {
        let mut buf = [0xaa; 256];
        let n = emit(&mut buf, Header::new(kind), &[payload], crate::crc::portable).expect("256 bytes are enough");
        buf[..n].to_vec()
    }

    const RESET: &str = std::concat!(
        "445000020000680000000000000000000000000000000000000000003beff03e444444444444444444444444444444441111",
        "11111111111111111111111111110000000000000000de5351e02499b0d5015a04aeba2dcd240dc1a48d6154185dc585cb64",
        "b724785a6e5ad2309c3105778250c69502266be843049dc1952b76a41f2fdd5911584f03",
    );

    /// Should this test fail, ducks in the field can no longer be found: restore the layout, do not change the test.
    #[test]
    fn frozen_frames_are_these_very_bytes() {
        let announce = Announce {
            protocol: 1,
            program: 2,
            cores: 0x0304,
            features: 0x0506_0708,
            memory: 0x090a_0b0c_0d0e_0f10,
            id: [0x11; 16],
            mac: [0x22; 6],
            link: 2500,
            firmware: [0x33; 32],
            nonce: [0x44; 16],
            epoch: 0x5152_5354,
            resident: 0x6162_6364,
            root: [0x77; 32],
            lease: 0x8182_8384,
            uptime: 0x9192_9394,
            boot: 0xa1a2_a3a4_a5a6_a7a8,
        };
        let expected = std::concat!(
            "44500001000090000000000000000000000000000000000000000000",
            "3400874f",
            "01020403080706051",
            "00f0e0d0c0b0a09",
            "11111111111111111111111111111111",
            "222222222222",
            "c409",
            "3333333333333333333333333333333333333333333333333333333333333333",
            "44444444444444444444444444444444",
            "54535251",
            "64636261",
            "7777777777777777777777777777777777777777777777777777777777777777",
            "84838281",
            "94939291",
            "a8a7a6a5a4a3a2a1"
        );
        assert_eq!(hex(&frame(Kind::Announce, &announce.emit())), expected);
        let key = Key::from_seed([7; 32]);
        let reset = Reset::sign([0x44; 16], [0x11; 16], 0, &key);
        assert_eq!(hex(&frame(Kind::Reset, &reset.emit())), RESET);
        assert_eq!(
            hex(&frame(Kind::Discover, &[])),
            "44500003000000000000000000000000000000000000000000000000a6fec728"
        );
    }

    #[test]
    fn later_programs_may_append_to_frozen_messages() {
        let key = Key::from_seed([7; 32]);
        let reset = Reset::sign([1; 16], [2; 16], 0, &key);
        let mut longer = reset.emit().to_vec();
        longer.extend([9; 40]);
        let bytes = frame(Kind::Reset, &longer);
        let seen = Frame::check(&bytes, crate::crc::portable).expect("a frame");
        let read = Reset::parse(seen.payload()).expect("long enough");
        assert_eq!(read, reset);
        assert!(read.verify(&key.public()));
    }

    #[test]
    fn a_reset_holds_for_one_duck_one_nonce_and_one_key() {
        let key = Key::from_seed([7; 32]);
        let reset = Reset::sign([1; 16], [2; 16], 0, &key);
        assert!(reset.verify(&key.public()));
        assert!(!reset.verify(&Key::from_seed([8; 32]).public()));
        assert!(!Reset { nonce: [3; 16], ..reset }.verify(&key.public()));
        assert!(!Reset { id: [3; 16], ..reset }.verify(&key.public()));
        assert!(!Reset { action: 1, ..reset }.verify(&key.public()));
    }
}

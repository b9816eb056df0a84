//! What every driver offers.

use core::fmt;

/// The shortest frame on the wire, without the check sequence; drivers pad to it.
pub const MIN_FRAME: usize = 60;
/// The longest ordinary frame: 14 bytes of header, 1500 of payload, without the check sequence.
pub const MAX_FRAME: usize = 1514;
/// The longest frame a driver can be asked for, without the check sequence; not every card can.
pub const JUMBO_FRAME: usize = 9018;
/// The header alone: destination, source, type.
pub(crate) const HEADER: usize = 14;
/// The check sequence that the card appends, and leaves on received frames where it cannot strip it.
pub(crate) const CRC: usize = 4;

/// A card that sends and receives Ethernet frames. Frames run from the destination address to the end of the payload: the card
/// appends and checks the check sequence.
///
/// Nothing here waits. Call [`rx`](Nic::rx) in a loop, also when only sending: it does the upkeep. After some
/// [`tx`](Nic::tx), call [`flush`](Nic::flush): only then must the frames leave.
pub trait Nic {
    /// The card's own address.
    fn mac(&self) -> [u8; 6];
    /// The speed of the link in Mbit/s, 0 while it is down. Costs a register read of about a microsecond.
    fn link_mbps(&mut self) -> u32;
    /// Shows the next received frame to `frame`, if there is one, and says whether there was. Frames that arrived damaged are
    /// counted and skipped. Most cards let only broadcasts and frames for their own address through; virtio shows everything, so
    /// look at the destination.
    fn rx(&mut self, frame: &mut dyn FnMut(&[u8])) -> bool;
    /// Queues a frame of `len` bytes, which `fill` writes; it must write all of them. A frame below 60 bytes is padded with
    /// zeros. Says `false`, without calling `fill`, if the ring is full: flush and try again later. A frame shorter than its
    /// header or longer than [`max_frame`](Nic::max_frame) is dropped and counted, and the answer is `true`.
    fn tx(&mut self, len: usize, fill: &mut dyn FnMut(&mut [u8])) -> bool;
    /// Tells the card about the frames queued since the last call. Cheap if there are none.
    fn flush(&mut self);
    /// The longest frame, in bytes without the check sequence.
    fn max_frame(&self) -> usize;
    /// What the driver calls the card.
    fn name(&self) -> &'static str;
    /// What this driver has ever run on.
    fn proven(&self) -> Proven;
    /// What happened since the start.
    fn counters(&self) -> Counters;
}

/// How much trust a driver has earned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proven {
    /// It ran on a real card.
    Silicon,
    /// It ran on an emulated card written by somebody else.
    Emulator,
    /// It ran only against this crate's own idea of the registers.
    ModelOnly,
}

impl fmt::Display for Proven {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Silicon => "ran on real cards",
            Self::Emulator => "ran on emulated cards only",
            Self::ModelOnly => "never ran on a card, only against a model of its registers",
        })
    }
}

/// What a driver counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Frames handed to the caller.
    pub rx_frames: u64,
    /// Received frames dropped because the card reported an error or an impossible length.
    pub rx_errors: u64,
    /// Times the card is known to have run out of receive buffers, where it tells: frames were lost.
    pub rx_overruns: u64,
    /// Frames queued for sending.
    pub tx_frames: u64,
    /// Frames refused for their length.
    pub tx_refused: u64,
    /// Times [`Nic::tx`] said that the ring was full.
    pub tx_full: u64,
}

/// Whether a frame of `len` bytes may be sent; counts it if not.
pub(crate) fn acceptable(len: usize, max_frame: usize, counters: &mut Counters) -> bool {
    let good = (HEADER..=max_frame).contains(&len);
    counters.tx_refused += u64::from(!good);
    good
}

/// An Ethernet address, for printing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mac(pub [u8; 6]);

impl Mac {
    /// From the two registers in which most cards keep it: bytes 0 to 3, and 4 to 5 in the low half.
    pub(crate) fn from_registers(low: u32, high: u32) -> Self {
        let ([a, b, c, d], [e, f, ..]) = (low.to_le_bytes(), high.to_le_bytes());
        Self([a, b, c, d, e, f])
    }

    /// As the two registers.
    pub(crate) fn registers(self) -> (u32, u32) {
        let [a, b, c, d, e, f] = self.0;
        (u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, 0, 0]))
    }

    /// Whether a card may have it: not a group address, not all zeros.
    pub fn is_station(self) -> bool {
        self.0[0] & 1 == 0 && self.0 != [0; 6]
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

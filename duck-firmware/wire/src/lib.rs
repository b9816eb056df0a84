//! What host and ducks say to each other: frame formats, and the session protocol of both ends as state machines.
//!
//! No input or output, no clock, no threads, no allocation: frames come and go as bytes, `now` is an argument (microseconds of
//! any clock that does not go back), random numbers follow from a seed that the caller brings, and everything large lies in the
//! caller's memory. So the same code runs in the firmware, in `duckd`, in the engine and in a simulator. The crate's README is the specification.
//!
//! [`duck::Session`] and [`host::Peer`] have four kinds of method, to be called in a loop: `handle_frame` and `handle_timeout` when
//! either is due; commands whenever the caller wants something; then `poll_transmit` until it has no more, `poll_event` until
//! it has no more, and `next_timeout` for how long to sleep.
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

#[cfg(feature = "std")]
extern crate std;

mod bits;
pub mod body;
pub mod crc;
pub mod duck;
pub mod ethernet;
mod field;
pub mod frame;
pub mod frozen;
pub mod hex;
pub mod host;
pub mod key;
pub mod limits;
pub mod list;
mod mark;
pub mod message;
#[cfg(test)]
mod tests;

pub use crc::Crc;
pub use frame::{ETHERTYPE, Frame, FrameError, HEADER, Header, Kind};
pub use limits::Limits;

/// Microseconds of the caller's clock.
pub type Micros = u64;

/// What the kernels that ducks have built in are called. Another name whenever their bits or the arrangement of blocks change.
pub const KERNELS: &str = "duckpond kernels abi 1";

const _: () = assert!(kernels::abi::ABI_VERSION == 1, "the name of the kernels says their version");

/// The digest by which an [`Open`](message::Open) asks for the kernels that are built in: blake3 of [`KERNELS`].
pub fn built_in_kernels() -> [u8; 32] {
    *blake3::hash(KERNELS.as_bytes()).as_bytes()
}

/// Whether sequence number `a` comes after `b`; they wrap.
pub fn newer(a: u32, b: u32) -> bool {
    let ahead = a.wrapping_sub(b);
    ahead != 0 && ahead < 1 << 31
}

//! The number formats one value at a time: decoding, encoding, and the scan for values that no kernel may meet.

pub mod bf16;
pub mod e4m3;
pub mod s1e5m3;

//! CRC32C by the processor's instruction, which every duck has: frames are checked with it.
#![allow(unsafe_code)] // an instruction that the processor must have

use wire::crc::{Crc, portable};

/// The fastest that this processor has.
pub fn fastest() -> Crc {
    #[cfg(target_arch = "x86_64")]
    if core::arch::x86_64::__cpuid(1).ecx & 1 << 20 != 0 {
        return instruction;
    }
    portable
}

#[cfg(target_arch = "x86_64")]
fn instruction(crc: u32, bytes: &[u8]) -> u32 {
    use core::arch::x86_64::{_mm_crc32_u8, _mm_crc32_u64};

    #[target_feature(enable = "sse4.2")]
    fn sum(crc: u32, bytes: &[u8]) -> u32 {
        let (words, rest) = bytes.as_chunks::<8>();
        let words = words.iter().fold(u64::from(!crc), |sum, &word| _mm_crc32_u64(sum, u64::from_le_bytes(word)));
        !rest.iter().fold(words as u32, |sum, &byte| _mm_crc32_u8(sum, byte))
    }
    // SAFETY: `fastest` hands this function out only where the processor has the instruction.
    unsafe { sum(crc, bytes) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_instruction_and_the_tables_agree() {
        let bytes: Vec<u8> = (0..1000u32).map(|i| (i * i) as u8).collect();
        for n in [0, 1, 7, 8, 63, 1000] {
            assert_eq!(fastest()(7, &bytes[..n]), portable(7, &bytes[..n]), "{n} bytes");
        }
        assert_eq!(fastest()(0, b"123456789"), 0xe306_9283);
    }
}

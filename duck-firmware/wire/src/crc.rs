//! CRC32C, the checksum of every frame: Ethernet's own does not cover memory and DMA at either end.

use crc::{CRC_32_ISCSI, Crc as Table, Table as Sliced};

/// Continues a CRC32C: `crc` of what came before (0 at the start), then `bytes`. Endpoints take one, so that a caller who knows that the
/// processor has the instruction can bring it; see [`portable`] for the one that always works.
pub type Crc = fn(crc: u32, bytes: &[u8]) -> u32;

static TABLE: Table<u32, Sliced<16>> = Table::<u32, Sliced<16>>::new(&CRC_32_ISCSI);

/// CRC32C by tables: some gigabytes a second.
pub fn portable(crc: u32, bytes: &[u8]) -> u32 {
    // The register that ends in `crc` is its complement; the library wants it mirrored.
    let mut digest = TABLE.digest_with_initial((!crc).reverse_bits());
    digest.update(bytes);
    digest.finalize()
}

/// CRC32C by the processor's instruction where it has one.
#[cfg(feature = "std")]
pub fn native(crc: u32, bytes: &[u8]) -> u32 {
    crc32c::crc32c_append(crc, bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_published_check_values_hold_whole_and_in_parts() {
        assert_eq!(portable(0, b"123456789"), 0xe306_9283);
        assert_eq!(portable(0, &[0; 32]), 0x8a91_36aa, "RFC 3720, B.4");
        assert_eq!(portable(portable(0, b"1234"), b"56789"), 0xe306_9283);
        assert_eq!(portable(0, b""), 0);
    }

    #[cfg(feature = "std")]
    #[test]
    fn the_instruction_and_the_tables_agree() {
        let bytes: std::vec::Vec<u8> = (0..1000u32).map(|i| (i * i) as u8).collect();
        for n in [0, 1, 7, 8, 63, 1000] {
            assert_eq!(native(7, &bytes[..n]), portable(7, &bytes[..n]));
        }
    }
}

//! The firmware's ELF: whether GRUB can start it, and what of it is needed for that.
//!
//! Symbols and debugging information are many times as large as the rest, and a PC's BIOS loads less than half a MiB; so everything behind the
//! last segment is cut off, and the header says that there are no sections.

use std::fs;
use std::path::Path;

use super::NetbootError;
use crate::limited::check_regular;

/// Where GRUB looks for the header of multiboot2, how it is aligned, and how it begins.
const HEADER_WITHIN: usize = 32 << 10;
const HEADER_STEP: usize = 8;
const MAGIC: u32 = 0xe852_50d6;
/// A segment that is loaded.
const LOAD: u32 = 1;
/// Far more than any firmware has.
const LARGEST: u64 = 64 << 20;

/// Reads and cuts the firmware.
pub fn read(path: &Path) -> Result<Vec<u8>, NetbootError> {
    let failed = |source| NetbootError::File { action: "read", path: path.into(), source };
    check_regular(path, u64::MAX).map_err(failed)?;
    let bytes = fs::metadata(path).map_err(failed)?.len();
    let wrong = |reason: String| NetbootError::Firmware { path: path.into(), reason };
    if bytes > LARGEST {
        return Err(wrong(format!("it has {bytes} bytes, expected at most {LARGEST}")));
    }
    cut(fs::read(path).map_err(failed)?).map_err(|reason| wrong(reason.into()))
}

/// Places of an ELF header's fields.
struct Layout {
    wide: bool,
    phoff: usize,
    shoff: usize,
    phentsize: usize,
    phnum: usize,
    shnum: usize,
    shstrndx: usize,
    /// Of a segment's header.
    offset: usize,
    filesz: usize,
}

const ELF32: Layout = Layout {
    wide: false,
    phoff: 28,
    shoff: 32,
    phentsize: 42,
    phnum: 44,
    shnum: 48,
    shstrndx: 50,
    offset: 4,
    filesz: 16,
};
const ELF64: Layout = Layout {
    wide: true,
    phoff: 32,
    shoff: 40,
    phentsize: 54,
    phnum: 56,
    shnum: 60,
    shstrndx: 62,
    offset: 8,
    filesz: 32,
};

fn number<const N: usize>(bytes: &[u8], at: usize) -> Option<u64> {
    let bytes: [u8; N] = bytes.get(at..)?.first_chunk().copied()?;
    Some(bytes.iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte)))
}

impl Layout {
    /// An address or offset.
    fn word(&self, bytes: &[u8], at: usize) -> Option<usize> {
        let word = if self.wide { number::<8>(bytes, at) } else { number::<4>(bytes, at) };
        word.and_then(|word| usize::try_from(word).ok())
    }

    /// The end of the last segment, of the headers at least.
    fn end(&self, bytes: &[u8]) -> Option<usize> {
        let first = self.word(bytes, self.phoff)?;
        let size = number::<2>(bytes, self.phentsize)? as usize;
        let count = number::<2>(bytes, self.phnum)? as usize;
        let mut end = first.checked_add(size * count)?.max(64);
        let mut loads = 0;
        for i in 0..count {
            let header = bytes.get(first.checked_add(i * size)?..)?;
            loads += usize::from(number::<4>(header, 0)? == u64::from(LOAD));
            end = end.max(self.word(header, self.offset)?.checked_add(self.word(header, self.filesz)?)?);
        }
        (loads > 0 && end <= bytes.len()).then_some(end)
    }
}

/// The firmware without what is not loaded.
fn cut(mut bytes: Vec<u8>) -> Result<Vec<u8>, &'static str> {
    let layout = match bytes.get(..6) {
        Some([0x7f, b'E', b'L', b'F', 1, 1]) => &ELF32,
        Some([0x7f, b'E', b'L', b'F', 2, 1]) => &ELF64,
        _ => return Err("it is not an ELF for a PC"),
    };
    let end = layout.end(&bytes).ok_or("it is an ELF that is cut off, or has nothing to load")?;
    bytes.truncate(end);
    bytes.resize(end.next_multiple_of(4), 0);
    let word = if layout.wide { 8 } else { 4 };
    for field in
        [layout.shoff..layout.shoff + word, layout.shnum..layout.shnum + 2, layout.shstrndx..layout.shstrndx + 2]
    {
        bytes[field].fill(0);
    }
    let head = &bytes[..bytes.len().min(HEADER_WITHIN)];
    let found = head.chunks_exact(HEADER_STEP).any(|chunk| number::<4>(chunk, 0) == Some(u64::from(MAGIC)));
    found.then_some(bytes).ok_or("it has no multiboot2 header in its first 32 KiB")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// An ELF64 with one segment of 24 bytes that begins with the header of multiboot2, and 1000 bytes of something else.
    fn sample() -> Vec<u8> {
        let mut elf = vec![0; 64 + 56 + 24 + 1000];
        elf[..6].copy_from_slice(&[0x7f, b'E', b'L', b'F', 2, 1]);
        for (at, value) in [(32, 64u64), (40, 200), (64 + 8, 120), (64 + 32, 24)] {
            elf[at..at + 8].copy_from_slice(&value.to_le_bytes());
        }
        for (at, value) in [(54, 56u16), (56, 1), (60, 5), (62, 4)] {
            elf[at..at + 2].copy_from_slice(&value.to_le_bytes());
        }
        elf[64..68].copy_from_slice(&LOAD.to_le_bytes());
        elf[120..124].copy_from_slice(&MAGIC.to_le_bytes());
        elf
    }

    #[test]
    fn what_is_not_loaded_is_cut_off() {
        let cut = cut(sample()).expect("it can be started");
        assert_eq!(cut.len(), 144);
        assert_eq!((&cut[40..48], &cut[60..64]), (&[0; 8][..], &[0; 4][..]));
        assert_eq!(cut[64..], sample()[64..144]);
    }

    #[test]
    fn what_grub_cannot_start_is_told() {
        assert_eq!(cut(b"#!/bin/sh".into()), Err("it is not an ELF for a PC"));
        let mut plain = sample();
        plain[120] = 0;
        assert_eq!(cut(plain), Err("it has no multiboot2 header in its first 32 KiB"));
        let short = sample()[..130].to_vec();
        assert_eq!(cut(short), Err("it is an ELF that is cut off, or has nothing to load"));
    }

    proptest! {
        #[test]
        fn any_damage_is_survived(at in 0..144usize, byte: u8, length in 0..1144usize) {
            let mut elf = sample();
            elf[at] = byte;
            elf.truncate(length);
            let _ = cut(elf);
        }
    }
}

//! Which ELF a host may push: static, 64-bit, in its own part of the address space, nothing both written and executed.

use arrayvec::ArrayVec;
use elf::ElfBytes;
use elf::abi::{EM_X86_64, ET_EXEC, PF_W, PF_X, PT_DYNAMIC, PT_INTERP, PT_LOAD};
use elf::endian::LittleEndian;
use kernels::program::{PROGRAM_BASE, PROGRAM_LEN};

use crate::areas::SMALL;
use crate::tables::Use;

/// Most bytes of all segments in memory.
pub const MOST_MEMORY: u64 = 8 << 20;
/// Most segments.
pub const MOST_SEGMENTS: usize = 8;

/// One segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Where it starts.
    pub address: u64,
    /// Bytes of it in memory; what the file lacks is zero.
    pub memory: u64,
    /// Where its bytes start in the file.
    pub offset: usize,
    /// How many there are.
    pub len: usize,
    /// What it may be used for.
    pub how: Use,
}

impl Segment {
    /// Its pages: address of the first, and bytes.
    pub fn pages(&self) -> (u64, u64) {
        let start = self.address / SMALL * SMALL;
        (start, (self.address + self.memory).next_multiple_of(SMALL) - start)
    }
}

/// A program that may be loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// In order of addresses, on pages of their own.
    pub segments: ArrayVec<Segment, MOST_SEGMENTS>,
    /// The first instruction.
    pub entry: u64,
}

/// Looks through a file.
///
/// # Errors
/// What is wrong with it.
pub fn check(file: &[u8]) -> Result<Program, &'static str> {
    let elf = ElfBytes::<LittleEndian>::minimal_parse(file).map_err(|_| "program: it is no ELF, or cut short")?;
    let header = elf.ehdr;
    if header.class != elf::file::Class::ELF64 || header.e_machine != EM_X86_64 || header.e_type != ET_EXEC {
        return Err("program: expected a static 64-bit x86 executable");
    }
    let (mut segments, mut total) = (ArrayVec::new(), 0);
    for part in elf.segments().into_iter().flat_map(|s| s.iter()) {
        if matches!(part.p_type, PT_DYNAMIC | PT_INTERP) {
            return Err("program: it wants a dynamic linker");
        }
        if part.p_type != PT_LOAD || part.p_memsz == 0 {
            continue;
        }
        let how = match (part.p_flags & PF_W != 0, part.p_flags & PF_X != 0) {
            (true, true) => return Err("program: a segment can be both written and executed"),
            (true, false) => Use::UserData,
            (false, true) => Use::UserCode,
            (false, false) => Use::UserConstants,
        };
        let end = part.p_vaddr.checked_add(part.p_memsz);
        if part.p_vaddr < PROGRAM_BASE || end.is_none_or(|end| end > PROGRAM_BASE + PROGRAM_LEN) {
            return Err("program: a segment lies outside the program's part of the address space");
        }
        let bytes = part.p_offset.checked_add(part.p_filesz);
        if part.p_filesz > part.p_memsz || bytes.is_none_or(|end| end > file.len() as u64) {
            return Err("program: a segment's bytes are not in the file");
        }
        let segment = Segment {
            address: part.p_vaddr,
            memory: part.p_memsz,
            offset: part.p_offset as usize,
            len: part.p_filesz as usize,
            how,
        };
        let (start, len) = segment.pages();
        let last: Option<&Segment> = segments.last();
        if last.map(Segment::pages).is_some_and(|(at, len)| at + len > start) {
            return Err("program: two segments share a page, or are out of order");
        }
        total += len;
        if total > MOST_MEMORY {
            return Err("program: it takes more than 8 MiB of memory");
        }
        segments.try_push(segment).map_err(|_| "program: it has more than 8 segments")?;
    }
    let code = |s: &Segment| s.how == Use::UserCode && (s.address..s.address + s.memory).contains(&header.e_entry);
    if !segments.iter().any(code) {
        return Err("program: its first instruction is in no segment that can be executed");
    }
    Ok(Program { segments, entry: header.e_entry })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Clone, Copy)]
    struct Head {
        flags: u32,
        offset: u64,
        address: u64,
        len: u64,
        memory: u64,
    }

    const GOOD: [Head; 2] = [
        Head { flags: 5, offset: 0, address: PROGRAM_BASE, len: 100, memory: 100 },
        Head { flags: 6, offset: 50, address: PROGRAM_BASE + 2 * SMALL, len: 10, memory: 9_000 },
    ];

    fn file(heads: &[Head], entry: u64) -> Vec<u8> {
        let mut file = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x02\0\x3e\0\x01\0\0\0".to_vec();
        file.extend(entry.to_le_bytes());
        file.extend(64u64.to_le_bytes());
        file.extend([0; 12]);
        for n in [64u16, 56, heads.len() as u16, 64, 0, 0] {
            file.extend(n.to_le_bytes());
        }
        for head in heads {
            file.extend(1u32.to_le_bytes());
            file.extend(head.flags.to_le_bytes());
            for n in [head.offset, head.address, head.address, head.len, head.memory, SMALL] {
                file.extend(n.to_le_bytes());
            }
        }
        file.resize(file.len().max(512), 0);
        file
    }

    #[test]
    fn a_good_program_is_laid_out() {
        let found = check(&file(&GOOD, PROGRAM_BASE + 99)).expect("nothing is wrong");
        assert_eq!(found.entry, PROGRAM_BASE + 99);
        assert_eq!((found.segments[0].how, found.segments[1].how), (Use::UserCode, Use::UserData));
        assert_eq!(found.segments[1].pages(), (PROGRAM_BASE + 2 * SMALL, 3 * SMALL));
    }

    #[test]
    fn whatever_is_wrong_is_named() {
        let [code, data] = GOOD;
        let refused = |heads: &[Head], entry| check(&file(heads, entry)).expect_err("refused");
        for (heads, says) in [
            (&[Head { flags: 7, ..code }][..], "both written and executed"),
            (&[Head { address: PROGRAM_BASE - SMALL, ..code }], "outside"),
            (&[Head { address: u64::MAX - 50, ..code }], "outside"),
            (&[Head { address: PROGRAM_BASE + PROGRAM_LEN - 99, ..code }], "outside"),
            (&[Head { offset: 450, ..code }], "not in the file"),
            (&[Head { offset: u64::MAX, ..code }], "not in the file"),
            (&[Head { len: 200, ..code }], "not in the file"),
            (&[code, Head { address: PROGRAM_BASE + 200, ..data }], "share a page"),
            (&[data, code], "share a page"),
            (&[code, Head { memory: MOST_MEMORY, ..data }], "more than 8 MiB"),
            (&[data], "first instruction"),
            (&[], "first instruction"),
        ] {
            let said = refused(heads, PROGRAM_BASE);
            assert!(said.contains(says), "{said}");
        }
        let good = file(&GOOD, PROGRAM_BASE);
        assert!(check(&good[..63]).is_err_and(|said| said.contains("cut short")));
        for (at, byte) in [(4, 1), (5, 2), (16, 3), (18, 3)] {
            let mut bad = good.clone();
            bad[at] = byte;
            assert!(check(&bad).is_err(), "byte {at}");
        }
    }

    proptest! {
        #[test]
        fn no_file_does_harm(changes in prop::collection::vec((0usize..512, any::<u8>()), 0..20), len in 0usize..513) {
            let mut file = file(&GOOD, PROGRAM_BASE);
            changes.iter().for_each(|&(at, byte)| file[at] = byte);
            if let Ok(program) = check(&file[..len]) {
                for s in &program.segments {
                    prop_assert!(s.offset + s.len <= len && s.len as u64 <= s.memory);
                    prop_assert!(s.address >= PROGRAM_BASE && s.address + s.memory <= PROGRAM_BASE + PROGRAM_LEN);
                }
            }
        }
    }
}

//! What the firmware's tables say: processors, reset, power off. RSDP, then RSDT or XSDT, then MADT and FADT (ACPI 6.5, sections 5.2.5 to
//! 5.2.12). By hand, since the published crate trusts the tables' lengths.
//!
//! Reading is through a function that gives bytes of physical memory, so that tests need none. Everything is bounded: a broken table gives
//! fewer processors, never a fault.

use arrayvec::ArrayVec;
use kernels::abi::MAX_CORES;

/// What was found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Processors {
    /// Identifiers of the local interrupt controllers of those that may be started, in the table's order.
    pub ids: ArrayVec<u32, MAX_CORES>,
    /// Where I/O interrupt controllers lie.
    pub lines: ArrayVec<u64, 8>,
    /// Address, width in bits and value of the register that resets the machine, if the tables name one in memory or ports:
    /// (space, address, value), space 0 memory and 1 ports.
    pub reset: Option<(u8, u64, u8)>,
    /// How to power off: ports and what to write to them (ACPI 6.5, section 4.8.3.2).
    pub off: ArrayVec<(u16, u16), 2>,
}

/// Longest table that is read.
const LONGEST: usize = 64 << 10;
/// Longest table of definitions that is looked through.
const LONGEST_DEFINITIONS: usize = 4 << 20;
/// Bytes of it at once.
const PIECE: usize = 1024;
/// The name of the package that says what to write for soft off, as it is compiled, and PackageOp after it.
const SOFT_OFF: &[u8; 5] = b"_S5_\x12";
/// Bytes that the package may take: the name, the package's head, and its first two elements.
const SOFT_OFF_LEN: usize = 16;

/// Reads the tables from the RSDP at `rsdp` on. `read` copies physical memory, or refuses.
pub fn processors(rsdp: u64, read: &mut dyn FnMut(u64, &mut [u8]) -> bool) -> Option<Processors> {
    let mut head = [0; 36];
    if !read(rsdp, &mut head) || &head[..8] != b"RSD PTR " {
        return None;
    }
    let extended = head[15] >= 2 && number(&head[24..32]) != 0;
    let (root, width) = if extended { (number(&head[24..32]), 8) } else { (number(&head[16..20]), 4) };
    let entries = length(root, read)?.checked_sub(36)? / width;
    let mut found = Processors::default();
    for i in 0..entries.min(256) {
        let mut entry = [0; 8];
        if !read(root + 36 + (i * width) as u64, &mut entry[..width]) {
            break;
        }
        let table = u64::from_le_bytes(entry);
        let mut signature = [0; 4];
        if !read(table, &mut signature) {
            continue;
        }
        match &signature {
            b"APIC" => madt(table, read, &mut found),
            b"FACP" => fadt(table, read, &mut found),
            _ => {}
        }
    }
    Some(found)
}

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |n, &b| n << 8 | u64::from(b))
}

fn length(table: u64, read: &mut dyn FnMut(u64, &mut [u8]) -> bool) -> Option<usize> {
    length_within(table, LONGEST, read)
}

fn length_within(table: u64, most: usize, read: &mut dyn FnMut(u64, &mut [u8]) -> bool) -> Option<usize> {
    let mut len = [0; 4];
    let there = read(table.checked_add(4)?, &mut len);
    Some(number(&len) as usize).filter(|&n| there && (36..=most).contains(&n))
}

fn madt(table: u64, read: &mut dyn FnMut(u64, &mut [u8]) -> bool, found: &mut Processors) {
    let Some(len) = length(table, read) else { return };
    let mut at = 44;
    while at + 2 <= len {
        let mut entry = [0; 16];
        if !read(table + at as u64, &mut entry[..2]) {
            return;
        }
        let size = usize::from(entry[1]);
        if size < 2 || at + size > len || !read(table + at as u64, &mut entry[..size.min(16)]) {
            return;
        }
        // Enabled, or may be enabled later: only the first is there.
        let id = match entry[0] {
            0 if size >= 8 && entry[4] & 1 == 1 => Some(u32::from(entry[3])),
            9 if size >= 16 && entry[8] & 1 == 1 => Some(number(&entry[4..8]) as u32),
            1 if size >= 12 => {
                let _ = found.lines.try_push(number(&entry[4..8]));
                None
            }
            _ => None,
        };
        if let Some(id) = id.filter(|id| !found.ids.contains(id)) {
            let _ = found.ids.try_push(id);
        }
        at += size;
    }
}

fn fadt(table: u64, read: &mut dyn FnMut(u64, &mut [u8]) -> bool, found: &mut Processors) {
    let Some(len) = length(table, read) else { return };
    let mut flags = [0; 4];
    let mut reset = [0; 13];
    if len < 129 || !read(table + 112, &mut flags) || !read(table + 116, &mut reset) {
        return;
    }
    power_off(table, read, found);
    // RESET_REG_SUP.
    if number(&flags) & 1 << 10 != 0 && reset[0] < 2 {
        found.reset = Some((reset[0], number(&reset[4..12]), reset[12]));
    }
}

/// What to write to the power registers: the definitions are a program, but this name always stands for constants.
fn power_off(fadt: u64, read: &mut dyn FnMut(u64, &mut [u8]) -> bool, found: &mut Processors) {
    let (mut definitions, mut ports) = ([0; 4], [0; 8]);
    if !read(fadt + 40, &mut definitions) || !read(fadt + 64, &mut ports) {
        return;
    }
    let types = soft_off(number(&definitions), read);
    for (port, kind) in ports.chunks(4).zip(types.iter().flatten()) {
        // SLP_TYP in bits 10 to 12, SLP_EN in bit 13.
        if let Ok(port @ 1..) = u16::try_from(number(port)) {
            let _ = found.off.try_push((port, u16::from(*kind & 7) << 10 | 1 << 13));
        }
    }
}

fn soft_off(table: u64, read: &mut dyn FnMut(u64, &mut [u8]) -> bool) -> Option<[u8; 2]> {
    let len = length_within(table, LONGEST_DEFINITIONS, read)?;
    let mut piece = [0; PIECE];
    for at in (36..len).step_by(PIECE - SOFT_OFF_LEN) {
        let piece = &mut piece[..PIECE.min(len - at)];
        if !read(table + at as u64, piece) {
            return None;
        }
        let Some(found) = piece.windows(SOFT_OFF.len()).position(|w| w == SOFT_OFF) else { continue };
        if found + SOFT_OFF_LEN > piece.len() && at + piece.len() < len {
            // It begins in the part that the next piece repeats.
            continue;
        }
        // The package's length takes one byte, and one more for each of its top two bits' count; then comes the number of elements.
        let rest = &piece[found + SOFT_OFF.len()..];
        let head = 1 + usize::from(*rest.first()? >> 6) + 1;
        let mut elements = rest.get(head..)?.iter();
        let mut constant = || match *elements.next()? {
            0x0a => elements.next().copied(),
            small @ (0 | 1) => Some(small),
            _ => None,
        };
        return Some([constant()?, constant()?]);
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    struct Memory(Vec<u8>);

    impl Memory {
        fn put(&mut self, at: usize, bytes: &[u8]) {
            self.0[at..at + bytes.len()].copy_from_slice(bytes);
        }

        fn read(&self, at: u64, out: &mut [u8]) -> bool {
            let Some(bytes) = usize::try_from(at).ok().and_then(|at| self.0.get(at..at.checked_add(out.len())?)) else {
                return false;
            };
            out.copy_from_slice(bytes);
            true
        }
    }

    fn machine(revision: u8) -> Memory {
        let mut memory = Memory(vec![0; 4096]);
        memory.put(0, b"RSD PTR ");
        memory.0[15] = revision;
        memory.put(16, &100u32.to_le_bytes());
        memory.put(24, &200u64.to_le_bytes());
        for (root, width) in [(100, 4), (200, 8)] {
            memory.put(root, b"?SDT");
            memory.put(root + 4, &(36 + 2 * width as u32).to_le_bytes());
            memory.put(root + 36, &500u32.to_le_bytes());
            memory.put(root + 36 + width, &900u32.to_le_bytes());
        }
        let entries: [&[u8]; 6] = [
            &[0, 8, 0, 0, 1, 0, 0, 0],
            &[1, 12, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9],
            &[0, 8, 1, 2, 1, 0, 0, 0],
            &[0, 8, 2, 3, 0, 0, 0, 0],
            &[9, 16, 0, 0, 0, 1, 0, 0, 1, 0, 0, 0, 7, 0, 0, 0],
            &[0, 8, 3, 2, 1, 0, 0, 0],
        ];
        memory.put(500, b"APIC");
        memory.put(544, &entries.concat());
        memory.put(504, &(44 + entries.concat().len() as u32).to_le_bytes());
        memory.put(900, b"FACP");
        memory.put(904, &244u32.to_le_bytes());
        memory.put(900 + 112, &(1u32 << 10).to_le_bytes());
        memory.put(900 + 116, &[1, 8, 0, 1]);
        memory.put(900 + 120, &0xcf9u64.to_le_bytes());
        memory.put(900 + 128, &[6]);
        memory.put(900 + 40, &2_000u32.to_le_bytes());
        memory.put(900 + 64, &[4, 6, 0, 0, 0, 0, 0, 0]);
        memory.put(2_000, b"DSDT");
        memory.put(2_004, &1_600u32.to_le_bytes());
        // Across the end of the first piece.
        memory.put(2_000 + 36 + 1_020, b"\x08_S5_\x12\x06\x04\x0a\x05\x00\x00\x00");
        memory
    }

    #[test]
    fn enabled_processors_are_found_in_order_and_once() {
        for revision in [0, 2] {
            let memory = machine(revision);
            let found = processors(0, &mut |at, out| memory.read(at, out)).expect("there are tables");
            assert_eq!(found.ids[..], [0, 2, 256], "revision {revision}");
            assert_eq!((&found.lines[..], found.reset), (&[0x0909_0909][..], Some((1, 0xcf9, 6))));
            assert_eq!(found.off[..], [(0x604, 5 << 10 | 1 << 13)]);
        }
        assert_eq!(processors(1, &mut |at, out| machine(0).read(at, out)), None);
    }

    proptest! {
        #[test]
        fn broken_tables_do_no_harm(changes in prop::collection::vec((0usize..3_600, any::<u8>()), 0..60)) {
            let mut memory = machine(2);
            changes.iter().for_each(|&(at, byte)| memory.0[at] = byte);
            let _ = processors(0, &mut |at, out| memory.read(at, out));
        }
    }
}

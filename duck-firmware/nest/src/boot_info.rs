//! What the boot loader says, in one form: by multiboot2 (GRUB) or by PVH (`qemu -kernel`).

use arrayvec::{ArrayString, ArrayVec};
use multiboot2::{BootInformation, MemoryAreaType};

use crate::areas::{Area, MOST};

/// Most bytes of a command line.
pub const MOST_COMMAND: usize = 1024;

/// A screen of true colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Framebuffer {
    /// Physical address.
    pub address: u64,
    /// Bytes from one line to the next.
    pub pitch: u32,
    /// Pixels.
    pub width: u32,
    /// Pixels.
    pub height: u32,
    /// Bytes of a pixel, 3 or 4.
    pub pixel: u8,
}

impl Framebuffer {
    /// Bytes.
    pub fn len(&self) -> u64 {
        u64::from(self.pitch) * u64::from(self.height)
    }

    /// Whether there is nothing to draw on.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Where the firmware's tables start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rsdp {
    /// At this address.
    At(u64),
    /// A copy of its first bytes: revision, then RSDT and XSDT.
    Copy([u8; 36]),
}

/// What was said.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BootInfo {
    /// Cut to what fits.
    pub command: ArrayString<MOST_COMMAND>,
    /// Memory and whether it is usable.
    pub memory: ArrayVec<(Area, bool), MOST>,
    /// The firmware's tables.
    pub rsdp: Option<Rsdp>,
    /// The screen.
    pub framebuffer: Option<Framebuffer>,
}

impl BootInfo {
    fn set_command(&mut self, text: &str) {
        let end = text.floor_char_boundary(MOST_COMMAND);
        self.command = ArrayString::from(&text[..end]).unwrap_or_default();
    }

    /// From multiboot2's information, with the area that it lies in.
    pub fn multiboot2(info: &BootInformation<'_>) -> BootInfo {
        let mut found = BootInfo::default();
        if let Some(Ok(text)) = info.command_line_tag().map(|t| t.cmdline()) {
            found.set_command(text);
        }
        for area in info.memory_map_tag().iter().flat_map(|m| m.memory_areas()) {
            let usable = MemoryAreaType::from(area.typ()) == MemoryAreaType::Available;
            let _ = found.memory.try_push((Area::new(area.start_address(), area.size()), usable));
        }
        found.rsdp = rsdp(info);
        if let Some(Ok(tag)) = info.framebuffer_tag() {
            let screen = Framebuffer {
                address: tag.address(),
                pitch: tag.pitch(),
                width: tag.width(),
                height: tag.height(),
                pixel: tag.bpp() / 8,
            };
            let colours = matches!(tag.buffer_type(), Ok(multiboot2::FramebufferType::RGB { .. }));
            found.framebuffer = Some(screen).filter(|s| colours && fits(s));
        }
        found
    }

    /// From PVH's `hvm_start_info` at `address` (Xen, `public/arch-x86/hvm/start_info.h`): magic, version, flags, modules, module list, command
    /// line, RSDP, and from version 1 on the memory map.
    pub fn pvh(address: u64, read: &mut dyn FnMut(u64, &mut [u8]) -> bool) -> Option<BootInfo> {
        let mut head = [0; 56];
        if !read(address, &mut head) || head[..4] != 0x336e_c578u32.to_le_bytes() {
            return None;
        }
        let long = |at: usize| u64::from_le_bytes(*head[at..].first_chunk().unwrap_or(&[0; 8]));
        let mut found = BootInfo::default();
        let (command, rsdp, map, entries) = (long(24), long(32), long(40), long(48) & 0xffff_ffff);
        let mut text = ArrayVec::<u8, MOST_COMMAND>::new();
        let mut byte = [0];
        while command != 0 && !text.is_full() && read(command + text.len() as u64, &mut byte) && byte[0] != 0 {
            text.push(byte[0]);
        }
        let valid = text.utf8_chunks().next().map_or("", |c| c.valid());
        found.set_command(valid);
        found.rsdp = (rsdp != 0).then_some(Rsdp::At(rsdp));
        for i in 0..entries.min(MOST as u64) {
            let mut entry = [0; 24];
            if !read(map + 24 * i, &mut entry) {
                break;
            }
            let long = |at: usize| u64::from_le_bytes(*entry[at..].first_chunk().unwrap_or(&[0; 8]));
            // Kind 1 is memory.
            let _ = found.memory.try_push((Area::new(long(0), long(8)), long(16) & 0xffff_ffff == 1));
        }
        Some(found)
    }
}

fn rsdp(info: &BootInformation<'_>) -> Option<Rsdp> {
    let mut copy = [0; 36];
    copy[..8].copy_from_slice(b"RSD PTR ");
    if let Some(tag) = info.rsdp_v2_tag() {
        copy[15] = 2;
        copy[24..32].copy_from_slice(&(tag.xsdt_address() as u64).to_le_bytes());
        return Some(Rsdp::Copy(copy));
    }
    let tag = info.rsdp_v1_tag()?;
    copy[16..20].copy_from_slice(&(tag.rsdt_address() as u32).to_le_bytes());
    Some(Rsdp::Copy(copy))
}

fn fits(screen: &Framebuffer) -> bool {
    let line = u64::from(screen.width) * u64::from(screen.pixel);
    matches!(screen.pixel, 3 | 4) && screen.width >= 320 && screen.height >= 200 && line <= screen.pitch.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use multiboot2::{Builder, CommandLineTag, MaybeDynSized, MemoryArea, MemoryMapTag, RsdpV2Tag};

    #[test]
    fn grubs_information_is_read() {
        let areas = [
            MemoryArea::new(0, 0x9f000, MemoryAreaType::Available),
            MemoryArea::new(0xf0000, 0x10000, MemoryAreaType::Reserved),
        ];
        let built = Builder::new()
            .cmdline(CommandLineTag::new("name=duck"))
            .mmap(MemoryMapTag::new(&areas))
            .rsdpv2(RsdpV2Tag::new(0, *b"BOCHS ", 2, 0, 36, 0x1234_5678_9abc, 0))
            .build();
        // SAFETY: made just now, and it stays where it is.
        let info = unsafe { BootInformation::load(built.as_bytes().as_ptr().cast()) }.expect("as built");
        let found = BootInfo::multiboot2(&info);
        assert_eq!(found.command.as_str(), "name=duck");
        assert_eq!(found.memory[..], [(Area::new(0, 0x9f000), true), (Area::new(0xf0000, 0x10000), false)]);
        let Some(Rsdp::Copy(copy)) = found.rsdp else { panic!("{:?}", found.rsdp) };
        assert_eq!((copy[15], &copy[24..32]), (2, &0x1234_5678_9abcu64.to_le_bytes()[..]));
        assert_eq!(found.framebuffer, None);
    }

    fn read(memory: &[u8]) -> impl FnMut(u64, &mut [u8]) -> bool + '_ {
        |at, out| match memory.get(at as usize..at as usize + out.len()) {
            Some(bytes) => {
                out.copy_from_slice(bytes);
                true
            }
            None => false,
        }
    }

    #[test]
    fn qemus_information_is_read_and_another_structure_is_refused() {
        let mut memory = vec![0; 300];
        memory[..4].copy_from_slice(&0x336e_c578u32.to_le_bytes());
        memory[24..32].copy_from_slice(&100u64.to_le_bytes());
        memory[32..40].copy_from_slice(&77u64.to_le_bytes());
        memory[40..48].copy_from_slice(&200u64.to_le_bytes());
        memory[48..52].copy_from_slice(&2u32.to_le_bytes());
        memory[100..110].copy_from_slice(b"name=\xffduck");
        memory[208..216].copy_from_slice(&4096u64.to_le_bytes());
        memory[216..220].copy_from_slice(&1u32.to_le_bytes());
        let found = BootInfo::pvh(0, &mut read(&memory)).expect("it is one");
        assert_eq!(found.command.as_str(), "name=", "up to what is no text");
        assert_eq!(found.memory[..], [(Area::new(0, 4096), true), (Area::new(0, 0), false)]);
        assert_eq!(found.rsdp, Some(Rsdp::At(77)));
        memory[0] = 0;
        assert_eq!(BootInfo::pvh(0, &mut read(&memory)), None);
        assert_eq!(BootInfo::pvh(290, &mut read(&memory)), None);
    }
}

//! What a panic leaves for the next start: a text in memory beyond the image, which a reset without power loss leaves alone.

use wire::crc;

use super::boot;

/// Bytes kept for it after the image.
pub const ROOM: u64 = 8192;
const MOST: usize = 1024;
const MAGIC: u32 = 0x6465_6164;

#[repr(C)]
struct Place {
    magic: u32,
    crc: u32,
    len: u32,
    text: [u8; MOST],
}

fn place() -> *mut Place {
    boot::image_end().next_multiple_of(4096) as *mut Place
}

/// Leaves a text.
pub fn leave(text: &[u8]) {
    let len = text.len().min(MOST);
    let mut place_text = [0; MOST];
    place_text[..len].copy_from_slice(&text[..len]);
    let words = Place { magic: MAGIC, crc: crc::portable(0, &text[..len]), len: len as u32, text: place_text };
    // SAFETY: memory beyond the image that is kept for this alone.
    unsafe { place().write_volatile(words) };
    // A reset forgets what lies in caches alone.
    // SAFETY: writes caches back; ring 0 may.
    unsafe { core::arch::asm!("wbinvd", options(nostack)) };
}

/// Takes what the last run has left.
pub fn take(out: &mut [u8; MOST]) -> Option<usize> {
    // SAFETY: as above; plain numbers, whatever they are.
    let words = unsafe { place().read_volatile() };
    // SAFETY: as above.
    unsafe { (place() as *mut u32).write_volatile(0) };
    let len = (words.len as usize).min(MOST);
    if words.magic != MAGIC || words.crc != crc::portable(0, &words.text[..len]) {
        return None;
    }
    out[..len].copy_from_slice(&words.text[..len]);
    Some(len)
}

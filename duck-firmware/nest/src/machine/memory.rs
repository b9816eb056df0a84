//! The machine's memory: taken apart once, at the start, into what `nest::tables` lists.
//!
//! Everything of the supervisor's lies below 4 GiB, where physical and virtual addresses are the same; so a frame's address is also where its
//! table is found. All other memory is for blocks.

use core::ptr::NonNull;

use linked_list_allocator::LockedHeap;
use nest::areas::{Area, Areas, HUGE, LARGE, SMALL};
use nest::boot_info::BootInfo;
use nest::tables::{self, Frames, MapError, Space, Use};
use nic::{Bar, Dma, DmaBuffer};
use node::Region;
use spin::Mutex;
use wire::duck::STEPS;

use super::boot;
use super::traps::BLOCK;

/// Below this physical and virtual addresses are the same.
const LOW: u64 = 4 << 30;
/// Least memory of a duck.
pub const LEAST: u64 = 96 << 20;

#[global_allocator]
static HEAP: LockedHeap = LockedHeap::empty();
static TABLES: Mutex<Option<Pool>> = Mutex::new(None);
static DEVICES: Mutex<u64> = Mutex::new(tables::DEVICES);

/// Frames that are handed out once, from the start of an area to its end.
#[derive(Debug)]
pub struct Pool {
    area: Area,
    next: u64,
}

impl Pool {
    /// From physical memory below 4 GiB, multiples of [`SMALL`].
    ///
    /// # Safety
    /// Nobody else uses it, for ever.
    pub unsafe fn new(area: Area) -> Pool {
        assert!(area.end <= LOW, "the supervisor's memory is below 4 GiB");
        Pool { area, next: area.start }
    }

    /// Takes all frames back. What was made of them must not be used any more.
    pub fn reset(&mut self) {
        self.next = self.area.start;
    }

    /// Adjacent frames.
    pub fn take(&mut self, bytes: u64) -> Option<Area> {
        let end = self.next.checked_add(bytes.next_multiple_of(SMALL)).filter(|&end| end <= self.area.end)?;
        let area = Area { start: self.next, end };
        self.next = end;
        Some(area)
    }
}

impl Frames for Pool {
    fn allocate(&mut self) -> Option<u64> {
        let frame = self.take(SMALL)?.start;
        // SAFETY: a frame of this pool, which nobody has been given since the last reset.
        unsafe { (frame as *mut u8).write_bytes(0, SMALL as usize) };
        Some(frame)
    }

    fn entry(&mut self, frame: u64, index: usize) -> &mut u64 {
        assert!(frame < LOW && index < 512, "tables lie below 4 GiB");
        // SAFETY: a frame that holds a table, whole numbers whatever they are; `&mut self` is the only way to it, but for the processor's
        // own reading.
        unsafe { &mut *(frame as *mut u64).add(index) }
    }
}

/// Memory that cards share.
#[derive(Debug)]
pub struct CardMemory(Pool);

impl Dma for CardMemory {
    fn alloc(&mut self, len: usize, align: usize) -> Option<DmaBuffer> {
        let skip = self.0.next.wrapping_neg() % align as u64;
        let area = self.0.take(skip + len as u64)?;
        let start = area.start + skip;
        // SAFETY: this pool's, handed out once, the same physical and virtual address.
        Some(unsafe { DmaBuffer::new(NonNull::new(start as *mut u8)?, start, len) })
    }
}

/// All that the start hands on.
#[derive(Debug)]
pub struct Memory {
    /// The supervisor's address space.
    pub space: Space,
    /// For programs.
    pub programs: Pool,
    /// For cards.
    pub cards: CardMemory,
    /// Blocks of stacks, one for each core.
    pub stacks: Area,
    /// For blocks.
    pub blocks: Region,
    /// For results.
    pub results: Region,
    /// For steps.
    pub shared: Region,
    /// Bytes of a step's input, on the heap.
    pub input: usize,
    /// Bytes of blocks that lie on pages of 1 GiB.
    pub on_huge: u64,
}

/// Sizes that follow from how much memory there is.
struct Sizes {
    heap: u64,
    programs: u64,
    cards: u64,
    results: u64,
    shared: u64,
    input: u64,
}

impl Sizes {
    fn new(total: u64, cores: u64) -> Sizes {
        let part = |of: u64, most: u64| (total / of).min(most).next_multiple_of(SMALL);
        let input = part(128, 6 << 20);
        Sizes {
            heap: (8 << 20) + STEPS as u64 * input + part(64, 24 << 20),
            programs: nest::program::MOST_MEMORY + (cores * super::judge::STACK_BYTES) + (1 << 20),
            cards: 4 << 20,
            results: STEPS as u64 * part(64, 12 << 20),
            shared: part(16, 256 << 20),
            input,
        }
    }
}

/// Whether the processor has pages of 1 GiB.
fn has_huge() -> bool {
    core::arch::x86_64::__cpuid(0x8000_0001).edx & 1 << 26 != 0
}

/// Takes memory apart and goes over to tables of its own. Once, on the first core.
///
/// # Safety
/// `info` is what the boot loader said; memory below 1 MiB holds nothing of worth at the trampoline's pages. Nothing but the image and what is on its stack is used after this.
///
/// # Errors
/// What is missing.
pub unsafe fn start(info: &BootInfo, cores: u64) -> Result<Memory, &'static str> {
    let mut free = Areas::new(info.memory.iter().copied());
    let total = free.len();
    free.remove(Area { start: 0, end: 1 << 20 });
    free.remove(Area { start: boot::image_start(), end: boot::image_end() + super::last_words::ROOM });
    let sizes = Sizes::new(total, cores);
    let mut low =
        |bytes: u64| free.take(bytes.next_multiple_of(SMALL), LARGE, LOW).ok_or("too little memory below 4 GiB");
    // A table for each GiB and each of the two views of blocks, at worst.
    let (frames, heap, programs) =
        (low((2 << 20) + (total >> 30) * 2 * SMALL)?, low(sizes.heap)?, low(sizes.programs)?);
    let (cards, stacks) = (low(sizes.cards)?, low(cores * BLOCK as u64)?);
    let mut page =
        |bytes: u64| free.take(bytes.next_multiple_of(LARGE), LARGE, u64::MAX).ok_or("too little memory for steps");
    let (results, shared) = (page(sizes.results)?, page(sizes.shared)?);
    if total < LEAST {
        return Err("less than 96 MiB of memory");
    }

    // SAFETY: taken from free memory just now.
    let mut pool = unsafe { Pool::new(frames) };
    let (space, huge) = (Space::new(&mut pool).map_err(said)?, has_huge());
    identity(space, info, &mut pool).map_err(said)?;
    let (mut at, mut on_huge) = (0, 0);
    for area in free.pages() {
        // What is beyond a slot is left unused.
        let area = Area { end: area.end.min(area.start.saturating_add(tables::SLOT - at)), ..area };
        if huge && area.start.is_multiple_of(HUGE) && at % HUGE == 0 {
            on_huge += area.len() / HUGE * HUGE;
        }
        space.map(tables::BLOCKS + at, area, Use::UserConstants, huge, &mut pool).map_err(said)?;
        space.map(tables::BLOCKS_WRITABLE + at, area, Use::Data, huge, &mut pool).map_err(said)?;
        at += area.len();
    }
    let results_at = tables::SHARED;
    let shared_at = results_at + HUGE;
    space.map(results_at, results, Use::UserData, false, &mut pool).map_err(said)?;
    space.map(shared_at, shared, Use::UserData, false, &mut pool).map_err(said)?;
    let (code, len) = (boot::trampoline_start(), boot::trampoline_stop() - boot::trampoline_start());
    // SAFETY: a page below 1 MiB that the caller keeps free; from now on it is code.
    unsafe { (code as *const u8).copy_to_nonoverlapping(boot::TRAMPOLINE as *mut u8, len as usize) };
    // SAFETY: the identity part holds all that runs and is used; the frames are this table's for ever.
    unsafe { switch(space) };
    *TABLES.lock() = Some(pool);
    // SAFETY: mapped, free, and the heap's alone.
    unsafe { HEAP.lock().init(heap.start as *mut u8, heap.len() as usize) };

    // SAFETY: mapped just now, both views of the same memory, which is free. Its bytes are whatever they are: initialised, that is.
    let (blocks, results, shared) = unsafe {
        let region = |at: u64, len: u64| Some(Region::from_raw(NonNull::new(at as *mut u8)?, len as usize, None));
        let clear = |at: u64, len: u64| (at as *mut u8).write_bytes(0, len as usize);
        clear(results_at, sizes.results);
        clear(shared_at, sizes.shared);
        let writable = NonNull::new(tables::BLOCKS_WRITABLE as *mut u8);
        let blocks = region(tables::BLOCKS, at).zip(writable).map(|(r, w)| r.with_writable(w));
        (blocks, region(results_at, sizes.results), region(shared_at, sizes.shared))
    };
    let nowhere = "a part of memory lies at address zero";
    Ok(Memory {
        space,
        // SAFETY: taken from free memory, each once.
        programs: unsafe { Pool::new(programs) },
        // SAFETY: as above.
        cards: CardMemory(unsafe { Pool::new(cards) }),
        stacks,
        blocks: blocks.ok_or(nowhere)?,
        results: results.ok_or(nowhere)?,
        shared: shared.ok_or(nowhere)?,
        input: sizes.input as usize,
        on_huge,
    })
}

fn said(error: MapError) -> &'static str {
    match error {
        MapError::Full => "too little memory for tables of pages",
        MapError::Taken => "two parts of memory overlap",
    }
}

/// The memory below 4 GiB where it is: the image's code to be executed and its constants not to be written, data for the rest. Only what the
/// memory map calls usable: nobody shall touch registers by chance, nor by guessing ahead.
fn identity(space: Space, info: &BootInfo, pool: &mut Pool) -> Result<(), MapError> {
    let page = |address: u64| address.next_multiple_of(SMALL);
    let (trampoline, guard) = (boot::TRAMPOLINE, boot::stack_guard());
    let image = Area { start: boot::image_start(), end: page(boot::image_end()) };
    let mut free = Areas::new(info.memory.iter().copied());
    free.remove(image);
    free.remove(Area::new(trampoline, SMALL));
    for area in free.iter().map(|a| Area { end: a.end.min(LOW), ..a }.inside(SMALL)).filter(|a| !a.is_empty()) {
        space.map(area.start, area, Use::Data, false, pool)?;
    }
    let parts = [
        (trampoline, trampoline + SMALL, Use::Code),
        (image.start, page(boot::text_end()), Use::Code),
        (boot::rodata_start(), page(boot::rodata_end()), Use::Constants),
        (boot::data_start(), guard, Use::Data),
        // The page between is the first core's stack's end.
        (guard + SMALL, image.end, Use::Data),
    ];
    parts.into_iter().try_for_each(|(start, end, how)| space.map(start, Area { start, end }, how, false, pool))
}

/// Whether other cores can be started: their first pages are free memory.
pub fn has_trampoline(info: &BootInfo) -> bool {
    let pages = Area { start: boot::TRAMPOLINE, end: boot::PARAMETERS + SMALL };
    Areas::new(info.memory.iter().copied()).iter().any(|a| a.start <= pages.start && pages.end <= a.end)
}

/// Uses other tables of pages.
///
/// # Safety
/// They map all that is used from now on.
pub unsafe fn switch(space: Space) {
    // SAFETY: promised by the caller.
    unsafe { core::arch::asm!("mov cr3, {}", in(reg) space.0, options(nostack)) };
}

/// Makes device registers accessible, uncached; says where. The address need not be the start of a page.
pub fn map_device(space: Space, physical: u64, len: u64) -> Option<u64> {
    let mut guard = TABLES.lock();
    let (pool, mut next) = (guard.as_mut()?, DEVICES.lock());
    let first = physical / SMALL * SMALL;
    let last = physical.checked_add(len)?.checked_next_multiple_of(SMALL)?;
    let at = *next;
    space.map(at, Area { start: first, end: last }, Use::Registers, false, pool).ok()?;
    *next = (at + (last - first)).next_multiple_of(LARGE);
    Some(at + (physical - first))
}

/// A card's registers.
pub fn map_registers(space: Space, physical: u64, len: usize) -> Option<Bar> {
    let at = map_device(space, physical, len as u64)?;
    // SAFETY: mapped just now for this, uncached. A driver asks for its own device's registers, and drops what it no longer uses.
    Some(unsafe { Bar::new(NonNull::new(at as *mut u8)?, len) })
}

/// Reads physical memory that is the same at its virtual address.
///
/// # Safety
/// Called by the first core alone, on what nobody writes.
pub unsafe fn read_low(at: u64, out: &mut [u8]) -> bool {
    let end = at.checked_add(out.len() as u64);
    if at == 0 || end.is_none_or(|end| end > LOW) {
        return false;
    }
    // SAFETY: mapped since boot; the rest is promised.
    unsafe { (at as *const u8).copy_to_nonoverlapping(out.as_mut_ptr(), out.len()) };
    true
}

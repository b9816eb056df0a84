//! What the models share: memory between driver and card, a log of what the driver did, a clock that only counts.
#![allow(unsafe_code)]

use std::alloc::{Layout, alloc, dealloc};
use std::cell::{Cell, RefCell};
use std::ptr::NonNull;
use std::rc::Rc;

use crate::dma::{Dma, DmaBuffer};
use crate::error::StartError;
use crate::mmio::Mmio;
use crate::nic::{Mac, Nic};
use crate::start::{Notes, Options, Platform};

/// Physical addresses are virtual ones and this: a driver that mixes them up is caught, and so is one that drops upper halves.
const OFFSET: u64 = 0x10_0000_0000_0000;

thread_local! {
    static WROTE: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

/// Called at every write of a word into shared memory.
pub(crate) fn wrote(physical: u64) {
    WROTE.with_borrow_mut(|writes| writes.push(physical));
}

/// The addresses of the words written by `what`, in order.
pub(crate) fn writes_of(what: impl FnOnce()) -> Vec<u64> {
    WROTE.with_borrow_mut(Vec::clear);
    what();
    WROTE.with_borrow(Vec::clone)
}

struct Region {
    start: NonNull<u8>,
    layout: Layout,
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout in `alloc` below, and no driver or card outlives the test's memory.
        unsafe { dealloc(self.start.as_ptr(), self.layout) }
    }
}

/// Memory that drivers and cards share.
#[derive(Clone)]
pub(crate) struct Memory {
    regions: Rc<RefCell<Vec<Region>>>,
    /// Bytes still to be had.
    pub left: Rc<Cell<usize>>,
}

impl Memory {
    pub(crate) fn new() -> Self {
        Self { regions: Rc::default(), left: Rc::new(Cell::new(usize::MAX)) }
    }

    pub(crate) fn taken(&self) -> usize {
        self.regions.borrow().iter().map(|region| region.layout.size()).sum()
    }

    fn at(&self, physical: u64, len: usize) -> *mut u8 {
        let regions = self.regions.borrow();
        let inside = regions.iter().find_map(|region| {
            let offset = physical.checked_sub(region.start.as_ptr() as u64 + OFFSET)?;
            let fits = offset + len as u64 <= region.layout.size() as u64;
            fits.then(|| region.start.as_ptr().wrapping_add(offset as usize))
        });
        inside.unwrap_or_else(|| panic!("the card reaches {len} bytes at {physical:#x}, which nobody gave it"))
    }

    pub(crate) fn read<const N: usize>(&self, physical: u64) -> [u8; N] {
        // SAFETY: `at` found the bytes in a live region; one thread, and no slice of them is held while a card runs.
        unsafe { self.at(physical, N).cast::<[u8; N]>().read_unaligned() }
    }

    pub(crate) fn read16(&self, physical: u64) -> u16 {
        u16::from_le_bytes(self.read(physical))
    }

    pub(crate) fn read32(&self, physical: u64) -> u32 {
        u32::from_le_bytes(self.read(physical))
    }

    pub(crate) fn read64(&self, physical: u64) -> u64 {
        u64::from_le_bytes(self.read(physical))
    }

    pub(crate) fn bytes(&self, physical: u64, len: usize) -> Vec<u8> {
        // SAFETY: as for `read`.
        unsafe { core::slice::from_raw_parts(self.at(physical, len), len).to_vec() }
    }

    pub(crate) fn write(&self, physical: u64, bytes: &[u8]) {
        // SAFETY: as for `read`; the source is not in the region.
        unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), self.at(physical, bytes.len()), bytes.len()) }
    }
}

impl Dma for Memory {
    fn alloc(&mut self, len: usize, align: usize) -> Option<DmaBuffer> {
        self.left.set(self.left.get().checked_sub(len)?);
        let layout = Layout::from_size_align(len, align).expect("drivers ask for powers of two");
        // SAFETY: drivers never ask for nothing.
        let start = NonNull::new(unsafe { alloc(layout) })?;
        // SAFETY: just allocated; rubbish, since that is what a machine's memory holds.
        unsafe { start.as_ptr().write_bytes(0xa5, len) };
        self.regions.borrow_mut().push(Region { start, layout });
        // SAFETY: the region lives as long as the test's memory, and only the driver and its card get to know it.
        Some(unsafe { DmaBuffer::new(start, start.as_ptr() as u64 + OFFSET, len) })
    }
}

/// What a driver did, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// A write to a register: offset, value.
    Write(usize, u32),
    /// The card may reach memory from here on.
    BusMaster,
}

/// The card's side of its registers. Widths are in bytes.
pub(crate) trait Card {
    fn read(&mut self, offset: usize, width: usize) -> u32;
    fn write(&mut self, offset: usize, width: usize, value: u32);
    fn bus_master(&mut self);
    /// Frames that left, the oldest first; taken out by whoever looks.
    fn sent(&mut self) -> &mut Vec<Vec<u8>>;
}

/// A card, as the test and the driver both hold it.
pub(crate) struct Shared<C> {
    pub card: Rc<RefCell<C>>,
    pub events: Rc<RefCell<Vec<Event>>>,
    pub reads: Rc<Cell<usize>>,
}

impl<C> Clone for Shared<C> {
    fn clone(&self) -> Self {
        Self { card: self.card.clone(), events: self.events.clone(), reads: self.reads.clone() }
    }
}

impl<C: Card> Shared<C> {
    pub(crate) fn new(card: C) -> Self {
        Self { card: Rc::new(RefCell::new(card)), events: Rc::default(), reads: Rc::default() }
    }

    fn get(&self, offset: usize, width: usize) -> u32 {
        assert!(offset.is_multiple_of(width), "unaligned read of {width} bytes at {offset:#x}");
        self.reads.set(self.reads.get() + 1);
        self.card.borrow_mut().read(offset, width)
    }

    fn set(&self, offset: usize, width: usize, value: u32) {
        assert!(offset.is_multiple_of(width), "unaligned write of {width} bytes at {offset:#x}");
        self.events.borrow_mut().push(Event::Write(offset, value));
        self.card.borrow_mut().write(offset, width, value);
    }

    /// Where in the log the first event is that satisfies `wanted`; panics with `what` if there is none.
    pub(crate) fn first(&self, what: &str, wanted: impl Fn(Event) -> bool) -> usize {
        self.events.borrow().iter().position(|&event| wanted(event)).unwrap_or_else(|| panic!("never happened: {what}"))
    }

    /// The same for the last event.
    pub(crate) fn last(&self, what: &str, wanted: impl Fn(Event) -> bool) -> usize {
        self.events
            .borrow()
            .iter()
            .rposition(|&event| wanted(event))
            .unwrap_or_else(|| panic!("never happened: {what}"))
    }

    /// How often a register was written since the log was cleared.
    pub(crate) fn count(&self, register: usize) -> usize {
        let events = self.events.borrow();
        events.iter().filter(|event| matches!(event, Event::Write(offset, _) if *offset == register)).count()
    }
}

/// Whether an event writes these bits, among others, to a register.
pub(crate) fn is_write(register: usize, bits: u32) -> impl Fn(Event) -> bool {
    move |event| matches!(event, Event::Write(offset, value) if offset == register && value & bits == bits)
}

impl<C: Card> Mmio for Shared<C> {
    fn read8(&self, offset: usize) -> u8 {
        self.get(offset, 1) as u8
    }
    fn read16(&self, offset: usize) -> u16 {
        self.get(offset, 2) as u16
    }
    fn read32(&self, offset: usize) -> u32 {
        self.get(offset, 4)
    }
    fn write8(&self, offset: usize, value: u8) {
        self.set(offset, 1, value.into());
    }
    fn write16(&self, offset: usize, value: u16) {
        self.set(offset, 2, value.into());
    }
    fn write32(&self, offset: usize, value: u32) {
        self.set(offset, 4, value);
    }
}

/// Any card's registers, from an offset on.
pub(crate) struct Window(pub Rc<dyn Mmio>, pub usize);

impl Mmio for Window {
    fn read8(&self, offset: usize) -> u8 {
        self.0.read8(self.1 + offset)
    }
    fn read16(&self, offset: usize) -> u16 {
        self.0.read16(self.1 + offset)
    }
    fn read32(&self, offset: usize) -> u32 {
        self.0.read32(self.1 + offset)
    }
    fn write8(&self, offset: usize, value: u8) {
        self.0.write8(self.1 + offset, value);
    }
    fn write16(&self, offset: usize, value: u16) {
        self.0.write16(self.1 + offset, value);
    }
    fn write32(&self, offset: usize, value: u32) {
        self.0.write32(self.1 + offset, value);
    }
}

/// Plain registers: what was written is read back.
pub(crate) struct Registers(pub Vec<u8>);

impl Registers {
    pub(crate) fn new(len: usize) -> Self {
        Self(vec![0; len])
    }

    pub(crate) fn get(&self, offset: usize, width: usize) -> u32 {
        let mut bytes = [0; 4];
        bytes[..width].copy_from_slice(&self.0[offset..offset + width]);
        u32::from_le_bytes(bytes)
    }

    pub(crate) fn set(&mut self, offset: usize, width: usize, value: u32) {
        self.0[offset..offset + width].copy_from_slice(&value.to_le_bytes()[..width]);
    }

    pub(crate) fn get64(&self, offset: usize) -> u64 {
        u64::from(self.get(offset, 4)) | u64::from(self.get(offset + 4, 4)) << 32
    }
}

/// A start outside the search.
pub(crate) struct Bench {
    pub memory: Memory,
    pub options: Options,
    pub mac: Option<Mac>,
    pub notes: Notes,
    /// Microseconds waited.
    pub waited: Rc<Cell<u64>>,
}

impl Bench {
    pub(crate) fn new() -> Self {
        let options = Options { rx_ring: 8, tx_ring: 8, ..Options::default() };
        Self { memory: Memory::new(), options, mac: None, notes: Notes::default(), waited: Rc::default() }
    }

    /// Runs a driver's start on a card.
    pub(crate) fn start<C: Card, N>(
        &mut self,
        shared: &Shared<C>,
        start: impl FnOnce(Shared<C>, &mut Platform) -> Result<N, StartError>,
    ) -> Result<N, StartError> {
        let waited = self.waited.clone();
        let mut platform = Platform {
            clock: &move |us: u32| waited.set(waited.get() + u64::from(us)),
            dma: &mut self.memory,
            bus_master: &mut || {
                shared.events.borrow_mut().push(Event::BusMaster);
                shared.card.borrow_mut().bus_master();
            },
            options: &self.options,
            mac: self.mac,
            notes: &mut self.notes,
        };
        start(shared.clone(), &mut platform)
    }
}

pub(crate) const MAC: [u8; 6] = [0x52, 0x54, 0x00, 0x12, 0x34, 0x56];

/// A broadcast frame of `len` bytes whose payload tells it from others.
pub(crate) fn frame(len: usize, tag: u8) -> Vec<u8> {
    let mut frame = vec![tag; len];
    frame[..14].copy_from_slice(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 0, tag, 0x88, 0xb5]);
    frame
}

/// Sends `bytes`; whether there was room.
pub(crate) fn send(nic: &mut impl Nic, bytes: &[u8]) -> bool {
    nic.tx(bytes.len(), &mut |buffer| buffer.copy_from_slice(bytes))
}

/// The next received frame.
pub(crate) fn receive(nic: &mut impl Nic) -> Option<Vec<u8>> {
    let mut received = None;
    let any = nic.rx(&mut |bytes| {
        assert!(received.is_none(), "one frame at most");
        received = Some(bytes.to_vec());
    });
    assert_eq!(any, received.is_some(), "the answer says whether there was a frame");
    received
}

/// Sends frames of many lengths, one by one; all leave at the flush, with nothing of earlier ones in their padding.
pub(crate) fn sends_frames_padded_and_whole<C: Card>(nic: &mut impl Nic, card: &Shared<C>) {
    for round in 0..50u8 {
        let len = 14 + usize::from(round) * 30;
        assert!(send(nic, &frame(len, round)));
        assert!(card.card.borrow_mut().sent().is_empty(), "nothing leaves before the flush");
        nic.flush();
        let sent = card.card.borrow_mut().sent().pop().expect("sent");
        assert_eq!((sent.len(), &sent[..len]), (len.max(60), &frame(len, round)[..]));
        assert!(sent[len..].iter().all(|&byte| byte == 0), "padding tells nothing about earlier frames");
    }
    assert_eq!(nic.counters().tx_frames, 50);
}

//! The search for a card, with cards behind it.

use std::cell::RefCell;
use std::rc::Rc;

use super::bench::{Bench, Card, Event, MAC, Memory, Shared, Window, frame, receive, send};
use super::intel_card::IntelCard;
use super::pci_space::{Slot, Space, bdf};
use super::realtek_card::RealtekCard;
use super::virtio_card::{DEVICE, NOTIFY, VirtioCard};
use crate::error::{NicError, StartError};
use crate::mmio::Mmio;
use crate::nic::{Nic, Proven};
use crate::probe::{AnyNic, Filter, Found, probe};
use crate::realtek::{Kind, command, reg};

const REALTEK_AT: u64 = 0x7000_0000;
const INTEL_AT: u64 = 0x7100_0000;
const VIRTIO_AT: u64 = 0xe0_0000_0000;

/// An Intel card on bus 0, a Realtek card behind a bridge, both as the firmware leaves them.
struct Machine {
    space: Space,
    memory: Memory,
    cards: Vec<(u64, Rc<dyn Mmio>)>,
    mapped: RefCell<Vec<(u64, usize)>>,
}

fn realtek_slot() -> Slot {
    let mut slot = Slot::card(0x10ec, 0x8125);
    slot.bar64(2, REALTEK_AT, 0x1_0000);
    slot
}

fn intel_slot() -> Slot {
    let mut slot = Slot::card(0x8086, 0x125c);
    slot.bar32(0, INTEL_AT as u32, 0x10_0000);
    slot
}

fn virtio_slot() -> Slot {
    let mut slot = Slot::card(0x1af4, 0x1000);
    slot.bar64(4, VIRTIO_AT, 0x4000);
    // After power management and express: common, notify, device.
    slot.add(0x50, 0x7000);
    for (at, next, kind, offset, len) in
        [(0x70, 0x88, 1, 0, 0x1000), (0x88, 0xa0, 2, NOTIFY, 0x1000), (0xa0, 0, 4, DEVICE, 0x20)]
    {
        slot.add(at, 0x09 | next << 8 | 20 << 16 | kind << 24);
        slot.add(at + 4, 4);
        slot.add(at + 8, offset as u32);
        slot.add(at + 12, len);
        slot.add(at + 16, 4);
    }
    slot
}

impl Machine {
    fn new(slots: impl IntoIterator<Item = (crate::pci::Bdf, Slot)>) -> Self {
        let memory = Memory::new();
        Self { space: Space::with(slots), memory, cards: Vec::new(), mapped: RefCell::default() }
    }

    fn plug<C: Card + 'static>(&mut self, address: u64, card: C) -> Shared<C> {
        let shared = Shared::new(card);
        self.cards.push((address, Rc::new(shared.clone())));
        shared
    }

    #[allow(clippy::result_large_err, reason = "as for the function tested")]
    fn probe(&self, filter: Filter) -> Result<Found<Window>, NicError> {
        let options = Bench::new().options;
        let map = |physical: u64, len: usize| {
            self.mapped.borrow_mut().push((physical, len));
            let (start, card) =
                self.cards.iter().find(|(start, _)| (*start..*start + 0x10_0000).contains(&physical))?;
            Some(Window(card.clone(), (physical - start) as usize))
        };
        probe(&self.space, map, &mut self.memory.clone(), &|_: u32| (), &filter, &options)
    }
}

/// The model needs to hear about bus mastering, which here goes through configuration space: a card that asks it.
struct Watched<C>(C, bool);

impl<C: Card> Card for Watched<C> {
    fn sent(&mut self) -> &mut Vec<Vec<u8>> {
        self.0.sent()
    }
    fn read(&mut self, offset: usize, width: usize) -> u32 {
        self.0.read(offset, width)
    }
    fn write(&mut self, offset: usize, width: usize, value: u32) {
        self.0.write(offset, width, value);
        // Told at the first write after the reset; the order itself is checked below, against the space's log.
        let reset = match offset {
            reg::COMMAND => value & u32::from(command::RESET) != 0,
            0 => value & 1 << 26 != 0,
            0x14 => value == 0,
            _ => false,
        };
        if reset && !self.1 {
            self.1 = true;
            self.0.bus_master();
        }
    }
    fn bus_master(&mut self) {}
}

fn both() -> (Machine, Shared<Watched<RealtekCard>>, Shared<Watched<IntelCard>>) {
    let mut machine = Machine::new([
        (bdf(0, 0x1c, 0), Slot::bridge(0, 1)),
        (bdf(0, 4, 0), intel_slot()),
        (bdf(1, 0, 0), realtek_slot()),
    ]);
    let realtek = RealtekCard::new(Kind::Rtl8125, &machine.memory);
    let realtek = machine.plug(REALTEK_AT, Watched(realtek, false));
    let mut intel = IntelCard::new(true, &machine.memory);
    intel.registers.0[0x5400] = 0x02;
    let intel = machine.plug(INTEL_AT, Watched(intel, false));
    (machine, realtek, intel)
}

#[test]
fn the_first_card_in_bus_order_is_taken() {
    let (machine, _realtek, intel) = both();
    let mut found = machine.probe(Filter::default()).expect("both work");
    assert_eq!((found.at.bdf, found.nic.name(), found.nic.proven()), (bdf(0, 4, 0), "igc", Proven::ModelOnly));
    assert!(found.notes.is_empty(), "{}", found.notes);
    assert!(send(&mut found.nic, &frame(60, 1)));
    found.nic.flush();
    assert_eq!(intel.card.borrow().0.sent.len(), 1);
    assert_eq!(*machine.mapped.borrow(), [(INTEL_AT, 0x1_0000)], "only what is used");
}

#[test]
fn a_filter_by_place_or_address_takes_another() {
    let wanted = [
        Filter { bdf: Some(bdf(1, 0, 0)), ..Filter::default() },
        Filter { mac: Some(MAC), ..Filter::default() },
        Filter { bdf: Some(bdf(1, 0, 0)), mac: Some(MAC) },
    ];
    for filter in wanted {
        let (machine, realtek, _intel) = both();
        let mut found = machine.probe(filter).expect("the Realtek card fits");
        assert_eq!((found.at.bdf, found.nic.name(), found.nic.mac()), (bdf(1, 0, 0), "rtl8125", MAC));
        realtek.card.borrow_mut().0.arrive(&frame(60, 5));
        assert_eq!(receive(&mut found.nic), Some(frame(60, 5)));
        assert_eq!(machine.space.word(bdf(0, 4, 0), 4) & 4, 0, "the other has no access to memory");
        assert_eq!(machine.space.word(bdf(1, 0, 0), 4) & 6, 6);
    }
}

#[test]
fn a_card_that_fails_is_left_for_the_next_and_kept_from_memory() {
    let (machine, _realtek, intel) = both();
    intel.card.borrow_mut().0.never_enables = true;
    let found = machine.probe(Filter::default()).expect("the Realtek card works");
    assert!(matches!(found.nic, AnyNic::Realtek(_)));
    assert_eq!(machine.space.word(bdf(0, 4, 0), 4) & 4, 0);
}

#[test]
fn bus_mastering_is_off_while_a_card_is_reset() {
    let (machine, realtek, _intel) = both();
    let at = bdf(1, 0, 0);
    realtek.card.borrow_mut().0.stuck_in_reset = true;
    machine.probe(Filter { bdf: Some(at), ..Filter::default() }).map(drop).expect_err("stuck");
    let commands: Vec<u32> = machine
        .space
        .writes
        .borrow()
        .iter()
        .filter(|&&(bdf, offset, _)| bdf == at && offset == 4)
        .map(|write| write.2)
        .collect();
    assert!(commands.iter().all(|command| command & 4 == 0), "{commands:x?}");
    assert!(realtek.events.borrow().contains(&Event::Write(reg::COMMAND, command::RESET.into())));
}

#[test]
fn virtio_is_found_through_its_capabilities() {
    let mut machine = Machine::new([(bdf(0, 3, 0), virtio_slot())]);
    let card = VirtioCard::new(&machine.memory);
    let card = machine.plug(VIRTIO_AT, Watched(card, false));
    let mut found = machine.probe(Filter::default()).expect("works");
    assert_eq!((found.nic.name(), found.nic.mac(), found.nic.proven()), ("virtio-net", MAC, Proven::Emulator));
    assert!(card.card.borrow_mut().0.arrive(&frame(60, 5)));
    assert_eq!(receive(&mut found.nic), Some(frame(60, 5)));
    let expected = [(VIRTIO_AT, 0x1000), (VIRTIO_AT + 0x1000, 0x1000), (VIRTIO_AT + 0x2000, 0x20)];
    assert_eq!(*machine.mapped.borrow(), expected);
}

#[test]
fn virtio_capabilities_that_lie_are_refused() {
    type Break = fn(&mut Slot);
    let cases: [(Break, u8); 6] = [
        (|slot| slot.words[0x70 / 4] &= 0x00ff_ffff, 1),
        (|slot| slot.words[0x74 / 4] = 9, 1),
        (|slot| slot.words[0x78 / 4] = 0x4000, 1),
        (|slot| slot.words[0x94 / 4] = u32::MAX, 2),
        (|slot| slot.words[0x94 / 4] = 0, 2),
        (|slot| slot.words[0xa8 / 4] = 0xffff_fff0, 4),
    ];
    for (damage, kind) in cases {
        let mut slot = virtio_slot();
        damage(&mut slot);
        let machine = Machine::new([(bdf(0, 3, 0), slot)]);
        let error = machine.probe(Filter::default()).map(drop).expect_err("broken");
        let first = error.failures.iter().next().expect("one").error;
        assert_eq!(first, StartError::NoCapability(kind));
    }
}

#[test]
fn the_error_lists_what_was_seen_and_what_went_wrong() {
    let machine = Machine::new([]);
    let error = machine.probe(Filter::default()).map(drop).expect_err("empty").to_string();
    assert_eq!(error, "no network card on any PCI bus");

    let mut unmapped = intel_slot();
    unmapped.words[4] = 0;
    let mut old = Slot::card(0x10ec, 0x8139);
    old.words[2] = 0x0200_0010;
    let machine = Machine::new([
        (bdf(0, 0x19, 0), Slot::card(0x8086, 0x15bc)),
        (bdf(0, 3, 0), unmapped),
        (bdf(0, 5, 0), old),
        (bdf(2, 0, 0), realtek_slot()),
    ]);
    let error = machine.probe(Filter::default()).map(drop).expect_err("none works").to_string();
    assert_eq!(
        error,
        "no network card could be started; seen: 00:03.0 8086:125c, 00:05.0 10ec:8139, 00:19.0 8086:15bc, 02:00.0 10ec:8125; \
         00:03.0 igc: base address register 0 is at 0x0 with 0x100000 bytes, expected 0x10000 bytes of memory somewhere, \
         02:00.0 rtl8125: cannot map 0x4804 bytes of registers at 0x70000000"
    );
    let filter = Filter { bdf: Some(bdf(9, 9, 1)), ..Filter::default() };
    let error = machine.probe(filter).map(drop).expect_err("filtered").to_string();
    assert!(error.ends_with("; none with a driver that the filter admits"), "{error}");
}

#[test]
fn a_report_that_overflows_says_how_much_is_missing() {
    let many = (0..31).map(|device| (bdf(0, device, 0), Slot::card(0x1234, device.into())));
    let error = Machine::new(many).probe(Filter::default()).map(drop).expect_err("no driver").to_string();
    assert!(error.contains("00:0f.0 1234:000f and 15 more"), "{error}");
}

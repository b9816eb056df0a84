//! Configuration space: searching, preparing, sizing; sane and insane.

use super::pci_space::{Slot, Space, bdf};
use crate::pci::{BarInfo, Bdf, ConfigSpace, bar, bridges_above, capabilities, enable_bus_master, functions, prepare};

fn no_delay(_: u32) {}

#[test]
fn cards_behind_bridges_are_found_in_bus_order() {
    let space = Space::with([
        (bdf(2, 0, 0), Slot::card(0x10ec, 0x8125)),
        (bdf(0, 0x1c, 0), Slot::bridge(0, 1)),
        (bdf(1, 3, 0), Slot::bridge(1, 2)),
        (bdf(0, 0x1f, 0), Slot::new(0x8086, 1, 0x0601)),
    ]);
    let found: Vec<Bdf> = functions(&space).map(|function| function.bdf).collect();
    assert_eq!(found, [bdf(0, 0x1c, 0), bdf(0, 0x1f, 0), bdf(1, 3, 0), bdf(2, 0, 0)]);
    let nic = functions(&space).find(|function| function.is_network()).expect("there is one");
    assert_eq!((nic.vendor, nic.device, nic.revision), (0x10ec, 0x8125, 0x20));
    let mut above = Vec::new();
    bridges_above(&space, 2, |bridge| above.push(bridge));
    assert_eq!(above, [bdf(1, 3, 0), bdf(0, 0x1c, 0)], "nearest first");
}

#[test]
fn functions_beyond_the_first_count_only_if_the_first_says_so() {
    let mut first = Slot::new(1, 1, 0);
    let slots = |first: &Slot| [(bdf(0, 1, 0), first.clone()), (bdf(0, 1, 5), Slot::new(1, 2, 0x0200))];
    assert_eq!(functions(&Space::with(slots(&first))).count(), 1);
    first.add(0xc, 0x0080_0000);
    assert_eq!(functions(&Space::with(slots(&first))).count(), 2);
}

#[test]
fn preparing_switches_power_saving_off_on_the_whole_way_up() {
    let (card, port, inner) = (bdf(2, 0, 0), bdf(0, 0x1c, 0), bdf(1, 3, 0));
    let mut slot = Slot::card(0x10ec, 0x8125);
    slot.bar64(2, 0xfe00_0000, 0x1_0000);
    let space = Space::with([(card, slot), (port, Slot::bridge(0, 1)), (inner, Slot::bridge(1, 2))]);
    prepare(&space, card, &no_delay);
    assert_eq!(space.word(card, 4) & 0x407, 0x402 | 1, "memory on, bus master off, no interrupts");
    assert_eq!(space.word(card, 4) >> 29 & 1, 1, "status untouched");
    assert_eq!(space.word(card, 0x44), 0, "power state D0, no wake-up, its event bit not written");
    assert_eq!(space.word(card, 0x60) & 0x103, 0, "no ASPM, no clock power management");
    assert_eq!(space.word(card, 0x60) & 0x40, 0x40, "the rest of link control stays");
    for bridge in [port, inner] {
        assert_eq!(space.word(bridge, 0x50), 0x40, "{bridge}: no ASPM");
        assert_eq!(space.word(bridge, 4) & 6, 6, "{bridge}: forwards");
    }
    let link =
        |at| space.writes.borrow().iter().position(|&(bdf, offset, _)| bdf == at && matches!(offset, 0x50 | 0x60));
    assert!(link(card) < link(inner) && link(inner) < link(port), "the lower end of a link first");
    enable_bus_master(&space, card);
    assert_eq!(space.word(card, 4) & 4, 4);
}

#[test]
fn bars_are_sized_and_left_as_they_were() {
    let at = bdf(0, 3, 0);
    let mut slot = Slot::card(0x1af4, 0x1041);
    slot.bar32(1, 0xfebd_1000, 0x1000);
    // Where some firmware puts 64-bit registers: beyond 512 GiB.
    slot.bar64(4, 0xe0_0000_0000, 0x4000);
    slot.words[4] = 0xc001;
    let before = slot.words;
    let space = Space::with([(at, slot)]);
    assert_eq!(bar(&space, at, 0), None, "ports");
    assert_eq!(bar(&space, at, 1), Some(BarInfo { index: 1, address: 0xfebd_1000, len: 0x1000 }));
    assert_eq!(bar(&space, at, 2), None, "nothing");
    assert_eq!(bar(&space, at, 4), Some(BarInfo { index: 4, address: 0xe0_0000_0000, len: 0x4000 }));
    assert_eq!(bar(&space, at, 6), None, "no such register");
    assert_eq!(space.slots.borrow()[&at].words, before);
}

#[test]
fn bars_that_make_no_sense_are_none() {
    let at = bdf(0, 3, 0);
    let mut holes = Slot::card(1, 1);
    holes.masks[0] = 0xff0f_f000;
    holes.words[4] = 0x1000;
    let mut crooked = Slot::card(1, 1);
    crooked.bar32(0, 0x1000, 0x1_0000);
    let mut cut = Slot::card(1, 1);
    cut.words[9] = 0xfe00_0004;
    cut.masks[5] = 0xffff_0000;
    for (what, slot, index) in [("holes", holes, 0), ("crooked", crooked, 0), ("64 bits in the last", cut, 5)] {
        assert_eq!(bar(&Space::with([(at, slot)]), at, index), None, "{what}");
    }
}

#[test]
fn capability_lists_that_go_in_circles_end() {
    let at = bdf(0, 3, 0);
    let mut circle = Slot::new(1, 1, 0x0200);
    circle.add(0x34, 0x40);
    circle.add(0x40, 0x5009);
    circle.add(0x50, 0x4009);
    assert_eq!(capabilities(&Space::with([(at, circle.clone())]), at).count(), 48);
    prepare(&Space::with([(at, circle)]), at, &no_delay);
    let mut outside = Slot::new(1, 1, 0x0200);
    outside.add(0x34, 0xfc);
    outside.add(0xfc, 0x0410);
    let found: Vec<(u8, u8)> = capabilities(&Space::with([(at, outside.clone())]), at).collect();
    assert_eq!(found, [(0x10, 0xfc)], "a list that leads into the header ends");
    prepare(&Space::with([(at, outside)]), at, &no_delay);
    let mut none = Slot::new(1, 1, 0x0200);
    none.words[1] = 0;
    none.add(0x34, 0x40);
    none.add(0x40, 0x0010);
    assert_eq!(capabilities(&Space::with([(at, none)]), at).count(), 0, "status says that there are none");
}

/// Every function exists, is a bridge to everywhere, and each word leads back to itself.
struct Hostile(u32);

impl ConfigSpace for Hostile {
    fn read32(&self, at: Bdf, offset: u8) -> u32 {
        match offset {
            0 => 0x8125_10ec,
            4 => 1 << 20,
            8 => 0x0200_0000,
            0xc => 0x0081_0000,
            0x18 => u32::from(at.bus) << 8,
            _ => self.0,
        }
    }
    fn write32(&self, _: Bdf, _: u8, _: u32) {}
}

#[test]
fn hostile_configuration_space_does_not_hang() {
    for word in [0, 1, 0x4040_4040, 0x1010_4010, u32::MAX, 0x0000_4001] {
        let space = Hostile(word);
        assert_eq!(functions(&space).count(), 65536);
        prepare(&space, bdf(255, 31, 7), &no_delay);
        (0..=255).for_each(|index| assert!(bar(&space, bdf(255, 31, 7), index).is_none_or(|bar| bar.len >= 16)));
    }
}

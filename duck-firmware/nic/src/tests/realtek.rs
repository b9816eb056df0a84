//! The Realtek drivers.

use super::bench::{
    Bench, Event, MAC, Shared, frame, is_write, receive, send, sends_frames_padded_and_whole, writes_of,
};
use super::realtek_card::RealtekCard;
use crate::error::StartError;
use crate::nic::{JUMBO_FRAME, Mac, Nic};
use crate::realtek::{Kind, NO_DESCRIPTOR, Realtek, UNLOCK, command, model, reg};

type Card = Shared<RealtekCard>;

const KINDS: [Kind; 2] = [Kind::Cplus8139, Kind::Rtl8125];

fn try_start(bench: &mut Bench, card: &Card) -> Result<Realtek<Card>, StartError> {
    let device = if card.card.borrow().kind == Kind::Rtl8125 { 0x8125 } else { 0x8139 };
    let model = model(0x10ec, device, 0x20).expect("supported");
    bench.start(card, |registers, platform| Realtek::start(registers, model, platform))
}

fn card(bench: &Bench, kind: Kind) -> Card {
    Shared::new(RealtekCard::new(kind, &bench.memory))
}

fn started(kind: Kind) -> (Bench, Card, Realtek<Card>) {
    let mut bench = Bench::new();
    let card = card(&bench, kind);
    let nic = try_start(&mut bench, &card).expect("the model works");
    card.events.borrow_mut().clear();
    (bench, card, nic)
}

#[test]
fn start_writes_in_the_order_that_the_cards_need() {
    for kind in KINDS {
        let mut bench = Bench::new();
        let card = card(&bench, kind);
        try_start(&mut bench, &card).expect("the model works");
        assert!(bench.notes.is_empty(), "{kind:?}: {}", bench.notes);
        let reset = card.first("reset", is_write(reg::COMMAND, command::RESET.into()));
        let master = card.first("bus master", |event| event == Event::BusMaster);
        assert!(reset < master, "{kind:?}: reset comes first");
        let runs = |event| matches!(event, Event::Write(reg::COMMAND, value) if value & 0x10 == 0 && value & 0x0c != 0);
        let run = card.last("run", runs);
        for ring in [reg::TX_RING, reg::RX_RING] {
            assert!(card.last("ring", is_write(ring, 0)) < run, "{kind:?}: ring {ring:#x} comes before running");
        }
        let (unlock, lock) = (
            card.last("unlock", is_write(reg::LOCK, UNLOCK.into())),
            card.last("lock", |event| event == Event::Write(reg::LOCK, 0)),
        );
        assert!(unlock < lock, "{kind:?}: left locked");
    }
}

#[test]
fn rtl8125_sets_its_address_between_unlock_and_lock_high_word_first() {
    let mut bench = Bench::new();
    let card = card(&bench, Kind::Rtl8125);
    try_start(&mut bench, &card).expect("the model works");
    let high = card.first("high", is_write(reg::MAC_HIGH, 0x5634));
    let low = card.first("low", is_write(reg::MAC_LOW, 0x1200_5452));
    let events = card.events.borrow();
    assert_eq!(events[high - 1], Event::Write(reg::LOCK, UNLOCK.into()));
    assert_eq!((low, events[low + 1]), (high + 1, Event::Write(reg::LOCK, 0)));
}

#[test]
fn rtl8125_opens_the_gate_and_uses_short_descriptors_and_one_queue() {
    let (_bench, card, _nic) = started(Kind::Rtl8125);
    let card = card.card.borrow();
    assert_eq!(card.registers.get(0xf2, 1) & 8, 0, "gate open");
    assert_eq!(card.mac_bus[&0xeb58] & 1, 0);
    assert_eq!(card.mac_bus[&0xe614] >> 8 & 7, 2, "8125B");
    assert_eq!((card.registers.get(0x4500, 4), card.registers.get(0x4800, 4)), (0, 0));
    assert_eq!(card.registers.get(0x38, 4), 0, "no interrupts");
    assert_eq!(card.registers.get(reg::RX_CONFIG, 4), 1 << 30 | 1 << 11 | 4 << 8 | 0x0a);
    assert_eq!(card.registers.get(reg::TX_CONFIG, 4) & 1 << 6, 0, "descriptors are given back");
    assert_eq!(card.registers.get(0x53, 1) & 0x80 | card.registers.get(0x56, 1) & 1, 0, "no ASPM");
    assert_eq!(card.phy_bus[&0xa430] & 0x8004, 0, "no ALDPS, no extended EEE");
    assert_eq!(card.phy_bus[&0xa5d4] & 0x80, 0x80, "2.5 gigabit on offer");
    assert_eq!(card.phy_bus[&0xa400], 1 << 12 | 1 << 9, "negotiates anew");
    assert_eq!(card.phy_bus[&0xa438], 0x2417 & !0x2700 | 0xd800, "the last of the 8125B's table");
}

#[test]
fn every_known_generation_starts_and_an_unknown_one_says_what_it_is() {
    for chip in [0x608, 0x609, 0x640, 0x641, 0x680, 0x681, 0x688, 0x689, 0x68a, 0x708] {
        let mut bench = Bench::new();
        let card = card(&bench, Kind::Rtl8125);
        card.card.borrow_mut().chip = chip;
        card.card.borrow_mut().registers.set(0xd8, 1, 0xff);
        try_start(&mut bench, &card).unwrap_or_else(|error| panic!("{chip:x}: {error}"));
        let formats = card.card.borrow().registers.get(0xd8, 1) & 3;
        assert_eq!(formats, if chip < 0x680 { 3 } else { 0 }, "{chip:x}: plain receive descriptors");
    }
    let mut bench = Bench::new();
    let card = card(&bench, Kind::Rtl8125);
    card.card.borrow_mut().chip = 0x54c;
    let error = try_start(&mut bench, &card).map(drop).expect_err("not an 8125").to_string();
    assert!(error.starts_with("step 'identify chip': found 0x54c"), "{error}");
}

#[test]
fn frames_go_out_padded_and_whole_over_many_rounds_of_the_ring() {
    for kind in KINDS {
        let (_bench, card, mut nic) = started(kind);
        sends_frames_padded_and_whole(&mut nic, &card);
    }
}

#[test]
fn rings_are_no_longer_than_the_card_counts() {
    for kind in KINDS {
        let mut bench = Bench::new();
        (bench.options.rx_ring, bench.options.tx_ring) = (256, 256);
        let card = card(&bench, kind);
        let mut nic = try_start(&mut bench, &card).expect("the model works");
        for round in 0..300u32 {
            let bytes = frame(60 + round as usize, round as u8);
            assert!(send(&mut nic, &bytes));
            nic.flush();
            assert_eq!(card.card.borrow_mut().sent.pop().as_ref(), Some(&bytes), "{kind:?}: frame {round} sent");
            let bytes = [&MAC[..], &bytes[6..]].concat();
            card.card.borrow_mut().arrive(&bytes);
            assert_eq!(receive(&mut nic).as_ref(), Some(&bytes), "{kind:?}: frame {round} received");
        }
    }
}

#[test]
fn a_batch_needs_one_doorbell() {
    for (kind, doorbell) in [(Kind::Cplus8139, 0xd9), (Kind::Rtl8125, 0x90)] {
        let (_bench, card, mut nic) = started(kind);
        (0..5).for_each(|tag| assert!(send(&mut nic, &frame(60, tag))));
        nic.flush();
        nic.flush();
        assert_eq!(card.count(doorbell), 1);
        assert_eq!(card.card.borrow().sent.len(), 5);
    }
}

#[test]
fn ownership_is_written_last() {
    for kind in KINDS {
        let (_bench, card, mut nic) = started(kind);
        let ring = card.card.borrow().registers.get64(reg::TX_RING);
        let writes = writes_of(|| assert!(send(&mut nic, &frame(60, 1))));
        assert_eq!(writes, [ring + 4, ring + 8, ring]);
        card.card.borrow_mut().arrive(&frame(60, 1));
        let ring = card.card.borrow().registers.get64(reg::RX_RING);
        let writes = writes_of(|| assert!(receive(&mut nic).is_some()));
        assert_eq!(writes, [ring + 4, ring + 8, ring]);
    }
}

#[test]
fn a_full_send_ring_refuses_until_the_card_sent_something() {
    for kind in KINDS {
        let (_bench, card, mut nic) = started(kind);
        card.card.borrow_mut().budget = 1;
        (0..8).for_each(|tag| assert!(send(&mut nic, &frame(60, tag))));
        assert!(!nic.tx(60, &mut |_| panic!("a full ring does not ask for bytes")));
        assert_eq!(nic.counters().tx_full, 1);
        nic.flush();
        assert!(send(&mut nic, &frame(60, 8)), "one was sent");
        assert!(!send(&mut nic, &frame(60, 9)));
        card.card.borrow_mut().budget = usize::MAX;
        nic.flush();
        let tags: Vec<u8> = card.card.borrow().sent.iter().map(|sent| sent[20]).collect();
        assert_eq!(tags, [0, 1, 2, 3, 4, 5, 6, 7, 8], "in order, none twice");
    }
}

#[test]
fn a_lost_doorbell_is_rung_again() {
    let (_bench, card, mut nic) = started(Kind::Rtl8125);
    card.card.borrow_mut().budget = 0;
    assert!(send(&mut nic, &frame(60, 1)));
    nic.flush();
    card.card.borrow_mut().budget = usize::MAX;
    (0..5000).for_each(|_| assert_eq!(receive(&mut nic), None));
    assert_eq!(card.card.borrow().sent.len(), 1);
    assert_eq!(card.count(0x90), 2, "and not at every poll");
}

#[test]
fn received_frames_come_without_their_check_sequence() {
    for kind in KINDS {
        let (_bench, card, mut nic) = started(kind);
        for round in 0..50u8 {
            let len = 60 + usize::from(round) * 29;
            card.card.borrow_mut().arrive(&frame(len, round));
            assert_eq!(receive(&mut nic), Some(frame(len, round)));
            assert_eq!(receive(&mut nic), None);
        }
        card.card.borrow_mut().arrive(&[&MAC[..], &[2; 54]].concat());
        assert!(receive(&mut nic).is_some(), "frames for the own address");
        card.card.borrow_mut().arrive(&[0x52; 60]);
        assert_eq!(receive(&mut nic), None, "not those for others");
        assert_eq!(nic.counters().rx_frames, 51);
    }
}

#[test]
fn a_card_out_of_descriptors_goes_on_after_the_driver_emptied_the_ring() {
    for kind in KINDS {
        let (_bench, card, mut nic) = started(kind);
        (0..11).for_each(|tag| card.card.borrow_mut().arrive(&frame(60, tag)));
        assert_eq!(card.card.borrow().missed, 3);
        let tags: Vec<u8> = std::iter::from_fn(|| receive(&mut nic)).map(|frame| frame[20]).collect();
        assert_eq!(tags, [0, 1, 2, 3, 4, 5, 6, 7]);
        card.card.borrow_mut().arrive(&frame(60, 77));
        assert_eq!(receive(&mut nic), Some(frame(60, 77)), "{kind:?}: the card was told to go on");
        assert_eq!(nic.counters().rx_overruns, 1);
    }
}

#[test]
fn descriptors_are_given_back_before_running_out_is_acknowledged() {
    let (_bench, card, mut nic) = started(Kind::Rtl8125);
    (0..9).for_each(|tag| card.card.borrow_mut().arrive(&frame(60, tag)));
    // A flood: the ring never becomes empty, so the acknowledgement must come in between.
    for tag in 0..100 {
        assert!(receive(&mut nic).is_some(), "frame {tag}");
        card.card.borrow_mut().arrive(&frame(60, tag));
    }
    assert!(card.card.borrow().missed < 10, "missed {}", card.card.borrow().missed);
    let acknowledged = card.first("acknowledgement", is_write(0x3c, NO_DESCRIPTOR));
    assert_eq!(card.events.borrow()[acknowledged], Event::Write(0x3c, 0x13));
}

#[test]
fn damaged_frames_are_counted_and_skipped() {
    let whole = 3 << 28;
    for (kind, error) in [(Kind::Cplus8139, 1 << 20), (Kind::Rtl8125, 1 << 21)] {
        let (_bench, card, mut nic) = started(kind);
        let bad = [
            ("error summary", whole | error | 64),
            ("first piece only", 1 << 29 | 64),
            ("last piece only", 1 << 28 | 64),
            ("empty", whole),
            ("shorter than a header", whole | 17),
            ("longer than the buffer", whole | 1519),
            ("longest that the field can say", whole | 0x1fff),
        ];
        for (what, opts1) in bad {
            card.card.borrow_mut().deliver(&frame(64, 1), opts1);
            card.card.borrow_mut().arrive(&frame(60, 2));
            assert_eq!(receive(&mut nic), Some(frame(60, 2)), "{what}");
            assert_eq!(receive(&mut nic), None);
        }
        assert_eq!(nic.counters().rx_errors, bad.len() as u64);
        (0..8).for_each(|_| card.card.borrow_mut().deliver(&frame(64, 1), whole | error | 64));
        assert_eq!(receive(&mut nic), None, "a ring full of them");
    }
}

#[test]
fn frames_of_wrong_length_are_refused_for_good() {
    let (_bench, card, mut nic) = started(Kind::Rtl8125);
    for len in [0, 13, 1515, 100_000] {
        assert!(nic.tx(len, &mut |_| panic!("not to be filled")));
    }
    nic.flush();
    assert_eq!((nic.counters().tx_refused, card.card.borrow().sent.len(), card.count(0x90)), (4, 0, 0));
}

#[test]
fn jumbo_frames_pass_where_the_card_can() {
    let mut bench = Bench::new();
    bench.options.max_frame = JUMBO_FRAME;
    let card = card(&bench, Kind::Rtl8125);
    let mut nic = try_start(&mut bench, &card).expect("the model works");
    assert_eq!(card.card.borrow().registers.get(reg::RX_MAX, 2), 9022);
    card.card.borrow_mut().arrive(&frame(JUMBO_FRAME, 3));
    assert_eq!(receive(&mut nic), Some(frame(JUMBO_FRAME, 3)));
    assert!(send(&mut nic, &frame(JUMBO_FRAME, 4)));
    nic.flush();
    assert_eq!(card.card.borrow().sent, [frame(JUMBO_FRAME, 4)]);

    let old = super::bench::Shared::new(RealtekCard::new(Kind::Cplus8139, &bench.memory));
    let refused = try_start(&mut bench, &old).map(drop);
    assert_eq!(refused, Err(StartError::FrameTooLong { asked: 9018, most: 1514 }));
}

#[test]
fn link_speed_is_decoded() {
    let (_bench, card, mut nic) = started(Kind::Rtl8125);
    for (status, mbps) in [(0, 0), (0x400, 0), (0x403, 2500), (0x13, 1000), (0x0b, 100), (0x07, 10), (0x473, 2500)] {
        card.card.borrow_mut().registers.set(reg::PHY_STATUS_8125, 2, status);
        assert_eq!(nic.link_mbps(), mbps, "{status:#x}");
    }
    let (_bench, card, mut nic) = started(Kind::Cplus8139);
    for (media, mbps) in [(0xd4, 0), (0xd0, 100), (0xd8, 10), (0xdc, 0)] {
        card.card.borrow_mut().registers.set(reg::MEDIA_8139, 1, media);
        assert_eq!(nic.link_mbps(), mbps, "{media:#x}");
    }
}

#[test]
fn a_reset_that_never_ends_is_named() {
    for kind in KINDS {
        let mut bench = Bench::new();
        let card = card(&bench, kind);
        card.card.borrow_mut().stuck_in_reset = true;
        let error = try_start(&mut bench, &card).map(drop).expect_err("stuck");
        assert_eq!(error, StartError::TimedOut { step: "reset", register: 0x37, value: 0x10 });
        assert_eq!(error.to_string(), "step 'reset' timed out, register 0x37 = 0x10");
        assert!(!card.events.borrow().contains(&Event::BusMaster), "no access to memory");
        assert_eq!(bench.memory.taken(), 0);
        assert!(bench.waited.get() < 2_000_000, "{kind:?} waited {} us", bench.waited.get());
    }
}

#[test]
fn waits_that_the_vendor_ignores_become_notes() {
    let mut bench = Bench::new();
    let card = card(&bench, Kind::Rtl8125);
    card.card.borrow_mut().fifo_never_empty = true;
    try_start(&mut bench, &card).expect("starts all the same");
    let notes = bench.notes.to_string();
    assert!(notes.contains("step 'wait for FIFO empty' timed out, register 0xd3 = 0x80"), "{notes}");
}

#[test]
fn a_dead_phy_costs_little_time() {
    let mut bench = Bench::new();
    let card = card(&bench, Kind::Rtl8125);
    card.card.borrow_mut().dead_phy = true;
    try_start(&mut bench, &card).expect("starts all the same");
    assert!(bench.notes.to_string().contains("PHY"), "{}", bench.notes);
    assert!(bench.waited.get() < 1_000_000, "waited {} us", bench.waited.get());
}

#[test]
fn an_unwanted_or_impossible_address_stops_the_start_before_it_takes_memory() {
    for kind in KINDS {
        let mut bench = Bench::new();
        bench.mac = Some(Mac([2, 0, 0, 0, 0, 1]));
        let card = card(&bench, kind);
        let error = try_start(&mut bench, &card).map(drop).expect_err("another card");
        assert_eq!(error.to_string(), "its address is 52:54:00:12:34:56, expected 02:00:00:00:00:01");
        assert_eq!(bench.memory.taken(), 0);

        bench.mac = None;
        let card = self::card(&bench, kind);
        card.card.borrow_mut().registers.0[if kind == Kind::Rtl8125 { 0x19e0 } else { 0 }] = 0xff;
        let error = try_start(&mut bench, &card).map(drop).expect_err("a group address").to_string();
        assert!(error.contains("read MAC address"), "{error}");
    }
}

#[test]
fn too_little_memory_is_named() {
    let mut bench = Bench::new();
    bench.memory.left.set(1024);
    let card = card(&bench, Kind::Rtl8125);
    let error = try_start(&mut bench, &card).map(drop).expect_err("no room for buffers").to_string();
    assert_eq!(error, "no memory for receive buffers: 12288 bytes aligned to 4096");
}

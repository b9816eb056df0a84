//! The Intel drivers.

use super::bench::{Bench, Event, MAC, Shared, frame, is_write, receive, send, sends_frames_padded_and_whole};
use super::intel_card::IntelCard;
use crate::error::StartError;
use crate::intel::{Intel, ctrl, model, rctl, reg, tctl};
use crate::nic::{JUMBO_FRAME, Mac, Nic};

type Card = Shared<IntelCard>;

/// 82540, 82574, I226-V.
const DEVICES: [u16; 3] = [0x100e, 0x10d3, 0x125c];
const IGC: u16 = 0x125c;
const RX_TAIL: usize = reg::RX_QUEUE + 0x18;
const TX_TAIL: usize = reg::TX_QUEUE + 0x18;

fn card(bench: &Bench, device: u16) -> Card {
    Shared::new(IntelCard::new(device == IGC, &bench.memory))
}

fn try_start(bench: &mut Bench, card: &Card, device: u16) -> Result<Intel<Card>, StartError> {
    let model = model(0x8086, device).expect("supported");
    bench.start(card, |registers, platform| Intel::start(registers, model, platform))
}

fn started(device: u16) -> (Bench, Card, Intel<Card>) {
    let mut bench = Bench::new();
    let card = card(&bench, device);
    let nic = try_start(&mut bench, &card, device).expect("the model works");
    assert!(bench.notes.is_empty(), "{}", bench.notes);
    card.events.borrow_mut().clear();
    (bench, card, nic)
}

#[test]
fn start_writes_in_the_order_that_the_cards_need() {
    for device in DEVICES {
        let mut bench = Bench::new();
        let card = card(&bench, device);
        try_start(&mut bench, &card, device).expect("the model works");
        let order = [
            card.first("interrupts off", is_write(reg::IMC, u32::MAX)),
            card.first("reset", is_write(reg::CTRL, ctrl::RESET)),
            card.last("interrupts off again", is_write(reg::IMC, u32::MAX)),
            card.first("bus master", |event| event == Event::BusMaster),
            card.first("address", is_write(reg::ADDRESS + 4, 1 << 31)),
            card.first("receive ring", is_write(reg::RX_QUEUE, 0)),
            card.last("receiving", is_write(reg::RCTL, rctl::ENABLE)),
            card.last("descriptors", |event| event == Event::Write(RX_TAIL, 7)),
        ];
        assert!(order.is_sorted(), "{device:x}: {order:?}");
        let sending = card.last("sending", is_write(reg::TCTL, tctl::ENABLE));
        assert!(card.last("send ring", is_write(reg::TX_QUEUE, 0)) < sending);
        assert!(bench.waited.get() >= 3000, "time for the reset");
    }
}

#[test]
fn igc_restores_the_packet_memory_and_offers_2500() {
    let (_bench, card, _nic) = started(IGC);
    let card = card.card.borrow();
    assert_eq!((card.registers.get(0x2404, 4), card.registers.get(0x3404, 4)), (0xa2, 0x0400_0014));
    assert_eq!(card.offer_2500 & 1 << 7, 1 << 7);
    assert_eq!(card.phy[0], 1 << 12 | 1 << 9, "negotiates anew, powered");
    assert_eq!(card.phy[9] & 0x0200, 0x0200, "gigabit on offer");
    assert_eq!(card.registers.get(0x5b5c, 4) & 2, 0, "PHY given back");
    assert_eq!(card.registers.get(0x5b50, 4) & 3, 0, "semaphore given back");
    assert_eq!(card.registers.get(reg::CTRL, 4) & ctrl::MASTER_DISABLE, 0);
}

#[test]
fn frames_go_out_padded_and_whole_over_many_rounds_of_the_ring() {
    for device in DEVICES {
        let (_bench, card, mut nic) = started(device);
        sends_frames_padded_and_whole(&mut nic, &card);
    }
}

#[test]
fn a_batch_needs_one_register_write() {
    for device in DEVICES {
        let (_bench, card, mut nic) = started(device);
        (0..5).for_each(|tag| assert!(send(&mut nic, &frame(60, tag))));
        nic.flush();
        nic.flush();
        assert_eq!((card.count(TX_TAIL), card.card.borrow().sent.len()), (1, 5));
    }
}

#[test]
fn a_full_send_ring_refuses_until_frames_are_reported_done() {
    for device in DEVICES {
        let (_bench, card, mut nic) = started(device);
        card.card.borrow_mut().reports = false;
        (0..7).for_each(|tag| assert!(send(&mut nic, &frame(60, tag))));
        assert!(!nic.tx(60, &mut |_| panic!("a full ring does not ask for bytes")), "one descriptor stays free");
        nic.flush();
        assert!(!send(&mut nic, &frame(60, 7)), "sent but not reported");
        card.card.borrow_mut().report(0, 2);
        assert!(send(&mut nic, &frame(60, 7)));
        assert!(send(&mut nic, &frame(60, 8)));
        assert!(!send(&mut nic, &frame(60, 9)));
        nic.flush();
        let tags: Vec<u8> = card.card.borrow().sent.iter().map(|sent| sent[20]).collect();
        assert_eq!(tags, [0, 1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(nic.counters().tx_full, 3);
    }
}

#[test]
fn frames_are_received_over_many_rounds_of_the_ring() {
    for device in DEVICES {
        let (_bench, card, mut nic) = started(device);
        for round in 0..50u8 {
            let len = 60 + usize::from(round) * 29;
            card.card.borrow_mut().arrive(&frame(len, round));
            assert_eq!(receive(&mut nic), Some(frame(len, round)));
            assert_eq!(receive(&mut nic), None);
        }
        card.card.borrow_mut().arrive(&[&MAC[..], &[2; 54]].concat());
        assert!(receive(&mut nic).is_some(), "frames for the own address");
        assert_eq!(card.card.borrow().missed, 0);
    }
}

#[test]
fn a_card_out_of_descriptors_goes_on_after_the_driver_emptied_the_ring() {
    for device in DEVICES {
        let (_bench, card, mut nic) = started(device);
        for round in 0..3 {
            (0..10).for_each(|tag| card.card.borrow_mut().arrive(&frame(60, tag)));
            let tags: Vec<u8> = std::iter::from_fn(|| receive(&mut nic)).map(|frame| frame[20]).collect();
            assert_eq!(tags, [0, 1, 2, 3, 4, 5, 6], "round {round}");
        }
    }
}

#[test]
fn a_flood_gets_its_descriptors_back_in_batches() {
    let (_bench, card, mut nic) = started(IGC);
    (0..7).for_each(|tag| card.card.borrow_mut().arrive(&frame(60, tag)));
    for tag in 0..64 {
        assert!(receive(&mut nic).is_some(), "frame {tag}");
        if tag % 2 == 1 {
            (0..2).for_each(|_| card.card.borrow_mut().arrive(&frame(60, tag)));
        }
    }
    assert_eq!(card.count(RX_TAIL), 32, "one write for a quarter of the ring");
    card.card.borrow_mut().missed = 5;
    for _ in 0..64 {
        assert!(receive(&mut nic).is_some());
        card.card.borrow_mut().arrive(&frame(60, 1));
    }
    assert!(nic.counters().rx_overruns > 0, "missed frames are noticed without an empty poll");
}

#[test]
fn damaged_frames_are_counted_and_skipped() {
    for device in DEVICES {
        let (_bench, card, mut nic) = started(device);
        let bad = [
            ("receive error", 64, 3, 0x80),
            ("not the end", 64, 1, 0),
            ("empty", 0, 3, 0),
            ("shorter than a header", 13, 3, 0),
            ("longer than asked for", 1515, 3, 0),
            ("longest that the field can say", 0xffff, 3, 0),
        ];
        for (what, len, state, errors) in bad {
            card.card.borrow_mut().deliver(&frame(64, 1), len, state, errors);
            card.card.borrow_mut().arrive(&frame(60, 2));
            assert_eq!(receive(&mut nic), Some(frame(60, 2)), "{device:x}: {what}");
        }
        // A wrong checksum inside is not ours to judge.
        card.card.borrow_mut().deliver(&frame(64, 3), 64, 3, 0x60);
        assert_eq!(receive(&mut nic), Some(frame(64, 3)));
        assert_eq!(nic.counters().rx_errors, bad.len() as u64);
    }
}

#[test]
fn jumbo_frames_pass() {
    for max_frame in [2100, 4000, 5000, JUMBO_FRAME] {
        for device in DEVICES {
            let mut bench = Bench::new();
            bench.options.max_frame = max_frame;
            let card = card(&bench, device);
            let mut nic = try_start(&mut bench, &card, device).expect("the model works");
            card.card.borrow_mut().arrive(&frame(max_frame, 3));
            assert_eq!(receive(&mut nic), Some(frame(max_frame, 3)));
            assert!(card.card.borrow().registers.get(reg::RCTL, 4) & rctl::LONG != 0);
        }
    }
}

#[test]
fn link_speed_is_decoded() {
    let up = 1 << 1;
    let speeds = [
        (0, 0, 0),
        (up, 10, 10),
        (up | 1 << 6, 100, 100),
        (up | 2 << 6, 1000, 1000),
        (up | 2 << 6 | 1 << 22, 1000, 2500),
        (2 << 6 | 1 << 22, 0, 0),
        (u32::MAX, 0, 0),
    ];
    for device in DEVICES {
        let (_bench, card, mut nic) = started(device);
        for (status, others, igc) in speeds {
            card.card.borrow_mut().registers.set(reg::STATUS, 4, status);
            assert_eq!(nic.link_mbps(), if device == IGC { igc } else { others }, "{device:x}: {status:#x}");
        }
    }
}

#[test]
fn steps_that_time_out_are_named() {
    type Break = fn(&mut IntelCard);
    let cases: [(u16, Break, &str); 4] = [
        (0x10d3, |card| card.stuck_in_reset = true, "step 'reset' timed out, register 0x00 = 0x4000000"),
        (IGC, |card| card.stuck_in_reset = true, "step 'reset' timed out, register 0x00 = 0x4000000"),
        (IGC, |card| card.never_enables = true, "step 'enable send queue' timed out, register 0x3828 = 0x10108"),
        (IGC, |card| card.gone = true, "step 'read status': found 0xffffffff in register 0x08, expected anything but"),
    ];
    for (device, damage, expected) in cases {
        let mut bench = Bench::new();
        let card = card(&bench, device);
        damage(&mut card.card.borrow_mut());
        let error = try_start(&mut bench, &card, device).map(drop).expect_err(expected).to_string();
        assert!(error.starts_with(expected), "{error}");
    }
}

#[test]
fn waits_that_are_not_fatal_become_notes() {
    let mut bench = Bench::new();
    let card = card(&bench, IGC);
    card.card.borrow_mut().master_never_idle = true;
    card.card.borrow_mut().firmware_keeps_phy = true;
    try_start(&mut bench, &card, IGC).expect("starts all the same");
    let notes = bench.notes.to_string();
    assert!(notes.contains("step 'stop requests to memory' timed out, register 0x08 = 0x80000"), "{notes}");
    assert!(notes.contains("step 'take PHY from firmware' timed out"), "{notes}");
}

#[test]
fn an_unwanted_address_stops_the_start_before_it_takes_memory() {
    let mut bench = Bench::new();
    bench.mac = Some(Mac([2, 0, 0, 0, 0, 1]));
    let card = card(&bench, IGC);
    let error = try_start(&mut bench, &card, IGC).map(drop).expect_err("another card");
    assert_eq!(error, StartError::OtherMac { found: Mac(MAC), expected: Mac([2, 0, 0, 0, 0, 1]) });
    assert_eq!(bench.memory.taken(), 0);
}

#[test]
fn odd_rings_are_refused() {
    for ring in [0, 4, 100, 8192] {
        let mut bench = Bench::new();
        bench.options.tx_ring = ring;
        let card = card(&bench, IGC);
        assert_eq!(try_start(&mut bench, &card, IGC).map(drop), Err(StartError::RingSize(ring)));
    }
}

//! The virtio driver.

use std::rc::Rc;

use super::bench::{Bench, Event, MAC, Shared, Window, frame, receive, send, sends_frames_padded_and_whole};
use super::virtio_card::{DEVICE, NOTIFY, STEP, VirtioCard};
use crate::error::StartError;
use crate::nic::{JUMBO_FRAME, Nic};
use crate::virtio::{VirtioNet, Windows, common, feature, status};

type Card = Shared<VirtioCard>;

fn windows(card: &Card) -> Windows<Window> {
    Windows {
        common: Window(Rc::new(card.clone()), 0),
        notify: Window(Rc::new(card.clone()), NOTIFY),
        notify_len: 2 * STEP,
        notify_step: STEP,
        device: Window(Rc::new(card.clone()), DEVICE),
        device_len: 0x20,
    }
}

fn try_start(bench: &mut Bench, card: &Card) -> Result<VirtioNet<Window>, StartError> {
    bench.start(card, |card, platform| VirtioNet::start(windows(&card), platform))
}

fn card(bench: &Bench) -> Card {
    Shared::new(VirtioCard::new(&bench.memory))
}

fn started() -> (Bench, Card, VirtioNet<Window>) {
    let mut bench = Bench::new();
    let card = card(&bench);
    let nic = try_start(&mut bench, &card).expect("the model works");
    (bench, card, nic)
}

#[test]
fn start_goes_through_the_states_in_order() {
    let (_bench, card, nic) = started();
    let states: Vec<u32> = card
        .events
        .borrow()
        .iter()
        .filter_map(|event| match event {
            Event::Write(common::STATUS, value) => Some(*value),
            _ => None,
        })
        .collect();
    assert_eq!(states, [0, 1, 3, 11, 15]);
    let master = card.first("bus master", |event| event == Event::BusMaster);
    let enabled = card.first("queue", |event| event == Event::Write(common::QUEUE_ENABLE, 1));
    let ready = card.first("ready", |event| event == Event::Write(common::STATUS, 15));
    assert!(master < enabled && enabled < ready);
    assert_eq!(card.card.borrow().accepted, feature::WANTED, "nothing that the driver does not know");
    assert_eq!((nic.mac(), card.card.borrow().doorbells), (MAC, [1, 0]));
}

#[test]
fn frames_go_out_padded_and_whole_over_many_rounds_of_the_ring() {
    let (_bench, card, mut nic) = started();
    sends_frames_padded_and_whole(&mut nic, &card);
}

#[test]
fn a_batch_needs_one_doorbell_and_none_if_the_device_looks_by_itself() {
    let (_bench, card, mut nic) = started();
    (0..5).for_each(|tag| assert!(send(&mut nic, &frame(60, tag))));
    nic.flush();
    nic.flush();
    assert_eq!((card.card.borrow().doorbells[1], card.card.borrow().sent.len()), (1, 5));

    let mut bench = Bench::new();
    let card = self::card(&bench);
    card.card.borrow_mut().looks_by_itself = true;
    let mut nic = try_start(&mut bench, &card).expect("the model works");
    assert!(send(&mut nic, &frame(60, 1)));
    nic.flush();
    assert_eq!(card.card.borrow().doorbells, [0, 0]);
    card.card.borrow_mut().finish();
    assert_eq!(card.card.borrow().sent.len(), 1);
}

#[test]
fn a_full_send_ring_refuses_until_the_device_gave_back_in_whatever_order() {
    let (_bench, card, mut nic) = started();
    card.card.borrow_mut().at_once = false;
    for round in 0..4u8 {
        (0..8).for_each(|tag| assert!(send(&mut nic, &frame(60, round * 8 + tag))));
        assert!(!nic.tx(60, &mut |_| panic!("a full ring does not ask for bytes")));
        nic.flush();
        card.card.borrow_mut().finish();
    }
    let tags: Vec<u8> = card.card.borrow().sent.iter().map(|sent| sent[20]).collect();
    assert_eq!(tags, (0..32).collect::<Vec<u8>>());
    assert_eq!(nic.counters().tx_full, 4);
}

#[test]
fn a_receive_ring_runs_dry_and_recovers() {
    let (_bench, card, mut nic) = started();
    for _ in 0..3 {
        let arrived = (0..10).filter(|&tag| card.card.borrow_mut().arrive(&frame(1514, tag))).count();
        assert_eq!(arrived, 8);
        let tags: Vec<u8> = std::iter::from_fn(|| receive(&mut nic)).map(|frame| frame[20]).collect();
        assert_eq!(tags, [0, 1, 2, 3, 4, 5, 6, 7]);
    }
    assert!(card.card.borrow().doorbells[0] > 1, "the device was told about new buffers");
}

#[test]
fn a_lying_device_costs_counts_and_nothing_else() {
    let (_bench, card, mut nic) = started();
    for len in [0, 12, 25, 12 + 1515, usize::MAX >> 32] {
        assert!(card.card.borrow_mut().deliver(&frame(60, 1), len));
        assert!(card.card.borrow_mut().arrive(&frame(60, 2)));
        assert_eq!(receive(&mut nic), Some(frame(60, 2)), "{len}");
    }
    assert_eq!(nic.counters().rx_errors, 5);
    // Descriptors that are not the device's to give, or do not exist.
    let card = &card.card;
    card.borrow_mut().give_back(0, 9999, 72);
    card.borrow_mut().give_back(0, u32::MAX, 72);
    assert_eq!(receive(&mut nic), None);
    card.borrow_mut().at_once = false;
    (0..8).for_each(|tag| assert!(send(&mut nic, &frame(60, tag))));
    card.borrow_mut().give_back(1, 9999, 0);
    assert!(!send(&mut nic, &frame(60, 8)), "a return of nothing does not make room");
    card.borrow_mut().give_back(1, 3, 0);
    card.borrow_mut().give_back(1, 3, 0);
    assert!(send(&mut nic, &frame(60, 8)));
    assert!(!send(&mut nic, &frame(60, 9)), "a second return of the same does not either");
    assert_eq!(nic.counters().rx_errors, 7);
}

#[test]
fn jumbo_frames_pass() {
    let mut bench = Bench::new();
    bench.options.max_frame = JUMBO_FRAME;
    let card = card(&bench);
    let mut nic = try_start(&mut bench, &card).expect("the model works");
    assert!(card.card.borrow_mut().arrive(&frame(JUMBO_FRAME, 1)));
    assert_eq!(receive(&mut nic), Some(frame(JUMBO_FRAME, 1)));
}

#[test]
fn link_speed_is_decoded() {
    let (_bench, card, mut nic) = started();
    for (link, speed, mbps) in [(0, 1000, 0), (1, 2500, 2500), (1, u32::MAX, 10_000), (1, 0, 10_000), (0xfffe, 1000, 0)]
    {
        card.card.borrow_mut().device.set(6, 2, link);
        card.card.borrow_mut().device.set(12, 4, speed);
        assert_eq!(nic.link_mbps(), mbps);
    }
    let mut bench = Bench::new();
    let card = self::card(&bench);
    card.card.borrow_mut().offered = feature::VERSION_1 | feature::MAC;
    let mut nic = try_start(&mut bench, &card).expect("the model works");
    card.card.borrow_mut().device.set(6, 2, 0);
    assert_eq!(nic.link_mbps(), 10_000, "a device that does not tell is up");
}

#[test]
fn steps_that_fail_are_named() {
    type Break = fn(&mut VirtioCard);
    let cases: [(Break, &str); 5] = [
        (|card| card.never_resets = true, "step 'reset' timed out, register 0x14 = 0x4"),
        (|card| card.refuses_features = true, "step 'agree on features': found 0x3 in register 0x14"),
        (|card| card.offered = feature::MAC, "step 'read features': found 0x0 in register 0x04, expected a modern"),
        (
            |card| card.offered = feature::VERSION_1,
            "step 'read features': found 0x0 in register 0x04, expected a device",
        ),
        (|card| card.queue_size = 12, "step 'size queue': found 0xc in register 0x18"),
    ];
    for (damage, expected) in cases {
        let mut bench = Bench::new();
        let card = card(&bench);
        damage(&mut card.card.borrow_mut());
        let error = try_start(&mut bench, &card).map(drop).expect_err(expected).to_string();
        assert!(error.starts_with(expected), "{error}");
        assert!(!card.events.borrow().contains(&Event::BusMaster));
        assert!(card.card.borrow().status & status::DRIVER_OK == 0 || expected.contains("reset"));
    }
}

#[test]
fn a_doorbell_outside_its_window_is_refused() {
    for (len, step) in [(2 * STEP, 8), (5, 4), (8, usize::MAX), (8, 3)] {
        let mut bench = Bench::new();
        let card = card(&bench);
        let start = bench.start(&card, |card, platform| {
            VirtioNet::start(Windows { notify_len: len, notify_step: step, ..windows(&card) }, platform)
        });
        let error = start.map(drop).expect_err("outside").to_string();
        assert!(error.starts_with("step 'find doorbell'"), "{error}");
    }
}

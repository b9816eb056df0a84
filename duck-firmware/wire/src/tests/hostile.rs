//! Whoever has not the pond's key: forged, replayed, truncated and mutated frames; and the rules for those who have it.

use std::vec::Vec;

use proptest::prelude::*;

use crate::crc::portable;
use crate::frame::{Frame, HEADER, Header, Kind, emit};
use crate::frozen::{Announce, Reset};
use crate::host::{Event, Outcome, Refusal};
use crate::key::Key;
use crate::mark::count;
use crate::message::{Counter, Open, OpenCode, Opened};

use super::pair::{DUCK, FRAME, World, blocks, key};

#[track_caller]
fn covers(mark: &str) {
    assert!(count(mark) > 0, "the test did not come by {mark}");
}

fn frame(header: Header, payload: &[u8]) -> Vec<u8> {
    let mut buf = [0; 9_600];
    let len = emit(&mut buf, header, &[payload], portable).expect("it fits");
    buf[..len].to_vec()
}

/// Asks a duck and returns its answers.
fn answers(world: &mut World, from: u64, bytes: &[u8]) -> Vec<(Kind, Vec<u8>)> {
    let now = world.now;
    let session = &mut world.ducks[0].session;
    session.handle_frame(now, from, bytes);
    let mut buf = [0; FRAME];
    let mut all = Vec::new();
    while let Some(sent) = session.poll_transmit(now, &mut buf) {
        let frame = Frame::check(&buf[..sent.len], portable).expect("ducks send frames");
        all.push((frame.kind(), frame.payload().to_vec()));
    }
    all
}

fn nonce(world: &mut World) -> [u8; 16] {
    world.now += 5_000;
    let found = answers(world, 77, &frame(Header::new(Kind::Discover), &[]));
    Announce::parse(&found[0].1).expect("an announcement").nonce
}

/// The last open that a host sent, taken from the link.
fn captured_open(world: &World) -> Open {
    let bytes = world.captured.iter().rev().find(|f| f[3] == Kind::Open as u8).expect("an open was sent");
    Open::parse(&bytes[HEADER..]).expect("whole")
}

fn start() -> World {
    let mut world = World::new(50, 1, 700);
    world.capture = true;
    world.ready();
    world
}

fn code(answers: &[(Kind, Vec<u8>)]) -> Option<OpenCode> {
    let (_, payload) = answers.iter().find(|(k, _)| *k == Kind::Opened)?;
    OpenCode::from_code(Opened::parse(payload)?.code)
}

#[test]
fn forged_opens_change_nothing() {
    let mut world = start();
    let good = captured_open(&world);
    let current = nonce(&mut world);
    let strangers = Key::from_seed([1; 32]);
    for forged in [
        Open { nonce: current, ..good },
        Open { nonce: current, ..good }.sign(&strangers),
        Open { nonce: current, key: key().public().id(), signature: [7; 64], ..good },
        Open { key: good.key, ..Open { nonce: current, ..good }.sign(&strangers) },
    ] {
        world.now += 5_000;
        let found = answers(&mut world, 66, &frame(Header::new(Kind::Open), &forged.emit()));
        assert_eq!(code(&found), Some(OpenCode::BadSignature));
    }
    assert_eq!(world.ducks[0].session.poll_event(), None);
    assert_eq!(nonce(&mut world), current, "a signature that does not hold spends no nonce");
    assert_eq!(world.one(0, true), Outcome::Ok, "the session goes on");
    covers("forged_open_is_refused");
}

#[test]
fn a_replayed_open_is_refused_and_a_refused_one_cannot_be_kept_for_later() {
    let mut world = start();
    let first = captured_open(&world);
    world.restart_host(0);
    world.ready();
    let replay = frame(Header::new(Kind::Open), &first.emit());
    assert_eq!(code(&answers(&mut world, 1, &replay)), Some(OpenCode::StaleNonce));
    assert_eq!(world.ducks[0].opens, 2);
    // Well signed, but refused by lease; the lease then expires.
    let second = Open { nonce: nonce(&mut world), host: [5; 16], epoch: 99, ..first }.sign(&key());
    let second = frame(Header::new(Kind::Open), &second.emit());
    assert_eq!(code(&answers(&mut world, 2, &second)), Some(OpenCode::Leased));
    world.now += 10_000_000;
    let now = world.now;
    world.ducks[0].session.handle_timeout(now);
    assert_eq!(code(&answers(&mut world, 2, &second)), Some(OpenCode::StaleNonce));
}

#[test]
fn an_accepted_open_repeated_from_elsewhere_does_not_take_the_session() {
    let mut world = start();
    let open = captured_open(&world);
    let found = answers(&mut world, 66, &frame(Header::new(Kind::Open), &open.emit()));
    assert_eq!(code(&found), Some(OpenCode::StaleNonce));
    assert_eq!(world.one(0, true), Outcome::Ok);
}

#[test]
fn resets_need_key_nonce_and_identity() {
    let mut world = start();
    let current = nonce(&mut world);
    let send = |world: &mut World, reset: Reset| {
        world.now += 5_000;
        let bytes = frame(Header::new(Kind::Reset), &reset.emit());
        assert!(answers(world, 66, &bytes).is_empty());
        world.ducks[0].session.poll_event()
    };
    assert_eq!(send(&mut world, Reset::sign(current, [1; 16], 0, &Key::from_seed([1; 32]))), None);
    covers("forged_reset_is_refused");
    assert_eq!(send(&mut world, Reset::sign([0; 16], [1; 16], 0, &key())), None);
    covers("reset_with_a_stale_nonce_is_refused");
    assert_eq!(send(&mut world, Reset::sign(current, [2; 16], 0, &key())), None);
    let good = Reset::sign(current, [1; 16], 0, &key());
    assert_eq!(send(&mut world, good), Some(crate::duck::Event::Reset { action: 0 }));
    assert_eq!(send(&mut world, good), None, "replayed");
}

#[test]
fn the_owners_reset_arrives() {
    let mut world = start();
    world.wait(300_000);
    world.restart_host(0);
    world.run(1_000_000, "attached", |w| w.peer0().is_up());
    let now = world.now;
    world.hosts[0].peers[0].reset(now, 0);
    world.run(1_000_000, "reset", |w| w.ducks[0].resets == [0]);
    world.restart_duck(0);
    world.wait(5_000_000);
    assert_eq!(world.ducks[0].resets, [0], "the restarted duck is not reset again");
}

#[test]
fn signatures_are_checked_at_a_bounded_rate_and_opens_still_get_through() {
    let mut world = start();
    let current = nonce(&mut world);
    let forged = Open { nonce: current, signature: [3; 64], ..captured_open(&world) };
    let bytes = frame(Header::new(Kind::Open), &forged.emit());
    let refused = |w: &World| w.ducks[0].session.counter(Counter::ControlRefused);
    let before = refused(&world);
    world.now += 5_000;
    for _ in 0..1_000 {
        world.now += 10;
        answers(&mut world, 66, &bytes);
    }
    assert_eq!(refused(&world) - before, 10);
    covers("signatures_are_checked_at_a_bounded_rate");
    world.restart_host(0);
    world.ready();
}

#[test]
fn kernels_that_the_ponds_key_has_not_signed_are_refused() {
    let mut world = start();
    let good = captured_open(&world);
    let open = Open { nonce: nonce(&mut world), kernels: [1; 32], ..good }.sign(&key());
    let found = answers(&mut world, 1, &frame(Header::new(Kind::Open), &open.emit()));
    assert_eq!(code(&found), Some(OpenCode::Kernels));
    covers("unsigned_kernels_are_refused");
    assert_eq!(world.ducks[0].opens, 1);
}

#[test]
fn limits_that_the_duck_cannot_keep_are_refused() {
    let mut world = start();
    let good = captured_open(&world);
    for wrong in [
        Open { hidden: 128, ..good },
        Open { lanes: 30, ..good },
        Open { blocks: 1_000, ..good },
        Open { mode: 9, ..good },
        Open { epoch: 0, ..good },
        Open { load_chunk: 4_096, ..good },
    ] {
        let open = Open { nonce: nonce(&mut world), ..wrong }.sign(&key());
        let found = answers(&mut world, 1, &frame(Header::new(Kind::Open), &open.emit()));
        assert_eq!(code(&found), Some(OpenCode::Limits), "{wrong:?}");
    }
}

#[test]
fn a_host_with_another_key_is_told_so() {
    let mut world = World::new(51, 1, 700);
    world.ducks[0].session = crate::duck::Session::new(
        world.now,
        crate::duck::Config {
            announce: Announce { id: [1; 16], boot: 5, ..Announce::parse(&[0; 144]).expect("zeroes") },
            kernels: [0; 32],
            key: Key::from_seed([9; 32]).public(),
            seed: [1; 32],
            max_frame: FRAME,
            crc: portable,
        },
        super::model::DuckMemory::new(),
    );
    world.run(1_000_000, "refusal", |w| w.saw(Event::Refused(Refusal::BadSignature)));
}

#[test]
fn weights_planted_by_a_stranger_never_become_resident() {
    let mut world = World::new(52, 1, 700);
    world.run(1_000_000, "attached", |w| w.peer0().is_up());
    // Everything that a stranger can see is known to him: epoch, tag, and the host's address.
    let header = |block: u32, offset: u32| Header {
        epoch: world.hosts[0].epoch,
        tag: 1,
        seq: block,
        offset,
        ..Header::new(Kind::Write)
    };
    let planted: Vec<_> = (0..9u32)
        .flat_map(|block| (0..6u32).map(move |c| (block, c)))
        .map(|(block, c)| frame(header(block, 128 * c), &[0xee; 128][..if c == 5 { 60 } else { 128 }]))
        .collect();
    for round in 0..20 {
        planted.iter().for_each(|bytes| world.send(1, DUCK, bytes));
        world.wait(200 + round);
    }
    world.run(60_000_000, "loaded in spite of it", |w| w.ducks[0].session.resident() == blocks(w));
    assert!(world.ducks[0].session.memory().blocks.values().all(|b| !b.starts_with(&[0xee; 128])));
    world.ready();
    assert_eq!(world.one(0, true), Outcome::Ok);
}

#[test]
fn resident_blocks_cannot_be_overwritten() {
    let mut world = start();
    let before = world.ducks[0].session.memory().blocks.clone();
    let writes: Vec<_> = world.captured.iter().filter(|f| f[3] == Kind::Write as u8).cloned().collect();
    for bytes in writes {
        let seen = Frame::check(&bytes, portable).expect("captured whole").header();
        let len = bytes.len() - HEADER;
        answers(&mut world, 1, &frame(seen, &[0xee; 2_000][..len]));
    }
    assert_eq!(world.ducks[0].session.memory().blocks, before);
}

/// A frame's bytes after some changes, its checksum mended: what an attacker, or a broken peer, could send.
fn mutate(bytes: &[u8], cuts: &[(u16, u8)], length: Option<u16>) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for &(at, value) in cuts {
        let at = usize::from(at) % bytes.len();
        if at != 3 || value < 64 {
            bytes[at] = value;
        }
    }
    if let Some(length) = length {
        bytes.truncate(HEADER + usize::from(length) % bytes.len());
    }
    bytes[..2].copy_from_slice(b"DP");
    bytes.resize(bytes.len().max(HEADER), 0);
    let length = ((bytes.len() - HEADER) as u16).to_le_bytes();
    bytes[6..8].copy_from_slice(&length);
    let crc = portable(portable(0, &bytes[..28]), &bytes[HEADER..]).to_le_bytes();
    bytes[28..32].copy_from_slice(&crc);
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    /// Neither end panics; nothing is opened, reset or planted; and afterwards all works.
    #[test]
    fn mutated_frames_of_a_whole_session_do_no_harm(
        seed: u64,
        changes in prop::collection::vec((any::<u16>(), prop::collection::vec((any::<u16>(), any::<u8>()), 0..4), any::<Option<u16>>(), any::<bool>()), 1..120),
    ) {
        let mut world = World::new(seed, 1, 700);
        world.capture = true;
        world.ready();
        world.one(0, true);
        let pool = core::mem::take(&mut world.captured);
        world.capture = false;
        let before = world.ducks[0].session.memory().blocks.clone();
        for (at, cuts, length, mend) in changes {
            let bytes = &pool[usize::from(at) % pool.len()];
            let mutant = if mend { mutate(bytes, &cuts, length) } else {
                let mut raw = bytes.clone();
                cuts.iter().for_each(|&(at, v)| { let n = raw.len(); raw[usize::from(at) % n] = v; });
                raw.truncate(length.map_or(raw.len(), |l| usize::from(l) % (raw.len() + 1)));
                raw
            };
            // Results that a stranger makes up are believed (threat model): this test wants right sums afterwards.
            if mutant.get(3) == Some(&(Kind::Result as u8)) {
                continue;
            }
            world.random.next();
            world.queue_frame(1, DUCK, &mutant);
            world.queue_frame(DUCK, 1, &mutant);
            world.wait(30);
        }
        prop_assert!(u64::from(world.ducks[0].opens) <= world.peer0().stats().opens, "only the host opens");
        prop_assert_eq!(&world.ducks[0].session.memory().blocks, &before);
        prop_assert!(world.ducks[0].resets.is_empty());
        world.run(20_000_000, "well again", |w| w.peer0().is_up() && w.hosts[0].active[0] == Some(0));
    }

    #[test]
    fn any_bytes_are_a_frame_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..200), magic: bool) {
        let mut bytes = bytes;
        if magic && bytes.len() >= HEADER {
            bytes = mutate(&bytes, &[], None);
        }
        if let Ok(frame) = Frame::check(&bytes, portable) {
            let h = frame.header();
            prop_assert_eq!((h.epoch, h.seq, h.lane, h.node), (frame.epoch(), frame.seq(), frame.lane(), frame.node()));
            prop_assert_eq!((h.plan, h.tag, h.offset), (frame.plan(), frame.tag(), frame.offset()));
            prop_assert_eq!(frame.payload().len(), usize::from(h.length));
            let again = super::hostile::frame(h, frame.payload());
            prop_assert_eq!(&again[..], &bytes[..again.len()]);
        }
    }

    #[test]
    fn every_single_damaged_bit_is_noticed(payload in prop::collection::vec(any::<u8>(), 0..100), at: prop::sample::Index, bit in 0u8..8) {
        let mut bytes = frame(Header::new(Kind::Result), &payload);
        let i = at.index(bytes.len());
        bytes[i] ^= 1 << bit;
        prop_assert!(Frame::check(&bytes, portable).is_err());
    }
}

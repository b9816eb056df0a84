//! Somebody without the pond's key is on the segment: sees everything, sends anything, under any address.
//!
//! What the threat model of the wire protocol promises is asked for here, and no more: nothing is opened, reset or written without the key;
//! damaged and repeated frames change no bit; forged data may change what the model says, but nobody falls over it, and the next session is right.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use decode::{Engine, EngineOptions};
use link::{ETHERNET, Link, Mac, Port};
use model::Numerics;
use pond_tests::ducks::{Ducks, PondOptions, key};
use pond_tests::processes::{GUARD, Usage, all_ready, alone, engine, long, send, status, wait_for, wrong_key};
use pond_tests::random::Random;
use pond_tests::{Answer, answer, duckling_folder, greedy_request, load};
use wire::frame::{Frame, HEADER, Kind};
use wire::frozen::{Announce, Reset};
use wire::message::{Counter, Open};

const MTU: usize = 1500;
const TOKENS: usize = 12;
/// Frames of one kind that are kept.
const KEPT: usize = 400;
/// The host's address in the first and the second start.
const HOSTS: [Mac; 2] = [Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 2])];
const INTRUDER: Mac = Mac([2, 0, 0, 0, 9, 9]);

fn duck_mac(duck: u8) -> Mac {
    Mac([2, 0, 0, 0, 1, duck])
}

/// Frames, by what they say: the latest ones, oldest first.
type Seen = BTreeMap<Kind, VecDeque<Vec<u8>>>;

/// What the recorder shares.
#[derive(Default)]
struct Heard {
    seen: Seen,
    /// Checksums of frames that the intruder made, which are not worth recording.
    forged: HashSet<u32>,
}

/// Listens to everybody.
struct Recorder {
    heard: Arc<Mutex<Heard>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Recorder {
    /// `reflex` sees every frame and may answer at once.
    fn start(ducks: &Ducks, mut reflex: impl FnMut(&mut Port, &[u8]) + Send + 'static) -> Recorder {
        let macs = HOSTS.into_iter().chain([0, 1].map(duck_mac));
        let mut ports: Vec<Port> = macs.map(|mac| ducks.hub(0).port(mac, MTU)).collect();
        let mut own = ducks.hub(0).port(INTRUDER, MTU);
        let (heard, stop) = (Arc::<Mutex<Heard>>::default(), Arc::<AtomicBool>::default());
        let (into, stopped) = (heard.clone(), stop.clone());
        let thread = thread::spawn(move || {
            while !stopped.load(Ordering::Acquire) {
                let mut count = 0;
                for port in &mut ports {
                    count += port.rx(&mut |bytes| {
                        let Some(kind) = kind(bytes) else { return };
                        reflex(&mut own, bytes);
                        let mut heard = into.lock().expect("nobody panics with it");
                        if heard.forged.contains(&checksum(bytes)) {
                            return;
                        }
                        let kept = heard.seen.entry(kind).or_default();
                        if kept.len() == KEPT {
                            kept.pop_front();
                        }
                        kept.push_back(bytes.to_vec());
                    });
                }
                if count == 0 {
                    thread::sleep(Duration::from_micros(500));
                }
            }
        });
        Recorder { heard, stop, thread: Some(thread) }
    }

    fn end(mut self) -> Seen {
        self.stop.store(true, Ordering::Release);
        self.thread.take().expect("ended once").join().expect("it does not panic");
        std::mem::take(&mut self.heard.lock().expect("nobody panics with it").seen)
    }

    /// A frame of any kind, each as often as every other; half of the time one of the latest, so that what it is about still matters.
    fn draw(&self, random: &mut Random, frame: &mut Vec<u8>) {
        let heard = self.heard.lock().expect("nobody panics with it");
        let kinds = heard.seen.len() as u64;
        let of = heard.seen.values().nth(random.below(kinds) as usize).expect("less than all");
        let latest = if random.below(2) == 0 { of.len().min(8) } else { of.len() };
        frame.clone_from(&of[of.len() - 1 - random.below(latest as u64) as usize]);
    }

    /// Notes that a frame is the intruder's own.
    fn disown(&self, frame: &[u8]) {
        self.heard.lock().expect("nobody panics with it").forged.insert(checksum(frame));
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
    }
}

/// The checksum that a frame says it has.
fn checksum(bytes: &[u8]) -> u32 {
    bytes.get(ETHERNET + 28..).and_then(|rest| rest.first_chunk()).map_or(0, |bytes| u32::from_le_bytes(*bytes))
}

fn kind(bytes: &[u8]) -> Option<Kind> {
    Some(Frame::check(bytes.get(ETHERNET..)?, wire::crc::native).ok()?.kind())
}

/// Puts a right checksum into a frame that may be none any more.
fn mend(bytes: &mut [u8]) {
    let Some(frame) = bytes.get_mut(ETHERNET..).filter(|frame| frame.len() >= HEADER) else { return };
    let most = frame.len() - HEADER;
    let length = usize::from(u16::from_le_bytes([frame[6], frame[7]])).min(most);
    frame[6..8].copy_from_slice(&(length as u16).to_le_bytes());
    let crc = wire::crc::native(wire::crc::native(0, &frame[..28]), &frame[HEADER..HEADER + length]);
    frame[28..32].copy_from_slice(&crc.to_le_bytes());
}

/// Changes some bytes behind the Ethernet header, where the frame's checksum sees it; sometimes the length as well.
fn mutate(random: &mut Random, bytes: &mut Vec<u8>) {
    let length = HEADER + usize::from(u16::from_le_bytes([bytes[ETHERNET + 6], bytes[ETHERNET + 7]]));
    if random.below(3) == 0 {
        // The same for a step that is to come, which would be the worst.
        let seq = ETHERNET + 12..ETHERNET + 16;
        let number = u32::from_le_bytes(bytes[seq.clone()].try_into().expect("four bytes"));
        bytes[seq].copy_from_slice(&number.wrapping_add(1 + random.below(8) as u32).to_le_bytes());
        return;
    }
    for _ in 0..=random.below(3) {
        // Headers are short and say most, so they get half of it.
        let within = if random.below(2) == 0 { HEADER } else { length };
        let at = ETHERNET + random.below(within as u64) as usize;
        let change = match random.below(4) {
            0 => 0xff,
            1 => 1 << random.below(8),
            2 => bytes[at],
            _ => random.number() as u8,
        };
        bytes[at] ^= change.max(1);
    }
    if random.below(16) == 0 {
        bytes.truncate(ETHERNET + random.below(length as u64) as usize);
    }
}

/// Sends `count` frames that `make` writes, in a thread of its own while `meanwhile` runs again and again.
fn flood(ducks: &Ducks, count: usize, mut make: impl FnMut(&mut Vec<u8>) + Send, mut meanwhile: impl FnMut()) {
    let mut port = ducks.hub(0).port(INTRUDER, MTU);
    let over = AtomicBool::new(false);
    let started = Instant::now();
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut frame = Vec::new();
            for at in 0..count {
                make(&mut frame);
                port.tx(&mut |buf| {
                    buf[..frame.len()].copy_from_slice(&frame);
                    frame.len()
                });
                // What is for nobody but this end is thrown away; queues are given time.
                if at % 64 == 0 {
                    while port.rx(&mut |_| ()) > 0 {}
                    thread::sleep(Duration::from_micros(300));
                }
            }
            over.store(true, Ordering::Release);
        });
        while !over.load(Ordering::Acquire) {
            meanwhile();
            assert!(started.elapsed() < 5 * GUARD, "an answer under fire takes for ever");
        }
    });
}

struct Attacked {
    ducks: Ducks,
    engine: Engine,
    prompt: Vec<u32>,
    want: Answer,
}

impl Attacked {
    fn with(mut ducks: Ducks) -> Attacked {
        let short = golden::duckling_greedy().into_iter().min_by_key(|c| c.prompt_ids.len()).expect("there are some");
        let mut here = Engine::new(load(&duckling_folder()), &EngineOptions::default()).expect("good options");
        let want = answer(&mut here, &greedy_request(&short.prompt_ids, TOKENS, true));
        let engine = engine(&load(&duckling_folder()), Numerics::Exact, ducks.host());
        Attacked { ducks, engine, prompt: short.prompt_ids, want }
    }

    fn ask(&mut self) -> Answer {
        self.engine.reset();
        answer(&mut self.engine, &greedy_request(&self.prompt, TOKENS, true))
    }

    /// Sums of a counter over the ducks, as each last looked.
    fn count(&self, which: Counter) -> u64 {
        [0, 1].iter().map(|&duck| self.ducks.monitor(duck).expect("it runs").counter(which)).sum()
    }

    /// Waits until both ducks have shown signs of life and whole memory after this moment.
    fn assert_alive(&self) {
        let beats = || [0, 1].map(|duck| self.ducks.monitor(duck).expect("it runs").beats());
        let (before, started) = (beats(), Instant::now());
        while beats().iter().zip(before).any(|(now, before)| *now < before + 2) {
            assert!(started.elapsed() < GUARD, "a duck has ended");
            thread::sleep(Duration::from_millis(20));
        }
        for duck in 0..2 {
            let monitor = self.ducks.monitor(duck).expect("it runs");
            assert!(monitor.blocks() > 0 && monitor.resident() == monitor.blocks(), "duck {duck} has lost blocks");
        }
    }
}

fn frames(normal: usize) -> usize {
    if long() { 10 * normal } else { normal }
}

#[test]
fn damaged_and_repeated_frames_change_no_bit() {
    let _alone = alone();
    let ducks = Ducks::start(PondOptions::default());
    let recorder = Recorder::start(&ducks, |_, _| ());
    let mut pond = Attacked::with(ducks);
    assert!(pond.ask() == pond.want);
    let seen = recorder.heard.lock().expect("nobody panics with it").seen.clone();
    for kind in [Kind::Open, Kind::Opened, Kind::Write, Kind::Written, Kind::Assign, Kind::Input, Kind::Result] {
        assert!(seen.contains_key(&kind), "{kind:?} was recorded: {:?}", seen.keys());
    }
    pond.assert_alive();
    let (loaded, refused, bad) =
        (pond.count(Counter::BlocksLoaded), pond.count(Counter::ControlRefused), pond.count(Counter::FramesBad));
    let Attacked { ducks, engine, prompt, want } = &mut pond;
    let mut ask = || {
        engine.reset();
        assert!(answer(engine, &greedy_request(prompt, TOKENS, true)) == *want, "bits differ under fire");
    };

    let mut random = Random(1);
    let damage = |frame: &mut Vec<u8>| {
        recorder.draw(&mut random, frame);
        if random.below(16) == 0 {
            // Nothing but noise, of any length.
            frame.truncate(ETHERNET);
            frame.extend((0..random.below(MTU as u64)).map(|_| random.number() as u8));
        } else {
            mutate(&mut random, frame);
        }
    };
    flood(ducks, frames(200_000), damage, &mut ask);
    // As they were, in any order, old and new.
    let mut random = Random(2);
    flood(ducks, frames(100_000), |frame| recorder.draw(&mut random, frame), &mut ask);

    pond.assert_alive();
    assert!(pond.ask() == pond.want, "afterwards");
    assert!(pond.count(Counter::FramesBad) > bad + 1000, "damaged frames arrived");
    assert_eq!(pond.count(Counter::BlocksLoaded), loaded, "nothing was written");
    let after = status(&mut pond.engine);
    println!("{} control frames refused: {after:?}", pond.count(Counter::ControlRefused) - refused);
    assert!(after.ducks.iter().all(|duck| duck.blocks_wrong == 0), "{after:?}");
}

/// A duck's present nonce: anybody may ask.
fn nonce(port: &mut Port, duck: Mac) -> Announce {
    let started = Instant::now();
    loop {
        send(port, duck, wire::Header::new(Kind::Discover), &[]);
        port.wait(Some(Duration::from_millis(50)));
        let mut found = None;
        while port.rx(&mut |bytes| {
            let frame = Frame::check(&bytes[ETHERNET..], wire::crc::native).ok().filter(|f| f.kind() == Kind::Announce);
            found = frame.and_then(|frame| Announce::parse(frame.payload())).or(found);
        }) > 0
        {}
        match found {
            Some(announce) => return announce,
            None => assert!(started.elapsed() < GUARD, "a duck answers a question who is there"),
        }
    }
}

/// Sends recorded bytes, under another sender's address if given.
fn resend(port: &mut Port, bytes: &[u8], from: Option<Mac>) {
    port.tx(&mut |buf| {
        buf[..bytes.len()].copy_from_slice(bytes);
        if let Some(Mac(from)) = from {
            buf[6..12].copy_from_slice(&from);
        }
        bytes.len()
    });
    port.flush();
}

fn payload(bytes: &[u8]) -> &[u8] {
    Frame::check(&bytes[ETHERNET..], wire::crc::native).expect("a recorded frame").payload()
}

#[test]
fn without_the_key_nothing_is_opened_or_reset_and_what_was_signed_once_is_spent() {
    let _alone = alone();
    let ducks = Ducks::start(PondOptions::default());
    let recorder = Recorder::start(&ducks, |_, _| ());
    let mut pond = Attacked::with(ducks);
    assert!(pond.ask() == pond.want);
    // A reset that the host means.
    let handle = pond.engine.flock().as_remote().expect("ducks behind links").handle();
    assert!(handle.reset(0));
    wait_for(&mut pond.engine, "the duck is gone", |status| status.ducks[0].losses > 0 || !all_ready(status));
    pond.ducks.kill(0);
    pond.ducks.boot(0);
    let began = Instant::now();
    while !all_ready(&status(&mut pond.engine)) {
        assert!(began.elapsed() < GUARD, "the duck is back: {:?}", status(&mut pond.engine));
        // One that has failed gets its next chance only from steps.
        assert!(pond.ask() == pond.want);
        thread::sleep(Duration::from_millis(50));
    }
    let seen = recorder.end();
    let (opens, resets) = (&seen[&Kind::Open], &seen[&Kind::Reset]);
    assert!(opens.len() >= 3 && !resets.is_empty());
    pond.assert_alive();
    let refused = pond.count(Counter::ControlRefused);
    let loaded = pond.count(Counter::BlocksLoaded);
    let losses = |engine: &mut Engine| -> u64 { status(engine).ducks.iter().map(|duck| duck.losses).sum() };
    let lost = losses(&mut pond.engine);

    let mut port = pond.ducks.hub(0).port(INTRUDER, MTU);
    // No signature is checked sooner than a millisecond after another.
    let pause = || thread::sleep(Duration::from_millis(3));
    for duck in [0, 1].map(duck_mac) {
        for frame in opens.iter().chain(resets) {
            for from in [INTRUDER, HOSTS[0]] {
                let mut frame = frame.clone();
                frame[..6].copy_from_slice(&duck.0);
                resend(&mut port, &frame, Some(from));
                pause();
            }
        }
        for seed in 0..20 {
            let announce = nonce(&mut port, duck);
            let mut random = Random(seed);
            let open = Open::parse(payload(&opens[0])).expect("an open");
            let mine = Open {
                nonce: announce.nonce,
                id: announce.id,
                host: if seed % 4 < 2 { [7; 16] } else { [8; 16] },
                epoch: 77,
                ..open
            };
            let mut broken = mine.sign(&wrong_key());
            // It claims the pond's key, or has one bit of a signature wrong.
            broken.key = if seed % 2 == 0 { key().public().id() } else { broken.key };
            send(&mut port, duck, wire::Header::new(Kind::Open), &broken.emit());
            pause();
            let announce = nonce(&mut port, duck);
            let mut old = Open { nonce: announce.nonce, id: announce.id, ..open };
            old.signature[random.below(64) as usize] ^= 1 << random.below(8);
            send(&mut port, duck, wire::Header::new(Kind::Open), &old.emit());
            pause();
            let reset = Reset::sign(nonce(&mut port, duck).nonce, announce.id, 0, &wrong_key());
            send(&mut port, duck, wire::Header::new(Kind::Reset), &reset.emit());
            pause();
        }
    }
    pond.assert_alive();
    assert!(pond.count(Counter::ControlRefused) >= refused + 120, "all forged ones were looked at and refused");
    assert_eq!(pond.count(Counter::BlocksLoaded), loaded);
    assert_eq!(losses(&mut pond.engine), lost, "no session was lost");
    assert!(pond.ask() == pond.want);
    for duck in 0..2 {
        assert_eq!(status(&mut pond.engine).ducks[duck].state, flock::remote::DuckState::Ready);
    }
}

#[test]
fn frames_of_another_session_do_nothing_and_blocks_that_are_held_are_not_written() {
    let _alone = alone();
    let ducks = Ducks::start(PondOptions::default());
    let recorder = Recorder::start(&ducks, |_, _| ());
    let mut pond = Attacked::with(ducks);
    assert!(pond.ask() == pond.want);
    let seen = recorder.end();
    pond.assert_alive();
    let steps = pond.count(Counter::Steps);
    let (loaded, wrong) = (pond.count(Counter::BlocksLoaded), pond.count(Counter::BlocksWrong));
    let mut random = Random(5);
    let mut port = pond.ducks.hub(0).port(INTRUDER, MTU);
    let foreign = [Kind::Write, Kind::Assign, Kind::Input].map(|kind| &seen[&kind]);
    for frame in foreign.into_iter().flatten() {
        for (at, from) in [INTRUDER, HOSTS[0]].into_iter().enumerate() {
            let mut frame = frame.clone();
            if kind(&frame) == Some(Kind::Input) {
                // Of a step that the duck has not seen.
                frame[ETHERNET + 13] ^= 0x10;
            }
            // The session's own epoch from a foreign address, and another epoch from the host's.
            if at == 1 {
                frame[ETHERNET + 8..][..4].copy_from_slice(&(random.number() as u32 | 1).to_le_bytes());
            }
            mend(&mut frame);
            resend(&mut port, &frame, Some(from));
        }
        thread::sleep(Duration::from_micros(100));
    }
    pond.assert_alive();
    assert_eq!(pond.count(Counter::Steps), steps, "no step of another session was computed");
    // Right epoch, right address, other weights.
    for frame in &seen[&Kind::Write] {
        let mut frame = frame.clone();
        frame[ETHERNET + HEADER..].iter_mut().for_each(|byte| *byte ^= 0x55);
        mend(&mut frame);
        resend(&mut port, &frame, None);
        thread::sleep(Duration::from_micros(100));
    }
    pond.assert_alive();
    assert_eq!((pond.count(Counter::BlocksLoaded), pond.count(Counter::BlocksWrong)), (loaded, wrong));
    assert!(pond.ask() == pond.want);
}

#[test]
fn forged_chunks_hold_loading_up_and_corrupt_nothing() {
    let _alone = alone();
    let ducks = Ducks::start(PondOptions::default());
    let (mut random, mut forged) = (Random(6), 0);
    let recorder = Recorder::start(&ducks, move |port, bytes| {
        // Chunks with other bytes, for blocks that are about to arrive.
        let ours = bytes[6..12] == HOSTS[0].0 && kind(bytes) == Some(Kind::Write);
        let mut frame = bytes.to_vec();
        let number = |frame: &[u8], at: usize| u32::from_le_bytes(frame[at..][..4].try_into().expect("four bytes"));
        let (block, offset) = (number(&frame, ETHERNET + 12), number(&frame, ETHERNET + 24));
        if ours && block != wire::list::LIST && offset == 0 && forged < 300 {
            forged += 1;
            let chunk = (bytes.len() - ETHERNET - HEADER) as u32;
            frame[ETHERNET + 12..][..4].copy_from_slice(&(block + random.below(6) as u32).to_le_bytes());
            frame[ETHERNET + 24..][..4].copy_from_slice(&(chunk * random.below(30) as u32).to_le_bytes());
            frame[ETHERNET + HEADER..].iter_mut().for_each(|byte| *byte ^= 0x55);
            mend(&mut frame);
            resend(port, &frame, None);
        }
    });
    let mut pond = Attacked::with(ducks);
    wait_for(&mut pond.engine, "all is loaded", all_ready);
    recorder.end();
    pond.assert_alive();
    let wrong = pond.count(Counter::BlocksWrong);
    println!("{wrong} blocks had a wrong digest and were sent again");
    assert!(wrong > 0, "forged chunks arrived before right ones");
    assert!(pond.ask() == pond.want);
}

#[test]
fn nobody_falls_over_forged_data_and_the_next_session_is_right() {
    let _alone = alone();
    let ducks = Ducks::start(PondOptions::default());
    let recorder = Recorder::start(&ducks, |_, _| ());
    let mut pond = Attacked::with(ducks);
    assert!(pond.ask() == pond.want);
    let (mut asked, mut wrong, mut longest) = (0, 0, Duration::ZERO);
    let plans = status(&mut pond.engine).plans;
    for seed in 0..4 {
        let Attacked { ducks, engine, prompt, want } = &mut pond;
        let mut random = Random(100 + seed);
        let forge = |frame: &mut Vec<u8>| {
            recorder.draw(&mut random, frame);
            mutate(&mut random, frame);
            mend(frame);
            recorder.disown(frame);
        };
        let before = Usage::own();
        let request = greedy_request(prompt, TOKENS, true);
        flood(ducks, frames(50_000), forge, || {
            engine.reset();
            // Whatever it says: forged frames end no request.
            let began = Instant::now();
            asked += 1;
            wrong += usize::from(answer(engine, &request) != *want);
            longest = longest.max(began.elapsed());
        });
        let after = Usage::own();
        println!("seed {seed}: {} KiB more", after.rss.saturating_sub(before.rss) >> 10);
        assert!(after.rss < before.rss + (64 << 20), "seed {seed}: memory is bounded: {before:?}, {after:?}");
        assert_eq!(after.threads, before.threads, "seed {seed}");
    }
    println!("{wrong} of {asked} answers had other bits, the longest took {} ms", longest.as_millis());
    assert!(status(&mut pond.engine).plans > plans, "it was felt");
    // The host starts afresh; recorded frames are of its past.
    let Attacked { mut ducks, engine: old, prompt, want } = pond;
    drop(old);
    let mut engine = engine(&load(&duckling_folder()), Numerics::Exact, ducks.host());
    wait_for(&mut engine, "all are ready", all_ready);
    assert!(answer(&mut engine, &greedy_request(&prompt, TOKENS, true)) == want);
    // Joins every duck: one that has panicked fails the test.
    drop(engine);
    (0..2).for_each(|duck| ducks.kill(duck));
}

//! A duck in a thread against the host's own state machine.

mod common;

use std::time::{Duration, Instant};

use common::*;
use duckd::{Exit, Options};
use link::Hub;
use wire::host::{Event, Outcome, Refusal, Why};
use wire::key::Key;
use wire::limits::{Limits, Mode};
use wire::message::{Counter, VerdictCode};

#[test]
fn steps_have_the_kernels_bits_on_any_number_of_cores_and_lanes() {
    for (cores, format) in [(1, 0), (2, 1), (3, 1)] {
        let limits = Limits { format, ..LIMITS };
        let (hub, model) = (Hub::new(), Model::random(limits, 5));
        let _duck = Duck::start(&hub, Options { cores, core0_share: 200, ..options() });
        let mut host = host(&hub, &model, 0..2);
        host.loaded();
        let plan = [limits.shape().root().index(limits.shape())];
        host.assign(1, &plan);
        for seq in 0..20 {
            let lanes = 1 + seq as usize % usize::from(limits.lanes);
            let data = StepData::random(&limits, lanes, &plan, &[], u64::from(seq));
            host.begin(seq, 1, &data);
            host.assert_sums(seq, &model.sums(&data));
        }
    }
}

#[test]
fn inputs_travel_in_every_mode() {
    for mode in [Mode::Bf16, Mode::Fp8] {
        let limits = Limits { mode, ..LIMITS };
        let (hub, model) = (Hub::new(), Model::random(limits, 6));
        let _duck = Duck::start(&hub, options());
        let mut host = host(&hub, &model, 0..2);
        host.loaded();
        let plan = slice_nodes(&limits, 0..2);
        host.assign(1, &plan);
        let data = StepData::random(&limits, 3, &plan, &[], 1);
        host.begin(0, 1, &data);
        host.assert_sums(0, &model.sums(&data));
    }
}

#[test]
fn four_steps_are_outstanding_and_some_name_their_nodes() {
    let (hub, model) = (Hub::new(), Model::random(LIMITS, 7));
    let _duck = Duck::start(&hub, Options { cores: 2, ..options() });
    let mut host = host(&hub, &model, 0..2);
    host.loaded();
    let plan = slice_nodes(&LIMITS, 0..2);
    host.assign(3, &plan);
    let (left, right) = LIMITS.shape().node(plan[0]).and_then(|n| n.children(LIMITS.shape())).expect("experts");
    let halves = [left, right].map(|n| n.index(LIMITS.shape()));
    for round in 0..10 {
        let steps: Vec<(u32, StepData)> = (0..4)
            .map(|i| {
                let named: &[u16] = [&[][..], &plan[1..], &halves, &halves[1..]][i as usize];
                (round * 4 + i, StepData::random(&LIMITS, 1 + i as usize, &plan, named, u64::from(round * 4 + i)))
            })
            .collect();
        steps.iter().for_each(|(seq, data)| host.begin(*seq, 3, data));
        steps.iter().for_each(|(seq, data)| host.assert_sums(*seq, &model.sums(data)));
    }
}

#[test]
fn a_host_that_opens_again_with_the_same_list_loads_nothing() {
    let (hub, model) = (Hub::new(), Model::random(LIMITS, 8));
    let duck = Duck::start(&hub, options());
    let mut host = host(&hub, &model, 0..2);
    host.loaded();
    drop(host);
    let mut host = host_with(&hub, &model, 0..2, |c| c.epoch = 78);
    host.loaded();
    assert!(host.peer.stats().load_bytes == 0 && host.peer.stats().opens > 0);
    let plan = slice_nodes(&LIMITS, 0..2);
    host.assign(1, &plan);
    let data = StepData::random(&LIMITS, 2, &plan, &[], 3);
    host.begin(0, 1, &data);
    host.assert_sums(0, &model.sums(&data));
    host.wait(Duration::from_millis(100));
    assert_eq!((duck.monitor.resident(), duck.monitor.blocks()), (32, 32));
}

#[test]
fn another_list_keeps_the_blocks_that_both_have() {
    let (hub, model) = (Hub::new(), Model::random(LIMITS, 9));
    let _duck = Duck::start(&hub, options());
    let mut host = host(&hub, &model, 1..2);
    host.loaded();
    let one_slice = host.peer.stats().load_bytes;
    drop(host);
    let mut host = host_with(&hub, &model, 0..2, |c| c.epoch = 78);
    host.until("it has joined", |h| h.peer.is_up());
    let joined = |e: &Event| matches!(e, Event::Joined { resident: 16, blocks: 32 });
    assert!(host.events.iter().any(joined), "{:?}", host.events);
    host.loaded();
    let again = host.peer.stats().load_bytes;
    assert!(again < one_slice + 2_000, "{again} bytes after {one_slice}");
    let plan = slice_nodes(&LIMITS, 0..2);
    host.assign(1, &plan);
    for seq in 0..4 {
        let data = StepData::random(&LIMITS, 5, &plan, &[], seq.into());
        host.begin(seq, 1, &data);
        host.assert_sums(seq, &model.sums(&data));
    }
}

#[test]
fn a_wrong_key_opens_and_resets_nothing() {
    let (hub, model) = (Hub::new(), Model::random(LIMITS, 10));
    let duck = Duck::start(&hub, options());
    let mut host = host_with(&hub, &model, 0..1, |c| c.key = Key::from_seed([1; 32]));
    host.until("it is refused", |h| h.events.contains(&Event::Refused(Refusal::BadSignature)));
    let now = host.now();
    host.peer.reset(now, 0);
    host.wait(Duration::from_millis(100));
    assert!(!host.peer.is_up());
    host.until("it is counted", |_| duck.monitor.counter(Counter::ControlRefused) >= 2);
}

#[test]
fn the_owners_reset_ends_the_duck() {
    let (hub, model) = (Hub::new(), Model::random(LIMITS, 11));
    let mut duck = Duck::start(&hub, options());
    let mut host = host(&hub, &model, 0..1);
    host.until("it is up", |h| h.peer.is_up());
    let now = host.now();
    host.peer.reset(now, 0);
    // Signatures are checked at a bounded rate, so it may take a second try.
    host.until("the duck ends", |_| duck.has_ended());
    assert_eq!(duck.join(), Exit::Reset { action: 0 });
}

#[test]
fn a_step_beyond_its_time_limit_says_so_and_the_next_one_is_right() {
    let (hub, model) = (Hub::new(), Model::random(LIMITS, 12));
    let _duck = Duck::start(&hub, Options { cores: 2, ..options() });
    let mut host = host(&hub, &model, 0..2);
    host.loaded();
    let plan = slice_nodes(&LIMITS, 0..2);
    host.assign(1, &plan);
    let data = StepData::random(&LIMITS, 5, &plan, &[], 3);
    host.begin(0, 1, &StepData { time_limit: 1, ..data.clone() });
    let outcome = host.outcome(0);
    assert!(matches!(outcome, Outcome::Failed(v) if v.code == VerdictCode::TimeLimit as u8), "{outcome:?}");
    host.begin(1, 1, &StepData { time_limit: 10_000_000, ..data.clone() });
    host.assert_sums(1, &model.sums(&data));
}

#[test]
fn a_step_that_the_kernels_refuse_is_unsupported() {
    let (hub, model) = (Hub::new(), Model::random(LIMITS, 13));
    let _duck = Duck::start(&hub, Options { cores: 2, ..options() });
    let mut host = host(&hub, &model, 0..2);
    host.loaded();
    let plan = slice_nodes(&LIMITS, 0..2);
    host.assign(1, &plan);
    let good = StepData::random(&LIMITS, 2, &plan, &[], 3);
    let mut data = good.clone();
    data.experts[..2].reverse();
    host.begin(0, 1, &data);
    let outcome = host.outcome(0);
    assert!(matches!(outcome, Outcome::Failed(v) if v.code == VerdictCode::Unsupported as u8), "{outcome:?}");
    host.begin(1, 1, &good);
    host.assert_sums(1, &model.sums(&good));
}

#[test]
fn too_little_scratch_is_a_verdict() {
    let (hub, model) = (Hub::new(), Model::random(LIMITS, 13));
    let _duck = Duck::start(&hub, Options { scratch: 1_000, ..options() });
    let mut host = host(&hub, &model, 0..1);
    host.loaded();
    let plan = slice_nodes(&LIMITS, 0..1);
    host.assign(1, &plan);
    host.begin(0, 1, &StepData::random(&LIMITS, 2, &plan, &[], 3));
    let outcome = host.outcome(0);
    assert!(matches!(outcome, Outcome::Failed(v) if v.code == VerdictCode::MemoryLimit as u8), "{outcome:?}");
}

#[test]
fn scrubbing_finds_a_flipped_byte_and_the_block_is_loaded_again() {
    let (hub, model) = (Hub::new(), Model::random(LIMITS, 14));
    let scrub = Some(Duration::from_millis(200));
    let duck = Duck::start(&hub, Options { scrub, ..options() });
    let mut host = host(&hub, &model, 0..2);
    host.loaded();
    host.until("a round of checks", |_| duck.monitor.scrubbed() > 40);
    assert_eq!(duck.monitor.counter(Counter::BlocksLost), 0);
    let loaded = host.peer.stats().load_bytes;
    duck.monitor.flip_byte(17, 1_000);
    host.until("the loss is counted", |_| duck.monitor.counter(Counter::BlocksLost) == 1);
    host.until("the block is sent again", |h| h.peer.stats().load_bytes > loaded);
    host.loaded();
    let plan = slice_nodes(&LIMITS, 0..2);
    host.assign(1, &plan);
    for seq in 0..4 {
        let data = StepData::random(&LIMITS, 5, &plan, &[], seq.into());
        host.begin(seq, 1, &data);
        host.assert_sums(seq, &model.sums(&data));
    }
}

/// A model whose steps take a while.
fn large() -> Limits {
    Limits { hidden: 2_048, experts: 16, chosen: 8, lanes: 48, nodes: 1, step_chunk: 1_440, ..LIMITS }
}

fn large_options() -> Options {
    Options { cores: 2, memory: 64 << 20, input: 1 << 20, result: 1 << 20, ..options() }
}

#[test]
fn a_new_session_during_a_step_stops_it_and_is_served() {
    let (hub, limits) = (Hub::new(), large());
    let model = Model::random(limits, 15);
    let duck = Duck::start(&hub, large_options());
    let mut host = host(&hub, &model, 0..1);
    host.loaded();
    let plan = slice_nodes(&limits, 0..1);
    host.assign(1, &plan);
    for round in 0..6u32 {
        for seq in 0..4 {
            let data = StepData::random(&limits, 48, &plan, &[], u64::from(seq));
            host.begin(round * 4 + seq, 1, &data);
        }
        // So that steps are under way at different points when the next host opens.
        host.wait(Duration::from_millis(u64::from(round)));
        let slices = if round % 2 == 0 { 0..1 } else { 0..2 };
        drop(host);
        host = host_with(&hub, &model, slices, |c| c.epoch = 100 + round);
        host.loaded();
        host.assign(1, &plan);
        let data = StepData::random(&limits, 48, &plan, &[], 9);
        host.begin(round * 4 + 4, 1, &data);
        host.assert_sums(round * 4 + 4, &model.sums(&data));
        host.done.clear();
    }
    assert_eq!(duck.monitor.counter(Counter::BlocksWrong), 0);
}

#[test]
fn results_leave_while_the_step_still_runs() {
    let (hub, limits) = (Hub::new(), large());
    let model = Model::random(limits, 16);
    let _duck = Duck::start(&hub, Options { cores: 1, ..large_options() });
    let mut host = host(&hub, &model, 0..1);
    host.loaded();
    let plan = slice_nodes(&limits, 0..1);
    host.assign(1, &plan);
    let data = StepData::random(&limits, 48, &plan, &[], 1);
    let expected = model.sums(&data);
    // On a busy machine this thread may sleep through a step, hardly through all of them.
    let streamed = (0..20).any(|seq| {
        let before = host.peer.stats().frames_in;
        host.begin(seq, 1, &data);
        let start = Instant::now();
        host.until("results or the end", |h| h.done.contains_key(&seq) || h.peer.stats().frames_in > before + 10);
        let first = start.elapsed();
        host.assert_sums(seq, &expected);
        first < start.elapsed() * 9 / 10
    });
    assert!(streamed, "no results arrived well before a step's end");
}

#[test]
fn stopping_takes_less_than_a_tenth_of_a_second() {
    let (hub, model) = (Hub::new(), Model::random(LIMITS, 17));
    for with_host in [false, true] {
        let mut duck = Duck::start(&hub, Options { cores: 3, ..options() });
        if with_host {
            host(&hub, &model, 0..2).loaded();
        }
        std::thread::sleep(Duration::from_millis(50));
        let start = Instant::now();
        duck.stop.trigger();
        assert_eq!(duck.join(), Exit::Stopped);
        assert!(start.elapsed() < Duration::from_millis(100), "{:?}", start.elapsed());
    }
}

#[test]
fn an_idle_duck_wakes_a_few_times_a_second() {
    let (hub, model) = (Hub::new(), Model::random(LIMITS, 18));
    let duck = Duck::start(&hub, Options { cores: 2, ..options() });
    let mut host = host(&hub, &model, 0..2);
    host.loaded();
    host.wait(Duration::from_millis(100));
    let (waits, beats) = (duck.monitor.waits(), duck.monitor.beats());
    host.wait(Duration::from_secs(2));
    // Eight questions after its health, its answers, and its own two looks.
    let (waits, beats) = (duck.monitor.waits() - waits, duck.monitor.beats() - beats);
    assert!((2..40).contains(&waits), "{waits} sleeps");
    assert!(beats < 10_000, "{beats} turns");
    drop(host);
    let waits = duck.monitor.waits();
    std::thread::sleep(Duration::from_secs(2));
    assert!((1..6).contains(&(duck.monitor.waits() - waits)), "without a host");
}

#[test]
fn a_duck_that_restarts_is_found_and_loaded_anew() {
    let (hub, model) = (Hub::new(), Model::random(LIMITS, 19));
    let duck = Duck::start(&hub, options());
    let mut host = host(&hub, &model, 0..1);
    host.loaded();
    drop(duck);
    let _duck = Duck::start(&hub, Options { seed: Some([10; 32]), ..options() });
    let gone = |e: &Event| matches!(e, Event::Silent { why: Why::Restarted | Why::Unanswered });
    host.until("the loss is noticed", |h| h.events.iter().any(gone));
    host.loaded();
}

#[test]
fn a_list_beyond_the_memory_is_refused() {
    let (hub, limits) = (Hub::new(), large());
    let model = Model::random(limits, 20);
    let _duck = Duck::start(&hub, Options { memory: 4 << 20, ..large_options() });
    let mut host = host(&hub, &model, 0..2);
    host.until("the list is refused", |h| h.events.contains(&Event::Refused(Refusal::List)));
    assert!(!host.peer.is_up());
}

#[test]
fn an_open_beyond_its_buffers_is_refused() {
    let (hub, model) = (Hub::new(), Model::random(LIMITS, 21));
    let _duck = Duck::start(&hub, Options { result: 1_000, ..options() });
    let mut host = host(&hub, &model, 0..1);
    host.until("the session is refused", |h| h.events.contains(&Event::Refused(Refusal::Limits)));
}

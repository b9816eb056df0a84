//! Ducks behind links compute what ducks in the process compute, bit for bit, whatever links and ducks do.

use std::time::{Duration, Instant};

use decode::{Engine, EngineOptions};
use flock::Flock;
use flock::remote::{DuckState, PondStatus};
use model::Numerics;
use pond_tests::ducks::{Ducks, PondOptions};
use pond_tests::{Answer, answer, answer_with, duckling_folder, greedy_request, load};

fn remote_engine(ducks: &mut Ducks, numerics: Numerics) -> Engine {
    let model = load(&duckling_folder());
    let flock = Flock::remote(&model, numerics, ducks.host()).expect("a pond");
    let options = EngineOptions { numerics, ..EngineOptions::default() };
    let mut engine = Engine::with_flock(model, flock, &options).expect("an engine");
    let remote = engine.flock().as_remote().expect("ducks behind links");
    remote.wait_ready(&mut |_| true).expect("domains work");
    engine
}

fn status(engine: &mut Engine) -> PondStatus {
    engine.flock().as_remote().expect("ducks behind links").status()
}

/// Waits until something holds of the pond; a pond that never gets there fails the test.
fn wait_for(engine: &mut Engine, what: &str, holds: impl Fn(&PondStatus) -> bool) {
    let started = Instant::now();
    loop {
        engine.flock().as_remote().expect("remote").tick().expect("domains work");
        let status = status(engine);
        if holds(&status) {
            return;
        }
        assert!(started.elapsed() < Duration::from_secs(60), "{what}: {status:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// An answer: its tokens, and every logit by position, as bits.
type Bits = (Vec<u32>, std::collections::BTreeMap<usize, Vec<u32>>);

fn logits(engine: &mut Engine, prompt: &[u32], tokens: usize, mtp: bool) -> Bits {
    let Answer { tokens, logits, .. } = answer(engine, &greedy_request(prompt, tokens, mtp));
    assert!(!logits.is_empty());
    engine.reset();
    (tokens, logits)
}

fn in_process(numerics: Numerics) -> Engine {
    let options = EngineOptions { numerics, ..EngineOptions::default() };
    Engine::new(load(&duckling_folder()), &options).expect("good options")
}

#[test]
fn a_pond_answers_as_ducks_in_the_process_do() {
    let case = &golden::duckling_greedy()[0];
    for (ports, count) in [(1, 1), (1, 3), (2, 2)] {
        let mut ducks = Ducks::start(PondOptions { ports, ducks: count, ..PondOptions::default() });
        let mut engine = remote_engine(&mut ducks, Numerics::Exact);
        let before = status(&mut engine);
        assert!(before.ducks.iter().all(|d| d.state == DuckState::Ready), "{before:?}");
        assert_eq!(before.host_units, 0);
        let request = greedy_request(&case.prompt_ids, case.greedy_ids.len(), false);
        let got = answer(&mut engine, &request).tokens;
        assert_eq!(got, case.greedy_ids);
        wait_for(&mut engine, "counters", |s| s.ducks.iter().all(|d| d.steps > 0));
    }
}

#[test]
fn bits_are_the_same_over_faulty_links_in_both_modes() {
    let cases = golden::duckling_greedy();
    let case = cases.iter().max_by_key(|case| case.greedy_ids.len()).expect("there are some");
    let tokens = 8;
    for numerics in [Numerics::Exact, Numerics::Bf16] {
        let mut reference = in_process(numerics);
        let want = [false, true].map(|mtp| logits(&mut reference, &case.prompt_ids, tokens, mtp));
        for (seed, loss) in [(1, 0), (2, 10), (3, 100)] {
            let faults = format!("loss={loss},duplicate={loss},reorder={loss},corrupt={loss}");
            let faults = Some(faults.parse().expect("well-formed"));
            let options = PondOptions { ports: 2, ducks: 2, faults, seed, ..PondOptions::default() };
            let mut ducks = Ducks::start(options);
            let mut engine = remote_engine(&mut ducks, numerics);
            for (mtp, want) in [false, true].into_iter().zip(&want) {
                assert!(logits(&mut engine, &case.prompt_ids, tokens, mtp) == *want, "{numerics:?} {loss} {mtp}");
            }
            if loss == 100 {
                // What is told lies back a little.
                wait_for(&mut engine, "faults were injected", |s| s.ducks.iter().map(|d| d.retries).sum::<u64>() > 0);
            }
        }
    }
}

#[test]
fn a_restarted_host_finds_what_ducks_hold_and_loads_nothing() {
    let mut ducks = Ducks::start(PondOptions::default());
    for start in 0..10 {
        let mut engine = remote_engine(&mut ducks, Numerics::Exact);
        let status = status(&mut engine);
        let bytes: u64 = status.ducks.iter().map(|d| d.load_bytes).sum();
        assert_eq!(start == 0, bytes > 0, "start {start}: {bytes} bytes");
        assert!(status.ducks.iter().all(|d| d.state == DuckState::Ready), "{status:?}");
    }
}

#[test]
fn a_duck_that_dies_in_the_middle_is_replaced_and_comes_back() {
    let cases = golden::duckling_greedy();
    let case = cases.iter().max_by_key(|case| case.greedy_ids.len()).expect("there are some");
    let tokens = 80;
    let want = logits(&mut in_process(Numerics::Exact), &case.prompt_ids, tokens, false);
    // With room for replicas, and without: then the host computes.
    for memory in [64 << 20, 5 << 20] {
        let mut ducks = Ducks::start(PondOptions { ports: 2, ducks: 2, memory, ..PondOptions::default() });
        let mut engine = remote_engine(&mut ducks, Numerics::Exact);
        let request = greedy_request(&case.prompt_ids, tokens, false);
        let got = answer_with(&mut engine, &request, |token| match token {
            5 => ducks.kill(1),
            12 => ducks.kill(2),
            // Now the whole second port is gone.
            20 => ducks.kill(3),
            _ => {}
        });
        assert!((got.tokens, got.logits) == want, "{memory}");
        engine.reset();
        let after = status(&mut engine);
        assert_eq!(after.ducks.iter().filter(|d| d.state == DuckState::Ready).count(), 1, "{after:?}");
        assert!(after.take_overs >= 2, "{after:?}");
        for duck in 1..4 {
            ducks.boot(duck);
        }
        wait_for(&mut engine, "all are back", |s| s.ducks.iter().all(|d| d.state == DuckState::Ready));
        assert!(logits(&mut engine, &case.prompt_ids, tokens, false) == want);
        let after = status(&mut engine);
        assert_eq!(after.host_units, 0, "ducks have their units again: {after:?}");
        // Units may have moved between ducks since, if one was slower than the others.
        assert_eq!(after.ducks.iter().map(|d| d.active).sum::<u32>(), 32, "{after:?}");
    }
}

#[test]
fn a_second_host_and_another_key_are_refused() {
    let mut ducks = Ducks::start(PondOptions { ducks: 1, ..PondOptions::default() });
    let first = remote_engine(&mut ducks, Numerics::Exact);
    let model = load(&duckling_folder());
    for (options, why) in [
        (ducks.host_with([8; 16], pond_tests::ducks::key()), "another host holds it"),
        (ducks.host_with([7; 16], wire::key::Key::from_seed([9; 32])), "another key"),
    ] {
        let mut flock = Flock::remote(&model, Numerics::Exact, options).expect("planned from announcements");
        let remote = flock.as_remote().expect("remote");
        remote.wait_ready(&mut |_| true).expect("domains work");
        let status = remote.status();
        assert_eq!(status.ducks[0].state, DuckState::Refused, "{status:?}");
        assert!(status.ducks[0].note.contains(why), "{status:?}");
        assert_eq!(status.ducks[0].load_bytes, 0);
    }
    drop(first);
}

//! A pond of real interfaces: four ports, two `duckd` processes behind each, joined by the kernel's bridges in namespaces of their own.
//!
//! It needs root and iproute2. Without them it says so and passes, or fails with `DUCKPOND_REQUIRE_NET=1`. `DUCKPOND_LONG=1` takes longer, and
//! writes what disturbances cost to the file that `DUCKPOND_REPORT` names.

use decode::{Engine, EngineOptions};
use model::Numerics;
use model::program::Model;
use pond_tests::disturb::disturb;
use pond_tests::ducks::PondOptions;
use pond_tests::processes::{Processes, alone, engine, status, wait_for};
use pond_tests::{Answer, answer, duckling_folder, greedy_request, load};

/// Four ports of two ducks.
const POND: PondOptions = PondOptions { ports: 4, ducks: 2, memory: 64 << 20, faults: None, seed: 1, mtu: 1500 };
const TOKENS: usize = 6;

struct Subject {
    name: &'static str,
    model: Model,
    prompt: Vec<u32>,
}

/// Duckling and the golden model, each with a short prompt.
fn subjects() -> [Subject; 2] {
    let short = golden::duckling_greedy().into_iter().min_by_key(|case| case.prompt_ids.len()).expect("there are some");
    let tiny = golden::Case::open("deepseek-v32-tiny", "short").prompt;
    [
        Subject { name: "duckling", model: load(&duckling_folder()), prompt: short.prompt_ids },
        Subject { name: "tiny", model: load(&golden::deepseek_v32_tiny()), prompt: tiny },
    ]
}

fn in_process(subject: &Subject, numerics: Numerics) -> Answer {
    let options = EngineOptions { numerics, ..EngineOptions::default() };
    let mut engine = Engine::new(subject.model.clone(), &options).expect("good options");
    answer(&mut engine, &greedy_request(&subject.prompt, TOKENS, true))
}

/// Loss in thousandths; everything else that can happen to a frame is as frequent.
fn faults(loss: u16) -> String {
    format!("loss={loss},duplicate={loss},reorder={loss},corrupt={}", loss / 5)
}

#[test]
fn bits_are_those_of_ducks_in_the_process_whatever_happens_to_frames() {
    let _alone = alone();
    let Some(mut pond) = Processes::net(POND) else { return };
    let (mut seed, mut repeats) = (0, 0);
    for subject in subjects() {
        for numerics in [Numerics::Exact, Numerics::Bf16] {
            let want = in_process(&subject, numerics);
            // Twenty seeds over all.
            for loss in [0, 10, 10, 100, 100] {
                seed += 1;
                let started = std::time::Instant::now();
                let mut engine = engine(&subject.model, numerics, pond.host_with_faults(&faults(loss), seed));
                let got = answer(&mut engine, &greedy_request(&subject.prompt, TOKENS, true));
                let what = format!("{}, {numerics:?}, seed {seed}, loss {loss}/1000", subject.name);
                assert!(got == want, "{what}");
                let after = wait_for(&mut engine, "counters", |s| s.ducks.iter().all(|duck| duck.steps > 0));
                let retries: u64 = after.ducks.iter().map(|duck| duck.retries).sum();
                println!("{what}: {retries} repeats, {} ms", started.elapsed().as_millis());
                assert!(loss < 100 || retries > 0, "faults were injected: {what}: {after:?}");
                repeats += retries;
            }
        }
    }
    assert_eq!(seed, 20);
    assert!(repeats > 1000, "{repeats}");
    pond.assert_running();
}

#[test]
fn long_frames_are_found_and_change_no_bit() {
    let _alone = alone();
    let Some(mut pond) = Processes::net(PondOptions { mtu: 9000, ports: 2, ..POND }) else { return };
    for subject in subjects() {
        let mut engine = engine(&subject.model, Numerics::Exact, pond.host());
        let before = status(&mut engine);
        assert!(before.ducks.iter().all(|duck| duck.path == 9000), "{before:?}");
        let got = answer(&mut engine, &greedy_request(&subject.prompt, TOKENS, true));
        assert!(got == in_process(&subject, Numerics::Exact), "{}", subject.name);
        assert_eq!(status(&mut engine).take_overs, 0);
    }
    pond.assert_running();
}

#[test]
fn killed_and_stopped_ducks_cost_time_and_no_bit_and_nothing_leaks() {
    let _alone = alone();
    let Some(mut pond) = Processes::net(POND) else { return };
    disturb(&mut pond);
}

//! Ducks as processes of their own, over UDP: what anybody can run, without rights.

use std::time::Duration;

use flock::remote::DuckState;
use model::Numerics;
use pond_tests::ducks::PondOptions;
use pond_tests::processes::{Processes, Usage, all_ready, alone, engine, status, wait_for};
use pond_tests::{Answer, answer, answer_with, duckling_folder, greedy_request, load};
use wire::message::Counter;

/// The longest of the recorded questions, and what ducks in this process answer.
fn question(tokens: usize) -> (Vec<u32>, Answer) {
    let cases = golden::duckling_greedy();
    let case = cases.into_iter().max_by_key(|case| case.greedy_ids.len()).expect("there are some");
    let options = decode::EngineOptions::default();
    let mut here = decode::Engine::new(load(&duckling_folder()), &options).expect("good options");
    let want = answer(&mut here, &greedy_request(&case.prompt_ids, tokens, false));
    (case.prompt_ids, want)
}

#[test]
fn three_processes_answer_as_ducks_in_the_process_do_also_when_one_is_killed() {
    let _alone = alone();
    let tokens = 80;
    let (prompt, want) = question(tokens);
    let mut pond = Processes::udp(PondOptions { ducks: 3, ..PondOptions::default() });
    let mut engine = engine(&load(&duckling_folder()), Numerics::Exact, pond.host());
    let before = status(&mut engine);
    assert!(all_ready(&before) && before.host_units == 0, "{before:?}");
    pond.assert_running();
    let request = greedy_request(&prompt, tokens, false);
    assert!(answer(&mut engine, &request) == want, "undisturbed");
    engine.reset();
    let got = answer_with(&mut engine, &request, |token| match token {
        7 => pond.ducks[1].kill(),
        20 => pond.ducks[1].start(),
        // Slow enough for the duck to be back before the end, so that both changes happen in the middle.
        21.. => std::thread::sleep(Duration::from_millis(40)),
        _ => {}
    });
    assert!(got == want, "one was killed and restarted");
    let after = wait_for(&mut engine, "the duck is back", all_ready);
    assert!(after.take_overs > 0 && after.ducks[1].losses == 1, "{after:?}");
    assert_eq!((after.ducks[0].losses, after.ducks[2].losses), (0, 0), "{after:?}");
    engine.reset();
    assert!(answer(&mut engine, &request) == want, "afterwards");
    pond.assert_running();
}

#[test]
fn ten_restarts_of_the_host_load_nothing() {
    let _alone = alone();
    let (prompt, want) = question(8);
    let model = load(&duckling_folder());
    let mut pond = Processes::udp(PondOptions { ducks: 3, ..PondOptions::default() });
    drop(engine(&model, Numerics::Exact, pond.host()));
    let loaded = |pond: &Processes| [0, 1, 2].map(|duck| pond.counter(duck, Counter::BlocksLoaded));
    let before = loaded(&pond);
    assert!(before.iter().all(|&blocks| blocks > 0), "{before:?}");
    for start in 1..=10 {
        let mut engine = engine(&model, Numerics::Exact, pond.host());
        let status = status(&mut engine);
        assert!(all_ready(&status), "start {start}: {status:?}");
        assert!(status.ducks.iter().all(|duck| duck.load_bytes == 0), "start {start}: {status:?}");
        assert!(answer(&mut engine, &greedy_request(&prompt, 8, false)) == want, "start {start}");
    }
    assert_eq!(loaded(&pond), before);
    pond.assert_running();
}

#[test]
fn a_pond_without_requests_leaves_its_processors_alone() {
    let _alone = alone();
    let (prompt, want) = question(8);
    let pond = Processes::udp(PondOptions { ducks: 3, ..PondOptions::default() });
    let mut engine = engine(&load(&duckling_folder()), Numerics::Exact, pond.host());
    assert!(answer(&mut engine, &greedy_request(&prompt, 8, false)) == want);
    // The last request's echoes.
    std::thread::sleep(Duration::from_millis(500));
    let ticks = || -> Vec<u64> {
        let ducks = pond.ducks.iter().map(|duck| duck.usage().expect("it runs").ticks);
        ducks.chain([Usage::own().ticks]).collect()
    };
    let before = ticks();
    let seconds = 3;
    std::thread::sleep(Duration::from_secs(seconds));
    let used: Vec<u64> = ticks().iter().zip(&before).map(|(after, before)| after - before).collect();
    let most = rustix::param::clock_ticks_per_second() * seconds / 20;
    println!("ticks in {seconds} s without requests: three ducks and the host {used:?}, at most {most}");
    assert!(used.iter().all(|&ticks| ticks <= most), "more than 5 % of a processor: {used:?}, at most {most}");
    assert!(status(&mut engine).ducks.iter().all(|duck| duck.state == DuckState::Ready));
}

#[test]
fn a_second_host_is_refused_and_told_how_long() {
    let _alone = alone();
    let model = load(&duckling_folder());
    let pond = Processes::udp(PondOptions { ducks: 2, ..PondOptions::default() });
    let mut first = engine(&model, Numerics::Exact, pond.host());
    let mut second = engine(&model, Numerics::Exact, pond.other_host([8; 16]));
    let refused = |duck: &flock::remote::DuckStatus| {
        let seconds = duck.note.strip_prefix("another host holds it for ").and_then(|rest| rest.split_once(" s yet"));
        let seconds = seconds.and_then(|(seconds, _)| seconds.parse::<u32>().ok());
        duck.state == DuckState::Refused && seconds.is_some_and(|seconds| (1..=10).contains(&seconds))
    };
    let after = wait_for(&mut second, "refused", |status| status.ducks.iter().all(refused));
    assert!(after.ducks.iter().all(|duck| duck.load_bytes == 0), "{after:?}");
    let (prompt, want) = question(8);
    assert!(answer(&mut first, &greedy_request(&prompt, 8, false)) == want);
    // It stands alone, and still answers.
    assert!(answer(&mut second, &greedy_request(&prompt, 8, false)) == want);
    assert!(status(&mut first).ducks.iter().all(|duck| duck.losses == 0));
}

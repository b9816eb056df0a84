//! Ducks and whole domains die, stop and come back at seeded moments of an answer.

use std::fmt::Write as _;
use std::io::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use crate::processes::{Duckd, GUARD, Processes, Usage, all_ready, engine, long, status};
use crate::random::Random;
use crate::{answer, answer_with, duckling_folder, greedy_request, load};
use decode::{Engine, EngineOptions};
use model::Numerics;

/// Memory that a process may have more of at the end than halfway: allocators keep what they once had.
const GROWTH: u64 = 8 << 20;

/// Tokens after something was set off that are computed at full speed, so that it hits one of them and not the pause between two.
const QUICK: u32 = 6;

/// What happens to its victims.
#[derive(Clone, Copy, Debug, PartialEq)]
enum What {
    /// `kill -9`, and a new start after a while.
    Kill,
    /// The same, with a new start at once.
    Restart,
    /// SIGSTOP, and SIGCONT after a while.
    Pause,
}

/// Something that happens.
#[derive(Clone, Debug)]
struct Happening {
    what: What,
    ducks: Vec<usize>,
    /// Before this token it is set off,
    token: usize,
    /// so much later it happens, in the middle of some step,
    after: Duration,
    /// and so long it lasts.
    lasts: Duration,
}

/// So many of every kind, of one duck and of a whole domain, spread over the tokens.
fn plan(random: &mut Random, pond: &Processes, count: usize, tokens: usize) -> Vec<Happening> {
    let outage = |random: &mut Random| match long() {
        true => Duration::from_secs(10),
        false => Duration::from_millis(2000 + random.below(1000)),
    };
    let per_port = 2;
    (0..count)
        .map(|at| {
            let what = [What::Kill, What::Pause, What::Restart][at % 3];
            let duck = random.below(pond.ducks.len() as u64) as usize;
            let first = duck / per_port * per_port;
            // Each second one hits a whole domain.
            let ducks = if at % 2 == 1 { (first..first + per_port).collect() } else { vec![duck] };
            let token = 2 + at * (tokens - 2) / count + random.below(3) as usize;
            let lasts = if what == What::Restart { Duration::ZERO } else { outage(random) };
            Happening { what, ducks, token, after: Duration::from_micros(random.below(20_000)), lasts }
        })
        .collect()
}

/// Makes things happen, one after the other, and says when one is over.
fn act(ducks: &mut [Duckd], orders: &Receiver<Happening>, active: &AtomicBool) {
    while let Ok(happening) = orders.recv() {
        thread::sleep(happening.after);
        let each =
            |ducks: &mut [Duckd], act: fn(&mut Duckd)| happening.ducks.iter().for_each(|&duck| act(&mut ducks[duck]));
        match happening.what {
            What::Pause => each(ducks, |duck| duck.pause()),
            What::Kill | What::Restart => each(ducks, Duckd::kill),
        }
        thread::sleep(happening.lasts);
        match happening.what {
            What::Pause => each(ducks, |duck| duck.resume()),
            What::Kill | What::Restart => each(ducks, Duckd::start),
        }
        active.store(false, Ordering::Release);
    }
}

/// Every process's memory, the host's first, and the host's threads.
fn sizes(pond: &Processes) -> (Vec<u64>, u64) {
    // Threads of engines that are gone end a little later.
    let look = |_| {
        thread::sleep(Duration::from_millis(50));
        Usage::own()
    };
    let own = (0..20).map(look).min_by_key(|usage| usage.threads).expect("twenty");
    let ducks = pond.ducks.iter().map(|duck| duck.usage().expect("it runs").rss);
    ([own.rss].into_iter().chain(ducks).collect(), own.threads)
}

/// An answer during which things happen; the same tokens and logits as without. Returns what each cost.
fn disturbed(pond: &mut Processes, engine: &mut Engine, happenings: &[Happening], tokens: usize) -> String {
    let case = golden::duckling_greedy().into_iter().max_by_key(|case| case.greedy_ids.len()).expect("there are some");
    let request = greedy_request(&case.prompt_ids, tokens, false);
    let mut here = Engine::new(load(&duckling_folder()), &EngineOptions::default()).expect("good options");
    let want = answer(&mut here, &request);
    drop(here);

    let handle = engine.flock().as_remote().expect("ducks behind links").handle();
    let active = AtomicBool::new(false);
    let ((orders, receiver), mut gaps, mut set_off) = (channel(), Vec::new(), Vec::new());
    let got = thread::scope(|scope| {
        let (ducks, active) = (&mut pond.ducks[..], &active);
        scope.spawn(move || act(ducks, &receiver, active));
        let mut next = happenings.iter().peekable();
        let (mut left, mut quick) = (None, 0);
        let per_token = Duration::from_millis(if long() { 700 } else { 250 });
        let got = answer_with(engine, &request, |token| {
            if let Some(left) = left {
                gaps.push(Instant::elapsed(&left));
            }
            quick += 1;
            // Tokens go on meanwhile: a duck that has failed gets its next chance only from steps.
            let over = !active.load(Ordering::Acquire) && all_ready(&handle.status());
            if let Some(happening) = next.next_if(|happening| token >= happening.token && over) {
                active.store(true, Ordering::Release);
                set_off.push(token);
                quick = 0;
                orders.send(happening.clone()).expect("the thread waits for it");
            } else if !over && quick > QUICK {
                // Slowly, so that it lasts for some tokens.
                thread::sleep(per_token);
            }
            left = Some(Instant::now());
        });
        drop(orders);
        got
    });
    assert_eq!(set_off.len(), happenings.len(), "ducks came back in time for all to happen: {:?}", handle.status());
    assert!(got == want, "tokens or logits differ: {happenings:?}");
    report(happenings, &set_off, &gaps)
}

/// A line for each happening: the longest gap between two tokens after it, against the median of all gaps.
fn report(happenings: &[Happening], set_off: &[usize], gaps: &[Duration]) -> String {
    let mut sorted = gaps.to_vec();
    sorted.sort_unstable();
    let median = sorted[sorted.len() / 2];
    let mut lines = String::new();
    for (at, happening) in happenings.iter().enumerate() {
        let end = set_off.get(at + 1).map_or(gaps.len(), |&next| next - 1);
        // Gap i lies between tokens i + 1 and i + 2.
        let longest = gaps[set_off[at] - 1..end].iter().max().copied().unwrap_or_default();
        let Happening { what, ducks, lasts, .. } = happening;
        let (longest, median, lasts) = (longest.as_secs_f64() * 1e3, median.as_secs_f64() * 1e3, lasts.as_secs_f64());
        writeln!(lines, "{what:?} of ducks {ducks:?} for {lasts:.1} s at token {}: longest gap {longest:.1} ms, median {median:.1} ms", set_off[at])
            .expect("a string takes all");
    }
    lines
}

/// Asks until every duck is back.
fn answer_until_ready(engine: &mut Engine) {
    let started = Instant::now();
    while !all_ready(&status(engine)) {
        answer(engine, &greedy_request(&[1, 2, 3], 4, false));
        engine.reset();
        thread::sleep(Duration::from_millis(50));
        assert!(started.elapsed() < GUARD, "not all ducks come back: {:?}", status(engine));
    }
}

/// Twice as many happenings; nobody may have grown in the second half.
pub fn disturb(pond: &mut Processes) {
    let (count, tokens) = if long() { (20, 600) } else { (5, 150) };
    let seed = 3;
    let mut random = Random(seed);
    let mut engine = engine(&load(&duckling_folder()), Numerics::Exact, pond.host());
    assert!(all_ready(&status(&mut engine)), "{:?}", status(&mut engine));
    // The first ones are for warmth.
    let first = plan(&mut random, pond, 3, tokens / 2);
    let mut lines = disturbed(pond, &mut engine, &first, tokens / 2);
    engine.reset();
    answer_until_ready(&mut engine);
    let before = sizes(pond);
    let happenings = plan(&mut random, pond, count, tokens);
    lines += &disturbed(pond, &mut engine, &happenings, tokens);
    engine.reset();
    answer_until_ready(&mut engine);
    let after = sizes(pond);
    pond.assert_running();

    let mut out = std::io::stderr();
    let _ = write!(out, "seed {seed}\n{lines}");
    if let Some(path) = std::env::var_os("DUCKPOND_REPORT") {
        std::fs::write(&path, &lines).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    }
    assert_eq!(after.1, before.1, "threads of the host");
    assert!(after.0[0] <= before.0[0] + GROWTH, "the host has grown: {before:?}, {after:?}");
    let largest = before.0[1..].iter().max().copied().unwrap_or(0);
    assert!(after.0[1..].iter().all(|&rss| rss <= largest + GROWTH), "a duck has grown: {before:?}, {after:?}");
}

//! Ducks that trouble a pond without being simply dead: late ones, changed ones, doubles, such with less memory than before, slow ones.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use decode::{Engine, EngineOptions};
use flock::Flock;
use flock::remote::{DuckState, Options, PondStatus};
use link::{Hub, Link, LinkStats, Mac, Waker};
use model::Numerics;
use pond_tests::ducks::{Ducks, PondOptions};
use pond_tests::{Answer, answer_with, duckling_folder, greedy_request, load};

fn engine(options: Options) -> Engine {
    let model = load(&duckling_folder());
    let flock = Flock::remote(&model, Numerics::Exact, options).expect("a pond");
    let mut engine = Engine::with_flock(model, flock, &EngineOptions::default()).expect("an engine");
    engine.flock().as_remote().expect("remote").wait_ready(&mut |_| true).expect("domains work");
    engine
}

fn status(engine: &mut Engine) -> PondStatus {
    let remote = engine.flock().as_remote().expect("remote");
    remote.tick().expect("domains work");
    remote.status()
}

fn wait_for(engine: &mut Engine, what: &str, holds: impl Fn(&PondStatus) -> bool) {
    let started = Instant::now();
    loop {
        let status = status(engine);
        if holds(&status) {
            return;
        }
        assert!(started.elapsed() < Duration::from_secs(60), "{what}: {status:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

const TOKENS: usize = 30;

/// Answers while `each` troubles the pond, and demands what ducks in the process answer.
fn answers(engine: &mut Engine, each: impl FnMut(usize)) {
    let cases = golden::duckling_greedy();
    let case = cases.iter().max_by_key(|case| case.greedy_ids.len()).expect("there are some");
    let Answer { tokens, .. } = answer_with(engine, &greedy_request(&case.prompt_ids, TOKENS, false), each);
    assert_eq!(tokens, case.greedy_ids[..TOKENS]);
    engine.reset();
}

#[test]
fn nobody_waits_until_a_duck_counts_as_gone() {
    for memory in [64 << 20, 5 << 20] {
        let mut ducks = Ducks::start(PondOptions { ducks: 3, memory, ..PondOptions::default() });
        let mut options = ducks.host();
        options.silent_after = Duration::from_secs(3_600);
        let mut engine = engine(options);
        // If anybody waited for the duck, this would take an hour.
        answers(&mut engine, |token| {
            if token == 5 {
                ducks.kill(1)
            }
        });
        let after = status(&mut engine);
        assert_eq!(after.ducks[1].losses, 0, "{after:?}");
        assert_eq!(after.ducks[1].state, DuckState::Late, "{after:?}");
        assert_eq!(after.ducks[1].active, 0, "{after:?}");
    }
}

#[test]
fn another_machine_in_a_ducks_place_is_loaded_afresh() {
    let mut ducks = Ducks::start(PondOptions { ducks: 2, ..PondOptions::default() });
    let mut options = ducks.host();
    // Rows that know addresses, as those of real machines do.
    options.ducks.iter_mut().enumerate().for_each(|(i, duck)| duck.mac = Some(Ducks::mac(i)));
    let mut engine = engine(options);
    answers(&mut engine, |token| {
        if token == 5 {
            ducks.kill(1);
            ducks.boot_as(1, "another", 64 << 20);
        }
    });
    wait_for(&mut engine, "the other machine works", |s| s.ducks[1].state == DuckState::Ready);
    answers(&mut engine, |_| ());
    assert_eq!(status(&mut engine).host_units, 0);
}

#[test]
fn of_two_ducks_with_one_name_the_first_keeps_its_place() {
    let mut ducks = Ducks::start(PondOptions { ducks: 2, ..PondOptions::default() });
    let mut engine = engine(ducks.host());
    let before = status(&mut engine);
    let double = ducks.extra("duck-1", 64 << 20);
    // It announces itself every second, since nobody holds it.
    let until = Instant::now() + Duration::from_millis(2_500);
    while Instant::now() < until {
        answers(&mut engine, |_| ());
    }
    let after = status(&mut engine);
    assert_eq!(after.ducks[1].mac, before.ducks[1].mac);
    assert_eq!(after.ducks[1].losses, 0, "{after:?}");
    assert_eq!(after.ducks[1].load_bytes, before.ducks[1].load_bytes, "nothing was loaded into the double");
    drop(double);
}

#[test]
fn a_duck_may_come_back_with_a_little_less_memory() {
    let memory = 12 << 20;
    let mut ducks = Ducks::start(PondOptions { ducks: 2, memory, ..PondOptions::default() });
    let mut engine = engine(ducks.host());
    ducks.kill(1);
    ducks.boot_as(1, "duck-1", memory - memory / 25);
    wait_for(&mut engine, "it is gone", |s| s.ducks[1].state != DuckState::Ready);
    wait_for(&mut engine, "it is back", |s| s.ducks[1].state == DuckState::Ready);
    answers(&mut engine, |_| ());
}

#[test]
fn a_duck_that_comes_late_gets_its_share() {
    let mut ducks = Ducks::start(PondOptions { ducks: 2, ..PondOptions::default() });
    ducks.kill(0);
    ducks.kill(1);
    let mut options = ducks.host();
    options.wait = Duration::from_millis(100);
    let mut engine = engine(options);
    let alone = status(&mut engine);
    assert_eq!(alone.host_units, 32, "{alone:?}");
    answers(&mut engine, |_| ());
    ducks.boot(1);
    ducks.boot(0);
    wait_for(&mut engine, "they have come", |s| s.ducks.iter().all(|d| d.state == DuckState::Ready));
    answers(&mut engine, |_| ());
    assert_eq!(status(&mut engine).host_units, 0);
}

/// A link whose thread panics once it is told to: a fault of this program in one port.
struct Breaks {
    inner: Box<dyn Link>,
    broken: Arc<AtomicBool>,
}

impl Link for Breaks {
    fn mac(&self) -> Mac {
        self.inner.mac()
    }

    fn mtu(&self) -> usize {
        self.inner.mtu()
    }

    fn speed(&self) -> u32 {
        self.inner.speed()
    }

    fn tx(&mut self, fill: &mut dyn FnMut(&mut [u8]) -> usize) -> bool {
        self.inner.tx(fill)
    }

    fn flush(&mut self) {
        self.inner.flush();
    }

    fn rx(&mut self, each: &mut dyn FnMut(&[u8])) -> usize {
        assert!(!self.broken.load(Ordering::Relaxed), "broken on purpose");
        self.inner.rx(each)
    }

    fn wait(&mut self, timeout: Option<Duration>) {
        self.inner.wait(timeout);
    }

    fn waker(&self) -> Waker {
        self.inner.waker()
    }

    fn stats(&self) -> LinkStats {
        self.inner.stats()
    }

    fn describe(&self) -> String {
        self.inner.describe()
    }
}

/// Makes a port one that can be broken by the switch that is returned.
fn breaks(options: &mut Options, port: usize) -> Arc<AtomicBool> {
    let broken = Arc::new(AtomicBool::new(false));
    let inner = std::mem::replace(&mut options.ports[port].link, Box::new(Hub::new().port(Mac([2; 6]), 1500)));
    options.ports[port].link = Box::new(Breaks { inner, broken: Arc::clone(&broken) });
    broken
}

#[test]
fn a_port_that_breaks_costs_one_answer_at_most_and_others_go_on_without_its_ducks() {
    for ports in [1, 2] {
        let mut ducks = Ducks::start(PondOptions { ports, ducks: 2, ..PondOptions::default() });
        let mut options = ducks.host();
        let broken = breaks(&mut options, 0);
        let mut engine = engine(options);
        answers(&mut engine, |_| ());
        let cases = golden::duckling_greedy();
        let case = cases.iter().max_by_key(|case| case.greedy_ids.len()).expect("there are some");
        let mut seen = 0;
        let failed = engine.generate(&greedy_request(&case.prompt_ids, TOKENS, false), &mut |event| {
            if matches!(event, decode::Event::Token(_)) {
                seen += 1;
                broken.fetch_or(seen == 5, Ordering::Relaxed);
            }
            ControlFlow::Continue(())
        });
        // The thread may end between two steps, and then nothing is lost.
        if let Err(failed) = failed {
            assert!(format!("{failed:?}").contains("DomainEnded { port: \"port-0\" }"), "{failed:?}");
        }
        answers(&mut engine, |_| ());
        let after = status(&mut engine);
        let computing: u32 = after.ducks[2..].iter().map(|duck| duck.active).sum();
        assert_eq!(after.host_units + computing, 32, "{after:?}");
        assert!(ports == 1 || computing > 0, "{after:?}");
        for lost in &after.ducks[..2] {
            assert_eq!((lost.state, lost.active), (DuckState::Silent, 0), "{after:?}");
            assert!(lost.note.contains("port has stopped working"), "{after:?}");
        }
    }
}

#[test]
fn a_port_that_breaks_while_nothing_runs_costs_nothing() {
    let mut ducks = Ducks::start(PondOptions { ducks: 2, ..PondOptions::default() });
    let mut options = ducks.host();
    let broken = breaks(&mut options, 0);
    let mut engine = engine(options);
    broken.store(true, Ordering::Relaxed);
    wait_for(&mut engine, "the port is lost", |s| s.ducks.iter().all(|d| d.state == DuckState::Silent));
    answers(&mut engine, |_| ());
    assert_eq!(status(&mut engine).host_units, 32);
}

#[test]
fn a_slow_duck_without_anybody_to_relieve_it_changes_no_plan() {
    // Just enough memory, so there are no replicas; the second port's frames take their time.
    let mut ducks = Ducks::start(PondOptions { ports: 2, ducks: 2, memory: 3 << 20, ..PondOptions::default() });
    let options = ducks.host_delayed(1, Duration::from_millis(1));
    let mut engine = engine(options);
    let before = status(&mut engine);
    for _ in 0..6 {
        answers(&mut engine, |_| ());
    }
    let after = status(&mut engine);
    assert_eq!(after.ducks.iter().map(|d| d.active).sum::<u32>() + after.host_units, 32, "{after:?}");
    // Late ducks on a busy machine may have changed it, and back; slowness alone must not, time and again.
    assert!(after.plan - before.plan <= 2 * after.take_overs as u16 + 2, "{before:?} {after:?}");
}

//! The scheduler over a backend that does as it is told.

use std::sync::mpsc::{Receiver, Sender, channel};

use model::sampling::SamplingParams;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::*;
use crate::answer::Shape;
use crate::backend::Outcome;
use crate::testing::duckling;

/// Gives a token each time it is let; the answer to prompt `[n, …]` has `n` tokens.
struct Fake {
    steps: Receiver<()>,
    begun: Sender<u32>,
}

struct NoPond;

impl PondSource for NoPond {
    fn status(&self) -> PondStatus {
        PondStatus::default()
    }
}

impl Backend for Fake {
    fn generate(&mut self, job: Job, on_event: &mut dyn FnMut(Event) -> ControlFlow<()>) -> Result<Outcome, Failure> {
        let _ = self.begun.send(job.prompt[1]);
        if job.prompt[0] == 0 {
            return Err(Failure { message: "a flock of geese".into(), refused: false, fatal: job.prompt[1] == 0 });
        }
        let mut stats = Stats { prompt: job.prompt.len(), ..Stats::default() };
        for n in 0..job.prompt[0] {
            let _ = self.steps.recv();
            stats.output += 1;
            let at = Duration::from_millis(u64::from(n));
            let token = Token { id: 300 + n, at, drafted: false, accepted: false };
            if on_event(Event::Token(token)).is_break() {
                return Ok(Outcome { finish: Finish::Cancelled, stats });
            }
        }
        Ok(Outcome { finish: Finish::Length, stats })
    }

    fn pond(&self) -> Arc<dyn PondSource> {
        Arc::new(NoPond)
    }
}

struct Rig {
    scheduler: Scheduler,
    steps: Sender<()>,
    begun: Receiver<u32>,
    thread: JoinHandle<()>,
}

fn rig(most_waiting: usize) -> Rig {
    let (steps, wait) = channel();
    let (begin, begun) = channel();
    let load = move |_: &Loading<'_>| Ok(Fake { steps: wait, begun: begin });
    let (scheduler, thread) = Scheduler::start(load, most_waiting, Arc::default(), Arc::default()).expect("a thread");
    until(|| scheduler.load().ready);
    Rig { scheduler, steps, begun, thread }
}

fn until(mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(20);
    while !holds() {
        assert!(Instant::now() < end, "it does not come about");
        std::thread::sleep(Duration::from_millis(1));
    }
}

type Updates = UnboundedReceiver<(usize, Update)>;

fn task(client: &str, tokens: u32, name: u32) -> (Task, Updates) {
    let (listener, updates) = unbounded_channel();
    let job = Job {
        prompt: [tokens, name].into(),
        sampling: SamplingParams::default(),
        choice_index: 0,
        max_tokens: 10,
        stop_tokens: vec![1],
        mtp: false,
        chooser: None,
        observer: None,
    };
    let answer = Answer::new(duckling(), Shape::Plain, vec![1], &[]);
    let (client, since) = (client.into(), Instant::now());
    (Task { client, job, answer, logprobs: None, listener, index: 0, deadline: None, since }, updates)
}

/// Lets a submitted task go through and returns its last update.
fn last(mut updates: Updates) -> Update {
    let mut last = None;
    while let Some((_, update)) = updates.blocking_recv() {
        last = Some(update);
    }
    last.expect("an update")
}

impl Rig {
    fn submit(&self, client: &str, tokens: u32, name: u32) -> Updates {
        let (task, updates) = task(client, tokens, name);
        self.scheduler.submit(vec![task]).expect("there is room");
        updates
    }
}

#[test]
fn clients_take_turns() {
    let rig = rig(100);
    let first = rig.submit("a", 1, 1);
    assert_eq!(rig.begun.recv(), Ok(1));
    let others = [("a", 2), ("a", 3), ("b", 4)].map(|(client, name)| rig.submit(client, 1, name));
    (0..4).for_each(|_| rig.steps.send(()).expect("it waits"));
    let order: Vec<u32> = (0..3).map(|_| rig.begun.recv().expect("it goes on")).collect();
    assert_eq!(order, [2, 4, 3]);
    for updates in [first].into_iter().chain(others) {
        assert!(matches!(last(updates), Update::Done(Done { reason: EndReason::Length, .. })));
    }
}

#[test]
fn a_listener_that_went_ends_its_answer_at_the_next_token_and_waits_for_nobody() {
    let rig = rig(100);
    let gone = rig.submit("a", 1000, 1);
    let waiting = rig.submit("a", 1000, 2);
    let next = rig.submit("b", 1, 3);
    rig.steps.send(()).expect("it waits");
    assert_eq!(rig.begun.recv(), Ok(1));
    drop(gone);
    drop(waiting);
    // One token more for the one that went, one for the next; the one that waited never begins.
    (0..2).for_each(|_| rig.steps.send(()).expect("it waits"));
    assert_eq!(rig.begun.recv(), Ok(3));
    assert!(matches!(last(next), Update::Done(_)));
    assert_eq!(rig.scheduler.load().waiting, 0);
}

#[test]
fn a_full_queue_refuses_but_an_idle_server_takes_all_answers_of_one_request() {
    let rig = rig(2);
    let (many, _updates): (Vec<Task>, Vec<Updates>) = (0..5).map(|name| task("a", 1, name)).unzip();
    rig.scheduler.submit(many).expect("nobody else waits");
    assert_eq!(rig.begun.recv(), Ok(0));
    let refused = rig.scheduler.submit(vec![task("a", 1, 9).0]).expect_err("four wait");
    assert_eq!(refused, Rejected::Full { waiting: 4, limit: 2 });
    assert_eq!(rig.scheduler.would_take("a"), Err(refused));
}

#[test]
fn a_client_that_fills_the_queue_locks_out_itself_only() {
    let rig = rig(2);
    let _running = rig.submit("a", 1, 0);
    assert_eq!(rig.begun.recv(), Ok(0));
    let _waiting = [rig.submit("a", 1, 1), rig.submit("a", 1, 2)];
    assert_eq!(rig.scheduler.would_take("a"), Err(Rejected::Full { waiting: 2, limit: 2 }));
    let other = rig.submit("b", 1, 3);
    assert_eq!(rig.scheduler.would_take("b"), Err(Rejected::Full { waiting: 3, limit: 2 }));
    (0..3).for_each(|_| rig.steps.send(()).expect("it waits"));
    assert!(matches!(last(other), Update::Done(_)));
}

#[test]
fn not_any_number_of_clients_may_wait() {
    let rig = rig(2);
    let _running = rig.submit("running", 1, 0);
    assert_eq!(rig.begun.recv(), Ok(0));
    let waiting: Vec<Updates> = (0..)
        .map_while(|name| {
            let (task, updates) = task(&format!("client {name}"), 1, name);
            rig.scheduler.submit(vec![task]).is_ok().then_some(updates)
        })
        .take(100)
        .collect();
    assert_eq!(waiting.len(), LEAST_CLIENTS);
}

#[test]
fn what_is_given_up_while_it_waits_is_counted() {
    let rig = rig(100);
    let _running = rig.submit("a", 1, 0);
    assert_eq!(rig.begun.recv(), Ok(0));
    drop(rig.submit("a", 1, 1));
    let (mut late, updates) = task("a", 1, 2);
    late.deadline = Some((Instant::now(), 7));
    rig.scheduler.submit(vec![late]).expect("there is room");
    drop(updates);
    let load = rig.scheduler.load();
    assert_eq!(load.waiting, 0);
    let page = rig.scheduler.shared.metrics.text(&load, &PondStatus::default());
    for line in ["answers_total{reason=\"cancelled\"} 1", "answers_total{reason=\"error\"} 1", "queue_seconds_count 3"]
    {
        assert!(page.contains(&format!("duckpond_{line}\n")), "{line} is not in\n{page}");
    }
}

#[test]
fn deadlines_hold_while_waiting_and_while_running() {
    let rig = rig(100);
    let (mut late, updates) = task("a", 5, 1);
    late.deadline = Some((Instant::now(), 7));
    rig.scheduler.submit(vec![late]).expect("there is room");
    let timed_out = |update| matches!(update, Update::Failed(TaskError::TimedOut { limit: 7 }));
    assert!(timed_out(last(updates)));
    let (mut slow, updates) = task("a", 5, 2);
    slow.deadline = Some((Instant::now() + Duration::from_millis(30), 7));
    rig.scheduler.submit(vec![slow]).expect("there is room");
    assert_eq!(rig.begun.recv(), Ok(2));
    std::thread::sleep(Duration::from_millis(40));
    rig.steps.send(()).expect("it waits");
    assert!(timed_out(last(updates)));
}

#[test]
fn a_stop_refuses_what_waits_and_lets_run_what_runs() {
    let rig = rig(100);
    let running = rig.submit("a", 2, 1);
    let waiting = rig.submit("a", 2, 2);
    assert_eq!(rig.begun.recv(), Ok(1));
    rig.scheduler.stop();
    assert!(matches!(last(waiting), Update::Failed(TaskError::Stopping)));
    assert_eq!(rig.scheduler.submit(vec![task("a", 1, 3).0]), Err(Rejected::Stopping));
    (0..2).for_each(|_| rig.steps.send(()).expect("it waits"));
    assert!(matches!(last(running), Update::Done(_)));
    rig.thread.join().expect("it ends in order");
    assert_eq!(rig.scheduler.load().broken, None);
}

#[test]
fn a_stop_lets_all_answers_of_a_request_run_of_which_one_has_begun() {
    let rig = rig(100);
    let (choices, updates): (Vec<Task>, Vec<Updates>) = (1..4).map(|name| task("a", 1, name)).unzip();
    rig.scheduler.submit(choices).expect("there is room");
    assert_eq!(rig.begun.recv(), Ok(1));
    // Of another client, whose turn would be next.
    let (others, refused): (Vec<Task>, Vec<Updates>) = (4..6).map(|name| task("b", 1, name)).unzip();
    rig.scheduler.submit(others).expect("there is room");
    rig.scheduler.stop();
    for updates in refused {
        assert!(matches!(last(updates), Update::Failed(TaskError::Stopping)));
    }
    assert_eq!((rig.scheduler.load().running, rig.scheduler.load().waiting), (1, 2));
    (0..3).for_each(|_| rig.steps.send(()).expect("it waits"));
    for updates in updates {
        assert!(matches!(last(updates), Update::Done(_)));
    }
    rig.thread.join().expect("it ends in order");
    assert_eq!((rig.scheduler.load().running, rig.scheduler.load().waiting), (0, 0));
}

#[test]
fn an_abort_ends_what_runs_and_what_was_to_follow() {
    let rig = rig(100);
    let (choices, updates): (Vec<Task>, Vec<Updates>) = (1..3).map(|name| task("a", 1000, name)).unzip();
    rig.scheduler.submit(choices).expect("there is room");
    assert_eq!(rig.begun.recv(), Ok(1));
    rig.scheduler.stop();
    rig.scheduler.abort();
    rig.steps.send(()).expect("it waits");
    for updates in updates {
        assert!(matches!(last(updates), Update::Failed(TaskError::Stopping)));
    }
    rig.thread.join().expect("it ends in order");
}

#[test]
fn a_failure_costs_one_answer_and_a_fatal_one_the_rest() {
    let rig = rig(100);
    assert!(matches!(last(rig.submit("a", 0, 1)), Update::Failed(TaskError::Failed(_))));
    rig.steps.send(()).expect("it waits");
    assert!(matches!(last(rig.submit("a", 1, 2)), Update::Done(_)));
    let _ = last(rig.submit("a", 0, 0));
    until(|| rig.scheduler.load().broken.is_some());
    let refused = rig.scheduler.submit(vec![task("a", 1, 3).0]).expect_err("there is no engine");
    assert_eq!(refused, Rejected::Broken("a flock of geese".into()));
}

#[test]
fn a_model_that_cannot_be_loaded_and_a_panic_leave_a_reason() {
    let load = |loading: &Loading<'_>| {
        loading.at(0.4);
        Err::<Fake, BoxError>("no memory".into())
    };
    let (scheduler, _) = Scheduler::start(load, 1, Arc::default(), Arc::default()).expect("a thread");
    until(|| scheduler.load().broken.is_some());
    assert_eq!((scheduler.load().broken.as_deref(), scheduler.load().percent), (Some("no memory"), 40));
    let load = |_: &Loading<'_>| -> Result<Fake, BoxError> { panic!("on purpose") };
    let (scheduler, _) = Scheduler::start(load, 1, Arc::default(), Arc::default()).expect("a thread");
    until(|| scheduler.load().broken.is_some());
}

#[test]
fn while_it_loads_it_says_how_far() {
    let (go, wait) = channel::<()>();
    let (tell, told) = channel::<u8>();
    let load = move |loading: &Loading<'_>| -> Result<Fake, BoxError> {
        [0.12, 0.37, 0.2, f32::NAN, -1.0].into_iter().for_each(|fraction| loading.at(fraction));
        let _ = tell.send(loading.shared.state().percent);
        let _ = wait.recv();
        Err("enough".into())
    };
    let (scheduler, _) = Scheduler::start(load, 1, Arc::default(), Arc::default()).expect("a thread");
    until(|| scheduler.load().percent == 37);
    // It never goes back, and what is no number says nothing.
    assert_eq!(told.recv().expect("it says so"), 37);
    assert_eq!(scheduler.submit(vec![task("a", 1, 1).0]), Err(Rejected::Loading { percent: 37 }));
    drop(go);
}

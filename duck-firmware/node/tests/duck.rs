//! A whole duck without threads, sockets or a clock: programs, how steps end, and blocks that are hashed slice by slice.

mod common;

use common::{PROGRAM, Pond, Way};
use wire::host::Outcome;
use wire::message::{Counter, Verdict, VerdictCode};

fn verdict(outcome: Outcome) -> Verdict {
    match outcome {
        Outcome::Failed(verdict) => verdict,
        other => panic!("expected a verdict, found {other:?}"),
    }
}

#[test]
fn steps_have_the_kernels_bits_in_whichever_layer() {
    let mut pond = Pond::new(Way::Compute, false, None);
    pond.ready();
    for seq in 0..6 {
        assert_eq!(pond.step(seq, 0), Outcome::Ok);
        pond.assert_sums(seq);
    }
    assert_eq!(pond.told.borrow().loads, [None], "once in a session");
    let figures = pond.duck.figures();
    assert_eq!((figures.resident, figures.blocks, figures.counters[Counter::Steps as usize]), (8, 8, 6));
    // Both lanes chose expert 2.
    assert_eq!(figures.counters[Counter::Units as usize], 6 * 3);
}

#[test]
fn a_program_is_handed_over_whole_once_for_each_session() {
    let mut pond = Pond::new(Way::Compute, true, None);
    pond.ready();
    assert_eq!(pond.told.borrow().loads, [Some(PROGRAM.to_vec())]);
    assert_eq!((pond.step(0, 0), pond.step(1, 0)), (Outcome::Ok, Outcome::Ok));
    pond.open_again(true);
    pond.ready();
    pond.open_again(false);
    pond.ready();
    assert_eq!(pond.step(0, 0), Outcome::Ok);
    assert_eq!(pond.told.borrow().loads, [Some(PROGRAM.to_vec()), Some(PROGRAM.to_vec()), None]);
}

#[test]
fn a_program_that_is_refused_runs_no_step_and_the_host_is_told_why() {
    let mut pond = Pond::new(Way::RefuseProgram, true, None);
    pond.ready();
    assert_eq!(verdict(pond.step(0, 0)).code, VerdictCode::Unsupported as u8);
    pond.until("the reason", |p| p.lines.iter().any(|l| l == "these bytes are no program"));
    assert_eq!(pond.told.borrow().runs, 0);
}

#[test]
fn a_trap_in_a_program_is_every_later_steps_verdict_until_the_next_session() {
    let mut pond = Pond::new(Way::Trap, true, None);
    pond.ready();
    for seq in 0..3 {
        let v = verdict(pond.step(seq, 0));
        assert_eq!((v.code, v.core, v.trap, v.error), (VerdictCode::RuntimeError as u8, 3, 14, 6));
        assert_eq!((v.address, v.instruction), (0x1234, 0x5678));
    }
    assert_eq!(pond.told.borrow().runs, 1);
    pond.told.borrow_mut().way = Way::Compute;
    pond.open_again(true);
    pond.ready();
    assert_eq!(pond.step(0, 0), Outcome::Ok);
    pond.assert_sums(0);
}

#[test]
fn a_trap_in_the_built_in_kernels_ends_one_step() {
    let mut pond = Pond::new(Way::Trap, false, None);
    pond.ready();
    assert_eq!(verdict(pond.step(0, 0)).code, VerdictCode::RuntimeError as u8);
    pond.until("it is told", |p| p.lines.iter().any(|l| l.contains("core 3: trap 14")));
    pond.told.borrow_mut().way = Way::Compute;
    assert_eq!(pond.step(1, 0), Outcome::Ok);
    pond.assert_sums(1);
}

#[test]
fn cores_that_do_not_return_end_as_the_time_limit() {
    for program in [false, true] {
        let mut pond = Pond::new(Way::Hang, program, None);
        pond.ready();
        let v = verdict(pond.step(0, 500));
        assert!(v.code == VerdictCode::TimeLimit as u8 && v.busy >= 500, "{v:?}");
        pond.told.borrow_mut().way = Way::Compute;
        let next = pond.step(1, 0);
        assert_eq!(next == Outcome::Ok, !program, "{next:?}");
    }
}

#[test]
fn a_duck_without_threads_checks_its_blocks_while_idle_and_finds_damage() {
    let mut pond = Pond::new(Way::Compute, false, Some(2_000_000));
    pond.ready();
    pond.until("a round of checks", |p| p.duck.figures().scrubbed > 8);
    assert_eq!(pond.duck.figures().counters[Counter::BlocksLost as usize], 0);
    assert!(pond.ether.borrow().slept > 1_000_000, "it sleeps between them");
    assert_eq!(pond.duck.figures().counters[Counter::Temperature as usize], 47_500);
    while !pond.duck.flip_byte(3, 100) {
        pond.turn();
    }
    pond.until("the damage", |p| p.duck.figures().counters[Counter::BlocksLost as usize] == 1);
    pond.until("it is loaded again", |p| p.duck.figures().resident == 8);
}

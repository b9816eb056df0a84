//! One directed test for each way in which things are put right. Each proves by its marks that it came by the branch it is about.

use std::boxed::Box;

use crate::frame::Kind;
use crate::host::{Event, Outcome, Refusal, Why};
use crate::mark::count;
use crate::message::{Counter, Verdict, VerdictCode};

use super::model::StepData;
use super::pair::{DUCK, Faults, World, blocks};

/// The branch was taken.
#[track_caller]
fn covers(mark: &str) {
    assert!(count(mark) > 0, "the test did not come by {mark}");
}

fn ready(seed: u64) -> World {
    let mut world = World::new(seed, 1, 700);
    world.ready();
    world
}

#[test]
fn a_duck_is_found_opened_loaded_and_answers_steps() {
    let mut world = ready(1);
    assert!(world.saw(Event::Joined { resident: 0, blocks: blocks(&world) }));
    for seq in 0..40 {
        assert_eq!(world.one(seq, seq % 2 == 0), Outcome::Ok);
    }
    assert_eq!((world.peer0().stats().asks, world.peer0().path()), (0, 1_500));
}

#[test]
fn lost_input_fragment_is_asked_for_and_sent_again() {
    for broadcast in [true, false] {
        let mut world = ready(2);
        world.drop_first(Kind::Input, 1);
        assert_eq!(world.one(0, broadcast), Outcome::Ok);
        assert_eq!(world.peer0().stats().input_repeats, 1);
        covers("missing_input_is_asked_for");
        covers("missing_input_is_sent_again");
    }
}

#[test]
fn input_of_which_nothing_arrived_is_sent_again_whole() {
    let mut world = ready(3);
    world.drop_first(Kind::Input, 12);
    assert_eq!(world.one(0, true), Outcome::Ok);
    assert!(world.peer0().stats().input_repeats >= 3);
}

#[test]
fn lost_results_are_asked_for_again_soon_after_the_verdict() {
    let mut world = ready(4);
    (0..8).for_each(|seq| assert_eq!(world.one(seq, true), Outcome::Ok));
    world.drop_first(Kind::Result, 2);
    let before = world.now;
    assert_eq!(world.one(8, true), Outcome::Ok);
    assert!(world.now - before < 1_200, "{} us", world.now - before);
    assert_eq!(world.ducks[0].computed, 9);
    covers("results_are_sent_again");
}

#[test]
fn lost_verdict_is_repeated_and_nothing_is_computed_twice() {
    let mut world = ready(5);
    world.drop_first(Kind::Verdict, 1);
    assert_eq!(world.one(0, true), Outcome::Ok);
    assert_eq!(world.ducks[0].computed, 1);
    assert_eq!(world.peer0().stats().asks, 1);
}

#[test]
fn doubled_frames_count_once() {
    let mut world = ready(6);
    world.faults = Faults { double: 1_000, delay: 500, delay_most: 2_000, ..Faults::default() };
    (0..50).for_each(|seq| assert_eq!(world.one(seq, true), Outcome::Ok));
    assert_eq!(world.ducks[0].computed, 50);
    covers("repeated_input_is_not_computed_again");
    covers("a_result_counts_once");
}

#[test]
fn four_steps_may_be_outstanding_and_a_fifth_is_refused() {
    let mut world = ready(7);
    (0..4).for_each(|seq| assert!(world.begin(0, 0, seq, false, &[])));
    assert!(!world.begin(0, 0, 4, false, &[]));
    world.run(1_000_000, "four steps", |w| w.hosts[0].done[0].len() == 4);
    assert!(world.hosts[0].done[0].values().all(|o| *o == Outcome::Ok));
}

#[test]
fn a_long_step_says_that_it_runs_and_its_duck_is_not_given_up() {
    let mut world = ready(8);
    world.ducks[0].compute = 3_000_000;
    assert_eq!(world.one(0, true), Outcome::Ok);
    assert!(world.peer0().stats().asks > 20);
    assert_eq!(world.peer0().stats().losses, 0);
}

#[test]
fn a_step_that_never_ends_is_given_up_after_its_time_limit() {
    let mut world = ready(9);
    world.ducks[0].hangs = true;
    let nodes = world.nodes(0, 0);
    let mut step = StepData::random(&mut world.random, &[], &nodes);
    step.time_limit = 50_000;
    assert!(world.begin_with(0, &[0], 0, true, step));
    world.run(2_000_000, "stuck", |w| w.saw(Event::Silent { why: Why::Stuck }));
    covers("a_step_that_never_ends_makes_a_duck_stuck");
}

#[test]
fn a_step_behind_an_abandoned_running_one_waits_for_it() {
    let mut world = ready(10);
    world.ducks[0].compute = 300_000;
    assert!(world.begin(0, 0, 0, true, &[]));
    world.wait(10_000);
    world.hosts[0].peers[0].abandon_step(0);
    assert_eq!(world.one(4, true), Outcome::Ok);
    covers("step_behind_a_running_one_is_told_so");
}

#[test]
fn a_step_whose_slot_a_newer_one_took_fails_instead_of_hanging() {
    let mut world = ready(41);
    world.drop_first(Kind::Input, 100);
    assert!(world.begin(0, 0, 0, true, &[]));
    world.wait(1);
    // The domain goes on without this duck, and does not keep to the number of outstanding steps.
    world.filter = Some(Box::new(|frame, _| frame.kind() != Kind::Input || frame.tag() == 0));
    let nodes = world.nodes(0, 0);
    let step = StepData::random(&mut world.random, &[], &nodes);
    world.begin_with(0, &[], 4, true, step);
    world.run(1_000_000, "failure", |w| w.hosts[0].done[0].contains_key(&0));
    let Outcome::Failed(verdict) = world.hosts[0].done[0][&0] else { panic!("it cannot be done any more") };
    assert_eq!(verdict.code, VerdictCode::Gone as u8);
    covers("a_step_that_is_kept_no_more_is_told_so");
}

#[test]
fn a_duck_without_chosen_units_only_acknowledges() {
    let mut world = ready(11);
    world.plan = 1;
    let odd = world.nodes(0, 1)[1];
    let mut step = StepData::random(&mut world.random, &[odd], &[odd]);
    for lane in 0..usize::from(step.lanes) {
        step.experts[2 * lane..2 * lane + 2].copy_from_slice(&[0, 2]);
    }
    let before = world.ducks[0].session.counter(Counter::FramesOut);
    assert!(world.begin_with(0, &[0], 0, false, step));
    world.run(100_000, "acknowledgement", |w| w.hosts[0].done[0].contains_key(&0));
    assert_eq!(world.hosts[0].done[0][&0], Outcome::Ok);
    assert_eq!(world.ducks[0].session.counter(Counter::FramesOut) - before, 1);
    assert_eq!(world.ducks[0].computed, 0);
    covers("step_without_chosen_units_is_only_acknowledged");
}

#[test]
fn a_unicast_step_names_the_nodes_that_are_missing() {
    let mut world = ready(12);
    let named = world.nodes(0, 1);
    assert!(world.begin(0, 0, 0, false, &named));
    world.run(100_000, "named nodes", |w| w.hosts[0].done[0].contains_key(&0));
    assert_eq!(world.hosts[0].done[0][&0], Outcome::Ok);
}

#[test]
fn a_step_for_nodes_whose_blocks_are_missing_is_unsupported() {
    let mut world = ready(13);
    assert!(world.begin(0, 0, 0, false, &[0]));
    world.run(100_000, "refusal", |w| w.hosts[0].done[0].contains_key(&0));
    let Outcome::Failed(verdict) = world.hosts[0].done[0][&0] else { panic!("the duck has one slice of two") };
    assert_eq!((verdict.code, verdict.missing), (VerdictCode::Unsupported as u8, 4));
    covers("step_without_its_blocks_is_unsupported");
}

#[test]
fn a_trap_arrives_with_core_address_and_instruction() {
    let mut world = ready(14);
    let trap = Verdict {
        core: 3,
        trap: 14,
        error: 5,
        address: 0x10,
        instruction: 0x80_0000_1234,
        ..Verdict::new(VerdictCode::RuntimeError)
    };
    world.ducks[0].verdict = Some(trap);
    let Outcome::Failed(found) = world.one(0, true) else { panic!("it trapped") };
    assert_eq!(Verdict { vectors: 0, ..found }, trap);
    world.ducks[0].verdict = None;
    assert_eq!(world.one(1, true), Outcome::Ok);
}

#[test]
fn a_plan_that_did_not_arrive_is_sent_again_when_a_step_needs_it() {
    let mut world = ready(15);
    world.wait(100_000);
    world.plan = 1;
    let nodes = world.nodes(0, 1);
    world.drop_first(Kind::Assign, 1);
    let now = world.now;
    world.hosts[0].peers[0].assign(now, 1, &nodes).expect("it is up");
    // The first step's deadline is beyond the repeated assign: teach the pace first that steps are short.
    world.plan = 0;
    (0..8).for_each(|seq| assert_eq!(world.one(seq, true), Outcome::Ok));
    world.plan = 1;
    assert_eq!(world.one(8, true), Outcome::Ok);
    covers("step_of_an_unknown_plan_waits");
    covers("unknown_plan_is_asked_for");
    covers("a_plan_that_the_duck_lacks_is_sent_again");
}

#[test]
fn an_assign_without_an_answer_is_repeated() {
    let mut world = World::new(16, 1, 700);
    world.drop_first(Kind::Assigned, 2);
    world.ready();
    covers("an_unanswered_assign_is_repeated");
}

#[test]
fn a_late_assign_does_not_bring_an_old_plan_back() {
    let mut world = ready(17);
    world.capture = true;
    world.hosts[0].peers[0].assign(world.now, 3, &[]).expect("it is up");
    world.wait(1_000);
    let old = world.captured.clone();
    let nodes = world.nodes(0, 1);
    world.hosts[0].peers[0].assign(world.now, 7, &nodes).expect("it is up");
    world.wait(1_000);
    old.iter().for_each(|frame| world.send(1, DUCK, frame));
    world.wait(1_000);
    world.plan = 7;
    assert_eq!(world.one(0, true), Outcome::Ok);
    covers("late_assign_does_not_replace_a_newer_plan");
}

#[test]
fn a_frozen_duck_is_silent_and_after_its_thaw_nothing_is_loaded_again() {
    let mut world = ready(18);
    assert_eq!(world.one(0, true), Outcome::Ok);
    let bytes = world.peer0().stats().load_bytes;
    assert!(world.begin(0, 0, 1, true, &[]));
    world.ducks[0].frozen = true;
    let before = world.now;
    world.run(1_000_000, "silence", |w| w.saw(Event::Silent { why: Why::Unanswered }));
    assert!(world.now - before < 250_000, "{} us", world.now - before);
    world.wait(10_000_000);
    world.thaw(0);
    world.run(2_000_000, "return", |w| w.saw(Event::Rejoined { resident: blocks(w), blocks: blocks(w) }));
    world.ready();
    assert_eq!(world.one(2, true), Outcome::Ok);
    assert_eq!(world.peer0().stats().load_bytes, bytes);
    assert_eq!(world.ducks[0].opens, 1);
    covers("unanswered_questions_make_a_duck_silent");
    covers("a_silent_duck_that_kept_its_session_rejoins");
}

#[test]
fn an_idle_duck_that_vanishes_is_noticed_too() {
    let mut world = ready(19);
    world.ducks[0].cut = true;
    world.run(1_000_000, "silence", |w| w.saw(Event::Silent { why: Why::Unanswered }));
}

#[test]
fn a_duck_that_restarts_with_empty_memory_is_opened_and_loaded_again() {
    let mut world = ready(20);
    let bytes = world.peer0().stats().load_bytes;
    assert!(world.begin(0, 0, 0, true, &[]));
    world.restart_duck(0);
    world.run(1_000_000, "noticed", |w| w.saw(Event::Silent { why: Why::Restarted }));
    world.run(1_000_000, "return", |w| w.saw(Event::Rejoined { resident: 0, blocks: blocks(w) }));
    world.ready();
    assert_eq!(world.one(1, true), Outcome::Ok);
    assert!(world.peer0().stats().load_bytes >= 2 * bytes);
    covers("frame_of_no_session_is_answered_by_an_announcement");
    covers("a_duck_without_the_session_has_restarted");
}

#[test]
fn ten_restarts_of_a_host_send_no_weights_again() {
    let mut world = ready(21);
    for restart in 0..10 {
        world.restart_host(0);
        let before = world.now;
        world.ready();
        assert_eq!(world.peer0().stats().load_bytes, 0, "restart {restart}");
        assert!(world.now - before < 300_000, "the lease is the same host's");
        assert_eq!(world.one(restart, true), Outcome::Ok);
    }
    assert_eq!(world.ducks[0].opens, 11);
    covers("a_known_list_is_not_sent_again");
}

#[test]
fn a_host_that_restarts_while_a_step_runs_waits_for_the_cores() {
    let mut world = ready(22);
    world.ducks[0].compute = 400_000;
    assert!(world.begin(0, 0, 0, true, &[]));
    world.wait(5_000);
    world.restart_host(0);
    world.ready();
    world.ducks[0].compute = 300;
    assert_eq!(world.one(0, true), Outcome::Ok);
    covers("orphaned_step_frees_its_slot");
}

#[test]
fn a_second_host_is_refused_until_the_lease_expires() {
    let mut world = ready(23);
    world.add_host([8; 16]);
    world.wait(3_000_000);
    let refused = |e: &Event| matches!(e, Event::Refused(Refusal::Leased { .. }));
    assert!(world.hosts[1].events[0].iter().any(refused));
    assert!(!world.hosts[1].peers[0].is_up());
    assert_eq!(world.one(0, true), Outcome::Ok, "the first host has noticed nothing");
    world.hosts[0].peers.clear();
    world.run(6_000_000, "the second host's turn", |w| w.hosts[1].active[0] == Some(0));
    assert_eq!(world.hosts[1].peers[0].stats().load_bytes, 0, "the same list: nothing to load");
    assert_eq!(world.ducks[0].opens, 2);
    covers("second_host_is_refused_by_lease");
}

#[test]
fn an_expired_lease_is_told_and_the_duck_announces_itself_again() {
    let mut world = ready(24);
    world.hosts[0].peers.clear();
    world.wait(4_000_000);
    assert_eq!(world.ducks[0].lease_expired, 1);
    covers("lease_expires");
}

#[test]
fn a_lost_answer_to_an_open_is_repeated_without_opening_again() {
    let mut world = World::new(25, 1, 700);
    world.drop_first(Kind::Opened, 3);
    world.ready();
    assert_eq!(world.ducks[0].opens, 1);
    covers("repeated_open_is_answered_again");
}

#[test]
fn opens_that_nobody_answers_end_in_a_new_search() {
    let mut world = World::new(26, 1, 700);
    world.filter = Some(Box::new(|frame, _| frame.kind() != Kind::Open));
    world.wait(5_000_000);
    world.filter = None;
    world.ready();
    covers("unanswered_opens_end_in_a_new_search");
}

#[test]
fn an_open_with_a_nonce_that_was_used_is_signed_again() {
    let mut world = World::new(27, 1, 700);
    // The first open is accepted, all its answers are lost, and the host looks for the duck afresh; an old announcement is what it finds.
    let mut held: Option<std::vec::Vec<u8>> = None;
    world.capture = true;
    world.run(1_000_000, "an announcement", |w| w.captured.iter().any(|f| f[3] == Kind::Announce as u8));
    held.get_or_insert(world.captured.iter().find(|f| f[3] == Kind::Announce as u8).cloned().expect("just seen"));
    world.ready();
    world.restart_host(0);
    let now = world.now;
    world.hosts[0].peers[0].handle_frame(now, &held.expect("kept"));
    world.ready();
    covers("open_with_a_stale_nonce_is_refused");
    covers("a_stale_nonce_is_replaced_at_once");
}

#[test]
fn a_path_that_is_too_narrow_for_the_sessions_chunks_is_told() {
    let mut world = World::new(28, 1, 700);
    world.filter = Some(Box::new(|frame, _| frame.kind() != Kind::Probed));
    world.wait(200_000);
    assert!(world.saw(Event::Refused(Refusal::Path { found: 0, expected: 128 })), "no probe came back");
    covers("a_path_too_narrow_is_refused");
}

#[test]
fn a_block_with_the_wrong_digest_is_sent_again_and_counted() {
    let mut world = World::new(29, 1, 700);
    world.hosts[0].peers[0].memory_mut().damage.insert(3, 2);
    world.ready();
    assert_eq!(world.ducks[0].session.counter(Counter::BlocksWrong), 2);
    assert_eq!(world.peer0().stats().blocks_wrong, 2);
    assert_eq!(world.one(0, true), Outcome::Ok);
    covers("block_with_the_wrong_digest_starts_again");
    covers("a_block_with_the_wrong_digest_is_sent_again");
}

#[test]
fn a_block_that_memory_damaged_is_reported_and_sent_again() {
    let mut world = ready(30);
    let bytes = world.peer0().stats().load_bytes;
    world.ducks[0].session.block_damaged(2);
    assert_eq!(world.ducks[0].session.resident(), blocks(&world) - 1);
    world.run(1_000_000, "reload", |w| w.ducks[0].session.resident() == blocks(w));
    world.wait(1_000);
    assert!((700..1_500).contains(&(world.peer0().stats().load_bytes - bytes)));
    assert_eq!(world.peer0().stats().losses, 0);
    assert_eq!(world.one(0, true), Outcome::Ok);
    covers("damaged_block_is_reported");
    covers("lost_blocks_are_looked_up");
}

#[test]
fn large_blocks_go_through_a_lossy_link_and_only_what_is_lost_is_repeated() {
    let mut world = World::new(31, 1, 100_000);
    world.faults = Faults { drop: 30, double: 20, damage: 10, delay: 50, delay_most: 3_000 };
    world.run(60_000_000, "loading", |w| w.hosts[0].active[0] == Some(0));
    let (sent, useful) = (world.peer0().stats().load_bytes, 9 * 100_000);
    assert!(sent < useful * 5 / 4, "{sent} bytes for {useful}");
    covers("an_overtaken_chunk_is_sent_again");
    covers("chunks_without_an_answer_are_sent_again");
    covers("a_repeated_chunk_is_acknowledged_at_once");
}

#[test]
fn loading_goes_on_where_a_cut_link_or_a_host_stopped_it() {
    for restart in [false, true] {
        let mut world = World::new(32, 1, 100_000);
        world.run(1_000_000, "half of it", |w| w.peer0().stats().load_bytes > 450_000);
        let first = world.peer0().stats().load_bytes;
        world.ducks[0].cut = true;
        world.wait(1_000_000);
        world.ducks[0].cut = false;
        if restart {
            world.restart_host(0);
        }
        world.ready();
        let total = world.peer0().stats().load_bytes + if restart { first } else { 0 };
        assert!(total < 1_000_000, "{total} bytes for 900,000");
    }
}

#[test]
fn a_list_with_another_root_is_refused_and_asked_for_again() {
    let mut world = World::new(33, 1, 700);
    let good = world.peer0().memory().list.clone();
    let memory = world.hosts[0].peers[0].memory_mut();
    memory.list[50] ^= 1;
    world.wait(300_000);
    assert!(world.ducks[0].session.list().is_none());
    assert_eq!(world.ducks[0].session.memory().blocks.len(), 0, "nothing is written before the list is right");
    world.hosts[0].peers[0].memory_mut().list = good;
    world.ready();
    covers("planted_list_is_refused");
}

#[test]
fn a_signed_list_that_is_none_is_told_to_the_owner() {
    let mut world = World::new(34, 1, 700);
    world.hosts.clear();
    world.length = 2_000_000;
    world.add_host([9; 16]);
    world.run(2_000_000, "refusal", |w| w.saw(Event::Refused(Refusal::List)));
    covers("impossible_list_is_refused");
}

#[test]
fn an_empty_list_without_the_pushed_kernels_is_refused() {
    let mut world = World::new(42, 1, 700);
    world.empty_list(0, false);
    world.run(1_000_000, "refusal", |w| w.saw(Event::Refused(Refusal::List)));
}

#[test]
fn a_duck_with_built_in_kernels_may_have_nothing_to_hold() {
    let mut world = World::new(43, 1, 700);
    world.empty_list(0, true);
    world.run(1_000_000, "joined", |w| w.saw(Event::Joined { resident: 0, blocks: 0 }));
}

#[test]
fn frames_of_an_earlier_open_are_dropped() {
    let mut world = World::new(35, 1, 700);
    world.capture = true;
    world.ready();
    let old = core::mem::take(&mut world.captured);
    world.capture = false;
    // The duck forgets, and the host opens it again in the same epoch.
    world.restart_duck(0);
    world.run(2_000_000, "return", |w| w.hosts[0].events[0].iter().any(|e| matches!(e, Event::Rejoined { .. })));
    old.iter().for_each(|frame| {
        let to = if frame[3] == Kind::Written as u8 { 1 } else { DUCK };
        world.send(if to == 1 { DUCK } else { 1 }, to, frame);
    });
    world.ready();
    assert_eq!(world.one(0, true), Outcome::Ok);
    covers("frame_of_an_earlier_open_is_dropped");
}

#[test]
fn a_fifth_block_waits_until_one_of_four_is_done() {
    let mut world = World::new(36, 1, 700);
    world.run(1_000_000, "attached", |w| w.peer0().is_up());
    let (epoch, now) = (world.hosts[0].epoch, world.now);
    for block in 4..9 {
        let header = crate::Header { epoch, tag: 1, seq: block, ..crate::Header::new(Kind::Write) };
        let mut buf = [0; 200];
        let len = crate::frame::emit(&mut buf, header, &[&[0; 128]], crate::crc::portable).expect("it fits");
        world.ducks[0].session.handle_frame(now, 1, &buf[..len]);
    }
    covers("a_block_too_many_waits");
    world.ready();
    covers("a_block_that_the_duck_cannot_take_yet_waits");
}

#[test]
fn blocks_wait_while_cores_still_work_for_an_earlier_session() {
    let mut world = ready(37);
    world.ducks[0].compute = 200_000;
    assert!(world.begin(0, 0, 0, true, &[]));
    world.wait(5_000);
    world.hosts.clear();
    world.length = 900;
    world.add_host([9; 16]);
    world.wait(50_000);
    let sizes = world.ducks[0].session.memory().blocks.values().filter(|b| b.len() == 900).count();
    assert_eq!(sizes, 0);
    world.ready();
    covers("blocks_wait_for_list_and_orphaned_steps");
}

#[test]
fn counters_gauges_and_log_lines_arrive() {
    let mut world = ready(38);
    world.ducks[0].session.set_counter(Counter::Temperature, 71_000);
    world.ducks[0].session.log(1, "warm");
    (0..3).for_each(|seq| assert_eq!(world.one(seq, true), Outcome::Ok));
    world.wait(300_000);
    let counters = world.peer0().counters().expect("a status arrived");
    assert_eq!((counters[Counter::Temperature as usize], counters[Counter::Steps as usize]), (71_000, 3));
    let lines: std::vec::Vec<_> = world.hosts[0].events[0]
        .iter()
        .filter_map(|e| {
            if let Event::Log(line) = e { Some((line.level, std::string::String::from(line.text()))) } else { None }
        })
        .collect();
    assert_eq!(lines, [(1, "warm".into())]);
}

#[test]
fn too_many_log_lines_are_counted() {
    let mut world = ready(39);
    (0..30).for_each(|i| world.ducks[0].session.log(2, &std::format!("line {i}")));
    world.wait(1_000);
    let lines: std::vec::Vec<_> =
        world.hosts[0].events[0].iter().filter_map(|e| if let Event::Log(l) = e { Some(*l) } else { None }).collect();
    assert_eq!((lines.len(), world.ducks[0].session.counter(Counter::LogDropped)), (16, 14));
    world.ducks[0].session.log(2, "after");
    world.wait(1_000);
    let Some(Event::Log(last)) = world.hosts[0].events[0].last() else { panic!("a line") };
    assert_eq!((last.text(), last.lost), ("after", 14));
    covers("log_line_dropped");
}

#[test]
fn the_domain_shares_one_input_and_each_duck_its_losses() {
    let mut world = World::new(40, 2, 700);
    world.ready();
    for seq in 0..50 {
        world.faults.drop = 100;
        let nodes = world.nodes(0, 0);
        let step = StepData::random(&mut world.random, &[], &nodes);
        assert!(world.begin_with(0, &[0, 1], seq, true, step));
        world.run(2_000_000, "step", |w| w.hosts[0].done.iter().all(|d| d.contains_key(&seq)));
    }
    assert!(world.hosts[0].done.iter().all(|d| d.values().all(|o| *o == Outcome::Ok)));
}

#[test]
fn every_mark_in_the_crate_has_its_directed_test() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut marks = std::collections::BTreeSet::new();
    for folder in [root.join("duck"), root.join("host"), root.clone()] {
        for file in std::fs::read_dir(folder).expect("the sources are here").flatten() {
            let text = std::fs::read_to_string(file.path()).unwrap_or_default();
            let found = text.split("mark!(\"").skip(1).filter_map(|rest| rest.split('"').next());
            marks.extend(found.filter(|m| *m != "name").map(std::string::String::from));
        }
    }
    let tests = [include_str!("recovery.rs"), include_str!("hostile.rs")].concat();
    let unproven: std::vec::Vec<_> =
        marks.iter().filter(|m| !tests.contains(&std::format!("covers(\"{m}\")"))).collect();
    assert!(unproven.is_empty() && marks.len() > 30, "marks without a test that covers them: {unproven:?}");
}

//! Each fault alone, at all rates, both ways, and repeated by its seed.

use std::time::{Duration, Instant};

use link::{Faults, Faulty, Hub, Link, Mac, Port};

mod common;

use common::{frame, receive, send, silence, suite};

const A: Mac = Mac([2, 0, 0, 0, 0, 1]);
const B: Mac = Mac([2, 0, 0, 0, 0, 2]);

/// A faulty end and a good one.
fn pair(outward: &str, inward: &str, seed: u64) -> (Faulty, Port) {
    let hub = Hub::new();
    let (outward, inward) = (outward.parse().expect("faults"), inward.parse().expect("faults"));
    (Faulty::each_way(Box::new(hub.port(A, 1500)), outward, inward, seed), hub.port(B, 1500))
}

fn number(frame: &[u8]) -> u32 {
    u32::from_le_bytes(frame[14..18].try_into().expect("a test frame"))
}

/// Sends numbered frames and returns what arrives until all held ones are released.
fn pass(from: &mut dyn Link, to: &mut dyn Link, count: u32) -> Vec<Vec<u8>> {
    let mut arrived = Vec::new();
    let (source, target) = (from.mac(), to.mac());
    for number in 0..count {
        send(from, &frame(source, target, 60 + number as usize % 100, number));
        from.flush();
        to.rx(&mut |frame| arrived.push(frame.to_vec()));
    }
    let deadline = Instant::now() + Duration::from_millis(30);
    while Instant::now() < deadline {
        from.wait(Some(Duration::from_millis(1)));
        to.rx(&mut |frame| arrived.push(frame.to_vec()));
    }
    arrived
}

/// What arrives of `count` frames through `faults`, outwards and inwards.
fn both_ways(faults: &str, seed: u64, count: u32) -> [Vec<Vec<u8>>; 2] {
    let (mut bad, mut good) = pair(faults, "none", seed);
    let out = pass(&mut bad, &mut good, count);
    let (mut bad, mut good) = pair("none", faults, seed);
    [out, pass(&mut good, &mut bad, count)]
}

fn sent(from: Mac, to: Mac, count: u32) -> Vec<Vec<u8>> {
    (0..count).map(|number| frame(from, to, 60 + number as usize % 100, number)).collect()
}

#[test]
fn without_faults_it_is_a_link_like_any() {
    suite(&mut || {
        let hub = Hub::new();
        let port = |i| Box::new(hub.port(Mac([2, 0, 0, 0, 0, i]), 1500));
        (0..3).map(|i| Box::new(Faulty::new(port(i), Faults::default(), 1)) as Box<dyn Link>).collect()
    });
}

#[test]
fn no_fault_at_rate_nought() {
    for faults in ["loss=0", "duplicate=0", "reorder=0", "corrupt=0", "delay=0us"] {
        let [out, inward] = both_ways(faults, 7, 500);
        assert!(out == sent(A, B, 500) && inward == sent(B, A, 500), "{faults}");
    }
}

#[test]
fn loss_of_all_loses_all_and_counts_it() {
    let (mut bad, mut good) = pair("loss=1000", "loss=1000", 7);
    assert!(pass(&mut bad, &mut good, 300).is_empty() && pass(&mut good, &mut bad, 400).is_empty());
    assert_eq!((bad.stats().dropped_out, bad.stats().frames_out), (300, 0));
    assert_eq!((bad.stats().dropped_in, bad.stats().frames_in), (400, 0));
}

#[test]
fn duplication_of_all_doubles_each() {
    let doubled =
        |from, to| sent(from, to, 300).into_iter().flat_map(|frame| [frame.clone(), frame]).collect::<Vec<_>>();
    let [out, inward] = both_ways("duplicate=1000", 7, 300);
    assert!(out == doubled(A, B) && inward == doubled(B, A));
}

/// Outwards some go astray, as their receiver's address is hit; a switch drops those.
#[test]
fn corruption_of_all_changes_one_byte_of_each() {
    let (mut bad, mut good) = pair("none", "corrupt=1000", 7);
    let arrived = pass(&mut good, &mut bad, 1000);
    assert_eq!(arrived.len(), 1000);
    for (got, sent) in arrived.iter().zip(sent(B, A, 1000)) {
        assert_eq!(got.len(), sent.len());
        assert_eq!(got.iter().zip(&sent).filter(|(got, sent)| got != sent).count(), 1);
    }
    let (mut bad, mut good) = pair("corrupt=1000", "none", 7);
    let arrived = pass(&mut bad, &mut good, 1000);
    let whole = sent(A, B, 1000);
    assert!(arrived.len() > 800 && arrived.iter().all(|frame| !whole.contains(frame)));
    assert_eq!(bad.counts().0.corrupted, 1000);
}

#[test]
fn reordering_loses_nothing_and_overtaking_ends() {
    for arrived in both_ways("reorder=100", 7, 2000) {
        let mut numbers: Vec<u32> = arrived.iter().map(|frame| number(frame)).collect();
        let displaced = numbers.iter().enumerate().filter(|(at, number)| **number as usize != *at).count();
        assert!(displaced > 200, "{displaced} of 2000 out of place");
        // Four overtake it, and those that are put aside themselves.
        assert!(numbers.iter().enumerate().all(|(at, number)| at.abs_diff(*number as usize) < 20));
        numbers.sort_unstable();
        assert!(numbers.into_iter().eq(0..2000));
    }
}

#[test]
fn reordering_of_all_still_delivers_all() {
    for arrived in both_ways("reorder=1000", 7, 300) {
        let mut numbers: Vec<u32> = arrived.iter().map(|frame| number(frame)).collect();
        numbers.sort_unstable();
        assert!(numbers.into_iter().eq(0..300));
    }
}

#[test]
fn delayed_frames_come_late_without_further_traffic() {
    let delay = Duration::from_millis(20);
    for (outward, inward) in [("delay=20ms", "none"), ("none", "delay=20ms")] {
        let (mut bad, mut good) = pair(outward, inward, 7);
        let out = outward != "none";
        let started = Instant::now();
        let sent = if out { frame(A, B, 80, 1) } else { frame(B, A, 80, 1) };
        if out {
            send(&mut bad, &sent);
            bad.flush();
            assert_eq!(good.rx(&mut |_| ()), 0);
            // The sender only sleeps, and would for long.
            bad.wait(Some(Duration::from_secs(10)));
            assert_eq!(receive(&mut good, 1), [sent]);
        } else {
            send(&mut good, &sent);
            assert_eq!(bad.rx(&mut |_| ()), 0, "it has only just arrived");
            assert_eq!(receive(&mut bad, 1), [sent]);
        }
        assert!(started.elapsed() >= delay, "{:?}", started.elapsed());
        assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
    }
}

#[test]
fn an_equal_delay_keeps_the_order() {
    let [out, inward] = both_ways("delay=500us", 7, 500);
    assert!(out == sent(A, B, 500) && inward == sent(B, A, 500));
}

#[test]
fn a_seed_repeats_and_another_differs() {
    let faults = "loss=100,duplicate=100,corrupt=100";
    let first = both_ways(faults, 7, 1000);
    assert!(first == both_ways(faults, 7, 1000));
    assert!(first != both_ways(faults, 8, 1000));
    let [out, inward] = both_ways("loss=100", 7, 1000).map(|frames| frames.iter().map(|frame| number(frame)).collect());
    let (out, inward): (Vec<u32>, Vec<u32>) = (out, inward);
    assert!(out != inward, "the directions must not draw the same");
}

#[test]
fn ten_thousand_frames_suffer_what_was_asked_for() {
    let (mut bad, mut good) = pair("loss=100,duplicate=50,reorder=20,corrupt=30", "loss=200", 7);
    let arrived = pass(&mut bad, &mut good, 10_000).len() as u64;
    pass(&mut good, &mut bad, 10_000);
    let (out, inward) = bad.counts();
    // Five standard deviations of the binomial distribution.
    for (name, count, of, rate) in [
        ("lost", out.lost, 10_000, 0.1),
        ("duplicated", out.duplicated, 10_000 - out.lost, 0.05),
        ("reordered", out.reordered, 10_000 - out.lost, 0.02),
        ("corrupted", out.corrupted, 10_000 - out.lost, 0.03),
        ("lost inwards", inward.lost, 10_000, 0.2),
    ] {
        let (mean, bound) = (of as f64 * rate, 5.0 * (of as f64 * rate * (1.0 - rate)).sqrt());
        assert!((count as f64 - mean).abs() < bound, "{name}: {count} of {of}, expected {mean} ± {bound}");
    }
    assert_eq!((inward.duplicated, inward.reordered, inward.corrupted), (0, 0, 0));
    assert_eq!(bad.stats().frames_out, 10_000 - out.lost + out.duplicated);
    // A tenth of the damaged frames have lost their address.
    assert!(arrived <= bad.stats().frames_out && arrived + 2 * out.corrupted > bad.stats().frames_out);
    assert_eq!(bad.stats().frames_in, 10_000 - inward.lost);
    assert_eq!(silence(&mut bad), 0);
}

//! Everything at once, at random: a safety phase in which links and machines fail, then a liveness phase in which all heals and must
//! finish. Sums are checked bit for bit whenever a step ends.
//!
//! `WIRE_SIMULATOR_EVENTS` sets how many events the safety phases last in all, `WIRE_SIMULATOR_SEED` where seeds start.

use super::model::{Random, StepData};
use super::pair::{Faults, World};

const EVENTS: u64 = 1_200_000;
const EVENTS_PER_WORLD: u64 = 60_000;

fn number(name: &str, default: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name}: expected a number, found {text:?}")),
        Err(_) => default,
    }
}

/// How a world fared.
#[derive(Default)]
struct Tally {
    events: u64,
    steps: u64,
    restarts: u64,
    losses: u64,
}

fn safety(world: &mut World, chaos: &mut Random, seq: &mut u32, tally: &mut Tally) {
    let end = world.events + EVENTS_PER_WORLD;
    let mut thaw_at = [None; 2];
    while world.events < end {
        for _ in 0..20 {
            world.step();
        }
        for (d, at) in thaw_at.iter_mut().enumerate() {
            if at.is_some_and(|at| at <= world.now) {
                *at = None;
                world.ducks[d].cut = false;
                world.thaw(d);
            }
        }
        let d = chaos.below(2) as usize;
        match chaos.below(1_000) {
            0..600 => {
                // A step for one duck or the domain; those that do not take it have no part in it.
                let broadcast = chaos.chance(700);
                let nodes = world.nodes(d, world.plan);
                let named = if !broadcast && chaos.chance(300) { nodes.clone() } else { std::vec::Vec::new() };
                let ducks: &[usize] = if broadcast { &[0, 1] } else { core::slice::from_ref(&d) };
                let step = StepData::random(&mut world.random, &named, &nodes);
                world.begin_with(0, ducks, *seq, broadcast, step);
                *seq = seq.wrapping_add(1);
            }
            600..602 => {
                world.restart_duck(d);
                thaw_at[d] = None;
                tally.restarts += 1;
            }
            602..604 => {
                world.ducks[d].frozen = true;
                thaw_at[d] = Some(world.now + chaos.below(500_000));
            }
            604..606 => {
                world.ducks[d].cut = true;
                thaw_at[d] = Some(world.now + chaos.below(500_000));
            }
            606 => {
                world.restart_host(0);
                tally.restarts += 1;
            }
            607..610 => {
                let block = chaos.below(9) as u32;
                world.ducks[d].session.block_damaged(block);
            }
            610..612 => {
                world.plan = world.plan.wrapping_add(1);
                for d in 0..2 {
                    let (now, plan, nodes) = (world.now, world.plan, world.nodes(d, world.plan));
                    // One that is not up is told when it comes up.
                    let _ = world.hosts[0].peers[d].assign(now, plan, &nodes);
                }
            }
            612..620 => {
                world.hosts[0].peers[d].abandon_step(seq.wrapping_sub(chaos.below(4) as u32));
            }
            620..624 => {
                let often = |chaos: &mut Random, most| if chaos.chance(300) { 0 } else { chaos.below(most) };
                world.faults = Faults {
                    drop: often(chaos, 150),
                    double: often(chaos, 100),
                    damage: often(chaos, 50),
                    delay: often(chaos, 300),
                    delay_most: 1 + chaos.below(20_000),
                };
            }
            624..626 => world.ducks[d].compute = [20, 300, 2_000, 40_000][chaos.below(4) as usize],
            626..630 => {
                let block = chaos.below(9) as u32;
                world.hosts[0].peers[d].memory_mut().damage.insert(block, 1);
            }
            _ => {}
        }
    }
}

fn liveness(world: &mut World, seq: &mut u32) {
    world.faults = Faults::default();
    for d in 0..2 {
        world.ducks[d].cut = false;
        world.thaw(d);
        world.ducks[d].compute = 300;
        world.hosts[0].peers[d].memory_mut().damage.clear();
    }
    world.run(30_000_000, "all is well again", |w| w.hosts[0].peers.iter().all(|p| p.is_up()));
    world.wait(2_000_000);
    world.plan = world.plan.wrapping_add(1);
    for d in 0..2 {
        let (now, plan, nodes) = (world.now, world.plan, world.nodes(d, world.plan));
        world.hosts[0].peers[d].assign(now, plan, &nodes).expect("it is up");
    }
    world.ready();
    for _ in 0..20 {
        let nodes = world.nodes(0, world.plan);
        let step = StepData::random(&mut world.random, &[], &nodes);
        let this = *seq;
        assert!(world.begin_with(0, &[0, 1], this, true, step), "healthy ducks take steps");
        world.run(1_000_000, "a step of healthy ducks", |w| w.hosts[0].done.iter().all(|d| d.contains_key(&this)));
        assert!(world.hosts[0].done.iter().all(|d| d[&this] == crate::host::Outcome::Ok));
        *seq = seq.wrapping_add(1);
    }
}

#[test]
fn whatever_fails_sums_are_right_and_all_finishes_once_it_heals() {
    let (total, first) = (number("WIRE_SIMULATOR_EVENTS", EVENTS), number("WIRE_SIMULATOR_SEED", 1));
    let mut tally = Tally::default();
    for seed in first..first + total.div_ceil(EVENTS_PER_WORLD) {
        let guard = SeedOnPanic(seed);
        let mut world = World::new(seed, 2, [200, 700, 5_000][seed as usize % 3]);
        let (mut chaos, mut seq) = (Random(seed ^ 0xc4a0_5000), u32::MAX - 200);
        safety(&mut world, &mut chaos, &mut seq, &mut tally);
        liveness(&mut world, &mut seq);
        tally.events += world.events;
        for (peer, done) in world.hosts[0].peers.iter().zip(&world.hosts[0].done) {
            tally.steps += done.len() as u64;
            tally.losses += peer.stats().losses;
        }
        core::mem::forget(guard);
    }
    let Tally { events, steps, restarts, losses } = tally;
    std::println!("{events} events, {steps} steps, {restarts} restarts, {losses} losses noticed");
    assert!(events >= total && steps > events / 2_000 && restarts > 0 && losses > 0);
}

/// Says which seed failed.
struct SeedOnPanic(u64);

impl Drop for SeedOnPanic {
    fn drop(&mut self) {
        std::eprintln!(
            "simulator: seed {} failed; WIRE_SIMULATOR_SEED={} WIRE_SIMULATOR_EVENTS=1 repeats it",
            self.0,
            self.0
        );
    }
}

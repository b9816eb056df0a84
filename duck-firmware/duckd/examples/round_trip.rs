//! How long a step takes from a host to a duck in a thread and back, over the in-process link: one that nobody owes anything for, and the
//! smallest that is computed. `cargo run --release -p duckd --example round_trip`.

#[path = "../tests/common/mod.rs"]
mod common;

use common::*;
use duckd::Options;
use link::Hub;

const ROUNDS: u32 = 20_000;

fn main() {
    let (hub, model) = (Hub::new(), Model::random(LIMITS, 1));
    for cores in [1, 2] {
        let _duck = Duck::start(&hub, Options { cores, ..options() });
        let mut host = host(&hub, &model, 0..2);
        host.loaded();
        // The units of expert 0 in slice 0 alone.
        let plan = [LIMITS.shape().unit(0, 0).index(LIMITS.shape())];
        host.assign(1, &plan);
        let mut seq = 0;
        for (what, experts) in [("nothing owed", [1, 2]), ("one unit", [0, 1])] {
            let mut data = StepData::random(&LIMITS, 1, &plan, &[], 1);
            data.experts = experts.into();
            let mut times: Vec<u64> = Vec::new();
            for _ in 0..ROUNDS {
                host.begin(seq, 1, &data);
                let start = std::time::Instant::now();
                while !host.done.contains_key(&seq) {
                    host.turn();
                    if start.elapsed().as_micros() > 20 {
                        std::thread::yield_now();
                    }
                }
                times.push(start.elapsed().as_nanos() as u64);
                host.done.clear();
                seq += 1;
            }
            times.sort_unstable();
            let at = |per_mille: usize| times[times.len() * per_mille / 1_000] as f64 / 1e3;
            println!("{cores} cores, {what}: p10 {:.1} p50 {:.1} p99 {:.1} µs", at(100), at(500), at(990));
        }
    }
}

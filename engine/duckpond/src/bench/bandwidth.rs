//! What this machine's memory delivers: the yardstick for decoding, which does little but read weights.

use std::hint::black_box;
use std::num::NonZero;
use std::time::Instant;

/// Read in one round, by all threads together. Far above any last-level cache of the machines in question.
const BYTES: usize = 768 << 20;
/// The best of so many rounds counts: others only disturb downwards.
const ROUNDS: usize = 6;

/// Threads that a setting of 0 stands for.
pub fn all_threads() -> usize {
    std::thread::available_parallelism().map_or(1, NonZero::get)
}

/// Bytes per second that `threads` threads read together, each its own part, in order.
pub fn measure(threads: usize) -> f64 {
    let threads = threads.max(1);
    let words = BYTES / size_of::<u64>() / threads;
    let parts: Vec<Vec<u64>> = std::thread::scope(|scope| {
        // Written by the thread that will read it, so that the memory is that thread's neighbour.
        let filled: Vec<_> = (0..threads).map(|seed| scope.spawn(move || vec![seed as u64 + 1; words])).collect();
        filled.into_iter().map(|thread| thread.join().expect("filling memory does not panic")).collect()
    });
    let mut best = 0.0f64;
    for _ in 0..ROUNDS {
        let began = Instant::now();
        std::thread::scope(|scope| {
            for part in &parts {
                scope.spawn(move || black_box(sum(part)));
            }
        });
        let bytes = (words * size_of::<u64>() * threads) as f64;
        best = best.max(bytes / began.elapsed().as_secs_f64());
    }
    best
}

/// Eight sums side by side, so that no addition waits for the one before.
fn sum(words: &[u64]) -> u64 {
    let mut sums = [0u64; 8];
    for chunk in words.chunks_exact(8) {
        for (sum, word) in sums.iter_mut().zip(chunk) {
            *sum = sum.wrapping_add(*word);
        }
    }
    sums.into_iter().fold(0, u64::wrapping_add)
}

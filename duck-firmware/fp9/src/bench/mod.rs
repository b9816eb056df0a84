//! Measured workloads, for `cargo bench -p fp9 --features bench-support` and `duckpond bench kernels`.
//!
//! Figures are per second of *thread CPU time* (what an unshared core does), the best of several passes, and every
//! ratio compares passes that took turns within one run: on a shared machine nothing else repeats. Working sets that
//! are meant to come from memory are far above any last-level cache.

mod baseline;
mod memory;

use std::string::{String, ToString};
use std::vec::Vec;
use std::{format, vec};

use crate::{Avx2, Format, Inputs, Isa, Job, Matrix, Prefetch, ROW_TILE, Scratch, multiply, prepare};
pub use memory::{Mapping, Pages};

/// One figure.
#[derive(Debug, Clone)]
pub struct Measurement {
    /// Stable name, `group/what`.
    pub name: String,
    /// Value in `unit`.
    pub value: f64,
    /// `GB/s`, `Gparam/s`, `GFMA/s` or `ratio`.
    pub unit: &'static str,
}

/// How much to measure.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Working set of the memory figures, bytes.
    pub bytes: usize,
    /// Passes, of which the best counts.
    pub passes: usize,
    /// Largest number of threads.
    pub threads: usize,
}

impl Default for Options {
    fn default() -> Self {
        Options { bytes: 2 << 30, passes: 10, threads: 2 }
    }
}

/// The measured shape: one unit's gate in DeepSeek-V3.2, a tile of it, and its down.
const K: usize = 7168;

/// Runs everything; each figure goes to `report` as soon as it is known.
pub fn run(options: Options, report: &mut dyn FnMut(&Measurement)) -> std::io::Result<()> {
    let Some(token) = Avx2::detect() else {
        return Err(std::io::Error::other("kernel measurements need a processor with AVX2 and FMA"));
    };
    let mut suite = Suite { options, token, report };
    suite.in_cache();
    suite.batches();
    suite.in_memory()
}

struct Suite<'a> {
    options: Options,
    token: Avx2,
    report: &'a mut dyn FnMut(&Measurement),
}

/// Weights, inputs and room for outputs of one packed matrix whose codes repeat every few tiles.
struct Load {
    format: Format,
    rows: usize,
    k: usize,
    scales: Vec<f32>,
}

impl Load {
    fn new(format: Format, rows: usize, k: usize) -> Load {
        Load { format, rows, k, scales: vec![1e-3; crate::scales_len(format, rows, k, 0)] }
    }

    fn matrix<'a>(&'a self, data: &'a [u8]) -> Matrix<'a> {
        Matrix::new(self.format, self.rows, self.k, data, &self.scales, 0).expect("the sizes were computed for it")
    }
}

/// Codes like a trained layer's: bell-shaped, the largest near the format's end, one in about 10,000 subnormal
/// unless `normal_only`.
fn random_codes(n: usize, normal_only: bool) -> Vec<u8> {
    let mut state = 0x1234_5678_9ABC_DEF1_u64;
    let mut uniform = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    let code = |_| {
        let value = (0..4).map(|_| uniform()).sum::<f32>() * 112.0;
        let code = crate::format::e4m3::encode(value);
        if normal_only && code & 0x78 == 0 { code | 0x08 } else { code }
    };
    (0..n).map(code).collect()
}

fn packed(format: Format, rows: usize, k: usize, normal_only: bool) -> Vec<u8> {
    let codes = random_codes(rows * k, normal_only);
    let mut data = vec![0; crate::packed_len(format, rows, k).expect("a shape of this file")];
    match format {
        Format::Bf16 => {
            let wide: Vec<u16> =
                codes.iter().map(|&c| crate::format::bf16::encode(crate::format::e4m3::decode(c))).collect();
            crate::pack_bf16(crate::Bf16Source { codes: &wide, stride: k }, rows, k, &mut data)
        }
        _ => crate::pack_e4m3(format, crate::E4m3Source { codes: &codes, stride: k }, rows, k, &mut data),
    }
    .expect("finite codes in a shape of this file");
    data
}

fn vectors(format: Format, k: usize, count: usize) -> Vec<f32> {
    let mut x: Vec<f32> = (0..k * count).map(|i| ((i * 37 % 101) as f32 - 50.0) / 64.0).collect();
    prepare(format, &mut x);
    x
}

/// Best (smallest) CPU seconds of each workload over `passes` rounds in which they take turns.
fn take_turns(passes: usize, workloads: &mut [&mut dyn FnMut()]) -> Vec<f64> {
    let mut best = vec![f64::INFINITY; workloads.len()];
    for _ in 0..passes.max(1) {
        for (best, workload) in best.iter_mut().zip(workloads.iter_mut()) {
            let start = memory::thread_seconds();
            workload();
            *best = best.min(memory::thread_seconds() - start);
        }
    }
    best
}

impl Suite<'_> {
    fn emit(&mut self, name: impl ToString, value: f64, unit: &'static str) {
        (self.report)(&Measurement { name: name.to_string(), value, unit });
    }

    /// One tile (32 × 7168: 229 KB in e4m3) again and again, against the other layouts on the same number of weights.
    fn in_cache(&mut self) {
        const REPEAT: usize = 40;
        let (token, weights) = (self.token, (REPEAT * ROW_TILE * K) as f64 / 1e9);
        let isa = Isa::Avx2(token);
        let passes = self.options.passes * 3;
        let codes = random_codes(ROW_TILE * K, true);
        let plain = vectors(Format::Bf16, K, 1);
        let signword = baseline::Signword::pack(&codes, K);
        let lanes8 = baseline::LanesE4m3::pack(&codes, K);
        let lanes9 = baseline::LanesFp9::pack(&codes, K);
        let dense: Vec<f32> = codes.iter().map(|&c| crate::format::e4m3::decode(c)).collect();

        let x = vectors(Format::E4m3, K, 2);
        let tiles: Vec<(Load, Vec<u8>)> = [Format::E4m3, Format::Fp9, Format::Bf16]
            .map(|format| (Load::new(format, ROW_TILE, K), packed(format, ROW_TILE, K, true)))
            .into();
        let ours = |which: usize, count: usize, x: &[f32]| {
            let matrix = tiles[which].0.matrix(&tiles[which].1);
            let mut job = Job::new(&matrix, Inputs::strided(x, K, count));
            job.prefetch.distance = 0;
            let (mut out, mut scratch) = ([0.0f32; 2 * ROW_TILE], Scratch::new());
            for _ in 0..REPEAT {
                multiply(isa, &job, &mut out, ROW_TILE, &mut scratch).expect("sizes of this file");
            }
            std::hint::black_box(&out);
        };
        let rows = |dot: &dyn Fn(usize) -> f32, sink: &mut [f32; ROW_TILE]| {
            for _ in 0..REPEAT {
                for (row, y) in sink.iter_mut().enumerate() {
                    *y = dot(std::hint::black_box(row));
                }
            }
            std::hint::black_box(sink);
        };
        let mut sinks = [[0.0f32; ROW_TILE]; 4];
        let [s0, s1, s2, s3] = &mut sinks;
        let wide = vectors(Format::Bf16, K, 1);
        let best = take_turns(
            passes,
            &mut [
                &mut || rows(&|row| baseline::dot_fp32(token, &dense[row * K..][..K], &plain), s0),
                &mut || rows(&|row| signword.dot(token, row, &x[..K]), s1),
                &mut || rows(&|row| lanes8.dot(token, row, &x[..K]), s2),
                &mut || rows(&|row| lanes9.dot(token, row, &x[..K]), s3),
                &mut || ours(0, 1, &x),
                &mut || ours(1, 1, &x),
                &mut || ours(2, 1, &wide),
                &mut || ours(0, 2, &x),
                &mut || ours(1, 2, &x),
            ],
        );
        let names = ["fp32 dot", "signword", "lanes e4m3", "lanes fp9", "e4m3", "fp9", "bf16"];
        for (name, seconds) in names.iter().zip(&best) {
            self.emit(format!("cache/{name}"), weights / seconds, "Gparam/s");
        }
        self.emit("cache/signword_to_fp32", best[0] / best[1], "ratio");
        self.emit("cache/lanes_to_signword", best[1] / best[3], "ratio");
        self.emit("cache/fp9_to_signword", best[1] / best[5], "ratio");
        self.emit("cache/e4m3_to_signword", best[1] / best[4], "ratio");
        self.emit("cache/two_to_one e4m3", best[7] / best[4], "ratio");
        self.emit("cache/two_to_one fp9", best[8] / best[5], "ratio");
    }

    /// 16 and 512 vectors, gate's and down's shape, against the FMA peak of this core.
    fn batches(&mut self) {
        const PEAK: usize = 20_000_000;
        let token = self.token;
        let isa = Isa::Avx2(token);
        for (count, rows, k) in [(16, 64, K), (16, K, 64), (512, 64, K), (512, K, 64)] {
            for format in [Format::E4m3, Format::Fp9] {
                let load = Load::new(format, rows, k);
                let data = packed(format, rows, k, true);
                let matrix = load.matrix(&data);
                let x = vectors(format, k, count);
                let job = Job::new(&matrix, Inputs::strided(&x, k, count));
                let (mut out, mut scratch) = (vec![0.0f32; rows * count], Scratch::new());
                let passes = if count > 100 { self.options.passes } else { self.options.passes * 5 };
                let best = take_turns(
                    passes,
                    &mut [&mut || baseline::fma_peak(token, PEAK), &mut || {
                        multiply(isa, &job, &mut out, rows, &mut scratch).expect("sizes of this file");
                        std::hint::black_box(&out);
                    }],
                );
                let peak = PEAK as f64 * 8.0 / best[0] / 1e9;
                let ours = (rows * k * count) as f64 / best[1] / 1e9;
                self.emit(format!("batch/{format:?} {rows}x{k} times {count}"), ours, "GFMA/s");
                self.emit(format!("batch/{format:?} {rows}x{k} times {count} to_peak"), ours / peak, "ratio");
            }
        }
    }

    /// Plain reads, then products over the whole working set, with small and huge pages.
    fn in_memory(&mut self) -> std::io::Result<()> {
        for pages in [Pages::Small, Pages::Huge] {
            for threads in 1..=self.options.threads {
                let mapping = Mapping::new(self.options.bytes, pages)?;
                self.reads(&mapping, pages, threads);
                drop(mapping);
                for (format, rows, k) in [
                    (Format::E4m3, 64, K),
                    (Format::Fp9, 64, K),
                    (Format::Bf16, 64, K),
                    (Format::E4m3, K, 64),
                    (Format::Fp9, K, 64),
                ] {
                    self.products(format, rows, k, pages, threads)?;
                }
            }
        }
        Ok(())
    }

    fn reads(&mut self, mapping: &Mapping, pages: Pages, threads: usize) {
        for distance in [0, 4096] {
            let best = (0..self.options.passes)
                .map(|_| {
                    memory::on_threads(threads, |t| memory::read(share(mapping.bytes(), t, threads, 64), distance))
                })
                .fold(0.0, f64::max);
            self.emit(format!("memory/{pages:?} x{threads} read, prefetch {distance}"), best / 1e9, "GB/s");
        }
    }

    /// Products of matrices of `rows` × `k` that lie one after the other in the working set.
    fn products(&mut self, format: Format, rows: usize, k: usize, pages: Pages, threads: usize) -> std::io::Result<()> {
        let one = crate::packed_len(format, rows, k).expect("a shape of this file");
        let mut mapping = Mapping::new(self.options.bytes / one * one, pages)?;
        let pattern = packed(format, rows, k, false);
        mapping.bytes_mut().chunks_exact_mut(one).for_each(|chunk| chunk.copy_from_slice(&pattern));
        let (isa, load, x) = (Isa::Avx2(self.token), Load::new(format, rows, k), vectors(format, k, 1));
        let sweep: &[usize] = if threads == 1 && rows < k { &[0, 1024, 2048, 4096, 8192, 16384] } else { &[4096] };
        let mut best = vec![0.0f64; sweep.len() + 1];
        for _ in 0..self.options.passes {
            // Whichever plain read is faster here: some machines want the prefetch, some do not.
            let read = [0, 4096].map(|distance| {
                memory::on_threads(threads, |t| memory::read(share(mapping.bytes(), t, threads, one), distance))
            });
            let read = read[0].max(read[1]);
            best[sweep.len()] = best[sweep.len()].max(read);
            for (best, &distance) in best.iter_mut().zip(sweep) {
                let rate = memory::on_threads(threads, |t| {
                    let data = share(mapping.bytes(), t, threads, one);
                    let (mut out, mut scratch) = (vec![0.0f32; rows], Scratch::new());
                    for (i, data_of_one) in data.chunks_exact(one).enumerate() {
                        let matrix = load.matrix(data_of_one);
                        let mut job = Job::new(&matrix, Inputs::one(&x));
                        job.prefetch = Prefetch { distance, next: &data[(i + 1) * one..] };
                        multiply(isa, &job, &mut out, rows, &mut scratch).expect("sizes of this file");
                    }
                    std::hint::black_box(&out);
                    data.len()
                });
                *best = best.max(rate);
            }
        }
        let read = best[sweep.len()];
        for (&rate, distance) in best.iter().zip(sweep) {
            let name = format!("memory/{pages:?} x{threads} {format:?} {rows}x{k}, prefetch {distance}");
            self.emit(&name, rate / 1e9, "GB/s");
            self.emit(format!("{name} to_read"), rate / read, "ratio");
        }
        Ok(())
    }
}

/// Weights per second, in 10^9, that the signword layout reaches on one thread from `bytes` of memory, best of three passes, by wall
/// time, as steps are measured; `None` without AVX2.
pub fn signword_from_memory(bytes: usize) -> Option<f64> {
    let token = crate::Avx2::detect()?;
    let weights = baseline::Signword::pattern(bytes, K);
    let x = [1e-3; K];
    let best = (0..3)
        .map(|_| {
            let start = std::time::Instant::now();
            let sum: f32 = (0..weights.rows()).map(|row| weights.dot(token, row, &x)).sum();
            std::hint::black_box(sum);
            (weights.rows() * K) as f64 / start.elapsed().as_secs_f64()
        })
        .fold(0.0, f64::max);
    Some(best / 1e9)
}

/// Thread `t`'s part of `bytes`, whole multiples of `unit`.
fn share(bytes: &[u8], t: usize, threads: usize, unit: usize) -> &[u8] {
    let units = bytes.len() / unit;
    &bytes[units * t / threads * unit..units * (t + 1) / threads * unit]
}

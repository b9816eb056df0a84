//! How near to plain reading a whole step comes: eight random experts of DeepSeek-V3.2's 256, one slice, one lane, from a working set
//! far beyond any cache.
//!
//! Steps and plain reads of as many bytes take turns, each timed alone by the wall clock. Of each kind the fastest tenth's slowest
//! counts: on a machine with other work most of the rest measures the scheduler. A step includes [`begin`], the plan, both halves
//! with the barrier, and the tree.
//!
//! `unsafe` here: raw step blocks, since one is made for every step beforehand, and reads within slices.

use std::prelude::v1::*;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use fp9::bench::{Mapping, Pages};
use fp9::format::e4m3;
use fp9::{Avx2, Format, Isa};

use crate::abi::{ABI_VERSION, FULL_SHARE, Progress, Request, Session, format_code};
use crate::step::{self, Core, Hooks};
use crate::tree::Shape;
use crate::unit::{Expert, SLICE, Source, Tensor, UnitLayout, pack_unit};
use crate::{HeldNode, Limits, StepBlock, UnitEntry, begin, scratch_len};

/// The measured shape.
const HIDDEN: usize = 7168;
const EXPERTS: u16 = 256;
const CHOSEN: usize = 8;
const SHAPE: Shape = Shape { slices: 1, experts: EXPERTS };

/// How much to measure.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Least bytes of the working set, which exists twice: with small and with huge pages.
    pub bytes: usize,
    /// Steps of each kind.
    pub steps: usize,
    /// Largest number of threads.
    pub threads: usize,
}

impl Default for Options {
    fn default() -> Self {
        Options { bytes: 2 << 30, steps: 400, threads: 2 }
    }
}

/// One format's figures with one number of threads. Gigabytes are 10^9 bytes.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct StepSpeed {
    /// `e4m3` or `fp9`.
    pub format: &'static str,
    /// Threads that read or act as cores.
    pub threads: usize,
    /// The fastest plain read, with small or huge pages, with or without prefetching.
    pub read_gbps: f64,
    /// Packed weights of a step over its time, huge pages.
    pub gemv_gbps: f64,
    /// Their ratio: the target is 0.90.
    pub gemv_to_read: f64,
    /// A step's time, huge pages.
    pub step_us: f64,
    /// `gemv_gbps` with small pages.
    pub gemv_gbps_small_pages: f64,
    /// Plain reads: small pages, small pages with prefetching, huge pages, huge pages with prefetching.
    pub reads_gbps: [f64; 4],
}

/// Measures both formats with 1 to `options.threads` threads; each figure goes to `report` as soon as it is known.
///
/// # Errors
/// Too little memory, or no AVX2.
pub fn step_speed(options: Options, report: &mut dyn FnMut(&StepSpeed)) -> std::io::Result<()> {
    let token = Avx2::detect().ok_or_else(|| std::io::Error::other("steps are measured with AVX2 and FMA only"))?;
    for (format, name) in [(Format::E4m3, "e4m3"), (Format::Fp9, "fp9")] {
        let set = WorkingSet::new(format, options.bytes)?;
        for threads in 1..=options.threads {
            report(&set.measure(token, name, threads, options.steps));
        }
    }
    Ok(())
}

/// The same units with both sizes of pages.
struct WorkingSet {
    layout: UnitLayout,
    layers: usize,
    mappings: [Mapping; 2],
}

/// What is timed: kinds 0 and 1 are steps (small pages, huge pages), 2 to 5 reads in the order of [`StepSpeed::reads_gbps`].
const KINDS: usize = 6;

impl WorkingSet {
    fn new(format: Format, bytes: usize) -> std::io::Result<WorkingSet> {
        let layout = UnitLayout::new(format, HIDDEN).expect("a multiple of 64");
        let layers = bytes.div_ceil(layout.len() * usize::from(EXPERTS));
        let unit = random_unit(&layout);
        let fill = |pages| {
            let mut mapping = Mapping::new(layers * usize::from(EXPERTS) * layout.len(), pages)?;
            mapping.bytes_mut().chunks_exact_mut(layout.len()).for_each(|block| block.copy_from_slice(&unit));
            Ok::<_, std::io::Error>(mapping)
        };
        Ok(WorkingSet { layout, layers, mappings: [fill(Pages::Small)?, fill(Pages::Huge)?] })
    }

    fn measure(&self, token: Avx2, format: &'static str, threads: usize, steps: usize) -> StepSpeed {
        let units = usize::from(EXPERTS);
        let tables = [0, 1].map(|m| -> Vec<UnitEntry<'_>> {
            self.mappings[m].bytes().chunks_exact(self.layout.len()).map(UnitEntry::new).collect()
        });
        let limits = Limits::new(SHAPE, &[SHAPE.root()], 1, CHOSEN);
        let mut scratch = vec![0u8; scratch_len(&limits, SHAPE, HIDDEN, threads).expect("a small step")];
        let (mut out, mut present) = (vec![0.0f32; HIDDEN], [0u8]);
        let nodes = [HeldNode::new(SHAPE.root(), 0, &mut out, &mut present)];
        let input: Vec<f32> = (0..HIDDEN).map(|i| ((i * 37 % 101) as f32 - 50.0) / 64.0).collect();
        let ids = random_ids(2 * steps);
        let weights = [0.125f32; CHOSEN];
        let block = |i: usize| StepBlock {
            session: Session {
                version: ABI_VERSION,
                size: size_of::<StepBlock>() as u32,
                format: format_code(self.layout.format()),
                hidden: HIDDEN as u32,
                slices: SHAPE.slices,
                experts: SHAPE.experts,
                layers: self.layers as u32,
                units: units as u32,
                cores: threads as u32,
                core0_share: FULL_SHARE,
                limits,
                unit_table: tables[i % 2].as_ptr().cast(),
                scratch: scratch.as_ptr().cast_mut(),
                scratch_len: scratch.len() as u64,
            },
            request: Request {
                layer: (i / 2 % self.layers) as u32,
                lanes: 1,
                chosen: CHOSEN as u32,
                mode: 0,
                ids: ids[i].as_ptr(),
                ids_len: CHOSEN as u64,
                weights: weights.as_ptr(),
                weights_len: CHOSEN as u64,
                input: input.as_ptr(),
                input_len: HIDDEN as u64,
                nodes: nodes.as_ptr().cast(),
                nodes_len: 1,
            },
            progress: Progress::new(),
        };
        let blocks: Vec<StepBlock> = (0..2 * steps).map(block).collect();
        let packed = CHOSEN * self.layout.weights() * self.layout.format().bits() / 8;

        // Item i of the run is of kind i mod 6; item 0 and 1 of a round are its two steps.
        let prepare = |item: usize| {
            if item % KINDS < 2 {
                // SAFETY: every pointer leads to a local above; no core runs between items.
                unsafe { begin(&blocks[item / KINDS * 2 + item % KINDS]) }.expect("sizes of this file");
            }
        };
        let work = |thread: usize, item: usize| match item % KINDS {
            kind @ 0..2 => {
                let core = Core { index: thread, isa: Isa::Avx2(token) };
                // SAFETY: as above.
                unsafe { step::run(&blocks[item / KINDS * 2 + kind], core, &mut Yield) }.expect("a good step");
            }
            kind => {
                let bytes = self.mappings[(kind - 2) / 2].bytes();
                let pieces = bytes.len() / packed;
                // Another place than the steps around it have just read.
                let piece = &bytes[(item * 7 + kind) % pieces * packed..][..packed];
                let share = packed / threads / 256 * 256;
                read(token, &piece[thread * share..][..share], if kind % 2 == 0 { 0 } else { 4096 });
            }
        };
        let times = take_turns(threads, steps * KINDS, prepare, work);
        std::hint::black_box((&mut scratch, &out));
        let rates: Vec<f64> = (0..KINDS)
            .map(|kind| {
                let mut times: Vec<f64> = times.iter().skip(kind).step_by(KINDS).copied().collect();
                times.sort_unstable_by(f64::total_cmp);
                packed as f64 / times[times.len() / 10] / 1e9
            })
            .collect();
        let reads_gbps = [rates[2], rates[3], rates[4], rates[5]];
        let read_gbps = reads_gbps.into_iter().fold(0.0, f64::max);
        StepSpeed {
            format,
            threads,
            read_gbps,
            gemv_gbps: rates[1],
            gemv_to_read: rates[1] / read_gbps,
            step_us: packed as f64 / rates[1] / 1e3,
            gemv_gbps_small_pages: rates[0],
            reads_gbps,
        }
    }
}

/// Threads on a shared machine give the processor away.
struct Yield;

impl Hooks for Yield {
    fn idle(&mut self) {
        std::thread::yield_now();
    }
}

/// Seconds of each item: `prepare` on the first thread, then `work` on all.
fn take_turns(threads: usize, items: usize, prepare: impl Fn(usize), work: impl Fn(usize, usize) + Sync) -> Vec<f64> {
    let (turn, finished) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let wait = |word: &AtomicUsize, value: usize| {
        let mut spins = 0;
        while word.load(Ordering::Acquire) < value {
            spins += 1;
            if spins > 10_000 {
                std::thread::yield_now();
            }
        }
    };
    std::thread::scope(|scope| {
        for thread in 1..threads {
            let (turn, finished, work, wait) = (&turn, &finished, &work, &wait);
            scope.spawn(move || {
                for item in 0..items {
                    wait(turn, item + 1);
                    work(thread, item);
                    finished.fetch_add(1, Ordering::Release);
                }
            });
        }
        let timed = |item: usize| {
            let start = Instant::now();
            prepare(item);
            turn.store(item + 1, Ordering::Release);
            work(0, item);
            wait(&finished, (item + 1) * (threads - 1));
            start.elapsed().as_secs_f64()
        };
        (0..items).map(timed).collect()
    })
}

/// A unit of codes like a trained layer's: bell-shaped, one in about 10,000 subnormal.
fn random_unit(layout: &UnitLayout) -> Vec<u8> {
    let mut state = 0x1234_5678_9ABC_DEF1_u64;
    let mut uniform = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    let codes: Vec<u8> =
        (0..SLICE * HIDDEN).map(|_| e4m3::encode((0..4).map(|_| uniform()).sum::<f32>() * 112.0)).collect();
    let scales = vec![1e-3; HIDDEN.div_ceil(128)];
    let tensor = Tensor { codes: &codes[..], scales: &scales };
    let source = Source::E4m3(Expert { gate: tensor, up: tensor, down: tensor, width: SLICE });
    let mut unit = vec![0; layout.len()];
    pack_unit(layout, &source, 0, &mut unit).expect("finite codes of the right number");
    unit
}

fn random_ids(steps: usize) -> Vec<[u16; CHOSEN]> {
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    let mut below = |n: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 33) as usize % n
    };
    (0..steps)
        .map(|_| {
            let mut all: Vec<u16> = (0..EXPERTS).collect();
            (0..CHOSEN).for_each(|i| all.swap(i, i + below(usize::from(EXPERTS) - i)));
            let mut ids: [u16; CHOSEN] = core::array::from_fn(|i| all[i]);
            ids.sort_unstable();
            ids
        })
        .collect()
}

/// Reads everything once with 256-bit loads, a multiple of 256 bytes.
fn read(_: Avx2, bytes: &[u8], distance: usize) {
    // SAFETY: the token proves AVX2.
    unsafe { read_avx2(bytes, distance) }
}

#[target_feature(enable = "avx2")]
fn read_avx2(bytes: &[u8], distance: usize) {
    use core::arch::x86_64::*;
    let mut any = [_mm256_setzero_si256(); 4];
    for block in bytes.chunks_exact(256) {
        for half in 0..2 {
            if distance != 0 {
                let far = block.as_ptr().wrapping_add(distance + 128 * half);
                _mm_prefetch::<_MM_HINT_T0>(far.cast());
                _mm_prefetch::<_MM_HINT_T0>(far.wrapping_add(64).cast());
            }
            for (i, any) in any.iter_mut().enumerate() {
                // SAFETY: 256 bytes in the block.
                let v = unsafe { _mm256_loadu_si256(block.as_ptr().add(128 * half + 32 * i).cast()) };
                *any = _mm256_xor_si256(*any, v);
            }
        }
    }
    std::hint::black_box(any);
}
